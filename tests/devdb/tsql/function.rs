//! Calls: CAST, CONVERT and the supported functions.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a table of calls names the types that differ, not all 24"
)]

use super::{
    coerce::{Class, Collation, Expression, class, compared, unified},
    definition::code_page,
    lexer::Token,
    parser::{Parser, text},
    query::Scope,
    tracking,
};
use crate::{
    codepage::CodePage,
    dates::is_date_part,
    types::{Named, SqlError, Type},
};

impl Parser<'_> {
    /// A call; the next tokens are its name and a parenthesis.
    pub(crate) fn function(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let name = self.name()?;
        self.expect_symbol("(")?;
        let upper = name.to_ascii_uppercase();
        let call = match upper.as_str() {
            "CAST" | "TRY_CAST" => self.cast_call(scope)?,
            "CONVERT" | "TRY_CONVERT" => self.convert_call(scope)?,
            "COUNT" | "COUNT_BIG" => {
                self.aggregated(scope, |parser| parser.count_call(&upper, scope))?
            }
            "MAX" | "MIN" | "SUM" | "AVG" => {
                let value = self.aggregated(scope, |parser| parser.expression(scope))?;
                aggregate(&upper, &value)?
            }
            "IIF" => self.choice_call(scope)?,
            "LAG" => return self.lag_call(scope),
            "DATEADD" | "DATEDIFF" | "DATEDIFF_BIG" => self.date_call(&upper, scope)?,
            _ => {
                let arguments = self.arguments(scope)?;
                return plain_call(&name, &upper, &arguments);
            }
        };
        self.expect_symbol(")")?;
        Ok(call)
    }

    fn cast_call(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let value = self.expression(scope)?;
        let page =
            if self.eat("COLLATE") { code_page(&self.name()?)? } else { CodePage::default() };
        self.expect("AS")?;
        let ty = self.cast_type()?;
        let wide = match ty {
            _ if !value.ty.is_some_and(Type::is_text) => return Ok(value.cast(ty)),
            Type::VarChar(length) => Type::NVarChar(length),
            Type::Char(length) => Type::NChar(length),
            other => return Ok(value.cast(other)),
        };
        Ok(Expression { ty: Some(ty), ..value.cast(wide).in_page(page) })
    }

    /// `IIF(condition, yes, no)`
    fn choice_call(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let condition = self.condition(scope)?;
        self.expect_symbol(",")?;
        let yes = self.expression(scope)?;
        self.expect_symbol(",")?;
        let mut results = [yes, self.expression(scope)?];
        let (ty, collation) = unified(&mut results)?;
        let [yes, no] = results;
        let sql = format!("CASE WHEN {condition} THEN {} ELSE {} END", yes.sql, no.sql);
        Ok(Expression { collation, ..Expression::new(sql, ty) })
    }

    /// `LAG(value) OVER (ORDER BY …)`: the value of the previous row, the only window function.
    fn lag_call(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let value = self.expression(scope)?;
        self.expect_symbol(")")?;
        self.expect("OVER")?;
        self.expect_symbol("(")?;
        self.expect("ORDER")?;
        self.expect("BY")?;
        let mut terms = Vec::new();
        loop {
            let term = self.expression(scope)?.ordered();
            let direction = if self.eat("DESC") { " DESC" } else { "" };
            self.eat("ASC");
            terms.push(format!("{term}{direction}"));
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        let sql = format!("lag({}) OVER (ORDER BY {})", value.sql, terms.join(", "));
        Ok(text_like(&value, sql, value.ty))
    }

    fn convert_call(&mut self, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let ty = self.cast_type()?;
        self.expect_symbol(",")?;
        let value = self.expression(scope)?;
        let mut style = 0;
        if self.eat_symbol(",") {
            let Some(Token::Number(number)) = self.next() else {
                return Err(SqlError::unsupported("A style that is not a constant"));
            };
            style = number.parse().map_err(|_error| SqlError::syntax(number))?;
        }
        let is_binary = |ty: Type| class(ty) == Class::Binary;
        let known = match style {
            0 | 126 | 127 => true,
            // Keeps white space, which is kept anyway.
            1 if ty == Type::Named(Named::Xml) => true,
            2 if value.ty.is_some_and(|ty| matches!(ty, Type::Money | Type::SmallMoney)) => true,
            3 if value.ty.is_some_and(|ty| matches!(ty, Type::Real | Type::Float)) => true,
            1 | 2 => is_binary(ty) || value.ty.is_some_and(is_binary),
            _ => false,
        };
        if !known {
            let text = format!("{style} is not a valid style number when converting to {ty}.");
            return Err(SqlError::new(281, 16, text));
        }
        Ok(value.convert(ty, style))
    }

    /// A type in CAST: without a length, strings have 30.
    fn cast_type(&mut self) -> Result<Type, SqlError> {
        let start = self.position();
        let ty = self.data_type()?;
        let has_length = self.text_since(start).ends_with(')');
        Ok(match ty {
            Type::NVarChar(Some(1)) if !has_length => Type::NVarChar(Some(30)),
            Type::VarChar(Some(1)) if !has_length => Type::VarChar(Some(30)),
            Type::VarBinary(Some(1)) if !has_length => Type::VarBinary(Some(30)),
            Type::NChar(1) if !has_length => Type::NChar(30),
            Type::Char(1) if !has_length => Type::Char(30),
            Type::Binary(1) if !has_length => Type::Binary(30),
            other => other,
        })
    }

    fn count_call(&mut self, name: &str, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let ty = if name == "COUNT" { Type::Int } else { Type::BigInt };
        if self.eat_symbol("*") {
            return Ok(Expression::certain("count(*)", ty));
        }
        let distinct = if self.eat("DISTINCT") { "DISTINCT " } else { "" };
        let value = self.expression(scope)?;
        Ok(Expression::certain(format!("count({distinct}{})", value.ordered()), ty))
    }

    fn date_call(&mut self, name: &str, scope: &Scope<'_>) -> Result<Expression, SqlError> {
        let part = self.name()?.to_ascii_lowercase();
        if !is_date_part(&part) {
            let name = name.to_ascii_lowercase();
            let text = format!("'{part}' is not a recognized {name} option.");
            return Err(SqlError::new(155, 15, text));
        }
        let part = text(&part);
        self.expect_symbol(",")?;
        let first = self.expression(scope)?;
        self.expect_symbol(",")?;
        let second = self.expression(scope)?;
        if name == "DATEADD" {
            let date = match second.ty {
                Some(ty) if ty.is_temporal() => second,
                _ => second.cast(Type::DateTime),
            };
            let ty = date.ty.unwrap_or(Type::DateTime);
            let sql = format!("hw_dateadd({part}, {}, {}, '{ty}')", first.sql, date.sql);
            return Ok(Expression::new(sql, ty));
        }
        let instant = |date: Expression| match date.ty {
            Some(Type::DateTimeOffset(_)) => date.ordered(),
            _ => date.cast(Type::DateTime2(7)).sql,
        };
        let sql = format!("hw_datediff({part}, {}, {})", instant(first), instant(second));
        Ok(Expression::new(sql, if name == "DATEDIFF" { Type::Int } else { Type::BigInt }))
    }

    fn arguments(&mut self, scope: &Scope<'_>) -> Result<Vec<Expression>, SqlError> {
        let mut arguments = Vec::new();
        if self.eat_symbol(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression(scope)?);
            if !self.eat_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(arguments)
    }
}

