//! The memory store over a network: latency, a coarse and skewed clock, and requests that fail before the
//! write, lose their response, or land long after they were abandoned.
//!
//! A pending request is its own task: a crash or freeze of its sender does not stop it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::store::{
    ETag, MemoryStore, Precondition, ReadResult, StateKey, StateStore, StoreError, WriteResult,
};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use crate::parked::is_change;
use crate::script::Break;
use crate::world::{TickId, World};

/// How a document is read from and written to the memory store. Everything else is the memory store's own
/// code.
#[async_trait]
pub(crate) trait Way: Debug + Send + Sync {
    fn world(&self) -> &World;

    /// The store of the application that the process belongs to.
    fn memory(&self) -> &MemoryStore;

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError>;

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError>;

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError>;
}

/// A store behind some access path.
#[derive(Debug)]
pub(crate) struct By<W>(pub(crate) W);

#[async_trait]
impl<W: Way> StateStore for By<W> {
    fn grain(&self) -> Duration {
        self.0.world().plan.grain
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        self.0.load(key).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        self.0.store(key, bytes, precondition).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        self.0.memory().list().await
    }

    fn location(&self, key: &StateKey) -> String {
        self.0.memory().location(key)
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        self.0.memory().prepare().await
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        self.0.memory().list_counted().await
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        self.0.memory().apps_with(key).await
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        self.0.memory().of_app(app)
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        self.0.remove(key, etag).await
    }
}

/// One instance's connection to the store.
#[derive(Debug)]
pub(crate) struct SimStore {
    pub(crate) world: Arc<World>,
    pub(crate) memory: Arc<MemoryStore>,
    pub(crate) slot: usize,
    pub(crate) owner_id: String,
}

/// The fate of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Unreachable,
    LostRequest,
    LostAnswer,
    Late(Duration),
    /// Takes effect, and is answered with a version that the store does not know.
    EtagMoved,
    /// Answered by something other than the store: the request is lost, and the writer cannot know.
    Garbled,
}

/// The fate of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadFate {
    Fine,
    Unknown,
    Unreachable,
    /// Foreign content, as of a captive portal.
    Garbled,
    /// A version that the store does not know.
    EtagMoved,
    /// The service's clock is an hour fast, or slow.
    DateOff(time::Duration),
}

impl ReadFate {
    fn of(percent: u64) -> Self {
        match percent {
            0..30 => Self::Unknown,
            30..60 => Self::Unreachable,
            60..70 => Self::Garbled,
            70..80 => Self::EtagMoved,
            80..95 => Self::DateOff(time::Duration::HOUR),
            _ => Self::DateOff(-time::Duration::HOUR),
        }
    }

    fn kind(self) -> Option<&'static str> {
        match self {
            Self::Fine => None,
            Self::Unknown | Self::Unreachable => Some("store: read failed"),
            Self::Garbled => Some("store: read garbled"),
            Self::EtagMoved => Some("store: read with a foreign version"),
            Self::DateOff(_) => Some("store: read with a wrong date"),
        }
    }
}

impl Fate {
    fn kind(self) -> Option<&'static str> {
        match self {
            Self::Fine | Self::Late(_) => None,
            Self::Unreachable => Some("store: write unreachable"),
            Self::LostRequest => Some("store: write never arrived, writer cannot know"),
            Self::LostAnswer => Some("store: answer of a write lost"),
            Self::EtagMoved => Some("store: write answered with a foreign version"),
            Self::Garbled => Some("store: write answered by something else"),
        }
    }
}

/// A pending write.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    world: Arc<World>,
    memory: Arc<MemoryStore>,
    tick: TickId,
    owner_id: String,
    key: StateKey,
    bytes: Vec<u8>,
    precondition: Precondition,
    /// Whether it was abandoned before it arrived.
    late: bool,
}

impl Request {
    /// Whether it is a request to create the document.
    fn creates(&self) -> bool {
        self.precondition == Precondition::Absent && matches!(self.key, StateKey::Document(_))
    }

    /// Lands once more, like a request whose first attempt was abandoned.
    pub(crate) async fn land_again(self) {
        let world = Arc::clone(&self.world);
        let landed = Self { late: true, ..self }.arrive(Duration::ZERO).await.is_ok();
        if landed {
            world.with(|state| state.coverage.saw("store: creation landed after a deletion"));
        }
    }

