//! Encodes spans and log records as OTLP messages. Pure.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord as Record, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource as ResourceMessage;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as Kind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use opentelemetry_sdk::Resource;
use time::OffsetDateTime;
use tracing::Level;

use crate::redaction::redacted;
use crate::trace::{FinishedSpan, LogRecord, SpanKind};

/// Schema of the attribute names.
pub(super) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

pub(super) fn spans(resource: &Resource, spans: Vec<FinishedSpan>) -> ExportTraceServiceRequest {
    let scope = ScopeSpans {
        scope: Some(scope()),
        spans: spans.into_iter().map(span).collect(),
        schema_url: SCHEMA_URL.to_owned(),
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(message(resource)),
            scope_spans: vec![scope],
            schema_url: SCHEMA_URL.to_owned(),
        }],
    }
}

pub(super) fn logs(resource: &Resource, records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    let scope = ScopeLogs {
        scope: Some(scope()),
        log_records: records.into_iter().map(record).collect(),
        schema_url: SCHEMA_URL.to_owned(),
    };
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(message(resource)),
            scope_logs: vec![scope],
            schema_url: SCHEMA_URL.to_owned(),
        }],
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "highwater".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

fn message(resource: &Resource) -> ResourceMessage {
    let attributes = resource
        .iter()
        .map(|(key, value)| attribute(opentelemetry::KeyValue::new(key.clone(), value.clone())));
    ResourceMessage { attributes: attributes.collect(), ..ResourceMessage::default() }
}

fn attribute(pair: opentelemetry::KeyValue) -> KeyValue {
    KeyValue {
        key: pair.key.to_string(),
        value: Some(AnyValue::from(clean(pair.value))),
        ..KeyValue::default()
    }
}

/// Returns a value without the secrets of this process.
fn clean(value: opentelemetry::Value) -> opentelemetry::Value {
    if let opentelemetry::Value::String(text) = value {
        return redacted(text.into()).into();
    }
    value
}

fn span(span: FinishedSpan) -> Span {
    let kind = match span.kind {
        SpanKind::Internal => Kind::Internal,
        SpanKind::Server => Kind::Server,
        SpanKind::Client => Kind::Client,
    };
    let failed = Status { code: StatusCode::Error.into(), ..Status::default() };
    Span {
        trace_id: span.context.trace_id.to_vec(),
        span_id: span.context.span_id.to_vec(),
        trace_state: span.state.map(|state| redacted(state.to_string())).unwrap_or_default(),
        parent_span_id: span.parent.map(|id| id.to_vec()).unwrap_or_default(),
        flags: u32::from(span.context.sampled),
        name: redacted(span.name),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.began_at),
        end_time_unix_nano: nanos(span.ended_at),
        attributes: span.attributes.into_iter().map(attribute).collect(),
        status: span.failed.then_some(failed),
        ..Span::default()
    }
}

fn record(record: LogRecord) -> Record {
    // The specification has four numbers for each level; these are the first ones.
    let (number, text) = match record.level {
        Level::ERROR => (17, "ERROR"),
        Level::WARN => (13, "WARN"),
        Level::INFO => (9, "INFO"),
        Level::DEBUG => (5, "DEBUG"),
        Level::TRACE => (1, "TRACE"),
    };
    Record {
        time_unix_nano: nanos(record.at),
        observed_time_unix_nano: nanos(record.at),
        severity_number: number,
        severity_text: text.to_owned(),
        body: Some(AnyValue::from(opentelemetry::Value::from(redacted(record.text)))),
        attributes: record.attributes.into_iter().map(attribute).collect(),
        flags: record.context.map_or(0, |context| u32::from(context.sampled)),
        trace_id: record.context.map(|context| context.trace_id.to_vec()).unwrap_or_default(),
        span_id: record.context.map(|context| context.span_id.to_vec()).unwrap_or_default(),
        event_name: record.event.unwrap_or_default(),
        ..Record::default()
    }
}

fn nanos(at: OffsetDateTime) -> u64 {
    u64::try_from(at.unix_timestamp_nanos()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redaction::{MARK, hold};
    use crate::trace::TraceContext;

    #[test]
    fn exports_contain_no_secret() {
        let secret = "exported-5ecret-of-this-test";
        hold([secret]);
        let resource = Resource::builder_empty().build();
        let attributes = vec![opentelemetry::KeyValue::new("error", format!("{secret} is bad"))];
        let at = OffsetDateTime::UNIX_EPOCH;
        let span = FinishedSpan {
            context: TraceContext { trace_id: [1; 16], span_id: [2; 8], sampled: true },
            state: Some(format!("v={secret}").into()),
            parent: None,
            name: format!("POST {secret}"),
            kind: SpanKind::Client,
            began_at: at,
            ended_at: at,
            attributes: attributes.clone(),
            failed: true,
        };
        let text = format!("target said {secret}");
        let record =
            LogRecord { at, level: Level::WARN, event: None, text, attributes, context: None };
        let sent = format!("{:?}{:?}", spans(&resource, vec![span]), logs(&resource, vec![record]));
        assert!(!sent.contains(secret) && sent.matches(MARK).count() == 5, "{sent}");
    }
}
