//! Parking the key of a failing row, and diverting later versions of the row to its entry.
//!
//! Rows of parked keys are taken out of a fetch before the rest becomes a batch, so they cost no call and no commit of
//! their own. They are added to the entries before anything of the batch is committed: the checkpoint moves past a row
//! only after it was delivered or its entry has it.

use std::collections::BTreeSet;

use futures_util::future::try_join_all;

use super::batch::{Batch, Diverted, Work};
use super::{LeasedTick, Tick};
use crate::cursor::KeyId;
use crate::document::{Snapshot, StateDocument};
use crate::error::chain;
use crate::event::ChangeEvent;
use crate::lease::LeaseError;
use crate::policy::OnFailure;
use crate::poller::{Poller, TickError};
use crate::quarantine::{Entry, EntryState, RecordError, VersionRead, divert, keys_of, record};

/// Entries that are changed at the same time.
const WRITES_MAX: usize = 16;

/// Why an entry is not known to be stored.
pub(super) enum NotRecorded {
    /// The store failed, or the tick's time is up.
    Store(String),
    /// The lease is no longer held, so nothing more is written.
    Lost(TickError),
}

impl From<LeaseError> for NotRecorded {
    fn from(error: LeaseError) -> Self {
        if matches!(error, LeaseError::OutOfTime) {
            return Self::Store("the tick's time is over".to_owned());
        }
        Self::Lost(TickError::LeaseLost(error))
    }
}

impl Poller {
    /// Whether later versions of parked keys are diverted. A range delivers rows of the past, which hold back nothing.
    fn diverts(&self, document: &StateDocument) -> bool {
        self.policy.on_failure == OnFailure::Park
            && self.range_of.is_none()
            && document.may_have_entries()
    }
}

impl Tick<'_> {
    /// Takes the rows of parked keys out of a batch. The keys are those of `base`: if others are parked now, the lease
    /// is not acquired under its tag.
    pub(super) async fn without_parked(
        &mut self,
        base: &Snapshot,
        batch: Box<Batch>,
    ) -> Result<Box<Batch>, TickError> {
        let poller = self.poller;
        if !poller.diverts(&base.document) {
            return Ok(batch);
        }
        let keys = &mut self.memory.keys;
        if !keys.are_current(&base.document) {
            let listed = keys_of(&*poller.store, poller.of()).await;
            keys.list(&base.document, listed.map_err(|error| TickError::Load(error.into()))?);
        }
        let is_parked = |event: &ChangeEvent| keys.contains(&KeyId::of(&event.cursor.key));
        Ok(Box::new(batch.without(&poller.name, is_parked)))
    }
}

impl LeasedTick<'_, '_> {
    /// Makes a fetched batch the next work, without the rows of parked keys.
    pub(super) async fn work_of(&mut self, batch: Box<Batch>) -> Result<Work, TickError> {
        let batch = self.without_parked(*batch).await?;
        Ok(Work::of(Box::new(batch), self.poller, &self.lease))
    }

    async fn without_parked(&mut self, batch: Batch) -> Result<Batch, TickError> {
        if !self.poller.diverts(self.lease.expected()) {
            return Ok(batch);
        }
        self.know_keys().await?;
        let is_parked = |event: &ChangeEvent| self.keys.contains(&KeyId::of(&event.cursor.key));
        Ok(batch.without(&self.poller.name, is_parked))
    }

