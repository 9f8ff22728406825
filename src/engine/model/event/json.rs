//! The JSON of events: that of a batch is in one buffer, shared by its events and their copies.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

/// Separates two events in a buffer, so that they form the inside of a JSON array.
const SEPARATOR: char = ',';

/// The JSON object of one event; a copy costs nothing.
#[derive(Clone)]
pub struct EventJson {
    batch: Arc<Shared>,
    part: Range<usize>,
}

/// The shared buffer of a batch; set once all its events are written.
#[derive(Debug, Default)]
struct Shared(OnceLock<String>);

impl Shared {
    fn json(&self) -> &str {
        self.0.get().map_or("", String::as_str)
    }
}

impl EventJson {
    /// Returns the JSON.
    pub fn as_str(&self) -> &str {
        self.batch.json().get(self.part.clone()).unwrap_or_default()
    }

    /// Returns these events separated by commas, without a copy, if they are already adjacent in one buffer.
    #[expect(single_use_lifetimes, reason = "the suggested elision is not stable yet")]
    pub fn joined<'a>(events: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut events = events.into_iter();
        let first = events.next()?;
        let mut end = first.part.end;
        for event in events {
            let follows = event.part.start == end + SEPARATOR.len_utf8();
            if !follows || !Arc::ptr_eq(&event.batch, &first.batch) {
                return None;
            }
            end = event.part.end;
        }
        Some(Self { batch: Arc::clone(&first.batch), part: first.part.start..end })
    }
}

impl Deref for EventJson {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for EventJson {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<[u8]> for EventJson {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl From<String> for EventJson {
    fn from(json: String) -> Self {
        Self { part: 0..json.len(), batch: Arc::new(Shared(json.into())) }
    }
}

impl PartialEq for EventJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Debug for EventJson {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(formatter)
    }
}

impl fmt::Display for EventJson {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self)
    }
}

/// Writes events one after another into one buffer.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    json: String,
    begin: usize,
    shared: Arc<Shared>,
}

impl Buffer {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { json: String::with_capacity(bytes), ..Self::default() }
    }

    /// Starts the next event, which is written to the returned string.
    pub(super) fn begin(&mut self) -> &mut String {
        if !self.json.is_empty() {
            self.json.push(SEPARATOR);
        }
        self.begin = self.json.len();
        &mut self.json
    }

    /// Returns the event that was started last; its text is available once the buffer is shared.
    pub(super) fn end(&self) -> EventJson {
        EventJson { batch: Arc::clone(&self.shared), part: self.begin..self.json.len() }
    }

    /// Returns the one event that was written.
    pub(super) fn alone(self) -> EventJson {
        self.json.into()
    }

    /// Shares the buffer with the events.
    pub(super) fn share(self) {
        self.shared.0.get_or_init(|| self.json);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(events: &[&str]) -> Vec<EventJson> {
        let mut buffer = Buffer::default();
        let write = |event: &&str| {
            buffer.begin().push_str(event);
            buffer.end()
        };
        let events = events.iter().map(write).collect();
        buffer.share();
        events
    }

    #[test]
    fn adjacent_events_are_joined_without_a_copy() {
        let events = shared(&["{1}", "{22}", "{}"]);
        assert_eq!(events[1].as_str(), "{22}");
        assert_eq!(EventJson::joined(&events).as_deref(), Some("{1},{22},{}"));
        assert_eq!(EventJson::joined(&events[1..]).as_deref(), Some("{22},{}"));
        assert_eq!(EventJson::joined(&events[..1]).as_deref(), Some("{1}"));
        assert_eq!(EventJson::joined(&[]), None);
    }

    #[test]
    fn events_of_different_buffers_are_not_joined() {
        let (events, others) = (shared(&["{1}", "{2}", "{3}"]), shared(&["{1}", "{2}"]));
        assert_eq!(EventJson::joined([&events[0], &events[2]]), None);
        assert_eq!(EventJson::joined([&events[1], &events[0]]), None);
        assert_eq!(EventJson::joined([&events[0], &others[1]]), None);
    }
}
