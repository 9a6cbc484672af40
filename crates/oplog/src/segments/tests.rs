//! Crashes at every byte, damage at every byte.

use super::*;
use crate::Change;
use crate::world::{fid, record};
use bytes::Bytes;
use soda_types::{Sequence, SessionId, Slot};
use std::fs;

fn header() -> Header {
    Header {
        server: "127.0.0.1:7632".to_owned(),
        volume: "main".to_owned(),
        client: ClientId([3; 16]),
        session: SessionKey { session: SessionId(1), secret: [7; 16] },
    }
}

fn write(lsn: u64) -> Record {
    let data = Bytes::from(vec![lsn as u8; 40]);
    record(lsn, Change::Write { fid: fid(2), offset: lsn * 40, data, kill_suid_sgid: false })
}

fn sent(sequence: u64, lsns: &[u64]) -> Entry {
    let op = OpId { slot: Slot(0), sequence: Sequence(sequence) };
    Entry::Sent { op, lsns: lsns.iter().map(|lsn| Lsn(*lsn)).collect() }
}

fn numbers(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.lsn.0).collect()
}

/// Records 1 to 6; 1 and 2 applied, 1 durable, 4 sent ahead of 3.
fn sample(directory: &Path) -> PathBuf {
    let mut segments = Segments::create(directory, header()).unwrap();
    for lsn in 1..=4 {
        segments.append(&Entry::Record(write(lsn)));
    }
    segments.append(&sent(1, &[1, 2]));
    segments.append(&Entry::Applied);
    segments.append(&Entry::Durable { below: Lsn(2) });
    segments.append(&sent(2, &[4]));
    segments.append(&Entry::Record(write(5)));
    segments.append(&Entry::Record(write(6)));
    segments.sync().unwrap();
    path_of(directory, 1)
}

#[test]
fn a_log_tells_what_the_server_has_and_what_it_may_have() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(read(&directory.path().join("nothing")).unwrap(), None);
    sample(directory.path());
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!(found.header, header());
    assert_eq!(numbers(&found.applied), [2]);
    let (op, records) = found.sent.unwrap();
    assert_eq!((op.sequence, numbers(&records)), (Sequence(2), vec![4]));
    assert_eq!(numbers(&found.pending), [3, 5, 6]);
    assert_eq!(found.damage, None);
    assert_eq!(found.pending[0], write(3));
}

#[test]
fn a_log_that_is_cut_anywhere_is_a_prefix() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path());
    let whole = fs::read(&path).unwrap();
    let mut most = 0;
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let found = read(directory.path()).unwrap();
        let Some(found) = found else {
            assert_eq!(most, 0);
            continue;
        };
        assert_eq!(found.damage, None, "cut at {length}");
        let sent = found.sent.iter().flat_map(|(_, records)| records);
        let mut all =
            [numbers(&found.applied), numbers(&found.pending), sent.map(|one| one.lsn.0).collect()].concat();
        all.sort_unstable();
        let count = all.last().copied().unwrap_or(0);
        assert!(count >= most, "cut at {length}");
        most = count;
        assert!(all == (1..=count).collect::<Vec<_>>() || all == (2..=count).collect::<Vec<_>>(), "{all:?}");
    }
    assert_eq!(most, 6);
}

#[test]
fn a_log_that_a_crash_cut_goes_on_without_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path());
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    fs::write(path_of(directory.path(), 2), &MAGIC[..3]).unwrap();
    let mut segments = Segments::create(directory.path(), header()).unwrap();
    segments.append(&Entry::Record(write(6)));
    segments.sync().unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((numbers(&found.pending), found.damage), (vec![3, 5, 6], None));
}

#[test]
fn a_tail_of_zeros_is_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path());
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([0; 4096]);
    fs::write(&path, bytes).unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((found.damage, numbers(&found.pending)), (None, vec![3, 5, 6]));
}

#[test]
fn a_changed_byte_never_gives_other_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path());
    let whole = fs::read(&path).unwrap();
    let good: Vec<Record> = (1..=6).map(write).collect();
    let mut told = 0;
    for at in MAGIC.len()..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&path, bytes).unwrap();
        let Some(found) = read(directory.path()).unwrap() else { continue };
        told += u32::from(found.damage.is_some());
        let beyond = found.damage.iter().flat_map(|damage| &damage.beyond);
        let sent = found.sent.iter().flat_map(|(_, records)| records);
        for record in found.applied.iter().chain(sent).chain(&found.pending).chain(beyond) {
            assert!(good.contains(record), "byte {at} made {record:?}");
        }
    }
    assert!(told > 200, "damage in the middle is said: {told}");
}

#[test]
fn damage_in_the_middle_is_said_and_what_is_behind_it_kept_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path());
    let mut bytes = fs::read(&path).unwrap();
    let third = bytes.windows(40).position(|window| window == [3; 40]).unwrap();
    bytes[third] = 0xff;
    fs::write(&path, bytes).unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!(numbers(&found.pending), [1, 2]);
    assert_eq!(numbers(&found.damage.unwrap().beyond), [4, 5, 6]);
}

#[test]
fn what_is_no_log_is_not_read_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0000000001.log");
    fs::write(&path, "a letter to a friend").unwrap();
    assert!(matches!(read(directory.path()), Err(SegmentError::NotALog { .. })));
    fs::write(&path, "SODALOG7 and more").unwrap();
    assert!(matches!(read(directory.path()), Err(SegmentError::TooNew { format: 7, .. })));
}

#[test]
fn files_go_when_nothing_in_them_is_needed() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = Segments::create(directory.path(), header()).unwrap();
    let large = |lsn| {
        let data = Bytes::from(vec![1; 1 << 20]);
        Entry::Record(record(lsn, Change::Write { fid: fid(2), offset: 0, data, kill_suid_sgid: false }))
    };
    for lsn in 1..=40 {
        segments.append(&large(lsn));
        segments.write().unwrap();
    }
    let count = || read::files(directory.path()).unwrap().len();
    assert_eq!(count(), 3);
    segments.forget_below(Lsn(16)).unwrap();
    assert_eq!(count(), 3, "16 is in the first file");
    segments.forget_below(Lsn(17)).unwrap();
    assert_eq!(count(), 2);
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((found.pending.len(), found.damage), (24, None));
    // A new process goes on behind it.
    let bytes = segments.bytes();
    drop(segments);
    let mut segments = Segments::create(directory.path(), header()).unwrap();
    assert!(segments.bytes() > bytes);
    segments.append(&large(41));
    segments.sync().unwrap();
    assert_eq!(read(directory.path()).unwrap().unwrap().pending.len(), 25);
    segments.forget_below(Lsn(41)).unwrap();
    assert_eq!(count(), 1);
}
