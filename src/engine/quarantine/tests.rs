use super::*;
use crate::cursor::RowVersion;
use crate::document::FencingToken;
use crate::event::{BatchIdentity, EventsDigest, SourceLabel};
use crate::store::{MemoryStore, Precondition, StateStore as _, StoreError};
use crate::value::Value;

fn event(text: &str) -> ChangeEvent {
    version(1, Operation::Upsert, text)
}

fn version(version: u64, op: Operation, text: &str) -> ChangeEvent {
    let mut key = KeyValues::new();
    key.insert("id".to_owned(), 7.into());
    let source = SourceLabel {
        poller: "orders".to_owned(),
        object: "dbo.orders".to_owned(),
        mode: "rowversion",
    };
    let name = Value::Text(text.to_owned());
    let cursor = Cursor::row_version(RowVersion(version), key);
    ChangeEvent::encode(&source, op, cursor, &[("name", &name)])
}

fn stored(event: &ChangeEvent) -> (StateKey, Vec<u8>) {
    let entry = entry(event, "422");
    (entry.state_key(), entry.encode())
}

fn entry(event: &ChangeEvent, last_error: &str) -> Entry {
    let holder =
        Holder { generation: Generation(3), owner_id: "app@1".to_owned(), token: FencingToken(9) };
    let batch_id = BatchId::of(&BatchIdentity {
        poller: "orders",
        generation: 3,
        replay_id: None,
        after: None,
        upto: &event.cursor,
        digest: &EventsDigest::of(std::slice::from_ref(event)),
    });
    let row = QuarantinedRow {
        poller: "orders",
        batch_id: &batch_id,
        holder: &holder,
        reason: Reason::Refused,
        attempts: 2,
        crashes: 0,
        first_failed_at: OffsetDateTime::UNIX_EPOCH,
        quarantined_at: OffsetDateTime::UNIX_EPOCH,
        first_error: "503",
        last_error,
    };
    row.entry(event)
}

#[test]
fn an_entry_reads_back_with_the_row_as_it_was_delivered() {
    let event = event("x");
    let (key, bytes) = stored(&event);
    assert_eq!(key.path(), format!("orders.quarantine.{}.json", KeyId::of(&event.cursor.key)));
    let read = decode(&key, &bytes).unwrap();
    assert_eq!(read.events[0].get(), event.json.as_str());
    assert_eq!((read.first_error.as_str(), read.error.as_str()), ("503", "422"));
    assert_eq!((read.reason, read.attempts, read.fencing_token), (Reason::Refused, 2, 9));
}

