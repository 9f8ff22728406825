//! `highwater serve`: serves the Functions host until a signal stops it.

mod orphan;

use std::fs;
use std::future::pending;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::builder::App;
use crate::builder::board::{self, APP_ROOT};
use crate::config::{ABORT_LEAD, FunctionTimeout, LOG_DEFAULT, Vars, stop_grace};
use crate::error::chain;
use crate::exit::{Exit, Failed};
use crate::handler::exec;
use crate::host::server::{self, Functions, Service};
use crate::poller::StopSignal;
use crate::project;
use crate::telemetry::{LineForm, Telemetry, TickLines, flush_lines};

/// The port settings of the Functions host, the current name first.
const PORTS: [&str; 2] = ["FUNCTIONS_CUSTOMHANDLER_PORT", "FUNCTIONS_HTTPWORKER_PORT"];

/// Set by the Functions host for the processes it starts.
const WORKER_ID: &str = "FUNCTIONS_CUSTOMHANDLER_WORKER_ID";

/// How long to wait for a port that is in use. The host waits 30 s for the first reply, and shuts down after three
/// exits.
const PORT_WAIT_MAX: Duration = Duration::from_secs(20);
/// Delay between two attempts to listen on the port.
const PORT_RETRY_PAUSE: Duration = Duration::from_millis(100);

pub async fn run(vars: &dyn Vars) -> Result<Exit, Failed> {
    let is_hosted = vars.get(WORKER_ID).is_some();
    match Box::pin(serve(vars, is_hosted)).await {
        // The host guesses the level of plain text from its words; a log line has a level.
        Err(Failed { exit, text }) if is_hosted => {
            error!(event = "not_started", "{text}");
            Ok(exit)
        }
        ended => ended,
    }
}

async fn serve(vars: &dyn Vars, is_hosted: bool) -> Result<Exit, Failed> {
    let named = match port(vars).map_err(|text| Failed::new(Exit::Usage, text)) {
        // Fail before logging starts, so that a person at a terminal sees only this error.
        Err(failed) if !is_hosted => return Err(failed),
        named => named,
    };
    // Catch signals before serving: until then, a signal ends the process without a log line.
    let forced = is_hosted.then_some(Exit::Restart);
    let (stop, exit) = (StopSignal::new(), Arc::new(OnceLock::new()));
    let end = End { grace: stop_grace(vars), exit: Arc::clone(&exit), forced };
    let stopping = watch_signals(Signals::catch(), stop.clone(), end);
    let stopping = tokio::spawn(stopping);
    let telemetry = if is_hosted && exports_lines(vars) {
        start(&WithoutLogs(vars), TickLines::Answered)
    } else {
        start(vars, TickLines::Answered)
    };
    let (setting, port) = named?;
    let (host_stop, host_exit) = (stop.clone(), Arc::clone(&exit));
    let mut stopping = Box::pin(async move {
        tokio::select! {
            // If the task panics, stop too.
            _ = stopping => {}
            gone = orphan::host_lost(), if is_hosted => {
                // The reply is no longer awaited, so the current batch may use the full time of its tick.
                host_stop.set();
                // The host may in fact be alive with a closed output, so ask for a restart.
                host_exit.get_or_init(|| Exit::Restart);
                let how = gone.as_str();
                warn!(
                    event = "host_gone",
                    "The Functions host is gone ({how}); stopping after the batches in flight"
                );
            }
        }
    });
    let listener = tokio::select! {
        biased;
        () = &mut stopping => None,
        bound = listen(port) => Some(bound.map_err(|error| {
            let text = format!("cannot listen on 127.0.0.1:{port} (`{setting}`): {error}");
            Failed::new(Exit::Unavailable, text)
        })?),
    };
    if let Some(listener) = listener {
        let functions = functions(vars, port, &telemetry);
        let service = Service { functions, stop: stop.clone(), telemetry: telemetry.clone() };
        server::serve(listener, service, stopping).await;
        telemetry.flush().await;
    }
    // After Ctrl-C the host stops too. Any other signal may be meant only for the handler, so the host must
    // restart it; also after aborted work.
    let is_interrupted = matches!(exit.get(), None | Some(Exit::Interrupted));
    let ends_with_host = is_interrupted && !stop.is_aborted();
    Ok(if is_hosted && !ends_with_host { Exit::Restart } else { Exit::Done })
}

