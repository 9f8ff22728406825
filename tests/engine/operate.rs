//! Pausing and resuming by an operator.

use std::time::Duration;

use highwater_engine::admin::{PauseOutcome, ResumeOutcome};
use highwater_engine::document::LoadError;
use highwater_engine::document::{OnMissingState, StateDocument, encode};
use highwater_engine::error::chain;
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::FailurePolicy;
use highwater_engine::poller::{Limits, Operator, TickError, TickOutcome};
use highwater_engine::source::Source;
use highwater_engine::store::StateKey;
use highwater_engine::testing::{Call, Fault, WatchedWorld, World, admin, limits, sleep, tick};
use highwater_engine::tick::TickRequest;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::Level;

const ANN: Operator<'_> = Operator { by: "ann@host", reason: "the target moves" };
const BOB: Operator<'_> = Operator { by: "bob@host", reason: "no idea" };

/// A time as formatted in the state document.
fn rfc3339(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap()
}

fn by(pausing: &PauseOutcome) -> &str {
    match pausing {
        PauseOutcome::Paused { paused, .. } | PauseOutcome::AlreadyPaused(paused) => &paused.by,
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_pause_is_idempotent() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    let paused = admin(&world.instance("cli-1")).pause(ANN).await.unwrap();
    assert!(matches!(&paused, PauseOutcome::Paused { running: None, .. }), "{paused:?}");
    let before = world.document().await;
    assert_eq!(before.requires, ["paused"]);
    sleep(60).await;
    let again = admin(&world.instance("cli-2")).pause(BOB).await.unwrap();
    assert!(matches!(&again, PauseOutcome::AlreadyPaused(_)) && by(&again) == ANN.by, "{again:?}");
    assert_eq!(world.document().await, before, "nothing was written");

    world.source.put(1, "new");
    for process in [&poller, &world.instance("b")] {
        let outcome = tick(process).await.unwrap();
        assert!(matches!(&outcome, TickOutcome::Paused { reason, .. } if reason == ANN.reason));
    }
    admin(&world.instance("cli-3")).resume(BOB).await.unwrap();
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [0, 1]);
    let resumed = world.document().await.recent.into_iter().find(|tick| tick.outcome == "resumed");
    assert_eq!(resumed.unwrap().extra["by"], BOB.by);
}

