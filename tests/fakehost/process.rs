//! The handler's process: how it is started, monitored and restarted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::journal::{Journal, Level};
use super::listener::Singleton;
use super::timers::Timers;
use super::wire::Connection;
use super::{
    CONSOLE_CATEGORY, ERRORS_FORGOTTEN_AFTER, ERRORS_MAX, EXIT_CODE_RESTART, HOST_EXIT_CODE,
    INITIALIZATION_TIMEOUT, KILL_WAIT, READY_POLL_INTERVAL, RESERVED_PREFIXES, STATUS_SCHEDULE_MIN,
    STDERR_LINES_KEPT, STOP_WAIT, STORAGE_WAIT,
};

/// The setup of a host.
#[derive(Clone, Debug)]
pub struct Options {
    /// The handler's program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The script root, and the process's working directory.
    pub root: PathBuf,
    /// Settings of the application.
    pub env: BTreeMap<String, String>,
    /// Whether the process also inherits this one's environment, as under the real host.
    pub inherit_env: bool,
    /// The host's `functionTimeout`.
    pub function_timeout: Duration,
    /// Whether a stop sends SIGTERM first, as a container runtime does; the host itself never does.
    pub terminate_first: bool,
    /// How long a stop waits for running invocations.
    pub stop_wait: Duration,
    /// The storage account of the host.
    pub timers: Timers,
    /// How long it runs without storage.
    pub storage_wait: Duration,
    /// The host's id: hosts with the same id share the locks of their timers. A copy of a folder has another
    /// one.
    pub host_id: String,
    /// How the host holds those locks.
    pub singleton: Singleton,
    /// Time between two occurrences of its timers.
    pub schedule: Duration,
}

impl Options {
    /// Returns a host with a timeout of five minutes, its own storage account and timers that fire every
    /// minute.
    pub fn new(program: impl Into<PathBuf>, root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self {
            program: program.into(),
            arguments: Vec::new(),
            host_id: root.display().to_string(),
            root,
            env: BTreeMap::new(),
            inherit_env: true,
            function_timeout: Duration::from_secs(300),
            terminate_first: false,
            stop_wait: STOP_WAIT,
            timers: Timers::default(),
            storage_wait: STORAGE_WAIT,
            singleton: Singleton::default(),
            schedule: STATUS_SCHEDULE_MIN,
        }
    }
}

/// A signal to the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// SIGHUP: its terminal was closed.
    HangUp,
    /// SIGKILL.
    Kill,
}

/// The state of the handler's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Started, or about to be.
    Starting,
    /// It answers.
    Ready {
        /// Its id.
        pid: u32,
        /// The number of this run, counted from 1.
        life: u32,
        /// From the start to the first response.
        after: Duration,
    },
    /// It exited with code 0, and is never restarted: the connection of each invocation is refused.
    Dead,
    /// It cannot be started; the real host only finds out at the first invocation.
    Unstartable,
    /// Three errors: the host gave up.
    ShutDown,
    /// The host was stopped.
    Stopped,
    /// The host has exited and left the handler running. Its output is no longer read.
    Left,
}

impl Phase {
    /// Returns the exit code of the host, if it has ended.
    pub fn host_exit_code(self) -> Option<i32> {
        match self {
            Self::ShutDown | Self::Stopped | Self::Left => Some(HOST_EXIT_CODE),
            Self::Starting | Self::Ready { .. } | Self::Dead | Self::Unstartable => None,
        }
    }
}

/// One exit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its code; 128 and the signal's number after a signal.
    pub code: i32,
    /// Whether the host counted it as an error.
    pub counted: bool,
}

/// State shared by the tasks of a host.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) options: Options,
    pub(super) port: u16,
    pub(super) journal: Journal,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) exits: watch::Sender<Vec<Exit>>,
    pub(super) stopping: AtomicBool,
    last_errors: watch::Sender<Vec<String>>,
    /// The handler of a host that has exited and left it running.
    left: Mutex<Option<Child>>,
}

