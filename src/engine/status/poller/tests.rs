use serde_json::json;
use time::macros::datetime;

use super::*;
use crate::cursor::SourceFingerprint;
use crate::document::{Generation, decode};
use crate::status::health::{Evidence, Process, StoredState, Trigger};

const NOW: OffsetDateTime = datetime!(2026-01-01 2:00 UTC);

fn inputs(seconds: u64) -> StatusInputs<'static> {
    let age = DocumentAge { since_write: Duration::from_secs(seconds), grain: Duration::ZERO };
    let ttl = Some(Duration::from_secs(120));
    StatusInputs { age, now: NOW, quarantined: 2, ttl, poller: "orders" }
}

/// Returns a document with these fields.
fn document(fields: &serde_json::Value) -> StateDocument {
    let document = StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(7));
    let mut json = serde_json::to_value(&document).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        json[name] = value.clone();
    }
    decode("orders", json.to_string().as_bytes()).unwrap()
}

fn status(seconds: u64, fields: &serde_json::Value) -> Status {
    Status::of(&document(fields), inputs(seconds))
}

/// Returns the state of a document with these fields.
fn state(seconds: u64, fields: &serde_json::Value) -> PollerState {
    let document = document(fields);
    let age = inputs(seconds).age;
    Evidence {
        poller: "orders",
        now: NOW,
        stored: StoredState::Found(Box::new(health::Document::of(&document, age))),
        process: Process::default(),
        trigger: Trigger::Unknown,
        status_interval: Some(Duration::from_secs(300)),
    }
    .health()
    .state
}

#[test]
fn the_state_is_that_of_the_document() {
    let upto =
        json!({ "kind": "rowversion", "value": "0x0000000000000008", "tiebreaker": { "id": 8 } });
    let batch = json!({ "batch_id": "b", "upto": upto, "rows": 3, "digest": "d", "attempt": 2,
        "last_error": "503", "next_attempt_at": "2026-01-01T02:00:01Z" });
    let at = "2026-01-01T01:00:00Z";
    let free = json!({ "fencing_token": 4, "released_at": at });
    let held = json!({ "lease": { "owner_id": "a", "fencing_token": 4 } });
    let failed = |kind: &str| {
        json!({ "lease": free, "last_failure":
            { "at": at, "since": at, "count": 3, "kind": kind, "error": "e" } })
    };
    let range = |ended: serde_json::Value| {
        let mut range = json!({ "of": "orders", "upto": upto, "begun_at": at });
        range.as_object_mut().unwrap().extend(ended.as_object().unwrap().clone());
        range
    };
    let paused = |by: &str| json!({ "paused": { "by": by, "reason": "r", "at": at } });
    let done = json!({ "done_at": at });
    let cancelled = json!({ "cancelled_at": at });
    for (seconds, fields, expected) in [
        (0, json!({}), PollerState::NeverRan),
        (0, json!({ "lease": free }), PollerState::Idle),
        (121, held.clone(), PollerState::Running),
        (122, held.clone(), PollerState::Failing),
        (0, json!({ "lease": free, "in_flight": batch }), PollerState::BackingOff),
        (0, failed("fetch_failed"), PollerState::Failing),
        (0, failed("schema_changed"), PollerState::Stopped),
        (0, paused("ann"), PollerState::Paused),
        (0, paused(&Paused::by_policy_of("orders")), PollerState::Stopped),
        (
            0,
            json!({ "lease": { "fencing_token": 4, "released_at": at,
                "target_fence": { "generation": 7, "token": 9 } } }),
            PollerState::Stopped,
        ),
        (
            0,
            json!({ "lease": free, "source_state": { "position_lost": "truncated" } }),
            PollerState::Stopped,
        ),
        (0, json!({ "taken_over_by": 4 }), PollerState::TakenOver),
        (0, json!({ "range": range(json!({})), "lease": free }), PollerState::Idle),
        (0, json!({ "range": range(done) }), PollerState::Done),
        (0, json!({ "range": range(cancelled.clone()) }), PollerState::Cancelled),
        // Its holder has crashed meanwhile.
        (122, json!({ "range": range(cancelled), "lease": held["lease"] }), PollerState::Cancelled),
    ] {
        assert_eq!(state(seconds, &fields), expected, "{fields}");
    }
}

