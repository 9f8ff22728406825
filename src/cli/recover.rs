//! `highwater recover`.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::from::app_folder;
use super::output::{Exit, Failed, OutputOption, Record, print_message, print_text};
use highwater::builder::App;
use highwater::config::Vars;
use highwater::recovery::Finding;
use highwater::status::health::PollerState;
use highwater::status::{Status, StatusQuery};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Repair what is safe to repair; without it, nothing is written.
    #[arg(long)]
    yes: bool,
    /// Only print what would be done; the default without `--yes`.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    #[command(flatten)]
    form: OutputOption,
}

/// A finding with the state of its poller.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    finding: Finding,
    /// The state after the run, as `status` shows it; `None` if the poller has none.
    state: Option<PollerState>,
}

impl Record for Row {
    const COLUMNS: &'static [&'static str] =
        &["poller", "state", "condition", "action", "outcome", "found"];

    fn cells(&self) -> Vec<String> {
        let Finding { poller, condition, action, found, outcome } = &self.finding;
        let state = self.state.map_or("-", PollerState::as_str).to_owned();
        let (condition, action) = (condition.to_string(), action.to_string());
        vec![poller.clone(), state, condition, action, outcome.to_string(), found.clone()]
    }
}

/// Returns the line for a poller that needs attention although the controller found nothing; `None` for any other.
fn unfound(status: &Status, rows: &[Row]) -> Option<String> {
    let is_found = rows.iter().any(|row| row.finding.poller == status.poller);
    if is_found || !status.needs_attention() {
        return None;
    }
    let state = status.health.state.as_str();
    let cause = status.health.cause.as_deref().map_or(String::new(), |cause| format!(": {cause}"));
    Some(format!("{}: {state}{cause}", status.poller))
}

/// Looks for pollers that cannot continue, and prints what was found and done, with the state of each poller.
pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let app = App::build(vars)?;
    let root = app_folder(settings, vars);
    let (board, controller) = (app.board(vars, &root), app.recovery);
    let report = if options.yes {
        Box::pin(controller.run(true)).await?
    } else {
        Box::pin(controller.look()).await?
    };
    if report.skipped.is_some() {
        return Err(Failed::new(Exit::Conflict, report.summary()));
    }
    let pollers = board.read(StatusQuery::All).await?.pollers;
    let state = |name: &str| {
        let status = pollers.iter().find(|status| status.poller == name);
        status.map(|status| status.health.state)
    };
    let rows = report.findings.iter().cloned();
    let rows: Vec<Row> =
        rows.map(|finding| Row { state: state(&finding.poller), finding }).collect();
    print_text(&options.form.output.list(&rows));
    for line in pollers.iter().filter_map(|status| unfound(status, &rows)) {
        print_message(&line);
    }
    print_message(&report.summary());
    Ok(if report.needs_operator() { Exit::Failed } else { Exit::Done })
}
