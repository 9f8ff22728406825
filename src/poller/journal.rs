//! The journal of a poller: what ticks did, appended when each has ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::warn;

use super::Poller;
use crate::error::chain;
use crate::journal::{Appender, JournalMode, JournalStore, Recorder};

/// What a poller's ticks did, and where it is told.
#[derive(Debug)]
pub(super) struct Journal {
    /// Written to by the lease, in the task of the tick.
    pub(super) recorder: Mutex<Recorder>,
    appender: Option<tokio::sync::Mutex<Appender>>,
}

impl Journal {
    /// Returns the journal of a poller that keeps none.
    pub(super) fn off() -> Self {
        Self { recorder: Mutex::new(Recorder::new(JournalMode::Off)), appender: None }
    }
}

impl Poller {
    /// Lets the poller keep a journal in `store`, and drop parts of days that ended longer ago than
    /// `retention`; `None` keeps all.
    #[must_use]
    pub fn with_journal(
        self,
        mode: JournalMode,
        store: Arc<dyn JournalStore>,
        retention: Option<Duration>,
    ) -> Self {
        let appender = tokio::sync::Mutex::new(Appender::new(store, &self.name, retention));
        let journal =
            Journal { recorder: Mutex::new(Recorder::new(mode)), appender: Some(appender) };
        Self { journal, ..self }
    }

    /// Appends what the tick did. A tick never fails for it: what is missing is found by its numbers, and
    /// the next entry is a snapshot.
    pub(super) async fn append_to_journal(&self) {
        let Some(appender) = &self.journal.appender else { return };
        let taken = self.journal.recorder.lock().expect("no holder of this lock panics").take();
        let Some(append) = taken else { return };
        let Err(error) = appender.lock().await.append(&append).await else { return };
        self.journal.recorder.lock().expect("no holder of this lock panics").lost();
        self.metrics.journal_append_failed(&self.name);
        warn!(
            event = "journal_append_failed",
            poller.name = self.name,
            entries = append.entries,
            error = chain(&error),
            "Could not append {} entries to the journal of poller `{}`; the next entry is a snapshot",
            append.entries,
            self.name
        );
    }
}
