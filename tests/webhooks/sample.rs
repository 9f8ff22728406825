//! Batches for delivery, and their handler.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use highwater::clock::{Clock, SystemClock};
use highwater::config::HttpConfig;
use highwater::cursor::{Cursor, KeyValues, RowVersion};
use highwater::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest, Operation, SourceLabel};
use highwater::handler::http::{Client, Http};
use highwater::handler::{CallTries, Delivery, Handler as _, HandlerError, Progress};
use highwater::state::{FencingToken, Generation};
use highwater::value::Value;

pub(crate) const NEW_SECRET: &str = "whsec_bmV3LW5ldy1uZXctbmV3LW5ldy1uZXctbmV3LW5l";
pub(crate) const OLD_SECRET: &str = "whsec_b2xkLW9sZC1vbGQtb2xkLW9sZC1vbGQtb2xkLW9s";

/// Owns what a [`Delivery`] borrows.
pub(crate) struct Batch {
    pub(crate) source: SourceLabel,
    pub(crate) id: BatchId,
    pub(crate) events: Vec<ChangeEvent>,
    pub(crate) generation: u64,
    pub(crate) token: u64,
    pub(crate) progress: Progress,
}

impl Batch {
    /// Returns a batch of rows given as `(id, version, name)`; without a name, the row is deleted.
    pub(crate) fn of(rows: &[(i64, u64, Option<&str>)]) -> Self {
        let source = SourceLabel {
            poller: "orders".to_owned(),
            object: "dbo.orders".to_owned(),
            mode: "rowversion",
        };
        let events: Vec<ChangeEvent> =
            rows.iter().map(|(id, version, name)| event(&source, *id, *version, *name)).collect();
        let identity = BatchIdentity {
            poller: "orders",
            generation: 7,
            replay_id: None,
            after: None,
            upto: &events.last().unwrap().cursor,
            digest: &EventsDigest::of(&events),
        };
        let id = BatchId::of(&identity);
        Self { source, id, events, generation: 7, token: 42, progress: Progress::default() }
    }

    /// Delivers the batch once.
    pub(crate) async fn deliver(&self, config: &HttpConfig) -> Result<(), HandlerError> {
        self.deliver_by(Arc::new(SystemClock), config).await
    }

    /// Delivers the batch once, at the time of `clock`.
    pub(crate) async fn deliver_by(
        &self,
        clock: Arc<dyn Clock>,
        config: &HttpConfig,
    ) -> Result<(), HandlerError> {
        let handler = Http::new(Client::new().unwrap(), config, clock);
        let delivery = Delivery {
            poller: &self.source.poller,
            source: &self.source,
            batch_id: &self.id,
            generation: Generation(self.generation),
            fencing_token: FencingToken(self.token),
            step: None,
            started_at: time::macros::datetime!(2026-11-21 09:30:02 UTC),
            attempt: 1,
            tries: CallTries::Several,
            replay_id: None,
            replay_guard: None,
            events: &self.events,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            tracestate: Some("vendor=7,other=x"),
            progress: &self.progress,
        };
        handler.handle(delivery).await
    }
}

fn event(source: &SourceLabel, id: i64, version: u64, name: Option<&str>) -> ChangeEvent {
    let mut key = KeyValues::new();
    key.insert("id".to_owned(), id.into());
    let operation = if name.is_some() { Operation::Upsert } else { Operation::Delete };
    let name = Value::Text(name.unwrap_or_default().to_owned());
    let cursor = Cursor::row_version(RowVersion(version), key);
    let columns: &[(&str, &Value)] = &[("id", &Value::Int(id)), ("name", &name)];
    ChangeEvent::encode(source, operation, cursor, columns)
}

/// Returns settings that sign with `secrets` and make one attempt.
pub(crate) fn config(url: &str, secrets: &[&str]) -> HttpConfig {
    let key = |text: &&str| STANDARD.decode(text.strip_prefix("whsec_").unwrap()).unwrap().into();
    HttpConfig {
        tries_max: 1,
        signing_secrets: secrets.iter().map(key).collect(),
        ..HttpConfig::new(url.parse().unwrap())
    }
}
