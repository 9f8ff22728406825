//! Dividing the keys of a poller into another number of parts.
//!
//! # How
//!
//! 1. All old parts are paused. The first one's document says what is under way.
//! 2. Once none of them has a tick running, the furthest of their checkpoints is the bound: up to there, and no
//!    further, each of them is run, under its own lease.
//! 3. The new partitions start after the bound, with documents of their own. Where a name is that of an old one,
//!    its document is saved and replaced under a higher generation.
//! 4. Old parts whose names are no new part's are left paused, and say which parts have taken over.
//! 5. The first old part's document goes last: replaced, or left like those.
//!
//! # Why it is safe
//!
//! - The record stays until the last step, so a run that crashes anywhere is continued by the same steps:
//!   each looks first at what is there, and is one conditional write.
//! - A part of the old number that wakes up finds its document paused, replaced or taken over; one of the new
//!   number finds no document to begin with until it is made for it, and the old ones refuse its number.
//! - A part whose position is lost, or of another source, keeps the others from coming further. It can be reset
//!   until all have come up to the bound; the record stays, and the next run takes the bound from what is there.
//! - All rows up to the bound are delivered by old parts before a new one begins behind it, so the states of one
//!   row come in order, though its part changes.
//! - Two runs at once do the same steps; with another number the second is refused.

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
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most looks: longer than any tick, and than a dead lease takes to lapse.
const LOOKS_MAX: u32 = 900;

/// The parts of a poller, before and after.
#[derive(Debug)]
pub struct Repartition {
    from: Vec<Poller>,
    to: Vec<Poller>,
}

/// How the keys of a poller are divided by its documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// Into how many parts; `None` where no document is there yet.
    pub parts: Option<u16>,
    /// What is under way.
    pub under_way: Option<RepartitionRecord>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq)]
pub struct Repartitioned {
    /// Behind what the new parts begin; `None` for the beginning.
    pub after: Option<Cursor>,
    /// Rows that old parts have delivered to come so far.
    pub rows: u64,
}

/// Why it did not finish. Everything done so far stays, and the same command continues it.
#[derive(Debug, Error)]
pub enum RepartitionError {
    /// Another number of parts is on its way.
    #[error("`{poller}` is on its way from {from} to {to} partitions: finish that first")]
    UnderWay {
        /// The poller.
        poller: String,
        /// How many there were.
        from: u16,
        /// How many there will be.
        to: u16,
    },
    /// The documents do not agree on how many parts there are.
    #[error("`{name}` is not one of {expected} partitions: look at `highwater status`")]
    Other {
        /// The part.
        name: String,
        /// How many there are by the other documents.
        expected: u16,
    },
    /// There is no position that all parts could be run to.
    #[error("{0}")]
    NoCommonBound(String),
    /// A tick of a part does not end.
    #[error("`{name}`: {what}")]
    Busy {
        /// The part.
        name: String,
        /// What is in the way.
        what: String,
    },
    /// A part could not deliver what it has up to the bound.
    #[error("run `{name}` up to the bound")]
    Tick {
        /// The part.
        name: String,
        /// Why.
        #[source]
        source: TickError,
    },
    /// A partition could not be started.
    #[error("begin `{name}`")]
    Seed {
        /// The part.
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

/// Returns how the keys of `poller` are divided, by its documents alone.
///
/// # Errors
///
/// [`LoadError`] if they cannot be read.
pub async fn division(store: &dyn StateStore, poller: &str) -> Result<Division, LoadError> {
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
            return Ok(Division { parts: Some(record.from), under_way: Some(record) });
        }
        if document.names_partition_count() && document.taken_over_by.is_none() {
            let parts = if has_position(&document) { &mut placed } else { &mut announced };
            *parts = Some(document.divided_into());
        }
    }
    let mut parts = placed;
    if parts.is_none() {
        parts = division_of_others(store, poller, &first).await?;
    }
    if parts.is_none() {
        // It ran as a whole, and has lost its document.
        let marker = store.load(&StateKey::Marker(poller.to_owned())).await?.stored;
        parts = marker.map(|_| 1);
    }
    // A blank document says what was about to begin: that may have been stopped.
    Ok(Division { parts: parts.or(announced), under_way: None })
}

