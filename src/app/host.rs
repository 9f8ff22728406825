//! The contract with the Azure Functions host: its requests, and the replies that it accepts.
//!
//! The host POSTs to `/{function}`. After an empty 2xx reply or the JSON value `null` it keeps waiting, until
//! its timeout kills this process with all other invocations. So every reply is a JSON object, also for panics
//! and unknown functions. For any status but 2xx the host drops the body and keeps only the reason phrase. Its
//! timestamps have several formats, some without an offset, so they are not parsed.

mod call;
pub mod group;
mod reason;
pub mod server;
pub mod traced;

use serde::Serialize;
use serde_json::Value as Json;
use thiserror::Error;

use crate::printable::printable;
use crate::trace::TraceContext;

/// The parts of an invocation that a tick needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The host's id, the same for all retries of one timer occurrence.
    pub id: String,
    /// Whether the timer fired late because the host was down.
    pub is_past_due: bool,
    /// The missed time, as the host formats it.
    pub missed: Option<String>,
    /// Number of the retry, if the host has a retry policy.
    pub retry_count: Option<u64>,
    /// Whether the host has a retry policy, so that it calls again after a failure.
    pub has_retry_policy: bool,
    /// Maximum retries of that policy; -1 for no limit.
    pub retry_count_max: Option<i64>,
    /// Whether it was started through the host's admin endpoint.
    pub is_manual: bool,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// W3C trace state; only with a valid trace context.
    pub tracestate: Option<String>,
}

/// The request does not come from the host.
#[derive(Debug, Error)]
pub enum InvocationError {
    /// The body is not JSON.
    #[error("body of {length} bytes is not JSON, expected `{{\"Data\":…,\"Metadata\":…}}`")]
    NotJson {
        /// Length of the body.
        length: usize,
        /// Position of the error.
        #[source]
        source: serde_json::Error,
    },
    /// The body is not a JSON object.
    #[error("body is not a JSON object, expected `{{\"Data\":…,\"Metadata\":…}}`")]
    NotAnObject,
}

/// Header with the invocation's id.
pub const INVOCATION_ID_HEADER: &str = "x-azure-functions-invocationid";

impl Invocation {
    /// Reads the body of an invocation.
    ///
    /// Missing fields and fields in unknown formats are ignored: a tick needs none of them.
    ///
    /// # Errors
    ///
    /// [`InvocationError`] if the body is not a JSON object.
    pub fn read(id: &str, body: &[u8]) -> Result<Self, InvocationError> {
        let json: Json = serde_json::from_slice(body)
            .map_err(|source| InvocationError::NotJson { length: body.len(), source })?;
        if !json.is_object() {
            return Err(InvocationError::NotAnObject);
        }
        let timers = json.get("Data").and_then(Json::as_object);
        let metadata = json.get("Metadata").and_then(Json::as_object);
        let late = timers.and_then(|timers| {
            timers.values().find(|timer| timer.get("IsPastDue") == Some(&Json::Bool(true)))
        });
        let missed = late.and_then(|timer| timer.pointer("/ScheduleStatus/Next")?.as_str());
        // A run from the admin endpoint adds its input to the metadata under the trigger's name.
        let is_manual = timers.is_some_and(|timers| {
            timers.keys().any(|name| metadata.is_some_and(|metadata| metadata.contains_key(name)))
        });
        let retry = metadata.and_then(|metadata| metadata.get("RetryContext"));
        Ok(Self {
            id: id.to_owned(),
            is_past_due: late.is_some(),
            missed: missed.map(str::to_owned),
            retry_count: retry.and_then(|retry| retry.get("RetryCount")).and_then(Json::as_u64),
            has_retry_policy: retry.is_some_and(Json::is_object),
            retry_count_max: retry.and_then(|retry| retry.get("MaxRetryCount")?.as_i64()),
            is_manual,
            traceparent: None,
            tracestate: None,
        })
    }

    /// Returns how it differs from an ordinary invocation; `None` if it does not.
    fn why(&self) -> Option<String> {
        let retry = self.retry_count.filter(|count| *count > 0).map(|count| {
            let most = self.retry_count_max.filter(|most| *most > 0);
            let most = most.map_or(String::new(), |most| format!(" of {most}"));
            format!("is retry {count}{most} of the host")
        });
        let late = self.is_past_due.then(|| match &self.missed {
            Some(missed) => format!("is late: its timer missed {missed}"),
            None => "is late: its timer missed a run".to_owned(),
        });
        let manual = self.is_manual.then(|| "was started manually".to_owned());
        let why = [manual, retry, late].into_iter().flatten().collect::<Vec<_>>().join(" and ");
        (!why.is_empty()).then_some(why)
    }

