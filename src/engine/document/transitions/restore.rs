//! Operations of an operator on a whole document.

use time::OffsetDateTime;

use super::{DocumentAge, LeaseState, Refusal};
use crate::document::{Checkpoint, Fence, FencingToken, Generation, ReleasedGrants, StateDocument};

impl StateDocument {
    /// Returns this document as a replacement of another, which may be lost or damaged.
    ///
    /// `generation` must be higher than any before. Then a former holder finds its lease lost, and a target's fence
    /// rejects it once the next tick has reached that target. The lease is free; its token is above this document's
    /// and above `token`, the last known one.
    ///
    /// # Errors
    ///
    /// [`Refusal::TokensExhausted`].
    pub fn restored(&self, generation: Generation, token: FencingToken) -> Result<Self, Refusal> {
        let mut next = self.clone();
        next.generation = generation;
        next.lease.fencing_token = token.max(self.lease.fencing_token);
        // They belong to the previous generation.
        next.lease.released = ReleasedGrants::default();
        let mut next = next.break_lease()?;
        next.forget_passed_fence();
        // The marker belongs to an earlier generation.
        next.marked = false;
        // The journal may not be the one that recorded it.
        next.journal_told = false;
        Ok(next)
    }

    /// Removes the lease from its holder for an operator; `None` if it is free.
    ///
    /// The batch in flight stays, under its id. A crash is counted for it only if the lease had expired: a live
    /// holder is no evidence against the batch.
    ///
    /// # Errors
    ///
    /// [`Refusal::Held`] while the holder is alive, unless `even_live`; or [`Refusal::TokensExhausted`].
    pub fn broken_by_operator(
        &self,
        age: DocumentAge,
        now: OffsetDateTime,
        even_live: bool,
    ) -> Result<Option<Self>, Refusal> {
        let lives = matches!(self.lease_state_for_others(age), LeaseState::Held { .. });
        if lives && even_live {
            return self.break_lease().map(Some);
        }
        self.release_lapsed(age, now)
    }

    /// Returns this document with grants above `fence`, which a target has accepted; `None` if the next grant is
    /// already high enough.
    ///
    /// For a document that was restored from an older copy. Only an operator can know that no other owner is active
    /// under the grant that the target has seen, so no tick does this. The generation stays unless the fence's is
    /// higher; then it becomes `generation`, which must be higher still.
    ///
    /// # Errors
    ///
    /// [`Refusal::TokensExhausted`].
    pub fn raised_above(
        &self,
        fence: Fence,
        generation: Generation,
    ) -> Result<Option<Self>, Refusal> {
        if fence.generation > self.generation {
            return self.restored(generation, fence.token).map(Some);
        }
        if fence.generation < self.generation || fence.token <= self.lease.fencing_token {
            return Ok(None);
        }
        let mut next = self.clone();
        next.lease.fencing_token = fence.token;
        let mut next = next.break_lease()?;
        next.forget_passed_fence();
        Ok(Some(next))
    }

    /// Returns the document of another poller, or of the same poller in another app, that continues at the same
    /// position.
    ///
    /// The position is copied; batches and lease are not. Windows that wait for an audit hold sums of event ids,
    /// which depend on the poller's name. A poller of the same name still has to read them again; another one cannot.
    #[must_use]
    pub fn cloned_as(&self, poller: &str) -> Self {
        let mut next = Self::new(poller, self.source_fingerprint.clone(), Generation(0));
        next.checkpoint = Checkpoint {
            cursor: self.checkpoint.cursor.clone(),
            updated_at: self.checkpoint.updated_at,
            ..Checkpoint::default()
        };
        next.source_definition.clone_from(&self.source_definition);
        next.source_state.clone_from(&self.source_state);
        if poller == self.poller_name {
            next.audit.clone_from(&self.audit);
        }
        next
    }

