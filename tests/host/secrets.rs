//! No secret leaves the process: a target that echoes its requests, valid and invalid settings, every output
//! of the real program, and every encoding of a text.
//!
//! Secrets are random. A failed run names its seed:
//!
//! ```text
//! SECRETS_SEED=57 cargo test --test host -- secrets
//! ```

#![expect(clippy::format_collect, reason = "texts of a test are short")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use highwater::config::{ProcessVars, SETTINGS, Vars as _};
use highwater_devdb::{Fault, Options, Server, SqlError};
use highwater_fakehost::{Outcome, Reply, free_port};
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::AbortHandle;

use crate::bench::{Bench, LIMIT, PROGRAM};
use crate::commands::CommandOutput;

/// The target's response in each round with random secrets.
const STATUSES: [u16; 3] = [500, 401, 422];
/// Settings that receive a secret in one run.
const PLACES: usize = 60;

/// Returns a text in every form that is searched for.
fn forms(secret: &str) -> Vec<String> {
    let bytes = || secret.bytes();
    let json = serde_json::to_string(secret).unwrap();
    vec![
        secret.to_owned(),
        json.trim_matches('"').to_owned(),
        serde_json::to_string(&json).unwrap().trim_matches(['"', '\\']).to_owned(),
        bytes().map(|byte| format!("%{byte:02X}")).collect(),
        url::form_urlencoded::byte_serialize(secret.as_bytes()).collect(),
        secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
        secret.replace('\'', "''"),
        secret.replace('"', "\"\""),
        bytes().map(|byte| format!("{byte:02x}")).collect(),
        STANDARD.encode(secret),
        STANDARD.encode(format!("svc:{secret}")),
        URL_SAFE_NO_PAD.encode(format!("x{secret}")),
    ]
}

/// Returns the texts that are hidden in an output as base64.
fn decoded(text: &str) -> String {
    let lenient = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&alphabet::STANDARD, lenient);
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/-_".contains(c);
    let words = text.split(|c| !is_base64(c)).filter(|word| word.len() >= 8);
    let mut found = String::new();
    for word in words {
        let word = word.replace('-', "+").replace('_', "/");
        for skipped in 0..4 {
            let part = &word.as_bytes()[skipped..];
            let part = &part[..part.len() / 4 * 4];
            found += &String::from_utf8_lossy(&engine.decode(part).unwrap_or_default());
            found.push('\n');
        }
    }
    found
}

pub(crate) fn holds_none(place: &str, text: &str, secrets: &[String]) {
    let lower = format!("{text}\n{}", decoded(text)).to_lowercase();
    for secret in secrets {
        for form in forms(secret) {
            assert!(
                !lower.contains(&form.to_lowercase()),
                "`{secret}`, written as `{form}`, is in {place}:\n{text}"
            );
        }
    }
}

/// Returns everything that is stored below a folder, as text.
fn stored(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            stored(&path, text);
        } else {
            *text += &String::from_utf8_lossy(&fs::read(path).unwrap());
        }
    }
}

/// A target that rejects every request, and repeats its URL, its headers, and more.
struct Echo {
    port: u16,
    task: AbortHandle,
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Echo {
    async fn start(status: u16, more: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = async move |State(more): State<String>, uri: Uri, headers: HeaderMap| {
            let mut text = format!("{more}\n{uri}\n");
            for (name, value) in &headers {
                writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes())).unwrap();
            }
            // The place in which an account reports its error.
            let code = more.split(" | ").next().unwrap_or_default().to_owned();
            (StatusCode::from_u16(status).unwrap(), [("x-ms-error-code", code)], text)
        };
        let router = Router::new().fallback(echo).with_state(more);
        let served = tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, task: served.abort_handle() }
    }
}

