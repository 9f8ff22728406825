//! How running ticks are asked to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks running ticks to stop after the batch in hand.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    flags: Vec<Arc<AtomicBool>>,
}

impl StopSignal {
    /// Returns a signal of its own.
    pub fn new() -> Self {
        Self { flags: vec![Arc::default()] }
    }

    /// Returns a signal that is set when either this one or the new one is.
    #[must_use]
    pub fn child(&self) -> Self {
        let own: Arc<AtomicBool> = Arc::default();
        Self { flags: std::iter::once(own).chain(self.flags.iter().cloned()).collect() }
    }

    /// Sets this signal, and so its children.
    pub fn set(&self) {
        if let Some(own) = self.flags.first() {
            own.store(true, Ordering::Relaxed);
        }
    }

    /// Whether this signal or a parent has been set.
    pub fn is_set(&self) -> bool {
        self.flags.iter().any(|flag| flag.load(Ordering::Relaxed))
    }
}
