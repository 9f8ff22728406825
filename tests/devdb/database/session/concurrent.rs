//! Several transactions that write concurrently.
//!
//! SQLite has one writer, so the writes of an open transaction do not stay in it. A statement runs over the
//! session's earlier changes, the written rows are read back and kept here, and SQLite is rolled back. At the
//! commit they are written together, and only then do others see them. The values are those of the statement:
//! its rowversions, identities and times are older than the commit, which is the situation that a poller must
//! handle.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, params_from_iter, types::Value as Stored};

use super::{SqliteSession, bind_to};
use crate::{
    database::{errors::sql_error, store::loaded},
    tsql::{Write, parser::quoted},
    types::{Column, Reply, SqlError, Value},
};

/// Rows that an open transaction has written, by table and row id.
#[derive(Debug, Default)]
pub(super) struct Pending(BTreeMap<String, BTreeMap<i64, Change>>);

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Inserted(Vec<Stored>),
    Updated(Vec<Stored>),
    Deleted,
}

impl Pending {
    /// Adds a row as a statement left it; [`None`] if it was deleted.
    fn add(&mut self, table: &str, row: i64, is_new: bool, values: Option<Vec<Stored>>) {
        let rows = self.0.entry(table.to_lowercase()).or_default();
        let is_new = is_new || matches!(rows.get(&row), Some(Change::Inserted(_)));
        match values {
            Some(values) if is_new => rows.insert(row, Change::Inserted(values)),
            Some(values) => rows.insert(row, Change::Updated(values)),
            None if is_new => rows.remove(&row),
            None => rows.insert(row, Change::Deleted),
        };
    }

    fn is_empty(&self) -> bool {
        self.0.values().all(BTreeMap::is_empty)
    }
}

impl SqliteSession {
    /// Runs a read that sees the writes of its own transaction.
    pub(super) fn with_pending<T>(
        &self,
        read: impl FnOnce() -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        if self.pending.is_empty() {
            return read();
        }
        self.sqlite("BEGIN IMMEDIATE")?;
        let result = self.apply_pending().and_then(|()| read());
        self.sqlite("ROLLBACK")?;
        result
    }

    /// Runs a statement that writes, and keeps its writes until the commit.
    pub(super) fn write_beside(&mut self, write: Write) -> Result<Reply, SqlError> {
        self.sqlite("BEGIN IMMEDIATE")?;
        let Write { command, table, sql, returning, .. } = write;
        let written =
            self.apply_pending().and_then(|()| self.run_and_keep(&table, &sql, &returning));
        let ended = self.sqlite("ROLLBACK");
        let result = written.and_then(|rows| ended.map(|()| rows));
        if self.transaction.is_none() {
            let committed = if result.is_ok() { self.commit_pending() } else { Ok(()) };
            self.pending = Pending::default();
            self.shared.transaction_ended(self.state.id);
            committed?;
        }
        let rows = result?;
        let completion = self.counted(command, rows.len());
        Ok(if returning.is_empty() {
            Reply::Done(completion)
        } else {
            Reply::Rows { columns: returning, rows, completion }
        })
    }

    /// Writes the kept rows, visible to all.
    pub(super) fn commit_pending(&mut self) -> Result<(), SqlError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.sqlite("BEGIN IMMEDIATE")?;
        let saved = self.apply_pending().and_then(|()| self.save_versions(true));
        self.sqlite(if saved.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        saved
    }

    /// Applies the kept rows to the database, inside an SQLite transaction.
    fn apply_pending(&self) -> Result<(), SqlError> {
        let apply = || -> rusqlite::Result<()> {
            for (table, rows) in &self.pending.0 {
                let columns = self.column_names(table)?;
                // Deleted rows first: a new row may have the key of one.
                let is_deleted = |change: &Change| *change == Change::Deleted;
                let deleted = rows.iter().filter(|(_, change)| is_deleted(change));
                let kept = rows.iter().filter(|(_, change)| !is_deleted(change));
                for (row, change) in deleted.chain(kept) {
                    let (sql, values) = statement(table, &columns, change);
                    let values = std::iter::once(Stored::Integer(*row)).chain(values);
                    let mut statement = self.connection.prepare_cached(&sql)?;
                    statement.execute(params_from_iter(values))?;
                }
            }
            Ok(())
        };
        apply().map_err(|error| sql_error(&error))
    }

