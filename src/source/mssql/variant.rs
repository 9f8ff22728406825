//! `sql_variant`: each value has a type of its own, which its JSON form has in front. Pure.
//!
//! The form is one text, `type:value`, such as `decimal(9, 2):1.50`. The server writes it: the driver knows
//! neither the declared type nor the collation of such a value, and reads money as a binary fraction.
//! Floating-point numbers are written with all the digits that they can need, and cut here to those that
//! read back as the same number.

use crate::value::Value;

/// Returns the expression of the form of a column or value, as text.
pub(super) fn expression(of: &str) -> String {
    let property =
        |name: &str, ty: &str| format!("CAST(SQL_VARIANT_PROPERTY({of}, N'{name}') AS {ty})");
    let base = property("BaseType", "nvarchar(128)");
    let (precision, scale) = (property("Precision", "int"), property("Scale", "int"));
    let (length, collation) =
        (property("MaxLength", "int"), property("Collation", "nvarchar(128)"));
    let as_type =
        |ty: &str, style: u8| format!("CONVERT(nvarchar(max), CAST({of} AS {ty}), {style})");
    let time = |ty: &str| as_type(ty, 126);
    format!(
        "CASE WHEN {of} IS NOT NULL THEN CONCAT({base}, \
         CASE WHEN {base} IN (N'decimal', N'numeric') THEN CONCAT(N'(', {precision}, N', ', {scale}, N')') \
         WHEN {base} IN (N'time', N'datetime2', N'datetimeoffset') THEN CONCAT(N'(', {scale}, N')') \
         WHEN {base} IN (N'binary', N'varbinary') THEN CONCAT(N'(', {length}, N')') \
         WHEN {base} IN (N'char', N'varchar') THEN CONCAT(N'(', {length}, N') COLLATE ', {collation}) \
         WHEN {base} IN (N'nchar', N'nvarchar') THEN CONCAT(N'(', {length} / 2, N') COLLATE ', {collation}) \
         ELSE N'' END, N':', \
         CASE WHEN {base} IN (N'binary', N'varbinary') THEN {} \
         WHEN {base} IN (N'money', N'smallmoney') THEN {} \
         WHEN {base} = N'real' THEN {} WHEN {base} = N'float' THEN {} \
         WHEN {base} = N'date' THEN {} WHEN {base} = N'time' THEN {} \
         WHEN {base} = N'datetime' THEN {} WHEN {base} = N'smalldatetime' THEN {} \
         WHEN {base} = N'datetime2' THEN {} WHEN {base} = N'datetimeoffset' THEN {} \
         WHEN {base} = N'uniqueidentifier' THEN LOWER(CAST({of} AS nvarchar(max))) \
         ELSE CAST({of} AS nvarchar(max)) END) END",
        as_type("varbinary(8000)", 1),
        as_type("money", 2),
        as_type("real", 3),
        as_type("float", 3),
        time("date"),
        time("time(7)"),
        time("datetime"),
        time("smalldatetime"),
        time("datetime2(7)"),
        time("datetimeoffset(7)"),
    )
}

/// Returns the form with a floating-point number in the shortest text that reads back the same.
pub(super) fn shortest(value: Value) -> Value {
    let Value::Text(text) = &value else { return value };
    let number = match text.split_once(':') {
        Some(("real", digits)) => digits.trim().parse().ok().map(Value::Real),
        Some(("float", digits)) => digits.trim().parse().ok().map(Value::Float),
        Some(_) | None => None,
    };
    let Some(number) = number else { return value };
    let base = if matches!(number, Value::Real(_)) { "real" } else { "float" };
    Value::Text(format!("{base}:{}", number.to_json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_the_digits_that_they_need() {
        let cut = |text: &str| shortest(Value::Text(text.to_owned()));
        for (text, expected) in [
            ("float:1.0000000000000001e-001", "float:0.1"),
            ("real:1.00000001e-001", "real:0.1"),
            ("float:1.0000000000000000e+300", "float:1e+300"),
            ("nvarchar(9) COLLATE x:float:0.10", "nvarchar(9) COLLATE x:float:0.10"),
            ("decimal(9, 2):1.50", "decimal(9, 2):1.50"),
        ] {
            assert_eq!(cut(text), Value::Text(expected.to_owned()));
        }
        assert_eq!(shortest(Value::Null), Value::Null);
    }
}
