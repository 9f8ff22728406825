//! The clock that fills a time column, which its upper bound must use too.
//!
//! # Design
//!
//! A column without an offset does not show its zone. Compared with UTC, local times are hours behind the
//! bound, which voids the settle window, or hours ahead of it. In a zone with daylight saving time, the local
//! clock repeats an hour each autumn; a clock with a fixed offset never goes back.

use super::describe::Column;
use crate::source::SourceClock;

/// Returns the expression for the current time.
pub(super) fn now(clock: SourceClock) -> String {
    match clock {
        SourceClock::Utc => "SYSUTCDATETIME()".to_owned(),
        SourceClock::Local => "SYSDATETIME()".to_owned(),
        SourceClock::Offset(minutes) => format!("DATEADD(MINUTE, {minutes}, SYSUTCDATETIME())"),
    }
}

/// Returns the value of the setting for a clock.
pub(super) fn name(clock: SourceClock) -> String {
    match clock {
        SourceClock::Utc => "utc".to_owned(),
        SourceClock::Local => "local".to_owned(),
        SourceClock::Offset(minutes) => offset(minutes.into()),
    }
}

/// Returns an offset in minutes as `+hh:mm`.
pub(super) fn offset(minutes: i64) -> String {
    let sign = if minutes < 0 { '-' } else { '+' };
    let minutes = minutes.unsigned_abs();
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}

/// Checks that the column's times can be of `clock`.
///
/// # Errors
///
/// An error for the operator: a column whose times have an offset needs no clock.
pub(super) fn check(clock: SourceClock, column: &Column) -> Result<(), String> {
    if clock == SourceClock::Utc || column.type_name != "datetimeoffset" {
        return Ok(());
    }
    Err(format!(
        "`SOURCE__CLOCK` is `{}`, but cursor column `{}` is of type `datetimeoffset`, whose times carry \
         their offset: remove the setting",
        name(clock),
        column.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clock_is_an_expression_of_the_database() {
        for (clock, expected, words) in [
            (SourceClock::Utc, "SYSUTCDATETIME()", "utc"),
            (SourceClock::Local, "SYSDATETIME()", "local"),
            (SourceClock::Offset(60), "DATEADD(MINUTE, 60, SYSUTCDATETIME())", "+01:00"),
            (SourceClock::Offset(-210), "DATEADD(MINUTE, -210, SYSUTCDATETIME())", "-03:30"),
        ] {
            assert_eq!((now(clock).as_str(), name(clock).as_str()), (expected, words));
        }
    }
}
