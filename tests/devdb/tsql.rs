//! T-SQL to SQLite: the statements that the development server supports.
//!
//! A batch is split into tokens and parsed statement by statement; every expression gets its SQL type while
//! it is parsed, so that results have the types SQL Server would give them. `docs/contributing/devdb.md`
//! lists each supported statement with an example, and rejected ones; a test checks it. Supported are:
//!
//! - `SELECT [DISTINCT] [TOP (n)] … FROM table | view | (query) AS t | (VALUES …) AS t (…)
//!   [INNER | LEFT | CROSS JOIN …]`
//!   with `WHERE`, `GROUP BY`, `HAVING`, `UNION [ALL]`, `ORDER BY`, `OFFSET … FETCH`; table hints
//!   and `OPTION` are parsed and ignored; `SELECT @v = …` assigns;
//! - `DECLARE @v type [= …]`, `SET @v = …`, `SET option …` (`LOCK_TIMEOUT`, `XACT_ABORT` and
//!   `IDENTITY_INSERT` have an effect, others are accepted only if they change nothing), `IF … [ELSE …]`,
//!   `BEGIN … END`, `PRINT`;
//! - `INSERT`, `UPDATE [TOP (n)]`, `DELETE [TOP (n)]` of one table, with `OUTPUT`; an `UPDATE` joined
//!   with `(VALUES …)`; `TRUNCATE TABLE`;
//! - `BEGIN`, `COMMIT` and `ROLLBACK` of transactions;
//! - `CREATE TABLE` with keys, `UNIQUE`, `IDENTITY` (seed and increment are 1), `DEFAULT`,
//!   `COLLATE` (Latin, Cyrillic and UTF-8 ones; those that end in `_BIN` or `_BIN2` are case-sensitive);
//!   `CREATE [UNIQUE] INDEX`, `CREATE VIEW`, `CREATE SCHEMA`, `ALTER TABLE … ADD` and `DROP COLUMN` of
//!   one column, `sp_rename` of a table or a column, `DROP TABLE | VIEW | INDEX`;
//! - change tracking: `ALTER TABLE … {ENABLE | DISABLE} CHANGE_TRACKING`, `CHANGETABLE(CHANGES …)` with
//!   the key, `SYS_CHANGE_VERSION`, `SYS_CHANGE_CREATION_VERSION` and the net `SYS_CHANGE_OPERATION`, both
//!   functions of versions;
//!   `ALTER DATABASE … SET CHANGE_TRACKING | ALLOW_SNAPSHOT_ISOLATION` is parsed and ignored, as are
//!   isolation levels: a read always has its own snapshot;
//! - operators, `CASE`, `IN`, `LIKE`, `BETWEEN`, `EXISTS`, `IS NULL`, `CAST` (of a value with or
//!   without `COLLATE`), `CONVERT` (styles 0, 126, 127, and 1 and 2 of binary values), `DATEADD`, `DATEDIFF`,
//!   the aggregates, and the functions of `function.rs`;
//! - the catalog views `sys.tables`, `sys.objects`, `sys.schemas`, `sys.columns`, `sys.types`, `sys.indexes`,
//!   `sys.index_columns`, `sys.databases`, `sys.default_constraints` and `sys.change_tracking_tables`, with some of
//!   their columns; and `sys.dm_exec_describe_first_result_set` of a constant query;
//! - every type by its name; `xml`, `text`, `ntext`, `image`, `hierarchyid`, `geometry` and `geography`
//!   are stored as strings without their functions; `sql_variant` has the types of its values.
//!
//! Anything else fails, mostly with error 102, 195 or 40515. Known differences: text of columns orders
//! character by character (see `collation.rs`), not by the weights of a language; decimals of up to 15 digits
//! are floats inside, and longer ones become floats in arithmetic.

pub(crate) mod coerce;
pub(crate) mod definition;
mod describe;
mod expression;
mod function;
mod grouping;
mod hints;
pub(crate) mod lexer;
mod limit;
mod ordering;
pub(crate) mod parser;
mod query;
mod rename;
mod settings;
mod sizes;
#[cfg(test)]
mod tests;
pub(crate) mod tracking;
mod values;
mod write;

