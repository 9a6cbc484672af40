//! Numbers and layouts of the protocol. Integers are the machine's own byte order; every structure is padded to 8 bytes.

use serde::{Deserialize, Serialize};

/// The kernel's number of an inode: what an entry of ours told it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl NodeId {
    pub const ROOT: NodeId = NodeId(1);
}

pub(crate) const VERSION: u32 = 7;
/// The newest minor version whose structures this build knows.
pub(crate) const MINOR: u32 = 45;
/// The oldest one that has all that is used without asking (Linux 5.4).
pub(crate) const MINOR_MIN: u32 = 31;
pub(crate) const IN_HEADER_LEN: usize = 40;
/// Where it has how many words of 8 bytes extend it, at the end of the message.
pub(crate) const EXTENSIONS_AT: std::ops::Range<usize> = 36..38;
pub(crate) const OUT_HEADER_LEN: usize = 16;

macro_rules! constants {
    ($kind:ty: $($name:ident = $value:expr),* $(,)?) => {
        $(pub(crate) const $name: $kind = $value;)*
    };
}

pub(crate) mod opcode {
    constants! { u32:
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9,
        UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17,
        RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25,
        INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32,
        SETLKW = 33, CREATE = 35, INTERRUPT = 36, DESTROY = 38, IOCTL = 39, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43,
        READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50, TMPFILE = 51, STATX = 52,
        COPY_FILE_RANGE_64 = 53,
    }
}

pub(crate) mod init {
    constants! { u64:
        ASYNC_READ = 1 << 0, POSIX_LOCKS = 1 << 1, BIG_WRITES = 1 << 5,
        DONT_MASK = 1 << 6, FLOCK_LOCKS = 1 << 10, AUTO_INVAL_DATA = 1 << 12, DO_READDIRPLUS = 1 << 13,
        READDIRPLUS_AUTO = 1 << 14, ASYNC_DIO = 1 << 15, PARALLEL_DIROPS = 1 << 18, POSIX_ACL = 1 << 20,
        MAX_PAGES = 1 << 22, CACHE_SYMLINKS = 1 << 23, HANDLE_KILLPRIV_V2 = 1 << 28,
        SETXATTR_EXT = 1 << 29, INIT_EXT = 1 << 30, HAS_EXPIRE_ONLY = 1 << 35, DIRECT_IO_ALLOW_MMAP = 1 << 36,
        OVER_IO_URING = 1 << 41, REQUEST_TIMEOUT = 1 << 42,
    }
}

pub(crate) mod notify {
    constants! { i32: INVAL_INODE = 2, INVAL_ENTRY = 3, STORE = 4, RETRIEVE = 5, INC_EPOCH = 8 }
    /// Flag of INVAL_ENTRY: the name must be asked for again, but stays in the cache (so that a process that works in
    /// the directory keeps its path).
    pub(crate) const EXPIRE_ONLY: u32 = 1;
    /// Minor version of the kernel that first knows INC_EPOCH (Linux 6.16).
    pub(crate) const INC_EPOCH_SINCE: u32 = 44;
}

pub(crate) mod fattr {
    constants! { u32:
        MODE = 1 << 0, UID = 1 << 1, GID = 1 << 2, SIZE = 1 << 3, ATIME = 1 << 4, MTIME = 1 << 5, FH = 1 << 6,
        ATIME_NOW = 1 << 7, MTIME_NOW = 1 << 8, KILL_SUIDGID = 1 << 11,
    }
}

pub(crate) mod fopen {
    constants! { u32:
        DIRECT_IO = 1 << 0, KEEP_CACHE = 1 << 1, CACHE_DIR = 1 << 3, PARALLEL_DIRECT_WRITES = 1 << 6,
    }
}

pub(crate) mod flag {
    constants! { u32:
        RELEASE_FLOCK_UNLOCK = 1 << 1, LK_FLOCK = 1 << 0, WRITE_CACHE = 1 << 0, WRITE_KILL_SUIDGID = 1 << 2,
        GETATTR_FH = 1 << 0, READ_LOCKOWNER = 1 << 1, FSYNC_FDATASYNC = 1 << 0, OPEN_KILL_SUIDGID = 1 << 0,
    }
}

pub(crate) mod lock {
    constants! { u32: READ = 0, WRITE = 1, UNLOCK = 2 }
    /// The kernel's OFFSET_MAX: "to the end of the file".
    pub(crate) const END: u64 = i64::MAX as u64;
}

/// Requests over io_uring: the room of one request has a header of fixed size, and a payload.
pub(crate) mod uring {
    /// Commands of the ring.
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
    /// `struct fuse_uring_req_header`: the request's header (or the answer's), the operation's fixed arguments, how much payload.
    pub(crate) const HEADER_LEN: usize = 288;
    pub(crate) const ARGUMENTS_AT: usize = 128;
    pub(crate) const ARGUMENTS_LEN: usize = 128;
    /// What to name when the answer is handed over.
    pub(crate) const COMMIT_ID_AT: usize = 264;
    pub(crate) const PAYLOAD_LEN_AT: usize = 272;
}

/// Reads fields off the front of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*head))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*head))
    }

    pub(crate) fn node(&mut self) -> Option<NodeId> {
        self.u64().map(NodeId)
    }

    /// A string up to its NUL.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (head, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(head)
    }
}

/// Writes fields one after the other into a buffer of fixed size.
#[derive(Debug)]
pub(crate) struct Record<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Record<N> {
    pub(crate) fn new() -> Record<N> {
        Record { bytes: [0; N], at: 0 }
    }

    fn put(mut self, field: &[u8]) -> Record<N> {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    pub(crate) fn u64(self, value: u64) -> Record<N> {
        self.put(&value.to_ne_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Record<N> {
        self.put(&value.to_ne_bytes())
    }

    pub(crate) fn u16(self, value: u16) -> Record<N> {
        self.put(&value.to_ne_bytes())
    }

    pub(crate) fn skip(mut self, bytes: usize) -> Record<N> {
        self.at += bytes;
        self
    }

    pub(crate) fn raw(self, bytes: &[u8]) -> Record<N> {
        self.put(bytes)
    }

    /// # Panics
    /// If fields are missing: a mistake in this crate.
    pub(crate) fn done(self) -> [u8; N] {
        assert_eq!(self.at, N, "a structure of the kernel was filled in part");
        self.bytes
    }
}

/// The header of an answer or a notification. `len`: with the header.
pub(crate) fn out_header(len: usize, error: i32, unique: u64) -> [u8; OUT_HEADER_LEN] {
    Record::new().u32(len as u32).raw(&error.to_ne_bytes()).u64(unique).done()
}
