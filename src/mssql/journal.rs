//! Journals in a SQL Server table, next to the table of state documents and over its connections.
//!
//! Each append is one row, with its start and end positions within its part. One statement finds the row that
//! ends where the append starts, and inserts. A unique key on the start lets only one of two concurrent
//! appends succeed. Rows are never changed; those of a part are deleted together.
//!
//! # Design
//!
//! - Both lookups are seeks, however long a part is. The primary key contains the end. An index contains the
//!   start, before the part, so that the parts of a poller are the rows that start at 0.
//! - The table is never created here. `highwater ddl journal` prints the statements, so the user of the
//!   connection only needs SELECT, INSERT and DELETE on this table. These do not allow changing appended
//!   rows.

use std::sync::Arc;

use async_trait::async_trait;
use highwater_engine::journal::{Appended, JournalStore, Part, length};
use highwater_engine::store::StoreError;
use tiberius::{ColumnData, Row};

use crate::connection::{Param, SqlError};
use crate::ident::QualifiedName;
use crate::state::SqlStore;
use crate::state::pool::Request;
use crate::state::{OwnTable, TableNameError, cells, failure, other_columns, table_name, text};

/// Longest name of an application or a poller that the table holds, in UTF-16 units. An index key is limited
/// to 900 bytes.
const NAME_UNITS_MAX: usize = 128;
/// Longest name of a part, in UTF-16 units: ours have at most 28.
const PART_UNITS_MAX: usize = 40;

/// Keeps journals in a table, one row per append.
#[derive(Debug)]
pub struct SqlJournal {
    store: Arc<SqlStore>,
    table: OwnTable,
    statements: Statements,
}

impl SqlJournal {
    /// Keeps journals in the table with this name, in the database and for the application of `store`.
    ///
    /// # Errors
    ///
    /// [`TableNameError`] if the table name is invalid.
    pub fn alongside(store: Arc<SqlStore>, table: &str) -> Result<Self, TableNameError> {
        let table = own(table_name(table)?);
        let statements = Statements::new(&table.name);
        Ok(Self { store, table, statements })
    }

    /// Returns the parameters that identify a poller.
    fn of_poller(&self, poller: &str) -> Result<Vec<Param>, StoreError> {
        let app = self.store.app();
        let fits = |text: &str| text.encode_utf16().count() <= NAME_UNITS_MAX;
        if fits(app) && fits(poller) {
            return Ok(vec![Param::Text(app.to_owned()), Param::Text(poller.to_owned())]);
        }
        let reason = format!(
            "the application and poller names are limited to {NAME_UNITS_MAX} characters each"
        );
        Err(StoreError::Refused { key: poller.to_owned(), reason })
    }

    fn of_part(&self, part: &Part) -> Result<Vec<Param>, StoreError> {
        let mut params = self.of_poller(&part.poller)?;
        params.push(Param::Text(part.file_name()));
        Ok(params)
    }

    fn failed(&self, name: &str, error: &SqlError) -> StoreError {
        failure::of(name, &self.table, error)
    }
}

#[async_trait]
impl JournalStore for SqlJournal {
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        let name = part.to_string();
        let end = position.saturating_add(length(&bytes));
        let mut params = self.of_part(part)?;
        params.extend([number(&name, position)?, number(&name, end)?, Param::Bytes(bytes)]);
        let conflict = || StoreError::Conflict { key: name.clone() };
        let convert = |rows: Result<Vec<u64>, SqlError>| match rows {
            Ok(mut ends) => ends.pop().map(Appended::UpTo).ok_or_else(conflict),
            Err(error) if failure::is_duplicate(&error) => Err(conflict()),
            Err(error) => Err(self.failed(&name, &error)),
        };
        let request = Request { name: &name, sql: &self.statements.append, params: &params };
        self.store.pool().write(request, position_of, convert).await
    }

    async fn length(&self, part: &Part) -> Result<u64, StoreError> {
        let name = part.to_string();
        let params = self.of_part(part)?;
        let request = Request { name: &name, sql: &self.statements.length, params: &params };
        let convert = |rows: Result<Vec<u64>, SqlError>| match rows {
            Ok(mut ends) => Ok(ends.pop().unwrap_or(0)),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.store.pool().read(request, position_of, convert).await
    }

    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        let name = part.to_string();
        let mut params = self.of_part(part)?;
        params.push(number(&name, position)?);
        let request = Request { name: &name, sql: &self.statements.read, params: &params };
        let convert = |rows: Result<Vec<(u64, Vec<u8>)>, SqlError>| match rows {
            Ok(rows) => Ok(joined(rows, position)),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.store.pool().read(request, content, convert).await
    }

    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        let params = self.of_poller(poller)?;
        let request = Request { name: poller, sql: &self.statements.list, params: &params };
        let convert = |names: Result<Vec<String>, SqlError>| match names {
            Ok(names) => Ok(names.iter().filter_map(|name| Part::parse(poller, name)).collect()),
            Err(error) => Err(self.failed(poller, &error)),
        };
        let mut parts: Vec<Part> = self.store.pool().read(request, text, convert).await?;
        parts.sort();
        Ok(parts)
    }

    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
        let name = part.to_string();
        let mut params = self.of_part(part)?;
        params.push(length.map_or(Ok(Param::BigInt(-1)), |length| number(&name, length))?);
        let request = Request { name: &name, sql: &self.statements.remove, params: &params };
        let convert = |rows: Result<Vec<u64>, SqlError>| match rows {
            Ok(ends) if length.is_none() || !ends.is_empty() => Ok(()),
            Ok(_) => Err(StoreError::Conflict { key: name.clone() }),
            Err(error) => Err(self.failed(&name, &error)),
        };
        self.store.pool().write(request, position_of, convert).await
    }
}

