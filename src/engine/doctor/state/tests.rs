use std::sync::Arc;
use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::clock::TokioClock;
use crate::cursor::{Cursor, SourceDefinition};
use crate::doctor::Level;
use crate::document::{Fence, Generation, Paused, encode, encode_marker};
use crate::event::SourceLabel;
use crate::store::{MemoryStore, Precondition};
use crate::testing::{Call, Fault, FaultyStore};

/// The clock that the store in memory has.
fn clock() -> TokioClock {
    TokioClock::starting_at(datetime!(2026-01-01 0:00 UTC))
}

fn source(name: &str) -> SourceFingerprint {
    SourceFingerprint::of(&[("object", name)])
}

fn definition(name: &str) -> SourceDefinition {
    SourceDefinition::of(&[("object", name)])
}

/// A source that the position of [`document`] has a place in.
fn shape(name: &str) -> SourceShape {
    SourceShape {
        label: SourceLabel {
            poller: "orders".to_owned(),
            object: name.to_owned(),
            mode: CursorMode::IntegerPk.as_str(),
        },
        mode: CursorMode::IntegerPk,
        key: vec!["id".to_owned()],
        fingerprint: source(name),
        definition: definition(name),
    }
}

fn judged(document: &StateDocument, name: &str) -> Finding {
    fingerprint(document, &shape(name))
}

fn document() -> StateDocument {
    let mut document = StateDocument::new("orders", source("t"), Generation(7));
    document.checkpoint.cursor = Some(Cursor::integer(42, KeyValues::new()));
    document.marked = true;
    document
}

fn expected() -> Expected<'static> {
    let on_missing_state = OnMissingState::Stop;
    Expected { poller: "orders", start_now: false, on_missing_state, parks: false }
}

async fn put(store: &MemoryStore, key: StateKey, bytes: Vec<u8>) {
    store.store(&key, bytes, Precondition::Absent).await.unwrap();
}

async fn store_of(document: Option<&[u8]>, marker: Option<u64>) -> MemoryStore {
    let store = MemoryStore::default();
    if let Some(bytes) = document {
        put(&store, StateKey::Document("orders".to_owned()), bytes.to_vec()).await;
    }
    if let Some(generation) = marker {
        let marker = Marker {
            poller_name: "orders".to_owned(),
            generation: Generation(generation),
            created_at: datetime!(2026-01-01 10:00 UTC),
        };
        put(&store, StateKey::Marker("orders".to_owned()), encode_marker(&marker)).await;
    }
    store
}

/// Findings that are not good, and the level and text of the one for `check`.
async fn found(store: &MemoryStore, expected: Expected<'_>, check: &str) -> (Level, String) {
    let examined = examine(store, expected, &clock()).await;
    let finding = examined.findings.into_iter().find(|finding| finding.check == check);
    let finding = finding.unwrap_or_else(|| panic!("no finding `{check}`"));
    (finding.level, format!("{} | {}", finding.found, finding.fix.unwrap_or_default()))
}

#[tokio::test]
async fn a_missing_document_is_a_first_start_unless_its_marker_contradicts() {
    let now = Expected { start_now: true, ..expected() };
    let recreate = Expected { on_missing_state: OnMissingState::Recreate, ..expected() };
    for (marker, expected, level, words) in [
        (None, expected(), Level::Ok, "starts at the beginning"),
        (None, now, Level::Warning, "run `highwater init orders` once"),
        (Some(7), expected(), Level::Error, "the poller has run since 2026-01-01T10:00:00Z"),
        (Some(7), recreate, Level::Warning, "redelivers everything"),
    ] {
        let store = store_of(None, marker).await;
        let (found, text) = found(&store, expected, DOCUMENT).await;
        assert!(found == level && text.contains(words), "{found}: {text}");
    }
}

#[tokio::test]
async fn a_document_is_read_and_described_or_rejected() {
    let store = store_of(Some(&encode(&document())), Some(7)).await;
    let examined = examine(&store, expected(), &clock()).await;
    assert_eq!(examined.document, Some(document()));
    assert!(examined.findings.iter().all(|f| f.level == Level::Ok), "{:?}", examined.findings);
    let (_, text) = found(&store, expected(), DOCUMENT).await;
    assert!(text.contains("checkpoint `42` of mode `integer+pk`"), "{text}");
    let store = store_of(Some(b"{\"version\": 1"), Some(7)).await;
    let (level, text) = found(&store, expected(), DOCUMENT).await;
    assert!(level == Level::Error && text.contains("is not JSON"), "{text}");
    let blank = StateDocument::blank("orders", source("t"));
    let store = store_of(Some(&encode(&blank)), None).await;
    let now = Expected { start_now: true, ..expected() };
    assert_eq!(found(&store, now, DOCUMENT).await.0, Level::Warning);
}

