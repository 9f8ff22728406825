//! The layer that collects finished spans and log events.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::{Key, KeyValue, Value};
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use super::{Sampler, TARGET, TraceContext};
use crate::clock::Clock;

/// Most spans, and most log records, that wait for export: the default of `OTEL_BSP_MAX_QUEUE_SIZE` and
/// `OTEL_BLRP_MAX_QUEUE_SIZE`. Later ones are dropped and counted.
const WAITING_MAX: usize = 2048;
/// Attribute of the tick's span that log records of the tick repeat.
const INVOCATION: &str = "faas.invocation_id";

/// The role of a span towards other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanKind {
    /// Internal work.
    #[default]
    Internal,
    /// It serves another process.
    Server,
    /// It calls another process.
    Client,
}

/// A finished span.
#[derive(Clone, Debug)]
pub struct FinishedSpan {
    /// Its ids.
    pub context: TraceContext,
    /// Its `tracestate`.
    pub state: Option<Arc<str>>,
    /// Id of the enclosing span.
    pub parent: Option<[u8; 8]>,
    /// Its name.
    pub name: String,
    /// Its role.
    pub kind: SpanKind,
    /// When it started.
    pub began_at: OffsetDateTime,
    /// When it ended.
    pub ended_at: OffsetDateTime,
    /// Its attributes.
    pub attributes: Vec<KeyValue>,
    /// Whether it failed.
    pub failed: bool,
}

/// A log event.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// When it was logged.
    pub at: OffsetDateTime,
    /// Its severity.
    pub level: Level,
    /// Name of the event.
    pub event: Option<String>,
    /// The text.
    pub text: String,
    /// Its other fields.
    pub attributes: Vec<KeyValue>,
    /// The span in which it was logged.
    pub context: Option<TraceContext>,
}

/// Spans and log records that wait for export.
#[derive(Debug, Default)]
pub struct PendingExport {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: Vec<FinishedSpan>,
    logs: Vec<LogRecord>,
    dropped: u64,
}

impl PendingExport {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the finished spans.
    pub fn take_spans(&self) -> Vec<FinishedSpan> {
        std::mem::take(&mut self.waiting().spans)
    }

    /// Takes the log records.
    pub fn take_logs(&self) -> Vec<LogRecord> {
        std::mem::take(&mut self.waiting().logs)
    }

    /// Returns how many spans and records were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.waiting().dropped)
    }

    fn add<T>(&self, new: T, list: impl Fn(&mut Waiting) -> &mut Vec<T>) {
        let mut waiting = self.waiting();
        if list(&mut waiting).len() < WAITING_MAX {
            list(&mut waiting).push(new);
        } else {
            waiting.dropped += 1;
        }
    }
}

/// A span that has not finished.
pub(super) struct OpenSpan {
    pub(super) context: TraceContext,
    state: Option<Arc<str>>,
    parent: Option<[u8; 8]>,
    began_at: OffsetDateTime,
    fields: Fields,
}

/// Collects spans of [`TARGET`], and log events, independent of any filter before it.
pub struct SpanLayer {
    /// Where finished spans go; `None` if only ids are needed.
    pub spans: Option<Arc<PendingExport>>,
    /// Where log records go.
    pub logs: Option<Arc<PendingExport>>,
    /// Which traces are recorded.
    pub sampler: Sampler,
    /// The clock for times.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for SpanLayer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SpanLayer").finish_non_exhaustive()
    }
}

impl SpanLayer {
    /// Returns the ids of a new span.
    fn context(&self, parent: Option<&TraceContext>, is_remote: bool) -> TraceContext {
        let trace_id = parent.map_or_else(|| *Uuid::new_v4().as_bytes(), |it| it.trace_id);
        let (high, low) = Uuid::new_v4().as_u64_pair();
        let sampled = match parent {
            Some(parent) if !is_remote => parent.sampled,
            parent => self.sampler.records(trace_id, parent),
        };
        // The two bits of a UUID that are not random are at different positions in its halves.
        TraceContext {
            trace_id,
            span_id: (high ^ low.rotate_left(17)).max(1).to_be_bytes(),
            sampled,
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| span.metadata().target() == TARGET) else {
            return;
        };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let outer = span.scope().skip(1);
        let outer = outer.filter_map(|it| {
            it.extensions().get::<OpenSpan>().map(|it| (it.context, it.state.clone()))
        });
        let outer = outer.into_iter().next();
        let is_inner = outer.is_some();
        let remote = || {
            let parent = fields.traceparent.as_deref().and_then(TraceContext::parse)?;
            Some((parent, fields.tracestate.take().map(Arc::from)))
        };
        let (parent, state) = outer.or_else(remote).unzip();
        let open = OpenSpan {
            context: self.context(parent.as_ref(), !is_inner),
            state: state.flatten(),
            parent: parent.map(|parent| parent.span_id),
            began_at: self.clock.now(),
            fields,
        };
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            values.record(&mut open.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(logs) = &self.logs else { return };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut found = None;
        for span in context.event_scope(event).into_iter().flatten() {
            let extensions = span.extensions();
            let Some(open) = extensions.get::<OpenSpan>() else { continue };
            found = found.or(Some(open.context));
            let is_id = |it: &&KeyValue| it.key.as_str() == INVOCATION;
            let id = open.fields.attributes.iter().find(is_id);
            fields.attributes.extend(id.cloned());
        }
        logs.add(
            LogRecord {
                at: self.clock.now(),
                level: *event.metadata().level(),
                event: fields.event,
                text: fields.message,
                attributes: fields.attributes,
                context: found,
            },
            |waiting| &mut waiting.logs,
        );
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>() else { return };
        let Some(spans) = self.spans.as_ref().filter(|_| open.context.sampled) else { return };
        let failed = open.fields.attributes.iter().any(|it| it.key.as_str() == "error.type");
        spans.add(
            FinishedSpan {
                context: open.context,
                state: open.state,
                parent: open.parent,
                name: open.fields.name.unwrap_or_else(|| span.name().to_owned()),
                kind: open.fields.kind,
                began_at: open.began_at,
                ended_at: self.clock.now().max(open.began_at),
                attributes: open.fields.attributes,
                failed,
            },
            |waiting| &mut waiting.spans,
        );
    }
}

/// Fields of a span or an event, sorted by meaning.
#[derive(Default)]
struct Fields {
    name: Option<String>,
    kind: SpanKind,
    traceparent: Option<String>,
    tracestate: Option<String>,
    event: Option<String>,
    message: String,
    attributes: Vec<KeyValue>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        let value = value.into();
        let text = || value.as_str().into_owned();
        match field.name() {
            "otel.name" => self.name = Some(text()),
            "otel.kind" => {
                self.kind = match text().as_str() {
                    "server" => SpanKind::Server,
                    "client" => SpanKind::Client,
                    _ => SpanKind::Internal,
                }
            }
            "traceparent" => self.traceparent = Some(text()),
            "tracestate" => self.tracestate = Some(text()),
            "event" => self.event = Some(text()),
            "message" => self.message = text(),
            name => {
                // Macros fill in an empty text if there is no message.
                if !matches!(&value, Value::String(text) if text.as_str().is_empty()) {
                    self.attributes.retain(|known| known.key.as_str() != name);
                    self.attributes.push(KeyValue::new(Key::from_static_str(name), value));
                }
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}
