//! Crashes at every byte, damage at every byte.

mod damage;

use super::*;
use crate::Change;
use crate::world::{fid, history_from, record};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use soda_types::{Sequence, SessionId, Slot};
use std::fs;

fn header() -> Header {
    Header {
        server: "127.0.0.1:7632".to_owned(),
        volume: "main".to_owned(),
        client: ClientId([3; 16]),
        session: SessionKey { session: SessionId(1), secret: [7; 16] },
        digest: OpId { slot: Slot(0), sequence: Sequence(0) },
        slots: 9,
    }
}

fn write(lsn: u64) -> Record {
    let data = Bytes::from(vec![lsn as u8; 40]);
    record(lsn, Change::Write { fid: fid(2), offset: lsn * 40, data: data.into(), kill_suid_sgid: false })
}

fn sent(sequence: u64, lsns: &[u64]) -> Entry {
    let op = OpId { slot: Slot(0), sequence: Sequence(sequence) };
    Entry::Sent { op, lsns: lsns.iter().map(|lsn| Lsn(*lsn)).collect() }
}

fn applied(sequence: u64) -> Entry {
    applied_at(sequence, &[])
}

/// The versions that inodes are at.
fn applied_at(sequence: u64, versions: &[(u64, u64)]) -> Entry {
    let versions = versions.iter().map(|(inode, version)| (fid(*inode), Version(*version))).collect();
    Entry::AppliedAs { sequence: Sequence(sequence), versions }
}

/// As before several could be under way.
fn first_applied(_: u64) -> Entry {
    Entry::Applied { versions: Vec::new() }
}

fn create(directory: &Path) -> Segments {
    Segments::create(directory, header(), Safety::PowerCut).unwrap()
}

fn numbers(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.lsn.0).collect()
}

/// Records 1 to 6; 1 and 2 applied, 1 durable, 4 sent ahead of 3.
fn sample(directory: &Path) -> PathBuf {
    sample_with(directory, applied)
}

fn sample_with(directory: &Path, applied: fn(u64) -> Entry) -> PathBuf {
    let mut segments = create(directory);
    for lsn in 1..=4 {
        segments.append(&Entry::Record(write(lsn)));
    }
    for digest in 1..=2 {
        segments.append(&sent(digest, &[digest]));
        segments.append(&applied(digest));
    }
    segments.append(&Entry::Durable { up_to: Sequence(1) });
    segments.append(&sent(3, &[4]));
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
    let applied: Vec<_> = found.applied.iter().map(|one| (one.op.sequence, numbers(&one.records))).collect();
    assert_eq!(applied, [(Sequence(2), vec![2])]);
    let [sent] = &found.sent[..] else { panic!("{found:?}") };
    assert_eq!((sent.op.sequence, numbers(&sent.records)), (Sequence(3), vec![4]));
    assert_eq!(found.last_digest, Sequence(3));
    assert_eq!(found.records().iter().map(|record| record.lsn.0).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
    assert_eq!(numbers(&found.pending), [3, 5, 6]);
    assert_eq!(found.damage, None);
    assert_eq!(found.pending[0], write(3));
}

fn sent_behind(sequence: u64, lsns: &[u64]) -> Entry {
    match sent(sequence, lsns) {
        Entry::Sent { op, lsns } => Entry::SentBehind { op, lsns },
        other => other,
    }
}

#[test]
fn digests_that_were_under_way_together_are_found_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = create(directory.path());
    for lsn in 1..=6 {
        segments.append(&Entry::Record(write(lsn)));
    }
    segments.append(&sent(1, &[1]));
    segments.append(&sent_behind(2, &[2]));
    segments.append(&sent_behind(3, &[4]));
    segments.append(&applied_at(1, &[(2, 9)]));
    segments.append(&sent_behind(4, &[3]));
    segments.append(&sent_behind(5, &[5]));
    segments.append(&Entry::Lost { from: Sequence(4) });
    segments.write().unwrap();
    let list = |digests: &[Digested]| {
        digests.iter().map(|one| (one.op.sequence.0, numbers(&one.records))).collect::<Vec<_>>()
    };
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!(list(&found.applied), [(1, vec![1])]);
    assert_eq!(list(&found.sent), [(2, vec![2]), (3, vec![4])]);
    assert_eq!((numbers(&found.pending), found.last_digest), (vec![3, 5, 6], Sequence(5)));
    assert_eq!(found.version_before(fid(2), Lsn(2)), Some(Version(9)));
    // One that goes on when all are answered says so of all.
    segments.append(&sent(6, &[3]));
    segments.write().unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!(list(&found.applied), [(1, vec![1]), (2, vec![2]), (3, vec![4])]);
    assert_eq!(list(&found.sent), [(6, vec![3])]);
}

