//! The form of each type: the expression that reads a column without loss, and the one that converts a value
//! in that form back to the column's type. `docs/reference/types.md` has the same as a table.
//!
//! # Design
//!
//! The driver would lose data: it reads money as a binary fraction, replaces an unpaired surrogate by U+FFFD,
//! and guesses the code page of `char` and `varchar` from the collation's language, which is wrong for all
//! UTF-8 collations. So money is read as a decimal, the server converts text with a code page, and UTF-16
//! text is read as bytes.
//!
//! On the way back, the server would convert a text parameter to the code page of the database, so it is
//! given the column's collation first. An unknown type is rejected, never passed on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use crate::connection::{ColumnType, Param};
use crate::ident::{collation, quote};

use super::describe::Column;
use super::variant::{self, ValueType};

/// Longest `nvarchar` with an explicit length, in UTF-16 units.
/// <https://learn.microsoft.com/sql/t-sql/data-types/nchar-and-nvarchar-transact-sql>
const NVARCHAR_MAX: i64 = 4_000;

/// A key value of a position, for comparison in a statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyValue {
    pub(super) param: Param,
    /// The value's own type, if it differs from the column's.
    pub(super) base: Option<ValueType>,
}

impl Column {
    /// Returns the type as it would be declared.
    pub(super) fn declared(&self) -> String {
        ColumnType {
            name: &self.type_name,
            max_length: self.max_length,
            precision: self.precision,
            scale: self.scale,
        }
        .declared()
    }

    /// Returns the type with its collation, for display and comparison.
    pub(super) fn declared_with_collation(&self) -> String {
        match &self.collation {
            Some(collation) => format!("{} COLLATE {collation}", self.declared()),
            None => self.declared(),
        }
    }

    /// Returns the properties that determine the order of rows by the column; unchanged if a type only grows.
    pub(super) fn order(&self) -> String {
        let name = self.type_name.as_str();
        match name {
            "tinyint" | "smallint" | "int" | "bigint" => "integer".to_owned(),
            "decimal" | "numeric" => format!("decimal {}", self.scale),
            "varchar" | "nvarchar" => {
                format!("{name} {}", self.collation.as_deref().unwrap_or_default())
            }
            "varbinary" => name.to_owned(),
            _ => self.declared_with_collation(),
        }
    }

    /// Returns the expression for a value's size in bytes, if it can exceed `bytes_max`.
    pub(super) fn size(&self, bytes_max: usize) -> Option<String> {
        let column = format!("t.{}", quote(&self.name));
        match self.type_name.as_str() {
            "text" | "ntext" | "image" => Some(format!("DATALENGTH({column})")),
            // Its stored form can be far smaller than its text.
            "xml" => Some(format!("DATALENGTH(CAST({column} AS nvarchar(max)))")),
            "char" | "varchar" | "nchar" | "nvarchar" | "binary" | "varbinary" | "hierarchyid"
            | "sql_variant"
                if usize::try_from(self.max_length).map_or(true, |bytes| bytes > bytes_max) =>
            {
                Some(format!("DATALENGTH({column})"))
            }
            _ => None,
        }
    }

    /// Returns the expression that reads the column without loss, or why there is none.
    pub(super) fn expression(&self) -> Result<String, String> {
        let column = &format!("t.{}", quote(&self.name));
        let sized = |length: i64, most: i64| match length {
            length if (1..=most).contains(&length) => length.to_string(),
            _ => "max".to_owned(),
        };
        Ok(match self.type_name.as_str() {
            "bit" | "tinyint" | "smallint" | "int" | "bigint" | "real" | "float" | "decimal"
            | "numeric" | "date" | "time" | "datetime" | "smalldatetime" | "datetime2"
            | "datetimeoffset" | "uniqueidentifier" | "binary" | "varbinary" | "timestamp"
            | "rowversion" => column.to_owned(),
            "money" | "smallmoney" => format!("CAST({column} AS decimal(19, 4))"),
            "char" | "varchar" => {
                format!("CAST({column} AS nvarchar({}))", sized(self.max_length, NVARCHAR_MAX))
            }
            "nchar" | "nvarchar" => {
                format!("CAST({column} AS varbinary({}))", sized(self.max_length, 2 * NVARCHAR_MAX))
            }
            "text" | "xml" => format!("CAST({column} AS nvarchar(max))"),
            "ntext" => format!("CAST(CAST({column} AS nvarchar(max)) AS varbinary(max))"),
            "image" => format!("CAST({column} AS varbinary(max))"),
            "hierarchyid" => format!("CAST({column} AS nvarchar(4000))"),
            "sql_variant" => format!("CAST({} AS varbinary(max))", variant::expression(column)),
            _ => return Err(self.refused()),
        })
    }

