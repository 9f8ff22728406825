//! A development server with a table, a source that reads it, and a poller's loop over both.

use std::collections::BTreeMap;
use std::io::{Read as _, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flate2::read::GzDecoder;
use highwater::config::{Relation, SqlConnection};
use highwater::cursor::{Cursor, CursorMode, SourceState};
use highwater::error::chain;
use highwater::event::ChangeEvent;
use highwater::normalize::normalize;
use highwater::source::mssql::{Mssql, SizeLimits, SourceSettings};
use highwater::source::{FetchError, FetchWindow, Rows, Source};
use highwater_devdb::{Database, Faults, Options, Server, Value};

use crate::any_server::{named_server, say};

const FLIGHTS: &[u8] = include_bytes!("../../src/cli/demo/flights.csv.gz");

/// The embedded server with TLS over an empty database, regardless of the server under test.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) database: Database,
}

impl World {
    pub(crate) async fn start(tsql: &str) -> Self {
        if named_server().is_some() {
            say("on the embedded server: needs its faults, clock or values");
        }
        let database = Database::in_memory().unwrap();
        database.execute(tsql).unwrap();
        let server = Server::start(database.clone(), Options::default()).await.unwrap();
        Self { server, database }
    }

    /// A server that has the table `flights`, whose rows are the first `count` of the data set.
    pub(crate) async fn with_flights(count: usize) -> Self {
        let world = Self::start(FLIGHTS_TABLE).await;
        insert_flights(&world.database, count);
        world
    }

    pub(crate) fn connection(&self) -> SqlConnection {
        SqlConnection::parse(&self.server.connection_string()).unwrap()
    }

    pub(crate) fn settings(&self, table: &str, mode: CursorMode, cursor: &str) -> SourceSettings {
        settings(self.connection(), table, mode, cursor)
    }

    /// Settings for the flights in either mode.
    pub(crate) fn flights(&self, mode: CursorMode) -> SourceSettings {
        match mode {
            CursorMode::RowVersion => self.settings("flights", mode, "rv"),
            CursorMode::TimestampPk => self.settings("dbo.flights", mode, "time_hour"),
            CursorMode::IntegerPk | CursorMode::ChangeTracking => {
                self.settings("flights", mode, "id")
            }
        }
    }
}

/// Polls `work` until the armed faults have been triggered, and then drops it.
pub(crate) async fn dropped_at_fault<T>(faults: &Faults, work: impl Future<Output = T>) {
    let met = async {
        while faults.armed() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        biased;
        () = met => {}
        _ = work => panic!("finished before a request triggered the armed fault"),
    }
}

/// Settings of a poller over a table whose key is `id`.
pub(crate) fn settings(
    connection: SqlConnection,
    table: &str,
    mode: CursorMode,
    cursor: &str,
) -> SourceSettings {
    SourceSettings {
        poller: "orders".to_owned(),
        connection,
        relation: Relation::Table(table.to_owned()),
        mode: Some(mode),
        cursor_column: (mode != CursorMode::ChangeTracking).then(|| cursor.to_owned()),
        key: vec!["id".to_owned()],
        columns: None,
        columns_excluded: Vec::new(),
        mask: highwater::source::mssql::Mask::default(),
        filter: None,
        filter_params: BTreeMap::new(),
        soft_delete: None,
        operations: None,
        settle: Duration::from_secs(5),
        clock: highwater::config::SourceClock::Utc,
        limits: SizeLimits::default(),
        on_schema_change: highwater::config::OnSchemaChange::Follow,
        partition: None,
    }
}

pub(crate) const FLIGHTS_TABLE: &str = "CREATE TABLE dbo.flights (id int NOT NULL PRIMARY KEY, time_hour datetime2(7) NOT NULL, \
     carrier nvarchar(9), flight int, dep_delay int NULL, rv rowversion NOT NULL)";

