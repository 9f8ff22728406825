//! The columns that a poller reads, and their types. Retained so that a change is noticed. Pure.
//!
//! # Design
//!
//! A column that is added or retyped while a poller runs must be noticed before a row of the new form is
//! delivered in the old one, since that row may not change again. So the server describes the columns after
//! the rows of each fetch, and rows that were read by another description are read again.
//!
//! The state document retains a hash of the columns, so that a change is noticed across restarts. It also
//! retains names and types, as far as there is room, so that a message can name the change. A second hash
//! covers what orders the rows: continuing with a key or cursor that orders differently than when the
//! checkpoint was made could skip rows, whatever the settings are.

use serde_json::Value as Json;

use highwater_engine::cursor::{SourceFingerprint, SourceState};
use highwater_engine::source::RetainedState;

use super::describe::Column;
use super::mask::{Hashes, MaskMethod};

/// Hash of the columns of the last delivery.
const COLUMNS: &str = "columns";
/// Hash of what orders the rows.
const ORDER: &str = "order";
/// Names and types of the columns of the last delivery, for messages.
const LIST: &str = "column_types";
/// Number of columns that are not listed.
const UNLISTED: &str = "columns_unlisted";
/// Approximate bytes of a state document that the list may use.
const LIST_BYTES_MAX: usize = 4_096;
/// Bytes of a list entry besides name and type.
const LINE_BYTES: usize = 16;

/// What is read, as far as changes matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema {
    /// Names and types of the columns that are read.
    columns: Vec<(String, String)>,
    columns_hash: String,
    order_hash: String,
}

/// How the schema compares with a state document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchemaComparison {
    /// The schema of the last delivery, or there was none.
    Same,
    /// The last delivery had other columns.
    Changed,
    /// The checkpoint was made in another order.
    Reordered,
}

impl Schema {
    /// Returns the schema of the columns `read`, ordered by the columns `ordering`. A hashed column has another form
    /// than its type, so it counts as another type.
    pub(super) fn of(read: &[Column], hashes: Option<&Hashes>, ordering: &[&Column]) -> Self {
        let methods = hashes.map(Hashes::methods).unwrap_or_default().iter().copied();
        let methods = methods.chain(std::iter::repeat(None));
        let form = |column: &Column, hash: Option<MaskMethod>| {
            let declared = column.declared_with_collation();
            hash.map(|hash| format!("{} of {declared}", hash.as_str())).unwrap_or(declared)
        };
        let columns: Vec<_> = read
            .iter()
            .zip(methods)
            .map(|(column, hash)| (column.name.clone(), form(column, hash)))
            .collect();
        let order: Vec<_> =
            ordering.iter().map(|column| (column.name.clone(), column.order())).collect();
        Self { columns_hash: hash(&columns), order_hash: hash(&order), columns }
    }

    /// Compares with a state document.
    pub(super) fn known(&self, state: &SourceState) -> SchemaComparison {
        let differs = |name, hash: &str| {
            state.get(name).and_then(Json::as_str).is_some_and(|known| known != hash)
        };
        if differs(ORDER, &self.order_hash) {
            return SchemaComparison::Reordered;
        }
        if differs(COLUMNS, &self.columns_hash) {
            SchemaComparison::Changed
        } else {
            SchemaComparison::Same
        }
    }

    /// Whether rows have the same order as with `earlier`.
    pub(super) fn orders_as(&self, earlier: &Self) -> bool {
        self.order_hash == earlier.order_hash
    }

    /// Describes the differences from `earlier`; empty if there are none.
    pub(super) fn changes_from(&self, earlier: &Self) -> String {
        changes(&earlier.columns, &self.columns, 0)
    }

    /// Describes the differences from the last delivery, according to a state document.
    pub(super) fn changes_since(&self, state: &SourceState) -> String {
        let Some(Json::Object(listed)) = state.get(LIST) else {
            return "the names of the earlier columns are unknown".to_owned();
        };
        let text = |declared: &Json| declared.as_str().unwrap_or_default().to_owned();
        let listed: Vec<_> =
            listed.iter().map(|(name, declared)| (name.clone(), text(declared))).collect();
        let unlisted = state.get(UNLISTED).and_then(Json::as_u64).unwrap_or(0);
        changes(&listed, &self.columns, unlisted)
    }

