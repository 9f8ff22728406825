//! `highwater recover`.

use clap::Args;

use super::output::{Exit, Failed, OutputOption, Record, say, tell};
use highwater::builder::App;
use highwater::config::Vars;
use highwater::recovery::Finding;

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

impl Record for Finding {
    const COLUMNS: &'static [&'static str] = &["poller", "condition", "action", "outcome", "found"];

    fn cells(&self) -> Vec<String> {
        let Self { poller, condition, action, found, outcome } = self;
        let outcome = outcome.to_string();
        vec![poller.clone(), condition.to_string(), action.to_string(), outcome, found.clone()]
    }
}

/// Looks for stuck pollers, and prints findings and repairs.
pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let controller = App::build(vars)?.recovery;
    let report = if options.yes {
        Box::pin(controller.run(true)).await?
    } else {
        Box::pin(controller.look()).await?
    };
    if report.skipped.is_some() {
        return Err(Failed::new(Exit::Conflict, report.summary()));
    }
    say(&options.form.output.list(&report.findings));
    tell(&report.summary());
    Ok(if report.needs_somebody() { Exit::Failed } else { Exit::Done })
}
