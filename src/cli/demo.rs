//! `highwater demo`: demonstrates lossless delivery of real data; it needs nothing installed.
//!
//! The embedded server is loaded with flights. A stand-in for the Functions host starts two handler
//! processes of this very program, and POSTs timer invocations to them in turn. Batches go to a receiver on
//! this machine. Meanwhile, more flights are written and earlier ones change. The receiver answers one call
//! with 500. It leaves another call open, and the process that made it is killed in the middle of its batch.
//! At the end, the table is compared with what the receiver has accepted, row state by row state.
//!
//! Lease and intervals are short here, so that a takeover takes seconds. Everything else is as in Azure.

pub(crate) mod console;
pub(crate) mod devdb;
mod flights;
mod folder;
mod host;
mod progress;
mod receiver;
mod report;
mod stage;
mod tally;
mod writer;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

use self::console::Console;
use self::host::{Host, NAMES};
use self::progress::{Progress, say};
use self::receiver::CallEvent;
use self::report::{Findings, grouped, lost};
use self::stage::Stage;
use self::writer::{Work, write};
use highwater_devdb::SqlError;

/// Options of the demo.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// How many flights to write, of 27004.
    #[arg(long, value_name = "N", default_value_t = flights::COUNT,
        value_parser = clap::value_parser!(u32).range(100..=i64::from(flights::COUNT)))]
    rows: u32,
    /// Show the logs of the handler processes.
    #[arg(long)]
    verbose: bool,
}

const FAILED: u8 = 1;
const UNAVAILABLE: u8 = 6;

/// Time limit of the whole demo.
const DEADLINE: Duration = Duration::from_secs(55);
/// Time limit for stopping everything.
const STOP_MAX: Duration = Duration::from_secs(3);
/// Interval at which the arrival of all rows is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Outcome of the unattended part of the demo.
enum End {
    /// All rows have arrived.
    Arrived,
    /// The time was up.
    OutOfTime,
    /// A signal arrived, with this exit code.
    Stopped(u8),
    /// A part of the demo failed.
    Broken(String),
}

