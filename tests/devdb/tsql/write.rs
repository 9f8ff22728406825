//! INSERT, UPDATE and DELETE.
//!
//! Rowversion columns, identities and defaults are filled in here, so that the engine needs no triggers.

use super::{
    Statement, Write,
    coerce::{Collation, Expression, calculated},
    expression::{added, same_name},
    lexer::{self, Token},
    parser::{Parser, TableColumn, invalid_column, quoted, shown, text},
    query::{Scope, Source, SourceColumn, result_column},
};
use crate::{
    codepage::CodePage,
    types::{Column, Command, SqlError, Type},
};

impl Parser<'_> {
    /// `INSERT [INTO] table [(columns)] [OUTPUT …] VALUES … | SELECT … | DEFAULT VALUES`.
    pub(crate) fn insert(&mut self) -> Result<Statement, SqlError> {
        self.expect("INSERT")?;
        self.eat("INTO");
        let table = self.table_name()?;
        let columns = self.table_columns(&table)?;
        let given = self.insert_columns(&table, &columns)?;
        let returning = self.output(&columns, "INSERTED")?;
        let filled = self.filled(&table, &columns, &given)?;
        let names: Vec<_> = given
            .iter()
            .chain(filled.iter().map(|(column, _)| column))
            .map(|c| quoted(&c.name))
            .collect();
        let rows = if self.eat("DEFAULT") {
            self.expect("VALUES")?;
            let values: Vec<_> = filled.iter().map(|(_, sql)| sql.as_str()).collect();
            format!("VALUES ({})", values.join(", "))
        } else if self.eat("VALUES") {
            self.value_rows(&given, &filled)?
        } else {
            let mut query = self.query()?;
            check_count(given.len(), query.items.len())?;
            for (item, column) in query.items.iter_mut().zip(&given) {
                *item = assigned(item, column);
            }
            query.items.extend(filled.iter().map(|(_, sql)| Expression::new(sql.clone(), None)));
            query.sql()
        };
        let sql = if names.is_empty() {
            format!("INSERT INTO dbo.{} DEFAULT VALUES", quoted(&table))
        } else {
            format!("INSERT INTO dbo.{} ({}) {rows}", quoted(&table), names.join(", "))
        };
        let identity = identity_of(&table, &columns);
        Ok(write(Command::Insert, table, sql, &returning, identity))
    }

    /// `UPDATE table|alias SET … [OUTPUT …] [FROM table AS alias [JOIN (VALUES …) AS v (…) ON …]]
    /// [WHERE …]`.
    pub(crate) fn update(&mut self) -> Result<Statement, SqlError> {
        self.expect("UPDATE")?;
        let limit = self.top(None)?;
        let target = self.target("FROM")?;
        self.expect("SET")?;
        let mut scope = target.scope();
        // The values come first in the text and need the source that comes later.
        let (start, mut joined) = (self.position(), None);
        if self.skip_to_from().is_some() {
            joined = self.joined_rows(&target, &mut scope, limit.is_some())?;
        }
        self.rewind(start);
        let mut assignments = Vec::new();
        loop {
            assignments.push(self.assignment(&target, &scope)?);
            if !self.eat_symbol(",") {
                break;
            }
        }
        for column in target.columns.iter().filter(|column| column.ty == Type::RowVersion) {
            assignments.push(format!("{} = hw_next_rowversion()", quoted(&column.name)));
        }
        let returning = self.output(&target.columns, "INSERTED")?;
        let (mut from, mut filter) = (String::new(), String::new());
        if let Some(Joined { rows, condition, end }) = joined {
            self.rewind(end);
            from = format!(" FROM {rows}");
            filter = format!(" WHERE ({condition})");
            if self.eat("WHERE") {
                filter.extend([" AND (", &self.condition(&scope)?, ")"]);
            }
        } else {
            self.skip_target_source(&target)?;
            filter += &self.row_filter(&target, &scope, limit)?;
        }
        let sql = format!(
            "UPDATE dbo.{} AS {} SET {}{from}{filter}",
            quoted(&target.table),
            quoted(&target.alias),
            assignments.join(", ")
        );
        Ok(write(Command::Update, target.table, sql, &returning, None))
    }

    /// `DELETE [FROM] table|alias [OUTPUT …] [FROM table AS alias] [WHERE …]`.
    pub(crate) fn delete(&mut self) -> Result<Statement, SqlError> {
        self.expect("DELETE")?;
        let limit = self.top(None)?;
        self.eat("FROM");
        let target = self.target("FROM")?;
        let returning = self.output(&target.columns, "DELETED")?;
        self.skip_target_source(&target)?;
        let scope = target.scope();
        let filter = self.row_filter(&target, &scope, limit)?;
        let (table, alias) = (quoted(&target.table), quoted(&target.alias));
        let sql = format!("DELETE FROM dbo.{table} AS {alias}{filter}");
        Ok(write(Command::Delete, target.table, sql, &returning, None))
    }

    fn insert_columns(
        &mut self,
        table: &str,
        columns: &[TableColumn],
    ) -> Result<Vec<TableColumn>, SqlError> {
        let identity_allowed = self.schema.identity_insert(table);
        let automatic =
            |c: &&TableColumn| c.ty != Type::RowVersion && (identity_allowed || !c.identity);
        if self.is_word("DEFAULT") {
            return Ok(Vec::new());
        }
        if !self.eat_symbol("(") {
            return Ok(columns.iter().filter(automatic).cloned().collect());
        }
        let mut given = Vec::new();
        loop {
            let column = find(columns, &self.name()?)?;
            if column.ty == Type::RowVersion {
                return Err(SqlError::new(273, 16, EXPLICIT_TIMESTAMP));
            }
            if column.identity && !identity_allowed {
                let table = shown(table);
                let text = format!(
                    "Cannot insert explicit value for identity column in table '{table}' \
                     when IDENTITY_INSERT is set to OFF."
                );
                return Err(SqlError::new(544, 16, text));
            }
            given.push(column.clone());
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(given)
    }

    /// Columns without a given value that have a generated one.
    fn filled(
        &mut self,
        table: &str,
        columns: &[TableColumn],
        given: &[TableColumn],
    ) -> Result<Vec<(TableColumn, String)>, SqlError> {
        let mut filled = Vec::new();
        for column in columns.iter().filter(|column| !given.contains(column)) {
            let sql = if column.ty == Type::RowVersion {
                "hw_next_rowversion()".into()
            } else if column.identity {
                format!("hw_next_identity({})", text(table))
            } else if let Some(default) = &column.default {
                let tokens = lexer::tokens(default)?;
                let value = Parser::new(&tokens, 0, self.schema).sum(&Scope::default())?;
                assigned(&value, column).sql
            } else {
                continue;
            };
            filled.push((column.clone(), sql));
        }
        Ok(filled)
    }

    fn value_rows(
        &mut self,
        given: &[TableColumn],
        filled: &[(TableColumn, String)],
    ) -> Result<String, SqlError> {
        let mut rows = Vec::new();
        loop {
            self.expect_symbol("(")?;
            let mut values = Vec::new();
            loop {
                let value = if self.eat("DEFAULT") {
                    Expression::new("NULL", None)
                } else {
                    self.expression(&Scope::default())?
                };
                let column = given.get(values.len());
                values.push(column.map_or_else(String::new, |column| assigned(&value, column).sql));
                if !self.eat_symbol(",") {
                    break;
                }
            }
            self.expect_symbol(")")?;
            check_count(given.len(), values.len())?;
            values.extend(filled.iter().map(|(_, sql)| sql.clone()));
            rows.push(format!("({})", values.join(", ")));
            if !self.eat_symbol(",") {
                break;
            }
        }
        Ok(format!("VALUES {}", rows.join(", ")))
    }

    /// The table to be changed; an alias is resolved in the FROM clause that follows.
    fn target(&mut self, clause: &str) -> Result<Target, SqlError> {
        let single = !matches!(self.peek_at(1), Some(Token::Symbol(".")));
        let mut table = self.table_name()?;
        let mut alias = None;
        if single {
            let start = self.position();
            let mut depth = 0_usize;
            while self.peek().is_some() && !self.is_symbol(";") {
                depth += usize::from(self.is_symbol("("));
                depth = depth.saturating_sub(usize::from(self.is_symbol(")")));
                if depth == 0 && self.eat(clause) {
                    let source = self.table_name();
                    self.eat("AS");
                    if let Ok(source) = source
                        && self.name().is_ok_and(|name| same_name(&name, &table))
                    {
                        alias = Some(std::mem::replace(&mut table, source));
                    }
                    break;
                }
                self.next();
            }
            self.rewind(start);
        }
        if alias.is_none() && self.eat("AS") {
            alias = Some(self.name()?);
        }
        let columns = self.table_columns(&table)?;
        let alias = alias.unwrap_or_else(|| table.rsplit('.').next().unwrap_or(&table).to_owned());
        Ok(Target { table, alias, columns })
    }

    /// Skips the FROM clause that named the target's alias.
    fn skip_target_source(&mut self, target: &Target) -> Result<(), SqlError> {
        if !self.eat("FROM") {
            return Ok(());
        }
        let table = self.table_name()?;
        if !same_name(&table, &target.table) {
            return Err(SqlError::unsupported("A second table in UPDATE or DELETE"));
        }
        self.eat("AS");
        if let Some(Token::Word(_) | Token::Name(_)) = self.peek()
            && !self.is_word("WHERE")
        {
            self.name()?;
        }
        if self.is_symbol(",") || self.is_word("JOIN") || self.is_word_at(1, "JOIN") {
            return Err(SqlError::unsupported("A second table in UPDATE or DELETE"));
        }
        Ok(())
    }

    /// The rest after the FROM of an UPDATE that joins rows of values; [`None`] if it only names the target.
    fn joined_rows(
        &mut self,
        target: &Target,
        scope: &mut Scope<'_>,
        limited: bool,
    ) -> Result<Option<Joined>, SqlError> {
        let table = self.table_name()?;
        self.eat("AS");
        let named = self.name().is_ok_and(|alias| same_name(&alias, &target.alias));
        self.table_hints()?;
        self.eat("INNER");
        if self.is_symbol(",") || self.is_word_at(1, "JOIN") && !self.is_word("JOIN") {
            return Err(SqlError::unsupported("A second table in UPDATE or DELETE"));
        }
        if !self.is_word("JOIN") {
            return Ok(None);
        }
        let is_values =
            matches!(self.peek_at(1), Some(Token::Symbol("("))) && self.is_word_at(2, "VALUES");
        if !is_values || !named || limited || !same_name(&table, &target.table) {
            return Err(SqlError::unsupported("A second table in UPDATE or DELETE"));
        }
        self.next();
        let mut rows = String::new();
        let source = self.value_source(&mut rows)?;
        rows.extend([" AS ", &quoted(&source.alias)]);
        scope.tables.push(source);
        self.expect("ON")?;
        let condition = self.condition(scope)?;
        Ok(Some(Joined { rows, condition, end: self.position() }))
    }

    fn assignment(&mut self, target: &Target, scope: &Scope<'_>) -> Result<String, SqlError> {
        let mut name = self.name()?;
        while self.eat_symbol(".") {
            name = self.name()?;
        }
        let column = find(&target.columns, &name)?;
        if column.ty == Type::RowVersion {
            return Err(SqlError::new(272, 16, "Cannot update a timestamp column."));
        }
        let compound = ["+=", "-=", "*=", "/="].into_iter().find(|symbol| self.eat_symbol(symbol));
        let value = if let Some(operator) = compound {
            let value = self.expression(scope)?;
            let collation = Collation::of(column.ty, column.collation.as_deref());
            let current =
                Expression { collation, ..Expression::new(quoted(&column.name), column.ty) };
            match operator.trim_end_matches('=') {
                "+" => added(current, "+", value)?,
                operator => calculated(&current, operator, &value)?,
            }
        } else {
            self.expect_symbol("=")?;
            self.expression(scope)?
        };
        Ok(format!("{} = {}", quoted(&column.name), assigned(&value, column).sql))
    }

    fn row_filter(
        &mut self,
        target: &Target,
        scope: &Scope<'_>,
        limit: Option<String>,
    ) -> Result<String, SqlError> {
        let mut filter = String::new();
        if self.eat("WHERE") {
            filter = format!(" WHERE {}", self.condition(scope)?);
        }
        Ok(match limit {
            None => filter,
            Some(count) => {
                let (table, alias) = (quoted(&target.table), quoted(&target.alias));
                let rows =
                    format!("SELECT rowid FROM dbo.{table} AS {alias}{filter} LIMIT {count}");
                format!(" WHERE rowid IN ({rows})")
            }
        })
    }

    /// `OUTPUT INSERTED.[a], INSERTED.*`.
    fn output(
        &mut self,
        columns: &[TableColumn],
        table: &str,
    ) -> Result<Vec<Expression>, SqlError> {
        let mut returning = Vec::new();
        if !self.eat("OUTPUT") {
            return Ok(returning);
        }
        loop {
            let qualifier = self.name()?;
            if !qualifier.eq_ignore_ascii_case(table) {
                return Err(SqlError::unsupported(&format!("OUTPUT {qualifier}")));
            }
            self.expect_symbol(".")?;
            let of = |column: &TableColumn, name: &str| Expression {
                name: name.into(),
                nullable: column.nullable,
                is_column: true,
                ..Expression::new(quoted(&column.name), column.ty)
            };
            if self.eat_symbol("*") {
                returning.extend(columns.iter().map(|column| of(column, &column.name)));
            } else {
                let name = self.name()?;
                let column = find(columns, &name)?;
                let alias = if self.eat("AS") { self.name()? } else { name };
                returning.push(of(column, &alias));
            }
            if !self.eat_symbol(",") {
                return Ok(returning);
            }
        }
    }
}

