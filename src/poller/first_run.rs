//! A poller's first start, and whether it has already run under another application.
//!
//! A document's path has the name of the application in it. Where that changes (the app is renamed, a slot is
//! added, a laptop takes the place of Azure), the poller finds no document and would deliver everything again.

use tracing::{info, warn};

use super::{LoadError, Poller, TickError};
use crate::lease::{Lease, Snapshot};
use crate::state::{FencingToken, StateDocument, StoreError, decode};

impl Poller {
    /// Stops a first start where another application has delivered the same source under the poller's name.
    ///
    /// A store that cannot list, or may not, leaves that open: the tick goes on.
    pub(super) async fn refuse_elsewhere(&self) -> Result<(), TickError> {
        let apps = match self.store.apps_with(&self.key).await {
            Ok(apps) => apps.unwrap_or_default(),
            Err(error) => return self.could_not_compare(error),
        };
        for app in apps {
            let Some(store) = self.store.of_app(&app) else { continue };
            let stored = match store.load(&self.key).await {
                Ok(loaded) => loaded.stored,
                Err(error) => {
                    self.could_not_compare(error)?;
                    continue;
                }
            };
            let document = stored.map(|stored| decode(&self.name, &stored.bytes));
            if document.is_some_and(|found| found.is_ok_and(|found| self.is_same_source(&found))) {
                return Err(TickError::FirstRunElsewhere {
                    poller: self.name.clone(),
                    here: self.store.location(&self.key),
                    there: store.location(&self.key),
                    app,
                });
            }
        }
        Ok(())
    }

    fn is_same_source(&self, found: &StateDocument) -> bool {
        found.checkpoint.cursor.is_some()
            && found.source_fingerprint == self.source.shape().fingerprint
    }

    fn could_not_compare(&self, error: StoreError) -> Result<(), TickError> {
        let StoreError::Refused { reason, .. } = error else {
            return Err(LoadError::Store(error).into());
        };
        warn!(
            event = "first_run_not_compared",
            poller.name = self.name,
            reason,
            "Poller `{}` starts for the first time; whether it has run under another app name could not be \
             checked: {reason}",
            self.name
        );
        Ok(())
    }

    /// Logs the first grant of a document.
    pub(super) fn log_first_run(&self, lease: &Lease<'_>, base: &Snapshot) {
        let is_first = base.document.lease.fencing_token == FencingToken(0);
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
            "Poller `{}` runs for the first time, from {start}, with its state at `{path}`",
            self.name
        );
    }
}
