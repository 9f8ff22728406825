//! One test for each row of the table, named after it, and the rules that apply to all rows.

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, GaugeDataPoint, MetricData, ScopeMetrics, SumDataPoint,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};

use super::*;
use crate::cursor::{Cursor, KeyValues, RowVersion};
use crate::document::{InFlight, LeaseState, Marker, Paused, decode, encode, encode_marker};
use crate::handler::HandlerError;
use crate::journal::{JournalStore as _, MemoryJournal};
use crate::poller::{PollerParts, TickOutcome};
use crate::source::Source as _;
use crate::store::{MemoryStore, Precondition};
use crate::testing::{Call, Calls, Fault, FaultyStore, RecordingHandler, TableSource, limits};
use crate::tick::TickRequest;

const SECOND: Duration = Duration::from_secs(1);
const STUCK_AFTER: Duration = Duration::from_secs(1800);
const PAUSED_MAX: Duration = Duration::from_secs(86_400);
/// Above the ttl of 120 s and the margin of 2 s.
const LAPSED: u64 = 123;

#[derive(Clone)]
struct World {
    memory: Arc<MemoryStore>,
    store: Arc<FaultyStore>,
    source: Arc<TableSource>,
    handler: Arc<RecordingHandler>,
    metrics: Arc<Metrics>,
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl World {
    fn new() -> Self {
        let memory = Arc::new(MemoryStore::default());
        let exporter = InMemoryMetricExporter::default();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
        Self {
            store: Arc::new(FaultyStore::new(memory.clone())),
            memory,
            source: Arc::new(TableSource::new("p")),
            handler: Arc::default(),
            metrics: Arc::new(Metrics::new(&provider.meter("highwater"))),
            exporter,
            provider,
        }
    }

    fn poller(&self, owner_id: &str) -> Poller {
        Poller::new(PollerParts {
            name: "p".to_owned(),
            source: self.source.clone(),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: Arc::new(Instance::new(owner_id).measured(self.metrics.clone())),
            terms: LeaseTerms::of(TTL),
            limits: limits(),
            policy: crate::policy::FailurePolicy::default(),
            metrics: self.metrics.clone(),
        })
    }

    /// A controller that knows the poller `p`.
    fn controller(&self, owner_id: &str) -> Controller {
        self.controller_of(owner_id, Mode::Repair, [self.poller("unused")])
    }

    fn controller_of(
        &self,
        owner_id: &str,
        mode: Mode,
        pollers: impl IntoIterator<Item = Poller>,
    ) -> Controller {
        self.controller_over(owner_id, mode, pollers.into_iter().map(Arc::new))
    }

    fn controller_over(
        &self,
        owner_id: &str,
        mode: Mode,
        pollers: impl IntoIterator<Item = Arc<Poller>>,
    ) -> Controller {
        let pollers = pollers.into_iter().map(|poller| (poller.name().to_owned(), poller));
        Controller::new(ControllerParts {
            store: self.store.clone(),
            instance: Arc::new(Instance::new(owner_id)),
            metrics: self.metrics.clone(),
            pollers: pollers.collect(),
            thresholds: Thresholds { stuck_after: STUCK_AFTER, paused_max: PAUSED_MAX },
            mode,
            time_max: 285 * SECOND,
        })
    }

    /// A document of `p`'s source, delivered up to 5 and free.
    fn fresh(&self, name: &str) -> StateDocument {
        let fingerprint = self.source.shape().fingerprint.clone();
        let mut document = StateDocument::new(name, fingerprint, Generation(7));
        document.checkpoint.cursor = Some(at(5));
        document.lease.fencing_token.0 = 3;
        document.lease.ttl_seconds = TTL.as_secs();
        document
    }

    fn held(&self, name: &str) -> StateDocument {
        let mut document = self.fresh(name);
        document.lease.owner_id = Some("worker".to_owned());
        document
    }

    async fn put(&self, document: &StateDocument) {
        self.put_bytes(&document.poller_name, encode(document)).await;
    }

    async fn put_bytes(&self, name: &str, bytes: Vec<u8>) {
        let key = StateKey::Document(name.to_owned());
        let precondition = match self.memory.load(&key).await.unwrap().stored {
            Some(stored) => Precondition::Matches(stored.etag),
            None => Precondition::Absent,
        };
        self.memory.store(&key, bytes, precondition).await.unwrap();
    }

    async fn document(&self, name: &str) -> StateDocument {
        let key = StateKey::Document(name.to_owned());
        let stored = self.memory.load(&key).await.unwrap().stored.unwrap();
        decode(name, &stored.bytes).unwrap()
    }

    /// Returns what is stored, except what the controller remembers for itself.
    async fn all(&self) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        for key in self.memory.list().await.unwrap() {
            if key != StateKey::Document(DOCUMENT.to_owned()) {
                let stored = self.memory.load(&key).await.unwrap().stored.unwrap();
                all.push((format!("{key:?}"), stored.bytes));
            }
        }
        all
    }

