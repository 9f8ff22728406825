//! Instrument names, units and attributes in one place; the OpenTelemetry API only.
//!
//! Without a meter provider every instrument is a no-op. Names follow `highwater.<thing>.<what>`; those of databases
//! and functions follow the semantic conventions of OpenTelemetry. `docs/reference/telemetry.md` lists them all, and a
//! test compares it with this module.

mod backlog;
mod database;
mod functions;
mod help;
mod states;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter};
use tokio::time::Instant;

use self::backlog::DocumentMetrics;
pub(crate) use self::backlog::DocumentStats;
pub use self::database::DatabaseCalls;
pub use self::functions::{Invocations, RunningInvocation, Trigger};
use self::help::help;
pub use self::states::{POLLER_STATE, export_states};

/// Name of the meter.
const SCOPE: &str = "highwater";
/// Name of the counter of failed ticks.
pub(crate) const FAILURES: &str = "highwater.tick.failures";
/// Kinds of errors on which alerts depend.
const ERRORS: [&str; 2] = ["FetchError", "HandlerError"];
/// Boundaries of histograms in seconds: those of the conventions, extended to the length of a tick.
const SECONDS: [f64; 18] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
/// Boundaries of histograms in rows, up to the largest batch size.
const ROWS: [f64; 12] =
    [1.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 25_000.0, 100_000.0];

/// Returns the meter of this program.
pub fn meter() -> Meter {
    opentelemetry::global::meter(SCOPE)
}

/// The instruments of all pollers.
pub struct Metrics {
    failures: Counter<u64>,
    last_success: Gauge<f64>,
    batches: Counter<u64>,
    events: Counter<u64>,
    redelivered: Counter<u64>,
    takeovers: Counter<u64>,
    quarantined: Counter<u64>,
    breaker_opened: Counter<u64>,
    notifications: Counter<u64>,
    journal_failures: Counter<u64>,
    late: Counter<u64>,
    not_audited: Counter<u64>,
    audited: Counter<u64>,
    tick_duration: Histogram<f64>,
    fetch_duration: Histogram<f64>,
    handler_duration: Histogram<f64>,
    commit_duration: Histogram<f64>,
    batch_size: Histogram<u64>,
    batch_lag: Histogram<f64>,
    leases: LeaseMetrics,
    standing: DocumentMetrics,
    fetched: Counter<u64>,
    behind: Gauge<u64>,
    held_back: Gauge<u64>,
    retention_left: Gauge<u64>,
    known: Arc<ProgressByPoller>,
}

/// How long it is believed that no row waits after the last tick that succeeded.
const NOTHING_WAITS_MAX: Duration = Duration::from_secs(15 * 60);

/// What is known about the pollers of this process.
#[derive(Default)]
struct ProgressByPoller(Mutex<BTreeMap<String, PollerProgress>>);

#[derive(Clone)]
struct PollerProgress {
    /// When a tick last did not fail, or the first one started.
    success_at: Instant,
    /// The age of the checkpoint, and when it had that age.
    checkpoint: Option<(Duration, Instant)>,
    /// How old the oldest undelivered row is, if that is known.
    lag: Option<RowAge>,
}

/// How old the oldest undelivered row of a poller is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RowAge {
    /// No row is waiting.
    Nothing,
    /// It had this age at that time.
    Waiting(Duration, Instant),
}

impl PollerProgress {
    /// Returns the age of the oldest undelivered row; zero only if a recent tick found none.
    fn lag(&self) -> Option<Duration> {
        let is_recent = self.success_at.elapsed() < NOTHING_WAITS_MAX;
        self.lag.filter(|lag| *lag != RowAge::Nothing || is_recent).map(RowAge::now)
    }
}

impl RowAge {
    fn now(self) -> Duration {
        match self {
            Self::Nothing => Duration::ZERO,
            Self::Waiting(age, at) => age_now((age, at)),
        }
    }
}

