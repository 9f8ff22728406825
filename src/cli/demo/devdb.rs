//! `highwater devdb`: the embedded development server alone, to point a poller or a test at.
//!
//! A table to look at can be had with it, and statements run from files or as they are typed, so that no
//! client is needed to try a poller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::{UNAVAILABLE, flights, progress::say};
use highwater::event::counted;
use highwater_devdb::{Databases, Options as ServerOptions, Server, SqlError};

/// Names standard input among files.
const STANDARD_INPUT: &str = "-";

/// How the server listens, and what it has.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Port on 127.0.0.1; a free one if not given.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Make the table `dbo.flights` with so many rows, up to 27004.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(0..=i64::from(flights::COUNT)))]
    flights: Option<u32>,
    /// Run the statements of this file first; of `-`, each line of standard input as it comes. May be given again.
    #[arg(long, value_name = "FILE")]
    sql: Vec<PathBuf>,
}

/// Serves databases in memory until a signal comes.
pub(crate) async fn run(options: Options) -> ExitCode {
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
    let name = listen.database.clone();
    fill((&databases, &name), &options)?;
    let server = Server::start(databases.clone(), listen).await;
    let server =
        server.map_err(|error| format!("listen on 127.0.0.1:{}: {error}", options.port))?;
    say("A development stand-in, not SQL Server. Ends with Ctrl+C, and all data with it.");
    tell(&server.connection_string());
    let asked = async {
        if options.sql.iter().any(|file| is_standard_input(file)) {
            run_lines(&databases, &name).await;
        }
        // Statements may end; the server goes on.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = asked => {}
    }
    Ok(())
}

/// Makes what is to be there before anybody connects.
fn fill((databases, name): (&Databases, &str), options: &Options) -> Result<(), String> {
    if let Some(rows) = options.flights {
        let database = databases.find(name).ok_or("its database is missing")?;
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let flights = flights::read(rows).map_err(|error| format!("read the flights: {error}"))?;
        flights::load(&database, &flights).map_err(|error| format!("load the flights: {error}"))?;
    }
    for file in options.sql.iter().filter(|file| !is_standard_input(file)) {
        let at = |error: &dyn std::fmt::Display| format!("run `{}`: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| at(&error))?;
        for batch in batches(&text) {
            databases.execute(name, &batch).map_err(|error| at(&told(&error)))?;
        }
    }
    Ok(())
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new(STANDARD_INPUT)
}

/// Divides a file where a line says `GO`, as clients of SQL Server do.
fn batches(text: &str) -> Vec<String> {
    let mut batches = vec![String::new()];
    for line in text.lines() {
        if is_go(line) {
            batches.push(String::new());
        } else if let Some(batch) = batches.last_mut() {
            batch.push_str(line);
            batch.push('\n');
        }
    }
    batches.retain(|batch| !batch.trim().is_empty());
    batches
}

/// Runs each line that is typed, and says what it did; a statement that fails is told, and no more.
async fn run_lines(databases: &Databases, name: &str) {
    let mut lines = typed();
    while let Some(line) = lines.recv().await {
        // What ends a batch elsewhere: here each line is one.
        if line.trim().is_empty() || is_go(&line) {
            continue;
        }
        let (databases, name) = (databases.clone(), name.to_owned());
        let ran = spawn_blocking(move || databases.execute(&name, &line)).await;
        say(&match ran {
            Ok(Ok(rows)) => counted(rows, "row"),
            Ok(Err(error)) => told(&error),
            Err(panic) => panic.to_string(),
        });
    }
}

/// Returns the lines of standard input as they come. They are read by a thread that nobody waits for: no
/// signal ends the reading of a line.
fn typed() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn is_go(line: &str) -> bool {
    line.trim().eq_ignore_ascii_case("GO")
}

fn told(error: &SqlError) -> String {
    format!("Msg {}: {}", error.number, error.message)
}

fn tell(connection: &str) {
    #[expect(clippy::print_stdout, reason = "a command's data goes to standard output")]
    {
        println!("{connection}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_divided_where_it_says_go() {
        let text = "CREATE TABLE dbo.a (id int)\nGO\n\n  go  \nINSERT INTO dbo.a\n  VALUES (1)\nGO";
        let expected = ["CREATE TABLE dbo.a (id int)\n", "INSERT INTO dbo.a\n  VALUES (1)\n"];
        let found = batches(text);
        assert_eq!(found.iter().map(|batch| batch.trim_start()).collect::<Vec<_>>(), expected);
    }
}
