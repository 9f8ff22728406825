//! The reasons that apply to a row, the most important first. Pure.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::deliveries::{Delivery, Doubt, Has, has};
use super::key::{key_text, shell_word};
use super::{Facts, ParkedKey, Reason, Verdict};
use crate::cursor::CursorMode;
use crate::document::InFlight;
use crate::event::counted;
use crate::partition::{Partition, poller_of_partition};
use crate::quarantine::EntryState;
use crate::source::Session;
use crate::status::health::PollerState;

/// A row to explain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) deliveries: &'a [Delivery],
}

impl<'a> Case<'a> {
    /// Returns the reasons, in order; at least one.
    pub(super) fn reasons(self) -> Vec<Reason> {
        if let Some(reason) = self.of_row() {
            return vec![reason];
        }
        if !self.facts.is_same_source {
            let poller = self.facts.poller;
            let cause = "the state document belongs to another source than the settings have";
            let next =
                format!("`highwater doctor --poller {poller}` shows the difference and what to do");
            return vec![reason(Verdict::OtherSource, cause, next)];
        }
        if self.facts.is_passed() {
            return vec![self.passed()];
        }
        let parked = self.facts.parked.as_ref().map(|entry| self.parked(entry));
        let mut reasons: Vec<Reason> = parked.into_iter().chain(self.of_poller()).collect();
        reasons.extend(self.of_wait());
        if reasons.is_empty() {
            reasons.push(self.due());
        }
        reasons
    }

    /// Whether `verdict` is proven.
    pub(super) fn is_certain(self, verdict: Verdict) -> bool {
        let is_proven = |delivery: &Delivery| delivery.is_accepted() && delivery.is_certain;
        match verdict {
            Verdict::Locked | Verdict::Passed => false,
            Verdict::NotInTable => self.facts.row.sessions.is_empty(),
            Verdict::Delivered => self.deliveries.iter().any(is_proven),
            Verdict::NoLongerQuarantined => self.last().is_some_and(|last| last.is_certain),
            Verdict::Skipped => self.is_skip_certain(),
            Verdict::OtherPartition
            | Verdict::NullCursor
            | Verdict::FilteredOut
            | Verdict::NotSelected
            | Verdict::OtherSource
            | Verdict::Parked
            | Verdict::Quarantined
            | Verdict::Dropped
            | Verdict::Vanished
            | Verdict::TakenOver
            | Verdict::Disabled
            | Verdict::Stopped
            | Verdict::Paused
            | Verdict::Silent
            | Verdict::BackingOff
            | Verdict::Failing
            | Verdict::NeverRan
            | Verdict::HeldBack
            | Verdict::Settling
            | Verdict::InFlight
            | Verdict::Due => true,
        }
    }

    /// Whether the row was certainly not delivered, if it was not delivered by a known batch.
    fn is_skip_certain(self) -> bool {
        let journal = &self.facts.journal;
        match &journal.moved_past {
            // The row may have been delivered before the days that were searched, or committed after the move.
            Some(moved) => {
                moved.is_certain && journal.is_complete && !self.facts.mode.is_time_based()
            }
            None => !self.may_have_moved(),
        }
    }

