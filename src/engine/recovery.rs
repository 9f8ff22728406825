//! The recovery controller: finds pollers that cannot continue, and repairs what can be repaired safely.
//!
//! # What it is for
//!
//! The next tick that has rows takes over an expired lease by itself, counts the crash, and delivers the batch in
//! flight. So nothing depends on this controller as long as timers run. It reports what no tick can report: that a
//! timer does *not* run; that a poller is forgotten, paused or of another source; that rows wait and nothing moves.
//! It also cleans up: a lease that no tick takes over, because there are no rows, would look held forever.
//!
//! To *requeue* a batch therefore takes little: the batch is already in the document, and the next tick reads its
//! range again from the checkpoint. The controller only removes what would block that tick: a crashed holder, or a
//! backoff so far in the future that nothing can have requested it.
//!
//! # Why it is safe
//!
//! - A holder counts as crashed only by the rule of the lease ([`StateDocument::lease_state`]): the storage
//!   service's clock, the ttl that the holder wrote, and the margin. The clock of this machine is not used.
//! - A write is conditional on the exact document that was judged, and a lost response is handled as for any other
//!   write. If another writer was first, nothing is done.
//! - None of its transitions touches the checkpoint. Rows may be redelivered, as after any takeover, but none is
//!   skipped.
//! - It holds its own lease, in its own document, so only one runs at a time. A second one would find nothing left
//!   to do, and so does a second run.
//!
//! [`table`] is the table of conditions; the rules are pure (`recovery/judge.rs`).
//!
//! [`StateDocument::lease_state`]: crate::document::StateDocument::lease_state

mod counted;
mod judge;
mod memory;
mod poller_queries;
mod range;
mod repair;
mod report;
pub mod scan;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{error, info, warn};

pub use self::counted::Calls;
use self::counted::CountedStore;
pub use self::judge::Thresholds;
use self::judge::{ConfiguredPoller, MetCondition, Subject, judge};
use self::memory::{Memory, PollerMemory};
use self::range::SeenRange;
pub use self::report::{Finding, Outcome, Report};
use self::scan::{StoredDocument, StoredNames};
use self::table::{Action, Condition, ROWS};
use crate::cursor::SourceFingerprint;
use crate::document::{FormatError, Generation, RangeRecord, Refusal, Snapshot, StateDocument};
use crate::error::chain;
use crate::journal::{JournalMode, Recorder};
use crate::lease::{AcquireResult, Instance, Lease, LeaseContext, LeaseError, LeaseTerms};
use crate::metrics::Metrics;
use crate::poller::Poller;
use crate::store::{StateKey, StateStore, StoreError};

/// Name of the controller's own document. A poller cannot have it because of the double underscore.
pub const DOCUMENT: &str = "highwater__recovery";

/// Folder of the timer function that runs the controller.
pub const FUNCTION: &str = "highwater_recovery";

/// How long the controller's own lease lives without a write.
const TTL: Duration = Duration::from_secs(120);

/// Attempts to acquire its lease if the document must be created first, or others write it too.
const ACQUIRE_TRIES_MAX: u32 = 3;

/// Why a run did not finish.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// The store did not respond, or rejected the request.
    #[error("read the state documents")]
    Store(#[from] StoreError),
    /// The controller's own lease could not be acquired or was lost.
    #[error("hold the lease of the recovery controller")]
    Lease(#[from] LeaseError),
    /// The controller's own document cannot be used.
    #[error("read the document of the recovery controller")]
    Document(#[from] FormatError),
}

/// What the timer function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// It reports what it finds.
    Report,
    /// It also repairs what is safe to repair.
    Repair,
}

/// What a controller is built from.
#[derive(Debug)]
pub struct ControllerParts {
    /// Where the documents are stored.
    pub store: Arc<dyn StateStore>,
    /// This process.
    pub instance: Arc<Instance>,
    /// Where measurements go.
    pub metrics: Arc<Metrics>,
    /// The pollers of the settings.
    pub pollers: BTreeMap<String, Arc<Poller>>,
    /// Thresholds from which something counts as stuck.
    pub thresholds: Thresholds,
    /// What its function does.
    pub mode: Mode,
    /// How long one run may take.
    pub time_max: Duration,
}

/// Finds pollers that cannot continue.
pub struct Controller {
    parts: ControllerParts,
    /// The same store, with counted calls.
    store: Arc<CountedStore>,
    /// Locked while this process runs it.
    running: Mutex<()>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Controller").field("mode", &self.parts.mode).finish_non_exhaustive()
    }
}

