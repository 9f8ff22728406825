//! Builds a function app's package: `host.json`, one folder per function at the root, the program, licences.
//!
//! The Functions host looks for functions only directly below its root, so the repository's
//! `function-definitions` folder cannot be its root. [`Package::of`] collects and checks all entries first.
//! Then they are written as a zip or as a folder.
//!
//! # Design
//!
//! A defective package fails silently after its deployment: the host starts and finds no function, or starts
//! a program that cannot run there. So everything that can be checked in advance is an error here, with a fix.
//! A folder may also have a program for this machine only, because `func start` runs it here;
//! [`Package::unfit`] reports that.

mod archive;
mod elf;
mod licences;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use self::licences::licences;
use highwater::config::{Config, StateConfig, Vars, function_segment, poller_name_of_function};
use highwater::page;
use highwater::partition::poller_of_partition;
use highwater::project::{
    self, DEFINITIONS, Function, HANDLER, HOST_FILE, Place, Project, ProjectError, at,
};
use highwater::recovery;

/// A file with secrets of one machine, which must not be in a package.
const LOCAL_SETTINGS: &str = "local.settings.json";

/// Deepest level of the search for misplaced files.
const DEPTH_MAX: usize = 8;

/// Inputs of a package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackageInputs<'a> {
    /// Folder with `host.json` and `function-definitions`.
    pub(crate) folder: &'a Path,
    /// The program.
    pub(crate) binary: &'a Path,
    /// The app's settings, if known.
    pub(crate) config: Option<&'a Config>,
    /// Whether the settings were passed for this app. Those of this machine's environment may not be the app's, so
    /// what the host would reject in them is only a note.
    pub(crate) has_settings: bool,
}

/// Everything that goes into a package, checked.
#[derive(Debug)]
pub(crate) struct Package {
    /// Sorted by path.
    entries: Vec<Entry>,
    /// Names of the functions.
    pub(crate) functions: Vec<String>,
    /// Hints that are not errors.
    pub(crate) notes: Vec<String>,
    /// Why Azure Functions could not run the program, and what to do; `None` if it can.
    pub(crate) unfit: Option<String>,
}

#[derive(Debug)]
struct Entry {
    path: String,
    mode: u32,
    bytes: Vec<u8>,
}

impl Entry {
    fn new(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o644, bytes: bytes.into() }
    }
}

impl Package {
    /// Collects and checks the contents of a package; `vars` has the settings that override files, and the schedules
    /// that the functions name.
    ///
    /// # Errors
    ///
    /// [`ProjectError`] if a file is missing or unreadable, would be rejected by the host, or would never run.
    pub(crate) fn of(
        ingredients: PackageInputs<'_>,
        vars: &dyn Vars,
    ) -> Result<Self, ProjectError> {
        let PackageInputs { folder, binary, config, has_settings } = ingredients;
        let definitions = folder.join(DEFINITIONS);
        reject_misplaced_files(&definitions, 0)?;
        let no_settings = BTreeMap::new();
        let of_app: &dyn Vars = if has_settings { vars } else { &no_settings };
        let project = Project::read(folder, &definitions, of_app);
        let has_none = config.is_some() && !definitions.is_dir();
        let errors = project.errors(|place| !(has_none && *place == Place::Functions));
        if !errors.is_empty() {
            return Err(ProjectError::Several(errors.join("\n")));
        }
        let here = Project::read(folder, &definitions, vars).problems.into_iter();
        let only_here = here.filter(|one| one.is_error && !project.problems.contains(one));
        let harmless = project.problems.iter().filter(|one| !one.is_error || one.turns_off);
        let notes = harmless.cloned().chain(only_here).map(|one| one.to_string()).collect();
        let functions = project.functions;
        let mut package = Self {
            entries: vec![Entry::new(HOST_FILE, read(&folder.join(HOST_FILE))?)],
            functions: Vec::new(),
            notes,
            unfit: None,
        };
        package.entries.extend(licences().map(|(name, text)| Entry::new(name, text)));
        for function in &functions {
            package.note_schedule(function, config.is_some(), vars)?;
            package.add_function(&function.name, &function.definition)?;
        }
        if let Some(config) = config {
            has_pollers(&functions, config)?;
            package.notes.extend(local_state_note(&config.state));
            package.generate(&functions, config, vars)?;
        }
        package.add_program(binary)?;
        package.entries.sort_by(|one, other| one.path.cmp(&other.path));
        package.functions.sort();
        Ok(package)
    }