    fn column_names(&self, table: &str) -> rusqlite::Result<Vec<String>> {
        // Not a cached statement, which would have the columns of the time it was prepared.
        let sql = format!("SELECT * FROM dbo.{}", quoted(table));
        let statement = self.connection.prepare(&sql)?;
        Ok(statement.column_names().into_iter().map(quoted).collect())
    }

    fn run_and_keep(
        &mut self,
        table: &str,
        sql: &str,
        returning: &[Column],
    ) -> Result<Vec<Vec<Value>>, SqlError> {
        let is_new = sql.starts_with("INSERT");
        let id = if returning.is_empty() { " RETURNING rowid" } else { ", rowid" };
        let written = self.written(&format!("{sql}{id}"), returning);
        let written = written.map_err(|error| sql_error(&error))?;
        // First all locks, so that a statement is kept completely or not at all.
        let is_locked = |(row, _): &(i64, _)| self.shared.lock_row(table, *row, self.state.id);
        if !is_new && !written.iter().all(is_locked) {
            return Err(SqlError::new(1222, 16, "Lock request time out period exceeded."));
        }
        let mut rows = Vec::with_capacity(written.len());
        for (at, row) in written {
            let values = self.stored_row(table, at).map_err(|error| sql_error(&error))?;
            let id = if is_new { self.shared.next_row(table, self.state.id, at) } else { at };
            self.pending.add(table, id, is_new, values);
            rows.push(row);
        }
        Ok(rows)
    }

    /// Runs a statement; returns its output for each row, with the row's id.
    fn written(&self, sql: &str, returning: &[Column]) -> rusqlite::Result<Vec<(i64, Vec<Value>)>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        bind_to(&mut statement, &self.variables)?;
        let (mut rows, mut found) = (statement.raw_query(), Vec::new());
        while let Some(row) = rows.next()? {
            let value = |(index, column): (usize, &Column)| {
                row.get_ref(index).and_then(|stored| loaded(column.ty, stored))
            };
            let values = returning.iter().enumerate().map(value).collect::<Result<_, _>>()?;
            found.push((row.get(returning.len())?, values));
        }
        Ok(found)
    }

    fn stored_row(&self, table: &str, row: i64) -> rusqlite::Result<Option<Vec<Stored>>> {
        let sql = format!("SELECT * FROM dbo.{} WHERE rowid = ?1", quoted(table));
        // As above.
        let mut statement = self.connection.prepare(&sql)?;
        let count = statement.column_count();
        let read = |row: &rusqlite::Row<'_>| (0..count).map(|index| row.get(index)).collect();
        statement.query_row([row], read).optional()
    }
}

/// The statement that writes one kept row, and its values after the row's id.
fn statement(table: &str, columns: &[String], change: &Change) -> (String, Vec<Stored>) {
    let table = quoted(table);
    let places = (2..).map(|place| format!("?{place}")).take(columns.len());
    match change {
        Change::Deleted => (format!("DELETE FROM dbo.{table} WHERE rowid = ?1"), Vec::new()),
        Change::Inserted(values) => {
            let places: Vec<_> = places.collect();
            let (columns, places) = (columns.join(", "), places.join(", "));
            let sql = format!("INSERT INTO dbo.{table} (rowid, {columns}) VALUES (?1, {places})");
            (sql, values.clone())
        }
        Change::Updated(values) => {
            let set: Vec<_> =
                columns.iter().zip(places).map(|(c, p)| format!("{c} = {p}")).collect();
            (format!("UPDATE dbo.{table} SET {} WHERE rowid = ?1", set.join(", ")), values.clone())
        }
    }
}
