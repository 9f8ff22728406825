//! Doubles for tests of the engine: a scripted source, a recording handler, a store that counts and
//! breaks.
//!
//! Behind the feature `test-util`; nothing here is stable.

mod broken;
mod pace;
mod store;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;

pub use self::broken::{Fault, PanickingHandler};
use self::pace::Pace;
pub use self::store::{Call, Calls, FaultyStore};
use crate::cursor::{Cursor, CursorMode, KeyValues, RowVersion, SourceFingerprint};
use crate::error::ErrorKind;
use crate::event::{BatchId, Operation, SourceLabel};
use crate::handler::{Delivery, Handler, HandlerError};
use crate::source::{FetchError, FetchWindow, Lag, Remember, Rows, Source, SourceShape};
use crate::value::Value;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}

/// A table in memory: each change of a row gives it the next rowversion.
#[derive(Debug)]
pub struct TableSource {
    shape: SourceShape,
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    version: u64,
    /// Key to (rowversion, value).
    rows: BTreeMap<i64, (u64, String)>,
    fetches: u64,
    failures: VecDeque<FetchError>,
    failing_fetch: Option<(u64, FetchError)>,
    delay: Duration,
    null_key: bool,
    remember: Option<Remember>,
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
        };
        Self { shape, state: Mutex::default() }
    }

    /// Orders the rows by a number that counts as complete once time has passed, so that
    /// [`Self::put_late`] can come too late.
    #[must_use]
    pub fn by_time(mut self) -> Self {
        self.shape.mode = CursorMode::IntegerPk;
        self.shape.label.mode = CursorMode::IntegerPk.as_str();
        self
    }

    /// Takes a position for a row of a transaction that stays open.
    pub fn reserve(&self) -> u64 {
        let mut state = locked(&self.state);
        state.version += 1;
        state.version
    }

    /// Inserts a row at a position that was taken before: its transaction was open until now.
    pub fn put_late(&self, id: i64, position: u64) {
        locked(&self.state).rows.insert(id, (position, "late".to_owned()));
    }

    /// Inserts or updates a row.
    pub fn put(&self, id: i64, value: &str) {
        let mut state = locked(&self.state);
        state.version += 1;
        let version = state.version;
        state.rows.insert(id, (version, value.to_owned()));
    }

    /// Inserts rows `1..=count`.
    pub fn fill(&self, count: i64) {
        for id in 1..=count {
            self.put(id, "new");
        }
    }

    /// Deletes a row.
    pub fn delete(&self, id: i64) {
        locked(&self.state).rows.remove(&id);
    }

    /// Makes the next fetch fail.
    pub fn fail_next(&self, reason: &str) {
        self.fail_with(FetchError::new(ErrorKind::Transient, reason));
    }

    /// Makes the next fetch fail so.
    pub fn fail_with(&self, error: FetchError) {
        locked(&self.state).failures.push_back(error);
    }

    /// Makes the fetch after the next `fetches` fail.
    pub fn fail_after(&self, fetches: u64, reason: &str) {
        let mut state = locked(&self.state);
        let number = state.fetches + fetches + 1;
        state.failing_fetch = Some((number, FetchError::new(ErrorKind::Transient, reason)));
    }

    /// Makes each fetch, and each count, take this long.
    pub fn delay(&self, delay: Duration) {
        locked(&self.state).delay = delay;
    }

    /// Makes every fetch ask for `remember` to be kept.
    pub fn ask_to_remember(&self, remember: Option<Remember>) {
        locked(&self.state).remember = remember;
    }

    /// Makes every row come with a key of NULL.
    pub fn break_keys(&self) {
        locked(&self.state).null_key = true;
    }

    /// Returns how many fetches were made.
    pub fn fetches(&self) -> u64 {
        locked(&self.state).fetches
    }
}

