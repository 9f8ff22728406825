//! Expressions and conditions.

use super::{
    coerce::{Expression, calculated, comparable, compared, unified},
    lexer::Token,
    parser::{Parser, invalid_column, quoted, text},
    query::{Scope, Source, SourceColumn},
};
use crate::{
    codepage::CodePage,
    types::{SqlError, Type},
};

const COMPARISONS: [&str; 7] = ["=", "<>", "!=", "<", "<=", ">", ">="];

impl Parser<'_> {
    /// An expression with a value.
    pub(crate) fn expression(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        self.either(scope)?.value()
    }

    /// A condition, as SQLite text.
    pub(crate) fn condition(&mut self, scope: &Scope<'_>) -> Result<String, SqlError> {
        self.either(scope)?.holds()
    }

    /// A condition or an expression.
    fn either(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        self.nested(|parser| {
            let mut left = parser.conjunction(scope)?;
            while parser.eat("OR") {
                let right = parser.conjunction(scope)?.holds()?;
                left = Expression::condition(format!("{} OR {right}", left.holds()?));
            }
            Ok(left)
        })
    }

    fn conjunction(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut left = self.negation(scope)?;
        while self.eat("AND") {
            let right = self.negation(scope)?.holds()?;
            left = Expression::condition(format!("{} AND {right}", left.holds()?));
        }
        Ok(left)
    }

    fn negation(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        if self.eat("NOT") {
            let inner = self.nested(|parser| parser.negation(scope))?.holds()?;
            return Ok(Expression::condition(format!("NOT ({inner})")));
        }
        self.comparison(scope)
    }

    fn comparison(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let left = self.sum(scope)?;
        if let Some(Token::Symbol(operator)) = self.peek()
            && COMPARISONS.contains(operator)
        {
            self.next();
            let right = self.sum(scope)?.value()?;
            return Ok(Expression::condition(compared(&left.value()?, operator, &right)?));
        }
        if self.eat("IS") {
            let not = if self.eat("NOT") { " NOT" } else { "" };
            self.expect("NULL")?;
            return Ok(Expression::condition(format!("{} IS{not} NULL", left.value()?.sql)));
        }
        let not = if self.eat("NOT") { " NOT" } else { "" };
        if self.eat("IN") {
            return self.membership(&left.value()?, not, scope);
        }
        if self.eat("LIKE") {
            return self.likeness(left.value()?, not, scope);
        }
        if self.eat("BETWEEN") {
            let left = left.value()?;
            let low = self.sum(scope)?.value()?;
            self.expect("AND")?;
            let high = self.sum(scope)?.value()?;
            let (above, below) = (compared(&left, ">=", &low)?, compared(&left, "<=", &high)?);
            return Ok(Expression::condition(format!("{not} ({above} AND {below})")));
        }
        if not.is_empty() { Ok(left) } else { Err(self.unexpected()) }
    }

    fn likeness(
        &mut self,
        left: Expression,
        not: &str,
        scope: &Scope<'_>,
    ) -> Result<Expression, SqlError> {
        let right = self.sum(scope)?.value()?;
        let escape =
            if self.eat("ESCAPE") { self.sum(scope)?.value()?.sql } else { "NULL".to_owned() };
        let as_text = |side: Expression| match side.ty {
            Some(ty) if !ty.is_text() => side.cast(Type::NVarChar(None)),
            _ => side,
        };
        let (left, right) = (as_text(left).sql, as_text(right).sql);
        Ok(Expression::condition(format!("{not} hw_like({left}, {right}, {escape})")))
    }

    fn membership(
        &mut self,
        left: &Expression,
        not: &str,
        scope: &Scope<'_>,
    ) -> Result<Expression, SqlError> {
        self.expect_symbol("(")?;
        if self.is_word("SELECT") {
            let query = self.subquery(Some(scope))?;
            self.expect_symbol(")")?;
            let [item] = query.items.as_slice() else {
                return Err(only_one_item());
            };
            let (as_left, as_item) = comparable(left, item)?;
            if as_left != *left || as_item != *item {
                return Err(SqlError::unsupported("IN over values of another type"));
            }
            let sql = format!("{}{not} IN ({})", left.ordered(), query.sql());
            return Ok(Expression::condition(sql));
        }
        let (mut members, mut equal, mut alike) = (Vec::new(), Vec::new(), true);
        loop {
            let member = self.expression(scope)?;
            equal.push(compared(left, "=", &member)?);
            let (as_left, as_member) = comparable(left, &member)?;
            alike &= as_left == *left && as_member.collation.is_none();
            members.push(as_member.ordered());
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        // Each member may need a different form of the left side.
        Ok(Expression::condition(if alike {
            format!("{}{not} IN ({})", left.ordered(), members.join(", "))
        } else {
            format!("{not} ({})", equal.join(" OR "))
        }))
    }

    /// An expression without comparisons.
    pub(crate) fn sum(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut left = self.product(scope)?;
        while let Some(Token::Symbol(operator @ ("+" | "-" | "&" | "|"))) = self.peek() {
            self.next();
            let right = self.product(scope)?;
            left = added(left, operator, right)?;
        }
        Ok(left)
    }

    fn product(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut left = self.unary(scope)?;
        while let Some(Token::Symbol(operator @ ("*" | "/" | "%"))) = self.peek() {
            self.next();
            let right = self.unary(scope)?;
            left = calculated(&left, operator, &right)?;
        }
        Ok(left)
    }

    fn unary(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let Some(Token::Symbol(sign @ ("-" | "+" | "~"))) = self.peek() else {
            return self.primary(scope);
        };
        self.next();
        if let ("-", Some(Token::Number(number))) = (*sign, self.peek()) {
            self.next();
            return number_constant(&format!("-{number}"));
        }
        let inner = self.nested(|parser| parser.unary(scope))?.value()?;
        match *sign {
            "-" => calculated(&Expression::certain("0", Type::TinyInt), "-", &inner),
            "~" if inner.is_whole() && !matches!(inner.ty, Some(Type::Bit | Type::TinyInt)) => {
                let sql = format!("~ {}", inner.sql);
                Ok(Expression { sql, name: String::new(), is_column: false, ..inner })
            }
            "+" => Ok(Expression { name: String::new(), is_column: false, ..inner }),
            _ => Err(SqlError::unsupported("~ of anything but an integer")),
        }
    }

    pub(super) fn primary(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        if self.eat_symbol("(") {
            let inner = if self.is_word("SELECT") {
                self.scalar_query(scope)?
            } else {
                self.either(scope)?
            };
            self.expect_symbol(")")?;
            // A column in parentheses is the column.
            let is_column = !inner.name.is_empty();
            let sql = if is_column { inner.sql.clone() } else { format!("({})", inner.sql) };
            return Ok(Expression { sql, ..inner });
        }
        match self.peek() {
            Some(Token::Variable(name)) => {
                self.next();
                self.variable(name)
            }
            Some(Token::Number(number)) => {
                self.next();
                number_constant(number)
            }
            Some(Token::Text(string)) => {
                self.next();
                let units = u16::try_from(string.encode_utf16().count()).ok();
                let ty = Type::NVarChar(units.filter(|n| *n <= 4000).map(|n| n.max(1)));
                Ok(Expression::certain(text(string), ty))
            }
            Some(Token::Coded(string)) => {
                self.next();
                let string = CodePage::default().convert(string);
                let units = u16::try_from(string.chars().count()).ok();
                let ty = Type::VarChar(units.filter(|n| *n <= 8000).map(|n| n.max(1)));
                Ok(Expression::certain(text(&string), ty))
            }
            Some(Token::Binary(digits)) => {
                self.next();
                let padding = if digits.len() % 2 == 1 { "0" } else { "" };
                let length = u16::try_from(digits.len().div_ceil(2)).ok().map(|n| n.max(1));
                Ok(Expression::certain(format!("x'{padding}{digits}'"), Type::VarBinary(length)))
            }
            Some(Token::Word(word)) => self.word(word, scope),
            Some(Token::Name(_)) => self.column(scope),
            Some(Token::Symbol(_)) | None => Err(self.unexpected()),
        }
    }

    fn scalar_query(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut query = self.subquery(Some(scope))?;
        let [item] = query.items.as_mut_slice() else {
            return Err(only_one_item());
        };
        let (ty, collation) = (item.ty, item.collation);
        "value".clone_into(&mut item.name);
        // SQLite would take the first of several rows.
        let sql = if query.has_one_row {
            query.sql()
        } else {
            format!(
                "SELECT CASE WHEN count(*) > 1 THEN hw_fail(512) ELSE max(q.\"value\") END \
                 FROM ({}) AS q",
                query.sql()
            )
        };
        Ok(Expression { collation, ..Expression::new(sql, ty) })
    }

    fn word(&mut self, word: &str, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let is_call = matches!(self.peek_at(1), Some(Token::Symbol("(")));
        match word.to_ascii_uppercase().as_str() {
            "NULL" => {
                self.next();
                Ok(Expression::new("NULL", None))
            }
            "CASE" => self.case(scope),
            "EXISTS" if is_call => {
                self.next();
                self.next();
                let query = self.subquery(Some(scope))?;
                self.expect_symbol(")")?;
                Ok(Expression::condition(format!("EXISTS ({})", query.sql())))
            }
            "CURRENT_TIMESTAMP" => {
                self.next();
                let now = Expression::certain("hw_local_now()", Type::DateTime2(7));
                Ok(now.cast(Type::DateTime))
            }
            "SELECT" | "FROM" | "WHERE" | "AND" | "OR" | "ORDER" | "GROUP" => {
                Err(self.unexpected())
            }
            _ if is_call => self.function(scope),
            _ => self.column(scope),
        }
    }

    fn case(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        self.expect("CASE")?;
        let subject = if self.is_word("WHEN") { None } else { Some(self.expression(scope)?) };
        let (mut conditions, mut results) = (Vec::new(), Vec::new());
        while self.eat("WHEN") {
            conditions.push(match &subject {
                Some(subject) => compared(subject, "=", &self.expression(scope)?)?,
                None => self.condition(scope)?,
            });
            self.expect("THEN")?;
            results.push(self.expression(scope)?);
        }
        if conditions.is_empty() {
            return Err(self.unexpected());
        }
        if self.eat("ELSE") {
            results.push(self.expression(scope)?);
        }
        self.expect("END")?;
        let (ty, collation) = unified(&mut results)?;
        let mut sql = "CASE".to_owned();
        let mut results = results.iter();
        for (condition, result) in conditions.iter().zip(results.by_ref()) {
            sql.extend([" WHEN ", condition, " THEN ", &result.sql]);
        }
        if let Some(otherwise) = results.next() {
            sql.extend([" ELSE ", &otherwise.sql]);
        }
        Ok(Expression { collation, ..Expression::new(format!("{sql} END"), ty) })
    }

    fn column(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut parts = vec![self.name()?];
        while self.is_symbol(".") {
            self.next();
            parts.push(self.name()?);
        }
        let Some((name, qualifiers)) = parts.split_last() else {
            return Err(self.unexpected());
        };
        let (column, level) = scope.resolve(qualifiers, name)?;
        self.uses.push((level, column.sql.clone()));
        Ok(column)
    }

    fn variable(&mut self, name: &str) -> Result<Expression, SqlError> {
        let constant = |name: &str| Expression::certain(text(name), Type::NVarChar(Some(300)));
        match name {
            "@@dbts" => Ok(Expression::certain("hw_dbts()", Type::Binary(8))),
            "@@version" => Ok(constant(super::VERSION)),
            "@@servername" => Ok(constant(super::SERVER_NAME)),
            "@@rowcount" => Ok(Expression::certain("hw_rowcount()", Type::Int)),
            "@@trancount" => Ok(Expression::certain("hw_trancount()", Type::Int)),
            "@@identity" => Ok(Expression::new("hw_identity()", Type::Decimal(15, 0))),
            "@@lock_timeout" => Ok(Expression::certain("hw_lock_timeout()", Type::Int)),
            "@@spid" => Ok(Expression::certain("51", Type::SmallInt)),
            "@@error" => Ok(Expression::certain("0", Type::Int)),
            name if name.starts_with("@@") => {
                Err(SqlError::unsupported(&format!("Global variable '{name}'")))
            }
            name => {
                let text = format!("Must declare the scalar variable \"{name}\".");
                let ty = self.schema.variable(name).ok_or_else(|| SqlError::new(137, 15, text))?;
                Ok(Expression::new(name, ty))
            }
        }
    }
}

