//! The contract of [`StateStore`] as tests for any implementation.
//!
//! Each check gets its own empty store from `make`, isolated from all others.

#![expect(clippy::panic, reason = "a broken rule of the contract is a failed test")]

use std::sync::Arc;

use crate::cursor::KeyId;

use super::{ETag, Precondition, StateKey, StateStore, StoreError};

/// Runs every check against stores created by `make`.
///
/// # Panics
///
/// If the store violates the contract; the message names the rule.
pub async fn run<S, F>(make: &impl Fn() -> F)
where
    S: StateStore + 'static,
    F: Future<Output = S>,
{
    an_absent_key_loads_as_nothing(&make().await).await;
    a_created_document_loads_equal(&make().await).await;
    creating_twice_conflicts(&make().await).await;
    a_stale_tag_conflicts_and_changes_nothing(&make().await).await;
    a_tag_on_an_absent_key_conflicts(&make().await).await;
    equal_content_gets_a_new_tag(&make().await).await;
    keys_are_stored_separately(&make().await).await;
    unusual_names_are_stored_separately_or_rejected(&make().await).await;
    damaged_content_is_returned_unchanged(&make().await).await;
    times_come_from_the_service_and_move_forward(&make().await).await;
    error_texts_name_the_poller(&make().await).await;
    keys_are_listed_by_name_and_foreign_names_are_left_out(&make().await).await;
    a_removed_document_is_gone_and_a_stale_tag_removes_nothing(&make().await).await;
    Box::pin(applications_are_separate_and_found(&make().await)).await;
    of_racing_creators_one_wins(Arc::new(make().await)).await;
    racing_increments_all_count(Arc::new(make().await)).await;
}

fn document(poller: &str) -> StateKey {
    StateKey::Document(poller.to_owned())
}

async fn create(store: &dyn StateStore, key: &StateKey, bytes: &[u8]) -> ETag {
    let written = store.store(key, bytes.to_vec(), Precondition::Absent).await;
    written.expect("an absent key can be created").etag
}

async fn content(store: &dyn StateStore, key: &StateKey) -> Option<(Vec<u8>, ETag)> {
    let loaded = store.load(key).await.expect("a load succeeds");
    loaded.stored.map(|stored| (stored.bytes, stored.etag))
}

fn is_conflict<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Conflict { .. }))
}

async fn an_absent_key_loads_as_nothing(store: &dyn StateStore) {
    assert_eq!(content(store, &document("a")).await, None, "an absent key loads as nothing");
}

async fn a_created_document_loads_equal(store: &dyn StateStore) {
    let etag = create(store, &document("a"), b"one").await;
    assert_eq!(
        content(store, &document("a")).await,
        Some((b"one".to_vec(), etag)),
        "a load sees the write before it, with its tag"
    );
}

async fn creating_twice_conflicts(store: &dyn StateStore) {
    create(store, &document("a"), b"one").await;
    let second = store.store(&document("a"), b"two".to_vec(), Precondition::Absent).await;
    assert!(is_conflict(&second), "the second creation conflicts: {second:?}");
    assert_eq!(content(store, &document("a")).await.expect("stored").0, b"one");
}

async fn a_stale_tag_conflicts_and_changes_nothing(store: &dyn StateStore) {
    let stale = create(store, &document("a"), b"one").await;
    let fresh = Precondition::Matches(stale.clone());
    store.store(&document("a"), b"two".to_vec(), fresh).await.expect("a fresh tag is accepted");
    let late = store.store(&document("a"), b"three".to_vec(), Precondition::Matches(stale)).await;
    assert!(is_conflict(&late), "a stale tag conflicts: {late:?}");
    assert_eq!(content(store, &document("a")).await.expect("stored").0, b"two");
}

async fn a_tag_on_an_absent_key_conflicts(store: &dyn StateStore) {
    let etag = create(store, &document("other"), b"one").await;
    let write = store.store(&document("a"), b"one".to_vec(), Precondition::Matches(etag)).await;
    assert!(is_conflict(&write), "a tag on an absent key conflicts: {write:?}");
    assert_eq!(content(store, &document("a")).await, None);
}

async fn equal_content_gets_a_new_tag(store: &dyn StateStore) {
    let first = create(store, &document("a"), b"same").await;
    let precondition = Precondition::Matches(first.clone());
    let second = store.store(&document("a"), b"same".to_vec(), precondition).await;
    let second = second.expect("a fresh tag is accepted").etag;
    assert_ne!(first, second, "equal content gets a new tag");
}

async fn keys_are_stored_separately(store: &dyn StateStore) {
    let keys = [document("a"), document("b"), StateKey::Marker("a".to_owned())];
    for (number, key) in keys.iter().enumerate() {
        create(store, key, number.to_string().as_bytes()).await;
    }
    for (number, key) in keys.iter().enumerate() {
        let found = content(store, key).await.expect("stored").0;
        assert_eq!(found, number.to_string().as_bytes(), "{key} is stored separately");
    }
}

/// Only for stores that separate applications.
async fn applications_are_separate_and_found(store: &dyn StateStore) {
    let Some(other) = store.of_app("other.app") else { return };
    let key = document("a");
    assert_eq!(store.apps_with(&key).await.expect("a listing"), Some(Vec::new()));
    create(store, &key, b"own").await;
    assert_eq!(
        store.apps_with(&key).await.expect("a listing"),
        Some(Vec::new()),
        "an application does not find itself"
    );
    create(&*other, &key, b"other").await;
    create(&*other, &document("b"), b"other").await;
    assert_eq!(content(store, &key).await.expect("stored").0, b"own");
    assert_eq!(store.apps_with(&key).await.expect("a listing"), Some(vec!["other.app".to_owned()]));
    assert_eq!(other.apps_with(&document("b")).await.expect("a listing"), Some(Vec::new()));
    assert_ne!(store.location(&key), other.location(&key));
    let again = store.of_app("other.app").expect("the same store");
    assert_eq!(content(&*again, &key).await.expect("stored").0, b"other");
}

