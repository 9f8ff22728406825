//! Exports to a collector in a separate task: no tick waits for it longer than [`FLUSH_TIME_MAX`].
//!
//! # Design
//!
//! An instance of the Functions host may disappear right after a reply, so the telemetry of a tick is sent
//! before the reply. A collector that hangs must not slow ticks down: the task continues after the wait has
//! timed out, and further ticks do not wait at all until it is done.
//!
//! Telemetry that the collector does not accept now is kept for the next export while there is room, so that
//! delta metrics survive a short outage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_sdk::Resource;
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::encode;
use super::post::{Poster, Refused};
use super::reader::Reader;
use super::settings::{Settings, Signal};
use crate::trace::PendingExport;

/// Longest wait of a tick for its telemetry.
pub const FLUSH_TIME_MAX: Duration = Duration::from_millis(500);

/// Interval of exports of spans and log records between ticks: the default of `OTEL_BSP_SCHEDULE_DELAY`.
const SPANS_INTERVAL: Duration = Duration::from_secs(5);
/// Limits on pending bytes and requests; the oldest are dropped.
const WAITING_BYTES_MAX: usize = 4 << 20;
const WAITING_REQUESTS_MAX: usize = 64;

/// Handle of the export task.
#[derive(Clone, Debug)]
pub(super) struct Exporter {
    ask: mpsc::UnboundedSender<oneshot::Sender<()>>,
    /// Whether a wait for the current export has timed out.
    is_stuck: Arc<AtomicBool>,
}

impl Exporter {
    /// Starts the task; it stops with the runtime.
    pub(super) fn start(settings: Settings, parts: Parts) -> Self {
        let (ask, requests) = mpsc::unbounded_channel();
        let is_stuck = Arc::new(AtomicBool::new(false));
        tokio::spawn(Task::new(settings, parts, Arc::clone(&is_stuck)).run(requests));
        Self { ask, is_stuck }
    }

    /// Exports pending telemetry, and waits at most [`FLUSH_TIME_MAX`].
    pub(super) async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.ask.send(done).is_err() || self.is_stuck.load(Ordering::Relaxed) {
            return;
        }
        if timeout(FLUSH_TIME_MAX, wait).await.is_err() {
            self.is_stuck.store(true, Ordering::Relaxed);
        }
    }
}

/// The sources of telemetry.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) resource: Resource,
    pub(super) reader: Reader,
    pub(super) collected: Arc<PendingExport>,
}

struct Task {
    settings: Settings,
    parts: Parts,
    poster: Poster,
    waiting: VecDeque<(Signal, Vec<u8>)>,
    measured_at: Instant,
    /// Whether the last export failed; only the first failure is logged.
    failing: bool,
    is_stuck: Arc<AtomicBool>,
}

