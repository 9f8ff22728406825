//! The lease in the state document.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::fence::Fence;
use crate::grant::FencingToken;

/// Who holds the lease, and for how long.
///
/// The three timestamps are for people. Expiry is determined by the age of the document and `ttl_seconds`: see
/// [`lease_state`](super::StateDocument::lease_state).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The last holder; `None` before the first grant and after a lease was broken.
    #[serde(default)]
    pub owner_id: Option<String>,
    /// Token of the newest grant.
    #[serde(default)]
    pub fencing_token: FencingToken,
    /// When the lease was granted.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub acquired_at: Option<OffsetDateTime>,
    /// When the holder last wrote.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub heartbeat_at: Option<OffsetDateTime>,
    /// When the lease ends unless it is renewed.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub expires_at: Option<OffsetDateTime>,
    /// How long the lease lives without a write of its holder.
    #[serde(default = "default_ttl_seconds")]
    pub ttl_seconds: u64,
    /// Age of the holder's last write at the time another writer wrote: whole seconds.
    #[serde(default)]
    pub idle_before_seconds: u64,
    /// Its fraction of a second. A separate field, because older builds read only whole seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_before_nanos: u32,
    /// When the holder released the lease; `None` while it is held or has expired.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub released_at: Option<OffsetDateTime>,
    /// The grants that their holders released. They stay known after a takeover, so that a holder that lost its last
    /// response can see that its write succeeded.
    #[serde(default, skip_serializing_if = "ReleasedGrants::is_empty")]
    pub released: ReleasedGrants,
    /// The fence of a target that rejected the newest grant as too low. No lease is granted while it is set: each
    /// grant raises the token, so a copy of the document would climb past the live owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_fence: Option<Fence>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

/// Tokens of released grants of this generation, as ranges. Most leases are released, so their tokens are
/// consecutive and one range holds them all. Each lease that expired or was broken ends a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReleasedGrants(Vec<TokenRange>);

/// Tokens from the first to the last, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TokenRange {
    from: FencingToken,
    to: FencingToken,
}

impl ReleasedGrants {
    /// Most ranges to keep. A holder looks for its token for about a minute; in that time, only a crash loop ends
    /// more leases without a release.
    const RANGES_MAX: usize = 8;

    /// Whether no grant is known to have been released.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the grant with this token was released.
    pub fn contains(&self, token: FencingToken) -> bool {
        self.0.iter().any(|range| (range.from..=range.to).contains(&token))
    }

    /// Records that the newest grant, with this token, was released.
    pub(super) fn note(&mut self, token: FencingToken) {
        if self.contains(token) {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.to.0.checked_add(1) == Some(token.0) => last.to = token,
            Some(_) | None => self.0.push(TokenRange { from: token, to: token }),
        }
        let surplus = self.0.len().saturating_sub(Self::RANGES_MAX);
        self.0.drain(..surplus);
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The default of seed 001 §7, for documents that do not say.
fn default_ttl_seconds() -> u64 {
    120
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(tokens: &[u64]) -> ReleasedGrants {
        let mut released = ReleasedGrants::default();
        for token in tokens {
            released.note(FencingToken(*token));
        }
        released
    }

    #[test]
    fn consecutive_released_grants_share_one_range() {
        let tokens: Vec<_> = (1..=500).collect();
        let all = released(&tokens);
        assert_eq!(
            serde_json::to_value(&all).unwrap(),
            serde_json::json!([{"from": 1, "to": 500}])
        );
        // A failure after an accepted prefix is one write and releases the same grant.
        assert_eq!(released(&[1, 2, 2]), released(&[1, 2]));
    }

    #[test]
    fn an_unreleased_grant_is_not_listed_and_old_ranges_are_dropped() {
        let some = released(&[1, 2, 4, 7, 8]);
        for (token, expected) in
            [(0, false), (1, true), (3, false), (4, true), (5, false), (8, true), (9, false)]
        {
            assert_eq!(some.contains(FencingToken(token)), expected, "{token}");
        }
        let sparse: Vec<_> = (0..100).map(|n| 2 * n).collect();
        let many = released(&sparse);
        assert_eq!(many.0.len(), ReleasedGrants::RANGES_MAX);
        assert!(many.contains(FencingToken(198)) && !many.contains(FencingToken(0)));
    }

    #[test]
    fn fields_of_later_versions_are_left_out_until_they_are_used() {
        let stored = serde_json::to_value(LeaseRecord::default()).unwrap();
        for field in ["released", "idle_before_nanos", "target_fence"] {
            assert_eq!(stored.get(field), None, "{field}");
        }
    }
}
