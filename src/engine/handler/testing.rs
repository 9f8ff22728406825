//! A batch for tests of handlers.

use std::time::Duration;

use time::OffsetDateTime;

use super::{CallTries, Delivery, Progress};
use crate::cursor::{Cursor, KeyValues, RowVersion};
use crate::document::{FencingToken, Generation};
use crate::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest, Operation, SourceLabel};
use crate::value::Value;

/// Owns the data that a [`Delivery`] borrows.
#[derive(Debug)]
pub struct Sample {
    /// Where the events came from.
    pub source: SourceLabel,
    /// Id of the batch.
    pub batch_id: BatchId,
    /// The events, oldest first.
    pub events: Vec<ChangeEvent>,
    /// What was accepted so far.
    pub progress: Progress,
}

impl Sample {
    /// Returns a batch of `rows` rows with distinct keys.
    pub fn new(rows: u64) -> Self {
        Self::of_keys(&(1..=rows).collect::<Vec<_>>())
    }

    /// Returns a batch of row states with these keys; a key may occur several times.
    pub fn of_keys(keys: &[u64]) -> Self {
        let source = SourceLabel {
            poller: "orders".to_owned(),
            object: "dbo.orders".to_owned(),
            mode: "rowversion",
        };
        let events: Vec<ChangeEvent> =
            (1..).zip(keys).map(|(version, key)| event(&source, version, *key)).collect();
        let identity = BatchIdentity {
            poller: "orders",
            generation: 7,
            replay_id: None,
            after: None,
            upto: &events.last().expect("a sample has rows").cursor,
            digest: &EventsDigest::of(&events),
        };
        Self { batch_id: BatchId::of(&identity), source, events, progress: Progress::default() }
    }

    /// Returns the delivery that a handler gets.
    pub fn delivery(&self) -> Delivery<'_> {
        Delivery {
            poller: &self.source.poller,
            source: &self.source,
            batch_id: &self.batch_id,
            step: None,
            started_at: OffsetDateTime::UNIX_EPOCH + Duration::from_millis(1_500),
            generation: Generation(7),
            fencing_token: FencingToken(42),
            attempt: 2,
            tries: CallTries::Several,
            replay_id: None,
            replay_guard: None,
            events: &self.events,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            tracestate: Some("vendor=7,other=x"),
            progress: &self.progress,
        }
    }
}

fn event(source: &SourceLabel, version: u64, id: u64) -> ChangeEvent {
    let mut key = KeyValues::new();
    key.insert("id".to_owned(), id.into());
    let name = Value::Text(format!("line one\nline two of {version}"));
    let cursor = Cursor::row_version(RowVersion(version), key);
    ChangeEvent::encode(source, Operation::Upsert, cursor, &[("name", &name)])
}
