//! The vocabulary that every other crate shares: identifiers, attributes, names, times and errors.
//!
//! Plain data and its checks, nothing else: no clock, no socket, no thread. Where the words come from:
//! `docs/GLOSSARY.md`.

pub mod acl;
mod attr;
mod change;
mod error;
mod id;
mod lease;
mod lock;
mod name;
pub mod semantics;
mod time;

pub use attr::{Attr, Creds, FileKind, FsStats, SetAttr, SetTime, mode};
pub use change::{Allocate, KillPriv, Replace, SetXattr, WriteAt};
pub use error::{Errno, FsError, FsResult};
pub use id::{ClientId, Epoch, Fid, Ino, LockOwner, Sequence, SessionId, Slot, Version, VolumeId};
pub use lease::{Cause, Coverage, Grant, InUse, LeasePart, Mode, ObjectTerm, Recall, RecallAck, Scope, Term};
pub use lock::{Lock, LockFamily, LockMode};
pub use name::{
    NAME_MAX, Name, NameError, SYMLINK_MAX, XATTR_ACCESS_LIST, XATTR_CAPABILITY, XATTR_DEFAULT_LIST,
    XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_VALUE_MAX, XATTRS_MAX,
};
pub use time::{Monotonic, Timestamp};
