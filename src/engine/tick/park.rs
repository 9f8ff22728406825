//! Parking the key of a failing or unreadable row, and diverting later versions of the row to its entry.
//!
//! Rows of parked keys are taken out of a fetch before the rest becomes a batch, so they cost no call and no commit of
//! their own. They are added to the entries before anything of the batch is committed: the checkpoint moves past a row
//! only after it was delivered or its entry has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::try_join_all;

use super::batch::{Batch, Diverted, Work};
use super::fetch::unreadable;
use super::isolate::PriorAttempts;
use super::{LeasedTick, Tick};
use crate::cursor::KeyId;
use crate::document::{AnnouncedEntry, Snapshot, StateDocument};
use crate::error::chain;
use crate::event::{BatchId, ChangeEvent, EventId};
use crate::journal::{Details, EventKind};
use crate::lease::{Lease, LeaseError};
use crate::policy::OnFailure;
use crate::poller::{Poller, TickError};
use crate::quarantine::{
    DamagedRead, Diversion, Entry, EntryError, EntryState, QuarantinedRow, Reason, RecordError,
    Recorded, VersionRead, divert, keys_of, record,
};

/// Entries that are changed at the same time.
const WRITES_MAX: usize = 16;
/// How often an entry is read that seems to be damaged, until two reads return the same.
const DAMAGED_READS_MAX: u32 = 5;

/// Why an entry is not known to be stored.
pub(super) enum NotRecorded {
    /// The store failed.
    Store(String),
    /// The tick's time is up.
    OutOfTime,
    /// The lease is no longer held, so nothing more is written.
    Lost(TickError),
}

impl From<LeaseError> for NotRecorded {
    fn from(error: LeaseError) -> Self {
        if matches!(error, LeaseError::OutOfTime) {
            return Self::OutOfTime;
        }
        Self::Lost(TickError::LeaseLost(error))
    }
}

impl Poller {
    /// Whether keys wait and are retried. A range delivers rows of the past, which hold back nothing.
    pub(crate) fn holds_keys(&self) -> bool {
        self.policy.on_failure == OnFailure::Park && self.range_of.is_none()
    }

    /// Whether later versions of parked keys are diverted.
    fn diverts(&self, document: &StateDocument) -> bool {
        self.holds_keys() && document.may_have_entries()
    }

    /// Whether the keys of unreadable rows may be parked. Most likely the settings are wrong if there are more in a row
    /// than the breaker allows.
    fn check_unreadable(&self, batch: &Batch, document: &StateDocument) -> Result<(), TickError> {
        let first = u32::try_from(batch.unreadable_first().count()).unwrap_or(u32::MAX);
        let in_a_row = first.saturating_add(document.parked.unreadable_in_a_row);
        match batch.unreadable_first().next() {
            Some(why) if in_a_row > self.policy.breaker_rows => Err(unreadable(why)),
            Some(_) | None => Ok(()),
        }
    }
}

/// Returns what the entry says that replaces a damaged one.
fn replaced_text(damaged: &EntryError) -> String {
    format!("what was known about the key could not be read: {}", chain(damaged))
}

/// Returns why an unreadable row stops the poller although its key would be parked.
fn unparked(why: &str, error: &str) -> Arc<str> {
    format!("{why}; and its key could not be parked: {error}").into()
}

