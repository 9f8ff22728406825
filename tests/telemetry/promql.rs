//! What Prometheus makes of scraped metrics: `promtool test rules` evaluates `alerts.yml` over a timeline of them.
//!
//! If no `promtool` is found, the tests say so and pass, unless `CI` is set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::process::Command;

use highwater_fakehost::free_port;
use tempfile::TempDir;

use crate::bench::Bench;
use crate::child::file;

/// How long each scrape stays in a timeline, in minutes.
pub(crate) const PHASE: usize = 40;

/// The series of one scrape of `/metrics`, with their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape(BTreeMap<String, f64>);

/// Makes the processes of a bench serve metrics; returns where.
pub(crate) fn serve_metrics(bench: &mut Bench) -> String {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    bench.set_env("HIGHWATER__METRICS__ADDRESS", &address);
    address
}

impl Scrape {
    pub(crate) async fn of(address: &str) -> Self {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let scraped = client.get(format!("http://{address}/metrics")).send().await.unwrap();
        let text = scraped.text().await.unwrap();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let samples = samples.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        });
        // No rule uses these, and there are many.
        Self(samples.filter(|(series, _): &(String, f64)| !series.contains("_bucket{")).collect())
    }

    /// Returns the metrics of a process whose ticks go on: the times since the last one stay.
    pub(crate) fn ticking(&self) -> Self {
        let mut samples = self.0.clone();
        samples.retain(|series, _| !series.contains("_age_seconds{"));
        Self(samples)
    }

    /// Returns the value of a series whose name and labels contain these texts.
    pub(crate) fn value(&self, parts: &[&str]) -> Option<f64> {
        let fits = |series: &str| parts.iter().all(|part| series.contains(part));
        self.0.iter().find(|(series, _)| fits(series)).map(|(_, value)| *value)
    }

    /// Returns the samples of a series, one a minute. Ages grow: the program computes them when it is scraped.
    fn samples(&self, series: &str) -> String {
        let Some(value) = self.0.get(series) else { return format!("_x{PHASE}") };
        let is_age = series.contains("_age_seconds{");
        let is_lag = series.starts_with("highwater_lag_seconds{") && *value > 0.0;
        let step = if is_age || is_lag { 60 } else { 0 };
        format!("{value}+{step}x{}", PHASE - 1)
    }
}

/// Asserts which alerts fire at the end of a timeline, in which each scrape stays for [`PHASE`] minutes.
pub(crate) fn assert_fires(what: &str, timeline: &[&Scrape], expected: &[&str]) {
    assert_fires_at(what, timeline, PHASE * timeline.len() - 1, expected);
}

/// As [`assert_fires`], at a minute of the timeline.
pub(crate) fn assert_fires_at(what: &str, timeline: &[&Scrape], minute: usize, expected: &[&str]) {
    let folder = TempDir::new().unwrap();
    let rules = file("docs/reference/prometheus/alerts.yml");
    let mut series: Vec<&String> = timeline.iter().flat_map(|scrape| scrape.0.keys()).collect();
    series.sort();
    series.dedup();
    let mut text = format!(
        "rule_files: ['{}']\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  external_labels: \
         {{highwater_docs: 'https://docs.example'}}\n  input_series:\n",
        rules.display()
    );
    for series in series {
        let values: Vec<String> = timeline.iter().map(|scrape| scrape.samples(series)).collect();
        writeln!(text, "  - series: '{series}'\n    values: '{}'", values.join(" ")).unwrap();
    }
    writeln!(
        text,
        "  promql_expr_test:\n  - expr: group by (alertname) (ALERTS{{alertstate=\"firing\"}})\n    eval_time: {minute}m\n    \
         exp_samples:"
    )
    .unwrap();
    for alert in expected {
        writeln!(text, "    - labels: '{{alertname=\"Highwater{alert}\"}}'\n      value: 1")
            .unwrap();
    }
    let path = folder.path().join("test.yml");
    std::fs::write(&path, text).unwrap();
    let output = match Command::new("promtool").args(["test", "rules"]).arg(path).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let is_required = std::env::var_os("CI").is_some();
            assert!(!is_required, "`promtool` is not installed, and is required here");
            println!("Skipped: no `promtool`; `apt-get install prometheus` has it");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {printed}");
}
