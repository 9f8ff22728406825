//! The body of a delivery, in one of three forms. Pure.

mod cloud_events;
mod debezium;

use crate::config::BodyForm;
use crate::event::ChangeEvent;
use crate::handler::envelope;
use crate::handler::http::lanes::Part;

/// Returns the body of a delivery in the form asked for.
///
/// The same delivery always gives the same bytes: no form holds the time of its making.
pub(super) fn encode(form: BodyForm, part: &Part<'_>) -> Result<Vec<u8>, serde_json::Error> {
    match form {
        BodyForm::Highwater => envelope::encode(&part.batch, part.id.as_str(), &part.events),
        BodyForm::CloudEvents => cloud_events::encode(part),
        BodyForm::Debezium => debezium::encode(part),
    }
}

/// Returns the media type of a form.
pub(super) fn content_type(form: BodyForm) -> &'static str {
    match form {
        BodyForm::Highwater | BodyForm::Debezium => "application/json",
        BodyForm::CloudEvents => "application/cloudevents-batch+json; charset=utf-8",
    }
}

/// Returns a JSON array of what `write` makes of each event.
fn array<'a>(
    part: &Part<'a>,
    mut write: impl FnMut(&mut Vec<u8>, &'a ChangeEvent) -> Result<(), serde_json::Error>,
) -> Result<Vec<u8>, serde_json::Error> {
    /// About what a form adds to an event.
    const ADDED_BYTES: usize = 320;
    let bytes: usize = part.events.iter().map(|event| event.json.len() + ADDED_BYTES).sum();
    // Allocated once, as a rule: a batch is the largest thing in memory.
    let mut body = Vec::with_capacity(bytes);
    body.push(b'[');
    for (index, event) in part.events.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write(&mut body, event)?;
    }
    body.push(b']');
    Ok(body)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::Value as Json;

    use super::*;
    use crate::handler::http::lanes::whole;
    use crate::handler::testing::Sample;
    use crate::handler::{ChainStep, Delivery};

    #[test]
    fn the_body_is_one_object_around_the_events() {
        let sample = Sample::new(2);
        let body = encode(
            BodyForm::Highwater,
            &whole(Delivery { replay_id: Some("again"), ..sample.delivery() }),
        )
        .unwrap();
        assert!(body.len() + 2 >= body.capacity());
        let text = String::from_utf8(body).unwrap();
        let (head, events) = text.split_once(r#""events":["#).unwrap();
        expect![[r#"{"batch_id":"batch_…","poller":"orders","generation":7,"fencing_token":42,"attempt":2,"started_at":"1970-01-01T00:00:01.5Z","replay_id":"again","source":{"poller":"orders","object":"dbo.orders","mode":"rowversion"},"rows":2,"#]].assert_eq(&head.replace(sample.batch_id.as_str(), "batch_…"));
        let json: Vec<&str> = sample.events.iter().map(|event| event.json.as_str()).collect();
        assert_eq!(events, format!("{}]}}", json.join(",")));
        let parsed: Json = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["events"][1]["pk"]["id"], 2);
    }

    #[test]
    fn a_step_of_a_chain_is_told_with_the_batch_that_all_steps_get() {
        let sample = Sample::new(1);
        let (of_batch, batch_id) = (&sample.batch_id, sample.batch_id.of_step("notify"));
        let step = Some(ChainStep { name: "notify", of_batch });
        let delivery = Delivery { batch_id: &batch_id, step, ..sample.delivery() };
        let body = encode(BodyForm::Highwater, &whole(delivery)).unwrap();
        let parsed: Json = serde_json::from_slice(&body).unwrap();
        assert_eq!(parsed["batch_id"], batch_id.as_str());
        let step = serde_json::json!({ "name": "notify", "of_batch": of_batch.as_str() });
        assert_eq!(parsed["step"], step);
    }

    #[test]
    fn the_same_delivery_gives_the_same_bytes() {
        let sample = Sample::new(5);
        for form in [BodyForm::Highwater, BodyForm::CloudEvents, BodyForm::Debezium] {
            let [one, other] = [(); 2].map(|()| encode(form, &whole(sample.delivery())).unwrap());
            assert_eq!(one, other);
        }
    }
}
