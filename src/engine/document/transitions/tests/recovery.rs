//! What the recovery controller may change.

use super::*;

#[test]
fn only_an_expired_lease_is_released_and_only_after_the_margin() {
    let (held, _) = held_by("a");
    // ttl 120 s, two grains of 1 s, 2 s.
    for (seconds, lapsed) in [(0, false), (120, false), (123, false), (124, true)] {
        let released = held.release_lapsed(age(seconds), NOW);
        let expected = Refusal::Held { owner_id: "a".to_owned() };
        match released {
            Ok(next) => assert!(lapsed && next.is_some(), "{seconds}"),
            Err(refusal) => assert!(!lapsed && refusal == expected, "{seconds}"),
        }
    }
    let mut foreign = held.clone();
    foreign.lease.idle_before_seconds = 100;
    assert!(foreign.release_lapsed(age(24), NOW).unwrap().is_some(), "foreign writes count not");
    assert_eq!(fresh().release_lapsed(age(1000), NOW).unwrap(), None, "free");
    let mut nameless = held;
    nameless.lease.owner_id = Some(String::new());
    assert!(nameless.release_lapsed(age(1000), NOW).is_err(), "nobody is never the owner");
}

#[test]
fn a_release_raises_the_token_counts_the_crash_and_leaves_the_rest() {
    let (mut held, holder) = held_by("a");
    held.checkpoint.cursor = Some(at(5));
    held.in_flight = Some(batch(Some(5), 8, "a"));
    let released = held.release_lapsed(age(124), NOW).unwrap().unwrap();
    assert!(!released.is_held_by(&holder), "a holder that lives finds it lost");
    assert_eq!(released.lease.fencing_token.0, holder.token.0 + 1);
    assert_eq!((&released.lease.owner_id, released.lease.released_at), (&None, None));
    assert_eq!(released.in_flight, Some(InFlight { crashes: 1, ..batch(Some(5), 8, "a") }));
    assert_eq!(released.checkpoint, held.checkpoint);
    assert!(released.commit(&holder, commit(8, AfterCommit::Release(None))).is_err());
    let next = released.acquire(request("b", 0)).unwrap();
    assert_eq!(next.in_flight.unwrap().crashes, 1, "counted once");
    assert_eq!(released.release_lapsed(age(1000), NOW).unwrap(), None, "and a second time nothing");
}

#[test]
fn a_backoff_is_ended_only_if_it_is_too_long_and_no_tick_is_running() {
    let mut waiting = fresh();
    let latest = NOW + Duration::from_secs(60);
    let until = |seconds| Some(NOW + Duration::from_secs(seconds));
    waiting.in_flight = Some(InFlight { next_attempt_at: until(60), ..batch(Some(5), 8, "a") });
    assert_eq!(waiting.end_back_off(age(10), latest, NOW), None, "asked for");
    waiting.in_flight = Some(InFlight { next_attempt_at: until(61), ..batch(Some(5), 8, "a") });
    let freed = waiting.end_back_off(age(10), latest, NOW).unwrap();
    assert_eq!(freed.in_flight, Some(batch(Some(5), 8, "a")));
    assert_eq!((&freed.checkpoint, &freed.lease.owner_id), (&waiting.checkpoint, &None));
    assert_eq!(freed.end_back_off(age(10), latest, NOW), None, "and a second time nothing");
    let (mut held, _) = held_by("a");
    held.in_flight.clone_from(&waiting.in_flight);
    assert_eq!(held.end_back_off(age(0), latest, NOW), None, "a holder is at it");
    let reason = "r".to_owned();
    let paused = Paused { by: "a".to_owned(), reason, at: NOW, extra: serde_json::Map::new() };
    let paused = waiting.with_pause(paused);
    assert_eq!(paused.end_back_off(age(0), latest, NOW), None, "whoever resumes ends it");
}
