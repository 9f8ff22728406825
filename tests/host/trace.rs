//! `highwater trace`: each reason, with the next command that it prints.

use std::fs;

use highwater_devdb::{Database, Engine as _, Options as ServerOptions, Server};
use serde_json::{Value as Json, json};

use crate::bench::{Bench, LIMIT, logs, within};
use crate::commands::CommandOutput;
use crate::receiver::Answer;

impl Bench {
    /// Returns why a row was or was not delivered: as JSON, and the first line of the text.
    async fn trace(&self, key: &str) -> (Json, String) {
        self.trace_of("nightly", key).await
    }

    async fn trace_of(&self, poller: &str, key: &str) -> (Json, String) {
        let arguments = ["trace", poller, "--key", key];
        let text = self.command(&arguments).await;
        let json = self.command(&[&arguments[..], &["--output", "json"]].concat()).await;
        let found: Json = serde_json::from_str(json.done()).unwrap();
        let mut lines = text.done().lines();
        let first = lines.next().unwrap().to_owned();
        // A time to wait passes between the two commands.
        let is_same =
            found["verdict"] == "settling" || first.contains(found["cause"].as_str().unwrap());
        assert!(is_same, "{first} {found:#}");
        assert!(lines.next().unwrap().starts_with("  next: "), "{text:?}");
        (found, first)
    }

    /// Runs the command that an explanation suggests.
    async fn next(&self, explanation: &Json) -> CommandOutput {
        let next = explanation["next"].as_str().unwrap();
        let command = next.split("`highwater ").nth(1).unwrap().split('`').next().unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let result = self.command(&words).await;
        if result.rest.contains("there is no terminal to confirm at") {
            return self.command(&[&words[..], &["--yes"]].concat()).await;
        }
        assert_ne!(result.code, 2, "{next}: {result:?}");
        result
    }

    async fn tick(&self) {
        let result = self.command(&["tick", "nightly"]).await;
        assert_eq!(result.code, 0, "{result:?}");
    }

    /// Checks the verdict on a row and part of the first line, and that the next command runs.
    async fn expect(&self, key: &str, verdict: &str, line: &str) -> Json {
        let (found, first) = self.trace(key).await;
        assert_eq!(found["verdict"], verdict, "{found:#}");
        assert!(first.starts_with("nightly, id=") && first.contains(line), "{first}");
        self.next(&found).await;
        found
    }

    /// Reads this table by the time in `at`.
    fn by_time(&mut self) {
        let table = "CREATE TABLE dbo.timed (id int NOT NULL PRIMARY KEY, at datetime2(3) NULL)";
        self.database.execute(table).unwrap();
        self.set("SOURCE__TABLE", "dbo.timed");
        self.set("SOURCE__CURSOR", "at");
        self.set("SOURCE__MODE", "timestamp+pk");
    }

