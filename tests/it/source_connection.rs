//! How the SQL Server source connects, and how it handles broken connections.

use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use highwater::config::{Relation, SqlConnection};
use highwater::cursor::CursorMode::{ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::ErrorKind;
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater_devdb::{Fault, Options, Server};

use crate::flights::Drain;
use crate::sql::{World, drain, dropped_at_fault, events, failure, fetch};

#[tokio::test]
async fn an_idle_fetch_is_one_request_on_the_same_connection() {
    let world = World::with_flights(5).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    let (all, _) = events(&source, None, 100).await;
    let (requests, logins) = (world.server.faults().statements(), world.server.faults().logins());
    for _ in 0..3 {
        assert!(events(&source, Some(&all[4].cursor), 100).await.0.is_empty());
    }
    assert_eq!(world.server.faults().statements(), requests + 3);
    assert_eq!(world.server.faults().logins(), logins);
}

/// Requests made by one tick.
async fn requests(drain: &Drain<World>) -> u64 {
    let before = drain.world.server.faults().statements();
    drain.tick().await.result.unwrap();
    drain.world.server.faults().statements() - before
}

#[tokio::test]
async fn a_tick_makes_one_request_per_batch_and_an_idle_tick_makes_one() {
    for (mode, cursor) in
        [(RowVersion, "rv"), (TimestampPk, "at"), (IntegerPk, "id"), (ChangeTracking, "")]
    {
        let world = World::start(
            "CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY, rv rowversion NOT NULL, \
             at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME()); \
             ALTER TABLE dbo.t ENABLE CHANGE_TRACKING; \
             INSERT INTO dbo.t (at) VALUES ('2026-01-01'), ('2026-01-02'), ('2026-01-03')",
        )
        .await;
        let base = world.settings("t", mode, cursor);
        let drain = Drain::over(world, SourceSettings { settle: Duration::ZERO, ..base }, 2);
        drain.tick().await.result.unwrap();
        drain.tick().await.result.unwrap();
        for _ in 0..3 {
            assert_eq!(requests(&drain).await, 1, "{mode}: idle");
        }
        let insert = "INSERT INTO dbo.t (at) VALUES ('2026-01-04'), ('2026-01-05'), ('2026-01-06')";
        drain.world.database.execute(insert).unwrap();
        assert_eq!(requests(&drain).await, 2, "{mode}: three rows in batches of two");
        assert_eq!(drain.handler.ids(), [1, 2, 3, 4, 5, 6], "{mode}");
        // The column descriptions arrive after the rows that were read with the old ones; one more request
        // rereads these.
        drain.world.database.execute("ALTER TABLE dbo.t ADD more int NULL").unwrap();
        assert_eq!(requests(&drain).await, 2, "{mode}: idle, and the columns have changed");
        assert_eq!(requests(&drain).await, 1, "{mode}: idle again");
    }
}

#[tokio::test]
async fn errors_an_operator_can_fix_are_named() {
    let world = World::with_flights(5).await;
    let base = world.flights(RowVersion);
    let with_key = |key: &str| SourceSettings { key: vec![key.to_owned()], ..base.clone() };
    let columns = Some(vec!["id".to_owned(), "colour".to_owned()]);
    let login = |from: &str, to: &str| {
        let text = world.server.connection_string().replace(from, to);
        let connection = SqlConnection::parse(&text).unwrap();
        SourceSettings { connection, ..base.clone() }
    };
    for (settings, expected) in [
        (
            world.settings("nothing", RowVersion, "rv"),
            "table `dbo.nothing` not found, or the login",
        ),
        (world.settings("flights", RowVersion, "version"), "cursor column `version` is not in"),
        (with_key("no"), "key column `no` is not in `dbo.flights`, which has `id`, `time_hour`"),
        (SourceSettings { columns, ..base.clone() }, "listed column `colour` is not in"),
        (world.settings("flights", RowVersion, "id"), "of type `int`, but mode `rowversion` needs"),
        (world.settings("flights", TimestampPk, "rv"), "mode `timestamp+pk` needs a `datetime2`"),
        (
            SourceSettings { filter: Some("colour = 1".to_owned()), ..base.clone() },
            "error 207 (column not found)",
        ),
        (login("Password=", "Password=not-"), "error 18456 (login refused): check user"),
        (
            login("TrustServerCertificate=true", ""),
            "`ServerCertificate`, or the certificate's name as `HostNameInCertificate`",
        ),
    ] {
        let (error, text) = failure(settings).await;
        assert!(text.contains(expected), "`{expected}` not in `{text}`");
        assert_eq!(error.kind, ErrorKind::Configuration, "{text}");
    }
}

#[tokio::test]
async fn contradictory_settings_are_rejected_without_connecting() {
    let world = World::with_flights(0).await;
    let base = world.flights(RowVersion);
    for (settings, expected) in [
        (
            SourceSettings { relation: Relation::Table("a.b.c.d".to_owned()), ..base.clone() },
            "must be like `table`",
        ),
        (
            SourceSettings {
                relation: Relation::Table("elsewhere.dbo.t".to_owned()),
                ..base.clone()
            },
            "another database",
        ),
        (SourceSettings { key: Vec::new(), ..base }, "no key column is set"),
    ] {
        let error = Mssql::new(settings).unwrap_err();
        assert!(error.reason.contains(expected), "{error}");
    }
    assert_eq!(world.server.faults().logins(), 0);
}

#[tokio::test]
async fn a_connection_cut_during_a_response_is_not_reused() {
    let world = World::with_flights(50).await;
    let faults = world.server.faults();
    let source = Mssql::new(world.flights(TimestampPk)).unwrap();
    for fault in [Fault::DropAfterRows(3), Fault::DropAfterBytes(700), Fault::DropAfterRows(40)] {
        faults.arm_matching("SELECT TOP", 1, fault.clone());
        let logins = faults.logins();
        let error = fetch(&source, None, 100).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Transient, "{fault:?}: {error}");
        assert_eq!(drain(&source, 100).await.len(), 50);
        assert!(faults.logins() > logins, "{fault:?}");
    }
}

