//! Two instances of the function app: the real program under the fake host, each with its timer.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_fakehost::{
    EXIT_CODE_RESTART, FakeHost, Level, Options, Outcome, Phase, Signal, Verdict,
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::ledger::{Exit, Failed, Kind, Shared};
use crate::rng::Rng;

/// The function, its poller and the application.
pub(crate) const FUNCTION: &str = "storm";
/// The same for the poller that copies the table with the handler `sql`.
pub(crate) const COPY: &str = "copy";
/// The names of the instances; their leases show them.
pub(crate) const NAMES: [&str; 2] = ["one", "two"];
/// How long a lease lives without renewal; Azure needs 15 s.
pub(crate) const TTL: Duration = Duration::from_secs(3);

const PROGRAM: &str = env!("CARGO_BIN_EXE_highwater");
/// How long a process may take to exit after SIGTERM: one second less than its own limit.
const END_MAX: Duration = Duration::from_secs(8);

/// The settings of the processes.
pub(crate) struct Settings {
    pub(crate) storage: String,
    pub(crate) sql: String,
    pub(crate) urls: [String; NAMES.len()],
}

/// The running instances; their processes are killed when this is dropped.
pub(crate) struct Instances {
    hosts: Vec<FakeHost>,
    ledger: Shared,
    tasks: JoinSet<()>,
    // Dropped last: the processes run in it.
    _root: TempDir,
}

impl Instances {
    pub(crate) async fn start(settings: &Settings, ledger: Shared, seed: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let config = highwater_test_support::root().join("tests/host/data/config");
        std::fs::copy(config.join("host.json"), root.path().join("host.json")).unwrap();
        for function in [FUNCTION, COPY] {
            std::fs::create_dir(root.path().join(function)).unwrap();
            let function = root.path().join(function).join("function.json");
            std::fs::copy(config.join("nightly/function.json"), function).unwrap();
        }
        let (mut hosts, mut tasks) = (Vec::new(), JoinSet::new());
        for (worker, name) in NAMES.iter().enumerate() {
            let options = Options {
                env: env(settings, worker),
                inherit_env: false,
                terminate_first: true,
                ..Options::new(PROGRAM, root.path())
            };
            let host = FakeHost::start(options).unwrap();
            tasks.spawn(fire(host.clone(), worker, ledger.clone(), Rng::new(seed, name)));
            tasks.spawn(fire_copy(
                host.clone(),
                ledger.clone(),
                Rng::new(seed, &format!("copy {name}")),
            ));
            tasks.spawn(note_exits(host.clone(), worker, ledger.clone()));
            hosts.push(host);
        }
        for host in &hosts {
            let phase = host.ready(1).await;
            assert!(matches!(phase, Phase::Ready { .. }), "{phase:?}");
        }
        Self { hosts, ledger, tasks, _root: root }
    }

    /// Kills a process, and waits until it is gone; returns the fault's number.
    pub(crate) async fn kill(&self, worker: usize) -> usize {
        let fault = self.ledger.fault(Kind::Kill(worker));
        let mut exit = None;
        // A kill that hits no process is repeated.
        while exit.is_none() {
            self.hosts[worker].kill().await;
            exit = self.exit(worker, fault, Duration::from_secs(2)).await;
        }
        self.ledger.fault_over(fault);
        fault
    }

    /// Asks a process to stop, and waits until it has exited; returns when that was.
    pub(crate) async fn terminate(&self, worker: usize) -> Option<Instant> {
        let fault = self.ledger.fault(Kind::Terminate(worker));
        self.hosts[worker].signal(Signal::Terminate).await.unwrap();
        let exit = self.exit(worker, fault, END_MAX).await;
        self.ledger.fault_over(fault);
        exit.filter(|exit| exit.code == EXIT_CODE_RESTART).map(|exit| exit.at)
    }

    /// Waits for the exit of a process after the start of a fault.
    async fn exit(&self, worker: usize, fault: usize, limit: Duration) -> Option<Exit> {
        let find = |ledger: &crate::ledger::Ledger| {
            let from = ledger.faults[fault].from;
            ledger.exits.iter().rev().find(|exit| exit.worker == worker && exit.at >= from).copied()
        };
        self.ledger.wait(limit, find).await
    }

