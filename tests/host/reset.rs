//! `highwater reset`, `clone`, `lease break` and `state import`: the real program, and each of its guards.

use std::fs;

use serde_json::{Value as Json, json};

use crate::bench::{Bench, logs};
use crate::commands::CommandOutput;
use crate::receiver::Answer;

/// A poller with a journal that has delivered `1..=4`.
async fn delivered() -> Bench {
    let mut bench = Bench::with_rows(1..=4).await;
    bench.set("JOURNAL", "commits");
    logs(&bench.host().await.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4]);
    bench
}

const WHY: [&str; 2] = ["--reason", "the target was lost"];
const SURE: [&str; 3] = ["--why", "the target was lost", "--yes"];

impl Bench {
    async fn reset(&self, to: &[&str], rest: &[&str]) -> CommandOutput {
        self.command(&[&["reset", "nightly"], to, rest].concat()).await
    }

    /// Returns the saved copies next to the document.
    fn saved(&self) -> Vec<String> {
        let files = fs::read_dir(self.state_path().parent().unwrap()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.contains(".saved.")).collect();
        names.retain(|name| !name.ends_with("lock"));
        names
    }

    async fn last_entry(&self) -> Json {
        let tail = ["journal", "tail", "nightly", "-n", "1", "--output", "jsonl"];
        serde_json::from_str(self.command(&tail).await.done().trim()).unwrap()
    }

    fn cursor(&self) -> String {
        self.state()["checkpoint"]["cursor"].to_string()
    }
}

