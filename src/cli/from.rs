//! `--from`: the folder with host.json and functions; by default, the folder of the settings file.

use std::path::{Path, PathBuf};

use clap::Args;

use highwater::builder::board;
use highwater::config::Vars;
use highwater::project::HOST_FILE;

/// Location of `host.json` and functions.
#[derive(Debug, Args)]
pub(super) struct FromOption {
    /// Folder with host.json and function-definitions; by default that of `--settings` if it has host.json, else the
    /// current one.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

impl FromOption {
    /// Returns the folder; `settings` is the file of `--settings`.
    pub(super) fn folder(&self, settings: Option<&Path>) -> PathBuf {
        let named = self.from.clone().or_else(|| project_folder(settings));
        named.unwrap_or_else(|| PathBuf::from("."))
    }
}

/// Returns the folder of a settings file, if it has the layout of `init` or a package.
pub(super) fn project_folder(settings: Option<&Path>) -> Option<PathBuf> {
    let folder = settings?.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    folder.join(HOST_FILE).is_file().then(|| folder.to_owned())
}

/// Returns the folder whose functions the app runs: that of the settings file, or the one that the host names.
pub(super) fn app_folder(settings: Option<&Path>, vars: &dyn Vars) -> PathBuf {
    project_folder(settings).unwrap_or_else(|| board::root(vars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_the_settings_is_used_unless_another_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("local.settings.json");
        let unnamed = FromOption { from: None };
        assert_eq!(unnamed.folder(None), Path::new("."));
        assert_eq!(unnamed.folder(Some(&settings)), Path::new("."));
        std::fs::write(folder.path().join(HOST_FILE), "{}").unwrap();
        assert_eq!(unnamed.folder(Some(&settings)), folder.path());
        let named = FromOption { from: Some("elsewhere".into()) };
        assert_eq!(named.folder(Some(&settings)), Path::new("elsewhere"));
        // A bare file name is in the current folder, which has the functions here.
        assert_eq!(unnamed.folder(Some(Path::new("local.settings.json"))), Path::new("."));
    }
}
