use std::collections::BTreeSet;

use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-01-01 12:00 UTC);
const INTERVAL: Duration = Duration::from_secs(300);

fn before(seconds: i64) -> OffsetDateTime {
    NOW - time::Duration::seconds(seconds)
}

fn every_five_seconds() -> Vec<Schedule> {
    vec![Schedule::parse("*/5 * * * * *").unwrap()]
}

fn failed(kind: &str, ago: i64) -> Failure {
    let error = format!("the error of {kind}");
    Failure { at: before(ago), since: before(ago + 60), count: 12, kind: kind.to_owned(), error }
}

/// A poller that delivered ten minutes ago and was idle 10 s ago.
fn healthy<'a>() -> Document<'a> {
    Document {
        has_run: true,
        last_success_at: Some(before(10)),
        last_tick_at: Some(before(10)),
        ..Document::default()
    }
}

fn failing<'a>(kind: &str) -> Document<'a> {
    let last_success_at = Some(before(600));
    Document { last_success_at, failure: Some(failed(kind, 10)), ..healthy() }
}

fn evidence<'a>(document: Document<'a>, schedules: &'a [Schedule]) -> Evidence<'a> {
    Evidence {
        poller: "orders",
        now: NOW,
        stored: StoredState::Found(Box::new(document)),
        process: Process::default(),
        trigger: Trigger::Timer(schedules),
        status_interval: Some(INTERVAL),
    }
}

fn state_of(evidence: &Evidence<'_>) -> PollerState {
    evidence.health().state
}

#[test]
fn a_quarantined_key_needs_attention_although_other_rows_are_delivered() {
    let schedules = every_five_seconds();
    let with =
        |quarantined, document| evidence(Document { quarantined, ..document }, &schedules).health();
    let found = with(1, healthy());
    assert_eq!((found.state, found.severity), (PollerState::Idle, Severity::Warning));
    assert_eq!(found.runbook, Some("runbooks/quarantine.md"));
    let cause = found.cause.unwrap();
    assert!(cause.starts_with("1 key is quarantined and not delivered: "), "{cause}");
    assert!(cause.contains("`highwater quarantine redrive orders --all`"), "{cause}");
    assert!(with(2, healthy()).cause.unwrap().starts_with("2 keys are "));
    assert_eq!(with(0, healthy()).severity, Severity::Ok);
    let failing = with(1, failing("fetch_failed"));
    assert_eq!(failing.severity, Severity::Error);
    assert_eq!(failing.cause.as_deref(), Some("the error of fetch_failed"), "more urgent");
}

