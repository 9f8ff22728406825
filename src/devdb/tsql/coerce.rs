//! Expressions with their types, and the conversions that comparisons need.
//!
//! Stored forms compare right only within one class (text dates with text dates); T-SQL converts to
//! the type of higher precedence first, and so does this.

use super::parser::text;
use crate::devdb::{
    codepage::CodePage,
    types::{Named, Type},
};

/// A translated expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expression {
    /// SQLite text.
    pub(crate) sql: String,
    /// [`None`] for a bare `NULL`.
    pub(crate) ty: Option<Type>,
    /// Name of the result column it makes.
    pub(crate) name: String,
    pub(crate) nullable: bool,
}

impl Expression {
    /// An expression that may be `NULL` and has no name.
    pub(crate) fn new(sql: impl Into<String>, ty: impl Into<Option<Type>>) -> Self {
        Self { sql: sql.into(), ty: ty.into(), name: String::new(), nullable: true }
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
        let cast = Self { nullable: self.nullable, ..Self::new(sql, to) };
        if to.is_coded() { cast.in_page(CodePage::default()) } else { cast }
    }

    /// Text that has only the characters of a code page.
    pub(crate) fn in_page(&self, page: CodePage) -> Self {
        let sql = format!("hw_page({}, '{}')", self.sql, page.collation());
        Self { sql, ..self.clone() }
    }

    /// The form in which order is right: a `datetimeoffset` orders by its instant alone.
    pub(crate) fn ordered(&self) -> String {
        match self.ty {
            Some(Type::DateTimeOffset(_)) => format!("substr({}, 1, 27)", self.sql),
            _ => self.sql.clone(),
        }
    }

    /// The form in which arithmetic works: decimals too long for a float become one.
    pub(crate) fn arithmetic(&self) -> Self {
        match self.ty {
            Some(ty) if ty.is_text() => self.cast(Type::Float),
            Some(ty) if matches!(class(ty), Class::Decimal(_)) => self.cast(Type::Float),
            _ => self.clone(),
        }
    }
}

/// Brings both sides of a comparison to one class.
pub(crate) fn comparable(left: &Expression, right: &Expression) -> (Expression, Expression) {
    let (Some(a), Some(b)) = (left.ty, right.ty) else {
        return (left.clone(), right.clone());
    };
    let Some(common) = common(a, b) else {
        return (left.clone(), right.clone());
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
    (bring(left, a), bring(right, b))
}

/// The type both sides are converted to, where they differ in class.
fn common(a: Type, b: Type) -> Option<Type> {
    let (first, second) = (class(a), class(b));
    if is_variant(a) != is_variant(b) {
        return Some(Type::Named(Named::Variant));
    }
    if first == second {
        // A datetime next to a datetime2 is widened to its exact third of a hundredth.
        let mixed = first == Class::Stamp && (a == Type::DateTime) != (b == Type::DateTime);
        return mixed.then_some(Type::DateTime2(7));
    }
    Some(match (first, second) {
        (Class::Text, _) => b,
        (_, Class::Text) => a,
        (Class::Number, Class::Binary) | (Class::Binary, Class::Number) => Type::BigInt,
        (Class::Decimal(s), Class::Number) | (Class::Number, Class::Decimal(s)) => {
            Type::Decimal(38, s)
        }
        (Class::Decimal(s), Class::Decimal(t)) => Type::Decimal(38, s.max(t)),
        (Class::Offset, Class::Date | Class::Stamp)
        | (Class::Date | Class::Stamp, Class::Offset) => Type::DateTimeOffset(7),
        (Class::Date, Class::Stamp) | (Class::Stamp, Class::Date) => Type::DateTime2(7),
        _ => return None,
    })
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

/// The type of a sum or a product.
pub(crate) fn arithmetic_type(a: Option<Type>, b: Option<Type>, multiplied: bool) -> Option<Type> {
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    let is_float = |ty| matches!(ty, Type::Float | Type::Real);
    if is_float(a) || is_float(b) {
        return Some(Type::Float);
    }
    match (a.decimal(), b.decimal()) {
        (None, None) => Some(if a.facts().length >= b.facts().length { a } else { b }),
        (first, second) => {
            let (s, t) = (first.map_or(0, |(_, s)| s), second.map_or(0, |(_, s)| s));
            Some(Type::Decimal(15, if multiplied { (s + t).clamp(6, 10) } else { s.max(t) }))
        }
    }
}
