//! A partitioned poller that is repartitioned while it works.
//!
//! The pollers of all partitions, their leases and documents, and the repartition are the real ones. Their
//! environment: a table with overlapping transactions, read by partitions below the lowest open version; one
//! store with latency, in which writes fail before or after they took effect; a target with a fence per
//! partition. Instances crash at any await, and so does the process that repartitions, which then restarts.
//! Everything follows from the seed.
//!
//! # What counts as a failure
//!
//! - A partition delivers a row of another partition; a document is started alongside one of another partition count.
//! - A row state is first delivered after a newer state of that row.
//! - In the end, a committed row was not delivered in its last state; or nothing failed and a state was delivered twice.
//! - An event has another id than it would have without partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::cursor::{CursorMode, SourceDefinition, SourceFingerprint};
use highwater_engine::document::{Fence, decode};
use highwater_engine::event::{EventId, Operation, SourceLabel};
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use highwater_engine::lease::{Instance, LeaseTerms};
use highwater_engine::partition::{Partition, poller_of_partition};
use highwater_engine::policy::FailurePolicy;
use highwater_engine::poller::{Limits, Operator, Poller, PollerParts, outcome_row};
use highwater_engine::repartition::{Repartition, RepartitionError, partition_layout};
use highwater_engine::source::{FetchError, FetchWindow, Rows, Source, SourceShape};
use highwater_engine::store::{
    ETag, MemoryStore, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult,
};
use highwater_engine::testing::limits;
use highwater_engine::tick::TickRequest;
use highwater_engine::value::Value;
use tokio::time::{sleep, timeout};

use crate::coverage::Coverage;
use crate::random::Random;
use crate::source::{Table, version_of};
use crate::{CASES, asked};

const POLLER: &str = "orders";
const TTL: Duration = Duration::from_secs(3);
const KEYS: u64 = 24;
const PARTS: [u16; 5] = [1, 2, 3, 5, 8];

/// A planted bug that the invariants must catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Each partition reads the rows of all.
    ReadsAll,
    /// The partition count is neither fingerprinted nor checked.
    AnyNumber,
}

#[derive(Debug)]
struct State {
    random: Random,
    table: Table,
    fault_percent: u64,
    fences: BTreeMap<String, Fence>,
    /// How often each row state was delivered.
    delivered: BTreeMap<(i64, u64), u64>,
    /// The newest delivered state of each row.
    newest: BTreeMap<i64, u64>,
    violation: Option<String>,
    saw: BTreeSet<&'static str>,
}

impl State {
    fn object(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn fails(&mut self) -> bool {
        let percent = self.fault_percent;
        percent > 0 && self.random.chance(percent)
    }
}

#[derive(Debug)]
struct World {
    store: MemoryStore,
    wrong: Option<Wrong>,
    state: Mutex<State>,
}

impl World {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("no holder of this lock panics"))
    }

    async fn takes_time(&self) {
        let time = self.with(|state| state.random.ms(0..=40));
        sleep(time).await;
    }
}

/// Returns the partition of a key. Any function of the key will do here.
fn part_of(key: i64, count: u16) -> u16 {
    let mixed = key.unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    u16::try_from(mixed % u64::from(count)).expect("less than a small number")
}

#[derive(Debug)]
struct PartSource {
    world: Arc<World>,
    partition: Option<Partition>,
    shape: SourceShape,
}

#[async_trait]
impl Source for PartSource {
    fn shape(&self) -> &SourceShape {
        &self.shape
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let (after, upto) = (window.after.map_or(0, version_of), window.upto.map(version_of));
        self.world.takes_time().await;
        let bound = self.world.with(|state| state.table.min_active());
        self.world.takes_time().await;
        let reads_all = self.world.wrong == Some(Wrong::ReadsAll);
        let mut found = self.world.with(|state| {
            let mut found = state.table.read(after, upto.unwrap_or(u64::MAX), bound);
            found.retain(|(key, _)| {
                reads_all || self.partition.is_none_or(|own| part_of(*key, own.count) == own.index)
            });
            found
        });
        let more = found.len() > window.rows_max;
        found.truncate(window.rows_max);
        let mut rows = Rows::of(["id"]);
        for found in found {
            push(&mut rows, found);
        }
        Ok(Rows { more, ..rows })
    }
}

