//! Expressions with their types, and the conversions that comparisons need.
//!
//! Stored forms compare correctly only within one class (text dates with text dates). T-SQL converts to the
//! type of higher precedence first, and so does this module.

use super::parser::text;
use crate::{
    codepage::CodePage,
    types::{Named, SqlError, Type},
};

/// How text compares; that of constants and variables yields to that of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collation {
    /// Ignoring case, like the server's.
    Folded,
    /// By code units.
    Binary,
}

impl Collation {
    /// That of a column of this type; `name` is the one it was created with.
    pub(crate) fn of(ty: Type, name: Option<&str>) -> Option<Self> {
        let upper = name.unwrap_or_default().to_ascii_uppercase();
        let binary = upper.ends_with("_BIN") || upper.ends_with("_BIN2");
        let collation = if binary { Self::Binary } else { Self::Folded };
        (ty.is_text() && !is_variant(ty)).then_some(collation)
    }
}

/// A translated expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expression {
    /// SQLite text.
    pub(crate) sql: String,
    /// [`None`] for a bare `NULL`.
    pub(crate) ty: Option<Type>,
    /// Name of its result column.
    pub(crate) name: String,
    pub(crate) nullable: bool,
    /// For text from a column.
    pub(crate) collation: Option<Collation>,
    /// Whether it is a condition, which is not a value in T-SQL.
    pub(super) is_condition: bool,
    /// Whether it is an unmodified column of a table.
    pub(super) is_column: bool,
}

impl Expression {
    /// An expression that may be `NULL` and has no name.
    pub(crate) fn new(sql: impl Into<String>, ty: impl Into<Option<Type>>) -> Self {
        let (sql, ty) = (sql.into(), ty.into());
        Self {
            sql,
            ty,
            name: String::new(),
            nullable: true,
            collation: None,
            is_condition: false,
            is_column: false,
        }
    }

    /// A condition.
    pub(crate) fn condition(sql: impl Into<String>) -> Self {
        Self { is_condition: true, ..Self::new(sql, Type::Bit) }
    }

    /// The SQLite text of a condition, and error 4145 for a value.
    pub(crate) fn holds(self) -> Result<String, SqlError> {
        if self.is_condition {
            return Ok(self.sql);
        }
        let text = "An expression of non-boolean type specified in a context where a condition is \
                    expected.";
        Err(SqlError::new(4145, 15, text))
    }

    /// The expression, and error 102 for a condition.
    pub(crate) fn value(self) -> Result<Self, SqlError> {
        if self.is_condition {
            let text = "Incorrect syntax: a condition stands where a value is expected.";
            return Err(SqlError::new(102, 15, text));
        }
        Ok(self)
    }

    /// An expression that is never `NULL`.
    pub(crate) fn certain(sql: impl Into<String>, ty: Type) -> Self {
        Self { nullable: false, ..Self::new(sql, ty) }
    }

    /// `CAST(self AS to)`.
    pub(crate) fn cast(&self, to: Type) -> Self {
        self.convert(to, 0)
    }

    /// `CONVERT(to, self, style)`.
    pub(crate) fn convert(&self, to: Type, style: i64) -> Self {
        let from = self.ty.map(|ty| ty.to_string()).unwrap_or_default();
        let sql = format!("hw_cast({}, {}, '{to}', {style})", self.sql, text(&from));
        let collation = self.collation.filter(|_| to.is_text() && !is_variant(to));
        let cast = Self { nullable: self.nullable, collation, ..Self::new(sql, to) };
        if to.is_coded() { cast.in_page(CodePage::default()) } else { cast }
    }

    /// Text restricted to the characters of a code page.
    pub(crate) fn in_page(&self, page: CodePage) -> Self {
        let sql = format!("hw_page({}, '{}')", self.sql, page.collation());
        Self { sql, ..self.clone() }
    }

    /// The form that orders correctly: a `datetimeoffset` orders by its instant alone, text by its collation,
    /// and a variant by the family of its type.
    pub(crate) fn ordered(&self) -> String {
        self.ordered_by(self.collation)
    }

