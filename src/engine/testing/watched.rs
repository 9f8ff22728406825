//! A world whose logs and metrics are read back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use opentelemetry::metrics::{Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, GaugeDataPoint, HistogramDataPoint, MetricData, ResourceMetrics,
    ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::locked;
use super::world::{World, limits};
use crate::metrics::Metrics;
use crate::poller::Limits;

/// One log event: its fields by name, with its level.
pub type Logged = BTreeMap<String, String>;

#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<Logged>>>);

struct Fields<'a>(&'a mut Logged);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: tracing::Subscriber> Layer<S> for Capture {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut logged = Logged::new();
        event.record(&mut Fields(&mut logged));
        logged.insert("level".to_owned(), event.metadata().level().to_string());
        locked(&self.0).push(logged);
    }
}

/// Counters of redelivered rows and of stale writes.
const REDELIVERY: [&str; 3] =
    ["highwater.recovery.takeovers", "highwater.rows.redelivered", "highwater.fence.rejections"];

/// A world whose logs and metrics are read back.
pub struct WatchedWorld {
    /// The world.
    pub world: World,
    capture: Capture,
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
    /// Counters of [`REDELIVERY`] that a test asked for; the others must stay at 0. `None` if all may move.
    expected: Option<Mutex<BTreeSet<String>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

impl fmt::Debug for WatchedWorld {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WatchedWorld").field("world", &self.world).finish_non_exhaustive()
    }
}

impl Default for WatchedWorld {
    fn default() -> Self {
        Self::new()
    }
}

impl WatchedWorld {
    /// Returns a new world. When it is dropped, it checks that counters of redelivery stayed at 0 unless the test
    /// asked for them.
    pub fn new() -> Self {
        Self::with(limits())
    }

    /// As [`Self::new`], with other limits.
    pub fn with(limits: Limits) -> Self {
        let mut watched = Self::of(World::with(limits));
        watched.expected = Some(Mutex::default());
        watched
    }

    /// Returns a world whose counters may all move.
    pub fn of(world: World) -> Self {
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
        let metrics = Arc::new(Metrics::new(&provider.meter("highwater")));
        let capture = Capture::default();
        let subscriber = tracing_subscriber::registry().with(capture.clone());
        let guard = tracing::subscriber::set_default(subscriber);
        let world = World { metrics, ..world };
        Self { world, capture, exporter, provider, expected: None, _guard: guard }
    }

    /// Returns all log events so far.
    pub fn lines(&self) -> Vec<Logged> {
        locked(&self.capture.0).clone()
    }

