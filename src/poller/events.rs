//! The events of a batch: a range of what one read has found, which the parts of the batch share.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::event::ChangeEvent;

/// Events one after the other. Copies and parts cost no copy of an event.
#[derive(Clone, Debug)]
#[expect(clippy::rc_buffer, reason = "the events of a read move in without a copy")]
pub(super) struct Events {
    read: Arc<Vec<ChangeEvent>>,
    range: Range<usize>,
}

impl Events {
    /// Splits into the first `rows` events and the rest; `None` if there are fewer.
    pub(super) fn split(&self, rows: usize) -> Option<(Self, Self)> {
        let Range { start, end } = self.range;
        let middle = start.checked_add(rows).filter(|middle| *middle <= end)?;
        Some((self.part(start..middle), self.part(middle..end)))
    }

    /// Returns one event; `None` if there are fewer.
    pub(super) fn at(&self, index: usize) -> Option<Self> {
        let (_, from) = self.split(index)?;
        from.split(1).map(|(only, _)| only)
    }

    /// Returns these events and those that follow them.
    pub(super) fn joined(&self, behind: &Self) -> Self {
        let is_next = Arc::ptr_eq(&self.read, &behind.read) && self.range.end == behind.range.start;
        if is_next {
            return self.part(self.range.start..behind.range.end);
        }
        Self::from([&**self, &**behind].concat())
    }

    fn part(&self, range: Range<usize>) -> Self {
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
            ChangeEvent { id, cursor, op: Operation::Upsert, json: EventJson::from(String::new()) }
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
            let (front, rest) = whole.split(rows).unwrap();
            assert_eq!((front.len(), rest.len()), (rows, 5 - rows));
            let joined = front.joined(&rest);
            assert_eq!(numbers(&joined), ["0", "1", "2", "3", "4"]);
            assert!(Arc::ptr_eq(&joined.read, &whole.read));
        }
        assert!(whole.split(6).is_none() && whole.split(usize::MAX).is_none());
        let (_, rest) = whole.split(2).unwrap();
        assert_eq!(numbers(&rest.at(1).unwrap()), ["3"]);
        assert!(rest.at(3).is_none() && rest.split(4).is_none());
        let (front, _) = whole.split(1).unwrap();
        assert_eq!(numbers(&front.joined(&rest)), ["0", "2", "3", "4"], "not next to each other");
        assert_eq!(numbers(&front.joined(&events(7..9))), ["0", "7", "8"], "of another read");
    }
}
