//! The data store.

use super::{DataBench, Numbers};
use crate::{CHUNK_ALIGN, CHUNK_MAX, ChunkRef, DataStore, SegmentId, SegmentState, StorageError};
use std::collections::HashSet;

/// The whole suite, but for the full medium.
pub fn data(bench: &dyn DataBench) {
    reads_what_was_appended(bench);
    refuses_what_is_no_chunk(bench);
    detects_corruption(bench);
    restores_what_was_lost(bench);
    survives_a_restart(bench);
    never_uses_a_place_twice(bench);
    releases_space(bench);
    takes_many_chunks_from_many_threads(bench);
}

fn content(number: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers(number);
    (0..len).map(|_| numbers.next() as u8).collect()
}

fn reads_what_was_appended(bench: &dyn DataBench) {
    let bench = bench.fresh();
    let store = bench.store();
    let lengths = [1, 100, 4095, 4096, 4097, 131_072, 1 << 20, CHUNK_MAX];
    let chunks: Vec<ChunkRef> =
        lengths.iter().map(|len| store.append(&content(*len as u64, *len)).unwrap()).collect();
    for (chunk, len) in chunks.iter().zip(lengths) {
        assert_eq!((chunk.len as usize, chunk.offset % CHUNK_ALIGN), (len, 0));
        assert_eq!(store.read(chunk).unwrap(), content(len as u64, len));
    }
    store.sync().unwrap();
    assert!(store.space().unwrap().free <= store.space().unwrap().total);
}

fn refuses_what_is_no_chunk(bench: &dyn DataBench) {
    let bench = bench.fresh();
    let store = bench.store();
    assert!(store.append(&[]).is_err());
    assert!(store.append(&vec![0; CHUNK_MAX + 1]).is_err());
    let chunk = store.append(&[1; 5000]).unwrap();
    let made_up = [
        ChunkRef { segment: SegmentId(1 << 60), ..chunk },
        ChunkRef { offset: u64::MAX - 4095, ..chunk },
        ChunkRef { offset: 1 << 50, ..chunk },
        ChunkRef { offset: 1, ..chunk },
        ChunkRef { len: 0, ..chunk },
        ChunkRef { len: u32::MAX, ..chunk },
        ChunkRef { len: 4999, ..chunk },
        ChunkRef { crc32c: !chunk.crc32c, ..chunk },
    ];
    for bad in made_up {
        assert!(store.read(&bad).is_err(), "{bad:?} was read");
    }
    assert_eq!(store.read(&chunk).unwrap(), [1; 5000][..]);
}

fn detects_corruption(bench: &dyn DataBench) {
    let bench = bench.fresh();
    let store = bench.store();
    let chunk = store.append(&content(1, 10_000)).unwrap();
    let other = store.append(&content(2, 10_000)).unwrap();
    bench.corrupt(&chunk);
    match store.read(&chunk) {
        Err(StorageError::Corrupt { chunk: found, .. }) => assert_eq!(found, chunk, "the error says which"),
        result => panic!("corruption gave {result:?}"),
    }
    assert_eq!(store.read(&other).unwrap(), content(2, 10_000));
}

fn restores_what_was_lost(bench: &dyn DataBench) {
    let mut bench = bench.fresh();
    let store = bench.store();
    let chunks: Vec<ChunkRef> =
        (0..3).map(|number| store.append(&content(number, 10_000)).unwrap()).collect();
    store.sync().unwrap();
    bench.corrupt(&chunks[1]);
    assert!(store.restore(&chunks[1], &content(2, 10_000)).is_err(), "that is other data");
    assert!(store.read(&chunks[1]).is_err());
    store.restore(&chunks[1], &content(1, 10_000)).unwrap();
    // A segment that is gone as a whole, as one is whose name was not durable.
    store.begin_at(SegmentId(1 << 30)).unwrap();
    chunks.iter().for_each(|chunk| store.release(chunk).unwrap());
    assert!(store.segments().unwrap().iter().all(|segment| segment.id != chunks[0].segment));
    for (number, chunk) in chunks.iter().enumerate() {
        store.restore(chunk, &content(number as u64, 10_000)).unwrap();
    }
    store.sync().unwrap();
    drop(store);
    bench.restart();
    let store = bench.store();
    for (number, chunk) in chunks.iter().enumerate() {
        assert_eq!(store.read(chunk).unwrap(), content(number as u64, 10_000));
    }
    let last = store.append(&content(9, 5000)).unwrap();
    assert!(last.segment > chunks[0].segment);
    // In the segment that chunks go to now, or above it, if the newest ones are gone: what comes next is not put there.
    for above in [0, 2] {
        let segment = SegmentId(last.segment.0 + above);
        let chunk = ChunkRef { segment, offset: 0, ..last };
        store.restore(&chunk, &content(9, 5000)).unwrap();
        let next = store.append(&content(10, 5000)).unwrap();
        assert!(next.segment > segment, "{next:?}");
        assert_eq!(store.read(&chunk).unwrap(), content(9, 5000));
    }
}

