//! `highwater init --table` and `tick --dry-run`: a new user's first steps, with the real program.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::bench::{Bench, Host, LIMIT, PROGRAM, installed, logs, within};
use crate::status::response;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_for_a_table_is_valid_and_delivers() {
    let mut bench = Bench::with_rows(1..=3).await;
    let out = bench.folder.path().join("new");
    let out = out.to_str().unwrap().to_owned();
    let init = ["init", "shop", "--table", "dbo.orders", "--out", &out];
    bench.set_env("Other", "");
    let missing = [&init[..], &["--connection", "Other"]].concat();
    bench.command(&missing).await.failed(2, "`Other` is not set");
    bench.set_env("HIGHWATER__POLLERS__SHOP__HANDLER__KIND", "exec");
    let result = bench.command(&init).await;
    assert!(matches!(result.code, 0 | 1), "{result:?}");
    let note = format!(
        "note: the environment sets `HIGHWATER__POLLERS__SHOP__HANDLER__KIND`, `HIGHWATER__STATE__FOLDER`, \
         which takes precedence over `{out}/local.settings.json`"
    );
    assert!(result.rest.contains(&note), "{result:?}");
    assert!(
        !result.data.contains("does not exist"),
        "the folder of the state is there: {result:?}"
    );
    assert!(result.data.contains("in mode `rowversion` by `version`: `version` is a rowversion"));
    assert!(result.data.contains("key `id`: the primary key"), "{result:?}");
    assert!(result.data.contains("CREATE INDEX"), "an index is advised: {result:?}");
    for folder in ["state", "state/state"] {
        let mode = std::fs::metadata(format!("{out}/{folder}")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{folder}: rows in quarantine are for the user alone");
    }
    let secret = bench.env["SqlConnection"].split("Password=").nth(1).unwrap();
    let secret = secret.split(';').next().unwrap().trim_matches(['"', '\'']);
    assert!(!result.data.contains(secret) && !result.rest.contains(secret), "{result:?}");
    let read = |name: &str| std::fs::read_to_string(format!("{out}/{name}")).unwrap();
    assert!(read(".gitignore").contains("local.settings.json"));
    let settings: Json = serde_json::from_str(&read("local.settings.json")).unwrap();
    let values = &settings["Values"];
    assert_eq!(values["SqlConnection"].as_str(), Some(bench.env["SqlConnection"].as_str()));
    assert_eq!(values["HIGHWATER__POLLERS__SHOP__SOURCE__KEY"], "id");
    bench.command(&init).await.failed(2, "exists and is not overwritten");

    // The folder alone, without the settings of this test.
    let program = || {
        let mut command = Command::new(PROGRAM);
        command.arg("--settings").arg(format!("{out}/local.settings.json")).env_clear();
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    };
    let valid = within(LIMIT, program().arg("validate").output()).await.unwrap();
    assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stdout));
    let mut tick = program();
    let tick = within(LIMIT, tick.args(["tick", "shop"]).output()).await.unwrap();
    assert!(tick.status.success(), "{tick:?}");
    let lines = String::from_utf8(tick.stdout).unwrap();
    assert_eq!(lines.matches("\"op\":\"upsert\"").count(), 3, "{lines}");

    let mut run = program();
    run.arg("run").stdout(Stdio::piped());
    bench.insert(4..=4);
    let settings = read("local.settings.json").replace("*/15 * * * * *", "* * * * * *");
    std::fs::write(format!("{out}/local.settings.json"), settings).unwrap();
    let mut process = run.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let delivered = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("item 4") {
                return;
            }
        }
        panic!("it exited without a delivery");
    };
    within(LIMIT, delivered).await;
}

