//! Expressions and conditions.

use super::{
    coerce::{Expression, arithmetic_type, comparable},
    lexer::Token,
    parser::{Parser, invalid_column, quoted, text},
    query::Scope,
};
use crate::devdb::types::{SqlError, Type};

const COMPARISONS: [&str; 7] = ["=", "<>", "!=", "<", "<=", ">", ">="];

impl Parser<'_> {
    /// A condition or an expression.
    pub(crate) fn expression(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        self.nested(|parser| {
            let mut left = parser.conjunction(scope)?;
            while parser.eat("OR") {
                let right = parser.conjunction(scope)?;
                left = Expression::new(format!("{} OR {}", left.sql, right.sql), Type::Bit);
            }
            Ok(left)
        })
    }

    fn conjunction(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut left = self.negation(scope)?;
        while self.eat("AND") {
            let right = self.negation(scope)?;
            left = Expression::new(format!("{} AND {}", left.sql, right.sql), Type::Bit);
        }
        Ok(left)
    }

    fn negation(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        if self.eat("NOT") {
            let inner = self.nested(|parser| parser.negation(scope))?;
            return Ok(Expression::new(format!("NOT ({})", inner.sql), Type::Bit));
        }
        self.comparison(scope)
    }

    fn comparison(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let left = self.sum(scope)?;
        if let Some(Token::Symbol(operator)) = self.peek()
            && COMPARISONS.contains(operator)
        {
            self.next();
            let right = self.sum(scope)?;
            let (left, right) = comparable(&left, &right);
            let sql = format!("{} {operator} {}", left.ordered(), right.ordered());
            return Ok(Expression::new(sql, Type::Bit));
        }
        if self.eat("IS") {
            let not = if self.eat("NOT") { " NOT" } else { "" };
            self.expect("NULL")?;
            return Ok(Expression::certain(format!("{} IS{not} NULL", left.sql), Type::Bit));
        }
        let not = if self.eat("NOT") { " NOT" } else { "" };
        if self.eat("IN") {
            return self.membership(&left, not, scope);
        }
        if self.eat("LIKE") {
            let right = self.sum(scope)?;
            let escape = if self.eat("ESCAPE") { self.sum(scope)?.sql } else { "NULL".to_owned() };
            let as_text = |side: Expression| match side.ty {
                Some(ty) if !ty.is_text() => side.cast(Type::NVarChar(None)),
                _ => side,
            };
            let (left, right) = (as_text(left).sql, as_text(right).sql);
            let sql = format!("{not} hw_like({left}, {right}, {escape})");
            return Ok(Expression::new(sql, Type::Bit));
        }
        if self.eat("BETWEEN") {
            let low = self.sum(scope)?;
            self.expect("AND")?;
            let high = self.sum(scope)?;
            let ((a, low), (b, high)) = (comparable(&left, &low), comparable(&left, &high));
            let sql = format!(
                "{not} ({} >= {} AND {} <= {})",
                a.ordered(),
                low.ordered(),
                b.ordered(),
                high.ordered()
            );
            return Ok(Expression::new(sql, Type::Bit));
        }
        if not.is_empty() { Ok(left) } else { Err(self.unexpected()) }
    }

    fn membership(
        &mut self,
        left: &Expression,
        not: &str,
        scope: &Scope<'_>,
    ) -> Result<Expression, SqlError> {
        self.expect_symbol("(")?;
        if self.is_word("SELECT") {
            let query = self.query(Some(scope))?;
            self.expect_symbol(")")?;
            let sql = format!("{}{not} IN ({})", left.sql, query.sql());
            return Ok(Expression::new(sql, Type::Bit));
        }
        let mut members = Vec::new();
        loop {
            let member = self.expression(scope)?;
            members.push(comparable(left, &member).1.sql);
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(Expression::new(format!("{}{not} IN ({})", left.sql, members.join(", ")), Type::Bit))
    }

    /// An expression without comparisons.
    pub(crate) fn sum(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut left = self.product(scope)?;
        while let Some(Token::Symbol(operator @ ("+" | "-" | "&" | "|"))) = self.peek() {
            self.next();
            let right = self.product(scope)?;
            let is_text = |side: &Expression| side.ty.is_some_and(Type::is_text);
            left = if *operator == "+" && is_text(&left) && is_text(&right) {
                Expression::new(format!("{} || {}", left.sql, right.sql), Type::NVarChar(None))
            } else {
                combined(&left, operator, &right)
            };
        }
        Ok(left)
    }

    fn product(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let mut left = self.unary(scope)?;
        while let Some(Token::Symbol(operator @ ("*" | "/" | "%"))) = self.peek() {
            self.next();
            let right = self.unary(scope)?;
            left = combined(&left, operator, &right);
        }
        Ok(left)
    }

    fn unary(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        if let Some(Token::Symbol(sign @ ("-" | "+" | "~"))) = self.peek() {
            self.next();
            let inner = self.nested(|parser| parser.unary(scope))?.arithmetic();
            return Ok(Expression { sql: format!("{sign} {}", inner.sql), ..inner });
        }
        self.primary(scope)
    }

    pub(super) fn primary(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        if self.eat_symbol("(") {
            let inner = if self.is_word("SELECT") {
                self.scalar_query(scope)?
            } else {
                self.expression(scope)?
            };
            self.expect_symbol(")")?;
            return Ok(Expression { sql: format!("({})", inner.sql), ..inner });
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
        let query = self.nested(|parser| parser.query(Some(scope)))?;
        let ty = query.items.first().and_then(|item| item.ty);
        Ok(Expression::new(query.sql(), ty))
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
                let query = self.nested(|parser| parser.query(Some(scope)))?;
                self.expect_symbol(")")?;
                Ok(Expression::certain(format!("EXISTS ({})", query.sql()), Type::Bit))
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
        let mut sql = "CASE".to_owned();
        let subject = if self.is_word("WHEN") { None } else { Some(self.expression(scope)?) };
        let mut ty = None;
        while self.eat("WHEN") {
            let mut condition = self.expression(scope)?;
            if let Some(subject) = &subject {
                let (left, right) = comparable(subject, &condition);
                condition.sql = format!("{} = {}", left.ordered(), right.ordered());
            }
            self.expect("THEN")?;
            let result = self.expression(scope)?;
            ty = ty.or(result.ty);
            sql.extend([" WHEN ", &condition.sql, " THEN ", &result.sql]);
        }
        if self.eat("ELSE") {
            let result = self.expression(scope)?;
            ty = ty.or(result.ty);
            sql.extend([" ELSE ", &result.sql]);
        }
        self.expect("END")?;
        Ok(Expression::new(format!("{sql} END"), ty))
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
        scope.resolve(qualifiers, name)
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

impl Scope<'_> {
    /// Finds a column by its qualified or bare name.
    fn resolve(&self, qualifiers: &[String], name: &str) -> Result<Expression, SqlError> {
        let wanted = qualifiers.last();
        for table in &self.tables {
            let matches = |alias: &String| {
                table.alias.eq_ignore_ascii_case(alias) || table.name.eq_ignore_ascii_case(alias)
            };
            if !wanted.is_none_or(matches) {
                continue;
            }
            let found = table.columns.iter().find(|column| same_name(&column.name, name));
            if let Some(column) = found {
                let sql = format!("{}.{}", quoted(&table.alias), quoted(&column.name));
                return Ok(Expression {
                    sql,
                    ty: column.ty,
                    name: name.into(),
                    nullable: column.nullable,
                });
            }
            if wanted.is_some() {
                return Err(invalid_column(name));
            }
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

/// Whether two names are one under the server's collation.
pub(crate) fn same_name(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b) || a.to_lowercase() == b.to_lowercase()
}

fn combined(left: &Expression, operator: &str, right: &Expression) -> Expression {
    let (left, right) = (left.arithmetic(), right.arithmetic());
    let ty = arithmetic_type(left.ty, right.ty, matches!(operator, "*" | "/"));
    Expression::new(format!("{} {operator} {}", left.sql, right.sql), ty)
}

fn number_constant(number: &str) -> Result<Expression, SqlError> {
    if number.contains(['e', 'E']) {
        return Ok(Expression::certain(number, Type::Float));
    }
    if let Some((whole, fraction)) = number.split_once('.') {
        let scale = u8::try_from(fraction.len()).map_err(|_error| SqlError::syntax(number))?;
        let whole = u8::try_from(whole.trim_start_matches('0').len());
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
