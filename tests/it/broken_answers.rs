//! Responses that end early, stall or are cut into wrong packets. A tick either fails or is complete, and a
//! later one delivers the rest, each row once and in order. In every mode responses are cut at every byte,
//! from the greeting to the last row of a page; over several pages they are cut at the edges of each packet
//! and at every 31st byte. In every mode they also stall, have wrong lengths and are replaced by errors.

mod faulty_proxy;

use std::sync::{Arc, Once};
use std::time::Duration;

use highwater::config::SqlConnection;
use highwater::cursor::CursorMode;
use highwater::poller::Poller;
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::testing::RecordingHandler;
use highwater::tick::TickRequest;
use highwater_devdb::{Database, Fault, Options, Server, SqlError};

use self::faulty_proxy::{FaultyProxy, Harm};
use crate::any_server::say_embedded;
use crate::sql::settings;
use crate::writers::poller;

const ROWS: i64 = 5;
/// So that a tick makes three fetches on one connection.
const PAGE: usize = 2;
/// Rows that need only one fetch, for tests that run a poller per byte of the responses.
const ROWS_FEW: i64 = 2;
/// Ticks after the broken one; more than one for a machine so busy that timeouts expire.
const TICKS_MAX: usize = 20;

/// Every mode.
const MODES: [CursorMode; 4] = [
    CursorMode::RowVersion,
    CursorMode::TimestampPk,
    CursorMode::IntegerPk,
    CursorMode::ChangeTracking,
];

struct Setup {
    server: Server,
    mode: CursorMode,
    rows: i64,
}

impl Setup {
    async fn new(tls: bool, mode: CursorMode) -> Self {
        let columns = "name nvarchar(20) DEFAULT N'a name', price decimal(9, 2), \
                       at datetime2(3) NOT NULL DEFAULT '2026-01-01', rv rowversion NOT NULL";
        Self::of(tls, mode, columns, ROWS).await
    }

    /// The shortest responses that contain every part of the mode's responses.
    async fn short(mode: CursorMode) -> Self {
        let column = match mode {
            CursorMode::RowVersion => "rv rowversion NOT NULL",
            CursorMode::TimestampPk => "at datetime2(3) NOT NULL DEFAULT '2026-01-01'",
            CursorMode::IntegerPk | CursorMode::ChangeTracking => "name nvarchar(9) DEFAULT N'é'",
        };
        Self::of(false, mode, column, ROWS_FEW).await
    }

    async fn of(tls: bool, mode: CursorMode, columns: &str, rows: i64) -> Self {
        static SAID: Once = Once::new();
        SAID.call_once(|| say_embedded("rows that are there before, and a port on this machine"));
        let database = Database::in_memory().unwrap();
        let table = format!("CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, {columns})");
        database.execute(&table).unwrap();
        database.execute("ALTER TABLE dbo.t ENABLE CHANGE_TRACKING").unwrap();
        for id in 1..=rows {
            database.execute(&format!("INSERT INTO dbo.t (id) VALUES ({id})")).unwrap();
        }
        let options = Options { tls, ..Options::default() };
        Self { server: Server::start(database, options).await.unwrap(), mode, rows }
    }

    /// A poller whose first connection is broken.
    async fn poller(&self, harm: Harm) -> Case {
        let proxy = FaultyProxy::start(self.server.port(), harm).await;
        let connection = SqlConnection::parse(&self.server.connection_string()).unwrap();
        let connection = SqlConnection {
            port: proxy.port(),
            connect_timeout: if harm.hangs() { SHORT } else { LONG },
            command_timeout: if harm.hangs() { SHORT } else { LONG },
            ..connection
        };
        let cursor = match self.mode {
            CursorMode::RowVersion => "rv",
            CursorMode::TimestampPk => "at",
            CursorMode::IntegerPk | CursorMode::ChangeTracking => "id",
        };
        let source = settings(connection, "t", self.mode, cursor);
        let source = SourceSettings { settle: Duration::ZERO, ..source };
        let handler = Arc::new(RecordingHandler::default());
        let poller = poller(Mssql::new(source).unwrap(), handler.clone(), PAGE);
        Case { harm, proxy, handler, poller, rows: self.rows }
    }
}

/// Pollers that hang at the same time; more would wait for each other.
const AT_ONCE: usize = 8;
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

struct Case {
    harm: Harm,
    proxy: FaultyProxy,
    handler: Arc<RecordingHandler>,
    poller: Poller,
    rows: i64,
}

impl Case {
    /// Ticks until all rows have arrived.
    async fn run(&self) {
        let first = self.poller.tick(&TickRequest::default()).await;
        let failed = first.result.is_err();
        for _ in 0..TICKS_MAX {
            let ids = self.handler.ids();
            let begun: Vec<i64> = (1..=self.rows).take(ids.len()).collect();
            assert_eq!(ids, begun, "{:?}: {}", self.harm, first.summary);
            if ids.last() == Some(&self.rows) {
                return;
            }
            assert!(failed, "{:?}: a tick that was not whole succeeded", self.harm);
            let next = self.poller.tick(&TickRequest::default()).await;
            assert!(next.result.is_ok() || self.harm.hangs(), "{:?}: {}", self.harm, next.summary);
        }
        let failed = self.poller.tick(&TickRequest::default()).await.summary;
        panic!("{:?}: only {:?} came: {failed}", self.harm, self.handler.ids());
    }
}

/// The number of bytes that the server sends on one undisturbed connection.
async fn response_bytes(setup: &Setup) -> usize {
    let case = setup.poller(Harm::None).await;
    case.run().await;
    case.proxy.server_bytes().len()
}

