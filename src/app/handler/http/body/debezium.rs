//! An array of Debezium change events without schemas.
//!
//! Upserts have the operation `r`, a row that was read: a poller does not know whether the row was inserted
//! or updated, and `u` would require the previous state, which is not known either. The `before` of a
//! delete contains only the key. There is no `ts_ms`, because the same rows must give the same bytes.
//!
//! <https://debezium.io/documentation/reference/stable/connectors/sqlserver.html#sqlserver-create-events>

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cursor::KeyValues;
use crate::event::Operation;
use crate::handler::http::concurrency::Part;

/// The part of an event's JSON that is used.
#[derive(Deserialize)]
struct Encoded<'a> {
    #[serde(borrow)]
    after: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    before: Option<&'a KeyValues>,
    after: Option<&'a RawValue>,
    source: Source<'a>,
    op: &'static str,
}

#[derive(Serialize)]
struct Source<'a> {
    version: &'static str,
    connector: &'static str,
    name: &'a str,
    snapshot: &'static str,
    table: &'a str,
    mode: &'static str,
    cursor: &'a str,
    event_id: &'a str,
}

pub(super) fn encode(part: &Part<'_>) -> Result<Vec<u8>, serde_json::Error> {
    super::array(part, |body, event| {
        let encoded: Encoded<'_> = serde_json::from_str(&event.json)?;
        let (before, op) = match event.op {
            Operation::Upsert => (None, "r"),
            Operation::Delete => (Some(&event.cursor.key), "d"),
        };
        let source = Source {
            version: env!("CARGO_PKG_VERSION"),
            connector: "highwater",
            name: &part.batch.source.poller,
            snapshot: "false",
            table: &part.batch.source.object,
            mode: part.batch.source.mode,
            cursor: &event.cursor.value,
            event_id: event.id.as_str(),
        };
        serde_json::to_writer(body, &Envelope { before, after: encoded.after, source, op })
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::event::ChangeEvent;
    use crate::handler::http::concurrency::as_one_part;
    use crate::handler::testing::Sample;

    #[test]
    fn an_upsert_is_a_read_and_a_delete_has_the_key_as_before() {
        let mut sample = Sample::new(2);
        let cursor = sample.events[1].cursor.clone();
        sample.events[1] = ChangeEvent::encode(&sample.source, Operation::Delete, cursor, &[]);
        let mut body = String::from_utf8(encode(&as_one_part(sample.delivery())).unwrap()).unwrap();
        for event in &sample.events {
            body = body.replace(event.id.as_str(), "<id>");
        }
        let body = body.replace(env!("CARGO_PKG_VERSION"), "<version>").replace("},{", "},\n{");
        expect![[r#"
            [{"before":null,"after":{"name":"line one\nline two of 1"},"source":{"version":"<version>","connector":"highwater","name":"orders","snapshot":"false","table":"dbo.orders","mode":"rowversion","cursor":"0x0000000000000001","event_id":"<id>"},"op":"r"},
            {"before":{"id":2},"after":null,"source":{"version":"<version>","connector":"highwater","name":"orders","snapshot":"false","table":"dbo.orders","mode":"rowversion","cursor":"0x0000000000000002","event_id":"<id>"},"op":"d"}]"#]].assert_eq(&body);
    }
}