impl Tick<'_> {
    /// Takes the rows of parked keys and unreadable rows out of a batch. The keys are those of `base`: if others are parked
    /// now, the lease is not acquired under its tag.
    pub(super) async fn without_parked(
        &mut self,
        base: &Snapshot,
        batch: Box<Batch>,
    ) -> Result<Box<Batch>, TickError> {
        let poller = self.poller;
        let (diverts, has_unreadable) = (poller.diverts(&base.document), batch.has_unreadable());
        if !diverts && !has_unreadable {
            return Ok(batch);
        }
        let keys = &mut self.memory.keys;
        if diverts && !keys.are_current(&base.document) {
            let listed = keys_of(&*poller.store, poller.of()).await;
            let listed = listed.map_err(|error| TickError::Load(error.into()))?;
            keys.list(&base.document, listed);
        }
        let mut batch = *batch;
        if has_unreadable && let Err(error) = keys.know_unique(&*poller.source).await {
            // As without `park`: the rows before it are delivered.
            let front = batch.before_unreadable(&poller.name);
            batch = front.map_err(|why| unreadable(&unparked(&why, &error)))?;
        }
        let is_parked =
            |event: &ChangeEvent| diverts && keys.contains(&KeyId::of(&event.cursor.key));
        let batch = batch.without(&poller.name, is_parked);
        poller.check_unreadable(&batch, &base.document)?;
        Ok(Box::new(batch))
    }

    /// Lets the next write record how many keys were listed before the lease was granted, if the document says otherwise.
    pub(super) fn count_listed_keys(&mut self, lease: &mut Lease<'_>) {
        let keys = &mut self.memory.keys;
        if !keys.are_current(lease.document())
            && let Some(counted) = keys.counts(lease.document(), lease.now())
        {
            lease.count_entries(counted);
        }
    }
}

impl LeasedTick<'_, '_> {
    /// Makes a fetched batch the next work, without the rows of parked keys and unreadable rows.
    pub(super) async fn work_of(&mut self, batch: Box<Batch>) -> Result<Work, TickError> {
        let batch = self.without_parked(*batch).await?;
        Ok(Work::of(Box::new(batch), self.poller, &self.lease))
    }

    async fn without_parked(&mut self, batch: Batch) -> Result<Batch, TickError> {
        let diverts = self.poller.diverts(self.lease.expected());
        if !diverts && !batch.has_unreadable() {
            return Ok(batch);
        }
        if diverts {
            self.know_keys().await?;
        }
        let is_parked =
            |event: &ChangeEvent| diverts && self.keys.contains(&KeyId::of(&event.cursor.key));
        Ok(batch.without(&self.poller.name, is_parked))
    }

    /// Adds the diverted rows of the fetch to the entries of their keys, and parks the keys of unreadable rows. Rows whose
    /// entries are gone, because an operator dropped them, become rows to deliver.
    ///
    /// # Errors
    ///
    /// [`TickError`] if the tick ends with it, because entries cannot be read or written. The lease is released then.
    pub(super) async fn divert(&mut self) -> Result<(), TickError> {
        let Some(read) = self.work.take_undiverted() else { return Ok(()) };
        match Box::pin(self.divert_all(Batch::clone(&read))).await {
            Ok((_, false)) => Ok(()),
            Ok((read, true)) => {
                self.work = Work::of(Box::new(read), self.poller, &self.lease);
                self.work.take_undiverted();
                Ok(())
            }
            Err(TickError::LeaseLost(LeaseError::OutOfTime)) => {
                self.release().await;
                Err(TickError::OutOfTime)
            }
            Err(error) => {
                if !matches!(error, TickError::LeaseLost(_)) {
                    self.release().await;
                }
                Err(error)
            }
        }
    }

    /// Returns the rows of `next` that may be probed, once the others are diverted; `None` if it has nothing more. A later
    /// version of a failing row proves nothing, and would be delivered before an earlier one.
    pub(super) async fn probe_rows_of(&mut self, next: Batch) -> Result<Option<Batch>, TickError> {
        let id = |event: &ChangeEvent| KeyId::of(&event.cursor.key);
        let failing: BTreeSet<KeyId> = self.work.fetched().map(id).collect();
        let failing_at = next.events.iter().position(|event| failing.contains(&id(event)));
        let rows = failing_at.unwrap_or(next.events.len());
        let Some(mut next) = next.part(&self.poller.name, 0..rows) else { return Ok(None) };
        next.more &= failing_at.is_none();
        let next = self.without_parked(next).await?;
        self.is_probing = true;
        let diverted = Box::pin(self.divert_all(next)).await;
        self.is_probing = false;
        Ok(Some(diverted?.0))
    }

