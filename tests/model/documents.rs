//! The real documents, by number.
//!
//! Each distinct document and each application of a real transition is computed once and then looked up. So
//! the search runs on small numbers, and the rules are still those of `highwater_engine::document`.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_engine::cursor::{Cursor, KeyValues, RowVersion, SourceFingerprint};
use highwater_engine::document::{
    Acquire, AfterCommit, AuditStep, Commit, DocumentAge, Failure, FencingToken, Generation,
    Holder, InFlight, Paused, Refusal, StateDocument, encode,
};
use highwater_engine::event::{BatchId, BatchIdentity, EventsDigest};
use time::OffsetDateTime;

/// The owner name in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    Nobody,
    /// The current process of this slot.
    Slot(u8),
    /// A crashed process. Which one makes no difference to the running ones.
    Gone,
}

/// A document: its content without the owner's name, and that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Doc {
    shape: u16,
    pub(crate) owner: Who,
}

/// Rows `after + 1 ..= upto` as one delivery, with everything else that identifies a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Batch {
    pub(crate) generation: u8,
    pub(crate) replay: u8,
    pub(crate) after: u8,
    pub(crate) upto: u8,
}

impl Batch {
    /// Returns its rows, one bit each.
    pub(crate) fn rows(self) -> u8 {
        rows_upto(self.upto) & !rows_upto(self.after)
    }

    /// Returns its first row as a batch.
    pub(crate) fn first_row(self) -> Self {
        Self { upto: self.after + 1, ..self }
    }
}

/// Returns the rows at or before a position, one bit each.
pub(crate) fn rows_upto(position: u8) -> u8 {
    (1 << position) - 1
}

/// What a holder knows about its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Grant {
    pub(crate) generation: u8,
    pub(crate) token: u8,
}

/// An application of a real transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    Acquire { slot: u8, batch: Batch },
    Held { slot: u8, grant: Grant, what: What },
    Pause,
    Resume,
    Reset { replay: u8 },
}

/// A logical write of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum What {
    Renew,
    /// A renewal that commits the first row, which the handler has accepted, and leaves the rest in
    /// flight.
    RenewPrefix {
        batch: Batch,
    },
    Commit {
        batch: Batch,
        next: Option<Batch>,
    },
    /// The first row was accepted, the second was not.
    CommitPrefix {
        batch: Batch,
    },
    Fail,
    Release,
}

impl What {
    /// Whether it overlaps the handler.
    pub(crate) fn is_renewal(self) -> bool {
        match self {
            Self::Renew | Self::RenewPrefix { .. } => true,
            Self::Commit { .. } | Self::CommitPrefix { .. } | Self::Fail | Self::Release => false,
        }
    }

    /// Whether the next handler call overlaps it.
    pub(crate) fn announces(self) -> bool {
        matches!(self, Self::Commit { next: Some(_), .. })
    }

    /// Returns the batch whose id proves that the write has landed.
    pub(crate) fn committed(self) -> Option<Batch> {
        match self {
            Self::Commit { batch, .. } => Some(batch),
            Self::CommitPrefix { batch } | Self::RenewPrefix { batch } => Some(batch.first_row()),
            Self::Renew | Self::Fail | Self::Release => None,
        }
    }
}

/// Facts about a document that are needed often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) grant: Grant,
    pub(crate) checkpoint: u8,
    pub(crate) replay: u8,
}

/// Older than any lease lives: a challenger may see any lease as expired at any time.
const OLD: DocumentAge =
    DocumentAge { since_write: Duration::from_secs(3600), grain: Duration::from_secs(1) };
const FRESH: DocumentAge =
    DocumentAge { since_write: Duration::ZERO, grain: Duration::from_secs(1) };
const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;
const TTL: Duration = Duration::from_secs(120);
const POLLER: &str = "orders";

/// All documents met so far, and the results of the real transitions on them.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    shapes: Vec<(StateDocument, Facts)>,
    /// For each shape, the first document with its grant, checkpoint and last batch.
    alike: Vec<u16>,
    numbers: BTreeMap<Vec<u8>, u16>,
    changed: BTreeMap<(Doc, Change), Option<Doc>>,
    batch_ids: BTreeMap<Batch, BatchId>,
    /// A mutation: a grant keeps the token of the previous one.
    tokens_stay: bool,
}

impl Documents {
    pub(crate) fn new(tokens_stay: bool) -> Self {
        Self { tokens_stay, ..Self::default() }
    }

    /// Returns the document that is created before the first grant.
    pub(crate) fn blank(&mut self) -> Doc {
        self.number(StateDocument::blank(POLLER, SourceFingerprint::of(&[])))
    }

