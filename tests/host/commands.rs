//! Operator commands: the real program alongside a host that runs the same poller.

use std::path::Path;
use std::process::{Output, Stdio};

use highwater_fakehost::{Level, free_port};
use serde_json::{Value as Json, json};
use tokio::process::Command;

use crate::bench::{Bench, LIMIT, PROGRAM, failure, logs, within};
use crate::receiver::Answer;

/// A command's output and exit code.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) data: String,
    pub(crate) rest: String,
}

impl CommandOutput {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self {
            code: output.status.code().unwrap(),
            data: text(&output.stdout),
            rest: text(&output.stderr),
        }
    }

    /// Returns its data, if it succeeded and printed nothing else.
    pub(crate) fn done(&self) -> &str {
        assert_eq!((self.code, self.rest.as_str()), (0, ""), "{self:?}");
        &self.data
    }

    /// Checks that it succeeded and that its data contains `text`, whatever else it printed.
    pub(crate) fn done_with(&self, text: &str) {
        assert!(self.code == 0 && self.data.contains(text), "{self:?}");
    }

    fn json(&self) -> Json {
        serde_json::from_str(self.done()).unwrap()
    }

    /// Checks that it exited with `code`, wrote no data, and printed `text`.
    pub(crate) fn failed(&self, code: i32, text: &str) {
        assert_eq!((self.code, self.data.as_str()), (code, ""), "{self:?}");
        assert!(self.rest.contains(text), "{self:?}");
    }
}

impl Bench {
    /// Runs the program with the settings of the hosts, and without a terminal.
    pub(crate) async fn command(&self, arguments: &[&str]) -> CommandOutput {
        self.command_of(Path::new(PROGRAM), arguments).await
    }

