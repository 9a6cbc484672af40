//! A writer that never stops keeps nobody waiting who waits for what was there before.

use super::*;

/// Files that are made all the time, from the moment at which this is called until the client is gone.
fn never_stops(client: &Arc<Client>, dir: Fid) -> tokio::task::JoinHandle<()> {
    let client = Arc::clone(client);
    tokio::spawn(async move {
        for number in 0.. {
            let new = new_node(FileKind::File);
            if client.create(dir, &name(&format!("more{number}")), new).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_waits_for_what_was_there_and_not_for_a_writer_that_never_stops() {
    let mut cell = Cell::syncing_when_asked();
    let a = writer(&cell).await;
    let (there, beside) = (mkdir(&a, a.root(), "there").await, mkdir(&a, a.root(), "beside").await);
    for number in 0..300 {
        make(&a, there, &number.to_string(), "x").await;
    }
    let writers = [there, beside].map(|dir| never_stops(&a, dir));
    for _ in 0..3 {
        let synced = tokio::time::timeout(Duration::from_secs(60), a.sync_all()).await;
        synced.expect("it waits for what comes after it").unwrap();
    }
    assert!(writers.iter().all(|writer| !writer.is_finished()), "nobody was writing any more");
    writers.iter().for_each(|writer| writer.abort());
    // The last that the medium got: that is what the power cut takes.
    make(&a, a.root(), "through", &"x".repeat(PAST_THE_LOG)).await;
    drop(a);
    cell.power_cut();
    cell.restart();
    let b = cell.client().await;
    for number in 0..300 {
        assert_eq!(contents(&b, &["there", &number.to_string()]).await, "x");
    }
}
