//! `sql_variant`: a value with its type, stored as one text.

use super::{
    codepage::CodePage,
    convert,
    types::{Named, SqlError, Type, Value},
};

/// The separator of type and value.
const MARK: char = '\u{1}';
/// The style in which times and binary values round-trip.
const STYLE: i64 = 126;
const STYLE_BINARY: i64 = 1;

/// The stored form of a value of a type.
///
/// # Errors
///
/// 206: the type cannot be in a variant.
pub(crate) fn encode(value: &Value, from: Option<Type>) -> Result<Value, SqlError> {
    let ty = from.unwrap_or_else(|| type_of(value));
    if ty == Type::Named(Named::Variant) {
        return Ok(value.clone());
    }
    let is_long = matches!(
        ty,
        Type::NVarChar(None) | Type::VarChar(None) | Type::VarBinary(None) | Type::RowVersion
    );
    if is_long || matches!(ty, Type::Named(_)) {
        let text = format!("Operand type clash: {ty} is incompatible with sql_variant");
        return Err(SqlError::new(206, 16, text));
    }
    let style = if ty.is_binary() { STYLE_BINARY } else { STYLE };
    let Value::Text(text) = convert::cast(value, Some(ty), Type::NVarChar(None), style)? else {
        // It has no text form.
        return Err(SqlError::unsupported("A variant with an unpaired surrogate"));
    };
    Ok(Value::Text(format!("{ty}{MARK}{text}")))
}

/// The type and value from their stored form.
pub(crate) fn decode(stored: &str) -> Option<(Type, Value)> {
    let (ty, text) = stored.split_once(MARK)?;
    let ty = Type::read(ty)?;
    let style = if ty.is_binary() { STYLE_BINARY } else { STYLE };
    let value = convert::cast(&Value::Text(text.to_owned()), None, ty, style).ok()?;
    Some((ty, value))
}

/// The result of `SQL_VARIANT_PROPERTY`, which is a variant too; [`None`] for an unknown property.
pub(crate) fn property(of: &str, name: &str) -> Option<Value> {
    let (ty, _) = decode(of)?;
    let facts = ty.facts();
    let property = match name.to_ascii_lowercase().as_str() {
        "basetype" => Value::Text(facts.name.to_owned()),
        "precision" => Value::Int(facts.precision.into()),
        "scale" => Value::Int(facts.scale.into()),
        "maxlength" => Value::Int(facts.length),
        "collation" if ty.is_text() => Value::Text(CodePage::default().collation().to_owned()),
        _ => return None,
    };
    let ty = if matches!(property, Value::Int(_)) { Type::Int } else { Type::NVarChar(Some(128)) };
    encode(&property, Some(ty)).ok()
}

fn type_of(value: &Value) -> Type {
    match value {
        Value::Int(_) => Type::BigInt,
        Value::Bool(_) => Type::Bit,
        Value::Float(_) => Type::Float,
        Value::Decimal(_, scale) => Type::Decimal(38, *scale),
        Value::Null | Value::Text(_) => Type::NVarChar(Some(4000)),
        Value::Bytes(_) => Type::VarBinary(Some(8000)),
        Value::Guid(_) => Type::Guid,
        Value::Date(_) => Type::Date,
        Value::Time(_) => Type::Time(7),
        Value::DateTime2(..) => Type::DateTime2(7),
        Value::DateTimeOffset(..) => Type::DateTimeOffset(7),
    }
}
