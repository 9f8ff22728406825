//! The fence: how a target rejects writers that have lost the lease to a successor.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use time::OffsetDateTime;

use super::state_document::StateDocument;
use super::transitions::{EndOfTick, Refusal};
use crate::grant::{FencingToken, Generation, Holder};

/// Listed in the `requires` of a document that stores a target's fence: a build that does not know the field would
/// keep granting leases.
pub(super) const REQUIREMENT: &str = "target_fence";

/// The highest grant under which a target has accepted a write.
///
/// Many batches share a token, so an equal grant is accepted. Generation is compared first: a document that was lost
/// and created again restarts its tokens at one, but under a higher generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence {
    /// Generation of the state document.
    pub generation: Generation,
    /// Token of the grant.
    pub token: FencingToken,
}

impl fmt::Display for Fence {
    /// Writes it in the format of commands: `generation.token`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.generation, self.token)
    }
}

impl FromStr for Fence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('.').and_then(|(generation, token)| {
            Some(Self {
                generation: Generation(generation.parse().ok()?),
                token: FencingToken(token.parse().ok()?),
            })
        });
        parsed.ok_or_else(|| {
            "expected generation and token, for example `1775525026020.42`".to_owned()
        })
    }
}

/// A write of a superseded holder; it must not change the target.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "stale write blocked: token {} of generation {} after {} of {} (token_mismatch)",
    stale.token, stale.generation, current.token, current.generation
)]
pub struct StaleWrite {
    /// The grant of the rejected writer.
    pub stale: Fence,
    /// The grant that the target has accepted since.
    pub current: Fence,
}

impl StaleWrite {
    /// The `reason` of the log event `stale_write_blocked`.
    pub const REASON: &'static str = "token_mismatch";
}

impl Fence {
    /// Returns the fence after a write under (`generation`, `token`).
    ///
    /// The target raises its stored fence to the result in the same transaction as the write.
    ///
    /// # Errors
    ///
    /// [`StaleWrite`] if a higher grant has already been accepted.
    pub fn admit(self, generation: Generation, token: FencingToken) -> Result<Self, StaleWrite> {
        let asked = Self { generation, token };
        if asked < self { Err(StaleWrite { stale: asked, current: self }) } else { Ok(asked) }
    }
}

impl StateDocument {
    /// Returns the newest grant.
    pub fn newest_grant(&self) -> Fence {
        Fence { generation: self.generation, token: self.lease.fencing_token }
    }

    /// Returns how the target rejected the newest grant, if it did. No lease is granted then until an operator raises
    /// the grants, resets the poller or replaces the document.
    pub fn fence_ahead(&self) -> Option<StaleWrite> {
        let stale = self.newest_grant();
        let current = self.lease.target_fence.filter(|fence| *fence > stale)?;
        Some(StaleWrite { stale, current })
    }

    /// Releases the lease and stores `fence`: the fence of a target that rejected this grant although it is the
    /// newest.
    ///
    /// # Errors
    ///
    /// [`Refusal::Superseded`] if another instance has taken over the lease.
    pub fn refused_by_target(
        &self,
        holder: &Holder,
        fence: Fence,
        now: OffsetDateTime,
        tick: Option<EndOfTick>,
    ) -> Result<Self, Refusal> {
        let mut next = self.release(holder, now, tick)?;
        if fence > next.newest_grant() {
            next.lease.target_fence = Some(fence);
            next.require(REQUIREMENT);
        }
        Ok(next)
    }