#[test]
fn each_situation_of_the_drill_has_its_state() {
    let schedules = every_five_seconds();
    let pause = |is_by_rule| Pause { by: "ann", reason: "upgrade", at: before(60), is_by_rule };
    let paused = |is_by_rule| Document { paused: Some(pause(is_by_rule)), ..healthy() };
    let lapsed = LeaseStatus::Lapsed { owner_id: "shop/1" };
    let silent = Document {
        last_success_at: Some(before(601)),
        last_tick_at: Some(before(601)),
        ..healthy()
    };
    let cases = [
        ("healthy", healthy(), PollerState::Idle),
        (
            "database down, wrong password, table dropped",
            failing("fetch_failed"),
            PollerState::Failing,
        ),
        ("receiver answers 401 or 404", failing("handler_misconfigured"), PollerState::Failing),
        ("receiver answers 503, or is gone", failing("handler_failed"), PollerState::BackingOff),
        ("poison row", failing("handler_rejected"), PollerState::Failing),
        ("changes were cleaned up", failing("position_lost"), PollerState::Stopped),
        (
            "loss in the document",
            Document { stopped: Some("lost".to_owned()), ..healthy() },
            PollerState::Stopped,
        ),
        ("columns changed", failing("schema_changed"), PollerState::Stopped),
        ("another source", failing("fingerprint"), PollerState::Stopped),
        ("paused by a person", paused(false), PollerState::Paused),
        (
            "paused while another holds the lease",
            Document { lease: LeaseStatus::Held, ..paused(false) },
            PollerState::Paused,
        ),
        (
            "paused while a dead process holds the lease",
            Document { lease: lapsed, ..paused(false) },
            PollerState::Paused,
        ),
        ("stopped by policy", paused(true), PollerState::Stopped),
        (
            "handler killed in mid-batch",
            Document { lease: lapsed, ..healthy() },
            PollerState::Failing,
        ),
        ("no process", silent, PollerState::Silent),
        (
            "first load",
            Document {
                has_run: true,
                lease: LeaseStatus::Held,
                last_tick_at: Some(NOW),
                ..Document::default()
            },
            PollerState::Running,
        ),
        ("never granted", Document::default(), PollerState::NeverRan),
    ];
    for (situation, document, expected) in cases {
        assert_eq!(state_of(&evidence(document, &schedules)), expected, "{situation}");
    }
    let healthy = evidence(healthy(), &schedules);
    let cases = [
        ("document gone", StoredState::Missing { ran_before: true }, PollerState::Vanished),
        ("first deployment", StoredState::Missing { ran_before: false }, PollerState::NeverRan),
        ("document not JSON", StoredState::Unreadable("not JSON"), PollerState::Failing),
    ];
    for (situation, stored, expected) in cases {
        assert_eq!(state_of(&Evidence { stored, ..healthy.clone() }), expected, "{situation}");
    }
    let off = Evidence {
        trigger: Trigger::Off("AzureWebJobs.orders.Disabled is set"),
        ..healthy.clone()
    };
    let health = off.health();
    assert_eq!((health.state, health.severity), (PollerState::Disabled, Severity::Warning));
    assert_eq!(health.cause.as_deref(), Some("AzureWebJobs.orders.Disabled is set"));
}

#[test]
fn knowledge_of_the_process_counts() {
    let schedules = every_five_seconds();
    let base = Evidence {
        stored: StoredState::Missing { ran_before: false },
        ..evidence(Document::default(), &schedules)
    };
    let with = |process| state_of(&Evidence { process, ..base.clone() });
    let failure = |kind| Process {
        failure: Some(failed(kind, 5)),
        last_tick_at: Some(before(5)),
        ..Process::default()
    };
    assert_eq!(with(failure("fetch_failed")), PollerState::Failing);
    assert_eq!(with(failure("not_started")), PollerState::Stopped);
    assert_eq!(with(failure("state_vanished")), PollerState::Vanished, "the marker is gone too");
    let succeeded = Process {
        last_success_at: Some(before(3)),
        last_tick_at: Some(before(3)),
        ..Process::default()
    };
    assert_eq!(with(succeeded.clone()), PollerState::Idle, "ticks find no row yet");
    assert_eq!(with(Process { running: true, ..Process::default() }), PollerState::Running);
    // Its success is newer than the failure in the document; the write that would have cleared it was lost.
    let cleared = Evidence { process: succeeded, ..evidence(failing("fetch_failed"), &schedules) };
    assert_eq!(state_of(&cleared), PollerState::Idle);
    // Its ticks are a trace, even though idle ticks have written nothing for an hour.
    let quiet = Document { last_tick_at: Some(before(3600)), ..healthy() };
    let ticking = Process { last_tick_at: Some(before(4)), ..Process::default() };
    let ticking = Evidence { process: ticking, ..evidence(quiet, &schedules) };
    assert_eq!(state_of(&ticking), PollerState::Idle);
}

#[test]
fn failures_of_document_and_process_are_added_up() {
    let schedules = every_five_seconds();
    let own = Failure { since: before(900), count: 180, ..failed("load_failed", 3) };
    let process = Process { failure: Some(own), ..Process::default() };
    let both = Evidence { process, ..evidence(failing("fetch_failed"), &schedules) };
    let failure = both.health().last_failure.unwrap();
    assert_eq!((failure.kind.as_str(), failure.at), ("load_failed", before(3)), "the newest");
    assert_eq!((failure.since, failure.count), (before(900), 180));
}

