//! The gauge of each poller's state, as a process that runs ticks exports it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_engine::handler::HandlerError;
use highwater_engine::metrics::{POLLER_STATE, export_states};
use highwater_engine::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater_engine::poller::{Limits, Operator, Poller, TickOutcome};
use highwater_engine::schedule::Schedule;
use highwater_engine::status::health::{PollerState, Severity};
use highwater_engine::status::{Status, StatusQuery, StatusReader};
use highwater_engine::store::StateKey;
use highwater_engine::testing::{
    Call, Fault, TableSource, WatchedWorld, World, admin, limits, sleep, tick,
};

/// What a process exports about the poller `p`, which is due every minute.
struct Exported {
    watched: WatchedWorld,
    board: StatusReader,
    /// The exporter runs in a thread of its own, which does not share the paused clock of the test.
    states: Arc<Mutex<Vec<(String, PollerState)>>>,
}

impl Exported {
    fn of(watched: WatchedWorld, poller: Poller) -> Self {
        let states = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&states);
        export_states(&watched.meter(), move || read.lock().unwrap().clone());
        let schedule = Schedule::parse("0 * * * * *").unwrap();
        let board = StatusReader {
            app: "shop".to_owned(),
            state: watched.world.store.clone(),
            pollers: BTreeMap::from([("p".to_owned(), Arc::new(poller))]),
            schedules: BTreeMap::from([("p".to_owned(), vec![schedule])]),
            disabled: BTreeMap::new(),
        };
        Self { watched, board, states }
    }

    async fn started_poller() -> Self {
        let limits = Limits { status_interval: Duration::from_secs(300), ..limits() };
        let watched = WatchedWorld::of(World::with(limits));
        let poller = watched.world.started_poller("a").await;
        Self::of(watched, poller)
    }

    fn poller(&self) -> &Poller {
        &self.board.pollers["p"]
    }

    fn world(&self) -> &World {
        &self.watched.world
    }

    async fn status(&self) -> Status {
        status_of(&self.board).await
    }

    /// Returns the state whose series is 1; `None` without series. All others are 0.
    fn state(&self) -> Option<&'static str> {
        *self.states.lock().unwrap() = self.board.states();
        let value =
            |state: PollerState| self.watched.gauge_with(POLLER_STATE, ("state", state.as_str()));
        let values: Vec<_> = PollerState::ALL.map(|state| (state.as_str(), value(state))).to_vec();
        if values.iter().all(|(_, value)| value.is_none()) {
            return None;
        }
        let set = values.iter().filter(|(_, value)| *value == Some(1)).map(|(name, _)| *name);
        let set: Vec<&'static str> = set.collect();
        let unset = values.iter().filter(|(_, value)| *value == Some(0)).count();
        assert_eq!((set.len(), unset), (1, PollerState::ALL.len() - 1), "{values:?}");
        set.first().copied()
    }
}

async fn status_of(board: &StatusReader) -> Status {
    board.read(StatusQuery::One("p")).await.unwrap().pollers.remove(0)
}

#[tokio::test(start_paused = true)]
async fn a_failing_poller_is_exported_as_failing_until_a_tick_succeeds() {
    let exported = Exported::started_poller().await;
    assert_eq!(exported.state(), Some("idle"));
    exported.world().source.fail_next("connection refused");
    tick(exported.poller()).await.unwrap_err();
    assert_eq!(exported.state(), Some("failing"));
    sleep(60).await;
    tick(exported.poller()).await.unwrap();
    assert_eq!(exported.state(), Some("idle"));
}