impl ProgressByPoller {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PollerProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lag of a poller, in the units of its gauges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceLag {
    /// Age of the oldest undelivered row when it was read.
    pub(crate) time: Option<Duration>,
    /// When the read started.
    pub(crate) read_at: Instant,
    /// Whether there is one; otherwise the age stays 0 until the next read.
    pub(crate) waiting: bool,
    /// Readable positions.
    pub(crate) positions: Option<u64>,
    /// Positions that cannot be read yet.
    pub(crate) held_back: Option<u64>,
    /// Positions until changes are lost.
    pub(crate) retention_left: Option<u64>,
}

/// Metrics of leases, and of crashed holders.
struct LeaseMetrics {
    active: UpDownCounter<i64>,
    acquire_duration: Histogram<f64>,
    attempts: Counter<u64>,
    remaining: Histogram<f64>,
    heartbeats: Counter<u64>,
    expirations: Counter<u64>,
    requeues: Counter<u64>,
    requeue_delay: Histogram<f64>,
    rejections: Counter<u64>,
    orphans: Gauge<u64>,
}

/// Who detected that the holder of a lease had crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// The next tick that acquired the lease.
    Tick,
    /// The recovery controller.
    Recovery,
}

impl FoundBy {
    fn as_str(self) -> &'static str {
        match self {
            Self::Tick => "tick",
            Self::Recovery => "recovery",
        }
    }
}

/// Where a write under a stale token was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedBy {
    /// The target, which had seen a newer token.
    Target,
    /// The state document, which grants the lease to another instance.
    State,
}

impl RefusedBy {
    fn as_str(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::State => "state",
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&meter())
    }
}

