//! What the documents of one poller's parts have to agree on: into how many its keys are divided.
//!
//! A part that ran beside parts of another division would deliver what those have delivered, or leave rows to
//! nobody. Where a document is there, it says so itself. Where none is, two others are asked before one is
//! begun: that of the poller as a whole, and that of its first part, which whoever is first makes: blank, but for
//! the number of parts. So that number is written down before the first row of any part is delivered.

use super::{LoadError, Poller, RestoreError, TickError};
use crate::partition::{Partition, whole_of};
use crate::state::{Precondition, StateDocument, StateKey, StoreError, decode, encode};

impl Poller {
    /// Says which part this is, or that it is the whole; it begins nothing beside another division then.
    #[must_use]
    pub fn dividing(self, partition: Option<Partition>) -> Self {
        Self { partition, asks_kin: true, ..self }
    }

    /// Refuses a document that is of another division than the settings.
    pub(super) fn refuse_division_of(&self, document: &StateDocument) -> Result<(), TickError> {
        let (stored, configured) = (document.divided_into(), self.division());
        if !self.asks_kin || !document.tells_division() || stored == configured {
            return Ok(());
        }
        Err(TickError::Divided { poller: whole_of(&self.name).to_owned(), stored, configured })
    }

    /// Refuses a document that is of another part than this one, or whose rows other parts deliver: what would be put
    /// in the place of this one's.
    ///
    /// # Errors
    ///
    /// [`RestoreError::OtherPart`].
    pub fn refuse_other_part(&self, document: &StateDocument) -> Result<(), RestoreError> {
        let is_own = document.partition == self.partition && document.taken_over_by.is_none();
        if !self.asks_kin || !document.tells_division() || is_own {
            return Ok(());
        }
        let part = |partition: Option<Partition>| {
            partition.map_or_else(|| "the whole poller".to_owned(), |part| format!("part {part}"))
        };
        let taken_over = document.taken_over_by.map(|count| {
            let others = if count == 1 {
                "one other has".to_owned()
            } else {
                format!("{count} others have")
            };
            format!(", whose rows {others} taken over")
        });
        Err(RestoreError::OtherPart {
            poller: self.name.clone(),
            document: part(document.partition) + &taken_over.unwrap_or_default(),
            settings: part(self.partition),
        })
    }

    /// Refuses what would run beside parts of another division.
    ///
    /// # Errors
    ///
    /// [`TickError::Divided`], or [`TickError::Load`] if their documents cannot be read.
    pub async fn refuse_beside_others(&self) -> Result<(), TickError> {
        self.refuse_other_division(false).await
    }

    /// Refuses to begin beside a document of another division. `writes` is for who is about to begin: the number
    /// of parts is written down first.
    pub(super) async fn refuse_other_division(&self, writes: bool) -> Result<(), TickError> {
        if !self.asks_kin {
            return Ok(());
        }
        let whole = whole_of(&self.name);
        if self.name != whole {
            self.refuse_division_of_kin(whole).await?;
        }
        if writes {
            self.write_division_down().await?;
        }
        let first = Partition { index: 0, count: self.division() }.name(whole);
        if self.name != first {
            self.refuse_division_of_kin(&first).await?;
        }
        Ok(())
    }

    /// Writes the number of parts down, unless that was done.
    pub(super) async fn write_division_down(&self) -> Result<(), LoadError> {
        let Some(own) = self.partition.filter(|own| self.asks_kin && own.index > 0) else {
            return Ok(());
        };
        let first = Partition { index: 0, ..own };
        let name_of_first = first.name(whole_of(&self.name));
        self.create_first(&name_of_first, first).await
    }

    async fn refuse_division_of_kin(&self, name: &str) -> Result<(), TickError> {
        let key = StateKey::Document(name.to_owned());
        let stored = self.store.load(&key).await.map_err(LoadError::Store)?.stored;
        let Some(stored) = stored else { return Ok(()) };
        self.refuse_division_of(&decode(name, &stored.bytes).map_err(LoadError::Format)?)
    }

    /// Creates the blank document of the first part, unless there is one.
    async fn create_first(&self, name: &str, first: Partition) -> Result<(), LoadError> {
        let key = StateKey::Document(name.to_owned());
        if self.store.load(&key).await?.stored.is_some() {
            return Ok(());
        }
        // Of what source it is says whoever begins it.
        let fingerprint = self.source.shape().fingerprint.clone();
        let mut blank = StateDocument::blank(name, fingerprint);
        blank.partition = Some(first);
        match self.store.store(&key, encode(&blank), Precondition::Absent).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
