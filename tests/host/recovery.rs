//! The recovery controller as a function and as a command, and `status` next to it.

use serde_json::{Value as Json, json};

use highwater_fakehost::Invocation;

use crate::bench::{Bench, logs};
use crate::data;

impl Bench {
    /// Changes the state document as if it had been written an hour ago.
    pub(crate) fn an_hour_ago(&self, change: impl FnOnce(&mut Json)) {
        let text = std::fs::read_to_string(self.state_path()).unwrap();
        let (header, document) = text.split_once('\n').unwrap();
        let mut header: Json = serde_json::from_str(header).unwrap();
        let mut document: Json = serde_json::from_str(document).unwrap();
        header["last_modified"] = "2026-01-01T00:00:00Z".into();
        change(&mut document);
        std::fs::write(self.state_path(), format!("{header}\n{document}")).unwrap();
    }

    /// Leaves the lease with a dead process.
    pub(crate) fn die(&self) {
        self.an_hour_ago(|document| {
            document["lease"]["owner_id"] = "dead".into();
            document["lease"]["released_at"] = Json::Null;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_holder_is_released_only_on_request() {
    let bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    bench.die();
    let result = bench.command(&["status", "--output", "json"]).await;
    let status: Json = serde_json::from_str(result.done()).unwrap();
    assert_eq!((&status[0]["state"], &status[0]["owner"]), (&json!("failing"), &json!("dead")));
    for _ in 0..2 {
        let result = bench.command(&["recover", "--output", "json"]).await;
        assert!(result.code == 0 && result.rest.contains("1 to repair"), "{result:?}");
        let found: Json = serde_json::from_str(&result.data).unwrap();
        assert_eq!(found[0]["condition"], "lease_expired");
        assert_eq!(found[0]["outcome"], "planned");
        assert_eq!(found[0]["state"], "failing", "as `status` shows it");
        assert_eq!(bench.state()["lease"]["owner_id"], "dead");
    }
    let result = bench.command(&["recover", "--yes"]).await;
    assert!(result.code == 0 && result.rest.contains("1 repaired"), "{result:?}");
    assert!(result.data.contains("lease_expired"), "{result:?}");
    assert!(result.data.contains("idle"), "the state after the repair: {result:?}");
    assert_eq!(bench.state()["lease"]["owner_id"], Json::Null);
    let result = bench.command(&["recover", "--yes"]).await;
    assert!(
        result.code == 0 && result.rest.contains("nothing to repair, 0 findings"),
        "{result:?}"
    );
    bench.insert(2..=2);
    bench.host().await.run().await;
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    let result = bench.command(&["status", "nightly"]).await;
    assert!(result.done().contains("nightly") && result.data.contains("idle"), "{result:?}");
    bench.command(&["status", "weekly"]).await.failed(2, "no poller `weekly`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recovery_function_repairs_reports_or_ignores_as_configured() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    let call = || Invocation::new(highwater::recovery::FUNCTION, data::body("01_scheduled"));
    for (mode, expected, owner) in [
        ("off", "is `off`", json!("dead")),
        ("report", "1 to repair", json!("dead")),
        ("repair", "1 repaired", Json::Null),
    ] {
        bench.die();
        bench.set_env("HIGHWATER__RECOVERY__MODE", mode);
        let host = bench.host().await;
        let outcome = host.invoke(call()).await;
        assert!(logs(&outcome)[0].contains(expected), "{outcome:?}");
        assert_eq!(bench.state()["lease"]["owner_id"], owner, "{mode}");
        if mode != "off" {
            host.event("recovery_finding").await;
        }
        host.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_sets_the_exit_code_but_does_not_fail_the_invocation() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    host.run().await;
    bench.an_hour_ago(|document| document["source_fingerprint"] = "sha256:other".into());
    let result = bench.command(&["recover"]).await;
    assert!(result.code == 1 && result.data.contains("fingerprint_differs"), "{result:?}");
    let call = Invocation::new(highwater::recovery::FUNCTION, data::body("01_scheduled"));
    assert!(host.invoke(call).await.verdict.is_success());
    std::fs::write(bench.state_path(), "{").unwrap();
    let result = bench.command(&["recover"]).await;
    assert!(result.code == 1 && result.data.contains("state_unreadable"), "{result:?}");
    let result = bench.command(&["status"]).await;
    assert!(result.done().contains("is not JSON"), "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_and_doctor_report_a_lease_too_short_for_recent_ticks() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("LEASE__TTL", "60s");
    let host = bench.host().await;
    for id in 2..=6 {
        host.run().await;
        bench.insert(id..=id);
    }
    host.stop().await;
    let result = bench.command(&["status", "--output", "json"]).await;
    let status: Json = serde_json::from_str(&result.data).unwrap();
    let sizing = &status[0]["sizing"];
    assert_eq!(
        (&sizing["ticks"], &sizing["heartbeat_p99_ms"]),
        (&json!(5), &Json::Null),
        "{status}"
    );
    let suggested = sizing["suggested_ttl_seconds"].as_u64().unwrap();
    assert!(suggested >= 30, "{sizing}");
    // These took less than a second, one after the other: they and their schedule are fine.
    assert_eq!(status[0]["warnings"], json!([]), "{status}");
    assert_eq!(result.rest.matches("nightly").count(), 0, "{result:?}");
    let result = bench.command(&["doctor", "--poller", "nightly", "--output", "json"]).await;
    let found: Json = serde_json::from_str(&result.data).unwrap();
    let found = found.as_array().unwrap();
    let sized = found.iter().find(|one| one["check"] == "lease sizing").unwrap();
    assert_eq!(sized["level"], "ok", "{sized}");
    assert!(
        found.iter().all(|one| one["fix"].is_null() || one["check"] != "schedule"),
        "{found:?}"
    );
    // Slower than these, with a TTL that is too short for them.
    bench.an_hour_ago(|document| {
        for tick in document["recent"].as_array_mut().unwrap() {
            tick["longest_ms"]["handler"] = 100_000.into();
        }
    });
    let result = bench.command(&["status"]).await;
    assert!(result.code == 0 && result.data.contains("135s"), "{result:?}");
    assert!(result.rest.contains("nightly: `LEASE__TTL` is 60 s"), "{result:?}");
    let result = bench.command(&["doctor", "--poller", "nightly", "--output", "json"]).await;
    let found: Json = serde_json::from_str(&result.data).unwrap();
    let found =
        found.as_array().unwrap().iter().find(|one| one["check"] == "lease sizing").unwrap();
    assert_eq!(found["level"], "warning", "{found}");
    assert!(found["found"].as_str().unwrap().contains("135"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_replay_is_reported_and_a_finished_one_is_not() {
    let bench = Bench::with_rows(1..=2).await;
    bench.host().await.run().await;
    let range = ["replay", "nightly", "--from-beginning", "--to-checkpoint", "--yes"];
    assert_eq!(bench.command(&range).await.code, 0);
    let folder = bench.state_path().parent().unwrap().to_owned();
    let names = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let is_range = |path: &std::path::PathBuf| {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        stem.starts_with("nightly.replay.") && path.extension().is_some_and(|end| end == "json")
    };
    let path = names.into_iter().find(is_range).unwrap();
    bench.command(&["pause", "nightly", "--reason", "the target moves"]).await.done();
    let result = bench.command(&["recover"]).await;
    assert!(result.code == 0 && result.rest.contains("0 findings in 2 documents"), "{result:?}");
    // As if its process had crashed an hour ago.
    let text = std::fs::read_to_string(&path).unwrap();
    let (header, document) = text.split_once('\n').unwrap();
    let mut header: Json = serde_json::from_str(header).unwrap();
    let mut document: Json = serde_json::from_str(document).unwrap();
    header["last_modified"] = "2026-01-01T00:00:00Z".into();
    document["range"]["done_at"] = Json::Null;
    std::fs::write(&path, format!("{header}\n{document}")).unwrap();
    bench.command(&["resume", "nightly"]).await.done();
    let result = bench.command(&["recover", "--output", "json"]).await;
    let found: Json = serde_json::from_str(&result.data).unwrap();
    assert_eq!((result.code, &found[0]["condition"]), (0, &json!("range_left")), "{result:?}");
    assert!(found[0]["found"].as_str().unwrap().contains("--resume"), "{found}");
}