    /// Runs `controller`, and checks that it only reports: it writes nothing but its own document.
    async fn findings_of(&self, controller: &Controller) -> Report {
        let before = self.all().await;
        let report = controller.run(true).await.unwrap();
        assert_eq!((report.written, self.all().await), (0, before), "{report:?}");
        report
    }

    /// Returns the sum of a counter, or the newest value of a gauge, over points with this attribute.
    fn counted(&self, metric: &str, (key, value): (&str, &str)) -> u64 {
        self.provider.force_flush().unwrap();
        let last = self.exporter.get_finished_metrics().unwrap().pop().unwrap();
        let metrics = last.scope_metrics().flat_map(ScopeMetrics::metrics);
        let mut total = 0;
        for found in metrics.filter(|found| found.name() == metric) {
            let AggregatedMetrics::U64(data) = found.data() else { continue };
            let has = |mut attributes: Box<dyn Iterator<Item = &opentelemetry::KeyValue> + '_>| {
                attributes.any(|a| a.key.as_str() == key && a.value.as_str() == value)
            };
            total += match data {
                MetricData::Sum(sum) => {
                    let points = sum.data_points().filter(|p| has(Box::new(p.attributes())));
                    points.map(SumDataPoint::value).sum::<u64>()
                }
                MetricData::Gauge(gauge) => {
                    let points = gauge.data_points().filter(|p| has(Box::new(p.attributes())));
                    points.map(GaugeDataPoint::value).sum::<u64>()
                }
                MetricData::Histogram(_) | MetricData::ExponentialHistogram(_) => 0,
            };
        }
        total
    }
}

fn at(version: u64) -> Cursor {
    let key = KeyValues::from_iter([("id".to_owned(), version.into())]);
    Cursor::row_version(RowVersion(version), key)
}

/// Returns the document of a replay of `of` that has delivered one of three rows.
fn replay(world: &World, of: &str) -> StateDocument {
    let range = serde_json::from_value(serde_json::json!({
        "of": of, "upto": at(8), "rows_planned": 3, "rows": 1, "begun_at": "2026-11-21T00:00:00Z",
    }))
    .unwrap();
    world.fresh(&format!("{of}.replay.x1")).of_range(range, "replay-x1")
}

fn ended(mut document: StateDocument) -> StateDocument {
    document.range.as_mut().unwrap().done_at = Some(time::OffsetDateTime::UNIX_EPOCH);
    document
}

fn batch() -> InFlight {
    serde_json::from_value(serde_json::json!({
        "batch_id": "batch_a", "after": at(5), "upto": at(8), "rows": 3, "digest": "d",
    }))
    .unwrap()
}

fn paused(at: time::OffsetDateTime) -> Paused {
    let reason = "the target moves".to_owned();
    Paused { by: "ann".to_owned(), reason, at, extra: serde_json::Map::new() }
}