    /// Returns as many columns, by name and type, as fit into a state document, and the number of the rest.
    fn listed(&self) -> (Json, u64) {
        let mut list = serde_json::Map::new();
        let mut room = LIST_BYTES_MAX;
        for (name, declared) in &self.columns {
            let Some(left) = room.checked_sub(name.len() + declared.len() + LINE_BYTES) else {
                break;
            };
            room = left;
            list.insert(name.clone(), declared.as_str().into());
        }
        let unlisted = u64::try_from(self.columns.len() - list.len()).unwrap_or(u64::MAX);
        (Json::Object(list), unlisted)
    }

    /// Returns the state to retain: that of the mode, with this schema if rows were `delivered` by it for the
    /// first time. Otherwise the mode's state is combined with the known schema.
    pub(super) fn kept(
        &self,
        remember: Option<RetainedState>,
        known: &SourceState,
        delivered: bool,
    ) -> Option<RetainedState> {
        let facts = self.facts();
        let is_news =
            delivered && facts.iter().any(|(name, fact)| known.get(*name) != fact.as_ref());
        let mut remember = match remember {
            Some(remember) => remember,
            None if is_news => RetainedState { state: known.clone(), at_once: false },
            None => return None,
        };
        for (name, fact) in facts {
            match if delivered { fact } else { known.get(name).cloned() } {
                Some(kept) => drop(remember.state.insert(name.to_owned(), kept)),
                None => drop(remember.state.remove(name)),
            }
        }
        Some(remember)
    }

    /// Returns the fields that a state document retains; `None` for those it must not have.
    pub(super) fn facts(&self) -> [(&'static str, Option<Json>); 4] {
        let (list, unlisted) = self.listed();
        [
            (COLUMNS, Some(self.columns_hash.as_str().into())),
            (ORDER, Some(self.order_hash.as_str().into())),
            (LIST, Some(list)),
            (UNLISTED, (unlisted > 0).then(|| unlisted.into())),
        ]
    }
}

/// Describes how columns changed; the names of `unlisted` more are unknown.
fn changes(before: &[(String, String)], after: &[(String, String)], unlisted: u64) -> String {
    let find = |columns: &[(String, String)], name: &str| {
        columns.iter().find(|(other, _)| other == name).map(|(_, declared)| declared.clone())
    };
    let (mut added, mut retyped) = (Vec::new(), Vec::new());
    for (name, declared) in after {
        match find(before, name) {
            // It may be one of the unlisted columns.
            None if unlisted > 0 => {}
            None => added.push(format!("`{name} {declared}`")),
            Some(earlier) if earlier != *declared => {
                retyped.push(format!("`{name}` was `{earlier}`, is now `{declared}`"));
            }
            Some(_) => {}
        }
    }
    let removed = before.iter().filter(|(name, _)| find(after, name).is_none());
    let removed: Vec<String> = removed.map(|(name, _)| format!("`{name}`")).collect();
    let mut parts = retyped;
    for (label, names) in [("added", added), ("removed", removed)] {
        if !names.is_empty() {
            parts.push(format!("{label}: {}", names.join(", ")));
        }
    }
    if parts.is_empty() && unlisted > 0 {
        parts.push(format!("among the {unlisted} columns after the first {}", before.len()));
    } else if parts.is_empty() && before != after {
        parts.push("their order".to_owned());
    }
    parts.join("; ")
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
        Schema::of(columns, None, &[&columns[0]])
    }