#[tokio::test]
async fn a_response_cut_at_any_byte_is_complete_or_an_error() {
    for tls in [false, true] {
        let world = World::with_flights(6).await;
        let options = Options { tls, ..Options::default() };
        let server = Server::start(world.database.clone(), options).await.unwrap();
        let mut settings = world.flights(RowVersion);
        settings.connection = SqlConnection::parse(&server.connection_string()).unwrap();
        let source = Mssql::new(settings).unwrap();
        let whole = fetch(&source, None, 100).await.unwrap();
        let mut errors = 0;
        for length in (0..1_200).step_by(if tls { 29 } else { 3 }) {
            server.faults().arm_matching("SELECT TOP", 1, Fault::DropAfterBytes(length));
            match fetch(&source, None, 100).await {
                Ok(rows) => assert_eq!(rows, whole, "cut after {length} bytes"),
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Transient, "cut after {length} bytes");
                    errors += 1;
                }
            }
            assert_eq!(fetch(&source, None, 100).await.unwrap(), whole, "after {length} bytes");
        }
        assert!(errors > 5, "{errors} errors");
    }
}

#[tokio::test]
async fn a_connection_broken_while_idle_fails_no_tick() {
    let world = World::with_flights(50).await;
    let faults = world.server.faults();
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 50);
    faults.arm_matching("SELECT TOP", 1, Fault::DropBeforeRun);
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 50);
    assert_eq!(faults.logins(), 2);
    faults.arm_matching("SELECT TOP", 2, Fault::DropBeforeRun);
    let error = fetch(&source, None, 100).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient);
}

#[tokio::test]
async fn an_error_of_the_server_keeps_the_connection() {
    let world = World::with_flights(50).await;
    let faults = world.server.faults();
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 50);
    let deadlock = highwater_devdb::SqlError::new(1205, 13, "Transaction was deadlocked");
    faults.arm_matching("SELECT TOP", 1, Fault::Error(deadlock));
    let error = fetch(&source, None, 100).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient);
    assert_eq!(
        highwater::error::chain(&error),
        "run a statement: error 1205 (deadlock): Transaction was deadlocked"
    );
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 50);
    assert_eq!(faults.logins(), 1);
}

#[tokio::test]
async fn a_stalled_server_ends_the_fetch_and_its_connection() {
    let world = World::with_flights(5).await;
    let faults = world.server.faults();
    let mut settings = world.flights(RowVersion);
    settings.connection.command_timeout = Duration::from_millis(300);
    let source = Mssql::new(settings).unwrap();
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 5);
    faults.arm_matching("SELECT TOP", 1, Fault::Stall(Duration::from_secs(60)));
    let error = fetch(&source, None, 100).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient, "{error}");
    let text = highwater::error::chain(&error);
    assert!(text.contains("raise `Command Timeout` in the connection string"), "{text}");
    assert!(!text.contains("Config::") && !text.contains("`None`"), "{text}");
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 5);
    assert_eq!(faults.logins(), 2);
}

#[tokio::test]
async fn a_server_that_does_not_know_strict_encryption_is_named_as_the_cause() {
    let world = World::with_flights(5).await;
    // One closes the connection at a supposedly broken packet, one waits for the rest of it.
    let options = Options { tls: false, ..Options::default() };
    let closing = Server::start(world.database.clone(), options).await.unwrap();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = [closing.port(), silent.local_addr().unwrap().port()];
    for port in ports {
        let text = format!("Server=127.0.0.1,{port};User ID=sa;Password=x;Encrypt=Strict");
        let mut settings = world.flights(RowVersion);
        settings.connection = SqlConnection::parse(&text).unwrap();
        settings.connection.connect_timeout = Duration::from_millis(300);
        let (error, text) = failure(settings).await;
        assert_eq!(error.kind, ErrorKind::Transient, "{text}");
        // Long before the overall timeout, which has another message.
        assert!(port == closing.port() || text.contains("TLS hello within 100ms"), "{text}");
        assert!(text.contains("`Encrypt=Strict` needs a server with TDS 8.0"), "{text}");
        assert!(text.contains("set `Encrypt=Mandatory`"), "{text}");
        assert!(!text.contains("Config::"), "{text}");
    }
}

