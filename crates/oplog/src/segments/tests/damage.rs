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
    let mut ends = vec![MAGIC.len()];
    while let Some(head) = whole.get(*ends.last().unwrap()..*ends.last().unwrap() + 4) {
        let length = u32::from_le_bytes(head.try_into().unwrap()) as usize;
        ends.push(ends.last().unwrap() + 8 + length);
    }
    let end = ends.iter().copied().filter(|end| *end < third).max().unwrap();
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
        Change::Write { fid: fid(2), offset: 0, data, kill_suid_sgid: false },
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
