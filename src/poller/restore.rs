//! Putting a document in the place of what is stored: one that the journal leads to, or a copy.

use serde_json::Value as Json;
use thiserror::Error;
use time::OffsetDateTime;

use super::operate::by_hand;
use super::{LoadError, Operator, Poller};
use crate::journal::Happened;
use crate::lease::Snapshot;
use crate::partition::whole_of;
use crate::state::{
    ETag, Fence, FencingToken, FormatError, Generation, LeaseAge, Precondition, Refusal, Standing,
    StateDocument, StateKey, StoreError, encode,
};

/// What is stored of a poller, whether it can be used or not.
#[derive(Debug)]
pub struct Present {
    /// The content; `None` where nothing is stored.
    pub bytes: Option<Vec<u8>>,
    /// What it says; `Ok(None)` where nothing is stored.
    pub document: Result<Option<StateDocument>, FormatError>,
    /// Who holds the lease; `None` where nobody does, or it cannot be told.
    pub held_by: Option<String>,
    etag: Option<ETag>,
    /// How old it was then; `None` where nothing can be read.
    age: Option<LeaseAge>,
    /// The service's clock when it answered.
    pub date: OffsetDateTime,
}

impl Present {
    /// Returns the document, where there is one that can be used.
    pub fn usable(&self) -> Option<&StateDocument> {
        self.document.as_ref().ok()?.as_ref().filter(|document| !document.is_blank())
    }

    /// Returns the highest grant that can be told of what is stored, also of what is damaged. The generation
    /// is that of the target's fence, where one is kept that is higher.
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

/// A document that was put in its place.
#[derive(Debug, PartialEq)]
pub struct Restored {
    /// The document as written.
    pub document: StateDocument,
    /// Where the content before it was saved; `None` where there was none.
    pub saved: Option<StateKey>,
}

/// Why a document was not put in its place; what is stored is as it was.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// Somebody holds the lease.
    #[error("`{owner_id}` holds the lease: pause the poller, and try again when it is free")]
    Held {
        /// The holder.
        owner_id: String,
    },
    /// The document is of another part of the poller's keys than the settings give to that name.
    #[error(
        "the document is of {document}, and the settings make `{poller}` {settings}: a tick would refuse it; take a \
         document of the same division, or set `HIGHWATER__POLLERS__{}__PARTITIONS` as it was",
        whole_of(poller).to_ascii_uppercase()
    )]
    OtherPart {
        /// The poller.
        poller: String,
        /// What the document is of.
        document: String,
        /// What the poller is, by the settings.
        settings: String,
    },
    /// It has been written since the plan was made.
    #[error("the state was written since it was read: look at it again")]
    Moved,
    /// The document cannot be put there.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store did not do as asked, or what it has cannot be read.
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

/// Most names that are tried to save what is replaced.
const SAVES_MAX: u32 = 20;

impl Poller {
    /// Returns what is stored, whether it can be used or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`] of any kind but `Conflict`.
    pub async fn present(&self) -> Result<Present, StoreError> {
        let loaded = self.store.load(&self.key).await?;
        let date = loaded.date;
        let Some(stored) = loaded.stored else {
            return Ok(Present {
                bytes: None,
                document: Ok(None),
                held_by: None,
                etag: None,
                age: None,
                date,
            });
        };
        let (bytes, etag) = (Some(stored.bytes.clone()), Some(stored.etag.clone()));
        let read = Snapshot::read(&self.key, stored, date);
        let age = read.as_ref().ok().map(|read| read.age(self.store.grain()));
        let standing = read
            .as_ref()
            .ok()
            .zip(age)
            .map(|(read, age)| read.document.standing(self.instance.owner_id(), age));
        let held_by = match standing {
            Some(Standing::Held { owner_id }) => Some(owner_id),
            Some(Standing::Free | Standing::Own | Standing::Lapsed) | None => None,
        };
        let document = read.map(|read| Some(read.into_document()));
        Ok(Present { bytes, document, held_by, etag, age, date })
    }

