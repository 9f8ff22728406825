use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::cursor::{Cursor, KeyValues, RowVersion, SourceFingerprint};
use crate::document::{
    Acquire, AfterCommit, AuditStep, Commit, DocumentAge, Failure, Generation, decode, encode,
};

const NOW: OffsetDateTime = datetime!(2026-04-07 1:23:45 UTC);
const LATER: OffsetDateTime = datetime!(2026-04-07 2:00 UTC);
const CHAIN: [&str; 3] = ["first", "second", "third"];

fn at(version: u64) -> Cursor {
    let mut key = KeyValues::new();
    key.insert("id".to_owned(), version.into());
    Cursor::row_version(RowVersion(version), key)
}

fn batch(after: Option<u64>, upto: u64, content: &str) -> InFlight {
    serde_json::from_value(serde_json::json!({
        "batch_id": format!("batch_{content}"),
        "after": after.map(at),
        "upto": at(upto),
        "rows": 3,
        "digest": content,
    }))
    .unwrap()
}

fn digest(content: &str) -> EventsDigest {
    batch(None, 9, content).digest
}

fn accepted(step: &str, content: &str) -> StepResult {
    StepResult::accepted(step, digest(content), LATER)
}

fn acquired(document: &StateDocument, owner_id: &str, batch: InFlight, seconds: u64) -> Held {
    let age =
        DocumentAge { since_write: Duration::from_secs(seconds), grain: Duration::from_secs(1) };
    let now = NOW + Duration::from_secs(seconds);
    let ttl = Duration::from_secs(120);
    let request = Acquire { owner_id, ttl, age, now, in_flight: Some(batch) };
    let document = document.acquire(request).unwrap();
    Held { holder: document.holder(owner_id), document }
}

struct Held {
    document: StateDocument,
    holder: Holder,
}

impl Held {
    fn new(batch: InFlight) -> Self {
        let fresh = StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(7));
        acquired(&fresh, "a", batch, 0)
    }

    fn completes(&self, part: InFlight, steps_before: usize, result: StepResult) -> StateDocument {
        self.document.complete_step(&self.holder, part, (steps_before, result)).unwrap()
    }
}

fn done(document: &StateDocument, content: &str) -> usize {
    document.in_flight.as_ref().unwrap().steps_done(&CHAIN, &digest(content))
}

fn started_at(document: &StateDocument) -> Option<OffsetDateTime> {
    document.in_flight.as_ref().unwrap().started_at
}

/// The batch `a` with the result of its first step.
fn one_done() -> Held {
    let held = Held::new(batch(None, 9, "a"));
    let document = held.completes(batch(None, 9, "a"), 0, accepted("first", "a"));
    Held { document, ..held }
}

#[test]
fn steps_are_done_from_the_first_one_on_and_for_their_own_bytes_only() {
    let held = one_done();
    assert_eq!((done(&held.document, "a"), done(&held.document, "b")), (1, 0));
    let two = held.completes(batch(None, 9, "a"), 1, accepted("second", "a"));
    assert_eq!((done(&two, "a"), done(&held.document, "a")), (2, 1));
    let again = held.completes(batch(None, 9, "a"), 0, accepted("first", "a"));
    assert_eq!(done(&again, "a"), 1, "reported twice, stored once");
    assert_eq!(again.in_flight.unwrap().steps.len(), 1);
    let in_flight = two.in_flight.unwrap();
    for (chain, count) in [
        (&["first", "second"][..], 2),
        (&["first", "third"], 1),
        (&["second", "first"], 0),
        (&["second"], 0),
        (&[], 0),
    ] {
        assert_eq!(in_flight.steps_done(chain, &digest("a")), count, "{chain:?}");
    }
}

#[test]
fn an_unknown_outcome_is_not_mistaken_for_success() {
    let result = StepResult { outcome: "half".to_owned(), ..accepted("first", "a") };
    let held = Held::new(batch(None, 9, "a"));
    assert_eq!(done(&held.completes(batch(None, 9, "a"), 0, result), "a"), 0);
}

#[test]
fn results_of_a_chain_with_other_steps_are_dropped() {
    let held = one_done();
    let next = held.completes(batch(None, 9, "a"), 0, accepted("other", "a"));
    let names: Vec<_> = next.in_flight.unwrap().steps.into_iter().map(|kept| kept.step).collect();
    assert_eq!(names, ["other"]);
}

#[test]
fn results_belong_to_the_bytes_whichever_instance_resumes_the_batch() {
    let held = one_done();
    for owner_id in ["a", "b"] {
        for (content, kept) in [("a", 1), ("b", 0)] {
            let next = acquired(&held.document, owner_id, batch(None, 9, content), 500);
            assert_eq!(done(&next.document, content), kept, "{owner_id} {content}");
            let steps = next.document.in_flight.unwrap().steps;
            assert_eq!(steps.len(), kept, "{owner_id} {content}");
        }
    }
}

