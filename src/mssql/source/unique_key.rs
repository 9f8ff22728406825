//! Rows are identified by cursor and key. If two rows share both, paging loses one of them.
//!
//! The next page starts after the position of the last row, so a second row at that position is never read.
//! The server orders equal positions next to each other. So comparing each row with the previous one,
//! including the extra row after the page, finds every such pair before anything is delivered. A row that is
//! inserted after its duplicate was delivered cannot be found this way; only a unique index prevents it.
//!
//! The collation decides which texts are equal, and values of some types are equal in several forms. If no
//! unique index covers such a key, the server compares each row with the previous one. If one does, each
//! fetch checks that it still exists.

use highwater_engine::error::ErrorKind;
use highwater_engine::source::{FetchError, Row};
use highwater_engine::value::Value;

use crate::connection::{Connection, Param};
use crate::ident::{QualifiedName, literal, quote};

use super::describe::Column;
use super::examine::index;
use super::plan::Plan;
use super::{Mssql, Relation, values};

/// Most characters of a value in an error.
const SHOWN_CHARS_MAX: usize = 60;
/// Whether the object `@P1` is a view.
pub(super) const IS_VIEW: &str = "SELECT COUNT(*) AS n FROM sys.objects AS o \
     WHERE o.object_id = OBJECT_ID(@P1) AND o.type = N'V'";

impl Column {
    /// Whether the server may consider two values equal that [`Self::equates`] considers different.
    pub(super) fn equates_loosely(&self) -> bool {
        let is_binary = self.collation.as_deref().is_some_and(|name| name.contains("_BIN"));
        matches!(self.type_name.as_str(), "sql_variant" | "datetimeoffset")
            || (self.is_text() && !is_binary)
    }

    /// Whether the server considers two values of the column equal, judging by its collation's name.
    fn equates(&self, one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Text(one), Value::Text(other)) if self.is_text() => {
                // Trailing blanks are ignored in comparisons.
                let (one, other) = (one.trim_end_matches(' '), other.trim_end_matches(' '));
                one == other
                    || self.lower_case(one).is_some_and(|one| Some(one) == self.lower_case(other))
            }
            // The shorter value is compared as if padded with zeros.
            (Value::Bytes(one), Value::Bytes(other)) => {
                let (short, long) =
                    if one.len() < other.len() { (one, other) } else { (other, one) };
                long.strip_prefix(short.as_slice()).is_some_and(|rest| rest.iter().all(|b| *b == 0))
            }
            _ => one == other,
        }
    }

    /// Returns a text in lower case, by the rules of the collation; `None` if it is case-sensitive.
    fn lower_case(&self, text: &str) -> Option<String> {
        let collation = self.collation.as_deref().filter(|name| name.contains("_CI_"))?;
        // In these, `I` is the capital of a dotless letter, and `i` has a capital with a dot.
        let is_turkic = ["Turkish_", "Azeri_"].iter().any(|name| collation.starts_with(name));
        Some(if is_turkic {
            text.replace('I', "ı").replace('İ', "i").to_lowercase()
        } else {
            text.to_lowercase()
        })
    }

    fn is_text(&self) -> bool {
        matches!(self.type_name.as_str(), "char" | "varchar" | "nchar" | "nvarchar")
    }
}

impl Plan {
    /// Whether two adjacent rows are at one position.
    pub(super) fn is_repeated(&self, before: &Row, position: &Value, key: &[Value]) -> bool {
        let mut values = self.key.iter().zip(before.key.iter().zip(key));
        before.position == *position
            && values.all(|(column, (one, other))| column.equates(one, other))
    }

    /// Returns the error of two adjacent rows at one position.
    pub(super) fn repeated(&self, position: &Value, key: &[Value]) -> String {
        // A cursor that is part of the key is shown once.
        let cursor = self.cursor.iter().filter(|cursor| !self.key.contains(cursor));
        let columns: Vec<&Column> = cursor.chain(&self.key).collect();
        let first = (columns.len() > self.key.len()).then_some(position);
        let shown: Vec<String> = columns
            .iter()
            .zip(first.into_iter().chain(key))
            .map(|(column, value)| format!("`{}` = {}", column.name, shown(value)))
            .collect();
        let quoted: Vec<String> = columns.iter().map(|column| quote(&column.name)).collect();
        let quoted = quoted.join(", ");
        format!(
            "the key of `{}` is not unique: two rows have {}. Paging would skip one of them, so nothing of \
             this page was delivered. List all such rows with `SELECT {quoted}, COUNT(*) AS n FROM {} AS t \
             GROUP BY {quoted} HAVING COUNT(*) > 1`; then remove the duplicates and add a unique index, or \
             set `SOURCE__KEY` to columns that are unique",
            self.table,
            shown.join(", "),
            self.quoted,
        )
    }

