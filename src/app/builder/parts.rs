//! Builds pollers, and the partitions of one poller for any number of partitions.

use std::sync::Arc;

use super::{BuildError, Environment, Storage, limits, shared_client};
use crate::clock::SystemClock;
use crate::config::{Config, PollerConfig, Vars};
use crate::handler::http::{Client, Webhook};
use crate::journal::JournalStore;
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::notification::Notifier;
use crate::partition::{Partition, poller_of_partition};
use crate::poller::{Poller, PollerParts};
use crate::state::{LoggedStore, StateStore};

/// Shared by all pollers of an app.
pub(super) struct Shared<'a> {
    pub(super) config: &'a Config,
    pub(super) environment: &'a Environment,
    pub(super) store: Arc<dyn StateStore>,
    pub(super) journals: Arc<dyn JournalStore>,
    pub(super) instance: Arc<Instance>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) client: Option<Client>,
    /// Reports changes of the pollers.
    pub(super) notifier: Option<Arc<dyn Notifier>>,
}

impl Shared<'_> {
    /// Builds the notifier, if the settings have one.
    pub(super) fn build_notifier(&mut self) -> Result<Option<Arc<dyn Notifier>>, BuildError> {
        let Some(notify) = &self.config.notify else { return Ok(None) };
        let client = shared_client(&mut self.client)?;
        let (app, metrics) = (&self.config.app, Arc::clone(&self.metrics));
        Ok(Some(Arc::new(Webhook::new(client, notify, app, Arc::new(SystemClock), metrics))))
    }

    /// Builds a poller.
    pub(super) fn poller(&mut self, poller: &PollerConfig) -> Result<Poller, BuildError> {
        let Self { config, environment, .. } = *self;
        let parts = PollerParts {
            name: poller.name.clone(),
            source: environment.source(poller)?,
            handler: environment.handler(&config.app, poller, &mut self.client)?,
            store: Arc::clone(&self.store),
            instance: Arc::clone(&self.instance),
            terms: LeaseTerms::of(poller.lease.ttl),
            limits: limits(poller, config.function_timeout),
            policy: poller.policy,
            metrics: Arc::clone(&self.metrics),
        };
        let built =
            Poller::new(parts).with_partition(poller.source.partition).with_flow(poller.flow);
        let built = if poller.start_now { built.starting_now() } else { built };
        let built = match poller.audit_after {
            Some(wait) => built.with_audit_after(wait),
            None => built,
        };
        let built = built.with_backlog_count_max(poller.limits.count_rows_max);
        let built = match &self.notifier {
            Some(notifier) => built.with_notifier(Arc::clone(notifier)),
            None => built,
        };
        // Also if the journal is off: an earlier journal can be read.
        let (mode, retention) = (poller.journal.mode, poller.journal.retention);
        Ok(built.with_journal(mode, Arc::clone(&self.journals), retention))
    }
}

/// One configured poller that can be split into any number of partitions.
pub struct PartitionablePoller {
    config: Config,
    poller: PollerConfig,
    environment: Environment,
    /// Store of the state documents.
    pub store: Arc<dyn StateStore>,
    journals: Arc<dyn JournalStore>,
    instance: Arc<Instance>,
}

impl std::fmt::Debug for PartitionablePoller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PartitionablePoller")
            .field("poller", &self.poller.name)
            .finish_non_exhaustive()
    }
}

impl PartitionablePoller {
    /// Reads the settings of `poller`, with any number of partitions; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub fn build(vars: &dyn Vars, poller: &str) -> Result<Option<Self>, BuildError> {
        let config = Config::from_vars(vars)?;
        let environment = Environment::of(vars);
        let instance = Arc::new(Instance::new(environment.owner_id(&config.app)));
        let Storage { state, journals } = environment.storage(&config)?;
        let found =
            config.pollers.values().find(|part| poller_of_partition(&part.name) == poller).cloned();
        let Some(found) = found else { return Ok(None) };
        let store = Arc::new(LoggedStore::new(state));
        Ok(Some(Self { config, poller: found, environment, store, journals, instance }))
    }

    /// Returns the `count` partitions.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub fn parts(&self, count: u16) -> Result<Vec<Poller>, BuildError> {
        let mut shared = Shared {
            config: &self.config,
            environment: &self.environment,
            store: Arc::clone(&self.store),
            journals: Arc::clone(&self.journals),
            instance: Arc::clone(&self.instance),
            metrics: Arc::default(),
            client: None,
            // `repartition` shows what it does itself.
            notifier: None,
        };
        let parts = Partition::all(count).into_iter();
        parts.map(|partition| shared.poller(&self.poller.part(partition))).collect()
    }

    /// Returns the old partition `name` while a repartition waits for old partitions to deliver their rows.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub async fn old_partition(&self, name: &str) -> Result<Option<Poller>, BuildError> {
        // The document of the first old partition has the record. Its name depends on whether there are several.
        for count in [1, 2] {
            let Some(first) = self.parts(count)?.into_iter().next() else { continue };
            if let Some(record) = first.admin().pending_repartition().await {
                return Ok(self.parts(record.from)?.into_iter().find(|part| part.name() == name));
            }
        }
        Ok(None)
    }

    /// Number of partitions in the settings.
    pub fn parts_configured(&self) -> u16 {
        self.poller.source.partition.map_or(1, |partition| partition.count)
    }
}
