//! `highwater tick`: one tick of one poller, now; or what it would deliver.

use clap::Args;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tracing::instrument::WithSubscriber as _;
use uuid::Uuid;

use super::output::{Exit, Failed, OutputOption, say, say_rows};
use super::poller;
use super::warnings::Warnings;
use highwater::admin::{HeldBack, Peek};
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
    /// Read what would be delivered, without a lease, a handler or a write.
    #[arg(long)]
    dry_run: bool,
    /// Print so many of these events.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "dry_run")]
    show: usize,
    #[command(flatten)]
    form: OutputOption,
}

/// Runs one tick, as the host's next call would, and prints how it ended.
pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    if options.dry_run {
        return Box::pin(dry_run(vars, options)).await;
    }
    let (stop, asked) = serve::stop_by_signal(vars);
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
    // A count that fails is no failure of the tick.
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
    say(&options.form.output.one(&thing, || summary.clone()));
    report.result.map(|_| Exit::Done).map_err(|error| {
        let by_signal = asked.get().filter(|_| matches!(error, TickError::Aborted));
        let failed = Failed::from(error);
        Failed { exit: by_signal.copied().unwrap_or(failed.exit), ..failed }
    })
}

/// Returns the summary of a tick that could not deliver any of the rows that are there.
fn waiting(poller: &str, HeldBack { rows, more, settling }: HeldBack) -> String {
    let at_least = if more { "at least " } else { "" };
    let (counted, verb) = (counted(rows, "row"), if rows == 1 { "waits" } else { "wait" });
    if settling {
        return format!(
            "poller `{poller}`: {at_least}{counted} {verb} to settle; ticks after `SOURCE__SETTLE` deliver what \
             is here now"
        );
    }
    let verb = if rows == 1 { "is" } else { "are" };
    format!(
        "poller `{poller}`: {at_least}{counted} {verb} held back by an open transaction, or came after the read; \
         later ticks deliver what is here now"
    )
}

/// What is printed of a tick that is not run.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// How a tick would end before it read anything; `null` where it would deliver.
    hindrance: Option<&'static str>,
    /// Rows that wait.
    rows: u64,
    /// Whether there are more.
    more: bool,
    /// Where the poller stands; `null` for the beginning.
    after: Option<&'a Cursor>,
    first: Option<&'a Cursor>,
    last: Option<&'a Cursor>,
    events: Vec<&'a RawValue>,
}

async fn dry_run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let (poller, warnings) = (poller(vars, name)?, Warnings::default());
    let peeked = poller.admin().peek(options.show).with_subscriber(warnings.subscriber()).await;
    let Peek { hindrance, after, rows, more, first, last, events } = peeked?;
    let events: Result<Vec<&RawValue>, _> =
        events.iter().map(|event| serde_json::from_str(&event.json)).collect();
    let report = Report {
        poller: name,
        hindrance: hindrance.map(|outcome| outcome_row(&Ok(outcome)).outcome),
        rows,
        more,
        after: after.as_ref(),
        first: first.as_ref(),
        last: last.as_ref(),
        events: events.map_err(|error| Failed::new(Exit::Failed, error.to_string()))?,
    };
    say_rows(&options.form.output.one(&report, || text(&report)));
    Ok(Exit::Done)
}

fn text(report: &Report<'_>) -> String {
    let place =
        |cursor: Option<&Cursor>| cursor.map_or_else(|| "the beginning".to_owned(), position_text);
    let Report { poller, rows, after, first, last, .. } = report;
    let at_least = if report.more { "at least " } else { "" };
    let (waiting, wait) = (counted(*rows, "row"), if *rows == 1 { "waits" } else { "wait" });
    let mut lines = vec![format!("{poller}: {at_least}{waiting} {wait} behind {}", place(*after))];
    if let (Some(first), Some(last)) = (first, last) {
        let (first, last) = (position_text(first), position_text(last));
        lines.push(format!("  from {first}\n  to {last}"));
    }
    if let Some(outcome) = report.hindrance {
        lines.push(format!("  a tick would deliver none of them now: it is {outcome}"));
    }
    lines.extend(report.events.iter().map(|event| event.get().to_owned()));
    lines.join("\n")
}
