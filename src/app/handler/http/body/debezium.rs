//! An array of Debezium change events without schemas.
//!
//! An insert is `c`, an update `u`. An upsert is `r`, a row that was read: it is not known whether the row was
//! inserted or updated. The previous state is never known: `before` is `null`, as for a table of Debezium without it,
//! and contains only the key for a delete. There is no `ts_ms`, because the same rows must give the same bytes.
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
        let before = (event.op == Operation::Delete).then_some(&event.cursor.key);
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
        let op = op(event.op);
        serde_json::to_writer(body, &Envelope { before, after: encoded.after, source, op })
    })
}

/// Returns the name of an operation in this format.
pub(in crate::handler) fn op(operation: Operation) -> &'static str {
    match operation {
        Operation::Insert => "c",
        Operation::Update => "u",
        Operation::Upsert => "r",
        Operation::Delete => "d",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::event::ChangeEvent;
    use crate::handler::http::concurrency::as_one_part;
    use crate::handler::testing::Sample;
    use crate::value::Value;

    #[test]
    fn an_upsert_is_a_read_an_insert_a_creation_and_a_delete_has_the_key_as_before() {
        let mut sample = Sample::new(4);
        for (at, op) in [(1, Operation::Delete), (2, Operation::Insert), (3, Operation::Update)] {
            let cursor = sample.events[at].cursor.clone();
            let name = Value::Int(7);
            sample.events[at] = ChangeEvent::encode(&sample.source, op, cursor, &[("name", &name)]);
        }
        let mut body = String::from_utf8(encode(&as_one_part(sample.delivery())).unwrap()).unwrap();
        for event in &sample.events {
            body = body.replace(event.id.as_str(), "<id>");
        }
        let body = body.replace(env!("CARGO_PKG_VERSION"), "<version>").replace("},{", "},\n{");
        expect![[r#"
            [{"before":null,"after":{"name":"line one\nline two of 1"},"source":{"version":"<version>","connector":"highwater","name":"orders","snapshot":"false","table":"dbo.orders","mode":"rowversion","cursor":"0x0000000000000001","event_id":"<id>"},"op":"r"},
            {"before":{"id":2},"after":null,"source":{"version":"<version>","connector":"highwater","name":"orders","snapshot":"false","table":"dbo.orders","mode":"rowversion","cursor":"0x0000000000000002","event_id":"<id>"},"op":"d"},
            {"before":null,"after":{"name":7},"source":{"version":"<version>","connector":"highwater","name":"orders","snapshot":"false","table":"dbo.orders","mode":"rowversion","cursor":"0x0000000000000003","event_id":"<id>"},"op":"c"},
            {"before":null,"after":{"name":7},"source":{"version":"<version>","connector":"highwater","name":"orders","snapshot":"false","table":"dbo.orders","mode":"rowversion","cursor":"0x0000000000000004","event_id":"<id>"},"op":"u"}]"#]].assert_eq(&body);
    }
}