    /// Returns the document of the first grant if `doc` is blank, and `doc` unchanged otherwise.
    pub(crate) fn started(&mut self, doc: Doc, generation: u8) -> Doc {
        if self.facts(doc).grant.generation > 0 {
            return doc;
        }
        let fingerprint = SourceFingerprint::of(&[]);
        let begun = self.document(doc).started(Generation(generation.into()), &fingerprint);
        self.number(begun)
    }

    pub(crate) fn facts(&self, doc: Doc) -> Facts {
        self.shapes[usize::from(doc.shape)].1
    }

    /// Returns the representative of all documents with this grant, owner, checkpoint and last batch.
    pub(crate) fn alike(&self, doc: Doc) -> Doc {
        Doc { shape: self.alike[usize::from(doc.shape)], ..doc }
    }

    pub(crate) fn is_paused(&self, doc: Doc) -> bool {
        self.shapes[usize::from(doc.shape)].0.block_reason(NOW, Duration::ZERO).is_some()
    }

    /// Whether `batch` is the last batch that `doc` records as delivered.
    pub(crate) fn has_landed(&mut self, doc: Doc, batch: Batch) -> bool {
        let id = self.batch_id(batch);
        self.last_batch(doc) == Some(&id)
    }

    fn last_batch(&self, doc: Doc) -> Option<&BatchId> {
        self.shapes[usize::from(doc.shape)].0.checkpoint.last_successful_batch_id.as_ref()
    }

    /// Whether `batch` was committed last, and under this grant.
    pub(crate) fn was_committed_by(
        &mut self,
        doc: Doc,
        (slot, grant): (u8, Grant),
        batch: Batch,
    ) -> bool {
        let id = self.batch_id(batch);
        self.document(doc).was_committed_by(&holder(slot, grant), &id)
    }

    /// Whether this grant was released, even if another was granted since.
    pub(crate) fn was_released_by(&self, doc: Doc, slot: u8, grant: Grant) -> bool {
        self.document(doc).was_released_by(&holder(slot, grant))
    }

    pub(crate) fn is_held_by(&self, doc: Doc, slot: u8, grant: Grant) -> bool {
        self.document(doc).is_held_by(&holder(slot, grant))
    }

    /// Applies a real transition; `None` if it is rejected.
    pub(crate) fn apply(&mut self, doc: Doc, change: Change) -> Option<Doc> {
        if let Some(known) = self.changed.get(&(doc, change)) {
            return *known;
        }
        let next = self.apply_anew(&self.document(doc), change).ok();
        let next = next.map(|document| self.number(document));
        self.changed.insert((doc, change), next);
        next
    }

    fn apply_anew(
        &mut self,
        document: &StateDocument,
        change: Change,
    ) -> Result<StateDocument, Refusal> {
        match change {
            Change::Acquire { slot, batch } => self.acquire(document, slot, batch),
            Change::Held { slot, grant, what } => {
                self.change_held(document, &holder(slot, grant), what)
            }
            Change::Pause => {
                let (by, reason) = ("operator".to_owned(), "maintenance".to_owned());
                let paused = Paused { by, reason, at: NOW, extra: serde_json::Map::new() };
                Ok(document.pause(paused, FRESH))
            }
            Change::Resume => Ok(document.resume(FRESH)),
            Change::Reset { replay } => document.reset(None, replay_id(replay)),
        }
    }

    fn acquire(
        &mut self,
        document: &StateDocument,
        slot: u8,
        batch: Batch,
    ) -> Result<StateDocument, Refusal> {
        let in_flight = Some(self.in_flight(batch));
        let owner_id = &name(slot);
        let request = Acquire { owner_id, ttl: TTL, age: OLD, now: NOW, in_flight };
        let mut next = document.acquire(request)?;
        if self.tokens_stay && document.lease.fencing_token.0 > 0 {
            next.lease.fencing_token = document.lease.fencing_token;
        }
        Ok(next)
    }

    fn change_held(
        &mut self,
        document: &StateDocument,
        holder: &Holder,
        what: What,
    ) -> Result<StateDocument, Refusal> {
        match what {
            What::Renew => document.renew(holder, NOW),
            What::RenewPrefix { batch } => {
                let rest = self.in_flight(Batch { after: batch.after + 1, ..batch });
                let then = AfterCommit::Announce(Box::new(rest));
                document.commit(holder, self.commit(batch.first_row(), then))
            }
            What::Commit { batch, next } => {
                let then = match next {
                    Some(next) => AfterCommit::Announce(Box::new(self.in_flight(next))),
                    None => AfterCommit::Release(None),
                };
                document.commit(holder, self.commit(batch, then))
            }
            What::CommitPrefix { batch } => {
                let rest = self.in_flight(Batch { after: batch.after + 1, ..batch });
                let commit = self.commit(batch.first_row(), AfterCommit::Announce(Box::new(rest)));
                document.commit(holder, commit)?.fail(holder, failure())
            }
            What::Fail => document.fail(holder, failure()),
            What::Release => document.release(holder, NOW, None),
        }
    }

