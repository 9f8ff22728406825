//! Wall-clock time, read through a trait so that tests control it.

use std::fmt;

use time::OffsetDateTime;

/// Returns the current wall-clock time.
///
/// Timers are not part of this trait: the engine sleeps with [`tokio::time`], which a paused test runtime makes
/// virtual. The engine does not base decisions on this clock either. Only local replacements of a storage service,
/// and request signing, read it. The blob store also compares the service's `Date` with it, as a veto: see
/// `store/date_check.rs`.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the current time in UTC.
    fn now(&self) -> OffsetDateTime;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> OffsetDateTime {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
        OffsetDateTime::now_utc()
    }
}

/// A clock that starts at a given time and moves with [`tokio::time::Instant`], so that a paused runtime controls it.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    started_at: OffsetDateTime,
    started: tokio::time::Instant,
}

impl TokioClock {
    /// Starts a clock at `started_at`.
    pub fn starting_at(started_at: OffsetDateTime) -> Self {
        Self { started_at, started: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> OffsetDateTime {
        self.started_at + self.started.elapsed()
    }
}

/// Returns a time span in one readable unit. The status page's script uses the same rules.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}
