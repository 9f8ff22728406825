//! The SQL store over the real driver and TLS, against the development server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use highwater::config::SqlConnection;
use highwater::error::chain;
use highwater::state::sql::{create_table, table_name};
use highwater::state::{
    ETag, Precondition, SqlStore, SqlStoreSettings, StateKey, StateStore, StoreError, conformance,
};
use highwater_devdb::{Database, Fault, Options, Server, SqlError};

const TABLE: &str = "dbo.highwater_state";

pub(crate) fn orders() -> StateKey {
    StateKey::Document("orders".to_owned())
}

/// A server with TLS over a database that has the state table.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) database: Database,
}

impl World {
    pub(crate) async fn start() -> Self {
        let world = Self::without_table().await;
        world.create(TABLE);
        world
    }

    pub(crate) async fn without_table() -> Self {
        let database = Database::in_memory().unwrap();
        let server = Server::start(database.clone(), Options::default()).await.unwrap();
        Self { server, database }
    }

    fn create(&self, table: &str) {
        self.database.execute(&create_table(&table_name(table).unwrap())).unwrap();
    }

    pub(crate) fn settings(&self, table: &str, app: &str) -> SqlStoreSettings {
        SqlStoreSettings {
            connection: SqlConnection::parse(&self.server.connection_string()).unwrap(),
            table: table.to_owned(),
            app: app.to_owned(),
            request_timeout: Duration::from_secs(20),
        }
    }

    pub(crate) fn store(&self) -> SqlStore {
        SqlStore::new(self.settings(TABLE, "app")).unwrap()
    }

    /// A store that waits at most a second for a response.
    pub(crate) fn impatient_store(&self) -> SqlStore {
        let request_timeout = Duration::from_secs(1);
        SqlStore::new(SqlStoreSettings { request_timeout, ..self.settings(TABLE, "app") }).unwrap()
    }
}

async fn create(store: &SqlStore, key: &StateKey, text: &str) -> Result<ETag, StoreError> {
    let bytes = text.as_bytes().to_vec();
    store.store(key, bytes, Precondition::Absent).await.map(|written| written.etag)
}

async fn replace(store: &SqlStore, text: &str, etag: &ETag) -> Result<ETag, StoreError> {
    let precondition = Precondition::Matches(etag.clone());
    let written = store.store(&orders(), text.as_bytes().to_vec(), precondition).await?;
    Ok(written.etag)
}

