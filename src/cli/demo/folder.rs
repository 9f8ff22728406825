//! A folder for the state and the database, which goes away with its handle.

use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// A new folder of this demo alone.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes one where the system keeps temporary files.
    pub(super) fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("highwater-demo-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            super::progress::say(&format!("could not remove `{}`: {error}", self.0.display()));
        }
    }
}
