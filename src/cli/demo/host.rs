//! A stand-in for the Azure Functions host, with the parts of its contract that the demo needs.
//!
//! It starts each handler process with its settings in the environment, sends `GET /` every 25 ms until
//! it answers, POSTs a timer invocation with each tick, and checks the reply. It restarts a process that exited, at
//! once and on the same port; the third exit within half an hour stops the host. There is one function, so there is
//! one timer per process, and no timer fires while its last invocation runs.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, USER_AGENT};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use time::format_description::well_known::Rfc3339;
use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use uuid::Uuid;

use super::console::Console;
use highwater::clock::{Clock as _, SystemClock};

/// Name of the one function.
pub(super) const FUNCTION: &str = "flights";
/// What the processes are called.
pub(super) const NAMES: [&str; 2] = ["one", "two"];

/// `ready_poll_interval_ms`
const READY_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// `ready_initialization_timeout_s`
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// `restart_error_threshold`
const RESTARTS_MAX: u32 = 2;
/// Time from one tick of a process to its next; those of the two lie between each other.
const TICK_INTERVAL: Duration = Duration::from_millis(300);
/// Limit on one invocation: `functionTimeout` and a minute, for a demo that ends before.
const INVOCATION_TIMEOUT: Duration = Duration::from_secs(60);
const VERSION: &str = "4.1037.0.0";

/// How processes are started.
#[derive(Debug)]
pub(super) struct Launch {
    /// The handler.
    pub(super) program: PathBuf,
    /// What the host calls the application's root; the processes run in it.
    pub(super) root: PathBuf,
    /// Settings of each process, in the order of [`NAMES`].
    pub(super) settings: [Vec<(String, String)>; 2],
    /// Names that the processes must not inherit.
    pub(super) hidden: Vec<String>,
}

/// What the host did.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Invocations that were answered or failed.
    pub(super) invocations: AtomicU64,
    /// Invocations that failed.
    pub(super) failed: AtomicU64,
    /// Processes that were killed on request.
    pub(super) killed: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    TimersOff,
    Stopped,
}

/// The running host. Dropping it kills the processes.
#[derive(Debug)]
pub(super) struct Host {
    shared: Arc<Shared>,
    supervisors: JoinSet<Result<(), String>>,
    timers: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    launch: Launch,
    console: Arc<Console>,
    client: reqwest::Client,
    phase: watch::Sender<Phase>,
    workers: Vec<Worker>,
    counts: Counts,
}

#[derive(Debug)]
struct Worker {
    name: &'static str,
    index: usize,
    port: u16,
    ready: watch::Sender<bool>,
    kill: Notify,
}

impl Host {
    /// Starts the processes and, when each is ready, its timer.
    pub(super) fn start(launch: Launch, console: Arc<Console>) -> Result<Self, String> {
        let client = reqwest::Client::builder().no_proxy().timeout(INVOCATION_TIMEOUT).build();
        let client = client.map_err(|error| format!("create the host's HTTP client: {error}"))?;
        let workers: Result<Vec<Worker>, String> =
            NAMES.iter().enumerate().map(|(index, name)| Worker::new(index, name)).collect();
        let phase = watch::Sender::new(Phase::Running);
        let counts = Counts::default();
        let workers = workers?;
        let shared = Arc::new(Shared { launch, console, client, phase, workers, counts });
        let (mut supervisors, mut timers) = (JoinSet::new(), JoinSet::new());
        for index in 0..NAMES.len() {
            supervisors.spawn(Arc::clone(&shared).supervise(index));
            timers.spawn(Arc::clone(&shared).fire(index));
        }
        Ok(Self { shared, supervisors, timers })
    }

    /// Kills a process with SIGKILL; another one takes its place at once.
    pub(super) fn kill(&self, worker: usize) {
        if let Some(worker) = self.shared.workers.get(worker) {
            worker.kill.notify_one();
        }
    }

    /// Returns what was done so far.
    pub(super) fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Completes when the host had to give up, with the reason.
    pub(super) async fn failure(&mut self) -> String {
        loop {
            match self.supervisors.join_next().await {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(reason))) => return reason,
                Some(Err(panic)) => return panic.to_string(),
                None => std::future::pending().await,
            }
        }
    }

    /// Stops the timers, lets running invocations end, and invokes each process once more.
    pub(super) async fn last_round(&mut self) {
        self.shared.phase.send_replace(Phase::TimersOff);
        while self.timers.join_next().await.is_some() {}
        for worker in &self.shared.workers {
            self.shared.invoke(worker).await;
        }
    }

    /// Kills the processes, as the host does when it ends, and reads their last lines.
    pub(super) async fn stop(&mut self) {
        self.shared.phase.send_replace(Phase::Stopped);
        self.timers.shutdown().await;
        while self.supervisors.join_next().await.is_some() {}
    }
}

