//! Ticks over a SQL Server whose connections break, stall, move and recover in random order: nothing is lost,
//! nothing skipped, nothing delivered twice, and the order is kept.
//!
//! Handler and store never fail here, so each version of a row must arrive exactly once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use highwater::config::{Relation, SqlConnection};
use highwater::cursor::CursorMode;
use highwater::event::ChangeEvent;
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::mssql::RetryTerms;
use highwater::policy::FailurePolicy;
use highwater::poller::{Poller, PollerParts, TickOutcome};
use highwater::source::mssql::{Mssql, SizeLimits, SourceSettings};
use highwater::state::MemoryStore;
use highwater::tick::TickRequest;
use highwater_devdb::{Database, Fault, LoginFault, Options, Server, SqlError};

use crate::any_server::say_embedded;
use crate::ticks::limits;

/// Every mode; a history's seed decides which one it uses.
const MODES: [CursorMode; 4] = [
    CursorMode::RowVersion,
    CursorMode::TimestampPk,
    CursorMode::IntegerPk,
    CursorMode::ChangeTracking,
];

/// The rows' positions in the source's order, with their ids and values, as they arrive.
type Arrived = Vec<((String, i64), i64)>;

#[derive(Debug, Default)]
struct Recorder(Mutex<Arrived>);

#[async_trait]
impl Handler for Recorder {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        self.0.lock().unwrap().extend(delivery.events.iter().map(arrival));
        Ok(())
    }
}

fn arrival(event: &ChangeEvent) -> ((String, i64), i64) {
    let json: serde_json::Value = serde_json::from_str(event.json.as_ref()).unwrap();
    let of = |column: &str| json["after"][column].as_i64().unwrap();
    // A row of the table's initial read comes after the changes up to its version.
    let place = event.cursor.value.rsplit('@').next().unwrap();
    // Numbers order as text if they are padded with leading blanks.
    let is_number = matches!(event.cursor.mode, CursorMode::IntegerPk | CursorMode::ChangeTracking);
    let place = if is_number { format!("{place:>20}") } else { place.to_owned() };
    ((place, of("id")), of("v"))
}

/// Chance that follows from a seed: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn size(&mut self, bound: u64) -> usize {
        usize::try_from(self.below(bound)).unwrap()
    }
}

/// Arms a fault for the next tick.
fn arm_random_fault(random: &mut Random, server: &Server) {
    let faults = server.faults();
    let error = |number, class| SqlError::new(number, class, "from the server");
    let reads = |fault| faults.arm_matching("SELECT TOP", 1, fault);
    let times = 1 + random.size(6);
    match random.below(16) {
        0 => reads(Fault::Error(error(1205, 13))),
        1 => reads(Fault::Error(error(1222, 16))),
        2 => reads(Fault::Error(error(40613, 20))),
        3 => reads(Fault::Error(error(40197, 17))),
        4 => reads(Fault::Error(error(10928, 16))),
        5 => reads(Fault::DropBeforeRun),
        6 => reads(Fault::DropBeforeAnswer),
        7 => reads(Fault::DropAfterRows(random.size(12))),
        8 => reads(Fault::DropAfterBytes(random.size(2_000))),
        9 => reads(Fault::PacketBytes(9 + random.size(500))),
        10 => reads(Fault::StallAfterRows(random.size(12), Duration::from_secs(60))),
        11 => faults.arm_login(times, LoginFault::Error(error(40613, 14))),
        12 => faults.arm_login(times, LoginFault::Error(error(4060, 11))),
        13 => faults.arm_login(times, LoginFault::Drop),
        14 => {
            let here = LoginFault::Redirect("127.0.0.1".to_owned(), server.port());
            faults.arm_login(times, here);
        }
        // The first request of any kind: the session's settings, the catalog, or a read.
        _ => faults.arm(1, Fault::DropAfterBytes(random.size(60))),
    }
}

/// A table that is written between ticks.
struct Table {
    database: Database,
    mode: CursorMode,
    rows: u64,
    /// Values so far; each is written once, at a distinct time.
    values: u32,
}

impl Table {
    fn write(&mut self, random: &mut Random) {
        for _ in 0..random.below(9) {
            self.pass();
            let changes = self.mode != CursorMode::IntegerPk && random.below(3) == 0;
            let (value, now) = (self.values, "SYSUTCDATETIME()");
            let sql = if self.rows > 0 && changes {
                let id = 1 + random.below(self.rows);
                format!("UPDATE dbo.t SET v = {value}, at = {now} WHERE id = {id}")
            } else {
                self.rows += 1;
                format!("INSERT INTO dbo.t (id, v, at) VALUES ({}, {value}, {now})", self.rows)
            };
            self.database.execute(&sql).unwrap();
        }
        self.pass();
    }

