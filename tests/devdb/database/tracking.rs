//! Change tracking: which rows of a table changed since a version that was assigned at a commit.
//!
//! SQLite triggers record each change in a table next to the tracked one, under the version that the running
//! transaction will have if it commits. So versions follow the order of commits, and a change is visible with
//! its version and its row, or not at all.

use rusqlite::{Connection, params};

use super::{catalog, errors::sql_error};
use crate::{
    tsql::{
        definition::stored_as,
        parser::{invalid_object, quoted, shown},
        tracking::changes_of,
    },
    types::SqlError,
};

/// Starts or stops tracking a table.
///
/// # Errors
///
/// 208, 4996, 4997, 4998: the table does not exist, is tracked, has no key, is not tracked.
pub(crate) fn set(connection: &Connection, table: &str, on: bool) -> Result<(), SqlError> {
    let failed = |error: rusqlite::Error| sql_error(&error);
    if catalog::columns(connection, table).map_err(failed)?.is_none() {
        return Err(invalid_object(table));
    }
    let key = catalog::key(connection, table).map_err(failed)?;
    let tracked = is_tracked(connection, table).map_err(failed)?;
    let text = match (on, tracked, key.is_empty()) {
        (true, true, _) => (4996, "Change tracking is already enabled for table"),
        (true, false, true) => (4997, "Without a primary key changes cannot be tracked of table"),
        (false, false, _) => (4998, "Change tracking is not enabled on table"),
        (true, false, false) => return enable(connection, table, &key).map_err(failed),
        (false, true, _) => return disable(connection, table).map_err(failed),
    };
    Err(SqlError::new(text.0, 16, format!("{} '{}'.", text.1, shown(table))))
}

/// Stops tracking a dropped table.
pub(crate) fn dropped(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    if is_tracked(connection, table)? { disable(connection, table) } else { Ok(()) }
}

/// Keeps the changes of a renamed table; called before the catalog is updated.
pub(crate) fn renamed(connection: &Connection, table: &str, to: &str) -> rusqlite::Result<()> {
    if !is_tracked(connection, table)? {
        return Ok(());
    }
    drop_triggers(connection, table)?;
    let (changes, new) = (quoted(&changes_of(table)), quoted(&changes_of(to)));
    connection.execute_batch(&format!("ALTER TABLE dbo.{changes} RENAME TO {new}"))?;
    note_changes(connection, to, &catalog::key(connection, table)?)
}

/// Makes every version up to now too old for a truncated table, whose rows disappear without a change.
/// <https://learn.microsoft.com/sql/relational-databases/track-changes/manage-change-tracking-sql-server>
/// says that a reader then finds its version too old, and `sys.change_tracking_tables` that the version at
/// which tracking began is reset.
pub(crate) fn truncated(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    if !is_tracked(connection, table)? {
        return Ok(());
    }
    connection.execute_batch(&format!(
        "DELETE FROM dbo.{}; UPDATE dbo.\"hw.meta\" SET value = 1 WHERE name = 'changed';",
        quoted(&changes_of(table))
    ))?;
    let sql = "UPDATE dbo.\"sys.change_tracking_tables\" SET (min_valid_version, begin_version) = \
               (SELECT value + 1, value + 1 FROM dbo.\"hw.meta\" WHERE name = 'change_version') \
               WHERE object_id = (SELECT object_id FROM dbo.\"sys.tables\" WHERE physical = ?1 COLLATE NOCASE)";
    connection.execute(sql, [table]).map(drop)
}

/// Assigns the changes of the running transaction their version; called just before it commits.
pub(crate) fn seal(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE dbo.\"hw.meta\" SET value = value + 1 WHERE name = 'change_version' AND \
               EXISTS (SELECT 1 FROM dbo.\"hw.meta\" WHERE name = 'changed' AND value = 1)";
    if connection.prepare_cached(sql)?.execute([])? > 0 {
        let sql = "UPDATE dbo.\"hw.meta\" SET value = 0 WHERE name = 'changed'";
        connection.prepare_cached(sql)?.execute([])?;
    }
    Ok(())
}

/// Removes the changes of a table up to now, like the cleanup after their retention.
///
/// # Errors
///
/// 4998: the table is not tracked.
pub(crate) fn forget(connection: &Connection, table: &str) -> Result<(), SqlError> {
    let sql = "UPDATE dbo.\"sys.change_tracking_tables\" SET min_valid_version = \
               (SELECT value FROM dbo.\"hw.meta\" WHERE name = 'change_version') WHERE object_id = \
               (SELECT object_id FROM dbo.\"sys.tables\" WHERE physical = ?1 COLLATE NOCASE)";
    if connection.execute(sql, [table]).map_err(|error| sql_error(&error))? == 0 {
        let text = format!("Change tracking is not enabled on table '{}'.", shown(table));
        return Err(SqlError::new(4998, 16, text));
    }
    let sql = format!("DELETE FROM dbo.{}", quoted(&changes_of(table)));
    connection.execute(&sql, []).map(drop).map_err(|error| sql_error(&error))
}

