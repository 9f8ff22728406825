//! What the host itself exports to a collector if its `telemetryMode` is `OpenTelemetry`: everything it logs,
//! including the handler's lines and the `Logs` of replies.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use prost::Message as _;
use serde_json::Value as Json;
use tokio::sync::watch;

use super::journal::{Level, Record};
use super::process::Process;
use super::wire::Connection;

/// Returns the port of the collector that the host exports to, if any.
pub(super) fn collector(root: &Path, env: &BTreeMap<String, String>) -> Option<u16> {
    let file = std::fs::read_to_string(root.join("host.json")).unwrap_or_default();
    let json: Json = serde_json::from_str(&file).unwrap_or_default();
    let set = env.get("AzureFunctionsJobHost__telemetryMode").map(String::as_str);
    let mode = set.or_else(|| json.get("telemetryMode")?.as_str()).unwrap_or_default();
    if !mode.eq_ignore_ascii_case("OpenTelemetry") {
        return None;
    }
    url::Url::parse(env.get("OTEL_EXPORTER_OTLP_ENDPOINT")?).ok()?.port()
}

/// Sends each record as it arrives, and records how many have been sent.
pub(super) async fn export(process: Arc<Process>, port: u16, sent: watch::Sender<usize>) {
    let mut changes = process.journal.changes();
    let mut count = 0;
    loop {
        let records: Vec<Record> =
            changes.borrow_and_update().iter().skip(count).cloned().collect();
        count += records.len();
        if !records.is_empty() {
            // A stopped collector accepts nothing; the host continues.
            post(port, &message(&records)).await.unwrap_or_default();
        }
        sent.send_replace(count);
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn message(records: &[Record]) -> Vec<u8> {
    let scopes = records.iter().map(|record| {
        let value = Some(any_value::Value::StringValue(record.message.clone()));
        let severity_text = match record.level {
            Level::Information => "Information",
            Level::Warning => "Warning",
            Level::Error => "Error",
        };
        let log_record = LogRecord {
            severity_text: severity_text.to_owned(),
            body: Some(AnyValue { value }),
            ..LogRecord::default()
        };
        let name = record.category.clone();
        let scope = Some(InstrumentationScope { name, ..InstrumentationScope::default() });
        ScopeLogs { scope, log_records: vec![log_record], ..ScopeLogs::default() }
    });
    let resource_logs =
        vec![ResourceLogs { scope_logs: scopes.collect(), ..ResourceLogs::default() }];
    ExportLogsServiceRequest { resource_logs }.encode_to_vec()
}

async fn post(port: u16, message: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "POST /v1/logs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/x-protobuf\r\n\
         Content-Length: {}\r\n\r\n",
        message.len()
    );
    let request = [head.as_bytes(), message].concat();
    Connection::open(port).await?.exchange(&request).await.map(drop)
}
