use time::macros::datetime;

use super::*;
use crate::cursor::{KeyValues, SourceFingerprint};
use crate::document::{
    Acquire, AfterCommit, DocumentAge, Failure, Generation, Holder, Paused, decode, encode,
};

const NOW: OffsetDateTime = datetime!(2026-04-07 1:23:45 UTC);
const WAIT: Duration = Duration::from_secs(60);

fn at(value: i64) -> Cursor {
    Cursor::integer(value, KeyValues::new())
}

fn sum(ids: &[i64]) -> IdSum {
    let ids: Vec<_> = ids.iter().map(|id| EventId::of("orders", &at(*id))).collect();
    IdSum::of(&ids)
}

fn of_rows(rows: u64) -> IdSum {
    IdSum { rows, ..sum(&[]) }
}

fn window(after: i64, upto: i64, ids: IdSum) -> ClosedWindow {
    ClosedWindow {
        after: (after > 0).then(|| at(after)),
        upto: at(upto),
        ids,
        closed_at: NOW + Duration::from_secs(upto.unsigned_abs()),
        again_upto: None,
        not_taken: None,
        extra: Map::new(),
    }
}

/// Adjacent windows with these numbers of rows.
fn closed(rows: &[u64]) -> Audit {
    let mut audit = Audit::default();
    for (after, rows) in (0..).zip(rows) {
        audit.close(window(after, after + 1, of_rows(*rows)));
    }
    audit
}

fn ranges(audit: &Audit) -> Vec<(i64, i64, u64)> {
    let number = |cursor: &Cursor| cursor.integer_value().unwrap();
    let range =
        |w: &ClosedWindow| (w.after.as_ref().map_or(0, number), number(&w.upto), w.ids.rows);
    audit.windows.iter().map(range).collect()
}

fn in_flight(after: i64, upto: i64, late: bool) -> InFlight {
    serde_json::from_value(serde_json::json!({
        "batch_id": format!("batch_{upto}"),
        "after": (after > 0).then(|| at(after)),
        "upto": at(upto),
        "rows": 1,
        "digest": "d",
        "late": late,
    }))
    .unwrap()
}

/// A document at 9 with one window up to there, held by `owner` with `batch` in flight.
fn held(owner: &str, batch: Option<InFlight>) -> (StateDocument, Holder) {
    let mut document = StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(7));
    document.checkpoint.cursor = Some(at(9));
    document.audit.close(window(0, 9, sum(&[3, 9])));
    acquired(&document, owner, 0, batch)
}

fn acquired(
    document: &StateDocument,
    owner_id: &str,
    seconds: u64,
    in_flight: Option<InFlight>,
) -> (StateDocument, Holder) {
    let since_write = Duration::from_secs(seconds);
    let age = DocumentAge { since_write, grain: Duration::ZERO };
    let ttl = Duration::from_secs(120);
    let acquired = document.acquire(Acquire { owner_id, ttl, age, now: NOW, in_flight }).unwrap();
    let holder = acquired.holder(owner_id);
    (acquired, holder)
}

fn commit(upto: i64, audit: AuditStep, then: AfterCommit) -> Commit {
    let batch_id = in_flight(0, upto, false).batch_id;
    Commit {
        batch_id,
        upto: at(upto),
        rows: 1,
        is_diverted: false,
        unreadable_last: 0,
        now: NOW,
        audit,
        then,
    }
}

fn failure() -> Failure {
    Failure {
        kind: "handler_failed",
        step: None,
        error: "503".to_owned(),
        counted: true,
        next_attempt_at: Some(NOW + WAIT),
        now: NOW,
        tick: None,
        narrowed: None,
        pause: None,
    }
}

#[test]
fn a_sum_distinguishes_sets_and_does_not_depend_on_their_order() {
    assert_eq!(sum(&[1, 2, 3]), sum(&[3, 1, 2]));
    assert_eq!(sum(&[1, 2]).plus(sum(&[3])), sum(&[1, 2, 3]));
    for other in [&[][..], &[1, 2], &[1, 2, 4], &[1, 2, 3, 3], &[1, 1, 2, 2, 3]] {
        assert_ne!(sum(&[1, 2, 3]), sum(other), "{other:?}");
    }
    let json = serde_json::to_string(&sum(&[1])).unwrap();
    assert_eq!(serde_json::from_str::<IdSum>(&json).unwrap(), sum(&[1]));
}