#[test]
fn silence_needs_three_due_times_and_two_intervals() {
    let hourly = vec![Schedule::parse("0 0 * * * *").unwrap()];
    let weekly = vec![Schedule::parse("0 0 3 * * 1").unwrap()];
    let frequent = every_five_seconds();
    let cases = [
        // The last trace, its schedule, the interval, and the state.
        (before(599), &frequent, INTERVAL, PollerState::Idle),
        (before(600), &frequent, INTERVAL, PollerState::Silent),
        (before(600), &hourly, INTERVAL, PollerState::Idle),
        // 9:00:00.001: due at 10, 11 and 12.
        (before(3 * 3600) + time::Duration::MILLISECOND, &hourly, INTERVAL, PollerState::Silent),
        (before(2 * 3600), &hourly, INTERVAL, PollerState::Idle),
        (before(14 * 86_400), &weekly, INTERVAL, PollerState::Idle),
        (before(22 * 86_400), &weekly, INTERVAL, PollerState::Silent),
        (before(9), &frequent, Duration::ZERO, PollerState::Idle),
        (before(16), &frequent, Duration::ZERO, PollerState::Unknown),
    ];
    for (at, schedules, interval, expected) in cases {
        let document = Document { last_success_at: Some(at), last_tick_at: Some(at), ..healthy() };
        let evidence =
            Evidence { status_interval: Some(interval), ..evidence(document, schedules) };
        assert_eq!(state_of(&evidence), expected, "{at} {interval:?}");
    }
}

#[test]
fn a_long_backoff_is_not_silence() {
    let schedules = every_five_seconds();
    let document = |until| Document {
        last_tick_at: Some(before(3600)),
        failure: Some(failed("handler_failed", 3600)),
        next_attempt_at: Some(until),
        last_success_at: None,
        ..healthy()
    };
    let state = |until| state_of(&evidence(document(until), &schedules));
    assert_eq!(state(NOW + Duration::from_secs(600)), PollerState::BackingOff);
    assert_eq!(state(before(599)), PollerState::BackingOff);
    assert_eq!(state(before(600)), PollerState::Silent, "no instance made the attempt");
}

/// Every combination of what may be known.
fn all(schedules: &[Schedule]) -> Vec<Evidence<'_>> {
    let mut all = Vec::new();
    let failures = [None, Some("handler_failed"), Some("fetch_failed"), Some("position_lost")];
    let leases = [LeaseStatus::Free, LeaseStatus::Held, LeaseStatus::Lapsed { owner_id: "shop/1" }];
    for paused in [None, Some(false), Some(true)] {
        for failure in failures {
            for lease in leases {
                for stopped in [None, Some("lost".to_owned())] {
                    for last in [None, Some(before(10)), Some(before(700))] {
                        let document = Document {
                            ended: None,
                            has_run: last.is_some(),
                            lease,
                            paused: paused.map(|is_by_rule| Pause {
                                by: "ann",
                                reason: "upgrade",
                                at: before(60),
                                is_by_rule,
                            }),
                            stopped: stopped.clone(),
                            failure: failure.map(|kind| failed(kind, 10)),
                            last_success_at: last.filter(|_| failure.is_none()),
                            last_tick_at: last,
                            next_attempt_at: None,
                            quarantined: 0,
                        };
                        all.push(StoredState::Found(Box::new(document)));
                    }
                }
            }
        }
    }
    all.push(StoredState::Missing { ran_before: false });
    all.push(StoredState::Missing { ran_before: true });
    all.push(StoredState::Unreadable("not JSON"));
    let triggers = [Trigger::Unknown, Trigger::Off("switched off"), Trigger::Timer(schedules)];
    let base = evidence(Document::default(), schedules);
    let mut evidence = Vec::new();
    for stored in all {
        for trigger in triggers {
            for interval in [None, Some(Duration::ZERO), Some(INTERVAL)] {
                for running in [false, true] {
                    let process = Process { running, ..Process::default() };
                    let stored = stored.clone();
                    let status_interval = interval;
                    evidence.push(Evidence {
                        stored,
                        process,
                        trigger,
                        status_interval,
                        ..base.clone()
                    });
                }
            }
        }
    }
    evidence
}