#[test]
fn an_answer_is_that_of_its_digest_also_when_the_file_with_the_digest_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = create(directory.path());
    for lsn in 1..=2 {
        segments.append(&Entry::Record(write(lsn)));
    }
    segments.append(&sent(1, &[1]));
    segments.append(&sent_behind(2, &[2]));
    segments.write().unwrap();
    segments.begin_file().unwrap();
    segments.append(&Entry::Record(write(3)));
    segments.append(&applied(1));
    segments.append(&sent_behind(3, &[3]));
    segments.append(&applied(2));
    segments.append(&Entry::Durable { up_to: Sequence(2) });
    segments.write().unwrap();
    let list = |found: &[Digested]| found.iter().map(|one| one.op.sequence.0).collect::<Vec<_>>();
    let all = read(directory.path()).unwrap().unwrap();
    segments.forget_below(Lsn(3)).unwrap();
    assert_eq!(read::files(directory.path()).unwrap().len(), 1);
    let rest = read(directory.path()).unwrap().unwrap();
    for found in [all, rest] {
        assert_eq!((list(&found.applied), list(&found.sent)), (vec![], vec![3]));
        assert_eq!((found.last_digest, numbers(&found.pending)), (Sequence(3), vec![]));
    }
}

#[test]
fn logs_of_the_formats_before_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample_with(directory.path(), first_applied);
    let whole = fs::read(&path).unwrap();
    let mut first = MAGIC.to_vec();
    encode(&Entry::Header(header()), &mut first);
    let with_header = first.len();
    encode(&Entry::Slots(9), &mut first);
    let rest = &whole[first.len()..];
    // The third format only adds what a second file begins with, the fourth what is given up.
    for magic in [b"SODALOG2", b"SODALOG3"] {
        fs::write(&path, [magic, &whole[MAGIC.len()..]].concat()).unwrap();
        let found = read(directory.path()).unwrap().unwrap();
        assert_eq!((found.header.slots, numbers(&found.pending), found.damage), (9, vec![3, 5, 6], None));
    }
    fs::write(&path, [b"SODALOG1", &first[MAGIC.len()..with_header], rest].concat()).unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((found.header.slots, found.header.digest_slots().count), (1, 1));
    assert_eq!((numbers(&found.pending), found.sent.len(), found.damage), (vec![3, 5, 6], 1, None));
    fs::write(&path, [b"SODALOG5", &whole[MAGIC.len()..]].concat()).unwrap();
    assert!(matches!(read(directory.path()), Err(SegmentError::TooNew { format: 5, .. })));
}

