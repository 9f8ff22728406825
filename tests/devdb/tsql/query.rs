//! SELECT: items, sources and filters.

use super::{
    coerce::{Collation, Expression},
    describe::DESCRIBE,
    expression::same_name,
    grouping::{Grouping, Uses},
    lexer::Token,
    limit::Limit,
    parser::{Parser, TableColumn, quoted},
};
use crate::types::{Column, SqlError, Type};

/// Words that cannot be an alias, since they start the next clause.
const RESERVED: [&str; 47] = [
    "WHERE",
    "ORDER",
    "GROUP",
    "HAVING",
    "JOIN",
    "INNER",
    "LEFT",
    "RIGHT",
    "FULL",
    "CROSS",
    "ON",
    "UNION",
    "WITH",
    "OPTION",
    "FOR",
    "SET",
    "OFFSET",
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "DECLARE",
    "IF",
    "ELSE",
    "END",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "CREATE",
    "DROP",
    "OUTPUT",
    "VALUES",
    "FROM",
    "AS",
    "FETCH",
    "ALTER",
    "COLLATE",
    "EXCEPT",
    "GO",
    "INTERSECT",
    "INTO",
    "OUTER",
    "OVER",
    "PIVOT",
    "TABLESAMPLE",
    "UNPIVOT",
    "WINDOW",
];

/// A table or a derived table in scope.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) alias: String,
    /// The schema of a table without an alias, which can qualify its columns.
    pub(crate) schema: Option<String>,
    pub(crate) columns: Vec<SourceColumn>,
}

/// A column of a [`Source`].
#[derive(Clone, Debug)]
pub(crate) struct SourceColumn {
    pub(crate) name: String,
    pub(crate) ty: Option<Type>,
    pub(crate) nullable: bool,
    pub(crate) collation: Option<Collation>,
}

impl From<TableColumn> for SourceColumn {
    fn from(column: TableColumn) -> Self {
        let collation = Collation::of(column.ty, column.collation.as_deref());
        Self { name: column.name, ty: Some(column.ty), nullable: column.nullable, collation }
    }
}

/// The names an expression can use.
#[derive(Debug, Default)]
pub(crate) struct Scope<'s> {
    pub(crate) tables: Vec<Source>,
    /// Scope of the query around this one.
    pub(crate) outer: Option<&'s Self>,
}

/// A translated query.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) items: Vec<Expression>,
    /// Variables that the items are assigned to, instead of being returned.
    pub(crate) targets: Vec<String>,
    /// Whether it returns at most one row.
    pub(crate) has_one_row: bool,
    pub(super) distinct: bool,
    /// FROM, WHERE, GROUP BY and HAVING.
    body: String,
    /// The queries after UNION, each with its keyword.
    pub(super) unions: Vec<(&'static str, Self)>,
    pub(super) order: String,
    pub(super) limit: Limit,
}

impl Query {
    /// SQLite text.
    pub(crate) fn sql(&self) -> String {
        // Equality of rows depends on the collation of the items.
        let apart = self.distinct || !self.unions.is_empty();
        let items: Vec<_> = self.items.iter().map(|item| named(item, apart)).collect();
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        let mut sql = format!("SELECT {distinct}{}{}", items.join(", "), self.body);
        for (keyword, query) in &self.unions {
            sql.extend([" ", keyword, " ", &query.sql()]);
        }
        sql + &self.order + &self.limit.sql()
    }

    /// Checks the requirements for a query in place of a table.
    pub(super) fn check_derived(&self) -> Result<(), SqlError> {
        for (index, item) in self.items.iter().enumerate() {
            if item.name.is_empty() {
                let text = format!("No column name was specified for column {}.", index + 1);
                return Err(SqlError::new(8155, 16, text));
            }
            let before = self.items.get(..index).unwrap_or_default();
            if before.iter().any(|other| same_name(&other.name, &item.name)) {
                let text = format!("The column '{}' was specified multiple times.", item.name);
                return Err(SqlError::new(8156, 16, text));
            }
        }
        Ok(())
    }

