//! One world: the clock, the instances, and their shared state.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_engine::clock::TokioClock;
use highwater_engine::cursor::SourceFingerprint;
use highwater_engine::document::Snapshot;
use highwater_engine::document::{DocumentAge, OnMissingState, Paused, StateDocument, encode};
use highwater_engine::handler::chain::Chain;
use highwater_engine::handler::{Handler, HandlerError, Step};
use highwater_engine::journal::{EventKind, JournalMode, MemoryJournal};
use highwater_engine::lease::{Instance, LeaseError};
use highwater_engine::poller::{Poller, PollerParts, StopSignal, TickError, outcome_row};
use highwater_engine::source::Source as _;
use highwater_engine::store::{DateCheckedStore, MemoryStore, Precondition, StateKey, StateStore};
use highwater_engine::tick::{TickReport, TickRequest};
use time::macros::datetime;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

use crate::coverage::Coverage;
use crate::freeze::{Guarded, Hold};
use crate::history::History;
use crate::invariants::{Judge, Landed};
use crate::journal::{Ledger, SimJournal};
use crate::operator;
use crate::random::Random;
use crate::script::{Break, Op, Plan, RETRY_MAX};
use crate::source::{SimSource, Table};
use crate::store::{By, Request, SimStore};
use crate::target::{SimHandler, SimStep, Target};

pub(crate) const POLLER: &str = "orders";

/// Number of a tick, over all instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TickId(pub(crate) u64);

/// An instance as the world sees it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) hold: Hold,
    /// Its newest tick, and when that started.
    pub(crate) tick: TickId,
    pub(crate) began_at: Option<Instant>,
    /// Whether its handler runs.
    pub(crate) handles: bool,
    /// Whether it has started a prefetch while its handler ran.
    pub(crate) reads_ahead: bool,
    /// The source that its process reads.
    pub(crate) fingerprint: String,
    is_dead: bool,
}

impl Slot {
    fn is_frozen(&self) -> bool {
        self.hold.frozen_until.is_some_and(|until| Instant::now() < until)
    }

    /// Counts a poll, and returns whether it was the last one.
    pub(crate) fn dies_now(&mut self) -> bool {
        match self.hold.dies_in.take() {
            Some(0) => self.is_dead = true,
            Some(left) => self.hold.dies_in = Some(left - 1),
            None => {}
        }
        self.is_dead
    }
}

/// All mutable state.
#[derive(Debug)]
pub(crate) struct State {
    /// The store of the application's current name, used by processes that start now.
    pub(crate) memory: Arc<MemoryStore>,
    /// The earlier names of the application, oldest first.
    pub(crate) left: Vec<LeftApp>,
    pub(crate) random: Random,
    pub(crate) table: Table,
    pub(crate) target: Target,
    pub(crate) judge: Judge,
    pub(crate) slots: Vec<Slot>,
    pub(crate) coverage: Coverage,
    pub(crate) history: History,
    pub(crate) ledger: Ledger,
    /// The first request to create the document.
    pub(crate) creation: Option<Request>,
    /// The document as copied by the operator, and the table of its checkpoint.
    pub(crate) copy: Option<(Vec<u8>, u64)>,
    /// How often the table was renamed in the settings.
    pub(crate) names: u64,
    /// When the marker was last written.
    pub(crate) marked_at: Option<Instant>,
    running: BTreeSet<TickId>,
    /// Failed ticks since the last remedy that report another source.
    alarms: u64,
    /// Whether a tick has reported that the target knows a higher grant than the document.
    fence_ahead: bool,
    fault_percent: u64,
    latency_ms: u64,
    pace_ms: u64,
    slow_ms: u64,
}

/// An earlier name of the application.
#[derive(Clone, Debug)]
pub(crate) struct LeftApp {
    pub(crate) app: String,
    /// The table of its checkpoint.
    pub(crate) checkpoint_of: u64,
    /// The source from which it has delivered rows.
    delivered: Option<String>,
}

impl State {
    /// Returns the latest earlier name under which rows of the current source were delivered.
    pub(crate) fn left_with_source(&self) -> Option<&LeftApp> {
        let source = self.fingerprint();
        self.left.iter().rev().find(|left| left.delivered.as_deref() == Some(source.as_str()))
    }

    /// Returns the fingerprint of the configured source.
    fn fingerprint(&self) -> SourceFingerprint {
        SourceFingerprint::of(&[("object", &format!("dbo.t{}", self.names))])
    }

