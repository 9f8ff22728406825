//! Builds workers that replay ranges of one poller, with the poller's settings under other names.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{BuildError, Environment, Storage, limits};
use crate::config::{Config, PollerConfig, Vars};
use crate::handler::Handler;
use crate::handler::paced::{RateLimit, RateLimited};
use crate::lease::{Instance, LeaseTerms};
use crate::metrics::Metrics;
use crate::poller::{Limits, Poller, PollerParts};
use crate::source::Source;
use crate::state::{LoggedStore, StateStore};

/// Limit of `TICK_TIME_MAX` for a range: commands of operators are read between ticks.
const TICK_TIME_MAX: Duration = Duration::from_secs(30);
/// A rate-limited batch has rows for at most this many seconds, so that it is never in flight for long.
const PACED_BATCH_SECONDS: u32 = 10;

/// Builds workers for ranges of one poller.
pub struct Ranges {
    environment: Environment,
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

/// A source and a handler with their own connections, which deliver one range at a time.
#[derive(Debug)]
pub struct Worker {
    source: Arc<dyn Source>,
    handler: Arc<dyn Handler>,
    ranges: Arc<Ranges>,
}

impl Ranges {
    /// Reads the settings of `poller`; `None` if it does not exist. All ranges together deliver at most `rate`
    /// rows per second.
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
        let environment = Environment::of(vars);
        let instance = Arc::new(Instance::new(environment.owner_id(&config.app)));
        let Storage { state, .. } = environment.storage(&config)?;
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
            environment,
            app: config.app,
            config: found,
            limits,
            store: Arc::new(LoggedStore::new(state)),
            instance,
            metrics: Arc::default(),
            pace: Arc::new(RateLimit::new(rate)),
        }))
    }

    /// Returns the rate limit shared by all workers.
    pub fn pace(&self) -> &RateLimit {
        &self.pace
    }

    /// Returns the maximum rows of a batch.
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
        let Ranges { environment, app, config, pace, .. } = ranges.as_ref();
        let handler = environment.handler(app, config, &mut None)?;
        Ok(Self {
            source: environment.source(config)?,
            handler: Arc::new(RateLimited::new(handler, Arc::clone(pace))),
            ranges: Arc::clone(ranges),
        })
    }

    /// Returns the poller for the range that is stored under `name`.
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
        Poller::new(parts).with_replay_of(&ranges.config.name)
    }
}
