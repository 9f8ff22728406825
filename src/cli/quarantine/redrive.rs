//! `highwater quarantine redrive`: redelivers quarantined rows.

mod plan;
mod progress;

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use self::progress::Progress;
use super::filter::Selection;
use crate::output::{Exit, Failed, OutputOption, Record, print_message, print_text, time_text};
use crate::poller;
use highwater::admin::{Redrive, RedriveEnd, RedriveError, RedriveOutcome};
use highwater::config::{Vars, parse_duration};
use highwater::cursor::KeyId;
use highwater::error::chain;
use highwater::event::EventId;
use highwater::poller::Poller;
use highwater::serve;

/// Interval at which a held lease is polled.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);

// Clap's default would print the choice before the name.
#[derive(Debug, Args)]
#[command(
    override_usage = "highwater quarantine redrive [OPTIONS] <POLLER> <KEY_ID...|--all|FILTERS>"
)]
pub(crate) struct Options {
    /// Name of the poller.
    poller: String,
    #[command(flatten)]
    selection: Selection,
    /// Deliver the stored events, which may overwrite newer data in the target.
    #[arg(long)]
    as_stored: bool,
    /// Remove entries whose row no longer exists.
    #[arg(long, conflicts_with = "as_stored")]
    drop_gone: bool,
    /// Redrive at most this many rows per second. No tick runs meanwhile.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Print the rows that would be redriven, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// How long to wait, such as `5m`, while a tick holds the lease.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0")]
    wait: Duration,
    #[command(flatten)]
    form: OutputOption,
}

/// What is printed for each entry.
#[derive(Serialize)]
struct Line {
    key_id: KeyId,
    outcome: &'static str,
    /// The delivered event, which differs if the row has changed since.
    delivered_as: Option<EventId>,
    attempts: Option<u32>,
    error: Option<String>,
}

impl Line {
    fn of(key_id: &KeyId, redriven: RedriveOutcome) -> Self {
        let (outcome, delivered_as, attempts, error) = match redriven {
            RedriveOutcome::Delivered { event, stays: None } => {
                ("delivered", Some(event), None, None)
            }
            RedriveOutcome::Delivered { event, stays } => {
                let why =
                    stays.map(|why| format!("accepted, but the entry could not be removed: {why}"));
                ("delivered, not removed", Some(event), None, why)
            }
            RedriveOutcome::RowDeleted { removed: true } => ("row gone, removed", None, None, None),
            RedriveOutcome::RowDeleted { removed: false } => {
                let why = "the row no longer exists, or the poller no longer delivers it; `--drop-gone` removes such entries";
                ("row gone", None, None, Some(why.to_owned()))
            }
            RedriveOutcome::Refused { attempts, error } => {
                ("refused", None, Some(attempts), Some(error))
            }
            RedriveOutcome::NotAttempted { error } => ("not tried", None, None, Some(error)),
            RedriveOutcome::Unreadable(error) => ("unreadable", None, None, Some(chain(&error))),
            RedriveOutcome::Missing => ("not there any more", None, None, None),
        };
        Self { key_id: key_id.clone(), outcome, delivered_as, attempts, error }
    }

    /// Exit code for the outcome.
    fn exit(&self) -> Exit {
        match self.outcome {
            "delivered" | "row gone, removed" | "not there any more" => Exit::Done,
            "refused" => Exit::NotAccepted,
            _ => Exit::Failed,
        }
    }
}

impl Record for Line {
    const COLUMNS: &'static [&'static str] = &["key id", "outcome", "attempts", "error"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.key_id.to_string(),
            self.outcome.to_owned(),
            self.attempts.map(|attempts| attempts.to_string()).unwrap_or_default(),
            self.error.clone().unwrap_or_default(),
        ]
    }
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    if options.dry_run {
        return plan::print(&poller, options).await;
    }
    let keys = options.selection.keys(&poller).await?;
    if keys.is_empty() {
        let name = poller.name();
        print_message(&format!(
            "no parked key of poller `{name}` matches, so nothing is redelivered; `highwater quarantine list {name}` \
             lists all"
        ));
        print_text(&options.form.output.list::<Line>(&[]));
        return Ok(Exit::Done);
    }
    let id = format!("replay-{}", Uuid::new_v4().simple());
    let (stop, signalled) = serve::stop_by_signal(vars);
    let redrive = Redrive {
        id: &id,
        keys: &keys,
        as_stored: options.as_stored,
        drop_gone: options.drop_gone,
        interval: options.rate.map(|rate| Duration::from_secs(1) / rate).unwrap_or_default(),
        stop,
    };
    let mut lines = Vec::new();
    let mut progress = Progress::of(keys.len());
    let mut record = |line: Line| {
        progress.add(line.outcome);
        lines.push(line);
    };
    let ended = when_free(&poller, &redrive, options.wait, &mut record).await;
    progress.end();
    print_text(&options.form.output.list(&lines));
    let left = keys.len() - lines.len();
    let stopped = |exit| Err(Failed::new(exit, format!("stopped; {left} entries were not tried")));
    match (ended, signalled.get()) {
        (Ok(RedriveEnd::Done), _) => Ok(worst(&lines)),
        (Ok(RedriveEnd::Stopped), exit) => stopped(exit.copied().unwrap_or(Exit::Failed)),
        (Err(RedriveError::Held { .. }), Some(exit)) => stopped(*exit),
        (Ok(RedriveEnd::TargetAtFault(error)), _) => {
            let text = format!(
                "the target rejects everything, so {left} entries were not tried: {}",
                chain(&error)
            );
            Err(Failed::new(Exit::NotAccepted, text))
        }
        (Err(error), _) => Err(failed(error)),
    }
}

/// Redrives once the lease is free; gives up after `wait`.
async fn when_free(
    poller: &Poller,
    redrive: &Redrive<'_>,
    wait: Duration,
    record: &mut (dyn FnMut(Line) + Send),
) -> Result<RedriveEnd, RedriveError> {
    let until = Instant::now() + wait;
    let mut announced = false;
    loop {
        let mut report = |key: &KeyId, redriven| record(Line::of(key, redriven));
        let ended = poller.admin().redrive(redrive, &mut report).await;
        let Err(RedriveError::Held { owner_id, .. }) = &ended else { return ended };
        if Instant::now() >= until || redrive.stop.is_set() {
            return ended;
        }
        if !announced {
            print_message(&format!("waiting for `{owner_id}`, which holds the lease"));
            announced = true;
        }
        sleep(WAIT_INTERVAL.min(until - Instant::now())).await;
    }
}

fn worst(lines: &[Line]) -> Exit {
    let exits: Vec<Exit> = lines.iter().map(Line::exit).collect();
    let has = |exit| exits.contains(&exit);
    match (has(Exit::NotAccepted), has(Exit::Failed)) {
        (true, _) => Exit::NotAccepted,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Done,
    }
}

fn failed(error: RedriveError) -> Failed {
    match error {
        RedriveError::Held { owner_id, until } => {
            let until = until.map(|at| format!(" until {}, unless it renews it", time_text(at)));
            let text = format!(
                "`{owner_id}` holds the lease{}; `--wait 5m` waits for it",
                until.unwrap_or_default()
            );
            Failed::new(Exit::Conflict, text)
        }
        RedriveError::Tick(error) => error.into(),
    }
}
