//! The files of a log: what is written when, and what becomes of them.

use super::place::Claim;
use super::*;
use soda_oplog::segments;
use soda_protocol::{OpId, SessionKey};
use soda_types::{ClientId, Ino, SessionId, Slot, Timestamp, VolumeId};
use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::sync::Condvar;
use std::time::Duration;

fn log(cache_dir: &Path) -> DiskLog {
    let header = Header {
        server: "here".to_owned(),
        volume: "main".to_owned(),
        client: ClientId([1; 16]),
        session: SessionKey { session: SessionId(1), secret: [2; 16] },
        digest: OpId { slot: Slot(3), sequence: Sequence(4) },
        slots: 1,
    };
    DiskLog::new(cache_dir, "host:/mnt", header, Safety::PowerCut, 1 << 20)
}

fn fid() -> Fid {
    Fid::new(VolumeId(1), Ino(2))
}

fn record(lsn: u64, bytes: usize) -> Record {
    let data = vec![lsn as u8; bytes].into();
    let change = Change::Write { fid: fid(), offset: 0, data, kill_suid_sgid: false };
    Record { lsn: Lsn(lsn), at: Timestamp::new(1, 0), change }
}

fn push(log: &DiskLog, lsn: u64) {
    log.push_record([(fid(), Version(lsn))].into_iter(), record(lsn, 100));
}

fn left(cache_dir: &Path) -> Vec<segments::Found> {
    let _nobody_starts = holder::tests::nobody_starts();
    let places = place::numbered(cache_dir).unwrap();
    let claimed = places.iter().filter(|dir| matches!(Place::claim(dir).unwrap(), Claim::Mine(_)));
    claimed.map(|dir| segments::read(dir).unwrap().unwrap()).collect()
}

#[test]
fn a_client_that_dies_leaves_what_was_written() {
    let cache = tempfile::tempdir().unwrap();
    let log = log(cache.path());
    assert_eq!(log.write(), OnDisk::Yes);
    assert!(!cache.path().join("oplog").exists(), "no session, no files");
    push(&log, 1);
    push(&log, 2);
    log.push_sent(DigestId(5), None, vec![Lsn(1)]);
    assert_eq!(log.write(), OnDisk::Yes);
    push(&log, 3);
    assert!(left(cache.path()).is_empty(), "it is in use");
    drop(log);
    let [found] = &left(cache.path())[..] else { panic!() };
    let sent = &found.sent[0];
    assert_eq!((sent.op, sent.records.len()), (OpId { slot: Slot(3), sequence: Sequence(5) }, 1));
    assert_eq!(found.pending, [record(2, 100)]);
    assert_eq!(found.version_before(fid(), Lsn(2)), Some(Version(2)));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&cache.path().join("oplog/0")), 0o700);
    assert_eq!(mode(&cache.path().join("oplog/0/0000000001.log")), 0o600);
}

#[test]
fn a_session_is_named_before_anything_is_done_in_it() {
    let cache = tempfile::tempdir().unwrap();
    let log = log(cache.path());
    assert_eq!(log.begin_session(), OnDisk::Yes);
    drop(log);
    let [found] = &left(cache.path())[..] else { panic!() };
    assert_eq!((found.header.session.session, found.records().len()), (SessionId(1), 0));
}

#[test]
fn a_log_ends_removed_left_or_kept() {
    let cache = tempfile::tempdir().unwrap();
    let logs = [(); 3].map(|()| log(cache.path()));
    for log in &logs {
        push(log, 1);
        assert_eq!(log.sync(), OnDisk::Yes);
    }
    logs[0].remove();
    let dir = logs[1].leave().unwrap();
    let Some(Aside::Kept(kept)) = logs[2].keep("for no reason") else { panic!() };
    for log in &logs {
        push(log, 2);
        assert_eq!(log.write(), OnDisk::Yes, "goes nowhere");
    }
    assert_eq!(left(cache.path()).len(), 1);
    assert_eq!(segments::read(&dir).unwrap().unwrap().pending.len(), 1);
    assert_eq!(place::kept(cache.path()).unwrap(), std::slice::from_ref(&kept));
    assert_eq!(place::Note::read(&kept).why, "for no reason");
}