use self::{
    definition::{Index, Table},
    lexer::Token,
    parser::{Parser, TableColumn},
    query::Scope,
};
use super::types::{Column, Command, SqlError, Type};

/// The value of `@@VERSION`.
pub(crate) const VERSION: &str = concat!(
    "Highwater development server ",
    env!("CARGO_PKG_VERSION"),
    " (not Microsoft SQL Server)"
);

/// The value of `@@SERVERNAME`.
pub(crate) const SERVER_NAME: &str = "HIGHWATER-DEVDB";

/// A translated statement. Texts are SQLite's; variables keep their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    Query {
        sql: String,
        columns: Vec<Column>,
    },
    /// A query whose last row is assigned to variables.
    Select {
        sql: String,
        columns: Vec<Column>,
        targets: Vec<String>,
    },
    Write(Write),
    Declare {
        name: String,
        ty: Type,
        value: Option<String>,
    },
    Assign {
        name: String,
        value: String,
    },
    Setting {
        name: String,
        value: String,
    },
    Begin,
    Commit,
    Rollback,
    Define(Definition),
    If {
        condition: String,
        then: Box<Self>,
        otherwise: Box<Self>,
    },
    Block(Vec<Self>),
    Nothing,
}

/// A statement that writes rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) command: Command,
    /// The written table.
    pub(crate) table: String,
    pub(crate) sql: String,
    pub(crate) returning: Vec<Column>,
    /// The table and its identity column.
    pub(crate) identity: Option<(String, String)>,
}

/// A change of the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Definition {
    Table(Table),
    View { name: String, sql: String, columns: Vec<TableColumn> },
    Index { table: String, index: Index, sql: String },
    DropIndex { table: String, name: String, sql: String },
    Column { table: String, column: TableColumn, sql: Vec<String> },
    DropColumn { table: String, column: String },
    Rename { table: String, to: String },
    RenameColumn { table: String, column: String, to: String },
    Tracking { table: String, on: bool },
    Drop { name: String, sql: String, if_exists: bool },
    Truncate { name: String, sql: String },
}

/// Words that start a statement, or end a block of them.
const STATEMENTS: [&str; 24] = [
    "ALTER",
    "BEGIN",
    "COMMIT",
    "CREATE",
    "DECLARE",
    "DELETE",
    "DROP",
    "ELSE",
    "END",
    "EXEC",
    "EXECUTE",
    "IF",
    "INSERT",
    "MERGE",
    "PRINT",
    "RAISERROR",
    "RETURN",
    "ROLLBACK",
    "SELECT",
    "SET",
    "TRUNCATE",
    "UPDATE",
    "WAITFOR",
    "WHILE",
];

