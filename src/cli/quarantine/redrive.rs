//! `highwater quarantine redrive`: delivers again what was set aside.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Selection;
use crate::output::{Exit, Failed, OutputOption, Record, say, tell, time_text};
use crate::poller;
use highwater::admin::{Redrive, RedriveEnd, RedriveError, RedriveOutcome};
use highwater::config::{Vars, parse_duration};
use highwater::error::chain;
use highwater::event::EventId;
use highwater::poller::Poller;
use highwater::serve;

/// How often a lease that is held is looked at again.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);

// As clap would write it, the choice stands before the name.
#[derive(Debug, Args)]
#[command(override_usage = "highwater quarantine redrive [OPTIONS] <POLLER> <EVENT_ID...|--all>")]
pub(crate) struct Options {
    /// Name of the poller.
    poller: String,
    #[command(flatten)]
    selection: Selection,
    /// Deliver the events as they were stored, which may undo what the target has got since.
    #[arg(long)]
    as_stored: bool,
    /// Remove entries whose row is gone.
    #[arg(long, conflicts_with = "as_stored")]
    drop_gone: bool,
    /// Wait so long, such as `5m`, while a tick holds the lease.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0")]
    wait: Duration,
    #[command(flatten)]
    form: OutputOption,
}

/// What is printed of one entry.
#[derive(Serialize)]
struct Line {
    event_id: EventId,
    outcome: &'static str,
    /// The event that was delivered: another one where the row has changed since.
    delivered_as: Option<EventId>,
    attempts: Option<u32>,
    error: Option<String>,
}

impl Line {
    fn of(event_id: &EventId, redriven: RedriveOutcome) -> Self {
        let (outcome, delivered_as, attempts, error) = match redriven {
            RedriveOutcome::Delivered { event, stays: None } => {
                ("delivered", Some(event), None, None)
            }
            RedriveOutcome::Delivered { event, stays } => {
                let why =
                    stays.map(|why| format!("taken, but the entry could not be removed: {why}"));
                ("delivered, not removed", Some(event), None, why)
            }
            RedriveOutcome::RowDeleted { removed: true } => ("row gone, removed", None, None, None),
            RedriveOutcome::RowDeleted { removed: false } => {
                let why = "no row has the key any more; `--drop-gone` removes such entries";
                ("row gone", None, None, Some(why.to_owned()))
            }
            RedriveOutcome::Refused { attempts, error } => {
                ("refused", None, Some(attempts), Some(error))
            }
            RedriveOutcome::NotAttempted { error } => ("not tried", None, None, Some(error)),
            RedriveOutcome::Unreadable(error) => ("unreadable", None, None, Some(chain(&error))),
            RedriveOutcome::Missing => ("not there any more", None, None, None),
        };
        Self { event_id: event_id.clone(), outcome, delivered_as, attempts, error }
    }

    /// What the outcome means for the exit code.
    fn exit(&self) -> Exit {
        match self.outcome {
            "delivered" | "row gone, removed" | "not there any more" => Exit::Done,
            "refused" => Exit::NotTaken,
            _ => Exit::Failed,
        }
    }
}

impl Record for Line {
    const COLUMNS: &'static [&'static str] = &["event id", "outcome", "attempts", "error"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.event_id.to_string(),
            self.outcome.to_owned(),
            self.attempts.map(|attempts| attempts.to_string()).unwrap_or_default(),
            self.error.clone().unwrap_or_default(),
        ]
    }
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let poller = poller(vars, &options.poller)?;
    let events = options.selection.events(&poller).await?;
    let id = format!("replay-{}", Uuid::new_v4().simple());
    let (stop, asked) = serve::stop_by_signal(vars);
    let redrive = Redrive {
        id: &id,
        events: &events,
        as_stored: options.as_stored,
        drop_gone: options.drop_gone,
        stop,
    };
    let mut lines = Vec::new();
    let ended = when_free(&poller, &redrive, options.wait, &mut lines).await;
    say(&options.form.output.list(&lines));
    let left = events.len() - lines.len();
    let stopped =
        |exit| Err(Failed::new(exit, format!("stopped; {left} entries were not looked at")));
    match (ended, asked.get()) {
        (Ok(RedriveEnd::Done), _) => Ok(worst(&lines)),
        (Ok(RedriveEnd::Stopped), asked) => stopped(asked.copied().unwrap_or(Exit::Failed)),
        (Err(RedriveError::Held { .. }), Some(asked)) => stopped(*asked),
        (Ok(RedriveEnd::TargetAtFault(error)), _) => {
            let text = format!(
                "the target takes nothing now, so {left} entries were not looked at: {}",
                chain(&error)
            );
            Err(Failed::new(Exit::NotTaken, text))
        }
        (Err(error), _) => Err(failed(error)),
    }
}

/// Redrives as soon as the lease is free, for so long as `wait` says.
async fn when_free(
    poller: &Poller,
    redrive: &Redrive<'_>,
    wait: Duration,
    lines: &mut Vec<Line>,
) -> Result<RedriveEnd, RedriveError> {
    let until = Instant::now() + wait;
    let mut told = false;
    loop {
        let mut tell_of = |event: &EventId, redriven| lines.push(Line::of(event, redriven));
        let ended = poller.admin().redrive(redrive, &mut tell_of).await;
        let Err(RedriveError::Held { owner_id, .. }) = &ended else { return ended };
        if Instant::now() >= until || redrive.stop.is_set() {
            return ended;
        }
        if !told {
            tell(&format!("waiting for `{owner_id}`, which holds the lease"));
            told = true;
        }
        sleep(WAIT_INTERVAL.min(until - Instant::now())).await;
    }
}

fn worst(lines: &[Line]) -> Exit {
    let exits: Vec<Exit> = lines.iter().map(Line::exit).collect();
    let has = |exit| exits.contains(&exit);
    match (has(Exit::NotTaken), has(Exit::Failed)) {
        (true, _) => Exit::NotTaken,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Done,
    }
}

fn failed(error: RedriveError) -> Failed {
    match error {
        RedriveError::Held { owner_id, until } => {
            let until = until.map(|at| format!(" until {}, unless it goes on", time_text(at)));
            let text = format!(
                "`{owner_id}` holds the lease{}; `--wait 5m` waits for it",
                until.unwrap_or_default()
            );
            Failed::new(Exit::Conflict, text)
        }
        RedriveError::Tick(error) => error.into(),
    }
}