    /// Lets a millisecond pass.
    fn pass(&mut self) {
        self.values += 1;
        let (seconds, milliseconds) = (self.values / 1_000, self.values % 1_000);
        let now = format!("2026-01-01T10:00:{seconds:02}.{milliseconds:03}");
        self.database.set_now(&now).unwrap();
    }
}

fn source(server: &Server, mode: CursorMode, timeout_ms: u64) -> Mssql {
    let mut connection = SqlConnection::parse(&server.connection_string()).unwrap();
    connection.command_timeout = Duration::from_millis(timeout_ms);
    let cursor = match mode {
        CursorMode::RowVersion => Some("rv"),
        CursorMode::TimestampPk => Some("at"),
        CursorMode::IntegerPk => Some("id"),
        CursorMode::ChangeTracking => None,
    };
    let settings = SourceSettings {
        poller: "t".to_owned(),
        connection,
        relation: Relation::Table("dbo.t".to_owned()),
        mode: Some(mode),
        cursor_column: cursor.map(str::to_owned),
        key: vec!["id".to_owned()],
        columns: None,
        columns_excluded: Vec::new(),
        mask: highwater::source::mssql::Mask::default(),
        filter: None,
        filter_params: BTreeMap::new(),
        soft_delete: None,
        operations: None,
        settle: Duration::ZERO,
        clock: highwater::config::SourceClock::Utc,
        limits: SizeLimits::default(),
        on_schema_change: highwater::config::OnSchemaChange::Follow,
        partition: None,
    };
    let (time_max, pause_min) = (Duration::from_millis(60), Duration::from_millis(2));
    Mssql::new(settings).unwrap().with_retries(RetryTerms { time_max, pause_min })
}

fn poller(server: &Server, mode: CursorMode, handler: Arc<Recorder>) -> Poller {
    let second = Duration::from_secs(1);
    Poller::new(PollerParts {
        name: "t".to_owned(),
        source: Arc::new(source(server, mode, 300)),
        handler,
        store: Arc::new(MemoryStore::default()),
        instance: Arc::new(Instance::new("a")),
        terms: LeaseTerms::of(120 * second),
        limits: limits(5),
        policy: FailurePolicy::default(),
        metrics: Arc::new(Metrics::default()),
    })
}

/// Runs one history; returns the number of failed ticks.
async fn history(seed: u64) -> usize {
    let mut random = Random(seed);
    let mode = MODES[random.size(4)];
    let database = Database::in_memory().unwrap();
    let table = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, v int NOT NULL, \
                 at datetime2(3) NOT NULL, rv rowversion)";
    database.execute(table).unwrap();
    database.execute("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING").unwrap();
    let options = Options { tls: false, ..Options::default() };
    let server = Server::start(database.clone(), options).await.unwrap();
    let handler = Arc::new(Recorder::default());
    let poller = poller(&server, mode, Arc::clone(&handler));
    let mut table = Table { database, mode, rows: 0, values: 0 };
    let mut failed = 0;
    for _ in 0..12 {
        table.write(&mut random);
        for _ in 0..random.below(3) {
            arm_random_fault(&mut random, &server);
        }
        let report = poller.tick(&TickRequest::default()).await;
        failed += usize::from(report.result.is_err());
    }
    server.faults().clear();
    // A time that may have been rounded up is read a little later.
    table.database.set_now("2026-01-01T11:00:00").unwrap();
    // On a busy machine even a good response may come too late.
    let mut last = None;
    for _ in 0..50 {
        last = poller.tick(&TickRequest::default()).await.result.ok();
        if last == Some(TickOutcome::Idle) {
            break;
        }
    }
    let description = format!("seed {seed}, {mode}");
    assert_eq!(last, Some(TickOutcome::Idle), "{description}");

    let arrived = handler.0.lock().unwrap().clone();
    let in_order = arrived.is_sorted_by(|(before, _), (after, _)| before < after);
    assert!(in_order, "{description}: out of order, or twice: {arrived:?}");
    let values = |arrived: Arrived| -> BTreeMap<i64, i64> {
        arrived.into_iter().map(|((_, id), value)| (id, value)).collect()
    };
    let whole = source(&server, CursorMode::RowVersion, 30_000);
    let (truth, _) = crate::sql::events(&whole, None, 1_000).await;
    let truth = truth.iter().map(arrival).collect();
    assert_eq!(values(arrived), values(truth), "{description}: lost or skipped");
    failed
}

#[tokio::test]
async fn each_version_arrives_once_and_in_order_despite_connection_faults() {
    say_embedded("faults of its connections");
    let failed: usize = join_all((0..60).map(history)).await.into_iter().sum();
    // Otherwise the faults had no effect.
    assert!((20..600).contains(&failed), "{failed} of 720 ticks failed");
}
