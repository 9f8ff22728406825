//! `highwater devdb`: the embedded development server alone, to point a poller or a test at.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use super::{UNAVAILABLE, progress::say};
use crate::devdb::{Databases, Options as ServerOptions, Server};

/// How the server listens.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Port on 127.0.0.1; a free one if not given.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

/// Serves databases in memory until a signal comes.
pub async fn run(options: Options) -> ExitCode {
    match serve(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            say(&format!("highwater: {reason}"));
            ExitCode::from(UNAVAILABLE)
        }
    }
}

async fn serve(options: Options) -> Result<(), String> {
    let signals = "signals cannot be received";
    let mut terminate = signal(SignalKind::terminate()).map_err(|_error| signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|_error| signals)?;
    let listen = ServerOptions { port: options.port, ..ServerOptions::default() };
    let databases =
        Databases::with(&listen.database).map_err(|error| format!("make databases: {error}"))?;
    let server = Server::start(databases, listen).await;
    let server =
        server.map_err(|error| format!("listen on 127.0.0.1:{}: {error}", options.port))?;
    say("A development stand-in, not SQL Server. Ends with Ctrl+C, and all data with it.");
    tell(&server.connection_string());
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn tell(connection: &str) {
    #[expect(clippy::print_stdout, reason = "a command's data goes to standard output")]
    {
        println!("{connection}");
    }
}