/// Returns how the keys are divided by the documents of further parts: that of the first one may be lost. `None`
/// also where the store may not list.
async fn division_of_others(
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
        if name == first || name == poller || crate::partition::whole_of(name) != poller {
            continue;
        }
        let Some(stored) = store.load(&key).await?.stored else { continue };
        let document = decode(name, &stored.bytes)?;
        if document.names_partition_count() && document.taken_over_by.is_none() {
            if has_position(&document) {
                return Ok(Some(document.divided_into()));
            }
            announced = Some(document.divided_into());
        }
    }
    Ok(announced)
}

impl Repartition {
    /// Returns what divides the keys of the parts `from` among the parts `to`, each in the order of their numbers.
    /// Both have at least one.
    pub fn new(from: Vec<Poller>, to: Vec<Poller>) -> Self {
        Self { from, to }
    }

    /// Does it, or what is left of it.
    ///
    /// # Errors
    ///
    /// [`RepartitionError`]; the same call continues where this one ended.
    pub async fn run(
        mut self,
        operator: Operator<'_>,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Repartitioned, RepartitionError> {
        let mut record = self.hold(operator).await?;
        tell(&format!("{} parts are paused", record.from));
        let mut rows = 0;
        if !record.caught_up {
            rows = self.catch_up(&mut record, operator, tell).await?;
        }
        self.begin_new(&record, operator, tell).await?;
        Ok(Repartitioned { after: record.after, rows })
    }

    /// Returns the first of the old parts, which has the record.
    fn first(&self) -> Option<&Poller> {
        self.from.first()
    }

    /// Pauses the old parts; returns what is under way.
    async fn hold(&self, operator: Operator<'_>) -> Result<RepartitionRecord, RepartitionError> {
        let (from, to) = (count(&self.from), count(&self.to));
        let asked = RepartitionRecord {
            from,
            to,
            begun_at: OffsetDateTime::UNIX_EPOCH,
            upto: None,
            caught_up: false,
            after: None,
        };
        let mut record = None;
        for (index, part) in self.from.iter().enumerate() {
            let kept = (index == 0).then_some(&asked);
            let held = part.admin().hold_for_repartition(kept, operator).await;
            let held = held.map_err(RepartitionError::State)?;
            if index == 0 {
                let found = held.and_then(|document| document.repartition).ok_or_else(|| {
                    RepartitionError::Other { name: part.name().to_owned(), expected: from }
                })?;
                if (found.from, found.to) != (from, to) {
                    let poller = crate::partition::whole_of(part.name()).to_owned();
                    let (from, to) = (found.from, found.to);
                    return Err(RepartitionError::UnderWay { poller, from, to });
                }
                record = Some(found);
            } else if held.is_none() && record.as_ref().is_some_and(|found| !found.caught_up) {
                let name = part.name().to_owned();
                return Err(RepartitionError::Other { name, expected: from });
            }
        }
        record.ok_or(RepartitionError::NoCommonBound("there are no parts".to_owned()))
    }

