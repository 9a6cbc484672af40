//! How fast it is: prints figures, asserts nothing.
//! `cargo test --release -p soda-client --test main -- --ignored --nocapture --exact pace::pace`

use crate::common::*;
use soda_client::OpenMode;
use std::sync::Arc;
use std::time::Instant;

fn per_op(what: &str, count: u32, mut op: impl FnMut()) {
    let began = Instant::now();
    for _ in 0..count {
        op();
    }
    println!("{what:28} {:>8.0} ns", began.elapsed().as_nanos() as f64 / f64::from(count));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn pace() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let size = 512usize << 20;
    let big = file(&a, "big", "").await;
    let chunk = bytes::Bytes::from(vec![5u8; 1 << 20]);
    let began = Instant::now();
    let mut at = 0;
    while at < size {
        let several = (0..4usize).map(|n| {
            let (client, file, chunk) = (Arc::clone(&a), Arc::clone(&big), chunk.clone());
            tokio::spawn(async move { write(&client, &file, (at + (n << 20)) as u64, chunk).await })
        });
        for one in several.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        at += 4 << 20;
    }
    println!("write                        {:>8.0} MB/s", size as f64 / 1e6 / began.elapsed().as_secs_f64());
    let theirs = open(&b, "big").await;
    for round in ["cold sequential read", "again (cache: 512 MiB)"] {
        let began = Instant::now();
        let mut at = 0u64;
        while at < size as u64 {
            at += b.read(&theirs, at, 128 << 10).await.unwrap().len() as u64;
        }
        println!("{round:28} {:>8.0} MB/s", size as f64 / 1e6 / began.elapsed().as_secs_f64());
    }
    let fid = theirs.fid();
    let f = name("big");
    b.getattr(fid).await.unwrap();
    b.getxattr(fid, b"security.capability").await.unwrap_err();
    per_op("warm getattr", 1_000_000, || drop(at_once(b.getattr(fid))));
    per_op("warm lookup", 1_000_000, || drop(at_once(b.lookup(b.root(), &f))));
    per_op("warm getxattr (absent)", 1_000_000, || drop(at_once(b.getxattr(fid, b"security.capability"))));
    per_op("warm open and close", 1_000_000, || drop(at_once(b.open(fid, OpenMode::Read))));
    b.read(&theirs, 0, 4096).await.unwrap();
    per_op("warm read 4 KiB", 1_000_000, || drop(at_once(b.read(&theirs, 100, 4096))));
    let began = Instant::now();
    let count = 5000u32;
    for at in 0..count {
        a.create(a.root(), &name(&format!("f{at}")), new_node(soda_types::FileKind::File)).await.unwrap();
    }
    println!("create, one after another    {:>8.0} /s", f64::from(count) / began.elapsed().as_secs_f64());
    let began = Instant::now();
    for _ in 0..1000 {
        a.setattr(big.fid(), soda_types::SetAttr { perm: Some(0o600), ..Default::default() }).await.unwrap();
        b.getattr(fid).await.unwrap();
    }
    println!("change here, see there       {:>8.0} us", began.elapsed().as_micros() as f64 / 1000.0);
}
