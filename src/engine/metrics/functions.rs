//! Invocations of functions, by the conventions:
//! <https://opentelemetry.io/docs/specs/semconv/faas/faas-metrics/>

use std::fmt;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};
use tokio::time::Instant;

use super::{SCOPE, counter, histogram_of_seconds, named};

/// What triggers an invocation, as named by the conventions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A request through the host.
    Http,
    /// Unknown because of invalid settings.
    Other,
    /// The host's timer, or one of our own.
    Timer,
}

impl Trigger {
    /// Returns its name in attributes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Other => "other",
            Self::Timer => "timer",
        }
    }
}

/// Measures the invocations of this process.
#[derive(Clone)]
pub struct Invocations {
    duration: Histogram<f64>,
    succeeded: Counter<u64>,
    errors: Counter<u64>,
    cold_starts: Counter<u64>,
}

impl fmt::Debug for Invocations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Invocations").finish_non_exhaustive()
    }
}

impl Default for Invocations {
    fn default() -> Self {
        Self::new(&opentelemetry::global::meter(SCOPE))
    }
}

impl Invocations {
    fn new(meter: &Meter) -> Self {
        let counter = |name, unit| counter(meter, name, unit);
        Self {
            duration: histogram_of_seconds(meter, "faas.invoke_duration"),
            succeeded: counter("faas.invocations", "{invocation}"),
            errors: counter("faas.errors", "{error}"),
            cold_starts: counter("faas.coldstarts", "{coldstart}"),
        }
    }

    /// Starts to measure an invocation of `poller`'s function, if it has one. The first one of the process is marked
    /// as a cold start.
    pub fn begin(
        &self,
        trigger: Trigger,
        poller: Option<&str>,
        is_first: bool,
    ) -> RunningInvocation {
        let mut attributes = vec![KeyValue::new("faas.trigger", trigger.as_str())];
        attributes.extend(poller.map(named));
        // A counter that first appears with its first count shows no increase to an alert.
        self.errors.add(0, &attributes);
        self.cold_starts.add(is_first.into(), &attributes);
        RunningInvocation {
            of: self.clone(),
            attributes,
            began_at: Instant::now(),
            has_failed: true,
        }
    }
}

/// A measured invocation, until this is dropped. It counts as failed unless it is reported as successful, so that a
/// panic counts as a failure too.
#[derive(Debug)]
#[must_use]
pub struct RunningInvocation {
    of: Invocations,
    attributes: Vec<KeyValue>,
    began_at: Instant,
    has_failed: bool,
}

impl RunningInvocation {
    /// Ends the measurement.
    pub fn end(mut self, has_failed: bool) {
        self.has_failed = has_failed;
    }
}

impl Drop for RunningInvocation {
    fn drop(&mut self) {
        self.of.duration.record(self.began_at.elapsed().as_secs_f64(), &self.attributes);
        let counter = if self.has_failed { &self.of.errors } else { &self.of.succeeded };
        counter.add(1, &self.attributes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::data::{
        AggregatedMetrics, HistogramDataPoint, MetricData, ResourceMetrics, ScopeMetrics,
        SumDataPoint,
    };
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};

    use super::*;

    fn value_of(found: &ResourceMetrics, metric: &str) -> f64 {
        let mut all = found.scope_metrics().flat_map(ScopeMetrics::metrics);
        match all.find(|one| one.name() == metric).unwrap().data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                let counts = sum.data_points().map(SumDataPoint::value);
                f64::from(u32::try_from(counts.sum::<u64>()).unwrap())
            }
            AggregatedMetrics::F64(MetricData::Histogram(times)) => {
                times.data_points().map(HistogramDataPoint::sum).sum()
            }
            AggregatedMetrics::F64(_) | AggregatedMetrics::U64(_) | AggregatedMetrics::I64(_) => {
                panic!("{metric}")
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_reported_success_does_not_count_as_an_error() {
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
        let invocations = Invocations::new(&provider.meter(SCOPE));
        let good = invocations.begin(Trigger::Timer, Some("orders"), true);
        tokio::time::sleep(Duration::from_secs(2)).await;
        good.end(false);
        invocations.begin(Trigger::Timer, Some("orders"), false).end(true);
        drop(invocations.begin(Trigger::Http, None, false));
        provider.force_flush().unwrap();
        let found = exporter.get_finished_metrics().unwrap().pop().unwrap();
        for (metric, expected) in [
            ("faas.invocations", 1.0),
            ("faas.errors", 2.0),
            ("faas.coldstarts", 1.0),
            ("faas.invoke_duration", 2.0),
        ] {
            assert!((value_of(&found, metric) - expected).abs() < 1e-9, "{metric}");
        }
    }
}
