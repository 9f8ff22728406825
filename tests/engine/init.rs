//! The first start of a poller that has to be started explicitly.

use std::sync::Arc;

use highwater_engine::admin::InitResult;
use highwater_engine::document::{StateDocument, encode};
use highwater_engine::poller::TickError;
use highwater_engine::source::Source;
use highwater_engine::testing::{TableSource, World, admin, calls, tick};

async fn put_blank(world: &World, change: impl FnOnce(&mut StateDocument)) {
    let fingerprint = world.source.shape().fingerprint.clone();
    let mut blank = StateDocument::blank("p", fingerprint);
    change(&mut blank);
    world.overwrite(&encode(&blank)).await;
}

#[tokio::test(start_paused = true)]
async fn a_blank_document_is_not_a_start_but_a_position_is() {
    let world = World::new();
    world.source.fill(2);
    let poller = world.instance("a").starting_now();
    assert!(matches!(tick(&poller).await, Err(TickError::NotStarted { .. })));
    assert_eq!(world.store.take_calls().puts, 0, "nothing is created");
    put_blank(&world, |_| {}).await;
    assert!(matches!(tick(&poller).await, Err(TickError::NotStarted { .. })));
    put_blank(&world, |blank| blank.replay_id = Some("again".to_owned())).await;
    assert_eq!(
        admin(&poller).init().await.unwrap(),
        InitResult::StartedBefore,
        "it stays as it is"
    );
    tick(&poller).await.unwrap();
    assert_eq!(world.handler.ids(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_start_stores_the_source_definition_so_that_an_error_can_name_the_difference() {
    let world = World::new();
    assert_eq!(
        admin(&world.instance("a")).init().await.unwrap(),
        InitResult::Started { after: None }
    );
    let other = Arc::new(TableSource::with_fingerprint("p", "dbo.other"));
    let error = tick(&world.instance_of("b", other)).await.unwrap_err().to_string();
    assert!(error.contains("object was ") && error.contains(", is now `dbo.other`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_start_creates_a_blank_document_and_fills_it_under_its_etag() {
    let world = World::new();
    let poller = world.instance("a");
    assert_eq!(admin(&poller).init().await.unwrap(), InitResult::Started { after: None });
    // Document, marker; both again once the blank document exists.
    assert_eq!(world.store.take_calls(), calls(4, 2, 0));
    let document = world.document().await;
    assert!(!document.is_blank() && !document.marked);
    assert_eq!(admin(&poller).init().await.unwrap(), InitResult::StartedBefore);
    // A start that crashed between the two writes may be repeated.
    put_blank(&world, |_| {}).await;
    assert_eq!(admin(&poller).init().await.unwrap(), InitResult::Started { after: None });
    assert!(!world.document().await.is_blank());
    world.source.fill(1);
    tick(&poller.starting_now()).await.unwrap();
    assert_eq!(world.handler.ids(), [1]);
}
