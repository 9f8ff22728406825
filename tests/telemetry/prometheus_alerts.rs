//! Every alert of `alerts.yml`, evaluated by Prometheus over the metrics of a real process: of a healthy one, and of
//! the situation that each is for.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use highwater_fakehost::Invocation;
use tokio::time::sleep;

use crate::alerts::{command, insert_timed, timed};
use crate::bench::{Bench, Host, logs};
use crate::child::file;
use crate::data;
use crate::promql::{Scrape, assert_fires, assert_fires_at, serve_metrics};
use crate::receiver::Answer;

/// A bench with a host that has delivered its rows, and its metrics then.
struct Healthy {
    bench: Bench,
    host: Host,
    address: String,
    scrape: Scrape,
}

impl Healthy {
    async fn new(set: impl FnOnce(&mut Bench)) -> Self {
        Self::of(Bench::with_rows(1..=3).await, set).await
    }

    async fn of(mut bench: Bench, set: impl FnOnce(&mut Bench)) -> Self {
        let address = serve_metrics(&mut bench);
        set(&mut bench);
        let host = bench.host().await;
        logs(&host.run().await);
        let scrape = Scrape::of(&address).await;
        Self { bench, host, address, scrape }
    }

    /// Lets the target reply to the next calls with a status, and runs that many ticks.
    async fn rejected(&self, status: u16, text: &'static str, ticks: usize) -> Scrape {
        let answers: Vec<Answer> = (0..ticks).map(|_| Answer::Reject(status, text)).collect();
        self.bench.receiver.script(&answers);
        for _ in 0..ticks {
            self.host.run().await;
            command(&self.bench, &["resume", "nightly"]).await;
        }
        self.now().await
    }

    async fn now(&self) -> Scrape {
        Scrape::of(&self.address).await
    }

    /// Asserts what fires after the situation that `scrape` shows has lasted.
    fn fires(&self, what: &str, scrape: &Scrape, expected: &[&str]) {
        assert_fires(what, &[&self.scrape, scrape], expected);
    }
}

fn park(bench: &mut Bench) {
    bench.set("ON_FAILURE", "park");
}

fn quarantine(bench: &mut Bench) {
    park(bench);
    bench.set("PARK_RETRIES_MAX", "0");
}

