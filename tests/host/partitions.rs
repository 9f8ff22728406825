//! A poller that is divided: all its parts over several processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use highwater_fakehost::Invocation;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, Host, LIMIT};
use crate::data;

const PARTS: usize = 8;
const HOSTS: usize = 3;
const ROWS: i64 = 960;
/// How long the target takes for a batch: what parts can wait for beside each other.
const TARGET_TAKES: Duration = Duration::from_millis(20);

impl Bench {
    /// Divides the poller, with a function for each part.
    fn divide(&mut self, parts: usize) {
        self.set("PARTITIONS", &parts.to_string());
        let root = self.folder.path().join("root");
        for part in 0..parts {
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

/// Returns a command of an error as the words of a shell.
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

/// Fires each function on each host in turn, all hosts at once, until all rows have come.
async fn deliver(bench: &Bench, hosts: &[Host], functions: &[String]) -> Duration {
    let began_at = Instant::now();
    let end = began_at + LIMIT;
    let fire = |host: usize, function: usize| {
        let (host, name) = (&hosts[host], &functions[(function + host) % functions.len()]);
        async move { host.invoke(Invocation::new(name, data::body("01_scheduled"))).await }
    };
    while bench.receiver.taken().len() < usize::try_from(ROWS).unwrap() {
        assert!(Instant::now() < end, "{} of {ROWS} rows", bench.receiver.taken().len());
        let all = (0..hosts.len())
            .flat_map(|host| (0..functions.len()).map(move |function| (host, function)));
        let fired = futures_util::future::join_all(all.map(|(host, at)| fire(host, at))).await;
        assert!(fired.iter().all(|outcome| outcome.verdict.is_success()), "{fired:?}");
        sleep(Duration::from_millis(5)).await;
    }
    began_at.elapsed()
}

async fn divided(parts: usize, hosts: usize) -> (Bench, Duration) {
    let mut bench = Bench::with_rows(1..=ROWS).await;
    bench.set("BATCH_ROWS_MAX", "20");
    bench.receiver.takes(TARGET_TAKES);
    let functions: Vec<String> = match parts {
        1 => vec!["nightly".to_owned()],
        parts => (0..parts).map(|part| format!("nightly__p{part}")).collect(),
    };
    if parts > 1 {
        bench.divide(parts);
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

/// Run it with `--nocapture` to see how fast it was beside one that is not divided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_parts_over_three_processes_deliver_every_row_once() {
    let (bench, took) = divided(PARTS, HOSTS).await;
    let mut taken = bench.receiver.taken();
    taken.sort_unstable();
    assert_eq!(taken, (1..=ROWS).collect::<Vec<_>>(), "every row, and none twice");
    // Each part has its own document and token, and the rows of its keys only.
    let mut rows_of: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for batch in bench.receiver.batches() {
        assert!(batch.events.iter().all(|event| event["source"]["poller"] == "nightly"));
        rows_of.entry(batch.poller).or_default().extend(batch.rows);
    }
    let names: Vec<String> = (0..PARTS).map(|part| format!("nightly__p{part}")).collect();
    assert_eq!(rows_of.keys().cloned().collect::<Vec<_>>(), names);
    for (index, name) in names.iter().enumerate() {
        let state = bench.state_of(name);
        assert_eq!(state["partition"], json!({"index": index, "count": PARTS}), "{state}");
        let rows = rows_of[name].len();
        let fair = usize::try_from(ROWS).unwrap() / PARTS;
        assert!(rows > fair / 2 && rows < 2 * fair, "`{name}` has {rows} of {ROWS} rows");
    }
    let (_, whole) = divided(1, 1).await;
    let rate = |took: Duration| f64::from(u32::try_from(ROWS).unwrap()) / took.as_secs_f64();
    println!(
        "{PARTS} parts over {HOSTS} processes: {:.0} rows a second; one part in one process: {:.0}; ratio {:.1}",
        rate(took),
        rate(whole),
        rate(took) / rate(whole)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_number_of_parts_is_refused_with_what_to_do() {
    let mut bench = Bench::with_rows(1..=40).await;
    bench.set("PARTITIONS", "2");
    bench.command(&["tick", "nightly__p0"]).await.done_with("");
    bench.command(&["tick", "nightly__p1"]).await.done_with("");
    assert_eq!(bench.receiver.taken().len(), 40);
    let advice = "set `HIGHWATER__POLLERS__NIGHTLY__PARTITIONS` to `2`, or run `highwater repartition \
                  nightly --to 3 --reason \"other partitions\"`";
    bench.set("PARTITIONS", "3");
    for part in ["nightly__p0", "nightly__p1", "nightly__p2"] {
        let said = bench.command(&["tick", part]).await;
        assert!(said.code != 0 && said.rest.contains(advice), "{part}: {said:?}");
    }
    bench.set("PARTITIONS", "1");
    let said = bench.command(&["tick", "nightly"]).await;
    assert!(
        said.code != 0 && said.rest.contains("has 2 partitions, but the settings have 1"),
        "{said:?}"
    );
    assert_eq!(bench.receiver.taken().len(), 40, "nothing came again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_take_all_parts_or_ask_for_one() {
    let mut bench = Bench::with_rows(1..=4).await;
    bench.set("PARTITIONS", "2");
    let said = bench.command(&["tick", "nightly"]).await;
    said.failed(2, "one part at a time: name `nightly__p0`, `nightly__p1`");
    let said = bench.command(&["pause", "nightly", "--reason", "test"]).await;
    assert!(
        said.done().contains("nightly__p0: paused") && said.data.contains("nightly__p1: paused")
    );
    let said = bench.command(&["status", "nightly", "--output", "jsonl"]).await;
    let lines: Vec<Json> =
        said.done().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    bench.command(&["tick", "nightly__p1"]).await.done_with("");
    assert_eq!(bench.receiver.taken(), [0_i64; 0]);
    bench.command(&["resume", "nightly"]).await.done();
    bench.command(&["tick", "nightly__p0"]).await.done_with("");
    bench.command(&["tick", "nightly__p1"]).await.done_with("");
    let mut taken = bench.receiver.taken();
    taken.sort_unstable();
    assert_eq!(taken, [1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_of_one_part_prints_the_command_that_resets_the_others() {
    let mut bench = Bench::with_rows(1..=4).await;
    bench.set("PARTITIONS", "2");
    for part in ["nightly__p0", "nightly__p1"] {
        bench.command(&["tick", part]).await.done_with("");
    }
    let dry = ["reset", "nightly__p0", "to-cursor", "0x0000000000000001", "--dry-run"];
    let said = bench.command(&dry).await;
    assert!(said.done().contains("`nightly__p1` continues where it is"), "{said:?}");
    let printed = "`highwater reset nightly__p1 to-cursor 0x0000000000000001 --reason \"reset all partitions\"`";
    assert!(said.data.contains(printed), "{said:?}");
    let mut words = suggested(&said.data, "reset ");
    words.push("--yes".to_owned());
    let said = bench.command(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert!(said.code == 0 && said.rest.contains("`nightly__p0` continues"), "{said:?}");
    assert_eq!(bench.command(&["repartition", "nightly", "--to", "1", "--yes"]).await.code, 0);
    bench.set("PARTITIONS", "1");
    let said = bench.command(&["reset", "nightly", "to-beginning", "--dry-run"]).await;
    assert!(!said.done().contains("continue where"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_divided_anew_by_a_command_that_asks_first() {
    let mut bench = Bench::with_rows(1..=30).await;
    bench.set("JOURNAL", "commits");
    bench.set("BATCHES_MAX", "1");
    bench.set("BATCH_ROWS_MAX", "3");
    bench.set("PARTITIONS", "2");
    // One part is ahead of the other, and there are rows that none has read.
    for part in ["nightly__p0", "nightly__p0", "nightly__p1"] {
        bench.command(&["tick", part]).await.done_with("");
    }
    let said = bench.command(&["repartition", "nightly", "--to", "3"]).await;
    assert!(said.code == 2 && said.rest.contains("from 2 to 3 partitions"), "{said:?}");
    assert!(bench.state_of("nightly__p0")["paused"].is_null(), "a plan writes nothing");
    let said = bench.command(&["repartition", "nightly", "--to", "3", "--yes"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.rest.contains("set `HIGHWATER__POLLERS__NIGHTLY__PARTITIONS` to `3`"), "{said:?}");
    let said = bench.command(&["tick", "nightly__p1"]).await;
    assert!(
        said.code != 0 && said.rest.contains("has 3 partitions, but the settings have 2"),
        "{said:?}"
    );
    bench.set("PARTITIONS", "3");
    let said = bench.command(&["repartition", "nightly", "--to", "3", "--yes"]).await;
    assert!(said.done().contains("nothing is to be done"), "{said:?}");
    let said = bench.command(&["repartition", "nightly", "--to", "3", "--output", "json"]).await;
    let told: Json = serde_json::from_str(said.done()).unwrap();
    assert_eq!((&told["to"], &told["changed"]), (&json!(3), &json!(false)), "{told}");
    for _ in 0..10 {
        for part in ["nightly__p0", "nightly__p1", "nightly__p2"] {
            bench.command(&["tick", part]).await.done_with("");
        }
    }
    let mut taken = bench.receiver.taken();
    taken.sort_unstable();
    assert_eq!(taken, (1..=30).collect::<Vec<_>>(), "every row, and none twice");
    let said = bench.command(&["journal", "show", "nightly__p1"]).await;
    assert!(said.done().contains("repartitioned"), "{said:?}");
    // And back into one.
    let said = bench.command(&["repartition", "nightly", "--to", "1", "--yes"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    bench.set("PARTITIONS", "1");
    bench.insert(31..=31);
    bench.command(&["tick", "nightly"]).await.done_with("");
    assert_eq!(bench.receiver.taken().len(), 31);
    let gone = bench.state_of("nightly__p2");
    assert_eq!((&gone["taken_over_by"], gone["paused"].is_object()), (&json!(1), true), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_of_another_division_is_refused_by_the_import_and_not_by_the_next_tick() {
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
    let said = bench.command(&import).await;
    said.failed(
        2,
        "the document is of part 1 of 2, and the settings make `nightly__p1` part 1 of 3",
    );
    assert!(said.rest.contains("HIGHWATER__POLLERS__NIGHTLY__PARTITIONS"), "{said:?}");
    assert_eq!(bench.state_of("nightly__p1"), before);
    bench.set("PARTITIONS", "2");
    assert_eq!(bench.command(&import).await.code, 0);
    assert_ne!(bench.state_of("nightly__p1")["generation"], before["generation"]);
}

/// A table is truncated before its poller is divided anew, and the settings already say the new number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_repartition_prints_for_an_old_part_runs_under_the_new_number() {
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
        let parts = |count| match count {
            1 => vec!["nightly".to_owned()],
            count => (0..count).map(|part| format!("nightly__p{part}")).collect(),
        };
        bench.set("PARTITIONS", &from.to_string());
        for part in parts(from) {
            bench.command(&["tick", &part]).await.done_with("");
        }
        bench.database.execute("TRUNCATE TABLE dbo.numbers").unwrap();
        bench.database.execute(row).unwrap();
        bench.set("PARTITIONS", &to.to_string());
        let count = to.to_string();
        let repartition = ["repartition", "nightly", "--to", &count, "--yes"];
        let run = async |what: &str| {
            let said = bench.command(&repartition).await;
            assert_ne!(said.code, 0, "{said:?}");
            let mut words = suggested(&said.rest, what);
            words.push("--yes".to_owned());
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let said = bench.command(&words).await;
            assert_eq!(said.code, 0, "{from} to {to}: {words:?}: {said:?}");
        };
        let mut resets = parts(from).len();
        if is_document_lost {
            // Now under way. The first part has the record of it.
            run("reset ").await;
            resets -= 1;
            let first = format!("state/local/{}.json", parts(from)[0]);
            std::fs::remove_file(bench.folder.path().join(first)).unwrap();
            run("state rebuild ").await;
        }
        for _ in 0..resets {
            run("reset ").await;
        }
        let said = bench.command(&repartition).await;
        assert_eq!(said.code, 0, "{said:?}");
        for part in parts(to) {
            bench.command(&["tick", &part]).await.done_with("");
        }
        let taken = bench.receiver.taken();
        assert_eq!(taken.len(), 7, "{from} to {to}: {taken:?}");
        assert_eq!(taken[6], 1, "{from} to {to}: {taken:?}");
    }
}
