//! `highwater run`: runs the functions' timers without the Functions host.

use std::future::pending;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use clap::{Args, ValueEnum};
use tokio::sync::Notify;
use tracing::{Instrument as _, error, error_span, info, warn};
use uuid::Uuid;

use super::from::FromOption;
use super::output::{Exit, Failed};
use super::page::Page;
use super::pause::WhoOption;
use highwater::builder::{App, check_handler};
use highwater::clock::SystemClock;
use highwater::config::{Vars, function_segment, stop_grace};
use highwater::error::chain;
use highwater::host::group::PollerGroup;
use highwater::host::server::Function;
use highwater::host::traced::{TracedInvocation, note, note_recovery};
use highwater::metrics::{Invocations, Trigger};
use highwater::page::{Authority, PageServer};
use highwater::poller::{Poller, StopSignal};
use highwater::project::{Place, Problem, Project, functions_folder};
use highwater::recovery::Controller;
use highwater::serve::{Signals, asked_to_stop, start_in};
use highwater::telemetry::{LineForm, Telemetry, TickLines};
use highwater::tick::TickRequest;
use highwater::timers::{Timer, Work, drive};

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    from: FromOption,
    /// Serve the status page at this address, such as `127.0.0.1:8080`.
    #[arg(long, value_name = "ADDRESS")]
    status: Option<SocketAddr>,
    /// Allow the status page to pause and resume pollers, and to run ticks.
    #[arg(long, requires = "status")]
    status_actions: bool,
    /// Another host name that the status page answers to, besides loopback; may be repeated.
    #[arg(long, value_name = "NAME", requires = "status")]
    status_host: Vec<String>,
    /// Format of log lines [default: `text` on a terminal, else `json`].
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// One line of text for each event.
    Text,
    /// One JSON object for each event.
    Json,
}

impl LogFormat {
    fn form(self) -> LineForm {
        match self {
            Self::Text => LineForm::Terminal,
            Self::Json => LineForm::Json,
        }
    }

    /// Returns the format for the reader of standard output.
    fn of_reader() -> Self {
        if std::io::stdout().is_terminal() { Self::Text } else { Self::Json }
    }
}

/// Runs each function that has a poller on its schedule, until the process is asked to stop.
pub(super) async fn run(
    vars: &dyn Vars,
    options: &Options,
    settings: Option<&Path>,
) -> Result<Exit, Failed> {
    let root = options.from.folder(settings);
    let form = options.log_format.unwrap_or_else(LogFormat::of_reader).form();
    let caught = (Signals::catch(), start_in(form, vars, TickLines::Written));
    let page = PageOptions {
        address: options.status,
        actions: options.status_actions,
        hosts: &options.status_host,
    };
    poll(vars, &root, page, caught, pending()).await
}

/// The status page next to the pollers.
pub(super) struct PageOptions<'a> {
    /// Where to serve it, if at all.
    pub(super) address: Option<SocketAddr>,
    /// Whether it may change pollers.
    pub(super) actions: bool,
    /// Its host names besides loopback.
    pub(super) hosts: &'a [String],
}

/// Runs pollers until a signal arrives, or until `ended` completes with the reason.
pub(super) async fn poll(
    vars: &dyn Vars,
    root: &Path,
    page: PageOptions<'_>,
    (signals, telemetry): (Option<Signals>, Telemetry),
    ended: impl Future<Output = Failed>,
) -> Result<Exit, Failed> {
    let app = App::build_to_run(vars, None)?;
    let stop = StopSignal::new();
    let process = Process {
        stop: stop.clone(),
        telemetry,
        is_cold: Arc::new(AtomicBool::new(true)),
        invocations: Invocations::default(),
        unable: Arc::default(),
    };
    let timers = timers(vars, &app, root, &process)?;
    let board = app.board(vars, root);
    process.telemetry.export_states(board.clone());
    let page = match page.address {
        None => None,
        Some(address) => {
            let operator = WhoOption::default().name(vars);
            let served = PageServer {
                board,
                authority: Authority::of(address, page.hosts),
                operator: page.actions.then(|| format!("{operator} (status page)")),
                stop: stop.clone(),
            };
            Some(Page::open(address, served).await?)
        }
    };
    let unable = Arc::clone(&process.unable);
    // In a separate task, so that it handles a second signal while the last ticks finish.
    let stopped = tokio::spawn(asked_to_stop(signals, stop.clone(), stop_grace(vars)));
    let mut ended_with = None;
    let until = async {
        tokio::select! {
            // An error is a panic, which is a reason to stop too.
            _ = stopped => {}
            () = unable.noted.notified() => stop.set(),
            failed = ended => {
                ended_with = Some(failed);
                stop.set();
            }
        }
    };
    drive(timers, Arc::new(SystemClock), until).await;
    if let Some(page) = page {
        page.close().await;
    }
    process.telemetry.flush().await;
    let unable = unable.why.get().map(|why| Failed::new(Exit::NotAccepted, why));
    ended_with.or(unable).map_or(Ok(Exit::Done), Err)
}