#[test]
fn every_alert_is_fired_by_a_test() {
    let rules = fs::read_to_string(file("docs/reference/prometheus/alerts.yml")).unwrap();
    let rules = rules.split("- alert: Highwater").skip(1);
    let rules: BTreeSet<&str> = rules.map(|rest| rest.split('\n').next().unwrap()).collect();
    let code = include_str!("prometheus_alerts.rs");
    for rule in rules {
        assert!(code.contains(&format!("\"{rule}\"")), "no test fires `{rule}`");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_poller_fires_no_alert_and_missing_metrics_do() {
    let healthy = Healthy::new(|_| {}).await;
    // Ages stay small while ticks run, so the scrape is repeated.
    let again = healthy.now().await;
    assert_eq!(again.value(&["highwater_lag_seconds{"]), Some(0.0));
    assert_fires("healthy", &[&healthy.scrape.ticking()], &[]);
    assert_fires("no metrics", &[&healthy.scrape.ticking(), &Scrape::default()], &["Silent"]);
    healthy.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_ticks_fires_its_alerts() {
    let healthy = Healthy::new(|bench| {
        let root = bench.folder.path().join("root");
        fs::create_dir_all(root.join("nightly")).unwrap();
        let timer = r#"{"bindings":[{"name":"t","type":"timerTrigger","direction":"in","schedule":"* * * * * *"}]}"#;
        fs::write(root.join("nightly/function.json"), timer).unwrap();
        bench.set_env("FUNCTIONS_APP_ROOT_PATH", root.to_str().unwrap());
        bench.set("STATUS_INTERVAL", "1s");
    })
    .await;
    let silent = async {
        loop {
            let scrape = healthy.now().await;
            if scrape.value(&["highwater_poller_state{", "\"silent\""]) == Some(1.0) {
                return scrape;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let silent = crate::bench::within(Duration::from_secs(30), silent).await;
    healthy.fires("silent", &silent, &["Silent", "Stale"]);
    healthy.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_ticks_fire_their_alerts() {
    let healthy = Healthy::new(|_| {}).await;
    healthy.bench.insert(4..=4);
    let failing = healthy.rejected(401, "denied", 5).await;
    let expected = ["Failures", "Handler", "Lag", "Stale"];
    assert_fires_at("401", &[&healthy.scrape, &failing], 60, &expected);
    healthy.host.stop().await;

    let stopped = Healthy::new(|_| {}).await;
    stopped.bench.insert(4..=4);
    stopped.bench.receiver.script(&[Answer::Reject(410, "gone")]);
    stopped.host.run().await;
    stopped.host.run().await;
    let scrape = stopped.now().await;
    stopped.fires("410", &scrape, &["Lag", "Stale", "Stopped"]);
    stopped.host.stop().await;

    let vanished = Healthy::new(|_| {}).await;
    fs::remove_file(vanished.bench.state_path()).unwrap();
    vanished.bench.insert(4..=4);
    vanished.host.run().await;
    vanished.host.run().await;
    let scrape = vanished.now().await;
    vanished.fires("document deleted", &scrape, &["Lag", "Stale", "Stopped"]);
    vanished.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_set_aside_fire_their_alerts() {
    let parked = Healthy::new(park).await;
    parked.bench.insert(4..=4);
    let scrape = parked.rejected(422, "no", 1).await;
    parked.fires("parked", &scrape, &["Parked", "Stale"]);
    parked.host.stop().await;

    let quarantined = Healthy::new(quarantine).await;
    quarantined.bench.insert(4..=4);
    let scrape = quarantined.rejected(422, "no", 1).await;
    // The rule covers the last quarter of an hour.
    assert_fires("quarantined", &[&quarantined.scrape.ticking(), &scrape.ticking()], &[]);
    let halfway = [&quarantined.scrape.ticking(), &scrape.ticking()];
    assert_fires_at("quarantined", &halfway, 50, &["Quarantine"]);
    quarantined.host.stop().await;

    let breaker = Healthy::new(|bench| {
        quarantine(bench);
        bench.set("BREAKER_ROWS", "2");
    })
    .await;
    breaker.bench.insert(4..=6);
    breaker.bench.receiver.script(&[const { Answer::Reject(422, "no") }; 12]);
    breaker.host.run().await;
    breaker.host.event("breaker_opened").await;
    breaker.host.run().await;
    let scrape = breaker.now().await;
    breaker.fires("breaker open", &scrape, &["Breaker", "Failures", "Lag", "Stale"]);
    breaker.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poller_that_cannot_keep_up_fires_its_alerts() {
    let behind = Healthy::new(|bench| {
        bench.set("BATCH_ROWS_MAX", "1");
        bench.set("BATCHES_MAX", "1");
    })
    .await;
    let mut scrapes = Vec::new();
    for first in [4, 10, 20] {
        behind.bench.insert(first..=first + 5);
        behind.host.run().await;
        scrapes.push(behind.now().await.ticking());
    }
    let timeline: Vec<&Scrape> = scrapes.iter().collect();
    assert_fires_at("behind", &timeline, 105, &["Behind", "Lag"]);
    behind.host.stop().await;

    let settling = Healthy::new(|bench| {
        bench
            .database
            .execute("CREATE TABLE dbo.n (id int IDENTITY NOT NULL PRIMARY KEY, v int NULL)")
            .unwrap();
        for (name, value) in [
            ("TABLE", "dbo.n"),
            ("MODE", "integer+pk"),
            ("CURSOR", "id"),
            ("KEY", "id"),
            ("SETTLE", "5s"),
        ] {
            bench.set(&format!("SOURCE__{name}"), value);
        }
    })
    .await;
    settling.bench.database.execute("INSERT INTO dbo.n (v) VALUES (0)").unwrap();
    settling.host.run_until(|| settling.bench.receiver.accepted() == [1]).await;
    let mut scrapes = Vec::new();
    for _ in 0..3 {
        settling.bench.database.execute("INSERT INTO dbo.n (v) VALUES (1), (2)").unwrap();
        settling.host.run().await;
        scrapes.push(settling.now().await.ticking());
    }
    let timeline: Vec<&Scrape> = scrapes.iter().collect();
    assert_fires_at("held back", &timeline, 105, &["HeldBack"]);
    settling.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_instances_pauses_and_late_rows_fire_their_alerts() {
    let paused = Healthy::new(|_| {}).await;
    command(&paused.bench, &["pause", "nightly", "--reason", "the target moves"]).await;
    // The tick finds the pause when it wants to write.
    paused.bench.insert(4..=4);
    paused.host.run().await;
    paused.host.run().await;
    let scrape = paused.now().await;
    paused.fires("paused", &scrape, &["Lag", "Paused", "Stale"]);
    paused.host.stop().await;

    let held = Healthy::new(|_| {}).await;
    let mut other = Bench::with_rows(1..=1).await;
    other.env.clone_from(&held.bench.env);
    let address = serve_metrics(&mut other);
    let instance = other.host().await;
    logs(&instance.run().await);
    let before = Scrape::of(&address).await;
    held.bench.insert(4..=4);
    held.bench.receiver.script(&[Answer::Hold]);
    let arrived = held.bench.receiver.batches().len() + 1;
    let (_, scrape) = tokio::join!(held.host.run(), async {
        held.bench.receiver.arrived(arrived).await;
        instance.run().await;
        let first = Scrape::of(&address).await;
        for _ in 0..3 {
            instance.run().await;
        }
        let scrapes = [first, Scrape::of(&address).await];
        held.bench.receiver.release();
        scrapes
    });
    let [first, scrape] = scrape.map(|scrape| scrape.ticking());
    let timeline = [&before.ticking(), &first, &scrape];
    assert_fires_at("skipped", &timeline, 90, &["Contention"]);
    instance.stop().await;
    held.host.stop().await;

    let late = Healthy::of(timed().await, |_| {}).await;
    for day in [1, 3] {
        insert_timed(&late.bench, day);
        late.host.run().await;
    }
    let before = late.now().await;
    insert_timed(&late.bench, 2);
    late.host.run_until(|| late.bench.receiver.accepted().contains(&2)).await;
    let scrape = late.now().await;
    assert_fires_at("late", &[&before.ticking(), &scrape.ticking()], 50, &["Late"]);
    late.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_journal_and_fence_errors_fire_their_alerts() {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("JOURNAL", "full");
    let found = Healthy::of(bench, |_| {}).await;
    let journal = found.bench.folder.path().join("journal");
    fs::remove_dir_all(&journal).unwrap();
    fs::write(&journal, "").unwrap();
    found.bench.insert(4..=4);
    found.host.run().await;
    found.host.event("journal_append_failed").await;
    let scrape = found.now().await.ticking();
    assert_fires_at("journal", &[&found.scrape.ticking(), &scrape], 50, &["Journal"]);

    found.bench.insert(5..=5);
    let newer = r#"{"fence":{"generation":9999999999999,"fencing_token":42}}"#;
    found.bench.receiver.script(&[Answer::Reject(409, newer)]);
    found.host.run().await;
    found.host.event("fence_ahead").await;
    let fenced = found.now().await.ticking();
    let expected = ["Fenced", "Journal", "Stopped"];
    assert_fires_at("fenced", &[&scrape, &fenced], 50, &expected);

    fs::write(found.bench.state_path(), "{").unwrap();
    let recovery = Invocation::new(highwater::recovery::FUNCTION, data::body("01_scheduled"));
    found.host.invoke(recovery).await;
    found.host.event("recovery_finding").await;
    let scrape = found.now().await.ticking();
    let expected = ["Lag", "Recovery", "Stopped"];
    assert_fires("state unreadable", &[&fenced, &scrape], &expected);
    found.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_about_to_be_lost_fire_their_alert() {
    let bench = Bench::with_rows(1..=1).await;
    for sql in [
        "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON",
        "ALTER TABLE dbo.orders ENABLE CHANGE_TRACKING",
    ] {
        bench.database.execute(sql).unwrap();
    }
    let found = Healthy::of(bench, |bench| {
        bench.set("SOURCE__MODE", "change_tracking");
        bench.unset("SOURCE__CURSOR");
        bench.set("BATCH_ROWS_MAX", "1");
        bench.set("BATCHES_MAX", "1");
    })
    .await;
    let mut last = found.host.run().await;
    while !logs(&last)[0].contains("nothing new") {
        last = found.host.run().await;
    }
    for id in 2..=12 {
        found.bench.insert(id..=id);
    }
    found.host.run_until(|| found.bench.receiver.accepted().len() == 12).await;
    let before = found.now().await.ticking();
    found.bench.database.forget_changes("dbo.orders").unwrap();
    for id in 13..=24 {
        found.bench.insert(id..=id);
    }
    found.host.run().await;
    let scrape = found.now().await.ticking();
    assert_fires("retention", &[&before, &scrape], &["Lag", "Retention"]);
    found.host.stop().await;
}
