//! The demo's results as a table, and whether it kept its promises. Pure.

use std::fmt;
use std::time::Duration;

use super::console;
use super::tally::{Redeliveries, RowState, Tally};
use highwater::page::words::count;

/// The contents of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Findings {
    /// Rows written before the processes were started.
    pub(super) loaded: u64,
    /// Rows inserted while they ran.
    pub(super) inserted: u64,
    /// Rows changed while they ran.
    pub(super) changed: u64,
    /// Row states that arrived and were accepted.
    pub(super) delivered: u64,
    /// Deliveries beyond the first.
    pub(super) again: Redeliveries,
    /// Row states that were written and not accepted.
    pub(super) lost: u64,
    /// Calls of the receiver.
    pub(super) calls: u32,
    /// Timer invocations.
    pub(super) invocations: u64,
    /// Timer invocations that failed.
    pub(super) failed: u64,
    /// Processes killed.
    pub(super) killed: u64,
    /// What the processes logged.
    pub(super) logged: console::Counts,
    /// From the start of the processes until the last row had arrived.
    pub(super) took: Duration,
    /// From the kill until the next batch arrived.
    pub(super) resumed_after: Option<Duration>,
}

impl Findings {
    /// Returns the promises that the demo did not keep; empty means success.
    pub(super) fn shortcomings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut unless = |holds: bool, what: String| found.extend((!holds).then_some(what));
        let lost = grouped(self.lost);
        unless(self.lost == 0, format!("{lost} rows were written but not delivered"));
        unless(self.again.failed_call > 0, "no failed call was delivered again".to_owned());
        unless(self.killed > 0, "no process was killed".to_owned());
        let killed = self.again.killed_process > 0 && self.resumed_after.is_some();
        unless(killed, "nothing was delivered again after the kill".to_owned());
        found
    }

    fn written(&self) -> u64 {
        self.loaded + self.inserted + self.changed
    }

    fn rows(&self) -> [Vec<Row>; 3] {
        let Self { again, logged, .. } = self;
        let deliveries = vec![
            Row::new("rows written", self.written(), self.kinds_of_rows()),
            Row::new("delivered", self.delivered, format!("in {} calls", grouped(self.calls))),
            Row::new("delivered again", again.total(), String::new()),
            Row::new("  failed call", again.failed_call, "answered with 500".to_owned()),
            Row::new("  killed process", again.killed_process, self.takeover()),
            Row::new("  other", again.other, String::new()),
        ];
        let lost = vec![Row::new("lost", self.lost, String::new())];
        let calls = logged.state_reads + logged.state_writes;
        let reads_and_writes = format!(
            "{} reads, {} writes, for {} ticks of which {} failed",
            grouped(logged.state_reads),
            grouped(logged.state_writes),
            grouped(self.invocations),
            grouped(self.failed)
        );
        let overall = per_second(self.delivered, self.took);
        let overall = format!(
            "in ticks that delivered; {} over all {:.1} s",
            grouped(overall),
            self.took.as_secs_f64()
        );
        let busy = per_second(logged.tick_rows, Duration::from_millis(logged.tick_ms));
        let costs = vec![
            Row::new("storage calls", calls, reads_and_writes),
            Row::new("rows per second", busy, overall),
        ];
        [deliveries, lost, costs]
    }

    fn kinds_of_rows(&self) -> String {
        format!(
            "{} loaded; {} inserted and {} changed meanwhile",
            grouped(self.loaded),
            grouped(self.inserted),
            grouped(self.changed)
        )
    }

    fn takeover(&self) -> String {
        let after = |after: Duration| {
            format!("SIGKILL in mid-batch, lease taken over after {:.1} s", after.as_secs_f64())
        };
        self.resumed_after.map(after).unwrap_or_default()
    }
}

/// Returns how many of the written row states were never accepted.
///
/// `table` is the final content of the table. Each of the `changed` rows also had an earlier state, which had arrived
/// before the change: none of those may be missing either.
pub(super) fn lost(table: &[RowState], changed: u64, tally: &Tally) -> u64 {
    let count = |states: usize| u64::try_from(states).unwrap_or(u64::MAX);
    let arrived = count(table.iter().filter(|state| tally.has(state)).count());
    let earlier = tally.accepted().saturating_sub(arrived);
    (count(table.len()) - arrived) + changed.saturating_sub(earlier)
}

