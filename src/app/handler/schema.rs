//! The JSON Schema of what a receiver gets, for each handler and format. Pure.
//!
//! # Design
//!
//! - Rows and keys come from the source, see [`RowSchema`]. Everything around them is written here by hand, and
//!   `tests/host/schema.rs` checks it against real deliveries of each format, without unknown fields.
//! - Parts with a name are in `$defs`, because generators name types after them.
//! - Objects allow fields that are not listed: a receiver should ignore fields and columns that are added later.
//! - Operation and `after` are related by `if`, not by two kinds of event: generators ignore `if`, and a choice of two
//!   objects becomes a type that several languages cannot express.

use serde_json::{Map, Value as Json, json};

use crate::config::{BodyForm, HandlerConfig};
use crate::cursor::CursorMode;
use crate::event::Operation;
use crate::handler::http::body::{cloud_events, debezium};
use crate::source::mssql::RowSchema;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
const EVENT_ID: &str = "^[0-9a-f]{32}$";
const BATCH_ID: &str = "^batch_[0-9a-f]{32}$";

/// What a receiver gets at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireForm {
    /// An object around the events of a batch.
    Batch {
        /// Whether the receiver is a step of a chain, which is then named.
        is_step: bool,
    },
    /// An array of CloudEvents.
    CloudEvents,
    /// An array of Debezium envelopes.
    Debezium,
    /// One event, such as a line of a file.
    Event,
    /// An array of events.
    Events,
}

impl WireForm {
    /// Returns the form in which a handler sends events; `None` if it sends no JSON, or is a chain.
    pub fn of(handler: &HandlerConfig, is_step: bool) -> Option<Self> {
        match handler {
            HandlerConfig::Http(http) => Some(match http.body {
                BodyForm::Highwater => Self::Batch { is_step },
                BodyForm::CloudEvents => Self::CloudEvents,
                BodyForm::Debezium => Self::Debezium,
            }),
            HandlerConfig::Durable(_) => Some(Self::Batch { is_step }),
            HandlerConfig::Blob(_) | HandlerConfig::Exec(_) | HandlerConfig::Stdout => {
                Some(Self::Event)
            }
            HandlerConfig::Queue(queue) if queue.message_events_max > 1 => Some(Self::Events),
            HandlerConfig::Queue(_) => Some(Self::Event),
            HandlerConfig::Sql(_) | HandlerConfig::Chain(_) => None,
        }
    }
}

/// Returns the schema of what a receiver gets in this form.
pub fn of_delivery(form: WireForm, rows: &RowSchema) -> Json {
    let mut defs = Map::new();
    defs.insert("Key".to_owned(), rows.key.clone());
    defs.insert("Row".to_owned(), rows.row.clone());
    let mut define = |name: &str, schema| {
        defs.insert(name.to_owned(), schema);
    };
    if form != WireForm::Debezium {
        define("Cursor", cursor(rows.mode));
        define("Source", source(rows.mode));
    }
    let root = match form {
        WireForm::Batch { is_step } => {
            define("Event", event(rows));
            if is_step {
                define("Step", step());
            }
            batch(is_step)
        }
        WireForm::CloudEvents => {
            define("Event", event(rows));
            define("CloudEvent", cloud_event(rows));
            array("CloudEvents", "CloudEvent")
        }
        WireForm::Debezium => {
            define("Source", debezium_source(rows.mode));
            define("Change", change(rows));
            array("Changes", "Change")
        }
        WireForm::Event => event(rows),
        WireForm::Events => {
            define("Event", event(rows));
            array("Events", "Event")
        }
    };
    let mut schema = Map::new();
    schema.insert("$schema".to_owned(), DIALECT.into());
    schema.extend(if let Json::Object(root) = root { root } else { Map::new() });
    schema.insert("$defs".to_owned(), defs.into());
    schema.into()
}

/// Returns the schema of an object with these properties, all of them required.
fn object(title: &str, properties: &Json) -> Json {
    let names: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    json!({ "title": title, "type": "object", "required": names, "properties": properties })
}

fn array(title: &str, of: &str) -> Json {
    json!({ "title": title, "type": "array", "items": reference(of) })
}

