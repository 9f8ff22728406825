//! Replaces the stored document, with the result of the journal or with a copy.

use serde_json::Value as Json;
use thiserror::Error;
use time::OffsetDateTime;

use super::pause::{CHANGE_TIME_MAX, operator_tick};
use crate::admin::{Admin, Operator};
use crate::document::{
    DocumentAge, Fence, FencingToken, FormatError, Generation, LeaseState, LoadError, Refusal,
    Snapshot, StateDocument,
};
use crate::journal::EventKind;
use crate::partition::{Partition, poller_of_partition};
use crate::policy::OnFailure;
use crate::poller::Poller;
use crate::poller::memory::never_ran;
use crate::store::{ETag, Precondition, StateKey, StoreError};

/// What is stored for a poller, usable or not.
#[derive(Debug)]
pub struct PresentState {
    /// The content; `None` if nothing is stored.
    pub bytes: Option<Vec<u8>>,
    /// The decoded document; `Ok(None)` if nothing is stored.
    pub document: Result<Option<StateDocument>, FormatError>,
    /// The holder of the lease; `None` if it is free, or unknown.
    pub held_by: Option<String>,
    etag: Option<ETag>,
    /// How old it was at that time; `None` if it cannot be read.
    age: Option<DocumentAge>,
    /// The service's clock when it answered.
    pub date: OffsetDateTime,
}

impl PresentState {
    /// Returns the document, if it is usable.
    pub fn usable(&self) -> Option<&StateDocument> {
        self.document.as_ref().ok()?.as_ref().filter(|document| !document.is_blank())
    }

    /// Returns the document of a poller that has started; `None` if nothing is stored, or a blank document.
    ///
    /// # Errors
    ///
    /// [`FormatError`] if the stored content cannot be used.
    pub fn into_started(self) -> Result<Option<StateDocument>, FormatError> {
        Ok(self.document?.filter(|document| !never_ran(document)))
    }

    /// Returns the highest grant found in the stored text, even if it is damaged. The generation is that of the
    /// target's fence if a higher one is stored there.
    fn newest(&self) -> (Generation, FencingToken) {
        let json: Json = self
            .bytes
            .as_ref()
            .and_then(|bytes| serde_json::from_slice(bytes).ok())
            .unwrap_or_default();
        let number = |pointer| json.pointer(pointer).and_then(Json::as_u64).unwrap_or(0);
        let generation = number("/generation").max(number("/lease/target_fence/generation"));
        (Generation(generation), FencingToken(number("/lease/fencing_token")))
    }
}

/// A restored document.
#[derive(Debug, PartialEq)]
pub struct RestoredDocument {
    /// The document as written.
    pub document: StateDocument,
    /// Where the previous content was saved; `None` if there was none.
    pub saved: Option<StateKey>,
}

/// Why a document was not restored; the stored content is unchanged.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// Another instance holds the lease.
    #[error("`{owner_id}` holds the lease; pause the poller, and retry when the lease is free")]
    Held {
        /// The holder.
        owner_id: String,
    },
    /// The document belongs to another partition than the settings define for that name.
    #[error(
        "the document belongs to {document}, but by the settings `{poller}` is {settings}, so a tick would reject it; use a \
         document with the same partitions, or set `HIGHWATER__POLLERS__{}__PARTITIONS` to its previous value",
        poller_of_partition(poller).to_ascii_uppercase()
    )]
    OtherPart {
        /// The poller.
        poller: String,
        /// What the document belongs to.
        document: String,
        /// What the poller is, by the settings.
        settings: String,
    },
    /// It has been written since the plan was made.
    #[error("the state has changed since it was read; read it again")]
    Moved,
    /// The document cannot be written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed, or its content cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl From<StoreError> for RestoreError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict { .. } => Self::Moved,
            error @ (StoreError::Unreachable { .. }
            | StoreError::Unknown { .. }
            | StoreError::Refused { .. }) => Self::Load(error.into()),
        }
    }
}

/// Most names to try when saving what is replaced.
const SAVES_MAX: u32 = 20;

