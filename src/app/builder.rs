//! Composition: builds the app from its settings. The only module that knows every adapter.

pub mod board;
pub mod doctor;
mod error;
pub mod parts;
pub mod range;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::TokenCredential;
use tracing::warn;
use uuid::Uuid;

pub use self::error::BuildError;
use self::parts::Shared;
use crate::azure::{
    BlobService, ConnectError, IdentitySource, QueueService, ServiceOptions, Tokens, User,
    request_timeout,
};
use crate::clock::{Clock, SystemClock};
use crate::config::{
    Config, FUNCTION_TIMEOUT_RESERVE, FunctionTimeout, HandlerConfig, HttpAuth, PollerConfig,
    RecoveryMode, SqlAuth, StateConfig, StorageConnection, Vars, function_segment,
    poller_name_of_function,
};
use crate::handler::blob::Blob;
use crate::handler::chain::Chain;
use crate::handler::durable::{self, Durable};
use crate::handler::exec::Exec;
use crate::handler::http::{Client, Http};
use crate::handler::queue::Queue;
use crate::handler::sql::Sql;
use crate::handler::stdout::Stdout;
use crate::handler::{Handler, Step};
use crate::host::group::PollerGroup;
use crate::host::server::Function;
use crate::journal::{BlobJournal, FileJournal, JournalStore, SqlJournal};
use crate::lease::Instance;
use crate::metrics::Metrics;
use crate::mssql::RetryTerms;
use crate::page;
use crate::poller::{Limits, Poller};
use crate::recovery::{self, Controller, ControllerParts, Thresholds};
use crate::source::Source;
use crate::source::mssql::Mssql;
use crate::state::{
    BlobStore, DateCheckedStore, FileStore, LoggedStore, SqlStore, SqlStoreSettings, StateStore,
};
use crate::status::StatusReader;

/// A configured app.
#[derive(Debug)]
pub struct App {
    /// Name of the app.
    pub name: String,
    /// The pollers by name.
    pub pollers: BTreeMap<String, Arc<Poller>>,
    /// The pollers by function name.
    pub functions: BTreeMap<String, Arc<Poller>>,
    /// Functions that run several pollers, by function name.
    groups: BTreeMap<String, Arc<PollerGroup>>,
    /// Names of pollers by function, as set in the settings.
    names: BTreeMap<String, String>,
    /// Whether uptime monitors need no key.
    health_is_anonymous: bool,
    /// Finds pollers that cannot continue.
    pub recovery: Arc<Controller>,
    /// Store of the state documents.
    pub state: Arc<dyn StateStore>,
}

impl App {
    /// Reads the settings and builds the app; does not connect yet.
    ///
    /// # Errors
    ///
    /// [`BuildError`]; for invalid settings with all mistakes.
    pub fn build(vars: &dyn Vars) -> Result<Self, BuildError> {
        Self::of(Config::from_vars(vars)?, vars, |state| state)
    }

    /// Like [`Self::build`], for a command that restores a state document: see [`StateStore::making_place`].
    ///
    /// # Errors
    ///
    /// See [`Self::build`].
    pub fn build_to_restore(vars: &dyn Vars) -> Result<Self, BuildError> {
        let config = Config::from_vars(vars)?;
        Self::of(config, vars, |state| state.making_place().unwrap_or(state))
    }

    /// Like [`Self::build`], for a process that runs ticks. `host` is the time limit of a host, which kills the
    /// process when it is exceeded.
    ///
    /// # Errors
    ///
    /// See [`Self::build`]; also if no tick fits into that limit, or if the output of a handler is closed.
    pub fn build_to_run(
        vars: &dyn Vars,
        host: Option<&FunctionTimeout>,
    ) -> Result<Self, BuildError> {
        let config = Config::from_vars_under(vars, host)?;
        let (counts, ours) = (config.function_timeout, config.function_timeout_set);
        if let Some(host) = host
            && counts < ours
        {
            let (counts, ours) = (counts.as_secs(), ours.as_secs());
            warn!(
                event = "function_timeout_shortened",
                host_seconds = counts,
                set_seconds = ours,
                set_by = host.set_by,
                "The host ends function calls after {counts} s (`{}`), sooner than `HIGHWATER__FUNCTION_TIMEOUT` \
                 ({ours} s); ticks will stop before {counts} s. Set both to the same value",
                host.set_by
            );
        }
        let app = Self::of(config, vars, |state| state)?;
        app.pollers.values().try_for_each(|poller| check_handler(poller))?;
        Ok(app)
    }

