//! Metric readers that collect on demand, not periodically.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, Pipeline, Temporality};

/// A reader that is shared by the meter provider and an exporter.
#[derive(Clone)]
pub(super) struct Reader(Arc<ManualReader>);

impl fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Reader")
    }
}

impl Reader {
    pub(super) fn new(temporality: Temporality) -> Self {
        Self(Arc::new(ManualReader::builder().with_temporality(temporality).build()))
    }

    /// Returns the current metrics; `None` if they cannot be collected.
    pub(super) fn read(&self) -> Option<ResourceMetrics> {
        let mut found = ResourceMetrics::default();
        self.0.collect(&mut found).ok()?;
        Some(found)
    }
}

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, found: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(found)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
