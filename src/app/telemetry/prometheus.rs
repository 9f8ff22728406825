//! Serves metrics as Prometheus text.
//!
//! Names follow the translation of OpenTelemetry: other characters become `_`, the unit follows the name, and a
//! counter ends in `_total`. Annotations such as `{row}` are not units and are omitted.
//!
//! <https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>

use std::fmt::{Display, Write as _};
use std::future::pending;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, Histogram, Metric, MetricData, ResourceMetrics, ScopeMetrics, Sum,
};
use tokio::net::TcpListener;

use super::reader::Reader;
use crate::web::{Authority, ClientTimeouts, guarded, serve as serve_clients};

/// Media type of the Prometheus text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `GET /metrics` until the runtime ends.
///
/// # Errors
///
/// [`std::io::Error`] if binding the address fails.
pub(super) async fn serve(address: SocketAddr, reader: Reader) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let router = routes(reader);
    tokio::spawn(serve_clients(listener, router, ClientTimeouts::default(), pending()));
    Ok(())
}

/// Returns the routes. The address is a loopback one, so other names in `Host` are those of websites.
fn routes(reader: Reader) -> Router {
    let routes = Router::new().route("/metrics", get(metrics)).with_state(reader);
    guarded(routes, Authority::loopback(), |refusal| {
        (refusal.status(), refusal.reason()).into_response()
    })
}

async fn metrics(State(reader): State<Reader>) -> impl IntoResponse {
    let text = reader.read().map(|found| text(&found)).unwrap_or_default();
    ([(CONTENT_TYPE, TEXT)], text)
}

/// Returns the metrics as text, cumulative since the start of the process.
pub(super) fn text(found: &ResourceMetrics) -> String {
    let mut out = String::new();
    let info: Vec<KeyValue> =
        found.resource().iter().map(|(k, v)| KeyValue::new(k.clone(), v.clone())).collect();
    head(&mut out, "target_info", "gauge", "Attributes of this process.");
    sample(&mut out, "target_info", &labels(&info.iter().collect::<Vec<_>>()), 1);
    for metric in found.scope_metrics().flat_map(ScopeMetrics::metrics) {
        match metric.data() {
            AggregatedMetrics::F64(data) => one(&mut out, metric, data),
            AggregatedMetrics::U64(data) => one(&mut out, metric, data),
            AggregatedMetrics::I64(data) => one(&mut out, metric, data),
        }
    }
    out
}

fn one<T: Copy + Display>(out: &mut String, metric: &Metric, data: &MetricData<T>) {
    let is_counter = matches!(data, MetricData::Sum(sum) if sum.is_monotonic());
    let name = series_name(metric.name(), metric.unit(), is_counter);
    match data {
        MetricData::Gauge(gauge) => {
            head(out, &name, "gauge", metric.description());
            for point in gauge.data_points() {
                sample(out, &name, &labels(&point.attributes().collect::<Vec<_>>()), point.value());
            }
        }
        MetricData::Sum(sum) => total(out, &name, metric.description(), sum),
        MetricData::Histogram(histogram) => buckets(out, &name, metric.description(), histogram),
        // Not used.
        MetricData::ExponentialHistogram(_) => {}
    }
}

fn total<T: Copy + Display>(out: &mut String, name: &str, help: &str, sum: &Sum<T>) {
    head(out, name, if sum.is_monotonic() { "counter" } else { "gauge" }, help);
    for point in sum.data_points() {
        sample(out, name, &labels(&point.attributes().collect::<Vec<_>>()), point.value());
    }
}

fn buckets<T: Copy + Display>(out: &mut String, name: &str, help: &str, histogram: &Histogram<T>) {
    head(out, name, "histogram", help);
    for point in histogram.data_points() {
        let labels = labels(&point.attributes().collect::<Vec<_>>());
        let bounds = point.bounds().map(|bound| bound.to_string());
        let bounds = bounds.chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, more) in bounds.zip(point.bucket_counts()) {
            count += more;
            let comma = if labels.is_empty() { "" } else { "," };
            let labels = format!("{labels}{comma}le=\"{bound}\"");
            sample(out, &format!("{name}_bucket"), &labels, count);
        }
        sample(out, &format!("{name}_sum"), &labels, point.sum());
        sample(out, &format!("{name}_count"), &labels, point.count());
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    if !help.is_empty() {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        writeln!(out, "# HELP {name} {help}").unwrap_or_default();
    }
    writeln!(out, "# TYPE {name} {kind}").unwrap_or_default();
}

fn sample(out: &mut String, name: &str, labels: &str, value: impl Display) {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    writeln!(out, "{name}{labels} {value}").unwrap_or_default();
}

