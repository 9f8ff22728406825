//! Ticks over the SQL store: the checks of `tests/azurite/lease_faults.rs` for the blob store.

use std::sync::Arc;
use std::time::Duration;

use highwater::cursor::RowVersion;
use highwater::handler::HandlerError;
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::poller::{Poller, PollerParts, TickOutcome};
use highwater::state::{SqlStore, StateDocument, StateStore, decode};
use highwater::testing::{RecordingHandler, TableSource};
use highwater::tick::TickRequest;
use highwater_devdb::{Fault, SqlError};

use crate::state_sql::{World, orders};
use crate::ticks::limits;

struct Setup {
    world: World,
    truth: SqlStore,
    store: Arc<SqlStore>,
    source: Arc<TableSource>,
    handler: Arc<RecordingHandler>,
}

impl Setup {
    async fn new() -> Self {
        let world = World::start().await;
        let (truth, store) = (world.store(), Arc::new(world.impatient_store()));
        let source = Arc::new(TableSource::new("orders"));
        Self { world, truth, store, source, handler: Arc::default() }
    }

    fn instance(&self, owner_id: &str) -> Poller {
        let second = Duration::from_secs(1);
        Poller::new(PollerParts {
            name: "orders".to_owned(),
            source: self.source.clone(),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: Arc::new(Instance::new(owner_id)),
            terms: LeaseTerms::of(30 * second),
            limits: limits(10),
            policy: highwater::policy::FailurePolicy::default(),
            metrics: Arc::new(Metrics::default()),
        })
    }

    /// Returns the document and how many writes the database has counted.
    async fn document(&self) -> (StateDocument, u64) {
        let stored = self.truth.load(&orders()).await.unwrap().stored.unwrap();
        let (version, _) = stored.etag.0.split_once('@').unwrap();
        let RowVersion(writes) = version.parse().unwrap();
        (decode("orders", &stored.bytes).unwrap(), writes)
    }
}

fn faults() -> [Fault; 8] {
    let error = |number, severity| Fault::Error(SqlError::new(number, severity, "no"));
    [
        Fault::DropBeforeRun,
        Fault::DropBeforeAnswer,
        Fault::DropAfterBytes(40),
        Fault::DropAfterRows(1),
        error(1205, 13),
        error(1222, 16),
        error(40197, 17),
        // It lands after it was abandoned, or not at all because another attempt was first.
        Fault::Stall(Duration::from_secs(2)),
    ]
}

/// Breaks the `nth` write of a tick that delivers one batch: 0 is the acquisition, 1 the commit.
async fn check(fault: Fault, nth: u32) {
    let setup = Setup::new().await;
    let poller = setup.instance("a");
    setup.source.put(1, "first");
    poller.tick(&TickRequest::default()).await.result.unwrap();
    let (document, writes) = setup.document().await;
    let token = document.lease.fencing_token.0;

    setup.source.put(2, "second");
    let faults = setup.world.server.faults().clone();
    let armed = fault.clone();
    let arm = move || faults.arm_matching("UPDATE", 1, armed);
    if nth == 0 {
        arm();
    } else {
        setup.handler.then(async move {
            arm();
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
    if matches!(fault, Fault::Stall(_)) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let (document, writes_after) = setup.document().await;
    assert_eq!(writes_after - writes, 2, "{fault:?} at write {nth}: one commit each");
    assert_eq!(document.lease.fencing_token.0, token + 1, "{fault:?}: granted once");
    assert!(document.lease.released_at.is_some(), "{fault:?}: no lease without an owner remains");
    assert_eq!(setup.handler.ids(), [1, 2], "{fault:?}: delivered once");
    assert!(document.in_flight.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_response_to_the_acquisition_causes_one_grant() {
    let mut checks = tokio::task::JoinSet::new();
    for fault in faults() {
        checks.spawn(check(fault, 0));
    }
    checks.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_response_to_the_commit_causes_one_commit() {
    let mut checks = tokio::task::JoinSet::new();
    for fault in faults() {
        checks.spawn(check(fault, 1));
    }
    checks.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_response_to_the_creation_causes_one_document() {
    for fault in [Fault::DropBeforeRun, Fault::DropBeforeAnswer] {
        let setup = Setup::new().await;
        setup.source.put(1, "first");
        setup.world.server.faults().arm_matching("INSERT", 1, fault.clone());
        let report = setup.instance("a").tick(&TickRequest::default()).await;
        assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false }, "{fault:?}");
        assert_eq!(setup.document().await.0.lease.fencing_token.0, 1, "{fault:?}");
        assert_eq!(setup.handler.ids(), [1], "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_share_one_poller_on_the_table() {
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
    assert_eq!(setup.document().await.0.lease.fencing_token.0, 10);
}

#[tokio::test]
async fn an_acquisition_is_judged_by_the_database_clock_alone() {
    let setup = Setup::new().await;
    let now = |text: &str| setup.world.database.set_now(text).unwrap();
    now("2001-02-03T04:00:00");
    setup.source.put(1, "first");
    setup.handler.then_take(Duration::from_secs(1_000));
    let killed = tokio::time::timeout(Duration::from_secs(1), async {
        setup.instance("a").tick(&TickRequest::default()).await
    });
    killed.await.unwrap_err();
    let b = setup.instance("b");
    // The clock of this machine is far off in any case. 30 s of TTL, two grains and 2 s of margin; the time
    // between read and write is added, so this stays clear of the edge.
    for (time, expected_token) in
        [("2001-02-03T03:00:00", 1), ("2001-02-03T04:00:25", 1), ("2001-02-03T04:00:32.1", 2)]
    {
        now(time);
        let report = b.tick(&TickRequest::default()).await;
        assert_eq!(
            report.result.unwrap() == TickOutcome::Committed { more: false },
            expected_token == 2,
            "{time}: {}",
            report.summary
        );
        assert_eq!(setup.document().await.0.lease.fencing_token.0, expected_token, "{time}");
    }
    assert_eq!(setup.handler.ids(), [1, 1]);
}

#[tokio::test]
async fn a_missing_table_is_an_error_with_a_fix() {
    let setup = Setup::new().await;
    setup.world.database.execute("DROP TABLE dbo.highwater_state").unwrap();
    setup.source.put(1, "first");
    let report = setup.instance("a").tick(&TickRequest::default()).await;
    let error = highwater::error::chain(&report.result.unwrap_err());
    assert!(error.contains("`highwater ddl state --table dbo.highwater_state`"), "{error}");
    assert!(setup.handler.ids().is_empty(), "the handler is not called");
}
