//! Which column goes where, and which rows of a batch are written. Pure.

use std::collections::BTreeMap;

use highwater_engine::handler::HandlerError;

use super::describe::Column;
use super::rows::EventRow;
use super::statement::{Shape, rows_max};
use crate::connection::Param;
use crate::handler::SqlHandlerConfig;
use crate::ident::QualifiedName;

/// Columns of one batch, in the order in which they are written.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    table: &'a QualifiedName,
    /// Columns of the source, parallel to `columns`.
    sources: Vec<String>,
    columns: Vec<&'a Column>,
    /// Indexes of the key's columns.
    key: Vec<usize>,
}

/// Rows that one statement writes.
#[derive(Debug)]
pub(super) struct Part<'r> {
    rows: Vec<&'r EventRow<'r>>,
    is_delete: bool,
}

/// A statement with its parameters.
#[derive(Debug, PartialEq)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) params: Vec<Param>,
}

impl<'a> Plan<'a> {
    /// Maps the columns of a row to those of the target. All rows of a batch have the same columns.
    ///
    /// # Errors
    ///
    /// What is wrong with the settings or the target.
    pub(super) fn new(
        config: &SqlHandlerConfig,
        table: &'a QualifiedName,
        described: &'a [Column],
        row: &EventRow<'_>,
    ) -> Result<Self, String> {
        let find = |name: &str| {
            let exact = described.iter().find(|column| column.name == name);
            let same = |column: &&Column| column.name.to_lowercase() == name.to_lowercase();
            exact.or_else(|| described.iter().find(same))
        };
        let (mut sources, mut columns) = (Vec::new(), Vec::new());
        for (source, target) in pairs(config, row, find) {
            let column = find(&target).ok_or_else(|| {
                format!(
                    "the target `{table}` has no column `{target}`: add it, or name the columns to \
                     write in `HANDLER__COLUMNS`"
                )
            })?;
            if let Some(refusal) = column.refusal() {
                return Err(refusal);
            }
            sources.push(source);
            columns.push(column);
        }
        let key = key(config, row, &sources, &columns)?;
        if rows_max(columns.len()).is_none() {
            return Err(format!("`HANDLER__COLUMNS` has {} columns, too many", columns.len()));
        }
        Ok(Self { table, sources, columns, key })
    }

    /// Returns what to write of `rows`, in parts that fit into one statement. If several rows share a key,
    /// the last one counts. Deletes come first, so that a new row may reuse a unique value of a deleted one.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Rejected`] if a row has no key.
    pub(super) fn parts<'r>(
        &self,
        rows: &[&'r EventRow<'r>],
    ) -> Result<Vec<Part<'r>>, HandlerError> {
        let mut last: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            let key = self.key.iter().map(|at| self.json(row, *at));
            last.insert(key.collect::<Result<_, _>>()?, index);
        }
        let mut chosen: Vec<usize> = last.into_values().collect();
        chosen.sort_unstable();
        let chosen = chosen.iter().filter_map(|index| rows.get(*index).copied());
        let (deleted, kept): (Vec<_>, Vec<_>) = chosen.partition(|row| row.is_delete());
        let part =
            |is_delete| move |rows: &[&'r EventRow<'r>]| Part { rows: rows.to_vec(), is_delete };
        let deleted = deleted.chunks(rows_max(self.key.len()).unwrap_or(1)).map(part(true));
        let kept = kept.chunks(rows_max(self.columns.len()).unwrap_or(1)).map(part(false));
        Ok(deleted.chain(kept).collect())
    }

    /// Returns the statement that writes a part.
    ///
    /// # Errors
    ///
    /// [`HandlerError::Rejected`] with the row and the column of a value that the target cannot hold.
    pub(super) fn statement(&self, part: &Part<'_>) -> Result<Statement, HandlerError> {
        let indexes: Vec<usize> =
            if part.is_delete { self.key.clone() } else { (0..self.columns.len()).collect() };
        let columns: Vec<&Column> =
            indexes.iter().filter_map(|index| self.columns.get(*index).copied()).collect();
        let of_all = indexes.iter().enumerate().filter(|(_, index)| self.key.contains(index));
        let key: Vec<usize> = of_all.map(|(at, _)| at).collect();
        let shape = Shape { table: self.table, columns: &columns, key: &key };
        let cells = part.rows.iter().flat_map(|row| indexes.iter().map(|index| (*row, *index)));
        let params = cells.map(|(row, index)| self.param(row, index)).collect::<Result<_, _>>()?;
        let rows = part.rows.len();
        let sql = if part.is_delete { shape.delete(rows) } else { shape.upsert(rows) };
        Ok(Statement { sql, params })
    }

    fn param(&self, row: &EventRow<'_>, index: usize) -> Result<Param, HandlerError> {
        let json = self.json(row, index)?;
        let Some(column) = self.columns.get(index) else { return Ok(Param::Null) };
        column.param(json, self.key.contains(&index)).map_err(|expected| {
            rejected(
                row,
                &format!(
                    "column `{}` of the target, of type `{}`, expects {expected}",
                    column.name,
                    column.declared()
                ),
            )
        })
    }

    fn json<'r>(&self, row: &EventRow<'r>, index: usize) -> Result<&'r str, HandlerError> {
        let source = self.sources.get(index).map(String::as_str).unwrap_or_default();
        row.get(source).ok_or_else(|| rejected(row, &format!("the event has no column `{source}`")))
    }
}