    /// Adds the diverted rows of a batch to the entries of their keys, until each has one. Returns the batch, and whether
    /// rows whose entries are gone were put back.
    async fn divert_all(&mut self, mut batch: Batch) -> Result<(Batch, bool), TickError> {
        // Only now does the document have the rows before these.
        self.poller.check_unreadable(&batch, self.lease.expected())?;
        let mut is_changed = false;
        loop {
            let gone = self.divert_rows(&batch).await?;
            if gone.is_empty() {
                return Ok((batch, is_changed));
            }
            is_changed = true;
            batch = batch.with_again(&self.poller.name, |event| gone.contains(&event.id));
        }
    }

    /// Adds the diverted rows of a batch to the entries of their keys. Returns those whose entries are gone.
    async fn divert_rows(&mut self, batch: &Batch) -> Result<BTreeSet<EventId>, TickError> {
        let mut gone = BTreeSet::new();
        self.park_unreadable(batch).await?;
        let parked: Vec<&Diverted> = batch.diverted.iter().filter(|row| row.is_parked).collect();
        for rows in parked.chunks(WRITES_MAX) {
            let (mut left, mut damaged) = (rows.to_vec(), BTreeMap::new());
            for _ in 0..DAMAGED_READS_MAX {
                left = self.divert_once(batch, &left, &mut damaged, &mut gone).await?;
                if left.is_empty() {
                    break;
                }
                // No later holder has written what is replaced then.
                self.lease.prove_held().await.map_err(TickError::LeaseLost)?;
            }
            if let Some(row) = left.first()
                && let Some(read) = damaged.remove(&KeyId::of(&row.event.cursor.key))
            {
                return Err(TickError::from_entry(read.into()));
            }
        }
        if !gone.is_empty() {
            self.count_keys();
        }
        self.report.diverted(&batch.diverted, &gone);
        Ok(gone)
    }

