//! The port for sources: where changes come from.

mod lookup;
mod rows;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use crate::cursor::{Cursor, CursorMode, SourceDefinition, SourceFingerprint, SourceState};
use crate::error::ErrorKind;
use crate::event::SourceLabel;

pub use self::lookup::{LookupError, Predicate, RowLookup, RowReport, Session};
pub use self::rows::{Columns, EncodedColumns, Row, Rows};

/// The properties of a source that do not change while it runs.
#[derive(Clone, Debug)]
pub struct SourceShape {
    /// The label that handlers see.
    pub label: SourceLabel,
    /// How rows are ordered.
    pub mode: CursorMode,
    /// Key columns, in key order.
    pub key: Vec<String>,
    /// Identifies what a checkpoint refers to.
    pub fingerprint: SourceFingerprint,
    /// The same in plain text, for messages.
    pub definition: SourceDefinition,
}

/// The rows to read.
#[derive(Clone, Copy, Debug)]
pub struct FetchWindow<'a> {
    /// Only rows after this position; `None` for all.
    pub after: Option<&'a Cursor>,
    /// Only rows up to and including this position: a retry of a batch.
    pub upto: Option<&'a Cursor>,
    /// Most rows to return; a source reads one more to learn whether there are more.
    pub rows_max: usize,
    /// The retained state of the source, as far as it is still known.
    pub state: &'a SourceState,
}

/// Lag of a poller, as of a fetch.
///
/// Positions are what the mode counts: rowversions, values of the cursor column, or change tracking versions.
/// Rowversions and change versions belong to the whole database, so other tables use some of them, and the
/// numbers are an upper bound on rows, not their count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Age of the oldest row read, by the source's clock; zero if no row was read. A source without times of rows leaves
    /// it out, and the engine derives it from [`Self::range`].
    pub time: Option<Duration>,
    /// Positions between the start of the read and the newest readable position.
    pub positions: Option<u64>,
    /// Positions in use that cannot be read yet because an older writer is, or may be, still active.
    pub held_back: Option<u64>,
    /// Positions between the oldest change still kept and the start of the read: at zero, the next clean-up loses
    /// changes. Unknown before the first clean-up since tracking began.
    pub retention_left: Option<u64>,
    /// The positions themselves, in modes that count them.
    pub range: Option<PositionRange>,
}

/// Positions that a fetch saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionRange {
    /// Position of the first row that was read; `None` without a row.
    pub first: Option<i64>,
    /// Newest readable position.
    pub readable: i64,
    /// Newest position in use when the read started. All later ones are used only afterwards.
    pub newest: i64,
}

impl Lag {
    /// Returns the lag after the source was read to its end: skipped positions belong to other tables, and no
    /// row that was read is pending.
    #[must_use]
    pub fn after_full_read(self) -> Self {
        let time = self.time.map(|_| Duration::ZERO);
        Self { time, positions: self.positions.map(|_| 0), ..self }
    }
}

/// State that a source stores with the cursor.
///
/// It is written with the commit of the rows that it came with. An idle tick keeps it in memory and writes it
/// from time to time, or at once if [`Self::at_once`] is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetainedState {
    /// Replaces all retained state.
    pub state: SourceState,
    /// Whether rows wait until it is stored. If a process ends without storing it, those rows wait from the start
    /// again; with one process per tick they would wait forever.
    pub at_once: bool,
}

/// What to store with a checkpoint that an operator sets or confirms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Anchor {
    /// Replaces all retained state.
    pub state: SourceState,
    /// How the source differs from the one read so far, for people.
    pub changes: Vec<String>,
}

/// How a source lost the rows after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionLoss {
    /// All rows may still be there, as an operator may know.
    Uncertain,
    /// The rows may be ordered differently than when the checkpoint was written.
    Reordered,
    /// Rows may be gone, even if the source looks right again.
    Final,
}

/// The source could not be read. The handler is not called, and the next tick retries.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct FetchError {
    /// What kind of fix it needs.
    pub kind: ErrorKind,
    /// What went wrong, with the value, without secrets.
    pub reason: String,
    /// Set if the source no longer has what follows the checkpoint. Continuing would skip rows, so nothing is read
    /// until an operator decides.
    pub loss: Option<PositionLoss>,
    /// Whether the columns have changed. Nothing is read until an operator accepts the change.
    pub schema_changed: bool,
    /// The driver's error.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl FetchError {
    /// Returns an error without a cause.
    pub fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), loss: None, schema_changed: false, source: None }
    }

    /// Returns the error of a source that no longer has what follows the checkpoint.
    pub fn position_lost(reason: impl Into<String>) -> Self {
        Self { loss: Some(PositionLoss::Uncertain), ..Self::new(ErrorKind::Data, reason) }
    }

    /// Returns the error of a source that has permanently lost rows after the checkpoint.
    pub fn rows_lost(reason: impl Into<String>) -> Self {
        Self { loss: Some(PositionLoss::Final), ..Self::position_lost(reason) }
    }

    /// Returns the error of a source that may order rows differently than when the checkpoint was written.
    pub fn reordered(reason: impl Into<String>) -> Self {
        Self { loss: Some(PositionLoss::Reordered), ..Self::position_lost(reason) }
    }

    /// Whether the source no longer has what follows the checkpoint.
    pub fn is_position_lost(&self) -> bool {
        self.loss.is_some()
    }

    /// Whether nothing is read until a reset, even if the source looks right again.
    pub fn is_final_loss(&self) -> bool {
        self.loss == Some(PositionLoss::Final)
    }

    /// Whether an operator may not keep the position because rows after it are gone, or in another order.
    pub fn forbids_keeping(&self) -> bool {
        matches!(self.loss, Some(PositionLoss::Final | PositionLoss::Reordered))
    }

    /// Returns the error of a source that must stop because its columns have changed.
    pub fn schema_changed(reason: impl Into<String>) -> Self {
        Self { schema_changed: true, ..Self::new(ErrorKind::Configuration, reason) }
    }
}

