//! The world: one stored document, the processes around it, pending requests, and two targets.
//!
//! A version of the stored document is either the current one or one that can never return, so no etag needs
//! a number: every process remembers whether the version it saw is still current. A conditional request whose
//! version is gone can only be rejected, and its sender then reads, so such a request is removed at once. An
//! event that is late because its response is late is the same as one that is late because its process is
//! slow.

use crate::documents::{Batch, Doc, Grant, What, Who};

pub(crate) const OWNERS_MAX: usize = 3;
const REQUESTS_MAX: usize = 6;

/// A state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World {
    pub(crate) stored: Option<Doc>,
    /// The process whose logical write, still being judged by that process, is the stored version: its
    /// `write_id`.
    pub(crate) written_by: Option<u8>,
    pub(crate) owners: [Owner; OWNERS_MAX],
    /// Writes that may still land, sorted.
    pub(crate) requests: [Option<Request>; REQUESTS_MAX],
    /// A copy of a delivery on its way to the target, independent of its sender.
    pub(crate) late: Option<Delivery>,
    pub(crate) target: Target,
    pub(crate) seen: Witness,
    /// Versions stored.
    pub(crate) writes: u8,
    /// Faults and interventions used up.
    pub(crate) faults: u8,
    /// Times that the document was lost.
    pub(crate) losses: u8,
    /// Resets requested.
    pub(crate) resets: u8,
}

/// The memory of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Owner {
    Idle,
    Asking(Asking),
    Holding(Holding),
}

/// A process that has read document and rows and requests the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Asking {
    pub(crate) batch: Batch,
    /// Whether the version it read is still current.
    pub(crate) current: bool,
    /// Whether an earlier attempt got no response.
    pub(crate) ambiguous: bool,
    pub(crate) answer: Answer,
}

/// A process that considers itself the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "none of these facts excludes another")]
pub(crate) struct Holding {
    pub(crate) grant: Grant,
    pub(crate) snapshot: View,
    pub(crate) batch: Batch,
    /// Whether the handler has finished with the batch.
    pub(crate) handled: bool,
    /// Whether the handler has finished the batch that the pending commit announces.
    pub(crate) next_handled: bool,
    /// Ends of the batches after the checkpoint that it has finished, one bit each: known to the witness
    /// only.
    pub(crate) ends: u8,
    pub(crate) write: Option<Write>,
    /// Whether a renewal that commits the first row of the batch may be pending.
    pub(crate) in_the_air: bool,
    /// The real number of its grant: known to the witness only.
    pub(crate) number: u8,
    /// Whether the checkpoint has not been moved back since: known to the witness only.
    pub(crate) in_era: bool,
}

/// A document as it was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct View {
    pub(crate) doc: Doc,
    /// Whether its version is still current.
    pub(crate) current: bool,
}

/// A pending logical write of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Write {
    pub(crate) what: What,
    /// Whether the version it was made from is still current.
    pub(crate) current: bool,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Answer {
    /// A request is pending.
    Awaited,
    /// It was rejected, or there was no response: the document must be read and judged.
    Judging,
}

/// A pending write to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Request {
    pub(crate) doc: Doc,
    pub(crate) role: Role,
    pub(crate) kind: Kind,
    pub(crate) condition: Condition,
    /// Whether it was made from the stored version: known to the witness only.
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
    /// An earlier attempt at the sender's current logical write.
    Earlier(u8),
    /// Nobody waits for it: a zombie, or an operator's request.
    Orphan,
}

/// What a request would do, as the witness sees it.
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
    /// Returns the batch that the pending commit announces and whose handler runs meanwhile.
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
    /// Rows it has, for the variant without a token.
    pub(crate) rows: u8,
    /// The latest grant of which it accepted a write, as numbered by the witness.
    pub(crate) newest: u8,
}

/// Records of the witness, which does not judge by tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Witness {
    /// Rows that a handler has finished since the checkpoint was last moved back.
    pub(crate) delivered: u8,
    /// Leases granted.
    pub(crate) grants: u8,
    /// Whether the newest grant was revoked.
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

    /// Adds a pending request; two equal ones count as one.
    pub(crate) fn send(&mut self, request: Request) {
        if self.requests.contains(&Some(request)) {
            return;
        }
        let free = self.requests.iter_mut().find(|place| place.is_none());
        *free.expect("more requests in the air than the model has room for") = Some(request);
    }

    /// Changes the role of requests, for example when their sender has abandoned them.
    pub(crate) fn recast(&mut self, role: impl Fn(Role) -> Role) {
        let requests = std::mem::replace(&mut self.requests, [None; REQUESTS_MAX]);
        for request in requests.into_iter().flatten() {
            self.send(Request { role: role(request.role), ..request });
        }
    }

    /// Ends a logical write: its pending requests become zombies.
    pub(crate) fn end_write(&mut self, slot: u8) {
        self.recast(|role| if role.sender() == Some(slot) { Role::Orphan } else { role });
        self.written_by = self.written_by.filter(|by| *by != slot);
    }

    /// Ends a tick: the process forgets it.
    pub(crate) fn end_tick(&mut self, slot: u8) {
        self.end_write(slot);
        self.set(slot, Owner::Idle);
    }

    /// The stored version is gone. A request to create may still land once nothing is stored.
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

    /// A process whose request for the lease has not landed and can no longer land only learns so: its tick
    /// is over.
    pub(crate) fn end_hopeless_ticks(&mut self) {
        for (owner, slot) in self.owners.iter_mut().zip(0..) {
            let Owner::Asking(asking) = owner else { continue };
            if !asking.current && self.written_by != Some(slot) {
                *owner = Owner::Idle;
            }
        }
    }

    /// Every document and memory with the name of `slot` gets another name.
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
        // The order considers the state of a process first, regardless of its name.
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
    /// The new state of a process when the version it knew is replaced: a conditional request of it is as
    /// good as rejected, a blind one is not.
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
            // A first attempt that is plainly rejected: the tick starts over.
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