    pub(crate) fn fault(&mut self) -> bool {
        let percent = self.fault_percent;
        percent > 0 && self.random.chance(percent)
    }

    /// If faults are on, now and then something takes longer than a lease lives.
    pub(crate) fn is_slow(&mut self) -> bool {
        self.fault_percent > 0 && self.random.chance(2)
    }

    pub(crate) fn latency(&mut self, slow: bool) -> Duration {
        if slow { self.random.ms(1..=self.slow_ms) } else { self.random.ms(0..=self.latency_ms) }
    }

    /// Returns how long one step of the handler takes.
    pub(crate) fn pace(&mut self) -> Duration {
        self.random.ms(0..=self.pace_ms)
    }

    pub(crate) fn fault_percent(&self) -> u64 {
        self.fault_percent
    }

    pub(crate) fn latency_max_ms(&self) -> u64 {
        self.latency_ms
    }

    pub(crate) fn is_running(&self, tick: TickId) -> bool {
        self.running.contains(&tick)
    }

    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.history.note(what);
    }

    pub(crate) fn document_landed(&mut self, writer: Option<(TickId, &str)>, bytes: &[u8]) {
        match self.judge.document_landed(writer, bytes, &self.table.committed) {
            Landed::TakenOver => self.coverage.saw("instance: lapsed lease taken over"),
            Landed::Granted | Landed::Other => {}
        }
        self.ledger.landed(bytes);
        self.count_sights();
        self.history.note_bytes(bytes);
        let checkpoint = self.judge.checkpoint;
        let in_flight = self.judge.failures.in_flight;
        self.note(format_args!("checkpoint {checkpoint}, in flight {in_flight:?}"));
    }

    /// How far checkpoint and deliveries have come.
    fn reached(&mut self) -> (u64, usize) {
        (self.judge.checkpoint, self.judge.failures.set_aside_count())
    }

    pub(crate) fn row_set_aside(&mut self, tick: TickId, bytes: &[u8]) {
        let what = self.judge.set_aside(bytes);
        self.note(format_args!("tick {} set aside {what}", tick.0));
    }

    pub(crate) fn count_sights(&mut self) {
        for kind in std::mem::take(&mut self.judge.saw) {
            self.coverage.saw(kind);
        }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    /// The store's true time, which each machine's clock also shows.
    clock: TokioClock,
    pub(crate) journals: MemoryJournal,
    state: Mutex<State>,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan, history: History) -> Arc<Self> {
        let ttl_ms = u64::try_from(plan.terms.ttl.as_millis()).expect("at most a minute");
        let clock = TokioClock::starting_at(datetime!(2026-01-01 0:00 UTC));
        let state = State {
            memory: Arc::new(MemoryStore::with_clock(Arc::new(clock)).under_app(&app(0))),
            left: Vec::new(),
            random: Random::of(seed, 3),
            table: Table::default(),
            target: Target::default(),
            judge: Judge::of(&plan),
            // The last one is that of an operator's redrives.
            slots: (0..=plan.instances).map(|_| Slot::default()).collect(),
            coverage: Coverage::default(),
            history,
            ledger: Ledger::of(seed, plan.journal),
            creation: None,
            copy: None,
            names: 0,
            marked_at: None,
            running: BTreeSet::new(),
            alarms: 0,
            fence_ahead: false,
            fault_percent: plan.fault_percent,
            latency_ms: plan.latency_ms,
            pace_ms: plan.pace_ms,
            slow_ms: 2 * ttl_ms,
        };
        let journals = MemoryJournal::default();
        Arc::new(Self { plan, clock, journals, state: Mutex::new(state) })
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("no holder of this lock panics"))
    }

    pub(crate) fn memory(&self) -> Arc<MemoryStore> {
        self.with(|state| Arc::clone(&state.memory))
    }

    /// Deletes the document in a way that lets it be created again.
    ///
    /// A document without its own marker is left alone. Nothing would record that it existed, and only the
    /// clock, coarse and skewed, would distinguish its generation from the next.
    async fn lose_document(&self) {
        let key = StateKey::Document(POLLER.to_owned());
        let generation = |bytes: &[u8]| {
            let stored: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
            stored["generation"].as_u64().expect("a generation")
        };
        let loaded = self.memory().load(&StateKey::Marker(POLLER.to_owned())).await;
        let marked = loaded.expect("memory answers").stored.map(|found| generation(&found.bytes));
        let found = self.memory().load(&key).await.expect("memory answers").stored;
        let found = found.map(|found| generation(&found.bytes));
        if self.plan.limits.on_missing_state != OnMissingState::Recreate
            || found.is_none_or(|generation| marked.is_none_or(|marked| generation > marked))
        {
            return;
        }
        self.memory().lose(&key);
        self.with(|state| {
            let kind = if state.judge.is_held() { DELETED_HELD } else { DELETED };
            state.coverage.saw(kind);
            state.judge.document_lost();
            state.judge.parked.document_lost();
        });
    }

    /// Lets the operator change the document, atomically.
    async fn operate(
        &self,
        event: EventKind,
        change: impl FnOnce(&StateDocument, DocumentAge) -> StateDocument,
    ) -> bool {
        if self.plan.calm {
            // Each of these costs an overlapping renewal another attempt; no lease survives several in a row.
            sleep(self.plan.terms.ttl / 2).await;
        }
        let key = StateKey::Document(POLLER.to_owned());
        let loaded = self.memory().load(&key).await.expect("memory answers");
        let Some(stored) = loaded.stored else { return false };
        let etag = stored.etag.clone();
        let snapshot = Snapshot::read(&key, stored, loaded.date).expect("our own document");
        let mut document = change(&snapshot.document, snapshot.age(Duration::ZERO));
        document.write_id = format!("operator#{}", self.with(|state| state.random.next()));
        self.plan.journal.number(event, &mut document);
        let bytes = encode(&document);
        let written = self.memory().store(&key, bytes.clone(), Precondition::Matches(etag)).await;
        let written = written.expect("nobody came between");
        self.with(|state| state.document_landed(None, &bytes));
        self.record_operator_action(event, &document, written.date).await;
        true
    }
}

