//! Test doubles for the engine: a scripted source, a recording handler, a store that counts calls and injects faults,
//! and a [`World`] that combines them around a poller.
//!
//! Behind the feature `test-util`; nothing here is stable.

mod broken;
mod journaled;
mod pace;
mod steady;
mod store;
mod watched;
mod world;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;

pub use self::broken::{Fault, PanickingHandler};
pub use self::journaled::JournaledWorld;
use self::pace::Pace;
pub use self::steady::SteadyHandler;
pub use self::store::{Call, Calls, FaultyStore};
pub use self::watched::{Logged, WatchedWorld};
pub use self::world::{
    TTL, World, admin, break_lease, calls, document_in, killed_after, limits, rewrite, sleep,
    take_over, tick, timed_tick,
};
use crate::cursor::{
    Cursor, CursorMode, KeyValues, RowVersion, SourceDefinition, SourceFingerprint, SourceState,
};
use crate::error::ErrorKind;
use crate::event::{BatchId, Operation, SourceLabel};
use crate::handler::{Delivery, Handler, HandlerError};
use crate::normalize::end_of;
use crate::partition::Partition;
use crate::source::{
    EncodedColumns, FetchError, FetchWindow, Lag, LookupError, PositionRange, RetainedState, Row,
    RowLookup, RowReport, Rows, Source, SourceShape,
};
use crate::value::Value;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}

/// A table in memory: each change of a row gives it the next rowversion, unless a test gives it the position of
/// another row.
#[derive(Debug)]
pub struct TableSource {
    shape: SourceShape,
    state: Mutex<TableState>,
}

#[derive(Clone, Debug)]
struct TableRow {
    position: u64,
    id: i64,
    value: String,
    op: Operation,
}

#[derive(Debug, Default)]
struct TableState {
    version: u64,
    /// In order of position and key.
    rows: Vec<TableRow>,
    fetches: u64,
    failures: VecDeque<FetchError>,
    failing_fetch: Option<(u64, FetchError)>,
    delay: Duration,
    null_key: bool,
    shares_keys: bool,
    only_deletes: bool,
    remember: Option<RetainedState>,
    anchor: SourceState,
}

impl TableSource {
    /// Returns an empty table for `poller`.
    pub fn new(poller: &str) -> Self {
        Self::with_fingerprint(poller, "dbo.t")
    }

    /// Returns an empty table whose fingerprint depends on `object`.
    pub fn with_fingerprint(poller: &str, object: &str) -> Self {
        let shape = SourceShape {
            label: SourceLabel {
                poller: poller.to_owned(),
                object: object.to_owned(),
                mode: CursorMode::RowVersion.as_str(),
            },
            mode: CursorMode::RowVersion,
            key: vec!["id".to_owned()],
            fingerprint: SourceFingerprint::of(&[("object", object)]),
            definition: SourceDefinition::of(&[("object", object)]),
        };
        Self { shape, state: Mutex::default() }
    }

    /// Marks fingerprint and definition as those of this partition; the table still returns all rows.
    #[must_use]
    pub fn of_partition(mut self, partition: Partition) -> Self {
        let (object, partition) = (self.shape.label.object.clone(), partition.to_string());
        let parts = [("object", object.as_str()), ("partition", partition.as_str())];
        self.shape.fingerprint = SourceFingerprint::of(&parts);
        self.shape.definition = SourceDefinition::of(&parts);
        self
    }

    /// Reports another key for the rows; the rows themselves are unchanged.
    #[must_use]
    pub fn keyed_by(mut self, key: &[&str]) -> Self {
        self.shape.key = key.iter().map(|&column| column.to_owned()).collect();
        self
    }

    /// Orders the rows by a number that counts as complete after some time, so that [`Self::put_late`] can be too
    /// late.
    #[must_use]
    pub fn by_time(mut self) -> Self {
        self.shape.mode = CursorMode::IntegerPk;
        self.shape.label.mode = CursorMode::IntegerPk.as_str();
        self
    }

    /// Reserves a position for a row of a transaction that stays open.
    pub fn reserve(&self) -> u64 {
        let mut state = locked(&self.state);
        state.version += 1;
        state.version
    }

    /// Inserts a row at a reserved position: its transaction was open until now.
    pub fn put_late(&self, id: i64, position: u64) {
        let mut state = locked(&self.state);
        state.replace(TableRow {
            position,
            id,
            value: format!("late {position}"),
            op: Operation::Upsert,
        });
    }

