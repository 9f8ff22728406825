//! Which rows belong to one part of a poller: the condition on the key. Pure.
//!
//! # Why so
//!
//! - `HASHBYTES('SHA2_256', …)` is SHA-256 of bytes: no version of the server, no collation and no setting of a
//!   session changes it. `CHECKSUM` depends on the collation, gives neighbouring numbers neighbouring values,
//!   and is promised by nobody to stay; its `ABS` fails at -2,147,483,648.
//! - The bytes are those of the value as Unicode text, in a form that the server documents (styles 126, 127, 1,
//!   2, 3): how it lays out a number or a time in bytes is not promised across its versions.
//! - Four bytes of the hash as a `BIGINT` are never negative, so `%` needs no `ABS`.
//! - `NULL` is empty text: a condition that is neither true nor false would leave the row to nobody.
//! - Number and count are constants in the text, so that the server can tell that a computed column holds
//!   just this expression, and seek by its index.
//!
//! Two keys may have one text (`a|`, `b` and `a`, `|b`): they belong to one part then, which is no harm. Two
//! texts may be one key (`a` and `A`, where the collation says so): a row whose key is respelled may change
//! its part, and comes there with its new position.

use highwater_engine::partition::Partition;

use crate::ident::quote;

use super::describe::Column;
use super::variant;

/// Returns the condition that a row, whose key columns stand behind `alias`, belongs to `partition`.
pub(super) fn condition(partition: Partition, key: &[Column], alias: &str) -> String {
    let Partition { index, count } = partition;
    format!("{} % {count} = {index}", hash(key, alias))
}

/// Returns the hash of a key as a number from 0 to 4,294,967,295.
fn hash(key: &[Column], alias: &str) -> String {
    let texts: Vec<String> = key.iter().map(|column| text(column, alias)).collect();
    let text = texts.join(" + N'|' + ");
    format!("CAST(SUBSTRING(HASHBYTES('SHA2_256', {text}), 1, 4) AS BIGINT)")
}

/// Returns a value as text that only the value decides.
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
        // With its type, as values of different types may have one text; what is cut belongs to one part.
        "sql_variant" => format!("CONVERT(NVARCHAR(4000), {})", variant::expression(&value)),
        // Whole numbers, decimals, flags and identifiers have one text only.
        _ => format!("CONVERT(NVARCHAR(40), {value})"),
    };
    format!("ISNULL({converted}, N'')")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn column(name: &str, type_name: &str) -> Column {
        Column {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            max_length: 8,
            precision: 10,
            scale: 0,
            nullable: true,
            collation: None,
            identity: false,
            primary: false,
        }
    }

    #[test]
    fn a_row_is_of_the_part_that_its_hash_leaves_as_a_rest() {
        let partition = Partition { index: 3, count: 8 };
        expect!["CAST(SUBSTRING(HASHBYTES('SHA2_256', ISNULL(CONVERT(NVARCHAR(40), t.[id]), N'')), 1, 4) AS BIGINT) % 8 = 3"]
            .assert_eq(&condition(partition, &[column("id", "int")], "t"));
        let key = [column("shop", "varchar"), column("at]", "datetime2")];
        expect!["CAST(SUBSTRING(HASHBYTES('SHA2_256', ISNULL(CONVERT(NVARCHAR(4000), c.[shop]), N'') + N'|' + ISNULL(CONVERT(NVARCHAR(40), c.[at]]], 126), N'')), 1, 4) AS BIGINT) % 8 = 3"]
            .assert_eq(&condition(partition, &key, "c"));
    }

    #[test]
    fn every_type_that_can_be_a_key_has_a_text_that_no_setting_changes() {
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
