//! The parked keys of a poller, as one process knows them between ticks.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use super::{Entry, EntryState};
use crate::cursor::KeyId;
use crate::document::{EntryCounts, Generation, StateDocument};
use crate::error::chain;
use crate::source::Source;

/// The keys that had an entry in one epoch of a document.
#[derive(Clone, Debug, Default)]
pub struct KnownKeys {
    /// Generation and epoch; `None` if the keys were never listed.
    of: Option<(Generation, u64)>,
    keys: BTreeMap<KeyId, Due>,
    /// No key is retried before, because the target asked for it.
    not_before: Option<OffsetDateTime>,
    /// Whether the source was found to have no two rows with the same key.
    is_unique: bool,
}

/// When a key is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Its entry was not read yet.
    Unread,
    At(OffsetDateTime),
    /// It waits for an operator.
    Never,
    /// It waits for an operator, and holds back no later version: a range quarantined it.
    HoldsNothing,
}

impl Due {
    fn of(entry: &Entry) -> Self {
        match entry.state {
            _ if !entry.holds_back => Self::HoldsNothing,
            EntryState::Quarantined => Self::Never,
            EntryState::Retrying => entry.next_retry_at.map_or(Self::Unread, Self::At),
        }
    }
}

impl KnownKeys {
    /// Makes these the keys that were listed while `document` was current. When they are due is read again: another
    /// process may have parked a key anew.
    pub fn list(&mut self, document: &StateDocument, keys: impl IntoIterator<Item = KeyId>) {
        self.keys = keys.into_iter().map(|key| (key, Due::Unread)).collect();
        self.of = Some(epoch_of(document));
    }

    /// Makes sure that an entry is not about several rows.
    ///
    /// # Errors
    ///
    /// Why it may be.
    pub(crate) async fn know_unique(&mut self, source: &dyn Source) -> Result<(), String> {
        if self.is_unique {
            return Ok(());
        }
        self.is_unique = source.has_unique_key().await.map_err(|error| chain(&error))?;
        if self.is_unique {
            return Ok(());
        }
        Err("no unique index covers `SOURCE__KEY`, so several rows may have the key: set `SOURCE__KEY` to the primary \
             key, or `ON_FAILURE` to `retry`"
            .to_owned())
    }

    /// Whether these are all keys that any process may have parked, as far as `document` says: those of its epoch, and as
    /// many as it counts. If there are others, one process may have listed them before an entry was written, and another
    /// one afterwards. Recording how many there are starts the next epoch then.
    pub fn are_current(&self, document: &StateDocument) -> bool {
        self.are_of_epoch(document) && number(self.keys.len()) == document.parked.keys
    }

    fn are_of_epoch(&self, document: &StateDocument) -> bool {
        self.of == Some(epoch_of(document))
    }

    /// Adds a key that was parked in the epoch of `document`, the one after that of the other keys.
    pub fn park(&mut self, entry: &Entry, document: &StateDocument) {
        if self.follow(document) {
            self.keys.insert(entry.key_id.clone(), Due::of(entry));
        }
    }

    /// Makes these the keys of the epoch of `document`, which this process started; `false` if another writer started one
    /// in between. The keys stay those of the earlier epoch then, and are listed again.
    pub fn follow(&mut self, document: &StateDocument) -> bool {
        let (generation, epoch) = epoch_of(document);
        let follows = self.of == epoch.checked_sub(1).map(|before| (generation, before));
        if follows {
            self.of = Some((generation, epoch));
        }
        follows
    }

    /// Notes what the entry of a key says.
    pub fn learn(&mut self, key: &KeyId, entry: &Entry) {
        if let Some(due) = self.keys.get_mut(key) {
            *due = Due::of(entry);
        }
    }

    /// Notes that the entry of a key cannot be read, until it is read again at that time: the store may have returned
    /// something else, such as the page of a proxy.
    pub fn learn_unreadable(&mut self, key: &KeyId, again_at: OffsetDateTime) {
        if let Some(due) = self.keys.get_mut(key) {
            *due = Due::At(again_at);
        }
    }

    /// Returns keys of which it is not known when they are due. `seed` decides which, if there are too many: processes
    /// that live for one tick get to all of them in time.
    pub fn unread(&self, most: usize, seed: u64) -> Vec<KeyId> {
        let mut unread: Vec<&KeyId> =
            self.keys.iter().filter(|(_, due)| **due == Due::Unread).map(|(key, _)| key).collect();
        let keys = u64::try_from(unread.len()).unwrap_or(u64::MAX);
        let first = seed.checked_rem(keys).and_then(|first| usize::try_from(first).ok());
        unread.rotate_left(first.unwrap_or(0));
        unread.into_iter().take(most).cloned().collect()
    }