    /// Inserts or updates a row.
    pub fn put(&self, id: i64, value: &str) {
        let mut state = locked(&self.state);
        state.version += 1;
        let position = state.version;
        state.replace(TableRow { position, id, value: value.to_owned(), op: Operation::Upsert });
    }

    /// Inserts or updates a row at the last used position, as times and numbers allow.
    pub fn put_tied(&self, id: i64, value: &str) {
        let mut state = locked(&self.state);
        let position = state.version;
        state.replace(TableRow { position, id, value: value.to_owned(), op: Operation::Upsert });
    }

    /// Inserts a second row with the key and the position of an existing one, as a non-unique key allows. Fetches of
    /// a page with both fail.
    pub fn put_twin(&self, id: i64, value: &str) {
        let mut state = locked(&self.state);
        let mut twin =
            state.rows.iter().find(|row| row.id == id).cloned().expect("a row with the key");
        value.clone_into(&mut twin.value);
        state.insert(twin);
    }

    /// Inserts rows `1..=count`, each with a unique value.
    pub fn fill(&self, count: i64) {
        for id in 1..=count {
            let next = locked(&self.state).version + 1;
            self.put(id, &format!("v{next}"));
        }
    }

    /// Marks a row as deleted, as a soft delete does.
    pub fn soft_delete(&self, id: i64) {
        let mut state = locked(&self.state);
        state.version += 1;
        let position = state.version;
        state.replace(TableRow { position, id, value: String::new(), op: Operation::Delete });
    }

    /// Delivers only deleted rows when they are read by their key.
    pub fn select_deletes(&self) {
        locked(&self.state).only_deletes = true;
    }

    /// Deletes a row and its twins.
    pub fn delete(&self, id: i64) {
        locked(&self.state).rows.retain(|row| row.id != id);
    }

    /// Deletes the rows with a value.
    pub fn delete_value(&self, value: &str) {
        locked(&self.state).rows.retain(|row| row.value != value);
    }

    /// Returns the key and value of each row whose current state `handler` has not accepted.
    ///
    /// # Panics
    ///
    /// If an event is not JSON.
    pub fn undelivered(&self, handler: &RecordingHandler) -> Vec<(i64, String)> {
        let accepted: BTreeSet<(i64, String)> = handler
            .accepted()
            .iter()
            .filter_map(|row| Some((row["id"].as_i64()?, row["value"].as_str()?.to_owned())))
            .collect();
        let rows = locked(&self.state).rows.clone();
        let rows = rows.into_iter().map(|row| (row.id, row.value));
        rows.filter(|row| !accepted.contains(row)).collect()
    }

    /// Makes the next fetch fail.
    pub fn fail_next(&self, reason: &str) {
        self.fail_with(FetchError::new(ErrorKind::Transient, reason));
    }

    /// Makes the next fetch fail with this error.
    pub fn fail_with(&self, error: FetchError) {
        locked(&self.state).failures.push_back(error);
    }

    /// Makes the fetch after the next `fetches` fail.
    pub fn fail_after(&self, fetches: u64, reason: &str) {
        let mut state = locked(&self.state);
        let number = state.fetches + fetches + 1;
        state.failing_fetch = Some((number, FetchError::new(ErrorKind::Transient, reason)));
    }

    /// Makes each fetch and each count take this long.
    pub fn delay(&self, delay: Duration) {
        locked(&self.state).delay = delay;
    }

    /// Makes every fetch return `remember` as the state to retain.
    pub fn ask_to_remember(&self, remember: Option<RetainedState>) {
        locked(&self.state).remember = remember;
    }

    /// Makes positions depend on `anchor`.
    pub fn anchor_positions(&self, anchor: SourceState) {
        locked(&self.state).anchor = anchor;
    }

    /// Makes it possible that several rows have the same key.
    pub fn share_keys(&self) {
        locked(&self.state).shares_keys = true;
    }

    /// Makes every row have a NULL key.
    pub fn break_keys(&self) {
        locked(&self.state).null_key = true;
    }

    /// Returns how many fetches were made.
    pub fn fetches(&self) -> u64 {
        locked(&self.state).fetches
    }
}