/// The name of the application after this many renames.
fn app(renames: usize) -> String {
    format!("app{renames}")
}

/// One instance slot: when an instance crashes, another with a new name and no memory follows.
struct Seat {
    poller: Arc<Poller>,
    lives: u64,
    running: Option<JoinHandle<Option<TickReport>>>,
    stop: StopSignal,
}

/// Plays a script in a world.
pub(crate) struct Player {
    world: Arc<World>,
    seats: Vec<Seat>,
    ticks: u64,
    /// An operator's redrive.
    redriving: Option<JoinHandle<Option<()>>>,
}

impl Player {
    pub(crate) fn new(world: Arc<World>) -> Self {
        let seats = (0..world.plan.instances).map(|slot| Seat {
            poller: poller(&world, slot, 0),
            lives: 0,
            running: None,
            stop: StopSignal::new(),
        });
        Self { seats: seats.collect(), world, ticks: 0, redriving: None }
    }

    pub(crate) async fn play(&mut self, ops: &[Op]) {
        for op in ops {
            self.world.with(|state| state.note(format_args!("{op:?}")));
            self.act(*op).await;
        }
    }

    pub(crate) async fn act(&mut self, op: Op) {
        let world = Arc::clone(&self.world);
        match op {
            Op::Wait(duration) => sleep(duration).await,
            Op::Tick(slot) => self.tick(slot).await,
            Op::Begin(rows) => world.with(|state| {
                state.table.begin(rows, world.plan.keys, &mut state.random);
                if !state.table.all_delivered(state.judge.checkpoint) {
                    state.coverage.saw("source: update of a row not yet delivered");
                }
            }),
            Op::End { which, commit } => {
                world.with(|state| state.table.end(which, commit, &mut state.coverage));
            }
            Op::Freeze(slot, duration) => self.freeze(slot, duration).await,
            Op::Crash(slot, polls) => self.crash(slot, polls).await,
            Op::Stop(slot) => self.stop(slot),
            Op::FaultPercent(percent) => world.with(|state| state.fault_percent = percent),
            Op::Outage(duration) => world.with(|state| {
                state.target.down_until = Some(Instant::now() + duration);
            }),
            Op::Refuse(key, duration, bad) => world.with(|state| {
                state.target.refused.insert(key, (Instant::now() + duration, bad));
            }),
            Op::Update(key) => world.with(|state| state.table.update(key)),
            Op::DropEntries => Box::pin(operator::drop_entries(&world)).await,
            Op::Redrive(polls) => self.redrive(polls).await,
            Op::Pause => self.pause().await,
            Op::LoseDocument => world.lose_document().await,
            Op::LoseForGood => operator::lose_for_good(&world).await,
            Op::Reset => {
                if let Err(error) = Box::pin(operator::reset(&world)).await {
                    world.with(|state| state.note(format_args!("reset refused: {error}")));
                }
            }
            Op::Copy => operator::copy(&world).await,
            Op::Recreate(rows) => self.change_table(|table| table.recreate(rows)),
            Op::Stage(rows) => self.change_table(|table| table.stage(rows)),
            Op::Swap => self.change_table(Table::swap),
            Op::Truncate(rows) => self.change_table(|table| table.truncate(rows)),
            Op::Retype => self.change_table(Table::retype),
            Op::Column(added) => world.with(|state| {
                state.table.has_extra = added;
                state.coverage.saw("source: column added or dropped");
            }),
            Op::RenameApp => self.rename_app().await,
            Op::LoseMarker => operator::lose_marker(&world).await,
            Op::PutBack => self.put_back().await,
            Op::Track(on) => self.track(on),
            Op::Duplicate => world.with(|state| state.table.put_twins()),
            Op::RemoveTwins => world.with(|state| state.table.twins.clear()),
            Op::Rename => self.rename(),
            Op::Restore => Box::pin(operator::restore(&world)).await,
            Op::CreationLands => {
                let creation = world.with(|state| state.creation.clone());
                if let Some(request) = creation {
                    request.land_again().await;
                }
            }
            Op::Resume => {
                world.operate(EventKind::Resumed, StateDocument::resume).await;
            }
            // The command has no effect on a document that was never granted.
            Op::BreakLease if world.with(|state| state.judge.is_elsewhere) => {}
            Op::BreakLease => {
                let broken = |document: &StateDocument, _| document.break_lease().unwrap();
                if world.operate(EventKind::LeaseBroken, broken).await {
                    world.with(|state| state.coverage.saw("operator: broke the lease"));
                }
            }
        }
    }

