//! Pollers that take turns in one timer function.
//!
//! On Flex Consumption each timer function has its own instances. One function for all pollers needs only one billed
//! instance, one lock that the host renews, and one process with shared memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use crate::poller::{Poller, StopSignal};
use crate::recovery::Controller;

/// Ticks that run at the same time: each may hold three batches in memory.
const AT_ONCE: usize = 8;
/// No tick starts later than this in an invocation. The time limits of a tick count from its start, so the delay
/// must fit into the reserve at the end of the function timeout.
const START_WITHIN: Duration = Duration::from_secs(5);
/// After this time, running ticks are asked to stop after their current batch, so that the other pollers do not
/// wait for one with a backlog.
const TURN_MAX: Duration = Duration::from_secs(60);
/// How often the recovery controller runs, if it has no function of its own.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Pollers that one function drives.
#[derive(Debug)]
pub struct PollerGroup {
    pollers: Vec<Arc<Poller>>,
    recovery: Option<Arc<Controller>>,
    recovered_at: Mutex<Option<Instant>>,
    /// Position of the poller that starts first in the next invocation.
    first: AtomicUsize,
}

impl PollerGroup {
    /// Returns a group of `pollers`. `recovery` is the controller, if no other function runs it.
    pub fn new(pollers: Vec<Arc<Poller>>, recovery: Option<Arc<Controller>>) -> Self {
        Self { pollers, recovery, recovered_at: Mutex::default(), first: AtomicUsize::new(0) }
    }

    /// Returns the pollers, ordered by name.
    pub fn pollers(&self) -> &[Arc<Poller>] {
        &self.pollers
    }

    /// Runs one tick of each poller, a few at a time, and returns how they ended.
    ///
    /// Pollers that could not start in time start first in the next call. `stop` is set when the turn is over.
    pub async fn tick_all<F: Future>(
        &self,
        stop: &StopSignal,
        tick: impl Fn(Arc<Poller>) -> F,
    ) -> Vec<F::Output> {
        let began_at = Instant::now();
        let (count, first) = (self.pollers.len(), self.first.load(Ordering::Relaxed));
        let mut waiting = self.pollers.iter().cycle().skip(first).take(count);
        let (mut running, mut ended) = (FuturesUnordered::new(), Vec::new());
        let (mut started, mut is_over) = (0, count < 2);
        loop {
            while running.len() < AT_ONCE && began_at.elapsed() < START_WITHIN && !stop.is_set() {
                let Some(poller) = waiting.next() else { break };
                running.push(tick(Arc::clone(poller)));
                started += 1;
            }
            tokio::select! {
                biased;
                next = running.next() => match next {
                    Some(one) => ended.push(one),
                    None => break,
                },
                () = sleep_until(began_at + TURN_MAX), if !is_over => {
                    is_over = true;
                    stop.set();
                }
            }
        }
        // If all have started, rotate by one.
        let next = first + if started == count { 1 } else { started };
        self.first.store(next % count.max(1), Ordering::Relaxed);
        ended
    }

    /// Returns the recovery controller if its next run is due, and records that run as started.
    pub fn recovery_due(&self) -> Option<&Arc<Controller>> {
        let controller = self.recovery.as_ref()?;
        let mut last = self.recovered_at.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < RECOVERY_INTERVAL) {
            return None;
        }
        *last = Some(Instant::now());
        Some(controller)
    }
}
