//! Who waits is woken, and what is sent first.

use super::*;
use soda_oplog::DigestLimits;
use soda_types::{Errno, FsResult, Ino, VolumeId};
use tokio::sync::oneshot::Receiver;

const ALL: DigestLimits = DigestLimits { records: usize::MAX, bytes: u64::MAX };

fn fid(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

fn write(behind: &mut Behind, ino: u64) -> Lsn {
    let change =
        Change::Write { fid: fid(ino), offset: 0, data: b"data".as_slice().into(), kill_suid_sgid: false };
    behind.log.append(Monotonic::ZERO, Timestamp::new(1, 0), change)
}

fn wait_for(behind: &mut Behind, ino: u64) -> Receiver<FsResult<()>> {
    behind.wait_for_inodes(&[fid(ino)])
}

/// A digest of what was done to one inode is sent.
fn send(behind: &mut Behind, ino: u64) -> DigestId {
    let digest = behind.log.take_for(&[fid(ino)], ALL).unwrap();
    behind.waiting.note_taken(&behind.log, digest.id);
    digest.id
}

fn apply(behind: &mut Behind, id: DigestId) {
    behind.log.handle_applied(id);
    behind.waiting.note_applied(id);
}

#[test]
fn who_waits_for_what_is_lost_beside_a_digest_of_others_is_told() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let under_way = send(&mut behind, 1);
    write(&mut behind, 2);
    let mut lost = wait_for(&mut behind, 2);
    let mut others = wait_for(&mut behind, 1);
    assert_eq!(behind.log.give_up(&[fid(2)]).len(), 1);
    behind.waiting.note_given_up(&behind.log);
    assert_eq!(lost.try_recv().unwrap().unwrap_err().errno, Errno::Io);
    others.try_recv().unwrap_err();
    apply(&mut behind, under_way);
    others.try_recv().unwrap().unwrap();
}

#[test]
fn who_waits_for_what_need_not_be_told_any_more_waits_for_the_digest_under_way_at_most() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let under_way = send(&mut behind, 1);
    write(&mut behind, 2);
    let mut beside = wait_for(&mut behind, 2);
    behind.log.give_up(&[fid(2)]);
    behind.waiting.note_set_aside(&behind.log);
    beside.try_recv().unwrap_err();
    apply(&mut behind, under_way);
    beside.try_recv().unwrap().unwrap();

    write(&mut behind, 2);
    let mut alone = wait_for(&mut behind, 2);
    behind.log.give_up(&[fid(2)]);
    behind.waiting.note_set_aside(&behind.log);
    alone.try_recv().unwrap().unwrap();
}

#[test]
fn who_waits_for_a_file_is_woken_while_others_go_on_with_it() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let mut waits = wait_for(&mut behind, 1);
    write(&mut behind, 1);
    let (digest, _) = behind.choose(Monotonic::ZERO).unwrap();
    behind.waiting.note_taken(&behind.log, digest.id);
    assert_eq!(digest.lsns, [Lsn(1)]);
    apply(&mut behind, digest.id);
    assert!(behind.log.has_pending_for(&[fid(1)]));
    waits.try_recv().unwrap().unwrap();
}
