//! Converts rows of the driver to delivered rows, directly into the fetch buffer.
//!
//! # Design
//!
//! Each cell is converted to JSON once and to nothing else: this is most of the cost of a batch. Only key and
//! position become values, since they determine the order of rows.

use std::collections::BTreeMap;

use highwater_engine::error::ErrorKind;
use highwater_engine::event::Operation;
use highwater_engine::source::{EncodedColumns, Row};
use highwater_engine::value::{Value, push_utf16};
use tiberius::{ColumnData, TokenRow};

use crate::connection::{Connection, SqlError};

use super::describe::{self, Column};
use super::identity::Identity;
use super::plan::{FetchProgress, Plan};
use super::{decode, values, variant};

/// Advice for text that does not arrive as UTF-16.
const NOT_UTF16_ADVICE: &str = "exclude the column with `SOURCE__COLUMNS_EXCLUDED`, or read a view that \
     converts it to `varchar`";

/// How a cell is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellForm {
    /// By the driver's type.
    Plain,
    /// As UTF-16 text in bytes.
    Utf16,
    /// The same, with the value's type as a prefix.
    Variant,
}

impl CellForm {
    pub(super) fn of_column(column: &Column) -> Self {
        match column {
            column if column.is_variant() => Self::Variant,
            column if column.is_utf16() => Self::Utf16,
            _ => Self::Plain,
        }
    }

    /// Returns the value of a cell.
    pub(super) fn value(self, cell: &ColumnData<'_>) -> Value {
        match (self, decode::bytes(cell)) {
            (Self::Utf16, Some(bytes)) => Value::of_utf16(bytes),
            (Self::Variant, Some(bytes)) => variant::shortest(Value::of_utf16(bytes)),
            (Self::Plain, _) | (_, None) => decode::value(cell),
        }
    }

    /// Returns the value of a cell that was decoded without regard to its form.
    pub(super) fn decoded(self, plain: Value) -> Value {
        match (self, &plain) {
            (Self::Utf16, Value::Bytes(bytes)) => Value::of_utf16(bytes),
            (Self::Variant, Value::Bytes(bytes)) => variant::shortest(Value::of_utf16(bytes)),
            _ => plain,
        }
    }

    /// Writes the value of a cell as JSON.
    fn push(self, json: &mut String, cell: &ColumnData<'_>) {
        match (self, decode::bytes(cell)) {
            (Self::Utf16, Some(bytes)) => push_utf16(json, bytes),
            (Self::Variant, Some(_)) => self.value(cell).push_json(json),
            (Self::Plain, _) | (_, None) => decode::push(json, cell),
        }
    }
}

impl Plan {
    /// Adds a row of the server's answer.
    pub(super) fn read(
        &self,
        row: tiberius::Row,
        answer: &mut FetchProgress,
    ) -> Result<(), SqlError> {
        let Some(result) = row.result_index().checked_sub(answer.is_identified.into()) else {
            let cells = values(&row);
            answer.lost_index = self.lost_index(&cells);
            answer.identity = Identity::read(&cells);
            return Ok(());
        };
        if result == 0 {
            answer.head = values(&row);
            return Ok(());
        }
        let tracked = self.cursor.is_none();
        if if tracked { answer.tail.is_some() } else { result > 1 } {
            answer.described.push(describe::column(row)?);
            return Ok(());
        }
        if tracked && row.len() == 1 {
            answer.tail = values(&row).pop();
            return Ok(());
        }
        let is_extra = answer.rows.len() == answer.rows_max;
        if is_extra && answer.more {
            return Ok(());
        }
        let cells = row.into_token_row();
        if is_extra {
            answer.more = true;
            return self.placed(&cells, answer).map(drop);
        }
        self.read_cells(&cells, answer)
    }

    /// Returns the position of a row, and records whether the row before it has the same one.
    fn placed(&self, cells: &TokenRow<'_>, answer: &mut FetchProgress) -> Result<Place, SqlError> {
        if cells.len() != self.width {
            let reason = format!("a row has {} cells, expected {}", cells.len(), self.width);
            return Err(SqlError::new(ErrorKind::Internal, reason));
        }
        self.check_text(cells)?;
        let position_at = self.sizes_at() + self.guard.width();
        let position = self.value(cells, position_at);
        let is_same = self.asks_same && self.value(cells, position_at + 1) == Value::Int(1);
        let key: Vec<Value> = self.key_at.iter().map(|at| self.value(cells, *at)).collect();
        let before = answer.rows.last().filter(|_| answer.repeated.is_none());
        if before.is_some_and(|before| is_same || self.is_repeated(before, &position, &key)) {
            answer.repeated = Some(self.repeated(&position, &key));
        }
        Ok(Place { position, key })
    }

    /// Rejects text with half a UTF-16 unit: it has another encoding, or was truncated in transit.
    fn check_text(&self, cells: &TokenRow<'_>) -> Result<(), SqlError> {
        for (at, (cell, form)) in cells.iter().zip(&self.forms).enumerate() {
            if let (CellForm::Utf16 | CellForm::Variant, Some(bytes)) = (form, decode::bytes(cell))
            {
                self.check_utf16(at, bytes)?;
            }
        }
        Ok(())
    }

