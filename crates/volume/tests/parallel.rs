//! Many threads at once, within the contract: no two on the same inode.

use crate::common::*;
use bytes::Bytes;
use soda_storage::Table;
use soda_types::{Errno, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, fsck};
use soda_volume::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn threads_in_their_own_directories_do_not_disturb_each_other() {
    for (meta, data, _directory) in stores() {
        let volume = Volume::open(meta.clone(), data.clone(), VolumeConfig::default()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..6u64)
                .map(|thread| {
                    let home = mkdir(&volume, volume.root(), &format!("home-{thread}"));
                    let volume = &volume;
                    scope.spawn(move || {
                        for number in 0..200u64 {
                            let file = create_in(volume, home, &format!("{number}"));
                            let len = [100, 5000, 150_000][(number % 3) as usize];
                            write(volume, file, 0, &pattern(thread * 1000 + number, len));
                            assert!(read(volume, file, 0, len) == pattern(thread * 1000 + number, len));
                            let mut txn = volume.begin(now());
                            if number % 2 == 0 {
                                txn.unlink(home, &name(&format!("{number}")), IfOpen::Delete).unwrap();
                            }
                            txn.put_extra(
                                Table::Reply,
                                &thread.to_be_bytes(),
                                Bytes::copy_from_slice(&number.to_be_bytes()),
                            );
                            txn.commit().unwrap();
                            if number % 20 == 0 {
                                volume.sync().unwrap();
                            }
                        }
                        home
                    })
                })
                .collect();
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if volume.reclaim_some(16).unwrap() == Progress::Done {
                        std::thread::yield_now();
                    }
                }
            });
            let homes: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            stop.store(true, Ordering::Relaxed);
            for home in homes {
                assert_eq!(volume.read_dir(home, None, 1000, Listing::Names).unwrap().len(), 100);
            }
        });
        assert_eq!(volume.usage().0, 1 + 6 + 600);
        let reply = volume.meta().get(Table::Reply, &3u64.to_be_bytes()).unwrap();
        assert_eq!(reply.as_deref(), Some(&199u64.to_be_bytes()[..]));
        drop(volume);
        let options = FsckOptions {
            repair: Repair::No,
            data: DataCheck::CheckSums,
            now: Timestamp::new(1, 0),
            branch: 0,
        };
        let report = fsck(meta, data, options, &mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

/// a/x moves into b/y while b/y moves into a/x: one of the two has to fail, always.
#[test]
fn two_moves_do_not_tie_a_knot() {
    let volume = in_memory();
    for round in 0..200 {
        let a = mkdir(&volume, volume.root(), &format!("a{round}"));
        let b = mkdir(&volume, volume.root(), &format!("b{round}"));
        let (x, y) = (mkdir(&volume, a, "x"), mkdir(&volume, b, "y"));
        let results: Vec<_> = std::thread::scope(|scope| {
            let volume = &volume;
            let go = |(from, name_from, into): (_, &'static str, _)| {
                scope.spawn(move || {
                    let mut txn = volume.begin(now());
                    let result = txn.rename(
                        from,
                        &name(name_from),
                        into,
                        &name("moved"),
                        Replace::Allowed,
                        IfOpen::Delete,
                    );
                    std::thread::yield_now();
                    txn.commit().unwrap();
                    result.map(drop).map_err(|error| error.errno)
                })
            };
            let threads = [go((a, "x", y)), go((b, "y", x))];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(results.contains(&Ok(())) && results.contains(&Err(Errno::Invalid)), "{results:?}");
    }
}

/// Readers of other things never see a cache fall behind.
#[test]
fn caches_follow_commits() {
    let volume = in_memory();
    let file = create(&volume, "f");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (volume, stop) = (&volume, &stop);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    let mut last = volume.getattr(file).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let attr = volume.getattr(file).unwrap();
                        assert!(attr.version >= last.version, "a cached inode went back");
                        last = attr;
                    }
                })
            })
            .collect();
        for number in 0..2000u64 {
            write(volume, file, 0, &number.to_be_bytes());
            assert_eq!(read(volume, file, 0, 8), number.to_be_bytes());
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
