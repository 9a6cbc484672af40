//! What a lease is: (fid, scope, mode, epoch, term) held by a session.

use crate::{Epoch, Fid, Name};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// How far a lease reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Scope {
    /// One file (data, attributes, xattrs) or one directory (its names, present and absent, and attributes); "shallow".
    Node,
    /// A directory and all below it; "deep" (Zhang & Honeyman).
    Subtree,
}

/// What a lease allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// Shared: what was read may be cached.
    Read,
    /// Exclusive: nobody else caches or sees the object without a recall.
    Write,
}

/// How long a lease lasts without renewal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Term {
    /// As long as the session that holds it (volume leases, Yin et al.): the default.
    Session,
    /// Its own term, counted by the client from the moment it sent the request; ends with the session at the latest.
    For(Duration),
}

/// Policy on the terms of leases on objects. Long terms cost less (section 3 of the SODA paper: "no optimal term"); the
/// short ones are here to be compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectTerm {
    /// Term 0: no lease, every use asks the server (AFS v1, Sprite under write sharing).
    None,
    For(Duration),
    /// As long as the session: infinite while the client is alive (AFS v2's callbacks).
    Session,
}

impl ObjectTerm {
    /// What a lease gets; `None`: there is none.
    pub fn term(self) -> Option<Term> {
        match self {
            ObjectTerm::None | ObjectTerm::For(Duration::ZERO) => None,
            ObjectTerm::For(term) => Some(Term::For(term)),
            ObjectTerm::Session => Some(Term::Session),
        }
    }
}

/// A lease as it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub fid: Fid,
    pub scope: Scope,
    pub mode: Mode,
    pub epoch: Epoch,
    pub term: Term,
}

/// The server asks a holder to lower a lease or to give it up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recall {
    pub fid: Fid,
    /// The lease that is meant. A holder that does not know it yet (its grant is still on the way) answers at once and
    /// refuses the grant when it comes.
    pub epoch: Epoch,
    /// What the holder may keep.
    pub to: Option<Mode>,
    pub cause: Cause,
    /// `None`: the node lease on `fid`. Else what is asked for is part of the deep lease on `fid`, and `epoch` names the
    /// question, not the lease: there can be many at a time. To keep nothing of the directory of the lease itself with all
    /// below: that is the whole lease.
    pub part: Option<LeasePart>,
}

/// Part of a deep lease: one object, or a directory and all below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeasePart {
    pub fid: Fid,
    pub scope: Scope,
}

impl LeasePart {
    pub fn object(fid: Fid) -> LeasePart {
        LeasePart { fid, scope: Scope::Node }
    }

    /// The directory and all below it. Of the lease's own directory: all of the lease.
    pub fn tree(fid: Fid) -> LeasePart {
        LeasePart { fid, scope: Scope::Subtree }
    }
}

impl Recall {
    /// The object that is asked for.
    pub fn asked(&self) -> Fid {
        self.part.map_or(self.fid, |part| part.fid)
    }
}

impl RecallAck {
    /// The object that was asked for.
    pub fn asked(&self) -> Fid {
        self.part.map_or(self.fid, |part| part.fid)
    }
}

/// Why a lease is recalled: what the waiting operation is about to do. A hint; the lease goes all the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// Somebody wants to read.
    Read,
    /// Somebody changes these names of the directory, and so its attributes.
    Names(Vec<Name>),
    /// Somebody changes attributes or xattrs, not the data, and not what [`Cause::Access`] does.
    Attributes,
    /// Somebody changes owner, group, mode or an access list.
    Access,
    /// Somebody changes data.
    Data,
    /// The server is short of memory, or policy.
    Reclaim,
}

/// A holder's answer to a [`Recall`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecallAck {
    pub fid: Fid,
    pub epoch: Epoch,
    /// What the holder kept: at most what it was asked to.
    pub kept: Option<Mode>,
    /// Whether a process of the client still has the inode open, so that unlinking must keep it as an orphan.
    pub in_use: InUse,
    /// How often the cache was used under this lease, for the server's rates (equation 8 of the SODA paper).
    pub uses: u32,
    /// As in the [`Recall`]. A deep lease that is given back, or lowered, unasked names itself: `fid` again with all below,
    /// under its own epoch.
    pub part: Option<LeasePart>,
}

/// Beside an answer about an object: the deep lease of the session on `root` covers it. Deep leases cover only what the
/// server has said so of, object by object, as the client meets them: so holes and hard links need no words of their own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Coverage {
    pub fid: Fid,
    pub root: Fid,
    pub mode: Mode,
    /// The directories from the object's parent up to and with `root`; empty for `root` itself.
    pub above: Vec<Fid>,
}

/// Whether some process has the inode open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum InUse {
    #[default]
    No,
    Yes,
}

/// Ceph's habit: a lease in one word for logs and tools, such as `R`, `W`, `deep W`.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deep = if self.scope == Scope::Subtree { "deep " } else { "" };
        write!(f, "{deep}{} {} {}", self.mode, self.fid, self.epoch)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Read => "R",
            Mode::Write => "W",
        })
    }
}