#[tokio::test]
async fn a_dropped_fetch_does_not_affect_the_next_one() {
    let world = World::with_flights(5).await;
    let source = Mssql::new(world.flights(RowVersion)).unwrap();
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 5);
    world.server.faults().arm_matching("SELECT TOP", 1, Fault::Stall(Duration::from_millis(200)));
    dropped_at_fault(world.server.faults(), fetch(&source, None, 100)).await;
    let (all, more) = events(&source, None, 3).await;
    assert_eq!((all.len(), more), (3, true));
    assert_eq!(world.server.faults().logins(), 2);
}

#[tokio::test]
async fn a_redirect_is_followed_with_the_database() {
    let world = World::with_flights(5).await;
    let gateway = Server::start(world.database.clone(), Options::default()).await.unwrap();
    gateway.faults().redirect_once("127.0.0.1", world.server.port());
    let mut settings = world.flights(RowVersion);
    settings.connection = SqlConnection::parse(&gateway.connection_string()).unwrap();
    let source = Mssql::new(settings).unwrap();
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 5);
    assert_eq!((gateway.faults().logins(), world.server.faults().logins()), (0, 1));
}

#[tokio::test]
async fn the_servers_authority_can_be_named_by_file() {
    let world = World::with_flights(5).await;
    let mut file = tempfile::Builder::new().suffix(".pem").tempfile().unwrap();
    file.write_all(world.server.ca_pem().unwrap().as_bytes()).unwrap();
    let with = |path: &str| {
        let certificate = format!("ServerCertificate={path}");
        let text = world.server.connection_string();
        let text = text.replace("TrustServerCertificate=true", &certificate);
        let connection = SqlConnection::parse(&text).unwrap();
        SourceSettings { connection, ..world.flights(RowVersion) }
    };
    let source = Mssql::new(with(file.path().to_str().unwrap())).unwrap();
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 5);
    let (error, text) = failure(with("nowhere.pem")).await;
    assert_eq!(error.kind, ErrorKind::Configuration, "{text}");
    assert!(text.contains("`ServerCertificate`: Could not read"), "{text}");
}

#[tokio::test]
async fn every_level_of_encryption_connects() {
    let world = World::with_flights(5).await;
    let options = Options { allow_plain: true, ..Options::default() };
    let server = Server::start(world.database.clone(), options).await.unwrap();
    let mut file = tempfile::Builder::new().suffix(".pem").tempfile().unwrap();
    file.write_all(server.ca_pem().unwrap().as_bytes()).unwrap();
    for level in ["Mandatory", "Optional", "Strict", "DANGER_PLAINTEXT"] {
        let path = file.path().display();
        let encrypt = format!("Encrypt={level};ServerCertificate={path}");
        let text = server
            .connection_string()
            .replace("Encrypt=true;TrustServerCertificate=true", &encrypt);
        assert!(text.contains(level), "{text}");
        let connection = SqlConnection::parse(&text).unwrap();
        let source =
            Mssql::new(SourceSettings { connection, ..world.flights(RowVersion) }).unwrap();
        assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 5, "{level}");
    }
}

#[tokio::test]
async fn a_token_is_used_if_the_connection_string_requests_one() {
    let world = World::with_flights(5).await;
    let text = format!(
        "Server=127.0.0.1,{};Database=Highwater;TrustServerCertificate=true;\
         Authentication=Active Directory Managed Identity",
        world.server.port()
    );
    let connection = SqlConnection::parse(&text).unwrap();
    let settings = SourceSettings { connection, ..world.flights(RowVersion) };
    let (error, text) = failure(settings.clone()).await;
    assert_eq!(error.kind, ErrorKind::Configuration);
    assert!(text.contains("no identity is set up"), "{text}");
    let scopes = Arc::new(Mutex::new(Vec::new()));
    let credential = Arc::new(Credential(Arc::clone(&scopes)));
    let source = Mssql::new(settings).unwrap().with_credential(credential);
    assert_eq!(fetch(&source, None, 100).await.unwrap().rows.len(), 5);
    assert_eq!(*scopes.lock().unwrap(), ["https://database.windows.net/.default"]);
}

#[derive(Debug)]
struct Credential(Arc<Mutex<Vec<String>>>);

#[async_trait::async_trait]
impl TokenCredential for Credential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.0.lock().unwrap().extend(scopes.iter().map(|scope| (*scope).to_owned()));
        Ok(AccessToken::new("token", time::OffsetDateTime::UNIX_EPOCH))
    }
}
