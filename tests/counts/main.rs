//! Work whose instructions `.ci/instructions.mjs` counts, so that the noise of the machine has no effect.
//!
//! Without arguments each section runs once, as a smoke test. With the name of a section, only that one runs.
//! Only work within [`counted`] is counted.

#![expect(clippy::unwrap_used, reason = "what fails here is to fail")]

mod flights;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use highwater::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest, SourceLabel};
use highwater::handler::{CallTries, Delivery, Progress, http};
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::normalize::normalize;
use highwater::policy::FailurePolicy;
use highwater::poller::{Limits, Poller, PollerParts, TickOutcome};
use highwater::source::Rows;
use highwater::state::{
    Acquire, AfterCommit, AuditStep, Commit, DocumentAge, FencingToken, Generation, MemoryStore,
    StateDocument, StateKey, StateStore as _, decode, encode,
};
use highwater::testing::{self, RecordingHandler, TableSource};
use highwater::tick::TickRequest;
use time::OffsetDateTime;
use tokio::runtime::Runtime;

/// Rows of the sections that deal with rows; `.ci/instructions.mjs` divides by it.
const ROWS: usize = 100;

const SECTIONS: [(&str, fn()); 5] = [
    ("read", read),
    ("normalize", normalized),
    ("encode", encoded),
    ("document", document),
    ("idle-tick", idle_tick),
];

fn main() {
    // A test runner passes its own options.
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (name, section) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            section();
        }
    }
}

/// Does the counted work: callgrind only collects within this function.
#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    black_box(black_box(work)())
}

/// The driver's cells to rows.
fn read() {
    let (table, cells) = (flights::table(), flights::cells(ROWS));
    assert_eq!(counted(|| table.read(cells)).unwrap().rows.len(), ROWS);
}

fn rows() -> Rows {
    flights::table().read(flights::cells(ROWS)).unwrap()
}

/// Rows to change events.
fn normalized() {
    let (shape, rows) = (flights::shape(), rows());
    assert_eq!(counted(|| normalize(&shape, &rows)).unwrap().len(), ROWS);
}

/// Change events to a batch's id and the body of its request.
fn encoded() {
    let shape = flights::shape();
    let events = normalize(&shape, &rows()).unwrap();
    let body = counted(|| body(&shape.label, &events));
    assert!(body.len() > ROWS * 100);
}

fn body(source: &SourceLabel, events: &[ChangeEvent]) -> Vec<u8> {
    let batch_id = BatchId::of(&BatchIdentity {
        poller: &source.poller,
        generation: 1,
        replay_id: None,
        after: None,
        upto: &events.last().unwrap().cursor,
        digest: &EventsDigest::of(events),
    });
    let delivery = Delivery {
        poller: &source.poller,
        source,
        batch_id: &batch_id,
        step: None,
        started_at: OffsetDateTime::UNIX_EPOCH,
        generation: Generation(1),
        fencing_token: FencingToken(1),
        attempt: 1,
        tries: CallTries::Several,
        replay_id: None,
        replay_guard: None,
        events,
        traceparent: None,
        tracestate: None,
        progress: &Progress::default(),
    };
    http::body_of(delivery).unwrap()
}

/// The two writes of a tick that delivers: transition and serialization of each.
fn document() {
    let world = World::new();
    let document = world.started_poller();
    let now = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let age = DocumentAge { since_write: Duration::from_secs(9), grain: Duration::ZERO };
    let ttl = Duration::from_secs(120);
    let owner_id = "a";
    let commit = Commit {
        batch_id: document.checkpoint.last_successful_batch_id.clone().unwrap(),
        upto: document.checkpoint.cursor.clone().unwrap(),
        rows: 10,
        is_diverted: false,
        unreadable_last: 0,
        now,
        audit: AuditStep::Off,
        then: AfterCommit::Release(None),
    };
    let written = counted(|| {
        let acquire = Acquire { owner_id, ttl, age, now, in_flight: None };
        let held = document.acquire(acquire).unwrap();
        let acquired = encode(&held);
        let done = held.commit(&held.holder(owner_id), commit).unwrap();
        (acquired, encode(&done))
    });
    assert!(written.0.len() > 1_000 && written.1.len() > 1_000);
}

/// A tick that finds nothing, with the document cached.
fn idle_tick() {
    let world = World::new();
    world.started_poller();
    let request = TickRequest { invocation_id: "invocation".to_owned(), ..TickRequest::default() };
    world.tick();
    let report = counted(|| world.runtime.block_on(world.poller.tick(&request)));
    assert_eq!(report.result.unwrap(), TickOutcome::Idle);
}

/// A poller of an in-memory table.
struct World {
    runtime: Runtime,
    source: Arc<TableSource>,
    store: Arc<MemoryStore>,
    poller: Poller,
}

impl World {
    fn new() -> Self {
        let source = Arc::new(TableSource::new("p"));
        let store = Arc::new(MemoryStore::default());
        let metrics = Arc::new(Metrics::default());
        let poller = Poller::new(PollerParts {
            name: "p".to_owned(),
            source: source.clone(),
            handler: Arc::new(RecordingHandler::default()),
            store: store.clone(),
            instance: Arc::new(Instance::new("a").measured(Arc::clone(&metrics))),
            terms: LeaseTerms::of(Duration::from_secs(120)),
            limits: limits(),
            policy: FailurePolicy::default(),
            metrics,
        });
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        Self { runtime, source, store, poller }
    }

    fn tick(&self) {
        let report = self.runtime.block_on(self.poller.tick(&TickRequest::default()));
        report.result.unwrap();
    }

    /// Returns the document after as many ticks as it records.
    fn started_poller(&self) -> StateDocument {
        for id in 0..60 {
            self.source.put(id, "new");
            self.tick();
        }
        let key = StateKey::Document("p".to_owned());
        let loaded = self.runtime.block_on(self.store.load(&key)).unwrap();
        decode("p", &loaded.stored.unwrap().bytes).unwrap()
    }
}

fn limits() -> Limits {
    Limits { batch_rows_max: 1_000, batch_bytes_max: 4 << 20, ..testing::limits() }
}