    fn refused(&self) -> String {
        let name = quote(&self.name);
        let (why, instead) = match self.type_name.as_str() {
            "geography" | "geometry" => (
                "whose text omits its reference system",
                format!("`{name}.AsTextZM()` and `{name}.STSrid`"),
            ),
            _ => ("which Highwater does not support", format!("`CONVERT(nvarchar(max), {name})`")),
        };
        format!(
            "column `{}` is of type `{}`, {why}: exclude it with `SOURCE__COLUMNS` or \
             `SOURCE__COLUMNS_EXCLUDED`, or read a view with {instead}",
            self.name, self.type_name
        )
    }

    /// Whether the column is read as UTF-16 text in bytes.
    pub(super) fn is_utf16(&self) -> bool {
        matches!(self.type_name.as_str(), "nchar" | "nvarchar" | "ntext" | "sql_variant")
    }

    /// Returns the expression that converts the parameter `value`, which may have its own type, to the
    /// column's type.
    pub(super) fn cast(&self, value: &str, base: Option<&ValueType>) -> String {
        if let Some(base) = base {
            return base.cast(value);
        }
        let is_coded = matches!(self.type_name.as_str(), "char" | "varchar");
        let collation = self.collation.as_deref().filter(|_| is_coded).and_then(collation);
        let collate = collation.map(|name| format!(" COLLATE {name}")).unwrap_or_default();
        format!("CAST({value}{collate} AS {})", self.declared())
    }

    /// Whether each value of the column has its own type.
    pub(super) fn is_variant(&self) -> bool {
        self.type_name == "sql_variant"
    }

    /// Returns how to compare with a key value of a checkpoint.
    ///
    /// # Errors
    ///
    /// The reason if it has a different type.
    pub(super) fn key_value(&self, json: &Json) -> Result<KeyValue, String> {
        if let (true, Json::String(text)) = (self.is_variant(), json) {
            let (base, param) = variant::parameter(text)?;
            return Ok(KeyValue { param, base: Some(base) });
        }
        let param = self.key_param(json).filter(|_| !self.is_variant());
        let param = param.ok_or_else(|| format!("it is {}", kind(json)))?;
        Ok(KeyValue { param, base: None })
    }

    fn key_param(&self, json: &Json) -> Option<Param> {
        match json {
            Json::Bool(value) => Some(Param::Bool(*value)),
            Json::Number(number) if self.type_name == "real" => {
                // Parsed from the shortest text: converting from a double would be one bit off for some
                // numbers.
                number.to_string().parse().ok().map(Param::Real)
            }
            Json::Number(number) => match number.as_i64() {
                Some(value) => Some(Param::BigInt(value)),
                None => number.as_f64().map(Param::Float),
            },
            Json::String(text) if self.is_binary() => STANDARD.decode(text).ok().map(Param::Bytes),
            Json::String(text) => Some(Param::Text(text.clone())),
            Json::Null | Json::Array(_) | Json::Object(_) => None,
        }
    }

    fn is_binary(&self) -> bool {
        matches!(self.type_name.as_str(), "binary" | "varbinary" | "timestamp" | "rowversion")
    }
}

