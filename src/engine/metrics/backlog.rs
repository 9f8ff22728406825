//! The state of a poller: its checkpoint, its document, and its pending rows.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Gauge, Meter};
use tokio::time::Instant;

use super::{Metrics, gauge, help, named};

/// What a tick knows about its state document when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DocumentStats {
    /// Size of the stored document.
    pub(crate) bytes: u64,
    /// Leading part of the checkpoint, if the mode counts positions.
    pub(crate) position: Option<i64>,
    /// Time since the checkpoint moved, by the storage service's clock.
    pub(crate) checkpoint_age: Option<Duration>,
    /// Parked keys that are retried automatically, and those that wait for an operator; `None` if no key was ever parked.
    pub(crate) parked: Option<(u64, u64)>,
    /// Generation of the document.
    pub(crate) generation: u64,
    /// Whether the breaker is open.
    pub(crate) breaker_is_open: bool,
}

/// Instruments of the document.
pub(super) struct DocumentMetrics {
    bytes: Gauge<u64>,
    position: Gauge<i64>,
    rows_behind: Gauge<u64>,
    parked: Gauge<u64>,
    generation: Gauge<u64>,
    breaker: Gauge<u64>,
}

impl DocumentMetrics {
    pub(super) fn new(meter: &Meter) -> Self {
        let position = meter
            .i64_gauge("highwater.checkpoint.position")
            .with_description(help("highwater.checkpoint.position"))
            .with_unit("{position}");
        Self {
            bytes: meter
                .u64_gauge("highwater.state.bytes")
                .with_description(help("highwater.state.bytes"))
                .with_unit("By")
                .build(),
            position: position.build(),
            rows_behind: meter
                .u64_gauge("highwater.rows.behind")
                .with_description(help("highwater.rows.behind"))
                .with_unit("{row}")
                .build(),
            parked: gauge(meter, "highwater.keys.parked", "{key}"),
            generation: gauge(meter, "highwater.state.generation", ""),
            breaker: gauge(meter, "highwater.breaker.open", ""),
        }
    }
}

impl Metrics {
    /// Records the state of a poller at the end of a tick.
    pub(crate) fn record_state(&self, poller: &str, standing: &DocumentStats) {
        let attributes = [named(poller)];
        self.standing.bytes.record(standing.bytes, &attributes);
        self.standing.generation.record(standing.generation, &attributes);
        self.standing.breaker.record(standing.breaker_is_open.into(), &attributes);
        if let Some(position) = standing.position {
            self.standing.position.record(position, &attributes);
        }
        if let Some((retrying, quarantined)) = standing.parked {
            for (state, keys) in [("retrying", retrying), ("quarantined", quarantined)] {
                self.standing.parked.record(keys, &[named(poller), KeyValue::new("state", state)]);
            }
        }
        if let Some(known) = self.known.lock().get_mut(poller) {
            known.checkpoint = standing.checkpoint_age.map(|age| (age, Instant::now()));
        }
    }

    /// Records how many rows after the checkpoint were counted.
    pub(crate) fn rows_behind(&self, poller: &str, rows: u64) {
        self.standing.rows_behind.record(rows, &[named(poller)]);
    }
}
