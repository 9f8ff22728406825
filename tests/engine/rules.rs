//! Protocol rules that no other file covers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater_engine::admin::ResetTo;
use highwater_engine::document::{
    FencingToken, Generation, Marker, OnMissingState, Refusal, StateDocument, TOKEN_MAX, decode,
    encode, encode_marker,
};
use highwater_engine::error::chain;
use highwater_engine::handler::{Delivery, Handler, HandlerError};
use highwater_engine::lease::LeaseError;
use highwater_engine::poller::{Limits, Operator, Skipped, TickError, TickOutcome};
use highwater_engine::store::{Precondition, StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, FaultyStore, TTL, TableSource, World, admin, calls, killed_after, limits, sleep,
    tick,
};
use highwater_engine::tick::TickRequest;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn cached_state_is_reread_after_its_maximum_age() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    for (seconds, reads) in [(299, 0), (2, 1), (299, 0), (2, 1)] {
        sleep(seconds).await;
        tick(&poller).await.unwrap();
        assert_eq!(world.store.take_calls(), calls(reads, 0, 0), "after {seconds} s more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_healthy_process_sees_a_reset_at_its_next_write_or_refresh() {
    for with_new_row in [true, false] {
        let world = World::new();
        let poller = world.started_poller("a").await;
        let before = world.handler.received()[0].batch_id.clone();
        world.rewrite(|document| document.reset(None, "replay-1".to_owned()).unwrap()).await;
        if with_new_row {
            // The row is read at the stale position, and the write under the stale etag is rejected.
            world.source.put(1, "new");
            tick(&poller).await.unwrap();
            assert_eq!(world.handler.ids(), [0, 0, 1], "from the beginning, without duplicates");
        } else {
            assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle, "not known yet");
            sleep(300).await;
            tick(&poller).await.unwrap();
            assert_eq!(world.handler.ids(), [0, 0]);
            // The same rows, but redelivered on purpose: a target must not treat them as duplicates.
            assert_ne!(world.handler.received()[1].batch_id, before);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_process_sees_a_reset_at_its_next_tick() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    for _ in 0..2 {
        world
            .source
            .fail_with(highwater_engine::source::FetchError::position_lost("table was reseeded"));
        assert!(matches!(tick(&poller).await, Err(TickError::Fetch(_))));
        sleep(1).await;
    }
    assert_eq!(
        world.store.take_calls(),
        calls(1, 0, 0),
        "the second tick reads the document again"
    );
    let cli = world.instance("cli");
    let plan = admin(&cli).plan_reset(ResetTo::Beginning, false).await.unwrap();
    let operator = Operator { by: "ann", reason: "table was reseeded" };
    admin(&cli).reset(&plan, "replay-1".to_owned(), operator).await.unwrap();
    // The same process, well within `STATE_REFRESH`.
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [0, 0, 1]);
    world.store.take_calls();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.store.take_calls(), calls(0, 0, 0), "idle ticks stay free");
}