    /// Writes the package as a zip that is ready for deployment, and returns its length.
    ///
    /// The same content gives the same bytes. An existing zip is replaced once the new one is complete.
    ///
    /// # Errors
    ///
    /// [`ProjectError`] if Azure Functions could not run the program, or the file cannot be written.
    pub(crate) fn zip(&self, to: &Path) -> Result<u64, ProjectError> {
        if let Some(reason) = &self.unfit {
            return Err(wrong(to, format!("not written: {reason}")));
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(at("create", folder))?;
        }
        let mut unfinished = to.as_os_str().to_owned();
        unfinished.push(".tmp");
        let unfinished = PathBuf::from(unfinished);
        archive::write(&unfinished, &self.entries).map_err(at("write", &unfinished))?;
        fs::rename(&unfinished, to).map_err(at("replace", to))?;
        fs::metadata(to).map(|file| file.len()).map_err(at("read", to))
    }

    /// Stages the package in a folder, for `func start --script-root`.
    ///
    /// # Errors
    ///
    /// [`ProjectError`] if the folder has another function, or a file cannot be written.
    pub(crate) fn stage(&self, to: &Path) -> Result<(), ProjectError> {
        self.reject_foreign_functions(to)?;
        for entry in &self.entries {
            let path = to.join(&entry.path);
            let folder = path.parent().unwrap_or(to);
            fs::create_dir_all(folder).map_err(at("create", folder))?;
            // A running program cannot be overwritten in place.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(at("replace", &path)(error));
                }
                Ok(()) | Err(_) => {}
            }
            fs::write(&path, &entry.bytes).map_err(at("write", &path))?;
            let mode = fs::Permissions::from_mode(entry.mode);
            fs::set_permissions(&path, mode).map_err(at("set the mode of", &path))?;
        }
        Ok(())
    }

    /// Rejects functions left by an earlier staging, because the host would start them.
    fn reject_foreign_functions(&self, to: &Path) -> Result<(), ProjectError> {
        for path in children(to)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_ours = self.functions.iter().any(|function| *function == name);
            if !is_ours && path.join("function.json").is_file() {
                let reason = "is not a function of this package, but would run: remove the folder";
                return Err(wrong(&path, reason));
            }
        }
        Ok(())
    }

    fn add_function(&mut self, name: &str, definition: &Path) -> Result<(), ProjectError> {
        let bytes = read(definition)?;
        self.add_definition(name, definition, bytes)
    }

    fn add_definition(
        &mut self,
        name: &str,
        from: &Path,
        bytes: Vec<u8>,
    ) -> Result<(), ProjectError> {
        if name.eq_ignore_ascii_case(HANDLER) {
            let reason = format!("`{HANDLER}` is the name of the program: rename the folder");
            return Err(wrong(from, reason));
        }
        if let Some(other) = self.functions.iter().find(|other| name.eq_ignore_ascii_case(other)) {
            let reason = format!(
                "the host cannot distinguish this function from `{other}`: rename a folder"
            );
            return Err(wrong(from, reason));
        }
        self.functions.push(name.to_owned());
        self.entries.push(Entry::new(format!("{name}/function.json"), bytes));
        Ok(())
    }

    /// A schedule that is set must be valid; one that is not set may still be set in the app.
    fn note_schedule(
        &mut self,
        function: &Function,
        is_configured: bool,
        vars: &dyn Vars,
    ) -> Result<(), ProjectError> {
        use project::FunctionScheduleError::{NotSet, Wrong};
        match function.schedule(vars) {
            Ok(_) => Ok(()),
            Err(error @ Wrong { .. }) => {
                let found = error.source().map(ToString::to_string).unwrap_or_default();
                Err(wrong(&function.definition, format!("{found}; {}", error.fix())))
            }
            Err(NotSet { setting, function }) => {
                if is_configured {
                    let note =
                        format!("`{function}` runs once the app has the setting `{setting}`");
                    self.notes.push(note);
                }
                Ok(())
            }
        }
    }

    /// Generates a function for each poller or partition that no function runs.
    fn generate(
        &mut self,
        functions: &[Function],
        config: &Config,
        vars: &dyn Vars,
    ) -> Result<(), ProjectError> {
        let folders = functions.iter().map(|function| function.name.as_str());
        let by_function = config.pollers_by_function(folders);
        let runs = |name: &str| by_function.values().flatten().any(|poller| poller.name == name);
        for needed in config.required_functions().into_iter().filter(|needed| !runs(needed.poller))
        {
            let path = PathBuf::from(&needed.folder).join("function.json");
            let schedule = format!("%{}_SCHEDULE%", function_segment(needed.parent));
            let bytes = project::timer_definition(&schedule).into_bytes();
            let (name, schedule) = (needed.folder, Some(schedule));
            let function = Function { name, definition: path.clone(), schedule, route: None };
            self.note_schedule(&function, true, vars)?;
            self.add_definition(&function.name, &path, bytes)?;
            self.notes
                .push(format!("`{path}` was generated for its poller", path = path.display()));
        }
        Ok(())
    }

    fn add_program(&mut self, path: &Path) -> Result<(), ProjectError> {
        let bytes = read(path)?;
        self.unfit = elf::judge(&bytes).err().map(|reason| {
            format!(
                "`{}` {reason}; build one with `.ci/deployable`, or use one of a release, and pass \
                 it as `--binary`",
                path.display()
            )
        });
        self.entries.push(Entry { path: HANDLER.to_owned(), mode: 0o755, bytes });
        Ok(())
    }
}