#[test]
fn operator_requests_are_in_the_document() {
    let cursor =
        json!({ "kind": "rowversion", "value": "0x0000000000000008", "tiebreaker": { "id": 8 } });
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

fn tick(ago_seconds: i64, rows: u64) -> serde_json::Value {
    use time::format_description::well_known::Rfc3339;
    let at = NOW - time::Duration::seconds(ago_seconds);
    json!({ "at": at.format(&Rfc3339).unwrap(), "outcome": "tick_complete", "rows": rows })
}

#[test]
fn the_rate_covers_the_window_or_the_remembered_part_of_it() {
    let rate = |ticks: Vec<serde_json::Value>| {
        status(0, &json!({ "recent": ticks })).rows_per_minute.to_string()
    };
    assert_eq!(rate(vec![]), "0");
    assert_eq!(rate(vec![tick(601, 1000), tick(300, 15), tick(1, 5)]), "2");
    // A full ring with one tick per second: it covers only 50 seconds.
    let full = (0..50).rev().map(|ago| tick(ago + 1, 3)).collect();
    assert_eq!(rate(full), "180");
    assert_eq!(rate(vec![tick(0, 1)]), "0.1");
}

#[test]
fn a_countdown_subtracts_the_time_that_passed_before_another_write() {
    let lease = |seconds: u64, released: bool| {
        let at = released.then_some("2026-01-01T01:00:00Z");
        let lease = json!({ "owner_id": "a", "fencing_token": 4, "ttl_seconds": 120,
            "idle_before_seconds": 20, "released_at": at });
        let found = status(seconds, &json!({ "lease": lease }));
        found.lease.map(|lease| (lease.ttl_seconds, lease.left_seconds))
    };
    assert_eq!(lease(30, false), Some((120, 70)));
    assert_eq!(lease(101, false), Some((120, 0)), "still held: the margin has not passed");
    assert_eq!(lease(30, true), None);
}

#[test]
fn operator_actions_between_two_ticks_are_shown_and_are_not_failures() {
    let at = "2026-01-01T01:00:00Z";
    let found = status(
        0,
        &json!({ "recent": [
        { "at": at, "outcome": "resumed", "by": "ann", "reason": "mended" },
        { "at": at, "outcome": "resumed", "by": "ann", "reason": "" },
        { "at": at, "outcome": "recovered", "condition": "lease_expired" },
        { "at": at, "outcome": "handler_failed" },
    ] }),
    );
    let notes: Vec<_> = found.recent.iter().map(|tick| (tick.note.as_deref(), tick.tone)).collect();
    let expected = [
        (Some("ann: mended"), Tone::Note),
        (Some("ann"), Tone::Note),
        (Some("lease_expired"), Tone::Note),
        (None, Tone::Bad),
    ];
    assert_eq!(notes, expected);
}

#[test]
fn attention_is_requested_by_severity() {
    for state in PollerState::ALL {
        let health = Health { state, severity: state.severity(), ..Health::default() };
        let needs = Status { health, ..Status::default() }.needs_attention();
        assert_eq!(needs, state.severity() > Severity::Ok, "{state:?}");
    }
}

#[test]
fn every_outcome_logged_as_an_error_is_bad_and_every_warning_is_a_warning() {
    let mut seen = 0;
    let rows = include_str!("../../poller/outcome.rs").lines();
    for row in rows.filter_map(|line| line.strip_prefix("/// |")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let expected = match cells.get(4) {
            Some(&"ERROR") => Tone::Bad,
            Some(&"WARN") => Tone::Warning,
            _ => continue,
        };
        let event = cells[3].trim_matches('`');
        assert_eq!(tone(event), expected, "{event}");
        seen += 1;
    }
    assert!(seen > 10, "the table of ends was found");
}