struct Row {
    name: &'static str,
    number: String,
    remark: String,
}

impl Row {
    fn new(name: &'static str, number: u64, remark: String) -> Self {
        Self { name, number: grouped(number), remark }
    }
}

/// The table; each part is aligned on its own, so `lost` stands out.
impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.rows().iter().enumerate() {
            if index > 0 {
                writeln!(formatter)?;
            }
            let names = part.iter().map(|row| row.name.len()).max().unwrap_or(0);
            let numbers = part.iter().map(|row| row.number.len()).max().unwrap_or(0);
            for Row { name, number, remark } in part {
                let line = format!("{name:names$}   {number:>numbers$}   {remark}");
                writeln!(formatter, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

fn per_second(rows: u64, time: Duration) -> u64 {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    rows.saturating_mul(1000).checked_div(ms).unwrap_or(0)
}

/// Returns a number with commas between its thousands.
pub(super) fn grouped(number: impl Into<u64>) -> String {
    count(number.into())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::demo::tally::End;

    fn findings() -> Findings {
        Findings {
            loaded: 22_953,
            inserted: 4_051,
            changed: 590,
            delivered: 27_594,
            again: Redeliveries { failed_call: 1_000, killed_process: 1_000, other: 0 },
            lost: 0,
            calls: 71,
            invocations: 76,
            failed: 2,
            killed: 1,
            logged: console::Counts {
                state_reads: 22,
                state_writes: 114,
                tick_rows: 24_594,
                tick_ms: 2_000,
            },
            took: Duration::from_millis(11_240),
            resumed_after: Some(Duration::from_millis(5_130)),
        }
    }

    #[test]
    fn the_table_shows_lost_rows_on_a_separate_line() {
        expect![[r#"
            rows written       27,594   22,953 loaded; 4,051 inserted and 590 changed meanwhile
            delivered          27,594   in 71 calls
            delivered again     2,000
              failed call       1,000   answered with 500
              killed process    1,000   SIGKILL in mid-batch, lease taken over after 5.1 s
              other                 0

            lost   0

            storage calls        136   22 reads, 114 writes, for 76 ticks of which 2 failed
            rows per second   12,297   in ticks that delivered; 2,454 over all 11.2 s
        "#]]
        .assert_eq(&findings().to_string());
    }

    #[test]
    fn a_promise_that_was_not_shown_is_a_shortcoming() {
        assert_eq!(findings().shortcomings(), Vec::<String>::new());
        let again = findings().again;
        for (changed, text) in [
            (Findings { lost: 1_234, ..findings() }, "1,234 rows were written but"),
            (Findings { killed: 0, ..findings() }, "no process was killed"),
            (Findings { resumed_after: None, ..findings() }, "nothing was delivered again"),
            (
                Findings { again: Redeliveries { failed_call: 0, ..again }, ..findings() },
                "no failed call",
            ),
            (
                Findings { again: Redeliveries { killed_process: 0, ..again }, ..findings() },
                "nothing was",
            ),
        ] {
            let found = changed.shortcomings();
            assert!(found.len() == 1 && found[0].starts_with(text), "{found:?}");
        }
    }

    #[test]
    fn a_state_that_did_not_arrive_is_lost_whether_or_not_it_was_replaced() {
        let state = |id, version| RowState { id, version };
        let mut tally = Tally::default();
        tally.note(&[state(1, 1), state(2, 2)], End::Accepted);
        tally.note(&[state(1, 3)], End::Killed);
        // Row 1 was changed: its new state came in a call that was never answered.
        assert_eq!(lost(&[state(1, 3), state(2, 2)], 1, &tally), 1);
        tally.note(&[state(1, 3)], End::Accepted);
        assert_eq!(lost(&[state(1, 3), state(2, 2)], 1, &tally), 0);
        // Row 2 was changed twice, and the state between did not arrive.
        tally.note(&[state(2, 5)], End::Accepted);
        assert_eq!(lost(&[state(1, 3), state(2, 5)], 3, &tally), 1);
    }
}
