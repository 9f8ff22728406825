//! Runs ticks on their schedules without a Functions host.
//!
//! As in the host, ticks of one function never overlap. After a tick that took longer than its interval, the next
//! one runs at the next due time. Missed times are not made up for, since each tick reads all pending rows.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, error};

use crate::clock::Clock;
use crate::schedule::Schedule;

/// The work of a timer; completes when the tick has ended.
pub type Work = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A function and its schedule.
#[derive(Clone)]
pub struct Timer {
    /// Name of the function.
    pub function: String,
    /// When it is due.
    pub schedule: Schedule,
    /// What it does.
    pub work: Work,
}

impl fmt::Debug for Timer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Timer");
        debug.field("function", &self.function).field("schedule", &self.schedule);
        debug.finish_non_exhaustive()
    }
}

/// Longest sleep without reading the clock, which may be adjusted, or stop while the machine is suspended.
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// Runs all `timers` concurrently until `asked_to_stop` completes, then waits for running ticks.
pub async fn drive(
    timers: Vec<Timer>,
    clock: Arc<dyn Clock>,
    asked_to_stop: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(false);
    let mut running = JoinSet::new();
    for timer in timers {
        running.spawn(keep(timer, Arc::clone(&clock), stopped.clone()));
    }
    asked_to_stop.await;
    stop.send_replace(true);
    while running.join_next().await.is_some() {}
}

async fn keep(timer: Timer, clock: Arc<dyn Clock>, mut stopped: watch::Receiver<bool>) {
    let function = timer.function.as_str();
    let mut after = clock.now();
    loop {
        // Terminates, because the calendar ends.
        let Some(due_at) = timer.schedule.next_after(after) else { return };
        debug!(event = "due", function, due_at = %due_at, "Function `{function}` waits");
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return,
            () = sleep_until(due_at, clock.as_ref()) => {}
        }
        // In its own task, so that a panic fails only this tick.
        if let Err(failure) = tokio::spawn((timer.work)()).await {
            let error = failure.to_string();
            error!(
                event = "tick_panicked",
                function, error, "Function `{function}` panicked; please report this bug"
            );
        }
        // If the clock was set back, do not run the same due time twice.
        after = clock.now().max(due_at);
    }
}

async fn sleep_until(due_at: OffsetDateTime, clock: &dyn Clock) {
    // A negative rest does not convert: the wait is over.
    while let Ok(rest) = Duration::try_from(due_at - clock.now())
        && !rest.is_zero()
    {
        sleep(rest.min(SLEEP_MAX)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use time::macros::datetime;

    use super::*;
    use crate::clock::TokioClock;

    const START: OffsetDateTime = datetime!(2026-11-21 13:59:50 UTC);

    /// Seconds after [`START`] at which each tick started.
    type Starts = Arc<Mutex<Vec<i64>>>;

    fn timer(schedule: &str, clock: TokioClock, duration: Duration) -> (Timer, Starts) {
        let starts = Starts::default();
        let seen = Arc::clone(&starts);
        let work: Work = Arc::new(move || {
            let seen = Arc::clone(&seen);
            Box::pin(async move {
                let second = (clock.now() - START).whole_seconds();
                seen.lock().unwrap().push(second);
                assert_ne!(second, 25, "a tick that panics");
                sleep(duration).await;
            })
        });
        let schedule = Schedule::parse(schedule).unwrap();
        (Timer { function: "orders".to_owned(), schedule, work }, starts)
    }

    async fn driven(schedule: &str, duration: u64, for_seconds: u64) -> (Vec<i64>, i64) {
        let clock = TokioClock::starting_at(START);
        let (timer, starts) = timer(schedule, clock, Duration::from_secs(duration));
        drive(vec![timer], Arc::new(clock), sleep(Duration::from_secs(for_seconds))).await;
        let starts = starts.lock().unwrap().clone();
        (starts, (clock.now() - START).whole_seconds())
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_start_when_due_and_a_panic_fails_only_its_tick() {
        assert_eq!(driven("*/15 * * * * *", 1, 60).await, (vec![10, 25, 40, 55], 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_longer_than_its_interval_does_not_overlap_the_next() {
        assert_eq!(driven("*/5 * * * * *", 12, 51).await, (vec![5, 20, 35, 50], 62));
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_waits_for_a_running_tick_only() {
        assert_eq!(driven("0 * * * * *", 30, 15).await, (vec![10], 40));
        assert_eq!(driven("0 0 3 * * *", 30, 15).await, (vec![], 15));
    }
}