/// Warns that a state in files does not survive a deployment.
fn local_state_note(state: &StateConfig) -> Option<String> {
    let StateConfig::File { folder } = state else { return None };
    Some(format!(
        "the state is in the folder `{}`, which other machines and new instances do not have: before a deployment, set \
         `HIGHWATER__STATE__STORE` to `blob` or `sql`",
        folder.display()
    ))
}

/// Rejects functions without a poller: all their calls would fail.
fn has_pollers(functions: &[Function], config: &Config) -> Result<(), ProjectError> {
    for Function { name, definition, schedule, route: _ } in functions {
        let is_http = [page::FUNCTION, page::HEALTH_FUNCTION].contains(&name.as_str());
        let is_page = is_http && schedule.is_none();
        let is_own = name == recovery::FUNCTION || is_page;
        let is_group = config.groups.contains_key(&function_segment(name));
        if !is_own && !is_group && config.poller_of_function(name).is_none() {
            let requested = poller_name_of_function(name, &config.functions);
            let is_partitioned =
                config.pollers.keys().any(|poller| poller_of_partition(poller) == requested);
            let setting = format!("HIGHWATER__FUNCTIONS__{}__POLLER", function_segment(name));
            let reason = if is_partitioned {
                format!(
                    "`{requested}` is partitioned, and a function runs one partition: remove the folder, and one is generated for each"
                )
            } else {
                format!(
                    "the settings have no poller for this function, so all its calls would fail: set \
                     `{setting}`, or `{setting}S=all`, or remove the folder"
                )
            };
            return Err(wrong(definition, reason));
        }
    }
    Ok(())
}

/// Rejects functions that are too deep to be found, and settings of one machine.
fn reject_misplaced_files(folder: &Path, depth: usize) -> Result<(), ProjectError> {
    for path in children(folder)? {
        let name = path.file_name().unwrap_or_default();
        if name.eq_ignore_ascii_case(LOCAL_SETTINGS) {
            let reason = "has secrets of one machine, and is only read at the root: move it out of \
                          the functions";
            return Err(wrong(&path, reason));
        }
        if depth > 1 && name == "function.json" {
            let reason = format!(
                "the host finds functions directly below `{DEFINITIONS}` only: move \
                          its folder up"
            );
            return Err(wrong(&path, reason));
        }
        if depth < DEPTH_MAX && path.is_dir() {
            reject_misplaced_files(&path, depth + 1)?;
        }
    }
    Ok(())
}

/// Returns the sorted contents of a folder; empty if it does not exist.
fn children(folder: &Path) -> Result<Vec<PathBuf>, ProjectError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at("read", folder)(error)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>().map_err(at("read", folder))?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Vec<u8>, ProjectError> {
    fs::read(path).map_err(at("read", path))
}

fn wrong(path: &Path, reason: impl Into<String>) -> ProjectError {
    ProjectError::Content { path: path.to_owned(), reason: reason.into() }
}

#[cfg(test)]
mod tests;
