//! Batches for the handlers that write to storage.

use highwater_engine::cursor::{Cursor, KeyValues, RowVersion};
use highwater_engine::document::{FencingToken, Generation};
use highwater_engine::event::{
    BatchId, BatchIdentity, ChangeEvent, EventsDigest, Operation, SourceLabel,
};
use highwater_engine::handler::{CallTries, Delivery, Handler, HandlerError, Progress};
use highwater_engine::value::Value;

/// Owns what a [`Delivery`] borrows.
pub(crate) struct Batch {
    source: SourceLabel,
    id: BatchId,
    pub(crate) events: Vec<ChangeEvent>,
    progress: Progress,
}

impl Batch {
    /// Returns one row for each text, with versions from 1.
    pub(crate) fn of(texts: &[&str]) -> Self {
        let source = SourceLabel {
            poller: "orders".to_owned(),
            object: "dbo.orders".to_owned(),
            mode: "rowversion",
        };
        let event = |(version, text): (u64, &&str)| {
            let mut key = KeyValues::new();
            key.insert("id".to_owned(), version.into());
            let cursor = Cursor::row_version(RowVersion(version), key);
            let text = Value::Text((*text).to_owned());
            ChangeEvent::encode(&source, Operation::Upsert, cursor, &[("text", &text)])
        };
        let events: Vec<ChangeEvent> = (1..).zip(texts).map(event).collect();
        let identity = BatchIdentity {
            poller: "orders",
            generation: 7,
            replay_id: None,
            after: None,
            upto: &events.last().unwrap().cursor,
            digest: &EventsDigest::of(&events),
        };
        Self { id: BatchId::of(&identity), source, events, progress: Progress::default() }
    }

    pub(crate) fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Returns the events as lines.
    pub(crate) fn lines(&self) -> String {
        let lines = self.events.iter().flat_map(|event| [&*event.json, "\n"]);
        lines.collect()
    }

    pub(crate) async fn deliver(&self, handler: &dyn Handler) -> Result<(), HandlerError> {
        let delivery = Delivery {
            poller: &self.source.poller,
            source: &self.source,
            batch_id: &self.id,
            generation: Generation(7),
            fencing_token: FencingToken(42),
            step: None,
            started_at: time::OffsetDateTime::UNIX_EPOCH,
            attempt: 1,
            tries: CallTries::Several,
            replay_id: None,
            replay_guard: None,
            events: &self.events,
            traceparent: None,
            tracestate: None,
            progress: &self.progress,
        };
        handler.handle(delivery).await
    }
}
