//! The handler that sends queue messages, also over breaking connections.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use highwater_azure::handler::queue::Queue;
use highwater_azure::handler::{MessageEncoding, QueueConfig};
use highwater_azure::{ConnectError, QueueService};
use highwater_azure::{StorageConnection, StorageService};
use highwater_engine::handler::HandlerError;
use tokio::sync::OnceCell;

use crate::batch::Batch;
use crate::emulator::{self, ACCOUNT, Azurite, KEY, TIMEOUT, fresh_container, with_signature};
use crate::proxy::{Answer, Delivery, Fault, Proxy};

async fn azurite() -> &'static Azurite {
    static SHARED: OnceCell<Azurite> = OnceCell::const_new();
    let start = || Azurite::start_service("queue", 0, &["--inMemoryPersistence".as_ref()]);
    let start = async || tokio::task::spawn_blocking(start).await.expect("starting does not panic");
    SHARED.get_or_init(start).await
}

fn with_key(address: SocketAddr, key: &str) -> String {
    emulator::with_key(address, key).replace("BlobEndpoint", "QueueEndpoint")
}

fn config(connection: &str, queue: &str) -> QueueConfig {
    QueueConfig {
        connection_setting: "Target".to_owned(),
        access: StorageConnection::parse_for(StorageService::Queue, connection).unwrap(),
        queue: queue.to_owned(),
        message_events_max: 1,
        encoding: MessageEncoding::Base64,
        // In the order of the rows.
        concurrency: 1,
        timeout: TIMEOUT,
        tries_max: 3,
    }
}

fn handler(config: &QueueConfig) -> Result<Queue, ConnectError> {
    let options = emulator::options(config.timeout);
    Queue::new(&QueueService::connect(&config.access, &options).unwrap(), config)
}

/// An existing queue, accessed independently of the handler.
struct Messages {
    name: String,
    azurite: &'static Azurite,
}

impl Messages {
    async fn fresh() -> Self {
        let queue = Self { name: fresh_container(), azurite: azurite().await };
        let request = reqwest::Client::new().put(queue.url("", "x=y"));
        let made = request.header("content-length", 0).send().await.unwrap();
        assert_eq!(made.status(), 201);
        queue
    }

    fn config(&self) -> QueueConfig {
        config(&with_key(self.azurite.address(), KEY), &self.name)
    }

    fn url(&self, path: &str, query: &str) -> String {
        let connection = with_signature(self.azurite, "q", "rwdlacup");
        let (_, signature) = connection.split_once("SharedAccessSignature=").unwrap();
        let (address, name) = (self.azurite.address(), &self.name);
        format!("http://{address}/{ACCOUNT}/{name}{path}?{query}&{signature}")
    }

    /// Returns the first messages, as XML.
    async fn peek(&self) -> String {
        let url = self.url("/messages", "peekonly=true&numofmessages=32");
        reqwest::get(url).await.unwrap().text().await.unwrap()
    }

    /// Returns the raw texts of the first messages.
    async fn texts(&self) -> Vec<String> {
        let list = self.peek().await;
        let texts = list.split("<MessageText>").skip(1);
        texts.map(|rest| rest.split("</MessageText>").next().unwrap().to_owned()).collect()
    }

    async fn decoded(&self) -> Vec<String> {
        let texts = self.texts().await;
        let decode = |text: &String| String::from_utf8(BASE64.decode(text).unwrap()).unwrap();
        texts.iter().map(decode).collect()
    }
}

fn json(batch: &Batch) -> Vec<String> {
    batch.events.iter().map(|event| event.json.to_string()).collect()
}

#[tokio::test]
async fn each_event_is_a_message_in_base64() {
    let queue = Messages::fresh().await;
    let batch = Batch::of(&["a", "<b>&\u{1}\n", "ü"]);
    batch.deliver(&handler(&queue.config()).unwrap()).await.unwrap();
    assert_eq!(queue.decoded().await, json(&batch));
    assert!(queue.peek().await.contains("9999 23:59:59 GMT</ExpirationTime>"), "never expires");
}

