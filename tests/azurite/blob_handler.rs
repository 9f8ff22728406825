//! The handler that writes blobs, also over connections that break.

use std::time::Duration;

use highwater_azure::ConnectError;
use highwater_azure::StorageConnection;
use highwater_azure::handler::BlobConfig;
use highwater_azure::handler::blob::Blob;
use highwater_engine::handler::HandlerError;

use crate::batch::Batch;
use crate::emulator::{self, ACCOUNT, Azurite, KEY, TIMEOUT, fresh_container, with_signature};
use crate::proxy::{Answer, Delivery, Fault, Proxy};

fn handler(connection: &str, container: &str, timeout: Duration) -> Result<Blob, ConnectError> {
    let config = BlobConfig {
        connection_setting: "Target".to_owned(),
        access: StorageConnection::parse(connection).unwrap(),
        container: container.to_owned(),
        timeout,
        tries_max: 3,
    };
    Blob::new(&emulator::service(connection, timeout), &config)
}

/// An existing container, accessed independently of the handler.
struct Container {
    name: String,
    azurite: &'static Azurite,
}

impl Container {
    async fn fresh() -> Self {
        let container = Self { name: fresh_container(), azurite: Azurite::shared().await };
        let request = reqwest::Client::new().put(container.url("", "restype=container"));
        let made = request.header("content-length", 0).send().await.unwrap();
        assert_eq!(made.status(), 201);
        container
    }

    fn key(&self) -> String {
        emulator::with_key(self.azurite.address(), KEY)
    }

    fn url(&self, blob: &str, query: &str) -> String {
        let connection = with_signature(self.azurite, "b", "rwdlac");
        let (_, signature) = connection.split_once("SharedAccessSignature=").unwrap();
        let (address, name) = (self.azurite.address(), &self.name);
        format!("http://{address}/{ACCOUNT}/{name}{blob}?{query}&{signature}")
    }

    async fn names(&self) -> Vec<String> {
        let list = reqwest::get(self.url("", "restype=container&comp=list")).await.unwrap();
        let list = list.text().await.unwrap();
        let names = list.split("<Name>").skip(1);
        names.map(|rest| rest.split("</Name>").next().unwrap().to_owned()).collect()
    }

    /// Returns content type, etag and text of a blob.
    async fn read(&self, name: &str) -> (String, String, String) {
        let blob = reqwest::get(self.url(&format!("/{name}"), "")).await.unwrap();
        assert_eq!(blob.status(), 200);
        let header = |name: &str| blob.headers()[name].to_str().unwrap().to_owned();
        let (content_type, etag) = (header("content-type"), header("etag"));
        (content_type, etag, blob.text().await.unwrap())
    }
}

