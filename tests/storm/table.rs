//! The polled table, and the application that writes to it throughout.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use highwater::config::{FENCE_TABLE_DEFAULT, LEDGER_TABLE_DEFAULT};
use highwater::handler::sql::{create_fence, create_ledger, table_name};
use highwater_devdb::{Database, Engine as _, Reply, Session, SqlError, Value};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use crate::ledger::{RowState, token_of};
use crate::rng::Rng;

const TABLE: &str = "CREATE TABLE dbo.orders \
    (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, version rowversion NOT NULL)";

/// The target of the handler `sql`, and where each write to it is recorded.
const COPIES: &str = "CREATE TABLE dbo.copies \
    (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, version binary(8) NOT NULL); \
    CREATE TABLE dbo.applied (id int NOT NULL, item nvarchar(50) NULL, version binary(8) NOT NULL)";

pub(crate) fn create() -> Database {
    let database = Database::in_memory().unwrap();
    database.execute(TABLE).unwrap();
    database.execute(COPIES).unwrap();
    database.note_writes("dbo.copies", "dbo.applied", &["id", "item", "version"]).unwrap();
    let named = |name| table_name("name", name).unwrap();
    database.execute(&create_fence(&named(FENCE_TABLE_DEFAULT))).unwrap();
    database.execute(&create_ledger(&named(LEDGER_TABLE_DEFAULT))).unwrap();
    database
}

/// The result of the handler `sql`.
#[derive(Debug)]
pub(crate) struct Copied {
    /// Rows that differ between source and target or are missing in one of them.
    pub(crate) unlike: Vec<String>,
    /// Row states that were written to the target.
    pub(crate) applied: usize,
    /// Those of them that were written more than once.
    pub(crate) again: Vec<Vec<Value>>,
    /// Events in its ledger.
    pub(crate) noted: usize,
}

/// Compares source and target.
pub(crate) fn copied(database: &Database) -> Copied {
    let rows = |table: &str, columns: &str| {
        let mut session = database.connect("Highwater").unwrap();
        let replies = session.run(&format!("SELECT {columns} FROM {table}"), &[]);
        let Some(Reply::Rows { rows, .. }) = replies.into_iter().next() else { panic!("no rows") };
        rows
    };
    let texts = |table: &str| -> BTreeSet<String> {
        rows(table, "id, item, version").iter().map(|row| format!("{row:?}")).collect()
    };
    let (source, target) = (texts("dbo.orders"), texts("dbo.copies"));
    let mut writes: BTreeMap<String, Vec<Vec<Value>>> = BTreeMap::new();
    for row in rows("dbo.applied", "id, item, version") {
        writes.entry(format!("{row:?}")).or_default().push(row);
    }
    let again = writes.values().filter(|times| times.len() > 1).map(|times| times[0].clone());
    Copied {
        unlike: source.symmetric_difference(&target).cloned().collect(),
        applied: writes.len(),
        again: again.collect(),
        noted: rows(LEDGER_TABLE_DEFAULT, "event_id").len(),
    }
}

/// Returns the state of every row.
pub(crate) fn states(database: &Database) -> Vec<RowState> {
    let mut session = database.connect("Highwater").unwrap();
    let replies = session.run("SELECT id, version, item FROM dbo.orders", &[]);
    let Some(Reply::Rows { rows, .. }) = replies.into_iter().next() else { panic!("no rows") };
    let state = |row: Vec<Value>| {
        let [Value::Int(key), Value::Bytes(version), Value::Text(item)] = &row[..] else {
            panic!("{row:?}")
        };
        let version = u64::from_be_bytes(version[..].try_into().unwrap());
        RowState { key: *key, version, token: token_of(item) }
    };
    rows.into_iter().map(state).collect()
}

/// Writes one transaction after another until stopped.
#[derive(Debug)]
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    rows: Arc<AtomicU64>,
    task: JoinHandle<Result<(), SqlError>>,
}

impl Writer {
    pub(crate) fn start(database: &Database, rng: Rng) -> Self {
        let (stop, rows) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (database, runtime) = (database.clone(), Handle::current());
        let (until, count) = (Arc::clone(&stop), Arc::clone(&rows));
        // On its own thread, since a session blocks.
        let task = spawn_blocking(move || runtime.block_on(write(&database, rng, &until, &count)));
        Self { stop, rows, task }
    }

    /// Stops it after the current transaction, and returns the total number of rows written.
    pub(crate) async fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        (&mut self.task).await.unwrap().unwrap();
        self.rows.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The runtime waits for the thread.
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn write(
    database: &Database,
    mut rng: Rng,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<(), SqlError> {
    let mut session = database.connect("Highwater")?;
    let (mut ids, mut token) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let (inserts, changes) = (rng.between(0..=3), rng.between(0..=3));
        session.begin()?;
        let mut rows = 0;
        for id in ids + 1..=ids + inserts {
            token += 1;
            let sql = format!("INSERT INTO dbo.orders (id, item) VALUES ({id}, N'new {token}')");
            rows += run(&mut *session, &sql)?;
        }
        // Kept open for a while, so that readers meet it.
        sleep(rng.millis(0..=20)).await;
        for _ in 0..changes {
            // Most changes hit rows that have not been delivered yet.
            let id = rng.between(ids.saturating_sub(200) + 1..=ids + 1);
            token += 1;
            let sql = format!("UPDATE dbo.orders SET item = N'again {token}' WHERE id = {id}");
            rows += run(&mut *session, &sql)?;
        }
        if rng.percent(5) {
            session.rollback()?;
        } else {
            session.commit()?;
            ids += inserts;
            count.fetch_add(rows, Ordering::Relaxed);
        }
        sleep(rng.millis(60..=140)).await;
    }
    Ok(())
}

fn run(session: &mut dyn Session, sql: &str) -> Result<u64, SqlError> {
    match session.run(sql, &[]).into_iter().next() {
        Some(Reply::Done(completion)) => Ok(completion.written()),
        Some(Reply::Error(error)) => Err(error),
        reply => panic!("{sql}: {reply:?}"),
    }
}
