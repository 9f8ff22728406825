//! Settings: read from the environment and checked together before anything starts.
//!
//! App settings are the only source, since the Functions host passes them to its child, and Azure can show,
//! audit and swap them; an additional file would be a second source of truth. [`SETTINGS`] is the only place
//! with names, defaults and meanings: readers take defaults from it, unknown names are detected with it, and
//! the reference page shows [`settings_table`].
//!
//! All mistakes are reported at once ([`ConfigErrors`]), because a restart in the cloud to find the next one takes
//! minutes. No mistake shows a secret: connection strings are never printed, URLs are printed by host
//! ([`shown_url()`]), and values of unknown names are not shown.
//!
//! A blank setting counts as not set, so that a template may pass an empty parameter. Settings of another handler
//! kind are mistakes, except with `stdout`, so that one setting can switch a poller to it and back. Settings of
//! another store are ignored.
//!
//! Nothing here connects to anything.

//!
//! # Example
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use highwater::config::Config;
//!
//! let vars = BTreeMap::from([("HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX".to_owned(), "0".to_owned())]);
//! let mistakes = Config::from_vars(&vars).unwrap_err();
//! assert!(mistakes.to_string().contains("HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE"), "{mistakes}");
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

mod defaults;
mod failure;
mod flow;
mod function_timeout;
mod handler;
mod mask;
mod metrics;
mod mistake;
mod notify;
mod parse;
mod poller;
mod read;
mod recovery;
mod secrets;
mod set_value;
mod settings;
mod shown_url;
mod source;
mod state;
mod storage;
#[cfg(test)]
mod tests;
mod unknown;
mod vars;

pub use self::defaults::default_of;
pub use self::function_timeout::FunctionTimeout;
pub use self::handler::{
    Authorities, BodyForm, DurableConfig, ExecConfig, HandlerConfig, HttpAuth, HttpConfig,
    StepConfig,
};
pub use self::metrics::MetricsConfig;
pub(crate) use self::metrics::metrics_address;
pub use self::mistake::{ConfigErrors, Mistake, Shown};
pub use self::notify::NotifyConfig;
pub use self::parse::is_poller_name;
pub use self::parse::{parse_age, parse_duration};
pub use self::poller::{GroupConfig, JournalConfig, LeaseConfig, LimitsConfig, PollerConfig};
pub use self::recovery::{RecoveryConfig, RecoveryMode};
pub use self::secrets::{FoundSecret, secrets};
pub use self::set_value::{SetValue, set_values};
pub(crate) use self::settings::LOG_DEFAULT;
pub(crate) use self::settings::meant_by_single_underscores;
pub use self::settings::{
    FENCE_TABLE_DEFAULT, Fallback, JOURNAL_TABLE_DEFAULT, LEDGER_TABLE_DEFAULT, SETTINGS,
    STATE_TABLE_DEFAULT, Setting, settings_table,
};
pub use self::shown_url::shown_url;
pub use self::state::StateConfig;
pub use self::vars::{LocalSettings, LocalSettingsError, ProcessVars, Vars};

pub use highwater_azure::handler::{BlobConfig, MessageEncoding, QueueConfig};
pub use highwater_azure::{IdentityParts, StorageConnection, StorageService};
pub use highwater_mssql::handler::{LedgerConfig, SqlHandlerConfig};
pub use highwater_mssql::source::{OnSchemaChange, Relation, SourceClock, SourceSettings};
pub use highwater_mssql::{Encrypt, SqlAuth, SqlConnection, connection_keys_table};

use self::read::Reader;
use crate::partition::poller_of_partition;

/// Reserve at the end of the function timeout to record that a tick failed.
pub const FUNCTION_TIMEOUT_RESERVE: Duration = Duration::from_secs(15);

/// A function timeout must be longer than this, otherwise no tick fits into it.
pub const FUNCTION_TIMEOUT_ABOVE: Duration = Duration::from_secs(20);

