//! Reports unknown settings with our prefix: a typo must not silently become the default.

use highwater_mssql::closest;

use super::defaults::{DEFAULTS, is_common, of_poller};
use super::handler::setting_of_step;
use super::mistake::{Mistake, Shown};
use super::poller::{FUNCTIONS, POLLERS, function_of, group_of, is_segment};
use super::read::Reader;
use super::settings::{self, SETTINGS, Setting};
use super::source;

const PREFIX: &str = "HIGHWATER__";

/// The last part of the setting that is now called [`CONCURRENCY`].
const LANES: &str = "LANES";
const CONCURRENCY: &str = "CONCURRENCY";

/// Settings of earlier versions, without the prefix (of a poller), and what to do with them. Those in [`LANES`] are
/// renamed.
const REMOVED: [(&str, &str); 2] = [
    ("METRICS__AZFDB", "remove it: docs/reference/telemetry.md lists the names of metrics"),
    ("LEASE__FIRST", "remove it: ticks acquire the lease only after they found rows"),
];

/// Reports every unknown setting that has our prefix, in any case.
pub(super) fn report(reader: &mut Reader<'_>) {
    for name in reader.names() {
        let plain = upper(&name);
        if !has_prefix(&name) || is_known(&name) {
            continue;
        }
        if plain.strip_prefix(DEFAULTS).is_some_and(is_of_poller) {
            let hint = "it differs between pollers: set it for each of them".to_owned();
            let (shown, expected) = (Shown::Unknown, String::new());
            reader.note(Mistake { setting: name, shown, expected, hint: Some(hint) });
            continue;
        }
        let (shown, hint) = match (removed(&plain), suggest(&plain)) {
            (Some(hint), _) => (Shown::Removed, hint),
            (None, Some(known)) => {
                (Shown::Unknown, format!("did you mean `{known}`? Rename or remove this setting"))
            }
            (None, None) => (Shown::Unknown, "remove it".to_owned()),
        };
        reader.note(Mistake { setting: name, shown, expected: String::new(), hint: Some(hint) });
    }
}

/// Returns what to do with a removed setting.
fn removed(name: &str) -> Option<String> {
    let of_poller = name.strip_prefix(POLLERS).and_then(|rest| rest.split_once("__"));
    let tail = of_poller.map_or_else(|| name.strip_prefix(PREFIX), |(_, tail)| Some(tail))?;
    let of_step = setting_of_step(tail);
    let tail = of_step.as_deref().unwrap_or(tail);
    if tail.strip_prefix("HANDLER__") == Some(LANES) {
        let before = name.strip_suffix(LANES).unwrap_or(name);
        return Some(format!("rename it to `{before}{CONCURRENCY}`"));
    }
    REMOVED.iter().find(|(known, _)| *known == tail).map(|(_, hint)| (*hint).to_owned())
}

/// Returns a name in the form of our settings.
fn upper(name: &str) -> String {
    name.to_ascii_uppercase().replace(':', "__")
}

/// Whether a name has our prefix, in any case.
pub(super) fn has_prefix(name: &str) -> bool {
    upper(name).starts_with(PREFIX)
}

fn is_known(name: &str) -> bool {
    let segment = name.strip_prefix(POLLERS).and_then(|rest| rest.split_once("__"));
    // An invalid segment is reported separately, once for all its settings.
    segment.is_some_and(|(segment, _)| !is_segment(segment)) || setting_named(name).is_some()
}

/// Returns the setting of the table that a name is for.
pub(super) fn setting_named(name: &str) -> Option<&'static Setting> {
    if let Some(tail) = name.strip_prefix(DEFAULTS) {
        return of_poller(tail).filter(|_| is_common(tail));
    }
    if let Some((_, tail)) = name.strip_prefix(POLLERS).and_then(|rest| rest.split_once("__")) {
        return match setting_of_step(tail) {
            Some(of_handler) => of_poller(&of_handler),
            None if source::filter_param(tail).is_some() => Some(&settings::SOURCE_FILTER_PARAMS),
            None => of_poller(tail),
        };
    }
    match (function_of(name), group_of(name)) {
        (Some(_), _) => Some(&settings::FUNCTION_POLLER),
        (None, Some(_)) => Some(&settings::FUNCTION_POLLERS),
        (None, None) => SETTINGS.iter().find(|setting| setting.name == name),
    }
}

/// Whether the part of a name after the poller is one of its settings.
fn is_of_poller(tail: &str) -> bool {
    of_poller(tail).is_some()
        || setting_of_step(tail).is_some()
        || source::filter_param(tail).is_some()
}

/// Whether a name is under our prefix, but under no valid name of a poller or function: its settings are reported once for
/// all.
pub(super) fn has_invalid_segment(name: &str) -> bool {
    let rest = [POLLERS, FUNCTIONS].iter().find_map(|prefix| name.strip_prefix(prefix));
    rest.and_then(|rest| rest.split_once("__")).is_some_and(|(segment, _)| !is_segment(segment))
}

/// Returns the names of a poller's settings, without prefix and poller.
fn poller_tails() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().filter_map(|setting| setting.name.strip_prefix("HIGHWATER__POLLERS__<NAME>__"))
}

