//! The signal that asks running ticks to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// How often a pause checks for a stop.
pub(crate) const STOP_INTERVAL: Duration = Duration::from_millis(200);

/// Asks running ticks to stop after the batch in flight, and later to abort that batch too.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    flags: Vec<Arc<AtomicBool>>,
    /// Shared with all children: only a whole process aborts.
    abort: Abort,
}

#[derive(Clone, Debug)]
struct Abort(Arc<watch::Sender<bool>>);

impl Default for Abort {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl StopSignal {
    /// Returns an independent signal.
    pub fn new() -> Self {
        Self { flags: vec![Arc::default()], abort: Abort::default() }
    }

    /// Returns a child, which is set when either it or this signal is set.
    #[must_use]
    pub fn child(&self) -> Self {
        let own: Arc<AtomicBool> = Arc::default();
        let flags = std::iter::once(own).chain(self.flags.iter().cloned()).collect();
        Self { flags, abort: self.abort.clone() }
    }

    /// Sets this signal and thereby its children.
    pub fn set(&self) {
        if let Some(own) = self.flags.first() {
            own.store(true, Ordering::Relaxed);
        }
    }

    /// Whether this signal or a parent has been set.
    pub fn is_set(&self) -> bool {
        self.flags.iter().any(|flag| flag.load(Ordering::Relaxed))
    }

    /// Sets this signal, and aborts the handler calls that run under it and its children.
    pub fn abort(&self) {
        self.set();
        self.abort.0.send_replace(true);
    }

    /// Whether [`Self::abort`] was called.
    pub fn is_aborted(&self) -> bool {
        *self.abort.0.borrow()
    }

    /// Completes once [`Self::abort`] was called.
    pub async fn aborted(&self) {
        let mut aborted = self.abort.0.subscribe();
        // Its sender lives as long as this signal, so only the value ends this wait.
        if aborted.wait_for(|aborted| *aborted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Runs `work` until [`Self::abort`] is called; `None` if that came first, and `work` was dropped. The work
    /// should be boxed, since it is moved here.
    pub(crate) async fn unless_aborted<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.aborted() => None,
        }
    }

    /// Waits, but only until a stop.
    pub(crate) async fn rest(&self, mut left: Duration) {
        while !left.is_zero() && !self.is_set() {
            let part = left.min(STOP_INTERVAL);
            sleep(part).await;
            left -= part;
        }
    }
}
