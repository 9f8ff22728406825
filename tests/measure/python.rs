//! The Python package compared with the poller, both with their state on the same Azurite.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use crate::child::{self, Server};
use crate::job::{Blobs, Drain, Role, Took};
use crate::limits::BATCHES;
use crate::options::Options;
use crate::report::{Report, Rounds, count, float};
use crate::storage::{Calls, Storage};
use crate::tables::COLUMNS;

/// The wanted ratio of the poller's rate to the package's, at batches of 100; and of the package's storage
/// calls to the poller's.
const WANTED: f64 = 20.0;
/// Idle ticks that the script counts together; each waits until the lease can be acquired again.
const IDLE_TICKS: u32 = 3;

/// The results of one batch size.
#[derive(Default)]
struct Pair {
    ours: Rounds,
    theirs: Rounds,
    ours_cpu: Rounds,
    theirs_cpu: Rounds,
    ours_calls: Calls,
    theirs_calls: Calls,
    batches: u64,
    /// Calls of one tick of the package with its defaults: one batch.
    tick_calls: u64,
    idle_calls: f64,
    idle_cpu: Rounds,
    peak_kib: f64,
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let Some(python) = python() else {
        return report
            .say("\nSkipped: the Python package needs `python3` with `venv` and pip's index.");
    };
    let storage = Storage::start();
    let rows = options.size(1_000, 20_000, 20_000);
    let folder = tempfile::tempdir().unwrap();
    let flights = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/cli/demo/flights.csv.gz");
    let batches: &[usize] = options.size(&BATCHES[..1], &BATCHES, &BATCHES);
    let mut pairs = Vec::new();
    for &batch in batches {
        let mut pair = Pair::default();
        let path = folder.path().join(format!("flights-{batch}.sqlite"));
        // Two batches are read before the clock starts.
        let all = rows + 2 * u64::try_from(batch).unwrap();
        let job = json!({
            "make": true, "path": path, "flights": flights, "columns": COLUMNS, "rows": all,
        });
        Script::start(&python, &job).line().await;
        for round in 0..=options.rounds() {
            let name = format!("python-{batch}-{round}");
            let theirs = storage.container(&name).await;
            let ours = storage.container(&format!("ours-{batch}-{round}")).await;
            // Alternately.
            if round % 2 == 0 {
                run_theirs(&mut pair, round, &python, &storage, (&path, theirs, batch)).await;
                run_ours(&mut pair, round, server, &storage, (ours, batch)).await;
            } else {
                run_ours(&mut pair, round, server, &storage, (ours, batch)).await;
                run_theirs(&mut pair, round, &python, &storage, (&path, theirs, batch)).await;
            }
        }
        pairs.push((batch, pair));
    }
    tell(&pairs, rows, report);
}

/// The script of the package, which waits after each line.
struct Script {
    _child: tokio::process::Child,
    stdin: tokio::process::ChildStdin,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Script {
    fn start(python: &Path, job: &Json) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/measure/python.py");
        let mut command = Command::new(python);
        command.arg(script).arg(job.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, stdin, lines }
    }

    async fn line(&mut self) -> Json {
        let line = self.lines.next_line().await.unwrap();
        serde_json::from_str(&line.expect("the script's error is above")).unwrap()
    }

    async fn go_on(&mut self) {
        self.stdin.write_all(b"\n").await.unwrap();
    }
}

async fn run_theirs(
    pair: &mut Pair,
    round: usize,
    python: &Path,
    storage: &Storage,
    (path, blobs, batch): (&Path, Blobs, usize),
) {
    let job = json!({
        "make": false, "path": path, "batch": batch, "connection": blobs.connection,
        "container": blobs.container, "idle_ticks": IDLE_TICKS,
    });
    let mut script = Script::start(python, &job);
    let mut reports = Vec::new();
    for step in 0..4 {
        if step > 0 {
            script.go_on().await;
        }
        let line = script.line().await;
        reports.push((line, storage.take_calls().await));
    }
    script.go_on().await;
    if round == 0 {
        return;
    }
    let of = |at: usize, name: &str| reports[at].0[name].as_f64().unwrap();
    let rows = of(2, "rows");
    pair.theirs.add(rows / of(2, "seconds"));
    pair.theirs_cpu.add(of(2, "cpu_seconds") * 1e6 / rows);
    pair.theirs_calls = reports[2].1;
    pair.tick_calls = reports[1].1.all();
    pair.idle_calls = float(reports[3].1.all()) / f64::from(IDLE_TICKS);
    pair.idle_cpu.add(of(3, "cpu_seconds") * 1e3);
    pair.peak_kib = of(3, "peak_kib");
}

/// The first tick creates the document, as in the script; the rest is timed.
async fn run_ours(
    pair: &mut Pair,
    round: usize,
    server: &Server,
    storage: &Storage,
    (blobs, batch): (Blobs, usize),
) {
    let job = |is_known, batches_max| {
        let blobs = Some(blobs.clone());
        Drain {
            blobs,
            is_known,
            batches_max,
            ..Drain::of(&server.connection, "dbo.flights", batch)
        }
    };
    let _first: Took = child::run(&Role::Ours(job(false, Some(1)))).await;
    storage.take_calls().await;
    let took: Took = child::run(&Role::Ours(job(true, None))).await;
    let calls = storage.take_calls().await;
    if round == 0 {
        return;
    }
    let rows = float(took.rows);
    pair.ours.add(rows / took.seconds);
    pair.ours_cpu.add(took.cpu_seconds * 1e6 / rows);
    (pair.ours_calls, pair.batches) = (calls, took.batches);
}