#[tokio::test]
async fn a_batch_is_one_blob_however_often_it_is_delivered() {
    let container = Container::fresh().await;
    let blob = handler(&container.key(), &container.name, TIMEOUT).unwrap();
    let batch = Batch::of(&["a", "b\nc", "ü"]);
    batch.deliver(&blob).await.unwrap();
    let names = container.names().await;
    let id = batch.id();
    assert_eq!(names, [format!("orders/0x0000000000000001_0x0000000000000003_{id}.ndjson")]);
    let before = container.read(&names[0]).await;
    assert_eq!((before.0.as_str(), &before.2), ("application/x-ndjson", &batch.lines()));

    let another = handler(&container.key(), &container.name, TIMEOUT).unwrap();
    batch.deliver(&another).await.unwrap();
    assert_eq!(container.names().await, names);
    assert_eq!(container.read(&names[0]).await, before, "nothing is replaced");

    // The same range with other rows is another batch.
    Batch::of(&["a", "b", "c"]).deliver(&blob).await.unwrap();
    assert_eq!(container.names().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_a_lost_response_writes_one_blob() {
    let timeout = Duration::from_secs(2);
    for fault in [
        Fault { request: Delivery::Now, answer: Answer::Close },
        Fault { request: Delivery::Now, answer: Answer::Reset },
        Fault { request: Delivery::Now, answer: Answer::Status(500) },
        Fault { request: Delivery::Now, answer: Answer::Status(503) },
        Fault { request: Delivery::Now, answer: Answer::Hold(Duration::from_secs(3)) },
        Fault { request: Delivery::Never, answer: Answer::Close },
        Fault { request: Delivery::Never, answer: Answer::Status(503) },
        Fault { request: Delivery::Late(Duration::from_millis(1)), answer: Answer::Close },
    ] {
        let container = Container::fresh().await;
        let proxy = Proxy::start(container.azurite.address()).await;
        let connection = emulator::with_key(proxy.address(), KEY);
        let blob = handler(&connection, &container.name, timeout).unwrap();
        let batch = Batch::of(&["a", "b"]);
        proxy.break_put(fault);
        batch.deliver(&blob).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let names = container.names().await;
        assert_eq!(names.len(), 1, "{fault:?}");
        assert_eq!(container.read(&names[0]).await.2, batch.lines(), "{fault:?}");
        assert_eq!(proxy.puts(), 2, "{fault:?}: retried once");
    }
}

#[tokio::test]
async fn attempts_per_tick_are_limited() {
    let container = Container::fresh().await;
    let proxy = Proxy::start(container.azurite.address()).await;
    let connection = emulator::with_key(proxy.address(), KEY);
    let blob = handler(&connection, &container.name, TIMEOUT).unwrap();
    for _ in 0..3 {
        proxy.break_put(Fault { request: Delivery::Never, answer: Answer::Status(503) });
    }
    let error = Batch::of(&["a"]).deliver(&blob).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    let text =
        format!("container `{}` answered HTTP 503 ServerBusy (after 3 tries)", container.name);
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn a_large_batch_is_one_request() {
    let container = Container::fresh().await;
    let proxy = Proxy::start(container.azurite.address()).await;
    let connection = emulator::with_key(proxy.address(), KEY);
    let blob = handler(&connection, &container.name, TIMEOUT).unwrap();
    let text = "x".repeat(1 << 20);
    let batch = Batch::of(&[text.as_str(); 9]);
    batch.deliver(&blob).await.unwrap();
    assert_eq!((proxy.puts(), proxy.commits()), (1, 1));
    assert_eq!(container.read(&container.names().await[0]).await.2, batch.lines());
}

#[tokio::test]
async fn containers_are_created_in_development_storage_only() {
    let azurite = Azurite::shared().await;
    let batch = Batch::of(&["a"]);
    let name = fresh_container();
    let connection = emulator::with_key(azurite.address(), KEY);
    let error = batch.deliver(&handler(&connection, &name, TIMEOUT).unwrap()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Misconfigured(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("404 ContainerNotFound"), "{text}");
    assert!(text.ends_with(&format!("create the container `{name}` in the storage account")));

    let connection = emulator::development(azurite.address());
    for _ in 0..2 {
        batch.deliver(&handler(&connection, &name, TIMEOUT).unwrap()).await.unwrap();
    }
    assert_eq!(Container { name, azurite }.names().await.len(), 1);
}

#[tokio::test]
async fn errors_contain_no_key_and_no_signature() {
    let container = Container::fresh().await;
    let (wrong, batch) = ("d3JvbmcgczNjcmV0", Batch::of(&["a"]));
    let signed = with_signature(container.azurite, "b", "r");
    for (connection, misconfigured) in [
        (emulator::with_key(container.azurite.address(), wrong), true),
        (signed.clone(), true),
        (signed.replace(&container.azurite.address().to_string(), "127.0.0.1:1"), false),
    ] {
        let blob = handler(&connection, &container.name, TIMEOUT).unwrap();
        let error = batch.deliver(&blob).await.unwrap_err();
        assert_eq!(matches!(error, HandlerError::Misconfigured(_)), misconfigured, "{error:?}");
        let text = format!("{error} {error:?} {blob:?}");
        let leaks = [wrong, "sig=", "127.0.0.1"].iter().any(|secret| text.contains(secret));
        assert!(!leaks, "{text}");
    }
}

#[tokio::test]
async fn create_and_write_permissions_are_enough() {
    let container = Container::fresh().await;
    let signed = with_signature(container.azurite, "b", "cw");
    let blob = handler(&signed, &container.name, TIMEOUT).unwrap();
    for _ in 0..2 {
        Batch::of(&["a"]).deliver(&blob).await.unwrap();
    }
    assert_eq!(container.names().await.len(), 1);
}
