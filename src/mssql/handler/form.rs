//! Converts the JSON form of a value to a parameter, and to the column's type. Pure.
//!
//! # Design
//!
//! `docs/reference/types.md` defines the JSON form of each type. A column of the same type gets the same
//! value, to the last digit. If the types differ, the value is converted as an `INSERT` would convert it,
//! except where an `INSERT` silently loses data: a fraction in an integer column, excess decimal places, and
//! the offset of a time are rejected, never truncated.
//!
//! A `CAST` silently truncates text that is too long. So text is cast to the longest type of its kind, and
//! the assignment to the column, which does report an error (2628, 8152), converts it to the shorter type. A
//! key is cast to a type that supports an index seek, with the column's collation, since two collations
//! cannot be compared.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::describe::Column;
use super::rows::Scalar;
use crate::connection::{ColumnType, Param};
use crate::ident::collation;

/// Most UTF-16 units of a text key; an index key is limited to 1,700 bytes.
/// <https://learn.microsoft.com/sql/sql-server/maximum-capacity-specifications-for-sql-server>
const KEY_UNITS_MAX: usize = 4_000;

/// Families of types that are written the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Bit,
    Whole,
    Real,
    Float,
    Decimal,
    Time,
    CodedText,
    WideText,
    Xml,
    Binary,
    /// Types that can only be cast from text.
    Named,
}

impl Column {
    fn family(&self) -> Option<Family> {
        Some(match self.type_name.as_str() {
            "bit" => Family::Bit,
            "tinyint" | "smallint" | "int" | "bigint" => Family::Whole,
            "real" => Family::Real,
            "float" => Family::Float,
            "decimal" | "numeric" | "money" | "smallmoney" => Family::Decimal,
            "date" | "time" | "datetime" | "smalldatetime" | "datetime2" | "datetimeoffset" => {
                Family::Time
            }
            "char" | "varchar" | "text" => Family::CodedText,
            "nchar" | "nvarchar" | "ntext" => Family::WideText,
            "xml" => Family::Xml,
            "binary" | "varbinary" | "image" => Family::Binary,
            "uniqueidentifier" | "hierarchyid" => Family::Named,
            _ => return None,
        })
    }

    /// Whether it is a `rowversion`, which the server sets at every write.
    pub(super) fn is_row_version(&self) -> bool {
        matches!(self.type_name.as_str(), "timestamp" | "rowversion")
    }

    /// Returns why the column cannot be written; `None` if it can.
    pub(super) fn refusal(&self) -> Option<String> {
        let (name, type_name) = (&self.name, &self.type_name);
        if self.is_row_version() {
            return Some(format!(
                "column `{name}` of the target is a `rowversion`, which the server sets: map to a \
                 column of type `binary(8)`"
            ));
        }
        if self.identity {
            return Some(format!(
                "column `{name}` of the target is an `IDENTITY`, which the server sets: make it a \
                 plain column"
            ));
        }
        self.family().is_none().then(|| {
            format!(
                "column `{name}` of the target is of type `{type_name}`, which cannot be written"
            )
        })
    }

    /// Returns the type as it would be declared.
    pub(super) fn declared(&self) -> String {
        ColumnType {
            name: &self.type_name,
            max_length: i64::from(self.max_length),
            precision: i64::from(self.precision),
            scale: i64::from(self.scale),
        }
        .declared()
    }

    /// Returns the SQL expression that converts a parameter to a value of the column.
    pub(super) fn cell(&self, parameter: &str, is_key: bool) -> String {
        let family = self.family();
        let wide = if is_key { "4000" } else { "max" };
        let narrow = if is_key { "8000" } else { "max" };
        let named = self.collation.as_deref().and_then(collation);
        let collate = named.map(|name| format!(" COLLATE {name}")).unwrap_or_default();
        match family {
            Some(Family::CodedText) => format!("CAST({parameter}{collate} AS varchar({narrow}))"),
            // Only a compared value needs the collation; bytes of UTF-16 cannot have one.
            Some(Family::WideText) if is_key => {
                format!("CAST({parameter}{collate} AS nvarchar({wide}))")
            }
            Some(Family::WideText) => format!("CAST({parameter} AS nvarchar({wide}))"),
            Some(Family::Binary) => format!("CAST({parameter} AS varbinary({narrow}))"),
            // Style 1 keeps white space.
            Some(Family::Xml) => format!("CONVERT(xml, {parameter}, 1)"),
            _ => format!("CAST({parameter} AS {})", self.declared()),
        }
    }

