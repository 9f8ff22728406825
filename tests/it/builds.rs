//! Recorded documents and journals of old builds. This build reads them, continues from them, and writes
//! nothing that the old build could not read.
//!
//! Each folder of `tests/it/builds` belongs to one build and is never changed; `docs/how-to/upgrades.md` says
//! how to create it. The old build's own documents show what it needs: a field that it always wrote must
//! exist, and a field may only have a kind that it had there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::handler::HandlerError;
use highwater::journal::{
    JournalMode, JournalStore as _, MemoryJournal, Verdict, fold, read_lines, verify,
};
use highwater::lease::{Instance, LeaseTerms};
use highwater::metrics::Metrics;
use highwater::policy::FailurePolicy;
use highwater::poller::{Operator, Poller, PollerParts};
use highwater::source::Source as _;
use highwater::state::{
    MemoryStore, Precondition, StateDocument, StateKey, StateStore as _, decode, encode,
};
use highwater::testing::{RecordingHandler, TableSource};
use highwater::tick::TickRequest;
use serde_json::Value as Json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::documents::lost;
use crate::ticks::limits;

const POLLER: &str = "nightly";
/// When each document was recorded.
const STAGES: [&str; 7] = ["begun", "failed", "in-hand", "last", "noted", "paused", "taken"];

/// The recordings of one build.
struct Build {
    name: String,
    documents: BTreeMap<&'static str, Vec<u8>>,
    journal: Vec<u8>,
}

impl Build {
    fn all() -> Vec<Self> {
        let folder = highwater_test_support::root().join("tests/it/builds");
        let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let builds: Vec<Self> = folders.map(|folder| Self::read(&folder)).collect();
        assert!(!builds.is_empty());
        builds
    }

    fn read(folder: &Path) -> Self {
        let read = |stage: &'static str| {
            (stage, fs::read(folder.join(stage).with_extension("json")).unwrap())
        };
        Self {
            name: folder.file_name().unwrap().to_str().unwrap().to_owned(),
            documents: STAGES.into_iter().map(read).collect(),
            journal: fs::read(folder.join("journal.ndjson")).unwrap(),
        }
    }

    fn document(&self, stage: &str) -> StateDocument {
        decode(POLLER, &self.documents[stage]).unwrap_or_else(|error| {
            panic!("{}: {stage}: {error}", self.name);
        })
    }
}

fn json(bytes: &[u8]) -> Json {
    serde_json::from_slice(bytes).unwrap()
}

fn lines(bytes: &[u8]) -> Vec<Json> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(json).collect()
}

#[test]
fn documents_of_an_old_build_round_trip() {
    for build in Build::all() {
        for (stage, bytes) in &build.documents {
            let document = build.document(stage);
            let written = json(&encode(&document));
            assert_eq!(lost(&json(bytes), &written, ""), None, "{}: {stage}", build.name);
        }
        let [failed, in_flight_document] = ["failed", "in-hand"].map(|stage| build.document(stage));
        assert_eq!(failed.in_flight.unwrap().attempt, 1);
        assert!(
            in_flight_document.in_flight.is_some()
                && in_flight_document.lease.released_at.is_none()
        );
        assert!(build.document("paused").paused.is_some());
    }
}

#[test]
fn the_journal_of_an_old_build_rebuilds_its_document() {
    for build in Build::all() {
        let (entries, findings) = read_lines("journal", &build.journal);
        assert_eq!(findings, [], "{}", build.name);
        for (read, entry) in lines(&build.journal).iter().zip(&entries) {
            let mut written = Vec::new();
            entry.write_to(&mut written);
            assert_eq!(lost(read, &json(&written), ""), None, "{}", build.name);
        }
        let folded = fold(entries);
        assert_eq!(folded.findings, [], "{}", build.name);
        let verdict = verify(JournalMode::Full, &folded, Some(&build.document("last")));
        assert_eq!(verdict, Verdict::Agrees, "{}", build.name);
    }
}