    /// Stops the timers, then the processes; returns their log lines above Information.
    pub(crate) async fn finish(mut self) -> Vec<String> {
        self.tasks.shutdown().await;
        let mut codes = Vec::new();
        for host in &self.hosts {
            codes.push(host.stop().await.map(|exit| exit.code));
        }
        if codes.iter().any(|code| *code != Some(EXIT_CODE_RESTART)) {
            let text = format!("the processes ended with {codes:?} when they were asked to");
            self.ledger.write(|ledger| ledger.violations.push(text));
        }
        let records = self.hosts.iter().flat_map(|host| host.journal().records());
        let loud = records.filter(|record| record.level > Level::Information);
        loud.map(|record| format!("{} {}", record.category, record.message)).collect()
    }
}

fn env(settings: &Settings, worker: usize) -> BTreeMap<String, String> {
    let general = [
        ("AzureWebJobsStorage", settings.storage.clone()),
        ("SqlConnection", settings.sql.clone()),
        ("WEBSITE_INSTANCE_ID", NAMES[worker].to_owned()),
        ("HIGHWATER__APP", FUNCTION.to_owned()),
        ("HIGHWATER__LOG", "warn".to_owned()),
    ];
    let both = [
        ("SOURCE__CONNECTION", "SqlConnection".to_owned()),
        ("SOURCE__TABLE", "dbo.orders".to_owned()),
        ("SOURCE__CURSOR", "version".to_owned()),
        ("SOURCE__KEY", "id".to_owned()),
        ("LEASE__TTL", format!("{}s", TTL.as_secs())),
        ("BATCH_ROWS_MAX", "10".to_owned()),
        ("RETRY_DELAY_MIN", "200ms".to_owned()),
    ];
    let http = [
        ("HANDLER__KIND", "http".to_owned()),
        ("HANDLER__URL", settings.urls[worker].clone()),
        // So that nothing is delivered twice within a term.
        ("HANDLER__TRIES_MAX", "1".to_owned()),
    ];
    let sql = [
        ("HANDLER__KIND", "sql".to_owned()),
        ("HANDLER__CONNECTION", "SqlConnection".to_owned()),
        ("HANDLER__TABLE", "dbo.copies".to_owned()),
        ("HANDLER__LEDGER", "on".to_owned()),
    ];
    let mut env: BTreeMap<String, String> =
        general.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for (poller, own) in [(FUNCTION, &http[..]), (COPY, &sql[..])] {
        let prefix = format!("HIGHWATER__POLLERS__{}__", poller.to_uppercase());
        let settings = both.iter().chain(own);
        env.extend(settings.map(|(name, value)| (format!("{prefix}{name}"), value.clone())));
    }
    env
}

/// The timer of the copying poller of an instance. Its effects are judged by the target alone.
async fn fire_copy(host: FakeHost, ledger: Shared, mut rng: Rng) {
    loop {
        let outcome = host.fire(COPY).await;
        ledger.write(|ledger| {
            ledger.copying.invocations += 1;
            match outcome.verdict {
                Verdict::Failure(text) if outcome.reply.is_some() => {
                    ledger.copying.failed += 1;
                    ledger.copying.stale += u64::from(text.contains("stale write blocked"));
                }
                Verdict::Success(_) | Verdict::Failure(_) => {}
                verdict @ (Verdict::Hang(_) | Verdict::Follows(_) | Verdict::TimedOut) => {
                    let text = format!("an invocation of the copy ended as {verdict:?}");
                    ledger.violations.push(text);
                }
            }
        });
        sleep(rng.millis(100..=200)).await;
    }
}

/// The timer of an instance.
async fn fire(host: FakeHost, worker: usize, ledger: Shared, mut rng: Rng) {
    loop {
        let outcome = host.fire(FUNCTION).await;
        let at = Instant::now();
        ledger.write(|ledger| {
            ledger.invocations += 1;
            let Outcome { verdict, reply, .. } = outcome;
            match verdict {
                // Without a reply the process was killed, or is not running.
                Verdict::Failure(text) if reply.is_some() => {
                    ledger.failed.push(Failed { worker, at, text });
                }
                Verdict::Success(_) | Verdict::Failure(_) => {}
                verdict @ (Verdict::Hang(_) | Verdict::Follows(_) | Verdict::TimedOut) => {
                    ledger.violations.push(format!("an invocation ended as {verdict:?}"));
                }
            }
        });
        sleep(rng.millis(100..=200)).await;
    }
}

async fn note_exits(host: FakeHost, worker: usize, ledger: Shared) {
    for number in 1.. {
        let exit = loop {
            if let Some(exit) = host.exit(number, Duration::from_secs(3600)).await {
                break exit;
            }
        };
        let exit = Exit { worker, at: Instant::now(), code: exit.code };
        ledger.write(|ledger| ledger.exits.push(exit));
    }
}
