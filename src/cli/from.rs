//! `--from`: the folder with host.json and functions, which is where the settings are unless it is named.

use std::path::{Path, PathBuf};

use clap::Args;

use highwater::project::HOST_FILE;

/// Where `host.json` and functions are.
#[derive(Debug, Args)]
pub(super) struct FromOption {
    /// Folder with host.json and function-definitions; that of `--settings` if host.json is there, else the current one.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

impl FromOption {
    /// Returns the folder, where `settings` is the file of `--settings`.
    pub(super) fn folder(&self, settings: Option<&Path>) -> PathBuf {
        let named = self.from.clone().or_else(|| beside(settings));
        named.unwrap_or_else(|| PathBuf::from("."))
    }
}

/// Returns the folder of a file with settings, if that is one that `init` or a package lays out.
pub(super) fn beside(settings: Option<&Path>) -> Option<PathBuf> {
    let folder = settings?.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    folder.join(HOST_FILE).is_file().then(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_lie_beside_their_functions_unless_another_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("local.settings.json");
        let unnamed = FromOption { from: None };
        assert_eq!(unnamed.folder(None), Path::new("."));
        assert_eq!(unnamed.folder(Some(&settings)), Path::new("."));
        std::fs::write(folder.path().join(HOST_FILE), "{}").unwrap();
        assert_eq!(unnamed.folder(Some(&settings)), folder.path());
        let named = FromOption { from: Some("elsewhere".into()) };
        assert_eq!(named.folder(Some(&settings)), Path::new("elsewhere"));
        // A bare name is of the current folder, which has them here.
        assert_eq!(unnamed.folder(Some(Path::new("local.settings.json"))), Path::new("."));
    }
}