#[tokio::test]
async fn an_old_build_can_read_what_this_build_writes() {
    for build in Build::all() {
        let (mut old, mut new) = (Shape::default(), Shape::default());
        for bytes in build.documents.values() {
            old.add("", &json(bytes));
        }
        // Where rows have times; these documents are of another mode.
        old.add("", &serde_json::json!({ "observed": { "lag": 0.5 } }));
        let BuildOutput { documents, journal } = Box::pin(continue_from(&build)).await;
        assert!(documents.len() > 4);
        for document in &documents {
            new.add("", document);
            for required in document["requires"].as_array().unwrap() {
                assert_eq!(required, "paused", "features unknown to the old build stop it");
            }
        }
        for (shape, journal) in [(&mut old, &build.journal), (&mut new, &journal)] {
            for line in lines(journal) {
                shape.add_entry(&line);
            }
        }
        assert_eq!(old.incompatibilities(&new), Vec::<String>::new(), "{}", build.name);
    }
}

/// What this build wrote.
struct BuildOutput {
    documents: Vec<Json>,
    journal: Vec<u8>,
}

/// Continues from an old build's document: delivers, fails, is paused and resumed, and delivers.
async fn continue_from(build: &Build) -> BuildOutput {
    let source = Arc::new(TableSource::new(POLLER));
    let mut document = build.document("taken");
    let cursor = document.checkpoint.cursor.as_ref().unwrap().value.clone();
    let at = u64::from_str_radix(cursor.trim_start_matches("0x"), 16).unwrap();
    document.source_fingerprint = source.shape().fingerprint.clone();
    let (store, key) = (Arc::new(MemoryStore::default()), StateKey::Document(POLLER.to_owned()));
    store.store(&key, encode(&document), Precondition::Absent).await.unwrap();
    let (handler, journal) =
        (Arc::new(RecordingHandler::default()), Arc::new(MemoryJournal::default()));
    let poller =
        poller(&source, &handler, &store).with_journal(JournalMode::Full, journal.clone(), None);
    let stored = {
        let store = Arc::clone(&store);
        async move || {
            let key = StateKey::Document(POLLER.to_owned());
            json(&store.load(&key).await.unwrap().stored.unwrap().bytes)
        }
    };
    let mut documents = Vec::new();
    let tick = async || poller.tick(&TickRequest::default()).await.result;

    source.put_late(101, at + 1);
    let in_flight_document = Arc::new(Mutex::new(Json::Null));
    handler.then({
        let (in_flight_document, stored) = (Arc::clone(&in_flight_document), stored.clone());
        async move {
            let found = stored().await;
            *in_flight_document.lock().unwrap() = found;
            Ok(())
        }
    });
    tick().await.unwrap();
    documents.push(in_flight_document.lock().unwrap().take());
    documents.push(stored().await);
    source.put_late(102, at + 2);
    handler.then_fail(HandlerError::Retryable("not now".to_owned()));
    tick().await.unwrap_err();
    documents.push(stored().await);
    let ann = Operator { by: "ann", reason: "the target moves" };
    poller.admin().pause(ann).await.unwrap();
    documents.push(stored().await);
    poller.admin().resume(ann).await.unwrap();
    documents.push(stored().await);
    tick().await.unwrap();
    documents.push(stored().await);
    assert_eq!(handler.ids(), [101, 102, 102]);

    let mut entries = Vec::new();
    for part in journal.list(POLLER).await.unwrap() {
        entries.extend(journal.read(&part, 0).await.unwrap());
    }
    BuildOutput { documents, journal: entries }
}

fn poller(
    source: &Arc<TableSource>,
    handler: &Arc<RecordingHandler>,
    store: &Arc<MemoryStore>,
) -> Poller {
    let second = Duration::from_secs(1);
    Poller::new(PollerParts {
        name: POLLER.to_owned(),
        source: source.clone(),
        handler: handler.clone(),
        store: store.clone(),
        instance: Arc::new(Instance::new("this build")),
        terms: LeaseTerms::of(30 * second),
        limits: limits(2),
        policy: FailurePolicy::default(),
        metrics: Arc::new(Metrics::default()),
    })
}

