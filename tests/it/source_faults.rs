//! The SQL Server source while the server fails over, redirects, stalls or delays: nothing is lost, nothing
//! skipped, and every wait is bounded.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use highwater::azure::CachedToken;
use highwater::clock::{Clock, SystemClock, TokioClock};
use highwater::config::SqlConnection;
use highwater::cursor::CursorMode::{RowVersion, TimestampPk};
use highwater::cursor::SourceState;
use highwater::error::{ErrorKind, chain};
use highwater::mssql::RetryTerms;
use highwater::source::mssql::{Mssql, SourceSettings, StoredPosition};
use highwater::source::{FetchWindow, Row, Source as _};
use highwater_devdb::{Fault, LoginFault, Options, SeenLogin, Server, SqlError};
use highwater_fakehost::free_port;
use tempfile::NamedTempFile;

use crate::sql::{World, drain, failure, fetch, flights_in_order};

/// Pauses short enough for a test.
const RETRY: RetryTerms =
    RetryTerms { time_max: Duration::from_secs(5), pause_min: Duration::from_millis(20) };

/// A source of `world` that retries, and connects by `text` if given.
fn source(world: &World, text: Option<&str>) -> Mssql {
    let mut settings = world.flights(TimestampPk);
    if let Some(text) = text {
        settings.connection = SqlConnection::parse(text).unwrap();
    }
    Mssql::new(settings).unwrap().with_retries(RETRY)
}

/// The first hundred rows without their age, which differs each time.
async fn rows(source: &Mssql) -> Vec<Row> {
    fetch(source, None, 100).await.unwrap().rows
}

/// A file with the certificate of a server's authority.
fn authority(server: &Server) -> NamedTempFile {
    let file = tempfile::Builder::new().suffix(".pem").tempfile().unwrap();
    std::fs::write(file.path(), server.ca_pem().unwrap()).unwrap();
    file
}

fn error(number: i32, class: u8) -> SqlError {
    SqlError::new(number, class, "from the server")
}

#[tokio::test]
async fn a_failover_during_a_read_loses_no_row_and_fails_no_tick() {
    let world = World::with_flights(60).await;
    let faults = world.server.faults();
    let source = source(&world, None);
    // The node goes away during a response, the gateway has no other yet, and then one that is busy.
    faults.arm_matching("SELECT TOP", 1, Fault::Error(error(40197, 20)));
    faults.arm_matching("SELECT TOP", 1, Fault::DropAfterRows(7));
    faults.arm_login(1, LoginFault::Error(error(40613, 14)));
    faults.arm_login(1, LoginFault::Drop);
    faults.arm_login(1, LoginFault::Error(error(4060, 11)));
    faults.arm_matching("SELECT TOP", 1, Fault::Error(error(10928, 16)));
    assert_eq!(drain(&source, 25).await, flights_in_order(TimestampPk, 60));
    assert_eq!(faults.logins(), 4, "a new connection after each error that ends one");
}

#[tokio::test]
async fn a_deadlock_victim_restarts_the_read_on_the_same_connection() {
    let world = World::with_flights(60).await;
    let faults = world.server.faults();
    let source = source(&world, None);
    for number in [1205, 1222, 3960] {
        faults.arm_matching("SELECT TOP", 2, Fault::Error(error(number, 13)));
        assert_eq!(drain(&source, 25).await, flights_in_order(TimestampPk, 60), "{number}");
    }
    assert_eq!(faults.logins(), 1);
}

#[tokio::test]
async fn a_response_broken_after_some_rows_is_reread_from_the_first_row() {
    let world = World::with_flights(60).await;
    let faults = world.server.faults();
    let source = source(&world, None);
    let whole = rows(&source).await;
    for count in [1, 30, 59] {
        faults.arm_matching("SELECT TOP", 2, Fault::DropAfterRows(count));
        assert_eq!(rows(&source).await, whole, "broken after {count} rows");
    }
}

