//! Where changes come from: the port.

pub mod mssql;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use crate::cursor::{Cursor, CursorMode, SourceFingerprint};
use crate::error::ErrorKind;
use crate::event::{Operation, SourceLabel};
use crate::value::Value;

/// What does not change about a source while it runs.
#[derive(Clone, Debug)]
pub struct SourceShape {
    /// What handlers are told.
    pub label: SourceLabel,
    /// How rows are ordered.
    pub mode: CursorMode,
    /// Key columns, in key order.
    pub key: Vec<String>,
    /// What gives a checkpoint its meaning.
    pub fingerprint: SourceFingerprint,
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
}

/// One row as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What happened to it.
    pub op: Operation,
    /// Leading part of its position: the text of the cursor column.
    pub position: Value,
    /// Values of the key columns, in key order.
    pub key: Vec<Value>,
    /// Values of all columns that are delivered, as in [`Rows::columns`].
    pub values: Vec<Value>,
}

/// The answer to one fetch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Names of the delivered columns.
    pub columns: Vec<String>,
    /// Rows in the source's order, oldest first.
    pub rows: Vec<Row>,
    /// Whether the window holds more rows than these.
    pub more: bool,
    /// How old the oldest of these rows is by the source's clock, where the mode can tell.
    pub lag: Option<Duration>,
}

/// The source could not be read. The handler is not called, and the next tick tries again.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct FetchError {
    /// What the operator has to do.
    pub kind: ErrorKind,
    /// What went wrong, with which value, without secrets.
    pub reason: String,
    /// The driver's error.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl FetchError {
    /// Returns an error without a cause.
    pub fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), source: None }
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
    /// Returns what does not change.
    fn shape(&self) -> &SourceShape;

    /// Returns rows of `window`, oldest first.
    ///
    /// # Errors
    ///
    /// [`FetchError`] if the source cannot be reached or read.
    async fn fetch(&self, window: FetchWindow<'_>) -> Result<Rows, FetchError>;
}
