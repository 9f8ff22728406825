//! Progress of a redrive: a line that is rewritten on a terminal, and nothing elsewhere.

use crate::terminal_line;

/// Counts the outcomes of a redrive, and shows them.
#[derive(Debug)]
pub(super) struct Progress {
    entries: usize,
    delivered: usize,
    refused: usize,
    others: usize,
}

impl Progress {
    /// Starts at nothing of this many entries.
    pub(super) fn of(entries: usize) -> Self {
        Self { entries, delivered: 0, refused: 0, others: 0 }
    }

    /// Counts an outcome, as a line of the result names it, and shows the new line.
    pub(super) fn add(&mut self, outcome: &str) {
        match outcome {
            "delivered" | "delivered, not removed" => self.delivered += 1,
            "refused" => self.refused += 1,
            _ => self.others += 1,
        }
        if terminal_line::is_terminal() {
            terminal_line::rewrite(&self.text());
        }
    }

    /// Ends the line, if there is one.
    pub(super) fn end(&self) {
        if self.redriven() > 0 && terminal_line::is_terminal() {
            terminal_line::end();
        }
    }

    fn redriven(&self) -> usize {
        self.delivered + self.refused + self.others
    }

    fn text(&self) -> String {
        let Self { entries, delivered, refused, others } = self;
        let others = if *others > 0 { format!(", {others} other") } else { String::new() };
        let redriven = self.redriven();
        format!(
            "{redriven} of {entries} redriven, {delivered} delivered, {refused} refused{others}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_each_outcome() {
        let mut progress = Progress::of(340);
        let mut after = |outcomes: &[&str]| {
            for outcome in outcomes {
                progress.add(outcome);
            }
            progress.text()
        };
        assert_eq!(after(&["delivered"]), "1 of 340 redriven, 1 delivered, 0 refused");
        expect_test::expect!["4 of 340 redriven, 2 delivered, 1 refused, 1 other"]
            .assert_eq(&after(&["refused", "row gone", "delivered, not removed"]));
    }
}