impl Metrics {
    /// Creates the instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        let seconds = |name| histogram_of_seconds(meter, name);
        let positions = |name: &'static str| gauge(meter, name, "{position}");
        let known = Arc::new(ProgressByPoller::default());
        let of_success = |known: &PollerProgress| Some(known.success_at.elapsed());
        age(meter, "highwater.last_success.age", &known, of_success);
        age(meter, "highwater.lag", &known, PollerProgress::lag);
        age(meter, "highwater.checkpoint.age", &known, |known| known.checkpoint.map(age_now));
        Self {
            failures: counter(meter, FAILURES, "{failure}"),
            last_success: gauge_of_seconds(meter, "highwater.last_success.timestamp"),
            batches: counter(meter, "highwater.batches.committed", "{batch}"),
            events: counter(meter, "highwater.rows.committed", "{row}"),
            redelivered: counter(meter, "highwater.rows.redelivered", "{row}"),
            takeovers: counter(meter, "highwater.recovery.takeovers", "{takeover}"),
            journal_failures: counter(meter, "highwater.journal.append_failures", "{append}"),
            quarantined: counter(meter, "highwater.rows.quarantined", "{row}"),
            breaker_opened: counter(meter, "highwater.breaker.openings", "{opening}"),
            notifications: counter(meter, "highwater.notifications", "{notification}"),
            late: counter(meter, "highwater.rows.late", "{row}"),
            not_audited: counter(meter, "highwater.rows.not_audited", "{row}"),
            audited: counter(meter, "highwater.windows.audited", "{window}"),
            tick_duration: seconds("highwater.tick.duration"),
            fetch_duration: seconds("highwater.fetch.duration"),
            handler_duration: seconds("highwater.handler.duration"),
            commit_duration: seconds("highwater.commit.duration"),
            batch_size: meter
                .u64_histogram("highwater.batch.size")
                .with_description(help("highwater.batch.size"))
                .with_unit("{row}")
                .with_boundaries(ROWS.to_vec())
                .build(),
            batch_lag: seconds("highwater.batch.lag"),
            fetched: counter(meter, "highwater.rows.fetched", "{row}"),
            behind: positions("highwater.lag.positions"),
            held_back: positions("highwater.lag.held_back"),
            retention_left: positions("highwater.retention.left"),
            standing: DocumentMetrics::new(meter),
            known,
            leases: LeaseMetrics::new(meter),
        }
    }

    /// Records that a tick of a poller starts.
    pub(crate) fn tick_started(&self, poller: &str) {
        let mut known = self.known.lock();
        if known.contains_key(poller) {
            return;
        }
        let first = PollerProgress { success_at: Instant::now(), checkpoint: None, lag: None };
        known.insert(poller.to_owned(), first);
        drop(known);
        self.count_from_zero(poller);
    }

    /// Creates the counters of rare events: a counter that first appears with its first count shows no increase to an
    /// alert.
    fn count_from_zero(&self, poller: &str) {
        for error in ERRORS {
            self.failures.add(0, &[named(poller), KeyValue::new("error.type", error)]);
        }
        for reason in ["refused", "attempts", "crashes"] {
            self.quarantined.add(0, &[named(poller), KeyValue::new("reason", reason)]);
        }
        for by in [RefusedBy::Target, RefusedBy::State] {
            self.leases.rejections.add(0, &[named(poller), KeyValue::new("by", by.as_str())]);
        }
        for counter in [&self.late, &self.not_audited, &self.journal_failures, &self.breaker_opened]
        {
            counter.add(0, &[named(poller)]);
        }
    }

    /// Records the lag of a poller.
    pub(crate) fn behind(&self, poller: &str, behind: &SourceLag) {
        let attributes = [named(poller)];
        let gauges = [
            (&self.behind, behind.positions),
            (&self.held_back, behind.held_back),
            (&self.retention_left, behind.retention_left),
        ];
        for (gauge, value) in gauges {
            if let Some(value) = value {
                gauge.record(value, &attributes);
            }
        }
        if let (Some(time), Some(known)) = (behind.time, self.known.lock().get_mut(poller)) {
            // A read that finds nothing may start after rows that are not settled yet.
            known.lag = match known.lag {
                _ if behind.waiting => Some(RowAge::Waiting(time, behind.read_at)),
                None => Some(RowAge::Nothing),
                lag => lag,
            };
        }
    }

    /// Records that a poller whose lag was known has no waiting row.
    pub(crate) fn end_lag(&self, poller: &str) {
        if let Some(known) = self.known.lock().get_mut(poller) {
            known.lag = known.lag.map(|_| RowAge::Nothing);
        }
    }

    /// Records that a tick ended without a read: the age of a waiting row stays known, but new rows may wait.
    pub(crate) fn doubt_lag(&self, poller: &str) {
        if let Some(known) = self.known.lock().get_mut(poller) {
            known.lag = known.lag.filter(|lag| *lag != RowAge::Nothing);
        }
    }

    /// Records that another instance delivers the rows of a poller, so that their age is unknown here.
    pub(crate) fn forget_lag(&self, poller: &str) {
        if let Some(known) = self.known.lock().get_mut(poller) {
            known.lag = None;
        }
    }

    /// Counts a tick that ended with `outcome`; a failure is counted by the name of its error.
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

    /// Records a tick that did not fail, including idle ones.
    pub(crate) fn success(&self, poller: &str, at: time::OffsetDateTime) {
        let timestamp = Duration::try_from(at - time::OffsetDateTime::UNIX_EPOCH);
        let timestamp = timestamp.unwrap_or_default().as_secs_f64();
        self.last_success.record(timestamp, &[named(poller)]);
        if let Some(known) = self.known.lock().get_mut(poller) {
            known.success_at = Instant::now();
        }
    }

    /// Records a read of the source.
    pub(crate) fn fetched(&self, poller: &str, rows: u64, duration: Duration) {
        self.fetched.add(rows, &[named(poller)]);
        self.fetch_duration.record(duration.as_secs_f64(), &[named(poller)]);
    }

    /// Records a call of the handler, with any result.
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
            self.batch_lag.record(lag.as_secs_f64(), &attributes);
        }
    }

    /// Counts redelivered rows.
    pub(crate) fn redelivered(&self, poller: &str, rows: u64) {
        self.redelivered.add(rows, &[named(poller)]);
    }

    /// Counts quarantined rows.
    pub(crate) fn quarantined(&self, poller: &str, reason: &'static str, rows: u64) {
        self.quarantined.add(rows, &[named(poller), KeyValue::new("reason", reason)]);
    }

    /// Counts that the breaker opened.
    pub(crate) fn breaker_opened(&self, poller: &str) {
        self.breaker_opened.add(1, &[named(poller)]);
    }

    /// Counts a notification that was sent, or could not be sent.
    pub fn notified(&self, poller: &str, outcome: &'static str) {
        self.notifications.add(1, &[named(poller), KeyValue::new("outcome", outcome)]);
    }

    /// Counts rows that became visible after their window had been delivered.
    pub(crate) fn late(&self, poller: &str, rows: u64) {
        self.late.add(rows, &[named(poller)]);
    }

    /// Counts delivered rows that will not be read again because there is no room for their window.
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

    /// Counts a lease as held, or as no longer held.
    pub(crate) fn lease_active(&self, poller: &str, change: i64) {
        self.leases.active.add(change, &[named(poller)]);
    }

    /// Counts a lease request by its outcome.
    pub(crate) fn lease_asked(&self, poller: &str, outcome: &'static str) {
        self.leases.attempts.add(1, &[named(poller), KeyValue::new("outcome", outcome)]);
    }

    /// Records how long a granted lease request took.
    pub(crate) fn lease_acquired(&self, poller: &str, duration: Duration) {
        self.leases.acquire_duration.record(duration.as_secs_f64(), &[named(poller)]);
    }

    /// Records how much of a lease was left when a commit started.
    pub(crate) fn lease_remaining(&self, poller: &str, left: Duration) {
        self.leases.remaining.record(left.as_secs_f64(), &[named(poller)]);
    }

    /// Counts a renewal.
    pub(crate) fn heartbeat(&self, poller: &str, succeeded: bool) {
        let outcome = KeyValue::new("outcome", if succeeded { "ok" } else { "failed" });
        self.leases.heartbeats.add(1, &[named(poller), outcome]);
    }

    /// Counts a lease whose holder crashed, `idle` after its last write, and a batch in flight that is thereby free
    /// again.
    pub(crate) fn lease_expired(
        &self,
        poller: &str,
        found_by: FoundBy,
        idle: Duration,
        requeued: bool,
    ) {
        let attributes = [named(poller), KeyValue::new("found_by", found_by.as_str())];
        self.leases.expirations.add(1, &attributes);
        if requeued {
            self.leases.requeues.add(1, &attributes);
            self.leases.requeue_delay.record(idle.as_secs_f64(), &attributes);
        }
    }

    /// Counts a batch whose backoff is ended, so that the next tick delivers it.
    pub(crate) fn requeued(&self, poller: &str) {
        let found_by = KeyValue::new("found_by", FoundBy::Recovery.as_str());
        self.leases.requeues.add(1, &[named(poller), found_by]);
    }

    /// Counts a rejected write under a stale token.
    pub(crate) fn write_rejected(&self, poller: &str, by: RefusedBy) {
        self.leases.rejections.add(1, &[named(poller), KeyValue::new("by", by.as_str())]);
    }

    /// Records how many documents a scan found in a condition of the recovery controller's table.
    pub(crate) fn orphans(&self, condition: &'static str, count: u64) {
        self.leases.orphans.record(count, &[KeyValue::new("condition", condition)]);
    }

    /// Counts a lease taken over from a crashed holder.
    pub(crate) fn taken_over(&self, poller: &str) {
        self.takeovers.add(1, &[named(poller)]);
    }
}

