//! Both implementations against the suite, and what only the embedded one has.
#![allow(clippy::unwrap_used)]

use soda_storage::conformance::{self, DataBench, DataRestart, MemoryBench, MetaBench, Restart};
use soda_storage::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
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
        matches!(error, StorageError::InUse { .. }) && error.to_string().contains("another server"),
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
fn another_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
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
    // Cut short after FORMAT, before the stores.
    fs::remove_dir_all(directory.path().join("meta")).unwrap();
    fs::remove_dir_all(directory.path().join("data")).unwrap();
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
    assert!(matches!(stores.meta.commit(taking), Err(StorageError::NoSpace { .. })));
    assert_eq!(stores.meta.get(Table::Inode, b"k").unwrap(), None);
    stores.meta.commit(releasing).unwrap();
    assert!(stores.meta.get(Table::Inode, b"k").unwrap().is_some());
    assert!(matches!(stores.data.append(&[1; 5000]), Err(StorageError::NoSpace { .. })));
    assert_eq!(stores.data.space().unwrap().free, 0);
}
