//! Pure: derives the conditions of a document, from it and from what else is known.

use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::memory::PollerMemory;
use super::table::{Action, Condition};
use crate::document::{DocumentAge, InFlight, LeaseState, StateDocument};
use crate::error::{accept_source, restore_state};
use crate::event::counted;
use crate::journal::Verdict;

/// Numbered writes without a commit that are too many for ordinary retries, which make two per failed attempt.
const JOURNAL_WRITES_MAX: u64 = 20;

/// Most characters of a difference to show in a finding: it may contain all recent ticks.
const FOUND_CHARS_MAX: usize = 500;

/// Thresholds from which something counts as stuck.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// How long a checkpoint may stay in place while rows wait.
    pub stuck_after: Duration,
    /// How long a pause may last.
    pub paused_max: Duration,
}

/// What is known from the settings and the source, if the poller is in the settings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConfiguredPoller {
    /// Whether it keeps a journal.
    pub(super) journaled: bool,
    /// Longest backoff after failures.
    pub(super) retry_delay_max: Duration,
    /// Longest backoff that a target may ask for.
    pub(super) retry_after_max: Duration,
    /// Whether the document belongs to the source; `None` if that is unknown.
    pub(super) fingerprint_matches: Option<bool>,
    /// Whether rows wait after the checkpoint; `None` if not queried, or not answered.
    pub(super) rows_wait: Option<bool>,
    /// Since when every tick here was skipped because another instance held the lease.
    pub(super) skipped_since: Option<OffsetDateTime>,
}

/// A document, and what else is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) name: &'a str,
    pub(super) document: &'a StateDocument,
    pub(super) age: DocumentAge,
    /// The storage service's time.
    pub(super) now: OffsetDateTime,
    /// Quarantined rows.
    pub(super) quarantined: u64,
    /// `None` for a poller that is not in the settings.
    pub(super) configured: Option<ConfiguredPoller>,
    /// What the last run saw.
    pub(super) before: Option<&'a PollerMemory>,
}

/// One condition that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetCondition {
    pub(super) condition: Condition,
    pub(super) action: Action,
    /// The finding, in words.
    pub(super) found: String,
}

impl MetCondition {
    pub(super) fn new(condition: Condition, action: Action, found: impl Into<String>) -> Self {
        Self { condition, action, found: found.into() }
    }
}

/// Returns the name of the poller to which a document belongs.
pub(super) fn parent_of<'a>(name: &'a str, document: &'a StateDocument) -> Option<&'a str> {
    let said = document.extra.get("parent").and_then(serde_json::Value::as_str);
    let said = said.or_else(|| Some(document.range.as_ref()?.of.as_str()));
    // A poller's own name has no double underscore.
    said.or_else(|| name.split_once("__").map(|(parent, _)| parent))
}

/// Returns the latest end of a plausible backoff.
pub(super) fn latest_attempt(now: OffsetDateTime, configured: &ConfiguredPoller) -> OffsetDateTime {
    now + configured.retry_delay_max.max(configured.retry_after_max)
}

/// Whether only the source can tell if rows wait: no batch is in flight, and no tick has written for a while.
pub(super) fn is_silent(document: &StateDocument, age: DocumentAge, stuck_after: Duration) -> bool {
    document.in_flight.is_none()
        && document.paused.is_none()
        && document.lease_state_for_others(age) == LeaseState::Free
        && age.since_write >= stuck_after
}

/// Returns every condition of a document, except those of its parent.
pub(super) fn judge(subject: &Subject<'_>, thresholds: &Thresholds) -> Vec<MetCondition> {
    // Others deliver its rows; the document is only kept as history.
    if subject.document.taken_over_by.is_some() {
        return Vec::new();
    }
    let judged = [
        lease_expired(subject),
        in_flight_orphaned(subject, thresholds),
        target_asks_for_pause(subject),
        checkpoint_stuck(subject, thresholds),
        state_without_configuration(subject),
        quarantine_growing(subject),
        paused_too_long(subject, thresholds),
        held_elsewhere(subject, thresholds),
        journal_without_commits(subject),
        fingerprint_differs(subject),
    ];
    judged.into_iter().flatten().collect()
}

