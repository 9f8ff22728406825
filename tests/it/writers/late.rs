//! A transaction that writes first and commits last, step by step.

use std::sync::Arc;

use highwater::state::MemoryStore;

use super::{Ledger, Polled, TABLE, Verdict, insert, modes::MODES};
use crate::any_server::AnyServer;

/// Longer than any mode waits.
const SETTLED_MS: u64 = 1_500;

#[tokio::test]
async fn a_late_commit_is_delivered_in_every_bounded_mode_and_lost_in_every_other() {
    for mode in MODES {
        let server = AnyServer::start(TABLE).await;
        let (mut early, mut late) = (server.session().await, server.session().await);
        let (polled, mut ledger) = (Polled::new(&server, mode), Ledger::default());

        late.run("BEGIN TRAN").await;
        let first = insert(&mut late, &[1]).await;
        server.pass(10).await;
        ledger.commit(insert(&mut early, &[2]).await);
        server.pass(10).await;
        polled.poll().await;
        assert!(!polled.delivered().contains(&1), "{}: not committed yet", mode.name);
        assert_eq!(polled.delivered().is_empty(), mode.waits, "{}: it waits", mode.name);

        late.run("COMMIT").await;
        ledger.commit(first);
        polled.poll().await;
        server.pass(SETTLED_MS).await;
        polled.poll().await;
        let delivered = polled.delivered();
        let expected: &[i64] = match (mode.bounded, mode.waits) {
            (true, true) => &[1, 2],
            (true, false) => &[2, 1],
            (false, _) => &[2],
        };
        assert_eq!(delivered, expected, "{}", mode.name);
        let lost = usize::from(!mode.bounded);
        let expected =
            Verdict { committed: 2, delivered: 2 - lost, lost, duplicate: 0, phantom: 0 };
        assert_eq!(ledger.judge(&delivered), expected, "{}", mode.name);
    }
}

#[tokio::test]
async fn another_process_finds_a_late_commit_and_redelivers_its_window() {
    for mode in MODES.iter().filter(|mode| mode.audits) {
        let server = AnyServer::start(TABLE).await;
        let store = Arc::new(MemoryStore::with_clock(server.clock()));
        let (mut early, mut late) = (server.session().await, server.session().await);
        let first = Polled::on(store.clone(), &server, mode);
        late.run("BEGIN TRAN").await;
        insert(&mut late, &[1]).await;
        server.pass(10).await;
        insert(&mut early, &[2]).await;
        server.pass(10).await;
        first.poll().await;
        late.run("COMMIT").await;
        let before = first.sink.events();
        drop(first);
        let second = Polled::on(store, &server, mode);
        server.pass(SETTLED_MS).await;
        second.poll().await;
        assert_eq!(second.delivered(), [1, 2], "{}: the whole window", mode.name);
        assert_eq!(second.sink.events()[1..], before, "{}: with its event ids", mode.name);
        server.pass(SETTLED_MS).await;
        second.poll().await;
        assert_eq!(second.delivered().len(), 2, "{}: once", mode.name);
    }
}

#[tokio::test]
async fn a_late_rollback_is_delivered_in_no_mode_and_holds_nothing_back() {
    for mode in MODES {
        let server = AnyServer::start(TABLE).await;
        let (mut early, mut late) = (server.session().await, server.session().await);
        let polled = Polled::new(&server, mode);
        late.run("BEGIN TRAN").await;
        insert(&mut late, &[1]).await;
        server.pass(10).await;
        insert(&mut early, &[2]).await;
        late.run("ROLLBACK").await;
        polled.poll().await;
        server.pass(SETTLED_MS).await;
        polled.poll().await;
        assert_eq!(polled.delivered(), [2], "{}", mode.name);
    }
}

#[tokio::test]
async fn a_late_change_of_a_delivered_row_is_delivered_in_every_bounded_mode() {
    for mode in MODES.iter().filter(|mode| mode.sees_updates) {
        let server = AnyServer::start(TABLE).await;
        let (mut early, mut late) = (server.session().await, server.session().await);
        let polled = Polled::new(&server, mode);
        let row = insert(&mut late, &[1]).await[0].0;
        server.pass(SETTLED_MS).await;
        polled.poll().await;
        assert_eq!(polled.delivered(), [1], "{}", mode.name);
        late.run("BEGIN TRAN").await;
        super::update(&mut late, row, 3).await;
        server.pass(10).await;
        insert(&mut early, &[2]).await;
        server.pass(10).await;
        polled.poll().await;
        late.run("COMMIT").await;
        server.pass(SETTLED_MS).await;
        polled.poll().await;
        let expected: &[i64] = match (mode.bounded, mode.waits) {
            (true, true) => &[1, 3, 2],
            (true, false) => &[1, 2, 3],
            (false, _) => &[1, 2],
        };
        assert_eq!(polled.delivered(), expected, "{}", mode.name);
    }
}

#[test]
fn a_verdict_counts_lost_duplicate_and_invented_rows() {
    let mut ledger = Ledger::default();
    ledger.commit([(1, 10), (2, 20), (3, 30)]);
    ledger.commit([(1, 11)]);
    let verdict = ledger.judge(&[10, 20, 20, 99]);
    let expected = Verdict { committed: 3, delivered: 4, lost: 2, duplicate: 1, phantom: 1 };
    assert_eq!(verdict, expected, "the old state of row 1 is not its last one");
}
