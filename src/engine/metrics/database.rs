//! Durations of database calls, by the conventions:
//! <https://opentelemetry.io/docs/specs/semconv/db/database-metrics/>

use std::fmt;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

use super::{SCOPE, help, named};

/// Boundaries in seconds that the conventions recommend, extended to the longest statement.
const SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Measures one kind of SQL Server call.
pub struct DatabaseCalls {
    duration: Histogram<f64>,
    operation: &'static str,
    table: Option<String>,
}

impl fmt::Debug for DatabaseCalls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut output = formatter.debug_struct("DatabaseCalls");
        output.field("operation", &self.operation).field("table", &self.table);
        output.finish_non_exhaustive()
    }
}

impl DatabaseCalls {
    /// Measures calls that do `operation` with one table, or with something unnamed.
    pub fn new(operation: &'static str, table: Option<String>) -> Self {
        let meter = opentelemetry::global::meter(SCOPE);
        let duration = meter
            .f64_histogram("db.client.operation.duration")
            .with_description(help("db.client.operation.duration"))
            .with_unit("s");
        let duration = duration.with_boundaries(SECONDS.to_vec()).build();
        Self { duration, operation, table }
    }

    /// Records the duration of a call for `poller`, and its error.
    pub fn took(&self, poller: &str, duration: Duration, error: Option<String>) {
        let mut attributes = vec![
            named(poller),
            KeyValue::new("db.system.name", "microsoft.sql_server"),
            KeyValue::new("db.operation.name", self.operation),
        ];
        let table = self.table.clone();
        attributes.extend(table.map(|table| KeyValue::new("db.collection.name", table)));
        attributes.extend(error.map(|error| KeyValue::new("error.type", error)));
        self.duration.record(duration.as_secs_f64(), &attributes);
    }
}
