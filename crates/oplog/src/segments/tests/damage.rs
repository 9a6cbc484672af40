//! Logs with a hole: said, shown, never written again.

use super::*;

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
    assert_refused(directory.path());
}

/// It is damaged, and nobody goes on with it.
#[track_caller]
fn assert_refused(directory: &Path) {
    let before: Vec<Vec<u8>> =
        read::files(directory).unwrap().iter().map(|(_, path)| fs::read(path).unwrap()).collect();
    assert!(read(directory).unwrap().unwrap().damage.is_some());
    let created = Segments::create(directory, header(), Safety::PowerCut);
    assert!(matches!(created, Err(SegmentError::Damaged { .. })), "{created:?}");
    let after: Vec<Vec<u8>> =
        read::files(directory).unwrap().iter().map(|(_, path)| fs::read(path).unwrap()).collect();
    assert!(before == after, "as it was found");
}

/// Records 1 to 3 in the first file, the rest in a second one. Returns the first.
fn two_files(directory: &Path) -> PathBuf {
    let mut segments = create(directory);
    for lsn in 1..=6 {
        segments.append(&Entry::Record(write(lsn)));
        segments.write().unwrap();
        if lsn == 3 {
            segments.begin_file().unwrap();
        }
    }
    path_of(directory, 1)
}

#[test]
fn a_file_that_is_not_the_last_has_no_hole_at_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = two_files(directory.path());
    let whole = fs::read(&path).unwrap();
    assert_eq!(numbers(&read(directory.path()).unwrap().unwrap().pending), [1, 2, 3, 4, 5, 6]);
    let third = whole.windows(40).position(|window| window == [3; 40]).unwrap();
    let end = ends(&whole).into_iter().filter(|end| *end < third).max().unwrap();
    for cut in end..whole.len() {
        let zeros = [&whole[..cut], &vec![0; whole.len() - cut]].concat();
        for (how, bytes) in [("cut", &whole[..cut]), ("zeros", &zeros)] {
            if bytes == whole {
                // It ends in zeros.
                continue;
            }
            fs::write(&path, bytes).unwrap();
            let found = read(directory.path()).unwrap().unwrap();
            assert_eq!(numbers(&found.pending), [1, 2], "{how} at {cut}");
            let damage = found.damage.unwrap_or_else(|| panic!("{how} at {cut}"));
            assert_eq!((&damage.file, numbers(&damage.beyond)), (&path, vec![4, 5, 6]), "{how} at {cut}");
            assert_refused(directory.path());
        }
    }
    // One that a crash has cut, and that was gone on with, has ended there.
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    fs::remove_file(path_of(directory.path(), 2)).unwrap();
    let mut segments = create(directory.path());
    segments.append(&Entry::Record(write(3)));
    segments.write().unwrap();
    drop(segments);
    create(directory.path());
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((numbers(&found.pending), found.damage), (vec![1, 2, 3], None));
}

#[test]
fn a_log_with_a_damaged_head_is_not_taken_for_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut segments = create(directory.path());
    let data = Bytes::from(vec![1; LONGEST_HEAD]);
    segments.append(&Entry::Record(record(
        1,
        Change::Write { fid: fid(2), offset: 0, data: data.into(), kill_suid_sgid: false },
    )));
    segments.write().unwrap();
    let path = path_of(directory.path(), 1);
    let whole = fs::read(&path).unwrap();
    for (at, flip) in [(MAGIC.len() + 3, 0xff), (MAGIC.len() + 10, 1)] {
        let mut bytes = whole.clone();
        bytes[at] ^= flip;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(read(directory.path()), Err(SegmentError::NotALog { .. })), "byte {at}");
    }
    // As a power cut leaves a file that was just begun.
    for bytes in [vec![], vec![0; 4096], whole[..MAGIC.len() + 20].to_vec()] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(read(directory.path()).unwrap(), None);
    }
}

/// Records 1 to `count` in one file, each some hundred bytes. Returns where each ends, too.
fn many(directory: &Path, count: u64) -> (PathBuf, Vec<u8>, Vec<usize>) {
    let mut segments = create(directory);
    let head = segments.bytes() as usize;
    for lsn in 1..=count {
        segments.append(&Entry::Record(write(lsn)));
    }
    segments.sync().unwrap();
    let path = path_of(directory, 1);
    let whole = fs::read(&path).unwrap();
    let ends = ends(&whole).into_iter().filter(|end| *end >= head).collect();
    (path, whole, ends)
}

