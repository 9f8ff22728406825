//! What the wire needs from an engine.

use super::types::{Parameter, Reply, SqlError};

/// Something that connections can be opened to.
///
/// [`Database`](super::Database) is the one over SQLite; a model kept in memory can be another.
pub trait Engine: Send + Sync + 'static {
    /// Opens a session for a client that has logged in to `database`.
    ///
    /// # Errors
    /// Fails where the engine has no such database or cannot open it.
    fn connect(&self, database: &str) -> Result<Box<dyn Session>, SqlError>;
}

/// One client's session. Dropping it rolls back an open transaction.
///
/// Every method may block; the server calls them where that is allowed.
pub trait Session: Send + 'static {
    /// Runs the statements of a batch up to the first that fails.
    fn run(&mut self, sql: &str, parameters: &[Parameter]) -> Vec<Reply>;

    /// Restores the settings that a procedure call changed: what ran last was the text of
    /// `sp_executesql`.
    fn leave_procedure(&mut self) {}

    /// Begins a transaction.
    ///
    /// # Errors
    /// Fails where the engine cannot.
    fn begin(&mut self) -> Result<(), SqlError>;

    /// Commits the transaction.
    ///
    /// # Errors
    /// Fails without a transaction (3902) and where the engine cannot.
    fn commit(&mut self) -> Result<(), SqlError>;

    /// Rolls the transaction back.
    ///
    /// # Errors
    /// Fails without a transaction (3903) and where the engine cannot.
    fn rollback(&mut self) -> Result<(), SqlError>;

    /// Descriptor of the open transaction: a number no earlier transaction of the session had.
    fn transaction(&self) -> Option<u64>;

    /// Whether the last transaction that ended was rolled back.
    fn rolled_back(&self) -> bool;
}