async fn sleep(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Returns the findings of a run for one poller: conditions, actions and outcomes.
fn of(report: &Report, poller: &str) -> Vec<(Condition, Action, Outcome)> {
    let findings = report.findings.iter().filter(|finding| finding.poller == poller);
    findings.map(|found| (found.condition, found.action, found.outcome.clone())).collect()
}

fn finding(condition: Condition, action: Action) -> Vec<(Condition, Action, Outcome)> {
    vec![(condition, action, Outcome::Reported)]
}

fn done(condition: Condition, action: Action) -> Vec<(Condition, Action, Outcome)> {
    vec![(condition, action, Outcome::Done)]
}

// The table, row by row.

#[test]
fn every_row_has_a_test_of_its_name_and_is_in_the_table_once() {
    for row in ROWS {
        assert_eq!(ROWS.iter().filter(|other| other.condition == row.condition).count(), 1);
        let json = serde_json::to_value(row.condition).unwrap();
        assert_eq!(json, row.name, "one name in logs, metrics and outputs");
        let start = format!("\nasync fn {}_", row.name);
        assert!(include_str!("tests.rs").contains(&start), "no test begins with `{}_`", row.name);
    }
}

#[tokio::test(start_paused = true)]
async fn lease_expired_is_released_and_the_batch_in_flight_is_requeued() {
    let world = World::new();
    let mut held = world.held("p");
    world.put(&held).await;
    sleep(LAPSED - 2).await;
    let controller = world.controller("r");
    assert_eq!(
        of(&controller.run(true).await.unwrap(), "p"),
        [],
        "it may be alive: ttl 120 s + 2 s"
    );
    assert_eq!(world.document("p").await, held);
    sleep(2).await;
    let report = controller.run(true).await.unwrap();
    assert_eq!(of(&report, "p"), done(Condition::LeaseExpired, Action::Release));
    let released = world.document("p").await;
    assert_eq!(released.lease.owner_id, None);
    assert_eq!(released.lease.fencing_token.0, 4, "so that a live holder finds it lost");
    assert_eq!(released.checkpoint, held.checkpoint);

    held.in_flight = Some(batch());
    world.put(&held).await;
    sleep(LAPSED).await;
    let report = controller.run(true).await.unwrap();
    assert_eq!(of(&report, "p"), done(Condition::LeaseExpired, Action::Requeue));
    let released = world.document("p").await;
    assert_eq!(released.in_flight, Some(InFlight { crashes: 1, ..batch() }));
    assert_eq!(released.checkpoint, held.checkpoint);
    let found_by = ("found_by", "recovery");
    assert_eq!(world.counted("highwater.lease.expirations", found_by), 2);
    assert_eq!(world.counted("highwater.recovery.requeues", found_by), 1);
}

#[tokio::test(start_paused = true)]
async fn in_flight_orphaned_ends_a_backoff_that_nothing_requested() {
    let world = World::new();
    let mut orphaned = world.fresh("p");
    let begin = world.memory.load(&StateKey::Document("p".to_owned())).await.unwrap().date;
    // A target may have asked for an hour.
    for (seconds, ends) in [(300, false), (3_601, true)] {
        let next_attempt_at = Some(begin + Duration::from_secs(seconds));
        orphaned.in_flight = Some(InFlight { next_attempt_at, attempt: 2, ..batch() });
        world.put(&orphaned).await;
        let report = world.controller("r").run(true).await.unwrap();
        let expected =
            if ends { done(Condition::InFlightOrphaned, Action::Requeue) } else { Vec::new() };
        assert_eq!(of(&report, "p"), expected);
    }
    let freed = world.document("p").await;
    assert_eq!(freed.in_flight, Some(InFlight { attempt: 2, ..batch() }), "attempts stay");
    assert_eq!(world.counted("highwater.recovery.requeues", ("found_by", "recovery")), 1);
    sleep(STUCK_AFTER.as_secs()).await;
    // No tick has delivered it since. That is another condition, which only an operator can fix.
    let report = world.controller("r").run(true).await.unwrap();
    let expected = (Condition::InFlightOrphaned, Action::Alarm, Outcome::Reported);
    assert!(of(&report, "p").contains(&expected), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn target_asks_for_pause_is_reported_while_it_lasts() {
    let world = World::new();
    let poller = Arc::new(world.poller("p"));
    let controller = world.controller_over("r", Mode::Repair, [poller.clone()]);
    world.source.fill(1);
    world.handler.then_fail(HandlerError::Throttled {
        reason: "answered 429".to_owned(),
        retry_after: Some(Duration::from_secs(24 * 60 * 60)),
    });
    poller.tick(&TickRequest::default()).await.result.unwrap_err();
    let report = world.findings_of(&controller).await;
    assert_eq!(of(&report, "p"), finding(Condition::TargetAsksForPause, Action::Report));
    let found = &report.findings.iter().find(|finding| finding.poller == "p").unwrap().found;
    let granted = "it asked for a pause of 86400 s, and gets 3600 s (`RETRY_AFTER_MAX`)";
    assert!(found.contains(granted), "{found}");
    assert!(found.ends_with("end it with `highwater resume p`"), "{found}");
    sleep(3_300).await;
    let report = world.findings_of(&controller).await;
    assert!(
        !of(&report, "p").iter().any(|(condition, ..)| *condition == Condition::TargetAsksForPause)
    );
    sleep(300).await;
    poller.tick(&TickRequest::default()).await.result.unwrap();
    assert_eq!(of(&world.findings_of(&controller).await, "p"), []);
}

#[tokio::test(start_paused = true)]
async fn checkpoint_stuck_is_reported_once_rows_have_waited_long_enough() {
    let world = World::new();
    let controller = world.controller("r");
    world.put(&world.fresh("p")).await;
    world.source.fill(5);
    sleep(2 * STUCK_AFTER.as_secs()).await;
    assert_eq!(of(&world.findings_of(&controller).await, "p"), [], "idle is not stuck");
    // Waiting rows that no document mentions: no tick runs at all.
    world.source.put(6, "new");
    assert_eq!(of(&world.findings_of(&controller).await, "p"), [], "seen for the first time");
    sleep(STUCK_AFTER.as_secs() - 1).await;
    assert_eq!(of(&world.findings_of(&controller).await, "p"), []);
    sleep(1).await;
    let report = world.findings_of(&controller).await;
    assert_eq!(of(&report, "p"), finding(Condition::CheckpointStuck, Action::Alarm));
    assert!(report.needs_operator());
    // A batch that has been failing for this long shows it by itself.
    let mut failing = world.fresh("p");
    let now = world.memory.load(&StateKey::Document("p".to_owned())).await.unwrap().date;
    let first_failed_at = Some(now - STUCK_AFTER);
    let last_error = Some("503".to_owned());
    failing.in_flight = Some(InFlight { first_failed_at, last_error, ..batch() });
    world.put(&failing).await;
    let report = world.controller("other").look().await.unwrap();
    assert_eq!(of(&report, "p"), finding(Condition::CheckpointStuck, Action::Alarm));
    assert!(report.findings[0].found.contains("last: 503"), "{report:?}");
    // Moved since: no row waits there any more.
    failing.in_flight = None;
    failing.checkpoint.cursor = Some(at(6));
    world.put(&failing).await;
    assert_eq!(of(&world.findings_of(&controller).await, "p"), []);
}

#[tokio::test(start_paused = true)]
async fn state_without_configuration_is_reported_and_its_expired_lease_is_still_released() {
    let world = World::new();
    world.put(&world.fresh("p")).await;
    let mut held = world.held("old");
    held.in_flight = Some(batch());
    held.journal_seq = 7;
    world.put(&held).await;
    let silent = world.held("silent");
    world.put(&silent).await;
    sleep(LAPSED).await;
    let report = world.controller("r").run(true).await.unwrap();
    // Without settings it is unknown whether a journal is kept. If so, it must show a gap.
    assert_eq!(world.document("old").await.journal_seq, 8);
    assert_eq!(world.document("silent").await.journal_seq, 0);
    assert_eq!(
        of(&report, "old"),
        [
            (Condition::LeaseExpired, Action::Requeue, Outcome::Done),
            (Condition::StateWithoutConfiguration, Action::Report, Outcome::Reported)
        ]
    );
    assert_eq!(world.document("old").await.checkpoint, held.checkpoint, "it is still there");
    assert!(!report.needs_operator());
}

#[tokio::test(start_paused = true)]
async fn configuration_without_state_is_an_alarm_only_if_the_poller_has_run() {
    let world = World::new();
    let controller = world.controller("r");
    let report = world.findings_of(&controller).await;
    assert_eq!(of(&report, "p"), finding(Condition::ConfigurationWithoutState, Action::Report));
    let created_at = time::OffsetDateTime::UNIX_EPOCH;
    let marker = Marker { poller_name: "p".to_owned(), generation: Generation(7), created_at };
    let key = StateKey::Marker("p".to_owned());
    world.memory.store(&key, encode_marker(&marker), Precondition::Absent).await.unwrap();
    let report = world.findings_of(&controller).await;
    assert_eq!(of(&report, "p"), finding(Condition::ConfigurationWithoutState, Action::Alarm));
    let key = StateKey::Document("p".to_owned());
    assert!(world.memory.load(&key).await.unwrap().stored.is_none(), "nothing is created");
}

#[tokio::test(start_paused = true)]
async fn marker_missing_is_reported_and_the_marker_is_written_again() {
    let world = World::new();
    let mut document = world.fresh("p");
    document.marked = true;
    world.put(&document).await;
    let controller = world.controller("r");
    let planned = of(&controller.look().await.unwrap(), "p");
    let found = |outcome| vec![(Condition::MarkerMissing, Action::Rewrite, outcome)];
    assert_eq!(planned, found(Outcome::Planned));
    assert_eq!(of(&controller.run(true).await.unwrap(), "p"), found(Outcome::Done));
    let key = StateKey::Marker("p".to_owned());
    let stored = world.memory.load(&key).await.unwrap().stored.unwrap();
    let marker = crate::document::decode_marker("p", &stored.bytes).unwrap();
    assert_eq!(marker.generation, document.generation);
    assert_eq!(of(&controller.run(true).await.unwrap(), "p"), [], "once");
    assert_eq!(world.document("p").await, document, "the document is not touched");
}

#[tokio::test(start_paused = true)]
async fn quarantine_growing_is_reported_when_more_rows_are_quarantined_than_before() {
    let world = World::new();
    world.put(&world.fresh("p")).await;
    let mut poller = world.poller("unused");
    poller.policy.on_failure = crate::policy::OnFailure::Park;
    let controller = world.controller_of("r", Mode::Repair, [poller]);
    let set_aside = async |number: u8| {
        let key = crate::cursor::KeyId::parse(&format!("{number:02x}").repeat(16)).unwrap();
        let key = StateKey::Quarantined { poller: "p".to_owned(), key };
        world.memory.store(&key, b"{}".to_vec(), Precondition::Absent).await.unwrap();
    };
    assert_eq!(of(&world.findings_of(&controller).await, "p"), []);
    for number in 1..=2 {
        set_aside(number).await;
        let report = world.findings_of(&controller).await;
        assert_eq!(of(&report, "p"), finding(Condition::QuarantineGrowing, Action::Alarm));
        assert_eq!(of(&world.findings_of(&controller).await, "p"), [], "it no longer grows");
    }
    // Keys that are retried automatically are not quarantined.
    let mut document = world.document("p").await;
    document.parked.keys = 5;
    document.parked.quarantined = 2;
    world.put(&document).await;
    for number in 3..=5 {
        set_aside(number).await;
    }
    assert_eq!(of(&world.findings_of(&controller).await, "p"), []);
    // Without `park`, no tick retries them.
    let report = world.findings_of(&world.controller("r")).await;
    assert_eq!(of(&report, "p"), finding(Condition::QuarantineGrowing, Action::Alarm));
}

#[tokio::test(start_paused = true)]
async fn paused_too_long_is_reported_and_never_resumed() {
    let world = World::new();
    let mut document = world.fresh("p");
    document.paused =
        Some(paused(world.memory.load(&StateKey::Document("p".to_owned())).await.unwrap().date));
    world.put(&document).await;
    sleep(PAUSED_MAX.as_secs() - 1).await;
    let controller = world.controller("r");
    assert_eq!(of(&world.findings_of(&controller).await, "p"), []);
    sleep(1).await;
    let report = world.findings_of(&controller).await;
    assert_eq!(of(&report, "p"), finding(Condition::PausedTooLong, Action::Report));
    assert!(report.findings[0].found.contains("the target moves"), "{report:?}");
    assert!(world.document("p").await.paused.is_some());
}

#[tokio::test(start_paused = true)]
async fn parent_gone_or_paused_is_reported_for_each_part() {
    let world = World::new();
    let now = world.memory.load(&StateKey::Document("p".to_owned())).await.unwrap().date;
    let mut parent = world.fresh("p");
    world.put(&parent).await;
    world.put(&world.fresh("p__part_1")).await;
    world.put(&world.fresh("gone__part_1")).await;
    let mut named = world.fresh("replayed");
    named.extra.insert("parent".to_owned(), "gone".into());
    world.put(&named).await;
    world.put(&replay(&world, "gone")).await;
    let mut over = ended(replay(&world, "gone"));
    over.poller_name = "gone.replay.over".to_owned();
    world.put(&over).await;
    let before = world.all().await;
    let report = world.controller("r").run(true).await.unwrap();
    assert_eq!((report.written, world.all().await), (0, before), "a part is never touched");
    assert_eq!(of(&report, "gone.replay.over"), [], "a replay that has ended needs no poller");
    for part in ["gone__part_1", "gone.replay.x1", "replayed"] {
        assert_eq!(of(&report, part), finding(Condition::ParentGone, Action::Alarm), "{part}");
    }
    assert_eq!(of(&report, "p__part_1"), []);
    parent.paused = Some(paused(now));
    world.put(&parent).await;
    let report = world.controller("r").run(true).await.unwrap();
    assert_eq!(of(&report, "p__part_1"), finding(Condition::ParentGone, Action::Report));
    let mut part = world.fresh("p__part_1");
    part.paused = Some(paused(now));
    world.put(&part).await;
    assert_eq!(of(&world.controller("r").run(true).await.unwrap(), "p__part_1"), []);
}

#[tokio::test(start_paused = true)]
async fn parent_gone_is_not_reported_for_a_cancelled_backfill_or_its_windows() {
    let world = World::new();
    let cancelled = |name: &str| {
        let mut document = replay(&world, "gone");
        document.poller_name = name.to_owned();
        document.cancel_range(time::OffsetDateTime::UNIX_EPOCH, age_of_nothing())
    };
    let mut done = ended(replay(&world, "gone"));
    done.poller_name = "gone.replay.x1.1".to_owned();
    world.put(&done).await;
    world.put(&cancelled("gone.replay.x1")).await;
    world.put(&cancelled("gone.replay.x1.2")).await;
    sleep(2 * STUCK_AFTER.as_secs()).await;
    let controller = world.controller_of("r", Mode::Repair, []);
    assert_eq!(controller.run(true).await.unwrap().findings, []);
    let mut left = replay(&world, "gone");
    left.poller_name = "gone.replay.x1.2".to_owned();
    world.put(&left).await;
    let report = controller.run(true).await.unwrap();
    assert_eq!(of(&report, "gone.replay.x1.2"), finding(Condition::ParentGone, Action::Alarm));
}

#[tokio::test(start_paused = true)]
async fn range_left_is_reported_after_no_part_of_it_has_continued_for_long_enough() {
    let world = World::new();
    let controller = world.controller("r");
    world.put(&world.fresh("p")).await;
    let mut whole = replay(&world, "p");
    whole.in_flight = Some(batch());
    world.put(&whole).await;
    sleep(STUCK_AFTER.as_secs() - 1).await;
    assert_eq!(of(&world.findings_of(&controller).await, "p.replay.x1"), []);
    sleep(1).await;
    let report = world.findings_of(&controller).await;
    assert_eq!(of(&report, "p.replay.x1"), finding(Condition::RangeLeft, Action::Report));
    let found = &report.findings[0].found;
    assert!(found.starts_with("1 of 3 rows are delivered"), "{found}");
    assert!(found.contains("`highwater replay p --resume x1`"), "{found}");
    // An instance works on one of its windows, under a lease or until shortly before.
    let mut window = replay(&world, "p");
    window.poller_name = "p.replay.x1.1".to_owned();
    world.put(&window).await;
    assert_eq!(of(&world.findings_of(&controller).await, "p.replay.x1"), []);
    sleep(STUCK_AFTER.as_secs()).await;
    let report = world.findings_of(&controller).await;
    let left: Vec<&str> = report.findings.iter().map(|found| found.poller.as_str()).collect();
    assert_eq!(left, ["p.replay.x1"], "once, not for each window");
    window.lease.owner_id = Some("worker".to_owned());
    window.lease.ttl_seconds = 2 * STUCK_AFTER.as_secs();
    world.put(&window).await;
    sleep(STUCK_AFTER.as_secs()).await;
    assert_eq!(of(&world.findings_of(&controller).await, "p.replay.x1"), [], "it is held");
    window.lease.owner_id = None;
    world.put(&window).await;
    let mut waits = whole.clone();
    waits.paused = Some(paused(time::OffsetDateTime::UNIX_EPOCH));
    for over in [ended(whole.clone()), waits] {
        world.put(&over).await;
        sleep(STUCK_AFTER.as_secs()).await;
        let found = of(&world.findings_of(&controller).await, "p.replay.x1");
        assert!(
            found.iter().all(|(condition, ..)| *condition != Condition::RangeLeft),
            "{found:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn journal_without_commits_is_reported_after_many_writes_at_one_checkpoint() {
    let world = World::new();
    let journals = Arc::new(MemoryJournal::default());
    let with_journal = world.poller("unused").with_journal(JournalMode::Full, journals, None);
    let controller = world.controller_of("r", Mode::Repair, [with_journal]);
    let mut document = world.fresh("p");
    document.in_flight = Some(batch());
    let off = world.controller("other");
    for (seq, expected) in [(100, false), (119, false), (120, true)] {
        document.journal_seq = seq;
        world.put(&document).await;
        let report = world.findings_of(&controller).await;
        let expected_finding = finding(Condition::JournalWithoutCommits, Action::Alarm);
        assert_eq!(of(&report, "p"), if expected { expected_finding } else { Vec::new() }, "{seq}");
        assert_eq!(of(&off.look().await.unwrap(), "p"), [], "without a journal");
    }
    document.checkpoint.cursor = Some(at(6));
    world.put(&document).await;
    assert_eq!(of(&world.findings_of(&controller).await, "p"), []);
}

#[tokio::test(start_paused = true)]
async fn journal_differs_is_reported_with_the_first_difference() {
    let world = World::new();
    let journals = Arc::new(MemoryJournal::default());
    let journaled =
        |owner_id| world.poller(owner_id).with_journal(JournalMode::Full, journals.clone(), None);
    let poller = journaled("a");
    for _ in 0..2 {
        world.source.fill(1);
        poller.tick(&TickRequest::default()).await.result.unwrap();
    }
    let controller = world.controller_of("r", Mode::Repair, [journaled("unused")]);
    assert_eq!(of(&controller.look().await.unwrap(), "p"), [], "they agree");
    let good = world.document("p").await;
    let mut other = good.clone();
    other.checkpoint.cursor = Some(at(99));
    let mut older = good.clone();
    older.journal_seq -= 1;
    let mut newer = good.clone();
    newer.journal_seq += 1;
    for (document, expected) in [
        (&other, Some("`/checkpoint/cursor/")),
        (&older, Some("an older copy")),
        (&newer, None),
        (&good, None),
    ] {
        world.put(document).await;
        let report = world.findings_of(&controller).await;
        let Some(expected) = expected else {
            assert_eq!(of(&report, "p"), []);
            continue;
        };
        assert_eq!(of(&report, "p"), finding(Condition::JournalDiffers, Action::Alarm));
        let found = &report.findings[0].found;
        assert!(found.contains(expected) && found.contains("state verify p`"), "{found}");
        assert_eq!(world.document("p").await, *document, "nothing is changed");
    }
    for part in journals.list("p").await.unwrap() {
        journals.remove(&part, None).await.unwrap();
    }
    let report = world.findings_of(&controller).await;
    assert_eq!(of(&report, "p"), finding(Condition::JournalDiffers, Action::Alarm), "removed");
    let off = world.controller("off");
    assert_eq!(of(&off.look().await.unwrap(), "p"), [], "without a journal");
}

#[tokio::test(start_paused = true)]
async fn lease_held_elsewhere_is_reported_after_every_tick_was_skipped_for_long() {
    let world = World::new();
    let poller = Arc::new(world.poller("here"));
    let controller = world.controller_over("r", Mode::Repair, [poller.clone()]);
    let tick = async || {
        // The other one renews its lease all the time.
        world.put(&world.held("p")).await;
        world.source.fill(1);
        poller.tick(&TickRequest::default()).await.result.unwrap();
        of(&world.findings_of(&controller).await, "p")
    };
    assert_eq!(tick().await, []);
    sleep(STUCK_AFTER.as_secs()).await;
    assert_eq!(tick().await, finding(Condition::LeaseHeldElsewhere, Action::Report));
    world.put(&world.fresh("p")).await;
    poller.tick(&TickRequest::default()).await.result.unwrap();
    assert_eq!(of(&world.findings_of(&controller).await, "p"), [], "it has run here again");
}

#[tokio::test(start_paused = true)]
async fn fingerprint_differs_is_reported() {
    let world = World::new();
    let mut document = world.fresh("p");
    document.source_fingerprint = SourceFingerprint::of(&[("object", "dbo.other")]);
    world.put(&document).await;
    let report = world.findings_of(&world.controller("r")).await;
    assert_eq!(of(&report, "p"), finding(Condition::FingerprintDiffers, Action::Alarm));
    assert_eq!(world.document("p").await, document);
}

#[tokio::test(start_paused = true)]
async fn state_unreadable_is_reported_and_never_overwritten() {
    let world = World::new();
    world.put_bytes("p", b"{\"version\": 1".to_vec()).await;
    let report = world.findings_of(&world.controller("r")).await;
    assert_eq!(of(&report, "p"), finding(Condition::StateUnreadable, Action::Alarm));
    let key = StateKey::Document("p".to_owned());
    let stored = world.memory.load(&key).await.unwrap().stored.unwrap();
    assert_eq!(stored.bytes, b"{\"version\": 1");
}

// Rules for all rows.

#[tokio::test(start_paused = true)]
async fn a_second_run_finds_and_reports_nothing_left_to_do() {
    let world = World::new();
    let mut held = world.held("p");
    held.in_flight = Some(batch());
    world.put(&held).await;
    sleep(LAPSED).await;
    let controller = world.controller("r");
    assert!(controller.run(true).await.unwrap().summary().contains("1 repaired"));
    let repaired = world.document("p").await;
    world.store.take_calls();
    let report = controller.run(true).await.unwrap();
    assert!(report.summary().contains("nothing to repair"), "{}", report.summary());
    assert_eq!(world.document("p").await, repaired);
    // Its own document: read, leased and released; the other: read.
    assert_eq!(world.store.take_calls(), Calls { gets: 2, puts: 2, refused: 0 });
    assert!(report.summary().ends_with("1 listing, 2 reads, 2 writes)"), "{}", report.summary());
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_reports_the_same_and_writes_nothing() {
    let world = World::new();
    world.put(&world.held("p")).await;
    sleep(LAPSED).await;
    let report = world.controller("r").look().await.unwrap();
    let planned = vec![(Condition::LeaseExpired, Action::Release, Outcome::Planned)];
    assert_eq!(of(&report, "p"), planned);
    assert!(report.summary().contains("1 to repair"), "{}", report.summary());
    assert_eq!(world.store.take_calls(), Calls { gets: 2, puts: 0, refused: 0 });
    let controller = world.controller_of("r", Mode::Report, [world.poller("unused")]);
    assert_eq!(of(&controller.invoke().await.unwrap(), "p"), planned);
    assert_eq!(world.document("p").await, world.held("p"));
    let off = world.controller_of("r", Mode::Off, []);
    assert!(off.invoke().await.unwrap().skipped.unwrap().contains("is `off`"));
}

#[tokio::test(start_paused = true)]
async fn a_document_that_changed_since_it_was_judged_is_left_alone() {
    let world = World::new();
    let mut held = world.held("p");
    world.put(&held).await;
    sleep(LAPSED).await;
    let controller = world.controller("r");
    // Slow enough for the holder, which is alive after all, to write in between.
    world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
    world.store.break_next(Call::Store, Fault::Slow(Duration::ZERO));
    world.store.break_next(Call::Store, Fault::Slow(2 * SECOND));
    // A second read before the write would see a document that was not judged.
    for wait in [0, 0, 0, 2] {
        world.store.break_next(Call::Load, Fault::Slow(wait * SECOND));
    }
    held.checkpoint.cursor = Some(at(6));
    let writing = async {
        sleep(1).await;
        world.put(&held).await;
    };
    let (report, ()) = tokio::join!(controller.run(true), writing);
    let expected = (Condition::LeaseExpired, Action::Release, Outcome::Changed);
    assert_eq!(of(&report.unwrap(), "p"), [expected]);
    assert_eq!(world.document("p").await, held);
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_is_handled_as_for_any_other_write() {
    let world = World::new();
    world.put(&world.held("p")).await;
    sleep(LAPSED).await;
    for fault in [Fault::Slow(Duration::ZERO), Fault::Slow(Duration::ZERO), Fault::LostAnswer] {
        world.store.break_next(Call::Store, fault);
    }
    let report = world.controller("r").run(true).await.unwrap();
    assert_eq!(of(&report, "p"), done(Condition::LeaseExpired, Action::Release));
    assert_eq!(world.document("p").await.lease.fencing_token.0, 4, "once");
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_lease_was_released_can_commit_nothing_and_the_next_tick_delivers_it() {
    let world = World::new();
    let poller = world.poller("a");
    world.source.fill(3);
    // The holder is frozen for longer than its lease, but alive.
    let store = world.store.clone();
    world.handler.then(async move {
        for _ in 0..1000 {
            store.break_next(Call::Store, Fault::Unreachable);
        }
        sleep(LAPSED).await;
        Ok(())
    });
    let other = Arc::new(FaultyStore::new(world.memory.clone()));
    let elsewhere = World { store: other, ..world.clone() };
    let recovering = async {
        sleep(LAPSED).await;
        elsewhere.controller("r").run(true).await.unwrap()
    };
    let request = TickRequest::default();
    let (ended, report) = tokio::join!(poller.tick(&request), recovering);
    assert!(ended.result.is_err(), "{ended:?}");
    assert_eq!(of(&report, "p"), done(Condition::LeaseExpired, Action::Requeue));
    let document = world.document("p").await;
    assert_eq!((document.checkpoint.cursor, document.lease.fencing_token.0), (None, 2));
    let next = elsewhere.poller("b").tick(&request).await;
    assert_eq!(next.result.unwrap(), TickOutcome::Committed { more: false });
    assert_eq!(world.document("p").await.lease.fencing_token.0, 3);
}

#[tokio::test(start_paused = true)]
async fn one_controller_runs_at_a_time_and_a_crashed_one_is_replaced() {
    let world = World::new();
    world.put(&world.fresh("p")).await;
    let (a, b) = (world.controller("a"), world.controller("b"));
    a.run(true).await.unwrap();
    let mut own = world.document(DOCUMENT).await;
    assert_eq!(own.in_flight, None);
    own.lease.owner_id = Some("dead".to_owned());
    own.lease.released_at = None;
    world.put(&own).await;
    let report = b.run(true).await.unwrap();
    assert_eq!(report.summary(), "recovery: skipped: `dead` is running it");
    sleep(LAPSED).await;
    let report = b.run(true).await.unwrap();
    assert_eq!(
        (report.skipped, report.findings),
        (None, Vec::new()),
        "its own document is not a poller's"
    );
    assert_eq!(world.document(DOCUMENT).await.lease.owner_id.as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn findings_of_a_run_are_exported_as_metrics_and_reset_again() {
    let world = World::new();
    let mut document = world.fresh("p");
    document.source_fingerprint = SourceFingerprint::of(&[("object", "dbo.other")]);
    world.put(&document).await;
    let controller = world.controller("r");
    controller.run(true).await.unwrap();
    let orphans =
        |condition: &str| world.counted("highwater.recovery.orphans", ("condition", condition));
    assert_eq!((orphans("fingerprint_differs"), orphans("lease_expired")), (1, 0));
    world.put(&world.fresh("p")).await;
    controller.run(true).await.unwrap();
    assert_eq!(orphans("fingerprint_differs"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_respond_ends_the_run_and_frees_the_lease() {
    let world = World::new();
    world.put(&world.fresh("p")).await;
    let controller = world.controller("r");
    controller.run(true).await.unwrap();
    world.store.break_next(Call::Load, Fault::Slow(Duration::ZERO));
    world.store.break_next(Call::Load, Fault::Unreachable);
    let ended = controller.run(true).await;
    assert!(matches!(ended, Err(RecoveryError::Store(StoreError::Unreachable { .. }))));
    assert!(world.document(DOCUMENT).await.lease.released_at.is_some());
}

#[tokio::test]
async fn ten_thousand_documents_are_read_in_one_scan() {
    const POLLERS: usize = 10_000;
    let world = World::new();
    for number in 0..POLLERS {
        let mut document = world.fresh(&format!("p{number}"));
        document.in_flight = Some(batch());
        world.put(&document).await;
    }
    let report = world.controller_of("r", Mode::Repair, []).run(true).await.unwrap();
    assert_eq!(report.findings.len(), POLLERS, "no poller is in the settings");
    let calls = world.store.take_calls();
    println!("{}", report.summary());
    println!("counted below: {calls:?}");
    assert_eq!((report.calls.reads, report.calls.writes), (10_002, 3));
    // Its own document: created blank, written with its lease, released.
    assert_eq!((calls.gets, calls.puts), (10_002, 3));
    let memory = world.document(DOCUMENT).await;
    assert_eq!(Memory::read(&memory).0.len(), POLLERS);
    assert_eq!(memory.lease_state_for_others(age_of_nothing()), LeaseState::Free);
}

fn age_of_nothing() -> crate::document::DocumentAge {
    crate::document::DocumentAge { since_write: Duration::ZERO, grain: Duration::ZERO }
}
