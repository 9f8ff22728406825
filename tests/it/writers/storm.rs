//! The writer storm: overlapping transactions and rollbacks, ties, pages that end between them.
//!
//! Six writers take turns as a seed decides, and the poller polls in between: the same history each time on
//! the embedded server, whose clock the seed moves too. On a named server they also run all at once, by the
//! real clock.
//!
//! A mode that waits a second for open transactions guarantees nothing about one that is open for longer. So
//! all connections are open before the first transaction starts, and on a named server a transaction ends by
//! the real clock, however slow the server is.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::modes::{MODES, Mode, SETTLE};
use super::schedule::{OPEN_MS_MAX, Rng, Statement, Transaction, WRITERS};
use super::{Ledger, PAGE, Polled, TABLE, Verdict, insert, update};
use crate::any_server::{AnyServer, Session, VARIABLE, named_server, say};

const TRANSACTIONS: u64 = 720;
/// The chance that the poller polls after a turn, in percent.
const POLLS: u64 = 2;
/// Turns after which no time passes, in percent: their rows have the same time.
const TIES: u64 = 60;
/// Most milliseconds that pass after another turn.
const TURN_MS_MAX: u64 = 10;

/// A writer, and its remaining transactions.
struct Writer {
    session: Session,
    rng: Rng,
    updates: bool,
    left: u64,
    open: Option<Open>,
    /// Keys of the rows it has committed.
    own: Vec<i32>,
}

/// An open transaction.
struct Open {
    plan: Transaction,
    done: usize,
    /// By the clock that decides when it ends.
    since_ms: u64,
    writes: Vec<(i32, i64)>,
}

impl Writer {
    async fn new(server: &AnyServer, mode: &Mode, number: usize) -> Self {
        Self {
            session: server.session().await,
            rng: Rng::new(0xB0A7 + u64::try_from(number).unwrap()),
            updates: mode.sees_updates,
            left: TRANSACTIONS / u64::try_from(WRITERS).unwrap(),
            open: None,
            own: Vec::new(),
        }
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.open.is_none()
    }

    /// Performs the next action: begins, writes, or ends a transaction.
    async fn turn(&mut self, now_ms: u64, numbers: &AtomicI64, ledger: &Mutex<Ledger>) {
        let Some(open) = &mut self.open else {
            self.session.run("BEGIN TRAN").await;
            let plan = Transaction::draw(&mut self.rng, self.updates);
            self.open = Some(Open { plan, done: 0, since_ms: now_ms, writes: Vec::new() });
            self.left -= 1;
            return;
        };
        let late = now_ms - open.since_ms >= OPEN_MS_MAX;
        let goes_on = |_: &&Statement| open.done == 0 || !late;
        if let Some(statement) = open.plan.statements.get(open.done).filter(goes_on) {
            open.done += 1;
            let number = || numbers.fetch_add(1, Ordering::Relaxed);
            match *statement {
                Statement::Update if !self.own.is_empty() => {
                    let (id, n) = (self.own[self.rng.index(self.own.len())], number());
                    update(&mut self.session, id, n).await;
                    open.writes.push((id, n));
                }
                Statement::Update => {}
                Statement::Insert(rows) => {
                    let values: Vec<i64> = (0..rows).map(|_| number()).collect();
                    open.writes.extend(insert(&mut self.session, &values).await);
                }
            }
            return;
        }
        let open = self.open.take().unwrap();
        if open.plan.commits {
            self.session.run("COMMIT").await;
            self.own.extend(open.writes.iter().map(|(id, _)| id));
            ledger.lock().await.commit(open.writes);
        } else {
            self.session.run("ROLLBACK").await;
        }
    }
}

/// Writers in turn; the poller between turns.
async fn in_turns(server: &AnyServer, mode: &Mode) -> (Vec<Vec<i64>>, Verdict) {
    let (numbers, ledger) = (AtomicI64::new(1), Mutex::new(Ledger::default()));
    let polled = Polled::new(server, mode);
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        writers.push(Writer::new(server, mode, number).await);
    }
    // Connects, and reads the empty table.
    polled.poll().await;
    let began = Instant::now();
    let (mut rng, mut now_ms) = (Rng::new(7), 0);
    while !writers.is_empty() {
        let chosen = rng.index(writers.len());
        if server.is_named() {
            now_ms = millis(began.elapsed());
        }
        writers[chosen].turn(now_ms, &numbers, &ledger).await;
        if writers[chosen].is_done() {
            writers.remove(chosen);
        }
        if !rng.percent(TIES) {
            let pause = 1 + rng.below(TURN_MS_MAX);
            now_ms += pause;
            server.pass(pause).await;
        }
        if rng.percent(POLLS) {
            polled.poll().await;
        }
    }
    finish(server, &polled, &ledger).await
}

