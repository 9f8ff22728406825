//! The table that is polled, and the application that writes it all along.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use highwater::devdb::{Database, Engine as _, Reply, Session, SqlError, Value};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use crate::ledger::RowState;
use crate::rng::Rng;

const TABLE: &str = "CREATE TABLE dbo.orders \
    (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, version rowversion NOT NULL)";

pub(crate) fn create() -> Database {
    let database = Database::in_memory().unwrap();
    database.execute(TABLE).unwrap();
    database
}

/// Returns the state of every row.
pub(crate) fn states(database: &Database) -> Vec<RowState> {
    let mut session = database.connect("Highwater").unwrap();
    let replies = session.run("SELECT id, version FROM dbo.orders", &[]);
    let Some(Reply::Rows { rows, .. }) = replies.into_iter().next() else { panic!("no rows") };
    let state = |row: Vec<Value>| {
        let [Value::Int(key), Value::Bytes(version)] = &row[..] else { panic!("{row:?}") };
        let version = u64::from_be_bytes(version[..].try_into().unwrap());
        RowState { key: *key, version }
    };
    rows.into_iter().map(state).collect()
}

/// Writes transaction after transaction until it is told to stop.
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
        // On a thread of its own, since a session blocks.
        let task = spawn_blocking(move || runtime.block_on(write(&database, rng, &until, &count)));
        Self { stop, rows, task }
    }

    /// Ends it after the transaction in hand, and returns how many rows were written in all.
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
    let mut ids = 0;
    while !stop.load(Ordering::Relaxed) {
        let (inserts, changes) = (rng.between(0..=3), rng.between(0..=3));
        session.begin()?;
        let mut rows = 0;
        for id in ids + 1..=ids + inserts {
            let sql = format!("INSERT INTO dbo.orders (id, item) VALUES ({id}, N'item {id}')");
            rows += run(&mut *session, &sql)?;
        }
        // Open for a while with what it has written, so that readers meet it.
        sleep(rng.millis(0..=20)).await;
        for _ in 0..changes {
            // Most changes meet rows that have not been delivered yet.
            let id = rng.between(ids.saturating_sub(200) + 1..=ids + 1);
            let sql = format!("UPDATE dbo.orders SET item = N'again {id}' WHERE id = {id}");
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
        Some(Reply::Affected(rows)) => Ok(rows),
        Some(Reply::Error(error)) => Err(error),
        reply => panic!("{sql}: {reply:?}"),
    }
}