/// All settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the application, a folder in the state container.
    pub app: String,
    /// Where state documents are stored.
    pub state: StateConfig,
    /// The limit on one function call: the configured one, or the host's if that is shorter.
    pub function_timeout: Duration,
    /// The configured limit on one function call.
    pub function_timeout_set: Duration,
    /// How long the process may take to stop.
    pub stop_grace: Duration,
    /// Log filter in `tracing` syntax.
    pub log: String,
    /// Settings of metrics.
    pub metrics: MetricsConfig,
    /// Whether the function [`HEALTH_FUNCTION`](crate::page::HEALTH_FUNCTION) answers, which needs no key.
    pub health_is_anonymous: bool,
    /// Settings of the recovery controller.
    pub recovery: RecoveryConfig,
    /// Where operators are notified of changes; `None` for nowhere.
    pub notify: Option<NotifyConfig>,
    /// The pollers by name, at least one; a partitioned poller is represented by its partitions.
    pub pollers: BTreeMap<String, PollerConfig>,
    /// Functions that run a poller with another name, by [`function_segment`]; the values are names of existing
    /// pollers.
    pub functions: BTreeMap<String, String>,
    /// Functions that run several pollers, by [`function_segment`].
    pub groups: BTreeMap<String, GroupConfig>,
}

impl Config {
    /// Reads and checks all settings.
    ///
    /// # Errors
    ///
    /// [`ConfigErrors`] with all mistakes.
    pub fn from_vars(vars: &dyn Vars) -> Result<Self, ConfigErrors> {
        Self::from_vars_under(vars, None)
    }

    /// Reads and checks all settings, under a host with its own limit on one function call. The shorter limit
    /// applies.
    ///
    /// # Errors
    ///
    /// [`ConfigErrors`] with all mistakes, including a host limit into which no tick fits.
    pub fn from_vars_under(
        vars: &dyn Vars,
        host: Option<&FunctionTimeout>,
    ) -> Result<Self, ConfigErrors> {
        let mut reader = Reader::new(vars);
        let app = state::read_app(&mut reader);
        let state = state::read(&mut reader);
        let function_timeout = poller::read_function_timeout(&mut reader);
        let host_limit = poller::check_host_timeout(&mut reader, host);
        let stop_grace = read_stop_grace(&mut reader);
        let log = reader.read(&settings::LOG, None, parse::log_filter);
        let metrics = metrics::read(&mut reader);
        let health_is_anonymous = reader.read(&settings::HEALTH_ANONYMOUS, None, parse::boolean);
        let recovery = recovery::read(&mut reader);
        let notify = notify::read(&mut reader);
        let names = poller::names(&mut reader);
        let facts = poller::Facts { function_timeout, state: state.as_ref() };
        let mut known = BTreeSet::new();
        let mut pollers = Some(Vec::new());
        for name in names {
            let read = poller::read(&mut reader, &name, &facts);
            match &read {
                Some(parts) => known.extend(parts.iter().map(|part| part.name.clone())),
                None => _ = known.insert(name),
            }
            pollers = pollers.zip(read).map(|(pollers, parts)| [pollers, parts].concat());
        }
        let functions = poller::read_functions(&mut reader, &known);
        let groups = poller::read_groups(&mut reader, &known, &functions);
        unknown::report(&mut reader);
        let config = || {
            Some(Self {
                app: app?,
                state: state?,
                function_timeout: function_timeout?,
                function_timeout_set: function_timeout?,
                stop_grace: stop_grace?,
                log: log?,
                metrics: metrics?,
                health_is_anonymous: health_is_anonymous?,
                recovery: recovery?,
                notify,
                pollers: pollers?.into_iter().map(|poller| (poller.name.clone(), poller)).collect(),
                functions,
                groups,
            })
        };
        let mut config = config();
        if let (Some(config), Some(limit)) = (&mut config, host_limit) {
            config.limit_to(limit);
        }
        reader.finish(config)
    }

    /// Shortens ticks so that they fit into `limit`.
    fn limit_to(&mut self, limit: Duration) {
        if limit >= self.function_timeout {
            return;
        }
        self.function_timeout = limit;
        let tick_time_max = poller::tick_time_within(limit);
        for poller in self.pollers.values_mut() {
            poller.limits.tick_time_max = poller.limits.tick_time_max.min(tick_time_max);
        }
    }

