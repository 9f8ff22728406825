//! The contract of [`JournalStore`] as tests for any implementation.
//!
//! Each check gets its own empty store from `make`, isolated from all others.

#![expect(clippy::panic, reason = "a broken rule of the contract is a failed test")]

use std::sync::Arc;

use time::macros::date;

use super::{Appended, JournalStore, Part};
use crate::store::StoreError;

/// Runs every check against stores created by `make`.
///
/// # Panics
///
/// If the store violates the contract; the message names the rule.
pub async fn run<S, F>(make: &impl Fn() -> F)
where
    S: JournalStore + 'static,
    F: Future<Output = S>,
{
    a_missing_part_is_empty(&make().await).await;
    appended_entries_are_read_in_order(&make().await).await;
    a_wrong_length_conflicts_and_changes_nothing(&make().await).await;
    parts_are_stored_separately_and_listed_oldest_first(&make().await).await;
    unusual_names_are_stored_separately_or_rejected(&make().await).await;
    a_removed_part_is_gone(&make().await).await;
    a_part_that_has_grown_is_not_removed(&make().await).await;
    large_appends_are_atomic(&make().await).await;
    of_racing_appends_at_one_place_one_wins(Arc::new(make().await)).await;
}

fn part(poller: &str) -> Part {
    Part::of_day(poller, date!(2026 - 04 - 07))
}

async fn append(store: &dyn JournalStore, part: &Part, position: u64, bytes: &[u8]) -> u64 {
    match store.append(part, position, bytes.to_vec()).await {
        Ok(Appended::UpTo(length)) => length,
        other => panic!("an append at the right position is accepted: {other:?}"),
    }
}

async fn content(store: &dyn JournalStore, part: &Part, position: u64) -> Vec<u8> {
    store.read(part, position).await.expect("a read succeeds")
}

async fn a_missing_part_is_empty(store: &dyn JournalStore) {
    let part = part("a");
    assert_eq!(content(store, &part, 0).await, b"", "a missing part is empty");
    assert_eq!(store.length(&part).await.expect("a length"), 0);
    assert_eq!(store.list("a").await.expect("a list"), []);
    store.remove(&part, None).await.expect("a missing part can be removed");
}

async fn appended_entries_are_read_in_order(store: &dyn JournalStore) {
    let part = part("a");
    assert_eq!(append(store, &part, 0, b"one\n").await, 4);
    assert_eq!(append(store, &part, 4, "zw\u{f6}lf\ntwo\n".as_bytes()).await, 15);
    assert_eq!(store.length(&part).await.expect("a length"), 15);
    assert_eq!(content(store, &part, 0).await, "one\nzw\u{f6}lf\ntwo\n".as_bytes());
    assert_eq!(content(store, &part, 11).await, b"two\n", "a read starts at the given position");
    for beyond in [15, 16, 1000] {
        assert_eq!(content(store, &part, beyond).await, b"", "nothing follows the end");
    }
}

async fn a_wrong_length_conflicts_and_changes_nothing(store: &dyn JournalStore) {
    let part = part("a");
    let conflicts = async |position: u64| {
        let result = store.append(&part, position, b"x\n".to_vec()).await;
        let is_conflict = matches!(result, Err(StoreError::Conflict { .. }));
        assert!(is_conflict, "an append at {position} conflicts: {result:?}");
    };
    conflicts(4).await;
    append(store, &part, 0, b"one\n").await;
    for position in [0, 2, 5, 9] {
        conflicts(position).await;
    }
    assert_eq!(content(store, &part, 0).await, b"one\n");
    assert_eq!(append(store, &part, 4, b"two\n").await, 8);
}

async fn parts_are_stored_separately_and_listed_oldest_first(store: &dyn JournalStore) {
    let first = part("a");
    let parts = [first.clone(), first.next(), Part::of_day("a", date!(2026 - 04 - 10))];
    for part in parts.iter().rev() {
        append(store, part, 0, format!("{part}\n").as_bytes()).await;
    }
    append(store, &part("ab"), 0, b"other\n").await;
    assert_eq!(store.list("a").await.expect("a list"), parts, "parts are listed oldest first");
    for part in &parts {
        assert_eq!(content(store, part, 0).await, format!("{part}\n").as_bytes());
    }
}

async fn unusual_names_are_stored_separately_or_rejected(store: &dyn JournalStore) {
    let names = ["a", "A", "../a", "a/b", "a%2Fb", "\u{e4}", ".", ""];
    let mut accepted = Vec::new();
    for name in names {
        match store.append(&part(name), 0, format!("{name}\n").into_bytes()).await {
            Ok(_) => accepted.push(name),
            Err(StoreError::Refused { .. }) => {}
            Err(error) => panic!("an unusual name is accepted or rejected: {error}"),
        }
    }
    for name in accepted {
        assert_eq!(content(store, &part(name), 0).await, format!("{name}\n").as_bytes());
    }
}

async fn a_removed_part_is_gone(store: &dyn JournalStore) {
    let first = part("a");
    append(store, &first, 0, b"one\n").await;
    append(store, &first.next(), 0, b"two\n").await;
    store.remove(&first, None).await.expect("a part can be removed");
    assert_eq!(content(store, &first, 0).await, b"");
    assert_eq!(store.list("a").await.expect("a list"), [first.next()]);
    assert_eq!(append(store, &first, 0, b"new\n").await, 4);
}

async fn a_part_that_has_grown_is_not_removed(store: &dyn JournalStore) {
    let part = part("a");
    let conflicts = async |length: u64| {
        let result = store.remove(&part, Some(length)).await;
        let is_conflict = matches!(result, Err(StoreError::Conflict { .. }));
        assert!(is_conflict, "a part of another length than {length} stays: {result:?}");
    };
    conflicts(4).await;
    append(store, &part, 0, b"one\n").await;
    append(store, &part, 4, b"two\n").await;
    for length in [0, 4, 7, 9] {
        conflicts(length).await;
    }
    assert_eq!(content(store, &part, 0).await, b"one\ntwo\n");
    store.remove(&part, Some(8)).await.expect("a part of this length can be removed");
    assert_eq!(store.list("a").await.expect("a list"), []);
}

async fn large_appends_are_atomic(store: &dyn JournalStore) {
    let line = |length| [vec![b'x'; length], b"\n".to_vec()].concat();
    let (one, other) = (line(300_000), line(70_000));
    let length = append(store, &part("a"), 0, &one).await;
    append(store, &part("a"), length, &other).await;
    assert!(content(store, &part("a"), 0).await == [one, other].concat(), "appends are atomic");
}

async fn of_racing_appends_at_one_place_one_wins<S: JournalStore + 'static>(store: Arc<S>) {
    let racing = (0..8).map(|number| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.append(&part("a"), 0, vec![b'0' + number, b'\n']).await })
    });
    let mut won = 0;
    for racer in racing.collect::<Vec<_>>() {
        match racer.await.expect("no racer panics") {
            Ok(Appended::UpTo(length)) => {
                assert_eq!(length, 2);
                won += 1;
            }
            Err(StoreError::Conflict { .. }) => {}
            other => panic!("a racer wins or conflicts: {other:?}"),
        }
    }
    assert_eq!(won, 1, "exactly one of the racing appends wins");
}
