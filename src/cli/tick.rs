//! `highwater tick`: runs one tick of one poller, or shows what it would deliver.

use clap::Args;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tracing::instrument::WithSubscriber as _;
use uuid::Uuid;

use super::output::{Exit, Failed, OutputOption, print_rows, print_text};
use super::poller;
use super::warnings::Warnings;
use highwater::admin::{HeldBackRows, Peek};
use highwater::builder::check_handler;
use highwater::config::Vars;
use highwater::cursor::Cursor;
use highwater::event::counted;
use highwater::poller::{TickError, TickOutcome, outcome_row};
use highwater::range::position_text;
use highwater::serve;
use highwater::tick::TickRequest;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// Show what would be delivered, without a lease, a handler call or a write.
    #[arg(long)]
    dry_run: bool,
    /// Print this many of the events.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "dry_run")]
    show: usize,
    #[command(flatten)]
    form: OutputOption,
}

/// Runs one tick, as the host's next call would, and prints its outcome.
pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    if options.dry_run {
        return Box::pin(dry_run(vars, options)).await;
    }
    let (stop, signalled) = serve::stop_by_signal(vars);
    let poller = poller(vars, &options.poller)?;
    check_handler(&poller)?;
    let request = TickRequest {
        invocation_id: Uuid::new_v4().to_string(),
        stop: stop.child(),
        ..TickRequest::default()
    };
    let warnings = Warnings::default();
    let report = poller.tick(&request).with_subscriber(warnings.subscriber()).await;
    let outcome = outcome_row(&report.result).outcome;
    // A failed count does not fail the tick.
    let held_back = match report.result {
        Ok(TickOutcome::Idle) => Box::pin(poller.admin().held_back()).await.ok(),
        _ => None,
    };
    let held_back = held_back.filter(|held_back| held_back.rows > 0);
    let summary = held_back
        .map_or_else(|| report.summary.clone(), |held_back| waiting(&options.poller, held_back));
    let thing = json!({
        "poller": options.poller,
        "outcome": outcome,
        "rows": report.rows,
        "batches": report.batches,
        "duration_ms": u64::try_from(report.duration.as_millis()).unwrap_or(u64::MAX),
        "held_back": held_back.map_or(0, |held_back| held_back.rows),
        "warnings": warnings.texts(),
        "summary": summary,
    });
    print_text(&options.form.output.one(&thing, || summary.clone()));
    report.result.map(|_| Exit::Done).map_err(|error| {
        let by_signal = signalled.get().filter(|_| matches!(error, TickError::Aborted));
        let failed = Failed::from(error);
        Failed { exit: by_signal.copied().unwrap_or(failed.exit), ..failed }
    })
}

/// Returns the summary of a tick that found rows but could not deliver any yet.
fn waiting(poller: &str, HeldBackRows { rows, more, settling }: HeldBackRows) -> String {
    let at_least = if more { "at least " } else { "" };
    let (counted, verb) = (counted(rows, "row"), if rows == 1 { "waits" } else { "wait" });
    if settling {
        return format!(
            "poller `{poller}`: {at_least}{counted} {verb} to settle; ticks after `SOURCE__SETTLE` deliver \
             them"
        );
    }
    let verb = if rows == 1 { "is" } else { "are" };
    format!(
        "poller `{poller}`: {at_least}{counted} {verb} held back by an open transaction, or arrived after the read; \
         later ticks deliver them"
    )
}

/// What a dry run prints.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// Outcome of a tick that would stop before reading; `null` if it would deliver.
    hindrance: Option<&'static str>,
    /// Pending rows.
    rows: u64,
    /// Whether there are more.
    more: bool,
    /// The poller's position; `null` for the beginning.
    after: Option<&'a Cursor>,
    first: Option<&'a Cursor>,
    last: Option<&'a Cursor>,
    events: Vec<&'a RawValue>,
}

async fn dry_run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let (poller, warnings) = (poller(vars, name)?, Warnings::default());
    let peeked = poller.admin().peek(options.show).with_subscriber(warnings.subscriber()).await;
    let Peek { block_reason, after, rows, more, first, last, events } = peeked?;
    let events: Result<Vec<&RawValue>, _> =
        events.iter().map(|event| serde_json::from_str(&event.json)).collect();
    let report = Report {
        poller: name,
        hindrance: block_reason.map(|outcome| outcome_row(&Ok(outcome)).outcome),
        rows,
        more,
        after: after.as_ref(),
        first: first.as_ref(),
        last: last.as_ref(),
        events: events.map_err(|error| Failed::new(Exit::Failed, error.to_string()))?,
    };
    print_rows(&options.form.output.one(&report, || text(&report)));
    Ok(Exit::Done)
}

fn text(report: &Report<'_>) -> String {
    let place =
        |cursor: Option<&Cursor>| cursor.map_or_else(|| "the beginning".to_owned(), position_text);
    let Report { poller, rows, after, first, last, .. } = report;
    let at_least = if report.more { "at least " } else { "" };
    let waiting = counted(*rows, "row");
    let mut lines = vec![format!("{poller}: {at_least}{waiting} pending after {}", place(*after))];
    if let (Some(first), Some(last)) = (first, last) {
        let (first, last) = (position_text(first), position_text(last));
        lines.push(format!("  from {first}\n  to {last}"));
    }
    if let Some(outcome) = report.hindrance {
        lines.push(format!("  a tick would deliver none of them now: {outcome}"));
    }
    lines.extend(report.events.iter().map(|event| event.get().to_owned()));
    lines.join("\n")
}
