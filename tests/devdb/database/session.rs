//! A session over SQLite.
//!
//! Reads run outside SQLite transactions, each with its own snapshot, and a transaction of the client becomes
//! an SQLite transaction with its first write. That is READ COMMITTED with row versioning, except that only
//! one transaction writes at a time and others wait. A database for concurrent writers has no such limit: see
//! `session/concurrent.rs`.

mod catalogue;
mod concurrent;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rusqlite::{Connection, types::Value as Stored};

use self::concurrent::Pending;

use super::{
    catalog, collation, definition,
    errors::sql_error,
    functions,
    shared::{SessionState, Shared},
    store::{loaded, stored},
};
use crate::{
    convert,
    session::Session,
    tsql::{
        Statement, Write, lexer,
        parser::{Parser, quoted},
    },
    types::{Column, Command, Completion, Parameter, Reply, SqlError, Type, Value},
};

/// How long a write waits for another transaction, unless `SET LOCK_TIMEOUT` is set.
const LOCK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Variables and parameters of a batch, by name in lower case.
type Variables = BTreeMap<String, (Type, Stored)>;

/// A session of one client.
#[derive(Debug)]
pub(crate) struct SqliteSession {
    connection: Connection,
    shared: Arc<Shared>,
    state: Arc<SessionState>,
    variables: Variables,
    /// Table for which `SET IDENTITY_INSERT` is on.
    identity_insert: String,
    abort_on_error: bool,
    no_count: NoCount,
    transaction: Option<Transaction>,
    /// The writes of the transaction, in a database with concurrent writers.
    pending: Pending,
    transactions: u64,
    rolled_back: bool,
}

/// `SET NOCOUNT`.
#[derive(Debug, Default)]
struct NoCount {
    is_on: bool,
    /// The value before the last statement, since a procedure call does not keep its setting.
    was_on: bool,
}

#[derive(Debug)]
struct Transaction {
    descriptor: u64,
    depth: u32,
    /// Whether SQLite's transaction has started, which happens with the first write.
    writing: bool,
}

impl SqliteSession {
    /// Opens a session.
    ///
    /// # Errors
    ///
    /// Fails if SQLite cannot open the file.
    pub(crate) fn open(shared: Arc<Shared>, database: &str) -> Result<Self, SqlError> {
        let state = Arc::new(SessionState::new(shared.next_session(), database));
        let connection = connect(&shared, &state).map_err(|error| sql_error(&error))?;
        Ok(Self {
            connection,
            shared,
            state,
            variables: Variables::new(),
            identity_insert: String::new(),
            abort_on_error: false,
            no_count: NoCount::default(),
            transaction: None,
            pending: Pending::default(),
            transactions: 0,
            rolled_back: false,
        })
    }

    /// Creates the catalog if it is missing, and returns the last row version.
    pub(crate) fn prepare(&self) -> rusqlite::Result<u64> {
        catalog::prepare(&self.connection)
    }

    /// Runs one statement for each row, in one transaction, with the row's values as `@c0`, `@c1`…
    ///
    /// # Errors
    ///
    /// As the statement; then no row is kept.
    pub(crate) fn run_for_each(
        &mut self,
        sql: &str,
        columns: &[(String, Type)],
        rows: impl Iterator<Item = Vec<Value>>,
    ) -> Result<u64, SqlError> {
        let variables = columns.iter().enumerate();
        self.variables =
            variables.map(|(n, (_, ty))| (format!("@c{n}"), (*ty, Stored::Null))).collect();
        let tokens = lexer::tokens(sql)?;
        let Some(Statement::Write(Write { sql, identity, .. })) = self.parse(&tokens, 0)?.0 else {
            return Err(SqlError::unsupported("A statement without rows"));
        };
        self.writing(|session| {
            session.seed_identity(identity.as_ref())?;
            let mut statement = session.connection.prepare(&sql).map_err(|e| sql_error(&e))?;
            let mut count = 0;
            for row in rows {
                if row.len() != columns.len() {
                    let text = "Column name or number of supplied values does not match.";
                    return Err(SqlError::new(213, 16, text));
                }
                for (index, ((name, ty), value)) in columns.iter().zip(&row).enumerate() {
                    let value = convert::assign(value, Some(*ty), *ty, name)?;
                    let name = format!("@c{index}");
                    let at = statement.parameter_index(&name).map_err(|e| sql_error(&e))?;
                    if let Some(at) = at {
                        let bound = statement.raw_bind_parameter(at, stored(*ty, &value));
                        bound.map_err(|e| sql_error(&e))?;
                    }
                }
                statement.raw_execute().map_err(|e| sql_error(&e))?;
                count += 1;
            }
            Ok(count)
        })
    }

