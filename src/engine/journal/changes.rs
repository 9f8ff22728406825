//! The changes of one write of the document.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use thiserror::Error;

use crate::document::{Activity, RECENT_MAX, RecentTick, StateDocument};

/// The difference between one document and a later one of the same poller.
///
/// Top-level fields of the document are replaced as a whole. Of the ring of recent ticks, only new entries are
/// stored: it is most of a document and hardly changes. The activity of the last hours follows from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// Fields that are new or have changed.
    #[serde(default)]
    pub set: Map<String, Json>,
    /// Fields that were removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Ticks that were added to the ring.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<RecentTick>,
}

/// Changes that do not lead to a document.
#[derive(Debug, Error)]
#[error("changes do not lead to a state document")]
pub struct ApplyError(#[source] serde_json::Error);

const RECENT: &str = "recent";
const ACTIVITY: &str = "activity";

impl Changes {
    /// Returns the changes from `old` to `new`.
    pub fn between(old: &StateDocument, new: &StateDocument) -> Self {
        let before = fields(old);
        let mut after = fields(new);
        let removed = before.keys().filter(|name| !after.contains_key(*name)).cloned().collect();
        after.retain(|name, value| before.get(name) != Some(value));
        let joined = joined(&old.recent, &new.recent);
        if joined.is_none() {
            let ring = serde_json::to_value(&new.recent);
            after.insert(RECENT.to_owned(), ring.expect("a ring has only string keys"));
        }
        let recent = joined.unwrap_or_default().to_vec();
        if activity_after(old, &recent) != new.activity {
            let activity = serde_json::to_value(&new.activity);
            after.insert(ACTIVITY.to_owned(), activity.expect("a list has only string keys"));
        }
        Self { set: after, removed, recent }
    }

    /// Applies the changes to `old`.
    ///
    /// # Errors
    ///
    /// [`ApplyError`] if a field is malformed.
    pub fn apply(&self, old: &StateDocument) -> Result<StateDocument, ApplyError> {
        let mut all = fields(old);
        for name in &self.removed {
            all.remove(name);
        }
        all.extend(self.set.clone());
        let is_replaced = self.set.contains_key(RECENT);
        if !is_replaced {
            all.insert(RECENT.to_owned(), Json::Array(Vec::new()));
        }
        // Via text: documents are parsed from text anyway, and a second deserializer from values would be one percent
        // of the binary.
        let text = serde_json::to_vec(&all).map_err(ApplyError)?;
        let mut next: StateDocument = serde_json::from_slice(&text).map_err(ApplyError)?;
        if !is_replaced {
            next.recent = old.recent.iter().chain(&self.recent).cloned().collect();
            let surplus = next.recent.len().saturating_sub(RECENT_MAX);
            next.recent.drain(..surplus);
        }
        if !self.set.contains_key(ACTIVITY) {
            next.activity = activity_after(old, &self.recent);
        }
        Ok(next)
    }
}

/// Returns the fields of a document without its ring and its activity.
fn fields(document: &StateDocument) -> Map<String, Json> {
    let bare = StateDocument { recent: Vec::new(), activity: Vec::new(), ..document.clone() };
    match serde_json::to_value(bare) {
        Ok(Json::Object(mut fields)) => {
            fields.remove(RECENT);
            fields.remove(ACTIVITY);
            fields
        }
        Ok(_) | Err(_) => unreachable!("a document is an object with string keys"),
    }
}

/// Returns the activity of a document after ticks were added to its ring.
fn activity_after(old: &StateDocument, added: &[RecentTick]) -> Vec<Activity> {
    let mut activity = old.activity.clone();
    for tick in added {
        Activity::add(&mut activity, tick);
    }
    activity
}

/// Returns what was added to the ring `old` to make it `new`; `None` if additions do not explain it.
fn joined<'a>(old: &[RecentTick], new: &'a [RecentTick]) -> Option<&'a [RecentTick]> {
    (0..=old.len()).find_map(|dropped| {
        let kept = old.get(dropped..)?;
        let fits = dropped == 0 || new.len() == RECENT_MAX;
        (fits && new.starts_with(kept)).then(|| new.get(kept.len()..))?
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::document::{Generation, Paused};

    fn document(recent: impl IntoIterator<Item = u64>) -> StateDocument {
        let mut document = StateDocument::new(
            "orders",
            SourceFingerprint::of(&[("table", "orders")]),
            Generation(7),
        );
        document.recent = recent.into_iter().map(tick).collect();
        document
    }

    fn tick(rows: u64) -> RecentTick {
        RecentTick {
            at: time::OffsetDateTime::UNIX_EPOCH,
            outcome: "tick_complete".to_owned(),
            rows,
            batches: 1,
            duration_ms: 3,
            idle_before: 0,
            longest_ms: std::collections::BTreeMap::new(),
            extra: Map::new(),
        }
    }

    fn way(old: &StateDocument, new: &StateDocument) -> Changes {
        let changes = Changes::between(old, new);
        let text = serde_json::to_string(&changes).unwrap();
        let read: Changes = serde_json::from_str(&text).unwrap();
        assert_eq!(read.apply(old).unwrap(), *new, "{text}");
        read
    }

    #[test]
    fn only_changes_are_stored() {
        let old = document([]);
        let mut new = old.clone();
        new.lease.owner_id = Some("a".to_owned());
        new.journal_seq = 1;
        let changes = way(&old, &new);
        assert_eq!(changes.set.keys().collect::<Vec<_>>(), ["lease", "journal_seq"]);
        assert_eq!(way(&old, &old), Changes::default());
    }

    #[test]
    fn a_field_that_becomes_null_is_distinguished_from_one_that_is_removed() {
        let mut old = document([]);
        old.paused = Some(Paused {
            by: "eve".to_owned(),
            reason: "r".to_owned(),
            at: time::OffsetDateTime::UNIX_EPOCH,
            extra: Map::new(),
        });
        old.extra.insert("later".to_owned(), json!(1));
        old.extra.insert("stays".to_owned(), Json::Null);
        let mut new = old.clone();
        new.paused = None;
        new.extra.remove("later");
        let changes = way(&old, &new);
        assert_eq!(changes.set, json!({ "paused": null }).as_object().unwrap().clone());
        assert_eq!(changes.removed, ["later"]);
    }

    #[test]
    fn ticks_join_the_ring_whether_it_is_full_or_not() {
        let full = u64::try_from(RECENT_MAX).unwrap();
        for (old, new, joined) in [
            (0..2, 0..3, Some(1)),
            (0..full, 1..full + 1, Some(1)),
            (0..full, 5..full + 5, Some(5)),
            (0..full, 100..full + 100, Some(RECENT_MAX)),
            (0..3, 0..3, Some(0)),
            (0..0, 0..3, Some(3)),
            (0..3, 1..3, None),
            (0..3, 0..0, None),
        ] {
            let changes = way(&document(old), &document(new));
            assert_eq!(joined.is_none(), changes.set.contains_key(RECENT), "{changes:?}");
            assert_eq!(changes.recent.len(), joined.unwrap_or(0), "{changes:?}");
        }
    }

    #[test]
    fn changes_that_result_in_no_document_are_an_error() {
        let set = json!({ "lease": 7 }).as_object().unwrap().clone();
        let changes = Changes { set, ..Changes::default() };
        assert!(changes.apply(&document([])).is_err());
    }
}
