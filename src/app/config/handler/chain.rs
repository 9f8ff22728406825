//! Settings of a handler chain.

use super::HandlerConfig;
use crate::config::mistake::{Mistake, Shown};
use crate::config::parse::{self, Expected};
use crate::config::read::Reader;
use crate::config::settings;

/// Number of steps in a chain. A single step is just a handler; each step costs one more write per batch.
const STEPS: std::ops::RangeInclusive<usize> = 2..=10;

/// One step of a chain.
#[derive(Clone, Debug)]
pub struct StepConfig {
    /// Its name, `[a-z][a-z0-9_]*`, unique in the chain.
    pub name: String,
    /// Its handler; never a chain.
    pub handler: HandlerConfig,
}

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<Vec<StepConfig>> {
    let names = reader.read(&settings::HANDLER_STEPS, Some(segment), names)?;
    report_unlisted(reader, segment, &names);
    // Read all of them before failing, so that every mistake is reported.
    let steps: Vec<Option<StepConfig>> = names
        .into_iter()
        .map(|name| {
            let handler = super::read(reader, &segment_of(segment, &name));
            handler.map(|handler| StepConfig { name, handler })
        })
        .collect();
    steps.into_iter().collect()
}

/// Returns the segments of a poller's steps, if it has any.
pub(super) fn segments(reader: &Reader<'_>, segment: &str) -> Vec<String> {
    let setting = settings::HANDLER_STEPS.name_for(Some(segment));
    let names = reader.text(&setting).and_then(|text| names(&text).ok()).unwrap_or_default();
    names.iter().map(|name| segment_of(segment, name)).collect()
}

fn segment_of(segment: &str, step: &str) -> String {
    format!("{segment}/{}", step.to_ascii_uppercase())
}

/// Reads the names of the steps, in order.
fn names(text: &str) -> Result<Vec<String>, Expected> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    let fits = STEPS.contains(&names.len())
        && unique.len() == names.len()
        && names.iter().all(|name| parse::is_poller_name(name));
    let what = format!(
        "names of {} to {} steps such as `warehouse, notify`: lowercase letters, digits and single `_`, each once",
        STEPS.start(),
        STEPS.end()
    );
    fits.then_some(names).ok_or_else(|| Expected::new(what))
}

/// Reports settings of steps that are not in the list: a typo must not drop a step silently.
fn report_unlisted(reader: &mut Reader<'_>, segment: &str, names: &[String]) {
    let listed = settings::HANDLER_STEPS.name_for(Some(segment));
    let prefix = settings::HANDLER_STEP.name_for(Some(segment)).replace("<STEP>__<SETTING>", "");
    for setting in reader.names() {
        let rest = setting.strip_prefix(&prefix).and_then(|rest| rest.split_once("__"));
        let Some((step, _)) = rest else { continue };
        if !names.iter().any(|name| name.to_ascii_uppercase() == step) {
            reader.note(Mistake {
                setting: setting.clone(),
                shown: Shown::Unknown,
                expected: format!("a step that `{listed}` names: `{}`", names.join("`, `")),
                hint: None,
            });
        }
    }
}

/// Returns the corresponding handler setting of a step's setting, if it is one.
pub(in crate::config) fn setting_of_step(tail: &str) -> Option<String> {
    let (step, setting) = tail.strip_prefix("HANDLER__STEP__")?.split_once("__")?;
    let name = step.to_ascii_lowercase();
    let is_step = parse::is_poller_name(&name) && name.to_ascii_uppercase() == step;
    let is_of_chain = ["STEPS", "STALL_MAX"].contains(&setting) || setting.starts_with("STEP__");
    (is_step && !is_of_chain).then(|| format!("HANDLER__{setting}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_steps_are_valid_and_unique() {
        assert_eq!(names("warehouse,notify").unwrap(), ["warehouse", "notify"]);
        assert_eq!(names(" b , a_1 ").unwrap(), ["b", "a_1"], "in the order given");
        let eleven = (b'a'..=b'k').map(|c| char::from(c).to_string()).collect::<Vec<_>>();
        for text in ["one", "a,a", "a,,b", "A,b", "a,b__c", "a,b-c", &eleven.join(",")] {
            assert!(names(text).is_err(), "{text}");
        }
        assert_eq!(names(&eleven[1..].join(",")).unwrap().len(), 10);
    }

    #[test]
    fn a_setting_of_a_step_is_a_handler_setting() {
        for (tail, meant) in [
            ("HANDLER__STEP__NOTIFY__URL", Some("HANDLER__URL")),
            ("HANDLER__STEP__A_1__FENCE_TABLE", Some("HANDLER__FENCE_TABLE")),
            ("HANDLER__STEP__notify__URL", None),
            ("HANDLER__STEP__NOTIFY__STEPS", None),
            ("HANDLER__STEP__NOTIFY__STEP__X__URL", None),
            ("HANDLER__STEP__NOTIFY__STALL_MAX", None),
            ("HANDLER__STEP__NOTIFY", None),
            ("HANDLER__URL", None),
        ] {
            assert_eq!(setting_of_step(tail).as_deref(), meant, "{tail}");
        }
    }
}