/// The exports of a process: spans, metrics and log records, as OTLP bytes. Its key is a secret of the
/// process. The signals in `refuses` are rejected with a reply that repeats the request, and more.
pub(crate) struct Collector {
    task: AbortHandle,
    bodies: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Collector {
    /// Makes all processes of a bench export to it, log everything they can, and serve metrics.
    pub(crate) async fn watch(
        bench: &mut Bench,
        refuses: &'static str,
        key: &str,
        more: &str,
    ) -> Self {
        let metrics = format!("127.0.0.1:{}", free_port().unwrap());
        bench.set_env("HIGHWATER__METRICS__ADDRESS", &metrics);
        bench.set_env("HIGHWATER__LOG", "trace");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        bench.set_env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}"));
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        bench.set_env("OTEL_EXPORTER_OTLP_HEADERS", &format!("x-collector-key={encoded}"));
        let bodies: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
        let (kept, more) = (Arc::clone(&bodies), more.to_owned());
        let collect = async move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let text = String::from_utf8_lossy(&body);
            *kept.lock().unwrap().entry(uri.path().to_owned()).or_default() += &text;
            if uri.path().ends_with(refuses) {
                return (StatusCode::BAD_REQUEST, format!("{more}\n{headers:?}"));
            }
            (StatusCode::OK, String::new())
        };
        let router = Router::new().fallback(collect);
        let served = tokio::spawn(async move { axum::serve(listener, router).await });
        Self { task: served.abort_handle(), bodies }
    }

    /// Checks everything that the processes have exported so far.
    fn holds_none(&self, secrets: &[String]) {
        let bodies = self.bodies.lock().unwrap();
        let paths: Vec<&str> = bodies.keys().map(String::as_str).collect();
        assert_eq!(paths, ["/v1/logs", "/v1/metrics", "/v1/traces"]);
        for (path, text) in &*bodies {
            holds_none(&format!("the export to `{path}`"), text, secrets);
        }
    }
}

/// Returns a reply: its reason phrase, headers and body.
fn text_of(outcome: &Outcome) -> String {
    let Some(Reply { reason, headers, body, .. }) = &outcome.reply else { panic!("{outcome:?}") };
    format!("{reason}\n{headers:?}\n{}", String::from_utf8_lossy(body))
}

