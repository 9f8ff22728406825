//! The host: runs functions, and stops.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::Value as Json;
use time::OffsetDateTime;
use tokio::process::Command;
use tokio::sync::{Mutex as Turn, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::body::{self, Invocation, Retry, Run};
use super::exporter;
use super::journal::{Journal, Level};
use super::judge::Verdict;
use super::listener::Listener;
use super::process::{Exit, Options, Order, Phase, Process, Signal};
use super::schedule::Schedule;
use super::timers::{Timers, timestamp};
use super::wire::{Reply, call};
use super::{INVOKE_WAIT_MAX, KILL_WAIT, STATUS_SCHEDULE_MIN, STOP_WAIT, TIMEOUT_GRACE};

#[expect(clippy::disallowed_methods, reason = "a host's timers go by the wall clock")]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// The result of an invocation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The invocation's id.
    pub id: String,
    /// The host's verdict.
    pub verdict: Verdict,
    /// The handler's reply, if any.
    pub reply: Option<Reply>,
    /// From the request to the reply.
    pub duration: Duration,
}

/// A running host; clones are the same host. Dropping the last one kills the handler.
#[derive(Clone, Debug)]
pub struct FakeHost(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    process: Arc<Process>,
    orders: mpsc::Sender<Order>,
    /// Invocations and timer runs in progress.
    running: watch::Sender<usize>,
    /// Each timer runs one occurrence at a time.
    turns: Mutex<BTreeMap<String, Arc<Turn<()>>>>,
    /// The timers that have fired, or wait for their lock.
    listeners: Mutex<BTreeMap<String, Listener>>,
    supervisor: AbortHandle,
    /// Whether timers fire by their schedules.
    ticking: watch::Sender<bool>,
    /// Sends logged records to a collector, with the number of records sent.
    exporter: Option<(AbortHandle, watch::Receiver<usize>)>,
}

/// How a host restarts in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// A new handler is started at once, and the old one is killed after its invocations, as in Azure.
    SideBySide,
    /// The new handler is started when the old one has exited, as under `func start`.
    OneAfterTheOther,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Drops the child, which kills it.
        self.supervisor.abort();
        if let Some((exporter, _)) = &self.exporter {
            exporter.abort();
        }
    }
}

impl FakeHost {
    /// Starts the handler without waiting for it: see [`FakeHost::ready`].
    ///
    /// # Errors
    ///
    /// [`io::Error`] if no port is free.
    pub fn start(options: Options) -> io::Result<Self> {
        let process = Arc::new(Process::new(options)?);
        let (orders, receiver) = mpsc::channel(1);
        let supervised = Arc::clone(&process);
        let task = tokio::spawn(async move { supervised.supervise(receiver).await });
        let (is_away, wait) = (process.options.timers.is_away(), process.options.storage_wait);
        let (root, env) = (&process.options.root, &process.options.env);
        let exporter = exporter::collector(root, env).map(|port| {
            let (sent, count) = watch::channel(0);
            let task = tokio::spawn(exporter::export(Arc::clone(&process), port, sent));
            (task.abort_handle(), count)
        });
        let inner = Inner {
            exporter,
            ticking: watch::Sender::new(false),
            process,
            orders,
            running: watch::Sender::new(0),
            turns: Mutex::default(),
            listeners: Mutex::default(),
            supervisor: task.abort_handle(),
        };
        let inner = Arc::new(inner);
        tokio::spawn(end_without_storage(Arc::downgrade(&inner), is_away, wait));
        Ok(Self(inner))
    }

    /// The port of the handler, the same after every restart except a restart in place.
    pub fn port(&self) -> u16 {
        self.0.process.port
    }

    /// The host's log.
    pub fn journal(&self) -> &Journal {
        &self.0.process.journal
    }

    /// The storage account; pass it to the next host.
    pub fn timers(&self) -> &Timers {
        &self.0.process.options.timers
    }

    /// The current phase of the handler's process.
    pub fn phase(&self) -> Phase {
        *self.0.process.phase.borrow()
    }

