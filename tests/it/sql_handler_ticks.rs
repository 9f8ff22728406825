//! The handler `sql` in a poller's ticks: from table to table.

use std::sync::Arc;
use std::time::Duration;

use highwater::cursor::CursorMode;
use highwater::error::chain;
use highwater::handler::sql::Sql;
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::policy::{FailurePolicy, OnFailure, ParkPolicy};
use highwater::poller::{
    Limits, Operator, Poller, PollerParts, StopSignal, TickError, TickOutcome, outcome_row,
};
use highwater::source::mssql::Mssql;
use highwater::state::{Fence, MemoryStore, Precondition, StateKey, StateStore as _};
use highwater::tick::TickRequest;
use highwater_devdb::{Engine as _, Fault, Reply, Value};
use serde_json::Value as Json;

use crate::sql::World;
use crate::sql_handler::{COPIES, FENCE, config, deliver_under, event, tables, with_ledger};
use crate::ticks::limits;

const ORDERS: &str = "CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, \
    amount decimal(9, 2) NULL, rv rowversion NOT NULL)";

async fn world() -> World {
    // The source's version is not a column of the target.
    let copies = COPIES.replace("own int", "rv rowversion NOT NULL, own int");
    World::start(&format!("{ORDERS}; {copies}; {}", tables())).await
}

fn poller(world: &World) -> Poller {
    poller_of(world, Arc::default(), "one")
}

fn poller_of(world: &World, store: Arc<MemoryStore>, owner_id: &str) -> Poller {
    parking(world, store, owner_id, ParkPolicy::NO_RETRIES)
}

fn parking(world: &World, store: Arc<MemoryStore>, owner_id: &str, park: ParkPolicy) -> Poller {
    let second = Duration::from_secs(1);
    let source = Mssql::new(world.settings("dbo.orders", CursorMode::RowVersion, "rv")).unwrap();
    Poller::new(PollerParts {
        name: "orders".to_owned(),
        source: Arc::new(source),
        handler: Arc::new(Sql::new("shop", &with_ledger(config(world.connection()))).unwrap()),
        store,
        instance: Arc::new(Instance::new(owner_id)),
        terms: LeaseTerms::of(30 * second),
        limits: Limits {
            retry_delay_min: Duration::ZERO,
            retry_delay_max: Duration::ZERO,
            ..limits(1_000)
        },
        policy: FailurePolicy {
            on_failure: OnFailure::Park,
            bisect_on_error: true,
            park,
            ..FailurePolicy::default()
        },
        metrics: Arc::new(Metrics::default()),
    })
}

