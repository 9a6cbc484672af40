//! Requests of the kernel, decoded. Nothing here trusts a length: what does not fit is [`MalformedRequest`].

use super::Unique;
use super::abi::{self, Fields, NodeId, fattr, flag, opcode};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use soda_types::{SetAttr, SetTime, Timestamp};
use std::ops::Range;

/// Who asks, and about what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Header {
    pub unique: Unique,
    pub node: NodeId,
    pub uid: u32,
    pub gid: u32,
    /// Thread that asks; 0 if it is not of our process namespace.
    pub tid: u32,
}

#[derive(Debug)]
pub struct Request<'a> {
    pub header: Header,
    pub op: Op<'a>,
    /// The data of a write; else empty.
    pub payload: Bytes,
}

/// A request that cannot be decoded; answered with an error by the transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MalformedRequest {
    #[error("shorter than its header says")]
    Short,
    #[error("operation {0} is not known")]
    Unknown(u32),
}

#[derive(Clone, Copy, Debug)]
pub struct OpenRequest {
    /// Flags of open(2).
    pub flags: i32,
    /// With O_TRUNC: drop set-user-id and set-group-id.
    pub kill_suid_sgid: bool,
}

/// What the caller of getattr holds.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    pub handle: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub struct SetAttrRequest {
    pub handle: Option<u64>,
    pub set: SetAttr,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LockSpan {
    pub start: u64,
    /// Inclusive, the kernel's OFFSET_MAX for "to the end".
    pub end: u64,
    /// F_RDLCK, F_WRLCK or F_UNLCK as the kernel numbers them.
    pub kind: u32,
    pub pid: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LockRequest {
    pub handle: u64,
    pub owner: u64,
    pub span: LockSpan,
    /// flock(2), else fcntl(2).
    pub is_flock: bool,
}

/// The operation with its arguments; the node is in the header.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u64,
    },
    Destroy,
    Interrupt {
        unique: Unique,
    },
    Forget {
        lookups: u64,
    },
    /// Pairs of node and look-ups, raw: see [`Op::forgets`].
    BatchForget {
        pairs: &'a [u8],
    },

    Lookup {
        name: &'a [u8],
    },
    GetAttr(Interest),
    Statx(Interest),
    SetAttr(SetAttrRequest),
    ReadLink,
    StatFs,

    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Link {
        node: NodeId,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: NodeId,
        new_name: &'a [u8],
        flags: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        open: OpenRequest,
    },
    TmpFile {
        mode: u32,
        umask: u32,
        open: OpenRequest,
    },

    Open(OpenRequest),
    /// `into_page_cache`: asked by the kernel for its pages, not by read(2) on a direct handle.
    Read {
        handle: u64,
        offset: u64,
        len: u32,
        into_page_cache: bool,
    },
    /// `flags`: those of the open file, with O_DSYNC where this one write asks for it.
    Write {
        handle: u64,
        offset: u64,
        from_page_cache: bool,
        kill_suid_sgid: bool,
        flags: i32,
    },
    Flush {
        handle: u64,
        owner: u64,
    },
    Release {
        handle: u64,
        owner: u64,
        unlock_flock: bool,
    },
    FSync {
        handle: u64,
        data_only: bool,
    },
    Allocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    CopyRange {
        handle: u64,
        offset: u64,
        to: NodeId,
        to_handle: u64,
        to_offset: u64,
        len: u64,
        wide: bool,
    },

    /// `len`: of the answer.
    Ioctl {
        command: u32,
        data: &'a [u8],
        len: u32,
    },

    OpenDir,
    ReadDir {
        handle: u64,
        offset: u64,
        len: u32,
    },
    ReadDirPlus {
        handle: u64,
        offset: u64,
        len: u32,
    },
    ReleaseDir {
        handle: u64,
    },
    FSyncDir,
    SyncFs,

    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        kill_sgid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },

    GetLock(LockRequest),
    SetLock {
        lock: LockRequest,
        wait: bool,
    },
}