async fn keys_are_listed_by_name_and_foreign_names_are_left_out(store: &dyn StateStore) {
    assert_eq!(store.list().await.expect("an empty store lists"), []);
    let key = KeyId::parse(&"0f".repeat(16)).expect("an id");
    let quarantined = StateKey::Quarantined { poller: "a".to_owned(), key };
    let keys = [document("a"), document("b"), StateKey::Marker("a".to_owned()), quarantined];
    for key in keys.iter().rev() {
        create(store, key, b"{}").await;
    }
    assert_eq!(store.list().await.expect("a store lists"), keys);
}

async fn a_removed_document_is_gone_and_a_stale_tag_removes_nothing(store: &dyn StateStore) {
    let key = document("a");
    let stale = create(store, &key, b"1").await;
    let fresh = store.store(&key, b"2".to_vec(), Precondition::Matches(stale.clone())).await;
    let fresh = fresh.expect("a fresh tag is accepted").etag;
    let refused = store.remove(&key, &stale).await;
    assert!(is_conflict(&refused), "a stale tag removes nothing: {refused:?}");
    assert!(content(store, &key).await.is_some());
    store.remove(&key, &fresh).await.expect("a fresh tag removes");
    assert_eq!(content(store, &key).await, None, "a removed value is gone");
    let again = store.remove(&key, &fresh).await;
    assert!(is_conflict(&again), "a second removal conflicts: {again:?}");
    create(store, &key, b"3").await;
}

async fn unusual_names_are_stored_separately_or_rejected(store: &dyn StateStore) {
    let names = ["a/b", "../a", "a b", "ä", "a%2Fb", "a?b#c", "A"];
    let mut kept = Vec::new();
    create(store, &document("a"), b"a").await;
    for name in names {
        let bytes = name.as_bytes().to_vec();
        match store.store(&document(name), bytes, Precondition::Absent).await {
            Ok(_) => kept.push(name),
            Err(StoreError::Refused { .. }) => {}
            Err(error) => panic!("name `{name}` is neither stored nor rejected: {error}"),
        }
    }
    for name in kept.into_iter().chain(["a"]) {
        let found = content(store, &document(name)).await.expect("stored").0;
        assert_eq!(found, name.as_bytes(), "name `{name}` is stored separately");
    }
}

async fn damaged_content_is_returned_unchanged(store: &dyn StateStore) {
    for (name, bytes) in
        [("empty", &b""[..]), ("cut", b"{\"version\": 1, "), ("binary", b"\xFF\x00")]
    {
        create(store, &document(name), bytes).await;
        assert_eq!(content(store, &document(name)).await.expect("stored").0, bytes, "{name}");
    }
}

async fn times_come_from_the_service_and_move_forward(store: &dyn StateStore) {
    let key = document("a");
    let before = store.load(&key).await.expect("a load succeeds").date;
    let written = store.store(&key, b"1".to_vec(), Precondition::Absent).await.expect("created");
    let loaded = store.load(&key).await.expect("a load succeeds");
    let last_modified = loaded.stored.expect("stored").last_modified;
    assert!(before <= written.date && written.date <= loaded.date, "dates move forward");
    let grain = store.grain();
    assert!(
        last_modified >= before - grain && last_modified <= loaded.date + grain,
        "the time of the write is between the surrounding reads"
    );
}

async fn error_texts_name_the_poller(store: &dyn StateStore) {
    create(store, &document("invoices"), b"1").await;
    let again = store.store(&document("invoices"), b"2".to_vec(), Precondition::Absent).await;
    let text = again.expect_err("the second creation conflicts").to_string();
    assert!(text.contains("invoices"), "`{text}` names the poller");
}

async fn of_racing_creators_one_wins<S: StateStore + 'static>(store: Arc<S>) {
    let tasks: Vec<_> = (0..8_u8)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                store.store(&document("a"), vec![n], Precondition::Absent).await.is_ok()
            })
        })
        .collect();
    let mut winners = 0;
    for task in tasks {
        winners += u32::from(task.await.expect("a racing task ends"));
    }
    assert_eq!(winners, 1, "exactly one of the racing creators wins");
}

const WRITERS: u32 = 5;
const INCREMENTS: u32 = 10;

async fn racing_increments_all_count<S: StateStore + 'static>(store: Arc<S>) {
    create(&*store, &document("a"), b"0").await;
    let tasks: Vec<_> = (0..WRITERS)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..INCREMENTS {
                    // A failed round means that another writer succeeded, so this many rounds suffice.
                    increment(&*store, &document("a"), WRITERS * INCREMENTS).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a racing task ends");
    }
    let total = content(&*store, &document("a")).await.expect("stored").0;
    assert_eq!(
        String::from_utf8_lossy(&total),
        (WRITERS * INCREMENTS).to_string(),
        "no increment is lost"
    );
}

/// Adds one to the number under `key`, in at most `rounds_max` rounds of read and swap.
pub async fn increment(store: &dyn StateStore, key: &StateKey, rounds_max: u32) {
    for _ in 0..rounds_max {
        let (bytes, etag) = content(store, key).await.expect("stored");
        let next = String::from_utf8_lossy(&bytes).parse::<u32>().expect("a number") + 1;
        let bytes = next.to_string().into_bytes();
        match store.store(key, bytes, Precondition::Matches(etag)).await {
            Ok(_) => return,
            Err(StoreError::Conflict { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("an increment fails: {error}"),
        }
    }
    panic!("an increment never won");
}
