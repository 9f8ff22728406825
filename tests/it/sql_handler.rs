//! The handler `sql` over the real driver and TLS, on the SQL Server under test.

use std::time::Duration;

use highwater::config::{LedgerConfig, SqlConnection, SqlHandlerConfig};
use highwater::cursor::{Cursor, KeyValues, RowVersion};
use highwater::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest, Operation, SourceLabel};
use highwater::handler::sql::{Sql, create_fence, create_ledger, table_name};
use highwater::handler::{
    CallTries, Delivery, Handler as _, HandlerError, Progress, ReplayGuard, Reread,
};
use highwater::state::{FencingToken, Generation};
use highwater::value::Value;

use crate::any_server::AnyServer;

pub(crate) const FENCE: &str = "dbo.highwater_fence";
pub(crate) const LEDGER: &str = "dbo.highwater_ledger";
pub(crate) const COPIES: &str = "CREATE TABLE dbo.copies (id int NOT NULL PRIMARY KEY, \
    item nvarchar(9) NULL, amount decimal(9, 2) NULL, own int NOT NULL DEFAULT 7)";

/// Statements that create the fence and the ledger.
pub(crate) fn tables() -> String {
    let (fence, ledger) = (table_name("t", FENCE).unwrap(), table_name("t", LEDGER).unwrap());
    format!("{} {}", create_fence(&fence), create_ledger(&ledger))
}

pub(crate) fn config(connection: SqlConnection) -> SqlHandlerConfig {
    SqlHandlerConfig {
        connection_setting: "Target".to_owned(),
        connection,
        table: "dbo.copies".to_owned(),
        key: None,
        columns: None,
        deletes: true,
        fence_table: FENCE.to_owned(),
        ledger: None,
        timeout: Duration::from_secs(60),
        tries_max: 3,
    }
}

pub(crate) fn with_ledger(config: SqlHandlerConfig) -> SqlHandlerConfig {
    let ledger = Some(LedgerConfig { table: LEDGER.to_owned(), days: 7 });
    SqlHandlerConfig { ledger, ..config }
}

/// The grant that batches are delivered under, unless a test says otherwise.
pub(crate) const GRANT: (u64, u64) = (1_700_000_000_000, 3);

fn label() -> SourceLabel {
    SourceLabel { poller: "orders".to_owned(), object: "dbo.orders".to_owned(), mode: "rowversion" }
}

/// The state of row `id` at a version: its item, or `None` if it was deleted.
pub(crate) fn event(version: u64, id: i64, item: Option<&str>) -> ChangeEvent {
    let mut key = KeyValues::new();
    key.insert("id".to_owned(), id.into());
    let cursor = Cursor::row_version(RowVersion(version), key);
    let Some(item) = item else {
        return ChangeEvent::encode(&label(), Operation::Delete, cursor, &[]);
    };
    event_of(cursor, id, item, &format!("{version}.50"))
}

/// The state of a row with an amount that the target may not be able to hold.
pub(crate) fn event_of(cursor: Cursor, id: i64, item: &str, amount: &str) -> ChangeEvent {
    let (id, item) = (Value::Int(id), Value::Text(item.to_owned()));
    let amount = Value::Text(amount.to_owned());
    let columns = [("id", &id), ("item", &item), ("amount", &amount)];
    ChangeEvent::encode(&label(), Operation::Upsert, cursor, &columns)
}

pub(crate) async fn deliver(sql: &Sql, events: &[ChangeEvent]) -> Result<(), HandlerError> {
    deliver_under(sql, GRANT, None, events).await
}

pub(crate) async fn deliver_under(
    sql: &Sql,
    (generation, token): (u64, u64),
    replay_id: Option<&str>,
    events: &[ChangeEvent],
) -> Result<(), HandlerError> {
    deliver_as(sql, ("orders", None), (generation, token), replay_id, events).await
}

/// Delivers under another name, alongside the poller of the events.
pub(crate) async fn deliver_as(
    sql: &Sql,
    (poller, rows): (&str, Option<&dyn Reread>),
    (generation, token): (u64, u64),
    replay_id: Option<&str>,
    events: &[ChangeEvent],
) -> Result<(), HandlerError> {
    let identity = BatchIdentity {
        poller: "orders",
        generation,
        replay_id,
        after: None,
        upto: &events.last().unwrap().cursor,
        digest: &EventsDigest::of(events),
    };
    let source = label();
    let delivery = Delivery {
        poller,
        source: &source,
        batch_id: &BatchId::of(&identity),
        generation: Generation(generation),
        fencing_token: FencingToken(token),
        step: None,
        started_at: time::OffsetDateTime::UNIX_EPOCH,
        attempt: 1,
        tries: CallTries::Several,
        replay_id,
        replay_guard: rows.map(|rows| ReplayGuard { poller: &source.poller, rows }),
        events,
        traceparent: None,
        tracestate: None,
        progress: &Progress::default(),
    };
    sql.handle(delivery).await
}

