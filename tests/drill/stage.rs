//! A running process, and what each view shows of it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use highwater_devdb::{Options as ServerOptions, Server};
use highwater_fakehost::free_port;
use serde_json::Value as Json;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, LIMIT, PROGRAM, within};

/// Two ticks of the poller, and the time that a busy machine needs for them.
const SHOWN_WITHIN: Duration = Duration::from_secs(20);

/// What every view shows.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) state: &'static str,
    pub(crate) severity: &'static str,
    /// Label on the page.
    pub(crate) label: &'static str,
    /// Part of the cause; empty if there is none.
    pub(crate) cause: &'static str,
    /// Why no view has a state. Each then has the cause.
    pub(crate) unknown: Unknown,
    /// Parked keys.
    pub(crate) parked: u64,
}

/// Why no view has a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// They have.
    No,
    /// The state store cannot be read.
    Store,
    /// Settings are wrong, so no process starts. Only commands answer.
    Settings,
}

pub(crate) const IDLE: Expected = Expected {
    state: "idle",
    severity: "ok",
    label: "Idle",
    cause: "",
    unknown: Unknown::No,
    parked: 0,
};

/// A poller whose timer is due every second, and the process that runs it.
pub(crate) struct Stage {
    pub(crate) bench: Bench,
    process: Option<Child>,
    page: u16,
    metrics: String,
}

/// What each view shows.
#[derive(Debug, Default)]
pub(crate) struct Views {
    api: (u16, Json),
    page: (u16, String),
    ready: u16,
    /// The state according to the metrics; `None` if no process ticks.
    metric: Option<String>,
    status: (i32, Json, String),
    doctor: (i32, String),
}

impl Stage {
    /// Starts a process that has delivered a row.
    pub(crate) async fn set(prepare: fn(&mut Bench)) -> Self {
        let mut bench = Bench::with_rows(1..=1).await;
        let metrics = format!("127.0.0.1:{}", free_port().unwrap());
        bench.set_env("HIGHWATER__METRICS__ADDRESS", &metrics);
        bench.set("STATUS_INTERVAL", "1s");
        bench.set("RETRY_DELAY_MAX", "1s");
        let root = bench.folder.path().join("root");
        bench.set_env("FUNCTIONS_APP_ROOT_PATH", root.to_str().unwrap());
        let timer = r#"{"bindings":[{"name":"t","type":"timerTrigger","direction":"in","schedule":"* * * * * *"}]}"#;
        std::fs::write(root.join("nightly/function.json"), timer).unwrap();
        prepare(&mut bench);
        let mut stage = Self { bench, process: None, page: 0, metrics };
        stage.start();
        let (_, wrong) = stage.shows(&IDLE).await;
        assert!(wrong.is_empty(), "before: {wrong:#?}");
        stage
    }

    /// Starts the process.
    pub(crate) fn start(&mut self) {
        self.page = free_port().unwrap();
        let address = format!("127.0.0.1:{}", self.page);
        let root = self.bench.folder.path().join("root");
        let process =
            self.program(&["run", "--status", &address, "--from", root.to_str().unwrap()]).spawn();
        self.process = Some(process.unwrap());
    }

