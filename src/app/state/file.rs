//! State in local files: for one machine, such as a laptop or a container with a volume.
//!
//! The first line of a file is a small JSON header with the tag and the time of the write; the rest is the
//! content. The tag is a counter, because with a hash two writers of equal bytes would both believe that they
//! won.
//!
//! Files are accessible to the user of the process only: folders are created with mode 0700 and files with 0600.
//! Each write replaces the file, so files from older versions get this mode too.
//!
//! A write goes to a temporary file, is flushed to disk, and renamed over the old file, so a crash leaves either
//! the old or the new content. A lock file serializes writers; the operating system releases the lock when its
//! holder exits. The empty lock file stays when its document is removed: removing it while another process waits
//! for it would let two in.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::local::{FILE_MODE, lock, make_folder, names_in, on_blocking_thread, path_in, refused};
use super::{
    ETag, Precondition, ReadResult, StateKey, StateStore, StoreError, StoredValue, WriteResult,
};
use crate::clock::Clock;
use crate::cursor::hex;

/// Stores state in files of one folder; safe for several processes on one machine.
#[derive(Clone, Debug)]
pub struct FileStore {
    folder: PathBuf,
    clock: Arc<dyn Clock>,
    /// Whether a missing folder counts as empty and is created by the first write.
    makes_folder: bool,
}

/// First line of a file.
#[derive(Serialize, Deserialize)]
struct Header {
    tag: u64,
    #[serde(with = "time::serde::rfc3339")]
    last_modified: OffsetDateTime,
}

impl FileStore {
    /// Stores the state of the application `app` in `root/state/app`.
    ///
    /// Only [`StateStore::prepare`] and a write after [`StateStore::making_place`] create `root/state`: if it is
    /// missing, a volume may not be mounted, and an empty folder would look like a first start. The folder of the
    /// application is created by its first write.
    pub fn new(root: &Path, app: &str, clock: Arc<dyn Clock>) -> Self {
        Self { folder: root.join("state").join(app), clock, makes_folder: false }
    }

    /// Returns the file of `key`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] for a name that is not a plain file name.
    pub fn path(&self, key: &StateKey) -> Result<PathBuf, StoreError> {
        path_in(&self.folder, &key.path())
    }

    /// Returns an error text if the folder of all applications is missing.
    fn missing_folder(&self) -> Option<String> {
        let state = self.folder.parent().filter(|state| !self.makes_folder && !state.is_dir())?;
        Some(format!("folder `{}` does not exist: mount its volume", state.display()))
    }

    fn check_folder(&self, key: &StateKey) -> Result<(), StoreError> {
        let Some(missing) = self.missing_folder() else { return Ok(()) };
        // The document of a range belongs to a poller, too.
        let poller = key.poller().split('.').next().unwrap_or_default();
        // The recovery controller has its own document here, but is not a poller.
        let reason = if poller.starts_with("highwater__") {
            format!("{missing}, or for a first start create it by running `init` for a poller")
        } else {
            format!(
                "{missing}; or restore a copy of the state, see `highwater state import --help`; or, for a \
                 first start, create it with `highwater init {poller}`"
            )
        };
        Err(StoreError::Refused { key: key.path(), reason })
    }

    fn load_blocking(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let path = self.path(key)?;
        self.check_folder(key)?;
        let stored = read(&path).map_err(|error| refused(key, "read", &error))?;
        Ok(ReadResult { stored, date: self.clock.now() })
    }