    async fn arrive(self, after: Duration) -> Result<WriteResult, StoreError> {
        sleep(after).await;
        let world = self.world;
        let precondition = match self.precondition {
            Precondition::Matches(_) if world.plan.broken == Some(Break::NoIfMatch) => {
                let current = self.memory.load(&self.key).await?.stored;
                current.map_or(Precondition::Absent, |stored| Precondition::Matches(stored.etag))
            }
            asked @ (Precondition::Absent | Precondition::Matches(_)) => asked,
        };
        let written = self.memory.store(&self.key, self.bytes.clone(), precondition).await;
        world.with(|state| {
            // What lands under the application's old name is no longer part of its state.
            if !Arc::ptr_eq(&state.memory, &self.memory) {
                return;
            }
            let landed = written.is_ok();
            match (self.late, landed) {
                (true, true) => state.coverage.saw("store: late write landed"),
                (true, false) => state.coverage.saw("store: late write refused"),
                (false, true) if !state.is_running(self.tick) => {
                    state.coverage.saw("store: write landed after its writer was gone");
                }
                (false, true) => {}
                (false, false) => state.coverage.saw("store: write refused by its precondition"),
            }
            state.note(format_args!(
                "write of tick {} to {} {}",
                self.tick.0,
                self.key,
                if landed { "landed" } else { "refused" }
            ));
            if landed && matches!(self.key, StateKey::Document(_)) {
                state.document_landed(Some((self.tick, &self.owner_id)), &self.bytes);
            }
            if landed && matches!(self.key, StateKey::Marker(_)) {
                state.marked_at = Some(Instant::now());
            }
            if landed && matches!(self.key, StateKey::Quarantined { .. }) {
                state.row_set_aside(self.tick, &self.bytes);
                state.judge.entry_landed(self.tick, &self.bytes);
                state.count_sights();
            }
        });
        written
    }
}

impl SimStore {
    /// As coarse as the store's clock, and off by up to the plan's skew: two front ends never agree.
    fn seen(&self, at: OffsetDateTime, skewed: bool) -> OffsetDateTime {
        let skew = self.world.plan.skew_ms;
        let by = self.world.with(|state| state.random.below(2 * skew + 1));
        let by = i64::try_from(by).expect("small") - i64::try_from(skew).expect("small");
        let at = if skewed { at + time::Duration::milliseconds(by) } else { at };
        if self.world.plan.grain.is_zero() {
            return at;
        }
        at.replace_nanosecond(0).expect("zero nanoseconds exist")
    }
}

fn unknown(key: &StateKey) -> StoreError {
    StoreError::Unknown { key: key.path(), reason: "injected".to_owned() }
}

fn unreachable(key: &StateKey) -> StoreError {
    StoreError::Unreachable { key: key.path(), reason: "injected".to_owned() }
}

#[async_trait]
impl Way for SimStore {
    fn world(&self) -> &World {
        &self.world
    }

    fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let (there, back, fate) = self.world.with(|state| {
            let slow = state.is_slow();
            if slow {
                state.coverage.saw("store: slow");
            }
            let failed = state.fault();
            let latency = (state.latency(slow), state.latency(false));
            let percent = state.random.below(100);
            let fate = if failed { ReadFate::of(percent) } else { ReadFate::Fine };
            if let Some(kind) = fate.kind() {
                state.coverage.saw(kind);
            }
            (latency.0, latency.1, fate)
        });
        sleep(there).await;
        match fate {
            ReadFate::Unknown => return Err(unknown(key)),
            ReadFate::Unreachable => return Err(unreachable(key)),
            ReadFate::Fine | ReadFate::Garbled | ReadFate::EtagMoved | ReadFate::DateOff(_) => {}
        }
        let mut loaded = self.memory.load(key).await?;
        self.world.with(|state| {
            let began_at = state.slots[self.slot].began_at;
            if matches!(key, StateKey::Marker(_)) && state.marked_at > began_at {
                state.coverage.saw("store: marker found that was written since the tick began");
            }
        });
        loaded.date = self.seen(loaded.date, true);
        if self.world.plan.broken == Some(Break::FastClock) {
            loaded.date += Duration::from_secs(3) + 2 * self.world.plan.grain;
        }
        if let Some(stored) = &mut loaded.stored {
            stored.last_modified = self.seen(stored.last_modified, false);
            match fate {
                ReadFate::Garbled => {
                    let number = self.world.with(|state| state.random.next());
                    stored.bytes = format!("<html>Sign in: request {number}</html>").into_bytes();
                }
                ReadFate::EtagMoved => {
                    let number = self.world.with(|state| state.random.next());
                    stored.etag.0 = format!("{}-moved-{number}", stored.etag.0);
                }
                ReadFate::DateOff(off) => loaded.date += off,
                ReadFate::Fine | ReadFate::Unknown | ReadFate::Unreachable => {}
            }
        }
        sleep(back).await;
        Ok(loaded)
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let (fate, there, back, tick) = self.world.with(|state| {
            let slow = state.is_slow();
            if slow {
                state.coverage.saw("store: slow");
            }
            let late = state.random.ms(1_000..=120_000);
            let fates = [
                Fate::Unreachable,
                Fate::LostRequest,
                Fate::LostAnswer,
                Fate::Late(late),
                Fate::EtagMoved,
                Fate::Garbled,
            ];
            let fate = if state.fault() { state.random.pick(&fates) } else { Fate::Fine };
            if let Some(kind) = fate.kind() {
                state.coverage.saw(kind);
            }
            let tick = state.slots[self.slot].tick;
            if matches!(key, StateKey::Quarantined { .. }) {
                if !is_change(key, &precondition) {
                    state.judge.sets_aside(tick, &bytes);
                }
                state.judge.changes_entry(tick, &bytes);
                state.count_sights();
            }
            (fate, state.latency(slow), state.latency(false), tick)
        });
        let request = Request {
            world: Arc::clone(&self.world),
            memory: Arc::clone(&self.memory),
            tick,
            owner_id: self.owner_id.clone(),
            key: key.clone(),
            bytes,
            precondition,
            late: matches!(fate, Fate::Late(_)),
        };
        if request.creates() {
            self.world.with(|state| state.creation.get_or_insert(request.clone()).late = true);
        }
        if self.world.plan.broken == Some(Break::ForgetsEntries)
            && matches!(key, StateKey::Quarantined { .. })
        {
            let date = self.memory.load(key).await?.date;
            return Ok(WriteResult { etag: ETag("forgotten".to_owned()), date });
        }
        if self.world.plan.broken == Some(Break::ForgetsLaterVersions)
            && self.world.with(|state| state.judge.parked.is_later_version(key, &request.bytes))
        {
            let date = self.memory.load(key).await?.date;
            return Ok(WriteResult { etag: ETag("forgotten".to_owned()), date });
        }
        match fate {
            Fate::Unreachable => {
                sleep(there).await;
                Err(unreachable(key))
            }
            Fate::LostRequest | Fate::Garbled => {
                sleep(there + back).await;
                Err(unknown(key))
            }
            Fate::Late(after) => {
                drop(tokio::spawn(request.arrive(there + after)));
                sleep(there + back).await;
                Err(unknown(key))
            }
            Fate::Fine | Fate::LostAnswer | Fate::EtagMoved => {
                let answer = tokio::spawn(request.arrive(there)).await;
                sleep(back).await;
                if fate == Fate::LostAnswer {
                    return Err(unknown(key));
                }
                let mut written = answer.expect("a request does not panic")?;
                written.date = self.seen(written.date, true);
                if fate == Fate::EtagMoved {
                    written.etag.0.push_str("-moved");
                }
                Ok(written)
            }
        }
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let (fate, there, back, tick) = self.world.with(|state| {
            let late = state.random.ms(1_000..=120_000);
            let fates = [Fate::Unreachable, Fate::LostRequest, Fate::LostAnswer, Fate::Late(late)];
            let fate = if state.fault() { state.random.pick(&fates) } else { Fate::Fine };
            // Late enough for a later version to be diverted.
            let is_planted = self.world.plan.broken == Some(Break::RemovesLaterVersions);
            let fate = if is_planted && state.random.chance(50) { Fate::Late(late) } else { fate };
            if let Some(kind) = fate.kind() {
                state.coverage.saw(kind);
            }
            let tick = state.slots[self.slot].tick;
            (fate, state.latency(false), state.latency(false), tick)
        });
        let (key, etag) = (key.clone(), etag.clone());
        let removal = Removal {
            world: Arc::clone(&self.world),
            memory: Arc::clone(&self.memory),
            by: Some(tick),
            key: key.clone(),
            etag,
        };
        match fate {
            Fate::Unreachable => {
                sleep(there).await;
                return Err(unreachable(&key));
            }
            Fate::LostRequest => {
                sleep(there + back).await;
                return Err(unknown(&key));
            }
            Fate::Late(after) => {
                drop(tokio::spawn(removal.arrive(there + after)));
                sleep(there + back).await;
                return Err(unknown(&key));
            }
            Fate::Fine | Fate::LostAnswer | Fate::EtagMoved | Fate::Garbled => {}
        }
        let answer = tokio::spawn(removal.arrive(there)).await;
        sleep(back).await;
        if fate == Fate::LostAnswer {
            return Err(unknown(&key));
        }
        answer.expect("a request does not panic")
    }
}

/// A pending removal.
pub(crate) struct Removal {
    pub(crate) world: Arc<World>,
    pub(crate) memory: Arc<MemoryStore>,
    /// The tick; `None` if an operator drops the entry.
    pub(crate) by: Option<TickId>,
    pub(crate) key: StateKey,
    pub(crate) etag: ETag,
}

impl Removal {
    pub(crate) async fn arrive(self, after: Duration) -> Result<(), StoreError> {
        sleep(after).await;
        let etag = match self.world.plan.broken {
            Some(Break::RemovesLaterVersions) => {
                let stored = self.memory.load(&self.key).await?.stored;
                stored.map_or(self.etag, |stored| stored.etag)
            }
            Some(_) | None => self.etag,
        };
        let removed = self.memory.remove(&self.key, &etag).await;
        self.world.with(|state| {
            let StateKey::Quarantined { key, .. } = &self.key else { return };
            let word = if removed.is_ok() { "landed" } else { "refused" };
            state.note(format_args!("removal of {} by {:?} {word}", self.key, self.by));
            if removed.is_ok() && Arc::ptr_eq(&state.memory, &self.memory) {
                state.judge.entry_removed(self.by, key.as_str(), &state.table.committed);
                state.count_sights();
            }
        });
        removed
    }
}
