//! What the nodes say to each other: the shape of the real protocol, reduced to what consistency depends on.

use soda_types::{Epoch, Fid, Grant, Ino, Recall, RecallAck, Sequence, SessionId, VolumeId};
use std::time::Duration;

/// A thing that is read and changed by itself: a file's data, or one name of a directory. Its value is how often it has
/// been changed, so that a read tells exactly which change it saw.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Register {
    pub object: u8,
    pub cell: u8,
}

impl Register {
    pub fn fid(self) -> Fid {
        Fid::new(VolumeId(1), Ino(100 + u64::from(self.object)))
    }
}

/// How often a register had been changed.
pub type Value = u64;

/// One operation of a program, unique in the run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpUid(pub u64);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    Read(Register),
    /// One register, or two of different objects at once (a rename).
    Change(Vec<Register>),
}

/// Identity of a changing operation within its session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId {
    pub slot: usize,
    pub sequence: Sequence,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(pub u64);

#[derive(Clone, PartialEq, Debug)]
pub enum ToServer {
    Hello { resume: Option<SessionId>, tag: Tag },
    Attach { session: SessionId },
    Renew { tag: Tag },
    Request { tag: Tag, session: SessionId, uid: OpUid, op: Option<OpId>, call: Call },
    Reclaim { tag: Tag, held: Vec<Grant> },
    Acks(Vec<RecallAck>),
    Release(Vec<RecallAck>),
    Progress(Vec<Fid>),
    Goodbye,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ToClient {
    Welcome {
        tag: Tag,
        session: SessionId,
        standing: Standing,
        term: Duration,
    },
    Renewed {
        tag: Tag,
    },
    /// Values after the operation, in the order of its registers.
    Reply {
        tag: Tag,
        values: Vec<Value>,
        grants: Vec<Grant>,
    },
    Reclaimed {
        tag: Tag,
        answers: Vec<Option<Grant>>,
    },
    SessionEnded {
        tag: Tag,
    },
    Recall(Recall),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    New,
    Resumed,
    Reclaim,
}

/// Epochs of one life of the server: the higher half is how often it has started.
pub fn first_epoch(start: u64) -> Epoch {
    Epoch(start << 32 | 1)
}