#[tokio::test]
async fn messages_may_be_plain_and_hold_several_events() {
    let queue = Messages::fresh().await;
    let batch = Batch::of(&["a", "b", "\u{1}\u{ffff}"]);
    let config =
        QueueConfig { message_events_max: 2, encoding: MessageEncoding::None, ..queue.config() };
    batch.deliver(&handler(&config).unwrap()).await.unwrap();
    let texts = queue.texts().await;
    let unescaped = |text: &String| text.replace("&quot;", "\"").replace("&lt;", "<");
    let texts: Vec<String> = texts.iter().map(unescaped).collect();
    let json = json(&batch);
    assert_eq!(texts[0], format!("[{},{}]", json[0], json[1]));
    assert_eq!(texts[1], format!("[{}]", json[2].replace('\u{ffff}', "\\uffff")));
}

#[tokio::test]
async fn a_message_of_the_maximum_size_is_accepted() {
    let queue = Messages::fresh().await;
    let without = Batch::of(&[""]).events[0].json.len();
    let largest = "x".repeat(48 * 1024 - without);
    let batch = Batch::of(&[&largest]);
    batch.deliver(&handler(&queue.config()).unwrap()).await.unwrap();
    assert_eq!(queue.texts().await[0].len(), 64 * 1024);
}

#[tokio::test]
async fn a_row_that_is_too_large_is_rejected_after_the_rows_before_it() {
    let queue = Messages::fresh().await;
    let large = "x".repeat(48 * 1024);
    let batch = Batch::of(&["a", "b", &large, "c"]);
    let handler = handler(&queue.config()).unwrap();
    let error = batch.deliver(&handler).await.unwrap_err();
    assert!(matches!(error, HandlerError::Partial { accepted: 2, .. }), "{error:?}");
    let id = batch.events[2].id.as_str();
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("the row {{\"id\":3}}, event `{id}`, needs a message")),
        "{text}"
    );
    assert_eq!(queue.decoded().await, json(&batch)[..2]);
    // It is then first in its batch, or alone.
    let error = Batch::of(&[&large, "c"]).deliver(&handler).await.unwrap_err();
    assert!(matches!(error, HandlerError::Rejected(_)), "{error:?}");
    assert_eq!(queue.texts().await.len(), 2);
}

#[tokio::test]
async fn each_call_sends_its_rows_whatever_was_sent_before() {
    let queue = Messages::fresh().await;
    let proxy = Proxy::start(queue.azurite.address()).await;
    let config =
        QueueConfig { tries_max: 1, ..config(&with_key(proxy.address(), KEY), &queue.name) };
    let handler = handler(&config).unwrap();
    let batch = Batch::of(&["a", "b", "c"]);
    proxy.break_put(Fault { request: Delivery::Never, answer: Answer::Status(503) });
    let error = batch.deliver(&handler).await.unwrap_err();
    assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    assert_eq!(error.to_string(), format!("queue `{}` answered HTTP 503 ServerBusy", queue.name));
    assert_eq!(proxy.commits(), 0);

    // The second message fails, after the first was sent.
    proxy.break_put_after(1, Fault { request: Delivery::Never, answer: Answer::Close });
    let error = batch.deliver(&handler).await.unwrap_err();
    assert!(matches!(error, HandlerError::Partial { accepted: 1, .. }), "{error:?}");
    assert_eq!(queue.decoded().await, json(&batch)[..1]);
    // Rows that were sent before say nothing about the queue now.
    proxy.break_put(Fault { request: Delivery::Never, answer: Answer::Status(503) });
    Batch::of(&["a"]).deliver(&handler).await.unwrap_err();
    // The first row has changed, and changes back: its last state is sent last.
    for state in ["d", "a"] {
        Batch::of(&[state]).deliver(&handler).await.unwrap();
        let expected = Batch::of(&[state]);
        assert_eq!(queue.decoded().await.last(), json(&expected).last());
    }
    assert_eq!(queue.texts().await.len(), 3);
}