#[test]
fn a_log_that_cannot_be_moved_is_not_gone() {
    let cache = tempfile::tempdir().unwrap();
    let [none, log] = [(); 2].map(|()| log(cache.path()));
    assert_eq!(none.keep("there is none"), None);
    push(&log, 1);
    assert_eq!(log.write(), OnDisk::Yes);
    // In the place of the directory.
    std::fs::write(cache.path().join("oplog/kept"), "").unwrap();
    let Some(Aside::Left(dir)) = log.keep("for no reason") else { panic!() };
    assert_eq!(segments::read(&dir).unwrap().unwrap().pending, [record(1, 100)]);
    assert_eq!(left(cache.path()).len(), 1, "for who comes next");
}

// SEMANTICS 50
#[test]
fn a_log_that_could_not_be_synced_is_left_all_the_same() {
    let cache = tempfile::tempdir().unwrap();
    let log = DiskLog { sync_data: fails_once, ..log(cache.path()) };
    push(&log, 1);
    DISK_FAILS.set(true);
    assert_eq!(log.sync(), OnDisk::No);
    push(&log, 2);
    assert!(log.leave().is_some(), "a running machine has every byte");
    drop(log);
    assert_eq!(left(cache.path())[0].pending, [record(1, 100), record(2, 100)]);
}

#[test]
fn what_is_given_up_is_kept_with_what_was_known_of_it() {
    let cache = tempfile::tempdir().unwrap();
    let log = log(cache.path());
    for lsn in 1..=3 {
        push(&log, lsn);
    }
    log.push_given_up(&[record(2, 100)]);
    let Aside::Kept(kept) = log.keep_apart(vec![record(2, 100)], "refused") else { panic!() };
    let found = segments::read(&kept).unwrap().unwrap();
    assert_eq!(found.pending, [record(2, 100)]);
    assert_eq!(found.version_before(fid(), Lsn(2)), Some(Version(2)));
    drop(log);
    let [found] = &left(cache.path())[..] else { panic!() };
    assert_eq!((&found.pending[..], &found.given_up[..]), (&[record(1, 100), record(3, 100)][..], &[][..]));
}

/// Whether it ends well or dies, what it could not put aside is left.
#[test]
fn what_is_given_up_is_in_the_log_until_it_is_somewhere_else() {
    for ends in [true, false] {
        let cache = tempfile::tempdir().unwrap();
        let log = log(cache.path());
        log.push_record(std::iter::empty(), record(1, 3 << 20));
        push(&log, 2);
        log.push_given_up(&[record(2, 100)]);
        assert_eq!(log.write(), OnDisk::Yes);
        let in_the_way = cache.path().join("oplog/kept");
        std::fs::write(&in_the_way, "no directory").unwrap();
        assert_eq!(log.keep_apart(vec![record(2, 100)], "refused"), Aside::Here);
        log.push(Entry::Durable { up_to: Sequence(9) });
        log.push_forget(Lsn(3));
        assert_eq!(log.write(), OnDisk::Yes);
        std::fs::remove_file(&in_the_way).unwrap();
        if ends {
            log.remove();
            let [kept] = &place::kept(cache.path()).unwrap()[..] else { panic!() };
            assert_eq!(segments::read(kept).unwrap().unwrap().given_up, [record(2, 100)]);
            assert_eq!(log.keep_the_rest(), std::slice::from_ref(kept), "once");
            assert!(left(cache.path()).is_empty());
        } else {
            drop(log);
            assert_eq!(left(cache.path())[0].given_up, [record(2, 100)]);
        }
    }
}

