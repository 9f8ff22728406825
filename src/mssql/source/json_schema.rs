//! The JSON Schema of a source's rows and keys: the same forms as in `docs/reference/types.md`.
//!
//! # Design
//!
//! A `format` is set only where the text satisfies its definition, because some validators and all generators of types
//! rely on it. Times without an offset are not `date-time`, and a `time` of day is not RFC 3339's, so these have a
//! `pattern` alone. `int32`, `int64`, `float` and `double` are `OpenAPI`'s formats: validators ignore them, and generators
//! choose the right type by them. `byte` is not set: by it, a generator for Python decodes the bytes as UTF-8.

use highwater_engine::cursor::CursorMode;
use highwater_engine::error::ErrorKind;
use highwater_engine::event::Operation;
use highwater_engine::source::FetchError;
use serde_json::{Map, Value as Json, json};

use super::describe::Column;
use super::{Mssql, columns};

/// Digits before the point of `money` and `smallmoney`.
const MONEY_DIGITS: i64 = 15;
const SMALL_MONEY_DIGITS: i64 = 6;
/// Digits after the point of both.
const MONEY_SCALE: i64 = 4;

/// The schemas of what a source delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSchema {
    /// How rows are ordered.
    pub mode: CursorMode,
    /// The key of a row: an object with each key column, under its name in the settings.
    pub key: Json,
    /// The delivered columns of a row: an object.
    pub row: Json,
    /// The operations that can occur.
    pub operations: Vec<Operation>,
}

impl Mssql {
    /// Describes the table and returns the schemas of its rows. The source must be open.
    ///
    /// # Errors
    ///
    /// [`FetchError`] as of a fetch: the table cannot be described, or the settings do not fit its columns.
    pub async fn row_schema(&self) -> Result<RowSchema, FetchError> {
        let mut state = self.state.lock().await;
        let described = self.describe(&mut state.connection).await?;
        let plan = self.make_plan(&described)?;
        let choice = &self.decided()?.choice;
        let delivered = columns::delivered(&self.settings, &self.origin, choice, &described)?;
        // A row with NULL in one of these is never delivered.
        let is_never_null = |column: &Column| {
            !column.nullable || plan.cursor.as_ref() == Some(column) || plan.key.contains(column)
        };
        let key = plan.key_names.iter().zip(&plan.key);
        let key = key.map(|(name, column)| Ok((name.clone(), column.json_schema(false)?)));
        let masked = columns::masked(&self.settings, &self.origin, choice, &described)?;
        let hash =
            |column: &Column| masked.iter().find(|(other, _)| other == column)?.1.hash_name();
        let row = delivered.iter().map(|column| {
            let nullable = !is_never_null(column);
            let schema = match hash(column) {
                Some(hash) => column.hash_schema(hash, nullable),
                None => column.json_schema(nullable)?,
            };
            Ok((column.name.clone(), schema))
        });
        Ok(RowSchema {
            mode: choice.mode,
            key: object("Key", "The key of the row.", key)?,
            row: object("Row", "The columns of the row in its current state.", row)?,
            operations: plan.selection.possible(),
        })
    }
}

/// Returns the schema of an object with these properties, all of them required.
fn object(
    title: &str,
    description: &str,
    properties: impl Iterator<Item = Result<(String, Json), String>>,
) -> Result<Json, FetchError> {
    let properties = properties.collect::<Result<Map<String, Json>, String>>();
    let properties =
        properties.map_err(|reason| FetchError::new(ErrorKind::Configuration, reason))?;
    let required: Vec<&String> = properties.keys().collect();
    Ok(json!({
        "title": title,
        "description": description,
        "type": "object",
        "required": required,
        "properties": properties,
    }))
}

impl Column {
    /// Returns the schema of the column's values, or why the column cannot be read.
    pub(super) fn json_schema(&self, nullable: bool) -> Result<Json, String> {
        Ok(described(self.shown(), self.form()?, nullable))
    }

    /// Returns the schema of the column's hashes.
    fn hash_schema(&self, hash: &str, nullable: bool) -> Json {
        let form = json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
        let form = if let Json::Object(form) = form { form } else { Map::new() };
        described(format!("{hash} of {}", self.shown()), form, nullable)
    }

    /// Returns the type for display.
    fn shown(&self) -> String {
        match self.type_name.as_str() {
            "timestamp" | "rowversion" => "rowversion".to_owned(),
            _ => self.declared(),
        }
    }

