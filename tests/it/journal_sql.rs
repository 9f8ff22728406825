//! The journal in a table, over the real driver and TLS, against the development server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater::journal::sql::create_table;
use highwater::journal::{Append, Appended, Appender, JournalStore, Part, SqlJournal, conformance};
use highwater::state::sql::table_name;
use highwater::state::{SqlStore, StateStore as _, StoreError};
use highwater_devdb::{Fault, SqlError};
use time::macros::date;

use crate::state_sql::World;

const STATE_TABLE: &str = "dbo.highwater_state";
const TABLE: &str = "dbo.highwater_journal";

fn create(world: &World, table: &str) {
    world.database.execute(&create_table(&table_name(table).unwrap())).unwrap();
}

fn journal_of(world: &World, table: &str, app: &str) -> SqlJournal {
    let store = SqlStore::new(world.settings(STATE_TABLE, app)).unwrap();
    SqlJournal::alongside(Arc::new(store), table).unwrap()
}

async fn world() -> World {
    let world = World::start().await;
    create(&world, TABLE);
    world
}

fn part() -> Part {
    Part::of_day("orders", date!(2026 - 04 - 07))
}

#[tokio::test(flavor = "multi_thread")]
async fn it_conforms() {
    let world = World::without_table().await;
    let made = AtomicU32::new(0);
    conformance::run(&|| {
        let table = format!("ops.[journal {}]", made.fetch_add(1, Ordering::Relaxed));
        create(&world, &table);
        let journal = journal_of(&world, &table, "app");
        async move { journal }
    })
    .await;
}

#[tokio::test]
async fn applications_sharing_a_table_are_isolated() {
    let world = world().await;
    let [shop, capital] = ["shop", "Shop"].map(|app| journal_of(&world, TABLE, app));
    shop.append(&part(), 0, b"1\n".to_vec()).await.unwrap();
    assert_eq!(capital.list("orders").await.unwrap(), []);
    capital.append(&part(), 0, b"2\n".to_vec()).await.unwrap();
    assert_eq!(shop.read(&part(), 0).await.unwrap(), b"1\n");
    capital.remove(&part(), None).await.unwrap();
    assert_eq!(shop.list("orders").await.unwrap(), [part()]);
}

#[tokio::test]
async fn lines_are_stored_once_even_if_a_response_is_lost() {
    let error = |number, severity| Fault::Error(SqlError::new(number, severity, "no"));
    let faults = [
        Fault::DropBeforeRun,
        Fault::DropBeforeAnswer,
        Fault::DropAfterBytes(40),
        error(1205, 13),
        error(40197, 17),
    ];
    for fault in faults {
        let world = world().await;
        let store = Arc::new(journal_of(&world, TABLE, "app"));
        let mut appender = Appender::new(store.clone(), "orders", None);
        let append = |text: &str| Append { day: part().day, bytes: text.into(), entries: 1 };
        appender.append(&append("first\n")).await.unwrap();
        world.server.faults().arm_matching("INSERT", 1, fault.clone());
        appender.append(&append("second\n")).await.unwrap();
        appender.append(&append("third\n")).await.unwrap();
        let lines = store.read(&part(), 0).await.unwrap();
        assert_eq!(lines, b"first\nsecond\nthird\n", "{fault:?}");
    }
}

#[tokio::test]
async fn old_days_are_dropped() {
    let world = world().await;
    let store = Arc::new(journal_of(&world, TABLE, "app"));
    let days = [date!(2026 - 04 - 01), date!(2026 - 04 - 06), date!(2026 - 04 - 07)];
    for day in days {
        let mut appender =
            Appender::new(store.clone(), "orders", Some(Duration::from_secs(2 * 24 * 60 * 60)));
        appender.append(&Append { day, bytes: b"x\n".to_vec(), entries: 1 }).await.unwrap();
    }
    let left = store.list("orders").await.unwrap();
    assert_eq!(left.iter().map(|part| part.day).collect::<Vec<_>>(), days[1..]);
    assert_eq!(store.length(&part()).await.unwrap(), 2);
}

#[tokio::test]
async fn a_missing_or_foreign_table_is_an_error_with_a_fix() {
    let world = World::start().await;
    for (table, expected) in [
        (TABLE, "run the output of `highwater ddl journal --table dbo.highwater_journal`"),
        (
            STATE_TABLE,
            "does not match the output of `highwater ddl journal --table dbo.highwater_state`",
        ),
    ] {
        let store = SqlStore::new(world.settings(STATE_TABLE, "app")).unwrap();
        let state = Arc::new(store);
        let journal = SqlJournal::alongside(state.clone(), table).unwrap();
        for result in [
            journal.append(&part(), 0, b"{}\n".to_vec()).await.map(|_: Appended| ()),
            journal.read(&part(), 0).await.map(|_| ()),
            journal.list("orders").await.map(|_| ()),
            journal.remove(&part(), None).await,
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(state.list().await.unwrap(), [], "the state table is as usable as before");
    }
}
