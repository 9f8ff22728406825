//! Every alert and every query of the workbook, over the records of a host: of a healthy idle hour, and of
//! the situation that each is for.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use highwater_fakehost::{Invocation, Record};
use serde_json::{Value as Json, json};
use tokio::process::Command;

use crate::bench::{Bench, Host, PROGRAM, logs};
use crate::child::file;
use crate::data;
use crate::insights::{Levels, Logged, store};
use crate::kql::{self, Row, Tables};
use crate::receiver::Answer;

/// Seconds between two ticks.
const EVERY: f64 = 5.0;
const TICKS: u32 = 720;
/// An idle tick logs a line every five minutes.
const LINE_EACH: u32 = 60;
/// The end of the idle hour.
const NOW: f64 = 3600.0;

/// A condition of a rule of `alerts.bicep`.
struct Rule {
    query: String,
    window: f64,
}

impl Rule {
    /// Returns whether it fires.
    fn fires(&self, tables: &Tables, now: f64) -> bool {
        let is_within = |row: &Row| {
            row["timestamp"].as_f64().is_some_and(|at| at > now - self.window && at <= now)
        };
        let within = |rows: &Vec<Row>| rows.iter().filter(|row| is_within(row)).cloned().collect();
        let tables = tables.iter().map(|(name, rows)| (name.clone(), within(rows))).collect();
        let found = kql::run(&self.query, &tables, now);
        for row in &found {
            assert!(row["alert"].is_string() && row["poller"].is_string(), "{row:?}");
        }
        !found.is_empty()
    }
}

fn seconds(window: &str) -> f64 {
    let number = |text: &str| text.parse::<f64>().unwrap();
    match window.strip_prefix("PT") {
        Some(rest) if rest.ends_with('H') => number(rest.trim_end_matches('H')) * 3600.0,
        Some(rest) => number(rest.trim_end_matches('M')) * 60.0,
        None => number(window.trim_matches(['P', 'D'])) * 86_400.0,
    }
}

/// Returns the conditions of `alerts.bicep` by name, with its variables and the defaults of `main.bicep`
/// filled in, and each complete rule by its name in brackets.
fn rules() -> BTreeMap<String, Rule> {
    let bicep = fs::read_to_string(file("infra/app/alerts.bicep")).unwrap();
    let variables = bicep.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("var ")?.split_once(" = '")?;
        Some((name, value.strip_suffix('\'')?))
    });
    let variables: Vec<(&str, &str)> = variables.collect();
    let filled = |name: &str| {
        let (_, query) = variables.iter().find(|(other, _)| *other == name).unwrap();
        let mut query = (*query).to_owned();
        for (name, value) in &variables {
            query = query.replace(&format!("${{{name}}}"), value);
        }
        query.replace("${lagMaxSeconds}", "300").replace("${staleMinutes}", "15")
    };
    let mut rules = BTreeMap::new();
    let listed = bicep.split("var rules = [").nth(1).unwrap().split("\n]").next().unwrap();
    for rule in listed.split("\n  {").skip(1) {
        let of = |name: &str| rule.split(&format!("{name}: ")).nth(1).unwrap().split('\n').next();
        let of = |name: &str| of(name).unwrap().trim_matches(['\'', '[', ']']);
        let window = seconds(of("window"));
        let queries: Vec<String> = of("queries").split(", ").map(filled).collect();
        for (name, query) in of("queries").split(", ").zip(&queries) {
            assert!(query.contains(&format!("project alert = \"{name}\"")), "{query}");
            rules.insert(name.to_owned(), Rule { query: query.clone(), window });
        }
        // As the template joins them.
        let query = queries.join(") | union (").replacen(") | union", " | union", 1) + ")";
        rules.insert(format!("[{}]", of("name")), Rule { query, window });
    }
    assert_eq!(rules.len(), 16 + 5);
    rules
}