    fn ordered_by(&self, collation: Option<Collation>) -> String {
        match self.ty {
            Some(Type::DateTimeOffset(_)) => format!("substr({}, 1, 27)", self.sql),
            Some(ty) if is_variant(ty) => format!("{} COLLATE HW_VARIANT", self.sql),
            Some(ty) if ty.is_text() && class(ty) == Class::Text => {
                let name = match collation {
                    Some(Collation::Binary) => "HW_BINARY",
                    Some(Collation::Folded) | None => "HW_FOLDED",
                };
                format!("{} COLLATE {name}", self.sql)
            }
            _ => self.sql.clone(),
        }
    }
}

/// `left operator right`, as SQLite text.
pub(crate) fn compared(
    left: &Expression,
    operator: &str,
    right: &Expression,
) -> Result<String, SqlError> {
    let (left, right) = comparable(left, right)?;
    let collation = common_collation(left.collation, right.collation)?;
    Ok(format!("{} {operator} {}", left.ordered_by(collation), right.ordered_by(collation)))
}

fn common_collation(
    left: Option<Collation>,
    right: Option<Collation>,
) -> Result<Option<Collation>, SqlError> {
    if let (Some(a), Some(b)) = (left, right)
        && a != b
    {
        let text = "Cannot resolve the collation conflict between two columns.";
        return Err(SqlError::new(468, 16, text));
    }
    Ok(left.or(right))
}

/// Converts both sides of a comparison to one class.
///
/// # Errors
///
/// 402: there is no such comparison.
pub(crate) fn comparable(
    left: &Expression,
    right: &Expression,
) -> Result<(Expression, Expression), SqlError> {
    let (Some(a), Some(b)) = (left.ty, right.ty) else {
        return Ok((left.clone(), right.clone()));
    };
    let Some(common) = common(a, b)? else {
        return Ok((left.clone(), right.clone()));
    };
    let bring = |side: &Expression, ty: Type| {
        let same = is_variant(ty) == is_variant(common);
        if same
            && class(ty) == class(common)
            && (ty == Type::DateTime) == (common == Type::DateTime)
        {
            side.clone()
        } else {
            side.cast(common)
        }
    };
    Ok((bring(left, a), bring(right, b)))
}

/// The type to which both sides are converted, if their classes differ.
fn common(a: Type, b: Type) -> Result<Option<Type>, SqlError> {
    let (first, second) = (class(a), class(b));
    if is_variant(a) != is_variant(b) {
        return Ok(Some(Type::Named(Named::Variant)));
    }
    if first == second {
        // Compared with a datetime2, a datetime is widened to its exact 1/300 s value.
        let mixed = first == Class::Stamp && (a == Type::DateTime) != (b == Type::DateTime);
        return Ok(mixed.then_some(Type::DateTime2(7)));
    }
    Ok(Some(match (first, second) {
        (Class::Text, _) => b,
        (_, Class::Text) => a,
        (Class::Number, Class::Binary) | (Class::Binary, Class::Number) => Type::BigInt,
        (Class::Decimal(_), Class::Number) if is_float(b) => b,
        (Class::Number, Class::Decimal(_)) if is_float(a) => a,
        (Class::Decimal(s), Class::Number) | (Class::Number, Class::Decimal(s)) => {
            Type::Decimal(38, s)
        }
        (Class::Decimal(s), Class::Decimal(t)) => Type::Decimal(38, s.max(t)),
        (Class::Offset, Class::Date | Class::Stamp)
        | (Class::Date | Class::Stamp, Class::Offset) => Type::DateTimeOffset(7),
        (Class::Date, Class::Stamp) | (Class::Stamp, Class::Date) => Type::DateTime2(7),
        _ => return Err(incompatible(a, b)),
    }))
}

fn incompatible(a: Type, b: Type) -> SqlError {
    SqlError::new(402, 16, format!("The data types {a} and {b} are incompatible in the operator."))
}

fn is_float(ty: Type) -> bool {
    matches!(ty, Type::Float | Type::Real)
}

fn is_variant(ty: Type) -> bool {
    ty == Type::Named(Named::Variant)
}

/// Families of stored forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Integers and floats of SQLite; also decimals of up to 15 digits.
    Number,
    /// Decimals as sortable text, by scale.
    Decimal(u8),
    Text,
    Binary,
    Guid,
    Date,
    Time,
    Stamp,
    Offset,
}

