//! The managed identity of the host: tokens for the database, from the endpoint that App Service offers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use highwater::clock::{Clock as _, SystemClock};
use highwater::devdb::Fault;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::bench::{Bench, failure};

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
    // So near its end that the next login wants another one.
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
    assert_eq!(bench.receiver.taken(), [1, 2]);
    // The database's node goes, and with it the connection; the old token is taken no more.
    bench.server.faults().only_token("token-1");
    bench.server.faults().arm_matching("SELECT TOP", 1, Fault::DropBeforeRun);
    bench.insert(3..=3);
    assert!(host.run().await.verdict.is_success());
    assert_eq!(bench.receiver.taken(), [1, 2, 3]);
    assert_eq!(endpoint.given.load(Ordering::Relaxed), 2);
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_that_the_host_has_not_is_named_to_the_operator() {
    let endpoint = Endpoint::start().await;
    let bench = bench(&endpoint, "another").await;
    let host = bench.host().await;
    let outcome = host.run().await;
    let text = failure(&outcome);
    assert!(text.contains("check that the app has the identity"), "{text}");
    assert!(bench.receiver.taken().is_empty());
    assert_eq!(bench.server.faults().logins_tried(), 0);
}
