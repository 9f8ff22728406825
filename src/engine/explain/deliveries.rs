//! What a journal says about one position. Pure.

use std::cmp::Ordering;

use serde::Serialize;
use time::{Date, OffsetDateTime};

use crate::cursor::{Cursor, KeyValues, TrackedPhase, TrackedPosition};
use crate::journal::{Entry, EventKind};
use crate::quarantine::Reason;

/// Something that happened to the row, according to the journal or the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Delivery {
    /// When; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The kind, as the name of its log event.
    pub event: &'static str,
    /// The batch.
    pub batch_id: Option<String>,
    /// Generation of the document.
    pub generation: u64,
    /// Token of the grant.
    pub token: u64,
    /// Rows in the batch.
    pub rows: Option<u64>,
    /// What the handler replied.
    pub reply: String,
    /// The version of the row: the leading part of its position.
    pub version: String,
    /// Whether this is the row's current version.
    pub is_current: bool,
    /// Whether the batch certainly had the row. See [`Doubt`].
    pub is_certain: bool,
    /// Why it is not certain.
    #[serde(skip)]
    pub doubt: Option<Doubt>,
}

/// Why a batch whose range has the position of a row may not have had the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Only the server can compare the keys.
    Order,
    /// The order is by a time or a number, and the row may have been committed after the batch had been read.
    Late,
    /// The key may have been parked. The checkpoint moves past the rows of a parked key without delivering them.
    Parked,
}

impl Delivery {
    /// Whether the handler accepted the row's current version, in a batch or alone.
    pub fn is_accepted(&self) -> bool {
        self.is_in_batch()
            || (self.is_current
                && (self.is(EventKind::RowRecovered) || self.is(EventKind::RowRedriven)))
    }

    /// Whether a batch with the row's current version was committed.
    pub fn is_in_batch(&self) -> bool {
        self.is_current && self.is(EventKind::BatchComplete)
    }

    /// Whether the entry with the row's current version was removed, and the row not delivered.
    pub fn is_dropped(&self) -> bool {
        self.is_current && self.is(EventKind::RowDropped)
    }

    /// Whether it says what became of the row last.
    pub(super) fn is_outcome(&self) -> bool {
        self.is_accepted() || self.is_quarantined() || self.is_dropped()
    }

    pub(super) fn is(&self, event: EventKind) -> bool {
        self.event == event.as_str()
    }

    pub(super) fn doubted(self, doubt: Doubt) -> Self {
        Self { is_certain: false, doubt: Some(doubt), ..self }
    }

    /// Whether the row's current version was quarantined, or waits with its parked key.
    pub fn is_quarantined(&self) -> bool {
        let is_set_aside = self.event == EventKind::RowQuarantined.as_str() || self.is_diverted();
        self.is_current && is_set_aside
    }

    /// Whether it was added to the entry of its parked key.
    pub fn is_diverted(&self) -> bool {
        self.event == EventKind::RowDiverted.as_str()
    }
}

/// A change of the checkpoint by an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// When; storage time.
    pub at: OffsetDateTime,
    /// The kind, as the name of its log event.
    pub event: &'static str,
    /// Who did it.
    pub by: String,
    /// Whether the position before it is known, and was before the row.
    pub is_certain: bool,
}

/// What the journal says about a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalFacts {
    /// The first day that was searched; `None` if no journal is kept.
    pub from: Option<Date>,
    /// Whether nothing was recorded before that day.
    pub is_complete: bool,
    /// What happened, oldest first.
    pub deliveries: Vec<Delivery>,
    /// The last move of the checkpoint past the row without delivering it.
    pub moved_past: Option<Move>,
    /// Whether an operator has set the checkpoint, wherever to.
    pub has_moves: bool,
    /// Whether any row was quarantined.
    pub has_quarantined: bool,
}

/// Whether a batch has a row. Keys that only the server can compare leave it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Yes,
    No,
    Unknown,
}

/// Whether the row at `position` is after `after`, and not after `upto`.
pub(super) fn has(after: Option<&Cursor>, upto: &Cursor, position: &Cursor) -> Has {
    let lower = after.map_or(Has::Yes, |after| is_at_most(position, after).negated());
    match (lower, is_at_most(position, upto)) {
        (Has::No, _) | (_, Has::No) => Has::No,
        (Has::Yes, Has::Yes) => Has::Yes,
        (Has::Unknown, _) | (_, Has::Unknown) => Has::Unknown,
    }
}

impl Has {
    fn negated(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            Self::Unknown => Self::Unknown,
        }
    }

    fn of(is: bool) -> Self {
        if is { Self::Yes } else { Self::No }
    }
}

