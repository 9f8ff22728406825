//! A table that is replaced, or tracked again, between two ticks: the poller stops, the printed command fixes
//! that in the same process, and then every row of the table has been delivered.
//!
//! Rows are distinguished by a token in their payload: a new row may have the key and cursor of an old one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use highwater::admin::ResetTo;
use highwater::cursor::CursorMode::{self, ChangeTracking, IntegerPk, RowVersion, TimestampPk};
use highwater::error::chain;
use highwater::handler::{Delivery, Handler, HandlerError};
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::policy::FailurePolicy;
use highwater::poller::{Limits, Operator, Poller, PollerParts, outcome_row};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::state::{MemoryStore, StateDocument, StateKey, StateStore, decode, encode};
use highwater::testing::{Calls, FaultyStore};
use highwater::tick::TickRequest;

use crate::any_server::AnyServer;
use crate::ticks::limits;

const MODES: [CursorMode; 4] = [IntegerPk, TimestampPk, RowVersion, ChangeTracking];
const NAME: &str = "orders";

/// How often each token was delivered.
#[derive(Debug, Default)]
struct Tokens(Mutex<BTreeMap<String, u32>>);

#[async_trait]
impl Handler for Tokens {
    async fn handle(&self, delivery: Delivery<'_>) -> Result<(), HandlerError> {
        let mut seen = self.0.lock().unwrap();
        for event in delivery.events {
            let text = event.json.to_string();
            let Some((_, rest)) = text.split_once("\"tok-") else { continue };
            let token = rest.split('"').next().unwrap();
            *seen.entry(format!("tok-{token}")).or_default() += 1;
        }
        Ok(())
    }
}

/// A table and its poller.
struct Life {
    server: AnyServer,
    settings: SourceSettings,
    mode: CursorMode,
    memory: Arc<MemoryStore>,
    store: Arc<FaultyStore>,
    handler: Arc<Tokens>,
    second: u32,
    processes: u32,
    tokens: u32,
}

impl Life {
    async fn new(mode: CursorMode) -> Self {
        let server = AnyServer::start("ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON").await;
        let column = match mode {
            IntegerPk => "n",
            TimestampPk => "at",
            RowVersion => "rv",
            ChangeTracking => "id",
        };
        let mut settings = server.settings("dbo.t", mode, column);
        settings.key = vec!["id".to_owned()];
        let memory = Arc::new(MemoryStore::default());
        let store = Arc::new(FaultyStore::new(memory.clone()));
        let handler = Arc::default();
        let (second, processes, tokens) = (0, 0, 0);
        let life =
            Self { server, settings, mode, memory, store, handler, second, processes, tokens };
        life.create().await;
        life
    }

    async fn create(&self) {
        let table = "CREATE TABLE dbo.t (id int NOT NULL PRIMARY KEY, n int NOT NULL, \
                     at datetime2(7) NOT NULL, rv rowversion NOT NULL, note nvarchar(20))";
        self.server.execute(table).await;
        if self.mode == ChangeTracking {
            self.server.track("dbo.t").await;
        }
    }

    async fn drop_table(&self) {
        self.server.execute("DROP TABLE dbo.t").await;
    }

    /// Inserts rows with these numbers, with timestamps this many seconds ago.
    async fn insert(&mut self, numbers: std::ops::RangeInclusive<i64>, ago: u32) {
        for n in numbers {
            self.tokens += 1;
            let (token, at) = (self.tokens, i64::from(self.second) - i64::from(ago));
            self.server
                .execute(&format!(
                    "INSERT INTO dbo.t (id, n, at, note) VALUES \
                     ({n}, {n}, DATEADD(second, {at}, '2026-01-01T10:00:00'), N'tok-{token}')"
                ))
                .await;
        }
    }

    fn process(&mut self) -> Poller {
        self.processes += 1;
        Poller::new(PollerParts {
            name: NAME.to_owned(),
            source: Arc::new(Mssql::new(self.settings.clone()).unwrap()),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: Arc::new(Instance::new(format!("process {}", self.processes))),
            terms: LeaseTerms::of(Duration::from_secs(30)),
            limits: Limits { retry_delay_min: Duration::ZERO, ..limits(4) },
            policy: FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        })
    }

    async fn tick(&mut self, process: &Poller) -> Result<u64, String> {
        self.second += 10;
        self.server.at(self.second).await;
        let report = process.tick(&TickRequest::default()).await;
        if report.result.is_err() {
            assert_eq!(outcome_row(&report.result).event, "position_lost");
        }
        report.result.map(|_| report.rows).map_err(|error| chain(&error))
    }

    /// Ticks until nothing more is delivered.
    async fn quiet(&mut self, process: &Poller) {
        let mut idle = 0;
        for _ in 0..20 {
            let rows = self.tick(process).await.unwrap_or_else(|error| panic!("{error}"));
            idle = if rows == 0 { idle + 1 } else { 0 };
            // A row of mode `integer+pk` waits for two ticks.
            if idle == 3 {
                return;
            }
        }
        panic!("ticks do not come to rest");
    }