async fn content(store: &SqlStore, key: &StateKey) -> Option<String> {
    let stored = store.load(key).await.unwrap().stored?;
    Some(String::from_utf8(stored.bytes).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let world = World::without_table().await;
    let made = AtomicU32::new(0);
    let new_store = || {
        let table = format!("ops.[state {}]", made.fetch_add(1, Ordering::Relaxed));
        world.create(&table);
        let store = SqlStore::new(world.settings(&table, "app")).unwrap();
        async move { store }
    };
    Box::pin(conformance::run(&new_store)).await;
}

#[tokio::test]
async fn a_poller_has_one_row_for_its_document_and_one_for_its_marker() {
    let world = World::start().await;
    let store = world.store();
    let marker = StateKey::Marker("orders".to_owned());
    let etag = create(&store, &orders(), "1").await.unwrap();
    create(&store, &marker, "{}").await.unwrap();
    replace(&store, "2", &etag).await.unwrap();
    let count = |filter: &str| {
        let rows = format!("SELECT name FROM dbo.highwater_state WHERE app = N'app'{filter}");
        world.database.execute(&rows).unwrap()
    };
    assert_eq!(count(""), 2, "however often they are written");
    for key in [orders(), marker] {
        assert_eq!(count(&format!(" AND name = N'{}'", key.path())), 1, "{key}");
    }
}

#[tokio::test]
async fn applications_sharing_a_table_are_isolated() {
    let world = World::start().await;
    let [shop, capital, ops] =
        ["shop", "Shop", "ops"].map(|app| SqlStore::new(world.settings(TABLE, app)).unwrap());
    for (store, text) in [(&shop, "1"), (&capital, "2"), (&ops, "3")] {
        create(store, &orders(), text).await.unwrap();
    }
    for (store, text) in [(&shop, "1"), (&capital, "2"), (&ops, "3")] {
        assert_eq!(content(store, &orders()).await.as_deref(), Some(text));
    }
}

#[tokio::test]
async fn only_the_database_clock_is_used() {
    let world = World::start().await;
    let store = world.store();
    world.database.set_now("2001-02-03T04:05:06.1234567").unwrap();
    let stamp = time::macros::datetime!(2001-02-03 04:05:06.123_456_7 UTC);
    assert_eq!(store.load(&orders()).await.unwrap().date, stamp, "also if nothing is stored");
    let written = store.store(&orders(), b"1".to_vec(), Precondition::Absent).await.unwrap();
    assert_eq!(written.date, stamp);
    world.database.set_now("2001-02-03T04:06:00").unwrap();
    let loaded = store.load(&orders()).await.unwrap();
    assert_eq!(loaded.date, time::macros::datetime!(2001-02-03 04:06:00 UTC));
    assert_eq!(loaded.stored.unwrap().last_modified, stamp);
}

#[tokio::test]
async fn a_manual_write_makes_every_etag_stale() {
    let world = World::start().await;
    let store = world.store();
    let etag = create(&store, &orders(), "1").await.unwrap();
    world.database.execute("UPDATE dbo.highwater_state SET content = 0x32").unwrap();
    let late = replace(&store, "3", &etag).await.unwrap_err();
    assert!(matches!(late, StoreError::Conflict { .. }), "{late}");
    assert_eq!(content(&store, &orders()).await.as_deref(), Some("2"));
}

/// Versions are counted from the backup on, so one may be reused.
#[tokio::test]
async fn an_etag_from_before_a_restore_is_stale() {
    let world = World::start().await;
    let store = world.store();
    let etag = create(&store, &orders(), "1").await.unwrap();
    let (version, _) = etag.0.split_once('@').unwrap();
    let other_time = ETag(format!("{version}@2001-02-03T04:05:06.0000000"));
    let late = replace(&store, "2", &other_time).await.unwrap_err();
    assert!(matches!(late, StoreError::Conflict { .. }), "{late}");
    replace(&store, "2", &etag).await.unwrap();
}

#[tokio::test]
async fn a_large_document_is_stored_and_one_too_large_is_rejected() {
    let world = World::start().await;
    let store = world.store();
    let mut etag = create(&store, &orders(), "").await.unwrap();
    for length in [1, 7_999, 8_000, 8_001, 4 << 20, 0] {
        let text = "ä".repeat(length / 2) + &"x".repeat(length % 2);
        etag = replace(&store, &text, &etag).await.unwrap();
        assert!(content(&store, &orders()).await == Some(text), "{length} bytes");
    }
    let error = replace(&store, &"x".repeat((4 << 20) + 1), &etag).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let long = StateKey::Document("o".repeat(200));
    for error in
        [store.load(&long).await.unwrap_err(), create(&store, &long, "").await.unwrap_err()]
    {
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    }
}

#[tokio::test]
async fn each_operation_is_one_request_on_a_reused_connection() {
    let world = World::start().await;
    let store = world.store();
    store.load(&orders()).await.unwrap();
    let faults = world.server.faults();
    let (requests, logins) = (faults.statements(), faults.logins());
    let etag = create(&store, &orders(), "1").await.unwrap();
    replace(&store, "2", &etag).await.unwrap();
    replace(&store, "3", &etag).await.unwrap_err();
    create(&store, &orders(), "4").await.unwrap_err();
    store.load(&orders()).await.unwrap();
    assert_eq!((faults.statements(), faults.logins()), (requests + 5, logins));
}

#[tokio::test]
async fn errors_an_operator_can_fix_are_named() {
    let world = World::start().await;
    let login = |from: &str, to: &str| {
        let text = world.server.connection_string().replace(from, to);
        let connection = SqlConnection::parse(&text).unwrap();
        SqlStoreSettings { connection, ..world.settings(TABLE, "app") }
    };
    world.database.execute("CREATE TABLE dbo.other (app nvarchar(9), name int)").unwrap();
    for (settings, expected) in [
        (
            world.settings("ops.nothing", "app"),
            "error 208: Invalid object name 'ops.nothing': the table `ops.nothing` is not in this \
             database, or the user has no permission on it: run the \
             output of `highwater ddl state --table ops.nothing`",
        ),
        (world.settings("other", "app"), "error 207: Invalid column name 'content': the table"),
        (login("Password=", "Password=not-"), "error 18456 (login refused): check user"),
        (login("TrustServerCertificate=true", ""), "`ServerCertificate`, or the certificate's"),
    ] {
        let store = SqlStore::new(settings).unwrap();
        let errors = [
            store.load(&orders()).await.unwrap_err(),
            create(&store, &orders(), "1").await.unwrap_err(),
        ];
        for error in errors {
            let text = chain(&error);
            assert!(text.contains(expected), "`{expected}` not in `{text}`");
            assert!(matches!(error, StoreError::Refused { .. }), "{text}");
        }
    }
}

/// Correct columns except for one; one too many; or no key.
#[tokio::test]
async fn a_table_with_other_columns_is_rejected_by_name() {
    let good = create_table(&table_name("other").unwrap());
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace(from, to)
    };
    for (what, definition) in [
        ("no rowversion", changed("[etag] rowversion NOT NULL", "[etag] varbinary(8) NULL")),
        ("a number as tag", changed("[etag] rowversion", "[etag] bigint")),
        ("a coarse time", changed("datetime2(7)", "datetime")),
        ("text as content", changed("[content] varbinary(max)", "[content] nvarchar(max)")),
        ("one more column", changed("[content] var", "[more] int NOT NULL, [content] var")),
    ] {
        let world = World::without_table().await;
        world.database.execute(&definition).unwrap();
        let store = SqlStore::new(world.settings("other", "app")).unwrap();
        let mut text = String::new();
        for result in [
            create(&store, &orders(), "1").await.map(|_| ()),
            store.load(&orders()).await.map(|_| ()),
        ] {
            let Err(error) = result else { continue };
            assert!(matches!(error, StoreError::Refused { .. }), "{what}: {error}");
            text += &chain(&error);
        }
        let expected = "the table `dbo.other` does not match the output of `highwater ddl state --table dbo.other`";
        assert!(text.contains(expected), "{what}: `{text}`");
    }
}

