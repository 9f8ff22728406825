//! `highwater trace`: why a row was or was not delivered.

use std::path::Path;

use clap::Args;
use time::{OffsetDateTime, UtcOffset};

use super::from::app_folder;
use super::journal::time_or_ago;
use super::output::{Exit, Failed, OutputOption, print_text, time_text};
use super::poller_of;
use highwater::builder::App;
use highwater::config::Vars;
use highwater::explain::{Delivery, Explanation, TraceRequest};
use highwater::printable::printable_line;
use highwater::range::position_text;

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
    let [verdict, next] = explanation.summary();
    let mut lines = vec![verdict, format!("  {next}")];
    for reason in &explanation.also {
        lines.push(format!("  also: {}; {}", reason.cause, reason.next));
    }
    let row = &explanation.row;
    let place = row.position.as_ref().map(position_text);
    let place = place.unwrap_or_else(|| "position unknown".to_owned());
    lines.push(match (row.exists, row.is_deleted) {
        (true, false) => format!("  row: {place}"),
        (_, true) => format!("  row: {place}, deleted"),
        (false, false) => "  row: none".to_owned(),
    });
    let checkpoint = explanation.checkpoint.as_ref().map(position_text);
    let checkpoint = checkpoint.unwrap_or_else(|| "the beginning".to_owned());
    let moved = explanation.checkpoint_at.map(|at| format!(", since {}", time_text(at)));
    lines.push(format!("  checkpoint: {checkpoint}{}", moved.unwrap_or_default()));
    lines.extend(row.bound.as_ref().map(|bound| format!("  rows are readable below `{bound}`")));
    for predicate in &row.predicates {
        let holds = if predicate.holds { "holds" } else { "does not hold" };
        lines.push(format!("  filter: `{}` {holds}", predicate.text));
    }
    for session in &row.sessions {
        let name = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        lines.push(format!(
            "  open transaction: session {}, login {}, host {}, program {}, first wrote {} s ago",
            session.id,
            name(&session.login),
            name(&session.host),
            name(&session.program),
            session.seconds
        ));
    }
    lines.extend(explanation.deliveries.iter().map(delivery));
    lines
        .extend(explanation.journal_from.map(|from| format!("  journal: searched from {from} on")));
    lines.iter().map(|line| printable_line(line)).collect::<Vec<_>>().join("\n")
}

fn delivery(delivery: &Delivery) -> String {
    let Delivery { at, event, batch_id, token, rows, reply, version, .. } = delivery;
    let batch = batch_id.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
    let rows = rows.map(|rows| format!(", {rows} rows")).unwrap_or_default();
    let which = match (delivery.is_current, delivery.is_certain) {
        (true, true) => String::new(),
        (true, false) => " (probably)".to_owned(),
        (false, _) => format!(" (earlier version `{version}`)"),
    };
    format!("  {} {event}{batch}, token {token}{rows}: {reply}{which}", time_text(*at))
}
