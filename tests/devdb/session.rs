//! The interface between wire and engine.

use super::types::{Parameter, Reply, SqlError};

/// An engine that connections can be opened to.
///
/// [`Database`](super::Database) is the one over SQLite; an in-memory model could be another.
pub trait Engine: Send + Sync + 'static {
    /// Opens a session for a client that has logged in to `database`.
    ///
    /// # Errors
    ///
    /// Fails if the engine has no such database or cannot open it.
    fn connect(&self, database: &str) -> Result<Box<dyn Session>, SqlError>;
}

/// One client's session. Dropping it rolls back an open transaction.
///
/// Every method may block; the server calls them on a thread that may.
pub trait Session: Send + 'static {
    /// Runs the statements of a batch up to the first that fails.
    fn run(&mut self, sql: &str, parameters: &[Parameter]) -> Vec<Reply>;

    /// Restores the settings that a procedure call changed, after the text of `sp_executesql` has run.
    fn leave_procedure(&mut self) {}

    /// Begins a transaction.
    ///
    /// # Errors
    /// Fails where the engine cannot.
    fn begin(&mut self) -> Result<(), SqlError>;

    /// Commits the transaction.
    ///
    /// # Errors
    ///
    /// Fails without a transaction (3902) and if the engine cannot commit.
    fn commit(&mut self) -> Result<(), SqlError>;

    /// Rolls the transaction back.
    ///
    /// # Errors
    ///
    /// Fails without a transaction (3903) and if the engine cannot roll back.
    fn rollback(&mut self) -> Result<(), SqlError>;

    /// Descriptor of the open transaction: a number that the session has not used before.
    fn transaction(&self) -> Option<u64>;

    /// Whether the last transaction that ended was rolled back.
    fn rolled_back(&self) -> bool;
}