    /// Returns keys that are due, those that have waited longest first.
    pub fn due(&self, now: OffsetDateTime, most: usize) -> Vec<KeyId> {
        let at = |(key, due): (&KeyId, &Due)| match due {
            Due::At(at) if *at <= now => Some((*at, key.clone())),
            Due::At(_) | Due::Unread | Due::Never | Due::HoldsNothing => None,
        };
        let mut due: Vec<_> = self.keys.iter().filter_map(at).collect();
        due.sort_unstable();
        due.into_iter().take(most).map(|(_, key)| key).collect()
    }

    /// Puts all retries off.
    pub fn put_off_until(&mut self, at: OffsetDateTime) {
        self.not_before = Some(at);
    }

    /// Whether later versions of a key wait, as far as this process knows.
    pub fn contains(&self, key: &KeyId) -> bool {
        self.keys.get(key).is_some_and(|due| *due != Due::HoldsNothing)
    }

    /// Notes that the entry of a key holds back no later version. It is still counted.
    pub fn learn_that_it_holds_nothing(&mut self, key: &KeyId) {
        if let Some(due) = self.keys.get_mut(key) {
            *due = Due::HoldsNothing;
        }
    }

    /// Forgets a key whose entry is gone. An operator dropped it, and starts the next epoch.
    pub fn forget(&mut self, key: &KeyId) {
        self.keys.remove(key);
    }

    /// Returns how many keys there are, and when the next one is due, if they are of the epoch of `document`. Keys that were not
    /// read are due at `unread_at`, because that reads them.
    pub fn counts(
        &self,
        document: &StateDocument,
        unread_at: OffsetDateTime,
    ) -> Option<EntryCounts> {
        let waits = |due: &&Due| matches!(due, Due::Never | Due::HoldsNothing);
        let never = self.keys.values().filter(waits).count();
        let is_read = !self.keys.values().any(|due| *due == Due::Unread);
        let at = |due: &Due| match due {
            Due::Unread => Some(unread_at),
            Due::At(at) => Some(*at),
            Due::Never | Due::HoldsNothing => None,
        };
        let next = self.keys.values().filter_map(at).min();
        let counts = EntryCounts {
            epoch: document.parked.epoch,
            keys: number(self.keys.len()),
            quarantined: if is_read { number(never) } else { document.parked.quarantined },
            next_retry_at: next.map(|at| self.not_before.map_or(at, |earliest| at.max(earliest))),
        };
        self.are_of_epoch(document).then_some(counts)
    }
}

fn number(keys: usize) -> u64 {
    u64::try_from(keys).unwrap_or(u64::MAX)
}

fn epoch_of(document: &StateDocument) -> (Generation, u64) {
    (document.generation, document.parked.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::SourceFingerprint;

    fn key(number: u8) -> KeyId {
        KeyId::parse(&format!("{number:032x}")).unwrap()
    }

    #[test]
    fn all_keys_have_their_turn_to_be_read_by_processes_that_read_only_some() {
        let fingerprint = SourceFingerprint::of(&[("table", "orders")]);
        let document = StateDocument::new("orders", fingerprint, Generation(7));
        let keys: Vec<KeyId> = (0..250).map(key).collect();
        let mut known = KnownKeys::default();
        known.list(&document, keys.clone());
        let read = |seed| known.unread(100, seed);
        assert_eq!(read(0), keys[..100]);
        assert_eq!(read(200), [&keys[200..], &keys[..50]].concat());
        assert_eq!(read(450), read(200));
        assert_eq!(known.unread(1_000, 3).len(), 250);
        assert_eq!(KnownKeys::default().unread(100, 3), []);
    }

    #[test]
    fn keys_are_current_until_another_process_starts_an_epoch() {
        let fingerprint = SourceFingerprint::of(&[("table", "orders")]);
        let mut document = StateDocument::new("orders", fingerprint, Generation(7));
        document.parked.keys = 1;
        let now = OffsetDateTime::UNIX_EPOCH;
        assert!(!KnownKeys::default().are_current(&document), "they were never listed");
        let mut known = KnownKeys::default();
        known.list(&document, [key(1)]);
        assert!(known.are_current(&document));
        let next = document.with_next_entries();
        assert!(known.follow(&next));
        let counts = known.counts(&next, now).unwrap();
        assert_eq!((counts.keys, counts.next_retry_at), (1, Some(now)), "its entry is to be read");
        assert_eq!(known.counts(&document, now), None);
        // Another process was in between.
        let later = next.with_next_entries().with_next_entries();
        assert!(!known.follow(&later), "that process may have parked another key");
        assert!(!known.are_current(&later));
        // Another process listed an entry that this one did not find.
        let mut counted = next.clone();
        counted.parked.keys = 2;
        assert!(!known.are_current(&counted));
        let mut restored = next;
        restored.generation = Generation(8);
        assert!(!known.are_current(&restored));
    }
}
