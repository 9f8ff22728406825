//! The target's columns, as the server describes them.

use highwater_engine::error::ErrorKind;
use tiberius::{ColumnData, Row};

use crate::connection::SqlError;

/// Columns of the object that `@P1` names. An alias type is shown as its base type. CLR types share one
/// system type, so they are identified by their own id.
pub(super) const DESCRIBE: &str = "\
SELECT c.name, t.name AS type_name, CAST(c.max_length AS int) AS max_length, \
CAST(c.precision AS int) AS precision, CAST(c.scale AS int) AS scale, c.is_identity, \
c.collation_name \
FROM sys.columns AS c JOIN sys.types AS t ON t.user_type_id = \
CASE WHEN c.system_type_id = 240 THEN c.user_type_id ELSE c.system_type_id END \
WHERE c.object_id = OBJECT_ID(@P1) ORDER BY c.column_id";

/// A column of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// Name of the base type, in lower case.
    pub(super) type_name: String,
    /// In bytes; -1 for `max`.
    pub(super) max_length: i32,
    pub(super) precision: i32,
    pub(super) scale: i32,
    /// Whether it is an identity column.
    pub(super) identity: bool,
    /// Text columns only.
    pub(super) collation: Option<String>,
}

/// Reads one row of [`DESCRIBE`].
pub(super) fn column(row: Row) -> Result<Column, SqlError> {
    let cells: Vec<ColumnData<'static>> = row.into_token_row().into_iter().collect();
    let [
        ColumnData::String(Some(name)),
        ColumnData::String(Some(type_name)),
        ColumnData::I32(Some(max_length)),
        ColumnData::I32(Some(precision)),
        ColumnData::I32(Some(scale)),
        ColumnData::Bit(Some(identity)),
        ColumnData::String(collation),
    ] = cells.as_slice()
    else {
        let text = "the catalogue has an unexpected format for a column";
        return Err(SqlError::new(ErrorKind::Internal, text));
    };
    Ok(Column {
        name: name.to_string(),
        type_name: type_name.to_lowercase(),
        max_length: *max_length,
        precision: *precision,
        scale: *scale,
        identity: *identity,
        collation: collation.as_ref().map(ToString::to_string),
    })
}
