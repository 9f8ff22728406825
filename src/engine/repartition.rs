//! Changing the number of partitions of a poller.
//!
//! # Steps
//!
//! 1. All old partitions are paused. The document of the first one records the repartition.
//! 2. Once none of them runs a tick, the furthest of their checkpoints becomes the bound. Each of them is run up to
//!    the bound and no further, under its own lease.
//! 3. The new partitions start after the bound, with their own documents. If an old partition has the same name,
//!    its document is saved and replaced under a higher generation.
//! 4. Old partitions whose name is not reused stay paused, and record how many partitions have taken over.
//! 5. The document of the first old partition is the last to change: it is replaced, or left like those.
//!
//! # Why it is safe
//!
//! - The record stays until the last step, so a run that crashes at any point is continued by the same steps: each
//!   first reads the current state, and then makes one conditional write.
//! - An old partition that wakes up finds its document paused, replaced or taken over. A new partition finds no
//!   document until it has been created for it, and old documents reject the new partition count.
//! - A partition whose position is lost, or belongs to another source, prevents the others from proceeding. It can
//!   be reset until all have reached the bound; the record stays, and the next run derives the bound again.
//! - Old partitions deliver all rows up to the bound before a new one starts after it. So the states of one row
//!   arrive in order, even if its partition changes.
//! - Two concurrent runs do the same steps. A run with another partition count is rejected.

use std::time::Duration;

use thiserror::Error;
use time::OffsetDateTime;
use tokio::time::sleep;

use crate::admin::{Operator, SeedError};
use crate::cursor::Cursor;
use crate::document::{
    LoadError, NoCommonBound, RepartitionRecord, StateDocument, common_bound, decode, seed_position,
};
use crate::poller::{Poller, TickError, TickOutcome, has_position};
use crate::store::{StateKey, StateStore, StoreError};
use crate::tick::{TickReport, TickRequest};

/// Pause between two polls for something that another process has to finish.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Most polls: longer than any tick, and than an abandoned lease takes to expire.
const POLLS_MAX: u32 = 900;

/// The partitions of a poller, before and after.
#[derive(Debug)]
pub struct Repartition {
    from: Vec<Poller>,
    to: Vec<Poller>,
}

/// How the keys of a poller are partitioned, by its documents.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionLayout {
    /// The number of partitions; `None` if there is no document yet.
    pub parts: Option<u16>,
    /// The repartition in progress, if any.
    pub under_way: Option<RepartitionRecord>,
}

/// The result of a repartition.
#[derive(Clone, Debug, PartialEq)]
pub struct RepartitionResult {
    /// Position after which the new partitions start; `None` for the beginning.
    pub after: Option<Cursor>,
    /// Rows that the old partitions delivered to reach it.
    pub rows: u64,
}

/// Why a repartition did not finish. Everything done so far stays, and the same command continues it.
#[derive(Debug, Error)]
pub enum RepartitionError {
    /// A repartition to another number of partitions is in progress.
    #[error("`{poller}` is being repartitioned from {from} to {to} partitions; finish that first")]
    UnderWay {
        /// The poller.
        poller: String,
        /// The old number.
        from: u16,
        /// The new number.
        to: u16,
    },
    /// The documents disagree on the number of partitions.
    #[error("`{name}` is not one of {expected} partitions; check `highwater status`")]
    Other {
        /// The partition.
        name: String,
        /// The number of partitions according to the other documents.
        expected: u16,
    },
    /// A partition has parked keys. The other partitions would not know that later versions of these must wait.
    #[error(
        "`{name}` has {}: empty it first with `highwater quarantine redrive {name} --all`",
        crate::event::counted(*keys, "parked key")
    )]
    Parked {
        /// The partition.
        name: String,
        /// How many.
        keys: u64,
    },
    /// There is no position up to which all partitions could be run.
    #[error("{0}")]
    NoCommonBound(String),
    /// The tick of a partition does not finish.
    #[error("`{name}`: {what}")]
    Busy {
        /// The partition.
        name: String,
        /// What blocks it.
        what: String,
    },
    /// A partition could not deliver its rows up to the bound.
    #[error("run `{name}` up to the bound")]
    Tick {
        /// The partition.
        name: String,
        /// Why.
        #[source]
        source: TickError,
    },
    /// A partition could not be started.
    #[error("start `{name}`")]
    Seed {
        /// The partition.
        name: String,
        /// Why.
        #[source]
        source: SeedError,
    },
    /// The state could not be read or written.
    #[error("change the state documents")]
    State(#[source] TickError),
}

