//! Instrument names, units and attributes in one place; the OpenTelemetry API only.
//!
//! Without a meter provider every instrument is a no-op. The first three names are the seeds'
//! (001 §10), `batches_total` and `events_total` go with them; the rest follow
//! `highwater.<thing>.<what>`.

use std::fmt;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};

/// The instruments of all pollers.
pub struct Metrics {
    failures: Counter<u64>,
    lag: Gauge<f64>,
    last_success: Gauge<f64>,
    batches: Counter<u64>,
    events: Counter<u64>,
    redelivered: Counter<u64>,
    takeovers: Counter<u64>,
    quarantined: Counter<u64>,
    journal_failures: Counter<u64>,
    late: Counter<u64>,
    not_audited: Counter<u64>,
    audited: Counter<u64>,
    tick_duration: Histogram<f64>,
    fetch_duration: Histogram<f64>,
    handler_duration: Histogram<f64>,
    commit_duration: Histogram<f64>,
    batch_size: Histogram<u64>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&opentelemetry::global::meter("highwater"))
    }
}

impl Metrics {
    /// Makes the instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        let seconds = |name: &'static str| meter.f64_histogram(name).with_unit("s").build();
        Self {
            failures: meter.u64_counter("failures_total").with_unit("{failure}").build(),
            lag: meter.f64_gauge("lag_seconds").with_unit("s").build(),
            last_success: meter.f64_gauge("last_success_timestamp").with_unit("s").build(),
            batches: meter.u64_counter("batches_total").with_unit("{batch}").build(),
            events: meter.u64_counter("events_total").with_unit("{row}").build(),
            redelivered: meter.u64_counter("highwater.rows.redelivered").with_unit("{row}").build(),
            takeovers: meter
                .u64_counter("highwater.recovery.takeovers")
                .with_unit("{takeover}")
                .build(),
            journal_failures: meter
                .u64_counter("highwater.journal.append_failures")
                .with_unit("{append}")
                .build(),
            quarantined: meter.u64_counter("highwater.rows.quarantined").with_unit("{row}").build(),
            late: meter.u64_counter("highwater.rows.late").with_unit("{row}").build(),
            not_audited: meter.u64_counter("highwater.rows.not_audited").with_unit("{row}").build(),
            audited: meter.u64_counter("highwater.windows.audited").with_unit("{window}").build(),
            tick_duration: seconds("highwater.tick.duration"),
            fetch_duration: seconds("highwater.fetch.duration"),
            handler_duration: seconds("highwater.handler.duration"),
            commit_duration: seconds("highwater.commit.duration"),
            batch_size: meter.u64_histogram("highwater.batch.size").with_unit("{row}").build(),
        }
    }

    /// Counts a tick that ended as `outcome`; a failure by the name of its error.
    pub(crate) fn tick(
        &self,
        poller: &str,
        outcome: &'static str,
        failure: Option<&'static str>,
        duration: Duration,
    ) {
        let attributes = [named(poller), KeyValue::new("outcome", outcome)];
        self.tick_duration.record(duration.as_secs_f64(), &attributes);
        if let Some(error) = failure {
            self.failures.add(1, &[named(poller), KeyValue::new("error.type", error)]);
        }
    }

    /// Notes a tick that did not fail, idle ones included.
    pub(crate) fn success(&self, poller: &str, at: time::OffsetDateTime) {
        let timestamp = Duration::try_from(at - time::OffsetDateTime::UNIX_EPOCH);
        self.last_success.record(timestamp.unwrap_or_default().as_secs_f64(), &[named(poller)]);
    }

    /// Notes a read of the source.
    pub(crate) fn fetched(&self, poller: &str, duration: Duration) {
        self.fetch_duration.record(duration.as_secs_f64(), &[named(poller)]);
    }

    /// Notes a call of the handler, whatever came of it.
    pub(crate) fn handled(&self, poller: &str, duration: Duration) {
        self.handler_duration.record(duration.as_secs_f64(), &[named(poller)]);
    }

    /// Counts a committed batch.
    pub(crate) fn committed(
        &self,
        poller: &str,
        rows: u64,
        duration: Option<Duration>,
        lag: Option<Duration>,
    ) {
        let attributes = [named(poller)];
        self.batches.add(1, &attributes);
        self.events.add(rows, &attributes);
        self.batch_size.record(rows, &attributes);
        if let Some(duration) = duration {
            self.commit_duration.record(duration.as_secs_f64(), &attributes);
        }
        if let Some(lag) = lag {
            self.lag.record(lag.as_secs_f64(), &attributes);
        }
    }

    /// Counts rows that are delivered again.
    pub(crate) fn redelivered(&self, poller: &str, rows: u64) {
        self.redelivered.add(rows, &[named(poller)]);
    }

    /// Counts rows that are set aside.
    pub(crate) fn quarantined(&self, poller: &str, reason: &'static str, rows: u64) {
        self.quarantined.add(rows, &[named(poller), KeyValue::new("reason", reason)]);
    }

    /// Counts rows that became visible after their window had been delivered.
    pub(crate) fn late(&self, poller: &str, rows: u64) {
        self.late.add(rows, &[named(poller)]);
    }

    /// Counts delivered rows that will not be read again, for want of room.
    pub(crate) fn not_audited(&self, poller: &str, rows: u64) {
        self.not_audited.add(rows, &[named(poller)]);
    }

    /// Counts a closed window that was read again.
    pub(crate) fn audited(&self, poller: &str, outcome: &'static str) {
        self.audited.add(1, &[named(poller), KeyValue::new("outcome", outcome)]);
    }

    /// Counts an append to the journal that failed, or may have.
    pub(crate) fn journal_append_failed(&self, poller: &str) {
        self.journal_failures.add(1, &[named(poller)]);
    }

    /// Counts a lease taken over from a holder that died.
    pub(crate) fn taken_over(&self, poller: &str) {
        self.takeovers.add(1, &[named(poller)]);
    }
}

fn named(poller: &str) -> KeyValue {
    KeyValue::new("poller.name", poller.to_owned())
}