    /// Reads the table by change tracking.
    fn tracked(&mut self) {
        self.database.execute("ALTER TABLE dbo.orders ENABLE CHANGE_TRACKING").unwrap();
        self.env.remove("HIGHWATER__POLLERS__NIGHTLY__SOURCE__CURSOR");
        self.set("SOURCE__MODE", "change_tracking");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_row_is_not_found() {
    let bench = Bench::with_rows(1..=1).await;
    bench.tick().await;
    let found = bench.expect("17", "not_in_table", "not found: the source has no row").await;
    assert_eq!((&found["row"]["exists"], &found["key"]), (&json!(false), &json!({"id": "17"})));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivered_row_is_derived_from_the_checkpoint() {
    let bench = Bench::with_rows(1..=2).await;
    bench.tick().await;
    let found = bench.expect("2", "delivered", "with token 1, accepted").await;
    assert_eq!(found["is_certain"], true, "it is the last row of the last batch");
    assert_eq!(found["deliveries"][0]["batch_id"], bench.receiver.batches()[0].id.as_str());
    let found = bench.expect("1", "delivered", "at or before the checkpoint").await;
    assert_eq!((&found["is_certain"], &found["journal_from"]), (&json!(false), &Json::Null));
    assert_eq!(found["checkpoint"]["tiebreaker"], json!({ "id": 2 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_names_batch_token_and_reply_of_each_version() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("JOURNAL", "full");
    bench.tick().await;
    bench.database.execute("UPDATE dbo.orders SET item = N'new' WHERE id = 1").unwrap();
    bench.insert(2..=3);
    bench.receiver.script(&[Answer::Reject(500, "not now")]);
    assert_ne!(bench.command(&["tick", "nightly"]).await.code, 0);
    bench.command(&["resume", "nightly"]).await;
    bench.tick().await;
    let found = bench.expect("1", "delivered", "accepted").await;
    assert_eq!(found["is_certain"], true);
    let batches = bench.receiver.batches();
    let deliveries = found["deliveries"].as_array().unwrap();
    let events: Vec<&str> = deliveries.iter().map(|it| it["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["batch_complete", "handler_failed", "batch_complete"], "{found:#}");
    for (delivery, batch) in deliveries.iter().zip(&batches) {
        assert_eq!(
            (delivery["batch_id"].as_str(), delivery["token"].as_u64()),
            (Some(batch.id.as_str()), Some(batch.token))
        );
    }
    let replies = deliveries.iter().map(|it| it["reply"].as_str().unwrap());
    let replies: Vec<bool> = replies.map(|reply| reply.contains("not now")).collect();
    assert_eq!(replies, [false, true, false]);
    assert_eq!(deliveries[0]["is_current"], false, "the version of the first batch");
    let since = bench.command(&["trace", "nightly", "--key", "1", "--since", "30d"]).await;
    since.done_with("journal: searched from 20");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_waits_for_a_tick_is_delivered_by_the_next_command() {
    let bench = Bench::with_rows(1..=1).await;
    bench.tick().await;
    bench.insert(2..=2);
    bench.expect("2", "due", "not delivered yet: it is due").await;
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    bench.expect("2", "delivered", "delivered: at ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filtered_row_names_the_predicate() {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("SOURCE__FILTER", "id < 9 AND item <> @item");
    bench.set("SOURCE__FILTER_PARAMS__ITEM", "item 2");
    bench.tick().await;
    assert_eq!(bench.receiver.accepted(), [1, 3]);
    let found =
        bench.expect("2", "filtered_out", "filtered out: `item <> @item` does not hold").await;
    assert_eq!(found["row"]["predicates"][0], json!({ "text": "id < 9", "holds": true }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_is_not_selected_is_named() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.database.execute("ALTER TABLE dbo.orders ADD gone bit NULL").unwrap();
    bench.set("SOURCE__SOFT_DELETE", "gone");
    bench.set("SOURCE__OPERATIONS", "upsert");
    bench.database.execute("UPDATE dbo.orders SET gone = 1 WHERE id = 1").unwrap();
    bench.tick().await;
    bench.expect("1", "not_selected", "its last change is a delete").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_without_a_cursor_and_one_that_settles_wait_for_different_things() {
    let mut bench = Bench::new().await;
    bench.by_time();
    bench.set("SOURCE__SETTLE", "1h");
    bench.database.execute("INSERT INTO dbo.timed (id, at) VALUES (1, '2020-01-01')").unwrap();
    bench.tick().await;
    let rows = "INSERT INTO dbo.timed (id, at) VALUES (2, NULL), (3, SYSUTCDATETIME())";
    bench.database.execute(rows).unwrap();
    bench.expect("2", "null_cursor", "its cursor column `at` is NULL").await;
    let found = bench.expect("3", "settling", "it settles in 3").await;
    assert!(found["row"]["bound"].as_str().unwrap().starts_with("20"), "{found:#}");
    bench.expect("1", "delivered", "accepted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_settles_after_a_tick_has_seen_it() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("SOURCE__CURSOR", "id");
    bench.set("SOURCE__MODE", "integer+pk");
    bench.set("SOURCE__SETTLE", "1h");
    bench.tick().await;
    bench.expect("1", "settling", "after a tick has first seen it").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_held_back_by_an_open_transaction_says_so() {
    let mut bench = Bench::new().await;
    bench.database = Database::concurrent().unwrap();
    let table = "CREATE TABLE dbo.orders \
        (id int NOT NULL PRIMARY KEY, item nvarchar(50) NULL, version rowversion NOT NULL)";
    bench.database.execute(table).unwrap();
    let options = ServerOptions { tls: false, ..ServerOptions::default() };
    bench.server = Server::start(bench.database.clone(), options).await.unwrap();
    let connection = bench.server.connection_string();
    bench.set_env("SqlConnection", &connection);
    bench.insert(1..=1);
    bench.tick().await;
    let mut writer = bench.database.connect("master").unwrap();
    writer.run("BEGIN TRAN; INSERT INTO dbo.orders (id) VALUES (2)", &[]);
    bench.insert(3..=3);
    let found = bench.expect("3", "held_back", "held back by an open transaction").await;
    assert_eq!(found["row"]["sessions"], json!([]), "the login may not see them");
    bench.expect("2", "not_in_table", "not found").await;
    writer.run("COMMIT", &[]);
    bench.expect("3", "due", "it is due").await;
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    bench.expect("2", "delivered", "at or before the checkpoint").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantined_row_is_redriven_by_the_next_command() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("ON_FAILURE", "park");
    bench.set("PARK_RETRIES_MAX", "0");
    bench.receiver.script(&[Answer::Reject(422, "no such item")]);
    bench.tick().await;
    let found = bench.expect("1", "quarantined", "no such item").await;
    assert_eq!(found["parked"]["reason"], "refused");
    assert_eq!(found["since"], found["parked"]["since"]);
    assert_eq!(bench.receiver.accepted(), [1]);
    assert_eq!(bench.trace("1").await.0["parked"], Json::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_quarantined_under_change_tracking_is_found_by_its_key() {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.tracked();
    bench.set("ON_FAILURE", "park");
    bench.set("PARK_RETRIES_MAX", "0");
    bench.set("BISECT_ON_ERROR", "true");
    bench.set("BATCH_ROWS_MAX", "1");
    bench.receiver.script(&[Answer::Reject(422, "no such item")]);
    bench.tick().await;
    assert_eq!(bench.receiver.accepted(), [2]);
    bench.expect("1", "quarantined", "no such item").await;
    assert_eq!(bench.receiver.accepted(), [2, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_batch_backs_off_and_the_next_command_ends_that() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("RETRY_DELAY_MIN", "1h");
    bench.set("RETRY_DELAY_MAX", "2h");
    bench.receiver.script(&[Answer::Reject(503, "closed")]);
    assert_ne!(bench.command(&["tick", "nightly"]).await.code, 0);
    let found = bench.expect("1", "backing_off", "its batch failed (1 attempt, next").await;
    assert!(found["cause"].as_str().unwrap().contains("503"), "{found:#}");
    bench.tick().await;
    assert_eq!(bench.receiver.accepted(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_fails_for_good_is_failing() {
    let bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[Answer::Reject(401, "who are you")]);
    assert_ne!(bench.command(&["tick", "nightly"]).await.code, 0);
    bench.expect("1", "failing", "401").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_poller_is_resumed_by_the_next_command() {
    let bench = Bench::with_rows(1..=1).await;
    bench.tick().await;
    bench.insert(2..=2);
    bench.command(&["pause", "nightly", "--reason", "the target moves"]).await.done();
    let found = bench.expect("2", "paused", "paused by ann@").await;
    assert!(found["cause"].as_str().unwrap().ends_with("the target moves"), "{found:#}");
    bench.expect("2", "due", "it is due").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poller_stopped_by_its_policy_says_why() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("ON_FAILURE", "stop");
    bench.receiver.script(&[Answer::Reject(422, "no such item")]);
    assert_ne!(bench.command(&["tick", "nightly"]).await.code, 0);
    bench.expect("1", "stopped", "failure policy of `nightly`").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poller_without_ticks_is_silent() {
    let mut bench = Bench::with_rows(1..=1).await;
    let root = bench.root();
    bench.set_env("FUNCTIONS_APP_ROOT_PATH", &root);
    bench.schedule("*/5 * * * * *");
    bench.tick().await;
    bench.insert(2..=2);
    bench.an_hour_ago(|document| {
        let long_ago = json!("2026-01-01T00:00:00Z");
        document["last_success_at"] = long_ago.clone();
        document["checkpoint"]["updated_at"] = long_ago.clone();
        document["observed"] = Json::Null;
        for field in ["acquired_at", "heartbeat_at", "released_at", "expires_at"] {
            document["lease"][field] = long_ago.clone();
        }
    });
    bench.expect("2", "silent", "no tick for").await;
    assert_eq!(bench.trace("2").await.0["verdict"], "delivered", "the command ran a tick");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disabled_poller_names_the_setting() {
    let mut bench = Bench::with_rows(1..=1).await;
    let root = bench.root();
    bench.set_env("FUNCTIONS_APP_ROOT_PATH", &root);
    bench.schedule("*/5 * * * * *");
    bench.tick().await;
    bench.insert(2..=2);
    bench.set_env("AzureWebJobs.nightly.Disabled", "true");
    bench.expect("2", "disabled", "AzureWebJobs.nightly.Disabled").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poller_that_never_ran_delivers_by_the_next_command() {
    let bench = Bench::with_rows(1..=1).await;
    let found = bench.expect("1", "never_ran", "no tick yet").await;
    assert_eq!(found["checkpoint"], Json::Null);
    assert_eq!(bench.receiver.accepted(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_document_is_reported() {
    let bench = Bench::with_rows(1..=1).await;
    bench.tick().await;
    fs::remove_file(bench.state_path()).unwrap();
    bench.expect("1", "vanished", "the state document of `nightly` is gone").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_before_the_start_or_a_reset_was_skipped() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("SOURCE__START", "now");
    bench.set("JOURNAL", "commits");
    bench.command(&["init", "nightly"]).await.done();
    bench.expect("1", "skipped", "the position at which the poller started").await;
    bench.insert(2..=2);
    bench.tick().await;
    bench.insert(3..=3);
    let reset = ["reset", "nightly", "to-now", "--skip-rows", "--reason", "old", "--yes"];
    let result = bench.command(&reset).await;
    assert_eq!(result.code, 0, "{result:?}");
    bench.expect("3", "skipped", "the poller was reset past it at 20").await;
    bench.expect("2", "delivered", "accepted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_another_source_decides_nothing() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.tick().await;
    bench.set("SOURCE__FILTER", "id > 0");
    bench.expect("1", "other_source", "belongs to another source").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_another_partition_is_explained_by_the_next_command() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("PARTITIONS", "2");
    let trace = bench.command(&["trace", "nightly", "--key", "1"]).await;
    trace.failed(2, "name `nightly__p0`, `nightly__p1`");
    let mut verdicts = Vec::new();
    for partition in ["nightly__p0", "nightly__p1"] {
        let (found, _) = bench.trace_of(partition, "1").await;
        if found["verdict"] == "other_partition" {
            let result = bench.next(&found).await;
            assert!(result.done().contains("no tick yet"), "{result:?}");
        }
        verdicts.push(found["verdict"].as_str().unwrap().to_owned());
    }
    verdicts.sort();
    assert_eq!(verdicts, ["never_ran", "other_partition"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_in_the_batch_in_flight_is_being_delivered() {
    let bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, found) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        let (found, _) = bench.trace("1").await;
        bench.receiver.release();
        found
    });
    logs(&outcome);
    assert_eq!(found["verdict"], "in_flight", "{found:#}");
    within(LIMIT, host.finish()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tracked_change_is_due_and_then_delivered_even_if_the_row_is_gone() {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.tracked();
    bench.tick().await;
    bench.expect("1", "delivered", "at or before the checkpoint").await;
    bench.database.execute("DELETE FROM dbo.orders WHERE id = 1").unwrap();
    let found = bench.expect("1", "due", "it is due").await;
    assert_eq!(found["row"]["is_deleted"], true);
    bench.expect("1", "delivered", "accepted").await;
    bench.expect("9", "not_in_table", "no recent delete").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_names_every_column() {
    let mut bench = Bench::new().await;
    let table = "CREATE TABLE dbo.lines (shop nvarchar(9) NOT NULL, id int NOT NULL, \
                 version rowversion NOT NULL, PRIMARY KEY (shop, id)); \
                 INSERT INTO dbo.lines (shop, id) VALUES (N'a,b', 7)";
    bench.database.execute(table).unwrap();
    bench.set("SOURCE__TABLE", "dbo.lines");
    bench.set("SOURCE__KEY", "shop, id");
    bench.tick().await;
    for key in ["shop=a,b,id=7", r#"{"shop": "a,b", "id": 7}"#] {
        let (found, first) = bench.trace(key).await;
        assert_eq!(found["key"], json!({ "shop": "a,b", "id": 7 }));
        assert!(first.starts_with("nightly, shop=a,b,id=7: delivered"), "{first}");
    }
    let list = bench.command(&["trace", "nightly", "--key", "shop=a,b", "--key", "id=7"]).await;
    assert!(list.done().contains("delivered"), "{list:?}");
    for (key, text) in [
        ("7", "names no key column: write `--key shop=…,id=…`"),
        ("shop=a", "key column `id` has no value"),
        ("shop=a,id=x", "`x` is not a whole number"),
    ] {
        bench.command(&["trace", "nightly", "--key", key]).await.failed(2, text);
    }
    bench.command(&["trace", "weekly", "--key", "1"]).await.failed(2, "no poller `weekly`");
    bench.command(&["trace", "nightly"]).await.failed(2, "--key");
}
