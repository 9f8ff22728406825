//! A server that is not a storage account: each answer has one outcome, and needs little memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater_engine::clock::SystemClock;
use highwater_engine::handler::testing::Sample;
use highwater_engine::handler::{Handler, HandlerError};
use highwater_test_support::raw::{Act, Raw, SOCKET_BYTES};

use crate::handler::blob::Blob;
use crate::handler::queue::Queue;
use crate::handler::{BlobConfig, MessageEncoding, QueueConfig};
use crate::{BlobService, IdentitySource, QueueService, ServiceOptions};
use crate::{StorageConnection, StorageService};

fn options(timeout: Duration) -> ServiceOptions {
    ServiceOptions {
        timeout,
        clock: Arc::new(SystemClock),
        identity: IdentitySource::ManagedIdentity,
    }
}

fn connection(service: StorageService, origin: &str) -> StorageConnection {
    let endpoint = match service {
        StorageService::Queue => "QueueEndpoint",
        StorageService::Blob => "BlobEndpoint",
    };
    let text = format!("{endpoint}={origin}/acme;AccountName=acme;AccountKey=czNjcmV0");
    StorageConnection::parse_for(service, &text).unwrap()
}

/// Returns a handler of each kind, for the server at `origin`.
fn handlers(origin: &str, timeout: Duration) -> [Box<dyn Handler>; 2] {
    let access = connection(StorageService::Queue, origin);
    let service = QueueService::connect(&access, &options(timeout)).unwrap();
    let queue = QueueConfig {
        connection_setting: "Target".to_owned(),
        access,
        queue: "changes".to_owned(),
        message_events_max: 1,
        encoding: MessageEncoding::Base64,
        concurrency: 16,
        timeout,
        tries_max: 1,
    };
    let queue = Queue::new(&service, &queue).unwrap();
    let access = connection(StorageService::Blob, origin);
    let service = BlobService::connect(&access, &options(timeout)).unwrap();
    let blob = BlobConfig {
        connection_setting: "Target".to_owned(),
        access,
        container: "changes".to_owned(),
        timeout,
        tries_max: 1,
    };
    [Box::new(queue), Box::new(Blob::new(&service, &blob).unwrap())]
}

/// Returns the outcome of a delivery to a server that does `act`, and how many bytes the server sent.
async fn ends(act: Act, kind: usize, timeout: Duration) -> (HandlerError, usize) {
    let (raw, origin) = Raw::start(act).await;
    let handler = &handlers(&origin, timeout)[kind];
    let error = handler.handle(Sample::new(1).delivery()).await.unwrap_err();
    (error, raw.sent.load(Ordering::Relaxed))
}

#[tokio::test]
async fn an_answer_that_no_storage_service_gives_accepts_no_row() {
    for kind in [0, 1] {
        for (act, misconfigured) in [
            (Act::Say(b"SSH-2.0-OpenSSH\r\n"), false),
            (Act::Say(b""), false),
            (Act::Say(b"HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\n<"), false),
            (Act::Reset, false),
            (Act::Say(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK"), true),
            (Act::Say(b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"), true),
        ] {
            let (error, _) = ends(act, kind, Duration::from_secs(20)).await;
            let is_misconfigured = matches!(error, HandlerError::Misconfigured(_));
            assert_eq!(is_misconfigured, misconfigured, "{error:?}");
            assert_eq!(matches!(error, HandlerError::Retryable(_)), !misconfigured, "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_storage_service_that_does_not_answer_is_retried() {
    for kind in [0, 1] {
        for act in
            [Act::Stall(b""), Act::Stall(b"HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\n<")]
        {
            let (error, _) = ends(act, kind, Duration::from_millis(50)).await;
            assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
        }
    }
}

#[tokio::test]
async fn an_endless_answer_is_not_read_to_its_end() {
    for kind in [0, 1] {
        for head in [
            &b"HTTP/1.1 201 Created\r\ncontent-length: 104857600\r\n\r\n"[..],
            b"HTTP/1.1 500 Oops\r\ncontent-length: 104857600\r\n\r\n",
        ] {
            let act = Act::Flood(head, &[b'x'; 16_384]);
            let (error, sent) = ends(act, kind, Duration::from_secs(20)).await;
            assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
            assert!(error.to_string().contains("longer than 1 MiB"), "{error}");
            assert!(sent < SOCKET_BYTES + (1 << 20), "the server sent {sent} bytes");
        }
    }
}
