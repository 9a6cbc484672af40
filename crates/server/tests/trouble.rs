//! Full disks, damaged data, fenced sessions with work under way: a clear error, and the server goes on.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{Answer, Call, FromHolder, WriteAt};
use soda_server::Server;
use soda_types::{Errno, Fid, InUse};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

// SEMANTICS 16
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_what_takes_space_and_takes_what_frees_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    client.write(file, WriteAt::Offset(0), &vec![1; 1 << 20]).await.unwrap();
    client.ask(Call::Goodbye).await.result.unwrap();
    server.shutdown().await;

    // A reserve that no disk has free is a disk that is full.
    let mut full = config(dir.path());
    full.reserve = 1 << 60;
    let server = Server::start(full).unwrap();
    let client = Client::connect(&server).await;
    assert_eq!(client.create(client.root, "other").await, Err(Errno::NoSpace));
    assert_eq!(client.write(file, WriteAt::Offset(1 << 20), &[1; 1 << 18]).await, Err(Errno::NoSpace));
    assert_eq!(client.read(file, 0, 4).await.unwrap().as_ref(), [1; 4]);
    client.unlink(client.root, "file", InUse::No).await.unwrap();
    assert_eq!(client.lookup(client.root, "file").await, Ok(None));
    client.ask(Call::Goodbye).await.result.unwrap();
    server.shutdown().await;

    let server = start(dir.path());
    let client = Client::connect(&server).await;
    client.create(client.root, "other").await.unwrap();
}

// SEMANTICS 41
#[tokio::test(flavor = "multi_thread")]
async fn damaged_data_is_an_error_and_never_other_data() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let good = client.create(client.root, "good").await.unwrap().fid;
    let bad = client.create(client.root, "bad").await.unwrap().fid;
    client.write(good, WriteAt::Offset(0), &vec![0x11; 1 << 20]).await.unwrap();
    client.write(bad, WriteAt::Offset(0), &vec![0x22; 1 << 20]).await.unwrap();
    client.ask(Call::Goodbye).await.result.unwrap();
    server.shutdown().await;

    assert!(damage(dir.path(), &[0x22; 4096]), "the data is in a file of the data directory");
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let read = Call::Read { fid: bad, offset: 0, len: 1 << 20 };
    let reply = client.ask(read).await;
    assert!(
        matches!(&reply.result, Err(soda_protocol::Failure::Fs(error))
        if error.errno == Errno::Io && error.context.contains("check sum")),
        "{reply:?}"
    );
    // Attributes are not damaged.
    let fetch = Call::Fetch { fid: bad, most: 1 << 20, known: None, holder: FromHolder::Lease };
    assert!(matches!(client.ask(fetch).await.result, Ok(Answer::Node(node)) if node.fid == bad));
    assert_eq!(client.read(good, 0, 1 << 20).await.unwrap().as_ref(), vec![0x11; 1 << 20]);
    client.write(bad, WriteAt::Offset(0), &vec![0x33; 1 << 20]).await.unwrap();
    assert_eq!(client.read(bad, 0, 1 << 20).await.unwrap().as_ref(), vec![0x33; 1 << 20]);
}

/// Flips a bit in the first place below `dir` that looks like `pattern`.
fn damage(dir: &Path, pattern: &[u8]) -> bool {
    for path in files(dir) {
        let mut bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(pattern.len()).position(|window| window == pattern) {
            bytes[at + 100] ^= 1;
            fs::write(&path, bytes).unwrap();
            return true;
        }
    }
    false
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn write(fid: Fid) -> Call {
    Call::Write { fid, at: WriteAt::Offset(0), kill_suid_sgid: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_fenced_session_had_queued_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path()).with_term(Duration::from_secs(1))).unwrap();
    let holder = Client::connect_keeping_recalls(&server).await;
    let held = holder.create(holder.root, "held").await.unwrap().fid;
    let doomed = Client::connect_keeping_recalls(&server).await;
    let wanted = doomed.create(doomed.root, "wanted");
    let (recall, wanted) = tokio::join!(
        async {
            let recall = holder.next_recall().await;
            holder.answer_recall(&recall, InUse::No).await;
            recall
        },
        wanted
    );
    assert_eq!(recall.fid, holder.root);
    let wanted = wanted.unwrap().fid;

    // Its write waits for the holder, who stays alive; then it falls silent, and somebody wants what it holds.
    let op = doomed.next_op();
    let (_, queued) = doomed.connection().send(Some(op), write(held), Bytes::from_static(b"late")).await;
    let recall = holder.next_recall().await;
    let holder = std::sync::Arc::new(holder);
    let alive = tokio::spawn({
        let holder = holder.clone();
        async move {
            loop {
                holder.ask(Call::Renew).await.result.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    let third = Client::connect(&server).await;
    third.write(wanted, WriteAt::Offset(0), b"third").await.unwrap();
    assert!(queued.await.is_err(), "the connection of the fenced session was closed");
    holder.answer_recall(&recall, InUse::No).await;
    assert_eq!(third.read(held, 0, 10).await.unwrap(), "", "the late write was not carried out");
    alive.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path());
    let mut names = 0;
    for round in 0..5 {
        let client = Client::connect(&server).await;
        for index in 0..20 {
            let file = client.create(client.root, &format!("f{round}.{index}")).await.unwrap().fid;
            client.write(file, WriteAt::Offset(0), format!("data {round}.{index}").as_bytes()).await.unwrap();
            names += 1;
        }
        client.ask(Call::Goodbye).await.result.unwrap();
        drop(server);
        server = start(dir.path());
        let client = Client::connect(&server).await;
        let page = client
            .ask(Call::ReadDir { dir: client.root, after: None, limit: 1000, next: Vec::new() })
            .await
            .result;
        let Ok(soda_protocol::Answer::Entries(page, _)) = page else { panic!("{page:?}") };
        assert_eq!(page.entries.len(), names);
        for (name, node) in page.entries {
            let expected = format!("data {}", &name.to_string()[1..]);
            assert_eq!(client.read(node.fid, 0, 100).await.unwrap(), expected);
        }
        client.ask(Call::Goodbye).await.result.unwrap();
    }
}
