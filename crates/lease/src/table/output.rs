//! What goes into the table with an operation, and what comes out of it.

use super::rates::Intent;
use soda_types::{Cause, Fid, Recall, SessionId};

/// An operation of a session, by a key that the server chooses; not used again while the operation is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpKey(pub u64);

/// One object that an operation reads or changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    pub fid: Fid,
    pub intent: Intent,
    /// What holders are told if their lease is recalled for this.
    pub cause: Cause,
    pub want: Want,
}

impl Access {
    /// Reads the object and caches it.
    pub fn read(fid: Fid) -> Access {
        Access { fid, intent: Intent::Read, cause: Cause::Read, want: Want::Lease }
    }

    /// Changes the object and caches it.
    pub fn change(fid: Fid, cause: Cause) -> Access {
        Access { fid, intent: Intent::Change, cause, want: Want::Lease }
    }

    /// The same without asking for a lease.
    pub fn without_lease(self) -> Access {
        Access { want: Want::Nothing, ..self }
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
    /// Carry the operation out and then call [`super::Table::finish`].
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
}

/// Why an operation is not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the session has ended")]
    SessionEnded,
    /// Of a [`Covered`] operation: nothing of it may be done any more.
    #[error("the session has no write lease on {0}")]
    NotHeld(Fid),
}

/// Why a session was ended by the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FenceReason {
    #[error("its lease ran out and another client needed {0}")]
    Expired(Fid),
    #[error("it went on renewing but did not give up {0} within the deadline")]
    Silent(Fid),
    #[error("it did not come back in the grace period after the restart")]
    NotReclaimed,
}

/// The session is not known (any more).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the session has ended at the server")]
pub struct SessionEnded;
