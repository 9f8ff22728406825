//! Complete ticks over the real wire: by default in one process that stays warm, as under a host.
//!
//! [`also_cold!`] runs the tests of a module a second time, with a new process for each tick.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater::admin::ResetTo;
use highwater::config::Relation;
use highwater::cursor::CursorMode::{self, IntegerPk};
use highwater::error::chain;
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::partition::Partition;
use highwater::policy::{FailurePolicy, Flow};
use highwater::poller::{Limits, Operator, Poller, PollerParts, TickOutcome};
use highwater::repartition::{PartitionLayout, partition_layout};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::state::{
    MemoryStore, Precondition, StateDocument, StateKey, StateStore, decode, encode,
};
use highwater::testing::{self, Calls, FaultyStore, Received, RecordingHandler};
use highwater::tick::{TickReport, TickRequest};

use crate::any_server::{AnyServer, Session};

/// A real server needs tracking enabled for the database before it can be enabled for a table.
const TRACKING: &str = "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON";

/// Returns limits that nothing here meets except the number of rows of a batch.
pub(crate) fn limits(batch_rows_max: usize) -> Limits {
    let second = Duration::from_secs(1);
    Limits {
        batch_rows_max,
        tick_time_max: 60 * second,
        handler_stop_after: 120 * second,
        retry_delay_max: second,
        retry_after_max: second,
        ..testing::limits()
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

/// A poller and the process that runs it. The process survives from tick to tick, unless it is restarted, its
/// settings change, or the test runs [`also_cold!`].
pub(crate) struct Ticks {
    pub(crate) world: AnyServer,
    pub(crate) settings: SourceSettings,
    pub(crate) handler: Arc<RecordingHandler>,
    pub(crate) start_now: bool,
    pub(crate) flow: Flow,
    /// The partition count, and the partition that later calls refer to.
    pub(crate) partitions: u16,
    pub(crate) partition: Option<Partition>,
    memory: Arc<MemoryStore>,
    store: Arc<FaultyStore>,
    /// The server's time.
    second: AtomicU32,
    lives: u32,
    /// The pollers of the running process by name, each with the settings of its start.
    running: BTreeMap<String, (String, Arc<Poller>)>,
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
            start_now: false,
            flow: Flow::default(),
            partitions: 1,
            partition: None,
            memory,
            store,
            second: AtomicU32::new(0),
            lives: 0,
            running: BTreeMap::new(),
        }
    }

    /// A server with several concurrent writers, and a poller of `dbo.t` by `id`.
    pub(crate) async fn numbered(tsql: &str) -> Self {
        Self::concurrent(tsql, IntegerPk).await
    }

    /// As [`Ticks::numbered`], in any mode.
    pub(crate) async fn concurrent(tsql: &str, mode: CursorMode) -> Self {
        let world = AnyServer::start(&format!("{TRACKING}; {tsql}")).await;
        let settings = world.settings("t", mode, "id");
        Self::new(world, settings)
    }

    /// Like [`Ticks::concurrent`], on the embedded server, the only one with the feature `needs`.
    pub(crate) async fn embedded(tsql: &str, mode: CursorMode, needs: &str) -> Self {
        let world = AnyServer::embedded(tsql, needs).await;
        let settings = world.settings("t", mode, "id");
        Self::new(world, settings)
    }

    /// Returns another process, such as one that runs a command.
    pub(crate) fn process(&mut self) -> Poller {
        self.lives += 1;
        let second = Duration::from_secs(1);
        let settings = SourceSettings { partition: self.partition, ..self.settings.clone() };
        let poller = Poller::new(PollerParts {
            name: self.name(),
            source: Arc::new(Mssql::new(settings).unwrap()),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: Arc::new(Instance::new(format!("life {}", self.lives))),
            terms: LeaseTerms::of(30 * second),
            limits: Limits { retry_delay_min: Duration::ZERO, ..limits(2) },
            policy: FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        })
        .with_partition(self.partition)
        .with_flow(self.flow);
        if self.start_now { poller.starting_now() } else { poller }
    }

    /// Like [`Self::process`], for each of `partitions`.
    pub(crate) fn processes(&mut self, partitions: u16) -> Vec<Poller> {
        let partition = self.partition;
        let all = Partition::all(partitions).into_iter().map(|part| {
            self.partition = part;
            self.process()
        });
        let all = all.collect();
        self.partition = partition;
        all
    }

    /// Returns the name of the poller, or of its current partition.
    pub(crate) fn name(&self) -> String {
        self.partition.map_or_else(|| "orders".to_owned(), |part| part.name("orders"))
    }

    /// Selects the partition of this name, if there is one.
    fn mean(&mut self, name: &str) {
        let mut partitions = Partition::all(self.partitions).into_iter().flatten();
        self.partition = partitions.find(|part| part.name("orders") == name).or(self.partition);
    }

    /// Returns the partitioning according to the documents.
    pub(crate) async fn partition_layout(&self) -> PartitionLayout {
        partition_layout(&*self.memory, "orders").await.unwrap()
    }

    /// Ends the process, so that the next tick starts a new one.
    pub(crate) fn restart(&mut self) {
        self.running.clear();
    }

    /// Returns the running process; starts one if none runs or its settings have changed.
    fn running(&mut self) -> Arc<Poller> {
        let (source, flow) = (&self.settings, &self.flow);
        let settings = format!("{source:?} {flow:?} {}", self.start_now);
        let same = |(started_with, _): &&(String, _)| *started_with == settings;
        if let Some((_, poller)) = self.running.get(&self.name()).filter(same) {
            return Arc::clone(poller);
        }
        let poller = Arc::new(self.process());
        self.running.insert(self.name(), (settings, Arc::clone(&poller)));
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

    /// Runs a tick that must fail.
    pub(crate) async fn failure(&mut self) -> String {
        let report = self.report().await;
        self.store.take_calls();
        chain(&report.result.unwrap_err())
    }

    /// Ticks the same process until there are no new rows, waiting 10 seconds before each tick.
    ///
    /// Returns the error of a process that keeps failing.
    pub(crate) async fn until_quiet(&mut self) -> Result<(), String> {
        const TICKS_MAX: u32 = 14;
        let (mut idle, mut failed, mut last) = (0, 0, String::new());
        for _ in 0..TICKS_MAX {
            self.pass(10).await;
            match self.report().await.result {
                Ok(TickOutcome::Idle) => (idle, failed) = (idle + 1, 0),
                Ok(outcome) => (idle, failed, last) = (0, 0, format!("{outcome:?}")),
                Err(error) => (idle, failed, last) = (0, failed + 1, chain(&error)),
            }
            // The first may lose its note to a pause or a resume, the second sets a mark, the third lets it
            // settle.
            if idle == 3 {
                return Ok(());
            }
            if failed == 3 {
                return Err(last);
            }
        }
        Err(format!("not quiet after {TICKS_MAX} ticks: {last}"))
    }

    /// Runs the first command in an error's message, like an operator in a separate process.
    ///
    /// Returns the executed command; an error if the message contains no command, or the command is rejected.
    pub(crate) async fn follow(&mut self, message: &str) -> Result<String, String> {
        Box::pin(self.follow_nth(message, 0)).await
    }

    /// Like [`Self::follow`], for the command at `index`, or the last one if there are fewer.
    pub(crate) async fn follow_nth(
        &mut self,
        message: &str,
        index: usize,
    ) -> Result<String, String> {
        let mut commands = commands(message);
        // Only an operator can know whether the table has the same rows: see `follow_keep`.
        commands.retain(|command| !command.contains(" keep "));
        commands.truncate(index + 1);
        let command = commands.pop().ok_or_else(|| format!("no command in: {message}"))?;
        Box::pin(self.run_command(command)).await
    }

    /// Like [`Self::follow`], for the command that keeps the position.
    pub(crate) async fn follow_keep(&mut self, message: &str) -> Result<String, String> {
        let keep = commands(message).into_iter().find(|command| command.contains(" keep "));
        let keep = keep.ok_or_else(|| format!("no `keep` in: {message}"))?;
        Box::pin(self.run_command(keep)).await
    }

    async fn run_command(&mut self, command: String) -> Result<String, String> {
        let operator = Operator { by: "ann", reason: "the error said so" };
        let id = format!("remedy-{}", self.lives);
        let words: Vec<&str> = command.split_whitespace().collect();
        self.mean(words.get(2).copied().unwrap_or_default());
        let other = self.process();
        match words[..] {
            ["ALTER", ..] => self.run(&command).await,
            // Without a partition name, all partitions start.
            ["highwater", "init", "orders", ..] if self.partitions > 1 => {
                for part in self.processes(self.partitions) {
                    part.admin().init().await.map_err(|error| chain(&error))?;
                }
            }
            ["highwater", "init", ..] => {
                other.admin().init().await.map_err(|error| chain(&error))?;
            }
            ["highwater", "clone", _, "--from-app", app, ..] => {
                let from = other.under_app(app).ok_or("the store knows one application only")?;
                let cloned = Box::pin(from.admin().clone_to(&other, true, operator)).await;
                cloned.map_err(|error| format!("`{command}`: {}", chain(&error)))?;
            }
            ["highwater", "reset", _, to @ ("to-beginning" | "to-now" | "keep"), ..] => {
                let new_source = words.contains(&"--new-source");
                let to = match to {
                    "to-beginning" => ResetTo::Beginning,
                    "to-now" => ResetTo::Now,
                    _ => ResetTo::Keep,
                };
                let plan = Box::pin(other.admin().plan_reset(to, new_source)).await;
                let plan = plan.map_err(|error| format!("`{command}`: {}", chain(&error)))?;
                let reset = Box::pin(other.admin().reset(&plan, id, operator)).await;
                reset.map_err(|error| format!("`{command}`: {}", chain(&error)))?;
            }
            _ => return Err(format!("a command that these tests cannot run: `{command}`")),
        }
        Ok(command)
    }

    /// Runs the command in an error's message, and expects the same process to recover: it stops failing, and
    /// the `note` of each row of its table has been delivered.
    pub(crate) async fn recovers(&mut self, message: &str) {
        self.follow(message).await.unwrap();
        if let Err(error) = self.until_quiet().await {
            panic!("still failing after the remedy of `{message}`: {error}");
        }
        let mut session = self.world.session().await;
        let Relation::Table(table) = &self.settings.relation else { panic!("a table") };
        let rows = session.run(&format!("SELECT note FROM dbo.{table}")).await;
        let delivered: Vec<_> =
            self.handler.received().iter().flat_map(Received::payloads).collect();
        for row in rows {
            let note: &str = row.get(0).unwrap();
            assert!(delivered.iter().any(|row| row["note"] == note), "`{note}` was not delivered");
        }
    }

    pub(crate) async fn document(&self) -> StateDocument {
        let key = StateKey::Document(self.name());
        let stored = self.memory.load(&key).await.unwrap().stored.unwrap();
        decode(&self.name(), &stored.bytes).unwrap()
    }

    pub(crate) async fn overwrite(&self, document: &StateDocument) {
        let key = StateKey::Document(self.name());
        let etag = self.memory.load(&key).await.unwrap().stored.unwrap().etag;
        self.memory.store(&key, encode(document), Precondition::Matches(etag)).await.unwrap();
    }

    /// Deletes the document, while its marker stays.
    pub(crate) fn lose_document(&self) {
        self.memory.lose(&StateKey::Document(self.name()));
    }

    /// Deletes the marker that records that the poller has run.
    pub(crate) fn lose_marker(&self) {
        self.memory.lose(&StateKey::Marker(self.name()));
    }

    /// Renames the application: its state is kept elsewhere from now on.
    pub(crate) fn rename_app(&mut self, app: &str) {
        self.memory = Arc::new(self.memory.under_app(app));
        self.store = Arc::new(FaultyStore::new(self.memory.clone()));
        self.restart();
    }

    /// Returns whether there is a document, and whether there is a marker.
    pub(crate) async fn stored(&self) -> (bool, bool) {
        let document = self.memory.load(&StateKey::Document(self.name())).await;
        let marker = self.memory.load(&StateKey::Marker(self.name())).await;
        (document.unwrap().stored.is_some(), marker.unwrap().stored.is_some())
    }

    pub(crate) async fn at(&self, second: u32) -> &Self {
        self.second.store(second, Ordering::Relaxed);
        self.world.at(second).await;
        self
    }

    /// Waits on the server's clock.
    pub(crate) async fn pass(&self, seconds: u32) {
        self.at(self.second() + seconds).await;
    }

    /// Returns the server's time.
    pub(crate) fn second(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }

    pub(crate) async fn run(&self, tsql: &str) {
        self.world.execute(tsql).await;
    }

    /// Leaves a transaction open after `tsql`.
    pub(crate) async fn begin(&self, tsql: &str) -> Session {
        let mut writer = self.world.session().await;
        writer.run(&format!("BEGIN TRAN; {tsql}")).await;
        writer
    }
}

pub(crate) async fn commit(mut writer: Session) {
    writer.run("COMMIT").await;
}

/// Returns the commands in a message.
fn commands(message: &str) -> Vec<String> {
    let known = |text: &&str| {
        ["ALTER TABLE ", "highwater reset ", "highwater init ", "highwater clone "]
            .iter()
            .any(|start| text.starts_with(start))
    };
    message.split('`').skip(1).step_by(2).filter(known).map(str::to_owned).collect()
}
