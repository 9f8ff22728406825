//! The real documents, entries and known keys, by number, and the real rules on them.
//!
//! Each application of a rule is computed once and then looked up, as in `documents.rs`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use highwater_engine::backoff::Backoff;
use highwater_engine::cursor::{Cursor, KeyId, KeyValues, RowVersion, SourceFingerprint};
use highwater_engine::document::{
    Acquire, AfterCommit, AnnouncedEntry, AuditStep, Commit, DocumentAge, EntryCounts,
    FencingToken, Generation, Holder, Refusal, StateDocument, encode,
};
use highwater_engine::event::{
    BatchId, BatchIdentity, ChangeEvent, EventId, EventsDigest, Operation,
};
use highwater_engine::policy::ParkPolicy;
use highwater_engine::quarantine::{
    Entry, EntryState, KnownKeys, QuarantinedRow, Reason, VersionRead,
};
use time::OffsetDateTime;

use crate::documents::in_flight;

pub(crate) const KEYS: usize = 3;

const POLLER: &str = "orders";
const GENERATION: u64 = 7;
const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;
/// Older than any lease lives: another process may see any lease as expired at any time.
const OLD: DocumentAge =
    DocumentAge { since_write: Duration::from_secs(3600), grain: Duration::from_secs(1) };
const TTL: Duration = Duration::from_secs(120);

/// The number of a document, an entry or what a process knows of keys.
pub(crate) type Number = u16;

/// A row: a version of a key, named by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Row {
    pub(crate) key: u8,
    pub(crate) position: u8,
}

/// A change of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DocumentChange {
    Acquire,
    AcquireForRetries,
    AcquireForOperator,
    /// One of the holder of the lease with this token, which also records what it has counted.
    Held {
        token: u8,
        write: Write,
        counted: Option<Counted>,
    },
    /// An operator has dropped an entry.
    Dropped,
}

/// A write of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Write {
    Announce {
        is_retried: bool,
    },
    /// Moves the checkpoint; the last one of a batch releases the lease.
    Commit {
        upto: u8,
        settled: Settled,
        is_last: bool,
    },
    Release,
}

/// What became of the rows of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Settled {
    Accepted,
    Parked,
    /// All of them wait with their keys.
    Diverted,
}

/// [`EntryCounts`] as a part of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Counted {
    epoch: u8,
    keys: u8,
    quarantined: u8,
    /// Seconds.
    next_retry_at: Option<i32>,
}

/// A change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryChange {
    /// A later version, read by the holder of this token.
    Version { row: Row, token: u8 },
    /// Another record of the key.
    Joined { by: Number },
    /// Counts a retry.
    Retried,
    /// Records that it failed.
    FailedAgain,
    /// Applies the limits of retries.
    Quarantined,
    /// Records that a redrive failed.
    RefusedAgain,
}

/// A change of what a process knows of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KnownChange {
    /// The keys, one bit each, that were listed under this document.
    Listed {
        document: Number,
        keys: u8,
    },
    Followed {
        document: Number,
    },
    Parked {
        document: Number,
        entry: Number,
    },
    Learned {
        entry: Number,
    },
    Forgotten {
        key: u8,
    },
}

/// Facts about a document that are needed often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) token: u8,
    pub(crate) checkpoint: u8,
    pub(crate) is_released: bool,
    pub(crate) may_have_entries: bool,
    pub(crate) keys: u8,
    pub(crate) has_next_retry: bool,
}

/// Facts about an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryFacts {
    pub(crate) row: Row,
    pub(crate) is_retrying: bool,
    pub(crate) may_be_retried: bool,
}

/// Values by number.
#[derive(Debug)]
struct Numbered<T> {
    values: Vec<T>,
    numbers: BTreeMap<Vec<u8>, Number>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: BTreeMap::new() }
    }
}

impl<T> Numbered<T> {
    fn number(&mut self, identity: Vec<u8>, value: T) -> Number {
        let next = Number::try_from(self.values.len()).expect("few values");
        let number = *self.numbers.entry(identity).or_insert(next);
        if number == next {
            self.values.push(value);
        }
        number
    }

    fn get(&self, number: Number) -> &T {
        &self.values[usize::from(number)]
    }
}

