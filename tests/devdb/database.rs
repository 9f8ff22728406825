//! The engine over SQLite.

mod catalog;
mod collation;
mod columns;
mod definition;
mod errors;
mod functions;
mod like;
mod session;
mod shared;
mod store;
mod tracking;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use self::{errors::sql_error, session::SqliteSession, shared::Shared};
use super::{
    dates,
    session::{Engine, Session},
    tsql::parser::{Schema, invalid_column, invalid_object, physical},
    types::{Reply, SqlError, Type, Value},
};

/// A database that sessions can be opened to; clones are the same database.
#[derive(Clone, Debug)]
pub struct Database(Arc<Shared>);

impl Database {
    /// Opens a database in an SQLite file, and creates it if it does not exist.
    ///
    /// Only one process may use the file at a time, since row versions are counted in memory.
    ///
    /// # Errors
    ///
    /// Fails if SQLite cannot open the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SqlError> {
        Self::prepare(Shared::new(path.as_ref().into(), false, false))
    }

    /// Creates a database that is deleted with its last handle.
    ///
    /// It is a file in the temporary directory, since SQLite's in-memory databases have no snapshots and
    /// their readers would wait for an open transaction.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be created.
    pub fn in_memory() -> Result<Self, SqlError> {
        Self::temporary(false)
    }

    /// Creates a database like [`Self::in_memory`], in which several transactions write concurrently.
    ///
    /// Each sees the rows that were committed before its statement, and its own rows. Others see those after
    /// the commit, although rowversions and identities are assigned by the writing statement. Writing a row
    /// that another open transaction has written fails at once (1222), where SQL Server would wait, so the
    /// caller decides the order of events.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be created.
    pub fn concurrent() -> Result<Self, SqlError> {
        Self::temporary(true)
    }

    fn temporary(concurrent: bool) -> Result<Self, SqlError> {
        let path = temporary_file().map_err(|error| SqlError::new(5123, 16, error.to_string()))?;
        Self::prepare(Shared::new(path, true, concurrent))
    }

    fn prepare(shared: Shared) -> Result<Self, SqlError> {
        let shared = Arc::new(shared);
        let session = SqliteSession::open(shared.clone(), "master")?;
        shared.continue_after(session.prepare().map_err(|error| sql_error(&error))?);
        Ok(Self(shared))
    }

    /// Sets the value of `SYSUTCDATETIME()`, as in `2026-11-20T10:00:00.1234567`.
    ///
    /// # Errors
    ///
    /// Fails for a text that is not a date (241).
    pub fn set_now(&self, now: &str) -> Result<(), SqlError> {
        let text = "Conversion failed when converting date and/or time from character string.";
        let parsed = dates::parse(now).ok_or_else(|| SqlError::new(241, 16, text))?;
        self.0.set_now(Some(parsed.stamp));
        Ok(())
    }

    /// Sets how far `SYSDATETIME()` and `GETDATE()` are ahead of UTC, in minutes; initially 0.
    ///
    /// `SYSDATETIMEOFFSET()` still returns UTC, which is the same instant.
    pub fn set_zone(&self, minutes: i16) {
        self.0.set_zone(minutes);
    }

    /// Resets `SYSUTCDATETIME()` to the system's time, which is the initial setting.
    pub fn use_system_clock(&self) {
        self.0.set_now(None);
    }

    /// Runs T-SQL without the wire, and returns how many rows it wrote or returned.
    ///
    /// # Errors
    ///
    /// The first error of a statement; the statements before it have run.
    pub fn execute(&self, sql: &str) -> Result<u64, SqlError> {
        let replies = self.query(sql)?;
        Ok(replies.iter().map(Reply::rows).sum())
    }

    /// As [`Self::execute`], and returns the replies of all statements, none of which is an error.
    ///
    /// # Errors
    ///
    /// As [`Self::execute`].
    pub fn query(&self, sql: &str) -> Result<Vec<Reply>, SqlError> {
        let replies = SqliteSession::open(self.0.clone(), "master")?.run(sql, &[]);
        let ended = replies.into_iter().map(|reply| match reply {
            Reply::Error(error) => Err(error),
            Reply::Rows { .. } | Reply::Done(_) => Ok(reply),
        });
        ended.collect()
    }

    /// Removes the tracked changes of a table up to now, as after their retention.
    ///
    /// # Errors
    ///
    /// Fails for a table whose changes are not tracked (4998).
    pub fn forget_changes(&self, table: &str) -> Result<(), SqlError> {
        SqliteSession::open(self.0.clone(), "master")?.forget_changes(&named(table)?)
    }

    /// Records each row of `table` that is inserted or updated from now on as a row of `notes`, with the same
    /// columns, in the same transaction: like a trigger, which T-SQL cannot create here.
    ///
    /// Both are names in T-SQL syntax. In a database with concurrent writers nothing is recorded.
    ///
    /// # Errors
    ///
    /// Fails for an unknown table (208) or column (207).
    pub fn note_writes(&self, table: &str, notes: &str, columns: &[&str]) -> Result<(), SqlError> {
        let session = SqliteSession::open(self.0.clone(), "master")?;
        column_types(&session, table, columns)?;
        column_types(&session, notes, columns)?;
        session.note_writes(&named(table)?, &named(notes)?, columns)
    }

    /// Inserts rows in one transaction, much faster than with a statement for each.
    ///
    /// `table` is a name in T-SQL syntax; values are in the order of `columns`.
    ///
    /// # Errors
    ///
    /// Fails for an unknown table (208) or column (207), for a row of another length (213), and like an
    /// INSERT; then no row is kept.
    pub fn insert_rows(
        &self,
        table: &str,
        columns: &[&str],
        rows: impl IntoIterator<Item = Vec<Value>>,
    ) -> Result<u64, SqlError> {
        let mut session = SqliteSession::open(self.0.clone(), "master")?;
        let types = column_types(&session, table, columns)?;
        let names: Vec<_> = columns.iter().map(|name| bracketed(name)).collect();
        let values: Vec<_> = (0..columns.len()).map(|index| format!("@c{index}")).collect();
        let (names, values) = (names.join(", "), values.join(", "));
        let sql = format!("INSERT INTO {table} ({names}) VALUES ({values})");
        session.run_for_each(&sql, &types, rows.into_iter())
    }
}