impl TableState {
    /// Replaces all rows with the same key.
    fn replace(&mut self, row: TableRow) {
        self.rows.retain(|other| other.id != row.id);
        self.insert(row);
    }

    fn insert(&mut self, row: TableRow) {
        let at = self.rows.partition_point(|other| other.place() <= row.place());
        self.rows.insert(at, row);
    }

    /// Returns the rows of a window, in order.
    fn within(&self, window: FetchWindow<'_>) -> impl Iterator<Item = &TableRow> {
        let (after, upto) = (window.after.map(place_of), window.upto.map(place_of));
        let inside = move |row: &&TableRow| {
            after.is_none_or(|after| row.place() > after)
                && upto.is_none_or(|upto| row.place() <= upto)
        };
        self.rows.iter().filter(inside)
    }
}

impl TableRow {
    fn place(&self) -> (u64, i64) {
        (self.position, self.id)
    }
}

/// Returns the position and key of a cursor; one without a key is after all rows with its position.
fn place_of(cursor: &Cursor) -> (u64, i64) {
    let id = cursor.key.get("id").and_then(serde_json::Value::as_i64);
    (version_of(cursor), id.unwrap_or(i64::MAX))
}

fn push(rows: &mut Rows, key: Value, row: &TableRow) {
    let position = Value::Int(i64::try_from(row.position).unwrap_or(i64::MAX));
    if row.op == Operation::Delete {
        let columns = EncodedColumns::default();
        rows.rows.push(Row { op: row.op, position, key: vec![key], columns, unreadable: None });
        return;
    }
    let values = [Value::Int(row.id), Value::Text(row.value.clone())];
    rows.push(row.op, position, vec![key], &values);
}

fn no_rows() -> Rows {
    Rows::of(["id", "value"])
}

fn version_of(cursor: &Cursor) -> u64 {
    if cursor.mode == CursorMode::IntegerPk {
        return cursor.integer_value().ok().and_then(|at| at.try_into().ok()).unwrap_or(0);
    }
    cursor.value.parse::<RowVersion>().expect("a cursor of this source is a rowversion").0
}

#[async_trait]
impl Source for TableSource {
    fn shape(&self) -> &SourceShape {
        &self.shape
    }

    async fn has_unique_key(&self) -> Result<bool, FetchError> {
        Ok(!locked(&self.state).shares_keys)
    }

    async fn current(&self, at: &Cursor) -> Result<Rows, FetchError> {
        let mut state = locked(&self.state);
        state.failures.pop_front().map_or(Ok(()), Err)?;
        let id = at.key.get("id").and_then(serde_json::Value::as_i64).unwrap_or_default();
        let mut rows = no_rows();
        for found in state.rows.iter().filter(|row| row.id == id) {
            if state.only_deletes && found.op != Operation::Delete {
                rows.is_unselected = true;
                continue;
            }
            push(&mut rows, Value::Int(id), found);
        }
        Ok(rows)
    }

    async fn look_up(&self, lookup: RowLookup<'_>) -> Result<RowReport, LookupError> {
        let id = lookup.key.get("id").and_then(|id| id.as_str()?.parse::<i64>().ok());
        let after = lookup.after.map(place_of);
        let mut rows = no_rows();
        let state = locked(&self.state);
        let found = state.rows.iter().find(|row| Some(row.id) == id);
        let Some(found) = found else { return Ok(RowReport::default()) };
        push(&mut rows, Value::Int(found.id), found);
        Ok(RowReport {
            exists: true,
            position: end_of(&self.shape, &rows),
            is_after: after.is_none_or(|after| found.place() > after),
            is_readable: true,
            is_selected: true,
            ..RowReport::default()
        })
    }

    async fn present(&self) -> Result<Option<Cursor>, FetchError> {
        let mut state = locked(&self.state);
        state.failures.pop_front().map_or(Ok(()), Err)?;
        let key = KeyValues::new();
        Ok(Some(match self.shape.mode {
            CursorMode::IntegerPk => {
                Cursor::integer(i64::try_from(state.version).unwrap_or(i64::MAX), key)
            }
            CursorMode::RowVersion | CursorMode::TimestampPk | CursorMode::ChangeTracking => {
                Cursor::row_version(RowVersion(state.version), key)
            }
        }))
    }