/// The structure of one kind of JSON: in each object, how often each field occurs and with which kinds.
#[derive(Default)]
struct Shape(BTreeMap<String, Fields>);

#[derive(Default)]
struct Fields {
    /// How often the object occurred.
    times: usize,
    fields: BTreeMap<String, (usize, BTreeSet<&'static str>)>,
}

impl Shape {
    fn add(&mut self, place: &str, value: &Json) {
        match value {
            Json::Object(fields) => {
                let known = self.0.entry(place.to_owned()).or_default();
                known.times += 1;
                for (name, value) in fields {
                    let known = known.fields.entry(name.clone()).or_default();
                    known.0 += 1;
                    known.1.insert(kind(value));
                }
                for (name, value) in fields {
                    self.add(&format!("{place}/{name}"), value);
                }
            }
            Json::Array(items) => {
                for item in items {
                    self.add(&format!("{place}/*"), item);
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
        }
    }

    /// Adds a journal entry: entries of one event have the same fields, besides a document or parts of one.
    fn add_entry(&mut self, line: &Json) {
        let mut entry = line.as_object().unwrap().clone();
        if let Some(document) = entry.remove("document") {
            self.add("", &document);
        }
        let changes = entry.remove("changes").unwrap_or_default();
        for (name, value) in changes["set"].as_object().into_iter().flatten() {
            self.add(&format!("/{name}"), value);
        }
        self.add(line["event"].as_str().unwrap(), &Json::Object(entry));
    }

    /// Returns the differences that a reader of this shape could not read.
    fn incompatibilities(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let shared =
            self.0.iter().filter_map(|(place, ours)| Some((place, ours, other.0.get(place)?)));
        for (place, ours, theirs) in shared {
            // Which timings exist depends on the earlier actions.
            let varies = ["/timings", "/longest_ms"];
            let is_whole = !varies.iter().any(|end| place.ends_with(end));
            for (name, (times, kinds)) in &ours.fields {
                let known = theirs.fields.get(name);
                let is_needed = is_whole && *times == ours.times;
                if is_needed && known.is_none_or(|(times, _)| *times < theirs.times) {
                    found.push(format!("{place}/{name} is missing"));
                }
                for kind in known
                    .into_iter()
                    .flat_map(|(_, kinds)| kinds)
                    .filter(|kind| !kinds.contains(*kind))
                {
                    found.push(format!("{place}/{name} is {kind}, and was {kinds:?}"));
                }
            }
        }
        found
    }
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "nothing",
        Json::Bool(_) => "yes or no",
        Json::Number(number) if number.is_f64() => "a fraction",
        Json::Number(_) => "a whole number",
        Json::String(text) if OffsetDateTime::parse(text, &Rfc3339).is_ok() => "a time",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

#[test]
fn an_incompatibility_is_detected() {
    let shape = |documents: &[Json]| {
        let mut shape = Shape::default();
        for document in documents {
            shape.add("", document);
        }
        shape
    };
    let old = shape(&[
        serde_json::json!({ "a": { "b": 1, "at": "2026-04-07T01:23:45Z" }, "c": [{ "d": "x" }], "e": null }),
        serde_json::json!({ "a": { "b": 2, "at": null }, "c": [] }),
    ]);
    for (new, expected) in [
        (serde_json::json!({ "a": { "b": 3, "at": null, "new": 1 }, "c": [] }), vec![]),
        (
            serde_json::json!({ "a": { "b": 3 }, "c": [{}] }),
            vec!["/a/at is missing", "/c/*/d is missing"],
        ),
        (
            serde_json::json!({ "a": null }),
            vec!["/a is nothing, and was {\"an object\"}", "/c is missing"],
        ),
        (
            serde_json::json!({ "a": { "b": 1.5, "at": "soon" }, "c": [], "e": null }),
            vec![
                "/a/at is a text, and was {\"a time\", \"nothing\"}",
                "/a/b is a fraction, and was {\"a whole number\"}",
            ],
        ),
    ] {
        assert_eq!(old.incompatibilities(&shape(&[new])), expected);
    }
}
