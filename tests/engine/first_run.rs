//! A poller's first start, and the start of one that has run under another application.

use std::sync::Arc;

use highwater_engine::admin::{InitResult, ResetTo};
use highwater_engine::document::{StateDocument, encode};
use highwater_engine::partition::Partition;
use highwater_engine::poller::{Operator, Poller, TickError, TickOutcome, outcome_row};
use highwater_engine::repartition::{Repartition, partition_layout};
use highwater_engine::source::Source;
use highwater_engine::store::{Precondition, StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, FaultyStore, TableSource, WatchedWorld, World, admin, sleep, tick,
};

/// A world whose state is kept under another application in the same store.
fn renamed(world: &World, app: &str) -> World {
    world.behind(FaultyStore::new(world.memory.of_app(app).unwrap()))
}

#[tokio::test(start_paused = true)]
async fn a_renamed_app_stops_at_its_first_tick_and_names_both_paths_and_commands() {
    let world = World::new();
    world.started_poller("a").await;
    world.source.put(1, "later");
    let slot = renamed(&world, "slot");
    let poller = slot.instance("b");
    for _ in 0..2 {
        let error = tick(&poller).await.unwrap_err();
        assert!(matches!(error, TickError::FirstRunElsewhere { .. }), "{error:?}");
        for part in [
            "`slot/p.json`",
            "`app/p.json`",
            "`highwater clone p --from-app app --reason \"app renamed\"`",
            "`highwater init p`",
        ] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        sleep(1).await;
    }
    assert_eq!(world.handler.ids(), [0], "nothing is redelivered");
    // The first remedy, and the same process resumes.
    let cli = slot.instance("cli");
    let operator = Operator { by: "ann", reason: "app renamed" };
    let there = cli.under_app("app").unwrap();
    let cloned = Box::pin(admin(&there).clone_to(&cli, true, operator)).await.unwrap();
    assert!(cloned.document.generation > world.generation().await);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [0, 1]);
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Idle);
}

/// The `init` that a start from now suggests would skip its backlog.
#[tokio::test(start_paused = true)]
async fn a_renamed_app_that_starts_from_now_names_the_other_app_before_it_suggests_init() {
    let world = World::new();
    world.started_poller("a").await;
    world.source.put(1, "backlog");
    let slot = renamed(&world, "slot");
    let poller = slot.instance("b").starting_now();
    let error = tick(&poller).await.unwrap_err();
    assert!(matches!(error, TickError::FirstRunElsewhere { .. }), "{error:?}");
    // Without another app, `init` is suggested.
    let other = World::new();
    let error = tick(&other.instance("c").starting_now()).await.unwrap_err();
    assert!(matches!(error, TickError::NotStarted { .. }), "{error:?}");
}

/// Returns one of `count` partitions of `p`, or an unpartitioned poller if that is 1, with three rows.
fn partition(world: &World, index: u16, count: u16) -> Poller {
    let own = (count > 1).then_some(Partition { index, count });
    let name = own.map_or_else(|| "p".to_owned(), |own| own.name("p"));
    let source = TableSource::new(&name);
    let source = own.map_or(source, |own| TableSource::new(&name).of_partition(own));
    source.fill(3);
    world.poller(&name, &name, Arc::new(source)).with_partition(own)
}

