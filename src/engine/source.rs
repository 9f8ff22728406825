//! Where changes come from: the port.

mod rows;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use crate::cursor::{Cursor, CursorMode, SourceDefinition, SourceFingerprint, SourceState};
use crate::error::ErrorKind;
use crate::event::SourceLabel;

pub use self::rows::{Columns, EncodedColumns, Row, Rows};

/// What does not change about a source while it runs.
#[derive(Clone, Debug)]
pub struct SourceShape {
    /// What handlers see.
    pub label: SourceLabel,
    /// How rows are ordered.
    pub mode: CursorMode,
    /// Key columns, in key order.
    pub key: Vec<String>,
    /// What gives a checkpoint its meaning.
    pub fingerprint: SourceFingerprint,
    /// The same in plain text, for messages.
    pub definition: SourceDefinition,
}

/// Which rows are wanted.
#[derive(Clone, Copy, Debug)]
pub struct FetchWindow<'a> {
    /// Only rows after this position; `None` for all.
    pub after: Option<&'a Cursor>,
    /// Only rows up to and including this position: a retry of a batch.
    pub upto: Option<&'a Cursor>,
    /// Most rows; a source reads one more to learn whether there is more.
    pub rows_max: usize,
    /// What the source asked to be remembered, as far as it is known still.
    pub state: &'a SourceState,
}

/// Lag of a poller, as a fetch found it.
///
/// A position is what the mode counts: a rowversion, a number of the cursor column, a version of change
/// tracking. Rowversions and change versions are the database's, so other tables take some of them too,
/// and the numbers are an upper bound on rows, not their count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Age of the oldest row that was read, by the source's clock; zero where there was none.
    pub time: Option<Duration>,
    /// Positions from the one that was read from to the newest one that may be read.
    pub positions: Option<u64>,
    /// Positions that are taken and may not be read yet, since an older writer is or may be at work.
    pub held_back: Option<u64>,
    /// Positions from the oldest change that is still kept to the one that was read from: at zero, the next
    /// clean-up loses changes. Unknown before the first clean-up since tracking began.
    pub retention_left: Option<u64>,
}

impl Lag {
    /// Returns it as it is once the source was read to its end: positions that were passed over are other
    /// tables', and no row that was read waits.
    #[must_use]
    pub fn at_the_end(self) -> Self {
        let time = self.time.map(|_| Duration::ZERO);
        Self { time, positions: self.positions.map(|_| 0), ..self }
    }
}

/// State that a source stores with the cursor.
///
/// It is written down with the commit of the rows it came with. An idle tick keeps it in memory and
/// writes it now and then, or at once where that is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetainedState {
    /// Takes the place of all that was remembered.
    pub state: SourceState,
    /// Whether rows wait for it: a process that ends without it would let them wait anew, and one
    /// process per tick would let them wait for ever.
    pub at_once: bool,
}

/// What is to be kept with a checkpoint that an operator sets or confirms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Anchor {
    /// Takes the place of all that was remembered.
    pub state: SourceState,
    /// How the source differs from the one that was read so far, for people.
    pub changes: Vec<String>,
}

/// What is known of the rows after a checkpoint that the source no longer has as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionLoss {
    /// They may all be there, as an operator may know.
    Uncertain,
    /// They may be in another order than the one in which the checkpoint was made.
    Reordered,
    /// They may be gone, even if the source looks right again.
    Final,
}

/// The source could not be read. The handler is not called, and the next tick tries again.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct FetchError {
    /// What the operator has to do.
    pub kind: ErrorKind,
    /// What went wrong, with which value, without secrets.
    pub reason: String,
    /// Set where the source no longer has what follows the checkpoint: going on would skip rows, so
    /// nothing is read until an operator decides.
    pub loss: Option<PositionLoss>,
    /// Whether the columns have changed, and nothing is read until an operator accepts them.
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

    /// Returns the error of a source that may order rows otherwise than when the checkpoint was made.
    pub fn reordered(reason: impl Into<String>) -> Self {
        Self { loss: Some(PositionLoss::Reordered), ..Self::position_lost(reason) }
    }

    /// Whether the source no longer has what follows the checkpoint.
    pub fn is_position_lost(&self) -> bool {
        self.loss.is_some()
    }

    /// Whether nothing is read before a reset, even if the source looks right again.
    pub fn is_final_loss(&self) -> bool {
        self.loss == Some(PositionLoss::Final)
    }

    /// Whether no operator may keep the position: rows after it are gone, or in another order.
    pub fn forbids_keeping(&self) -> bool {
        matches!(self.loss, Some(PositionLoss::Final | PositionLoss::Reordered))
    }

    /// Returns the error of a source whose columns have changed, where that is a reason to stop.
    pub fn schema_changed(reason: impl Into<String>) -> Self {
        Self { schema_changed: true, ..Self::new(ErrorKind::Configuration, reason) }
    }
}