#[test]
fn what_is_given_up_is_put_aside_when_there_is_room() {
    let cache = tempfile::tempdir().unwrap();
    let log = log(cache.path());
    push(&log, 1);
    log.push_given_up(&[record(1, 100)]);
    assert_eq!(log.write(), OnDisk::Yes);
    let in_the_way = cache.path().join("oplog/kept");
    std::fs::write(&in_the_way, "no directory").unwrap();
    assert_eq!(log.keep_apart(vec![record(1, 100)], "refused"), Aside::Here);
    assert_eq!((log.keep_the_rest(), log.has_more_to_keep()), (vec![], true));
    std::fs::remove_file(&in_the_way).unwrap();
    let kept = log.keep_the_rest();
    assert_eq!((&kept, log.has_more_to_keep()), (&place::kept(cache.path()).unwrap(), false));
    assert_eq!(place::Note::read(&kept[0]).why, "refused");
    log.remove();
    assert_eq!(place::kept(cache.path()).unwrap(), kept);
}

#[test]
fn without_room_it_says_so_until_there_is_some() {
    let cache = tempfile::tempdir().unwrap();
    let dir = cache.path().join("gone");
    std::fs::write(&dir, "in the way").unwrap();
    let log = log(&dir);
    push(&log, 1);
    assert_eq!((log.write(), log.has_room()), (OnDisk::No, false));
    assert_eq!(log.sync(), OnDisk::No);
    std::fs::remove_file(&dir).unwrap();
    log.catch_up();
    assert!(log.has_room());
    drop(log);
    assert_eq!(left(&dir)[0].pending.len(), 1);
}

#[test]
fn a_session_that_found_no_room_is_named_when_there_is_some() {
    let cache = tempfile::tempdir().unwrap();
    let dir = cache.path().join("gone");
    std::fs::write(&dir, "in the way").unwrap();
    let log = log(&dir);
    assert_eq!((log.begin_session(), log.has_room()), (OnDisk::No, false));
    log.catch_up();
    assert!(!log.has_room());
    std::fs::remove_file(&dir).unwrap();
    log.catch_up();
    assert!(log.has_room());
}

