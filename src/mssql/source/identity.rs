//! Identifies the table that rows come from, and its change tracking. Retained so that a replacement is
//! noticed. Pure.
//!
//! # Design
//!
//! A table that is dropped and recreated, or swapped with another, has the same name and may have the same
//! columns, but its rows are unrelated to the checkpoint: rows whose cursor is not above it would never be
//! read. The same holds for change tracking that is switched off and on again: changes in between are not
//! tracked at all. So each fetch queries the identity of the object, before the rows and in the same round
//! trip. If the table is replaced between this answer and the rows, the next fetch detects it.
//!
//! A view can be recreated without any change of its rows, and a query is not an object: neither has an
//! identity.

use highwater_engine::cursor::{CursorMode, SourceState};
use highwater_engine::source::{FetchError, FetchWindow, RetainedState};
use highwater_engine::value::Value;
use serde_json::{Value as Json, json};

use crate::ident::literal;

use super::origin::Origin;

/// The table of the checkpoint.
const TABLE: &str = "table";
/// The change tracking of the checkpoint.
const TRACKING: &str = "tracking";

/// Identity of a named object; `None` for anything that the server does not return.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    table: Option<Table>,
    tracking: Option<Tracking>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    object_id: i64,
    create_date: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tracking {
    /// The version from which changes are tracked.
    begin_version: i64,
    /// The internal table with the changes. A login may lack the permission to see it.
    object_id: Option<i64>,
}

/// Returns the columns of the identity query; none if there is no identity.
pub(super) fn select(origin: &Origin, mode: CursorMode) -> Vec<String> {
    let Some(table) = origin.table() else { return Vec::new() };
    let object = format!("OBJECT_ID({})", literal(&table.quoted()));
    let of_table = |column: &str| {
        format!(
            "(SELECT {column} FROM sys.objects AS o WHERE o.object_id = {object} AND o.type = N'U')"
        )
    };
    let mut cells = vec![
        format!("{} AS [__object]", of_table("o.object_id")),
        format!("{} AS [__created]", of_table("CONVERT(NVARCHAR(33), o.create_date, 126)")),
    ];
    if mode == CursorMode::ChangeTracking {
        cells.push(format!(
            "(SELECT k.begin_version FROM sys.change_tracking_tables AS k \
             WHERE k.object_id = {object}) AS [__begin]"
        ));
        // 209 is the type of the internal table of change tracking.
        cells.push(format!(
            "(SELECT MAX(i.object_id) FROM sys.internal_tables AS i \
             WHERE i.parent_object_id = {object} AND i.internal_type = 209) AS [__changes]"
        ));
    }
    cells
}

impl Identity {
    /// Reads the answer to [`select`].
    pub(super) fn read(cells: &[Value]) -> Self {
        let table = match cells {
            [Value::Int(object_id), Value::Text(create_date), ..] => {
                Some(Table { object_id: *object_id, create_date: create_date.clone() })
            }
            _ => None,
        };
        let tracking = match cells {
            [_, _, Value::Int(begin_version), changes] => {
                let object_id = if let Value::Int(id) = changes { Some(*id) } else { None };
                Some(Tracking { begin_version: *begin_version, object_id })
            }
            _ => None,
        };
        Self { table, tracking }
    }

    /// Returns the version from which changes are tracked, if the server returns it.
    pub(super) fn tracked_from(&self) -> Option<i64> {
        self.tracking.as_ref().map(|tracking| tracking.begin_version)
    }

    /// Whether the server returns the table, but no tracking of its changes.
    pub(super) fn is_untracked(&self) -> bool {
        self.table.is_some() && self.tracking.is_none()
    }

    /// Returns the identity retained in a state document.
    fn of(state: &SourceState) -> Self {
        let number = |of: &Json, name| of.get(name).and_then(Json::as_i64);
        let table = state.get(TABLE).and_then(|table| {
            let create_date = table.get("create_date")?.as_str()?.to_owned();
            Some(Table { object_id: number(table, "object_id")?, create_date })
        });
        let tracking = state.get(TRACKING).and_then(|tracking| {
            let begin_version = number(tracking, "begin_version")?;
            Some(Tracking { begin_version, object_id: number(tracking, "object_id") })
        });
        Self { table, tracking }
    }