/// Returns the description of the table.
fn own(name: QualifiedName) -> OwnTable {
    OwnTable { name, command: "journal", rights: &["SELECT", "INSERT", "DELETE"] }
}

/// Returns the DDL of the table.
pub fn create_table(table: &QualifiedName) -> String {
    let table = table.quoted();
    format!(
        "CREATE TABLE {table} (
    [app] nvarchar({NAME_UNITS_MAX}) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [poller] nvarchar({NAME_UNITS_MAX}) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [part] nvarchar({PART_UNITS_MAX}) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [begins_at] bigint NOT NULL,
    [ends_at] bigint NOT NULL,
    [content] varbinary(max) NOT NULL,
    [appended_at] datetime2(7) NOT NULL,
    PRIMARY KEY CLUSTERED ([app], [poller], [part], [ends_at])
);
CREATE UNIQUE INDEX [ix_begins_at] ON {table} ([app], [poller], [begins_at], [part]);"
    )
}

/// Returns the statements that grant a database user the permissions that journals need.
pub fn grant(table: &QualifiedName, user: &str) -> String {
    own(table.clone()).grant(user)
}

/// The store's statements. `@P1` is the application, `@P2` the poller, and `@P3` the part in all but the
/// list.
#[derive(Debug)]
struct Statements {
    /// One row, none if the part does not end at `@P4`, or error 2601 or 2627 if another append came first:
    /// `@P5` is the new end and `@P6` the content.
    append: String,
    /// One row, or none if the part does not exist.
    length: String,
    /// The content after `@P4`.
    read: String,
    list: String,
    /// One row per deleted row: all, or none if the part does not end at `@P4`, unless that is negative. The
    /// table lock keeps an append from slipping in between the check and the delete.
    remove: String,
}

impl Statements {
    fn new(table: &QualifiedName) -> Self {
        let table = table.quoted();
        let part = "[app] = @P1 AND [poller] = @P2 AND [part] = @P3";
        Self {
            append: format!(
                "INSERT INTO {table} \
                 ([app], [poller], [part], [begins_at], [ends_at], [content], [appended_at]) \
                 OUTPUT inserted.[ends_at] \
                 SELECT @P1, @P2, @P3, @P4, @P5, @P6, SYSUTCDATETIME() FROM (SELECT 1 AS [one]) AS o \
                 WHERE @P4 = 0 OR EXISTS (SELECT 1 FROM {table} WHERE {part} AND [ends_at] = @P4)"
            ),
            length: format!(
                "SELECT TOP (1) [ends_at] FROM {table} WHERE {part} ORDER BY [ends_at] DESC"
            ),
            read: format!(
                "SELECT [begins_at], [content] FROM {table} \
                 WHERE {part} AND [ends_at] > @P4 ORDER BY [ends_at]"
            ),
            list: format!(
                "SELECT [part] FROM {table} \
                 WHERE [app] = @P1 AND [poller] = @P2 AND [begins_at] = 0"
            ),
            remove: format!(
                "DELETE FROM {table} OUTPUT deleted.[ends_at] WHERE {part} AND (@P4 < 0 OR @P4 = \
                 (SELECT MAX(l.[ends_at]) FROM {table} AS l WITH (TABLOCKX) \
                 WHERE l.[app] = @P1 AND l.[poller] = @P2 AND l.[part] = @P3))"
            ),
        }
    }
}