/// Returns the Prometheus name of an instrument: with its unit, unless the name already ends with it, and with
/// `_total` for a counter.
pub fn series_name(name: &str, unit: &str, is_counter: bool) -> String {
    let unit = match unit {
        "s" => "seconds",
        "By" => "bytes",
        _ => "",
    };
    let name = plain(name);
    let has_unit = unit.is_empty() || name.ends_with(unit);
    let name = if has_unit { name } else { format!("{name}_{unit}") };
    if is_counter && !name.ends_with("_total") { name + "_total" } else { name }
}

/// Returns a name with only the characters that Prometheus allows.
fn plain(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let name: String = name.chars().map(allowed).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

fn labels(attributes: &[&KeyValue]) -> String {
    let mut labels: Vec<String> = attributes
        .iter()
        .map(|pair| {
            let value = pair.value.as_str().replace('\\', "\\\\").replace('"', "\\\"");
            format!("{}=\"{}\"", plain(pair.key.as_str()), value.replace('\n', "\\n"))
        })
        .collect();
    labels.sort();
    labels.join(",")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::metrics::{SdkMeterProvider, Temporality};

    use super::*;

    #[tokio::test]
    async fn metrics_are_served_to_loopback_names_and_not_to_websites() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = routes(Reader::new(Temporality::Cumulative));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        for (name, value, status) in [
            ("Host", "localhost:9464", 200),
            ("Host", "127.0.0.1:9464", 200),
            ("Host", "evil.example", 421),
            ("Origin", "http://evil.example", 403),
        ] {
            let request = client.get(format!("http://{address}/metrics"));
            let request = request.header(name, HeaderValue::from_static(value));
            let answered = request.send().await.unwrap();
            assert_eq!(answered.status().as_u16(), status, "{name}: {value}");
            let text = answered.text().await.unwrap();
            assert_eq!(text.contains("accepts"), status != 200, "{name}: {value}: {text}");
        }
    }

    #[test]
    fn each_kind_has_its_type_its_unit_and_escaped_labels() {
        let reader = Reader::new(Temporality::Cumulative);
        let service = KeyValue::new("service.name", "a \"b\"");
        let resource = Resource::builder_empty().with_attribute(service).build();
        let provider = SdkMeterProvider::builder().with_resource(resource);
        let provider = provider.with_reader(reader.clone()).build();
        let meter = provider.meter("m");
        let odd = [KeyValue::new("poller.name", "a\"b\\c\nd")];
        let rows = meter.u64_counter("x.rows").with_unit("{row}");
        rows.with_description("Rows \\ a\nb.").build().add(3, &odd);
        meter.u64_counter("failures_total").build().add(1, &[]);
        meter.i64_up_down_counter("x.active").build().add(-1, &[]);
        meter.f64_gauge("lag_seconds").with_unit("s").build().record(0.5, &[]);
        let histogram = meter.f64_histogram("x.duration").with_unit("s");
        let histogram = histogram.with_boundaries(vec![0.1, 1.0]).build();
        histogram.record(0.05, &[]);
        histogram.record(5.0, &odd);
        let mut lines: Vec<String> =
            text(&reader.read().unwrap()).lines().map(str::to_owned).collect();
        lines.sort();
        let odd = r#"poller_name="a\"b\\c\nd""#;
        let mut expected = vec![
            "# HELP target_info Attributes of this process.".to_owned(),
            r"# HELP x_rows_total Rows \\ a\nb.".to_owned(),
            "# TYPE failures_total counter".to_owned(),
            "# TYPE lag_seconds gauge".to_owned(),
            "# TYPE target_info gauge".to_owned(),
            "# TYPE x_active gauge".to_owned(),
            "# TYPE x_duration_seconds histogram".to_owned(),
            "# TYPE x_rows_total counter".to_owned(),
            "failures_total 1".to_owned(),
            "lag_seconds 0.5".to_owned(),
            r#"target_info{service_name="a \"b\""} 1"#.to_owned(),
            "x_active -1".to_owned(),
            "x_duration_seconds_bucket{le=\"+Inf\"} 1".to_owned(),
            "x_duration_seconds_bucket{le=\"0.1\"} 1".to_owned(),
            "x_duration_seconds_bucket{le=\"1\"} 1".to_owned(),
            format!("x_duration_seconds_bucket{{{odd},le=\"+Inf\"}} 1"),
            format!("x_duration_seconds_bucket{{{odd},le=\"0.1\"}} 0"),
            format!("x_duration_seconds_bucket{{{odd},le=\"1\"}} 0"),
            "x_duration_seconds_count 1".to_owned(),
            format!("x_duration_seconds_count{{{odd}}} 1"),
            "x_duration_seconds_sum 0.05".to_owned(),
            format!("x_duration_seconds_sum{{{odd}}} 5"),
            format!("x_rows_total{{{odd}}} 3"),
        ];
        expected.sort();
        assert_eq!(lines, expected);
    }
}