    fn form(&self) -> Result<Map<String, Json>, String> {
        let schema = match self.type_name.as_str() {
            "bit" => json!({ "type": "boolean" }),
            "tinyint" => json!({ "type": "integer", "minimum": 0, "maximum": u8::MAX }),
            "smallint" => json!({ "type": "integer", "minimum": i16::MIN, "maximum": i16::MAX }),
            "int" => json!({ "type": "integer", "format": "int32" }),
            "bigint" => json!({ "type": "integer", "format": "int64" }),
            "real" => json!({ "type": "number", "format": "float" }),
            "float" => json!({ "type": "number", "format": "double" }),
            "decimal" | "numeric" => decimal(self.precision - self.scale, self.scale),
            "money" => decimal(MONEY_DIGITS, MONEY_SCALE),
            "smallmoney" => decimal(SMALL_MONEY_DIGITS, MONEY_SCALE),
            "date" => json!({ "type": "string", "format": "date" }),
            "time" => text(&format!("^{}$", clock(self.scale))),
            "smalldatetime" => text(&format!("^{DAY}T{}$", clock(0))),
            "datetime" => text(&format!("^{DAY}T{}$", clock(3))),
            "datetime2" => text(&format!("^{DAY}T{}$", clock(self.scale))),
            "datetimeoffset" => json!({
                "type": "string",
                "format": "date-time",
                "pattern": format!("^{DAY}T{}[+-][0-9]{{2}}:[0-9]{{2}}$", clock(self.scale)),
            }),
            "char" | "varchar" => sized(self.max_length),
            "nchar" | "nvarchar" => sized(self.max_length / 2),
            "text" | "ntext" | "xml" => json!({ "type": "string" }),
            "binary" | "varbinary" | "image" | "timestamp" | "rowversion" => {
                json!({ "type": "string", "contentEncoding": "base64" })
            }
            "uniqueidentifier" => json!({ "type": "string", "format": "uuid" }),
            "hierarchyid" => text("^/([-.0-9]+/)*$"),
            // The type of the value, then the value.
            "sql_variant" => text("^[a-z][^:]*:"),
            // A type without a form cannot be read; the expression gives the reason.
            _ => return Err(self.expression().err().unwrap_or_default()),
        };
        Ok(if let Json::Object(schema) = schema { schema } else { Map::new() })
    }
}

/// Returns the schema of a value of this form.
fn described(description: String, form: Map<String, Json>, nullable: bool) -> Json {
    let mut schema = Map::new();
    schema.insert("description".to_owned(), description.into());
    schema.extend(form);
    if let Some(name) = schema.get("type").cloned().filter(|_| nullable) {
        schema.insert("type".to_owned(), json!([name, "null"]));
    }
    schema.into()
}

const DAY: &str = "[0-9]{4}-[0-9]{2}-[0-9]{2}";

/// Returns the pattern of a time of day with this many digits after the seconds.
fn clock(scale: i64) -> String {
    let seconds = "[0-9]{2}:[0-9]{2}:[0-9]{2}";
    if scale > 0 { format!(r"{seconds}\.[0-9]{{{scale}}}") } else { seconds.to_owned() }
}

fn text(pattern: &str) -> Json {
    json!({ "type": "string", "pattern": pattern })
}

/// Returns the schema of a decimal number as text, with at most `digits` before the point and exactly `scale` after it.
fn decimal(digits: i64, scale: i64) -> Json {
    let fraction = if scale > 0 { format!(r"\.[0-9]{{{scale}}}") } else { String::new() };
    text(&format!("^-?[0-9]{{1,{}}}{fraction}$", digits.max(1)))
}

