//! The metadata store.

use super::{MetaBench, Numbers};
use crate::{Batch, MetaRead, MetaStore, Table};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The whole suite.
pub fn meta(bench: &dyn MetaBench) {
    reads_what_was_put(bench);
    tables_are_apart(bench);
    scans_are_ordered_and_bounded(bench);
    batches_are_ordered_and_atomic(bench);
    snapshots_stay(bench);
    survives_a_restart(bench);
    agrees_with_a_map(bench);
    readers_never_see_half_a_batch(bench);
    takes_large_values_and_batches(bench);
}

fn put(store: &dyn MetaStore, table: Table, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(table, key.to_vec(), value.to_vec());
    store.commit(batch).unwrap();
}

fn all(store: &dyn MetaRead, table: Table, start: &[u8], end: &[u8]) -> Vec<(Vec<u8>, Bytes)> {
    let mut found = Vec::new();
    let mut visit = |key: &[u8], value: Bytes| {
        found.push((key.to_vec(), value));
        ControlFlow::Continue(())
    };
    store.scan(table, start, end, &mut visit).unwrap();
    found
}

fn reads_what_was_put(bench: &dyn MetaBench) {
    let bench = bench.fresh();
    let store = bench.store();
    assert_eq!(store.get(Table::Meta, b"k").unwrap(), None);
    put(&*store, Table::Meta, b"k", b"1");
    assert_eq!(store.get(Table::Meta, b"k").unwrap().as_deref(), Some(&b"1"[..]));
    put(&*store, Table::Meta, b"k", b"");
    assert_eq!(store.get(Table::Meta, b"k").unwrap().as_deref(), Some(&b""[..]), "an empty value is a value");
    let mut batch = Batch::releasing();
    batch.delete(Table::Meta, &b"k"[..]);
    batch.delete(Table::Meta, &b"never there"[..]);
    store.commit(batch).unwrap();
    assert_eq!(store.get(Table::Meta, b"k").unwrap(), None);
    store.commit(Batch::new()).unwrap();
}

fn tables_are_apart(bench: &dyn MetaBench) {
    let bench = bench.fresh();
    let store = bench.store();
    for table in Table::ALL {
        put(&*store, *table, b"same key", table.name().as_bytes());
    }
    for table in Table::ALL {
        let expected = vec![(b"same key".to_vec(), Bytes::from_static(table.name().as_bytes()))];
        assert_eq!(all(&*store, *table, b"", b"\xff"), expected);
    }
}