    /// Returns the columns that identify a row: the cursor, then the key.
    pub(super) fn identity(&self) -> Vec<&str> {
        let cursor = self.cursor.as_ref();
        let key = self.key.iter().filter(|column| Some(*column) != cursor);
        cursor.into_iter().chain(key).map(|column| column.name.as_str()).collect()
    }

    /// Returns the column that shows whether a unique index still covers cursor and key: it may be dropped at
    /// any time, and duplicates may follow at once.
    pub(super) fn still_unique(&self) -> String {
        let names: Vec<String> = self.identity().into_iter().map(literal).collect();
        format!(
            "CASE WHEN EXISTS (SELECT 1 FROM sys.indexes AS x WHERE x.object_id = OBJECT_ID({}) \
             AND x.is_unique = 1 AND x.is_disabled = 0 AND x.has_filter = 0 AND x.is_hypothetical = 0 \
             AND NOT EXISTS (SELECT 1 FROM sys.index_columns AS i JOIN sys.columns AS c \
             ON c.object_id = i.object_id AND c.column_id = i.column_id \
             WHERE i.object_id = x.object_id AND i.index_id = x.index_id AND i.key_ordinal > 0 \
             AND c.name NOT IN ({}))) THEN 1 ELSE 0 END AS [__unique]",
            literal(&self.quoted),
            names.join(", "),
        )
    }

    /// Whether the described primary key makes the values of these columns unique.
    fn has_primary_key(&self, columns: &[&str]) -> bool {
        let mut primary = self.described.iter().filter(|column| column.primary).peekable();
        primary.peek().is_some() && primary.all(|column| columns.contains(&column.name.as_str()))
    }