#[test]
fn a_row_that_is_too_large_to_keep_is_kept_by_reference() {
    let event = event(&"x".repeat(EVENT_BYTES_MAX));
    let (key, bytes) = stored(&event);
    assert!(bytes.len() < 4096, "{}", bytes.len());
    let read = decode(&key, &bytes).unwrap();
    assert!(read.without_columns);
    assert!(read.events[0].get().contains(r#""pk":{"id":7}"#), "{}", read.events[0]);
}

#[test]
fn an_invalid_entry_is_an_error_that_names_it() {
    let (key, bytes) = stored(&event("x"));
    let damaged = decode(&key, &bytes[..40]).unwrap_err();
    assert!(damaged.to_string().contains(&key.path()), "{damaged}");
    let text = String::from_utf8(bytes).unwrap().replace("\"version\": 2", "\"version\": 3");
    let newer = decode(&key, text.as_bytes()).unwrap_err().to_string();
    assert!(newer.contains("has version 3"), "{newer}");
}

#[test]
fn an_entry_under_another_ones_name_is_an_error() {
    let (_, bytes) = stored(&event("x"));
    let elsewhere = StateKey::parse(&format!("orders.quarantine.{:032}.json", 7)).unwrap();
    let misplaced = decode(&elsewhere, &bytes).unwrap_err().to_string();
    assert!(misplaced.contains("does not match its name"), "{misplaced}");
}

#[test]
fn an_entry_without_its_event_is_an_error() {
    let (key, bytes) = stored(&event("x"));
    let with = |events: serde_json::Value| {
        let mut entry: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        entry["events"] = events;
        decode(&key, entry.to_string().as_bytes()).unwrap_err().to_string()
    };
    let mut other: serde_json::Value = serde_json::from_str(&event("x").json).unwrap();
    other["id"] = format!("{:032}", 7).into();
    for (events, expected) in [
        (serde_json::json!([]), "holds 0 events"),
        (serde_json::json!(["x"]), "invalid type"),
        (serde_json::json!([other]), "holds event `0"),
    ] {
        let text = with(events);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn an_entry_of_the_first_form_is_an_error_that_says_what_to_do() {
    let (key, _) = stored(&event("x"));
    let text = decode(&key, br#"{"version": 1, "event_id": "x"}"#).unwrap_err().to_string();
    assert!(text.contains("has version 1") && text.contains("then redrive its key"), "{text}");
}

#[test]
fn an_entry_covers_its_version_and_older_ones_and_keeps_the_first_failure() {
    let [first, second, deleted] = [
        version(5, Operation::Upsert, "a"),
        version(6, Operation::Upsert, "b"),
        version(7, Operation::Delete, "b"),
    ];
    let [old, same] = [version(4, Operation::Upsert, "z"), first.clone()];
    let known = Entry { first_error: "500".to_owned(), ..entry(&first, "503") };
    for covered in [old, same] {
        assert!(known.joined_by(&entry(&covered, "422")).unwrap().is_none(), "{covered:?}");
    }
    let joined = known.joined_by(&entry(&second, "422")).unwrap().unwrap();
    assert_eq!((&joined.event_id, joined.versions), (&second.id, 2));
    assert_eq!((joined.first_error.as_str(), joined.error.as_str()), ("500", "422"));
    let joined = joined.joined_by(&entry(&deleted, "422")).unwrap().unwrap();
    assert_eq!((joined.event().unwrap().op, joined.versions), (Operation::Delete, 3));
    // In some modes a deletion has the position of the version before.
    let deleted = version(6, Operation::Delete, "b");
    let known = entry(&second, "422");
    let joined = known.joined_by(&entry(&deleted, "422")).unwrap().unwrap();
    assert_eq!(joined.event().unwrap().op, Operation::Delete);
}

fn read_by<'a>(event: &'a ChangeEvent, holder: &'a Holder) -> VersionRead<'a> {
    VersionRead { event, holder, at: OffsetDateTime::UNIX_EPOCH }
}

#[test]
fn the_version_read_last_counts_unless_a_holder_read_it_that_had_lost_its_lease() {
    let [older, newer] = [version(4, Operation::Upsert, "a"), version(5, Operation::Upsert, "b")];
    let holder = |generation, token| Holder {
        generation: Generation(generation),
        owner_id: "app@1".to_owned(),
        token: FencingToken(token),
    };
    // Of generation 3, token 9.
    let known = entry(&newer, "422");
    for same_or_later in [holder(3, 9), holder(3, 10), holder(4, 1)] {
        let read = known.with_version(&read_by(&older, &same_or_later)).unwrap().unwrap();
        assert_eq!((&read.event_id, read.versions), (&older.id, 2));
        let grant = (read.generation, read.fencing_token);
        assert_eq!(grant, (same_or_later.generation.0, same_or_later.token.0));
    }
    for stale in [holder(3, 8), holder(2, 100)] {
        assert!(known.with_version(&read_by(&older, &stale)).unwrap().is_none());
        let known = entry(&older, "422");
        assert!(
            known.with_version(&read_by(&newer, &stale)).unwrap().is_some(),
            "it covers no later one"
        );
    }
}

#[tokio::test]
async fn versions_of_a_key_are_recorded_in_one_entry_and_only_a_damaged_one_is_replaced() {
    let store = MemoryStore::default();
    let [first, second] = [version(1, Operation::Upsert, "a"), version(2, Operation::Upsert, "b")];
    for event in [&first, &first, &second, &first] {
        record(&store, &entry(event, "422"), None).await.unwrap();
    }
    let key = entry(&first, "422").state_key();
    assert_eq!(store.list().await.unwrap(), std::slice::from_ref(&key));
    let found = store.load(&key).await.unwrap().stored.unwrap();
    let read = decode(&key, &found.bytes).unwrap();
    assert_eq!((read.event_id, read.versions), (second.id.clone(), 2));

    let put = async |etag, bytes: &[u8]| {
        let precondition = Precondition::Matches(etag);
        store.store(&key, bytes.to_vec(), precondition).await.unwrap().etag
    };
    let etag = put(found.etag, b"{\"version\": 3}").await;
    let error = record(&store, &entry(&second, "422"), None).await.unwrap_err();
    assert!(matches!(&error, RecordError::Entry(EntryError::Version { .. })), "{error:?}");
    put(etag, b"{\"mine\": true}").await;
    let found = record(&store, &entry(&second, "422"), None).await.unwrap();
    let Recorded::Damaged(found) = found else { panic!("{found:?}") };
    let replaced = record(&store, &entry(&second, "422"), Some(&found)).await.unwrap();
    assert!(matches!(&replaced, Recorded::Done(Some(EntryError::Form { .. }))), "{replaced:?}");
    let etag = store.load(&key).await.unwrap().stored.unwrap().etag;
    store.remove(&key, &etag).await.unwrap();
    record(&store, &entry(&second, "422"), None).await.unwrap();
    let gone = store.remove(&key, &etag).await;
    assert!(matches!(gone, Err(StoreError::Conflict { .. })), "{gone:?}");
}