/// Returns the random generator for one round of a test, derived from `SECRETS_SEED`, and prints the seed.
fn seeded(round: u64) -> TestRunner {
    let configured_seed = ProcessVars.get("SECRETS_SEED");
    let seed: u64 =
        configured_seed.map_or(1, |seed| seed.parse().expect("SECRETS_SEED is a number"));
    println!("SECRETS_SEED={seed}, round {round}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&round.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    TestRunner::new_with_rng(Config::default(), random)
}

/// Returns random printable ASCII that starts and ends with a letter or digit.
fn random(runner: &mut TestRunner, form: &str) -> String {
    let strategy = proptest::string::string_regex(form).unwrap();
    strategy.new_tree(runner).unwrap().current()
}

/// Runs the poller and the commands, and checks everything they leave. Returns the log and the stored files.
pub(crate) async fn leaks_nothing(
    bench: &Bench,
    collector: &Collector,
    secrets: &[String],
) -> (String, String) {
    let host = bench.host().await;
    for _ in 0..3 {
        let outcome = host.run().await;
        holds_none("the verdict", &format!("{:?}", outcome.verdict), secrets);
        holds_none("the reply", &text_of(&outcome), secrets);
    }
    let metrics = &bench.env["HIGHWATER__METRICS__ADDRESS"];
    let text = page(&format!("http://{metrics}/metrics")).await;
    assert!(text.contains("highwater_"), "{text}");
    holds_none("the metrics", &text, secrets);
    host.stop().await.unwrap();
    let mut log = String::new();
    for record in host.journal().records() {
        log += &record.message;
        holds_none("the log", &record.message, secrets);
    }
    for part in [r#""level":"TRACE""#, "telemetry_export_failed"] {
        assert!(log.contains(part), "no `{part}`: {log}");
    }
    let mut kept = String::new();
    for folder in ["state", "journal"].map(|name| bench.folder.path().join(name)) {
        if folder.exists() {
            stored(&folder, &mut kept);
        }
    }
    holds_none("the state", &kept, secrets);
    for command in [
        &["tick", "nightly"][..],
        &["validate"],
        &["config", "show"],
        &["config", "show", "--output", "json"],
        &["doctor"],
        &["status"],
        &["status", "--output", "json"],
        &["state", "show", "nightly", "--output", "json"],
        &["state", "export", "nightly"],
        &["state", "verify", "nightly"],
        &["journal", "show", "nightly"],
        &["journal", "show", "nightly", "--output", "json"],
        &["journal", "tail", "nightly"],
        &["journal", "export", "nightly"],
        &["quarantine", "list", "nightly"],
        &["quarantine", "list", "nightly", "--output", "json"],
        &["recover"],
        &["recover", "--yes", "--output", "json"],
        &["reset", "nightly", "to-beginning", "--dry-run"],
        &["reset", "nightly", "to-now", "--dry-run"],
        &["clone", "nightly", "mirror", "--dry-run"],
        &["quarantine", "redrive", "nightly", "--all"],
    ] {
        command_leaks_nothing(bench, command, secrets).await;
    }
    let list = ["quarantine", "list", "nightly", "--output", "jsonl"];
    for line in bench.command(&list).await.data.lines() {
        let entry: Json = serde_json::from_str(line).unwrap();
        let id = entry["key_id"].as_str().unwrap();
        let shown = ["quarantine", "show", "nightly", id];
        let result = command_leaks_nothing(bench, &shown, secrets).await;
        assert!(result.done().contains("\"error\""), "{result:?}");
    }
    collector.holds_none(secrets);
    (log, kept)
}

async fn command_leaks_nothing(
    bench: &Bench,
    command: &[&str],
    secrets: &[String],
) -> CommandOutput {
    let result = bench.command(command).await;
    let place = command.join(" ");
    holds_none(&place, &result.data, secrets);
    holds_none(&place, &result.rest, secrets);
    result
}

pub(crate) async fn page(url: &str) -> String {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let end = tokio::time::Instant::now() + LIMIT;
    loop {
        match client.get(url).send().await {
            Ok(answer) => return answer.text().await.unwrap(),
            Err(error) => assert!(tokio::time::Instant::now() < end, "{url}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Checks the status page, which shows why the last tick failed.
async fn pages_leak_nothing(bench: &Bench, secrets: &[String]) {
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--serve", &address]).env_clear().envs(&bench.env);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut all = String::new();
    for path in ["", "?poller=nightly", "api/status", "api/status/page?poller=nightly"] {
        let text = page(&format!("http://{address}/{path}")).await;
        holds_none(&format!("the status page at `/{path}`"), &text, secrets);
        all += &text;
    }
    child.kill().await.unwrap();
    assert!(all.contains("[redacted]"), "the page shows the target's response: {all}");
}

/// Runs `recover` over a document whose batch has failed for years: its finding contains the last error.
async fn recovery_leaks_nothing(bench: &Bench, secrets: &[String]) {
    let path = bench.state_path();
    let text = fs::read_to_string(&path).unwrap();
    let (header, document) = text.split_once('\n').unwrap();
    let mut document: Json = serde_json::from_str(document).unwrap();
    document["in_flight"]["first_failed_at"] = "2020-01-01T00:00:00Z".into();
    fs::write(&path, format!("{header}\n{document}")).unwrap();
    let mut found = String::new();
    for command in [&["recover"][..], &["recover", "--output", "json"], &["recover", "--yes"]] {
        found += &command_leaks_nothing(bench, command, secrets).await.data;
    }
    assert!(found.contains("checkpoint_stuck") && found.contains("[redacted]"), "{found}");
}

/// Whatever a target repeats from its request, and from secrets that it cannot know, is shown nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_echoes_everything_leaks_no_secret() {
    for (status, round) in STATUSES.into_iter().zip(1..) {
        let mut runner = seeded(round);
        // A header cannot contain control characters.
        let any = "[A-Za-z0-9][ -~]{8,24}[A-Za-z0-9]";
        let key = random(&mut runner, any);
        let code = random(&mut runner, any);
        let user = random(&mut runner, any);
        let other = random(&mut runner, any);
        let signing: Vec<u8> = random(&mut runner, "[ -~]{24,40}").into_bytes();
        let signing = STANDARD.encode(signing);
        let collector = random(&mut runner, any);
        // The paths of webhooks: the token of a chat service, and one that is secret only as a whole, or a single word.
        let token = random(&mut runner, "[A-Z][0-9][A-Za-z0-9]{14,22}");
        let form = if round % 2 == 0 { "catch/[a-z]{12}" } else { "[a-z]{12}" };
        let whole = random(&mut runner, form);
        let secrets = [&key, &code, &user, &other, &signing, &collector, &token, &whole];
        let secrets = secrets.map(String::clone);
        let mut bench = Bench::with_rows(1..=1).await;
        let more = secrets.iter().flat_map(|secret| forms(secret)).collect::<Vec<_>>().join(" | ");
        let echo = Echo::start(status, more.clone()).await;
        let site = format!("http://127.0.0.1:{}", echo.port);
        bench.set_env("HIGHWATER__NOTIFY__URL", &format!("{site}/{whole}"));
        let mut url = url::Url::parse(&format!("{site}/services/{token}")).unwrap();
        url.set_username("svc").unwrap();
        url.set_password(Some(&user)).unwrap();
        url.query_pairs_mut().append_pair("code", &code);
        bench.set("HANDLER__URL", url.as_str());
        bench.set("HANDLER__AUTH", "header");
        bench.set("HANDLER__AUTH_HEADER", "x-api-key");
        bench.set("HANDLER__AUTH_SECRET", "HookKey");
        bench.set_env("HookKey", &key);
        bench.set("HANDLER__SIGNING_SECRETS", "HookSigning");
        bench.set_env("HookSigning", &format!("whsec_{signing}"));
        bench.set("RETRY_DELAY_MIN", "1ms");
        bench.set("RETRY_DELAY_MAX", "1ms");
        bench.set("ATTEMPTS_MAX", "2");
        bench.set("ON_FAILURE", "park");
        bench.set("PARK_RETRIES_MAX", "0");
        bench.set("JOURNAL", "full");
        let collector = Collector::watch(&mut bench, "traces", &collector, &more).await;
        // A secret that Highwater has and this poller does not use.
        bench.set_env("AZURE_CLIENT_SECRET", &other);
        let (log, kept) = leaks_nothing(&bench, &collector, &secrets).await;
        // The target's response got that far.
        assert!(log.contains("[redacted]") && kept.contains("[redacted]"), "{log}\n{kept}");
        pages_leak_nothing(&bench, &secrets).await;
        // A row that was rejected is quarantined, and the poller continues.
        if status != 422 {
            recovery_leaks_nothing(&bench, &secrets).await;
        }
    }
}

/// A service that repeats the secrets it is accessed with, and those of another.
enum Service {
    /// The database of the source, or of a `sql` handler.
    Database(Server),
    /// An account of a `queue` handler, or of the state.
    Storage(Echo),
}

impl Service {
    /// A database whose login has this password, and that answers each statement that contains `fails` with
    /// `says`.
    async fn database(bench: &Bench, password: &str, fails: &str, says: &str) -> Self {
        let options = Options { tls: false, password: password.to_owned(), ..Options::default() };
        let server = Server::start(bench.database.clone(), options).await.unwrap();
        let error = SqlError::new(50_000, 16, says.to_owned());
        server.faults().arm_matching(fails, 1_000, Fault::Error(error));
        Self::Database(server)
    }

    /// Returns its connection string; an account's contains a key or a signature.
    fn connection(&self, password: &str, key: Option<&str>, part: &str) -> String {
        match self {
            Self::Database(server) => server.connection_string(),
            Self::Storage(Echo { port, .. }) => {
                let at = format!("{part}Endpoint=http://127.0.0.1:{port}/acct");
                if let Some(key) = key {
                    return format!("{at};AccountName=acct;AccountKey={key}");
                }
                let signature: String =
                    url::form_urlencoded::byte_serialize(password.as_bytes()).collect();
                format!("{at};SharedAccessSignature=sv=2024-08-04&sp=rw&sig={signature}")
            }
        }
    }
}

/// Whatever a database or an account repeats, as a source, a target or a state store, is shown nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_echoes_everything_leaks_no_secret() {
    for (role, round) in ["source", "sql", "queue", "queue", "state", "state"].into_iter().zip(7..)
    {
        let mut runner = seeded(round);
        // An account's error code is shown if it looks like one.
        let code = "[A-Za-z]{16,24}";
        let any = "[A-Za-z0-9][ -~]{8,24}[A-Za-z0-9]";
        let password = random(&mut runner, if round % 2 == 0 { code } else { any });
        let key = STANDARD.encode(random(&mut runner, "[ -~]{64}"));
        let secrets = [password.clone(), key.clone()];
        let says = secrets.iter().flat_map(|secret| forms(secret)).collect::<Vec<_>>().join(" | ");
        let mut bench = Bench::with_rows(1..=1).await;
        for other in ["URL", "TRIES_MAX"] {
            bench.env.remove(&format!("HIGHWATER__POLLERS__NIGHTLY__HANDLER__{other}"));
        }
        bench.set("HANDLER__KIND", "stdout");
        bench.set("RETRY_DELAY_MIN", "1ms");
        bench.set("RETRY_DELAY_MAX", "1ms");
        bench.set("JOURNAL", "full");
        let collector = Collector::watch(&mut bench, "metrics", &key, &says).await;
        // Each is in the settings in one of the rounds, and known to the process in all.
        bench.set_env("AZURE_CLIENT_SECRET", &password);
        let account = format!("DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={key}");
        bench.set_env("AzureWebJobsStorage", &account);
        let service = match role {
            "source" => Service::database(&bench, &password, "SELECT TOP", &says).await,
            "sql" => Service::database(&bench, &password, "", &says).await,
            _ => Service::Storage(Echo::start(403, says).await),
        };
        let key = (round % 2 == 1).then_some(key.as_str());
        match role {
            "source" => {
                bench.set_env("SqlConnection", &service.connection(&password, key, ""));
            }
            "sql" => {
                bench.set("HANDLER__KIND", "sql");
                bench.set("HANDLER__TABLE", "dbo.target");
                bench.set("HANDLER__CONNECTION", "Target");
                bench.set_env("Target", &service.connection(&password, key, ""));
            }
            "queue" => {
                bench.set("HANDLER__KIND", "queue");
                bench.set("HANDLER__QUEUE", "jobs");
                bench.set("HANDLER__CONNECTION", "Target");
                bench.set_env("Target", &service.connection(&password, key, "Queue"));
            }
            _ => {
                bench.env.remove("HIGHWATER__STATE__FOLDER");
                bench.set("LEASE__TTL", "60s");
                bench.set_env("HIGHWATER__STATE__STORE", "blob");
                bench.set_env("HIGHWATER__STATE__CONNECTION", "State");
                bench.set_env("State", &service.connection(&password, key, "Blob"));
            }
        }
        let (log, _kept) = leaks_nothing(&bench, &collector, &secrets).await;
        // Its response got that far; of an account's response, only a code does.
        let is_answer = matches!(service, Service::Storage(_)) && round % 2 == 1;
        let met = if is_answer { "403" } else { "[redacted]" };
        assert!(log.contains(met), "{role}: {log}");
    }
}

/// Returns what `config show` prints.
async fn settings_of(bench: &Bench) -> String {
    let mut shown = String::new();
    for command in [&["config", "show"][..], &["config", "show", "--output", "json"]] {
        shown += bench.command(command).await.done();
    }
    shown
}

/// The whole URL of a receiver is printed by one command, on request. Everything else shows its host, and a hash by
/// which two URLs are distinguished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_config_show_with_reveal_prints_a_whole_url() {
    let mut bench = Bench::with_rows(1..=1).await;
    let echo = Echo::start(422, "no".to_owned()).await;
    let token = "xQ7mB2vR9tK4wZ6n";
    let site = format!("http://127.0.0.1:{}", echo.port);
    let url = format!("{site}/services/{token}?code=abcdefgh1234");
    bench.set("HANDLER__URL", &url);
    bench.set_env("HIGHWATER__NOTIFY__URL", &url);
    let tick = bench.command(&["tick", "nightly"]).await;
    let all = [tick.data, tick.rest].concat();
    assert!(all.contains(&format!("{site}/…#")), "{all}");
    let text = bench.command(&["config", "show"]).await;
    assert_eq!(text.done().matches(&format!("URL={site}/…#")).count(), 2, "{text:?}");
    let secrets = [token, "abcdefgh1234"].map(str::to_owned);
    holds_none("`tick`", &all, &secrets);
    holds_none("`config show`", &settings_of(&bench).await, &secrets);
    let text = bench.command(&["config", "show", "--reveal"]).await;
    assert_eq!(text.done().matches(&format!("URL={url}")).count(), 2, "{text:?}");
    assert!(!text.done().contains("Password"), "{text:?}");
    let json = bench.command(&["config", "show", "--reveal", "--output", "json"]).await;
    let json: Json = serde_json::from_str(json.done()).unwrap();
    let is_url = |value: &&Json| value["value"] == url.as_str();
    assert_eq!(json.as_array().unwrap().iter().filter(is_url).count(), 2, "{json}");
}

/// A secret in the wrong place is recognized by its form, or because it is also in the right place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_in_the_wrong_setting_is_not_shown() {
    let mut runner = seeded(5);
    let random = |runner: &mut TestRunner, bytes: &str| random(runner, bytes).into_bytes();
    let account = STANDARD.encode(random(&mut runner, "[ -~]{64}"));
    let function = URL_SAFE_NO_PAD.encode(random(&mut runner, "[ -~]{40}"));
    let signing = format!("whsec_{}", STANDARD.encode(random(&mut runner, "[ -~]{32}")));
    let known = "k9 \"quoted\" & <odd>%41\\n".to_owned();
    let password = "Sup3rSecret#1".to_owned();
    let token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJzb21lYm9keSJ9.c2lnbmF0dXJl".to_owned();
    let guid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301".to_owned();
    for secret in [account, function, signing, known.clone(), password, token, guid] {
        for name in [
            "HANDLER__AUTH",
            "HANDLER__AUTH_SECRET",
            "HANDLER__SIGNING_SECRETS",
            "HANDLER__KIND",
            "HANDLER__CONCURRENCY",
            "HANDLER__TIMEOUT",
            "HANDLER__URL",
            "HANDLER__GZIP",
            "HANDLER__ENV",
            "HANDLER__CONTAINER",
            "SOURCE__CONNECTION",
            "SOURCE__MODE",
            "SOURCE__SETTLE",
            "SOURCE__START",
            "LEASE__TTL",
        ] {
            let mut bench = Bench::new().await;
            bench.set("HANDLER__SYSTEM_KEY", &known);
            bench.set(name, &secret);
            let result = bench.command(&["validate"]).await;
            assert_ne!(result.code, 0, "{name}: {result:?}");
            let shown = [result.data, result.rest, settings_of(&bench).await].concat();
            holds_none(&format!("outputs with {name}"), &shown, std::slice::from_ref(&secret));
        }
        let mut bench = Bench::new().await;
        bench.set("HANDLER__SYSTEM_KEY", &known);
        for global in
            ["STATE__CONTAINER", "STATE__STORE", "FUNCTION_TIMEOUT", "LOG", "METRICS__ADDRESS"]
        {
            bench.set_env(&format!("HIGHWATER__{global}"), &secret);
        }
        let result = bench.command(&["validate"]).await;
        let shown = [result.data, result.rest, settings_of(&bench).await].concat();
        holds_none("outputs", &shown, std::slice::from_ref(&secret));
    }
}

/// Returns a random number below `end`.
fn below(runner: &mut TestRunner, end: usize) -> usize {
    (0..end).new_tree(runner).unwrap().current()
}

/// Returns a random secret of a random kind that is not `known`, and whether it can also be a name, as a GUID
/// can.
fn any_secret(runner: &mut TestRunner, known: &str) -> (String, bool) {
    let bytes = |runner: &mut TestRunner, form: &str| random(runner, form).into_bytes();
    match below(runner, 7) {
        0 => (STANDARD.encode(bytes(runner, "[ -~]{64}")), false),
        1 => (URL_SAFE_NO_PAD.encode(bytes(runner, "[ -~]{40}")), false),
        2 => (format!("whsec_{}", STANDARD.encode(bytes(runner, "[ -~]{32}"))), false),
        3 => (random(runner, "[A-Z][a-z]{4,8}[0-9]{1,3}[!#%^~][a-z]{2}"), true),
        4 => {
            let claims = URL_SAFE_NO_PAD.encode(bytes(runner, "\\{\"sub\":\"[a-z0-9]{12}\"\\}"));
            let signature = URL_SAFE_NO_PAD.encode(bytes(runner, "[ -~]{32}"));
            (format!("eyJhbGciOiJIUzI1NiJ9.{claims}.{signature}"), true)
        }
        5 => (random(runner, "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), true),
        _ => (known.to_owned(), false),
    }
}

/// Whichever setting receives a secret, it is not shown. If the setting accepts it as a name, or a file of
/// that name is missing, only a secret that cannot be a name is checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_secret_in_a_random_setting_is_not_shown() {
    let mut runner = seeded(20);
    let mut refused = 0;
    for _ in 0..PLACES {
        let known = random(&mut runner, "[A-Za-z0-9][!-~]{10,24}[A-Za-z0-9]");
        let (secret, may_be_name) = any_secret(&mut runner, &known);
        let setting = &SETTINGS[below(&mut runner, SETTINGS.len())];
        let segment = ["NIGHTLY", "NIGHTLY/HOOK"][below(&mut runner, 2)];
        let name = setting.name_for(Some(segment));
        let mut bench = Bench::new().await;
        bench.set_env("AZURE_CLIENT_SECRET", &known);
        bench.set_env(&name, &secret);
        let result = bench.command(&["validate"]).await;
        let is_refused = result.data.contains(&name) || result.rest.contains(&name);
        refused += usize::from(is_refused);
        if may_be_name && !is_refused {
            continue;
        }
        let mut outputs =
            vec![("validate", result), ("config", bench.command(&["config", "show"]).await)];
        if !may_be_name {
            outputs.push(("status", bench.command(&["status", "--output", "json"]).await));
        }
        for (command, result) in outputs {
            let place = format!("`{command}` with {name}");
            holds_none(&place, &[result.data, result.rest].concat(), std::slice::from_ref(&secret));
        }
    }
    assert!(refused * 3 > PLACES, "{refused} of {PLACES} were rejected");
}

/// A key that could be a name is not shown if a name makes no sense there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_like_key_is_not_shown_in_a_setting_without_keys() {
    let secret = "live_key_3MzQqFvXcKw".to_owned();
    for name in [
        "HANDLER__AUTH",
        "HANDLER__AUTH_SECRET",
        "HANDLER__SIGNING_SECRETS",
        "HANDLER__KIND",
        "HANDLER__CONCURRENCY",
        "HANDLER__TIMEOUT",
        "HANDLER__GZIP",
        "SOURCE__MODE",
        "LEASE__TTL",
    ] {
        let mut bench = Bench::new().await;
        bench.set("HANDLER__AUTH", "header");
        bench.set("HANDLER__AUTH_HEADER", "x-api-key");
        bench.set(name, &secret);
        let result = bench.command(&["validate"]).await;
        assert_ne!(result.code, 0, "{name}: {result:?}");
        let shown = [result.data, result.rest, settings_of(&bench).await].concat();
        holds_none(&format!("outputs with {name}"), &shown, std::slice::from_ref(&secret));
    }
}

/// A URL that cannot be parsed shows only its scheme, in `validate`, in the log and in each reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_that_does_not_parse_shows_its_scheme_only() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.set("HANDLER__URL", "https://svc:Sup3rSecret#1@host/x");
    let secrets = ["Sup3rSecret", "Secret#1", "svc:Sup3"].map(str::to_owned);
    let result = bench.command(&["validate"]).await;
    assert!(result.data.contains("HANDLER__URL` is `https://…`"), "{result:?}");
    assert!(result.data.contains("in a user name or password, write `#` as `%23`"), "{result:?}");
    holds_none("`validate`", &[result.data, result.rest].concat(), &secrets);
    let host = bench.host().await;
    let outcome = host.run().await;
    assert!(!outcome.verdict.is_success(), "{outcome:?}");
    let reply = text_of(&outcome);
    assert!(reply.contains("https://…"), "{reply}");
    holds_none("the reply", &reply, &secrets);
    host.stop().await.unwrap();
    for record in host.journal().records() {
        holds_none("the log", &record.message, &secrets);
    }
}