    /// Rejects an odd number of bytes as the text of the column at `at`.
    pub(super) fn check_utf16(&self, at: usize, bytes: &[u8]) -> Result<(), SqlError> {
        if bytes.len().is_multiple_of(2) {
            return Ok(());
        }
        Err(SqlError::new(
            ErrorKind::Configuration,
            format!(
                "column {} of `{}` has text of {} bytes, an odd number, so it is not UTF-16 and nothing of \
                 this page is delivered: {NOT_UTF16_ADVICE}",
                self.text_columns(|column| column == at),
                self.table,
                bytes.len(),
            ),
        ))
    }

    /// Rejects rows from a server that does not cast text to UTF-16.
    pub(super) fn check_encoding(&self, connection: &Connection) -> Result<(), SqlError> {
        let Some(found) = connection.foreign_text() else { return Ok(()) };
        let is_text = |at: usize| self.forms.get(at).is_some_and(|form| *form != CellForm::Plain);
        let columns = self.text_columns(is_text);
        if columns.is_empty() {
            return Ok(());
        }
        Err(SqlError::new(
            ErrorKind::Configuration,
            format!(
                "the server does not return `nvarchar` as UTF-16 as SQL Server does ({found}), so {columns} of \
                 `{}` would arrive garbled: {NOT_UTF16_ADVICE}",
                self.table
            ),
        ))
    }

    /// Returns the names of the columns whose index satisfies `wanted`.
    fn text_columns(&self, wanted: impl Fn(usize) -> bool) -> String {
        let key = self.key_at.iter().zip(&self.key).map(|(at, column)| (*at, column.name.as_str()));
        let delivered = self.columns.names().iter().map(String::as_str).enumerate();
        let columns: BTreeMap<usize, &str> = key.chain(delivered).collect();
        let names = columns.into_iter().filter(|(at, _)| wanted(*at));
        let names: Vec<String> = names.map(|(_, name)| format!("`{name}`")).collect();
        names.join(", ")
    }

    fn value(&self, cells: &TokenRow<'_>, at: usize) -> Value {
        let form = self.forms.get(at).copied().unwrap_or(CellForm::Plain);
        cells.get(at).map_or(Value::Null, |cell| form.value(cell))
    }

    /// Returns the index of the sizes: after the columns that are read.
    fn sizes_at(&self) -> usize {
        self.forms.len()
    }

    /// Adds a row of the table. Its cells are the columns, the sizes of some of them, the position, whether
    /// that equals the previous row's if the server compares them, and the kind of change if it is reported.
    pub(super) fn read_cells(
        &self,
        cells: &TokenRow<'_>,
        answer: &mut FetchProgress,
    ) -> Result<(), SqlError> {
        let Place { position, key } = self.placed(cells, answer)?;
        let kind = (self.cursor.is_none() || self.deleted.is_some()).then(|| cells.iter().last());
        // Only a change has a version: a row that was read as it is now shows no operation.
        let is_change = self.cursor.is_none() && matches!(position, Value::Int(_));
        let op = kind.flatten().map_or(Operation::Upsert, |cell| operation(cell, is_change));
        let sizes = self.sizes_at()..self.sizes_at() + self.guard.width();
        let sizes: Vec<Value> = sizes.map(|at| self.value(cells, at)).collect();
        let begin = answer.json.len();
        let columns = match op {
            Operation::Delete => EncodedColumns::default(),
            Operation::Insert | Operation::Update | Operation::Upsert => {
                let cells = cells.iter().zip(&self.forms);
                match &self.hashes {
                    None => self.columns.encode(&mut answer.json, cells, |json, (cell, form)| {
                        form.push(json, cell);
                    }),
                    Some(hashes) => {
                        let cells = cells.zip(hashes.methods());
                        self.columns.encode(
                            &mut answer.json,
                            cells,
                            |json, ((cell, form), method)| match method {
                                Some(method) => hashes.push(json, *method, &form.value(cell)),
                                None => form.push(json, cell),
                            },
                        )
                    }
                }
            }
        };
        let rows = answer.rows.len() + 1;
        let bytes = answer.json.len();
        let full = rows > 1
            && if answer.is_range {
                self.guard.is_over(bytes)
            } else {
                self.guard.is_full(rows, bytes)
            };
        if full {
            answer.is_full = true;
            answer.json.truncate(begin);
            return Err(SqlError::new(ErrorKind::Data, "no further row is wanted"));
        }
        let is_delete = op == Operation::Delete;
        let unreadable = if is_delete { None } else { self.guard.check(&sizes, &key) };
        let columns = if unreadable.is_some() {
            answer.json.truncate(begin);
            EncodedColumns::default()
        } else {
            columns
        };
        answer.rows.push(Row { op, position, key, columns, unreadable });
        Ok(())
    }
}

/// Place of a row in the order: the leading part of its position, then its key.
struct Place {
    position: Value,
    key: Vec<Value>,
}

/// Returns the operation in the last cell of a row.
fn operation(cell: &ColumnData<'_>, is_change: bool) -> Operation {
    let ColumnData::String(Some(kind)) = cell else { return Operation::Upsert };
    match kind.as_ref() {
        "D" => Operation::Delete,
        "I" if is_change => Operation::Insert,
        "U" if is_change => Operation::Update,
        _ => Operation::Upsert,
    }
}
