//! Journals in local files: for one machine, such as a laptop or a container with a volume.
//!
//! A part is one file, flushed to disk by each append. A lock file serializes appends; the operating system
//! releases the lock when its holder exits. An incomplete line after a crash or a full disk was never confirmed:
//! it is not read, and the next append overwrites it. New files and folders are accessible only to the user of
//! the process (0600 and 0700); existing ones keep their mode.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::length;
use super::{Appended, JournalStore, Part};
use crate::state::StoreError;
use crate::state::local::{
    FILE_MODE, lock, make_folder, names_in, on_blocking_thread, path_in, refused,
};

/// Stores journals in files of one folder; safe for several processes on one machine.
#[derive(Clone, Debug)]
pub struct FileJournal {
    folder: PathBuf,
}

impl FileJournal {
    /// Stores the journals of the application `app` in `root/journal/app`.
    ///
    /// The first append creates the folder.
    pub fn new(root: &Path, app: &str) -> Self {
        Self { folder: root.join("journal").join(app) }
    }

    fn poller_folder(&self, poller: &str) -> Result<PathBuf, StoreError> {
        path_in(&self.folder, poller)
    }

    fn path(&self, part: &Part) -> Result<PathBuf, StoreError> {
        Ok(self.poller_folder(&part.poller)?.join(part.file_name()))
    }

