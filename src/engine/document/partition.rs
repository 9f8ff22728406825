//! The document of a partition: which partition it is, the progress of a repartition, and which partitions have
//! replaced it. Pure.
//!
//! # Reason
//!
//! The partitions stop, each is run up to one position, and new ones start after it. So everything before that
//! position is delivered by the old partitions, and everything after it by the new ones: no state of a row is
//! delivered twice or missed. The document of the first old partition records the progress, and is the last to be
//! replaced, so any run that finds the record there can continue.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::state_document::{Paused, StateDocument};
use super::transitions::DocumentAge;
use crate::cursor::{
    Cursor, CursorMode, KeyValues, SourceFingerprint, TrackedPhase, TrackedPosition,
};
use crate::document::Generation;
use crate::partition::Partition;

/// Progress of a repartition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RepartitionRecord {
    /// The old number of partitions.
    pub from: u16,
    /// The new number of partitions.
    pub to: u16,
    /// When it was started; storage time.
    #[serde(with = "time::serde::rfc3339")]
    pub begun_at: OffsetDateTime,
    /// Position up to which all old partitions are run, once known; `None` also if nothing was delivered yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upto: Option<Cursor>,
    /// Whether all of them have reached it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub caught_up: bool,
    /// Position after which the new partitions start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Cursor>,
}

/// Why partitions have no common position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCommonBound {
    /// A partition is still reading the initial snapshot of a table with change tracking.
    FirstReading,
    /// Their checkpoints are of different modes.
    Modes,
}

/// Returns the position up to which all partitions are run: the furthest of their checkpoints, including all rows
/// with the same cursor. `None` if no partition has delivered anything.
///
/// Whether a row may be read does not depend on its partition. So no row can appear before a checkpoint that any
/// partition has reached, as far as its mode guarantees that at all.
///
/// # Errors
///
/// [`NoCommonBound`] if there is none.
pub fn common_bound(checkpoints: &[Option<&Cursor>]) -> Result<Option<Cursor>, NoCommonBound> {
    let mut furthest: Option<&Cursor> = None;
    for checkpoint in checkpoints.iter().copied().flatten() {
        let before = furthest.map(|furthest| furthest.compare_leading(checkpoint));
        match before {
            Some(None) => return Err(NoCommonBound::Modes),
            Some(Some(std::cmp::Ordering::Less)) | None => furthest = Some(checkpoint),
            Some(Some(_)) => {}
        }
    }
    let Some(furthest) = furthest else { return Ok(None) };
    if furthest.mode == CursorMode::ChangeTracking
        && !checkpoints.iter().all(|checkpoint| checkpoint.is_some_and(reads_changes))
    {
        return Err(NoCommonBound::FirstReading);
    }
    Ok(Some(Cursor { key: KeyValues::new(), ..furthest.clone() }))
}

fn reads_changes(cursor: &Cursor) -> bool {
    let position = cursor.value.parse::<TrackedPosition>();
    position.is_ok_and(|position| position.phase == TrackedPhase::Changes)
}

/// Returns the position after which new partitions start once all old ones have reached `bound`: there, or at the
/// start of the first window that still had to be read again for late rows.
pub fn seed_position(bound: Option<Cursor>, documents: &[StateDocument]) -> Option<Cursor> {
    documents.iter().fold(bound, |earliest, document| {
        let Some(window) = document.audit.windows.first() else { return earliest };
        let (earliest, begins) = (earliest?, window.after.as_ref()?);
        let is_earlier = begins.compare_leading(&earliest) == Some(std::cmp::Ordering::Less);
        Some(if is_earlier { begins.clone() } else { earliest })
    })
}

impl StateDocument {
    /// Returns the number of partitions when this document was last in use; one if it is not a partition. If other
    /// partitions have taken over its rows, returns their number.
    pub fn partition_count(&self) -> u16 {
        let own = self.partition.map_or(1, |partition| partition.count);
        self.taken_over_by.unwrap_or(own)
    }

    /// Whether the number of partitions was ever set: a blank document of an unpartitioned poller does not say.
    pub fn names_partition_count(&self) -> bool {
        !self.is_blank() || self.partition.is_some() || self.checkpoint.cursor.is_some()
    }

    /// Whether the document belongs to a poller with `count` partitions that delivers, or may start to.
    pub fn belongs_to_partition_count(&self, count: u16) -> bool {
        !self.names_partition_count()
            || (self.taken_over_by.is_none() && self.partition_count() == count)
    }

    /// Returns the document with which a partition starts after `after`.
    #[must_use]
    pub fn of_partition(
        name: &str,
        fingerprint: SourceFingerprint,
        partition: Option<Partition>,
        after: Option<&Cursor>,
    ) -> Self {
        let mut seed = Self::new(name, fingerprint, Generation(0));
        seed.partition = partition;
        seed.checkpoint.cursor = after.cloned();
        seed
    }

    /// Keeps ticks from running during a repartition; the document of the first partition records it.
    #[must_use]
    pub fn held_for_repartition(
        &self,
        record: Option<RepartitionRecord>,
        paused: Paused,
        age: DocumentAge,
    ) -> Self {
        let mut next = match &self.paused {
            Some(_) => self.rewritten(age),
            None => self.pause(paused, age),
        };
        next.repartition = record.or(next.repartition);
        next
    }

    /// Leaves the rows to `count` other partitions permanently.
    #[must_use]
    pub fn taken_over(&self, count: u16, paused: Paused, age: DocumentAge) -> Self {
        let mut next = self.held_for_repartition(None, paused, age);
        next.repartition = None;
        next.taken_over_by = Some(count);
        next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Map, json};

    use super::*;

