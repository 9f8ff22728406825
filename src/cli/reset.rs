//! `highwater reset`: moves a checkpoint.
//!
//! It prints a plan, with rows counted in the source, and does nothing without confirmation. A reset that skips
//! rows needs an option of its own. The plan is made from one version of the document: if that was written since,
//! or an instance holds the lease, nothing is done.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Serialize;
use uuid::Uuid;

use super::confirm::{Confirmation, confirm};
use super::output::{Exit, Failed, OutputOption, print_message, print_text};
use super::restore::SEEN_LATER;
use super::{poller_to_restore, restore};
use highwater::admin::{ResetError, ResetImpact, ResetPlan, ResetTo, RowCount};
use highwater::config::Vars;
use highwater::cursor::Cursor;
use highwater::error::chain;
use highwater::event::counted;
use highwater::poller::{Operator, Poller};
use highwater::range::position_text;
use highwater::state::StateDocument;
use highwater::suggestion::quoted;

/// Digits of the id that distinguishes the deliveries of this reset from earlier ones.
const ID_CHARS: usize = 12;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// The new position of its checkpoint.
    to: To,
    /// The position or the file. A position is written as in state documents and logs, or as its leading part,
    /// such as a time.
    #[arg(value_name = "CURSOR|FILE", allow_negative_numbers = true)]
    at: Option<String>,
    /// Agree that skipped rows are never delivered.
    #[arg(long)]
    skip_rows: bool,
    /// Accept that the settings name another source than the state document.
    #[arg(long)]
    new_source: bool,
    /// Print the plan, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    asked: Confirmation,
    #[command(flatten)]
    form: OutputOption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum To {
    /// Before the first row: everything is delivered again.
    #[value(name = "to-beginning")]
    Beginning,
    /// After the last row: pending rows are skipped.
    #[value(name = "to-now")]
    Now,
    /// To a position.
    #[value(name = "to-cursor")]
    Cursor,
    /// To the position in a copy of the document, from `state export` or saved by an earlier reset.
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
    /// Differences from the source that was read so far.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    source_changes: &'a [String],
    /// `null` for the beginning, and without a stored document.
    from: Option<&'a Cursor>,
    /// `null` for the beginning.
    to: Option<&'a Cursor>,
    /// `null` if rows were not counted.
    rows_again: Option<u64>,
    rows_skipped: Option<u64>,
    /// Whether there may be more rows than were counted.
    more: bool,
    generation: Option<u64>,
    fencing_token: Option<u64>,
    /// Key of the saved previous document.
    saved: Option<String>,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let poller = poller_to_restore(vars, name).await?;
    let copy = match (options.to, &options.at) {
        (To::Checkpoint, Some(file)) => Some(restore::read(name, Path::new(file))?),
        _ => None,
    };
    let to = target(options, copy.as_ref())?;
    let plan = Box::pin(poller.admin().plan_reset(to, options.new_source)).await.map_err(failed)?;
    let mut text = plan_text(name, &plan);
    text.extend(others_continue(&poller.other_partitions(), options));
    if options.dry_run {
        let report = report(name, &plan);
        print_text(&options.form.output.one(&report, || text));
        return Ok(Exit::Done);
    }
    if !plan.changes() {
        let report = report(name, &plan);
        let text = if plan.keeps { "the source has not changed" } else { "already there" };
        print_text(&options.form.output.one(&report, || format!("{name}: {text}")));
        return Ok(Exit::Done);
    }
    let reason = options.asked.reason().inspect_err(|_| print_message(&text))?;
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
            Err(usage("`keep` only accepts a changed source: add `--new-source`"))
        }
        (To::Beginning | To::Now | To::Keep, Some(_), _) => Err(usage(
            "`to-beginning`, `to-now` and `keep` take no position; use `to-cursor CURSOR`",
        )),
        (To::Cursor, None, _) => Err(usage("`to-cursor` needs a position: `to-cursor CURSOR`")),
        (To::Checkpoint, ..) => Err(usage("`to-checkpoint` needs a file: `to-checkpoint FILE`")),
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
    let done = poller
        .admin()
        .reset(plan, format!("reset-{id}"), operator)
        .await
        .map_err(restore::failed)?;
    let report = Report {
        changed: true,
        generation: Some(done.document.generation.0),
        fencing_token: Some(done.document.lease.fencing_token.0),
        saved: done.saved.map(|key| key.to_string()),
        ..report(name, plan)
    };
    print_text(&options.form.output.one(&report, || {
        let did = if plan.keeps { "Accepted the source" } else { "Reset" };
        let saved = report.saved.as_ref().map(|key| format!(" Previous state saved as `{key}`."));
        let next = match report.to {
            Some(cursor) => format!("continue after {}", position_text(cursor)),
            None => "start from the beginning".to_owned(),
        };
        let saved = saved.unwrap_or_default();
        format!("{name}: {did}. Ticks {next}.{saved}\n  {SEEN_LATER}")
    }));
    Ok(Exit::Done)
}

