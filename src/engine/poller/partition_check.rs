//! Checks that the documents of a poller's partitions agree on the number of partitions.
//!
//! A partition that ran alongside partitions of another count would redeliver their rows, or leave rows undelivered.
//! An existing document names its count. If there is none, two others are read before one is created: that of the
//! unpartitioned poller, and that of the first partition. The first instance creates the latter, blank except for the
//! number of partitions. So the number is stored before the first row of any partition is delivered.

use tokio::time::Instant;

use super::{Poller, TickError};
use crate::document::{DocumentStore, LoadError, StateDocument, decode};
use crate::partition::{Partition, poller_of_partition};
use crate::store::StateKey;

impl Poller {
    /// Sets which partition this is, if any; it then does not start alongside another partition count.
    #[must_use]
    pub fn with_partition(self, partition: Option<Partition>) -> Self {
        Self { partition, checks_siblings: true, ..self }
    }

    /// Returns the names of the other partitions of its poller.
    pub fn other_partitions(&self) -> Vec<String> {
        let parent = poller_of_partition(&self.name);
        let all = Partition::all(self.partition_count()).into_iter().flatten();
        all.map(|partition| partition.name(parent)).filter(|name| *name != self.name).collect()
    }

    /// Rejects a document with another partition count than the settings.
    pub(crate) fn reject_partition_count_of(
        &self,
        document: &StateDocument,
    ) -> Result<(), TickError> {
        let (stored, configured) = (document.partition_count(), self.partition_count());
        if !self.checks_siblings || !document.names_partition_count() || stored == configured {
            return Ok(());
        }
        Err(TickError::OtherPartitionCount {
            poller: poller_of_partition(&self.name).to_owned(),
            stored,
            configured,
        })
    }

    /// Rejects a run alongside partitions of another count.
    ///
    /// # Errors
    ///
    /// [`TickError::OtherPartitionCount`], or [`TickError::Load`] if their documents cannot be read.
    pub async fn reject_conflicting_siblings(&self) -> Result<(), TickError> {
        self.reject_other_partition_count(false).await
    }

    /// Rejects a start alongside another partition count. `writes` if the caller is about to start: the number of
    /// partitions is stored first.
    pub(crate) async fn reject_other_partition_count(&self, writes: bool) -> Result<(), TickError> {
        if !self.checks_siblings {
            return Ok(());
        }
        let parent = poller_of_partition(&self.name);
        if self.name != parent {
            self.reject_partition_count_of_siblings(parent).await?;
        }
        let first = self.first();
        if self.name == first {
            return Ok(());
        }
        if self.reject_partition_count_of_siblings(&first).await? {
            return Ok(());
        }
        if let Some(marker) = self.read_marker_of(&first).await? {
            self.refuse_vanished(&first, marker.created_at).await?;
        }
        if writes {
            self.create_first(&first).await?;
            // A faster instance may have another count.
            self.reject_partition_count_of_siblings(&first).await?;
        }
        Ok(())
    }

    /// Stores the number of partitions, unless that was done or the first partition has lost its document.
    pub(crate) async fn record_partition_count(&self) -> Result<(), LoadError> {
        let first = self.first();
        if !self.checks_siblings || self.name == first || self.sibling(&first).await?.is_some() {
            return Ok(());
        }
        match self.read_marker_of(&first).await? {
            None => self.create_first(&first).await,
            Some(_) => Ok(()),
        }
    }

    /// Returns the name of the first partition, whose document has the number of partitions.
    fn first(&self) -> String {
        Partition { index: 0, count: self.partition_count() }.name(poller_of_partition(&self.name))
    }

    async fn sibling(&self, name: &str) -> Result<Option<StateDocument>, LoadError> {
        let key = StateKey::Document(name.to_owned());
        let stored = self.store.load(&key).await?.stored;
        Ok(stored.map(|stored| decode(name, &stored.bytes)).transpose()?)
    }

    /// Returns whether there is a document of that name that has, or at least does not contradict, this partition
    /// count.
    async fn reject_partition_count_of_siblings(&self, name: &str) -> Result<bool, TickError> {
        let Some(document) = self.sibling(name).await? else { return Ok(false) };
        self.reject_partition_count_of(&document)?;
        Ok(true)
    }

    /// Creates the blank document of the first partition, unless it exists.
    async fn create_first(&self, name: &str) -> Result<(), LoadError> {
        let Some(own) = self.partition else { return Ok(()) };
        let (key, first) = (StateKey::Document(name.to_owned()), Partition { index: 0, ..own });
        // The instance that starts it fills in its source.
        let fingerprint = self.source.shape().fingerprint.clone();
        let mut blank = StateDocument::blank(name, fingerprint);
        blank.partition = Some(first);
        let until = Instant::now();
        DocumentStore { store: &*self.store, key: &key, until }.create(&blank).await
    }
}
