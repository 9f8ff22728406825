//! Which columns a poller reads, and of which types: kept so that a change is noticed. Pure.
//!
//! # Why so
//!
//! A column that is added or retyped while a poller runs has to be seen before a row of the new form is
//! delivered in the old one, since that row may not change again. So the server describes the columns
//! behind the rows of each fetch, and rows that were read by another description are read anew.
//!
//! A hash of the columns is kept in the state document, so that a change is noticed across restarts. A
//! second one is of what orders the rows: to read on by a key or cursor that orders differently than when
//! the checkpoint was made could skip rows, whatever the settings say.

use serde_json::Value as Json;

use crate::cursor::{SourceFingerprint, SourceState};
use crate::source::Remember;

use super::describe::Column;

/// Hash of the columns that were last delivered.
const COLUMNS: &str = "columns";
/// Hash of what orders the rows.
const ORDER: &str = "order";

/// What is read, as far as a change of it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema {
    /// Names and types of the columns that are read.
    columns: Vec<(String, String)>,
    columns_hash: String,
    order_hash: String,
}

/// What a state document says of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is the one that was delivered last, or none was.
    Same,
    /// Other columns were delivered last.
    Changed,
    /// The checkpoint was made by another order.
    Reordered,
}

impl Schema {
    /// Returns the schema of the columns `read`, which are ordered by the columns `ordering`.
    pub(super) fn of(read: &[Column], ordering: &[&Column]) -> Self {
        let columns: Vec<_> =
            read.iter().map(|column| (column.name.clone(), column.declared_whole())).collect();
        let order: Vec<_> =
            ordering.iter().map(|column| (column.name.clone(), column.order())).collect();
        Self { columns_hash: hash(&columns), order_hash: hash(&order), columns }
    }

    /// Returns what a state document says.
    pub(super) fn known(&self, state: &SourceState) -> Known {
        let differs = |name, hash: &str| {
            state.get(name).and_then(Json::as_str).is_some_and(|known| known != hash)
        };
        if differs(ORDER, &self.order_hash) {
            return Known::Reordered;
        }
        if differs(COLUMNS, &self.columns_hash) { Known::Changed } else { Known::Same }
    }

    /// Whether rows lie in the order in which they lay by `earlier`.
    pub(super) fn orders_as(&self, earlier: &Self) -> bool {
        self.order_hash == earlier.order_hash
    }

    /// Returns in words how this differs from `earlier`; empty where it does not.
    pub(super) fn changes_from(&self, earlier: &Self) -> String {
        let find = |columns: &[(String, String)], name: &str| {
            columns.iter().find(|(other, _)| other == name).map(|(_, declared)| declared.clone())
        };
        let mut changes = Vec::new();
        for (name, declared) in &self.columns {
            match find(&earlier.columns, name) {
                None => changes.push(format!("`{name}` {declared} was added")),
                Some(before) if before != *declared => {
                    changes.push(format!("`{name}` is {declared}, was {before}"));
                }
                Some(_) => {}
            }
        }
        let removed =
            earlier.columns.iter().filter(|(name, _)| find(&self.columns, name).is_none());
        changes.extend(removed.map(|(name, _)| format!("`{name}` was removed")));
        if changes.is_empty() && self.columns != earlier.columns {
            changes.push("their order".to_owned());
        }
        changes.join(", ")
    }

    /// Returns what to remember, with this beside what the mode asks for: once rows are `delivered` by it
    /// that were not before. Without that only what the mode asks for is kept with what is known.
    pub(super) fn kept(
        &self,
        remember: Option<Remember>,
        known: &SourceState,
        delivered: bool,
    ) -> Option<Remember> {
        let hashes = [(COLUMNS, &self.columns_hash), (ORDER, &self.order_hash)];
        let is_news = delivered
            && hashes
                .iter()
                .any(|(name, hash)| known.get(*name).and_then(Json::as_str) != Some(hash.as_str()));
        let mut remember = match remember {
            Some(remember) => remember,
            None if is_news => Remember { state: known.clone(), at_once: false },
            None => return None,
        };
        for (name, hash) in hashes {
            let kept =
                if delivered { Some(Json::from(hash.as_str())) } else { known.get(name).cloned() };
            remember.state.extend(kept.map(|kept| (name.to_owned(), kept)));
        }
        Some(remember)
    }
}

