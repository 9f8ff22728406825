//! The other processes: this program again, in another role.

use std::process::Stdio;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::job::{Role, Texts};
use crate::system;
use crate::tables::Tables;

/// The argument before a role.
pub(crate) const ROLE: &str = "--role";

/// Lets glibc return freed allocations from 128 KiB on, like the C library of the deployed program:
/// `MMAP_THRESHOLD` of musl's mallocng is 131,052.
const MMAP_THRESHOLD: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");

/// Reports to the parent process.
pub(crate) fn tell(what: &impl Serialize) {
    println!("{}", serde_json::to_string(what).unwrap());
}

fn start(role: &Role) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(ROLE).arg(serde_json::to_string(role).unwrap());
    if matches!(role, Role::Memory(_)) {
        command.env(MMAP_THRESHOLD.0, MMAP_THRESHOLD.1);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

/// Runs a process until it exits, and returns its report.
pub(crate) async fn run<T: DeserializeOwned>(role: &Role) -> T {
    let output = start(role).wait_with_output().await.unwrap();
    assert!(output.status.success(), "{role:?} exited with {}", output.status);
    let report = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(report.trim()).unwrap_or_else(|error| panic!("{error}: {report}"))
}

/// A process that answers lines; it exits when its standard input ends.
#[derive(Debug)]
struct Servant {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Servant {
    fn start(role: &Role) -> Self {
        let mut child = start(role);
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines }
    }

    async fn line(&mut self) -> String {
        self.lines.next_line().await.unwrap().expect("it does not exit before it is stopped")
    }

    async fn ask<T: DeserializeOwned>(&mut self, question: &str) -> T {
        self.stdin.write_all(format!("{question}\n").as_bytes()).await.unwrap();
        serde_json::from_str(&self.line().await).unwrap()
    }
}

/// The embedded SQL Server.
#[derive(Debug)]
pub(crate) struct Server {
    servant: tokio::sync::Mutex<Servant>,
    pub(crate) connection: String,
    pid: u32,
}

impl Server {
    /// Starts one, and waits until it has its rows.
    pub(crate) async fn start(tables: &Tables) -> Self {
        let mut servant = Servant::start(&Role::Server(*tables));
        let connection = servant.line().await;
        let pid = servant.child.id().unwrap();
        Self { servant: tokio::sync::Mutex::new(servant), connection, pid }
    }

    /// Returns how many requests it has received.
    pub(crate) async fn requests(&self) -> u64 {
        self.servant.lock().await.ask("requests").await
    }

    /// Returns the statements that pollers have sent to read a table.
    pub(crate) async fn texts(&self, table: &str) -> Texts {
        self.servant.lock().await.ask(&format!("texts {table}")).await
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        system::cpu_seconds(Some(self.pid))
    }
}

/// The receiver of the POSTs.
#[derive(Debug)]
pub(crate) struct Receiver {
    servant: Servant,
    pub(crate) url: String,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let mut servant = Servant::start(&Role::Receiver);
        let url = servant.line().await;
        Self { servant, url }
    }

    /// Returns the bytes of all bodies since the last call.
    pub(crate) async fn take_bytes(&mut self) -> u64 {
        self.servant.ask("bytes").await
    }
}
