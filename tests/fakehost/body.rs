//! The content of an invocation.

use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::timers::TimerStatus;
use super::wire::Framing;

/// One call of a function.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// Name of the function, spelled like its folder.
    pub function: String,
    /// The host's id of the call.
    pub id: String,
    /// W3C trace context, if the host has one.
    pub traceparent: Option<String>,
    /// The accompanying `tracestate`.
    pub tracestate: Option<String>,
    /// How the body is sent.
    pub framing: Framing,
    /// The body.
    pub body: Vec<u8>,
}

impl Invocation {
    /// Returns a call with a new id, without a trace.
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
    /// Maximum number of retries; -1 for unlimited.
    pub count_max: i32,
    /// Delay before each retry.
    pub delay: std::time::Duration,
}

/// Name of the timer's binding.
const BINDING: &str = "myTimer";

/// A timer's run, as shown by its body.
pub(super) struct Run<'a> {
    pub(super) function: &'a str,
    pub(super) id: &'a str,
    pub(super) now: &'a str,
    /// Absent if the schedule is too short for one.
    pub(super) status: Option<&'a TimerStatus>,
    pub(super) is_past_due: bool,
    /// The count, the maximum, and the last failure.
    pub(super) retry: Option<(u32, i32, Option<&'a str>)>,
}

/// Returns the body of a timer's run.
pub(super) fn timer(run: &Run<'_>) -> Vec<u8> {
    let mut metadata = Map::new();
    let guid = Uuid::new_v4().to_string();
    let sys = json!({"MethodName": run.function, "UtcNow": run.now, "RandGuid": guid});
    metadata.insert("sys".to_owned(), sys);
    if let Some(retry) = run.retry {
        let context = retry_context((run.function, run.id), retry);
        metadata.insert("RetryContext".to_owned(), context);
    }
    let status = run.status.map(
        |status| json!({"Last": status.last, "Next": status.next, "LastUpdated": status.last}),
    );
    let timer = json!({
        "Schedule": {"AdjustForDST": true},
        "ScheduleStatus": status,
        "IsPastDue": run.is_past_due,
    });
    json!({"Data": {BINDING: timer}, "Metadata": metadata}).to_string().into_bytes()
}

pub(super) fn retry_context(
    (function, id): (&str, &str),
    (count, count_max, failure): (u32, i32, Option<&str>),
) -> Json {
    json!({
        "RetryCount": count, "MaxRetryCount": count_max,
        "Exception": failure.map(|text| exception((function, id), text)),
        "Instance": null, "State": {},
    })
}

/// Returns the dump of a failed invocation, about as long as the recorded one.
fn exception((function, id): (&str, &str), text: &str) -> Json {
    const FRAME: &str =
        "   at Microsoft.Azure.WebJobs.Host.Executors.FunctionExecutor.ExecuteAsync()\n";
    json!({
        "InstanceId": id,
        "MethodName": format!("Host.Functions.{function}"),
        "Handled": false,
        "ClassName": "Microsoft.Azure.WebJobs.Host.FunctionInvocationException",
        "Message": format!("Exception while executing function: Functions.{function}"),
        "Data": null,
        "InnerException": {
            "HttpRequestError": 0, "StatusCode": 500, "Message": text, "Data": {},
            "InnerException": null, "HelpLink": null, "Source": "System.Net.Http",
            "HResult": -2_146_233_088, "StackTrace": FRAME.repeat(30),
        },
        "HelpURL": null,
        "StackTraceString": FRAME.repeat(10),
        "RemoteStackTraceString": null,
        "RemoteStackIndex": 0,
        "ExceptionMethod": null,
        "HResult": -2_146_233_088,
        "Source": "System.Private.CoreLib",
        "WatsonBuckets": null,
    })
}
