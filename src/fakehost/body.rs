//! What an invocation carries.

use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::timers::TimerStatus;
use super::wire::Framing;

/// One call of a function.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Name of the function, as its folder is written.
    pub function: String,
    /// The host's id of it.
    pub id: String,
    /// W3C trace context, where the host has one.
    pub traceparent: Option<String>,
    /// What goes with that.
    pub tracestate: Option<String>,
    /// How the body is sent.
    pub framing: Framing,
    /// The body.
    pub body: Vec<u8>,
}

impl Invocation {
    /// Returns a call with a new id, in one chunk, without a trace.
    pub fn new(function: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            function: function.to_owned(),
            id: Uuid::new_v4().to_string(),
            traceparent: None,
            tracestate: None,
            framing: Framing::default(),
            body: body.into(),
        }
    }
}

/// The host's own retry policy, `fixedDelay`.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Most tries after the first.
    pub count_max: u32,
    /// Pause before each.
    pub delay: std::time::Duration,
}

/// Name of the timer's binding.
const BINDING: &str = "myTimer";

/// Returns the body of a timer's run; `retry` is the count, the most, and the last failure.
pub(super) fn timer(
    function: &str,
    now: &str,
    status: &TimerStatus,
    is_past_due: bool,
    retry: Option<(u32, u32, Option<&str>)>,
) -> Vec<u8> {
    let mut metadata = Map::new();
    let guid = Uuid::new_v4().to_string();
    let sys = json!({"MethodName": function, "UtcNow": now, "RandGuid": guid});
    metadata.insert("sys".to_owned(), sys);
    if let Some((count, count_max, failure)) = retry {
        metadata.insert("RetryContext".to_owned(), retry_context(count, count_max, failure));
    }
    let timer = json!({
        "Schedule": {"AdjustForDST": true},
        "ScheduleStatus": {
            "Last": status.last, "Next": status.next, "LastUpdated": status.last,
        },
        "IsPastDue": is_past_due,
    });
    json!({"Data": {BINDING: timer}, "Metadata": metadata}).to_string().into_bytes()
}

fn retry_context(count: u32, count_max: u32, failure: Option<&str>) -> Json {
    let exception = failure.map(|text| {
        json!({
            "ClassName": "Microsoft.Azure.WebJobs.Host.FunctionInvocationException",
            "Message": text,
        })
    });
    json!({
        "RetryCount": count, "MaxRetryCount": count_max,
        "Exception": exception, "Instance": null, "State": {},
    })
}
