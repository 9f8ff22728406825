//! Warnings of a command without a log: printed at once, and collected for its report. A first start is
//! printed too: the location of the state and the start position.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, Registry};

use super::output::print_message_nonblocking;

/// Name of the event of a first start.
const FIRST_RUN: &str = "first_run";

/// The warnings so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Returns the subscriber that collects the warnings of the work that runs under it.
    pub(super) fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        Registry::default().with(Printed(self.clone()))
    }

    /// Returns the warnings in order.
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
        let level = *metadata.level();
        // Skip the driver's warnings: `doctor` checks their causes and explains them better.
        if !matches!(level, Level::WARN | Level::INFO)
            || !metadata.target().starts_with("highwater")
        {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        if text.event == FIRST_RUN {
            print_message_nonblocking(&text.message);
        } else if level == Level::WARN && !text.is_end {
            // The command itself reports the outcome of the tick.
            print_message_nonblocking(&format!("warning: {}", text.message));
            self.0.lock().push(text.message);
        }
    }
}

#[derive(Default)]
struct Text {
    event: String,
    message: String,
    is_end: bool,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "event" => value.clone_into(&mut self.event),
            _ => self.record_debug(field, &value),
        }
    }

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
    fn only_own_warnings_are_collected_without_tick_outcomes() {
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.subscriber(), || {
            tracing::info!("quiet");
            tracing::info!(event = "first_run", "starts from the beginning");
            tracing::warn!(rows = 2, "{} rows", 2);
            tracing::warn!(outcome = "paused", "paused by ann");
            tracing::warn!(target: "driver::tls", "not encrypted");
            tracing::error!("failed");
        });
        assert_eq!(warnings.texts(), ["2 rows"]);
    }
}