impl Worker {
    fn new(index: usize, name: &'static str) -> Result<Self, String> {
        let port = free_port().map_err(|error| format!("find a free port: {error}"))?;
        Ok(Self { name, index, port, ready: watch::Sender::new(false), kill: Notify::new() })
    }
}

/// Returns a free port. If another process takes it meanwhile, the handler waits for it.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Shared {
    /// Keeps one process alive until the host stops.
    async fn supervise(self: Arc<Self>, index: usize) -> Result<(), String> {
        let Some(worker) = self.workers.get(index) else { return Ok(()) };
        let mut phase = self.phase.subscribe();
        for _ in 0..=RESTARTS_MAX {
            let mut child = self
                .command(worker)
                .spawn()
                .map_err(|error| format!("start `{}`: {error}", self.launch.program.display()))?;
            let mut readers = self.console.follow(worker.name, &mut child);
            let killed = tokio::select! {
                biased;
                () = reached(&mut phase, Phase::Stopped) => None,
                () = worker.kill.notified() => Some(true),
                _ = child.wait() => Some(false),
                reason = self.become_ready(worker) => return Err(reason),
            };
            worker.ready.send_replace(false);
            if killed != Some(false) {
                let dead = child.kill().await;
                dead.map_err(|error| format!("kill handler process {}: {error}", worker.name))?;
            }
            while readers.join_next().await.is_some() {}
            match killed {
                None => return Ok(()),
                Some(killed) => self.counts.killed.fetch_add(killed.into(), Ordering::Relaxed),
            };
        }
        let last = self.console.last_error(worker.name);
        let last = last.map_or_else(
            || "it wrote no error".to_owned(),
            |line| format!("its last error: {line}"),
        );
        Err(format!("handler process {} exited {} times; {last}", worker.name, RESTARTS_MAX + 1))
    }

    fn command(&self, worker: &Worker) -> Command {
        let mut command = Command::new(&self.launch.program);
        for name in &self.launch.hidden {
            command.env_remove(name);
        }
        let id = Uuid::new_v4().to_string();
        command
            .env("FUNCTIONS_CUSTOMHANDLER_PORT", worker.port.to_string())
            .env("FUNCTIONS_HTTPWORKER_PORT", worker.port.to_string())
            .env("FUNCTIONS_CUSTOMHANDLER_WORKER_ID", &id)
            .env("FUNCTIONS_HTTPWORKER_ID", &id)
            .env("FUNCTIONS_APP_ROOT_PATH", &self.launch.root)
            .env("FUNCTIONS_WORKER_RUNTIME", "custom")
            .env("WEBSITE_INSTANCE_ID", worker.name)
            .envs(self.launch.settings.get(worker.index).into_iter().flatten().cloned())
            .current_dir(&self.launch.root)
            .kill_on_drop(true);
        Console::prepare(&mut command);
        command
    }

    /// Tells when the process answers, and completes only if it never does.
    async fn become_ready(&self, worker: &Worker) -> String {
        let url = format!("http://127.0.0.1:{}/", worker.port);
        let answered = async {
            // Any status will do.
            while self.client.get(&url).send().await.is_err() {
                sleep(READY_POLL_INTERVAL).await;
            }
        };
        if timeout(READY_TIMEOUT, answered).await.is_err() {
            return format!("handler process {} did not answer within 30 s", worker.name);
        }
        worker.ready.send_replace(true);
        std::future::pending().await
    }

    /// Fires the timer of one process until timers are off.
    async fn fire(self: Arc<Self>, index: usize) {
        let Some(worker) = self.workers.get(index) else { return };
        let mut phase = self.phase.subscribe();
        let mut ready = worker.ready.subscribe();
        let between = TICK_INTERVAL / u32::try_from(NAMES.len()).unwrap_or(1);
        let first = Instant::now() + between * u32::try_from(index).unwrap_or(0);
        let mut timer = interval_at(first, TICK_INTERVAL);
        timer.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let due = async {
                timer.tick().await;
                ready.wait_for(|ready| *ready).await.is_ok()
            };
            tokio::select! {
                biased;
                () = reached(&mut phase, Phase::TimersOff) => return,
                _ = due => self.invoke(worker).await,
            }
        }
    }

    async fn invoke(&self, worker: &Worker) {
        let succeeded = self.post(worker).await;
        self.counts.invocations.fetch_add(1, Ordering::Relaxed);
        self.counts.failed.fetch_add(u64::from(!succeeded), Ordering::Relaxed);
    }

    async fn post(&self, worker: &Worker) -> bool {
        let url = format!("http://127.0.0.1:{}/{FUNCTION}", worker.port);
        let request = self
            .client
            .post(url)
            .header("X-Azure-Functions-HostVersion", VERSION)
            .header("X-Azure-Functions-InvocationId", Uuid::new_v4().to_string())
            .header(USER_AGENT, format!("Azure-Functions-Host/{VERSION}"))
            .header(CONTENT_TYPE, "application/json; charset=utf-8")
            .body(timer_body().to_string());
        let Ok(reply) = request.send().await else { return false };
        let status = reply.status();
        let content_type = reply.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let Ok(body) = reply.bytes().await else { return false };
        for line in logs(&body) {
            self.console.take(worker.name, &line);
        }
        is_success(status.as_u16(), &content_type, &body)
    }
}