    fn of(
        config: Config,
        vars: &dyn Vars,
        place: impl FnOnce(Arc<dyn StateStore>) -> Arc<dyn StateStore>,
    ) -> Result<Self, BuildError> {
        let environment = Environment::of(vars);
        let metrics = Arc::new(Metrics::default());
        let owner_id = environment.owner_id(&config.app);
        let instance = Arc::new(Instance::new(owner_id).measured(Arc::clone(&metrics)));
        let Storage { state, journals } = environment.storage(&config)?;
        let store: Arc<dyn StateStore> = Arc::new(LoggedStore::new(place(state)));
        let mut shared = Shared {
            config: &config,
            environment: &environment,
            store: Arc::clone(&store),
            journals,
            instance: Arc::clone(&instance),
            metrics: Arc::clone(&metrics),
            client: None,
            notifier: None,
        };
        shared.notifier = shared.build_notifier()?;
        let mut pollers = BTreeMap::new();
        for poller in config.pollers.values() {
            pollers.insert(poller.name.clone(), Arc::new(shared.poller(poller)?));
        }
        let folders = environment.function_folders();
        let functions = functions(&config, &pollers, &folders);
        let recovery = Arc::new(controller(&config, &store, instance, metrics, &pollers));
        let groups = groups(&config, &pollers, &folders, &recovery);
        let Config { app: name, functions: names, health_is_anonymous, .. } = config;
        let state = store;
        Ok(Self { name, pollers, functions, groups, names, health_is_anonymous, recovery, state })
    }

    /// Returns a function by the name of its folder.
    pub fn function(&self, folder: &str) -> Option<Function> {
        if folder == recovery::FUNCTION {
            return Some(Function::Recovery(Arc::clone(&self.recovery)));
        }
        if let Some(group) = self.groups.get(folder) {
            return Some(Function::Group(Arc::clone(group)));
        }
        let poller = self.pollers.get(&poller_name_of_function(folder, &self.names));
        poller.map(|poller| Function::Tick(Arc::clone(poller)))
    }

    /// Returns all functions by the name that the host sends.
    pub fn into_functions(self, board: StatusReader) -> BTreeMap<String, Function> {
        let pollers = self.functions.into_iter();
        let mut functions: BTreeMap<String, Function> =
            pollers.map(|(name, poller)| (name, Function::Tick(poller))).collect();
        let groups = self.groups.into_iter();
        functions.extend(groups.map(|(name, group)| (name, Function::Group(group))));
        functions.insert(recovery::FUNCTION.to_owned(), Function::Recovery(self.recovery));
        let board = Arc::new(board);
        if self.health_is_anonymous {
            let health = Function::Health(Arc::new(page::OpenReadiness::new(Arc::clone(&board))));
            functions.insert(page::HEALTH_FUNCTION.to_owned(), health);
        }
        functions.insert(page::FUNCTION.to_owned(), Function::Status(board));
        functions
    }
}

/// Checks the local conditions for the handler of `poller`, such as an open output.
///
/// # Errors
///
/// [`BuildError::Output`].
pub fn check_handler(poller: &Poller) -> Result<(), BuildError> {
    let wrong = |source| BuildError::Output { poller: poller.name().to_owned(), source };
    poller.check_handler().map_err(wrong)
}

fn controller(
    config: &Config,
    store: &Arc<dyn StateStore>,
    instance: Arc<Instance>,
    metrics: Arc<Metrics>,
    pollers: &BTreeMap<String, Arc<Poller>>,
) -> Controller {
    let settings = config.recovery;
    Controller::new(ControllerParts {
        store: Arc::clone(store),
        instance,
        metrics,
        pollers: pollers.clone(),
        thresholds: Thresholds {
            stuck_after: settings.stuck_after,
            paused_max: settings.paused_max,
        },
        mode: match settings.mode {
            RecoveryMode::Off => recovery::Mode::Off,
            RecoveryMode::Report => recovery::Mode::Report,
            RecoveryMode::Repair => recovery::Mode::Repair,
        },
        time_max: config.function_timeout.saturating_sub(FUNCTION_TIMEOUT_RESERVE),
    })
}

/// Returns the timeout of a state store request, derived from the shortest lease.
fn state_timeout(config: &Config) -> Duration {
    request_timeout(shortest_ttl(config).unwrap_or_default())
}

fn shortest_ttl(config: &Config) -> Option<Duration> {
    config.pollers.values().map(|poller| poller.lease.ttl).min()
}

