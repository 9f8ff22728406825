//! SQL statements of the handler, and the DDL of its tables. Pure.
//!
//! # Design
//!
//! - No `MERGE`: without further hints two of them race each other, and it has known bugs.
//!   <https://learn.microsoft.com/sql/t-sql/statements/merge-transact-sql>. An `UPDATE` of existing rows,
//!   followed by an `INSERT` of missing ones that locks the range of the missing key, does the same.
//! - The fence is locked by writing to it. A write lock lasts until the transaction ends on every server and
//!   at every isolation level; a hint on a `SELECT` does not.
//! - The target gets an alias that no table has as its name; otherwise the name of another table could
//!   collide.
//! - Rows are `VALUES` of parameters. A table-valued parameter would need a type in the database, and JSON
//!   would convert the values to text once more.

use std::fmt::Write as _;

use super::describe::Column;
use crate::ident::{QualifiedName, quote};

/// Most parameters per statement: the server accepts 2,100, of which `sp_executesql` uses two.
/// <https://learn.microsoft.com/sql/sql-server/maximum-capacity-specifications-for-sql-server>
pub(super) const PARAMETERS_MAX: usize = 2_098;

/// Most rows per statement: the limit of `INSERT … VALUES`.
/// <https://learn.microsoft.com/sql/t-sql/queries/table-value-constructor-transact-sql>
pub(super) const ROWS_MAX: usize = 1_000;

/// Parameters of [`ledger`] before the events.
pub(super) const LEDGER_PARAMETERS: usize = 3;

/// Most rows that [`forget`] deletes at once: below the threshold at which the server locks the whole table.
/// <https://learn.microsoft.com/troubleshoot/sql/database-engine/performance/resolve-blocking-problems-caused-lock-escalation>
const FORGOTTEN_MAX: usize = 4_000;

/// Returns how many rows of `columns` columns fit into one statement; `None` if not even one does.
pub(super) fn rows_max(columns: usize) -> Option<usize> {
    let rows = PARAMETERS_MAX.checked_div(columns)?.min(ROWS_MAX);
    (rows > 0).then_some(rows)
}

/// The target table, as far as statements need to know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub(super) table: &'a QualifiedName,
    pub(super) columns: &'a [&'a Column],
    /// Indexes of the key's columns.
    pub(super) key: &'a [usize],
}

impl Shape<'_> {
    /// Updates the rows that exist, and inserts those that do not.
    pub(super) fn upsert(&self, rows: usize) -> String {
        let (table, values) = (self.table.quoted(), self.values(rows));
        let (names, same_key) = (self.names(""), self.same_key());
        let new_values = self.names("hw_v.");
        let others = self.columns.iter().enumerate();
        let others = others.filter(|(index, _)| !self.key.contains(index));
        let set: Vec<String> = others
            .map(|(_, column)| quote(&column.name))
            .map(|name| format!("hw_t.{name} = hw_v.{name}"))
            .collect();
        let mut sql = String::new();
        if !set.is_empty() {
            let set = set.join(", ");
            // Writing to a string cannot fail.
            write!(sql, "UPDATE hw_t SET {set} FROM {table} AS hw_t JOIN {values} ON {same_key}; ")
                .unwrap_or_default();
        }
        write!(
            sql,
            "INSERT INTO {table} ({names}) SELECT {new_values} FROM {values} WHERE NOT EXISTS \
             (SELECT 1 FROM {table} AS hw_t WITH (UPDLOCK, HOLDLOCK) WHERE {same_key})"
        )
        .unwrap_or_default();
        sql
    }

    /// Deletes the rows that exist.
    pub(super) fn delete(&self, rows: usize) -> String {
        let (table, values, same_key) = (self.table.quoted(), self.values(rows), self.same_key());
        format!(
            "DELETE hw_t FROM {table} AS hw_t WHERE EXISTS (SELECT 1 FROM {values} WHERE {same_key})"
        )
    }

    fn names(&self, prefix: &str) -> String {
        let names = self.columns.iter().map(|column| format!("{prefix}{}", quote(&column.name)));
        names.collect::<Vec<_>>().join(", ")
    }

    fn same_key(&self) -> String {
        let key = self.key.iter().filter_map(|index| self.columns.get(*index));
        let same =
            key.map(|column| quote(&column.name)).map(|name| format!("hw_t.{name} = hw_v.{name}"));
        same.collect::<Vec<_>>().join(" AND ")
    }

    /// Returns rows of parameters, `@P1` first, as a table `hw_v`.
    fn values(&self, rows: usize) -> String {
        let mut parameters = (1..).map(|number| format!("@P{number}"));
        let mut row = || {
            let cells = self.columns.iter().enumerate().zip(&mut parameters);
            let cells = cells.map(|((index, column), parameter)| {
                column.cell(&parameter, self.key.contains(&index))
            });
            format!("({})", cells.collect::<Vec<_>>().join(", "))
        };
        let rows: Vec<String> = (0..rows).map(|_| row()).collect();
        format!("(VALUES {}) AS hw_v ({})", rows.join(", "), self.names(""))
    }
}

