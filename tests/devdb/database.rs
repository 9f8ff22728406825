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
    /// Opens a database in an SQLite file, and makes it where there is none.
    ///
    /// Only one process may use the file at a time, since row versions are counted in memory.
    ///
    /// # Errors
    /// Fails where SQLite cannot open the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SqlError> {
        Self::prepare(Shared::new(path.as_ref().into(), false, false))
    }

    /// Makes a database that goes away with its last handle.
    ///
    /// It is a file in the directory for temporary files, since SQLite's databases in memory have
    /// no snapshots and its readers would wait for an open transaction.
    ///
    /// # Errors
    /// Fails where the file cannot be made.
    pub fn in_memory() -> Result<Self, SqlError> {
        Self::temporary(false)
    }

    /// Makes a database as [`Self::in_memory`] does, in which several transactions write at once.
    ///
    /// Each sees what was committed before its statement, and its own rows; others see those from
    /// the commit on, while rowversions and identities are taken by the statement that writes. To
    /// write a row that another open transaction has written fails at once (1222), where SQL Server
    /// would wait: so whoever calls decides what happens in which order.
    ///
    /// # Errors
    /// Fails where the file cannot be made.
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

    /// Sets what `SYSUTCDATETIME()` tells, as in `2026-11-20T10:00:00.1234567`.
    ///
    /// # Errors
    /// Fails for a text that is not a date (241).
    pub fn set_now(&self, now: &str) -> Result<(), SqlError> {
        let text = "Conversion failed when converting date and/or time from character string.";
        let parsed = dates::parse(now).ok_or_else(|| SqlError::new(241, 16, text))?;
        self.0.set_now(Some(parsed.stamp));
        Ok(())
    }

    /// Sets how far `SYSDATETIME()` and `GETDATE()` are ahead of UTC, in minutes; 0 from the start.
    ///
    /// `SYSDATETIMEOFFSET()` goes on telling UTC, which is the same instant.
    pub fn set_zone(&self, minutes: i16) {
        self.0.set_zone(minutes);
    }

    /// Lets `SYSUTCDATETIME()` tell the system's time again, which it does from the start.
    pub fn use_system_clock(&self) {
        self.0.set_now(None);
    }

    /// Runs T-SQL without the wire and tells how many rows it wrote or answered.
    ///
    /// # Errors
    /// The first error of a statement; those before it have run.
    pub fn execute(&self, sql: &str) -> Result<u64, SqlError> {
        let mut rows = 0;
        for reply in SqliteSession::open(self.0.clone(), "master")?.run(sql, &[]) {
            rows += match reply {
                Reply::Rows { rows, .. } => rows.len().try_into().unwrap_or(u64::MAX),
                Reply::Done(completion) => completion.written(),
                Reply::Error(error) => return Err(error),
            };
        }
        Ok(rows)
    }

    /// Forgets the tracked changes of a table up to now, as when their retention is over.
    ///
    /// # Errors
    /// Fails for a table whose changes are not tracked (4998).
    pub fn forget_changes(&self, table: &str) -> Result<(), SqlError> {
        SqliteSession::open(self.0.clone(), "master")?.forget_changes(&named(table)?)
    }

    /// Notes each row of `table` that is inserted or changed from now on as a row of `notes`, with
    /// the same columns, in the same transaction: as a trigger would, which T-SQL cannot make here.
    ///
    /// Both are names as T-SQL writes them. Of a database in which several transactions write at once
    /// nothing is noted.
    ///
    /// # Errors
    /// Fails for an unknown table (208) or column (207).
    pub fn note_writes(&self, table: &str, notes: &str, columns: &[&str]) -> Result<(), SqlError> {
        let session = SqliteSession::open(self.0.clone(), "master")?;
        column_types(&session, table, columns)?;
        column_types(&session, notes, columns)?;
        session.note_writes(&named(table)?, &named(notes)?, columns)
    }

    /// Inserts rows in one transaction, much faster than a statement for each.
    ///
    /// `table` is a name as T-SQL writes it; values are given in the order of `columns`.
    ///
    /// # Errors
    /// Fails for an unknown table (208) or column (207), a row of another length (213) and as an
    /// INSERT does; then no row is kept.
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

/// Physical name of a table that is named as T-SQL writes it.
fn named(table: &str) -> Result<String, SqlError> {
    let tokens = super::tsql::lexer::tokens(table)?;
    let parts = tokens.iter().map(|token| token.shown().to_owned()).filter(|part| part != ".");
    physical(&parts.collect::<Vec<_>>(), "").ok_or_else(|| invalid_object(table))
}

fn bracketed(name: &str) -> String {
    format!("[{}]", name.replace(']', "]]"))
}

/// Makes an empty file of a name no other has.
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