/// A server with the target, the fence and the ledger.
pub(crate) struct World(AnyServer);

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(COPIES).await
    }

    async fn with(target: &str) -> Self {
        Self(AnyServer::start(&format!("{target}; {}", tables())).await)
    }

    fn config(&self) -> SqlHandlerConfig {
        config(self.0.connection())
    }

    pub(crate) fn handler(&self) -> Sql {
        Sql::new("shop", &self.config()).unwrap()
    }

    pub(crate) fn handler_with_ledger(&self) -> Sql {
        Sql::new("shop", &with_ledger(self.config())).unwrap()
    }

    async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.0.session().await.run(sql).await;
        rows.iter().map(|row| row.get::<&str, _>(0).unwrap().to_owned()).collect()
    }

    /// The target, one line per row.
    pub(crate) async fn copies(&self) -> Vec<String> {
        let line = "CONCAT(id, N' ', item, N' ', amount, N' ', own)";
        self.texts(&format!("SELECT {line} AS t FROM dbo.copies ORDER BY id")).await
    }

    pub(crate) async fn fence(&self) -> Vec<String> {
        let line = "CONCAT(app, N'/', poller, N' ', generation, N' ', token)";
        self.texts(&format!("SELECT {line} AS t FROM {FENCE}")).await
    }

    pub(crate) async fn noted(&self) -> usize {
        self.texts(&format!("SELECT app AS t FROM {LEDGER}")).await.len()
    }
}

#[tokio::test]
async fn rows_are_inserted_changed_and_deleted_by_their_key() {
    let world = World::start().await;
    let sql = world.handler();
    deliver(&sql, &[event(1, 1, Some("a")), event(2, 2, Some("b")), event(3, 3, Some("c"))])
        .await
        .unwrap();
    world.0.execute("UPDATE dbo.copies SET own = 8").await;
    deliver(&sql, &[event(4, 2, Some("B")), event(5, 3, None), event(6, 4, Some("d"))])
        .await
        .unwrap();
    assert_eq!(world.copies().await, ["1 a 1.50 8", "2 B 4.50 8", "4 d 6.50 7"]);
    assert_eq!(world.fence().await, ["shop/orders 1700000000000 3"]);
}

#[tokio::test]
async fn the_last_of_several_row_states_is_written() {
    let world = World::start().await;
    let sql = world.handler_with_ledger();
    let events = [
        event(1, 1, Some("a")),
        event(2, 1, Some("b")),
        event(3, 2, Some("x")),
        event(4, 2, None),
        event(5, 3, None),
        event(6, 3, Some("y")),
    ];
    deliver(&sql, &events).await.unwrap();
    assert_eq!(world.copies().await, ["1 b 2.50 7", "3 y 6.50 7"]);
    assert_eq!(world.noted().await, 6);
}

#[tokio::test]
async fn a_stale_owner_is_rejected_and_changes_nothing() {
    let world = World::start().await;
    let (old, new) = (world.handler_with_ledger(), world.handler_with_ledger());
    deliver_under(&old, (5, 3), None, &[event(1, 1, Some("a"))]).await.unwrap();
    // Many batches share a token.
    deliver_under(&old, (5, 3), None, &[event(2, 2, Some("b"))]).await.unwrap();
    deliver_under(&new, (5, 4), None, &[event(3, 1, Some("c"))]).await.unwrap();
    let before = (world.copies().await, world.fence().await, world.noted().await);
    assert_eq!(before.1, ["shop/orders 5 4"]);
    let stale = [event(4, 1, Some("stale")), event(5, 2, None), event(6, 9, Some("stale"))];
    for _ in 0..2 {
        let refused = deliver_under(&old, (5, 3), None, &stale).await.unwrap_err();
        let HandlerError::Fenced(refused) = refused else { panic!("{refused}") };
        assert_eq!((refused.stale.token.0, refused.current.token.0), (3, 4));
    }
    assert_eq!((world.copies().await, world.fence().await, world.noted().await), before);
    // A recreated document restarts its tokens, under a higher generation.
    deliver_under(&old, (6, 1), None, &stale).await.unwrap();
    let refused = deliver_under(&new, (5, 9), None, &stale).await.unwrap_err();
    assert!(matches!(refused, HandlerError::Fenced(_)), "{refused}");
    assert_eq!(world.fence().await, ["shop/orders 6 1"]);
}

