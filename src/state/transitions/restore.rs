//! What an operator does to a document as a whole.

use super::{LeaseAge, Refusal};
use crate::state::{FencingToken, Generation, StateDocument};

impl StateDocument {
    /// Returns this document as one that takes the place of another, which may be lost or damaged.
    ///
    /// `generation` must be higher than any that was there before: then whoever held a lease finds it
    /// lost, and a target's fence refuses him once the next tick has reached it. Nobody holds the lease;
    /// its token lies above this document's and above `token`, the last that is known.
    ///
    /// # Errors
    ///
    /// [`Refusal::TokensExhausted`].
    pub fn restored(&self, generation: Generation, token: FencingToken) -> Result<Self, Refusal> {
        let mut next = self.clone();
        next.generation = generation;
        next.lease.fencing_token = token.max(self.lease.fencing_token);
        let mut next = next.break_lease()?;
        // The marker is of a generation before this one.
        next.marked = false;
        Ok(next)
    }

    /// Returns this document for a write that changes nothing of it. Owner and token stay, so a holder
    /// goes on as before.
    #[must_use]
    pub fn rewritten(&self, age: LeaseAge) -> Self {
        self.written_by_other(age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::SourceFingerprint;
    use crate::state::{Fence, Holder, TOKEN_MAX};

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
    fn a_holder_from_before_is_superseded_and_its_target_refuses_it() {
        let (document, holder) = held(4);
        for known in [0, 4, 9] {
            let next = document.restored(Generation(8), FencingToken(known)).unwrap();
            assert_eq!(next.lease.fencing_token.0, known.max(4) + 1);
            assert!(!next.is_held_by(&holder) && next.lease.owner_id.is_none() && !next.marked);
            assert!(next.renew(&holder, time::OffsetDateTime::UNIX_EPOCH).is_err());
            let fence = Fence::default().admit(next.generation, next.lease.fencing_token).unwrap();
            fence.admit(holder.generation, holder.token).unwrap_err();
        }
        let refused = document.restored(Generation(8), FencingToken(TOKEN_MAX));
        assert_eq!(refused, Err(Refusal::TokensExhausted));
    }
}