#[test]
fn a_file_that_ends_behind_its_header_has_the_slots_of_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path());
    let mut first = MAGIC.to_vec();
    encode(&Entry::Header(header()), &mut first);
    fs::write(path_of(directory.path(), 2), first).unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((found.header.slots, found.damage), (9, None));
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
        let all: Vec<u64> = found.records().iter().map(|record| record.lsn.0).collect();
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
    let mut segments = create(directory.path());
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
fn a_changed_byte_never_gives_other_records_and_is_said_wherever_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path());
    let whole = fs::read(&path).unwrap();
    let good: Vec<Record> = (1..=6).map(write).collect();
    // What a crash leaves of the last entry looks the same.
    let last = ends(&whole)[ends(&whole).len() - 2];
    for (at, flip) in (MAGIC.len()..whole.len()).flat_map(|at| [(at, 0x55), (at, 1), (at, 0x80)]) {
        let mut bytes = whole.clone();
        bytes[at] ^= flip;
        fs::write(&path, bytes).unwrap();
        let found = match read(directory.path()) {
            Ok(Some(found)) => found,
            Ok(None) => panic!("byte {at}: what is damaged is not taken for nothing"),
            Err(SegmentError::NotALog { .. }) => continue,
            Err(error) => panic!("byte {at}: {error}"),
        };
        assert_eq!(found.damage.is_some(), at < last, "byte {at} of {last}, {flip:#x}");
        let beyond = found.damage.iter().flat_map(|damage| &damage.beyond);
        for record in found.records().into_iter().chain(beyond) {
            assert!(good.contains(record), "byte {at} made {record:?}");
        }
        let beyond = found.damage.iter().flat_map(|damage| numbers(&damage.beyond)).collect::<Vec<_>>();
        assert!(at >= last || beyond.ends_with(&[6]), "byte {at}: {beyond:?}");
    }
}

/// Where the entries of a file end; first, where they begin.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![MAGIC.len()];
    while let Some(head) = bytes.get(*ends.last().unwrap()..*ends.last().unwrap() + 4) {
        let length = u32::from_le_bytes(head.try_into().unwrap()) as usize;
        ends.push(ends.last().unwrap() + 8 + length);
    }
    ends
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
    let mut segments = create(directory.path());
    let large = |lsn| {
        let data = Bytes::from(vec![1; 1 << 20]);
        Entry::Record(record(
            lsn,
            Change::Write { fid: fid(2), offset: 0, data: data.into(), kill_suid_sgid: false },
        ))
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
    let mut segments = create(directory.path());
    assert!(segments.bytes() > bytes);
    segments.append(&large(41));
    segments.sync().unwrap();
    assert_eq!(read(directory.path()).unwrap().unwrap().pending.len(), 25);
    segments.forget_below(Lsn(41)).unwrap();
    assert_eq!(count(), 1);
    let bytes = segments.bytes();
    segments.forget_below(Lsn(42)).unwrap();
    assert!(segments.bytes() < bytes && count() == 1, "nothing is needed any more");
    assert_eq!(read(directory.path()).unwrap().unwrap().pending, []);
}

/// As on a disk without room for another file.
#[test]
fn a_log_that_cannot_be_replaced_has_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = create(directory.path());
    let data = Bytes::from(vec![1; WORTH_DELETING as usize]);
    let change = Change::Write { fid: fid(2), offset: 0, data: data.into(), kill_suid_sgid: false };
    segments.append(&Entry::Record(record(1, change)));
    segments.write().unwrap();
    fs::create_dir(path_of(directory.path(), 2)).unwrap();
    [sent(1, &[1]), applied(1), Entry::Durable { up_to: Sequence(1) }]
        .iter()
        .for_each(|entry| segments.append(entry));
    segments.forget_below(Lsn(2)).unwrap_err();
    segments.write_on().unwrap();
    fs::remove_dir(path_of(directory.path(), 2)).unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((found.last_digest, found.records().len()), (Sequence(1), 0));
    segments.forget_below(Lsn(2)).unwrap();
    assert!(!path_of(directory.path(), 1).exists());
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((found.last_digest, found.records().len(), found.damage), (Sequence(1), 0, None));
}

