//! A poller's history: read, compared with the stored document, and restarted.

use time::Date;
use tracing::{info, warn};

use super::pause::Change;
use super::restore::PresentState;
use crate::admin::{Admin, Operator};
use crate::document::{LoadError, StateDocument};
use crate::error::chain;
use crate::journal::{EventKind, Finding, FoldResult, History, JournalMode, Part, Verdict, verify};
use crate::poller::TickError;
use crate::store::StoreError;

/// A history and the stored document.
#[derive(Debug)]
pub struct HistoryCheck {
    /// The history as read.
    pub folded: FoldResult,
    /// What is stored.
    pub present: PresentState,
    /// The result of comparing them; [`Verdict::NoDocument`] also if the stored content cannot be used.
    pub verdict: Verdict,
}

/// Result of restarting the history.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactResult {
    /// The history starts with the document.
    Compacted {
        /// Number of its first entry.
        seq: u64,
        /// The parts that were dropped.
        dropped: Vec<Part>,
        /// Parts that were appended to meanwhile and therefore stay: the next compaction drops them.
        kept: Vec<Part>,
    },
    /// There is no document to start with.
    NoDocument,
    /// Nothing was dropped: the document could not be appended, or cannot be read back.
    NotAppended,
}

/// Most reads of a history that is behind: its last entry may still be in progress.
const READS_MAX: u32 = 3;

/// Longest day of a journal that the recovery controller reads: it is held in memory completely.
const VERIFIED_BYTES_MAX: u64 = 8 << 20;