    /// An operator redrives all entries while ticks go on; the process may crash after some polls.
    async fn redrive(&mut self, polls: Option<u64>) {
        if self.is_redriving().await {
            return;
        }
        self.ticks += 1;
        let (world, slot, tick) =
            (Arc::clone(&self.world), self.world.plan.instances, TickId(self.ticks));
        world.with(|state| {
            state.slots[slot] = Slot { tick, began_at: Some(Instant::now()), ..Slot::default() };
            state.slots[slot].hold.dies_in = polls;
            state.slots[slot].fingerprint = state.fingerprint().to_string();
            state.running.insert(tick);
            state.note(format_args!("tick {} is a redrive", tick.0));
        });
        let run = operator::redrive(Arc::clone(&world), slot);
        let guarded = Guarded::new(Arc::clone(&world), slot, run);
        self.redriving = Some(tokio::spawn(async move {
            let ended = guarded.await;
            world.with(|state| state.running.remove(&tick));
            ended
        }));
        yield_now().await;
    }

    /// Whether a redrive runs. Records one that has ended.
    async fn is_redriving(&mut self) -> bool {
        if self.redriving.as_ref().is_some_and(|running| !running.is_finished()) {
            return true;
        }
        if let Some(ended) = self.redriving.take() {
            let ended = ended.await;
            self.world.with(|state| match ended {
                Ok(Some(())) => {}
                Ok(None) => state.coverage.saw("operator: crashed in a redrive"),
                Err(error) => state.judge.object(format!("a redrive panicked: {error}")),
            });
        }
        false
    }

    fn track(&self, on: bool) {
        self.world.with(|state| state.judge.ever_replaced |= !on);
        self.change_table(|table| table.track(on));
    }

    fn change_table(&self, change: impl FnOnce(&mut Table)) {
        let newest = TickId(self.ticks);
        self.world.with(|state| {
            let before = state.table.identity;
            change(&mut state.table);
            if state.table.identity > before {
                state.judge.table_replaced(state.table.identity, newest);
            }
            if state.judge.position_is_lost() {
                state.coverage.saw("source: table replaced behind the checkpoint");
            }
        });
    }

    /// Renames the table in the settings; idle processes restart with the new name.
    fn rename(&self) {
        self.world.with(|state| {
            state.names += 1;
            state.judge.source_renamed();
            state.judge.ever_renamed = true;
        });
        self.restart_idle();
    }

    /// Stops all instances, as before a deployment, and waits until none of their writes can land.
    async fn stop_all(&mut self) {
        if let Some(redriving) = self.redriving.take() {
            redriving.abort();
            drop(redriving.await);
            let slot = self.world.plan.instances;
            self.world.with(|state| {
                let tick = state.slots[slot].tick;
                state.running.remove(&tick);
            });
        }
        for slot in 0..self.seats.len() {
            self.kill(slot).await;
            self.world.with(|state| state.slots[slot].is_dead = true);
            self.collect(slot).await;
        }
        sleep(LANDS_WITHIN).await;
    }

