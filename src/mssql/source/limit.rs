//! Limits how much of a table is held in memory: the server does not send values that are too large, and
//! reading stops once a batch is full.
//!
//! # Design
//!
//! The driver holds a complete row before it can be checked, and a value may have 2 GiB. So each column that
//! could exceed the limit is read as `NULL` in that case, with its size in an extra cell. Memory then holds
//! at most a batch and one more row: at most one largest value for each column of unlimited length. If
//! reading stops early, the connection is dropped together with the rest of the answer.

use std::sync::Arc;

use highwater_engine::value::Value;
use serde_json::{Map, Value as Json};

use crate::ident::quote;

use super::SourceSettings;
use super::describe::Column;

/// How much may be read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeLimits {
    /// Largest value of one column, in stored bytes; for `xml`, in bytes of its UTF-16 text.
    pub value_bytes_max: usize,
    /// Approximate bytes of events at which a batch is closed; a single row may exceed it. For a range with a
    /// given end only columns count.
    pub batch_bytes_max: usize,
}

impl Default for SizeLimits {
    fn default() -> Self {
        Self { value_bytes_max: 4 << 20, batch_bytes_max: 4 << 20 }
    }
}

/// Approximate bytes of an event besides its columns: some 240 in its JSON for id, key, position and source,
/// and as many again in memory. With this, a batch of small rows needs no more memory than one of large rows.
const EVENT_BYTES: usize = 450;

/// The columns whose values can be too large, and the context for the error.
#[derive(Debug)]
pub(super) struct Guard {
    poller: String,
    table: String,
    key: Vec<String>,
    limits: SizeLimits,
    /// Names of the guarded columns, in the order of their sizes in a row.
    columns: Vec<String>,
}

impl Guard {
    /// Returns the guard of a table, and the select list of `read` followed by the sizes.
    ///
    /// The first `delivered` columns and those of the key are read. Keys are never long, and always needed.
    ///
    /// # Errors
    ///
    /// Why a column cannot be read without loss.
    pub(super) fn new(
        settings: &SourceSettings,
        table: String,
        read: &[Column],
        key_at: &[usize],
    ) -> Result<(Self, Vec<String>), String> {
        let limits = settings.limits;
        let mut select = Vec::new();
        let mut sizes = Vec::new();
        let mut columns = Vec::new();
        for (at, column) in read.iter().enumerate() {
            let (expression, size) = (column.expression()?, column.size(limits.value_bytes_max));
            let name = quote(&column.name);
            select.push(match size.filter(|_| !key_at.contains(&at)) {
                None if expression == format!("t.{name}") => expression,
                None => format!("{expression} AS {name}"),
                Some(size) => {
                    let small = format!("{size} <= {}", limits.value_bytes_max);
                    sizes.push(format!("{size} AS [__size{}]", sizes.len()));
                    columns.push(column.name.clone());
                    format!("CASE WHEN {small} THEN {expression} END AS {name}")
                }
            });
        }
        select.extend(sizes);
        let (poller, key) = (settings.poller.clone(), settings.key.clone());
        Ok((Self { poller, table, key, limits, columns }, select))
    }

    /// Returns how many cells of a row are sizes.
    pub(super) fn width(&self) -> usize {
        self.columns.len()
    }

    /// Returns why a row with these sizes and this key cannot be read, if it cannot.
    pub(super) fn check(&self, sizes: &[Value], key: &[Value]) -> Option<Arc<str>> {
        let bytes_max = self.limits.value_bytes_max;
        let sizes = sizes.iter().map(|size| {
            // NULL has no size.
            let Value::Int(bytes) = size else { return 0 };
            usize::try_from(*bytes).unwrap_or(usize::MAX)
        });
        let (column, bytes) =
            self.columns.iter().zip(sizes).find(|(_, bytes)| *bytes > bytes_max)?;
        let key = self.key.iter().cloned().zip(key.iter().map(Value::to_json));
        let key = Json::from(key.collect::<Map<_, _>>());
        let why = format!(
            "poller `{}`: column `{column}` of `{}` has a value of {bytes} bytes in the row with key \
             {key}, more than the {bytes_max} that `VALUE_BYTES_MAX` allows: raise that setting of \
             the poller, remove the column from its `SOURCE__COLUMNS`, or shorten the value",
            self.poller, self.table
        );
        Some(why.into())
    }