fn push(rows: &mut Rows, (id, version): (i64, u64)) {
    let position = Value::Int(i64::try_from(version).expect("few versions"));
    rows.push(Operation::Upsert, position, vec![Value::Int(id)], &[Value::Int(id)]);
}

/// Writes rows one by one, through a fence per partition.
#[derive(Debug)]
struct PartHandler(Arc<World>, Option<Partition>);

#[async_trait]
impl Handler for PartHandler {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        for event in delivery.events {
            self.0.takes_time().await;
            let key = event.cursor.key["id"].as_i64().expect("a number");
            let version = version_of(&event.cursor);
            self.0.with(|state| {
                let fence = state.fences.entry(delivery.poller.to_owned()).or_default();
                *fence = fence.admit(delivery.generation, delivery.fencing_token)?;
                if event.id != EventId::of(POLLER, &event.cursor) {
                    state.object(format!("row {key} at {version} has the id {}", event.id));
                }
                if self.1.is_some_and(|own| part_of(key, own.count) != own.index) {
                    state.object(format!("`{}` delivered row {key}", delivery.poller));
                }
                let newest = state.newest.entry(key).or_default();
                let is_first = !state.delivered.contains_key(&(key, version));
                if is_first && *newest > version {
                    let text = format!("row {key} at {version} came after {newest}");
                    state.object(text);
                } else {
                    *newest = version.max(*newest);
                }
                *state.delivered.entry((key, version)).or_default() += 1;
                if state.fails() {
                    state.saw.insert("handler failed");
                    return Err(HandlerError::Retryable("injected".to_owned()));
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The shared store, over a network.
#[derive(Debug)]
struct PartStore(Arc<World>);

#[async_trait]
impl StateStore for PartStore {
    fn grain(&self) -> Duration {
        Duration::ZERO
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        self.0.store.list().await
    }

    fn location(&self, key: &StateKey) -> String {
        self.0.store.location(key)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.0.store.prepare().await
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        self.0.store.list_counted().await
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        self.0.store.apps_with(key).await
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        self.0.store.of_app(app)
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.0.store.remove(key, etag).await
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        self.0.takes_time().await;
        if self.0.with(State::fails) {
            self.0.with(|state| state.saw.insert("read failed"));
            return Err(StoreError::Unreachable { key: key.path(), reason: "injected".to_owned() });
        }
        self.0.store.load(key).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        self.0.takes_time().await;
        if self.0.with(State::fails) {
            self.0.with(|state| state.saw.insert("write failed"));
            return Err(StoreError::Unreachable { key: key.path(), reason: "injected".to_owned() });
        }
        let written = self.0.store.store(key, bytes, precondition).await?;
        self.0.takes_time().await;
        if self.0.with(State::fails) {
            self.0.with(|state| state.saw.insert("answer lost"));
            return Err(StoreError::Unknown { key: key.path(), reason: "injected".to_owned() });
        }
        Ok(written)
    }
}

fn poller(world: &Arc<World>, partition: Option<Partition>, owner: String) -> Poller {
    let name = partition.map_or_else(|| POLLER.to_owned(), |partition| partition.name(POLLER));
    let told = partition.filter(|_| world.wrong != Some(Wrong::AnyNumber));
    let number = told.map_or_else(String::new, |partition| partition.to_string());
    let label = SourceLabel {
        poller: poller_of_partition(&name).to_owned(),
        object: "dbo.t".to_owned(),
        mode: CursorMode::RowVersion.as_str(),
    };
    let fingerprint = SourceFingerprint::of(&[("object", "dbo.t"), ("partition", &number)]);
    let key = vec!["id".to_owned()];
    let definition = SourceDefinition::of(&[("object", "dbo.t"), ("partition", &number)]);
    let mode = CursorMode::RowVersion;
    let shape = SourceShape { label, mode, key, fingerprint, definition };
    let poller = Poller::new(PollerParts {
        name,
        source: Arc::new(PartSource { world: Arc::clone(world), partition, shape }),
        handler: Arc::new(PartHandler(Arc::clone(world), partition)),
        store: Arc::new(PartStore(Arc::clone(world))),
        instance: Arc::new(Instance::new(owner)),
        terms: LeaseTerms::of(TTL),
        limits: Limits {
            batch_rows_max: 4,
            tick_time_max: 4 * TTL,
            handler_stop_after: 8 * TTL,
            state_refresh: Duration::from_secs(30),
            retry_delay_min: Duration::from_millis(100),
            retry_delay_max: Duration::from_secs(1),
            ..limits()
        },
        policy: FailurePolicy::default(),
        metrics: Arc::default(),
    });
    if world.wrong == Some(Wrong::AnyNumber) { poller } else { poller.with_partition(partition) }
}

/// All partitions of one count, as one instance runs them.
struct Set {
    count: u16,
    pollers: Vec<Arc<Poller>>,
}

impl Set {
    fn new(world: &Arc<World>, count: u16, owner: &str) -> Self {
        let parts = Partition::all(count).into_iter();
        let pollers = parts.map(|part| Arc::new(poller(world, part, owner.to_owned())));
        Self { count, pollers: pollers.collect() }
    }

    /// Ticks all partitions concurrently; may crash in the middle.
    async fn tick(&self, world: &Arc<World>, dies_after: Option<Duration>) {
        let ticks = self.pollers.iter().map(|poller| {
            let poller = Arc::clone(poller);
            tokio::spawn(async move {
                let request = TickRequest::default();
                let work = poller.tick(&request);
                match dies_after {
                    Some(time) => timeout(time, work).await.ok(),
                    None => Some(work.await),
                }
            })
        });
        let ticks: Vec<_> = ticks.collect();
        for tick in ticks {
            let Some(report) = tick.await.expect("a tick does not panic") else {
                world.with(|state| state.saw.insert("tick killed"));
                continue;
            };
            if outcome_row(&report.result).outcome == "fingerprint" {
                world.with(|state| state.saw.insert("another number refused"));
            }
        }
    }
}

/// Repartitions; may crash on the way, and is then run again.
async fn divide(world: &Arc<World>, to: u16, owner: &str, dies_after: Option<Duration>) -> bool {
    let store = PartStore(Arc::clone(world));
    let work = async {
        let Ok(found) = partition_layout(&store, POLLER).await else { return false };
        let Some(from) = found.parts else { return false };
        if from == to && found.under_way.is_none() {
            return true;
        }
        let parts = |count| {
            let all = Partition::all(count).into_iter();
            all.map(|part| poller(world, part, format!("{owner}-{count}"))).collect()
        };
        let operator = Operator { by: "ann", reason: "repartition" };
        match Repartition::new(parts(from), parts(to)).run(operator, &|_| ()).await {
            Ok(_) => true,
            Err(RepartitionError::Other { .. } | RepartitionError::UnderWay { .. }) => {
                world.with(|state| state.object("the division was found to be another".to_owned()));
                false
            }
            Err(_) => {
                world.with(|state| state.saw.insert("division failed"));
                false
            }
        }
    };
    match dies_after {
        None => Box::pin(work).await,
        Some(time) => {
            let ended = timeout(time, Box::pin(work)).await;
            if ended.is_err() {
                world.with(|state| state.saw.insert("division killed"));
            }
            ended.unwrap_or(false)
        }
    }
}

/// The result of one run.
pub(crate) struct Run {
    pub(crate) violation: Option<String>,
    pub(crate) saw: BTreeSet<&'static str>,
}

/// Plays one seed. In a calm world nothing fails and no process crashes.
pub(crate) fn play(seed: u64, calm: bool, wrong: Option<Wrong>) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(Box::pin(play_on(seed, calm, wrong)))
}

async fn play_on(seed: u64, calm: bool, wrong: Option<Wrong>) -> Run {
    let mut script = Random::of(seed, 21);
    let (from, to) = (script.pick(&PARTS), script.pick(&PARTS));
    let state = State {
        random: Random::of(seed, 22),
        table: Table::default(),
        fault_percent: if calm { 0 } else { script.pick(&[0, 1, 3]) },
        fences: BTreeMap::new(),
        delivered: BTreeMap::new(),
        newest: BTreeMap::new(),
        violation: None,
        saw: BTreeSet::new(),
    };
    let world = Arc::new(World { store: MemoryStore::default(), wrong, state: Mutex::new(state) });
    let mut sets = [Set::new(&world, from, "a"), Set::new(&world, from, "b")];
    // Two counts that start at the same moment are out of scope here.
    world.with(|state| {
        state.table.begin(KEYS, KEYS, &mut script);
        state.table.end(0, true, &mut Coverage::default());
    });
    while world.with(|state| state.delivered.is_empty()) {
        sets[0].tick(&world, None).await;
        sleep(TTL).await;
    }
    let divides_at = script.within(2..=10);
    let mut divided = from == to;
    for round in 0..20 {
        write(&world, &mut script);
        let dies = |script: &mut Random| (!calm && script.chance(15)).then(|| script.ms(0..=2_000));
        let which = script.index(2);
        let killed = dies(&mut script);
        sets[which].tick(&world, killed).await;
        if killed.is_some() {
            sets[which] = Set::new(&world, sets[which].count, &format!("life-{round}"));
        }
        if round >= divides_at && !divided {
            let dies = (!calm && script.chance(70)).then(|| script.ms(0..=4_000));
            let owner = format!("division-{round}");
            // Other instances tick meanwhile, with the old or already with the new count.
            let early = Set::new(&world, to, &format!("early-{round}"));
            let (done, (), ()) = tokio::join!(
                divide(&world, to, &owner, dies),
                sets[0].tick(&world, None),
                early.tick(&world, None),
            );
            divided = done;
            if done {
                sets = [Set::new(&world, to, "c"), early];
            }
        }
        sleep(script.ms(0..=8_000)).await;
    }
    end(&world, from, to, calm).await;
    world.with(|state| Run {
        violation: state.violation.take(),
        saw: std::mem::take(&mut state.saw),
    })
}

/// Writes some rows, and ends some of the open transactions.
fn write(world: &World, script: &mut Random) {
    let mut coverage = Coverage::default();
    world.with(|state| {
        for _ in 0..script.within(0..=2) {
            state.table.begin(script.within(1..=5), KEYS, script);
        }
        for _ in 0..script.within(0..=2) {
            state.table.end(script.index(3), !script.chance(15), &mut coverage);
        }
    });
}

/// Faults stop, the repartition completes, and everything is delivered.
async fn end(world: &Arc<World>, from: u16, to: u16, calm: bool) {
    world.with(|state| {
        state.fault_percent = 0;
        state.table.end_all(&mut Coverage::default());
    });
    // Partitions that have not started would have no position.
    Set::new(world, from, "last").tick(world, None).await;
    sleep(10 * TTL).await;
    let is_divided = divide(world, to, "last", None).await;
    let set = Set::new(world, to, "end");
    for _ in 0..8 {
        set.tick(world, None).await;
        sleep(2 * TTL).await;
    }
    for poller in &set.pollers {
        let key = StateKey::Document(poller.name().to_owned());
        let stored = world.store.load(&key).await.expect("memory answers").stored;
        let document = stored.map(|stored| decode(poller.name(), &stored.bytes).expect("ours"));
        if let Some(document) = document.filter(|document| document.paused.is_some()) {
            world.with(|state| state.object(format!("`{}` is paused", document.poller_name)));
        }
    }
    world.with(|state| {
        if !is_divided {
            state.object("the keys were not divided in the end".to_owned());
        }
        let missing = state
            .table
            .committed
            .iter()
            .find(|(key, version)| !state.delivered.contains_key(&(**key, **version)));
        if let Some((key, version)) = missing {
            let text = format!("row {key} at {version} never came");
            state.object(text);
        }
        let twice = state.delivered.iter().find(|(_, times)| **times > 1);
        if let Some(((key, version), times)) = twice.filter(|_| calm) {
            let text = format!("row {key} at {version} came {times} times, nothing failed");
            state.object(text);
        }
        if from != to {
            state.saw.insert("divided anew");
        }
    });
}

/// Enough cases for the fault kinds that the planted bugs need.
const JUDGED: u64 = 150;

/// Plays the configured number of worlds, and returns the fault kinds they met.
fn play_many(calm: bool) -> BTreeSet<&'static str> {
    let (first, cases) = (asked("SIM_SEED"), asked("SIM_CASES"));
    let cases = cases.unwrap_or(if first.is_some() { 1 } else { CASES / 2 });
    let first = first.unwrap_or(1);
    let mut saw = BTreeSet::new();
    for seed in first..first + cases {
        let run = play(seed, calm, None);
        assert_eq!(run.violation, None, "seed {seed}, calm: {calm}");
        saw.extend(run.saw);
    }
    let name = if calm { "parts while nothing fails" } else { "parts divided anew among faults" };
    println!("{name}: {cases} seeds from {first}, met: {saw:?}");
    if cases < JUDGED { BTreeSet::new() } else { saw }
}

#[test]
fn partitions_deliver_every_row_once_in_key_order_while_nothing_fails() {
    let saw = play_many(true);
    let all = saw.contains("divided anew") && saw.contains("another number refused");
    assert!(all || saw.is_empty(), "{saw:?}");
}

#[test]
fn a_repartition_loses_nothing_whatever_crashes() {
    let saw = play_many(false);
    for kind in [
        "answer lost",
        "another number refused",
        "divided anew",
        "division failed",
        "division killed",
        "handler failed",
        "read failed",
        "tick killed",
        "write failed",
    ] {
        assert!(saw.contains(kind) || saw.is_empty(), "{kind} never occurred: {saw:?}");
    }
}

/// Invariants that catch nothing would pass everything.
#[test]
fn planted_partition_bugs_are_caught() {
    for (wrong, calm) in [(Wrong::ReadsAll, true), (Wrong::AnyNumber, true)] {
        let found = (1..=JUDGED).find_map(|seed| play(seed, calm, Some(wrong)).violation);
        assert!(found.is_some(), "{wrong:?} not seen");
    }
}

/// The repartitioning process crashes once at each of its steps and is continued.
#[test]
fn a_repartition_that_crashed_anywhere_can_be_continued() {
    for (from, to) in [(2, 4), (4, 2), (1, 3), (3, 1)] {
        for step in 0..60 {
            let died_at = Duration::from_millis(50 * step);
            let violation = killed_at(from, to, died_at);
            assert_eq!(violation, None, "{from} to {to}, killed after {died_at:?}");
        }
    }
}

fn killed_at(from: u16, to: u16, died_at: Duration) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(Box::pin(async {
        let mut random = Random::of(7, 23);
        let mut table = Table::default();
        for _ in 0..6 {
            table.begin(6, KEYS, &mut random);
            table.end(0, true, &mut Coverage::default());
        }
        let state = State {
            random,
            table,
            fault_percent: 0,
            fences: BTreeMap::new(),
            delivered: BTreeMap::new(),
            newest: BTreeMap::new(),
            violation: None,
            saw: BTreeSet::new(),
        };
        let world = Arc::new(World {
            store: MemoryStore::default(),
            wrong: None,
            state: Mutex::new(state),
        });
        // Some partitions have delivered more than others when it starts.
        let set = Set::new(&world, from, "a");
        set.pollers[0].tick(&TickRequest::default()).await;
        divide(&world, to, "first", Some(died_at)).await;
        set.tick(&world, None).await;
        Set::new(&world, to, "early").tick(&world, None).await;
        end(&world, from, to, false).await;
        world.with(|state| state.violation.take())
    }))
}
