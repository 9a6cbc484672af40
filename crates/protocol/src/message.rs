//! Messages. A connection starts with [`Call::Hello`]; its role decides what else may be sent on it:
//! a *control* connection carries everything but bulk data, in order; *data* connections of the same session carry
//! [`Call::Read`] and [`Call::Write`] so that a megabyte never delays a recall; an *admin* connection only asks.

use crate::admin::{AdminAnswer, AdminCall};
use crate::change::{Allocate, BacklogReport, NewNode, OpId, Rename, SetXattr, Unlink, WriteAt};
use crate::digest::{Lsn, Record};
use crate::found::{DirPage, Layout, Node};
use crate::inquiry::{Inquiry, InquiryAnswer};
use crate::locks::{Delegable, Lock, LockWait};
use crate::session::{Hello, Reclaim, Welcome};
use serde::{Deserialize, Serialize};
use soda_types::{
    Attr, Coverage, Epoch, Fid, FileKind, FsError, FsStats, Grant, Ino, Mode, Name, Recall, RecallAck,
    SetAttr, Version,
};
use std::time::Duration;

/// Client to server; answered by exactly one [`Reply`] with the same tag.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Present on every operation that changes something: makes it exactly-once.
    pub op: Option<OpId>,
    pub call: Call,
}

/// Server to client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reply {
    pub result: Result<Answer, Failure>,
    /// Leases that come with the answer; only ever on a control connection.
    pub grants: Vec<Grant>,
    /// What deep leases of the session cover; with the answer, as the grants.
    pub covered: Vec<Covered>,
}

/// Inodes in one directory that a deep lease covers ([`soda_types::Coverage`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Covered {
    /// The deep lease: a client that has not heard of it takes it now.
    pub lease: Grant,
    pub mode: Mode,
    /// The directories from the inodes' parent up to and with that of the lease; empty for that one itself.
    pub above: Vec<Fid>,
    pub fids: Vec<Fid>,
}

impl Covered {
    /// The same inode by inode.
    pub fn each(&self) -> impl Iterator<Item = Coverage> + '_ {
        let (root, mode) = (self.lease.fid, self.mode);
        self.fids.iter().map(move |fid| Coverage { fid: *fid, root, mode, above: self.above.clone() })
    }
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// The operation was carried out and failed; final.
    #[error("{0}")]
    Fs(FsError),
    /// The session is not known (any more): its leases are gone, what it had not been told done may not be done.
    #[error("the session has ended at the server")]
    SessionEnded,
    /// The server restarted and waits for clients to reclaim; send the same request again after this time.
    #[error("the server is in its grace period for another {0:?}")]
    Grace(Duration),
    /// The peer does not know this call, or not on this kind of connection.
    #[error("not supported by this server: {0}")]
    Unsupported(String),
    /// Hello was refused; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// A sequence older than the slot's: a packet of the past. Nothing was done.
    #[error("operation is older than the last one of its slot")]
    OldSequence,
    /// Nothing of the digest was done, because this record could not be.
    #[error("{lsn}: {error}")]
    Digest { lsn: Lsn, error: FsError },
    /// Too much goes on. Nothing was done; send the same request again, later each time.
    #[error("the server has too much to do: {0}")]
    Busy(String),
    /// Others have leases that are in the way, and are asked for them. Nothing was done; only to who polls.
    #[error("others have leases that are in the way")]
    InTheWay,
    /// The digest that this one, or this sync, comes after was not applied. Nothing was done, and the slot is as if it had never
    /// come.
    #[error("the digest before this one was not applied")]
    OutOfTurn,
}

/// Server to client, unasked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Push {
    /// Answered by [`Note::RecallAcks`] as soon as nothing cached depends on the leases, each on its own.
    Recalls(Vec<Recall>),
    /// The server is about to stop; renewals go on at the next one.
    Stopping,
    /// Answered by [`Note::InquiryAnswers`], each on its own. Who is silent for long is sent a recall.
    Inquiries(Vec<Inquiry>),
    /// Others ask for locks of these files: answered by a [`Call::LockReturn`] for each.
    RecallLocks(Vec<(Fid, Epoch)>),
}

/// Client to server, not answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Note {
    RecallAcks(Vec<RecallAck>),
    /// Voluntary release: as a recall's answer that nobody asked for.
    Release(Vec<RecallAck>),
    /// Progress on a recall that takes longer (a flush): extends its deadline.
    RecallProgress(Vec<Fid>),
    /// The last process that had these open closed them.
    Closed(Vec<Fid>),
    /// Give up waiting for the answer to this tag (the caller was interrupted). The reply still comes.
    Cancel(u64),
    InquiryAnswers(Vec<InquiryAnswer>),
    /// What the client has not told: for tools. It travels ahead of what is sent anyway, in the same write.
    Backlog(BacklogReport),
}