#[test]
fn windows_are_bounded_and_the_smallest_neighbours_become_one() {
    let rows: Vec<u64> = (0..40).map(|n| if n % 10 == 7 { 1 } else { 100 }).collect();
    let audit = closed(&rows);
    assert_eq!(audit.windows.len(), WINDOWS_MAX);
    let kept: u64 = audit.windows.iter().map(|w| w.ids.rows).sum();
    assert_eq!((kept, audit.rows_skipped), (rows.iter().sum(), 0), "nothing is dropped");
    let ranges = ranges(&audit);
    assert!(ranges.contains(&(6, 8, 101)), "{ranges:?}");
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "without a gap: {ranges:?}");
    let merged = audit.windows.iter().find(|w| w.upto == at(8)).unwrap();
    assert_eq!(merged.closed_at, NOW + Duration::from_secs(8), "the later time of the two");
}

#[test]
fn windows_beyond_the_limit_are_counted_and_not_merged() {
    let rows = [WINDOW_ROWS_MAX; WINDOWS_MAX + 2];
    let audit = closed(&rows);
    assert_eq!(ranges(&audit).len(), WINDOWS_MAX);
    assert_eq!(ranges(&audit)[WINDOWS_MAX - 1], (31, 32, WINDOW_ROWS_MAX));
    assert_eq!(audit.rows_skipped, 2 * WINDOW_ROWS_MAX);
}

type Change = fn(&mut ClosedWindow);

#[test]
fn windows_with_a_gap_or_in_progress_are_not_merged() {
    let full = vec![WINDOW_ROWS_MAX; WINDOWS_MAX - 2];
    let changes: [(&str, Change); 3] = [
        ("gap", |one| one.upto = at(1_000)),
        ("delivered again", |one| one.again_upto = Some(at(1))),
        ("not accepted", |one| one.not_taken = Some(Box::new(in_flight(0, 1, true)))),
    ];
    for (name, change) in changes {
        let mut audit = closed(&full);
        let mut one = window(30, 31, of_rows(1));
        change(&mut one);
        audit.windows.push(one);
        audit.windows.push(window(31, 32, of_rows(1)));
        audit.close(window(40, 41, of_rows(1)));
        assert_eq!((audit.windows.len(), audit.rows_skipped), (WINDOWS_MAX, 1), "{name}");
    }
}

#[test]
fn the_oldest_window_is_due_after_its_wait_unless_an_attempt_is_backing_off() {
    let mut audit = closed(&[1, 1]);
    let closed_at = audit.windows[0].closed_at;
    assert_eq!(audit.due(closed_at + WAIT - Duration::from_secs(1), WAIT, Duration::ZERO), None);
    assert_eq!(
        audit.due(closed_at - Duration::from_secs(1), Duration::ZERO, Duration::ZERO),
        None,
        "clock back"
    );
    assert_eq!(audit.due(closed_at + WAIT, WAIT, Duration::ZERO), Some(&audit.windows[0]));
    audit.put_back(InFlight {
        next_attempt_at: Some(closed_at + 2 * WAIT),
        ..in_flight(0, 1, true)
    });
    assert_eq!(audit.due(closed_at + WAIT, WAIT, Duration::ZERO), None);
    assert!(audit.due(closed_at + 2 * WAIT, WAIT, Duration::ZERO).is_some());
    let second = Duration::from_secs(1);
    assert!(audit.due(closed_at + 2 * WAIT - second, WAIT, second).is_some(), "the clock's grain");
    assert_eq!(Audit::default().due(NOW, WAIT, Duration::ZERO), None);
}

#[test]
fn finishing_a_window_removes_earlier_ones_and_an_unknown_window_removes_none() {
    let mut audit = closed(&[1, 1, 1]);
    let second = audit.windows[1].clone();
    let other = ClosedWindow { closed_at: NOW, ..second.clone() };
    assert!(!audit.finish(&other), "the same range, closed at another time");
    assert_eq!(ranges(&audit).len(), 3);
    assert!(audit.finish(&second));
    assert_eq!(ranges(&audit), [(2, 3, 1)]);
}

