//! Both implementations against the suite, and what only the embedded one has.
#![allow(clippy::unwrap_used)]

use soda_storage::conformance::{self, DataBench, DataRestart, MemoryBench, MetaBench, Restart};
use soda_storage::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

#[test]
fn memory_meta() {
    conformance::meta(&MemoryBench);
}

#[test]
fn memory_data() {
    conformance::data(&MemoryBench);
    conformance::data_that_is_full(&MemoryData::with_capacity(20 << 20));
}

#[test]
fn embedded_meta() {
    conformance::meta(&EmbeddedBench);
}

#[test]
fn embedded_data() {
    conformance::data(&EmbeddedBench);
}

#[derive(Debug)]
struct EmbeddedBench;

#[derive(Debug)]
struct Embedded {
    directory: TempDir,
    open: Option<DataDirectory>,
}

fn options() -> StoreOptions {
    StoreOptions { segment_len: 1 << 20, ..StoreOptions::default() }
}

impl Embedded {
    fn new() -> Embedded {
        let directory = tempfile::tempdir().unwrap();
        let open = Some(DataDirectory::open(directory.path(), options()).unwrap());
        Embedded { directory, open }
    }

    fn reopen(&mut self) {
        self.open = None;
        self.open = Some(DataDirectory::open(self.directory.path(), options()).unwrap());
    }
}

impl MetaBench for EmbeddedBench {
    fn fresh(&self) -> Box<dyn Restart<dyn MetaStore>> {
        Box::new(Embedded::new())
    }
}

impl DataBench for EmbeddedBench {
    fn fresh(&self) -> Box<dyn DataRestart> {
        Box::new(Embedded::new())
    }
}

impl Restart<dyn MetaStore> for Embedded {
    fn store(&self) -> Arc<dyn MetaStore> {
        self.open.as_ref().unwrap().meta.clone()
    }

    fn restart(&mut self) {
        self.reopen();
    }
}

impl Restart<dyn DataStore> for Embedded {
    fn store(&self) -> Arc<dyn DataStore> {
        self.open.as_ref().unwrap().data.clone()
    }

    fn restart(&mut self) {
        self.reopen();
    }
}

impl DataRestart for Embedded {
    fn corrupt(&self, chunk: &ChunkRef) {
        let path = self.directory.path().join(format!("data/{:016x}.seg", chunk.segment.0));
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, chunk.offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1], chunk.offset).unwrap();
    }
}

fn open(path: &Path) -> StorageResult<DataDirectory> {
    DataDirectory::open(path, StoreOptions::default())
}

#[test]
fn a_second_server_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path()).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(
        matches!(error, StorageError::InUse { .. }) && error.to_string().contains("a running server"),
        "{error}"
    );
    drop(first);
    open(directory.path()).unwrap();
}

#[test]
fn a_directory_that_is_not_ours_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("thesis.tex"), "years of work").unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(matches!(error, StorageError::NotOurs { .. }), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    fs::remove_file(directory.path().join("thesis.tex")).unwrap();
    fs::write(directory.path().join("FORMAT"), "something else's\n").unwrap();
    assert!(matches!(open(directory.path()).unwrap_err(), StorageError::NotOurs { .. }));
    fs::write(directory.path().join("FORMAT"), [0xff, 0xfe]).unwrap();
    assert!(matches!(open(directory.path()).unwrap_err(), StorageError::NotOurs { .. }));
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(open(&file).is_err());
}

#[test]
fn tools_make_no_data_directory() {
    let directory = tempfile::tempdir().unwrap();
    let existing = |path: &Path| DataDirectory::open_existing(path, StoreOptions::default());
    assert!(matches!(existing(directory.path()).unwrap_err(), StorageError::NoDataDirectory { .. }));
    assert!(matches!(
        existing(&directory.path().join("no")).unwrap_err(),
        StorageError::NoDataDirectory { .. }
    ));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    drop(open(directory.path()).unwrap());
    assert!(matches!(existing(directory.path()).unwrap_err(), StorageError::NoDataDirectory { .. }));
    drop(kept(directory.path()));
    existing(directory.path()).unwrap();
}

