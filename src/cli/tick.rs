//! `highwater tick`: one tick of one poller, now.

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use super::output::{Exit, Failed, OutputOption, say};
use super::poller;
use super::serve::{Signals, asked_to_stop};
use crate::config::Vars;
use crate::poller::{StopSignal, TickRequest, outcome_row};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    #[command(flatten)]
    form: OutputOption,
}

/// Runs one tick, as the host's next call would, and prints how it ended.
pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
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
