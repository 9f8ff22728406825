//! Telemetry: log lines always, OTLP and Prometheus text if configured.
//!
//! # Log lines
//!
//! One JSON object per line: INFO and below on stdout, WARN and ERROR on stderr. The Functions host creates one
//! record for each line; `telemetry/host_level.rs` makes sure of its level. A closed pipe must not end the
//! process, so nothing here uses `println!`. A pipe that is not read must not block it, so
//! `telemetry/lines.rs` has a writer thread for each stream. Each line of a tick has the invocation's id, in
//! its own field or in `span`.
//!
//! # OTLP
//!
//! Traces, metrics and logs over HTTP in protobuf, to the collector in the standard variables, if one is set.
//! The telemetry of a tick is sent before the tick is answered, within [`FLUSH_TIME_MAX`]. A failing collector
//! never fails a tick.
//!
//! # Prometheus
//!
//! The same metrics as text, at a local address, if a setting names one.

mod encode;
mod export;
mod host_level;
mod lines;
mod people;
mod post;
mod prometheus;
mod reader;
mod redacting;
mod resource;
mod settings;

use std::net::SocketAddr;
use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream, Temporality};
use tokio::time::sleep;
use tracing::{Level, Metadata, error, warn};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use uuid::Uuid;

use self::export::{Exporter, Parts};
use self::lines::Streams;
use self::people::People;
use self::reader::Reader;
use self::redacting::Redacting;
use self::settings::{Settings, Signal};
use crate::clock::SystemClock;
use crate::config::{Vars, metrics_address};
use crate::error::chain;
use crate::metrics;
use crate::status::StatusReader;
use crate::trace::{PendingExport, SpanLayer, TARGET, TICK_TARGET};

pub use self::export::FLUSH_TIME_MAX;
pub use self::lines::flush_lines;
pub use self::lines::write_stderr;
pub use self::prometheus::series_name;

/// Crates that send telemetry: exporting their own log events would create more of them.
const SENDERS: [&str; 5] = ["h2", "hyper", "opentelemetry", "reqwest", "rustls"];

/// Module of the database driver whose events contain rows, and error messages of the server in full. They are never
/// logged, whatever the filter is: rows are not for logs, and we report errors ourselves.
const ROWS_TARGET: &str = "tiberius::tds::stream::token";
/// The database driver.
const DRIVER: &str = "tiberius";

/// Set only by Azure Functions Core Tools.
const CORE_TOOLS: &str = "FUNCTIONS_CORETOOLS_ENVIRONMENT";

/// How often the documents of pollers that do not tick in this process are read for the gauge of their states.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// Most series of poller states: those of 1,170 pollers.
const STATE_SERIES_MAX: usize = 16_384;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineForm {
    /// JSON objects, for log collectors.
    #[default]
    Json,
    /// Short text, for a person who runs `func`, which adds the time.
    Text,
    /// The same with the time, for a person at a terminal.
    Terminal,
}

impl LineForm {
    /// Returns the format for the reader of this process's lines.
    fn of(vars: &dyn Vars) -> Self {
        let is_core_tools = vars.get(CORE_TOOLS).is_some_and(|text| !text.trim().is_empty());
        if is_core_tools { Self::Text } else { Self::Json }
    }
}

/// Where the final line of a successful tick goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickLines {
    /// To standard output.
    Written,
    /// Into the reply to the Functions host, which adds the operation's id.
    Answered,
}

/// Telemetry besides log lines. Does nothing without an exporter.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    exporter: Option<Exporter>,
    form: LineForm,
    /// Id of this function app in Azure.
    site_id: Option<Arc<str>>,
    /// Whether metrics are exported or served.
    has_metrics: bool,
}

impl Telemetry {
    /// Sends log events that pass `filter` (such as `info` or `highwater=debug,warn`) to the streams, and starts
    /// the exporters set in `vars`. An invalid `filter` is replaced by `info`.
    ///
    /// Must be called within a runtime, and before instruments are created.
    pub fn start(filter: &str, vars: &dyn Vars, ticks: TickLines) -> Self {
        Self::start_in(LineForm::of(vars), filter, vars, ticks)
    }

    /// Like [`Self::start`], with lines in a given format.
    pub fn start_in(form: LineForm, filter: &str, vars: &dyn Vars, ticks: TickLines) -> Self {
        lines::start();
        let settings = Settings::of(vars);
        let collected = Arc::new(PendingExport::default());
        let subscriber = Registry::default()
            .with(line_layer(filter, form, ticks))
            .with(exported(filter, &settings, &collected));
        // Fails only if a subscriber is already set, as in tests.
        if tracing::subscriber::set_global_default(subscriber).is_ok() {
            panic::set_hook(Box::new(log_panic));
        }
        for mistake in &settings.mistakes {
            warn!(event = "telemetry_setting_ignored", error = mistake, "{mistake}");
        }
        let site_id = resource::site_id(vars).map(Arc::from);
        let address = metrics_address(vars);
        if settings.endpoints.is_empty() && address.is_none() {
            return Self { form, site_id, ..Self::default() };
        }
        let resource = resource::resource(vars, &Uuid::new_v4().to_string());
        let provider = SdkMeterProvider::builder().with_resource(resource.clone());
        let provider = provider.with_view(view_of_states);
        let scraped = address.map(|address| (address, Reader::new(Temporality::Cumulative)));
        let provider = match &scraped {
            Some((_, reader)) => provider.with_reader(reader.clone()),
            None => provider,
        };
        let reader = Reader::new(settings.temporality);
        let exports = !settings.endpoints.is_empty();
        let provider = if exports { provider.with_reader(reader.clone()) } else { provider };
        opentelemetry::global::set_meter_provider(provider.build());
        metrics::export_build(env!("CARGO_PKG_VERSION"), option_env!("HIGHWATER_COMMIT"));
        metrics::count_dropped_lines(lines::dropped);
        let is_served = scraped.is_some();
        if let Some((address, reader)) = scraped {
            tokio::spawn(scrape(address, reader));
        }
        let parts = Parts { resource, reader, collected };
        let has_metrics = is_served || settings.exports(Signal::Metrics);
        let exporter = exports.then(|| Exporter::start(settings, parts));
        Self { exporter, form, site_id, has_metrics }
    }

