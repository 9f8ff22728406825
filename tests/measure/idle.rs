//! Idle ticks: their cost, and that it is constant.

use std::sync::Arc;

use serde_json::json;
use tokio::time::Instant;

use crate::child::{self, Server};
use crate::job::{Idle, Role, Took};
use crate::options::Options;
use crate::ours::{BATCH_BYTES_MAX, Ignoring, Parts, source, store, tick};
use crate::report::{Report, Rounds, float};
use crate::storage::Storage;
use crate::system;

/// CPU of an idle tick.
const CPU_MAX_US: f64 = 1000.0;
/// The tolerance within which costs are equal.
const SAME: f64 = 1.25;
/// Pollers of one process.
const MANY: usize = 200;

/// Ticks idle pollers.
pub(crate) async fn tick_all(job: &Idle) -> Took {
    let store = store(job.blobs.as_ref());
    let pollers: Vec<_> = (0..job.pollers)
        .map(|number| {
            let name = format!("idle-{number}");
            let source = source(&name, &job.connection, &job.table);
            let (handler, store) = (Arc::new(Ignoring::default()), Arc::clone(&store));
            let (batch, bytes_max) = (1_000, BATCH_BYTES_MAX);
            let parts = Parts { name, source, handler, store, batch, bytes_max, batches_max: None };
            parts.poller().starting_now()
        })
        .collect();
    for poller in &pollers {
        poller.admin().init().await.unwrap();
        let report = tick(poller).await;
        assert!(report.result.is_ok() && report.rows == 0, "{report:?}");
    }
    let (began, cpu) = (Instant::now(), system::cpu_seconds(None));
    for _ in 0..job.ticks {
        for poller in &pollers {
            let report = tick(poller).await;
            assert!(report.result.is_ok() && report.rows == 0, "{report:?}");
        }
    }
    Took {
        batches: job.ticks * u64::try_from(job.pollers).unwrap(),
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: system::cpu_seconds(None) - cpu,
        peak_kib: system::resident_kib(None),
        ..Took::default()
    }
}

/// One way to be idle.
struct Case {
    name: String,
    job: Idle,
    wall: Rounds,
    cpu: Rounds,
    server_cpu: Rounds,
    kib: Rounds,
    requests: f64,
    calls: f64,
}

impl Case {
    fn new(name: String, job: Idle) -> Self {
        let [wall, cpu, server_cpu, kib] = [const { Rounds::new() }; 4];
        Self { name, job, wall, cpu, server_cpu, kib, requests: 0.0, calls: 0.0 }
    }

    /// The cost of starting, at the database and in storage, is subtracted by a run without ticks.
    async fn run(&mut self, round: usize, server: &Server, storage: &Storage) {
        let mut sums = Vec::new();
        let mut took = Took::default();
        for ticks in [0, self.job.ticks] {
            let container = format!("idle-{}-{round}-{ticks}", self.job.table.replace("dbo.", ""));
            let container = format!("{container}-{}", self.job.pollers);
            let blobs = Some(storage.container(&container).await);
            let job = Idle { ticks, blobs, ..self.job.clone() };
            let (requests, cpu) = (server.requests().await, server.cpu_seconds());
            took = child::run(&Role::Idle(job)).await;
            let calls = storage.take_calls().await.all();
            let requests = server.requests().await - requests;
            sums.push((requests, server.cpu_seconds() - cpu, calls));
        }
        if round == 0 {
            return;
        }
        let ticks = float(took.batches);
        self.wall.add(took.seconds * 1e6 / ticks);
        self.cpu.add(took.cpu_seconds * 1e6 / ticks);
        self.server_cpu.add((sums[1].1 - sums[0].1).max(0.0) * 1e6 / ticks);
        self.kib.add(float(took.peak_kib));
        self.requests = (float(sums[1].0) - float(sums[0].0)) / ticks;
        self.calls = (float(sums[1].2) - float(sums[0].2)) / ticks;
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            format!("{:.0}", self.wall.median()),
            format!("{:.0}", self.cpu.median()),
            format!("{:.0} %", self.cpu.spread()),
            format!("{:.0}", self.server_cpu.median()),
            format!("{:.2}", self.requests),
            format!("{:.2}", self.calls),
            format!("{:.1}", self.kib.median() / 1024.0),
        ]
    }
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let storage = Storage::start();
    let tables = options.tables();
    let ticks = options.size(20, 4_000, 10_000);
    let job = |table: &str, pollers, ticks| Idle {
        connection: server.connection.clone(),
        table: table.to_owned(),
        pollers,
        ticks,
        blobs: None,
    };
    let many = ticks / u64::try_from(MANY).unwrap() + 1;
    let case = |rows: u64, table: &str, pollers, ticks| {
        let rows = crate::report::count(float(rows));
        let name = format!("{rows} rows, pollers: {pollers}");
        Case::new(name, job(table, pollers, ticks))
    };
    let mut cases = [
        case(tables.small, "dbo.small", 1, ticks),
        case(tables.big, "dbo.big", 1, ticks),
        case(tables.small, "dbo.small", MANY, many),
    ];
    for round in 0..=options.rounds() {
        for turn in 0..cases.len() {
            let at = (turn + round) % cases.len();
            cases[at].run(round, server, &storage).await;
        }
    }
    let heads = [
        "idle ticks",
        "µs",
        "CPU µs",
        "±",
        "server CPU µs",
        "SQL requests",
        "storage calls",
        "process MiB",
    ];
    let rows: Vec<Vec<String>> = cases.iter().map(Case::row).collect();
    report.table("Idle ticks", &heads, &rows);
    for case in &cases {
        report.keep(
            "idle",
            json!({
                "case": case.name, "wall_us": case.wall.all(), "cpu_us": case.cpu.all(),
                "server_cpu_us": case.server_cpu.all(), "requests": case.requests,
                "storage_calls": case.calls, "resident_kib": case.kib.all(),
            }),
        );
    }
    judge(&cases, report);
}

fn judge([small, big, many]: &[Case; 3], report: &mut Report) {
    let requests = small.requests.max(big.requests).max(many.requests);
    let is_one = (requests - 1.0).abs() < 0.001;
    report.target("idle tick: SQL requests", "1", &format!("{requests:.2}"), is_one);
    let calls = small.calls.max(big.calls).max(many.calls);
    report.target("idle tick: storage calls", "0", &format!("{calls:.2}"), calls < 0.001);
    let cpu = small.cpu.median();
    let shown = format!("{cpu:.0} µs");
    report.target("idle tick: CPU", "≤ 1 ms", &shown, cpu <= CPU_MAX_US);
    for (what, other) in [("rows in the table", big), ("pollers in the process", many)] {
        let ratio = other.cpu.median() / cpu;
        let what = format!("idle tick: CPU with more {what} ({})", other.name);
        let wanted = format!("≤ {SAME} × that of {}", small.name);
        report.target(&what, &wanted, &format!("{ratio:.2} ×"), ratio <= SAME);
    }
    let ratio = big.server_cpu.median() / small.server_cpu.median().max(1.0);
    let wanted = format!("≤ {SAME} × that of {}", small.name);
    let shown = format!("{ratio:.2} ×");
    report.target("idle tick: CPU of the server, more rows", &wanted, &shown, ratio <= SAME);
    let each = (many.kib.median() - small.kib.median()) / float(u64::try_from(MANY - 1).unwrap());
    report.say(&format!(
        "\nEach additional poller takes {each:.0} KiB, including its TLS connection."
    ));
}