    /// Returns the parameter for a value in JSON form.
    ///
    /// # Errors
    ///
    /// The kind of value that the column expects, if this is not one.
    pub(super) fn param(&self, json: &str, is_key: bool) -> Result<Param, &'static str> {
        let value = Scalar::read(json).ok_or("a plain value")?;
        if value == Scalar::Null {
            return if is_key {
                Err("a value, since it is part of the key")
            } else {
                Ok(Param::Null)
            };
        }
        match self.family().ok_or("nothing")? {
            Family::Bit => bit(&value).ok_or("a boolean"),
            Family::Whole => integer(&value).map(Param::BigInt).ok_or("a whole number"),
            Family::Real => single(&value).map(Param::Real).ok_or("a number"),
            Family::Float => double(&value).map(Param::Float).ok_or("a number"),
            Family::Decimal => self.decimal(value),
            Family::Time => self.time(value),
            Family::CodedText => {
                let text = text(value).filter(|text| fits_key(text, is_key));
                text.map(Param::Text).ok_or("text that its collation can hold")
            }
            Family::WideText => {
                if let (Scalar::HalfPair(units), false) = (&value, is_key) {
                    let bytes = units.iter().flat_map(|unit| unit.to_le_bytes());
                    return Ok(Param::Bytes(bytes.collect()));
                }
                let text = text(value).filter(|text| fits_key(text, is_key));
                text.map(Param::Text).ok_or("text")
            }
            Family::Xml | Family::Named => {
                let Scalar::Text(text) = value else { return Err("text") };
                Ok(Param::Text(text))
            }
            Family::Binary => {
                let Scalar::Text(text) = value else { return Err("binary data in base64") };
                let bytes = STANDARD.decode(text);
                bytes.map(Param::Bytes).map_err(|_other_text| "binary data in base64")
            }
        }
    }

    fn decimal(&self, value: Scalar<'_>) -> Result<Param, &'static str> {
        const EXPECTED: &str = "a number with no more decimal places than its scale";
        let text = match value {
            Scalar::Number(text) => text.to_owned(),
            Scalar::Text(text) => text,
            Scalar::Bool(value) => return Ok(Param::Bool(value)),
            Scalar::Null | Scalar::HalfPair(_) => return Err(EXPECTED),
        };
        if text.contains(['e', 'E']) {
            return text.parse().map(Param::Float).map_err(|_no_number| EXPECTED);
        }
        let (integer, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let digits = integer.strip_prefix('-').unwrap_or(integer);
        let is_number = !digits.is_empty()
            && digits.chars().chain(fraction.chars()).all(|c| c.is_ascii_digit());
        let scale = usize::try_from(self.scale).unwrap_or_default();
        if is_number && fraction.trim_end_matches('0').len() <= scale {
            Ok(Param::Text(text))
        } else {
            Err(EXPECTED)
        }
    }

    fn time(&self, value: Scalar<'_>) -> Result<Param, &'static str> {
        let Scalar::Text(text) = value else { return Err("a date or a time") };
        let (day, clock) =
            text.split_once('T').map_or((None, text.as_str()), |(day, clock)| (Some(day), clock));
        let has_offset = day.is_some() && clock.contains(['+', '-', 'Z']);
        match self.type_name.as_str() {
            "datetimeoffset" => Ok(Param::Text(text)),
            _ if has_offset => Err("a time without an offset"),
            // A bare date would be parsed by the rules of the session's language.
            "datetime" | "smalldatetime" if day.is_none() && text.contains('-') => {
                Ok(Param::Text(format!("{text}T00:00:00")))
            }
            _ => Ok(Param::Text(text)),
        }
    }
}

fn bit(value: &Scalar<'_>) -> Option<Param> {
    match value {
        Scalar::Bool(value) => Some(Param::Bool(*value)),
        Scalar::Number("0") => Some(Param::Bool(false)),
        Scalar::Number("1") => Some(Param::Bool(true)),
        Scalar::Null | Scalar::Number(_) | Scalar::Text(_) | Scalar::HalfPair(_) => None,
    }
}

fn integer(value: &Scalar<'_>) -> Option<i64> {
    match value {
        Scalar::Bool(value) => Some(i64::from(*value)),
        // A float with an integral value is written with `.0`.
        Scalar::Number(text) => text.strip_suffix(".0").unwrap_or(text).parse().ok(),
        Scalar::Text(text) => text.parse().ok(),
        Scalar::Null | Scalar::HalfPair(_) => None,
    }
}

fn double(value: &Scalar<'_>) -> Option<f64> {
    let text = match value {
        Scalar::Number(text) => *text,
        Scalar::Text(text) => text.as_str(),
        Scalar::Null | Scalar::Bool(_) | Scalar::HalfPair(_) => return None,
    };
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn single(value: &Scalar<'_>) -> Option<f32> {
    // Parsed from the text: converting from a double would be one bit off for some numbers.
    let text = match value {
        Scalar::Number(text) => *text,
        Scalar::Text(text) => text.as_str(),
        Scalar::Null | Scalar::Bool(_) | Scalar::HalfPair(_) => return None,
    };
    text.parse().ok().filter(|number: &f32| number.is_finite())
}

fn text(value: Scalar<'_>) -> Option<String> {
    match value {
        Scalar::Text(text) => Some(text),
        Scalar::Number(text) => Some(text.to_owned()),
        Scalar::Bool(value) => Some(if value { "1" } else { "0" }.to_owned()),
        Scalar::Null | Scalar::HalfPair(_) => None,
    }
}

/// Whether no cast of a key truncates the text: truncated, it would match another row.
fn fits_key(text: &str, is_key: bool) -> bool {
    !is_key || text.encode_utf16().count() <= KEY_UNITS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(type_name: &str, max_length: i32, precision: i32, scale: i32) -> Column {
        Column {
            name: "c".to_owned(),
            type_name: type_name.to_owned(),
            max_length,
            precision,
            scale,
            identity: false,
            collation: matches!(type_name, "varchar" | "nvarchar").then(|| "Thai_BIN2".to_owned()),
        }
    }

    #[test]
    fn a_cast_never_truncates_a_cell_and_keys_can_be_compared() {
        for (column, cell, key) in [
            (column("int", 4, 10, 0), "CAST(@P1 AS int)", "CAST(@P1 AS int)"),
            (
                column("decimal", 9, 9, 2),
                "CAST(@P1 AS decimal(9, 2))",
                "CAST(@P1 AS decimal(9, 2))",
            ),
            (
                column("varchar", 5, 0, 0),
                "CAST(@P1 COLLATE Thai_BIN2 AS varchar(max))",
                "CAST(@P1 COLLATE Thai_BIN2 AS varchar(8000))",
            ),
            (
                column("nvarchar", 10, 0, 0),
                "CAST(@P1 AS nvarchar(max))",
                "CAST(@P1 COLLATE Thai_BIN2 AS nvarchar(4000))",
            ),
            (
                column("binary", 4, 0, 0),
                "CAST(@P1 AS varbinary(max))",
                "CAST(@P1 AS varbinary(8000))",
            ),
            (column("xml", -1, 0, 0), "CONVERT(xml, @P1, 1)", "CONVERT(xml, @P1, 1)"),
            (
                column("datetime2", 8, 27, 7),
                "CAST(@P1 AS datetime2(7))",
                "CAST(@P1 AS datetime2(7))",
            ),
        ] {
            assert_eq!(
                (column.cell("@P1", false), column.cell("@P1", true)),
                (cell.into(), key.into())
            );
        }
    }

    #[test]
    fn a_value_is_converted_or_rejected_but_never_truncated() {
        let text = |text: &str| Ok(Param::Text(text.to_owned()));
        let integer = Err("a whole number");
        let decimal = Err("a number with no more decimal places than its scale");
        for (column, json, expected) in [
            (column("bit", 1, 1, 0), "true", Ok(Param::Bool(true))),
            (column("bit", 1, 1, 0), "1", Ok(Param::Bool(true))),
            (column("bit", 1, 1, 0), "2", Err("a boolean")),
            (column("int", 4, 10, 0), "-7", Ok(Param::BigInt(-7))),
            (column("int", 4, 10, 0), "7.0", Ok(Param::BigInt(7))),
            (column("int", 4, 10, 0), "7.5", integer.clone()),
            (column("int", 4, 10, 0), "\"\"", integer.clone()),
            (column("int", 4, 10, 0), "\"12\"", Ok(Param::BigInt(12))),
            (
                column("bigint", 8, 19, 0),
                "9007199254740993",
                Ok(Param::BigInt(9_007_199_254_740_993)),
            ),
            (column("bigint", 8, 19, 0), "9223372036854775808", integer),
            (column("real", 4, 24, 0), "0.1", Ok(Param::Real(0.1))),
            (column("real", 4, 24, 0), "1e+300", Err("a number")),
            (column("float", 8, 53, 0), "\"NaN\"", Err("a number")),
            (column("decimal", 9, 9, 2), "\"-12.34\"", text("-12.34")),
            (column("decimal", 9, 9, 2), "\"-12.3400\"", text("-12.3400")),
            (column("decimal", 9, 9, 2), "\"-12.345\"", decimal.clone()),
            (column("decimal", 9, 9, 2), "\"12 3\"", decimal.clone()),
            (column("decimal", 9, 9, 2), "\"\"", decimal),
            (column("decimal", 9, 9, 2), "12", text("12")),
            (column("datetime", 8, 23, 3), "\"2020-01-02\"", text("2020-01-02T00:00:00")),
            (column("date", 3, 10, 0), "\"2020-01-02\"", text("2020-01-02")),
            (column("time", 5, 16, 7), "\"23:59:59.9999999\"", text("23:59:59.9999999")),
            (
                column("datetime2", 8, 27, 7),
                "\"2020-01-02T00:00:00-14:00\"",
                Err("a time without an offset"),
            ),
            (
                column("datetimeoffset", 10, 34, 7),
                "\"2020-01-02T00:00:00-14:00\"",
                text("2020-01-02T00:00:00-14:00"),
            ),
            (column("nvarchar", 10, 0, 0), "12.50", text("12.50")),
            (column("nvarchar", 10, 0, 0), r#""\ud83d""#, Ok(Param::Bytes(vec![0x3D, 0xD8]))),
            (column("varchar", 10, 0, 0), r#""\ud83d""#, Err("text that its collation can hold")),
            (column("binary", 4, 0, 0), "\"AP8=\"", Ok(Param::Bytes(vec![0, 255]))),
            (column("binary", 4, 0, 0), "\"?\"", Err("binary data in base64")),
            (column("xml", -1, 0, 0), "null", Ok(Param::Null)),
            (column("xml", -1, 0, 0), "{}", Err("a plain value")),
        ] {
            assert_eq!(column.param(json, false), expected, "{} {json}", column.declared());
        }
    }

    #[test]
    fn a_key_is_never_null_and_never_longer_than_its_cast() {
        let int = column("int", 4, 10, 0);
        assert_eq!(int.param("null", true), Err("a value, since it is part of the key"));
        let wide = column("nvarchar", -1, 0, 0);
        let json = |length| format!("\"{}\"", "x".repeat(length));
        assert!(wide.param(&json(4_000), true).is_ok());
        assert_eq!(wide.param(&json(4_001), true), Err("text"));
        assert!(wide.param(&json(4_001), false).is_ok());
    }

    #[test]
    fn columns_that_the_server_sets_cannot_be_written() {
        let identity = Column { identity: true, ..column("int", 4, 10, 0) };
        for (column, expected) in [
            (identity, "is an `IDENTITY`"),
            (column("timestamp", 8, 0, 0), "is a `rowversion`"),
            (column("geography", -1, 0, 0), "is of type `geography`"),
        ] {
            let refusal = column.refusal().unwrap();
            assert!(refusal.contains(expected), "{refusal}");
        }
        assert_eq!(column("int", 4, 10, 0).refusal(), None);
    }
}
