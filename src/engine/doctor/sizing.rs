//! How long a lease should live, according to recent ticks. Pure.
//!
//! The first rule is `ttl > p99(fetch + handler + commit) + 30 s`. The second: the ttl has to outlast the slowest
//! heartbeat with a margin. A renewal is due after a third of the ttl, so twice its delay must fit into the rest. An
//! interval of at least half of the ttl is not required: ticks every second are fine, since the lease is free between
//! them, and more instances only skip some.
//!
//! The data is the ring of the last ticks that wrote, at most 50: the p99 of so few is their maximum. Nothing is
//! changed automatically.

use std::time::Duration;

use serde::Serialize;

use super::Finding;
use crate::document::{RecentTick, StateDocument};

/// Name of the check.
const CHECK: &str = "lease sizing";
/// Safety margin of the first rule.
const MARGIN_MS: u64 = 30_000;
/// Suggestions are whole multiples of this.
const STEP_SECONDS: u64 = 5;
/// With fewer ticks, there is no suggestion.
const TICKS_MIN: usize = 5;

/// The observed durations, and the suggestion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sizing {
    /// Number of observed ticks.
    pub ticks: usize,
    /// p99 of the longest read of each tick.
    pub fetch_p99_ms: u64,
    /// p99 of the longest handler call of each tick.
    pub handler_p99_ms: u64,
    /// p99 of the longest commit of each tick; `None` if no commit was timed before its tick ended.
    pub commit_p99_ms: Option<u64>,
    /// p99 of their sum.
    pub work_p99_ms: u64,
    /// p99 of the delay of a renewal; `None` if none was due.
    pub heartbeat_p99_ms: Option<u64>,
    /// The current ttl.
    pub ttl_seconds: u64,
    /// What a ttl must exceed to satisfy the rules.
    pub needed_ms: u64,
    /// A ttl that satisfies the rules, in steps of 5 s.
    pub suggested_ttl_seconds: u64,
}

impl Sizing {
    /// Judges the ticks of `document` with a lease of `ttl`; `None` if there are too few.
    pub fn of(document: &StateDocument, ttl: Duration) -> Option<Self> {
        let ticks: Vec<&RecentTick> =
            document.recent.iter().filter(|tick| tick.longest_ms.contains_key("handler")).collect();
        if ticks.len() < TICKS_MIN {
            return None;
        }
        let step = |tick: &RecentTick, name: &str| tick.longest_ms.get(name).copied();
        let all = |name: &str| ticks.iter().filter_map(|tick| step(tick, name)).collect();
        let work = |tick: &&RecentTick| {
            let steps = ["fetch", "handler", "commit"];
            steps.iter().filter_map(|name| step(tick, name)).sum()
        };
        let work_p99_ms = p99(ticks.iter().map(work).collect()).unwrap_or(0);
        let heartbeat_p99_ms = p99(all("heartbeat"));
        let needed = work_p99_ms.max(heartbeat_p99_ms.unwrap_or(0) * 2) + MARGIN_MS;
        let suggested_ttl_seconds = (needed / 1000 + 1).next_multiple_of(STEP_SECONDS);
        let ttl_seconds = ttl.as_secs();
        Some(Self {
            needed_ms: needed,
            ticks: ticks.len(),
            fetch_p99_ms: p99(all("fetch")).unwrap_or(0),
            handler_p99_ms: p99(all("handler")).unwrap_or(0),
            commit_p99_ms: p99(all("commit")),
            work_p99_ms,
            heartbeat_p99_ms,
            ttl_seconds,
            suggested_ttl_seconds,
        })
    }

    /// Returns the settings that may end a lease in use.
    pub fn warnings(&self) -> Vec<String> {
        let Self { ttl_seconds, suggested_ttl_seconds: ttl, work_p99_ms, .. } = self;
        let breaks = |ms: u64| ttl_seconds * 1000 <= ms + MARGIN_MS;
        let mut warnings = Vec::new();
        if breaks(*work_p99_ms) {
            warnings.push(format!(
                "`LEASE__TTL` is {ttl_seconds} s, but fetch, handler and commit took up to {work_p99_ms} ms; \
                 set it to {ttl} s, or lower `BATCH_ROWS_MAX`, to have 30 s to spare"
            ));
        }
        if let Some(late) = self.heartbeat_p99_ms.filter(|late| breaks(late * 2)) {
            warnings.push(format!(
                "`LEASE__TTL` is {ttl_seconds} s, but renewals were up to {late} ms late; set it to {ttl} s to have \
                 30 s to spare at twice that, or use a faster state store"
            ));
        }
        warnings
    }

