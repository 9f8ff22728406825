//! One part of a poller's key space, out of several that share it.
//!
//! Each part is a poller of its own: with a state document, a lease, a fence, a journal and a timer function
//! under its own name. What they have in common is the name in front, which is that of the events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The separator between the name of a poller and the number of a partition. No poller has two underscores in its
/// name.
const BETWEEN: &str = "__p";

/// Most parts of one poller: each of them reads, and the database hashes, what the others deliver.
pub const PARTITIONS_MAX: u16 = 64;

/// Which part of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partition {
    /// Its number, below `count`.
    pub index: u16,
    /// How many there are; at least two.
    pub count: u16,
}

impl Partition {
    /// Returns all parts of a poller that is divided into `count`; `None` where it is one whole.
    pub fn all(count: u16) -> Vec<Option<Self>> {
        if count < 2 {
            return vec![None];
        }
        (0..count).map(|index| Some(Self { index, count })).collect()
    }

    /// Returns the name of this part of `poller`: of its document, its journal, its fence and its function.
    pub fn name(self, poller: &str) -> String {
        format!("{poller}{BETWEEN}{}", self.index)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.index, self.count)
    }
}

/// Returns the poller that `name` is a part of; `name` itself where it is a whole one.
pub fn whole_of(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.split_once(BETWEEN) {
        Some((whole, number)) if is_number(number) => whole,
        Some(_) | None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_a_name_that_leads_back_to_its_poller() {
        let third = Partition { index: 2, count: 8 };
        assert_eq!(
            (third.name("orders"), third.to_string()),
            ("orders__p2".into(), "2 of 8".into())
        );
        for (name, whole) in [
            ("orders__p2", "orders"),
            ("orders__p63", "orders"),
            ("orders", "orders"),
            ("orders_p2", "orders_p2"),
            ("orders__p", "orders__p"),
            ("orders__part", "orders__part"),
            ("highwater__recovery", "highwater__recovery"),
        ] {
            assert_eq!(whole_of(name), whole);
        }
    }

    #[test]
    fn a_whole_poller_has_no_parts() {
        assert_eq!(Partition::all(1), [None]);
        let two = [0, 1].map(|index| Some(Partition { index, count: 2 }));
        assert_eq!(Partition::all(2), two);
    }
}
