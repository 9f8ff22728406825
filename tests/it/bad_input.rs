//! Bad input, from the settings to the rows: a clear error, no handler call, nothing overwritten.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::post;
use highwater::builder::App;
use highwater::error::chain;
use highwater::tick::{TickReport, TickRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::sql::World;

const TABLE: &str = "CREATE TABLE dbo.orders (id int NOT NULL PRIMARY KEY, note nvarchar(50) NULL, \
     changed datetime2(7) NULL, rv rowversion NOT NULL)";

struct Setup {
    world: World,
    folder: tempfile::TempDir,
    vars: BTreeMap<String, String>,
    calls: Arc<AtomicU64>,
}

impl Setup {
    async fn new() -> Self {
        let world = World::start(TABLE).await;
        world.database.execute("INSERT INTO dbo.orders (id, note) VALUES (1, N'a')").unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        let calls: Arc<AtomicU64> = Arc::default();
        let url = receiver(Arc::clone(&calls)).await;
        let poller = |name: &str| format!("HIGHWATER__POLLERS__ORDERS__{name}");
        let vars = BTreeMap::from([
            ("HIGHWATER__APP".to_owned(), "app".to_owned()),
            ("HIGHWATER__STATE__STORE".to_owned(), "file".to_owned()),
            ("HIGHWATER__STATE__FOLDER".to_owned(), folder.path().to_string_lossy().into_owned()),
            ("Sql".to_owned(), world.server.connection_string()),
            (poller("SOURCE__CONNECTION"), "Sql".to_owned()),
            (poller("SOURCE__TABLE"), "dbo.orders".to_owned()),
            (poller("SOURCE__CURSOR"), "rv".to_owned()),
            (poller("SOURCE__KEY"), "id".to_owned()),
            (poller("HANDLER__KIND"), "http".to_owned()),
            (poller("HANDLER__URL"), url),
        ]);
        Self { world, folder, vars, calls }
    }

    fn set(&mut self, name: &str, value: &str) {
        let name = format!("HIGHWATER__POLLERS__ORDERS__{name}");
        self.vars.insert(name, value.to_owned());
    }

    /// One tick of a fresh process.
    async fn tick(&self) -> TickReport {
        let app = App::build(&self.vars).unwrap_or_else(|error| panic!("{}", chain(&error)));
        app.pollers["orders"].tick(&TickRequest::default()).await
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn state_file(&self) -> PathBuf {
        self.folder.path().join("state/app/orders.json")
    }

    /// A tick that must fail with `expected`, call no handler and leave the state as it is.
    async fn refuses(&self, expected: &[&str]) {
        let (calls, state) = (self.calls(), self.kept());
        let report = self.tick().await;
        let error = chain(&report.result.expect_err("the tick must fail"));
        for part in expected {
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
        assert_eq!(self.calls(), calls, "the handler is not called: {error}");
        assert_eq!(self.kept(), state, "nothing is overwritten: {error}");
    }

    /// Returns the stored document, without its record of failed ticks.
    fn kept(&self) -> Option<String> {
        let text = fs::read_to_string(self.state_file()).ok()?;
        let (_, stored) = text.split_once('\n').unwrap_or_default();
        let Ok(mut document) = serde_json::from_str::<serde_json::Value>(stored) else {
            return Some(text);
        };
        let Some(fields) = document.as_object_mut() else { return Some(text) };
        fields.retain(|name, _| name != "last_failure" && name != "write_id");
        if let Some(lease) = fields.get_mut("lease").and_then(|lease| lease.as_object_mut()) {
            lease.retain(|name, _| !name.starts_with("idle_before"));
        }
        Some(document.to_string())
    }
}

async fn receiver(calls: Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route(
        "/",
        post(move || async move {
            calls.fetch_add(1, Ordering::SeqCst);
        }),
    );
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://127.0.0.1:{port}/")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unmodified_setup_works() {
    let setup = Setup::new().await;
    assert_eq!(setup.tick().await.rows, 1);
    assert_eq!(setup.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_are_all_reported_at_once_by_name() {
    let mut setup = Setup::new().await;
    setup.set("SOURCE__MODE", "magic");
    setup.set("SOURCE__TABEL", "dbo.orders");
    setup.set("BATCH_ROWS_MAX", "many");
    setup.set("LEASE__TTL", "1s");
    setup.vars.insert("Sql".to_owned(), "Server=db;Pasword=hush".to_owned());
    let error = chain(&App::build(&setup.vars).unwrap_err());
    for part in [
        "SOURCE__MODE",
        "`magic`",
        "SOURCE__TABEL",
        "SOURCE__TABLE",
        "BATCH_ROWS_MAX",
        "`many`",
        "LEASE__TTL",
        "`1s`",
        "`Sql`",
        "Password",
    ] {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
    assert!(!error.contains("hush"), "a secret is shown: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_state_is_rejected_and_kept() {
    let setup = Setup::new().await;
    setup.tick().await.result.unwrap();
    setup.world.database.execute("INSERT INTO dbo.orders (id) VALUES (2)").unwrap();
    let good = fs::read_to_string(setup.state_file()).unwrap();
    for (bad, expected) in [
        (good.replace("\"version\": 1", "\"version\": 9"), "has version `9`"),
        (good.replace("\"requires\": []", "\"requires\": [\"x\"]"), "requires `x`"),
        (good[..good.len() / 2].to_owned(), "is not JSON"),
        (String::new(), "is not JSON"),
        ("{\"hello\": \"world\"}".to_owned(), "is not a state document"),
        (good.replace("\"orders\"", "\"invoices\""), "names poller `invoices`"),
    ] {
        assert_ne!(bad, good);
        fs::write(setup.state_file(), &bad).unwrap();
        setup.refuses(&[expected]).await;
    }
    fs::write(setup.state_file(), good).unwrap();
    assert_eq!(setup.tick().await.rows, 1, "with the good state it continues");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_another_source_is_rejected() {
    let mut setup = Setup::new().await;
    setup.tick().await.result.unwrap();
    setup.set("SOURCE__FILTER", "id > 0");
    let kept =
        "`highwater reset orders keep --new-source --reason \"same rows\"` keeps the position";
    setup.refuses(&["filter was not set, is now `id > 0`", kept]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vanished_state_is_not_replayed() {
    let setup = Setup::new().await;
    setup.tick().await.result.unwrap();
    fs::remove_file(setup.state_file()).unwrap();
    setup
        .refuses(&[
            "is gone, but the poller has run",
            "restore a copy (a backup, an export, or the newest `orders.saved.*.json`) as described in `highwater state import --help`",
            "`highwater reset orders to-beginning ",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_login_is_reported_without_the_password() {
    let mut setup = Setup::new().await;
    let wrong = setup.vars["Sql"].replace("Password=", "Password=hush");
    setup.vars.insert("Sql".to_owned(), wrong);
    setup.refuses(&["18456"]).await;
    let text = chain(&setup.tick().await.result.unwrap_err());
    assert!(!text.contains("hush"), "a secret is shown: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_tables_and_columns_are_named() {
    for (setting, value, expected) in [
        ("SOURCE__TABLE", "dbo.nowhere", &["dbo.nowhere"][..]),
        ("SOURCE__CURSOR", "version", &["`version`", "`rv`"]),
        ("SOURCE__KEY", "number", &["`number`", "`id`"]),
        ("SOURCE__COLUMNS", "id,price", &["`price`", "`note`"]),
        ("SOURCE__CURSOR", "note", &["note", "rowversion"]),
        ("SOURCE__FILTER", "price > 1", &["207", "price"]),
    ] {
        let mut setup = Setup::new().await;
        setup.set(setting, value);
        setup.refuses(expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_ordered_are_rejected_or_counted() {
    let mut setup = Setup::new().await;
    // A NULL in the key: the row cannot be ordered.
    setup.world.database.execute("UPDATE dbo.orders SET note = NULL WHERE id = 1").unwrap();
    setup.set("SOURCE__KEY", "note");
    setup.refuses(&["NULL in key column `note`"]).await;
    // A NULL in the cursor: the row is counted, warned about, and not delivered; others are.
    setup.set("SOURCE__KEY", "id");
    setup.set("SOURCE__MODE", "timestamp+pk");
    setup.set("SOURCE__CURSOR", "changed");
    let insert = "INSERT INTO dbo.orders (id, changed) VALUES (2, '2020-01-01T00:00:00')";
    setup.world.database.execute(insert).unwrap();
    assert_eq!(setup.tick().await.rows, 1);
}

/// Sends each response of a list once, then successes; records the ids of the received events.
async fn misbehaving_endpoint(
    answers: &'static [&'static str],
    kept: Arc<Mutex<Vec<String>>>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut answers = answers.iter();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"}]}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "a whole request");
            }
            let text = String::from_utf8_lossy(&request).into_owned();
            let body: serde_json::Value =
                serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
            let ids =
                body["events"].as_array().unwrap().iter().map(|event| event["id"].to_string());
            let bad = answers.next();
            if bad.is_none() {
                kept.lock().unwrap().extend(ids);
            }
            let good = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            stream.write_all(bad.unwrap_or(&good).as_bytes()).await.unwrap();
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn no_row_is_lost_for_any_response_of_the_endpoint() {
    const ANSWERS: &[&str] = &[
        "",
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",
        "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 422 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 429 Wait\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 49\r\nconnection: close\r\n\r\n{\"batchItemFailures\":[{\"itemIdentifier\":\"none\"}]}",
    ];
    let mut setup = Setup::new().await;
    setup.world.database.execute("INSERT INTO dbo.orders (id) VALUES (2), (3)").unwrap();
    let kept: Arc<Mutex<Vec<String>>> = Arc::default();
    setup.set("HANDLER__URL", &misbehaving_endpoint(ANSWERS, Arc::clone(&kept)).await);
    setup.set("HANDLER__TRIES_MAX", "1");
    setup.set("RETRY_DELAY_MIN", "1ms");
    setup.set("RETRY_DELAY_MAX", "1ms");
    let mut failed = 0;
    while kept.lock().unwrap().is_empty() {
        failed += usize::from(setup.tick().await.result.is_err());
    }
    assert_eq!(failed, ANSWERS.len());
    let mut ids = kept.lock().unwrap().clone();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}
