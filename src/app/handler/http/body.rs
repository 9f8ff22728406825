//! The body of a delivery, in one of three formats. Pure.

pub(in crate::handler) mod cloud_events;
pub(in crate::handler) mod debezium;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};

use crate::config::BodyForm;
use crate::event::ChangeEvent;
use crate::handler::envelope;
use crate::handler::http::concurrency::Part;

/// Largest frame passed to the connection, which makes another copy of it for encryption.
const FRAME_BYTES_MAX: usize = 64 << 10;

/// The body of a request, in consecutive pieces; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Body(Vec<Bytes>);

impl Body {
    /// Returns its pieces, in order.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|piece| &**piece)
    }

    /// Returns how many bytes it has.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Returns it as one piece.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.concat()
    }
}

impl From<Vec<u8>> for Body {
    fn from(body: Vec<u8>) -> Self {
        Self(vec![body.into()])
    }
}

impl From<Body> for reqwest::Body {
    fn from(body: Body) -> Self {
        Self::wrap(Sending { left: bytes(body.len()), pieces: body.0.into() })
    }
}

fn bytes(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// A body that is being sent.
struct Sending {
    pieces: VecDeque<Bytes>,
    /// Bytes not yet sent.
    left: u64,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.pieces.front().is_some_and(Bytes::is_empty) {
            self.pieces.pop_front();
        }
        let Some(piece) = self.pieces.front_mut() else { return Poll::Ready(None) };
        let frame = piece.split_to(piece.len().min(FRAME_BYTES_MAX));
        self.left -= bytes(frame.len());
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Returns the body of a delivery in the given format.
///
/// The same delivery always gives the same bytes: no format contains the time of encoding.
pub(super) fn encode(form: BodyForm, part: &Part<'_>) -> Result<Body, serde_json::Error> {
    match form {
        BodyForm::Highwater => {
            envelope::pieces(&part.batch, part.id.as_str(), &part.events).map(Body)
        }
        BodyForm::CloudEvents => cloud_events::encode(part).map(Body::from),
        BodyForm::Debezium => debezium::encode(part).map(Body::from),
    }
}

/// Returns the media type of a format.
pub(super) fn content_type(form: BodyForm) -> &'static str {
    match form {
        BodyForm::Highwater | BodyForm::Debezium => "application/json",
        BodyForm::CloudEvents => "application/cloudevents-batch+json; charset=utf-8",
    }
}

/// Returns a JSON array with the output of `write` for each event.
fn array<'a>(
    part: &Part<'a>,
    mut write: impl FnMut(&mut Vec<u8>, &'a ChangeEvent) -> Result<(), serde_json::Error>,
) -> Result<Vec<u8>, serde_json::Error> {
    /// Approximate size that a format adds to an event.
    const ADDED_BYTES: usize = 320;
    let bytes: usize = part.events.iter().map(|event| event.json.len() + ADDED_BYTES).sum();
    // Usually allocated once: a batch is the largest thing in memory.
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

    use hyper::body::Body as _;

    use super::*;
    use crate::event::EventEncoder;
    use crate::handler::http::concurrency::as_one_part;
    use crate::handler::testing::Sample;
    use crate::handler::{ChainStep, Delivery};

    #[test]
    fn the_body_is_one_object_around_the_events() {
        let sample = Sample::new(2);
        let body = encode(
            BodyForm::Highwater,
            &as_one_part(Delivery { replay_id: Some("again"), ..sample.delivery() }),
        )
        .unwrap();
        assert_eq!(body.len(), body.clone().into_bytes().len());
        let text = String::from_utf8(body.into_bytes()).unwrap();
        let (head, events) = text.split_once(r#""events":["#).unwrap();
        expect![[r#"{"batch_id":"batch_…","poller":"orders","generation":7,"fencing_token":42,"attempt":2,"started_at":"1970-01-01T00:00:01.5Z","replay_id":"again","source":{"poller":"orders","object":"dbo.orders","mode":"rowversion"},"rows":2,"#]].assert_eq(&head.replace(sample.batch_id.as_str(), "batch_…"));
        let json: Vec<&str> = sample.events.iter().map(|event| event.json.as_str()).collect();
        assert_eq!(events, format!("{}]}}", json.join(",")));
        let parsed: Json = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["events"][1]["pk"]["id"], 2);
    }

    #[test]
    fn a_step_of_a_chain_has_its_own_id_and_names_the_batch() {
        let sample = Sample::new(1);
        let (of_batch, batch_id) = (&sample.batch_id, sample.batch_id.of_step("notify"));
        let step = Some(ChainStep { name: "notify", of_batch });
        let delivery = Delivery { batch_id: &batch_id, step, ..sample.delivery() };
        let body = encode(BodyForm::Highwater, &as_one_part(delivery)).unwrap();
        let parsed: Json = serde_json::from_slice(&body.into_bytes()).unwrap();
        assert_eq!(parsed["batch_id"], batch_id.as_str());
        let step = serde_json::json!({ "name": "notify", "of_batch": of_batch.as_str() });
        assert_eq!(parsed["step"], step);
    }

    #[test]
    fn events_that_were_encoded_together_are_not_copied() {
        let sample = Sample::new(3);
        let mut encoder = EventEncoder::new(sample.delivery().source, 3, 0);
        for event in &sample.events {
            encoder.push(event.op, event.cursor.clone(), "{}");
        }
        let events = encoder.finish();
        let delivery = Delivery { events: &events, ..sample.delivery() };
        let body = encode(BodyForm::Highwater, &as_one_part(delivery)).unwrap();
        let pieces: Vec<&[u8]> = body.pieces().collect();
        assert_eq!(pieces.len(), 3);
        assert!(std::ptr::eq(pieces[1].as_ptr(), events[0].json.as_ptr()));
        let parsed: Json = serde_json::from_slice(&body.into_bytes()).unwrap();
        assert_eq!(parsed["events"].as_array().unwrap().len(), 3);
    }

    #[tokio::test]
    async fn a_body_is_sent_in_frames_of_known_length() {
        let large = vec![b'x'; 2 * FRAME_BYTES_MAX + 1];
        let body = Body(vec![Bytes::new(), large.into(), Bytes::new(), Bytes::from_static(b"]}")]);
        let mut sending = Box::pin(Sending { left: bytes(body.len()), pieces: body.0.into() });
        let mut frames = Vec::new();
        while !sending.is_end_stream() {
            let left = sending.size_hint().exact().unwrap();
            let frame = std::future::poll_fn(|context| sending.as_mut().poll_frame(context)).await;
            let frame = frame.unwrap().unwrap().into_data().unwrap();
            assert_eq!(sending.size_hint().exact().unwrap(), left - bytes(frame.len()));
            frames.push(frame.len());
        }
        assert_eq!(frames, [FRAME_BYTES_MAX, FRAME_BYTES_MAX, 1, 2]);
    }

    #[test]
    fn the_same_delivery_gives_the_same_bytes() {
        let sample = Sample::new(5);
        for form in [BodyForm::Highwater, BodyForm::CloudEvents, BodyForm::Debezium] {
            let [one, other] =
                [(); 2].map(|()| encode(form, &as_one_part(sample.delivery())).unwrap());
            assert_eq!(one, other);
        }
    }
}
