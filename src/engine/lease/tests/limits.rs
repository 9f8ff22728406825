//! How long a request is repeated, and what ends it earlier.

use super::*;

/// More requests than any deadline allows.
const MANY: usize = 1000;

/// Makes the store unreachable for good.
fn cut_off(world: &World) {
    for _ in 0..MANY {
        world.store.break_next(Call::Store, Fault::Unreachable);
    }
}

/// Acquires a lease of a tick with this much time left, and makes the store unreachable for good.
async fn cut_off_with(time_left: Duration, world: &World) -> Lease<'_> {
    let context = LeaseContext { stop_at: Instant::now() + time_left, ..world.context(&world.a) };
    let asked = Lease::acquire(context, &world.base().await, None).await.unwrap();
    let AcquireResult::Held(lease) = asked else { panic!("{asked:?}") };
    cut_off(world);
    *lease
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_is_given_up_after_half_of_its_ttl() {
    let world = World::new();
    let base = world.base().await;
    cut_off(&world);
    let began_at = Instant::now();
    let asked = Lease::acquire(world.context(&world.a), &base, None).await;
    assert!(matches!(asked, Err(LeaseError::Store(StoreError::Unreachable { .. }))), "{asked:?}");
    assert_eq!(began_at.elapsed(), TTL / 2);
}

#[tokio::test(start_paused = true)]
async fn the_last_write_of_a_tick_may_end_ten_seconds_after_it() {
    let world = World::new();
    let time_left = Duration::from_secs(5);
    let mut lease = cut_off_with(time_left, &world).await;
    let (began_at, now) = (Instant::now(), lease.now());
    lease.commit(commit(1, now)).await.unwrap_err();
    assert_eq!(began_at.elapsed(), time_left + LAST_WRITE_GRACE);
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_lands_late_is_no_conflict() {
    let world = World::new();
    let base = world.base().await;
    // After the read that finds the old document, and before the second attempt.
    world.store.break_next(Call::Store, Fault::Late(Duration::from_millis(1)));
    let asked = Lease::acquire(world.context(&world.a), &base, None).await.unwrap();
    assert!(matches!(asked, AcquireResult::Held(_)), "{asked:?}");
    assert_eq!(world.store.take_calls().refused, 1, "the second attempt");
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_without_an_answer_is_a_conflict_once_another_writer_is_found() {
    let world = World::new();
    let base = world.base().await;
    world.store.break_next(Call::Store, Fault::LostRequest);
    world.meddle(pause).await;
    let began_at = Instant::now();
    let asked = Lease::acquire(world.context(&world.a), &base, None).await.unwrap();
    assert!(matches!(asked, AcquireResult::Conflict), "{asked:?}");
    assert_eq!(began_at.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_overlapped_commit_may_end_five_seconds_after_its_tick() {
    let world = World::new();
    let time_left = Duration::from_secs(5);
    let mut lease = cut_off_with(time_left, &world).await;
    let (began_at, now) = (Instant::now(), lease.now());
    assert!(lease.commit_alongside(commit(1, now)).unwrap());
    let held = lease.hold_while(sleep(100)).await;
    assert!(matches!(held, Err(LeaseError::Uncommitted(_))), "{held:?}");
    assert_eq!(began_at.elapsed(), time_left + COMMIT_GRACE);
}