/// Returns the pollers by the name that the host sends: the exact name of the folder.
fn functions(
    config: &Config,
    pollers: &BTreeMap<String, Arc<Poller>>,
    folders: &[String],
) -> BTreeMap<String, Arc<Poller>> {
    let mut functions = pollers.clone();
    for folder in folders {
        let poller = config.poller_of_function(folder).and_then(|found| pollers.get(&found.name));
        functions.extend(poller.map(|poller| (folder.clone(), Arc::clone(poller))));
    }
    functions
}

/// Returns the functions that run several pollers, by the name that the host sends.
fn groups(
    config: &Config,
    pollers: &BTreeMap<String, Arc<Poller>>,
    folders: &[String],
    recovery: &Arc<Controller>,
) -> BTreeMap<String, Arc<PollerGroup>> {
    // The folder may not be here, for example if the program is started manually.
    let has_folder = |segment: &String| folders.iter().any(|it| function_segment(it) == *segment);
    let without = config.groups.keys().filter(|segment| !has_folder(segment));
    let without: Vec<String> = without.map(|segment| segment.to_ascii_lowercase()).collect();
    let all: Vec<&str> = folders.iter().chain(&without).map(String::as_str).collect();
    let runs_recovery = all.contains(&recovery::FUNCTION);
    let mut groups = BTreeMap::new();
    for (folder, runs) in config.pollers_by_function(all.into_iter()) {
        if config.groups.contains_key(&function_segment(folder)) {
            let runs = runs.iter().filter_map(|poller| pollers.get(&poller.name).cloned());
            let recovery = (!runs_recovery && groups.is_empty()).then(|| Arc::clone(recovery));
            let group = PollerGroup::new(runs.collect(), recovery);
            groups.insert(folder.to_owned(), Arc::new(group));
        }
    }
    groups
}

fn limits(poller: &PollerConfig, function_timeout: Duration) -> Limits {
    Limits {
        batch_rows_max: poller.limits.batch_rows_max,
        batch_bytes_max: poller.source.limits.batch_bytes_max,
        batches_max: poller.limits.batches_max.map(u64::from),
        tick_time_max: poller.limits.tick_time_max,
        handler_stop_after: function_timeout.saturating_sub(FUNCTION_TIMEOUT_RESERVE),
        handler_stall_max: poller.limits.handler_stall_max,
        state_refresh: poller.state_refresh,
        status_interval: poller.status_interval.unwrap_or_default(),
        retry_delay_min: poller.retry_delay_min,
        retry_delay_max: poller.retry_delay_max,
        retry_after_max: poller.retry_after_max,
        on_missing_state: poller.on_missing_state,
    }
}

/// Builds a handler. The HTTP client is shared and built only if needed, since reading the system's root
/// certificates takes longer than everything else here.
fn handler(
    environment: &Environment,
    app: &str,
    (poller, config): (&str, &HandlerConfig),
    client: &mut Option<Client>,
) -> Result<Arc<dyn Handler>, BuildError> {
    let wrong = |source| BuildError::Handler { poller: poller.to_owned(), source };
    let http = match config {
        HandlerConfig::Http(http) => http,
        HandlerConfig::Blob(blob) => {
            let service = environment.service(&blob.access, blob.timeout).map_err(wrong)?;
            return Ok(Arc::new(Blob::new(&service, blob).map_err(wrong)?));
        }
        HandlerConfig::Queue(queue) => {
            let options = environment.service_options(queue.timeout);
            let service = QueueService::connect(&queue.access, &options).map_err(wrong)?;
            return Ok(Arc::new(Queue::new(&service, queue).map_err(wrong)?));
        }
        HandlerConfig::Durable(durable) => {
            let built = Durable::new(durable);
            return Ok(Arc::new(built.map_err(|error: durable::ClientError| {
                BuildError::Durable { poller: poller.to_owned(), source: error }
            })?));
        }
        HandlerConfig::Chain(steps) => {
            let steps = steps.iter().map(|step| {
                let built = handler(environment, app, (poller, &step.handler), client);
                built.map(|handler| Step { name: step.name.clone(), handler })
            });
            return Ok(Arc::new(Chain::new(steps.collect::<Result<_, _>>()?)));
        }
        HandlerConfig::Exec(exec) => return Ok(Arc::new(Exec::new(exec))),
        HandlerConfig::Sql(sql) => {
            let built = Sql::new(app, sql);
            let built =
                built.map_err(|source| BuildError::Sql { poller: poller.to_owned(), source })?;
            return Ok(match environment.credential(&sql.connection.auth)? {
                Some(credential) => Arc::new(built.with_credential(credential)),
                None => Arc::new(built),
            });
        }
        HandlerConfig::Stdout => return Ok(Arc::new(Stdout::new())),
    };
    let client = match &http.authorities {
        Some(authorities) => Client::trusting(authorities).map_err(BuildError::Http)?,
        None => shared_client(client)?,
    };
    let handler = Http::new(client, http, Arc::new(SystemClock));
    let HttpAuth::Identity { audience, client_id } = &http.auth else {
        return Ok(Arc::new(handler));
    };
    let tokens = Tokens::new(environment.identity, client_id.as_deref(), audience);
    let wrong = |source| BuildError::HandlerIdentity { poller: poller.to_owned(), source };
    Ok(Arc::new(handler.with_tokens(tokens.map_err(wrong)?)))
}

