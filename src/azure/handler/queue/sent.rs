//! The events that this process has sent to a queue. A queue does not recognise duplicates.

use std::collections::{BTreeMap, VecDeque};

use highwater_engine::document::Generation;
use highwater_engine::event::{ChangeEvent, EventId, EventsDigest};
use highwater_engine::handler::Delivery;

/// How many events are remembered: several batches, so that rows sent after a failed one are still known when their
/// turn comes.
const REMEMBERED_MAX: usize = 10_000;

/// Deliveries within which an event is sent once. A reset, a replay and a redrive send it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    poller: String,
    generation: Generation,
    replay_id: Option<String>,
    step: Option<String>,
}

impl Scope {
    pub(super) fn of(delivery: &Delivery<'_>) -> Self {
        Self {
            poller: delivery.poller.to_owned(),
            generation: delivery.generation,
            replay_id: delivery.replay_id.map(str::to_owned),
            step: delivery.step.map(|step| step.name.to_owned()),
        }
    }
}

/// The last events that were sent in one scope.
#[derive(Debug, Default)]
pub(super) struct SentEvents {
    scope: Option<Scope>,
    /// The content in which each was sent last: an id names a position, and its row may have changed there.
    contents: BTreeMap<EventId, EventsDigest>,
    /// Oldest first.
    order: VecDeque<EventId>,
}

impl SentEvents {
    /// Whether the event was sent, with this content.
    pub(super) fn contains(&self, scope: &Scope, event: &ChangeEvent) -> bool {
        self.scope.as_ref() == Some(scope)
            && self.contents.get(&event.id).is_some_and(|sent| *sent == EventsDigest::of([event]))
    }

    /// Remembers an event that was sent, and forgets those of other scopes.
    pub(super) fn add(&mut self, scope: &Scope, event: &ChangeEvent) {
        if self.scope.as_ref() != Some(scope) {
            *self = Self { scope: Some(scope.clone()), ..Self::default() };
        }
        if self.contents.insert(event.id.clone(), EventsDigest::of([event])).is_none() {
            self.order.push_back(event.id.clone());
        }
        while self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.contents.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use highwater_engine::handler::ChainStep;
    use highwater_engine::handler::testing::Sample;

    use super::*;

    #[test]
    fn an_event_is_known_only_in_its_scope_and_with_its_content() {
        let sample = Sample::new(2);
        let [event, other] = [&sample.events[0], &sample.events[1]];
        let delivery = sample.delivery();
        let scope = Scope::of(&delivery);
        let mut sent = SentEvents::default();
        sent.add(&scope, event);
        assert!(sent.contains(&scope, event) && !sent.contains(&scope, other));
        let step = ChainStep { name: "notify", of_batch: &sample.batch_id };
        for elsewhere in [
            Delivery { poller: "orders.range", ..delivery },
            Delivery { generation: Generation(8), ..delivery },
            Delivery { replay_id: Some("again"), ..delivery },
            Delivery { step: Some(step), ..delivery },
        ] {
            assert!(!sent.contains(&Scope::of(&elsewhere), event), "{elsewhere:?}");
        }
        // The row has changed at its position, and then changed back: the last content must arrive last.
        let changed = ChangeEvent { json: "{}".to_owned().into(), ..event.clone() };
        assert!(!sent.contains(&scope, &changed));
        sent.add(&scope, &changed);
        assert!(sent.contains(&scope, &changed) && !sent.contains(&scope, event));
        let replay = Scope::of(&Delivery { replay_id: Some("again"), ..delivery });
        sent.add(&replay, event);
        assert!(sent.contains(&replay, event) && !sent.contains(&scope, &changed));
    }

    #[test]
    fn the_oldest_events_are_forgotten() {
        let sample = Sample::new(u64::try_from(REMEMBERED_MAX).unwrap() + 2);
        let scope = Scope::of(&sample.delivery());
        let mut sent = SentEvents::default();
        for event in &sample.events {
            sent.add(&scope, event);
        }
        let is_known: Vec<bool> =
            sample.events[..4].iter().map(|event| sent.contains(&scope, event)).collect();
        assert_eq!(is_known, [false, false, true, true]);
        assert_eq!((sent.contents.len(), sent.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
    }
}