    /// Creates triggers that copy writes to one table into another.
    ///
    /// # Errors
    ///
    /// Fails if these triggers exist.
    pub(crate) fn note_writes(
        &self,
        table: &str,
        notes: &str,
        columns: &[&str],
    ) -> Result<(), SqlError> {
        let names: Vec<String> = columns.iter().map(|name| quoted(name)).collect();
        let values: Vec<String> = names.iter().map(|name| format!("NEW.{name}")).collect();
        let (names, values) = (names.join(", "), values.join(", "));
        let (table, notes) = (quoted(table), quoted(notes));
        for event in ["INSERT", "UPDATE"] {
            let trigger = quoted(&format!("note {event} of {table}"));
            self.sqlite(&format!(
                "CREATE TRIGGER dbo.{trigger} AFTER {event} ON {table} BEGIN \
                 INSERT INTO {notes} ({names}) VALUES ({values}); END"
            ))?;
        }
        Ok(())
    }

    fn batch(
        &mut self,
        sql: &str,
        parameters: &[Parameter],
        replies: &mut Vec<Reply>,
    ) -> Result<(), SqlError> {
        let variable = |p: &Parameter| (p.name.to_lowercase(), (p.ty, stored(p.ty, &p.value)));
        self.variables = parameters.iter().map(variable).collect();
        let tokens = lexer::tokens(sql)?;
        let mut at = 0;
        while let (Some(statement), next) = self.parse(&tokens, at)? {
            self.execute(statement, replies)?;
            at = next;
        }
        Ok(())
    }

    fn parse(
        &self,
        tokens: &[lexer::Token],
        at: usize,
    ) -> Result<(Option<Statement>, usize), SqlError> {
        let mut parser = Parser::new(tokens, at, self);
        let statement = parser.statement()?;
        Ok((statement, parser.position()))
    }

