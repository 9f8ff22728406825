//! `highwater schema`: the JSON Schema of a poller's deliveries, for validators and generators of types.

use clap::Args;

use super::output::{Exit, Failed, print_rows};
use super::{is_of, unknown};
use highwater::builder::doctor::ExaminedPoller;
use highwater::config::{HandlerConfig, StepConfig, Vars};
use highwater::handler::schema::{WireForm, of_delivery};
use highwater::mssql::closest;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// Step of a handler chain whose deliveries are described.
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
}

/// Asks the database for the columns, and prints the schema. Nothing is written, and no handler called.
pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let pollers = ExaminedPoller::all(vars)?;
    let name = options.poller.as_str();
    // All partitions deliver the same columns in the same form.
    let found = pollers.iter().find(|(known, _)| is_of(known, name));
    let (_, poller) = found.ok_or_else(|| unknown(name, &pollers))?;
    let form = form(name, poller.handler(), options.step.as_deref())?;
    let rows = poller.row_schema().await?;
    print_rows(&format!("{:#}", of_delivery(form, &rows)));
    Ok(Exit::Done)
}

/// Returns the form of what the handler, or one step of it, sends.
fn form(poller: &str, handler: &HandlerConfig, step: Option<&str>) -> Result<WireForm, Failed> {
    let usage = |text: String| Failed::new(Exit::Usage, text);
    let no_json = |what: &str| {
        usage(format!(
            "{what} of poller `{poller}` writes columns to a table, which have no JSON form"
        ))
    };
    match (handler, step) {
        (HandlerConfig::Chain(steps), Some(name)) => {
            let found = steps.iter().find(|step| step.name == name);
            let step = found.ok_or_else(|| usage(unknown_step(poller, name, steps)))?;
            WireForm::of(&step.handler, true).ok_or_else(|| no_json(&format!("step `{name}`")))
        }
        (HandlerConfig::Chain(steps), None) => Err(usage(format!(
            "the handler of poller `{poller}` is a chain: choose a step with `--step`: `{}`",
            names(steps)
        ))),
        (_, Some(_)) => {
            Err(usage(format!("the handler of poller `{poller}` is not a chain: remove `--step`")))
        }
        (handler, None) => WireForm::of(handler, false).ok_or_else(|| no_json("the handler")),
    }
}

fn unknown_step(poller: &str, name: &str, steps: &[StepConfig]) -> String {
    let meant = closest(name, steps.iter().map(|step| step.name.as_str()));
    let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
    format!("poller `{poller}` has no step `{name}`, only `{}`{meant}", names(steps))
}

fn names(steps: &[StepConfig]) -> String {
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    names.join("`, `")
}
