//! Closed windows: a summary of what was delivered in each range of positions, to read the range again later and
//! compare.
//!
//! # Reason
//!
//! In a mode based on time, a row whose transaction commits later than the settle window allows appears before the
//! checkpoint, where no read looks. So each commit in such a mode stores its window here, with the number and the
//! sum of its event ids. A sum does not depend on the order, has a fixed size, and the sum of two adjacent windows
//! is the sum of theirs. A sum only shows that something differs. The late rows can be identified only while the
//! individual ids are known.
//!
//! Late rows are delivered like any others, with their own in-flight record. If they are not accepted, the record
//! moves to the window, so that they do not block other rows. The checkpoint never moves for late rows.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::state_document::{InFlight, StateDocument};
use super::transitions::Commit;
use crate::cursor::Cursor;
use crate::event::EventId;

/// Most windows that wait for a re-read: at 600 bytes each they add 20 kB to a document.
pub const WINDOWS_MAX: usize = 32;

/// Windows are merged up to this many rows: that many are redelivered for one late row if it is no longer known
/// which rows had been delivered before.
pub const WINDOW_ROWS_MAX: u64 = 10_000;

/// Windows that will be read again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// Oldest first. Only the oldest is ever read.
    #[serde(default)]
    pub windows: Vec<ClosedWindow>,
    /// Total rows for which there was no room: they are never read again.
    #[serde(default)]
    pub rows_skipped: u64,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// A range of positions whose rows have been delivered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosedWindow {
    /// Position before its first row; `None` for the beginning of the source.
    #[serde(default)]
    pub after: Option<Cursor>,
    /// Position of its last row.
    pub upto: Cursor,
    /// What was delivered.
    pub ids: IdSum,
    /// When the last of it was committed; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub closed_at: OffsetDateTime,
    /// How far it has been redelivered; `None` if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_upto: Option<Cursor>,
    /// Late rows that were not accepted yet, and what happened to them so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_taken: Option<Box<InFlight>>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// How a commit affects the windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditStep {
    /// The poller does not re-read windows; existing ones are dropped.
    #[default]
    Off,
    /// The rows between the checkpoint and the commit's position, which close a window.
    Closes(IdSum),
    /// The rows belong to the oldest window, so the checkpoint stays.
    ReadAgain,
}

/// The number of events, and the sum of their ids modulo 2^128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdSum {
    /// Number of events.
    pub rows: u64,
    /// Ids are hashes, so different sets practically never have the same sum and number.
    #[serde(with = "hex")]
    digest: u128,
}

impl IdSum {
    /// Sums up ids.
    #[expect(single_use_lifetimes, reason = "the suggested elision is not stable yet")]
    pub fn of<'a>(ids: impl IntoIterator<Item = &'a EventId>) -> Self {
        ids.into_iter()
            .map(|id| Self { rows: 1, digest: id.number() })
            .fold(Self::default(), Self::plus)
    }

    /// Returns the sum of two sets without a common event.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows.saturating_add(other.rows),
            digest: self.digest.wrapping_add(other.digest),
        }
    }
}

impl ClosedWindow {
    /// Returns the position after which late rows are still searched for.
    pub fn begin(&self) -> Option<&Cursor> {
        self.again_upto.as_ref().or(self.after.as_ref())
    }

    /// Returns the end of the range to read next: rejected late rows are retried on their own.
    pub fn end(&self) -> &Cursor {
        let not_taken = self.not_taken.as_ref();
        not_taken.filter(|late| late.after.as_ref() == self.begin()).map_or(&self.upto, |l| &l.upto)
    }

    fn is(&self, other: &Self) -> bool {
        self.upto == other.upto && self.closed_at == other.closed_at
    }

    /// Whether the window of the following commit may be merged into this one.
    fn takes(&self, next: &Self) -> bool {
        let begun = |window: &Self| window.again_upto.is_some() || window.not_taken.is_some();
        next.after.as_ref() == Some(&self.upto)
            && !begun(self)
            && !begun(next)
            && self.ids.plus(next.ids).rows <= WINDOW_ROWS_MAX
    }
}