    /// The instances restart under another application name that has no document.
    async fn rename_app(&mut self) {
        self.stop_all().await;
        let key = StateKey::Document(POLLER.to_owned());
        let stored = self.world.memory().load(&key).await.expect("memory answers").stored;
        self.world.with(|state| {
            let renames = state.left.len();
            let has_delivered = stored.is_some() && state.judge.checkpoint > 0;
            state.left.push(LeftApp {
                app: app(renames),
                checkpoint_of: state.judge.checkpoint_of(),
                delivered: has_delivered.then(|| state.judge.fingerprint().to_owned()),
            });
            state.memory = Arc::new(state.memory.under_app(&app(renames + 1)));
            state.creation = None;
            state.copy = None;
            let is_elsewhere = state.left_with_source().is_some();
            state.judge.app_renamed(is_elsewhere);
            state.coverage.saw("instance: another app name");
        });
        for slot in 0..self.seats.len() {
            self.seats[slot].poller = poller(&self.world, slot, self.seats[slot].lives);
        }
    }

    /// An older copy is restored, as by the storage service itself.
    async fn put_back(&mut self) {
        self.stop_all().await;
        operator::put_back(&self.world).await;
    }

    fn restart_idle(&self) {
        self.world.with(|state| {
            for (slot, seat) in state.slots.iter_mut().zip(&self.seats) {
                slot.is_dead |= seat.running.is_none();
            }
        });
    }

    async fn pause(&self) {
        let held = self.world.with(|state| state.judge.is_held());
        let pause = |document: &StateDocument, age| {
            let at = time::OffsetDateTime::UNIX_EPOCH;
            let (by, reason) = ("operator".to_owned(), "maintenance".to_owned());
            document.pause(Paused { by, reason, at, extra: serde_json::Map::new() }, age)
        };
        if self.world.operate(EventKind::Paused, pause).await {
            let kind =
                if held { "operator: paused under a held lease" } else { "operator: paused" };
            self.world.with(|state| state.coverage.saw(kind));
        }
    }

    async fn freeze(&mut self, slot: usize, duration: Duration) {
        let busy = self.collect(slot).await;
        let past_lease = duration > self.world.plan.terms.ttl + Duration::from_secs(2);
        self.world.with(|state| {
            let hold = &mut state.slots[slot].hold;
            hold.frozen_until = hold.frozen_until.max(Some(Instant::now() + duration));
            if busy {
                let kind = if past_lease { "instance: frozen past its lease" } else { FROZEN };
                state.coverage.saw(kind);
            }
        });
    }

    /// Requests the running tick of an instance to stop after the batch in flight.
    pub(crate) fn stop(&mut self, slot: usize) {
        self.seats[slot].stop.set();
        self.world.with(|state| state.coverage.saw("instance: told to stop"));
    }

    /// Kills an instance at this very moment; its sent requests stay pending.
    pub(crate) async fn kill(&mut self, slot: usize) {
        let Some(running) = self.seats[slot].running.take() else { return };
        running.abort();
        if running.await.is_err() {
            let tick = self.world.with(|state| state.slots[slot].tick);
            self.world.with(|state| state.tick_ended(tick, None));
        }
    }

    async fn crash(&mut self, slot: usize, polls: u64) {
        self.collect(slot).await;
        let busy = self.seats[slot].running.is_some();
        self.world.with(|state| {
            state.slots[slot].hold.dies_in = Some(polls);
            if !busy && polls == 0 {
                state.slots[slot].is_dead = true;
                state.coverage.saw("instance: crash between ticks");
            }
        });
    }

    /// Records a tick that has ended; returns whether one is still running.
    async fn collect(&mut self, slot: usize) -> bool {
        let seat = &mut self.seats[slot];
        if seat.running.as_ref().is_some_and(|running| !running.is_finished()) {
            return true;
        }
        if let Some(running) = seat.running.take() {
            let ended = running.await;
            let died = matches!(ended, Ok(None));
            self.world.with(|state| match ended {
                Ok(Some(_)) => {}
                Ok(None) => state.coverage.saw("instance: crash in a tick"),
                Err(error) => state.judge.object(format!("a tick panicked: {error}")),
            });
            if died {
                self.world.judge_journal().await;
            }
        }
        if self.world.with(|state| std::mem::take(&mut state.slots[slot].is_dead)) {
            seat.lives += 1;
            seat.poller = poller(&self.world, slot, seat.lives);
            self.world.with(|state| state.slots[slot].hold = Hold::default());
        }
        false
    }