/// Reads changed rows in the order of their position.
///
/// # Contract
///
/// Rows come in one total order, which does not change. A row is returned only when no row that will
/// become visible later can lie before it (each mode states under what condition that holds).
/// Dropping a fetch is allowed at any await; whatever connection it used is then not used again.
#[async_trait]
pub trait Source: fmt::Debug + Send + Sync {
    /// Returns what does not change. Where settings leave it open, it holds after [`Self::open`] only.
    fn shape(&self) -> &SourceShape;

    /// Chooses what settings leave open, given the fingerprint in the state document: a source that
    /// has run before stays with what it chose then. Does nothing where nothing is open.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be reached, or there is nothing to choose.
    async fn open(&self, _stored: Option<&SourceFingerprint>) -> Result<(), FetchError> {
        Ok(())
    }

    /// Returns the position after everything that is there now, for a poller that is to start with what
    /// comes next; `None` where there is nothing yet.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or does not know.
    async fn present(&self) -> Result<Option<Cursor>, FetchError> {
        let reason = "this source cannot start at its present end: start it at the `beginning`";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Returns what to keep with a checkpoint that an operator sets or confirms: which object is read from now
    /// on. `kept` is what was kept so far if the position stays, and what still holds of it is part of the
    /// answer.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or the order of rows has changed for a position that stays.
    async fn anchor(&self, kept: Option<&SourceState>) -> Result<Anchor, FetchError> {
        let state = kept.cloned().unwrap_or_default();
        Ok(Anchor { state, changes: Vec::new() })
    }

    /// Returns the row that has the key of `at` as it is now, with the position under which it is
    /// delivered in its turn too; no row where none has the key any more.
    ///
    /// `at` is a position at which it was read before. Unlike [`Self::fetch`] this waits for no other
    /// transaction: nothing is concluded from it about rows before or behind.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or not by a key.
    async fn current(&self, _at: &Cursor) -> Result<Rows, FetchError> {
        let reason = "this source cannot read a row by its key";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Returns how many rows `window` holds, but at most its `rows_max`: for people who plan something. In a
    /// window without an end also those are counted that may not be read yet.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or no longer has all of the window.
    async fn count(&self, _window: FetchWindow<'_>) -> Result<u64, FetchError> {
        let reason = "this source cannot count the rows of a range";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Returns the last one of the first `rows_max` rows of `window`, without its columns; none where the
    /// window is empty. The window has an end.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be read, or its ranges cannot be divided.
    async fn last_of(&self, _window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        let reason = "ranges of this source cannot be divided: use one window";
        Err(FetchError::new(ErrorKind::Configuration, reason))
    }

    /// Whether a row lies in `window`, be it one that may not be delivered yet because a tick has to note
    /// something first: for whoever judges that no tick does. The window has no end.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch`].
    async fn has_rows_behind(&self, window: FetchWindow<'_>) -> Result<bool, FetchError> {
        self.fetch_at_once(window).await.map(|found| !found.rows.is_empty())
    }

    /// Takes back [`Rows::json`] of rows that have become events, for the next ones to be read into. Does
    /// nothing where a source has no use for it.
    fn reuse(&self, _buffer: String) {}

    /// Returns rows of `window`, oldest first.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be reached or read.
    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError>;

    /// As [`Self::fetch`], but fails at the first error, where that would wait and try again: finished
    /// work waits for the answer to be written down.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch`].
    async fn fetch_at_once(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError> {
        self.fetch(window).await
    }
}
