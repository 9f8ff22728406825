//! CloudEvents, checked by the JavaScript SDK of CloudEvents.

use highwater::config::{BodyForm, HttpConfig};

use crate::child::{Server, node};
use crate::sample::{Batch, config};

#[tokio::test]
async fn the_sdk_reads_a_batch_and_finds_every_event_valid() {
    let server = Server::start(&mut node("tests/webhooks/receive.mjs"));
    let url = server.url("/cloudevents");
    let batch = Batch::of(&[(1, 1, Some("Zoë's “first”\nline")), (2, 2, None), (3, 3, Some(""))]);
    let asked = HttpConfig { body: BodyForm::CloudEvents, ..config(&url, &[]) };
    batch.deliver(&asked).await.unwrap();
    let events = server.get("/last").await;
    let events = events.as_array().unwrap();
    assert_eq!(events.len(), 3);
    for (event, sent) in events.iter().zip(&batch.events) {
        assert_eq!(event["specversion"], "1.0");
        assert_eq!(event["id"], sent.id.as_str());
        assert_eq!(event["source"], "urn:highwater:orders");
        assert_eq!(event["data"].to_string(), sent.json.as_str());
    }
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["highwater.upsert", "highwater.delete", "highwater.upsert"]);
    assert_eq!(events[1]["subject"], r#"{"id":2}"#);
}

#[tokio::test]
async fn without_the_setting_no_cloud_event_is_sent() {
    let server = Server::start(&mut node("tests/webhooks/receive.mjs"));
    let url = server.url("/cloudevents");
    let batch = Batch::of(&[(1, 1, Some("first"))]);
    batch.deliver(&config(&url, &[])).await.unwrap_err();
    assert!(server.get("/last").await.is_null());
}