fn insert(world: &World, rows: impl Iterator<Item = (i64, &'static str)>) {
    let rows = rows.map(|(id, item)| vec![Value::Int(id), Value::Text(item.to_owned())]);
    world.database.insert_rows("dbo.orders", &["id", "item"], rows).unwrap();
}

/// Ids of the rows of the target.
fn copied(world: &World) -> Vec<i64> {
    let mut session = world.database.connect("Highwater").unwrap();
    let replies = session.run("SELECT id FROM dbo.copies ORDER BY id", &[]);
    let Some(Reply::Rows { rows, .. }) = replies.into_iter().next() else { panic!("no rows") };
    let id = |row: Vec<Value>| if let [Value::Int(id)] = row[..] { id } else { panic!("{row:?}") };
    rows.into_iter().map(id).collect()
}

#[tokio::test]
async fn a_row_that_the_target_rejects_is_quarantined_and_all_others_arrive() {
    let world = world().await;
    let item = |id| if id == 37 { "much too long" } else { "short" };
    insert(&world, (1..=500).map(|id| (id, item(id))));
    let poller = poller(&world);
    for _ in 0..20 {
        if poller.tick(&TickRequest::default()).await.result.is_ok() {
            break;
        }
    }
    let expected: Vec<i64> = (1..=500).filter(|id| *id != 37).collect();
    assert_eq!(copied(&world), expected);
    insert(&world, [(501, "short")].into_iter());
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(copied(&world).last(), Some(&501));
}

/// The ledger knows only events that the target has applied, so it does not take the retry for a duplicate.
#[tokio::test]
async fn a_retry_of_an_unchanged_row_is_applied_although_the_target_keeps_a_ledger() {
    let world = world().await;
    insert(&world, [(1, "short"), (2, "much too long"), (3, "short")].into_iter());
    let store = Arc::<MemoryStore>::default();
    let park = ParkPolicy { retries_max: 10, ..ParkPolicy::default() };
    let poller = parking(&world, store.clone(), "one", park);
    for _ in 0..20 {
        if poller.tick(&TickRequest::default()).await.result.is_ok() {
            break;
        }
    }
    assert_eq!(copied(&world), [1, 3]);
    // The target is fixed, and the row stays as it is.
    let mut session = world.database.connect("Highwater").unwrap();
    session.run("DROP TABLE dbo.copies", &[]);
    let copies = COPIES.replace("own int", "rv rowversion NOT NULL, own int");
    session.run(&copies.replace("item nvarchar(9)", "item nvarchar(50)"), &[]);
    let poller = parking(&world, store, "two", park);
    for _ in 0..100 {
        poller.tick(&TickRequest::default()).await.result.unwrap();
        if copied(&world) == [2] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(copied(&world), [2], "once, and no other row again");
    poller.tick(&TickRequest::default()).await.result.unwrap();
    assert_eq!(poller.admin().quarantined().await.unwrap(), []);
}

#[tokio::test]
async fn a_stale_owners_tick_is_rejected_by_the_target_and_commits_nothing() {
    let world = world().await;
    insert(&world, [(1, "first")].into_iter());
    let poller = poller(&world);
    poller.tick(&TickRequest::default()).await.result.unwrap();
    // A newer owner, whose document this one does not know.
    let newer = Sql::new("shop", &config(world.connection())).unwrap();
    let far = (9_000_000_000_000, 1);
    deliver_under(&newer, far, None, &[event(1, 9, Some("newer"))]).await.unwrap();
    insert(&world, [(2, "second")].into_iter());
    for _ in 0..2 {
        let result = poller.tick(&TickRequest::default()).await.result;
        let is_ahead = matches!(result, Err(TickError::FenceAhead { .. }));
        assert!(is_ahead, "{result:?}");
        assert_eq!(copied(&world), [1, 9]);
    }
}

/// Until its transaction is rolled back, an aborted call locks the fence that the next owner needs.
#[tokio::test]
async fn an_aborted_transaction_is_rolled_back_before_the_lease_is_released() {
    let world = world().await;
    let store = Arc::<MemoryStore>::default();
    let poller = poller_of(&world, store.clone(), "one");
    insert(&world, [(1, "first")].into_iter());
    poller.tick(&TickRequest::default()).await.result.unwrap();
    insert(&world, [(2, "second")].into_iter());
    let faults = world.server.faults();
    faults.arm_matching("UPDATE hw_t SET", 1, Fault::Stall(Duration::from_millis(100)));
    let stop = StopSignal::new();
    let request = TickRequest { stop: stop.child(), ..TickRequest::default() };
    let abort = async {
        while faults.armed() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.abort();
    };
    let (report, ()) = tokio::join!(poller.tick(&request), abort);
    assert!(matches!(report.result, Err(TickError::Aborted)), "{report:?}");
    let document = store.load(&StateKey::Document("orders".to_owned())).await.unwrap();
    let document: Json = serde_json::from_slice(&document.stored.unwrap().bytes).unwrap();
    assert!(document["lease"]["released_at"].is_string(), "{document}");
    let mut session = world.database.connect("Highwater").unwrap();
    session.run("SET LOCK_TIMEOUT 0", &[]);
    let replies = session.run(&format!("UPDATE {FENCE} SET token = token"), &[]);
    assert!(matches!(&replies[..], [Reply::Done(_)]), "{replies:?}");
    assert_eq!(copied(&world), [1]);
}

/// Returns the text between backquotes that starts with `beginning`.
fn printed<'a>(message: &'a str, beginning: &str) -> &'a str {
    let found = message.split('`').find(|text| text.starts_with(beginning));
    found.unwrap_or_else(|| panic!("no `{beginning}` in {message}"))
}

#[tokio::test]
async fn a_restored_older_document_continues_after_the_printed_command() {
    let world = world().await;
    let store = Arc::<MemoryStore>::default();
    let poller = poller_of(&world, store.clone(), "one");
    let key = StateKey::Document("orders".to_owned());
    insert(&world, [(1, "first")].into_iter());
    poller.tick(&TickRequest::default()).await.result.unwrap();
    let older = store.load(&key).await.unwrap().stored.unwrap().bytes;
    for id in 2..=9 {
        insert(&world, [(id, "more")].into_iter());
        poller.tick(&TickRequest::default()).await.result.unwrap();
    }
    // Like restoring an older version of a blob.
    let etag = store.load(&key).await.unwrap().stored.unwrap().etag;
    store.store(&key, older, Precondition::Matches(etag)).await.unwrap();
    insert(&world, [(10, "after")].into_iter());
    let mut message = String::new();
    let other = poller_of(&world, store.clone(), "two");
    // More ticks than grants since the copy: only the first acquires one, so none catches up with the fence.
    for number in 0..12 {
        let process = if number % 2 == 0 { &poller } else { &other };
        let report = process.tick(&TickRequest::default()).await;
        assert_eq!(outcome_row(&report.result).event, "fence_ahead");
        message = chain(&report.result.unwrap_err());
        assert_eq!(copied(&world), (1..=9).collect::<Vec<_>>());
    }
    let command = printed(&message, "highwater lease break ");
    let words: Vec<&str> = command.splitn(7, ' ').collect();
    let ["highwater", "lease", "break", "orders", "--above", fence, reason] = words[..] else {
        panic!("`{command}`")
    };
    assert_eq!(reason, "--reason \"state document is an older copy\"");
    // In a separate process; `tests/host/reset.rs` runs the command itself.
    let fence: Fence = fence.parse().unwrap();
    let operator = poller_of(&world, store.clone(), "operator");
    let present = operator.admin().present().await.unwrap();
    let ann = Operator { by: "ann", reason: "state document is an older copy" };
    assert!(operator.admin().raise_above(fence, &present, false, ann).await.unwrap().is_some());
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(copied(&world), (1..=10).collect::<Vec<_>>());
    insert(&world, [(11, "on")].into_iter());
    poller.tick(&TickRequest::default()).await.result.unwrap();
    assert_eq!(copied(&world), (1..=11).collect::<Vec<_>>());
}