    async fn count(&self, window: FetchWindow<'_>) -> Result<u64, FetchError> {
        let delay = {
            let mut state = locked(&self.state);
            state.failures.pop_front().map_or(Ok(()), Err)?;
            state.delay
        };
        tokio::time::sleep(delay).await;
        let state = locked(&self.state);
        let rows = state.within(window).take(window.rows_max).count();
        Ok(u64::try_from(rows).unwrap_or(u64::MAX))
    }

    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let delay = {
            let mut state = locked(&self.state);
            state.fetches += 1;
            let number = state.fetches;
            if let Some((_, error)) = state.failing_fetch.take_if(|(at, _)| *at == number) {
                return Err(error);
            }
            state.failures.pop_front().map_or(Ok(()), Err)?;
            state.delay
        };
        tokio::time::sleep(delay).await;
        let state = locked(&self.state);
        let after = window.after.map_or(0, version_of);
        let found: Vec<_> = state.within(window).take(window.rows_max.saturating_add(1)).collect();
        let twins = found.iter().zip(found.iter().skip(1)).find(|(a, b)| a.place() == b.place());
        if let Some((row, _)) = twins {
            let reason = format!("two rows have key {} and position {}", row.id, row.position);
            return Err(FetchError::new(ErrorKind::Data, reason));
        }
        let more = found.len() > window.rows_max;
        let key_of = |id| if state.null_key { Value::Null } else { Value::Int(id) };
        let mut rows = no_rows();
        for found in found.into_iter().take(window.rows_max) {
            push(&mut rows, key_of(found.id), found);
        }
        let positions = (self.shape.mode == CursorMode::RowVersion)
            .then(|| state.version.saturating_sub(after));
        let first = rows
            .rows
            .first()
            .and_then(|row| if let Value::Int(at) = row.position { Some(at) } else { None });
        let newest = i64::try_from(state.version).unwrap_or(i64::MAX);
        let range = positions.map(|_| PositionRange { first, readable: newest, newest });
        let lag = Lag { positions, held_back: positions.map(|_| 0), range, ..Lag::default() };
        let anchor = state.anchor.clone();
        Ok(Rows { more, lag, remember: state.remember.clone(), anchor, ..rows })
    }
}

/// One delivery as received by the handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The batch.
    pub batch_id: BatchId,
    /// Its generation and token.
    pub fence: (u64, u64),
    /// Attempt.
    pub attempt: u32,
    /// The step of a chain, if any.
    pub step: Option<String>,
    /// When the batch was first announced.
    pub started_at: OffsetDateTime,
    /// Keys of its rows, in order.
    pub ids: Vec<i64>,
    /// Operations of its rows, in order.
    pub ops: Vec<Operation>,
    /// Event ids, in order.
    pub event_ids: Vec<String>,
    /// The events as JSON, in order.
    pub events: Vec<String>,
}

impl Received {
    /// Returns the columns of each row, in order; `null` for a deletion.
    ///
    /// # Panics
    ///
    /// If an event is not JSON.
    pub fn payloads(&self) -> Vec<serde_json::Value> {
        payloads(&self.events)
    }
}

fn payloads(events: &[String]) -> Vec<serde_json::Value> {
    let columns = |event: &String| {
        let event = serde_json::from_str::<serde_json::Value>(event);
        let event = event.expect("an event is a JSON object");
        event.get("after").cloned().unwrap_or_default()
    };
    events.iter().map(columns).collect()
}

type Work = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

/// The behaviour of one call.
enum Step {
    Work(Work),
    /// Repeat: take this long, then report progress.
    Progress(u32, Duration),
}

/// Records its calls, and behaves as scripted for each.
#[derive(Default)]
pub struct RecordingHandler {
    received: Mutex<Vec<Received>>,
    /// Accepted events, as JSON.
    accepted: Mutex<Vec<String>>,
    script: Mutex<VecDeque<Step>>,
    finished: Mutex<u64>,
    judge: Mutex<Option<Judge>>,
    pace: Mutex<Option<Pace>>,
}

/// Decides the result of a call by the keys of its rows.
type Judge = Box<dyn FnMut(&[i64]) -> Result<(), HandlerError> + Send>;

impl fmt::Debug for RecordingHandler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RecordingHandler").finish_non_exhaustive()
    }
}

