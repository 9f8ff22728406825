//! Redelivering a past range, alongside the poller.

use highwater_engine::admin::{RangeEnd, RangeStart};
use highwater_engine::cursor::{Cursor, KeyValues, RowVersion};
use highwater_engine::document::{Fence, FencingToken, RangeRecord};
use highwater_engine::error::chain;
use highwater_engine::handler::HandlerError;
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::poller::{Poller, StopSignal, TickError};
use highwater_engine::store::{StateKey, StoredValue};
use highwater_engine::testing::{TableSource, World, admin, tick};

const NAME: &str = "p.replay.one";

fn at(version: u64) -> Cursor {
    Cursor::row_version(RowVersion(version), KeyValues::new())
}

fn record(after: Option<u64>, upto: u64) -> RangeRecord {
    RangeRecord {
        of: "p".to_owned(),
        after: after.map(at),
        upto: at(upto),
        windows: Vec::new(),
        rows_planned: 0,
        rows: 0,
        begun_at: time::OffsetDateTime::UNIX_EPOCH,
        done_at: None,
        cancelled_at: None,
        extra: serde_json::Map::new(),
    }
}

/// A poller that has delivered rows 1 to `rows`, each at the version of its id; returns the delivered events.
async fn delivered(rows: i64) -> (World, Vec<String>) {
    let world = World::new();
    world.source.fill(rows);
    tick(&world.instance("live")).await.unwrap();
    tick(&world.instance("live")).await.unwrap();
    let received = world.handler.received();
    (world, received.into_iter().flat_map(|call| call.event_ids).collect())
}

fn range_of(world: &World, owner_id: &str) -> Poller {
    world.poller(NAME, owner_id, world.source.clone()).with_replay_of("p")
}

async fn started_range(world: &World, owner_id: &str, record: &RangeRecord) -> Poller {
    let range = range_of(world, owner_id);
    let answer = admin(&range).begin_range(record, "replay-one").await.unwrap();
    assert_eq!(answer, RangeStart::Started);
    range
}

async fn stored(world: &World) -> StoredValue {
    world.stored(&StateKey::Document("p".to_owned())).await.unwrap()
}

async fn deliver(range: &Poller) -> Result<RangeEnd, TickError> {
    range.admin().deliver_range(&StopSignal::new(), &mut |_| {}).await
}

#[tokio::test(start_paused = true)]
async fn a_range_delivers_its_rows_once_with_their_ids_and_touches_nothing_of_the_poller() {
    let (world, ids) = delivered(40).await;
    let before = stored(&world).await;
    let earlier = world.handler.received();
    let range = started_range(&world, "cli", &record(Some(5), 33)).await;
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Done);
    let again = world.handler.received().split_off(earlier.len());
    let rows: Vec<i64> = again.iter().flat_map(|call| call.ids.clone()).collect();
    assert_eq!(rows, (6..=33).collect::<Vec<_>>(), "after its start, up to its end");
    let again_ids: Vec<String> = again.iter().flat_map(|call| call.event_ids.clone()).collect();
    assert_eq!(again_ids, ids[5..33]);
    for call in &again {
        assert!(
            earlier.iter().all(|before| before.batch_id != call.batch_id),
            "known to no target"
        );
    }
    assert_eq!(stored(&world).await, before);
    let record = range.admin().range().await.unwrap().unwrap();
    assert!(record.done_at.is_some());
    assert_eq!(record.rows, 28);
    // It is finished, for any process.
    assert_eq!(deliver(&range_of(&world, "other")).await.unwrap(), RangeEnd::Done);
    assert_eq!(world.handler.received().len(), earlier.len() + again.len());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_range_continues_where_it_was_under_another_owner() {
    let (world, _) = delivered(40).await;
    let earlier = world.handler.ids().len();
    let range = started_range(&world, "one", &record(None, 35)).await;
    let stop = StopSignal::new();
    let signal = stop.clone();
    world.handler.then(async move {
        signal.set();
        Ok(())
    });
    let ended = range.admin().deliver_range(&stop, &mut |_| {}).await.unwrap();
    assert_eq!(ended, RangeEnd::Stopped);
    assert_eq!(world.handler.ids().len(), earlier + 10, "one batch");
    assert_eq!(deliver(&range_of(&world, "two")).await.unwrap(), RangeEnd::Done);
    assert_eq!(world.handler.ids().split_off(earlier), (1..=35).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_range_leaves_changed_rows_to_the_poller() {
    let (world, _) = delivered(20).await;
    let earlier = world.handler.ids().len();
    let range = started_range(&world, "cli", &record(None, 20)).await;
    world.source.put(7, "newer");
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Done);
    let rows = world.handler.ids().split_off(earlier);
    assert_eq!(rows, (1..=20).filter(|id| *id != 7).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn without_its_document_a_range_delivers_nothing() {
    let (world, _) = delivered(3).await;
    let earlier = world.handler.received().len();
    let range = range_of(&world, "cli");
    assert!(matches!(deliver(&range).await, Err(TickError::NotStarted { .. })));
    assert!(matches!(tick(&range).await, Err(TickError::NotStarted { .. })));
    assert_eq!(world.handler.received().len(), earlier);
}

#[tokio::test(start_paused = true)]
async fn a_range_is_started_once_and_not_after_it_was_cancelled() {
    let (world, _) = delivered(3).await;
    let earlier = world.handler.received().len();
    let range = started_range(&world, "cli", &record(None, 3)).await;
    let again = range_of(&world, "other")
        .admin()
        .begin_range(&record(None, 2), "replay-one")
        .await
        .unwrap();
    assert!(
        matches!(again, RangeStart::AlreadyStarted(started_range) if started_range.upto == at(3))
    );
    admin(&range).cancel_range().await.unwrap();
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Cancelled);
    assert_eq!(world.handler.received().len(), earlier);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_range_ends_after_the_batch_in_flight() {
    let (world, _) = delivered(40).await;
    let earlier = world.handler.ids().len();
    let range = started_range(&world, "cli", &record(None, 40)).await;
    let other = range_of(&world, "other");
    world.handler.then(async move {
        admin(&other).cancel_range().await.unwrap();
        Ok(())
    });
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Cancelled);
    assert_eq!(world.handler.ids().len(), earlier + 10);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_row_of_a_range_is_quarantined_under_its_poller() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let policy = FailurePolicy { bisect_on_error: true, ..policy };
    let (world, ids) = delivered(4).await;
    let world = world.with_policy(policy);
    let range = started_range(&world, "cli", &record(None, 4)).await;
    world.handler.judge_by(|ids| {
        if ids.contains(&3) { Err(HandlerError::Rejected("422".to_owned())) } else { Ok(()) }
    });
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Done);
    assert_eq!(admin(&world.instance("live")).quarantined().await.unwrap().len(), 1);
    let entries = world.quarantine().await;
    assert_eq!(
        entries.iter().map(|(_, entry)| entry.event_id.to_string()).collect::<Vec<_>>(),
        [ids[2].clone()]
    );
}

#[tokio::test(start_paused = true)]
async fn the_entry_of_a_range_costs_its_poller_one_listing() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let policy = FailurePolicy { bisect_on_error: true, ..policy };
    let (world, _) = delivered(4).await;
    let world = world.with_policy(policy);
    let range = started_range(&world, "cli", &record(None, 4)).await;
    let live = world.instance("live");
    world.handler.judge_by(|ids| {
        if ids.iter().any(|id| [2, 3].contains(id)) {
            Err(HandlerError::Rejected("422".to_owned()))
        } else {
            Ok(())
        }
    });
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Done);
    // A key of the poller itself is parked, too, so it knows of entries.
    world.source.put(5, "bad");
    world.handler.judge_by(|_| Err(HandlerError::Rejected("422".to_owned())));
    tick(&live).await.unwrap();
    world.handler.judge_by(|_| Ok(()));
    let mut epochs = Vec::new();
    let mut reads = Vec::new();
    for _ in 0..5 {
        world.source.put(3, "hot");
        world.store.take_calls();
        tick(&live).await.unwrap();
        reads.push(world.store.take_calls().gets);
        let parked = world.document().await.parked;
        epochs.push((parked.epoch, parked.keys));
    }
    assert_eq!(reads[1..], [0; 4], "{reads:?} {epochs:?}");
    assert_eq!(epochs[1..], [epochs[0]; 4], "{epochs:?}");
    assert_eq!(world.quarantined().await, [2, 3, 5]);
    let hot = world.handler.ids().iter().filter(|id| **id == 3).count();
    assert!(hot >= 5, "its versions are delivered");
}