/// All that was met so far, and the results of the rules on it.
#[derive(Debug)]
pub(crate) struct Records {
    policy: ParkPolicy,
    documents: Numbered<(StateDocument, Facts)>,
    entries: Numbered<(Entry, EntryFacts)>,
    known: Numbered<(KnownKeys, u8)>,
    changed: BTreeMap<(Number, DocumentChange), Option<Number>>,
    entries_changed: BTreeMap<(Number, EntryChange), Option<Number>>,
    known_changed: BTreeMap<(Number, KnownChange), Number>,
    counted: BTreeMap<(Number, Number), Option<Counted>>,
    parked: BTreeMap<(Row, u8), Number>,
}

impl Records {
    pub(crate) fn new(retries_max: u32) -> Self {
        let second = Duration::from_secs(1);
        let backoff = Backoff { first: second, max: second };
        Self {
            policy: ParkPolicy { retries_max, age_max: 60 * second, backoff },
            documents: Numbered::default(),
            entries: Numbered::default(),
            known: Numbered::default(),
            changed: BTreeMap::new(),
            entries_changed: BTreeMap::new(),
            known_changed: BTreeMap::new(),
            counted: BTreeMap::new(),
            parked: BTreeMap::new(),
        }
    }

    // Documents.

    /// Returns the document of a poller that has delivered nothing.
    pub(crate) fn first_document(&mut self) -> Number {
        let fingerprint = SourceFingerprint::of(&[]);
        self.number_document(StateDocument::new(POLLER, fingerprint, Generation(GENERATION)))
    }

    pub(crate) fn facts(&self, document: Number) -> Facts {
        self.documents.get(document).1
    }

    /// Whether the newest grant of a document has this token, and was not released.
    pub(crate) fn is_held_by(&self, document: Number, token: u8) -> bool {
        let facts = self.facts(document);
        facts.token == token && !facts.is_released
    }

    /// Applies a real transition; `None` if it is rejected.
    pub(crate) fn change(&mut self, document: Number, change: DocumentChange) -> Option<Number> {
        if let Some(known) = self.changed.get(&(document, change)) {
            return *known;
        }
        let next = changed(&self.documents.get(document).0, change).ok();
        let next = next.map(|next| self.number_document(next));
        self.changed.insert((document, change), next);
        next
    }

    /// Returns the number of a document, ignoring fields that no rule of parking reads.
    fn number_document(&mut self, mut document: StateDocument) -> Number {
        document.in_flight = None;
        document.last_success_at = None;
        document.quarantined_in_a_row = 0;
        document.checkpoint.last_successful_batch_id = None;
        document.checkpoint.metadata.row_count = 0;
        document.lease.released = highwater_engine::document::ReleasedGrants::default();
        let facts = Facts {
            token: small(document.lease.fencing_token.0),
            checkpoint: document.checkpoint.cursor.as_ref().map_or(0, position),
            is_released: document.lease.released_at.is_some() || document.lease.owner_id.is_none(),
            may_have_entries: document.may_have_entries(),
            keys: small(document.parked.keys),
            has_next_retry: document.parked.next_retry_at.is_some(),
        };
        self.documents.number(encode(&document), (document, facts))
    }

    // Entries.

    /// Returns the entry with which the holder of this token parks a row.
    pub(crate) fn parked(&mut self, row: Row, token: u8) -> Number {
        if let Some(known) = self.parked.get(&(row, token)) {
            return *known;
        }
        let entry = QuarantinedRow {
            poller: POLLER,
            batch_id: &batch_id(row.position),
            holder: &holder(token),
            reason: Reason::Refused,
            attempts: 1,
            crashes: 0,
            first_failed_at: NOW,
            quarantined_at: NOW,
            first_error: "422",
            last_error: "422",
        };
        let entry = entry.entry(&event(row)).to_be_retried(&self.policy, NOW);
        let number = self.number_entry(entry);
        self.parked.insert((row, token), number);
        number
    }

    pub(crate) fn entry(&self, entry: Number) -> EntryFacts {
        self.entries.get(entry).1
    }

