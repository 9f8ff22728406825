mod recovery;

use time::macros::datetime;

use super::*;
use crate::cursor::{KeyValues, RowVersion, SourceFingerprint};
use crate::document::{Generation, LeaseRecord, VERSION, decode, encode};

const NOW: OffsetDateTime = datetime!(2026-04-07 1:23:45 UTC);
const TTL: Duration = Duration::from_secs(120);

fn age(seconds: u64) -> DocumentAge {
    DocumentAge { since_write: Duration::from_secs(seconds), grain: Duration::from_secs(1) }
}

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

fn fresh() -> StateDocument {
    StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(7))
}

fn request(owner_id: &str, seconds: u64) -> Acquire<'_> {
    Acquire { owner_id, ttl: TTL, age: age(seconds), now: NOW, in_flight: None }
}

fn held_by(owner_id: &str) -> (StateDocument, Holder) {
    let document = fresh().acquire(request(owner_id, 0)).unwrap();
    let holder = document.holder(owner_id);
    (document, holder)
}

fn commit(upto: u64, then: AfterCommit) -> Commit {
    let batch_id = batch(None, upto, "a").batch_id;
    Commit {
        batch_id,
        upto: at(upto),
        rows: 3,
        is_diverted: false,
        unreadable_last: 0,
        now: NOW,
        audit: AuditStep::Off,
        then,
    }
}

fn failure(counted: bool) -> Failure {
    let next_attempt_at = Some(NOW + Duration::from_secs(10));
    Failure {
        error: "503".to_owned(),
        step: None,
        kind: "handler_failed",
        counted,
        next_attempt_at,
        now: NOW,
        tick: None,
        narrowed: None,
        pause: None,
    }
}

#[test]
fn the_first_grant_has_token_one_and_each_later_one_is_higher() {
    let (document, holder) = held_by("a");
    assert_eq!(holder.token, FencingToken(1));
    let released = document.release(&holder, NOW, None).unwrap();
    let again = released.acquire(request("b", 0)).unwrap();
    assert_eq!(again.lease.fencing_token, FencingToken(2));
}

#[test]
fn a_live_lease_is_never_taken_over() {
    let (document, _) = held_by("a");
    // ttl 120, two grains of 1 s, margin 2 s.
    for (seconds, acquires) in [(0, false), (120, false), (123, false), (124, true)] {
        assert_eq!(document.acquire(request("b", seconds)).is_ok(), acquires, "{seconds} s");
    }
}

#[test]
fn a_released_lease_is_free_at_once() {
    let (document, holder) = held_by("a");
    let released = document.release(&holder, NOW, None).unwrap();
    assert_eq!(released.lease_state("b", age(0)), LeaseState::Free);
}

#[test]
fn a_process_reclaims_its_own_ghost_lease_at_once() {
    let (document, _) = held_by("a");
    assert_eq!(document.lease_state("a", age(0)), LeaseState::Own);
    let reclaimed = document.acquire(request("a", 0)).unwrap();
    assert_eq!(reclaimed.lease.fencing_token, FencingToken(2));
}

#[test]
fn the_ttl_of_the_document_counts_and_not_that_of_the_challenger() {
    let (document, _) = held_by("a");
    let impatient = Acquire { ttl: Duration::from_secs(15), ..request("b", 60) };
    assert!(matches!(document.acquire(impatient), Err(Refusal::Held { .. })));
}

#[test]
fn the_timestamps_of_a_lease_are_for_people_only() {
    let (document, holder) = held_by("a");
    for at in [None, Some(NOW - Duration::from_secs(1_000_000)), Some(NOW + TTL * 1_000)] {
        let mut odd = document.clone();
        odd.lease.acquired_at = at;
        odd.lease.heartbeat_at = at;
        odd.lease.expires_at = at;
        for (seconds, standing) in
            [(123, LeaseState::Held { owner_id: "a".to_owned() }), (124, LeaseState::Lapsed)]
        {
            assert_eq!(odd.lease_state("b", age(seconds)), standing, "{at:?}");
        }
        assert!(odd.commit(&holder, commit(9, AfterCommit::Release(None))).is_ok(), "{at:?}");
    }
}