    /// Kills the process.
    pub(crate) async fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().await.unwrap();
        }
    }

    /// Restarts the process, with changed settings.
    pub(crate) async fn restart(&mut self) {
        self.kill().await;
        self.start();
    }

    /// Stops the database.
    pub(crate) async fn stop_database(&mut self) {
        let options = ServerOptions { tls: false, ..ServerOptions::default() };
        // Dropping the server stops it.
        self.bench.server = Server::start(self.bench.database.clone(), options).await.unwrap();
    }

    /// Starts the database again, where the settings expect it.
    pub(crate) async fn start_database(&mut self) {
        let port = self.bench.env["SqlConnection"].split("127.0.0.1,").nth(1).unwrap();
        let port = port.split(';').next().unwrap().parse().unwrap();
        let options = ServerOptions { tls: false, port, ..ServerOptions::default() };
        self.bench.server = Server::start(self.bench.database.clone(), options).await.unwrap();
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).env_clear().envs(&self.bench.env).env("USER", "ann");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command
    }

    async fn output(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = self.program(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = within(LIMIT, command.output()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Runs a line as it was printed. Where a command asks before it writes, the answer is yes.
    pub(crate) async fn shell(&self, line: &str) -> Result<(), String> {
        let asks = line.starts_with("highwater reset");
        let line = if asks { format!("{line} --yes") } else { line.to_owned() };
        let programs = Path::new(PROGRAM).parent().unwrap().display();
        let mut command = Command::new("sh");
        command.args(["-c", &line]).env_clear().envs(&self.bench.env).env("USER", "ann");
        command.env("PATH", format!("{programs}:/usr/bin:/bin"));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = within(LIMIT, command.output()).await.unwrap();
        if output.status.success() {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        Err(String::from_utf8_lossy(&text).into_owned())
    }

    /// Waits until every view is as expected; returns what is wrong after that time.
    pub(crate) async fn shows(&self, expected: &Expected) -> (Views, Vec<String>) {
        let until = Instant::now() + SHOWN_WITHIN;
        loop {
            let views = self.views().await;
            let wrong = views.wrong(expected);
            if wrong.is_empty() || Instant::now() > until {
                return (views, wrong);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Asks every view. If no process runs, a page without pollers shows the state.
    async fn views(&self) -> Views {
        let served = if self.process.is_none() {
            let port = free_port().unwrap();
            let address = format!("127.0.0.1:{port}");
            Some((port, self.program(&["status", "--serve", &address]).spawn().unwrap()))
        } else {
            None
        };
        let port = served.as_ref().map_or(self.page, |(port, _)| *port);
        let page = get(port, "/api/status/page?poller=nightly").await;
        let (code, api) = get(port, "/api/status").await;
        let (ready, _) = get(port, "/readyz").await;
        let metric = match &self.process {
            Some(_) => self.metric().await,
            None => None,
        };
        let (status_code, listed, error) = self.output(&["status", "--output", "json"]).await;
        let listed: Json = serde_json::from_str(&listed).unwrap_or_default();
        let (doctor_code, doctor, doctor_error) = self.output(&["doctor"]).await;
        Views {
            api: (code, serde_json::from_str(&api).unwrap_or_default()),
            page,
            ready,
            metric,
            status: (status_code, listed[0].clone(), error),
            doctor: (doctor_code, doctor + &doctor_error),
        }
    }

    async fn metric(&self) -> Option<String> {
        let port = self.metrics.rsplit(':').next()?.parse().ok()?;
        let (_, text) = get(port, "/metrics").await;
        let states = text.lines().filter(|line| line.starts_with("highwater_poller_state{"));
        let mut current = states.filter(|line| line.ends_with(" 1"));
        let state = |line: &str| Some(line.split("state=\"").nth(1)?.split('"').next()?.to_owned());
        current.find_map(state)
    }
}

/// Reads a page; 0 if nothing answers yet.
async fn get(port: u16, path: &str) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    loop {
        match client.get(format!("http://127.0.0.1:{port}{path}")).send().await {
            Ok(reply) => return (reply.status().as_u16(), reply.text().await.unwrap_or_default()),
            Err(_) if Instant::now() < until => sleep(Duration::from_millis(50)).await,
            Err(error) => return (0, error.to_string()),
        }
    }
}

impl Views {
    /// Returns what is wrong.
    fn wrong(&self, expected: &Expected) -> Vec<String> {
        let Expected { state, severity, label, cause, unknown, parked } = expected;
        let mut wrong = Vec::new();
        let mut check = |what: &str, is_right: bool, found: &dyn std::fmt::Debug| {
            if !is_right {
                wrong.push(format!("{what}: {found:?}"));
            }
        };
        let page = unescaped(&self.page.1);
        if *unknown == Unknown::Store {
            check("page", page.contains(cause), &self.page);
            let error = self.api.1["error"].as_str().unwrap_or_default();
            check("/api/status", error.contains(cause), &self.api);
            check("/readyz", self.ready == 503, &self.ready);
        }
        if *unknown != Unknown::No {
            check("status", self.status.0 != 0 && self.status.2.contains(cause), &self.status);
            check("doctor", self.doctor.0 != 0 && self.doctor.1.contains(cause), &self.doctor);
            return wrong;
        }
        let is_as_expected = |poller: &Json| {
            let shown = poller["cause"].as_str().unwrap_or_default();
            poller["state"] == *state
                && poller["severity"] == *severity
                && poller["quarantined"] == *parked
                && shown.contains(cause)
                && shown.is_empty() == cause.is_empty()
        };
        let brief = |poller: &Json| {
            format!("{} {} {}", poller["state"], poller["cause"], poller["quarantined"])
        };
        let api = &self.api.1["pollers"][0];
        check("/api/status", is_as_expected(api), &brief(api));
        check("page", page.contains(&format!("data-word=\"{label}\"")), &self.page.0);
        check("page, cause", page.contains(cause), &self.page.0);
        check("/readyz", (self.ready == 503) == (*severity == "error"), &self.ready);
        if let Some(metric) = &self.metric {
            check("/metrics", metric == state, metric);
        }
        let listed = &self.status.1;
        check("status", is_as_expected(listed), &brief(listed));
        let problem = self.doctor.1.lines().nth(1).unwrap_or_default();
        check("doctor", *severity != "error" || problem.contains(cause), &self.doctor.1);
        check("doctor, exit code", (self.doctor.0 != 0) == (*severity == "error"), &self.doctor);
        wrong
    }

    /// Returns the first command that a view prints and that starts like this.
    pub(crate) fn printed(&self, start: &str) -> Option<String> {
        let text = self.text();
        let (_, rest) = text.split_at(text.find(start)?);
        let command = rest.split(['`', '\n', '<', ';']).next()?;
        Some(command.trim_end().to_owned())
    }

    /// Returns what the views say: first the cause, then the page and `doctor`.
    pub(crate) fn text(&self) -> String {
        let cause = self.status.1["cause"].as_str().unwrap_or_default();
        format!("{cause}\n{}\n{}\n{}", self.doctor.1, unescaped(&self.page.1), self.status.2)
    }
}

fn unescaped(html: &str) -> String {
    let signs = [
        ("&#96;", "`"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ];
    signs.iter().fold(html.to_owned(), |text, (escape, sign)| text.replace(escape, sign))
}
