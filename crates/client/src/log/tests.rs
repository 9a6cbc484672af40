//! Who waits is woken, and what is sent first.

use super::next::{Chosen, Filled, UnderWay};
use super::waiting::What;
use super::*;
use soda_oplog::DigestLimits;
use soda_types::{Errno, FsError, FsResult, Ino, VolumeId};
use std::time::Duration;
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
    behind.waiting.note_applied(Monotonic::ZERO, id);
}

/// The server has neither this digest nor any later one.
fn lose(behind: &mut Behind, from: DigestId) {
    behind.log.handle_lost(from);
    behind.waiting.note_lost(Monotonic::ZERO, &behind.log, from);
}

/// The next digest, which the server applies; nothing if there is none.
fn digest(behind: &mut Behind, now: Monotonic) -> Vec<Lsn> {
    let Some((digest, _)) = behind.choose(now) else { return Vec::new() };
    behind.waiting.note_taken(&behind.log, digest.id);
    apply(behind, digest.id);
    digest.lsns
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

/// The server has been killed after it applied a digest whose answer is still to come, and before it got the next one.
#[test]
fn who_waits_for_a_digest_before_those_that_are_lost_waits_for_its_answer() {
    let mut behind = Behind::new(WritePolicy::Through);
    let up_to = write(&mut behind, 1);
    let (mut file, mut all) = (wait_for(&mut behind, 1), behind.wait_for(What::UpTo(up_to)));
    let first = send(&mut behind, 1);
    write(&mut behind, 2);
    let mut beside = wait_for(&mut behind, 2);
    let second = send(&mut behind, 2);
    let mut nothing_of_its_own = wait_for(&mut behind, 3);
    lose(&mut behind, second);
    assert_eq!(behind.log.give_up(&[fid(2)]).len(), 1);
    behind.waiting.note_given_up(&behind.log);
    assert_eq!(beside.try_recv().unwrap().unwrap_err().errno, Errno::Io);
    for waits in [&mut file, &mut all, &mut nothing_of_its_own] {
        waits.try_recv().unwrap_err();
    }
    apply(&mut behind, first);
    for mut waits in [file, all, nothing_of_its_own] {
        waits.try_recv().unwrap().unwrap();
    }
}

/// He waited for the end of what others had under way.
#[test]
fn who_has_nothing_in_what_is_lost_waits_for_nothing_any_more() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let others = send(&mut behind, 1);
    let mut waits = wait_for(&mut behind, 2);
    lose(&mut behind, others);
    waits.try_recv().unwrap().unwrap();
}

#[test]
fn who_waits_for_what_need_not_be_told_any_more_waits_for_the_digest_under_way_at_most() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let under_way = send(&mut behind, 1);
    write(&mut behind, 2);
    let mut beside = wait_for(&mut behind, 2);
    behind.log.give_up(&[fid(2)]);
    behind.waiting.note_set_aside(Monotonic::ZERO, &behind.log);
    beside.try_recv().unwrap_err();
    apply(&mut behind, under_way);
    beside.try_recv().unwrap().unwrap();

    write(&mut behind, 2);
    let mut alone = wait_for(&mut behind, 2);
    behind.log.give_up(&[fid(2)]);
    behind.waiting.note_set_aside(Monotonic::ZERO, &behind.log);
    alone.try_recv().unwrap().unwrap();
}

#[test]
fn who_waits_for_a_file_is_woken_while_others_go_on_with_it() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let mut waits = wait_for(&mut behind, 1);
    write(&mut behind, 1);
    assert_eq!(digest(&mut behind, Monotonic::ZERO), [Lsn(1)]);
    waits.try_recv().unwrap().unwrap();
    assert!(behind.log.has_pending_for(&[fid(1)]));
}