    /// Adds rows to the entries of their keys. Returns those whose entries seem to be damaged, and puts what was read into
    /// `damaged`; an entry that was read like that before is replaced.
    async fn divert_once<'r>(
        &mut self,
        batch: &Batch,
        rows: &[&'r Diverted],
        damaged: &mut BTreeMap<KeyId, DamagedRead>,
        gone: &mut BTreeSet<EventId>,
    ) -> Result<Vec<&'r Diverted>, TickError> {
        let poller = self.poller;
        let (at, holder) = (self.lease.now(), &self.lease.holder().clone());
        let before = std::mem::take(damaged);
        let writes = rows.iter().map(|row| {
            let before = &before;
            async move {
                let event = &row.event;
                let key = KeyId::of(&event.cursor.key);
                let read = VersionRead { event, holder, at };
                // It waits for an operator: its row may be one that crashes processes.
                let new = |damaged: &EntryError| {
                    let error = &replaced_text(damaged);
                    QuarantinedRow {
                        poller: poller.of(),
                        batch_id: &batch.id,
                        holder,
                        reason: Reason::Unreadable,
                        attempts: 0,
                        crashes: 0,
                        first_failed_at: at,
                        quarantined_at: at,
                        first_error: error,
                        last_error: error,
                    }
                    .entry(event)
                };
                let at = poller.entry_key(&key);
                let diverted = divert(&*poller.store, &at, &read, before.get(&key), new).await?;
                Ok::<_, RecordError>((key, *row, diverted))
            }
        });
        let written = self.lease.hold_while(try_join_all(writes)).await;
        let written = written.map_err(TickError::LeaseLost)?.map_err(TickError::from_entry)?;
        let mut left = Vec::new();
        for (key, row, diverted) in written {
            match diverted {
                Diversion::Gone => {
                    self.keys.forget(&key);
                    gone.insert(row.event.id.clone());
                }
                Diversion::HoldsNothing => {
                    self.keys.learn_that_it_holds_nothing(&key);
                    gone.insert(row.event.id.clone());
                }
                Diversion::Kept { replaced } => {
                    // Also if the entry has it from a tick that never got to its commit, or to its journal.
                    self.note_row(EventKind::RowDiverted, &row.event, &batch.id, None);
                    if let Some(damaged) = replaced {
                        self.report.entry_replaced(&key, &damaged);
                    }
                }
                Diversion::Damaged(read) => {
                    damaged.insert(key, read);
                    left.push(row);
                }
            }
        }
        Ok(left)
    }

    /// Parks the keys of the unreadable rows of a batch.
    async fn park_unreadable(&mut self, batch: &Batch) -> Result<(), TickError> {
        for Diverted { event, .. } in batch.diverted.iter().filter(|row| !row.is_parked) {
            let Some(why) = &event.unreadable else { continue };
            let tried = PriorAttempts::default();
            let entry = self.entry_of(event, &batch.id, Reason::Unreadable, &tried, why);
            match self.record_entry(&entry).await {
                Ok(()) => {}
                Err(NotRecorded::Lost(error)) => return Err(error),
                Err(NotRecorded::OutOfTime) => {
                    return Err(TickError::LeaseLost(LeaseError::OutOfTime));
                }
                Err(NotRecorded::Store(error)) => {
                    return Err(unreadable(&unparked(why, &error)));
                }
            }
            // Otherwise the commit of the batch counts it.
            if self.is_probing {
                self.lease.count_unreadable();
            }
            let reason = Some((Reason::Unreadable, &**why));
            self.note_row(EventKind::RowQuarantined, event, &batch.id, reason);
            let rows = std::slice::from_ref(event);
            self.report.set_aside(entry.state, &batch.id, rows, entry.reason, why);
        }
        Ok(())
    }

    /// Records in the journal that the checkpoint passes a row that the handler did not get.
    fn note_row(
        &self,
        kind: EventKind,
        event: &ChangeEvent,
        batch_id: &BatchId,
        why: Option<(Reason, &str)>,
    ) {
        self.lease.note(kind, || Details {
            batch_id: Some(batch_id.clone()),
            upto: Some(event.cursor.clone()),
            rows: Some(1),
            error: why.map(|(_, error)| error.to_owned()),
            reason: why.map(|(reason, _)| reason.as_str().to_owned()),
            ..Details::default()
        });
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
        self.know_unique_key().await?;
        if is_of_poller {
            match self.know_keys().await {
                Ok(()) => {}
                Err(TickError::LeaseLost(error)) => return Err(error.into()),
                Err(error) => return Err(NotRecorded::Store(chain(&error))),
            }
            let announced = AnnouncedEntry { is_retried: entry.state == EntryState::Retrying };
            self.lease.announce_entry(announced).await?;
        }
        if let Some(damaged) = self.write_entry(entry).await? {
            self.report.entry_replaced(&entry.key_id, &damaged);
        }
        if is_of_poller {
            self.keys.park(entry, self.lease.document());
            self.count_keys();
        }
        Ok(())
    }

    /// Writes an entry, or adds a version to it. Returns why the one that it replaces could not be read.
    async fn write_entry(&mut self, entry: &Entry) -> Result<Option<EntryError>, NotRecorded> {
        let poller = self.poller;
        let failed = |error: RecordError| NotRecorded::Store(chain(&error));
        let mut before = None;
        for _ in 0..DAMAGED_READS_MAX {
            let recorded = record(&*poller.store, entry, before.as_ref());
            match self.lease.hold_while(recorded).await?.map_err(failed)? {
                Recorded::Done(replaced) => return Ok(replaced),
                // The row of a range may be older than what the entry had.
                Recorded::Damaged(damaged) if poller.range_of.is_some() => {
                    return Err(failed(damaged.into()));
                }
                Recorded::Damaged(damaged) => before = Some(damaged),
            }
            // No later holder has written what is replaced then.
            self.lease.prove_held().await?;
        }
        Err(before.map_or(NotRecorded::OutOfTime, |damaged| failed(damaged.into())))
    }

    /// Makes sure that an entry is not about several rows.
    async fn know_unique_key(&mut self) -> Result<(), NotRecorded> {
        // A prefetch in progress would keep the source busy, and nothing else continues it here.
        self.prefetch = None;
        let known = self.keys.know_unique(&*self.poller.source);
        self.lease.hold_while(known).await?.map_err(NotRecorded::Store)
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