#[test]
fn another_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(kept(directory.path()));
    fs::write(directory.path().join("FORMAT"), "soda data directory\nversion 999\n").unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(
        matches!(error, StorageError::TooNew { found: 999, .. }) && error.to_string().contains("newer"),
        "{error}"
    );
    fs::write(directory.path().join("FORMAT"), "soda data directory\n").unwrap();
    assert!(matches!(open(directory.path()).unwrap_err(), StorageError::BadFormat { .. }));
}

#[test]
fn an_initialisation_that_was_cut_short_is_done_again() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("LOCK"), "").unwrap();
    fs::write(directory.path().join("FORMAT.new"), "soda da").unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    drop(open(directory.path()).unwrap());
    // Cut short while the engine made its store.
    fs::remove_file(directory.path().join("meta/version")).unwrap();
    drop(open(directory.path()).unwrap());
    fs::remove_dir_all(directory.path().join("meta")).unwrap();
    fs::remove_dir_all(directory.path().join("data")).unwrap();
    let stores = open(directory.path()).unwrap();
    assert_eq!(stores.meta.origin(), Origin::New);
    drop(stores);
    assert_eq!(kept(directory.path()).meta.origin(), Origin::Kept);
}

/// The directory, completed.
fn kept(path: &Path) -> DataDirectory {
    let stores = open(path).unwrap();
    stores.meta.complete().unwrap();
    drop(stores);
    open(path).unwrap()
}

/// Everything below a directory with its size.
fn listing(path: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(listing(&path));
        }
        found.push((path.clone(), if path.is_dir() { 0 } else { path.metadata().unwrap().len() }));
    }
    found.sort();
    found
}

