//! The program without a host: how it runs by itself, and what it reports about its files.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::bench::{Bench, LIMIT, PROGRAM, within};
use crate::receiver::Answer;

impl Bench {
    /// Returns the folder of the function app.
    pub(crate) fn root(&self) -> String {
        self.folder.path().join("root").to_str().unwrap().to_owned()
    }

    /// Puts a file into the folder of the function app.
    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join("root").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Gives the function a schedule.
    pub(crate) fn schedule(&self, schedule: &str) {
        let function = json!({"bindings": [
            {"name": "timer", "type": "timerTrigger", "direction": "in", "schedule": schedule},
        ]});
        self.write("nightly/function.json", &function.to_string());
    }
}

/// `highwater run` as a process, and its log.
struct Running {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Its log so far.
    logged: Vec<Json>,
}

impl Running {
    /// Starts it with `nightly` due every second; `by` starts the program.
    fn start(bench: &Bench, by: &[&str]) -> Self {
        bench.schedule("* * * * * *");
        let root = bench.root();
        let line = [by, &[PROGRAM, "run", "--from", &root]].concat();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).env_clear().envs(&bench.env);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines, logged: Vec::new() }
    }

    /// Waits for a line of an event.
    async fn event(&mut self, event: &str) -> Json {
        let found = async {
            loop {
                let line = self.lines.next_line().await.unwrap();
                let line = line.unwrap_or_else(|| panic!("it exited without `{event}`"));
                let line: Json = serde_json::from_str(&line).unwrap();
                self.logged.push(line.clone());
                if line["event"] == event {
                    return line;
                }
            }
        };
        within(LIMIT, found).await
    }

    /// Waits until the receiver has these rows.
    async fn delivered(&mut self, bench: &Bench, ids: &[i64]) {
        while bench.receiver.accepted() != ids {
            self.event("tick_complete").await;
        }
    }

    async fn signal(&self, signal: &str) {
        let pid = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(within(LIMIT, sent).await.unwrap().success());
    }

    /// Waits for its exit, and returns its complete log.
    async fn end(mut self) -> Vec<Json> {
        // Lines left in the pipe must not keep it from exiting.
        while let Some(line) = within(LIMIT, self.lines.next_line()).await.unwrap() {
            self.logged.push(serde_json::from_str(&line).unwrap());
        }
        let status = within(LIMIT, self.process.wait()).await.unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{:#?}", self.logged);
        self.logged
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_ticks_on_schedule_until_stopped() {
    let bench = Bench::with_rows(1..=2).await;
    let mut running = Running::start(&bench, &[]);
    let line = running.event("timer_started").await;
    let timer = (&line["function"], &line["schedule"]);
    assert_eq!(timer, (&"nightly".into(), &"* * * * * *".into()));
    running.delivered(&bench, &[1, 2]).await;
    bench.insert(3..=3);
    running.delivered(&bench, &[1, 2, 3]).await;
    running.signal("-TERM").await;
    running.end().await;
    assert!(bench.state()["lease"]["released_at"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_finishes_its_batch_when_the_terminal_is_closed() {
    let bench = Bench::with_rows(1..=1).await;
    bench.receiver.script(&[Answer::Hold]);
    // The tests themselves may run under `nohup`.
    let mut running = Running::start(&bench, &["env", "--default-signal=HUP"]);
    within(LIMIT, bench.receiver.arrived(1)).await;
    running.signal("-HUP").await;
    running.event("stopping").await;
    bench.receiver.release();
    let events = running.end().await;
    assert!(!events.iter().any(|line| line["event"] == "aborting"), "{events:?}");
    assert_eq!(bench.receiver.accepted(), [1]);
    let state = bench.state();
    assert!(state["in_flight"].is_null() && state["lease"]["released_at"].is_string(), "{state}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_aborts_a_batch_longer_than_the_grace_and_releases_its_lease() {
    let mut bench = Bench::with_rows(1..=1).await;
    // Too long to wait for.
    bench.set("LEASE__TTL", "10m");
    bench.set_env("HIGHWATER__STOP_GRACE", "2500ms");
    bench.receiver.script(&[Answer::Hold]);
    let mut running = Running::start(&bench, &[]);
    within(LIMIT, bench.receiver.arrived(1)).await;
    running.signal("-TERM").await;
    running.event("aborting").await;
    let events = running.end().await;
    assert!(!events.iter().any(|line| line["event"] == "forced_stop"), "{events:?}");
    let state = bench.state();
    assert!(state["lease"]["released_at"].is_string(), "{state}");
    let in_flight = &state["in_flight"];
    assert_eq!((&in_flight["attempt"], &in_flight["crashes"]), (&0.into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_skips_a_disabled_function() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.add_poller("weekly");
    bench.set_env("AzureWebJobs.weekly.Disabled", "true");
    let function = json!({"bindings": [
        {"name": "timer", "type": "timerTrigger", "schedule": "* * * * * *"},
    ]});
    bench.write("weekly/function.json", &function.to_string());
    let mut running = Running::start(&bench, &[]);
    running.delivered(&bench, &[1]).await;
    running.signal("-TERM").await;
    let events = running.end().await;
    let off: Vec<&Json> =
        events.iter().filter(|line| line["event"] == "function_turned_off").collect();
    let [line] = off[..] else { panic!("{events:#?}") };
    let parsed = (&line["function"], &line["setting"]);
    assert_eq!(parsed, (&"weekly".into(), &"AzureWebJobs.weekly.Disabled".into()));
    let started = |function: &str| {
        let of = |line: &&Json| line["event"] == "timer_started" && line["function"] == function;
        events.iter().filter(of).count()
    };
    assert_eq!((started("nightly"), started("weekly")), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_aborted_by_a_signal_has_its_own_exit_code() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let mut bench = Bench::with_rows(1..=1).await;
        bench.set_env("HIGHWATER__STOP_GRACE", "2500ms");
        bench.receiver.script(&[Answer::Hold]);
        let mut command = Command::new(PROGRAM);
        command.args(["tick", "nightly"]).env_clear().envs(&bench.env).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        within(LIMIT, bench.receiver.arrived(1)).await;
        let pid = process.id().unwrap().to_string();
        let killed = Command::new("kill").args([signal, &pid]).status();
        assert!(within(LIMIT, killed).await.unwrap().success());
        let status = within(LIMIT, process.wait()).await.unwrap();
        assert_eq!(status.code(), Some(code), "{signal}");
        assert!(bench.state()["lease"]["released_at"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_under_nohup_outlives_its_terminal() {
    let bench = Bench::with_rows(1..=1).await;
    let mut running = Running::start(&bench, &["nohup"]);
    running.delivered(&bench, &[1]).await;
    running.signal("-HUP").await;
    // Twice: the first row may be delivered by a tick that runs before a stop would take effect.
    bench.insert(2..=2);
    running.delivered(&bench, &[1, 2]).await;
    bench.insert(3..=3);
    running.delivered(&bench, &[1, 2, 3]).await;
    running.signal("-TERM").await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_with_nothing_to_run_explains_why() {
    let mut bench = Bench::new().await;
    bench.schedule("%EACH%");
    let from = bench.root();
    let fix = "is not set; set `EACH` to six fields, seconds first";
    bench.command(&["run", "--from", &from]).await.failed(3, fix);
    bench.set_env("EACH", "5m");
    bench.command(&["run", "--from", &from]).await.failed(3, "must have six, seconds first");
    let fix = "; in the setting `EACH`, write six fields, seconds first";
    bench.command(&["run", "--from", &from]).await.failed(3, fix);
    // Every error with its fix, not only the first one.
    bench.write("weekly/function.json", r#"{"bindings":[{"name":"timer","type":"timerTrigger"}]}"#);
    let result = bench.command(&["run", "--from", &from]).await;
    for fix in ["in the setting `EACH`", "set `schedule` to six fields"] {
        assert!(result.code == 3 && result.rest.contains(fix), "{result:?}");
    }
    std::fs::remove_dir_all(format!("{from}/weekly")).unwrap();
    bench.set_env("EACH", "* * * * * *");
    bench.set_env("AzureWebJobs.nightly.Disabled", "true");
    let result = bench.command(&["run", "--from", &from]).await;
    let expected = "`nightly` is turned off by `AzureWebJobs.nightly.Disabled`";
    assert!(result.code == 3 && result.rest.contains(expected), "{result:?}");
    bench.command(&["run", "--from", "/nowhere"]).await.failed(3, "`/nowhere`: cannot be read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tick_reports_its_outcome_and_exits_nonzero_on_failure() {
    let bench = Bench::with_rows(1..=2).await;
    let result = bench.command(&["tick", "nightly", "--output", "json"]).await;
    assert_eq!(result.code, 0, "{result:?}");
    let parsed: Json = serde_json::from_str(&result.data).unwrap();
    assert_eq!(
        (&parsed["outcome"], &parsed["rows"], &parsed["batches"]),
        (&"committed".into(), &2.into(), &1.into())
    );
    let result = bench.command(&["tick", "nightly"]).await;
    assert!(result.done().contains("nightly"), "{result:?}");
    bench.insert(3..=3);
    bench.receiver.script(&[Answer::Reject(500, "not now")]);
    let result = bench.command(&["tick", "nightly"]).await;
    assert_eq!(result.code, 7, "{result:?}");
    bench.command(&["tick", "weekly"]).await.failed(2, "the settings have `nightly`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validate_finds_every_error_without_a_connection() {
    let mut bench = Bench::new().await;
    bench.set_env("SqlConnection", "Server=tcp:127.0.0.1,1;Database=x;User ID=u;Password=hunter2");
    bench.schedule("0 */5 * * * *");
    std::os::unix::fs::symlink(PROGRAM, format!("{}/handler", bench.root())).unwrap();
    let from = bench.root();
    let result = bench.command(&["validate", "--from", &from]).await;
    assert!(result.done().contains("schedule: `0 */5 * * * *` in "), "{result:?}");
    assert!(result.data.contains("\n0 errors, "), "{result:?}");

    bench.schedule("%EACH%");
    bench.write("weekly/function.json", "{");
    bench.write("odd/function.json", r#"{"bindings":[{"name":"t","type":"timerTrigger","direction":"in","schedule":"0 0 0 * * *"}]}"#);
    bench.write("host.json", r#"{"version":"2.0","functionTimeout":"00:00:10","customHandler":{"description":{"defaultExecutablePath":"handler"}}}"#);
    let result = bench.command(&["validate", "--from", &from, "--output", "json"]).await;
    assert_eq!((result.code, result.rest.as_str()), (1, ""), "{result:?}");
    let found: Vec<Json> = serde_json::from_str(&result.data).unwrap();
    let errors: Vec<&str> = found
        .iter()
        .filter(|finding| finding["level"] == "error")
        .map(|finding| finding["check"].as_str().unwrap())
        .collect();
    assert_eq!(errors, ["functionTimeout", "function.json", "schedule", "poller"], "{found:#?}");
    assert!(!result.data.contains("hunter2"));

    bench.set("SOURCE__MODE", "rowversionn");
    bench.set("HANDLER__KIND", "htp");
    let result = bench.command(&["validate", "--from", &from]).await;
    assert!(result.data.contains("`rowversionn`") && result.data.contains("`htp`"), "{result:?}");
}

/// Writes a time zone in which `rule` always applies, and returns the folder with it.
fn zone(bench: &Bench, name: &str, rule: &str) -> String {
    let folder = bench.folder.path().join("zones");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), highwater::testing::zone_file(rule)).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_are_shown_in_the_hosts_time_zone_everywhere() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.schedule("0 30 2 1 7 *");
    std::os::unix::fs::symlink(PROGRAM, format!("{}/handler", bench.root())).unwrap();
    let from = bench.root();
    let folder = zone(&bench, "Far", "<+1245>-12:45");
    bench.set_env("TZDIR", &folder);
    bench.set_env("TZ", ":Far");
    bench.command(&["init", "nightly"]).await.done();
    let result = bench.command(&["validate", "--from", &from]).await;
    assert!(result.done().contains("schedule: `0 30 2 1 7 *` in Far, next tick 20"), "{result:?}");
    assert!(result.data.contains("-07-01 02:30:00 +12:45"), "{result:?}");

    std::fs::write(format!("{from}/local.settings.json"), r#"{"Values":{}}"#).unwrap();
    let settings = format!("{from}/local.settings.json");
    let result = bench.command(&["--settings", &settings, "status"]).await;
    assert!(result.done().contains("-07-01 02:30:00 +12:45 (Far)"), "{result:?}");
    let result = bench.command(&["--settings", &settings, "status", "--output", "json"]).await;
    let status: Vec<Json> = serde_json::from_str(result.done()).unwrap();
    assert_eq!(status[0]["time_zone"], "Far");
    let next = status[0]["next_tick_at"].as_str().unwrap();
    assert!(next.ends_with("-07-01T02:30:00+12:45"), "{next}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_never_runs_has_no_next_tick() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.schedule("0 0 3 * * *");
    std::os::unix::fs::symlink(PROGRAM, format!("{}/handler", bench.root())).unwrap();
    bench.command(&["init", "nightly"]).await.done();
    let from = bench.root();
    std::fs::write(format!("{from}/local.settings.json"), r#"{"Values":{}}"#).unwrap();
    let settings = format!("{from}/local.settings.json");
    for is_off in [false, true] {
        if is_off {
            bench.set_env("AzureWebJobs.nightly.Disabled", "1");
        }
        let result = bench.command(&["validate", "--from", &from]).await;
        assert_eq!(result.data.contains(", next tick 20"), !is_off, "{result:?}");
        assert_eq!(result.data.contains("no next tick: see the error"), is_off, "{result:?}");
        let result = bench.command(&["--settings", &settings, "status", "--output", "json"]).await;
        let status: Vec<Json> = serde_json::from_str(result.done()).unwrap();
        assert_eq!(status[0]["next_tick_at"].is_null(), is_off, "{status:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_without_time_zones_runs_in_utc_and_warns() {
    let mut bench = Bench::new().await;
    bench.schedule("0 0 3 * * *");
    std::os::unix::fs::symlink(PROGRAM, format!("{}/handler", bench.root())).unwrap();
    let from = bench.root();
    let folder = zone(&bench, "Far", "<+1245>-12:45");
    bench.set_env("TZDIR", &folder);
    bench.set_env("WEBSITE_SKU", "FlexConsumption");
    let result = bench.command(&["validate", "--from", &from]).await;
    assert!(!result.done().contains("does not support it"), "{result:?}");
    for name in ["TZ", "WEBSITE_TIME_ZONE"] {
        bench.set_env(name, "Far");
        let result = bench.command(&["validate", "--from", &from]).await;
        let warned = format!("`{name}`: a Flex Consumption plan does not support it");
        assert!(result.done().contains(&warned), "{result:?}");
        assert!(result.data.contains("schedule: `0 0 3 * * *` in UTC, next tick"), "{result:?}");
        // The plan is known where the app runs, so the app reports it too.
        let host = bench.host().await;
        let (level, line) = host.event("without_effect").await;
        assert_eq!(level, highwater_fakehost::Level::Warning);
        assert!(line["message"].as_str().unwrap().starts_with(&warned), "{line}");
        host.stop().await;
        bench.env.remove(name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_zone_unsupported_by_the_host_is_warned_about() {
    let mut bench = Bench::new().await;
    bench.schedule("0 0 3 * * *");
    std::os::unix::fs::symlink(PROGRAM, format!("{}/handler", bench.root())).unwrap();
    let from = bench.root();
    let folder = zone(&bench, "Far", "<+1245>-12:45");
    bench.set_env("TZDIR", &folder);
    for (tz, website, expected) in [
        (Some("Far"), Some("Far"), None),
        (Some(""), None, None),
        (Some("CET-1CEST"), None, Some("`TZ`: `CET-1CEST` is not a time zone on this machine")),
        (None, Some("Far"), Some("`WEBSITE_TIME_ZONE`: has no effect on the host itself")),
    ] {
        for (name, value) in [("TZ", tz), ("WEBSITE_TIME_ZONE", website)] {
            bench.env.remove(name);
            if let Some(value) = value {
                bench.set_env(name, value);
            }
        }
        let result = bench.command(&["validate", "--from", &from]).await;
        let is_warned = result.done().contains("time zone on this")
            || result.data.contains("WEBSITE_TIME_ZONE");
        assert_eq!(is_warned, expected.is_some(), "{tz:?}: {result:?}");
        assert!(
            result.data.contains(expected.unwrap_or("` in Far")) || tz == Some(""),
            "{result:?}"
        );
    }
}

/// The finding of `validate` about the host's timeout, and its suggested fix.
async fn timeout_finding(bench: &Bench) -> (String, Option<String>) {
    let result = bench.command(&["validate", "--from", &bench.root(), "--output", "json"]).await;
    let found: Vec<Json> = serde_json::from_str(&result.data).unwrap();
    let of: Vec<&Json> = found.iter().filter(|one| one["check"] == "functionTimeout").collect();
    let [one] = of[..] else { panic!("{found:#?}") };
    let level = one["level"].as_str().unwrap().to_owned();
    (level, one["fix"].as_str().map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validate_accepts_the_host_timeout_it_recommends() {
    let mut bench = Bench::new().await;
    bench.schedule("0 */5 * * * *");
    let host_json = |timeout: &str| {
        let description = json!({"defaultExecutablePath": "handler"});
        let host = json!({"version": "2.0", "functionTimeout": timeout, "customHandler": {"description": description}});
        format!("\u{feff}// read as the host does\n{host}")
    };
    for (in_file, in_setting, level, place) in [
        ("00:10:00", None, "ok", None),
        ("-1", None, "ok", None),
        ("00:00:10", None, "error", Some("host.json: functionTimeout")),
        ("00:01:00", None, "warning", Some("host.json: functionTimeout")),
        ("00:10:00", Some("00:00:20"), "error", Some("AzureFunctionsJobHost__functionTimeout")),
        ("00:01:00", Some("00:02:00"), "warning", Some("AzureFunctionsJobHost__functionTimeout")),
    ] {
        bench.write("host.json", &host_json(in_file));
        let name = "AzureFunctionsJobHost__functionTimeout";
        bench.env.remove(name);
        if let Some(value) = in_setting {
            bench.set_env(name, value);
        }
        let (found, fix) = timeout_finding(&bench).await;
        assert_eq!(found, level, "{in_file} {in_setting:?} {fix:?}");
        let Some(place) = place else { continue };
        let advised = fix.unwrap();
        let value = advised.strip_prefix(&format!("set `{place}` to `")).unwrap();
        let value = value.strip_suffix('`').unwrap();
        match in_setting {
            Some(_) => bench.set_env(place, value),
            None => bench.write("host.json", &host_json(value)),
        }
        assert_eq!(timeout_finding(&bench).await.0, "ok", "{advised}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_settings_replace_the_environment() {
    let mut bench = Bench::with_rows(1..=1).await;
    let values = std::mem::take(&mut bench.env);
    bench
        .write("local.settings.json", &json!({"IsEncrypted": false, "Values": values}).to_string());
    let file = format!("{}/local.settings.json", bench.root());
    let result = bench.command(&["tick", "nightly", "--settings", &file]).await;
    assert!(result.data.contains("nightly"), "{result:?}");
    assert_eq!(bench.receiver.accepted(), [1]);
    bench.command(&["tick", "nightly"]).await.failed(3, "in the settings");
    bench.command(&["tick", "nightly", "--settings", "/nowhere"]).await.failed(3, "`/nowhere`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_and_man_pages_cover_every_command() {
    let bench = Bench::new().await;
    let help = bench.command(&["--help"]).await;
    let commands = help.done().split_once("Start:").unwrap().1.split_once("Options:").unwrap().0;
    let lines = commands.lines().filter(|line| line.starts_with("  "));
    let names: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"quarantine") && names.len() > 10, "{names:?}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = bench.command(&["completions", shell]).await;
        let missing: Vec<&&str> =
            names.iter().filter(|name| !script.done().contains(**name)).collect();
        assert!(missing.is_empty(), "{shell}: {missing:?}");
    }
    let manual = bench.command(&["man"]).await;
    for name in names.iter().filter(|name| **name != "help") {
        let heading = format!(".SH \"HIGHWATER {}\"", name.to_uppercase());
        assert!(manual.done().contains(&heading), "{heading}");
    }
}
