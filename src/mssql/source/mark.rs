//! The high-water mark of mode `integer+pk`: how far rows may be read, and when it advances. Pure.
//!
//! # Design
//!
//! A number is allocated when a row is written, and becomes visible when its transaction commits. So some
//! rows below the highest visible number may still be missing. The highest number is recorded with the time,
//! and rows up to it are read once the settle window has passed. Every number up to it was allocated before
//! the mark was recorded, so its transaction has had that long to commit. The mark is part of the state
//! document, since two ticks may be two processes, neither of which lives as long as the window.

use highwater_engine::cursor::SourceState;
use highwater_engine::source::RetainedState;
use serde_json::Value as Json;

use crate::connection::Param;

const SETTLED: &str = "settled";
const WAITING: &str = "waiting";
const TAKEN_AT: &str = "taken_at";

/// Marks of the numbers that a table has allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Rows up to this number may be read.
    settled: Option<i64>,
    /// The next settled mark; always higher.
    waiting: Option<Waiting>,
}

/// A highest number, and when it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    value: i64,
    /// The server's own text, which the server parses again.
    taken_at: String,
}

/// What the server reported with a fetch.
#[derive(Clone, Debug)]
pub(super) struct ServerReport<'a> {
    /// How far rows were read.
    pub(super) hi: Option<i64>,
    /// The highest number of a committed row.
    pub(super) max: Option<i64>,
    /// The server's clock, read after that.
    pub(super) now: &'a str,
}

impl Marks {
    /// Reads the retained marks. Invalid ones count as absent, which only costs time.
    pub(super) fn of(state: &SourceState) -> Self {
        let text = |name| state.get(name).and_then(Json::as_str);
        let number = |name| text(name).and_then(|digits| digits.parse().ok());
        let waiting = number(WAITING).zip(text(TAKEN_AT));
        Self {
            settled: number(SETTLED),
            waiting: waiting
                .map(|(value, taken_at)| Waiting { value, taken_at: taken_at.to_owned() }),
        }
    }

    fn state(&self) -> SourceState {
        let mut state = SourceState::new();
        if let Some(settled) = self.settled {
            state.insert(SETTLED.to_owned(), settled.to_string().into());
        }
        if let Some(Waiting { value, taken_at }) = &self.waiting {
            state.insert(WAITING.to_owned(), value.to_string().into());
            state.insert(TAKEN_AT.to_owned(), taken_at.clone().into());
        }
        state
    }

    /// Returns the three parameters of the statement: the settled mark, the waiting one, and the time of the
    /// latter; blank if absent.
    pub(super) fn params(&self) -> [Param; 3] {
        let digits = |value: Option<i64>| value.map_or_else(String::new, |value| value.to_string());
        let taken_at = self.waiting.as_ref().map(|waiting| waiting.taken_at.clone());
        [
            digits(self.settled),
            digits(self.waiting.as_ref().map(|waiting| waiting.value)),
            taken_at.unwrap_or_default(),
        ]
        .map(Param::Text)
    }

    /// Returns the state to retain after a fetch; `None` if it is unchanged.
    ///
    /// A new mark is stored at once, since rows are waiting for it.
    pub(super) fn after(&self, seen: &ServerReport<'_>) -> Option<RetainedState> {
        let settled = self.settled.max(seen.hi);
        // A mark from the future was recorded before the server's clock was set back.
        let waiting = self
            .waiting
            .clone()
            .filter(|mark| Some(mark.value) > settled && mark.taken_at.as_str() <= seen.now);
        let new_mark = seen
            .max
            .filter(|max| waiting.is_none() && Some(*max) > settled)
            .map(|value| Waiting { value, taken_at: seen.now.to_owned() });
        let at_once = new_mark.is_some();
        let next = Self { settled, waiting: waiting.or(new_mark) };
        (next != *self).then(|| RetainedState { state: next.state(), at_once })
    }
}

/// Returns `state` as if every number had settled, for reads that only check for rows.
pub(super) fn all_settled(state: &SourceState) -> SourceState {
    let mut state = state.clone();
    state.remove(WAITING);
    state.insert(SETTLED.to_owned(), i64::MAX.to_string().into());
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: &str = "2026-01-01T12:00:00";
    const LATER: &str = "2026-01-01T12:00:06.5";

    fn seen(hi: Option<i64>, max: Option<i64>, now: &str) -> ServerReport<'_> {
        ServerReport { hi, max, now }
    }

    fn marks(settled: Option<i64>, waiting: Option<(i64, &str)>) -> Marks {
        let waiting =
            waiting.map(|(value, taken_at)| Waiting { value, taken_at: taken_at.to_owned() });
        Marks { settled, waiting }
    }

    #[test]
    fn marks_are_recorded_wait_settle_and_are_recorded_again() {
        for (before, seen, after, at_once) in [
            // An empty table has nothing to wait for.
            (marks(None, None), seen(None, None, NOON), None, false),
            (marks(None, None), seen(None, Some(7), NOON), Some((None, Some((7, NOON)))), true),
            // A waiting mark does not advance with newer rows, or it would wait forever.
            (marks(None, Some((7, NOON))), seen(None, Some(9), LATER), None, false),
            (
                marks(None, Some((7, NOON))),
                seen(Some(7), Some(9), LATER),
                Some((Some(7), Some((9, LATER)))),
                true,
            ),
            (
                marks(Some(7), Some((9, NOON))),
                seen(Some(9), Some(9), LATER),
                Some((Some(9), None)),
                false,
            ),
            (marks(Some(9), None), seen(Some(9), Some(9), LATER), None, false),
            // Deleted rows do not move a mark back.
            (marks(Some(9), None), seen(Some(9), Some(3), LATER), None, false),
            (marks(Some(9), None), seen(Some(9), None, LATER), None, false),
            // The clock was set back: a new mark is recorded.
            (
                marks(Some(1), Some((9, LATER))),
                seen(Some(1), Some(9), NOON),
                Some((Some(1), Some((9, NOON)))),
                true,
            ),
            // Negative numbers are valid.
            (marks(None, None), seen(None, Some(-5), NOON), Some((None, Some((-5, NOON)))), true),
        ] {
            let expected = after.map(|(settled, waiting)| RetainedState {
                state: marks(settled, waiting).state(),
                at_once,
            });
            assert_eq!(before.after(&seen), expected, "{before:?} {seen:?}");
        }
    }

    #[test]
    fn retained_marks_are_read_back_and_invalid_ones_are_ignored() {
        for known in
            [marks(None, None), marks(Some(i64::MIN), None), marks(Some(7), Some((i64::MAX, NOON)))]
        {
            assert_eq!(Marks::of(&known.state()), known);
        }
        let mut state = marks(Some(7), Some((9, NOON))).state();
        state.insert(SETTLED.to_owned(), 7.into());
        state.insert(WAITING.to_owned(), "many".into());
        assert_eq!(Marks::of(&state), Marks::default());
    }
}