/// What was found while the documents were read.
#[derive(Default)]
struct Survey {
    findings: Vec<Finding>,
    memory: Memory,
    documents: u64,
    written: u64,
    paused: BTreeSet<String>,
    /// Names of partitions, their pollers, and whether they are paused themselves.
    parts: Vec<(String, String, bool)>,
    /// Replays and backfills by name.
    ranges: BTreeMap<String, SeenRange>,
}

impl Controller {
    /// Builds a controller.
    pub fn new(parts: ControllerParts) -> Self {
        let store = Arc::new(CountedStore::new(Arc::clone(&parts.store)));
        Self { parts, store, running: Mutex::default() }
    }

    /// Runs according to its [`Mode`].
    ///
    /// # Errors
    ///
    /// [`RecoveryError`]; repairs made so far stay.
    pub async fn invoke(&self) -> Result<Report, RecoveryError> {
        match self.parts.mode {
            Mode::Off => {
                let why = "the setting `HIGHWATER__RECOVERY__MODE` is `off`".to_owned();
                Ok(Report { skipped: Some(why), ..Report::default() })
            }
            Mode::Report => self.run(false).await,
            Mode::Repair => self.run(true).await,
        }
    }

    /// Examines all documents and reports what a run would do: takes no lease and writes nothing.
    ///
    /// # Errors
    ///
    /// [`RecoveryError`].
    pub async fn look(&self) -> Result<Report, RecoveryError> {
        let began_at = Instant::now();
        self.store.take();
        let key = StateKey::Document(DOCUMENT.to_owned());
        let loaded = self.store.load(&key).await?;
        let own = loaded.stored.map(|stored| Snapshot::read(&key, stored, loaded.date));
        let before = own.transpose()?.map(|own| Memory::read(&own.document)).unwrap_or_default();
        let survey = Box::pin(self.survey(&before, false)).await?;
        Ok(self.tell(survey, began_at))
    }

    /// Examines all documents under the controller's lease, and remembers what it saw for the next run. If `repairs`,
    /// also repairs what can be repaired safely.
    ///
    /// # Errors
    ///
    /// [`RecoveryError`]; repairs made so far stay.
    pub async fn run(&self, repairs: bool) -> Result<Report, RecoveryError> {
        let skipped = |why: String| Ok(Report { skipped: Some(why), ..Report::default() });
        let Ok(_running) = self.running.try_lock() else {
            return skipped("another run is in progress in this process".to_owned());
        };
        let began_at = Instant::now();
        self.store.take();
        let key = StateKey::Document(DOCUMENT.to_owned());
        let recorder = std::sync::Mutex::new(Recorder::new(JournalMode::Off));
        let context = LeaseContext {
            store: &*self.store,
            key: &key,
            instance: &self.parts.instance,
            terms: LeaseTerms::of(TTL),
            stop_at: began_at + self.parts.time_max,
            journal: &recorder,
        };
        let mut lease = match Box::pin(acquire(context)).await? {
            Holder::This(lease) => lease,
            Holder::Another(owner_id) => return skipped(format!("`{owner_id}` is running it")),
        };
        let before = Memory::read(lease.document());
        let surveyed = lease.hold_while(Box::pin(self.survey(&before, repairs))).await?;
        if let Ok(survey) = &surveyed {
            lease.remember(Some(survey.memory.clone().write()));
        }
        if let Err(error) = lease.release(None, None).await {
            warn!(
                event = "recovery_release_failed",
                error = chain(&error),
                "The recovery controller could not release its lease; it will expire"
            );
        }
        Ok(self.tell(surveyed?, began_at))
    }