#[tokio::test(start_paused = true)]
async fn a_renamed_app_with_another_partition_count_stops_with_the_fix() {
    let operator = Operator { by: "ann", reason: "app renamed" };
    for (there, here, cloned) in [(2, 4, "p__p0"), (2, 1, "p__p0"), (1, 2, "p")] {
        let world = World::new();
        for index in 0..there {
            tick(&partition(&world, index, there)).await.unwrap();
        }
        let delivered = world.handler.ids().len();
        let slot = renamed(&world, "slot");
        for index in (0..here).rev() {
            let error = tick(&partition(&slot, index, here)).await.unwrap_err();
            assert!(matches!(error, TickError::OtherPartitionCountElsewhere { .. }), "{error:?}");
            assert_eq!(outcome_row(&Err(error)).event, "first_run_elsewhere");
            let error = tick(&partition(&slot, index, here)).await.unwrap_err().to_string();
            for part in [
                format!("`app/{cloned}.json`"),
                format!("`HIGHWATER__POLLERS__P__PARTITIONS={there}`"),
                format!("`highwater clone {cloned} --from-app app --reason \"app renamed\"`"),
                format!("`highwater repartition p --to {here} --reason \"other partitions\"`"),
                "`highwater init p`".to_owned(),
            ] {
                assert!(error.contains(&part), "{part}: {error}");
            }
        }
        assert_eq!(world.handler.ids().len(), delivered, "nothing is redelivered");
        // As printed: with the other app's partition count, each partition continues where it was.
        for index in 0..there {
            let to = partition(&slot, index, there);
            let from = to.under_app("app").unwrap();
            Box::pin(admin(&from).clone_to(&to, true, operator)).await.unwrap();
        }
        for index in 0..there {
            assert_eq!(tick(&partition(&slot, index, there)).await.unwrap(), TickOutcome::Idle);
        }
        assert_eq!(world.handler.ids().len(), delivered);
        // The last command: the blank documents that the stopped ticks left do not prevent the copies.
        let store = world.memory.of_app("slot").unwrap();
        let stored_count = async || partition_layout(&*store, "p").await.unwrap().parts;
        assert_eq!(stored_count().await, Some(there), "{there} to {here}");
        let of = |count: u16| (0..count).map(|index| partition(&slot, index, count)).collect();
        let repartition = Repartition::new(of(there), of(here));
        Box::pin(repartition.run(operator, &|_| ())).await.unwrap();
        assert_eq!(stored_count().await, Some(here), "{there} to {here}");
        for index in 0..here {
            let ended = tick(&partition(&slot, index, here)).await;
            assert_eq!(ended.unwrap(), TickOutcome::Idle, "part {index} of {here}");
        }
        assert_eq!(world.handler.ids().len(), delivered);
    }
}

