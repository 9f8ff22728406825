//! Applies each event once, on SQLite. The statements are nearly the same on other databases.
//!
//! One transaction holds the work of a batch and the ids of its events. A savepoint around each event undoes the work
//! of an event that fails; everything before it is committed. Whether an event was seen before is decided by its id
//! in the table, and never by a number of affected rows.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, TransactionBehavior};

use super::Failure;
use super::receive::{Batch, Rejection};
use crate::row::Change;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS processed_events (
    poller_name TEXT NOT NULL, event_id TEXT NOT NULL, processed_at INTEGER NOT NULL,
    PRIMARY KEY (poller_name, event_id));
CREATE INDEX IF NOT EXISTS processed_events_by_time ON processed_events (processed_at);
CREATE TABLE IF NOT EXISTS fences (
    poller_name TEXT PRIMARY KEY, generation INTEGER NOT NULL, token INTEGER NOT NULL);
";
/// An event is redelivered within hours. Keep ids longer than the longest time that a poller may be paused.
pub const RETENTION_SECONDS: i64 = 30 * 24 * 60 * 60;

/// Opens the database.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(30))?;
    db.execute_batch(TABLES)?;
    Ok(db)
}

/// Why a batch was not applied.
pub enum NotApplied {
    /// The request must be answered with a status of its own.
    Rejected(Rejection),
    /// Nothing can be applied now.
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for NotApplied {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Applies a batch; returns the id of the first event that failed.
pub fn apply_once(
    db: &mut Connection,
    batch: &Batch,
    handle: &dyn Fn(&Change, &Connection) -> Result<(), Failure>,
    now: i64,
) -> Result<Option<String>, NotApplied> {
    // Dropping a transaction or a savepoint undoes it.
    let mut transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    admit(&transaction, batch)?;
    let mut failed = None;
    for change in &batch.changes {
        let savepoint = transaction.savepoint()?;
        if record(&savepoint, &batch.poller, &change.id, now)? {
            match handle(change, &savepoint) {
                Ok(()) => {}
                Err(Failure::Event(reason)) => {
                    eprintln!("event {} of poller {} failed: {reason}", change.id, batch.poller);
                    failed = Some(change.id.clone());
                    break;
                }
                Err(Failure::Other(error)) => return Err(NotApplied::Failed(error)),
            }
        }
        savepoint.commit()?;
    }
    transaction.execute("DELETE FROM processed_events WHERE processed_at < ?", [now - RETENTION_SECONDS])?;
    transaction.commit()?;
    Ok(failed)
}

/// Records an event as processed; returns whether it is new.
fn record(db: &Connection, poller: &str, event: &str, now: i64) -> rusqlite::Result<bool> {
    match db.execute("INSERT INTO processed_events VALUES (?, ?, ?)", (poller, event, now)) {
        Ok(_) => Ok(true),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            let found = "SELECT 1 FROM processed_events WHERE poller_name = ? AND event_id = ?";
            let known = db.query_row(found, (poller, event), |_| Ok(())).optional()?;
            known.map(|()| false).ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// Rejects a batch of an instance that lost its lease: it must not write after its successor.
fn admit(db: &Connection, batch: &Batch) -> Result<(), NotApplied> {
    let lease = (batch.generation, batch.fencing_token);
    let found = "SELECT generation, token FROM fences WHERE poller_name = ?";
    let highest = db.query_row(found, [&batch.poller], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    if let Some(highest) = highest.filter(|highest| lease < *highest) {
        return Err(NotApplied::Rejected(Rejection::fenced(highest)));
    }
    let write = "INSERT OR REPLACE INTO fences VALUES (?, ?, ?)";
    db.execute(write, (&batch.poller, lease.0, lease.1))?;
    Ok(())
}
