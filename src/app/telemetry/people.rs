//! Log lines for a person. `func` adds the time, and shows the level as a colour. At a terminal, each line has the
//! local time, and the end of a tick is shown as `13:15:15 orders ✓ 2 rows in 1 batch, 103 ms`.

use std::fmt::{self, Write as _};

use time::OffsetDateTime;
use time::macros::format_description;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::{Clock as _, SystemClock};
use crate::printable::printable_line;
use crate::project::time_zone;
use crate::schedule::Zone;

/// Writes the message of an event, and its error if the message does not contain it.
#[derive(Default)]
pub(super) struct People {
    /// The zone of the times; `None` for lines without a time.
    zone: Option<Zone>,
}

impl People {
    /// Returns the format for a terminal.
    pub(super) fn at_terminal() -> Self {
        Self { zone: Some(time_zone::local().unwrap_or_else(Zone::utc)) }
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    error: String,
    poller: String,
    /// How a tick ended; empty for other events.
    outcome: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = match field.name() {
            "message" => &mut self.message,
            "error" => &mut self.error,
            "poller.name" => &mut self.poller,
            "outcome" => &mut self.outcome,
            _ => return,
        };
        // Writing to a string cannot fail.
        write!(text, "{value:?}").unwrap_or_default();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl<S, N> FormatEvent<S, N> for People
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        match &self.zone {
            None => writeln!(writer, "{}", line(level, &fields.message, &fields.error)),
            Some(zone) => {
                let now = zone.local(SystemClock.now());
                writeln!(writer, "{}", terminal_line(now, level, &fields))
            }
        }
    }
}

/// Returns a line for a terminal.
fn terminal_line(now: OffsetDateTime, level: Level, fields: &Fields) -> String {
    let clock = now.format(format_description!("[hour]:[minute]:[second]")).unwrap_or_default();
    let Fields { message, error, poller, outcome } = fields;
    let start = format!("poller `{poller}`: ");
    let Some(what) = message.strip_prefix(&start).filter(|_| !outcome.is_empty()) else {
        return format!("{clock} {}", line(level, message, error));
    };
    let mark = match (level, outcome.as_str()) {
        (Level::ERROR, _) => '✗',
        (Level::WARN, _) | (_, "backing_off" | "paused" | "skipped") => '!',
        (Level::INFO | Level::DEBUG | Level::TRACE, _) => '✓',
    };
    // The message ends with the duration in parentheses.
    let (what, took) = what.rsplit_once(" (").unwrap_or((what, ""));
    let what = what.strip_prefix("committed ").unwrap_or(what);
    let took = took.strip_suffix(')').map(|took| format!(", {took}")).unwrap_or_default();
    one_line(&format!("{clock} {poller} {mark} {what}{took}"))
}

/// Returns a line of text. The host recognizes a warning by the prefix: see [`super::host_level`].
fn line(level: Level, message: &str, error: &str) -> String {
    let prefix = match level {
        Level::ERROR => "Error: ",
        Level::WARN => "Warning: ",
        Level::INFO | Level::DEBUG | Level::TRACE => "",
    };
    let mut line = prefix.to_owned();
    line.push_str(message);
    if !error.is_empty() && !message.contains(error) {
        line.push_str(": ");
        line.push_str(error);
    }
    one_line(&line)
}

/// Replaces line breaks and control characters. The host ends a line at each break, including a carriage return.
fn one_line(text: &str) -> String {
    let lines = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("; ");
    printable_line(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_terminal_shows_the_time_and_the_end_of_a_tick_in_short() {
        let shown = |level, poller: &str, outcome: &str, message: &str| {
            let text = str::to_owned;
            let fields = Fields {
                message: text(message),
                error: String::new(),
                poller: text(poller),
                outcome: text(outcome),
            };
            terminal_line(datetime!(2026-01-01 13:15:15 +1), level, &fields)
        };
        for (level, outcome, message, expected) in [
            (
                Level::INFO,
                "committed",
                "poller `orders`: committed 2 rows in 1 batch (103 ms)",
                "13:15:15 orders ✓ 2 rows in 1 batch, 103 ms",
            ),
            (
                Level::ERROR,
                "handler_failed",
                "poller `orders`: failed after 0 rows: HTTP 401 (denied) (7 ms)",
                "13:15:15 orders ✗ failed after 0 rows: HTTP 401 (denied), 7 ms",
            ),
            (
                Level::INFO,
                "backing_off",
                "poller `orders`: backing off until 12:00 (1 ms)",
                "13:15:15 orders ! backing off until 12:00, 1 ms",
            ),
            (
                Level::INFO,
                "paused",
                "poller `orders`: paused by ann (1 ms)",
                "13:15:15 orders ! paused by ann, 1 ms",
            ),
            (
                Level::DEBUG,
                "idle",
                "poller `orders`: nothing new (1 ms)",
                "13:15:15 orders ✓ nothing new, 1 ms",
            ),
        ] {
            assert_eq!(shown(level, "orders", outcome, message), expected);
        }
        let other = shown(Level::WARN, "orders", "", "Took over the lease");
        assert_eq!(other, "13:15:15 Warning: Took over the lease");
    }

    #[test]
    fn a_line_has_the_message_and_its_error_once() {
        for (level, message, error, expected) in [
            (Level::INFO, "poller `p`: committed 2 rows", "", "poller `p`: committed 2 rows"),
            (Level::WARN, "Gone: no", "no", "Warning: Gone: no"),
            (
                Level::ERROR,
                "Invalid settings",
                "2 mistakes\nsetting `A`\r\nsetting `B`\u{1b}[1m",
                "Error: Invalid settings: 2 mistakes; setting `A`; setting `B` [1m",
            ),
        ] {
            assert_eq!(line(level, message, error), expected);
        }
    }
}