/// Locks the fence of a poller until the transaction ends, and returns it; no row if there is none. `@P1` is
/// the application and `@P2` the poller, in all statements of the fence.
pub(super) fn fence(table: &QualifiedName) -> String {
    format!(
        "UPDATE {} SET [checked_at] = SYSUTCDATETIME() \
         OUTPUT inserted.[generation], inserted.[token] WHERE [app] = @P1 AND [poller] = @P2",
        table.quoted()
    )
}

/// Creates the fence of a poller: `@P3` is the generation, `@P4` the token.
pub(super) fn fence_first(table: &QualifiedName) -> String {
    format!(
        "INSERT INTO {} ([app], [poller], [generation], [token], [checked_at]) \
         VALUES (@P1, @P2, @P3, @P4, SYSUTCDATETIME())",
        table.quoted()
    )
}

/// Raises the fence of a poller: `@P3` is the generation, `@P4` the token.
pub(super) fn fence_raise(table: &QualifiedName) -> String {
    format!(
        "UPDATE {} SET [generation] = @P3, [token] = @P4 WHERE [app] = @P1 AND [poller] = @P2",
        table.quoted()
    )
}

/// Records events as applied, and returns the new ones. `@P1` is the application, `@P2` the poller, `@P3` the
/// replay; the events follow.
pub(super) fn ledger(table: &QualifiedName, events: usize) -> String {
    let table = table.quoted();
    let numbers = (LEDGER_PARAMETERS + 1..).take(events);
    let rows: Vec<String> = numbers.map(|n| format!("(CAST(@P{n} AS binary(16)))")).collect();
    format!(
        "INSERT INTO {table} ([app], [poller], [replay_id], [event_id], [applied_at]) \
         OUTPUT inserted.[event_id] SELECT @P1, @P2, @P3, v.[event_id], SYSUTCDATETIME() \
         FROM (VALUES {}) AS v ([event_id]) WHERE NOT EXISTS (SELECT 1 FROM {table} AS l \
         WHERE l.[app] = @P1 AND l.[poller] = @P2 AND l.[event_id] = v.[event_id] \
         AND l.[replay_id] = @P3)",
        rows.join(", ")
    )
}

/// Deletes some expired events from a poller's ledger: `@P3` is minus the number of days to keep them.
pub(super) fn forget(table: &QualifiedName) -> String {
    format!(
        "DELETE TOP ({FORGOTTEN_MAX}) FROM {} WHERE [app] = @P1 AND [poller] = @P2 \
         AND [applied_at] < DATEADD(DAY, @P3, SYSUTCDATETIME())",
        table.quoted()
    )
}

/// Returns the DDL of the fence table.
pub fn create_fence(table: &QualifiedName) -> String {
    format!(
        "CREATE TABLE {} (
    [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [poller] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [generation] bigint NOT NULL,
    [token] bigint NOT NULL,
    [checked_at] datetime2(7) NOT NULL,
    PRIMARY KEY CLUSTERED ([app], [poller])
);",
        table.quoted()
    )
}

/// Returns the DDL of the table of applied events.
pub fn create_ledger(table: &QualifiedName) -> String {
    let index =
        quote(&format!("ix_{}_applied_at", table.object).chars().take(128).collect::<String>());
    let table = table.quoted();
    format!(
        "CREATE TABLE {table} (
    [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [poller] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [event_id] binary(16) NOT NULL,
    [replay_id] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [applied_at] datetime2(3) NOT NULL,
    PRIMARY KEY CLUSTERED ([app], [poller], [event_id], [replay_id])
);
CREATE INDEX {index} ON {table} ([app], [poller], [applied_at]);"
    )
}

