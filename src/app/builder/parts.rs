//! Putting pollers together, and all the parts of one that is divided, by whatever number.

use std::sync::Arc;

use super::{BuildError, Storage, Surroundings, limits};
use crate::config::{Config, PollerConfig, Vars};
use crate::handler::http::Client;
use crate::journal::JournalStore;
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::partition::{Partition, whole_of};
use crate::poller::{Poller, PollerParts};
use crate::state::{LoggedStore, StateStore};

/// What all pollers of an app share.
pub(super) struct Shared<'a> {
    pub(super) config: &'a Config,
    pub(super) surroundings: &'a Surroundings,
    pub(super) store: Arc<dyn StateStore>,
    pub(super) journals: Arc<dyn JournalStore>,
    pub(super) instance: Arc<Instance>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) client: Option<Client>,
}

impl Shared<'_> {
    /// Puts a poller together.
    pub(super) fn poller(&mut self, poller: &PollerConfig) -> Result<Poller, BuildError> {
        let Self { config, surroundings, .. } = *self;
        let parts = PollerParts {
            name: poller.name.clone(),
            source: surroundings.source(poller)?,
            handler: surroundings.handler(&config.app, poller, &mut self.client)?,
            store: Arc::clone(&self.store),
            instance: Arc::clone(&self.instance),
            terms: LeaseTerms::of(poller.lease.ttl),
            limits: limits(poller, config.function_timeout),
            policy: poller.policy,
            metrics: Arc::clone(&self.metrics),
        };
        let built = Poller::new(parts).dividing(poller.source.partition).flowing(poller.flow);
        let built = if poller.start_now { built.starting_now() } else { built };
        let built = match poller.audit_after {
            Some(wait) => built.auditing(wait),
            None => built,
        };
        let built = built.counting_behind(poller.limits.count_rows_max);
        // Also where none is kept: one that was can be read.
        let (mode, retention) = (poller.journal.mode, poller.journal.retention);
        Ok(built.with_journal(mode, Arc::clone(&self.journals), retention))
    }
}

/// One poller of the settings, to be divided by any number.
pub struct Divisible {
    config: Config,
    poller: PollerConfig,
    surroundings: Surroundings,
    /// Where the documents are.
    pub store: Arc<dyn StateStore>,
    journals: Arc<dyn JournalStore>,
    instance: Arc<Instance>,
}

impl std::fmt::Debug for Divisible {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Divisible")
            .field("poller", &self.poller.name)
            .finish_non_exhaustive()
    }
}

impl Divisible {
    /// Reads the settings of `poller`, whatever number of parts they say; `None` where there is none of that name.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub fn build(vars: &dyn Vars, poller: &str) -> Result<Option<Self>, BuildError> {
        let config = Config::from_vars(vars)?;
        let surroundings = Surroundings::of(vars);
        let instance = Arc::new(Instance::new(surroundings.owner_id(&config.app)));
        let Storage { state, journals } = surroundings.storage(&config)?;
        let found = config.pollers.values().find(|part| whole_of(&part.name) == poller).cloned();
        let Some(found) = found else { return Ok(None) };
        let store = Arc::new(LoggedStore::new(state));
        Ok(Some(Self { config, poller: found, surroundings, store, journals, instance }))
    }

    /// Returns the parts of a division into `count`.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub fn parts(&self, count: u16) -> Result<Vec<Poller>, BuildError> {
        let mut shared = Shared {
            config: &self.config,
            surroundings: &self.surroundings,
            store: Arc::clone(&self.store),
            journals: Arc::clone(&self.journals),
            instance: Arc::clone(&self.instance),
            metrics: Arc::default(),
            client: None,
        };
        let parts = Partition::all(count).into_iter();
        parts.map(|partition| shared.poller(&self.poller.part(partition))).collect()
    }

    /// Returns the old part of a name while a repartition waits for old parts to deliver what they have.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub async fn old_part(&self, name: &str) -> Result<Option<Poller>, BuildError> {
        // The record of it is in the document of the first old part, whose name depends on whether there are several.
        for count in [1, 2] {
            let Some(first) = self.parts(count)?.into_iter().next() else { continue };
            if let Some(record) = first.admin().awaited_by_repartition().await {
                return Ok(self.parts(record.from)?.into_iter().find(|part| part.name() == name));
            }
        }
        Ok(None)
    }

    /// Into how many parts the settings divide it.
    pub fn parts_configured(&self) -> u16 {
        self.poller.source.partition.map_or(1, |partition| partition.count)
    }
}
