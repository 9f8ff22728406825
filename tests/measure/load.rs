//! The load: many pollers in one process, each with its timer, over slow and failing storage.
//!
//! Each poller reads the same table and keeps its state in a store that responds late and, by seed, loses
//! requests, loses responses or is unreachable. Timers fire whether or not the previous tick has ended. At
//! the end the faults stop, the backlog is drained, and the deliveries are judged.

pub(crate) mod slow_storage;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater::error::chain;
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::poller::{Poller, Skipped, TickOutcome};
use highwater::state::MemoryStore;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep, sleep_until};

use self::slow_storage::SlowStorage;
use crate::bare::connect;
use crate::child::{self, Server};
use crate::job::{Load, Loaded, Role};
use crate::ours::{BATCH_BYTES_MAX, Parts, source, tick};
use crate::report::{Report, count, float};
use crate::system;
use crate::tables::Tables;

const POLLERS: usize = 200;
const INTERVAL: Duration = Duration::from_secs(1);
/// Rows per second; each is delivered to each poller.
const ROWS_PER_SECOND: u64 = 5;
/// How long a handler takes.
const WORK: Duration = Duration::from_millis(10);
/// Limit on draining the backlog after the faults have stopped.
const DRAIN_MAX: Duration = Duration::from_secs(60);
const SEED: u64 = 7;

/// Records its input, and whether it is called concurrently.
#[derive(Debug)]
struct Desk {
    /// How often each row was delivered; preallocated for all rows, so that it does not grow.
    seen: Mutex<Vec<u8>>,
    is_open: AtomicBool,
    overlaps: AtomicU64,
}

impl Desk {
    fn new(rows: u64) -> Self {
        let seen = Mutex::new(vec![0; usize::try_from(rows).unwrap()]);
        Self { seen, is_open: AtomicBool::default(), overlaps: AtomicU64::default() }
    }

    /// Returns how many rows were delivered, and the total number of deliveries.
    fn counted(&self) -> (u64, u64) {
        let seen = self.seen.lock().unwrap();
        let found = seen.iter().filter(|times| **times > 0).count();
        (u64::try_from(found).unwrap(), seen.iter().map(|times| u64::from(*times)).sum())
    }
}

/// Open until dropped: a handler may be stopped half-way.
struct Open<'a>(&'a AtomicBool);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl Handler for Desk {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        if self.is_open.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        let _open = Open(&self.is_open);
        sleep(WORK).await;
        let mut seen = self.seen.lock().unwrap();
        for event in delivery.events {
            let id = usize::try_from(event.cursor.key["id"].as_u64().unwrap()).unwrap();
            let times = &mut seen[id - 1];
            *times = times.saturating_add(1);
        }
        Ok(())
    }
}

/// Counts of tick outcomes.
#[derive(Debug, Default)]
struct Ticks {
    all: AtomicU64,
    met_running: AtomicU64,
    failed: AtomicU64,
    said: Mutex<BTreeMap<String, u64>>,
}

/// One poller, its handler, and the count of all.
#[derive(Clone)]
struct Seat {
    poller: Arc<Poller>,
    desk: Arc<Desk>,
    ticks: Arc<Ticks>,
}

impl Seat {
    async fn tick(self) {
        self.ticks.all.fetch_add(1, Ordering::Relaxed);
        match tick(&self.poller).await.result {
            Ok(TickOutcome::Skipped(Skipped::AlreadyRunning)) => {
                self.ticks.met_running.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(error) => {
                self.ticks.failed.fetch_add(1, Ordering::Relaxed);
                let said = chain(&error).replace(self.poller.name(), "…");
                *self.ticks.said.lock().unwrap().entry(said).or_default() += 1;
            }
        }
    }

    /// Fires the timer, regardless of the previous tick.
    async fn keep_time(self, first: Instant, until: Instant) {
        let mut timer = interval_at(first, INTERVAL);
        let mut running = JoinSet::new();
        while Instant::now() < until {
            timer.tick().await;
            running.spawn(self.clone().tick());
            while running.try_join_next().is_some() {}
        }
        running.join_all().await;
    }
}

/// Runs the load and returns its result.
pub(crate) async fn run(job: &Load) -> Loaded {
    let storage = Arc::new(SlowStorage::over(Arc::new(MemoryStore::default()), job.seed));
    let ticks = Arc::new(Ticks::default());
    let rows = job.seconds * ROWS_PER_SECOND;
    let seats: Vec<Seat> = (0..job.pollers)
        .map(|number| {
            let (name, desk) = (format!("load-{number}"), Arc::new(Desk::new(rows)));
            let source = source(&name, &job.connection, &job.table);
            let (handler, store) = (desk.clone(), storage.clone());
            let (batch, bytes_max) = (100, BATCH_BYTES_MAX);
            let parts = Parts { name, source, handler, store, batch, bytes_max, batches_max: None };
            Seat { poller: Arc::new(parts.poller()), desk, ticks: Arc::clone(&ticks) }
        })
        .collect();
    let (began, cpu) = (Instant::now(), system::cpu_seconds(None));
    let length = Duration::from_secs(job.seconds);
    let mut timers = JoinSet::new();
    for (number, seat) in (1..).zip(&seats) {
        let first = began + INTERVAL * number / u32::try_from(job.pollers).unwrap();
        timers.spawn(seat.clone().keep_time(first, began + length));
    }
    let writing = write(&job.connection, &job.table, rows);
    let ((), rss_kib) = tokio::join!(writing, watch(began, length));
    timers.join_all().await;
    let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), system::cpu_seconds(None) - cpu);
    storage.calm();
    drain(&seats, rows).await;
    let (storage_calls, storage_faults) = storage.counted();
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let mut loaded = Loaded {
        written: rows,
        ticks: read(&ticks.all),
        met_running: read(&ticks.met_running),
        failed: read(&ticks.failed),
        storage_calls,
        storage_faults,
        seconds,
        cpu_seconds,
        rss_kib,
        said: ticks.said.lock().unwrap().clone(),
        ..Loaded::default()
    };
    for seat in &seats {
        let (found, delivered) = seat.desk.counted();
        loaded.delivered += delivered;
        loaded.again += delivered - found;
        loaded.lost += rows - found;
        loaded.overlaps += read(&seat.desk.overlaps);
    }
    loaded
}

