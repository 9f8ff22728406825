//! A table with overlapping transactions, and a reader that works like the rowversion mode.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use highwater_engine::cursor::{
    Cursor, CursorMode, KeyValues, RowVersion, SourceDefinition, SourceFingerprint, SourceState,
};
use highwater_engine::error::ErrorKind;
use highwater_engine::event::{Operation, SourceLabel};
use highwater_engine::source::{
    Anchor, FetchError, FetchWindow, RetainedState, Rows, Source, SourceShape,
};
use highwater_engine::value::Value;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::bad::BadRows;
use crate::coverage::Coverage;
use crate::random::Random;
use crate::script::Break;
use crate::world::{POLLER, State, World};

/// Rows by key. As in SQL Server, a version is assigned at the write and visible at the commit. Versions are
/// unique, so no two rows tie; two rows with equal key are distinguished by a negative key.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// The last assigned version.
    version: u64,
    /// Key to version: what readers see.
    pub(crate) committed: BTreeMap<i64, u64>,
    open: Vec<BTreeMap<i64, u64>>,
    /// Rows of a second table that may replace this one.
    staged: BTreeMap<i64, u64>,
    /// Counts the tables that had this name, and how often tracking was switched on.
    pub(crate) identity: u64,
    is_untracked: bool,
    /// Versions that were committed while nothing was tracked.
    untracked: BTreeSet<u64>,
    /// Versions under which two rows with equal key were committed.
    pub(crate) twins: BTreeSet<u64>,
    /// Whether it has a column besides key and state.
    pub(crate) has_extra: bool,
}

impl Table {
    /// Begins a transaction that inserts or updates up to `rows` rows that no other transaction has locked.
    pub(crate) fn begin(&mut self, rows: u64, keys: u64, random: &mut Random) {
        let mut writes = BTreeMap::new();
        for _ in 0..rows {
            let key = i64::try_from(random.below(keys)).expect("few keys");
            if self.open.iter().all(|transaction| !transaction.contains_key(&key)) {
                self.version += 1;
                writes.insert(key, self.version);
            }
        }
        self.open.push(writes);
    }

    /// Inserts or updates one row, unless a transaction has locked it.
    pub(crate) fn update(&mut self, key: i64) {
        if self.open.iter().all(|transaction| !transaction.contains_key(&key)) {
            self.version += 1;
            self.committed.insert(key, self.version);
            if self.is_untracked {
                self.untracked.insert(self.version);
            }
        }
    }

    /// Ends one of the open transactions; a rollback leaves a gap in the versions.
    pub(crate) fn end(&mut self, which: usize, commit: bool, coverage: &mut Coverage) {
        if self.open.is_empty() {
            return;
        }
        let writes = self.open.remove(which % self.open.len());
        if !commit {
            coverage.saw("source: rollback");
            return;
        }
        let newest = self.committed.values().max().copied().unwrap_or(0);
        if writes.values().any(|version| *version < newest) {
            coverage.saw("source: late commit");
        }
        if self.is_untracked {
            self.untracked.extend(writes.values());
        }
        self.committed.extend(writes);
    }

    /// Drops the table and creates it again, with new rows.
    pub(crate) fn recreate(&mut self, rows: u64) {
        self.truncate(rows);
        self.replaced();
    }

    /// Removes all rows and inserts new ones: the table remains the same object.
    pub(crate) fn truncate(&mut self, rows: u64) {
        self.open.clear();
        self.twins.clear();
        self.committed.clear();
        for key in (0..).take(usize::try_from(rows).expect("few rows")) {
            self.version += 1;
            self.committed.insert(key, self.version);
        }
    }

    /// Changes the type of the key, so that rows may be in another order.
    pub(crate) fn retype(&mut self) {
        self.open.clear();
        self.identity += 1;
    }

    /// Fills a second table.
    pub(crate) fn stage(&mut self, rows: u64) {
        self.staged.clear();
        for key in (0..).take(usize::try_from(rows).expect("few rows")) {
            self.version += 1;
            self.staged.insert(key, self.version);
        }
    }

