//! `highwater clone`: a poller of another name that goes on where one is.

use clap::Args;
use serde::Serialize;

use super::confirm::{Asked, confirm};
use super::output::{Exit, Failed, OutputOption, say};
use super::restore;
use crate::app::App;
use crate::config::{Vars, is_poller_name};
use crate::cursor::Cursor;
use crate::error::chain;
use crate::poller::{CloneError, Operator};
use crate::range::position_text;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// Name of the one to make; best before settings name it, so that no tick of it comes first.
    #[arg(value_parser = new_name)]
    new_name: String,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    form: OutputOption,
}

fn new_name(text: &str) -> Result<String, String> {
    let expected = "expected `a` to `z`, digits and single `_`, beginning with a letter";
    is_poller_name(text).then(|| text.to_owned()).ok_or_else(|| expected.to_owned())
}

/// What is printed.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    new_name: &'a str,
    /// Where the new one goes on.
    cursor: Option<&'a Cursor>,
    generation: u64,
    /// Whether settings name it.
    is_set_up: bool,
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let (name, new_name) = (options.poller.as_str(), options.new_name.as_str());
    let reason = options.asked.reason()?;
    let pollers = App::build(vars)?.pollers;
    let one = super::poller_of(&pollers, name)?;
    let set_up = pollers.get(new_name);
    let is_set_up = set_up.is_some();
    let other = match set_up {
        Some(other) => other.clone(),
        None => std::sync::Arc::new(one.under_name(new_name)),
    };
    let plan = format!(
        "{name}: `{new_name}` gets a document of its own, and goes on behind the checkpoint of `{name}`\n  its events \
         have other ids, since an id is of a poller and a row; what `{name}` has set aside, or has in hand, \
         stays with `{name}`"
    );
    if !confirm(&plan, new_name, options.asked.yes)? {
        return Ok(Exit::Done);
    }
    let by = options.asked.by(vars);
    let operator = Operator { by: &by, reason };
    let done = Box::pin(one.clone_to(&other, is_set_up, operator)).await.map_err(failed)?;
    let cursor = done.document.checkpoint.cursor.as_ref();
    let generation = done.document.generation.0;
    let report = Report { poller: name, new_name, cursor, generation, is_set_up };
    say(&options.form.output.one(&report, || {
        let place = cursor.map(position_text).unwrap_or_default();
        let next = if is_set_up { "" } else { "; settings for it are still to be made" };
        format!("{new_name}: goes on behind {place}{next}")
    }));
    Ok(Exit::Done)
}

fn failed(error: CloneError) -> Failed {
    match error {
        CloneError::Restore(error) => restore::failed(error),
        CloneError::Tick(error) => error.into(),
        error @ (CloneError::NoPosition(_)
        | CloneError::Format(_)
        | CloneError::Exists(_)
        | CloneError::RanBefore(_)
        | CloneError::OtherSource(..)) => {
            Failed::new(Exit::Failed, format!("{}; nothing was done", chain(&error)))
        }
    }
}