    fn at(number: i64, key: Option<i64>) -> Cursor {
        let keys = key.map(|key| ("id".to_owned(), json!(key)));
        Cursor::integer(number, keys.into_iter().collect())
    }

    fn tracked(position: &str) -> Cursor {
        Cursor {
            mode: CursorMode::ChangeTracking,
            value: position.to_owned(),
            key: KeyValues::new(),
        }
    }

    fn document() -> StateDocument {
        let fingerprint = SourceFingerprint::of(&[("table", "orders")]);
        StateDocument::new("orders__p1", fingerprint, Generation(7))
    }

    fn paused(by: &str) -> Paused {
        let at = OffsetDateTime::UNIX_EPOCH;
        Paused { by: by.to_owned(), reason: "repartition".to_owned(), at, extra: Map::new() }
    }

    const NOW: DocumentAge = DocumentAge { since_write: Duration::ZERO, grain: Duration::ZERO };

    #[test]
    fn the_bound_is_the_furthest_checkpoint_with_all_rows_of_its_cursor() {
        let (low, high) = (at(3, Some(9)), at(7, Some(1)));
        for order in [[Some(&low), Some(&high), None], [None, Some(&high), Some(&low)]] {
            assert_eq!(common_bound(&order), Ok(Some(at(7, None))));
        }
        assert_eq!(common_bound(&[None, None]), Ok(None));
        let of_mode = tracked("7");
        assert_eq!(common_bound(&[Some(&low), Some(&of_mode)]), Err(NoCommonBound::Modes));
    }

    #[test]
    fn changes_have_no_bound_while_a_partition_reads_its_snapshot() {
        let (changes, more, rows) = (tracked("5"), tracked("9"), tracked("snapshot@9"));
        assert_eq!(common_bound(&[Some(&changes), Some(&more)]), Ok(Some(tracked("9"))));
        assert_eq!(common_bound(&[Some(&changes), Some(&rows)]), Err(NoCommonBound::FirstReading));
        assert_eq!(common_bound(&[Some(&changes), None]), Err(NoCommonBound::FirstReading));
    }

    #[test]
    fn new_partitions_start_at_the_bound_or_at_the_earliest_reread() {
        let window = |after: Option<Cursor>| {
            let mut with = document();
            with.audit.windows = vec![crate::document::ClosedWindow {
                after,
                upto: at(7, Some(1)),
                ids: crate::document::IdSum::default(),
                closed_at: OffsetDateTime::UNIX_EPOCH,
                again_upto: None,
                not_taken: None,
                extra: Map::new(),
            }];
            with
        };
        let bound = Some(at(7, None));
        assert_eq!(seed_position(bound.clone(), &[document(), document()]), bound);
        let (early, late) = (window(Some(at(2, Some(4)))), window(Some(at(5, None))));
        assert_eq!(
            seed_position(bound.clone(), &[late.clone(), early.clone()]),
            Some(at(2, Some(4)))
        );
        assert_eq!(seed_position(bound, &[late, window(None), early]), None);
    }

    #[test]
    fn a_document_names_its_partition_count_or_the_one_that_replaced_it() {
        let mut document = document();
        assert!(document.partition_count() == 1 && document.belongs_to_partition_count(1));
        document.partition = Some(Partition { index: 1, count: 4 });
        assert!(document.partition_count() == 4 && !document.belongs_to_partition_count(8));
        let gone = document.taken_over(8, paused("ann"), NOW);
        assert_eq!(gone.partition_count(), 8);
        assert!(
            !gone.belongs_to_partition_count(8) && !gone.belongs_to_partition_count(4),
            "it delivers nothing"
        );
        assert!(gone.paused.is_some() && gone.requires == ["paused"]);
    }

    #[test]
    fn only_a_document_that_was_in_use_names_a_partition_count() {
        assert!(document().names_partition_count());
        let mut blank = StateDocument { generation: Generation(0), ..document() };
        assert!(!blank.names_partition_count());
        assert!(blank.belongs_to_partition_count(1) && blank.belongs_to_partition_count(4));
        blank.checkpoint.cursor = Some(at(7, None));
        assert!(blank.names_partition_count(), "written before generations existed");
        assert!(blank.belongs_to_partition_count(1) && !blank.belongs_to_partition_count(4));
    }

    #[test]
    fn a_held_document_keeps_its_pause_and_the_record_of_the_first_partition() {
        let record = RepartitionRecord {
            from: 2,
            to: 4,
            begun_at: OffsetDateTime::UNIX_EPOCH,
            upto: None,
            caught_up: false,
            after: None,
        };
        let held = document().held_for_repartition(Some(record.clone()), paused("ann"), NOW);
        assert_eq!(held.paused.as_ref().map(|paused| paused.by.as_str()), Some("ann"));
        let again = held.held_for_repartition(None, paused("bob"), NOW);
        assert_eq!(again.paused.as_ref().map(|paused| paused.by.as_str()), Some("ann"));
        assert_eq!(again.repartition, Some(record));
        assert_eq!(again.taken_over(4, paused("bob"), NOW).repartition, None);
    }

    #[test]
    fn a_partition_starts_after_its_position_and_with_nothing_else() {
        let fingerprint = SourceFingerprint::of(&[("partition", "1 of 4")]);
        let partition = Some(Partition { index: 1, count: 4 });
        let after = at(7, None);
        let seed =
            StateDocument::of_partition("orders__p1", fingerprint.clone(), partition, Some(&after));
        assert_eq!(seed.checkpoint.cursor, Some(after));
        assert_eq!((seed.source_fingerprint, seed.partition), (fingerprint, partition));
        assert!(seed.paused.is_none() && seed.in_flight.is_none() && seed.source_state.is_empty());
    }
}
