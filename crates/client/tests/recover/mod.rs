//! Logs that are kept: shown, applied as far as nobody else was there first, dropped.

mod again;
mod damage;
mod in_memory;
mod lists;
mod names;

use crate::common::delayed::*;
use crate::common::*;
use soda_client::recover::{self, KeptLog, Outcome};
use soda_client::{Client, KillPriv, NoKernel, OpenMode, RenameHow, SetXattr};
use soda_types::{Errno, FileKind, SetAttr};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A log that is kept because somebody else needed the leases, and that somebody.
struct Kept {
    cell: Cell,
    cache: TempDir,
    other: Arc<Client>,
    log: KeptLog,
}

/// Files `old`, `gone` and `mode` are there; then changes that nobody is told of.
async fn fenced() -> Kept {
    fenced_at(Cell::with_term(Duration::from_secs(1))).await
}

async fn fenced_at(cell: Cell) -> Kept {
    let victim = Victim::start(&cell).await;
    victim
        .run(|client| async move {
            let root = client.root();
            for text in ["old", "gone", "mode"] {
                make(&client, root, text, "before").await;
            }
            client.sync_all().await.unwrap();
            let dir = mkdir(&client, root, "new").await;
            make(&client, dir, "f", "made").await;
            // Opened without O_CREAT, which would go through to the server.
            let old = find(&client, &["old"]).await.unwrap();
            let old = client.open(old, OpenMode::ReadWrite).await.unwrap();
            write(&client, &old, 0, "after!").await;
            client.unlink(root, &name("gone")).await.unwrap();
            let mode = find(&client, &["mode"]).await.unwrap();
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            client.setattr(mode, set).await.unwrap();
            client.setxattr(mode, b"user.a", b"b", SetXattr::Either, KillPriv::Keep).await.unwrap();
            make(&client, root, "first", "moved").await;
            client.rename(root, &name("first"), dir, &name("second"), RenameHow::Plain).await.unwrap();
        })
        .await;
    let cache = victim.kill();
    let other = cell.client().await;
    assert_eq!(contents(&other, &["old"]).await, "before");
    let next = Client::connect(caching(&cell, cell.addr, cache.path()), Box::new(NoKernel)).await.unwrap();
    next.shutdown().await;
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    let log = log.clone();
    Kept { cell, cache, other, log }
}

