//! The high-water mark of mode `integer+pk`: how far rows may be read, and when it moves on. Pure.
//!
//! # Why so
//!
//! A number is taken when a row is written and seen when its transaction commits, so the rows below
//! the highest number seen are not all there yet. The highest one is noted with the time, and rows up
//! to it are read once the settle window has passed since: every number up to it was taken before the
//! note, so its transaction has had that long to commit. The note is part of the state document, since
//! two ticks may be two processes, of which neither lives for as long as the window.

use highwater_engine::cursor::SourceState;
use highwater_engine::source::RetainedState;
use serde_json::Value as Json;

use crate::connection::Param;

const SETTLED: &str = "settled";
const WAITING: &str = "waiting";
const TAKEN_AT: &str = "taken_at";

/// What is known of the numbers that a table has given out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Rows up to here may be read.
    settled: Option<i64>,
    /// What the settled mark becomes; always higher.
    waiting: Option<Waiting>,
}

/// A highest number, and when it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    value: i64,
    /// The server's own text, which the server reads again.
    taken_at: String,
}

/// What the server said of itself with a fetch.
#[derive(Clone, Debug)]
pub(super) struct Seen<'a> {
    /// How far rows were read.
    pub(super) hi: Option<i64>,
    /// The highest number of a committed row.
    pub(super) max: Option<i64>,
    /// Its clock, read after that.
    pub(super) now: &'a str,
}

impl Marks {
    /// Reads what was remembered; what cannot be read counts as forgotten, which costs time only.
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

    /// Returns the three parameters of the statement: the settled mark, the waiting one, and when that
    /// was taken; blank where there is none.
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

    /// Returns what to remember after a fetch; `None` where that has not changed.
    ///
    /// A mark that was just taken has rows waiting for it.
    pub(super) fn after(&self, seen: &Seen<'_>) -> Option<RetainedState> {
        let settled = self.settled.max(seen.hi);
        // A mark from the future was taken before the server's clock was set back.
        let waiting = self
            .waiting
            .clone()
            .filter(|mark| Some(mark.value) > settled && mark.taken_at.as_str() <= seen.now);
        let taken = seen
            .max
            .filter(|max| waiting.is_none() && Some(*max) > settled)
            .map(|value| Waiting { value, taken_at: seen.now.to_owned() });
        let at_once = taken.is_some();
        let next = Self { settled, waiting: waiting.or(taken) };
        (next != *self).then(|| RetainedState { state: next.state(), at_once })
    }
}

/// Returns `state` as if every number had settled, for a look at rows that nothing is concluded from.
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

    fn seen(hi: Option<i64>, max: Option<i64>, now: &str) -> Seen<'_> {
        Seen { hi, max, now }
    }

    fn marks(settled: Option<i64>, waiting: Option<(i64, &str)>) -> Marks {
        let waiting =
            waiting.map(|(value, taken_at)| Waiting { value, taken_at: taken_at.to_owned() });
        Marks { settled, waiting }
    }

    #[test]
    fn marks_are_taken_wait_settle_and_are_taken_again() {
        for (before, seen, after, at_once) in [
            // An empty table has nothing to wait for.
            (marks(None, None), seen(None, None, NOON), None, false),
            (marks(None, None), seen(None, Some(7), NOON), Some((None, Some((7, NOON)))), true),
            // A mark that waits is not pushed on by newer rows, or it would wait for ever.
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
            // Rows that were deleted do not take a mark back.
            (marks(Some(9), None), seen(Some(9), Some(3), LATER), None, false),
            (marks(Some(9), None), seen(Some(9), None, LATER), None, false),
            // The clock was set back: the mark is taken anew.
            (
                marks(Some(1), Some((9, LATER))),
                seen(Some(1), Some(9), NOON),
                Some((Some(1), Some((9, NOON)))),
                true,
            ),
            // Numbers below zero are numbers.
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
    fn what_is_remembered_is_read_again_and_what_cannot_be_is_forgotten() {
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
