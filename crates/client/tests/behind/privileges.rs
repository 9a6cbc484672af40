//! What a change of contents or owner takes away: set-user-id, set-group-id, file capabilities.

use super::*;
use bytes::Bytes;
use soda_client::{Allocate, OpenFile};
use soda_types::XATTR_CAPABILITY;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Work {
    Write,
    Append,
    Allocate,
    Copy,
    Truncate,
    ChangeOwner,
}

const ALL: [Work; 6] =
    [Work::Write, Work::Append, Work::Allocate, Work::Copy, Work::Truncate, Work::ChangeOwner];

async fn armed(client: &Arc<Client>, file: Fid) {
    client.setattr(file, SetAttr { perm: Some(0o6777), ..SetAttr::default() }).await.unwrap();
    client.setxattr(file, XATTR_CAPABILITY, b"all", SetXattr::Either, KillPriv::Keep).await.unwrap();
    assert_eq!(client.getxattr(file, XATTR_CAPABILITY).await.unwrap(), "all");
}

async fn done(client: &Arc<Client>, work: Work, from: &OpenFile, file: &OpenFile, kill: KillPriv) {
    let kill_suid_sgid = kill == KillPriv::Kill;
    let set = |set: SetAttr| client.setattr(file.fid(), SetAttr { kill_suid_sgid, ..set });
    match work {
        Work::Write => {
            let data = Bytes::from_static(b"new");
            client.write(file, WriteAt::Offset(1), data, kill).await.map(drop).unwrap();
        }
        Work::Append => {
            client.write(file, WriteAt::End, Bytes::from_static(b"new"), kill).await.map(drop).unwrap();
        }
        Work::Allocate => client.fallocate(file, 0, 100, Allocate::Extend, kill).await.unwrap(),
        Work::Copy => assert_eq!(client.copy_range((from, 0), (file, 2), 3, kill).await.unwrap(), 3),
        Work::Truncate => drop(set(SetAttr { size: Some(1), ..SetAttr::default() }).await.unwrap()),
        Work::ChangeOwner => drop(set(SetAttr { uid: Some(7), ..SetAttr::default() }).await.unwrap()),
    }
}

