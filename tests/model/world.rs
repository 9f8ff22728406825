//! The world: one stored document, the processes around it, what is in the air, and two targets.
//!
//! A version of the stored document is either the current one or one that can never come back, so no
//! tag needs a number: everyone remembers whether what they saw still stands. A conditional request
//! whose version has gone can only be refused, and whoever waits for it then reads: such a request is
//! taken out at once. What happens late because its answer is late is the same as what happens late
//! because its process is slow.

use crate::documents::{Batch, Doc, Grant, What, Who};

pub(crate) const OWNERS_MAX: usize = 3;
const REQUESTS_MAX: usize = 6;

/// A state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World {
    pub(crate) stored: Option<Doc>,
    /// Whose logical write, still being judged by its writer, the stored version is: its `write_id`.
    pub(crate) written_by: Option<u8>,
    pub(crate) owners: [Owner; OWNERS_MAX],
    /// Writes that may still land, sorted.
    pub(crate) requests: [Option<Request>; REQUESTS_MAX],
    /// A copy of a delivery that is on its way to the target, whatever its sender does now.
    pub(crate) late: Option<Delivery>,
    pub(crate) target: Target,
    pub(crate) seen: Witness,
    /// Versions stored.
    pub(crate) writes: u8,
    /// Faults and interventions used up.
    pub(crate) faults: u8,
    /// Times that the document was lost.
    pub(crate) losses: u8,
    /// Resets asked for.
    pub(crate) resets: u8,
}

/// One process, as far as it remembers anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Owner {
    Idle,
    Asking(Asking),
    Holding(Holding),
}

/// A process that has read document and rows and asks for the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Asking {
    pub(crate) batch: Batch,
    /// Whether the version it read is still current.
    pub(crate) current: bool,
    /// Whether an earlier try got no answer.
    pub(crate) ambiguous: bool,
    pub(crate) answer: Answer,
}

/// A process that takes itself for the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "none of these facts excludes another")]
pub(crate) struct Holding {
    pub(crate) grant: Grant,
    pub(crate) snapshot: View,
    pub(crate) batch: Batch,
    /// Whether the handler has finished with the batch.
    pub(crate) handled: bool,
    /// Whether the handler has finished with the batch that the commit under way announces.
    pub(crate) next_handled: bool,
    /// Ends of the batches that it has finished with behind the checkpoint, one bit each: the witness's
    /// knowledge.
    pub(crate) ends: u8,
    pub(crate) write: Option<Write>,
    /// Whether a renewal that commits the first row of the batch is not known to have landed.
    pub(crate) in_the_air: bool,
    /// Which grant it really is: the witness's knowledge.
    pub(crate) number: u8,
    /// Whether the checkpoint has not been moved back since: the witness's knowledge.
    pub(crate) in_era: bool,
}

/// A document as it was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct View {
    pub(crate) doc: Doc,
    /// Whether its version is still current.
    pub(crate) current: bool,
}

/// A logical write of a holder, under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Write {
    pub(crate) what: What,
    /// Whether the version it was made from is still current.
    pub(crate) current: bool,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    /// A request is on its way.
    Awaited,
    /// It was refused, or there was no answer: the document is to be read and asked.
    Judging,
}

/// A write on its way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Request {
    pub(crate) doc: Doc,
    pub(crate) role: Role,
    pub(crate) kind: Kind,
    pub(crate) condition: Condition,
    /// Whether it was made from the stored version: the witness's knowledge.
    pub(crate) made_from_stored: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Condition {
    Tag,
    Absent,
    None,
}

/// What a request is to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    Awaited(u8),
    /// An earlier try of the sender's current logical write.
    Earlier(u8),
    /// Nobody waits for it: a zombie, or an operator's.
    Orphan,
}

/// What a request would do, in the witness's eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Creates a blank document.
    Create,
    Grant,
    Held {
        number: u8,
        what: What,
    },
    Pause,
    Resume,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Delivery {
    pub(crate) grant: Grant,
    pub(crate) number: u8,
    pub(crate) rows: u8,
}

