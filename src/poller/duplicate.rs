//! Another poller that goes on where this one is.

use thiserror::Error;

use super::memory::was_placed;
use super::{Operator, Poller, PollerParts, RestoreError, Restored, TickError};
use crate::error::restore_state;
use crate::journal::Happened;
use crate::state::FormatError;

/// Why no other document was made; nothing was written.
#[derive(Debug, Error)]
pub enum CloneError {
    /// There is no position to go on from.
    #[error("poller `{0}` has delivered nothing yet, so there is no position to go on from")]
    NoPosition(String),
    /// The document of the first poller cannot be used.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The other name has a state.
    #[error(
        "poller `{0}` has a state document, which is never overwritten: choose another name, or reset it"
    )]
    Exists(String),
    /// The other name had a state.
    #[error(
        "a poller `{poller}` has run before and its state is gone: choose another name, or {}",
        restore_state(poller, None)
    )]
    RanBefore {
        /// The other name.
        poller: String,
    },
    /// The settings of the other poller are of another source.
    #[error(
        "the settings of `{0}` name another source than the state document of `{1}`, so its position says \
         nothing of it"
    )]
    OtherSource(String, String),
    /// The document could not be put there.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The source of the other poller cannot be opened.
    #[error(transparent)]
    Tick(#[from] TickError),
}

impl Poller {
    /// Returns a poller of another name with all else the same, for one that no settings name yet.
    #[must_use]
    pub fn under_name(&self, name: &str) -> Self {
        let other = Self::new(PollerParts {
            name: name.to_owned(),
            source: self.source.clone(),
            handler: self.handler.clone(),
            store: self.store.clone(),
            instance: self.instance.clone(),
            terms: self.terms,
            limits: self.limits,
            policy: self.policy,
            metrics: self.metrics.clone(),
        });
        let mode = self.recorder().mode();
        match &self.journal.store {
            Some(store) => other.with_journal(mode, store.clone(), None),
            None => other,
        }
    }

    /// Returns the poller as it is under another application whose state is kept in the same place, to be read
    /// only; `None` where the store knows no other application.
    #[must_use]
    pub fn under_app(&self, app: &str) -> Option<Self> {
        let store = self.store.of_app(app)?;
        Some(Self { store, ..self.under_name(&self.name) })
    }

    /// Makes the document of `other`, which never ran, at the position of this poller, which is only read.
    /// `is_set_up` says whether `other` has settings of its own, whose source has to be the same then.
    ///
    /// # Errors
    ///
    /// [`CloneError`].
    pub async fn clone_to(
        &self,
        other: &Self,
        is_set_up: bool,
        operator: Operator<'_>,
    ) -> Result<Restored, CloneError> {
        let own = self.present().await.map_err(RestoreError::from)?.document?;
        let own = own.filter(|document| document.checkpoint.cursor.is_some());
        let own = own.ok_or_else(|| CloneError::NoPosition(self.name.clone()))?;
        let there = other.present().await.map_err(RestoreError::from)?;
        let is_free = match &there.document {
            Ok(None) => true,
            Ok(Some(found)) => found.is_blank() && !was_placed(found) && found.paused.is_none(),
            Err(_) => false,
        };
        if !is_free {
            return Err(CloneError::Exists(other.name.clone()));
        }
        if other.read_marker().await.map_err(RestoreError::from)?.is_some() {
            return Err(CloneError::RanBefore { poller: other.name.clone() });
        }
        if is_set_up {
            let opened = other.source.open(Some(&own.source_fingerprint)).await;
            opened.map_err(TickError::Fetch)?;
            if other.source.shape().fingerprint != own.source_fingerprint {
                return Err(CloneError::OtherSource(other.name.clone(), self.name.clone()));
            }
        }
        let mut document = own.cloned_as(&other.name);
        document.partition = other.partition;
        // Under the same name a fenced target may have seen this generation: the new one lies above it.
        document.generation = own.generation;
        Ok(other.restore(&document, &there, (Happened::Cloned, operator)).await?)
    }
}