    /// Puts `document` in the place of what `present` has, under a new generation, and saves that beside
    /// it first. A position that was found lost stays lost, unless this is a reset.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; nothing was put there then, unless the store gave no answer.
    pub async fn restore(
        &self,
        document: &StateDocument,
        present: &Present,
        told: (Happened, Operator<'_>),
    ) -> Result<Restored, RestoreError> {
        self.refuse_other_part(document)?;
        if let Some(owner_id) = present.held_by.clone() {
            return Err(RestoreError::Held { owner_id });
        }
        let (newest, token) = present.newest();
        let refused = document.lease.target_fence.map_or(Generation(0), |fence| fence.generation);
        let known = newest.max(document.generation).max(refused);
        let generation = self.generation_above(known, present).await?;
        let (generation, saved) = self.save(present, generation).await?;
        let mut next = document.restored(generation, token)?;
        let replaced = present.usable().filter(|_| told.0 != Happened::Reset);
        if let Some(replaced) = replaced {
            next.inherit_loss(replaced);
        }
        let document = Box::pin(self.put(next, present, told)).await?;
        Ok(Restored { document, saved })
    }

    /// Takes the lease from whoever holds it, and saves the document as it was beside it first; `None` where
    /// nobody holds it. From a holder who still writes only if `even_live`: what he has in hand comes again.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; nothing was changed then, unless the store gave no answer.
    pub async fn break_lease(
        &self,
        present: &Present,
        even_live: bool,
        operator: Operator<'_>,
    ) -> Result<Option<Restored>, RestoreError> {
        let (Some(document), Some(age)) = (present.usable(), present.age) else { return Ok(None) };
        let broken = match document.broken_by_hand(age, present.date, even_live) {
            Err(Refusal::Held { owner_id }) => return Err(RestoreError::Held { owner_id }),
            broken => broken?,
        };
        let Some(next) = broken else { return Ok(None) };
        // The document keeps its generation, and its batch in hand the id; only the copy needs a number.
        let number = self.generation_above(document.generation, present).await?;
        let (_, saved) = self.save(present, number).await?;
        let document = self.put(next, present, (Happened::LeaseBroken, operator)).await?;
        Ok(Some(Restored { document, saved }))
    }

    /// Gives a document that was put back from an older copy grants that its target accepts, which has
    /// accepted `fence`, and saves the document as it was first; `None` where the next grant is high enough.
    /// The checkpoint stays. A holder that still writes is superseded only if `even_live`.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; nothing was changed then, unless the store gave no answer.
    pub async fn raise_above(
        &self,
        fence: Fence,
        present: &Present,
        even_live: bool,
        operator: Operator<'_>,
    ) -> Result<Option<Restored>, RestoreError> {
        let Some(document) = present.usable() else { return Ok(None) };
        if let Some(owner_id) = present.held_by.clone().filter(|_| !even_live) {
            return Err(RestoreError::Held { owner_id });
        }
        let known = fence.generation.max(document.generation);
        let generation = self.generation_above(known, present).await?;
        let Some(next) = document.raised_above(fence, generation)? else { return Ok(None) };
        let (_, saved) = self.save(present, generation).await?;
        let document = self.put(next, present, (Happened::LeaseBroken, operator)).await?;
        Ok(Some(Restored { document, saved }))
    }

    /// Writes `next` in the place of what `present` has, and tells of it.
    async fn put(
        &self,
        mut next: StateDocument,
        present: &Present,
        told: (Happened, Operator<'_>),
    ) -> Result<StateDocument, RestoreError> {
        next.note(by_hand(told.0.as_str(), told.1, present.date));
        next.write_id = self.instance.next_write_id();
        self.number(told.0, &mut next);
        let etag = match &present.etag {
            Some(etag) => etag.clone(),
            None => self.blank().await?,
        };
        let written = self.store.store(&self.key, encode(&next), Precondition::Matches(etag)).await;
        let at = match written {
            Ok(written) => written.date,
            Err(error @ StoreError::Unknown { .. }) => match self.present().await {
                Ok(now) if now.usable().is_some_and(|found| found.write_id == next.write_id) => {
                    now.date
                }
                Ok(_) | Err(_) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        self.tell_of_operator(told, &next, at).await;
        Ok(next)
    }

    /// Returns a generation above all that are known of: the marker's, `known`, and those that were begun
    /// before now.
    async fn generation_above(
        &self,
        known: Generation,
        present: &Present,
    ) -> Result<Generation, RestoreError> {
        let marker = self.read_marker().await?;
        let known = known.max(marker.map_or(Generation(0), |marker| marker.generation));
        let now = u64::try_from(present.date.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
        Ok(Generation(now.max(known.0.saturating_add(1))))
    }

    /// Saves what is stored beside it, by the generation that is to follow, or the next one of which
    /// nothing is saved yet: an earlier try may have come so far.
    async fn save(
        &self,
        present: &Present,
        mut generation: Generation,
    ) -> Result<(Generation, Option<StateKey>), RestoreError> {
        let Some(bytes) = &present.bytes else { return Ok((generation, None)) };
        for _ in 0..SAVES_MAX {
            let key = StateKey::Saved { poller: self.name.clone(), before: generation };
            match self.store.store(&key, bytes.clone(), Precondition::Absent).await {
                Ok(_) => return Ok((generation, Some(key))),
                Err(StoreError::Conflict { .. }) => {
                    generation = Generation(generation.0.saturating_add(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(RestoreError::Moved)
    }

    /// Creates the blank document that another can take the place of, and returns its tag.
    async fn blank(&self) -> Result<ETag, RestoreError> {
        self.create_blank().await?;
        let now = self.present().await?;
        // Whoever was faster has begun it.
        let is_blank = matches!(&now.document, Ok(Some(found)) if found.is_blank());
        now.etag.filter(|_| is_blank).ok_or(RestoreError::Moved)
    }
}