fn hash(columns: &[(String, String)]) -> String {
    let parts: Vec<_> = columns.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    SourceFingerprint::of(&parts).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, type_name: &str, max_length: i64) -> Column {
        Column {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            max_length,
            precision: 9,
            scale: 2,
            nullable: true,
            collation: type_name.ends_with("char").then(|| "Latin1_General_CI_AS".to_owned()),
            identity: false,
            primary: false,
        }
    }

    fn schema(columns: &[Column]) -> Schema {
        Schema::of(columns, &[&columns[0]])
    }

    #[test]
    fn changes_are_told_by_name_and_type() {
        let before =
            schema(&[column("id", "int", 4), column("a", "nvarchar", 18), column("b", "date", 3)]);
        let after = schema(&[
            column("id", "bigint", 8),
            column("a", "nvarchar", 40),
            column("c", "xml", -1),
        ]);
        assert_eq!(
            after.changes_from(&before),
            "`id` is bigint, was int, `a` is nvarchar(20) COLLATE Latin1_General_CI_AS, was nvarchar(9) \
             COLLATE Latin1_General_CI_AS, `c` xml was added, `b` was removed"
        );
        assert_eq!(before.changes_from(&before.clone()), "");
        let turned =
            schema(&[column("id", "int", 4), column("b", "date", 3), column("a", "nvarchar", 18)]);
        assert_eq!(turned.changes_from(&before), "their order");
    }

    #[test]
    fn what_orders_rows_may_only_change_where_their_order_stays() {
        let order = |column: &Column| schema(std::slice::from_ref(column));
        let other = |mut column: Column| {
            column.collation = Some("Latin1_General_BIN2".to_owned());
            column
        };
        let fine = |mut column: Column| {
            column.scale = 4;
            column
        };
        for (before, after, same) in [
            (column("k", "tinyint", 1), column("k", "bigint", 8), true),
            (column("k", "nvarchar", 18), column("k", "nvarchar", 40), true),
            (column("k", "nvarchar", 18), column("k", "varchar", 18), false),
            (column("k", "nvarchar", 18), other(column("k", "nvarchar", 18)), false),
            (column("k", "int", 4), column("k", "nvarchar", 18), false),
            (column("k", "binary", 4), column("k", "binary", 8), false),
            (column("k", "varbinary", 4), column("k", "varbinary", 8), true),
            (column("k", "uniqueidentifier", 16), column("k", "nvarchar", 72), false),
            (column("k", "datetime2", 8), column("k", "date", 3), false),
            (column("k", "datetime2", 8), fine(column("k", "datetime2", 8)), false),
            (column("k", "decimal", 5), fine(column("k", "decimal", 5)), false),
            (column("k", "decimal", 5), column("k", "numeric", 9), true),
            (column("k", "int", 4), column("l", "int", 4), false),
        ] {
            let (before, after) = (order(&before), order(&after));
            assert_eq!(after.orders_as(&before), same, "{before:?} {after:?}");
        }
    }

    #[test]
    fn what_was_delivered_is_remembered_beside_what_the_mode_asks_for() {
        let before = schema(&[column("id", "int", 4)]);
        let after = schema(&[column("id", "bigint", 8)]);
        let text = schema(&[column("id", "nvarchar", 8)]);
        let empty = SourceState::new();
        assert_eq!(before.kept(None, &empty, false), None, "nothing was delivered");
        let kept = before.kept(None, &empty, true).unwrap();
        assert!(!kept.at_once);
        assert_eq!(before.kept(None, &kept.state, true), None, "it is known");
        assert_eq!(before.known(&empty), Known::Same);
        assert_eq!(before.known(&kept.state), Known::Same);
        assert_eq!(after.known(&kept.state), Known::Changed);
        assert_eq!(text.known(&kept.state), Known::Reordered);
        let marks = || SourceState::from_iter([("settled".to_owned(), "7".into())]);
        let asked = |at_once| Some(Remember { state: marks(), at_once });
        // What is known is carried on, also where nothing was delivered.
        let both = after.kept(asked(true), &kept.state, false).unwrap();
        assert_eq!((both.at_once, before.known(&both.state)), (true, Known::Same));
        assert_eq!(both.state["settled"], "7");
        let news = after.kept(asked(false), &kept.state, true).unwrap();
        assert_eq!(after.known(&news.state), Known::Same);
        assert_eq!(before.known(&news.state), Known::Changed);
        // What the mode knows stays as it is.
        let known = SourceState::from_iter(marks().into_iter().chain(kept.state));
        assert_eq!(after.kept(None, &known, true).unwrap().state["settled"], "7");
    }
}