    /// Adds the caller's trace context. A `tracestate` without a valid `traceparent` is dropped:
    /// <https://www.w3.org/TR/trace-context/#tracestate-header>.
    #[must_use]
    pub fn traced(self, traceparent: Option<&str>, tracestate: Option<String>) -> Self {
        let is_valid = traceparent.is_some_and(|text| TraceContext::parse(text).is_some());
        Self {
            traceparent: traceparent.map(str::to_owned),
            tracestate: tracestate.filter(|_| is_valid),
            ..self
        }
    }
}

/// The reply: always an object with all three fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct InvocationResponse {
    outputs: serde_json::Map<String, Json>,
    logs: Vec<String>,
    return_value: (),
}

impl InvocationResponse {
    /// Returns a reply with one log line, which the host shows on success.
    pub fn new(log: impl Into<String>) -> Self {
        Self::of_lines(vec![log.into()])
    }

    /// Returns a reply without log lines.
    pub fn silent() -> Self {
        Self { outputs: serde_json::Map::new(), logs: Vec::new(), return_value: () }
    }

    /// Returns a reply with several log lines, which the host prints as they are.
    pub fn of_lines(logs: Vec<String>) -> Self {
        let logs = logs.into_iter().map(|log| printable(&log).into_owned()).collect();
        Self { logs, ..Self::silent() }
    }

    /// Returns the reply with values for output bindings.
    #[must_use]
    pub fn with_outputs(self, outputs: serde_json::Map<String, Json>) -> Self {
        Self { outputs, ..self }
    }

    /// Returns the JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a reply has only string keys")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_always_has_all_three_fields() {
        let text = InvocationResponse::new("a \"b\" {c}\n\u{1b} ä\u{202e}").to_json();
        let log = "a \\\"b\\\" {c}\\n  ä\u{fffd}";
        assert_eq!(text, format!(r#"{{"Outputs":{{}},"Logs":["{log}"],"ReturnValue":null}}"#));
    }

    #[test]
    fn known_fields_are_read_and_others_are_ignored() {
        let read = |body: &str| Invocation::read("id", body.as_bytes()).unwrap();
        let due = read(
            r#"{"Data":{"t":{"IsPastDue":true,"ScheduleStatus":{"Last":"?"}}},"Metadata":{}}"#,
        );
        assert!(due.is_past_due && !due.is_manual);
        let retried = read(r#"{"Data":{},"Metadata":{"RetryContext":{"RetryCount":2}}}"#);
        assert_eq!((retried.retry_count, retried.has_retry_policy), (Some(2), true));
        assert!(!due.has_retry_policy);
        assert_eq!(due.why().unwrap(), "is late: its timer missed a run");
        let due = read(
            r#"{"Data":{"t":{"IsPastDue":true,"ScheduleStatus":{"Next":"2026-11-20T10:00:00+00:00"}}}}"#,
        );
        assert_eq!(due.why().unwrap(), "is late: its timer missed 2026-11-20T10:00:00+00:00");
        let retry = |count: u64, most: i64| {
            let retry = serde_json::json!({ "RetryCount": count, "MaxRetryCount": most });
            let body = serde_json::json!({ "Data": {}, "Metadata": { "RetryContext": retry } });
            read(&body.to_string())
        };
        assert_eq!((retry(2, 3).retry_count, retry(0, 3).why()), (Some(2), None));
        assert_eq!(retry(2, 3).why().unwrap(), "is retry 2 of 3 of the host");
        assert_eq!(retry(7, -1).why().unwrap(), "is retry 7 of the host");
        let manual = read(r#"{"Data":{"t":{}},"Metadata":{"t":"\"\""}}"#);
        assert!(manual.is_manual);
        assert_eq!(manual.why().unwrap(), "was started manually");
        assert_eq!(read("{}"), Invocation { id: "id".to_owned(), ..Invocation::default() });
    }

    #[test]
    fn a_tracestate_needs_a_valid_traceparent() {
        let traced = |parent: Option<&str>| {
            Invocation::default().traced(parent, Some("a=1".to_owned())).tracestate
        };
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(traced(Some(valid)).as_deref(), Some("a=1"));
        assert_eq!((traced(None), traced(Some("00-0-0-00"))), (None, None));
    }

    #[test]
    fn bodies_that_are_not_objects_are_refused() {
        for body in ["", "no", "[]", "\"x\"", "null"] {
            assert!(Invocation::read("", body.as_bytes()).is_err(), "{body}");
        }
    }
}