    fn commit(&mut self, batch: Batch, then: AfterCommit) -> Commit {
        let rows = (batch.upto - batch.after).into();
        let (batch_id, upto) = (self.batch_id(batch), cursor(batch.upto));
        Commit {
            batch_id,
            upto,
            rows,
            is_diverted: false,
            unreadable_last: 0,
            now: NOW,
            audit: AuditStep::Off,
            then,
        }
    }

    fn in_flight(&mut self, batch: Batch) -> InFlight {
        let after = (batch.after > 0).then(|| cursor(batch.after));
        let rows = (batch.upto - batch.after).into();
        in_flight(self.batch_id(batch), after, cursor(batch.upto), rows)
    }

    fn batch_id(&mut self, batch: Batch) -> BatchId {
        let make = || {
            BatchId::of(&BatchIdentity {
                poller: POLLER,
                generation: batch.generation.into(),
                replay_id: (batch.replay > 0).then(|| replay_id(batch.replay)).as_deref(),
                after: (batch.after > 0).then(|| cursor(batch.after)).as_ref(),
                upto: &cursor(batch.upto),
                digest: &EventsDigest::of(&[]),
            })
        };
        self.batch_ids.entry(batch).or_insert_with(make).clone()
    }

    fn document(&self, doc: Doc) -> StateDocument {
        let mut document = self.shapes[usize::from(doc.shape)].0.clone();
        document.lease.owner_id = match doc.owner {
            Who::Nobody => None,
            Who::Slot(slot) => Some(name(slot)),
            Who::Gone => Some("gone".to_owned()),
        };
        document
    }

    /// Returns the number of `document`, ignoring fields that no rule of the protocol reads.
    fn number(&mut self, mut document: StateDocument) -> Doc {
        let owner = match document.lease.owner_id.take().as_deref() {
            None => Who::Nobody,
            Some("gone") => Who::Gone,
            Some(name) => Who::Slot(name.parse().unwrap()),
        };
        document.in_flight = None;
        document.last_success_at = None;
        document.last_failure = None;
        document.checkpoint.metadata.row_count = 0;
        let facts = Facts {
            grant: Grant {
                generation: u8::try_from(document.generation.0).unwrap(),
                token: u8::try_from(document.lease.fencing_token.0).unwrap(),
            },
            checkpoint: document.checkpoint.cursor.as_ref().map_or(0, position),
            replay: document.replay_id.as_ref().map_or(0, |id| id.parse().unwrap()),
        };
        let next = u16::try_from(self.shapes.len()).unwrap();
        let shape = *self.numbers.entry(encode(&document)).or_insert(next);
        if shape == next {
            let last_batch = &document.checkpoint.last_successful_batch_id;
            let is_alike = |(other, known): &(StateDocument, Facts)| {
                known.grant == facts.grant
                    && known.checkpoint == facts.checkpoint
                    && other.checkpoint.last_successful_batch_id == *last_batch
            };
            let first = self.shapes.iter().position(is_alike);
            self.alike.push(first.map_or(next, |first| u16::try_from(first).unwrap()));
            self.shapes.push((document, facts));
        }
        Doc { shape, owner }
    }
}

/// Returns a batch that was not tried yet.
pub(crate) fn in_flight(
    batch_id: BatchId,
    after: Option<Cursor>,
    upto: Cursor,
    rows: u64,
) -> InFlight {
    InFlight {
        batch_id,
        after,
        upto,
        rows,
        digest: EventsDigest::of(&[]),
        late: false,
        probing: false,
        attempt: 0,
        crashes: 0,
        crashes_survived: 0,
        first_failed_at: None,
        next_attempt_at: None,
        first_error: None,
        last_error: None,
        failed_step: None,
        started_at: None,
        steps: Vec::new(),
        extra: serde_json::Map::new(),
    }
}

fn failure() -> Failure {
    let error = "503".to_owned();
    Failure {
        error,
        step: None,
        kind: "handler_failed",
        counted: true,
        next_attempt_at: None,
        now: NOW,
        tick: None,
        narrowed: None,
        pause: None,
    }
}

fn holder(slot: u8, grant: Grant) -> Holder {
    let token = FencingToken(grant.token.into());
    Holder { generation: Generation(grant.generation.into()), owner_id: name(slot), token }
}

fn name(slot: u8) -> String {
    slot.to_string()
}

fn replay_id(number: u8) -> String {
    number.to_string()
}

fn cursor(position: u8) -> Cursor {
    Cursor::row_version(RowVersion(position.into()), KeyValues::new())
}

fn position(cursor: &Cursor) -> u8 {
    let RowVersion(position) = cursor.value.parse().unwrap();
    u8::try_from(position).unwrap()
}
