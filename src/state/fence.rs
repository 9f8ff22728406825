//! The fence: how a target refuses writers whose lease has passed to another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{FencingToken, Generation};

/// The highest grant a target has accepted a write of.
///
/// Many batches share a token, so what is equal is let in. Generation comes first: a document that
/// was lost and made again starts its tokens at one, but under a higher generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence {
    /// Generation of the state document.
    pub generation: Generation,
    /// Token of the grant.
    pub token: FencingToken,
}

impl fmt::Display for Fence {
    /// Writes it as commands take it: `generation.token`.
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

/// A write of a holder that has been superseded; it must not change the target.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "stale write blocked: token {} of generation {} after {} of {} (token_mismatch)",
    stale.token, stale.generation, current.token, current.generation
)]
pub struct StaleWrite {
    /// The grant of the refused writer.
    pub stale: Fence,
    /// The grant that the target has accepted since.
    pub current: Fence,
}

impl StaleWrite {
    /// The `reason` of the log event `stale_write_blocked`, as seed 004 names it.
    pub const REASON: &'static str = "token_mismatch";
}

impl Fence {
    /// Returns the fence after a write under (`generation`, `token`).
    ///
    /// The target raises its stored fence to the result in the same transaction as the write.
    ///
    /// # Errors
    ///
    /// [`StaleWrite`] if a higher grant has been accepted before.
    pub fn admit(self, generation: Generation, token: FencingToken) -> Result<Self, StaleWrite> {
        let asked = Self { generation, token };
        if asked < self { Err(StaleWrite { stale: asked, current: self }) } else { Ok(asked) }
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
    fn a_fence_is_written_and_read_as_generation_and_token() {
        let fence = Fence { generation: Generation(1_775_525_026_020), token: FencingToken(42) };
        assert_eq!(fence.to_string(), "1775525026020.42");
        assert_eq!(fence.to_string().parse(), Ok(fence));
        for wrong in ["", "7", "7.", ".7", "7.-1", "7.1.1", "a.b"] {
            assert!(wrong.parse::<Fence>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stale_write_says_both_tokens_and_the_reason() {
        let fence = Fence { generation: Generation(1), token: FencingToken(2) };
        let error = fence.admit(Generation(1), FencingToken(1)).unwrap_err().to_string();
        assert!(error.contains("token 1") && error.contains(StaleWrite::REASON), "{error}");
    }
}
