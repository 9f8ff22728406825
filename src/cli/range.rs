//! Common code of `highwater replay` and `highwater backfill`: a range, its plan, and its delivery.

mod plan;
mod progress;
mod work;

use std::num::NonZeroU32;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use self::plan::Plan;
use self::work::Work;
use super::confirm::confirm;
use super::output::{Exit, Failed, OutputOption, Record, print_message, print_text};
use super::poller;
use highwater::admin::RangeEnd;
use highwater::builder::range::{Ranges, Worker};
use highwater::config::Vars;
use highwater::event::counted;
use highwater::poller::{Operator, Poller};
use highwater::range::{Purpose, Range, is_id, window_name};
use highwater::serve;
use highwater::state::RangeRecord;

/// Digits of a new id.
const ID_CHARS: usize = 12;

/// Selects a range and an action.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a command-line flag")]
pub(super) struct RangeOptions {
    /// Name of the poller.
    poller: String,
    /// Start after this position: as in state documents and logs, or its leading part, such as a time.
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    from: Option<String>,
    /// Start with the first row.
    #[arg(long, conflicts_with = "from")]
    from_beginning: bool,
    /// End at this position, inclusive.
    #[arg(long, value_name = "CURSOR", allow_hyphen_values = true)]
    to: Option<String>,
    /// End at the poller's checkpoint.
    #[arg(long, conflicts_with = "to")]
    to_checkpoint: bool,
    /// Continue the range of this id, or join another process that delivers it.
    #[arg(long, value_name = "ID", value_parser = id, conflicts_with_all =
        ["from", "from_beginning", "to", "to_checkpoint", "status", "cancel", "dry_run"])]
    resume: Option<String>,
    /// Print the progress of the range of this id.
    #[arg(long, value_name = "ID", value_parser = id, conflicts_with_all =
        ["from", "from_beginning", "to", "to_checkpoint", "cancel", "dry_run"])]
    status: Option<String>,
    /// Cancel the range of this id; processes that deliver it stop after their in-flight batch.
    #[arg(long, value_name = "ID", value_parser = id, conflicts_with_all =
        ["from", "from_beginning", "to", "to_checkpoint", "dry_run"])]
    cancel: Option<String>,
    /// Deliver at most this many rows per second in this process.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Print the plan, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    form: OutputOption,
}

fn id(text: &str) -> Result<String, String> {
    let expected = || "expected an id as printed at the start".to_owned();
    is_id(text).then(|| text.to_owned()).ok_or_else(expected)
}

/// How a range is delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) purpose: Purpose,
    pub(super) windows: usize,
    pub(super) parallel: usize,
}

/// A started range.
struct Begun {
    id: String,
    name: String,
    record: RangeRecord,
}

pub(super) async fn run(
    vars: &dyn Vars,
    options: &RangeOptions,
    shape: Shape,
) -> Result<Exit, Failed> {
    let live = poller(vars, &options.poller)?;
    let ranges = Ranges::build(vars, &options.poller, options.rate.and_then(NonZeroU32::new))?;
    // Cannot fail: the poller was found with the same settings.
    let ranges = ranges.ok_or_else(|| Failed::new(Exit::Usage, "there is no such poller"))?;
    let ranges = Arc::new(ranges);
    if let Some(id) = &options.status {
        return status(&ranges, &find(&ranges, options, shape, id).await?, options).await;
    }
    if let Some(id) = &options.cancel {
        let begun = find(&ranges, options, shape, id).await?;
        return Box::pin(cancel(&ranges, begun, options)).await;
    }
    let begun = match &options.resume {
        Some(id) => {
            let begun = find(&ranges, options, shape, id).await?;
            lift_pauses(&ranges, &begun).await?;
            begun
        }
        None => match Box::pin(begin(&live, &ranges, options, shape)).await? {
            Some(begun) => begun,
            None => return Ok(Exit::Done),
        },
    };
    Box::pin(deliver(vars, &ranges, begun, options, shape)).await
}

/// Returns a range, or an error if it has no document.
async fn find(
    ranges: &Arc<Ranges>,
    options: &RangeOptions,
    shape: Shape,
    id: &str,
) -> Result<Begun, Failed> {
    let name = shape.purpose.name(&options.poller, id);
    let record = Worker::new(ranges)?.range(&name).admin().range().await?.ok_or_else(|| {
        let what = shape.purpose.as_str();
        let text = format!("poller `{}` has no {what} `{id}`", options.poller);
        Failed::new(Exit::Usage, text)
    })?;
    Ok(Begun { id: id.to_owned(), name, record })
}

/// Plans a range, asks for confirmation, and creates its document; `None` if there is nothing to deliver.
async fn begin(
    live: &Poller,
    ranges: &Arc<Ranges>,
    options: &RangeOptions,
    shape: Shape,
) -> Result<Option<Begun>, Failed> {
    let plan = Plan::make(live, ranges, options, shape).await?;
    if options.dry_run {
        print_text(&options.form.output.one(&plan.report, || plan.report.text()));
        return Ok(None);
    }
    if plan.report.rows == 0 {
        print_message(&format!("{}\nnothing was done: the range has no rows", plan.report.text()));
        return Ok(None);
    }
    if !confirm(&plan.report.text(), &options.poller, options.yes)? {
        return Ok(None);
    }
    let id: String = Uuid::new_v4().simple().to_string().chars().take(ID_CHARS).collect();
    let name = shape.purpose.name(&options.poller, &id);
    let record = plan.record;
    Worker::new(ranges)?
        .range(&name)
        .admin()
        .begin_range(&record, &shape.purpose.replay_id(&id))
        .await?;
    let what = shape.purpose.as_str();
    print_message(&format!(
        "{what} `{id}` started; `highwater {what} {} --resume {id}` continues it",
        options.poller
    ));
    Ok(Some(Begun { id, name, record }))
}