#[test]
fn a_foreign_write_does_not_keep_an_abandoned_lease_alive() {
    let (document, _) = held_by("a");
    let paused = Paused {
        by: "eve".to_owned(),
        reason: "r".to_owned(),
        at: NOW,
        extra: serde_json::Map::new(),
    };
    let resumed = document.pause(paused, age(100)).resume(age(10));
    assert_eq!(resumed.lease.idle_before_seconds, 110);
    // 110 + 14 reaches the 124 s after which the lease has expired.
    assert_eq!(resumed.lease_state("b", age(13)), LeaseState::Held { owner_id: "a".to_owned() });
    assert_eq!(resumed.lease_state("b", age(14)), LeaseState::Lapsed);
}

#[test]
fn frequent_foreign_writes_do_not_keep_an_abandoned_lease_alive() {
    let paused = Paused {
        by: "eve".to_owned(),
        reason: "r".to_owned(),
        at: NOW,
        extra: serde_json::Map::new(),
    };
    let soon = DocumentAge { since_write: Duration::from_millis(900), ..age(0) };
    let (mut document, _) = held_by("a");
    // Each comes 0.9 s after the previous one; the lease expires at 124 s.
    for write in 1..=137 {
        document = document.pause(paused.clone(), soon);
        // As the next writer reads it.
        document = decode("orders", &encode(&document)).unwrap();
        let held = matches!(document.lease_state("b", age(0)), LeaseState::Held { .. });
        assert!(held, "123.3 s are not 124: write {write}");
    }
    document = document.pause(paused, soon);
    assert_eq!(document.lease_state("b", age(0)), LeaseState::Lapsed, "124.2 s");
    assert_eq!(document.lease.idle_before(), Duration::from_millis(124_200));
}

fn observed() -> BacklogObservation {
    BacklogObservation {
        at: NOW,
        lag: None,
        positions: Some(7),
        rows: None,
        held_back: None,
        retention_left: None,
        idle_ticks: 1,
        reads: Vec::new(),
        extra: serde_json::Map::new(),
    }
}

#[test]
fn a_write_of_the_holder_resets_the_idle_time() {
    let (document, holder) = held_by("a");
    let renewed = document.observe(observed(), age(100)).renew(&holder, NOW).unwrap();
    assert_eq!(renewed.lease.idle_before_seconds, 0);
}

#[test]
fn a_renewal_keeps_the_token() {
    let (document, holder) = held_by("a");
    let renewed = document.renew(&holder, NOW + TTL).unwrap();
    assert_eq!(renewed.lease.fencing_token, holder.token);
    assert_eq!(renewed.lease.expires_at, Some(NOW + TTL + TTL));
}

#[test]
fn a_stale_holder_can_neither_renew_commit_fail_nor_release() {
    let (document, stale) = held_by("a");
    let stolen = document.acquire(request("b", 500)).unwrap();
    for result in [
        stolen.renew(&stale, NOW),
        stolen.commit(&stale, commit(9, AfterCommit::Release(None))),
        stolen.fail(&stale, failure(true)),
        stolen.release(&stale, NOW, None),
        stolen.narrow(&stale, batch(None, 9, "a"), NOW),
    ] {
        assert!(matches!(result, Err(Refusal::Superseded { .. })), "{result:?}");
    }
}

#[test]
fn the_same_owner_under_an_older_grant_is_stale_too() {
    let (document, old) = held_by("a");
    let reclaimed = document.acquire(request("a", 0)).unwrap();
    assert!(reclaimed.renew(&old, NOW).is_err());
}

#[test]
fn a_holder_of_another_generation_is_stale() {
    let (mut document, holder) = held_by("a");
    document.generation = Generation(8);
    assert!(document.renew(&holder, NOW).is_err());
}

#[test]
fn a_commit_moves_the_checkpoint_and_can_release_in_the_same_write() {
    let (document, holder) = held_by("a");
    let next = document.commit(&holder, commit(9, AfterCommit::Release(None))).unwrap();
    assert_eq!(next.checkpoint.cursor, Some(at(9)));
    assert_eq!(next.checkpoint.metadata.row_count, 3);
    assert_eq!(next.in_flight, None);
    assert_eq!(next.lease_state("b", age(0)), LeaseState::Free);
}

