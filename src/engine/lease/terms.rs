//! What a lease needs to know about the process and the tick that request it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::journal::Recorder;
use crate::metrics::Metrics;
use crate::store::{StateKey, StateStore};

/// How long a lease lives, and how often it is renewed.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// How long a lease lives without a write.
    pub ttl: Duration,
    /// Time between renewals; shorter than half of `ttl`.
    pub heartbeat_interval: Duration,
    /// How long before its end the holder stops relying on the lease.
    pub margin: Duration,
}

impl LeaseTerms {
    /// Returns the terms for a ttl: a renewal every third of it, and a tenth of it as margin.
    pub fn of(ttl: Duration) -> Self {
        Self { ttl, heartbeat_interval: ttl / 3, margin: ttl / 10 }
    }
}

/// This process, as a holder of leases.
#[derive(Debug)]
pub struct Instance {
    owner_id: String,
    writes: AtomicU64,
    metrics: Option<Arc<Metrics>>,
}

impl Instance {
    /// Returns an instance whose `owner_id` must be unique per process start.
    pub fn new(owner_id: impl Into<String>) -> Self {
        Self { owner_id: owner_id.into(), writes: AtomicU64::new(0), metrics: None }
    }

    /// Measures the leases that this process requests.
    #[must_use]
    pub fn measured(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Returns where leases are measured, if they are.
    pub(super) fn metrics(&self) -> Option<&Arc<Metrics>> {
        self.metrics.as_ref()
    }

    /// Returns the name under which leases are held.
    pub fn owner_id(&self) -> &str {
        &self.owner_id
    }

    /// Returns an id that no other logical write of any process has.
    pub(crate) fn next_write_id(&self) -> String {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        format!("{}#{number}", self.owner_id)
    }
}

/// What a lease needs to know about the tick that requests it.
#[derive(Clone, Copy, Debug)]
pub struct LeaseContext<'a> {
    /// Where the document is stored.
    pub store: &'a dyn StateStore,
    /// Which document.
    pub key: &'a StateKey,
    /// This process.
    pub instance: &'a Instance,
    /// Terms of the lease.
    pub terms: LeaseTerms,
    /// When work under the lease must have stopped.
    pub stop_at: Instant,
    /// The journal that records every write.
    pub journal: &'a Mutex<Recorder>,
}