impl From<LoadError> for RepartitionError {
    fn from(error: LoadError) -> Self {
        Self::State(error.into())
    }
}

/// Returns how the keys of `poller` are partitioned, according to its documents.
///
/// # Errors
///
/// [`LoadError`] if they cannot be read.
pub async fn partition_layout(
    store: &dyn StateStore,
    poller: &str,
) -> Result<PartitionLayout, LoadError> {
    let first = crate::partition::Partition { index: 0, count: 2 }.name(poller);
    let (mut placed, mut announced) = (None, None);
    for name in [poller, first.as_str()] {
        let loaded = store.load(&StateKey::Document(name.to_owned())).await;
        let Some(stored) = loaded.map_err(|error: StoreError| LoadError::from(error))?.stored
        else {
            continue;
        };
        let document = decode(name, &stored.bytes)?;
        if let Some(record) = document.repartition {
            return Ok(PartitionLayout { parts: Some(record.from), under_way: Some(record) });
        }
        if document.names_partition_count() && document.taken_over_by.is_none() {
            let parts = if has_position(&document) { &mut placed } else { &mut announced };
            *parts = Some(document.partition_count());
        }
    }
    let mut parts = placed;
    if parts.is_none() {
        parts = layout_of_others(store, poller, &first).await?;
    }
    if parts.is_none() {
        // It ran unpartitioned, and has lost its document.
        let marker = store.load(&StateKey::Marker(poller.to_owned())).await?.stored;
        parts = marker.map(|_| 1);
    }
    // A blank document only says what was about to start; that may have been interrupted.
    Ok(PartitionLayout { parts: parts.or(announced), under_way: None })
}

