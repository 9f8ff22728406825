//! Notifications over local sockets.

use std::sync::atomic::AtomicBool;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use highwater_engine::cursor::KeyId;
use highwater_engine::notification::{Change, ChangeEvent, Notifier as _};
use highwater_engine::policy::{FailurePolicy, OnFailure};
use highwater_engine::testing::{WatchedWorld, World, sleep, tick};
use hmac::{Hmac, Mac as _};
use secrecy::SecretSlice;
use serde_json::{Value as Json, json};
use tokio::time::Instant;

use super::*;
use crate::config::NotifyConfig;
use crate::metrics::Metrics;
use crate::poller::TickOutcome;

const KEY: &[u8] = b"0123456789abcdefghijklmnopqrstuv";
const INTERVAL: Duration = Duration::from_millis(300);

/// Returns a notifier of `url`, with a secret in its path.
fn webhook(url: &str, metrics: &Arc<Metrics>) -> Webhook {
    let url = url.replace("/hook", "/services/s3cret");
    let signing_secrets = vec![SecretSlice::from(KEY.to_vec())];
    let config = NotifyConfig { url: url.parse().unwrap(), signing_secrets };
    let timeout = Duration::from_millis(200);
    let terms = Terms { interval: INTERVAL, timeout, tries_max: 3 };
    let client = Client::new().unwrap();
    let clock = Arc::new(StoppedClock);
    Webhook::new(client, &config, "shop", clock, Arc::clone(metrics)).with_terms(terms)
}

fn row(reason: &str) -> Change {
    Change::new(ChangeEvent::RowQuarantined, Some("refused"), reason.to_owned())
}

fn body((_, body): &(HeaderMap, Bytes)) -> Json {
    serde_json::from_slice(body).unwrap()
}

fn no_secret_in(watched: &WatchedWorld) {
    for line in watched.lines() {
        assert!(!format!("{line:?}").contains("s3cret"), "{line:?}");
    }
}

#[tokio::test]
async fn a_notification_is_as_the_documentation_says() {
    let (receiver, url) = Receiver::start(&[status(204)]).await;
    let webhook = webhook(&url, &Arc::default());
    let key_id = Some(KeyId::of(&Sample::new(1).events[0].cursor.key));
    let breaker = Change::new(ChangeEvent::BreakerOpened, None, "10 rows in a row".to_owned());
    let changes = [Change { key_id: key_id.clone(), count: 10, ..row("422") }, breaker];
    webhook.tick_ended("orders", &changes).await;
    let (headers, sent) = receiver.requests().pop().unwrap();
    let expected = json!({
        "app": "shop",
        "poller": "orders",
        "at": "2026-11-20T12:00:00Z",
        "changes": [
            {
                "event": "row_quarantined",
                "kind": "refused",
                "reason": "422",
                "count": 10,
                "key_id": key_id,
            },
            { "event": "breaker_opened", "reason": "10 rows in a row", "count": 1 },
        ],
    });
    assert_eq!(serde_json::from_slice::<Json>(&sent).unwrap(), expected);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["x-highwater-poller"], "orders");
    let text = |name: &str| headers[name].to_str().unwrap();
    assert_eq!(text("webhook-id"), text("idempotency-key"));
    assert!(text("user-agent").starts_with("highwater/"));

    // The receiver computes the signature itself.
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(KEY).unwrap();
    mac.update(format!("{}.{}.", text("webhook-id"), text("webhook-timestamp")).as_bytes());
    mac.update(&sent);
    let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(text("webhook-signature"), signature);
}

#[tokio::test]
async fn later_changes_wait_for_the_interval_and_are_sent_together() {
    let (receiver, url) = Receiver::start(&[status(204)]).await;
    let webhook = webhook(&url, &Arc::default());
    webhook.tick_ended("orders", &[row("first")]).await;
    for reason in ["second", "third"] {
        webhook.tick_ended("orders", &[row(reason)]).await;
    }
    webhook.tick_ended("orders", &[]).await;
    assert_eq!(receiver.requests().len(), 1, "at most one in an interval");
    webhook.tick_ended("customers", &[row("other")]).await;
    assert_eq!(receiver.requests().len(), 2, "another poller has its own interval");
    tokio::time::sleep(INTERVAL).await;
    // A tick without a change sends what waits.
    webhook.tick_ended("orders", &[]).await;
    let last = body(receiver.requests().last().unwrap());
    assert_eq!(
        (&last["changes"][0]["count"], &last["changes"][0]["reason"]),
        (&json!(2), &json!("third"))
    );
    tokio::time::sleep(INTERVAL).await;
    webhook.tick_ended("orders", &[]).await;
    assert_eq!(receiver.requests().len(), 3, "each change once");
}

