//! How a poller stands, by its state document alone. Pure.

use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;

use super::sizing::Sizing;
use crate::state::{LeaseAge, Standing, StateDocument};

/// What is known beside the document.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// How old it is.
    pub age: LeaseAge,
    /// The storage service's time.
    pub now: OffsetDateTime,
    /// Rows set aside.
    pub quarantined: u64,
    /// The ttl of the settings; `None` where the poller is in none.
    pub ttl: Option<Duration>,
    /// Its name.
    pub poller: &'a str,
}

/// How a poller stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Its name.
    pub poller: String,
    /// In one word: `running`, `free`, `backing_off`, `paused`, `lapsed`, `blank`, `none` without a
    /// document, `unreadable`.
    pub state: &'static str,
    /// Whether the settings speak of it.
    pub configured: bool,
    /// Leading part of the checkpoint.
    pub checkpoint: Option<String>,
    /// Seconds since the checkpoint moved.
    pub checkpoint_age_seconds: Option<i64>,
    /// How old the oldest row of the last batch was when it was read; not all modes can tell.
    pub lag_ms: Option<u64>,
    /// Who holds the lease, or held it last without giving it up.
    pub owner: Option<String>,
    /// Newest fencing token.
    pub token: u64,
    /// Rows set aside.
    pub quarantined: u64,
    /// Failed attempts at the batch in flight.
    pub attempts: u32,
    /// Why it was not taken, or why the document cannot be used.
    pub last_error: Option<String>,
    /// What recent ticks suggest; `None` where they are too few.
    pub sizing: Option<Sizing>,
    /// Which settings break the rules of sizing.
    pub warnings: Vec<String>,
}

impl Status {
    /// Returns what a document says.
    pub fn of(document: &StateDocument, beside: Beside<'_>) -> Self {
        let Beside { age, now, quarantined, ttl, poller } = beside;
        let checkpoint = &document.checkpoint;
        let batch = document.in_flight.as_ref();
        let ttl_of_lease = Duration::from_secs(document.lease.ttl_seconds);
        let sizing = Sizing::of(document, ttl.unwrap_or(ttl_of_lease));
        let last = document.recent.iter().rev();
        let released = document.lease.released_at.is_some();
        Self {
            poller: poller.to_owned(),
            state: state(document, age, now),
            configured: ttl.is_some(),
            checkpoint: checkpoint.cursor.as_ref().map(|cursor| cursor.value.clone()),
            checkpoint_age_seconds: checkpoint.updated_at.map(|at| (now - at).whole_seconds()),
            lag_ms: last.filter_map(|tick| tick.longest_ms.get("lag")).next().copied(),
            owner: document.lease.owner_id.clone().filter(|_| !released),
            token: document.lease.fencing_token.0,
            quarantined,
            attempts: batch.map_or(0, |batch| batch.attempt),
            last_error: batch.and_then(|batch| batch.last_error.clone()),
            warnings: sizing.as_ref().map(Sizing::warnings).unwrap_or_default(),
            sizing,
        }
    }

    /// Returns the status of a poller whose document is not there, or cannot be used.
    pub fn without_document(poller: &str, configured: bool, error: Option<String>) -> Self {
        let state = if error.is_some() { "unreadable" } else { "none" };
        Self { poller: poller.to_owned(), state, configured, last_error: error, ..Self::default() }
    }
}

fn state(document: &StateDocument, age: LeaseAge, now: OffsetDateTime) -> &'static str {
    match document.standing_for_nobody(age) {
        Standing::Held { .. } | Standing::Own => return "running",
        Standing::Lapsed => return "lapsed",
        Standing::Free => {}
    }
    let waits = document.in_flight.as_ref().and_then(|batch| batch.next_attempt_at);
    if document.paused.is_some() {
        "paused"
    } else if waits.is_some_and(|until| now < until) {
        "backing_off"
    } else if document.is_blank() {
        "blank"
    } else {
        "free"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::macros::datetime;

    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::state::{Generation, decode};

    const NOW: OffsetDateTime = datetime!(2026-01-01 2:00 UTC);

    fn beside(seconds: u64) -> Beside<'static> {
        let age = LeaseAge { since_write: Duration::from_secs(seconds), grain: Duration::ZERO };
        let ttl = Some(Duration::from_secs(120));
        Beside { age, now: NOW, quarantined: 2, ttl, poller: "orders" }
    }

    /// Returns the status of a document of which these fields are as given.
    fn status(seconds: u64, fields: &serde_json::Value) -> Status {
        let document = StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(7));
        let mut json = serde_json::to_value(&document).unwrap();
        for (name, value) in fields.as_object().unwrap() {
            json[name] = value.clone();
        }
        let document = decode("orders", json.to_string().as_bytes()).unwrap();
        Status::of(&document, beside(seconds))
    }

    #[test]
    fn a_word_says_how_a_poller_stands() {
        let upto = json!({ "kind": "rowversion", "value": "0x0000000000000008", "tiebreaker": { "id": 8 } });
        let batch = |until: &str| {
            json!({ "batch_id": "b", "upto": upto, "rows": 3, "digest": "d", "attempt": 2,
                "last_error": "503", "next_attempt_at": until })
        };
        let held = json!({ "lease": { "owner_id": "a", "fencing_token": 4 } });
        for (seconds, fields, expected) in [
            (0, json!({}), "free"),
            (121, held.clone(), "running"),
            (122, held, "lapsed"),
            (0, json!({ "generation": 0 }), "blank"),
            (0, json!({ "in_flight": batch("2026-01-01T02:00:01Z") }), "backing_off"),
            (0, json!({ "in_flight": batch("2026-01-01T02:00:00Z") }), "free"),
            (
                0,
                json!({ "paused": { "by": "ann", "reason": "r", "at": "2026-01-01T01:00:00Z" } }),
                "paused",
            ),
        ] {
            assert_eq!(status(seconds, &fields).state, expected, "{fields}");
        }
    }

    #[test]
    fn what_people_ask_for_is_in_the_document() {
        let cursor = json!({ "kind": "rowversion", "value": "0x0000000000000008", "tiebreaker": { "id": 8 } });
        let fields = json!({
            "checkpoint": { "cursor": cursor, "updated_at": "2026-01-01T01:59:00Z" },
            "lease": { "owner_id": "a", "fencing_token": 4 },
            "recent": [{ "at": "2026-01-01T01:59:00Z", "outcome": "x", "longest_ms": { "lag": 70 } }],
        });
        let found = status(10, &fields);
        assert_eq!(found.checkpoint.as_deref(), Some("0x0000000000000008"));
        assert_eq!((found.checkpoint_age_seconds, found.lag_ms), (Some(60), Some(70)));
        assert_eq!((found.owner.as_deref(), found.token), (Some("a"), 4));
        assert_eq!((found.quarantined, found.configured, found.sizing), (2, true, None));
    }
}
