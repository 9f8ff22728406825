//! Exports to a collector, by a task of its own: no tick waits for it longer than [`FLUSH_TIME_MAX`].
//!
//! # Why so
//!
//! An instance of the Functions host may be gone a moment after it has answered, so what a tick has
//! measured is sent before it answers. A collector that hangs must not make ticks slow: the task goes on
//! by itself where the wait is over, and a tick that finds it still at work does not wait at all.
//!
//! What a collector does not take now is kept for the next time, as far as there is room, so that
//! metrics told as differences survive a short outage.

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
use crate::trace::Collected;

/// Longest wait of a tick for its telemetry.
pub const FLUSH_TIME_MAX: Duration = Duration::from_millis(500);

/// How often spans and log records are exported while no tick ends: the default of
/// `OTEL_BSP_SCHEDULE_DELAY`.
const SPANS_INTERVAL: Duration = Duration::from_secs(5);
/// Most bytes, and most requests, that wait for a collector; the oldest are dropped.
const WAITING_BYTES_MAX: usize = 4 << 20;
const WAITING_REQUESTS_MAX: usize = 64;

/// Asks the exporting task.
#[derive(Clone, Debug)]
pub(super) struct Exporter {
    ask: mpsc::UnboundedSender<oneshot::Sender<()>>,
    /// Whether somebody has waited in vain for what the task is at.
    is_stuck: Arc<AtomicBool>,
}

impl Exporter {
    /// Starts the task; it ends with the runtime.
    pub(super) fn start(settings: Settings, parts: Parts) -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        let is_stuck = Arc::new(AtomicBool::new(false));
        tokio::spawn(Task::new(settings, parts, Arc::clone(&is_stuck)).run(asked));
        Self { ask, is_stuck }
    }

    /// Exports what there is, and waits for that as long as a tick may.
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

/// What there is to export.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) resource: Resource,
    pub(super) reader: Reader,
    pub(super) collected: Arc<Collected>,
}

struct Task {
    settings: Settings,
    parts: Parts,
    poster: Poster,
    waiting: VecDeque<(Signal, Vec<u8>)>,
    measured_at: Instant,
    /// Whether the last export failed, which is told once.
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

    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
        loop {
            let mut waiting = Vec::new();
            tokio::select! {
                asked = asked.recv() => match asked {
                    Some(asked) => waiting.push(asked),
                    None => return,
                },
                () = sleep(SPANS_INTERVAL.min(self.settings.interval)) => {}
            }
            // One round serves all that wait, and those whose wait is over.
            while let Ok(asked) = asked.try_recv() {
                waiting.push(asked);
            }
            let due = self.measured_at.elapsed() >= self.settings.interval;
            self.collect(due || !waiting.is_empty());
            self.send().await;
            self.is_stuck.store(false, Ordering::Relaxed);
            // Dropping says that it is done, whether anybody waits still or not.
            drop(waiting);
        }
    }

    /// Encodes what there is, metrics where they are due.
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
                "Telemetry was dropped, since the collector takes none or less than there is"
            );
        }
    }

    /// Sends what waits, oldest first; a signal that fails for now is left for the next time.
    async fn send(&mut self) {
        let mut put_off: VecDeque<(Signal, Vec<u8>)> = VecDeque::new();
        let mut failure = None;
        let mut sent = false;
        for (signal, bytes) in std::mem::take(&mut self.waiting) {
            if put_off.iter().any(|(other, _)| *other == signal) {
                put_off.push_back((signal, bytes));
                continue;
            }
            let endpoint = self.settings.endpoints.iter().find(|it| it.signal == signal);
            let Some(endpoint) = endpoint else { continue };
            match self.poster.post(endpoint, &bytes).await {
                Ok(()) => sent = true,
                Err(Refused { reason, is_transient }) => {
                    failure = Some((signal, reason));
                    if is_transient {
                        put_off.push_back((signal, bytes));
                    }
                }
            }
        }
        self.waiting = put_off;
        self.tell(failure, sent);
    }

    /// Tells the first of several failures in a row, and their end.
    fn tell(&mut self, failure: Option<(Signal, String)>, sent: bool) {
        match failure {
            Some((signal, reason)) if !self.failing => {
                self.failing = true;
                let signal = signal.as_str();
                warn!(
                    event = "telemetry_export_failed",
                    signal,
                    error = reason,
                    "Could not export {signal}: {reason}; told once until it works again"
                );
            }
            None if self.failing && sent => {
                self.failing = false;
                info!(event = "telemetry_export_works", "Telemetry is exported again");
            }
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tick_waits_for_its_deadline_at_most_and_not_again_while_nothing_moves() {
        // Nobody answers, as where a collector hangs.
        let (ask, mut asked) = mpsc::unbounded_channel();
        let exporter = Exporter { ask, is_stuck: Arc::default() };
        let began_at = Instant::now();
        exporter.flush().await;
        assert_eq!(began_at.elapsed(), FLUSH_TIME_MAX);
        exporter.flush().await;
        assert_eq!(began_at.elapsed(), FLUSH_TIME_MAX);
        // Both are to be served all the same, once something moves.
        assert!(asked.try_recv().is_ok() && asked.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_goes_on_as_soon_as_its_telemetry_is_out() {
        let (ask, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let exporter = Exporter { ask, is_stuck: Arc::default() };
        let began_at = Instant::now();
        let served = async { drop(asked.recv().await) };
        tokio::join!(exporter.flush(), served);
        assert_eq!(began_at.elapsed(), Duration::ZERO);
        assert!(!exporter.is_stuck.load(Ordering::Relaxed));
    }
}