/// Starts a host over a folder like `func start --script-root`, which takes the settings from the
/// environment.
async fn func(bench: &mut Bench, root: &Path) -> Host {
    let settings = std::fs::read_to_string(root.join("local.settings.json")).unwrap();
    let settings: Json = serde_json::from_str(&settings).unwrap();
    let values = settings["Values"].as_object().unwrap().iter();
    bench.env =
        values.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    bench.options.root = root.to_owned();
    bench.options.program = root.join("handler");
    bench.host().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_runs_under_the_host_in_place_and_after_a_move() {
    let mut bench = Bench::with_rows(1..=3).await;
    let out = bench.folder.path().join("new");
    let init = [
        "init",
        "shop",
        "--table",
        "dbo.orders",
        "--out",
        out.to_str().unwrap(),
        "--output",
        "json",
    ];
    let result = bench.command_of(&installed(), &init).await;
    let report: Json = serde_json::from_str(&result.data).unwrap();
    let next: Vec<&str> =
        report["next"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
    // From another folder, and without the settings of this test.
    let mut package = Command::new("sh");
    package.args(["-c", next[2]]).env_clear().stdin(Stdio::null());
    let packed = within(LIMIT, package.output()).await.unwrap();
    let result = String::from_utf8(packed.stderr).unwrap();
    assert!(packed.status.success(), "{result}");
    assert!(
        result.contains("the state is in the folder") && result.contains("`blob` or `sql`"),
        "{result}"
    );
    assert_eq!(next[3], format!("func start --script-root {}", out.display()));
    for file in ["host.json", "handler", "shop/function.json", "highwater_status/function.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }

    let host = func(&mut bench, &out).await;
    let ran = host.fire("shop").await;
    assert!(logs(&ran)[0].contains("committed 3 rows"), "{ran:?}");
    host.finish().await;

    let moved = bench.folder.path().join("moved");
    std::fs::rename(&out, &moved).unwrap();
    bench.insert(4..=4);
    let host = func(&mut bench, &moved).await;
    let ran = host.fire("shop").await;
    assert!(logs(&ran)[0].contains("committed 1 row"), "{ran:?}");
    let page = response(&host, None, &json!({})).await;
    assert!(page["body"].as_str().unwrap().contains("\"poller\":\"shop\""), "{page}");
    host.finish().await;
    // The same state as next to the host, from any working folder.
    let settings = moved.join("local.settings.json");
    bench.env.clear();
    let result = bench.command(&["--settings", settings.to_str().unwrap(), "tick", "shop"]).await;
    assert!(result.code == 0 && result.data.contains("nothing new"), "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_output_of_init_describes_the_folder_in_every_format() {
    let bench = Bench::with_rows(1..=3).await;
    let out = bench.folder.path().join("new").to_str().unwrap().to_owned();
    let init = ["init", "shop", "--table", "dbo.orders", "--out", &out, "--output", "json"];
    let result = bench.command(&init).await;
    let report: Json = serde_json::from_str(&result.data).unwrap();
    for (field, expected) in [
        ("poller", json!("shop")),
        ("table", json!("dbo.orders")),
        ("mode", json!("rowversion")),
        ("cursor", json!("version")),
        ("key", json!(["id"])),
        ("sees_deletes", json!(false)),
    ] {
        assert_eq!(report[field], expected, "{report:#}");
    }
    let files = report["files"].as_array().unwrap();
    assert_eq!(files.len(), 5, "{report:#}");
    assert!(files.iter().all(|file| Path::new(file.as_str().unwrap()).is_file()));
    let findings = report["findings"].as_array().unwrap();
    assert!(
        findings.iter().any(|it| it["check"] == "index" && it["fix"].is_string()),
        "{report:#}"
    );
    let next: Vec<&str> =
        report["next"].as_array().unwrap().iter().filter_map(Json::as_str).collect();
    let with = format!("{PROGRAM} --settings {out}/local.settings.json");
    assert_eq!(
        next,
        [
            format!("{with} validate"),
            format!("{with} run"),
            format!("{with} package --stage {out}"),
            format!("func start --script-root {out}"),
        ]
    );
    assert!(!result.data.contains(&bench.env["SqlConnection"]), "{report:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_for_several_tables_has_a_poller_for_each() {
    let bench = Bench::with_rows(1..=3).await;
    let table =
        "CREATE TABLE dbo.OrderLines (line int NOT NULL PRIMARY KEY, version rowversion NOT NULL)";
    bench.database.execute(table).unwrap();
    bench.database.execute("INSERT INTO dbo.OrderLines (line) VALUES (1)").unwrap();
    let out = bench.folder.path().join("new");
    let folder = out.to_str().unwrap();
    let init = ["init", "--table", "dbo.orders", "--table", "dbo.OrderLines", "--out", folder];
    for (more, words) in [
        (&["one"][..], "1 poller for 2 tables: name one poller for each table"),
        (&["one", "one"], "two pollers are named `one`"),
        (&["one", "Two"], "invalid poller name `Two`"),
        (&["--key", "id"], "are for one table"),
        (&["--handler", "python"], "are for one table"),
    ] {
        bench.command(&[&init[..], more].concat()).await.failed(2, words);
    }
    bench.command(&["init"]).await.failed(2, "<POLLER>");
    bench.command(&["init", "one", "two"]).await.failed(2, "name one poller");
    assert!(!out.exists());

    let result = bench.command(&init).await;
    for line in [
        "orders: `dbo.orders` in mode `rowversion` by `version`",
        "order_lines: `dbo.OrderLines` in mode `rowversion` by `version`",
        "order_lines/function.json`",
    ] {
        assert!(result.data.contains(line), "{line}: {result:?}");
    }
    assert_eq!(result.data.matches("\nnext:\n").count(), 1, "{result:?}");
    // Settings that are equal are set once.
    let settings = std::fs::read(out.join("local.settings.json")).unwrap();
    let settings: Json = serde_json::from_slice(&settings).unwrap();
    let set = |name: &str| settings["Values"][format!("HIGHWATER__{name}")].as_str();
    assert_eq!(set("DEFAULTS__SOURCE__CONNECTION"), Some("SqlConnection"));
    assert_eq!(set("DEFAULTS__ON_FAILURE"), Some("park"));
    assert_eq!(set("POLLERS__ORDERS__ON_FAILURE"), None);
    assert_eq!(set("DEFAULTS__SOURCE__KEY"), None);
    assert_eq!(set("POLLERS__ORDERS__SOURCE__KEY"), Some("id"));
    assert_eq!(set("POLLERS__ORDER_LINES__SOURCE__KEY"), Some("line"));
    for (poller, rows) in [("orders", 3), ("order_lines", 1)] {
        let mut tick = Command::new(PROGRAM);
        tick.arg("--settings").arg(out.join("local.settings.json")).args(["tick", poller]);
        let tick = within(LIMIT, tick.env_clear().output()).await.unwrap();
        let lines = String::from_utf8(tick.stdout).unwrap();
        assert_eq!(lines.matches("\"op\":\"upsert\"").count(), rows, "{lines}");
    }

    let other = bench.folder.path().join("other");
    let init = [&init[..5], &["--out", other.to_str().unwrap(), "--output", "json"]].concat();
    let named = [&init[..], &["first", "second", "--handler", "http"]].concat();
    let result = bench.command(&named).await;
    let reports: Vec<Json> = serde_json::from_str(&result.data).unwrap();
    let parts: Vec<(&str, &str, &str)> = reports
        .iter()
        .map(|report| {
            let text = |field: &str| report[field].as_str().unwrap();
            (text("poller"), text("table"), text("url").split_once('#').unwrap().0)
        })
        .collect();
    assert_eq!(
        parts,
        [
            ("first", "dbo.orders", "http://127.0.0.1:7072/…"),
            ("second", "dbo.OrderLines", "http://127.0.0.1:7072/…"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explicit_first_start_is_reported_in_every_format_and_for_every_partition() {
    let mut bench = Bench::with_rows(1..=1).await;
    let result = bench.command(&["init", "nightly", "--output", "json"]).await;
    let started: Json = serde_json::from_str(result.done()).unwrap();
    assert_eq!(started, json!({ "poller": "nightly", "after": null }));
    bench.command(&["init", "nightly"]).await.failed(1, "already has a state; nothing was changed");

    std::fs::remove_dir_all(bench.folder.path().join("state")).unwrap();
    bench.set("PARTITIONS", "2");
    bench.set("SOURCE__START", "now");
    let result = bench.command(&["init", "nightly", "--output", "json"]).await;
    let started: Json = serde_json::from_str(result.done()).unwrap();
    for (part, name) in ["nightly__p0", "nightly__p1"].into_iter().enumerate() {
        assert_eq!(started[part]["poller"], name, "{started:#}");
        assert_eq!(started[part]["after"]["kind"], "rowversion", "{started:#}");
    }
    // Both commands also print one document for a partitioned poller.
    let pause = ["pause", "nightly", "--reason", "later", "--output", "json"];
    let result = bench.command(&pause).await;
    let paused: Vec<Json> = serde_json::from_str(result.done()).unwrap();
    assert!(paused.len() == 2 && paused.iter().all(|part| part["paused"] == true), "{paused:#?}");
    let result = bench.command(&["resume", "nightly", "--output", "jsonl"]).await;
    let lines: Vec<Json> =
        result.done().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines.iter().map(|line| &line["poller"]).collect::<Vec<_>>(),
        ["nightly__p0", "nightly__p1"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peek_reads_what_a_tick_would_deliver_and_writes_nothing() {
    let bench = Bench::with_rows(1..=3).await;
    let dry = ["tick", "nightly", "--dry-run"];
    let result = bench.command(&[&dry[..], &["--show", "2", "--output", "json"]].concat()).await;
    let report: Json = serde_json::from_str(result.done()).unwrap();
    assert_eq!((&report["rows"], &report["more"]), (&json!(3), &json!(false)));
    assert_eq!(report["events"].as_array().unwrap().len(), 2);
    assert_eq!(report["events"][0]["after"]["item"], "item 1");
    assert_eq!((&report["after"], &report["hindrance"]), (&Json::Null, &Json::Null));
    assert!(!bench.state_path().exists() && bench.receiver.batches().is_empty());

    logs(&bench.host().await.run().await);
    bench.insert(4..=4);
    let before = bench.state();
    let result = bench.command(&dry).await;
    assert!(result.done().starts_with("nightly: 1 row pending after rowversion"), "{result:?}");
    assert_eq!(bench.state(), before);
    bench.command(&["pause", "nightly", "--reason", "later"]).await.done();
    let result = bench.command(&dry).await;
    assert!(result.done().contains("none of them now: paused"), "{result:?}");
    bench.command(&["tick", "nightly", "--show", "1"]).await.failed(2, "--dry-run");
}