/// The family of a type.
pub(crate) fn class(ty: Type) -> Class {
    match ty.base() {
        Type::Bit
        | Type::TinyInt
        | Type::SmallInt
        | Type::Int
        | Type::BigInt
        | Type::Real
        | Type::Float => Class::Number,
        Type::Decimal(..) | Type::Money | Type::SmallMoney => match ty.decimal() {
            Some((precision, scale)) if precision > 15 => Class::Decimal(scale),
            _ => Class::Number,
        },
        // No named type is the base of another.
        Type::NVarChar(_) | Type::VarChar(_) | Type::NChar(_) | Type::Char(_) | Type::Named(_) => {
            Class::Text
        }
        Type::VarBinary(_) | Type::Binary(_) | Type::RowVersion => Class::Binary,
        Type::Guid => Class::Guid,
        Type::Date => Class::Date,
        Type::Time(_) => Class::Time,
        Type::SmallDateTime | Type::DateTime | Type::DateTime2(_) => Class::Stamp,
        Type::DateTimeOffset(_) => Class::Offset,
    }
}

/// `left operator right` of numbers. A function of the engine evaluates it, since SQLite returns `NULL` for a
/// division by zero and has no fixed-width integers.
///
/// # Errors
///
/// 402: there is no such operation; operators on types other than numbers are not supported.
pub(crate) fn calculated(
    left: &Expression,
    operator: &str,
    right: &Expression,
) -> Result<Expression, SqlError> {
    let (left, right) = (left.clone().value()?, right.clone().value()?);
    let converted = |side: &Expression, other: Option<Type>| match (side.ty, other) {
        (Some(ty), Some(other)) if ty.is_text() && is_number(other) => side.cast(other),
        _ => side.clone(),
    };
    let (left, right) = (converted(&left, right.ty), converted(&right, left.ty));
    for (side, other) in [(&left, &right), (&right, &left)] {
        if let Some(ty) = side.ty.filter(|ty| !is_number(*ty)) {
            return Err(incompatible(ty, other.ty.unwrap_or(ty)));
        }
    }
    let ty = arithmetic_type(left.ty, right.ty, matches!(operator, "*" | "/"));
    if ty == Some(Type::Bit) || operator == "%" && ty.is_some_and(is_float) {
        return Err(incompatible(left.ty.unwrap_or(Type::Int), right.ty.unwrap_or(Type::Int)));
    }
    let whole = |side: &Expression| side.ty.is_none_or(is_whole);
    if matches!(operator, "&" | "|") {
        if !whole(&left) || !whole(&right) {
            return Err(incompatible(left.ty.unwrap_or(Type::Int), right.ty.unwrap_or(Type::Int)));
        }
        return Ok(Expression::new(format!("({} {operator} {})", left.sql, right.sql), ty));
    }
    let kind = ty.unwrap_or(Type::Int);
    let (left, right) = (left.arithmetic(), right.arithmetic());
    let sql = format!("hw_calculate('{operator}', {}, {}, '{kind}')", left.sql, right.sql);
    Ok(Expression::new(sql, ty))
}

fn is_number(ty: Type) -> bool {
    matches!(class(ty), Class::Number | Class::Decimal(_))
}

fn is_whole(ty: Type) -> bool {
    class(ty) == Class::Number && ty.decimal().is_none() && !is_float(ty)
}

impl Expression {
    /// The number in the form for arithmetic: decimals too long for a float become one.
    pub(crate) fn arithmetic(&self) -> Self {
        match self.ty {
            Some(ty) if matches!(class(ty), Class::Decimal(_)) => self.cast(Type::Float),
            _ => self.clone(),
        }
    }

    /// The argument of a numeric function.
    ///
    /// # Errors
    ///
    /// 8117: it is not a number.
    pub(crate) fn number(&self, function: &str) -> Result<Self, SqlError> {
        if let Some(ty) = self.ty.filter(|ty| !is_number(*ty) || *ty == Type::Bit) {
            let text = format!("Operand data type {ty} is invalid for {function} operator.");
            return Err(SqlError::new(8117, 16, text));
        }
        Ok(self.arithmetic())
    }

    /// Whether it is an integer.
    pub(crate) fn is_whole(&self) -> bool {
        self.ty.is_some_and(is_whole)
    }
}