impl RecordingHandler {
    /// Scripts the next unscripted call; unscripted calls succeed.
    pub fn then(
        &self,
        step: impl Future<Output = Result<(), HandlerError>> + Send + 'static,
    ) -> &Self {
        locked(&self.script).push_back(Step::Work(Box::pin(step)));
        self
    }

    /// Decides the results of unscripted calls by the keys of their rows.
    pub fn judge_by(
        &self,
        judge: impl FnMut(&[i64]) -> Result<(), HandlerError> + Send + 'static,
    ) -> &Self {
        *locked(&self.judge) = Some(Box::new(judge));
        self
    }

    /// Makes the next call fail.
    pub fn then_fail(&self, error: HandlerError) -> &Self {
        self.then(async move { Err(error) })
    }

    /// Makes the next call take `duration`, and succeed.
    pub fn then_take(&self, duration: Duration) -> &Self {
        self.then(async move {
            tokio::time::sleep(duration).await;
            Ok(())
        })
    }

    /// Makes the next call report progress `times` times, each after `pause`; with zero `times` it takes `pause` and
    /// succeeds.
    pub fn then_progress(&self, times: u32, pause: Duration) -> &Self {
        locked(&self.script).push_back(Step::Progress(times, pause));
        self
    }

    /// Returns all deliveries so far.
    pub fn received(&self) -> Vec<Received> {
        locked(&self.received).clone()
    }

    /// Returns the columns of each accepted row, in order; `null` for a deletion.
    ///
    /// # Panics
    ///
    /// If an event is not JSON.
    pub fn accepted(&self) -> Vec<serde_json::Value> {
        payloads(&locked(&self.accepted))
    }

    /// Returns the keys of all rows so far, in order of delivery.
    pub fn ids(&self) -> Vec<i64> {
        self.received().into_iter().flat_map(|received| received.ids).collect()
    }

    /// Returns how many calls ran to completion.
    pub fn finished(&self) -> u64 {
        *locked(&self.finished)
    }
}

#[async_trait]
impl Handler for RecordingHandler {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let id = |cursor: &Cursor| cursor.key.get("id").and_then(serde_json::Value::as_i64);
        let received = Received {
            batch_id: delivery.batch_id.clone(),
            fence: (delivery.generation.0, delivery.fencing_token.0),
            attempt: delivery.attempt,
            step: delivery.step.map(|step| step.name.to_owned()),
            started_at: delivery.started_at,
            ids: delivery.events.iter().filter_map(|event| id(&event.cursor)).collect(),
            ops: delivery.events.iter().map(|event| event.op).collect(),
            event_ids: delivery.events.iter().map(|event| event.id.to_string()).collect(),
            events: delivery.events.iter().map(|event| event.json.to_string()).collect(),
        };
        let (ids, events) = (received.ids.clone(), received.events.clone());
        locked(&self.received).push(received);
        let step = locked(&self.script).pop_front();
        let result = match step {
            Some(Step::Work(work)) => work.await,
            Some(Step::Progress(times, pause)) => {
                for _ in 0..times.max(1) {
                    tokio::time::sleep(pause).await;
                    delivery.progress.report(1);
                }
                Ok(())
            }
            None => self.judged(&ids).await,
        };
        *locked(&self.finished) += 1;
        let accepted = match &result {
            Ok(()) => events.len(),
            Err(HandlerError::Partial { accepted, .. }) => *accepted,
            Err(_) => 0,
        };
        locked(&self.accepted).extend(events.into_iter().take(accepted));
        result
    }
}

/// Returns a tz database file with one rule for all times, such as `PST8PDT,M3.2.0,M11.1.0`.
pub fn zone_file(rule: &str) -> Vec<u8> {
    // RFC 8536: no transitions and one local time type, in the old and the new format, then the rule. The last two
    // numbers are the number of types and the length of their names.
    let (name, counts) = (b"LMT\0", [0, 0, 0, 0, 1, 4]);
    let mut file = Vec::new();
    for _form in 0..2 {
        file.extend_from_slice(b"TZif2");
        file.extend_from_slice(&[0; 15]);
        file.extend(counts.iter().flat_map(|count: &u32| count.to_be_bytes()));
        // UTC, no daylight saving, the name at 0.
        file.extend_from_slice(&[0; 6]);
        file.extend_from_slice(name);
    }
    file.extend_from_slice(format!("\n{rule}\n").as_bytes());
    file
}