fn reference(name: &str) -> Json {
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn or_null(name: &str) -> Json {
    json!({ "oneOf": [reference(name), { "type": "null" }] })
}

fn text(description: &str) -> Json {
    json!({ "type": "string", "description": description })
}

fn pattern(pattern: &str, description: &str) -> Json {
    json!({ "type": "string", "pattern": pattern, "description": description })
}

fn constant(value: &str) -> Json {
    json!({ "type": "string", "const": value })
}

fn counter(minimum: u64, description: &str) -> Json {
    json!({ "type": "integer", "format": "int64", "minimum": minimum, "description": description })
}

/// Returns the schema of the operations that can occur, by their names in a format.
fn operation(name: fn(Operation) -> &'static str, rows: &RowSchema) -> Json {
    let names = rows.operations.iter().copied().map(name);
    json!({ "type": "string", "enum": names.collect::<Vec<_>>() })
}

fn has_deletes(rows: &RowSchema) -> bool {
    rows.operations.contains(&Operation::Delete)
}

fn batch(is_step: bool) -> Json {
    let mut properties = Map::new();
    let mut add = |name: &str, schema| {
        properties.insert(name.to_owned(), schema);
    };
    add("batch_id", pattern(BATCH_ID, "The same id always means the same events."));
    if is_step {
        add("step", reference("Step"));
    }
    add("poller", text("Name of the poller, of one of its partitions, or of a redelivered range."));
    let order =
        "With the fencing token, the order of leases: reject a lower pair than the highest seen.";
    add("generation", counter(0, order));
    add("fencing_token", counter(0, "See `generation`."));
    add("attempt", counter(1, "1 for the first known delivery of these events."));
    let started = "When the batch was first recorded; the same for every attempt.";
    add("started_at", json!({ "type": "string", "format": "date-time", "description": started }));
    let replay = "Set while a range is redelivered on request.";
    add("replay_id", json!({ "type": ["string", "null"], "description": replay }));
    add("source", reference("Source"));
    add("rows", counter(1, "Number of events."));
    add("events", json!({ "type": "array", "items": reference("Event") }));
    object("Batch", &properties.into())
}

fn step() -> Json {
    let of_batch = "Id of the batch that all steps of the chain receive.";
    object(
        "Step",
        &json!({ "name": text("Name of the step."), "of_batch": pattern(BATCH_ID, of_batch) }),
    )
}

fn event(rows: &RowSchema) -> Json {
    let id =
        "The same on every delivery of this state of the row: ignore an id that was processed.";
    let mut schema = object(
        "Event",
        &json!({
            "id": pattern(EVENT_ID, id),
            "op": operation(Operation::as_str, rows),
            "pk": reference("Key"),
            "cursor": reference("Cursor"),
            "before": { "type": "null" },
            "after": after(rows),
            "source": reference("Source"),
        }),
    );
    relate(&mut schema, rows, "delete");
    schema
}

fn after(rows: &RowSchema) -> Json {
    if has_deletes(rows) { or_null("Row") } else { reference("Row") }
}

/// Requires that `after` is `null` for a deleted row, and for no other.
fn relate(schema: &mut Json, rows: &RowSchema, delete: &str) {
    let Some(schema) = schema.as_object_mut().filter(|_| has_deletes(rows)) else { return };
    let after = |name: &str| json!({ "properties": { "after": { "type": name } } });
    let is_delete = json!({ "properties": { "op": { "const": delete } } });
    schema.insert("if".to_owned(), is_delete);
    schema.insert("then".to_owned(), after("null"));
    schema.insert("else".to_owned(), after("object"));
}

fn cursor(mode: CursorMode) -> Json {
    object(
        "Cursor",
        &json!({
            "kind": constant(mode.as_str()),
            "value": position(mode),
            "tiebreaker": reference("Key"),
        }),
    )
}

/// Returns the schema of the leading part of a position.
fn position(mode: CursorMode) -> Json {
    let form = match mode {
        CursorMode::RowVersion => "^0x[0-9A-F]{16}$",
        CursorMode::TimestampPk => {
            r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{7}Z?)?$"
        }
        CursorMode::IntegerPk => "^-?[0-9]+$",
        CursorMode::ChangeTracking => "^(snapshot@)?[0-9]+$",
    };
    pattern(form, "Position of the row in the order of its source.")
}

fn source(mode: CursorMode) -> Json {
    object(
        "Source",
        &json!({
            "poller": text("Name of the poller."),
            "object": text("Table or view; `query` for a query."),
            "mode": constant(mode.as_str()),
        }),
    )
}

fn cloud_event(rows: &RowSchema) -> Json {
    object(
        "CloudEvent",
        &json!({
            "specversion": constant("1.0"),
            "id": pattern(EVENT_ID, "The id of the event."),
            "source": pattern("^urn:highwater:", "URN of the poller."),
            "type": operation(cloud_events::kind, rows),
            "subject": text("The key of the row, as JSON."),
            "datacontenttype": constant("application/json"),
            "data": reference("Event"),
        }),
    )
}