fn lease_expired(subject: &Subject<'_>) -> Option<MetCondition> {
    let Subject { document, age, .. } = subject;
    if document.lease_state_for_others(*age) != LeaseState::Lapsed {
        return None;
    }
    let lease = &document.lease;
    let owner = lease.owner_id.as_deref().unwrap_or_default();
    let idle = document.idle(*age).as_secs();
    let (ttl, token) = (lease.ttl_seconds, lease.fencing_token);
    let (action, batch) = match &document.in_flight {
        Some(InFlight { rows, .. }) => {
            (Action::Requeue, format!("; a batch of {} is in flight", counted(*rows, "row")))
        }
        None => (Action::Release, String::new()),
    };
    let found = format!(
        "`{owner}` holds token {token}, has not written for {idle} s (ttl {ttl} s) and did not \
         release it{batch}"
    );
    Some(MetCondition::new(Condition::LeaseExpired, action, found))
}

fn in_flight_orphaned(subject: &Subject<'_>, thresholds: &Thresholds) -> Option<MetCondition> {
    let Subject { document, age, now, .. } = *subject;
    let configured = subject.configured.as_ref()?;
    let batch = document.in_flight.as_ref()?;
    if document.lease_state_for_others(age) != LeaseState::Free || document.paused.is_some() {
        return None;
    }
    let rows = counted(batch.rows, "row");
    if let Some(until) = batch.next_attempt_at.filter(|at| *at > latest_attempt(now, configured)) {
        let until = rfc3339(until);
        let found = format!("a batch of {rows} is not retried before {until}");
        return Some(MetCondition::new(Condition::InFlightOrphaned, Action::Requeue, found));
    }
    let left_at = now - document.idle(age);
    let due_at = batch.next_attempt_at.map_or(left_at, |at| at.max(left_at));
    if now - due_at < thresholds.stuck_after {
        return None;
    }
    let found = format!(
        "a batch of {rows} has been due since {}, and no tick delivers it; check the timer",
        rfc3339(due_at)
    );
    Some(MetCondition::new(Condition::InFlightOrphaned, Action::Alarm, found))
}

/// Only a target can delay a batch for longer than the longest backoff after failures.
fn target_asks_for_pause(subject: &Subject<'_>) -> Option<MetCondition> {
    let Subject { name, document, now, configured, .. } = *subject;
    let configured = configured?;
    let batch = document.in_flight.as_ref()?;
    let until = batch.next_attempt_at?;
    if document.paused.is_some()
        || until <= now + configured.retry_delay_max
        || until > latest_attempt(now, &configured)
    {
        return None;
    }
    let error = batch.last_error.as_deref().unwrap_or("no error was recorded");
    let found = format!(
        "the target asked for a pause until {}: {error}; end it with `highwater resume {name}`",
        rfc3339(until)
    );
    Some(MetCondition::new(Condition::TargetAsksForPause, Action::Report, found))
}

fn checkpoint_stuck(subject: &Subject<'_>, thresholds: &Thresholds) -> Option<MetCondition> {
    let Subject { document, now, configured, before, .. } = *subject;
    let configured = configured?;
    let since = rows_wait_since(document, &configured, before, now)?;
    if document.paused.is_some() || now - since < thresholds.stuck_after {
        return None;
    }
    let batch = document.in_flight.as_ref();
    let error = batch.and_then(|batch| batch.last_error.as_deref());
    let what = error.map_or("no error was recorded".to_owned(), |error| format!("last: {error}"));
    let found = format!(
        "rows have been waiting since {}, and nothing is committed; {what}",
        rfc3339(since)
    );
    Some(MetCondition::new(Condition::CheckpointStuck, Action::Alarm, found))
}

/// Returns since when rows are known to wait at the current checkpoint; `None` if none do.
pub(super) fn rows_wait_since(
    document: &StateDocument,
    configured: &ConfiguredPoller,
    before: Option<&PollerMemory>,
    now: OffsetDateTime,
) -> Option<OffsetDateTime> {
    let batch = document.in_flight.as_ref();
    if batch.is_none() && configured.rows_wait != Some(true) {
        return None;
    }
    let seen =
        before.filter(|before| before.is_at(document)).and_then(|before| before.waiting_since);
    let failed = batch.and_then(|batch| batch.first_failed_at);
    seen.into_iter().chain(failed).chain([now]).min()
}

fn held_elsewhere(subject: &Subject<'_>, thresholds: &Thresholds) -> Option<MetCondition> {
    let since = subject.configured?.skipped_since?;
    if subject.now - since < thresholds.stuck_after {
        return None;
    }
    let owner = subject.document.lease.owner_id.as_deref().unwrap_or("no instance");
    let found = format!(
        "every tick here has been skipped since {}: another instance holds the lease, now `{owner}`; if a forgotten slot, \
         app or computer runs the same poller, stop it there",
        rfc3339(since)
    );
    Some(MetCondition::new(Condition::LeaseHeldElsewhere, Action::Report, found))
}