    /// The exits of the process so far.
    pub fn exits(&self) -> Vec<Exit> {
        self.0.process.exits.borrow().clone()
    }

    /// Waits until the handler answers in its `life`th run or a later one, or never will.
    pub async fn ready(&self, life: u32) -> Phase {
        self.wait_for(INVOKE_WAIT_MAX, |phase| match phase {
            Phase::Starting => false,
            Phase::Ready { life: current, .. } => *current >= life,
            Phase::Dead | Phase::Unstartable | Phase::ShutDown | Phase::Stopped | Phase::Left => {
                true
            }
        })
        .await
    }

    /// Waits for the `number`th exit of the process, for at most `limit`.
    pub async fn exit(&self, number: usize, limit: Duration) -> Option<Exit> {
        let mut exits = self.0.process.exits.subscribe();
        let there = timeout(limit, exits.wait_for(|exits| exits.len() >= number)).await;
        there.ok()?.ok()?.get(number.checked_sub(1)?).copied()
    }

    /// Returns when a timer fires next, by its `function.json` and the host's time zone; `None` if it never does.
    pub fn next_tick(&self, function: &str) -> Option<OffsetDateTime> {
        self.schedules().remove(function)?.next(now())
    }

    /// Lets every timer of the app fire on its schedule until the host stops.
    pub fn start_timers(&self) {
        self.0.ticking.send_replace(true);
        for (function, schedule) in self.schedules() {
            tokio::spawn(keep_time(Arc::downgrade(&self.0), function, schedule));
        }
    }

    /// Returns the schedules of the enabled timers.
    fn schedules(&self) -> BTreeMap<String, Schedule> {
        let Options { root, env, .. } = &self.0.process.options;
        let is_off = |function: &str| {
            ['.', '_'].iter().any(|between| {
                let wanted = format!("AzureWebJobs{between}{function}{between}Disabled");
                let set = env.iter().find(|(name, _)| name.eq_ignore_ascii_case(&wanted));
                set.is_some_and(|(_, it)| it.eq_ignore_ascii_case("true") || it.trim() == "1")
            })
        };
        let schedule = |folder: &Path| {
            let file = std::fs::read_to_string(folder.join("function.json")).ok()?;
            let json: Json = serde_json::from_str(&file).ok()?;
            let text = json.pointer("/bindings/0/schedule")?.as_str()?;
            Schedule::of_app(text, env)
        };
        let folders = std::fs::read_dir(root).into_iter().flatten().flatten();
        let named = folders.filter_map(|folder| {
            let name = folder.file_name().into_string().ok().filter(|name| !is_off(name))?;
            Some((name, schedule(&folder.path())?))
        });
        named.collect()
    }

    /// Waits until the log is exported, if the host exports it.
    async fn exported(&self) {
        let Some((_, sent)) = &self.0.exporter else { return };
        let logged = self.journal().records().len();
        // Its sender ends with this host.
        drop(timeout(STOP_WAIT, sent.clone().wait_for(|sent| *sent >= logged)).await);
    }

