//! Complete statements of windows.

use std::collections::BTreeMap;

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
        identity: false,
        primary: false,
    }
}

fn check(read: &RowQuery<'_>, after: BoundKind, upto: bool, expected: &Expect) {
    let upto = if upto { BoundKind::Row } else { BoundKind::Nothing };
    expected.assert_eq(&read.text(Bounds { after, upto }));
}

#[test]
fn rowversion_windows() {
    let cursor = column("rv", "timestamp", 8, 0);
    let key = [column("id", "int", 4, 0)];
    let select = ["t.[id]".to_owned(), "t.[a]]b]".to_owned()];
    let filter = Filter::parse("region = 'EU' -- only these", &BTreeMap::new()).unwrap();
    let read = RowQuery {
        table: "[dbo].[T]",
        mode: CursorMode::RowVersion,
        cursor: &cursor,
        key: &key,
        select: &select,
        deleted: None,
        selected: None,
        filter: Some(&filter),
        partition: None,
        clock: SourceClock::Utc,
        bases: KeyTypes::default(),
        same_of: None,
    };
    check(
        &read,
        BoundKind::Nothing,
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
        BoundKind::Row,
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
        BoundKind::Row,
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
    let read = RowQuery {
        table: "[s].[T]",
        mode: CursorMode::TimestampPk,
        cursor: &cursor,
        key: &key,
        select: &select,
        deleted: None,
        selected: None,
        filter: None,
        partition: None,
        clock: SourceClock::Utc,
        bases: KeyTypes::default(),
        same_of: None,
    };
    check(
        &read,
        BoundKind::Nothing,
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
        BoundKind::Row,
        true,
        &expect![[r#"
        DECLARE @hi datetime2(7) = DATEADD(MILLISECOND, -@P2, SYSUTCDATETIME());
        SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
        SELECT TOP (@P1) t.[a], CONVERT(NVARCHAR(33), t.[at], 126) AS [__cursor]
        FROM [s].[T] AS t
        WHERE t.[at] >= CAST(@P3 AS datetime2(7)) AND (t.[at] > CAST(@P3 AS datetime2(7)) OR t.[a] > CAST(@P4 AS nvarchar(10)) OR (t.[a] = CAST(@P4 AS nvarchar(10)) AND t.[b] > CAST(@P5 AS uniqueidentifier)) OR (t.[a] = CAST(@P4 AS nvarchar(10)) AND t.[b] = CAST(@P5 AS uniqueidentifier) AND t.[c] > CAST(@P6 AS decimal(10, 2))))
        AND t.[at] <= CAST(@P7 AS datetime2(7)) AND (t.[at] < CAST(@P7 AS datetime2(7)) OR t.[a] < CAST(@P8 AS nvarchar(10)) OR (t.[a] = CAST(@P8 AS nvarchar(10)) AND t.[b] < CAST(@P9 AS uniqueidentifier)) OR (t.[a] = CAST(@P8 AS nvarchar(10)) AND t.[b] = CAST(@P9 AS uniqueidentifier) AND t.[c] <= CAST(@P10 AS decimal(10, 2))))
        ORDER BY t.[at], t.[a], t.[b], t.[c];"#]],
    );
}

#[test]
fn an_offset_is_read_as_utc() {
    let cursor = column("at", "datetimeoffset", 10, 3);
    let key = [column("id", "int", 4, 0)];
    let select = ["t.[id]".to_owned()];
    let read = RowQuery {
        table: "[dbo].[T]",
        mode: CursorMode::TimestampPk,
        cursor: &cursor,
        key: &key,
        select: &select,
        deleted: None,
        selected: None,
        filter: None,
        partition: None,
        clock: SourceClock::Utc,
        bases: KeyTypes::default(),
        same_of: None,
    };
    check(
        &read,
        BoundKind::Row,
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

#[test]
fn the_server_reports_repeated_positions_on_request() {
    let cursor = column("at", "datetime2", 8, 7);
    let key = [column("k", "sql_variant", 20, 0), cursor.clone()];
    let select = ["t.[k]".to_owned()];
    let columns = ["[k]", "[at]", "[gone]"].map(str::to_owned);
    let read = RowQuery {
        table: "[dbo].[T]",
        mode: CursorMode::TimestampPk,
        cursor: &cursor,
        key: &key,
        select: &select,
        deleted: Some("t.[gone] <> 0"),
        selected: None,
        filter: None,
        partition: None,
        clock: SourceClock::Utc,
        bases: KeyTypes::default(),
        same_of: Some(&columns),
    };
    check(
        &read,
        BoundKind::Nothing,
        false,
        &expect![[r#"
            DECLARE @hi datetime2(7) = DATEADD(MILLISECOND, -@P2, SYSUTCDATETIME());
            SELECT CONVERT(NVARCHAR(33), SYSUTCDATETIME(), 126) AS [__now];
            SELECT t.[k], CONVERT(NVARCHAR(33), t.[at], 126) AS [__cursor], CASE WHEN LAG(t.[at]) OVER (ORDER BY t.[at], t.[k]) = t.[at] AND LAG(t.[k]) OVER (ORDER BY t.[at], t.[k]) = t.[k] THEN 1 ELSE 0 END AS [__same], CASE WHEN t.[gone] <> 0 THEN N'D' ELSE N'U' END AS [__op]
            FROM (SELECT TOP (@P1) t.[k], t.[at], t.[gone]
            FROM [dbo].[T] AS t
            WHERE t.[at] < @hi
            ORDER BY t.[at], t.[k]) AS t
            ORDER BY t.[at], t.[k];"#]],
    );
}

#[test]
fn integer_windows_end_at_the_settled_mark() {
    let cursor = Column { identity: true, ..column("id", "int", 4, 0) };
    let key = [cursor.clone()];
    let select = ["t.[id]".to_owned()];
    let read = RowQuery {
        table: "[dbo].[O'Brien]",
        mode: CursorMode::IntegerPk,
        cursor: &cursor,
        key: &key,
        select: &select,
        deleted: None,
        selected: None,
        filter: None,
        partition: None,
        clock: SourceClock::Utc,
        bases: KeyTypes::default(),
        same_of: None,
    };
    check(
        &read,
        BoundKind::Row,
        false,
        &expect![[r#"
            DECLARE @max BIGINT = (SELECT MAX(t.[id]) FROM [dbo].[O'Brien] AS t);
            DECLARE @now DATETIME2(7) = SYSUTCDATETIME();
            DECLARE @hi BIGINT = CASE WHEN @P2 = 0 THEN @max
            WHEN CAST(NULLIF(@P5, N'') AS DATETIME2(7)) <= DATEADD(MILLISECOND, -@P2, @now) THEN CAST(NULLIF(@P4, N'') AS BIGINT)
            ELSE CAST(NULLIF(@P3, N'') AS BIGINT) END;
            SELECT @hi AS [__hi], @max AS [__max], CAST(IDENT_CURRENT(N'[dbo].[O''Brien]') AS BIGINT) AS [__last], CONVERT(NVARCHAR(33), @now, 126) AS [__now];
            SELECT TOP (@P1) t.[id], CAST(t.[id] AS BIGINT) AS [__cursor]
            FROM [dbo].[O'Brien] AS t
            WHERE t.[id] >= CAST(@P6 AS int) AND (t.[id] > CAST(@P6 AS int) OR t.[id] > CAST(@P7 AS int))
            AND t.[id] <= @hi
            ORDER BY t.[id];"#]],
    );
    check(
        &read,
        BoundKind::Row,
        true,
        &expect![[r#"
            DECLARE @max BIGINT = (SELECT MAX(t.[id]) FROM [dbo].[O'Brien] AS t);
            DECLARE @now DATETIME2(7) = SYSUTCDATETIME();
            DECLARE @hi BIGINT = CASE WHEN @P2 = 0 THEN @max
            WHEN CAST(NULLIF(@P5, N'') AS DATETIME2(7)) <= DATEADD(MILLISECOND, -@P2, @now) THEN CAST(NULLIF(@P4, N'') AS BIGINT)
            ELSE CAST(NULLIF(@P3, N'') AS BIGINT) END;
            SELECT @hi AS [__hi], @max AS [__max], CAST(IDENT_CURRENT(N'[dbo].[O''Brien]') AS BIGINT) AS [__last], CONVERT(NVARCHAR(33), @now, 126) AS [__now];
            SELECT TOP (@P1) t.[id], CAST(t.[id] AS BIGINT) AS [__cursor]
            FROM [dbo].[O'Brien] AS t
            WHERE t.[id] >= CAST(@P6 AS int) AND (t.[id] > CAST(@P6 AS int) OR t.[id] > CAST(@P7 AS int))
            AND t.[id] <= CAST(@P8 AS int) AND (t.[id] < CAST(@P8 AS int) OR t.[id] <= CAST(@P9 AS int))
            ORDER BY t.[id];"#]],
    );
    let other = [column("code", "int", 4, 0)];
    let cursor = column("id", "int", 4, 0);
    check(
        &RowQuery { cursor: &cursor, key: &other, bases: KeyTypes::default(), ..read },
        BoundKind::Cursor,
        false,
        &expect![[r#"
            DECLARE @max BIGINT = (SELECT MAX(t.[id]) FROM [dbo].[O'Brien] AS t);
            DECLARE @now DATETIME2(7) = SYSUTCDATETIME();
            DECLARE @hi BIGINT = CASE WHEN @P2 = 0 THEN @max
            WHEN CAST(NULLIF(@P5, N'') AS DATETIME2(7)) <= DATEADD(MILLISECOND, -@P2, @now) THEN CAST(NULLIF(@P4, N'') AS BIGINT)
            ELSE CAST(NULLIF(@P3, N'') AS BIGINT) END;
            SELECT @hi AS [__hi], @max AS [__max], CAST(NULL AS BIGINT) AS [__last], CONVERT(NVARCHAR(33), @now, 126) AS [__now];
            SELECT TOP (@P1) t.[id], CAST(t.[id] AS BIGINT) AS [__cursor]
            FROM [dbo].[O'Brien] AS t
            WHERE t.[id] > CAST(@P6 AS int)
            AND t.[id] <= @hi
            ORDER BY t.[id], t.[code];"#]],
    );
}