fn state_without_configuration(subject: &Subject<'_>) -> Option<MetCondition> {
    let Subject { name, document, configured, .. } = subject;
    if configured.is_some() || parent_of(name, document).is_some() {
        return None;
    }
    let found = "the poller is not in the settings of this app; nothing runs it";
    Some(MetCondition::new(Condition::StateWithoutConfiguration, Action::Report, found))
}

/// A poller of the settings without a document.
pub(super) fn configuration_without_state(name: &str, has_run: bool) -> MetCondition {
    let (action, found) = if has_run {
        let found = "its document is gone, though its marker says that it has run";
        (Action::Alarm, format!("{found}: {}", restore_state(name, None)))
    } else {
        (Action::Report, "it has no document: no tick has delivered anything yet".to_owned())
    };
    MetCondition::new(Condition::ConfigurationWithoutState, action, found)
}

/// A document whose marker is gone.
pub(super) fn marker_missing() -> MetCondition {
    let found =
        "its marker is gone; if the document is lost too, the poller starts as if it had never run";
    MetCondition::new(Condition::MarkerMissing, Action::Rewrite, found)
}

fn quarantine_growing(subject: &Subject<'_>) -> Option<MetCondition> {
    let counted = subject.before.map_or(0, |before| before.quarantined);
    let now = subject.quarantined;
    (now > counted).then(|| {
        let found = format!("{now} rows are quarantined, up from {counted} at the last run");
        MetCondition::new(Condition::QuarantineGrowing, Action::Alarm, found)
    })
}

fn paused_too_long(subject: &Subject<'_>, thresholds: &Thresholds) -> Option<MetCondition> {
    let paused = subject.document.paused.as_ref()?;
    (subject.now - paused.at >= thresholds.paused_max).then(|| {
        let (by, at, reason) = (&paused.by, rfc3339(paused.at), &paused.reason);
        let found = format!("paused by `{by}` since {at}: {reason}");
        MetCondition::new(Condition::PausedTooLong, Action::Report, found)
    })
}

/// A partition whose poller is missing, or paused while the partition is not.
pub(super) fn parent_gone(parent: &str, is_there: bool) -> MetCondition {
    let (action, what) =
        if is_there { (Action::Report, "paused") } else { (Action::Alarm, "gone") };
    MetCondition::new(Condition::ParentGone, action, format!("its poller `{parent}` is {what}"))
}

fn journal_without_commits(subject: &Subject<'_>) -> Option<MetCondition> {
    let Subject { document, configured, before, .. } = subject;
    let before = before.filter(|before| before.is_at(document))?;
    let writes = document.journal_seq.saturating_sub(before.journal_seq);
    let is_it = configured.is_some_and(|configured| configured.journaled)
        && document.in_flight.is_some()
        && writes >= JOURNAL_WRITES_MAX;
    is_it.then(|| {
        let found = format!("the journal numbers {writes} writes since the last commit");
        MetCondition::new(Condition::JournalWithoutCommits, Action::Alarm, found)
    })
}

/// A journal that does not lead to the document of its poller; `None` if it does, or if only the entries that a
/// crash may lose are missing.
pub(super) fn journal_differs(poller: &str, verdict: &Verdict) -> Option<MetCondition> {
    let what = match verdict {
        Verdict::Agrees
        | Verdict::Behind { .. }
        | Verdict::RestartedHistory { .. }
        | Verdict::NotBegun { .. }
        // A missing document has its own conditions.
        | Verdict::NoDocument => return None,
        Verdict::Differs(difference) => {
            let difference: String = difference.to_string().chars().take(FOUND_CHARS_MAX).collect();
            format!("the journal does not lead to the document: {difference}")
        }
        Verdict::DocumentIsOlder { document, journal } => format!(
            "the document has write {document}, the journal has write {journal}: the document was \
             replaced with an older copy"
        ),
        Verdict::Removed { writes } => {
            format!("the journal is empty, but the document has {writes} recorded writes")
        }
        Verdict::NoHistory => "no entry of the journal's last day contains the whole document".to_owned(),
    };
    let found = format!("{what}; compare the whole journal with `highwater state verify {poller}`");
    Some(MetCondition::new(Condition::JournalDiffers, Action::Alarm, found))
}

fn fingerprint_differs(subject: &Subject<'_>) -> Option<MetCondition> {
    let differs = subject.configured.is_some_and(|known| known.fingerprint_matches == Some(false));
    differs.then(|| {
        let name = subject.name;
        let found = format!(
            "the checkpoint is of another source than the settings describe: revert the setting, or {}",
            accept_source(name)
        );
        MetCondition::new(Condition::FingerprintDiffers, Action::Alarm, found)
    })
}

pub(super) fn rfc3339(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}
