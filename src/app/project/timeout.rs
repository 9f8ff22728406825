//! The host's limit on one function call: `functionTimeout`.

use std::path::Path;
use std::time::Duration;

use serde_json::Value as Json;

use super::host_file::{override_by, overriding};
use super::{HOST_FILE, ProjectError, read_json};
use crate::config::{FunctionTimeout, Vars};

/// Name of the field in `host.json`; its case is ignored.
pub(super) const FIELD: &str = "functionTimeout";

/// The host's default on a Consumption plan.
const DEFAULT_CONSUMPTION: Duration = Duration::from_secs(5 * 60);
/// The host's default on every other plan.
const DEFAULT: Duration = Duration::from_secs(30 * 60);

/// Returns the host's limit on one function call, for `host.json` in `folder`.
///
/// # Errors
///
/// [`ProjectError`] if `host.json` cannot be read, or the host would not start with the value.
pub fn function_timeout(vars: &dyn Vars, folder: &Path) -> Result<FunctionTimeout, ProjectError> {
    let path = folder.join(HOST_FILE);
    let wrong = |reason| ProjectError::Content { path: path.clone(), reason };
    let mut json = read_json(&path).map_err(|(found, _)| wrong(found))?;
    override_by(&mut json, vars);
    let setting = overriding(vars, FIELD);
    match (of_file(&json), setting) {
        (Ok(None), _) => Ok(plan_default(vars)),
        (Ok(Some(set)), None) => Ok(set),
        (Ok(Some(set)), Some(name)) => Ok(FunctionTimeout { set_by: name, ..set }),
        (Err(reason), None) => Err(wrong(reason)),
        (Err(reason), Some(name)) => Err(ProjectError::Setting { name, reason }),
    }
}

/// Returns the value in `host.json`; `None` if it is missing or blank, so that the default of the plan applies.
pub(super) fn of_file(json: &Json) -> Result<Option<FunctionTimeout>, String> {
    let mut fields = json.as_object().into_iter().flatten();
    let text = match fields.find(|(name, _)| name.eq_ignore_ascii_case(FIELD)) {
        None | Some((_, Json::Null)) => return Ok(None),
        Some((_, Json::String(text))) if text.trim().is_empty() => return Ok(None),
        Some((_, Json::String(text))) => text.clone(),
        Some((_, other)) => other.to_string(),
    };
    let set_by = format!("{HOST_FILE}: {FIELD}");
    let limit = limit(&text).map_err(|reason| format!("`{FIELD}` {reason}"))?;
    Ok(Some(FunctionTimeout { limit, set_by, text: Some(text) }))
}

fn plan_default(vars: &dyn Vars) -> FunctionTimeout {
    let is_consumption =
        vars.get("WEBSITE_SKU").is_some_and(|sku| sku.eq_ignore_ascii_case("Dynamic"));
    let limit = Some(if is_consumption { DEFAULT_CONSUMPTION } else { DEFAULT });
    FunctionTimeout { limit, set_by: "the plan's default".to_owned(), text: None }
}

/// Parses a limit; `None` is no limit. The host does not start with a limit below a second.
fn limit(text: &str) -> Result<Option<Duration>, String> {
    if matches!(text.trim(), "-1" | "-1.00:00:00") {
        return Ok(None);
    }
    match time_span(text.trim()).filter(|limit| *limit >= Duration::from_secs(1)) {
        Some(limit) => Ok(Some(limit)),
        None => {
            Err(format!("is `{text}`, expected a time such as `00:05:00`, or `-1` for no limit"))
        }
    }
}

/// Parses a time span like .NET: `hours:minutes:seconds`, optionally with days in front or without seconds, or
/// only days.
pub(super) fn time_span(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('.') {
        Some((days, clock)) if !days.contains(':') => (days, clock),
        Some(_) => ("0", text),
        None if text.contains(':') => ("0", text),
        None => (text, "0:0"),
    };
    let mut parts = clock.split(':');
    let (hours, minutes) = (number(parts.next()?, 24)?, number(parts.next()?, 60)?);
    let (seconds, nanos) = parts.next().map_or(Some((0, 0)), seconds)?;
    let days = number(days, 10_000_000)?;
    let seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    parts.next().is_none().then(|| Duration::new(seconds, nanos))
}

/// Parses seconds with up to seven decimals.
fn seconds(text: &str) -> Option<(u64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=7).contains(digits))?;
    let nanos = number(fraction, 10_000_000)? * 10_u64.pow(9 - digits);
    Some((number(whole, 60)?, u32::try_from(nanos).ok()?))
}

fn number(text: &str, below: u64) -> Option<u64> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_digits && *number < below)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SETTING: &str = "AzureFunctionsJobHost__functionTimeout";

    #[test]
    fn times_are_parsed_like_in_the_host() {
        for (text, expected) in [
            ("00:05:00", Some(300_000)),
            (" 00:00:10 ", Some(10_000)),
            ("1.00:00:00", Some(86_400_000)),
            ("00:05", Some(300_000)),
            ("2", Some(172_800_000)),
            ("00:00:30.25", Some(30_250)),
            ("00:60:00", None),
            ("24:00:00", None),
            ("00:00:00", None),
            ("00:00:00.5", None),
            ("5m", None),
            ("+00:05:00", None),
            ("00:05:00:00", None),
            ("00:05:00.", None),
            ("", None),
        ] {
            let expected = expected.map(|ms| Some(Duration::from_millis(ms)));
            assert_eq!(limit(text).ok(), expected, "{text}");
        }
        assert_eq!(limit("-1"), Ok(None));
    }

    #[test]
    fn the_setting_overrides_the_file_and_the_file_overrides_the_plan() {
        let folder = tempfile::tempdir().unwrap();
        let read = |vars: &[(&str, &str)]| {
            let vars: BTreeMap<String, String> =
                vars.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let read = function_timeout(&vars, folder.path());
            read.map(|read| (read.limit.map(|limit| limit.as_secs()), read.set_by))
                .map_err(|error| error.to_string())
        };
        assert!(read(&[]).unwrap_err().contains("host.json"), "there is none");
        let write = |text: &str| std::fs::write(folder.path().join(HOST_FILE), text).unwrap();
        write("\u{feff}{ /* none */ }");
        assert_eq!(read(&[]), Ok((Some(1_800), "the plan's default".to_owned())));
        let consumption = ("WEBSITE_SKU", "Dynamic");
        assert_eq!(read(&[consumption]), Ok((Some(300), "the plan's default".to_owned())));
        write("{ \"FunctionTimeout\": \"00:02:00\" } // two minutes");
        assert_eq!(read(&[consumption]), Ok((Some(120), "host.json: functionTimeout".to_owned())));
        write("{ \"functionTimeout\": -1 }");
        assert_eq!(read(&[]), Ok((None, "host.json: functionTimeout".to_owned())));
        let blank = (SETTING, " ");
        assert_eq!(
            read(&[blank]).unwrap().1,
            "the plan's default",
            "a blank setting hides the value of the file"
        );
        let upper = "AZUREFUNCTIONSJOBHOST__FUNCTIONTIMEOUT";
        assert_eq!(read(&[(upper, "00:01:00")]), Ok((Some(60), upper.to_owned())));
        let error = read(&[(SETTING, "1m")]).unwrap_err();
        assert!(error.contains(SETTING) && error.contains("such as `00:05:00`"), "{error}");
        write("{ \"functionTimeout\": \"soon\" }");
        assert!(read(&[]).unwrap_err().contains("`functionTimeout` is `soon`"));
    }
}