#[tokio::test]
async fn permanent_errors_are_reported_at_once() {
    let world = World::with_flights(5).await;
    let faults = world.server.faults();
    let source = source(&world, None);
    fetch(&source, None, 10).await.unwrap();
    for (number, kind) in [
        (229, ErrorKind::Configuration),
        (102, ErrorKind::Configuration),
        (8114, ErrorKind::Data),
        (50_000, ErrorKind::Transient),
    ] {
        fetch(&source, None, 10).await.unwrap();
        let before = faults.statements();
        faults.arm_matching("SELECT TOP", 9, Fault::Error(error(number, 14)));
        let failed = fetch(&source, None, 10).await.unwrap_err();
        faults.clear();
        // Whatever the number, the columns may have changed: the second statement describes them.
        assert_eq!((failed.kind, faults.statements() - before), (kind, 2), "{number}");
    }
    let tried = faults.logins_tried();
    faults.arm_matching("SELECT TOP", 1, Fault::Error(error(40613, 20)));
    faults.reject_logins(9);
    let failed = fetch(&source, None, 10).await.unwrap_err();
    assert!(chain(&failed).contains("error 18456 (login refused)"), "{}", chain(&failed));
    assert_eq!(faults.logins_tried(), tried + 1);
}

#[tokio::test]
async fn a_failover_that_takes_too_long_fails_the_tick_and_loses_nothing() {
    let world = World::with_flights(30).await;
    let faults = world.server.faults();
    let terms = RetryTerms { time_max: Duration::from_millis(300), ..RETRY };
    let source = Mssql::new(world.flights(TimestampPk)).unwrap().with_retries(terms);
    let began = tokio::time::Instant::now();
    faults.arm_login(1_000, LoginFault::Error(error(40613, 14)));
    let failed = fetch(&source, None, 10).await.unwrap_err();
    assert!(chain(&failed).contains("error 40613 (the database is moving"), "{}", chain(&failed));
    assert_eq!(failed.kind, ErrorKind::Transient);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!((2..=8).contains(&faults.logins_tried()), "{} tries", faults.logins_tried());
    faults.clear();
    assert_eq!(drain(&source, 10).await, flights_in_order(TimestampPk, 30));
}

#[tokio::test]
async fn a_response_that_stalls_is_abandoned_and_discarded() {
    let world = World::with_flights(40).await;
    let faults = world.server.faults();
    let text = format!("{};Command Timeout=1", world.server.connection_string());
    let source = source(&world, Some(&text));
    let whole = rows(&source).await;
    let began = tokio::time::Instant::now();
    faults.arm_matching("SELECT TOP", 1, Fault::StallAfterRows(9, Duration::from_secs(60)));
    let failed = fetch(&source, None, 100).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Transient, "{}", chain(&failed));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(rows(&source).await, whole);
    assert_eq!(faults.logins(), 2);
}