    /// The timer of an instance fires.
    pub(crate) async fn tick(&mut self, slot: usize) {
        if self.collect(slot).await {
            if self.world.with(|state| state.slots[slot].is_frozen()) {
                return;
            }
            // A second tick of the same process must return at once, whatever the first one does.
            let report = self.seats[slot].poller.tick(&TickRequest::default()).await;
            self.world.with(|state| {
                state.coverage.saw("instance: second tick while one runs");
                if outcome_row(&report.result).outcome != "skipped" {
                    state.judge.object(format!("a second tick ran: {}", report.summary));
                }
            });
            return;
        }
        self.ticks += 1;
        let (world, tick) = (Arc::clone(&self.world), TickId(self.ticks));
        let seat = &mut self.seats[slot];
        seat.stop = StopSignal::new();
        let (poller, stop) = (Arc::clone(&seat.poller), seat.stop.clone());
        world.with(|state| {
            state.slots[slot].tick = tick;
            state.slots[slot].began_at = Some(Instant::now());
            state.slots[slot].handles = false;
            state.running.insert(tick);
            state.note(format_args!("tick {} on instance {slot}", tick.0));
        });
        let run = async move { poller.tick(&TickRequest { stop, ..TickRequest::default() }).await };
        let guarded = Guarded::new(Arc::clone(&world), slot, run);
        seat.running = Some(tokio::spawn(async move {
            let report = guarded.await;
            world.with(|state| state.tick_ended(tick, report.as_ref()));
            report
        }));
        // The first step of a tick belongs to its start.
        yield_now().await;
    }

    /// Stops all faults, and lets every instance work until nothing is left or time is up.
    pub(crate) async fn drain(&mut self) {
        let world = Arc::clone(&self.world);
        world.with(|state| {
            state.note(format_args!("faults stop"));
            state.fault_percent = 0;
            state.target.down_until = None;
            state.target.refused.clear();
            // A poller blocked by a bad row waits for a fix of the target, also if it has no other row to
            // distinguish the bad one from an outage.
            let passed =
                world.plan.bad.are_passed_by(world.plan.policy, world.plan.limits.batch_rows_max);
            state.target.is_mended |= !passed;
            // A handler that needs longer than a tick would never finish.
            state.pace_ms = state.pace_ms.min(20);
            state.table.end_all(&mut state.coverage);
            state.table.put_good(world.plan.bad);
            state.table.twins.clear();
            for slot in &mut state.slots {
                slot.hold.dies_in = None;
            }
        });
        while self.is_redriving().await {
            sleep(Duration::from_secs(1)).await;
        }
        world.operate(EventKind::Resumed, StateDocument::resume).await;
        if world.with(|state| state.judge.has_vanished) {
            let found = if world.with(|state| state.judge.is_elsewhere) {
                Box::pin(operator::clone_from_before(&world)).await
            } else {
                Box::pin(operator::reset(&world)).await
            };
            if let Err(error) = found {
                let text = format!("a lost document stays lost: {error}");
                world.with(|state| state.judge.object(text));
            }
        }
        world.operate(EventKind::Resumed, StateDocument::resume).await;
        Box::pin(self.remedy()).await;
        self.settle().await;
        // Requests that were abandoned long ago still land; then comes the last check.
        sleep(Duration::from_secs(300)).await;
        world.operate(EventKind::Resumed, StateDocument::resume).await;
        self.settle().await;
        self.recover().await;
        world.judge_parked().await;
        world.judge_journal().await;
        world.with(|state| {
            let fenced = world.plan.fenced.then_some(&state.target.rows);
            state.judge.end(world.plan.calm, &state.table.committed, fenced);
        });
    }

    /// The target accepts everything from now on: each parked key that is retried must recover within the longest
    /// retry interval, without a new row. Each round retries at least one key.
    async fn recover(&mut self) {
        if !self.world.plan.policy.park.retries() {
            return;
        }
        self.world.with(|state| {
            state.note(format_args!("the target accepts everything"));
            state.target.is_mended = true;
        });
        sleep(self.world.plan.policy.park.backoff.max + self.world.plan.terms.ttl).await;
        for _ in 0..self.world.retry_rounds() {
            self.settle_one_round().await;
            if !self.world.has_retries_left() {
                break;
            }
        }
        // A tick that found no key due knows how many there are.
        self.settle_one_round().await;
    }