    fn execute(&mut self, statement: Statement, replies: &mut Vec<Reply>) -> Result<(), SqlError> {
        match statement {
            Statement::Query { sql, columns } => {
                let rows = self.rows(&sql, &columns)?;
                let completion = self.counted(Command::Select, rows.len());
                replies.push(Reply::Rows { columns, rows, completion });
            }
            Statement::Select { sql, columns, targets } => {
                let rows = self.rows(&sql, &columns)?;
                replies.push(Reply::Done(self.counted(Command::Select, rows.len())));
                if let Some(row) = rows.into_iter().last() {
                    for ((name, value), column) in targets.iter().zip(row).zip(&columns) {
                        self.assign(name, column.ty, &value)?;
                    }
                }
            }
            Statement::Write(write) => replies.push(self.write(write)?),
            Statement::Declare { name, ty, value } => {
                let value = value.map(|sql| self.value(&sql)).transpose()?;
                if value.is_some() {
                    self.set_row_count(1);
                }
                self.variables.insert(name, (ty, value.unwrap_or(Stored::Null)));
            }
            Statement::Assign { name, value } => {
                let value = self.value(&value)?;
                if let Some(variable) = self.variables.get_mut(&name) {
                    variable.1 = value;
                }
                self.set_row_count(1);
            }
            Statement::Setting { name, value } => {
                self.set(&name, value)?;
                self.set_row_count(0);
            }
            Statement::Begin => {
                self.begin()?;
                replies.push(Reply::Done(self.uncounted(Command::Begin)));
            }
            Statement::Commit => {
                self.commit()?;
                replies.push(Reply::Done(self.uncounted(Command::Commit)));
            }
            Statement::Rollback => {
                self.rollback()?;
                replies.push(Reply::Done(self.uncounted(Command::Rollback)));
            }
            Statement::If { condition, then, otherwise } => {
                let sql = format!("CASE WHEN {condition} THEN 1 ELSE 0 END");
                let holds = self.value(&sql)? == Stored::Integer(1);
                self.set_row_count(0);
                self.execute(if holds { *then } else { *otherwise }, replies)?;
            }
            Statement::Block(statements) => {
                for statement in statements {
                    self.execute(statement, replies)?;
                }
            }
            Statement::Nothing => self.set_row_count(0),
            Statement::Define(definition) => {
                self.writing(|session| {
                    definition::define(&session.connection, &session.shared, definition)
                })?;
                self.set_row_count(0);
            }
        }
        Ok(())
    }

    fn write(&mut self, write: Write) -> Result<Reply, SqlError> {
        let identity = write.identity.clone();
        let reply = if self.shared.concurrent {
            self.seed_identity(identity.as_ref())?;
            self.write_beside(write)?
        } else {
            self.write_in_place(write)?
        };
        if let Some((table, column)) = identity.filter(|(table, _)| *table == self.identity_insert)
        {
            let highest = self.with_pending(|| self.highest(&table, &column))?;
            let last = self.shared.last_identity(&table).unwrap_or_default();
            self.shared.set_identity(&table, Some(last.max(highest)));
        }
        Ok(reply)
    }

    fn write_in_place(&mut self, write: Write) -> Result<Reply, SqlError> {
        self.writing(|session| {
            let Write { command, sql, returning, identity, .. } = write;
            session.seed_identity(identity.as_ref())?;
            if returning.is_empty() {
                let mut statement =
                    session.connection.prepare_cached(&sql).map_err(|e| sql_error(&e))?;
                bind(&mut statement, &session.variables)?;
                let count = statement.raw_execute().map_err(|error| sql_error(&error))?;
                return Ok(Reply::Done(session.counted(command, count)));
            }
            let rows = session.stored_rows(&sql, &returning)?;
            let completion = session.counted(command, rows.len());
            Ok(Reply::Rows { columns: returning, rows, completion })
        })
    }