    /// Returns the required functions: one for each poller, or for each partition of a partitioned one.
    pub fn required_functions(&self) -> Vec<RequiredFunction<'_>> {
        let folder_of = |poller: &PollerConfig| {
            let mut set = self.functions.iter().filter(|(_, runs)| **runs == poller.name);
            set.next()
                .map_or_else(|| poller.name.clone(), |(segment, _)| segment.to_ascii_lowercase())
        };
        let of_group = |name: &str| self.groups.values().any(|group| group.pollers.contains(name));
        let alone = self.pollers.values().filter(|poller| !of_group(&poller.name));
        let needed = alone.map(|poller| RequiredFunction {
            folder: folder_of(poller),
            poller: &poller.name,
            parent: poller_of_partition(&poller.name),
        });
        let groups = self.groups.iter().filter_map(|(segment, group)| {
            let (folder, poller) = (segment.to_ascii_lowercase(), group.pollers.first()?);
            Some(RequiredFunction { folder, poller, parent: segment })
        });
        needed.chain(groups).collect()
    }

    /// Returns the poller of a function, by the name of the function's folder; `None` if it runs several.
    pub fn poller_of_function(&self, folder: &str) -> Option<&PollerConfig> {
        if self.groups.contains_key(&function_segment(folder)) {
            return None;
        }
        self.pollers.get(&poller_name_of_function(folder, &self.functions))
    }

    /// Returns the pollers of each function; `folders` are all functions of the app.
    pub fn pollers_by_function<'a>(
        &self,
        folders: impl Iterator<Item = &'a str> + Clone,
    ) -> BTreeMap<&'a str, Vec<&PollerConfig>> {
        let alone = folders.clone().filter_map(|folder| self.poller_of_function(folder));
        let alone: BTreeSet<&str> = alone.map(|poller| poller.name.as_str()).collect();
        let pollers_of = |folder: &str| -> Vec<&PollerConfig> {
            let Some(group) = self.groups.get(&function_segment(folder)) else {
                return self.poller_of_function(folder).into_iter().collect();
            };
            // `all` excludes pollers with their own function.
            let names = group.pollers.iter();
            let names = names.filter(|name| !group.is_all || !alone.contains(name.as_str()));
            names.filter_map(|name| self.pollers.get(name)).collect()
        };
        folders.map(|folder| (folder, pollers_of(folder))).collect()
    }
}

/// Handler calls are aborted this long before the end of the grace period, to leave time for the last writes.
pub(crate) const ABORT_LEAD: Duration = Duration::from_secs(1);

fn read_stop_grace(reader: &mut Reader<'_>) -> Option<Duration> {
    reader.read(&settings::STOP_GRACE, None, parse::duration_from(ABORT_LEAD * 2))
}

/// Returns how long the process may take to stop, even if other settings are invalid. An invalid value is replaced by
/// the default here, and reported with the other mistakes.
pub fn stop_grace(vars: &dyn Vars) -> Duration {
    let is_default = BTreeMap::new();
    let read = |vars: &dyn Vars| read_stop_grace(&mut Reader::new(vars));
    read(vars).or_else(|| read(&is_default)).unwrap_or(ABORT_LEAD * 2)
}

/// A timer function that the settings require.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredFunction<'a> {
    /// Name of its folder, which the host accepts.
    pub folder: String,
    /// Name of the poller that it runs.
    pub poller: &'a str,
    /// The partitioned poller to which it belongs, or the poller itself. Partitions share what is named after it,
    /// such as the setting of a schedule.
    pub parent: &'a str,
}

/// Returns the name of the poller that the function in `folder` runs, even if it does not exist. `functions` is
/// [`Config::functions`].
pub fn poller_name_of_function(folder: &str, functions: &BTreeMap<String, String>) -> String {
    let segment = function_segment(folder);
    let name = functions.get(&segment).cloned();
    name.unwrap_or_else(|| segment.to_ascii_lowercase())
}

/// Returns a folder name as written in a setting: in upper case, with `_` for `-`.
///
/// App Service on Linux does not allow hyphens in the name of a setting.
pub fn function_segment(folder: &str) -> String {
    folder.to_ascii_uppercase().replace('-', "_")
}
