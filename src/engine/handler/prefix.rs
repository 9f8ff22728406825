//! The rows that a handler has accepted without a gap, while it accepts them in any order. Pure.

use super::Progress;

/// Counts the events of a batch that are accepted from the first one on, and reports them.
///
/// The position of a poller moves past a row only together with all rows before it. So a row that is accepted early,
/// while one before it is not, counts only once the gap is closed.
#[derive(Debug)]
pub struct AcceptedPrefix<'a> {
    progress: &'a Progress,
    /// For each event of the batch whether it is accepted.
    accepted: Vec<bool>,
    length: usize,
}

impl<'a> AcceptedPrefix<'a> {
    /// Starts with a batch of `events` events of which none is accepted.
    pub fn new(events: usize, progress: &'a Progress) -> Self {
        Self { progress, accepted: vec![false; events], length: 0 }
    }

    /// Records that these events are permanently accepted, by their index in the batch.
    pub fn accept(&mut self, events: impl IntoIterator<Item = usize>) {
        for event in events {
            if let Some(accepted) = self.accepted.get_mut(event) {
                *accepted = true;
            }
        }
        let rest = self.accepted.get(self.length..).unwrap_or_default();
        self.length += rest.iter().take_while(|accepted| **accepted).count();
        self.progress.accept(self.length);
    }

    /// Returns how many events, from the first one on, are accepted.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the first event is not accepted yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_holds_back_the_events_after_it() {
        let progress = Progress::default();
        let mut prefix = AcceptedPrefix::new(5, &progress);
        let mut after = |events: &[usize]| {
            prefix.accept(events.iter().copied());
            (prefix.len(), progress.accepted())
        };
        assert_eq!(after(&[1, 2]), (0, 0));
        assert_eq!(after(&[4]), (0, 0));
        assert_eq!(after(&[0]), (3, 3));
        assert_eq!(after(&[0, 9]), (3, 3), "again, and unknown");
        assert_eq!(after(&[3]), (5, 5));
        assert_eq!(progress.steps(), 5, "an event after a gap is progress, too");
    }
}
