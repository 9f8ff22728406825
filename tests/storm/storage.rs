//! Azurite with its data on disk, and its faults: frozen, stopped, restarted.
//!
//! It is never killed: it flushes to disk every five seconds and at SIGTERM, so a kill would lose
//! acknowledged writes, which real storage does not.

use std::process::ExitStatus;
use std::sync::Mutex;
use std::time::Duration;

use highwater::state::{BlobStore, StateKey, StateStore as _, decode};
use highwater_fakehost::free_port;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::azurite::{Azurite, service};
use crate::instances::FUNCTION;
use crate::ledger::{Kind, Sample, Shared, Term};

/// Longest wait for Azurite to stop.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Longest wait until restarted storage responds.
const BACK_MAX: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Storage {
    pub(crate) connection: String,
    port: u16,
    azurite: Mutex<Azurite>,
    store: BlobStore,
    ledger: Shared,
    // Dropped last, when nothing writes to it any more.
    folder: TempDir,
}

impl Storage {
    pub(crate) async fn start(ledger: Shared) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The same port after each start, so not one that the system may assign to another process.
        let azurite = launch(free_port().unwrap(), &folder).await;
        let address = azurite.address();
        // Development storage: short leases are allowed there.
        let connection =
            format!("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://{address}");
        let service = service(&connection, REQUEST_TIMEOUT);
        let store = BlobStore::new(&service, "db-state", FUNCTION).unwrap();
        // An account with a key is not development storage, which would create the container itself.
        store.create_container().await.unwrap();
        let azurite = Mutex::new(azurite);
        Self { connection, port: address.port(), azurite, store, ledger, folder }
    }

    fn pid(&self) -> String {
        self.azurite.lock().unwrap().child.id().to_string()
    }

    /// Freezes the process for a while; requests wait meanwhile.
    pub(crate) async fn freeze(&self, length: Duration) {
        let fault = self.ledger.fault(Kind::Freeze);
        // A separate process, so that a killed test leaves nothing frozen.
        let script = r#"kill -STOP "$0" && sleep "$1" && kill -CONT "$0""#;
        let (pid, seconds) = (self.pid(), length.as_secs_f64().to_string());
        let done = Command::new("sh").args(["-c", script, &pid, &seconds]).status().await.unwrap();
        assert!(done.success(), "freezing storage: {done}");
        self.back(fault).await;
    }

    /// Stops it cleanly, and starts it on the same port and folder.
    pub(crate) async fn restart(&self, pause: Duration) {
        let fault = self.ledger.fault(Kind::Restart);
        let pid = self.pid();
        let done = Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
        assert!(done.success(), "stopping storage: {done}");
        let end = Instant::now() + STOP_MAX;
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(Instant::now() < end, "storage does not stop when it is asked to");
            sleep(Duration::from_millis(20)).await;
        };
        assert!(status.success(), "storage ended with {status}");
        sleep(pause).await;
        let azurite = launch(self.port, &self.folder).await;
        // The old one has exited, and may be killed without harm.
        *self.azurite.lock().unwrap() = azurite;
        self.back(fault).await;
    }

    fn ended(&self) -> Option<ExitStatus> {
        self.azurite.lock().unwrap().child.try_wait().unwrap()
    }

    async fn back(&self, fault: usize) {
        let end = Instant::now() + BACK_MAX;
        while self.read().await.is_none() {
            assert!(Instant::now() < end, "storage does not answer");
            sleep(Duration::from_millis(50)).await;
        }
        self.ledger.fault_over(fault);
    }

    /// Reads the state document independently of the instances; `None` if storage does not respond.
    pub(crate) async fn read(&self) -> Option<Sample> {
        self.read_of(FUNCTION).await
    }

    /// The same for either poller.
    pub(crate) async fn read_of(&self, poller: &str) -> Option<Sample> {
        let loaded = self.store.load(&StateKey::Document(poller.to_owned())).await.ok()?;
        let Some(stored) = loaded.stored else { return Some(Sample::default()) };
        let document = decode(poller, &stored.bytes).unwrap();
        let version = |cursor: highwater::cursor::Cursor| {
            cursor.value.parse::<highwater::cursor::RowVersion>().unwrap().0
        };
        let token = document.lease.fencing_token.0;
        Some(Sample {
            term: Term { generation: document.generation.0, token },
            released: document.lease.released.clone(),
            is_held: document.lease.owner_id.is_some() && document.lease.released_at.is_none(),
            owner: document.lease.owner_id,
            checkpoint: document.checkpoint.cursor.map_or(0, version),
        })
    }

    /// Reads it periodically while it is polled. The only function that records samples, so that they are in
    /// order.
    pub(crate) async fn watch(&self) {
        loop {
            if let Some(sample) = self.read().await {
                self.ledger.write(|ledger| ledger.sample(sample));
            }
            sleep(Duration::from_millis(250)).await;
        }
    }
}

async fn launch(port: u16, folder: &TempDir) -> Azurite {
    let folder = folder.path().to_owned();
    let start = move || Azurite::start_with(port, &["--location".as_ref(), folder.as_ref()]);
    spawn_blocking(start).await.unwrap()
}
