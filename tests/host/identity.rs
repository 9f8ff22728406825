//! Identities: tokens for the database, from fakes of App Service's endpoint and Microsoft Entra, obtained by
//! the identity library and accepted by the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use highwater::clock::{Clock as _, SystemClock};
use highwater_devdb::Fault;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::server::TlsStream;

use crate::bench::{Bench, LIMIT, failure};

const CLIENT_ID: &str = "11111111-2222-3333-4444-555555555555";

/// Gives `token-0`, `token-1` and so on, to requests for the one user-assigned identity only.
/// <https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference>
struct Endpoint {
    url: String,
    given: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/msi/token", listener.local_addr().unwrap());
        let given = Arc::new(AtomicUsize::new(0));
        let router = Router::new().route("/msi/token", get(give)).with_state(Arc::clone(&given));
        let serve = async move { axum::serve(listener, router).await.unwrap() };
        Self { url, given, task: tokio::spawn(serve).abort_handle() }
    }
}

async fn give(
    State(given): State<Arc<AtomicUsize>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> (StatusCode, String) {
    let query = query.unwrap_or_default();
    let resource = "resource=https%3A%2F%2Fdatabase.windows.net";
    let good = query.contains(&format!("client_id={CLIENT_ID}"))
        && query.contains(resource)
        && headers.get("x-identity-header").is_some_and(|header| header == "of-the-host");
    if !good {
        return (StatusCode::BAD_REQUEST, r#"{"message":"no such identity"}"#.to_owned());
    }
    let number = given.fetch_add(1, Ordering::Relaxed);
    // So close to expiry that the next login requests a new one.
    let expires_on = SystemClock.now().unix_timestamp() + 60;
    let body = serde_json::json!({
        "access_token": format!("token-{number}"),
        "expires_on": expires_on.to_string(),
        "resource": "https://database.windows.net",
        "token_type": "Bearer",
    });
    (StatusCode::OK, body.to_string())
}

async fn bench(endpoint: &Endpoint, client_id: &str) -> Bench {
    let mut bench = Bench::with_rows(1..=2).await;
    let text = format!(
        "Server=127.0.0.1,{};Database=Highwater;Encrypt=DANGER_PLAINTEXT;User ID={client_id};\
         Authentication=Active Directory Managed Identity",
        bench.server.port()
    );
    bench.set_env("SqlConnection", &text);
    bench.set_env("IDENTITY_ENDPOINT", &endpoint.url);
    bench.set_env("IDENTITY_HEADER", "of-the-host");
    bench
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_managed_identity_logs_in_with_a_token_that_is_never_stale() {
    let endpoint = Endpoint::start().await;
    let bench = bench(&endpoint, CLIENT_ID).await;
    bench.server.faults().only_token("token-0");
    let host = bench.host().await;
    assert!(host.run().await.verdict.is_success());
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    // The database's node goes away, and the connection with it; the old token is no longer accepted.
    bench.server.faults().only_token("token-1");
    bench.server.faults().arm_matching("SELECT TOP", 1, Fault::DropBeforeRun);
    bench.insert(3..=3);
    assert!(host.run().await.verdict.is_success());
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    assert_eq!(endpoint.given.load(Ordering::Relaxed), 2);
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_that_the_host_lacks_is_named_in_the_error() {
    let endpoint = Endpoint::start().await;
    let bench = bench(&endpoint, "another").await;
    let host = bench.host().await;
    let outcome = host.run().await;
    let text = failure(&outcome);
    assert!(text.contains("check that the app has the identity"), "{text}");
    assert!(bench.receiver.accepted().is_empty());
    assert_eq!(bench.server.faults().logins_tried(), 0);
}

/// A fake Microsoft Entra, which gives `token-of-entra` for the expected request.
struct Entra {
    port: u16,
    certificate: String,
    task: AbortHandle,
}

impl Drop for Entra {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Entra {
    async fn start(wanted: &'static [&'static str]) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let task = tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                // A client that does not trust the certificate disconnects.
                if let Ok(tls) = acceptor.accept(tcp).await {
                    answer(tls, wanted).await;
                }
            }
        });
        Self { port, certificate: made.cert.pem(), task: task.abort_handle() }
    }
}

