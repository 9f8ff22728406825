//! SQL statements of the store, and the DDL of its table.

use super::OwnTable;
use crate::ident::QualifiedName;

/// Longest application name that the table holds, in UTF-16 units.
pub(super) const APP_UNITS_MAX: usize = 128;
/// Longest row name that the table holds, in UTF-16 units. An index key is limited to 900 bytes.
pub(super) const NAME_UNITS_MAX: usize = 200;

/// Returns the description of the state table.
pub(super) fn own(name: QualifiedName) -> OwnTable {
    OwnTable { name, command: "state", rights: &["SELECT", "INSERT", "UPDATE", "DELETE"] }
}

/// Returns the DDL of the state table.
pub fn create_table(table: &QualifiedName) -> String {
    format!(
        "CREATE TABLE {} (
    [app] nvarchar({APP_UNITS_MAX}) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [name] nvarchar({NAME_UNITS_MAX}) COLLATE Latin1_General_100_BIN2 NOT NULL,
    [content] varbinary(max) NOT NULL,
    [etag] rowversion NOT NULL,
    [last_modified] datetime2(7) NOT NULL,
    PRIMARY KEY CLUSTERED ([app], [name])
);",
        table.quoted()
    )
}

/// Returns the statements that grant a database user the permissions that the store needs.
pub fn grant(table: &QualifiedName, user: &str) -> String {
    own(table.clone()).grant(user)
}

/// The store's statements. `@P1` is the application and `@P2` the name, in all of them.
#[derive(Debug)]
pub(super) struct Statements {
    /// Always one row, even if nothing is stored: each answer must include the clock.
    pub(super) load: String,
    /// One row, or error 2627: `@P3` is the content.
    pub(super) create: String,
    /// One row, or none if the tag has changed: `@P3` is the content, `@P4` and `@P5` the tag.
    pub(super) replace: String,
    /// All names of an application; has no `@P2`.
    pub(super) list: String,
    /// The other applications that have this name.
    pub(super) apps: String,
    /// One row, or none if the tag has changed: `@P3` and `@P4` are the tag.
    pub(super) remove: String,
}

impl Statements {
    pub(super) fn new(table: &QualifiedName) -> Self {
        let table = table.quoted();
        Self {
            load: format!(
                "SELECT s.[content], s.[etag], s.[last_modified], SYSUTCDATETIME() AS [now] \
                 FROM (SELECT 1 AS [one]) AS o \
                 LEFT JOIN {table} AS s ON s.[app] = @P1 AND s.[name] = @P2"
            ),
            create: format!(
                "INSERT INTO {table} ([app], [name], [content], [last_modified]) \
                 OUTPUT inserted.[etag], inserted.[last_modified] \
                 VALUES (@P1, @P2, @P3, SYSUTCDATETIME())"
            ),
            replace: format!(
                "UPDATE {table} SET [content] = @P3, [last_modified] = SYSUTCDATETIME() \
                 OUTPUT inserted.[etag], inserted.[last_modified] \
                 WHERE [app] = @P1 AND [name] = @P2 AND [etag] = CAST(@P4 AS binary(8)) \
                 AND [last_modified] = CAST(@P5 AS datetime2(7))"
            ),
            list: format!("SELECT [name] FROM {table} WHERE [app] = @P1 ORDER BY [name]"),
            apps: format!(
                "SELECT [app] FROM {table} WHERE [app] <> @P1 AND [name] = @P2 ORDER BY [app]"
            ),
            remove: format!(
                "DELETE FROM {table} OUTPUT deleted.[name] \
                 WHERE [app] = @P1 AND [name] = @P2 AND [etag] = CAST(@P3 AS binary(8)) \
                 AND [last_modified] = CAST(@P4 AS datetime2(7))"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::table_name;
    use super::*;

    #[test]
    fn each_operation_is_one_statement() {
        let Statements { load, create, replace, list, apps, remove } =
            Statements::new(&table_name("ops.[High]]Water]").unwrap());
        expect![[r#"
            SELECT s.[content], s.[etag], s.[last_modified], SYSUTCDATETIME() AS [now] FROM (SELECT 1 AS [one]) AS o LEFT JOIN [ops].[High]]Water] AS s ON s.[app] = @P1 AND s.[name] = @P2
            INSERT INTO [ops].[High]]Water] ([app], [name], [content], [last_modified]) OUTPUT inserted.[etag], inserted.[last_modified] VALUES (@P1, @P2, @P3, SYSUTCDATETIME())
            UPDATE [ops].[High]]Water] SET [content] = @P3, [last_modified] = SYSUTCDATETIME() OUTPUT inserted.[etag], inserted.[last_modified] WHERE [app] = @P1 AND [name] = @P2 AND [etag] = CAST(@P4 AS binary(8)) AND [last_modified] = CAST(@P5 AS datetime2(7))
            SELECT [name] FROM [ops].[High]]Water] WHERE [app] = @P1 ORDER BY [name]
            SELECT [app] FROM [ops].[High]]Water] WHERE [app] <> @P1 AND [name] = @P2 ORDER BY [app]
            DELETE FROM [ops].[High]]Water] OUTPUT deleted.[name] WHERE [app] = @P1 AND [name] = @P2 AND [etag] = CAST(@P3 AS binary(8)) AND [last_modified] = CAST(@P4 AS datetime2(7))"#]].assert_eq(&[load, create, replace, list, apps, remove].join("\n"));
    }

    #[test]
    fn the_table_and_the_permissions_are_minimal() {
        let table = table_name("highwater_state").unwrap();
        expect![[r#"
            CREATE TABLE [dbo].[highwater_state] (
                [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
                [name] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
                [content] varbinary(max) NOT NULL,
                [etag] rowversion NOT NULL,
                [last_modified] datetime2(7) NOT NULL,
                PRIMARY KEY CLUSTERED ([app], [name])
            );
            GRANT SELECT ON [dbo].[highwater_state] TO [an app]]];
            GRANT INSERT ON [dbo].[highwater_state] TO [an app]]];
            GRANT UPDATE ON [dbo].[highwater_state] TO [an app]]];
            GRANT DELETE ON [dbo].[highwater_state] TO [an app]]];"#]]
        .assert_eq(&format!("{}\n{}", create_table(&table), grant(&table, "an app]")));
    }
}
