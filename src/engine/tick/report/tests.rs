//! What each end of a tick means outside, as the table beside [`TickOutcome`] says.

use super::Report;
use crate::document::{Fence, LoadError, Paused, StaleWrite};
use crate::error::ErrorKind;
use crate::handler::HandlerError;
use crate::lease::LeaseError;
use crate::normalize::NormalizeError;
use crate::poller::{Skipped, TickError, TickOutcome, outcome_row};
use crate::source::{FetchError, PositionLoss};
use crate::store::StoreError;
use crate::testing::{WatchedWorld, World};
use crate::tick::TickRequest;

type Ended = Result<TickOutcome, TickError>;

fn reason() -> String {
    "r".to_owned()
}

fn fetch() -> FetchError {
    FetchError::new(ErrorKind::Transient, "r")
}

fn handler(error: HandlerError) -> TickError {
    TickError::Handler(error)
}

/// Each end, in the words of the table and in its order.
fn ends() -> Vec<(&'static str, Ended)> {
    let until = time::OffsetDateTime::UNIX_EPOCH;
    let held = Skipped::Held { owner_id: "b".to_owned(), until };
    let unreachable = StoreError::Unreachable { key: reason(), reason: reason() };
    let null = NormalizeError::NullKey { row: 0, column: reason() };
    let stale = StaleWrite { stale: Fence::default(), current: Fence::default() };
    let changed = TickError::Fingerprint { poller: reason(), differences: reason(), keeps: true };
    let vanished =
        TickError::StateVanished { poller: reason(), ran_since: reason(), has_journal: false };
    let (poller, current) = ("p".to_owned(), stale.current);
    let ahead = TickError::FenceAhead { poller, stale: stale.stale, current };
    let elsewhere = TickError::FirstRunElsewhere {
        poller: reason(),
        here: reason(),
        app: reason(),
        there: reason(),
        others: 0,
    };
    vec![
        ("committed", Ok(TickOutcome::Committed { more: true })),
        ("nothing new", Ok(TickOutcome::Idle)),
        ("held, running, conflict", Ok(TickOutcome::Skipped(held))),
        ("backing off", Ok(TickOutcome::BackingOff { until, failing: None })),
        (
            "paused by a person",
            Ok(TickOutcome::Paused { by: reason(), reason: reason(), since: until }),
        ),
        (
            "paused by a rule (`ON_FAILURE=stop`, a reply of 410)",
            Ok(TickOutcome::Paused {
                by: Paused::by_handler_of("p"),
                reason: reason(),
                since: until,
            }),
        ),
        ("state cannot be read", Err(TickError::Load(LoadError::Store(unreachable)))),
        ("source or number of its partitions changed", Err(changed)),
        ("state vanished", Err(vanished)),
        ("not started explicitly", Err(TickError::NotStarted { poller: reason() })),
        ("first start, and it ran under another app", Err(elsewhere)),
        ("lease cannot be asked for", Err(TickError::Acquire(LeaseError::Lapsed))),
        ("fetch", Err(TickError::Fetch(fetch()))),
        (
            "the source has lost what follows the checkpoint",
            Err(TickError::Fetch(FetchError { loss: Some(PositionLoss::Uncertain), ..fetch() })),
        ),
        (
            "the source's columns have changed, and it is to stop then",
            Err(TickError::Fetch(FetchError { schema_changed: true, ..fetch() })),
        ),
        ("normalise", Err(TickError::Normalize(null))),
        ("handler", Err(handler(HandlerError::Rejected(reason())))),
        ("handler ran out of time", Err(TickError::OutOfTime)),
        ("handler aborted, as the process stops", Err(TickError::Aborted)),
        ("stale write refused by the target", Err(handler(HandlerError::Fenced(stale)))),
        ("stale write refused by the target, and no owner is newer", Err(ahead)),
        ("lease lost", Err(TickError::LeaseLost(LeaseError::Gone))),
        ("commit", Err(TickError::Commit(LeaseError::Lapsed))),
    ]
}

/// A line of the table, as the code has it.
fn line(end: &str, result: &Ended) -> String {
    let row = outcome_row(result);
    let quoted = |text: Option<&str>| text.map_or("–".to_owned(), |text| format!("`{text}`"));
    let inside = if row.error.is_some() && result.is_ok() { ", kept inside" } else { "" };
    format!(
        "/// | {end} | `{}` | {}{inside} | `{}` | {} | {} | {} |",
        row.outcome,
        quoted(row.error),
        row.event,
        row.level,
        quoted(row.metric),
        row.status
    )
}

#[test]
fn the_table_of_outcomes_names_error_event_metric_and_status() {
    let source = include_str!("../../poller/outcome.rs");
    let table = source.lines().filter(|line| line.starts_with("/// | "));
    // The first line is the head.
    let written: Vec<&str> = table.skip(1).collect();
    let meant: Vec<String> = ends().iter().map(|(end, result)| line(end, result)).collect();
    assert_eq!(written, meant);
}

#[tokio::test(start_paused = true)]
async fn each_end_is_logged_and_counted_as_the_table_says() {
    for (end, result) in ends() {
        let watched = WatchedWorld::of(World::new());
        let poller = watched.world.instance("a");
        let row = outcome_row(&result);
        let request = TickRequest::default();
        let report = Report::start(&poller, &request).finish(result);
        let logged = watched.logged(row.event);
        assert_eq!(logged["level"], row.level.to_string(), "{end}");
        let failed = report.result.is_err();
        assert_eq!(row.status, if failed { 500 } else { 200 }, "{end}");
        // A process that stops is no failure to alert on.
        let counts = failed && row.outcome != "aborted";
        assert_eq!(row.metric.is_some(), counts, "{end}");
        if let (Some(metric), Some(error)) = (row.metric, row.error) {
            assert_eq!(logged["error.type"], error, "{end}");
            assert_eq!(watched.counted(metric, Some(("error.type", error))), 1, "{end}");
        }
        let failures = watched.counted("highwater.tick.failures", None);
        assert_eq!(failures, u64::from(counts), "{end}: and nothing else");
        let timed = watched.timed("highwater.tick.duration", ("outcome", row.outcome));
        assert_eq!(timed, 1, "{end}");
        let refused = watched.counted("highwater.fence.rejections", None);
        assert_eq!(refused, u64::from(["fenced", "fence_ahead"].contains(&row.outcome)), "{end}");
    }
}
