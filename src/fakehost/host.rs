//! The host: runs functions, and stops.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::{Mutex as Turn, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::body::{self, Invocation, Retry};
use super::journal::{Journal, Level};
use super::judge::{Verdict, judge};
use super::process::{Exit, Kill, Options, Phase, Process, Signal};
use super::timers::{Timers, timestamp};
use super::wire::{self, Connection, Reply};
use super::{INVOKE_WAIT_MAX, KILL_WAIT, STOP_WAIT, TIMEOUT_GRACE};
use crate::clock::{Clock as _, SystemClock};

/// How an invocation ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The invocation's id.
    pub id: String,
    /// The host's judgement.
    pub verdict: Verdict,
    /// What the handler replied, if it did.
    pub reply: Option<Reply>,
    /// From the request to the reply.
    pub duration: Duration,
}

/// A running host; clones are the same host. With the last one the handler is killed.
#[derive(Clone, Debug)]
pub struct FakeHost(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    process: Arc<Process>,
    kills: mpsc::Sender<Kill>,
    /// Timer runs that have not ended.
    running: watch::Sender<usize>,
    /// One run at a time of each timer.
    turns: Mutex<BTreeMap<String, Arc<Turn<()>>>>,
    /// Timers whose last occurrence was missed, until they fire for the first time.
    past_due: Mutex<BTreeSet<String>>,
    supervisor: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Drops the child, which is killed with it.
        self.supervisor.abort();
    }
}