/// Returns the most similar setting.
fn suggest(name: &str) -> Option<String> {
    if let Some((segment, rest)) = name.strip_prefix(POLLERS).and_then(|rest| rest.split_once("__"))
    {
        return suggest_tail(rest).map(|tail| format!("{POLLERS}{segment}__{tail}"));
    }
    if let Some(rest) = name.strip_prefix(DEFAULTS) {
        return suggest_tail(rest)
            .filter(|tail| is_common(tail))
            .map(|tail| format!("{DEFAULTS}{tail}"));
    }
    if let Some((segment, _)) = name.strip_prefix(FUNCTIONS).and_then(|rest| rest.split_once("__"))
    {
        let segment = super::function_segment(segment);
        return Some(format!("{FUNCTIONS}{segment}__POLLER"));
    }
    let tails = SETTINGS.iter().filter_map(|setting| setting.name.strip_prefix(PREFIX));
    let globals = tails.filter(|tail| !tail.contains('<'));
    let global = closest(name.strip_prefix(PREFIX)?, globals);
    global.map(|tail| format!("{PREFIX}{tail}")).or_else(|| suggest_group(name))
}

/// Returns the most similar setting if the typo is in `POLLERS` or `FUNCTIONS`.
fn suggest_group(name: &str) -> Option<String> {
    let (group, rest) = name.strip_prefix(PREFIX)?.split_once("__")?;
    let meant = closest(group, ["POLLERS", "FUNCTIONS"].into_iter())?;
    // Looking for the same name again would never end.
    if meant == group {
        return None;
    }
    let corrected = format!("{PREFIX}{meant}__{rest}");
    if is_known(&corrected) { Some(corrected) } else { suggest(&corrected) }
}

/// Returns the most similar setting of a poller, or of the same step for a step.
fn suggest_tail(tail: &str) -> Option<String> {
    let Some(of_handler) = setting_of_step(tail) else {
        return closest(tail, poller_tails()).map(str::to_owned);
    };
    let known = poller_tails().filter(|known| {
        known.starts_with("HANDLER__") && !known.contains("__STEP") && !known.contains("STALL_MAX")
    });
    let meant = closest(&of_handler, known)?.strip_prefix("HANDLER__")?;
    let prefix = tail.strip_suffix(of_handler.strip_prefix("HANDLER__")?)?;
    Some(format!("{prefix}{meant}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_removed_setting_names_its_replacement() {
        for (name, now) in [
            (
                "Highwater__Metrics__Azfdb",
                "remove it: docs/reference/telemetry.md lists the names of metrics",
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__LANES",
                "rename it to `HIGHWATER__POLLERS__A__HANDLER__CONCURRENCY`",
            ),
            (
                "HIGHWATER__POLLERS__A__HANDLER__STEP__B__LANES",
                "rename it to `HIGHWATER__POLLERS__A__HANDLER__STEP__B__CONCURRENCY`",
            ),
        ] {
            let vars = BTreeMap::from([(name.to_owned(), "2".to_owned())]);
            let error = Config::from_vars(&vars).unwrap_err().to_string();
            assert!(error.contains(now), "{error}");
        }
    }

    #[test]
    fn a_typo_gets_a_suggestion_and_nonsense_does_not() {
        for (name, meant) in [
            ("HIGHWATER__STATE__CONTANER", Some("HIGHWATER__STATE__CONTAINER")),
            ("HIGHWATER__STATE_CONTAINER", Some("HIGHWATER__STATE__CONTAINER")),
            ("HIGHWATER__CONTAINER", Some("HIGHWATER__STATE__CONTAINER")),
            ("HIGHWATER__FOO", None),
            ("HIGHWATER__POLLERS__A__TABLE", Some("HIGHWATER__POLLERS__A__SOURCE__TABLE")),
            ("HIGHWATER__POLLERS__A__BATCH_ROW_MAX", Some("HIGHWATER__POLLERS__A__BATCH_ROWS_MAX")),
            ("HIGHWATER__POLLERS__A__WHATEVER", None),
            (
                "HIGHWATER__POLLERS__A__HANDLER__STEP__B__TIME_OUT",
                Some("HIGHWATER__POLLERS__A__HANDLER__STEP__B__TIMEOUT"),
            ),
            ("HIGHWATER__POLLERS__A__HANDLER__STEP", Some("HIGHWATER__POLLERS__A__HANDLER__STEPS")),
            (
                "HIGHWATER__POLLER__ORDERS__SOURCE__TABLE",
                Some("HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE"),
            ),
            ("HIGHWATER__POLERS__A__SOURCE__TABEL", Some("HIGHWATER__POLLERS__A__SOURCE__TABLE")),
            ("HIGHWATER__FUNCTION__F__POLLER", Some("HIGHWATER__FUNCTIONS__F__POLLER")),
            ("HIGHWATER__OTHER__A__SOURCE__TABLE", None),
            ("HIGHWATER__FUNCTIONS__F__POLER", Some("HIGHWATER__FUNCTIONS__F__POLLER")),
            // Without the part after the name of the poller.
            ("HIGHWATER__POLLERS__ORDERS", None),
            ("HIGHWATER__FUNCTIONS__F", None),
        ] {
            assert_eq!(suggest(name).as_deref(), meant, "{name}");
        }
    }
}