#[tokio::test]
async fn a_failed_notification_is_retried_with_what_follows_and_then_dropped() {
    let watched = WatchedWorld::new();
    let (receiver, url) = Receiver::start(&[status(500), status(204), status(404)]).await;
    let webhook = webhook(&url, &watched.world.metrics);
    webhook.tick_ended("orders", &[row("a")]).await;
    tokio::time::sleep(INTERVAL).await;
    webhook.tick_ended("orders", &[row("b")]).await;
    let last = body(receiver.requests().last().unwrap());
    assert_eq!(last["changes"][0]["count"], 2);
    // Now it fails until the attempts are used up.
    for _ in 0..5 {
        tokio::time::sleep(INTERVAL).await;
        let changes = if receiver.requests().len() == 2 { vec![row("c")] } else { Vec::new() };
        webhook.tick_ended("orders", &changes).await;
    }
    assert_eq!(receiver.requests().len(), 5, "three attempts");
    assert_eq!(watched.counted("highwater.notifications", Some(("outcome", "sent"))), 1);
    assert_eq!(watched.counted("highwater.notifications", Some(("outcome", "failed"))), 4);
    assert_eq!(
        watched.count_of("notification_failed"),
        3,
        "once per outage, and once when changes are dropped"
    );
    let line = watched.logged("notification_failed");
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["error"], "answered 404");
    assert!(line["message"].ends_with("the changes are dropped"), "{line:?}");
    no_secret_in(&watched);
}

#[tokio::test]
async fn a_retry_has_the_same_id_unless_changes_were_added() {
    let (receiver, url) = Receiver::start(&[status(500)]).await;
    let webhook = webhook(&url, &Arc::default());
    let again = Vec::new();
    for changes in [vec![row("a")], again, vec![row("b")]] {
        webhook.tick_ended("orders", &changes).await;
        tokio::time::sleep(INTERVAL).await;
    }
    let requests = receiver.requests();
    let id = |index: usize| requests[index].0["webhook-id"].clone();
    assert_eq!(requests.len(), 3);
    assert_eq!((id(0), &requests[0].1), (id(1), &requests[1].1));
    assert_eq!(requests[1].0["idempotency-key"], id(0));
    assert_ne!(id(1), id(2));
}