/// Orders to the process's supervisor.
#[derive(Debug)]
pub(super) enum Order {
    /// Kill it, which is not an error.
    Kill,
    /// Exit, and leave it running.
    Leave,
}

impl Process {
    pub(super) fn new(options: Options) -> io::Result<Self> {
        Ok(Self {
            options,
            port: free_port()?,
            journal: Journal::default(),
            phase: watch::Sender::new(Phase::Starting),
            exits: watch::Sender::default(),
            stopping: AtomicBool::new(false),
            last_errors: watch::Sender::default(),
            left: Mutex::default(),
        })
    }

    pub(super) fn log(&self, level: Level, message: impl Into<String>) {
        self.journal.write(level, "Host", message);
    }

    /// Keeps the handler running until it must not be restarted.
    pub(super) async fn supervise(&self, mut orders: mpsc::Receiver<Order>) {
        let mut errors: Vec<Instant> = Vec::new();
        for life in 1.. {
            self.phase.send_replace(Phase::Starting);
            self.last_errors.send_replace(Vec::new());
            let mut child = match self.spawn() {
                Ok(child) => child,
                Err(error) => {
                    let program = self.options.program.display();
                    self.log(Level::Error, format!("Failed to start {program}: {error}"));
                    self.phase.send_replace(Phase::Unstartable);
                    return;
                }
            };
            let Some((code, asked_for)) = self.watch(&mut child, life, &mut orders).await else {
                *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
                self.phase.send_replace(Phase::Left);
                return;
            };
            let end = self.judge_exit(code, asked_for, &mut errors);
            let counted = end == End::Error || end == End::LastError;
            let last = match end {
                End::Restart | End::Error => None,
                End::LastError => Some(Phase::ShutDown),
                End::Ignored => Some(Phase::Dead),
                End::Stopped => Some(Phase::Stopped),
            };
            // In this order, so that an observer of the exit also sees its consequence.
            self.phase.send_replace(last.unwrap_or(Phase::Starting));
            self.exits.send_modify(|exits| exits.push(Exit { code, counted }));
            if last.is_some() {
                return;
            }
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let options = &self.options;
        let (port, id) = (self.port.to_string(), Uuid::new_v4().to_string());
        let mut command = Command::new(&options.program);
        if !options.inherit_env {
            command.env_clear();
        }
        command
            .args(&options.arguments)
            .current_dir(&options.root)
            .envs(&options.env)
            .env("FUNCTIONS_CUSTOMHANDLER_PORT", &port)
            .env("FUNCTIONS_HTTPWORKER_PORT", &port)
            .env("FUNCTIONS_CUSTOMHANDLER_WORKER_ID", &id)
            .env("FUNCTIONS_HTTPWORKER_ID", &id)
            .env("FUNCTIONS_APP_ROOT_PATH", &options.root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }

    /// Returns the exit code, and whether the host itself killed the process; `None` if the host exited and
    /// left it running.
    async fn watch(
        &self,
        child: &mut Child,
        life: u32,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Option<(i32, bool)> {
        let began_at = Instant::now();
        let pid = child.id().unwrap_or_default();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let reading = async { tokio::join!(self.read(out, false), self.read(err, true)) };
        let ready = self.ready();
        tokio::pin!(reading, ready);
        let (mut read, mut pinged, mut asked_for) = (false, false, false);
        loop {
            tokio::select! {
                biased;
                status = child.wait() => {
                    // Its last output is still in the pipes.
                    if !read && timeout(KILL_WAIT, &mut reading).await.is_err() {
                        self.log(Level::Warning, "The handler's pipes stay open after its end");
                    }
                    return Some((exit_code(&status), asked_for));
                }
                _ = &mut reading, if !read => read = true,
                in_time = &mut ready, if !pinged => {
                    pinged = true;
                    if in_time {
                        let after = began_at.elapsed();
                        self.phase.send_replace(Phase::Ready { pid, life, after });
                    } else {
                        self.log(Level::Error, "Initializing HttpWorker timed out.");
                        self.kill(child);
                    }
                }
                Some(order) = orders.recv() => match order {
                    Order::Kill => {
                        asked_for = true;
                        self.kill(child);
                    }
                    Order::Leave => return None,
                },
            }
        }
    }

    fn kill(&self, child: &mut Child) {
        if let Err(error) = child.start_kill() {
            self.log(Level::Error, format!("Cannot kill the handler: {error}"));
        }
    }

    /// Pings until the result is anything but a refused connection; `false` if that takes too long.
    async fn ready(&self) -> bool {
        let polls = INITIALIZATION_TIMEOUT.as_millis() / READY_POLL_INTERVAL.as_millis();
        for _ in 0..polls {
            let reply = match Connection::open(self.port).await {
                Ok(mut connection) => connection.ping().await.map(drop),
                Err(error) => Err(error),
            };
            match reply {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    sleep(READY_POLL_INTERVAL).await;
                }
                Ok(()) | Err(_) => return true,
            }
        }
        false
    }

    async fn read(&self, pipe: Option<impl AsyncRead + Unpin>, is_stderr: bool) {
        let Some(pipe) = pipe else { return };
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        // Ends with the pipe.
        while pipe.read_until(b'\n', &mut bytes).await.is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&bytes);
            // A carriage return by itself ends a line, too.
            for line in text.trim_end_matches(['\r', '\n']).split('\r') {
                self.console(line.to_owned(), is_stderr);
            }
            bytes.clear();
        }
    }

