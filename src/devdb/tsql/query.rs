//! SELECT: items, sources, filters, grouping, order and TOP.

use super::{
    coerce::Expression,
    describe::DESCRIBE,
    expression::same_name,
    lexer::Token,
    parser::{Parser, TableColumn, quoted},
};
use crate::devdb::types::{Column, SqlError, Type};

/// Words that cannot be an alias, since they begin what comes next.
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
    pub(crate) name: String,
    pub(crate) columns: Vec<SourceColumn>,
}

/// A column of a [`Source`].
#[derive(Clone, Debug)]
pub(crate) struct SourceColumn {
    pub(crate) name: String,
    pub(crate) ty: Option<Type>,
    pub(crate) nullable: bool,
}

impl From<TableColumn> for SourceColumn {
    fn from(column: TableColumn) -> Self {
        Self { name: column.name, ty: Some(column.ty), nullable: column.nullable }
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
    /// Variables that the items are assigned to, instead of being answered.
    pub(crate) targets: Vec<String>,
    distinct: &'static str,
    /// FROM, WHERE, GROUP BY and HAVING.
    body: String,
    unions: String,
    order: String,
    limit: String,
}

impl Query {
    /// SQLite text.
    pub(crate) fn sql(&self) -> String {
        let items: Vec<_> = self.items.iter().map(named).collect();
        format!(
            "SELECT {}{}{}{}{}{}",
            self.distinct,
            items.join(", "),
            self.body,
            self.unions,
            self.order,
            self.limit
        )
    }