#[tokio::test]
async fn a_server_that_stalls_before_or_during_login_is_abandoned_in_time() {
    let world = World::with_flights(5).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let stalled = world.server.connection_string();
    world.server.faults().arm_login(1, LoginFault::Stall(Duration::from_secs(60)));
    let mute = stalled.replace(&world.server.port().to_string(), &port.to_string());
    for text in [stalled, mute] {
        let source = source(&world, Some(&format!("{text};Connect Timeout=1")));
        let began = tokio::time::Instant::now();
        let failed = fetch(&source, None, 10).await.unwrap_err();
        assert_eq!(failed.kind, ErrorKind::Transient, "{}", chain(&failed));
        assert!(began.elapsed() < Duration::from_secs(10), "{text}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn packets_of_an_unnegotiated_size_are_read_or_rejected_and_never_misread() {
    let world = World::with_flights(40).await;
    let faults = world.server.faults();
    let source = source(&world, None);
    let whole = rows(&source).await;
    for size in [9, 13, 511, 5_000, 32_767] {
        faults.arm_matching("SELECT TOP", 1, Fault::PacketBytes(size));
        assert_eq!(rows(&source).await, whole, "packets of {size} bytes");
    }
    let text = format!("{};Command Timeout=1", world.server.connection_string());
    let hasty = self::source(&world, Some(&text)).with_retries(RetryTerms::NEVER);
    for claimed in [0, 7, 8, 100, 60_000] {
        rows(&hasty).await;
        faults.arm_matching("SELECT TOP", 1, Fault::PacketClaims(claimed));
        // If the driver treats it as a connection that broke while idle, it retries.
        if let Ok(read) = fetch(&hasty, None, 100).await {
            assert_eq!(read.rows, whole, "{claimed}");
        }
        assert_eq!(rows(&hasty).await, whole, "after a claim of {claimed}");
    }
}

#[tokio::test]
async fn every_packet_size_that_can_be_requested_works() {
    let world = World::with_flights(40).await;
    let whole = rows(&source(&world, None)).await;
    for size in [512, 4_096, 32_767] {
        let text = format!("{};Packet Size={size}", world.server.connection_string());
        let source = source(&world, Some(&text));
        assert_eq!(rows(&source).await, whole, "{size}");
    }
}

/// A chain of servers that redirect a login to the next one; the last one accepts it.
async fn redirected(world: &World, hops: usize) -> Vec<Server> {
    let mut servers: Vec<Server> = Vec::new();
    for _ in 0..hops {
        let server = Server::start(world.database.clone(), Options::default()).await.unwrap();
        let next = servers.last().map_or(world.server.port(), Server::port);
        let redirect = LoginFault::Redirect("127.0.0.1".to_owned(), next);
        server.faults().arm_login(1_000, redirect);
        servers.push(server);
    }
    servers
}

#[tokio::test]
async fn two_redirects_are_followed_and_a_third_is_not() {
    let world = World::with_flights(5).await;
    for hops in [1, 2, 3] {
        let servers = redirected(&world, hops).await;
        let source = source(&world, Some(&servers[hops - 1].connection_string()));
        let fetched = fetch(&source, None, 10).await;
        if hops < 3 {
            assert_eq!(fetched.unwrap().rows.len(), 5, "{hops} redirects");
            continue;
        }
        let text = chain(&fetched.unwrap_err());
        assert!(text.contains("at most 2 redirects are followed"), "{text}");
        let last = format!("redirected to 127.0.0.1:{}", servers[0].port());
        assert!(text.contains(&last), "`{last}` not in `{text}`");
        let tried = servers.iter().map(|server| server.faults().logins_tried());
        assert_eq!(tried.collect::<Vec<_>>(), [1, 1, 1]);
    }
    assert_eq!(world.server.faults().logins(), 2);
}

#[tokio::test]
async fn connection_string_options_survive_redirects() {
    let world = World::with_flights(5).await;
    let servers = redirected(&world, 2).await;
    let plain = servers[1].connection_string();
    let full = format!("{plain};App=billing;Application Intent=ReadOnly;Packet Size=8000");
    for (text, application, read_only, packet_bytes) in
        [(plain, "highwater", false, 4_096), (full, "billing", true, 8_000)]
    {
        assert_eq!(rows(&source(&world, Some(&text))).await.len(), 5);
        let expected = SeenLogin {
            database: "Highwater".to_owned(),
            application: application.to_owned(),
            read_only,
            packet_bytes,
        };
        for server in servers.iter().chain([&world.server]) {
            assert_eq!(server.faults().last_login(), expected);
        }
    }
}

#[tokio::test]
async fn a_server_that_redirects_to_itself_is_abandoned() {
    let world = World::with_flights(5).await;
    let here = LoginFault::Redirect("127.0.0.1".to_owned(), world.server.port());
    world.server.faults().arm_login(1_000, here);
    let failed = fetch(&source(&world, None), None, 10).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Transient);
    assert_eq!(world.server.faults().logins_tried(), 3);
    world.server.faults().clear();
    assert_eq!(drain(&source(&world, None), 10).await.len(), 5);
}

#[tokio::test]
async fn a_redirect_to_an_unreachable_server_restarts_at_the_gateway() {
    let world = World::with_flights(5).await;
    world.server.faults().redirect_once("127.0.0.1", free_port().unwrap());
    assert_eq!(drain(&source(&world, None), 10).await.len(), 5);
    assert_eq!(world.server.faults().logins_tried(), 2);
}

#[tokio::test]
async fn redirects_require_a_matching_certificate() {
    let world = World::with_flights(5).await;
    let gateway = &redirected(&world, 1).await[0];
    // The next server's certificate has another authority.
    let file = authority(gateway);
    let certificate = format!("ServerCertificate={}", file.path().display());
    let text = gateway.connection_string().replace("TrustServerCertificate=true", &certificate);
    let failed = fetch(&source(&world, Some(&text)), None, 10).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Configuration, "{}", chain(&failed));
    let tried = |server: &Server| server.faults().logins_tried();
    assert_eq!((tried(gateway), tried(&world.server)), (1, 0));
}

