//! The same measurements under the names of the Python package `azure-functions-db`, so that dashboards
//! made for it carry over.
//!
//! Names, labels and units are those that it emits; where it counts one failure twice or a gauge not at
//! all, these follow what its documentation says.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};

use super::ROWS;

/// Boundaries of histograms in milliseconds.
const MILLIS: [f64; 14] = [
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 15_000.0,
    60_000.0,
];

/// Instruments beside those of [`super::Metrics`].
pub(super) struct Azfdb {
    batches: Counter<u64>,
    events: Counter<u64>,
    failures: Counter<u64>,
    duplicates: Counter<u64>,
    quarantined: Counter<u64>,
    fetch: Histogram<f64>,
    handler: Histogram<f64>,
    commit: Histogram<f64>,
    batch_size: Histogram<u64>,
    lag: Gauge<f64>,
    last_success: Gauge<f64>,
}

impl Azfdb {
    pub(super) fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str| meter.u64_counter(name).build();
        let gauge = |name: &'static str| meter.f64_gauge(name).build();
        let millis =
            |name: &'static str| meter.f64_histogram(name).with_boundaries(MILLIS.to_vec()).build();
        let rows =
            |name: &'static str| meter.u64_histogram(name).with_boundaries(ROWS.to_vec()).build();
        Self {
            batches: counter("azfdb_batches_total"),
            events: counter("azfdb_events_total"),
            failures: counter("azfdb_failures_total"),
            duplicates: counter("azfdb_duplicates_total"),
            quarantined: counter("azfdb_quarantined_total"),
            fetch: millis("azfdb_fetch_duration_ms"),
            handler: millis("azfdb_handler_duration_ms"),
            commit: millis("azfdb_commit_duration_ms"),
            batch_size: rows("azfdb_batch_size"),
            lag: gauge("azfdb_lag_seconds"),
            last_success: gauge("azfdb_last_success_timestamp"),
        }
    }

    pub(super) fn failed(&self, poller: &str, source: &str, error: &'static str) {
        let [poller, source] = labels(poller, source);
        let failure = KeyValue::new("result", "failure");
        self.batches.add(1, &[poller.clone(), source.clone(), failure]);
        self.failures.add(1, &[poller, source, KeyValue::new("error_type", error)]);
    }

    pub(super) fn committed(
        &self,
        poller: &str,
        source: &str,
        rows: u64,
        duration: Option<Duration>,
    ) {
        let labels = labels(poller, source);
        let [named, of] = labels.clone();
        self.batches.add(1, &[named, of, KeyValue::new("result", "success")]);
        self.events.add(rows, &labels);
        self.batch_size.record(rows, &labels);
        if let Some(duration) = duration {
            self.commit.record(millis(duration), &labels);
        }
    }

    pub(super) fn fetched(&self, poller: &str, source: &str, duration: Duration) {
        self.fetch.record(millis(duration), &labels(poller, source));
    }

    pub(super) fn handled(&self, poller: &str, source: &str, duration: Duration) {
        self.handler.record(millis(duration), &labels(poller, source));
    }

    pub(super) fn lag(&self, poller: &str, source: &str, lag: Duration) {
        self.lag.record(lag.as_secs_f64(), &labels(poller, source));
    }

    pub(super) fn success(&self, poller: &str, timestamp: f64) {
        let [poller, _] = labels(poller, "");
        self.last_success.record(timestamp, &[poller]);
    }

    pub(super) fn redelivered(&self, poller: &str, source: &str, rows: u64) {
        self.duplicates.add(rows, &labels(poller, source));
    }

    pub(super) fn quarantined(&self, poller: &str, source: &str, rows: u64) {
        self.quarantined.add(rows, &labels(poller, source));
    }
}

fn labels(poller: &str, source: &str) -> [KeyValue; 2] {
    [KeyValue::new("poller_name", poller.to_owned()), KeyValue::new("source", source.to_owned())]
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
