//! What the nodes say to each other: the shape of the real protocol, reduced to what consistency depends on.

use crate::deed::Deed;
use crate::register::{Object, OpUid, Register, Stamp, Value};
use soda_oplog::{DigestId, Record};
use soda_protocol::ReclaimStep;
use soda_types::{Coverage, Epoch, Fid, Grant, Ino, Lock, Recall, RecallAck, Scope, Sequence, SessionId};
use std::ops::Range;
use std::time::Duration;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    Read(Register),
    /// With delayed writes: as a read of a file, of who wants no lease, as stat(2): the holder of a write lease may be asked.
    Look(Register),
    /// One register, or two of different objects at once.
    Change(Vec<Register>),
    /// With delayed writes: the operations of a file system.
    Do(Deed),
}

impl Call {
    /// The inodes that it reads or changes.
    pub fn objects(&self) -> Vec<Object> {
        match self {
            Call::Read(register) | Call::Look(register) => vec![register.object],
            Call::Change(registers) => registers.iter().map(|register| register.object).collect(),
            Call::Do(deed) => deed.changes(),
        }
    }
}

/// Identity of a changing operation within its session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId {
    pub slot: usize,
    pub sequence: Sequence,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(pub u64);

/// What an answer says of leases.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Leases {
    pub grants: Vec<Grant>,
    /// What deep leases cover, each with the lease: the answer that brought that one may have been lost.
    pub covered: Vec<(Grant, Coverage)>,
}

/// A digest as it travels.
#[derive(Clone, PartialEq, Debug)]
pub struct DigestCall {
    pub id: DigestId,
    /// The one before it, if that has no answer.
    pub after: Option<DigestId>,
    pub records: Vec<Record>,
    /// The number of each inode that it makes, in order; none where numbers are not counted. (In the real protocol the record has
    /// it. Here inodes are told apart by what no mistake can give twice.)
    pub numbers: Vec<Ino>,
    /// What it makes about whose locks the client decides.
    pub locks: Vec<Object>,
    /// What each register's stamp is afterwards, as the client has counted (versions, in the real protocol).
    pub stamps: Vec<(Register, Stamp)>,
    /// The operations that it stands for, in order; only for the invariants.
    pub uids: Vec<OpUid>,
}

/// A lease to be had again after a restart, and what the client takes the server's state of the object for.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    pub grant: Grant,
    pub believed: Vec<(Register, Stamp)>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ToServer {
    /// `life`: how often the client has started.
    Hello {
        resume: Option<SessionId>,
        life: u64,
        widest: Scope,
        tag: Tag,
    },
    Attach {
        session: SessionId,
    },
    Renew {
        tag: Tag,
    },
    Request {
        tag: Tag,
        session: SessionId,
        uid: OpUid,
        op: Option<OpId>,
        call: Call,
    },
    Digest {
        tag: Tag,
        session: SessionId,
        digest: DigestCall,
    },
    /// Makes durable whatever has been applied.
    Sync {
        tag: Tag,
        /// Whatever has been applied when this digest is: then it begins.
        after: Option<DigestId>,
        /// The fsyncs that it is for. Only for the invariants.
        uids: Vec<OpUid>,
    },
    /// The last one has no claims, and is sent when what was refused is dropped: only then are others let in to it.
    Reclaim {
        tag: Tag,
        claims: Vec<Claim>,
        locks: Vec<(Object, Lock)>,
        step: ReclaimStep,
    },
    Lock {
        tag: Tag,
        object: Object,
        call: LockCall,
    },
    /// So many more numbers of inodes are to be set aside, and so many bytes in place of those that were.
    Reserve {
        tag: Tag,
        inodes: u32,
        bytes: u64,
    },
    Acks(Vec<RecallAck>),
    Release(Vec<RecallAck>),
    Progress(Vec<Fid>),
    /// What the register holds. `None`: the holder cannot tell.
    Described {
        number: u64,
        value: Option<Value>,
    },
    Goodbye,
}

impl ToServer {
    /// What is true only in the order in which it was sent, and once.
    pub fn comes_once(&self) -> bool {
        matches!(self, ToServer::Lock { .. } | ToServer::Reserve { .. })
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum ToClient {
    Welcome {
        tag: Tag,
        session: SessionId,
        standing: Standing,
        term: Duration,
        /// Which run of the server this is.
        boot: u64,
        /// The last digest of the session that the server has.
        stored: DigestId,
    },
    Renewed {
        tag: Tag,
        /// The last digest of the session that the server's disk has.
        durable: DigestId,
    },
    /// Values after the operation, in the order of its registers.
    Reply {
        tag: Tag,
        values: Vec<Value>,
        leases: Leases,
    },
    Digested {
        tag: Tag,
        leases: Leases,
    },
    /// Nothing of the digest was done: a lease is missing, or a record cannot be carried out.
    DigestRefused {
        tag: Tag,
    },
    /// Nothing was done, and the same one may come again.
    DigestUndone {
        tag: Tag,
        why: Undone,
    },
    Synced {
        tag: Tag,
        durable: DigestId,
    },
    /// Nothing was done: the digest that it was to come after was not applied, or is not known any more.
    SyncOutOfTurn {
        tag: Tag,
    },
    Reclaimed {
        tag: Tag,
        answers: Vec<Option<Grant>>,
        /// Others have what excludes these.
        lost: Vec<(Object, Lock)>,
    },
    Locked {
        tag: Tag,
        answer: LockAnswer,
    },
    /// Others want locks of the file, about which this client decides.
    RecallLocks {
        object: Object,
        epoch: Epoch,
    },
    /// The operation was not done.
    NoSpace {
        tag: Tag,
    },
    Reserved {
        tag: Tag,
        numbers: Range<u64>,
        bytes: u64,
    },
    SessionEnded {
        tag: Tag,
    },
    Recall(Recall),
    Inquiry {
        number: u64,
        register: Register,
    },
    /// What the holder of a write lease said.
    Described {
        tag: Tag,
        value: Value,
    },
}

/// Owners are the processes of a client.
#[derive(Clone, PartialEq, Debug)]
pub enum LockCall {
    Set(Lock, Wait),
    Release(Lock),
    /// The right to decide about the file, with the locks that were taken by it; `None`: none was.
    Return(Epoch, Option<Vec<Lock>>),
}

/// Whether a lock that cannot be had now is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    No,
    Yes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockAnswer {
    /// With the right to decide about the file, perhaps.
    Taken(Option<Epoch>),
    Busy,
    Done,
    /// Nothing was done: somebody may come back who had locks before the restart.
    Grace,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undone {
    /// The one before it was not applied.
    OutOfTurn,
    /// It cannot be said now what covers it.
    Busy,
}

impl ToClient {
    /// What is true only in the order in which it was sent, and once.
    pub fn comes_once(&self) -> bool {
        matches!(self, ToClient::Locked { .. } | ToClient::RecallLocks { .. } | ToClient::Reserved { .. })
    }
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
