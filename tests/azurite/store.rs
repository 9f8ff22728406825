//! The blob store over intact connections.

use std::sync::Arc;
use std::time::Duration;

use highwater_azure::BlobService;
use highwater_azure::BlobStore;
use highwater_engine::store::{
    Precondition, StateKey, StateStore, StoreError, WriteResult, conformance,
};

use crate::emulator::{self, Azurite, KEY, TIMEOUT, fresh_container};

fn orders() -> StateKey {
    StateKey::Document("orders".to_owned())
}

/// Returns a store with its own container.
async fn fresh_store(service: &BlobService) -> BlobStore {
    let store = BlobStore::new(service, &fresh_container(), "app").unwrap();
    assert!(store.create_container().await.unwrap(), "the name is unused");
    store
}

/// Returns the error of a request in the store's first tick.
async fn refusal(store: &BlobStore) -> String {
    match store.load(&orders()).await {
        Err(StoreError::Refused { reason, .. }) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

#[tokio::test]
async fn it_conforms_with_an_account_key() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::with_key(azurite.address(), KEY), TIMEOUT);
    conformance::run(&|| fresh_store(&service)).await;
}

#[tokio::test]
async fn it_conforms_with_a_shared_access_signature() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::with_signature(azurite, "b", "rwdlac"), TIMEOUT);
    conformance::run(&|| fresh_store(&service)).await;
}

#[tokio::test]
async fn development_storage_needs_no_container() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::development(azurite.address()), TIMEOUT);
    let container = fresh_container();
    for _ in 0..2 {
        let store = BlobStore::new(&service, &container, "app").unwrap();
        store.load(&orders()).await.unwrap();
    }
    let store = BlobStore::new(&service, &container, "app").unwrap();
    store.store(&orders(), b"{}".to_vec(), Precondition::Absent).await.unwrap();
    assert!(!store.create_container().await.unwrap(), "it is there");
}

#[tokio::test]
async fn a_missing_container_is_an_error_with_a_fix() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::with_key(azurite.address(), KEY), TIMEOUT);
    let store = BlobStore::new(&service, "not-there", "app").unwrap();
    let text = refusal(&store).await;
    assert!(text.contains("create the container `not-there`"), "{text}");
    let write = store.store(&orders(), b"{}".to_vec(), Precondition::Absent).await;
    assert!(matches!(write, Err(StoreError::Refused { .. })), "{write:?}");
}

#[tokio::test]
async fn a_wrong_key_is_rejected_and_not_shown() {
    let azurite = Azurite::shared().await;
    let wrong = "d3JvbmcgczNjcmV0";
    let service = emulator::service(&emulator::with_key(azurite.address(), wrong), TIMEOUT);
    let store = BlobStore::new(&service, &fresh_container(), "app").unwrap();
    let text = refusal(&store).await;
    assert!(text.contains("Storage Blob Data Contributor"), "{text}");
    assert!(!text.contains(wrong), "{text}");
    assert!(!format!("{store:?} {service:?}").contains(wrong));
}

#[tokio::test]
async fn errors_contain_no_signature() {
    let azurite = Azurite::shared().await;
    let good = emulator::with_signature(azurite, "b", "r");
    let dead = good.replace(&azurite.address().to_string(), "127.0.0.1:1");
    let forged = good.replace("sig=", "sig=AAAA");
    for connection in [good, dead, forged] {
        let service = emulator::service(&connection, TIMEOUT);
        let store = BlobStore::new(&service, &fresh_container(), "app").unwrap();
        let load = store.load(&orders()).await.unwrap_err();
        let write = store.store(&orders(), b"{}".to_vec(), Precondition::Absent).await.unwrap_err();
        for error in [&load, &write] {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("sig=") && !text.contains("sv="), "{text}");
            assert!(text.contains("/devstoreaccount1/test-"), "account and container: {text}");
        }
        assert!(!format!("{store:?} {service:?}").contains("sig"));
    }
}

#[tokio::test]
async fn one_of_two_writers_with_the_same_etag_wins_each_round() {
    const ROUNDS: u32 = 50;
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::with_key(azurite.address(), KEY), TIMEOUT);
    let store = Arc::new(fresh_store(&service).await);
    let mut tag = store.store(&orders(), b"0".to_vec(), Precondition::Absent).await.unwrap().etag;
    for round in 0..ROUNDS {
        let write = |writer: u8| {
            let (store, tag) = (Arc::clone(&store), tag.clone());
            let bytes = vec![writer];
            async move { store.store(&orders(), bytes, Precondition::Matches(tag)).await }
        };
        let (a, b) = tokio::join!(tokio::spawn(write(b'a')), tokio::spawn(write(b'b')));
        tag = match (a.unwrap(), b.unwrap()) {
            (Ok(WriteResult { etag, .. }), Err(StoreError::Conflict { .. }))
            | (Err(StoreError::Conflict { .. }), Ok(WriteResult { etag, .. })) => etag,
            both => panic!("round {round}: {both:?}"),
        };
    }
    let stored = store.load(&orders()).await.unwrap().stored.unwrap();
    assert_eq!(stored.etag, tag);
}

#[tokio::test]
async fn a_document_too_large_for_one_request_is_rejected() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::with_key(azurite.address(), KEY), TIMEOUT);
    let store = fresh_store(&service).await;
    let write = store.store(&orders(), vec![b' '; 4 * 1024 * 1024 + 1], Precondition::Absent).await;
    assert!(matches!(write, Err(StoreError::Refused { .. })), "{write:?}");
    store.store(&orders(), vec![b' '; 4 * 1024 * 1024], Precondition::Absent).await.unwrap();
    let stored = store.load(&orders()).await.unwrap().stored.unwrap();
    assert_eq!(stored.bytes.len(), 4 * 1024 * 1024);
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let address = "127.0.0.1:1".parse().unwrap();
    let service = emulator::service(&emulator::with_key(address, KEY), Duration::from_secs(2));
    let store = BlobStore::new(&service, "db-state", "app").unwrap();
    let load = store.load(&orders()).await;
    assert!(matches!(load, Err(StoreError::Unreachable { .. })), "{load:?}");
    let write = store.store(&orders(), b"{}".to_vec(), Precondition::Absent).await;
    assert!(matches!(write, Err(StoreError::Unreachable { .. })), "{write:?}");
}
