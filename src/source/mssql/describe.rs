//! What the server says of the table's columns, and what follows from a column's type.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use crate::cursor::CursorMode;
use crate::mssql::Param;
use crate::mssql::ident::quote;

/// Columns of the object that `@P1` names. An alias type is shown as the type it stands for; the
/// types made with CLR code share one system type, and are told apart by their own id.
pub(super) const DESCRIBE: &str = "\
SELECT c.name, t.name AS type_name, c.max_length, c.precision, c.scale, c.is_nullable, c.is_identity, \
CAST(CASE WHEN EXISTS (SELECT 1 FROM sys.indexes AS x JOIN sys.index_columns AS i \
ON i.object_id = x.object_id AND i.index_id = x.index_id WHERE x.object_id = c.object_id \
AND x.is_primary_key = 1 AND i.column_id = c.column_id) THEN 1 ELSE 0 END AS BIT) AS is_key \
FROM sys.columns AS c JOIN sys.types AS t ON t.user_type_id = \
CASE WHEN c.system_type_id = 240 THEN c.user_type_id ELSE c.system_type_id END \
WHERE c.object_id = OBJECT_ID(@P1) ORDER BY c.column_id";

/// A column of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// Name of the base type, in lower case.
    pub(super) type_name: String,
    /// In bytes; -1 for `max`.
    pub(super) max_length: i64,
    pub(super) precision: i64,
    pub(super) scale: i64,
    pub(super) nullable: bool,
    /// Whether the server numbers the rows in it.
    pub(super) identity: bool,
    /// Whether it is part of the primary key.
    pub(super) primary: bool,
}

impl Column {
    /// Returns the type as it would be declared.
    pub(super) fn declared(&self) -> String {
        let name = self.type_name.as_str();
        let length = |unit: i64| match self.max_length {
            -1 => format!("{name}(max)"),
            bytes => format!("{name}({})", bytes / unit),
        };
        match name {
            "nchar" | "nvarchar" => length(2),
            "char" | "varchar" | "binary" | "varbinary" => length(1),
            "decimal" | "numeric" => format!("{name}({}, {})", self.precision, self.scale),
            "datetime2" | "datetimeoffset" | "time" => format!("{name}({})", self.scale),
            // A value can be converted to it, but none can be declared with its name.
            "timestamp" | "rowversion" => "binary(8)".to_owned(),
            _ => name.to_owned(),
        }
    }

    /// Returns the column as the select list has it, or why it cannot be read without loss.
    pub(super) fn selected(&self) -> Result<String, String> {
        let name = quote(&self.name);
        match self.type_name.as_str() {
            // The driver reads money as a binary fraction.
            "money" | "smallmoney" => Ok(format!("CAST(t.{name} AS DECIMAL(19, 4)) AS {name}")),
            "hierarchyid" => Ok(format!("CAST(t.{name} AS NVARCHAR(4000)) AS {name}")),
            "geography" | "geometry" => Err(format!(
                "column `{}` is of type `{}`, which has no form that loses nothing: leave it out of \
                 the column list, or read a view that converts it",
                self.name, self.type_name
            )),
            _ => Ok(format!("t.{name}")),
        }
    }