    fn append_blocking(
        &self,
        part: &Part,
        position: u64,
        bytes: &[u8],
    ) -> Result<Appended, StoreError> {
        let path = self.path(part)?;
        let failed = |error: io::Error| refused(part, "append to", &error);
        make_folder(&self.poller_folder(&part.poller)?).map_err(failed)?;
        let _lock = lock(&path).map_err(failed)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).append(true).create(true).mode(FILE_MODE);
        let mut file = options.open(&path).map_err(failed)?;
        let complete = complete_length(&mut file).map_err(failed)?;
        if complete != position {
            return Err(StoreError::Conflict { key: part.to_string() });
        }
        let appended = file
            .set_len(complete)
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| file.sync_all());
        if let Err(error) = appended {
            // Undo the append. If that fails too, it is unknown how much was written.
            return Err(match file.set_len(complete) {
                Ok(()) => failed(error),
                Err(_) => StoreError::Unknown { key: part.to_string(), reason: error.to_string() },
            });
        }
        Ok(Appended::UpTo(complete + length(bytes)))
    }

    fn length_blocking(&self, part: &Part) -> Result<u64, StoreError> {
        match File::open(self.path(part)?).and_then(|mut file| complete_length(&mut file)) {
            Ok(length) => Ok(length),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(refused(part, "inspect", &error)),
        }
    }

    fn read_blocking(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        let path = self.path(part)?;
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(path)?;
            let complete = complete_length(&mut file)?;
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(position))?;
            file.take(complete.saturating_sub(position)).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(refused(part, "read", &error)),
        }
    }

    fn list_blocking(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        let folder = self.poller_folder(poller)?;
        let names = names_in(&folder, poller)?;
        let mut parts: Vec<_> = names.iter().filter_map(|name| Part::parse(poller, name)).collect();
        parts.sort();
        Ok(parts)
    }

    fn remove_blocking(&self, part: &Part, wanted: Option<u64>) -> Result<(), StoreError> {
        let path = self.path(part)?;
        let conflict = || StoreError::Conflict { key: part.to_string() };
        if !path.exists() {
            return if wanted.is_some() { Err(conflict()) } else { Ok(()) };
        }
        let _lock = lock(&path).map_err(|error| refused(part, "remove", &error))?;
        if wanted.is_some() && wanted != Some(self.length_blocking(part)?) {
            return Err(conflict());
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(refused(part, "remove", &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Returns the length of the complete lines in `file`.
fn complete_length(file: &mut File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut chunk = [0; 4096];
    while end > 0 {
        let start = end.saturating_sub(4096);
        let size = usize::try_from(end - start).unwrap_or_default();
        let part = chunk.get_mut(..size).unwrap_or_default();
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(last) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + length(part.get(..=last).unwrap_or_default()));
        }
        end = start;
    }
    Ok(0)
}

#[async_trait]
impl JournalStore for FileJournal {
    async fn append(
        &self,
        part: &Part,
        position: u64,
        bytes: Vec<u8>,
    ) -> Result<Appended, StoreError> {
        let (store, part) = (self.clone(), part.clone());
        on_blocking_thread(move || store.append_blocking(&part, position, &bytes)).await
    }

    async fn length(&self, part: &Part) -> Result<u64, StoreError> {
        let (store, part) = (self.clone(), part.clone());
        on_blocking_thread(move || store.length_blocking(&part)).await
    }

    async fn read(&self, part: &Part, position: u64) -> Result<Vec<u8>, StoreError> {
        let (store, part) = (self.clone(), part.clone());
        on_blocking_thread(move || store.read_blocking(&part, position)).await
    }

    async fn list(&self, poller: &str) -> Result<Vec<Part>, StoreError> {
        let (store, poller) = (self.clone(), poller.to_owned());
        on_blocking_thread(move || store.list_blocking(&poller)).await
    }

    async fn remove(&self, part: &Part, length: Option<u64>) -> Result<(), StoreError> {
        let (store, part) = (self.clone(), part.clone());
        on_blocking_thread(move || store.remove_blocking(&part, length)).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use time::macros::date;

    use super::*;

    #[tokio::test]
    async fn it_conforms() {
        let folders = Mutex::new(Vec::new());
        crate::journal::conformance::run(&|| {
            let folder = tempfile::tempdir().unwrap();
            let store = FileJournal::new(folder.path(), "app");
            folders.lock().unwrap().push(folder);
            async move { store }
        })
        .await;
    }

    #[tokio::test]
    async fn an_incomplete_line_after_a_crash_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileJournal::new(folder.path(), "app");
        let part = Part::of_day("orders", date!(2026 - 04 - 07));
        for cut in [1, 4095, 4096, 4097, 9000] {
            store.append(&part, 0, b"first\n".to_vec()).await.unwrap();
            let path = store.path(&part).unwrap();
            let torn = [b"first\n".to_vec(), vec![b'x'; cut]].concat();
            fs::write(&path, torn).unwrap();
            assert_eq!(store.length(&part).await.unwrap(), 6);
            assert_eq!(store.read(&part, 0).await.unwrap(), b"first\n");
            assert_eq!(store.read(&part, 7).await.unwrap(), b"");
            let length = store.append(&part, 6, b"next\n".to_vec()).await.unwrap();
            assert_eq!(length, Appended::UpTo(11));
            assert_eq!(fs::read(&path).unwrap(), b"first\nnext\n");
            store.remove(&part, None).await.unwrap();
        }
    }

    /// Runs in the child process of the next test; does nothing by itself.
    #[tokio::test]
    async fn an_append_of_a_child_process() {
        let vars = crate::config::ProcessVars;
        let Some(root) = crate::config::Vars::get(&vars, "FILE_JOURNAL_ROOT") else { return };
        let part = Part::of_day("orders", date!(2026 - 04 - 07));
        let store = FileJournal::new(Path::new(&root), "app");
        store.append(&part, 0, b"line\n".to_vec()).await.unwrap();
    }

    #[test]
    fn only_the_user_may_read_a_journal_under_any_umask() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let ended = std::process::Command::new("sh")
            .args(["-c", "umask 0; exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg("journal::file::tests::an_append_of_a_child_process")
            .env("FILE_JOURNAL_ROOT", root.path())
            .stdout(std::process::Stdio::null())
            .status();
        assert!(ended.unwrap().success());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let part = Part::of_day("orders", date!(2026 - 04 - 07));
        let path = FileJournal::new(root.path(), "app").path(&part).unwrap();
        assert_eq!((mode(&path), mode(&path.with_extension("lock"))), (0o600, 0o600));
        for made in path.ancestors().skip(1).take_while(|made| *made != root.path()) {
            assert_eq!(mode(made), 0o700, "{}", made.display());
        }
    }

    #[tokio::test]
    async fn an_append_error_names_the_part() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("journal"), "").unwrap();
        let store = FileJournal::new(folder.path(), "app");
        let part = Part::of_day("orders", date!(2026 - 04 - 07));
        let error = store.append(&part, 0, b"x\n".to_vec()).await.unwrap_err().to_string();
        assert!(error.contains("orders/2026-04-07.0000.ndjson"), "{error}");
    }
}