fn plain_call(name: &str, upper: &str, arguments: &[Expression]) -> Result<Expression, SqlError> {
    let call = match arguments {
        [] => call_of_none(upper),
        [one] => call_of_one(upper, one)?,
        several => call_of_several(upper, several)?,
    };
    call.ok_or_else(|| {
        let text = format!("'{name}' is not a recognized built-in function name.");
        SqlError::new(195, 15, text)
    })
}

fn aggregate(upper: &str, value: &Expression) -> Result<Expression, SqlError> {
    let name = upper.to_ascii_lowercase();
    if matches!(upper, "MAX" | "MIN") {
        let is_text = value.ty.is_some_and(Type::is_text);
        let sql = if is_text { value.ordered() } else { value.sql.clone() };
        let found = Expression::new(format!("{name}({sql})"), value.ty);
        return Ok(Expression { collation: value.collation, ..found });
    }
    let number = value.number(upper)?;
    let ty = match number.ty {
        Some(Type::TinyInt | Type::SmallInt) => Some(Type::Int),
        Some(Type::Real) => Some(Type::Float),
        Some(ty) if upper == "AVG" => {
            ty.decimal().map_or(Some(ty), |(_, scale)| Some(Type::Decimal(15, scale.max(6))))
        }
        Some(ty) => ty.decimal().map_or(Some(ty), |(_, scale)| Some(Type::Decimal(15, scale))),
        None => None,
    };
    if !number.is_whole() {
        return Ok(Expression::new(format!("{name}({})", number.sql), ty));
    }
    let kind = ty.unwrap_or(Type::Int);
    let sum = Expression::new(format!("sum({})", number.sql), Type::BigInt).cast(kind);
    if upper == "SUM" {
        return Ok(sum);
    }
    let sql = format!("hw_calculate('/', {}, count({}), '{kind}')", sum.sql, number.sql);
    Ok(Expression::new(sql, kind))
}

