//! The supported variables of the OpenTelemetry specification. Pure.
//!
//! Nothing is exported unless an endpoint is set. Invalid values are reported once at the start and ignored:
//! telemetry never keeps a poller from running.
//!
//! <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>

use std::fmt;
use std::time::Duration;

use opentelemetry_sdk::metrics::Temporality;
use url::Url;

use crate::config::Vars;
use crate::trace::Sampler;

/// Default limit on one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Default interval of metric exports between ticks.
const INTERVAL: Duration = Duration::from_secs(60);

/// A kind of telemetry that is exported separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Spans.
    Traces,
    /// Measurements.
    Metrics,
    /// Log lines.
    Logs,
}

impl Signal {
    pub(super) const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    /// Returns the last segment of the default path.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

/// The destination of one signal.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) signal: Signal,
    pub(super) url: Url,
    /// Names and values; the values are secrets.
    pub(super) headers: Vec<(String, String)>,
    pub(super) timeout: Duration,
    pub(super) gzip: bool,
    /// PEM file with CA certificates.
    pub(super) certificate: Option<String>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Endpoint").field("signal", &self.signal).finish_non_exhaustive()
    }
}

/// All export settings.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) temporality: Temporality,
    pub(super) interval: Duration,
    pub(super) sampler: Sampler,
    /// Invalid values, each with the replacement that is used.
    pub(super) mistakes: Vec<String>,
}

impl Settings {
    /// Reads the variables.
    pub(super) fn of(vars: &dyn Vars) -> Self {
        let mut reader = Reader { vars, mistakes: Vec::new() };
        let disabled = reader.text("OTEL_SDK_DISABLED");
        let disabled = disabled.is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let endpoints = Signal::ALL.into_iter().filter(|_| !disabled);
        let endpoints: Vec<_> = endpoints.filter_map(|signal| reader.endpoint(signal)).collect();
        let (temporality, sampler) = (reader.temporality(), reader.sampler());
        let interval = reader.millis("OTEL_METRIC_EXPORT_INTERVAL").unwrap_or(INTERVAL);
        let mut mistakes = reader.mistakes;
        mistakes.retain(|_| !endpoints.is_empty());
        Self { endpoints, temporality, interval, sampler, mistakes }
    }

    pub(super) fn exports(&self, signal: Signal) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.signal == signal)
    }
}

struct Reader<'a> {
    vars: &'a dyn Vars,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<String> {
        let text = self.vars.get(name)?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Returns the value for a signal, or the shared one, and the name of its variable.
    fn of_signal(&self, signal: Signal, what: &str) -> Option<(String, String)> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.as_str().to_ascii_uppercase());
        let shared = format!("OTEL_EXPORTER_OTLP_{what}");
        [own, shared].into_iter().find_map(|name| Some((self.text(&name)?, name)))
    }

    fn wrong(&mut self, text: String) {
        self.mistakes.push(text);
    }

    fn endpoint(&mut self, signal: Signal) -> Option<Endpoint> {
        let (text, name) = self.of_signal(signal, "ENDPOINT")?;
        let exporter = format!("OTEL_{}_EXPORTER", signal.as_str().to_ascii_uppercase());
        if self.text(&exporter).is_some_and(|text| text.eq_ignore_ascii_case("none")) {
            return None;
        }
        let url = self.url(&text, &name, signal)?;
        if let Some((protocol, name)) = self.of_signal(signal, "PROTOCOL")
            && protocol != "http/protobuf"
        {
            self.wrong(format!(
                "`{name}` is `{protocol}`, but only `http/protobuf` is supported: {} are not exported",
                signal.as_str()
            ));
            return None;
        }
        Some(Endpoint {
            signal,
            url,
            headers: self.headers(signal),
            timeout: self.timeout(signal),
            gzip: self.gzip(signal),
            certificate: self.of_signal(signal, "CERTIFICATE").map(|(path, _)| path),
        })
    }

    /// A signal's own endpoint is used as it is. For the shared endpoint, the signal's path is appended.
    fn url(&mut self, text: &str, name: &str, signal: Signal) -> Option<Url> {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(mut url) = url else {
            self.wrong(format!(
                "`{name}` is not a URL that starts with `http://` or `https://`: {} are not exported",
                signal.as_str()
            ));
            return None;
        };
        if name == "OTEL_EXPORTER_OTLP_ENDPOINT"
            && let Ok(mut path) = url.path_segments_mut()
        {
            path.pop_if_empty().extend(["v1", signal.as_str()]);
        }
        Some(url)
    }

    /// Reads `key=value` pairs separated by commas, with percent-encoded values.
    fn headers(&mut self, signal: Signal) -> Vec<(String, String)> {
        let Some((text, name)) = self.of_signal(signal, "HEADERS") else { return Vec::new() };
        let pairs: Vec<_> = pairs(&text).collect();
        if pairs.is_empty() {
            self.wrong(format!("`{name}` has no `key=value`, expected pairs separated by commas"));
        }
        pairs
    }

    fn timeout(&mut self, signal: Signal) -> Duration {
        let Some((_, name)) = self.of_signal(signal, "TIMEOUT") else { return TIMEOUT };
        self.millis(&name).unwrap_or(TIMEOUT)
    }

    fn gzip(&mut self, signal: Signal) -> bool {
        let Some((text, name)) = self.of_signal(signal, "COMPRESSION") else { return false };
        if text != "gzip" && text != "none" {
            self.wrong(format!("`{name}` is `{text}`, expected `gzip` or `none`: using `none`"));
        }
        text == "gzip"
    }

    fn millis(&mut self, name: &str) -> Option<Duration> {
        let text = self.text(name)?;
        match text.parse() {
            Ok(millis) if millis > 0 => Some(Duration::from_millis(millis)),
            _ => {
                self.wrong(format!(
                    "`{name}` is `{text}`, expected milliseconds: using the default"
                ));
                None
            }
        }
    }

    fn temporality(&mut self) -> Temporality {
        let name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";
        match self.text(name).map(|text| text.to_ascii_lowercase()).as_deref() {
            None | Some("cumulative") => Temporality::Cumulative,
            Some("delta") => Temporality::Delta,
            Some("lowmemory") => Temporality::LowMemory,
            Some(other) => {
                self.wrong(format!(
                    "`{name}` is `{other}`, expected `cumulative`, `delta` or `lowmemory`: using \
                     `cumulative`"
                ));
                Temporality::Cumulative
            }
        }
    }

    fn sampler(&mut self) -> Sampler {
        let Some(name) = self.text("OTEL_TRACES_SAMPLER") else { return Sampler::default() };
        let share = self.text("OTEL_TRACES_SAMPLER_ARG");
        Sampler::named(&name, share.as_deref()).unwrap_or_else(|expected| {
            self.wrong(format!("`OTEL_TRACES_SAMPLER` is `{name}`, expected {expected}"));
            Sampler::default()
        })
    }
}