impl FakeHost {
    /// Starts the handler, and does not wait for it: see [`FakeHost::ready`].
    ///
    /// # Errors
    ///
    /// [`io::Error`] if no port is free.
    pub fn start(options: Options) -> io::Result<Self> {
        let past_due = Mutex::new(options.timers.past_due());
        let process = Arc::new(Process::new(options)?);
        let (kills, receiver) = mpsc::channel(1);
        let supervised = Arc::clone(&process);
        let task = tokio::spawn(async move { supervised.supervise(receiver).await });
        let inner = Inner {
            process,
            kills,
            running: watch::Sender::new(0),
            turns: Mutex::default(),
            past_due,
            supervisor: task.abort_handle(),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The port of the handler, the same in all its lives.
    pub fn port(&self) -> u16 {
        self.0.process.port
    }

    /// What the host has logged.
    pub fn journal(&self) -> &Journal {
        &self.0.process.journal
    }

    /// What is known of the timers; give it to the next host.
    pub fn timers(&self) -> &Timers {
        &self.0.process.options.timers
    }

    /// What the handler's process does now.
    pub fn phase(&self) -> Phase {
        *self.0.process.phase.borrow()
    }

    /// How the process ended so far.
    pub fn exits(&self) -> Vec<Exit> {
        self.0.process.exits.borrow().clone()
    }

    /// Waits until the handler answers in its `life`th life or a later one, or never will.
    pub async fn ready(&self, life: u32) -> Phase {
        self.wait_for(INVOKE_WAIT_MAX, |phase| match phase {
            Phase::Starting => false,
            Phase::Ready { life: current, .. } => *current >= life,
            Phase::Dead | Phase::Unstartable | Phase::ShutDown | Phase::Stopped => true,
        })
        .await
    }

    /// Waits for the `number`th end of the process, for at most `limit`.
    pub async fn exit(&self, number: usize, limit: Duration) -> Option<Exit> {
        let mut exits = self.0.process.exits.subscribe();
        let there = timeout(limit, exits.wait_for(|exits| exits.len() >= number)).await;
        there.ok()?.ok()?.get(number.checked_sub(1)?).copied()
    }

    /// Runs a function as the admin endpoint does: whatever else runs, and without a status.
    pub async fn invoke(&self, invocation: Invocation) -> Outcome {
        let function = &invocation.function;
        let category = format!("Function.{function}");
        let id = &invocation.id;
        let log = |level, text: String| self.journal().write(level, &category, text);
        log(Level::Information, format!("Executing 'Functions.{function}' (Id={id})"));
        let began_at = Instant::now();
        let (verdict, reply) = self.send(&invocation).await;
        let duration = began_at.elapsed();
        let tail = format!("Id={id}, Duration={}ms)", duration.as_millis());
        match &verdict {
            Verdict::Success(logs) => {
                for text in logs.iter().flatten() {
                    self.journal().write(Level::Information, &format!("{category}.User"), text);
                }
                let text = format!("Executed 'Functions.{function}' (Succeeded, {tail}");
                log(Level::Information, text);
            }
            Verdict::Failure(why) => {
                log(
                    Level::Error,
                    format!("Executed 'Functions.{function}' (Failed, {tail}: {why}"),
                );
            }
            Verdict::Hang(why) => {
                log(Level::Error, format!("'Functions.{function}' would never end: {why} ({tail}"));
            }
            Verdict::Follows(to) => {
                log(Level::Error, format!("'Functions.{function}' led to {to} ({tail}"));
            }
            Verdict::TimedOut => self.kill_after_timeout(&invocation).await,
        }
        Outcome { id: invocation.id, verdict, reply, duration }
    }

    /// Runs a function as its timer does: after an earlier run, and with a status kept.
    pub async fn fire(&self, function: &str) -> Outcome {
        let mut outcomes = self.fire_with_retry(function, None).await;
        outcomes.pop().expect("there is a first try")
    }

    /// The same under a retry policy; returns all tries, which share an id.
    pub async fn fire_with_retry(&self, function: &str, retry: Option<Retry>) -> Vec<Outcome> {
        let turn = Arc::clone(self.turns().entry(function.to_owned()).or_default());
        let _turn = turn.lock().await;
        let running = Running::new(&self.0.running);
        let status = self.timers().begin(function, SystemClock.now());
        let is_past_due = self.past_due().remove(function);
        let tries_max = 1 + retry.map_or(0, |retry| retry.count_max);
        let mut invocation = Invocation::new(function, "");
        let mut outcomes: Vec<Outcome> = Vec::new();
        for count in 0..tries_max {
            let failure = match outcomes.last().map(|outcome| &outcome.verdict) {
                Some(Verdict::Failure(text)) => Some(text.as_str()),
                Some(_) | None => None,
            };
            let now = timestamp(SystemClock.now());
            let retried = retry.map(|retry| (count, retry.count_max, failure));
            invocation.body = body::timer(function, &now, &status, is_past_due, retried);
            let outcome = self.invoke(invocation.clone()).await;
            let ended = outcome.verdict.is_success() || count + 1 == tries_max;
            outcomes.push(outcome);
            if ended {
                break;
            }
            sleep(retry.map_or(Duration::ZERO, |retry| retry.delay)).await;
        }
        self.timers().end(function, SystemClock.now());
        drop(running);
        outcomes
    }

    /// Sends a signal to the handler from outside; the host then sees how it takes it.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if there is no process, or `kill` cannot be run.
    pub async fn signal(&self, signal: Signal) -> io::Result<()> {
        let Phase::Ready { pid, .. } = self.phase() else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        let flag = match signal {
            Signal::Terminate => "-TERM",
            Signal::Interrupt => "-INT",
            Signal::HangUp => "-HUP",
            Signal::Kill => "-KILL",
        };
        let mut kill = Command::new("kill");
        let kill = kill.arg(flag).arg(pid.to_string()).stderr(Stdio::null());
        let status = kill.status().await?;
        if status.success() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
    }

    /// Stops as the host does: waits for running timers, then kills; returns how the process ended.
    pub async fn stop(&self) -> Option<Exit> {
        let process = &self.0.process;
        process.stopping.store(true, Ordering::Relaxed);
        let before = self.exits().len();
        let mut running = self.0.running.subscribe();
        if timeout(STOP_WAIT, running.wait_for(|count| *count == 0)).await.is_err() {
            process.log(Level::Warning, "Stopping with a timer still running");
        }
        if process.options.terminate_first && self.signal(Signal::Terminate).await.is_ok() {
            let exit = self.exit(before + 1, STOP_WAIT).await;
            if exit.is_some() {
                return exit;
            }
        }
        self.kill().await;
        self.exit(before + 1, KILL_WAIT).await
    }

    /// Kills the handler (SIGKILL) as after a time-out: it is started again, and no error is counted.
    pub async fn kill(&self) {
        // Fails only where nothing is left to kill.
        if self.0.kills.send(Kill).await.is_err() {
            self.0.process.log(Level::Information, "The handler is gone already");
        }
    }

    async fn wait_for(&self, limit: Duration, fits: impl Fn(&Phase) -> bool) -> Phase {
        let mut phases = self.0.process.phase.subscribe();
        match timeout(limit, phases.wait_for(fits)).await {
            Ok(Ok(phase)) => *phase,
            Ok(Err(_)) | Err(_) => self.phase(),
        }
    }

    async fn send(&self, invocation: &Invocation) -> (Verdict, Option<Reply>) {
        match self.ready(1).await {
            Phase::Ready { .. } | Phase::Dead => {}
            phase @ (Phase::Starting | Phase::Unstartable | Phase::ShutDown | Phase::Stopped) => {
                return (Verdict::Failure(format!("the handler is not there: {phase:?}")), None);
            }
        }
        let request = wire::request(self.port(), invocation);
        let exchange = async {
            let mut connection = Connection::open(self.port()).await?;
            connection.exchange(&request).await
        };
        tokio::pin!(exchange);
        match timeout(self.0.process.options.function_timeout, &mut exchange).await {
            Ok(Ok(reply)) => (judge(Some(&reply)), Some(reply)),
            Ok(Err(error)) => (Verdict::Failure(format!("HttpRequestException: {error}")), None),
            Err(_) => {
                let limit = self.0.process.options.function_timeout;
                let function = &invocation.function;
                self.journal().write(
                    Level::Error,
                    &format!("Function.{function}"),
                    format!("Timeout value of {limit:?} exceeded by 'Functions.{function}'"),
                );
                // The request is not cancelled, and an answer comes too late.
                let (_late, ()) =
                    tokio::join!(timeout(TIMEOUT_GRACE, &mut exchange), sleep(TIMEOUT_GRACE));
                (Verdict::TimedOut, None)
            }
        }
    }

    async fn kill_after_timeout(&self, invocation: &Invocation) {
        let text = format!("Restarting the worker process; invocation {}", invocation.id);
        self.0.process.log(Level::Information, text);
        self.kill().await;
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Turn<()>>>> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past_due(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.past_due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a timer's run for as long as it lives.
struct Running<'a>(&'a watch::Sender<usize>);

impl<'a> Running<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