/// Cuts a connection after each of `lengths`.
async fn cut(setup: &Setup, lengths: impl IntoIterator<Item = usize>) {
    for length in lengths {
        let case = setup.poller(Harm::Cut(length)).await;
        case.run().await;
        assert!(case.proxy.connections() > 1, "{}: {:?}", setup.mode, case.harm);
    }
}

/// Cuts a connection after each byte that the server sends on it.
async fn cut_anywhere(mode: CursorMode) {
    let setup = Setup::short(mode).await;
    let response_bytes = response_bytes(&setup).await;
    assert!(response_bytes > 1_000, "{mode}: {response_bytes} bytes");
    cut(&setup, 0..response_bytes).await;
}

// One test per mode, so that they run in parallel and a slow one is named.

#[tokio::test]
async fn a_connection_cut_after_any_byte_loses_nothing_by_rowversion() {
    cut_anywhere(CursorMode::RowVersion).await;
}

#[tokio::test]
async fn a_connection_cut_after_any_byte_loses_nothing_by_time() {
    cut_anywhere(CursorMode::TimestampPk).await;
}

#[tokio::test]
async fn a_connection_cut_after_any_byte_loses_nothing_by_number() {
    cut_anywhere(CursorMode::IntegerPk).await;
}

#[tokio::test]
async fn a_connection_cut_after_any_byte_loses_nothing_under_change_tracking() {
    cut_anywhere(CursorMode::ChangeTracking).await;
}

/// Bytes between two cuts with several pages.
const BETWEEN: usize = 31;

#[tokio::test]
async fn a_connection_cut_in_any_of_several_pages_loses_nothing() {
    for (number, mode) in MODES.into_iter().enumerate() {
        let setup = Setup::new(false, mode).await;
        let case = setup.poller(Harm::None).await;
        case.run().await;
        let (response_bytes, edges) = (case.proxy.server_bytes().len(), case.proxy.edges());
        // Pre-login, login, description and three fetches, at four places each.
        assert!(edges.len() >= 20, "{mode}: {edges:?}");
        // Each mode at different places.
        let within = (number * BETWEEN / MODES.len()..response_bytes).step_by(BETWEEN);
        cut(&setup, edges.into_iter().chain(within)).await;
    }
}

#[tokio::test]
async fn an_encrypted_connection_cut_anywhere_loses_nothing() {
    let setup = Setup::new(true, CursorMode::RowVersion).await;
    let response_bytes = response_bytes(&setup).await;
    for length in (0..response_bytes).step_by(37) {
        setup.poller(Harm::Cut(length)).await.run().await;
    }
}

#[tokio::test]
async fn a_server_stalling_anywhere_ends_the_tick_and_loses_nothing() {
    for mode in MODES {
        let mut cases = tokio::task::JoinSet::new();
        let setup = Setup::new(false, mode).await;
        let response_bytes = response_bytes(&setup).await;
        for length in
            (0..response_bytes).step_by(if mode == CursorMode::RowVersion { 41 } else { 211 })
        {
            let case = setup.poller(Harm::Stall(length)).await;
            if cases.len() == AT_ONCE {
                cases.join_next().await.unwrap().unwrap();
            }
            cases.spawn(async move {
                case.run().await;
                assert!(case.proxy.connections() > 1, "{mode}: {:?}", case.harm);
            });
        }
        cases.join_all().await;
    }
}

#[tokio::test]
async fn packets_of_any_size_are_reassembled() {
    let setup = Setup::new(false, CursorMode::RowVersion).await;
    for size in [1, 2, 3, 7, 64, 511, 4_088, 32_759] {
        let case = setup.poller(Harm::Repack(size)).await;
        case.run().await;
        assert_eq!(case.proxy.connections(), 1, "packets of {size} bytes");
    }
}

#[tokio::test]
async fn a_packet_with_a_wrong_length_loses_nothing() {
    let mut broken = 0;
    for mode in MODES {
        let mut cases = tokio::task::JoinSet::new();
        let setup = Setup::new(false, mode).await;
        let all = [0, 7, 8, 9, 40, 4_097, u16::MAX];
        let lengths = if mode == CursorMode::RowVersion { &all[..] } else { &all[3..5] };
        // Packets: pre-login, login, description, three fetches.
        for packet in 0..6 {
            for length in lengths {
                let case = setup.poller(Harm::Length { packet, length: *length }).await;
                if cases.len() == AT_ONCE {
                    broken += usize::from(cases.join_next().await.unwrap().unwrap());
                }
                cases.spawn(async move {
                    case.run().await;
                    case.proxy.connections() > 1
                });
            }
        }
        broken += cases.join_all().await.into_iter().filter(|broke| *broke).count();
    }
    assert!(broken > 20, "{broken} connections broke");
}

#[tokio::test]
async fn an_error_instead_of_a_response_loses_nothing() {
    for mode in MODES {
        let setup = Setup::new(false, mode).await;
        // Deadlock victim, lock timeout, failover, throttling; the last two end the connection.
        for (number, severity) in [(1205, 13), (1222, 16), (40_197, 17), (40_613, 20), (40_501, 20)]
        {
            for before in 0..3 {
                let case = setup.poller(Harm::None).await;
                let faults = setup.server.faults();
                faults.arm_matching("SELECT TOP", before, Fault::Stall(Duration::ZERO));
                let error = SqlError::new(number, severity, "no");
                faults.arm_matching("SELECT TOP", 1, Fault::Error(error));
                let requests = faults.statements();
                case.run().await;
                // One describes the table, three fetch, and one of those was sent again.
                let sent = faults.statements() - requests;
                assert!(sent > 4, "{mode}: {number} after {before} pages");
            }
        }
    }
}