impl Poller {
    /// Rejects a document that belongs to another partition, or whose rows other partitions deliver, as a replacement
    /// of this poller's document.
    ///
    /// # Errors
    ///
    /// [`RestoreError::OtherPart`].
    pub fn reject_other_partition(&self, document: &StateDocument) -> Result<(), RestoreError> {
        let is_own = document.partition == self.partition && document.taken_over_by.is_none();
        if !self.checks_siblings || !document.names_partition_count() || is_own {
            return Ok(());
        }
        let part = |partition: Option<Partition>| {
            partition
                .map_or_else(|| "the whole poller".to_owned(), |part| format!("partition {part}"))
        };
        let taken_over = document.taken_over_by.map(|count| {
            let owners = if count == 1 {
                "one other partition has".to_owned()
            } else {
                format!("{count} other partitions have")
            };
            format!(", whose rows {owners} taken over")
        });
        Err(RestoreError::OtherPart {
            poller: self.name.clone(),
            document: part(document.partition) + &taken_over.unwrap_or_default(),
            settings: part(self.partition),
        })
    }
}

impl Admin<'_> {
    /// Returns what is stored, usable or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn present(self) -> Result<PresentState, StoreError> {
        let loaded = self.poller.store.load(&self.poller.key).await?;
        let date = loaded.date;
        let Some(stored) = loaded.stored else {
            return Ok(PresentState {
                bytes: None,
                document: Ok(None),
                held_by: None,
                etag: None,
                age: None,
                date,
            });
        };
        let (bytes, etag) = (Some(stored.bytes.clone()), Some(stored.etag.clone()));
        let read = Snapshot::read(&self.poller.key, stored, date);
        let age = read.as_ref().ok().map(|read| read.age(self.poller.store.grain()));
        let standing = read
            .as_ref()
            .ok()
            .zip(age)
            .map(|(read, age)| read.document.lease_state(self.poller.instance.owner_id(), age));
        let held_by = match standing {
            Some(LeaseState::Held { owner_id }) => Some(owner_id),
            Some(LeaseState::Free | LeaseState::Own | LeaseState::Lapsed) | None => None,
        };
        let document = read.map(|read| Some(read.into_document()));
        Ok(PresentState { bytes, document, held_by, etag, age, date })
    }

    /// Returns the document in `present` or, if that is lost or damaged, the one to which the journal leads; `None`
    /// if no journal is kept either.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the journal cannot be read.
    pub async fn last_known(
        self,
        present: &PresentState,
    ) -> Result<Option<StateDocument>, StoreError> {
        if let Some(document) = present.usable() {
            return Ok(Some(document.clone()));
        }
        // A disabled journal may be from before the loss.
        if !self.poller.keeps_journal() {
            return Ok(None);
        }
        Ok(self.history(None).await?.fold().document)
    }

    /// Replaces what `present` has with `document`, under a new generation, after saving the old content. A position
    /// found to be lost stays lost, unless this is a reset.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; nothing was replaced then, unless the outcome of a write is unknown.
    pub async fn restore(
        self,
        document: &StateDocument,
        present: &PresentState,
        action: (EventKind, Operator<'_>),
    ) -> Result<RestoredDocument, RestoreError> {
        self.poller.reject_other_partition(document)?;
        if let Some(owner_id) = present.held_by.clone() {
            return Err(RestoreError::Held { owner_id });
        }
        let (newest, token) = present.newest();
        let refused = document.lease.target_fence.map_or(Generation(0), |fence| fence.generation);
        let known = newest.max(document.generation).max(refused);
        let generation = self.generation_above(known, present).await?;
        let (generation, saved) = self.save(present, generation).await?;
        let mut next = document.restored(generation, token)?;
        if let Some(replaced) = present.usable() {
            next = next.with_entries_of(replaced);
        } else if self.poller.policy.on_failure == OnFailure::Park {
            next = next.with_possible_entries(present.date);
        }
        if action.0 == EventKind::Reset {
            next.reset_generation = Some(generation);
        } else {
            let replaced = if action.0 == EventKind::Imported {
                let replaced = Box::pin(self.last_known(present)).await?;
                // A reset recorded in the copy may be from another history than a loss that was found here.
                next.reset_generation = replaced.as_ref().and_then(|last| last.reset_generation);
                replaced
            } else {
                present.usable().cloned()
            };
            if let Some(replaced) = &replaced {
                next.inherit_loss(replaced);
            }
        }
        let document = Box::pin(self.put(next, present, action)).await?;
        Ok(RestoredDocument { document, saved })
    }

    /// Removes the lease from its holder, after saving the document; `None` if the lease is free. A live holder loses
    /// it only if `even_live`: its batch in flight is redelivered.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; nothing was changed then, unless the outcome of a write is unknown.
    pub async fn break_lease(
        self,
        present: &PresentState,
        even_live: bool,
        operator: Operator<'_>,
    ) -> Result<Option<RestoredDocument>, RestoreError> {
        let (Some(document), Some(age)) = (present.usable(), present.age) else { return Ok(None) };
        let broken = match document.broken_by_operator(age, present.date, even_live) {
            Err(Refusal::Held { owner_id }) => return Err(RestoreError::Held { owner_id }),
            broken => broken?,
        };
        let Some(next) = broken else { return Ok(None) };
        // The document keeps its generation, and its batch in flight the id; only the saved copy needs a number.
        let number = self.generation_above(document.generation, present).await?;
        let (_, saved) = self.save(present, number).await?;
        let action = (EventKind::LeaseBroken, operator);
        let document = Box::pin(self.put(next, present, action)).await?;
        Ok(Some(RestoredDocument { document, saved }))
    }

    /// Raises the grants of a document that was restored from an older copy above `fence`, which its target has
    /// accepted, after saving the document; `None` if the next grant is already high enough. The checkpoint stays. A
    /// live holder is superseded only if `even_live`.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; nothing was changed then, unless the outcome of a write is unknown.
    pub async fn raise_above(
        self,
        fence: Fence,
        present: &PresentState,
        even_live: bool,
        operator: Operator<'_>,
    ) -> Result<Option<RestoredDocument>, RestoreError> {
        let Some(document) = present.usable() else { return Ok(None) };
        if let Some(owner_id) = present.held_by.clone().filter(|_| !even_live) {
            return Err(RestoreError::Held { owner_id });
        }
        let known = fence.generation.max(document.generation);
        let generation = self.generation_above(known, present).await?;
        let Some(next) = document.raised_above(fence, generation)? else { return Ok(None) };
        let (_, saved) = self.save(present, generation).await?;
        let action = (EventKind::LeaseBroken, operator);
        let document = Box::pin(self.put(next, present, action)).await?;
        Ok(Some(RestoredDocument { document, saved }))
    }

    /// Replaces the stored document with `next`, and records that.
    async fn put(
        self,
        mut next: StateDocument,
        present: &PresentState,
        action: (EventKind, Operator<'_>),
    ) -> Result<StateDocument, RestoreError> {
        next.note(operator_tick(action.0.as_str(), action.1, present.date));
        next.write_id = self.poller.instance.next_write_id();
        self.poller.number(action.0, &mut next);
        let etag = match &present.etag {
            Some(etag) => etag.clone(),
            None => self.created().await?,
        };
        let written = Box::pin(self.poller.documents(CHANGE_TIME_MAX).replace(next, &etag)).await?;
        let written = written.ok_or(RestoreError::Moved)?;
        self.poller.record_operator_action(action, &written.document, written.written_at()).await;
        Ok(written.into_document())
    }

    /// Returns a generation above all known ones: the marker's, `known`, and those created before now.
    async fn generation_above(
        self,
        known: Generation,
        present: &PresentState,
    ) -> Result<Generation, RestoreError> {
        let marker = self.poller.read_marker().await?;
        let known = known.max(marker.map_or(Generation(0), |marker| marker.generation));
        let now = u64::try_from(present.date.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
        Ok(Generation(now.max(known.0.saturating_add(1))))
    }

    /// Saves what is stored under the generation that follows, or the next one without a saved copy: an earlier
    /// attempt may have got this far.
    async fn save(
        self,
        present: &PresentState,
        mut generation: Generation,
    ) -> Result<(Generation, Option<StateKey>), RestoreError> {
        let Some(bytes) = &present.bytes else { return Ok((generation, None)) };
        for _ in 0..SAVES_MAX {
            let key = StateKey::Saved { poller: self.poller.name.clone(), before: generation };
            match self.poller.store.store(&key, bytes.clone(), Precondition::Absent).await {
                Ok(_) => return Ok((generation, Some(key))),
                Err(StoreError::Conflict { .. }) => {
                    generation = Generation(generation.0.saturating_add(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(RestoreError::Moved)
    }

    /// Creates the blank document to be replaced, and returns its tag.
    async fn created(self) -> Result<ETag, RestoreError> {
        self.poller.documents(CHANGE_TIME_MAX).create(&self.poller.blank()).await?;
        let now = self.present().await?;
        // Another instance was faster and started it.
        let is_blank = matches!(&now.document, Ok(Some(found)) if found.is_blank());
        now.etag.filter(|_| is_blank).ok_or(RestoreError::Moved)
    }
}