/// <https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow>
async fn answer(mut tls: TlsStream<TcpStream>, wanted: &[&str]) {
    let mut request = String::new();
    let mut buffer = [0; 4096];
    while !is_whole(&request) {
        let length = timeout(LIMIT, tls.read(&mut buffer)).await.unwrap().unwrap();
        assert_ne!(length, 0, "half a request: `{request}`");
        request.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    for part in wanted {
        assert!(request.contains(part), "`{part}` not in `{request}`");
    }
    let body = r#"{"token_type":"Bearer","expires_in":3600,"ext_expires_in":3600,"access_token":"token-of-entra"}"#;
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
    let text = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    tls.write_all(text.as_bytes()).await.unwrap();
    tls.shutdown().await.unwrap();
}

fn is_whole(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    let length = head.split_once("content-length: ").unwrap().1;
    let length = length.lines().next().unwrap().parse::<usize>().unwrap();
    body.len() >= length
}

/// Runs the poller once with `login` in its connection string.
async fn logs_in(login: &str, wanted: &'static [&'static str]) {
    let entra = Entra::start(wanted).await;
    let mut bench = Bench::with_rows(1..=2).await;
    let (pem, assertion) = (bench.folder.path().join("ca.pem"), bench.folder.path().join("jwt"));
    std::fs::write(&pem, &entra.certificate).unwrap();
    std::fs::write(&assertion, "assertion-of-kubernetes").unwrap();
    let text = format!(
        "Server=127.0.0.1,{};Database=Highwater;Encrypt=DANGER_PLAINTEXT;{login}",
        bench.server.port()
    );
    bench.set_env("SqlConnection", &text);
    bench.set_env("SSL_CERT_FILE", pem.to_str().unwrap());
    bench.set_env("AZURE_AUTHORITY_HOST", &format!("https://localhost:{}/", entra.port));
    bench.set_env("AZURE_TENANT_ID", "acme");
    bench.set_env("AZURE_FEDERATED_TOKEN_FILE", assertion.to_str().unwrap());
    bench.server.faults().only_token("token-of-entra");
    let host = bench.host().await;
    let outcome = host.run().await;
    assert!(outcome.verdict.is_success(), "{outcome:?}");
    assert_eq!(bench.receiver.accepted(), [1, 2]);
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_principal_logs_in_with_its_secret() {
    let login = "Authentication=Active Directory Service Principal;User ID=app-1;Password='s;1'";
    let wanted = &[
        "POST /acme/oauth2/v2.0/token ",
        "client_id=app-1",
        "client_secret=s%3B1",
        "grant_type=client_credentials",
        "scope=https%3A%2F%2Fdatabase.windows.net%2F.default",
    ];
    logs_in(login, wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_principal_of_another_tenant_authenticates_there() {
    let login = "Authentication=Active Directory Service Principal;User ID=app-1@other;Password=s";
    logs_in(login, &["POST /other/oauth2/v2.0/token ", "client_id=app-1&", "client_secret=s"])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_of_entra_logs_in_with_a_password() {
    let login = "Authentication=Active Directory Password;User ID=ada@acme.example;Password='p;1'";
    let wanted = &[
        "POST /acme/oauth2/v2.0/token ",
        "grant_type=password&username=ada%40acme.example&password=p%3B1&",
        "scope=https%3A%2F%2Fdatabase.windows.net%2F.default",
    ];
    logs_in(login, wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_identity_logs_in_with_the_assertion_of_its_cluster() {
    let login = "Authentication=Active Directory Workload Identity;User ID=app-2";
    let wanted = &[
        "POST /acme/oauth2/v2.0/token ",
        "client_id=app-2",
        "client_assertion=assertion-of-kubernetes",
    ];
    logs_in(login, wanted).await;
}