/// Whether the changes of a table are tracked.
pub(crate) fn is_tracked(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM dbo.\"sys.change_tracking_tables\" AS c \
               JOIN dbo.\"sys.tables\" AS t ON t.object_id = c.object_id \
               WHERE t.physical = ?1 COLLATE NOCASE";
    connection.query_row(sql, [table], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

fn enable(connection: &Connection, table: &str, key: &[String]) -> rusqlite::Result<()> {
    connection.execute_batch(
        "INSERT OR IGNORE INTO dbo.\"hw.meta\" VALUES ('change_version', 0), ('changed', 0);",
    )?;
    let sql = "INSERT INTO dbo.\"sys.change_tracking_tables\" \
               (object_id, min_valid_version, begin_version, internal_id) \
               SELECT t.object_id, m.value, m.value, ?2 \
               FROM dbo.\"sys.tables\" AS t, dbo.\"hw.meta\" AS m \
               WHERE t.physical = ?1 COLLATE NOCASE AND m.name = 'change_version'";
    connection.execute(sql, params![table, catalog::next_object(connection)?])?;
    // Keys compare and order like those of the table.
    let columns = catalog::columns(connection, table)?.unwrap_or_default();
    let declared = columns.iter().filter(|column| key.contains(&column.name));
    let declared =
        declared.map(|column| format!(", {} {}", quoted(&column.name), stored_as(column)));
    let (changes, declared) = (quoted(&changes_of(table)), declared.collect::<String>());
    connection.execute_batch(&format!(
        "CREATE TABLE dbo.{changes} (version INT, operation TEXT{declared})"
    ))?;
    note_changes(connection, table, key)
}

/// Creates the triggers that record each change.
fn note_changes(connection: &Connection, table: &str, key: &[String]) -> rusqlite::Result<()> {
    let list = |prefix: &str| {
        let names: Vec<_> = key.iter().map(|name| format!("{prefix}{}", quoted(name))).collect();
        names.join(", ")
    };
    let (changes, tracked) = (quoted(&changes_of(table)), quoted(table));
    let note = |prefix: &str, operation: char| {
        format!(
            "INSERT INTO {changes} (version, operation, {}) SELECT value + 1, '{operation}', {} \
             FROM \"hw.meta\" WHERE name = 'change_version';",
            list(""),
            list(prefix)
        )
    };
    let note_all = "UPDATE \"hw.meta\" SET value = 1 WHERE name = 'changed';";
    let same: Vec<_> = key.iter().map(|name| format!("OLD.{0} IS NEW.{0}", quoted(name))).collect();
    let same = same.join(" AND ");
    let trigger = |name: &str, event: &str, when: &str, notes: &str| {
        let name = quoted(&format!("{}/{name}", changes_of(table)));
        format!(
            "CREATE TRIGGER dbo.{name} AFTER {event} ON {tracked} {when} BEGIN {notes} {note_all} END;"
        )
    };
    let moved = format!("{} {}", note("OLD.", 'D'), note("NEW.", 'I'));
    connection.execute_batch(&format!(
        "{} {} {} {}",
        trigger("insert", "INSERT", "", &note("NEW.", 'I')),
        trigger("delete", "DELETE", "", &note("OLD.", 'D')),
        trigger("update", "UPDATE", &format!("WHEN {same}"), &note("NEW.", 'U')),
        trigger("move", "UPDATE", &format!("WHEN NOT ({same})"), &moved),
    ))
}

fn drop_triggers(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    for name in ["insert", "delete", "update", "move"] {
        let name = quoted(&format!("{}/{name}", changes_of(table)));
        connection.execute_batch(&format!("DROP TRIGGER IF EXISTS dbo.{name}"))?;
    }
    Ok(())
}

fn disable(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    drop_triggers(connection, table)?;
    connection.execute_batch(&format!("DROP TABLE dbo.{}", quoted(&changes_of(table))))?;
    let sql = "DELETE FROM dbo.\"sys.change_tracking_tables\" WHERE object_id = \
               (SELECT object_id FROM dbo.\"sys.tables\" WHERE physical = ?1 COLLATE NOCASE)";
    connection.execute(sql, [table]).map(drop)
}
