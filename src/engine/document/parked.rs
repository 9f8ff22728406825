//! What the document says about parked keys: how many there are, and whether a process knows the latest ones. Pure.
//!
//! The entries themselves are stored next to the document, one per key. The holder of the lease starts an epoch before it
//! changes them. So a process whose keys are of the document's epoch knows every key that another instance may have
//! parked; otherwise it lists them again. A crash between the two writes leaves an epoch without a change, which costs
//! one listing.
//!
//! An operator who drops entries holds no lease, and starts an epoch after it. Until then a tick may take a dropped key
//! for a parked one. It finds out: it moves the checkpoint past a row only after a write of the key's entry, which
//! is conditional on the entry being there.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::state_document::StateDocument;
use super::transitions::{DocumentAge, Refusal};
use crate::grant::Holder;

/// Named in the `requires` of a document whose poller has parked keys: a build that does not know them would deliver
/// later versions of a key before the parked one, and would never retry it.
pub(super) const REQUIREMENT: &str = "park";

/// What is known about the entries of a poller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ParkedKeys {
    /// Changes before entries are added or removed.
    #[serde(default)]
    pub epoch: u64,
    /// Keys that have an entry. After a crash it may be too high, until the entries are listed again.
    #[serde(default)]
    pub keys: u64,
    /// Those of them that wait for an operator.
    #[serde(default)]
    pub quarantined: u64,
    /// When the next key is retried, as far as is known; `None` if none is.
    #[serde(
        default,
        with = "time::serde::rfc3339::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub next_retry_at: Option<OffsetDateTime>,
    /// Whether the newest grant is one for retries: a crash under it does not count against the batch in flight.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_retrying: bool,
    /// Unreadable rows whose keys were parked since a row was last accepted, or an operator last removed entries.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unreadable_in_a_row: u32,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An entry that is about to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedEntry {
    /// Whether its key is retried automatically.
    pub is_retried: bool,
}

/// Entries that were counted in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryCounts {
    /// The epoch; the counts are of no use in another one.
    pub epoch: u64,
    /// Keys that have an entry.
    pub keys: u64,
    /// Those of them that wait for an operator.
    pub quarantined: u64,
    /// When the next key is retried; `None` if none is.
    pub next_retry_at: Option<OffsetDateTime>,
}

impl ParkedKeys {
    /// Whether no key was ever parked.
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    /// Returns how many keys are retried automatically.
    pub fn retrying(&self) -> u64 {
        self.keys.saturating_sub(self.quarantined)
    }
}

impl StateDocument {
    /// Whether the poller may have parked keys. It has none if a listing found none.
    pub fn may_have_entries(&self) -> bool {
        self.requires.iter().any(|name| name == REQUIREMENT)
    }

    /// Announces that an entry is about to be written, in a renewal: no entry is written by an instance that has lost
    /// its lease and could know it.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if the lease has passed to another.
    pub fn announce_entry(
        &self,
        holder: &Holder,
        entry: AnnouncedEntry,
        now: OffsetDateTime,
    ) -> Result<Self, Refusal> {
        let mut next = self.renew(holder, now)?.with_next_entries();
        next.require(REQUIREMENT);
        next.parked.keys = next.parked.keys.saturating_add(1);
        if !entry.is_retried {
            next.parked.quarantined = next.parked.quarantined.saturating_add(1);
        }
        // Until the entry is written and its time is known. If it never is, the next tick lists and counts the entries.
        next.parked.next_retry_at.get_or_insert(now);
        Ok(next)
    }

    /// Counts unreadable rows whose entries were written while rows were read to test the target. The commit that passes
    /// them does not count them: their keys are parked by then. A commit counts the other ones.
    #[must_use]
    pub fn with_unreadable_rows(&self, rows: u32) -> Self {
        let mut next = self.clone();
        next.parked.unreadable_in_a_row = next.parked.unreadable_in_a_row.saturating_add(rows);
        next
    }

    /// Starts the next epoch, because entries are about to change.
    #[must_use]
    pub fn with_next_entries(&self) -> Self {
        let mut next = self.clone();
        next.parked.epoch = next.parked.epoch.saturating_add(1);
        next
    }

    /// Marks a grant as one for retries.
    #[must_use]
    pub fn for_retries(mut self) -> Self {
        self.parked.is_retrying = true;
        self
    }

    /// Records that an operator removed entries. Owner and token stay, so a holder continues as before. Unreadable rows
    /// are counted from the start: those whose entries are gone are parked again if they are read again.
    #[must_use]
    pub fn with_entries_dropped(&self, entries: u64, age: DocumentAge) -> Self {
        let mut next = self.written_by_other(age).with_next_entries();
        next.parked.keys = next.parked.keys.saturating_sub(entries);
        next.parked.quarantined = next.parked.quarantined.saturating_sub(entries);
        next.parked.unreadable_in_a_row = 0;
        next
    }

    /// Records how many entries there are. Does nothing if they may have changed since they were counted.
    ///
    /// If there are not as many as announced, the next epoch starts: a holder may have lost its lease between the
    /// announcement and the entry, and another process may have listed the keys before it was written.
    pub fn count_entries(&mut self, counted: EntryCounts) {
        if self.parked.epoch != counted.epoch {
            return;
        }
        if self.parked.keys != counted.keys {
            self.parked.epoch = self.parked.epoch.saturating_add(1);
        }
        self.parked.keys = counted.keys;
        self.parked.quarantined = counted.quarantined.min(counted.keys);
        self.parked.next_retry_at = counted.next_retry_at;
        if counted.keys == 0 {
            self.requires.retain(|name| name != REQUIREMENT);
        } else {
            self.require(REQUIREMENT);
        }
    }

