//! From the commit of a row to the handler that gets it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::state::MemoryStore;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep_until};

use crate::bare::connect;
use crate::child::{self, Server};
use crate::job::{Role, Wait};
use crate::options::Options;
use crate::ours::{Parts, source, tick};
use crate::report::{Report, Rounds, float};

/// Longest wait for a row.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// What half of the interval may be exceeded by.
const OVER_MS: f64 = 10.0;

/// Tells when the last row came.
#[derive(Debug)]
struct Noting(watch::Sender<Option<(i64, Instant)>>);

#[async_trait]
impl Handler for Noting {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let at = Instant::now();
        let id = |event: &highwater::event::ChangeEvent| event.cursor.key["id"].as_i64();
        self.0.send_replace(delivery.events.last().and_then(id).map(|id| (id, at)));
        Ok(())
    }
}

/// Ticks at an interval, inserts rows at times spread over it, and returns how many milliseconds each
/// took to the handler.
pub(crate) async fn wait(job: &Wait) -> Vec<f64> {
    let interval = Duration::from_millis(job.interval_ms);
    let (sender, mut came) = watch::channel(None);
    let poller = Parts {
        name: "latency".to_owned(),
        source: source("latency", &job.connection, &job.table),
        handler: Arc::new(Noting(sender)),
        store: Arc::new(MemoryStore::default()),
        batch: 1_000,
        batches_max: None,
    }
    .poller();
    tick(&poller).await;
    let began = Instant::now();
    let timer = tokio::spawn(async move {
        let mut timer = interval_at(began + interval, interval);
        loop {
            timer.tick().await;
            let report = tick(&poller).await;
            assert!(report.result.is_ok(), "{report:?}");
        }
    });
    let mut writer = connect(&job.connection).await;
    let mut latencies = Vec::new();
    for number in 0..job.rows {
        let id = i32::try_from(number).unwrap() + 1;
        sleep_until(moment(began, interval, number, job.rows)).await;
        let sql = format!("INSERT INTO {} (id, item) VALUES (@P1, N'new')", job.table);
        writer.execute(sql, &[&id]).await.unwrap();
        let committed = Instant::now();
        let is_it = |last: &Option<(i64, Instant)>| last.is_some_and(|(it, _)| it == i64::from(id));
        let seen = tokio::time::timeout(WAIT_MAX, came.wait_for(is_it)).await;
        let (_, at) = seen.expect("the row comes").unwrap().unwrap();
        // A tick may read the row before the writer has its answer.
        latencies.push(at.saturating_duration_since(committed).as_secs_f64() * 1e3);
    }
    timer.abort();
    latencies
}

/// Returns when to write a row: in the interval after the next tick, all parts of it as often.
fn moment(began: Instant, interval: Duration, number: u64, rows: u64) -> Instant {
    let passed = began.elapsed().as_secs_f64() / interval.as_secs_f64();
    // Seven has no divisor in common with the numbers of rows that are used.
    let part = (float(number * 7 % rows) + 0.5) / float(rows);
    began + interval.mul_f64(passed.floor() + 1.0 + part)
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let interval_ms = options.size(100, 1_000, 1_000);
    let job = Wait {
        connection: server.connection.clone(),
        table: "dbo.late".to_owned(),
        interval_ms,
        rows: options.size(4, 40, 100),
    };
    let told: Vec<f64> = child::run(&Role::Latency(job)).await;
    let mut latencies = Rounds::new();
    told.iter().for_each(|latency| latencies.add(*latency));
    let heads = ["commit to handler, ms", "p50", "p90", "p99", "longest"];
    let mut row = vec![format!("timer of {interval_ms} ms")];
    row.extend([50, 90, 99, 100].map(|percent| format!("{:.0}", latencies.at(percent))));
    report.table("Latency of single rows", &heads, &[row]);
    report.keep("latency", json!({ "interval_ms": interval_ms, "ms": latencies.all() }));
    let limit = float(interval_ms) / 2.0 + OVER_MS;
    let shown = format!("{:.0} ms", latencies.median());
    let wanted = format!("≤ {limit:.0} ms (interval / 2 + 10)");
    report.target("commit to handler, p50", &wanted, &shown, latencies.median() <= limit);
}
