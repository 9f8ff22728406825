//! Sources of settings; the only file that reads the environment.

use std::collections::BTreeMap;
use std::env::VarError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::settings::STATE_FOLDER;

/// A source of named texts.
pub trait Vars {
    /// Returns the value of `name`.
    fn get(&self, name: &str) -> Option<String>;

    /// Returns every name that is set, in any order.
    fn names(&self) -> Vec<String>;
}

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessVars;

impl Vars for ProcessVars {
    fn get(&self, name: &str) -> Option<String> {
        #[expect(clippy::disallowed_methods, reason = "the only place that reads the environment")]
        match std::env::var(name) {
            Ok(value) => Some(value),
            // Return it, so that the parser rejects it; otherwise it would silently count as not set.
            Err(VarError::NotUnicode(value)) => Some(value.to_string_lossy().into_owned()),
            Err(VarError::NotPresent) => None,
        }
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
    }
}

/// The values of a `local.settings.json`, overridden by the environment, as in Core Tools.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    over: ProcessVars,
    under: BTreeMap<String, String>,
}

/// A settings file cannot be read.
#[derive(Debug, Error)]
pub enum LocalSettingsError {
    /// The file is missing or not readable.
    #[error("read settings from `{path}`")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The content is invalid. It is not shown, since it may contain secrets.
    #[error(
        "`{path}` is not a `local.settings.json`: expected `{{\"Values\":{{\"NAME\":\"text\"}}}}`; see line {line}"
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// Line of the error.
        line: usize,
    },
    /// Core Tools has encrypted it with keys of this machine and user.
    #[error(
        "`{path}` is encrypted: decrypt it with `func settings decrypt`, or set the environment instead"
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LocalSettingsFile {
    #[serde(default)]
    is_encrypted: bool,
    values: BTreeMap<String, String>,
}

impl LocalSettings {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// [`LocalSettingsError`] if it cannot be read, is invalid, or is encrypted.
    pub fn read(path: &Path, over: ProcessVars) -> Result<Self, LocalSettingsError> {
        let path = path.to_owned();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(source) => return Err(LocalSettingsError::File { path, source }),
        };
        match serde_json::from_slice(&text) {
            Ok(LocalSettingsFile { is_encrypted: false, mut values }) => {
                // The host runs the handler in the folder of this file; resolve relative paths in the same way.
                if let (Some(folder), Some(root)) =
                    (values.get_mut(STATE_FOLDER.name), path.parent())
                {
                    *folder = root.join(&*folder).to_string_lossy().into_owned();
                }
                Ok(Self { over, under: values })
            }
            Ok(LocalSettingsFile { is_encrypted: true, .. }) => {
                Err(LocalSettingsError::Encrypted { path })
            }
            Err(error) => Err(LocalSettingsError::Content { path, line: error.line() }),
        }
    }
}

impl Vars for LocalSettings {
    fn get(&self, name: &str) -> Option<String> {
        self.over.get(name).or_else(|| self.under.get(name).cloned())
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.over.names();
        names.extend(self.under.keys().cloned());
        names.sort();
        names.dedup();
        names
    }
}

impl Vars for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        Self::get(self, name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_of_the_environment_are_read() {
        let names = ProcessVars.names();
        assert!(names.iter().any(|name| name == "PATH"));
        assert!(ProcessVars.get("PATH").is_some());
        assert_eq!(ProcessVars.get("HIGHWATER__NOT_SET"), None);
        assert_eq!(ProcessVars.get("no=name"), None);
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local.settings.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            LocalSettings::read(&path, ProcessVars)
        };
        let settings = read(
            r#"{"IsEncrypted":false,"Values":{"HIGHWATER__APP":"shop","PATH":"x"},"Host":{}}"#,
        );
        let settings = settings.unwrap();
        let of_folder = |set: &str| {
            let text = format!(r#"{{"Values":{{"HIGHWATER__STATE__FOLDER":"{set}"}}}}"#);
            read(&text).unwrap().get("HIGHWATER__STATE__FOLDER").unwrap()
        };
        assert_eq!(of_folder("state"), folder.path().join("state").to_str().unwrap());
        assert_eq!(of_folder("/var/state"), "/var/state");
        assert_eq!(settings.get("HIGHWATER__APP").as_deref(), Some("shop"));
        assert_eq!(settings.get("PATH"), ProcessVars.get("PATH"));
        let names = settings.names();
        assert_eq!(names.iter().filter(|name| *name == "PATH").count(), 1);
        assert!(names.contains(&"HIGHWATER__APP".to_owned()));
        for (text, expected) in [
            (r#"{"IsEncrypted":true,"Values":{"A":"x"}}"#, "func settings decrypt"),
            ("{\"Values\":{\n\"A\":\"hunter2\" oops}}", "see line 2"),
            ("{}", "not a `local.settings.json`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
