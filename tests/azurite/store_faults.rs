//! The blob store over breaking connections: an unknown outcome is never reported as a conflict.

use std::time::Duration;

use highwater_azure::BlobStore;
use highwater_engine::store::{ETag, Precondition, StateKey, StateStore, StoreError};
use tokio::task::JoinSet;

use crate::emulator::{self, Azurite, KEY, fresh_container};
use crate::proxy::{Answer, Delivery, Fault, Proxy};

/// How long the clients here wait for a response.
const TIMEOUT: Duration = Duration::from_secs(2);

fn orders() -> StateKey {
    StateKey::Document("orders".to_owned())
}

/// A store behind a proxy, and one directly on Azurite that shows the actual state.
struct Setup {
    proxy: Proxy,
    store: BlobStore,
    truth: BlobStore,
}

impl Setup {
    async fn new() -> Self {
        let azurite = Azurite::shared().await.address();
        let proxy = Proxy::start(azurite).await;
        let container = fresh_container();
        let store = |address, timeout| {
            let service = emulator::service(&emulator::with_key(address, KEY), timeout);
            BlobStore::new(&service, &container, "app").unwrap()
        };
        let truth = store(azurite, emulator::TIMEOUT);
        truth.create_container().await.unwrap();
        let store = store(proxy.address(), TIMEOUT);
        Self { proxy, store, truth }
    }

    /// Returns the stored content.
    async fn stored(&self) -> Option<(String, ETag)> {
        let stored = self.truth.load(&orders()).await.unwrap().stored?;
        Some((String::from_utf8(stored.bytes).unwrap(), stored.etag))
    }
}

const NOW: Delivery = Delivery::Now;
const NEVER: Delivery = Delivery::Never;
const LONG: Duration = Duration::from_secs(4);

/// Every fault, and whether the write is committed when the client has its response.
const FAULTS: [(Fault, bool); 10] = [
    (Fault { request: NOW, answer: Answer::Close }, true),
    (Fault { request: NOW, answer: Answer::Reset }, true),
    (Fault { request: NOW, answer: Answer::Status(500) }, true),
    (Fault { request: NOW, answer: Answer::Status(503) }, true),
    (Fault { request: NOW, answer: Answer::Hold(LONG) }, true),
    (Fault { request: NEVER, answer: Answer::Close }, false),
    (Fault { request: NEVER, answer: Answer::Reset }, false),
    (Fault { request: NEVER, answer: Answer::Status(500) }, false),
    (Fault { request: NEVER, answer: Answer::Status(503) }, false),
    (Fault { request: NEVER, answer: Answer::Hold(LONG) }, false),
];

/// Sends one write into a fault and judges it by what Azurite has stored afterwards.
async fn check(fault: Fault, committed: bool, create: bool) {
    let setup = Setup::new().await;
    let (before, precondition) = if create {
        (None, Precondition::Absent)
    } else {
        let first = setup.store.store(&orders(), b"old".to_vec(), Precondition::Absent).await;
        let etag = first.unwrap().etag;
        (Some(("old".to_owned(), etag.clone())), Precondition::Matches(etag))
    };
    let (puts, commits) = (setup.proxy.puts(), setup.proxy.commits());
    setup.proxy.break_put(fault);
    let write = setup.store.store(&orders(), b"new".to_vec(), precondition.clone()).await;
    assert!(matches!(write, Err(StoreError::Unknown { .. })), "{fault:?}: {write:?}");
    assert_eq!(setup.proxy.puts() - puts, 1, "{fault:?}: sent once");
    assert_eq!(setup.proxy.commits() - commits, usize::from(committed), "{fault:?}");

    let after = setup.stored().await;
    let again = setup.store.store(&orders(), b"again".to_vec(), precondition).await;
    if committed {
        let (bytes, etag) = after.expect("committed");
        assert_eq!(bytes, "new", "{fault:?}");
        // The same write again is rejected, and its etag is valid for the next one.
        assert!(matches!(again, Err(StoreError::Conflict { .. })), "{fault:?}: {again:?}");
        let next = Precondition::Matches(etag);
        setup.store.store(&orders(), b"next".to_vec(), next).await.unwrap();
    } else {
        assert_eq!(after, before, "{fault:?}");
        again.unwrap();
    }
}

/// Checks all faults concurrently, since some of them involve waiting.
async fn check_all(create: bool) {
    let mut checks = JoinSet::new();
    for (fault, committed) in FAULTS {
        checks.spawn(check(fault, committed, create));
    }
    checks.join_all().await;
}

#[tokio::test]
async fn a_create_without_a_response_is_unknown_and_committed_at_most_once() {
    check_all(true).await;
}

#[tokio::test]
async fn a_replace_without_a_response_is_unknown_and_committed_at_most_once() {
    check_all(false).await;
}

#[tokio::test]
async fn an_abandoned_write_lands_late_only_without_a_newer_write() {
    let setup = Setup::new().await;
    let first = setup.store.store(&orders(), b"old".to_vec(), Precondition::Absent).await.unwrap();
    let late = Fault { request: Delivery::Late(Duration::from_millis(300)), answer: Answer::Close };
    setup.proxy.break_put(late);
    let old = Precondition::Matches(first.etag);
    let abandoned = setup.store.store(&orders(), b"late".to_vec(), old.clone()).await;
    assert!(matches!(abandoned, Err(StoreError::Unknown { .. })), "{abandoned:?}");
    setup.store.store(&orders(), b"new".to_vec(), old).await.unwrap();
    let commits = setup.proxy.commits();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(setup.proxy.commits(), commits, "the late write was rejected");
    assert_eq!(setup.stored().await.unwrap().0, "new");
}

#[tokio::test]
async fn a_stopped_proxy_is_unreachable() {
    let setup = Setup::new().await;
    drop(setup.proxy);
    // The listener is closed when its task has been dropped.
    let mut write = setup.store.store(&orders(), b"new".to_vec(), Precondition::Absent).await;
    for _ in 0..100 {
        if matches!(write, Err(StoreError::Unreachable { .. })) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        write = setup.store.store(&orders(), b"new".to_vec(), Precondition::Absent).await;
    }
    assert!(matches!(write, Err(StoreError::Unreachable { .. })), "{write:?}");
}
