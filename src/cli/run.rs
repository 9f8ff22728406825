//! `highwater run`: the timers of the functions, without the Functions host.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tracing::{Instrument as _, error_span, info, warn};
use uuid::Uuid;

use super::output::{Exit, Failed};
use super::serve::{Signals, asked_to_stop, start_logs};
use crate::app::App;
use crate::clock::SystemClock;
use crate::config::Vars;
use crate::error::chain;
use crate::poller::{Poller, StopSignal, TickRequest};
use crate::project;
use crate::timers::{Timer, Work, drive};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Folder with `function-definitions`, or with the functions themselves.
    #[arg(long, value_name = "DIR", default_value = ".")]
    from: PathBuf,
}

/// Runs each function that has a poller whenever it is due, until the process is asked to stop.
pub(super) async fn run(vars: &dyn Vars, options: &Options) -> Result<Exit, Failed> {
    let signals = Signals::catch();
    start_logs(vars);
    let app = App::build(vars)?;
    let stop = StopSignal::new();
    let timers = timers(vars, &app, options, &stop)?;
    drive(timers, Arc::new(SystemClock), asked_to_stop(signals, stop)).await;
    Ok(Exit::Done)
}

fn timers(
    vars: &dyn Vars,
    app: &App,
    options: &Options,
    stop: &StopSignal,
) -> Result<Vec<Timer>, Failed> {
    let wrong = |error: &dyn std::error::Error| Failed::new(Exit::Settings, chain(error));
    let folder = project::functions_folder(&options.from);
    let mut timers = Vec::new();
    for function in project::functions(&folder).map_err(|error| wrong(&error))? {
        let name = &function.name;
        let Some(poller) = app.poller_of(name) else {
            warn!(event = "unknown_function", function = name, "Function `{name}` has no poller");
            continue;
        };
        let schedule = function.schedule(vars).map_err(|error| wrong(&error))?;
        info!(
            event = "timer_started",
            function = name,
            poller.name = poller.name(),
            schedule = %schedule,
            "Function `{name}` runs poller `{}` at `{schedule}`, UTC",
            poller.name()
        );
        timers.push(Timer { function: name.clone(), schedule, work: work(poller, stop) });
    }
    if timers.is_empty() {
        let names: Vec<&str> = app.pollers.keys().map(String::as_str).collect();
        let text = format!(
            "no function in `{}` runs a poller; the settings have `{}`, and a function runs the one \
             that is named as its folder",
            folder.display(),
            names.join("`, `")
        );
        return Err(Failed::new(Exit::Settings, text));
    }
    Ok(timers)
}

fn work(poller: &Arc<Poller>, stop: &StopSignal) -> Work {
    let (poller, stop) = (Arc::clone(poller), stop.clone());
    Arc::new(move || {
        let poller = Arc::clone(&poller);
        let invocation_id = Uuid::new_v4().to_string();
        let request = TickRequest {
            invocation_id: invocation_id.clone(),
            traceparent: None,
            stop: stop.child(),
        };
        let span = error_span!("tick", poller.name = poller.name(), invocation_id);
        Box::pin(async move { drop(poller.tick(&request).await) }.instrument(span))
    })
}