#[tokio::test]
async fn the_certificate_name_may_differ_from_the_host() {
    let world = World::with_flights(5).await;
    let file = authority(&world.server);
    for (name, fits) in [("localhost", true), ("db.example.org", false)] {
        let text = world.server.connection_string().replace(
            "TrustServerCertificate=true",
            &format!("ServerCertificate={};HostNameInCertificate={name}", file.path().display()),
        );
        let connection = SqlConnection::parse(&text).unwrap();
        let settings = SourceSettings { connection, ..world.flights(RowVersion) };
        if fits {
            assert_eq!(
                fetch(&Mssql::new(settings).unwrap(), None, 10).await.unwrap().rows.len(),
                5
            );
        } else {
            let (error, text) = failure(settings).await;
            assert_eq!(error.kind, ErrorKind::Configuration, "{text}");
            assert!(text.contains("`HostNameInCertificate`"), "{text}");
        }
    }
}

#[tokio::test]
async fn each_session_has_low_deadlock_priority() {
    let world = World::with_flights(5).await;
    let faults = world.server.faults();
    let text = format!("{};Command Timeout=3", world.server.connection_string());
    // Only the exact text of the settings meets this error.
    let session = "SET LOCK_TIMEOUT 1500; SET DEADLOCK_PRIORITY LOW;";
    faults.arm_matching(session, 1, Fault::Error(error(229, 14)));
    let settings = SourceSettings {
        connection: SqlConnection::parse(&text).unwrap(),
        ..world.flights(RowVersion)
    };
    let (_, text) = failure(settings).await;
    assert!(text.starts_with("set up the session: error 229"), "{text}");
}

#[tokio::test]
async fn all_addresses_of_a_name_are_tried() {
    let world = World::with_flights(5).await;
    // On many machines the name resolves to `::1` first, where nothing listens.
    for failover in ["true", "false"] {
        let text = world.server.connection_string().replace("127.0.0.1", "localhost");
        let text = format!("{text};MultiSubnetFailover={failover}");
        assert_eq!(drain(&source(&world, Some(&text)), 10).await.len(), 5, "{failover}");
    }
    let text = world.server.connection_string().replace("127.0.0.1", "no-such-host.invalid");
    let failed = fetch(&source(&world, Some(&text)), None, 10).await.unwrap_err();
    assert!(chain(&failed).contains("name not found, check `Server`"), "{}", chain(&failed));
}

/// Issues `token-0`, `token-1` and so on, each valid for an hour.
#[derive(Debug)]
struct Hourly {
    clock: Arc<TokioClock>,
    asked: AtomicUsize,
}

