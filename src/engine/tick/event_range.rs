//! The events of a batch: a range of the events of one fetch, which its parts share.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::event::ChangeEvent;

/// Consecutive events. Clones and parts copy no event.
#[derive(Clone, Debug)]
#[expect(clippy::rc_buffer, reason = "the events of a read move in without a copy")]
pub(super) struct Events {
    read: Arc<Vec<ChangeEvent>>,
    range: Range<usize>,
}

impl Events {
    /// Returns some of the events; `None` if there are fewer.
    pub(super) fn part(&self, rows: Range<usize>) -> Option<Self> {
        let at = |row: usize| self.range.start.checked_add(row).filter(|at| *at <= self.range.end);
        let (start, end) = (at(rows.start)?, at(rows.end)?);
        (start <= end).then(|| self.of(start..end))
    }

    /// Returns these events followed by those of `next`.
    pub(super) fn joined(&self, next: &Self) -> Self {
        let is_next = Arc::ptr_eq(&self.read, &next.read) && self.range.end == next.range.start;
        if is_next {
            return self.of(self.range.start..next.range.end);
        }
        Self::from([&**self, &**next].concat())
    }

    fn of(&self, range: Range<usize>) -> Self {
        Self { read: Arc::clone(&self.read), range }
    }
}

impl Deref for Events {
    type Target = [ChangeEvent];

    fn deref(&self) -> &[ChangeEvent] {
        self.read.get(self.range.clone()).unwrap_or_default()
    }
}

impl From<Vec<ChangeEvent>> for Events {
    fn from(events: Vec<ChangeEvent>) -> Self {
        Self { range: 0..events.len(), read: Arc::new(events) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::{Cursor, CursorMode, KeyValues};
    use crate::event::{EventId, EventJson, Operation};

    fn events(numbers: Range<u64>) -> Events {
        let event = |number: u64| {
            let key = KeyValues::from_iter([("id".to_owned(), number.into())]);
            let cursor = Cursor { mode: CursorMode::RowVersion, value: number.to_string(), key };
            let id = EventId::of("p", &cursor);
            ChangeEvent {
                id,
                cursor,
                op: Operation::Upsert,
                json: EventJson::from(String::new()),
                unreadable: None,
            }
        };
        Events::from(numbers.map(event).collect::<Vec<_>>())
    }

    fn numbers(events: &Events) -> Vec<&str> {
        events.iter().map(|event| event.cursor.value.as_str()).collect()
    }

    #[test]
    fn parts_have_their_events_and_join_without_a_copy() {
        let whole = events(0..5);
        for rows in 0..=5 {
            let (front, rest) = (whole.part(0..rows).unwrap(), whole.part(rows..5).unwrap());
            assert_eq!((front.len(), rest.len()), (rows, 5 - rows));
            let joined = front.joined(&rest);
            assert_eq!(numbers(&joined), ["0", "1", "2", "3", "4"]);
            assert!(Arc::ptr_eq(&joined.read, &whole.read));
        }
        assert!(whole.part(0..6).is_none() && whole.part(0..usize::MAX).is_none());
        assert!(whole.part(Range { start: 3, end: 2 }).is_none());
        let rest = whole.part(2..5).unwrap();
        assert_eq!(numbers(&rest.part(1..2).unwrap()), ["3"]);
        assert!(rest.part(3..4).is_none());
        let front = whole.part(0..1).unwrap();
        assert_eq!(numbers(&front.joined(&rest)), ["0", "2", "3", "4"], "not next to each other");
        assert_eq!(numbers(&front.joined(&events(7..9))), ["0", "7", "8"], "of another read");
    }
}
