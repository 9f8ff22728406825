//! Mode `integer+pk`: its mark outlives every process.

use std::time::Duration;

use highwater::cursor::{Cursor, SourceState};
use highwater::error::chain;
use highwater::poller::{Operator, TickOutcome};
use highwater::source::mssql::{Mssql, SizeLimits};
use highwater::source::{FetchWindow, Rows, Source as _};
use highwater::tick::TickRequest;

use crate::ticks::{Ticks, commit};

const NUMBERED: &str =
    "CREATE TABLE dbo.t (id int IDENTITY NOT NULL PRIMARY KEY, note nvarchar(9) NULL)";

#[tokio::test]
async fn a_mark_settles_even_if_each_tick_has_its_own_process() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b'), ('c')").await;
    assert_eq!(
        ticks.tick_at(0).await,
        (vec![], 2),
        "the mark is written at once, over a blank one"
    );
    assert_eq!(ticks.tick_at(4).await, (vec![], 0), "it has not settled");
    ticks.run("INSERT INTO dbo.t (note) VALUES ('d')").await;
    let (ids, writes) = ticks.tick_at(5).await;
    assert_eq!(ids, [1, 2, 3], "two batches of the rows from before the mark");
    assert_eq!(writes, 4, "marker, acquire, two commits: the next mark rides on one of them");
    assert_eq!(ticks.tick_at(10).await, (vec![4], 2));
    assert_eq!(ticks.tick_at(16).await, (vec![], 0), "idle ticks write nothing");
}

#[tokio::test]
async fn rows_without_a_mark_are_counted_as_pending() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a')").await;
    ticks.tick_at(0).await;
    assert_eq!(ticks.tick_at(6).await.0, [1]);
    let document = ticks.document().await;
    let window = FetchWindow {
        after: document.checkpoint.cursor.as_ref(),
        upto: None,
        rows_max: 1,
        state: &document.source_state,
    };
    let source = Mssql::new(ticks.settings.clone()).unwrap();
    assert!(!source.has_rows_behind(window).await.unwrap(), "all are delivered");
    // The timer is off: no tick records the new number, so no mark ever settles.
    ticks.at(7).await.run("INSERT INTO dbo.t (note) VALUES ('b')").await;
    assert_eq!(source.fetch(window).await.unwrap().rows, []);
    assert!(source.has_rows_behind(window).await.unwrap());
}

#[tokio::test]
async fn rows_committed_late_within_the_window_are_not_skipped() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    let late = ticks.at(0).await.begin("INSERT INTO dbo.t (note) VALUES ('late')").await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('early')").await;
    assert_eq!(ticks.tick().await.0, [0; 0]);
    commit(late).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
}

#[tokio::test]
async fn a_truncated_response_moves_no_mark() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks
        .at(10)
        .await
        .run("INSERT INTO dbo.t (note) VALUES ('abcdefghi'), ('bcdefghi'), ('cdefghi')")
        .await;
    let state = settled_at_three();
    let window = FetchWindow { after: None, upto: None, rows_max: 10, state: &state };
    for (value_bytes_max, batch_bytes_max, count) in [(99, 1_700, 3), (99, 1_200, 2), (99, 20, 1)] {
        ticks.settings.limits = SizeLimits { value_bytes_max, batch_bytes_max };
        let rows = Mssql::new(ticks.settings.clone()).unwrap().fetch(window).await.unwrap();
        assert_eq!((rows.rows.len(), rows.more), (count, count < 3));
        assert_eq!(settles(&rows), count == 3, "{rows:?}");
    }
    ticks.run("UPDATE dbo.t SET note = 'a' WHERE id = 1").await;
    ticks.settings.limits = SizeLimits { value_bytes_max: 14, batch_bytes_max: 9_999 };
    let rows = Mssql::new(ticks.settings.clone()).unwrap().fetch(window).await.unwrap();
    let unreadable = rows.rows.iter().filter(|row| row.unreadable.is_some()).count();
    assert_eq!((rows.rows.len(), rows.more, unreadable), (3, false, 1), "a value is too long");
}

#[tokio::test]
async fn a_range_is_read_in_full_if_its_columns_fit() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.at(10).await.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b'), ('c')").await;
    let state = settled_at_three();
    ticks.settings.limits = SizeLimits { value_bytes_max: 99, batch_bytes_max: 120 };
    let source = Mssql::new(ticks.settings.clone()).unwrap();
    let upto = Cursor::integer(3, [("id", 3.into())].into_iter().collect());
    let window = FetchWindow { after: None, upto: Some(&upto), rows_max: 10, state: &state };
    assert_eq!(source.fetch(window).await.unwrap().rows.len(), 3);
    // Elsewhere room is reserved for the parts of events other than columns.
    let window = FetchWindow { upto: None, ..window };
    assert_eq!(source.fetch(window).await.unwrap().rows.len(), 1);
}

/// The source state after the mark over three rows has settled.
fn settled_at_three() -> SourceState {
    SourceState::from_iter([
        ("waiting".to_owned(), "3".into()),
        ("taken_at".to_owned(), "2026-01-01T10:00:00".into()),
    ])
}

/// Whether a mark settles.
fn settles(rows: &Rows) -> bool {
    rows.remember.as_ref().is_some_and(|remember| remember.state.contains_key("settled"))
}

#[tokio::test]
async fn late_commits_are_lost_without_the_settle_window() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.settings.settle = Duration::ZERO;
    let late = ticks.at(0).await.begin("INSERT INTO dbo.t (note) VALUES ('late')").await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('early')").await;
    assert_eq!(ticks.tick().await.0, [2]);
    commit(late).await;
    assert_eq!(ticks.tick_at(16).await.0, [0; 0], "row 1 is lost");
}