    /// Returns the observations in one line.
    pub fn text(&self) -> String {
        let commit = self.commit_p99_ms.map_or("not seen".to_owned(), |ms| format!("{ms} ms"));
        let heartbeat =
            self.heartbeat_p99_ms.map_or("none due".to_owned(), |ms| format!("{ms} ms late"));
        format!(
            "p99 of {} ticks: fetch {} ms, handler {} ms, commit {commit}, heartbeats {heartbeat}; suggested \
             `LEASE__TTL` at least {}s",
            self.ticks, self.fetch_p99_ms, self.handler_p99_ms, self.suggested_ttl_seconds
        )
    }
}

/// Judges the settings by recent ticks.
pub fn judge(document: &StateDocument, ttl: Duration) -> Finding {
    let Some(sizing) = Sizing::of(document, ttl) else {
        let found = format!("fewer than {TICKS_MIN} ticks have delivered rows so far");
        return Finding::unknown(CHECK, found, "run this again after more deliveries");
    };
    let warnings = sizing.warnings();
    if warnings.is_empty() {
        return Finding::ok(CHECK, sizing.text());
    }
    let fix = "change the setting that is named; the lease is renewed while a handler runs, so this bites where \
               renewals fail or instances compete";
    Finding::warning(CHECK, format!("{}; {}", warnings.join("; "), sizing.text()), fix)
}

/// Returns the value that 99 of 100 do not exceed, by nearest rank.
fn p99(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let rank = (values.len() * 99).div_ceil(100);
    values.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::document::Generation;

    /// A document with one tick per minute of these durations.
    fn ticked(handler_ms: &[u64], heartbeat_ms: Option<u64>) -> StateDocument {
        let mut document = StateDocument::new("p", SourceFingerprint::of(&[]), Generation(1));
        for (minute, handler) in handler_ms.iter().enumerate() {
            let mut tick: RecentTick = serde_json::from_value(json!({
                "at": format!("2026-01-01T01:{minute:02}:00Z"), "outcome": "tick_complete",
                "longest_ms": { "fetch": 100, "handler": handler, "commit": 20 },
            }))
            .unwrap();
            tick.longest_ms.extend(heartbeat_ms.map(|ms| ("heartbeat".to_owned(), ms)));
            document.recent.push(tick);
        }
        document
    }

    const TTL: Duration = Duration::from_secs(120);

    #[test]
    fn the_rules_give_the_smallest_ttl() {
        let slow = [1000, 2000, 3000, 4000, 95_000];
        let sizing = Sizing::of(&ticked(&slow, None), TTL).unwrap();
        assert_eq!((sizing.work_p99_ms, sizing.handler_p99_ms), (95_120, 95_000));
        assert_eq!(sizing.suggested_ttl_seconds, 130, "more than 125.12 s");
        // A slow store counts twice: the renewal is due after a third of the ttl.
        let sizing = Sizing::of(&ticked(&[10; 5], Some(40_000)), TTL).unwrap();
        assert_eq!(sizing.suggested_ttl_seconds, 115);
    }

    #[test]
    fn only_settings_that_violate_a_rule_cause_a_warning() {
        let warned = |handler: u64, ttl: u64| {
            let document = ticked(&[handler; 5], None);
            let finding = judge(&document, Duration::from_secs(ttl));
            (finding.level, finding.found)
        };
        let (level, found) = warned(10, 120);
        assert_eq!(level, super::super::Level::Ok, "{found}");
        let (level, found) = warned(95_000, 120);
        assert_eq!(level, super::super::Level::Warning);
        assert!(found.starts_with("`LEASE__TTL` is 120 s, but fetch"), "{found}");
        assert!(!found.contains("renewals"), "{found}");
        // The suggestion is in steps of 5 s, the rule is not.
        let (_, found) = warned(89_880, 120);
        assert!(found.starts_with("`LEASE__TTL` is 120 s"), "90 s plus 30 s is not less: {found}");
        assert_eq!(warned(89_879, 120).0, super::super::Level::Ok);
        let late = ticked(&[10; 5], Some(60_000));
        let found = judge(&late, TTL).found;
        assert!(
            found.starts_with("`LEASE__TTL` is 120 s, but renewals were up to 60000 ms"),
            "{found}"
        );
        assert!(!found.contains("fetch, handler"), "{found}");
        assert!(!warned(10, 121).1.contains("interval"), "any timer interval is fine");
    }

    #[test]
    fn too_few_ticks_give_no_suggestion_and_operator_notes_do_not_count() {
        let mut document = ticked(&[10; 4], None);
        let mut note = document.recent[0].clone();
        note.longest_ms.clear();
        document.recent.push(note);
        assert_eq!(Sizing::of(&document, TTL), None);
        assert_eq!(judge(&document, TTL).level, super::super::Level::Unknown);
    }

    #[test]
    fn a_percentile_is_an_observed_value() {
        assert_eq!(p99(Vec::new()), None);
        assert_eq!(p99(vec![3]), Some(3));
        assert_eq!(p99((1..=50).collect()), Some(50));
        assert_eq!(p99((1..=200).collect()), Some(198));
    }
}