#[test]
fn results_do_not_outlive_their_batch() {
    let held = one_done();
    let next = Box::new(batch(Some(9), 12, "b"));
    for then in [AfterCommit::Announce(next.clone()), AfterCommit::ReleaseAndKeep(next, None)] {
        let commit = Commit {
            batch_id: batch(None, 9, "a").batch_id,
            upto: at(9),
            rows: 3,
            is_diverted: false,
            unreadable_last: 0,
            now: LATER,
            audit: AuditStep::Off,
            then,
        };
        let document = held.document.commit(&held.holder, commit).unwrap();
        assert_eq!(document.in_flight.as_ref().unwrap().steps, []);
        assert_eq!(started_at(&document), Some(LATER));
    }
}

#[test]
fn a_failure_keeps_the_results_so_that_the_next_attempt_resumes() {
    let held = one_done();
    let failure = |narrowed| Failure {
        error: "503".to_owned(),
        step: None,
        kind: "handler_failed",
        counted: true,
        next_attempt_at: None,
        now: LATER,
        tick: None,
        narrowed,
        pause: None,
    };
    let whole = Box::new(batch(None, 9, "a"));
    let part = Box::new(batch(None, 4, "part"));
    for (narrowed, kept) in [(None, 1), (Some(whole), 1), (Some(part), 0)] {
        let failed = held.document.fail(&held.holder, failure(narrowed)).unwrap();
        let in_flight = failed.in_flight.unwrap();
        assert_eq!((in_flight.steps.len(), in_flight.started_at), (kept, Some(NOW)));
        assert_eq!(in_flight.last_error.as_deref(), Some("503"));
    }
}

#[test]
fn a_result_of_a_part_replaces_the_whole_with_the_part_and_keeps_the_counts() {
    let mut held = one_done();
    held.document.in_flight.as_mut().unwrap().attempt = 2;
    let document = held.completes(batch(None, 4, "part"), 0, accepted("first", "part"));
    let in_flight = document.in_flight.as_ref().unwrap();
    assert_eq!((done(&document, "part"), done(&document, "a")), (1, 0));
    assert_eq!((&in_flight.upto, in_flight.attempt), (&at(4), 2));
}

#[test]
fn a_batch_keeps_the_time_of_its_first_announcement() {
    let held = one_done();
    assert_eq!(started_at(&held.document), Some(NOW));
    let taken_over = acquired(&held.document, "b", batch(None, 9, "a"), 500);
    assert_eq!(started_at(&taken_over.document), Some(NOW), "by another owner too");
    let other = acquired(&held.document, "b", batch(None, 9, "b"), 500);
    let later = NOW + Duration::from_secs(500);
    assert_eq!(started_at(&other.document), Some(later), "other bytes start over");
    let part = held.document.narrow(&held.holder, batch(None, 4, "part"), LATER).unwrap();
    assert_eq!(started_at(&part), Some(NOW), "a part has been in flight with the whole");
    let behind = held.document.narrow(&held.holder, batch(Some(4), 9, "part"), LATER).unwrap();
    assert_eq!(started_at(&behind), Some(LATER), "another place");
}

#[test]
fn a_record_of_an_older_version_gets_its_time_when_its_batch_starts() {
    let mut held = one_done();
    held.document.in_flight.as_mut().unwrap().started_at = None;
    let next = acquired(&held.document, "b", batch(None, 9, "a"), 500);
    assert_eq!(started_at(&next.document), Some(NOW + Duration::from_secs(500)));
    assert_eq!(done(&next.document, "a"), 1);
}

#[test]
fn unknown_fields_of_a_batch_survive_when_the_same_batch_starts_again() {
    let mut held = one_done();
    let in_flight = held.document.in_flight.as_mut().unwrap();
    in_flight.extra.insert("later".to_owned(), 1.into());
    in_flight.steps[0].extra.insert("later".to_owned(), 2.into());
    let next = acquired(&held.document, "b", batch(None, 9, "a"), 500).document;
    let read = decode("orders", &encode(&next)).unwrap();
    assert_eq!(read, next);
    let in_flight = read.in_flight.unwrap();
    assert_eq!(
        (&in_flight.extra["later"], &in_flight.steps[0].extra["later"]),
        (&1.into(), &2.into())
    );
    let other = acquired(&held.document, "b", batch(None, 9, "b"), 500).document;
    assert_eq!(other.in_flight.unwrap().extra, Map::new(), "it belonged to other bytes");
}

#[test]
fn a_superseded_holder_stores_no_result() {
    let held = one_done();
    let newer = acquired(&held.document, "b", batch(None, 9, "a"), 500).document;
    let result = (1, accepted("second", "a"));
    let refused = newer.complete_step(&held.holder, batch(None, 9, "a"), result).unwrap_err();
    assert!(matches!(refused, Refusal::Superseded { .. }), "{refused}");
}

#[test]
fn a_result_is_a_heartbeat_and_moves_nothing_else() {
    let held = one_done();
    let next = held.completes(batch(None, 9, "a"), 1, accepted("second", "a"));
    assert_eq!(next.lease.heartbeat_at, Some(LATER));
    let (mut before, mut after) = (held.document, next);
    for document in [&mut before, &mut after] {
        document.lease.heartbeat_at = None;
        document.lease.expires_at = None;
        document.in_flight = None;
    }
    assert_eq!(before, after);
}