    /// Lets ticks report what happened to the table, and applies the remedy.
    async fn remedy(&mut self) {
        self.track(true);
        while self.finish_all().await {}
        self.restart_idle();
        for _ in 0..REMEDIES_MAX {
            let (is_lost, is_renamed) = self.world.with(|state| {
                let is_other = state.judge.fingerprint() != state.fingerprint().as_str();
                (state.judge.position_is_lost(), state.judge.ever_renamed && is_other)
            });
            if !is_lost && !is_renamed {
                return;
            }
            self.world.with(|state| state.alarms = 0);
            self.settle_one_round().await;
            // A document that the target rejects hides what happened to the table.
            self.raise_above_fence().await;
            // Nothing is stored, or a lease has to expire first.
            if self.world.with(|state| state.alarms) == 0 {
                sleep(RETRY_MAX).await;
                continue;
            }
            let done = if is_lost {
                Box::pin(operator::reset(&self.world)).await
            } else {
                Box::pin(operator::accept_name(&self.world)).await
            };
            self.world.with(|state| {
                state.note(format_args!("remedy: {done:?}"));
                if is_lost && done.is_ok() {
                    state.coverage.saw("operator: reset after the table was replaced");
                }
            });
            // The lease of a crashed process has to expire first.
            if done.is_err() {
                sleep(RETRY_MAX).await;
            }
        }
    }

    /// Applies the remedy for a document that was put back, if the target has reported it.
    async fn raise_above_fence(&self) {
        if self.world.with(|state| std::mem::take(&mut state.fence_ahead)) {
            let raised = Box::pin(operator::raise_above_fence(&self.world)).await;
            self.world.with(|state| state.note(format_args!("remedy: {raised:?}")));
        }
    }