#[test]
fn what_the_server_lost_is_to_be_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = create(directory.path());
    for lsn in 1..=4 {
        segments.append(&Entry::Record(write(lsn)));
        segments.append(&sent(lsn, &[lsn]));
        if lsn < 4 {
            segments.append(&applied(lsn));
        }
    }
    segments.append(&Entry::Lost { from: Sequence(2) });
    segments.append(&sent(5, &[2]));
    segments.append(&Entry::GivenUpHere { lsns: vec![Lsn(3), Lsn(4)] });
    segments.append(&Entry::GivenUp { lsns: vec![Lsn(3)] });
    segments.append(&Entry::Record(write(5)));
    segments.sync().unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!(numbers(&found.applied[0].records), [1]);
    assert_eq!(numbers(&found.sent[0].records), [2]);
    assert_eq!((numbers(&found.given_up), numbers(&found.pending)), (vec![4], vec![5]));
    assert_eq!(found.last_digest, Sequence(5));
}

#[test]
fn the_versions_that_the_server_had_are_known_for_each_record() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = create(directory.path());
    let told = |version| Entry::Told { fid: fid(2), version: Version(version) };
    segments.append(&told(7));
    segments.append(&Entry::Record(write(1)));
    segments.append(&sent(1, &[1]));
    segments.append(&Entry::Record(write(2)));
    segments.append(&applied_at(1, &[(2, 9), (3, 1)]));
    segments.append(&sent(2, &[2]));
    segments.append(&applied_at(2, &[(2, 10)]));
    // Something went through to the server.
    segments.append(&told(20));
    segments.append(&Entry::Record(write(3)));
    segments.write().unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    let before: Vec<u64> = (1..=3).map(|lsn| found.version_before(fid(2), Lsn(lsn)).unwrap().0).collect();
    assert_eq!(before, [7, 9, 20]);
    assert_eq!(found.version_before(fid(3), Lsn(3)), None);
    assert_eq!(found.through, [(fid(2), Lsn(3))]);
}

#[test]
fn a_later_file_knows_the_last_digest() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = create(directory.path());
    segments.append(&Entry::Record(write(1)));
    segments.append(&sent(9, &[1]));
    segments.write().unwrap();
    drop(segments);
    let header = Header { digest: OpId { slot: Slot(0), sequence: Sequence(9) }, ..header() };
    Segments::create(directory.path(), header, Safety::ProcessCrash).unwrap();
    std::fs::remove_file(path_of(directory.path(), 1)).unwrap();
    assert_eq!(read(directory.path()).unwrap().unwrap().last_digest, Sequence(9));
}

/// What happens to an entry, with its check sum put right again.
#[derive(Clone, Debug)]
enum Mutation {
    /// Bytes of its body are replaced by others, fewer or more.
    Splice(Index, usize, Vec<u8>),
    CopyOver(Index),
    Remove,
    /// As the first, but of length, sum and body, and nothing is put right.
    Tear(Index, usize, Vec<u8>),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let byte = prop_oneof![Just(0), Just(1), Just(0x80), Just(0xff), any::<u8>()];
    let part = || (any::<Index>(), 0..4usize, vec(byte.clone(), 0..12));
    prop_oneof![
        4 => part().prop_map(|(at, cut, put)| Mutation::Splice(at, cut, put)),
        1 => any::<Index>().prop_map(Mutation::CopyOver),
        1 => Just(Mutation::Remove),
        1 => part().prop_map(|(at, cut, put)| Mutation::Tear(at, cut, put)),
    ]
}

/// Bodies of all kinds of entries, with the records of a history.
fn bodies(dice: &[[u8; 5]]) -> Vec<Vec<u8>> {
    let (history, _) = history_from(2, dice);
    let mut entries = vec![Entry::Header(header())];
    for (sequence, record) in (1..).zip(history) {
        let lsns = [record.lsn.0];
        entries.extend([Entry::Told { fid: fid(2), version: Version(sequence) }, Entry::Record(record)]);
        match sequence % 5 {
            4 => entries.push(Entry::GivenUpHere { lsns: vec![Lsn(lsns[0])] }),
            0 => entries.push(Entry::Lost { from: Sequence(sequence - 1) }),
            1 => entries.extend([sent(sequence, &lsns), first_applied(sequence)]),
            2 => entries.extend([sent(sequence, &lsns), applied_at(sequence, &[(3, 9)])]),
            _ => entries
                .extend([Entry::GivenUp { lsns: vec![Lsn(lsns[0])] }, Entry::Durable { up_to: Sequence(1) }]),
        }
    }
    entries.iter().map(|entry| postcard::to_allocvec(entry).unwrap()).collect()
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = body.len() as u32;
    [&length.to_le_bytes(), &checksum(length, body).to_le_bytes(), body].concat()
}