/// Whether `position` is at or before `end`.
fn is_at_most(position: &Cursor, end: &Cursor) -> Has {
    match compare_leading(position, end) {
        Some(Ordering::Less) => Has::Yes,
        None | Some(Ordering::Greater) => Has::No,
        // A position without a key is after all rows with its leading part.
        Some(Ordering::Equal) if end.key.is_empty() || end.key == position.key => Has::Yes,
        Some(Ordering::Equal) => compare_keys(&position.key, &end.key)
            .map_or(Has::Unknown, |order| Has::of(order.is_le())),
    }
}

/// Rows of a table with change tracking are read in the order of their keys, whatever changed before.
fn compare_leading(position: &Cursor, end: &Cursor) -> Option<Ordering> {
    let tracked = |cursor: &Cursor| cursor.value.parse::<TrackedPosition>().ok();
    if let (Some(at), Some(end)) = (tracked(position), tracked(end))
        && end.phase == TrackedPhase::Snapshot
        && at.version <= end.version
    {
        return Some(Ordering::Equal);
    }
    position.compare_leading(end)
}

/// Compares keys of one whole number; the order of others is the server's.
fn compare_keys(one: &KeyValues, two: &KeyValues) -> Option<Ordering> {
    let number = |key: &KeyValues| {
        let mut values = key.iter();
        let (_, value) = values.next().filter(|_| key.len() == 1)?;
        value.as_i64()
    };
    Some(number(one)?.cmp(&number(two)?))
}

/// Returns what happened to the row at `position`, oldest first; also to its earlier versions, as far as they were the
/// last row of a batch.
pub(super) fn deliveries(entries: &[Entry], position: &Cursor) -> Vec<Delivery> {
    let mut found: Vec<Delivery> =
        entries.iter().filter_map(|entry| delivery(entry, position)).collect();
    found.sort_by_key(|delivery| delivery.at);
    // The batch that moves the checkpoint past a quarantined row does not deliver it.
    let mut is_quarantined = false;
    found.retain(|delivery| {
        let is_empty = delivery.rows == Some(0);
        let moves_past = delivery.is_in_batch() && (is_quarantined || is_empty);
        // Once its entry is gone, the row is delivered like any other if it is read again.
        let is_settled = moves_past || delivery.is_accepted() || delivery.is_dropped();
        is_quarantined = delivery.is_quarantined() || (is_quarantined && !is_settled);
        !moves_past
    });
    found
}

fn delivery(entry: &Entry, position: &Cursor) -> Option<Delivery> {
    let details = &entry.details;
    let is_set_aside = matches!(entry.event, EventKind::RowQuarantined | EventKind::RowDiverted);
    let is_failure = is_set_aside || entry.event == EventKind::HandlerFailed;
    let is_settled = entry.event.settles_parked_row();
    if !is_failure && !is_settled && entry.event != EventKind::BatchComplete {
        return None;
    }
    let error = details.error.as_ref().filter(|_| is_failure);
    let reply = if entry.event == EventKind::RowDiverted {
        "waits with its parked key"
    } else if entry.event == EventKind::RowRecovered {
        "a retry of its parked key was accepted"
    } else if entry.event == EventKind::RowRedriven {
        "a redrive was accepted"
    } else if entry.event == EventKind::RowDropped {
        details.reason.as_deref().unwrap_or("dropped")
    } else if is_failure {
        "failed"
    } else {
        "accepted"
    };
    let reply = error.cloned().unwrap_or_else(|| reply.to_owned());
    let upto = details.upto.as_ref()?;
    // A row that no batch had is named by its position alone.
    let is_row = entry.event == EventKind::RowDiverted
        || is_settled
        || details.reason.as_deref() == Some(Reason::Unreadable.as_str());
    let has = match has(details.after.as_ref(), upto, position) {
        Has::Yes | Has::Unknown if is_row => Has::of(upto == position),
        has @ (Has::Yes | Has::No | Has::Unknown) => has,
    };
    let is_earlier = has == Has::No
        && upto.key == position.key
        && compare_leading(upto, position) == Some(Ordering::Less);
    if has == Has::No && !is_earlier {
        return None;
    }
    let version = if is_earlier { &upto.value } else { &position.value };
    let is_only_row = (is_set_aside || is_settled) && details.rows == Some(1);
    let is_exact = is_earlier || upto == position || (has == Has::Yes && is_only_row);
    let doubt = match has {
        Has::Unknown => Some(Doubt::Order),
        Has::Yes | Has::No if is_exact => None,
        Has::Yes | Has::No => position.mode.is_time_based().then_some(Doubt::Late),
    };
    Some(Delivery {
        at: entry.at,
        event: entry.event.as_str(),
        batch_id: details.batch_id.as_ref().map(|id| id.as_str().to_owned()),
        generation: entry.generation.0,
        token: entry.fencing_token.0,
        rows: details.rows,
        reply,
        version: version.clone(),
        is_current: !is_earlier,
        is_certain: doubt.is_none(),
        doubt,
    })
}