    /// Gives the second table the name of this one: its rows may have versions before the checkpoint.
    pub(crate) fn swap(&mut self) {
        self.committed = std::mem::take(&mut self.staged);
        self.replaced();
    }

    /// No transaction survives the replacement of its table.
    fn replaced(&mut self) {
        self.open.clear();
        self.untracked.clear();
        self.twins.clear();
        self.identity += 1;
    }

    pub(crate) fn track(&mut self, on: bool) {
        if on && self.is_untracked {
            self.identity += 1;
        }
        self.is_untracked = !on;
    }

    /// Inserts two rows with equal key and version.
    pub(crate) fn put_twins(&mut self) {
        self.version += 1;
        let version = i64::try_from(self.version).expect("few versions");
        self.committed.insert(-version, self.version);
        self.twins.insert(self.version);
    }

    /// Inserts a row that no target rejects.
    pub(crate) fn put_good(&mut self, bad: BadRows) {
        self.version += 1;
        while bad.of(self.version).is_some() {
            self.version += 1;
        }
        self.committed.insert(i64::MAX, self.version);
    }

    pub(crate) fn end_all(&mut self, coverage: &mut Coverage) {
        while !self.open.is_empty() {
            self.end(0, true, coverage);
        }
    }

    /// Returns the newest committed version.
    pub(crate) fn newest(&self) -> u64 {
        self.committed.values().max().copied().unwrap_or(0)
    }

    /// Whether everything committed is at or before `checkpoint`.
    pub(crate) fn all_delivered(&self, checkpoint: u64) -> bool {
        self.newest() <= checkpoint
    }

    /// Returns the versions after `checkpoint`, oldest first.
    pub(crate) fn behind(&self, checkpoint: u64) -> Vec<u64> {
        self.read(checkpoint, u64::MAX, u64::MAX).into_iter().map(|(_, version)| version).collect()
    }

    /// Returns the lowest version that an open transaction may still commit: `MIN_ACTIVE_ROWVERSION()`.
    pub(crate) fn min_active(&self) -> u64 {
        let open = self.open.iter().flat_map(BTreeMap::values).min();
        open.copied().unwrap_or(self.version + 1)
    }

    /// Returns committed rows after `after`, up to `upto` and below `bound`, oldest first.
    pub(crate) fn read(&self, after: u64, upto: u64, bound: u64) -> Vec<(i64, u64)> {
        let inside = |version: u64| version > after && version <= upto && version < bound;
        let mut rows: Vec<_> =
            self.committed.iter().map(|(key, version)| (*key, *version)).collect();
        rows.retain(|(_, version)| inside(*version));
        rows.sort_by_key(|(_, version)| *version);
        rows
    }
}

/// Returns the version of a cursor.
pub(crate) fn version_of(cursor: &Cursor) -> u64 {
    cursor.value.parse::<RowVersion>().expect("a cursor of this source is a rowversion").0
}

const AHEAD_FAILED: &str = "source: read while the handler runs failed";

/// The key under which a source stores the table of its position.
const TABLE: &str = "table";

/// Reads the table for one instance.
#[derive(Debug)]
pub(crate) struct SimSource {
    world: Arc<World>,
    slot: usize,
    shape: SourceShape,
    /// Held while it reads: like the real one, it has one connection.
    connection: Mutex<()>,
}

impl SimSource {
    pub(crate) fn new(world: Arc<World>, slot: usize) -> Self {
        // Under another name it is another source, although the rows are the same.
        let object = world.with(|state| format!("dbo.t{}", state.names));
        let fingerprint = SourceFingerprint::of(&[("object", &object)]);
        let definition = SourceDefinition::of(&[("object", &object)]);
        let mode = CursorMode::RowVersion.as_str();
        let label = SourceLabel { poller: POLLER.to_owned(), object, mode };
        let key = vec!["id".to_owned()];
        let mode = CursorMode::RowVersion;
        let shape = SourceShape { label, mode, key, fingerprint, definition };
        Self { world, slot, shape, connection: Mutex::default() }
    }
}