    /// Adds the diverted rows of the fetch to the entries of their keys. Rows whose entries are gone, because an operator
    /// dropped them, become rows to deliver.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the tick ends with it, because entries cannot be read or written. The lease is released then.
    pub(super) async fn divert(&mut self) -> Result<(), TickError> {
        let Some(read) = self.work.take_undiverted() else { return Ok(()) };
        match self.divert_rows(&read).await {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => {
                let is_back = |event: &ChangeEvent| gone.contains(&event.id);
                let read = Batch::clone(&read).with_again(&self.poller.name, is_back);
                self.work = Work::of(Box::new(read), self.poller, &self.lease);
                self.work.take_undiverted();
            }
            Err(TickError::LeaseLost(LeaseError::OutOfTime)) => {
                self.release().await;
                return Err(TickError::OutOfTime);
            }
            Err(error) => {
                if !matches!(error, TickError::LeaseLost(_)) {
                    self.release().await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the rows of `next` that may be probed, once the others are diverted; `None` if it has nothing more. A later
    /// version of a failing row proves nothing, and would be delivered before an earlier one.
    pub(super) async fn probe_rows_of(&mut self, next: Batch) -> Result<Option<Batch>, TickError> {
        let id = |event: &ChangeEvent| KeyId::of(&event.cursor.key);
        let failing: BTreeSet<KeyId> = self.work.batch.events.iter().map(id).collect();
        let failing_at = next.events.iter().position(|event| failing.contains(&id(event)));
        let rows = failing_at.unwrap_or(next.events.len());
        let Some(mut next) = next.part(&self.poller.name, 0..rows) else { return Ok(None) };
        next.more &= failing_at.is_none();
        let next = self.without_parked(next).await?;
        let gone = self.divert_rows(&next).await?;
        Ok(Some(next.with_again(&self.poller.name, |event| gone.contains(&event.id))))
    }

    /// Adds the diverted rows of a batch to the entries of their keys. Returns those whose entries are gone.
    async fn divert_rows(
        &mut self,
        batch: &Batch,
    ) -> Result<BTreeSet<crate::event::EventId>, TickError> {
        let (poller, mut gone) = (self.poller, BTreeSet::new());
        let (at, holder) = (self.lease.now(), self.lease.holder().clone());
        for rows in batch.diverted.chunks(WRITES_MAX) {
            let holder = &holder;
            let writes = rows.iter().map(|Diverted { event, .. }| async move {
                let key = KeyId::of(&event.cursor.key);
                let read = VersionRead { event, holder, at };
                let is_kept = divert(&*poller.store, &poller.entry_key(&key), &read).await?;
                Ok::<_, RecordError>((!is_kept).then_some((key, event.id.clone())))
            });
            let written = self.lease.hold_while(try_join_all(writes)).await;
            let written = written.map_err(TickError::LeaseLost)?.map_err(TickError::from_entry)?;
            for (key, id) in written.into_iter().flatten() {
                self.keys.forget(&key);
                gone.insert(id);
            }
        }
        if !gone.is_empty() {
            self.count_keys();
        }
        self.report.diverted(&batch.diverted, &gone);
        Ok(gone)
    }

    /// Writes an entry, or adds a version to it. The document announces that before.
    ///
    /// # Errors
    ///
    /// [`NotRecorded`]; the checkpoint must not move past the row then.
    pub(super) async fn record_entry(&mut self, entry: &Entry) -> Result<(), NotRecorded> {
        let poller = self.poller;
        // The document of a range says nothing of the entries of its poller.
        let is_of_poller = poller.range_of.is_none();
        if is_of_poller {
            match self.know_keys().await {
                Ok(()) => {}
                Err(TickError::LeaseLost(error)) => return Err(error.into()),
                Err(error) => return Err(NotRecorded::Store(chain(&error))),
            }
            self.lease.announce_entry(entry.state == EntryState::Retrying).await?;
        }
        let recorded = self.lease.hold_while(record(&*poller.store, entry)).await?;
        recorded.map_err(|error| NotRecorded::Store(chain(&error)))?;
        if is_of_poller {
            self.keys.park(entry, self.lease.document());
            self.count_keys();
        }
        Ok(())
    }

    /// Lists the parked keys, unless this process knows them.
    async fn know_keys(&mut self) -> Result<(), TickError> {
        let poller = self.poller;
        if self.keys.are_current(self.lease.document()) {
            return Ok(());
        }
        let listed = self.lease.hold_while(keys_of(&*poller.store, poller.of())).await;
        let listed = listed.map_err(TickError::LeaseLost)?;
        self.keys
            .list(self.lease.document(), listed.map_err(|error| TickError::Load(error.into()))?);
        self.count_keys();
        Ok(())
    }

    /// Lets the next write record how many keys are parked.
    fn count_keys(&mut self) {
        if let Some(counted) = self.keys.counts(self.lease.document(), self.lease.now()) {
            self.lease.count_entries(counted);
        }
    }
}
