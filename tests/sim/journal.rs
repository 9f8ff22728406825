//! The journals of a world, over the same kind of network as its documents, and their invariants. A journal
//! must rebuild the stored document, never a newer one, and must name every gap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use highwater_engine::document::{Generation, StateDocument, decode};
use highwater_engine::journal::{
    Appended, Entry, EventKind, Finding, History, JournalMode, JournalStore, Part, Verdict, verify,
};
use highwater_engine::store::{StateKey, StateStore as _, StoreError};
use time::OffsetDateTime;
use tokio::time::sleep;

use crate::random::Random;
use crate::world::{POLLER, State, World};

/// What the invariants need to know about the journal besides its entries.
#[derive(Debug)]
pub(crate) struct Ledger {
    random: Random,
    /// Each recorded write, as it landed.
    written: BTreeMap<(Generation, u64), StateDocument>,
    is_kept: bool,
}

impl Ledger {
    pub(crate) fn of(seed: u64, mode: JournalMode) -> Self {
        let is_kept = mode != JournalMode::Off;
        Self { random: Random::of(seed, 8), written: BTreeMap::new(), is_kept }
    }

    /// Records a write. Unrecorded writes have the number of the write before.
    pub(crate) fn landed(&mut self, bytes: &[u8]) {
        if !self.is_kept {
            return;
        }
        let document = decode(POLLER, bytes).expect("our own document");
        self.written.entry((document.generation, document.journal_seq)).or_insert(document);
    }
}

/// One instance's connection to the journal.
#[derive(Debug)]
pub(crate) struct SimJournal {
    pub(crate) world: Arc<World>,
}

/// What happens to one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Unreachable,
    LostRequest,
    LostAnswer,
    Late(Duration),
}

impl State {
    fn fate_of_append(&mut self) -> (Fate, Duration, Duration) {
        let percent = self.fault_percent();
        let latency_ms = self.latency_max_ms();
        let random = &mut self.ledger.random;
        let late = random.ms(1_000..=120_000);
        let fates = [Fate::Unreachable, Fate::LostRequest, Fate::LostAnswer, Fate::Late(late)];
        let fate = if random.chance(percent) { random.pick(&fates) } else { Fate::Fine };
        let ways = (random.ms(0..=latency_ms), random.ms(0..=latency_ms));
        match fate {
            Fate::Fine => {}
            Fate::LostAnswer => self.coverage.saw("journal: answer of an append lost"),
            Fate::Late(_) => self.coverage.saw("journal: append given up that may land late"),
            Fate::Unreachable | Fate::LostRequest => {
                self.coverage.saw("journal: append never arrived");
            }
        }
        (fate, ways.0, ways.1)
    }

    fn read_fails(&mut self) -> bool {
        let percent = self.fault_percent();
        self.ledger.random.chance(percent)
    }
}

fn unknown(part: &Part) -> StoreError {
    StoreError::Unknown { key: part.to_string(), reason: "injected".to_owned() }
}

fn unreachable(key: &str) -> StoreError {
    StoreError::Unreachable { key: key.to_owned(), reason: "injected".to_owned() }
}

#[async_trait]
impl JournalStore for SimJournal {
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        let (fate, there, back) = self.world.with(State::fate_of_append);
        sleep(there).await;
        if fate == Fate::Unreachable {
            return Err(unreachable(&part.to_string()));
        }
        let (world, sent) = (Arc::clone(&self.world), part.clone());
        if let Fate::Late(after) = fate {
            drop(tokio::spawn(async move {
                sleep(after).await;
                if world.journals.append(&sent, position, bytes).await.is_ok() {
                    world.with(|state| state.coverage.saw("journal: late append landed"));
                }
            }));
        } else if fate != Fate::LostRequest {
            let answer = tokio::spawn(async move {
                let appended = world.journals.append(&sent, position, bytes).await;
                world.with(|state| state.note(format_args!("append to {sent}: {appended:?}")));
                appended
            });
            let appended = answer.await.expect("an append does not panic");
            sleep(back).await;
            return if fate == Fate::LostAnswer { Err(unknown(part)) } else { appended };
        }
        sleep(back).await;
        Err(unknown(part))
    }

    async fn length(&self, part: &Part) -> Result<u64, StoreError> {
        if self.world.with(State::read_fails) {
            return Err(unreachable(&part.to_string()));
        }
        self.world.journals.length(part).await
    }

    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        if self.world.with(State::read_fails) {
            return Err(unreachable(&part.to_string()));
        }
        self.world.journals.read(part, position).await
    }

    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        if self.world.with(State::read_fails) {
            return Err(unreachable(poller));
        }
        self.world.journals.list(poller).await
    }

    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
        self.world.journals.remove(part, length).await
    }
}