    fn key_names(&self) -> Vec<&str> {
        self.key.iter().map(|column| column.name.as_str()).collect()
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_json().to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Returns the error of a page in which two rows share a position.
pub(super) fn not_unique(reason: &str) -> FetchError {
    FetchError::new(ErrorKind::Configuration, reason)
}

/// Facts about the uniqueness of positions.
enum Uniqueness {
    /// An index guarantees it.
    Guaranteed,
    /// No index of the table does.
    NoIndex,
    /// The object is a view, so its tables decide.
    View,
}

impl Mssql {
    /// Returns whether a unique index covers cursor and key. `warns` is set for one of several partitions,
    /// which then logs if there is none. A catalogue that cannot be read must not stop the poller.
    pub(super) async fn check_unique_key(
        &self,
        connection: &mut Connection,
        table: &QualifiedName,
        plan: &Plan,
        warns: bool,
    ) -> bool {
        // For most tables the description has the answer already.
        if plan.has_primary_key(&plan.identity()) {
            return true;
        }
        let matters = plan.key.iter().any(Column::equates_loosely);
        if !warns && !matters {
            return false;
        }
        let found = uniqueness(connection, table, &plan.identity()).await;
        let is_unique = matches!(found, Ok(Some(Uniqueness::Guaranteed)));
        if warns {
            self.say_uniqueness(plan, found);
        }
        is_unique
    }

    fn say_uniqueness(
        &self,
        plan: &Plan,
        found: Result<Option<Uniqueness>, crate::connection::SqlError>,
    ) {
        let poller = self.settings.poller.as_str();
        let (table, columns) = (&plan.table, plan.identity().join("`, `"));
        match found {
            Ok(Some(Uniqueness::Guaranteed)) => {}
            Ok(Some(Uniqueness::View)) => self.report_unchecked_key("a view"),
            Ok(Some(Uniqueness::NoIndex)) => self.warn_no_unique_index(plan),
            Ok(None) => tracing::info!(
                event = "unique_index_unknown",
                poller.name = poller,
                "Cannot tell whether a unique index on `{table}` covers `{columns}`: the server describes \
                 its indexes in an unknown form"
            ),
            Err(error) => tracing::info!(
                event = "unique_index_unknown",
                poller.name = poller,
                error = highwater_engine::error::chain(&error),
                "Cannot tell whether a unique index on `{table}` covers `{columns}`"
            ),
        }
    }

    /// Warns that the server does not keep two rows from having the same position.
    pub(super) fn warn_no_unique_index(&self, plan: &Plan) {
        let poller = self.settings.poller.as_str();
        let (table, columns) = (&plan.table, plan.identity().join("`, `"));
        tracing::warn!(
            event = "key_without_unique_index",
            poller.name = poller,
            "No unique index on `{table}` covers `{columns}`, which poller `{poller}` uses to identify rows: \
             a tick that reads two rows with the same values fails, and a row inserted after its \
             duplicate was delivered is missed; add a unique index, or set `SOURCE__KEY` to columns \
             that have one"
        );
    }

    /// Whether no two rows have the same key. Nobody can tell for a query or a view, or if the catalogue cannot be read.
    pub(super) async fn is_key_unique(
        &self,
        connection: &mut Connection,
        plan: &Plan,
    ) -> Result<bool, FetchError> {
        let columns = plan.key_names();
        let Relation::Table(name) = &self.settings.relation else { return Ok(true) };
        // The version store of change tracking has one change for each primary key.
        if plan.cursor.is_none() || plan.has_primary_key(&columns) {
            return Ok(true);
        }
        let table = QualifiedName::parse(name).map_err(|error| not_unique(&error.to_string()))?;
        let found = uniqueness(connection, &table, &columns).await?;
        Ok(!matches!(found, Some(Uniqueness::NoIndex)))
    }

    /// Reports once that the server cannot show whether the key of a query or view is unique.
    pub(super) fn report_unchecked_key(&self, what: &str) {
        let poller = self.settings.poller.as_str();
        let key = self.settings.key.join("`, `");
        tracing::info!(
            event = "query_key_not_checked",
            poller.name = poller,
            "Poller `{poller}` reads {what}, so the server cannot tell whether the key `{key}` is unique and \
             never NULL: make sure that it is. A tick that reads two rows with the same cursor and key fails"
        );
    }
}

async fn uniqueness(
    connection: &mut Connection,
    table: &QualifiedName,
    columns: &[&str],
) -> Result<Option<Uniqueness>, crate::connection::SqlError> {
    let name = [Param::Text(table.quoted())];
    let rows = connection.query(index::INDEXES, &name, |row| Ok(values(&row))).await?;
    let Some(indexes) = index::read(&rows) else { return Ok(None) };
    if index::unique_in(&indexes, columns).is_some() {
        return Ok(Some(Uniqueness::Guaranteed));
    }
    if indexes.is_empty() {
        let is_view = connection.query(IS_VIEW, &name, |row| Ok(values(&row))).await?;
        if matches!(is_view.as_slice(), [row] if row.as_slice() == [Value::Int(1)]) {
            return Ok(Some(Uniqueness::View));
        }
    }
    Ok(Some(Uniqueness::NoIndex))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(type_name: &str, collation: Option<&str>) -> Column {
        Column {
            name: "k".to_owned(),
            type_name: type_name.to_owned(),
            max_length: 20,
            precision: 0,
            scale: 0,
            nullable: false,
            collation: collation.map(str::to_owned),
            identity: false,
            primary: false,
        }
    }

    #[test]
    fn values_are_equal_as_the_server_compares_them() {
        let text = |text: &str| Value::Text(text.to_owned());
        let folded = column("nvarchar", Some("Latin1_General_100_CI_AS_SC"));
        let binary = column("varchar", Some("Latin1_General_BIN2"));
        assert!(folded.equates(&text("Ä1"), &text("ä1  ")));
        assert!(!folded.equates(&text("a"), &text("á")));
        assert!(folded.equates(&text("ID"), &text("id")));
        for collation in ["Turkish_100_CI_AS", "Azeri_Latin_100_CI_AS"] {
            let turkic = column("nvarchar", Some(collation));
            assert!(
                turkic.equates(&text("ISI"), &text("ısı"))
                    && turkic.equates(&text("İS"), &text("is"))
            );
            assert!(!turkic.equates(&text("ID"), &text("id")), "two keys, by this collation");
        }
        assert!(binary.equates(&text("a"), &text("a ")), "trailing blanks never count");
        assert!(!binary.equates(&text("a"), &text("A")));
        // Text forms of other types are compared unchanged.
        assert!(!column("date", None).equates(&text("1 "), &text("1")));
        let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
        assert!(column("varbinary", None).equates(&bytes(&[1]), &bytes(&[1, 0, 0])));
        assert!(!column("varbinary", None).equates(&bytes(&[1]), &bytes(&[1, 0, 1])));
        assert!(column("int", None).equates(&Value::Int(7), &Value::Int(7)));
    }

    #[test]
    fn a_long_value_is_truncated_in_the_error() {
        assert_eq!(shown(&Value::Int(7)), "7");
        let long = shown(&Value::Text("ä".repeat(200)));
        assert_eq!(long.chars().count(), SHOWN_CHARS_MAX + 1);
        assert!(long.ends_with('…'), "{long}");
    }
}
