//! Writes of a MiB in a log that somebody else finds: each is there as a whole or not at all.

use super::*;
use soda_client::OpenFile;
use soda_types::FileKind;

const MIB: usize = 1 << 20;

fn block(fill: u8) -> Vec<u8> {
    vec![fill; MIB]
}

async fn file_of(client: &Arc<Client>, parent: Fid, text: &str) -> Arc<OpenFile> {
    let new = new_node(FileKind::File);
    client.create_open(parent, &name(text), new, OpenMode::ReadWrite).await.unwrap().1
}

async fn bytes_of(client: &Arc<Client>, path: &[&str]) -> Option<Vec<u8>> {
    let fid = find(client, path).await?;
    let file = client.open(fid, OpenMode::Read).await.unwrap();
    Some(client.read(&file, 0, MIB as u32).await.unwrap().to_bytes().to_vec())
}

// SEMANTICS 6, 50
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_cut_has_large_writes_as_a_whole_or_not_at_all() {
    let mut small = block(2);
    small[10..15].fill(3);
    let stages = [None, Some(Vec::new()), Some(block(1)), Some(block(2)), Some(small)];
    let cell = Cell::start();
    let mut seen = Vec::new();
    for (behind, share) in (0..).flat_map(|behind| (0..3).map(move |share| (behind, share))) {
        let victim = Victim::that_only_logs(&cell).await;
        let begin = fs::metadata(only_log(victim.cache.path()).join("0000000001.log")).unwrap().len();
        let top = format!("cut {behind} {share}");
        victim
            .run({
                let top = top.clone();
                |client| async move {
                    let dir = mkdir(&client, client.root(), &top).await;
                    let file = file_of(&client, dir, "f").await;
                    write(&client, &file, 0, block(1)).await;
                    write(&client, &file, 0, block(2)).await;
                    write(&client, &file, 10, vec![3; 5]).await;
                }
            })
            .await;
        let cache = victim.kill();
        let file = only_log(cache.path()).join("0000000001.log");
        let bytes = fs::read(&file).unwrap();
        let mut bounds = boundaries(&bytes);
        bounds.retain(|bound| *bound as u64 >= begin);
        // Each boundary, and two places inside of the record before it.
        let Some(last) = bounds.len().checked_sub(behind + 1) else { break };
        let before = last.checked_sub(1).map_or(bounds[last], |before| bounds[before]);
        let length = bounds[last] - (bounds[last] - before) * share / 3;
        fs::write(&file, &bytes[..length]).unwrap();
        let a = next(&cell, cache.path()).await;
        let found = bytes_of(&a, &[&top, "f"]).await;
        let stage = stages.iter().position(|stage| *stage == found);
        seen.push(stage.unwrap_or_else(|| panic!("{top}: half of a write")));
        a.shutdown().await;
    }
    assert!(seen.is_sorted_by(|one, next| one >= next), "{seen:?}");
    seen.dedup();
    assert_eq!(seen, [4, 3, 2, 1, 0]);
}

// SEMANTICS 51
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_large_write_is_there_when_its_session_is_lost() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let victim = Victim::start(&cell).await;
    victim
        .run(|client| async move {
            let file = file_of(&client, client.root(), "f").await;
            write(&client, &file, 0, block(1)).await;
            client.sync_all().await.unwrap();
            write(&client, &file, 0, block(2)).await;
            assert!(client.session().backlog.bytes >= MIB as u64);
        })
        .await;
    let cache = victim.kill();
    let b = cell.client().await;
    assert!(bytes_of(&b, &["f"]).await == Some(block(1)));
    let a = next(&cell, cache.path()).await;
    assert!(bytes_of(&a, &["f"]).await == Some(block(1)));
    let [log] = &kept(cache.path())[..] else { panic!("{:?}", kept(cache.path())) };
    assert_eq!(segments::read(log).unwrap().unwrap().pending.len(), 1);
}

// SEMANTICS 52
#[tokio::test(flavor = "multi_thread")]
async fn a_local_fsync_of_large_writes_waits_for_no_server() {
    const BLOCKS: u8 = 24;
    let cell = Cell::with_term(Duration::from_secs(600));
    let proxy = Proxy::before(cell.addr).await;
    let victim = Victim::with_at(&cell, proxy.addr, Fsync::Local).await;
    let file = victim
        .run(|client| async move {
            let file = file_of(&client, client.root(), "f").await;
            client.sync_all().await.unwrap();
            file
        })
        .await;
    proxy.set(Weather::Silence);
    victim
        .run(move |client| async move {
            let writing = async {
                for number in 0..BLOCKS {
                    write(&client, &file, u64::from(number) << 20, block(number)).await;
                }
                client.fsync(file.fid()).await.unwrap();
            };
            let written = tokio::time::timeout(Duration::from_secs(60), writing).await;
            assert!(written.is_ok(), "it waits for the server");
            assert_eq!(client.stats().count("fsyncs_local"), 1);
        })
        .await;
    let cache = victim.kill();
    proxy.set(Weather::Fine);
    let a = Client::connect(caching(&cell, proxy.addr, cache.path()), Box::new(NoKernel)).await.unwrap();
    let fid = find(&a, &["f"]).await.unwrap();
    let file = a.open(fid, OpenMode::Read).await.unwrap();
    for number in 0..BLOCKS {
        let read = a.read(&file, u64::from(number) << 20, MIB as u32).await.unwrap().to_bytes();
        assert!(read == block(number), "block {number}");
    }
    assert!(kept(cache.path()).is_empty());
}
