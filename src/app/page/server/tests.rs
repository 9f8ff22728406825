use std::net::SocketAddr;

use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response as Answered};

use super::*;
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::poller::{Limits, PollerParts};
use crate::state::{MemoryStore, StateDocument, StateKey, StateStore as _, decode};
use crate::testing::{RecordingHandler, TableSource, limits};

const SECOND: Duration = Duration::from_secs(1);

/// A served page over one poller with one row.
struct World {
    store: Arc<MemoryStore>,
    handler: Arc<RecordingHandler>,
    address: SocketAddr,
    client: Client,
}

impl World {
    async fn new(acts: bool) -> Self {
        let store = Arc::new(MemoryStore::default());
        let handler = Arc::new(RecordingHandler::default());
        let source = Arc::new(TableSource::new("orders"));
        source.fill(1);
        handler.then_take(Duration::ZERO);
        let poller = Arc::new(Poller::new(PollerParts {
            name: "orders".to_owned(),
            source,
            handler: handler.clone(),
            store: store.clone(),
            instance: Arc::new(Instance::new("a")),
            terms: LeaseTerms::of(30 * SECOND),
            limits: Limits { retry_delay_max: SECOND, retry_after_max: SECOND, ..limits() },
            policy: crate::policy::FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let board = StatusReader {
            app: "shop".to_owned(),
            state: store.clone(),
            pollers: BTreeMap::from([("orders".to_owned(), poller)]),
            schedules: BTreeMap::new(),
            disabled: BTreeMap::new(),
        };
        let served = PageServer {
            board,
            authority: Authority::of(address, &["status.example".to_owned()]),
            operator: acts.then(|| "ann".to_owned()),
            stop: StopSignal::new(),
        };
        tokio::spawn(serve(listener, served, std::future::pending()));
        let client = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
        Self { store, handler, address, client }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let answered = self.client.get(self.url(path)).send().await.unwrap();
        (answered.status().as_u16(), answered.text().await.unwrap())
    }

    /// Returns a form as the page of `orders` would send it.
    async fn form(&self, action: &str, fields: &[(&str, &str)]) -> RequestBuilder {
        let (_, page) = self.get("/api/status/page?poller=orders").await;
        let (_, rest) = page.split_once("name=\"token\" value=\"").unwrap_or(("", ""));
        let token = rest.split('"').next().unwrap();
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs([("poller", "orders"), ("token", token), ("confirm", "yes")]);
        form.extend_pairs([("reason", "because")]).extend_pairs(fields);
        let request = self.client.post(self.url(&format!("/actions/{action}"))).body(form.finish());
        request.header("Origin", self.url("")).header("Sec-Fetch-Site", "same-origin")
    }

    async fn act(&self, action: &str, fields: &[(&str, &str)]) -> Answered {
        self.form(action, fields).await.send().await.unwrap()
    }

    async fn document(&self) -> Option<StateDocument> {
        let loaded = self.store.load(&StateKey::Document("orders".to_owned())).await.unwrap();
        loaded.stored.map(|stored| decode("orders", &stored.bytes).unwrap())
    }
}

#[tokio::test]
async fn the_page_and_the_json_have_the_paths_of_the_functions_host() {
    let world = World::new(false).await;
    let start = world.client.get(world.url("/")).send().await.unwrap();
    assert_eq!(start.status().as_u16(), 303);
    assert_eq!(start.headers()["location"], "/api/status/page");
    let (status, page) = world.get("/api/status/page").await;
    assert!(status == 200 && page.contains("<bdi>orders</bdi>"), "{page}");
    let answered = world.client.get(world.url("/api/status?poller=orders")).send().await.unwrap();
    assert!(answered.headers().contains_key("content-security-policy"));
    let json: serde_json::Value = serde_json::from_slice(&answered.bytes().await.unwrap()).unwrap();
    assert_eq!((&json["app"], &json["pollers"][0]["state"]), (&"shop".into(), &"never_ran".into()));
    assert_eq!(world.get("/api/status?poller=weekly").await.0, 404);
    assert_eq!(world.get("/api/status/other").await.0, 404);
    assert_eq!(world.client.post(world.url("/")).send().await.unwrap().status().as_u16(), 404);
}

#[tokio::test]
async fn health_routes_answer_by_severity_and_name_nothing() {
    let world = World::new(true).await;
    assert_eq!(world.get("/healthz").await, (200, r#"{"status":"ok"}"#.to_owned()));
    // It never ran.
    assert_eq!(world.get("/readyz").await, (200, r#"{"status":"warning"}"#.to_owned()));
    world.act("tick", &[]).await;
    assert_eq!(world.get("/readyz").await, (200, r#"{"status":"ok"}"#.to_owned()));
    let key = StateKey::Document("orders".to_owned());
    world.store.lose(&key);
    assert_eq!(world.get("/readyz").await, (503, r#"{"status":"error"}"#.to_owned()));
    assert_eq!(world.get("/healthz").await.0, 200);
    for (path, status) in [("/healthz", 200), ("/readyz", 503)] {
        let answered = world.client.head(world.url(path)).send().await.unwrap();
        assert_eq!(answered.status().as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn requests_with_an_unknown_host_name_are_refused() {
    let world = World::new(true).await;
    for (host, status) in [("evil.example", 421), ("status.example", 200), ("localhost:1", 200)] {
        for path in ["/api/status", "/api/status/page"] {
            let request = world.client.get(world.url(path)).header("Host", host);
            assert_eq!(request.send().await.unwrap().status().as_u16(), status, "{host}{path}");
        }
    }
    for origin in ["http://evil.example", "null"] {
        let request = world.client.get(world.url("/api/status")).header("Origin", origin);
        assert_eq!(request.send().await.unwrap().status().as_u16(), 403, "{origin}");
    }
    let rebound = world.form("pause", &[]).await.header("Host", "evil.example");
    assert_eq!(rebound.send().await.unwrap().status().as_u16(), 421);
    assert_eq!(world.document().await, None);
}

#[tokio::test]
async fn no_other_website_makes_the_page_explain_a_row() {
    let world = World::new(false).await;
    for (site, status) in [
        // Over plain http to another machine, browsers do not say who asks.
        (None, 403),
        (Some("none"), 200),
        (Some("same-origin"), 200),
        (Some("same-site"), 403),
        (Some("cross-site"), 403),
    ] {
        let request = world.client.get(world.url("/api/status/page?poller=orders&key=1"));
        let request = site.iter().fold(request, |all, site| all.header("Sec-Fetch-Site", *site));
        assert_eq!(request.send().await.unwrap().status().as_u16(), status, "{site:?}");
    }
    let link = world.client.get(world.url("/api/status/page?poller=orders"));
    let link = link.header("Sec-Fetch-Site", "cross-site").send().await.unwrap();
    assert_eq!(link.status().as_u16(), 200, "a link from another website opens the page");
}

#[tokio::test]
async fn a_runbook_names_only_pollers_of_the_settings() {
    let world = World::new(false).await;
    let (_, page) = world.get("/api/status/page?runbook=stopped&poller=orders").await;
    assert!(page.contains("highwater status orders") && !page.contains("POLLER"), "{page}");
    for name in ["orders;%20curl%20evil%7Csh", "x%0A%60%60%60%0Acurl%20evil", "weekly"] {
        let (status, page) =
            world.get(&format!("/api/status/page?runbook=stopped&poller={name}")).await;
        assert!(status == 200 && page.contains("highwater status POLLER"), "{page}");
        assert!(!page.contains("evil") && !page.contains("weekly"), "{page}");
    }
}

#[tokio::test]
async fn a_poller_is_paused_resumed_and_ticked_and_the_page_shows_the_result() {
    let world = World::new(true).await;
    let see = async |action: &str| {
        let answered = world.act(action, &[]).await;
        assert_eq!(answered.status().as_u16(), 303, "{action}");
        let place = answered.headers()["location"].to_str().unwrap().to_owned();
        assert_eq!(place, "/api/status/page?poller=orders");
        world.get(&place).await.1
    };
    let page = see("tick").await;
    assert!(page.contains("committed 1 row"), "{page}");
    assert_eq!(world.handler.ids(), [1]);
    assert!(see("pause").await.contains("Paused.</bdi>"));
    let paused = world.document().await.unwrap().paused.unwrap();
    assert_eq!((paused.by.as_str(), paused.reason.as_str()), ("ann", "because"));
    assert!(see("pause").await.contains("Already paused by ann."));
    assert!(see("resume").await.contains("Resumed.</bdi>"));
    assert_eq!(world.document().await.unwrap().paused, None);
}

#[tokio::test]
async fn a_form_from_elsewhere_changes_nothing() {
    let world = World::new(true).await;
    for (fields, expected) in [
        ([("token", "")], 403),
        ([("token", "0123456789abcdef0123456789abcdef")], 403),
        ([("confirm", "")], 400),
        ([("reason", " ")], 400),
        ([("poller", "weekly")], 404),
    ] {
        // If a field occurs twice, the last value counts.
        let answered = world.act("pause", &fields).await;
        assert_eq!(answered.status().as_u16(), expected, "{fields:?}");
    }
    assert_eq!(world.act("drop", &[]).await.status().as_u16(), 404);
    let bare = |request: RequestBuilder| {
        let mut request = request.build().unwrap();
        request.headers_mut().remove("origin");
        request
    };
    let request = bare(world.form("pause", &[]).await);
    assert_eq!(world.client.execute(request).await.unwrap().status().as_u16(), 403, "no origin");
    for origin in ["null", "http://evil.example", "http://localhost:1"] {
        let mut request = bare(world.form("pause", &[]).await);
        request.headers_mut().insert("origin", origin.parse().unwrap());
        let answered = world.client.execute(request).await.unwrap();
        assert_eq!(answered.status().as_u16(), 403, "{origin}");
    }
    let got = world.client.get(world.url("/actions/pause")).send().await.unwrap();
    assert_eq!(got.status().as_u16(), 404, "actions need a POST");
    assert_eq!(world.document().await, None);
}

#[tokio::test]
async fn a_page_without_actions_refuses_them() {
    let world = World::new(false).await;
    let (_, page) = world.get("/api/status/page?poller=orders").await;
    assert!(!page.contains("<form method=\"post\""), "{page}");
    for action in ["pause", "resume", "tick", "redrive"] {
        assert_eq!(world.act(action, &[]).await.status().as_u16(), 403, "{action}");
    }
    assert_eq!((world.document().await, world.handler.ids().len()), (None, 0));
}