impl Holding {
    /// Returns the batch that the commit under way announces: its handler runs meanwhile.
    pub(crate) fn next(&self) -> Option<Batch> {
        match self.write?.what {
            What::Commit { next, .. } => next,
            What::Renew
            | What::RenewPrefix { .. }
            | What::CommitPrefix { .. }
            | What::Fail
            | What::Release => None,
        }
    }
}

/// The fenced target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Target {
    pub(crate) fence: Grant,
    /// Rows it has, for the variant that knows no token.
    pub(crate) rows: u8,
    /// The latest grant it accepted a write of, in the witness's count.
    pub(crate) newest: u8,
}

/// Records of the witness, which does not judge by tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Witness {
    /// Rows that a handler has finished with since the checkpoint was last moved back.
    pub(crate) delivered: u8,
    /// Leases granted.
    pub(crate) grants: u8,
    /// Whether the newest grant was taken back.
    pub(crate) revoked: bool,
    /// Highest token ever stored.
    pub(crate) highest: Grant,
    /// Token of the newest grant.
    pub(crate) granted: Grant,
}

const NO_GRANT: Grant = Grant { generation: 0, token: 0 };

impl World {
    /// Returns a world in which nothing has happened.
    pub(crate) fn new() -> Self {
        Self {
            stored: None,
            written_by: None,
            owners: [Owner::Idle; OWNERS_MAX],
            requests: [None; REQUESTS_MAX],
            late: None,
            target: Target { fence: NO_GRANT, rows: 0, newest: 0 },
            seen: Witness {
                delivered: 0,
                grants: 0,
                revoked: true,
                highest: NO_GRANT,
                granted: NO_GRANT,
            },
            writes: 0,
            faults: 0,
            losses: 0,
            resets: 0,
        }
    }

    pub(crate) fn owner(&self, slot: u8) -> Owner {
        self.owners[usize::from(slot)]
    }

    pub(crate) fn set(&mut self, slot: u8, owner: Owner) {
        self.owners[usize::from(slot)] = owner;
    }

    /// Puts a request in the air; the same one twice is one.
    pub(crate) fn send(&mut self, request: Request) {
        if self.requests.contains(&Some(request)) {
            return;
        }
        let free = self.requests.iter_mut().find(|place| place.is_none());
        *free.expect("more requests in the air than the model has room for") = Some(request);
    }

    /// Changes the role of requests, for instance when their sender has given up.
    pub(crate) fn recast(&mut self, role: impl Fn(Role) -> Role) {
        let requests = std::mem::replace(&mut self.requests, [None; REQUESTS_MAX]);
        for request in requests.into_iter().flatten() {
            self.send(Request { role: role(request.role), ..request });
        }
    }

    /// Ends a logical write: what is still in the air of it is a zombie from now on.
    pub(crate) fn end_write(&mut self, slot: u8) {
        self.recast(|role| if role.sender() == Some(slot) { Role::Orphan } else { role });
        self.written_by = self.written_by.filter(|by| *by != slot);
    }

    /// Ends a tick: nothing is remembered of it.
    pub(crate) fn end_tick(&mut self, slot: u8) {
        self.end_write(slot);
        self.set(slot, Owner::Idle);
    }

    /// The stored version has gone. A request to create may still land when nothing is stored again.
    pub(crate) fn supersede_version(&mut self) {
        for slot in 0..OWNERS_MAX {
            self.owners[slot] = self.owners[slot].after_version_went(&self.requests, slot);
        }
        for place in &mut self.requests {
            let Some(request) = place else { continue };
            match request.condition {
                Condition::None => request.made_from_stored = false,
                Condition::Absent => request.role = Role::Orphan,
                Condition::Tag => *place = None,
            }
        }
    }

    /// A process whose request for the lease can no more land, and has not, only learns so: its tick
    /// is over.
    pub(crate) fn end_hopeless_ticks(&mut self) {
        for (owner, slot) in self.owners.iter_mut().zip(0..) {
            let Owner::Asking(asking) = owner else { continue };
            if !asking.current && self.written_by != Some(slot) {
                *owner = Owner::Idle;
            }
        }
    }

