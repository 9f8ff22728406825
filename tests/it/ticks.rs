//! Whole ticks over the real wire: by default in one process that stays warm, as a host keeps it.
//!
//! [`also_cold!`] runs the tests of a module a second time, with a new process for each tick.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use highwater::cursor::CursorMode::{self, IntegerPk};
use highwater::error::chain;
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::policy::{FailurePolicy, Flow};
use highwater::poller::{Limits, Poller, PollerParts, TickReport, TickRequest};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::state::{
    MemoryStore, OnMissingState, Precondition, StateDocument, StateKey, StateStore, decode, encode,
};
use highwater::testing::{Calls, FaultyStore, RecordingHandler};

use crate::any_server::{AnyServer, Session};

/// A real server's database must have leave to track changes before a table's are.
const TRACKING: &str = "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON";

/// Returns limits that nothing here meets but the number of rows of a batch.
pub(crate) fn limits(batch_rows_max: usize) -> Limits {
    let second = Duration::from_secs(1);
    Limits {
        batch_rows_max,
        batch_bytes_max: 1 << 20,
        batches_max: None,
        tick_time_max: 60 * second,
        handler_stop_after: 120 * second,
        handler_stall_max: None,
        state_refresh: 300 * second,
        status_interval: Duration::ZERO,
        retry_delay_min: second,
        retry_delay_max: second,
        lease_first: false,
        on_missing_state: OnMissingState::Stop,
    }
}

thread_local! {
    /// Whether the test on this thread gets a new process for each tick.
    static COLD: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test with a new process for each tick.
pub(crate) fn run_cold(test: fn()) {
    COLD.set(true);
    test();
    COLD.set(false);
}

/// Runs each of the tests a second time, in a module `cold`, with a new process for each tick.
macro_rules! also_cold {
    ($($test:ident),+ $(,)?) => {
        mod cold {
            $(#[test]
            fn $test() {
                crate::ticks::run_cold(super::$test);
            })+
        }
    };
}
pub(crate) use also_cold;

/// A poller and the process that runs it. The process survives from tick to tick, unless it is told
/// to restart, its settings change, or the test runs [`also_cold!`].
pub(crate) struct Ticks {
    pub(crate) world: AnyServer,
    pub(crate) settings: SourceSettings,
    pub(crate) handler: Arc<RecordingHandler>,
    pub(crate) lease_first: bool,
    pub(crate) start_now: bool,
    pub(crate) flow: Flow,
    memory: Arc<MemoryStore>,
    store: Arc<FaultyStore>,
    lives: u32,
    /// The running process, and the settings that it was started with.
    running: Option<(String, Arc<Poller>)>,
}

impl Ticks {
    pub(crate) fn new(world: AnyServer, settings: SourceSettings) -> Self {
        let memory = Arc::new(MemoryStore::default());
        let store = Arc::new(FaultyStore::new(memory.clone()));
        let handler = Arc::default();
        Self {
            world,
            settings,
            handler,
            lease_first: false,
            start_now: false,
            flow: Flow::default(),
            memory,
            store,
            lives: 0,
            running: None,
        }
    }

    /// A server in which several transactions write at once, and a poller of `dbo.t` by `id`.
    pub(crate) async fn numbered(tsql: &str) -> Self {
        Self::concurrent(tsql, IntegerPk).await
    }

    /// As [`Ticks::numbered`], in any mode.
    pub(crate) async fn concurrent(tsql: &str, mode: CursorMode) -> Self {
        let world = AnyServer::start(&format!("{TRACKING}; {tsql}")).await;
        let settings = world.settings("t", mode, "id");
        Self::new(world, settings)
    }

    /// As [`Ticks::concurrent`], on the embedded server, which alone has what `needs` says.
    pub(crate) async fn embedded(tsql: &str, mode: CursorMode, needs: &str) -> Self {
        let world = AnyServer::embedded(tsql, needs).await;
        let settings = world.settings("t", mode, "id");
        Self::new(world, settings)
    }

    /// Returns another process, such as one that runs a command.
    pub(crate) fn process(&mut self) -> Poller {
        self.lives += 1;
        let second = Duration::from_secs(1);
        let poller = Poller::new(PollerParts {
            name: "orders".to_owned(),
            source: Arc::new(Mssql::new(self.settings.clone()).unwrap()),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: Arc::new(Instance::new(format!("life {}", self.lives))),
            terms: LeaseTerms::of(30 * second),
            limits: Limits {
                retry_delay_min: Duration::ZERO,
                lease_first: self.lease_first,
                ..limits(2)
            },
            policy: FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        })
        .flowing(self.flow);
        if self.start_now { poller.starting_now() } else { poller }
    }

    /// Ends the process, so that the next tick starts a new one.
    pub(crate) fn restart(&mut self) {
        self.running = None;
    }

    /// Returns the running process; starts one if none runs or its settings have changed.
    fn running(&mut self) -> Arc<Poller> {
        let (source, flow) = (&self.settings, &self.flow);
        let settings = format!("{source:?} {flow:?} {} {}", self.lease_first, self.start_now);
        let same = |(started_with, _): &&(String, _)| *started_with == settings;
        if let Some((_, poller)) = self.running.as_ref().filter(same) {
            return Arc::clone(poller);
        }
        let poller = Arc::new(self.process());
        self.running = Some((settings, Arc::clone(&poller)));
        poller
    }

    pub(crate) async fn report(&mut self) -> TickReport {
        if COLD.get() {
            self.restart();
        }
        self.running().tick(&TickRequest::default()).await
    }

    /// Ticks; returns the keys delivered and the writes it took.
    pub(crate) async fn tick(&mut self) -> (Vec<i64>, u64) {
        let before = self.handler.ids().len();
        let report = self.report().await;
        report.result.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let Calls { puts, .. } = self.store.take_calls();
        (self.handler.ids().split_off(before), puts)
    }

    pub(crate) async fn tick_at(&mut self, second: u32) -> (Vec<i64>, u64) {
        self.at(second).await;
        self.tick().await
    }

    pub(crate) async fn failure_at(&mut self, second: u32) -> String {
        self.at(second).await;
        self.failure().await
    }

    /// Runs a tick that has to fail.
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

    /// Deletes the document, while its marker stays.
    pub(crate) fn lose_document(&self) {
        self.memory.lose(&StateKey::Document("orders".to_owned()));
    }

    pub(crate) async fn at(&self, second: u32) -> &Self {
        self.world.at(second).await;
        self
    }

    pub(crate) async fn run(&self, tsql: &str) {
        self.world.execute(tsql).await;
    }

    /// Leaves a transaction open behind `tsql`.
    pub(crate) async fn begin(&self, tsql: &str) -> Session {
        let mut writer = self.world.session().await;
        writer.run(&format!("BEGIN TRAN; {tsql}")).await;
        writer
    }
}

pub(crate) async fn commit(mut writer: Session) {
    writer.run("COMMIT").await;
}