/// Resumes windows that their failure policy has paused: `--resume` means that the cause is fixed.
async fn lift_pauses(ranges: &Arc<Ranges>, begun: &Begun) -> Result<(), Failed> {
    let worker = Worker::new(ranges)?;
    for (name, _) in windows(begun) {
        let operator = Operator { by: "highwater --resume", reason: "resumed" };
        worker.range(&name).admin().resume(operator).await?;
    }
    Ok(())
}

/// Returns the windows of a range with the names of their documents; a range without windows is its own window.
fn windows(begun: &Begun) -> Vec<(String, Range)> {
    let record = &begun.record;
    let whole = Range { after: record.after.clone(), upto: record.upto.clone() };
    if record.windows.is_empty() {
        return vec![(begun.name.clone(), whole)];
    }
    let windows = (1..).zip(whole.windows(&record.windows));
    windows.map(|(number, window)| (window_name(&begun.name, number), window)).collect()
}

/// What is printed after the delivery of a range.
#[derive(Serialize)]
struct Delivered<'a> {
    poller: &'a str,
    id: &'a str,
    /// Rows of the range.
    rows: u64,
    /// Rows that this process delivered.
    rows_here: u64,
    done: bool,
}

async fn deliver(
    vars: &dyn Vars,
    ranges: &Arc<Ranges>,
    begun: Begun,
    options: &RangeOptions,
    shape: Shape,
) -> Result<Exit, Failed> {
    let (stop, signalled) = serve::stop_by_signal(vars);
    let (id, name) = (begun.id.clone(), begun.name.clone());
    let work = Work::of(ranges, &begun, shape.purpose.replay_id(&id), stop).await?;
    let ended = work::run(Arc::clone(&work), shape.parallel).await?;
    let (what, poller) = (shape.purpose.as_str(), &options.poller);
    let resume = format!("`highwater {what} {poller} --resume {id}`");
    match ended {
        RangeEnd::Done => {
            let rows = rows_of(&Worker::new(ranges)?, &begun).await?;
            Worker::new(ranges)?.range(&name).admin().end_range().await?;
            let rows_here = ranges.pace().taken();
            let report =
                Delivered { poller: &options.poller, id: &id, rows, rows_here, done: true };
            let text =
                || format!("{name}: {} delivered, {rows_here} of them here", counted(rows, "row"));
            print_text(&options.form.output.one(&report, text));
            Ok(Exit::Done)
        }
        RangeEnd::Stopped | RangeEnd::Held { .. } => {
            let exit = signalled.get().copied().unwrap_or(Exit::Failed);
            Err(Failed::new(exit, format!("stopped; {resume} continues it")))
        }
        RangeEnd::Cancelled => {
            Err(Failed::new(Exit::Failed, format!("`{name}` was cancelled by an operator")))
        }
        RangeEnd::Paused { by, reason } => Err(Failed::new(
            Exit::NotAccepted,
            format!("paused by {by}: {reason}; fix that, then {resume} continues it"),
        )),
    }
}

async fn rows_of(worker: &Worker, begun: &Begun) -> Result<u64, Failed> {
    let mut rows = 0;
    for (name, _) in windows(begun) {
        rows += worker.range(&name).admin().range().await?.map_or(0, |record| record.rows);
    }
    Ok(rows)
}

/// What is printed for each window.
#[derive(Serialize)]
struct WindowLine {
    name: String,
    range: String,
    rows: u64,
    state: &'static str,
}

impl Record for WindowLine {
    const COLUMNS: &'static [&'static str] = &["window", "state", "rows", "range"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.state.to_owned(), self.rows.to_string(), self.range.clone()]
    }
}

async fn status(
    ranges: &Arc<Ranges>,
    begun: &Begun,
    options: &RangeOptions,
) -> Result<Exit, Failed> {
    let worker = Worker::new(ranges)?;
    let mut lines = Vec::new();
    for (name, range) in windows(begun) {
        let record = worker.range(&name).admin().range().await?;
        let state = match &record {
            None if begun.record.cancelled_at.is_some() => "cancelled",
            None => "waiting",
            Some(record) if record.done_at.is_some() => "done",
            Some(record) if record.cancelled_at.is_some() => "cancelled",
            Some(_) => "begun",
        };
        let rows = record.map_or(0, |record| record.rows);
        lines.push(WindowLine { name, range: range.text(), rows, state });
    }
    print_text(&options.form.output.list(&lines));
    Ok(Exit::Done)
}

/// What is printed after a cancellation.
#[derive(Serialize)]
struct CancelReport<'a> {
    poller: &'a str,
    id: &'a str,
    cancelled: bool,
}

async fn cancel(
    ranges: &Arc<Ranges>,
    begun: Begun,
    options: &RangeOptions,
) -> Result<Exit, Failed> {
    let worker = Worker::new(ranges)?;
    if begun.record.done_at.is_some() {
        return Err(Failed::new(Exit::Failed, format!("`{}` is done", begun.name)));
    }
    // The range first, so that no further windows start.
    worker.range(&begun.name).admin().cancel_range().await?;
    for (name, _) in windows(&begun) {
        if name != begun.name && worker.range(&name).admin().range().await?.is_some() {
            worker.range(&name).admin().cancel_range().await?;
        }
    }
    let report = CancelReport { poller: &options.poller, id: &begun.id, cancelled: true };
    print_text(&options.form.output.one(&report, || format!("{}: cancelled", begun.name)));
    Ok(Exit::Done)
}
