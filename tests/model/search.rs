//! Breadth first over all worlds within the bounds, so that the first counterexample is a shortest one.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use crate::steps::{Bounds, Model};
use crate::variants::Variant;
use crate::witness::{Claim, Sights};
use crate::words::describe;
use crate::world::World;

/// The result of a search.
pub(crate) struct Report {
    pub(crate) states: usize,
    /// Most versions stored along any path.
    pub(crate) writes: u8,
    pub(crate) steps: usize,
    pub(crate) sights: Sights,
    /// The first claim found broken, with the shortest path to it in words.
    pub(crate) broken: Option<(Claim, Vec<String>)>,
    pub(crate) duration: Duration,
}

/// A visited world: its fingerprint, and the one from which it was first reached.
struct Visit {
    fingerprint: u128,
    parent: u32,
}

#[expect(clippy::disallowed_types, reason = "asked for membership only, never iterated")]
pub(crate) type Visited = std::collections::HashSet<u128>;

/// Explores `variant` until `wanted` is broken, or any claim if none is wanted.
pub(crate) fn search(variant: Variant, bounds: Bounds, wanted: Option<Claim>) -> Report {
    let began_at = Instant::now();
    let mut model = Model::new(variant, bounds);
    let owners = usize::from(bounds.owners);
    let start = World::new();
    let mut visits = vec![Visit { fingerprint: fingerprint(&start), parent: 0 }];
    let mut visited: Visited = std::iter::once(fingerprint(&start)).collect();
    let mut layer = vec![(0_u32, start)];
    let mut report = Report {
        states: 1,
        writes: 0,
        steps: 0,
        sights: Sights::default(),
        broken: None,
        duration: Duration::ZERO,
    };
    'search: while !layer.is_empty() {
        let mut next_layer = Vec::new();
        for (number, world) in &layer {
            report.writes = report.writes.max(world.writes);
            for action in model.actions(world) {
                let next = model.step(world, action);
                if let Some(claim) = claim_broken(&model, wanted) {
                    let path = path(&visits, *number);
                    report.broken = Some((claim, retrace(&mut model, &path, claim)));
                    break 'search;
                }
                let next = next.canonical(owners);
                let fingerprint = fingerprint(&next);
                if visited.insert(fingerprint) {
                    let index = u32::try_from(visits.len()).expect("fewer than 2^32 states");
                    visits.push(Visit { fingerprint, parent: *number });
                    next_layer.push((index, next));
                }
            }
        }
        report.steps += 1;
        layer = next_layer;
    }
    report.states = visits.len();
    report.sights = model.sights;
    report.duration = began_at.elapsed();
    report
}

fn claim_broken(model: &Model, wanted: Option<Claim>) -> Option<Claim> {
    model.broken.iter().copied().find(|claim| wanted.is_none_or(|wanted| wanted == *claim))
}

pub(crate) fn fingerprint(world: &impl Hash) -> u128 {
    let mut hasher = Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    world.hash(&mut hasher);
    hasher.0
}

/// FNV-1a with 128 bits, one field at a time: among 10^9 states, two share one with a probability of about
/// 10^-21.
struct Fnv(u128);

impl Fnv {
    fn mix(&mut self, value: u64) {
        self.0 = (self.0 ^ u128::from(value)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        self.0 ^= self.0 >> 67;
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.mix(value.into());
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(u64::from_ne_bytes(value.to_ne_bytes()));
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(u64::from_ne_bytes(value.to_ne_bytes()));
    }

    fn finish(&self) -> u64 {
        u64::try_from(self.0 >> 64).expect("half of the bits")
    }
}

/// Returns the fingerprints on the path to a visit, without the start.
fn path(visits: &[Visit], mut number: u32) -> Vec<u128> {
    let mut path = Vec::new();
    while number > 0 {
        let visit = &visits[usize::try_from(number).expect("fits")];
        path.push(visit.fingerprint);
        number = visit.parent;
    }
    path.reverse();
    path
}

/// Follows a path again without swapping processes, so that names stay the same.
fn retrace(model: &mut Model, path: &[u128], claim: Claim) -> Vec<String> {
    let owners = usize::from(model.bounds.owners);
    let mut world = World::new();
    let mut words = Vec::new();
    let mut walk = |model: &mut Model, is_it: &dyn Fn(&Model, &World) -> bool| {
        for action in model.actions(&world) {
            let next = model.step(&world, action);
            if is_it(model, &next) {
                words.push(describe(model, &world, action, &next));
                world = next;
                return;
            }
        }
        unreachable!("the search came this way");
    };
    for wanted in path {
        walk(model, &|_: &Model, next: &World| fingerprint(&next.canonical(owners)) == *wanted);
    }
    walk(model, &|model: &Model, _: &World| model.broken.contains(&claim));
    words
}
