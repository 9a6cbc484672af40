//! Identifiers. Each is its own type, so that an epoch can never be passed where a version is meant.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id! {
    /// A volume of a cell: a tree with its own root (AFS).
    VolumeId(u32), "v"
}
id! {
    /// An inode number within a volume. Never used twice in the life of the volume.
    Ino(u64), "i"
}
id! {
    /// A client's standing with a server. Given out by the server, never used twice.
    SessionId(u64), "s"
}
id! {
    /// A number that only grows in the life of a server's data directory, restarts included. Every grant carries
    /// one; what carries an older one than the object's last recall is refused (fencing).
    Epoch(u64), "e"
}
id! {
    /// Counts the changes of one inode: data, attributes, xattrs, or names of a directory. What was cached at a
    /// version is valid as long as the version is.
    Version(u64), "c"
}
id! {
    /// Numbers the changing operations of one session, from 1. With [`SessionId`] it makes each of them exactly-once.
    Sequence(u64), "q"
}
id! {
    /// The place where a session's reply is kept for a retry; one operation in flight for each slot
    /// (the idea of NFSv4.1, RFC 8881 section 2.10.6).
    Slot(u16), "slot"
}
id! {
    /// Who owns a file lock within a session: the kernel's lock owner.
    LockOwner(u64), "o"
}

impl Ino {
    /// The root directory of every volume; also what FUSE calls the root.
    pub const ROOT: Ino = Ino(1);
}

impl Version {
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

impl Epoch {
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// Names a file for ever: volume, inode and generation (AFS's fid). Leases, caches and the wire go by it, never by path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Fid {
    pub volume: VolumeId,
    pub ino: Ino,
    /// Grows when a volume is restored from a copy and its inode numbers are handed out again.
    pub generation: u32,
}

impl Fid {
    pub fn new(volume: VolumeId, ino: Ino) -> Fid {
        Fid { volume, ino, generation: 0 }
    }
}

impl fmt::Debug for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.volume.0, self.ino.0)?;
        if self.generation != 0 {
            write!(f, ".{}", self.generation)?;
        }
        Ok(())
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A mount's own identity, random, made once: how a server recognises a client that comes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub [u8; 16]);

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
