//! The contract with the Azure Functions host: its requests, and the replies that it accepts.
//!
//! The host POSTs to `/{function}`. After an empty 2xx reply or the JSON value `null` it keeps waiting, until
//! its timeout kills this process with all other invocations. So every reply is a JSON object, also for panics
//! and unknown functions. For any status but 2xx the host drops the body and keeps only the reason phrase. Its
//! timestamps have several formats, some without an offset, so they are not parsed.

mod call;
mod fields;
pub mod group;
mod reason;
pub mod server;
pub mod traced;

use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::Value as Json;
use serde_json::value::RawValue;
use thiserror::Error;

use self::fields::{each_field, field, is_object, parsed};
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

/// Names of bindings that are compared with the metadata.
const BINDINGS_MAX: usize = 64;

/// Returns `Data` and `Metadata` of an invocation.
fn parts(body: &[u8]) -> Result<(Option<&RawValue>, Option<&RawValue>), InvocationError> {
    let (mut data, mut metadata) = (None, None);
    let read = each_field(body, |name, value| match name.as_str() {
        "Data" => data = Some(value),
        "Metadata" => metadata = Some(value),
        _ => {}
    });
    // Tells other JSON from what is not JSON.
    let is_json = || serde_json::from_slice::<IgnoredAny>(body).is_ok();
    match read {
        Ok(()) => Ok((data, metadata)),
        Err(_) if is_json() => Err(InvocationError::NotAnObject),
        Err(source) => Err(InvocationError::NotJson { length: body.len(), source }),
    }
}

/// Visits the fields of an object; anything else has none.
fn for_each<'a>(json: Option<&'a RawValue>, visit: impl FnMut(String, &'a RawValue)) {
    if let Some(json) = json {
        // A part of a valid body is valid, and another value than an object is ignored.
        each_field(json.get().as_bytes(), visit).unwrap_or_default();
    }
}

impl Invocation {
    /// Reads the body of an invocation.
    ///
    /// Missing fields and fields in unknown formats are ignored: a tick needs none of them.
    ///
    /// # Errors
    ///
    /// [`InvocationError`] if the body is not a JSON object.
    pub fn read(id: &str, body: &[u8]) -> Result<Self, InvocationError> {
        let (data, metadata) = parts(body)?;
        let (mut names, mut late) = (Vec::new(), None);
        for_each(data, |name, timer| {
            // A function has one trigger, and few other bindings.
            if names.len() < BINDINGS_MAX {
                names.push(name);
            }
            let is_late = || field(timer, "IsPastDue").and_then(parsed) == Some(true);
            if late.is_none() && is_late() {
                late = Some(timer);
            }
        });
        // A run from the admin endpoint adds its input to the metadata under the trigger's name.
        let (mut is_manual, mut retry) = (false, None);
        for_each(metadata, |name, value| {
            is_manual |= names.contains(&name);
            if name == "RetryContext" {
                retry = Some(value);
            }
        });
        let next = |timer| field(field(timer, "ScheduleStatus")?, "Next").and_then(parsed);
        Ok(Self {
            id: id.to_owned(),
            is_past_due: late.is_some(),
            missed: late.and_then(next),
            retry_count: retry.and_then(|retry| field(retry, "RetryCount").and_then(parsed)),
            has_retry_policy: retry.is_some_and(is_object),
            retry_count_max: retry.and_then(|retry| field(retry, "MaxRetryCount").and_then(parsed)),
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
    fn unknown_formats_are_ignored() {
        let read = |body: &str| Invocation::read("id", body.as_bytes()).unwrap();
        for body in [
            r#"{"Data":[0,0],"Metadata":7}"#,
            r#"{"Data":{"t":[{"IsPastDue":true}]},"Metadata":{"RetryContext":[2]}}"#,
            r#"{"Data":{"t":{"IsPastDue":"true"}},"Metadata":{"RetryContext":null}}"#,
            r#"{"data":{"t":{"IsPastDue":true}}}"#,
            // As of a tree of values: the last one counts.
            r#"{"Data":{"t":{"IsPastDue":true}},"Data":{}}"#,
        ] {
            assert_eq!(read(body), Invocation { id: "id".to_owned(), ..Invocation::default() });
        }
        let wrong = read(r#"{"Metadata":{"RetryContext":{"RetryCount":-1,"MaxRetryCount":"x"}}}"#);
        assert_eq!(
            (wrong.has_retry_policy, wrong.retry_count, wrong.retry_count_max),
            (true, None, None)
        );
        let deep = format!("{{\"Data\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(!read(&deep).is_past_due, "the depth does not matter");
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