fn splice(bytes: &mut Vec<u8>, at: Index, cut: usize, put: Vec<u8>) {
    let at = at.index(bytes.len() + 1);
    bytes.splice(at..bytes.len().min(at + cut), put);
}

/// Damage that a check sum does not show, as of a disk that takes back what was written, or of a mistake of an older version.
#[test]
fn whatever_stands_in_sound_entries_is_read_or_refused() {
    const CASES: u32 = 3000;
    let directory = tempfile::tempdir().unwrap();
    let understood = std::cell::Cell::new(0);
    let mutations = vec((any::<Index>(), mutation()), 0..4);
    // The last number has no next one.
    let second_file = prop_oneof![4 => Just(2), 1 => Just(3), 1 => Just(u64::MAX)];
    let cases = (vec(any::<[u8; 5]>(), 0..24), mutations, any::<Index>(), second_file);
    let outcome = TestRunner::new(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    })
    .run(&cases, |(dice, mutations, cut, second)| {
        for file in fs::read_dir(directory.path()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        let bodies = bodies(&dice);
        let mut entries: Vec<Vec<u8>> = bodies.iter().map(|body| framed(body)).collect();
        let is_sound = mutations.is_empty() && second == 2;
        for (which, mutation) in mutations {
            let which = which.index(entries.len());
            entries[which] = match mutation {
                Mutation::Splice(at, cut, put) => {
                    let mut body = bodies[which].clone();
                    splice(&mut body, at, cut, put);
                    understood
                        .set(understood.get() + u32::from(postcard::from_bytes::<Entry>(&body).is_ok()));
                    framed(&body)
                }
                Mutation::CopyOver(from) => framed(&bodies[from.index(bodies.len())]),
                Mutation::Remove => Vec::new(),
                Mutation::Tear(at, cut, put) => {
                    let mut entry = entries[which].clone();
                    splice(&mut entry, at, cut, put);
                    entry
                }
            };
        }
        let (first, rest) = entries.split_at(cut.index(entries.len()));
        for (path, entries) in
            [(path_of(directory.path(), 1), first), (path_of(directory.path(), second), rest)]
        {
            fs::write(path, [&MAGIC[..], &entries.concat()].concat()).unwrap();
        }
        let found = read(directory.path());
        prop_assert!(matches!(&found, Ok(_) | Err(SegmentError::NotALog { .. })), "{found:?}");
        let is_damaged =
            found.as_ref().map_or(true, |found| found.as_ref().is_some_and(|found| found.damage.is_some()));
        prop_assert!(!is_sound || !is_damaged);
        if let Ok(Some(found)) = found {
            prop_assert!(found.records().len() <= entries.len());
        }
        // Somebody goes on with it.
        let mut segments = match Segments::create(directory.path(), header(), Safety::ProcessCrash) {
            Ok(segments) => segments,
            Err(error) => {
                prop_assert!(is_damaged && matches!(error, SegmentError::Damaged { .. }), "{error}");
                return Ok(());
            }
        };
        prop_assert!(!is_damaged);
        segments.append(&Entry::Record(write(1)));
        segments.write().unwrap();
        drop(segments);
        let damage = read(directory.path()).unwrap().and_then(|found| found.damage);
        prop_assert_eq!(damage, None);
        Ok(())
    });
    outcome.unwrap();
    assert!(understood.get() > CASES / 4, "hardly any damage is understood: {}", understood.get());
}
