//! The test setup: a database with a table, a target, a state folder, and hosts over them.

use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use highwater_devdb::{Database, Options as ServerOptions, Server};
use highwater_fakehost::{
    CONSOLE_CATEGORY, Connection, EXIT_CODE_RESTART, FakeHost, Invocation, Level, Options, Outcome,
    Phase, Record, Reply, Signal, Timers, Verdict, judge,
};
use serde_json::Value as Json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::data;
use crate::receiver::Receiver;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_highwater");

/// Returns the program as installed: with a handler next to it. The command-line program stands in for the
/// handler, since it serves by the same function.
pub(crate) fn installed() -> PathBuf {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    let path = INSTALLED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["highwater", "handler"] {
            // Avoids a copy of a hundred megabytes.
            std::fs::hard_link(PROGRAM, folder.join(name)).unwrap();
        }
        folder.join("highwater")
    });
    path.clone()
}

/// Longer than any step of these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Bench {
    pub(crate) database: Database,
    pub(crate) receiver: Receiver,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) options: Options,
    pub(crate) folder: TempDir,
    pub(crate) server: Server,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        let database = Database::in_memory().unwrap();
        let table = "CREATE TABLE dbo.orders \
            (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, version rowversion NOT NULL)";
        database.execute(table).unwrap();
        let options = ServerOptions { tls: false, ..ServerOptions::default() };
        let server = Server::start(database.clone(), options).await.unwrap();
        let receiver = Receiver::start().await;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("nightly")).unwrap();
        for file in ["host.json", "nightly/function.json"] {
            std::fs::copy(data::path("config").join(file), root.join(file)).unwrap();
        }
        let mut bench = Self {
            database,
            env: BTreeMap::new(),
            options: Options {
                inherit_env: false,
                terminate_first: true,
                ..Options::new(PROGRAM, root)
            },
            server,
            receiver,
            folder,
        };
        let url = bench.receiver.url.clone();
        let connection = bench.server.connection_string();
        let state = bench.folder.path().to_str().unwrap().to_owned();
        std::fs::create_dir_all(bench.folder.path().join("state")).unwrap();
        bench.set_env("SqlConnection", &connection);
        bench.set_env("HIGHWATER__STATE__STORE", "file");
        bench.set_env("HIGHWATER__STATE__FOLDER", &state);
        bench.set("SOURCE__CONNECTION", "SqlConnection");
        bench.set("SOURCE__TABLE", "dbo.orders");
        bench.set("SOURCE__CURSOR", "version");
        bench.set("SOURCE__KEY", "id");
        bench.set("HANDLER__KIND", "http");
        bench.set("HANDLER__URL", &url);
        bench.set("HANDLER__TRIES_MAX", "1");
        bench.set("LEASE__TTL", "2s");
        bench
    }

    /// The same with rows in the table.
    pub(crate) async fn with_rows(ids: RangeInclusive<i64>) -> Self {
        let bench = Self::new().await;
        bench.insert(ids);
        bench
    }

    /// Sets a setting of the poller.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.set_env(&format!("HIGHWATER__POLLERS__NIGHTLY__{name}"), value);
    }

    /// Removes a setting of the poller.
    pub(crate) fn unset(&mut self, name: &str) {
        self.env.remove(&format!("HIGHWATER__POLLERS__NIGHTLY__{name}"));
    }

    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        self.env.insert(name.to_owned(), value.to_owned());
    }

    /// Adds a poller with the settings of `nightly`.
    pub(crate) fn add_poller(&mut self, name: &str) {
        let settings = self.env.iter().filter_map(|(key, value)| {
            let key = key.strip_prefix("HIGHWATER__POLLERS__NIGHTLY__")?;
            let poller = name.to_uppercase();
            Some((format!("HIGHWATER__POLLERS__{poller}__{key}"), value.clone()))
        });
        let settings: Vec<(String, String)> = settings.collect();
        self.env.extend(settings);
    }

    pub(crate) fn insert(&self, ids: RangeInclusive<i64>) {
        for id in ids {
            let sql = format!("INSERT INTO dbo.orders (id, item) VALUES ({id}, N'item {id}')");
            self.database.execute(&sql).unwrap();
        }
    }

    /// Starts a host and waits for its handler.
    pub(crate) async fn host(&self) -> Host {
        self.host_with(Timers::default()).await
    }

    /// The same over the storage account of another host.
    pub(crate) async fn host_with(&self, timers: Timers) -> Host {
        let env = self.env.clone();
        Host::over(FakeHost::start(Options { env, timers, ..self.options.clone() }).unwrap()).await
    }

    /// Returns a port that a host used and that is free again.
    pub(crate) async fn free_port(&self) -> u16 {
        let host = self.host().await;
        host.finish().await;
        host.port()
    }

    /// Returns the state document.
    pub(crate) fn state(&self) -> Json {
        let text = std::fs::read_to_string(self.state_path()).unwrap();
        let (_header, document) = text.split_once('\n').unwrap();
        serde_json::from_str(document).unwrap()
    }

    pub(crate) fn state_path(&self) -> PathBuf {
        self.folder.path().join("state/local/nightly.json")
    }
}

