use super::super::{DataDirectory, StoreOptions};
use super::*;
use crate::embedded::sealing::POLL;
use fjall::AbstractTree;
use std::sync::atomic::AtomicBool;

const WRITERS: u64 = 4;
const BATCHES: u64 = 60;
/// One of each tree, two of what shares one.
const TABLES: [Table; 6] =
    [Table::Inode, Table::Dirent, Table::Extent, Table::Reply, Table::Release, Table::Redo];

/// The engine would seal them whenever it likes: nothing is ever written out that this store has not sealed.
#[test]
fn the_engine_seals_nothing_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { memtable: u64::MAX, ..StoreOptions::default() };
    let store = DataDirectory::open(directory.path(), options).unwrap();
    // More than its own limit, and than the one of the store that it would keep.
    for number in 0..70u64 {
        let mut batch = Batch::new();
        batch.put(Table::Extent, number.to_be_bytes().to_vec(), vec![1; 1 << 20]);
        store.meta.commit(batch).unwrap();
    }
    let tree = &store.meta.trees.trees[Trees::index(Table::Extent)];
    // It does so on threads of its own.
    for _ in 0..50 {
        assert!(tree.tree.active_memtable().size() > 70 << 20);
        std::thread::sleep(POLL);
    }
    assert!(store.meta.write_out().unwrap());
    assert!(tree.tree.active_memtable().size() == 0 && tree.disk_space() > 70 << 20);
}

/// As many write as fast as they can.
#[test]
fn a_tree_has_no_second_table_on_its_way_while_many_write() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { memtable: 8 << 10, ..StoreOptions::default() };
    let open = || DataDirectory::open(directory.path(), options.clone()).unwrap();
    let key = |writer: u64, number: u64| (number * WRITERS + writer).to_be_bytes().to_vec();
    let store = open();
    let (done, trees) = (AtomicBool::new(false), &store.meta.trees.trees);
    let sealed = || trees.iter().map(Keyspace::sealed_memtable_count).max().unwrap();
    let most = std::thread::scope(|scope| {
        let write = |writer: u64| {
            for number in 0..BATCHES {
                let mut batch = Batch::new();
                for table in TABLES {
                    batch.put(table, key(writer, number), vec![writer as u8; 4000]);
                }
                store.meta.commit(batch).unwrap();
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        let done = &done;
        let watcher = scope.spawn(move || {
            let mut most = 0;
            while !done.load(Ordering::Acquire) {
                most = most.max(sealed());
                std::thread::yield_now();
            }
            most
        });
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        written.into_iter().for_each(|written| written.unwrap());
        watcher.join().unwrap()
    });
    assert!(most <= 1, "{most} tables of one tree");
    // All are written out, one after the other.
    assert!(store.meta.write_out().unwrap());
    assert!(trees.iter().all(|tree| tree.disk_space() > 0 && tree.tree.active_memtable().size() == 0));
    drop(store);
    let store = open();
    for (writer, number) in (0..WRITERS).flat_map(|writer| (0..BATCHES).map(move |number| (writer, number))) {
        for table in TABLES {
            let found = store.meta.get(table, &key(writer, number)).unwrap().unwrap();
            assert_eq!(found[..], vec![writer as u8; 4000]);
        }
    }
}
