//! Builds the reader for the status page and `highwater status`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{App, Function};
use crate::config::{Vars, function_segment};
use crate::poller::Poller;
use crate::project::{HOST_FILE, Project, functions_folder};
use crate::schedule::Schedule;
use crate::status::StatusReader;

impl App {
    /// Returns the status reader. The functions below `root` provide the schedules.
    ///
    /// A function that never runs has no next tick. `highwater validate` reports the reason.
    pub fn board(&self, vars: &dyn Vars, root: &Path) -> StatusReader {
        let project = Project::read(root, &functions_folder(root), vars);
        let mut schedules: BTreeMap<String, Vec<Schedule>> = BTreeMap::new();
        for function in project.functions.iter().filter(|it| !project.never_runs(&it.name)) {
            if let Ok(Some(schedule)) = function.schedule(vars) {
                for poller in self.pollers_of_function(&function.name) {
                    schedules.entry(poller.name().to_owned()).or_default().push(schedule.clone());
                }
            }
        }
        StatusReader {
            app: self.name.clone(),
            state: self.state.clone(),
            pollers: self.pollers.clone(),
            disabled: if root.join(HOST_FILE).is_file() {
                self.disabled(&project)
            } else {
                // Settings on a laptop come without functions, so it is unknown which pollers are disabled.
                BTreeMap::new()
            },
            schedules,
        }
    }

    /// Returns the pollers that no function runs, with the reason.
    fn disabled(&self, project: &Project) -> BTreeMap<String, String> {
        let (mut runs, mut disabled) = (BTreeSet::new(), BTreeMap::new());
        for folder in project.folders() {
            let pollers = self.pollers_of_function(folder);
            match project.why_it_never_runs(folder) {
                None => runs.extend(pollers.iter().map(|poller| poller.name().to_owned())),
                Some(why) => disabled
                    .extend(pollers.iter().map(|poller| (poller.name().to_owned(), why.clone()))),
            }
        }
        for name in self.pollers.keys() {
            disabled.entry(name.clone()).or_insert_with(|| NO_FUNCTION.to_owned());
        }
        disabled.retain(|name, _| !runs.contains(name));
        disabled
    }

    fn pollers_of_function(&self, folder: &str) -> Vec<Arc<Poller>> {
        let segment = function_segment(folder);
        // A group without a folder here has the name from the settings.
        let group = self.groups.iter().find(|(name, _)| function_segment(name) == segment);
        if let Some((_, group)) = group {
            return group.pollers().to_vec();
        }
        match self.function(folder) {
            Some(Function::Tick(poller)) => vec![poller],
            Some(Function::Group(group)) => group.pollers().to_vec(),
            Some(Function::Recovery(_) | Function::Status(_) | Function::Health(_)) | None => {
                Vec::new()
            }
        }
    }
}

/// Reason for a poller without a function.
const NO_FUNCTION: &str = "no function runs it; deploy the folder of its function, or add it to \
    `HIGHWATER__FUNCTIONS__<FUNCTION>__POLLERS` of another function";

/// Set by the Functions host: the folder of the app.
pub(crate) const APP_ROOT: &str = "FUNCTIONS_APP_ROOT_PATH";

/// Returns the app's folder as set by the Functions host, else the working folder.
pub fn root(vars: &dyn Vars) -> PathBuf {
    vars.get(APP_ROOT).map_or_else(|| ".".into(), PathBuf::from)
}