    /// Runs a write, in the client's transaction or in a separate one.
    fn writing<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let open = self.transaction.is_some() || self.shared.has_locked_rows();
        if self.shared.concurrent && open {
            return Err(SqlError::unsupported(
                "A change of the schema while a transaction is open",
            ));
        }
        let own = self.transaction.is_none();
        let begun = self.transaction.as_ref().is_some_and(|transaction| transaction.writing);
        if !begun {
            self.sqlite("BEGIN IMMEDIATE")?;
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.writing = true;
        }
        let result = part(self).and_then(|result| {
            self.save_versions(own)?;
            Ok(result)
        });
        if own {
            let ended = self.sqlite(if result.is_ok() { "COMMIT" } else { "ROLLBACK" });
            self.shared.transaction_ended(self.state.id);
            ended?;
        }
        result
    }

    fn seed_identity(&self, identity: Option<&(String, String)>) -> Result<(), SqlError> {
        let Some((table, column)) = identity.filter(|(t, _)| !self.shared.knows_identity(t)) else {
            return Ok(());
        };
        self.shared.set_identity(table, Some(self.highest(table, column)?));
        Ok(())
    }

    /// Returns the highest number in a column of a table.
    fn highest(&self, table: &str, column: &str) -> Result<i64, SqlError> {
        let sql = format!("SELECT coalesce(max({}), 0) FROM dbo.{}", quoted(column), quoted(table));
        self.connection.query_row(&sql, [], |row| row.get(0)).map_err(|error| sql_error(&error))
    }

    fn rows(&self, sql: &str, columns: &[Column]) -> Result<Vec<Vec<Value>>, SqlError> {
        self.with_pending(|| self.stored_rows(sql, columns))
    }

    fn stored_rows(&self, sql: &str, columns: &[Column]) -> Result<Vec<Vec<Value>>, SqlError> {
        let read = || -> rusqlite::Result<Vec<Vec<Value>>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            bind_to(&mut statement, &self.variables)?;
            let (mut rows, mut found) = (statement.raw_query(), Vec::new());
            while let Some(row) = rows.next()? {
                let value = |(index, column): (usize, &Column)| {
                    row.get_ref(index).and_then(|stored| loaded(column.ty, stored))
                };
                found.push(columns.iter().enumerate().map(value).collect::<Result<_, _>>()?);
            }
            Ok(found)
        };
        read().map_err(|error| sql_error(&error))
    }

    /// Evaluates one expression.
    fn value(&self, expression: &str) -> Result<Stored, SqlError> {
        let read = || -> rusqlite::Result<Stored> {
            let mut statement = self.connection.prepare_cached(&format!("SELECT {expression}"))?;
            bind_to(&mut statement, &self.variables)?;
            let mut rows = statement.raw_query();
            rows.next()?.map_or(Ok(Stored::Null), |row| row.get(0))
        };
        self.with_pending(|| read().map_err(|error| sql_error(&error)))
    }

    fn assign(&mut self, name: &str, from: Type, value: &Value) -> Result<(), SqlError> {
        let text = format!("Must declare the scalar variable \"{name}\".");
        let variable = self.variables.get_mut(name);
        let (ty, slot) = variable.ok_or_else(|| SqlError::new(137, 15, text))?;
        *slot = stored(*ty, &convert::cast(value, Some(from), *ty, 0)?);
        Ok(())
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), SqlError> {
        match name {
            "LOCK_TIMEOUT" => {
                let milliseconds: i64 = value.parse().map_err(|_error| SqlError::syntax(&value))?;
                let wait =
                    u64::try_from(milliseconds).map_or(LOCK_TIMEOUT_DEFAULT, Duration::from_millis);
                self.connection.busy_timeout(wait).map_err(|error| sql_error(&error))?;
                self.state.update(|facts| facts.lock_timeout_ms = milliseconds);
            }
            "XACT_ABORT" => self.abort_on_error = value == "ON",
            "NOCOUNT" => self.no_count.is_on = value == "ON",
            "IDENTITY_INSERT" => self.identity_insert = value,
            _ => {}
        }
        Ok(())
    }

    /// The completion of a statement that read or wrote this many rows, which `@@ROWCOUNT` then returns.
    fn counted(&self, command: Command, rows: usize) -> Completion {
        if command == Command::Other {
            return self.uncounted(command);
        }
        let rows = rows.try_into().unwrap_or(u64::MAX);
        self.set_row_count(rows);
        Completion { command, rows: (!self.no_count.is_on).then_some(rows) }
    }

    /// The completion of a statement that counts no rows.
    fn uncounted(&self, command: Command) -> Completion {
        self.set_row_count(0);
        Completion { command, rows: None }
    }

    /// Sets `@@ROWCOUNT`.
    fn set_row_count(&self, rows: u64) {
        self.state.update(|facts| facts.row_count = rows);
    }

    fn sqlite(&self, sql: &str) -> Result<(), SqlError> {
        self.connection.execute_batch(sql).map_err(|error| sql_error(&error))
    }

    /// Ends the transaction, including SQLite's if one has started.
    fn end(&mut self, sql: &str) -> Result<(), SqlError> {
        let writing = self.transaction.take().is_some_and(|transaction| transaction.writing);
        let ended = match sql {
            "COMMIT" if self.shared.concurrent => self.commit_pending(),
            "COMMIT" if writing => self.save_versions(true).and_then(|()| self.sqlite(sql)),
            _ if writing => self.sqlite(sql),
            _ => Ok(()),
        };
        self.pending = Pending::default();
        self.state.update(|facts| facts.transactions = 0);
        self.rolled_back = sql == "ROLLBACK" || ended.is_err();
        self.shared.transaction_ended(self.state.id);
        ended
    }
}

