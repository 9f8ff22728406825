//! `highwater schema`, checked by deliveries of the same program.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use highwater_test_support::json_schema::Validator;
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;

use crate::bench::Bench;

/// Columns of many types, some of them nullable, and a row with values and one without.
const PARCELS: &[&str] = &[
    "CREATE TABLE dbo.parcels (id int NOT NULL, site nvarchar(9) NOT NULL, weight decimal(9, 3) NULL, \
     note nvarchar(max) NULL, sent datetime2(7) NULL, due datetimeoffset(0) NULL, day date NULL, \
     price money NULL, ref uniqueidentifier NULL, photo varbinary(99) NULL, count bigint NULL, \
     ratio float NULL, fragile bit NULL, version rowversion NOT NULL, CONSTRAINT pk PRIMARY KEY (id, site))",
    "INSERT INTO dbo.parcels (id, site, weight, note, sent, due, day, price, ref, photo, count, ratio, fragile) \
     VALUES (1, N'Zoë', 1.5, N'x', '2026-01-02T03:04:05', '2026-01-02T03:04:05+01:00', '2026-01-02', 9.99, \
     'ABCDEF00-0000-0000-0000-000000000001', 0x00FF, 9007199254740993, 0.5, 1)",
    "INSERT INTO dbo.parcels (id, site) VALUES (2, N'b')",
];

/// Starts a target that keeps whole bodies.
async fn target() -> (String, Arc<Mutex<Vec<Json>>>) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&bodies);
    let receive = move |body: Bytes| async move {
        kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let router = Router::new().route("/", post(receive));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, bodies)
}

impl Bench {
    /// A bench whose poller reads [`PARCELS`].
    async fn of_parcels() -> Self {
        let mut bench = Self::new().await;
        for sql in PARCELS {
            bench.database.execute(sql).unwrap();
        }
        bench.set("SOURCE__TABLE", "dbo.parcels");
        bench.set("SOURCE__KEY", "id,site");
        bench
    }

    /// The same without the rowversion and with change tracking, so that deletes are delivered.
    async fn of_tracked_parcels() -> Self {
        let mut bench = Self::of_parcels().await;
        let table = PARCELS[0].replace("version rowversion NOT NULL, ", "");
        for sql in ["DROP TABLE dbo.parcels", &table, PARCELS[1], PARCELS[2]] {
            bench.database.execute(sql).unwrap();
        }
        bench.database.execute("ALTER TABLE dbo.parcels ENABLE CHANGE_TRACKING").unwrap();
        bench.env.remove("HIGHWATER__POLLERS__NIGHTLY__SOURCE__CURSOR");
        bench.set("SOURCE__MODE", "auto");
        bench
    }

