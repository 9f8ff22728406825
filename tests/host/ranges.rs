//! Redelivering past ranges: the real program alongside the state of a poller.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use serde_json::Value as Json;
use tokio::process::{Child, Command};

use crate::bench::{Bench, LIMIT, PROGRAM, within};
use crate::receiver::{Answer, Batch};

/// The deliveries of a poller: cursor and event id of each row.
struct Past(BTreeMap<i64, (String, String)>);

impl Past {
    fn of(batches: &[Batch]) -> Self {
        let events = batches.iter().flat_map(|batch| &batch.events);
        let text = |json: &Json| json.as_str().unwrap().to_owned();
        let described = |event: &Json| (event["cursor"].to_string(), text(&event["id"]));
        Self(events.map(|event| (event["pk"]["id"].as_i64().unwrap(), described(event))).collect())
    }

    fn cursor(&self, row: i64) -> &str {
        &self.0[&row].0
    }

    fn ids(&self, rows: std::ops::RangeInclusive<i64>) -> Vec<String> {
        rows.map(|row| self.0[&row].1.clone()).collect()
    }
}

/// A poller that has delivered rows 1 to `rows`, in batches of five.
async fn delivered(rows: i64) -> (Bench, Past) {
    let mut bench = Bench::with_rows(1..=rows).await;
    bench.set("BATCH_ROWS_MAX", "5");
    bench.host().await.run().await;
    let past = Past::of(&bench.receiver.batches());
    assert_eq!(past.0.len(), usize::try_from(rows).unwrap());
    assert!(bench.receiver.batches().iter().all(|batch| batch.replay_id.is_none()));
    bench.receiver.forget();
    (bench, past)
}