#[tokio::test(start_paused = true)]
async fn a_tick_starts_over_once_and_is_skipped_after_a_second_conflict() {
    for (times, expected) in
        [(1, TickOutcome::Committed { more: false }), (2, TickOutcome::Skipped(Skipped::Conflict))]
    {
        let world = World::new();
        let poller = world.started_poller("a").await;
        world.source.put(1, "new");
        world.source.delay(Duration::from_secs(10));
        // Another process writes while the rows are read, each time.
        let other_writer = async {
            for _ in 0..times {
                sleep(5).await;
                world.rewrite(|document| document).await;
                sleep(5).await;
            }
        };
        let (outcome, ()) = tokio::join!(tick(&poller), other_writer);
        assert_eq!(outcome.unwrap(), expected, "{times} times");
        assert_eq!(world.store.take_calls().refused, times);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_lease_release_does_not_fail_the_tick_and_the_lease_is_reclaimed() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    world.pause_in_the_next_call();
    // The acquisition, a commit that the pause overtakes, and the commit: only the release fails.
    for _ in 0..3 {
        world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
    }
    for _ in 0..100 {
        world.store.break_next(Call::Store, Fault::Unreachable);
    }
    let outcome = tick(&poller).await.unwrap();
    assert_eq!(outcome, TickOutcome::Committed { more: true }, "the release is best effort");
    assert_eq!(world.handler.ids(), (0..=10).collect::<Vec<_>>());
    assert!(!world.is_released().await);
    // Storage responds again and the poller is resumed: other processes still wait, the process itself does
    // not.
    let world = world.with_working_store();
    world.rewrite(|document| StateDocument { paused: None, ..document }).await;
    let other = tick(&world.instance("b")).await.unwrap();
    assert!(
        matches!(&other, TickOutcome::Skipped(Skipped::Held { owner_id, .. }) if owner_id == "a"),
        "{other:?}"
    );
    let own = tick(&world.instance("a")).await.unwrap();
    assert_eq!(own, TickOutcome::Committed { more: false });
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_stopped_at_the_deadline_and_rows_it_accepted_in_time_are_committed() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let store = world.store.clone();
    // No renewal gets through: the lease is usable for 27 s of its 30.
    let cut_off = move |store: &FaultyStore| {
        for _ in 0..100 {
            store.break_next(Call::Store, Fault::Unreachable);
        }
    };
    world.handler.then(async move {
        cut_off(&store);
        sleep(26).await;
        store.clear_faults();
        store.break_next(Call::Store, Fault::Slow(Duration::from_secs(5)));
        Ok(())
    });
    let began_at = Instant::now();
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert!(began_at.elapsed() >= TTL, "the commit landed when the lease had lapsed: not stolen");

    world.source.put(9, "later");
    let store = world.store.clone();
    world.handler.then(async move {
        cut_off(&store);
        sleep(28).await;
        Ok(())
    });
    let began_at = Instant::now();
    let result = tick(&poller).await;
    assert!(matches!(result, Err(TickError::LeaseLost(LeaseError::Lapsed))), "{result:?}");
    assert_eq!(began_at.elapsed(), Duration::from_secs(27));
    assert_eq!(world.handler.finished(), 2, "the third call was dropped");
}

#[tokio::test(start_paused = true)]
async fn no_batch_starts_after_the_deadline() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(20);
    let store = world.store.clone();
    world.handler.then(async move {
        // The commit lands, and its response comes when the lease has expired.
        store.break_next(Call::Store, Fault::Slow(TTL));
        Ok(())
    });
    let report = poller.tick(&TickRequest::default()).await;
    assert!(matches!(report.result, Err(TickError::LeaseLost(LeaseError::Lapsed))), "{report:?}");
    assert_eq!((report.rows, world.handler.ids().len()), (10, 11), "one batch only");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids()[1..], (1..=20).collect::<Vec<_>>(), "no duplicates");
}

#[tokio::test(start_paused = true)]
async fn each_crash_of_a_holder_is_counted_and_a_clean_exit_is_not() {
    let world = World::new();
    world.started_poller("a").await;
    world.source.fill(2);
    for (number, owner_id) in ["b", "c", "d"].into_iter().enumerate() {
        world.handler.then_take(Duration::from_secs(10_000));
        let poller = world.instance(owner_id);
        killed_after(5, &poller).await;
        let crashes = world.in_flight().await.unwrap().crashes;
        assert_eq!(usize::try_from(crashes).unwrap(), number, "counted by the successor");
        sleep(40).await;
    }
    world.handler.then_fail(HandlerError::Retryable("503".to_owned()));
    tick(&world.instance("e")).await.unwrap_err();
    sleep(40).await;
    let in_flight = world.in_flight().await.unwrap();
    assert_eq!((in_flight.crashes, in_flight.attempt), (3, 1));
    tick(&world.instance("f")).await.unwrap();
    let attempts: Vec<_> = world.handler.received().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 1, 2, 3, 4, 5], "that lease was released, so no process had crashed");
}

/// Never reports progress.
#[derive(Debug)]
struct Silent(Duration);

