//! What Application Insights would store of a host's records, with the repository's `host.json`.
//!
//! Names of properties and tags are those of the host's logger for Application Insights and of its SDK. The
//! total of an idle tick under the old levels is compared with what was recorded at the real host.

use highwater_fakehost::{CONSOLE_CATEGORY, Level, Record};
use serde_json::{Value as Json, json};

use crate::child::file;
use crate::kql::{Row, Tables};

/// Which lines are kept, by the rules of .NET's `LoggerRuleSelector.cs`: the longest matching category wins,
/// with at most one `*`.
pub(crate) struct Levels(Vec<(String, Level)>);

impl Levels {
    /// Those of a `host.json`.
    pub(crate) fn of(host: &Json) -> Self {
        let levels = host["logging"]["logLevel"].as_object().unwrap().iter();
        Self(levels.map(|(category, level)| (category.clone(), level_of(level))).collect())
    }

    /// Those of the repository.
    pub(crate) fn ours() -> Self {
        let text = std::fs::read_to_string(file("host.json")).unwrap();
        Self::of(&serde_json::from_str(&text).unwrap())
    }

    fn keeps(&self, record: &Record) -> bool {
        let fits = |(rule, _): &&(String, Level)| {
            let (start, end) = rule.split_once('*').unwrap_or((rule, ""));
            record.category.starts_with(start) && record.category.ends_with(end)
        };
        let rule = self.0.iter().filter(fits).max_by_key(|(rule, _)| rule.len());
        record.level >= rule.map_or(Level::Information, |(_, level)| *level)
    }
}

fn level_of(level: &Json) -> Level {
    match level.as_str().unwrap() {
        "Information" => Level::Information,
        "Warning" => Level::Warning,
        "Error" => Level::Error,
        other => panic!("level {other}"),
    }
}

/// One call as logged by the host, with its time.
#[derive(Clone)]
pub(crate) struct Logged {
    pub(crate) at: f64,
    pub(crate) record: Record,
}

/// Returns the records as two tables, and how many bytes are sent for them.
pub(crate) fn store(logged: &[Logged], levels: &Levels) -> (Tables, usize) {
    let mut tables =
        Tables::from([("traces".to_owned(), Vec::new()), ("requests".to_owned(), Vec::new())]);
    let mut bytes = 0;
    let mut add = |table: &str, row: Row, envelope: &Json| {
        tables.get_mut(table).unwrap().push(row);
        bytes += envelope.to_string().len();
    };
    for Logged { at, record } in logged {
        if levels.keeps(record) {
            let row = json!({
                "timestamp": at, "message": record.message, "customDimensions": {"Category": record.category},
            });
            add("traces", row.as_object().unwrap().clone(), &trace(record));
        }
        if let Some((function, success)) = ended(record) {
            let row =
                json!({"timestamp": at, "name": function, "success": success, "duration": 5.0});
            add("requests", row.as_object().unwrap().clone(), &request(function, success));
        }
    }
    (tables, bytes)
}

/// Returns the function whose end a record logs, and whether it succeeded; the host turns it into a request.
fn ended(record: &Record) -> Option<(&str, bool)> {
    let rest = record.message.strip_prefix("Executed 'Functions.")?;
    let (function, rest) = rest.split_once('\'')?;
    Some((function, rest.starts_with(" (Succeeded")))
}

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const INVOCATION: &str = "0e9a1bb3-0c4b-44a5-9b3f-2f3d5f7e9a10";
const AT: &str = "2026-11-22T10:00:00.0012345Z";

fn tags(operation: Option<&str>) -> Json {
    let mut tags = json!({
        "ai.application.ver": "1.0.0.0",
        "ai.cloud.roleInstance": "9f1c2d3e4b5a",
        "ai.cloud.roleName": "highwater-shop",
        "ai.internal.nodeName": "9f1c2d3e4b5a",
        "ai.internal.sdkVersion": "azurefunctions: 4.1037.0.0",
        "ai.location.ip": "0.0.0.0",
    });
    if let Some(function) = operation {
        tags["ai.operation.id"] = json!(ID);
        tags["ai.operation.parentId"] = json!("00f067aa0ba902b7");
        tags["ai.operation.name"] = json!(function);
    }
    tags
}

fn envelope(kind: &str, operation: Option<&str>, data: &Json) -> Json {
    json!({
        "name": format!("Microsoft.ApplicationInsights.{kind}"),
        "time": AT,
        "iKey": "00000000-0000-0000-0000-000000000000",
        "tags": tags(operation),
        "data": {"baseType": format!("{kind}Data"), "baseData": data},
    })
}

fn properties(category: &str, level: &str) -> Json {
    json!({
        "Category": category,
        "HostInstanceId": "5a1f3c9e-8f0b-4a87-9d5e-6c7b8a9d0e1f",
        "LogLevel": level,
        "ProcessId": "1234",
    })
}

fn trace(record: &Record) -> Json {
    let level = format!("{:?}", record.level);
    let mut properties = properties(&record.category, &level);
    let function =
        record.category.strip_prefix("Function.").map(|rest| rest.trim_end_matches(".User"));
    if let Some(function) = function {
        properties["InvocationId"] = json!(INVOCATION);
        if !record.category.ends_with(".User") {
            properties["prop__functionName"] = json!(format!("Functions.{function}"));
            properties["prop__invocationId"] = json!(INVOCATION);
        }
    }
    // A line is its own template, and so is stored twice.
    let template = if record.message.starts_with("Executing") {
        properties["EventId"] = json!("1");
        properties["EventName"] = json!("FunctionStarted");
        properties["prop__reason"] = json!(format!("Timer fired at {AT}"));
        "Executing '{functionName}' (Reason='{reason}', Id={invocationId})"
    } else if record.message.starts_with("Executed") {
        properties["EventId"] = json!("2");
        properties["EventName"] = json!("FunctionCompleted");
        properties["prop__executionDuration"] = json!("5");
        properties["prop__status"] = json!("Succeeded");
        "Executed '{functionName}' ({status}, Id={invocationId}, Duration={executionDuration}ms)"
    } else {
        record.message.as_str()
    };
    properties["prop__{OriginalFormat}"] = json!(template);
    let data = json!({"ver": 2, "message": record.message, "severityLevel": level, "properties": properties});
    let operation = function.filter(|_| record.category != CONSOLE_CATEGORY);
    envelope("Message", operation, &data)
}

fn request(function: &str, success: bool) -> Json {
    let mut properties = properties("Host.Results", "Information");
    properties["FullName"] = json!(format!("Functions.{function}"));
    properties["FunctionExecutionTimeMs"] = json!("4.1234");
    properties["InvocationId"] = json!(INVOCATION);
    properties["OperationName"] = json!(function);
    properties["TriggerReason"] = json!(format!("Timer fired at {AT}"));
    let data = json!({
        "ver": 2, "id": "00f067aa0ba902b7", "name": function, "duration": "00:00:00.0051234",
        "responseCode": if success { "0" } else { "1" }, "success": success, "properties": properties,
        "measurements": {},
    });
    envelope("Request", Some(function), &data)
}
