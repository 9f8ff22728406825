//! Change tracking: `CHANGETABLE`, its functions, and how to turn it on.

use super::{
    Definition, Statement,
    coerce::{Collation, Expression},
    parser::{Parser, quoted, shown},
    query::{Source, SourceColumn},
};
use crate::types::{SqlError, Type};

/// Table with the changes of another.
pub(crate) fn changes_of(table: &str) -> String {
    format!("hw.changes of {}", table.to_lowercase())
}

const VERSION: &str = "(SELECT m.value FROM dbo.\"hw.meta\" AS m WHERE m.name = 'change_version')";

impl Parser<'_> {
    /// `CHANGETABLE(CHANGES table, @version)`: each key once, with its net change.
    pub(super) fn change_table(&mut self, body: &mut String) -> Result<Source, SqlError> {
        self.expect("CHANGETABLE")?;
        self.expect_symbol("(")?;
        if !self.eat("CHANGES") {
            return Err(SqlError::unsupported("CHANGETABLE(VERSION …)"));
        }
        let table = self.table_name()?;
        let columns = self.table_columns(&table)?;
        if !self.schema.is_tracked(&table)? {
            let text = format!("Change tracking is not enabled on table '{}'.", shown(&table));
            return Err(SqlError::new(22105, 16, text));
        }
        self.expect_symbol(",")?;
        // A constant, a variable or NULL; anything else is a syntax error.
        let since = self.primary(&super::query::Scope::default())?;
        self.expect_symbol(")")?;
        let key = self.schema.key(&table)?;
        let list: Vec<_> = key.iter().map(|name| quoted(name)).collect();
        let list = list.join(", ");
        // The net operation: `D` if the last change deleted the row, else `I` if one inserted it. The row ids of a
        // key's changes are in order. Each is doubled, so that its last bit shows whether it deleted the row.
        let created = "max(CASE WHEN g.operation = 'I' THEN g.version END)";
        let changes = format!(
            "(SELECT max(g.version) AS \"SYS_CHANGE_VERSION\", \
             {created} AS \"SYS_CHANGE_CREATION_VERSION\", \
             CASE WHEN max(g.rowid * 2 + (g.operation = 'D')) % 2 = 1 THEN 'D' \
             WHEN {created} IS NOT NULL THEN 'I' ELSE 'U' END AS \"SYS_CHANGE_OPERATION\", {list} \
             FROM dbo.{} AS g WHERE g.version > coalesce({}, 0) AND g.version <= {VERSION} \
             GROUP BY {list})",
            quoted(&changes_of(&table)),
            since.sql,
        );
        body.push_str(&changes);
        let column = |name: &str, ty| SourceColumn {
            name: name.into(),
            ty: Some(ty),
            nullable: true,
            collation: Collation::of(ty, None),
        };
        let mut found = vec![
            column("SYS_CHANGE_VERSION", Type::BigInt),
            column("SYS_CHANGE_CREATION_VERSION", Type::BigInt),
            column("SYS_CHANGE_OPERATION", Type::NChar(1)),
        ];
        let is_key = |name: &String| key.contains(name);
        found.extend(columns.into_iter().filter(|c| is_key(&c.name)).map(SourceColumn::from));
        Ok(Source { alias: String::new(), schema: None, columns: found })
    }

    /// `{ENABLE | DISABLE} CHANGE_TRACKING [WITH (…)]` after `ALTER TABLE table`.
    pub(super) fn track(&mut self, table: String) -> Result<Definition, SqlError> {
        let on = self.eat("ENABLE");
        if !on {
            self.expect("DISABLE")?;
        }
        self.expect("CHANGE_TRACKING")?;
        if self.eat("WITH") {
            self.parenthesis()?;
        }
        Ok(Definition::Tracking { table, on })
    }

    /// `ALTER DATABASE name SET CHANGE_TRACKING = ON (…)` or `SET ALLOW_SNAPSHOT_ISOLATION ON`.
    pub(super) fn alter_database(&mut self) -> Result<Statement, SqlError> {
        self.expect("ALTER")?;
        self.expect("DATABASE")?;
        self.name()?;
        self.expect("SET")?;
        if self.eat("CHANGE_TRACKING") {
            self.expect_symbol("=")?;
            self.expect("ON")?;
            if self.is_symbol("(") {
                self.parenthesis()?;
            }
        } else {
            self.expect("ALLOW_SNAPSHOT_ISOLATION")?;
            self.expect("ON")?;
        }
        Ok(Statement::Nothing)
    }

    fn parenthesis(&mut self) -> Result<(), SqlError> {
        self.expect_symbol("(")?;
        while !self.eat_symbol(")") {
            self.next().ok_or_else(|| SqlError::syntax("("))?;
        }
        Ok(())
    }
}

/// `CHANGE_TRACKING_CURRENT_VERSION()`: of the last commit; `NULL` if nothing was ever tracked.
pub(super) fn current_version() -> Expression {
    Expression::new(VERSION, Type::BigInt)
}

/// `CHANGE_TRACKING_MIN_VALID_VERSION(object)`: `NULL` if the table is not tracked.
pub(super) fn min_valid_version(object: &Expression) -> Expression {
    let sql = format!(
        "(SELECT c.min_valid_version FROM dbo.\"sys.change_tracking_tables\" AS c \
         WHERE c.object_id = {})",
        object.sql
    );
    Expression::new(sql, Type::BigInt)
}
