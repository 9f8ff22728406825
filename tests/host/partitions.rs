//! A partitioned poller: all partitions over several processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use highwater_fakehost::Invocation;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, Host, LIMIT};
use crate::data;

const PARTITIONS: usize = 8;
const HOSTS: usize = 3;
const ROWS: i64 = 960;
/// How long the target takes for a batch: the time that partitions can overlap.
const DELIVERY_TIME: Duration = Duration::from_millis(20);

impl Bench {
    /// Partitions the poller, with a function per partition.
    fn partition_into(&mut self, partitions: usize) {
        self.set("PARTITIONS", &partitions.to_string());
        let root = self.folder.path().join("root");
        for part in 0..partitions {
            let folder = root.join(format!("nightly__p{part}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(root.join("nightly/function.json"), folder.join("function.json"))
                .unwrap();
        }
        std::fs::remove_dir_all(root.join("nightly")).unwrap();
    }

    /// Returns the state document of a name.
    fn state_of(&self, name: &str) -> Json {
        let path = self.folder.path().join(format!("state/local/{name}.json"));
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str(text.split_once('\n').unwrap().1).unwrap()
    }
}

/// Returns a command from an error message, split into shell words.
fn suggested(text: &str, what: &str) -> Vec<String> {
    let commands = text.split("`highwater ").skip(1).map(|rest| rest.split('`').next().unwrap());
    let command = { commands }.find(|command| command.starts_with(what));
    let command = command.unwrap_or_else(|| panic!("no `{what}`: {text}"));
    let mut words = Vec::new();
    for (number, part) in command.split('"').enumerate() {
        if number % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Fires each function on each host in turn, all hosts at once, until all rows have arrived.
async fn deliver(bench: &Bench, hosts: &[Host], functions: &[String]) -> Duration {
    let began_at = Instant::now();
    let end = began_at + LIMIT;
    let fire = |host: usize, function: usize| {
        let (host, name) = (&hosts[host], &functions[(function + host) % functions.len()]);
        async move { host.invoke(Invocation::new(name, data::body("01_scheduled"))).await }
    };
    while bench.receiver.accepted().len() < usize::try_from(ROWS).unwrap() {
        assert!(Instant::now() < end, "{} of {ROWS} rows", bench.receiver.accepted().len());
        let all = (0..hosts.len())
            .flat_map(|host| (0..functions.len()).map(move |function| (host, function)));
        let fired = futures_util::future::join_all(all.map(|(host, at)| fire(host, at))).await;
        assert!(fired.iter().all(|outcome| outcome.verdict.is_success()), "{fired:?}");
        sleep(Duration::from_millis(5)).await;
    }
    began_at.elapsed()
}

async fn partitioned(partitions: usize, hosts: usize) -> (Bench, Duration) {
    let mut bench = Bench::with_rows(1..=ROWS).await;
    bench.set("BATCH_ROWS_MAX", "20");
    bench.receiver.delivery_time(DELIVERY_TIME);
    let functions: Vec<String> = match partitions {
        1 => vec!["nightly".to_owned()],
        partitions => (0..partitions).map(|part| format!("nightly__p{part}")).collect(),
    };
    if partitions > 1 {
        bench.partition_into(partitions);
    }
    let mut running = Vec::new();
    for _ in 0..hosts {
        running.push(bench.host().await);
    }
    let took = deliver(&bench, &running, &functions).await;
    for host in &running {
        host.finish().await;
    }
    (bench, took)
}

/// Run it with `--nocapture` to compare the throughput with an unpartitioned poller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_partitions_over_three_processes_deliver_every_row_once() {
    let (bench, took) = partitioned(PARTITIONS, HOSTS).await;
    let mut accepted = bench.receiver.accepted();
    accepted.sort_unstable();
    assert_eq!(accepted, (1..=ROWS).collect::<Vec<_>>(), "every row once");
    // Each partition has its own document and token, and only the rows of its keys.
    let mut rows_of: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for batch in bench.receiver.batches() {
        assert!(batch.events.iter().all(|event| event["source"]["poller"] == "nightly"));
        rows_of.entry(batch.poller).or_default().extend(batch.rows);
    }
    let names: Vec<String> = (0..PARTITIONS).map(|part| format!("nightly__p{part}")).collect();
    assert_eq!(rows_of.keys().cloned().collect::<Vec<_>>(), names);
    for (index, name) in names.iter().enumerate() {
        let state = bench.state_of(name);
        assert_eq!(state["partition"], json!({"index": index, "count": PARTITIONS}), "{state}");
        let rows = rows_of[name].len();
        let fair = usize::try_from(ROWS).unwrap() / PARTITIONS;
        assert!(rows > fair / 2 && rows < 2 * fair, "`{name}` has {rows} of {ROWS} rows");
    }
    let (_, unpartitioned) = partitioned(1, 1).await;
    let rate = |took: Duration| f64::from(u32::try_from(ROWS).unwrap()) / took.as_secs_f64();
    println!(
        "{PARTITIONS} partitions over {HOSTS} processes: {:.0} rows/s; one partition in one process: {:.0}; ratio {:.1}",
        rate(took),
        rate(unpartitioned),
        rate(took) / rate(unpartitioned)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_partition_count_is_rejected_with_a_fix() {
    let mut bench = Bench::with_rows(1..=40).await;
    bench.set("PARTITIONS", "2");
    bench.command(&["tick", "nightly__p0"]).await.done_with("");
    bench.command(&["tick", "nightly__p1"]).await.done_with("");
    assert_eq!(bench.receiver.accepted().len(), 40);
    let advice = "set `HIGHWATER__POLLERS__NIGHTLY__PARTITIONS` to `2`, or run `highwater repartition \
                  nightly --to 3 --reason \"other partitions\"`";
    bench.set("PARTITIONS", "3");
    for part in ["nightly__p0", "nightly__p1", "nightly__p2"] {
        let result = bench.command(&["tick", part]).await;
        assert!(result.code != 0 && result.rest.contains(advice), "{part}: {result:?}");
    }
    bench.set("PARTITIONS", "1");
    let result = bench.command(&["tick", "nightly"]).await;
    assert!(
        result.code != 0 && result.rest.contains("has 2 partitions, but the settings have 1"),
        "{result:?}"
    );
    assert_eq!(bench.receiver.accepted().len(), 40, "nothing was redelivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_apply_to_all_partitions_or_ask_for_one() {
    let mut bench = Bench::with_rows(1..=4).await;
    bench.set("PARTITIONS", "2");
    let result = bench.command(&["tick", "nightly"]).await;
    result.failed(2, "works on one partition: name `nightly__p0`, `nightly__p1`");
    let result = bench.command(&["pause", "nightly", "--reason", "test"]).await;
    assert!(
        result.done().contains("nightly__p0: paused")
            && result.data.contains("nightly__p1: paused")
    );
    let result = bench.command(&["status", "nightly", "--output", "jsonl"]).await;
    let lines: Vec<Json> =
        result.done().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    bench.command(&["tick", "nightly__p1"]).await.done_with("");
    assert_eq!(bench.receiver.accepted(), [0_i64; 0]);
    bench.command(&["resume", "nightly"]).await.done();
    bench.command(&["tick", "nightly__p0"]).await.done_with("");
    bench.command(&["tick", "nightly__p1"]).await.done_with("");
    let mut accepted = bench.receiver.accepted();
    accepted.sort_unstable();
    assert_eq!(accepted, [1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_of_one_partition_prints_the_command_for_the_others() {
    let mut bench = Bench::with_rows(1..=4).await;
    bench.set("PARTITIONS", "2");
    for part in ["nightly__p0", "nightly__p1"] {
        bench.command(&["tick", part]).await.done_with("");
    }
    let dry = ["reset", "nightly__p0", "to-cursor", "0x0000000000000001", "--dry-run"];
    let result = bench.command(&dry).await;
    assert!(result.done().contains("`nightly__p1` continues where it is"), "{result:?}");
    let printed = "`highwater reset nightly__p1 to-cursor 0x0000000000000001 --reason \"reset all partitions\"`";
    assert!(result.data.contains(printed), "{result:?}");
    let mut words = suggested(&result.data, "reset ");
    words.push("--yes".to_owned());
    let result = bench.command(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert!(result.code == 0 && result.rest.contains("`nightly__p0` continues"), "{result:?}");
    assert_eq!(bench.command(&["repartition", "nightly", "--to", "1", "--yes"]).await.code, 0);
    bench.set("PARTITIONS", "1");
    let result = bench.command(&["reset", "nightly", "to-beginning", "--dry-run"]).await;
    assert!(!result.done().contains("continue where"), "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repartition_asks_before_it_redistributes_keys() {
    let mut bench = Bench::with_rows(1..=30).await;
    bench.set("JOURNAL", "commits");
    bench.set("BATCHES_MAX", "1");
    bench.set("BATCH_ROWS_MAX", "3");
    bench.set("PARTITIONS", "2");
    // One partition is ahead of the other, and there are rows that neither has read.
    for part in ["nightly__p0", "nightly__p0", "nightly__p1"] {
        bench.command(&["tick", part]).await.done_with("");
    }
    let result = bench.command(&["repartition", "nightly", "--to", "3"]).await;
    assert!(result.code == 2 && result.rest.contains("from 2 to 3 partitions"), "{result:?}");
    assert!(bench.state_of("nightly__p0")["paused"].is_null(), "a plan writes nothing");
    let result = bench.command(&["repartition", "nightly", "--to", "3", "--yes"]).await;
    assert_eq!(result.code, 0, "{result:?}");
    assert!(
        result.rest.contains("set `HIGHWATER__POLLERS__NIGHTLY__PARTITIONS` to `3`"),
        "{result:?}"
    );
    let result = bench.command(&["tick", "nightly__p1"]).await;
    assert!(
        result.code != 0 && result.rest.contains("has 3 partitions, but the settings have 2"),
        "{result:?}"
    );
    bench.set("PARTITIONS", "3");
    let result = bench.command(&["repartition", "nightly", "--to", "3", "--yes"]).await;
    assert!(result.done().contains("there is nothing to do"), "{result:?}");
    let result = bench.command(&["repartition", "nightly", "--to", "3", "--output", "json"]).await;
    let parsed: Json = serde_json::from_str(result.done()).unwrap();
    assert_eq!((&parsed["to"], &parsed["changed"]), (&json!(3), &json!(false)), "{parsed}");
    for _ in 0..10 {
        for part in ["nightly__p0", "nightly__p1", "nightly__p2"] {
            bench.command(&["tick", part]).await.done_with("");
        }
    }
    let mut accepted = bench.receiver.accepted();
    accepted.sort_unstable();
    assert_eq!(accepted, (1..=30).collect::<Vec<_>>(), "every row once");
    let result = bench.command(&["journal", "show", "nightly__p1"]).await;
    assert!(result.done().contains("repartitioned"), "{result:?}");
    // And back to one.
    let result = bench.command(&["repartition", "nightly", "--to", "1", "--yes"]).await;
    assert_eq!(result.code, 0, "{result:?}");
    bench.set("PARTITIONS", "1");
    bench.insert(31..=31);
    bench.command(&["tick", "nightly"]).await.done_with("");
    assert_eq!(bench.receiver.accepted().len(), 31);
    let gone = bench.state_of("nightly__p2");
    assert_eq!((&gone["taken_over_by"], gone["paused"].is_object()), (&json!(1), true), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_rejects_a_document_with_another_partition_count() {
    let mut bench = Bench::with_rows(1..=8).await;
    bench.set("PARTITIONS", "2");
    let copy = bench.folder.path().join("copy.json");
    let import =
        ["state", "import", copy.to_str().unwrap(), "nightly__p1", "--reason", "it broke", "--yes"];
    assert_eq!(bench.command(&["tick", "nightly__p1"]).await.code, 0);
    let exported = bench.command(&["state", "export", "nightly__p1"]).await;
    std::fs::write(&copy, exported.done()).unwrap();
    let before = bench.state_of("nightly__p1");
    bench.set("PARTITIONS", "3");
    let result = bench.command(&import).await;
    result.failed(
        2,
        "the document belongs to partition 1 of 2, but by the settings `nightly__p1` is partition 1 of 3",
    );
    assert!(result.rest.contains("HIGHWATER__POLLERS__NIGHTLY__PARTITIONS"), "{result:?}");
    assert_eq!(bench.state_of("nightly__p1"), before);
    bench.set("PARTITIONS", "2");
    assert_eq!(bench.command(&import).await.code, 0);
    assert_ne!(bench.state_of("nightly__p1")["generation"], before["generation"]);
}

/// A table is truncated before its poller is repartitioned, and the settings already have the new count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_printed_by_repartition_run_under_the_new_count() {
    for (from, to, is_document_lost) in [(2, 3, false), (2, 1, true), (1, 2, true)] {
        let mut bench = Bench::new().await;
        let table = "CREATE TABLE dbo.numbers (id int IDENTITY NOT NULL PRIMARY KEY, item nvarchar(9) NULL)";
        bench.database.execute(table).unwrap();
        let row = "INSERT INTO dbo.numbers (item) VALUES (N'new')";
        for _ in 0..6 {
            bench.database.execute(row).unwrap();
        }
        for (name, value) in [
            ("SOURCE__TABLE", "dbo.numbers"),
            ("SOURCE__MODE", "integer+pk"),
            ("SOURCE__CURSOR", "id"),
            ("SOURCE__SETTLE", "0s"),
            ("JOURNAL", "commits"),
        ] {
            bench.set(name, value);
        }
        let partitions = |count| match count {
            1 => vec!["nightly".to_owned()],
            count => (0..count).map(|part| format!("nightly__p{part}")).collect(),
        };
        bench.set("PARTITIONS", &from.to_string());
        for part in partitions(from) {
            bench.command(&["tick", &part]).await.done_with("");
        }
        bench.database.execute("TRUNCATE TABLE dbo.numbers").unwrap();
        bench.database.execute(row).unwrap();
        bench.set("PARTITIONS", &to.to_string());
        let count = to.to_string();
        let repartition = ["repartition", "nightly", "--to", &count, "--yes"];
        let run = async |what: &str| {
            let result = bench.command(&repartition).await;
            assert_ne!(result.code, 0, "{result:?}");
            let mut words = suggested(&result.rest, what);
            words.push("--yes".to_owned());
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let result = bench.command(&words).await;
            assert_eq!(result.code, 0, "{from} to {to}: {words:?}: {result:?}");
        };
        let mut resets = partitions(from).len();
        if is_document_lost {
            // Now in progress. The first partition has its record.
            run("reset ").await;
            resets -= 1;
            let first = format!("state/local/{}.json", partitions(from)[0]);
            std::fs::remove_file(bench.folder.path().join(first)).unwrap();
            run("state rebuild ").await;
        }
        for _ in 0..resets {
            run("reset ").await;
        }
        let result = bench.command(&repartition).await;
        assert_eq!(result.code, 0, "{result:?}");
        for part in partitions(to) {
            bench.command(&["tick", &part]).await.done_with("");
        }
        let accepted = bench.receiver.accepted();
        assert_eq!(accepted.len(), 7, "{from} to {to}: {accepted:?}");
        assert_eq!(accepted[6], 1, "{from} to {to}: {accepted:?}");
    }
}