/// Returns the schema of text with a declared length; `max` has none.
fn sized(length: i64) -> Json {
    // A schema counts characters. The server counts bytes or UTF-16 units, of which there are at least as many.
    if length > 0 {
        json!({ "type": "string", "maxLength": length })
    } else {
        json!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::describe::tests::column as not_null;

    fn column(type_name: &str, max_length: i64, precision: i64, scale: i64) -> Column {
        Column { nullable: true, ..not_null(type_name, max_length, precision, scale) }
    }

    #[test]
    fn each_type_has_the_schema_of_its_json_form() {
        let date = "[0-9]{4}-[0-9]{2}-[0-9]{2}";
        let time = "[0-9]{2}:[0-9]{2}:[0-9]{2}";
        for (column, shown, expected) in [
            (column("bit", 1, 1, 0), "bit", json!({ "type": "boolean" })),
            (
                column("tinyint", 1, 3, 0),
                "tinyint",
                json!({ "type": "integer", "minimum": 0, "maximum": 255 }),
            ),
            (
                column("smallint", 2, 5, 0),
                "smallint",
                json!({ "type": "integer", "minimum": -32768, "maximum": 32767 }),
            ),
            (column("int", 4, 10, 0), "int", json!({ "type": "integer", "format": "int32" })),
            (column("bigint", 8, 19, 0), "bigint", json!({ "type": "integer", "format": "int64" })),
            (column("real", 4, 24, 0), "real", json!({ "type": "number", "format": "float" })),
            (column("float", 8, 53, 0), "float", json!({ "type": "number", "format": "double" })),
            (
                column("decimal", 5, 9, 4),
                "decimal(9, 4)",
                json!({ "type": "string", "pattern": r"^-?[0-9]{1,5}\.[0-9]{4}$" }),
            ),
            (
                column("decimal", 17, 38, 38),
                "decimal(38, 38)",
                json!({ "type": "string", "pattern": r"^-?[0-9]{1,1}\.[0-9]{38}$" }),
            ),
            (
                column("numeric", 17, 38, 0),
                "numeric(38, 0)",
                json!({ "type": "string", "pattern": "^-?[0-9]{1,38}$" }),
            ),
            (
                column("money", 8, 19, 4),
                "money",
                json!({ "type": "string", "pattern": r"^-?[0-9]{1,15}\.[0-9]{4}$" }),
            ),
            (
                column("smallmoney", 4, 10, 4),
                "smallmoney",
                json!({ "type": "string", "pattern": r"^-?[0-9]{1,6}\.[0-9]{4}$" }),
            ),
            (column("date", 3, 10, 0), "date", json!({ "type": "string", "format": "date" })),
            (
                column("time", 5, 16, 7),
                "time(7)",
                json!({ "type": "string", "pattern": format!(r"^{time}\.[0-9]{{7}}$") }),
            ),
            (
                column("time", 3, 8, 0),
                "time(0)",
                json!({ "type": "string", "pattern": format!("^{time}$") }),
            ),
            (
                column("smalldatetime", 4, 16, 0),
                "smalldatetime",
                json!({ "type": "string", "pattern": format!("^{date}T{time}$") }),
            ),
            (
                column("datetime", 8, 23, 3),
                "datetime",
                json!({ "type": "string", "pattern": format!(r"^{date}T{time}\.[0-9]{{3}}$") }),
            ),
            (
                column("datetime2", 8, 27, 7),
                "datetime2(7)",
                json!({ "type": "string", "pattern": format!(r"^{date}T{time}\.[0-9]{{7}}$") }),
            ),
            (
                column("datetimeoffset", 10, 34, 7),
                "datetimeoffset(7)",
                json!({
                    "type": "string",
                    "format": "date-time",
                    "pattern": format!(r"^{date}T{time}\.[0-9]{{7}}[+-][0-9]{{2}}:[0-9]{{2}}$"),
                }),
            ),
            (column("char", 5, 0, 0), "char(5)", json!({ "type": "string", "maxLength": 5 })),
            (
                column("varchar", 20, 0, 0),
                "varchar(20)",
                json!({ "type": "string", "maxLength": 20 }),
            ),
            (column("varchar", -1, 0, 0), "varchar(max)", json!({ "type": "string" })),
            (column("nchar", 10, 0, 0), "nchar(5)", json!({ "type": "string", "maxLength": 5 })),
            (
                column("nvarchar", 40, 0, 0),
                "nvarchar(20)",
                json!({ "type": "string", "maxLength": 20 }),
            ),
            (column("nvarchar", -1, 0, 0), "nvarchar(max)", json!({ "type": "string" })),
            (column("text", 16, 0, 0), "text", json!({ "type": "string" })),
            (column("ntext", 16, 0, 0), "ntext", json!({ "type": "string" })),
            (column("xml", -1, 0, 0), "xml", json!({ "type": "string" })),
            (column("binary", 8, 0, 0), "binary(8)", base64()),
            (column("varbinary", -1, 0, 0), "varbinary(max)", base64()),
            (column("image", 16, 0, 0), "image", base64()),
            (column("timestamp", 8, 0, 0), "rowversion", base64()),
            (
                column("uniqueidentifier", 16, 0, 0),
                "uniqueidentifier",
                json!({ "type": "string", "format": "uuid" }),
            ),
            (
                column("hierarchyid", 892, 0, 0),
                "hierarchyid",
                json!({ "type": "string", "pattern": "^/([-.0-9]+/)*$" }),
            ),
            (
                column("sql_variant", 8016, 0, 0),
                "sql_variant",
                json!({ "type": "string", "pattern": "^[a-z][^:]*:" }),
            ),
        ] {
            let mut expected = expected;
            expected["description"] = shown.into();
            assert_eq!(column.json_schema(false), Ok(expected.clone()), "{shown}");
            expected["type"] = json!([expected["type"], "null"]);
            assert_eq!(column.json_schema(true), Ok(expected), "{shown}");
        }
    }

    fn base64() -> Json {
        json!({ "type": "string", "contentEncoding": "base64" })
    }

    #[test]
    fn a_type_that_cannot_be_read_has_no_schema_and_the_same_error() {
        for type_name in ["geography", "geometry", "json", "vector"] {
            let column = column(type_name, -1, 0, 0);
            let reason = column.expression().unwrap_err();
            assert_eq!(column.json_schema(true).unwrap_err(), reason);
        }
    }
}
