//! Realistic input: 27,004 flights with up to 80 rows per timestamp, through the tick, the real driver and
//! the real wire.

use std::sync::Arc;
use std::time::Duration;

use highwater::cursor::CursorMode;
use highwater::handler::HandlerError;
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::policy::FailurePolicy;
use highwater::poller::{Limits, Poller, PollerParts, TickOutcome};
use highwater::source::mssql::{Mssql, SourceSettings};
use highwater::state::MemoryStore;
use highwater::testing::{Received, RecordingHandler, limits};
use highwater::tick::{TickReport, TickRequest};

use crate::sql::{World, flights_in_order};

const ALL: usize = 27_004;
const MODES: [CursorMode; 2] = [CursorMode::RowVersion, CursorMode::TimestampPk];

pub(crate) struct Drain<W> {
    pub(crate) world: W,
    pub(crate) handler: Arc<RecordingHandler>,
    pub(crate) poller: Poller,
}

impl Drain<World> {
    async fn new(mode: CursorMode, batch_rows_max: usize, rows: usize) -> Self {
        let world = World::with_flights(rows).await;
        let settings = world.flights(mode);
        Self::over(world, settings, batch_rows_max)
    }
}

impl<W> Drain<W> {
    /// A poller over any table.
    pub(crate) fn over(world: W, settings: SourceSettings, batch_rows_max: usize) -> Self {
        Self::with_policy(world, settings, batch_rows_max, FailurePolicy::default())
    }

    /// The same with a failure policy.
    pub(crate) fn with_policy(
        world: W,
        settings: SourceSettings,
        batch_rows_max: usize,
        policy: FailurePolicy,
    ) -> Self {
        let handler = Arc::new(RecordingHandler::default());
        let second = Duration::from_secs(1);
        let poller = Poller::new(PollerParts {
            name: "orders".to_owned(),
            source: Arc::new(Mssql::new(settings).unwrap()),
            handler: handler.clone(),
            store: Arc::new(MemoryStore::default()),
            instance: Arc::new(Instance::new("a")),
            terms: LeaseTerms::of(120 * second),
            limits: Limits {
                batch_rows_max,
                batch_bytes_max: 4 << 20,
                retry_delay_min: Duration::ZERO,
                retry_delay_max: Duration::ZERO,
                retry_after_max: Duration::ZERO,
                ..limits()
            },
            policy,
            metrics: Arc::new(Metrics::default()),
        });
        Self { world, handler, poller }
    }

    pub(crate) async fn tick(&self) -> TickReport {
        self.poller.tick(&TickRequest::default()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flight_is_delivered_once_and_in_order_when_nothing_fails() {
    for mode in MODES {
        // So many batches of 7 rows are enough.
        for (batch_rows_max, rows) in [(7, 4_000), (100, ALL), (1000, ALL)] {
            let drain = Drain::new(mode, batch_rows_max, rows).await;
            let report = drain.tick().await;
            assert_eq!(report.result.unwrap(), TickOutcome::Committed { more: false });
            assert_eq!(report.rows, u64::try_from(rows).unwrap());
            let batches = rows.div_ceil(batch_rows_max);
            assert_eq!(report.batches, u64::try_from(batches).unwrap());
            assert_eq!(
                drain.handler.ids(),
                flights_in_order(mode, rows),
                "{mode}, batches of {batch_rows_max}"
            );
            // One request per batch; the catalog and the session's settings are read once in addition.
            let statements = drain.world.server.faults().statements();
            let expected = u64::try_from(batches).unwrap();
            assert!(
                (expected..=expected + 3).contains(&statements),
                "{statements} requests for {batches} batches"
            );
        }
    }
}

/// A small generator: the same seed, the same failures.
struct Dice(u64);

impl Dice {
    /// Returns true `percent` times of a hundred.
    fn falls(&mut self, percent: u64) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % 100 < percent
    }
}

/// Scripts the next calls: some fail, some accept only a prefix.
fn script(handler: &RecordingHandler, calls: usize, batch: usize, dice: &mut Dice) {
    for _ in 0..calls {
        if dice.falls(20) {
            handler.then_fail(HandlerError::Retryable("503".to_owned()));
        } else if dice.falls(10) {
            let reason = "one row was rejected".to_owned();
            handler.then_fail(HandlerError::Partial { accepted: batch / 2, reason });
        } else {
            handler.then(async { Ok(()) });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flight_is_delivered_at_least_once_by_a_handler_that_fails_at_random() {
    for (mode, batch) in [(CursorMode::RowVersion, 1000), (CursorMode::TimestampPk, 100)] {
        let drain = Drain::new(mode, batch, ALL).await;
        script(&drain.handler, 2000, batch, &mut Dice(0x9E37_79B9_7F4A_7C15));
        let mut failed = 0;
        for _ in 0..2000 {
            match drain.tick().await.result {
                Ok(TickOutcome::Committed { more: false }) => break,
                Ok(outcome) => panic!("{outcome:?}"),
                Err(_) => failed += 1,
            }
        }
        assert!(failed > 0, "the handler never failed");
        check(mode, &drain.handler.received());
    }
}

/// Every id at least once, in the source's order within an attempt, with nothing skipped.
fn check(mode: CursorMode, received: &[Received]) {
    let order = flights_in_order(mode, ALL);
    let rank: std::collections::BTreeMap<i64, usize> =
        order.iter().enumerate().map(|(rank, id)| (*id, rank)).collect();
    let mut reached = 0;
    for delivery in received {
        let ranks: Vec<usize> = delivery.ids.iter().map(|id| rank[id]).collect();
        assert!(ranks.is_sorted(), "order is kept within an attempt");
        assert!(ranks[0] <= reached, "no row is skipped");
        reached = reached.max(ranks[ranks.len() - 1] + 1);
    }
    assert_eq!(reached, ALL, "every id at least once");
    let again = received.windows(2).filter(|pair| pair[0].batch_id == pair[1].batch_id);
    assert!(again.count() > 0, "a failed batch is redelivered under its id");
}
