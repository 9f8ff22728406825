//! `highwater reset`: a checkpoint that is put elsewhere.
//!
//! It prints what that means, with rows counted in the source, and does nothing without a yes; a way that
//! skips rows needs a word of its own. The plan is of one version of what is stored: where that was written
//! since, or somebody holds the lease, nothing is done.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Serialize;
use uuid::Uuid;

use super::confirm::{Asked, confirm};
use super::output::{Exit, Failed, OutputOption, say, tell};
use super::restore::SEEN_LATER;
use super::{poller_to_restore, restore};
use crate::config::Vars;
use crate::cursor::Cursor;
use crate::error::chain;
use crate::event::counted;
use crate::poller::{Counted, Operator, Poller, ResetError, ResetPlan, ResetTo, Weight};
use crate::range::position_text;
use crate::state::StateDocument;

/// Digits of the id that tells rows of this reset from those that were delivered before.
const ID_CHARS: usize = 12;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// Where its checkpoint goes.
    to: To,
    /// The position, or the file; a position is written as state documents and logs have it, or as its
    /// leading part, such as a time.
    #[arg(value_name = "CURSOR|FILE", allow_negative_numbers = true)]
    at: Option<String>,
    /// Agree that the rows on the way are never delivered.
    #[arg(long)]
    skip_rows: bool,
    /// Accept that the settings name another source than the state document.
    #[arg(long)]
    new_source: bool,
    /// Print the plan, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum To {
    /// Before the first row: all that the source has comes again.
    #[value(name = "to-beginning")]
    Beginning,
    /// Behind all that the source has now: what waits is skipped.
    #[value(name = "to-now")]
    Now,
    /// To a position.
    #[value(name = "to-cursor")]
    Cursor,
    /// To where a copy of the document stands, as `state export` or an earlier reset has kept it.
    #[value(name = "to-checkpoint")]
    Checkpoint,
    /// Keep the position, and accept the source as it is now; needs `--new-source`.
    #[value(name = "keep")]
    Keep,
}

/// What is printed.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    /// Whether the checkpoint was moved, or another source accepted.
    changed: bool,
    /// How the source differs from the one that was read so far.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    source_changes: &'a [String],
    /// `null` for the beginning, and where nothing is stored.
    from: Option<&'a Cursor>,
    /// `null` for the beginning.
    to: Option<&'a Cursor>,
    /// `null` where it cannot be told.
    rows_again: Option<u64>,
    rows_skipped: Option<u64>,
    /// Whether there may be more rows than were counted.
    more: bool,
    generation: Option<u64>,
    fencing_token: Option<u64>,
    /// Where what was there is kept.
    saved: Option<String>,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let poller = poller_to_restore(vars, name)?;
    let copy = match (options.to, &options.at) {
        (To::Checkpoint, Some(file)) => Some(restore::read(name, Path::new(file))?),
        _ => None,
    };
    let to = target(options, copy.as_ref())?;
    let plan = Box::pin(poller.plan_reset(to, options.new_source)).await.map_err(failed)?;
    let text = plan_text(name, &plan);
    if options.dry_run {
        let report = report(name, &plan);
        say(&options.form.output.one(&report, || text));
        return Ok(Exit::Done);
    }
    if !plan.changes() {
        let report = report(name, &plan);
        let text = if plan.keeps { "the source has not changed" } else { "stands there already" };
        say(&options.form.output.one(&report, || format!("{name}: {text}")));
        return Ok(Exit::Done);
    }
    let reason = options.asked.reason().inspect_err(|_| tell(&text))?;
    refuse_skip(name, &text, &plan.weight, options.skip_rows)?;
    if !confirm(&text, name, options.asked.yes)? {
        return Ok(Exit::Done);
    }
    Box::pin(reset(&poller, &plan, vars, options, reason)).await
}

fn target<'a>(
    options: &'a Options,
    copy: Option<&'a StateDocument>,
) -> Result<ResetTo<'a>, Failed> {
    let usage = |text: &str| Failed::new(Exit::Usage, text);
    match (options.to, options.at.as_deref(), copy) {
        (To::Beginning, None, _) => Ok(ResetTo::Beginning),
        (To::Now, None, _) => Ok(ResetTo::Now),
        (To::Cursor, Some(text), _) => Ok(ResetTo::Cursor(text)),
        (To::Checkpoint, Some(_), Some(copy)) => Ok(ResetTo::Document(copy)),
        (To::Keep, None, _) if options.new_source => Ok(ResetTo::Keep),
        (To::Keep, None, _) => {
            Err(usage("`keep` does nothing but accept a changed source: add `--new-source`"))
        }
        (To::Beginning | To::Now | To::Keep, Some(_), _) => Err(usage(
            "`to-beginning`, `to-now` and `keep` take no position: `to-cursor CURSOR` does",
        )),
        (To::Cursor, None, _) => Err(usage("to which position? `to-cursor CURSOR`")),
        (To::Checkpoint, ..) => Err(usage("to which copy? `to-checkpoint FILE`")),
    }
}

