//! A tick as a process runs it: it can be frozen, and it can crash at any await.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::world::World;

/// What stops an instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hold {
    /// Its tasks are not polled before this instant.
    pub(crate) frozen_until: Option<Instant>,
    /// It crashes after this many more polls.
    pub(crate) dies_in: Option<u64>,
}

/// Runs a tick while its instance is neither frozen nor crashed; yields `None` if it crashed.
///
/// A frozen tick is not polled at all, so its timers stop too, as when a machine is suspended. With a freeze
/// of I/O alone, the lease's deadline would stop the handler, and a fenced target could not be distinguished
/// from any other.
pub(crate) struct Guarded<F> {
    world: Arc<World>,
    slot: usize,
    /// Boxed, so that a crash drops it at once.
    tick: Pin<Box<F>>,
    thaw: Option<Pin<Box<Sleep>>>,
}

impl<F> Guarded<F> {
    pub(crate) fn new(world: Arc<World>, slot: usize, tick: F) -> Self {
        Self { world, slot, tick: Box::pin(tick), thaw: None }
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = self.slot;
        let frozen_until = self.world.with(|state| state.slots[slot].hold.frozen_until);
        if let Some(until) = frozen_until.filter(|until| Instant::now() < *until) {
            let mut thaw = Box::pin(sleep_until(until));
            if thaw.as_mut().poll(context).is_pending() {
                self.thaw = Some(thaw);
                return Poll::Pending;
            }
        }
        self.thaw = None;
        if let Poll::Ready(ended) = self.tick.as_mut().poll(context) {
            return Poll::Ready(Some(ended));
        }
        let dies = self.world.with(|state| state.slots[slot].dies_now());
        if dies { Poll::Ready(None) } else { Poll::Pending }
    }
}