/// Returns the partitioning according to the documents of later partitions, since that of the first one may be
/// lost. `None` also if the store cannot list.
async fn layout_of_others(
    store: &dyn StateStore,
    poller: &str,
    first: &str,
) -> Result<Option<u16>, LoadError> {
    let keys = match store.list().await {
        Ok(keys) => keys,
        Err(StoreError::Refused { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut announced = None;
    for key in keys {
        let StateKey::Document(name) = &key else { continue };
        if name == first || name == poller || crate::partition::poller_of_partition(name) != poller
        {
            continue;
        }
        let Some(stored) = store.load(&key).await?.stored else { continue };
        let document = decode(name, &stored.bytes)?;
        if document.names_partition_count() && document.taken_over_by.is_none() {
            if has_position(&document) {
                return Ok(Some(document.partition_count()));
            }
            announced = Some(document.partition_count());
        }
    }
    Ok(announced)
}

impl Repartition {
    /// Returns the change from the partitions `from` to the partitions `to`, each in the order of their numbers.
    /// Neither may be empty.
    pub fn new(from: Vec<Poller>, to: Vec<Poller>) -> Self {
        Self { from, to }
    }

    /// Runs the repartition, or what is left of it.
    ///
    /// # Errors
    ///
    /// [`RepartitionError`]; the same call continues where this one ended.
    pub async fn run(
        mut self,
        operator: Operator<'_>,
        report: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<RepartitionResult, RepartitionError> {
        self.refuse_parked().await?;
        let mut record = self.hold(operator).await?;
        report(&format!("paused {} partitions", record.from));
        let mut rows = 0;
        if !record.caught_up {
            rows = self.catch_up(&mut record, operator, report).await?;
        }
        // Some may have been parked until then.
        self.refuse_parked().await?;
        self.begin_new(&record, operator, report).await?;
        Ok(RepartitionResult { after: record.after, rows })
    }

    /// Refuses while an old partition has parked keys.
    async fn refuse_parked(&self) -> Result<(), RepartitionError> {
        for part in &self.from {
            // A partition that is one of the new ones already keeps its keys.
            let document = part.admin().document_and_holder().await?;
            let is_old = |(document, _): &(StateDocument, _)| {
                document.belongs_to_partition_count(part.partition_count())
            };
            if !document.as_ref().is_some_and(is_old) {
                continue;
            }
            let keys = part.admin().quarantined().await.map_err(LoadError::from)?;
            if !keys.is_empty() {
                let keys = u64::try_from(keys.len()).unwrap_or(u64::MAX);
                return Err(RepartitionError::Parked { name: part.name().to_owned(), keys });
            }
        }
        Ok(())
    }

    /// Returns the first old partition; its document has the record.
    fn first(&self) -> Option<&Poller> {
        self.from.first()
    }

    /// Pauses the old partitions; returns the record of the repartition.
    async fn hold(&self, operator: Operator<'_>) -> Result<RepartitionRecord, RepartitionError> {
        let (from, to) = (count(&self.from), count(&self.to));
        let requested = RepartitionRecord {
            from,
            to,
            begun_at: OffsetDateTime::UNIX_EPOCH,
            upto: None,
            caught_up: false,
            after: None,
        };
        let mut record = None;
        for (index, part) in self.from.iter().enumerate() {
            let kept = (index == 0).then_some(&requested);
            let held = part.admin().hold_for_repartition(kept, operator).await;
            let held = held.map_err(RepartitionError::State)?;
            if index == 0 {
                let found = held.and_then(|document| document.repartition).ok_or_else(|| {
                    RepartitionError::Other { name: part.name().to_owned(), expected: from }
                })?;
                if (found.from, found.to) != (from, to) {
                    let poller = crate::partition::poller_of_partition(part.name()).to_owned();
                    let (from, to) = (found.from, found.to);
                    return Err(RepartitionError::UnderWay { poller, from, to });
                }
                record = Some(found);
            } else if held.is_none() && record.as_ref().is_some_and(|found| !found.caught_up) {
                let name = part.name().to_owned();
                return Err(RepartitionError::Other { name, expected: from });
            }
        }
        record.ok_or(RepartitionError::NoCommonBound("there are no partitions".to_owned()))
    }

    /// Runs all old partitions up to one position, and records where the new ones start.
    async fn catch_up(
        &mut self,
        record: &mut RepartitionRecord,
        operator: Operator<'_>,
        report: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<u64, RepartitionError> {
        let documents = self.documents().await?;
        let mut rows = 0;
        // Recomputed in each run: the partition that was furthest may have been reset since, and a bound from a
        // dropped table must not decide where the rows of the new table start.
        let checkpoints: Vec<Option<&Cursor>> =
            documents.iter().map(|document| document.checkpoint.cursor.as_ref()).collect();
        let upto = common_bound(&checkpoints).map_err(|why| no_bound(why, self.first()))?;
        if record.upto != upto {
            record.upto = upto;
            self.note(record, operator).await?;
        }
        if let Some(upto) = record.upto.clone() {
            report(&format!("running each partition up to {} `{}`", upto.mode, upto.value));
            let parts = std::mem::take(&mut self.from);
            self.from = parts.into_iter().map(|part| part.up_to(upto.clone())).collect();
            for part in &self.from {
                rows += run_up(part).await?;
            }
        }
        record.after = seed_position(record.upto.clone(), &self.documents().await?);
        record.caught_up = true;
        self.note(record, operator).await?;
        Ok(rows)
    }

    async fn note(
        &self,
        record: &RepartitionRecord,
        operator: Operator<'_>,
    ) -> Result<(), RepartitionError> {
        let Some(first) = self.first() else { return Ok(()) };
        first.admin().note_repartition(record, operator).await.map_err(RepartitionError::State)
    }

    /// Returns the documents of the old partitions, once none of them runs a tick.
    async fn documents(&self) -> Result<Vec<StateDocument>, RepartitionError> {
        let mut documents = Vec::new();
        for part in &self.from {
            let mut polls = 0;
            let found = loop {
                match part.admin().document_and_holder().await? {
                    Some((document, None)) => break Some(document),
                    None => break None,
                    Some((_, Some(holder))) if polls == POLLS_MAX => {
                        let what = format!("the tick of `{holder}` does not finish");
                        return Err(RepartitionError::Busy { name: part.name().to_owned(), what });
                    }
                    Some((_, Some(_))) => polls += 1,
                }
                sleep(POLL_INTERVAL).await;
            };
            documents.extend(found);
        }
        Ok(documents)
    }

    /// Starts the new partitions and retires the old ones; the document of the first old one is the last to change.
    async fn begin_new(
        &self,
        record: &RepartitionRecord,
        operator: Operator<'_>,
        report: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), RepartitionError> {
        let first = self.first().map(Poller::name).unwrap_or_default();
        // A new partition with the name of the first old one comes last; if there is one, it is the first of the new.
        for part in self.to.iter().rev().filter(|part| part.name() != first) {
            seed(part, record, operator, report).await?;
        }
        let is_new = |name: &str| self.to.iter().any(|part| part.name() == name);
        for part in self.from.iter().rev().filter(|part| !is_new(part.name())) {
            part.admin().hand_over(record.to, operator).await.map_err(RepartitionError::State)?;
            report(&format!("{}: handed over to the new partitions", part.name()));
        }
        for part in self.to.iter().filter(|part| part.name() == first) {
            seed(part, record, operator, report).await?;
        }
        Ok(())
    }
}

fn count(parts: &[Poller]) -> u16 {
    u16::try_from(parts.len()).unwrap_or(u16::MAX)
}

async fn seed(
    part: &Poller,
    record: &RepartitionRecord,
    operator: Operator<'_>,
    report: &(dyn Fn(&str) + Send + Sync),
) -> Result<(), RepartitionError> {
    let name = part.name();
    let started = Box::pin(part.admin().seed(record.after.as_ref(), operator)).await;
    let started =
        started.map_err(|source| RepartitionError::Seed { name: name.to_owned(), source })?;
    report(&format!("{name}: {}", if started { "started" } else { "already started" }));
    Ok(())
}

/// Delivers all rows of a partition up to its bound; returns how many.
async fn run_up(part: &Poller) -> Result<u64, RepartitionError> {
    let name = || part.name().to_owned();
    let (mut rows, mut polls) = (0, 0);
    loop {
        let TickReport { result, rows: delivered, summary, .. } =
            part.tick(&TickRequest::default()).await;
        rows += delivered;
        match result {
            Ok(TickOutcome::Idle | TickOutcome::Committed { more: false }) => return Ok(rows),
            Ok(TickOutcome::Committed { more: true }) => polls = 0,
            Ok(
                TickOutcome::Skipped(_)
                | TickOutcome::BackingOff { .. }
                | TickOutcome::Paused { .. },
            ) if polls == POLLS_MAX => {
                return Err(RepartitionError::Busy { name: name(), what: summary });
            }
            Ok(_) => {
                polls += 1;
                sleep(POLL_INTERVAL).await;
            }
            Err(source) => return Err(RepartitionError::Tick { name: name(), source }),
        }
    }
}

fn no_bound(why: NoCommonBound, first: Option<&Poller>) -> RepartitionError {
    RepartitionError::NoCommonBound(match why {
        NoCommonBound::FirstReading => {
            let poller =
                crate::partition::poller_of_partition(first.map(Poller::name).unwrap_or_default());
            format!(
                "a partition is still reading the initial snapshot of the table: run \
                 `highwater resume {poller}`, wait until every partition reads changes (`highwater \
                 status {poller}`), then repartition again"
            )
        }
        NoCommonBound::Modes => {
            "the checkpoints have different modes; set `SOURCE__MODE`, and check `highwater status`"
                .to_owned()
        }
    })
}
