//! How fast a volume on an embedded store is: `cargo run --release -p soda-volume --example throughput [DIRECTORY]`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use bytes::Bytes;
use soda_storage::{DataDirectory, StoreOptions};
use soda_types::{Creds, Fid, Name, Timestamp};
use soda_volume::{IfOpen, KillPriv, Listing, NewKind, NewNode, Volume, VolumeConfig, WriteAt};
use std::time::Instant;

const FILES: u64 = 100_000;
const BLOCKS: u64 = 1024;
const BLOCK: usize = 1 << 20;

fn main() {
    let temporary = tempfile::tempdir().unwrap();
    let path = std::env::args().nth(1).map_or(temporary.path().to_owned(), Into::into);
    let open = || {
        let directory = DataDirectory::open(&path, StoreOptions::default()).unwrap();
        Volume::open(directory.meta.clone(), directory.data.clone(), VolumeConfig::default()).unwrap()
    };
    let volume = open();
    let directory = make(&volume, volume.root(), "d", NewKind::Directory);
    rate("create, one thread", FILES, || {
        for number in 0..FILES {
            make(&volume, directory, &format!("file-{number}"), NewKind::File);
        }
    });
    rate("create + reply, 1 KiB write", FILES, || {
        for number in 0..FILES {
            let mut txn = volume.begin(Timestamp::new(number as i64, 0));
            let node =
                txn.create(directory, &name(&format!("small-{number}")), new_node(NewKind::File)).unwrap();
            txn.put_extra(soda_storage::Table::Reply, &number.to_be_bytes(), Bytes::from_static(&[7; 100]));
            txn.commit().unwrap();
            write(&volume, node.fid, 0, Bytes::from_static(&[5; 1024]));
        }
    });
    rate("lookup, cached and not", FILES, || {
        for number in 0..FILES {
            volume.lookup(directory, &name(&format!("file-{number}"))).unwrap().unwrap();
        }
    });
    rate("create + sync, 8 threads", 8 * 100, || {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let volume = &volume;
                let home = make(volume, volume.root(), &format!("home-{thread}"), NewKind::Directory);
                scope.spawn(move || {
                    for number in 0..100 {
                        make(volume, home, &format!("{number}"), NewKind::File);
                        volume.sync().unwrap();
                    }
                });
            }
        });
    });
    let big = make(&volume, volume.root(), "big", NewKind::File);
    let block = Bytes::from(vec![3; BLOCK]);
    megabytes("write 1 GiB in 1 MiB writes, then sync", BLOCKS, || {
        for number in 0..BLOCKS {
            write(&volume, big, number * BLOCK as u64, block.clone());
        }
        volume.sync().unwrap();
    });
    let read = |volume: &Volume| {
        for number in 0..BLOCKS {
            assert_eq!(volume.read(big, number * BLOCK as u64, BLOCK).unwrap().len(), BLOCK);
        }
    };
    megabytes("read it", BLOCKS, || read(&volume));
    drop(volume);
    let start = Instant::now();
    let volume = open();
    println!("{:45} {:10.1} ms", "open again", start.elapsed().as_secs_f64() * 1e3);
    megabytes("read it after the restart", BLOCKS, || read(&volume));
    let names = 2 * FILES;
    rate("read the directory, with attributes", names, || {
        let mut after = None;
        let mut seen = 0;
        loop {
            let page = volume.read_dir(directory, after.as_ref(), 1000, Listing::Attributes).unwrap();
            seen += page.len() as u64;
            match page.last() {
                Some(entry) => after = Some(entry.name.clone()),
                None => break,
            }
        }
        assert_eq!(seen, names);
    });
    rate("unlink", FILES, || {
        for number in 0..FILES {
            let mut txn = volume.begin(Timestamp::new(number as i64, 0));
            txn.unlink(directory, &name(&format!("small-{number}")), IfOpen::Delete).unwrap();
            txn.commit().unwrap();
        }
    });
    rate("4 KiB writes in place at random", 20_000, || {
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            write(&volume, big, (random >> 33) % (BLOCKS * 256) * 4096, block.slice(..4096));
        }
    });
    let log = make(&volume, volume.root(), "log", NewKind::File);
    rate("100-byte appends", 100_000, || {
        for _ in 0..100_000 {
            let staged = volume.stage_write(log, block.slice(..100)).unwrap();
            let mut txn = volume.begin(Timestamp::new(0, 0));
            txn.write(log, WriteAt::End, staged, KillPriv::Keep).unwrap();
            txn.commit().unwrap();
        }
    });
    let mut txn = volume.begin(Timestamp::new(0, 0));
    txn.unlink(volume.root(), &name("big"), IfOpen::Delete).unwrap();
    txn.commit().unwrap();
    let start = Instant::now();
    volume.reclaim_all().unwrap();
    println!("{:45} {:10.1} ms", "reclaim", start.elapsed().as_secs_f64() * 1e3);
}

fn rate(what: &str, count: u64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    println!("{what:45} {:10.0} /s", count as f64 / start.elapsed().as_secs_f64());
}

fn megabytes(what: &str, count: u64, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    println!("{what:45} {:10.0} MiB/s", count as f64 / start.elapsed().as_secs_f64());
}

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

fn new_node(kind: NewKind) -> NewNode {
    NewNode { kind, perm: 0o755, umask: 0, creds: Creds::default() }
}

fn make(volume: &Volume, parent: Fid, text: &str, kind: NewKind) -> Fid {
    let mut txn = volume.begin(Timestamp::new(0, 0));
    let node = txn.create(parent, &name(text), new_node(kind)).unwrap();
    txn.commit().unwrap();
    node.fid
}

fn write(volume: &Volume, file: Fid, offset: u64, data: Bytes) {
    let staged = volume.stage_write(file, data).unwrap();
    let mut txn = volume.begin(Timestamp::new(0, 0));
    txn.write(file, WriteAt::Offset(offset), staged, KillPriv::Keep).unwrap();
    txn.commit().unwrap();
}
