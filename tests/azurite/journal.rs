//! The journal in append blobs.

use highwater_azure::BlobJournal;
use highwater_azure::BlobStore;
use highwater_engine::journal::{JournalStore, Part, conformance};
use time::macros::date;

use crate::emulator::{self, Azurite, KEY, TIMEOUT, fresh_container};

#[tokio::test]
async fn it_conforms() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::with_key(azurite.address(), KEY), TIMEOUT);
    conformance::run(&|| async {
        let container = fresh_container();
        let state = BlobStore::new(&service, &container, "app").unwrap();
        assert!(state.create_container().await.unwrap(), "the name is unused");
        BlobJournal::new(&service, &container, "app").unwrap()
    })
    .await;
}

#[tokio::test]
async fn journals_and_documents_of_one_container_are_kept_apart() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::development(azurite.address()), TIMEOUT);
    let container = fresh_container();
    let journal = BlobJournal::new(&service, &container, "app").unwrap();
    let part = Part::of_day("orders", date!(2026 - 04 - 07));
    journal.append(&part, 0, b"{}\n".to_vec()).await.unwrap();
    let state = BlobStore::new(&service, &container, "app").unwrap();
    assert_eq!(highwater_engine::store::StateStore::list(&state).await.unwrap(), []);
    let other = BlobJournal::new(&service, &container, "other").unwrap();
    assert_eq!(other.list("orders").await.unwrap(), []);
}

#[tokio::test]
async fn a_missing_container_is_an_error_with_a_fix() {
    let azurite = Azurite::shared().await;
    let service = emulator::service(&emulator::with_key(azurite.address(), KEY), TIMEOUT);
    let journal = BlobJournal::new(&service, "not-there", "app").unwrap();
    let part = Part::of_day("orders", date!(2026 - 04 - 07));
    for result in [
        journal.append(&part, 0, b"{}\n".to_vec()).await.map(|_| ()),
        journal.append(&part, 9, b"{}\n".to_vec()).await.map(|_| ()),
        journal.list("orders").await.map(|_| ()),
        journal.remove(&part, None).await,
        journal.read(&part, 0).await.map(|_| ()),
    ] {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("create the container `not-there`"), "{text}");
    }
}
