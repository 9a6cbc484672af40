//! Two clients of one server see one file system, and what nobody else touches is answered without the server.

use crate::common::*;
use soda_client::{Consistency, KillPriv, Names, NamesLock, OpenMode, RenameHow};
use soda_protocol::{IfExists, SetXattr, WriteAt};
use soda_types::{Errno, FileKind, SetAttr};
use std::sync::Arc;
use std::time::Duration;

/// A term so long that its end, or a deadline of several terms, cannot be taken for a busy machine.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn what_one_writes_the_other_reads_at_once() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let mine = file(&a, "f", "one").await;
    let theirs = open(&b, "f").await;
    assert_eq!(read(&b, &theirs).await, "one");
    for round in 0..20u32 {
        let text = format!("round {round}");
        write(&a, &mine, 0, text.clone()).await;
        assert_eq!(read(&a, &mine).await, text);
        assert_eq!(read(&b, &theirs).await, text, "stale");
        let text = format!("reply {round}");
        write(&b, &theirs, 0, text.clone()).await;
        assert_eq!(read(&a, &mine).await, text, "stale");
        assert_eq!(a.getattr(mine.fid()).await.unwrap().value.size, text.len() as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cached_is_ready_at_the_first_poll() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    drop(file(&a, "f", vec![7u8; 300_000]).await);
    let f = open(&b, "f").await;
    b.read(&f, 0, 300_000).await.unwrap();
    b.getxattr(f.fid(), b"user.none").await.unwrap_err();
    assert!(b.lookup(b.root(), &name("absent")).await.unwrap().node.is_none());
    b.read_dir(&b.open_dir(b.root()).await.unwrap(), 0, 100).await.unwrap();
    let before = b.stats().requests();

    let entry = at_once(b.lookup(b.root(), &name("f"))).unwrap();
    assert_eq!(entry.node.unwrap().fid, f.fid());
    assert!(b.answer().remaining(entry.attr) > Duration::from_secs(1));
    assert!(b.answer().remaining(entry.names) > Duration::from_secs(1));
    assert!(at_once(b.lookup(b.root(), &name("absent"))).unwrap().node.is_none());
    assert!(at_once(b.lookup(b.root(), &name("never asked"))).unwrap().node.is_none());
    assert_eq!(at_once(b.getattr(f.fid())).unwrap().value.size, 300_000);
    assert_eq!(at_once(b.read(&f, 100, 200_000)).unwrap().len(), 200_000);
    assert_eq!(at_once(b.read(&f, 299_999, 10)).unwrap().to_bytes(), vec![7u8]);
    assert!(at_once(b.read(&f, 300_000, 10)).unwrap().is_empty());
    assert_eq!(at_once(b.getxattr(f.fid(), b"security.capability")).unwrap_err().errno, Errno::NoData);
    let again = at_once(b.open(f.fid(), OpenMode::Read)).unwrap();
    drop(again);
    let dir = at_once(b.open_dir(b.root())).unwrap();
    assert_eq!(at_once(b.read_dir(&dir, 0, 100)).unwrap().len(), 1);
    assert_eq!(b.stats().requests(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_our_own_is_complete() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let dir = a.create(a.root(), &name("d"), new_node(FileKind::Directory)).await.unwrap().node.unwrap().fid;
    assert!(at_once(a.lookup(dir, &name("x"))).unwrap().node.is_none());
    for child in ["x", "y", "z"] {
        a.create(dir, &name(child), new_node(FileKind::File)).await.unwrap();
    }
    a.unlink(dir, &name("y")).await.unwrap();
    a.rename(dir, &name("z"), dir, &name("w"), RenameHow::Plain).await.unwrap();
    let listed = at_once(a.read_dir(&at_once(a.open_dir(dir)).unwrap(), 0, 10)).unwrap();
    assert_eq!(listed.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>(), vec![name("w"), name("x")]);
    assert!(at_once(a.lookup(dir, &name("y"))).unwrap().node.is_none());
    assert!(at_once(a.lookup(dir, &name("w"))).unwrap().node.is_some());

    // The other machine sees it, changes it, and we see that.
    assert!(b.lookup(dir, &name("w")).await.unwrap().node.is_some());
    b.create(dir, &name("new"), new_node(FileKind::File)).await.unwrap();
    assert!(a.lookup(dir, &name("new")).await.unwrap().node.is_some());
    b.unlink(dir, &name("new")).await.unwrap();
    assert!(a.lookup(dir, &name("new")).await.unwrap().node.is_none());
    assert_eq!(a.read_dir(&a.open_dir(dir).await.unwrap(), 0, 10).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_directory_is_read_in_pages_and_then_kept() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let dir = a.create(a.root(), &name("d"), new_node(FileKind::Directory)).await.unwrap().node.unwrap().fid;
    for at in 0..2500 {
        a.create(dir, &name(&format!("file-{at:05}")), new_node(FileKind::File)).await.unwrap();
    }
    let open = b.open_dir(dir).await.unwrap();
    assert_eq!(b.parent(&open).await.unwrap(), b.root());
    let (mut from, mut seen) = (0, Vec::new());
    loop {
        let some = b.read_dir(&open, from, 700).await.unwrap();
        let Some(last) = some.last() else { break };
        from = last.next;
        seen.extend(some.into_iter().map(|entry| entry.name));
    }
    assert_eq!(seen.len(), 2500);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2500);
    assert!(at_once(b.lookup(dir, &name("absent"))).unwrap().node.is_none());
    assert_eq!(at_once(b.read_dir(&at_once(b.open_dir(dir)).unwrap(), 0, 3000)).unwrap().len(), 2500);
}

// SEMANTICS 11
#[tokio::test(flavor = "multi_thread")]
async fn positions_of_a_listing_keep_their_meaning_when_others_remove_names() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let dir = a.create(a.root(), &name("d"), new_node(FileKind::Directory)).await.unwrap().node.unwrap().fid;
    for at in 0..4000 {
        a.create(dir, &name(&format!("f{at:04}")), new_node(FileKind::File)).await.unwrap();
    }
    let open = b.open_dir(dir).await.unwrap();
    let (mut read, mut from) = (Vec::new(), 0);
    loop {
        let some = b.read_dir(&open, from, 700).await.unwrap();
        let Some(last) = some.last() else { break };
        from = last.next;
        read.extend(some);
    }
    assert_eq!(read.len(), 4000);
    for gone in (0..800).chain(1500..1600) {
        a.unlink(dir, &read[gone].name).await.unwrap();
    }
    a.create(dir, &name("f1700 is new"), new_node(FileKind::File)).await.unwrap();
    // Back and forth; the last one of those that are gone, too.
    for at in [1000, 3000, 900, 1499, 1550, 0, 2000] {
        let next = b.read_dir(&open, read[at].next, 1200).await.unwrap();
        let expected = (at + 1..).filter(|at| !(0..800).contains(at) && !(1500..1600).contains(at));
        let expected: Vec<_> = expected.take_while(|at| *at < 4000).take(1200).collect();
        assert_eq!(next.len(), expected.len());
        for (listed, at) in next.iter().zip(expected) {
            assert_eq!((&listed.name, listed.next), (&read[at].name, read[at].next));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_is_told_before_the_other_goes_on() {
    let cell = Cell::start();
    let told = Arc::<Told>::default();
    let a = cell.client_with(Box::new(Hooks(Arc::clone(&told), NamesLock::None))).await;
    let b = cell.client().await;
    drop(file(&b, "f", "one").await);
    let entry = a.lookup(a.root(), &name("f")).await.unwrap();
    let fid = entry.node.unwrap().fid;
    assert!(a.lookup(a.root(), &name("absent")).await.unwrap().node.is_none());
    let f = a.open(fid, OpenMode::Read).await.unwrap();
    assert_eq!(read(&a, &f).await, "one");
    let theirs = open(&b, "f").await;
    write(&b, &theirs, 0, "two").await;
    assert_eq!(*told.attrs.lock().unwrap(), vec![fid]);
    assert_eq!(*told.data.lock().unwrap(), vec![(fid, 0..u64::MAX)]);
    assert_eq!(a.answer().remaining(entry.attr), Duration::ZERO, "handed out before the recall");
    b.create(b.root(), &name("absent"), new_node(FileKind::File)).await.unwrap();
    let names = Names::These(vec![name("absent"), name("f")]);
    assert_eq!(*told.names.lock().unwrap(), vec![(a.root(), names)]);
    // The kernel knows nothing any more: the next recall does not bother it.
    a.getattr(fid).await.unwrap();
    told.attrs.lock().unwrap().clear();
    write(&b, &theirs, 0, "six").await;
    assert_eq!(*told.attrs.lock().unwrap(), vec![fid]);
    write(&b, &theirs, 0, "ten").await;
    assert_eq!(told.attrs.lock().unwrap().len(), 1);
    assert_eq!(read(&a, &f).await, "ten");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rename_moved_in_the_kernel_is_taken_back() {
    let cell = Cell::start();
    let told = Arc::<Told>::default();
    let a = cell.client_with(Box::new(Hooks(Arc::clone(&told), NamesLock::None))).await;
    let b = cell.client().await;
    drop(file(&a, "old", "one").await);
    // The kernel keeps the name, and moves it by itself with the rename.
    assert!(at_once(a.lookup(a.root(), &name("old"))).unwrap().names.until().is_some());
    a.rename(a.root(), &name("old"), a.root(), &name("new"), RenameHow::Plain).await.unwrap();
    told.names.lock().unwrap().clear();
    b.unlink(b.root(), &name("new")).await.unwrap();
    let taken: Vec<_> = told.names.lock().unwrap().iter().map(|(_, names)| names.clone()).collect();
    let has_new = |names: &Names| match names {
        Names::All => true,
        Names::These(these) => these.contains(&name("new")),
    };
    assert!(taken.iter().any(has_new), "{taken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_changes_are_settled_in_the_kernel_before_others_see_them() {
    let cell = Cell::start();
    let told = Arc::<Told>::default();
    let a = cell.client_with(Box::new(Hooks(Arc::clone(&told), NamesLock::None))).await;
    let b = cell.client().await;
    assert!(a.lookup(a.root(), &name("x")).await.unwrap().node.is_none());
    a.create(a.root(), &name("x"), new_node(FileKind::File)).await.unwrap();
    assert!(told.names.lock().unwrap().is_empty());
    assert!(b.lookup(b.root(), &name("x")).await.unwrap().node.is_some());
    assert_eq!(*told.settled.lock().unwrap(), vec![a.root()]);
    assert!(told.names.lock().unwrap().is_empty(), "what the kernel made of it is right, and stays");
    // Only lowered: still answered here.
    assert!(at_once(a.lookup(a.root(), &name("x"))).unwrap().node.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_answered_while_a_recall_is_worked_on() {
    let cell = Cell::with_term(LONG);
    let told = Arc::<Told>::default();
    let a = cell.client_with(Box::new(Hooks(Arc::clone(&told), NamesLock::None))).await;
    let b = cell.client().await;
    drop(file(&b, "f", vec![1u8; 500_000]).await);
    let f = open(&a, "f").await;
    a.read(&f, 0, 1000).await.unwrap();
    a.getattr(f.fid()).await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let (reader, handle, seen) =
        (Arc::clone(&a), Arc::clone(&f), Arc::new(std::sync::Mutex::new(Vec::new())));
    let noted = Arc::clone(&seen);
    *told.during.lock().unwrap() = Some(Box::new(move || {
        // What is cached and what is not: the kernel may hold a lock that this read has to free.
        let (near, far) = (reader.read(&handle, 0, 10), reader.read(&handle, 400_000, 10));
        let lengths = runtime.block_on(async { (near.await.unwrap().len(), far.await.unwrap().len()) });
        noted.lock().unwrap().push(lengths);
    }));
    let theirs = open(&b, "f").await;
    let began = std::time::Instant::now();
    write(&b, &theirs, 0, "changed").await;
    assert!(began.elapsed() < LONG, "TIMED OUT: a circle that only the deadline of the recall ended");
    assert!(!seen.lock().unwrap().is_empty());
    *told.during.lock().unwrap() = None;
    assert_eq!(&a.read(&f, 0, 7).await.unwrap().to_bytes()[..], b"changed");
}

// SEMANTICS 5
#[tokio::test(flavor = "multi_thread")]
async fn attributes_links_and_xattrs_are_one_copy() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "data").await;
    let theirs = open(&b, "f").await;
    a.setattr(f.fid(), SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    assert_eq!(b.getattr(theirs.fid()).await.unwrap().value.perm, 0o600);
    b.setattr(theirs.fid(), SetAttr { size: Some(2), ..SetAttr::default() }).await.unwrap();
    assert_eq!(read(&a, &f).await, "da");
    a.setattr(f.fid(), SetAttr { size: Some(4), ..SetAttr::default() }).await.unwrap();
    assert_eq!(read(&a, &f).await, &b"da\0\0"[..]);
    assert_eq!(read(&b, &theirs).await, &b"da\0\0"[..]);

    b.setxattr(theirs.fid(), b"user.k", b"v", SetXattr::Either, KillPriv::Keep).await.unwrap();
    assert_eq!(a.getxattr(f.fid(), b"user.k").await.unwrap(), "v");
    assert_eq!(at_once(a.listxattr(f.fid())).unwrap(), vec![b"user.k".to_vec()]);
    a.setxattr(f.fid(), b"user.k", b"w", SetXattr::Replace, KillPriv::Keep).await.unwrap();
    assert_eq!(at_once(a.getxattr(f.fid(), b"user.k")).unwrap(), "w");
    assert_eq!(b.getxattr(f.fid(), b"user.k").await.unwrap(), "w");
    a.removexattr(f.fid(), b"user.k").await.unwrap();
    assert_eq!(b.getxattr(f.fid(), b"user.k").await.unwrap_err().errno, Errno::NoData);

    let entry = b.link(theirs.fid(), b.root(), &name("g")).await.unwrap();
    assert_eq!(entry.node.unwrap().attr.nlink, 2);
    assert_eq!(a.getattr(f.fid()).await.unwrap().value.nlink, 2);
    let mut symlink = new_node(FileKind::Symlink);
    symlink.target = b"f".to_vec();
    let s = a.create(a.root(), &name("s"), symlink).await.unwrap().node.unwrap();
    assert_eq!(b.readlink(s.fid).await.unwrap(), "f");
    assert_eq!(at_once(b.readlink(s.fid)).unwrap(), "f");
}

// SEMANTICS 10
#[tokio::test(flavor = "multi_thread")]
async fn an_unlinked_file_stays_while_it_is_open_anywhere() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    drop(file(&a, "f", "still here").await);
    let mine = open(&a, "f").await;
    let theirs = open(&b, "f").await;
    a.unlink(a.root(), &name("f")).await.unwrap();
    assert!(b.lookup(b.root(), &name("f")).await.unwrap().node.is_none());
    assert_eq!(read(&b, &theirs).await, "still here");
    drop(theirs);
    assert_eq!(read(&a, &mine).await, "still here");
    let fid = mine.fid();
    drop(mine);
    wait_until("deletion by the last user", || async { b.getattr(fid).await.is_err() }).await;

    let (_, temporary) = a.tmpfile(a.root(), new_node(FileKind::File), OpenMode::ReadWrite).await.unwrap();
    write(&a, &temporary, 0, "no name").await;
    a.link(temporary.fid(), a.root(), &name("named")).await.unwrap();
    assert_eq!(read(&b, &*open(&b, "named").await).await, "no name");
}

// SEMANTICS 13
/// More than the server takes at once.
#[tokio::test(flavor = "multi_thread")]
async fn large_appends_of_two_machines_do_not_overwrite_each_other() {
    const LEN: usize = 3 << 20;
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    file(&a, "log", "").await;
    let append = |client: Arc<soda_client::Client>, letter: u8| async move {
        let f = open(&client, "log").await;
        let mut rest = bytes::Bytes::from(vec![letter; LEN]);
        while !rest.is_empty() {
            let done =
                client.write(&f, WriteAt::End, rest.clone(), soda_client::KillPriv::Keep).await.unwrap();
            assert!(done.len > 0);
            rest = rest.slice(done.len as usize..);
        }
    };
    tokio::join!(append(Arc::clone(&a), b'a'), append(Arc::clone(&b), b'b'));
    let f = open(&a, "log").await;
    let mut there = Vec::new();
    while let part = a.read(&f, there.len() as u64, 1 << 20).await.unwrap().to_bytes()
        && !part.is_empty()
    {
        there.extend_from_slice(&part);
    }
    let of = |letter| there.iter().filter(|byte| **byte == letter).count();
    assert_eq!((of(b'a'), of(b'b'), there.len()), (LEN, LEN, 2 * LEN));
}

// SEMANTICS 13
#[tokio::test(flavor = "multi_thread")]
async fn appends_of_two_machines_are_all_there() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    drop(file(&a, "log", "").await);
    let append = |client: Arc<soda_client::Client>, letter: u8| async move {
        let f = open(&client, "log").await;
        for _ in 0..100 {
            client
                .write_all(&f, WriteAt::End, vec![letter; 10].into(), soda_client::KillPriv::Keep)
                .await
                .unwrap();
        }
    };
    tokio::join!(append(Arc::clone(&a), b'a'), append(Arc::clone(&b), b'b'));
    let all = read(&a, &*open(&a, "log").await).await;
    assert_eq!(all.len(), 2000);
    assert!(all.chunks(10).all(|record| record.iter().all(|byte| *byte == record[0])));
    assert_eq!(read(&b, &*open(&b, "log").await).await, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_create_in_one_directory() {
    let cell = Cell::with_term(LONG);
    let told = [Arc::<Told>::default(), Arc::<Told>::default()];
    let a = cell.client_with(Box::new(Hooks(Arc::clone(&told[0]), NamesLock::None))).await;
    let b = cell.client_with(Box::new(Hooks(Arc::clone(&told[1]), NamesLock::None))).await;
    let create = |client: Arc<soda_client::Client>, prefix: &'static str| async move {
        for at in 0..100 {
            let name = name(&format!("{prefix}{at}"));
            assert!(client.lookup(client.root(), &name).await.unwrap().node.is_none());
            client.create(client.root(), &name, new_node(FileKind::File)).await.unwrap();
            assert!(client.lookup(client.root(), &name).await.unwrap().node.is_some());
        }
    };
    let began = std::time::Instant::now();
    tokio::join!(create(Arc::clone(&a), "a"), create(Arc::clone(&b), "b"));
    assert!(began.elapsed() < 2 * LONG, "TIMED OUT: a circle that only the deadline of the recall ended");
    for client in [&a, &b] {
        let open = client.open_dir(client.root()).await.unwrap();
        assert_eq!(client.read_dir(&open, 0, 1000).await.unwrap().len(), 200);
    }
    let mut exclusive = new_node(FileKind::File);
    exclusive.existing = IfExists::Fail;
    assert_eq!(b.create(b.root(), &name("a5"), exclusive).await.unwrap_err().errno, Errno::Exists);
    assert!(b.lookup(b.root(), &name("a5")).await.unwrap().node.is_some());
}

// SEMANTICS 7
#[tokio::test(flavor = "multi_thread")]
async fn verify_asks_each_time_and_ttl_may_be_stale() {
    let cell = Cell::start();
    let a = cell.client().await;
    let with = |consistency| {
        let mut config = cell.client_config();
        config.consistency = consistency;
        soda_client::Client::connect(config, Box::new(soda_client::NoKernel))
    };
    let verify = with(Consistency::Verify).await.unwrap();
    let ttl = with(Consistency::Ttl(Duration::from_millis(400))).await.unwrap();
    let f = file(&a, "f", "one").await;
    let (v, t) = (open(&verify, "f").await, open(&ttl, "f").await);
    assert_eq!(read(&verify, &v).await, "one");
    assert_eq!(read(&ttl, &t).await, "one");
    let before = verify.stats().requests();
    assert_eq!(read(&verify, &v).await, "one");
    assert_eq!(verify.stats().requests(), before + 1, "the version, not the data");
    write(&a, &f, 0, "two").await;
    assert_eq!(read(&verify, &v).await, "two");
    assert_eq!(read(&ttl, &t).await, "one", "that is what the mode is for");
    tokio::time::sleep(Duration::from_millis(450)).await;
    assert_eq!(read(&ttl, &t).await, "two");
    write(&verify, &v, 0, "six").await;
    assert_eq!(read(&a, &f).await, "six");
    assert!(verify.leases().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_stream_and_random_reads_are_right() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let size = 40usize << 20;
    let pattern: Vec<u8> =
        (0..size as u32 / 4).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let f = file(&a, "big", pattern.clone()).await;
    assert_eq!(a.getattr(f.fid()).await.unwrap().value.size, size as u64);
    let theirs = open(&b, "big").await;
    for at in [7_000_001u64, 39_000_000, 5, 20 << 20] {
        let data = b.read(&theirs, at, 100_000).await.unwrap().to_bytes();
        assert_eq!(data[..], pattern[at as usize..][..100_000]);
    }
    let mut at = 0;
    while at < size {
        let data = b.read(&theirs, at as u64, 131_072).await.unwrap().to_bytes();
        assert!(data[..] == pattern[at..][..data.len()] && !data.is_empty(), "at {at}");
        at += data.len();
    }
    assert!(b.stats().count("readahead_bytes") > 10 << 20);
    write(&a, &f, 30 << 20, vec![9u8; 10]).await;
    assert_eq!(b.read(&theirs, (30 << 20) - 1, 12).await.unwrap().to_bytes()[1..11], [9u8; 10]);
}