#[test]
fn a_commit_can_announce_the_next_batch_and_keep_the_lease() {
    let (document, holder) = held_by("a");
    let announced = AfterCommit::Announce(Box::new(batch(Some(9), 12, "b")));
    let next = document.commit(&holder, commit(9, announced)).unwrap();
    let next_batch = InFlight { started_at: Some(NOW), ..batch(Some(9), 12, "b") };
    assert_eq!(next.in_flight, Some(next_batch));
    assert!(next.is_held_by(&holder));
}

#[test]
fn the_checkpoint_never_moves_back() {
    let (document, holder) = held_by("a");
    let next = document.commit(&holder, commit(9, AfterCommit::Release(None))).unwrap();
    let next = next.acquire(request("a", 0)).unwrap();
    let holder = next.holder("a");
    let back = next.commit(&holder, commit(8, AfterCommit::Release(None)));
    assert!(matches!(back, Err(Refusal::Backwards { .. })), "{back:?}");
    assert!(next.commit(&holder, commit(9, AfterCommit::Release(None))).is_ok());
}

#[test]
fn an_expired_lease_without_a_successor_still_commits() {
    let (document, holder) = held_by("a");
    let late = Commit { now: NOW + TTL * 10, ..commit(9, AfterCommit::Release(None)) };
    assert!(document.commit(&holder, late).is_ok());
}

#[test]
fn a_failure_is_counted_and_backs_off_and_releases_the_lease() {
    let document = fresh()
        .acquire(Acquire { in_flight: Some(batch(None, 9, "a")), ..request("a", 0) })
        .unwrap();
    let failed = document.fail(&document.holder("a"), failure(true)).unwrap();
    let in_flight = failed.in_flight.clone().unwrap();
    assert_eq!((in_flight.attempt, in_flight.first_failed_at), (1, Some(NOW)));
    assert_eq!(failed.lease_state("b", age(0)), LeaseState::Free);
    assert!(matches!(failed.acquire(request("b", 0)), Err(Refusal::BackingOff { .. })));
    let later = Acquire { now: NOW + Duration::from_secs(10), ..request("b", 0) };
    assert!(failed.acquire(later).is_ok());
}

#[test]
fn a_backoff_that_may_be_over_by_a_coarse_clock_is_over() {
    let (mut document, _) = held_by("a");
    let until = NOW + Duration::from_secs(10);
    document.in_flight = Some(InFlight { next_attempt_at: Some(until), ..batch(Some(5), 8, "a") });
    for (grain_ms, early_ms, is_over) in
        [(0, 0, true), (0, 1, false), (1_000, 0, true), (1_000, 1_000, true), (1_000, 1_001, false)]
    {
        let now = until - Duration::from_millis(early_ms);
        let refused = document.block_reason(now, Duration::from_millis(grain_ms));
        assert_eq!(refused.is_none(), is_over, "{grain_ms} {early_ms}");
    }
}

#[test]
fn back_pressure_does_not_count_as_an_attempt() {
    let document = fresh()
        .acquire(Acquire { in_flight: Some(batch(None, 9, "a")), ..request("a", 0) })
        .unwrap();
    let failed = document.fail(&document.holder("a"), failure(false)).unwrap();
    assert_eq!(failed.in_flight.unwrap().attempt, 0);
}

#[test]
fn attempts_are_counted_by_position_even_if_the_rows_change() {
    let document = fresh()
        .acquire(Acquire { in_flight: Some(batch(None, 9, "a")), ..request("a", 0) })
        .unwrap();
    let failed =
        document.fail(&document.holder("a"), Failure { next_attempt_at: None, ..failure(true) });
    let failed = failed.unwrap();
    for (retry, attempts) in [
        (batch(None, 9, "a"), 1),
        // The same rows with other content: a new batch, but the position has failed once.
        (batch(None, 9, "b"), 1),
        // The last row has changed and left the batch, or all have.
        (batch(None, 8, "c"), 1),
        (batch(None, 12, "d"), 1),
        // The checkpoint has moved: the rows after it have never failed.
        (batch(Some(3), 9, "a"), 0),
    ] {
        let next = failed.acquire(Acquire { in_flight: Some(retry.clone()), ..request("a", 0) });
        let in_flight = next.unwrap().in_flight.unwrap();
        assert_eq!(in_flight.attempt, attempts, "{retry:?}");
        assert_eq!(in_flight.batch_id, retry.batch_id);
    }
}