fn number(name: &str, position: u64) -> Result<Param, StoreError> {
    i64::try_from(position).map(Param::BigInt).map_err(|_out_of_range| StoreError::Refused {
        key: name.to_owned(),
        reason: format!("position {position} is out of range"),
    })
}

fn position_of(row: Row) -> Result<u64, SqlError> {
    let [ColumnData::I64(Some(position))] = cells(row)? else { return Err(other_columns()) };
    u64::try_from(position).map_err(|_negative| other_columns())
}

fn content(row: Row) -> Result<(u64, Vec<u8>), SqlError> {
    let [ColumnData::I64(Some(begin)), ColumnData::Binary(Some(content))] = cells(row)? else {
        return Err(other_columns());
    };
    Ok((u64::try_from(begin).map_err(|_negative| other_columns())?, content.into_owned()))
}

/// Returns the content of `rows` from `position` on, which may be in the middle of the first row.
fn joined(rows: Vec<(u64, Vec<u8>)>, position: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (begin, content) in rows {
        let before = usize::try_from(position.saturating_sub(begin)).unwrap_or(usize::MAX);
        bytes.extend_from_slice(content.get(before..).unwrap_or_default());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn each_operation_is_one_statement() {
        let Statements { append, length, read, list, remove } =
            Statements::new(&table_name("ops.[my journal]").unwrap());
        expect![[r#"
            INSERT INTO [ops].[my journal] ([app], [poller], [part], [begins_at], [ends_at], [content], [appended_at]) OUTPUT inserted.[ends_at] SELECT @P1, @P2, @P3, @P4, @P5, @P6, SYSUTCDATETIME() FROM (SELECT 1 AS [one]) AS o WHERE @P4 = 0 OR EXISTS (SELECT 1 FROM [ops].[my journal] WHERE [app] = @P1 AND [poller] = @P2 AND [part] = @P3 AND [ends_at] = @P4)
            SELECT TOP (1) [ends_at] FROM [ops].[my journal] WHERE [app] = @P1 AND [poller] = @P2 AND [part] = @P3 ORDER BY [ends_at] DESC
            SELECT [begins_at], [content] FROM [ops].[my journal] WHERE [app] = @P1 AND [poller] = @P2 AND [part] = @P3 AND [ends_at] > @P4 ORDER BY [ends_at]
            SELECT [part] FROM [ops].[my journal] WHERE [app] = @P1 AND [poller] = @P2 AND [begins_at] = 0
            DELETE FROM [ops].[my journal] OUTPUT deleted.[ends_at] WHERE [app] = @P1 AND [poller] = @P2 AND [part] = @P3 AND (@P4 < 0 OR @P4 = (SELECT MAX(l.[ends_at]) FROM [ops].[my journal] AS l WITH (TABLOCKX) WHERE l.[app] = @P1 AND l.[poller] = @P2 AND l.[part] = @P3))
        "#]]
        .assert_eq(&([append, length, read, list, remove].join("\n") + "\n"));
    }

    #[test]
    fn the_table_and_the_permissions_are_minimal() {
        let table = table_name("ops.[my journal]").unwrap();
        expect![[r#"
            CREATE TABLE [ops].[my journal] (
                [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
                [poller] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
                [part] nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
                [begins_at] bigint NOT NULL,
                [ends_at] bigint NOT NULL,
                [content] varbinary(max) NOT NULL,
                [appended_at] datetime2(7) NOT NULL,
                PRIMARY KEY CLUSTERED ([app], [poller], [part], [ends_at])
            );
            CREATE UNIQUE INDEX [ix_begins_at] ON [ops].[my journal] ([app], [poller], [begins_at], [part]);
            GRANT SELECT ON [ops].[my journal] TO [an app]]];
            GRANT INSERT ON [ops].[my journal] TO [an app]]];
            GRANT DELETE ON [ops].[my journal] TO [an app]]];
        "#]]
        .assert_eq(&format!("{}\n{}\n", create_table(&table), grant(&table, "an app]")));
    }

    #[test]
    fn a_read_may_start_in_the_middle_of_an_append() {
        let rows = vec![(4, b"abc\n".to_vec()), (8, b"d\n".to_vec())];
        for (position, expected) in [(4, "abc\nd\n"), (6, "c\nd\n"), (8, "d\n"), (99, "")] {
            let wanted = rows.clone().into_iter().filter(|(begin, _)| begin + 4 > position);
            assert_eq!(joined(wanted.collect(), position), expected.as_bytes(), "{position}");
        }
    }
}