impl Task {
    fn new(settings: Settings, parts: Parts, is_stuck: Arc<AtomicBool>) -> Self {
        Self {
            settings,
            parts,
            poster: Poster::default(),
            waiting: VecDeque::new(),
            measured_at: Instant::now(),
            failing: false,
            is_stuck,
        }
    }

    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
        loop {
            let mut waiting = Vec::new();
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => waiting.push(request),
                    None => return,
                },
                () = sleep(SPANS_INTERVAL.min(self.settings.interval)) => {}
            }
            // One export serves all waiting ticks, and those whose wait has timed out.
            while let Ok(request) = requests.try_recv() {
                waiting.push(request);
            }
            let due = self.measured_at.elapsed() >= self.settings.interval;
            self.collect(due || !waiting.is_empty());
            self.send().await;
            self.is_stuck.store(false, Ordering::Relaxed);
            // Dropping the senders wakes the waiting ticks.
            drop(waiting);
        }
    }

    /// Encodes pending telemetry, and metrics if they are due.
    fn collect(&mut self, measure: bool) {
        let resource = &self.parts.resource;
        let spans = self.parts.collected.take_spans();
        if !spans.is_empty() {
            let bytes = encode::spans(resource, spans).encode_to_vec();
            self.waiting.push_back((Signal::Traces, bytes));
        }
        let records = self.parts.collected.take_logs();
        if !records.is_empty() {
            let bytes = encode::logs(resource, records).encode_to_vec();
            self.waiting.push_back((Signal::Logs, bytes));
        }
        if measure && self.settings.exports(Signal::Metrics) {
            self.measured_at = Instant::now();
            let found = self.parts.reader.read();
            let found = found.filter(|found| found.scope_metrics().next().is_some());
            let bytes =
                found.map(|found| ExportMetricsServiceRequest::from(&found).encode_to_vec());
            self.waiting.extend(bytes.map(|bytes| (Signal::Metrics, bytes)));
        }
        let mut bytes: usize = self.waiting.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut dropped = 0;
        while bytes > WAITING_BYTES_MAX || self.waiting.len() > WAITING_REQUESTS_MAX {
            let Some((_, oldest)) = self.waiting.pop_front() else { break };
            bytes -= oldest.len();
            dropped += 1;
        }
        let records = self.parts.collected.take_dropped();
        if dropped + records > 0 {
            warn!(
                event = "telemetry_dropped",
                requests = dropped,
                records,
                "Telemetry dropped: the collector is unavailable or too slow"
            );
        }
    }

    /// Sends pending requests, oldest first. If one fails temporarily, its signal is left for the next export.
    async fn send(&mut self) {
        let mut deferred: VecDeque<(Signal, Vec<u8>)> = VecDeque::new();
        let mut failure = None;
        let mut sent = false;
        for (signal, bytes) in std::mem::take(&mut self.waiting) {
            if deferred.iter().any(|(other, _)| *other == signal) {
                deferred.push_back((signal, bytes));
                continue;
            }
            let endpoint = self.settings.endpoints.iter().find(|it| it.signal == signal);
            let Some(endpoint) = endpoint else { continue };
            match self.poster.post(endpoint, &bytes).await {
                Ok(()) => sent = true,
                Err(Refused { reason, is_transient }) => {
                    failure = Some((signal, reason));
                    if is_transient {
                        deferred.push_back((signal, bytes));
                    }
                }
            }
        }
        self.waiting = deferred;
        self.report(failure, sent);
    }

    /// Logs the first of consecutive failures, and their end.
    fn report(&mut self, failure: Option<(Signal, String)>, sent: bool) {
        match failure {
            Some((signal, reason)) if !self.failing => {
                self.failing = true;
                let signal = signal.as_str();
                warn!(
                    event = "telemetry_export_failed",
                    signal,
                    error = reason,
                    "Export of {signal} failed: {reason}; further failures are not logged until an export succeeds"
                );
            }
            None if self.failing && sent => {
                self.failing = false;
                info!(event = "telemetry_export_works", "Telemetry export works again");
            }
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tick_waits_until_its_deadline_and_not_again_while_the_collector_hangs() {
        // Requests are not answered, as if the collector hangs.
        let (ask, mut requests) = mpsc::unbounded_channel();
        let exporter = Exporter { ask, is_stuck: Arc::default() };
        let began_at = Instant::now();
        exporter.flush().await;
        assert_eq!(began_at.elapsed(), FLUSH_TIME_MAX);
        exporter.flush().await;
        assert_eq!(began_at.elapsed(), FLUSH_TIME_MAX);
        // Both requests are queued for the next export.
        assert!(requests.try_recv().is_ok() && requests.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_continues_once_its_telemetry_is_exported() {
        let (ask, mut requests) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let exporter = Exporter { ask, is_stuck: Arc::default() };
        let began_at = Instant::now();
        let served = async { drop(requests.recv().await) };
        tokio::join!(exporter.flush(), served);
        assert_eq!(began_at.elapsed(), Duration::ZERO);
        assert!(!exporter.is_stuck.load(Ordering::Relaxed));
    }
}
