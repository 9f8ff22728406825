//! What to do with rows that the handler rejects: one pure rule. Also how batches follow each other, and how large
//! they are.
//!
//! The terms are those of AWS Lambda's stream sources, which users know: attempts, bisecting, age and
//! destinations for failures. Rows are not parked lightly, because a target that is down rejects every
//! row: see [`Verdict::Probe`].

mod flow;
mod park;
mod size;

use std::time::Duration;

pub use self::flow::{BATCH_ROWS_MIN, Flow, Follow, OVERLAP_CRASHES_MIN};
pub use self::park::ParkPolicy;
pub use self::size::{BatchLimits, HandledBatch};

/// How failures are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// What happens when a limit is reached.
    pub on_failure: OnFailure,
    /// Attempts at the same rows until `on_failure` applies.
    pub attempts_max: u32,
    /// Crashes with the same rows until they are suspected.
    pub crashes_max: u32,
    /// How long the same rows may keep failing before `on_failure` applies; `None` for no limit.
    pub record_age_max: Option<Duration>,
    /// Whether a batch is halved to find the failing row.
    pub bisect_on_error: bool,
    /// Rows parked in a row, with none accepted in between, until the target itself is assumed to fail; at
    /// least 1.
    pub breaker_rows: u32,
    /// How parked keys are retried.
    pub park: ParkPolicy,
}

impl Default for FailurePolicy {
    /// Everything is retried forever: nothing is skipped, and nothing is parked.
    fn default() -> Self {
        Self {
            on_failure: OnFailure::Retry,
            attempts_max: 5,
            crashes_max: 5,
            record_age_max: None,
            bisect_on_error: false,
            breaker_rows: 10,
            park: ParkPolicy::NO_RETRIES,
        }
    }
}

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The rows are retried until they are accepted; later rows wait.
    #[default]
    Retry,
    /// The key of the failing row is parked: later versions of the row wait with it, and all other keys continue.
    Park,
    /// The poller is paused until an operator resumes it.
    Stop,
}

/// What a failure is attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The rows: the target permanently rejects their content.
    Rows,
    /// The first row, as reported by the handler.
    FirstRow,
    /// The rows or the target; it is unknown which.
    Unknown,
    /// Not the rows: the target is busy, or misconfigured.
    Target,
}

/// A failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// What it is attributed to.
    pub blame: Blame,
    /// Rows in the attempt.
    pub rows: usize,
    /// Whether the first row had failed on its own before, and the process stopped while it was testing whether
    /// the target accepts the rows after it.
    pub first_failed_alone: bool,
    /// Counted attempts at these rows, including this one.
    pub attempts: u32,
    /// Time since the first of them.
    pub failing_for: Duration,
    /// Rows parked since a row was last accepted.
    pub quarantined_in_a_row: u32,
}

/// What to do about a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Retry later.
    Retry,
    /// Find the failing row by halving, now.
    Bisect,
    /// Try the first row alone, now.
    Isolate,
    /// Park the row.
    Park,
    /// Park the row if the target accepts another row now. Otherwise the target may be at fault, and an
    /// outage would park the whole table.
    Probe,
    /// Pause the poller.
    Stop,
}

impl FailurePolicy {
    /// Judges a failed attempt.
    ///
    /// A row is parked only if the target permanently rejected it on its own, or accepts another row after its
    /// last failure. While the breaker is open, the second is required even after a permanent rejection.
    pub fn judge(&self, attempt: Attempt) -> Verdict {
        if attempt.blame == Blame::Target {
            return Verdict::Retry;
        }
        if attempt.blame != Blame::Rows && !self.is_exhausted(attempt) {
            return Verdict::Retry;
        }
        if attempt.rows > 1 {
            return match (attempt.blame, self.on_failure) {
                (Blame::FirstRow, OnFailure::Park) => Verdict::Isolate,
                (_, _) if self.bisect_on_error => Verdict::Bisect,
                (_, OnFailure::Stop) => Verdict::Stop,
                (_, OnFailure::Park) if attempt.first_failed_alone => Verdict::Isolate,
                // No row is known to be at fault.
                (_, OnFailure::Retry | OnFailure::Park) => Verdict::Retry,
            };
        }
        match self.on_failure {
            OnFailure::Retry => Verdict::Retry,
            OnFailure::Stop => Verdict::Stop,
            OnFailure::Park
                if attempt.blame == Blame::Rows
                    && !self.breaker_is_open(attempt.quarantined_in_a_row) =>
            {
                Verdict::Park
            }
            OnFailure::Park => Verdict::Probe,
        }
    }

