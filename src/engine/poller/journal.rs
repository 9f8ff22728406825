//! The journal of a poller: what its ticks did. It is appended to when a tick finishes, and during a tick as often as
//! a lease is renewed.
//!
//! If a tick is killed, its journal is therefore behind by at most one heartbeat interval. Commits count as renewals,
//! so a tick of many short batches may never renew; the appends have their own timer. They run concurrently with the
//! tick, in its task. The tick only waits for the last ones, at its end, and renewals and commits do not depend on
//! them. Entries are recorded after the write that they describe, so a journal is never ahead of its document.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use super::Poller;
use crate::document::{Snapshot, StateDocument};
use crate::error::chain;
use crate::event::counted;
use crate::journal::{
    Appender, Details, Entry, EventKind, HolderEvent, JournalMode, JournalStore, Recorder,
};

/// Who makes a change as an operator, and why.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    /// Who.
    pub by: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// What a poller's ticks did, and where it is recorded.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Written to by the lease, in the task of the tick.
    pub(crate) recorder: Mutex<Recorder>,
    pub(crate) appender: Option<Box<tokio::sync::Mutex<Appender>>>,
    /// Where it is read from, even if nothing is recorded now.
    pub(crate) store: Option<Arc<dyn JournalStore>>,
}

impl Journal {
    /// Returns the journal of a poller that keeps none.
    pub(crate) fn off() -> Self {
        Self { recorder: Mutex::new(Recorder::new(JournalMode::Off)), appender: None, store: None }
    }
}

impl Poller {
    /// Makes the poller keep a journal in `store`, to the extent of `mode`. Parts of days that ended longer ago than
    /// `retention` are dropped; `None` keeps all.
    #[must_use]
    pub fn with_journal(
        self,
        mode: JournalMode,
        store: Arc<dyn JournalStore>,
        retention: Option<Duration>,
    ) -> Self {
        let appender = Appender::new(Arc::clone(&store), &self.name, retention);
        let appender = Some(Box::new(tokio::sync::Mutex::new(appender)));
        let recorder = Mutex::new(Recorder::new(mode));
        let journal = Journal { recorder, appender, store: Some(store) };
        Self { journal, ..self }
    }

    /// Numbers a write that is not made by a lease.
    pub(crate) fn number(&self, event: EventKind, document: &mut StateDocument) {
        self.recorder().numbering().number(event, document);
    }

    /// Records what an operator wrote.
    pub(crate) async fn record_operator_action(
        &self,
        (event, operator): (EventKind, Operator<'_>),
        document: &StateDocument,
        at: OffsetDateTime,
    ) {
        let entry = Entry::of_operator(event, document, at, operator.by, Some(operator.reason));
        self.recorder().record_entry(&entry);
        self.append_to_journal().await;
    }

    /// Records what a tick wrote without a lease; appended when the tick ends.
    pub(crate) fn record_note(
        &self,
        event: EventKind,
        document: &StateDocument,
        at: OffsetDateTime,
    ) {
        let holder = document.holder(self.instance.owner_id());
        let error = document.lost_position().filter(|_| event == EventKind::PositionLost);
        let details = Details { error: error.map(str::to_owned), ..Details::default() };
        self.recorder().record(HolderEvent { event, at, holder: &holder, document, details });
    }

    /// Records what an operator did to a row without a lease, once `written` is stored.
    pub(crate) fn record_row(&self, event: EventKind, details: Details, written: &Snapshot) {
        let (at, document) = (written.written_at(), &*written.document);
        let holder = document.holder(self.instance.owner_id());
        self.recorder().record(HolderEvent { event, at, holder: &holder, document, details });
    }

    pub(crate) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.journal.recorder.lock().expect("no holder of this lock panics")
    }

    /// Runs `work` under a lease and appends its entries to the journal: at each heartbeat interval, and the rest
    /// when it has finished.
    pub(crate) async fn append_during<T>(&self, work: impl Future<Output = T>) -> T {
        if self.journal.appender.is_none() {
            return work.await;
        }
        let (ends, mut end) = oneshot::channel::<()>();
        let work = async {
            let done = work.await;
            drop(ends);
            done
        };
        let appends = async {
            while timeout(self.terms.heartbeat_interval, &mut end).await.is_err() {
                self.append_to_journal().await;
            }
            self.append_to_journal().await;
        };
        let (work, appends) = (pin!(work), pin!(appends));
        tokio::join!(work, appends).0
    }

    /// Appends what the tick did. A tick never fails because of it: missing entries are detected by their numbers,
    /// and the next entry is a snapshot.
    pub(crate) async fn append_to_journal(&self) {
        let Some(appender) = &self.journal.appender else { return };
        // Lock first: what is drained next builds on what was appended before.
        let mut appender = appender.lock().await;
        let entries = self.recorder().take();
        let Some(append) = entries else { return };
        let Err(error) = Box::pin(appender.append(&append)).await else {
            return self.recorder().mark_recorded();
        };
        self.recorder().lost();
        self.metrics.journal_append_failed(&self.name);
        warn!(
            event = "journal_append_failed",
            poller.name = self.name,
            entries = append.entries,
            error = chain(&error),
            "Could not append {} to the journal of poller `{}`; the next one is a snapshot",
            counted(u64::try_from(append.entries).unwrap_or(u64::MAX), "entry"),
            self.name
        );
    }
}
