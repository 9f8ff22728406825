//! The warnings of a command that keeps no log: printed as they come, and kept for its report.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, Registry};

use super::output::tell;

/// The warnings so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Returns what work has to run under for its warnings to be seen.
    pub(super) fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        Registry::default().with(Printed(self.clone()))
    }

    /// Returns the warnings, in the order in which they came.
    pub(super) fn texts(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Printed(Warnings);

impl<S: Subscriber> Layer<S> for Printed {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        // What the driver warns of is said in the driver's words, and checked by `doctor`.
        if *metadata.level() != Level::WARN || !metadata.target().starts_with("highwater") {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        // How the tick ended is the command's own report.
        if !text.is_end {
            tell(&format!("warning: {}", text.message));
            self.0.lock().push(text.message);
        }
    }
}

#[derive(Default)]
struct Text {
    message: String,
    is_end: bool,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "outcome" => self.is_end = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_warnings_are_kept_and_neither_notes_nor_the_end_of_a_tick() {
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.subscriber(), || {
            tracing::info!("quiet");
            tracing::warn!(rows = 2, "{} rows", 2);
            tracing::warn!(outcome = "paused", "paused by ann");
            tracing::warn!(target: "driver::tls", "not encrypted");
            tracing::error!("failed");
        });
        assert_eq!(warnings.texts(), ["2 rows"]);
    }
}
