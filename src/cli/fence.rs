//! `highwater fence` and `highwater ledger`: the tables that the handler `sql` needs beside its target.

use clap::Subcommand;

use super::output::{Exit, Failed, say};
use crate::config::{FENCE_TABLE_DEFAULT, LEDGER_TABLE_DEFAULT};
use crate::error::chain;
use crate::handler::sql;
use crate::mssql::ident::QualifiedName;

#[derive(Debug, Subcommand)]
pub(super) enum Options {
    /// Print the statements that create the table of fences; runs none of them.
    Ddl {
        /// Name of the table, as in the setting `HANDLER__FENCE_TABLE`.
        #[arg(long, value_name = "NAME", default_value = FENCE_TABLE_DEFAULT)]
        table: String,
        /// The database's user that the app connects as.
        #[arg(long, value_name = "NAME", default_value = "highwater")]
        user: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum LedgerOptions {
    /// Print the statements that create the table of applied events; runs none of them.
    Ddl {
        /// Name of the table, as in the setting `HANDLER__LEDGER_TABLE`.
        #[arg(long, value_name = "NAME", default_value = LEDGER_TABLE_DEFAULT)]
        table: String,
        /// The database's user that the app connects as.
        #[arg(long, value_name = "NAME", default_value = "highwater")]
        user: String,
    },
}

pub(super) fn run(options: &Options) -> Result<Exit, Failed> {
    let Options::Ddl { table, user } = options;
    let table = table_name(table)?;
    let grant = sql::grant(&table, &sql::FENCE_RIGHTS, user);
    say(&format!("{}\n{grant}", sql::create_fence(&table)));
    Ok(Exit::Done)
}

pub(super) fn run_ledger(options: &LedgerOptions) -> Result<Exit, Failed> {
    let LedgerOptions::Ddl { table, user } = options;
    let table = table_name(table)?;
    let grant = sql::grant(&table, &sql::LEDGER_RIGHTS, user);
    say(&format!("{}\n{grant}", sql::create_ledger(&table)));
    Ok(Exit::Done)
}

fn table_name(text: &str) -> Result<QualifiedName, Failed> {
    sql::table_name("--table", text).map_err(|error| Failed::new(Exit::Usage, chain(&error)))
}
