//! Settings of the failure policy.

use std::time::Duration;

use super::parse::{self, Expected};
use super::read::Reader;
use super::settings;
use crate::policy::{FailurePolicy, OnFailure};

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<FailurePolicy> {
    let at = Some(segment);
    let ends = [
        ("retry", OnFailure::Retry),
        ("quarantine", OnFailure::Quarantine),
        ("stop", OnFailure::Stop),
    ];
    let on_failure = reader.read(&settings::ON_FAILURE, at, parse::one_of(&ends));
    let attempts_max =
        reader.read(&settings::ATTEMPTS_MAX, at, parse::number(1..=u32::from(u16::MAX)));
    let crashes_max =
        reader.read(&settings::CRASHES_MAX, at, parse::number(1..=u32::from(u16::MAX)));
    let breaker_rows = reader.read(&settings::BREAKER_ROWS, at, parse::number(1..=1_000));
    let age_min = Duration::from_secs(1);
    let is_set = |reader: &mut Reader<'_>, setting: &settings::Setting| {
        reader.text(&setting.name_for(at)).is_some()
    };
    let age_is_set = is_set(reader, &settings::RECORD_AGE_MAX);
    let record_age_max =
        reader.read_if_set(&settings::RECORD_AGE_MAX, at, parse::duration_from(age_min));
    let bisect = reader.read_if_set(&settings::BISECT_ON_ERROR, at, parse::boolean);
    let on_failure = on_failure?;
    let bisect_on_error = bisect.unwrap_or(on_failure == OnFailure::Quarantine);
    if on_failure == OnFailure::Retry && !bisect_on_error {
        refuse_without_effect(reader, segment);
    }
    if age_is_set && record_age_max.is_none() {
        return None;
    }
    Some(FailurePolicy {
        on_failure,
        attempts_max: attempts_max?,
        crashes_max: crashes_max?,
        record_age_max,
        bisect_on_error,
        breaker_rows: breaker_rows?,
    })
}

/// Reports limits without effect: they would suggest a protection that does not exist.
fn refuse_without_effect(reader: &mut Reader<'_>, segment: &str) {
    for setting in [&settings::ATTEMPTS_MAX, &settings::CRASHES_MAX, &settings::RECORD_AGE_MAX] {
        let name = setting.name_for(Some(segment));
        if let Some(text) = reader.text(&name) {
            let other = settings::ON_FAILURE.name_for(Some(segment));
            let expected = format!(
                "no value while `{other}` is `retry`, which retries forever; \
                 set it to `quarantine` or `stop`"
            );
            reader.wrong(&name, &text, Expected::new(expected));
        }
    }
}