    fn store_blocking(
        &self,
        key: &StateKey,
        bytes: &[u8],
        precondition: &Precondition,
    ) -> Result<WriteResult, StoreError> {
        let path = self.path(key)?;
        let failed = |error: io::Error| refused(key, "write", &error);
        self.check_folder(key)?;
        make_folder(&self.folder).map_err(failed)?;
        let _lock = lock(&path).map_err(failed)?;
        let current = read(&path).map_err(failed)?;
        let holds = match (precondition, &current) {
            (Precondition::Absent, None) => true,
            (Precondition::Matches(etag), Some(stored)) => *etag == stored.etag,
            (Precondition::Absent, Some(_)) | (Precondition::Matches(_), None) => false,
        };
        if !holds {
            return Err(StoreError::Conflict { key: key.path() });
        }
        let before = current.and_then(|stored| stored.etag.0.parse::<u64>().ok()).unwrap_or(0);
        // Never reuse a tag that a removed or foreign file may have had.
        let date = self.clock.now();
        let floor = u64::try_from(date.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
        let header = Header { tag: before.max(floor) + 1, last_modified: date };
        Self::replace(&path, &header, bytes).map_err(failed)?;
        // Flush the folder too, otherwise a power failure could undo the rename. If this fails, the outcome is
        // unknown.
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(|error| {
            StoreError::Unknown { key: key.path(), reason: format!("flush folder: {error}") }
        })?;
        Ok(WriteResult { etag: ETag(header.tag.to_string()), date })
    }

    fn list_blocking(&self) -> Result<Vec<StateKey>, StoreError> {
        if let Some(reason) = self.missing_folder() {
            let reason =
                format!("{reason}, or for a first start create it by running `init` for a poller");
            return Err(StoreError::Refused { key: "state folder".to_owned(), reason });
        }
        let names = names_in(&self.folder, &self.folder.display().to_string())?;
        let mut keys: Vec<_> = names.iter().filter_map(|name| StateKey::parse(name)).collect();
        keys.sort();
        Ok(keys)
    }

    fn apps_blocking(&self, key: &StateKey) -> Result<Vec<String>, StoreError> {
        let (own, path) = (self.folder.file_name(), key.path());
        let Some(state) = self.folder.parent() else { return Ok(Vec::new()) };
        let names = names_in(state, &state.display().to_string())?;
        let has_key = |name: &String| {
            own.is_none_or(|own| own != name.as_str()) && state.join(name).join(&path).is_file()
        };
        let mut apps: Vec<_> = names.into_iter().filter(has_key).collect();
        apps.sort();
        Ok(apps)
    }

    fn remove_blocking(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let failed = |error: io::Error| refused(key, "remove", &error);
        let conflict = || StoreError::Conflict { key: key.path() };
        if !self.folder.exists() {
            return Err(conflict());
        }
        let _lock = lock(&path).map_err(failed)?;
        if read(&path).map_err(failed)?.is_none_or(|stored| stored.etag != *etag) {
            return Err(conflict());
        }
        fs::remove_file(&path).map_err(failed)
    }

    fn replace(path: &Path, header: &Header, bytes: &[u8]) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(FILE_MODE).open(&temporary)?;
        // A file left by a crash of an older version may be readable for others.
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        serde_json::to_writer(&mut file, header)?;
        file.write_all(b"\n")?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    }
}

fn read(path: &Path) -> io::Result<Option<StoredValue>> {
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let modified = fs::metadata(path)?.modified()?;
    Ok(Some(split(content, modified.into())))
}

/// Splits off the header. A file without one was created manually or is damaged.
fn split(content: Vec<u8>, modified: OffsetDateTime) -> StoredValue {
    let end = content.iter().position(|byte| *byte == b'\n').unwrap_or(content.len());
    let (line, rest) = content.split_at(end);
    if let Ok(header) = serde_json::from_slice::<Header>(line) {
        let bytes = rest.strip_prefix(b"\n").unwrap_or(rest).to_vec();
        let etag = ETag(header.tag.to_string());
        return StoredValue { bytes, etag, last_modified: header.last_modified };
    }
    let etag = ETag(format!("foreign-{}", hex(&Sha256::digest(&content))));
    StoredValue { bytes: content, etag, last_modified: modified }
}

#[async_trait]
impl StateStore for FileStore {
    fn grain(&self) -> Duration {
        Duration::ZERO
    }

    async fn prepare(&self) -> Result<(), StoreError> {
        let folder = self.folder.clone();
        on_blocking_thread(move || {
            let failed = |error: io::Error| refused(&folder.display(), "create", &error);
            make_folder(&folder).map_err(failed)
        })
        .await
    }

    async fn load(&self, key: &StateKey) -> Result<ReadResult, StoreError> {
        let (store, key) = (self.clone(), key.clone());
        on_blocking_thread(move || store.load_blocking(&key)).await
    }

    async fn store(
        &self,
        key: &StateKey,
        bytes: Vec<u8>,
        precondition: Precondition,
    ) -> Result<WriteResult, StoreError> {
        let (store, key) = (self.clone(), key.clone());
        on_blocking_thread(move || store.store_blocking(&key, &bytes, &precondition)).await
    }

    async fn list(&self) -> Result<Vec<StateKey>, StoreError> {
        let store = self.clone();
        on_blocking_thread(move || store.list_blocking()).await
    }

    fn location(&self, key: &StateKey) -> String {
        self.folder.join(key.path()).display().to_string()
    }

    async fn apps_with(&self, key: &StateKey) -> Result<Option<Vec<String>>, StoreError> {
        let (store, key) = (self.clone(), key.clone());
        on_blocking_thread(move || store.apps_blocking(&key)).await.map(Some)
    }

