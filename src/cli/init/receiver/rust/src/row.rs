//! The columns of `@@table@@` as types, written by `highwater init` from the table.

#![allow(unused_imports)]

use serde_json::{Map, Value};
use time::{Date, OffsetDateTime, PrimitiveDateTime, Time};
use uuid::Uuid;

use crate::support::columns::{
    Decimal, InvalidColumn, base64, column, date, date_time, date_time_offset, decimal, json, nullable, time, uuid,
};

/// Identifies a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
@@key_fields@@
}

impl Key {
    /// Reads the key of an event.
    pub fn from_json(columns: &Map<String, Value>) -> Result<Self, InvalidColumn> {
        Ok(Self {
@@key_values@@
        })
    }
}

/// A row in its current state.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
@@row_fields@@
}

impl Row {
    /// Reads the row of an event.
    pub fn from_json(columns: &Map<String, Value>) -> Result<Self, InvalidColumn> {
        Ok(Self {
@@row_values@@
        })
    }
}

/// One change of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The same on every delivery of this state of the row.
    pub id: String,
    /// `upsert` or `delete`; with change tracking also `insert` and `update`.
    pub op: String,
    /// The key of the row.
    pub key: Key,
    /// `None` for a deleted row.
    pub row: Option<Row>,
}
