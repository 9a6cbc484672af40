//! What tools ask a server, on an admin connection.

use crate::change::BacklogReport;
use serde::{Deserialize, Serialize};
use soda_types::{Attr, Fid, FsStats, Grant, Lock, Mode, Name, SessionId, Timestamp};
use std::time::Duration;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum AdminCall {
    Status,
    /// Counters since the start, by name.
    Stats,
    /// Leases on one object, or all; at most `limit`.
    Leases {
        of: Option<ObjectRef>,
        limit: u32,
    },
    /// Who holds, who waits, for whom, since when, and why the last lease was refused.
    Why(ObjectRef),
    /// Objects that clients contend for, by how much they were used lately; at most `limit`.
    Busiest {
        limit: u32,
    },
    /// How many clients have changed each of these objects lately.
    Writers(Vec<Fid>),
    /// The file locks of an object, and who waits for one; at most `limit` of each.
    Locks {
        of: ObjectRef,
        limit: u32,
    },
    /// Where each of these inodes lies now.
    Paths(Vec<Fid>),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectRef {
    Fid(Fid),
    /// Names from the root of a volume.
    Path {
        volume: String,
        names: Vec<Name>,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum AdminAnswer {
    Status(ServerStatus),
    Stats(Vec<(String, u64)>),
    Leases(Vec<LeaseInfo>),
    Why(Box<WhyInfo>),
    /// The busiest first.
    Busiest(Vec<ObjectUse>),
    /// For each object that was named, in that order, 1,000 at most; 0 too where nothing is counted, as no lease on it had to be
    /// recalled.
    Writers(Vec<u32>),
    Locks(LocksInfo),
    /// For each inode that was named, in that order, 1,000 at most.
    Paths(Vec<Whereabouts>),
}

/// Where an inode lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Whereabouts {
    /// Names from the root of the volume; of several names the first that was found.
    At(Vec<Name>),
    /// The volume does not have it any more.
    Gone,
    /// It is there, and no name of it was found in the time and the room that an answer has.
    NotFound,
}

/// How an object was used lately: rates as in [`WhyInfo`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ObjectUse {
    pub fid: Fid,
    /// `None`: not found in time.
    pub path: Option<String>,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    pub clients: u32,
    /// Whether policy has leases given on it: false with a term of 0, or by equation (8).
    pub is_leased: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerStatus {
    pub software: String,
    pub started: Timestamp,
    pub uptime: Duration,
    pub data_dir: String,
    pub listen: String,
    pub term: Duration,
    /// What is left of the grace period.
    pub grace: Option<Duration>,
    pub volumes: Vec<(String, FsStats)>,
    pub sessions: Vec<SessionInfo>,
    pub leases: u64,
    pub waiting: u64,
    /// Why the server's store takes no changes any more, if it is so: they fail with EIO until the server is started anew.
    pub stopped: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionInfo {
    pub session: SessionId,
    pub name: String,
    pub peer: String,
    pub connected: u32,
    /// What is left of the session's lease; zero: expired, kept by courtesy.
    pub left: Duration,
    pub leases: u64,
    pub open: u64,
    pub locks: u64,
    /// `None`: it delays nothing, or has not said yet.
    pub backlog: Option<SessionBacklog>,
}

/// What a session has not told, as it said last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionBacklog {
    pub said: BacklogReport,
    /// How long ago it said so.
    pub ago: Duration,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LeaseInfo {
    pub grant: Grant,
    pub session: SessionId,
    pub holder: String,
    /// Path of the object if it is known.
    pub path: Option<String>,
    /// Since when a recall is waiting for an answer.
    pub recalled_for: Option<Duration>,
    pub held_for: Duration,
    /// Of a deep lease: how many inodes others have been given out of it.
    pub holes: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WhyInfo {
    pub fid: Fid,
    pub path: Option<String>,
    pub attr: Attr,
    pub holders: Vec<LeaseInfo>,
    /// Deep leases on directories above, out of which it was given to others.
    pub holes: Vec<HoleInfo>,
    /// Who decides about its file locks; `None`: the server.
    pub lock_delegate: Option<DelegateInfo>,
    pub waiting: Vec<WaitInfo>,
    /// Decayed rates, per second.
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    /// Clients that used it lately.
    pub clients: u32,
    /// What the policy says about the next lease, in words.
    pub policy: String,
}

/// A deep lease that covers less of an object, or nothing, than of the rest of its directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HoleInfo {
    pub session: SessionId,
    pub holder: String,
    /// The lease's directory.
    pub root: Fid,
    /// Its path if it is known.
    pub path: Option<String>,
    /// The mode of the lease.
    pub mode: Mode,
    /// What it still covers here.
    pub kept: Option<Mode>,
}

/// The session that takes and releases a file's locks without asking.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DelegateInfo {
    pub session: SessionId,
    pub name: String,
    /// Since when the server asks it to give that up.
    pub recalled_for: Option<Duration>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WaitInfo {
    pub session: SessionId,
    pub name: String,
    pub operation: String,
    pub wants: Mode,
    pub waited: Duration,
    /// The sessions that it waits for.
    pub blocked_by: Vec<SessionId>,
    /// When it will go on at the latest.
    pub at_most: Option<Duration>,
}

/// The file locks of an object.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LocksInfo {
    /// Those that the server knows: none while a client decides by itself ([`WhyInfo::lock_delegate`]).
    pub held: Vec<LockHolder>,
    /// How many there are beside these.
    pub more_held: u64,
    /// Who waits, first come first.
    pub waiting: Vec<LockWaitInfo>,
    /// How many wait beside these.
    pub more_waiting: u64,
}

/// A lock and whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockHolder {
    pub session: SessionId,
    pub name: String,
    pub lock: Lock,
}

/// Who waits for a lock, or for the answer who has one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWaitInfo {
    pub session: SessionId,
    pub name: String,
    /// The call's kind.
    pub operation: String,
    pub wants: Lock,
    pub waited: Duration,
    /// Of those that are in the way the one that starts first; `None`: the client that decides by itself has to tell of its locks
    /// first.
    pub in_the_way: Option<LockHolder>,
}
