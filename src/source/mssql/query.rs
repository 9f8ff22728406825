//! The text of a fetch. Pure: names come quoted, values are parameters.
//!
//! # Why so
//!
//! The upper bound is taken in a statement of its own, before the read's snapshot exists; inside the
//! `SELECT` it might be evaluated later, and rows that commit in between would be lost. What the
//! server says of itself (its last rowversion, its clock) is a first result of its own, since it is
//! needed most when there are no rows. The lower bound leads with a plain `>=`, which is what makes it
//! one seek in an index over cursor and key.

use crate::cursor::CursorMode;
use crate::mssql::ident::quote;

use super::describe::Column;

/// Name of the column with the leading part of a row's position.
pub(super) const CURSOR_ALIAS: &str = "__cursor";

/// What is read, apart from the window.
#[derive(Debug)]
pub(super) struct Read<'a> {
    /// Quoted name of the table or view.
    pub(super) table: &'a str,
    pub(super) mode: CursorMode,
    pub(super) cursor: &'a Column,
    pub(super) key: &'a [Column],
    /// The select list, without the cursor.
    pub(super) select: &'a [String],
    pub(super) filter: Option<&'a str>,
}

/// Which bounds a window has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) after: bool,
    pub(super) upto: bool,
}

impl Read<'_> {
    /// Returns the batch of statements for windows with these bounds.
    ///
    /// `@P1` is the number of rows; in timestamp mode `@P2` is the settle window in milliseconds; then
    /// follow, for each bound, the cursor and the values of the key.
    pub(super) fn text(&self, bounds: Bounds) -> String {
        let cursor = format!("t.{}", quote(&self.cursor.name));
        let mut params = Params(match self.mode {
            CursorMode::RowVersion => 1,
            CursorMode::TimestampPk => 2,
        });
        let mut conditions = Vec::new();
        if bounds.after {
            let position = self.position(&mut params);
            conditions.push(self.bound(&cursor, &position, [">", ">", ">="]));
        }
        if bounds.upto {
            let position = self.position(&mut params);
            conditions.push(self.bound(&cursor, &position, ["<", "<=", "<="]));
        }
        conditions.push(format!("{cursor} < @hi"));
        // A line of its own, so that a comment in it cannot hide what follows.
        conditions.extend(self.filter.map(|filter| format!("({filter}\n)")));
        let order: Vec<String> =
            self.key.iter().map(|column| format!("t.{}", quote(&column.name))).collect();
        format!(
            "{}\nSELECT TOP (@P1) {}, {} AS [{CURSOR_ALIAS}]\nFROM {} AS t\nWHERE {}\nORDER BY {cursor}, {};",
            self.head(),
            self.select.join(", "),
            self.cursor_value(&cursor),
            self.table,
            conditions.join("\nAND "),
            order.join(", "),
        )
    }

    /// Returns the statements before the read: the upper bound, and what the server says of itself.
    fn head(&self) -> String {
        match self.mode {
            CursorMode::RowVersion => "DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();\n\
                 SELECT CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts];"
                .to_owned(),
            CursorMode::TimestampPk => format!(
                "DECLARE @hi {} = DATEADD(MILLISECOND, -@P2, SYSUTCDATETIME());\n\
                 SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];",
                self.cursor.declared()
            ),
        }
    }

    /// Returns the cursor in the form that is carried: a number, or the server's own text.
    fn cursor_value(&self, cursor: &str) -> String {
        match self.mode {
            CursorMode::RowVersion => format!("CAST({cursor} AS BIGINT)"),
            CursorMode::TimestampPk => {
                let style = if self.cursor.type_name == "datetimeoffset" { 127 } else { 126 };
                format!("CONVERT(NVARCHAR(33), {cursor}, {style})")
            }
        }
    }

    /// Returns the expressions of a position: the cursor, then the key.
    fn position(&self, params: &mut Params) -> (String, Vec<String>) {
        let cursor = params.next();
        let cursor = match self.mode {
            CursorMode::RowVersion => format!("CAST(CAST({cursor} AS BIGINT) AS BINARY(8))"),
            CursorMode::TimestampPk => format!("CAST({cursor} AS {})", self.cursor.declared()),
        };
        let key = self.key.iter().map(|column| column.cast(&params.next())).collect();
        (cursor, key)
    }

    /// Returns the condition that a row lies on one side of a position.
    ///
    /// `operators` are those for any part but the key's last, for the key's last, and for the leading
    /// comparison, which is the one the index seeks by.
    fn bound(
        &self,
        cursor: &str,
        (position, key): &(String, Vec<String>),
        [strict, last, leading]: [&str; 3],
    ) -> String {
        let mut ways = vec![format!("{cursor} {strict} {position}")];
        let mut equal = String::new();
        for (index, (column, value)) in self.key.iter().zip(key).enumerate() {
            let column = format!("t.{}", quote(&column.name));
            let operator = if index + 1 == key.len() { last } else { strict };
            ways.push(match equal.as_str() {
                "" => format!("{column} {operator} {value}"),
                equal => format!("({equal}{column} {operator} {value})"),
            });
            equal = format!("{equal}{column} = {value} AND ");
        }
        format!("{cursor} {leading} {position} AND ({})", ways.join(" OR "))
    }
}

