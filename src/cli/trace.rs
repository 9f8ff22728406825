//! `highwater trace`: why a row was or was not delivered.

use std::path::Path;

use clap::Args;
use time::{OffsetDateTime, UtcOffset};

use super::from::app_folder;
use super::journal::time_or_ago;
use super::output::{Exit, Failed, OutputOption, print_text};
use super::poller_of;
use highwater::builder::App;
use highwater::config::Vars;
use highwater::explain::{Explanation, TraceRequest};
use highwater::page::trace_lines;
use highwater::printable::printable_line;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// Key of the row: a value, `COLUMN=VALUE` for each column, separated by commas, or a JSON object.
    #[arg(long, value_name = "KEY", required = true)]
    key: Vec<String>,
    /// First day of the journal to search: a time such as `2026-04-07T01:23:45Z`, or how long ago, such as `30d`
    /// [default: the last 7 days, until the row is found].
    #[arg(long, value_name = "TIME", value_parser = time_or_ago)]
    since: Option<OffsetDateTime>,
    #[command(flatten)]
    form: OutputOption,
}

/// Reads state, source and journal, and prints the reason. Whatever it is, the exit code is 0.
pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let app = App::build(vars)?;
    poller_of(&app.pollers, &options.poller)?;
    let board = app.board(vars, &app_folder(settings, vars));
    let since = options.since.map(|since| since.to_offset(UtcOffset::UTC).date());
    let request = TraceRequest { key: options.key.clone(), since };
    let explanation = board.trace(&options.poller, &request).await?;
    print_text(&options.form.output.one(&explanation, || text(&explanation)));
    Ok(Exit::Done)
}

fn text(explanation: &Explanation) -> String {
    let lines = trace_lines(explanation);
    let indented = |(index, line): (usize, &String)| {
        let line = if index == 0 { line.clone() } else { format!("  {line}") };
        printable_line(&line).into_owned()
    };
    lines.iter().enumerate().map(indented).collect::<Vec<_>>().join("\n")
}