fn survives_a_restart(bench: &dyn DataBench) {
    let mut bench = bench.fresh();
    let mut chunks = Vec::new();
    for round in 0..4 {
        let store = bench.store();
        for number in 0..10u64 {
            chunks.push((round * 100 + number, store.append(&content(round * 100 + number, 7000)).unwrap()));
        }
        if round % 2 == 0 {
            store.sync().unwrap();
        }
        drop(store);
        bench.restart();
        let store = bench.store();
        for (number, chunk) in &chunks {
            assert_eq!(store.read(chunk).unwrap(), content(*number, 7000));
        }
    }
}

/// Also not after everything was released, and the store was restarted: a release that is repeated must not hit
/// something new.
fn never_uses_a_place_twice(bench: &dyn DataBench) {
    let mut bench = bench.fresh();
    let mut places = HashSet::new();
    for _ in 0..4 {
        let store = bench.store();
        let chunks: Vec<_> = (0..5).map(|number| store.append(&content(number, 5000)).unwrap()).collect();
        for chunk in &chunks {
            assert!(places.insert((chunk.segment, chunk.offset)), "{chunk:?} was used before");
        }
        store.sync().unwrap();
        for chunk in &chunks {
            store.release(chunk).unwrap();
        }
        drop(store);
        bench.restart();
    }
}

fn releases_space(bench: &dyn DataBench) {
    let mut bench = bench.fresh();
    let store = bench.store();
    let chunks: Vec<_> = (0..200).map(|number| store.append(&content(number, 50_000)).unwrap()).collect();
    store.sync().unwrap();
    let stored =
        |store: &dyn DataStore| store.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
    let before = stored(&*store);
    assert!(before >= 200 * 50_000);
    for (number, chunk) in chunks.iter().enumerate() {
        if number % 2 == 0 {
            store.release(chunk).unwrap();
            store.release(chunk).unwrap();
        }
    }
    assert!(stored(&*store) <= before / 2 + (1 << 20), "the space of released chunks is free");
    for (number, chunk) in chunks.iter().enumerate() {
        let result = store.read(chunk);
        match number % 2 {
            0 => assert!(result.is_err(), "released and still there"),
            _ => assert_eq!(result.unwrap(), content(number as u64, 50_000)),
        }
        let ranges = match store.stored_ranges(chunk.segment) {
            Ok(ranges) => ranges,
            Err(_) if number % 2 == 0 => continue,
            Err(error) => panic!("{error}"),
        };
        let covers = |at: u64| ranges.iter().any(|range| range.contains(&at));
        assert_eq!(covers(chunk.offset), number % 2 == 1, "stored ranges of chunk {number}");
    }
    for chunk in &chunks {
        store.release(chunk).unwrap();
    }
    store.release_range(SegmentId(1 << 60), 0..4096).unwrap();
    drop(store);
    bench.restart();
    let store = bench.store();
    let segments = store.segments().unwrap();
    assert!(
        segments.iter().filter(|segment| segment.state == SegmentState::Sealed).count() <= 1,
        "{segments:?}"
    );
    assert_eq!(stored(&*store), 0);
}

fn takes_many_chunks_from_many_threads(bench: &dyn DataBench) {
    let bench = bench.fresh();
    let store = bench.store();
    let chunks: Vec<_> = std::thread::scope(|scope| {
        let append = |thread: u64| {
            let store = &store;
            move || -> Vec<(u64, ChunkRef)> {
                let one = |number| {
                    let number = thread * 1000 + number;
                    let chunk = store.append(&content(number, 100 + number as usize)).unwrap();
                    if number.is_multiple_of(100) {
                        store.sync().unwrap();
                    }
                    assert_eq!(store.read(&chunk).unwrap().len(), 100 + number as usize);
                    (number, chunk)
                };
                (0..500).map(one).collect()
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(append(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut spans: Vec<_> = chunks.iter().map(|(_, chunk)| (chunk.segment, chunk.span())).collect();
    spans.sort_by_key(|(segment, span)| (*segment, span.start));
    for pair in spans.windows(2) {
        assert!(pair[0].0 < pair[1].0 || pair[0].1.end <= pair[1].1.start, "chunks overlap: {pair:?}");
    }
    for (number, chunk) in chunks {
        assert_eq!(store.read(&chunk).unwrap(), content(number, 100 + number as usize));
    }
}

/// A store on a medium that takes less than 64 MiB: it says so, stays whole, and goes on once there is space.
pub fn data_that_is_full(store: &dyn DataStore) {
    let mut chunks = Vec::new();
    let error = loop {
        match store.append(&content(chunks.len() as u64, 1 << 20)) {
            Ok(chunk) => chunks.push(chunk),
            Err(error) => break error,
        }
        assert!(chunks.len() < 64, "it never gets full");
    };
    assert!(matches!(error, StorageError::NoSpace { .. }), "a full medium gave {error}");
    assert!(!chunks.is_empty());
    store.sync().unwrap();
    for (number, chunk) in chunks.iter().enumerate() {
        assert_eq!(store.read(chunk).unwrap(), content(number as u64, 1 << 20));
    }
    for chunk in chunks.drain(..) {
        store.release(&chunk).unwrap();
    }
    let chunk = store.append(&[1; 1 << 20]).unwrap();
    assert_eq!(store.read(&chunk).unwrap().len(), 1 << 20);
}
