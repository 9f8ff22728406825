//! Moves a checkpoint on request of an operator: first a plan, then one write under the tag of the document for which
//! the plan was made.
//!
//! A tick that started before the write, and has read at the old position, can no longer write anything: its tag is
//! gone, and generation and token have grown. So a race has two outcomes. Either the reset comes first, and the tick
//! starts over at the new position; or the tick writes first, and nothing is reset.

use thiserror::Error;

use super::range::RangeSize;
use crate::admin::{Admin, Operator, PresentState, RestoreError, RestoredDocument};
use crate::cursor::{Cursor, CursorMode, KeyValues, SourceFingerprint, SourceState};
use crate::document::{Generation, LoadError, StateDocument, without_loss};
use crate::error::{ErrorKind, chain, restart_in_source};
use crate::journal::EventKind;
use crate::partition::poller_of_partition;
use crate::poller::TickError;
use crate::range::{
    Direction, RangeError, is_first_reading, mismatch, position, refuse_future, refuse_other_key,
};
use crate::source::{FetchError, FetchWindow};

/// Most rows to count for a plan; beyond it a plan says "at least".
const COUNT_MAX: usize = 1_000_000;

/// Where to move a checkpoint.
#[derive(Clone, Copy, Debug)]
pub enum ResetTo<'a> {
    /// Before the first row.
    Beginning,
    /// After all rows that the source has now.
    Now,
    /// A position, in the format of [`position`].
    Cursor(&'a str),
    /// The position of a copy of the poller's document.
    Document(&'a StateDocument),
    /// The current position, in the source of the current settings.
    Keep,
}

/// The number of rows, if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowCount {
    /// Known.
    Rows(RangeSize),
    /// Unknown, for this reason.
    Unknown(String),
}

impl RowCount {
    const NONE: Self = Self::Rows(RangeSize { rows: 0, more: false });

    /// Whether it is certainly zero.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// The impact of moving a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetImpact {
    /// The direction.
    pub direction: Direction,
    /// Delivered rows that will be redelivered.
    pub again: RowCount,
    /// Rows that will not be delivered. If change tracking restarts, these are changes, of which only the deletions
    /// are not delivered.
    pub skipped: RowCount,
}

impl ResetImpact {
    /// Whether rows will, or may, not be delivered.
    pub fn skips(&self) -> bool {
        self.direction == Direction::Forward || !self.skipped.is_none()
    }

    /// Returns what is known without the source.
    fn uncounted(direction: Direction, reason: String) -> Self {
        let direction = direction.known_by(0);
        let (again, skipped) = match direction {
            Direction::Back => (RowCount::Unknown(reason), RowCount::NONE),
            Direction::Forward => (RowCount::NONE, RowCount::Unknown(reason)),
            Direction::Stays | Direction::ByKey => (RowCount::NONE, RowCount::NONE),
        };
        Self { direction, again, skipped }
    }
}

/// A planned reset.
#[derive(Debug)]
pub struct ResetPlan {
    /// The current checkpoint; `None` for the beginning, and if nothing is stored.
    pub from: Option<Cursor>,
    /// The new checkpoint; `None` for the beginning.
    pub to: Option<Cursor>,
    /// The impact.
    pub weight: ResetImpact,
    /// Whether the document belongs to another source than the settings.
    pub other_source: bool,
    /// Whether the position stays, and only the source is accepted.
    pub keeps: bool,
    /// How the source differs from the one read so far.
    pub source_changes: Vec<String>,
    /// The stored content, under whose tag the reset will be written.
    pub present: PresentState,
    base: StateDocument,
    fingerprint: SourceFingerprint,
    source_state: SourceState,
    /// Whether `from` comes from the document.
    is_known: bool,
}

impl ResetPlan {
    /// Whether there is anything to write.
    pub fn changes(&self) -> bool {
        let is_lost = self.base.lost_position().is_some();
        let moves = self.weight.direction != Direction::Stays;
        !self.is_known || moves || is_lost || !self.source_changes.is_empty()
    }

    /// Returns who has paused the poller; a reset does not resume it.
    pub fn paused_by(&self) -> Option<&str> {
        self.base.paused.as_ref().map(|paused| paused.by.as_str())
    }
}

