//! A database on the SQL Server under test: the one that `HIGHWATER_TEST_SQLSERVER` names, or else the
//! embedded one.
//!
//! A test that needs features of the embedded server (faults, its clock) uses `sql::World` or
//! [`AnyServer::embedded`], and runs against it regardless of the variable.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use highwater::clock::{Clock, SystemClock};
use highwater::config::{ProcessVars, SqlConnection, Vars as _};
use highwater::cursor::CursorMode;
use highwater::source::mssql::SourceSettings;
use highwater_devdb::{Database, Options, Server};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt as _};

use crate::sql::{FLIGHT_COLUMNS, FLIGHTS_TABLE, flight_cells, insert_flights, settings};

/// Setting with an ADO.NET connection string. Its login must be allowed to create databases.
pub(crate) const VARIABLE: &str = "HIGHWATER_TEST_SQLSERVER";

/// Rows of one `INSERT`; SQL Server accepts no more.
const INSERTED_AT_ONCE: usize = 1_000;

/// The initial time of the embedded server's clock.
const START: time::PrimitiveDateTime = time::macros::datetime!(2026-01-01 10:00);

/// Returns the connection string of the server under test, if one is configured.
pub(crate) fn named_server() -> Option<String> {
    ProcessVars.get(VARIABLE).filter(|text| !text.trim().is_empty())
}

/// Prints a text when tests run with `--nocapture`.
#[expect(clippy::print_stdout, reason = "a report, or why a test was skipped")]
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Prints why a test does not run on the named server, if there is one.
pub(crate) fn say_embedded(needs: &str) {
    if named_server().is_some() {
        say(&format!("skipped on the named server, run on the embedded one: needs {needs}"));
    }
}

/// An empty database with row versioning, for several concurrent transactions.
pub(crate) struct AnyServer {
    /// The connection string without a database.
    text: String,
    database: String,
    embedded: Option<(Server, Database)>,
    /// How far the embedded server's clock has been moved.
    passed_ms: Arc<AtomicU64>,
    /// When a test on the named server first waited for a time.
    started: OnceLock<Instant>,
}

/// The embedded server's clock.
#[derive(Debug)]
struct ServerClock(Arc<AtomicU64>);

impl Clock for ServerClock {
    fn now(&self) -> time::OffsetDateTime {
        (START + Duration::from_millis(self.0.load(Ordering::Relaxed))).assume_utc()
    }
}

impl AnyServer {
    /// Creates a database, and runs T-SQL in it.
    pub(crate) async fn start(tsql: &str) -> Self {
        let server = match named_server() {
            Some(text) => Self::on(text).await,
            None => Self::over(Database::concurrent().unwrap()).await,
        };
        server.execute(tsql).await;
        server
    }

    /// Creates a database on the embedded server, the only one with the feature `needs`.
    pub(crate) async fn embedded(tsql: &str, needs: &str) -> Self {
        say_embedded(needs);
        let server = Self::over(Database::concurrent().unwrap()).await;
        server.execute(tsql).await;
        server
    }

    /// Creates a database with the table `flights`, whose rows are the first `count` of the data set.
    pub(crate) async fn with_flights(count: usize) -> Self {
        let Some(text) = named_server() else {
            let database = Database::in_memory().unwrap();
            database.execute(FLIGHTS_TABLE).unwrap();
            insert_flights(&database, count);
            return Self::over(database).await;
        };
        let server = Self::on(text).await;
        let mut session = server.session().await;
        session.run(FLIGHTS_TABLE).await;
        for chunk in flight_cells(count).chunks(INSERTED_AT_ONCE) {
            let rows: Vec<String> = chunk.iter().map(tuple).collect();
            let columns = FLIGHT_COLUMNS.join(", ");
            let rows = rows.join(", ");
            session.run(&format!("INSERT INTO dbo.flights ({columns}) VALUES {rows}")).await;
        }
        server
    }

    async fn over(database: Database) -> Self {
        let server = Server::start(database.clone(), Options::default()).await.unwrap();
        let text = server.connection_string();
        let embedded = Some((server, database));
        let new = Self {
            text,
            database: "Highwater".to_owned(),
            embedded,
            passed_ms: Arc::default(),
            started: OnceLock::new(),
        };
        new.pass(0).await;
        new
    }

