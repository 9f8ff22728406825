//! Setup of the demo: the server with its rows, the receiver, the settings.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;

use super::console::FILTER;
use super::flights::{self, CURSOR, Flight, TABLE};
use super::folder::Folder;
use super::host::{FUNCTION, Launch, NAMES};
use super::receiver::{CallEvent, Receiver};
use super::tally::RowState;
use super::writer::{Work, WriteProgress};
use highwater::config::{ProcessVars, SqlConnection, Vars as _};
use highwater::error::chain;
use highwater::mssql::Connection;
use highwater_devdb::{Database, Options, Server};

/// Part of the rows that is loaded before the processes start, in hundredths.
const LOADED_PERCENT: usize = 85;
/// Batches that the rows are cut into at least, so that there is a call to fail and one to hold.
const BATCHES_MIN: usize = 12;
/// Most rows in a batch.
const BATCH_ROWS_MAX: usize = 1000;
/// Setting with the connection string.
const CONNECTION: &str = "DemoSqlConnection";

/// The components of the demo.
pub(super) struct Stage {
    /// The database behind the server.
    pub(super) database: Database,
    /// Receives the batches.
    pub(super) receiver: Receiver,
    /// What has been written since the processes were started.
    pub(super) written: Arc<WriteProgress>,
    /// Rows written before.
    pub(super) loaded: u64,
    /// Rows to be inserted later.
    pub(super) rest: u64,
    /// Rows that must have arrived before some of them are changed.
    pub(super) changeable: u64,
    work: Option<Work>,
    batch_rows: usize,
    server: Server,
    // The last field, so that the folder is removed after its files are closed.
    folder: Folder,
}

impl Stage {
    /// Sets up `rows` flights, and a receiver that reports to `happenings`.
    pub(super) async fn set(
        rows: u32,
        happenings: UnboundedSender<CallEvent>,
    ) -> Result<Self, String> {
        let folder =
            Folder::new().map_err(|error| format!("create a temporary folder: {error}"))?;
        let count = usize::try_from(rows).unwrap_or(usize::MAX);
        let batch_rows = (count / BATCHES_MIN).clamp(1, BATCH_ROWS_MAX);
        // The file store never creates its folder by itself.
        std::fs::create_dir_all(folder.path().join("state"))
            .map_err(|error| format!("create a folder for state: {error}"))?;
        let file = folder.path().join("flights.sqlite");
        let loading = tokio::task::spawn_blocking(move || load(&file, count));
        let (database, loaded, rest) = loading.await.map_err(|panic| panic.to_string())??;
        let server = Server::start(database.clone(), Options::default()).await;
        let server = server.map_err(|error| format!("start the embedded server: {error}"))?;
        let receiver = Receiver::start(happenings).await;
        let receiver = receiver.map_err(|error| format!("start the receiver: {error}"))?;
        Ok(Self {
            database,
            receiver,
            written: Arc::default(),
            loaded,
            rest: u64::try_from(rest.len()).unwrap_or(u64::MAX),
            changeable: u64::try_from(batch_rows).unwrap_or(u64::MAX),
            work: Some(Work::new(rest, batch_rows)),
            batch_rows,
            server,
            folder,
        })
    }

    /// Hands out the rows to write, once.
    pub(super) fn take_work(&mut self) -> Work {
        self.work.take().unwrap_or_else(|| Work::new(Vec::new(), 0))
    }

    /// Returns how the handler processes are started: as this very program.
    pub(super) fn launch(&self) -> Result<Launch, String> {
        let program = std::env::current_exe();
        let program = program.map_err(|error| format!("find this program: {error}"))?;
        let ours = |name: &String| name.starts_with("HIGHWATER_");
        Ok(Launch {
            program,
            root: self.folder.path().to_owned(),
            settings: std::array::from_fn::<_, { NAMES.len() }, _>(|worker| self.settings(worker)),
            hidden: ProcessVars.names().into_iter().filter(ours).collect(),
        })
    }

    fn settings(&self, worker: usize) -> Vec<(String, String)> {
        let general = [
            ("APP", "demo".to_owned()),
            ("LOG", FILTER.to_owned()),
            ("STATE__STORE", "file".to_owned()),
            ("STATE__FOLDER", self.folder.path().display().to_string()),
        ];
        let poller = [
            ("SOURCE__CONNECTION", CONNECTION.to_owned()),
            ("SOURCE__TABLE", TABLE.to_owned()),
            ("SOURCE__MODE", "rowversion".to_owned()),
            ("SOURCE__CURSOR", CURSOR.to_owned()),
            ("SOURCE__KEY", "id".to_owned()),
            ("HANDLER__KIND", "http".to_owned()),
            ("HANDLER__URL", self.receiver.url(worker)),
            // So that the failed call fails its tick.
            ("HANDLER__TRIES_MAX", "1".to_owned()),
            ("BATCH_ROWS_MAX", self.batch_rows.to_string()),
            // So that both processes get a turn.
            ("BATCHES_MAX", "3".to_owned()),
            // So that the takeover takes seconds; Azure needs 15 s at least.
            ("LEASE__TTL", "3s".to_owned()),
            ("RETRY_DELAY_MIN", "200ms".to_owned()),
        ];
        let prefix = format!("HIGHWATER__POLLERS__{}__", FUNCTION.to_uppercase());
        let connection = (CONNECTION.to_owned(), self.server.connection_string());
        let general = general.map(|(name, value)| (format!("HIGHWATER__{name}"), value));
        let poller = poller.map(|(name, value)| (format!("{prefix}{name}"), value));
        general.into_iter().chain(poller).chain([connection]).collect()
    }

    /// Reads the state of each row, over the wire as any client would.
    pub(super) async fn table(&self) -> Result<Vec<RowState>, String> {
        let settings = SqlConnection::parse(&self.server.connection_string());
        let settings = settings.map_err(|problems| problems.join("; "))?;
        let sql = format!("SELECT id, CAST({CURSOR} AS BIGINT) FROM {TABLE}");
        let read = |row: tiberius::Row| {
            let id = row.try_get::<i32, _>(0).ok().flatten();
            let version = row.try_get::<i64, _>(1).ok().flatten();
            Ok(id.zip(version.and_then(|version| u64::try_from(version).ok())))
        };
        let mut connection = Connection::new(settings, None);
        let rows = Box::pin(connection.query(&sql, &[], read)).await;
        let rows = rows.map_err(|error| format!("read the table: {}", chain(&error)))?;
        let states = rows.into_iter().map(|row| {
            let (id, version) = row?;
            Some(RowState { id: id.into(), version })
        });
        states.collect::<Option<_>>().ok_or_else(|| "read the table: a row without key".to_owned())
    }
}

fn load(file: &PathBuf, count: usize) -> Result<(Database, u64, Vec<Flight>), String> {
    let mut flights = flights::read(count).map_err(|error| format!("read flights: {error}"))?;
    let rest = flights.split_off(flights.len() * LOADED_PERCENT / 100);
    let wrong = |error| format!("load flights: {error}");
    let database = Database::open(file).map_err(wrong)?;
    let loaded = flights::load(&database, &flights).map_err(wrong)?;
    Ok((database, loaded, rest))
}