/// Listens on a port. If it is in use, waits for a while: an earlier process may be about to release it.
///
/// IPv4, since the host connects only to 127.0.0.1.
async fn listen(port: u16) -> io::Result<TcpListener> {
    let until = Instant::now() + PORT_WAIT_MAX;
    let mut is_reported = false;
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                if !is_reported {
                    let wait = PORT_WAIT_MAX.as_secs();
                    info!(
                        event = "port_taken",
                        port, "Port {port} is in use; retrying for {wait} s"
                    );
                    is_reported = true;
                }
                sleep(PORT_RETRY_PAUSE).await;
            }
            bound => return bound,
        }
    }
}

/// Returns the time limit of the host that started this process, if there is one. A host with an invalid limit
/// does not start a process.
fn function_timeout(vars: &dyn Vars) -> Option<FunctionTimeout> {
    vars.get(APP_ROOT)?;
    project::function_timeout(vars, &board::root(vars)).ok()
}

fn functions(vars: &dyn Vars, port: u16, telemetry: &Telemetry) -> Functions {
    match App::build_to_run(vars, function_timeout(vars).as_ref()) {
        Ok(app) => {
            let board = app.board(vars, &board::root(vars));
            telemetry.export_states(board.clone());
            let functions = app.into_functions(board);
            let names: Vec<&str> = functions.keys().map(String::as_str).collect();
            let names = names.join(", ");
            info!(event = "started", port, functions = names, "Serving functions: {names}");
            // The hosting plan is known only here, not to `validate` before a deployment.
            if let Some(problem) = project::time_zone_problem(vars) {
                warn!(event = "without_effect", "{problem}");
            }
            Functions::Ready(functions)
        }
        Err(error) => {
            let reason = chain(&error);
            error!(
                event = "configuration_invalid",
                port,
                error = reason,
                "Invalid settings; all invocations will fail until they are fixed"
            );
            Functions::Broken(reason)
        }
    }
}

/// Starts logging and the configured telemetry.
pub fn start(vars: &dyn Vars, ticks: TickLines) -> Telemetry {
    let filter = log_filter(vars).unwrap_or_else(|| LOG_DEFAULT.to_owned());
    Telemetry::start(&filter, vars, ticks)
}

/// As [`start`] with lines in the given form.
pub fn start_in(form: LineForm, vars: &dyn Vars, ticks: TickLines) -> Telemetry {
    let filter = log_filter(vars).unwrap_or_else(|| LOG_DEFAULT.to_owned());
    Telemetry::start_in(form, &filter, vars, ticks)
}

/// Starts logging for a person at a terminal, in text and with another default filter, and the configured telemetry.
pub fn start_at_terminal(vars: &dyn Vars, default_filter: &str) -> Telemetry {
    let filter = log_filter(vars).unwrap_or_else(|| default_filter.to_owned());
    Telemetry::start_in(LineForm::Text, &filter, vars, TickLines::Written)
}

/// Returns the filter that is set. A blank value counts as not set, as in all settings.
fn log_filter(vars: &dyn Vars) -> Option<String> {
    vars.get("HIGHWATER__LOG").filter(|text| !text.trim().is_empty())
}

/// The variable that disables the export of log lines.
const LOGS_EXPORTER: &str = "OTEL_LOGS_EXPORTER";

/// Settings with the export of log lines disabled.
struct WithoutLogs<'a>(&'a dyn Vars);

impl Vars for WithoutLogs<'_> {
    fn get(&self, name: &str) -> Option<String> {
        if name == LOGS_EXPORTER { Some("none".to_owned()) } else { self.0.get(name) }
    }

    fn names(&self) -> Vec<String> {
        self.0.names()
    }
}

/// Whether the host exports the log lines of this process, so that each would arrive at the collector twice.
fn exports_lines(vars: &dyn Vars) -> bool {
    let is_set = |text: String| !text.trim().is_empty();
    vars.get("OTEL_EXPORTER_OTLP_ENDPOINT").is_some_and(is_set)
        && project::is_open_telemetry(vars, &board::root(vars))
}

