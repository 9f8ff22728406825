//! Which rows belong to a partition of a poller: the condition on the key. Pure.
//!
//! # Design
//!
//! - `HASHBYTES('SHA2_256', …)` is SHA-256 of bytes: it does not depend on the server version, the collation
//!   or the session settings. `CHECKSUM` depends on the collation, maps neighbouring numbers to neighbouring
//!   values, and is not guaranteed to be stable; its `ABS` fails at -2,147,483,648.
//! - The bytes are those of the value as Unicode text, in a form that the server documents (styles 126, 127,
//!   1, 2, 3). The binary layout of numbers and times is not guaranteed across versions.
//! - Four bytes of the hash as a `BIGINT` are never negative, so `%` needs no `ABS`.
//! - `NULL` becomes empty text: with a condition that is neither true nor false, no partition would read the
//!   row.
//! - Index and count are constants in the text, so that the server can match the expression with a computed
//!   column, and seek by its index.
//!
//! Two keys may have the same text (`a|`, `b` and `a`, `|b`): they belong to the same partition, which is
//! harmless. Two texts may be the same key (`a` and `A`, depending on the collation): a row whose key changes
//! its spelling may move to another partition, and is read there at its new position.

use highwater_engine::partition::Partition;

use crate::ident::quote;

use super::describe::Column;
use super::variant;

/// Returns the condition that a row, whose key columns are qualified with `alias`, belongs to `partition`.
pub(super) fn condition(partition: Partition, key: &[Column], alias: &str) -> String {
    format!("{} = {}", number(partition, key, alias), partition.index)
}

/// Returns the number of the partition of a row, if there are as many as for `partition`.
pub(super) fn number(partition: Partition, key: &[Column], alias: &str) -> String {
    format!("{} % {}", hash(key, alias), partition.count)
}

/// Returns the hash of a key as a number from 0 to 4,294,967,295.
fn hash(key: &[Column], alias: &str) -> String {
    let texts: Vec<String> = key.iter().map(|column| text(column, alias)).collect();
    let text = texts.join(" + N'|' + ");
    format!("CAST(SUBSTRING(HASHBYTES('SHA2_256', {text}), 1, 4) AS BIGINT)")
}

/// Returns a value as text that depends on the value only.
fn text(column: &Column, alias: &str) -> String {
    let value = format!("{alias}.{}", quote(&column.name));
    let converted = match column.type_name.as_str() {
        "datetimeoffset" => format!("CONVERT(NVARCHAR(40), {value}, 127)"),
        "date" | "time" | "datetime" | "datetime2" | "smalldatetime" => {
            format!("CONVERT(NVARCHAR(40), {value}, 126)")
        }
        "real" | "float" => format!("CONVERT(NVARCHAR(40), {value}, 3)"),
        "money" | "smallmoney" => format!("CONVERT(NVARCHAR(40), {value}, 2)"),
        "timestamp" | "rowversion" => {
            format!("CONVERT(NVARCHAR(40), CAST({value} AS VARBINARY(8)), 1)")
        }
        "binary" | "varbinary" => format!("CONVERT(NVARCHAR(4000), {value}, 1)"),
        "char" | "varchar" | "nchar" | "nvarchar" => format!("CONVERT(NVARCHAR(4000), {value})"),
        // With its type, since values of different types may have the same text. Truncated texts share a
        // partition.
        "sql_variant" => format!("CONVERT(NVARCHAR(4000), {})", variant::expression(&value)),
        // Integers, decimals, flags and identifiers have only one text.
        _ => format!("CONVERT(NVARCHAR(40), {value})"),
    };
    format!("ISNULL({converted}, N'')")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn column(name: &str, type_name: &str) -> Column {
        let plain = crate::source::describe::tests::column(type_name, 8, 10, 0);
        Column { name: name.to_owned(), nullable: true, ..plain }
    }

    #[test]
    fn the_partition_of_a_row_is_the_remainder_of_its_hash() {
        let partition = Partition { index: 3, count: 8 };
        expect!["CAST(SUBSTRING(HASHBYTES('SHA2_256', ISNULL(CONVERT(NVARCHAR(40), t.[id]), N'')), 1, 4) AS BIGINT) % 8 = 3"]
            .assert_eq(&condition(partition, &[column("id", "int")], "t"));
        let key = [column("shop", "varchar"), column("at]", "datetime2")];
        expect!["CAST(SUBSTRING(HASHBYTES('SHA2_256', ISNULL(CONVERT(NVARCHAR(4000), c.[shop]), N'') + N'|' + ISNULL(CONVERT(NVARCHAR(40), c.[at]]], 126), N'')), 1, 4) AS BIGINT) % 8 = 3"]
            .assert_eq(&condition(partition, &key, "c"));
    }

    #[test]
    fn every_key_type_has_a_text_that_is_independent_of_settings() {
        for (type_name, expected) in [
            ("uniqueidentifier", "CONVERT(NVARCHAR(40), t.[k])"),
            ("decimal", "CONVERT(NVARCHAR(40), t.[k])"),
            ("nvarchar", "CONVERT(NVARCHAR(4000), t.[k])"),
            ("datetime", "CONVERT(NVARCHAR(40), t.[k], 126)"),
            ("datetimeoffset", "CONVERT(NVARCHAR(40), t.[k], 127)"),
            ("float", "CONVERT(NVARCHAR(40), t.[k], 3)"),
            ("money", "CONVERT(NVARCHAR(40), t.[k], 2)"),
            ("varbinary", "CONVERT(NVARCHAR(4000), t.[k], 1)"),
            ("timestamp", "CONVERT(NVARCHAR(40), CAST(t.[k] AS VARBINARY(8)), 1)"),
        ] {
            let column = column("k", type_name);
            assert_eq!(text(&column, "t"), format!("ISNULL({expected}, N'')"), "{type_name}");
        }
        let variant = text(&column("k", "sql_variant"), "c");
        assert!(variant.starts_with("ISNULL(CONVERT(NVARCHAR(4000), CASE WHEN c.[k] IS NOT NULL"));
        assert!(variant.contains("SQL_VARIANT_PROPERTY(c.[k], N'BaseType')"), "{variant}");
    }
}
