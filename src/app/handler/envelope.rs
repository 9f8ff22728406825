//! The JSON object around the events of a batch, as sent by `http` and `durable`. Pure.

use hyper::body::Bytes;
use serde::Serialize;
use time::OffsetDateTime;

use super::Delivery;
use crate::event::{ChangeEvent, EventJson, SourceLabel};

/// Everything except the events, in the order of writing.
#[derive(Serialize)]
struct Head<'a> {
    batch_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<Step<'a>>,
    poller: &'a str,
    generation: u64,
    fencing_token: u64,
    attempt: u32,
    #[serde(with = "time::serde::rfc3339")]
    started_at: OffsetDateTime,
    replay_id: Option<&'a str>,
    source: &'a SourceLabel,
    rows: usize,
}

/// The step of a handler chain that receives it.
#[derive(Serialize)]
struct Step<'a> {
    name: &'a str,
    of_batch: &'a str,
}

/// The text after the events.
const END: &str = "]}";

/// Returns one object around `events`: all events of `delivery`, or some of them with their own
/// `batch_id`. The events' JSON is copied verbatim.
pub(super) fn encode(
    delivery: &Delivery<'_>,
    batch_id: &str,
    events: &[&ChangeEvent],
) -> Result<Vec<u8>, serde_json::Error> {
    let head = head(delivery, batch_id, events.len())?;
    let events_bytes: usize = events.iter().map(|event| event.json.len() + 1).sum();
    // Allocated once: a batch is the largest thing in memory.
    let mut body = Vec::with_capacity(head.len() + events_bytes + END.len());
    body.extend_from_slice(head.as_bytes());
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(event.json.as_bytes());
    }
    body.extend_from_slice(END.as_bytes());
    Ok(body)
}

/// Returns the same object in pieces, one of which is the events' JSON as it was encoded. It is not copied,
/// since a batch is the largest thing in memory. Events that are not contiguous in memory are copied.
pub(super) fn pieces(
    delivery: &Delivery<'_>,
    batch_id: &str,
    events: &[&ChangeEvent],
) -> Result<Vec<Bytes>, serde_json::Error> {
    let Some(joined) = EventJson::joined(events.iter().map(|event| &event.json)) else {
        return Ok(vec![encode(delivery, batch_id, events)?.into()]);
    };
    let head = head(delivery, batch_id, events.len())?;
    Ok(vec![head.into(), Bytes::from_owner(joined), Bytes::from_static(END.as_bytes())])
}

/// Returns the text before the events.
fn head(delivery: &Delivery<'_>, batch_id: &str, rows: usize) -> Result<String, serde_json::Error> {
    let mut head = serde_json::to_string(&Head {
        batch_id,
        step: delivery.step.map(|step| Step { name: step.name, of_batch: step.of_batch.as_str() }),
        poller: delivery.poller,
        generation: delivery.generation.0,
        fencing_token: delivery.fencing_token.0,
        attempt: delivery.attempt,
        started_at: delivery.started_at,
        replay_id: delivery.replay_id,
        source: delivery.source,
        rows,
    })?;
    head.pop();
    head.push_str(r#","events":["#);
    Ok(head)
}
