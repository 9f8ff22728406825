//! A partition of a poller's key space.
//!
//! Each partition is a separate poller, with its own state document, lease, fence, journal and timer function under
//! its own name. They share the prefix of that name, which is the name used in events.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Separates the name of a poller from the number of a partition. The name of a poller has no double underscore.
const BETWEEN: &str = "__p";

/// Most partitions of a poller: each one makes the database read and hash the rows of the others.
pub const PARTITIONS_MAX: u16 = 64;

/// The number of a partition, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partition {
    /// Its number, below `count`.
    pub index: u16,
    /// The number of partitions; at least two.
    pub count: u16,
}

impl Partition {
    /// Returns all partitions of a poller with `count`; `None` if it is unpartitioned.
    pub fn all(count: u16) -> Vec<Option<Self>> {
        if count < 2 {
            return vec![None];
        }
        (0..count).map(|index| Some(Self { index, count })).collect()
    }

    /// Returns the name of this partition of `poller`: of its document, journal, fence and function.
    pub fn name(self, poller: &str) -> String {
        format!("{poller}{BETWEEN}{}", self.index)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.index, self.count)
    }
}

/// Returns the poller of the partition `name`; `name` itself if it is not a partition.
pub fn poller_of_partition(name: &str) -> &str {
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
    fn the_name_of_a_partition_leads_back_to_its_poller() {
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
            assert_eq!(poller_of_partition(name), whole);
        }
    }

    #[test]
    fn an_unpartitioned_poller_has_no_partitions() {
        assert_eq!(Partition::all(1), [None]);
        let two = [0, 1].map(|index| Some(Partition { index, count: 2 }));
        assert_eq!(Partition::all(2), two);
    }
}