    /// Drops the stored fence of a target if the newest grant is now above it.
    pub(super) fn forget_passed_fence(&mut self) {
        if self.fence_ahead().is_none() {
            self.lease.target_fence = None;
            self.requires.retain(|name| name != REQUIREMENT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_and_higher_grants_are_admitted_and_lower_ones_never() {
        let fence = |generation, token| Fence {
            generation: Generation(generation),
            token: FencingToken(token),
        };
        let current = fence(5, 3);
        for (generation, token, admitted) in
            [(5, 3, true), (5, 4, true), (6, 1, true), (5, 2, false), (4, 9, false)]
        {
            let result = current.admit(Generation(generation), FencingToken(token));
            assert_eq!(result.is_ok(), admitted, "({generation}, {token})");
            if let Ok(next) = result {
                assert_eq!(next, fence(generation, token));
            }
        }
    }

    #[test]
    fn no_lease_is_granted_after_a_target_has_rejected_the_newest_grant() {
        let fingerprint = crate::cursor::SourceFingerprint::of(&[("table", "orders")]);
        let mut document = StateDocument::new("orders", fingerprint, Generation(7));
        document.lease.owner_id = Some("a".to_owned());
        document.lease.fencing_token = FencingToken(2);
        let (holder, now) = (document.holder("a"), OffsetDateTime::UNIX_EPOCH);
        let above = Fence { generation: Generation(7), token: FencingToken(9) };
        // A target that names no higher grant is wrong: no command could resolve that.
        for fence in [Fence::default(), document.newest_grant()] {
            let kept = document.refused_by_target(&holder, fence, now, None).unwrap();
            assert_eq!(kept, document.release(&holder, now, None).unwrap());
        }
        let refused = document.refused_by_target(&holder, above, now, None).unwrap();
        assert_eq!(refused.requires, [REQUIREMENT], "an older build would climb past it");
        let stored = crate::document::encode(&refused);
        assert_eq!(crate::document::decode("orders", &stored).unwrap(), refused);
        let json: serde_json::Value = serde_json::from_slice(&stored).unwrap();
        let written = serde_json::json!({ "generation": 7, "token": 9 });
        assert_eq!(json["lease"]["target_fence"], written);
        let age = crate::document::DocumentAge {
            since_write: std::time::Duration::from_secs(1000),
            grain: std::time::Duration::ZERO,
        };
        let request = || crate::document::Acquire {
            owner_id: "b",
            ttl: std::time::Duration::from_secs(20),
            age,
            now,
            in_flight: None,
        };
        let stale = refused.newest_grant();
        let expected = Refusal::FenceAhead(StaleWrite { stale, current: above });
        assert_eq!(refused.acquire(request()).unwrap_err(), expected);
        assert_eq!(refused.grant(request()).unwrap_err(), expected, "nor for an operator");
        for even_live in [false, true] {
            assert_eq!(
                refused.broken_by_operator(age, now, even_live),
                Ok(None),
                "it has no holder"
            );
        }
        // A holder that has been superseded stores nothing.
        let broken = document.break_lease().unwrap();
        let late = broken.refused_by_target(&holder, above, now, None);
        assert!(matches!(late, Err(Refusal::Superseded { .. })));
        // An operator resolves it, and so does any document that replaces this one.
        let generation = Generation(8);
        let raised = refused.raised_above(above, generation).unwrap().unwrap();
        let restored = refused.restored(generation, FencingToken(0)).unwrap();
        for next in [raised, restored, refused.cloned_as("other")] {
            assert_eq!((next.fence_ahead(), next.lease.target_fence), (None, None));
            assert!(next.requires.is_empty() && next.acquire(request()).is_ok());
        }
        let low = Fence { token: FencingToken(5), ..above };
        let too_low = refused.raised_above(low, generation).unwrap().unwrap();
        assert!(too_low.fence_ahead().is_some(), "the target would reject it again");
    }

    #[test]
    fn a_fence_is_written_and_read_as_generation_and_token() {
        let fence = Fence { generation: Generation(1_775_525_026_020), token: FencingToken(42) };
        assert_eq!(fence.to_string(), "1775525026020.42");
        assert_eq!(fence.to_string().parse(), Ok(fence));
        for wrong in ["", "7", "7.", ".7", "7.-1", "7.1.1", "a.b"] {
            assert!(wrong.parse::<Fence>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stale_write_names_both_tokens_and_the_reason() {
        let fence = Fence { generation: Generation(1), token: FencingToken(2) };
        let error = fence.admit(Generation(1), FencingToken(1)).unwrap_err().to_string();
        assert!(error.contains("token 1") && error.contains(StaleWrite::REASON), "{error}");
    }

    #[test]
    fn a_target_that_accepted_the_newest_grant_is_not_ahead() {
        let fingerprint = crate::cursor::SourceFingerprint::of(&[]);
        let mut document = StateDocument::new("orders", fingerprint, Generation(7));
        document.lease.fencing_token = FencingToken(3);
        let grant = |token| Fence { generation: Generation(7), token: FencingToken(token) };
        for (token, is_ahead) in [(2, false), (3, false), (4, true)] {
            document.lease.target_fence = Some(grant(token));
            assert_eq!(document.fence_ahead().is_some(), is_ahead, "{token}");
        }
    }
}