fn tell(pairs: &[(usize, Pair)], rows: u64, report: &mut Report) {
    let title = format!("The Python package: {} flights, state on Azurite", count(float(rows)));
    let heads = [
        "batch",
        "python rows/s",
        "±",
        "highwater rows/s",
        "±",
        "ratio",
        "CPU µs/row",
        "",
        "calls/batch",
        "",
    ];
    let mut shown = Vec::new();
    for (batch, pair) in pairs {
        let ratio = pair.ours.median() / pair.theirs.median();
        let ours_calls = float(pair.ours_calls.all()) / float(pair.batches);
        let their_batches = rows.div_ceil(u64::try_from(*batch).unwrap());
        let theirs_calls = float(pair.theirs_calls.all()) / float(their_batches);
        shown.push(vec![
            count(float(u64::try_from(*batch).unwrap())),
            count(pair.theirs.median()),
            format!("{:.0} %", pair.theirs.spread()),
            count(pair.ours.median()),
            format!("{:.0} %", pair.ours.spread()),
            format!("{ratio:.1}"),
            format!("{:.0}", pair.theirs_cpu.median()),
            format!("{:.1}", pair.ours_cpu.median()),
            format!("{theirs_calls:.2}"),
            format!("{ours_calls:.2}"),
        ]);
        report.keep("python", figures(*batch, pair));
        if *batch == BATCHES[0] {
            let (wanted, came) = (format!("≥ {WANTED:.0} ×"), format!("{ratio:.1} ×"));
            report.target(
                "rate relative to python, batches of 100",
                &wanted,
                &came,
                ratio >= WANTED,
            );
            let ratio = theirs_calls / ours_calls;
            let came = format!("{ratio:.1} ×");
            let what = "storage calls relative to python, batches of 100";
            report.target(what, &wanted, &came, ratio >= WANTED);
        }
        let budget = Calls { reads: 1, writes: pair.batches + 1 };
        let calls = pair.ours_calls;
        let is_met = calls.reads <= budget.reads && calls.writes == budget.writes;
        let what = format!("storage calls of a tick of {} batches", pair.batches);
        let wanted = format!("≤ 1 read, {} writes", budget.writes);
        let came = format!("{} reads, {} writes", calls.reads, calls.writes);
        report.target(&what, &wanted, &came, is_met);
    }
    report.table(&title, &heads, &shown);
    by_default(pairs, rows, report);
    let (_, pair) = &pairs[0];
    report.say(&format!(
        "\nThe columns without a name compare highwater with python. Python's tick of one batch: {} \
         storage calls; idle: {:.1} calls and {:.1} ms of CPU; process {:.0} MiB. Its table is an SQLite \
         file in its own process, highwater's is read over TLS from another one.",
        pair.tick_calls,
        pair.idle_calls,
        pair.idle_cpu.median(),
        pair.peak_kib / 1024.0,
    ));
}

/// Compares storage calls for the whole table with the defaults of each: the package reads one batch of 100
/// per tick, the poller reads batches of 1,000 until there are no more.
fn by_default(pairs: &[(usize, Pair)], rows: u64, report: &mut Report) {
    let of = |wanted: usize| pairs.iter().find(|(batch, _)| *batch == wanted);
    let (Some((_, theirs)), Some((_, ours))) = (of(100), of(1_000)) else { return };
    let ticks = rows.div_ceil(100);
    let ours_calls = float(rows.div_ceil(1_000)) + 1.0 + float(ours.ours_calls.reads);
    let theirs_calls = float(ticks * theirs.tick_calls);
    let ratio = theirs_calls / ours_calls;
    let what = format!("storage calls of {} rows with each one's defaults", count(float(rows)));
    let came = format!("{} compared with {}: {ratio:.0} ×", count(theirs_calls), count(ours_calls));
    report.target(&what, &format!("≥ {WANTED:.0} ×"), &came, ratio >= WANTED);
}

fn figures(batch: usize, pair: &Pair) -> Json {
    let calls = |calls: Calls| json!({ "reads": calls.reads, "writes": calls.writes });
    json!({
        "batch": batch, "python_rows_per_second": pair.theirs.all(),
        "rows_per_second": pair.ours.all(), "python_cpu_us_per_row": pair.theirs_cpu.all(),
        "cpu_us_per_row": pair.ours_cpu.all(), "python_calls": calls(pair.theirs_calls),
        "calls": calls(pair.ours_calls), "batches": pair.batches,
        "python_calls_of_a_tick": pair.tick_calls, "python_calls_of_an_idle_tick": pair.idle_calls,
        "python_idle_cpu_ms": pair.idle_cpu.all(), "python_peak_kib": pair.peak_kib,
    })
}

/// Returns a Python with the packages of `requirements.txt`; `None` if they cannot be installed.
fn python() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("measure-python");
    let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/measure/requirements.txt");
    let wanted = fs::read(requirements).unwrap();
    // Written last, so a broken installation has none.
    let installed = folder.join("installed.txt");
    if fs::read(&installed).ok().as_ref() != Some(&wanted) {
        let run = |program: &Path, arguments: &[&str]| {
            let status = std::process::Command::new(program).args(arguments).status();
            status.is_ok_and(|status| status.success())
        };
        let made = run("python3".as_ref(), &["-m", "venv", folder.to_str()?]);
        let pip = folder.join("bin/pip");
        if !made || !run(&pip, &["install", "--quiet", "--requirement", requirements]) {
            return None;
        }
        fs::write(&installed, wanted).unwrap();
    }
    Some(folder.join("bin/python"))
}