/// Returns the pairs of a list such as `a=1,b=2`, with decoded values.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split(',').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = name.trim().to_owned();
        (!name.is_empty()).then(|| (name, decoded(value.trim())))
    })
}

/// Decodes percent-encoding; a `+` is literal here.
fn decoded(text: &str) -> String {
    let plain = text.replace('+', "%2B");
    let joined = format!("v={plain}").replace('&', "%26");
    let mut values = url::form_urlencoded::parse(joined.as_bytes());
    values.next().map_or_else(|| text.to_owned(), |(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn read(set: &[(&str, &str)]) -> Settings {
        let vars: BTreeMap<String, String> =
            set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Settings::of(&vars)
    }

    fn urls(settings: &Settings) -> Vec<String> {
        settings.endpoints.iter().map(|endpoint| endpoint.url.to_string()).collect()
    }

    #[test]
    fn without_an_endpoint_nothing_is_exported() {
        let settings = read(&[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")]);
        assert!(settings.endpoints.is_empty());
        assert!(settings.mistakes.is_empty(), "{:?}", settings.mistakes);
        let disabled =
            read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_SDK_DISABLED", "True")]);
        assert!(disabled.endpoints.is_empty());
    }

    #[test]
    fn only_a_shared_endpoint_gets_paths() {
        let settings = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base/")]);
        assert_eq!(
            urls(&settings),
            [
                "http://c:4318/base/v1/traces",
                "http://c:4318/base/v1/metrics",
                "http://c:4318/base/v1/logs"
            ]
        );
        let own = read(&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://c/in")]);
        assert_eq!(urls(&own), ["https://c/in"]);
        assert!(own.exports(Signal::Metrics) && !own.exports(Signal::Traces));
        let some = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_LOGS_EXPORTER", "none"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/x"),
        ]);
        assert_eq!(urls(&some), ["http://t/x", "http://c/v1/metrics"]);
    }

    #[test]
    fn the_value_for_a_signal_overrides_the_shared_one() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b+c, x = y=z&"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "30"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
        ]);
        let [traces, metrics, logs] = settings.endpoints.as_slice() else { panic!() };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(traces.headers, [pair("api-key", "a b+c"), pair("x", "y=z&")]);
        assert_eq!(traces.timeout, Duration::from_secs(2));
        assert_eq!(logs.timeout, Duration::from_millis(30));
        assert!(metrics.gzip && !logs.gzip);
        assert_eq!(settings.temporality, Temporality::Delta);
        assert_eq!(settings.interval, Duration::from_millis(1500));
        assert!(!format!("{settings:?}").contains("a b+c"), "a header may be a secret");
    }

    #[test]
    fn invalid_values_are_reported_and_ignored() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "collector:4317"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
        ]);
        assert_eq!(urls(&settings), ["http://c/v1/metrics"]);
        assert_eq!(settings.mistakes.len(), 4, "{:#?}", settings.mistakes);
    }
}