impl Session for SqliteSession {
    fn run(&mut self, sql: &str, parameters: &[Parameter]) -> Vec<Reply> {
        self.no_count.was_on = self.no_count.is_on;
        let mut replies = Vec::new();
        if let Err(error) = self.batch(sql, parameters, &mut replies) {
            replies.push(Reply::Error(error));
            if self.abort_on_error
                && self.transaction.is_some()
                && let Err(error) = self.rollback()
            {
                replies.push(Reply::Error(error));
            }
        }
        self.variables.clear();
        replies
    }

    fn leave_procedure(&mut self) {
        self.no_count.is_on = self.no_count.was_on;
    }

    fn begin(&mut self) -> Result<(), SqlError> {
        let depth = if let Some(transaction) = &mut self.transaction {
            transaction.depth += 1;
            transaction.depth
        } else {
            self.transactions += 1;
            let descriptor = self.transactions;
            self.transaction = Some(Transaction { descriptor, depth: 1, writing: false });
            1
        };
        self.state.update(|facts| facts.transactions = depth);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SqlError> {
        let text = "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.";
        let Some(transaction) = &mut self.transaction else {
            return Err(SqlError::new(3902, 16, text));
        };
        transaction.depth -= 1;
        let depth = transaction.depth;
        self.state.update(|facts| facts.transactions = depth);
        if depth > 0 { Ok(()) } else { self.end("COMMIT") }
    }

    fn rollback(&mut self) -> Result<(), SqlError> {
        if self.transaction.is_none() {
            let text = "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.";
            return Err(SqlError::new(3903, 16, text));
        }
        self.end("ROLLBACK")
    }

    fn transaction(&self) -> Option<u64> {
        self.transaction.as_ref().map(|transaction| transaction.descriptor)
    }

    fn rolled_back(&self) -> bool {
        self.rolled_back
    }
}

impl Drop for SqliteSession {
    fn drop(&mut self) {
        if self.transaction.is_some()
            && let Err(error) = self.end("ROLLBACK")
        {
            tracing::debug!(%error, "Transaction of a closed connection was not rolled back");
        }
    }
}

fn connect(shared: &Arc<Shared>, state: &Arc<SessionState>) -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    connection.busy_timeout(LOCK_TIMEOUT_DEFAULT)?;
    connection.execute("ATTACH ?1 AS dbo", [shared.path.to_string_lossy()])?;
    connection.pragma_update(Some("dbo"), "journal_mode", "WAL")?;
    let synchronous = if shared.temporary { "OFF" } else { "NORMAL" };
    connection.pragma_update(Some("dbo"), "synchronous", synchronous)?;
    functions::register(&connection, shared, state)?;
    collation::register(&connection)?;
    Ok(connection)
}

fn bind(statement: &mut rusqlite::Statement<'_>, variables: &Variables) -> Result<(), SqlError> {
    bind_to(statement, variables).map_err(|error| sql_error(&error))
}

fn bind_to(statement: &mut rusqlite::Statement<'_>, variables: &Variables) -> rusqlite::Result<()> {
    for (name, (_, value)) in variables {
        if let Some(index) = statement.parameter_index(name)? {
            statement.raw_bind_parameter(index, value)?;
        }
    }
    Ok(())
}