    /// Columns of the result.
    pub(crate) fn columns(&self) -> Vec<Column> {
        self.items.iter().map(result_column).collect()
    }
}

/// The result column of an expression.
pub(crate) fn result_column(item: &Expression) -> Column {
    Column {
        name: item.name.clone(),
        ty: item.ty.unwrap_or(Type::Int),
        nullable: item.nullable || item.ty.is_none(),
        computed: !item.is_column,
    }
}

impl Parser<'_> {
    /// A query that is a statement, or the rest of one; the next token is SELECT.
    pub(crate) fn query(&mut self) -> Result<Query, SqlError> {
        let query = self.query_alone(None)?;
        self.hints()?;
        Ok(query)
    }

    /// A query within another one or within a definition, without its own order or hints.
    pub(crate) fn subquery(&mut self, outer: Option<&Scope<'_>>) -> Result<Query, SqlError> {
        let query = self.nested(|parser| parser.query_alone(outer))?;
        if !query.order.is_empty() && query.limit == Limit::default() {
            let text = "The ORDER BY clause is invalid in views, derived tables and subqueries, unless \
                        TOP or OFFSET is also specified.";
            return Err(SqlError::new(1033, 15, text));
        }
        Ok(query)
    }

    /// SELECT up to the end of ORDER BY.
    fn query_alone(&mut self, outer: Option<&Scope<'_>>) -> Result<Query, SqlError> {
        let (first_use, aggregates) = (self.uses.len(), std::mem::take(&mut self.aggregates));
        let mut scope = Scope { tables: Vec::new(), outer };
        let (mut query, mut uses) = self.part(&mut scope)?;
        self.unions(&mut query, outer)?;
        self.order(&scope, &mut query, &mut uses)?;
        self.offset(&scope, !query.order.is_empty(), &mut query.limit)?;
        uses.check()?;
        query.has_one_row = query.unions.is_empty()
            && (uses.is_one_group() || query.limit.is_one() || !query.body.starts_with(" FROM "));
        // An outer query only uses its own columns.
        let mut uses = self.uses.split_off(first_use);
        uses.retain(|(level, _)| *level < scope.level());
        self.uses.append(&mut uses);
        self.aggregates = aggregates;
        Ok(query)
    }

    /// SELECT up to HAVING.
    pub(super) fn part(&mut self, scope: &mut Scope<'_>) -> Result<(Query, Grouping), SqlError> {
        self.expect("SELECT")?;
        let distinct = self.eat("DISTINCT");
        self.eat("ALL");
        let limit = Limit { top: self.top(scope.outer)?, ..Limit::default() };
        // The items come first in the text and need the sources that come later.
        let items_start = self.position();
        let mut body = String::new();
        let items_end = self.skip_to_from();
        if items_end.is_some() {
            body.push_str(" FROM ");
            self.sources(scope, &mut body)?;
        }
        let after_sources = self.position();
        self.rewind(items_start);
        let mut grouping = Grouping::default();
        let (items, targets) = self.items(scope, &mut grouping)?;
        if let Some(end) = items_end {
            // Tokens left after the items are not supported.
            if self.position() != end {
                return Err(self.unexpected());
            }
            self.rewind(after_sources);
        }
        self.filters(scope, &mut body, &mut grouping)?;
        let query = Query {
            items,
            targets,
            has_one_row: false,
            distinct,
            body,
            unions: Vec::new(),
            order: String::new(),
            limit,
        };
        Ok((query, grouping))
    }

    /// Moves after the FROM of this query and returns its position; [`None`] if it has none.
    pub(crate) fn skip_to_from(&mut self) -> Option<usize> {
        let mut depth = 0_usize;
        while let Some(token) = self.peek() {
            match token {
                Token::Symbol("(") => depth += 1,
                Token::Symbol(")") if depth == 0 => return None,
                Token::Symbol(")") => depth -= 1,
                Token::Symbol(";") => return None,
                Token::Word(_) if depth == 0 && self.is_word("FROM") => {
                    let at = self.position();
                    self.next();
                    return Some(at);
                }
                Token::Word(_) if depth == 0 && self.begins_next_statement() => return None,
                Token::Word(_)
                | Token::Name(_)
                | Token::Variable(_)
                | Token::Number(_)
                | Token::Text(_)
                | Token::Coded(_)
                | Token::Binary(_)
                | Token::Symbol(_) => {}
            }
            self.next();
        }
        None
    }

    fn begins_next_statement(&self) -> bool {
        let words = ["SELECT", "INSERT", "UPDATE", "DELETE", "DECLARE", "SET", "UNION", "IF"];
        words.iter().any(|word| self.is_word(word))
    }

    fn items(
        &mut self,
        scope: &Scope<'_>,
        grouping: &mut Grouping,
    ) -> Result<(Vec<Expression>, Vec<String>), SqlError> {
        let (mut items, mut targets) = (Vec::new(), Vec::new());
        loop {
            let (uses, before) = (self.uses.len(), items.len());
            if let Some(Token::Variable(name)) = self.peek()
                && self.peek_at(1) == Some(&Token::Symbol("="))
            {
                self.next();
                self.next();
                targets.push(name.clone());
                items.push(self.expression(scope)?);
            } else if !self.star(scope, &mut items)? {
                items.push(self.item(scope)?);
            }
            for item in items.get(before..).unwrap_or_default() {
                grouping.items.push(Uses::since(self, uses, scope, item));
            }
            if !self.eat_symbol(",") {
                break;
            }
        }
        let mixed = !targets.is_empty() && targets.len() != items.len();
        if mixed { Err(self.unexpected()) } else { Ok((items, targets)) }
    }

    /// `expression [[AS] alias]` or `alias = expression`.
    fn item(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        if self.peek_at(1) == Some(&Token::Symbol("="))
            && let Some(Token::Word(alias) | Token::Name(alias) | Token::Coded(alias)) = self.peek()
        {
            self.next();
            self.next();
            return Ok(Expression { name: alias.clone(), ..self.expression(scope)? });
        }
        let mut item = self.expression(scope)?;
        if let Some(alias) = self.alias(true)? {
            item.name = alias;
        }
        Ok(item)
    }

    /// Parses `*` or `alias.*`.
    fn star(&mut self, scope: &Scope<'_>, items: &mut Vec<Expression>) -> Result<bool, SqlError> {
        let mut of = None;
        if !self.eat_symbol("*") {
            let qualified = self.peek_at(1) == Some(&Token::Symbol("."))
                && self.peek_at(2) == Some(&Token::Symbol("*"));
            if !qualified {
                return Ok(false);
            }
            of = Some(self.name()?);
            self.next();
            self.next();
        }
        let before = items.len();
        for table in &scope.tables {
            if !of.as_ref().is_none_or(|alias| same_name(alias, &table.alias)) {
                continue;
            }
            let columns = table.columns.iter().map(|column| table.column(column));
            items.extend(columns.inspect(|c| self.uses.push((scope.level(), c.sql.clone()))));
        }
        if items.len() > before {
            return Ok(true);
        }
        let prefix = of.unwrap_or_default();
        let text = format!("The column prefix '{prefix}' does not match with a table name.");
        Err(SqlError::new(107, 15, text))
    }

    fn alias(&mut self, allow_text: bool) -> Result<Option<String>, SqlError> {
        let explicit = self.eat("AS");
        match self.peek() {
            Some(Token::Name(name)) => {
                self.next();
                Ok(Some(name.clone()))
            }
            Some(Token::Text(name) | Token::Coded(name)) if allow_text => {
                self.next();
                Ok(Some(name.clone()))
            }
            Some(Token::Word(name))
                if explicit || !RESERVED.iter().any(|word| word.eq_ignore_ascii_case(name)) =>
            {
                self.next();
                Ok(Some(name.clone()))
            }
            _ if explicit => Err(self.unexpected()),
            _ => Ok(None),
        }
    }

    fn sources(&mut self, scope: &mut Scope<'_>, body: &mut String) -> Result<(), SqlError> {
        self.source(scope, body, false)?;
        loop {
            let (keyword, conditional, optional) = if self.eat_symbol(",") {
                (" CROSS JOIN ", false, false)
            } else if self.eat("CROSS") {
                self.expect("JOIN")?;
                (" CROSS JOIN ", false, false)
            } else if self.eat("LEFT") {
                self.eat("OUTER");
                self.expect("JOIN")?;
                (" LEFT JOIN ", true, true)
            } else if self.is_word("INNER") || self.is_word("JOIN") {
                self.eat("INNER");
                self.expect("JOIN")?;
                (" JOIN ", true, false)
            } else {
                return Ok(());
            };
            body.push_str(keyword);
            self.source(scope, body, optional)?;
            if conditional {
                self.expect("ON")?;
                body.extend([" ON ", &self.condition(scope)?]);
            }
        }
    }

    fn source(
        &mut self,
        scope: &mut Scope<'_>,
        body: &mut String,
        optional: bool,
    ) -> Result<(), SqlError> {
        let mut source = if self.is_symbol("(") && self.is_word_at(1, "VALUES") {
            self.value_source(body)?
        } else if self.eat_symbol("(") {
            let query = self.subquery(None)?;
            self.expect_symbol(")")?;
            query.check_derived()?;
            body.extend(["(", &query.sql(), ")"]);
            let columns = query.items.iter().map(|item| SourceColumn {
                name: item.name.clone(),
                ty: item.ty,
                nullable: item.nullable,
                collation: item.collation,
            });
            Source { alias: String::new(), schema: None, columns: columns.collect() }
        } else if self.is_word("CHANGETABLE") {
            self.change_table(body)?
        } else {
            self.named_source(body)?
        };
        if let Some(alias) = self.alias(false)? {
            (source.alias, source.schema) = (alias, None);
        }
        self.table_hints()?;
        if source.alias.is_empty() {
            return Err(self.unexpected());
        }
        if scope.tables.iter().any(|other| same_name(&other.alias, &source.alias)) {
            let text = format!("Two sources in the FROM clause are named \"{}\".", source.alias);
            return Err(SqlError::new(1013, 16, text));
        }
        for column in &mut source.columns {
            column.nullable |= optional;
        }
        body.extend([" AS ", &quoted(&source.alias)]);
        scope.tables.push(source);
        Ok(())
    }

    fn named_source(&mut self, body: &mut String) -> Result<Source, SqlError> {
        let table = self.table_name()?;
        if table.eq_ignore_ascii_case(DESCRIBE) {
            return self.described(body);
        }
        let columns = self.table_columns(&table)?;
        body.extend(["dbo.", &quoted(&table)]);
        let columns = columns.into_iter().map(SourceColumn::from).collect();
        Ok(Source::of_table(&table, columns))
    }

    fn filters(
        &mut self,
        scope: &Scope<'_>,
        body: &mut String,
        grouping: &mut Grouping,
    ) -> Result<(), SqlError> {
        let in_items = self.aggregates;
        if self.eat("WHERE") {
            body.extend([" WHERE ", &self.condition(scope)?]);
            if self.aggregates > in_items {
                let text = "An aggregate may not appear in the WHERE clause.";
                return Err(SqlError::new(147, 15, text));
            }
        }
        self.groups(scope, body, grouping)
    }
}

impl Source {
    /// A table by its physical name.
    pub(crate) fn of_table(table: &str, columns: Vec<SourceColumn>) -> Self {
        let (schema, alias) = table.rsplit_once('.').unwrap_or(("dbo", table));
        Self { alias: alias.to_owned(), schema: Some(schema.to_owned()), columns }
    }
}

fn named(item: &Expression, apart: bool) -> String {
    let sql =
        if apart && item.ty.is_some_and(Type::is_text) { item.ordered() } else { item.sql.clone() };
    if item.name.is_empty() { sql } else { format!("{sql} AS {}", quoted(&item.name)) }
}