    fn of_app(&self, app: &str) -> Option<Arc<dyn StateStore>> {
        let folder = self.folder.parent()?.join(app);
        Some(Arc::new(Self { folder, ..self.clone() }))
    }

    fn making_place(&self) -> Option<Arc<dyn StateStore>> {
        Some(Arc::new(Self { makes_folder: true, ..self.clone() }))
    }

    async fn list_counted(&self) -> Result<(Vec<StateKey>, u64), StoreError> {
        Ok((self.list().await?, 1))
    }

    async fn remove(&self, key: &StateKey, etag: &ETag) -> Result<(), StoreError> {
        let (store, key, etag) = (self.clone(), key.clone(), etag.clone());
        on_blocking_thread(move || store.remove_blocking(&key, &etag)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn store(root: &Path) -> FileStore {
        fs::create_dir_all(root.join("state")).unwrap();
        FileStore::new(root, "app", Arc::new(SystemClock))
    }

    #[tokio::test]
    async fn a_missing_folder_is_an_error_until_it_is_prepared() {
        let root = tempfile::tempdir().unwrap();
        let store = FileStore::new(root.path(), "app", Arc::new(SystemClock));
        let loaded = store.load(&key()).await.map(drop);
        let created = store.store(&key(), b"1".to_vec(), Precondition::Absent).await.map(drop);
        for refused in [loaded, created] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.contains("does not exist") && error.contains("`highwater init orders`"),
                "{error}"
            );
        }
        assert!(store.list().await.is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "nothing is created");
        store.prepare().await.unwrap();
        assert_eq!(store.load(&key()).await.unwrap().stored, None);
        store.store(&key(), b"1".to_vec(), Precondition::Absent).await.unwrap();
        // For a command that restores a document, the folder counts as empty and is created by the write.
        let elsewhere = tempfile::tempdir().unwrap();
        let gone = FileStore::new(elsewhere.path(), "app", Arc::new(SystemClock));
        let restoring = gone.making_place().unwrap();
        assert_eq!(restoring.load(&key()).await.unwrap().stored, None);
        assert_eq!(restoring.list().await.unwrap(), []);
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "a read creates nothing");
        restoring.store(&key(), b"1".to_vec(), Precondition::Absent).await.unwrap();
        assert_eq!(gone.load(&key()).await.unwrap().stored.unwrap().bytes, b"1");
        // As if the volume were gone.
        fs::rename(root.path().join("state"), root.path().join("elsewhere")).unwrap();
        assert!(store.load(&key()).await.is_err());
        fs::rename(root.path().join("elsewhere"), root.path().join("state")).unwrap();
        assert_eq!(store.load(&key()).await.unwrap().stored.unwrap().bytes, b"1");
    }

    fn key() -> StateKey {
        StateKey::Document("orders".to_owned())
    }

    #[tokio::test]
    async fn conforms() {
        let root = tempfile::tempdir().unwrap();
        let made = std::sync::atomic::AtomicU32::new(0);
        crate::state::conformance::run(&|| {
            let n = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let store = store(&root.path().join(n.to_string()));
            async move { store }
        })
        .await;
    }

    #[tokio::test]
    async fn a_tag_survives_reopening_the_store() {
        let root = tempfile::tempdir().unwrap();
        let written =
            store(root.path()).store(&key(), b"1".to_vec(), Precondition::Absent).await.unwrap();
        let again = store(root.path());
        assert_eq!(again.load(&key()).await.unwrap().stored.unwrap().etag, written.etag);
        again.store(&key(), b"2".to_vec(), Precondition::Matches(written.etag)).await.unwrap();
    }

    /// A clock that shows a set number of milliseconds.
    #[derive(Debug, Default)]
    struct SetClock(std::sync::atomic::AtomicI64);

    impl Clock for SetClock {
        fn now(&self) -> OffsetDateTime {
            let milliseconds = self.0.load(std::sync::atomic::Ordering::SeqCst);
            OffsetDateTime::UNIX_EPOCH + time::Duration::milliseconds(milliseconds)
        }
    }

    #[tokio::test]
    async fn a_tag_is_not_reused_after_the_file_was_lost() {
        let root = tempfile::tempdir().unwrap();
        let clock = Arc::new(SetClock::default());
        let store = FileStore::new(root.path(), "app", clock.clone());
        store.prepare().await.unwrap();
        let mut tags = std::collections::BTreeSet::new();
        for life in 1..=3 {
            clock.0.store(life * 1_000, std::sync::atomic::Ordering::SeqCst);
            let mut written =
                store.store(&key(), b"1".to_vec(), Precondition::Absent).await.unwrap();
            for _ in 0..5 {
                assert!(tags.insert(written.etag.0.clone()), "{} again", written.etag.0);
                let precondition = Precondition::Matches(written.etag);
                written = store.store(&key(), b"2".to_vec(), precondition).await.unwrap();
            }
            tags.insert(written.etag.0);
            fs::remove_file(store.path(&key()).unwrap()).unwrap();
        }
    }

    /// Runs in the child processes of the next test; does nothing by itself.
    #[tokio::test]
    async fn increments_of_a_child_process() {
        let vars = crate::config::ProcessVars;
        let Some(root) = crate::config::Vars::get(&vars, "FILE_STORE_ROOT") else { return };
        let store = store(Path::new(&root));
        for _ in 0..50 {
            crate::state::conformance::increment(&store, &key(), 10_000).await;
        }
    }

    #[tokio::test]
    async fn two_processes_never_lose_an_increment() {
        let root = tempfile::tempdir().unwrap();
        store(root.path()).store(&key(), b"0".to_vec(), Precondition::Absent).await.unwrap();
        let children: Vec<_> = (0..2)
            .map(|_| {
                std::process::Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "state::file::tests::increments_of_a_child_process"])
                    .env("FILE_STORE_ROOT", root.path())
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let stored = store(root.path()).load(&key()).await.unwrap().stored.unwrap();
        assert_eq!(stored.bytes, b"100");
    }

    /// Runs in the child process of the next test; does nothing by itself.
    #[tokio::test]
    async fn a_write_of_a_child_process() {
        let vars = crate::config::ProcessVars;
        let Some(root) = crate::config::Vars::get(&vars, "FILE_STORE_FOLDER") else { return };
        let store = FileStore::new(Path::new(&root), "app", Arc::new(SystemClock));
        store.prepare().await.unwrap();
        let stored = store.load(&key()).await.unwrap().stored;
        let precondition =
            stored.map_or(Precondition::Absent, |stored| Precondition::Matches(stored.etag));
        store.store(&key(), b"{}".to_vec(), precondition).await.unwrap();
    }

    #[test]
    fn files_are_private_under_any_umask() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("made/by/the/store");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = FileStore::new(&folder, "app", Arc::new(SystemClock)).path(&key()).unwrap();
        // The umask belongs to the process, so write from another process.
        let write = || {
            let test = "state::file::tests::a_write_of_a_child_process";
            let ended = std::process::Command::new("sh")
                .args(["-c", "umask 0; exec \"$0\" --exact \"$1\""])
                .arg(std::env::current_exe().unwrap())
                .arg(test)
                .env("FILE_STORE_FOLDER", &folder)
                .stdout(std::process::Stdio::null())
                .status();
            assert!(ended.unwrap().success());
        };
        write();
        for made in path.ancestors().skip(1).take_while(|made| *made != root.path()) {
            assert_eq!(mode(made), 0o700, "{}", made.display());
        }
        let files: Vec<PathBuf> = fs::read_dir(path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(files.contains(&path), "{files:?}");
        for file in files {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }

        // The next write fixes the mode of files from an older version; the mode of folders is up to the operator.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        fs::write(path.with_extension("tmp"), "").unwrap();
        fs::set_permissions(path.with_extension("tmp"), Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o750)).unwrap();
        write();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o750));
    }

    #[tokio::test]
    async fn a_crash_between_write_and_rename_leaves_the_old_document() {
        let root = tempfile::tempdir().unwrap();
        let store = store(root.path());
        let written = store.store(&key(), b"old".to_vec(), Precondition::Absent).await.unwrap();
        let path = store.path(&key()).unwrap();
        fs::write(path.with_extension("tmp"), b"half a new docum").unwrap();
        let stored = store.load(&key()).await.unwrap().stored.unwrap();
        assert_eq!(stored.bytes, b"old");
        store.store(&key(), b"new".to_vec(), Precondition::Matches(written.etag)).await.unwrap();
        assert_eq!(store.load(&key()).await.unwrap().stored.unwrap().bytes, b"new");
    }

    #[tokio::test]
    async fn a_file_without_a_header_is_returned_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let store = store(root.path());
        let path = store.path(&key()).unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for content in ["", "{\"version\": 1, \"trunc", "{}\n"] {
            fs::write(&path, content).unwrap();
            let stored = store.load(&key()).await.unwrap().stored.unwrap();
            assert_eq!(stored.bytes, content.as_bytes());
        }
        let stored = store.load(&key()).await.unwrap().stored.unwrap();
        store.store(&key(), b"fixed".to_vec(), Precondition::Matches(stored.etag)).await.unwrap();
    }
}
