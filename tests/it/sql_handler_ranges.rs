//! The handler `sql` while a past range is redelivered alongside the poller.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use highwater::handler::sql::Sql;
use highwater::handler::{HandlerError, Reread};
use tokio::time::timeout;

use crate::sql_handler::{World, deliver_as, deliver_under, event};

const RANGE: &str = "orders.replay.x";

/// Unchanged or changed rows; while they are queried, the poller tries to write.
#[derive(Debug)]
struct Rows<'a> {
    unchanged: bool,
    live: Option<&'a Sql>,
    asked: AtomicU32,
}

impl<'a> Rows<'a> {
    fn new(unchanged: bool, live: Option<&'a Sql>) -> Self {
        Self { unchanged, live, asked: AtomicU32::new(0) }
    }
}

#[async_trait]
impl Reread for Rows<'_> {
    async fn are_unchanged(&self) -> Result<bool, HandlerError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(live) = self.live {
            let events = [event(9, 1, Some("newer"))];
            let newer = deliver_under(live, (5, 3), None, &events);
            let waited = timeout(Duration::from_millis(300), newer).await;
            assert!(!matches!(waited, Ok(Ok(()))), "the poller's fence is locked: {waited:?}");
        }
        Ok(self.unchanged)
    }
}

#[tokio::test]
async fn a_range_writes_unchanged_rows_under_its_own_fence() {
    let world = World::start().await;
    let sql = world.handler_with_ledger();
    deliver_under(&sql, (5, 3), None, &[event(1, 1, Some("a"))]).await.unwrap();
    let rows = Rows::new(true, None);
    let events = [event(1, 1, Some("a")), event(2, 2, Some("b"))];
    for _ in 0..2 {
        deliver_as(&sql, (RANGE, Some(&rows)), (9, 1), Some("replay-x"), &events).await.unwrap();
    }
    assert_eq!(rows.asked.load(Ordering::Relaxed), 2);
    assert_eq!(world.copies().await, ["1 a 1.50 7", "2 b 2.50 7"]);
    assert_eq!(world.fence().await, ["shop/orders 5 3", "shop/orders.replay.x 9 1"]);
    assert_eq!(world.noted().await, 3, "once by the poller, once by the replay");
    // The range's grants do not affect the poller.
    deliver_under(&sql, (5, 3), None, &[event(3, 1, Some("c"))]).await.unwrap();
    assert_eq!(world.copies().await, ["1 c 3.50 7", "2 b 2.50 7"]);
}

#[tokio::test]
async fn a_range_writes_nothing_once_a_row_has_a_newer_state() {
    let world = World::start().await;
    let sql = world.handler_with_ledger();
    deliver_under(&sql, (5, 3), None, &[event(9, 1, Some("newer"))]).await.unwrap();
    let (fence, noted) = (world.fence().await, world.noted().await);
    let rows = Rows::new(false, None);
    let events = [event(1, 1, Some("older"))];
    let refused = deliver_as(&sql, (RANGE, Some(&rows)), (9, 1), Some("replay-x"), &events).await;
    // No attempt is counted, and the batch is reread at once.
    let Err(HandlerError::Throttled { retry_after, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(retry_after, Some(Duration::ZERO));
    assert_eq!(world.copies().await, ["1 newer 9.50 7"]);
    assert_eq!((world.fence().await, world.noted().await), (fence, noted));
}

#[tokio::test]
async fn the_poller_waits_until_the_range_has_written() {
    let world = World::start().await;
    let (range, live) = (world.handler(), world.handler());
    deliver_under(&live, (5, 3), None, &[event(1, 1, Some("older"))]).await.unwrap();
    let rows = Rows::new(true, Some(&live));
    let events = [event(1, 1, Some("older"))];
    deliver_as(&range, (RANGE, Some(&rows)), (9, 1), Some("replay-x"), &events).await.unwrap();
    assert_eq!(world.copies().await, ["1 older 1.50 7"]);
    deliver_under(&live, (5, 3), None, &[event(9, 1, Some("newer"))]).await.unwrap();
    assert_eq!(world.copies().await, ["1 newer 9.50 7"]);
}
