//! Sends messages concurrently, and keeps the order of the rows of each key.
//!
//! Messages start in the order of the rows. A message waits while an earlier one with a row of the same key is in flight.
//! It also waits while it is too far after the oldest message in flight: only rows without a gap count as accepted, so
//! a crash repeats what was sent after that one. After a failure no further message starts, but those in flight are
//! awaited: nothing may be sent once the call has ended.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use highwater_engine::handler::HandlerError;

use super::message::{Message, Messages, OversizeEvent, Row};

/// A message starts less than this many times the concurrency after the oldest one in flight.
const LOOK_AHEAD: usize = 2;

/// Why not all messages were sent.
#[derive(Debug)]
pub(super) enum NotSent<'a> {
    /// The queue did not accept one.
    Failed(HandlerError),
    /// All messages before this event were sent.
    Oversize(OversizeEvent<'a>),
}

/// Sends `messages`, at most `concurrency` at a time, with `send`. Calls `accepted` with the rows of each as soon as the
/// queue has it.
pub(super) async fn dispatch<'a, Sending>(
    messages: Messages<'a>,
    concurrency: usize,
    send: impl Fn(String) -> Sending,
    mut accepted: impl FnMut(&[Row<'a>]),
) -> Result<(), NotSent<'a>>
where
    Sending: Future<Output = Result<(), HandlerError>>,
{
    let concurrency = concurrency.max(1);
    let window = concurrency.saturating_mul(LOOK_AHEAD);
    let mut messages = messages.enumerate().peekable();
    let mut in_flight = FuturesUnordered::new();
    // All messages before the first of these are accepted, unless one failed.
    let mut numbers_in_flight = BTreeSet::new();
    let mut busy = BTreeSet::new();
    let mut failed: Option<((u8, usize), HandlerError)> = None;
    loop {
        while failed.is_none()
            && in_flight.len() < concurrency
            && let Some((number, Ok(Message { text, rows }))) =
                messages.next_if(|(number, next)| {
                    let oldest = numbers_in_flight.first().unwrap_or(number);
                    let rows = next.as_ref().map_or(&[][..], |message| &message.rows);
                    next.is_ok()
                        && number - oldest < window
                        && !rows.iter().any(|row| busy.contains(&key_of(row)))
                })
        {
            numbers_in_flight.insert(number);
            busy.extend(rows.iter().map(key_of));
            let sending = send(text);
            in_flight.push(async move { (number, rows, sending.await) });
        }
        let Some((number, rows, result)) = in_flight.next().await else { break };
        numbers_in_flight.remove(&number);
        for row in &rows {
            busy.remove(&key_of(row));
        }
        match result {
            Ok(()) => accepted(&rows),
            Err(error) => {
                // One error is reported: that with the widest scope, then that of the first row.
                let first = rows.first().map_or(0, |row| row.index);
                let rank = (error.scope(), first);
                if failed.as_ref().is_none_or(|(before, _)| rank < *before) {
                    failed = Some((rank, error));
                }
            }
        }
    }
    if let Some((_, error)) = failed {
        return Err(NotSent::Failed(error));
    }
    match messages.next() {
        Some((_, Err(oversize))) => Err(NotSent::Oversize(oversize)),
        // A defect: with nothing in flight, nothing holds a message back.
        Some((number, Ok(_))) => {
            let reason = format!("only {number} messages of the batch were sent");
            Err(NotSent::Failed(HandlerError::Retryable(reason)))
        }
        None => Ok(()),
    }
}

fn key_of(row: &Row<'_>) -> String {
    row.event.cursor.key.to_json().to_string()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use highwater_engine::handler::testing::Sample;
    use proptest::prelude::*;
    use serde_json::Value as Json;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::handler::MessageEncoding;

    const LATENCY: Duration = Duration::from_millis(10);

    /// What a stand-in for a queue has seen.
    #[derive(Debug, Default)]
    struct QueueLog {
        in_flight: usize,
        in_flight_max: usize,
        /// Keys of the rows in flight.
        keys_in_flight: BTreeSet<u64>,
        /// Whether rows of one key were in two messages in flight.
        overlaps: bool,
        /// The keys of the rows, in the order in which messages arrived.
        arrived: Vec<u64>,
        /// The indexes of the rows, in the order in which they were reported as sent.
        sent: Vec<usize>,
    }

    /// Sends the rows to a stand-in that takes `latency_of` each message, and fails those with a key in `failing`.
    async fn deliver(
        sample: &Sample,
        (events_max, concurrency): (usize, usize),
        latency_of: impl Fn(u64) -> Duration,
        failing: &[u64],
    ) -> (QueueLog, Option<String>) {
        let seen = RefCell::new(QueueLog::default());
        let rows = Row::of(&sample.events).collect();
        let messages = Messages::new(rows, events_max, MessageEncoding::None);
        let send = |text: String| {
            let (seen, latency_of) = (&seen, &latency_of);
            async move {
                let json: Json = serde_json::from_str(&text).unwrap();
                let events = json.as_array().cloned().unwrap_or_else(|| vec![json]);
                let keys: Vec<u64> =
                    events.iter().map(|event| event["pk"]["id"].as_u64().unwrap()).collect();
                {
                    let mut seen = seen.borrow_mut();
                    seen.in_flight += 1;
                    seen.in_flight_max = seen.in_flight_max.max(seen.in_flight);
                    seen.overlaps |= keys.iter().any(|key| seen.keys_in_flight.contains(key));
                    seen.keys_in_flight.extend(&keys);
                }
                sleep(latency_of(keys[0])).await;
                let mut seen = seen.borrow_mut();
                seen.in_flight -= 1;
                seen.keys_in_flight.retain(|key| !keys.contains(key));
                if let Some(key) = keys.iter().find(|key| failing.contains(key)) {
                    return Err(HandlerError::Retryable(format!("key {key}")));
                }
                seen.arrived.extend(keys);
                Ok(())
            }
        };
        let accepted = |rows: &[Row<'_>]| {
            seen.borrow_mut().sent.extend(rows.iter().map(|row| row.index));
        };
        let result = dispatch(messages, concurrency, send, accepted).await;
        let error = result.err().map(|error| match error {
            NotSent::Failed(error) => error.to_string(),
            NotSent::Oversize(oversize) => oversize.to_string(),
        });
        (seen.into_inner(), error)
    }

    #[tokio::test(start_paused = true)]
    async fn messages_of_different_keys_are_sent_at_the_same_time() {
        let sample = Sample::new(160);
        let took = async |concurrency| {
            let began_at = Instant::now();
            let (seen, error) = deliver(&sample, (1, concurrency), |_| LATENCY, &[]).await;
            assert_eq!((seen.in_flight_max, error), (concurrency, None));
            assert_eq!(seen.arrived.len(), 160);
            began_at.elapsed()
        };
        assert_eq!(took(1).await, 160 * LATENCY);
        assert_eq!(took(16).await, 10 * LATENCY, "16 times as fast");
        let (seen, error) = deliver(&sample, (1, 0), |_| LATENCY, &[]).await;
        assert_eq!((seen.arrived.len(), seen.in_flight_max, error), (160, 1, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_message_bounds_how_many_are_sent_after_it() {
        let sample = Sample::new(40);
        let latency_of = |key| if key == 3 { 100 * LATENCY } else { LATENCY };
        let sending = deliver(&sample, (1, 4), latency_of, &[3]);
        let (seen, error) = sending.await;
        assert_eq!(error.as_deref(), Some("key 3"));
        let expected: Vec<u64> = (1..=10).filter(|key| *key != 3).collect();
        assert_eq!(seen.arrived, expected, "seven after it, although three were always free");
        let (seen, error) = deliver(&sample, (1, 4), latency_of, &[]).await;
        assert_eq!((seen.arrived.len(), error), (40, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_stops_further_messages_and_those_in_flight_are_awaited() {
        let sample = Sample::new(9);
        // 2 fails while 1 and 3 are in flight; 4 starts when 1 is sent.
        let latency_of = |key| LATENCY * u32::try_from(key).unwrap();
        let (seen, error) = deliver(&sample, (1, 3), latency_of, &[2]).await;
        assert_eq!((seen.sent, error.as_deref()), (vec![0, 2, 3], Some("key 2")));
        let (seen, error) = deliver(&sample, (1, 3), latency_of, &[2, 3, 4]).await;
        assert_eq!((seen.sent, error.as_deref()), (vec![0], Some("key 2")), "the first row's");
    }

    #[tokio::test(start_paused = true)]
    async fn rows_before_one_that_is_too_large_are_sent() {
        let mut sample = Sample::new(5);
        sample.events[3].json = format!("\"{}\"", "x".repeat(70_000)).into();
        let (seen, error) = deliver(&sample, (1, 16), |_| LATENCY, &[]).await;
        assert_eq!(seen.sent, [0, 1, 2]);
        assert!(error.unwrap().starts_with("the row {\"id\":4}"));
    }

    proptest! {
        #[test]
        fn rows_of_one_key_arrive_in_order_one_after_the_other(
            keys in prop::collection::vec(0_u64..5, 1..40),
            events_max in 1_usize..4,
            concurrency in 1_usize..6,
            latencies in prop::collection::vec(1_u64..30, 5),
            failing in prop::collection::vec(0_u64..9, 0..2),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time().start_paused(true).build().unwrap();
            let sample = Sample::of_keys(&keys);
            let latency_of = |key| Duration::from_millis(latencies[usize::try_from(key).unwrap()]);
            let sizes = (events_max, concurrency);
            let (seen, error) = runtime.block_on(deliver(&sample, sizes, latency_of, &failing));
            prop_assert!(seen.in_flight_max <= concurrency && !seen.overlaps);
            let fails = keys.iter().any(|key| failing.contains(key));
            prop_assert_eq!(error.is_some(), fails);
            if !fails {
                prop_assert_eq!(seen.sent.len(), keys.len());
            }
            for key in 0..5 {
                let of_key: Vec<usize> =
                    seen.sent.iter().copied().filter(|index| keys[*index] == key).collect();
                prop_assert!(of_key.is_sorted(), "{:?}", of_key);
                // No row of the key was passed over.
                let all = (0..keys.len()).filter(|index| keys[*index] == key);
                prop_assert!(all.zip(&of_key).all(|(index, sent)| index == *sent));
            }
        }
    }
}