#[test]
fn a_crashed_holder_is_counted_by_the_instance_that_takes_over() {
    let request_with_batch = Acquire { in_flight: Some(batch(None, 9, "a")), ..request("a", 0) };
    let document = fresh().acquire(request_with_batch).unwrap();
    let retry = || Some(batch(None, 9, "a"));
    let lapsed = document.acquire(Acquire { in_flight: retry(), ..request("b", 500) }).unwrap();
    assert_eq!(lapsed.in_flight.unwrap().crashes, 1);
    let own = document.acquire(Acquire { in_flight: retry(), ..request("a", 0) }).unwrap();
    assert_eq!(own.in_flight.unwrap().crashes, 0, "a ghost of this process did not crash");
    let blind = document.acquire(request("b", 500)).unwrap();
    assert_eq!(blind.in_flight.unwrap().crashes, 1, "even if the batch is not known yet");
}

#[test]
fn a_released_or_broken_lease_counts_no_crash() {
    let request_with_batch = Acquire { in_flight: Some(batch(None, 9, "a")), ..request("a", 0) };
    let document = fresh().acquire(request_with_batch).unwrap();
    let failed = document.fail(&document.holder("a"), failure(true)).unwrap();
    let broken = document.break_lease().unwrap();
    for ended in [failed, broken] {
        let later = Acquire { now: NOW + TTL, ..request("b", 500) };
        assert_eq!(ended.acquire(later).unwrap().in_flight.unwrap().crashes, 0);
    }
}

#[test]
fn a_paused_poller_grants_nothing_but_its_holder_may_finish() {
    let (document, holder) = held_by("a");
    let paused = Paused {
        by: "eve".to_owned(),
        reason: "r".to_owned(),
        at: NOW,
        extra: serde_json::Map::new(),
    };
    let paused = document.pause(paused, age(1));
    assert!(matches!(paused.acquire(request("a", 0)), Err(Refusal::Paused { .. })));
    assert_eq!(paused.requires, ["paused"], "so that an older build does not run it");
    assert!(paused.commit(&holder, commit(9, AfterCommit::Release(None))).is_ok());
    assert!(paused.resume(age(1)).acquire(request("b", 500)).is_ok());
}

#[test]
fn reset_and_break_clear_the_owner_and_raise_the_token() {
    let (mut document, holder) = held_by("a");
    document.source_state.insert("mark".to_owned(), "7".into());
    document.observed = Some(observed());
    let reset = document.reset(Some(at(3)), "replay-1".to_owned()).unwrap();
    assert_eq!(reset.checkpoint.cursor, Some(at(3)));
    assert_eq!(reset.replay_id.as_deref(), Some("replay-1"));
    assert!(reset.source_state.is_empty(), "it belonged to another position");
    assert_eq!(reset.observed, None, "so did this");
    for next in [reset, document.break_lease().unwrap()] {
        assert_eq!(next.lease.fencing_token, FencingToken(2));
        assert!(next.renew(&holder, NOW).is_err(), "no write of a former holder can succeed");
        assert_eq!(next.lease_state("b", age(0)), LeaseState::Free);
    }
}

#[test]
fn tokens_stop_at_the_largest_exact_json_integer() {
    let mut document = fresh();
    document.lease =
        LeaseRecord { fencing_token: FencingToken(TOKEN_MAX), ..LeaseRecord::default() };
    let exhausted = || Err(Refusal::TokensExhausted { poller: "orders".to_owned() });
    assert_eq!(document.acquire(request("a", 0)), exhausted());
    assert_eq!(document.break_lease(), exhausted());
    assert_eq!(document.reset(None, "r".to_owned()), exhausted());
    document.lease.fencing_token = FencingToken(TOKEN_MAX - 1);
    assert_eq!(document.acquire(request("a", 0)).unwrap().lease.fencing_token.0, TOKEN_MAX);
}

