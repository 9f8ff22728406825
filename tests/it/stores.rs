//! The declared properties of each store, without calling the service.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use highwater::azure::{BlobService, IdentitySource, ServiceOptions};
use highwater::clock::SystemClock;
use highwater::config::{SqlConnection, StorageConnection};
use highwater::state::{
    BlobStore, FileStore, LoggedStore, MemoryStore, SqlStore, SqlStoreSettings, StateStore,
};

#[test]
fn each_store_declares_its_clock_resolution() {
    let connection = StorageConnection::parse("UseDevelopmentStorage=true").unwrap();
    let options = ServiceOptions {
        timeout: Duration::from_secs(1),
        clock: Arc::new(SystemClock),
        identity: IdentitySource::DeveloperTools,
    };
    let service = BlobService::connect(&connection, &options).unwrap();
    let settings = SqlStoreSettings {
        connection: SqlConnection::parse("Server=s;User ID=u;Password=p").unwrap(),
        table: "dbo.highwater_state".to_owned(),
        app: "app".to_owned(),
        request_timeout: Duration::from_secs(1),
    };
    let stores: [(&str, Arc<dyn StateStore>, u64); 4] = [
        ("memory", Arc::new(MemoryStore::default()), 0),
        // One machine has one clock, and a file does not reduce its resolution.
        ("file", Arc::new(FileStore::new(Path::new("state"), "app", Arc::new(SystemClock))), 0),
        // `Date` and `Last-Modified` are in whole seconds.
        ("blob", Arc::new(BlobStore::new(&service, "db-state", "app").unwrap()), 1_000),
        // `SYSUTCDATETIME()` may move only 64 times a second.
        ("sql", Arc::new(SqlStore::new(settings).unwrap()), 16),
    ];
    for (name, store, grain_ms) in stores {
        let grain = Duration::from_millis(grain_ms);
        assert_eq!(store.grain(), grain, "{name}");
        assert_eq!(LoggedStore::new(store).grain(), grain, "{name}, logged");
    }
}
