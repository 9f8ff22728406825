//! Upgrades: builds that follow one another, or run side by side, on one state document.
//!
//! `HIGHWATER_TEST_OLD_BINARY` names the program of an earlier release. Without it both sides are this build,
//! and fields that a later build may leave in a document are planted.

use std::fs;
use std::path::{Path, PathBuf};

use highwater_fakehost::{Options, Signal};
use serde_json::{Value as Json, json};
use tokio::process::Command;

use crate::bench::{Bench, Host, LIMIT, PROGRAM, failure, logs, within};
use crate::receiver::Answer;

/// Places where a later build may put fields that this one does not know.
const PLACES: [&str; 4] = ["", "/checkpoint", "/checkpoint/metadata", "/lease"];

fn old_program() -> PathBuf {
    std::env::var_os("HIGHWATER_TEST_OLD_BINARY").map_or_else(
        || {
            println!("HIGHWATER_TEST_OLD_BINARY is not set: this build also acts as the old one");
            PathBuf::from(PROGRAM)
        },
        PathBuf::from,
    )
}

async fn host_of(bench: &mut Bench, program: PathBuf) -> Host {
    bench.options = Options { program, ..bench.options.clone() };
    bench.host().await
}

/// Changes the document as another build would, between ticks.
fn rewrite(bench: &Bench, change: impl FnOnce(&mut Json)) {
    let text = fs::read_to_string(bench.state_path()).unwrap();
    let (header, document) = text.split_once('\n').unwrap();
    let mut header: Json = serde_json::from_str(header).unwrap();
    header["tag"] = (header["tag"].as_u64().unwrap() + 1).into();
    let mut document: Json = serde_json::from_str(document).unwrap();
    change(&mut document);
    fs::write(bench.state_path(), format!("{header}\n{document:#}")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_and_new_builds_alternate_on_one_document_during_a_rollout() {
    let mut bench = Bench::new().await;
    let old = host_of(&mut bench, old_program()).await;
    let new = host_of(&mut bench, PROGRAM.into()).await;
    for id in 1..=6 {
        bench.insert(id..=id);
        let host = if id % 2 == 0 { &new } else { &old };
        host.run_until(|| bench.receiver.accepted().len() >= usize::try_from(id).unwrap()).await;
    }
    assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4, 5, 6], "every row once, in order");
    let tokens: Vec<u64> = bench.receiver.batches().iter().map(|batch| batch.token).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    for host in [&old, &new] {
        assert!(logs(&host.run().await)[0].contains("nothing new"));
        host.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_killed_during_a_tick_is_replaced_by_another_without_loss() {
    let (old, new) = (old_program(), PathBuf::from(PROGRAM));
    for (dying, next) in [(old.clone(), new.clone()), (new, old)] {
        let mut bench = Bench::with_rows(1..=3).await;
        bench.receiver.script(&[Answer::Hold]);
        let host = host_of(&mut bench, dying).await;
        let (outcome, ()) = tokio::join!(host.run(), async {
            bench.receiver.arrived(1).await;
            host.signal(Signal::Kill).await.unwrap();
        });
        assert!(failure(&outcome).starts_with("HttpRequestException"), "{outcome:?}");
        host.exit(1, LIMIT).await.unwrap();
        host.kill().await;
        bench.insert(4..=4);
        let host = host_of(&mut bench, next).await;
        host.run_until(|| bench.receiver.accepted().len() == 4).await;
        assert_eq!(bench.receiver.accepted(), [1, 2, 3, 4]);
        let batches = bench.receiver.batches();
        assert_eq!((&batches[0].id, batches[1].attempt), (&batches[1].id, 2), "{batches:?}");
        assert!(batches[1].token > batches[0].token && bench.state()["in_flight"].is_null());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_of_a_newer_build_survive_ticks_of_this_build() {
    let bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    rewrite(&bench, |document| {
        for place in PLACES {
            document.pointer_mut(place).unwrap()["later"] = json!({ "in": place });
        }
    });
    bench.insert(2..=2);
    let host = bench.host().await;
    host.run_until(|| bench.receiver.accepted().len() == 2).await;
    host.finish().await;
    let state = bench.state();
    for place in PLACES {
        assert_eq!(state.pointer(place).unwrap()["later"], json!({ "in": place }), "{state:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_mandatory_feature_stops_this_build() {
    let bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    for (field, value, expected) in [
        ("requires", json!(["sharding"]), "requires `sharding`, which this build does not know"),
        ("version", json!(2), "has version `2`, this build reads `1`: deploy a build"),
    ] {
        let before = fs::read(bench.state_path()).unwrap();
        rewrite(&bench, |document| document[field] = value);
        let planted = fs::read(bench.state_path()).unwrap();
        bench.insert(2..=2);
        let outcome = bench.host().await.run().await;
        assert!(failure(&outcome).contains(expected), "{outcome:?}");
        assert_eq!(fs::read(bench.state_path()).unwrap(), planted, "nothing was overwritten");
        assert_eq!(bench.receiver.accepted(), [1]);
        bench.database.execute("DELETE FROM dbo.orders WHERE id = 2").unwrap();
        fs::write(bench.state_path(), before).unwrap();
    }
}

/// Saves the state document without the line that the file store has above it.
fn keep(bench: &Bench, to: &Path, stage: &str) {
    let text = fs::read_to_string(bench.state_path()).unwrap();
    let (_header, document) = text.split_once('\n').unwrap();
    fs::write(to.join(stage).with_extension("json"), document).unwrap();
}

/// Records the documents that a build writes, for `tests/it/builds`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes to the folder that HIGHWATER_TEST_RECORD names: see docs/how-to/upgrades.md"]
async fn the_old_builds_output_is_recorded() {
    let to = PathBuf::from(std::env::var_os("HIGHWATER_TEST_RECORD").expect("names a new folder"));
    fs::create_dir_all(&to).unwrap();
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("JOURNAL", "full");
    bench.set("BATCH_ROWS_MAX", "2");
    bench.set("RETRY_DELAY_MIN", "1s");
    bench.set("STATUS_INTERVAL", "1s");
    let host = host_of(&mut bench, old_program()).await;
    bench.receiver.script(&[Answer::Hold]);
    let (outcome, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(1).await;
        keep(&bench, &to, "begun");
        bench.receiver.release();
    });
    logs(&outcome);
    keep(&bench, &to, "taken");
    while bench.state()["observed"]["idle_ticks"].as_u64().unwrap_or_default() == 0 {
        logs(&host.run().await);
    }
    keep(&bench, &to, "noted");
    bench.insert(4..=5);
    bench.receiver.script(&[Answer::Reject(500, "not now"), Answer::Hold]);
    failure(&host.run().await);
    keep(&bench, &to, "failed");
    tokio::join!(host.run_until(|| bench.receiver.accepted().len() == 5), async {
        bench.receiver.arrived(4).await;
        keep(&bench, &to, "in-hand");
        bench.receiver.release();
    });
    for (arguments, stage) in [
        (&["pause", "nightly", "--reason", "the target moves"][..], "paused"),
        (&["resume", "nightly"], "last"),
    ] {
        let mut command = Command::new(old_program());
        command.args(arguments).env_clear().envs(&bench.env).env("USER", "ann");
        assert!(within(LIMIT, command.status()).await.unwrap().success());
        keep(&bench, &to, stage);
    }
    host.stop().await;
    let parts = fs::read_dir(bench.folder.path().join("journal/local/nightly")).unwrap();
    let mut parts: Vec<PathBuf> = parts.map(|part| part.unwrap().path()).collect();
    parts.sort();
    let lines: Vec<Vec<u8>> = parts.into_iter().map(|part| fs::read(part).unwrap()).collect();
    fs::write(to.join("journal.ndjson"), lines.concat()).unwrap();
}

#[tokio::test]
async fn version_prints_version_and_commit() {
    let bench = Bench::new().await;
    let result = bench.command(&["version"]).await;
    let expected = concat!("highwater ", env!("CARGO_PKG_VERSION"), "\ncommit ");
    assert!(result.done().starts_with(expected), "{result:?}");
    let result = bench.command(&["version", "--output", "json"]).await;
    let version: Json = serde_json::from_str(result.done()).unwrap();
    assert_eq!(version["state_document"], highwater::state::VERSION);
    assert!(version["commit"].is_null() || version["commit"].is_string());
}
