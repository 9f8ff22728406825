//! Splits one batch into parallel requests, and keeps the order of the rows of each key. Pure.
//!
//! Events with the same key go into one request, in order, so a target sees the states of a row in order.
//! Requests are not ordered among each other. The batch is accepted up to the first event that any request
//! did not accept; events after it are redelivered, even if they were accepted.

use crate::event::{BatchId, BatchIdentity, ChangeEvent, EventsDigest};
use crate::handler::{Delivery, HandlerError};

/// The events of one request: a batch, or a part of one.
#[derive(Debug)]
pub(super) struct Part<'a> {
    /// The whole batch; only `events` are delivered.
    pub(super) batch: Delivery<'a>,
    /// Content identity of `events`.
    pub(super) id: BatchId,
    /// Oldest first; never empty.
    pub(super) events: Vec<&'a ChangeEvent>,
    /// Index of each of `events` in the batch.
    positions: Vec<usize>,
}

impl Part<'_> {
    /// Returns which events of the batch the request accepted, by their index.
    pub(super) fn accepted(
        &self,
        result: &Result<(), HandlerError>,
    ) -> impl Iterator<Item = usize> {
        let accepted = match result {
            Ok(()) => self.positions.len(),
            Err(error) => accepted_by(error),
        };
        self.positions.iter().take(accepted).copied()
    }
}

/// Returns how many events a failed request accepted.
fn accepted_by(error: &HandlerError) -> usize {
    if let HandlerError::Partial { accepted, .. } = error { *accepted } else { 0 }
}

