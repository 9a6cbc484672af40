//! What the tests share.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use bytes::Bytes;
use soda_storage::{
    DataDirectory, DataStore, MemoryData, MemoryMeta, MetaRead, MetaStore, StoreOptions, Table,
};
use soda_types::{Creds, Fid, Name, Timestamp};
use soda_volume::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Runs a test on a fresh volume in memory, and on one in a directory.
pub fn for_each_store(test: impl Fn(&Volume)) {
    test(&in_memory());
    let directory = tempfile::tempdir().unwrap();
    test(&embedded(directory.path()));
}

pub fn in_memory() -> Volume {
    Volume::open(Arc::new(MemoryMeta::new()), Arc::new(MemoryData::new()), VolumeConfig::default()).unwrap()
}

pub fn embedded(path: &std::path::Path) -> Volume {
    let directory = DataDirectory::open(path, StoreOptions::default()).unwrap();
    Volume::open(directory.meta.clone(), directory.data.clone(), VolumeConfig::default()).unwrap()
}

/// A store; the directory must live as long.
type Stores = (Arc<dyn MetaStore>, Arc<dyn DataStore>, Option<tempfile::TempDir>);

/// Both kinds of store.
pub fn stores() -> Vec<Stores> {
    let directory = tempfile::tempdir().unwrap();
    let embedded = DataDirectory::open(directory.path(), StoreOptions::default()).unwrap();
    vec![
        (Arc::new(MemoryMeta::new()), Arc::new(MemoryData::new()), None),
        (embedded.meta, embedded.data, Some(directory)),
    ]
}

pub fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// A clock that is different each time.
pub fn now() -> Timestamp {
    static CLOCK: AtomicI64 = AtomicI64::new(1_700_000_000);
    Timestamp::new(CLOCK.fetch_add(1, Ordering::SeqCst), 0)
}

pub fn new_node(kind: NewKind, perm: u16) -> NewNode {
    NewNode { kind, perm, umask: 0o022, creds: Creds { uid: 1000, gid: 100, pid: 1 } }
}

pub fn new_file(perm: u16) -> NewNode {
    new_node(NewKind::File, perm)
}

pub fn create(volume: &Volume, text: &str) -> Fid {
    create_in(volume, volume.root(), text)
}

pub fn create_in(volume: &Volume, parent: Fid, text: &str) -> Fid {
    let mut txn = volume.begin(now());
    let node = txn.create(parent, &name(text), new_file(0o644)).unwrap();
    txn.commit().unwrap();
    node.fid
}

pub fn mkdir(volume: &Volume, parent: Fid, text: &str) -> Fid {
    let mut txn = volume.begin(now());
    let node = txn.create(parent, &name(text), new_node(NewKind::Directory, 0o755)).unwrap();
    txn.commit().unwrap();
    node.fid
}

pub fn write(volume: &Volume, file: Fid, offset: u64, data: &[u8]) -> Written {
    let staged = volume.stage_write(file, Bytes::copy_from_slice(data)).unwrap();
    let mut txn = volume.begin(now());
    let written = txn.write(file, WriteAt::Offset(offset), staged, KillPriv::Keep).unwrap();
    txn.commit().unwrap();
    written
}

pub fn read(volume: &Volume, file: Fid, offset: u64, len: usize) -> Vec<u8> {
    volume.read(file, offset, len).unwrap().to_vec()
}

/// Bytes that tell where they belong.
pub fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// Chunks in the journal that wait for a sync.
pub fn redo_records(meta: &dyn MetaRead) -> usize {
    let mut records = 0;
    let mut count = |_: &[u8], _| {
        records += 1;
        std::ops::ControlFlow::Continue(())
    };
    meta.scan(Table::Redo, &[], &[0xff; 17], &mut count).unwrap();
    records
}
