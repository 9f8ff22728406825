//! Checks that `SOURCE__CLOCK` matches the clock that fills the cursor column.

use std::fmt::Write as _;

use highwater_engine::cursor::CursorMode;
use highwater_engine::doctor::Finding;
use highwater_engine::value::Value;

use super::super::{decode, zone};
use super::server::unexpected_answer;
use super::{Examination, Table};
use crate::connection::Param;
use crate::ident::quote;
use crate::source::SourceClock;

const CHECK: &str = "cursor clock";
const NOTHING: &str = "no permission should be needed for it";
const CLOCKS: &str = "SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS utc, \
     CONVERT(NVARCHAR(33), SYSDATETIME(), 126) AS here";
const DEFAULT: &str = "SELECT d.definition FROM sys.default_constraints AS d JOIN sys.columns AS c \
     ON c.object_id = d.parent_object_id AND c.column_id = d.parent_column_id \
     WHERE c.object_id = OBJECT_ID(@P1) AND c.name = @P2";
/// A row newer than this shows which clock stamped it.
const NEW_MS: i64 = 60_000;
/// Advice about the repeated hour at the end of daylight saving time.
const REPEATED_HOUR: &str = "the hour repeated in autumn would be skipped: set the zone's winter \
     offset instead of `local`, or find those rows with `SOURCE__AUDIT_AFTER=65m`";

/// The clock of a default constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamp {
    Utc,
    Local,
}

/// Facts about the column's times.
#[derive(Clone, Debug)]
struct Facts {
    clock: SourceClock,
    /// How far the server's local time is ahead of UTC, in minutes.
    offset: i64,
    /// How far the newest cursor is ahead of UTC, in milliseconds.
    newest: Option<i64>,
    default: Option<Stamp>,
}

impl Examination<'_> {
    /// Compares the column's newest time and its default with both clocks of the server.
    pub(super) async fn cursor_clock(&mut self, table: &Table) {
        let Some(cursor) = &table.plan.cursor else { return };
        let has_offset = cursor.type_name == "datetimeoffset";
        if table.choice.mode != CursorMode::TimestampPk || has_offset {
            return;
        }
        let column = format!("t.{}", quote(&cursor.name));
        let newest = format!(
            "SELECT TOP (1) CONVERT(NVARCHAR(33), {column}, 126) AS newest FROM {} AS t \
             WHERE {column} IS NOT NULL ORDER BY {column} DESC",
            table.plan.quoted
        );
        let select = self.grant("SELECT");
        let Some(clocks) = self.ask_row(CHECK, (CLOCKS, &[]), NOTHING).await else { return };
        let Some(newest) = self.ask_row(CHECK, (&newest, &[]), &select).await else { return };
        let default = match self.source.origin.table() {
            None => Vec::new(),
            Some(name) => {
                let params = [Param::Text(name.quoted()), Param::Text(cursor.name.clone())];
                match self.ask_row(CHECK, (DEFAULT, &params), NOTHING).await {
                    Some(row) => row,
                    None => return,
                }
            }
        };
        let finding = match facts(self.source.settings.clock, &clocks, &newest, &default) {
            Some(facts) => evaluate(&cursor.name, &facts),
            None => unexpected_answer(CHECK),
        };
        self.add(finding);
    }
}

fn facts(
    clock: SourceClock,
    clocks: &[Value],
    newest: &[Value],
    default: &[Value],
) -> Option<Facts> {
    let [Value::Text(utc), Value::Text(here)] = clocks else { return None };
    let utc = decode::millis(utc)?;
    // The two clocks are read one after the other.
    let offset = (decode::millis(here)? - utc + 30_000).div_euclid(60_000);
    let newest = match newest {
        [Value::Text(newest)] => Some(decode::millis(newest)? - utc),
        _ => None,
    };
    let default = match default {
        [Value::Text(definition)] => stamp(definition),
        _ => None,
    };
    Some(Facts { clock, offset, newest, default })
}

/// Classifies a constraint like `(getdate())`.
fn stamp(definition: &str) -> Option<Stamp> {
    let lower = definition.to_lowercase();
    let has = |names: [&str; 2]| names.iter().any(|name| lower.contains(name));
    if has(["getutcdate", "sysutcdatetime"]) {
        return Some(Stamp::Utc);
    }
    // `SYSDATETIMEOFFSET` may be converted to any zone.
    let local = has(["getdate", "sysdatetime"]) || lower.contains("current_timestamp");
    (local && !lower.contains("sysdatetimeoffset")).then_some(Stamp::Local)
}

