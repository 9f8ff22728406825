//! Log lines for a person at a terminal. `func` adds the time, and shows the level as a colour.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::printable::printable_line;

/// Writes the message of an event, and its error if the message does not contain it.
pub(super) struct People;

#[derive(Default)]
struct Fields {
    message: String,
    error: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = match field.name() {
            "message" => &mut self.message,
            "error" => &mut self.error,
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
        writeln!(writer, "{}", line(*event.metadata().level(), &fields.message, &fields.error))
    }
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
    use super::*;

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
