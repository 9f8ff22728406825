//! Values of masked columns are in nothing that the program delivers, stores, logs, exports or prints.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use highwater_devdb::{Fault, SqlError};
use tokio::net::TcpListener;

use crate::bench::Bench;
use crate::secrets::{Collector, holds_none, leaks_nothing};

/// A value of each masked column; no other text contains them.
const EMAIL: &str = "canary.email@example.com";
const PHONE: &str = "+47-canary-phone";
const NOTE: &str = "the canary note";

/// `printf %s canary.email@example.com | sha256sum`
const EMAIL_HASH: &str = "c0d75cba2424e7d87e08c43b3474c994ea96f7e045fce4779c9b1b8ce4cedcce";
/// `printf %s 'the canary note' | openssl dgst -sha256 -hmac mask-secret-of-a-test`
const NOTE_HASH: &str = "a41b042c9a23104e4a6bc81b5e966ea06bd18cbe650b9cd844168b82adfba79b";

/// A target that rejects every batch, and repeats its body.
async fn target() -> (String, Arc<Mutex<Vec<String>>>) {
    let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
    let reject = async move |State(kept): State<Arc<Mutex<Vec<String>>>>, body: Bytes| {
        let text = String::from_utf8_lossy(&body).into_owned();
        kept.lock().unwrap().push(text.clone());
        (StatusCode::UNPROCESSABLE_ENTITY, text)
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let router = Router::new().fallback(reject).with_state(Arc::clone(&bodies));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, bodies)
}

/// A poller over a table with the values above, with the columns masked.
async fn bench() -> Bench {
    let mut bench = Bench::new().await;
    for sql in [
        "CREATE TABLE dbo.people (id int NOT NULL PRIMARY KEY, email nvarchar(99) NOT NULL, phone varchar(20) NULL, \
         note nvarchar(max) NULL, version rowversion NOT NULL)",
        &format!(
            "INSERT INTO dbo.people (id, email, phone, note) VALUES (1, N'{EMAIL}', '{PHONE}', N'{NOTE}')"
        ),
    ] {
        bench.database.execute(sql).unwrap();
    }
    bench.set("SOURCE__TABLE", "dbo.people");
    bench.set("SOURCE__MASK", "email:sha256, phone:drop, note:hmac-sha256");
    bench.set("SOURCE__MASK_SECRET", "MaskKey");
    bench.set_env("MaskKey", "mask-secret-of-a-test");
    bench
}

fn canaries() -> Vec<String> {
    [EMAIL, PHONE, NOTE, "mask-secret-of-a-test"].map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_masked_columns_leave_the_reader_nowhere() {
    for body in ["highwater", "cloudevents", "debezium"] {
        let mut bench = bench().await;
        let (url, bodies) = target().await;
        bench.set("HANDLER__URL", &url);
        bench.set("HANDLER__BODY", body);
        bench.set("RETRY_DELAY_MIN", "1ms");
        bench.set("RETRY_DELAY_MAX", "1ms");
        bench.set("ON_FAILURE", "park");
        bench.set("PARK_RETRIES_MAX", "0");
        bench.set("JOURNAL", "full");
        let collector = Collector::watch(&mut bench, "traces", "key of a collector", "").await;
        let (_, kept) = leaks_nothing(&bench, &collector, &canaries()).await;
        assert!(kept.contains(EMAIL_HASH) && kept.contains(NOTE_HASH), "the row is kept: {kept}");
        let bodies = bodies.lock().unwrap().join("\n");
        holds_none("the deliveries", &bodies, &canaries());
        assert!(bodies.contains(EMAIL_HASH) && bodies.contains(NOTE_HASH), "{bodies}");
        assert!(!bodies.contains("phone"), "{bodies}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_masked_columns_are_printed_by_no_command() {
    let mut bench = bench().await;
    bench.env.retain(|name, _| !name.contains("__HANDLER__"));
    bench.set("HANDLER__KIND", "stdout");
    let mut all = String::new();
    for arguments in [
        &["tick", "nightly", "--dry-run", "--show", "9"][..],
        &["schema", "nightly"],
        &["trace", "nightly", "--key", "1"],
        &["doctor", "--verbose"],
        &["tick", "nightly"],
        &["trace", "nightly", "--key", "1", "--output", "json"],
        &["config", "show", "--reveal"],
        &["status", "--output", "json"],
        &["state", "export", "nightly"],
    ] {
        let said = bench.command(arguments).await;
        assert!(said.code <= 1, "{arguments:?}: {said:?}");
        let text = format!("{}\n{}", said.data, said.rest);
        holds_none(&arguments.join(" "), &text, &canaries());
        all += &text;
    }
    for part in [
        r#""email":""#,
        EMAIL_HASH,
        NOTE_HASH,
        "HMAC-SHA-256 of nvarchar(max)",
        "email nvarchar(99) as SHA-256",
    ] {
        assert!(all.contains(part), "no `{part}`: {all}");
    }
    assert!(!all.contains("phone nvarchar"), "{all}");
}

/// The driver traces each row, and logs each error of the server in full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_not_logged_even_if_everything_is() {
    let mut bench = bench().await;
    bench.unset("SOURCE__MASK");
    bench.unset("SOURCE__MASK_SECRET");
    let collector = Collector::watch(&mut bench, "traces", "key of a collector", "").await;
    let (log, _) = leaks_nothing(&bench, &collector, &[PHONE.to_owned()]).await;
    assert!(log.contains("Sending a packet"), "the driver logs: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_database_does_not_show_a_value() {
    let mut bench = bench().await;
    bench.set("JOURNAL", "full");
    let says =
        format!("Conversion failed when converting the nvarchar value '{EMAIL}' to data type int.");
    let error = SqlError::new(245, 16, says);
    bench.server.faults().arm_matching("SELECT TOP", 1_000, Fault::Error(error));
    let collector = Collector::watch(&mut bench, "traces", "key of a collector", "").await;
    let (log, _) = leaks_nothing(&bench, &collector, &canaries()).await;
    assert!(log.contains("error 245"), "{log}");
}