#[test]
fn a_commit_closes_a_window_and_late_rows_do_not_move_the_checkpoint() {
    let (document, holder) = held("a", Some(in_flight(9, 12, false)));
    let closes = AuditStep::Closes(sum(&[10, 12]));
    let late = Box::new(in_flight(0, 4, true));
    let next = document.commit(&holder, commit(12, closes, AfterCommit::Announce(late))).unwrap();
    assert_eq!(ranges(&next.audit), [(0, 9, 2), (9, 12, 2)]);
    assert_eq!(next.audit.windows[1].ids, sum(&[10, 12]));
    let last = commit(4, AuditStep::ReadAgain, AfterCommit::Release(None));
    let done = next.commit(&holder, last).unwrap();
    assert_eq!(done.checkpoint, next.checkpoint, "completely unchanged");
    assert_eq!(done.audit.windows[0].begin(), Some(&at(4)));
    assert_eq!(done.audit.windows[1], next.audit.windows[1]);
    let released = Map::from_iter([("in_flight".to_owned(), serde_json::json!(done.in_flight))]);
    assert_eq!(released["in_flight"], Json::Null);
    assert_eq!(decode("orders", &encode(&done)).unwrap(), done);
}

#[test]
fn late_rows_of_a_removed_window_move_no_other_window() {
    let (mut document, holder) = held("a", Some(in_flight(0, 4, true)));
    document.audit.windows = vec![window(9, 12, sum(&[12]))];
    let last = commit(4, AuditStep::ReadAgain, AfterCommit::Release(None));
    let done = document.commit(&holder, last).unwrap();
    assert_eq!(done.audit.windows[0].begin(), Some(&at(9)));
}

#[test]
fn rejected_late_rows_block_no_other_rows_and_are_counted() {
    let (document, holder) = held("a", Some(in_flight(0, 4, true)));
    let failed = document.fail(&holder, failure()).unwrap();
    assert_eq!(failed.in_flight, None);
    assert_eq!(failed.block_reason(NOW, Duration::ZERO), None, "other rows continue");
    assert_eq!(failed.audit.windows[0].not_taken.as_ref().unwrap().attempt, 1);
    assert_eq!(failed.audit.windows[0].end(), &at(4), "tried on their own");
    let (again, holder) = acquired(&failed, "b", 0, Some(in_flight(0, 4, true)));
    assert_eq!(again.in_flight.as_ref().unwrap().attempt, 1, "counted on");
    let failed = again.fail(&holder, failure()).unwrap();
    assert_eq!(failed.audit.not_taken().unwrap().attempt, 2);
    let age = DocumentAge { since_write: WAIT, grain: WAIT };
    let resumed = failed.resume(age);
    let late = resumed.audit.not_taken().unwrap();
    assert_eq!((late.attempt, late.next_attempt_at), (2, None), "tried at once");
    let paused = Paused {
        by: Paused::by_policy_of("orders"),
        reason: "r".to_owned(),
        at: NOW,
        extra: Map::new(),
    };
    let resumed = failed.with_pause(paused).resume(age);
    assert_eq!(resumed.audit.not_taken(), None, "counted from zero");
}

#[test]
fn a_crash_with_late_rows_is_counted_for_them_and_not_for_other_rows() {
    let (document, _) = held("a", Some(in_flight(0, 4, true)));
    let (other, _) = acquired(&document, "b", 500, Some(in_flight(9, 12, false)));
    assert_eq!(other.in_flight.as_ref().unwrap().crashes, 0);
    assert_eq!(other.audit.not_taken().unwrap().crashes, 1);
    let (late, _) = acquired(&document, "b", 500, Some(in_flight(0, 4, true)));
    assert_eq!(late.in_flight.unwrap().crashes, 1);
    let (blind, _) = acquired(&document, "b", 500, None);
    assert_eq!((blind.in_flight, blind.audit.not_taken().unwrap().crashes), (None, 1));
}

#[test]
fn a_part_that_is_left_for_later_returns_to_its_window() {
    let (document, holder) = held("a", Some(in_flight(0, 4, true)));
    let left = AfterCommit::ReleaseAndKeep(Box::new(in_flight(3, 4, true)), None);
    let next = document.commit(&holder, commit(3, AuditStep::ReadAgain, left)).unwrap();
    assert_eq!(next.in_flight, None);
    assert_eq!(next.audit.windows[0].end(), &at(4));
    assert_eq!(next.audit.windows[0].begin(), Some(&at(3)));
}

#[test]
fn windows_are_dropped_by_a_reset_and_by_a_poller_that_does_not_audit() {
    let (document, holder) = held("a", None);
    assert!(document.reset(None, "r".to_owned()).unwrap().audit.is_empty());
    let off = commit(12, AuditStep::Off, AfterCommit::Release(None));
    assert!(document.commit(&holder, off).unwrap().audit.is_empty());
}