    /// Applies a real rule to an entry; `None` if it stays as it is.
    pub(crate) fn change_entry(&mut self, entry: Number, change: EntryChange) -> Option<Number> {
        if let Some(known) = self.entries_changed.get(&(entry, change)) {
            return *known;
        }
        let known = &self.entries.get(entry).0;
        let next = match change {
            EntryChange::Version { row, token } => {
                let (event, holder) = (event(row), holder(token));
                known
                    .with_version(&VersionRead { event: &event, holder: &holder, at: NOW })
                    .unwrap()
            }
            EntryChange::Joined { by } => known.joined_by(&self.entries.get(by).0).unwrap(),
            EntryChange::Retried => Some(known.retried(&self.policy, NOW)),
            EntryChange::FailedAgain => Some(known.failed_again("422", &self.policy, NOW)),
            EntryChange::Quarantined => Some(known.clone().to_be_retried(&self.policy, NOW)),
            EntryChange::RefusedAgain => Some(known.refused_again("422")),
        };
        let next = next.map(|next| self.number_entry(next));
        self.entries_changed.insert((entry, change), next);
        next
    }

    /// Whether an entry holds a later version than the row that was accepted.
    pub(crate) fn is_newer_than(&self, entry: Number, row: Row) -> bool {
        self.entries.get(entry).0.is_newer_than(&event(row), Generation(GENERATION))
    }

    fn number_entry(&mut self, mut entry: Entry) -> Number {
        // For people only.
        (entry.attempts, entry.versions) = (1, 1);
        let cursor = entry.event().unwrap().cursor;
        let facts = EntryFacts {
            row: Row { key: key_of(&cursor), position: position(&cursor) },
            is_retrying: entry.state == EntryState::Retrying,
            may_be_retried: entry.may_be_retried(&self.policy),
        };
        self.entries.number(entry.encode(), (entry, facts))
    }

    // What a process knows of keys.

    /// Returns what a process knows that has just started: nothing.
    pub(crate) fn nothing_known(&mut self) -> Number {
        self.number_known(KnownKeys::default())
    }

    pub(crate) fn are_current(&self, known: Number, document: Number) -> bool {
        self.known.get(known).0.are_current(&self.documents.get(document).0)
    }

    /// Returns the known keys, one bit each.
    pub(crate) fn keys(&self, known: Number) -> u8 {
        self.known.get(known).1
    }

    /// Returns what a write under `document` records; `None` if the keys are not those of its epoch.
    pub(crate) fn counts(&mut self, known: Number, document: Number) -> Option<Counted> {
        if let Some(counted) = self.counted.get(&(known, document)) {
            return *counted;
        }
        let counts = self.known.get(known).0.counts(&self.documents.get(document).0, NOW);
        let counted = counts.map(|counts| Counted {
            epoch: small(counts.epoch),
            keys: small(counts.keys),
            quarantined: small(counts.quarantined),
            next_retry_at: counts.next_retry_at.map(seconds),
        });
        self.counted.insert((known, document), counted);
        counted
    }

    /// Returns what a redrive counts, which has listed so many keys.
    pub(crate) fn counts_of_redrive(&self, document: Number, keys: u32) -> Counted {
        let parked = &self.documents.get(document).0.parked;
        let keys = u8::try_from(keys).unwrap();
        let next_retry_at = (keys > 0).then(|| seconds(NOW));
        let (epoch, quarantined) = (small(parked.epoch), small(parked.quarantined));
        Counted { epoch, keys, quarantined, next_retry_at }
    }

    pub(crate) fn change_known(&mut self, known: Number, change: KnownChange) -> Number {
        if let Some(next) = self.known_changed.get(&(known, change)) {
            return *next;
        }
        let mut next = self.known.get(known).0.clone();
        let document = |number: Number| &self.documents.get(number).0;
        match change {
            KnownChange::Listed { document: of, keys } => next.list(document(of), ids(keys)),
            KnownChange::Followed { document: of } => {
                next.follow(document(of));
            }
            KnownChange::Parked { document: of, entry } => {
                next.park(&self.entries.get(entry).0, document(of));
            }
            KnownChange::Learned { entry } => {
                let (entry, facts) = self.entries.get(entry);
                next.learn(&key_id(facts.row.key), entry);
            }
            KnownChange::Forgotten { key } => next.forget(&key_id(key)),
        }
        let next = self.number_known(next);
        self.known_changed.insert((known, change), next);
        next
    }

    fn number_known(&mut self, known: KnownKeys) -> Number {
        let is_known = |key: &u8| known.contains(&key_id(*key));
        let keys = (0..).take(KEYS).filter(is_known).map(|key| 1 << key).sum();
        self.known.number(identity(&known), (known, keys))
    }
}