fn json(result: &CommandOutput) -> Json {
    assert_eq!(result.code, 0, "{result:?}");
    serde_json::from_str(&result.data).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_redelivered_after_a_confirmed_plan() {
    let bench = delivered().await;
    let before = bench.state();
    let dry = bench.reset(&["to-beginning"], &["--dry-run", "--output", "json"]).await;
    let plan = json(&dry);
    assert_eq!((&plan["rows_again"], &plan["rows_skipped"]), (&json!(4), &json!(0)), "{plan}");
    assert_eq!((&plan["from"], &plan["to"]), (&before["checkpoint"]["cursor"], &Json::Null));
    let unconfirmed = bench.reset(&["to-beginning"], &[]).await;
    unconfirmed.failed(2, "`--reason TEXT`");
    assert!(
        unconfirmed.rest.contains("redelivered, with their previous ids: 4 rows"),
        "{unconfirmed:?}"
    );
    bench.reset(&["to-beginning"], &["--yes"]).await.failed(2, "`--reason TEXT`");
    let unsure = bench.reset(&["to-beginning"], &WHY).await;
    unsure.failed(2, "add `--yes`");
    assert!(unsure.rest.contains("redelivered, with their previous ids: 4 rows"), "{unsure:?}");
    assert_eq!((bench.state(), bench.saved().len()), (before.clone(), 0), "nothing was done");

    let done = bench.reset(&["to-beginning"], &[&SURE[..], &["--output", "json"]].concat()).await;
    let report = json(&done);
    assert_eq!(report["changed"], true);
    let saved = bench.state_path().with_file_name(report["saved"].as_str().unwrap());
    let saved = fs::read_to_string(saved).unwrap();
    let saved: Json = serde_json::from_str(saved.split_once('\n').unwrap().1).unwrap();
    assert_eq!(saved, before);
    let entry = bench.last_entry().await;
    assert_eq!((&entry["event"], &entry["reason"]), (&json!("reset"), &json!(WHY[1])));
    assert!(entry["by"].as_str().unwrap().starts_with("ann@"), "{entry}");
    let after = bench.state();
    for field in ["/generation", "/lease/fencing_token"] {
        let of = |document: &Json| document.pointer(field).unwrap().as_u64();
        assert!(of(&after) > of(&before), "{field}");
    }

    let calls = bench.receiver.batches().len();
    logs(&bench.host().await.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 1, 2, 3, 4]);
    let batches = bench.receiver.batches();
    let ids = |batch: &crate::receiver::Batch| {
        batch.events.iter().map(|event| event["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&batches[calls]), ids(&batches[0]), "ids of rows stay");
    assert_ne!(batches[calls].id, batches[0].id, "a target must not take them for known");
    let report = bench.command(&["state", "verify", "nightly"]).await;
    assert!(report.done().contains("the journal leads to the state document"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_skipped_only_with_an_explicit_flag() {
    let bench = delivered().await;
    bench.insert(5..=7);
    let before = bench.state();
    let refused = bench.reset(&["to-now"], &SURE).await;
    refused.failed(2, "`--skip-rows`");
    assert!(refused.rest.contains("skipped, NEVER delivered: 3 rows"), "{refused:?}");
    assert_eq!((bench.state(), bench.saved().len()), (before, 0));
    let done = bench.reset(&["to-now"], &[&SURE[..], &["--skip-rows"]].concat()).await;
    assert_eq!(done.code, 0, "{done:?}");
    bench.insert(8..=8);
    logs(&bench.host().await.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 8]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_that_is_kept_counts_no_rows() {
    let mut bench = delivered().await;
    bench.set("SOURCE__FILTER", "id > 0");
    let keep = ["keep", "--new-source"];
    let dry = bench.reset(&keep, &["--dry-run", "--output", "json"]).await;
    let plan = json(&dry);
    assert_eq!((&plan["rows_again"], &plan["rows_skipped"]), (&Json::Null, &Json::Null), "{plan}");
    assert_eq!(plan["from"], plan["to"]);
    assert!(plan["source_changes"][0].as_str().unwrap().contains("`id > 0`"), "{plan}");
    bench.reset(&keep, &SURE).await.done_with("Accepted the source. Ticks continue after");
    logs(&bench.host().await.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4]);
    bench.reset(&keep, &SURE).await.done_with("the source has not changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_goes_to_a_cursor_or_a_copy_only() {
    let bench = delivered().await;
    let first = bench.receiver.batches()[0].events[1]["cursor"].to_string();
    bench.reset(&["to-cursor", &first], &SURE).await.done_with("Ticks continue after");
    assert_eq!(bench.cursor(), first);
    logs(&bench.host().await.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 3, 4]);

    let saved = bench.saved();
    assert_eq!(saved.len(), 1);
    let copy = bench.state_path().with_file_name(&saved[0]);
    let at = ["to-checkpoint", copy.to_str().unwrap()];
    // This is the position that the poller has reached again.
    assert_eq!(bench.reset(&at, &SURE).await.done(), "nightly: already there\n");
    bench.reset(&["to-beginning"], &SURE).await.done_with("from the beginning");
    let forward = bench.reset(&at, &SURE).await;
    forward.failed(2, "`--skip-rows`");
    bench
        .reset(&at, &[&SURE[..], &["--skip-rows"]].concat())
        .await
        .done_with("Ticks continue after");
    logs(&bench.host().await.run().await);
    assert_eq!(bench.receiver.accepted().len(), 6, "nothing was redelivered");

    for (to, code, text) in [
        (&["to-cursor", "0x00000000FFFFFFFF"][..], 2, "beyond the end of the source"),
        (&["to-cursor", "soon"], 2, "invalid position `soon`"),
        (&["to-cursor"], 2, "needs a position"),
        (&["to-checkpoint"], 2, "needs a file"),
        (&["to-checkpoint", "/nowhere"], 2, "read `/nowhere`"),
        (&["to-now", "1"], 2, "take no position"),
    ] {
        bench.reset(to, &SURE).await.failed(code, text);
    }
    bench.command(&["reset", "weekly", "to-now"]).await.failed(2, "no poller `weekly`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_lease_blocks_a_reset_unless_it_is_broken_explicitly() {
    let bench = delivered().await;
    bench.insert(5..=5);
    let free = bench.command(&[&["lease", "break", "nightly"], &SURE[..]].concat()).await;
    assert_eq!(free.done(), "nightly: nobody holds the lease\n");
    bench.receiver.script(&[Answer::Hold]);
    let host = bench.host().await;
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(2).await;
        let token = bench.state()["lease"]["fencing_token"].as_u64().unwrap();
        bench.reset(&["to-beginning"], &SURE).await.failed(5, "holds the lease");
        let held = bench.command(&[&["lease", "break", "nightly"], &SURE[..]].concat()).await;
        held.failed(5, "`--live`");
        let live = ["lease", "break", "nightly", "--live"];
        bench.command(&live).await.failed(2, "`--reason TEXT`");
        bench.command(&[&live[..], &WHY].concat()).await.failed(2, "add `--yes`");
        assert_eq!(bench.state()["lease"]["fencing_token"], token, "nothing was done");
        let arguments = [&live[..], &SURE, &["--output", "json"]].concat();
        let report = json(&bench.command(&arguments).await);
        assert_eq!(report["fencing_token"], token + 1);
        assert_eq!(bench.state()["lease"]["owner_id"], Json::Null);
        let saved = bench.state_path().with_file_name(report["saved"].as_str().unwrap());
        assert!(saved.is_file());
        assert_eq!(bench.last_entry().await["event"], "lease_broken");
        bench.receiver.release();
    });
    drop(outcome);
    let host = bench.host().await;
    host.run_until(|| bench.receiver.accepted().contains(&5)).await;
    assert!(bench.cursor().contains("\"id\":5"), "{}", bench.cursor());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_raised_above_a_fence_only_by_a_command_that_is_confirmed_and_recorded() {
    let bench = delivered().await;
    let before = bench.state();
    let generation = before["generation"].as_u64().unwrap();
    let token = before["lease"]["fencing_token"].as_u64().unwrap();
    let fence = format!("{generation}.{}", token + 30);
    let raise = ["lease", "break", "nightly", "--above", fence.as_str()];
    bench.command(&raise).await.failed(2, "`--reason TEXT`");
    let plan = bench.command(&[&raise[..], &WHY].concat()).await;
    plan.failed(2, "add `--yes`");
    for wrong in ["7", "7.x", "token 7"] {
        let wrong = ["lease", "break", "nightly", "--above", wrong];
        bench.command(&[&wrong[..], &SURE].concat()).await.failed(2, "generation and token");
    }
    assert_eq!(bench.state(), before, "nothing was done");
    // The target has rejected the newest grant: a lower number would only be rejected again.
    let mut refused = before.clone();
    refused["lease"]["target_fence"] = json!({ "generation": generation, "token": token + 30 });
    refused["requires"] = json!(["target_fence"]);
    fs::write(bench.state_path(), refused.to_string()).unwrap();
    let low = format!("{generation}.{}", token + 29);
    let low = ["lease", "break", "nightly", "--above", low.as_str()];
    let command = format!("`highwater lease break nightly --above {fence} --reason");
    bench.command(&[&low[..], &SURE].concat()).await.failed(5, &command);
    bench.command(&["status", "nightly"]).await.done_with("stopped");
    let arguments = [&raise[..], &SURE, &["--output", "json"]].concat();
    let report = json(&bench.command(&arguments).await);
    assert_eq!((&report["changed"], &report["fencing_token"]), (&json!(true), &json!(token + 31)));
    assert!(bench.state_path().with_file_name(report["saved"].as_str().unwrap()).is_file());
    let after = bench.state();
    assert_eq!(
        (&after["checkpoint"], &after["generation"]),
        (&before["checkpoint"], &before["generation"])
    );
    assert_eq!((&after["lease"]["target_fence"], &after["requires"]), (&Json::Null, &json!([])));
    let entry = bench.last_entry().await;
    assert_eq!((&entry["event"], &entry["reason"]), (&json!("lease_broken"), &json!(SURE[1])));
    let again = bench.command(&[&raise[..], &SURE].concat()).await;
    again.done_with("nothing was changed");
    assert_eq!(bench.state(), after);
    // As if the document had been lost and created again in the target's view: its generation is higher, too.
    let fence = format!("{}.2", generation + 1_000_000_000_000);
    let raise = ["lease", "break", "nightly", "--above", fence.as_str()];
    bench.command(&[&raise[..], &SURE].concat()).await.done_with("newest grant is now");
    assert!(bench.state()["generation"].as_u64().unwrap() > generation + 1_000_000_000_000);
    bench.insert(5..=5);
    bench.host().await.run().await;
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_continues_under_another_name_and_overwrites_nothing() {
    let mut fresh = Bench::with_rows(1..=4).await;
    let clone = ["clone", "nightly", "mirror"];
    let never = "`nightly` has never started, so there is no state to copy";
    for (words, start) in [
        (&clone[..], "add settings for `mirror`"),
        (&["clone", "mirror", "nightly"], "with `highwater init nightly`"),
        (&["clone", "nightly", "--from-app", "shop"], "with `highwater init nightly`"),
    ] {
        if words[1] == "mirror" {
            fresh.add_poller("mirror");
        }
        let result = fresh.command(&[words, &SURE[..]].concat()).await;
        result.failed(1, start);
        let is_known = result.rest.contains(&never.replace("nightly", words[1]));
        assert!(
            is_known || result.rest.contains("`nightly` in app `shop` has never"),
            "{result:?}"
        );
    }
    let mut bench = delivered().await;
    bench.command(&clone).await.failed(2, "`--reason TEXT`");
    let place = "continues after the checkpoint of `nightly`, now rowversion `";
    bench.command(&[&clone[..], &["--dry-run"]].concat()).await.done_with(place);
    let dry = [&clone[..], &["--dry-run", "--output", "json"]].concat();
    let plan: Json = serde_json::from_str(bench.command(&dry).await.done()).unwrap();
    assert_eq!((&plan["changed"], &plan["generation"]), (&json!(false), &Json::Null), "{plan}");
    assert_eq!(plan["cursor"]["kind"], "rowversion", "{plan}");
    bench.command(&[&clone[..], &WHY].concat()).await.failed(2, "add `--yes`");
    let result = bench.command(&[&clone[..], &SURE].concat()).await;
    result.done_with("add its settings next");
    bench.command(&[&clone[..], &SURE].concat()).await.failed(1, "never overwritten");
    let onto_itself = ["clone", "nightly", "nightly"];
    bench.command(&[&onto_itself[..], &SURE].concat()).await.failed(1, "never overwritten");
    bench.command(&["clone", "nightly", "Two__Parts"]).await.failed(2, "starting with a letter");
    let tail = ["journal", "tail", "mirror", "-n", "1", "--output", "jsonl"];
    bench.add_poller("mirror");
    let entry: Json = serde_json::from_str(bench.command(&tail).await.done().trim()).unwrap();
    assert_eq!((&entry["event"], &entry["reason"]), (&json!("cloned"), &json!(WHY[1])));
    bench.insert(5..=5);
    assert_eq!(bench.command(&["tick", "mirror"]).await.code, 0);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_shows_its_consequences_and_skips_only_on_request() {
    let bench = delivered().await;
    let copy = bench.folder.path().join("copy.json");
    let path = copy.to_str().unwrap().to_owned();
    let export = async || {
        let exported = bench.command(&["state", "export", "nightly"]).await;
        fs::write(&copy, exported.done()).unwrap();
    };
    bench.insert(5..=6);
    logs(&bench.host().await.run().await);
    export().await;
    let import = ["state", "import", &path, "nightly"];
    bench.command(&[&import[..], &["--yes"]].concat()).await.failed(2, "`--reason TEXT`");
    bench.reset(&["to-beginning"], &SURE).await.done_with("from the beginning");
    let before = bench.state();
    let forward = bench.command(&[&import[..], &SURE].concat()).await;
    forward.failed(2, "`--skip-rows`");
    assert!(forward.rest.contains("NEVER delivered: 6 rows"), "{forward:?}");
    assert_eq!(bench.state(), before);
    let skip = [&import[..], &SURE, &["--skip-rows"]].concat();
    assert_eq!(bench.command(&skip).await.code, 0);
    logs(&bench.host().await.run().await);
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5, 6]);
}
