//! The lease over breaking connections: exactly one commit each, and no owner is wrongly fenced.
//!
//! The proxy lets Azurite commit, or not, and then breaks the response. Storage clients with built-in retries
//! take the rejection of their second attempt for a lost lease; here the tick must end as if nothing had
//! happened.

use std::sync::Arc;
use std::time::Duration;

use highwater_azure::BlobStore;
use highwater_engine::admin::InitResult;
use highwater_engine::clock::SystemClock;
use highwater_engine::document::{StateDocument, decode};
use highwater_engine::handler::HandlerError;
use highwater_engine::lease::{Instance, LeaseTerms};
use highwater_engine::metrics::Metrics;
use highwater_engine::poller::{Limits, Poller, PollerParts, TickOutcome};
use highwater_engine::store::{DateCheckedStore, StateKey, StateStore};
use highwater_engine::testing::{RecordingHandler, TableSource, limits};
use highwater_engine::tick::TickRequest;

use crate::emulator::{self, Azurite, KEY, fresh_container};
use crate::proxy::{Answer, Delivery, Fault, Proxy};

/// How long the store behind the proxy waits for a response.
const TIMEOUT: Duration = Duration::from_secs(2);

const FAULTS: [Fault; 10] = [
    Fault { request: Delivery::Now, answer: Answer::Close },
    Fault { request: Delivery::Now, answer: Answer::Reset },
    Fault { request: Delivery::Now, answer: Answer::Status(500) },
    Fault { request: Delivery::Now, answer: Answer::Status(503) },
    Fault { request: Delivery::Now, answer: Answer::Hold(Duration::from_secs(4)) },
    Fault { request: Delivery::Never, answer: Answer::Close },
    Fault { request: Delivery::Never, answer: Answer::Reset },
    Fault { request: Delivery::Never, answer: Answer::Status(500) },
    Fault { request: Delivery::Never, answer: Answer::Status(503) },
    Fault { request: Delivery::Late(Duration::from_secs(1)), answer: Answer::Close },
];

struct Setup {
    proxy: Proxy,
    truth: BlobStore,
    store: Arc<BlobStore>,
    source: Arc<TableSource>,
    handler: Arc<RecordingHandler>,
}

impl Setup {
    async fn new() -> Self {
        let setup = Self::without_container().await;
        setup.truth.create_container().await.unwrap();
        setup
    }

    async fn without_container() -> Self {
        let azurite = Azurite::shared().await.address();
        let proxy = Proxy::start(azurite).await;
        let container = fresh_container();
        let store = |address, timeout| {
            let service = emulator::service(&emulator::with_key(address, KEY), timeout);
            BlobStore::new(&service, &container, "app").unwrap()
        };
        let truth = store(azurite, emulator::TIMEOUT);
        let store = Arc::new(store(proxy.address(), TIMEOUT));
        let source = Arc::new(TableSource::new("orders"));
        Self { proxy, truth, store, source, handler: Arc::default() }
    }

    fn instance(&self, owner_id: &str) -> Poller {
        self.instance_on(owner_id, self.store.clone())
    }

    fn instance_on(&self, owner_id: &str, store: Arc<dyn StateStore>) -> Poller {
        let second = Duration::from_secs(1);
        Poller::new(PollerParts {
            name: "orders".to_owned(),
            source: self.source.clone(),
            handler: self.handler.clone(),
            store,
            instance: Arc::new(Instance::new(owner_id)),
            terms: LeaseTerms::of(30 * second),
            limits: Limits {
                tick_time_max: 60 * second,
                handler_stop_after: 120 * second,
                retry_delay_max: second,
                retry_after_max: second,
                ..limits()
            },
            policy: highwater_engine::policy::FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        })
    }

    async fn document(&self) -> StateDocument {
        let key = StateKey::Document("orders".to_owned());
        let stored = self.truth.load(&key).await.unwrap().stored.unwrap();
        decode("orders", &stored.bytes).unwrap()
    }
}

