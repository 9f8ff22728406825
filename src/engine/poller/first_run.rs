//! A poller's first start, and whether it has already run under another application.
//!
//! A document's path contains the name of the application. If that changes (the app is renamed, a slot is added, or a
//! laptop replaces Azure), the poller finds no document and would redeliver everything.

use std::collections::BTreeSet;

use time::OffsetDateTime;
use tracing::{info, warn};

use super::{Poller, TickError};
use crate::document::{LoadError, Snapshot, StateDocument, decode};
use crate::lease::Lease;
use crate::partition::{Partition, poller_of_partition};
use crate::store::{StateKey, StoreError};

/// A document of the same source under another application.
struct OtherAppDocument {
    app: String,
    path: String,
    /// The number of partitions of its poller.
    parts: u16,
    written: OffsetDateTime,
}

impl Poller {
    /// Stops a first start if another application has delivered the same source under the poller's name, with any
    /// number of partitions.
    ///
    /// If the store cannot list, or a document cannot be read, the question stays open: the tick continues with a
    /// warning.
    pub(crate) async fn refuse_elsewhere(&self) -> Result<(), TickError> {
        let (mut newest, mut known): (Option<OtherAppDocument>, _) = (None, BTreeSet::new());
        for name in self.names_elsewhere() {
            let key = StateKey::Document(name.clone());
            let apps = match self.store.apps_with(&key).await {
                Ok(apps) => apps.unwrap_or_default(),
                Err(error) => return self.could_not_compare(error),
            };
            for app in apps {
                let Some(store) = self.store.of_app(&app) else { continue };
                let stored = match store.load(&key).await {
                    Ok(loaded) => loaded.stored,
                    Err(error) => {
                        self.could_not_compare(error)?;
                        continue;
                    }
                };
                let Some(stored) = stored else { continue };
                let path = store.location(&key);
                let found = match decode(&name, &stored.bytes) {
                    Ok(found) => found,
                    Err(error) => {
                        self.warn_not_compared(&format!("`{path}`: {}", error.defect()));
                        continue;
                    }
                };
                if !self.is_same_source(&found) {
                    continue;
                }
                known.insert(app.clone());
                let (parts, written) = (found.partition_count(), stored.last_modified);
                if newest.as_ref().is_none_or(|newest| written > newest.written) {
                    newest = Some(OtherAppDocument { app, path, parts, written });
                }
            }
        }
        // The app that wrote last delivered last, so its position is the furthest.
        let Some(OtherAppDocument { app, path: there, parts: stored, .. }) = newest else {
            return Ok(());
        };
        let here = self.store.location(&self.key);
        let (others, configured) = (known.len().saturating_sub(1), self.partition_count());
        if self.checks_siblings && stored != configured {
            let poller = poller_of_partition(&self.name).to_owned();
            let error = TickError::OtherPartitionCountElsewhere {
                poller,
                here,
                app,
                there,
                others,
                stored,
                configured,
            };
            return Err(error);
        }
        let poller = self.name.clone();
        Err(TickError::FirstRunElsewhere { poller, here, app, there, others })
    }

    /// Returns the names under which another application may have delivered the poller's rows: this name, the
    /// unpartitioned name, and that of a first partition.
    fn names_elsewhere(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::from([self.name.clone()]);
        if self.checks_siblings {
            let parent = poller_of_partition(&self.name);
            names.insert(parent.to_owned());
            names.insert(Partition { index: 0, count: self.partition_count() }.name(parent));
        }
        names
    }

    fn is_same_source(&self, found: &StateDocument) -> bool {
        let shape = self.source.shape();
        let is_same = if !self.checks_siblings || found.partition_count() == self.partition_count()
        {
            found.poller_name == self.name && found.source_fingerprint == shape.fingerprint
        } else {
            found.source_definition.is_same_but_for("partition", &shape.definition)
        };
        is_same && found.checkpoint.cursor.is_some()
    }

    fn could_not_compare(&self, error: StoreError) -> Result<(), TickError> {
        let StoreError::Refused { reason, .. } = error else {
            return Err(LoadError::Store(error).into());
        };
        self.warn_not_compared(&reason);
        Ok(())
    }

    fn warn_not_compared(&self, reason: &str) {
        warn!(
            event = "first_run_not_compared",
            poller.name = self.name,
            reason,
            "Poller `{}` is starting for the first time; could not check whether it has run under another app \
             name: {reason}",
            self.name
        );
    }

    /// Logs the first grant of a document to a tick. A command that recreated the document, such as `reset`, may have
    /// raised its token, but only a grant sets a time.
    pub(crate) fn log_first_run(&self, lease: &Lease<'_>, base: &Snapshot) {
        let StateDocument { lease: before, .. } = &*base.document;
        let is_first = before.acquired_at.is_none() && before.heartbeat_at.is_none();
        if !is_first || self.range_of.is_some() {
            return;
        }
        let path = self.store.location(&self.key);
        let cursor = lease.document().checkpoint.cursor.as_ref();
        let start = cursor.map_or("the beginning", |cursor| cursor.value.as_str());
        info!(
            event = "first_run",
            poller.name = self.name,
            path,
            start,
            "Poller `{}` starts from {start} with a new state document, `{path}`",
            self.name
        );
    }
}
