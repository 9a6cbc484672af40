//! Files that lose their last name while somebody opens or closes them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_too_late_to_open_a_removed_file_tells_the_server_nothing() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "x").await;
    a.sync_all().await.unwrap();
    a.unlink(dir, &name("f")).await.unwrap();
    // Its path was walked before the name was removed.
    assert_eq!(a.open(fid, OpenMode::Read).await.unwrap_err().errno, Errno::Stale);
    // The server deletes it, and the lease on it with it.
    a.fsync(dir).await.unwrap();
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}