const EXPLICIT_TIMESTAMP: &str = "Cannot insert an explicit value into a timestamp column. Use \
    INSERT with a column list to exclude the timestamp column, or insert a DEFAULT into the \
    timestamp column.";

struct Target {
    table: String,
    alias: String,
    columns: Vec<TableColumn>,
}

/// Rows of values joined with the table to be changed.
struct Joined {
    rows: String,
    condition: String,
    /// After the condition.
    end: usize,
}

impl Target {
    fn scope(&self) -> Scope<'static> {
        let columns = self.columns.iter().cloned().map(SourceColumn::from).collect();
        let table = Source::of_table(&self.table, columns);
        let schema = table.schema.filter(|_| same_name(&table.alias, &self.alias));
        let table = Source { alias: self.alias.clone(), schema, columns: table.columns };
        Scope { tables: vec![table], outer: None }
    }
}

fn write(
    command: Command,
    table: String,
    sql: String,
    returning: &[Expression],
    identity: Option<(String, String)>,
) -> Statement {
    let columns: Vec<Column> = returning.iter().map(result_column).collect();
    if returning.is_empty() {
        return Statement::Write(Write { command, table, sql, returning: columns, identity });
    }
    let items: Vec<_> = returning.iter().map(|item| item.sql.as_str()).collect();
    let sql = format!("{sql} RETURNING {}", items.join(", "));
    Statement::Write(Write { command, table, sql, returning: columns, identity })
}