impl Parser<'_> {
    /// The next statement; [`None`] at the end of the batch.
    pub(crate) fn statement(&mut self) -> Result<Option<Statement>, SqlError> {
        while self.eat_symbol(";") {}
        if self.is_at_end() {
            return Ok(None);
        }
        let statement = self.nested(Self::one_statement)?;
        // No part of it may run if another part was not understood.
        let next = self.is_at_end() || self.is_symbol(";");
        if next || STATEMENTS.iter().any(|word| self.is_word(word)) {
            return Ok(Some(statement));
        }
        Err(self.unexpected())
    }

    fn one_statement(&mut self) -> Result<Statement, SqlError> {
        let Some(Token::Word(word)) = self.peek() else {
            return Err(self.unexpected());
        };
        match word.to_ascii_uppercase().as_str() {
            "SELECT" => self.select(),
            "INSERT" => self.insert(),
            "UPDATE" => self.update(),
            "DELETE" => self.delete(),
            "DECLARE" => self.declare(),
            "SET" => self.set(),
            "CREATE" if self.is_word_at(1, "SCHEMA") => self.create_schema(),
            "CREATE" => self.create().map(Statement::Define),
            "ALTER" if self.is_word_at(1, "DATABASE") => self.alter_database(),
            "ALTER" => self.alter().map(Statement::Define),
            "DROP" => self.drop().map(Statement::Define),
            "TRUNCATE" => self.truncate().map(Statement::Define),
            "EXEC" | "EXECUTE" => self.execute().map(Statement::Define),
            "BEGIN" => self.begin(),
            "IF" => self.branch(),
            "COMMIT" => Ok(self.transaction_end(Statement::Commit)),
            "ROLLBACK" => Ok(self.transaction_end(Statement::Rollback)),
            "PRINT" => {
                self.next();
                self.expression(&Scope::default())?;
                Ok(Statement::Nothing)
            }
            "MERGE" | "WITH" | "WHILE" | "WAITFOR" | "GRANT" | "USE" | "RAISERROR" | "THROW"
            | "RETURN" => {
                Err(SqlError::unsupported(&format!("Statement '{}'", word.to_uppercase())))
            }
            _ => Err(self.unexpected()),
        }
    }

    fn select(&mut self) -> Result<Statement, SqlError> {
        let query = self.query()?;
        let (sql, columns) = (query.sql(), query.columns());
        if query.targets.is_empty() {
            return Ok(Statement::Query { sql, columns });
        }
        Ok(Statement::Select { sql, columns, targets: query.targets })
    }

    fn declare(&mut self) -> Result<Statement, SqlError> {
        self.expect("DECLARE")?;
        let (mut declared, mut names) = (Vec::new(), Vec::new());
        loop {
            let Some(Token::Variable(name)) = self.next() else {
                return Err(self.unexpected());
            };
            if names.contains(&name) || self.schema.variable(name).is_some() {
                let text = format!("The variable name '{name}' has already been declared.");
                return Err(SqlError::new(134, 15, text));
            }
            names.push(name);
            self.eat("AS");
            let ty = self.data_type()?;
            let mut value = None;
            if self.eat_symbol("=") {
                value = Some(self.expression(&Scope::default())?.cast(ty).sql);
            }
            declared.push(Statement::Declare { name: name.clone(), ty, value });
            if !self.eat_symbol(",") {
                return Ok(Statement::Block(declared));
            }
        }
    }

    fn begin(&mut self) -> Result<Statement, SqlError> {
        if self.is_word_at(1, "TRAN") || self.is_word_at(1, "TRANSACTION") {
            return Ok(self.transaction_end(Statement::Begin));
        }
        self.expect("BEGIN")?;
        if self.is_word("TRY") || self.is_word("CATCH") {
            return Err(SqlError::unsupported("TRY and CATCH"));
        }
        let mut statements = Vec::new();
        loop {
            while self.eat_symbol(";") {}
            if self.eat("END") {
                return Ok(Statement::Block(statements));
            }
            statements.push(self.statement()?.ok_or_else(|| self.unexpected())?);
        }
    }

    fn branch(&mut self) -> Result<Statement, SqlError> {
        self.expect("IF")?;
        let condition = self.condition(&Scope::default())?;
        let then = Box::new(self.nested(Self::one_statement)?);
        let semicolons = self.position();
        while self.eat_symbol(";") {}
        let otherwise = if self.eat("ELSE") {
            self.nested(Self::one_statement)?
        } else {
            self.rewind(semicolons);
            Statement::Nothing
        };
        Ok(Statement::If { condition, then, otherwise: Box::new(otherwise) })
    }

    /// Schemas need not be created: they are part of a table's name.
    fn create_schema(&mut self) -> Result<Statement, SqlError> {
        self.expect("CREATE")?;
        self.expect("SCHEMA")?;
        self.name()?;
        Ok(Statement::Nothing)
    }

    /// Consumes the keyword, `TRAN[SACTION]` or `WORK`, and a name.
    fn transaction_end(&mut self, statement: Statement) -> Statement {
        self.next();
        if (self.eat("TRAN") || self.eat("TRANSACTION") || self.eat("WORK"))
            && let Some(Token::Name(_)) = self.peek()
        {
            self.next();
        }
        statement
    }
}
