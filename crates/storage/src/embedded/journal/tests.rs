use super::*;
use proptest::prelude::*;
use std::io::Write;

/// A batch as the engine writes it.
fn batch(items: &[(Vec<u8>, Vec<u8>)], seqno: u64) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in items {
        body.extend([2, 0, 0]);
        body.extend(7u64.to_le_bytes());
        body.extend((key.len() as u16).to_le_bytes());
        body.extend((value.len() as u32).to_le_bytes());
        body.extend((value.len() as u32).to_le_bytes());
        body.extend(key);
        body.extend(value);
    }
    let mut bytes = vec![1];
    bytes.extend((items.len() as u32).to_le_bytes());
    bytes.extend(seqno.to_le_bytes());
    bytes.extend(&body);
    bytes.push(3);
    let mut hash = Xxh3::default();
    hash.update(&body);
    bytes.extend(hash.digest().to_le_bytes());
    bytes.extend(TRAILER);
    bytes
}

fn batches() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let bytes = |max| proptest::collection::vec(any::<u8>(), 0..max);
    let items = proptest::collection::vec((bytes(20), bytes(300)), 1..4);
    proptest::collection::vec((items, any::<u64>()).prop_map(|(items, seqno)| batch(&items, seqno)), 0..6)
}

fn torn(content: &[u8]) -> Option<u64> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file.rewind().unwrap();
    let whole = whole_batches(&mut file).unwrap();
    whole.is_torn.then_some(whole.end)
}

/// A page that is missing from within the lengths of an item: the engine panics at that, before it sees the end.
#[test]
fn an_item_of_two_lengths_is_torn() {
    let (first, second) = (batch(&[(vec![1; 5], vec![2; 300])], 1), batch(&[(vec![3; 5], vec![4; 300])], 2));
    let stored_len = first.len() + 13 + 1 + 16;
    let mut content = [first.clone(), second].concat();
    assert_eq!(u32::from_le_bytes(content[stored_len..stored_len + 4].try_into().unwrap()), 300);
    content[stored_len..].fill(0);
    assert_eq!(torn(&content), Some(first.len() as u64));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn anything_has_an_end(content in proptest::collection::vec(any::<u8>(), 0..2000)) {
        if let Some(end) = torn(&content) {
            prop_assert!(end < content.len() as u64);
        }
    }

    /// Wherever a byte is wrong, what is cut begins with the batch that it is in: those before stay.
    #[test]
    fn only_the_batch_that_is_torn_and_those_after_go(
        batches in batches(),
        at in any::<prop::sample::Index>(),
        bits in 1u8..,
        zeros in 0usize..5000,
    ) {
        let mut content = batches.concat();
        prop_assert_eq!(torn(&content), None, "the format is not the one that this test writes");
        content.resize(content.len() + zeros, 0);
        prop_assert_eq!(torn(&content), None, "the engine writes into a file that is zeros");
        if batches.is_empty() {
            return Ok(());
        }
        let at = at.index(batches.concat().len());
        content[at] ^= bits;
        let mut begin = 0;
        for batch in &batches {
            if begin + batch.len() > at {
                break;
            }
            begin += batch.len();
        }
        if let Some(end) = torn(&content) {
            prop_assert_eq!(end, begin as u64);
        }
    }
}

fn write(directory: &Path, number: u64, content: &[u8]) {
    fs::write(path(directory, number), content).unwrap();
}

fn of(seqno: u64) -> Vec<u8> {
    batch(&[(vec![1], vec![seqno as u8; 10])], seqno)
}

/// The next journal can come and go between two syncs.
#[test]
fn the_newest_is_found_when_the_next_is_gone_already() {
    let directory = tempfile::tempdir().unwrap();
    let (directory, begun) = (directory.path(), AtomicU64::new(40));
    write(directory, 1, &[]);
    let mut newest = Newest { number: 1, file: Arc::new(open(directory, 1).unwrap()), before: 0 };
    newest.follow(directory, &begun).unwrap();
    assert_eq!((newest.number, newest.before), (1, 0));
    write(directory, 4, &[]);
    fs::remove_file(path(directory, 1)).unwrap();
    newest.follow(directory, &begun).unwrap();
    assert_eq!((newest.number, newest.before), (4, 40));
    write(directory, 5, &[]);
    newest.follow(directory, &begun).unwrap();
    assert_eq!(newest.number, 5);
    fs::remove_file(path(directory, 5)).unwrap();
    newest.follow(directory, &begun).unwrap_err();
}

/// An older journal was synced before the next was made: what is behind its batches is no torn tail.
#[test]
fn rot_in_an_older_journal_is_damage() {
    for (behind, is_sound) in [(&b""[..], true), (&[0; 5000], true), (&[9, 9], false), (&of(3)[..20], false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let older = [of(1), of(2), behind.to_vec()].concat();
        write(directory, 7, &older);
        write(directory, 8, &[of(4), of(5)].concat());
        let result = cut_torn_tail(directory);
        if is_sound {
            assert_eq!(result.unwrap(), Some(Found { number: 8, batches: 2 }));
            assert_eq!(accept_loss(directory).unwrap(), None);
            continue;
        }
        let Err(StorageError::DamagedJournal { readable: 2, synced: 3, .. }) = result else { panic!() };
        assert_eq!(fs::read(path(directory, 7)).unwrap(), older, "nothing was changed");
        assert_eq!(accept_loss(directory).unwrap(), Some(3), "and what came after it");
        assert_eq!(cut_torn_tail(directory).unwrap(), Some(Found { number: 8, batches: 0 }));
        assert_eq!(fs::read(directory.join("7.torn")).unwrap(), behind);
        assert_eq!(fs::read(directory.join("8.torn")).unwrap(), [of(4), of(5)].concat());
    }
}

#[test]
fn a_note_of_another_journal_of_that_number_says_nothing() {
    let noted = |content: &[u8], note: Option<Note>| {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), 7, content);
        let file = Note::open(directory.path()).unwrap();
        note.inspect(|note| note.write(&file).unwrap());
        cut_torn_tail(directory.path()).map(|found| found.unwrap().batches)
    };
    let note = Note { number: 7, first: 1, batches: 3 };
    assert_eq!(noted(&[of(1), of(2), of(3)].concat(), Some(note)).unwrap(), 3);
    assert_eq!(noted(&[of(1), of(2)].concat(), None).unwrap(), 2);
    assert_eq!(noted(&[of(1), of(2)].concat(), Some(Note { number: 6, ..note })).unwrap(), 2);
    // Emptied at an end, by a program that makes no notes, and gone on with since.
    assert_eq!(noted(&[], Some(note)).unwrap(), 0);
    assert_eq!(noted(&[0; 100], Some(note)).unwrap(), 0);
    assert_eq!(noted(&[of(9), of(10)].concat(), Some(note)).unwrap(), 2);
    for damaged in [&[of(1), of(2)].concat()[..], &[7; 100]] {
        let found = noted(damaged, Some(note));
        assert!(matches!(found, Err(StorageError::DamagedJournal { synced: 3, .. })), "{found:?}");
    }
}

#[test]
fn what_was_cut_off_before_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let mut torn = [of(1), of(2)].concat();
    *torn.last_mut().unwrap() ^= 1;
    for kept in ["7.torn", "7.2.torn", "7.3.torn"] {
        write(directory.path(), 7, &torn);
        assert_eq!(cut_torn_tail(directory.path()).unwrap(), Some(Found { number: 7, batches: 1 }));
        assert_eq!(fs::read(directory.path().join(kept)).unwrap(), torn[of(1).len()..]);
    }
}