    /// Returns this document for a write that changes nothing in it. Owner and token stay, so a holder continues as
    /// before.
    #[must_use]
    pub fn rewritten(&self, age: DocumentAge) -> Self {
        self.written_by_other(age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::document::{Holder, TOKEN_MAX};

    fn held(token: u64) -> (StateDocument, Holder) {
        let fingerprint = SourceFingerprint::of(&[("table", "orders")]);
        let mut document = StateDocument::new("orders", fingerprint, Generation(7));
        document.marked = true;
        document.lease.owner_id = Some("a".to_owned());
        document.lease.fencing_token = FencingToken(token);
        let holder = document.holder("a");
        (document, holder)
    }

    #[test]
    fn a_lease_is_broken_with_the_next_token_and_a_live_one_only_on_explicit_request() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let age = |seconds| DocumentAge {
            since_write: std::time::Duration::from_secs(seconds),
            grain: std::time::Duration::ZERO,
        };
        let (mut document, holder) = held(4);
        let batch = serde_json::json!({
            "batch_id": "batch_1",
            "upto": {"kind": "rowversion", "value": "0x0000000000000001", "tiebreaker": {}},
            "rows": 1,
            "digest": "d",
        });
        document.in_flight = serde_json::from_value(batch).unwrap();
        let refused = document.broken_by_operator(age(1), now, false);
        assert!(matches!(refused, Err(Refusal::Held { owner_id }) if owner_id == "a"));
        // A holder that has been silent for this long has expired.
        for (seconds, even_live, crashes) in [(1, true, 0), (1000, false, 1), (1000, true, 1)] {
            let broken =
                document.broken_by_operator(age(seconds), now, even_live).unwrap().unwrap();
            assert_eq!(broken.lease.fencing_token, FencingToken(5));
            assert_eq!(broken.generation, document.generation);
            assert!(!broken.is_held_by(&holder) && broken.lease.owner_id.is_none());
            let batch = broken.in_flight.unwrap();
            assert_eq!(batch.crashes, crashes, "{seconds} s, {even_live}");
            assert_eq!(
                Some(batch.batch_id),
                document.in_flight.as_ref().map(|b| b.batch_id.clone())
            );
        }
        document.lease.released_at = Some(now);
        assert_eq!(document.broken_by_operator(age(1), now, true), Ok(None), "it has no holder");
        let (last, _) = held(TOKEN_MAX);
        let refused = last.broken_by_operator(age(1), now, true);
        assert!(matches!(refused, Err(Refusal::TokensExhausted { .. })));
    }

    #[test]
    fn an_older_copy_is_raised_above_the_fence_and_keeps_its_generation_if_possible() {
        let fence = |generation, token| Fence {
            generation: Generation(generation),
            token: FencingToken(token),
        };
        let (mut document, holder) = held(4);
        document.checkpoint.cursor =
            Some(crate::cursor::Cursor::integer(7, crate::cursor::KeyValues::new()));
        for (seen, generation, token) in
            [(fence(7, 5), 7, 6), (fence(7, 40), 7, 41), (fence(8, 2), 9, 5), (fence(8, 40), 9, 41)]
        {
            let next = document.raised_above(seen, Generation(9)).unwrap().unwrap();
            assert_eq!(
                (next.generation, next.lease.fencing_token),
                (Generation(generation), FencingToken(token))
            );
            seen.admit(next.generation, next.lease.fencing_token).unwrap();
            assert!(!next.is_held_by(&holder) && next.lease.owner_id.is_none());
            assert_eq!(next.checkpoint.cursor, document.checkpoint.cursor);
        }
        for low in [fence(6, 99), fence(7, 3), fence(7, 4)] {
            assert_eq!(document.raised_above(low, Generation(9)), Ok(None), "{low}");
        }
        let last = fence(7, TOKEN_MAX);
        assert_eq!(
            document.raised_above(last, Generation(9)),
            Err(Refusal::TokensExhausted { poller: "orders".to_owned() })
        );
    }

    #[test]
    fn a_clone_copies_the_position_and_not_the_lease() {
        let (mut document, _) = held(4);
        document.checkpoint.cursor =
            Some(crate::cursor::Cursor::integer(7, crate::cursor::KeyValues::new()));
        document.checkpoint.metadata.row_count = 3;
        document.source_state.insert("settled".to_owned(), "9".into());
        document.replay_id = Some("reset-1".to_owned());
        document.checkpoint.updated_at = Some(OffsetDateTime::UNIX_EPOCH);
        let clone = document.cloned_as("other");
        assert_eq!(clone.poller_name, "other");
        assert_eq!(clone.checkpoint.updated_at, document.checkpoint.updated_at);
        assert_eq!(clone.checkpoint.cursor, document.checkpoint.cursor);
        assert_eq!(clone.source_state, document.source_state);
        assert_eq!(clone.source_fingerprint, document.source_fingerprint);
        assert_eq!(clone.lease, crate::document::LeaseRecord::default());
        assert!(clone.is_blank() && !clone.marked && clone.replay_id.is_none());
        assert_eq!(clone.checkpoint.last_successful_batch_id, None);
    }

    #[test]
    fn windows_that_wait_for_an_audit_are_kept_only_under_the_same_name() {
        let (mut document, _) = held(4);
        let window = serde_json::json!({
            "upto": {"kind": "rowversion", "value": "0x0000000000000001", "tiebreaker": {}},
            "ids": {"rows": 0, "digest": "0"},
            "closed_at": "2026-04-07T01:23:00Z",
        });
        document.audit.windows = vec![serde_json::from_value(window).unwrap()];
        document.audit.rows_skipped = 3;
        assert_eq!(document.cloned_as("orders").audit, document.audit);
        assert_eq!(document.cloned_as("other").audit, crate::document::Audit::default());
    }

    #[test]
    fn an_earlier_holder_is_superseded_and_its_target_rejects_it() {
        let (document, holder) = held(4);
        for known in [0, 4, 9] {
            let next = document.restored(Generation(8), FencingToken(known)).unwrap();
            assert_eq!(next.lease.fencing_token.0, known.max(4) + 1);
            assert!(!next.is_held_by(&holder) && next.lease.owner_id.is_none() && !next.marked);
            assert!(next.renew(&holder, OffsetDateTime::UNIX_EPOCH).is_err());
            let fence = Fence::default().admit(next.generation, next.lease.fencing_token).unwrap();
            fence.admit(holder.generation, holder.token).unwrap_err();
        }
        let refused = document.restored(Generation(8), FencingToken(TOKEN_MAX));
        assert!(matches!(refused, Err(Refusal::TokensExhausted { .. })));
    }
}