#[tokio::test]
async fn the_first_row_that_the_queue_did_not_accept_is_named_although_later_ones_were_sent() {
    let queue = Messages::fresh().await;
    let proxy = Proxy::start(queue.azurite.address()).await;
    let config = config(&with_key(proxy.address(), KEY), &queue.name);
    let config = QueueConfig { tries_max: 1, concurrency: 16, ..config };
    let handler = handler(&config).unwrap();
    let texts: Vec<String> = (0..30).map(|row| format!("row {row}")).collect();
    let batch = Batch::of(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    proxy.break_put_after(5, Fault { request: Delivery::Never, answer: Answer::Close });
    let error = batch.deliver(&handler).await.unwrap_err();
    let HandlerError::Partial { accepted, .. } = error else { panic!("{error:?}") };
    let (mut sent, all) = (queue.decoded().await, json(&batch));
    sent.sort_unstable();
    let is_sent = |row: &String| sent.binary_search(row).is_ok();
    assert_eq!(all.iter().position(|row| !is_sent(row)), Some(accepted));
    assert!(sent.len() < accepted + 32, "{accepted}, {sent:?}");
}

#[tokio::test]
async fn a_lost_response_sends_the_same_message_twice() {
    let queue = Messages::fresh().await;
    let proxy = Proxy::start(queue.azurite.address()).await;
    let config = config(&with_key(proxy.address(), KEY), &queue.name);
    let batch = Batch::of(&["a", "b"]);
    proxy.break_put(Fault { request: Delivery::Now, answer: Answer::Close });
    batch.deliver(&handler(&config).unwrap()).await.unwrap();
    let json = json(&batch);
    assert_eq!(queue.decoded().await, [json[0].clone(), json[0].clone(), json[1].clone()]);
}

#[tokio::test]
async fn queues_are_created_in_development_storage_only() {
    let azurite = azurite().await;
    let (name, batch) = (fresh_container(), Batch::of(&["a"]));
    let refused = config(&with_key(azurite.address(), KEY), &name);
    let error = batch.deliver(&handler(&refused).unwrap()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Misconfigured(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("404 QueueNotFound"), "{text}");
    assert!(text.ends_with(&format!("create the queue `{name}` in the storage account")), "{text}");

    let made = config(&emulator::development(azurite.address()), &name);
    for _ in 0..2 {
        batch.deliver(&handler(&made).unwrap()).await.unwrap();
    }
    assert_eq!(Messages { name, azurite }.texts().await.len(), 2);
}

#[tokio::test]
async fn errors_contain_no_key_and_no_signature() {
    let queue = Messages::fresh().await;
    let (wrong, batch) = ("d3JvbmcgczNjcmV0", Batch::of(&["a"]));
    let signed = with_signature(queue.azurite, "q", "r").replace("BlobEndpoint", "QueueEndpoint");
    for (connection, misconfigured) in [
        (with_key(queue.azurite.address(), wrong), true),
        (signed.clone(), true),
        (signed.replace(&queue.azurite.address().to_string(), "127.0.0.1:1"), false),
    ] {
        let timeout = Duration::from_secs(2);
        let queue = handler(&QueueConfig { timeout, ..config(&connection, &queue.name) }).unwrap();
        let error = batch.deliver(&queue).await.unwrap_err();
        assert_eq!(matches!(error, HandlerError::Misconfigured(_)), misconfigured, "{error:?}");
        let text = format!("{error} {error:?} {queue:?}");
        let leaks = [wrong, "sig=", "127.0.0.1"].iter().any(|secret| text.contains(secret));
        assert!(!leaks, "{text}");
    }
}

#[tokio::test]
async fn the_add_permission_is_enough() {
    let queue = Messages::fresh().await;
    let signed = with_signature(queue.azurite, "q", "a").replace("BlobEndpoint", "QueueEndpoint");
    let batch = Batch::of(&["a"]);
    batch.deliver(&handler(&config(&signed, &queue.name)).unwrap()).await.unwrap();
    assert_eq!(queue.decoded().await, json(&batch));
}