/// Numbers parameters in the order in which they are bound.
struct Params(usize);

impl Params {
    fn next(&mut self) -> String {
        self.0 += 1;
        format!("@P{}", self.0)
    }
}

#[cfg(test)]
#[expect(clippy::needless_raw_string_hashes, reason = "as expect-test writes them")]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn column(name: &str, type_name: &str, max_length: i64, scale: i64) -> Column {
        Column {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            max_length,
            precision: 10,
            scale,
            nullable: false,
            collation: None,
        }
    }

    fn check(read: &Read<'_>, after: bool, upto: bool, expected: &Expect) {
        expected.assert_eq(&read.text(Bounds { after, upto }));
    }

    #[test]
    fn rowversion_windows() {
        let cursor = column("rv", "timestamp", 8, 0);
        let key = [column("id", "int", 4, 0)];
        let select = ["t.[id]".to_owned(), "t.[a]]b]".to_owned()];
        let read = Read {
            table: "[dbo].[T]",
            mode: CursorMode::RowVersion,
            cursor: &cursor,
            key: &key,
            select: &select,
            filter: Some("region = 'EU' -- only these"),
        };
        check(
            &read,
            false,
            false,
            &expect![[r#"
            DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();
            SELECT CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts];
            SELECT TOP (@P1) t.[id], t.[a]]b], CAST(t.[rv] AS BIGINT) AS [__cursor]
            FROM [dbo].[T] AS t
            WHERE t.[rv] < @hi
            AND (region = 'EU' -- only these
            )
            ORDER BY t.[rv], t.[id];"#]],
        );
        check(
            &read,
            true,
            false,
            &expect![[r#"
            DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();
            SELECT CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts];
            SELECT TOP (@P1) t.[id], t.[a]]b], CAST(t.[rv] AS BIGINT) AS [__cursor]
            FROM [dbo].[T] AS t
            WHERE t.[rv] >= CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) AND (t.[rv] > CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) OR t.[id] > CAST(@P3 AS int))
            AND t.[rv] < @hi
            AND (region = 'EU' -- only these
            )
            ORDER BY t.[rv], t.[id];"#]],
        );
        check(
            &read,
            true,
            true,
            &expect![[r#"
            DECLARE @hi BINARY(8) = MIN_ACTIVE_ROWVERSION();
            SELECT CAST(@hi AS BIGINT) AS [__hi], CAST(@@DBTS AS BIGINT) AS [__dbts];
            SELECT TOP (@P1) t.[id], t.[a]]b], CAST(t.[rv] AS BIGINT) AS [__cursor]
            FROM [dbo].[T] AS t
            WHERE t.[rv] >= CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) AND (t.[rv] > CAST(CAST(@P2 AS BIGINT) AS BINARY(8)) OR t.[id] > CAST(@P3 AS int))
            AND t.[rv] <= CAST(CAST(@P4 AS BIGINT) AS BINARY(8)) AND (t.[rv] < CAST(CAST(@P4 AS BIGINT) AS BINARY(8)) OR t.[id] <= CAST(@P5 AS int))
            AND t.[rv] < @hi
            AND (region = 'EU' -- only these
            )
            ORDER BY t.[rv], t.[id];"#]],
        );
    }

    #[test]
    fn timestamp_windows_with_a_composite_key() {
        let cursor = column("at", "datetime2", 8, 7);
        let key = [
            column("a", "nvarchar", 20, 0),
            column("b", "uniqueidentifier", 16, 0),
            column("c", "decimal", 9, 2),
        ];
        let select = ["t.[a]".to_owned()];
        let read = Read {
            table: "[s].[T]",
            mode: CursorMode::TimestampPk,
            cursor: &cursor,
            key: &key,
            select: &select,
            filter: None,
        };
        check(
            &read,
            false,
            false,
            &expect![[r#"
            DECLARE @hi datetime2(7) = DATEADD(MILLISECOND, -@P2, SYSUTCDATETIME());
            SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT TOP (@P1) t.[a], CONVERT(NVARCHAR(33), t.[at], 126) AS [__cursor]
            FROM [s].[T] AS t
            WHERE t.[at] < @hi
            ORDER BY t.[at], t.[a], t.[b], t.[c];"#]],
        );
        check(
            &read,
            true,
            true,
            &expect![[r#"
            DECLARE @hi datetime2(7) = DATEADD(MILLISECOND, -@P2, SYSUTCDATETIME());
            SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT TOP (@P1) t.[a], CONVERT(NVARCHAR(33), t.[at], 126) AS [__cursor]
            FROM [s].[T] AS t
            WHERE t.[at] >= CAST(@P3 AS datetime2(7)) AND (t.[at] > CAST(@P3 AS datetime2(7)) OR t.[a] > CAST(@P4 AS nvarchar(10)) OR (t.[a] = CAST(@P4 AS nvarchar(10)) AND t.[b] > CAST(@P5 AS uniqueidentifier)) OR (t.[a] = CAST(@P4 AS nvarchar(10)) AND t.[b] = CAST(@P5 AS uniqueidentifier) AND t.[c] > CAST(@P6 AS decimal(10, 2))))
            AND t.[at] <= CAST(@P7 AS datetime2(7)) AND (t.[at] < CAST(@P7 AS datetime2(7)) OR t.[a] < CAST(@P8 AS nvarchar(10)) OR (t.[a] = CAST(@P8 AS nvarchar(10)) AND t.[b] < CAST(@P9 AS uniqueidentifier)) OR (t.[a] = CAST(@P8 AS nvarchar(10)) AND t.[b] = CAST(@P9 AS uniqueidentifier) AND t.[c] <= CAST(@P10 AS decimal(10, 2))))
            AND t.[at] < @hi
            ORDER BY t.[at], t.[a], t.[b], t.[c];"#]],
        );
    }

    #[test]
    fn an_offset_is_read_as_utc() {
        let cursor = column("at", "datetimeoffset", 10, 3);
        let key = [column("id", "int", 4, 0)];
        let select = ["t.[id]".to_owned()];
        let read = Read {
            table: "[dbo].[T]",
            mode: CursorMode::TimestampPk,
            cursor: &cursor,
            key: &key,
            select: &select,
            filter: None,
        };
        check(
            &read,
            true,
            false,
            &expect![[r#"
            DECLARE @hi datetimeoffset(3) = DATEADD(MILLISECOND, -@P2, SYSUTCDATETIME());
            SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT TOP (@P1) t.[id], CONVERT(NVARCHAR(33), t.[at], 127) AS [__cursor]
            FROM [dbo].[T] AS t
            WHERE t.[at] >= CAST(@P3 AS datetimeoffset(3)) AND (t.[at] > CAST(@P3 AS datetimeoffset(3)) OR t.[id] > CAST(@P4 AS int))
            AND t.[at] < @hi
            ORDER BY t.[at], t.[id];"#]],
        );
    }
}
