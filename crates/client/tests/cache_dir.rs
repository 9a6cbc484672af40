//! The cache directory survives a restart of the client and is only believed if nothing has changed.

use crate::common::*;
use soda_client::handover::Successor;
use soda_client::{Client, ClientConfig, ConnectError, NoKernel};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// More than is read ahead at once.
const LARGE: u64 = 16 * MIB;

fn client_config_with(cell: &Cell, dir: &Path) -> ClientConfig {
    let mut config = cell.client_config();
    config.cache.dir = Some(dir.to_owned());
    config
}

async fn with_dir(cell: &Cell, dir: &Path) -> Result<Arc<Client>, ConnectError> {
    Client::connect(client_config_with(cell, dir), Box::new(NoKernel)).await
}

fn files_in(dir: &Path) -> Vec<std::path::PathBuf> {
    let volumes = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let entries = volumes.flat_map(|volume| std::fs::read_dir(volume).unwrap());
    entries.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("lock")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_comes_from_the_disk() {
    let cell = Cell::start();
    let dir = tempfile::tempdir().unwrap();
    let writer = cell.client().await;
    let kept = file(&writer, "kept", vec![1u8; 200_000]).await;
    let changed = file(&writer, "changed", vec![1u8; 200_000]).await;
    let damaged = file(&writer, "damaged", vec![1u8; 200_000]).await;
    let a = with_dir(&cell, dir.path()).await.unwrap();
    for f in ["kept", "changed", "damaged"] {
        assert_eq!(read(&a, &*open(&a, f).await).await.len(), 200_000);
    }
    // One that is being written ends in `.new`.
    let whole = |path: &std::path::PathBuf| path.extension().is_none_or(|end| end != "new");
    eventually("three files in the cache directory", || {
        files_in(dir.path()).iter().filter(|path| whole(path)).count() == 3
    })
    .await;
    a.shutdown().await;

    write(&writer, &changed, 5, "new").await;
    let hex = format!("{:x}", damaged.fid().ino.0);
    for path in files_in(dir.path()) {
        if path.file_name().unwrap().to_str().unwrap().split('-').nth(1) == Some(hex.as_str()) {
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let b = with_dir(&cell, dir.path()).await.unwrap();
    assert_eq!(read(&b, &*open(&b, "kept").await).await, vec![1u8; 200_000]);
    assert_eq!((b.stats().count("disk_hits"), b.stats().count("msg_read")), (1, 0));
    assert_eq!(&read(&b, &*open(&b, "changed").await).await[4..9], b"\x01new\x01");
    assert_eq!(read(&b, &*open(&b, "damaged").await).await, vec![1u8; 200_000]);
    assert_eq!((b.stats().count("disk_hits"), b.stats().count("msg_read")), (1, 2));
    write(&writer, &kept, 0, "later").await;
    assert_eq!(&read(&b, &*open(&b, "kept").await).await[..6], b"later\x01");
}

/// No two pieces are alike.
fn content() -> Vec<u8> {
    (0..LARGE / 8).flat_map(u64::to_le_bytes).collect()
}

/// Made by somebody else. The term is long: no lease runs out while a busy machine reads.
async fn cell_with_a_large_file() -> Cell {
    let cell = Cell::with_term(Duration::from_secs(120));
    let writer = cell.client().await;
    let large = file(&writer, "large", Vec::new()).await;
    for (at, piece) in (0..LARGE).step_by(MIB as usize).zip(content().chunks(MIB as usize)) {
        write(&writer, &large, at, piece.to_vec()).await;
    }
    writer.shutdown().await;
    cell
}

/// As `cat` reads; what came from the server, bytes.
async fn received_by_reading_in_order(client: &Arc<Client>, step: u64) -> u64 {
    let (large, before) = (open(client, "large").await, client.stats().count("bytes_received"));
    let mut all = Vec::new();
    for at in (0..LARGE).step_by(step as usize) {
        all.extend_from_slice(&client.read(&large, at, step as u32).await.unwrap().to_bytes());
    }
    assert!(all == content(), "not what was written");
    client.stats().count("bytes_received") - before
}

/// Waits until so many bytes are in the directory.
async fn kept(dir: &Path, bytes: u64) {
    let len = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        name.rsplit('-').next().and_then(|len| u64::from_str_radix(len, 16).ok()).unwrap_or(0)
    };
    eventually("the bytes in the directory", || files_in(dir).into_iter().map(len).sum::<u64>() == bytes)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_in_order_comes_from_the_disk() {
    let cell = cell_with_a_large_file().await;
    let dir = tempfile::tempdir().unwrap();
    let a = with_dir(&cell, dir.path()).await.unwrap();
    assert_eq!(received_by_reading_in_order(&a, 128 << 10).await, LARGE);
    kept(dir.path(), LARGE).await;
    a.shutdown().await;

    for step in [128 << 10, MIB, 48 << 10] {
        let b = with_dir(&cell, dir.path()).await.unwrap();
        assert_eq!(received_by_reading_in_order(&b, step).await, 0, "in steps of {step}");
        assert_eq!(b.stats().count("msg_read"), 0);
        assert_eq!(b.stats().count("disk_hits"), files_in(dir.path()).len() as u64);
        b.shutdown().await;
    }

    let damaged = files_in(dir.path()).into_iter().find(|path| path.to_str().unwrap().ends_with("-100000"));
    let damaged = damaged.expect("a piece of 1 MiB");
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let c = with_dir(&cell, dir.path()).await.unwrap();
    assert_eq!(received_by_reading_in_order(&c, 128 << 10).await, MIB);
}

/// The kernel has it then, and the directory's files, too. Who wants it again without these is not led to the disk each time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_in_order_from_the_disk_stays_in_memory_from_the_second_time_on() {
    let cell = cell_with_a_large_file().await;
    let dir = tempfile::tempdir().unwrap();
    let a = with_dir(&cell, dir.path()).await.unwrap();
    assert_eq!(received_by_reading_in_order(&a, MIB).await, LARGE);
    kept(dir.path(), LARGE).await;
    a.shutdown().await;

    let b = with_dir(&cell, dir.path()).await.unwrap();
    let mut hits = Vec::new();
    for _ in 0..3 {
        let before = b.stats().count("disk_hits");
        assert_eq!(received_by_reading_in_order(&b, MIB).await, 0);
        hits.push(b.stats().count("disk_hits") - before);
    }
    assert_eq!(hits[0], files_in(dir.path()).len() as u64);
    // But for the first ones, which were not ahead of the reader, and the last ones, which have not gone yet.
    assert!(hits[1] >= 8 && hits[2] == 0, "{hits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_disk_lacks_comes_from_the_server() {
    let cell = cell_with_a_large_file().await;
    let dir = tempfile::tempdir().unwrap();
    let a = with_dir(&cell, dir.path()).await.unwrap();
    let large = open(&a, "large").await;
    // By jumps, so that nothing is read ahead.
    for at in [0, 4, 8, 12, 2, 6, 10, 14] {
        a.read(&large, at * MIB, MIB as u32).await.unwrap();
    }
    drop(large);
    kept(dir.path(), LARGE / 2).await;
    a.shutdown().await;

    let b = with_dir(&cell, dir.path()).await.unwrap();
    assert_eq!(received_by_reading_in_order(&b, 128 << 10).await, LARGE / 2);
    assert!(b.stats().count("disk_hits") >= 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_made_is_said_so() {
    let cell = Cell::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = with_dir(&cell, file.path()).await.unwrap_err();
    assert!(matches!(error, ConnectError::CacheDir { .. }), "{error}");
}

/// Whoever takes it over looks at every file in it, which nobody waits for but the one who takes it over next.
#[tokio::test(flavor = "multi_thread")]
async fn it_passes_from_one_process_to_the_next_at_once() {
    let (cell, dir) = (Cell::start(), tempfile::tempdir().unwrap());
    let writer = cell.client().await;
    drop(file(&writer, "f", vec![1u8; 200_000]).await);
    let mut client = with_dir(&cell, dir.path()).await.unwrap();
    let f = open(&client, "f").await;
    assert_eq!(read(&client, &f).await.len(), 200_000);
    let is_kept = |path: &PathBuf| path.extension().is_none_or(|end| end != "new");
    eventually("the file in the cache directory", || files_in(dir.path()).iter().any(is_kept)).await;
    let place = files_in(dir.path())[0].parent().unwrap().to_owned();
    // Of no use to anybody, so they are removed.
    let junk = |number: u32| place.join(format!("junk {number}"));
    (0..3000).for_each(|number| std::fs::write(junk(number), "").unwrap());
    let mut before = Vec::new();
    for _ in 0..2 {
        let (handed, locks) = client.let_go().await.unwrap();
        assert_eq!((handed.descriptors(), locks.len()), (1, 1), "it is not passed on");
        let config = client_config_with(&cell, dir.path());
        let heir = Successor::connect(config, Box::new(NoKernel), handed, locks).await.unwrap();
        before.push(std::mem::replace(&mut client, heir.begin().await));
        client.kernel_has_forgotten();
    }
    client.cache_is_open().await;
    assert!(!junk(0).exists() && !junk(2999).exists(), "nobody has looked");
    assert_eq!(read(&client, &client.open_handed(f.hand_over())).await, vec![1u8; 200_000]);
    assert_eq!((client.stats().count("disk_hits"), client.stats().count("msg_read")), (1, 0));
    // Without a goodbye, which would end the session.
    before.into_iter().for_each(std::mem::forget);
}
