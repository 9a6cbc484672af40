//! What goes into the table with an operation, and what comes out of it.

use super::rates::{Intent, Seen};
use soda_types::{Cause, Fid, FileKind, Recall, SessionId};

/// An operation of a session, by a key that the server chooses; not used again while the operation is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpKey(pub u64);

/// One object that an operation reads or changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    pub fid: Fid,
    pub intent: Intent,
    /// What a read is about, for the count of those that a cache would have answered.
    pub seen: Seen,
    /// What holders are told if their lease is recalled for this.
    pub cause: Cause,
    pub want: Want,
    /// Where it lies, for deep leases.
    pub ancestors: Ancestors,
    pub origin: Origin,
}

/// What makes a client ask for an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// A system call, or the client itself.
    #[default]
    Call,
    /// The client's kernel writes pages back that a program has stored to, and keeps them locked until the answer.
    WriteBack,
}

/// The directories above an object, as the volume had them when the operation was planned. What moves later the table hears
/// with [`TreeChanges`]; a plan that is older than such a change is not believed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Ancestors {
    /// The caller cannot say, or does not use deep leases. It may lie below every deep lease of the volume: each is asked.
    #[default]
    Unknown,
    /// From the parent to the root; of the root itself none.
    Chain(TreeVersion, Vec<Fid>),
    /// A file with several names (hard links) has several chains: no deep lease covers it.
    Several(TreeVersion),
}

/// Tells whether names have moved in between. Take it from [`super::LeaseTable::tree_version`] before looking at the volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TreeVersion(pub(super) u64);

/// What an operation has done to the tree, for [`super::LeaseTable::finish_tree`]. Chains are from the parent to the root.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeChanges {
    pub created: Vec<Created>,
    /// Has another parent now, in the order of the moves. Moves of directories exclude each other, so what is above one stands
    /// still.
    pub moved: Vec<Moved>,
    /// Has several names now, or none.
    pub relinked: Vec<Fid>,
}

/// An inode in another directory than before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    pub fid: Fid,
    pub kind: FileKind,
    /// The directories above it, from the parent to the root.
    pub above: Vec<Fid>,
}

/// A new inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    pub fid: Fid,
    pub kind: FileKind,
    /// The directory that it is in, an object of the same operation; none yet for a temporary file.
    pub parent: Option<Fid>,
}

impl Access {
    /// Reads the object and caches it.
    pub fn read(fid: Fid) -> Access {
        Access {
            fid,
            intent: Intent::Read,
            seen: Seen::Attributes,
            cause: Cause::Read,
            want: Want::Lease,
            ancestors: Ancestors::Unknown,
            origin: Origin::Call,
        }
    }

    /// Reads the object's data and caches it.
    pub fn read_data(fid: Fid) -> Access {
        Access { seen: Seen::Data, ..Access::read(fid) }
    }

    /// Changes the object and caches it.
    pub fn change(fid: Fid, cause: Cause) -> Access {
        Access { intent: Intent::Change, cause, ..Access::read(fid) }
    }

    /// The same without asking for a lease.
    pub fn without_lease(self) -> Access {
        Access { want: Want::Nothing, ..self }
    }

    /// The same of pages that the kernel writes back.
    pub fn of_write_back(self) -> Access {
        Access { origin: Origin::WriteBack, ..self }
    }

    /// The same with its directories, from the parent to the root.
    pub fn below(self, as_of: TreeVersion, chain: Vec<Fid>) -> Access {
        Access { ancestors: Ancestors::Chain(as_of, chain), ..self }
    }

    /// The same for what no deep lease covers: a file with several names, or what is no inode of the tree.
    pub fn not_deep(self, as_of: TreeVersion) -> Access {
        Access { ancestors: Ancestors::Several(as_of), ..self }
    }
}

/// What a session has done already under write leases of its own, and tells the server now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Covered {
    /// Changed: the session must hold a write lease on each.
    pub held: Vec<Fid>,
    /// Made: nobody else knows them yet.
    pub made: Vec<Fid>,
    /// Changed without leases: things of the server's own that no other operation may use meanwhile.
    pub alone: Vec<Fid>,
    /// Where the changed ones lie. A deep lease counts for what has a place only, so with deep leases on no plan that is older
    /// than a move may be used ([`Refusal::Unplaced`]: it is not known yet).
    pub ancestors: Vec<(Fid, Ancestors)>,
}

/// Whether the session can be given a lease with the answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Want {
    /// Say, because the answer goes over a data connection, or the mount does not cache.
    Nothing,
    Lease,
}

/// What became of an admitted operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It did what it said.
    Applied,
    /// It changed nothing (say, EEXIST). What it read to find out may be cached all the same.
    Failed,
}

/// What the server has to do, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Carry the operation out and then call [`super::LeaseTable::finish`].
    Admit(OpKey),
    /// The operation will not be admitted; it is forgotten.
    Refuse(OpKey, Refusal),
    /// Send it on the session's control connection. If there is none now, nothing is lost: it comes again.
    Recall { session: SessionId, recall: Recall },
    /// The session has ended. Make that durable (so that it cannot reclaim after a restart), drop its locks and opens,
    /// and only then carry out what comes after.
    Fence { session: SessionId, reason: FenceReason },
    /// The holder says that a process has the inode open; unlinking must keep it.
    SessionInUse { session: SessionId, fid: Fid },
    /// Ask the session, on its control connection, what the object is like. If that is lost, patience ends.
    Inquire { session: SessionId, op: OpKey, fid: Fid },
    /// The inquiry has ended without an answer. Whoever made it goes on as if there were no inquiries.
    NotDescribed(OpKey),
}

/// Why an operation is not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the session has ended")]
    SessionEnded,
    /// Of a [`Covered`] operation: nothing of it may be done any more.
    #[error("the session has no write lease on {0}")]
    NotHeld(Fid),
    /// Of a [`Covered`] operation: the object, or something above it, is just being changed, and may be moving, so it cannot be
    /// said yet whether a deep lease covers it. To be asked for again when that is over.
    #[error("where {0} lies cannot be said at the moment")]
    Unplaced(Fid),
}

/// Why a session was ended by the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FenceReason {
    #[error("its lease ran out and another client needed {0}")]
    Expired(Fid),
    #[error("its lease ran out and another client needed the space that was set aside for it")]
    ExpiredWithSpace,
    #[error("it went on renewing but did not give up {0} within the deadline")]
    Silent(Fid),
    #[error("it did not come back in the grace period after the restart")]
    NotReclaimed,
}

/// The session is not known (any more).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the session has ended at the server")]
pub struct SessionEnded;