#[test]
fn a_directory_that_has_lost_a_store_is_refused_and_left_alone() {
    /// The store, and what happens to it.
    type Loss<'a> = (&'static str, &'a dyn Fn(&Path));
    let remove = |path: &Path| fs::remove_dir_all(path).unwrap();
    let empty = |path: &Path| {
        fs::remove_dir_all(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    let losses: [Loss<'_>; 8] = [
        ("meta", &remove),
        ("meta", &empty),
        ("meta", &|path| fs::remove_file(path.join("version")).unwrap()),
        ("meta", &|path| fs::remove_file(path.join("0.jnl")).unwrap()),
        ("meta", &|path| fs::remove_dir_all(path.join("keyspaces")).unwrap()),
        ("meta", &|path| empty(&path.join("keyspaces"))),
        ("data", &remove),
        ("data", &empty),
    ];
    for (number, (store, lose)) in losses.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let stores = kept(directory.path());
        let chunk = stores.data.append(&[1; 5000]).unwrap();
        stores.data.sync().unwrap();
        drop(stores);
        lose(&directory.path().join(store));
        let before = listing(directory.path());
        for _ in 0..2 {
            let error = open(directory.path()).unwrap_err();
            let right = match &error {
                StorageError::NoMetadata { .. } | StorageError::DamagedMetadata { .. } => store == "meta",
                StorageError::NoData { .. } => store == "data",
                _ => false,
            };
            assert!(right && error.to_string().contains("from a copy"), "{number}: {error}");
            let existing = DataDirectory::open_existing(directory.path(), StoreOptions::default());
            assert_eq!(existing.unwrap_err().to_string(), error.to_string());
        }
        if number < 4 || store == "data" {
            assert_eq!(listing(directory.path()), before, "{number}");
        }
        if store == "meta" {
            let segment = directory.path().join(format!("data/{:016x}.seg", chunk.segment.0));
            assert!(fs::read(segment).unwrap().starts_with(&[1; 5000]), "{number}");
        }
    }
}

#[test]
fn a_damaged_format_is_told_from_what_is_not_ours() {
    let directory = tempfile::tempdir().unwrap();
    drop(kept(directory.path()));
    let format = directory.path().join("FORMAT");
    let good = fs::read(&format).unwrap();
    let check = |content: Option<&[u8]>| {
        match content {
            Some(content) => fs::write(&format, content).unwrap(),
            None => fs::remove_file(&format).unwrap(),
        }
        let existing = DataDirectory::open_existing(directory.path(), StoreOptions::default());
        for error in [open(directory.path()).unwrap_err(), existing.unwrap_err()] {
            let text = error.to_string();
            assert!(matches!(error, StorageError::BadFormat { .. }), "{text}");
            assert!(text.contains("FORMAT is damaged") && !text.contains("empty"), "{text}");
        }
    };
    check(Some(b""));
    check(Some(b"something else's\n"));
    check(Some(&[0xff, 0xfe]));
    check(None);
    fs::write(&format, good).unwrap();
    open(directory.path()).unwrap();
}

#[test]
fn what_takes_space_is_refused_at_the_reserve_and_what_gives_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    // A reserve that no medium has: the same as a full one.
    let options = StoreOptions { reserve: 1 << 60, ..StoreOptions::default() };
    let stores = DataDirectory::open(directory.path(), options).unwrap();
    let mut taking = Batch::new();
    taking.put(Table::Inode, &b"k"[..], &b"v"[..]);
    let mut releasing = Batch::releasing();
    releasing.changes = taking.changes.clone();
    let error = stores.meta.commit(taking).unwrap_err();
    assert!(matches!(error, StorageError::NoSpace { .. }));
    // On which file system, and how much it takes.
    let needed = (1_u64 << 60) + 4;
    let says = [directory.path().to_str().unwrap(), &format!("{needed} are needed"), "Make room"];
    assert!(says.iter().all(|text| error.to_string().contains(text)), "{error}");
    assert_eq!(stores.meta.get(Table::Inode, b"k").unwrap(), None);
    stores.meta.commit(releasing).unwrap();
    assert!(stores.meta.get(Table::Inode, b"k").unwrap().is_some());
    assert!(matches!(stores.data.append(&[1; 5000]), Err(StorageError::NoSpace { .. })));
    assert_eq!(stores.data.space().unwrap().free, 0);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Each,
    None,
}

/// The journal of a store that had ten commits of large values, the store closed.
fn ten_commits(directory: &Path, sync: Sync) -> std::path::PathBuf {
    let stores = open(directory).unwrap();
    if sync == Sync::Each {
        stores.meta.complete().unwrap();
    }
    for number in 0..10u8 {
        let mut batch = Batch::new();
        batch.put(Table::Extent, vec![number], vec![number + 1; 20_000]);
        batch.put(Table::Inode, vec![number], vec![number + 1; 100]);
        stores.meta.commit(batch).unwrap();
        if sync == Sync::Each {
            stores.meta.sync().unwrap();
        }
    }
    drop(stores);
    let journals = fs::read_dir(directory.join("meta")).unwrap().map(|entry| entry.unwrap().path());
    journals.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).max().unwrap()
}