#[async_trait]
impl Source for SimSource {
    fn shape(&self) -> &SourceShape {
        &self.shape
    }

    /// Only an operator's plan asks for it.
    async fn present(&self) -> Result<Option<Cursor>, FetchError> {
        let version = self.world.with(|state| state.table.min_active() - 1);
        Ok(Some(Cursor::row_version(RowVersion(version), KeyValues::new())))
    }

    /// For a row whose key is parked.
    async fn current(&self, at: &Cursor) -> Result<Rows, FetchError> {
        let _connection = self.connection.lock().await;
        let (there, back, fails) =
            self.world.with(|state| (state.latency(false), state.latency(false), state.fault()));
        sleep(there).await;
        if fails {
            return Err(FetchError::new(ErrorKind::Transient, "injected"));
        }
        let key = at.key.get("id").and_then(serde_json::Value::as_i64).expect("our own key");
        let (version, has_extra) = self
            .world
            .with(|state| (state.table.committed.get(&key).copied(), state.table.has_extra));
        sleep(back).await;
        let mut rows = self.rows(has_extra);
        if let Some(version) = version {
            push(&mut rows, (key, version), has_extra);
        }
        Ok(rows)
    }

    async fn anchor(&self, kept: Option<&SourceState>) -> Result<Anchor, FetchError> {
        let mut state = kept.cloned().unwrap_or_default();
        let identity = self.world.with(|state| state.table.identity);
        let replaced = kept.is_some() && state.get(TABLE) != Some(&identity.into());
        state.insert(TABLE.to_owned(), identity.into());
        let changes = if replaced { vec!["another table".to_owned()] } else { Vec::new() };
        Ok(Anchor { state, changes })
    }

    async fn count(&self, window: FetchWindow<'_>) -> Result<u64, FetchError> {
        let (after, upto) = (window.after.map_or(0, version_of), window.upto.map(version_of));
        let upto = upto.unwrap_or(u64::MAX);
        let rows = self.world.with(|state| state.table.read(after, upto, u64::MAX).len());
        Ok(u64::try_from(rows.min(window.rows_max)).expect("few rows"))
    }

    /// The bound is read in a separate step before the rows, as in the real query.
    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let _connection = self.connection.lock().await;
        let (after, upto) = (window.after.map_or(0, version_of), window.upto.map(version_of));
        let (there, fails, between) = self.world.with(|state| {
            let fails = state.fault();
            let slot = &mut state.slots[self.slot];
            slot.reads_ahead = slot.handles;
            if fails {
                let ahead = slot.reads_ahead;
                state.coverage.saw(if ahead { AHEAD_FAILED } else { "source: read failed" });
            } else if slot.reads_ahead {
                state.coverage.saw("source: read while the handler runs");
            }
            let lingers = state.is_slow();
            if lingers {
                state.coverage.saw("source: slow read");
            }
            (state.latency(lingers), fails, state.latency(false))
        });
        sleep(there).await;
        if fails {
            return Err(FetchError::new(ErrorKind::Transient, "injected"));
        }
        let broken = self.world.plan.broken;
        let held_back = broken != Some(Break::NoHoldBack);
        let (bound, identity) = self.world.with(|state| {
            let bound = if held_back { state.table.min_active() } else { u64::MAX };
            self.check(state, &window)?;
            if window.after.is_none() {
                let tick = state.slots[self.slot].tick;
                state.judge.reads_from_beginning(tick, state.table.identity);
            }
            Ok::<_, FetchError>((bound, state.table.identity))
        })?;
        sleep(between).await;
        let (mut found, back) = self.world.with(|state| {
            if state.table.newest() >= bound {
                state.coverage.saw("source: rows held back");
            }
            let mut found = state.table.read(after, upto.unwrap_or(u64::MAX), bound);
            if window.after.is_some() && window.state.get(TABLE) != Some(&identity.into()) {
                found.retain(|(_, version)| !state.table.untracked.contains(version));
            }
            let page = found.iter().take(window.rows_max);
            let twin = page.map(|(_, version)| *version).find(|it| state.table.twins.contains(it));
            state.note(format_args!("read after {after} below {bound}: {found:?}"));
            if let Some(twin) = twin.filter(|_| broken != Some(Break::SkipsTwins)) {
                state.coverage.saw("source: two rows with one position");
                let reason = format!("two rows have version {twin}");
                return Err(FetchError::new(ErrorKind::Configuration, reason));
            }
            Ok((found, state.latency(false)))
        })?;
        sleep(back).await;
        let more = found.len() > window.rows_max;
        found.truncate(window.rows_max);
        let has_extra = self.world.with(|state| state.table.has_extra);
        let mut rows = self.rows(has_extra);
        for found in found {
            push(&mut rows, found, has_extra);
        }
        let anchor = anchor(&window, identity);
        Ok(Rows { more, remember: self.remember(&window, bound, &anchor), anchor, ..rows })
    }
}