    /// Checks what a query must be to stand where a table does.
    fn check_derived(&self) -> Result<(), SqlError> {
        if !self.order.is_empty() && self.limit.is_empty() {
            let text = "The ORDER BY clause is invalid in a derived table without TOP or OFFSET.";
            return Err(SqlError::new(1033, 15, text));
        }
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

/// The column of a result that an expression makes.
pub(crate) fn result_column(item: &Expression) -> Column {
    Column {
        name: item.name.clone(),
        ty: item.ty.unwrap_or(Type::Int),
        nullable: item.nullable || item.ty.is_none(),
    }
}

impl Parser<'_> {
    /// A query; the next token is SELECT.
    pub(crate) fn query(&mut self, outer: Option<&Scope<'_>>) -> Result<Query, SqlError> {
        self.expect("SELECT")?;
        let distinct = if self.eat("DISTINCT") { "DISTINCT " } else { "" };
        self.eat("ALL");
        let mut limit = self.top(outer)?;
        // The items come first in the text and need the sources that come later.
        let items_start = self.position();
        let mut scope = Scope { tables: Vec::new(), outer };
        let mut body = String::new();
        let items_end = self.skip_to_from();
        if items_end.is_some() {
            body.push_str(" FROM ");
            self.sources(&mut scope, &mut body)?;
        }
        let after_sources = self.position();
        self.rewind(items_start);
        let (items, targets) = self.items(&scope)?;
        if let Some(end) = items_end {
            // What the items leave over is none that is understood.
            if self.position() != end {
                return Err(self.unexpected());
            }
            self.rewind(after_sources);
        }
        self.filters(&scope, &mut body)?;
        let unions = self.unions(outer)?;
        let order = self.order(&scope, &items)?;
        if self.eat("OFFSET") {
            limit = self.offset(&scope)?;
        }
        self.hints()?;
        Ok(Query { items, targets, distinct, body, unions, order, limit })
    }

    /// Moves behind the FROM of this query and tells where it stands; [`None`] where it has none.
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

    fn items(&mut self, scope: &Scope<'_>) -> Result<(Vec<Expression>, Vec<String>), SqlError> {
        let (mut items, mut targets) = (Vec::new(), Vec::new());
        loop {
            if let Some(Token::Variable(name)) = self.peek()
                && self.peek_at(1) == Some(&Token::Symbol("="))
            {
                self.next();
                self.next();
                targets.push(name.clone());
                items.push(self.expression(scope)?);
            } else if !self.star(scope, &mut items)? {
                let mut item = self.expression(scope)?;
                if let Some(alias) = self.alias(true)? {
                    item.name = alias;
                }
                items.push(item);
            }
            if !self.eat_symbol(",") {
                break;
            }
        }
        let mixed = !targets.is_empty() && targets.len() != items.len();
        if mixed { Err(self.unexpected()) } else { Ok((items, targets)) }
    }

    /// Takes `*` or `alias.*`.
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
            let matches =
                |alias: &String| same_name(alias, &table.alias) || same_name(alias, &table.name);
            if !of.as_ref().is_none_or(matches) {
                continue;
            }
            items.extend(table.columns.iter().map(|column| Expression {
                sql: format!("{}.{}", quoted(&table.alias), quoted(&column.name)),
                ty: column.ty,
                name: column.name.clone(),
                nullable: column.nullable,
            }));
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
            Some(Token::Text(name)) if allow_text => {
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
                let condition = self.expression(scope)?;
                body.extend([" ON ", &condition.sql]);
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
            let query = self.nested(|parser| parser.query(None))?;
            self.expect_symbol(")")?;
            query.check_derived()?;
            body.extend(["(", &query.sql(), ")"]);
            let columns = query.items.iter().map(|item| SourceColumn {
                name: item.name.clone(),
                ty: item.ty,
                nullable: item.nullable,
            });
            Source { alias: String::new(), name: String::new(), columns: columns.collect() }
        } else if self.is_word("CHANGETABLE") {
            self.change_table(body)?
        } else {
            self.named_source(body)?
        };
        if let Some(alias) = self.alias(false)? {
            source.alias = alias;
        }
        self.table_hints()?;
        if source.alias.is_empty() {
            return Err(self.unexpected());
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
        let name = table.rsplit('.').next().unwrap_or(&table).to_owned();
        Ok(Source { alias: name.clone(), name, columns })
    }

    fn filters(&mut self, scope: &Scope<'_>, body: &mut String) -> Result<(), SqlError> {
        if self.eat("WHERE") {
            body.extend([" WHERE ", &self.expression(scope)?.sql]);
        }
        if self.eat("GROUP") {
            self.expect("BY")?;
            let mut groups = Vec::new();
            loop {
                groups.push(self.expression(scope)?.sql);
                if !self.eat_symbol(",") {
                    break;
                }
            }
            body.extend([" GROUP BY ", &groups.join(", ")]);
        }
        if self.eat("HAVING") {
            body.extend([" HAVING ", &self.expression(scope)?.sql]);
        }
        Ok(())
    }

    fn unions(&mut self, outer: Option<&Scope<'_>>) -> Result<String, SqlError> {
        if !self.eat("UNION") {
            return Ok(String::new());
        }
        let all = if self.eat("ALL") { " ALL" } else { "" };
        let query = self.nested(|parser| parser.query(outer))?;
        Ok(format!(" UNION{all} {}", query.sql()))
    }

    fn order(&mut self, scope: &Scope<'_>, items: &[Expression]) -> Result<String, SqlError> {
        if !self.eat("ORDER") {
            return Ok(String::new());
        }
        self.expect("BY")?;
        let mut terms = Vec::new();
        loop {
            let alias = match (self.peek(), self.peek_at(1)) {
                (_, Some(Token::Symbol("." | "("))) => None,
                (Some(Token::Name(name) | Token::Word(name)), _) => {
                    items.iter().find(|item| same_name(&item.name, name))
                }
                _ => None,
            };
            let term = if let Some(item) = alias {
                self.next();
                item.ordered()
            } else {
                self.expression(scope)?.ordered()
            };
            if terms.iter().any(|(known, _)| *known == term) {
                let text = "A column has been specified more than once in the order by list. \
                            Columns in the order by list must be unique.";
                return Err(SqlError::new(169, 15, text));
            }
            let direction = if self.eat("DESC") { " DESC" } else { "" };
            self.eat("ASC");
            terms.push((term, direction));
            if !self.eat_symbol(",") {
                break;
            }
        }
        let terms: Vec<_> =
            terms.iter().map(|(term, direction)| format!("{term}{direction}")).collect();
        Ok(format!(" ORDER BY {}", terms.join(", ")))
    }
}

fn named(item: &Expression) -> String {
    if item.name.is_empty() {
        item.sql.clone()
    } else {
        format!("{} AS {}", item.sql, quoted(&item.name))
    }
}