/// Returns the statements that grant a database user permissions on a table.
pub fn grant(table: &QualifiedName, rights: &[&str], user: &str) -> String {
    let (table, user) = (table.quoted(), quote(user));
    let grants = rights.iter().map(|right| format!("GRANT {right} ON {table} TO {user};"));
    grants.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn column(name: &str, type_name: &str) -> Column {
        Column {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            max_length: 20,
            precision: 0,
            scale: 0,
            identity: false,
            collation: None,
        }
    }

    #[test]
    fn a_chunk_holds_as_many_rows_as_parameters_allow() {
        for (columns, rows) in
            [(1, Some(1_000)), (2, Some(1_000)), (3, Some(699)), (2_098, Some(1)), (2_099, None)]
        {
            assert_eq!(rows_max(columns), rows, "{columns}");
            assert!(rows.is_none_or(|rows| rows * columns <= 2_098));
        }
        assert_eq!(rows_max(0), None);
        const { assert!(LEDGER_PARAMETERS + ROWS_MAX <= PARAMETERS_MAX) };
    }

    #[test]
    fn rows_are_updated_then_inserted_and_deleted_by_key() {
        let table = QualifiedName::parse("ops.[My Copy]").unwrap();
        let columns = [column("a]", "int"), column("b", "nvarchar"), column("k", "int")];
        let all: Vec<&Column> = columns.iter().collect();
        let shape = Shape { table: &table, columns: &all, key: &[0, 2] };
        let key = Shape { columns: &all[..1], key: &[0], ..shape };
        expect![[r#"
            UPDATE hw_t SET hw_t.[b] = hw_v.[b] FROM [ops].[My Copy] AS hw_t JOIN (VALUES (CAST(@P1 AS int), CAST(@P2 AS nvarchar(max)), CAST(@P3 AS int)), (CAST(@P4 AS int), CAST(@P5 AS nvarchar(max)), CAST(@P6 AS int))) AS hw_v ([a]]], [b], [k]) ON hw_t.[a]]] = hw_v.[a]]] AND hw_t.[k] = hw_v.[k]; INSERT INTO [ops].[My Copy] ([a]]], [b], [k]) SELECT hw_v.[a]]], hw_v.[b], hw_v.[k] FROM (VALUES (CAST(@P1 AS int), CAST(@P2 AS nvarchar(max)), CAST(@P3 AS int)), (CAST(@P4 AS int), CAST(@P5 AS nvarchar(max)), CAST(@P6 AS int))) AS hw_v ([a]]], [b], [k]) WHERE NOT EXISTS (SELECT 1 FROM [ops].[My Copy] AS hw_t WITH (UPDLOCK, HOLDLOCK) WHERE hw_t.[a]]] = hw_v.[a]]] AND hw_t.[k] = hw_v.[k])
            INSERT INTO [ops].[My Copy] ([a]]]) SELECT hw_v.[a]]] FROM (VALUES (CAST(@P1 AS int))) AS hw_v ([a]]]) WHERE NOT EXISTS (SELECT 1 FROM [ops].[My Copy] AS hw_t WITH (UPDLOCK, HOLDLOCK) WHERE hw_t.[a]]] = hw_v.[a]]])
            DELETE hw_t FROM [ops].[My Copy] AS hw_t WHERE EXISTS (SELECT 1 FROM (VALUES (CAST(@P1 AS int))) AS hw_v ([a]]]) WHERE hw_t.[a]]] = hw_v.[a]]])
        "#]]
        .assert_eq(&format!("{}\n{}\n{}\n", shape.upsert(2), key.upsert(1), key.delete(1)));
    }

    #[test]
    fn fence_and_ledger_take_one_statement_each() {
        let table = QualifiedName::parse("t").unwrap();
        expect![[r#"
            UPDATE [dbo].[t] SET [checked_at] = SYSUTCDATETIME() OUTPUT inserted.[generation], inserted.[token] WHERE [app] = @P1 AND [poller] = @P2
            UPDATE [dbo].[t] SET [generation] = @P3, [token] = @P4 WHERE [app] = @P1 AND [poller] = @P2
            INSERT INTO [dbo].[t] ([app], [poller], [generation], [token], [checked_at]) VALUES (@P1, @P2, @P3, @P4, SYSUTCDATETIME())
            INSERT INTO [dbo].[t] ([app], [poller], [replay_id], [event_id], [applied_at]) OUTPUT inserted.[event_id] SELECT @P1, @P2, @P3, v.[event_id], SYSUTCDATETIME() FROM (VALUES (CAST(@P4 AS binary(16))), (CAST(@P5 AS binary(16)))) AS v ([event_id]) WHERE NOT EXISTS (SELECT 1 FROM [dbo].[t] AS l WHERE l.[app] = @P1 AND l.[poller] = @P2 AND l.[event_id] = v.[event_id] AND l.[replay_id] = @P3)
            DELETE TOP (4000) FROM [dbo].[t] WHERE [app] = @P1 AND [poller] = @P2 AND [applied_at] < DATEADD(DAY, @P3, SYSUTCDATETIME())
        "#]]
        .assert_eq(&format!(
            "{}\n{}\n{}\n{}\n{}\n",
            fence(&table),
            fence_raise(&table),
            fence_first(&table),
            ledger(&table, 2),
            forget(&table)
        ));
    }
}
