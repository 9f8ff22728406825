//! `highwater init`: the explicit first start of a poller, or a working folder for a table.

mod folder;

use std::path::PathBuf;

use super::output::{Exit, Failed, say};
use super::parts;
use crate::config::Vars;
use crate::poller::{Init, Poller};

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// Write a folder to run this table from, after a look at it in the database.
    #[arg(long, value_name = "NAME", requires = "out")]
    table: Option<String>,
    /// The folder; made if missing, and nothing in it is overwritten.
    #[arg(long, value_name = "DIR", requires = "table")]
    out: Option<PathBuf>,
    /// Name of the setting that has the connection string of the database.
    #[arg(long, value_name = "NAME", default_value = "SqlConnection", requires = "table")]
    connection: String,
    /// Columns that identify a row, with commas; the primary key if not given.
    #[arg(long, value_name = "COLUMNS", requires = "table")]
    key: Option<String>,
    /// Column to go by; the best that the table has if not given.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    cursor: Option<String>,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    if let (Some(table), Some(out)) = (&options.table, &options.out) {
        return Box::pin(folder::run(vars, options, (table, out))).await;
    }
    // One that has a state must not keep the others from theirs.
    let mut end = Ok(Exit::Done);
    for poller in parts(vars, &options.poller)? {
        end = init_one(&poller).await.and(end);
    }
    end
}

async fn init_one(poller: &Poller) -> Result<Exit, Failed> {
    let name = poller.name();
    match poller.init().await? {
        Init::Started { after: Some(cursor) } => {
            say(&format!("{name}: starts behind {} `{}`", cursor.mode, cursor.value));
            Ok(Exit::Done)
        }
        Init::Started { after: None } => {
            say(&format!("{name}: starts at the beginning"));
            Ok(Exit::Done)
        }
        Init::StartedBefore => {
            let text = format!("poller `{name}` has a state; it stays as it is");
            Err(Failed::new(Exit::Failed, text))
        }
    }
}