/// Creates a gauge that computes its value when it is collected: a timestamp would silently go stale if ticks stop,
/// but an age keeps growing.
fn age(
    meter: &Meter,
    name: &'static str,
    known: &Arc<ProgressByPoller>,
    of: impl Fn(&PollerProgress) -> Option<Duration> + Send + Sync + 'static,
) {
    let known = Arc::clone(known);
    let gauge = meter.f64_observable_gauge(name).with_description(help(name)).with_unit("s");
    let gauge = gauge.with_callback(move |observer| {
        for (poller, known) in &*known.lock() {
            if let Some(age) = of(known) {
                observer.observe(age.as_secs_f64(), &[named(poller)]);
            }
        }
    });
    // The meter keeps the callback.
    let _kept_by_meter = gauge.build();
}

/// Returns the current age of something that had an age at a given time.
fn age_now((age, at): (Duration, Instant)) -> Duration {
    age + at.elapsed()
}

/// Creates the gauge that names this build. Its value is always 1, so that queries can join it to other series.
pub fn export_build(version: &'static str, commit: Option<&'static str>) {
    let name = "highwater.build_info";
    let meter = meter();
    let gauge = meter.u64_observable_gauge(name).with_description(help(name));
    let gauge = gauge.with_callback(move |observer| {
        let commit = commit.filter(|commit| !commit.is_empty()).unwrap_or("unknown");
        let attributes = [KeyValue::new("version", version), KeyValue::new("commit", commit)];
        observer.observe(1, &attributes);
    });
    // The meter keeps the callback.
    let _kept_by_meter = gauge.build();
}