impl Audit {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the window to re-read `now`: the oldest one, once `wait` has passed since it was closed.
    ///
    /// `now` may be up to one `grain` of the store's clock too early. A backoff that may be over counts as over, as
    /// in [`StateDocument::block_reason`](super::StateDocument::block_reason).
    pub fn due(
        &self,
        now: OffsetDateTime,
        wait: Duration,
        grain: Duration,
    ) -> Option<&ClosedWindow> {
        let window = self.windows.first()?;
        let age = Duration::try_from(now - window.closed_at).ok()?;
        let until = window.not_taken.as_ref().and_then(|late| late.next_attempt_at);
        (age >= wait && until.is_none_or(|until| now + grain >= until)).then_some(window)
    }

    /// Removes `window` and those before it, since all their rows have been delivered; `false` if it is unknown.
    pub fn finish(&mut self, window: &ClosedWindow) -> bool {
        let Some(at) = self.windows.iter().position(|known| known.is(window)) else {
            return false;
        };
        self.windows.drain(..=at);
        true
    }

    /// Records that late rows of the oldest window were delivered, from its current start up to this position.
    pub fn deliver_again(&mut self, after: Option<&Cursor>, upto: &Cursor) {
        if let Some(window) = self.windows.first_mut().filter(|window| window.begin() == after) {
            window.again_upto = Some(upto.clone());
            window.not_taken = None;
        }
    }

    /// Adds the window of a commit. If there are too many, the two neighbours with the fewest rows are merged, or the
    /// new window is not audited.
    pub(super) fn close(&mut self, window: ClosedWindow) {
        self.windows.push(window);
        if self.windows.len() <= WINDOWS_MAX {
            return;
        }
        let neighbours = self.windows.iter().zip(self.windows.iter().skip(1)).enumerate();
        let smallest = neighbours
            .filter(|(_, (one, next))| one.takes(next))
            .min_by_key(|(_, (one, next))| one.ids.plus(next.ids).rows)
            .map(|(at, _)| at);
        let Some(at) = smallest else {
            let rows = self.windows.pop().map_or(0, |window| window.ids.rows);
            self.rows_skipped = self.rows_skipped.saturating_add(rows);
            return;
        };
        let next = self.windows.remove(at + 1);
        if let Some(one) = self.windows.get_mut(at) {
            one.ids = one.ids.plus(next.ids);
            one.upto = next.upto;
            // Its youngest row, and those of its neighbour, must have had time to become visible.
            one.closed_at = next.closed_at;
        }
    }

    /// Keeps the record of late rows that are no longer in flight.
    pub(super) fn put_back(&mut self, late: InFlight) {
        if let Some(window) = self.windows.first_mut() {
            window.not_taken = Some(Box::new(late));
        }
    }

    /// Returns the record of late rows of the oldest window.
    pub(super) fn not_taken(&self) -> Option<&InFlight> {
        self.windows.first()?.not_taken.as_deref()
    }

    /// Lets late rows be tried again at once, and counts attempts at them from zero if those `are_exhausted`.
    pub(super) fn end_backoffs(&mut self, are_exhausted: bool) {
        for window in &mut self.windows {
            if are_exhausted {
                window.not_taken = None;
            } else if let Some(late) = &mut window.not_taken {
                late.next_attempt_at = None;
            }
        }
    }
}

impl StateDocument {
    /// Returns the document without `window` and those before it.
    pub(crate) fn without_window(&self, window: &ClosedWindow) -> Self {
        let mut next = self.clone();
        next.audit.finish(window);
        next
    }

    /// Adds the window that a commit closes, before the checkpoint moves.
    pub(super) fn close_window(&mut self, commit: &Commit) {
        match commit.audit {
            AuditStep::Off => self.audit = Audit::default(),
            AuditStep::Closes(ids) => self.audit.close(ClosedWindow {
                after: self.checkpoint.cursor.clone(),
                upto: commit.upto.clone(),
                ids,
                closed_at: commit.now,
                again_upto: None,
                not_taken: None,
                extra: Map::new(),
            }),
            AuditStep::ReadAgain => {}
        }
    }

    /// Puts a batch in flight, with the history of earlier attempts.
    pub(super) fn start_batch(&mut self, batch: InFlight, now: OffsetDateTime) {
        let known = if batch.late { self.audit.not_taken() } else { self.in_flight.as_ref() };
        self.in_flight = Some(batch.continuing(known).announced(now));
    }

    /// Late rows that were not accepted must not block others: their record moves to their window.
    pub(super) fn put_late_rows_back(&mut self) {
        if let Some(late) = self.in_flight.take_if(|batch| batch.late) {
            self.audit.put_back(late);
        }
    }
}

mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(sum: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{sum:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
