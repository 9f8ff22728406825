//! Whole ticks over the real wire, each in a process of its own: what must outlive it is written.

use std::sync::Arc;
use std::time::Duration;

use highwater::cursor::CursorMode::IntegerPk;
use highwater::devdb::{Database, Options, Server};
use highwater::error::chain;
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::mssql::Connection;
use highwater::poller::{Limits, Poller, PollerParts, TickOutcome, TickReport, TickRequest};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::state::{
    MemoryStore, OnMissingState, Precondition, StateDocument, StateKey, StateStore, decode, encode,
};
use highwater::testing::{Calls, FaultyStore, RecordingHandler};

use crate::sql::World;

/// A poller of which nothing lives on between two ticks but its state document.
pub(crate) struct Ticks {
    pub(crate) world: World,
    pub(crate) settings: SourceSettings,
    pub(crate) handler: Arc<RecordingHandler>,
    pub(crate) lease_first: bool,
    memory: Arc<MemoryStore>,
    store: Arc<FaultyStore>,
    lives: u32,
}

impl Ticks {
    pub(crate) fn new(world: World, settings: SourceSettings) -> Self {
        let memory = Arc::new(MemoryStore::default());
        let store = Arc::new(FaultyStore::new(memory.clone()));
        let handler = Arc::default();
        Self { world, settings, handler, lease_first: false, memory, store, lives: 0 }
    }

    /// A server in which several transactions write at once, and a poller of `dbo.t` by `id`.
    pub(crate) async fn concurrent(tsql: &str) -> Self {
        let database = Database::concurrent().unwrap();
        database.execute(tsql).unwrap();
        let server = Server::start(database.clone(), Options::default()).await.unwrap();
        let world = World { server, database };
        let settings = world.settings("t", IntegerPk, "id");
        Self::new(world, settings)
    }

    pub(crate) fn process(&mut self) -> Poller {
        self.lives += 1;
        let second = Duration::from_secs(1);
        Poller::new(PollerParts {
            name: "orders".to_owned(),
            source: Arc::new(Mssql::new(self.settings.clone()).unwrap()),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: Arc::new(Instance::new(format!("life {}", self.lives))),
            terms: LeaseTerms::of(30 * second),
            limits: Limits {
                batch_rows_max: 2,
                batch_bytes_max: 1 << 20,
                batches_max: None,
                tick_time_max: 60 * second,
                handler_stop_after: 120 * second,
                handler_stall_max: None,
                state_refresh: 300 * second,
                status_interval: Duration::ZERO,
                retry_delay_min: Duration::ZERO,
                retry_delay_max: second,
                lease_first: self.lease_first,
                on_missing_state: OnMissingState::Stop,
            },
            metrics: Arc::new(Metrics::default()),
        })
    }

    pub(crate) async fn report(&mut self) -> TickReport {
        self.process().tick(&TickRequest::default()).await
    }

    /// Ticks in a new process; returns the keys delivered and the writes it took.
    pub(crate) async fn tick(&mut self) -> (Vec<i64>, u64) {
        let before = self.handler.ids().len();
        let report = self.report().await;
        report.result.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let Calls { puts, .. } = self.store.take_calls();
        (self.handler.ids().split_off(before), puts)
    }

    pub(crate) async fn tick_at(&mut self, second: u32) -> (Vec<i64>, u64) {
        self.at(second);
        self.tick().await
    }

    pub(crate) async fn failure_at(&mut self, second: u32) -> String {
        self.at(second);
        self.failure().await
    }

    /// Ticks in a new process, which has to fail.
    pub(crate) async fn failure(&mut self) -> String {
        let report = self.report().await;
        self.store.take_calls();
        chain(&report.result.unwrap_err())
    }

    pub(crate) async fn document(&self) -> StateDocument {
        let key = StateKey::Document("orders".to_owned());
        let stored = self.memory.load(&key).await.unwrap().stored.unwrap();
        decode("orders", &stored.bytes).unwrap()
    }

    pub(crate) async fn overwrite(&self, document: &StateDocument) {
        let key = StateKey::Document("orders".to_owned());
        let etag = self.memory.load(&key).await.unwrap().stored.unwrap().etag;
        self.memory.store(&key, encode(document), Precondition::Matches(etag)).await.unwrap();
    }

    pub(crate) fn at(&self, second: u32) -> &Self {
        let (minute, second) = (second / 60, second % 60);
        self.world.database.set_now(&format!("2026-01-01T10:{minute:02}:{second:02}")).unwrap();
        self
    }

    pub(crate) fn run(&self, tsql: &str) {
        self.world.database.execute(tsql).unwrap();
    }

    pub(crate) async fn begin(&self, tsql: &str) -> Connection {
        let mut writer = Connection::new(self.world.connection(), None);
        let sql = format!("BEGIN TRAN; {tsql}");
        writer.query(&sql, &[], |_| Ok(())).await.unwrap();
        writer
    }
}