    /// Runs the first command that an error prints and whose action is `action`.
    async fn remedy(&mut self, error: &str, action: &str) {
        let printed = error.split('`').find(|part| part.starts_with("highwater reset orders"));
        let printed = error
            .split('`')
            .find(|part| part.starts_with(&format!("highwater reset {NAME} {action} ")))
            .unwrap_or_else(|| panic!("{error}: {printed:?}"));
        assert!(printed.contains("--reason \""), "{printed}");
        let to = if action == "keep" { ResetTo::Keep } else { ResetTo::Beginning };
        let command = self.process();
        let plan = Box::pin(command.admin().plan_reset(to, printed.contains("--new-source")))
            .await
            .unwrap();
        assert!(plan.changes(), "{printed}");
        let by = Operator { by: "ann", reason: "printed" };
        Box::pin(command.admin().reset(&plan, "reset-1".to_owned(), by)).await.unwrap();
    }

    fn forget_deliveries(&self) {
        self.handler.0.lock().unwrap().clear();
    }

    /// Returns which of the last `rows` rows were not delivered.
    fn missing(&self, rows: u32) -> Vec<u32> {
        let seen = self.handler.0.lock().unwrap();
        (self.tokens - rows + 1..=self.tokens)
            .filter(|token| !seen.contains_key(&format!("tok-{token}")))
            .collect()
    }

    async fn document(&self) -> StateDocument {
        let stored = self.memory.load(&StateKey::Document(NAME.to_owned())).await.unwrap().stored;
        decode(NAME, &stored.unwrap().bytes).unwrap()
    }

    async fn overwrite(&self, document: &StateDocument) {
        let key = StateKey::Document(NAME.to_owned());
        let etag = self.memory.load(&key).await.unwrap().stored.unwrap().etag;
        let matches = highwater::state::Precondition::Matches(etag);
        self.memory.store(&key, encode(document), matches).await.unwrap();
    }
}

#[tokio::test]
async fn a_recreated_table_stops_the_poller_until_a_reset() {
    for mode in MODES {
        let mut life = Life::new(mode).await;
        let warm = life.process();
        life.insert(1..=10, 0).await;
        life.quiet(&warm).await;
        assert_eq!(life.missing(10), [0; 0], "{mode}");
        life.drop_table().await;
        life.create().await;
        // Numbers restart, and times are in the distant past.
        life.insert(1..=15, 1_000).await;
        let error = life.tick(&warm).await.unwrap_err();
        let cold = life.process();
        let cold = life.tick(&cold).await.unwrap_err();
        assert_eq!(error, cold, "{mode}");
        life.remedy(&error, "to-beginning").await;
        life.quiet(&warm).await;
        assert_eq!(life.missing(15), [0; 0], "{mode}");
    }
}

#[tokio::test]
async fn a_table_replaced_by_its_copy_continues_at_its_position() {
    for mode in [IntegerPk, TimestampPk] {
        let mut life = Life::new(mode).await;
        let warm = life.process();
        life.insert(1..=3, 0).await;
        life.quiet(&warm).await;
        life.server
            .execute(
                "CREATE TABLE dbo.u (id int, n int, at datetime2(7), note nvarchar(20)); \
                             INSERT INTO dbo.u (id, n, at, note) SELECT id, n, at, note FROM dbo.t",
            )
            .await;
        life.drop_table().await;
        life.create().await;
        let copied = "INSERT INTO dbo.t (id, n, at, note) SELECT id, n, at, note FROM dbo.u";
        life.server.execute(copied).await;
        life.insert(4..=6, 0).await;
        let error = life.tick(&warm).await.unwrap_err();
        assert!(error.contains("table was object "), "{mode}: {error}");
        life.forget_deliveries();
        life.remedy(&error, "keep").await;
        life.quiet(&warm).await;
        assert_eq!(life.handler.0.lock().unwrap().len(), 3, "{mode}: only new rows");
        assert_eq!(life.missing(3), [0; 0], "{mode}");
        let cold = life.process();
        assert_eq!(life.tick(&cold).await, Ok(0), "the new table is known");
    }
}

#[tokio::test]
async fn a_truncated_table_continues_after_its_old_position() {
    // Without an identity the writer assigns the numbers: an empty table does not mean that they restart.
    for mode in [IntegerPk, TimestampPk, RowVersion] {
        let mut life = Life::new(mode).await;
        let warm = life.process();
        life.insert(1..=3, 0).await;
        life.quiet(&warm).await;
        life.server.execute("TRUNCATE TABLE dbo.t").await;
        assert_eq!(life.tick(&warm).await, Ok(0), "{mode}");
        life.insert(4..=6, 0).await;
        life.quiet(&warm).await;
        assert_eq!(life.missing(6), [0; 0], "{mode}");
    }
    // With change tracking the tracked changes are gone with the rows.
    let mut life = Life::new(ChangeTracking).await;
    let warm = life.process();
    life.insert(1..=3, 0).await;
    life.quiet(&warm).await;
    life.insert(4..=4, 0).await;
    life.server.execute("TRUNCATE TABLE dbo.t").await;
    life.insert(5..=6, 0).await;
    let error = life.tick(&warm).await.unwrap_err();
    life.remedy(&error, "to-beginning").await;
    life.quiet(&warm).await;
    assert_eq!(life.missing(2), [0; 0]);
}

