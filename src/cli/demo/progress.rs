//! What a person sees while the demo runs: a bar on a terminal, a few lines anywhere else; all of it
//! on standard error.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const BAR: &str = "{elapsed:>4} [{bar:40}] {pos}/{len} rows delivered  {msg}";

/// Shows how far the demo is; clones show the same.
#[derive(Clone, Debug)]
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Starts at nothing of `rows`.
    pub(super) fn start(rows: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(rows);
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Some(bar))
    }

    /// Shows that `rows` are delivered.
    pub(super) fn at(&self, rows: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(rows);
        }
    }

    /// Shows what is being waited for.
    pub(super) fn waiting(&self, text: &'static str) {
        if let Some(bar) = &self.0 {
            bar.set_message(text);
        }
    }

    /// Writes a line.
    pub(super) fn say(&self, line: &str) {
        match &self.0 {
            Some(bar) => bar.println(line),
            None => say(line),
        }
    }

    /// Takes the bar off the screen.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Writes a line to standard error.
pub(super) fn say(line: &str) {
    #[expect(clippy::print_stderr, reason = "what is not data goes to standard error")]
    {
        eprintln!("{line}");
    }
}
