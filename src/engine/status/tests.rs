use time::macros::datetime;

use super::*;
use crate::cursor::SourceFingerprint;
use crate::document::{Generation, StateDocument, encode};
use crate::store::{MemoryStore, Precondition};

fn board(store: Arc<MemoryStore>, schedules: &[(&str, &str)]) -> StatusReader {
    let schedule = |text: &str| vec![Schedule::parse(text).unwrap()];
    let schedules = schedules.iter().map(|(name, text)| ((*name).to_owned(), schedule(text)));
    StatusReader {
        app: "shop".to_owned(),
        state: store,
        pollers: BTreeMap::new(),
        schedules: schedules.collect(),
        disabled: BTreeMap::new(),
    }
}

async fn write(store: &MemoryStore, key: StateKey, bytes: Vec<u8>) {
    store.store(&key, bytes, Precondition::Absent).await.unwrap();
}

async fn stored(store: &MemoryStore, name: &str) {
    let document = StateDocument::new(name, SourceFingerprint::of(&[]), Generation(7));
    write(store, StateKey::Document(name.to_owned()), encode(&document)).await;
}

#[tokio::test(start_paused = true)]
async fn a_report_has_what_the_store_knows_and_when_it_runs_next() {
    let store = Arc::new(MemoryStore::default());
    stored(&store, "orders").await;
    stored(&store, "returns").await;
    write(&store, StateKey::Document("broken".to_owned()), b"{".to_vec()).await;
    let board = board(Arc::clone(&store), &[("orders", "0 0 3 * * *"), ("broken", "0 * * * * *")]);
    let report = board.read(StatusQuery::All).await.unwrap();
    let states: Vec<_> =
        report.pollers.iter().map(|s| (s.poller.as_str(), s.health.state.as_str())).collect();
    assert_eq!(states, [("broken", "failing"), ("orders", "never_ran"), ("returns", "never_ran")]);
    let [broken, orders, returns] = report.pollers.as_slice() else { panic!("{report:?}") };
    let at = report.at.unwrap();
    let next = orders.next_tick_at.unwrap();
    assert!(next > at && next - at <= time::Duration::DAY && next.time().hour() == 3, "{next}");
    assert_eq!(orders.schedule.as_deref(), Some("0 0 3 * * *"));
    assert_eq!((returns.next_tick_at, returns.schedule.as_ref()), (None, None));
    assert_eq!(broken.schedule.as_deref(), Some("0 * * * * *"));
    assert!(broken.last_error.is_some() && broken.next_tick_at.is_none());
}

#[tokio::test(start_paused = true)]
async fn one_poller_is_reported_alone_and_an_unknown_one_is_an_error() {
    let store = Arc::new(MemoryStore::default());
    stored(&store, "orders").await;
    for name in ["returns", "lines__p0", "lines__p1"] {
        stored(&store, name).await;
    }
    let board = board(store, &[]);
    let report = board.read(StatusQuery::One("returns")).await.unwrap();
    assert_eq!(report.pollers.len(), 1);
    let report = board.read(StatusQuery::WithJournal("returns")).await.unwrap();
    assert_eq!(report.pollers[0].journal, None, "no journal is kept");
    let report = board.read(StatusQuery::One("lines")).await.unwrap();
    let names: Vec<&str> = report.pollers.iter().map(|status| status.poller.as_str()).collect();
    assert_eq!(names, ["lines__p0", "lines__p1"], "its parts");
    let error = board.read(StatusQuery::WithJournal("lines")).await.unwrap_err();
    assert!(matches!(error, StatusError::NoPoller(_)), "a view shows one document");
    let error = board.read(StatusQuery::One("weekly")).await.unwrap_err();
    assert!(matches!(&error, StatusError::NoPoller(name) if name == "weekly"));
    assert!(error.text().contains("no poller `weekly`"), "{}", error.text());
}

#[test]
fn the_first_of_several_functions_is_the_next() {
    let schedules = ["0 0 * * * *", "0 */5 * * * *"].map(|text| Schedule::parse(text).unwrap());
    let board = StatusReader {
        schedules: BTreeMap::from([("orders".to_owned(), schedules.to_vec())]),
        ..board(Arc::default(), &[])
    };
    let next = board.next_tick("orders", datetime!(2026-01-01 1:01 UTC));
    assert_eq!(next, Some(datetime!(2026-01-01 1:05 UTC)));
    assert_eq!(board.schedule_text("orders").as_deref(), Some("0 0 * * * *, 0 */5 * * * *"));
}

#[tokio::test(start_paused = true)]
async fn a_finished_range_is_reported_only_if_requested_by_name() {
    let store = Arc::new(MemoryStore::default());
    stored(&store, "orders").await;
    for (name, ended) in [("going", None), ("over", Some("2026-01-01T02:00:00Z"))] {
        let name = format!("orders.replay.{name}");
        let document = StateDocument::new(&name, SourceFingerprint::of(&[]), Generation(7));
        let mut json = serde_json::to_value(&document).unwrap();
        let upto = serde_json::json!({ "kind": "rowversion", "value": "0x0000000000000008", "tiebreaker": { "id": 8 } });
        json["range"] = serde_json::json!({
            "of": "orders", "upto": upto, "begun_at": "2026-01-01T01:00:00Z", "done_at": ended
        });
        write(&store, StateKey::Document(name), json.to_string().into_bytes()).await;
    }
    let board = board(store, &[]);
    let names = |report: Report| -> Vec<String> {
        report.pollers.into_iter().map(|status| status.poller).collect()
    };
    let all = names(board.read(StatusQuery::All).await.unwrap());
    assert_eq!(all, ["orders", "orders.replay.going"]);
    let one = board.read(StatusQuery::One("orders.replay.over")).await.unwrap();
    assert_eq!(one.pollers[0].health.state, PollerState::Done);
}
