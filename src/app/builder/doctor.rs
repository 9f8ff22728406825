//! The state and source of each poller, built as for a tick, for `highwater doctor` to examine.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{BuildError, Environment};
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, HandlerConfig, PollerConfig, Vars};
use crate::cursor::SourceState;
use crate::doctor::{Finding, sizing, state};
use crate::document::{LoadError, decode};
use crate::policy::OnFailure;
use crate::poller::TickError;
use crate::source::mssql::{Mssql, RowSchema, SourceProposal, StoredPosition};
use crate::source::{FetchError, Source as _};
use crate::state::{LoggedStore, StateKey, StateStore};

/// One poller to examine. Its handler is never called.
#[derive(Debug)]
pub struct ExaminedPoller {
    poller: PollerConfig,
    source: Mssql,
    store: Arc<dyn StateStore>,
    clock: Arc<dyn Clock>,
}

impl ExaminedPoller {
    /// Reads the settings and returns every poller by name; does not connect yet.
    ///
    /// # Errors
    ///
    /// [`BuildError`]; for invalid settings with all mistakes.
    pub fn all(vars: &dyn Vars) -> Result<BTreeMap<String, Self>, BuildError> {
        let config = Config::from_vars(vars)?;
        let environment = Environment::of(vars);
        let store: Arc<dyn StateStore> =
            Arc::new(LoggedStore::new(environment.storage(&config)?.state));
        let mut pollers = BTreeMap::new();
        for (name, poller) in config.pollers {
            let source = environment.mssql(&poller)?;
            let (store, clock) = (Arc::clone(&store), Arc::new(SystemClock));
            pollers.insert(name, Self { poller, source, store, clock });
        }
        Ok(pollers)
    }

    /// Queries the catalogue for ways to read the poller's table: see [`Mssql::propose`].
    ///
    /// # Errors
    ///
    /// [`FetchError`] as of [`Mssql::propose`].
    pub async fn propose(&self, key_is_named: bool) -> Result<SourceProposal, FetchError> {
        self.source.propose(key_is_named).await
    }

    /// Returns the handler that is never called.
    pub fn handler(&self) -> &HandlerConfig {
        &self.poller.handler
    }

    /// Queries the catalog for the schema of the poller's rows: see [`Mssql::row_schema`].
    ///
    /// # Errors
    ///
    /// [`TickError`] as of a tick that reads the table; the state is read only if mode `auto` depends on it.
    pub async fn row_schema(&self) -> Result<RowSchema, TickError> {
        if !self.source.is_decided() {
            let name = &self.poller.name;
            let key = StateKey::Document(name.clone());
            let loaded = self.store.load(&key).await.map_err(LoadError::from)?;
            let document = loaded.stored.map(|stored| decode(name, &stored.bytes)).transpose();
            let document = document.map_err(LoadError::from)?;
            let fingerprint = document.as_ref().map(|document| &document.source_fingerprint);
            self.source.open(fingerprint).await.map_err(TickError::Fetch)?;
        }
        self.source.row_schema().await.map_err(TickError::Fetch)
    }

    /// Examines the poller: its state first, since that has the position to read the source from.
    pub async fn examine(&self) -> Vec<Finding> {
        let expected = state::Expected {
            poller: &self.poller.name,
            start_now: self.poller.start_now,
            on_missing_state: self.poller.on_missing_state,
            parks: self.poller.policy.on_failure == OnFailure::Park,
        };
        let seen = state::examine(&*self.store, expected, &*self.clock).await;
        let document = seen.document.as_ref();
        let nothing = SourceState::new();
        let standing = StoredPosition {
            fingerprint: document.map(|document| &document.source_fingerprint),
            after: document.and_then(|document| document.checkpoint.cursor.as_ref()),
            state: document.map_or(&nothing, |document| &document.source_state),
        };
        let of_source = Box::pin(self.source.examine(standing, &*self.clock)).await;
        let mut findings = seen.findings;
        findings.extend(document.map(|document| sizing::judge(document, self.poller.lease.ttl)));
        // With mode `auto`, the mode is known only now.
        if let Some(document) = document.filter(|_| self.source.is_decided()) {
            let shape = self.source.shape();
            findings.push(state::fingerprint(document, shape));
        }
        if seen.is_first_start {
            let shape = self.source.is_decided().then(|| self.source.shape());
            let fingerprint = shape.map(|shape| &shape.fingerprint);
            findings.extend(state::other_apps(&*self.store, &self.poller.name, fingerprint).await);
        }
        findings.extend(of_source);
        findings
    }
}
