//! Progress of a range: one line per second, or a bar in place on a terminal.

use std::time::Duration;

use crate::terminal_line;
use highwater::telemetry::write_stderr;

/// Characters of a bar.
const BAR_CHARS: usize = 10;

/// Progress of the delivery of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) rows_planned: u64,
    /// Rows that were delivered before this process took part.
    pub(super) rows_before: u64,
    pub(super) rows_here: u64,
    pub(super) windows: usize,
    pub(super) windows_done: usize,
    pub(super) elapsed: Duration,
}

impl Progress {
    fn line(&self) -> String {
        let rows = self.rows_before + self.rows_here;
        let percent = rows.min(self.rows_planned) * 100 / self.rows_planned.max(1);
        let seconds = self.elapsed.as_secs().max(1);
        let rate = self.rows_here / seconds;
        let left = self.rows_planned.saturating_sub(rows);
        let time_left = match left.checked_div(rate) {
            Some(seconds) => format!("{} left", span(seconds)),
            None => "time left unknown".to_owned(),
        };
        let windows = match self.windows {
            1 => String::new(),
            windows => format!(", {}/{windows} windows", self.windows_done),
        };
        format!(
            "{percent:3} % {rows}/{} rows, {rate} rows/s, {time_left}{windows}",
            self.rows_planned
        )
    }

    /// Returns the line with its bar.
    fn drawn(&self) -> String {
        format!("{} {}", self.bar(), self.line())
    }

    fn bar(&self) -> String {
        let chars = u64::try_from(BAR_CHARS).unwrap_or(u64::MAX);
        let rows = (self.rows_before + self.rows_here).min(self.rows_planned);
        let full = rows.saturating_mul(chars) / self.rows_planned.max(1);
        let full = usize::try_from(full).unwrap_or(BAR_CHARS);
        format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_CHARS - full))
    }

    /// Shows it on standard error.
    pub(super) fn show(&self) {
        if terminal_line::is_terminal() {
            terminal_line::rewrite(&self.drawn());
        } else {
            write_stderr(&format!("{}\n", self.line()));
        }
    }

    /// Ends the line, so that later output starts on a new one.
    pub(super) fn end() {
        if terminal_line::is_terminal() {
            terminal_line::end();
        }
    }
}

fn span(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_rate_and_time_left() {
        let progress = Progress {
            rows_planned: 1_000,
            rows_before: 200,
            rows_here: 100,
            windows: 8,
            windows_done: 2,
            elapsed: Duration::from_secs(10),
        };
        let none = Progress { rows_here: 0, windows: 1, ..progress };
        // Rows were inserted at old positions, or changed since they were counted.
        let over = Progress { rows_here: 9_000, elapsed: Duration::from_millis(3), ..progress };
        expect_test::expect![[r#"
             30 % 300/1000 rows, 10 rows/s, 1 min 10 s left, 2/8 windows
             20 % 200/1000 rows, 0 rows/s, time left unknown
            100 % 9200/1000 rows, 9000 rows/s, 0 s left, 2/8 windows"#]]
        .assert_eq(&[progress, none, over].map(|progress| progress.line()).join("\n"));
        let many = Progress {
            rows_planned: 500_000_000,
            rows_before: 123_456_789,
            windows: 64,
            windows_done: 12,
            ..progress
        };
        expect_test::expect![[r#"
            [###-------]  30 % 300/1000 rows, 10 rows/s, 1 min 10 s left, 2/8 windows
            [##--------]  20 % 200/1000 rows, 0 rows/s, time left unknown
            [##########] 100 % 9200/1000 rows, 9000 rows/s, 0 s left, 2/8 windows
            [##--------]  24 % 123456889/500000000 rows, 10 rows/s, 10459 h 31 min left, 12/64 windows"#]]
        .assert_eq(&[progress, none, over, many].map(|progress| progress.drawn()).join("\n"));
        assert_eq!(span(7_384), "2 h 3 min");
    }
}