impl Admin<'_> {
    /// Reads the journal, starting at the day `from` if given.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn history(self, from: Option<Date>) -> Result<History, StoreError> {
        match &self.poller.journal.store {
            Some(store) => History::read(&**store, &self.poller.name, from).await,
            None => Ok(History::default()),
        }
    }

    /// Reads the last day of the journal: enough for a page that is refreshed often.
    ///
    /// # Errors
    ///
    /// As [`Self::history`].
    pub async fn latest_history(self) -> Result<History, StoreError> {
        let Some(store) = &self.poller.journal.store else { return Ok(History::default()) };
        match store.list(&self.poller.name).await?.last() {
            Some(part) => self.history(Some(part.day)).await,
            None => Ok(History::default()),
        }
    }

    /// Compares the history with what is stored. Nothing is written.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn examine(self) -> Result<HistoryCheck, StoreError> {
        let mut reads = 1;
        loop {
            // In this order, a tick in between only makes the history look older.
            let folded = self.history(None).await?.fold();
            let present = self.present().await?;
            let verdict = self.verdict(&folded, present.usable());
            let may_catch_up = matches!(
                verdict,
                Verdict::Behind { .. } | Verdict::NotBegun { .. } | Verdict::Removed { .. }
            );
            if !may_catch_up || reads >= READS_MAX {
                return Ok(HistoryCheck { folded, present, verdict });
            }
            reads += 1;
        }
    }

    fn verdict(self, folded: &FoldResult, document: Option<&StateDocument>) -> Verdict {
        let mode = match self.poller.journal_mode() {
            JournalMode::Off => JournalMode::Full,
            mode @ (JournalMode::Commits | JournalMode::Full) => mode,
        };
        verify(mode, folded, document)
    }

    /// Compares the journal's last day with the current document, for the recovery controller.
    ///
    /// A day starts with a snapshot, so it folds by itself. `None` if no journal is kept, if the document cannot be
    /// used, or if the day cannot be read or is too long to be read each time.
    pub(crate) async fn verify_latest(self) -> Option<Verdict> {
        let mut reads = 1;
        loop {
            let verdict = match self.compare_latest().await {
                Ok(verdict) => verdict?,
                Err(error) => {
                    warn!(
                        event = "journal_not_verified",
                        poller.name = self.poller.name,
                        error = chain(&error),
                        "Could not compare the journal of poller `{}` with its document",
                        self.poller.name
                    );
                    return None;
                }
            };
            // Something may have been written between the two reads.
            if verdict.is_explained() || reads >= READS_MAX {
                return Some(verdict);
            }
            reads += 1;
        }
    }

    async fn compare_latest(self) -> Result<Option<Verdict>, StoreError> {
        let store = self.poller.journal.store.as_ref().filter(|_| self.poller.keeps_journal());
        let Some(store) = store else { return Ok(None) };
        let parts = store.list(&self.poller.name).await?;
        let day = parts.last().map(|part| part.day);
        let mut bytes = 0;
        for part in parts.iter().filter(|part| Some(part.day) == day) {
            bytes += store.length(part).await?;
        }
        if bytes > VERIFIED_BYTES_MAX {
            info!(
                event = "journal_not_verified",
                poller.name = self.poller.name,
                bytes,
                "The journal of poller `{name}` has {bytes} bytes for one day, too many to compare at \
                 each run; compare it with `highwater state verify {name}`",
                name = self.poller.name
            );
            return Ok(None);
        }
        let history = match day {
            Some(day) => self.history(Some(day)).await?,
            None => History::default(),
        };
        let folded = history.fold();
        // In this order, a tick in between only makes the history look older.
        let present = self.present().await?;
        Ok(present.usable().map(|document| self.verdict(&folded, Some(document))))
    }

    /// Restarts the history with the current document, and drops earlier entries, like an orchestration that
    /// continues as new. Safe while ticks run.
    ///
    /// The document is written, numbered and appended to a new part. Earlier parts are dropped only once it can be
    /// read back, and only if nothing was appended to them meanwhile. Everything they hold was then written before
    /// the document, so nothing that is dropped is needed to fold.
    ///
    /// # Errors
    ///
    /// [`TickError::Load`] if the document or the journal cannot be read or written.
    pub async fn compact(self, operator: Operator<'_>) -> Result<CompactResult, TickError> {
        let Some(store) = &self.poller.journal.store else { return Ok(CompactResult::NotAppended) };
        let before = self.history(None).await.map_err(LoadError::Store)?;
        if let Some(appender) = &self.poller.journal.appender {
            appender.lock().await.start_part();
        }
        let written = self
            .change((EventKind::Compacted, operator), |base| {
                if base.etag.is_none() || base.document.is_blank() {
                    return Change::Nothing(None);
                }
                let next = base.document.rewritten(base.age(self.poller.store.grain()));
                let place = (next.generation, next.journal_seq.saturating_add(1));
                Change::Write(Box::new(next), Some(place))
            })
            .await?;
        let Some(place) = written else { return Ok(CompactResult::NoDocument) };
        let after = self.history(None).await.map_err(LoadError::Store)?;
        let old: Vec<String> = before.parts.iter().map(|(part, _)| part.to_string()).collect();
        let is_there = after.lines.iter().filter(|line| !old.contains(&line.part)).any(|line| {
            line.entry.as_ref().is_ok_and(|entry| {
                entry.event == EventKind::Compacted
                    && entry.place() == place
                    && entry.document.is_some()
            })
        });
        if !is_there {
            return Ok(CompactResult::NotAppended);
        }
        let (mut dropped, mut kept) = (Vec::new(), Vec::new());
        for (part, length) in before.parts {
            match store.remove(&part, Some(length)).await {
                Ok(()) => dropped.push(part),
                Err(StoreError::Conflict { .. }) => kept.push(part),
                Err(error) => return Err(LoadError::Store(error).into()),
            }
        }
        Ok(CompactResult::Compacted { seq: place.1, dropped, kept })
    }
}

impl HistoryCheck {
    /// Returns the document to which the history leads.
    pub fn history(&self) -> Option<&StateDocument> {
        self.folded.document.as_ref()
    }

    /// Returns the problems of the history.
    pub fn findings(&self) -> &[Finding] {
        &self.folded.findings
    }
}