    async fn settle_one_round(&mut self) {
        for slot in 0..self.seats.len() {
            self.tick(slot).await;
            while self.collect(slot).await {
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Lets a moment pass if a tick is running.
    async fn finish_all(&mut self) -> bool {
        let mut runs = false;
        for slot in 0..self.seats.len() {
            runs |= self.collect(slot).await;
        }
        if runs {
            sleep(Duration::from_secs(1)).await;
        }
        runs
    }

    async fn settle(&mut self) {
        // A round may make no progress while a lease expires or a batch backs off.
        let pause = (self.world.plan.terms.ttl + RETRY_MAX) / 4;
        let (mut idle_rounds, mut helps, mut reached) = (0, 0, (0, 0));
        while idle_rounds < ROUNDS_MAX {
            for slot in 0..self.seats.len() {
                while self.collect(slot).await {
                    sleep(Duration::from_secs(1)).await;
                }
                self.tick(slot).await;
                while self.collect(slot).await {
                    sleep(Duration::from_secs(1)).await;
                }
            }
            let now = self.world.with(State::reached);
            idle_rounds = if now == reached { idle_rounds + 1 } else { 0 };
            reached = now;
            self.raise_above_fence().await;
            let drained =
                self.world.with(|state| state.table.all_delivered(state.judge.checkpoint));
            if drained {
                return;
            }
            if idle_rounds == ROUNDS_MAX && helps < HELPS_MAX && self.is_helped().await {
                (idle_rounds, helps) = (0, helps + 1);
            }
            sleep(pause).await;
        }
    }

    /// Fixes the target if a bad row cannot be distinguished from an outage because the next row is bad, too;
    /// resumes a poller that stopped because a tick had no time left for a batch. Returns whether either was
    /// needed.
    async fn is_helped(&self) -> bool {
        let plan = &self.world.plan;
        let is_short = plan.limits.handler_stop_after < plan.limits.tick_time_max;
        if is_short && self.world.with(|state| state.judge.failures.is_stopped) {
            return self.world.operate(EventKind::Resumed, StateDocument::resume).await;
        }
        self.world.with(|state| {
            let next = state.table.behind(state.judge.checkpoint);
            let side_by_side = next.iter().take(2).all(|version| plan.bad.of(*version).is_some());
            if !side_by_side || state.target.is_mended {
                return false;
            }
            state.coverage.saw("policy: bad rows side by side, mended");
            state.target.is_mended = true;
            true
        })
    }
}

const FROZEN: &str = "instance: frozen in a tick";
const DELETED: &str = "operator: deleted the document";
const DELETED_HELD: &str = "operator: deleted the document under a held lease";

/// Longer than any abandoned request needs to land.
const LANDS_WITHIN: Duration = Duration::from_secs(300);

/// The bound on progress: rounds of (TTL + longest backoff) / 4 without any, once faults have stopped and an
/// operator has acted. The longest in 400 worlds took 13.
const ROUNDS_MAX: u32 = 30;
/// Each ends a stop for lack of time; the batch then comes first in its tick.
const HELPS_MAX: u32 = 40;
/// A table may be replaced while the document belongs to another name, and leases expire before a reset.
const REMEDIES_MAX: u32 = 12;

impl State {
    fn tick_ended(&mut self, tick: TickId, report: Option<&TickReport>) {
        self.running.remove(&tick);
        let Some(report) = report else {
            self.note(format_args!("tick {} died", tick.0));
            return;
        };
        let row = outcome_row(&report.result);
        self.coverage.saw(&format!("tick: {}", row.outcome));
        self.note(format_args!("tick {}: {}", tick.0, report.summary));
        let is_uncommitted = ["commit_failed", "lease_lost"].contains(&row.outcome);
        if is_uncommitted && self.judge.failures.is_ahead(tick) {
            self.coverage.saw("overlap: next handler in vain, since the commit failed");
        }
        if let Err(TickError::Handler(HandlerError::Stalled(_))) = report.result {
            self.coverage.saw("handler: stalled");
        }
        if let Err(
            TickError::LeaseLost(LeaseError::Lost(_))
            | TickError::Commit(LeaseError::Lost(_))
            | TickError::Handler(HandlerError::Fenced(_)),
        ) = report.result
        {
            self.judge.lease_reported_lost(tick);
        }
        // A tick may have looked before the remedy, and ended after it.
        let vanished = row.outcome == "state_vanished" && !self.judge.ever_vanished;
        let lost = row.outcome == "position_lost" && !self.judge.ever_replaced;
        let renamed = row.outcome == "fingerprint" && !self.judge.ever_renamed;
        let elsewhere = row.outcome == "first_run_elsewhere" && !self.judge.ever_elsewhere;
        let ahead = row.outcome == "fence_ahead" && !self.judge.ever_put_back;
        self.fence_ahead |= row.outcome == "fence_ahead";
        self.alarms += u64::from(["position_lost", "fingerprint"].contains(&row.outcome));
        if vanished || lost || renamed || elsewhere || ahead || row.outcome == "normalize_failed" {
            self.judge.object(format!("alarm without a cause: {}", report.summary));
        }
    }
}

pub(crate) fn handler(world: &Arc<World>, slot: usize) -> Arc<dyn Handler> {
    let last = Arc::new(SimHandler { world: Arc::clone(world), slot });
    if !world.plan.chain {
        return last;
    }
    let first = Arc::new(SimStep { world: Arc::clone(world) });
    let step = |name: &str, handler: Arc<dyn Handler>| Step { name: name.to_owned(), handler };
    Arc::new(Chain::new(vec![step("first", first), step("last", last)]))
}

pub(crate) fn store(world: &Arc<World>, slot: usize, owner_id: &str) -> Arc<dyn StateStore> {
    let owner_id = owner_id.to_owned();
    let memory = world.memory();
    let store = Arc::new(By(SimStore { world: Arc::clone(world), memory, slot, owner_id }));
    if world.plan.broken == Some(Break::FastClock) {
        // With the check, that clock would do no harm.
        return store;
    }
    Arc::new(DateCheckedStore::new(store, world.plan.terms.ttl, Arc::new(world.clock)))
}

fn poller(world: &Arc<World>, slot: usize, lives: u64) -> Arc<Poller> {
    let owner_id = format!("instance-{slot}-life-{lives}");
    let source = SimSource::new(Arc::clone(world), slot);
    let fingerprint = source.shape().fingerprint.to_string();
    world.with(|state| state.slots[slot].fingerprint = fingerprint);
    let poller = Poller::new(PollerParts {
        name: POLLER.to_owned(),
        source: Arc::new(source),
        handler: handler(world, slot),
        store: store(world, slot, &owner_id),
        instance: Arc::new(Instance::new(owner_id)),
        terms: world.plan.terms,
        limits: world.plan.limits,
        policy: world.plan.policy,
        metrics: Arc::default(),
    })
    .with_flow(world.plan.flow);
    Arc::new(match world.plan.journal {
        JournalMode::Off => poller,
        mode @ (JournalMode::Commits | JournalMode::Full) => {
            let journal = SimJournal { world: Arc::clone(world) };
            poller.with_journal(mode, Arc::new(journal), None)
        }
    })
}