impl Bench {
    /// Returns every file of the state folder with its content.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(self.state_path().parent().unwrap()).unwrap();
        let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let files = files.map(|file| file.unwrap().path()).filter(|path| path.is_file());
        files.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
    }

    /// Starts the program and leaves it running.
    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).env_clear().envs(&self.env).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
    }

    /// Returns the id of the only range of `purpose`.
    fn range_id(&self, purpose: &str) -> String {
        let prefix = format!("nightly.{purpose}.");
        let names = self
            .files()
            .into_keys()
            .filter(|name| std::path::Path::new(name).extension().is_some_and(|end| end == "json"));
        let ids: BTreeSet<String> = names
            .filter_map(|name| Some(name.strip_prefix(&prefix)?.split('.').next()?.to_owned()))
            .collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        ids.into_iter().next().unwrap()
    }

    fn event_ids(&self) -> Vec<String> {
        let batches = self.receiver.batches();
        let events = batches.iter().filter(|batch| batch.accepted).flat_map(|batch| &batch.events);
        events.map(|event| event["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_delivers_a_range_once_with_its_ids_and_leaves_the_poller_alone() {
    let (bench, past) = delivered(30).await;
    let before = bench.files();
    let range = ["replay", "nightly", "--from", past.cursor(7), "--to", past.cursor(18)];
    let dry = bench.command(&[&range[..], &["--dry-run", "--output", "json"]].concat()).await;
    let plan: Json = serde_json::from_str(dry.done()).unwrap();
    assert_eq!((&plan["rows"], &plan["batches"]), (&11.into(), &3.into()), "{plan}");
    assert_eq!(plan["to"].to_string(), past.cursor(18));
    let refused = bench.command(&range).await;
    assert_eq!(refused.code, 2, "without a terminal there is no confirmation: {refused:?}");
    assert_eq!(bench.files(), before, "a plan writes nothing");
    assert_eq!(bench.receiver.batches().len(), 0);

    let result = bench.command(&[&range[..], &["--yes", "--output", "json"]].concat()).await;
    assert_eq!(result.code, 0, "{result:?}");
    let described: Json = serde_json::from_str(&result.data).unwrap();
    assert_eq!((&described["rows"], &described["done"]), (&11.into(), &true.into()), "{described}");
    assert_eq!(bench.receiver.accepted(), (8..=18).collect::<Vec<_>>());
    assert_eq!(bench.event_ids(), past.ids(8..=18));
    let id = bench.range_id("replay");
    for batch in bench.receiver.batches() {
        assert_eq!(batch.poller, format!("nightly.replay.{id}"));
        assert_eq!(batch.replay_id, Some(format!("replay-{id}")));
        assert_eq!(batch.events[0]["source"]["poller"], "nightly");
    }
    let after = bench.files();
    for (name, bytes) in &before {
        assert_eq!(after.get(name), Some(bytes), "{name} is the poller's own");
    }
    // It is finished.
    let again = bench.command(&["replay", "nightly", "--resume", &id, "--yes"]).await;
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(bench.receiver.accepted().len(), 11);
    let status = bench.command(&["replay", "nightly", "--status", &id]).await;
    assert!(status.done().contains("done"), "{status:?}");
    // The poller itself continues as if nothing had happened.
    bench.insert(31..=31);
    bench.host().await.run().await;
    assert_eq!(bench.receiver.accepted().split_off(11), [31]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replay_continues_under_the_same_id() {
    let (bench, past) = delivered(30).await;
    bench.receiver.script(&[Answer::Hold, Answer::Hold]);
    let range = ["replay", "nightly", "--from-beginning", "--to-checkpoint", "--yes"];
    let mut running = bench.start(&range);
    bench.receiver.arrived(1).await;
    bench.receiver.release();
    bench.receiver.arrived(2).await;
    running.kill().await.unwrap();
    let id = bench.range_id("replay");
    let result = bench.command(&["replay", "nightly", "--resume", &id]).await;
    assert_eq!(result.code, 0, "{result:?}");
    // The in-flight batch was redelivered, because its outcome was unknown.
    let accepted: BTreeSet<i64> = bench.receiver.accepted().into_iter().collect();
    assert_eq!(accepted, (1..=30).collect::<BTreeSet<_>>());
    let batches = bench.receiver.batches();
    assert_eq!(batches[2].rows, batches[1].rows);
    assert_eq!(batches[2].id, batches[1].id, "the same bytes under the same replay");
    assert!(batches[2].token > batches[1].token);
    assert_eq!(batches.iter().filter(|batch| batch.rows == batches[0].rows).count(), 1);
    let ids: BTreeSet<String> = bench.event_ids().into_iter().collect();
    assert_eq!(ids, past.ids(1..=30).into_iter().collect::<BTreeSet<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_range_names_the_signal_and_continues_under_its_id() {
    for (purpose, signal, code) in [("replay", "-TERM", 143), ("backfill", "-INT", 130)] {
        let (bench, _) = delivered(20).await;
        bench.receiver.script(&[Answer::Hold]);
        let running =
            bench.start(&[purpose, "nightly", "--from-beginning", "--to-checkpoint", "--yes"]);
        bench.receiver.arrived(1).await;
        let pid = running.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(within(LIMIT, sent).await.unwrap().success());
        bench.receiver.release();
        let output = within(LIMIT, running.wait_with_output()).await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{purpose} {output:?}");
        assert!(output.stdout.is_empty(), "it is not done: {output:?}");
        let id = bench.range_id(purpose);
        bench.command(&[purpose, "nightly", "--resume", &id]).await.done_with("20 rows delivered");
        let accepted: BTreeSet<i64> = bench.receiver.accepted().into_iter().collect();
        assert_eq!(accepted, (1..=20).collect::<BTreeSet<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_windows_of_a_backfill() {
    let (mut bench, past) = delivered(80).await;
    // A range records its progress in its documents; only the poller has a journal.
    bench.set("JOURNAL", "full");
    let before = bench.files();
    let range = ["backfill", "nightly", "--from", past.cursor(3), "--to-checkpoint"];
    let dry = bench.command(&[&range[..], &["--windows", "7", "--dry-run"]].concat()).await;
    assert!(dry.done().contains("77 rows") && dry.data.contains("7 windows"), "{dry:?}");
    assert_eq!(bench.files(), before);

    // The first process is held in two windows until the second has started.
    bench.receiver.script(&[Answer::Hold, Answer::Hold]);
    let options = ["--windows", "7", "--parallel", "2", "--yes", "--output", "json"];
    let first = bench.start(&[&range[..], &options].concat());
    bench.receiver.arrived(2).await;
    let id = bench.range_id("backfill");
    let options = ["--resume", &id, "--parallel", "2", "--output", "json"];
    let second = bench.start(&[&["backfill", "nightly"][..], &options].concat());
    bench.receiver.arrived(6).await;
    bench.receiver.release();
    bench.receiver.release();
    for child in [first, second] {
        let output = within(LIMIT, child.wait_with_output()).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let described: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(described["rows"], 77, "{described}");
        assert!(described["rows_here"].as_u64().unwrap() > 0, "each took part: {described}");
    }
    let mut accepted = bench.receiver.accepted();
    accepted.sort_unstable();
    assert_eq!(accepted, (4..=80).collect::<Vec<_>>(), "exactly the rows of the range");
    let ids: BTreeSet<String> = bench.event_ids().into_iter().collect();
    assert_eq!(ids, past.ids(4..=80).into_iter().collect::<BTreeSet<_>>());
    let replay_ids: BTreeSet<Option<String>> =
        bench.receiver.batches().into_iter().map(|batch| batch.replay_id).collect();
    assert_eq!(replay_ids, BTreeSet::from([Some(format!("backfill-{id}"))]), "one for all windows");
    let names: BTreeSet<String> =
        bench.receiver.batches().into_iter().map(|batch| batch.poller).collect();
    let windows = (1..=7).map(|number| format!("nightly.backfill.{id}.{number}"));
    assert_eq!(names, windows.collect::<BTreeSet<_>>());
    let after = bench.files();
    for (name, bytes) in &before {
        assert_eq!(after.get(name), Some(bytes), "{name} is the poller's own");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_backfill_stops_and_does_not_resume() {
    let (bench, _) = delivered(40).await;
    bench.receiver.script(&[Answer::Hold]);
    let range = ["backfill", "nightly", "--from-beginning", "--to-checkpoint", "--yes"];
    let running = bench.start(&[&range[..], &["--windows", "2", "--parallel", "1"]].concat());
    bench.receiver.arrived(1).await;
    let id = bench.range_id("backfill");
    let cancel = ["backfill", "nightly", "--cancel", &id, "--output", "json"];
    let described: Json = serde_json::from_str(bench.command(&cancel).await.done()).unwrap();
    assert_eq!(
        (&described["id"], &described["cancelled"]),
        (&Json::from(id.as_str()), &true.into()),
        "{described}"
    );
    bench.receiver.release();
    let output = within(LIMIT, running.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(bench.receiver.accepted().len(), 5, "the batch in hand");
    bench
        .command(&["backfill", "nightly", "--resume", &id])
        .await
        .failed(1, "cancelled by an operator");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_not_in_the_past_is_rejected() {
    let bench = Bench::with_rows(1..=2).await;
    let all = ["--from-beginning", "--to-checkpoint"];
    let result = bench.command(&[&["replay", "nightly"][..], &all].concat()).await;
    result.failed(2, "is at the beginning");
    bench.host().await.run().await;
    let before = bench.files();
    let beyond = "0x00000000FFFFFFFF";
    for (arguments, text) in [
        (&["--from-beginning", "--to", beyond][..], "beyond the poller's checkpoint"),
        (&["--from", beyond, "--to-checkpoint"], "the range is empty"),
        (&["--from", "yesterday", "--to-checkpoint"], "invalid position `yesterday`"),
        (&["--to-checkpoint"], "--from-beginning"),
        (&["--from-beginning"], "--to-checkpoint"),
        (&["--resume", "abc"], "has no replay `abc`"),
        (&["--resume", "../x"], "expected an id"),
        (&["--resume", "abc", "--from", "1"], "cannot be used with"),
    ] {
        let result = bench.command(&[&["replay", "nightly"][..], arguments].concat()).await;
        result.failed(2, text);
    }
    assert_eq!(bench.files(), before);
}