/// All at once, by the real clock.
async fn at_once(server: &AnyServer, mode: &Mode) -> (Vec<Vec<i64>>, Verdict) {
    let (numbers, ledger) = (Arc::new(AtomicI64::new(1)), Arc::new(Mutex::new(Ledger::default())));
    let polled = Polled::new(server, mode);
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        writers.push(Writer::new(server, mode, number).await);
    }
    // Connects, and reads the empty table.
    polled.poll().await;
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for mut writer in writers {
        let (numbers, ledger) = (numbers.clone(), ledger.clone());
        tasks.spawn(async move {
            while !writer.is_done() {
                let turns = writer.open.as_ref().map_or(1, |open| open.plan.statements.len() + 1);
                let open_ms = writer.open.as_ref().map_or(0, |open| open.plan.open_ms);
                let pause = open_ms / u64::try_from(turns).unwrap();
                tokio::time::sleep(Duration::from_millis(pause)).await;
                writer.turn(millis(began.elapsed()), &numbers, &ledger).await;
            }
        });
    }
    while !tasks.is_empty() {
        polled.poll().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        while let Some(ended) = tasks.try_join_next() {
            ended.unwrap();
        }
    }
    finish(server, &polled, &ledger).await
}

/// Polls until everything has settled; returns the deliveries, page by page, and the verdict on the rows.
async fn finish(
    server: &AnyServer,
    polled: &Polled,
    ledger: &Mutex<Ledger>,
) -> (Vec<Vec<i64>>, Verdict) {
    polled.poll().await;
    // A waiting mark has to settle first; only then is the next one set.
    for _ in 0..2 {
        server.pass(millis(SETTLE) + 500).await;
        polled.poll().await;
    }
    (polled.pages(), ledger.lock().await.judge(&polled.delivered()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

fn show(how: &str, mode: &Mode, verdict: Verdict) {
    let Verdict { committed, delivered, lost, duplicate, phantom } = verdict;
    say(&format!(
        "writers {how:8} | {:31} | committed {committed:5} | delivered {delivered:5} | lost {lost:4} \
         | duplicate {duplicate:2} | phantom {phantom:2}",
        mode.name
    ));
}

fn check(mode: &Mode, verdict: Verdict) {
    let Verdict { committed, lost, duplicate, phantom, .. } = verdict;
    assert!(committed > 500, "{}: {verdict:?}", mode.name);
    assert_eq!((duplicate, phantom), (0, 0), "{}: {verdict:?}", mode.name);
    if mode.bounded {
        assert_eq!(lost, 0, "{}: {verdict:?}", mode.name);
    } else {
        // The number depends on the server; zero would mean that the bound is not tested.
        assert!(lost > 0, "{}: the storm shows no loss: {verdict:?}", mode.name);
    }
}

/// Six writers take turns.
async fn storm_in_turns(name: &str) {
    let mode = mode(name);
    let server = AnyServer::start(TABLE).await;
    let (pages, verdict) = in_turns(&server, mode).await;
    show("in turns", mode, verdict);
    check(mode, verdict);
    let full = pages.iter().filter(|page| page.len() == PAGE).count();
    assert!(full > 5, "{name}: {full} full pages test no boundary");
}

/// Six writers run all at once.
async fn storm_at_once(name: &str) {
    assert!(
        named_server().is_some(),
        "set {VARIABLE}: this test needs a server with its own clock"
    );
    let mode = mode(name);
    let server = AnyServer::start(TABLE).await;
    let (_, mut verdict) = at_once(&server, mode).await;
    show("at once", mode, verdict);
    if mode.bounded && !mode.waits {
        // A row that commits during the table's initial read is delivered with it, and as a change.
        verdict.duplicate = 0;
    }
    check(mode, verdict);
}

/// Defines two tests for each mode: writers in turns, and writers all at once.
macro_rules! storms {
    ($($test:ident => $mode:literal),* $(,)?) => {
        mod in_turns {
            $(
                #[tokio::test]
                async fn $test() {
                    super::storm_in_turns($mode).await;
                }
            )*
        }

        mod at_once {
            $(
                #[tokio::test]
                #[ignore = "needs HIGHWATER_TEST_SQLSERVER, a server with its own clock"]
                async fn $test() {
                    super::storm_at_once($mode).await;
                }
            )*
        }

        #[test]
        fn every_mode_has_its_tests() {
            assert_eq!(MODES.iter().map(|mode| mode.name).collect::<Vec<_>>(), [$($mode),*]);
        }
    };
}

storms! {
    rowversion => "rowversion",
    rowversion_without_bound => "rowversion, bound left out",
    timestamp => "timestamp+pk, settle 1 s",
    timestamp_without_settle => "timestamp+pk, settle 0",
    timestamp_audited => "timestamp+pk, settle 0, audited",
    integer => "integer+pk, settle 1 s",
    integer_without_bound => "integer+pk, bound left out",
    integer_audited => "integer+pk, no bound, audited",
    change_tracking => "change_tracking",
}

fn mode(name: &str) -> &'static Mode {
    MODES.iter().find(|mode| mode.name == name).unwrap()
}

#[tokio::test]
async fn one_seed_produces_one_history() {
    let mut histories = Vec::new();
    for _ in 0..2 {
        let server = AnyServer::start(TABLE).await;
        if server.is_named() {
            say("skipped: needs the embedded server, whose clock the seed moves");
            return;
        }
        histories.push(in_turns(&server, &MODES[0]).await);
    }
    assert_eq!(histories[0], histories[1]);
}
