//! The ids of events that this process has delivered, as far as it remembers. Pure.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cursor::Cursor;
use crate::document::{ClosedWindow, IdSum, WINDOW_ROWS_MAX, WINDOWS_MAX};
use crate::event::EventId;

/// Most ids to keep: 5 MB, enough for all windows that a document holds.
const IDS_MAX: u64 = WINDOW_ROWS_MAX * 32;
const _: () = assert!(WINDOWS_MAX == 32, "ids of all windows are kept");

/// When a poller reads windows again, and what it knows about its deliveries.
pub(crate) struct Auditor {
    pub(crate) wait: Duration,
    known: Mutex<DeliveredIds>,
}

impl Auditor {
    pub(crate) fn new(wait: Duration) -> Self {
        Self { wait, known: Mutex::default() }
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, DeliveredIds> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Auditor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Auditor").field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// What this process has delivered, newest last.
#[derive(Debug, Default)]
pub(crate) struct DeliveredIds {
    parts: VecDeque<CommittedIds>,
    /// The last finished window, kept in case no write follows that would record it.
    finished: Option<ClosedWindow>,
}

/// What one commit has delivered.
#[derive(Debug)]
struct CommittedIds {
    upto: Cursor,
    sum: IdSum,
    ids: Vec<u128>,
}

impl DeliveredIds {
    /// Keeps the ids of committed events, dropping the oldest ones.
    pub(crate) fn keep(&mut self, upto: &Cursor, ids: &[&EventId]) {
        if ids.is_empty() {
            return;
        }
        self.parts.push_back(CommittedIds {
            upto: upto.clone(),
            sum: IdSum::of(ids.iter().copied()),
            ids: ids.iter().map(|id| id.number()).collect(),
        });
        let mut kept: u64 = self.parts.iter().map(|part| part.sum.rows).sum();
        while kept > IDS_MAX {
            kept -= self.parts.pop_front().map_or(kept, |part| part.sum.rows);
        }
    }

    /// Returns the ids delivered in `window`, sorted; `None` if not all are known.
    ///
    /// These are the last commits up to its end whose sum equals the window's. No positions need to be compared, and
    /// a commit of another process in between is detected.
    pub(crate) fn ids_of(&self, window: &ClosedWindow) -> Option<Vec<u128>> {
        let end = self.parts.iter().rposition(|part| part.upto == window.upto)?;
        let mut sum = IdSum::default();
        let mut ids = Vec::new();
        for part in self.parts.iter().take(end + 1).rev() {
            sum = sum.plus(part.sum);
            ids.extend(&part.ids);
            if sum == window.ids {
                ids.sort_unstable();
                return Some(ids);
            }
            if sum.rows >= window.ids.rows {
                break;
            }
        }
        None
    }

    /// Drops `window` and everything delivered before it: it is finished.
    pub(crate) fn finish(&mut self, window: &ClosedWindow) {
        if let Some(end) = self.parts.iter().rposition(|part| part.upto == window.upto) {
            self.parts.drain(..=end);
        }
        self.finished = Some(window.clone());
    }

    /// Returns the last finished window.
    pub(crate) fn finished(&self) -> Option<&ClosedWindow> {
        self.finished.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use crate::cursor::KeyValues;
    use crate::event::{ChangeEvent, Operation};

    fn event(at: i64) -> ChangeEvent {
        let cursor = Cursor::integer(at, KeyValues::new());
        let id = EventId::of("p", &cursor);
        ChangeEvent {
            id,
            op: Operation::Upsert,
            cursor,
            json: String::new().into(),
            unreadable: None,
        }
    }

    fn events(range: std::ops::RangeInclusive<i64>) -> Vec<ChangeEvent> {
        range.map(event).collect()
    }

    fn keep(known: &mut DeliveredIds, events: &[ChangeEvent]) {
        let upto = &events.last().unwrap().cursor;
        let ids: Vec<_> = events.iter().map(|event| &event.id).collect();
        known.keep(upto, &ids);
    }

    fn window(delivered: &[ChangeEvent]) -> ClosedWindow {
        ClosedWindow {
            after: None,
            upto: delivered.last().unwrap().cursor.clone(),
            ids: IdSum::of(delivered.iter().map(|event| &event.id)),
            closed_at: OffsetDateTime::UNIX_EPOCH,
            again_upto: None,
            not_taken: None,
            extra: serde_json::Map::new(),
        }
    }

    fn known(ranges: &[std::ops::RangeInclusive<i64>]) -> DeliveredIds {
        let mut known = DeliveredIds::default();
        for range in ranges {
            keep(&mut known, &events(range.clone()));
        }
        known
    }

    #[test]
    fn ids_of_one_commit_or_of_several_that_were_merged_are_known() {
        let known = known(&[1..=3, 4..=4, 5..=9]);
        for range in [1..=3, 4..=4, 1..=4, 4..=9, 1..=9] {
            let delivered = events(range.clone());
            let mut expected: Vec<_> = delivered.iter().map(|e| e.id.number()).collect();
            expected.sort_unstable();
            assert_eq!(known.ids_of(&window(&delivered)), Some(expected), "{range:?}");
        }
    }

    #[test]
    fn a_window_with_a_missing_part_is_not_known() {
        let known = known(&[1..=3, 5..=9]);
        for range in [2..=3, 1..=2, 1..=9, 4..=9, 0..=3] {
            assert_eq!(known.ids_of(&window(&events(range.clone()))), None, "{range:?}");
        }
        assert_eq!(DeliveredIds::default().ids_of(&window(&events(1..=1))), None);
    }

    #[test]
    fn a_prefix_that_was_stored_twice_does_not_hide_the_whole_window() {
        let known = known(&[1..=3, 4..=6, 4..=9]);
        assert!(known.ids_of(&window(&events(4..=9))).is_some());
    }

    #[test]
    fn a_finished_window_is_dropped_with_all_earlier_ones() {
        let mut known = known(&[1..=3, 4..=4, 5..=9]);
        let second = window(&events(4..=4));
        known.finish(&second);
        assert_eq!(known.ids_of(&window(&events(1..=3))), None);
        assert!(known.ids_of(&window(&events(5..=9))).is_some());
        assert_eq!(known.finished(), Some(&second));
    }

    #[test]
    fn the_oldest_ids_are_dropped() {
        let mut known = DeliveredIds::default();
        let half = i64::try_from(IDS_MAX / 2).unwrap();
        let parts = [1..=half, half + 1..=2 * half, 2 * half + 1..=2 * half + 1].map(events);
        for part in &parts {
            keep(&mut known, part);
        }
        let remembered = parts.each_ref().map(|part| known.ids_of(&window(part)).is_some());
        assert_eq!(remembered, [false, true, true]);
    }
}