/// Why this process cannot deliver any more, if so.
#[derive(Default)]
struct Unable {
    why: OnceLock<String>,
    noted: Notify,
}

/// State shared by all timers.
#[derive(Clone)]
struct Process {
    stop: StopSignal,
    telemetry: Telemetry,
    /// Whether nothing has run yet.
    is_cold: Arc<AtomicBool>,
    invocations: Invocations,
    unable: Arc<Unable>,
}

fn timers(
    vars: &dyn Vars,
    app: &App,
    root: &Path,
    process: &Process,
) -> Result<Vec<Timer>, Failed> {
    let folder = functions_folder(root);
    let (mut timers, mut ticks, mut turned_off) = (Vec::new(), false, Vec::new());
    let project = Project::read(root, &folder, vars);
    // Problems that only concern the host do not matter here.
    let mut wrong = project.errors(|place| *place != Place::Host);
    let mut scheduled = Vec::new();
    for function in &project.functions {
        match function.schedule(vars) {
            Ok(Some(schedule)) => scheduled.push((function, schedule)),
            // Functions started by requests need a host; here `--status` serves the page.
            Ok(None) => {}
            Err(error) => wrong.push(format!("{}; {}", chain(&error), error.fix())),
        }
    }
    if !wrong.is_empty() {
        return Err(Failed::new(Exit::Settings, wrong.join("\n")));
    }
    warn_of(&project);
    for (function, schedule) in scheduled {
        let name = &function.name;
        // As with the host, a disabled function does not affect the others.
        if let Some(setting) = project.turned_off_by(name) {
            let setting = setting.display().to_string();
            info!(
                event = "function_turned_off",
                function = name,
                setting,
                "Skipping function `{name}`, which `{setting}` turns off"
            );
            turned_off.push(format!("`{name}` is turned off by `{setting}`"));
            continue;
        }
        let Some(does) = app.function(name) else {
            let setting = format!("HIGHWATER__FUNCTIONS__{}__POLLER", function_segment(name));
            warn!(
                event = "unknown_function",
                function = name,
                "Function `{name}` has no poller; set `{setting}`, or remove its folder"
            );
            continue;
        };
        let (text, zone) = (schedule.to_string(), schedule.zone().name());
        info!(
            event = "timer_started",
            function = name,
            schedule = text,
            time_zone = zone,
            "Function `{name}` runs at `{text}` in {zone}"
        );
        ticks |= matches!(does, Function::Tick(_) | Function::Group(_));
        let (function, work) = (name.clone(), work(name, &text, does, process));
        timers.push(Timer { function, schedule, work });
    }
    if !ticks {
        let names: Vec<&str> = app.pollers.keys().map(String::as_str).collect();
        if !turned_off.is_empty() {
            let text = format!("all functions are disabled: {}", turned_off.join(", "));
            return Err(Failed::new(Exit::Settings, text));
        }
        let text = format!(
            "no function in `{}` runs a poller; the settings have `{}`, and a function runs the poller \
             named like its folder; create a folder `{}` with a `function.json` there",
            folder.display(),
            names.join("`, `"),
            names.first().unwrap_or(&"orders")
        );
        return Err(Failed::new(Exit::Settings, text));
    }
    Ok(timers)
}