#[tokio::test]
async fn a_blank_document_in_place_of_a_vanished_one_is_a_loss() {
    let mut blank = StateDocument::blank("orders", source("t"));
    blank.paused = Some(Paused {
        by: "ann".to_owned(),
        reason: "a move".to_owned(),
        at: datetime!(2026-01-01 10:00 UTC),
        extra: serde_json::Map::new(),
    });
    let store = store_of(Some(&encode(&blank)), Some(7)).await;
    let (level, text) = found(&store, expected(), DOCUMENT).await;
    assert!(level == Level::Error && text.contains("gone, but the poller has run"), "{text}");
    let store = store_of(Some(&encode(&blank)), None).await;
    assert_eq!(found(&store, expected(), DOCUMENT).await.0, Level::Ok, "it never ran");
}

#[tokio::test]
async fn the_marker_has_to_match_the_document() {
    for (marker, level, words) in [
        (Some(7), Level::Ok, "would be detected"),
        (Some(8), Level::Warning, "was replaced with an older one"),
        (None, Level::Warning, "gone"),
    ] {
        let store = store_of(Some(&encode(&document())), marker).await;
        let (found, text) = found(&store, expected(), "state marker").await;
        assert!(found == level && text.contains(words), "{found}: {text}");
    }
}

#[tokio::test]
async fn a_pause_and_a_failing_batch_are_warnings() {
    let mut held = document();
    held.paused = Some(Paused {
        by: "ann".to_owned(),
        reason: "a move".to_owned(),
        at: datetime!(2026-01-01 10:00 UTC),
        extra: serde_json::Map::new(),
    });
    held.lease.owner_id = Some("app/one".to_owned());
    held.lease.fencing_token = FencingToken(3);
    held.lease.ttl_seconds = 120;
    let store = store_of(Some(&encode(&held)), Some(7)).await;
    let (level, text) = found(&store, expected(), "pause").await;
    assert!(level == Level::Warning && text.contains("by `ann`") && text.contains("a move"));
    let (level, text) = found(&store, expected(), LEASE).await;
    assert!(
        level == Level::Ok && text.contains("held by `app/one` with fencing token 3"),
        "{text}"
    );
}

#[test]
fn an_expired_lease_is_a_warning() {
    let mut document = document();
    document.lease.owner_id = Some("app/one".to_owned());
    document.lease.ttl_seconds = 120;
    let age =
        |seconds| DocumentAge { since_write: Duration::from_secs(seconds), grain: Duration::ZERO };
    assert_eq!(lease(&document, age(121)).level, Level::Ok);
    assert_eq!(lease(&document, age(122)).level, Level::Warning);
}

#[test]
fn a_checkpoint_of_another_source_is_an_error() {
    assert_eq!(judged(&document(), "t").level, Level::Ok);
    let unnamed = judged(&document(), "u");
    assert!(unnamed.level == Level::Error && unnamed.found.contains("sha256:"), "{unnamed:?}");
    let named = StateDocument { source_definition: definition("t"), ..document() };
    let named = judged(&named, "u");
    assert!(named.found.ends_with("object was `t`, is now `u`"), "{named:?}");
    let blank = StateDocument::blank("orders", source("t"));
    assert_eq!(judged(&blank, "u").level, Level::Ok);
}