impl Engine for Database {
    fn connect(&self, database: &str) -> Result<Box<dyn Session>, SqlError> {
        Ok(Box::new(SqliteSession::open(self.0.clone(), database)?))
    }
}

fn column_types(
    session: &SqliteSession,
    table: &str,
    names: &[&str],
) -> Result<Vec<(String, Type)>, SqlError> {
    let table = named(table)?;
    let columns = session.columns(&table)?.ok_or_else(|| invalid_object(&table))?;
    let find = |name: &&str| {
        let column = columns.iter().find(|column| column.name.eq_ignore_ascii_case(name));
        column.map(|column| (column.name.clone(), column.ty)).ok_or_else(|| invalid_column(name))
    };
    names.iter().map(find).collect()
}

/// Physical name of a table from its name in T-SQL syntax.
fn named(table: &str) -> Result<String, SqlError> {
    let tokens = super::tsql::lexer::tokens(table)?;
    let parts = tokens.iter().map(|token| token.shown().to_owned()).filter(|part| part != ".");
    physical(&parts.collect::<Vec<_>>(), "").ok_or_else(|| invalid_object(table))
}

fn bracketed(name: &str) -> String {
    format!("[{}]", name.replace(']', "]]"))
}

/// Creates an empty file with a unique name.
fn temporary_file() -> io::Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    for _ in 0..1000 {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("highwater-devdb-{}-{number}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(name);
        match File::create_new(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("every name for a temporary database is taken"))
}