    /// Runs a function as the admin endpoint does: concurrently with other runs, and without a status.
    pub async fn invoke(&self, invocation: Invocation) -> Outcome {
        let function = &invocation.function;
        let category = format!("Function.{function}");
        let id = &invocation.id;
        let log = |level, text: String| self.journal().write(level, &category, text);
        log(Level::Information, format!("Executing 'Functions.{function}' (Id={id})"));
        let _running = Running::new(&self.0.running);
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

    /// Runs a function as its timer does: after an earlier run, and with a stored status. Waits for the lock
    /// of the timer's listener, which a host with the same id may hold.
    pub async fn fire(&self, function: &str) -> Outcome {
        let mut outcomes = self.fire_with_retry(function, None).await;
        outcomes.pop().expect("there is a first try")
    }

    /// The same under a retry policy; returns all attempts, which share an id.
    pub async fn fire_with_retry(&self, function: &str, retry: Option<Retry>) -> Vec<Outcome> {
        let turn = Arc::clone(self.turns().entry(function.to_owned()).or_default());
        let _turn = turn.lock().await;
        let (mut held, is_first) = self.listener(function);
        if held.wait_for(|held| *held).await.is_err() {
            return vec![self.invoke(Invocation::new(function, "")).await];
        }
        let running = Running::new(&self.0.running);
        let keeps_status = self.0.process.options.schedule >= STATUS_SCHEDULE_MIN;
        let status = self.timers().begin(function, now());
        let is_past_due = keeps_status && is_first && status.pending;
        // A negative number means unlimited.
        let count_max = retry.map_or(0, |retry| u32::try_from(retry.count_max).unwrap_or(u32::MAX));
        let mut invocation = Invocation::new(function, "");
        let mut outcomes: Vec<Outcome> = Vec::new();
        for count in 0..=count_max {
            let failure = match outcomes.last().map(|outcome| &outcome.verdict) {
                Some(Verdict::Failure(text)) => Some(text.as_str()),
                Some(_) | None => None,
            };
            invocation.body = body::timer(&Run {
                function,
                id: &invocation.id,
                now: &timestamp(now()).replace("+00:00", "Z"),
                status: keeps_status.then_some(&status),
                is_past_due,
                retry: retry.map(|retry| (count, retry.count_max, failure)),
            });
            let outcome = self.invoke(invocation.clone()).await;
            let ended = outcome.verdict.is_success() || count == count_max;
            outcomes.push(outcome);
            if ended {
                break;
            }
            sleep(retry.map_or(Duration::ZERO, |retry| retry.delay)).await;
        }
        self.timers().end(function, now());
        drop(running);
        outcomes
    }

    /// Sends a signal to the handler from outside; the host then observes the effect.
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

    /// Stops as the host does: waits for running invocations, then kills the handler, and returns its exit.
    /// If they take too long, the host leaves the handler running and keeps its locks: `None`.
    pub async fn stop(&self) -> Option<Exit> {
        self.0.ticking.send_replace(false);
        let exit = self.end().await;
        self.exported().await;
        exit
    }

    async fn end(&self) -> Option<Exit> {
        let process = &self.0.process;
        let options = &process.options;
        process.stopping.store(true, Ordering::Relaxed);
        let before = self.exits().len();
        let all_ended = timeout(options.stop_wait, self.all_ended()).await.is_ok();
        if options.terminate_first && self.signal(Signal::Terminate).await.is_ok() {
            let exit = self.exit(before + 1, STOP_WAIT).await;
            if exit.is_some() {
                self.release_locks();
                return exit;
            }
        }
        if !all_ended {
            process.log(Level::Warning, "Host did not shutdown within its allotted time");
            self.leave().await;
            return None;
        }
        self.release_locks();
        self.kill().await;
        self.exit(before + 1, KILL_WAIT).await
    }

    /// Restarts in place, as after a change of a file of the app, and returns the host with the new handler, which has a
    /// new port. The old handler finishes its invocations and is killed.
    ///
    /// # Errors
    ///
    /// As [`FakeHost::start`].
    pub async fn restart_in_place(&self, how: InPlace) -> io::Result<Self> {
        let options = self.0.process.options.clone();
        self.0.process.stopping.store(true, Ordering::Relaxed);
        self.release_locks();
        let (old, before) = (self.clone(), self.exits().len());
        let retire = async move {
            old.all_ended().await;
            old.kill().await;
            old.exit(before + 1, KILL_WAIT).await;
        };
        match how {
            InPlace::SideBySide => drop(tokio::spawn(retire)),
            InPlace::OneAfterTheOther => retire.await,
        }
        Self::start(options)
    }

    /// Kills the handler (SIGKILL) as after a timeout: it is restarted, and no error is counted.
    pub async fn kill(&self) {
        // Fails only if there is nothing left to kill.
        if self.0.orders.send(Order::Kill).await.is_err() {
            self.0.process.log(Level::Information, "The handler is gone already");
        }
    }

    /// Exits and leaves the handler running. The locks remain until their leases expire.
    async fn leave(&self) {
        self.listeners().clear();
        if self.0.orders.send(Order::Leave).await.is_err() {
            self.0.process.log(Level::Information, "The handler is gone already");
        }
        self.wait_for(KILL_WAIT, |phase| phase.host_exit_code().is_some()).await;
    }

    /// Waits until no invocation runs.
    async fn all_ended(&self) {
        let mut running = self.0.running.subscribe();
        // Its sender lives as long as this host, so only the count ends the wait.
        drop(running.wait_for(|count| *count == 0).await);
    }

    /// Returns a channel with whether the listener of a function holds its lock, and whether this call
    /// started it.
    fn listener(&self, function: &str) -> (watch::Receiver<bool>, bool) {
        let options = &self.0.process.options;
        let mut listeners = self.listeners();
        let is_first = !listeners.contains_key(function);
        let start = || {
            let name = (options.host_id.clone(), function.to_owned());
            Listener::start(&options.timers, name, options.singleton)
        };
        (listeners.entry(function.to_owned()).or_insert_with(start).held(), is_first)
    }

    fn release_locks(&self) {
        for listener in std::mem::take(&mut *self.listeners()).into_values() {
            listener.release();
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
            phase @ (Phase::Starting
            | Phase::Unstartable
            | Phase::ShutDown
            | Phase::Stopped
            | Phase::Left) => {
                return (Verdict::Failure(format!("the handler is not there: {phase:?}")), None);
            }
        }
        let exchange = call(self.port(), invocation);
        tokio::pin!(exchange);
        let limit = self.0.process.options.function_timeout;
        if let Ok(answered) = timeout(limit, &mut exchange).await {
            return answered;
        }
        let function = &invocation.function;
        self.journal().write(
            Level::Error,
            &format!("Function.{function}"),
            format!("Timeout value of {limit:?} exceeded by 'Functions.{function}'"),
        );
        // The request is not cancelled, and a response comes too late.
        let (_late, ()) = tokio::join!(timeout(TIMEOUT_GRACE, &mut exchange), sleep(TIMEOUT_GRACE));
        (Verdict::TimedOut, None)
    }

    async fn kill_after_timeout(&self, invocation: &Invocation) {
        let text = format!("Restarting the worker process; invocation {}", invocation.id);
        self.0.process.log(Level::Information, text);
        self.kill().await;
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Turn<()>>>> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, BTreeMap<String, Listener>> {
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fires a timer whenever it is due. As in the host, times that passed during a run are one run after it.
async fn keep_time(host: Weak<Inner>, function: String, schedule: Schedule) {
    let ticking = host.upgrade().map(|host| host.ticking.subscribe());
    let Some(mut ticking) = ticking else { return };
    let mut due = schedule.next(now());
    while let Some(at) = due {
        let wait = Duration::try_from(at - now()).unwrap_or_default();
        tokio::select! {
            _ = ticking.wait_for(|ticking| !ticking) => return,
            () = sleep(wait) => {}
        }
        let Some(host) = host.upgrade().map(FakeHost) else { return };
        host.fire(&function).await;
        due = schedule.next(at).map(|next| next.max(now()));
    }
}

/// Ends a host whose storage account remains unreachable.
async fn end_without_storage(
    host: Weak<Inner>,
    mut is_away: watch::Receiver<bool>,
    wait: Duration,
) {
    while is_away.wait_for(|is_away| *is_away).await.is_ok() {
        let back = timeout(wait, is_away.wait_for(|is_away| !is_away)).await;
        match back.map(|back| back.is_ok()) {
            Ok(true) => {}
            // No host uses this account any more.
            Ok(false) => return,
            Err(_elapsed) => {
                if let Some(host) = host.upgrade().map(FakeHost) {
                    let text = "The storage account cannot be reached; the host ends";
                    host.0.process.log(Level::Error, text);
                    host.leave().await;
                }
                return;
            }
        }
    }
}

/// Counts a run while it lives.
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
