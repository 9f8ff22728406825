//! `highwater clone`: a new poller that continues from the position of an existing one.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::confirm::{Confirmation, confirm};
use super::output::{Exit, Failed, OutputOption, print_message, print_text};
use super::{is_of, restore};
use highwater::admin::CloneError;
use highwater::builder::App;
use highwater::config::{Vars, is_poller_name};
use highwater::cursor::Cursor;
use highwater::error::chain;
use highwater::partition::poller_of_partition;
use highwater::poller::{Operator, Poller};
use highwater::range::position_text;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Name of the poller.
    poller: String,
    /// Name of the new poller; clone before you add its settings, so that no tick runs first.
    #[arg(value_parser = new_name, required_unless_present = "from_app", conflicts_with = "from_app")]
    new_name: Option<String>,
    /// Continue from this poller's position under another app name in the same state store.
    #[arg(long, value_name = "APP")]
    from_app: Option<String>,
    /// Print the plan, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    asked: Confirmation,
    #[command(flatten)]
    form: OutputOption,
}

fn new_name(text: &str) -> Result<String, String> {
    let expected = "use lowercase letters, digits and single underscores, starting with a letter";
    is_poller_name(text).then(|| text.to_owned()).ok_or_else(|| expected.to_owned())
}

/// The pollers of the settings.
type Pollers = BTreeMap<String, Arc<Poller>>;

/// What is printed.
#[derive(Serialize)]
struct Report<'a> {
    poller: &'a str,
    new_name: &'a str,
    /// The other app that the position is from, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    from_app: Option<&'a str>,
    /// Whether the new poller was created.
    changed: bool,
    /// The position from which the new one continues, or would continue.
    cursor: Option<&'a Cursor>,
    /// Generation of the new document; `null` if none was created.
    generation: Option<u64>,
    /// Whether the settings have the new poller.
    is_set_up: bool,
}

/// Source and target of a clone.
struct Copying {
    from: Poller,
    to: Arc<Poller>,
    /// Whether the settings have the new poller.
    is_set_up: bool,
    /// Consequences, the last part of the plan.
    means: String,
}

impl Copying {
    fn between_names(name: &str, new_name: &str, pollers: &Pollers) -> Result<Self, Failed> {
        refuse_divided(pollers, [name, new_name])?;
        let one = super::poller_of(pollers, name)?;
        let from = one.under_name(name);
        let is_set_up = pollers.contains_key(new_name);
        let to =
            pollers.get(new_name).cloned().unwrap_or_else(|| Arc::new(one.under_name(new_name)));
        let means = format!(
            "its events have other ids, because an id depends on poller and row; quarantined and in-flight rows of \
             `{name}` stay with `{name}`"
        );
        Ok(Self { from, to, is_set_up, means })
    }

    fn between_apps(name: &str, app: &str, pollers: &Pollers) -> Result<Self, Failed> {
        let to = super::poller_of(pollers, name)?;
        let from = to.under_app(app).ok_or_else(|| {
            Failed::new(Exit::Usage, "this state store supports only one app".to_owned())
        })?;
        let means = format!(
            "its events keep their ids, and windows that wait for an audit are copied; quarantined and in-flight rows \
             of app `{app}` stay there; stop app `{app}` first, or both deliver the same rows"
        );
        Ok(Self { from, to, is_set_up: true, means })
    }
}

pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let name = options.poller.as_str();
    let pollers = App::build_to_restore(vars)?.pollers;
    let (copying, new_name, source) = match (&options.new_name, &options.from_app) {
        (Some(new_name), _) => {
            let source = format!("`{name}`");
            (Copying::between_names(name, new_name, &pollers)?, new_name.as_str(), source)
        }
        (None, Some(app)) => {
            let source = format!("`{name}` in app `{app}`");
            (Copying::between_apps(name, app, &pollers)?, name, source)
        }
        (None, None) => {
            return Err(Failed::new(
                Exit::Usage,
                "add the name of the new poller, or `--from-app APP`".to_owned(),
            ));
        }
    };
    let Copying { from, to, is_set_up, means } = copying;
    let Some(document) = from.admin().present().await?.into_started()? else {
        return Err(nothing_to_copy(&source, new_name, is_set_up));
    };
    let at = document.checkpoint.cursor;
    let place = place_text(at.as_ref());
    let plan = format!(
        "{name}: `{new_name}` gets its own document, and continues after the checkpoint of {source}, now {place}\n  \
         {means}"
    );
    let from_app = options.from_app.as_deref();
    if options.dry_run {
        let (changed, cursor, generation) = (false, at.as_ref(), None);
        let report =
            Report { poller: name, new_name, from_app, changed, cursor, generation, is_set_up };
        print_text(&options.form.output.one(&report, || plan));
        return Ok(Exit::Done);
    }
    let reason = options.asked.reason().inspect_err(|_| print_message(&plan))?;
    if !confirm(&plan, new_name, options.asked.yes)? {
        return Ok(Exit::Done);
    }
    let by = options.asked.by(vars);
    let operator = Operator { by: &by, reason };
    let done = Box::pin(from.admin().clone_to(&to, is_set_up, operator)).await.map_err(failed)?;
    let cursor = done.document.checkpoint.cursor.as_ref();
    let (changed, generation) = (true, Some(done.document.generation.0));
    let report =
        Report { poller: name, new_name, from_app, changed, cursor, generation, is_set_up };
    print_text(&options.form.output.one(&report, || {
        let place = place_text(cursor);
        let next = if is_set_up { "" } else { "; add its settings next" };
        format!("{new_name}: continues after {place}{next}")
    }));
    Ok(Exit::Done)
}

fn place_text(cursor: Option<&Cursor>) -> String {
    cursor.map_or_else(|| "the beginning".to_owned(), position_text)
}

/// Reports how to start the new poller if the other one never started.
fn nothing_to_copy(source: &str, new_name: &str, is_set_up: bool) -> Failed {
    let start = if is_set_up {
        format!("start `{new_name}` with `highwater init {new_name}`")
    } else {
        format!("add settings for `{new_name}`, which then starts by itself")
    };
    let text = format!(
        "{source} has never started, so there is no state to copy: check the name, or {start}; nothing was done"
    );
    Failed::new(Exit::Failed, text)
}

/// Rejects partitions: cloning one of them would copy only a part of the poller.
fn refuse_divided<T>(known: &BTreeMap<String, T>, names: [&str; 2]) -> Result<(), Failed> {
    let is_divided = |name: &str| {
        let is_part = |known: &String| is_of(known, name) && poller_of_partition(known) != known;
        known.keys().any(is_part)
    };
    let Some(name) = names.into_iter().find(|name| is_divided(name)) else { return Ok(()) };
    let text = format!(
        "`{name}` is partitioned, and only whole pollers are cloned: before the first tick of the new poller, reset \
         each of its partitions with `to-cursor` to the position that `highwater status` shows for the partition of \
         the same number"
    );
    Err(Failed::new(Exit::Usage, text))
}

fn failed(error: CloneError) -> Failed {
    match error {
        CloneError::Restore(error) => restore::failed(error),
        CloneError::Tick(error) => error.into(),
        error @ (CloneError::NeverStarted(_)
        | CloneError::Format(_)
        | CloneError::Exists(_)
        | CloneError::RanBefore { .. }
        | CloneError::OtherSource(..)) => {
            Failed::new(Exit::Failed, format!("{}; nothing was done", chain(&error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_and_partitioned_pollers_are_not_cloned() {
        let known = ["lines", "orders__p0", "orders__p1"].map(|name| (name.to_owned(), 0));
        let known = BTreeMap::from(known);
        for names in [["orders", "copy"], ["orders__p1", "copy"], ["lines", "orders"]] {
            let refused = refuse_divided(&known, names).unwrap_err();
            assert!(refused.text.contains("is partitioned"), "{names:?}");
        }
        assert!(refuse_divided(&known, ["lines", "copy"]).is_ok());
    }
}