/// Columns that a flight is inserted with.
pub(crate) const FLIGHT_COLUMNS: [&str; 5] = ["id", "time_hour", "carrier", "flight", "dep_delay"];

/// The first `count` flights, as the cells of those columns; an empty one is `NULL`.
pub(crate) fn flight_cells(count: usize) -> Vec<[String; 5]> {
    let text = flights();
    let cells = text.lines().skip(1).take(count).map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        let time = cells[1].trim_end_matches('Z');
        [cells[0], time, cells[2], cells[3], cells[9]].map(str::to_owned)
    });
    cells.collect()
}

pub(crate) fn insert_flights(database: &Database, count: usize) {
    let int = |text: &str| text.parse().map_or(Value::Null, Value::Int);
    let rows = flight_cells(count).into_iter().map(|[id, time, carrier, flight, delay]| {
        vec![int(&id), Value::Text(time), Value::Text(carrier), int(&flight), int(&delay)]
    });
    database.insert_rows("dbo.flights", &FLIGHT_COLUMNS, rows).unwrap();
}

fn flights() -> String {
    let mut text = String::new();
    GzDecoder::new(FLIGHTS).read_to_string(&mut text).unwrap();
    text
}

/// Ids of the first `count` flights in the delivery order of a mode.
pub(crate) fn flights_in_order(mode: CursorMode, count: usize) -> Vec<i64> {
    let text = flights();
    let mut flights: Vec<(&str, i64)> = text
        .lines()
        .skip(1)
        .take(count)
        .map(|line| {
            let mut cells = line.split(',');
            let id = cells.next().unwrap().parse().unwrap();
            (cells.next().unwrap(), id)
        })
        .collect();
    if mode == CursorMode::TimestampPk {
        flights.sort_unstable();
    }
    flights.into_iter().map(|(_, id)| id).collect()
}

pub(crate) async fn fetch(
    source: &Mssql,
    after: Option<&Cursor>,
    rows_max: usize,
) -> Result<Rows, FetchError> {
    source.fetch(FetchWindow { after, upto: None, rows_max, state: &SourceState::new() }).await
}

/// Fetches rows that must be readable, as events.
pub(crate) async fn events(
    source: &Mssql,
    after: Option<&Cursor>,
    rows_max: usize,
) -> (Vec<ChangeEvent>, bool) {
    let rows = fetch(source, after, rows_max).await.unwrap_or_else(|e| panic!("{}", chain(&e)));
    (normalize(source.shape(), &rows).unwrap(), rows.more)
}

/// Reads batch after batch until nothing is left; returns the integer keys in order.
pub(crate) async fn drain(source: &Mssql, rows_max: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let (events, more) = events(source, after.as_ref(), rows_max).await;
        assert!(events.len() <= rows_max && (!more || events.len() == rows_max));
        ids.extend(events.iter().map(|event| event.cursor.key["id"].as_i64().unwrap()));
        after = events.into_iter().last().map(|event| event.cursor).or(after);
        if !more {
            let (rest, more) = self::events(source, after.as_ref(), rows_max).await;
            assert!(rest.is_empty() && !more, "rows after the last batch");
            return ids;
        }
    }
}

/// Runs a fetch that must fail; returns the chain of causes.
pub(crate) async fn failure(settings: SourceSettings) -> (FetchError, String) {
    let source = Mssql::new(settings).unwrap();
    let error = fetch(&source, None, 10).await.unwrap_err();
    let text = chain(&error);
    (error, text)
}

/// Runs `work`; returns its result and the log.
pub(crate) async fn logged<T>(work: impl Future<Output = T>) -> (T, String) {
    // Without this, an event that another thread sends first, without a subscriber, would be disabled for all
    // threads.
    static EVERYWHERE: std::sync::Once = std::sync::Once::new();
    EVERYWHERE.call_once(|| {
        let quiet = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
        tracing::subscriber::set_global_default(quiet).unwrap();
    });
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let done = work.await;
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    (done, text)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
