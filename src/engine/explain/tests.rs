//! One row and one poller; each test changes what decides.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use time::macros::{date, datetime};

use super::*;
use crate::cursor::{RowVersion, SourceFingerprint};
use crate::document::{FencingToken, Generation, InFlight, Paused};
use crate::event::{BatchId, BatchIdentity, EventsDigest};
use crate::journal::{Details, Entry, EventKind};
use crate::status::health::PollerState;

const NOON: OffsetDateTime = datetime!(2026-04-07 12:00 UTC);

/// Everything that [`Facts`] refers to.
#[derive(Clone)]
struct World {
    poller: &'static str,
    key: KeyValues,
    mode: CursorMode,
    row: RowReport,
    document: Option<StateDocument>,
    is_same_source: bool,
    health: Health,
    next_tick_at: Option<OffsetDateTime>,
    parked: Option<ParkedKey>,
    may_have_parked: bool,
    journal: JournalFacts,
}

fn at(version: u64, id: i64) -> Cursor {
    Cursor::row_version(RowVersion(version), KeyValues::from_iter([("id", json!(id))]))
}

fn batch_id(number: u64) -> BatchId {
    BatchId::of(&BatchIdentity {
        poller: "orders",
        generation: number,
        replay_id: None,
        after: None,
        upto: &at(number, 1),
        digest: &EventsDigest::of([]),
    })
}

impl World {
    /// Row 7 at version 20, after the checkpoint at version 10; the poller is idle.
    fn new() -> Self {
        let mut document = StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(3));
        document.reset_generation = Some(Generation(3));
        document.checkpoint.cursor = Some(at(10, 1));
        document.checkpoint.metadata.row_count = 2;
        document.checkpoint.updated_at = Some(NOON);
        document.checkpoint.last_successful_batch_id = Some(batch_id(10));
        document.checkpoint.fencing_token = Some(FencingToken(4));
        let row = RowReport {
            exists: true,
            position: Some(at(20, 7)),
            is_after: true,
            is_readable: true,
            is_selected: true,
            bound: Some("0x0000000000000063".to_owned()),
            ..RowReport::default()
        };
        Self {
            poller: "orders",
            key: KeyValues::from_iter([("id", json!("7"))]),
            mode: CursorMode::RowVersion,
            row,
            document: Some(document),
            is_same_source: true,
            health: Health { state: PollerState::Idle, ..Health::default() },
            next_tick_at: None,
            parked: None,
            may_have_parked: false,
            journal: JournalFacts::default(),
        }
    }

    /// The same row, at or before the checkpoint.
    fn passed() -> Self {
        let mut world = Self::new();
        world.row.is_after = false;
        world.row.position = Some(at(5, 7));
        world
    }

    fn document(&mut self) -> &mut StateDocument {
        self.document.as_mut().unwrap()
    }

    fn explain(&self) -> Explanation {
        explain(Facts {
            poller: self.poller,
            key: &self.key,
            mode: self.mode,
            row: &self.row,
            document: self.document.as_ref(),
            is_same_source: self.is_same_source,
            health: &self.health,
            next_tick_at: self.next_tick_at,
            parked: self.parked.clone(),
            may_have_parked: self.may_have_parked,
            journal: self.journal.clone(),
        })
    }

    /// Returns verdicts in order, and the two lines of the summary.
    fn told(&self) -> (Vec<Verdict>, String) {
        let explanation = self.explain();
        assert!(explanation.reason.next.contains("`highwater "), "{explanation:?}");
        let also = explanation.also.iter().map(|reason| reason.verdict);
        let verdicts = std::iter::once(explanation.reason.verdict).chain(also);
        (verdicts.collect(), explanation.summary().join("\n"))
    }

    fn with_journal(mut self, entries: &[Entry]) -> Self {
        let position = self.row.position.clone().unwrap();
        let entries = &numbered(entries);
        self.journal = JournalFacts {
            from: Some(date!(2026 - 04 - 01)),
            is_complete: false,
            deliveries: deliveries::deliveries(entries, &position),
            moved_past: deliveries::moved_past(entries, &position),
            has_moves: entries.iter().any(deliveries::is_move),
            has_quarantined: entries
                .iter()
                .any(|it| it.event == EventKind::RowQuarantined || it.event.settles_parked_row()),
        };
        self
    }
}