#[tokio::test]
async fn each_poller_of_each_application_has_a_fence_of_its_own() {
    let world = World::start().await;
    let events = [event(1, 1, Some("a"))];
    let (shop, other) = (world.handler(), Sql::new("Shop", &world.config()).unwrap());
    deliver_under(&shop, (5, 9), None, &events).await.unwrap();
    deliver_under(&other, (4, 1), None, &events).await.unwrap();
    let mut fences = world.fence().await;
    fences.sort();
    assert_eq!(fences, ["Shop/orders 4 1", "shop/orders 5 9"]);
}

#[tokio::test]
async fn an_event_in_the_ledger_is_not_applied_again() {
    let world = World::start().await;
    let sql = world.handler_with_ledger();
    let events = [event(1, 1, Some("a")), event(2, 2, Some("b"))];
    deliver(&sql, &events).await.unwrap();
    // A value that an application must keep: a second write would overwrite it.
    world
        .0
        .execute("UPDATE dbo.copies SET item = N'kept'; DELETE FROM dbo.copies WHERE id = 2")
        .await;
    let again = world.handler_with_ledger();
    deliver(&again, &[events.as_slice(), &[event(3, 3, Some("c"))]].concat()).await.unwrap();
    assert_eq!(world.copies().await, ["1 kept 1.50 7", "3 c 3.50 7"]);
    assert_eq!(world.noted().await, 3);
    // They are duplicates on purpose; but each replay applies them once.
    deliver_under(&sql, GRANT, Some("replay-1"), &events).await.unwrap();
    assert_eq!(world.copies().await, ["1 a 1.50 7", "2 b 2.50 7", "3 c 3.50 7"]);
    world.0.execute("UPDATE dbo.copies SET item = N'kept'").await;
    deliver_under(&sql, GRANT, Some("replay-1"), &events).await.unwrap();
    assert_eq!(world.copies().await, ["1 kept 1.50 7", "2 kept 2.50 7", "3 kept 3.50 7"]);
    // Without a ledger a row is written as often as it is delivered, with the same result.
    deliver(&world.handler(), &events).await.unwrap();
    assert_eq!(world.copies().await, ["1 a 1.50 7", "2 b 2.50 7", "3 kept 3.50 7"]);
}

#[tokio::test]
async fn a_ledger_removes_old_events_but_none_that_may_be_redelivered() {
    let world = World::start().await;
    let age = format!("UPDATE {LEDGER} SET applied_at = DATEADD(DAY, -8, SYSUTCDATETIME())");
    deliver(&world.handler_with_ledger(), &[event(1, 1, Some("a"))]).await.unwrap();
    world.0.execute(&age).await;
    let sql = world.handler_with_ledger();
    deliver(&sql, &[event(1, 1, Some("a")), event(2, 2, Some("b"))]).await.unwrap();
    assert_eq!(world.noted().await, 2, "one of them has come again, so more may");
    let sql = world.handler_with_ledger();
    deliver(&sql, &[event(3, 3, Some("c"))]).await.unwrap();
    assert_eq!(world.noted().await, 2, "the first is forgotten");
}

/// Three columns: 699 rows fit into a statement.
#[tokio::test]
async fn a_batch_of_several_statements_is_atomic() {
    let world = World::start().await;
    let sql = world.handler_with_ledger();
    let mut version = 0;
    for rows in [699, 700, 1_399] {
        let events: Vec<_> = (1..=rows)
            .map(|id| {
                version += 1;
                event(version, id, Some("a"))
            })
            .collect();
        deliver(&sql, &events).await.unwrap();
        let expected = usize::try_from(rows).unwrap();
        assert_eq!(world.copies().await.len(), expected);
    }
    let before = (world.copies().await, world.noted().await);
    let mut events: Vec<_> = (5_001..5_701).map(|id| event(5_000, id, Some("b"))).collect();
    events.extend((1..1_400).map(|id| event(5_001, id, None)));
    events.push(event(5_002, 9_999, Some("much too long")));
    let refused = deliver(&sql, &events).await.unwrap_err();
    assert!(matches!(refused, HandlerError::Rejected(_)), "{refused}");
    assert!((world.copies().await, world.noted().await) == before, "something is left");
    events.pop();
    deliver(&sql, &events).await.unwrap();
    assert_eq!(world.copies().await.len(), 700);
}