    /// Every document and memory that bears the name of `slot` gets another name.
    pub(crate) fn rename(&self, name: impl Fn(u8) -> Who) -> Self {
        let mut world = *self;
        let rename = |doc: &mut Doc| {
            if let Who::Slot(slot) = doc.owner {
                doc.owner = name(slot);
            }
        };
        world.stored.iter_mut().for_each(rename);
        world.requests.iter_mut().flatten().for_each(|request| rename(&mut request.doc));
        for owner in &mut world.owners {
            if let Owner::Holding(holding) = owner {
                rename(&mut holding.snapshot.doc);
            }
        }
        world
    }

    /// Returns the representative of all worlds that differ only in which process is which.
    pub(crate) fn canonical(&self, owners: usize) -> Self {
        let swaps: &[[u8; OWNERS_MAX]] = match owners {
            0 | 1 => &[[0, 1, 2]],
            2 => &[[0, 1, 2], [1, 0, 2]],
            _ => &[[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
        };
        // What a process is, whatever its name, comes first in the order.
        let nameless = self.rename(|_| Who::Nobody).owners;
        let orders = |swap: &&[u8; OWNERS_MAX]| {
            let mut sorted = nameless;
            for (slot, owner) in nameless.into_iter().enumerate() {
                sorted[usize::from(swap[slot])] = owner;
            }
            sorted[..owners].is_sorted()
        };
        let alike = swaps.iter().filter(orders).map(|swap| self.permuted(*swap));
        alike.min().expect("some permutation sorts")
    }

    fn permuted(&self, to: [u8; OWNERS_MAX]) -> Self {
        let new = |slot: u8| to[usize::from(slot)];
        let mut world = self.rename(|slot| Who::Slot(new(slot)));
        let renamed = world.owners;
        for (slot, owner) in renamed.into_iter().enumerate() {
            world.owners[usize::from(to[slot])] = owner;
        }
        world.written_by = self.written_by.map(new);
        for request in world.requests.iter_mut().flatten() {
            request.role = match request.role {
                Role::Awaited(slot) => Role::Awaited(new(slot)),
                Role::Earlier(slot) => Role::Earlier(new(slot)),
                Role::Orphan => Role::Orphan,
            };
        }
        world.requests.sort_unstable();
        world
    }
}

impl Role {
    fn sender(self) -> Option<u8> {
        match self {
            Self::Awaited(slot) | Self::Earlier(slot) => Some(slot),
            Self::Orphan => None,
        }
    }
}

impl Owner {
    /// What becomes of a process when the version it knew is replaced: a conditional request of its
    /// is as good as refused, a blind one is not.
    fn after_version_went(self, requests: &[Option<Request>], slot: usize) -> Self {
        let is_blind = requests.iter().flatten().any(|request| {
            request.condition == Condition::None
                && request.role.sender().is_some_and(|sender| usize::from(sender) == slot)
        });
        match self.with_version_gone() {
            owner if is_blind => owner,
            Self::Asking(asking) if asking.ambiguous => {
                Self::Asking(Asking { answer: Answer::Judging, ..asking })
            }
            // A first try that is plainly rejected: the tick starts over.
            Self::Idle | Self::Asking(_) => Self::Idle,
            Self::Holding(holding) => {
                let write = holding.write.map(|write| Write { answer: Answer::Judging, ..write });
                Self::Holding(Holding { write, ..holding })
            }
        }
    }

    /// The version that this process knew is no longer current.
    pub(crate) fn with_version_gone(self) -> Self {
        match self {
            Self::Idle => Self::Idle,
            Self::Asking(asking) => Self::Asking(Asking { current: false, ..asking }),
            Self::Holding(holding) => {
                let snapshot = View { current: false, ..holding.snapshot };
                let write = holding.write.map(|write| Write { current: false, ..write });
                Self::Holding(Holding { snapshot, write, ..holding })
            }
        }
    }
}
