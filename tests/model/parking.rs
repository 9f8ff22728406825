//! Parked keys in every interleaving, within bounds.
//!
//! A search of its own, because the two halves do not depend on each other: the search of `main.rs` shows that only the
//! newest holder changes the document, however responses are lost. This one takes that for granted (a write of the
//! document is one step), and follows what the search of `main.rs` leaves out: entries, which are stored next to the
//! document and are **not** covered by its compare-and-swap.
//!
//! # What is modelled
//!
//! - **The documents, the entries and what a process knows of keys** are the real ones, and so are all rules on them:
//!   `announce_entry`, `count_entries`, `commit`, the epochs; `joined_by`, `with_version`, `retried`, `failed_again`,
//!   `is_newer_than`; and [`KnownKeys`](highwater_engine::quarantine::KnownKeys). The order in which a process applies them
//!   is restated from `src/engine/tick/park.rs` and `retry.rs`.
//! - **Two processes**, each arbitrarily slow between any two steps: a regular tick, which lists keys, diverts, delivers,
//!   parks and commits; retries; a redrive by an operator. Any lease may be seen as expired at any time, so a process may
//!   have lost its lease at each of its steps. What a process knows of keys outlives its ticks.
//! - **Two keys**, of which the target may reject one or both at each call, and then accept them. Rows are updated at any
//!   time. A fetch has the current version of each key, after the checkpoint.
//! - **Faults**: a crash at each step; a write of an entry without a response, which has landed, or lands at any later time.
//! - **An operator** who drops or redrives an entry while ticks run.
//!
//! # What is claimed, in every reachable world
//!
//! 1. No row is lost: the checkpoint passes the current version of a key only if it is the one that the target has accepted
//!    last, the entry of the key holds it, or an operator dropped it.
//! 2. The target, which is fenced, never accepts an older version of a key after a newer one. There is one exception: a
//!    process stalls for longer than its lease while it retries a key, and its successor has read an older version before the
//!    row changed. Both deliver what they have read, and the newer version is delivered once more in its turn (claim 1).
//! 3. Rows of keys that are never rejected are accepted in the order of the table.
//! 4. The newest holder delivers no row of a parked key in its turn.
//! 5. While a key is to be retried, the document says so.
//! 6. The document never counts fewer keys than there are, unless an operator has just removed some.
//! 7. From there a process that runs alone delivers everything, retries every key, and counts what is left.
//!
//! Claims 4 to 7 are about entries because of which the checkpoint has passed a row. A process may lose its lease after it
//! has announced an entry, and before it has committed past the row. Then its successor may list the keys first, and the entry
//! is written afterwards. The row is delivered again, and only a later listing finds the entry.
//!
//! **Variants** each leave out one rule, and are found unsafe. The search has also found two holes in the code: keys that were
//! listed between the announcement of an entry and its creation, and an entry that was created after its writer had lost the
//! lease. Either way, two processes took different keys for those of one epoch. That is why a process also compares how many
//! keys it knows with the document (the variant `KeysNotCompared`).
//!
//! # Deeper
//!
//! ```text
//! PARKING_WRITES=7 cargo test -p highwater-engine --test model parking -- --nocapture
//! ```
//!
//! `PARKING_WRITES` (documents written), `PARKING_FAULTS` and `PARKING_POSITIONS` (updates) set the bounds of the first search.
//! Seven writes are 1.2 million states. One more write multiplies the states by about 4, a fault by 10.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a variant changes one rule, and most steps of a process have a single outcome"
)]

mod judge;
mod records;
mod steps;
mod world;

use self::judge::{Claim, Sight};
use self::steps::{Action, Bounds, Model, Variant};
use self::world::World;
use crate::search::{Visited, fingerprint};
use crate::{grouped, number, setting};
use tokio::time::Instant;

const BOUNDS: Bounds = Bounds {
    writes: 6,
    faults: 0,
    keys: 2,
    positions: 3,
    rejected: 1,
    retries: 1,
    operator: false,
};

/// The result of a search.
struct Report {
    states: usize,
    broken: Option<(Claim, Vec<String>)>,
    model: Model,
}

