//! `highwater serve`: answers the Functions host until it is asked to stop.

use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use super::output::{Exit, Failed};
use crate::app::{App, board};
use crate::config::{LOG_DEFAULT, Vars};
use crate::error::chain;
use crate::handler::exec;
use crate::host::server::{self, Functions, SHUTDOWN_GRACE, Service};
use crate::poller::StopSignal;
use crate::telemetry::Telemetry;

/// The port settings of the Functions host, the current name first.
const PORTS: [&str; 2] = ["FUNCTIONS_CUSTOMHANDLER_PORT", "FUNCTIONS_HTTPWORKER_PORT"];

pub(super) async fn run(vars: &dyn Vars) -> Result<Exit, Failed> {
    let port = port(vars).map_err(|text| Failed::new(Exit::Usage, text))?;
    // Before anything answers: a signal would end the process without a word until they are caught.
    let signals = Signals::catch();
    // IPv4: the host connects to 127.0.0.1, and to nothing else.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        Failed::new(Exit::Unavailable, format!("cannot listen on 127.0.0.1:{port}: {error}"))
    })?;
    let telemetry = start(vars);
    let functions = match App::build(vars) {
        Ok(app) => {
            let board = app.board(vars, &board::root(vars));
            let functions = app.into_functions(board);
            let names: Vec<&str> = functions.keys().map(String::as_str).collect();
            let names = names.join(", ");
            info!(event = "started", port, functions = names, "Serving functions: {names}");
            Functions::Ready(functions)
        }
        Err(error) => {
            let reason = chain(&error);
            error!(
                event = "configuration_invalid",
                port,
                error = reason,
                "Settings are wrong: every invocation fails until they are mended"
            );
            Functions::Broken(reason)
        }
    };
    let stop = StopSignal::new();
    let served = server::serve(
        listener,
        Service { functions, stop: stop.clone(), telemetry: telemetry.clone() },
        asked_to_stop(signals, stop),
    );
    let served = served.await;
    telemetry.flush().await;
    served.map_err(|error| Failed::new(Exit::Failed, format!("serve: {error}")))?;
    Ok(Exit::Done)
}

/// Tells log lines, and what else the settings say, from now on.
pub(super) fn start(vars: &dyn Vars) -> Telemetry {
    // Blanks count as not set, here as in the settings.
    let filter = vars.get("HIGHWATER__LOG").filter(|text| !text.trim().is_empty());
    let filter = filter.unwrap_or_else(|| LOG_DEFAULT.to_owned());
    Telemetry::start(&filter, vars)
}

fn port(vars: &dyn Vars) -> Result<u16, String> {
    let Some((name, text)) = PORTS.iter().find_map(|name| Some((name, vars.get(name)?))) else {
        let [current, old] = PORTS;
        return Err(format!(
            "neither `{current}` nor `{old}` is set: the Functions host sets it; \
             try `highwater demo`, or `func start --script-root DIR` after `highwater package --stage DIR`"
        ));
    };
    let port = text.trim().parse::<u16>().ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("`{name}` is `{text}`, expected a port from 1 to 65535"))
}

/// The signals that ask the process to stop.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches them from now on; `None` where the system has none to give.
    pub(super) fn catch() -> Option<Self> {
        let terminate = signal(SignalKind::terminate()).ok()?;
        let interrupt = signal(SignalKind::interrupt()).ok()?;
        Some(Self { terminate, interrupt })
    }
}

/// Returns what SIGTERM or SIGINT sets from now on, and which of them it was once it is set.
pub(super) fn stop_by_signal() -> (StopSignal, Arc<OnceLock<Exit>>) {
    let (stop, asked) = (StopSignal::new(), Arc::new(OnceLock::new()));
    tokio::spawn(asked_by(Signals::catch(), stop.clone(), Arc::clone(&asked)));
    (stop, asked)
}

/// Completes at the first SIGTERM or SIGINT; at a second one, or after a grace period, the process
/// ends whatever runs: the lease then lapses by itself.
pub(super) async fn asked_to_stop(signals: Option<Signals>, stop: StopSignal) {
    asked_by(signals, stop, Arc::default()).await;
}

/// As [`asked_to_stop`]; which signal it was is in `asked` before `stop` is set.
async fn asked_by(signals: Option<Signals>, stop: StopSignal, asked: Arc<OnceLock<Exit>>) {
    let Some(Signals { mut terminate, mut interrupt }) = signals else {
        warn!(event = "signals_unavailable", "Signals cannot be received; only a kill stops this");
        return std::future::pending().await;
    };
    let first = tokio::select! {
        _ = terminate.recv() => Exit::Terminated,
        _ = interrupt.recv() => Exit::Interrupted,
    };
    info!(event = "stopping", "Asked to stop: running batches are finished");
    let first = *asked.get_or_init(|| first);
    stop.set();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = tokio::time::sleep(SHUTDOWN_GRACE) => {}
        }
        warn!(event = "forced_stop", "Stopping with work in hand; its lease lapses by itself");
        // Tasks are not dropped by an exit, so no guard of theirs kills what they started.
        exec::kill_all();
        #[expect(clippy::exit, reason = "the grace is over, and a stuck task would keep us alive")]
        std::process::exit(first.code().into())
    });
}
