//! What the status page and `highwater status` read from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::App;
use crate::config::{Vars, poller_name_of_function};
use crate::project::{Project, functions_folder};
use crate::schedule::Schedule;
use crate::status::Board;

impl App {
    /// Returns what tells how the pollers stand; the functions below `root` say when they run.
    ///
    /// A function that never runs has no next tick. `highwater validate` says why it does not run.
    pub fn board(&self, vars: &dyn Vars, root: &Path) -> Board {
        let project = Project::read(root, &functions_folder(root), vars);
        let mut schedules: BTreeMap<String, Vec<Schedule>> = BTreeMap::new();
        let runs = project.functions.iter().filter(|function| !project.never_runs(&function.name));
        for function in runs {
            let poller = poller_name_of_function(&function.name, &self.names);
            if let (true, Ok(Some(schedule))) =
                (self.pollers.contains_key(&poller), function.schedule(vars))
            {
                schedules.entry(poller).or_default().push(schedule);
            }
        }
        Board {
            app: self.name.clone(),
            state: self.state.clone(),
            pollers: self.pollers.clone(),
            schedules,
        }
    }
}

/// The variable by which the Functions host names the folder of the app.
pub(crate) const APP_ROOT: &str = "FUNCTIONS_APP_ROOT_PATH";

/// Returns the folder that the Functions host says the app lies in; else the working folder.
pub fn root(vars: &dyn Vars) -> PathBuf {
    vars.get(APP_ROOT).map_or_else(|| ".".into(), PathBuf::from)
}