/// Whether an operator set the checkpoint, or may have.
pub(super) fn is_move(entry: &Entry) -> bool {
    matches!(
        entry.event,
        EventKind::Reset
            | EventKind::Imported
            | EventKind::Cloned
            | EventKind::Rebuilt
            | EventKind::Recovered
            | EventKind::Repartitioned
            | EventKind::Unknown
    )
}

/// Returns the last entry by which an operator moved the checkpoint from before the row to the row or past it. A move
/// back, or one that keeps the position, skips nothing.
pub(super) fn moved_past(entries: &[Entry], position: &Cursor) -> Option<Move> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by_key(|entry| (entry.place(), entry.at));
    let (mut known, mut last, mut seq) = (None, None, None);
    for entry in sorted {
        // An entry may be missing that moved the checkpoint.
        if entry.wrote() && seq.is_some_and(|seq: u64| entry.seq != seq.saturating_add(1)) {
            known = None;
        }
        seq = Some(entry.seq);
        if let Some(moved) = move_past(entry, known, position) {
            last = Some(moved);
        }
        known = checkpoint_of(entry).or(known).filter(|_| entry.event != EventKind::Unknown);
    }
    last
}

/// A known checkpoint.
#[derive(Clone, Copy, Debug)]
enum Known<'a> {
    Beginning,
    At(&'a Cursor),
}

/// Returns the checkpoint after an entry, if the entry shows it.
fn checkpoint_of(entry: &Entry) -> Option<Known<'_>> {
    if entry.event == EventKind::BatchComplete {
        return entry.details.upto.as_ref().map(Known::At);
    }
    let cursor = entry.document.as_ref()?.checkpoint.cursor.as_ref();
    Some(cursor.map_or(Known::Beginning, Known::At))
}

fn move_past(entry: &Entry, before: Option<Known<'_>>, position: &Cursor) -> Option<Move> {
    if !matches!(entry.event, EventKind::Reset | EventKind::Imported | EventKind::Cloned) {
        return None;
    }
    let Some(Known::At(to)) = checkpoint_of(entry) else { return None };
    let was_passed = match before {
        Some(Known::At(before)) => is_at_most(position, before),
        Some(Known::Beginning) => Has::No,
        // The document did not exist.
        None if entry.event == EventKind::Cloned => Has::No,
        None => Has::Unknown,
    };
    let is_past = is_at_most(position, to);
    if is_past == Has::No || was_passed == Has::Yes {
        return None;
    }
    let by = entry.details.by.clone().unwrap_or_else(|| "an operator".to_owned());
    let is_certain = is_past == Has::Yes && was_passed == Has::No;
    Some(Move { at: entry.at, event: entry.event.as_str(), by, is_certain })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cursor::RowVersion;

    fn at(version: u64, id: i64) -> Cursor {
        Cursor::row_version(RowVersion(version), KeyValues::from_iter([("id", json!(id))]))
    }

    fn tracked(text: &str, id: i64) -> Cursor {
        Cursor::tracked(text.parse().unwrap(), KeyValues::from_iter([("id", json!(id))]))
    }

    #[test]
    fn a_batch_has_the_rows_after_its_start_up_to_its_end() {
        for (after, upto, expected) in [
            (None, at(5, 7), Has::Yes),
            (None, at(4, 7), Has::No),
            (Some(at(4, 7)), at(6, 1), Has::Yes),
            (Some(at(5, 7)), at(6, 1), Has::No),
            (Some(at(5, 6)), at(5, 8), Has::Yes),
            (Some(at(5, 7)), at(5, 8), Has::No),
            (None, at(5, 6), Has::No),
        ] {
            assert_eq!(has(after.as_ref(), &upto, &at(5, 7)), expected, "{after:?} {upto:?}");
        }
        let whole = Cursor::row_version(RowVersion(5), KeyValues::new());
        assert_eq!(has(None, &whole, &at(5, 7)), Has::Yes);
        assert_eq!(has(Some(&whole), &at(9, 7), &at(5, 7)), Has::No);
        let of = |text: &str| {
            Cursor::row_version(RowVersion(5), KeyValues::from_iter([("id", json!(text))]))
        };
        assert_eq!(has(None, &of("b"), &of("a")), Has::Unknown, "only the server orders text");
    }

    #[test]
    fn rows_of_a_tracked_table_are_read_by_key() {
        let row = tracked("3", 7);
        for (after, upto, expected) in [
            (None, tracked("snapshot@5", 9), Has::Yes),
            (None, tracked("snapshot@5", 6), Has::No),
            (Some(tracked("snapshot@5", 6)), tracked("snapshot@5", 9), Has::Yes),
            (Some(tracked("snapshot@5", 9)), tracked("6", 1), Has::No),
            (Some(tracked("snapshot@2", 9)), tracked("4", 1), Has::Yes),
        ] {
            assert_eq!(has(after.as_ref(), &upto, &row), expected, "{after:?} {upto:?}");
        }
    }
}
