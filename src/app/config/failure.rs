//! Settings of the failure policy.

use std::time::Duration;

use super::parse::{self, Expected};
use super::read::Reader;
use super::settings::{self, Setting};
use crate::policy::{FailurePolicy, OnFailure, ParkPolicy};

/// Default of `ATTEMPTS_MAX`.
const ATTEMPTS_MAX: u32 = 5;

pub(super) fn read(reader: &mut Reader<'_>, segment: &str) -> Option<FailurePolicy> {
    let at = Some(segment);
    let on_failure = reader.read(&settings::ON_FAILURE, at, on_failure);
    let attempts_max =
        reader.read_if_set(&settings::ATTEMPTS_MAX, at, parse::number(1..=u32::from(u16::MAX)));
    let crashes_max =
        reader.read(&settings::CRASHES_MAX, at, parse::number(1..=u32::from(u16::MAX)));
    let breaker_rows = reader.read(&settings::BREAKER_ROWS, at, parse::number(1..=1_000));
    let age_min = Duration::from_secs(1);
    let is_set =
        |reader: &Reader<'_>, setting: &Setting| reader.text(&setting.name_for(at)).is_some();
    let record_age_max =
        reader.read_if_set(&settings::RECORD_AGE_MAX, at, parse::duration_from(age_min));
    let bisect = reader.read_if_set(&settings::BISECT_ON_ERROR, at, parse::boolean);
    let retries_max = reader.read(&settings::PARK_RETRIES_MAX, at, parse::number(0..=10_000));
    let age_max = reader.read(&settings::PARK_AGE_MAX, at, parse::days_or_duration);
    let on_failure = on_failure?;
    let bisect_on_error = bisect.unwrap_or(on_failure == OnFailure::Park);
    if on_failure == OnFailure::Retry && !bisect_on_error {
        let limits = [&settings::ATTEMPTS_MAX, &settings::CRASHES_MAX, &settings::RECORD_AGE_MAX];
        refuse_without_effect(
            reader,
            segment,
            &limits,
            "is `retry`, which retries forever; set it to `park` or `stop`",
        );
    }
    if on_failure != OnFailure::Park {
        let limits = [&settings::PARK_RETRIES_MAX, &settings::PARK_AGE_MAX];
        refuse_without_effect(reader, segment, &limits, "is not `park`");
    }
    let is_unread = is_set(reader, &settings::RECORD_AGE_MAX) && record_age_max.is_none()
        || is_set(reader, &settings::ATTEMPTS_MAX) && attempts_max.is_none();
    if is_unread {
        return None;
    }
    let park = match on_failure {
        OnFailure::Park => {
            ParkPolicy { retries_max: retries_max?, age_max: age_max?, ..ParkPolicy::default() }
        }
        OnFailure::Retry | OnFailure::Stop => ParkPolicy::NO_RETRIES,
    };
    // The attempts of a key that is retried follow while it is parked.
    let attempts_default = if park.retries() { 1 } else { ATTEMPTS_MAX };
    Some(FailurePolicy {
        on_failure,
        attempts_max: attempts_max.unwrap_or(attempts_default),
        crashes_max: crashes_max?,
        record_age_max,
        bisect_on_error,
        breaker_rows: breaker_rows?,
        park,
    })
}

fn on_failure(text: &str) -> Result<OnFailure, Expected> {
    if text == "quarantine" {
        return Err(Expected::new(
            "`park`; rows that must wait for an operator at once also need `PARK_RETRIES_MAX` = `0`",
        ));
    }
    parse::one_of(&[
        ("retry", OnFailure::Retry),
        ("park", OnFailure::Park),
        ("stop", OnFailure::Stop),
    ])(text)
}

/// Reports limits without effect: they would suggest a protection that does not exist.
fn refuse_without_effect(
    reader: &mut Reader<'_>,
    segment: &str,
    limits: &[&Setting],
    because: &str,
) {
    for setting in limits {
        let name = setting.name_for(Some(segment));
        if let Some(text) = reader.text(&name) {
            let other = settings::ON_FAILURE.name_for(Some(segment));
            let expected = format!("no value while `{other}` {because}");
            reader.wrong(&name, &text, Expected::none(expected));
        }
    }
}
