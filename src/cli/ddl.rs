//! `highwater ddl`: the statements that create Highwater's own tables.
//!
//! The program never creates a table, so its database user needs no permission to.

use clap::{Args, ValueEnum};

use super::output::{Exit, Failed, print_text};
use highwater::config::{
    FENCE_TABLE_DEFAULT, JOURNAL_TABLE_DEFAULT, LEDGER_TABLE_DEFAULT, STATE_TABLE_DEFAULT,
};
use highwater::error::chain;
use highwater::handler::sql as handler;
use highwater::journal::sql as journal;
use highwater::state::sql as state;

/// A table of Highwater in a database.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Table {
    /// State documents, for the state store `sql` (by default `dbo.highwater_state`).
    State,
    /// Journals, for the state store `sql` (by default `dbo.highwater_journal`).
    Journal,
    /// Grants, with which the handler `sql` rejects stale owners (by default `dbo.highwater_fence`).
    Fence,
    /// Applied events, with which the handler `sql` skips duplicates (by default `dbo.highwater_ledger`).
    Ledger,
}

#[derive(Debug, Args)]
pub(super) struct Options {
    /// The table to print.
    #[arg(value_name = "WHAT")]
    what: Table,
    /// Name of the table, as in its setting.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// The database user that the app connects as.
    #[arg(long, value_name = "NAME", default_value = "highwater")]
    user: String,
}

pub(super) fn run(options: &Options) -> Result<Exit, Failed> {
    let default = match options.what {
        Table::State => STATE_TABLE_DEFAULT,
        Table::Journal => JOURNAL_TABLE_DEFAULT,
        Table::Fence => FENCE_TABLE_DEFAULT,
        Table::Ledger => LEDGER_TABLE_DEFAULT,
    };
    let name = options.table.as_deref().unwrap_or(default);
    let table = handler::table_name("--table", name)
        .map_err(|error| Failed::new(Exit::Usage, chain(&error)))?;
    let user = &options.user;
    let (create, grant) = match options.what {
        Table::State => (state::create_table(&table), state::grant(&table, user)),
        Table::Journal => (journal::create_table(&table), journal::grant(&table, user)),
        Table::Fence => {
            (handler::create_fence(&table), handler::grant(&table, &handler::FENCE_RIGHTS, user))
        }
        Table::Ledger => {
            (handler::create_ledger(&table), handler::grant(&table, &handler::LEDGER_RIGHTS, user))
        }
    };
    print_text(&format!("{create}\n{grant}"));
    Ok(Exit::Done)
}