impl World {
    /// Records an operator's write, unless the request is lost.
    pub(crate) async fn record_operator_action(
        &self,
        event: EventKind,
        document: &StateDocument,
        at: OffsetDateTime,
    ) {
        if self.plan.journal == JournalMode::Off || self.with(State::read_fails) {
            return;
        }
        let mut bytes = Vec::new();
        Entry::of_operator(event, document, at, "operator", None).write_to(&mut bytes);
        let parts = self.journals.list(POLLER).await.expect("memory answers");
        let part = parts.into_iter().next_back();
        let part = part.unwrap_or_else(|| Part::of_day(POLLER, at.date()));
        let position = self.journals.length(&part).await.expect("memory answers");
        self.journals.append(&part, position, bytes).await.expect("nobody came between");
    }

    /// Checks what the journal rebuilds at this moment.
    pub(crate) async fn judge_journal(&self) {
        let mode = self.plan.journal;
        if mode == JournalMode::Off {
            return;
        }
        let history = History::read(&self.journals, POLLER, None).await.expect("memory answers");
        let key = StateKey::Document(POLLER.to_owned());
        let stored = self.memory().load(&key).await.expect("memory answers").stored;
        let document =
            stored.map(|stored| decode(POLLER, &stored.bytes).expect("our own document"));
        // A removed or restarted journal says nothing yet.
        let Some(document) = document.filter(|document| !document.is_blank()) else { return };
        let folded = history.fold();
        let verdict = verify(mode, &folded, Some(&document));
        self.with(|state| {
            if let Some(wrong) = wrong(&verdict, &state.ledger, folded.document.as_ref()) {
                state.judge.object(format!("journal: {wrong}"));
            }
            let unnamed = unnamed_gap(&history, &folded.findings, &state.ledger);
            if let Some((generation, seq)) = unnamed {
                let text = format!("journal: nobody misses write {seq} of generation {generation}");
                state.judge.object(text);
            }
            let kind = match verdict {
                Verdict::Agrees => "journal: leads to the document",
                Verdict::Behind { .. } => "journal: behind the document",
                Verdict::NotBegun { writes: 1.. } => "journal: nothing of the document yet",
                Verdict::RestartedHistory { .. }
                | Verdict::NotBegun { .. }
                | Verdict::Removed { .. }
                | Verdict::DocumentIsOlder { .. }
                | Verdict::Differs(_)
                | Verdict::NoDocument
                | Verdict::NoHistory => "journal: another verdict",
            };
            state.coverage.saw(kind);
            if folded.findings.iter().any(|finding| matches!(finding, Finding::Missing { .. })) {
                state.coverage.saw("journal: gap named");
            }
        });
    }
}

fn wrong(verdict: &Verdict, ledger: &Ledger, folded: Option<&StateDocument>) -> Option<String> {
    if !verdict.is_explained() {
        return Some(format!("{verdict:?}"));
    }
    let folded = folded?;
    let place = (folded.generation, folded.journal_seq);
    match ledger.written.get(&place) {
        Some(written) if written == folded => None,
        Some(written) => Some(format!("leads to {folded:?}, written was {written:?}")),
        None => Some(format!("leads to write {place:?}, which never landed")),
    }
}

/// Returns a write that has neither an entry nor a finding, between two writes of its generation that have
/// entries.
fn unnamed_gap(
    history: &History,
    findings: &[Finding],
    ledger: &Ledger,
) -> Option<(Generation, u64)> {
    let mut told: BTreeMap<Generation, Vec<u64>> = BTreeMap::new();
    for entry in history.entries().filter(|entry| entry.wrote()) {
        told.entry(entry.generation).or_default().push(entry.seq);
    }
    ledger.written.keys().copied().find(|(generation, seq)| {
        let Some(of_generation) = told.get(generation) else { return false };
        let (first, last) = (of_generation.iter().min(), of_generation.iter().max());
        let is_between = first < Some(seq) && Some(seq) < last;
        is_between
            && !of_generation.contains(seq)
            && !findings.iter().any(|finding| match finding {
                Finding::Missing { generation: of, from, to } => {
                    of == generation && (from..=to).contains(&seq)
                }
                Finding::Unreachable { .. }
                | Finding::Unreadable { .. }
                | Finding::Forked { .. }
                | Finding::WentBack { .. } => false,
            })
    })
}