#[test]
fn what_nobody_waits_for_is_told_in_time_while_others_call_fsync_all_the_time() {
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    let in_time = |millis: u64| Monotonic::ZERO + std::time::Duration::from_millis(millis);
    let quiet = write(&mut behind, 1);
    let mut fsync = |millis: u64| {
        write(&mut behind, 2);
        let _waits = wait_for(&mut behind, 2);
        digest(&mut behind, in_time(millis)).contains(&quiet)
    };
    assert!((0..10).all(|round| !fsync(round)), "not old yet");
    assert!(fsync(1000));
}

#[test]
fn who_waits_for_everything_is_served_while_others_call_fsync_all_the_time() {
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    let last = (0..300).map(|_| write(&mut behind, 1)).max().unwrap();
    let mut all = behind.wait_for(What::UpTo(last));
    for _ in 0..6 {
        write(&mut behind, 2);
        let _waits = wait_for(&mut behind, 2);
        digest(&mut behind, Monotonic::ZERO);
        write(&mut behind, 2);
    }
    all.try_recv().unwrap().unwrap();
}

#[test]
fn who_waits_for_little_is_not_kept_by_who_waits_for_much() {
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    let much = 10 * next::LIMITS.records;
    for _ in 0..much {
        write(&mut behind, 1);
    }
    let mut waits_for_much = wait_for(&mut behind, 1);
    let (mut digests, mut longest) = (0, 0);
    while waits_for_much.try_recv().is_err() {
        // Several come at once: one digest is for all of them.
        let mut waiting = [2, 3].map(|ino| {
            write(&mut behind, ino);
            wait_for(&mut behind, ino)
        });
        let before = digests;
        while !waiting.iter_mut().all(|waits| waits.is_terminated() || waits.try_recv().is_ok()) {
            digest(&mut behind, Monotonic::ZERO);
            digests += 1;
            assert!(digests < 100);
        }
        longest = longest.max(digests - before);
    }
    assert!(longest <= 3, "{longest} digests until it is their turn");
    assert!(digests <= 25, "{digests} digests: his turn does come");
}

/// Group commit: while the server's disk works for one, the others gather, but not for long.
#[test]
fn who_waits_for_the_disk_while_it_works_for_others_shares_the_next_digest() {
    let now = Monotonic::ZERO + Duration::from_millis(500);
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    let ask = |behind: &mut Behind, ino| {
        let lsn = write(behind, ino);
        (lsn, behind.wait_for_synced(now, fid(ino)))
    };
    let (_, mut first) = ask(&mut behind, 1);
    assert_eq!(digest(&mut behind, now).len(), 1);
    assert_eq!(behind.waiting.take_to_sync(now).len(), 1);
    first.try_recv().unwrap_err();
    let ((two, _two), (three, _three)) = (ask(&mut behind, 2), ask(&mut behind, 3));
    let later = behind.due_at().unwrap();
    assert!(later > now && later < now + Duration::from_millis(10), "they can wait: {later:?}");
    let four = write(&mut behind, 4);
    let _recalled = wait_for(&mut behind, 4);
    assert!(behind.due_at().unwrap() <= now, "he cannot");
    assert_eq!(digest(&mut behind, now), [four]);
    behind.waiting.note_synced();
    assert!(behind.due_at().unwrap() <= now);
    assert_eq!(digest(&mut behind, now), [two, three]);
    assert_eq!(behind.waiting.take_to_sync(now).len(), 2);
    let (five, _five) = ask(&mut behind, 5);
    assert_eq!(digest(&mut behind, later), [five], "the sync takes long");
}

#[test]
fn who_waits_for_what_is_under_way_waits_for_the_digest_that_holds_it() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let first = send(&mut behind, 1);
    let up_to = behind.last_lsn();
    write(&mut behind, 2);
    let second = send(&mut behind, 2);
    let mut one = wait_for(&mut behind, 1);
    let mut two = wait_for(&mut behind, 2);
    let mut all_before = behind.wait_for(What::UpTo(up_to));
    let mut all = behind.wait_for(What::UpTo(behind.last_lsn()));
    apply(&mut behind, first);
    one.try_recv().unwrap().unwrap();
    all_before.try_recv().unwrap().unwrap();
    let error = FsError::new(Errno::Io, "the other one's");
    behind.waiting.note_failed(second, &error);
    assert_eq!([two.try_recv(), all.try_recv()], [Ok(Err(error.clone())), Ok(Err(error))]);
}

