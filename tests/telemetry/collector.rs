//! The collector of `collector.py`, and the data it has decoded.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;
use tokio::time::{Instant, sleep};

use crate::bench::LIMIT;
use crate::child::{Server, file};

pub(crate) struct Collector(Server);

impl Collector {
    pub(crate) fn start() -> Self {
        let mut command = Command::new(python().join("bin/python"));
        command.arg(file("tests/telemetry/collector.py"));
        Self(Server::start(&mut command))
    }

    pub(crate) fn url(&self) -> String {
        self.0.url("")
    }

    /// Sets its mode: `take`, `refuse` or `hang`.
    pub(crate) async fn be(&self, mode: &str) {
        post(&self.0.url(&format!("/be/{mode}")), "").await;
    }

    /// Returns the result of Prometheus' parser for a text.
    pub(crate) async fn parsed(&self, text: String) -> Json {
        serde_json::from_str(&post(&self.0.url("/parse"), text).await).unwrap()
    }

    /// Returns every request so far.
    pub(crate) async fn requests(&self) -> Vec<Json> {
        let seen = self.0.get("/seen").await;
        for request in seen.as_array().unwrap() {
            assert_eq!(request["unknown"], 0, "the definitions know every field: {request}");
            assert_eq!(request["headers"]["content-type"], "application/x-protobuf");
        }
        seen.as_array().unwrap().clone()
    }

    /// Returns the spans so far.
    pub(crate) async fn spans(&self) -> Vec<Json> {
        self.items("traces", ["resource_spans", "scope_spans", "spans"]).await
    }

    /// Returns the log records so far.
    pub(crate) async fn logs(&self) -> Vec<Json> {
        self.items("logs", ["resource_logs", "scope_logs", "log_records"]).await
    }

    /// Returns all received metrics, including repeated ones.
    pub(crate) async fn metrics(&self) -> Vec<Json> {
        self.items("metrics", ["resource_metrics", "scope_metrics", "metrics"]).await
    }

    async fn items(&self, signal: &str, path: [&str; 3]) -> Vec<Json> {
        let mut found = Vec::new();
        for request in self.requests().await {
            if request["signal"] == signal {
                found.push(request["message"].clone());
            }
        }
        for step in path {
            let inner = |item: &Json| item[step].as_array().cloned().unwrap_or_default();
            found = found.iter().flat_map(inner).collect();
        }
        found
    }

    /// Waits for a log record of an event.
    pub(crate) async fn event(&self, event: &str) -> Json {
        let end = Instant::now() + LIMIT;
        loop {
            let logs = self.logs().await;
            if let Some(found) = logs.iter().find(|record| record["event_name"] == event) {
                return found.clone();
            }
            assert!(Instant::now() < end, "no `{event}` in {logs:#?}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn post(url: &str, body: impl Into<String>) -> String {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.post(url).body(body.into()).send().await.unwrap().text().await.unwrap()
}

/// Returns an attribute of a span, a point or a record; `Null` if it has none.
pub(crate) fn attribute(of: &Json, key: &str) -> Json {
    let attributes = of["attributes"].as_array().cloned().unwrap_or_default();
    let found = attributes.iter().find(|pair| pair["key"] == key);
    found.map_or(Json::Null, |pair| {
        pair["value"].as_object().unwrap().values().next().unwrap().clone()
    })
}

/// Returns the folder of a Python with the packages of `requirements.txt`.
fn python() -> std::path::PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Tests run in parallel, and so may test binaries; the lock is released with the process.
    let lock = File::create(tmp.join("telemetry-install.lock")).unwrap();
    lock.lock().unwrap();
    let (folder, wanted) =
        (tmp.join("telemetry-python"), fs::read(file("tests/telemetry/requirements.txt")).unwrap());
    // Written last, so a broken installation has none.
    let installed = folder.join("installed.txt");
    if fs::read(&installed).ok().as_ref() != Some(&wanted) {
        let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).status();
        assert!(made.unwrap().success(), "`python3 -m venv` failed");
        let requirements = file("tests/telemetry/requirements.txt");
        let mut pip = Command::new(folder.join("bin/pip"));
        let pip = pip.args(["install", "--quiet", "--requirement"]).arg(requirements).status();
        assert!(pip.unwrap().success(), "`pip install` failed");
        fs::write(installed, wanted).unwrap();
    }
    folder
}