/// Returns the port to listen on and the name of its setting.
fn port(vars: &dyn Vars) -> Result<(&'static str, u16), String> {
    let is_set = |text: &String| !text.trim().is_empty();
    let set = PORTS.into_iter().find_map(|name| Some((name, vars.get(name).filter(is_set)?)));
    let Some((name, text)) = set else {
        let [current, old] = PORTS;
        return Err(format!(
            "neither `{current}` nor `{old}` is set; the Functions host sets it. \
             Try `highwater demo`, or `highwater package --stage out` and then `func start --script-root out`"
        ));
    };
    let port = text.trim().parse::<u16>().ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| format!("`{name}` is `{text}`, expected a port from 1 to 65535"));
    port.map(|port| (name, port))
}

/// The signals that stop the process.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP, on a closed terminal or a lost connection; `None` if the process ignores it.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Starts to catch the signals; `None` if the system does not allow it.
    pub fn catch() -> Option<Self> {
        let terminate = signal(SignalKind::terminate()).ok()?;
        let interrupt = signal(SignalKind::interrupt()).ok()?;
        // `nohup` makes its program ignore this signal, and catching it would undo that.
        let hang_up =
            if ignores_hang_up() { None } else { Some(signal(SignalKind::hangup()).ok()?) };
        Some(Self { terminate, interrupt, hang_up })
    }

    /// Waits for the next signal, and returns the exit code of a process that it stops.
    pub async fn next(&mut self) -> Exit {
        let hung_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Exit::Terminated,
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = hung_up => Exit::HungUp,
        }
    }
}

/// Whether this process has inherited that SIGHUP is ignored; `false` if unknown.
fn ignores_hang_up() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // A bit mask of signals, with the lowest bit for SIGHUP; see proc_pid_status(5).
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}

/// Returns a stop that the first signal sets, and a cell with the exit code for that signal.
pub fn stop_by_signal(vars: &dyn Vars) -> (StopSignal, Arc<OnceLock<Exit>>) {
    let (stop, exit) = (StopSignal::new(), Arc::new(OnceLock::new()));
    let end = End { grace: stop_grace(vars), exit: Arc::clone(&exit), forced: None };
    tokio::spawn(watch_signals(Signals::catch(), stop.clone(), end));
    (stop, exit)
}

/// How a process stops after a signal.
struct End {
    /// How long stopping may take.
    grace: Duration,
    /// Exit code for the first signal.
    exit: Arc<OnceLock<Exit>>,
    /// Exit code after a forced stop; if `None`, the one for the first signal.
    forced: Option<Exit>,
}

/// Completes at the first signal. At a second signal, or just before the grace period is over, running handler
/// calls are aborted and their leases released. At the end of the grace period the process exits.
pub async fn asked_to_stop(signals: Option<Signals>, stop: StopSignal, grace: Duration) {
    watch_signals(signals, stop, End { grace, exit: Arc::default(), forced: None }).await;
}

/// Like [`asked_to_stop`]; the exit code is stored before `stop` is set.
async fn watch_signals(signals: Option<Signals>, stop: StopSignal, end: End) {
    let End { grace, exit, forced } = end;
    let Some(mut signals) = signals else {
        warn!(
            event = "signals_unavailable",
            "Cannot receive signals; only SIGKILL will stop this process"
        );
        return pending().await;
    };
    let first = signals.next().await;
    info!(event = "stopping", "Stopping after the batches in flight");
    let first = *exit.get_or_init(|| first);
    stop.set();
    tokio::spawn(async move {
        tokio::select! {
            _ = signals.next() => {}
            () = sleep(grace.saturating_sub(ABORT_LEAD)) => {}
        }
        info!(event = "aborting", "Aborting handler calls that are still running");
        stop.abort();
        tokio::select! {
            _ = signals.next() => {}
            () = sleep(ABORT_LEAD) => {}
        }
        warn!(
            event = "forced_stop",
            "Exiting before all work has finished; leases that are still held will expire"
        );
        // An exit drops no tasks, so their guards do not kill the processes that they started.
        exec::kill_all();
        flush_lines();
        #[expect(
            clippy::exit,
            reason = "the grace period is over, and a stuck task would keep the process alive"
        )]
        std::process::exit(forced.unwrap_or(first).code().into())
    });
}
