//! A session that passes from one client to another: exactly-once, locks, losses that were not said, and that nothing the old one
//! promised is broken before the kernel has forgotten it.

use crate::common::*;
use soda_client::handover::Successor;
use soda_client::{Client, KillPriv, LockWait, NoKernel, WriteAt};
use soda_protocol::{Lock, LockFamily, LockMode};
use soda_types::{Errno, LockOwner};
use std::sync::Arc;
use std::time::Duration;

/// In which what has to wait has not happened.
const STILL: Duration = Duration::from_millis(300);

async fn successor_of(cell: &Cell, client: &Client) -> Successor {
    let (handed, locks) = client.let_go().await.unwrap();
    assert_eq!(locks.len(), handed.descriptors());
    Successor::connect(cell.client_config(), Box::new(NoKernel), handed, locks).await.unwrap()
}

/// Without a goodbye, which would end the session.
fn forget(client: Arc<Client>) {
    std::mem::forget(client);
}

fn flock(owner: u64) -> Lock {
    let (family, mode) = (LockFamily::Flock, LockMode::Exclusive);
    Lock { family, owner: LockOwner(owner), pid: 1, start: 0, end: u64::MAX, mode }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_asks_for_waits_until_the_kernel_has_forgotten() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let (old, other) = (cell.client().await, cell.client().await);
    let f = file(&old, "f", "old").await;
    assert_eq!(read(&old, &f).await, "old");
    let theirs = open(&other, "f").await;
    let new = successor_of(&cell, &old).await.begin().await;
    let changes = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.write(&theirs, WriteAt::Offset(0), "new".into(), KillPriv::Keep).await.map(|_| ()) }
    });
    tokio::time::sleep(STILL).await;
    assert!(!changes.is_finished(), "a kernel may still have what the old client gave it");
    new.kernel_has_forgotten();
    tokio::time::timeout(Duration::from_secs(60), changes).await.expect("in time").unwrap().unwrap();
    let f = new.open_handed(f.hand_over());
    assert_eq!(read(&new, &f).await, "new");
    forget(old);
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_open_files_and_locks_go_on() {
    let cell = Cell::start();
    let (old, other) = (cell.client().await, cell.client().await);
    let f = file(&old, "f", "one").await;
    old.lock_set(&f, flock(7), LockWait::No).await.unwrap();
    let theirs = open(&other, "f").await;
    let session = old.session().session;
    let new = successor_of(&cell, &old).await.begin().await;
    new.kernel_has_forgotten();
    assert_eq!(new.session().session, session);
    let handed = new.open_handed(f.hand_over());
    for round in 0..20 {
        write(&new, &handed, 3, format!(" {round}")).await;
    }
    assert_eq!(read(&other, &theirs).await, "one 19");
    let busy = other.lock_set(&theirs, flock(8), LockWait::No).await.unwrap_err();
    assert_eq!(busy.errno, Errno::TryAgain);
    // Only who knows of it asks the server to release it.
    new.lock_release_owner(handed.fid(), LockFamily::Flock, LockOwner(7)).await.unwrap();
    other.lock_set(&theirs, flock(8), LockWait::No).await.unwrap();
    // It has no name any more, and is kept for who has it open.
    other.unlink(other.root(), &name("f")).await.unwrap();
    assert_eq!(read(&new, &handed).await, "one 19");
    forget(old);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_let_go_goes_on_after_all() {
    let cell = Cell::start();
    let (old, other) = (cell.client().await, cell.client().await);
    let f = file(&old, "f", "old").await;
    old.lock_set(&f, flock(7), LockWait::No).await.unwrap();
    let session = old.session().session;
    drop(successor_of(&cell, &old).await);
    old.go_on();
    write(&old, &f, 0, "own").await;
    let theirs = open(&other, "f").await;
    assert_eq!(read(&other, &theirs).await, "own");
    let busy = other.lock_set(&theirs, flock(8), LockWait::No).await.unwrap_err();
    assert_eq!((busy.errno, old.session().session), (Errno::TryAgain, session));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_ended_is_not_taken_over() {
    let cell = Cell::start();
    let old = cell.client().await;
    let (handed, locks) = old.let_go().await.unwrap();
    old.go_on();
    // When it is back.
    old.fsync(old.root()).await.unwrap();
    old.shutdown().await;
    let refused = Successor::connect(cell.client_config(), Box::new(NoKernel), handed, locks).await;
    assert!(refused.unwrap_err().to_string().contains("the session has ended"));
}