impl From<Counted> for EntryCounts {
    fn from(counted: Counted) -> Self {
        Self {
            epoch: counted.epoch.into(),
            keys: counted.keys.into(),
            quarantined: counted.quarantined.into(),
            next_retry_at: counted
                .next_retry_at
                .map(|at| NOW + Duration::from_secs(at.unsigned_abs().into())),
        }
    }
}

fn changed(document: &StateDocument, change: DocumentChange) -> Result<StateDocument, Refusal> {
    let asked = || Acquire { owner_id: "process", ttl: TTL, age: OLD, now: NOW, in_flight: None };
    match change {
        DocumentChange::Acquire => document.acquire(asked()),
        DocumentChange::AcquireForRetries => {
            Ok(document.acquire(asked())?.with_next_entries().for_retries())
        }
        DocumentChange::AcquireForOperator => {
            Ok(document.grant(asked())?.with_next_entries().with_possible_entries(NOW))
        }
        DocumentChange::Dropped => Ok(document.with_entries_dropped(1, OLD)),
        DocumentChange::Held { token, write, counted } => {
            let mut next = written(document, &holder(token), write)?;
            if let Some(counted) = counted {
                next.count_entries(counted.into());
            }
            Ok(next)
        }
    }
}

fn written(
    document: &StateDocument,
    holder: &Holder,
    write: Write,
) -> Result<StateDocument, Refusal> {
    match write {
        Write::Announce { is_retried } => {
            let entry = AnnouncedEntry { is_retried };
            document.announce_entry(holder, entry, NOW)
        }
        Write::Release => document.release(holder, NOW, None),
        Write::Commit { upto, settled, is_last } => {
            let then = if is_last {
                AfterCommit::Release(None)
            } else {
                // No rule of parking reads it.
                let after = cursor(Row { key: 0, position: upto });
                let rest = in_flight(batch_id(0), Some(after.clone()), after, 1);
                AfterCommit::Announce(Box::new(rest))
            };
            let commit = Commit {
                batch_id: batch_id(upto),
                upto: cursor(Row { key: 0, position: upto }),
                rows: u64::from(settled == Settled::Accepted),
                is_diverted: settled == Settled::Diverted,
                unreadable_last: 0,
                now: NOW,
                audit: AuditStep::Off,
                then,
            };
            document.commit(holder, commit)
        }
    }
}

fn event(row: Row) -> ChangeEvent {
    let cursor = cursor(row);
    let id = EventId::of(POLLER, &cursor);
    let json = serde_json::json!({"id": id, "op": "upsert", "cursor": cursor}).to_string();
    ChangeEvent { id, op: Operation::Upsert, cursor, json: json.into(), unreadable: None }
}

fn cursor(Row { key, position }: Row) -> Cursor {
    Cursor::row_version(RowVersion(position.into()), key_values(key))
}

fn key_values(key: u8) -> KeyValues {
    let mut values = KeyValues::new();
    values.insert("id", key.into());
    values
}

/// Returns the ids of keys, one bit each.
fn ids(keys: u8) -> impl Iterator<Item = KeyId> {
    (0..).take(KEYS).filter(move |key| keys & (1 << key) != 0).map(key_id)
}

fn key_id(key: u8) -> KeyId {
    KeyId::of(&key_values(key))
}

fn key_of(cursor: &Cursor) -> u8 {
    small(cursor.key.get("id").unwrap().as_u64().unwrap())
}

fn position(cursor: &Cursor) -> u8 {
    let RowVersion(position) = cursor.value.parse().unwrap();
    small(position)
}

fn batch_id(upto: u8) -> BatchId {
    BatchId::of(&BatchIdentity {
        poller: POLLER,
        generation: GENERATION,
        replay_id: None,
        after: None,
        upto: &cursor(Row { key: 0, position: upto }),
        digest: &EventsDigest::of(&[]),
    })
}

/// All processes have one name: no two grants have the same token.
fn holder(token: u8) -> Holder {
    let token = FencingToken(token.into());
    Holder { generation: Generation(GENERATION), owner_id: "process".to_owned(), token }
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap()
}

fn seconds(at: OffsetDateTime) -> i32 {
    i32::try_from((at - NOW).whole_seconds()).unwrap()
}

fn identity(value: &impl Debug) -> Vec<u8> {
    format!("{value:?}").into_bytes()
}