/// Returns the HTTP client of the process, which is built when it is first needed.
fn shared_client(client: &mut Option<Client>) -> Result<Client, BuildError> {
    Ok(match client {
        Some(client) => client.clone(),
        none => none.insert(Client::new().map_err(BuildError::Http)?).clone(),
    })
}

/// The stores of an app.
struct Storage {
    state: Arc<dyn StateStore>,
    /// Store of the journals.
    journals: Arc<dyn JournalStore>,
}

/// Facts from the environment that are not settings.
struct Environment {
    instance_id: Option<String>,
    app_root: PathBuf,
    identity: IdentitySource,
    /// Login endpoint for users, from the variable of the Azure libraries.
    authority: Option<String>,
    /// Set by tests of panics in a handler.
    #[cfg(feature = "test-util")]
    handler_panics: bool,
}

impl Environment {
    fn of(vars: &dyn Vars) -> Self {
        let has = |name: &str| vars.get(name).is_some();
        // Set by App Service, Functions and Container Apps if an identity is assigned.
        let managed = has("IDENTITY_ENDPOINT") || has("WEBSITE_INSTANCE_ID");
        Self {
            instance_id: vars.get("WEBSITE_INSTANCE_ID"),
            app_root: board::root(vars),
            identity: IdentitySource::choose(managed, has("AZURE_FEDERATED_TOKEN_FILE")),
            authority: vars.get("AZURE_AUTHORITY_HOST"),
            #[cfg(feature = "test-util")]
            handler_panics: has("HIGHWATER_TEST_PANIC"),
        }
    }

    /// Unique per process start: a restarted instance must not mistake its earlier lease for its own.
    fn owner_id(&self, app: &str) -> String {
        let instance: String =
            self.instance_id.as_deref().unwrap_or("local").chars().take(12).collect();
        format!("{app}/{instance}-{}", Uuid::new_v4().simple())
    }

    fn handler(
        &self,
        app: &str,
        poller: &PollerConfig,
        client: &mut Option<Client>,
    ) -> Result<Arc<dyn Handler>, BuildError> {
        #[cfg(feature = "test-util")]
        if self.handler_panics {
            return Ok(Arc::new(crate::testing::PanickingHandler));
        }
        handler(self, app, (&poller.name, &poller.handler), client)
    }

    /// Builds the stores of state and journals, both with one client.
    fn storage(&self, config: &Config) -> Result<Storage, BuildError> {
        let timeout = state_timeout(config);
        match &config.state {
            StateConfig::File { folder } => Ok(Storage {
                state: Arc::new(FileStore::new(folder, &config.app, Arc::new(SystemClock))),
                journals: Arc::new(FileJournal::new(folder, &config.app)),
            }),
            StateConfig::Blob { access, container, .. } => {
                let service = self.service(access, timeout).map_err(BuildError::State)?;
                let state = BlobStore::new(&service, container, &config.app);
                let journals = BlobJournal::new(&service, container, &config.app);
                let state = Arc::new(state.map_err(BuildError::State)?);
                Ok(Storage {
                    state: match shortest_ttl(config) {
                        Some(ttl) => {
                            Arc::new(DateCheckedStore::new(state, ttl, Arc::new(SystemClock)))
                        }
                        None => state,
                    },
                    journals: Arc::new(journals.map_err(BuildError::State)?),
                })
            }
            StateConfig::Sql { connection, table, journal_table, .. } => {
                let settings = SqlStoreSettings {
                    connection: connection.clone(),
                    table: table.clone(),
                    app: config.app.clone(),
                    request_timeout: timeout,
                };
                let store = SqlStore::new(settings).map_err(BuildError::StateTable)?;
                let state = Arc::new(match self.credential(&connection.auth)? {
                    Some(credential) => store.with_credential(credential),
                    None => store,
                });
                let journals = SqlJournal::alongside(Arc::clone(&state), journal_table);
                let journals = Arc::new(journals.map_err(BuildError::JournalTable)?);
                Ok(Storage { state, journals })
            }
        }
    }

