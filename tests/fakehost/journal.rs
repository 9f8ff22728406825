//! The host's log.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Level of a record, as named by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A line on stdout, an entry of `Logs`, or an ordinary run.
    Information,
    /// A line on stderr that contains "warn".
    Warning,
    /// Any other line on stderr, a failed run, or an exit.
    Error,
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its level.
    pub level: Level,
    /// Its origin, such as `Host.Function.Console` or `Function.nightly.User`.
    pub category: String,
    /// Its text.
    pub message: String,
}

/// The records so far.
#[derive(Debug, Default)]
pub struct Journal(watch::Sender<Vec<Record>>);

impl Journal {
    /// Adds a record.
    pub(super) fn write(&self, level: Level, category: &str, message: impl Into<String>) {
        let (category, message) = (category.to_owned(), message.into());
        self.0.send_modify(|records| records.push(Record { level, category, message }));
    }

    /// Returns the records, as they change.
    pub(super) fn changes(&self) -> watch::Receiver<Vec<Record>> {
        self.0.subscribe()
    }

    /// Returns every record so far.
    pub fn records(&self) -> Vec<Record> {
        self.0.borrow().clone()
    }

    /// Returns the first matching record, and waits for it for at most `limit`.
    pub async fn find(&self, limit: Duration, fits: impl Fn(&Record) -> bool) -> Option<Record> {
        let mut changes = self.0.subscribe();
        let there = changes.wait_for(|records| records.iter().any(&fits));
        // The sender lives as long as `self`, so only the limit can end the wait.
        let records = timeout(limit, there).await.ok()?.ok()?;
        records.iter().find(|record| fits(record)).cloned()
    }
}