/// Inserts this many rows per second throughout.
async fn write(connection: &str, table: &str, rows: u64) {
    let mut writer = connect(connection).await;
    let sql = format!("INSERT INTO {table} (id, item) VALUES (@P1, N'new')");
    let began = Instant::now();
    for number in 1..=rows {
        let id = i32::try_from(number).unwrap();
        sleep_until(began + Duration::from_secs(1) * u32::try_from(id).unwrap() / 5).await;
        writer.execute(sql.as_str(), &[&id]).await.unwrap();
    }
}

/// Samples the memory ten times.
async fn watch(began: Instant, length: Duration) -> Vec<u64> {
    let mut resident = Vec::new();
    for tenth in 1..=10 {
        sleep_until(began + length * tenth / 10).await;
        resident.push(system::resident_kib(None));
    }
    resident
}

/// Ticks until each poller has each row, within a limit.
async fn drain(seats: &[Seat], rows: u64) {
    let end = Instant::now() + DRAIN_MAX;
    for seat in seats {
        let is_done = || seat.desk.counted().0 == rows;
        while !is_done() && Instant::now() < end {
            seat.clone().tick().await;
            sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) async fn measure(seconds: u64, report: &mut Report) -> ExitCode {
    // The load is on the pollers: their table fills as they run.
    let server = Server::start(&Tables { flights: 1, wide: 1, small: 1, big: 1 }).await;
    let job = Load {
        connection: server.connection.clone(),
        table: "dbo.load".to_owned(),
        pollers: POLLERS,
        seconds,
        seed: SEED,
    };
    let cpu = server.cpu_seconds();
    let loaded: Loaded = child::run(&Role::Load(job)).await;
    let server_cpu = server.cpu_seconds() - cpu;
    tell(&loaded, server_cpu, report);
    if loaded.lost == 0 && loaded.overlaps == 0 && loaded.delivered > 0 {
        ExitCode::SUCCESS
    } else {
        report.say("\nThe load has lost rows, or ticks of one poller overlapped.");
        ExitCode::FAILURE
    }
}

fn tell(loaded: &Loaded, server_cpu: f64, report: &mut Report) {
    let mib = |kib: Option<&u64>| format!("{:.1} MiB", float(*kib.unwrap_or(&0)) / 1024.0);
    let percent = |cpu: f64| format!("{:.0} % of one core", cpu / loaded.seconds * 100.0);
    let figures = [
        ("seconds", format!("{:.0}", loaded.seconds)),
        ("rows written", count(float(loaded.written))),
        ("delivered, over all pollers", count(float(loaded.delivered))),
        ("delivered again", count(float(loaded.again))),
        ("lost", count(float(loaded.lost))),
        ("ticks", count(float(loaded.ticks))),
        ("ticks that met one running", count(float(loaded.met_running))),
        ("ticks that overlapped", count(float(loaded.overlaps))),
        ("failed ticks", count(float(loaded.failed))),
        ("storage calls", count(float(loaded.storage_calls))),
        ("storage faults", count(float(loaded.storage_faults))),
        ("CPU", percent(loaded.cpu_seconds)),
        ("CPU of the server", percent(server_cpu)),
        ("memory after a tenth", mib(loaded.rss_kib.first())),
        ("memory at the end", mib(loaded.rss_kib.last())),
    ];
    let rows: Vec<Vec<String>> =
        figures.iter().map(|(name, figure)| vec![(*name).to_owned(), figure.clone()]).collect();
    let title = format!("Load: {POLLERS} pollers, a tick each second");
    report.table(&title, &["", "figure"], &rows);
    report.keep("load", json!(loaded));
}