/// A host that must be able to judge all replies: see [`Drop`].
#[derive(Clone)]
pub(crate) struct Host(FakeHost);

impl Deref for Host {
    type Target = FakeHost;

    fn deref(&self) -> &FakeHost {
        &self.0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let records = self.journal().records();
        let hung = records.iter().find(|record| record.message.contains("would never end"));
        assert!(hung.is_none() || std::thread::panicking(), "{hung:#?}");
    }
}

impl Host {
    /// Waits for the handler of a host.
    pub(crate) async fn over(host: FakeHost) -> Self {
        let phase = host.ready(1).await;
        assert!(matches!(phase, Phase::Ready { .. }), "{phase:?} {:#?}", host.journal().records());
        Self(host)
    }

    /// Stops the handler from outside, whatever it runs.
    pub(crate) async fn force_stop(&self) {
        self.signal(Signal::Terminate).await.unwrap();
        self.event("stopping").await;
        self.signal(Signal::Terminate).await.unwrap();
    }

    /// Runs `nightly` with an ordinary body.
    pub(crate) async fn run(&self) -> Outcome {
        self.invoke(Invocation::new("nightly", data::body("01_scheduled"))).await
    }

    /// Runs `nightly` repeatedly until `done` holds.
    pub(crate) async fn run_until(&self, done: impl Fn() -> bool) -> Outcome {
        let end = Instant::now() + LIMIT;
        loop {
            let outcome = self.run().await;
            if done() {
                return outcome;
            }
            assert!(Instant::now() < end, "{outcome:?} {:#?}", self.journal().records());
            sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        let phase = self.phase();
        let Phase::Ready { pid, .. } = phase else { panic!("{phase:?}") };
        pid
    }

    /// Waits for a JSON line of the handler, on a stream or in a reply, and returns it with its level at the
    /// host.
    pub(crate) async fn line(&self, fits: impl Fn(&Json) -> bool) -> (Level, Json) {
        let parse = |text: &str| serde_json::from_str::<Json>(text).ok();
        let found = self.journal().find(LIMIT, |record| {
            let is_ours = record.category == CONSOLE_CATEGORY || record.category.ends_with(".User");
            is_ours && parse(&record.message).is_some_and(|l| fits(&l))
        });
        let Some(record) = found.await else {
            panic!("no such line: {:#?}", self.journal().records());
        };
        (record.level, parse(&record.message).unwrap())
    }

    /// Waits for a line of an event.
    pub(crate) async fn event(&self, event: &str) -> (Level, Json) {
        self.line(|line| line["event"] == event).await
    }

    /// Returns all lines of the handler's log, which are JSON objects.
    pub(crate) fn lines(&self) -> Vec<(Level, Json)> {
        let records = self.journal().records().into_iter();
        let lines = records.filter(|record| record.category == CONSOLE_CATEGORY);
        lines
            .map(|record| {
                let line: Json = serde_json::from_str(&record.message)
                    .unwrap_or_else(|error| panic!("{error}: {}", record.message));
                assert!(line.is_object(), "{line}");
                (record.level, line)
            })
            .collect()
    }

    /// Ends a run without errors: the exit code after SIGTERM, and no line above Information.
    pub(crate) async fn finish(&self) {
        let exit = self.stop().await.expect("it exits on request");
        assert_eq!(exit.code, EXIT_CODE_RESTART);
        assert_eq!(self.exits().len(), 1);
        let records = self.journal().records();
        // The warning about a collector that a test breaks.
        let expected = "telemetry_export_failed";
        let is_loud = |record: &&Record| {
            record.level > Level::Information && !record.message.contains(expected)
        };
        let loud: Vec<_> = records.iter().filter(is_loud).collect();
        assert!(loud.is_empty(), "{loud:#?}");
        self.lines();
    }
}

/// Sends a complete request on a separate connection, and judges the reply.
pub(crate) async fn exchange(port: u16, request: &str) -> io::Result<(Verdict, Reply)> {
    let reply = Connection::open(port).await?.exchange(request.as_bytes()).await?;
    let verdict = judge(Some(&reply));
    assert!(!matches!(verdict, Verdict::Hang(_)), "{request}: {reply:?}");
    Ok((verdict, reply))
}

/// Waits for something with a limit.
pub(crate) async fn within<T>(limit: Duration, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, what).await.expect("it does not take that long")
}

/// Returns the logs of a success.
pub(crate) fn logs(outcome: &Outcome) -> Vec<String> {
    let Verdict::Success(logs) = &outcome.verdict else { panic!("{outcome:?}") };
    logs.iter().flatten().cloned().collect()
}

/// Returns the log line in the reply of a tick.
pub(crate) fn answered(reply: &Reply) -> Json {
    let envelope: Json = serde_json::from_slice(&reply.body).unwrap();
    let line = envelope["Logs"][0].as_str().unwrap();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Returns the text of a failure.
pub(crate) fn failure(outcome: &Outcome) -> &str {
    let Verdict::Failure(text) = &outcome.verdict else { panic!("{outcome:?}") };
    text
}