    /// Returns the last delivery or quarantine of the row's current version.
    fn last(self) -> Option<&'a Delivery> {
        self.deliveries.iter().rfind(|it| it.is_outcome())
    }

    /// Returns the reason that lies in the row, if any.
    fn of_row(self) -> Option<Reason> {
        let Facts { poller, row, mode, .. } = self.facts;
        if row.is_locked {
            let cause = "an open transaction has locked the row, so its state cannot be read";
            let next = format!(
                "run it again; `highwater doctor --poller {poller}` shows open transactions"
            );
            return Some(reason(Verdict::Locked, cause, next));
        }
        let is_tracked = *mode == CursorMode::ChangeTracking;
        if let Some(entry) = self.facts.parked.as_ref().filter(|_| !row.exists && !row.is_deleted) {
            return Some(self.parked_and_gone(entry));
        }
        if !row.exists && !row.is_deleted {
            let cause = if is_tracked {
                "the table has no row with this key, and no recent delete of it is known"
            } else {
                "the source has no row with this key; mode `change_tracking` or `SOURCE__SOFT_DELETE` \
                 reports deleted rows"
            };
            if let [oldest, ..] = row.sessions.as_slice() {
                let cause = format!(
                    "{cause}; an uncommitted insert may hold it, perhaps of {}",
                    session_text(oldest)
                );
                let next = format!(
                    "run it again once the transaction has ended; `highwater doctor --poller {poller}` shows open transactions"
                );
                return Some(reason(Verdict::NotInTable, cause, next));
            }
            let next = format!(
                "check the key; `highwater tick {poller} --dry-run --show 1` prints a due row with its key"
            );
            return Some(reason(Verdict::NotInTable, cause, next));
        }
        if let Some(partition) = self.other_partition() {
            let key = shell_word(&key_text(self.facts.key));
            let cause = format!("partition `{partition}` delivers it");
            let next = format!("`highwater trace {partition} --key {key}` explains it there");
            return Some(reason(Verdict::OtherPartition, cause, next));
        }
        if let Some(column) = &row.null_cursor {
            let cause = format!("its cursor column `{column}` is NULL, so it has no position");
            let next = format!(
                "set `{column}` in the row; `highwater doctor --poller {poller}` counts rows without it"
            );
            return Some(reason(Verdict::NullCursor, cause, next));
        }
        let fails = row.predicates.iter().filter(|predicate| !predicate.holds);
        let fails: Vec<String> = fails.map(|predicate| format!("`{}`", predicate.text)).collect();
        if !fails.is_empty() {
            let does = if fails.len() == 1 { "does not hold" } else { "do not hold" };
            let cause = format!("filtered out: {} {does} for it", fails.join(" and "));
            let next = format!(
                "change the row or `SOURCE__FILTER`; `highwater doctor --poller {poller}` checks the settings"
            );
            return Some(reason(Verdict::FilteredOut, cause, next));
        }
        if !row.is_selected {
            let what = if row.is_deleted { "a delete" } else { "not a delete" };
            let cause =
                format!("its last change is {what}, which `SOURCE__OPERATIONS` does not select");
            let next = format!(
                "change `SOURCE__OPERATIONS`; `highwater doctor --poller {poller}` checks the settings"
            );
            return Some(reason(Verdict::NotSelected, cause, next));
        }
        None
    }

    /// Returns the name of the partition that delivers the row, if it is another one.
    fn other_partition(self) -> Option<String> {
        let index = self.facts.row.partition?;
        // The name does not depend on the number of partitions.
        let partition = Partition { index, count: u16::MAX };
        let name = partition.name(poller_of_partition(self.facts.poller));
        (name != self.facts.poller).then_some(name)
    }

    /// Returns what happened to a row that is at or before the checkpoint.
    fn passed(self) -> Reason {
        let Facts { poller, parked, journal, .. } = self.facts;
        // A batch may deliver a later version, or the same again after a reset, unless the key waits.
        let is_newer = |entry: &ParkedKey| {
            let is_after = |it: &Delivery| it.is_accepted() && it.at > entry.since;
            !entry.is_held && self.last().is_some_and(is_after)
        };
        if let Some(entry) = parked.as_ref().filter(|entry| !is_newer(entry)) {
            return self.parked(entry);
        }
        match self.last() {
            Some(quarantined) if quarantined.is_quarantined() => {
                let what = if quarantined.is_diverted() {
                    "it waited with its parked key"
                } else {
                    "it was quarantined"
                };
                let cause = format!(
                    "{what} at {}, and its entry is gone: it was redriven, retried or dropped since",
                    time_text(quarantined.at)
                );
                let next = if quarantined.is_diverted() {
                    format!("`highwater journal show {poller} --event row_diverted` lists when that happened")
                } else {
                    format!("`highwater journal show {poller} --event row_quarantined` lists when that happened")
                };
                Reason {
                    since: Some(quarantined.at),
                    ..reason(Verdict::NoLongerQuarantined, cause, next)
                }
            }
            Some(dropped) if dropped.is_dropped() => self.dropped(dropped),
            Some(delivered) => self.delivered(delivered),
            None => match &journal.moved_past {
                Some(moved) => {
                    let how = match moved.event {
                        "cloned" => "created at a later position",
                        "imported" => "replaced by a document at a later position",
                        _ => "reset past it",
                    };
                    let at = time_text(moved.at);
                    let cause = format!("the poller was {how} at {at} by {}", moved.by);
                    Reason { since: Some(moved.at), ..self.skipped(cause) }
                }
                None if self.never_delivered() && self.may_have_moved() => self.skipped(
                    "its position is at or before the checkpoint, which was set by a reset, import, clone or \
                     repartition"
                        .to_owned(),
                ),
                None if self.never_delivered() => {
                    self.skipped("it is before the position at which the poller started".to_owned())
                }
                None => self.inferred(),
            },
        }
    }

    /// Whether an operator may have set the checkpoint. Then no last batch is known, whatever was delivered before.
    fn may_have_moved(self) -> bool {
        let Facts { document, journal, .. } = self.facts;
        let has_moved = document.is_none_or(|document| {
            document.replay_id.is_some()
                || document.partition.is_some()
                || document.reset_generation != Some(document.generation)
        });
        has_moved || journal.has_moves
    }

    /// Whether the checkpoint names no batch that moved it.
    fn never_delivered(self) -> bool {
        self.facts
            .document
            .is_some_and(|document| document.checkpoint.last_successful_batch_id.is_none())
    }

    /// Returns the reason of a row that no longer exists, although its key is parked.
    fn parked_and_gone(self, entry: &ParkedKey) -> Reason {
        let poller = self.facts.poller;
        let Reason { verdict, cause, since, .. } = self.parked(entry);
        let cause = format!("{cause}; the source has no row with this key any more");
        let key_id = &entry.key_id;
        let next = match (entry.state, entry.is_delete) {
            (EntryState::Retrying, true) => format!(
                "the next retry delivers the delete; without waiting for it: `highwater quarantine redrive {poller} {key_id}`"
            ),
            (EntryState::Quarantined, true) => format!(
                "fix the cause, then `highwater quarantine redrive {poller} {key_id}` delivers the delete"
            ),
            (EntryState::Retrying, false) => format!(
                "the next retry removes the entry; `highwater quarantine show {poller} {key_id}` prints its last version"
            ),
            (EntryState::Quarantined, false) => format!(
                "`highwater quarantine redrive {poller} {key_id} --drop-gone` removes the entry"
            ),
        };
        Reason { verdict, cause, since, next }
    }

    fn parked(self, entry: &ParkedKey) -> Reason {
        let poller = self.facts.poller;
        let ParkedKey { key_id, state, reason: why, since, retries, attempts, error, .. } = entry;
        let tried = match (*retries, *attempts) {
            (0, attempts) => counted(attempts.into(), "attempt"),
            (1, _) => "1 retry".to_owned(),
            (retries, _) => format!("{retries} retries"),
        };
        let retry = match (state, entry.next_retry_at) {
            (EntryState::Retrying, Some(at)) => format!("; next retry {}", time_text(at)),
            (EntryState::Retrying, None) | (EntryState::Quarantined, _) => String::new(),
        };
        let cause = format!("since {} ({why}, {tried}{retry}): {error}", time_text(*since));
        let (verdict, advice) = match state {
            EntryState::Retrying => {
                (Verdict::Parked, "fix the cause; without waiting for the retry:")
            }
            EntryState::Quarantined => (Verdict::Quarantined, "fix the cause, then"),
        };
        let next = format!("{advice} `highwater quarantine redrive {poller} {key_id}`");
        Reason { since: Some(*since), ..reason(verdict, cause, next) }
    }

    /// Returns the reason of a row whose entry was removed without a delivery.
    fn dropped(self, dropped: &Delivery) -> Reason {
        let poller = self.facts.poller;
        let at = time_text(dropped.at);
        let cause =
            format!("its entry was removed at {at} ({}), and no batch had it", dropped.reply);
        let next =
            format!("update the row, then `highwater tick {poller}` delivers its current version");
        Reason { since: Some(dropped.at), ..reason(Verdict::Dropped, cause, next) }
    }

    fn delivered(self, delivery: &Delivery) -> Reason {
        let poller = self.facts.poller;
        let at = time_text(delivery.at);
        let token = delivery.token;
        if !delivery.is_in_batch() {
            let cause = format!("at {at} with token {token}, {}", delivery.reply);
            let event = delivery.event;
            let next =
                format!("`highwater journal show {poller} --event {event}` lists such deliveries");
            return Reason { since: Some(delivery.at), ..reason(Verdict::Delivered, cause, next) };
        }
        let next_status = || format!("`highwater status {poller}` shows the last batches");
        let (batch, next) = match &delivery.batch_id {
            Some(batch_id) if self.facts.journal.from.is_some() => (
                format!(" in {batch_id}"),
                format!("`highwater journal show {poller} --batch-id {batch_id}` shows its batch"),
            ),
            Some(batch_id) => (format!(" in {batch_id}"), next_status()),
            None => (String::new(), next_status()),
        };
        let doubt = delivery.doubt.map(|doubt| format!("; {}", doubt_text(doubt)));
        let cause =
            format!("at {at}{batch} with token {token}, accepted{}", doubt.unwrap_or_default());
        Reason { since: Some(delivery.at), ..reason(Verdict::Delivered, cause, next) }
    }

    /// Returns the reason of a row that the poller has passed, without a record of its batch.
    fn inferred(self) -> Reason {
        let Facts { poller, mode, journal, document, may_have_parked, .. } = self.facts;
        let may_have_parked = *may_have_parked || journal.has_quarantined;
        let moved_at = document.and_then(|document| document.checkpoint.updated_at);
        let by = moved_at.filter(|_| !may_have_parked);
        let by = by.map(|at| format!(", by {} at the latest", time_text(at)));
        let doubts =
            [mode.is_time_based().then_some(Doubt::Late), may_have_parked.then_some(Doubt::Parked)];
        let doubts = doubts.into_iter().flatten();
        let doubts: Vec<String> = doubts.map(|doubt| format!("; {}", doubt_text(doubt))).collect();
        let doubts = doubts.concat();
        let (record, next) = match journal.from {
            Some(from) => (
                format!("no record of its batch since {from}"),
                format!("`highwater journal show {poller}` lists the whole history"),
            ),
            None => (
                "no journal names its batch".to_owned(),
                format!(
                    "set `JOURNAL` to `commits` to keep a record from now on; `highwater status {poller}` shows the last batches"
                ),
            ),
        };
        let cause = format!(
            "its position is at or before the checkpoint{}; {record}{doubts}",
            by.unwrap_or_default()
        );
        let verdict = if may_have_parked { Verdict::Passed } else { Verdict::Delivered };
        reason(verdict, cause, next)
    }

    fn skipped(self, cause: String) -> Reason {
        let poller = self.facts.poller;
        let next = if !self.is_skip_certain() {
            // Nothing that redelivers rows: perhaps they were delivered.
            if self.facts.journal.from.is_some() {
                format!("`highwater journal show {poller}` lists the whole history")
            } else {
                format!("`highwater status {poller}` shows the last batches")
            }
        } else if self.facts.mode == CursorMode::ChangeTracking {
            format!(
                "`highwater reset {poller} to-beginning --skip-rows --reason \"deliver all rows\"` delivers all rows"
            )
        } else {
            format!(
                "`highwater backfill {poller} --from-beginning --to-checkpoint` delivers all rows before the checkpoint"
            )
        };
        reason(Verdict::Skipped, cause, next)
    }

    /// Returns what stops the poller, if anything.
    fn of_poller(self) -> Option<Reason> {
        let Facts { poller, health, document, .. } = self.facts;
        let cause = health.cause.clone().unwrap_or_default();
        let resume = format!("`highwater resume {poller}` lets ticks run again");
        let tick = format!("`highwater tick {poller}` runs a tick now");
        let doctor = format!("`highwater doctor --poller {poller}` says how to fix it");
        let (verdict, cause, next) = match health.state {
            PollerState::Vanished => (Verdict::Vanished, cause, doctor),
            PollerState::TakenOver => (
                Verdict::TakenOver,
                "other partitions deliver the poller's rows now".to_owned(),
                format!("`highwater status {}` lists them", poller_of_partition(poller)),
            ),
            PollerState::Disabled => {
                (Verdict::Disabled, format!("no function runs the poller: {cause}"), tick)
            }
            PollerState::Stopped if document.is_some_and(|document| document.paused.is_some()) => (
                Verdict::Stopped,
                cause,
                format!("fix the cause, then `highwater resume {poller}`"),
            ),
            PollerState::Stopped => (Verdict::Stopped, cause, doctor),
            PollerState::Paused => (Verdict::Paused, cause, resume),
            PollerState::Silent => (Verdict::Silent, cause, tick),
            PollerState::NeverRan => (Verdict::NeverRan, cause, tick),
            PollerState::BackingOff => (
                Verdict::BackingOff,
                self.failing(&cause),
                format!(
                    "`highwater resume {poller}` ends the backoff, so that the next tick retries"
                ),
            ),
            PollerState::Failing => (
                Verdict::Failing,
                self.failing(&cause),
                format!("fix the cause, then `highwater tick {poller}`"),
            ),
            PollerState::Running
            | PollerState::Idle
            | PollerState::Unknown
            | PollerState::Done
            | PollerState::Cancelled => return None,
        };
        Some(Reason { since: health.since, ..reason(verdict, cause, next) })
    }

    /// Returns the cause of failing ticks, with the batch that fails.
    fn failing(self, cause: &str) -> String {
        let batch = self.facts.document.and_then(|document| document.in_flight.as_ref());
        let Some(batch) = batch.filter(|batch| batch.last_error.is_some()) else {
            return cause.to_owned();
        };
        let attempts = counted(batch.attempt.into(), "attempt");
        let whose = match self.is_in(batch) {
            Has::Yes => "its batch",
            Has::No => "the batch before it",
            Has::Unknown => "its batch, or the one before it,",
        };
        let retry = batch.next_attempt_at.map(|at| format!(", next attempt at {}", time_text(at)));
        format!("{whose} failed ({attempts}{}): {cause}", retry.unwrap_or_default())
    }

    fn is_in(self, batch: &InFlight) -> Has {
        let position = self.facts.row.position.as_ref();
        position.map_or(Has::Unknown, |position| has(batch.after.as_ref(), &batch.upto, position))
    }

    /// Returns what the row waits for, if it is not the next tick.
    fn of_wait(self) -> Option<Reason> {
        let Facts { poller, row, mode, health, document, .. } = self.facts;
        if !row.is_readable {
            return Some(if mode.is_time_based() { self.settling() } else { self.held_back() });
        }
        let batch = document.and_then(|document| document.in_flight.as_ref());
        let batch = batch.filter(|batch| health.running && self.is_in(batch) == Has::Yes)?;
        let cause = format!("it is being delivered now, in {}", batch.batch_id);
        let next = format!("`highwater status {poller}` shows the tick");
        let since = batch.started_at;
        Some(Reason { since, ..reason(Verdict::InFlight, cause, next) })
    }

    fn held_back(self) -> Reason {
        let Facts { poller, row, .. } = self.facts;
        let (who, next) = match row.sessions.as_slice() {
            [] => (
                String::new(),
                format!(
                    "wait until it ends; `highwater doctor --poller {poller}` shows how old it is"
                ),
            ),
            [oldest, ..] => (
                format!(", perhaps of {}", session_text(oldest)),
                format!("end session {}, then `highwater tick {poller}`", oldest.id),
            ),
        };
        let cause = format!("held back by an open transaction{who}");
        reason(Verdict::HeldBack, cause, next)
    }

    fn settling(self) -> Reason {
        let Facts { poller, row, .. } = self.facts;
        let when = match row.settles_in {
            Some(left) => format!("in {} s", left.as_millis().div_ceil(1_000)),
            None => "`SOURCE__SETTLE` after a tick has first seen it".to_owned(),
        };
        let cause = format!("it settles {when}: until then, earlier rows could still commit");
        let next = format!("`highwater tick {poller}` delivers it after that");
        reason(Verdict::Settling, cause, next)
    }

    /// Returns the reason of a row that only waits for a tick.
    pub(super) fn due(self) -> Reason {
        let Facts { poller, next_tick_at, .. } = self.facts;
        let cause = match next_tick_at {
            Some(at) => format!("it is due; the next tick starts at {}", time_text(*at)),
            None => "it is due, and the next tick delivers it".to_owned(),
        };
        reason(Verdict::Due, cause, format!("`highwater tick {poller}` delivers it now"))
    }
}

fn reason(verdict: Verdict, cause: impl Into<String>, next: impl Into<String>) -> Reason {
    Reason { verdict, cause: cause.into(), since: None, next: next.into() }
}

fn doubt_text(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::Order => "only the server can tell if the row is before the end of the batch",
        Doubt::Late => "a row that commits later than `SOURCE__SETTLE` allows is skipped",
        Doubt::Parked => {
            "keys were parked, and a batch passes the rows of a parked key without delivering them"
        }
    }
}

fn session_text(session: &Session) -> String {
    let Session { id, login, host, program, seconds } = session;
    let parts = [("", login), ("on ", host), ("in ", program)];
    let parts =
        parts.into_iter().filter_map(|(head, part)| Some(format!("{head}{}", part.as_ref()?)));
    let parts: Vec<String> = parts.collect();
    let who = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(" ")) };
    format!("session {id}{who}, which first wrote {seconds} s ago")
}

fn time_text(at: OffsetDateTime) -> String {
    let at = at.replace_nanosecond(0).unwrap_or(at);
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}