fn evaluate(column: &str, facts: &Facts) -> Finding {
    let here = zone::offset(facts.offset);
    let set = zone::name(facts.clock);
    // Minutes by which the setting's clock is ahead of UTC.
    let assumed = match facts.clock {
        SourceClock::Utc => 0,
        SourceClock::Local => facts.offset,
        SourceClock::Offset(minutes) => i64::from(minutes),
    };
    let stamped = match facts.default {
        Some(Stamp::Utc) => Some((0, "UTC by its default constraint")),
        Some(Stamp::Local) => Some((facts.offset, "local time by its default constraint")),
        None => facts.newest.and_then(|newest| by_newest(newest, facts.offset)),
    };
    let mut found =
        format!("`SOURCE__CLOCK` is `{set}`, the server's time is UTC{here}, `{column}`");
    let Some((stamped, why)) = stamped else {
        let ahead = facts.newest.map(|newest| newest - assumed * 60_000);
        if let Some(ahead) = ahead.filter(|ahead| *ahead > NEW_MS) {
            // Writing to a string cannot fail.
            write!(found, " has a time {} minutes ahead of that clock", ahead / 60_000)
                .unwrap_or_default();
            let fix = "set `SOURCE__CLOCK` to the clock that fills the column, or fix that row";
            return Finding::warning(CHECK, found, fix);
        }
        return Finding::ok(CHECK, format!("{found} has no row that contradicts it"));
    };
    found = format!("{found} is filled with {why}");
    let fits = if stamped == 0 { "utc" } else { "local" };
    // A fixed offset may be an hour behind in summer, on purpose.
    let tolerance = match facts.clock {
        SourceClock::Offset(_) => 60,
        SourceClock::Utc | SourceClock::Local => 0,
    };
    if assumed > stamped {
        let lead = assumed - stamped;
        let found = format!("{found}: the bound is {lead} minutes ahead of it, so rows are missed");
        return Finding::error(CHECK, found, format!("set `SOURCE__CLOCK={fits}`"));
    }
    if stamped - assumed > tolerance {
        let late = stamped - assumed;
        let found = format!("{found}: rows are delivered {late} minutes late");
        return Finding::warning(CHECK, found, format!("set `SOURCE__CLOCK={fits}`"));
    }
    if facts.clock == SourceClock::Local {
        return Finding::warning(
            CHECK,
            format!("{found}, if the zone has daylight saving time"),
            REPEATED_HOUR,
        );
    }
    Finding::ok(CHECK, found)
}

/// Returns the clock of a row that was stamped just now; `None` if it matches neither, or both.
fn by_newest(newest: i64, offset: i64) -> Option<(i64, &'static str)> {
    let fits = |minutes: i64| (newest - minutes * 60_000).abs() <= NEW_MS;
    match (fits(0), fits(offset)) {
        (true, false) => Some((0, "UTC by its newest row")),
        (false, true) => Some((offset, "local time by its newest row")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::doctor::Level;

    use super::*;

    #[test]
    fn a_default_reveals_its_clock() {
        for (definition, expected) in [
            ("(getdate())", Some(Stamp::Local)),
            ("(sysdatetime())", Some(Stamp::Local)),
            ("CURRENT_TIMESTAMP", Some(Stamp::Local)),
            ("(getutcdate())", Some(Stamp::Utc)),
            ("(CONVERT([datetime],sysutcdatetime()))", Some(Stamp::Utc)),
            ("(sysdatetimeoffset())", None),
            ("('2026-01-01')", None),
        ] {
            assert_eq!(stamp(definition), expected, "{definition}");
        }
    }

    #[test]
    fn the_setting_is_compared_with_the_clock_of_the_column() {
        use SourceClock::{Local, Offset, Utc};
        let hour = 3_600_000;
        for (clock, offset, newest, default, level, words) in [
            (Utc, 0, None, None, Level::Ok, "no row that contradicts it"),
            (
                Utc,
                120,
                None,
                Some(Stamp::Local),
                Level::Warning,
                "rows are delivered 120 minutes late",
            ),
            (Utc, -300, None, Some(Stamp::Local), Level::Error, "300 minutes ahead of it"),
            (Utc, -300, None, Some(Stamp::Utc), Level::Ok, "UTC-05:00"),
            (Local, 120, None, Some(Stamp::Utc), Level::Error, "120 minutes ahead of it"),
            (Local, -300, None, Some(Stamp::Utc), Level::Warning, "300 minutes late"),
            (
                Local,
                120,
                None,
                Some(Stamp::Local),
                Level::Warning,
                "if the zone has daylight saving time",
            ),
            (Offset(60), 120, None, Some(Stamp::Local), Level::Ok, "`+01:00`"),
            (Offset(60), 60, None, Some(Stamp::Local), Level::Ok, "`+01:00`"),
            (Offset(120), 60, None, Some(Stamp::Local), Level::Error, "60 minutes ahead"),
            (Utc, -300, Some(-5 * hour - 9), None, Level::Error, "local time by its newest row"),
            (Utc, -300, Some(-9), None, Level::Ok, "UTC by its newest row"),
            (Utc, 120, Some(hour), None, Level::Warning, "a time 60 minutes ahead"),
            (Utc, -300, Some(-48 * hour), None, Level::Ok, "no row that contradicts it"),
        ] {
            let finding = evaluate("at", &Facts { clock, offset, newest, default });
            let outcome = (finding.level, finding.found.contains(words));
            assert_eq!(outcome, (level, true), "{clock:?} {offset}: {}", finding.found);
        }
    }
}