    async fn survey(&self, before: &Memory, repairs: bool) -> Result<Survey, RecoveryError> {
        let listing = StoredNames::read(&*self.store).await?;
        let mut survey = Survey::default();
        let store: Arc<dyn StateStore> = self.store.clone();
        let mut documents = Box::pin(scan::documents(store, listing.documents.clone()));
        while let Some(read) = documents.next().await {
            let (name, found) = read?;
            survey.documents += 1;
            match found {
                StoredDocument::Document(base) => {
                    let counted = listing.quarantined.get(&name).copied().unwrap_or(0);
                    let seen = (before.0.get(&name), counted, repairs);
                    Box::pin(self.examine(&mut survey, &name, &base, seen)).await;
                    // Ranges have no marker.
                    let has_marker = base.document.marked && base.document.range.is_none();
                    if has_marker && !listing.marked.contains(&name) {
                        let outcome = if repairs {
                            self.rewrite_marker(&base).await
                        } else {
                            Outcome::Planned
                        };
                        survey.written += u64::from(outcome == Outcome::Done);
                        survey.add(&name, judge::marker_missing(), outcome);
                    }
                }
                StoredDocument::Unreadable(why) => {
                    let judged = MetCondition::new(Condition::StateUnreadable, Action::Alarm, why);
                    survey.add(&name, judged, Outcome::Reported);
                }
                StoredDocument::Nothing(_) => {}
            }
        }
        self.examine_parts(&mut survey, &listing);
        for (name, range) in std::mem::take(&mut survey.ranges) {
            if let Some(judged) = range.judge(&self.parts.thresholds) {
                survey.add(&name, judged, Outcome::Reported);
            }
        }
        for name in self.parts.pollers.keys().filter(|name| !listing.has_document(name)) {
            let judged = judge::configuration_without_state(name, listing.marked.contains(name));
            survey.add(name, judged, Outcome::Reported);
        }
        survey.findings.sort_by(|a, b| (&a.poller, a.condition).cmp(&(&b.poller, b.condition)));
        Ok(survey)
    }

    async fn examine(
        &self,
        survey: &mut Survey,
        name: &str,
        base: &Snapshot,
        (before, quarantined, repairs): (Option<&PollerMemory>, u64, bool),
    ) {
        let document = &base.document;
        let age = base.age(self.store.grain());
        let poller = self.parts.pollers.get(name);
        // Keys that are retried automatically need no operator. Without `park` they are not.
        let is_retried = poller.is_none_or(|poller| poller.holds_keys());
        let retrying = if is_retried { document.parked.retrying() } else { 0 };
        let quarantined = quarantined.saturating_sub(retrying);
        let configured = match poller {
            Some(poller) => Some(self.configured(poller, base).await),
            None => None,
        };
        let now = base.now();
        let subject = Subject { name, document, age, now, quarantined, configured, before };
        for judged in judge(&subject, &self.parts.thresholds) {
            let outcome = match judged.action.is_repair() {
                true if repairs => {
                    Box::pin(self.repair(base, judged.condition, configured.as_ref())).await
                }
                true => Outcome::Planned,
                false => Outcome::Reported,
            };
            survey.written += u64::from(outcome == Outcome::Done);
            survey.add(name, judged, outcome);
        }
        if let Some(poller) = poller
            && document.taken_over_by.is_none()
            && let Some(verdict) = Box::pin(poller.admin().verify_latest()).await
            && let Some(judged) = judge::journal_differs(name, &verdict)
        {
            survey.add(name, judged, Outcome::Reported);
        }
        if document.paused.is_some() {
            survey.paused.insert(name.to_owned());
        }
        if let Some((whole, seen)) = SeenRange::of(&subject) {
            let before = survey.ranges.remove(&whole);
            let together = match before {
                Some(before) => before.and(&seen),
                None => seen,
            };
            survey.ranges.insert(whole, together);
        }
        let has_ended = document.taken_over_by.is_some()
            || document.range.as_ref().is_some_and(RangeRecord::has_ended);
        let parent = judge::parent_of(name, document).filter(|_| poller.is_none() && !has_ended);
        if let Some(parent) = parent {
            let part = (name.to_owned(), parent.to_owned(), document.paused.is_some());
            survey.parts.push(part);
        }
        let known = configured.unwrap_or_default();
        let waiting_since = judge::rows_wait_since(document, &known, before, now);
        let remembered = PollerMemory::of(document, waiting_since, quarantined, before);
        survey.memory.0.extend(remembered.map(|remembered| (name.to_owned(), remembered)));
    }