fn change(rows: &RowSchema) -> Json {
    let before = if has_deletes(rows) { or_null("Key") } else { json!({ "type": "null" }) };
    let mut schema = object(
        "Change",
        &json!({
            "before": before,
            "after": after(rows),
            "source": reference("Source"),
            "op": operation(debezium::op, rows),
        }),
    );
    relate(&mut schema, rows, "d");
    schema
}

fn debezium_source(mode: CursorMode) -> Json {
    object(
        "Source",
        &json!({
            "version": text("Version of Highwater."),
            "connector": constant("highwater"),
            "name": text("Name of the poller."),
            "snapshot": constant("false"),
            "table": text("Table or view; `query` for a query."),
            "mode": constant(mode.as_str()),
            "cursor": position(mode),
            "event_id": pattern(EVENT_ID, "The id of the event."),
        }),
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn rows(operations: &[Operation]) -> RowSchema {
        let id = json!({ "id": { "type": "integer" } });
        RowSchema {
            mode: CursorMode::RowVersion,
            key: object("Key", &id),
            row: object("Row", &id),
            operations: operations.to_vec(),
        }
    }

    /// Returns names of definitions, and the required fields of the first level.
    fn outline(form: WireForm) -> String {
        let schema = of_delivery(form, &rows(&[Operation::Upsert, Operation::Delete]));
        let names = |json: &Json| {
            let names = json.as_object().into_iter().flat_map(Map::keys);
            names.cloned().collect::<Vec<_>>().join(" ")
        };
        let of = |json: &Json| format!("{} {}", json["title"], names(&json["properties"]));
        let defs = schema["$defs"].as_object().unwrap();
        std::iter::once(of(&schema)).chain(defs.values().map(of)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_form_has_its_own_definitions() {
        expect![[r#"
            "Batch" batch_id step poller generation fencing_token attempt started_at replay_id source rows events
            "Key" id
            "Row" id
            "Cursor" kind value tiebreaker
            "Source" poller object mode
            "Event" id op pk cursor before after source
            "Step" name of_batch"#]]
        .assert_eq(&outline(WireForm::Batch { is_step: true }));
        expect![[r#"
            "CloudEvents" 
            "Key" id
            "Row" id
            "Cursor" kind value tiebreaker
            "Source" poller object mode
            "Event" id op pk cursor before after source
            "CloudEvent" specversion id source type subject datacontenttype data"#]]
        .assert_eq(&outline(WireForm::CloudEvents));
        expect![[r#"
            "Changes" 
            "Key" id
            "Row" id
            "Source" version connector name snapshot table mode cursor event_id
            "Change" before after source op"#]]
        .assert_eq(&outline(WireForm::Debezium));
        expect![[r#"
            "Event" id op pk cursor before after source
            "Key" id
            "Row" id
            "Cursor" kind value tiebreaker
            "Source" poller object mode"#]]
        .assert_eq(&outline(WireForm::Event));
        assert!(outline(WireForm::Events).starts_with("\"Events\" \n"));
    }

    #[test]
    fn only_a_step_names_the_step() {
        let schema = of_delivery(WireForm::Batch { is_step: false }, &rows(&[Operation::Upsert]));
        assert_eq!(schema["properties"].get("step"), None);
        assert_eq!(schema["$defs"].get("Step"), None);
    }

    #[test]
    fn a_source_without_deletes_always_has_the_row() {
        for (operations, op, after) in [
            (vec![Operation::Upsert], json!(["upsert"]), reference("Row")),
            (
                vec![Operation::Upsert, Operation::Delete],
                json!(["upsert", "delete"]),
                or_null("Row"),
            ),
        ] {
            let event = event(&rows(&operations));
            assert_eq!(event["properties"]["op"]["enum"], op);
            assert_eq!(event["properties"]["after"], after);
            assert_eq!(event.get("if").is_some(), operations.contains(&Operation::Delete));
        }
    }

    #[test]
    fn operations_have_the_names_of_the_format() {
        let rows = rows(&Operation::ALL);
        for (schema, field, names) in [
            (event(&rows), "op", ["insert", "update", "upsert", "delete"]),
            (change(&rows), "op", ["c", "u", "r", "d"]),
            (
                cloud_event(&rows),
                "type",
                ["highwater.insert", "highwater.update", "highwater.upsert", "highwater.delete"],
            ),
        ] {
            assert_eq!(schema["properties"][field]["enum"], json!(names));
        }
    }
}
