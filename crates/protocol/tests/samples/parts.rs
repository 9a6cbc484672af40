//! What samples are made of.

use soda_protocol::*;
use soda_types::*;
use std::time::Duration;

pub(crate) fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

pub(crate) fn fid(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

pub(super) fn grant() -> Grant {
    let term = Term::For(Duration::from_millis(1500));
    Grant { fid: fid(5), scope: Scope::Node, mode: Mode::Write, epoch: Epoch(1 << 44), term }
}

pub(super) fn covered() -> Covered {
    let lease = Grant { scope: Scope::Subtree, ..grant() };
    Covered { lease, mode: Mode::Read, above: vec![fid(7), fid(5)], fids: vec![fid(8), fid(9)] }
}

pub(super) fn lock() -> Lock {
    Lock {
        family: LockFamily::Record,
        owner: LockOwner(u64::MAX),
        pid: 4,
        start: 0,
        end: u64::MAX,
        mode: LockMode::Exclusive,
    }
}

pub(super) fn lock_holder() -> LockHolder {
    LockHolder { session: SessionId(4), name: "host:/mnt".into(), lock: lock() }
}

pub(super) fn backlog() -> BacklogReport {
    BacklogReport { records: u64::MAX, bytes: 1 << 30, age: Duration::from_millis(5) }
}

pub(super) fn attr() -> Attr {
    let time = Timestamp::new(1_800_000_000, 123_456_789);
    Attr {
        ino: Ino(5),
        kind: FileKind::File,
        perm: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: 0,
        size: u64::MAX >> 1,
        allocated: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version(9),
        data_version: Version(8),
    }
}
