//! The kill storm: real processes, real wires, and everything that can happen to them at once.
//!
//! Two processes of the real program run under the stand-in for the Functions host, poll the embedded
//! SQL Server over TLS while an application writes to it, keep their state in Azurite, and post
//! batches to a receiver that writes down each call. Meanwhile, from a seed: processes are killed
//! with SIGKILL before, in and after handler calls, or asked to stop with SIGTERM; storage is frozen
//! for longer than a lease, and restarted; database connections are cut. At the end all faults stop,
//! what is left is drained, and what was seen from outside is judged:
//!
//! - lost: every row's last state must have come in a call that was answered;
//! - order: within a term (generation, fencing token) cursors never go back;
//! - delivered again: only what was in flight when something happened to it, by cause (`judge.rs`);
//! - a second poller copies the table with the handler `sql` and its ledger: the target must equal the
//!   source, and each row state that was written to it must have been written once, by a count that is
//!   kept in the database itself;
//! - the checkpoint and the token in the state document never go back, and no two processes have the
//!   same token;
//! - takeover: printed, and held against a limit that a busy machine can meet. The exact limit is
//!   the simulation's to check.
//!
//! ```text
//! cargo test --test storm -- --nocapture                     # 20 kills
//! STORM_KILLS=200 cargo test --test storm -- --nocapture     # some 15 minutes
//! STORM_SEED=7 cargo test --test storm -- --nocapture        # the same faults again, as far as time allows
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
mod instances;
mod judge;
mod ledger;
mod receiver;
mod report;
mod rng;
mod storage;
mod table;
mod weather;

use std::sync::Arc;
use std::time::Duration;

use highwater::clock::{Clock as _, SystemClock};
use highwater::config::{ProcessVars, Vars as _};
use highwater_devdb::{Database, Options, Server};
use tokio::time::{Instant, sleep};

use crate::instances::{COPY, Instances, NAMES, Settings, TTL};
use crate::judge::{judge, judge_copy, judge_takeovers};
use crate::ledger::Shared;
use crate::receiver::Receiver;
use crate::report::Report;
use crate::rng::Rng;
use crate::storage::Storage;
use crate::table::Writer;
use crate::weather::Weather;

/// Kills, unless `STORM_KILLS` says otherwise.
const KILLS: u64 = 20;
/// Limit on delivering what is left when the faults have stopped.
const DRAIN_MAX: Duration = Duration::from_secs(90);
/// What a lease lives beyond its ttl: two grains of storage's clock, and the margin.
const LAPSE: Duration = Duration::from_secs(4);
/// What a takeover may take longer on a busy machine.
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
        let mut weather = Weather {
            rng: Rng::new(seed, "weather"),
            ledger: ledger.clone(),
            storage: Arc::clone(&storage),
            instances: &instances,
            database: server.faults().clone(),
            brewing: None,
        };
        weather.rage(kills).await;
        let (written, calm_at) = (writer.finish().await, Instant::now());
        drain(&ledger, &database, &storage).await;
        (written, calm_at.elapsed())
    };
    let (written, drained) = tokio::select! {
        done = storm => done,
        () = storage.watch() => unreachable!("it never ends"),
    };
    let said = instances.finish().await;
    conclude(&ledger, &database, &said, |ledger, judgement| {
        let took = began_at.elapsed();
        let copied = &table::copied(&database);
        let report = Report { ledger, judgement, copied, written, drained, took, seed };
        println!("{report}");
    });
}

/// Waits until all is committed and the lease is free; whether all had been delivered is judged later.
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
    said: &[String],
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
            let from = said.len().saturating_sub(60);
            println!("the processes' last lines:\n{}", said[from..].join("\n"));
        }
        assert!(is_good, "lost {:?}, wrong {:#?}", judgement.lost, judgement.violations);
    });
}