/// The process of an `exec` handler gets the variables that programs need to run, those about the batch, and
/// those that `HANDLER__ENV` names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_process_inherits_no_secret() {
    let mut bench = Bench::with_rows(1..=1).await;
    let path = bench.folder.path().join("environment");
    for other in ["URL", "TRIES_MAX"] {
        bench.env.remove(&format!("HIGHWATER__POLLERS__NIGHTLY__HANDLER__{other}"));
    }
    let command =
        serde_json::json!(["/bin/sh", "-c", "/usr/bin/env > \"$0\"", path.to_str().unwrap()]);
    bench.set("HANDLER__KIND", "exec");
    bench.set("HANDLER__COMMAND", &command.to_string());
    bench.set("HANDLER__ENV", "REGION, HOOK_TOKEN");
    for (name, value) in [
        ("AzureWebJobsStorage", "UseDevelopmentStorage=true"),
        ("AZURE_CLIENT_SECRET", "secret-of-the-app"),
        ("HOME", "/home/ann"),
        ("HOOK_TOKEN", "token-of-the-hook"),
        ("IDENTITY_HEADER", "header-of-the-host"),
        ("LC_TIME", "de_DE"),
        ("PATH", "/usr/bin:/bin"),
        ("REGION", "west"),
        ("TRACEPARENT", "00-of-another-process"),
        ("TZ", "UTC"),
    ] {
        bench.set_env(name, value);
    }
    let host = bench.host().await;
    let outcome = host.run().await;
    assert!(outcome.verdict.is_success(), "{outcome:?}");
    let text = fs::read_to_string(path).unwrap();
    let pairs: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once('=')).collect();
    // A shell adds some of its own.
    let own = |name: &&str| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name);
    let names: Vec<&str> = pairs.keys().copied().filter(own).collect();
    assert_eq!(
        names,
        [
            "HIGHWATER_ATTEMPT",
            "HIGHWATER_BATCH_ID",
            "HIGHWATER_FENCING_TOKEN",
            "HIGHWATER_GENERATION",
            "HIGHWATER_POLLER",
            "HIGHWATER_ROWS",
            "HIGHWATER_STARTED_AT",
            "HOME",
            "HOOK_TOKEN",
            "LC_TIME",
            "PATH",
            "REGION",
            "TZ",
        ]
    );
    assert_eq!((pairs["REGION"], pairs["HOOK_TOKEN"]), ("west", "token-of-the-hook"));
}