/// The first partition's document records the partition count. Without it the other partitions cannot know
/// it.
#[tokio::test(start_paused = true)]
async fn no_partition_of_a_different_count_starts_if_the_first_lost_its_document() {
    let world = World::new();
    for index in 0..2 {
        tick(&partition(&world, index, 2)).await.unwrap();
    }
    let delivered = world.handler.ids().len();
    world.memory.lose(&StateKey::Document("p__p0".to_owned()));
    for index in (0..4).rev() {
        let error = tick(&partition(&world, index, 4)).await.unwrap_err();
        let expected = if index == 1 { "fingerprint_mismatch" } else { "state_vanished" };
        assert_eq!(outcome_row(&Err(error)).event, expected, "partition {index}");
    }
    assert_eq!(world.handler.ids().len(), delivered, "nothing is redelivered");
    let layout = partition_layout(&*world.memory, "p").await.unwrap();
    assert_eq!(layout.parts, Some(2), "as the second one says");
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_poller_of_another_source_does_not_stop_a_first_start() {
    let world = World::new();
    let own = Partition { index: 0, count: 2 };
    let other = TableSource::with_fingerprint("p__p0", "dbo.other").of_partition(own);
    other.fill(3);
    tick(&world.poller("p__p0", "a", Arc::new(other)).with_partition(Some(own))).await.unwrap();
    tick(&partition(&renamed(&world, "slot"), 0, 4)).await.unwrap();
    assert_eq!(world.handler.received().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn init_starts_a_poller_explicitly() {
    let world = World::new();
    world.started_poller("a").await;
    let slot = renamed(&world, "slot");
    let poller = slot.instance("b");
    assert!(matches!(tick(&poller).await, Err(TickError::FirstRunElsewhere { .. })));
    assert_eq!(
        admin(&slot.instance("cli")).init().await.unwrap(),
        InitResult::Started { after: None }
    );
    assert_eq!(tick(&poller).await.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.handler.ids(), [0, 0], "as requested");
}

#[tokio::test(start_paused = true)]
async fn unrelated_documents_do_not_stop_a_poller() {
    let world = World::new();
    world.started_poller("a").await;
    // Another source under the same name.
    let other = Arc::new(TableSource::with_fingerprint("p", "dbo.other"));
    other.put(5, "other");
    let slot = renamed(&world, "slot");
    tick(&slot.instance_of("b", other)).await.unwrap();
    // A document that has delivered nothing, and an unreadable one, which is reported.
    let blank = encode(&StateDocument::blank("p", world.source.shape().fingerprint.clone()));
    for (bytes, warning) in [(blank, None), (b"{".to_vec(), Some("`elsewhere/p.json`: "))] {
        let empty = WatchedWorld::of(World::new());
        let elsewhere = empty.world.memory.of_app("elsewhere").unwrap();
        let key = StateKey::Document("p".to_owned());
        elsewhere.store(&key, bytes, Precondition::Absent).await.unwrap();
        empty.world.source.put(1, "first");
        tick(&empty.world.instance("c")).await.unwrap();
        assert_eq!(empty.world.handler.ids(), [1]);
        match warning {
            None => assert_eq!(empty.count_of("first_run_not_compared"), 0),
            Some(path) => {
                let line = empty.logged("first_run_not_compared");
                assert_eq!(line["level"], "WARN");
                let reason = &line["reason"];
                assert!(reason.starts_with(path) && reason.contains("not JSON"), "{reason}");
                assert!(
                    !reason.contains("highwater "),
                    "a command would be for this app: {reason}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_without_list_permission_is_reported_and_does_not_stop_a_first_start() {
    for (fault, continues) in [(Fault::Refused, true), (Fault::Unreachable, false)] {
        let watched = WatchedWorld::of(World::new());
        watched.world.source.put(1, "first");
        watched.world.store.break_next(Call::List, fault);
        let result = tick(&watched.world.instance("a")).await;
        if continues {
            assert_eq!(result.unwrap(), TickOutcome::Committed { more: false });
            assert_eq!(watched.logged("first_run_not_compared")["level"], "WARN");
        } else {
            assert!(matches!(result, Err(TickError::Load(_))), "{result:?}");
            assert!(watched.world.handler.ids().is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_start_is_logged_once_with_its_path_and_position() {
    let watched = WatchedWorld::of(World::new());
    let poller = watched.world.started_poller("a").await;
    let logged = watched.logged("first_run");
    assert_eq!(logged["path"], "app/p.json");
    assert_eq!(logged["start"], "the beginning");
    watched.world.source.put(1, "later");
    tick(&poller).await.unwrap();
    assert_eq!(watched.count_of("first_run"), 1);
}

/// A document created by a command, under which no tick has run, is the only trace of where rows come from.
#[tokio::test(start_paused = true)]
async fn a_start_is_logged_again_for_a_document_that_was_recreated() {
    let watched = WatchedWorld::of(World::new());
    let poller = watched.world.started_poller("a").await;
    let cli = watched.world.instance("cli");
    let operator = Operator { by: "ann", reason: "start again" };
    // A reset of an existing document is not a start.
    let plan = Box::pin(admin(&cli).plan_reset(ResetTo::Beginning, false)).await.unwrap();
    Box::pin(admin(&cli).reset(&plan, "reset-1".to_owned(), operator)).await.unwrap();
    sleep(300).await;
    tick(&poller).await.unwrap();
    assert_eq!(watched.count_of("first_run"), 1);
    watched.world.memory.lose(&StateKey::Document("p".to_owned()));
    let plan = Box::pin(admin(&cli).plan_reset(ResetTo::Beginning, false)).await.unwrap();
    Box::pin(admin(&cli).reset(&plan, "reset-2".to_owned(), operator)).await.unwrap();
    tick(&watched.world.instance("b")).await.unwrap();
    assert_eq!(watched.count_of("first_run"), 2);
}

#[tokio::test(start_paused = true)]
async fn the_most_recent_writer_of_several_apps_is_named() {
    let world = World::new();
    world.started_poller("a").await;
    let operator = Operator { by: "ann", reason: "app renamed" };
    for app in ["zeta", "beta"] {
        sleep(1).await;
        let cli = renamed(&world, app).instance("cli");
        let there = cli.under_app("app").unwrap();
        Box::pin(admin(&there).clone_to(&cli, true, operator)).await.unwrap();
    }
    let error = tick(&renamed(&world, "slot").instance("b")).await.unwrap_err().to_string();
    assert!(error.contains("app `beta` has delivered"), "{error}");
    assert!(error.contains("2 other apps have"), "{error}");
    assert!(error.contains("--from-app beta "), "{error}");
}
