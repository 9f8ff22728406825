//! Azurite, and the number of its requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use crate::azurite::Azurite;
use crate::job::Blobs;

/// Its own account; the key is public.
const ACCOUNT: &str = "AccountName=devstoreaccount1;AccountKey=\
    Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Reads and writes of blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

impl Calls {
    pub(crate) fn all(self) -> u64 {
        self.reads + self.writes
    }
}

pub(crate) struct Storage {
    azurite: Azurite,
    calls: Arc<Mutex<Calls>>,
    /// Data is on disk: in memory each sweep of old versions would block it for minutes.
    _folder: TempDir,
}

impl Storage {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let calls = Arc::new(Mutex::new(Calls::default()));
        let count = Arc::clone(&calls);
        let location = ["--location".as_ref(), folder.path().as_os_str()];
        let azurite = Azurite::start_logged("blob", 0, &location, move |line| {
            // An access log: `… "PUT /account/container/state/… HTTP/1.1" 201 -`
            let Some((_, request)) = line.split_once('"') else { return };
            if request.contains("restype=container") {
                return;
            }
            let mut calls = count.lock().unwrap();
            match request.split(' ').next() {
                Some("GET" | "HEAD") => calls.reads += 1,
                Some("PUT" | "DELETE") => calls.writes += 1,
                _ => {}
            }
        });
        Self { azurite, calls, _folder: folder }
    }

    /// Returns a connection to a container that is created at once.
    pub(crate) async fn container(&self, name: &str) -> Blobs {
        let endpoint = format!("BlobEndpoint=http://{}/devstoreaccount1", self.azurite.address());
        let connection = format!("{ACCOUNT};{endpoint}");
        let service = crate::azurite::service(&connection, Duration::from_secs(20));
        let store = highwater::state::BlobStore::new(&service, name, "measure").unwrap();
        store.create_container().await.unwrap();
        self.take_calls().await;
        Blobs { connection, container: name.to_owned() }
    }

    /// Returns the calls since the last call of this function, once no more arrive.
    pub(crate) async fn take_calls(&self) -> Calls {
        loop {
            let seen = *self.calls.lock().unwrap();
            sleep(Duration::from_millis(200)).await;
            let mut calls = self.calls.lock().unwrap();
            if *calls == seen {
                return std::mem::take(&mut *calls);
            }
        }
    }
}