#[tokio::test]
async fn columns_are_mapped_as_configured() {
    let world = World::with(
        "CREATE TABLE dbo.copies (number bigint NOT NULL PRIMARY KEY, text nvarchar(20) NULL, \
         rv rowversion NOT NULL)",
    )
    .await;
    let pair = |source: &str, target: &str| (source.to_owned(), target.to_owned());
    let columns = Some(vec![pair("ID", "Number"), pair("item", "text")]);
    let sql = Sql::new("shop", &SqlHandlerConfig { columns, ..world.config() }).unwrap();
    deliver(&sql, &[event(1, 1, Some("a")), event(2, 2, Some("b"))]).await.unwrap();
    deliver(&sql, &[event(3, 1, None)]).await.unwrap();
    let line = "CONCAT(number, N' ', text)";
    assert_eq!(world.texts(&format!("SELECT {line} AS t FROM dbo.copies")).await, ["2 b"]);
    let ignoring = SqlHandlerConfig { deletes: false, columns: None, ..world.config() };
    let sql = Sql::new("shop", &ignoring).unwrap();
    deliver(&sql, &[event(4, 2, None)]).await.unwrap();
    assert_eq!(world.texts("SELECT text AS t FROM dbo.copies").await, ["b"]);
}

#[tokio::test]
async fn errors_in_settings_or_target_include_a_fix() {
    let world = World::with(
        "CREATE TABLE dbo.copies (id int NOT NULL PRIMARY KEY, item nvarchar(9) NULL, \
         amount int IDENTITY(1, 1) NOT NULL, rv rowversion NOT NULL)",
    )
    .await;
    let pairs = |names: &[&str]| {
        let pair = |name: &&str| ((*name).to_owned(), (*name).to_owned());
        Some(names.iter().map(pair).collect::<Vec<_>>())
    };
    let to_version =
        Some(vec![("id".to_owned(), "id".to_owned()), ("item".to_owned(), "rv".to_owned())]);
    let config = world.config();
    let key = |name: &str| Some(vec![name.to_owned()]);
    let upsert = [event(1, 1, Some("a"))];
    for (config, events, expected) in [
        (config.clone(), &upsert, "column `amount` of the target is an `IDENTITY`"),
        (
            SqlHandlerConfig { columns: to_version, ..config.clone() },
            &upsert,
            "column `rv` of the target is a `rowversion`",
        ),
        (
            SqlHandlerConfig { columns: pairs(&["item"]), ..config.clone() },
            &upsert,
            "key column `id` of the source is not among those of `HANDLER__COLUMNS`",
        ),
        (
            SqlHandlerConfig { columns: pairs(&["id", "none"]), ..config.clone() },
            &upsert,
            "the target `dbo.copies` has no column `none`",
        ),
        (
            SqlHandlerConfig {
                columns: pairs(&["id", "item"]),
                key: key("other"),
                ..config.clone()
            },
            &upsert,
            "column `other` of `HANDLER__KEY` is not written",
        ),
        (
            SqlHandlerConfig { columns: pairs(&["id", "item"]), key: key("item"), ..config },
            &[event(2, 1, None)],
            "set `HANDLER__DELETES` to `ignore`",
        ),
    ] {
        let sql = Sql::new("shop", &config).unwrap();
        assert_misconfigured(deliver(&sql, events).await, expected);
    }
    assert_eq!(world.fence().await, [""; 0], "nothing has been written");
}

#[track_caller]
fn assert_misconfigured(result: Result<(), HandlerError>, expected: &str) {
    let error = result.unwrap_err();
    let HandlerError::Misconfigured(text) = error else { panic!("{expected}: {error:?}") };
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn a_missing_table_is_reported_with_the_command_that_prints_its_ddl() {
    let world = World::start().await;
    let config = world.config();
    for (config, expected) in [
        (
            SqlHandlerConfig { table: "dbo.nothing".to_owned(), ..config.clone() },
            "the table `dbo.nothing` is not in this database",
        ),
        (
            SqlHandlerConfig { fence_table: "ops.[my fence]".to_owned(), ..config.clone() },
            "run the output of `highwater ddl fence --table '[ops].[my fence]'`",
        ),
        (
            SqlHandlerConfig {
                ledger: Some(LedgerConfig { table: "ops.events".to_owned(), days: 1 }),
                ..config
            },
            "run the output of `highwater ddl ledger --table ops.events`",
        ),
    ] {
        let sql = Sql::new("shop", &config).unwrap();
        assert_misconfigured(deliver(&sql, &[event(1, 1, Some("a"))]).await, expected);
    }
    assert_eq!((world.copies().await, world.fence().await), (Vec::new(), Vec::new()));
}