/// The type of a sum or a product.
fn arithmetic_type(a: Option<Type>, b: Option<Type>, multiplied: bool) -> Option<Type> {
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    if is_float(a) || is_float(b) {
        return Some(Type::Float);
    }
    match (a.decimal(), b.decimal()) {
        (None, None) => Some(if a.facts().length >= b.facts().length { a } else { b }),
        (first, second) => {
            let (s, t) = (first.map_or(0, |(_, s)| s), second.map_or(0, |(_, s)| s));
            let is_long = |ty| matches!(class(ty), Class::Decimal(_));
            let precision = if is_long(a) || is_long(b) { 38 } else { 15 };
            Some(Type::Decimal(precision, if multiplied { (s + t).clamp(6, 10) } else { s.max(t) }))
        }
    }
}

/// The type of a value that comes from one of several expressions: that of highest precedence, with the
/// greatest width. <https://learn.microsoft.com/sql/t-sql/data-types/data-type-precedence-transact-sql>
pub(crate) fn widest(types: impl IntoIterator<Item = Option<Type>>) -> Option<Type> {
    types.into_iter().flatten().reduce(|a, b| match (a, b) {
        (Type::NVarChar(n), Type::NVarChar(m)) => Type::NVarChar(longer(n, m)),
        (Type::VarChar(n), Type::VarChar(m)) => Type::VarChar(longer(n, m)),
        (Type::VarBinary(n), Type::VarBinary(m)) => Type::VarBinary(longer(n, m)),
        (Type::NVarChar(n), other) | (other, Type::NVarChar(n)) if other.is_text() => {
            Type::NVarChar(longer(n, text_length(other)))
        }
        (Type::Decimal(p, s), Type::Decimal(q, t)) => {
            let (whole, scale) = ((p - s).max(q - t), s.max(t));
            Type::Decimal((whole + scale).min(38), scale)
        }
        (Type::DateTime2(s), Type::DateTime2(t)) => Type::DateTime2(s.max(t)),
        (Type::DateTimeOffset(s), Type::DateTimeOffset(t)) => Type::DateTimeOffset(s.max(t)),
        (a, b) if rank(b) > rank(a) => b,
        (a, _) => a,
    })
}

fn longer(a: Option<u16>, b: Option<u16>) -> Option<u16> {
    a.zip(b).map(|(a, b)| a.max(b))
}

fn text_length(ty: Type) -> Option<u16> {
    if let Type::NVarChar(length) = ty {
        return length;
    }
    if let Type::VarChar(length) = ty {
        return length.filter(|length| *length <= 4000);
    }
    if let Type::NChar(length) | Type::Char(length) = ty { Some(length.min(4000)) } else { None }
}

/// Precedence of a type among those that others are converted to.
fn rank(ty: Type) -> u8 {
    match ty {
        Type::Binary(_) => 0,
        Type::VarBinary(_) => 1,
        Type::Char(_) => 2,
        Type::VarChar(_) => 3,
        Type::NChar(_) => 4,
        Type::NVarChar(_) => 5,
        Type::Guid => 6,
        Type::RowVersion => 7,
        Type::Bit => 8,
        Type::TinyInt => 9,
        Type::SmallInt => 10,
        Type::Int => 11,
        Type::BigInt => 12,
        Type::SmallMoney => 13,
        Type::Money => 14,
        Type::Decimal(..) => 15,
        Type::Real => 16,
        Type::Float => 17,
        Type::Time(_) => 18,
        Type::Date => 19,
        Type::SmallDateTime => 20,
        Type::DateTime => 21,
        Type::DateTime2(_) => 22,
        Type::DateTimeOffset(_) => 23,
        Type::Named(Named::Variant) => 25,
        Type::Named(_) => 24,
    }
}

/// Converts values to their common type; returns it, and their collation.
pub(crate) fn unified(
    values: &mut [Expression],
) -> Result<(Option<Type>, Option<Collation>), SqlError> {
    let ty = widest(values.iter().map(|value| value.ty));
    let mut collation = None;
    for value in values {
        collation = common_collation(collation, value.collation)?;
        if let (Some(from), Some(to)) = (value.ty, ty)
            && from != to
            && !(from.is_text() && to.is_text())
        {
            *value = Expression { name: value.name.clone(), ..value.cast(to) };
        }
    }
    Ok((ty, collation.filter(|_| ty.is_some_and(Type::is_text))))
}