fn identity_of(table: &str, columns: &[TableColumn]) -> Option<(String, String)> {
    let column = columns.iter().find(|column| column.identity)?;
    Some((table.into(), column.name.clone()))
}

fn find<'c>(columns: &'c [TableColumn], name: &str) -> Result<&'c TableColumn, SqlError> {
    let found = columns.iter().find(|column| same_name(&column.name, name));
    found.ok_or_else(|| invalid_column(name))
}

/// The value in the form its column stores.
fn assigned(value: &Expression, column: &TableColumn) -> Expression {
    if value.ty == Some(column.ty) || value.ty.is_none() {
        return value.clone();
    }
    let from = value.ty.map(|ty| ty.to_string()).unwrap_or_default();
    let (ty, name) = (column.ty, text(&column.name));
    let sql = format!("hw_assign({}, {}, '{ty}', {name})", value.sql, text(&from));
    let assigned = Expression::new(sql, ty);
    let page = column.collation.as_deref().and_then(CodePage::of).unwrap_or_default();
    if ty.is_coded() { assigned.in_page(page) } else { assigned }
}

fn check_count(columns: usize, values: usize) -> Result<(), SqlError> {
    let text = match values.cmp(&columns) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => "There are more columns in the INSERT statement than values.",
        std::cmp::Ordering::Greater => {
            "There are fewer columns in the INSERT statement than values."
        }
    };
    Err(SqlError::new(213, 16, text))
}