#[test]
fn what_is_set_aside_leaves_who_waits_for_it_to_the_digest_that_holds_the_rest() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let first = send(&mut behind, 1);
    write(&mut behind, 2);
    let second = send(&mut behind, 2);
    write(&mut behind, 1);
    let mut one = wait_for(&mut behind, 1);
    assert_eq!(behind.log.give_up(&[fid(1)]).len(), 1);
    behind.waiting.note_set_aside(Monotonic::ZERO, &behind.log);
    one.try_recv().unwrap_err();
    apply(&mut behind, first);
    one.try_recv().unwrap().unwrap();
    apply(&mut behind, second);
}

/// A tree is recalled of which much was not told.
#[test]
fn who_waits_for_much_has_all_of_it_looked_at_a_few_times_and_not_for_each_digest() {
    const FILES: u64 = 20_000;
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    let fids: Vec<Fid> = (1..=FILES).map(fid).collect();
    for ino in 1..=FILES {
        write(&mut behind, ino);
    }
    let mut waits = behind.wait_for_inodes(&fids);
    let mut digests = 0;
    while !digest(&mut behind, Monotonic::ZERO).is_empty() {
        digests += 1;
    }
    waits.try_recv().unwrap().unwrap();
    assert_eq!(digests, FILES / 1000);
    assert!(behind.log.looked_at() < 10 * FILES, "{}", behind.log.looked_at());
}

/// Such as a recall, which says each second that it gets on, and asks anew.
#[test]
fn who_has_gone_is_not_kept_while_nothing_can_be_sent() {
    let mut behind = Behind::new(WritePolicy::Through);
    write(&mut behind, 1);
    let mut stays = wait_for(&mut behind, 1);
    for _ in 0..10_000 {
        drop(wait_for(&mut behind, 1));
    }
    assert!(behind.waiting.count() < 100, "{}", behind.waiting.count());
    digest(&mut behind, Monotonic::ZERO);
    stays.try_recv().unwrap().unwrap();
}

/// Somebody who waits until what he has done to an inode is on the server's disk.
fn fsync(behind: &mut Behind, now: Monotonic, ino: u64) -> Receiver<FsResult<()>> {
    write(behind, ino);
    behind.wait_for_synced(now, fid(ino))
}

/// He hears what is said to those whom a sync was for.
fn end_along(behind: &mut Behind, digest: DigestId, result: FsResult<()>) -> usize {
    let who = behind.waiting.end_along(digest, &result);
    let count = who.len();
    who.into_iter().for_each(|who| drop(who.done.send(result.clone())));
    count
}

#[test]
fn a_sync_is_asked_for_along_with_the_digest_that_brings_the_last_of_what_somebody_waits_for() {
    let now = Monotonic::ZERO + Duration::from_millis(500);
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    let mut first = fsync(&mut behind, now, 1);
    let digest = send(&mut behind, 1);
    assert_eq!(behind.waiting.sync_along(now, digest), Some(fid(1)));
    // What went through meanwhile that sync may have begun before: it is not for him.
    let mut late = behind.wait_for_synced(now, fid(1));
    assert!(behind.due_at().is_none(), "he waits for what is under way");
    fsync(&mut behind, now, 2);
    assert!(behind.due_at().unwrap() > now, "others gather meanwhile");
    apply(&mut behind, digest);
    first.try_recv().unwrap_err();
    assert_eq!(behind.waiting.take_to_sync(now).len(), 1, "that of the late one");
    late.try_recv().unwrap_err();
    assert_eq!(end_along(&mut behind, digest, Ok(())), 1);
    first.try_recv().unwrap().unwrap();

    // Nobody waits for the disk.
    write(&mut behind, 3);
    let _waits = wait_for(&mut behind, 3);
    let digest = send(&mut behind, 3);
    assert_eq!(behind.waiting.sync_along(now, digest), None);
}

