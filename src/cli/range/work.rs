//! The windows of a range, and the workers that deliver them, in this process and in others.
//!
//! Only the leases of the windows decide who delivers which one. A window that another process holds is
//! skipped and checked again later, because its lease expires if that process crashes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use super::progress::Progress;
use super::{Begun, windows};
use crate::output::{Exit, Failed, print_message_nonblocking};
use highwater::admin::RangeEnd;
use highwater::builder::range::{Ranges, Worker};
use highwater::poller::StopSignal;
use highwater::range::Range;
use highwater::state::RangeRecord;

/// How long a window that another process holds is skipped.
const HELD_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which an idle worker looks for a window.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of progress lines.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// A range that is being delivered.
pub(super) struct Work {
    ranges: Arc<Ranges>,
    /// Name of the range's own document.
    name: String,
    record: RangeRecord,
    replay_id: String,
    windows: Vec<(String, Range)>,
    states: Mutex<Vec<Window>>,
    rows_before: u64,
    stop: StopSignal,
}

/// State of a window, as far as this process knows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Window {
    Open,
    /// A worker of this process delivers it.
    Busy,
    /// Another process held it.
    HeldUntil(Instant),
    Done,
}

/// Next work of a worker.
enum Found {
    Window(usize),
    /// Other workers or processes have the remaining windows.
    Nothing,
    AllDone,
}

impl Work {
    /// Reads the progress of the windows.
    pub(super) async fn of(
        ranges: &Arc<Ranges>,
        begun: &Begun,
        replay_id: String,
        stop: StopSignal,
    ) -> Result<Arc<Self>, Failed> {
        let worker = Worker::new(ranges)?;
        let windows = windows(begun);
        let (mut states, mut rows_before) = (Vec::new(), 0);
        for (name, _) in &windows {
            let record = worker.range(name).admin().range().await?;
            let done = record.as_ref().is_some_and(|record| record.done_at.is_some());
            states.push(if done { Window::Done } else { Window::Open });
            rows_before += record.map_or(0, |record| record.rows);
        }
        Ok(Arc::new(Self {
            ranges: Arc::clone(ranges),
            name: begun.name.clone(),
            record: begun.record.clone(),
            replay_id,
            windows,
            states: Mutex::new(states),
            rows_before,
            stop,
        }))
    }

    fn states(&self) -> MutexGuard<'_, Vec<Window>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, index: usize, state: Window) {
        if let Some(window) = self.states().get_mut(index) {
            *window = state;
        }
    }

    /// Takes a window for a worker. Each process starts at another window, to avoid contention.
    fn take(&self) -> Found {
        let mut states = self.states();
        if states.iter().all(|state| *state == Window::Done) {
            return Found::AllDone;
        }
        let first = usize::try_from(std::process::id()).unwrap_or(0) % states.len().max(1);
        let free = |state: &Window| match state {
            Window::Open => true,
            Window::HeldUntil(until) => *until <= Instant::now(),
            Window::Busy | Window::Done => false,
        };
        let mut in_turn = (first..states.len()).chain(0..first);
        let found = in_turn.find(|index| states.get(*index).is_some_and(free));
        match found {
            Some(index) => {
                if let Some(state) = states.get_mut(index) {
                    *state = Window::Busy;
                }
                Found::Window(index)
            }
            None => Found::Nothing,
        }
    }

    fn progress(&self, began_at: Instant) -> Progress {
        let states = self.states();
        Progress {
            rows_planned: self.record.rows_planned,
            rows_before: self.rows_before,
            rows_here: self.ranges.pace().taken(),
            windows: states.len(),
            windows_done: states.iter().filter(|state| **state == Window::Done).count(),
            elapsed: began_at.elapsed(),
        }
    }

    /// Delivers windows until all are done.
    async fn worker(&self) -> Result<RangeEnd, Failed> {
        let worker = Worker::new(&self.ranges)?;
        loop {
            if self.stop.is_set() {
                return Ok(RangeEnd::Stopped);
            }
            let index = match self.take() {
                Found::AllDone => return Ok(RangeEnd::Done),
                Found::Nothing => {
                    sleep(LOOK_INTERVAL).await;
                    continue;
                }
                Found::Window(index) => index,
            };
            match Box::pin(self.deliver(&worker, index)).await? {
                RangeEnd::Done => self.set(index, Window::Done),
                RangeEnd::Held { .. } => {
                    self.set(index, Window::HeldUntil(Instant::now() + HELD_INTERVAL));
                }
                end @ (RangeEnd::Stopped | RangeEnd::Cancelled | RangeEnd::Paused { .. }) => {
                    return Ok(end);
                }
            }
        }
    }

    async fn deliver(&self, worker: &Worker, index: usize) -> Result<RangeEnd, Failed> {
        let Some((name, window)) = self.windows.get(index) else { return Ok(RangeEnd::Done) };
        let range = worker.range(name);
        if *name != self.name {
            let whole = worker.range(&self.name).admin().range().await?;
            if whole.is_none_or(|whole| whole.cancelled_at.is_some()) {
                return Ok(RangeEnd::Cancelled);
            }
            let record = RangeRecord {
                after: window.after.clone(),
                upto: window.upto.clone(),
                windows: Vec::new(),
                rows_planned: 0,
                rows: 0,
                done_at: None,
                cancelled_at: None,
                ..self.record.clone()
            };
            range.admin().begin_range(&record, &self.replay_id).await?;
        }
        let mut on_tick = |report: &highwater::tick::TickReport| {
            if report.result.is_err() {
                print_message_nonblocking(&format!("{name}: {}", report.summary));
            }
        };
        Ok(Box::pin(range.admin().deliver_range(&self.stop, &mut on_tick)).await?)
    }
}

/// Delivers a range with the given number of workers, and prints progress.
///
/// A worker that cannot continue stops the others after their in-flight batch: the cause is most likely the target
/// or the source, which they share.
pub(super) async fn run(work: Arc<Work>, workers: usize) -> Result<RangeEnd, Failed> {
    let began_at = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..workers.min(work.windows.len()) {
        let work = Arc::clone(&work);
        running.spawn(async move { Box::pin(work.worker()).await });
    }
    let mut beat = interval(TELL_INTERVAL);
    beat.tick().await;
    let mut ended = Ok(RangeEnd::Done);
    loop {
        tokio::select! {
            biased;
            done = running.join_next() => {
                let Some(done) = done else { break };
                let end = done.unwrap_or_else(|error| {
                    Err(Failed::new(Exit::Failed, format!("a worker crashed: {error}")))
                });
                if end == Ok(RangeEnd::Done) {
                    continue;
                }
                work.stop.set();
                // `Stopped` of the other workers is only a consequence, so keep the first cause.
                if ended == Ok(RangeEnd::Done) || ended == Ok(RangeEnd::Stopped) {
                    ended = end;
                }
            }
            _ = beat.tick() => work.progress(began_at).show(),
        }
    }
    work.progress(began_at).show();
    Progress::end();
    ended
}
