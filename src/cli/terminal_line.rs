//! A line of progress on standard error, which is rewritten in place on a terminal.

use std::io::{self, IsTerminal as _};

use highwater::telemetry::write_stderr;

/// Most characters of the line: a longer line would wrap and leave remains.
pub(super) const COLUMNS: usize = 79;

/// Erases the rest of the previous text.
const ERASE: &str = "\u{1b}[K";

/// Whether standard error is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Replaces the text of the line.
pub(super) fn rewrite(text: &str) {
    write_stderr(&format!("\r{}{ERASE}", cut(text)));
}

/// Ends the line, so that later output starts on a new one.
pub(super) fn end() {
    write_stderr("\n");
}

fn cut(text: &str) -> String {
    text.chars().take(COLUMNS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_on_a_terminal() {
        assert_eq!(cut("12 of 340"), "12 of 340");
        assert_eq!(cut(&"ü".repeat(COLUMNS + 1)), "ü".repeat(COLUMNS));
    }
}
