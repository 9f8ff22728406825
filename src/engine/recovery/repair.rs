//! The two writes of the controller.

use std::time::Duration;

use tokio::time::Instant;

use super::judge::{ConfiguredPoller, latest_attempt};
use super::table::Condition;
use super::{Controller, Outcome};
use crate::document::{DocumentStore, Snapshot};
use crate::error::chain;

use crate::document::{Marker, Refusal, StateDocument, encode_marker};
use crate::metrics::FoundBy;
use crate::store::{Precondition, StateKey, StateStore as _, StoreError};

/// Deadline for finding out the outcome of a write.
const WRITE_TIME_MAX: Duration = Duration::from_secs(10);

impl Controller {
    /// Makes the repair for which `base` was judged, unless the document has changed since.
    pub(super) async fn repair(
        &self,
        base: &Snapshot,
        condition: Condition,
        configured: Option<&ConfiguredPoller>,
    ) -> Outcome {
        let next = match self.change(base, condition, configured) {
            Ok(Some(next)) => next,
            Ok(None) => return Outcome::Changed,
            Err(refusal) => return Outcome::Failed(refusal.to_string()),
        };
        let name = &base.document.poller_name;
        let poller = self.parts.pollers.get(name);
        let mut next = next;
        next.write_id = self.parts.instance.next_write_id();
        if let Some(poller) = poller {
            poller.number_write(&mut next);
        } else if next.journal_seq > 0 {
            // If a journal was kept while the poller was in the settings, it must show a gap, not another state.
            next.journal_seq = next.journal_seq.saturating_add(1);
        }
        let Some(etag) = &base.etag else { return Outcome::Changed };
        let key = StateKey::Document(name.clone());
        let documents = DocumentStore {
            store: &*self.store,
            key: &key,
            until: Instant::now() + WRITE_TIME_MAX,
        };
        let idle = base.document.idle(base.age(self.store.grain()));
        match Box::pin(documents.replace(next, etag)).await {
            Ok(Some(written)) => {
                self.count(&base.document, condition, idle);
                if let Some(poller) = poller {
                    let now = written.now();
                    poller.record_recovery(&written.document, now, condition.as_str()).await;
                }
                Outcome::Done
            }
            Ok(None) => Outcome::Changed,
            Err(error) => Outcome::Failed(chain(&error)),
        }
    }

    /// Returns the replacement of a document; `None` if there is nothing to do.
    fn change(
        &self,
        base: &Snapshot,
        condition: Condition,
        configured: Option<&ConfiguredPoller>,
    ) -> Result<Option<StateDocument>, Refusal> {
        let (age, now) = (base.age(self.store.grain()), base.now());
        match (condition, configured) {
            (Condition::LeaseExpired, _) => base.document.release_lapsed(age, now),
            (Condition::InFlightOrphaned, Some(configured)) => {
                Ok(base.document.end_back_off(age, latest_attempt(now, configured), now))
            }
            (Condition::InFlightOrphaned, None)
            | (
                Condition::TargetAsksForPause
                | Condition::CheckpointStuck
                | Condition::StateWithoutConfiguration
                | Condition::ConfigurationWithoutState
                | Condition::QuarantineGrowing
                | Condition::PausedTooLong
                | Condition::ParentGone
                | Condition::RangeLeft
                | Condition::LeaseHeldElsewhere
                | Condition::JournalWithoutCommits
                | Condition::JournalDiffers
                | Condition::FingerprintDiffers
                | Condition::StateUnreadable
                | Condition::MarkerMissing,
                _,
            ) => Ok(None),
        }
    }

    /// Writes the marker of `base` again; an existing marker of another writer is kept.
    pub(super) async fn rewrite_marker(&self, base: &Snapshot) -> Outcome {
        let document = &base.document;
        let poller_name = document.poller_name.clone();
        let key = StateKey::Marker(poller_name.clone());
        let (generation, created_at) = (document.generation, base.now());
        let marker = encode_marker(&Marker { poller_name, generation, created_at });
        match self.store.store(&key, marker, Precondition::Absent).await {
            Ok(_) => Outcome::Done,
            Err(StoreError::Conflict { .. }) => Outcome::Changed,
            Err(error) => Outcome::Failed(chain(&error)),
        }
    }

    fn count(&self, judged: &StateDocument, condition: Condition, idle: Duration) {
        let (metrics, name) = (&self.parts.metrics, judged.poller_name.as_str());
        if condition == Condition::LeaseExpired {
            metrics.lease_expired(name, FoundBy::Recovery, idle, judged.in_flight.is_some());
        } else {
            metrics.requeued(name);
        }
    }
}