/// Whatever pages of the tail a power cut leaves out: the store opens and has a prefix, batches whole.
#[test]
fn a_torn_journal_gives_a_prefix() {
    let directory = tempfile::tempdir().unwrap();
    let journal = ten_commits(directory.path(), Sync::None);
    let content = fs::read(&journal).unwrap();
    let written = content.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut cut = 0;
    for page in (0..written).step_by(5 * 4096).skip(1) {
        let directory = tempfile::tempdir().unwrap();
        let journal = ten_commits(directory.path(), Sync::None);
        let file = fs::File::options().write(true).open(&journal).unwrap();
        file.write_all_at(&vec![0; 4096.min(written - page)], page as u64).unwrap();
        drop(file);
        let stores =
            open(directory.path()).unwrap_or_else(|error| panic!("page {page} of {written}: {error}"));
        let mut ended = None;
        for number in 0..10u8 {
            let extent = stores.meta.get(Table::Extent, &[number]).unwrap();
            let inode = stores.meta.get(Table::Inode, &[number]).unwrap();
            assert_eq!(extent.is_some(), inode.is_some(), "half a batch");
            match extent {
                Some(extent) => assert!(ended.is_none() && extent == vec![number + 1; 20_000], "page {page}"),
                None => ended = ended.or(Some(number)),
            }
        }
        let expected = page / (written / 10);
        let ended = usize::from(ended.expect("a page is missing"));
        assert!(ended.abs_diff(expected) <= 1, "page {page}: {ended} of {expected} batches left");
        cut += journal.parent().unwrap().join(journal.with_extension("torn")).exists() as u32;
        // It goes on from there, and through another restart.
        let mut batch = Batch::new();
        batch.put(Table::Inode, &b"after"[..], &b"1"[..]);
        stores.meta.commit(batch).unwrap();
        stores.meta.sync().unwrap();
        drop(stores);
        assert!(open(directory.path()).unwrap().meta.get(Table::Inode, b"after").unwrap().is_some());
    }
    assert!(cut > 0, "the engine saw every tear by itself: nothing of ours was tested");
}

/// What was synced and cannot be read is not a power cut's work, wherever it is: in a value, or where a batch begins, which looks
/// like the end. Nothing is cut off it before somebody accepts the loss, and then it is kept.
#[test]
fn a_journal_that_rots_is_not_taken_for_a_torn_one() {
    for at in [0, 1, 30, 5000] {
        let directory = tempfile::tempdir().unwrap();
        let journal = ten_commits(directory.path(), Sync::Each);
        let mut content = fs::read(&journal).unwrap();
        let value = content.windows(20_000).position(|bytes| bytes == [7; 20_000]).unwrap();
        // The batch's head, an item's head and the key are before its first value.
        let begin = value - 1 - 21 - 13;
        assert_eq!((content[begin], content[begin + 13]), (1, 2));
        content[begin + at] ^= 0x20;
        fs::write(&journal, &content).unwrap();
        let error = open(directory.path()).unwrap_err();
        let StorageError::DamagedJournal { readable, synced, .. } = error else { panic!("{at}: {error}") };
        assert!(readable + 4 <= synced && readable >= 5, "{at}: {readable} of {synced}");
        assert!(error_text_says_what_to_do(&open(directory.path()).unwrap_err()));
        assert_eq!(fs::read(&journal).unwrap(), content, "nothing was changed");

        let lost = DataDirectory::accept_lost_changes(directory.path()).unwrap();
        assert_eq!(lost, Some(synced - readable));
        let stores = open(directory.path()).unwrap();
        for number in 0..10u8 {
            let value = stores.meta.get(Table::Extent, &[number]).unwrap();
            assert_eq!(value.is_some(), number < 6, "{at}: {number}");
        }
        stores.meta.sync().unwrap();
        drop(stores);
        let kept = journal.with_extension("torn");
        assert!(content.ends_with(&fs::read(kept).unwrap()));
        assert_eq!(DataDirectory::accept_lost_changes(directory.path()).unwrap(), None);
        drop(open(directory.path()).unwrap());
    }
}

fn error_text_says_what_to_do(error: &StorageError) -> bool {
    error.to_string().contains("fsck --repair --discard-lost")
}

