//! `highwater state`: what the state store needs.

use clap::Subcommand;

use super::output::{Exit, Failed, say};
use crate::config::STATE_TABLE_DEFAULT;
use crate::error::chain;
use crate::state::sql;

#[derive(Debug, Subcommand)]
pub(super) enum Options {
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

pub(super) fn run(options: &Options) -> Result<Exit, Failed> {
    let Options::Ddl { table, user } = options;
    let table = sql::table_name(table);
    let table =
        table.map_err(|error| Failed::new(Exit::Usage, format!("`--table`: {}", chain(&error))))?;
    say(&format!("{}\n{}", sql::create_table(&table), sql::grant(&table, user)));
    Ok(Exit::Done)
}