#[test]
fn no_failure_is_shown_as_healthy() {
    let schedules = every_five_seconds();
    let mut failing = 0;
    for evidence in all(&schedules) {
        let health = evidence.health();
        let is_off = health.state == PollerState::Disabled && evidence.status_interval.is_none();
        if health.last_failure.is_some() && !is_off {
            failing += 1;
            assert_ne!(health.severity, Severity::Ok, "{:?}", evidence.stored);
            assert!(health.cause.is_some_and(|cause| !cause.is_empty()), "{:?}", evidence.stored);
        }
    }
    assert!(failing > 1000, "{failing}");
}

#[test]
fn every_state_that_needs_attention_says_why_and_links_a_runbook() {
    let schedules = every_five_seconds();
    for evidence in all(&schedules) {
        let health = evidence.health();
        let is_fine = health.cause.is_none();
        assert!(is_fine || !matches!(health.state, PollerState::Idle | PollerState::Running));
        if health.severity != Severity::Ok {
            assert!(!is_fine && health.runbook.is_some(), "{:?}", evidence.stored);
        }
    }
}

#[test]
fn the_runbook_of_an_open_breaker_is_its_own() {
    let failure = Failure {
        at: OffsetDateTime::UNIX_EPOCH,
        since: OffsetDateTime::UNIX_EPOCH,
        count: 1,
        kind: "handler_failed".to_owned(),
        error: format!("422; {}", crate::tick::breaker_text(10)),
    };
    for state in [PollerState::Failing, PollerState::BackingOff] {
        assert_eq!(runbook(state, Some(&failure)), Some("runbooks/breaker.md"));
    }
}

#[test]
fn the_runbook_of_a_state_has_its_name() {
    let schedules = every_five_seconds();
    let mut linked = BTreeSet::new();
    for evidence in all(&schedules) {
        let health = evidence.health();
        let Some(page) = health.runbook else { continue };
        let name = health.state.as_str().replace('_', "-");
        let others = [
            (PollerState::Failing, "runbooks/failures.md"),
            (PollerState::Failing, "runbooks/handler.md"),
            (PollerState::Unknown, "runbooks/silent.md"),
        ];
        let is_other = others.contains(&(health.state, page));
        assert!(is_other || page == format!("runbooks/{name}.md"), "{name} links {page}");
        linked.insert(page);
    }
    assert_eq!(linked.len(), 9, "{linked:?}");
}

#[test]
fn a_tick_in_progress_is_shown_alongside_the_state_and_never_instead() {
    let schedules = every_five_seconds();
    for evidence in all(&schedules).into_iter().filter(|evidence| !evidence.process.running) {
        let still = evidence.health();
        let process = Process { running: true, ..Process::default() };
        let ticking = Evidence { process, ..evidence.clone() }.health();
        assert!(ticking.running, "{:?}", evidence.stored);
        // It ends a silence, and the state before any tick has finished.
        let may_change = matches!(
            still.state,
            PollerState::Silent | PollerState::Unknown | PollerState::NeverRan
        );
        assert!(may_change || still.state == ticking.state, "{:?}: {ticking:?}", evidence.stored);
    }
}

#[test]
fn a_pause_shows_the_holder_of_the_lease() {
    let schedules = every_five_seconds();
    for evidence in all(&schedules) {
        let StoredState::Found(document) = &evidence.stored else { continue };
        let Some(pause) = document.paused else { continue };
        let expected = if pause.is_by_rule { PollerState::Stopped } else { PollerState::Paused };
        assert_eq!(state_of(&evidence), expected, "{:?}", evidence.stored);
    }
}

#[test]
fn time_alone_never_makes_a_state_better() {
    let schedules = every_five_seconds();
    for evidence in all(&schedules) {
        let early = evidence.health();
        let now = NOW + Duration::from_secs(86_400);
        let late = Evidence { now, ..evidence.clone() }.health();
        assert!(late.severity >= early.severity, "{:?}: {early:?} {late:?}", evidence.stored);
        let may_change = matches!(late.state, PollerState::Silent | PollerState::Unknown);
        assert!(
            may_change || late.state == early.state,
            "{:?}: {early:?} {late:?}",
            evidence.stored
        );
    }
}

#[test]
fn names_in_json_and_metrics_are_the_same() {
    for state in PollerState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
}