    /// The same with this program.
    pub(crate) async fn command_of(&self, program: &Path, arguments: &[&str]) -> CommandOutput {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(&self.env).env("USER", "ann");
        command.stdin(Stdio::null()).kill_on_drop(true);
        CommandOutput::of(&within(LIMIT, command.output()).await.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_outlives_every_process_until_it_is_resumed() {
    let bench = Bench::with_rows(1..=2).await;
    bench.host().await.run().await;
    let result = bench.command(&["pause", "nightly", "--reason", "the target moves"]).await;
    assert!(result.done().starts_with("nightly: paused at 20"), "{result:?}");
    let result = bench.command(&["pause", "nightly", "--reason", "again", "--by", "bob"]).await;
    let words = result.done();
    assert!(words.contains("already paused since 20") && words.contains(" by ann@"), "{words}");
    assert!(words.ends_with(": the target moves\n"), "{words}");

    bench.insert(3..=3);
    for _ in 0..2 {
        let host = bench.host().await;
        assert!(logs(&host.run().await)[0].contains("the target moves"));
        host.stop().await;
    }
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    let arguments = ["resume", "nightly", "--reason", "it is there", "--output", "json"];
    let result = bench.command(&arguments).await.json();
    assert_eq!((&result["changed"], &result["reason"]), (&true.into(), &"the target moves".into()));
    assert_eq!(bench.command(&["resume", "nightly"]).await.done(), "nightly: not paused\n");
    bench.host().await.run().await;
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_running_tick_ends_after_its_in_flight_batch() {
    let mut bench = Bench::with_rows(1..=6).await;
    bench.set("BATCH_ROWS_MAX", "2");
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, result) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        let result = bench.command(&["pause", "nightly", "--reason", "stop"]).await;
        bench.receiver.release();
        result
    });
    assert!(result.done().contains("ends after its in-flight batch"), "{result:?}");
    logs(&outcome);
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    assert_eq!(bench.state()["checkpoint"]["cursor"]["tiebreaker"]["id"], 2);
    let (level, _) = {
        host.run().await;
        host.event("tick_paused").await
    };
    assert_eq!(level, Level::Information);
    bench.command(&["resume", "nightly"]).await.done();
    host.run().await;
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resuming_reports_the_reason_of_the_pause() {
    for (status, on_failure, expected) in
        [(410, "retry", "handler of `nightly`"), (422, "stop", "failure policy of `nightly`")]
    {
        let mut bench = Bench::with_rows(1..=1).await;
        bench.set("ON_FAILURE", on_failure);
        bench.receiver.script(&[Answer::Reject(status, "we have closed")]);
        let host = bench.host().await;
        failure(&host.run().await);
        assert!(logs(&host.run().await)[0].contains("we have closed"));
        let result = bench.command(&["resume", "nightly"]).await;
        let words = result.done();
        assert!(words.contains(expected) && words.contains("we have closed"), "{words}");
        host.run().await;
        assert_eq!(bench.receiver.accepted(), [1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_errors_are_reported_before_any_side_effect() {
    let bench = Bench::new().await;
    for (arguments, text) in [
        (&["pause", "nightly"][..], "--reason"),
        (&["pause", "nightly", "--reason", " "], "expected a text"),
        (&["pause", "--reason", "x"], "<POLLER>"),
        (&["pause", "weekly", "--reason", "x"], "no poller `weekly`; the settings have `nightly`"),
        (&["resume", "weekly"], "no poller `weekly`"),
        (&["resume", "nightly", "--output", "xml"], "table, json, jsonl"),
        (&["quarantine"], "Usage"),
        (&["quarantine", "list", "weekly"], "no poller `weekly`"),
        (&["quarantine", "show", "nightly", "7"], "32 hex digits"),
        (&["quarantine", "show", "nightly", &"a".repeat(32)], "has no parked key `aaa"),
    ] {
        bench.command(arguments).await.failed(2, text);
    }
    assert!(!bench.state_path().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_setting_is_shown_by_name() {
    let mut bench = Bench::new().await;
    bench.set("SOURCE__MODE", "rowversions");
    let result = bench.command(&["validate"]).await;
    let line = "\n  error   setting: `HIGHWATER__POLLERS__NIGHTLY__SOURCE__MODE` is `rowversions`, expected `auto`";
    assert!(result.data.contains(line), "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_and_unreadable_stores_have_their_own_exit_codes() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    std::fs::write(bench.state_path(), "{").unwrap();
    bench.command(&["pause", "nightly", "--reason", "x"]).await.failed(1, "is not JSON");
    assert_eq!(std::fs::read_to_string(bench.state_path()).unwrap(), "{");

    bench.set("LEASE__TTL", "15s");
    bench.set_env("HIGHWATER__STATE__STORE", "blob");
    let nobody = free_port().unwrap();
    let blob = format!(
        "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;\
         AccountKey=AAAA;BlobEndpoint=http://127.0.0.1:{nobody}/devstoreaccount1"
    );
    bench.set_env("AzureWebJobsStorage", &blob);
    for arguments in
        [&["pause", "nightly", "--reason", "x"][..], &["quarantine", "list", "nightly"]]
    {
        bench.command(arguments).await.failed(6, "cannot reach the state store");
    }
    bench.set("HANDLER__KIND", "pigeon");
    bench.command(&["resume", "nightly"]).await.failed(3, "pigeon");
}

/// A poller that has quarantined every row of its table except those in `accepted`, and a host for it.
async fn with_quarantined(rows: std::ops::RangeInclusive<i64>) -> Bench {
    let mut bench = Bench::with_rows(rows.clone()).await;
    bench.set("ON_FAILURE", "park");
    bench.set("PARK_RETRIES_MAX", "0");
    bench.set("RETRY_DELAY_MIN", "1ms");
    bench.set("RETRY_DELAY_MAX", "1ms");
    bench.receiver.script(&vec![Answer::Reject(422, "no\u{1b}[31m thanks"); 16]);
    let host = bench.host().await;
    let wanted = rows.clone().count();
    let entries = || {
        let files = std::fs::read_dir(bench.state_path().parent().unwrap()).into_iter().flatten();
        let paths = files.map(|file| file.unwrap().path());
        let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        paths.filter(|path| path.to_str().unwrap().contains(".quarantine.")).count()
    };
    host.run_until(|| entries() == wanted).await;
    bench.receiver.forget();
    drop(host);
    bench
}

impl Bench {
    /// Returns the ids of the entries by key.
    async fn entries(&self) -> Vec<(i64, String)> {
        let result = self.command(&["quarantine", "list", "nightly", "--output", "jsonl"]).await;
        let rows = result.done().lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
        let id = |row: &Json| row["key_id"].as_str().unwrap().to_owned();
        let mut entries: Vec<_> =
            rows.map(|row| (row["key"]["id"].as_i64().unwrap_or(-1), id(&row))).collect();
        entries.sort();
        entries
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantined_rows_are_listed_shown_and_redriven() {
    let bench = with_quarantined(1..=2).await;
    let table = bench.command(&["quarantine", "list", "nightly"]).await;
    let lines: Vec<&str> = table.done().lines().collect();
    assert_eq!(lines.len(), 3, "{table:?}");
    assert!(lines[0].starts_with("KEY ID") && lines[0].ends_with("ERROR"), "{table:?}");
    assert!(table.done().contains("refused") && !table.done().contains('\u{1b}'), "{table:?}");
    let entries = bench.entries().await;
    let (id, key) = &entries[0];
    let shown = bench.command(&["quarantine", "show", "nightly", key]).await.json();
    assert_eq!((&shown["events"][0]["after"]["id"], *id), (&1.into(), 1));
    assert_eq!((&shown["version"], &shown["versions"]), (&2.into(), &1.into()));
    let quarantined = shown["event_id"].clone();

    let before = bench.state();
    bench.database.execute("UPDATE dbo.orders SET item = N'mended' WHERE id = 1").unwrap();
    bench.receiver.script(&[Answer::Reject(422, "still not")]);
    let result = bench.command(&["quarantine", "redrive", "nightly", &entries[1].1]).await;
    assert_eq!(result.code, 7, "{result:?}");
    assert!(result.data.contains("refused") && result.data.contains("still not"), "{result:?}");
    assert_eq!(bench.entries().await, entries);
    let result =
        bench.command(&["quarantine", "redrive", "nightly", "--all", "--output", "json"]).await;
    for line in result.json().as_array().unwrap() {
        assert_eq!(line["outcome"], "delivered", "{line}");
        if line["key_id"] == entries[0].1.as_str() {
            assert_ne!(line["delivered_as"], quarantined, "the row has changed since: {line}");
        }
    }
    assert_eq!(bench.entries().await, []);
    let mut accepted = bench.receiver.accepted();
    accepted.sort_unstable();
    assert_eq!(accepted, [1, 2]);
    let after = bench.state();
    assert_eq!(after["checkpoint"], before["checkpoint"]);
    assert!(after["lease"]["fencing_token"].as_u64() > before["lease"]["fencing_token"].as_u64());
    assert_eq!(
        bench.command(&["quarantine", "list", "nightly", "--output", "json"]).await.done(),
        "[]\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_waits_for_a_running_tick_or_names_the_holder() {
    let bench = with_quarantined(1..=1).await;
    bench.insert(5..=5);
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let arguments = ["quarantine", "redrive", "nightly", "--all"];
    let (outcome, (refused, waited)) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        let refused = bench.command(&arguments).await;
        let patient = [&arguments[..], &["--wait", "15s"]].concat();
        let (waited, ()) = tokio::join!(bench.command(&patient), async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            bench.receiver.release();
        });
        (refused, waited)
    });
    logs(&outcome);
    assert_eq!((refused.code, refused.data.lines().count()), (5, 1), "{refused:?}");
    assert!(refused.rest.contains("holds the lease until 20"), "{refused:?}");
    assert_eq!(waited.code, 0, "{waited:?}");
    assert!(waited.rest.contains("waiting for `local/local-"), "{waited:?}");
    assert_eq!(bench.receiver.accepted(), [5, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_row_is_reported_and_its_stored_event_can_be_delivered() {
    let bench = with_quarantined(1..=2).await;
    bench.database.execute("DELETE FROM dbo.orders").unwrap();
    let entries = bench.entries().await;
    let result = bench.command(&["quarantine", "redrive", "nightly", "--all"]).await;
    assert_eq!(result.code, 1, "{result:?}");
    assert!(result.data.contains("--drop-gone"), "{result:?}");
    assert_eq!(bench.entries().await, entries);
    let one = ["quarantine", "redrive", "nightly", &entries[0].1, "--as-stored"];
    bench.command(&one).await.done();
    assert_eq!(bench.receiver.accepted(), [1]);
    let result = bench.command(&["quarantine", "redrive", "nightly", "--all", "--drop-gone"]).await;
    assert!(result.done().contains("row gone, removed"), "{result:?}");
    assert_eq!((bench.receiver.accepted(), bench.entries().await), (vec![1], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_dropped_only_with_yes_and_unreadable_ones_only_by_name() {
    let bench = with_quarantined(1..=3).await;
    let entries = bench.entries().await;
    let folder = bench.state_path().parent().unwrap().to_owned();
    let bad = folder.join(format!("nightly.quarantine.{}.json", entries[2].1));
    std::fs::write(&bad, "{\"mine\": true}").unwrap();
    let drop = async |rest: &[&str]| {
        bench.command(&[&["quarantine", "drop", "nightly"], rest].concat()).await
    };
    for arguments in [&["--all"][..], &[&entries[0].1]] {
        drop(arguments).await.failed(2, "add `--yes`");
        assert_eq!(bench.entries().await.len(), 3);
    }
    drop(&["--yes"]).await.failed(2, "KEY_ID");
    drop(&["--yes", "--all", &entries[0].1]).await.failed(2, "cannot be used with");
    drop(&["--yes", &"a".repeat(32)]).await.failed(2, "has no parked key");

    let listed = bench.command(&["quarantine", "list", "nightly"]).await;
    assert!(listed.done().contains("unreadable"), "{listed:?}");
    let replayed = bench.command(&["quarantine", "redrive", "nightly", &entries[2].1]).await;
    assert!(
        replayed.code == 1 && replayed.data.contains("is not a valid quarantine entry"),
        "{replayed:?}"
    );
    let result = drop(&[&entries[0].1, "--yes"]).await;
    assert!(result.code == 0 && result.rest.contains("id=1"), "{result:?}");
    let result = drop(&["--all", "--yes"]).await;
    assert!(
        result.code == 1 && result.data.contains("pass its key id to drop it anyway"),
        "{result:?}"
    );
    assert_eq!(bench.entries().await, [(-1, entries[2].1.clone())]);
    assert!(bad.exists());
    assert_eq!(drop(&[&entries[2].1, "--yes"]).await.code, 0);
    assert_eq!(bench.entries().await, []);
    assert_eq!(bench.receiver.accepted(), [0; 0]);
}

impl Bench {
    /// Replaces fields of a stored entry.
    fn edit_entry(&self, key_id: &str, fields: &Json) {
        let folder = self.state_path().parent().unwrap().to_owned();
        let path = folder.join(format!("nightly.quarantine.{key_id}.json"));
        let text = std::fs::read_to_string(&path).unwrap();
        let (header, entry) = text.split_once('\n').unwrap();
        let mut entry: Json = serde_json::from_str(entry).unwrap();
        for (name, value) in fields.as_object().unwrap() {
            entry[name] = value.clone();
        }
        std::fs::write(path, format!("{header}\n{entry}")).unwrap();
    }

    /// Returns the names and contents of all files of the state.
    fn state_files(&self) -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let files = std::fs::read_dir(self.state_path().parent().unwrap()).unwrap();
        let paths = files.map(|file| file.unwrap().path()).filter(|path| path.is_file());
        let mut files: Vec<_> =
            paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        files.sort();
        files
    }
}

/// Four quarantined keys: 1 was refused just now, 2 crashed, 3 is retried, 4 was parked days ago.
async fn with_various() -> (Bench, Vec<String>) {
    let bench = with_quarantined(1..=4).await;
    let ids: Vec<String> = bench.entries().await.into_iter().map(|(_, id)| id).collect();
    bench.edit_entry(&ids[1], &json!({"reason": "crashes"}));
    let next_retry_at = "2999-01-01T00:00:00Z";
    bench.edit_entry(&ids[2], &json!({"state": "retrying", "next_retry_at": next_retry_at}));
    bench.edit_entry(&ids[3], &json!({"quarantined_at": "2026-01-01T00:00:00Z"}));
    (bench, ids)
}

/// Filters, and the keys of [`with_various`] that they select.
const FILTERS: &[(&str, &[i64])] = &[
    ("--reason refused", &[1, 3, 4]),
    ("--reason crashes", &[2]),
    ("--reason attempts", &[]),
    ("--reason attempts --reason crashes", &[2]),
    ("--state retrying", &[3]),
    ("--state quarantined", &[1, 2, 4]),
    ("--older-than 1d", &[4]),
    ("--newer-than 1h", &[1, 2, 3]),
    ("--newer-than 1d --reason refused", &[1, 3]),
    ("--key id=3", &[3]),
    ("--key id=3 --key id=4", &[3, 4]),
    ("--key id=3 --state quarantined", &[]),
];

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_prints_what_each_filter_selects_and_writes_nothing() {
    let (bench, ids) = with_various().await;
    let before = bench.state_files();
    let keys = |listed: &Json| {
        let rows = listed.as_array().unwrap().iter();
        let mut keys: Vec<_> = rows.map(|row| row["key"]["id"].as_i64().unwrap()).collect();
        keys.sort_unstable();
        keys
    };
    for (filters, expected) in FILTERS {
        for command in
            ["list nightly", "redrive nightly --dry-run", "redrive nightly --all --dry-run"]
        {
            let line = format!("quarantine {command} {filters} --output json");
            let listed = bench.command(&words(&line)).await.json();
            assert_eq!(keys(&listed), *expected, "{line}: {listed}");
        }
    }
    let all = bench.command(&words("quarantine redrive nightly --all --dry-run")).await;
    assert_eq!(all.done().lines().count(), 5, "{all:?}");
    let one = format!("quarantine redrive nightly {} --dry-run", ids[3]);
    let table = bench.command(&words(&one)).await;
    let cells: Vec<&str> = table.done().split_whitespace().collect();
    assert_eq!(
        cells[..10],
        ["KEY", "ID", "KEY", "STATE", "REASON", "AGE", &ids[3], "id=4", "quarantined", "refused"]
    );
    assert_eq!(cells[11], "d", "{table:?}");
    let unknown = bench.command(&words("quarantine list nightly --key id=99 --output json")).await;
    assert_eq!(unknown.done(), "[]\n");
    for command in ["redrive nightly --dry-run", "redrive nightly", "drop nightly --yes"] {
        let unknown = format!("quarantine {command} --key id=1 --key id=99");
        bench.command(&words(&unknown)).await.failed(2, "has no parked key `id=99`");
    }

    // An entry that cannot be read passes no filter.
    let bad = bench.state_path().with_file_name(format!("nightly.quarantine.{}.json", ids[0]));
    let entry = std::fs::read(&bad).unwrap();
    std::fs::write(&bad, "{}").unwrap();
    let all = bench.command(&words("quarantine redrive nightly --all --dry-run")).await;
    assert!(all.done().contains("unreadable"), "{all:?}");
    let refused = words("quarantine redrive nightly --reason refused --dry-run --output json");
    assert_eq!(keys(&bench.command(&refused).await.json()), [3, 4]);
    std::fs::write(&bad, entry).unwrap();

    assert_eq!(bench.state_files(), before);
    assert_eq!(bench.receiver.accepted(), [0_i64; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_select_the_rows_to_redrive_and_to_drop() {
    let (bench, _) = with_various().await;
    let mut accepted = Vec::new();
    for (filters, expected) in
        [("--reason crashes", 2), ("--older-than 1d", 4), ("--all --state retrying", 3)]
    {
        bench.command(&words(&format!("quarantine redrive nightly {filters}"))).await.done();
        accepted.push(expected);
        assert_eq!(bench.receiver.accepted(), accepted, "{filters}");
    }
    let before = bench.state_files();
    let none = bench.command(&words("quarantine redrive nightly --state retrying")).await;
    assert!(none.code == 0 && none.data.lines().count() == 1, "{none:?}");
    assert!(none.rest.contains("`highwater quarantine list nightly`"), "{none:?}");
    let dropped = bench.command(&words("quarantine drop nightly --reason crashes --yes")).await;
    assert_eq!(dropped.code, 0, "{dropped:?}");
    assert_eq!(bench.state_files(), before);
    let dropped = bench.command(&words("quarantine drop nightly --key id=1 --yes")).await;
    assert!(dropped.code == 0 && dropped.rest.contains("id=1"), "{dropped:?}");
    assert_eq!(bench.entries().await, []);
    assert_eq!(bench.receiver.accepted(), accepted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_delivers_at_most_the_given_rows_per_second() {
    let bench = with_quarantined(1..=3).await;
    let began = tokio::time::Instant::now();
    let result = bench.command(&words("quarantine redrive nightly --all --rate 2")).await;
    // There is no progress line without a terminal.
    assert_eq!(result.done().lines().count(), 4, "{result:?}");
    assert!(began.elapsed() >= std::time::Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(bench.receiver.accepted().len(), 3);
    let zero = words("quarantine redrive nightly --all --rate 0");
    bench.command(&zero).await.failed(2, "--rate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_prints_warnings_and_pending_rows() {
    let mut bench = Bench::new().await;
    let table = "CREATE TABLE dbo.timed (id int NOT NULL PRIMARY KEY, at datetime2(7) NULL); \
                 INSERT INTO dbo.timed VALUES (1, SYSUTCDATETIME()), (2, SYSUTCDATETIME()), (3, NULL)";
    bench.database.execute(table).unwrap();
    bench.set("SOURCE__TABLE", "dbo.timed");
    bench.set("SOURCE__MODE", "timestamp+pk");
    bench.set("SOURCE__CURSOR", "at");
    bench.set("SOURCE__SETTLE", "1h");
    let result = bench.command(&["tick", "nightly"]).await;
    let nulls = "1 row of poller `nightly` with NULL in cursor column `at`";
    result.done_with("poller `nightly`: 2 rows wait to settle");
    assert!(result.rest.starts_with(&format!("warning: {nulls}")), "{result:?}");
    let result = bench.command(&["tick", "nightly", "--dry-run"]).await;
    assert!(result.rest.starts_with(&format!("warning: {nulls}")), "{result:?}");
    let result = bench.command(&["tick", "nightly", "--output", "json"]).await;
    let report: Json = serde_json::from_str(&result.data).unwrap();
    assert_eq!((&report["outcome"], &report["held_back"]), (&json!("idle"), &json!(2)));
    let warnings = report["warnings"].as_array().unwrap();
    assert!(matches!(warnings.as_slice(), [one] if one.as_str().unwrap().starts_with(nulls)));
    assert_eq!(bench.receiver.accepted(), [0_i64; 0]);

    // Once everything is delivered, nothing is pending.
    bench.set("SOURCE__SETTLE", "0s");
    bench.database.execute("DELETE FROM dbo.timed WHERE id = 3").unwrap();
    bench.command(&["tick", "nightly"]).await.done_with("committed 2 rows");
    bench.command(&["tick", "nightly"]).await.done_with("nothing new");
    bench.database.execute("ALTER TABLE dbo.timed ADD more int NULL").unwrap();
    let result = bench.command(&["tick", "nightly"]).await;
    result.done_with("nothing new");
    assert!(result.rest.contains("warning: Columns of `dbo.timed`"), "{result:?}");
}