    /// Whether the breaker is open: so many rows were parked in a row that the target is assumed to be failing.
    ///
    /// A target that answers 400 to everything looks like a table of bad rows. The difference is that it accepts no
    /// row: the breaker closes with the first accepted one.
    pub fn breaker_is_open(&self, quarantined_in_a_row: u32) -> bool {
        self.on_failure == OnFailure::Park && quarantined_in_a_row >= self.breaker_rows
    }

    /// Judges rows that were in flight in `crashes` crashes; `alone` if the last crash had a single row in flight.
    /// `None` if they are delivered as usual.
    ///
    /// An open breaker does not matter here: a target's answer cannot crash this process.
    pub fn judge_crashes(&self, rows: usize, crashes: u32, alone: bool) -> Option<Verdict> {
        if crashes < self.crashes_max {
            return None;
        }
        if rows > 1 && self.bisect_on_error {
            return Some(Verdict::Bisect);
        }
        match self.on_failure {
            OnFailure::Retry => None,
            OnFailure::Stop => Some(Verdict::Stop),
            OnFailure::Park => (rows == 1 && alone).then_some(Verdict::Park),
        }
    }

    fn is_exhausted(&self, attempt: Attempt) -> bool {
        let too_old = self.record_age_max.is_some_and(|limit| attempt.failing_for >= limit);
        attempt.attempts >= self.attempts_max || too_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Duration = Duration::from_secs(3600);

    fn policy(on_failure: OnFailure, bisect_on_error: bool) -> FailurePolicy {
        let record_age_max = Some(OLD);
        FailurePolicy { on_failure, record_age_max, bisect_on_error, ..FailurePolicy::default() }
    }

    fn attempt(blame: Blame, rows: usize, attempts: u32) -> Attempt {
        let failing_for = Duration::ZERO;
        Attempt {
            blame,
            rows,
            first_failed_alone: false,
            attempts,
            failing_for,
            quarantined_in_a_row: 0,
        }
    }

    /// Every combination of blame, rows, attempts, `on_failure` and bisecting.
    fn all() -> impl Iterator<Item = (Attempt, FailurePolicy)> {
        let blames = [Blame::Rows, Blame::FirstRow, Blame::Unknown, Blame::Target];
        let actions = [OnFailure::Retry, OnFailure::Park, OnFailure::Stop];
        blames.into_iter().flat_map(move |blame| {
            actions.into_iter().flat_map(move |end| {
                [false, true].into_iter().flat_map(move |bisect| {
                    (1..=10_u32).flat_map(move |attempts| {
                        [1, 2, 1000]
                            .map(|rows| (attempt(blame, rows, attempts), policy(end, bisect)))
                    })
                })
            })
        })
    }

    #[test]
    fn a_failure_of_a_busy_or_misconfigured_target_is_never_attributed_to_a_row() {
        for (attempt, policy) in all().filter(|(attempt, _)| attempt.blame == Blame::Target) {
            let old = Attempt { failing_for: OLD * 2, attempts: u32::MAX, ..attempt };
            assert_eq!(policy.judge(old), Verdict::Retry, "{attempt:?} {policy:?}");
        }
    }

    #[test]
    fn only_a_single_row_is_parked_and_immediately_only_if_rejected() {
        for (attempt, policy) in all() {
            let verdict = policy.judge(attempt);
            if matches!(verdict, Verdict::Park | Verdict::Probe) {
                assert_eq!(attempt.rows, 1, "{attempt:?} {policy:?}");
                assert_eq!(policy.on_failure, OnFailure::Park);
            }
            if verdict == Verdict::Park {
                assert_eq!(attempt.blame, Blame::Rows);
            }
        }
    }

    #[test]
    fn by_default_everything_is_retried() {
        let policy = FailurePolicy::default();
        for (attempt, _) in all() {
            assert_eq!(policy.judge(attempt), Verdict::Retry, "{attempt:?}");
        }
        assert_eq!(policy.judge_crashes(1, u32::MAX, true), None);
    }

    #[test]
    fn the_limit_is_reached_by_attempts_or_by_age() {
        let policy = policy(OnFailure::Stop, false);
        let failed = |attempts, failing_for| {
            policy.judge(Attempt { failing_for, ..attempt(Blame::Unknown, 3, attempts) })
        };
        assert_eq!(failed(4, Duration::ZERO), Verdict::Retry);
        assert_eq!(failed(5, Duration::ZERO), Verdict::Stop);
        assert_eq!(failed(1, OLD), Verdict::Stop);
        assert_eq!(failed(1, OLD.saturating_sub(Duration::from_millis(1))), Verdict::Retry);
    }

    #[test]
    fn a_permanent_rejection_needs_no_further_attempt() {
        let refused = |end, bisect, rows| policy(end, bisect).judge(attempt(Blame::Rows, rows, 1));
        assert_eq!(refused(OnFailure::Park, true, 1), Verdict::Park);
        assert_eq!(refused(OnFailure::Park, true, 2), Verdict::Bisect);
        assert_eq!(refused(OnFailure::Park, false, 2), Verdict::Retry);
        assert_eq!(refused(OnFailure::Stop, false, 2), Verdict::Stop);
        assert_eq!(refused(OnFailure::Stop, true, 2), Verdict::Bisect);
        assert_eq!(refused(OnFailure::Retry, true, 2), Verdict::Bisect);
        assert_eq!(refused(OnFailure::Retry, true, 1), Verdict::Retry);
    }

    #[test]
    fn a_row_named_by_the_handler_is_retried_alone_before_it_is_parked() {
        let policy = policy(OnFailure::Park, false);
        assert_eq!(policy.judge(attempt(Blame::FirstRow, 9, 4)), Verdict::Retry);
        assert_eq!(policy.judge(attempt(Blame::FirstRow, 9, 5)), Verdict::Isolate);
        assert_eq!(policy.judge(attempt(Blame::FirstRow, 1, 6)), Verdict::Probe);
    }

    #[test]
    fn a_row_that_failed_alone_is_retried_alone_if_others_joined_its_batch() {
        let policy = |bisect| policy(OnFailure::Park, bisect);
        let joined =
            |attempts| Attempt { first_failed_alone: true, ..attempt(Blame::Unknown, 2, attempts) };
        assert_eq!(policy(false).judge(joined(4)), Verdict::Retry);
        assert_eq!(policy(false).judge(joined(5)), Verdict::Isolate);
        assert_eq!(policy(true).judge(joined(5)), Verdict::Bisect);
    }

    #[test]
    fn an_open_breaker_needs_another_accepted_row_before_one_is_parked() {
        let policy = policy(OnFailure::Park, true);
        let rejected = |quarantined_in_a_row| {
            policy.judge(Attempt { quarantined_in_a_row, ..attempt(Blame::Rows, 1, 1) })
        };
        assert_eq!(rejected(9), Verdict::Park);
        assert_eq!(rejected(10), Verdict::Probe);
        let stop = FailurePolicy { on_failure: OnFailure::Stop, ..policy };
        assert!(!stop.breaker_is_open(u32::MAX), "it parks nothing");
    }

    #[test]
    fn a_row_is_parked_for_crashes_only_if_a_process_crashed_with_it_alone() {
        let policy = policy(OnFailure::Park, true);
        assert_eq!(policy.judge_crashes(8, 4, false), None);
        assert_eq!(policy.judge_crashes(8, 5, false), Some(Verdict::Bisect));
        assert_eq!(policy.judge_crashes(1, 5, false), None);
        assert_eq!(policy.judge_crashes(1, 5, true), Some(Verdict::Park));
        let stop = FailurePolicy { on_failure: OnFailure::Stop, ..policy };
        assert_eq!(stop.judge_crashes(1, 5, false), Some(Verdict::Stop));
    }
}