const OFF: &str = "ALTER TABLE dbo.t DISABLE CHANGE_TRACKING";
const ON: &str = "ALTER TABLE dbo.t ENABLE CHANGE_TRACKING";

#[tokio::test]
async fn reenabled_tracking_stops_the_poller_until_a_reset() {
    for ticks_while_off in [0, 2] {
        for is_warm in [true, false] {
            // Rows from before tracking started have no version: it restarts at the same one.
            for before_tracking in [true, false] {
                let case = format!("{ticks_while_off} {is_warm} {before_tracking}");
                let mut life = Life::new(ChangeTracking).await;
                if before_tracking {
                    life.server.execute(OFF).await;
                }
                life.insert(1..=2, 0).await;
                if before_tracking {
                    life.server.execute(ON).await;
                }
                let mut process = life.process();
                life.quiet(&process).await;
                life.server.execute(OFF).await;
                life.insert(3..=4, 0).await;
                life.store.take_calls();
                for _ in 0..ticks_while_off {
                    if !is_warm {
                        process = life.process();
                    }
                    life.tick(&process).await.unwrap_err();
                }
                life.server.execute(ON).await;
                life.insert(5..=6, 0).await;
                let mut error = String::new();
                for _ in 0..3 {
                    if !is_warm {
                        process = life.process();
                    }
                    error = life.tick(&process).await.unwrap_err();
                }
                let Calls { puts, refused, .. } = life.store.take_calls();
                // After tracking is on again, the server has no trace of the gap.
                assert_eq!((puts, refused), (u64::from(ticks_while_off > 0), 0), "{case}");
                life.remedy(&error, "to-beginning").await;
                life.quiet(&process).await;
                assert_eq!(life.missing(6), [0; 0], "{case}");
            }
        }
    }
}

#[tokio::test]
async fn documents_of_earlier_versions_record_the_table_with_their_next_write() {
    for mode in MODES {
        let mut life = Life::new(mode).await;
        let first = life.process();
        life.insert(1..=2, 0).await;
        life.quiet(&first).await;
        let mut old = life.document().await;
        assert!(old.source_state.contains_key("table"), "{mode}");
        assert_eq!(old.source_state.contains_key("tracking"), mode == ChangeTracking);
        assert!(old.source_state.contains_key("column_types"), "{mode}");
        assert!(!old.source_definition.is_empty());
        for name in ["table", "tracking", "column_types"] {
            old.source_state.remove(name);
        }
        old.source_definition = highwater::cursor::SourceDefinition::default();
        life.overwrite(&old).await;
        let mut process = life.process();
        life.store.take_calls();
        assert_eq!(life.tick(&process).await, Ok(0), "{mode}");
        let calls = life.store.take_calls();
        assert_eq!((calls.puts, calls.refused), (0, 0), "{mode}: an idle tick writes nothing");
        life.insert(3..=3, 0).await;
        life.quiet(&process).await;
        let new = life.document().await;
        for name in ["table", "column_types"] {
            assert!(new.source_state.contains_key(name), "{mode}: {name}");
        }
        assert!(!new.source_definition.is_empty());
        life.drop_table().await;
        life.create().await;
        process = life.process();
        life.tick(&process).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_recreated_view_is_the_same_source() {
    let mut life = Life::new(RowVersion).await;
    let view = "CREATE VIEW dbo.v AS SELECT id, rv, note FROM dbo.t";
    life.server.execute(view).await;
    life.settings = life.server.settings("dbo.v", RowVersion, "rv");
    let warm = life.process();
    life.insert(1..=2, 0).await;
    life.quiet(&warm).await;
    assert!(!life.document().await.source_state.contains_key("table"));
    life.server.execute("DROP VIEW dbo.v").await;
    life.server.execute(view).await;
    life.insert(3..=4, 0).await;
    life.quiet(&warm).await;
    assert_eq!(life.missing(4), [0; 0]);
}

#[tokio::test]
async fn a_name_in_another_letter_case_is_accepted_at_its_position() {
    let mut life = Life::new(IntegerPk).await;
    let process = life.process();
    life.insert(1..=3, 0).await;
    life.quiet(&process).await;
    life.settings = life.server.settings("dbo.T", IntegerPk, "n");
    let renamed = life.process();
    let report = renamed.tick(&TickRequest::default()).await;
    let error = chain(&report.result.unwrap_err());
    assert!(error.contains("object was `dbo.t`, is now `dbo.T`; revert the setting"), "{error}");
    life.remedy(&error, "keep").await;
    life.insert(4..=5, 0).await;
    life.forget_deliveries();
    life.quiet(&renamed).await;
    let delivered: Vec<_> = life.handler.0.lock().unwrap().keys().cloned().collect();
    assert_eq!(delivered, ["tok-4", "tok-5"]);
}
