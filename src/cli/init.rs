//! `highwater init`: creates a poller's state, or scaffolds a project for a table.

mod columns;
mod deployment;
mod folder;
mod receiver;

use std::path::PathBuf;

use serde::Serialize;

use super::output::{Exit, Failed, OutputOption, print_text};
use super::parts;
use highwater::admin::InitResult;
use highwater::config::Vars;
use highwater::cursor::Cursor;
use highwater::poller::Poller;

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Name of the poller; with several tables, one for each, or none to name them after the tables.
    #[arg(value_name = "POLLER", required_unless_present = "table")]
    pollers: Vec<String>,
    /// Scaffold a project for this table, which is examined in the database; may be repeated.
    #[arg(long, value_name = "NAME", requires = "out")]
    table: Vec<String>,
    /// The project's folder; created if missing, and nothing in it is overwritten.
    #[arg(long, value_name = "DIR", requires = "table")]
    out: Option<PathBuf>,
    /// Name of the setting that has the connection string of the database.
    #[arg(long, value_name = "NAME", default_value = "SqlConnection", requires = "table")]
    connection: String,
    /// Columns that identify a row, separated by commas; by default, the primary key.
    #[arg(long, value_name = "COLUMNS", requires = "table")]
    key: Option<String>,
    /// Cursor column; by default, the best one of the table.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    cursor: Option<String>,
    /// Write a project that receives the deliveries, too; `http` sets the address of your own endpoint.
    #[arg(long, value_name = "LANGUAGE", requires = "table")]
    handler: Option<receiver::Language>,
    /// Address of your own endpoint; by default, `http://127.0.0.1:7072/api/POLLER`.
    #[arg(long, value_name = "URL", requires = "handler")]
    url: Option<String>,
    #[command(flatten)]
    form: OutputOption,
}

/// What is printed for each started poller or partition.
#[derive(Serialize)]
struct Started {
    poller: String,
    /// Rows after it will be delivered; `null` for all.
    after: Option<Cursor>,
}

impl Started {
    fn text(&self) -> String {
        let Self { poller, after } = self;
        match after {
            Some(cursor) => format!("{poller}: starts after {} `{}`", cursor.mode, cursor.value),
            None => format!("{poller}: starts at the beginning"),
        }
    }
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    if let Some(out) = &options.out {
        return Box::pin(folder::run(vars, options, out)).await;
    }
    let [poller] = &options.pollers[..] else {
        return Err(Failed::new(Exit::Usage, "without `--table`, name one poller"));
    };
    let parts = parts(vars, poller)?;
    let is_whole = parts.len() == 1;
    // A partition that already has a state must not block the others.
    let (mut started, mut end) = (Vec::new(), Ok(Exit::Done));
    for poller in parts {
        match start(&poller).await {
            Ok(one) => started.push(one),
            Err(failed) => end = Err(failed),
        }
    }
    print_text(&options.form.output.parts(&started, is_whole, Started::text));
    end
}

async fn start(poller: &Poller) -> Result<Started, Failed> {
    let name = poller.name();
    match poller.admin().init().await? {
        InitResult::Started { after } => Ok(Started { poller: name.to_owned(), after }),
        InitResult::StartedBefore => {
            let text = format!("poller `{name}` already has a state; nothing was changed");
            Err(Failed::new(Exit::Failed, text))
        }
    }
}