async fn reset(
    poller: &Poller,
    plan: &ResetPlan,
    vars: &dyn Vars,
    options: &Options,
    reason: &str,
) -> Result<Exit, Failed> {
    let name = poller.name();
    let id: String = Uuid::new_v4().simple().to_string().chars().take(ID_CHARS).collect();
    let by = options.asked.by(vars);
    let operator = Operator { by: &by, reason };
    let done =
        poller.reset(plan, format!("reset-{id}"), operator).await.map_err(restore::failed)?;
    let report = Report {
        changed: true,
        generation: Some(done.document.generation.0),
        fencing_token: Some(done.document.lease.fencing_token.0),
        saved: done.saved.map(|key| key.to_string()),
        ..report(name, plan)
    };
    say(&options.form.output.one(&report, || {
        if plan.keeps {
            let saved =
                report.saved.as_ref().map(|key| format!(" Previous state saved as `{key}`."));
            return format!(
                "{name}: Accepted the source. Ticks continue after {}.{}\n  {SEEN_LATER}",
                place(report.to),
                saved.unwrap_or_default()
            );
        }
        let saved = report.saved.as_ref().map(|key| format!("; what was there is kept as `{key}`"));
        format!(
            "{name}: ticks go on behind {}{}\n  {SEEN_LATER}",
            place(report.to),
            saved.unwrap_or_default()
        )
    }));
    Ok(Exit::Done)
}

/// Refuses to go on where rows would be skipped and nobody has agreed to it.
///
/// # Errors
///
/// [`Exit::Usage`]; `plan` is told before.
pub(super) fn refuse_skip(
    name: &str,
    plan: &str,
    weight: &Weight,
    agreed: bool,
) -> Result<(), Failed> {
    if agreed || !weight.skips() {
        return Ok(());
    }
    tell(plan);
    let text = format!(
        "{name}: nothing was done: rows would be skipped, and `{name}` would never deliver them; add \
         `--skip-rows` if that is meant"
    );
    Err(Failed::new(Exit::Usage, text))
}

fn report<'a>(poller: &'a str, plan: &'a ResetPlan) -> Report<'a> {
    let rows = |counted: &Counted| match counted {
        Counted::Rows(size) => Some(size.rows),
        Counted::Unknown(_) => None,
    };
    let Weight { again, skipped, .. } = &plan.weight;
    let more = |counted: &Counted| matches!(counted, Counted::Rows(size) if size.more);
    Report {
        poller,
        changed: false,
        source_changes: &plan.source_changes,
        from: plan.from.as_ref(),
        to: plan.to.as_ref(),
        rows_again: rows(again),
        rows_skipped: rows(skipped),
        more: more(again) || more(skipped),
        generation: None,
        fencing_token: None,
        saved: None,
    }
}

fn place(cursor: Option<&Cursor>) -> String {
    cursor.map_or_else(|| "the beginning".to_owned(), position_text)
}

/// Returns what will be done, and what it means.
fn plan_text(name: &str, plan: &ResetPlan) -> String {
    let from = match &plan.present.document {
        Err(error) => format!("a document that cannot be read: {}", chain(error)),
        Ok(None) => "no document".to_owned(),
        Ok(Some(_)) if plan.other_source && !plan.keeps => {
            format!("{}, a position of another source", place(plan.from.as_ref()))
        }
        Ok(Some(_)) => place(plan.from.as_ref()),
    };
    let mut lines = Vec::new();
    if plan.keeps {
        lines.push(format!("{name}: keeps its position {from}"));
    } else {
        lines.push(format!("{name}: from {from}"));
        lines.push(format!("  to {}", place(plan.to.as_ref())));
    }
    lines.extend(plan.source_changes.iter().map(|change| format!("  source: {change}")));
    if !plan.keeps {
        lines.extend(weight_lines(&plan.weight, plan.to.as_ref()));
    }
    if let Some(by) = plan.paused_by() {
        lines
            .push(format!("  it is paused by {by}: no tick runs before `highwater resume {name}`"));
    }
    let kept = "  Rows that the source has up to this position are not delivered. The lease gets a new generation and \
                token; the in-flight batch, quarantined rows and counts stay. The previous state is saved.";
    let end = "  under a new generation and token: a target does not take rows that come again for known; a batch \
               in hand is forgotten, rows that were set aside stay so; what is stored now is kept beside it";
    lines.push(if plan.keeps { kept } else { end }.to_owned());
    lines.join("\n")
}

/// Returns what it means for rows that the checkpoint moves to `to`.
pub(super) fn weight_lines(weight: &Weight, to: Option<&Cursor>) -> [String; 2] {
    let rows = |size: &Counted| match size {
        Counted::Rows(size) if size.more => format!("at least {}", counted(size.rows, "row")),
        Counted::Rows(size) => counted(size.rows, "row"),
        Counted::Unknown(reason) => format!("rows that could not be counted ({reason})"),
    };
    let skipped = if to.is_none() && !weight.skipped.is_none() {
        let changes = rows(&weight.skipped);
        format!("  changes that wait: {changes}; deletions among them are NEVER delivered")
    } else {
        format!("  skipped, NEVER delivered: {}", rows(&weight.skipped))
    };
    [format!("  come again, with the ids they had: {}", rows(&weight.again)), skipped]
}

fn failed(error: ResetError) -> Failed {
    match error {
        ResetError::Position(error) => Failed::new(Exit::Usage, error.to_string()),
        error @ (ResetError::OtherSource { .. }
        | ResetError::NothingToKeep
        | ResetError::OtherDocument
        | ResetError::Dividing { .. }) => {
            Failed::new(Exit::Failed, format!("{error}; nothing was done"))
        }
        ResetError::Restore(error) => restore::failed(error),
        ResetError::Tick(error) => error.into(),
    }
}