/// Length, operation and header of the message in `bytes`.
pub(crate) fn parse_header(bytes: &[u8]) -> Result<(u32, Header, Fields<'_>), MalformedRequest> {
    let mut fields = Fields(bytes);
    (|| {
        let len = fields.u32()? as usize;
        let operation = fields.u32()?;
        let (unique, node) = (fields.u64()?, fields.node()?);
        let (uid, gid, tid) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let extensions = usize::from(u16::from_ne_bytes(fields.bytes(2)?.try_into().ok()?)) * 8;
        fields.bytes(2)?;
        let body = bytes.get(..len)?.get(abi::IN_HEADER_LEN..len.checked_sub(extensions)?)?;
        Some((operation, Header { unique, node, uid, gid, tid }, Fields(body)))
    })()
    .ok_or(MalformedRequest::Short)
}

/// Arguments of a write, and where in the message its data is: as much as the arguments say, whatever follows.
pub(crate) fn parse_write(mut fields: Fields<'_>) -> Result<(Op<'static>, Range<usize>), MalformedRequest> {
    let end = abi::IN_HEADER_LEN + fields.0.len();
    let (op, size) = write_arguments(&mut fields).ok_or(MalformedRequest::Short)?;
    let start = end - fields.0.len();
    match fields.0.len() < size {
        true => Err(MalformedRequest::Short),
        false => Ok((op, start..start + size)),
    }
}

/// As [`parse_write`], of a write whose data, `available` bytes, is elsewhere: how much of that is its own.
pub(crate) fn parse_write_apart(
    mut fields: Fields<'_>,
    available: usize,
) -> Result<(Op<'static>, usize), MalformedRequest> {
    let written = write_arguments(&mut fields).filter(|(_, size)| *size <= available);
    written.ok_or(MalformedRequest::Short)
}

fn write_arguments(fields: &mut Fields<'_>) -> Option<(Op<'static>, usize)> {
    let (handle, offset) = (fields.u64()?, fields.u64()?);
    let (size, write_flags) = (fields.u32()?, fields.u32()?);
    let (_lock_owner, flags, _padding) = (fields.u64()?, fields.u32()?, fields.u32()?);
    let op = Op::Write {
        handle,
        offset,
        from_page_cache: write_flags & flag::WRITE_CACHE != 0,
        kill_suid_sgid: write_flags & flag::WRITE_KILL_SUIDGID != 0,
        flags: flags as i32,
    };
    Some((op, size as usize))
}

impl<'a> Op<'a> {
    /// Decodes everything but [`Op::Write`]. `setxattr_ext`: whether the long form of SETXATTR was agreed on.
    pub(crate) fn parse(
        operation: u32,
        fields: Fields<'a>,
        setxattr_ext: SetXattrForm,
    ) -> Result<Op<'a>, MalformedRequest> {
        match parse_op(operation, fields, setxattr_ext) {
            Some(Ok(op)) => Ok(op),
            Some(Err(error)) => Err(error),
            None => Err(MalformedRequest::Short),
        }
    }

    /// The pairs of a [`Op::BatchForget`].
    pub fn forgets(pairs: &'a [u8]) -> impl Iterator<Item = (NodeId, u64)> + 'a {
        pairs.chunks_exact(16).filter_map(|pair| {
            let mut fields = Fields(pair);
            Some((fields.node()?, fields.u64()?))
        })
    }
}

/// Which form of SETXATTR the kernel sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SetXattrForm {
    Short,
    Extended,
}

