//! A batch of CloudEvents 1.0 in JSON.
//!
//! <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md#4-json-batch-format>

use serde::Serialize;
use serde_json::value::RawValue;

use crate::event::Operation;
use crate::handler::http::concurrency::Part;

#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: &'a str,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The key of the row, as JSON in a string.
    subject: String,
    datacontenttype: &'static str,
    data: &'a RawValue,
}

pub(super) fn encode(part: &Part<'_>) -> Result<Vec<u8>, serde_json::Error> {
    // Poller names need no escaping in a URN.
    let source = format!("urn:highwater:{}", part.batch.source.poller);
    super::array(part, |body, event| {
        let event = CloudEvent {
            specversion: "1.0",
            id: event.id.as_str(),
            source: &source,
            kind: kind(event.op),
            subject: serde_json::to_string(&event.cursor.key)?,
            datacontenttype: "application/json",
            data: serde_json::from_str(&event.json)?,
        };
        serde_json::to_writer(body, &event)
    })
}

/// Returns the type of the events of an operation.
pub(in crate::handler) fn kind(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => "highwater.insert",
        Operation::Update => "highwater.update",
        Operation::Upsert => "highwater.upsert",
        Operation::Delete => "highwater.delete",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::event::ChangeEvent;
    use crate::handler::http::concurrency::as_one_part;
    use crate::handler::testing::Sample;

    #[test]
    fn events_are_wrapped_unchanged() {
        let sample = Sample::new(2);
        let body = String::from_utf8(encode(&as_one_part(sample.delivery())).unwrap()).unwrap();
        let first = &sample.events[0];
        let shown =
            body.replace(first.json.as_str(), "{…}").replace(sample.events[1].json.as_str(), "{…}");
        let shown = shown.replace(first.id.as_str(), "<id>");
        expect![[r#"[{"specversion":"1.0","id":"<id>","source":"urn:highwater:orders","type":"highwater.upsert","subject":"{\"id\":1}","datacontenttype":"application/json","data":{…}},"#]].assert_eq(shown.split_inclusive("},").next().unwrap());
        let parsed: Vec<serde_json::Value> = serde_json::from_str(&body).unwrap();
        assert_eq!(parsed[1]["data"].to_string(), sample.events[1].json.as_str());
    }

    #[test]
    fn each_operation_has_its_type() {
        let mut sample = Sample::new(4);
        for (event, op) in sample.events.iter_mut().zip(Operation::ALL) {
            *event = ChangeEvent::encode(&sample.source, op, event.cursor.clone(), &[]);
        }
        let body = encode(&as_one_part(sample.delivery())).unwrap();
        let parsed: Vec<serde_json::Value> = serde_json::from_slice(&body).unwrap();
        for (event, op) in parsed.iter().zip(Operation::ALL) {
            assert_eq!(event["type"], format!("highwater.{op}"));
            assert_eq!(event["data"]["op"], op.as_str());
        }
    }
}