/// Creates the counter of dropped log lines, by stream. It belongs to the process, not to a poller, and is read when
/// it is collected.
pub fn count_dropped_lines<const N: usize>(dropped: fn() -> [(&'static str, u64); N]) {
    let meter = meter();
    let counter = meter
        .u64_observable_counter("highwater.log.lines_dropped")
        .with_description(help("highwater.log.lines_dropped"))
        .with_unit("{line}");
    let counter = counter.with_callback(move |observer| {
        for (stream, lines) in dropped() {
            observer.observe(lines, &[KeyValue::new("stream", stream)]);
        }
    });
    // The meter keeps the callback.
    let _kept_by_meter = counter.build();
}

impl LeaseMetrics {
    fn new(meter: &Meter) -> Self {
        let counter = |name, unit| counter(meter, name, unit);
        let seconds = |name| histogram_of_seconds(meter, name);
        Self {
            active: meter
                .i64_up_down_counter("highwater.lease.active")
                .with_description(help("highwater.lease.active"))
                .with_unit("{lease}")
                .build(),
            acquire_duration: seconds("highwater.lease.acquire.duration"),
            attempts: counter("highwater.lease.acquire.attempts", "{attempt}"),
            remaining: seconds("highwater.lease.remaining"),
            heartbeats: counter("highwater.lease.heartbeats", "{heartbeat}"),
            expirations: counter("highwater.lease.expirations", "{lease}"),
            requeues: counter("highwater.recovery.requeues", "{batch}"),
            requeue_delay: seconds("highwater.recovery.requeue.delay"),
            rejections: counter("highwater.fence.rejections", "{write}"),
            orphans: gauge(meter, "highwater.recovery.orphans", "{document}"),
        }
    }
}

fn counter(meter: &Meter, name: &'static str, unit: &'static str) -> Counter<u64> {
    meter.u64_counter(name).with_description(help(name)).with_unit(unit).build()
}

fn gauge(meter: &Meter, name: &'static str, unit: &'static str) -> Gauge<u64> {
    meter.u64_gauge(name).with_description(help(name)).with_unit(unit).build()
}

fn gauge_of_seconds(meter: &Meter, name: &'static str) -> Gauge<f64> {
    meter.f64_gauge(name).with_description(help(name)).with_unit("s").build()
}

fn histogram_of_seconds(meter: &Meter, name: &'static str) -> Histogram<f64> {
    let histogram = meter.f64_histogram(name).with_description(help(name)).with_unit("s");
    histogram.with_boundaries(SECONDS.to_vec()).build()
}

fn named(poller: &str) -> KeyValue {
    KeyValue::new("poller.name", poller.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ages_grow_while_no_tick_reports_them() {
        let seen = (Duration::from_secs(100), Instant::now());
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(age_now(seen), Duration::from_secs(120));
        assert_eq!(RowAge::Waiting(seen.0, seen.1).now(), Duration::from_secs(120));
        assert_eq!(RowAge::Nothing.now(), Duration::ZERO);
    }
}
