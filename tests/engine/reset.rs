//! Checkpoints that are moved, leases that are broken, and pollers that continue from others.

use std::sync::Arc;
use std::time::Duration;

use highwater_engine::admin::{CloneError, ResetError, ResetPlan, ResetTo, RestoreError, RowCount};
use highwater_engine::cursor::{Cursor, SourceFingerprint};
use highwater_engine::document::{FencingToken, Generation, OnMissingState, decode, encode};
use highwater_engine::error::chain;
use highwater_engine::journal::{EventKind, JournalMode, Verdict};
use highwater_engine::poller::{Limits, Operator, Poller, TickError, outcome_row};
use highwater_engine::range::{Direction, RangeError};
use highwater_engine::source::FetchError;
use highwater_engine::store::{StateKey, StateStore};
use highwater_engine::testing::{
    Call, Fault, JournaledWorld, TableSource, World, admin, limits, sleep, tick,
};

const ANN: Operator<'_> = Operator { by: "ann@host", reason: "the target was lost" };

/// A poller that has delivered `1..=6` in two batches.
async fn delivered(journaled: &JournaledWorld) -> Poller {
    let poller = journaled.instance("a");
    journaled.world.source.fill(4);
    tick(&poller).await.unwrap();
    journaled.world.source.put(5, "new");
    journaled.world.source.put(6, "new");
    tick(&poller).await.unwrap();
    assert_eq!(journaled.world.handler.ids(), [1, 2, 3, 4, 5, 6]);
    poller
}

async fn plan(poller: &Poller, to: ResetTo<'_>) -> ResetPlan {
    admin(poller).plan_reset(to, false).await.unwrap()
}

fn rows(counted: &RowCount) -> u64 {
    let RowCount::Rows(size) = counted else { panic!("{counted:?}") };
    size.rows
}

fn ids_after(world: &World, calls: usize) -> Vec<i64> {
    world.handler.received().into_iter().skip(calls).flat_map(|received| received.ids).collect()
}

#[tokio::test(start_paused = true)]
async fn everything_is_redelivered_after_a_reset_to_the_beginning_and_no_fence_blocks_it() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let before = journaled.world.document().await;
    let cli = journaled.instance("cli");
    let plan = plan(&cli, ResetTo::Beginning).await;
    assert_eq!((rows(&plan.weight.again), rows(&plan.weight.skipped)), (6, 0));
    assert_eq!((plan.from.as_ref(), plan.to.as_ref()), (before.checkpoint.cursor.as_ref(), None));
    assert!(plan.changes() && !plan.weight.skips());
    assert_eq!(journaled.world.document().await, before, "a plan writes nothing");

    let done = admin(&cli).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
    let saved = journaled.world.memory.load(&done.saved.unwrap()).await.unwrap().stored.unwrap();
    assert_eq!(decode("p", &saved.bytes).unwrap(), before);
    let after = journaled.world.document().await;
    assert!(after.generation > before.generation);
    assert!(after.lease.fencing_token > before.lease.fencing_token);
    assert_eq!((&after.checkpoint.cursor, &after.in_flight), (&None, &None));
    let note = after.recent.last().unwrap();
    assert_eq!((note.outcome.as_str(), &note.extra["by"]), ("reset", &ANN.by.into()));
    let entry = journaled.entries().await.pop().unwrap();
    assert_eq!(entry.event, EventKind::Reset);
    assert_eq!(entry.details.reason.as_deref(), Some(ANN.reason));
    assert_eq!(journaled.verdict().await, Verdict::Agrees);

    // The process that delivered them only knows the old position.
    journaled.world.source.put(7, "new");
    tick(&poller).await.unwrap();
    assert_eq!(ids_after(&journaled.world, 2), [1, 2, 3, 4, 5, 6, 7]);
    let received = journaled.world.handler.received();
    let fence = highwater_engine::document::Fence::default();
    let fence = fence.admit(Generation(received[1].fence.0), FencingToken(received[1].fence.1));
    let again = received.last().unwrap();
    fence.unwrap().admit(Generation(again.fence.0), FencingToken(again.fence.1)).unwrap();
    assert_eq!(again.event_ids[..4], received[0].event_ids[..], "ids of rows stay");
    assert_ne!(again.batch_id, received[0].batch_id);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn rows_are_skipped_on_the_way_forward_and_the_plan_says_how_many() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let cli = journaled.instance("cli");
    let now = plan(&cli, ResetTo::Now).await;
    assert!(now.changes() && now.weight.skips(), "also if there are no rows to count");
    journaled.world.source.put(7, "new");
    journaled.world.source.put(8, "new");
    let plan = plan(&cli, ResetTo::Now).await;
    assert_eq!((rows(&plan.weight.again), rows(&plan.weight.skipped)), (0, 2));
    admin(&cli).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
    journaled.world.source.put(9, "new");
    tick(&poller).await.unwrap();
    assert_eq!(ids_after(&journaled.world, 2), [9]);
}