    /// Runs all old parts up to one position, and writes down where the new ones begin.
    async fn catch_up(
        &mut self,
        record: &mut RepartitionRecord,
        operator: Operator<'_>,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<u64, RepartitionError> {
        let documents = self.documents().await?;
        let mut rows = 0;
        // Again in each run: a part that was reset since the last one may have been the furthest, and a
        // bound of a table that is gone must not decide where rows of the new one begin.
        let checkpoints: Vec<Option<&Cursor>> =
            documents.iter().map(|document| document.checkpoint.cursor.as_ref()).collect();
        let upto = common_bound(&checkpoints).map_err(|why| no_bound(why, self.first()))?;
        if record.upto != upto {
            record.upto = upto;
            self.note(record, operator).await?;
        }
        if let Some(upto) = record.upto.clone() {
            tell(&format!("each is run up to {} `{}`", upto.mode, upto.value));
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

    /// Returns the documents of the old parts, once none of them has a tick running.
    async fn documents(&self) -> Result<Vec<StateDocument>, RepartitionError> {
        let mut documents = Vec::new();
        for part in &self.from {
            let mut looks = 0;
            let found = loop {
                match part.admin().standing_document().await? {
                    Some((document, None)) => break Some(document),
                    None => break None,
                    Some((_, Some(holder))) if looks == LOOKS_MAX => {
                        let what = format!("the tick of `{holder}` does not end");
                        return Err(RepartitionError::Busy { name: part.name().to_owned(), what });
                    }
                    Some((_, Some(_))) => looks += 1,
                }
                sleep(LOOK_EVERY).await;
            };
            documents.extend(found);
        }
        Ok(documents)
    }

    /// Begins the new parts and leaves the old ones; the first old part's document is the last to change.
    async fn begin_new(
        &self,
        record: &RepartitionRecord,
        operator: Operator<'_>,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), RepartitionError> {
        let first = self.first().map(Poller::name).unwrap_or_default();
        // The one whose name is the first old part's comes last, and is the first new part, if any.
        for part in self.to.iter().rev().filter(|part| part.name() != first) {
            seed(part, record, operator, tell).await?;
        }
        let is_new = |name: &str| self.to.iter().any(|part| part.name() == name);
        for part in self.from.iter().rev().filter(|part| !is_new(part.name())) {
            part.admin().hand_over(record.to, operator).await.map_err(RepartitionError::State)?;
            tell(&format!("{}: left to the new parts", part.name()));
        }
        for part in self.to.iter().filter(|part| part.name() == first) {
            seed(part, record, operator, tell).await?;
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
    tell: &(dyn Fn(&str) + Send + Sync),
) -> Result<(), RepartitionError> {
    let name = part.name();
    let begun = Box::pin(part.admin().seed(record.after.as_ref(), operator)).await;
    let begun = begun.map_err(|source| RepartitionError::Seed { name: name.to_owned(), source })?;
    tell(&format!("{name}: {}", if begun { "begins" } else { "has begun before" }));
    Ok(())
}

/// Delivers all that a part has up to its bound; returns how many rows that were.
async fn run_up(part: &Poller) -> Result<u64, RepartitionError> {
    let name = || part.name().to_owned();
    let (mut rows, mut looks) = (0, 0);
    loop {
        let TickReport { result, rows: delivered, summary, .. } =
            part.tick(&TickRequest::default()).await;
        rows += delivered;
        match result {
            Ok(TickOutcome::Idle | TickOutcome::Committed { more: false }) => return Ok(rows),
            Ok(TickOutcome::Committed { more: true }) => looks = 0,
            Ok(
                TickOutcome::Skipped(_)
                | TickOutcome::BackingOff { .. }
                | TickOutcome::Paused { .. },
            ) if looks == LOOKS_MAX => {
                return Err(RepartitionError::Busy { name: name(), what: summary });
            }
            Ok(_) => {
                looks += 1;
                sleep(LOOK_EVERY).await;
            }
            Err(source) => return Err(RepartitionError::Tick { name: name(), source }),
        }
    }
}

fn no_bound(why: NoCommonBound, first: Option<&Poller>) -> RepartitionError {
    RepartitionError::NoCommonBound(match why {
        NoCommonBound::FirstReading => {
            let poller = crate::partition::whole_of(first.map(Poller::name).unwrap_or_default());
            format!(
                "a part still reads what the table had before its changes were tracked: run \
                 `highwater resume {poller}`, let all parts come to the changes (`highwater status \
                 {poller}`), then repartition again"
            )
        }
        NoCommonBound::Modes => {
            "the checkpoints are of different modes: set `SOURCE__MODE`, and look at `highwater status`"
                .to_owned()
        }
    })
}
