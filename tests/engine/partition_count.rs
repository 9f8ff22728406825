//! Partitions of a poller: which documents they may start alongside, and what one delivers during a pause.

use highwater_engine::admin::{ResetError, ResetTo, RestoreError};
use highwater_engine::document::StateDocument;
use highwater_engine::journal::EventKind;
use highwater_engine::partition::Partition;
use highwater_engine::poller::{Operator, Poller, TickError, TickOutcome, outcome_row};
use highwater_engine::testing::{World, admin, tick};

fn part(world: &World, name: &str, partition: Option<(u16, u16)>) -> Poller {
    let poller = world.poller(name, name, world.source.clone());
    poller.with_partition(partition.map(|(index, count)| Partition { index, count }))
}

#[tokio::test(start_paused = true)]
async fn the_partition_count_is_stored_before_the_first_delivery() {
    let world = World::new();
    world.source.put(1, "row");
    tick(&part(&world, "p__p2", Some((2, 3)))).await.unwrap();
    let first = world.document_of("p__p0").await.unwrap();
    assert!(first.is_blank() && first.partition == Some(Partition { index: 0, count: 3 }));
    let own = world.document_of("p__p2").await.unwrap();
    assert_eq!(own.partition, Some(Partition { index: 2, count: 3 }));
    tick(&part(&world, "p__p0", Some((0, 3)))).await.unwrap();
    assert!(!world.document_of("p__p0").await.unwrap().is_blank());
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_alongside_another_partition_count() {
    for (there, name_there, asked, name) in [
        (Some((2, 3)), "p__p2", Some((1, 4)), "p__p1"),
        (Some((2, 3)), "p__p2", Some((0, 4)), "p__p0"),
        (Some((2, 3)), "p__p2", None, "p"),
        (None, "p", Some((0, 2)), "p__p0"),
        (None, "p", Some((1, 2)), "p__p1"),
    ] {
        let world = World::new();
        world.source.put(1, "row");
        tick(&part(&world, name_there, there)).await.unwrap();
        let error = tick(&part(&world, name, asked)).await.unwrap_err();
        let count = |of: Option<(u16, u16)>| of.map_or(1, |(_, count)| count);
        let expected = (count(there), count(asked));
        let TickError::OtherPartitionCount { poller, stored, configured } = &error else {
            panic!("{error}")
        };
        assert_eq!((poller.as_str(), (*stored, *configured)), ("p", expected), "{name}");
        let advice = format!("highwater repartition p --to {}", expected.1);
        assert!(error.to_string().contains(&advice), "{error}");
        assert_eq!(world.handler.ids(), [1], "`{name}` delivered nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_document_with_another_partition_count_is_rejected_for_the_same_source() {
    let world = World::new();
    world.source.put(1, "row");
    tick(&part(&world, "p__p1", Some((1, 2)))).await.unwrap();
    let error = tick(&part(&world, "p__p1", Some((1, 3)))).await.unwrap_err();
    assert!(
        matches!(error, TickError::OtherPartitionCount { stored: 2, configured: 3, .. }),
        "{error}"
    );
    assert_eq!(outcome_row(&Err(error)).event, "fingerprint_mismatch");
}

#[tokio::test(start_paused = true)]
async fn peeking_at_the_pending_rows_of_a_partition_writes_nothing() {
    let world = World::new();
    world.source.put(1, "row");
    let peek = part(&world, "p__p2", Some((2, 3))).admin().peek(0).await.unwrap();
    assert_eq!(peek.rows, 1);
    assert!(
        world.document_of("p__p0").await.is_none() && world.document_of("p__p2").await.is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn a_partition_can_only_be_reset_to_the_position_of_its_siblings() {
    let ann = Operator { by: "ann", reason: "skip the past" };
    let world = World::new();
    world.source.put(1, "row");
    let own = part(&world, "p__p2", Some((2, 3)));
    let plan = admin(&own).plan_reset(ResetTo::Now, false).await.unwrap();
    assert!(world.document_of("p__p0").await.is_none(), "a plan writes nothing");
    admin(&own).reset(&plan, "reset-1".to_owned(), ann).await.unwrap();
    let first = world.document_of("p__p0").await.unwrap();
    assert!(first.is_blank() && first.partition == Some(Partition { index: 0, count: 3 }));
    let placed = world.document_of("p__p2").await.unwrap();
    assert_eq!(placed.partition, Some(Partition { index: 2, count: 3 }));
    assert_eq!(tick(&own).await.unwrap(), TickOutcome::Idle);
    for (name, partition) in
        [("p__p2", Some((2, 4))), ("p__p1", Some((1, 4))), ("p", None), ("p__p0", Some((0, 2)))]
    {
        let other = part(&world, name, partition);
        let refused = admin(&other).plan_reset(ResetTo::Beginning, true).await.unwrap_err();
        assert!(
            matches!(refused, ResetError::Tick(TickError::OtherPartitionCount { stored: 3, .. })),
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_document_of_another_partition_is_not_imported() {
    let eve = (EventKind::Imported, Operator { by: "eve", reason: "it broke" });
    let world = World::new();
    world.source.put(1, "row");
    let own = part(&world, "p__p1", Some((1, 2)));
    tick(&own).await.unwrap();
    let copy = world.document_of("p__p1").await.unwrap();
    let of = |index, count| Some(Partition { index, count });
    let mut taken_over = copy.clone();
    taken_over.taken_over_by = Some(2);
    for (document, fragment) in [
        (StateDocument { partition: of(1, 3), ..copy.clone() }, "belongs to partition 1 of 3, but"),
        (StateDocument { partition: of(0, 2), ..copy.clone() }, "belongs to partition 0 of 2, but"),
        (StateDocument { partition: None, ..copy.clone() }, "belongs to the whole poller, but"),
        (
            taken_over,
            "belongs to partition 1 of 2, whose rows 2 other partitions have taken over, but",
        ),
    ] {
        let present = admin(&own).present().await.unwrap();
        let refused = admin(&own).restore(&document, &present, eve).await.unwrap_err();
        let text = refused.to_string();
        assert!(
            matches!(refused, RestoreError::OtherPart { .. }) && text.contains(fragment),
            "{text}"
        );
        assert!(
            text.contains("`p__p1` is partition 1 of 2") && text.contains("POLLERS__P__PART"),
            "{text}"
        );
        assert_eq!(world.document_of("p__p1").await.unwrap(), copy, "it stays as it is");
    }
    let present = admin(&own).present().await.unwrap();
    admin(&own).restore(&copy, &present, eve).await.unwrap();
    own.reject_conflicting_siblings().await.unwrap();
    let alongside =
        part(&world, "p__p2", Some((2, 3))).reject_conflicting_siblings().await.unwrap_err();
    assert!(
        matches!(alongside, TickError::OtherPartitionCount { stored: 2, configured: 3, .. }),
        "{alongside}"
    );
}