#[test]
fn a_sync_that_the_server_has_not_done_as_it_has_not_applied_the_digest_is_asked_for_once_more() {
    let now = Monotonic::ZERO + Duration::from_millis(500);
    let error = |errno| FsError::new(errno, "a test");
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    // The digest is turned away, and comes again.
    let mut turned_away = fsync(&mut behind, now, 1);
    let digest = send(&mut behind, 1);
    behind.waiting.sync_along(now, digest);
    assert_eq!(end_along(&mut behind, digest, Err(error(Errno::TryAgain))), 0);
    assert!(behind.waiting.take_to_sync(now).is_empty(), "the server does not have it");
    apply(&mut behind, digest);
    assert_eq!(behind.waiting.take_to_sync(now).len(), 1);
    turned_away.try_recv().unwrap_err();

    // The answer came over a connection that is gone, and the server does not know of the digest any more.
    let mut known_no_more = fsync(&mut behind, now, 2);
    let digest = send(&mut behind, 2);
    behind.waiting.sync_along(now, digest);
    apply(&mut behind, digest);
    assert!(behind.waiting.take_to_sync(now).is_empty(), "it is asked for");
    assert_eq!(end_along(&mut behind, digest, Err(error(Errno::TryAgain))), 0);
    assert_eq!(behind.waiting.take_to_sync(now).len(), 1);
    known_no_more.try_recv().unwrap_err();

    // What is said of the sync before the answer to the digest is known is for nobody.
    let mut early = fsync(&mut behind, now, 3);
    let digest = send(&mut behind, 3);
    behind.waiting.sync_along(now, digest);
    assert_eq!(end_along(&mut behind, digest, Ok(())), 0);
    apply(&mut behind, digest);
    assert_eq!(behind.waiting.take_to_sync(now).len(), 1);
    early.try_recv().unwrap_err();

    // The disk fails.
    let mut fails = fsync(&mut behind, now, 4);
    let digest = send(&mut behind, 4);
    behind.waiting.sync_along(now, digest);
    apply(&mut behind, digest);
    assert_eq!(end_along(&mut behind, digest, Err(error(Errno::Io))), 1);
    assert_eq!(fails.try_recv().unwrap().unwrap_err().errno, Errno::Io);
}

#[test]
fn whose_digest_is_lost_waits_for_another_one_and_its_sync() {
    let now = Monotonic::ZERO + Duration::from_millis(500);
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    let mut waits = fsync(&mut behind, now, 1);
    let lost = send(&mut behind, 1);
    behind.waiting.sync_along(now, lost);
    lose(&mut behind, lost);
    let again = send(&mut behind, 1);
    assert_eq!(behind.waiting.sync_along(now, again), Some(fid(1)));
    assert_eq!(end_along(&mut behind, lost, Ok(())), 0, "not what he waits for");
    apply(&mut behind, again);
    waits.try_recv().unwrap_err();
    assert_eq!(end_along(&mut behind, again, Ok(())), 1);
    waits.try_recv().unwrap().unwrap();
}

/// With a round trip that is short beside what a digest takes.
fn beside_the_server() -> Behind {
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    behind.window.begin_session(8);
    behind.window.begin_connection(Duration::from_micros(100));
    behind
}

/// A MiB is written, and the next digest is sent.
fn stream_on(behind: &mut Behind, now: Monotonic, block: u64) -> DigestId {
    write_a_mib(behind, block);
    send_next(behind, now)
}

fn send_next(behind: &mut Behind, now: Monotonic) -> DigestId {
    let (digest, chosen) = behind.choose(now).unwrap();
    let filled = behind.filled(&digest);
    behind.note_sent(now, chosen, filled);
    behind.waiting.note_taken(&behind.log, digest.id);
    behind.under_way.push_back(UnderWay { id: digest.id, chosen, filled, ..UnderWay::default() });
    behind.unanswered.insert(digest.id);
    digest.id
}

