//! The cache directory survives a restart of the client and is only believed if nothing has changed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use soda_client::{Client, ConnectError, NoKernel};
use std::path::Path;
use std::sync::Arc;

async fn with_dir(cell: &Cell, dir: &Path) -> Result<Arc<Client>, ConnectError> {
    let mut config = cell.client_config();
    config.cache.dir = Some(dir.to_owned());
    Client::connect(config, Box::new(NoKernel)).await
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

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_made_is_said_so() {
    let cell = Cell::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = with_dir(&cell, file.path()).await.unwrap_err();
    assert!(matches!(error, ConnectError::CacheDir { .. }), "{error}");
}