    #[test]
    fn changes_are_described_by_name_and_type() {
        let before =
            schema(&[column("id", "int", 4), column("a", "nvarchar", 18), column("b", "date", 3)]);
        let after = schema(&[
            column("id", "bigint", 8),
            column("a", "nvarchar", 40),
            column("c", "xml", -1),
        ]);
        assert_eq!(
            after.changes_from(&before),
            "`id` was `int`, is now `bigint`; `a` was `nvarchar(9) COLLATE Latin1_General_CI_AS`, is now \
             `nvarchar(20) COLLATE Latin1_General_CI_AS`; added: `c xml`; removed: `b`"
        );
        assert_eq!(before.changes_from(&before.clone()), "");
        let turned =
            schema(&[column("id", "int", 4), column("b", "date", 3), column("a", "nvarchar", 18)]);
        assert_eq!(turned.changes_from(&before), "their order");
    }

    #[test]
    fn changes_are_described_across_processes_as_far_as_columns_fit() {
        let kept = |schema: &Schema| schema.kept(None, &SourceState::new(), true).unwrap().state;
        let before = schema(&[column("id", "int", 4), column("b", "date", 3)]);
        let after = schema(&[column("id", "int", 4), column("c", "int", 4)]);
        assert_eq!(after.changes_since(&kept(&before)), "added: `c int`; removed: `b`");
        let mut old = kept(&before);
        old.remove(LIST);
        assert_eq!(after.changes_since(&old), "the names of the earlier columns are unknown");
        // A document of an earlier version gets the list with its next write.
        assert!(before.kept(None, &old, true).unwrap().state.contains_key(LIST));
        let wide = |type_name: &str, last: &str| {
            let many = (0..1_000).map(|n| column(&format!("c{n}"), type_name, 4));
            schema(&many.chain([column(last, "int", 4)]).collect::<Vec<_>>())
        };
        let listed = kept(&wide("int", "a"));
        let bytes = serde_json::to_string_pretty(&listed).unwrap().len();
        assert!(bytes < LIST_BYTES_MAX + 512, "{bytes}");
        let text = wide("int", "b").changes_since(&listed);
        assert!(
            text.starts_with("among the ") && text.contains("columns after the first "),
            "{text}"
        );
        let text = wide("bigint", "a").changes_since(&listed);
        assert!(text.starts_with("`c0` was `int`, is now `bigint`; "), "{text}");
        // A list that fits again has no remainder.
        assert!(!before.kept(None, &listed, true).unwrap().state.contains_key(UNLISTED));
    }

    #[test]
    fn key_and_cursor_may_only_change_if_the_order_stays_the_same() {
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
    fn the_delivered_schema_is_retained_along_with_the_mode_state() {
        let before = schema(&[column("id", "int", 4)]);
        let after = schema(&[column("id", "bigint", 8)]);
        let text = schema(&[column("id", "nvarchar", 8)]);
        let empty = SourceState::new();
        assert_eq!(before.kept(None, &empty, false), None, "nothing was delivered");
        let kept = before.kept(None, &empty, true).unwrap();
        assert!(!kept.at_once);
        assert_eq!(before.kept(None, &kept.state, true), None, "it is known");
        assert_eq!(before.known(&empty), SchemaComparison::Same);
        assert_eq!(before.known(&kept.state), SchemaComparison::Same);
        assert_eq!(after.known(&kept.state), SchemaComparison::Changed);
        assert_eq!(text.known(&kept.state), SchemaComparison::Reordered);
        let marks = || SourceState::from_iter([("settled".to_owned(), "7".into())]);
        let requested = |at_once| Some(RetainedState { state: marks(), at_once });
        // The known schema is carried along, even if nothing was delivered.
        let both = after.kept(requested(true), &kept.state, false).unwrap();
        assert_eq!((both.at_once, before.known(&both.state)), (true, SchemaComparison::Same));
        assert_eq!(both.state["settled"], "7");
        let news = after.kept(requested(false), &kept.state, true).unwrap();
        assert_eq!(after.known(&news.state), SchemaComparison::Same);
        assert_eq!(before.known(&news.state), SchemaComparison::Changed);
        // The state of the mode is unchanged.
        let known = marks().into_iter().chain(kept.state).collect();
        assert_eq!(after.kept(None, &known, true).unwrap().state["settled"], "7");
    }
}
