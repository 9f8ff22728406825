//! The command line.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failed,
//! 2 wrong usage, 3 wrong settings, 6 something needed cannot be had.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

use crate::app::App;
use crate::config::{LOG_DEFAULT, ProcessVars, STATE_TABLE_DEFAULT, Vars};
use crate::error::chain;
use crate::host::server::{self, Functions, SHUTDOWN_GRACE};
use crate::poller::{Init, StopSignal};
use crate::state::sql;
use crate::{package, telemetry};

/// A polling trigger for Microsoft SQL Server on Azure Functions.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the Functions host; what happens without a command.
    Serve,
    /// Lay out what `func start --script-root DIR` and a deployment need.
    Package {
        /// Folder to lay it out in; made if missing.
        #[arg(long, value_name = "DIR")]
        stage: PathBuf,
        /// Folder with host.json and function-definitions.
        #[arg(long, value_name = "DIR", default_value = ".")]
        from: PathBuf,
        /// The program to stage; this one if not given.
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
    },
    /// Start a poller that never ran: from now where its `SOURCE__START` says so, else from the beginning.
    Init {
        /// Name of the poller.
        poller: String,
    },
    /// Print what the state store needs.
    State {
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Show delivery without loss on real data, with failures and kills; needs nothing installed.
    #[cfg(feature = "demo")]
    Demo(crate::demo::Options),
    /// Serve databases in memory as a stand-in for SQL Server, and print the connection string.
    #[cfg(feature = "demo")]
    Devdb(crate::demo::devdb::Options),
    /// Force the race of a stale owner, and show it event by event; ends with 1 if one differs.
    #[cfg(feature = "demo")]
    Race(crate::race::Options),
}

#[derive(Debug, Subcommand)]
enum StateCommand {
    /// Print the statements that create the table of the state store `sql`; runs none of them.
    Ddl {
        /// Name of the table, as in the setting `HIGHWATER__STATE__TABLE`.
        #[arg(long, value_name = "NAME", default_value = STATE_TABLE_DEFAULT)]
        table: String,
        /// The database's user that the app connects as.
        #[arg(long, value_name = "NAME", default_value = "highwater")]
        user: String,
    },
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const SETTINGS: u8 = 3;
const UNAVAILABLE: u8 = 6;

/// Runs the command that the arguments name.
pub async fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers, not mistakes; clap knows which stream is which.
            let printed = error.print();
            let code = if error.use_stderr() { USAGE } else { 0 };
            return ExitCode::from(if printed.is_ok() { code } else { FAILED });
        }
    };
    match arguments.command {
        None | Some(Command::Serve) => serve(&ProcessVars).await,
        Some(Command::Package { stage, from, binary }) => {
            match package::stage(&from, &stage, binary.as_deref()) {
                Ok(staged) => {
                    say(&format!("{staged}"));
                    ExitCode::SUCCESS
                }
                Err(error) => fail(FAILED, &chain(&error)),
            }
        }
        Some(Command::Init { poller }) => init(&ProcessVars, &poller).await,
        Some(Command::State { command: StateCommand::Ddl { table, user } }) => {
            match sql::table_name(&table) {
                Ok(table) => {
                    say(&format!("{}\n{}", sql::create_table(&table), sql::grant(&table, &user)));
                    ExitCode::SUCCESS
                }
                Err(error) => fail(USAGE, &format!("`--table`: {}", chain(&error))),
            }
        }
        #[cfg(feature = "demo")]
        Some(Command::Demo(options)) => crate::demo::run(options).await,
        #[cfg(feature = "demo")]
        Some(Command::Devdb(options)) => crate::demo::devdb::run(options).await,
        #[cfg(feature = "demo")]
        Some(Command::Race(options)) => {
            // It brings a runtime of its own, in which time is paused.
            let race = tokio::task::spawn_blocking(move || crate::race::run(options));
            race.await.unwrap_or_else(|error| fail(FAILED, &format!("race: {error}")))
        }
    }
}