/// Returns the queries of the workbook by title.
fn tiles() -> BTreeMap<String, String> {
    let workbook: Json =
        serde_json::from_str(&fs::read_to_string(file("infra/app/workbook.json")).unwrap())
            .unwrap();
    let contents = workbook["items"].as_array().unwrap().iter().map(|item| &item["content"]);
    let queries = contents.filter_map(|it| Some((it["title"].as_str()?, it["query"].as_str()?)));
    queries.map(|(title, query)| (title.to_owned(), query.to_owned())).collect()
}

/// Returns the records of one more run of a host.
async fn run(host: &Host) -> Vec<Record> {
    let before = host.journal().records().len();
    host.run().await;
    // Lines arrive through a separate pipe; the end of a second run comes after those of the first.
    host.journal().records().split_off(before)
}

fn at(at: f64, records: &[Record]) -> impl Iterator<Item = Logged> {
    records.iter().cloned().map(move |record| Logged { at, record })
}

/// An hour of idle ticks, built from two that the handler has answered: one with a line, one without.
async fn idle_hour() -> Vec<Logged> {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    host.run().await;
    // The last line of the first tick: it arrives through another pipe than the reply, and may come after it.
    host.event("first_run").await;
    let (with_line, silent) = (run(&host).await, run(&host).await);
    host.finish().await;
    let is_line = |record: &&Record| record.category.ends_with(".User");
    assert_eq!(
        (with_line.iter().filter(is_line).count(), with_line.len()),
        (1, 3),
        "{with_line:#?}"
    );
    assert_eq!((silent.iter().filter(is_line).count(), silent.len()), (0, 2), "{silent:#?}");
    let ticks = (0..TICKS).flat_map(|tick| {
        let records = if tick % LINE_EACH == 0 { &with_line } else { &silent };
        at(f64::from(tick) * EVERY + 1.0, records).collect::<Vec<_>>()
    });
    ticks.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_idle_hour_fires_no_alert_and_fills_the_workbook() {
    let (tables, _) = store(&idle_hour().await, &Levels::ours());
    for (name, rule) in rules() {
        assert!(!rule.fires(&tables, NOW), "{name}");
    }
    let tiles = tiles();
    assert_eq!(tiles.len(), 11);
    for (title, query) in tiles {
        let found = kql::run(&query, &tables, NOW);
        match title.as_str() {
            "Tick outcomes" => {
                let idle: f64 = found.iter().map(|row| row["ticks"].as_f64().unwrap()).sum();
                assert_eq!(json!(idle), json!(f64::from(TICKS)), "{found:#?}");
                assert!(found.iter().all(|row| row["end"] == "nothing new"), "{found:#?}");
            }
            "Failed invocations" => {
                assert!(
                    found.len() == 12 && found.iter().all(|row| row["failed"] == 0),
                    "{found:#?}"
                );
            }
            "Duration of invocations, in milliseconds" => assert_eq!(found.len(), 12, "{found:#?}"),
            _ => assert!(found.is_empty(), "{title}: {found:#?}"),
        }
    }
}

/// Bytes of an idle tick, recorded at the real host with a line in each reply and all levels at Information.
const RECORDED_BYTES: usize = 4000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_tick_costs_as_many_bytes_as_the_page_says() {
    let hour = idle_hour().await;
    let with_line: Vec<Logged> = hour.iter().take(3).cloned().collect();
    let before = Levels::of(&json!({"logging": {"logLevel": {"Function": "Information"}}}));
    let (_, bytes) = store(&with_line, &before);
    assert!(bytes.abs_diff(RECORDED_BYTES) < RECORDED_BYTES / 10, "{bytes} of {RECORDED_BYTES}");
    let (_, of_hour) = store(&hour, &Levels::ours());
    let each = u32::try_from(of_hour).unwrap() / TICKS;
    let page = fs::read_to_string(file("docs/reference/telemetry.md")).unwrap();
    let a_day = 86_400.0 / EVERY * f64::from(each) / 1e6;
    // A month of 30 days, at a price that the page names.
    let a_month = a_day * 30.0 / 1e3 * 2.30;
    for figure in [
        format!("an idle tick costs {:.1} KB", f64::from(each) / 1e3),
        format!("timer sends {a_day:.0} MB a day"),
        format!("that is ${a_month:.1}"),
    ] {
        assert!(page.contains(&figure), "{figure}");
    }
}

/// Runs the program alongside the host.
pub(crate) async fn command(bench: &Bench, arguments: &[&str]) {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env_clear().envs(&bench.env).env("USER", "ann").stdin(Stdio::null());
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Records of a host, five seconds between two runs.
#[derive(Default)]
struct Story(Vec<Logged>);

impl Story {
    async fn runs(&mut self, host: &Host, count: u32) {
        for _ in 0..count {
            let start = host.journal().records().len();
            host.run().await;
            self.0.extend(at(self.now() + EVERY, &host.journal().records()[start..]));
        }
    }

    fn add(&mut self, record: Record) {
        let at = self.now() + EVERY;
        self.0.push(Logged { at, record });
    }

    fn now(&self) -> f64 {
        self.0.last().map_or(0.0, |logged| logged.at)
    }

    fn fires(&self, name: &str) -> bool {
        let (tables, _) = store(&self.0, &Levels::ours());
        rules()[name].fires(&tables, self.now())
    }
}

/// Adds what a host logged about its handler outside of its runs, such as late lines.
fn all_of(host: &Host) -> Story {
    let mut story = Story::default();
    for record in host.journal().records() {
        story.add(record);
    }
    story
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_ticks_fire_their_alerts() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("SOURCE__TABLE", "dbo.missing");
    let host = bench.host().await;
    let mut story = Story::default();
    story.runs(&host, 2).await;
    assert!(!story.fires("failures"), "two are not three");
    story.runs(&host, 1).await;
    assert!(story.fires("failures") && story.fires("stale") && !story.fires("silent"));
    host.stop().await;

    bench.set("SOURCE__MODE", "rowversionn");
    let host = bench.host().await;
    host.run().await;
    host.event("configuration_invalid").await;
    assert!(all_of(&host).fires("stopped"));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_batch_fires_its_alerts() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[const { Answer::Reject(500, "full") }; 5]);
    let host = bench.host().await;
    for number in 1..=5 {
        assert!(!all_of(&host).fires("handler"), "{number}");
        command(&bench, &["resume", "nightly"]).await;
        host.run().await;
        let lines = |host: &Host| {
            host.lines().iter().filter(|(_, line)| line["event"] == "handler_failed").count()
        };
        while lines(&host) < number {
            tokio::task::yield_now().await;
        }
    }
    assert!(all_of(&host).fires("handler"));
    host.stop().await;

    bench.set("ON_FAILURE", "park");
    bench.set("PARK_RETRIES_MAX", "0");
    bench.insert(2..=2);
    bench.receiver.script(&[
        Answer::Reject(422, "no"),
        Answer::Reject(422, "no"),
        Answer::Reject(422, "no"),
    ]);
    command(&bench, &["resume", "nightly"]).await;
    let host = bench.host().await;
    host.run().await;
    host.event("row_quarantined").await;
    assert!(all_of(&host).fires("quarantine"));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_breaker_fires_its_alert() {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("ON_FAILURE", "park");
    bench.set("PARK_RETRIES_MAX", "0");
    bench.set("BREAKER_ROWS", "2");
    bench.receiver.script(&[const { Answer::Reject(422, "no") }; 12]);
    let host = bench.host().await;
    host.run().await;
    host.event("breaker_opened").await;
    assert!(all_of(&host).fires("breaker"));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_poller_fires_its_alert() {
    let mut bench = Bench::with_rows(1..=40).await;
    bench.set("BATCH_ROWS_MAX", "1");
    bench.set("BATCHES_MAX", "1");
    let host = bench.host().await;
    let mut story = Story::default();
    story.runs(&host, 12).await;
    assert!(story.fires("behind") && !story.fires("stale"));

    // Half of the time idle: ticks without a line count all the same.
    let idle = idle_hour().await;
    let from = story.now();
    story.0.extend(idle.into_iter().take(40).map(|it| Logged { at: it.at + from, ..it }));
    assert!(!story.fires("behind"));

    let other = bench.host().await;
    bench.receiver.script(&[Answer::Hold]);
    let before = bench.receiver.batches().len();
    let mut story = Story::default();
    let (_, ()) = tokio::join!(host.run(), async {
        bench.receiver.arrived(before + 1).await;
        story.runs(&other, 3).await;
        bench.receiver.release();
    });
    assert!(story.fires("contention"), "{:#?}", other.journal().records());

    command(&bench, &["pause", "nightly", "--reason", "the target moves"]).await;
    let mut story = Story::default();
    story.runs(&host, 1).await;
    assert!(story.fires("paused") && !story.fires("behind"));
    assert!(Story::default().fires("silent") && Story::default().fires("[stale]"));
    host.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_journal_and_fence_errors_fire_their_alerts() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("JOURNAL", "full");
    // A folder cannot be created in place of a file.
    fs::write(bench.folder.path().join("journal"), "").unwrap();
    let host = bench.host().await;
    host.run().await;
    host.event("journal_append_failed").await;
    assert!(all_of(&host).fires("journal") && !all_of(&host).fires("fenced"));

    bench.insert(2..=2);
    let newer = r#"{"fence":{"generation":9999999999999,"fencing_token":42}}"#;
    bench.receiver.script(&[Answer::Reject(409, newer)]);
    host.run().await;
    host.event("fence_ahead").await;
    assert!(all_of(&host).fires("fenced") && !all_of(&host).fires("recovery"));

    fs::write(bench.state_path(), "{").unwrap();
    let recovery = Invocation::new(highwater::recovery::FUNCTION, data::body("01_scheduled"));
    host.invoke(recovery).await;
    host.event("recovery_finding").await;
    assert!(all_of(&host).fires("recovery"));
    host.stop().await;
}

/// A bench whose rows are ordered by their own time.
pub(crate) async fn timed() -> Bench {
    let mut bench = Bench::new().await;
    let table = "CREATE TABLE dbo.timed (id int NOT NULL PRIMARY KEY, at datetime2(7) NOT NULL)";
    bench.database.execute(table).unwrap();
    for (name, value) in [
        ("TABLE", "dbo.timed"),
        ("MODE", "timestamp+pk"),
        ("CURSOR", "at"),
        ("KEY", "id"),
        ("SETTLE", "1s"),
        ("AUDIT_AFTER", "1s"),
    ] {
        bench.set(&format!("SOURCE__{name}"), value);
    }
    bench
}

/// Inserts a row of a day of January 2020.
pub(crate) fn insert_timed(bench: &Bench, day: u32) {
    let row = format!("INSERT INTO dbo.timed (id, at) VALUES ({day}, '2020-01-0{day}T00:00:00')");
    bench.database.execute(&row).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_late_for_fifteen_minutes_fire_their_alert() {
    let bench = timed().await;
    let host = bench.host().await;
    let mut story = Story::default();
    for period in 1..=3 {
        assert!(!story.fires("lag"), "{period}");
        insert_timed(&bench, period);
        let at = f64::from(period) * 300.0;
        let records = run(&host).await;
        story.0.extend(records.into_iter().map(|record| Logged { at, record }));
    }
    assert!(story.fires("lag"), "{:#?}", host.journal().records());
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_committed_before_the_position_fires_its_alert() {
    let bench = timed().await;
    let host = bench.host().await;
    for day in [1, 3] {
        insert_timed(&bench, day);
        host.run().await;
    }
    assert_eq!(bench.receiver.accepted(), [1, 3]);
    assert!(!all_of(&host).fires("late"));
    insert_timed(&bench, 2);
    host.run_until(|| bench.receiver.accepted().contains(&2)).await;
    host.event("late_commits_found").await;
    assert!(all_of(&host).fires("late"));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cleanup_that_overtakes_the_poller_fires_its_alert() {
    let mut bench = Bench::with_rows(1..=1).await;
    for sql in [
        "ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON",
        "ALTER TABLE dbo.orders ENABLE CHANGE_TRACKING",
    ] {
        bench.database.execute(sql).unwrap();
    }
    bench.set("SOURCE__MODE", "change_tracking");
    bench.env.remove("HIGHWATER__POLLERS__NIGHTLY__SOURCE__CURSOR");
    bench.set("BATCH_ROWS_MAX", "1");
    bench.set("BATCHES_MAX", "1");
    let host = bench.host().await;
    // The first row is read from the table; when the table is exhausted, changes are read.
    let mut last = host.run().await;
    while !logs(&last)[0].contains("nothing new") {
        last = host.run().await;
    }
    // A backlog right after tracking started: no cleanup has run, and nothing is about to be lost.
    let mut story = Story::default();
    for id in 2..=12 {
        bench.insert(id..=id);
    }
    story.runs(&host, 1).await;
    assert!(!story.fires("retention"), "{:#?}", host.journal().records());
    host.run_until(|| bench.receiver.accepted().len() == 12).await;
    // The cleanup comes closer to the position than the newest change is.
    bench.database.forget_changes("dbo.orders").unwrap();
    for id in 13..=24 {
        bench.insert(id..=id);
    }
    story.runs(&host, 1).await;
    assert!(story.fires("retention"), "{:#?}", host.journal().records());
    // It resolves when the poller has caught up.
    host.run_until(|| bench.receiver.accepted().len() == 24).await;
    let mut story = Story::default();
    bench.insert(25..=25);
    story.runs(&host, 1).await;
    assert_eq!(bench.receiver.accepted(), (1..=25).collect::<Vec<_>>());
    assert!(!story.fires("retention"), "{:#?}", host.journal().records());
    host.stop().await;
}

/// The host's complete log of each kind of trouble that has a tile.
async fn troubles() -> Vec<Story> {
    let mut stories = Vec::new();
    let bench = timed().await;
    insert_timed(&bench, 1);
    let host = bench.host().await;
    host.run().await;
    stories.push(all_of(&host));
    host.stop().await;

    let bench = Bench::with_rows(1..=3).await;
    let host = bench.host().await;
    host.run().await;
    fs::write(bench.state_path(), "{").unwrap();
    let recovery = Invocation::new(highwater::recovery::FUNCTION, data::body("01_scheduled"));
    host.invoke(recovery).await;
    host.event("recovery_finding").await;
    stories.push(all_of(&host));
    host.stop().await;

    let mut bench = Bench::new().await;
    bench.set("SOURCE__TABLE", "dbo.missing");
    let host = bench.host().await;
    host.run().await;
    host.event("fetch_failed").await;
    stories.push(all_of(&host));
    host.stop().await;
    stories
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_workbook_shows_what_happened() {
    let mut bench = Bench::with_rows(1..=3).await;
    bench.set("ON_FAILURE", "park");
    bench.set("PARK_RETRIES_MAX", "0");
    let host = bench.host().await;
    host.run().await;
    bench.insert(4..=4);
    bench.receiver.script(&[
        Answer::Reject(422, "no"),
        Answer::Reject(422, "no"),
        Answer::Reject(422, "no"),
    ]);
    host.run().await;
    host.event("row_quarantined").await;
    host.run().await;
    let story = all_of(&host);
    let mut all = all_of(&host);
    for trouble in troubles().await {
        for Logged { record, .. } in trouble.0 {
            all.add(record);
        }
    }
    let (tables, _) = store(&story.0, &Levels::ours());
    let (of_all, _) = store(&all.0, &Levels::ours());
    for (title, query) in tiles() {
        assert!(!kql::run(&query, &of_all, all.now()).is_empty(), "{title}");
        let found = kql::run(&query, &tables, story.now());
        match title.as_str() {
            "Quarantined rows" => assert_eq!(found[0]["poller"], "nightly"),
            "Tick outcomes" => {
                let of = |end: &str| {
                    let rows = found.iter().filter(|row| row["end"] == end);
                    rows.map(|row| row["ticks"].as_f64().unwrap()).sum::<f64>()
                };
                let all = of("committed") + of("nothing new") + of("other");
                assert_eq!(json!(all), json!(3.0), "{found:#?}");
            }
            _ => {}
        }
    }
    host.stop().await;
}