/// Why there is no plan; nothing was written.
#[derive(Debug, Error)]
pub enum ResetError {
    /// A checkpoint cannot have this position.
    #[error(transparent)]
    Position(#[from] RangeError),
    /// There is no position to keep.
    #[error(
        "there is no state document, so there is no position to keep; the next tick creates one"
    )]
    NothingToKeep,
    /// The source no longer has what follows the position to keep, or has it in another order.
    #[error("the position cannot be kept: {reason}; {remedy}")]
    StillLost {
        /// Why.
        reason: String,
        /// Commands that end the loss.
        remedy: String,
    },
    /// The position does not apply to the source of the settings.
    #[error("the position cannot be kept: {reason}; {}", restart_in_source(poller))]
    CannotKeep {
        /// The poller.
        poller: String,
        /// Why.
        reason: String,
    },
    /// The copy belongs to another source.
    #[error("the document in the file belongs to another source, so its position does not apply")]
    OtherDocument,
    /// Its partitions are about to be replaced.
    #[error(
        "`{poller}` is being repartitioned; finish that first with `highwater repartition {poller} --to {to} --reason \"finish it\"`"
    )]
    Repartitioning {
        /// The poller, without partition.
        poller: String,
        /// The new number of partitions.
        to: u16,
    },
    /// The stored content must not be replaced.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The state or the source cannot be read.
    #[error(transparent)]
    Tick(#[from] TickError),
}