fn write_a_mib(behind: &mut Behind, block: u64) {
    write_a_part(behind, block << 20, 1 << 20);
}

fn write_a_part(behind: &mut Behind, offset: u64, len: usize) {
    let data = vec![0; len].into();
    let change = Change::Write { fid: fid(1), offset, data, kill_suid_sgid: false };
    behind.log.append(Monotonic::ZERO, Timestamp::new(1, 0), change);
}

fn answer(behind: &mut Behind, id: DigestId) {
    behind.under_way.retain(|under_way| under_way.id != id);
    behind.unanswered.remove(&id);
    apply(behind, id);
}

/// A round trip that is short beside what a digest takes: the server would wait for the next one all the same.
#[test]
fn a_stream_has_three_digests_under_way_unless_somebody_waits_for_little_or_another_machine_does() {
    let at = |millis| Monotonic::ZERO + Duration::from_millis(millis);
    let mut behind = beside_the_server();
    behind.window.note_digest(at(1), at(0));
    // So much that the server can as well begin.
    (0..8).for_each(|block| write_a_mib(&mut behind, block));
    let first = stream_on(&mut behind, at(1), 8);
    assert_eq!(behind.due_at(), Some(Monotonic::ZERO), "beside the first");
    let second = stream_on(&mut behind, at(1), 9);
    let third = stream_on(&mut behind, at(1), 9);
    assert_eq!(behind.due_at(), None, "no fourth");
    answer(&mut behind, first);
    assert_eq!(behind.due_at(), Some(Monotonic::ZERO));

    behind.hurry(at(10));
    assert_eq!(behind.due_at(), Some(at(2010)), "another machine waits");
    answer(&mut behind, second);
    answer(&mut behind, third);
    assert_eq!(behind.due_at(), Some(Monotonic::ZERO), "one at a time goes on");
    write(&mut behind, 2);
    let _waits = wait_for(&mut behind, 2);
    let little = stream_on(&mut behind, at(3000), 10);
    answer(&mut behind, little);
    stream_on(&mut behind, at(3001), 11);
    assert_eq!(behind.due_at(), Some(at(5000)), "somebody has waited for little");
}

#[test]
fn who_comes_while_a_stream_is_under_way_goes_behind_it() {
    let at = |millis| Monotonic::ZERO + Duration::from_millis(millis);
    let mut behind = beside_the_server();
    stream_on(&mut behind, at(1), 0);
    assert_eq!(behind.due_at(), None, "nothing is left");
    write(&mut behind, 2);
    let _waits = wait_for(&mut behind, 2);
    behind.hurry(at(2));
    assert_eq!(behind.due_at(), Some(Monotonic::ZERO));
    send_next(&mut behind, at(2));
    write(&mut behind, 3);
    let _waits = wait_for(&mut behind, 3);
    assert_eq!(behind.due_at(), None, "one of those who ask is under way");
}

#[test]
fn who_waits_for_a_stream_to_its_end_does_not_slow_down_the_next() {
    let at = |millis| Monotonic::ZERO + Duration::from_millis(millis);
    let mut behind = Behind::new(WritePolicy::Behind(WriteBehind::default()));
    (0..3).for_each(|block| write_a_mib(&mut behind, block));
    write(&mut behind, 1);
    let _waits = wait_for(&mut behind, 1);
    for millis in 1.. {
        let Some((digest, chosen)) = behind.choose(at(millis)) else { break };
        assert_eq!(chosen, Chosen::Wanted);
        let filled = behind.filled(&digest);
        behind.note_sent(at(millis), chosen, filled);
        apply(&mut behind, digest.id);
    }
    (64..128).for_each(|block| write_a_part(&mut behind, block << 16, 1 << 16));
    let (digest, chosen) = behind.choose(at(10)).unwrap();
    assert_eq!((chosen, behind.filled(&digest)), (Chosen::InOrder, Filled::Full));
}