pub(crate) async fn commit(mut writer: Connection) {
    writer.query("COMMIT", &[], |_| Ok(())).await.unwrap();
}

const NUMBERED: &str =
    "CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY, note nvarchar(9) NULL)";

#[tokio::test]
async fn a_mark_settles_though_no_process_outlives_its_tick() {
    let mut ticks = Ticks::concurrent(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b'), ('c')");
    assert_eq!(ticks.tick_at(0).await, (vec![], 1), "the mark is written at once");
    assert_eq!(ticks.tick_at(4).await, (vec![], 0), "it has not settled");
    ticks.run("INSERT INTO dbo.t (note) VALUES ('d')");
    let (ids, writes) = ticks.tick_at(5).await;
    assert_eq!(ids, [1, 2, 3], "two batches of what was there when the mark was taken");
    assert_eq!(writes, 4, "marker, acquire, two commits: the next mark rides on one of them");
    assert_eq!(ticks.tick_at(10).await, (vec![4], 2));
    assert_eq!(ticks.tick_at(60).await, (vec![], 0), "idle ticks write nothing");
}

#[tokio::test]
async fn rows_that_commit_late_but_within_the_window_are_not_passed_by() {
    let mut ticks = Ticks::concurrent(NUMBERED).await;
    let late = ticks.at(0).begin("INSERT INTO dbo.t (note) VALUES ('late')").await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('early')");
    assert_eq!(ticks.tick().await.0, [0; 0]);
    commit(late).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
}

#[tokio::test]
async fn without_the_window_late_commits_are_lost_so_it_has_to_be_asked_for() {
    let mut ticks = Ticks::concurrent(NUMBERED).await;
    ticks.settings.settle = Duration::ZERO;
    let late = ticks.at(0).begin("INSERT INTO dbo.t (note) VALUES ('late')").await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('early')");
    assert_eq!(ticks.tick().await.0, [2]);
    commit(late).await;
    assert_eq!(ticks.tick_at(60).await.0, [0; 0], "row 1 is lost");
}

#[tokio::test]
async fn a_batch_of_numbers_that_failed_is_read_again_as_it_was() {
    let mut ticks = Ticks::concurrent(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b')");
    ticks.tick_at(0).await;
    ticks.handler.then_fail(highwater::handler::HandlerError::Retryable("503".to_owned()));
    ticks.failure_at(5).await;
    // Even where what was remembered is gone.
    let mut document = ticks.document().await;
    document.source_state.clear();
    ticks.overwrite(&document).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
    let received = ticks.handler.received();
    assert_eq!(received[0].batch_id, received[1].batch_id);
}

#[tokio::test]
async fn numbers_that_were_taken_back_stop_the_poller() {
    let mut ticks = Ticks::concurrent(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b')");
    ticks.tick_at(0).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
    // Rows that were deleted are no reason to stop.
    ticks.run("DELETE FROM dbo.t");
    assert_eq!(ticks.tick_at(6).await.0, [0; 0]);
    ticks.run(&format!("DROP TABLE dbo.t; {NUMBERED}; INSERT INTO dbo.t (note) VALUES ('z')"));
    let report = ticks.report().await;
    let error = chain(report.result.as_ref().unwrap_err());
    assert!(error.contains("checkpoint is at `2`, the last identity of `dbo.t` is `1`"), "{error}");
    let row = highwater::poller::outcome_row(&report.result);
    assert_eq!((row.event, row.status), ("position_lost", 500));
    assert_eq!(ticks.document().await.checkpoint.cursor.unwrap().value, "2");
}

#[tokio::test]
async fn with_the_lease_first_the_mark_rides_on_the_release() {
    let mut ticks = Ticks::concurrent(NUMBERED).await;
    ticks.lease_first = true;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a')");
    assert_eq!(ticks.tick_at(0).await.0, [0; 0]);
    assert_eq!(ticks.tick_at(5).await.0, [1]);
}

#[tokio::test]
async fn one_process_needs_no_more_writes_for_its_marks() {
    let mut ticks = Ticks::concurrent(NUMBERED).await;
    let poller = ticks.process();
    let mut expected = Vec::new();
    for round in 0..5 {
        ticks.run("INSERT INTO dbo.t (note) VALUES ('a')");
        ticks.at(round * 10);
        let report = poller.tick(&TickRequest::default()).await;
        assert!(report.result.is_ok(), "{}", report.summary);
        assert_eq!(ticks.handler.ids(), expected);
        expected.push(i64::from(round) + 1);
    }
    let outcome = poller.tick(&TickRequest::default()).await.result.unwrap();
    assert_eq!(outcome, TickOutcome::Idle);
}
