//! A poller's first start, and whether it has already run under another application.
//!
//! A document's path has the name of the application in it. Where that changes (the app is renamed, a slot is
//! added, a laptop takes the place of Azure), the poller finds no document and would deliver everything again.

use tracing::{info, warn};

use super::{LoadError, Poller, TickError};
use crate::lease::{Lease, Snapshot};
use crate::state::{StateDocument, StoreError, decode};

impl Poller {
    /// Stops a first start where another application has delivered the same source under the poller's name.
    ///
    /// A store that cannot list, or may not, leaves that open, and so does a document that cannot be read: the
    /// tick goes on with a warning.
    pub(super) async fn refuse_elsewhere(&self) -> Result<(), TickError> {
        let apps = match self.store.apps_with(&self.key).await {
            Ok(apps) => apps.unwrap_or_default(),
            Err(error) => return self.could_not_compare(error),
        };
        let (mut newest, mut others) = (None, 0_usize);
        for app in apps {
            let Some(store) = self.store.of_app(&app) else { continue };
            let stored = match store.load(&self.key).await {
                Ok(loaded) => loaded.stored,
                Err(error) => {
                    self.could_not_compare(error)?;
                    continue;
                }
            };
            let Some(stored) = stored else { continue };
            let found = match decode(&self.name, &stored.bytes) {
                Ok(found) => found,
                Err(error) => {
                    let path = store.location(&self.key);
                    self.warn_not_compared(&format!("`{path}`: {}", error.defect()));
                    continue;
                }
            };
            if !self.is_same_source(&found) {
                continue;
            }
            others += 1;
            let written = stored.last_modified;
            if newest.as_ref().is_none_or(|(_, _, before)| written > *before) {
                newest = Some((app, store.location(&self.key), written));
            }
        }
        // The app that wrote last is the one that delivered last, so its position is furthest.
        let Some((app, there, _)) = newest else { return Ok(()) };
        let here = self.store.location(&self.key);
        let poller = self.name.clone();
        Err(TickError::FirstRunElsewhere { poller, here, app, there, others: others - 1 })
    }

    fn is_same_source(&self, found: &StateDocument) -> bool {
        found.checkpoint.cursor.is_some()
            && found.source_fingerprint == self.source.shape().fingerprint
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
            "Poller `{}` starts for the first time; whether it has run under another app name could not be \
             checked: {reason}",
            self.name
        );
    }

    /// Logs the first grant of a document to a tick. A command that made the document anew, such as `reset`, may
    /// have raised its token; only a grant sets a time.
    pub(super) fn log_first_run(&self, lease: &Lease<'_>, base: &Snapshot) {
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
