//! The gain of `OVERLAP_COMMIT`: the same rows with and without it, over storage and handlers of given
//! latencies.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::policy::Flow;
use highwater::poller::{Poller, TickOutcome};
use highwater::state::MemoryStore;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::child::Server;
use crate::load::slow_storage::SlowStorage;
use crate::options::Options;
use crate::ours::{BATCH_BYTES_MAX, Parts, source, tick};
use crate::report::{Report, Rounds, float};

/// Latency of a storage call, in milliseconds.
const STORAGE_MS: [u64; 3] = [10, 20, 40];
/// Rows of a batch.
const BATCHES: [usize; 4] = [1, 10, 100, 1_000];
/// Latency of a handler call, in milliseconds.
const HANDLER_MS: [u64; 5] = [0, 5, 20, 50, 200];

/// Accepts each batch after a fixed time.
#[derive(Debug)]
struct Steady(Duration);

#[async_trait]
impl Handler for Steady {
    async fn handle(&self, _delivery: Delivery<'_>) -> Result<(), HandlerError> {
        sleep(self.0).await;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    storage_ms: u64,
    batch: usize,
    handler_ms: u64,
    batches: u64,
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let storage: &[u64] = options.size(&STORAGE_MS[..1], &STORAGE_MS, &STORAGE_MS);
    let sizes: &[usize] = options.size(&BATCHES[2..3], &BATCHES, &BATCHES);
    let batches = options.size(3, 20, 100);
    let mut rows = Vec::new();
    for (storage_ms, batch) in storage.iter().flat_map(|ms| sizes.iter().map(move |it| (*ms, *it)))
    {
        let mut row = vec![storage_ms.to_string(), batch.to_string()];
        for handler_ms in HANDLER_MS {
            let case = Case { storage_ms, batch, handler_ms, batches };
            let mut gains = Rounds::new();
            for round in 0..options.rounds() {
                // Each round starts with the other one.
                let is_first = round % 2 == 0;
                let first = rate(server, case, is_first).await;
                let second = rate(server, case, !is_first).await;
                gains.add(if is_first { first / second } else { second / first });
            }
            row.push(format!("{:.2}", gains.median()));
            report.keep(
                "overlap",
                json!({
                    "storage_ms": storage_ms, "batch": batch, "handler_ms": handler_ms,
                    "gains": gains.all(),
                }),
            );
        }
        rows.push(row);
    }
    let handlers = HANDLER_MS.map(|ms| format!("handler {ms} ms"));
    let mut heads = vec!["storage ms", "rows of a batch"];
    heads.extend(handlers.iter().map(String::as_str));
    report.table("Rows per second with OVERLAP_COMMIT, as a multiple of without", &heads, &rows);
}

/// Returns rows per second.
async fn rate(server: &Server, case: Case, overlap_commit: bool) -> f64 {
    let store = SlowStorage::steady(Arc::new(MemoryStore::default()), case.storage_ms);
    let parts = Parts {
        name: "overlap".to_owned(),
        source: source("overlap", &server.connection, "dbo.flights"),
        handler: Arc::new(Steady(Duration::from_millis(case.handler_ms))),
        store: Arc::new(store),
        batch: case.batch,
        bytes_max: BATCH_BYTES_MAX,
        batches_max: Some(case.batches),
    };
    let poller = parts.poller().with_flow(Flow { overlap_commit, ..Flow::default() });
    poller.admin().init().await.unwrap();
    // The first tick connects and plans.
    drain(&poller).await;
    let began = Instant::now();
    let rows = drain(&poller).await;
    float(rows) / began.elapsed().as_secs_f64()
}

async fn drain(poller: &Poller) -> u64 {
    let report = tick(poller).await;
    assert!(matches!(report.result, Ok(TickOutcome::Committed { .. })), "{report:?}");
    report.rows
}