    /// Exports the state of each poller of `board`, if this process exports metrics.
    ///
    /// Must be called within a runtime.
    pub fn export_states(&self, board: StatusReader) {
        if !self.has_metrics {
            return;
        }
        let board = Arc::new(board);
        let read = Arc::clone(&board);
        metrics::export_states(&metrics::meter(), move || read.states());
        tokio::spawn(async move {
            loop {
                sleep(REFRESH_INTERVAL).await;
                board.refresh().await;
            }
        });
    }

    /// Exports the collected telemetry, and waits at most [`FLUSH_TIME_MAX`].
    pub async fn flush(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.flush().await;
        }
    }

    /// Returns the format of log lines.
    pub fn form(&self) -> LineForm {
        self.form
    }

    /// Returns the Azure resource id of a function of this app, if the platform provides its parts.
    pub fn function_id(&self, function: &str) -> Option<String> {
        self.site_id.as_ref().map(|site| format!("{site}/functions/{function}"))
    }
}

/// Returns a higher limit for the series of poller states: the default of 2,000 suffices for 142 pollers.
fn view_of_states(instrument: &Instrument) -> Option<Stream> {
    let limit = STATE_SERIES_MAX;
    (instrument.name() == metrics::POLLER_STATE)
        .then(|| Stream::builder().with_cardinality_limit(limit).build().ok())
        .flatten()
}

async fn scrape(address: SocketAddr, reader: Reader) {
    if let Err(error) = prometheus::serve(address, reader).await {
        warn!(
            event = "metrics_not_served",
            error = chain(&error),
            "Cannot serve metrics at {address} (`HIGHWATER__METRICS__ADDRESS`): {error}"
        );
    }
}

/// A filter consists of targets and levels only. Filters on field values need a regular expression engine,
/// half a megabyte of the program.
fn targets(filter: &str) -> Targets {
    filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO))
}

fn is_span_to_export(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == TARGET
}

/// Whether an event is a warning of the database driver: it repeats with each connection, and has no name. Everything
/// that it warns of is an error that we log, or `certificate_not_checked`.
fn is_of_driver(metadata: &Metadata<'_>) -> bool {
    *metadata.level() == Level::WARN && metadata.target().starts_with(DRIVER)
}

/// Returns the layer that writes lines.
fn line_layer<S>(
    filter: &str,
    form: LineForm,
    ticks: TickLines,
) -> Box<dyn tracing_subscriber::Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    use tracing_subscriber::filter::FilterExt as _;
    let is_written = move |metadata: &Metadata<'_>| {
        let is_answered = ticks == TickLines::Answered && metadata.target() == TICK_TARGET;
        let is_of_rows = metadata.target() == ROWS_TARGET;
        !is_span_to_export(metadata) && !is_answered && !is_of_rows && !is_of_driver(metadata)
    };
    let filter = targets(filter).and(filter_fn(is_written));
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(Redacting(Streams(form), form))
        // These errors go to `eprintln!`, which panics when the host is gone and both pipes are closed.
        .log_internal_errors(false);
    match form {
        LineForm::Text => layer.event_format(People::default()).with_filter(filter).boxed(),
        LineForm::Terminal => layer.event_format(People::at_terminal()).with_filter(filter).boxed(),
        LineForm::Json => layer
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .with_target(false)
            .with_filter(filter)
            .boxed(),
    }
}

/// Returns the layer that collects spans and logs for export; `None` if neither is exported.
fn exported<S>(
    filter: &str,
    settings: &Settings,
    collected: &Arc<PendingExport>,
) -> Option<impl tracing_subscriber::Layer<S> + use<S>>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    use tracing_subscriber::filter::FilterExt as _;
    let wanted = |signal| settings.exports(signal).then(|| Arc::clone(collected));
    let (spans, logs) = (wanted(Signal::Traces), wanted(Signal::Logs));
    if spans.is_none() && logs.is_none() {
        return None;
    }
    let layer = SpanLayer { spans, logs, sampler: settings.sampler, clock: Arc::new(SystemClock) };
    let events = targets(filter).and(filter_fn(|metadata| {
        let sender = metadata.target().split("::").next().unwrap_or_default();
        metadata.is_event() && !SENDERS.contains(&sender) && metadata.target() != ROWS_TARGET
    }));
    Some(layer.with_filter(events.or(filter_fn(is_span_to_export))))
}

/// Logs a panic as one line. The default text has several lines, and the host would record each as an error
/// without an id.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("(no text)");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    error!(event = "panic", error = text, place, "Panicked at {place}: {text}");
}