fn parse_op(
    operation: u32,
    mut f: Fields<'_>,
    form: SetXattrForm,
) -> Option<Result<Op<'_>, MalformedRequest>> {
    Some(Ok(match operation {
        opcode::INIT => {
            let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            let high = if u64::from(low) & abi::init::INIT_EXT != 0 { f.u32()? } else { 0 };
            Op::Init { major, minor, max_readahead, flags: u64::from(low) | u64::from(high) << 32 }
        }
        opcode::DESTROY => Op::Destroy,
        opcode::INTERRUPT => Op::Interrupt { unique: f.u64()? },
        opcode::FORGET => Op::Forget { lookups: f.u64()? },
        opcode::BATCH_FORGET => {
            let count = f.u32()? as usize;
            f.u32()?;
            Op::BatchForget { pairs: f.bytes(count.checked_mul(16)?)? }
        }
        opcode::LOOKUP => Op::Lookup { name: f.string()? },
        opcode::GETATTR => Op::GetAttr(parse_interest(&mut f)?),
        opcode::STATX => Op::Statx(parse_interest(&mut f)?),
        opcode::SETATTR => Op::SetAttr(parse_set_attr(f)?),
        opcode::READLINK => Op::ReadLink,
        opcode::STATFS => Op::StatFs,
        opcode::MKNOD => {
            let (mode, rdev, umask) = (f.u32()?, f.u32()?, f.u32()?);
            f.u32()?;
            Op::MkNod { name: f.string()?, mode, rdev, umask }
        }
        opcode::MKDIR => {
            let (mode, umask) = (f.u32()?, f.u32()?);
            Op::MkDir { name: f.string()?, mode, umask }
        }
        opcode::SYMLINK => Op::Symlink { name: f.string()?, target: f.string()? },
        opcode::LINK => Op::Link { node: f.node()?, name: f.string()? },
        opcode::UNLINK => Op::Unlink { name: f.string()? },
        opcode::RMDIR => Op::RmDir { name: f.string()? },
        opcode::RENAME => {
            let new_parent = f.node()?;
            Op::Rename { name: f.string()?, new_parent, new_name: f.string()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let (new_parent, flags) = (f.node()?, f.u32()?);
            f.u32()?;
            Op::Rename { name: f.string()?, new_parent, new_name: f.string()?, flags }
        }
        opcode::CREATE | opcode::TMPFILE => {
            let (flags, mode, umask, open_flags) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            let open = open_request(flags, open_flags);
            match operation {
                opcode::CREATE => Op::Create { name: f.string()?, mode, umask, open },
                _ => Op::TmpFile { mode, umask, open },
            }
        }
        opcode::OPEN => Op::Open(open_request(f.u32()?, f.u32()?)),
        opcode::READ => Op::Read {
            handle: f.u64()?,
            offset: f.u64()?,
            len: f.u32()?,
            into_page_cache: f.u32()? & flag::READ_LOCKOWNER == 0,
        },
        opcode::FLUSH => {
            let handle = f.u64()?;
            f.u64()?;
            Op::Flush { handle, owner: f.u64()? }
        }
        opcode::RELEASE => {
            let handle = f.u64()?;
            f.u32()?;
            let release_flags = f.u32()?;
            let unlock_flock = release_flags & flag::RELEASE_FLOCK_UNLOCK != 0;
            Op::Release { handle, owner: f.u64()?, unlock_flock }
        }
        opcode::FSYNC => Op::FSync { handle: f.u64()?, data_only: f.u32()? & flag::FSYNC_FDATASYNC != 0 },
        opcode::FALLOCATE => {
            Op::Allocate { handle: f.u64()?, offset: f.u64()?, len: f.u64()?, mode: f.u32()? }
        }
        opcode::LSEEK => Op::Seek { handle: f.u64()?, offset: f.u64()?, whence: f.u32()? },
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => Op::CopyRange {
            handle: f.u64()?,
            offset: f.u64()?,
            to: f.node()?,
            to_handle: f.u64()?,
            to_offset: f.u64()?,
            len: f.u64()?,
            wide: operation == opcode::COPY_FILE_RANGE_64,
        },
        opcode::IOCTL => {
            let (_handle, _flags, command, _argument) = (f.u64()?, f.u32()?, f.u32()?, f.u64()?);
            let (size, len) = (f.u32()?, f.u32()?);
            Op::Ioctl { command, data: f.bytes(size as usize)?, len }
        }
        opcode::OPENDIR => Op::OpenDir,
        opcode::READDIR => Op::ReadDir { handle: f.u64()?, offset: f.u64()?, len: f.u32()? },
        opcode::READDIRPLUS => Op::ReadDirPlus { handle: f.u64()?, offset: f.u64()?, len: f.u32()? },
        opcode::RELEASEDIR => Op::ReleaseDir { handle: f.u64()? },
        opcode::FSYNCDIR => Op::FSyncDir,
        opcode::SYNCFS => Op::SyncFs,
        opcode::SETXATTR => {
            let (size, flags) = (f.u32()?, f.u32()?);
            let kill_sgid = match form {
                SetXattrForm::Short => false,
                SetXattrForm::Extended => f.u64()? & 1 != 0,
            };
            Op::SetXattr { name: f.string()?, value: f.bytes(size as usize)?, flags, kill_sgid }
        }
        opcode::GETXATTR => {
            let size = f.u32()?;
            f.u32()?;
            Op::GetXattr { name: f.string()?, size }
        }
        opcode::LISTXATTR => Op::ListXattr { size: f.u32()? },
        opcode::REMOVEXATTR => Op::RemoveXattr { name: f.string()? },
        opcode::GETLK => Op::GetLock(parse_lock(&mut f)?),
        opcode::SETLK => Op::SetLock { lock: parse_lock(&mut f)?, wait: false },
        opcode::SETLKW => Op::SetLock { lock: parse_lock(&mut f)?, wait: true },
        unknown => return Some(Err(MalformedRequest::Unknown(unknown))),
    }))
}