#[tokio::test]
async fn a_change_of_another_kind_gets_all_attempts() {
    let (receiver, url) = Receiver::start(&[status(500)]).await;
    let webhook = webhook(&url, &Arc::default());
    let breaker = Change::new(ChangeEvent::BreakerOpened, None, "10 rows in a row".to_owned());
    let mut changes = vec![vec![row("a")], Vec::new(), vec![breaker]];
    changes.resize(8, Vec::new());
    for changes in changes {
        webhook.tick_ended("orders", &changes).await;
        tokio::time::sleep(INTERVAL).await;
    }
    let sent: Vec<_> = receiver.requests().iter().map(body).collect();
    let counts: Vec<_> = sent.iter().map(|it| it["changes"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [1, 1, 2, 2, 2]);
}

#[tokio::test]
async fn a_web_page_is_not_a_receiver() {
    let watched = WatchedWorld::new();
    let page = |text: &str| Reply(200, &[("content-type", "text/html")], text.to_owned());
    let (_receiver, url) = Receiver::start(&[page("<html>Sign in"), page("ok")]).await;
    let webhook = webhook(&url, &watched.world.metrics);
    webhook.tick_ended("orders", &[row("a")]).await;
    assert_eq!(watched.counted("highwater.notifications", Some(("outcome", "failed"))), 1);
    let error = watched.logged("notification_failed")["error"].clone();
    assert_eq!(error, "answered 200 with a web page, so this may not be the receiver");
    tokio::time::sleep(INTERVAL).await;
    webhook.tick_ended("orders", &[]).await;
    assert_eq!(watched.counted("highwater.notifications", Some(("outcome", "sent"))), 1);
}

#[tokio::test]
async fn an_endpoint_that_hangs_delays_one_poller_per_interval() {
    let watched = WatchedWorld::new();
    let hangs = Arc::new(AtomicBool::new(true));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let shared = Arc::clone(&hangs);
    let router = Router::new().fallback(move || async move {
        if shared.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        StatusCode::NO_CONTENT
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let interval = Duration::from_secs(1);
    let terms = Terms { interval, timeout: Duration::from_millis(200), tries_max: 5 };
    let webhook = webhook(&url, &watched.world.metrics).with_terms(terms);
    let counted =
        |outcome: &str| watched.counted("highwater.notifications", Some(("outcome", outcome)));
    for (failed, changes) in (1..).zip([vec![row("a")], Vec::new(), Vec::new()]) {
        for poller in ["orders", "customers", "returns"] {
            webhook.tick_ended(poller, &changes).await;
        }
        assert_eq!(counted("failed"), failed);
        tokio::time::sleep(interval).await;
    }
    hangs.store(false, Ordering::Relaxed);
    for poller in ["orders", "customers", "returns"] {
        webhook.tick_ended(poller, &[]).await;
    }
    assert_eq!((counted("failed"), counted("sent")), (3, 3));
}

#[tokio::test]
async fn an_endpoint_that_redirects_gets_nothing_at_its_other_address() {
    let (elsewhere, _) = Receiver::start(&[status(204)]).await;
    let to = Reply(307, &[("location", "/elsewhere")], String::new());
    let (receiver, url) = Receiver::start(&[to]).await;
    webhook(&url, &Arc::default()).tick_ended("orders", &[row("a")]).await;
    assert_eq!((receiver.requests().len(), elsewhere.requests().len()), (1, 0));
}

#[tokio::test]
async fn a_tick_is_not_failed_and_hardly_delayed_by_an_endpoint_that_never_answers() {
    let mut watched = WatchedWorld::new();
    // Connections are accepted by the system, and then nothing happens.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?code=s3cret", listener.local_addr().unwrap());
    watched.world.policy = FailurePolicy {
        on_failure: OnFailure::Park,
        bisect_on_error: true,
        ..FailurePolicy::default()
    };
    let world = &watched.world;
    let notifier = Arc::new(webhook(&url, &world.metrics));
    let poller = world.started_poller("a").await.with_notifier(notifier);
    world.source.fill(3);
    world.handler.judge_by(|ids| {
        if ids.contains(&2) { Err(HandlerError::Rejected("422".to_owned())) } else { Ok(()) }
    });
    let started_at = Instant::now();
    let outcome = tick(&poller).await.unwrap();
    assert!(matches!(outcome, TickOutcome::Committed { .. }), "{outcome:?}");
    let took = started_at.elapsed();
    assert!(took >= Duration::from_millis(200), "it tried: {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(world.is_released().await);
    assert_eq!(world.quarantined().await, [2]);
    assert_eq!(watched.count_of("notification_failed"), 1);
    assert_eq!(watched.logged("notification_failed")["error"], "timed out");
    no_secret_in(&watched);
    drop(listener);
}

#[tokio::test]
async fn each_change_of_a_poller_is_one_request() {
    let mut watched = WatchedWorld::of(World::new());
    let (receiver, url) = Receiver::start(&[status(204)]).await;
    watched.world.policy = FailurePolicy {
        on_failure: OnFailure::Stop,
        bisect_on_error: true,
        ..FailurePolicy::default()
    };
    let world = &watched.world;
    let notifier = Arc::new(webhook(&url, &world.metrics));
    let poller = world.started_poller("a").await.with_notifier(notifier);
    world.source.fill(1);
    world.handler.judge_by(|_| Err(HandlerError::Rejected("422".to_owned())));
    tick(&poller).await.unwrap_err();
    for _ in 0..3 {
        tick(&poller).await.unwrap();
    }
    sleep(1).await;
    tick(&poller).await.unwrap();
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1);
    let notification = body(&requests[0]);
    assert_eq!(notification["changes"][0]["event"], "poller_stopped");
    assert_eq!(notification["changes"][0]["kind"], "on_failure_stop");
    assert!(
        notification["changes"][0]["reason"].as_str().unwrap().contains("422"),
        "{notification}"
    );
}