    /// Returns how many rows of this size fit into a batch, so that the server is not asked for more. A tenth
    /// of the space is reserved for larger rows.
    pub(super) fn rows_that_fit(&self, rows: usize, bytes: usize) -> Option<usize> {
        let average = bytes.checked_div(rows)?.saturating_add(EVENT_BYTES);
        Some((self.limits.batch_bytes_max / 10 * 9 / average).max(1))
    }

    /// Whether this many rows and column bytes exceed a batch.
    pub(super) fn is_full(&self, rows: usize, bytes: usize) -> bool {
        bytes.saturating_add(rows.saturating_mul(EVENT_BYTES)) > self.limits.batch_bytes_max
    }

    /// Whether the columns alone exceed a batch.
    pub(super) fn is_over(&self, bytes: usize) -> bool {
        bytes > self.limits.batch_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use highwater_engine::cursor::CursorMode;

    use super::*;
    use crate::connection_string::SqlConnection;
    use crate::source::Relation;

    fn column(name: &str, type_name: &str, max_length: i64) -> Column {
        let plain = crate::source::describe::tests::column(type_name, max_length, 0, 0);
        Column { name: name.to_owned(), nullable: true, ..plain }
    }

    fn guard() -> (Guard, Vec<String>) {
        let settings = SourceSettings {
            poller: "orders".to_owned(),
            connection: SqlConnection::parse("Server=s;User ID=u;Password=p").unwrap(),
            relation: Relation::Table("t".to_owned()),
            mode: Some(CursorMode::RowVersion),
            cursor_column: Some("rv".to_owned()),
            key: vec!["ID".to_owned()],
            columns: None,
            columns_excluded: Vec::new(),
            mask: crate::source::Mask::default(),
            filter: None,
            filter_params: std::collections::BTreeMap::new(),
            soft_delete: None,
            operations: None,
            settle: Duration::ZERO,
            clock: crate::source::SourceClock::Utc,
            limits: SizeLimits { value_bytes_max: 20, batch_bytes_max: 1_000 },
            partition: None,
            on_schema_change: crate::source::OnSchemaChange::Follow,
        };
        let read = [
            column("id", "nvarchar", 100),
            column("price", "money", 8),
            column("short", "binary", 20),
            column("long", "varbinary", -1),
            column("note", "nvarchar", 22),
        ];
        Guard::new(&settings, "dbo.t".to_owned(), &read, &[0]).unwrap()
    }

    #[test]
    fn only_columns_that_can_be_too_large_are_measured_and_never_a_key() {
        let (guard, select) = guard();
        assert_eq!(
            select,
            [
                "CAST(t.[id] AS varbinary(100)) AS [id]",
                "CAST(t.[price] AS decimal(19, 4)) AS [price]",
                "t.[short]",
                "CASE WHEN DATALENGTH(t.[long]) <= 20 THEN t.[long] END AS [long]",
                "CASE WHEN DATALENGTH(t.[note]) <= 20 THEN CAST(t.[note] AS varbinary(22)) END AS [note]",
                "DATALENGTH(t.[long]) AS [__size0]",
                "DATALENGTH(t.[note]) AS [__size1]",
            ]
        );
        assert_eq!(guard.width(), 2);
    }

    #[test]
    fn a_value_over_the_limit_is_reported_with_everything_needed_to_find_it() {
        let (guard, _) = guard();
        let key = [Value::Text("k".to_owned())];
        for sizes in [[Value::Null, Value::Null], [Value::Int(20), Value::Int(0)]] {
            assert!(guard.check(&sizes, &key).is_none());
        }
        let Some(reason) = guard.check(&[Value::Null, Value::Int(21)], &key) else {
            panic!("not rejected");
        };
        expect_test::expect![[r#"poller `orders`: column `note` of `dbo.t` has a value of 21 bytes in the row with key {"ID":"k"}, more than the 20 that `VALUE_BYTES_MAX` allows: raise that setting of the poller, remove the column from its `SOURCE__COLUMNS`, or shorten the value"#]].assert_eq(&reason);
    }

    #[test]
    fn a_batch_is_full_above_its_limit_and_the_next_one_asks_for_what_fits() {
        let (guard, _) = guard();
        assert!(!guard.is_full(2, 100) && guard.is_full(2, 101) && guard.is_full(3, 0));
        assert!(!guard.is_over(1_000) && guard.is_over(1_001));
        for (rows, bytes, fit) in
            [(0, 0, None), (2, 0, Some(2)), (3, 300, Some(1)), (1, 5_000, Some(1))]
        {
            assert_eq!(guard.rows_that_fit(rows, bytes), fit);
        }
    }
}
