//! Runs ticks by their schedules where no Functions host does.
//!
//! As with the host, ticks of one function never overlap, and one that took longer than its interval is
//! followed by the next due time after its end: what was missed meanwhile is not made up for, since each
//! tick reads all that there is.

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

/// What a timer starts; it ends when the tick has ended.
pub type Work = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A function and when it runs.
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

/// Longest sleep without a look at the clock, which may be set, or have stood still with the machine.
const LOOK_AFTER: Duration = Duration::from_secs(30);

/// Runs all `timers` side by side until `asked_to_stop` completes, then until what runs has ended.
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
        // Never for ever: the calendar ends.
        let Some(due_at) = timer.schedule.next_after(after) else { return };
        debug!(event = "due", function, due_at = %due_at, "Function `{function}` waits");
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return,
            () = sleep_until(due_at, clock.as_ref()) => {}
        }
        // In a task of its own: a panic is one failed tick.
        if let Err(failure) = tokio::spawn((timer.work)()).await {
            let error = failure.to_string();
            error!(
                event = "tick_panicked",
                function, error, "Function `{function}` panicked: please report this"
            );
        }
        // Where the clock was set back, a time that was due is not due again.
        after = clock.now().max(due_at);
    }
}

async fn sleep_until(due_at: OffsetDateTime, clock: &dyn Clock) {
    // A wait that is over has a negative rest, which is none.
    while let Ok(rest) = Duration::try_from(due_at - clock.now())
        && !rest.is_zero()
    {
        sleep(rest.min(LOOK_AFTER)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use time::macros::datetime;

    use super::*;
    use crate::clock::TokioClock;

    const START: OffsetDateTime = datetime!(2026-11-21 13:59:50 UTC);

    /// Seconds after [`START`] at which each tick began.
    type Begun = Arc<Mutex<Vec<i64>>>;

    fn timer(schedule: &str, clock: TokioClock, takes: Duration) -> (Timer, Begun) {
        let begun = Begun::default();
        let seen = Arc::clone(&begun);
        let work: Work = Arc::new(move || {
            let seen = Arc::clone(&seen);
            Box::pin(async move {
                let second = (clock.now() - START).whole_seconds();
                seen.lock().unwrap().push(second);
                assert_ne!(second, 25, "a tick that panics");
                sleep(takes).await;
            })
        });
        let schedule = Schedule::parse(schedule).unwrap();
        (Timer { function: "orders".to_owned(), schedule, work }, begun)
    }

    async fn driven(schedule: &str, takes: u64, for_seconds: u64) -> (Vec<i64>, i64) {
        let clock = TokioClock::starting_at(START);
        let (timer, begun) = timer(schedule, clock, Duration::from_secs(takes));
        drive(vec![timer], Arc::new(clock), sleep(Duration::from_secs(for_seconds))).await;
        let begun = begun.lock().unwrap().clone();
        (begun, (clock.now() - START).whole_seconds())
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_begin_when_they_are_due_and_a_panic_ends_only_its_own() {
        assert_eq!(driven("*/15 * * * * *", 1, 60).await, (vec![10, 25, 40, 55], 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_that_takes_longer_than_its_interval_is_not_overtaken() {
        assert_eq!(driven("*/5 * * * * *", 12, 51).await, (vec![5, 20, 35, 50], 62));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_that_runs_is_waited_for_and_a_wait_is_not() {
        assert_eq!(driven("0 * * * * *", 30, 15).await, (vec![10], 40));
        assert_eq!(driven("0 0 3 * * *", 30, 15).await, (vec![], 15));
    }
}