/// The argument of a text function.
fn text_of(value: &Expression) -> Result<Expression, SqlError> {
    match value.ty {
        Some(ty) if ty.is_text() => Ok(value.clone()),
        Some(ty) if class(ty) == Class::Binary => {
            Err(SqlError::unsupported("A text function of a binary value"))
        }
        _ => Ok(value.cast(Type::NVarChar(None))),
    }
}

/// The result of a text function.
fn text_like(of: &Expression, sql: String, ty: Option<Type>) -> Expression {
    Expression { collation: of.collation, ..Expression::new(sql, ty) }
}

fn call_of_none(upper: &str) -> Option<Expression> {
    Some(match upper {
        "SYSUTCDATETIME" => Expression::certain("hw_now()", Type::DateTime2(7)),
        "SYSDATETIME" => Expression::certain("hw_local_now()", Type::DateTime2(7)),
        "GETUTCDATE" => Expression::certain("hw_now()", Type::DateTime2(7)).cast(Type::DateTime),
        "GETDATE" => Expression::certain("hw_local_now()", Type::DateTime2(7)).cast(Type::DateTime),
        "SYSDATETIMEOFFSET" => {
            Expression::certain("hw_now()", Type::DateTime2(7)).cast(Type::DateTimeOffset(7))
        }
        "CHANGE_TRACKING_CURRENT_VERSION" => tracking::current_version(),
        "MIN_ACTIVE_ROWVERSION" => Expression::certain("hw_min_active()", Type::Binary(8)),
        "DB_NAME" => Expression::certain("hw_database()", Type::NVarChar(Some(128))),
        "NEWID" => Expression::certain("hw_newid()", Type::Guid),
        "SCOPE_IDENTITY" => Expression::new("hw_identity()", Type::Decimal(15, 0)),
        "ROWCOUNT_BIG" => Expression::certain("hw_rowcount()", Type::BigInt),
        _ => return None,
    })
}

fn call_of_one(upper: &str, one: &Expression) -> Result<Option<Expression>, SqlError> {
    let sql = &one.sql;
    Ok(Some(match upper {
        "LEN" => Expression::new(format!("hw_length({})", text_of(one)?.sql), Type::Int),
        "DATALENGTH" => Expression::new(data_length(one), Type::Int),
        "UPPER" | "LOWER" => {
            let value = text_of(one)?;
            let sql = format!("hw_{}({})", upper.to_ascii_lowercase(), value.sql);
            text_like(&value, sql, value.ty)
        }
        "LTRIM" | "RTRIM" | "TRIM" => {
            let value = text_of(one)?;
            let sql = format!("{}({})", upper.to_ascii_lowercase(), value.sql);
            text_like(&value, sql, value.ty)
        }
        "ABS" => {
            let value = one.number(upper)?;
            let found = Expression::new(format!("abs({})", value.sql), value.ty);
            match value.ty.filter(|_| value.is_whole()) {
                Some(ty) => Expression { ty: Some(Type::BigInt), ..found }.cast(ty),
                None => found,
            }
        }
        "OBJECT_ID" => object_id(one, None),
        "CHANGE_TRACKING_MIN_VALID_VERSION" => tracking::min_valid_version(one),
        "IDENT_CURRENT" => {
            Expression::new(format!("hw_last_identity(hw_object({sql}))"), Type::Decimal(15, 0))
        }
        "TYPE_NAME" => Expression::new(
            format!(
                "(SELECT y.\"name\" FROM dbo.\"sys.types\" AS y WHERE y.\"user_type_id\" = {sql})"
            ),
            Type::NVarChar(Some(128)),
        ),
        _ => return Ok(None),
    }))
}

/// `ISNULL` has the type of its first argument, whatever replaces it.
fn is_null(first: &Expression, second: &Expression) -> Expression {
    let ty = first.ty.or(second.ty);
    let other = match ty {
        Some(ty) if second.ty.is_some_and(|other| other != ty) => second.cast(ty),
        _ => second.clone(),
    };
    let sql = format!("coalesce({}, {})", first.sql, other.sql);
    let collation = first.collation.or(second.collation);
    Expression { nullable: other.nullable, collation, ..Expression::new(sql, ty) }
}