impl Source {
    /// A column as an expression.
    pub(crate) fn column(&self, column: &SourceColumn) -> Expression {
        Expression {
            name: column.name.clone(),
            nullable: column.nullable,
            collation: column.collation,
            is_column: true,
            ..Expression::new(
                format!("{}.{}", quoted(&self.alias), quoted(&column.name)),
                column.ty,
            )
        }
    }

    /// Whether these qualifiers can precede the column: the alias, or the table with its schema.
    fn is_named(&self, qualifiers: &[String]) -> bool {
        match qualifiers {
            [] => true,
            [alias] => same_name(alias, &self.alias),
            [schema, table] => {
                same_name(table, &self.alias)
                    && self.schema.as_ref().is_some_and(|own| same_name(own, schema))
            }
            _ => false,
        }
    }
}

impl Scope<'_> {
    /// The number of queries around this one.
    pub(crate) fn level(&self) -> usize {
        self.outer.map_or(0, |outer| outer.level() + 1)
    }

    /// Finds a column by its qualified or bare name, and the level of its query.
    fn resolve(&self, qualifiers: &[String], name: &str) -> Result<(Expression, usize), SqlError> {
        let tables: Vec<_> = self.tables.iter().filter(|t| t.is_named(qualifiers)).collect();
        let found: Vec<_> = tables
            .iter()
            .flat_map(|table| table.columns.iter().map(move |column| (*table, column)))
            .filter(|(_, column)| same_name(&column.name, name))
            .collect();
        match found.as_slice() {
            [(table, column)] => {
                let column = Expression { name: name.into(), ..table.column(column) };
                return Ok((column, self.level()));
            }
            [] => {}
            _ => {
                return Err(SqlError::new(209, 16, format!("Ambiguous column name '{name}'.")));
            }
        }
        if !qualifiers.is_empty() && !tables.is_empty() {
            return Err(invalid_column(name));
        }
        if let Some(outer) = self.outer {
            return outer.resolve(qualifiers, name);
        }
        if qualifiers.is_empty() {
            return Err(invalid_column(name));
        }
        let shown = format!("{}.{name}", qualifiers.join("."));
        let text = format!("The multi-part identifier \"{shown}\" could not be bound.");
        Err(SqlError::new(4104, 16, text))
    }
}

