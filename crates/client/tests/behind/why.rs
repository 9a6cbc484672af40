//! What `soda lease why` says of an inode on this machine.

use super::*;
use soda_client::{ChangesView, Locks, LocksView, OWN_LOCKS_MAX, OwnLease, Told, Why};
use soda_protocol::{Lock, LockFamily, LockMode, LockWait};
use soda_types::{LockOwner, Mode, Scope};

fn seen(client: &Client, path: &[&str]) -> ChangesView {
    client.changes_of(&path.iter().map(|text| name(text)).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn why_the_last_change_went_through_is_remembered() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = make(&a, a.root(), "f", "small").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    let last = || seen(&a, &["f"]).last_at_once;
    assert_eq!(last(), None);
    let (how, kill) = (SetXattr::Either, KillPriv::Keep);
    a.setxattr(fid, b"of.no.kind", b"x", how, kill).await.unwrap_err();
    assert_eq!(last(), Some(Why::Kind));
    write(&a, &file, 0, "x".repeat(PAST_THE_LOG)).await;
    assert_eq!(last(), Some(Why::Large));
    wait_until("a change made here", || async {
        write(&a, &file, 0, "small").await;
        last().is_none()
    })
    .await;
    assert_eq!(seen(&a, &["f"]).told, Told::Later);
    contents(&b, &["f"]).await;
    write(&a, &file, 0, "again").await;
    assert!(matches!(last(), Some(Why::NoLease | Why::Recalled)), "{:?}", last());
    assert_eq!(seen(&a, &["nothing"]).told, Told::AtOnce(Why::Unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_that_covers_it_is_named_and_a_hole_is_none() {
    let cell = Cell::deep();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let home = mkdir(&a, a.root(), "home").await;
    make(&a, home, "f", "x").await;
    let lease = || seen(&a, &["home", "f"]).lease;
    a.sync_all().await.unwrap();
    assert_eq!(lease(), Some(OwnLease { scope: Scope::Subtree, mode: Mode::Write }));
    let theirs = find(&b, &["home", "f"]).await.unwrap();
    b.setattr(theirs, SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    let view = seen(&a, &["home", "f"]);
    assert!(!matches!(view.lease, Some(OwnLease { mode: Mode::Write, .. })), "{view:?}");
    assert!(matches!(view.told, Told::AtOnce(_)), "{view:?}");
    let shallow = Cell::start();
    let a = writer(&shallow).await;
    make(&a, a.root(), "f", "x").await;
    assert_eq!(seen(&a, &["f"]).lease, None, "the server does not know it");
    a.sync_all().await.unwrap();
    assert_eq!(seen(&a, &["f"]).lease, Some(OwnLease { scope: Scope::Node, mode: Mode::Write }));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_decides_about_locks_is_said() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let fid = make(&a, a.root(), "f", "x").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    assert_eq!(seen(&a, &["f"]).locks, LocksView::Server);
    let lock = Lock {
        family: LockFamily::Record,
        owner: LockOwner(1),
        pid: 1,
        start: 0,
        end: 9,
        mode: LockMode::Exclusive,
    };
    wait_until("the right to decide", || async {
        a.lock_set(&file, lock, LockWait::No).await.unwrap();
        seen(&a, &["f"]).locks == LocksView::Here
    })
    .await;
    let view = seen(&a, &["f"]);
    assert_eq!((view.own_locks, view.more_own_locks), (vec![lock], 0), "nobody else knows of it");
    for number in 0..OWN_LOCKS_MAX as u64 {
        let start = 100 + 2 * number;
        a.lock_set(&file, Lock { start, end: start, ..lock }, LockWait::No).await.unwrap();
    }
    let view = seen(&a, &["f"]);
    assert_eq!((view.own_locks.len(), view.more_own_locks), (OWN_LOCKS_MAX, 1));
    let asks = ClientConfig { locks: Locks::AtServer, ..cell.client_config() };
    let b = Client::connect(asks, Box::new(NoKernel)).await.unwrap();
    assert_eq!(seen(&b, &["f"]).locks, LocksView::ServerAlways);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_told_is_known_without_the_server() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let a = writer_at(&cell, proxy.addr).await;
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "told").await;
    a.sync_all().await.unwrap();
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 0, "more").await;
    assert!(seen(&a, &["d", "f"]).waiting > 0);
    proxy.set(Weather::Cut);
    wait_until("the end of the lease", || async { a.session().left.is_zero() }).await;
    let view = seen(&a, &["d", "f"]);
    assert!(view.waiting > 0 && view.lease.is_none(), "{view:?}");
}