/// Runs the demo; the exit code says whether it kept its promises.
pub(crate) async fn run(options: Options) -> ExitCode {
    let deadline = Instant::now() + DEADLINE;
    // From here on, a signal waits until everything can be cleaned up.
    let (Ok(interrupt), Ok(terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        say("highwater: signals cannot be received");
        return ExitCode::from(UNAVAILABLE);
    };
    let (sender, happenings) = unbounded_channel();
    let stage = match Stage::set(options.rows, sender).await {
        Ok(stage) => stage,
        Err(reason) => {
            say(&format!("highwater: {reason}"));
            return ExitCode::from(UNAVAILABLE);
        }
    };
    let mut show = match Show::open(stage, happenings, options.verbose, deadline) {
        Ok(show) => show,
        Err(reason) => {
            say(&format!("highwater: {reason}"));
            return ExitCode::from(UNAVAILABLE);
        }
    };
    let end = show.play(interrupt, terminate).await;
    show.close(end).await
}

/// The demo while it runs.
struct Show {
    stage: Stage,
    host: Host,
    console: Arc<Console>,
    progress: Progress,
    happenings: UnboundedReceiver<CallEvent>,
    writing: Writing,
    began_at: Instant,
    deadline: Instant,
    took: Option<Duration>,
    killed: Option<usize>,
    resumed_after: Option<Duration>,
}

/// The application that writes rows.
enum Writing {
    /// Waiting for the rows that it may change to arrive.
    NotYet(Work),
    Running(JoinHandle<Result<(), SqlError>>),
    Done,
}

impl Show {
    fn open(
        mut stage: Stage,
        happenings: UnboundedReceiver<CallEvent>,
        verbose: bool,
        deadline: Instant,
    ) -> Result<Self, String> {
        let work = stage.take_work();
        let rows = stage.loaded + stage.rest;
        let progress = Progress::start(rows + work.changes());
        progress.say(&format!(
            "Loaded {} flights into the embedded server; {} more will be written during the demo",
            grouped(stage.loaded),
            grouped(stage.rest)
        ));
        let console = Arc::new(Console::new(verbose, progress.clone()));
        let host = Host::start(stage.launch()?, Arc::clone(&console))?;
        Ok(Self {
            stage,
            host,
            console,
            progress,
            happenings,
            writing: Writing::NotYet(work),
            began_at: Instant::now(),
            deadline,
            took: None,
            killed: None,
            resumed_after: None,
        })
    }

    /// Runs until all rows have arrived.
    async fn play(&mut self, mut interrupt: Signal, mut terminate: Signal) -> End {
        let mut look = interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _ = interrupt.recv() => return End::Stopped(130),
                _ = terminate.recv() => return End::Stopped(143),
                () = tokio::time::sleep_until(self.deadline) => return End::OutOfTime,
                reason = self.host.failure() => return End::Broken(reason),
                Some(happening) = self.happenings.recv() => self.react(happening),
                _ = look.tick() => match self.look().await {
                    Ok(true) => return End::Arrived,
                    Ok(false) => {}
                    Err(reason) => return End::Broken(reason),
                },
            }
        }
    }

    fn react(&mut self, happening: CallEvent) {
        let name = |worker: usize| NAMES.get(worker).copied().unwrap_or_default();
        match happening {
            CallEvent::Failed { call, rows } => {
                let rows = grouped(u64::try_from(rows).unwrap_or_default());
                self.progress
                    .say(&format!("Call {call} with {rows} rows: the receiver answers 500"));
            }
            CallEvent::Held { call, rows, worker } => {
                self.host.kill(worker);
                self.killed = Some(worker);
                let (rows, name) = (grouped(u64::try_from(rows).unwrap_or_default()), name(worker));
                self.progress.say(&format!(
                    "Call {call} with {rows} rows: the receiver does not answer, and its process {name} \
                     is killed"
                ));
                self.progress.waiting("waiting for the killed process's lease to expire");
            }
            CallEvent::Resumed { worker, after } => {
                self.resumed_after = Some(after);
                self.progress.waiting("");
                let which = if self.killed == Some(worker) { "The new process" } else { "Process" };
                self.progress.say(&format!(
                    "{which} {} took over the lease after {:.1} s",
                    name(worker),
                    after.as_secs_f64()
                ));
            }
        }
    }

    /// Returns whether everything was written and has arrived; starts the writer once its rows have arrived.
    async fn look(&mut self) -> Result<bool, String> {
        let accepted = self.stage.receiver.tally(tally::Tally::accepted);
        self.progress.at(accepted);
        self.writing = match std::mem::replace(&mut self.writing, Writing::Done) {
            Writing::NotYet(work) if accepted >= self.stage.changeable => {
                let written = Arc::clone(&self.stage.written);
                let database = self.stage.database.clone();
                Writing::Running(tokio::spawn(write(database, work, written)))
            }
            Writing::Running(task) if task.is_finished() => {
                let written = task.await.map_err(|panic| panic.to_string())?;
                written.map_err(|error| format!("write rows: {error}"))?;
                Writing::Done
            }
            other @ (Writing::NotYet(_) | Writing::Running(_) | Writing::Done) => other,
        };
        let all = self.stage.loaded + self.stage.written.inserted() + self.stage.written.changed();
        let done = matches!(self.writing, Writing::Done) && accepted >= all;
        if done {
            self.took = Some(self.began_at.elapsed());
        }
        Ok(done)
    }

    /// Stops everything, and checks the result.
    async fn close(mut self, end: End) -> ExitCode {
        if matches!(end, End::Arrived) {
            // Commits in-flight batches, and reveals unexpected redeliveries.
            timeout_at(self.deadline, self.host.last_round()).await.unwrap_or_default();
        }
        if let Writing::Running(task) = &self.writing {
            task.abort();
        }
        timeout(STOP_MAX, self.host.stop()).await.unwrap_or_default();
        self.progress.finish();
        match end {
            End::Stopped(code) => {
                say("highwater: stopped");
                return ExitCode::from(code);
            }
            End::Broken(reason) => {
                say(&format!("highwater: {reason}"));
                return ExitCode::from(FAILED);
            }
            End::OutOfTime => {
                say(&format!("highwater: not done within {} s", DEADLINE.as_secs()));
            }
            End::Arrived => {}
        }
        match self.findings().await {
            Ok(findings) => judge(&findings, &end),
            Err(reason) => {
                say(&format!("highwater: {reason}"));
                ExitCode::from(FAILED)
            }
        }
    }

    async fn findings(&self) -> Result<Findings, String> {
        let table = timeout(STOP_MAX, self.stage.table()).await;
        let table = table.map_err(|elapsed| format!("read the table: {elapsed}"))??;
        let (written, receiver, counts) =
            (&self.stage.written, &self.stage.receiver, self.host.counts());
        Ok(Findings {
            loaded: self.stage.loaded,
            inserted: written.inserted(),
            changed: written.changed(),
            delivered: receiver.tally(tally::Tally::accepted),
            again: receiver.tally(tally::Tally::redeliveries),
            lost: receiver.tally(|tally| lost(&table, written.changed(), tally)),
            calls: receiver.calls(),
            invocations: counts.invocations.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
            killed: counts.killed.load(Ordering::Relaxed),
            logged: self.console.counts(),
            took: self.took.unwrap_or_else(|| self.began_at.elapsed()),
            resumed_after: self.resumed_after,
        })
    }
}

fn judge(findings: &Findings, end: &End) -> ExitCode {
    // Not `print!`, which panics if the output is closed.
    let printed = std::io::stdout().write_all(findings.to_string().as_bytes());
    let mut shortcomings = findings.shortcomings();
    shortcomings.extend(printed.err().map(|error| format!("print the table: {error}")));
    for shortcoming in &shortcomings {
        say(&format!("highwater: {shortcoming}"));
    }
    let shown = shortcomings.is_empty() && matches!(end, End::Arrived);
    if shown { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}