    fn service(
        &self,
        access: &StorageConnection,
        timeout: Duration,
    ) -> Result<BlobService, ConnectError> {
        BlobService::connect(access, &self.service_options(timeout))
    }

    fn service_options(&self, timeout: Duration) -> ServiceOptions {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        ServiceOptions { timeout, clock, identity: self.identity }
    }

    fn source(&self, poller: &PollerConfig) -> Result<Arc<dyn Source>, BuildError> {
        Ok(Arc::new(self.mssql(poller)?))
    }

    fn mssql(&self, poller: &PollerConfig) -> Result<Mssql, BuildError> {
        let wrong = |source| BuildError::Source { poller: poller.name.clone(), source };
        let retry = RetryTerms::within(poller.limits.tick_time_max);
        let mssql = Mssql::new(poller.source.clone()).map_err(wrong)?.with_retries(retry);
        Ok(match self.credential(&poller.source.connection.auth)? {
            Some(credential) => mssql.with_credential(credential),
            None => mssql,
        })
    }

    fn credential(&self, auth: &SqlAuth) -> Result<Option<Arc<dyn TokenCredential>>, BuildError> {
        let (identity, client_id) = match auth {
            SqlAuth::Password { .. } => return Ok(None),
            SqlAuth::ServicePrincipal { tenant, client_id, secret } => {
                let credential = crate::azure::service_principal(tenant, client_id, secret);
                return credential.map(Some).map_err(BuildError::Identity);
            }
            SqlAuth::EntraUser { user, password, tenant } => {
                let credential = crate::azure::user_password(User {
                    name: user.clone(),
                    password: password.clone(),
                    tenant: tenant.clone(),
                    authority: self.authority.clone(),
                });
                return credential.map(Some).map_err(BuildError::Identity);
            }
            SqlAuth::ManagedIdentity { client_id } => (IdentitySource::ManagedIdentity, client_id),
            SqlAuth::WorkloadIdentity { client_id } => {
                (IdentitySource::WorkloadIdentity, client_id)
            }
            SqlAuth::Default { client_id } => (self.identity, client_id),
        };
        crate::azure::credential(identity, client_id.as_deref())
            .map(Some)
            .map_err(BuildError::Identity)
    }

    /// Folders with a `function.json`: directly below the root in a deployment, in `function-definitions` in the
    /// repository.
    fn function_folders(&self) -> Vec<String> {
        let deployed = folders_with_function(&self.app_root);
        if deployed.is_empty() {
            folders_with_function(&self.app_root.join("function-definitions"))
        } else {
            deployed
        }
    }
}

fn folders_with_function(root: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let mut folders: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("function.json").is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blob_store_is_wrapped_in_a_date_check() {
        let poller = |name: &str| format!("HIGHWATER__POLLERS__A__{name}");
        let vars: BTreeMap<String, String> = [
            ("HIGHWATER__APP".to_owned(), "shop"),
            ("AzureWebJobsStorage".to_owned(), "UseDevelopmentStorage=true"),
            ("Db".to_owned(), "Server=localhost;User ID=a;Password=b;Encrypt=false"),
            (poller("SOURCE__CONNECTION"), "Db"),
            (poller("SOURCE__TABLE"), "dbo.t"),
            (poller("SOURCE__MODE"), "rowversion"),
            (poller("SOURCE__CURSOR"), "rv"),
            (poller("SOURCE__KEY"), "id"),
            (poller("HANDLER__KIND"), "stdout"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into();
        let app = App::build(&vars).unwrap();
        let state = format!("{:?}", app.state);
        let at = |name: &str| state.find(name).unwrap_or_else(|| panic!("no {name} in {state}"));
        assert!(at("DateCheckedStore") < at("BlobStore"), "{state}");
    }

    #[test]
    fn two_starts_of_one_instance_have_different_owner_ids() {
        let mut vars = BTreeMap::new();
        vars.insert("WEBSITE_INSTANCE_ID".to_owned(), "0123456789abcdef".to_owned());
        let environment = Environment::of(&vars);
        let (first, second) = (environment.owner_id("shop"), environment.owner_id("shop"));
        assert!(first.starts_with("shop/0123456789ab-"), "{first}");
        assert_ne!(first, second, "otherwise each would mistake the other's lease for its own");
    }
}
