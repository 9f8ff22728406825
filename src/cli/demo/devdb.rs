//! `highwater devdb`: serves the embedded development server, for a poller or a test.
//!
//! It can create a sample table, and run statements from files or as they are typed, so that you need no client to
//! try a poller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::{UNAVAILABLE, flights, progress::say};
use crate::output::table;
use highwater::event::counted;
use highwater_devdb::{Databases, Options as ServerOptions, Reply, Server, SqlError};

/// File name that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Port and contents of the server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Port on 127.0.0.1; by default, a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Create the table `dbo.flights` with this many rows, up to 27004.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(0..=i64::from(flights::COUNT)))]
    flights: Option<u32>,
    /// Run the statements of this file at the start; with `-`, run each line of standard input. May be repeated.
    #[arg(long, value_name = "FILE")]
    sql: Vec<PathBuf>,
}

/// Serves in-memory databases until a signal arrives.
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
        Databases::with(&listen.database).map_err(|error| format!("create databases: {error}"))?;
    let name = listen.database.clone();
    fill((&databases, &name), &options)?;
    let server = Server::start(databases.clone(), listen).await;
    let server =
        server.map_err(|error| format!("listen on 127.0.0.1:{}: {error}", options.port))?;
    say("A development stand-in, not SQL Server. Stop with Ctrl+C; all data is lost then.");
    print_message(&server.connection_string());
    let statements = async {
        if options.sql.iter().any(|file| is_standard_input(file)) {
            run_lines(&databases, &name).await;
        }
        // The server outlives its statements.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = statements => {}
    }
    Ok(())
}

/// Creates the initial contents, before clients connect.
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
            databases.execute(name, &batch).map_err(|error| at(&error_text(&error)))?;
        }
    }
    Ok(())
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new(STANDARD_INPUT)
}

/// Splits a file at `GO` lines, as clients of SQL Server do.
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

/// Runs each typed line, and prints its rows, and how many it read or wrote, or its error.
async fn run_lines(databases: &Databases, name: &str) {
    let mut lines = typed_lines();
    while let Some(line) = lines.recv().await {
        // Here each line is a batch, so a separator has no meaning.
        if line.trim().is_empty() || is_go(&line) {
            continue;
        }
        let (databases, name) = (databases.clone(), name.to_owned());
        let ran = spawn_blocking(move || databases.query(&name, &line)).await;
        say(&match ran {
            Ok(Ok(replies)) => replies_text(&replies),
            Ok(Err(error)) => error_text(&error),
            Err(panic) => panic.to_string(),
        });
    }
}

/// Returns the rows of the result sets as tables, and the number of all rows.
fn replies_text(replies: &[Reply]) -> String {
    let mut text = String::new();
    for reply in replies {
        if let Reply::Rows { columns, .. } = reply {
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            text.push_str(&table(&names, reply.texts().into_iter()));
            text.push('\n');
        }
    }
    text + &counted(replies.iter().map(Reply::rows).sum(), "row")
}

/// Returns the lines of standard input as they arrive. A detached thread reads them, because a signal does not
/// interrupt the reading of a line.
fn typed_lines() -> mpsc::Receiver<String> {
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

fn error_text(error: &SqlError) -> String {
    format!("Msg {}: {}", error.number, error.message)
}

fn print_message(connection: &str) {
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

    #[test]
    fn a_typed_query_is_answered_with_its_rows() {
        let databases = Databases::with("d").unwrap();
        let text = |sql: &str| replies_text(&databases.query("d", sql).unwrap());
        assert_eq!(
            text("CREATE TABLE dbo.a (id int, name nvarchar(9), at varbinary(2))"),
            "0 rows"
        );
        assert_eq!(text("INSERT INTO dbo.a VALUES (1, N'one', 0x01FF), (2, NULL, 0x)"), "2 rows");
        expect_test::expect![[r#"
            ID  NAME  AT
            1   one   0x01FF
            2   NULL  0x
            2 rows"#]]
        .assert_eq(&text("SELECT * FROM dbo.a"));
    }
}