impl Admin<'_> {
    /// Plans a reset; writes nothing. A document of another source is replaced only if `new_source`.
    ///
    /// # Errors
    ///
    /// [`ResetError`]; also while the lease is held.
    pub async fn plan_reset(
        self,
        to: ResetTo<'_>,
        new_source: bool,
    ) -> Result<ResetPlan, ResetError> {
        let present = self.present().await.map_err(RestoreError::from)?;
        if let Some(owner_id) = present.held_by.clone() {
            return Err(RestoreError::Held { owner_id }.into());
        }
        match &present.document {
            // A lost position may block the repartition before the bound, and is not a position of the new
            // partitions.
            Ok(Some(StateDocument { repartition: Some(under_way), .. })) if under_way.caught_up => {
                let poller = poller_of_partition(&self.poller.name).to_owned();
                return Err(ResetError::Repartitioning { poller, to: under_way.to });
            }
            Ok(Some(document)) => self.poller.reject_partition_count_of(document)?,
            Ok(None) | Err(_) => self.poller.reject_other_partition_count(false).await?,
        }
        let stored = present.usable();
        let opened =
            self.poller.source.open(stored.map(|document| &document.source_fingerprint)).await;
        opened.map_err(TickError::Fetch)?;
        let fingerprint = self.poller.source.shape().fingerprint.clone();
        let other = stored.filter(|document| document.source_fingerprint != fingerprint);
        if let Some(other) = other.filter(|_| !new_source) {
            return Err(self.poller.other_source(other).into());
        }
        let other_source = other.is_some();
        let keeps = matches!(to, ResetTo::Keep);
        if keeps && stored.is_none() {
            return Err(ResetError::NothingToKeep);
        }
        let mut source_changes: Vec<String> =
            other.map(|other| self.poller.differences_from(other)).into_iter().collect();
        let known = stored.filter(|_| keeps || !other_source);
        let from = stored.and_then(|document| document.checkpoint.cursor.clone());
        let (to, weight) = self.aim(to, from.as_ref(), known).await?;
        let NewPosition { cursor: to, state } = to;
        let source_state = if let Some(state) = state {
            state
        } else {
            let kept = known.filter(|_| keeps);
            let kept = kept.map(|document| without_loss(document.source_state.clone()));
            let anchor = self.poller.source.anchor(kept.as_ref()).await;
            let anchor = anchor.map_err(|error| self.not_kept(error, other_source))?;
            source_changes.extend(anchor.changes);
            anchor.state
        };
        if let Some(at) = to.as_ref().filter(|_| keeps)
            && let Some(lost) = self.lost_after(at, &source_state).await?
        {
            return Err(self.not_kept(lost, other_source));
        }
        let fresh = || StateDocument::new(&self.poller.name, fingerprint.clone(), Generation(0));
        let base = present.document.as_ref().ok().cloned().flatten().unwrap_or_else(fresh);
        let is_known = known.is_some();
        Ok(ResetPlan {
            from,
            to,
            weight,
            other_source,
            keeps,
            source_changes,
            present,
            base,
            fingerprint,
            source_state,
            is_known,
        })
    }

    fn not_kept(self, error: FetchError, is_new_source: bool) -> ResetError {
        if !error.is_position_lost() {
            return TickError::Fetch(error).into();
        }
        let (reason, remedy) = (error.reason, self.poller.end_loss(true, is_new_source));
        ResetError::StillLost { reason, remedy }
    }

    /// Writes `plan` under a new generation, and saves the previous document. `replay_id` becomes part of every batch
    /// id, so that a target does not treat redelivered rows as duplicates.
    ///
    /// # Errors
    ///
    /// [`RestoreError`], as of [`Self::restore`]: also if anything was written since the plan was made.
    pub async fn reset(
        self,
        plan: &ResetPlan,
        replay_id: String,
        operator: Operator<'_>,
    ) -> Result<RestoredDocument, RestoreError> {
        let mut next = if plan.keeps {
            plan.base.keep_position()?
        } else {
            plan.base.reset(plan.to.clone(), replay_id)?
        };
        next.source_fingerprint = plan.fingerprint.clone();
        next.source_definition.clone_from(&self.poller.source.shape().definition);
        next.source_state.clone_from(&plan.source_state);
        next.partition = self.poller.partition;
        if plan.present.bytes.is_none() {
            self.poller.record_partition_count().await?;
        }
        Box::pin(self.restore(&next, &plan.present, (EventKind::Reset, operator))).await
    }

    /// Returns the impact of replacing what is stored with `document`; `None` if the two positions cannot be
    /// compared. If the source cannot be read, rows are not counted.
    ///
    /// # Errors
    ///
    /// [`RangeError`] if the positions have different modes.
    pub async fn compare_with(
        self,
        document: &StateDocument,
        present: &PresentState,
    ) -> Result<Option<ResetImpact>, RangeError> {
        let same =
            |stored: &&StateDocument| stored.source_fingerprint == document.source_fingerprint;
        let Some(stored) = present.usable().filter(same) else { return Ok(None) };
        let (from, to) = (stored.checkpoint.cursor.as_ref(), document.checkpoint.cursor.as_ref());
        let direction = Direction::between(from, to)?;
        let opened = self.poller.source.open(Some(&stored.source_fingerprint)).await;
        let weighed = match opened.map_err(TickError::Fetch) {
            Err(error) => Err(error),
            Ok(()) if self.poller.source.shape().fingerprint != document.source_fingerprint => {
                let reason = "the settings have another source".to_owned();
                Ok(ResetImpact::uncounted(direction, reason))
            }
            Ok(()) => {
                self.weigh(PositionMove { from, to, direction, state: &stored.source_state }).await
            }
        };
        let uncounted = |error: TickError| ResetImpact::uncounted(direction, chain(&error));
        Ok(Some(weighed.unwrap_or_else(uncounted)))
    }

    /// Returns the new position and its impact. `from` is the stored position; it belongs to the same source only if
    /// there is a `known` document.
    async fn aim(
        self,
        to: ResetTo<'_>,
        from: Option<&Cursor>,
        known: Option<&StateDocument>,
    ) -> Result<(NewPosition, ResetImpact), ResetError> {
        let shape = self.poller.source.shape();
        let (mut aim, is_now) = match to {
            ResetTo::Beginning => (NewPosition::default(), false),
            ResetTo::Now => (NewPosition { cursor: self.end().await?, state: None }, true),
            ResetTo::Cursor(text) => {
                let like = match from.filter(|_| known.is_some()) {
                    Some(from) => from.clone(),
                    None => self.end().await?.unwrap_or_else(|| lowest(shape.mode)),
                };
                (NewPosition { cursor: Some(position(text, &like)?), state: None }, false)
            }
            ResetTo::Document(copy) if copy.source_fingerprint != shape.fingerprint => {
                return Err(ResetError::OtherDocument);
            }
            ResetTo::Document(copy) => {
                let state = without_loss(copy.source_state.clone());
                (NewPosition { cursor: copy.checkpoint.cursor.clone(), state: Some(state) }, false)
            }
            ResetTo::Keep => (NewPosition { cursor: from.cloned(), state: None }, false),
        };
        if let Some(cursor) = &aim.cursor {
            let mismatch = mismatch(cursor, shape.mode, &shape.key);
            if let Some(reason) = mismatch.filter(|_| matches!(to, ResetTo::Keep)) {
                return Err(ResetError::CannotKeep { poller: self.poller.name.clone(), reason });
            }
            if cursor.mode != shape.mode {
                return Err(RangeError::OtherMode(cursor.mode, shape.mode).into());
            }
            refuse_other_key(cursor, &shape.key)?;
        }
        let mut direction = match &aim.cursor {
            // The same position, in either source: nothing is known to be skipped or redelivered.
            Some(cursor) if from == Some(cursor) => Direction::Stays,
            // It is unknown what was delivered, so everything counts as redelivered.
            None if known.is_none() => Direction::Back,
            cursor => Direction::between(from.filter(|_| known.is_some()), cursor.as_ref())?,
        };
        let from = from.filter(|_| known.is_some());
        // A poller may be ahead of the current end, because of what its reads hold back. After a loss it is ahead of
        // all rows that the source has, and would stop there again.
        if is_now
            && direction == Direction::Back
            && let Some(from) = from
            && self.lost_after(from, &SourceState::new()).await?.is_none()
        {
            direction = Direction::Stays;
            aim.cursor = Some(from.clone());
        }
        if let Some(cursor) = aim.cursor.as_ref().filter(|_| direction == Direction::Forward) {
            refuse_future(cursor, self.end().await?.as_ref())?;
        }
        let nothing = SourceState::new();
        let state = known.map_or(&nothing, |document| &document.source_state);
        let way = PositionMove { from, to: aim.cursor.as_ref(), direction, state };
        let weight = self.weigh(way).await?;
        Ok((aim, weight))
    }

    /// Returns why a tick could not read on after a position; `None` if it could, or would fail for a reason that is
    /// independent of the position.
    async fn lost_after(
        self,
        at: &Cursor,
        state: &SourceState,
    ) -> Result<Option<FetchError>, TickError> {
        let window = FetchWindow { after: Some(at), upto: None, rows_max: 1, state };
        match self.poller.source.fetch(window).await {
            Err(error) if error.is_position_lost() => Ok(Some(error)),
            Err(error) if error.kind == ErrorKind::Transient => Err(TickError::Fetch(error)),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    async fn end(self) -> Result<Option<Cursor>, TickError> {
        self.poller.source.present().await.map_err(TickError::Fetch)
    }

    async fn weigh(self, way: PositionMove<'_>) -> Result<ResetImpact, TickError> {
        let PositionMove { from, to, direction, state } = way;
        let mut weight = ResetImpact { direction, again: RowCount::NONE, skipped: RowCount::NONE };
        if matches!(direction, Direction::Back | Direction::ByKey) {
            let upto = match from {
                Some(from) => Some(from.clone()),
                None => self.end().await?,
            };
            if let Some(upto) = &upto {
                weight.again = self.counted(to, upto, &SourceState::new()).await?;
            }
            let rows = match &weight.again {
                RowCount::Rows(size) => size.rows,
                RowCount::Unknown(_) => 0,
            };
            weight.direction = direction.known_by(rows);
        }
        let skips_upto = match (weight.direction, from, to) {
            (Direction::Forward, _, Some(to)) => Some(to.clone()),
            // The initial snapshot does not contain rows that were deleted before it.
            (Direction::Back, Some(from), None) if from.mode == CursorMode::ChangeTracking => {
                self.end().await?
            }
            _ => None,
        };
        if let Some(upto) = skips_upto {
            let counted = self.counted(from, &upto, state).await;
            weight.skipped = tolerated(counted)?;
        }
        Ok(weight)
    }

    /// Counts the rows between two positions.
    async fn counted(
        self,
        after: Option<&Cursor>,
        upto: &Cursor,
        state: &SourceState,
    ) -> Result<RowCount, TickError> {
        if after.is_some_and(is_first_reading) || is_first_reading(upto) {
            let reason = "rows of the initial snapshot of change tracking are not counted";
            return Ok(RowCount::Unknown(reason.to_owned()));
        }
        let window = FetchWindow { after, upto: Some(upto), rows_max: COUNT_MAX, state };
        let rows = self.poller.source.count(window).await.map_err(TickError::Fetch)?;
        let more = u64::try_from(COUNT_MAX).is_ok_and(|max| rows >= max);
        Ok(RowCount::Rows(RangeSize { rows, more }))
    }
}

/// A new position.
#[derive(Debug, Default)]
struct NewPosition {
    cursor: Option<Cursor>,
    /// The source state stored with it.
    state: Option<SourceState>,
}

/// The old and the new position.
#[derive(Clone, Copy, Debug)]
struct PositionMove<'a> {
    from: Option<&'a Cursor>,
    to: Option<&'a Cursor>,
    direction: Direction,
    /// The source state stored with `from`.
    state: &'a SourceState,
}

/// Skipped rows need not exist to be counted: one reason to skip is to continue after what was cleaned up.
fn tolerated(counted: Result<RowCount, TickError>) -> Result<RowCount, TickError> {
    match counted {
        Err(TickError::Fetch(error))
            if error.is_position_lost() || error.kind == ErrorKind::Data =>
        {
            Ok(RowCount::Unknown(chain(&error)))
        }
        counted => counted,
    }
}

/// Returns an example of a position for a mode, if the source has none.
fn lowest(mode: CursorMode) -> Cursor {
    Cursor { mode, value: "0".to_owned(), key: KeyValues::new() }
}

impl From<LoadError> for ResetError {
    fn from(error: LoadError) -> Self {
        Self::Restore(error.into())
    }
}