/// Explores a variant until `wanted` is broken, or any claim if none is wanted.
fn search(variant: Variant, bounds: Bounds, wanted: Option<Claim>) -> Report {
    let began_at = Instant::now();
    let mut model = Model::new(variant, bounds);
    let start = World::new(&mut model.records, bounds.keys);
    let mut visited: Visited = std::iter::once(fingerprint(&start)).collect();
    // The state from which each was reached first, and how.
    let mut visits: Vec<(u32, Option<Action>)> = vec![(0, None)];
    let mut layer = vec![(0_u32, start)];
    let mut broken = None;
    'search: while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for (number, world) in &layer {
            for action in model.actions(world) {
                let next = model.step(world, action);
                let is_wanted = |claim: &&Claim| wanted.is_none_or(|wanted| wanted == **claim);
                if let Some(claim) = model.broken.iter().find(is_wanted) {
                    broken = Some((*claim, path(&visits, *number, action)));
                    break 'search;
                }
                let next = next.canonical();
                if visited.insert(fingerprint(&next)) {
                    let index = u32::try_from(visits.len()).expect("fewer than 2^32 states");
                    visits.push((*number, Some(action)));
                    next_layer.push((index, next));
                }
            }
        }
        layer = next_layer;
    }
    let name = if variant == Variant::Faithful { String::new() } else { format!(" {variant:?}:") };
    println!(
        "parking:{name} {} states, {bounds:?}, {:.1} s",
        grouped(visits.len()),
        began_at.elapsed().as_secs_f64()
    );
    Report { states: visits.len(), broken, model }
}

/// Returns the actions that lead to a visit, and one more. The processes may change places after each.
fn path(visits: &[(u32, Option<Action>)], mut number: u32, last: Action) -> Vec<String> {
    let mut path = vec![format!("{last:?}")];
    while let (before, Some(action)) = visits[usize::try_from(number).expect("fits")] {
        path.push(format!("{action:?}"));
        number = before;
    }
    path.reverse();
    path
}

fn check_safe(bounds: Bounds, sights: &[Sight]) {
    let report = search(Variant::Faithful, bounds, None);
    if let Some((claim, way)) = report.broken {
        unreachable!("{claim:?} is broken:\n{}", way.join("\n"));
    }
    let met = |sight: &Sight| report.model.sights.get(sight).copied().unwrap_or(0);
    let words = sights.iter().map(|sight| format!("{sight:?} {}", number(met(sight))));
    println!("  steps that met {}", words.collect::<Vec<_>>().join(", "));
    for sight in sights {
        assert!(met(sight) > 0, "never met: {sight:?}");
    }
    assert!(report.states > 1_000);
}

#[test]
fn no_interleaving_of_parking_and_retries_breaks_a_claim() {
    let bounds = Bounds {
        writes: setting("PARKING_WRITES", BOUNDS.writes),
        faults: setting("PARKING_FAULTS", BOUNDS.faults),
        positions: setting("PARKING_POSITIONS", BOUNDS.positions),
        ..BOUNDS
    };
    check_safe(bounds, Sight::OF_TICKS);
}

#[test]
fn nor_does_one_with_a_crash_or_a_lost_response() {
    let bounds = Bounds { writes: 5, keys: 1, faults: 1, positions: 2, ..BOUNDS };
    check_safe(bounds, &[Sight::HolderCrashed, Sight::LateWriteArrived, Sight::KeyRecovered]);
}

#[test]
fn nor_does_one_with_an_operator_who_drops_or_redrives_an_entry() {
    let bounds = Bounds { writes: 5, keys: 1, operator: true, positions: 2, ..BOUNDS };
    check_safe(bounds, &[Sight::EntryDropped, Sight::KeyRedriven, Sight::RowPutBack]);
}

#[test]
fn nor_does_one_with_two_parked_keys() {
    let bounds = Bounds { rejected: 3, positions: 2, ..BOUNDS };
    check_safe(bounds, &[Sight::KeyRecovered, Sight::KeyQuarantined]);
}

#[test]
fn nor_does_one_with_two_keys_beside_the_parked_one() {
    let bounds = Bounds { keys: 3, ..BOUNDS };
    check_safe(bounds, &[Sight::KeyRecovered, Sight::StaleDeliveryRefused]);
}

#[test]
fn nor_does_one_in_which_keys_are_quarantined_at_once() {
    let bounds = Bounds { writes: 5, keys: 1, retries: 0, operator: true, ..BOUNDS };
    check_safe(bounds, &[Sight::KeyRedriven, Sight::LaterVersionDiverted]);
}

#[test]
fn each_variant_is_found_unsafe() {
    for (variant, claim) in Variant::UNSAFE {
        let report = search(variant, variant.bounds(BOUNDS), Some(claim));
        let Some((_, way)) = report.broken else {
            unreachable!("{variant:?} was not found to break {claim:?}");
        };
        println!("  not so: {claim:?}\n    {}", way.join("\n    "));
    }
}

#[test]
fn each_claim_is_broken_by_some_variant() {
    for claim in Claim::ALL {
        let breaks = |(_, broken): &(Variant, Claim)| *broken == claim;
        assert!(Variant::UNSAFE.iter().any(breaks), "no variant breaks {claim:?}");
    }
}