#[async_trait::async_trait]
impl TokenCredential for Hourly {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let expires_on = self.clock.now() + time::Duration::HOUR;
        Ok(AccessToken::new(format!("token-{number}"), expires_on))
    }
}

#[tokio::test]
async fn a_token_is_kept_for_the_next_login_and_replaced_before_it_expires() {
    let world = World::with_flights(5).await;
    let faults = world.server.faults();
    let text = format!(
        "Server=127.0.0.1,{};Database=Highwater;TrustServerCertificate=true;\
         Authentication=Active Directory Workload Identity",
        world.server.port()
    );
    let clock = Arc::new(TokioClock::starting_at(time::OffsetDateTime::UNIX_EPOCH));
    let hourly = Arc::new(Hourly { clock: Arc::clone(&clock), asked: AtomicUsize::new(0) });
    let inner: Arc<dyn TokenCredential> = Arc::<Hourly>::clone(&hourly);
    let credential = Arc::new(CachedToken::new(inner, clock));
    let source = source(&world, Some(&text)).with_credential(credential);
    let broken = || faults.arm_matching("SELECT TOP", 1, Fault::DropAfterRows(1));
    faults.only_token("token-0");
    fetch(&source, None, 10).await.unwrap();
    broken();
    fetch(&source, None, 10).await.unwrap();
    assert_eq!((faults.logins(), hourly.asked.load(Ordering::Relaxed)), (2, 1));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(56 * 60)).await;
    tokio::time::resume();
    faults.only_token("token-1");
    fetch(&source, None, 10).await.unwrap();
    assert_eq!((faults.logins(), hourly.asked.load(Ordering::Relaxed)), (3, 2));
    // A token that the server no longer accepts is reported to the operator.
    faults.only_token("another");
    broken();
    let failed = fetch(&source, None, 10).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Configuration, "{}", chain(&failed));
    assert!(chain(&failed).contains("the identity's database user"), "{}", chain(&failed));
}

/// Never responds, as on a machine without an identity.
#[derive(Debug)]
struct Mute;

#[async_trait::async_trait]
impl TokenCredential for Mute {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn an_unresponsive_identity_endpoint_is_distinguished_from_a_silent_server() {
    let world = World::with_flights(5).await;
    let text = format!(
        "Server=127.0.0.1,{};Authentication=Active Directory Managed Identity;Connect Timeout=1",
        world.server.port()
    );
    let source = source(&world, Some(&text)).with_credential(Arc::new(Mute));
    let failed = chain(&fetch(&source, None, 10).await.unwrap_err());
    assert!(failed.starts_with("get a token for the database: check that the app"), "{failed}");
    assert!(failed.contains("no complete answer within 1s; if that is too short"), "{failed}");
    assert!(failed.contains("raise `Connect Timeout` in the connection string"), "{failed}");
    let position = StoredPosition { fingerprint: None, after: None, state: &SourceState::new() };
    let found = source.examine(position, &SystemClock).await;
    let fix = found[0].fix.as_deref().unwrap_or_default();
    assert!(found[0].unreachable && fix.starts_with("give the app an identity"), "{found:?}");
    assert_eq!(world.server.faults().logins_tried(), 0);
}

#[tokio::test]
async fn a_read_that_blocks_finished_work_is_not_retried() {
    let world = World::with_flights(60).await;
    let faults = world.server.faults();
    let source = source(&world, None);
    assert_eq!(rows(&source).await.len(), 60);
    faults.arm_matching("SELECT TOP", 1, Fault::Error(error(1205, 13)));
    let state = SourceState::new();
    let window = FetchWindow { after: None, upto: None, rows_max: 100, state: &state };
    let failed = source.fetch_at_once(window).await.unwrap_err();
    assert!(failed.reason.contains("deadlock"), "{failed}");
    assert_eq!(source.fetch_at_once(window).await.unwrap().rows.len(), 60);
}