#[test]
fn a_log_is_bounded_and_short_when_nothing_is_needed() {
    let cache = tempfile::tempdir().unwrap();
    let log = DiskLog { bound: 3 << 20, ..log(cache.path()) };
    let size = || -> u64 {
        let files = std::fs::read_dir(cache.path().join("oplog/0")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    for lsn in 1..=4 {
        log.push_record(std::iter::empty(), record(lsn, 1 << 20));
    }
    assert_eq!((log.write(), log.has_room()), (OnDisk::Yes, false));
    assert!(size() > 4 << 20);
    log.push(Entry::Durable { up_to: Sequence(9) });
    log.push_forget(Lsn(5));
    assert_eq!((log.write(), log.has_room()), (OnDisk::Yes, true));
    assert!(size() < 1000);
}

thread_local! {
    static DISK_FAILS: Cell<bool> = const { Cell::new(false) };
}

/// As Linux does it: a failure is said once.
fn fails_once(file: &File) -> std::io::Result<()> {
    if DISK_FAILS.replace(false) { Err(std::io::Error::other("write-back failed")) } else { file.sync_data() }
}

// SEMANTICS 53
#[test]
fn what_a_sync_failed_for_is_not_taken_for_synced_by_the_next() {
    let cache = tempfile::tempdir().unwrap();
    let log = DiskLog { sync_data: fails_once, ..log(cache.path()) };
    push(&log, 1);
    assert_eq!(log.sync(), OnDisk::Yes);
    push(&log, 2);
    DISK_FAILS.set(true);
    assert_eq!(log.sync(), OnDisk::No);
    assert!(!log.has_room(), "changes go through");
    push(&log, 3);
    assert_eq!((log.sync(), log.sync()), (OnDisk::No, OnDisk::No));
    assert_eq!(log.write(), OnDisk::Yes, "a crash of the process loses nothing");
    log.push(Entry::Durable { up_to: Sequence(9) });
    log.push_forget(Lsn(3));
    assert_eq!((log.sync(), log.has_room()), (OnDisk::No, false), "the server's disk has not got the third");
    log.push_forget(Lsn(4));
    log.catch_up();
    assert!(log.has_room());
    push(&log, 4);
    assert_eq!(log.sync(), OnDisk::Yes);
    let files = std::fs::read_dir(cache.path().join("oplog/0")).unwrap();
    let files = files.filter(|file| file.as_ref().unwrap().path().extension() == Some("log".as_ref()));
    assert_eq!(files.count(), 1, "nothing is left that may be torn");
    drop(log);
    assert_eq!(left(cache.path())[0].pending, [record(4, 100)]);
}

/// A sync that goes on until somebody has written, or in vain for long.
static SYNCING: Mutex<Syncing> = Mutex::new(Syncing::NotYet);
static SYNC_CHANGED: Condvar = Condvar::new();

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Syncing {
    NotYet,
    Now,
    Written,
}

fn reach(from: Syncing, to: Syncing) -> bool {
    let syncing = SYNCING.lock().unwrap();
    let patience = Duration::from_secs(60);
    let (mut syncing, waited) =
        SYNC_CHANGED.wait_timeout_while(syncing, patience, |syncing| *syncing == from).unwrap();
    if !waited.timed_out() {
        assert_eq!(*syncing, to);
    }
    *syncing = to;
    !waited.timed_out()
}

fn syncs_until_written(_: &File) -> std::io::Result<()> {
    let mut syncing = SYNCING.lock().unwrap();
    if *syncing == Syncing::Written {
        return Ok(());
    }
    *syncing = Syncing::Now;
    drop(syncing);
    SYNC_CHANGED.notify_all();
    match reach(Syncing::Now, Syncing::Written) {
        true => Ok(()),
        false => Err(std::io::Error::other("nobody could write meanwhile")),
    }
}

#[test]
fn nobody_else_waits_for_the_disk_to_have_a_full_file() {
    let cache = tempfile::tempdir().unwrap();
    let log = DiskLog { sync_data: syncs_until_written, ..log(cache.path()) };
    for lsn in 1..=17 {
        log.push_record(std::iter::empty(), record(lsn, 1 << 20));
    }
    std::thread::scope(|scope| {
        let full = scope.spawn(|| log.write());
        assert!(reach(Syncing::NotYet, Syncing::Now), "nobody syncs");
        push(&log, 18);
        assert_eq!(log.write(), OnDisk::Yes);
        *SYNCING.lock().unwrap() = Syncing::Written;
        SYNC_CHANGED.notify_all();
        assert_eq!(full.join().unwrap(), OnDisk::Yes);
    });
    assert!(cache.path().join("oplog/0/0000000002.log").exists());
    push(&log, 19);
    assert_eq!(log.write(), OnDisk::Yes);
    drop(log);
    let [found] = &left(cache.path())[..] else { panic!() };
    assert_eq!((found.pending.len(), &found.damage), (19, &None));
}

#[test]
fn a_file_that_cannot_be_synced_has_no_successor() {
    let cache = tempfile::tempdir().unwrap();
    let log = DiskLog { sync_data: fails_once, ..log(cache.path()) };
    DISK_FAILS.set(true);
    for lsn in 1..=17 {
        log.push_record(std::iter::empty(), record(lsn, 1 << 20));
    }
    assert_eq!((log.write(), log.has_room()), (OnDisk::No, false));
    assert_eq!((log.write(), log.sync()), (OnDisk::Yes, OnDisk::No));
    assert!(!cache.path().join("oplog/0/0000000002.log").exists());
    log.push_forget(Lsn(18));
    log.catch_up();
    assert!(log.has_room());
    assert_eq!(log.sync(), OnDisk::Yes);
}