fn numbered(entries: &[Entry]) -> Vec<Entry> {
    entries.iter().zip(1..).map(|(entry, seq)| Entry { seq, ..entry.clone() }).collect()
}

fn check(world: &World, verdict: Verdict, expected: &expect_test::Expect) {
    let (verdicts, summary) = world.told();
    assert_eq!(verdicts, [verdict], "{summary}");
    expected.assert_eq(&summary);
}

fn entry(event: EventKind, minute: u8, after: Option<Cursor>, upto: Cursor) -> Entry {
    let document = StateDocument::new("orders", SourceFingerprint::of(&[]), Generation(3));
    let at = NOON.replace_minute(minute).unwrap();
    let mut entry = Entry::of_operator(event, &document, at, "ann", None);
    entry.fencing_token = FencingToken(u64::from(minute));
    entry.details = Details {
        batch_id: Some(batch_id(minute.into())),
        after,
        upto: Some(upto),
        rows: Some(2),
        error: (event != EventKind::BatchComplete).then(|| "422 no such item".to_owned()),
        ..Details::default()
    };
    entry
}

#[test]
fn a_row_that_only_waits_for_a_tick_is_due() {
    let mut world = World::new();
    check(
        &world,
        Verdict::Due,
        &expect![[r"
            orders, id=7: not delivered yet: it is due, and the next tick delivers it
            next: `highwater tick orders` delivers it now"]],
    );
    world.next_tick_at = Some(NOON);
    assert!(world.told().1.contains("the next tick starts at 2026-04-07T12:00:00Z"));
}

#[test]
fn a_missing_row_is_not_in_the_table() {
    let mut world = World::new();
    world.row = RowReport::default();
    check(
        &world,
        Verdict::NotInTable,
        &expect![[r"
            orders, id=7: not found: the source has no row with this key; mode `change_tracking` or `SOURCE__SOFT_DELETE` reports deleted rows
            next: check the key; `highwater tick orders --dry-run --show 1` prints a due row with its key"]],
    );
    world.mode = CursorMode::ChangeTracking;
    assert!(world.told().1.contains("no recent delete of it is known"));
}

#[test]
fn a_tracked_delete_is_a_change_like_any_other() {
    let mut world = World::new();
    world.mode = CursorMode::ChangeTracking;
    (world.row.exists, world.row.is_deleted) = (false, true);
    assert_eq!(world.told().0, [Verdict::Due]);
    world.row.is_after = false;
    assert_eq!(world.told().0, [Verdict::Delivered]);
}

#[test]
fn a_locked_row_is_unknown() {
    let mut world = World::new();
    world.row = RowReport { exists: true, is_locked: true, ..RowReport::default() };
    check(
        &world,
        Verdict::Locked,
        &expect![[r"
            orders, id=7: unknown: an open transaction has locked the row, so its state cannot be read
            next: run it again; `highwater doctor --poller orders` shows open transactions"]],
    );
    assert!(!world.explain().is_certain);
}

#[test]
fn a_row_of_another_partition_names_that_partition() {
    let mut world = World::new();
    world.poller = "orders__p1";
    world.key = KeyValues::from_iter([("shop", json!("a b")), ("line", json!(7))]);
    world.row.partition = Some(1);
    assert_eq!(world.told().0, [Verdict::Due]);
    world.row.partition = Some(3);
    world.row.position = None;
    check(
        &world,
        Verdict::OtherPartition,
        &expect![[r"
            orders__p1, shop=a b,line=7: not delivered: partition `orders__p3` delivers it
            next: `highwater trace orders__p3 --key 'shop=a b,line=7'` explains it there"]],
    );
}

#[test]
fn a_row_without_a_cursor_is_never_read() {
    let mut world = World::new();
    world.row.null_cursor = Some("changed_at".to_owned());
    check(
        &world,
        Verdict::NullCursor,
        &expect![[r"
            orders, id=7: not delivered: its cursor column `changed_at` is NULL, so it has no position
            next: set `changed_at` in the row; `highwater doctor --poller orders` counts rows without it"]],
    );
}

#[test]
fn a_filtered_row_names_the_predicates_that_do_not_hold() {
    let mut world = World::new();
    let predicate = |text: &str, holds| Predicate { text: text.to_owned(), holds };
    world.row.predicates = vec![predicate("a = 1", true), predicate("b = @b", false)];
    check(
        &world,
        Verdict::FilteredOut,
        &expect![[r"
            orders, id=7: not delivered: filtered out: `b = @b` does not hold for it
            next: change the row or `SOURCE__FILTER`; `highwater doctor --poller orders` checks the settings"]],
    );
    world.row.predicates.push(predicate("c = 3", false));
    assert!(world.told().1.contains("`b = @b` and `c = 3` do not hold"));
    // Whatever the poller does.
    world.health.state = PollerState::Paused;
    world.row.is_after = false;
    assert_eq!(world.told().0, [Verdict::FilteredOut]);
}

#[test]
fn a_row_whose_operation_is_not_selected_says_which() {
    let mut world = World::new();
    world.row.is_selected = false;
    world.row.is_deleted = true;
    check(
        &world,
        Verdict::NotSelected,
        &expect![[r"
            orders, id=7: not delivered: its last change is a delete, which `SOURCE__OPERATIONS` does not select
            next: change `SOURCE__OPERATIONS`; `highwater doctor --poller orders` checks the settings"]],
    );
    world.row.is_deleted = false;
    assert!(world.told().1.contains("is not a delete, which"));
}

#[test]
fn a_position_in_another_source_decides_nothing() {
    let mut world = World::passed();
    world.is_same_source = false;
    check(
        &world,
        Verdict::OtherSource,
        &expect![[r"
            orders, id=7: not delivered yet: the state document belongs to another source than the settings have
            next: `highwater doctor --poller orders` shows the difference and what to do"]],
    );
}

fn quarantined(error: &str) -> ParkedKey {
    ParkedKey {
        key_id: KeyId::of(&at(5, 7).key),
        state: EntryState::Quarantined,
        reason: "refused",
        since: NOON,
        retries: 0,
        next_retry_at: None,
        attempts: 1,
        error: error.to_owned(),
        is_held: true,
        is_delete: false,
    }
}

#[test]
fn a_row_of_a_parked_key_says_when_it_is_retried() {
    let mut world = World::passed();
    let next_retry_at = Some(NOON + time::Duration::minutes(4));
    let known = quarantined("422 no such item");
    world.parked =
        Some(ParkedKey { state: EntryState::Retrying, retries: 3, next_retry_at, ..known });
    check(
        &world,
        Verdict::Parked,
        &expect![[r#"
        orders, id=7: parked: since 2026-04-07T12:00:00Z (refused, 3 retries; next retry 2026-04-07T12:04:00Z): 422 no such item
        next: fix the cause; without waiting for the retry: `highwater quarantine redrive orders 9df4e6ea015ac104ef994f2ece56b888`"#]],
    );
}

#[test]
fn a_quarantined_row_names_its_entry() {
    let mut world = World::passed();
    world.parked = Some(quarantined("422 no such item"));
    check(
        &world,
        Verdict::Quarantined,
        &expect![[r#"
            orders, id=7: quarantined: since 2026-04-07T12:00:00Z (refused, 1 attempt): 422 no such item
            next: fix the cause, then `highwater quarantine redrive orders 9df4e6ea015ac104ef994f2ece56b888`"#]],
    );
    assert_eq!(world.explain().reason.since, Some(NOON));
}

#[test]
fn a_row_in_the_journal_was_delivered_by_that_batch() {
    let world = World::passed().with_journal(&[
        entry(EventKind::BatchComplete, 1, None, at(3, 7)),
        entry(EventKind::HandlerFailed, 2, Some(at(3, 7)), at(6, 1)),
        entry(EventKind::BatchComplete, 3, Some(at(3, 7)), at(6, 1)),
        entry(EventKind::BatchComplete, 4, Some(at(6, 1)), at(10, 1)),
    ]);
    let batch = batch_id(3);
    let (verdicts, summary) = world.told();
    assert_eq!(verdicts, [Verdict::Delivered]);
    assert_eq!(
        summary,
        format!(
            "orders, id=7: delivered: at 2026-04-07T12:03:00Z in {batch} with token 3, accepted\n\
             next: `highwater journal show orders --batch-id {batch}` shows its batch"
        )
    );
    let explanation = world.explain();
    assert!(explanation.is_certain);
    let found: Vec<_> = explanation
        .deliveries
        .iter()
        .map(|it| (it.event, it.token, it.reply.as_str(), it.version.as_str(), it.is_current))
        .collect();
    assert_eq!(
        found,
        [
            ("batch_complete", 1, "accepted", "0x0000000000000003", false),
            ("handler_failed", 2, "422 no such item", "0x0000000000000005", true),
            ("batch_complete", 3, "accepted", "0x0000000000000005", true),
        ],
        "an earlier version was the last row of its batch"
    );
}

#[test]
fn a_delivery_that_only_the_server_could_prove_is_probable() {
    let of = |text: &str| {
        Cursor::row_version(RowVersion(5), KeyValues::from_iter([("id", json!(text))]))
    };
    let mut world = World::passed();
    world.row.position = Some(of("a"));
    let world = world.with_journal(&[entry(EventKind::BatchComplete, 3, None, of("b"))]);
    let (verdicts, summary) = world.told();
    assert_eq!(verdicts, [Verdict::Delivered]);
    assert!(summary.contains("id=a: probably delivered: at") && !world.explain().is_certain);
}

#[test]
fn the_last_row_of_the_last_batch_is_known_without_a_journal() {
    let mut world = World::passed();
    world.row.position = Some(at(10, 1));
    let batch = batch_id(10);
    let (verdicts, summary) = world.told();
    assert_eq!(verdicts, [Verdict::Delivered]);
    assert_eq!(
        summary,
        format!(
            "orders, id=1: delivered: at 2026-04-07T12:00:00Z in {batch} with token 4, accepted\n\
             next: `highwater status orders` shows the last batches"
        )
    );
}

#[test]
fn a_row_before_the_checkpoint_counts_as_delivered() {
    let mut world = World::passed();
    check(
        &world,
        Verdict::Delivered,
        &expect![[r"
            orders, id=7: probably delivered: its position is at or before the checkpoint, by 2026-04-07T12:00:00Z at the latest; no journal names its batch
            next: set `JOURNAL` to `commits` to keep a record from now on; `highwater status orders` shows the last batches"]],
    );
    assert!(!world.explain().is_certain);
    world.mode = CursorMode::TimestampPk;
    assert!(world.told().1.contains("commits later than `SOURCE__SETTLE` allows is skipped"));
    let world = world.with_journal(&[]);
    assert!(world.told().1.contains("no record of its batch since 2026-04-01"));
}

#[test]
fn a_row_before_the_start_of_the_poller_was_skipped() {
    let mut world = World::passed();
    world.document().checkpoint.last_successful_batch_id = None;
    check(
        &world,
        Verdict::Skipped,
        &expect![[r"
            orders, id=7: not delivered: it is before the position at which the poller started
            next: `highwater backfill orders --from-beginning --to-checkpoint` delivers all rows before the checkpoint"]],
    );
    world.mode = CursorMode::ChangeTracking;
    assert!(world.told().1.contains("`highwater reset orders to-beginning"));
}

/// Returns the entry of a move of the checkpoint by an operator.
fn moved(event: EventKind, minute: u8, to: Option<Cursor>) -> Entry {
    let mut moved = entry(event, minute, None, at(1, 1));
    moved.details = Details { by: Some("ann".to_owned()), ..Details::default() };
    let mut document = World::new().document.unwrap();
    document.checkpoint.cursor = to;
    moved.document = Some(Box::new(document));
    moved
}

#[test]
fn a_row_that_an_operator_has_skipped_names_the_operator() {
    let before = entry(EventKind::BatchComplete, 3, None, at(3, 1));
    let reset = moved(EventKind::Reset, 9, Some(at(8, 1)));
    let mut world = World::passed().with_journal(&[before, reset.clone()]);
    assert!(!world.explain().is_certain, "it may have been delivered before the searched days");
    world.journal.is_complete = true;
    check(
        &world,
        Verdict::Skipped,
        &expect![[r"
            orders, id=7: not delivered: the poller was reset past it at 2026-04-07T12:09:00Z by ann
            next: `highwater backfill orders --from-beginning --to-checkpoint` delivers all rows before the checkpoint"]],
    );
    assert!(world.explain().is_certain);
    let delivered = entry(EventKind::BatchComplete, 3, None, at(6, 1));
    assert_eq!(World::passed().with_journal(&[delivered, reset]).told().0, [Verdict::Delivered]);
}

#[test]
fn a_reset_from_an_unknown_position_proves_nothing() {
    let reset = moved(EventKind::Reset, 9, Some(at(8, 1)));
    let mut world = World::passed().with_journal(std::slice::from_ref(&reset));
    world.journal.is_complete = true;
    check(
        &world,
        Verdict::Skipped,
        &expect![[r"
            orders, id=7: probably delivered, or skipped by a reset: the poller was reset past it at 2026-04-07T12:09:00Z by ann
            next: `highwater journal show orders` lists the whole history"]],
    );
    assert!(!world.explain().is_certain);
    // A missing entry may have moved the checkpoint past the row.
    let before = entry(EventKind::BatchComplete, 3, None, at(3, 1));
    let mut history = numbered(&[before, reset]);
    assert!(deliveries::moved_past(&history, &at(5, 7)).unwrap().is_certain);
    history[1].seq += 1;
    assert!(!deliveries::moved_past(&history, &at(5, 7)).unwrap().is_certain);
}

#[test]
fn a_move_back_skips_nothing() {
    let passed = entry(EventKind::BatchComplete, 3, Some(at(5, 9)), at(9, 1));
    for event in [EventKind::Reset, EventKind::Imported, EventKind::Cloned] {
        for to in [Some(at(9, 1)), Some(at(8, 1)), Some(at(5, 7)), Some(at(4, 1)), None] {
            let history = numbered(&[passed.clone(), moved(event, 9, to.clone())]);
            let found = deliveries::moved_past(&history, &at(5, 7));
            assert_eq!(found, None, "{event:?} {to:?}");
        }
        let history =
            numbered(&[moved(EventKind::Reset, 4, None), moved(event, 9, Some(at(5, 7)))]);
        let found = deliveries::moved_past(&history, &at(5, 7)).unwrap();
        assert!(found.is_certain, "{event:?}");
    }
    // The reset has removed the last batch from the document.
    let mut world =
        World::passed().with_journal(&[passed, moved(EventKind::Reset, 9, Some(at(8, 1)))]);
    world.document().checkpoint.last_successful_batch_id = None;
    check(
        &world,
        Verdict::Skipped,
        &expect![[r"
            orders, id=7: probably delivered, or skipped by a reset: its position is at or before the checkpoint, which was set by a reset, import, clone or repartition
            next: `highwater journal show orders` lists the whole history"]],
    );
    assert!(!world.explain().is_certain);
}

#[test]
fn a_document_that_was_reset_does_not_show_what_was_delivered_before() {
    let reset: [fn(&mut StateDocument); 3] = [
        |document| document.replay_id = Some("r".to_owned()),
        |document| document.reset_generation = None,
        |document| document.generation = Generation(4),
    ];
    for change in reset {
        let mut world = World::passed();
        world.document().checkpoint.last_successful_batch_id = None;
        assert!(world.explain().is_certain);
        change(world.document());
        let (_, summary) = world.told();
        assert!(!world.explain().is_certain);
        assert!(summary.contains("id=7: probably delivered, or skipped by a reset: "), "{summary}");
        assert!(summary.ends_with("next: `highwater status orders` shows the last batches"));
    }
}

#[test]
fn a_row_that_may_have_been_committed_late_is_probably_delivered() {
    for (one, end) in [
        (Cursor::integer(5, at(5, 7).key), Cursor::integer(6, at(6, 1).key)),
        (
            Cursor { mode: CursorMode::TimestampPk, ..at(5, 7) },
            Cursor { mode: CursorMode::TimestampPk, ..at(6, 1) },
        ),
    ] {
        let mut world = World::passed();
        world.mode = one.mode;
        world.row.position = Some(one.clone());
        let batch = entry(EventKind::BatchComplete, 3, None, end);
        let late = world.clone().with_journal(&[batch]);
        assert_eq!(late.told().0, [Verdict::Delivered]);
        assert!(!late.explain().is_certain);
        let summary = late.told().1;
        assert!(summary.contains("id=7: probably delivered: at 2026"), "{summary}");
        assert!(summary.contains("commits later than `SOURCE__SETTLE` allows"), "{summary}");
        let last = entry(EventKind::BatchComplete, 3, None, one);
        assert!(world.with_journal(&[last]).explain().is_certain);
    }
}

#[test]
fn a_batch_proves_no_delivery_if_keys_may_have_been_parked() {
    let batch = entry(EventKind::BatchComplete, 3, None, at(6, 1));
    let mut world = World::passed().with_journal(std::slice::from_ref(&batch));
    assert!(world.explain().is_certain);
    world.may_have_parked = true;
    let (verdicts, summary) = world.told();
    assert_eq!(verdicts, [Verdict::Delivered]);
    assert!(!world.explain().is_certain);
    assert!(summary.contains("id=7: probably delivered: at 2026"), "{summary}");
    assert!(summary.contains("accepted; keys were parked"), "{summary}");
    // Another row was quarantined.
    let other = entry(EventKind::RowQuarantined, 2, None, at(2, 9));
    let world = World::passed().with_journal(&[other, batch]);
    assert_eq!((world.told().0, world.explain().is_certain), (vec![Verdict::Delivered], false));
    // The last row of the last batch may be the parked one.
    let mut world = World::passed();
    world.row.position = Some(at(10, 1));
    world.may_have_parked = true;
    assert!(!world.explain().is_certain);
    world.document().checkpoint.metadata.row_count = 0;
    assert_eq!(world.explain().deliveries, []);
}

#[test]
fn a_batch_without_rows_moved_past_a_parked_row() {
    let mut past = entry(EventKind::BatchComplete, 3, Some(at(4, 1)), at(5, 7));
    past.details.rows = Some(0);
    let world = World::passed().with_journal(&[past]);
    assert_eq!(world.explain().deliveries, []);
    assert!(!world.explain().is_certain);
}

#[test]
fn an_entry_that_holds_nothing_back_hides_no_later_delivery() {
    let batch = |minute| entry(EventKind::BatchComplete, minute, Some(at(4, 1)), at(6, 1));
    let parked = ParkedKey { is_held: false, ..quarantined("422") };
    // The first batch moved the checkpoint past the row.
    let mut world = World::passed().with_journal(&[batch(1)]);
    world.parked = Some(parked.clone());
    assert_eq!(world.told().0, [Verdict::Quarantined]);
    let mut world = World::passed().with_journal(&[batch(1), batch(9)]);
    world.parked = Some(parked.clone());
    assert_eq!(world.told().0, [Verdict::Delivered]);
    assert_eq!(world.explain().deliveries.len(), 1);
    world.parked = Some(ParkedKey { is_held: true, ..parked });
    assert_eq!(world.told().0, [Verdict::Quarantined]);
}

#[test]
fn a_missing_row_may_be_an_insert_of_an_open_session() {
    let mut world = World::new();
    let session = Session { id: 61, login: None, host: None, program: None, seconds: 340 };
    world.row = RowReport { sessions: vec![session], ..RowReport::default() };
    let (verdicts, summary) = world.told();
    assert_eq!((verdicts, world.explain().is_certain), (vec![Verdict::NotInTable], false));
    assert!(
        summary.contains("an uncommitted insert may hold it, perhaps of session 61, which first"),
        "{summary}"
    );
}

#[test]
fn a_quarantined_row_without_an_entry_was_redriven_or_dropped() {
    let world = World::passed().with_journal(&[
        entry(EventKind::RowQuarantined, 2, Some(at(4, 1)), at(5, 7)),
        entry(EventKind::BatchComplete, 3, Some(at(4, 1)), at(5, 7)),
    ]);
    check(
        &world,
        Verdict::NoLongerQuarantined,
        &expect![[r"
            orders, id=7: no longer quarantined: it was quarantined at 2026-04-07T12:02:00Z, and its entry is gone: it was redriven, retried or dropped since
            next: `highwater journal show orders --event row_quarantined` lists when that happened"]],
    );
}

#[test]
fn a_row_that_waited_with_its_parked_key_was_not_delivered_by_the_batch_that_passed_it() {
    let mut waited = entry(EventKind::RowDiverted, 2, None, at(5, 7));
    waited.details.rows = Some(1);
    let passed = entry(EventKind::BatchComplete, 3, Some(at(4, 1)), at(6, 1));
    let world = World::passed().with_journal(&[waited.clone(), passed.clone()]);
    check(
        &world,
        Verdict::NoLongerQuarantined,
        &expect![[r"
            orders, id=7: no longer quarantined: it waited with its parked key at 2026-04-07T12:02:00Z, and its entry is gone: it was redriven, retried or dropped since
            next: `highwater journal show orders --event row_diverted` lists when that happened"]],
    );
    // It says nothing about a row that it does not name.
    waited.details.upto = Some(at(5, 8));
    let world = World::passed().with_journal(&[waited, passed]);
    assert_eq!(world.told().0, [Verdict::Delivered]);
}

#[test]
fn a_batch_that_moved_past_a_quarantined_row_did_not_deliver_it() {
    let history = [
        entry(EventKind::RowQuarantined, 2, Some(at(4, 1)), at(5, 7)),
        entry(EventKind::BatchComplete, 3, Some(at(4, 1)), at(6, 1)),
        entry(EventKind::BatchComplete, 9, Some(at(4, 1)), at(6, 1)),
    ];
    let events = |world: &World| -> Vec<&str> {
        world.explain().deliveries.iter().map(|delivery| delivery.event).collect()
    };
    let mut world = World::passed().with_journal(&history[..2]);
    assert_eq!(events(&world), ["row_quarantined"]);
    world.parked = Some(quarantined("422"));
    // A journal of commits does not record the quarantined row.
    let parked = world.parked;
    let mut world = World::passed().with_journal(&history[1..2]);
    assert_eq!(world.told().0, [Verdict::Delivered]);
    world.parked = parked;
    assert_eq!((world.told().0, events(&world)), (vec![Verdict::Quarantined], vec![]));
    // A later batch delivered it, such as after a reset.
    let world = World::passed().with_journal(&history);
    assert_eq!(world.told().0, [Verdict::Delivered]);
    assert_eq!(events(&world), ["row_quarantined", "batch_complete"]);
}

#[test]
fn a_state_of_the_poller_that_stops_delivery_is_the_verdict() {
    for (state, verdict, next) in [
        (PollerState::Vanished, Verdict::Vanished, "`highwater doctor --poller orders`"),
        (PollerState::TakenOver, Verdict::TakenOver, "`highwater status orders`"),
        (PollerState::Disabled, Verdict::Disabled, "`highwater tick orders`"),
        (PollerState::Stopped, Verdict::Stopped, "`highwater doctor --poller orders`"),
        (PollerState::Paused, Verdict::Paused, "`highwater resume orders`"),
        (PollerState::Silent, Verdict::Silent, "`highwater tick orders`"),
        (PollerState::BackingOff, Verdict::BackingOff, "`highwater resume orders`"),
        (PollerState::Failing, Verdict::Failing, "`highwater tick orders`"),
        (PollerState::NeverRan, Verdict::NeverRan, "`highwater tick orders`"),
    ] {
        let mut world = World::new();
        let cause = Some("because".to_owned());
        world.health = Health { state, cause, since: Some(NOON), ..Health::default() };
        let explanation = world.explain();
        assert_eq!(explanation.reason.verdict, verdict);
        assert!(explanation.also.is_empty(), "{state:?}");
        assert_eq!(explanation.reason.since, Some(NOON));
        let [first, second] = explanation.summary();
        let is_taken_over = state == PollerState::TakenOver;
        assert!(first.starts_with("orders, id=7: not delivered yet: "), "{first}");
        assert!(is_taken_over || first.contains("because"), "{first}");
        assert!(second.contains(next), "{second}");
        // A row that has its answer does not depend on the poller.
        let mut passed = World::passed();
        passed.health = world.health.clone();
        assert_eq!(passed.told().0, [Verdict::Delivered], "{state:?}");
    }
    for state in [PollerState::Running, PollerState::Idle, PollerState::Unknown] {
        let mut world = World::new();
        world.health.state = state;
        assert_eq!(world.told().0, [Verdict::Due], "{state:?}");
    }
}

#[test]
fn a_poller_that_a_rule_has_paused_is_resumed_once_fixed() {
    let mut world = World::new();
    world.health.state = PollerState::Stopped;
    let (by, reason) = ("failure policy of `orders`".to_owned(), "422".to_owned());
    let extra = serde_json::Map::new();
    world.document().paused = Some(Paused { by, reason, at: NOON, extra });
    assert!(world.told().1.ends_with("next: fix the cause, then `highwater resume orders`"));
}

fn in_flight(after: &Cursor, upto: &Cursor) -> InFlight {
    let batch = json!({
        "batch_id": batch_id(1), "upto": upto, "after": after, "rows": 2,
        "digest": "0", "attempt": 3, "last_error": "503", "next_attempt_at": "2026-04-07T12:05:00Z",
    });
    serde_json::from_value(batch).unwrap()
}

#[test]
fn a_failing_batch_is_the_rows_own_or_one_before_it() {
    let mut world = World::new();
    world.health.state = PollerState::BackingOff;
    world.health.cause = Some("503 from the target".to_owned());
    world.document().in_flight = Some(in_flight(&at(10, 1), &at(30, 1)));
    check(
        &world,
        Verdict::BackingOff,
        &expect![[r"
            orders, id=7: not delivered yet: its batch failed (3 attempts, next attempt at 2026-04-07T12:05:00Z): 503 from the target
            next: `highwater resume orders` ends the backoff, so that the next tick retries"]],
    );
    world.document().in_flight = Some(in_flight(&at(10, 1), &at(15, 1)));
    assert!(world.told().1.contains("the batch before it failed (3 attempts"));
}

#[test]
fn a_row_in_the_batch_in_flight_is_being_delivered() {
    let mut world = World::new();
    world.document().in_flight = Some(in_flight(&at(10, 1), &at(30, 1)));
    assert_eq!(world.told().0, [Verdict::Due], "no tick is running");
    world.health.running = true;
    let (verdicts, summary) = world.told();
    assert_eq!(verdicts, [Verdict::InFlight]);
    assert!(summary.contains(&format!("it is being delivered now, in {}", batch_id(1))));
}

#[test]
fn a_row_above_the_bound_is_held_back_by_a_transaction() {
    let mut world = World::new();
    world.row.is_readable = false;
    check(
        &world,
        Verdict::HeldBack,
        &expect![[r"
            orders, id=7: not delivered yet: held back by an open transaction
            next: wait until it ends; `highwater doctor --poller orders` shows how old it is"]],
    );
    let text = |text: &str| Some(text.to_owned());
    world.row.sessions = vec![Session {
        id: 61,
        login: text("etl"),
        host: text("web1"),
        program: None,
        seconds: 340,
    }];
    check(
        &world,
        Verdict::HeldBack,
        &expect![[r"
            orders, id=7: not delivered yet: held back by an open transaction, perhaps of session 61 (etl on web1), which first wrote 340 s ago
            next: end session 61, then `highwater tick orders`"]],
    );
}

#[test]
fn a_row_within_the_settle_window_settles() {
    let mut world = World::new();
    world.mode = CursorMode::TimestampPk;
    world.row.is_readable = false;
    world.row.settles_in = Some(Duration::from_millis(4_001));
    check(
        &world,
        Verdict::Settling,
        &expect![[r"
            orders, id=7: not delivered yet: it settles in 5 s: until then, earlier rows could still commit
            next: `highwater tick orders` delivers it after that"]],
    );
    world.mode = CursorMode::IntegerPk;
    world.row.settles_in = None;
    assert!(world.told().1.contains("`SOURCE__SETTLE` after a tick has first seen it"));
}

#[test]
fn what_stops_the_poller_comes_before_what_the_row_waits_for() {
    let mut world = World::new();
    world.health.state = PollerState::Paused;
    world.row.is_readable = false;
    assert_eq!(world.told().0, [Verdict::Paused, Verdict::HeldBack]);
}

#[test]
fn a_poller_without_a_position_has_passed_nothing() {
    let mut world = World::passed();
    world.document().checkpoint.cursor = None;
    assert_eq!(world.told().0, [Verdict::Due]);
    world.document = None;
    world.health.state = PollerState::NeverRan;
    assert_eq!(world.told().0, [Verdict::NeverRan]);
    assert_eq!(world.explain().checkpoint, None);
}
