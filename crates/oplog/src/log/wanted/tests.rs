//! How much is looked at for who waits.

use super::*;
use crate::Change;
use crate::world::{fid, new, place};
use soda_types::{FileKind, Monotonic, SetAttr, Timestamp};

const LIMITS: DigestLimits = DigestLimits { records: 1000, bytes: u64::MAX };
const FILES: u64 = 20_000;

fn append(log: &mut Log, change: Change) {
    log.append(Monotonic::ZERO, Timestamp::new(1, 0), change);
}

fn write(ino: u64) -> Change {
    Change::Write { fid: fid(ino), offset: 0, data: b"data".as_slice().into(), kill_suid_sgid: false }
}

fn inos() -> std::ops::Range<u64> {
    100..100 + FILES
}

/// A tree that was unpacked: many files, each written once, in directories of some hundreds.
fn unpacked() -> (Log, Vec<Fid>) {
    let mut log = Log::default();
    let mut directory = fid(1);
    let mut fids = Vec::new();
    let mut make = |log: &mut Log, (directory, number): (Fid, u64), ino: u64, kind| {
        append(log, Change::Create { place: place(directory, number as u8), fid: fid(ino), new: new(kind) });
        fids.push(fid(ino));
    };
    for ino in inos() {
        if ino % 200 == 0 {
            make(&mut log, (directory, 255), FILES + ino, FileKind::Directory);
            directory = fid(FILES + ino);
        }
        make(&mut log, (directory, ino % 200), ino, FileKind::File);
        append(&mut log, write(ino));
    }
    (log, fids)
}

/// One file that cannot be told before all that was done to the directory that it is in.
fn resting() -> (Log, Vec<Fid>) {
    let mut log = Log::default();
    for _ in 0..2 * FILES {
        append(
            &mut log,
            Change::SetAttr { fid: fid(1), set: SetAttr { uid: Some(1), ..SetAttr::default() } },
        );
    }
    append(&mut log, Change::Create { place: place(fid(1), 1), fid: fid(2), new: new(FileKind::File) });
    (log, vec![fid(2)])
}

#[test]
fn what_is_looked_at_for_who_waits_for_much_grows_with_that_and_not_with_its_square() {
    for (mut log, fids) in [unpacked(), resting()] {
        let records = log.pending_count() as u64;
        let mut wanted = Wanted::new(fids, log.last_lsn());
        let mut digests = 0;
        // By turns.
        while log.has_pending(&mut wanted) {
            let digest = match digests % 2 {
                0 => log.take_wanted(Some(&mut wanted), &mut [], LIMITS),
                _ => log.take_wanted(None, &mut [&mut wanted], LIMITS),
            };
            log.handle_applied(digest.unwrap().id);
            digests += 1;
        }
        assert_eq!((log.pending_count(), digests), (0, records.div_ceil(1000)));
        assert!(log.looked_at() < 10 * records, "{} for {records} records", log.looked_at());
    }
}

#[test]
fn so_does_what_is_looked_at_to_count_what_he_needs() {
    for (log, fids) in [unpacked(), resting()] {
        let records = log.pending_count();
        let own = if fids.len() == 1 { 1 } else { records };
        assert_eq!(log.count_needed_for(&fids), Needed { own, besides: records - own });
        assert!(log.looked_at() < 10 * records as u64, "{} for {records} records", log.looked_at());
    }
}

#[test]
fn so_does_what_is_looked_at_to_find_the_digest_that_brings_it() {
    let (mut log, fids) = unpacked();
    let wanted = Wanted::new(fids, log.last_lsn());
    let digest = log.take(DigestLimits { records: usize::MAX, bytes: u64::MAX }).unwrap();
    let records = digest.lsns.len() as u64;
    let (before, found) = (log.looked_at(), log.under_way_for(&wanted));
    assert_eq!(found, Some(digest.id));
    assert!(log.looked_at() - before < 10 * records, "{} for {records} records", log.looked_at() - before);
}

/// What was looked at before says nothing then.
#[test]
fn who_waits_is_served_again_with_what_was_lost() {
    let (mut log, fids) = unpacked();
    let records = log.pending_count();
    let mut wanted = Wanted::new(fids, log.last_lsn());
    for _ in 0..2 {
        let mut first = None;
        while let Some(digest) = log.take_wanted(Some(&mut wanted), &mut [], LIMITS) {
            first = first.or(Some(digest.id));
        }
        assert!(!log.has_pending(&mut wanted));
        log.handle_lost(first.unwrap());
        assert_eq!((log.pending_count(), log.has_pending(&mut wanted)), (records, true));
    }
}
