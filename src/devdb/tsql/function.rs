//! Calls: CAST, CONVERT and the functions of the written list.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a table of calls names the types that differ, not all 24"
)]

use super::{
    coerce::{Class, Expression, class},
    definition::code_page,
    lexer::Token,
    parser::{Parser, text},
    query::Scope,
    tracking,
};
use crate::devdb::{
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
            "COUNT" | "COUNT_BIG" => self.count_call(&upper, scope)?,
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
            Type::VarChar(length) => Type::NVarChar(length),
            Type::Char(length) => Type::NChar(length),
            other => return Ok(value.cast(other)),
        };
        Ok(Expression { ty: Some(ty), ..value.cast(wide).in_page(page) })
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

    /// A type as CAST reads it: without a length, strings have 30.
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
        Ok(Expression::certain(format!("count({distinct}{})", value.sql), ty))
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
    match arguments {
        [] => call_of_none(upper),
        [one] => call_of_one(upper, one),
        several => call_of_several(upper, several),
    }
    .ok_or_else(|| {
        let text = format!("'{name}' is not a recognized built-in function name.");
        SqlError::new(195, 15, text)
    })
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

fn call_of_one(upper: &str, one: &Expression) -> Option<Expression> {
    let sql = &one.sql;
    Some(match upper {
        "MAX" | "MIN" => Expression::new(format!("{}({sql})", upper.to_ascii_lowercase()), one.ty),
        "SUM" | "AVG" => {
            let value = one.arithmetic();
            let ty = match value.ty {
                Some(Type::Decimal(_, scale)) => Some(Type::Decimal(15, scale)),
                Some(Type::TinyInt | Type::SmallInt) => Some(Type::Int),
                other => other,
            };
            let whole = ty.is_some_and(|ty| ty.decimal().is_none() && ty != Type::Float);
            let sum = format!("{}({})", upper.to_ascii_lowercase(), value.sql);
            let sql = if whole { format!("CAST({sum} AS INTEGER)") } else { sum };
            Expression::new(sql, ty)
        }
        "LEN" => Expression::new(format!("length(rtrim({sql}))"), Type::Int),
        "DATALENGTH" => {
            let width = match one.ty.map(class) {
                _ if one.ty == Some(Type::Named(Named::Variant)) => format!("length({sql})"),
                Some(Class::Text) if one.ty.is_some_and(Type::is_wide) => {
                    format!("length({})", one.cast(Type::VarBinary(None)).sql)
                }
                Some(Class::Text | Class::Binary) => format!("length({sql})"),
                _ => one.ty.map_or(0, |ty| ty.facts().length).to_string(),
            };
            Expression::new(width, Type::Int)
        }
        "UPPER" | "LOWER" | "LTRIM" | "RTRIM" | "TRIM" => {
            Expression::new(format!("{}({sql})", upper.to_ascii_lowercase()), one.ty)
        }
        "ABS" => {
            let value = one.arithmetic();
            Expression::new(format!("abs({})", value.sql), value.ty)
        }
        "OBJECT_ID" => object_id(one),
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
        _ => return None,
    })
}

fn call_of_several(upper: &str, arguments: &[Expression]) -> Option<Expression> {
    let ty = arguments.iter().find_map(|argument| argument.ty);
    let list = || {
        let list: Vec<_> = arguments.iter().map(|argument| argument.sql.as_str()).collect();
        list.join(", ")
    };
    Some(match (upper, arguments) {
        ("ISNULL", [first, second]) => {
            let second = first.ty.map_or_else(|| second.clone(), |ty| second.cast(ty));
            let sql = format!("coalesce({}, {})", first.sql, second.sql);
            Expression { nullable: second.nullable, ..Expression::new(sql, ty) }
        }
        ("COALESCE", _) => Expression::new(format!("coalesce({})", list()), ty),
        ("NULLIF", [_, _]) => Expression::new(format!("nullif({})", list()), ty),
        ("CONCAT", _) => {
            let parts: Vec<_> = arguments
                .iter()
                .map(|part| format!("coalesce({}, '')", part.cast(Type::NVarChar(None)).sql))
                .collect();
            Expression::certain(format!("({})", parts.join(" || ")), Type::NVarChar(None))
        }
        ("IIF", [condition, yes, no]) => {
            let sql = format!("CASE WHEN {} THEN {} ELSE {} END", condition.sql, yes.sql, no.sql);
            Expression::new(sql, yes.ty.or(no.ty))
        }
        ("LEFT", [value, length]) => {
            Expression::new(format!("substr({}, 1, {})", value.sql, length.sql), value.ty)
        }
        ("HASHBYTES", [algorithm, value]) if algorithm.sql == text("SHA2_256") => Expression::new(
            format!("hw_sha256({})", value.cast(Type::VarBinary(None)).sql),
            Type::VarBinary(Some(32)),
        ),
        ("SUBSTRING", [value, _, _]) => Expression::new(format!("substr({})", list()), value.ty),
        ("REPLACE", [value, _, _]) => Expression::new(format!("replace({})", list()), value.ty),
        ("REPLICATE", [value, times]) => Expression::new(
            format!("replace(hex(zeroblob({})), '00', {})", times.sql, value.sql),
            Type::NVarChar(None),
        ),
        ("SQL_VARIANT_PROPERTY", [value, property]) => Expression::new(
            format!("hw_variant({}, {})", value.sql, property.sql),
            Type::Named(Named::Variant),
        ),
        ("ROUND", [value, digits]) => {
            Expression::new(format!("round({}, {})", value.arithmetic().sql, digits.sql), value.ty)
        }
        ("OBJECT_ID", [name, _]) => object_id(name),
        // Nobody is refused anything; of other classes nothing is told.
        ("HAS_PERMS_BY_NAME", [name, class, _]) if class.sql == text("OBJECT") => Expression::new(
            format!("CASE WHEN {} IS NOT NULL THEN 1 END", object_id(name).sql),
            Type::Int,
        ),
        _ => return None,
    })
}

fn object_id(name: &Expression) -> Expression {
    let sql = format!(
        "(SELECT o.\"object_id\" FROM dbo.\"sys.tables\" AS o \
         WHERE o.\"physical\" = hw_object({}) COLLATE NOCASE)",
        name.sql
    );
    Expression::new(sql, Type::Int)
}
