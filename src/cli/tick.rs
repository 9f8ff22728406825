//! `highwater tick`: one tick of one poller, now; or what it would deliver.

use clap::Args;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::output::{Exit, Failed, OutputOption, say};
use super::poller;
use super::serve::{Signals, asked_to_stop};
use crate::config::Vars;
use crate::cursor::Cursor;
use crate::event::counted;
use crate::poller::{Peek, StopSignal, TickRequest, outcome_row};
use crate::range::position_text;

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
    let signals = Signals::catch();
    let poller = poller(vars, &options.poller)?;
    let stop = StopSignal::new();
    let request = TickRequest {
        invocation_id: Uuid::new_v4().to_string(),
        traceparent: None,
        stop: stop.child(),
    };
    let stopping = tokio::spawn(asked_to_stop(signals, stop));
    let report = poller.tick(&request).await;
    stopping.abort();
    let outcome = outcome_row(&report.result).outcome;
    let thing = json!({
        "poller": options.poller,
        "outcome": outcome,
        "rows": report.rows,
        "batches": report.batches,
        "duration_ms": u64::try_from(report.duration.as_millis()).unwrap_or(u64::MAX),
        "summary": report.summary,
    });
    say(&options.form.output.one(&thing, || report.summary.clone()));
    report.result.map(|_| Exit::Done).map_err(Failed::from)
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
    let Peek { hindrance, after, rows, more, first, last, events } =
        poller(vars, name)?.peek(options.show).await?;
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
    say(&options.form.output.one(&report, || text(&report)));
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