/// Commits and syncs from several threads, over several journals: never is more noted than there is.
#[test]
fn what_is_noted_as_synced_is_there() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..2u32 {
        let stores = open(directory.path()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let stores = &stores;
                scope.spawn(move || {
                    for number in 0..100u32 {
                        let key = [round, thread, number].map(u32::to_be_bytes).concat();
                        let mut batch = Batch::new();
                        batch.put(Table::Extent, key, vec![thread as u8; 400_000]);
                        stores.meta.commit(batch).unwrap();
                        if number % 5 == thread {
                            stores.meta.sync().unwrap();
                        }
                    }
                });
            }
        });
        drop(stores);
    }
    let stores = open(directory.path()).unwrap();
    for round in 0..2u32 {
        for (thread, number) in (0..4u32).flat_map(|thread| (0..100u32).map(move |number| (thread, number))) {
            let key = [round, thread, number].map(u32::to_be_bytes).concat();
            assert!(stores.meta.get(Table::Extent, &key).unwrap().is_some(), "{round} {thread} {number}");
        }
    }
}

/// Syncs do not hold up commits, and a journal that is changed over is followed.
#[test]
fn syncs_follow_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let stores = open(directory.path()).unwrap();
    let value = vec![5; 1 << 20];
    for number in 0..200u32 {
        let mut batch = Batch::new();
        batch.put(Table::Extent, number.to_be_bytes().to_vec(), value.clone());
        stores.meta.commit(batch).unwrap();
        stores.meta.sync().unwrap();
    }
    drop(stores);
    let stores = open(directory.path()).unwrap();
    for number in 0..200u32 {
        assert_eq!(stores.meta.get(Table::Extent, &number.to_be_bytes()).unwrap().unwrap().len(), 1 << 20);
    }
}

/// Bytes of journals: what a start reads and does again.
fn journals(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory.join("meta")).unwrap().map(|entry| entry.unwrap());
    let journals = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "jnl"));
    journals.map(|entry| entry.metadata().map_or(0, |meta| meta.len())).sum()
}

fn put(table: Table, number: u64, len: usize) -> Batch {
    let mut batch = Batch::default();
    batch.put(table, number.to_be_bytes().to_vec(), vec![number as u8; len]);
    batch
}

/// A tree that is hardly written to must not keep the journals of all that the others did.
#[test]
fn a_start_after_many_changes_reads_little() {
    let directory = tempfile::tempdir().unwrap();
    let open = || DataDirectory::open(directory.path(), options()).unwrap();
    let store = open();
    store.meta.commit(put(Table::Dirent, 1, 10)).unwrap();
    for number in 0..280 {
        store.meta.commit(put(Table::Extent, number, 1 << 20)).unwrap();
    }
    // Written out in the background.
    let begin = std::time::Instant::now();
    while journals(directory.path()) > 160 << 20 {
        let left = journals(directory.path());
        assert!(begin.elapsed().as_secs() < 60, "TIMED OUT: {left} bytes of journals");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(store);
    let store = open();
    assert!(store.meta.get(Table::Dirent, &1u64.to_be_bytes()).unwrap().is_some());
}

#[test]
fn a_start_after_a_checkpoint_reads_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let open = || DataDirectory::open(directory.path(), options()).unwrap();
    for round in 0..3u64 {
        let store = open();
        for earlier in 0..round {
            let found = store.meta.get(Table::Inode, &1u64.to_be_bytes()).unwrap();
            assert_eq!(found.unwrap().len() as u64, 100 * round, "the newest, not that of {earlier}");
        }
        store.meta.commit(put(Table::Inode, 1, 100 * (round as usize + 1))).unwrap();
        store.meta.commit(put(Table::Reply, round, 10)).unwrap();
        store.meta.checkpoint().unwrap();
        drop(store);
        assert_eq!(journals(directory.path()), 0);
    }
    let store = open();
    store.meta.checkpoint().unwrap();
    store.meta.commit(put(Table::Dirent, 7, 10)).unwrap();
    drop(store);
    assert_ne!(journals(directory.path()), 0, "what came after it is only in the journal");
    assert!(open().meta.get(Table::Dirent, &7u64.to_be_bytes()).unwrap().is_some());
}