fn push(rows: &mut Rows, key: Value, id: i64, (version, value): &(u64, String)) {
    let position = Value::Int(i64::try_from(*version).unwrap_or(i64::MAX));
    let values = [Value::Int(id), Value::Text(value.clone())];
    rows.push(Operation::Upsert, position, vec![key], &values);
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

    async fn current(&self, at: &Cursor) -> Result<Rows, FetchError> {
        let mut state = locked(&self.state);
        state.failures.pop_front().map_or(Ok(()), Err)?;
        let id = at.key.get("id").and_then(serde_json::Value::as_i64).unwrap_or_default();
        let mut rows = no_rows();
        if let Some(found) = state.rows.get(&id) {
            push(&mut rows, Value::Int(id), id, found);
        }
        Ok(rows)
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
        let after = window.after.map_or(0, version_of);
        let upto = window.upto.map_or(u64::MAX, version_of);
        let within = |(version, _): &&(u64, String)| *version > after && *version <= upto;
        let rows = state.rows.values().filter(within).take(window.rows_max).count();
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
        let upto = window.upto.map_or(u64::MAX, version_of);
        let mut found: Vec<_> = state
            .rows
            .iter()
            .filter(|(_, (version, _))| *version > after && *version <= upto)
            .collect();
        found.sort_by_key(|(_, (version, _))| *version);
        let more = found.len() > window.rows_max;
        let key_of = |id| if state.null_key { Value::Null } else { Value::Int(id) };
        let mut rows = no_rows();
        for (id, found) in found.into_iter().take(window.rows_max) {
            push(&mut rows, key_of(*id), *id, found);
        }
        let positions = (self.shape.mode == CursorMode::RowVersion)
            .then(|| state.version.saturating_sub(after));
        let lag = Lag { positions, held_back: positions.map(|_| 0), ..Lag::default() };
        Ok(Rows { more, lag, remember: state.remember.clone(), ..rows })
    }
}

/// One delivery as it reached the handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The batch.
    pub batch_id: BatchId,
    /// Generation and token under which it came.
    pub fence: (u64, u64),
    /// Attempt.
    pub attempt: u32,
    /// The step of a chain that it was for.
    pub step: Option<String>,
    /// When the batch was first announced.
    pub started_at: OffsetDateTime,
    /// Keys of its rows, in order.
    pub ids: Vec<i64>,
    /// What happened to them, in order.
    pub ops: Vec<Operation>,
    /// Event ids, in order.
    pub event_ids: Vec<String>,
}

type Work = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

/// What one call does.
enum Step {
    Work(Work),
    /// So many times: take this long, then report progress.
    Progress(u32, Duration),
}

/// Records what it gets, and does what it was told for each call.
#[derive(Default)]
pub struct RecordingHandler {
    received: Mutex<Vec<Received>>,
    script: Mutex<VecDeque<Step>>,
    finished: Mutex<u64>,
    judge: Mutex<Option<Judge>>,
    pace: Mutex<Option<Pace>>,
}

/// Answers a call by the keys of its rows.
type Judge = Box<dyn FnMut(&[i64]) -> Result<(), HandlerError> + Send>;

impl fmt::Debug for RecordingHandler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RecordingHandler").finish_non_exhaustive()
    }
}

impl RecordingHandler {
    /// Adds what the next call without a script of its own does; without any, calls succeed.
    pub fn then(
        &self,
        step: impl Future<Output = Result<(), HandlerError>> + Send + 'static,
    ) -> &Self {
        locked(&self.script).push_back(Step::Work(Box::pin(step)));
        self
    }

    /// Answers calls without a script of their own by the keys of their rows.
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

    /// Makes the next call report progress `times` times, each after `pause`; with none at all it takes
    /// `pause` and succeeds.
    pub fn then_progress(&self, times: u32, pause: Duration) -> &Self {
        locked(&self.script).push_back(Step::Progress(times, pause));
        self
    }

    /// Returns all deliveries so far.
    pub fn received(&self) -> Vec<Received> {
        locked(&self.received).clone()
    }

    /// Returns the keys of all rows so far, in order of delivery.
    pub fn ids(&self) -> Vec<i64> {
        self.received().into_iter().flat_map(|received| received.ids).collect()
    }

    /// Returns how many calls ran to their end.
    pub fn finished(&self) -> u64 {
        *locked(&self.finished)
    }
}

#[async_trait]
impl Handler for RecordingHandler {
    fn reports_progress(&self) -> bool {
        true
    }

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
        };
        let ids = received.ids.clone();
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
        result
    }
}
