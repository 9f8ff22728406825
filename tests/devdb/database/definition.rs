//! Changes of the schema and of its catalog.

use rusqlite::Connection;

use super::{catalog, columns, errors::sql_error, shared::Shared, tracking};
use crate::{
    tsql::{
        Definition,
        parser::{invalid_object, shown},
    },
    types::SqlError,
};

/// Creates, changes or drops a table, a view or an index.
///
/// # Errors
///
/// 208, 2714, 3701: it does not exist, or exists already.
pub(crate) fn define(
    connection: &Connection,
    shared: &Shared,
    definition: Definition,
) -> Result<(), SqlError> {
    let exists = |name: &str| {
        let found = catalog::columns(connection, name).map_err(|error| sql_error(&error))?;
        Ok::<_, SqlError>(found.is_some())
    };
    let free = |name: &str| {
        let text = format!("There is already an object named '{name}' in the database.");
        if exists(name)? { Err(SqlError::new(2714, 16, text)) } else { Ok(()) }
    };
    let run = |sql: &str| connection.execute(sql, []).map(drop).map_err(|error| sql_error(&error));
    let catalogued = match definition {
        Definition::Table(table) => {
            free(&table.name)?;
            run(&table.sql())?;
            let numbers = table.columns.iter().any(|column| column.identity);
            shared.set_identity(&table.name, numbers.then_some(0));
            catalog::add(connection, &table.name, &table.columns).and_then(|()| {
                let mut indexes = table.indexes.iter();
                indexes.try_for_each(|index| catalog::add_index(connection, &table.name, index))?;
                catalog::note_heap(connection, &table.name)
            })
        }
        Definition::Tracking { table, on } => return tracking::set(connection, &table, on),
        Definition::View { name, sql, columns } => {
            free(&name)?;
            run(&sql)?;
            catalog::add(connection, &name, &columns)
        }
        Definition::Index { table, index, sql } => {
            if !exists(&table)? {
                return Err(invalid_object(&table));
            }
            run(&sql)?;
            catalog::add_index(connection, &table, &index)
                .and_then(|()| catalog::note_heap(connection, &table))
        }
        Definition::DropIndex { table, name, sql } => {
            if !exists(&table)? {
                return Err(invalid_object(&table));
            }
            run(&sql)?;
            catalog::remove_index(connection, &table, &name)
                .and_then(|()| catalog::note_heap(connection, &table))
        }
        Definition::Column { table, column, sql } => {
            sql.iter().try_for_each(|sql| run(sql))?;
            catalog::add_column(connection, &table, &column)
        }
        Definition::DropColumn { table, column } => {
            return columns::drop_column(connection, &table, &column);
        }
        Definition::RenameColumn { table, column, to } => {
            return columns::rename_column(connection, &table, &column, &to);
        }
        Definition::Rename { table, to } => {
            return columns::rename_table(connection, shared, &table, &to);
        }
        // Its identities restart, and the changes so far are no longer tracked; it remains the same object.
        Definition::Truncate { name, sql } => {
            run(&sql)?;
            let numbers = shared.knows_identity(&name);
            shared.set_identity(&name, numbers.then_some(0));
            tracking::truncated(connection, &name)
        }
        Definition::Drop { name, sql, if_exists } => {
            if !exists(&name)? {
                return if if_exists { Ok(()) } else { Err(cannot_drop(&name)) };
            }
            tracking::dropped(connection, &name).map_err(|error| sql_error(&error))?;
            run(&sql)?;
            shared.set_identity(&name, None);
            catalog::remove(connection, &name)
        }
    };
    catalogued.map_err(|error| sql_error(&error))
}

fn cannot_drop(name: &str) -> SqlError {
    let text = format!(
        "Cannot drop the table '{}', because it does not exist or you do not have permission.",
        shown(name)
    );
    SqlError::new(3701, 11, text)
}
