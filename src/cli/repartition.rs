//! `highwater repartition`: changes a poller's number of partitions.

use clap::Args;
use serde::Serialize;

use super::confirm::confirm;
use super::output::{Exit, Failed, OutputOption, print_message, print_text};
use super::pause::{WhoOption, some_text};
use super::unknown;
use highwater::admin::{RestoreError, SeedError};
use highwater::builder::App;
use highwater::builder::parts::PartitionablePoller;
use highwater::config::Vars;
use highwater::document::LoadError;
use highwater::error::chain;
use highwater::event::counted;
use highwater::partition::PARTITIONS_MAX;
use highwater::poller::Operator;
use highwater::repartition::{PartitionLayout, Repartition, RepartitionError, partition_layout};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller, without a partition number.
    poller: String,
    /// New number of partitions.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(PARTITIONS_MAX)))]
    to: u16,
    /// The reason, which is recorded with the pauses and in the journals.
    #[arg(long, value_name = "TEXT", value_parser = some_text)]
    reason: Option<String>,
    #[command(flatten)]
    who: WhoOption,
    /// Carry out the plan without confirmation at a terminal.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    form: OutputOption,
}

/// What is printed at the end.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    from: u16,
    to: u16,
    /// Position after which the new partitions start; `null` for the beginning.
    after: Option<String>,
    /// Rows that were delivered to reach that position.
    rows: u64,
    /// Whether the partitions changed.
    changed: bool,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let (name, to) = (options.poller.as_str(), options.to);
    let Some(partitionable) = PartitionablePoller::build(vars, name)? else {
        return Err(unknown(name, &App::build(vars)?.pollers));
    };
    let found = partition_layout(&*partitionable.store, name).await.map_err(of_load)?;
    let Some(from) = found.parts else {
        let text = format!("poller `{name}` never ran: just set `{}` to `{to}`", setting(name));
        return Err(Failed::new(Exit::Usage, text));
    };
    if from == to && found.under_way.is_none() {
        let report = Report { poller: name, from, to, after: None, rows: 0, changed: false };
        let text = || format!("{name}: already has {to} partitions; there is nothing to do");
        print_text(&options.form.output.one(&report, text));
        return Ok(Exit::Done);
    }
    if !confirm(&plan(name, to, &found), name, options.yes)? {
        return Ok(Exit::Done);
    }
    let by = options.who.name(vars);
    let reason = format!("repartition from {from} to {to} partitions");
    let reason = options.reason.as_ref().map_or(reason.clone(), |why| format!("{reason}: {why}"));
    let work = Repartition::new(partitionable.parts(from)?, partitionable.parts(to)?);
    let operator = Operator { by: &by, reason: &reason };
    let done = Box::pin(work.run(operator, &|line| print_message(&format!("  {line}")))).await;
    let done = done.map_err(failed)?;
    let after = done.after.as_ref().map(|cursor| format!("{} {}", cursor.mode, cursor.value));
    let report = Report { poller: name, from, to, after, rows: done.rows, changed: true };
    print_text(&options.form.output.one(&report, || {
        let after = report.after.as_deref().unwrap_or("the beginning");
        format!(
            "{name}: {} continue after {after}; delivered before that: {}",
            counted(u64::from(to), "partition"),
            counted(done.rows, "row")
        )
    }));
    if partitionable.parts_configured() != to {
        print_message(&format!(
            "hint: set `{}` to `{to}` now; until then ticks are rejected",
            setting(name)
        ));
    }
    Ok(Exit::Done)
}

fn setting(name: &str) -> String {
    format!("HIGHWATER__POLLERS__{}__PARTITIONS", name.to_ascii_uppercase())
}

/// Returns the plan.
fn plan(name: &str, to: u16, found: &PartitionLayout) -> String {
    let from = found.parts.unwrap_or(1);
    let begins = match &found.under_way {
        Some(record) => format!(
            "{name}: continues the repartition from {} to {} partitions that started at {}",
            record.from, record.to, record.begun_at
        ),
        None => format!("{name}: from {from} to {to} partitions"),
    };
    let lines = [
        begins,
        "  all partitions are paused; running ticks stop after their in-flight batch".to_owned(),
        "  rows up to the furthest checkpoint of any partition are delivered by this command"
            .to_owned(),
        "  the new partitions start there; documents that they replace are saved".to_owned(),
        "  attempts and backoffs of the old partitions stay with the old documents; parked keys must be redriven or dropped"
            .to_owned(),
        format!("  then set `{}` to `{to}`, with a function for each partition", setting(name)),
    ];
    lines.join("\n")
}

fn of_load(error: LoadError) -> Failed {
    match error {
        LoadError::Store(error) => error.into(),
        LoadError::Format(error) => error.into(),
    }
}

/// Also says what to do next: completed steps are kept.
fn failed(error: RepartitionError) -> Failed {
    let text = format!("{}; run the same command again to continue", chain(&error));
    let exit = match error {
        RepartitionError::UnderWay { .. } => return Failed::new(Exit::Usage, chain(&error)),
        RepartitionError::Parked { .. }
        | RepartitionError::Busy { .. }
        | RepartitionError::Seed {
            source: SeedError::Restore(RestoreError::Held { .. } | RestoreError::Moved),
            ..
        } => Exit::Conflict,
        RepartitionError::Tick { source, .. } | RepartitionError::State(source) => {
            Failed::from(source).exit
        }
        RepartitionError::Other { .. }
        | RepartitionError::NoCommonBound(_)
        | RepartitionError::Seed { .. } => Exit::Failed,
    };
    Failed::new(exit, text)
}
