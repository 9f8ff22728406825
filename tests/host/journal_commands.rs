//! `highwater journal` and `highwater state`: the real program alongside a host that runs the same poller.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use highwater_fakehost::Signal;
use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, LIMIT, PROGRAM, logs, within};
use crate::commands::CommandOutput;
use crate::receiver::Answer;

/// A poller with a full journal that has delivered `1..=4` in two ticks of two processes.
async fn delivered() -> Bench {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.set("JOURNAL", "full");
    for more in [Some(3..=4), None] {
        let host = bench.host().await;
        logs(&host.run().await);
        host.finish().await;
        if let Some(ids) = more {
            bench.insert(ids);
        }
    }
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4]);
    bench
}

impl Bench {
    /// Returns the JSON lines that a command prints.
    async fn json_lines(&self, arguments: &[&str]) -> Vec<Json> {
        let arguments = [arguments, &["--output", "jsonl"]].concat();
        let result = self.command(&arguments).await;
        result.done().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Changes the document directly, as none of our programs would.
    fn tamper(&self, change: impl FnOnce(&mut Json)) {
        let text = fs::read_to_string(self.state_path()).unwrap();
        let (header, _) = text.split_once('\n').unwrap();
        let mut document = self.state();
        change(&mut document);
        fs::write(self.state_path(), format!("{header}\n{document}")).unwrap();
    }

    fn journal_parts(&self) -> Vec<String> {
        let folder = self.folder.path().join("journal/local/nightly");
        let names = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| name.ends_with(".ndjson"));
        names.sort();
        names
    }

    async fn verify(&self) -> Json {
        let result = self.command(&["state", "verify", "nightly", "--output", "json"]).await;
        let report: Json = serde_json::from_str(&result.data).unwrap();
        assert_eq!(result.code == 0, report["explained"] == true, "{result:?}");
        report
    }

    async fn rebuild(&self, rest: &[&str]) -> CommandOutput {
        self.command(&[&["state", "rebuild", "nightly"], rest].concat()).await
    }
}