// ---------------------------------------------------------------- calls

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Call {
    Hello(Hello),
    /// Renews the session's lease; any other request on the control connection does too.
    Renew,
    Reclaim(Reclaim),
    /// Ends the session: all leases, locks and opens are given up.
    Goodbye,

    // reading
    Lookup {
        parent: Fid,
        name: Name,
    },
    GetAttr {
        fid: Fid,
    },
    ReadLink {
        fid: Fid,
    },
    ReadDir {
        dir: Fid,
        after: Option<Name>,
        limit: u32,
        /// Directories that are likely to be listed next, in that order ([`MAX_NEXT`](crate::MAX_NEXT) at most).
        next: Vec<Fid>,
    },
    /// All names and values (small ones): what a client caches under the lease.
    GetXattrs {
        fid: Fid,
    },
    GetXattr {
        fid: Fid,
        name: Vec<u8>,
    },
    /// Payload of the reply: the bytes; fewer than asked for at the end of the file only.
    Read {
        fid: Fid,
        offset: u64,
        len: u32,
    },
    Seek {
        fid: Fid,
        offset: u64,
        whence: Whence,
    },
    StatFs {
        fid: Fid,
    },

    // changing names
    Create {
        parent: Fid,
        name: Name,
        new: NewNode,
    },
    Link {
        fid: Fid,
        parent: Fid,
        name: Name,
    },
    Unlink {
        parent: Fid,
        name: Name,
        what: Unlink,
    },
    Rename {
        parent: Fid,
        name: Name,
        new_parent: Fid,
        new_name: Name,
        how: Rename,
    },
    /// O_TMPFILE: an inode with no name.
    TmpFile {
        parent: Fid,
        new: NewNode,
    },

    // changing inodes
    /// `owner`: EPERM unless this user owns the inode. Who asked may have been told of another owner, and have let somebody
    /// through who is none any more.
    SetAttr {
        fid: Fid,
        set: SetAttr,
        owner: Option<u32>,
    },
    /// The request's payload is the data.
    Write {
        fid: Fid,
        at: WriteAt,
        kill_suid_sgid: bool,
    },
    Allocate {
        fid: Fid,
        offset: u64,
        len: u64,
        how: Allocate,
        kill_suid_sgid: bool,
    },
    CopyRange {
        from: Fid,
        from_offset: u64,
        to: Fid,
        to_offset: u64,
        len: u64,
        kill_suid_sgid: bool,
    },
    /// `kill_sgid`: with an access list, drop set-group-id, as its setter is not of the file's group.
    SetXattr {
        fid: Fid,
        name: Vec<u8>,
        value: Vec<u8>,
        how: SetXattr,
        kill_sgid: bool,
        /// As for [`Call::SetAttr`].
        owner: Option<u32>,
    },
    RemoveXattr {
        fid: Fid,
        name: Vec<u8>,
        /// As for [`Call::SetAttr`].
        owner: Option<u32>,
    },

    // durability and open files
    /// Returns when every change answered before is durable on the server's disk. Shares group commits.
    Sync {
        fid: Fid,
        /// A digest of the session that was sent before, whose answer was not waited for: it counts as answered before. If it was
        /// not applied, or is not the last of its slot any more, nothing is done ([`Failure::OutOfTurn`]).
        after: Option<OpId>,
    },
    /// Changes that the client made under its write leases, in their order, applied whole or not at all
    /// ([`Answer::Digested`], [`Failure::Digest`]). Every inode in it is one that the digest itself creates, with a number
    /// from a [`Call::Reserve`], or one that the session holds a write lease on.
    Digest {
        records: Vec<Record>,
        /// How many bytes of the payload are each write's data, in the order of the writes ([`crate::digest::split_data`]). 0, or
        /// not there: the write has its data itself.
        data: Vec<u32>,
        /// Version and data version of each inode touched, as the client has counted them up to the last record. The server
        /// raises what it has to these, so that caches which hold data under them stay good.
        versions: Vec<(Fid, Version, Version)>,
        /// The digest before, if it may be without an answer: applied only if that was, and is the last of its slot
        /// ([`Failure::OutOfTurn`]).
        after: Option<OpId>,
        /// Of the inodes that it creates, those about whose locks the client decides by itself since it made them, which nobody
        /// else could know. With the digest the right is known at the server, as if it had been given with
        /// [`Answer::Delegated`]; its epoch is the digest's sequence, below all that a server gives.
        locks: Vec<Fid>,
    },
    /// Sets aside what digests will need, so that they cannot fail for want of it: so many inode numbers, for good, and so
    /// many bytes; the session's reservation of space becomes what the answer says.
    Reserve {
        inodes: u32,
        bytes: u64,
    },
    /// Registers that a process has the inode open although no lease covers it.
    Opened {
        fid: Fid,
    },

    // locks
    LockTest {
        fid: Fid,
        lock: Lock,
    },
    LockSet {
        fid: Fid,
        lock: Lock,
        wait: LockWait,
        delegable: Delegable,
    },
    /// Releases the range.
    LockRelease {
        fid: Fid,
        lock: Lock,
    },

    /// For tools; on an admin connection.
    Admin(AdminCall),

    /// Where a file has data from `offset` on, for many of lseek's questions at once. `most`: extents that the server looks
    /// at before it stops between two stretches of data ([`crate::MAX_LAYOUT`]).
    Layout {
        fid: Fid,
        offset: u64,
        most: u32,
    },

    /// As [`Call::GetAttr`], of who wants the attributes and no more: if only a session that delays its changes is in the way,
    /// that one may be asked ([`crate::Inquiry`]), and the answer is [`Answer::Described`], without a lease.
    Stat {
        fid: Fid,
    },
    /// As [`Call::Lookup`]; [`Answer::Named`] if the attributes would take a [`Call::Stat`].
    LookupStat {
        parent: Fid,
        name: Name,
    },
    /// Gives the right to decide about a file's locks back ([`Answer::Delegated`]), because of [`Push::RecallLocks`] or unasked.
    /// `locks`: all that the client has on the file; `None`: the server knows them, as nothing was decided.
    LockReturn {
        fid: Fid,
        epoch: Epoch,
        locks: Option<Vec<Lock>>,
    },

    /// As [`Call::GetAttr`], of who goes on to read: a small file's data come with its attributes, under the same lease
    /// ([`Answer::Fetched`]). Without them the answer is that of GetAttr: if it has none or more than `most` bytes, at most
    /// [`crate::MAX_IO`]; if they are at the version `known`, which the client has; if they are damaged, as who reads them hears.
    Fetch {
        fid: Fid,
        most: u32,
        known: Option<Version>,
        holder: FromHolder,
    },
}

