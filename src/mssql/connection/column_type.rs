//! A column's type, as the catalogue describes it and as DDL declares it.

/// A column's type, as in `sys.columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColumnType<'a> {
    /// Name of the base type, in lower case.
    pub(crate) name: &'a str,
    /// In bytes; -1 for `max`.
    pub(crate) max_length: i64,
    pub(crate) precision: i64,
    pub(crate) scale: i64,
}

impl ColumnType<'_> {
    /// Returns the type as it would be declared.
    pub(crate) fn declared(self) -> String {
        let Self { name, max_length, precision, scale } = self;
        let length = |unit: i64| match max_length {
            -1 => format!("{name}(max)"),
            bytes => format!("{name}({})", bytes / unit),
        };
        match name {
            "nchar" | "nvarchar" => length(2),
            "char" | "varchar" | "binary" | "varbinary" => length(1),
            "decimal" | "numeric" => format!("{name}({precision}, {scale})"),
            "datetime2" | "datetimeoffset" | "time" => format!("{name}({scale})"),
            // A value can be converted to this type, but a column cannot be declared with its name.
            "timestamp" | "rowversion" => "binary(8)".to_owned(),
            _ => name.to_owned(),
        }
    }
}