/// Splits a batch into at most `concurrency` requests.
pub(super) fn divide(batch: Delivery<'_>, concurrency: usize) -> Vec<Part<'_>> {
    let mut positions: Vec<Vec<usize>> = vec![Vec::new(); concurrency.max(1)];
    for (position, event) in batch.events.iter().enumerate() {
        let request = request_of(event, positions.len());
        positions.get_mut(request).into_iter().for_each(|request| request.push(position));
    }
    positions.retain(|request| !request.is_empty());
    let is_single = positions.len() == 1;
    let part = |positions: Vec<usize>| {
        let events: Vec<&ChangeEvent> =
            positions.iter().filter_map(|position| batch.events.get(*position)).collect();
        let id = if is_single { batch.batch_id.clone() } else { part_id(&batch, &events) };
        Part { batch, id, events, positions }
    };
    positions.into_iter().map(part).collect()
}

/// Returns a batch as one part.
#[cfg(test)]
pub(super) fn as_one_part(batch: Delivery<'_>) -> Part<'_> {
    divide(batch, 1).pop().unwrap()
}

/// Combines the results of the parts into the result of the batch.
pub(super) fn combine(
    parts: &[Part<'_>],
    results: Vec<Result<(), HandlerError>>,
) -> Result<(), HandlerError> {
    let failed = parts.iter().zip(results).filter_map(|(part, result)| {
        let error = result.err()?;
        let first = part.positions.get(accepted_by(&error)).copied();
        Some((first.unwrap_or_default(), error))
    });
    let mut failed: Vec<(usize, HandlerError)> = failed.collect();
    // Errors that affect more than this batch come first, then errors in batch order.
    failed.sort_by_key(|(position, error)| (error.scope(), *position));
    let accepted = failed.iter().map(|(position, _)| *position).min();
    let longest_wait = failed.iter().filter_map(|(_, error)| error.retry_after()).max();
    let (Some((_, error)), Some(accepted)) = (failed.into_iter().next(), accepted) else {
        return Ok(());
    };
    Err(match error {
        HandlerError::Throttled { reason, .. } => {
            HandlerError::Throttled { reason, retry_after: longest_wait }
        }
        HandlerError::Retryable(reason)
        | HandlerError::Rejected(reason)
        | HandlerError::Partial { reason, .. }
            if accepted > 0 =>
        {
            HandlerError::Partial { accepted, reason }
        }
        HandlerError::Retryable(_)
        | HandlerError::Rejected(_)
        | HandlerError::Partial { .. }
        | HandlerError::Fenced(_)
        | HandlerError::Gone(_)
        | HandlerError::Misconfigured(_)
        | HandlerError::Stalled(_)
        | HandlerError::TooLarge(_) => error,
    })
}

// FNV-1a: simple, and distributes short keys well enough.
// <https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Returns the request for an event's key. It is the same in every process, so that a retry splits the batch
/// in the same way.
fn request_of(event: &ChangeEvent, concurrency: usize) -> usize {
    if concurrency == 1 {
        return 0;
    }
    let key = serde_json::to_string(&event.cursor.key).unwrap_or_default();
    let hash = key.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    u64::try_from(concurrency)
        .ok()
        .and_then(|concurrency| usize::try_from(hash % concurrency.max(1)).ok())
        .unwrap_or(0)
}

/// A part has its own id, since the same id must mean the same bytes.
fn part_id(batch: &Delivery<'_>, events: &[&ChangeEvent]) -> BatchId {
    let digest = EventsDigest::of(events.iter().copied());
    let Some(last) = events.last() else { return batch.batch_id.clone() };
    let id = BatchId::of(&BatchIdentity {
        poller: batch.poller,
        generation: batch.generation.0,
        replay_id: batch.replay_id,
        after: None,
        upto: &last.cursor,
        digest: &digest,
    });
    batch.step.map_or_else(|| id.clone(), |step| id.of_step(step.name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::handler::ChainStep;
    use crate::handler::testing::Sample;

    #[test]
    fn one_request_is_the_batch_itself() {
        let sample = Sample::new(5);
        let parts = divide(sample.delivery(), 1);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].id, sample.batch_id);
        assert_eq!(parts[0].positions, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn keys_are_distributed_over_all_requests() {
        let sample = Sample::new(1000);
        let parts = divide(sample.delivery(), 8);
        assert_eq!(parts.len(), 8);
        assert!(parts.iter().all(|part| (60..200).contains(&part.events.len())));
    }

    proptest! {
        #[test]
        fn every_event_is_in_one_request_and_each_key_keeps_its_order(
            keys in prop::collection::vec(0_u64..6, 1..60),
            concurrency in 1_usize..9,
        ) {
            let sample = Sample::of_keys(&keys);
            let parts = divide(sample.delivery(), concurrency);
            prop_assert!(parts.len() <= concurrency);
            let mut request_of_key = BTreeMap::new();
            let mut seen = Vec::new();
            for (request, part) in parts.iter().enumerate() {
                prop_assert!(part.positions.is_sorted() && !part.positions.is_empty());
                for (event, position) in part.events.iter().zip(&part.positions) {
                    prop_assert_eq!(*event, &sample.events[*position]);
                    let before = request_of_key.insert(keys[*position], request);
                    prop_assert!(before.is_none_or(|before| before == request));
                    seen.push(*position);
                }
            }
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..keys.len()));
        }

        /// `accepted_of` is the number of accepted events of each request.
        #[test]
        fn events_after_the_first_failure_of_any_request_are_not_accepted(
            keys in prop::collection::vec(0_u64..6, 1..60),
            concurrency in 1_usize..9,
            accepted_of in prop::collection::vec(0_usize..20, 9),
        ) {
            let sample = Sample::of_keys(&keys);
            let parts = divide(sample.delivery(), concurrency);
            let mut failed = Vec::new();
            let results = parts.iter().zip(&accepted_of).map(|(part, accepted)| {
                failed.extend(part.positions.iter().skip(*accepted));
                match *accepted {
                    0 => Err(HandlerError::Retryable(String::new())),
                    accepted if accepted < part.events.len() => {
                        Err(HandlerError::Partial { accepted, reason: String::new() })
                    }
                    _ => Ok(()),
                }
            });
            let results: Vec<_> = results.collect();
            let accepted = match combine(&parts, results) {
                Ok(()) => keys.len(),
                Err(HandlerError::Partial { accepted, .. }) => accepted,
                Err(_) => 0,
            };
            prop_assert_eq!(accepted, failed.into_iter().min().unwrap_or(keys.len()));
        }
    }

    #[test]
    fn parts_have_ids_derived_from_their_bytes() {
        let (one, other) = (Sample::of_keys(&[0, 1, 2, 3]), Sample::of_keys(&[0, 1, 2, 3, 4]));
        let ids = |sample: &Sample| {
            divide(sample.delivery(), 2).iter().map(|part| part.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&one), ids(&one));
        assert_ne!(ids(&one)[0], ids(&one)[1]);
        assert!(!ids(&one).contains(&one.batch_id));
        // The added event changes only the request that contains it.
        let same = ids(&one).iter().zip(&ids(&other)).filter(|(one, other)| one == other).count();
        assert_eq!(same, 1);
        let step = Some(ChainStep { name: "notify", of_batch: &one.batch_id });
        let of_step = divide(Delivery { step, ..one.delivery() }, 2);
        assert!(
            of_step.iter().all(|part| !ids(&one).contains(&part.id)),
            "the parts of a step have other ids"
        );
    }

    #[test]
    fn errors_with_a_wider_scope_take_precedence() {
        let sample = Sample::of_keys(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let parts = divide(sample.delivery(), 3);
        assert_eq!(parts.len(), 3);
        let text = String::new;
        let throttled = |seconds: Option<u64>| HandlerError::Throttled {
            reason: text(),
            retry_after: seconds.map(Duration::from_secs),
        };
        let name = |errors: [Result<(), HandlerError>; 3]| {
            let error = combine(&parts, errors.into_iter().collect()).unwrap_err();
            format!("{error:?}")
        };
        for (errors, expected) in [
            (
                [Err(HandlerError::Retryable(text())), Err(HandlerError::Gone(text())), Ok(())],
                "Gone(\"\")",
            ),
            (
                [Ok(()), Err(HandlerError::TooLarge(text())), Err(throttled(None))],
                "Throttled { reason: \"\", retry_after: None }",
            ),
            (
                [Err(throttled(Some(3))), Err(throttled(None)), Err(throttled(Some(9)))],
                "Throttled { reason: \"\", retry_after: Some(9s) }",
            ),
            (
                [Err(throttled(None)), Err(HandlerError::Misconfigured(text())), Ok(())],
                "Misconfigured(\"\")",
            ),
        ] {
            assert_eq!(name(errors), expected);
        }
    }
}