#[test]
fn a_position_is_offered_to_be_kept_only_if_the_source_can_read_it() {
    let fix = |mode, key: &[&str]| {
        let mut document = document();
        let key_values = [("id".to_owned(), 7.into())].into_iter().collect();
        document.checkpoint.cursor = Some(Cursor::integer(42, key_values));
        let key = key.iter().map(|&column| column.to_owned()).collect();
        fingerprint(&document, &SourceShape { mode, key, ..shape("u") }).fix.unwrap()
    };
    let same = fix(CursorMode::IntegerPk, &["id"]);
    assert!(same.contains("`highwater reset orders keep --new-source "), "{same}");
    for other in [
        fix(CursorMode::IntegerPk, &["id", "other"]),
        fix(CursorMode::IntegerPk, &["other"]),
        fix(CursorMode::RowVersion, &["id"]),
    ] {
        assert!(!other.contains(" keep "), "{other}");
        for to in ["to-beginning --new-source", "to-now --new-source --skip-rows"] {
            assert!(
                other.contains(&format!("`highwater reset orders {to} --reason \"")),
                "{other}"
            );
        }
    }
}

#[tokio::test]
async fn a_position_that_was_lost_is_an_error_until_a_reset() {
    let age = DocumentAge { since_write: Duration::ZERO, grain: Duration::ZERO };
    let lost = document().losing_position("changes were cleaned up", age);
    let store = store_of(Some(&encode(&lost)), Some(7)).await;
    let (level, text) = found(&store, expected(), "lost position").await;
    assert_eq!(level, Level::Error);
    assert!(text.contains("`highwater reset orders to-beginning --reason"), "{text}");
}

#[tokio::test]
async fn a_target_that_is_ahead_is_an_error_until_an_operator_raises_the_grants() {
    let mut refused = document();
    let generation = refused.generation;
    refused.lease.target_fence = Some(Fence { generation, token: FencingToken(99) });
    let store = store_of(Some(&encode(&refused)), Some(7)).await;
    let (level, text) = found(&store, expected(), "target's fence").await;
    assert_eq!(level, Level::Error);
    let command = format!("`highwater lease break orders --above {generation}.99 --reason");
    assert!(text.contains(&command), "{text}");
}

#[test]
fn a_silent_store_is_unreachable_and_a_rejecting_one_is_not() {
    let (key, reason) = (String::new(), "no route".to_owned());
    assert!(
        unread(&StoreError::Unreachable { key: key.clone(), reason: reason.clone() }).unreachable
    );
    let refused = unread(&StoreError::Refused { key, reason });
    assert!(!refused.unreachable && refused.level == Level::Error);
}

#[tokio::test]
async fn a_first_start_names_the_app_that_has_delivered_the_same_source() {
    let store = MemoryStore::default();
    let put_of = |app: &'static str, bytes: Vec<u8>| {
        let other = store.of_app(app).unwrap();
        async move {
            let key = StateKey::Document("orders".to_owned());
            other.store(&key, bytes, Precondition::Absent).await.unwrap();
        }
    };
    put_of("same", encode(&document())).await;
    // Written later, but of another source, or of none at all.
    let other = StateDocument { source_fingerprint: source("u"), ..document() };
    put_of("other", encode(&other)).await;
    put_of("blank", encode(&StateDocument::blank("orders", source("t")))).await;
    put_of("damaged", b"{".to_vec()).await;
    let examined = examine(&store, expected(), &clock()).await;
    assert!(examined.is_first_start);
    let found = other_apps(&store, "orders", Some(&source("t"))).await;
    let levels: Vec<_> = found.iter().map(|finding| finding.level).collect();
    assert_eq!(levels, [Level::Unknown, Level::Warning]);
    assert!(found[0].found.contains("`damaged/orders.json`: "), "{found:?}");
    let fix = found[1].fix.as_deref().unwrap();
    assert!(fix.contains("`highwater clone orders --from-app same "), "{found:?}");
    let unrelated = other_apps(&store, "orders", Some(&source("v"))).await;
    assert_eq!(unrelated.iter().filter(|it| it.level == Level::Warning).count(), 0);
}

#[tokio::test]
async fn a_poller_that_parks_keys_needs_the_rights_to_list_and_to_delete() {
    let parks = Expected { parks: true, ..expected() };
    let memory = store_of(Some(&encode(&document())), Some(7)).await;
    assert_eq!(found(&memory, parks, "parked keys").await.0, Level::Ok);
    assert_eq!(memory.list().await.unwrap().len(), 2, "nothing is changed");
    let store = FaultyStore::new(Arc::new(memory));
    store.break_next(Call::Remove, Fault::Refused);
    let examined = examine(&store, parks, &clock()).await;
    let finding = examined.findings.into_iter().find(|it| it.check == "parked keys").unwrap();
    assert_eq!(finding.level, Level::Error, "{finding:?}");
}
