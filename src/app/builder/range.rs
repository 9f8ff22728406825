//! What delivers parts of one poller's past again: the poller's own settings, under other names.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{BuildError, Storage, Surroundings, limits};
use crate::config::{Config, PollerConfig, Vars};
use crate::handler::Handler;
use crate::handler::paced::{RateLimit, RateLimited};
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::poller::{Limits, Poller, PollerParts};
use crate::source::Source;
use crate::state::{LoggedStore, StateStore};

/// Longest that a tick of a range begins new batches: between two it is looked at what others say.
const TICK_TIME_MAX: Duration = Duration::from_secs(30);
/// A batch that is paced holds rows for this long at most, so that it is never long in hand.
const PACED_BATCH_SECONDS: u32 = 10;

/// Builds what delivers ranges of one poller.
pub struct Ranges {
    surroundings: Surroundings,
    app: String,
    config: PollerConfig,
    limits: Limits,
    store: Arc<dyn StateStore>,
    instance: Arc<Instance>,
    metrics: Arc<Metrics>,
    pace: Arc<RateLimit>,
}

impl std::fmt::Debug for Ranges {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Ranges").field("poller", &self.config.name).finish_non_exhaustive()
    }
}

/// A source and a handler, each with a connection of its own, which deliver one range at a time.
#[derive(Debug)]
pub struct Worker {
    source: Arc<dyn Source>,
    handler: Arc<dyn Handler>,
    ranges: Arc<Ranges>,
}

impl Ranges {
    /// Reads the settings of `poller`; `None` where there is none of that name. All ranges together go no
    /// faster than `rate` rows a second.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub fn build(
        vars: &dyn Vars,
        poller: &str,
        rate: Option<NonZeroU32>,
    ) -> Result<Option<Self>, BuildError> {
        let config = Config::from_vars(vars)?;
        let surroundings = Surroundings::of(vars);
        let instance = Arc::new(Instance::new(surroundings.owner_id(&config.app)));
        let Storage { state, .. } = surroundings.storage(&config)?;
        let Some(found) = config.pollers.get(poller).cloned() else { return Ok(None) };
        let mut limits = limits(&found, config.function_timeout);
        limits.tick_time_max = limits.tick_time_max.min(TICK_TIME_MAX);
        limits.status_interval = Duration::ZERO;
        limits.batches_max = None;
        if let Some(rate) = rate {
            let rows = usize::try_from(rate.get().saturating_mul(PACED_BATCH_SECONDS));
            limits.batch_rows_max = limits.batch_rows_max.min(rows.unwrap_or(usize::MAX));
        }
        Ok(Some(Self {
            surroundings,
            app: config.app,
            config: found,
            limits,
            store: Arc::new(LoggedStore::new(state)),
            instance,
            metrics: Arc::default(),
            pace: Arc::new(RateLimit::new(rate)),
        }))
    }

    /// Returns what counts the rows of all workers.
    pub fn pace(&self) -> &RateLimit {
        &self.pace
    }

    /// Returns the most rows of a batch.
    pub fn batch_rows_max(&self) -> usize {
        self.limits.batch_rows_max
    }
}

impl Worker {
    /// Returns a worker that has not connected yet.
    ///
    /// # Errors
    ///
    /// [`BuildError`] as of [`super::App::build`].
    pub fn new(ranges: &Arc<Ranges>) -> Result<Self, BuildError> {
        let Ranges { surroundings, app, config, pace, .. } = ranges.as_ref();
        let handler = surroundings.handler(app, config, &mut None)?;
        Ok(Self {
            source: surroundings.source(config)?,
            handler: Arc::new(RateLimited::new(handler, Arc::clone(pace))),
            ranges: Arc::clone(ranges),
        })
    }

    /// Returns what delivers the range that is kept under `name`.
    pub fn range(&self, name: &str) -> Poller {
        let ranges = &self.ranges;
        let parts = PollerParts {
            name: name.to_owned(),
            source: Arc::clone(&self.source),
            handler: Arc::clone(&self.handler),
            store: Arc::clone(&ranges.store),
            instance: Arc::clone(&ranges.instance),
            terms: LeaseTerms::of(ranges.config.lease.ttl),
            limits: ranges.limits,
            policy: ranges.config.policy,
            metrics: Arc::clone(&ranges.metrics),
        };
        Poller::new(parts).again_for(&ranges.config.name)
    }
}