/// Whether two names are equal under the server's collation.
pub(crate) fn same_name(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || a.to_lowercase() == b.to_lowercase()
}

fn only_one_item() -> SqlError {
    let text = "Only one expression can be specified in the select list when the subquery is not \
                introduced with EXISTS.";
    SqlError::new(116, 16, text)
}

/// `left + right` of texts, and the operators of numbers.
pub(crate) fn added(
    left: Expression,
    operator: &str,
    right: Expression,
) -> Result<Expression, SqlError> {
    let is_text = |side: &Expression| side.ty.is_some_and(Type::is_text);
    if operator != "+" || !is_text(&left) || !is_text(&right) {
        return calculated(&left, operator, &right);
    }
    let is_coded = |side: &Expression| side.ty.is_some_and(Type::is_coded);
    let coded = is_coded(&left) && is_coded(&right);
    let ty = if coded { Type::VarChar(None) } else { Type::NVarChar(None) };
    let sql = format!("({} || {})", left.sql, right.sql);
    let (_, collation) = unified(&mut [left, right])?;
    Ok(Expression { collation, ..Expression::new(sql, ty) })
}

fn number_constant(number: &str) -> Result<Expression, SqlError> {
    if number.contains(['e', 'E']) {
        return Ok(Expression::certain(number, Type::Float));
    }
    if let Some((whole, fraction)) = number.split_once('.') {
        let scale = u8::try_from(fraction.len()).map_err(|_error| SqlError::syntax(number))?;
        let whole = u8::try_from(whole.trim_start_matches(['-', '0']).len());
        let whole = whole.map_err(|_error| SqlError::syntax(number))?;
        let precision = whole.saturating_add(scale).clamp(1, 38);
        return Ok(decimal_constant(number, Type::Decimal(precision, scale)));
    }
    Ok(match number.parse::<i64>() {
        Ok(n) if i32::try_from(n).is_ok() => Expression::certain(number, Type::Int),
        Ok(_) => Expression::certain(number, Type::BigInt),
        Err(_) => decimal_constant(number, Type::Decimal(38, 0)),
    })
}

fn decimal_constant(number: &str, ty: Type) -> Expression {
    if ty.decimal().is_some_and(|(precision, _)| precision <= 15) {
        return Expression::certain(number, ty);
    }
    Expression::certain(text(number), Type::VarChar(Some(40))).cast(ty)
}
