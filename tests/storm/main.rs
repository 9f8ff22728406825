//! The kill storm: real processes, real wires, and every kind of fault at once.
//!
//! Two processes of the real program run under a fake Functions host, poll the embedded SQL Server over TLS
//! while an application writes to it, keep their state in Azurite, and post batches to a receiver that
//! records each call. Meanwhile faults are injected by seed: processes are killed with SIGKILL before, in and
//! after handler calls, or asked to stop with SIGTERM; storage is frozen for longer than a lease, and
//! restarted; database connections are cut. At the end all faults stop, the backlog is drained, and the
//! events observed from outside are judged:
//!
//! - lost: every row's last state must have been delivered in a call that was answered;
//! - order: within a term (generation, fencing token) cursors never go back;
//! - redelivered: only rows that were in flight at a fault, by cause (`judge.rs`);
//! - a second poller copies the table with the handler `sql` and its ledger: the target must equal the source, and
//!   each row state must have been written to it once, by a count that is kept in the database itself;
//! - the checkpoint and the token in the state document never go back, and no two processes have the same token;
//! - takeover: printed, and checked against a limit that a busy machine can meet. The simulation checks the exact
//!   limit.
//!
//! ```text
//! cargo test --test storm -- --nocapture                     # 20 kills
//! STORM_KILLS=200 cargo test --test storm -- --nocapture     # some 15 minutes
//! STORM_SEED=7 cargo test --test storm -- --nocapture        # the same faults again, as far as timing allows
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test ends where its expectation does, and says what it saw"
)]

#[path = "../azurite/emulator/process.rs"]
mod azurite;
mod faults;
mod instances;
mod judge;
mod ledger;
mod receiver;
mod report;
mod rng;
mod storage;
mod table;

use std::sync::Arc;
use std::time::Duration;

use highwater::clock::{Clock as _, SystemClock};
use highwater::config::{ProcessVars, Vars as _};
use highwater_devdb::{Database, Options, Server};
use tokio::time::{Instant, sleep};

use crate::faults::FaultInjector;
use crate::instances::{COPY, Instances, NAMES, Settings, TTL};
use crate::judge::{judge, judge_copy, judge_takeovers};
use crate::ledger::Shared;
use crate::receiver::Receiver;
use crate::report::Report;
use crate::rng::Rng;
use crate::storage::Storage;
use crate::table::Writer;

/// Kills, unless `STORM_KILLS` is set.
const KILLS: u64 = 20;
/// Limit on draining the backlog after the faults have stopped.
const DRAIN_MAX: Duration = Duration::from_secs(90);
/// How long a lease lives beyond its TTL: two grains of storage's clock, and the margin.
const LAPSE: Duration = Duration::from_secs(4);
/// Additional time allowed for a takeover on a busy machine.
const ALLOWANCE: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_in_a_storm_of_kills() {
    let number = |name: &str| ProcessVars.get(name).map(|text| text.trim().parse::<u64>().unwrap());
    let kills = number("STORM_KILLS").unwrap_or(KILLS);
    let now = u64::try_from(SystemClock.now().unix_timestamp()).unwrap();
    let seed = number("STORM_SEED").unwrap_or(now);
    println!("seed {seed}");
    let began_at = Instant::now();
    let ledger = Shared::default();
    let storage = Arc::new(Storage::start(ledger.clone()).await);
    let database = table::create();
    let server = Server::start(database.clone(), Options::default()).await.unwrap();
    let receiver = Receiver::start(ledger.clone(), Rng::new(seed, "receiver")).await;
    let settings = Settings {
        storage: storage.connection.clone(),
        sql: server.connection_string(),
        urls: std::array::from_fn::<_, { NAMES.len() }, _>(|worker| receiver.url(worker)),
    };
    let instances = Instances::start(&settings, ledger.clone(), seed).await;
    let storm = async {
        let writer = Writer::start(&database, Rng::new(seed, "writer"));
        let mut injector = FaultInjector {
            rng: Rng::new(seed, "weather"),
            ledger: ledger.clone(),
            storage: Arc::clone(&storage),
            instances: &instances,
            database: server.faults().clone(),
            active_fault: None,
        };
        injector.inject(kills).await;
        let (written, calm_at) = (writer.finish().await, Instant::now());
        drain(&ledger, &database, &storage).await;
        (written, calm_at.elapsed())
    };
    let (written, drained) = tokio::select! {
        done = storm => done,
        () = storage.watch() => unreachable!("it never ends"),
    };
    let log_lines = instances.finish().await;
    conclude(&ledger, &database, &log_lines, |ledger, judgement| {
        let took = began_at.elapsed();
        let copied = &table::copied(&database);
        let report = Report { ledger, judgement, copied, written, drained, took, seed };
        println!("{report}");
    });
}

/// Waits until everything is committed and the lease is free; whether everything was delivered is judged
/// later.
async fn drain(ledger: &Shared, database: &Database, storage: &Storage) {
    let end = Instant::now() + DRAIN_MAX;
    let newest = table::states(database).iter().map(|row| row.version).max().unwrap_or(0);
    while Instant::now() < end {
        let is_done = |sample: ledger::Sample| sample.checkpoint == newest && !sample.is_held;
        let (posted, copied) = tokio::join!(storage.read(), storage.read_of(COPY));
        if posted.is_some_and(is_done) && copied.is_some_and(is_done) {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    ledger.write(|l| l.violations.push(format!("not all was done within {DRAIN_MAX:?}")));
}

fn conclude(
    ledger: &Shared,
    database: &Database,
    log_lines: &[String],
    print: impl FnOnce(&ledger::Ledger, &judge::Judgement),
) {
    let states = table::states(database);
    ledger.read(|ledger| {
        let mut judgement = judge(ledger, &states);
        judgement.violations.extend(judge_copy(&table::copied(database)));
        let after_kill = judge_takeovers("a kill", &judgement.after_kill, TTL + LAPSE + ALLOWANCE);
        let after_stop = judge_takeovers("SIGTERM", &judgement.after_terminate, ALLOWANCE);
        judgement.violations.extend(after_kill.into_iter().chain(after_stop));
        print(ledger, &judgement);
        let is_good = judgement.lost.is_empty() && judgement.violations.is_empty();
        if !is_good {
            let from = log_lines.len().saturating_sub(60);
            println!("the processes' last lines:\n{}", log_lines[from..].join("\n"));
        }
        assert!(is_good, "lost {:?}, wrong {:#?}", judgement.lost, judgement.violations);
    });
}