/// Logs the project's warnings that matter without the host.
fn warn_of(project: &Project) {
    let is_timer = |name: &str| {
        let mut timers = project.functions.iter().filter(|function| function.schedule.is_some());
        timers.any(|timer| timer.name == name)
    };
    let matters = |problem: &&Problem| match &problem.place {
        Place::Function(name) => is_timer(name),
        Place::Settings => true,
        Place::Host | Place::Functions => false,
    };
    let warnings = project.problems.iter().filter(|problem| !problem.is_error);
    for problem in warnings.filter(matters) {
        warn!(event = "without_effect", "{problem}");
    }
}

fn work(function: &str, schedule: &str, does: Function, process: &Process) -> Work {
    let (process, timer) = (process.clone(), (function.to_owned(), schedule.to_owned()));
    Arc::new(move || {
        let (timer, process) = (timer.clone(), process.clone());
        match &does {
            Function::Tick(poller) => {
                let poller = Arc::clone(poller);
                Box::pin(async move { process.tick(&timer, &poller).await })
            }
            Function::Group(group) => {
                let group = Arc::clone(group);
                Box::pin(async move { process.tick_all(&timer, &group).await })
            }
            Function::Recovery(controller) => {
                let controller = Arc::clone(controller);
                Box::pin(async move { process.recover(&timer, &controller).await })
            }
            Function::Status(_) | Function::Health(_) => Box::pin(std::future::ready(())),
        }
    })
}

impl Process {
    /// Runs a tick, and exports its telemetry before the next one is due.
    async fn tick(&self, timer: &(String, String), poller: &Poller) {
        self.tick_until(&self.stop, timer, poller).await;
    }

    async fn tick_until(
        &self,
        stop: &StopSignal,
        (function, schedule): &(String, String),
        poller: &Poller,
    ) {
        let invocation_id = Uuid::new_v4().to_string();
        let span = error_span!("tick", poller.name = poller.name(), invocation_id);
        let stop = stop.child();
        let request = TickRequest { invocation_id, stop, ..TickRequest::default() };
        let is_first = self.is_first();
        let measured = self.invocations.begin(Trigger::Timer, Some(poller.name()), is_first);
        let invoked = TracedInvocation {
            schedule: Some(schedule),
            ..TracedInvocation::of(function, &request, is_first)
        };
        let exported = invoked.span(&self.telemetry);
        let report = poller.tick(&request).instrument(exported.clone()).instrument(span).await;
        note(exported, poller, &report);
        measured.end(report.result.is_err());
        // Like a filter whose reader is gone, this process could not deliver any more. Check this also after a tick
        // that found nothing: a process that waits for this one must not wait for the next row.
        if let Err(error) = check_handler(poller) {
            self.unable.why.get_or_init(|| chain(&error));
            self.unable.noted.notify_one();
        }
        self.telemetry.flush().await;
    }

    async fn tick_all(&self, timer: &(String, String), group: &PollerGroup) {
        let stop = self.stop.child();
        let tick = |poller: Arc<Poller>| {
            let stop = stop.clone();
            Box::pin(async move { self.tick_until(&stop, timer, &poller).await })
        };
        let recovery = async {
            if let Some(controller) = group.recovery_due() {
                self.recover(timer, controller).await;
            }
        };
        tokio::join!(Box::pin(group.tick_all(&stop, tick)), recovery);
    }

    async fn recover(&self, (function, schedule): &(String, String), controller: &Controller) {
        let invocation_id = Uuid::new_v4().to_string();
        let span = error_span!("recovery", invocation_id);
        let is_first = self.is_first();
        let measured = self.invocations.begin(Trigger::Timer, None, is_first);
        let schedule = Some(schedule.as_str());
        let (id, traceparent, tracestate) = (invocation_id.as_str(), None, None);
        let trigger = Trigger::Timer;
        let invoked =
            TracedInvocation { function, id, schedule, traceparent, tracestate, trigger, is_first };
        let exported = invoked.span(&self.telemetry);
        let run = Box::pin(controller.invoke()).instrument(exported.clone());
        let ended = run.instrument(span).await;
        note_recovery(exported, &ended);
        measured.end(ended.is_err());
        if let Err(error) = ended {
            let reason = chain(&error);
            error!(
                event = "recovery_failed",
                invocation_id,
                error = reason,
                "The recovery controller failed: {reason}"
            );
        }
        self.telemetry.flush().await;
    }

    fn is_first(&self) -> bool {
        self.is_cold.swap(false, Ordering::Relaxed)
    }
}
