//! The input of an orchestration. Pure.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::event::SourceLabel;
use crate::handler::Delivery;

#[derive(Serialize)]
struct Input<'a> {
    batch_id: &'a str,
    poller: &'a str,
    generation: u64,
    fencing_token: u64,
    attempt: u32,
    replay_id: Option<&'a str>,
    source: &'a SourceLabel,
    rows: usize,
    events: Vec<&'a RawValue>,
}

/// Returns the input that a delivery becomes; the events' own JSON goes into it as it is.
pub(super) fn encode(delivery: &Delivery<'_>) -> Result<Vec<u8>, serde_json::Error> {
    let events = delivery.events.iter().map(|event| serde_json::from_str(&event.json));
    serde_json::to_vec(&Input {
        batch_id: delivery.batch_id.as_str(),
        poller: &delivery.source.poller,
        generation: delivery.generation.0,
        fencing_token: delivery.fencing_token.0,
        attempt: delivery.attempt,
        replay_id: delivery.replay_id,
        source: delivery.source,
        rows: delivery.events.len(),
        events: events.collect::<Result<_, _>>()?,
    })
}