#[tokio::test(start_paused = true)]
async fn an_operator_command_does_not_recreate_a_vanished_document() {
    let world = World::new();
    world.started_poller("a").await;
    let key = StateKey::Document("p".to_owned());
    world.memory.lose(&key);
    let cli = world.instance("cli");
    for error in
        [admin(&cli).pause(ANN).await.unwrap_err(), admin(&cli).resume(ANN).await.unwrap_err()]
    {
        assert!(matches!(error, TickError::StateVanished { .. }), "{error:?}");
        let text = chain(&error);
        assert!(text.contains("`highwater state import "), "{text}");
    }
    assert!(world.stored(&key).await.is_none(), "nothing was written");

    // A blank document does not hide a loss either.
    let blank = StateDocument::blank("p", world.source.shape().fingerprint.clone());
    world.overwrite(&encode(&blank)).await;
    for error in
        [admin(&cli).pause(ANN).await.unwrap_err(), admin(&cli).resume(ANN).await.unwrap_err()]
    {
        assert!(matches!(error, TickError::StateVanished { .. }), "{error:?}");
    }
    assert_eq!(world.document().await, blank);

    // Ticks start such a document again if the settings say so.
    let again =
        world.with_limits(Limits { on_missing_state: OnMissingState::Recreate, ..limits() });
    admin(&again.instance("cli")).pause(ANN).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_is_not_paused_has_nothing_to_resume() {
    let world = World::new();
    let cli = world.instance("cli");
    assert_eq!(
        admin(&cli).resume(ANN).await.unwrap(),
        ResumeOutcome::NotPaused,
        "there is no state"
    );
    world.started_poller("a").await;
    let before = world.document().await;
    assert_eq!(admin(&cli).resume(ANN).await.unwrap(), ResumeOutcome::NotPaused);
    assert_eq!(world.document().await, before, "nothing was written");
}

#[tokio::test(start_paused = true)]
async fn resume_ends_a_backoff_and_the_next_tick_of_any_process_retries() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    world.handler.then_fail(HandlerError::Retryable("down".to_owned()));
    tick(&poller).await.unwrap_err();
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::BackingOff { .. }));
    let until = world.in_flight().await.unwrap().next_attempt_at.unwrap();
    let resumed = admin(&world.instance("cli-1")).resume(ANN).await.unwrap();
    assert_eq!(resumed, ResumeOutcome::BackoffEnded { until });
    let document = world.document().await;
    let in_flight = document.in_flight.unwrap();
    assert_eq!((in_flight.next_attempt_at, in_flight.attempt), (None, 1));
    assert_eq!(document.recent.last().unwrap().extra["by"], ANN.by);
    assert_eq!(
        admin(&world.instance("cli-2")).resume(ANN).await.unwrap(),
        ResumeOutcome::NotPaused
    );
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [0, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn an_operator_change_succeeds_despite_concurrent_writes() {
    for fault in [Fault::Unreachable, Fault::LostAnswer, Fault::LostRequest] {
        let world = World::new();
        world.started_poller("a").await;
        let cli = world.instance("cli");
        world.store.break_next(Call::Load, Fault::Unreachable);
        world.store.break_next(Call::Store, fault);
        let paused = admin(&cli).pause(ANN).await.unwrap();
        assert!(matches!(&paused, PauseOutcome::Paused { .. }), "{fault:?}: {paused:?}");
        world.store.break_next(Call::Store, fault);
        let resumed = admin(&cli).resume(ANN).await.unwrap();
        assert!(matches!(&resumed, ResumeOutcome::Resumed { .. }), "{fault:?}: {resumed:?}");
        assert_eq!(world.document().await.paused, None);
    }
    // A holder that writes all the time.
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(60);
    world.store.break_next(Call::Load, Fault::Slow(Duration::ZERO));
    let cli = world.instance("cli");
    for _ in 0..3 {
        world.handler.then_take(Duration::from_secs(1));
    }
    let (outcome, paused) = tokio::join!(tick(&poller), async {
        sleep(1).await;
        // Each commit comes between the command's read and write.
        world.store.break_next(Call::Load, Fault::Slow(Duration::from_millis(1_500)));
        admin(&cli).pause(ANN).await.unwrap()
    });
    assert_eq!(outcome.unwrap(), TickOutcome::Committed { more: true });
    assert!(matches!(&paused, PauseOutcome::Paused { running: Some(owner), .. } if owner == "a"));
    assert_eq!(world.document().await.paused.unwrap().by, ANN.by);
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_fails_an_operator_command_after_a_while() {
    let world = World::new();
    world.started_poller("a").await;
    for _ in 0..100 {
        world.store.break_next(Call::Load, Fault::Unreachable);
    }
    let error = admin(&world.instance("cli")).pause(ANN).await.unwrap_err();
    let unreachable =
        TickError::Load(LoadError::Store(highwater_engine::store::StoreError::Unreachable {
            key: String::new(),
            reason: String::new(),
        }));
    assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&unreachable), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_poller_without_state_is_paused_without_its_source() {
    let world = World::new();
    world.source.put(0, "first");
    world.source.fail_next("database unreachable");
    admin(&world.instance("cli-1")).pause(ANN).await.unwrap();
    assert_eq!(world.source.fetches(), 0);
    let poller = world.instance("a");
    assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::Paused { .. }));
    admin(&world.instance("cli-2")).resume(ANN).await.unwrap();
    tick(&poller).await.unwrap_err();
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_document_that_cannot_be_read_is_not_overwritten() {
    let world = World::new();
    world.overwrite(b"{\"version\": 2}").await;
    let error = admin(&world.instance("cli")).pause(ANN).await.unwrap_err();
    assert!(chain(&error).contains("has version `2`"), "{}", chain(&error));
    assert!(admin(&world.instance("cli")).resume(ANN).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn resuming_reports_the_reason_of_the_pause() {
    for (error, expected) in [
        (HandlerError::Gone("410: moved for good".to_owned()), "handler of `p`"),
        (HandlerError::Rejected("422: no".to_owned()), "failure policy of `p`"),
    ] {
        let policy = FailurePolicy {
            on_failure: highwater_engine::policy::OnFailure::Stop,
            ..FailurePolicy::default()
        };
        let world = World::new().with_policy(policy);
        let poller = world.started_poller("a").await;
        world.source.put(1, "new");
        let reason = error.to_string();
        world.handler.then_fail(error);
        tick(&poller).await.unwrap_err();
        assert!(matches!(tick(&poller).await.unwrap(), TickOutcome::Paused { .. }));
        let ResumeOutcome::Resumed { was } =
            admin(&world.instance("cli")).resume(ANN).await.unwrap()
        else {
            panic!("it was paused");
        };
        assert!(was.by == expected && was.reason.contains(&reason), "{was:?}");
        let in_flight = world.in_flight().await;
        assert_eq!(in_flight.map_or(0, |batch| batch.attempt), 0);
        assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
        assert_eq!(world.handler.ids(), [0, 1, 1], "at once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_logged_with_who_when_why_and_command_and_repeated_hourly() {
    for (operator, level) in
        [(ANN, "INFO"), (Operator { by: "failure policy of `p`", ..ANN }, "WARN")]
    {
        let watched = WatchedWorld::of(World::new());
        let world = &watched.world;
        let poller = world.started_poller("a").await;
        world.source.put(1, "new");
        admin(&world.instance("cli")).pause(operator).await.unwrap();
        let since = world.document().await.paused.unwrap().at;
        let expected = format!(
            "poller `p`: paused by {} since {}: the target moves (`highwater resume p` lets it run) (0 ms)",
            operator.by,
            rfc3339(since)
        );
        for (seconds, level) in
            [(0, level), (60, "DEBUG"), (3539, "DEBUG"), (1, level), (1, "DEBUG")]
        {
            sleep(seconds).await;
            let report = poller.tick(&TickRequest::default()).await;
            assert_eq!((report.summary.as_str(), report.level.as_str()), (&*expected, level));
            assert_eq!(watched.logged("tick_paused")["level"], level);
        }
        // Another process reports it, too; and this one, after the other one has run.
        let other = world.instance("b").tick(&TickRequest::default()).await;
        assert_eq!(other.level.as_str(), level);
        admin(&world.instance("cli-2")).resume(BOB).await.unwrap();
        tick(&poller).await.unwrap();
        world.source.put(2, "new");
        admin(&world.instance("cli-3")).pause(operator).await.unwrap();
        let again = poller.tick(&TickRequest::default()).await;
        assert_eq!(again.level.as_str(), level);
    }
}

#[tokio::test(start_paused = true)]
async fn a_backoff_names_its_cause_and_is_logged_at_each_failure() {
    let watched = WatchedWorld::of(World::with(Limits {
        retry_delay_min: Duration::from_secs(100),
        retry_delay_max: Duration::from_secs(100),
        ..limits()
    }));
    let world = &watched.world;
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    let report = async || poller.tick(&TickRequest::default()).await;
    for (number, attempts) in [(1, ""), (2, ", 2 attempts")] {
        world.handler.then_fail(HandlerError::Retryable(format!("HTTP 50{number}")));
        report().await.result.unwrap_err();
        let batch = world.in_flight().await.unwrap();
        let reported = report().await;
        // Whole seconds: by then it is due.
        let until = batch.next_attempt_at.unwrap() + time::Duration::nanoseconds(999_999_999);
        let expected = format!(
            "poller `p`: backing off until {}, failing since {}{attempts}: ",
            rfc3339(until.truncate_to_second()),
            rfc3339(batch.first_failed_at.unwrap().truncate_to_second())
        );
        assert!(reported.summary.starts_with(&expected), "{} {expected}", reported.summary);
        let end = format!("HTTP 50{number} (`highwater resume p` retries now) (0 ms)");
        assert!(reported.summary.ends_with(&end), "{}", reported.summary);
        assert_eq!(reported.level, Level::INFO);
        assert_eq!(report().await.level, Level::DEBUG);
        sleep(101).await;
    }
}