/// Returns the log lines of a reply, which the host shows.
fn logs(body: &[u8]) -> Vec<String> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "PascalCase")]
    struct Reply {
        logs: Vec<String>,
    }
    serde_json::from_slice::<Reply>(body).unwrap_or_default().logs
}

/// Completes when the host has come as far as `wanted`, or is gone.
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let found = phase.wait_for(|phase| *phase >= wanted).await;
    drop(found);
}

/// What a timer that is not monitored sends: it fires more than once a minute.
fn timer_body() -> Json {
    json!({
        "Data": {
            "timer": {
                "Schedule": {"AdjustForDST": true}, "ScheduleStatus": null, "IsPastDue": false
            }
        },
        "Metadata": {
            "sys": {
                "MethodName": FUNCTION,
                "UtcNow": SystemClock.now().format(&Rfc3339).unwrap_or_default(),
                "RandGuid": Uuid::new_v4().to_string(),
            }
        }
    })
}

/// Judges a reply as the host does; what would leave the host waiting fails here at once.
fn is_success(status: u16, content_type: &str, body: &[u8]) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let is_json =
        ["application/json", "text/json"].iter().any(|name| media_type.eq_ignore_ascii_case(name));
    let Ok(Json::Object(reply)) = serde_json::from_slice(body) else { return false };
    let field = |name: &str| {
        reply.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let outputs = field("Outputs").is_none_or(|outputs| outputs.is_object() || outputs.is_null());
    let logs = match field("Logs") {
        None | Some(Json::Null) => true,
        Some(Json::Array(logs)) => logs.iter().all(|log| !log.is_object() && !log.is_array()),
        Some(_) => false,
    };
    (200..300).contains(&status) && is_json && outputs && logs
}

#[cfg(test)]
mod tests {
    use super::super::progress::Progress;
    use super::*;

    #[tokio::test]
    async fn a_process_that_does_not_stay_is_told_with_its_last_error() {
        let launch = Launch {
            // Without arguments it prints an error and exits.
            program: "/bin/mv".into(),
            root: "/".into(),
            settings: [Vec::new(), Vec::new()],
            hidden: Vec::new(),
        };
        let console = Arc::new(Console::new(false, Progress::start(0)));
        let mut host = Host::start(launch, console).unwrap();
        let reason = host.failure().await;
        host.stop().await;
        assert!(reason.contains(" exited 3 times; its last error: "), "{reason}");
    }

    #[test]
    fn replies_are_judged_as_the_host_judges_them() {
        let json = "application/json; charset=utf-8";
        for (status, content_type, body, success) in [
            (200, json, r#"{"Outputs":{},"Logs":["a",1,null],"ReturnValue":null}"#, true),
            (202, "text/json", "{}", true),
            (500, json, "{}", false),
            (200, "text/plain", "{}", false),
            (200, "", "{}", false),
            (200, json, "", false),
            (200, json, "null", false),
            (200, json, "[]", false),
            (200, json, r#"{"logs":"text"}"#, false),
            (200, json, r#"{"Logs":[{}]}"#, false),
            (200, json, r#"{"outputs":[]}"#, false),
        ] {
            assert_eq!(is_success(status, content_type, body.as_bytes()), success, "{body}");
        }
    }
}
