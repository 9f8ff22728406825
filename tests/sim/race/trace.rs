//! The trace: the engine's own log events, in the terms of seed 004.

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::{Map, Value as Json, json};
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// What the seed calls a job is a poller here.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobId(pub(super) &'static str);

/// While there is only one dispatcher, `tracing` lets whichever thread comes first decide whether a new log
/// line is enabled, and caches the result. A thread without a subscriber would disable it for all. A second,
/// permanent dispatcher prevents that.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

/// Collects the events of a race from the log.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    job_id: JobId,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    pub(super) fn of(job_id: JobId) -> Self {
        LazyLock::force(&SECOND);
        Self { job_id, lines: Arc::default() }
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the line of an event, if it is one of the race's.
    fn line(&self, fields: &Fields) -> Option<String> {
        let name = fields.0.get("event")?.as_str()?;
        let wanted: &[&str] = match name {
            "lease_acquired" | "execution_started" => &["token"],
            "stale_write_blocked" => &["stale_token", "current_token", "reason"],
            "worker_exit" => &["reason"],
            _ => return None,
        };
        let mut line = Map::new();
        line.insert("event".to_owned(), json!(name));
        if name != "worker_exit" {
            line.insert("job_id".to_owned(), json!(self.job_id.0));
        }
        for field in wanted {
            line.insert((*field).to_owned(), fields.0.get(*field)?.clone());
        }
        if name == "lease_acquired" {
            // Forced by barriers and frozen time.
            line.insert("forced".to_owned(), json!(true));
        }
        Some(Json::Object(line).to_string())
    }
}

impl<S: Subscriber> Layer<S> for Trace {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        if let Some(line) = self.line(&fields) {
            self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }
}

/// The fields of one log event.
struct Fields(Map<String, Json>);

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), json!(value));
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