#[tokio::test]
async fn a_failed_batch_of_numbers_is_reread_unchanged() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b')").await;
    ticks.tick_at(0).await;
    ticks.handler.then_fail(highwater::handler::HandlerError::Retryable("503".to_owned()));
    ticks.failure_at(5).await;
    // Even if the source state is gone.
    let mut document = ticks.document().await;
    document.source_state.clear();
    ticks.overwrite(&document).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
    let received = ticks.handler.received();
    assert_eq!(received[0].batch_id, received[1].batch_id);
}

#[tokio::test]
async fn a_reseeded_identity_stops_the_poller() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b')").await;
    ticks.tick_at(0).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
    // Deleted rows are not a reason to stop.
    ticks.run("DELETE FROM dbo.t").await;
    assert_eq!(ticks.tick_at(6).await.0, [0; 0]);
    // Another process writes the document that this one has cached.
    let (operator, cli) = (Operator { by: "ann", reason: "maintenance" }, ticks.process());
    cli.admin().pause(operator).await.unwrap();
    cli.admin().resume(operator).await.unwrap();
    ticks.run("TRUNCATE TABLE dbo.t; INSERT INTO dbo.t (note) VALUES ('z')").await;
    let report = ticks.report().await;
    let error = chain(report.result.as_ref().unwrap_err());
    assert!(error.contains("checkpoint is at `2`, the last identity of `dbo.t` is `1`"), "{error}");
    let row = highwater::poller::outcome_row(&report.result);
    assert_eq!((row.event, row.status), ("position_lost", 500));
    assert_eq!(ticks.document().await.checkpoint.cursor.unwrap().value, "2");
    // Once the numbers have passed the checkpoint the table looks intact again, but is not.
    ticks.run("INSERT INTO dbo.t (note) VALUES ('y'), ('x')").await;
    let error = ticks.failure_at(12).await;
    assert!(error.contains("checkpoint is at `2`, the last identity of `dbo.t` is `1`"), "{error}");
    assert!(
        error.contains("`highwater reset orders to-beginning --reason \"position lost\"`"),
        "{error}"
    );
    ticks.recovers(&error).await;
}

/// The gap that docs/reference/sources.md describes: nothing on the server distinguishes such a table from
/// the old one.
#[tokio::test]
async fn a_truncated_table_that_grows_past_the_checkpoint_between_ticks_is_not_noticed() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b')").await;
    ticks.tick_at(0).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
    ticks.run("TRUNCATE TABLE dbo.t; INSERT INTO dbo.t (note) VALUES ('x'), ('y'), ('z')").await;
    ticks.tick_at(10).await;
    assert_eq!(ticks.tick_at(15).await.0, [3], "rows 1 and 2 are missed");
}

#[tokio::test]
async fn a_reset_to_now_replaces_a_position_that_the_table_has_not_reached() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b'), ('c')").await;
    ticks.tick_at(0).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2, 3]);
    ticks.run("TRUNCATE TABLE dbo.t; INSERT INTO dbo.t (note) VALUES ('z')").await;
    let error = ticks.failure_at(6).await;
    assert!(!error.contains(" keep "), "{error}");
    let done = ticks.follow_nth(&error, 1).await.unwrap();
    assert_eq!(done, "highwater reset orders to-now --skip-rows --reason \"position lost\"");
    assert_eq!(ticks.document().await.checkpoint.cursor.unwrap().value, "1");
    ticks.run("INSERT INTO dbo.t (note) VALUES ('y')").await;
    ticks.tick_at(12).await;
    assert_eq!(ticks.tick_at(20).await.0, [2]);
}

#[tokio::test]
async fn a_recreated_table_stops_the_poller_even_if_it_grew_past_the_checkpoint() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('a'), ('b')").await;
    ticks.tick_at(0).await;
    assert_eq!(ticks.tick_at(5).await.0, [1, 2]);
    ticks.run(&format!("DROP TABLE dbo.t; {NUMBERED}")).await;
    ticks.run("INSERT INTO dbo.t (note) VALUES ('p'), ('q'), ('r'), ('s'), ('t')").await;
    ticks.failure_at(15).await;
    let error = ticks.failure_at(25).await;
    assert_eq!(ticks.handler.ids(), [1, 2], "{error}");
    ticks.recovers(&error).await;
}

#[tokio::test]
async fn one_process_needs_no_more_writes_for_its_marks() {
    let mut ticks = Ticks::numbered(NUMBERED).await;
    let poller = ticks.process();
    let mut expected = Vec::new();
    for round in 0..5 {
        ticks.run("INSERT INTO dbo.t (note) VALUES ('a')").await;
        ticks.at(round * 10).await;
        let report = poller.tick(&TickRequest::default()).await;
        assert!(report.result.is_ok(), "{}", report.summary);
        assert_eq!(ticks.handler.ids(), expected);
        expected.push(i64::from(round) + 1);
    }
    let outcome = poller.tick(&TickRequest::default()).await.result.unwrap();
    assert_eq!(outcome, TickOutcome::Idle);
}

crate::ticks::also_cold![
    a_mark_settles_even_if_each_tick_has_its_own_process,
    rows_without_a_mark_are_counted_as_pending,
    rows_committed_late_within_the_window_are_not_skipped,
    late_commits_are_lost_without_the_settle_window,
    a_failed_batch_of_numbers_is_reread_unchanged,
    a_reseeded_identity_stops_the_poller,
    a_truncated_table_that_grows_past_the_checkpoint_between_ticks_is_not_noticed,
    a_reset_to_now_replaces_a_position_that_the_table_has_not_reached,
    a_recreated_table_stops_the_poller_even_if_it_grew_past_the_checkpoint,
    one_process_needs_no_more_writes_for_its_marks,
];
