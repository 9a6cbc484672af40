//! The server goes on from a backup, after it was started more than once since: what it gives as versions then is far below what
//! clients have seen.

use super::*;
use tempfile::TempDir;

/// Two runs of the server that the backup does not know follow.
fn back_up(cell: &mut Cell) -> TempDir {
    cell.stop();
    let backup = cell.medium();
    cell.restart();
    cell.restart();
    backup
}

/// Returns when changes are made here: the server has said what its run begins with.
async fn works_here(client: &Arc<Client>, text: &str) {
    for number in 0.. {
        let before = client.stats().count("here");
        mkdir(client, client.root(), &format!("{text} {number}")).await;
        if client.stats().count("here") > before {
            return;
        }
        assert!(number < 2000, "{:?}", client.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_the_backup_does_not_know_goes_on() {
    let mut cell = Cell::start();
    let backup = back_up(&mut cell);
    let a = prompt_writer(&cell).await;
    make(&a, a.root(), "lost", "with what came after the backup").await;
    told(&a).await;
    cell.power_cut_since(backup);
    cell.restart();
    wait_until("another session", || async { a.stats().count("sessions_lost") == 1 }).await;
    works_here(&a, "after").await;
    let lost = a.stats().count("lost_records");
    let fid = make(&a, a.root(), "f", "good").await;
    a.fsync(fid).await.unwrap();
    told(&a).await;
    assert_eq!((a.stats().count("digests_refused"), a.stats().count("lost_records")), (0, lost));
    assert_eq!(contents(&cell.client().await, &["f"]).await, "good");
}