#[tokio::test(start_paused = true)]
async fn a_range_delivers_rows_of_parked_keys_and_leaves_their_entries() {
    let policy = FailurePolicy { on_failure: OnFailure::Park, ..FailurePolicy::default() };
    let policy = FailurePolicy { bisect_on_error: true, ..policy };
    let (world, _) = delivered(4).await;
    let world = world.with_policy(policy);
    world.source.put(3, "bad");
    world.handler.judge_by(|ids| {
        if ids.contains(&3) { Err(HandlerError::Rejected("422".to_owned())) } else { Ok(()) }
    });
    tick(&world.instance("live")).await.unwrap();
    assert_eq!(world.quarantined().await, [3]);
    world.handler.judge_by(|_| Ok(()));
    let before = world.handler.ids().len();
    let range = started_range(&world, "cli", &record(None, 40)).await;
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Done);
    assert!(world.handler.ids()[before..].contains(&3));
    assert_eq!(world.quarantined().await, [3], "the poller itself still owes the row");
}

#[tokio::test(start_paused = true)]
async fn a_range_of_another_source_is_rejected() {
    let (world, _) = delivered(3).await;
    started_range(&world, "cli", &record(None, 3)).await;
    let other = world.with_source(TableSource::with_fingerprint("p", "dbo.other"));
    assert!(matches!(deliver(&range_of(&other, "cli")).await, Err(TickError::Fingerprint { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_stays_down_ends_a_range_that_can_be_started_again() {
    let (world, _) = delivered(3).await;
    let range = started_range(&world, "cli", &record(None, 3)).await;
    world.handler.judge_by(|_| Err(HandlerError::Retryable("503".to_owned())));
    assert!(matches!(deliver(&range).await, Err(TickError::Handler(_))));
    world.handler.judge_by(|_| Ok(()));
    assert_eq!(deliver(&range).await.unwrap(), RangeEnd::Done);
}

#[tokio::test(start_paused = true)]
async fn a_range_with_a_target_that_is_ahead_acquires_no_further_grant() {
    let (world, _) = delivered(3).await;
    let range = started_range(&world, "cli", &record(None, 3)).await;
    let generation = world.document_of(NAME).await.unwrap().generation;
    let fence = Fence { generation, token: FencingToken(9) };
    world.handler.then(async move {
        fence.admit(generation, FencingToken(1))?;
        Ok(())
    });
    let calls = world.handler.received().len() + 1;
    for _ in 0..12 {
        let error = deliver(&range).await.unwrap_err();
        assert!(matches!(error, TickError::FenceAhead { .. }), "{error:?}");
        assert!(chain(&error).contains("`highwater replay p --cancel one`"), "{}", chain(&error));
        assert_eq!(world.handler.received().len(), calls, "the target is called once");
        let document = world.document_of(NAME).await.unwrap();
        assert_eq!(document.lease.fencing_token, FencingToken(1));
    }
}