/// By its name: others know a file that was made here only when they have asked for that.
async fn seen(client: &Arc<Client>, path: &[&str]) -> (u16, Vec<Vec<u8>>) {
    let file = find(client, path).await.unwrap();
    (client.getattr(file).await.unwrap().value.perm, client.listxattr(file).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn privileges_go_here_and_there_with_what_is_done_here_or_there() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    for (worker, armourer) in [(&a, &a), (&a, &b), (&b, &a), (&b, &b)] {
        for (work, kill) in ALL.into_iter().flat_map(|work| [(work, KillPriv::Kill), (work, KillPriv::Keep)])
        {
            let what = format!("{work:?} {kill:?} by {}", if Arc::ptr_eq(worker, &a) { "a" } else { "b" });
            let dir = mkdir(armourer, armourer.root(), "d").await;
            make(armourer, dir, "from", "from").await;
            let file = make(armourer, dir, "f", "contents").await;
            armed(armourer, file).await;
            let bystander = if Arc::ptr_eq(worker, &a) { &b } else { &a };
            if !Arc::ptr_eq(worker, armourer) {
                // Cached there, to be taken back.
                assert_eq!(
                    seen(bystander, &["d", "f"]).await,
                    (0o6777, vec![XATTR_CAPABILITY.to_vec()]),
                    "{what}"
                );
            }
            let from =
                worker.open(find(worker, &["d", "from"]).await.unwrap(), OpenMode::Read).await.unwrap();
            let open =
                worker.open(find(worker, &["d", "f"]).await.unwrap(), OpenMode::ReadWrite).await.unwrap();
            done(worker, work, &from, &open, kill).await;
            let expected = (if kill == KillPriv::Kill { 0o777 } else { 0o6777 }, Vec::new());
            assert_eq!(seen(worker, &["d", "f"]).await, expected, "{what}");
            assert_eq!(seen(bystander, &["d", "f"]).await, expected, "{what}, seen elsewhere");
            drop((from, open));
            for text in ["from", "f"] {
                armourer.unlink(dir, &name(text)).await.unwrap();
            }
            armourer.rmdir(armourer.root(), &name("d")).await.unwrap();
        }
    }
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn privileges_that_go_with_an_allocation_are_no_reason_to_ask_the_server() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let before = sent(&a);
    let mut files = Vec::new();
    // Without the group's right to execute set-group-id is another thing, and stays.
    for (perm, left) in [(0o6777, 0o777), (0o4755, 0o755), (0o2644, 0o2644)] {
        let text = format!("{perm:o}");
        let file = make(&a, a.root(), &text, "contents").await;
        a.setattr(file, SetAttr { perm: Some(perm), ..SetAttr::default() }).await.unwrap();
        let open = a.open(file, OpenMode::ReadWrite).await.unwrap();
        for how in [Allocate::Extend, Allocate::PunchHole] {
            a.fallocate(&open, 2, 100, how, KillPriv::Kill).await.unwrap();
        }
        files.push((file, text, left));
    }
    assert_eq!(sent(&a), before, "{:?}", a.stats());
    for (file, text, left) in files {
        let mine = a.getattr(file).await.unwrap().value;
        assert_eq!((mine.perm, mine.size), (left, 102), "{text}");
        assert_eq!(find(&b, &[&text]).await, Some(file));
        let theirs = b.getattr(file).await.unwrap().value;
        assert_eq!((theirs.perm, theirs.size, theirs.mtime), (left, 102, mine.mtime), "{text}");
        assert_eq!(&contents(&b, &[&text]).await[..3], "co\0", "{text}");
    }
    assert_eq!(a.stats().count("lost_records"), 0);
}

/// What is set after the last write of a digest stays, however much of it is left out.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_keeps_what_was_set_after_the_last_write() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let before = sent(&a);
    let (kept, dropped) =
        (make(&a, a.root(), "kept", "one").await, make(&a, a.root(), "dropped", "one").await);
    for file in [kept, dropped] {
        armed(&a, file).await;
        let open = a.open(file, OpenMode::ReadWrite).await.unwrap();
        done(&a, Work::Write, &open, &open, KillPriv::Keep).await;
        assert_eq!(a.listxattr(file).await.unwrap(), Vec::<Vec<u8>>::new());
    }
    armed(&a, kept).await;
    assert_eq!(sent(&a), before, "all of it was done here: {:?}", a.stats());
    assert_eq!(seen(&b, &["kept"]).await.1, [XATTR_CAPABILITY.to_vec()]);
    assert_eq!(seen(&b, &["dropped"]).await.1, Vec::<Vec<u8>>::new());
}

/// Who writes to a file without capabilities asks nothing more for it.
#[tokio::test(flavor = "multi_thread")]
async fn without_capabilities_nothing_is_asked() {
    let cell = Cell::start();
    let a = cell.client().await;
    let file = make(&a, a.root(), "f", "x").await;
    a.setxattr(file, b"user.a", b"1", SetXattr::Either, KillPriv::Keep).await.unwrap();
    let list = || seen(&a, &["f"]);
    assert_eq!(list().await.1, [b"user.a"]);
    let asked = a.stats().count("msg_getxattrs");
    let open = a.open(file, OpenMode::ReadWrite).await.unwrap();
    // A copy needs two files.
    for work in ALL.into_iter().filter(|work| *work != Work::Copy) {
        done(&a, work, &open, &open, KillPriv::Keep).await;
        assert_eq!(list().await.1, [b"user.a"], "{work:?}");
    }
    assert_eq!(a.stats().count("msg_getxattrs"), asked, "{:?}", a.stats());
}
