//! Creates another poller that continues at the position of this one.

use thiserror::Error;

use crate::admin::{Admin, Operator, RestoreError, RestoredDocument};
use crate::document::FormatError;
use crate::error::restore_state;
use crate::journal::EventKind;
use crate::poller::memory::never_ran;
use crate::poller::{Poller, TickError};

/// Why no clone was created; nothing was written.
#[derive(Debug, Error)]
pub enum CloneError {
    /// There is no state to copy.
    #[error("poller `{0}` has never started, so there is no state to copy")]
    NeverStarted(String),
    /// The document of the first poller cannot be used.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The target name already has a state.
    #[error(
        "poller `{0}` has a state document, which is never overwritten: choose another name, or reset it"
    )]
    Exists(String),
    /// The target name had a state.
    #[error(
        "poller `{poller}` has run before and its state is gone: choose another name, or {}",
        restore_state(poller, None)
    )]
    RanBefore {
        /// The other name.
        poller: String,
    },
    /// The target's settings have another source.
    #[error(
        "the settings of `{0}` have another source than the state document of `{1}`, so that position does \
         not apply"
    )]
    OtherSource(String, String),
    /// The document could not be written.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The source of the target cannot be opened.
    #[error(transparent)]
    Tick(#[from] TickError),
}

impl Admin<'_> {
    /// Creates the document of `other`, which must never have run, at the position of this poller, which is only
    /// read. `is_set_up` says whether `other` has its own settings; their source must then be the same.
    ///
    /// # Errors
    ///
    /// [`CloneError`].
    pub async fn clone_to(
        self,
        other: &Poller,
        is_set_up: bool,
        operator: Operator<'_>,
    ) -> Result<RestoredDocument, CloneError> {
        let own = self.present().await.map_err(RestoreError::from)?.into_started()?;
        let own = own.ok_or_else(|| CloneError::NeverStarted(self.poller.name.clone()))?;
        let there = other.admin().present().await.map_err(RestoreError::from)?;
        let is_free = match &there.document {
            Ok(None) => true,
            Ok(Some(found)) => never_ran(found) && found.paused.is_none(),
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
                return Err(CloneError::OtherSource(other.name.clone(), self.poller.name.clone()));
            }
        }
        let mut document = own.cloned_as(&other.name);
        document.partition = other.partition;
        // Under the same name, a fenced target may have seen this generation, so the new one must be above it.
        document.generation = own.generation;
        Ok(other.admin().restore(&document, &there, (EventKind::Cloned, operator)).await?)
    }
}