/// Breaks the `nth` write of a tick that delivers one batch: 0 is the acquisition, 1 the commit.
async fn check(fault: Fault, nth: u32) {
    let setup = Setup::new().await;
    let poller = setup.instance("a");
    setup.source.put(1, "first");
    poller.tick(&TickRequest::default()).await.result.unwrap();
    let token = setup.document().await.lease.fencing_token.0;

    setup.source.put(2, "second");
    let commits = setup.proxy.commits();
    if nth == 0 {
        setup.proxy.break_put(fault);
    } else {
        let break_put = setup.proxy.breaker();
        setup.handler.then(async move {
            break_put(fault);
            Ok::<(), HandlerError>(())
        });
    }
    let report = poller.tick(&TickRequest::default()).await;
    assert_eq!(
        report.result.unwrap(),
        TickOutcome::Committed { more: false },
        "{fault:?} at write {nth}: {}",
        report.summary
    );
    assert_eq!(setup.proxy.commits() - commits, 2, "{fault:?} at write {nth}: one commit each");
    let document = setup.document().await;
    assert_eq!(document.lease.fencing_token.0, token + 1, "{fault:?}: granted once");
    assert!(document.lease.released_at.is_some(), "{fault:?}: no lease without an owner remains");
    assert_eq!(setup.handler.ids(), [1, 2], "{fault:?}: delivered once");
    assert!(document.in_flight.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_response_to_the_acquisition_causes_one_grant() {
    let mut checks = tokio::task::JoinSet::new();
    for fault in FAULTS {
        checks.spawn(check(fault, 0));
    }
    checks.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_response_to_the_commit_causes_one_commit() {
    let mut checks = tokio::task::JoinSet::new();
    for fault in FAULTS {
        checks.spawn(check(fault, 1));
    }
    checks.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_share_one_poller_on_the_blob_store() {
    let setup = Setup::new().await;
    let (a, b) = (setup.instance("a"), setup.instance("b"));
    for round in 0..10 {
        setup.source.fill(20);
        let request = TickRequest::default();
        let (first, second) = tokio::join!(a.tick(&request), b.tick(&request));
        for report in [&first, &second] {
            assert!(report.result.is_ok(), "round {round}: {}", report.summary);
        }
        assert_eq!(first.rows + second.rows, 20, "round {round}: one of them delivers all");
    }
    assert_eq!(setup.handler.ids().len(), 200, "nothing is delivered twice when nothing fails");
    assert_eq!(setup.document().await.lease.fencing_token.0, 10);
}

/// A proxy responds with a time one hour ahead: neither a process that has read before, nor a cold one, takes
/// over the lease of a live holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_one_hour_ahead_does_not_take_over_a_live_lease() {
    let setup = Setup::new().await;
    let ttl = LeaseTerms::of(Duration::from_secs(30)).ttl;
    let holder = Arc::new(setup.instance("holder"));
    let checked = |store: &Arc<BlobStore>| {
        Arc::new(DateCheckedStore::new(store.clone(), ttl, Arc::new(SystemClock)))
    };
    let warm = setup.instance_on("warm", checked(&setup.store));
    setup.source.put(1, "first");
    warm.tick(&TickRequest::default()).await.result.unwrap();
    let (entered, has_entered) = tokio::sync::oneshot::channel();
    let (leave, may_leave) = tokio::sync::oneshot::channel::<()>();
    setup.handler.then(async move {
        entered.send(()).unwrap();
        may_leave.await.unwrap();
        Ok::<(), HandlerError>(())
    });
    setup.source.put(2, "second");
    let tick = tokio::spawn({
        let holder = Arc::clone(&holder);
        async move { holder.tick(&TickRequest::default()).await }
    });
    has_entered.await.unwrap();
    let token = setup.document().await.lease.fencing_token;
    setup.proxy.shift_dates(time::Duration::HOUR);
    let cold = setup.instance_on("cold", checked(&setup.store));
    for challenger in [&warm, &cold, &warm, &cold] {
        let outcome = challenger.tick(&TickRequest::default()).await.result.unwrap();
        assert!(matches!(outcome, TickOutcome::Skipped(_)), "{outcome:?}");
    }
    assert_eq!(setup.document().await.lease.fencing_token, token, "no instance took it over");
    // Without the check the same date takes over the lease at once.
    let unchecked = setup.instance_on("unchecked", setup.store.clone());
    drop(unchecked.tick(&TickRequest::default()).await);
    assert!(setup.document().await.lease.fencing_token > token, "the proxy shifts dates");
    leave.send(()).unwrap();
    drop(tick.await.unwrap());
}

#[tokio::test]
async fn an_explicit_start_creates_the_container() {
    let setup = Setup::without_container().await;
    setup.source.put(1, "first");
    assert_eq!(
        setup.instance("a").admin().init().await.unwrap(),
        InitResult::Started { after: None }
    );
    let report = setup.instance("a").tick(&TickRequest::default()).await;
    assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_container_fails_the_tick_with_a_fix() {
    let setup = Setup::without_container().await;
    setup.source.put(1, "first");
    let report = setup.instance("a").tick(&TickRequest::default()).await;
    let error = highwater_engine::error::chain(&report.result.unwrap_err());
    assert!(error.contains("create the container `"), "{error}");
    assert!(setup.handler.ids().is_empty(), "the handler is not called");
}