impl SimSource {
    /// Returns no rows of these columns.
    #[expect(clippy::unused_self, reason = "the columns are the source's")]
    fn rows(&self, has_extra: bool) -> Rows {
        let names = ["id", "value", "extra"];
        Rows::of(names.into_iter().take(2 + usize::from(has_extra)))
    }

    /// Fails if the position belongs to another table, or to changes that were tracked before a gap.
    fn check(&self, state: &mut State, window: &FetchWindow<'_>) -> Result<(), FetchError> {
        if state.table.is_untracked {
            state.coverage.saw("source: read while nothing was tracked");
            return Err(match window.after {
                Some(_) => FetchError::rows_lost("changes are not tracked"),
                None => FetchError::new(ErrorKind::Configuration, "changes are not tracked"),
            });
        }
        let kept = window.state.get(TABLE).filter(|_| window.after.is_some());
        let is_other = kept.is_some_and(|kept| *kept != state.table.identity);
        if is_other && self.world.plan.broken != Some(Break::MissesNewTable) {
            state.coverage.saw("source: position of another table");
            return Err(FetchError::position_lost("another table"));
        }
        Ok(())
    }

    /// Asks to store the table it has read and the bound; immediately for every second bound, if the poller
    /// has started.
    fn remember(
        &self,
        window: &FetchWindow<'_>,
        bound: u64,
        anchor: &SourceState,
    ) -> Option<RetainedState> {
        let mut state = window.state.clone();
        state.extend(anchor.clone());
        let mut at_once = false;
        if self.world.plan.remembers {
            let bound_before = state.insert("bound".to_owned(), bound.to_string().into());
            let is_news = bound_before != state.get("bound").cloned();
            at_once = is_news && bound.is_multiple_of(2) && window.after.is_some();
            if is_news {
                self.world.with(|state| state.coverage.saw("source: asks to have something kept"));
            }
        }
        (state != *window.state).then_some(RetainedState { state, at_once })
    }
}

/// Returns the table of the positions, if that is not stored yet.
fn anchor(window: &FetchWindow<'_>, identity: u64) -> SourceState {
    let is_known = window.after.is_some() && window.state.contains_key(TABLE);
    let anchor = (TABLE.to_owned(), identity.into());
    Some(anchor).filter(|_| !is_known).into_iter().collect()
}

fn push(rows: &mut Rows, (id, version): (i64, u64), has_extra: bool) {
    let position = Value::Int(i64::try_from(version).expect("few versions"));
    let mut values = vec![Value::Int(id), Value::Text(format!("state {version}"))];
    values.extend(has_extra.then_some(Value::Null));
    rows.push(Operation::Upsert, position, vec![Value::Int(id)], &values);
}
