//! What a run of the controller found and did.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::counted::Calls;
use super::table::{Action, Condition};
use crate::event::counted;

/// The outcome of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was reported; nothing needs to be written.
    #[serde(rename = "told")]
    Reported,
    /// A run with repairs would do it.
    Planned,
    /// It was done.
    Done,
    /// The document has changed since; it is left to the next run.
    Changed,
    /// It failed, for this reason.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported => formatter.write_str("told"),
            Self::Planned => formatter.write_str("planned"),
            Self::Done => formatter.write_str("done"),
            Self::Changed => formatter.write_str("left: the document has changed since"),
            Self::Failed(error) => write!(formatter, "failed: {error}"),
        }
    }
}

/// A condition of a poller, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The poller or partition.
    pub poller: String,
    /// The condition.
    pub condition: Condition,
    /// What to do about it.
    pub action: Action,
    /// The finding, in words.
    pub found: String,
    /// The outcome.
    pub outcome: Outcome,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The findings, by poller.
    pub findings: Vec<Finding>,
    /// Documents examined.
    pub documents: u64,
    /// Documents written.
    pub written: u64,
    /// Its calls to the store.
    pub calls: Calls,
    /// How long the run took.
    pub duration: Duration,
    /// Why the run was skipped, if it was.
    pub skipped: Option<String>,
}

impl Report {
    /// Whether an operator is needed: an alarm, or a failed repair.
    pub fn needs_operator(&self) -> bool {
        let bad = |finding: &Finding| {
            finding.action == Action::Alarm || matches!(finding.outcome, Outcome::Failed(_))
        };
        self.findings.iter().any(bad)
    }

    /// Returns one line for people.
    pub fn summary(&self) -> String {
        if let Some(why) = &self.skipped {
            return format!("recovery: skipped: {why}");
        }
        let planned = self.count(|outcome| *outcome == Outcome::Planned);
        let failed = self.count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let what = match (self.written, planned) {
            (0, 0) => "nothing to repair".to_owned(),
            (0, planned) => format!("{planned} to repair"),
            (written, _) => format!("{written} repaired"),
        };
        let failed = if failed == 0 { String::new() } else { format!(", {failed} not repaired") };
        let Calls { listings, reads, writes } = self.calls;
        let [listings, reads, writes] = [(listings, "listing"), (reads, "read"), (writes, "write")]
            .map(|(n, what)| counted(n, what));
        let findings = counted(u64::try_from(self.findings.len()).unwrap_or(u64::MAX), "finding");
        let documents = counted(self.documents, "document");
        format!(
            "recovery: {what}{failed}, {findings} in {documents} ({} ms; {listings}, {reads}, {writes})",
            self.duration.as_millis()
        )
    }

    fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.findings.iter().filter(|finding| which(&finding.outcome)).count()
    }
}
