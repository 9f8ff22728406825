//! A world whose pollers keep a journal.

use std::sync::Arc;

use super::world::World;
use crate::journal::{
    Entry, EventKind, FoldResult, JournalMode, JournalStore, MemoryJournal, Verdict, fold,
    read_lines, verify,
};
use crate::poller::Poller;

/// A world whose pollers keep a journal in memory.
#[derive(Debug)]
pub struct JournaledWorld {
    /// The world.
    pub world: World,
    /// The journal.
    pub journal: Arc<MemoryJournal>,
    mode: JournalMode,
}

impl JournaledWorld {
    /// Returns a new world whose pollers keep a journal in this mode.
    pub fn new(mode: JournalMode) -> Self {
        Self::in_world(World::new(), mode)
    }

    /// Returns a world with a journal in this mode for its pollers.
    pub fn in_world(world: World, mode: JournalMode) -> Self {
        Self { world, journal: Arc::default(), mode }
    }

    /// Makes a poller keep the journal.
    pub fn of(&self, poller: Poller) -> Poller {
        poller.with_journal(self.mode, self.journal.clone(), None)
    }

    /// Returns the poller in another process, like [`World::instance`], with the journal.
    pub fn instance(&self, owner_id: &str) -> Poller {
        self.of(self.world.instance(owner_id))
    }

    /// Returns the entries of the journal, in order.
    ///
    /// # Panics
    ///
    /// If a line of it cannot be read.
    pub async fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for part in self.journal.list("p").await.expect("memory answers") {
            let bytes = self.journal.read(&part, 0).await.expect("memory answers");
            let (read, findings) = read_lines(&part.to_string(), &bytes);
            assert_eq!(findings, []);
            entries.extend(read);
        }
        entries
    }

    /// Returns the kinds of the entries, in order.
    pub async fn events(&self) -> Vec<EventKind> {
        self.entries().await.iter().map(|entry| entry.event).collect()
    }

    /// Folds the journal.
    pub async fn folded(&self) -> FoldResult {
        fold(self.entries().await)
    }

    /// Compares the folded journal with what is stored.
    pub async fn verdict(&self) -> Verdict {
        verify(self.mode, &self.folded().await, Some(&self.world.document().await))
    }

    /// Checks that the journal folds to exactly what is stored.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub async fn assert_complete(&self) {
        let folded = self.folded().await;
        assert_eq!(folded.findings, []);
        assert_eq!(folded.document, Some(self.world.document().await));
    }
}