/// Reads changed rows in the order of their position.
///
/// # Contract
///
/// Rows come in one total order, which does not change. A row is returned only if no row that becomes
/// visible later can sort before it (each mode states its condition for that). A fetch may be dropped at
/// any await; its connection is then not reused.
#[async_trait]
pub trait Source: fmt::Debug + Send + Sync {
    /// Returns the properties that do not change. Those that settings leave open are valid only after [`Self::open`].
    fn shape(&self) -> &SourceShape;

    /// Chooses what settings leave open, given the fingerprint in the state document: a source that has run
    /// before keeps its choice. Does nothing if nothing is open.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be reached, or no choice is possible.
    async fn open(&self, _stored: Option<&SourceFingerprint>) -> Result<(), FetchError> {
        Ok(())
    }

    /// Returns the position after all present rows, for a poller that starts from now; `None` if there are no
    /// rows yet.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or does not know its end.
    async fn present(&self) -> Result<Option<Cursor>, FetchError> {
        let reason = "this source cannot start from now; set `SOURCE__START` to `beginning`";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Returns the state to store with a checkpoint that an operator sets or confirms, such as which object is read
    /// from now on. If the position stays, `kept` is the state retained so far; the result includes what is still
    /// valid of it.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or if the position stays and the order of rows has changed.
    async fn anchor(&self, kept: Option<&SourceState>) -> Result<Anchor, FetchError> {
        let state = kept.cloned().unwrap_or_default();
        Ok(Anchor { state, changes: Vec::new() })
    }

    /// Whether no two rows have the same key, as far as the source can tell. Otherwise keys cannot be parked: one entry
    /// would take the place of several rows.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read.
    async fn has_unique_key(&self) -> Result<bool, FetchError> {
        Ok(true)
    }

    /// Returns the current row with the key of `at`, at the position under which a fetch delivers it too; no row
    /// if none has the key any more, or if its operation is not delivered ([`Rows::is_unselected`]).
    ///
    /// `at` is a position at which the row was read before. Unlike [`Self::fetch`] this does not wait for other
    /// transactions: it says nothing about the rows before or after.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or not by key.
    async fn current(&self, _at: &Cursor) -> Result<Rows, FetchError> {
        let reason = "this source cannot read a row by its key";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Returns what decides when the row with a key is delivered, in at most two requests. Opens the source.
    ///
    /// # Errors
    ///
    /// [`LookupError`] if the source cannot be read, or not by this key.
    async fn look_up(&self, _lookup: RowLookup<'_>) -> Result<RowReport, LookupError> {
        let reason = "this source cannot look up a row by its key";
        Err(FetchError::new(ErrorKind::Configuration, reason).into())
    }

    /// Counts the rows of `window`, up to its `rows_max`, for people who plan an operation. A window without an
    /// end includes rows that may not be delivered yet.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or no longer has the whole window.
    async fn count(&self, _window: FetchWindow<'_>) -> Result<u64, FetchError> {
        let reason = "this source cannot count the rows of a range";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Returns the last of the first `rows_max` rows of `window`, without its columns; no row if the window is
    /// empty. The window must have an end.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or its ranges cannot be split.
    async fn last_of(&self, _window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let reason = "ranges of this source cannot be split; use one window";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Whether `window` contains a row, including one that may not be delivered until a tick has stored something.
    /// Used to detect pollers whose ticks do not run. The window has no end.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch`].
    async fn has_rows_behind(&self, window: FetchWindow<'_>) -> Result<bool, FetchError> {
        self.fetch_at_once(window).await.map(|found| !found.rows.is_empty())
    }

    /// Returns [`Rows::json`] of processed rows for reuse by later reads. Does nothing if a source has no use
    /// for it.
    fn reuse(&self, _buffer: String) {}

    /// Returns rows of `window`, oldest first.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be reached or read.
    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError>;

    /// Like [`Self::fetch`], but fails at the first error instead of retrying: the caller holds finished work that
    /// is not committed yet.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch`].
    async fn fetch_at_once(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        self.fetch(window).await
    }
}
