//! What one partition does during a repartition of its poller: see [`crate::repartition`].

use thiserror::Error;

use super::pause::{Change, operator_tick};
use crate::admin::{Admin, Operator, RestoreError};
use crate::cursor::Cursor;
use crate::document::{LoadError, Paused, RepartitionRecord, Snapshot, StateDocument};
use crate::journal::EventKind;
use crate::poller::TickError;
use crate::source::FetchError;

/// Why a partition was not started.
#[derive(Debug, Error)]
pub enum SeedError {
    /// Its source cannot be read, or cannot be identified.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The source chooses another mode than that of the position.
    #[error(
        "the position has mode `{position}`, but `auto` now chooses `{chosen}`: set `SOURCE__MODE` to \
         `{position}`"
    )]
    Mode {
        /// The mode of the position.
        position: &'static str,
        /// The mode of the source.
        chosen: &'static str,
    },
    /// Its document could not be written.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

impl Admin<'_> {
    /// Returns the repartition that waits for old partitions, according to this one's document or, if that is lost,
    /// the journal. `None` also if neither can be read.
    pub async fn pending_repartition(self) -> Option<RepartitionRecord> {
        let present = self.present().await.ok()?;
        let document = Box::pin(self.last_known(&present)).await.ok()??;
        document.repartition.filter(|record| !record.caught_up)
    }

    /// Pauses the partition, and stores `record` if there is none. Returns the resulting document, or `None` if it no
    /// longer belongs to this partition count and was not changed.
    ///
    /// # Errors
    ///
    /// [`TickError::Load`] if the state cannot be read or written.
    pub(crate) async fn hold_for_repartition(
        self,
        record: Option<&RepartitionRecord>,
        operator: Operator<'_>,
    ) -> Result<Option<StateDocument>, TickError> {
        self.change((EventKind::Paused, operator), |base| {
            let document = &*base.document;
            if !document.belongs_to_partition_count(self.poller.partition_count()) {
                return Change::Nothing(None);
            }
            let known = record.is_none() || document.repartition.is_some();
            if known && document.paused.is_some() {
                return Change::Nothing(Some(document.clone()));
            }
            let record =
                record.map(|record| RepartitionRecord { begun_at: base.now(), ..record.clone() });
            let record = document.repartition.clone().or(record);
            let next =
                document.held_for_repartition(record, paused(base, operator), self.age(base));
            Change::Write(Box::new(next.clone()), Some(next))
        })
        .await
    }

    /// Replaces the record, if there still is one.
    ///
    /// # Errors
    ///
    /// As [`Self::hold_for_repartition`].
    pub(crate) async fn note_repartition(
        self,
        record: &RepartitionRecord,
        operator: Operator<'_>,
    ) -> Result<(), TickError> {
        self.change((EventKind::Repartitioned, operator), |base| {
            if base.document.repartition.as_ref().is_none_or(|found| found == record) {
                return Change::Nothing(());
            }
            let mut next = base.document.rewritten(self.age(base));
            next.repartition = Some(record.clone());
            Change::Write(Box::new(next), ())
        })
        .await
    }

    /// Starts this partition after `after`, unless it has already started. Returns whether it was started now.
    ///
    /// # Errors
    ///
    /// [`SeedError`]; the stored content is then unchanged, unless the outcome of a write is unknown.
    pub(crate) async fn seed(
        self,
        after: Option<&Cursor>,
        operator: Operator<'_>,
    ) -> Result<bool, SeedError> {
        let present = self.present().await.map_err(RestoreError::from)?;
        match &present.document {
            Ok(Some(found))
                if !found.is_blank()
                    && found.belongs_to_partition_count(self.poller.partition_count()) =>
            {
                return Ok(false);
            }
            // It is unknown what would be replaced.
            Err(_) => return Err(RestoreError::Moved.into()),
            Ok(_) => {}
        }
        self.poller.source.open(None).await?;
        let shape = self.poller.source.shape();
        if let Some(position) = after.filter(|after| after.mode != shape.mode) {
            let (position, chosen) = (position.mode.as_str(), shape.mode.as_str());
            return Err(SeedError::Mode { position, chosen });
        }
        let fingerprint = shape.fingerprint.clone();
        let mut seed = StateDocument::of_partition(
            &self.poller.name,
            fingerprint,
            self.poller.partition,
            after,
        );
        if after.is_some() {
            seed.source_state = self.poller.source.anchor(None).await?.state;
        }
        self.restore(&seed, &present, (EventKind::Repartitioned, operator)).await?;
        Ok(true)
    }

    /// Leaves the rows to `count` other partitions permanently.
    ///
    /// # Errors
    ///
    /// As [`Self::hold_for_repartition`].
    pub(crate) async fn hand_over(
        self,
        count: u16,
        operator: Operator<'_>,
    ) -> Result<(), TickError> {
        self.change((EventKind::Repartitioned, operator), |base| {
            if base.document.taken_over_by == Some(count) && base.document.repartition.is_none() {
                return Change::Nothing(());
            }
            let mut next = base.document.taken_over(count, paused(base, operator), self.age(base));
            next.note(operator_tick(EventKind::Repartitioned.as_str(), operator, base.now()));
            Change::Write(Box::new(next), ())
        })
        .await
    }

    fn age(self, base: &Snapshot) -> crate::document::DocumentAge {
        base.age(self.poller.store.grain())
    }

    /// Returns the document, if a usable one is stored, and the holder of its lease.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if it cannot be read.
    pub(crate) async fn document_and_holder(
        self,
    ) -> Result<Option<(StateDocument, Option<String>)>, LoadError> {
        let present = self.present().await?;
        let held_by = present.held_by;
        Ok(present.document?.map(|document| (document, held_by)))
    }
}