/// A disk loses sectors, each with several records in it, or a power cut leaves a page of zeros.
#[test]
fn a_sector_that_is_lost_is_damage_and_what_is_behind_it_is_kept() {
    const SECTOR: usize = 4096;
    let directory = tempfile::tempdir().unwrap();
    let (path, whole, ends) = many(directory.path(), 400);
    let garbage: Vec<u8> =
        (0..SECTOR as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (how, sector) in
        [("garbage", garbage), ("zeros", vec![0; SECTOR]), ("lengths", [2, 0].repeat(SECTOR / 2))]
    {
        for start in (0..whole.len()).step_by(SECTOR) {
            let end = whole.len().min(start + SECTOR);
            let mut bytes = whole.clone();
            bytes[start..end].copy_from_slice(&sector[..end - start]);
            fs::write(&path, &bytes).unwrap();
            let is_whole = |lsn: &u64| {
                let place = ends[*lsn as usize - 1]..ends[*lsn as usize];
                bytes[place.clone()] == whole[place]
            };
            let left: Vec<u64> = (1..=400).filter(is_whole).collect();
            let told = left.iter().zip(1..).take_while(|(lsn, number)| **lsn == *number).count();
            let (told, beyond) = left.split_at(told);
            let found = match read(directory.path()) {
                Ok(Some(found)) => found,
                Err(SegmentError::NotALog { .. }) if start == 0 => continue,
                other => panic!("{how} at {start}: {other:?}"),
            };
            assert_eq!(numbers(&found.pending), told, "{how} at {start}");
            let shown = found.damage.as_ref().map(|damage| numbers(&damage.beyond));
            assert_eq!(shown, (!beyond.is_empty()).then(|| beyond.to_vec()), "{how} at {start}");
            if found.damage.is_some() {
                assert_refused(directory.path());
            }
        }
    }
}

/// The first page of a log is its name, too.
#[test]
fn a_log_that_begins_with_zeros_is_nothing_only_if_nothing_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let (path, whole, _) = many(directory.path(), 100);
    let mut bytes = whole.clone();
    bytes[..4096].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(read(directory.path()), Err(SegmentError::NotALog { .. })));
    let created = Segments::create(directory.path(), header(), Safety::PowerCut);
    assert!(matches!(created, Err(SegmentError::Damaged { offset: 0, .. })), "{created:?}");
    assert!(fs::read(&path).unwrap() == bytes, "as it was found");
    // Behind another file it is damage all the same.
    let one = [MAGIC, &whole[MAGIC.len()..ends(&whole)[2]]].concat();
    fs::write(&path, one).unwrap();
    fs::write(path_of(directory.path(), 2), &bytes).unwrap();
    assert!(read(directory.path()).unwrap().unwrap().damage.unwrap().beyond.len() > 10);
    assert_refused(directory.path());
}

#[test]
fn what_a_torn_record_holds_of_this_log_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = sample(directory.path());
    let copy = Bytes::from(fs::read(&path).unwrap());
    let (first, rest) = (copy.slice(..ends(&copy)[6]), Bytes::from_static(b"and more"));
    for (lsn, data) in [(7, first), (8, rest)] {
        let mut segments = create(directory.path());
        segments.append(&Entry::Record(record(
            lsn,
            Change::Write { fid: fid(3), offset: 0, data: data.into(), kill_suid_sgid: false },
        )));
        segments.write().unwrap();
    }
    fs::remove_file(path_of(directory.path(), 3)).unwrap();
    let path = path_of(directory.path(), 2);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let found = read(directory.path()).unwrap().unwrap();
    assert_eq!((numbers(&found.pending), found.damage), (vec![3, 5, 6], None));
}

/// What a disk forgets in a power cut: of the pages that were written since the last sync any, in any order, and how long the
/// file is. Pages of 64 bytes, so that records lie in several, and several records in one.
#[test]
fn whatever_a_power_cut_leaves_of_unsynced_pages_is_a_prefix_with_all_that_was_synced() {
    const PAGE: usize = 64;
    const CASES: u32 = 600;
    let directory = tempfile::tempdir().unwrap();
    let (path, whole, ends) = many(directory.path(), 40);
    let (kept, told_on) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let lost = vec(prop_oneof![3 => Just(false), 1 => Just(true)], whole.len() / PAGE + 1);
    let cases = (0..=40usize, lost, any::<Index>());
    let outcome = TestRunner::new(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    })
    .run(&cases, |(synced, lost, length)| {
        for (_, path) in read::files(directory.path()).unwrap() {
            fs::remove_file(path).unwrap();
        }
        let durable = ends[synced];
        let length = durable + length.index(whole.len() - durable + 1);
        let mut bytes = whole[..length].to_vec();
        for (page, _) in lost.iter().enumerate().filter(|(_, lost)| **lost) {
            // Of the page in which the sync ended the disk has what was in it then.
            let start = (page * PAGE).clamp(durable, length);
            bytes[start..length.min((page + 1) * PAGE).max(start)].fill(0);
        }
        fs::write(&path, &bytes).unwrap();
        let is_whole =
            |lsn: &usize| bytes.get(ends[lsn - 1]..ends[*lsn]) == Some(&whole[ends[lsn - 1]..ends[*lsn]]);
        let told = (1..=40).take_while(is_whole).count();
        let beyond: Vec<u64> = (told + 1..=40).filter(is_whole).map(|lsn| lsn as u64).collect();
        let found = read(directory.path()).unwrap().unwrap();
        prop_assert!(told >= synced);
        prop_assert_eq!(numbers(&found.pending), (1..=told as u64).collect::<Vec<_>>());
        let shown = found.damage.as_ref().map(|damage| numbers(&damage.beyond));
        prop_assert_eq!(shown, (!beyond.is_empty()).then_some(beyond));
        let created = Segments::create(directory.path(), header(), Safety::ProcessCrash);
        if found.damage.is_some() {
            kept.set(kept.get() + 1);
            prop_assert!(matches!(created, Err(SegmentError::Damaged { .. })), "{:?}", created);
            prop_assert!(fs::read(&path).unwrap() == bytes, "as it was found");
            return Ok(());
        }
        told_on.set(told_on.get() + 1);
        let mut segments = created.unwrap();
        segments.append(&Entry::Record(write(told as u64 + 1)));
        segments.write().unwrap();
        let found = read(directory.path()).unwrap().unwrap();
        prop_assert_eq!(numbers(&found.pending), (1..=told as u64 + 1).collect::<Vec<_>>());
        prop_assert_eq!(found.damage, None);
        Ok(())
    });
    outcome.unwrap();
    assert!(kept.get() > CASES / 10 && told_on.get() > CASES / 10, "{kept:?} kept, {told_on:?} told");
}