#[tokio::test(start_paused = true)]
async fn a_poller_is_failing_while_the_store_does_not_respond() {
    let exported = Exported::started_poller().await;
    sleep(400).await;
    exported.world().store.break_next(Call::Load, Fault::Unreachable);
    tick(exported.poller()).await.unwrap_err();
    assert_eq!(exported.state(), Some("failing"));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_batch_is_backing_off_or_failing_by_its_kind() {
    for (error, state) in [
        (HandlerError::Retryable("503".to_owned()), "backing_off"),
        (HandlerError::Misconfigured("401".to_owned()), "failing"),
    ] {
        let exported = Exported::started_poller().await;
        exported.world().handler.then_fail(error);
        exported.world().source.put(1, "second");
        tick(exported.poller()).await.unwrap_err();
        assert_eq!(exported.state(), Some(state));
        // A tick that only finds the backoff does not change the state.
        tick(exported.poller()).await.unwrap();
        assert_eq!(exported.state(), Some(state));
    }
}

#[tokio::test(start_paused = true)]
async fn a_poller_whose_source_has_changed_is_exported_as_stopped() {
    let started_poller = Exported::started_poller().await;
    let other = Arc::new(TableSource::with_fingerprint("p", "dbo.other"));
    let poller = started_poller.world().instance_of("a", other);
    let exported = Exported::of(WatchedWorld::of(started_poller.world().clone()), poller);
    assert_eq!(exported.state(), None, "unknown before the first tick");
    tick(exported.poller()).await.unwrap_err();
    assert_eq!(exported.state(), Some("stopped"));
}

#[tokio::test(start_paused = true)]
async fn a_poller_whose_document_is_gone_is_exported_as_vanished() {
    let exported = Exported::started_poller().await;
    exported.world().memory.lose(&StateKey::Document("p".to_owned()));
    sleep(400).await;
    tick(exported.poller()).await.unwrap_err();
    assert_eq!(exported.state(), Some("vanished"));
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_exported_by_the_next_tick() {
    let exported = Exported::started_poller().await;
    let cli = exported.world().instance("cli");
    admin(&cli).pause(Operator { by: "ann", reason: "upgrade" }).await.unwrap();
    sleep(400).await;
    tick(exported.poller()).await.unwrap();
    assert_eq!(exported.state(), Some("paused"));
}

#[tokio::test(start_paused = true)]
async fn a_poller_without_ticks_is_exported_as_silent_unless_another_instance_runs_it() {
    let exported = Exported::started_poller().await;
    sleep(300).await;
    assert_eq!(exported.state(), Some("idle"), "two status intervals are not over");
    sleep(400).await;
    assert_eq!(exported.state(), Some("silent"));
    exported.board.refresh().await;
    assert_eq!(exported.state(), Some("silent"), "no instance runs it");

    let other = exported.world().instance("b");
    exported.world().source.put(1, "second");
    tick(&other).await.unwrap();
    exported.board.refresh().await;
    assert_eq!(exported.state(), Some("idle"));
}

#[tokio::test(start_paused = true)]
async fn documents_are_read_only_of_pollers_that_do_not_tick_here() {
    let exported = Exported::started_poller().await;
    exported.world().store.take_calls();
    exported.board.refresh().await;
    assert_eq!(exported.world().store.take_calls().gets, 0);
    sleep(200).await;
    exported.board.refresh().await;
    assert_eq!(exported.world().store.take_calls().gets, 1);

    // A process that has run no tick.
    let poller = exported.world().instance("b");
    let waiting = Exported::of(WatchedWorld::of(exported.world().clone()), poller);
    assert_eq!(waiting.state(), None);
    waiting.board.refresh().await;
    assert_eq!(waiting.state(), Some("idle"));
    exported.world().memory.lose(&StateKey::Document("p".to_owned()));
    waiting.board.refresh().await;
    assert_eq!(waiting.state(), Some("vanished"));
}

#[tokio::test(start_paused = true)]
async fn a_poller_that_no_function_runs_is_exported_as_disabled() {
    let mut exported = Exported::of(WatchedWorld::new(), World::new().instance("a"));
    exported.board.disabled.insert("p".to_owned(), "its function is disabled".to_owned());
    exported.board.schedules.clear();
    assert_eq!(exported.state(), Some("disabled"));
}

/// A world whose poller `p` parks rows that the target rejects.
async fn parking() -> (Exported, Duration) {
    let park = ParkPolicy { retries_max: 0, ..ParkPolicy::default() };
    let policy = FailurePolicy { on_failure: OnFailure::Park, park, ..FailurePolicy::default() };
    let interval = Duration::from_secs(300);
    let world = World::with(Limits { status_interval: interval, ..limits() }).with_policy(policy);
    let poller = world.started_poller("a").await;
    (Exported::of(WatchedWorld::of(world), poller), interval)
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_only_parks_rows_is_no_success_and_their_key_needs_attention() {
    let (exported, interval) = parking().await;
    let before = exported.status().await;
    assert_eq!((before.health.severity, before.health.cause.clone()), (Severity::Ok, None));
    sleep(60).await;
    exported.world().handler.then_fail(HandlerError::Rejected("422".to_owned()));
    exported.world().source.put(1, "second");
    let outcome = tick(exported.poller()).await.unwrap();
    assert_eq!(outcome, TickOutcome::Committed { more: false });
    // This process's memory and the document agree.
    let other = StatusReader { pollers: BTreeMap::new(), ..exported.board.clone() };
    for board in [&exported.board, &other] {
        let found = status_of(board).await;
        assert_eq!(found.health.state, PollerState::Idle);
        assert_eq!(found.health.severity, Severity::Warning);
        let cause = found.health.cause.unwrap();
        assert!(cause.contains("1 key is quarantined"), "{cause}");
        let moved = found.health.last_success_at.unwrap() - before.health.last_success_at.unwrap();
        assert!(moved.whole_seconds() < 30, "{moved}");
    }
    // A later tick without rows succeeds.
    sleep(interval.as_secs()).await;
    assert_eq!(tick(exported.poller()).await.unwrap(), TickOutcome::Idle);
    let later = exported.status().await.health;
    assert!(later.last_success_at > before.health.last_success_at);
    assert_eq!(later.severity, Severity::Warning, "the key is still quarantined");
}

#[tokio::test(start_paused = true)]
async fn the_lag_grows_after_a_failure_and_is_unknown_if_nothing_was_read() {
    let exported = Exported::started_poller().await;
    assert_eq!(exported.status().await.lag_seconds, Some(0.0));
    sleep(60).await;
    tick(exported.poller()).await.unwrap();
    exported.world().source.fail_next("connection refused");
    sleep(60).await;
    tick(exported.poller()).await.unwrap_err();
    assert_eq!(exported.status().await.lag_seconds, None, "the source was not read");
    sleep(60).await;
    exported.world().handler.then_fail(HandlerError::Retryable("503".to_owned()));
    exported.world().source.put(1, "second");
    tick(exported.poller()).await.unwrap_err();
    let first = exported.status().await.lag_seconds.unwrap();
    sleep(200).await;
    let later = exported.status().await.lag_seconds.unwrap();
    assert!((200.0..202.0).contains(&(later - first)), "{first}, {later}");
    tick(exported.poller()).await.unwrap();
    assert_eq!(exported.status().await.lag_seconds, Some(0.0));
}