fn paused(base: &Snapshot, operator: Operator<'_>) -> Paused {
    Paused {
        by: operator.by.to_owned(),
        reason: operator.reason.to_owned(),
        at: base.now(),
        extra: serde_json::Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{ResetError, ResetTo};
    use crate::cursor::{KeyValues, RowVersion};
    use crate::partition::Partition;
    use crate::poller::{Poller, TickOutcome};
    use crate::testing::{World, admin, tick};

    fn part(world: &World, name: &str, partition: (u16, u16)) -> Poller {
        let (index, count) = partition;
        let poller = world.poller(name, name, world.source.clone());
        poller.with_partition(Some(Partition { index, count }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_can_be_reset_during_a_repartition_until_new_partitions_start() {
        let ann = Operator { by: "ann", reason: "repartition" };
        let world = World::new();
        world.source.put(1, "row");
        let own = part(&world, "p__p0", (0, 2));
        tick(&own).await.unwrap();
        let record = RepartitionRecord {
            from: 2,
            to: 4,
            begun_at: time::OffsetDateTime::UNIX_EPOCH,
            upto: None,
            caught_up: false,
            after: None,
        };
        own.admin().hold_for_repartition(Some(&record), ann).await.unwrap();
        let admin = admin(&own);
        let plan = admin.plan_reset(ResetTo::Beginning, false).await.unwrap();
        admin.reset(&plan, "replay-1".to_owned(), ann).await.unwrap();
        let document = world.document_of("p__p0").await.unwrap();
        assert_eq!(document.checkpoint.cursor, None);
        assert!(document.paused.is_some() && document.repartition.is_some(), "it can be finished");
        own.admin()
            .note_repartition(&RepartitionRecord { caught_up: true, ..record }, ann)
            .await
            .unwrap();
        let refused = admin.plan_reset(ResetTo::Beginning, false).await.unwrap_err();
        assert!(matches!(refused, ResetError::Repartitioning { .. }), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_partition_is_run_up_to_its_bound_and_no_further() {
        let world = World::new();
        for id in 1..=6 {
            world.source.put(id, "row");
        }
        let own = || part(&world, "p__p0", (0, 2));
        admin(&own()).pause(Operator { by: "ann", reason: "repartition" }).await.unwrap();
        assert!(matches!(tick(&own()).await, Ok(TickOutcome::Paused { .. })));
        let upto = Cursor::row_version(RowVersion(4), KeyValues::new());
        let bounded = own().up_to(upto);
        while tick(&bounded).await.unwrap() != TickOutcome::Idle {}
        assert_eq!(world.handler.ids(), [1, 2, 3, 4]);
        let document = world.document_of("p__p0").await.unwrap();
        assert!(document.paused.is_some() && document.lease.released_at.is_some());
        assert!(matches!(tick(&own()).await, Ok(TickOutcome::Paused { .. })));
    }
}