#[test]
fn only_the_last_fifty_ticks_are_kept() {
    let mut document = fresh();
    for n in 0..60 {
        let held = document.acquire(request("a", 0)).unwrap();
        let recent = RecentTick {
            at: NOW,
            outcome: n.to_string(),
            rows: 0,
            batches: 0,
            duration_ms: 0,
            idle_before: 0,
            longest_ms: std::collections::BTreeMap::new(),
            extra: serde_json::Map::new(),
        };
        let timings = vec![("fetch", Duration::from_millis(3))];
        let tick = EndOfTick { recent, timings, observed: observed() };
        document = held.release(&held.holder("a"), NOW, Some(tick)).unwrap();
    }
    assert_eq!(document.recent.len(), RECENT_MAX);
    assert_eq!(document.recent.last().unwrap().outcome, "59");
    assert_eq!(document.timings["fetch"].percentile_ms(50), Some(4));
    assert_eq!(document.observed, Some(observed()));
}

#[test]
fn every_field_survives_the_stored_form() {
    let (document, holder) = held_by("a");
    let announced = AfterCommit::Announce(Box::new(batch(Some(9), 12, "b")));
    let document = document.commit(&holder, commit(9, announced)).unwrap();
    assert_eq!(document.version, VERSION);
    assert_eq!(decode("orders", &encode(&document)).unwrap(), document);
}

fn paused_by(by: &str) -> Paused {
    Paused { by: by.to_owned(), reason: "r".to_owned(), at: NOW, extra: serde_json::Map::new() }
}

#[test]
fn a_pause_is_required_once_and_its_end_leaves_other_requirements() {
    let mut document = fresh();
    document.require("range");
    let paused = document.pause(paused_by("ann"), age(0)).pause(paused_by("bob"), age(0));
    assert_eq!(paused.requires, ["range", "paused"]);
    assert_eq!(paused.resume(age(0)).requires, ["range"]);
}

#[test]
fn failures_are_counted_since_the_first_one() {
    let failed = |seconds, count| LastFailure {
        at: NOW + Duration::from_secs(seconds),
        since: NOW + Duration::from_secs(seconds),
        count,
        kind: "handler_failed".to_owned(),
        error: "503".to_owned(),
        extra: serde_json::Map::new(),
    };
    let document = fresh().failing(failed(10, 2), age(0)).failing(failed(20, 3), age(0));
    assert_eq!(
        document.last_failure,
        Some(LastFailure { since: failed(10, 0).since, ..failed(20, 5) })
    );
}

#[test]
fn the_first_error_of_a_position_is_kept_until_the_checkpoint_moves() {
    let (document, holder) = held_by("a");
    let mut document = document
        .commit(&holder, commit(1, AfterCommit::Announce(Box::new(batch(Some(1), 5, "x")))));
    for error in ["first", "second"] {
        let holder = document.as_ref().unwrap().holder("a");
        let failure = Failure { error: error.to_owned(), next_attempt_at: None, ..failure(true) };
        let failed = document.unwrap().fail(&holder, failure).unwrap();
        let in_flight = Some(batch(Some(1), 5, "x"));
        document = failed.acquire(Acquire { in_flight, ..request("a", 0) });
    }
    let batch = document.unwrap().in_flight.unwrap();
    assert_eq!(batch.attempt, 2);
    assert_eq!(batch.first_error.as_deref(), Some("first"));
    assert_eq!(batch.last_error.as_deref(), Some("second"));
}

#[test]
fn late_rows_announced_by_a_commit_keep_their_history() {
    let (document, holder) = held_by("a");
    let closes = AuditStep::Closes(crate::document::IdSum::default());
    let late = |attempt| InFlight { late: true, attempt, ..batch(None, 1, "late") };
    let first = Commit { audit: closes, ..commit(1, AfterCommit::Announce(Box::new(late(0)))) };
    let mut document = document.commit(&holder, first).unwrap();
    document.audit.put_back(late(2));
    let second = Commit { audit: closes, ..commit(2, AfterCommit::Announce(Box::new(late(0)))) };
    let next = document.commit(&holder, second).unwrap();
    assert_eq!(next.in_flight.map(|batch| batch.attempt), Some(2));
}