    /// Whether `mode` can order by the column, and otherwise what it needs.
    pub(super) fn fits(&self, mode: CursorMode) -> Result<(), &'static str> {
        let name = self.type_name.as_str();
        match mode {
            CursorMode::RowVersion if matches!(name, "timestamp" | "rowversion") => Ok(()),
            CursorMode::RowVersion => Err("a `rowversion` column"),
            CursorMode::TimestampPk
                if matches!(
                    name,
                    "datetime2" | "datetimeoffset" | "datetime" | "smalldatetime" | "date"
                ) =>
            {
                Ok(())
            }
            CursorMode::TimestampPk => {
                Err("a `datetime2`, `datetimeoffset`, `datetime`, `smalldatetime` or `date` column")
            }
            CursorMode::IntegerPk if matches!(name, "bigint" | "int" | "smallint" | "tinyint") => {
                Ok(())
            }
            CursorMode::IntegerPk => Err("a column of whole numbers: `int` or `bigint`"),
            CursorMode::ChangeTracking => Err("no cursor column"),
        }
    }

    /// Whether rows can be ordered by the column as part of a key.
    pub(super) fn can_be_key(&self) -> bool {
        !matches!(
            self.type_name.as_str(),
            "xml"
                | "text"
                | "ntext"
                | "image"
                | "sql_variant"
                | "geography"
                | "geometry"
                | "hierarchyid"
                | "json"
                | "vector"
        )
    }

    /// Returns the parameter for a key value of a checkpoint; `None` where it is of another type.
    pub(super) fn key_param(&self, json: &Json) -> Option<Param> {
        match json {
            Json::Bool(value) => Some(Param::Bool(*value)),
            Json::Number(number) => match number.as_i64() {
                Some(value) => Some(Param::BigInt(value)),
                None => number.as_f64().map(Param::Float),
            },
            Json::String(text) if self.is_binary() => STANDARD.decode(text).ok().map(Param::Bytes),
            Json::String(text) => Some(Param::Text(text.clone())),
            Json::Null | Json::Array(_) | Json::Object(_) => None,
        }
    }

    /// Returns a cursor's normal text with the digits that the type can read.
    pub(super) fn cursor_text(&self, normal: &str) -> String {
        let length = match self.type_name.as_str() {
            "datetime" => "2013-01-01T10:00:00.000".len(),
            "smalldatetime" => "2013-01-01T10:00:00".len(),
            _ => normal.len(),
        };
        normal.get(..length).unwrap_or(normal).to_owned()
    }

    /// Returns by how many milliseconds a time may be rounded up when it is stored in the column.
    ///
    /// The upper bound of a fetch is stored in the same type: lowered by this much, it is rounded
    /// down in effect, and never lies before a row that is stamped later.
    pub(super) fn rounding_ms(&self) -> u32 {
        match (self.type_name.as_str(), self.scale) {
            ("smalldatetime", _) => 30_000,
            ("datetime", _) => 2,
            ("datetime2" | "datetimeoffset", 0) => 500,
            ("datetime2" | "datetimeoffset", 1) => 50,
            ("datetime2" | "datetimeoffset", 2) => 5,
            ("datetime2" | "datetimeoffset", 3..=6) => 1,
            // A conversion to `date` cuts the time off.
            _ => 0,
        }
    }

    /// Returns how many milliseconds at most lie between two times that the column cannot tell apart.
    pub(super) fn grain_ms(&self) -> i32 {
        match (self.type_name.as_str(), self.scale) {
            ("date", _) => 86_400_000,
            ("smalldatetime", _) => 60_000,
            ("datetime2" | "datetimeoffset", 0) => 1_000,
            ("datetime2" | "datetimeoffset", 1) => 100,
            ("datetime2" | "datetimeoffset", 2) => 10,
            // `datetime` counts in thirds of ten milliseconds.
            _ => 4,
        }
    }

    fn is_binary(&self) -> bool {
        matches!(self.type_name.as_str(), "binary" | "varbinary" | "timestamp" | "rowversion")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(type_name: &str, max_length: i64, precision: i64, scale: i64) -> Column {
        Column {
            name: "c".to_owned(),
            type_name: type_name.to_owned(),
            max_length,
            precision,
            scale,
            nullable: false,
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
    fn key_values_of_a_checkpoint_become_parameters_of_their_type() {
        let int = column("bigint", 8, 19, 0);
        let bytes = column("binary", 2, 0, 0);
        let text = column("varchar", 2, 0, 0);
        assert_eq!(int.key_param(&(-1).into()), Some(Param::BigInt(-1)));
        assert_eq!(int.key_param(&1.5.into()), Some(Param::Float(1.5)));
        assert_eq!(int.key_param(&true.into()), Some(Param::Bool(true)));
        assert_eq!(bytes.key_param(&"AP8=".into()), Some(Param::Bytes(vec![0, 255])));
        assert_eq!(bytes.key_param(&"%".into()), None);
        assert_eq!(text.key_param(&"AP8=".into()), Some(Param::Text("AP8=".to_owned())));
        assert_eq!(text.key_param(&Json::Null), None);
    }

    #[test]
    fn older_types_get_the_digits_they_can_read() {
        let normal = "2013-01-01T10:00:00.0030000";
        for (type_name, text) in [
            ("datetime", "2013-01-01T10:00:00.003"),
            ("smalldatetime", "2013-01-01T10:00:00"),
            ("datetime2", normal),
        ] {
            assert_eq!(column(type_name, 8, 0, 7).cursor_text(normal), text);
        }
        assert_eq!(column("date", 3, 0, 0).cursor_text("2013-01-01"), "2013-01-01");
    }
}