    /// Returns the differences from `earlier`, as far as both are known.
    fn differences_from(&self, earlier: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        if let (Some(before), Some(now)) = (&earlier.table, &self.table)
            && before != now
        {
            differences.push(format!(
                "table was object {} created {}, is now object {} created {}",
                before.object_id, before.create_date, now.object_id, now.create_date
            ));
        }
        if let (Some(before), Some(now)) = (&earlier.tracking, &self.tracking) {
            let other = before.object_id.zip(now.object_id).is_some_and(|(then, now)| then != now);
            if other || before.begin_version != now.begin_version {
                differences.push(format!(
                    "changes were tracked from version {}, are tracked again from version {}",
                    before.begin_version, now.begin_version
                ));
            }
        }
        differences
    }

    /// Returns the differences from the retained identity.
    pub(super) fn changes_since(&self, kept: &SourceState) -> Vec<String> {
        self.differences_from(&Self::of(kept))
    }

    /// Fails a fetch whose position belongs to another table, or to earlier change tracking.
    pub(super) fn check(&self, origin: &Origin, window: FetchWindow<'_>) -> Result<(), FetchError> {
        if window.after.is_none() {
            return Ok(());
        }
        let differences = self.changes_since(window.state);
        if differences.is_empty() {
            return Ok(());
        }
        Err(FetchError::position_lost(format!(
            "`{origin}` is not the table that the checkpoint was made of ({}): it was replaced, recreated, or \
             tracked again, and rows could be missed",
            differences.join("; ")
        )))
    }

    /// Returns the state to retain, with this identity: it is stored with the next write, and causes none of
    /// its own.
    pub(super) fn kept(
        &self,
        remember: Option<RetainedState>,
        window: FetchWindow<'_>,
    ) -> Option<RetainedState> {
        self.retained_after(window).with(remember, window.state)
    }

    /// Returns the state to store before the first row of a fetch is delivered. A fetch that is not fully
    /// delivered stores nothing else, and a position without it would match any table.
    pub(super) fn anchor(&self, window: FetchWindow<'_>) -> SourceState {
        let facts = self.retained_after(window).facts().into_iter();
        let news = facts.filter(|(name, fact)| window.state.get(*name) != Some(fact));
        news.map(|(name, fact)| (name.to_owned(), fact)).collect()
    }

    /// Returns the identity that positions depend on once the rows of `window` are delivered. Known parts
    /// never change. Without a position nothing depends on an earlier table.
    fn retained_after(&self, window: FetchWindow<'_>) -> Self {
        let earlier = if window.after.is_some() { Self::of(window.state) } else { Self::default() };
        let table = earlier.table.or_else(|| self.table.clone());
        let tracking = earlier.tracking.or_else(|| self.tracking.clone());
        Self { table, tracking }
    }