/// Returns the kind of a JSON value, without its content.
fn kind(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) | Json::Object(_) => "an array or object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(type_name: &str, max_length: i64, precision: i64, scale: i64) -> Column {
        Column {
            name: "c]".to_owned(),
            type_name: type_name.to_owned(),
            max_length,
            precision,
            scale,
            nullable: false,
            collation: Some("Cyrillic_General_CI_AS".to_owned()),
            identity: false,
            primary: false,
        }
    }

    #[test]
    fn types_are_declared_with_their_size() {
        for (column, declared) in [
            (column("int", 4, 10, 0), "int"),
            (column("nvarchar", 40, 0, 0), "nvarchar(20)"),
            (column("nvarchar", -1, 0, 0), "nvarchar(max)"),
            (column("varchar", 20, 0, 0), "varchar(20)"),
            (column("varbinary", 16, 0, 0), "varbinary(16)"),
            (column("decimal", 17, 38, 10), "decimal(38, 10)"),
            (column("datetime2", 8, 27, 7), "datetime2(7)"),
            (column("datetimeoffset", 8, 26, 0), "datetimeoffset(0)"),
            (column("datetime", 8, 23, 3), "datetime"),
            (column("timestamp", 8, 0, 0), "binary(8)"),
            (column("uniqueidentifier", 16, 0, 0), "uniqueidentifier"),
        ] {
            assert_eq!(column.declared(), declared);
        }
    }

    #[test]
    fn the_server_converts_data_that_the_driver_would_lose() {
        for (column, selected) in [
            (column("int", 4, 10, 0), "t.[c]]]"),
            (column("money", 8, 19, 4), "CAST(t.[c]]] AS decimal(19, 4))"),
            (column("varchar", 20, 0, 0), "CAST(t.[c]]] AS nvarchar(20))"),
            (column("char", 4000, 0, 0), "CAST(t.[c]]] AS nvarchar(4000))"),
            (column("varchar", 4001, 0, 0), "CAST(t.[c]]] AS nvarchar(max))"),
            (column("varchar", -1, 0, 0), "CAST(t.[c]]] AS nvarchar(max))"),
            (column("nvarchar", 8000, 0, 0), "CAST(t.[c]]] AS varbinary(8000))"),
            (column("nvarchar", -1, 0, 0), "CAST(t.[c]]] AS varbinary(max))"),
            (column("text", 16, 0, 0), "CAST(t.[c]]] AS nvarchar(max))"),
            (column("ntext", 16, 0, 0), "CAST(CAST(t.[c]]] AS nvarchar(max)) AS varbinary(max))"),
            (column("image", 16, 0, 0), "CAST(t.[c]]] AS varbinary(max))"),
            (column("xml", -1, 0, 0), "CAST(t.[c]]] AS nvarchar(max))"),
            (column("hierarchyid", 892, 0, 0), "CAST(t.[c]]] AS nvarchar(4000))"),
        ] {
            assert_eq!(column.expression().unwrap(), selected);
        }
    }

    #[test]
    fn columns_that_can_be_too_large_are_measured() {
        let size = |type_name, max_length| column(type_name, max_length, 0, 0).size(20);
        assert_eq!(size("nvarchar", 20), None);
        assert_eq!(size("decimal", 21), None);
        for (type_name, max_length) in [("nvarchar", 21), ("varbinary", -1), ("ntext", 16)] {
            assert_eq!(size(type_name, max_length).unwrap(), "DATALENGTH(t.[c]]])");
        }
        assert_eq!(size("xml", -1).unwrap(), "DATALENGTH(CAST(t.[c]]] AS nvarchar(max)))");
    }

    #[test]
    fn a_type_without_a_form_is_rejected_with_an_alternative() {
        for (type_name, expected) in [
            ("geography", "`[c]]].AsTextZM()` and `[c]]].STSrid`"),
            ("json", "which Highwater does not support"),
            ("json", "a view with `CONVERT(nvarchar(max), [c]]])`"),
            ("vector", "a view with `CONVERT(nvarchar(max), [c]]])`"),
        ] {
            let reason = column(type_name, -1, 0, 0).expression().unwrap_err();
            assert!(
                reason.contains(expected) && reason.contains("`SOURCE__COLUMNS_EXCLUDED`"),
                "{reason}"
            );
        }
    }

    #[test]
    fn text_is_converted_back_with_the_collation_of_its_column() {
        let text = column("varchar", 5, 0, 0);
        assert_eq!(
            text.cast("@P1", None),
            "CAST(@P1 COLLATE Cyrillic_General_CI_AS AS varchar(5))"
        );
        assert_eq!(column("nvarchar", 10, 0, 0).cast("@P1", None), "CAST(@P1 AS nvarchar(5))");
        let text = Column { collation: Some("x; DROP".to_owned()), ..text };
        assert_eq!(text.cast("@P1", None), "CAST(@P1 AS varchar(5))");
    }

    #[test]
    fn key_values_of_a_checkpoint_become_parameters_of_their_type() {
        let int = column("bigint", 8, 19, 0);
        let bytes = column("binary", 2, 0, 0);
        let text = column("varchar", 2, 0, 0);
        assert_eq!(int.key_param(&(-1).into()), Some(Param::BigInt(-1)));
        assert_eq!(int.key_param(&1.5.into()), Some(Param::Float(1.5)));
        assert_eq!(column("real", 4, 0, 0).key_param(&0.1.into()), Some(Param::Real(0.1)));
        assert_eq!(int.key_param(&true.into()), Some(Param::Bool(true)));
        assert_eq!(bytes.key_param(&"AP8=".into()), Some(Param::Bytes(vec![0, 255])));
        assert_eq!(bytes.key_param(&"%".into()), None);
        assert_eq!(text.key_param(&"AP8=".into()), Some(Param::Text("AP8=".to_owned())));
        assert_eq!(text.key_param(&Json::Null), None);
    }

    #[test]
    fn a_variant_is_compared_with_its_own_type() {
        let variant = column("sql_variant", 8016, 0, 0);
        let value = variant.key_value(&"tinyint:5".into()).unwrap();
        assert_eq!(value.param, Param::BigInt(5));
        let cast = variant.cast("@P1", value.base.as_ref());
        assert_eq!(cast, "CAST(CAST(@P1 AS tinyint) AS sql_variant)");
        // Without its type a number would belong to another family, and be another position.
        for json in [Json::from(5), Json::from("5"), Json::from(true), Json::Null] {
            let error = variant.key_value(&json).unwrap_err();
            assert!(error.contains("it is") || error.contains("`sql_variant`"), "{error}");
        }
        let int = column("int", 4, 10, 0);
        assert_eq!(int.key_value(&7.into()).unwrap().base, None);
        assert_eq!(int.key_value(&Json::Null).unwrap_err(), "it is null");
    }
}
