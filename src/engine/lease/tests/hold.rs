//! A commit that is left to the next work.

use super::*;

fn at_document(document: &StateDocument) -> Option<Cursor> {
    document.checkpoint.cursor.clone()
}

#[tokio::test(start_paused = true)]
async fn a_pending_commit_is_sent_with_the_next_work_and_overlaps_it() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    assert!(lease.commit_alongside(commit(7, now)).unwrap());
    assert!(lease.is_committing());
    assert_eq!(at_document(lease.expected()), Some(at(7)), "as it will be");
    assert_eq!(at_document(lease.document()), None, "as it is stored");
    assert_eq!(at_document(&world.document().await), None, "nothing is sent yet");
    let began_at = Instant::now();
    world.store.break_next(Call::Store, Fault::Slow(Duration::from_secs(3)));
    lease.hold_while(sleep(2)).await.unwrap();
    assert_eq!(began_at.elapsed(), Duration::from_secs(3), "work that is done waits for it");
    assert_eq!(lease.take_confirmed(), Some(Duration::from_secs(3)));
    assert_eq!(lease.take_confirmed(), None);
    assert_eq!(at_document(&world.document().await), Some(at(7)));
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_holder_is_written_before_the_commit_that_waits() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    world.store.take_calls();
    assert!(lease.commit_alongside(commit(7, now)).unwrap());
    lease.release(None, None).await.unwrap();
    assert_eq!(at_document(&world.document().await), Some(at(7)));
    assert_eq!(world.store.take_calls().puts, 2);
}

#[tokio::test(start_paused = true)]
async fn no_commit_is_left_to_work_that_must_not_start() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    sleep(27).await;
    assert!(!lease.commit_alongside(commit(7, now)).unwrap());
    assert!(!lease.is_committing());
    lease.commit(commit(7, now)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn source_state_goes_with_the_pending_commit() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    let state = SourceState::from_iter([("mark".to_owned(), serde_json::json!(7))]);
    lease.remember(Some(state.clone()));
    assert!(lease.commit_alongside(commit(7, now)).unwrap());
    assert_eq!(lease.expected().source_state, state);
    lease.remember(None);
    lease.hold_while(sleep(1)).await.unwrap();
    assert_eq!(world.document().await.source_state, state);
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_as_soon_as_the_overlapped_commit_is_lost() {
    let world = World::new();
    let mut lease = world.acquire(&world.a).await;
    let now = lease.now();
    assert!(lease.commit_alongside(commit(7, now)).unwrap());
    world.meddle(|document| document.break_lease().unwrap()).await;
    let began_at = Instant::now();
    let held = lease.hold_while(sleep(100)).await;
    let Err(LeaseError::Uncommitted(error)) = held else { panic!("{held:?}") };
    assert!(matches!(*error, LeaseError::Lost(_)), "{error:?}");
    assert_eq!(began_at.elapsed(), Duration::ZERO);
    assert_eq!(lease.take_confirmed(), None);
    assert_eq!(at_document(lease.document()), None, "hoped for no more");
}