/// What a [`Call::Fetch`] takes where only a session that delays its changes is in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromHolder {
    /// What it says of the attributes, if it does, as [`Call::Stat`] does: its lease stays, and there are no data.
    Attributes,
    /// Its lease, as all other calls do.
    Lease,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Whence {
    Data,
    Hole,
}

// ---------------------------------------------------------------- answers

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Welcome(Welcome),
    Reclaimed {
        /// For each lease of the batch, in order: what it is now, or nothing.
        leases: Vec<Option<Grant>>,
        /// Others have what excludes these: they are lost.
        refused_locks: Vec<(Fid, Lock)>,
    },
    /// `None`: there is no such name, which may be cached under the directory's lease.
    Found {
        parent: Attr,
        node: Option<Node>,
    },
    Node(Node),
    Target(Vec<u8>),
    /// The page, and of those that are likely to be next each that nobody else may change, whole: as many as fit.
    Entries(DirPage, Vec<(Fid, DirPage)>),
    Xattrs(Vec<(Vec<u8>, Vec<u8>)>),
    Xattr(Vec<u8>),
    /// Attributes at the moment of the read; the bytes are the payload.
    Data {
        attr: Attr,
    },
    Offset(u64),
    Stats(FsStats),
    /// What a change did: the inode that it was about, and the new attributes of every other inode it touched.
    Changed {
        node: Option<Node>,
        others: Vec<(Fid, Attr)>,
    },
    /// As `Changed`, for data: where it went.
    Written {
        offset: u64,
        len: u64,
        attr: Attr,
    },
    /// Of every inode that the digest touched and that still exists. Leases on those that it created come with it.
    Digested {
        attrs: Vec<(Fid, Attr)>,
    },
    /// Numbers `first..first + count` are the client's to give, and `bytes` are kept free for it.
    Reserved {
        first: Ino,
        count: u32,
        bytes: u64,
        /// The lowest version that a change may give in this run of the server.
        version: Version,
    },
    /// The conflicting lock, if any.
    Conflict(Option<Lock>),
    Admin(AdminAnswer),
    Layout(Layout),
    /// What the holder of the write lease says it is like, at a moment between the question and this answer.
    Described(Node),
    /// The name means this inode, of which another session may have changes that the server has not heard of.
    Named {
        parent: Attr,
        fid: Fid,
        kind: FileKind,
    },
    /// The lock is taken. When all requests of the client for locks of this file are answered, it takes and releases further
    /// ones without asking, until it gives that right back with the same epoch, or its session's lease has run out.
    Delegated(Epoch),
    /// A file's attributes; the payload is all that is in it.
    Fetched(Node),
}
