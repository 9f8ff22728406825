//! What the state document says of its lease.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use time::OffsetDateTime;

use super::FencingToken;

/// Who holds the lease, and how long.
///
/// The three timestamps are for people. Expiry is judged by the age of the document and
/// `ttl_seconds`: see [`standing`](super::StateDocument::standing).
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
    /// How old the holder's last write already was when somebody else wrote: whole seconds.
    #[serde(default)]
    pub idle_before_seconds: u64,
    /// The rest of a second of that. A field of its own: builds that know it not read seconds only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_before_nanos: u32,
    /// When the holder gave the lease up; `None` while it is held or has lapsed.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub released_at: Option<OffsetDateTime>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(nanos: &u32) -> bool {
    *nanos == 0
}

/// The default of seed 001 §7, for documents that do not say.
fn default_ttl_seconds() -> u64 {
    120
}