    /// Returns the last log event of this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn logged(&self, event: &str) -> Logged {
        let lines = self.lines();
        let named = lines.iter().rev().find(|line| is_named(line, event)).cloned();
        assert!(named.is_some(), "no log event `{event}` in {lines:#?}");
        named.unwrap_or_default()
    }

    /// Returns how many log events have this name.
    pub fn count_of(&self, event: &str) -> usize {
        self.lines().iter().filter(|line| is_named(line, event)).count()
    }

    /// Returns the sum of a counter over the points that have `attribute`, or over all.
    pub fn counted(&self, metric: &str, attribute: Option<(&str, &str)>) -> u64 {
        if let Some(expected) = &self.expected {
            locked(expected).insert(metric.to_owned());
        }
        self.read(metric, |data| {
            let AggregatedMetrics::U64(MetricData::Sum(sum)) = data else { return 0 };
            let matching = sum.data_points().filter(|point| {
                attribute.is_none_or(|(key, value)| {
                    point.attributes().any(|a| a.key.as_str() == key && a.value.as_str() == value)
                })
            });
            matching.map(SumDataPoint::value).sum::<u64>()
        })
        .into_iter()
        .sum()
    }

    /// Returns how many values a histogram of seconds has recorded, and their sum.
    pub fn measured(&self, metric: &str) -> (u64, f64) {
        let found = self.read(metric, |data| {
            let AggregatedMetrics::F64(MetricData::Histogram(recorded)) = data else {
                return (0, 0.0);
            };
            let points = recorded.data_points().map(|point| (point.count(), point.sum()));
            points.fold((0, 0.0), |total, point| (total.0 + point.0, total.1 + point.1))
        });
        found.into_iter().fold((0, 0.0), |total, one| (total.0 + one.0, total.1 + one.1))
    }

    /// Returns how many values a histogram of seconds has recorded with this attribute.
    pub fn timed(&self, metric: &str, (key, value): (&str, &str)) -> u64 {
        self.read(metric, |data| {
            let AggregatedMetrics::F64(MetricData::Histogram(recorded)) = data else { return 0 };
            let matching = recorded.data_points().filter(|point| {
                point.attributes().any(|a| a.key.as_str() == key && a.value.as_str() == value)
            });
            matching.map(HistogramDataPoint::count).sum::<u64>()
        })
        .into_iter()
        .sum()
    }

    /// Returns the value of a counter that goes up and down.
    pub fn gauge_value(&self, metric: &str) -> i64 {
        self.read(metric, |data| {
            let AggregatedMetrics::I64(MetricData::Sum(sum)) = data else { return 0 };
            sum.data_points().map(SumDataPoint::value).sum::<i64>()
        })
        .into_iter()
        .sum()
    }

    /// Returns the value of a gauge of any number type.
    pub fn gauge(&self, metric: &str) -> Option<f64> {
        let found = self.read(metric, |data| {
            match data {
                AggregatedMetrics::F64(data) => first_value(data),
                AggregatedMetrics::U64(data) => first_value(data),
                AggregatedMetrics::I64(data) => first_value(data),
            }
            .and_then(|value| value.parse().ok())
        });
        found.into_iter().next().flatten()
    }

    /// Returns the value that a gauge of integers has with this attribute.
    pub fn gauge_with(&self, metric: &str, (key, value): (&str, &str)) -> Option<u64> {
        let found = self.read(metric, |data| {
            let AggregatedMetrics::U64(MetricData::Gauge(gauge)) = data else { return None };
            let mut matching = gauge.data_points().filter(|point| {
                point.attributes().any(|a| a.key.as_str() == key && a.value.as_str() == value)
            });
            matching.next().map(GaugeDataPoint::value)
        });
        found.into_iter().next().flatten()
    }

    /// Returns the meter, for instruments that the world does not create.
    pub fn meter(&self) -> Meter {
        self.provider.meter("highwater")
    }

    /// Returns how many ticks failed with this error.
    pub fn failures(&self, error: &str) -> u64 {
        self.counted("highwater.tick.failures", Some(("error.type", error)))
    }

    /// Reads the metrics of a name from the last export.
    fn read<T>(&self, metric: &str, read: impl Fn(&AggregatedMetrics) -> T) -> Vec<T> {
        self.provider.force_flush().expect("the exporter is in memory");
        let finished = self.exporter.get_finished_metrics().expect("the exporter is in memory");
        let metrics = finished.iter().rev().take(1).flat_map(ResourceMetrics::scope_metrics);
        let named = metrics.flat_map(ScopeMetrics::metrics).filter(|found| found.name() == metric);
        named.map(|found| read(found.data())).collect()
    }
}

/// Counters that a test did not ask for have not moved.
impl Drop for WatchedWorld {
    fn drop(&mut self) {
        let Some(expected) = self.expected.take().filter(|_| !std::thread::panicking()) else {
            return;
        };
        let expected = locked(&expected).clone();
        for metric in REDELIVERY.into_iter().filter(|metric| !expected.contains(*metric)) {
            assert_eq!(self.counted(metric, None), 0, "{metric}");
        }
    }
}

fn is_named(line: &Logged, event: &str) -> bool {
    line.get("event").is_some_and(|name| name == event)
}

/// Returns the first value of a gauge.
fn first_value<T: Copy + ToString>(data: &MetricData<T>) -> Option<String> {
    let MetricData::Gauge(gauge) = data else { return None };
    gauge.data_points().next().map(|point| point.value().to_string())
}
