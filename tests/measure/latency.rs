//! From the commit of a row to the handler that receives it: the whole application, as configured by its
//! settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Json as Body, State};
use axum::{Router, routing::post};
use highwater::builder::App;
use highwater::poller::Poller;
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use crate::bare::{Client, connect};
use crate::child::{self, Server};
use crate::job::{Role, Wait};
use crate::options::Options;
use crate::ours::tick;
use crate::report::{Report, Rounds, float};

/// Longest wait for a row.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Tolerance above half the interval.
const OVER_MS: f64 = 10.0;
/// Latency of a tick that follows its source, for 99 % of the rows.
const FOLLOWED_MAX_MS: f64 = 250.0;
/// Timer and length of ticks that follow.
const FOLLOWED: Duration = Duration::from_secs(10);

/// Key and time of the last received row.
type Seen = watch::Sender<(i64, Option<Instant>)>;

/// Ticks at an interval, inserts rows at times spread over it, and returns how many milliseconds each took to
/// reach the handler; `None` if this version cannot follow.
pub(crate) async fn wait(job: &Wait) -> Option<Vec<f64>> {
    let (seen, mut came) = watch::channel((0, None));
    let folder = tempfile::tempdir().unwrap();
    let poller = application(job, &receive(seen).await, &folder)?;
    let timer = if job.follows { FOLLOWED } else { Duration::from_millis(job.spread_ms) };
    let began = Instant::now();
    let ticking = tokio::spawn(async move {
        let mut timer = interval_at(began, timer);
        loop {
            timer.tick().await;
            let report = tick(&poller).await;
            assert!(report.result.is_ok(), "{report:?}");
        }
    });
    let mut writer = connect(&job.connection).await;
    let mut latencies = Vec::new();
    for number in 0..=job.rows {
        let id = i32::try_from(job.first_id + number).unwrap();
        sleep_until(moment(job, began, number)).await;
        let committed = insert(&mut writer, &job.table, id).await;
        let waited = timeout(WAIT_MAX, came.wait_for(|(last, _)| *last == i64::from(id))).await;
        let (_, at) = *waited.expect("the row comes").unwrap();
        // The first one waits until everything is connected.
        if number > 0 {
            // A tick may read the row before the writer has its response.
            let took = at.unwrap().saturating_duration_since(committed);
            latencies.push(took.as_secs_f64() * 1e3);
        }
    }
    ticking.abort();
    Some(latencies)
}

fn application(job: &Wait, url: &str, folder: &TempDir) -> Option<Arc<Poller>> {
    std::fs::create_dir_all(folder.path().join("state")).ok()?;
    let mut settings = vec![
        ("SqlConnection", job.connection.as_str()),
        ("HIGHWATER__STATE__STORE", "file"),
        ("HIGHWATER__STATE__FOLDER", folder.path().to_str().unwrap()),
        ("HIGHWATER__POLLERS__LATE__SOURCE__CONNECTION", "SqlConnection"),
        ("HIGHWATER__POLLERS__LATE__SOURCE__TABLE", &job.table),
        ("HIGHWATER__POLLERS__LATE__SOURCE__CURSOR", "version"),
        ("HIGHWATER__POLLERS__LATE__SOURCE__KEY", "id"),
        ("HIGHWATER__POLLERS__LATE__HANDLER__KIND", "http"),
        ("HIGHWATER__POLLERS__LATE__HANDLER__URL", url),
    ];
    if job.follows {
        settings.push(("HIGHWATER__POLLERS__LATE__FOLLOW_FOR", "10s"));
        settings.push(("HIGHWATER__POLLERS__LATE__FOLLOW_INTERVAL", "100ms"));
    }
    let vars: BTreeMap<String, String> =
        settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    match App::build(&vars) {
        Ok(app) => Some(Arc::clone(&app.pollers["late"])),
        Err(error) if job.follows && error.to_string().contains("FOLLOW_FOR") => None,
        Err(error) => panic!("{error}"),
    }
}

/// Starts a receiver that records the key of each last row, and returns its URL.
async fn receive(seen: Seen) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let note = async |State(seen): State<Arc<Seen>>, Body(batch): Body<Json>| {
        let at = Instant::now();
        let last = batch["events"].as_array().and_then(|events| events.last());
        seen.send_replace((last.unwrap()["pk"]["id"].as_i64().unwrap(), Some(at)));
    };
    let router = Router::new().route("/", post(note)).with_state(Arc::new(seen));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

async fn insert(writer: &mut Client, table: &str, id: i32) -> Instant {
    let sql = format!("INSERT INTO {table} (id, item) VALUES (@P1, N'new')");
    writer.execute(sql, &[&id]).await.unwrap();
    Instant::now()
}

/// Returns when to write a row: after the next start of the interval, equally distributed over it.
fn moment(job: &Wait, began: Instant, number: u64) -> Instant {
    let interval = Duration::from_millis(job.spread_ms);
    let passed = began.elapsed().as_secs_f64() / interval.as_secs_f64();
    // Seven is coprime to the row counts that are used.
    let part = (float(number * 7 % job.rows) + 0.5) / float(job.rows);
    began + interval.mul_f64(passed.floor() + 1.0 + part)
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let job = |spread_ms, rows, first_id, follows| Wait {
        connection: server.connection.clone(),
        table: "dbo.late".to_owned(),
        spread_ms,
        rows,
        first_id,
        follows,
    };
    let interval_ms = options.size(100, 1_000, 1_000);
    let timed = job(interval_ms, options.size(4, 40, 100), 1, false);
    let followed = job(250, options.size(4, 100, 100), 1_000, true);
    let limit = float(interval_ms) / 2.0 + OVER_MS;
    let mut rows = Vec::new();
    for job in [timed, followed] {
        let name = if job.follows {
            "ticks that follow, a look each 100 ms".to_owned()
        } else {
            format!("timer of {interval_ms} ms")
        };
        let measured: Option<Vec<f64>> = child::run(&Role::Latency(job.clone())).await;
        let Some(measured) = measured else {
            report.say(&format!("\nSkipped: {name}, not supported by this version."));
            continue;
        };
        let mut latencies = Rounds::new();
        for latency in measured {
            latencies.add(latency);
        }
        report.keep("latency", json!({ "case": name, "ms": latencies.all() }));
        let (what, percent, limit) = if job.follows {
            ("commit to handler in ticks that follow, p99", 99, FOLLOWED_MAX_MS)
        } else {
            ("commit to handler, p50 (interval / 2 + 10 ms)", 50, limit)
        };
        let came = latencies.at(percent);
        report.target(what, &format!("≤ {limit:.0} ms"), &format!("{came:.0} ms"), came <= limit);
        let mut row = vec![name];
        row.extend([50, 90, 99, 100].map(|percent| format!("{:.0}", latencies.at(percent))));
        rows.push(row);
    }
    let heads = ["commit to handler, ms", "p50", "p90", "p99", "longest"];
    report.table("Latency of single rows", &heads, &rows);
}