#[async_trait::async_trait]
impl Handler for Silent {
    async fn handle(&self, _: Delivery<'_>) -> Result<(), HandlerError> {
        tokio::time::sleep(self.0).await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_reports_no_progress_is_stopped_as_stalled() {
    let handler_stall_max = Some(Duration::from_secs(20));
    let world = World::with(Limits { handler_stall_max, ..limits() });
    world.source.fill(1);
    let poller = world.with_handler(Arc::new(Silent(Duration::from_secs(100)))).instance("a");
    let began_at = Instant::now();
    let failed = tick(&poller).await;
    let Err(TickError::Handler(error @ HandlerError::Stalled(_))) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(error.to_string(), "no progress for 20s");
    assert_eq!(began_at.elapsed(), Duration::from_secs(20));
    sleep(2).await;
    let poller = world.with_handler(Arc::new(Silent(Duration::from_secs(19)))).instance("a");
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
}

#[tokio::test(start_paused = true)]
async fn the_in_flight_record_is_written_with_the_acquisition() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world.source.fill(3);
    let (memory, store) = (world.memory.clone(), world.store.clone());
    let seen = Arc::new(Mutex::new(None));
    let at_work = seen.clone();
    world.handler.then(async move {
        let key = StateKey::Document("p".to_owned());
        let bytes = memory.load(&key).await.unwrap().stored.unwrap().bytes;
        *at_work.lock().unwrap() = Some((store.take_calls(), decode("p", &bytes).unwrap()));
        Ok(())
    });
    tick(&poller).await.unwrap();
    let (written, document) = seen.lock().unwrap().take().unwrap();
    assert_eq!(written, calls(0, 1, 0), "one write before the handler, and no other");
    let received = world.handler.received().pop().unwrap();
    assert_eq!(document.lease.fencing_token.0, received.fence.1, "it granted the lease");
    let in_flight = document.in_flight.unwrap();
    assert_eq!((in_flight.batch_id.as_str(), in_flight.rows), (received.batch_id.as_str(), 3));
    assert_eq!(in_flight.after, document.checkpoint.cursor, "after the checkpoint it was read at");
}

#[tokio::test(start_paused = true)]
async fn size_limits_are_warned_about_and_never_changed_silently() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    // Each tick takes longer than the lease lives and than the tick interval: `doctor` would warn.
    for _ in 0..8 {
        world.source.fill(25);
        for _ in 0..3 {
            world.handler.then_take(TTL * 2);
        }
        tick(&poller).await.unwrap();
    }
    let document = world.document().await;
    let advice = highwater_engine::doctor::sizing::Sizing::of(&document, TTL).unwrap();
    assert!(advice.suggested_ttl_seconds > TTL.as_secs(), "{advice:?}");
    assert_eq!(document.lease.ttl_seconds, TTL.as_secs(), "the setting applies");
    let sizes: Vec<_> = world.handler.received().iter().map(|call| call.ids.len()).collect();
    assert_eq!(sizes[sizes.len() - 3..], [10, 10, 5], "and so does the size of a batch");
}

