//! Writers with overlapping transactions: rows that a poller must not lose.
//!
//! ```text
//! cargo writers
//! ```
//!
//! prints the rows that were lost, delivered twice, or delivered although they were rolled back, for each
//! mode with its bound and without. With `HIGHWATER_TEST_SQLSERVER` set it does so on that server, and with
//! `--include-ignored` also with all writers at once.

mod late;
mod modes;
mod schedule;
mod storm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::poller::{Limits, Poller, PollerParts};
use highwater::source::mssql::Mssql;
use highwater::state::MemoryStore;
use highwater::testing::limits;
use highwater::tick::TickRequest;

use self::modes::{AUDIT_AFTER, Mode};
use crate::any_server::{AnyServer, Session};

/// Every write of a row sets another `n`.
const TABLE: &str = "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON; \
                     CREATE TABLE dbo.writes (id int IDENTITY PRIMARY KEY, n int NOT NULL, \
                     at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(), rv rowversion NOT NULL); \
                     ALTER TABLE dbo.writes ENABLE CHANGE_TRACKING";

/// Rows of a page.
const PAGE: usize = 50;

/// Records the `n` of every row it receives, page by page.
#[derive(Debug, Default)]
struct Sink {
    pages: Mutex<Vec<Vec<i64>>>,
    events: Mutex<Vec<String>>,
}

impl Sink {
    /// Returns the id of every received event.
    fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }
}

#[async_trait]
impl Handler for Sink {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let n = |json: &str| {
            let event: serde_json::Value = serde_json::from_str(json).unwrap();
            event["after"]["n"].as_i64().unwrap()
        };
        let page = delivery.events.iter().map(|event| n(event.json.as_ref())).collect();
        self.pages.lock().unwrap().push(page);
        let ids = delivery.events.iter().map(|event| event.id.to_string());
        self.events.lock().unwrap().extend(ids);
        Ok(())
    }
}

/// A poller of the table, and its deliveries.
struct Polled {
    poller: Poller,
    sink: Arc<Sink>,
}

impl Polled {
    fn new(server: &AnyServer, mode: &Mode) -> Self {
        Self::on(Arc::new(MemoryStore::with_clock(server.clock())), server, mode)
    }

    /// Continues from `store`, like another process.
    fn on(store: Arc<MemoryStore>, server: &AnyServer, mode: &Mode) -> Self {
        let sink = Arc::new(Sink::default());
        let parts = parts((mode.source)(server), sink.clone(), PAGE);
        // Reread each time, so that the seed's clock is used.
        let limits = Limits { state_refresh: Duration::ZERO, ..parts.limits };
        let poller = Poller::new(PollerParts { store, limits, ..parts });
        let poller = if mode.audits { poller.with_audit_after(AUDIT_AFTER) } else { poller };
        Self { poller, sink }
    }

    async fn poll(&self) {
        let report = self.poller.tick(&TickRequest::default()).await;
        assert!(report.result.is_ok(), "{}", report.summary);
    }

    fn pages(&self) -> Vec<Vec<i64>> {
        self.sink.pages.lock().unwrap().clone()
    }

    fn delivered(&self) -> Vec<i64> {
        self.pages().concat()
    }
}

/// The committed rows.
#[derive(Debug, Default)]
struct Ledger {
    /// The last `n` of each row.
    rows: BTreeMap<i32, i64>,
    /// Every `n` that a committed transaction wrote.
    written: BTreeSet<i64>,
}

impl Ledger {
    fn commit(&mut self, writes: impl IntoIterator<Item = (i32, i64)>) {
        for (id, n) in writes {
            self.rows.insert(id, n);
            self.written.insert(n);
        }
    }

    fn judge(&self, delivered: &[i64]) -> Verdict {
        let distinct: BTreeSet<i64> = delivered.iter().copied().collect();
        Verdict {
            committed: self.rows.len(),
            delivered: delivered.len(),
            lost: self.rows.values().filter(|n| !distinct.contains(n)).count(),
            duplicate: delivered.len() - distinct.len(),
            phantom: distinct.difference(&self.written).count(),
        }
    }
}

/// Counts of the committed rows' outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verdict {
    /// Rows committed.
    committed: usize,
    /// Delivered row states.
    delivered: usize,
    /// Rows whose last state was never delivered.
    lost: usize,
    /// States that were delivered again.
    duplicate: usize,
    /// States that were delivered and never committed.
    phantom: usize,
}

/// Returns a poller that ticks as long as there are more rows.
pub(crate) fn poller(source: Mssql, handler: Arc<dyn Handler>, batch_rows_max: usize) -> Poller {
    Poller::new(parts(source, handler, batch_rows_max))
}

fn parts(source: Mssql, handler: Arc<dyn Handler>, batch_rows_max: usize) -> PollerParts {
    let second = Duration::from_secs(1);
    PollerParts {
        name: "orders".to_owned(),
        source: Arc::new(source),
        handler,
        store: Arc::new(MemoryStore::default()),
        instance: Arc::new(Instance::new("a")),
        terms: LeaseTerms::of(120 * second),
        limits: Limits {
            batch_rows_max,
            batch_bytes_max: 4 << 20,
            retry_delay_min: Duration::ZERO,
            retry_delay_max: Duration::ZERO,
            retry_after_max: Duration::ZERO,
            ..limits()
        },
        policy: highwater::policy::FailurePolicy::default(),
        metrics: Arc::new(Metrics::default()),
    }
}

/// Inserts rows; returns the key and `n` of each.
async fn insert(session: &mut Session, values: &[i64]) -> Vec<(i32, i64)> {
    let tuples: Vec<String> = values.iter().map(|n| format!("({n})")).collect();
    let sql = format!(
        "INSERT INTO dbo.writes (n) OUTPUT INSERTED.id, INSERTED.n VALUES {}",
        tuples.join(", ")
    );
    let read = |row: &tiberius::Row| (row.get(0).unwrap(), row.get::<i32, _>(1).unwrap().into());
    session.run(&sql).await.iter().map(read).collect()
}

/// Changes a row.
async fn update(session: &mut Session, id: i32, n: i64) {
    let sql = format!("UPDATE dbo.writes SET n = {n}, at = SYSUTCDATETIME() WHERE id = {id}");
    session.run(&sql).await;
}