async fn perm(client: &Arc<Client>, text: &str) -> u16 {
    let fid = find(client, &[text]).await.unwrap();
    client.getattr(fid).await.unwrap().value.perm
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_changed_meanwhile_is_applied() {
    let Kept { cell, cache, other, log } = fenced().await;
    assert!(log.why.contains("session has ended"));
    assert_eq!((log.server.clone(), log.bytes), (cell.addr.to_string(), 4 + 6 + 1 + 5));
    let shown = log.show().unwrap();
    let said: Vec<(&str, &str)> =
        shown.iter().map(|record| (record.operation.as_str(), record.path.as_str())).collect();
    assert_eq!(said[0], ("mkdir", "/new"));
    assert_eq!(said[1], ("create", "/new/f"));
    assert_eq!(*said.last().unwrap(), ("rename", "/first"));
    assert_eq!(shown.last().unwrap().detail, "to /new/second");
    // As if this machine had crashed before it could note what was done.
    let again = tempfile::tempdir().unwrap();
    copy_dir(cache.path(), again.path());

    let mut heard = Vec::new();
    let report = log.apply(&other, |done| heard.push(done)).await.unwrap();
    assert_eq!(heard, (1..=report.len()).collect::<Vec<_>>());
    assert!(report.iter().all(|applied| applied.outcome == Outcome::Done), "{report:#?}");
    for (path, text) in [(&["new", "f"][..], "made"), (&["old"], "after!"), (&["new", "second"], "moved")] {
        assert_eq!(contents(&other, path).await, text);
    }
    assert_eq!((find(&other, &["gone"]).await, find(&other, &["first"]).await), (None, None));
    assert_eq!(perm(&other, "mode").await, 0o600);
    let mode = find(&other, &["mode"]).await.unwrap();
    assert_eq!(other.getxattr(mode, b"user.a").await.unwrap(), "b");
    assert_eq!(recover::list(cache.path()).unwrap(), []);

    let [log] = &recover::list(again.path()).unwrap()[..] else { panic!() };
    let report = log.apply(&other, |_| ()).await.unwrap();
    let conflicts: Vec<_> = report.iter().filter(|applied| !applied.outcome.is_done()).collect();
    // What was made anew has other numbers: it cannot be told from what somebody else made.
    assert!(
        conflicts
            .iter()
            .all(|applied| applied.record.path.contains("new") || applied.record.path == "/first")
    );
    assert_eq!(contents(&other, &["new", "f"]).await, "made");
    assert_eq!(contents(&other, &["old"]).await, "after!");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_has_changed_is_reported_and_left_alone() {
    let Kept { cell: _cell, cache, other, log } = fenced().await;
    make(&other, other.root(), "old", "theirs").await;
    make(&other, other.root(), "gone", "theirs").await;
    mkdir(&other, other.root(), "new").await;
    let report = log.apply(&other, |_| ()).await.unwrap();
    // Of what was there before, the log does not know the path.
    let outcome = |path: &str, operation: &str| {
        let found = report
            .iter()
            .find(|applied| applied.record.path.starts_with(path) && applied.record.operation == operation);
        found.unwrap_or_else(|| panic!("{path} {operation} in {report:#?}")).outcome.clone()
    };
    assert!(matches!(outcome("<inode", "write"), Outcome::Conflict(why) if why.contains("changed")));
    assert!(matches!(outcome("/gone", "unlink"), Outcome::Conflict(why) if why.contains("changed")));
    assert!(matches!(outcome("/new", "mkdir"), Outcome::Conflict(why) if why.contains("taken")));
    assert_eq!(outcome("/new/f", "create"), Outcome::LeftOut);
    assert_eq!(outcome("<inode", "setattr"), Outcome::Done);
    assert_eq!(outcome("/first", "create"), Outcome::Done);
    assert_eq!(outcome("/first", "rename"), Outcome::LeftOut);
    assert_eq!(contents(&other, &["old"]).await, "theirs");
    assert_eq!(contents(&other, &["gone"]).await, "theirs");
    assert_eq!(contents(&other, &["first"]).await, "moved");
    assert_eq!(find(&other, &["new", "f"]).await, None);

    // What is left stays until it is dropped.
    let [left] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    let paths: Vec<String> = left.show().unwrap().into_iter().map(|record| record.path).collect();
    assert!(paths.contains(&"/gone".to_owned()) && paths.contains(&"/new/f".to_owned()), "{paths:?}");
    assert!(left.records < log.records);
    left.remove().unwrap();
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_is_a_conflict_and_no_panic() {
    let Kept { cell: _cell, cache: _cache, other, log } = fenced().await;
    for text in ["old", "mode", "gone"] {
        other.unlink(other.root(), &name(text)).await.unwrap();
    }
    let report = log.apply(&other, |_| ()).await.unwrap();
    for applied in &report {
        match applied.record.path.as_str() {
            "/gone" => assert_eq!(applied.outcome, Outcome::Already),
            "/new" | "/new/f" | "/first" | "/new/second" => assert_eq!(applied.outcome, Outcome::Done),
            _ => assert!(!applied.outcome.is_done(), "{applied:?}"),
        }
    }
    assert_eq!(contents(&other, &["new", "f"]).await, "made");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_applied_can_be_later() {
    let Kept { cell: _cell, cache, other, log } = fenced().await;
    make(&other, other.root(), "first", "theirs").await;
    let left =
        log.apply(&other, |_| ()).await.unwrap().into_iter().filter(|applied| !applied.outcome.is_done());
    assert_eq!(left.count(), 3, "made, written, moved into a directory that the log made");
    other.unlink(other.root(), &name("first")).await.unwrap();
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    let report = log.apply(&other, |_| ()).await.unwrap();
    assert!(report.iter().all(|applied| applied.outcome == Outcome::Done), "{report:#?}");
    assert_eq!(contents(&other, &["new", "second"]).await, "moved");
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_gets_no_name_stays_in_the_log() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let victim = Victim::start(&cell).await;
    victim
        .run(|client| async move {
            let (entry, file) =
                client.tmpfile(client.root(), new_node(FileKind::File), OpenMode::ReadWrite).await.unwrap();
            write(&client, &file, 0, "without a name").await;
            let fid = entry.node.unwrap().fid;
            client.link(fid, client.root(), &name("taken")).await.unwrap();
        })
        .await;
    let cache = victim.kill();
    let other = cell.client().await;
    make(&other, other.root(), "taken", "theirs").await;
    let next = Client::connect(caching(&cell, cell.addr, cache.path()), Box::new(NoKernel)).await.unwrap();
    next.shutdown().await;
    for _ in 0..2 {
        let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
        let report = log.apply(&other, |_| ()).await.unwrap();
        let done: Vec<bool> = report.iter().map(|applied| applied.outcome.is_done()).collect();
        assert_eq!(done, [true, true, false], "{report:#?}");
        assert_eq!(contents(&other, &["taken"]).await, "theirs");
    }
    other.unlink(other.root(), &name("taken")).await.unwrap();
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    log.apply(&other, |_| ()).await.unwrap();
    assert_eq!(contents(&other, &["taken"]).await, "without a name");
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

/// A client that is alive loses its session: what it had not told is kept, its programs are told, and it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_fenced_alive_keeps_its_log_and_begins_another() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = proxy::Proxy::before(cell.addr).await;
    let cache = tempfile::tempdir().unwrap();
    let (a, b) = (writer_with(&cell, caching(&cell, proxy.addr, cache.path())).await, cell.client().await);
    let fid = make(&a, a.root(), "f", "before").await;
    a.sync_all().await.unwrap();
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 0, "after!").await;
    proxy.set(proxy::Weather::Cut);
    assert_eq!(contents(&b, &["f"]).await, "before");
    proxy.set(proxy::Weather::Fine);
    wait_until("loss", || async { a.stats().count("kept_logs") > 0 }).await;
    assert_eq!(a.fsync(fid).await.unwrap_err().errno, Errno::Io);
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    assert_eq!(log.show().unwrap().len(), 1);
    // Another log beside it.
    warm_up(&a, cell.addr).await;
    make(&a, a.root(), "g", "later").await;
    assert!(a.session().backlog.records > 0);
    let report = log.apply(&b, |_| ()).await.unwrap();
    assert_eq!(report[0].outcome, Outcome::Done);
    assert_eq!(contents(&a, &["f"]).await, "after!");
    assert_eq!(contents(&b, &["g"]).await, "later");
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}
