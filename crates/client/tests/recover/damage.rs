//! Damaged logs: applied as far as they are sound, and never written.

use super::*;
use crate::replay::files::log_much;
use crate::replay::only_log;
use std::fs;

/// What the log's own files hold.
fn files_of(log: &KeptLog) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(&log.dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

async fn put_aside(cell: &Cell, cache: &TempDir) -> KeptLog {
    let next = Client::connect(caching(cell, cell.addr, cache.path()), Box::new(NoKernel)).await.unwrap();
    next.shutdown().await;
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    assert!(log.why.contains("damaged") && log.damage.is_some(), "{log:?}");
    log.clone()
}

/// Applies it twice more: there is nothing to be done, and nothing is written.
async fn assert_over(cache: &TempDir, other: &Arc<Client>, before: &[(std::path::PathBuf, Vec<u8>)]) {
    for _ in 0..2 {
        let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!("it stays until it is dropped") };
        assert!(log.records == 0 && log.beyond_damage > 0, "{log:?}");
        assert_eq!(log.apply(other, |_| ()).await.unwrap(), []);
        assert!(files_of(log) == before, "as it was found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_before_the_damage_is_applied_once() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let victim = Victim::start(&cell).await;
    victim
        .run(|client| async move {
            let root = client.root();
            make(&client, root, "first", "moved").await;
            client.rename(root, &name("first"), root, &name("renamed"), RenameHow::Plain).await.unwrap();
            make(&client, root, "brief", "x").await;
            client.unlink(root, &name("brief")).await.unwrap();
            make(&client, root, "second", "behind").await;
            make(&client, root, "third", "behind").await;
        })
        .await;
    let cache = victim.kill();
    let file = only_log(cache.path()).join("0000000001.log");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(6).position(|window| window == b"second").unwrap();
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let log = put_aside(&cell, &cache).await;
    let (before, other) = (files_of(&log), cell.client().await);
    let report = log.apply(&other, |_| ()).await.unwrap();
    assert!(report.len() == 6 && report.iter().all(|applied| applied.outcome.is_done()), "{report:#?}");
    assert_eq!(contents(&other, &["renamed"]).await, "moved");
    assert_over(&cache, &other, &before).await;
    for text in ["first", "brief", "second", "third"] {
        assert_eq!(find(&other, &[text]).await, None, "{text}");
    }
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    assert!(log.show().unwrap().iter().any(|record| record.path == "/third"), "to be shown");
    log.remove().unwrap();
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_behind_a_hole_is_never_taken_for_the_continuation() {
    let cell = Cell::with_term(Duration::from_secs(1)).with_deep_leases();
    let (cache, files) = log_much(&cell, "top").await;
    // In the middle of a record: that it has no end is all that there is to see.
    fs::File::options().write(true).open(&files[0]).unwrap().set_len(8 << 20).unwrap();
    let log = put_aside(&cell, &cache).await;
    let (before, other) = (files_of(&log), cell.client().await);
    let report = log.apply(&other, |_| ()).await.unwrap();
    assert!(report.len() > 50 && report.iter().all(|applied| applied.outcome.is_done()), "{report:#?}");
    assert!(find(&other, &["top", "30"]).await.is_some());
    assert_over(&cache, &other, &before).await;
    assert_eq!(find(&other, &["top", "99"]).await, None);
}
