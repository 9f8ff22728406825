use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use time::OffsetDateTime;
use time::macros::datetime;

use super::*;
use crate::cursor::{Cursor, KeyValues, RowVersion, SourceFingerprint};
use crate::document::{
    Acquire, AfterCommit, AuditStep, BacklogObservation, Commit, DocumentAge, EndOfTick, Failure,
    Generation, Holder, InFlight, Paused, RecentTick, StateDocument, StepResult,
};

const START: OffsetDateTime = datetime!(2026-04-07 23:50:00 UTC);

fn at(version: u64) -> Cursor {
    let mut key = KeyValues::new();
    key.insert("id".to_owned(), version.into());
    Cursor::row_version(RowVersion(version), key)
}

fn batch(after: Option<&Cursor>, upto: u64) -> InFlight {
    serde_json::from_value(serde_json::json!({
        "batch_id": format!("batch_{upto}"),
        "after": after,
        "upto": at(upto),
        "rows": 1,
        "digest": format!("{upto}"),
    }))
    .unwrap()
}

fn begun(generation: u64) -> StateDocument {
    StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(generation))
}

/// One event of a poller that two processes run.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A process runs a tick of so many batches; the last one fails if `fails`. Each batch is first accepted by
    /// `steps` steps of a chain.
    Tick { process: usize, batches: u64, steps: usize, fails: bool, append: Appended },
    /// A process acquires the lease, renews nothing, and crashes.
    Die { process: usize },
    /// An operator pauses and resumes the poller.
    Pause,
    /// An operator moves the checkpoint back to the beginning.
    Reset,
    /// The controller releases an expired lease.
    Recover,
    /// The document is restored, from a copy or from its history.
    Restore { imported: bool },
    /// The history is restarted.
    Compact,
    /// An idle tick of a process stores retained source state.
    Note { process: usize },
    /// An idle tick records that it ran: no entry records that.
    Observe,
    /// Time passes.
    Wait { minutes: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Appended {
    Yes,
    /// It did not happen, and the process knows or assumes so.
    No,
    /// It happened, and was retried.
    Twice,
    /// The process crashed before it.
    Died,
    /// An append that was started in the middle of the tick got no response; the one at its end did.
    Midway {
        /// Whether the first one happened anyway.
        landed: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let appended = prop_oneof![
        6 => Just(Appended::Yes),
        1 => Just(Appended::No),
        1 => Just(Appended::Twice),
        1 => Just(Appended::Died),
        2 => any::<bool>().prop_map(|landed| Appended::Midway { landed }),
    ];
    prop_oneof![
        8 => (0..2_usize, 1..4_u64, 0..3_usize, any::<bool>(), appended)
            .prop_map(|(process, batches, steps, fails, append)| {
                Step::Tick { process, batches, steps, fails, append }
            }),
        1 => Just(Step::Recover),
        1 => any::<bool>().prop_map(|imported| Step::Restore { imported }),
        1 => Just(Step::Compact),
        1 => (0..2_usize).prop_map(|process| Step::Note { process }),
        1 => (0..2_usize).prop_map(|process| Step::Die { process }),
        1 => Just(Step::Pause),
        1 => Just(Step::Reset),
        1 => Just(Step::Observe),
        1 => any::<u8>().prop_map(|minutes| Step::Wait { minutes }),
    ]
}

/// A document, its journal, and every previous document.
struct World {
    mode: JournalMode,
    now: OffsetDateTime,
    document: StateDocument,
    writes: u64,
    row: u64,
    recorders: [Recorder; 2],
    journal: Vec<u8>,
    past: BTreeMap<u64, StateDocument>,
    /// Whether nothing was dropped from the journal.
    whole: bool,
    /// Whether the first batch of a tick is appended before the tick ends.
    appends_midway: bool,
    /// Lines whose append was started in the middle of a tick.
    midway: Option<Vec<u8>>,
}

impl World {
    fn new(mode: JournalMode) -> Self {
        Self {
            mode,
            now: START,
            document: begun(7),
            writes: 0,
            row: 0,
            recorders: [Recorder::new(mode), Recorder::new(mode)],
            journal: Vec::new(),
            past: BTreeMap::new(),
            whole: true,
            appends_midway: false,
            midway: None,
        }
    }

    fn write(&mut self, event: EventKind, mut next: StateDocument) {
        self.writes += 1;
        next.write_id = format!("w{}", self.writes);
        if self.mode.number(event, &mut next) {
            self.past.insert(next.journal_seq, next.clone());
        }
        self.document = next;
    }

    fn seen(&mut self, process: usize, event: EventKind, holder: &Holder) {
        let (at, document) = (self.now, &self.document);
        let details = Details::default();
        self.recorders[process].record(HolderEvent { event, at, holder, document, details });
    }

    fn acquire(&mut self, process: usize) -> Holder {
        let owner_id = ["a", "b"][process];
        let age = DocumentAge { since_write: Duration::from_secs(900), grain: Duration::ZERO };
        let after = self.document.checkpoint.cursor.clone();
        let request = Acquire {
            owner_id,
            ttl: Duration::from_secs(60),
            age,
            now: self.now,
            in_flight: Some(batch(after.as_ref(), self.row + 1)),
        };
        let mut held = self.document.acquire(request).unwrap();
        held.marked = true;
        let holder = held.holder(owner_id);
        self.write(EventKind::LeaseAcquired, held);
        self.seen(process, EventKind::LeaseAcquired, &holder);
        self.seen(process, EventKind::ExecutionStarted, &holder);
        holder
    }

    fn end_of_tick(&self) -> EndOfTick {
        let recent = RecentTick {
            at: self.now,
            outcome: "tick_complete".to_owned(),
            rows: 1,
            batches: 1,
            duration_ms: self.writes,
            idle_before: 0,
            longest_ms: BTreeMap::new(),
            extra: serde_json::Map::new(),
        };
        let timings = vec![("fetch", Duration::from_millis(self.writes))];
        EndOfTick { recent, timings, observed: self.observed() }
    }

    fn observed(&self) -> BacklogObservation {
        BacklogObservation {
            at: self.now,
            lag: None,
            positions: Some(self.writes),
            rows: None,
            held_back: None,
            retention_left: None,
            idle_ticks: 3,
            reads: Vec::new(),
            extra: serde_json::Map::new(),
        }
    }

    fn take_steps(&mut self, process: usize, steps: usize, holder: &Holder) {
        for step in 0..steps {
            let batch = self.document.in_flight.clone().unwrap();
            let name = ["first", "second"][step];
            let result = StepResult::accepted(name, batch.digest.clone(), self.now);
            let next = self.document.complete_step(holder, batch, (step, result)).unwrap();
            self.write(EventKind::StepComplete, next);
            self.seen(process, EventKind::StepComplete, holder);
        }
    }

    fn tick(&mut self, process: usize, batches: u64, steps: usize, fails: bool) {
        let holder = self.acquire(process);
        for left in (0..batches).rev() {
            self.take_steps(process, steps, &holder);
            if fails && left == 0 {
                let failure = Failure {
                    error: "503".to_owned(),
                    step: None,
                    kind: "handler_failed",
                    counted: true,
                    next_attempt_at: None,
                    now: self.now,
                    tick: Some(self.end_of_tick()),
                    narrowed: None,
                    pause: None,
                };
                let failed = self.document.fail(&holder, failure).unwrap();
                self.write(EventKind::HandlerFailed, failed);
                return self.seen(process, EventKind::HandlerFailed, &holder);
            }
            self.row += 1;
            let then = match left {
                0 => AfterCommit::Release(Some(self.end_of_tick())),
                _ => AfterCommit::Announce(Box::new(batch(Some(&at(self.row)), self.row + 1))),
            };
            let (upto, now) = (at(self.row), self.now);
            let batch_id = batch(None, self.row).batch_id;
            let commit = Commit {
                batch_id,
                upto,
                rows: 1,
                is_diverted: false,
                unreadable_last: 0,
                now,
                audit: AuditStep::Off,
                then,
            };
            let renewed = self.document.renew(&holder, self.now + Duration::from_secs(1)).unwrap();
            self.document = renewed;
            let committed = self.document.commit(&holder, commit).unwrap();
            self.write(EventKind::BatchComplete, committed);
            self.seen(process, EventKind::BatchComplete, &holder);
            if self.appends_midway && self.midway.is_none() {
                self.midway = self.recorders[process].take().map(|append| append.bytes);
            }
        }
    }

    fn append(&mut self, process: usize, how: Appended) {
        let recorder = &mut self.recorders[process];
        if let Some(bytes) = self.midway.take() {
            recorder.lost();
            if how == (Appended::Midway { landed: true }) {
                self.journal.extend(bytes);
            }
        }
        let pending = recorder.take();
        let bytes = pending.map_or_else(Vec::new, |pending| pending.bytes);
        match how {
            Appended::Yes | Appended::Midway { .. } => {
                self.journal.extend(bytes);
                recorder.mark_recorded();
            }
            Appended::Twice => {
                self.journal.extend([bytes.clone(), bytes].concat());
                recorder.mark_recorded();
            }
            Appended::No => recorder.lost(),
            Appended::Died => *recorder = Recorder::new(self.mode),
        }
        self.whole &= matches!(how, Appended::Yes | Appended::Twice);
    }

    fn by_operator(&mut self, event: EventKind, next: StateDocument) {
        self.write(event, next);
        let entry = Entry::of_operator(event, &self.document, self.now, "eve@laptop", Some("why"));
        entry.write_to(&mut self.journal);
    }

    fn run(&mut self, step: Step) {
        self.now += Duration::from_secs(7);
        let age = DocumentAge { since_write: Duration::from_secs(5), grain: Duration::ZERO };
        match step {
            Step::Tick { process, batches, steps, fails, append } => {
                self.appends_midway = matches!(append, Appended::Midway { .. });
                self.tick(process, batches, steps, fails);
                self.append(process, append);
            }
            Step::Recover => {
                let released = self.document.break_lease().unwrap();
                self.by_operator(EventKind::Recovered, released);
            }
            Step::Restore { imported } => {
                let event = if imported { EventKind::Imported } else { EventKind::Rebuilt };
                let generation = Generation(self.document.generation.0 + 1);
                let token = self.document.lease.fencing_token;
                self.by_operator(event, self.document.restored(generation, token).unwrap());
            }
            Step::Compact => self.by_operator(EventKind::Compacted, self.document.rewritten(age)),
            Step::Note { process } => {
                let mut next = self.document.clone();
                next.source_state.insert("mark".to_owned(), self.writes.into());
                self.write(EventKind::Noted, next);
                let holder = self.document.holder(["a", "b"][process]);
                self.seen(process, EventKind::Noted, &holder);
                self.append(process, Appended::Yes);
            }
            Step::Die { process } => {
                self.acquire(process);
                self.append(process, Appended::Died);
            }
            Step::Pause => {
                let (by, reason) = ("eve@laptop".to_owned(), "why".to_owned());
                let paused = Paused { by, reason, at: self.now, extra: serde_json::Map::new() };
                self.by_operator(EventKind::Paused, self.document.pause(paused, age));
                self.by_operator(EventKind::Resumed, self.document.resume(age));
            }
            Step::Reset => {
                let to = self.document.reset(None, format!("replay-{}", self.writes)).unwrap();
                self.by_operator(EventKind::Reset, to);
            }
            Step::Observe => {
                self.document = self.document.observe(self.observed(), age);
            }
            Step::Wait { minutes } => self.now += Duration::from_secs(60 * u64::from(minutes)),
        }
    }

    fn folded(&self) -> FoldResult {
        let (mut entries, findings) = read_lines("all", &self.journal);
        assert_eq!(findings, []);
        // In any order of days and processes.
        entries.reverse();
        fold(entries)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn folding_a_complete_journal_gives_the_document_as_of_its_last_entry(
        steps in prop::collection::vec(step(), 1..30),
        mode in prop_oneof![Just(JournalMode::Full), Just(JournalMode::Commits)],
    ) {
        let mut world = World::new(mode);
        for step in steps {
            let step = match step {
                Step::Tick { process, batches, steps, fails, .. } => {
                    Step::Tick { process, batches, steps, fails, append: Appended::Twice }
                }
                Step::Die { .. } => Step::Observe,
                Step::Pause
                | Step::Reset
                | Step::Recover
                | Step::Restore { .. }
                | Step::Compact
                | Step::Note { .. }
                | Step::Observe
                | Step::Wait { .. } => step,
            };
            world.run(step);
            let folded = world.folded();
            prop_assert_eq!(&folded.findings, &[]);
            let last = world.past.last_key_value().map(|(_, last)| last);
            prop_assert_eq!(folded.document.as_ref(), last);
            let verdict = verify(mode, &folded, Some(&world.document));
            let nothing_yet = folded.document.is_none()
                && verdict == Verdict::NotBegun { writes: world.document.journal_seq };
            prop_assert!(verdict == Verdict::Agrees || nothing_yet, "{:?}", verdict);
        }
    }

    #[test]
    fn a_crash_between_a_write_and_its_append_leaves_a_journal_that_is_reported_as_behind(
        steps in prop::collection::vec(step(), 1..40),
        mode in prop_oneof![Just(JournalMode::Full), Just(JournalMode::Commits)],
    ) {
        let mut world = World::new(mode);
        for step in steps {
            world.run(step);
            let folded = world.folded();
            let Some(document) = &folded.document else {
                let verdict = verify(mode, &folded, Some(&world.document));
                prop_assert!(verdict.is_explained(), "{:?}", verdict);
                continue;
            };
            // It existed, so its checkpoint was really committed.
            prop_assert_eq!(document, &world.past[&document.journal_seq]);
            let verdict = verify(mode, &folded, Some(&world.document));
            prop_assert!(verdict.is_explained(), "{:?}", verdict);
            let is_behind = document.journal_seq < world.document.journal_seq;
            prop_assert_eq!(is_behind, matches!(verdict, Verdict::Behind { .. }));
            for finding in &folded.findings {
                prop_assert!(matches!(finding, Finding::Missing { .. }), "{}", finding);
                prop_assert!(!world.whole);
            }
        }
    }
}

/// Returns the journal of three ticks of one process within a day.
fn three_ticks() -> World {
    let mut world = World::new(JournalMode::Full);
    world.now = datetime!(2026-04-07 1:00 UTC);
    for _ in 0..3 {
        let append = Appended::Yes;
        world.run(Step::Tick { process: 0, batches: 1, steps: 0, fails: false, append });
    }
    world
}

fn lines(world: &World) -> Vec<serde_json::Value> {
    let lines = world.journal.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn the_first_entry_is_a_snapshot_and_the_next_ones_say_what_changed() {
    let lines = lines(&three_ticks());
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["lease_acquired", "execution_started", "batch_complete"].repeat(3));
    let snapshots: Vec<_> = lines.iter().map(|line| line.get("document").is_some()).collect();
    assert_eq!(snapshots.iter().filter(|is| **is).count(), 1);
    assert!(snapshots[0]);
    let seqs: Vec<_> = lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [1, 1, 2, 3, 3, 4, 5, 5, 6]);
    assert!(lines[1].get("write_id").is_none(), "no write: {}", lines[1]);
}

#[test]
fn each_day_starts_with_a_snapshot() {
    let mut world = three_ticks();
    world.run(Step::Wait { minutes: 255 });
    let is_new_day = |world: &World| world.now.date() != START.date();
    while !is_new_day(&world) {
        world.run(Step::Wait { minutes: 255 });
    }
    let before = world.journal.len();
    world.run(Step::Tick { process: 0, batches: 1, steps: 0, fails: false, append: Appended::Yes });
    world.journal.drain(..before);
    assert_eq!(world.folded().document, Some(world.document.clone()));
}

#[test]
fn a_journal_with_missing_lines_names_them() {
    let world = three_ticks();
    let (all, _) = read_lines("all", &world.journal);
    let without = |lost: &[u64]| {
        fold(all.iter().filter(|entry| !lost.contains(&entry.seq)).cloned().collect())
    };
    let generation = Generation(7);
    let folded = without(&[3]);
    assert_eq!(folded.document, Some(world.past[&2].clone()));
    assert_eq!(
        folded.findings,
        [
            Finding::Missing { generation, from: 3, to: 3 },
            Finding::Unreachable { generation, seq: 4 },
            Finding::Unreachable { generation, seq: 5 },
            Finding::Unreachable { generation, seq: 6 },
        ]
    );
    assert_eq!(without(&[1]).document, None);
    assert_eq!(verify(JournalMode::Full, &without(&[1]), None), Verdict::NoHistory);
    let unexplained = verify(JournalMode::Full, &without(&[1]), Some(&world.document));
    assert_eq!(unexplained, Verdict::NoHistory, "there are lines, but they lead nowhere");
}

#[test]
fn unreadable_lines_are_named_and_the_others_used() {
    let mut world = three_ticks();
    let cut = world.journal.len() - 10;
    world.journal.truncate(cut);
    world.journal.extend(b"\n{\"version\":1}\n\n");
    let (entries, findings) = read_lines("2026-04-07", &world.journal);
    assert_eq!(entries.len(), 8);
    let places: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(places[0].starts_with("line 9 of `2026-04-07` cannot be read: EOF"), "{places:?}");
    assert!(places[1].starts_with("line 10 of `2026-04-07` cannot be read: missing"), "{places:?}");
    assert_eq!(fold(entries).document, Some(world.past[&5].clone()));
}

#[test]
fn an_event_of_a_newer_version_is_kept_and_a_malformed_one_is_named() {
    let world = three_ticks();
    let text = String::from_utf8(world.journal.clone()).unwrap();
    let (entries, findings) =
        read_lines("p", text.replace("batch_complete", "batch_blessed").as_bytes());
    assert_eq!(findings, []);
    assert_eq!(fold(entries).document, Some(world.document));
    let (entries, findings) =
        read_lines("p", text.replacen("\"version\":1", "\"version\":2", 1).as_bytes());
    assert_eq!((entries.len(), findings.len()), (8, 1));
    assert!(findings[0].to_string().contains("has version 2, this build reads 1"));
}

#[test]
fn two_writes_of_one_number_are_reported() {
    let world = three_ticks();
    let (mut entries, _) = read_lines("all", &world.journal);
    let mut other = entries.last().unwrap().clone();
    other.write_id = Some("foreign".to_owned());
    entries.push(other);
    let folded = fold(entries);
    let forked =
        Finding::Forked { generation: Generation(7), seq: 6, write_id: "foreign".to_owned() };
    assert_eq!(folded.findings, [forked]);
    assert_eq!(folded.document, Some(world.document));
}

#[test]
fn a_write_that_decreases_a_growing_value_is_reported() {
    let world = three_ticks();
    let back = |event, change: &dyn Fn(&mut StateDocument)| {
        let mut document = world.document.clone();
        document.journal_seq += 1;
        change(&mut document);
        let (mut entries, _) = read_lines("all", &world.journal);
        entries.push(Entry::of_operator(event, &document, START, "eve", None));
        fold(entries).findings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let to_one = |document: &mut StateDocument| document.checkpoint.cursor = Some(at(1));
    assert_eq!(
        back(EventKind::Paused, &to_one),
        ["entry 7 of generation 7 moves the checkpoint back"]
    );
    assert_eq!(
        back(EventKind::Paused, &|document| document.checkpoint.cursor = None),
        ["entry 7 of generation 7 moves the checkpoint back"]
    );
    assert_eq!(
        back(EventKind::Reset, &|document| document.lease.fencing_token.0 -= 1),
        ["entry 7 of generation 7 moves the fencing token back"]
    );
    assert_eq!(back(EventKind::Reset, &to_one), Vec::<String>::new());
}

#[test]
fn the_first_difference_between_history_and_document_is_named() {
    let world = three_ticks();
    let verdict = |change: &dyn Fn(&mut StateDocument)| {
        let mut document = world.document.clone();
        change(&mut document);
        verify(JournalMode::Full, &world.folded(), Some(&document))
    };
    assert_eq!(verdict(&|_| ()), Verdict::Agrees);
    // As of a version that recorded no activity.
    assert_eq!(verdict(&|document| document.activity.clear()), Verdict::Agrees);
    let Verdict::Differs(difference) = verdict(&|document| {
        document.checkpoint.metadata.row_count = 9;
        document.source_state.insert("a/b".to_owned(), 1.into());
    }) else {
        panic!("they differ");
    };
    assert_eq!(
        difference.to_string(),
        "`/checkpoint/metadata/row_count` is 9, the journal leads to 1"
    );
    let Verdict::Differs(difference) = verdict(&|document| {
        document.source_state.insert("a/b".to_owned(), 1.into());
    }) else {
        panic!("they differ");
    };
    assert_eq!(difference.pointer, "/source_state/a~1b");
    assert_eq!(
        verdict(&|document| document.journal_seq = 4),
        Verdict::DocumentIsOlder { document: 4, journal: 6 }
    );
    assert_eq!(verdict(&|document| document.journal_seq = 9), Verdict::Behind { from: 7, to: 9 });
    assert_eq!(
        verdict(&|document| document.generation = Generation(8)),
        Verdict::RestartedHistory { generation: Generation(8) }
    );
    assert!(matches!(
        verdict(&|document| document.generation = Generation(6)),
        Verdict::DocumentIsOlder { .. }
    ));
    assert_eq!(verify(JournalMode::Full, &world.folded(), None), Verdict::NoDocument);
}

#[test]
fn unrecorded_events_are_not_numbered() {
    for (mode, counted) in
        [(JournalMode::Off, 0), (JournalMode::Commits, 3), (JournalMode::Full, 9)]
    {
        let mut world = World::new(mode);
        for _ in 0..3 {
            world.run(Step::Tick {
                process: 0,
                batches: 1,
                steps: 1,
                fails: false,
                append: Appended::Yes,
            });
        }
        assert_eq!(world.document.journal_seq, counted);
        assert_eq!(!world.journal.is_empty(), mode != JournalMode::Off);
    }
}

#[test]
fn a_document_of_a_newer_grant_is_not_recorded_as_ours() {
    let mut world = three_ticks();
    let holder = world.document.holder("a");
    world.run(Step::Tick { process: 1, batches: 1, steps: 0, fails: false, append: Appended::Yes });
    world.seen(0, EventKind::BatchComplete, &holder);
    world.append(0, Appended::Yes);
    let last = lines(&world).pop().unwrap();
    assert_eq!((last["owner_id"].as_str(), last["fencing_token"].as_u64()), (Some("a"), Some(3)));
    assert!(last.get("document").is_none() && last.get("changes").is_none(), "{last}");
    assert_eq!(world.folded().document, Some(world.document.clone()));
}

/// The page of the journal names exactly the events that exist.
#[test]
fn the_page_of_the_journal_names_each_event() {
    let page = include_str!("../../../docs/reference/journal.md");
    let row = page.lines().find(|line| line.starts_with("| `event` |")).unwrap();
    let mut named: Vec<_> = row.split('`').skip(3).step_by(2).collect();
    let code = include_str!("entry.rs");
    let arms =
        code.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => \""));
    let mut existing: Vec<_> = arms.filter_map(|(_, rest)| rest.strip_suffix("\",")).collect();
    existing.retain(|name| *name != EventKind::Unknown.as_str());
    assert!(existing.len() > 15, "{existing:?}");
    named.sort_unstable();
    existing.sort_unstable();
    assert_eq!(named, existing);
    for name in existing {
        let event: EventKind = serde_json::from_value(name.into()).unwrap();
        assert_eq!(event.as_str(), name);
    }
}

/// The first entries were lost, and only notes of the same tick were appended. A document that then claims a history
/// would make an operator look for a journal that somebody removed.
#[test]
fn notes_alone_are_no_history() {
    let mut world = World::new(JournalMode::Full);
    world.acquire(0);
    let recorder = &mut world.recorders[0];
    assert!(recorder.take().is_some());
    recorder.lost();
    let holder = world.document.holder("a");
    world.seen(0, EventKind::ExecutionStarted, &holder);
    for has_history in [false, true] {
        let recorder = &mut world.recorders[0];
        assert!(recorder.take().is_some());
        recorder.mark_recorded();
        let mut next = world.document.clone();
        recorder.numbering().number(EventKind::BatchComplete, &mut next);
        assert_eq!(next.journal_told, has_history);
        world.acquire(0);
    }
}
