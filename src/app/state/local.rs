//! Local files and the mapping of their errors, shared by the file stores.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::StoreError;

/// Longest name. File systems allow 255 bytes; temporary files and locks need some of them.
const NAME_BYTES_MAX: usize = 200;

/// Mode of new files: they contain keys of rows and quarantined rows, so only the user of this process may read them.
pub(crate) const FILE_MODE: u32 = 0o600;
/// Mode of new folders.
const FOLDER_MODE: u32 = 0o700;

/// Creates a folder and its parents, accessible only to the user of this process regardless of the umask. Existing
/// folders keep their mode, which may be intended.
///
/// # Errors
///
/// Those of the file system.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)
}

/// Returns the path of `name` in `folder`.
///
/// # Errors
///
/// [`StoreError::Refused`] for a name that is not a plain file name.
pub(crate) fn path_in(folder: &Path, name: &str) -> Result<PathBuf, StoreError> {
    let plain = !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(['/', '\\', '\0'])
        && name.len() <= NAME_BYTES_MAX;
    if plain {
        return Ok(folder.join(name));
    }
    let reason = "the name is not a plain file name; use letters, digits and `_`".to_owned();
    Err(StoreError::Refused { key: name.to_owned(), reason })
}

/// Locks the file `path` against other writers until the returned lock is dropped. The operating system releases
/// it when the process exits.
///
/// # Errors
///
/// Those of the file system.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).truncate(true).mode(FILE_MODE);
    let lock = lock.open(path.with_extension("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Returns the names of the files in `folder`, unordered; none if it does not exist. Names that are not UTF-8 are
/// ignored.
///
/// # Errors
///
/// [`StoreError::Refused`], with `key` in its text.
pub(crate) fn names_in(folder: &Path, key: &str) -> Result<Vec<String>, StoreError> {
    let names = || -> io::Result<Vec<String>> {
        let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    };
    match names() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names.map_err(|error| StoreError::Refused {
            key: key.to_owned(),
            reason: format!("list folder: {error}; check the folder's rights"),
        }),
    }
}

/// Converts a failure of the file system: nothing was written, and a retry will not help.
pub(crate) fn refused(key: &impl ToString, verb: &str, error: &io::Error) -> StoreError {
    let reason = format!("{verb} file: {error}; check the folder's rights and free space");
    StoreError::Refused { key: key.to_string(), reason }
}

/// Runs `work` on a thread that may block.
///
/// # Errors
///
/// Those of `work`; [`StoreError::Unknown`] if it panicked.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(StoreError::Unknown { key: String::new(), reason: error.to_string() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_accepted() {
        let folder = Path::new("folder");
        assert_eq!(path_in(folder, "a b.json").unwrap(), folder.join("a b.json"));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", ".hidden", "../a", "a/b", "a\\b", "a\0", &long] {
            let error = path_in(folder, name).unwrap_err().to_string();
            assert!(error.contains("not a plain file name"), "{error}");
        }
    }

    #[test]
    fn a_missing_folder_is_empty_and_a_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(names_in(&root.path().join("none"), "k").unwrap(), Vec::<String>::new());
        fs::write(root.path().join("file"), "").unwrap();
        assert_eq!(names_in(root.path(), "k").unwrap(), ["file"]);
        let error = names_in(&root.path().join("file"), "k").unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    }
}
