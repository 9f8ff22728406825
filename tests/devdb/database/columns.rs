//! Dropping columns, and renaming tables and columns.
//!
//! Objects that refer to them must be rejected: SQLite would update the name in a view, where SQL Server
//! keeps the old one.

use rusqlite::Connection;

use super::{catalog, errors::sql_error, shared::Shared, tracking};
use crate::{
    tsql::parser::{TableColumn, quoted, shown},
    types::{SqlError, Type},
};

/// Drops a column of a table.
///
/// # Errors
///
/// 4922, 4923, 4924: an index or a default needs it, it is the only one, it does not exist. 40515: it is a
/// rowversion, or a view reads a column of its name.
pub(crate) fn drop_column(
    connection: &Connection,
    table: &str,
    column: &str,
) -> Result<(), SqlError> {
    let failed = |error: rusqlite::Error| sql_error(&error);
    let columns = catalog::columns(connection, table).map_err(failed)?.unwrap_or_default();
    let refused = |number: i32, why: &str| {
        let text = format!("ALTER TABLE DROP COLUMN {column} failed because {why}.");
        SqlError::new(number, 16, text)
    };
    let found = find(&columns, column);
    let TableColumn { name, ty, default, .. } =
        found.ok_or_else(|| refused(4924, &format!("it is not in {}", shown(table))))?;
    let is_indexed = catalog::is_indexed(connection, table, name).map_err(failed)?;
    if is_indexed || default.is_some() {
        return Err(refused(4922, "one or more objects access this column"));
    }
    if columns.len() == 1 {
        return Err(refused(4923, "it is the only data column in the table"));
    }
    if *ty == Type::RowVersion || is_viewed(connection, name).map_err(failed)? {
        return Err(SqlError::unsupported("Dropping a rowversion or a column that a view reads"));
    }
    let sql = format!("ALTER TABLE dbo.{} DROP COLUMN {}", quoted(table), quoted(name));
    connection.execute_batch(&sql).map_err(failed)?;
    catalog::remove_column(connection, table, name).map_err(failed)
}

/// Renames a column of a table.
///
/// # Errors
///
/// 15248, 15335: it does not exist, or another one has the name. 40515: it is in the key of a tracked table,
/// or a view reads a column of its name.
pub(crate) fn rename_column(
    connection: &Connection,
    table: &str,
    column: &str,
    to: &str,
) -> Result<(), SqlError> {
    let failed = |error: rusqlite::Error| sql_error(&error);
    let columns = catalog::columns(connection, table).map_err(failed)?.unwrap_or_default();
    let found = find(&columns, column).ok_or_else(|| {
        let text = format!("'{column}' could not be found in {}.", shown(table));
        SqlError::new(15248, 11, text)
    })?;
    if find(&columns, to).is_some_and(|other| other.name != found.name) {
        return Err(in_use(to, "COLUMN"));
    }
    let is_tracked = tracking::is_tracked(connection, table).map_err(failed)?
        && catalog::key(connection, table).map_err(failed)?.contains(&found.name);
    if is_tracked || is_viewed(connection, &found.name).map_err(failed)? {
        let what = "Renaming a column that a view reads or that is in a tracked key";
        return Err(SqlError::unsupported(what));
    }
    let (from, new) = (quoted(&found.name), quoted(to));
    let sql = format!("ALTER TABLE dbo.{} RENAME COLUMN {from} TO {new}", quoted(table));
    connection.execute_batch(&sql).map_err(failed)?;
    catalog::rename_column(connection, table, &found.name, to).map_err(failed)
}

/// Renames a table within its schema. It remains the same object, with its changes and its identities.
///
/// # Errors
///
/// 15335: there is an object of that name. 40515: it is a view, has an index that is not a key's, or a view
/// reads a table of its name.
pub(crate) fn rename_table(
    connection: &Connection,
    shared: &Shared,
    table: &str,
    to: &str,
) -> Result<(), SqlError> {
    let failed = |error: rusqlite::Error| sql_error(&error);
    let new = match table.rsplit_once('.') {
        Some((schema, _)) => format!("{schema}.{to}"),
        None => to.to_owned(),
    };
    if catalog::columns(connection, &new).map_err(failed)?.is_some() {
        return Err(in_use(to, "object"));
    }
    let is_alone = catalog::is_without_indexes(connection, table).map_err(failed)?
        && !is_viewed(connection, table).map_err(failed)?;
    if !is_alone {
        return Err(SqlError::unsupported("Renaming a view, or a table with an index or a view"));
    }
    let sql = format!("ALTER TABLE dbo.{} RENAME TO {}", quoted(table), quoted(&new));
    connection.execute_batch(&sql).map_err(failed)?;
    tracking::renamed(connection, table, &new).map_err(failed)?;
    shared.set_identity(&new, shared.last_identity(table));
    shared.set_identity(table, None);
    catalog::rename(connection, table, &new).map_err(failed)
}

fn in_use(name: &str, kind: &str) -> SqlError {
    let text = format!("The new name '{name}' is already in use as a {kind} name.");
    SqlError::new(15335, 11, text)
}

fn find<'a>(columns: &'a [TableColumn], name: &str) -> Option<&'a TableColumn> {
    columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))
}

/// Whether the text of a view contains a name.
fn is_viewed(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM dbo.sqlite_master WHERE type = 'view' \
               AND name NOT LIKE 'sys.%' AND instr(lower(sql), lower(?1)) > 0";
    let count: i64 = connection.query_row(sql, [quoted(name)], |row| row.get(0))?;
    Ok(count > 0)
}