    /// Notes that there may be entries that this document does not know, because an earlier one is lost: the next tick
    /// lists them.
    #[must_use]
    pub fn with_possible_entries(mut self, now: OffsetDateTime) -> Self {
        self.require(REQUIREMENT);
        self.parked.next_retry_at = Some(now);
        self
    }

    /// Returns this document, which takes the place of `replaced`, with what that says of entries: they are stored
    /// next to the document, and stay as they are.
    #[must_use]
    pub fn with_entries_of(&self, replaced: &Self) -> Self {
        let mut next = self.clone();
        next.parked = replaced.parked.clone();
        next.parked.is_retrying = false;
        next.requires.retain(|name| name != REQUIREMENT);
        if replaced.may_have_entries() {
            next.require(REQUIREMENT);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::document::{Generation, decode, encode};

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn held() -> (StateDocument, Holder) {
        let fingerprint = SourceFingerprint::of(&[("table", "orders")]);
        let mut document = StateDocument::new("orders", fingerprint, Generation(7));
        document.lease.owner_id = Some("a".to_owned());
        let holder = document.holder("a");
        (document, holder)
    }

    #[test]
    fn an_entry_is_announced_with_the_next_epoch_and_a_requirement() {
        let (document, holder) = held();
        let once = document.announce_entry(&holder, AnnouncedEntry::default(), NOW).unwrap();
        assert_eq!((once.parked.epoch, once.parked.keys, once.parked.quarantined), (1, 1, 1));
        assert_eq!(once.requires, ["park"]);
        let twice = once.announce_entry(&holder, AnnouncedEntry::default(), NOW).unwrap();
        assert_eq!((twice.parked.epoch, twice.parked.keys), (2, 2));
        assert_eq!(twice.requires, ["park"], "once");
        assert_eq!(decode("orders", &encode(&twice)).unwrap(), twice);
        let other = Holder { owner_id: "b".to_owned(), ..holder };
        assert!(matches!(
            twice.announce_entry(&other, AnnouncedEntry::default(), NOW),
            Err(Refusal::Superseded { .. })
        ));
    }

    #[test]
    fn counts_are_recorded_only_in_the_epoch_in_which_they_were_made() {
        let (document, holder) = held();
        let counted = EntryCounts { epoch: 1, keys: 1, quarantined: 0, next_retry_at: Some(NOW) };
        let mut next = document.announce_entry(&holder, AnnouncedEntry::default(), NOW).unwrap();
        next.count_entries(counted);
        assert_eq!((next.parked.keys, next.parked.retrying(), next.parked.epoch), (1, 1, 1));
        let mut later = next.with_next_entries();
        later.count_entries(EntryCounts { keys: 0, ..counted });
        assert_eq!((later.parked.keys, later.requires.len()), (1, 1), "they may have changed");
        later.count_entries(EntryCounts { epoch: 2, keys: 0, quarantined: 0, next_retry_at: None });
        assert_eq!((later.parked.keys, later.parked.epoch), (0, 3), "fewer than announced");
        assert!(later.requires.is_empty(), "any build may use it again");
    }

    #[test]
    fn dropped_entries_start_an_epoch_and_leave_the_lease_as_it_is() {
        let (document, holder) = held();
        let parked = document.announce_entry(&holder, AnnouncedEntry::default(), NOW).unwrap();
        let age = DocumentAge { since_write: Duration::from_secs(7), grain: Duration::ZERO };
        let dropped = parked.with_entries_dropped(1, age);
        assert_eq!(
            (dropped.parked.epoch, dropped.parked.keys, dropped.parked.quarantined),
            (2, 0, 0)
        );
        assert!(dropped.is_held_by(&holder));
        let written = DocumentAge { since_write: Duration::ZERO, ..age };
        assert_eq!(
            dropped.idle(written),
            parked.idle(age),
            "the holder does not look alive for it"
        );
        assert_eq!(
            dropped.with_entries_dropped(9, age).parked.keys,
            0,
            "they were counted too low"
        );
    }

    #[test]
    fn a_document_is_bounded_however_many_keys_are_parked() {
        let (mut document, holder) = held();
        let one = document.announce_entry(&holder, AnnouncedEntry::default(), NOW).unwrap();
        for _ in 0..10_000 {
            document = document.announce_entry(&holder, AnnouncedEntry::default(), NOW).unwrap();
        }
        assert!(encode(&document).len() < encode(&one).len() + 20);
    }

    #[test]
    fn a_document_without_parked_keys_says_nothing_of_them() {
        let (document, _) = held();
        let json: Json = serde_json::from_slice(&encode(&document)).unwrap();
        assert_eq!(json.get("parked"), None);
        assert!(document.parked.is_unused());
    }

    #[test]
    fn a_reset_keeps_what_is_known_of_entries_and_a_clone_does_not() {
        let (document, holder) = held();
        let parked = document.announce_entry(&holder, AnnouncedEntry::default(), NOW).unwrap();
        let reset = parked.reset(None, "r".to_owned()).unwrap();
        assert_eq!((&reset.parked, &reset.requires), (&parked.parked, &parked.requires));
        let cloned = parked.cloned_as("orders_2");
        assert!(cloned.parked.is_unused() && cloned.requires.is_empty());
        let restored = document.with_entries_of(&parked);
        assert_eq!((&restored.parked, &restored.requires), (&parked.parked, &parked.requires));
        assert_eq!(parked.with_entries_of(&document).requires, [""; 0]);
    }
}