fn call_of_several(upper: &str, arguments: &[Expression]) -> Result<Option<Expression>, SqlError> {
    Ok(Some(match (upper, arguments) {
        ("ISNULL", [first, second]) => is_null(first, second),
        ("COALESCE", _) => {
            let mut values = arguments.to_vec();
            let (ty, collation) = unified(&mut values)?;
            let list: Vec<_> = values.iter().map(|value| value.sql.as_str()).collect();
            let sql = format!("coalesce({})", list.join(", "));
            Expression { collation, ..Expression::new(sql, ty) }
        }
        ("NULLIF", [first, second]) => {
            let equal = compared(first, "=", second)?;
            let sql = format!("CASE WHEN {equal} THEN NULL ELSE {} END", first.sql);
            text_like(first, sql, first.ty)
        }
        ("CONCAT", _) => {
            let parts: Vec<_> = arguments
                .iter()
                .map(|part| format!("coalesce({}, '')", part.cast(Type::NVarChar(None)).sql))
                .collect();
            Expression::certain(format!("({})", parts.join(" || ")), Type::NVarChar(None))
        }
        ("LEFT", [value, length]) => part_of(value, "1", length)?,
        ("SUBSTRING", [value, start, length]) => part_of(value, &start.sql, length)?,
        ("REPLACE", [value, from, to]) => {
            let value = text_of(value)?;
            let (from, to) = (text_of(from)?.sql, text_of(to)?.sql);
            let exact = i32::from(value.collation == Some(Collation::Binary));
            let sql = format!("hw_replace({}, {from}, {to}, {exact})", value.sql);
            let coded = value.ty.is_some_and(Type::is_coded);
            let ty = if coded { Type::VarChar(None) } else { Type::NVarChar(None) };
            text_like(&value, sql, Some(ty))
        }
        ("REPLICATE", [value, times]) => {
            let value = text_of(value)?;
            // As long as the type can be; only `max` is unlimited.
            let (ty, longest) = match value.ty {
                Some(Type::VarChar(Some(_)) | Type::Char(_)) => (Type::VarChar(Some(8000)), 8000),
                Some(Type::NVarChar(Some(_)) | Type::NChar(_)) => {
                    (Type::NVarChar(Some(4000)), 4000)
                }
                Some(ty) if ty.is_coded() => (Type::VarChar(None), i64::MAX),
                _ => (Type::NVarChar(None), i64::MAX),
            };
            let sql = format!("hw_replicate({}, {}, {longest})", value.sql, times.sql);
            text_like(&value, sql, Some(ty))
        }
        ("HASHBYTES", [algorithm, value]) if algorithm.sql == text("SHA2_256") => Expression::new(
            format!("hw_sha256({})", value.cast(Type::VarBinary(None)).sql),
            Type::VarBinary(Some(32)),
        ),
        ("SQL_VARIANT_PROPERTY", [value, property]) => Expression::new(
            format!("hw_variant({}, {})", value.sql, property.sql),
            Type::Named(Named::Variant),
        ),
        ("ROUND", [value, digits]) if digits.is_whole() => {
            let number = value.number(upper)?;
            Expression::new(format!("hw_round({}, {})", number.sql, digits.sql), number.ty)
        }
        ("OBJECT_ID", [name, kind]) => object_id(name, Some(kind)),
        // Every permission is granted; other classes return nothing.
        ("HAS_PERMS_BY_NAME", [name, class, _]) if class.sql == text("OBJECT") => Expression::new(
            format!("CASE WHEN {} IS NOT NULL THEN 1 END", object_id(name, None).sql),
            Type::Int,
        ),
        _ => return Ok(None),
    }))
}

fn part_of(value: &Expression, start: &str, length: &Expression) -> Result<Expression, SqlError> {
    let is_binary = value.ty.is_some_and(|ty| class(ty) == Class::Binary);
    let (name, value) =
        if is_binary { ("hw_bytes", value.clone()) } else { ("hw_substring", text_of(value)?) };
    let sql = format!("{name}({}, {start}, {})", value.sql, length.sql);
    let ty = if is_binary { Some(Type::VarBinary(None)) } else { value.ty };
    Ok(text_like(&value, sql, ty))
}

/// The number of bytes of a value.
fn data_length(value: &Expression) -> String {
    let (sql, Some(ty)) = (&value.sql, value.ty) else {
        return "NULL".to_owned();
    };
    match class(ty) {
        Class::Text if ty.is_wide() && ty != Type::Named(Named::Variant) => {
            format!("length({})", value.cast(Type::VarBinary(None)).sql)
        }
        Class::Text | Class::Binary => format!("length({sql})"),
        _ => format!("CASE WHEN {sql} IS NULL THEN NULL ELSE {} END", ty.facts().length),
    }
}

/// `kind` is the required kind of object.
fn object_id(name: &Expression, kind: Option<&Expression>) -> Expression {
    let kind = kind.map(|kind| {
        format!(
            " AND rtrim(upper({})) = (SELECT k.\"type\" FROM dbo.\"sys.objects\" AS k \
             WHERE k.\"object_id\" = o.\"object_id\")",
            kind.sql
        )
    });
    let sql = format!(
        "(SELECT o.\"object_id\" FROM dbo.\"sys.tables\" AS o \
         WHERE o.\"physical\" = hw_object({}) COLLATE NOCASE{})",
        name.sql,
        kind.unwrap_or_default()
    );
    Expression::new(sql, Type::Int)
}