fn open_request(flags: u32, open_flags: u32) -> OpenRequest {
    OpenRequest { flags: flags as i32, kill_suid_sgid: open_flags & flag::OPEN_KILL_SUIDGID != 0 }
}

fn parse_interest(f: &mut Fields<'_>) -> Option<Interest> {
    let flags = f.u32()?;
    f.u32()?;
    let handle = f.u64()?;
    Some(Interest { handle: (flags & flag::GETATTR_FH != 0).then_some(handle) })
}

fn parse_set_attr(mut f: Fields<'_>) -> Option<SetAttrRequest> {
    let valid = f.u32()?;
    f.u32()?;
    let (handle, size, _owner) = (f.u64()?, f.u64()?, f.u64()?);
    let (atime, mtime, _ctime) = (f.u64()?, f.u64()?, f.u64()?);
    let (atime_nanos, mtime_nanos, _ctime_nanos) = (f.u32()?, f.u32()?, f.u32()?);
    let mode = f.u32()?;
    f.u32()?;
    let (uid, gid) = (f.u32()?, f.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |set: u32, now: u32, secs: u64, nanos: u32| match (has(now), has(set)) {
        (true, _) => Some(SetTime::Now),
        (_, true) => Some(SetTime::At(Timestamp::new(secs as i64, nanos.min(999_999_999)))),
        _ => None,
    };
    Some(SetAttrRequest {
        handle: has(fattr::FH).then_some(handle),
        set: SetAttr {
            perm: has(fattr::MODE).then_some((mode & 0o7777) as u16),
            uid: has(fattr::UID).then_some(uid),
            gid: has(fattr::GID).then_some(gid),
            size: has(fattr::SIZE).then_some(size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, atime, atime_nanos),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime, mtime_nanos),
            // Only who wants this changes nothing: chown(-1, -1), and what comes before a change of contents.
            kill_suid_sgid: has(fattr::KILL_SUIDGID) || valid == 0,
        },
    })
}

fn parse_lock(f: &mut Fields<'_>) -> Option<LockRequest> {
    let (handle, owner) = (f.u64()?, f.u64()?);
    let span = LockSpan { start: f.u64()?, end: f.u64()?, kind: f.u32()?, pid: f.u32()? };
    Some(LockRequest { handle, owner, span, is_flock: f.u32()? & flag::LK_FLOCK != 0 })
}

#[cfg(test)]
pub(super) mod tests;