/// Columns of the source to write, each with its target column.
fn pairs<'a>(
    config: &SqlHandlerConfig,
    row: &EventRow<'_>,
    find: impl Fn(&str) -> Option<&'a Column>,
) -> Vec<(String, String)> {
    if let Some(pairs) = &config.columns {
        // A deleted row has only its key.
        let exists = |source: &str| !row.is_delete() || row.get(source).is_some();
        return pairs.iter().filter(|(source, _)| exists(source)).cloned().collect();
    }
    let mut names: Vec<&String> = row.pk.keys().collect();
    let is_key =
        |name: &&String| row.pk.keys().any(|key| key.to_lowercase() == name.to_lowercase());
    names.extend(row.after.keys().filter(|name| !is_key(name)));
    // The target maintains its own row versions.
    names.retain(|name| !find(name).is_some_and(Column::is_row_version));
    names.into_iter().map(|name| (name.clone(), name.clone())).collect()
}

/// Returns the indexes of the key's columns.
fn key(
    config: &SqlHandlerConfig,
    row: &EventRow<'_>,
    sources: &[String],
    columns: &[&Column],
) -> Result<Vec<usize>, String> {
    let same = |a: &str, b: &str| a.to_lowercase() == b.to_lowercase();
    let Some(key) = &config.key else {
        let at = row.pk.keys().map(|name| {
            sources.iter().position(|source| same(source, name)).ok_or_else(|| {
                format!(
                    "key column `{name}` of the source is not among those of `HANDLER__COLUMNS`: add \
                     it, or name the target's key in `HANDLER__KEY`"
                )
            })
        });
        return at.collect();
    };
    let at = key.iter().map(|name| {
        columns.iter().position(|column| same(&column.name, name)).ok_or_else(|| {
            let why = if row.is_delete() {
                "is not part of the source's key, so deleted rows cannot be found: set \
                 `HANDLER__DELETES` to `ignore`, or choose another key"
            } else {
                "is not written: name it in `HANDLER__COLUMNS`"
            };
            format!("column `{name}` of `HANDLER__KEY` {why}")
        })
    });
    at.collect()
}

fn rejected(row: &EventRow<'_>, reason: &str) -> HandlerError {
    let key = row.event.cursor.key.to_json();
    HandlerError::Rejected(format!("row with key {key}: {reason}"))
}