    /// Queries a poller for what its document does not say; an unanswered query means unknown.
    async fn configured(&self, poller: &Poller, base: &Snapshot) -> ConfiguredPoller {
        let document = &base.document;
        let age = base.age(self.store.grain());
        let fingerprint_matches = poller.matches_source(document).await;
        let asks = fingerprint_matches == Some(true)
            && judge::is_silent(document, age, self.parts.thresholds.stuck_after);
        let rows_wait = if asks { poller.has_rows_waiting(document).await } else { None };
        ConfiguredPoller {
            journaled: poller.keeps_journal(),
            retry_delay_max: poller.retry_delay_max(),
            retry_after_max: poller.retry_after_max(),
            fingerprint_matches,
            rows_wait,
            skipped_since: poller.skipped_since(),
        }
    }

    fn examine_parts(&self, survey: &mut Survey, listing: &StoredNames) {
        for (name, parent, is_paused) in std::mem::take(&mut survey.parts) {
            let is_there =
                listing.documents.contains(&parent) || self.parts.pollers.contains_key(&parent);
            if !is_there || (survey.paused.contains(&parent) && !is_paused) {
                survey.add(&name, judge::parent_gone(&parent, is_there), Outcome::Reported);
            }
        }
    }

    /// Logs and counts the findings, once, at the end of a run.
    fn tell(&self, survey: Survey, began_at: Instant) -> Report {
        let Survey { findings, documents, written, .. } = survey;
        for row in ROWS {
            let of_row = findings.iter().filter(|finding| finding.condition == row.condition);
            let count = u64::try_from(of_row.count()).unwrap_or(u64::MAX);
            self.parts.metrics.orphans(row.name, count);
        }
        for finding in &findings {
            log(finding);
        }
        let duration = began_at.elapsed();
        let calls = self.store.take();
        let report = Report { findings, documents, written, calls, duration, skipped: None };
        info!(
            event = "recovery_complete",
            documents,
            findings = report.findings.len(),
            written,
            duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            "{}",
            report.summary()
        );
        report
    }
}

impl Survey {
    fn add(&mut self, poller: &str, judged: MetCondition, outcome: Outcome) {
        let MetCondition { condition, action, found } = judged;
        let poller = poller.to_owned();
        self.findings.push(Finding { poller, condition, action, found, outcome });
    }
}

/// The holder of the controller's lease.
enum Holder<'a> {
    This(Box<Lease<'a>>),
    Another(String),
}

/// Tries to acquire the controller's lease.
async fn acquire(context: LeaseContext<'_>) -> Result<Holder<'_>, RecoveryError> {
    let fingerprint = SourceFingerprint::of(&[("recovery", "controller")]);
    for _ in 0..ACQUIRE_TRIES_MAX {
        let loaded = context.store.load(context.key).await?;
        let mut base = if let Some(stored) = loaded.stored {
            Snapshot::read(context.key, stored, loaded.date)?
        } else {
            let blank = StateDocument::blank(DOCUMENT, fingerprint.clone());
            Snapshot::absent(blank, loaded.date)
        };
        if base.document.is_blank() {
            let milliseconds = base.now().unix_timestamp_nanos() / 1_000_000;
            let generation = Generation(u64::try_from(milliseconds).unwrap_or(0).max(1));
            let begun = base.document.started(generation, &fingerprint);
            base = base.with(begun);
        }
        match Lease::acquire(context, &base, None).await? {
            AcquireResult::Held(lease) => return Ok(Holder::This(lease)),
            AcquireResult::Refused(Refusal::Held { owner_id }) => {
                return Ok(Holder::Another(owner_id));
            }
            AcquireResult::Refused(refusal) => return Err(LeaseError::Refused(refusal).into()),
            AcquireResult::Conflict => {}
        }
    }
    Ok(Holder::Another("another instance".to_owned()))
}

fn log(finding: &Finding) {
    let Finding { poller, condition, action, found, outcome } = finding;
    macro_rules! line {
        ($level:ident) => {
            $level!(
                event = "recovery_finding",
                poller.name = poller,
                condition = condition.as_str(),
                action = action.as_str(),
                outcome = outcome.to_string(),
                "Poller `{poller}`: {condition}: {found}"
            )
        };
    }
    match action {
        Action::Alarm => line!(error),
        Action::Report | Action::Release | Action::Requeue | Action::Rewrite => line!(warn),
    }
}

#[cfg(test)]
mod tests;