#[tokio::test(start_paused = true)]
async fn a_position_is_parsed_and_checked_against_the_source() {
    let journaled = JournaledWorld::new(JournalMode::Off);
    let poller = delivered(&journaled).await;
    let back = plan(&poller, ResetTo::Cursor("0x0000000000000004")).await;
    assert_eq!((rows(&back.weight.again), back.weight.direction), (2, Direction::Back));
    let own = journaled.world.document().await.checkpoint.cursor.unwrap();
    let own = serde_json::to_string(&own).unwrap();
    assert!(!plan(&poller, ResetTo::Cursor(&own)).await.changes());
    for (text, refused) in [
        ("0x00000000000000FF", "beyond the end of the source"),
        ("tomorrow", "invalid position"),
        (r#"{"kind":"rowversion","value":"0x0000000000000001","tiebreaker":{"no":1}}"#, "`id`"),
        (r#"{"kind":"integer+pk","value":"1","tiebreaker":{}}"#, "does not apply to a poller"),
    ] {
        let error = admin(&poller).plan_reset(ResetTo::Cursor(text), false).await.unwrap_err();
        assert!(matches!(error, ResetError::Position(_)), "{error}");
        assert!(error.to_string().contains(refused), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_gives_its_position_and_the_source_state_stored_with_it() {
    let journaled = JournaledWorld::new(JournalMode::Off);
    let poller = delivered(&journaled).await;
    let mut copy = journaled.world.document().await;
    copy.source_state.insert("settled".to_owned(), "4".into());
    copy.checkpoint.cursor.as_mut().unwrap().value = "0x0000000000000004".to_owned();
    let plan = plan(&poller, ResetTo::Document(&copy)).await;
    assert_eq!(plan.weight.direction, Direction::Back);
    admin(&poller).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
    assert_eq!(journaled.world.source_state().await, copy.source_state);
    tick(&journaled.instance("b")).await.unwrap();
    assert_eq!(ids_after(&journaled.world, 2), [5, 6]);
    copy.source_fingerprint = SourceFingerprint::of(&[("object", "other")]);
    let other = admin(&poller).plan_reset(ResetTo::Document(&copy), true).await.unwrap_err();
    assert!(matches!(other, ResetError::OtherDocument), "{other}");
}

#[tokio::test(start_paused = true)]
async fn a_reset_waits_for_a_running_tick_and_loses_nothing_of_a_new_one() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let cli = Arc::new(journaled.instance("cli"));
    let early = plan(&cli, ResetTo::Beginning).await;
    journaled.world.source.put(7, "new");
    let operator_process = Arc::clone(&cli);
    // During the handler's work: the lease is live, and the earlier plan is void.
    journaled.world.handler.then(async move {
        let held =
            admin(&operator_process).plan_reset(ResetTo::Beginning, false).await.unwrap_err();
        assert!(matches!(held, ResetError::Restore(RestoreError::Held { .. })), "{held}");
        let moved =
            admin(&operator_process).reset(&early, "reset-1".to_owned(), ANN).await.unwrap_err();
        assert!(matches!(moved, RestoreError::Moved), "{moved}");
        Ok(())
    });
    tick(&poller).await.unwrap();
    assert_eq!(ids_after(&journaled.world, 2), [7], "committed, and nothing was redelivered");
    assert_eq!(journaled.world.document().await.replay_id, None);

    // While the tick reads, before it holds the lease: it starts over at the new position.
    journaled.world.source.put(8, "new");
    journaled.world.source.delay(Duration::from_secs(10));
    let late = plan(&cli, ResetTo::Cursor("0x0000000000000006")).await;
    let (outcome, reset) = tokio::join!(tick(&poller), async {
        sleep(5).await;
        admin(&cli).reset(&late, "reset-2".to_owned(), ANN).await
    });
    reset.unwrap();
    outcome.unwrap();
    assert_eq!(ids_after(&journaled.world, 3), [7, 8]);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn another_source_is_accepted_only_on_request() {
    let world = World::new();
    world.started_poller("a").await;
    let source = Arc::new(TableSource::with_fingerprint("p", "dbo.other"));
    source.fill(3);
    let poller = world.instance_of("b", source);
    let refused = admin(&poller).plan_reset(ResetTo::Beginning, false).await.unwrap_err();
    let command = "`highwater reset p to-beginning --new-source --reason \"other rows\"`";
    assert!(refused.to_string().contains(command), "{refused}");
    let plan = admin(&poller).plan_reset(ResetTo::Beginning, true).await.unwrap();
    let stored = world.document().await.checkpoint.cursor;
    assert_eq!((rows(&plan.weight.again), &plan.from), (3, &stored));
    assert_eq!(plan.source_changes, ["object was `dbo.t`, is now `dbo.other`"]);
    // The same position skips nothing, as far as is known, whatever the source was.
    let same = serde_json::to_string(&stored).unwrap();
    let same = admin(&poller).plan_reset(ResetTo::Cursor(&same), true).await.unwrap();
    assert_eq!((same.weight.direction, same.weight.skips()), (Direction::Stays, false));
    assert!(same.changes());
    assert!(admin(&poller).plan_reset(ResetTo::Now, true).await.unwrap().weight.skips());
    admin(&poller).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_new_source_can_be_accepted_at_the_position_that_was_reached() {
    let journaled = JournaledWorld::new(JournalMode::Commits);
    let poller = delivered(&journaled).await;
    let before = journaled.world.document().await;
    assert!(
        !admin(&poller).plan_reset(ResetTo::Keep, true).await.unwrap().changes(),
        "nothing to accept"
    );

    let source = Arc::new(TableSource::with_fingerprint("p", "dbo.other"));
    source.fill(7);
    let renamed = journaled.of(journaled.world.instance_of("b", source));
    let error = tick(&renamed).await.unwrap_err();
    let text = chain(&error);
    assert!(text.contains("object was `dbo.t`, is now `dbo.other`"), "{text}");
    assert!(
        text.contains("`highwater reset p keep --new-source --reason \"same rows\"`"),
        "{text}"
    );
    let plan = admin(&renamed).plan_reset(ResetTo::Keep, true).await.unwrap();
    assert!(plan.changes() && !plan.weight.skips());
    assert_eq!((&plan.from, &plan.to), (&before.checkpoint.cursor, &before.checkpoint.cursor));
    let done = admin(&renamed).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
    assert!(done.saved.is_some());
    let after = journaled.world.document().await;
    assert_eq!(after.checkpoint, before.checkpoint);
    assert_eq!((&after.replay_id, after.source_definition.is_empty()), (&before.replay_id, false));
    assert!(after.generation > before.generation);
    assert!(after.lease.fencing_token > before.lease.fencing_token);
    assert!(journaled.events().await.contains(&EventKind::Reset));
    tick(&renamed).await.unwrap();
    assert_eq!(journaled.world.handler.ids(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
    // The former source is another one now.
    assert!(matches!(tick(&journaled.instance("c")).await, Err(TickError::Fingerprint { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_position_of_another_mode_or_no_position_is_not_kept() {
    let world = World::new();
    let poller = world.instance("a");
    let nothing = admin(&poller).plan_reset(ResetTo::Keep, true).await.unwrap_err();
    assert!(matches!(nothing, ResetError::NothingToKeep), "{nothing}");
    let poller = world.started_poller("a").await;
    let mut document = world.document().await;
    let cursor = document.checkpoint.cursor.as_mut().unwrap();
    *cursor = Cursor::integer(7, cursor.key.clone());
    world.overwrite(&encode(&document)).await;
    let other = admin(&poller).plan_reset(ResetTo::Keep, true).await.unwrap_err();
    assert!(matches!(other, ResetError::CannotKeep { .. }), "{other}");
}

#[tokio::test(start_paused = true)]
async fn a_position_with_another_key_is_neither_kept_nor_offered_to_be() {
    let world = World::new();
    world.started_poller("a").await;
    let source = TableSource::with_fingerprint("p", "dbo.other").keyed_by(&["id", "other"]);
    let poller = world.instance_of("b", Arc::new(source));
    let ticked = chain(&tick(&poller).await.unwrap_err());
    let refused = admin(&poller).plan_reset(ResetTo::Keep, true).await.unwrap_err();
    assert!(matches!(refused, ResetError::CannotKeep { .. }), "{refused}");
    let refused = refused.to_string();
    let why = "the key columns of the position are `id`, but those of the source are `id`, `other`";
    assert!(refused.contains(why), "{refused}");
    for text in [ticked, refused] {
        assert!(!text.contains("reset p keep"), "{text}");
        for to in ["to-beginning --new-source", "to-now --new-source --skip-rows"] {
            assert!(text.contains(&format!("`highwater reset p {to} --reason \"")), "{text}");
        }
    }
    // Both work.
    for to in [ResetTo::Beginning, ResetTo::Now] {
        admin(&poller).plan_reset(to, true).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_loss_is_written_once_and_only_a_reset_clears_it() {
    for (to, expected) in
        [(ResetTo::Beginning, &[1, 2, 3, 4, 5, 6, 7][..]), (ResetTo::Keep, &[7][..])]
    {
        let journaled = JournaledWorld::new(JournalMode::Commits);
        let poller = delivered(&journaled).await;
        journaled.world.source.put(7, "new");
        journaled.world.store.take_calls();
        journaled.world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
        let mut texts = Vec::new();
        // The source looks intact again after the first tick, also to another process.
        for process in [&poller, &poller, &journaled.instance("b"), &poller] {
            let ended = tick(process).await;
            assert_eq!(outcome_row(&ended).event, "position_lost");
            texts.push(chain(&ended.unwrap_err()));
        }
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
        assert!(texts[0].contains("numbers were taken back; deliver everything again with"));
        let calls = journaled.world.store.take_calls();
        assert_eq!(
            (calls.puts, calls.refused),
            (1, 0),
            "one write for the loss, and none per tick"
        );
        assert_eq!(journaled.verdict().await, Verdict::Agrees);

        let plan = admin(&journaled.instance("cli")).plan_reset(to, true).await.unwrap();
        assert!(plan.changes());
        admin(&journaled.instance("cli")).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
        let calls = journaled.world.handler.received().len();
        tick(&poller).await.unwrap();
        tick(&poller).await.unwrap();
        assert_eq!(ids_after(&journaled.world, calls), expected, "the same process continues");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_loss_survives_concurrent_writes_and_store_outages() {
    for between in ["pause and resume", "commit", "store down"] {
        let journaled = JournaledWorld::new(JournalMode::Commits);
        let poller = delivered(&journaled).await;
        let (world, other) = (&journaled.world, journaled.instance("b"));
        let mut reads = 1;
        match between {
            "pause and resume" => {
                admin(&other).pause(ANN).await.unwrap();
                admin(&other).resume(ANN).await.unwrap();
            }
            "commit" => {
                world.source.put(7, "new");
                tick(&other).await.unwrap();
                // At the position that the other instance has reached.
                reads = 2;
            }
            _ => {
                world.store.break_next(Call::Store, Fault::Unreachable);
            }
        }
        for _ in 0..reads {
            world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
        }
        // The source looks intact again after that.
        world.source.put(8, "after the loss");
        let mut texts = Vec::new();
        for process in [&poller, &poller, &journaled.instance("c"), &poller] {
            let ended = tick(process).await;
            assert_eq!(outcome_row(&ended).event, "position_lost", "{between}");
            texts.push(chain(&ended.unwrap_err()));
        }
        assert!(texts.iter().all(|text| *text == texts[0]), "{between}: {texts:?}");
        let stored = world.document().await;
        assert_eq!(stored.lost_position(), Some("numbers were taken back"), "{between}");
        assert_eq!(journaled.verdict().await, Verdict::Agrees, "{between}");

        let plan = plan(&journaled.instance("cli"), ResetTo::Beginning).await;
        admin(&journaled.instance("cli")).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
        let calls = world.handler.received().len();
        tick(&poller).await.unwrap();
        assert_eq!(
            ids_after(world, calls).last(),
            Some(&8),
            "{between}: the same process continues"
        );
    }
}

/// A process with an old document would still read changes that may have been cleaned up.
#[tokio::test(start_paused = true)]
async fn a_loss_at_an_outdated_position_is_checked_at_the_new_position() {
    let journaled = JournaledWorld::new(JournalMode::Off);
    let poller = delivered(&journaled).await;
    journaled.world.source.put(7, "new");
    tick(&journaled.instance("b")).await.unwrap();
    journaled.world.source.put(8, "new");
    journaled.world.source.fail_with(FetchError::rows_lost("some were cleaned up"));
    tick(&poller).await.unwrap();
    assert_eq!(ids_after(&journaled.world, 3), [8]);
    assert_eq!(journaled.world.document().await.lost_position(), None);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_loss_stops_another_delivering_instance_after_its_batch() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = Arc::new(delivered(&journaled).await);
    let world = &journaled.world;
    for id in 7..=30 {
        world.source.put(id, "new");
    }
    let (stale, source) = (Arc::clone(&poller), Arc::clone(&world.source));
    world.handler.then(async move {
        source.fail_with(FetchError::rows_lost("numbers were taken back"));
        assert_eq!(outcome_row(&tick(&stale).await).event, "position_lost");
        Ok(())
    });
    tick(&journaled.instance("b")).await.unwrap();
    assert_eq!(ids_after(world, 2), (7..=16).collect::<Vec<_>>(), "one batch");
    assert_eq!(world.document().await.lost_position(), Some("numbers were taken back"));
    for process in [&journaled.instance("b"), &*poller] {
        assert_eq!(outcome_row(&tick(process).await).event, "position_lost");
    }
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn a_rebuilt_or_imported_document_does_not_clear_a_permanent_loss() {
    for (mode, command) in [
        (JournalMode::Commits, EventKind::Rebuilt),
        (JournalMode::Full, EventKind::Rebuilt),
        (JournalMode::Off, EventKind::Imported),
    ] {
        let journaled = JournaledWorld::new(mode);
        let poller = delivered(&journaled).await;
        let copy = journaled.world.document().await;
        journaled.world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
        tick(&poller).await.unwrap_err();
        journaled.world.source.put(7, "after the loss");
        let cli = journaled.instance("cli");
        let next = if command == EventKind::Rebuilt {
            journaled.world.memory.lose(&StateKey::Document("p".to_owned()));
            journaled.folded().await.document.unwrap()
        } else {
            copy
        };
        let present = admin(&cli).present().await.unwrap();
        admin(&cli).restore(&next, &present, (command, ANN)).await.unwrap();
        for process in [&poller, &journaled.instance("b")] {
            let ended = tick(process).await;
            assert_eq!(outcome_row(&ended).event, "position_lost", "{mode:?} {command:?}");
        }
        let plan = plan(&cli, ResetTo::Beginning).await;
        admin(&cli).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
        tick(&poller).await.unwrap();
        assert_eq!(ids_after(&journaled.world, 2), [1, 2, 3, 4, 5, 6, 7], "{mode:?} {command:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_loss_survives_an_import_over_a_missing_or_damaged_document() {
    for mode in [JournalMode::Off, JournalMode::Commits, JournalMode::Full] {
        for damage in [None, Some("{")] {
            let journaled = JournaledWorld::new(mode);
            let poller = delivered(&journaled).await;
            let world = &journaled.world;
            let copy = world.document().await;
            world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
            tick(&poller).await.unwrap_err();
            assert_eq!(world.document().await.lost_position(), Some("numbers were taken back"));
            match damage {
                Some(damage) => world.overwrite(damage.as_bytes()).await,
                None => world.memory.lose(&StateKey::Document("p".to_owned())),
            }
            world.source.put(7, "after the loss");
            let cli = journaled.instance("cli");
            let present = admin(&cli).present().await.unwrap();
            let imported = admin(&cli).restore(&copy, &present, (EventKind::Imported, ANN)).await;
            // Without a journal only the process that found the loss still knows of it; it writes it again.
            let is_known = imported.unwrap().document.lost_position().is_some();
            assert_eq!(is_known, mode != JournalMode::Off, "{mode:?} {damage:?}");
            let other = journaled.instance("b");
            let processes = if is_known { [&other, &poller] } else { [&poller, &other] };
            for process in processes {
                let ended = tick(process).await;
                assert_eq!(outcome_row(&ended).event, "position_lost", "{mode:?} {damage:?}");
            }
            let plan = plan(&cli, ResetTo::Beginning).await;
            admin(&cli).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
            // Anything that raises the generation after the reset.
            let present = admin(&cli).present().await.unwrap();
            let copy = present.usable().unwrap().clone();
            admin(&cli).restore(&copy, &present, (EventKind::Imported, ANN)).await.unwrap();
            tick(&poller).await.unwrap();
            let ids = ids_after(world, 2);
            assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7], "{mode:?} {damage:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unwritten_loss_outlives_grants_that_are_raised_above_a_fence() {
    for early in [false, true] {
        let journaled = JournaledWorld::new(JournalMode::Commits);
        let poller = delivered(&journaled).await;
        let world = &journaled.world;
        let raise = async || {
            let cli = journaled.instance("cli");
            let generation = Generation(world.generation().await.0 + 1);
            let fence = highwater_engine::document::Fence { generation, token: FencingToken(9) };
            let present = admin(&cli).present().await.unwrap();
            let raised = admin(&cli).raise_above(fence, &present, false, ANN).await.unwrap();
            assert!(raised.unwrap().document.generation > generation);
        };
        world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
        if early {
            // The process still has the old document.
            Box::pin(raise()).await;
        } else {
            world.store.break_next(Call::Store, Fault::Unreachable);
        }
        tick(&poller).await.unwrap_err();
        if !early {
            assert_eq!(world.document().await.lost_position(), None, "the store was down");
            Box::pin(raise()).await;
        }
        world.source.put(7, "after the loss");
        for process in [&poller, &journaled.instance("b")] {
            assert_eq!(outcome_row(&tick(process).await).event, "position_lost", "{early}");
        }
        assert_eq!(world.document().await.lost_position(), Some("numbers were taken back"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_ends_if_a_lost_document_restarts_at_the_beginning() {
    let world = World::new();
    let limits = Limits { on_missing_state: OnMissingState::Recreate, ..limits() };
    let poller = world.with_limits(limits).instance("a");
    world.source.fill(2);
    tick(&poller).await.unwrap();
    world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
    tick(&poller).await.unwrap_err();
    world.memory.lose(&StateKey::Document("p".to_owned()));
    world.source.put(3, "after the loss");
    tick(&poller).await.unwrap();
    assert_eq!(ids_after(&world, 1), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_position_is_kept_only_if_the_next_tick_can_continue_from_it() {
    let journaled = JournaledWorld::new(JournalMode::Off);
    let poller = delivered(&journaled).await;
    let fail =
        || journaled.world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
    fail();
    let text = chain(&tick(&poller).await.unwrap_err());
    let commands = "deliver everything again with `highwater reset p to-beginning --reason \"position lost\"`, or \
                    skip to the end with `highwater reset p to-now --skip-rows --reason \"position lost\"`";
    assert!(text.contains(commands) && !text.contains(" keep "), "{text}");
    fail();
    let refused = chain(&poller.admin().plan_reset(ResetTo::Keep, true).await.unwrap_err());
    let expected = format!("the position cannot be kept: numbers were taken back; {commands}");
    assert_eq!(refused, expected);
    // Once the source has recovered, the position is kept.
    assert!(admin(&poller).plan_reset(ResetTo::Keep, true).await.unwrap().changes());
}

#[tokio::test(start_paused = true)]
async fn a_copy_with_a_loss_is_accepted_by_a_reset_to_it() {
    let journaled = JournaledWorld::new(JournalMode::Off);
    let poller = delivered(&journaled).await;
    journaled.world.source.fail_with(FetchError::rows_lost("numbers were taken back"));
    tick(&poller).await.unwrap_err();
    let copy = journaled.world.document().await;
    assert_eq!(copy.lost_position(), Some("numbers were taken back"));
    let plan = admin(&poller).plan_reset(ResetTo::Document(&copy), false).await.unwrap();
    assert!(plan.changes());
    admin(&poller).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
    assert_eq!(journaled.world.document().await.lost_position(), None);
    tick(&poller).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_or_damaged_document_starts_over_and_a_pause_stays() {
    let world = World::new();
    let poller = world.started_poller("a").await;
    admin(&poller).pause(ANN).await.unwrap();
    let reset = plan(&poller, ResetTo::Beginning).await;
    assert_eq!(reset.paused_by(), Some(ANN.by));
    admin(&poller).reset(&reset, "reset-1".to_owned(), ANN).await.unwrap();
    assert!(world.is_paused().await);

    for damage in [Some("{"), None] {
        match damage {
            Some(damage) => world.overwrite(damage.as_bytes()).await,
            None => world.memory.lose(&StateKey::Document("p".to_owned())),
        }
        let calls = world.handler.received().len();
        assert!(plan(&poller, ResetTo::Now).await.weight.skips(), "nobody knows what");
        let plan = plan(&poller, ResetTo::Beginning).await;
        assert!(plan.changes() && !plan.weight.skips());
        admin(&poller).reset(&plan, "reset-2".to_owned(), ANN).await.unwrap();
        tick(&world.instance("b")).await.unwrap();
        assert_eq!(ids_after(&world, calls), [0], "{damage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_needs_the_source_but_importing_a_copy_does_not() {
    let journaled = JournaledWorld::new(JournalMode::Off);
    let poller = delivered(&journaled).await;
    let copy = journaled.world.document().await;
    journaled.world.source.put(7, "new");
    tick(&poller).await.unwrap();
    journaled.world.source.fail_next("down");
    let down = admin(&poller).plan_reset(ResetTo::Beginning, false).await.unwrap_err();
    assert!(matches!(down, ResetError::Tick(TickError::Fetch(_))), "{down}");

    let present = admin(&poller).present().await.unwrap();
    let weight = admin(&poller).compare_with(&copy, &present).await.unwrap().unwrap();
    assert_eq!((rows(&weight.again), weight.skips()), (1, false));
    journaled.world.source.fail_next("down");
    let weight = admin(&poller).compare_with(&copy, &present).await.unwrap().unwrap();
    assert!(matches!(&weight.again, RowCount::Unknown(reason) if reason.contains("down")));
    assert!(!weight.skips());
    let mut ahead = copy.clone();
    ahead.checkpoint.cursor.as_mut().unwrap().value = "0x0000000000000009".to_owned();
    journaled.world.source.fail_next("down");
    let weight = admin(&poller).compare_with(&ahead, &present).await.unwrap().unwrap();
    assert!(weight.skips() && matches!(weight.skipped, RowCount::Unknown(_)));
    ahead.source_fingerprint = SourceFingerprint::of(&[("object", "other")]);
    assert_eq!(admin(&poller).compare_with(&ahead, &present).await, Ok::<_, RangeError>(None));
}

#[tokio::test(start_paused = true)]
async fn an_import_a_reset_and_a_broken_lease_each_clear_the_owner_and_raise_the_token() {
    for command in ["import", "reset", "lease break"] {
        let journaled = JournaledWorld::new(JournalMode::Full);
        let poller = delivered(&journaled).await;
        let copy = journaled.world.document().await;
        journaled.world.source.put(7, "new");
        journaled.world.handler.then_take(Duration::from_secs(1000));
        let killed = tokio::time::timeout(Duration::from_secs(5), tick(&poller)).await;
        assert!(killed.is_err(), "the tick was to be killed while it runs");
        let before = journaled.world.document().await;
        let holder = before.holder("a");
        assert!(before.is_held_by(&holder), "{command}: the lease is held");
        sleep(40).await;

        let cli = journaled.instance("cli");
        let present = admin(&cli).present().await.unwrap();
        match command {
            "import" => {
                admin(&cli).restore(&copy, &present, (EventKind::Imported, ANN)).await.unwrap();
            }
            "reset" => {
                let plan = plan(&cli, ResetTo::Beginning).await;
                admin(&cli).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
            }
            _ => {
                let broken = Box::pin(admin(&cli).break_lease(&present, false, ANN)).await.unwrap();
                assert!(broken.is_some(), "{command}");
            }
        }
        let after = journaled.world.document().await;
        assert_eq!(after.lease.owner_id, None, "{command}");
        assert!(after.lease.fencing_token > before.lease.fencing_token, "{command}");
        let now = after.lease.acquired_at.unwrap();
        assert!(after.renew(&holder, now).is_err(), "{command}: no write of the holder lands");
        tick(&journaled.instance("b")).await.unwrap();
        assert_eq!(journaled.world.handler.ids().last(), Some(&7), "{command}: free at once");
    }
}

#[tokio::test(start_paused = true)]
async fn breaking_a_lease_raises_the_token_and_blocks_writes_of_its_holder() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let cli = journaled.instance("cli");
    let present = admin(&cli).present().await.unwrap();
    assert_eq!(
        Box::pin(admin(&cli).break_lease(&present, true, ANN)).await.unwrap(),
        None,
        "nobody holds it"
    );

    journaled.world.source.put(7, "new");
    journaled.world.handler.then(async move {
        let present = admin(&cli).present().await.unwrap();
        let held = Box::pin(admin(&cli).break_lease(&present, false, ANN)).await.unwrap_err();
        assert!(matches!(held, RestoreError::Held { .. }), "{held}");
        let broken = Box::pin(admin(&cli).break_lease(&present, true, ANN)).await.unwrap().unwrap();
        let before = present.usable().unwrap();
        assert_eq!(broken.document.lease.fencing_token.0, before.lease.fencing_token.0 + 1);
        assert_eq!(broken.document.generation, before.generation);
        assert_eq!(broken.document.in_flight, before.in_flight);
        assert!(broken.saved.is_some());
        let again = Box::pin(admin(&cli).break_lease(&present, true, ANN)).await.unwrap_err();
        assert!(matches!(again, RestoreError::Moved), "{again}");
        Ok(())
    });
    tick(&poller).await.unwrap_err();
    tick(&journaled.instance("b")).await.unwrap();
    let received = journaled.world.handler.received();
    let [.., stale, new] = received.as_slice() else { panic!("{received:?}") };
    assert_eq!(
        (&new.ids, &new.batch_id),
        (&stale.ids, &stale.batch_id),
        "the batch is redelivered"
    );
    assert!(new.fence > stale.fence);
    assert!(journaled.events().await.contains(&EventKind::LeaseBroken));
    assert_eq!(journaled.verdict().await, Verdict::Agrees);
}

#[tokio::test(start_paused = true)]
async fn a_clone_of_a_poller_at_the_beginning_starts_there() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = delivered(&journaled).await;
    let plan = plan(&poller, ResetTo::Beginning).await;
    admin(&poller).reset(&plan, "reset-1".to_owned(), ANN).await.unwrap();
    let clone = poller.under_name("q");
    let done = Box::pin(admin(&poller).clone_to(&clone, true, ANN)).await.unwrap();
    assert_eq!(done.document.checkpoint.cursor, None);
    let calls = journaled.world.handler.received().len();
    tick(&clone).await.unwrap();
    assert_eq!(ids_after(&journaled.world, calls), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test(start_paused = true)]
async fn a_clone_continues_at_the_pollers_position_and_never_replaces_another() {
    let journaled = JournaledWorld::new(JournalMode::Full);
    let poller = journaled.instance("a");
    let clone = poller.under_name("q");
    let nothing = Box::pin(admin(&poller).clone_to(&clone, false, ANN)).await.unwrap_err();
    assert!(matches!(nothing, CloneError::NeverStarted(_)), "{nothing}");
    delivered(&journaled).await;
    let before = journaled.world.document().await;
    let done = Box::pin(admin(&poller).clone_to(&clone, true, ANN)).await.unwrap();
    assert_eq!(done.document.checkpoint.cursor, before.checkpoint.cursor);
    assert_eq!(journaled.world.document().await, before, "it is only read");
    let again = Box::pin(admin(&poller).clone_to(&clone, true, ANN)).await.unwrap_err();
    assert!(matches!(again, CloneError::Exists(_)), "{again}");
    assert_eq!(admin(&clone).examine().await.unwrap().verdict, Verdict::Agrees);

    journaled.world.source.put(7, "new");
    let calls = journaled.world.handler.received().len();
    for process in [&clone, &poller] {
        tick(process).await.unwrap();
    }
    assert_eq!(ids_after(&journaled.world, calls), [7, 7]);
    // Its marker records that it ran.
    journaled.world.memory.lose(&StateKey::Document("q".to_owned()));
    let gone = Box::pin(admin(&poller).clone_to(&clone, true, ANN)).await.unwrap_err();
    assert!(matches!(gone, CloneError::RanBefore { .. }), "{gone}");

    let source = Arc::new(TableSource::with_fingerprint("r", "dbo.other"));
    let other = journaled.world.instance_of("b", source).under_name("r");
    let refused = Box::pin(admin(&poller).clone_to(&other, true, ANN)).await.unwrap_err();
    assert!(matches!(refused, CloneError::OtherSource(..)), "{refused}");
}