/// Refuses to skip rows without `--skip-rows` (`agreed`).
///
/// # Errors
///
/// [`Exit::Usage`], after printing `plan`.
pub(super) fn refuse_skip(
    name: &str,
    plan: &str,
    weight: &ResetImpact,
    agreed: bool,
) -> Result<(), Failed> {
    if agreed || !weight.skips() {
        return Ok(());
    }
    print_message(plan);
    let text = format!(
        "{name}: nothing was done: `{name}` would never deliver the skipped rows; add `--skip-rows` to agree"
    );
    Err(Failed::new(Exit::Usage, text))
}

fn report<'a>(poller: &'a str, plan: &'a ResetPlan) -> Report<'a> {
    // No rows are counted if the position is kept: the source may be another table.
    let rows = |counted: &RowCount| match counted {
        RowCount::Rows(size) if !plan.keeps => Some(size.rows),
        RowCount::Rows(_) | RowCount::Unknown(_) => None,
    };
    let ResetImpact { again, skipped, .. } = &plan.weight;
    let more = |counted: &RowCount| matches!(counted, RowCount::Rows(size) if size.more);
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

/// Returns the plan and its consequences.
fn plan_text(name: &str, plan: &ResetPlan) -> String {
    let from = match &plan.present.document {
        Err(error) => format!("an unreadable state document ({})", chain(error)),
        Ok(None) => "no state document".to_owned(),
        Ok(Some(_)) if plan.other_source && !plan.keeps => {
            format!("{} in another source", place(plan.from.as_ref()))
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
        lines.push(format!("  paused by {by}: no tick runs before `highwater resume {name}`"));
    }
    let kept = "  Rows that the source has up to this position are not delivered. The lease gets a new generation and \
                token; the in-flight batch, quarantined rows and counts stay. The previous state is saved.";
    let end = "  Receivers do not treat redelivered rows as duplicates (new generation and token). The in-flight \
               batch is dropped; quarantined rows stay quarantined. The previous state is saved.";
    lines.push(if plan.keeps { kept } else { end }.to_owned());
    lines.join("\n")
}

/// Returns the note that the reset of a partition does not move the others; `None` for an unpartitioned poller.
fn others_continue(others: &[String], options: &Options) -> Option<String> {
    let other = others.first()?;
    let continue_where = match others.len() {
        1 => format!("`{other}` continues where it is"),
        count => format!("the other {count} partitions continue where they are"),
    };
    let aim = options.to.to_possible_value().map(|to| to.get_name().to_owned()).unwrap_or_default();
    let aim = match (options.to, &options.at) {
        // A copy is of one partition.
        (To::Checkpoint, _) => return Some(format!("\n  {continue_where}")),
        (_, Some(at)) => format!("{aim} {}", quoted(at)),
        (_, None) => aim,
    };
    let skip = if options.skip_rows { " --skip-rows" } else { "" };
    let source = if options.new_source { " --new-source" } else { "" };
    let for_each = if others.len() == 1 { "" } else { " for each of them" };
    Some(format!(
        "\n  {continue_where}; to reset that as well, run{for_each} `highwater reset {other} {aim}{skip}{source} --reason \
         \"reset all partitions\"`"
    ))
}

/// Returns what happens to rows when the checkpoint moves to `to`.
pub(super) fn weight_lines(weight: &ResetImpact, to: Option<&Cursor>) -> [String; 2] {
    let rows = |size: &RowCount| match size {
        RowCount::Rows(size) if size.more => format!("at least {}", counted(size.rows, "row")),
        RowCount::Rows(size) => counted(size.rows, "row"),
        RowCount::Unknown(reason) => format!("rows that could not be counted ({reason})"),
    };
    let skipped = if to.is_none() && !weight.skipped.is_none() {
        let changes = rows(&weight.skipped);
        format!("  pending changes: {changes}; deletions among them are NEVER delivered")
    } else {
        format!("  skipped, NEVER delivered: {}", rows(&weight.skipped))
    };
    [format!("  redelivered, with their previous ids: {}", rows(&weight.again)), skipped]
}

fn failed(error: ResetError) -> Failed {
    match error {
        ResetError::Position(error) => Failed::new(Exit::Usage, error.to_string()),
        error @ (ResetError::NothingToKeep
        | ResetError::StillLost { .. }
        | ResetError::CannotKeep { .. }
        | ResetError::OtherDocument
        | ResetError::Repartitioning { .. }) => {
            Failed::new(Exit::Failed, format!("{error}; nothing was done"))
        }
        ResetError::Restore(error) => restore::failed(error),
        ResetError::Tick(error) => error.into(),
    }
}