async fn init(vars: &dyn Vars, name: &str) -> ExitCode {
    let app = match App::build(vars) {
        Ok(app) => app,
        Err(error) => return fail(SETTINGS, &chain(&error)),
    };
    let Some(poller) = app.pollers.get(name) else {
        let names: Vec<&str> = app.pollers.keys().map(String::as_str).collect();
        let names = names.join("`, `");
        return fail(USAGE, &format!("there is no poller `{name}`; the settings have `{names}`"));
    };
    match poller.init().await {
        Ok(Init::Started { after: Some(cursor) }) => {
            say(&format!("{name}: starts behind {} `{}`", cursor.mode, cursor.value));
            ExitCode::SUCCESS
        }
        Ok(Init::Started { after: None }) => {
            say(&format!("{name}: starts at the beginning"));
            ExitCode::SUCCESS
        }
        Ok(Init::StartedBefore) => {
            fail(FAILED, &format!("poller `{name}` has a state; it stays as it is"))
        }
        Err(error) => fail(FAILED, &chain(&error)),
    }
}

/// The port settings of the Functions host, the current name first.
const PORTS: [&str; 2] = ["FUNCTIONS_CUSTOMHANDLER_PORT", "FUNCTIONS_HTTPWORKER_PORT"];

async fn serve(vars: &dyn Vars) -> ExitCode {
    let port = match port(vars) {
        Ok(port) => port,
        Err(text) => return fail(USAGE, &text),
    };
    // Before anything answers: a signal would end the process without a word until they are caught.
    let signals = Signals::catch();
    // IPv4: the host connects to 127.0.0.1, and to nothing else.
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => listener,
        Err(error) => {
            return fail(UNAVAILABLE, &format!("cannot listen on 127.0.0.1:{port}: {error}"));
        }
    };
    // Blanks count as not set, here as in the settings.
    let filter = vars.get("HIGHWATER__LOG").filter(|text| !text.trim().is_empty());
    let filter = filter.unwrap_or_else(|| LOG_DEFAULT.to_owned());
    telemetry::start(&filter);
    let functions = match App::build(vars) {
        Ok(app) => {
            let names: Vec<&str> = app.functions.keys().map(String::as_str).collect();
            let names = names.join(", ");
            info!(event = "started", port, functions = names, "Serving functions: {names}");
            Functions::Ready(app.functions)
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
    let served = server::serve(listener, functions, stop.clone(), asked_to_stop(signals, stop));
    match served.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, &format!("serve: {error}")),
    }
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
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches them from now on; `None` where the system has none to give.
    fn catch() -> Option<Self> {
        let terminate = signal(SignalKind::terminate()).ok()?;
        let interrupt = signal(SignalKind::interrupt()).ok()?;
        Some(Self { terminate, interrupt })
    }
}

/// Completes at the first SIGTERM or SIGINT; at a second one, or after a grace period, the process
/// ends whatever runs: the lease then lapses by itself.
async fn asked_to_stop(signals: Option<Signals>, stop: StopSignal) {
    let Some(Signals { mut terminate, mut interrupt }) = signals else {
        warn!(event = "signals_unavailable", "Signals cannot be received; only a kill stops this");
        return std::future::pending().await;
    };
    let first = tokio::select! {
        _ = terminate.recv() => 143,
        _ = interrupt.recv() => 130,
    };
    info!(event = "stopping", "Asked to stop: running batches are finished");
    stop.set();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = tokio::time::sleep(SHUTDOWN_GRACE) => {}
        }
        warn!(event = "forced_stop", "Stopping with work in hand; its lease lapses by itself");
        #[expect(clippy::exit, reason = "the grace is over, and a stuck task would keep us alive")]
        std::process::exit(first)
    });
}

fn say(text: &str) {
    #[expect(clippy::print_stdout, reason = "a command's data goes to standard output")]
    {
        println!("{text}");
    }
}

fn fail(code: u8, text: &str) -> ExitCode {
    #[expect(clippy::print_stderr, reason = "a command's error goes to standard error")]
    {
        eprintln!("highwater: {text}");
    }
    ExitCode::from(code)
}
