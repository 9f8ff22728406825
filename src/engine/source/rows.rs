//! Rows as read: the position of each, and its columns as the JSON that is delivered.

use std::ops::Range;
use std::sync::Arc;

use super::{Lag, RetainedState};
use crate::cursor::SourceState;
use crate::event::Operation;
use crate::value::{Value, push_text};

/// The delivered columns of a source, built once for all of its fetches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    names: Vec<String>,
    /// What precedes the value of each column in a JSON object: `{"a":` for the first, `,"b":` for the others.
    heads: Vec<String>,
}

impl Columns {
    /// Returns columns with these names.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let head = |(index, name): (usize, &String)| {
            let mut head = if index == 0 { "{" } else { "," }.to_owned();
            push_text(&mut head, name);
            head.push(':');
            head
        };
        let heads = names.iter().enumerate().map(head).collect();
        Self { names, heads }
    }

    /// Returns their names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Appends the columns of one row to `json` as one object; `write` writes the values.
    pub fn encode<C>(
        &self,
        json: &mut String,
        cells: impl IntoIterator<Item = C>,
        mut write: impl FnMut(&mut String, C),
    ) -> EncodedColumns {
        let begin = json.len();
        let mut largest = None;
        for ((column, head), cell) in self.heads.iter().enumerate().zip(cells) {
            json.push_str(head);
            let from = json.len();
            write(json, cell);
            let bytes = json.len() - from;
            if largest.is_none_or(|(_, most)| bytes >= most) {
                largest = Some((column, bytes));
            }
        }
        json.push_str(if largest.is_none() { "{}" } else { "}" });
        EncodedColumns { part: begin..json.len(), largest }
    }
}

/// Where the columns of a row are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedColumns {
    /// Their range in [`Rows::json`].
    part: Range<usize>,
    /// The largest column and the length of its value in bytes.
    largest: Option<(usize, usize)>,
}

/// One row as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The operation.
    pub op: Operation,
    /// Leading part of its position: the value or text of the cursor column.
    pub position: Value,
    /// Values of the key columns, in key order.
    pub key: Vec<Value>,
    /// All delivered columns; empty if the row was deleted or is unreadable.
    pub columns: EncodedColumns,
    /// Why the columns could not be read, such as a value over the limit.
    pub unreadable: Option<Arc<str>>,
}

/// The result of one fetch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The delivered columns.
    pub columns: Arc<Columns>,
    /// The columns of each row as one JSON object, one after another.
    pub json: String,
    /// Rows in the source's order, oldest first.
    pub rows: Vec<Row>,
    /// Whether the window contains more rows.
    pub more: bool,
    /// Lag of these rows, if the mode knows it.
    pub lag: Lag,
    /// What to retain once all these rows have been delivered; `None` for no change.
    pub remember: Option<RetainedState>,
    /// What the position of these rows depends on, such as the identity of their table. It is added to the retained
    /// state before the first of them is delivered; empty if it is already known.
    pub anchor: SourceState,
    /// Whether the row that was read by its key exists, but its operation is not delivered. `rows` is empty then.
    pub is_unselected: bool,
}

impl Rows {
    /// Returns no rows, of columns with these names.
    pub fn of(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { columns: Arc::new(Columns::new(names)), ..Self::default() }
    }

    /// Adds a row from column values, for sources that have values.
    pub fn push(&mut self, op: Operation, position: Value, key: Vec<Value>, values: &[Value]) {
        let columns =
            self.columns.encode(&mut self.json, values, |json, value| value.push_json(json));
        self.rows.push(Row { op, position, key, columns, unreadable: None });
    }

    /// Returns the columns of `row` as one JSON object; empty if the row was deleted.
    pub fn object(&self, row: &Row) -> &str {
        self.json.get(row.columns.part.clone()).unwrap_or_default()
    }

    /// Returns the largest column of `row` and the length of its value as JSON, in bytes; `None` if it has no
    /// columns.
    pub fn largest(&self, row: &Row) -> Option<(&str, usize)> {
        let (column, bytes) = row.columns.largest?;
        Some((self.columns.names.get(column)?, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_one_object_a_row_under_their_names() {
        let mut rows = Rows::of(["a", "b \"2\""]);
        for (id, text) in [(1, "x"), (2, "longer")] {
            let values = [Value::Int(id), Value::Text(text.to_owned())];
            rows.push(Operation::Upsert, Value::Int(id), vec![Value::Int(id)], &values);
        }
        let [first, second] = rows.rows.as_slice() else { panic!("two rows") };
        assert_eq!(rows.object(first), r#"{"a":1,"b \"2\"":"x"}"#);
        assert_eq!(rows.object(second), r#"{"a":2,"b \"2\"":"longer"}"#);
        assert_eq!(rows.largest(second), Some(("b \"2\"", 8)));
    }

    #[test]
    fn no_columns_are_an_empty_object() {
        let mut rows = Rows::of([""; 0]);
        rows.push(Operation::Upsert, Value::Null, Vec::new(), &[]);
        assert_eq!(rows.object(&rows.rows[0]), "{}");
        assert_eq!(rows.largest(&rows.rows[0]), None);
    }
}