    /// Adds this identity to the state to retain.
    fn with(&self, remember: Option<RetainedState>, known: &SourceState) -> Option<RetainedState> {
        let facts = self.facts();
        let is_news = facts.iter().any(|(name, fact)| known.get(*name) != Some(fact));
        let mut remember = match remember {
            Some(remember) => remember,
            None if is_news => RetainedState { state: known.clone(), at_once: false },
            None => return None,
        };
        remember.state.extend(facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)));
        Some(remember)
    }

    /// Returns the fields that a state document retains.
    pub(super) fn facts(&self) -> Vec<(&'static str, Json)> {
        let table = self.table.as_ref().map(|Table { object_id, create_date }| {
            (TABLE, json!({ "object_id": object_id, "create_date": create_date }))
        });
        let tracking = self.tracking.as_ref().map(|Tracking { begin_version, object_id }| {
            let mut tracking = json!({ "begin_version": begin_version });
            if let (Some(id), Json::Object(fields)) = (object_id, &mut tracking) {
                fields.insert("object_id".to_owned(), (*id).into());
            }
            (TRACKING, tracking)
        });
        table.into_iter().chain(tracking).collect()
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::cursor::Cursor;

    use super::*;
    use crate::ident::QualifiedName;

    fn origin() -> Origin {
        Origin::Table(QualifiedName::parse("dbo.t").unwrap())
    }

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn identity(object: i64, begin: Option<i64>, changes: Option<i64>) -> Identity {
        let int = |number: Option<i64>| number.map_or(Value::Null, Value::Int);
        Identity::read(&[Value::Int(object), text("2026-01-01"), int(begin), int(changes)])
    }

    fn state(identity: &Identity) -> SourceState {
        identity.with(None, &SourceState::new()).unwrap().state
    }

    fn check(now: &Identity, state: &SourceState, after: Option<&Cursor>) -> Option<String> {
        let window = FetchWindow { after, upto: None, rows_max: 1, state };
        now.check(&origin(), window).err().map(|error| {
            assert!(error.is_position_lost() && !error.is_final_loss());
            error.reason
        })
    }

    #[test]
    fn another_table_or_other_tracking_stops_a_poller_with_a_position() {
        let at = Cursor::integer(10, highwater_engine::cursor::KeyValues::new());
        let kept = state(&identity(7, Some(3), Some(90)));
        for (now, expected) in [
            (identity(7, Some(3), Some(90)), None),
            // Missing information is not a difference.
            (identity(7, None, None), None),
            (identity(7, Some(3), None), None),
            (Identity::default(), None),
            (identity(8, Some(3), Some(90)), Some("object 7")),
            (identity(7, Some(5), None), Some("from version 3, are tracked again from version 5")),
            (identity(7, Some(3), Some(91)), Some("tracked again from version 3")),
        ] {
            let found = check(&now, &kept, Some(&at));
            match expected {
                Some(part) => assert!(found.as_ref().unwrap().contains(part), "{found:?}"),
                None => assert_eq!(found, None),
            }
            assert_eq!(check(&now, &kept, None), None, "there is no position");
            assert_eq!(check(&now, &SourceState::new(), Some(&at)), None, "nothing is known");
        }
    }

    #[test]
    fn an_unknown_identity_is_stored_with_the_next_write_and_never_replaced() {
        let at = Cursor::integer(10, highwater_engine::cursor::KeyValues::new());
        let window = |after, state| FetchWindow { after, upto: None, rows_max: 1, state };
        let (one, other) = (identity(7, Some(3), None), identity(8, Some(5), Some(90)));
        let mut old = SourceState::new();
        old.insert("settled".to_owned(), "9".into());
        let adopted = one.kept(None, window(Some(&at), &old)).unwrap();
        assert!(!adopted.at_once && adopted.state["settled"] == "9", "{adopted:?}");
        let known = adopted.state;
        assert_eq!(one.kept(None, window(Some(&at), &known)), None, "it is known");
        assert_eq!(other.kept(None, window(Some(&at), &known)), None, "it is another one");
        // The state of the mode replaces everything that was retained.
        let moved = RetainedState { state: SourceState::new(), at_once: true };
        let both = other.kept(Some(moved), window(Some(&at), &known)).unwrap();
        assert!(both.at_once);
        assert_eq!(Identity::of(&both.state), one);
        // Before the first row any table is acceptable.
        let initial = other.kept(None, window(None, &known)).unwrap();
        assert_eq!(Identity::of(&initial.state), other);
    }

    #[test]
    fn the_identity_is_stored_before_the_first_row() {
        let at = Cursor::integer(10, highwater_engine::cursor::KeyValues::new());
        let window = |after, state| FetchWindow { after, upto: None, rows_max: 1, state };
        let (one, other) = (identity(7, Some(3), None), identity(8, Some(5), Some(90)));
        let nothing = SourceState::new();
        let known = one.anchor(window(Some(&at), &nothing));
        assert_eq!(Identity::of(&known), one, "a document of an earlier version has none");
        assert_eq!(one.anchor(window(Some(&at), &known)), nothing);
        assert_eq!(other.anchor(window(Some(&at), &known)), nothing);
        assert_eq!(Identity::of(&other.anchor(window(None, &known))), other);
    }

    #[test]
    fn views_and_queries_have_no_identity() {
        // The query selects tables only, so for a view it returns NULL.
        assert_eq!(Identity::read(&[Value::Null, Value::Null]), Identity::default());
        let query = Origin::Query("SELECT 1 AS a".to_owned());
        assert!(select(&query, CursorMode::RowVersion).is_empty());
        let sql = select(&origin(), CursorMode::RowVersion).join(", ");
        assert!(sql.contains("o.type = N'U'") && !sql.contains("change_tracking"), "{sql}");
    }
}