#[tokio::test]
async fn a_table_without_its_key_is_rejected_once_it_has_a_duplicate() {
    let world = World::without_table().await;
    let definition = create_table(&table_name("other").unwrap());
    let (columns, _) = definition.split_once(",\n    PRIMARY KEY").unwrap();
    world.database.execute(&format!("{columns}\n);")).unwrap();
    let store = SqlStore::new(world.settings("other", "app")).unwrap();
    for text in ["1", "2"] {
        create(&store, &orders(), text).await.unwrap();
    }
    let error = store.load(&orders()).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let expected = "2 rows: the table `dbo.other` does not match the output of `highwater ddl state --table dbo.other`";
    assert!(error.to_string().contains(expected), "{error}");
}

#[tokio::test]
async fn a_missing_permission_names_the_grant() {
    let world = World::start().await;
    let store = world.store();
    let denied = "The UPDATE permission was denied on the object 'highwater_state'.";
    let etag = create(&store, &orders(), "1").await.unwrap();
    let fault = Fault::Error(SqlError::new(229, 14, denied));
    world.server.faults().arm_matching("UPDATE", 1, fault);
    let error = replace(&store, "2", &etag).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let text = error.to_string();
    let expected = "grant SELECT, INSERT, UPDATE and DELETE on `dbo.highwater_state`";
    assert!(text.contains(expected), "{text}");
}

/// The possible outcomes of a write, and whether the row was written by then.
#[tokio::test]
async fn an_uncertain_outcome_is_reported_as_unknown() {
    let world = World::start().await;
    let faults = world.server.faults();
    let error = |number, severity| Fault::Error(SqlError::new(number, severity, "no"));
    for (fault, kind, written) in [
        (Fault::DropBeforeRun, "unknown", false),
        (Fault::DropBeforeAnswer, "unknown", true),
        (Fault::DropAfterBytes(40), "unknown", true),
        (Fault::DropAfterRows(1), "unknown", true),
        (Fault::Stall(Duration::from_secs(2)), "unknown", true),
        (error(1205, 13), "unreachable", false),
        (error(1222, 16), "unreachable", false),
        (error(40197, 17), "unknown", false),
    ] {
        for statement in ["INSERT", "UPDATE"] {
            world.database.execute("DELETE FROM dbo.highwater_state").unwrap();
            let store = world.impatient_store();
            faults.arm_matching("INSERT", u64::from(statement == "INSERT"), fault.clone());
            let result = if statement == "INSERT" {
                create(&store, &orders(), "new").await
            } else {
                let etag = create(&store, &orders(), "old").await.unwrap();
                faults.arm_matching("UPDATE", 1, fault.clone());
                replace(&store, "new", &etag).await
            };
            let outcome = match result.unwrap_err() {
                StoreError::Unknown { .. } => "unknown",
                StoreError::Unreachable { .. } => "unreachable",
                error @ (StoreError::Conflict { .. } | StoreError::Refused { .. }) => {
                    panic!("{fault:?}: {error}")
                }
            };
            assert_eq!(outcome, kind, "{statement}: {fault:?}");
            if matches!(fault, Fault::Stall(_)) {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            let found = content(&world.store(), &orders()).await;
            assert_eq!(found.as_deref() == Some("new"), written, "{statement}: {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_missing_server_is_unreachable() {
    let world = World::start().await;
    let mut settings = world.settings(TABLE, "app");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    settings.connection.port = listener.local_addr().unwrap().port();
    drop(listener);
    let store = SqlStore::new(settings).unwrap();
    let error = create(&store, &orders(), "1").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_read_succeeds_after_its_connection_broke_while_idle() {
    let world = World::start().await;
    let store = world.store();
    store.load(&orders()).await.unwrap();
    world.server.faults().arm_matching("SELECT s.", 1, Fault::DropBeforeRun);
    store.load(&orders()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_request_blocks_no_other() {
    let world = World::start().await;
    let store = Arc::new(world.store());
    world.server.faults().arm_matching("SELECT s.", 1, Fault::Stall(Duration::from_secs(5)));
    let hanging = Arc::clone(&store);
    let hanging = tokio::spawn(async move { hanging.load(&orders()).await });
    while world.server.faults().statements() < 2 {
        tokio::task::yield_now().await;
    }
    let key = orders();
    let load = tokio::time::timeout(Duration::from_secs(3), store.load(&key));
    load.await.expect("another connection answers").unwrap();
    hanging.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_connections_all_complete() {
    let world = World::start().await;
    let store = Arc::new(world.store());
    let mut loads = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let store = Arc::clone(&store);
        loads.spawn(async move { store.load(&orders()).await.unwrap() });
    }
    loads.join_all().await;
    assert!(world.server.faults().logins() <= 8, "{}", world.server.faults().logins());
}
