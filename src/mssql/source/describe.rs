//! The table's columns as the server describes them, and which of them can order rows.

use highwater_engine::cursor::CursorMode;
use highwater_engine::error::ErrorKind;
use highwater_engine::value::Value;

use crate::connection::SqlError;
use crate::ident::quote;

use super::values;

/// Cells per column description.
const COLUMN_CELLS: usize = 9;

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
    /// Text columns only.
    pub(super) collation: Option<String>,
    /// Whether it is an identity column.
    pub(super) identity: bool,
    /// Whether it is part of the primary key.
    pub(super) primary: bool,
}

impl Column {
    /// Whether `mode` can order by the column; otherwise what the mode needs.
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
            CursorMode::IntegerPk => Err("an integer column: `int` or `bigint`"),
            CursorMode::ChangeTracking => Err("no cursor column"),
        }
    }

    /// Whether rows can be ordered by the column as part of a key.
    pub(super) fn can_be_key(&self) -> bool {
        !matches!(
            self.type_name.as_str(),
            "xml" | "text" | "ntext" | "image" | "geography" | "geometry" | "json" | "vector"
        )
    }

    /// Returns the condition that marks a row as deleted, or why the column cannot be used for that.
    pub(super) fn deleted(&self) -> Result<String, String> {
        let column = format!("t.{}", quote(&self.name));
        match self.type_name.as_str() {
            "bit" | "tinyint" | "smallint" | "int" | "bigint" => Ok(format!("{column} <> 0")),
            _ if self.nullable => Ok(format!("{column} IS NOT NULL")),
            _ => Err(format!(
                "column `{}` is of type `{}` and never NULL, so every row would count as deleted: set a \
                 flag, or a column that is NULL until deletion, as `SOURCE__SOFT_DELETE`",
                self.name, self.type_name
            )),
        }
    }

    /// Returns a cursor's normalized text with as many digits as the type accepts.
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
    /// The upper bound of a fetch is converted to the column's type. Lowered by this amount, the bound is in
    /// effect rounded down, so no row that is stamped later is below it.
    pub(super) fn rounding_ms(&self) -> u32 {
        match (self.type_name.as_str(), self.scale) {
            ("smalldatetime", _) => 30_000,
            ("datetime", _) => 2,
            ("datetime2" | "datetimeoffset", 0) => 500,
            ("datetime2" | "datetimeoffset", 1) => 50,
            ("datetime2" | "datetimeoffset", 2) => 5,
            ("datetime2" | "datetimeoffset", 3..=6) => 1,
            // A conversion to `date` truncates the time.
            _ => 0,
        }
    }

    /// Returns the largest difference in milliseconds between two times that the column cannot tell apart.
    pub(super) fn grain_ms(&self) -> i32 {
        match (self.type_name.as_str(), self.scale) {
            ("date", _) => 86_400_000,
            ("smalldatetime", _) => 60_000,
            ("datetime2" | "datetimeoffset", 0) => 1_000,
            ("datetime2" | "datetimeoffset", 1) => 100,
            ("datetime2" | "datetimeoffset", 2) => 10,
            // `datetime` counts in steps of 3⅓ ms.
            _ => 4,
        }
    }
}

/// Reads one row of the server's column description.
#[expect(clippy::needless_pass_by_value, reason = "a connection hands its rows over")]
pub(super) fn column(row: tiberius::Row) -> Result<Column, SqlError> {
    let mut row = values(&row);
    // For a query, whether it can be run follows.
    if row.len() > COLUMN_CELLS {
        let problem = row.split_off(COLUMN_CELLS);
        if let [Value::Int(number), message] = problem.as_slice() {
            let message = if let Value::Text(text) = message { text.as_str() } else { "" };
            let reason = format!("`SOURCE__QUERY` cannot be read: error {number}: {message}");
            return Err(SqlError::new(ErrorKind::Configuration, reason));
        }
    }
    let [
        Value::Text(name),
        Value::Text(type_name),
        Value::Int(max_length),
        Value::Int(precision),
        Value::Int(scale),
        Value::Bool(nullable),
        collation @ (Value::Text(_) | Value::Null),
        Value::Bool(identity),
        Value::Bool(primary),
    ] = row.as_slice()
    else {
        let reason = format!("the catalogue has an unexpected format for a column: {row:?}");
        return Err(SqlError::new(ErrorKind::Internal, reason));
    };
    Ok(Column {
        name: name.clone(),
        type_name: type_name.to_lowercase(),
        max_length: *max_length,
        precision: *precision,
        scale: *scale,
        nullable: *nullable,
        collation: if let Value::Text(name) = collation { Some(name.clone()) } else { None },
        identity: *identity,
        primary: *primary,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A column `c` of this type, which may not be NULL.
    pub(in crate::source) fn column(
        type_name: &str,
        max_length: i64,
        precision: i64,
        scale: i64,
    ) -> Column {
        Column {
            name: "c".to_owned(),
            type_name: type_name.to_owned(),
            max_length,
            precision,
            scale,
            nullable: false,
            collation: None,
            identity: false,
            primary: false,
        }
    }

    #[test]
    fn a_flag_or_a_non_null_value_marks_a_deleted_row() {
        let deleted =
            |type_name, nullable| Column { nullable, ..column(type_name, 8, 0, 0) }.deleted().ok();
        for type_name in ["bit", "int"] {
            assert_eq!(deleted(type_name, false).as_deref(), Some("t.[c] <> 0"));
        }
        for type_name in ["datetime2", "date", "nvarchar", "uniqueidentifier"] {
            assert_eq!(deleted(type_name, true).as_deref(), Some("t.[c] IS NOT NULL"));
            assert_eq!(deleted(type_name, false), None);
        }
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