    async fn on(text: String) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let database = format!("highwater_test_{}_{number}", std::process::id());
        let (passed_ms, started) = (Arc::default(), OnceLock::new());
        let new = Self { text, database, embedded: None, passed_ms, started };
        let mut session = Session::open(&new.text, "master").await;
        session.run(&format!("CREATE DATABASE [{}]", new.database)).await;
        let options = "READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE";
        session.run(&format!("ALTER DATABASE [{}] SET {options}", new.database)).await;
        new
    }

    /// Whether the server is the one named in the environment.
    pub(crate) fn is_named(&self) -> bool {
        self.embedded.is_none()
    }

    /// The embedded server's database, for operations that no other server supports.
    pub(crate) fn database(&self) -> &Database {
        &self.embedded.as_ref().expect("a test of the embedded server").1
    }

    /// Opens a separate session, as another application would.
    pub(crate) async fn session(&self) -> Session {
        Session::open(&self.text, &self.database).await
    }

    /// Runs T-SQL.
    pub(crate) async fn execute(&self, tsql: &str) {
        self.session().await.run(tsql).await;
    }

    /// Enables change tracking for a table, which needs to be allowed for the database on a real server.
    pub(crate) async fn track(&self, table: &str) {
        self.execute("ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON").await;
        self.execute(&format!("ALTER TABLE {table} ENABLE CHANGE_TRACKING")).await;
    }

    /// Waits on the server's clock: instantly on the embedded one.
    pub(crate) async fn pass(&self, milliseconds: u64) {
        let Some((_, database)) = &self.embedded else {
            return tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        };
        let passed = self.passed_ms.fetch_add(milliseconds, Ordering::Relaxed) + milliseconds;
        set_clock(database, passed);
    }

    /// Waits until `second` on the server's clock, counted from the first time that a test requested.
    ///
    /// On the named server seconds are a tenth longer, to allow for the work between them.
    pub(crate) async fn at(&self, second: u32) {
        if let Some((_, database)) = &self.embedded {
            let passed = u64::from(second) * 1_000;
            self.passed_ms.store(passed, Ordering::Relaxed);
            return set_clock(database, passed);
        }
        let started = *self.started.get_or_init(Instant::now);
        tokio::time::sleep_until(started + Duration::from_millis(1_100) * second).await;
    }

    /// Returns the server's clock, for other parts that must use the same time.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        if self.is_named() {
            return Arc::new(SystemClock);
        }
        Arc::new(ServerClock(self.passed_ms.clone()))
    }

    /// The connection string of the database, as in a setting.
    pub(crate) fn connection_string(&self) -> String {
        format!("{};Database={}", self.text.trim_end_matches(';'), self.database)
    }

    pub(crate) fn connection(&self) -> SqlConnection {
        let connection = SqlConnection::parse(&self.text).unwrap();
        SqlConnection { database: Some(self.database.clone()), ..connection }
    }

    /// Settings for the flights in either mode.
    pub(crate) fn flights(&self, mode: CursorMode) -> SourceSettings {
        let is_version = mode == CursorMode::RowVersion;
        self.settings("dbo.flights", mode, if is_version { "rv" } else { "time_hour" })
    }

    pub(crate) fn settings(&self, table: &str, mode: CursorMode, cursor: &str) -> SourceSettings {
        settings(self.connection(), table, mode, cursor)
    }
}

fn set_clock(database: &Database, passed_ms: u64) {
    let now = START + Duration::from_millis(passed_ms);
    let format = time::macros::format_description!(
        "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:7]"
    );
    database.set_now(&now.format(format).unwrap()).unwrap();
}

/// A row in `VALUES` syntax.
fn tuple([id, time, carrier, flight, delay]: &[String; 5]) -> String {
    let number = |text: &str| text.parse::<i64>().map_or("NULL".to_owned(), |n| n.to_string());
    let (flight, delay) = (number(flight), number(delay));
    format!("({id}, '{time}', N'{}', {flight}, {delay})", carrier.replace('\'', "''"))
}

/// A database on the named server is dropped, also after a failed test.
impl Drop for AnyServer {
    fn drop(&mut self) {
        if self.embedded.is_some() {
            return;
        }
        let (text, database) = (self.text.clone(), self.database.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let mut session = Session::open(&text, "master").await;
                let alone = "SET SINGLE_USER WITH ROLLBACK IMMEDIATE";
                session.run(&format!("ALTER DATABASE [{database}] {alone}")).await;
                session.run(&format!("DROP DATABASE [{database}]")).await;
            });
        });
        if dropped.join().is_err() {
            say(&format!("database `{}` remains on the server", self.database));
        }
    }
}

/// A session whose batches are not wrapped, so that transactions may stay open between them.
pub(crate) struct Session(tiberius::Client<Compat<TcpStream>>);

impl Session {
    async fn open(text: &str, database: &str) -> Self {
        let mut config = tiberius::Config::from_ado_string(text).unwrap();
        config.database(database);
        let tcp = TcpStream::connect(config.get_addr()).await.unwrap();
        tcp.set_nodelay(true).unwrap();
        let client = Box::pin(tiberius::Client::connect(config, tcp.compat_write())).await;
        Self(client.unwrap())
    }

    /// Runs a batch and returns the rows of its results.
    pub(crate) async fn run(&mut self, tsql: &str) -> Vec<tiberius::Row> {
        self.try_run(tsql).await.unwrap_or_else(|error| panic!("`{tsql}`: {error}"))
    }

    /// Runs a batch that may fail.
    pub(crate) async fn try_run(&mut self, tsql: &str) -> tiberius::Result<Vec<tiberius::Row>> {
        let results = self.0.simple_query(tsql).await?.into_results().await?;
        Ok(results.into_iter().flatten().collect())
    }
}