fn events(entries: &[Json]) -> Vec<&str> {
    entries.iter().map(|entry| entry["event"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn journal_entries_are_filtered_followed_and_exported_as_stored() {
    let bench = delivered().await;
    let all = bench.json_lines(&["journal", "show", "nightly"]).await;
    let tick = ["lease_acquired", "execution_started", "batch_complete"];
    assert_eq!(events(&all), [tick, tick].concat());
    let shown = bench.command(&["journal", "show", "nightly"]).await;
    assert_eq!(shown.done().lines().count(), 7, "{shown:?}");
    assert!(shown.data.starts_with("AT") && shown.data.contains("tick_complete"), "{shown:?}");

    let show = async |rest: &[&str]| {
        bench.json_lines(&[&["journal", "show", "nightly"], rest].concat()).await
    };
    assert_eq!(show(&["--event", "batch_complete,lease_lost"]).await.len(), 2);
    assert_eq!(show(&["--token", "2"]).await, all[3..]);
    let batch = all[1]["batch_id"].as_str().unwrap();
    assert_eq!(show(&["--batch-id", batch]).await, all[..3]);
    let second = all[3]["at"].as_str().unwrap();
    assert_eq!(show(&["--since", second]).await, all[3..]);
    assert_eq!(show(&["--until", second]).await, all[..3]);
    assert_eq!(show(&["--since", "1h", "--event", "lease_acquired"]).await.len(), 2);
    assert_eq!(bench.json_lines(&["journal", "tail", "nightly", "-n", "2"]).await, all[4..]);

    let exported = bench.command(&["journal", "export", "nightly"]).await;
    let part = bench.folder.path().join("journal/local/nightly").join(&bench.journal_parts()[0]);
    assert_eq!(exported.done(), fs::read_to_string(&part).unwrap());
    let one = bench.command(&["journal", "export", "nightly", "--token", "1"]).await;
    assert_eq!(one.done().lines().count(), 3);
    for (arguments, text) in [
        (&["show", "nightly", "--event", "x"][..], "expected the name of an event"),
        (&["show", "nightly", "--since", "x"], "expected a time such as"),
        (&["tail", "weekly"], "no poller `weekly`"),
        (&["compact", "nightly"], "add `--yes`"),
    ] {
        bench.command(&[&["journal"], arguments].concat()).await.failed(2, text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn following_a_journal_shows_each_new_entry_once() {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.set("JOURNAL", "full");
    let host = bench.host().await;
    logs(&host.run().await);
    let mut command = Command::new(PROGRAM);
    command.args(["journal", "tail", "nightly", "-n", "1", "--follow", "--output", "jsonl"]);
    command.env_clear().envs(&bench.env).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
        let entry: Json = serde_json::from_str(&line).unwrap();
        (entry["event"].as_str().unwrap().to_owned(), entry["rows"].as_u64())
    };
    assert_eq!(next().await, ("batch_complete".to_owned(), Some(2)));
    for (id, rows) in [(3, 1), (4, 1)] {
        bench.insert(id..=id);
        logs(&host.run().await);
        for event in ["lease_acquired", "execution_started", "batch_complete"] {
            assert_eq!(next().await, (event.to_owned(), Some(rows)));
        }
    }
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn journal_days_are_kept_as_long_as_configured() {
    for (retention, kept) in [("2d", false), ("0", true)] {
        let mut bench = Bench::with_rows(1..=2).await;
        bench.set("JOURNAL", "commits");
        bench.set("JOURNAL_RETENTION", retention);
        let folder = bench.folder.path().join("journal/local/nightly");
        fs::create_dir_all(&folder).unwrap();
        let old = folder.join("2020-01-01.0000.ndjson");
        fs::write(&old, "{}\n").unwrap();
        let host = bench.host().await;
        logs(&host.run().await);
        host.finish().await;
        assert_eq!((old.exists(), bench.journal_parts().len()), (kept, 1 + usize::from(kept)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_difference_is_named_and_a_harmless_gap_explained() {
    let bench = delivered().await;
    let report = bench.verify().await;
    assert_eq!((&report["verdict"], &report["findings"]), (&"agrees".into(), &Json::Array(vec![])));
    bench.tamper(|document| document["journal_seq"] = 9.into());
    let report = bench.verify().await;
    assert_eq!((&report["verdict"], &report["document_seq"]), (&"behind".into(), &9.into()));
    bench.tamper(|document| document["journal_seq"] = 3.into());
    assert_eq!(bench.verify().await["verdict"], "document_is_older");
    bench.tamper(|document| {
        document["journal_seq"] = 4.into();
        document["checkpoint"]["cursor"]["tiebreaker"]["id"] = 2.into();
    });
    let report = bench.verify().await;
    assert_eq!(report["difference"]["pointer"], "/checkpoint/cursor/tiebreaker/id");
    assert_eq!(
        (&report["difference"]["document"], &report["difference"]["journal"]),
        (&2.into(), &4.into())
    );
    let result = bench.command(&["state", "verify", "nightly"]).await;
    assert!(
        result.data.contains("journal and document differ: `/checkpoint/cursor/tiebreaker/id`"),
        "{result:?}"
    );
    let compact = bench.command(&["journal", "compact", "nightly", "--yes"]).await;
    compact.failed(1, "nothing was dropped");
    for (damage, verdict) in [("{", "damaged"), ("{\"version\": 7}", "damaged")] {
        fs::write(bench.state_path(), damage).unwrap();
        assert_eq!(bench.verify().await["verdict"], verdict);
    }
    fs::remove_file(bench.state_path()).unwrap();
    assert_eq!(bench.verify().await["verdict"], "no_document");
    bench.command(&["state", "show", "nightly"]).await.failed(1, "no state document is stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_document_is_rebuilt_and_delivery_continues_where_it_was() {
    for damage in [Some("{\"version\": 1, \"poll"), Some("{\"version\": 9}"), None] {
        let bench = delivered().await;
        let before = bench.state();
        match damage {
            Some(damage) => fs::write(bench.state_path(), damage).unwrap(),
            None => fs::remove_file(bench.state_path()).unwrap(),
        }
        bench.rebuild(&[]).await.failed(2, "add `--yes`");
        let result = bench.rebuild(&["--yes", "--output", "json", "--reason", "it broke"]).await;
        assert_eq!(result.code, 0, "{result:?}");
        assert!(
            result.rest.contains("ticks continue after {\"kind\":\"rowversion\""),
            "{result:?}"
        );
        let report: Json = serde_json::from_str(&result.data).unwrap();
        let after = bench.state();
        assert_eq!(after["checkpoint"], before["checkpoint"]);
        assert_eq!(report["generation"], after["generation"]);
        assert!(after["generation"].as_u64() > before["generation"].as_u64());
        assert!(
            after["lease"]["fencing_token"].as_u64() > before["lease"]["fencing_token"].as_u64()
        );
        assert_eq!(after["lease"]["owner_id"], Json::Null);
        match damage {
            Some(damage) => {
                let name = report["saved"].as_str().unwrap();
                let saved = fs::read_to_string(bench.state_path().with_file_name(name)).unwrap();
                assert_eq!(saved.split_once('\n').unwrap().1, damage);
            }
            None => assert_eq!(report["saved"], Json::Null),
        }
        let last = bench.json_lines(&["journal", "tail", "nightly", "-n", "1"]).await.remove(0);
        assert_eq!((&last["event"], &last["reason"]), (&"rebuilt".into(), &"it broke".into()));
        bench.rebuild(&["--yes"]).await.done();
        assert_eq!(bench.state(), after, "one repair is enough");
        bench.insert(5..=5);
        logs(&bench.host().await.run().await);
        assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5]);
        assert_eq!(bench.verify().await["verdict"], "agrees");
        assert_eq!(bench.state()["marked"], true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_rebuilt_from_the_journal_of_a_killed_tick() {
    let mut bench = Bench::with_rows(1..=8).await;
    bench.set("JOURNAL", "full");
    bench.set("BATCH_ROWS_MAX", "1");
    bench.receiver.script(&[const { Answer::Hold }; 8]);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        for _ in 0..7 {
            bench.receiver.release();
        }
        bench.receiver.arrived(8).await;
        // Appended while the tick continues.
        let show = ["journal", "show", "nightly", "--event", "batch_complete"];
        let end = Instant::now() + LIMIT;
        while bench.json_lines(&show).await.len() < 7 {
            assert!(Instant::now() < end, "seven commits are appended");
            sleep(Duration::from_millis(50)).await;
        }
        host.signal(Signal::Kill).await.unwrap();
    });
    assert!(!outcome.verdict.is_success(), "{outcome:?}");
    let before = bench.state();
    host.stop().await;
    assert_eq!(bench.verify().await["explained"], true);
    fs::write(bench.state_path(), "{").unwrap();
    assert_eq!(bench.rebuild(&["--yes"]).await.code, 0);
    assert_eq!(bench.state()["checkpoint"], before["checkpoint"]);
    let host = bench.host().await;
    logs(&host.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bench.verify().await["verdict"], "agrees");
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_document_or_one_with_a_held_lease_is_not_replaced() {
    let bench = delivered().await;
    let copy = bench.folder.path().join("copy.json");
    let exported = bench.command(&["state", "export", "nightly"]).await;
    fs::write(&copy, exported.done()).unwrap();
    let import = ["state", "import", copy.to_str().unwrap(), "nightly", "--why", "it broke"];
    bench.insert(5..=5);
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, held) = tokio::join!(host.run(), async {
        bench.receiver.arrived(3).await;
        let held = bench.command(&[&import[..], &["--yes"]].concat()).await;
        bench.receiver.release();
        held
    });
    logs(&outcome);
    held.failed(5, "holds the lease");
    bench.tamper(|document| document["journal_seq"] = 9.into());
    bench.rebuild(&["--yes"]).await.failed(1, "older than the stored one");
    bench.tamper(|document| document["journal_seq"] = 6.into());

    bench.command(&import).await.failed(2, "add `--yes`");
    let result = bench.command(&[&import[..], &["--yes"]].concat()).await;
    assert!(result.code == 0 && result.data.contains("imported as generation"), "{result:?}");
    // The old process has the old position in memory, where it finds nothing new.
    logs(&host.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5]);
    logs(&bench.host().await.run().await);
    assert_eq!(
        bench.receiver.accepted(),
        [1, 2, 3, 4, 5, 5],
        "rows after the copy are redelivered"
    );
    assert_eq!(bench.verify().await["verdict"], "agrees");
    fs::write(&copy, exported.data.replace("\"nightly\"", "\"weekly\"")).unwrap();
    bench.command(&import).await.failed(2, "names poller `weekly`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_is_restarted_during_a_tick_without_losing_entries() {
    let mut bench = delivered().await;
    // A renewal would itself start a new part.
    bench.set("LEASE__TTL", "60s");
    bench.insert(5..=5);
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let compact = ["journal", "compact", "nightly", "--yes", "--output", "json"];
    let (outcome, result) = tokio::join!(host.run(), async {
        bench.receiver.arrived(3).await;
        let result = bench.command(&compact).await;
        bench.receiver.release();
        result
    });
    logs(&outcome);
    assert_eq!(result.code, 0, "{result:?}");
    let report: Json = serde_json::from_str(&result.data).unwrap();
    assert_eq!(
        (&report["dropped"].as_array().unwrap().len(), &report["kept"]),
        (&1, &Json::Array(vec![]))
    );
    assert_eq!(bench.journal_parts().len(), 1, "one part was dropped, one started");
    assert_eq!(bench.verify().await["verdict"], "agrees");
    bench.insert(6..=6);
    logs(&host.run().await);
    let report = bench.verify().await;
    assert_eq!((&report["verdict"], &report["findings"]), (&"agrees".into(), &Json::Array(vec![])));
    fs::remove_file(bench.state_path()).unwrap();
    assert_eq!(bench.rebuild(&["--yes"]).await.code, 0);
    assert_eq!(bench.state()["checkpoint"]["cursor"]["tiebreaker"]["id"], 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_journal_there_is_nothing_to_verify_or_rebuild() {
    let bench = Bench::with_rows(1..=1).await;
    logs(&bench.host().await.run().await);
    bench.command(&["state", "verify", "nightly"]).await.failed(2, "`JOURNAL` is `off`");
    for command in ["show", "tail"] {
        let result = bench.command(&["journal", command, "nightly"]).await;
        let setting = "set `HIGHWATER__POLLERS__NIGHTLY__JOURNAL` to `commits` or `full`";
        assert!(result.code == 0 && result.rest.contains(setting), "{result:?}");
    }
    bench
        .command(&["journal", "compact", "nightly", "--yes"])
        .await
        .failed(2, "`JOURNAL` is `off`");
    bench.rebuild(&["--yes"]).await.failed(1, "no entry to start from");
    let shown = bench.command(&["state", "show", "nightly"]).await;
    assert!(shown.done().contains("checkpoint         {\"kind\":\"rowversion\""), "{shown:?}");
    let shown = bench.command(&["journal", "show", "nightly", "--output", "json"]).await;
    assert_eq!((shown.code, shown.data.as_str()), (0, "[]\n"));
}