fn scans_are_ordered_and_bounded(bench: &dyn MetaBench) {
    let bench = bench.fresh();
    let store = bench.store();
    for key in ["b", "a", "c", "ab", "\u{7f}"] {
        put(&*store, Table::Dirent, key.as_bytes(), b"");
    }
    let keys = |start: &str, end: &str| -> Vec<String> {
        let found = all(&*store, Table::Dirent, start.as_bytes(), end.as_bytes());
        found.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
    };
    assert_eq!(keys("", "~~"), ["a", "ab", "b", "c"]);
    assert_eq!(keys("a", "c"), ["a", "ab", "b"], "the start is in, the end is out");
    assert_eq!(keys("aa", "b"), ["ab"]);
    assert!(keys("b", "b").is_empty() && keys("c", "a").is_empty(), "an empty range is no error");
    let mut visited = 0;
    let mut visit = |_: &[u8], _: Bytes| {
        visited += 1;
        if visited == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    store.scan(Table::Dirent, b"", b"\xff", &mut visit).unwrap();
    assert_eq!(visited, 2, "a scan ends when it is told to");
}

fn batches_are_ordered_and_atomic(bench: &dyn MetaBench) {
    let bench = bench.fresh();
    let store = bench.store();
    let mut batch = Batch::new();
    batch.put(Table::Inode, &b"k"[..], &b"first"[..]);
    batch.delete(Table::Inode, &b"k"[..]);
    batch.put(Table::Inode, &b"k"[..], &b"last"[..]);
    batch.put(Table::Dirent, &b"d"[..], &b"1"[..]);
    batch.delete(Table::Dirent, &b"d"[..]);
    store.commit(batch).unwrap();
    assert_eq!(store.get(Table::Inode, b"k").unwrap().as_deref(), Some(&b"last"[..]));
    assert_eq!(store.get(Table::Dirent, b"d").unwrap(), None);
}

fn snapshots_stay(bench: &dyn MetaBench) {
    let bench = bench.fresh();
    let store = bench.store();
    put(&*store, Table::Inode, b"a", b"old");
    let snapshot = store.snapshot();
    put(&*store, Table::Inode, b"a", b"new");
    put(&*store, Table::Inode, b"b", b"new");
    assert_eq!(snapshot.get(Table::Inode, b"a").unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(all(&*snapshot, Table::Inode, b"", b"z").len(), 1);
    assert_eq!(all(&*store, Table::Inode, b"", b"z").len(), 2);
}

fn survives_a_restart(bench: &dyn MetaBench) {
    let mut bench = bench.fresh();
    for round in 0..3u8 {
        let store = bench.store();
        put(&*store, Table::Session, &[round], &[round; 10]);
        if round == 1 {
            store.sync().unwrap();
        }
        drop(store);
        bench.restart();
        let store = bench.store();
        for known in 0..=round {
            assert_eq!(store.get(Table::Session, &[known]).unwrap().as_deref(), Some(&[known; 10][..]));
        }
    }
}

fn agrees_with_a_map(bench: &dyn MetaBench) {
    let mut bench = bench.fresh();
    let mut numbers = Numbers(7);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for round in 0..3 {
        let store = bench.store();
        for step in 0..400 {
            let mut batch = Batch::new();
            for _ in 0..1 + numbers.below(8) {
                let key = format!("{:03}", numbers.below(300)).into_bytes();
                if numbers.below(3) == 0 {
                    model.remove(&key);
                    batch.delete(Table::Extent, key);
                } else {
                    let value = format!("{round} {step}").into_bytes();
                    model.insert(key.clone(), value.clone());
                    batch.put(Table::Extent, key, value);
                }
            }
            store.commit(batch).unwrap();
        }
        let (low, high) = (b"050".to_vec(), b"250".to_vec());
        let found = all(&*store, Table::Extent, &low, &high);
        let expected: Vec<_> =
            model.range(low..high).map(|(key, value)| (key.clone(), Bytes::from(value.clone()))).collect();
        assert_eq!(found, expected);
        store.tidy().unwrap();
        assert_eq!(all(&*store, Table::Extent, b"", b"~").len(), model.len(), "tidying changes nothing");
        drop(store);
        bench.restart();
    }
}

/// A snapshot taken at any time has all of a batch or nothing.
fn readers_never_see_half_a_batch(bench: &dyn MetaBench) {
    let bench = bench.fresh();
    let store = bench.store();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..500u32 {
                let mut batch = Batch::new();
                batch.put(Table::Inode, &b"one"[..], number.to_be_bytes().to_vec());
                batch.put(Table::Dirent, &b"two"[..], number.to_be_bytes().to_vec());
                store.commit(batch).unwrap();
            }
        });
        while !writer.is_finished() {
            let snapshot = store.snapshot();
            let one = snapshot.get(Table::Inode, b"one").unwrap();
            std::thread::yield_now();
            assert_eq!(one, snapshot.get(Table::Dirent, b"two").unwrap(), "half a batch was seen");
        }
    });
}

fn takes_large_values_and_batches(bench: &dyn MetaBench) {
    let mut bench = bench.fresh();
    let value = |number: u32| vec![number as u8; 100_000];
    let mut batch = Batch::new();
    for number in 0..100u32 {
        batch.put(Table::Extent, number.to_be_bytes().to_vec(), value(number));
    }
    bench.store().commit(batch).unwrap();
    bench.restart();
    let store = bench.store();
    for number in 0..100u32 {
        assert_eq!(
            store.get(Table::Extent, &number.to_be_bytes()).unwrap().as_deref(),
            Some(&value(number)[..])
        );
    }
}