#[tokio::test(start_paused = true)]
async fn a_poller_without_remaining_tokens_stops_with_a_fix() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    world
        .rewrite(|mut document| {
            document.lease.fencing_token = FencingToken(TOKEN_MAX - 1);
            document
        })
        .await;
    world.source.put(1, "new");
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.received()[1].fence.1, TOKEN_MAX, "the last one is still granted");
    world.source.put(2, "newer");
    world.store.take_calls();
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(
        &error,
        TickError::Acquire(LeaseError::Refused(Refusal::TokensExhausted { .. }))
    ));
    assert!(chain(&error).contains("9007199254740991"), "{}", chain(&error));
    assert!(chain(&error).contains("`highwater clone p p_2 "), "{}", chain(&error));
    assert_eq!(world.store.take_calls().puts, 0);
    assert_eq!(world.handler.ids(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_generation_is_the_services_time_and_always_above_the_marker() {
    let now = World::new().memory.load(&StateKey::Document("p".to_owned())).await.unwrap().date;
    let milliseconds = u64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap();
    // No marker; one from the past; one from a clock that has been set back since.
    for (marker, expected) in [
        (None, milliseconds),
        (Some(milliseconds - 9), milliseconds),
        (Some(milliseconds + 9), milliseconds + 10),
    ] {
        let on_missing_state = OnMissingState::Recreate;
        let world = World::with(Limits { on_missing_state, ..limits() });
        world.source.put(1, "first");
        if let Some(generation) = marker {
            let generation = Generation(generation);
            let marker = Marker { poller_name: "p".to_owned(), generation, created_at: now };
            let key = StateKey::Marker("p".to_owned());
            let bytes = encode_marker(&marker);
            world.memory.store(&key, bytes, Precondition::Absent).await.unwrap();
        }
        tick(&world.instance("a")).await.unwrap();
        assert_eq!(world.generation().await, Generation(expected), "{marker:?}");
        assert_eq!(world.handler.received()[0].fence, (expected, 1));
        // The marker follows, so that the next document is above this one too.
        let key = StateKey::Marker("p".to_owned());
        let stored = world.stored(&key).await.unwrap();
        let found = highwater_engine::document::decode_marker("p", &stored.bytes).unwrap();
        assert_eq!(found.generation, Generation(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_marker_is_written_after_the_state_it_marks() {
    let world = World::new();
    world.source.put(1, "first");
    for _ in 0..100 {
        world.store.break_next(Call::Store, Fault::Unreachable);
    }
    assert!(matches!(tick(&world.instance("a")).await, Err(TickError::Acquire(_))));
    let marker = StateKey::Marker("p".to_owned());
    assert_eq!(world.stored(&marker).await, None);
    // Otherwise this tick would have found a marker without state.
    assert!(tick(&world.with_working_store().instance("b")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_later_documents_marker_is_not_overwritten_by_a_stale_holder() {
    for (later, by) in [(true, 5), (false, 0)] {
        let world = World::new();
        world.started_poller("a").await;
        // As if it had been lost, created again and marked since, without this holder knowing.
        let mut document = world.document().await;
        document.marked = false;
        world.overwrite(&encode(&document)).await;
        let key = StateKey::Marker("p".to_owned());
        let stored = world.stored(&key).await.unwrap();
        let mut marker = highwater_engine::document::decode_marker("p", &stored.bytes).unwrap();
        marker.generation = Generation(document.generation.0 + by);
        let bytes = encode_marker(&marker);
        let precondition = Precondition::Matches(stored.etag);
        let etag = world.memory.store(&key, bytes.clone(), precondition).await.unwrap().etag;
        world.source.put(1, "second");
        tick(&world.instance("b")).await.unwrap();
        let stored = world.stored(&key).await.unwrap();
        assert_eq!((stored.bytes, stored.etag), (bytes, etag), "later: {later}");
        assert!(world.is_marked().await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_tick_notes_nothing_over_a_lease_that_lapsed() {
    let status_interval = Duration::from_secs(60);
    let world = World::with(Limits { status_interval, ..limits() });
    let poller = world.started_poller("a").await;
    world.source.put(1, "new");
    world.handler.then_take(Duration::from_secs(10_000));
    killed_after(5, &poller).await;
    // The row is gone again, so that there is nothing to take over.
    let emptied = Arc::new(TableSource::new("p"));
    sleep(1000).await;
    let before = world.document().await;
    world.store.take_calls();
    assert_eq!(tick(&world.instance_of("b", emptied)).await.unwrap(), TickOutcome::Idle);
    assert_eq!(world.store.take_calls(), calls(1, 0, 0), "a foreign write could hide the death");
    assert_eq!(world.document().await, before);
}

#[tokio::test(start_paused = true)]
async fn two_pollers_on_one_source_each_deliver_every_row() {
    let world = World::new();
    world.source.fill(15);
    let live = world.instance("a");
    let other = world.poller("q", "a", world.source.clone());
    let (first, second) = tokio::join!(tick(&live), tick(&other));
    assert_eq!(first.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(second.unwrap(), TickOutcome::Committed { more: false });
    let mut ids = world.handler.ids();
    ids.sort_unstable();
    assert_eq!(ids, (1..=15).flat_map(|id| [id, id]).collect::<Vec<_>>());
    let batches: std::collections::BTreeSet<_> =
        world.handler.received().into_iter().map(|call| call.batch_id.to_string()).collect();
    assert_eq!(batches.len(), 4, "no batch is treated as one of the other poller");
}

/// Where a process crashes, what blocks it there, and what another one finds.
struct Death {
    phase: &'static str,
    /// Arms the fault that blocks the tick in this phase.
    hold_up: fn(&World),
    /// Whether the checkpoint had moved by then.
    committed: bool,
    /// Handler calls before the crash.
    calls: usize,
}

const DEATHS: [Death; 6] = [
    Death {
        phase: "before anything is read",
        hold_up: |world| {
            world.store.break_next(Call::Load, Fault::Slow(Duration::from_secs(100)));
        },
        committed: false,
        calls: 0,
    },
    Death {
        phase: "while rows are read",
        hold_up: |world| world.source.delay(Duration::from_secs(100)),
        committed: false,
        calls: 0,
    },
    Death {
        phase: "after the rows are read, before the handler",
        hold_up: |world| {
            world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(100)));
        },
        committed: false,
        calls: 0,
    },
    Death {
        phase: "while the handler runs",
        hold_up: |world| {
            world.handler.then_take(Duration::from_secs(100));
        },
        committed: false,
        calls: 1,
    },
    Death {
        phase: "after the handler, before the commit",
        hold_up: |world| {
            let store = world.store.clone();
            world.handler.then(async move {
                store.break_next(Call::Store, Fault::Slow(Duration::from_secs(100)));
                Ok(())
            });
        },
        committed: false,
        calls: 1,
    },
    Death {
        phase: "after the commit, before its answer",
        hold_up: |world| {
            let store = world.store.clone();
            world.handler.then(async move {
                store.break_next(Call::Store, Fault::LostAnswer);
                store.break_next(Call::Load, Fault::Slow(Duration::from_secs(100)));
                Ok(())
            });
        },
        committed: true,
        calls: 1,
    },
];

#[tokio::test(start_paused = true)]
async fn a_crash_in_any_phase_moves_the_checkpoint_fully_or_not_at_all() {
    for Death { phase, hold_up, committed, calls } in DEATHS {
        let world = World::new();
        world.started_poller("z").await;
        world.source.fill(3);
        hold_up(&world);
        let killed = tokio::time::timeout(Duration::from_secs(5), tick(&world.instance("a"))).await;
        assert!(killed.is_err(), "{phase}");
        assert_eq!(world.handler.received().len(), 1 + calls, "{phase}");
        let rows = world.rows_committed_last().await;
        assert_eq!(rows, if committed { 3 } else { 1 }, "{phase}");
        sleep(40).await;
        world.source.delay(Duration::ZERO);
        let outcome = tick(&world.instance("b")).await.unwrap();
        assert_eq!(outcome == TickOutcome::Idle, committed, "{phase}");
        let times = calls + usize::from(!committed);
        assert_eq!(world.handler.ids(), [vec![0], [1, 2, 3].repeat(times)].concat(), "{phase}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_fails_between_batches_keeps_its_commits() {
    let world = World::new();
    let poller = world.instance("a");
    world.source.fill(30);
    let order = Arc::new(Mutex::new(Vec::new()));
    for number in 0..3 {
        let order = order.clone();
        world.handler.then(async move {
            order.lock().unwrap().push(number);
            if number == 2 { Err(HandlerError::Retryable("503".to_owned())) } else { Ok(()) }
        });
    }
    let report = poller.tick(&TickRequest::default()).await;
    assert!(matches!(report.result, Err(TickError::Handler(_))));
    assert_eq!((report.rows, report.batches), (20, 2));
    sleep(2).await;
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids().len(), 40, "only the failed batch is redelivered");
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}