    fn console(&self, line: String, is_stderr: bool) {
        if RESERVED_PREFIXES.iter().any(|prefix| line.starts_with(prefix)) {
            self.journal.write(Level::Information, "Host.Function.Console.System", line);
            return;
        }
        let level = match is_stderr {
            false => Level::Information,
            true if line.to_ascii_lowercase().contains("warn") => Level::Warning,
            true => Level::Error,
        };
        if level == Level::Error {
            self.last_errors.send_modify(|lines| {
                lines.push(line.clone());
                let extra = lines.len().saturating_sub(STDERR_LINES_KEPT);
                lines.drain(..extra);
            });
        }
        self.journal.write(level, CONSOLE_CATEGORY, line);
    }

    fn judge_exit(&self, code: i32, asked_for: bool, errors: &mut Vec<Instant>) -> End {
        if self.stopping.load(Ordering::Relaxed) {
            return End::Stopped;
        }
        if asked_for || code == EXIT_CODE_RESTART {
            return End::Restart;
        }
        if code == 0 {
            return End::Ignored;
        }
        let program = self.options.program.display();
        let last = self.last_errors.borrow().join("\n");
        self.log(Level::Error, format!("{program} exited with code {code} (0x{code:X})\n{last}"));
        if errors.last().is_some_and(|last| last.elapsed() > ERRORS_FORGOTTEN_AFTER) {
            errors.clear();
        }
        errors.push(Instant::now());
        if errors.len() < ERRORS_MAX {
            return End::Error;
        }
        self.log(Level::Error, "Exceeded the restart retry count; shutting down the host");
        End::LastError
    }
}

/// The consequence of an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Restart,
    Error,
    LastError,
    Ignored,
    Stopped,
}

fn exit_code(status: &io::Result<ExitStatus>) -> i32 {
    let Ok(status) = status else { return -1 };
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Returns a port that nothing listens on; it is released again, as by the real host.
///
/// It is below the range that systems use for outgoing connections and "any port", so that no other process
/// takes it before the handler does.
///
/// # Errors
///
/// [`io::Error`] if a thousand ports are taken.
pub fn free_port() -> io::Result<u16> {
    const PORTS: std::ops::Range<u16> = 12_000..32_000;
    static OFFSET: AtomicU16 = AtomicU16::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    // Concurrent processes have different ids, mostly close together.
    let own = std::process::id().wrapping_mul(257) % count;
    for _ in 0..1000 {
        let offset = u32::from(OFFSET.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + u16::try_from((own + offset) % count).unwrap_or_default();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::from(io::ErrorKind::AddrInUse))
}