    /// Returns the printed schema.
    async fn schema(&self, arguments: &[&str]) -> Json {
        let said = self.command(&[&["schema", "nightly"], arguments].concat()).await;
        serde_json::from_str(said.done()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_in_each_format_satisfy_the_printed_schema() {
    for body in ["highwater", "cloudevents", "debezium"] {
        let mut bench = Bench::of_tracked_parcels().await;
        let (url, bodies) = target().await;
        bench.set("HANDLER__URL", &url);
        bench.set("HANDLER__BODY", body);
        bench.command(&["tick", "nightly"]).await.done_with("2 rows");
        for sql in [
            "DELETE FROM dbo.parcels WHERE id = 2",
            "INSERT INTO dbo.parcels (id, site) VALUES (3, N'c')",
            "UPDATE dbo.parcels SET note = N'y' WHERE id = 1",
        ] {
            bench.database.execute(sql).unwrap();
        }
        bench.command(&["tick", "nightly"]).await.done_with("3 rows");

        let schema = bench.schema(&[]).await;
        let validator = Validator::strict(schema.clone());
        let bodies = std::mem::take(&mut *bodies.lock().unwrap());
        assert_eq!(bodies.len(), 2, "{body}: {bodies:?}");
        for delivery in &bodies {
            let checked = validator.check(delivery);
            checked.unwrap_or_else(|error| panic!("{body}: {error}\n{delivery:#}\n{schema:#}"));
        }
        let text = bodies[1].to_string();
        assert!(text.contains(r#""after":null"#), "{text}");
        let [delete, insert, update, unknown] = match body {
            "debezium" => ["d", "c", "u", "t"],
            _ => ["delete", "insert", "update", "truncate"],
        }
        .map(|op| format!(r#""op":"{op}""#));
        for op in [&delete, &insert, &update] {
            assert!(text.contains(op.as_str()), "{op}: {text}");
        }
        // What is deleted has no row, and no other.
        for (from, to) in [(&delete, &update), (&insert, &delete), (&update, &unknown)] {
            let wrong: Json = serde_json::from_str(&text.replace(from, to)).unwrap();
            assert!(validator.check(&wrong).is_err(), "{wrong:#}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_events_satisfy_the_printed_schema() {
    let mut bench = Bench::of_parcels().await;
    bench.set("HANDLER__KIND", "stdout");
    bench.env.remove("HIGHWATER__POLLERS__NIGHTLY__HANDLER__URL");
    bench.env.remove("HIGHWATER__POLLERS__NIGHTLY__HANDLER__TRIES_MAX");
    let schema = bench.schema(&[]).await;
    let validator = Validator::strict(schema.clone());
    let ticked = bench.command(&["tick", "nightly"]).await;
    let events = ticked.data.lines().filter(|line| line.starts_with(r#"{"id":"#));
    let events: Vec<Json> = events.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 2, "{ticked:?}");
    for event in &events {
        validator.check(event).unwrap_or_else(|error| panic!("{error}\n{event:#}\n{schema:#}"));
    }
    let columns = &schema["$defs"]["Row"]["properties"];
    assert_eq!(columns["weight"]["description"], "decimal(9, 3)");
    assert_eq!(columns["weight"]["type"], json!(["string", "null"]));
    assert_eq!(columns["version"]["type"], "string", "the cursor of a delivered row is never NULL");
    assert_eq!(schema["properties"]["op"]["enum"], json!(["upsert"]), "nothing is ever deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_a_chain_has_a_schema_of_its_own() {
    let mut bench = Bench::of_parcels().await;
    let (url, bodies) = target().await;
    for name in ["URL", "TRIES_MAX"] {
        bench.env.remove(&format!("HIGHWATER__POLLERS__NIGHTLY__HANDLER__{name}"));
    }
    bench.set("HANDLER__KIND", "chain");
    bench.set("HANDLER__STEPS", "log, notify");
    bench.set("HANDLER__STEP__LOG__KIND", "http");
    bench.set("HANDLER__STEP__LOG__URL", &url);
    bench.set("HANDLER__STEP__LOG__BODY", "cloudevents");
    bench.set("HANDLER__STEP__NOTIFY__KIND", "http");
    bench.set("HANDLER__STEP__NOTIFY__URL", &url);
    bench.command(&["tick", "nightly"]).await.done_with("2 rows");
    let bodies = std::mem::take(&mut *bodies.lock().unwrap());
    for (body, step) in bodies.iter().zip(["log", "notify"]) {
        let validator = Validator::strict(bench.schema(&["--step", step]).await);
        validator.check(body).unwrap_or_else(|error| panic!("{step}: {error}\n{body:#}"));
    }
    assert_eq!(bodies.len(), 2);
    let said = bench.command(&["schema", "nightly"]).await;
    said.failed(2, "choose a step with `--step`: `log`, `notify`");
    let said = bench.command(&["schema", "nightly", "--step", "notifi"]).await;
    said.failed(2, "did you mean `notify`?");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_described_is_an_error() {
    let mut bench = Bench::of_parcels().await;
    bench.command(&["schema", "weekly"]).await.failed(2, "no poller `weekly`");
    bench.command(&["schema", "nightly", "--step", "a"]).await.failed(2, "remove `--step`");
    bench.set("SOURCE__COLUMNS", "id, wait");
    bench.command(&["schema", "nightly"]).await.failed(3, "`wait` is not in `dbo.parcels`");
    bench.set("SOURCE__TABLE", "dbo.missing");
    bench.command(&["schema", "nightly"]).await.failed(3, "`dbo.missing` not found");
}

/// The mode that was chosen at the first tick stays, and with it the form of positions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mode_that_was_chosen_by_the_table_is_that_of_the_state() {
    let mut bench = Bench::of_tracked_parcels().await;
    let kind = |schema: &Json| schema["$defs"]["Cursor"]["properties"]["kind"]["const"].clone();
    assert_eq!(kind(&bench.schema(&[]).await), "change_tracking");
    let (url, _) = target().await;
    bench.set("HANDLER__URL", &url);
    bench.command(&["tick", "nightly"]).await.done_with("2 rows");
    bench.database.execute("ALTER TABLE dbo.parcels ADD version rowversion NOT NULL").unwrap();
    assert_eq!(kind(&bench.schema(&[]).await), "change_tracking");
}
