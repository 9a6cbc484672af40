//! A session that passes from one client to another: exactly-once, locks, losses that were not said, and that nothing the old one
//! promised is broken before the kernel has forgotten it.

mod leases;

use crate::common::relay::{Relay, Way};
use crate::common::*;
use soda_client::handover::Successor;
use soda_client::{
    Client, ClientConfig, KillPriv, LockWait, NamesLock, NoKernel, OpenDir, OpenFile, WriteAt,
};
use soda_protocol::{Call, Lock, LockFamily, LockMode};
use soda_types::{Errno, FsResult, LockOwner};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// In which what has to wait has not happened.
const STILL: Duration = Duration::from_millis(300);
/// Longer than the kernel is waited for where it has nothing from another process.
const LONG_STILL: Duration = Duration::from_secs(3);
/// Longer than anything takes on the slowest machine.
const LIMIT: Duration = Duration::from_secs(60);

async fn successor_of(cell: &Cell, client: &Client) -> Successor {
    let (handed, locks) = client.let_go().await.unwrap();
    assert_eq!(locks.len(), handed.descriptors());
    Successor::connect(cell.client_config(), Box::new(NoKernel), handed, locks).await.unwrap()
}

/// Without a goodbye, which would end the session.
fn forget(client: Arc<Client>) {
    std::mem::forget(client);
}

fn writing(client: &Arc<Client>, file: Arc<OpenFile>) -> JoinHandle<FsResult<()>> {
    let client = Arc::clone(client);
    tokio::spawn(async move {
        client.write(&file, WriteAt::Offset(0), "new".into(), KillPriv::Keep).await.map(|_| ())
    })
}

/// Requests of this kind are kept from the server as long as that is so.
struct Held {
    relay: Relay,
    is_holding: Arc<AtomicBool>,
    have_come: Arc<AtomicBool>,
}

impl Held {
    async fn before(cell: &Cell, which: fn(&Call) -> bool) -> Held {
        let (is_holding, have_come) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (holding, come) = (is_holding.clone(), have_come.clone());
        let look = move |call: &Call| {
            if !which(call) || !holding.load(Ordering::SeqCst) {
                return Way::Passes;
            }
            come.store(true, Ordering::SeqCst);
            Way::Waits
        };
        Held { relay: Relay::before(cell.addr, look).await, is_holding, have_come }
    }

    async fn client(&self, cell: &Cell) -> Arc<Client> {
        let config = ClientConfig { server: self.relay.addr.to_string(), ..cell.client_config() };
        Client::connect(config, Box::new(NoKernel)).await.unwrap()
    }

    async fn until_one_has_come(&self) {
        eventually("nothing is asked for", || self.have_come.load(Ordering::SeqCst)).await;
    }

    fn let_go(&self) {
        self.is_holding.store(false, Ordering::SeqCst);
        self.relay.let_go();
    }
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
    let changes = writing(&other, theirs);
    tokio::time::sleep(STILL).await;
    assert!(!changes.is_finished(), "a kernel may still have what the old client gave it");
    new.kernel_has_forgotten();
    timeout(LIMIT, changes).await.expect("in time").unwrap().unwrap();
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

/// Its end was once taken for all that there is: names that had been listed before were not there any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_listed_after_a_hand_over_is_not_taken_for_the_whole_directory() {
    let cell = Cell::start();
    let old = cell.client().await;
    for text in ["f", "g"] {
        file(&old, text, text).await;
    }
    let open = old.open_dir(old.root()).await.unwrap();
    let listed = old.read_dir(&open, 0, 10).await.unwrap();
    assert_eq!(listed.len(), 2);
    let handed = open.hand_over().await;
    let new = successor_of(&cell, &old).await.begin().await;
    new.kernel_has_forgotten();
    let open = OpenDir::handed(handed);
    assert_eq!(new.read_dir(&open, listed[1].next, 10).await.unwrap(), []);
    for text in ["f", "g"] {
        assert!(new.lookup(new.root(), &name(text)).await.unwrap().node.is_some(), "{text}");
    }
    let open = new.open_dir(new.root()).await.unwrap();
    assert_eq!(new.read_dir(&open, 0, 10).await.unwrap().len(), 2);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_in_between_hears_nothing_before_the_kernel_has_forgotten() {
    let mut cell = Cell::with_term(Duration::from_secs(60));
    let (old, other) = (cell.client().await, cell.client().await);
    let f = file(&old, "f", "old").await;
    assert_eq!(read(&old, &f).await, "old");
    let (theirs, session) = (open(&other, "f").await, old.session().session);
    let heir = successor_of(&cell, &old).await;
    cell.restart();
    let new = heir.begin().await;
    let changes = writing(&other, theirs);
    tokio::time::sleep(LONG_STILL).await;
    assert!(!changes.is_finished(), "what is not reclaimed others get, and a kernel may still have it");
    new.kernel_has_forgotten();
    timeout(LIMIT, changes).await.expect("in time").unwrap().unwrap();
    assert_eq!(read(&new, &new.open_handed(f.hand_over())).await, "new");
    assert_eq!(new.session().session, session);
    forget(old);
}

/// Its pages may have to be written back, which takes its time.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_an_inode_whose_pages_are_left_waits_for_these_and_nobody_else() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let (old, other) = (cell.client().await, cell.client().await);
    for name in ["f", "g"] {
        let mine = file(&old, name, "old").await;
        assert_eq!(read(&old, &mine).await, "old");
    }
    let (f, g) = (open(&other, "f").await, open(&other, "g").await);
    let (told, (release, released)) = (Arc::new(Told::default()), std::sync::mpsc::channel::<()>());
    *told.during.lock().unwrap() = Some(Box::new(move || released.recv().unwrap_or_default()));
    let (handed, locks) = old.let_go().await.unwrap();
    let hooks = Box::new(Hooks(told, NamesLock::None));
    let heir = Successor::connect(cell.client_config(), hooks, handed, locks).await.unwrap();
    let new = heir.begin().await;
    new.kernel_still_has([f.fid()]);
    new.kernel_has_forgotten();
    timeout(LIMIT, writing(&other, g)).await.expect("nothing is left of this one").unwrap().unwrap();
    let changes = writing(&other, f);
    tokio::time::sleep(STILL).await;
    assert!(!changes.is_finished(), "the kernel has its pages still");
    drop(release);
    timeout(LIMIT, changes).await.expect("in time").unwrap().unwrap();
    forget(old);
}

/// What the old client told it has run out by itself then.
#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_forgets_nothing_is_waited_for_as_long_as_the_session_lasted() {
    let mut cell = Cell::start();
    let old = cell.client().await;
    let heir = successor_of(&cell, &old).await;
    cell.restart();
    let new = heir.begin().await;
    timeout(LIMIT, new.getattr(new.root())).await.expect("nobody is served any more").unwrap();
    forget(old);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_on_their_way_hold_up_nothing() {
    const LEN: usize = 1 << 20;
    let cell = Cell::start();
    let other = cell.client().await;
    drop(file(&other, "f", vec![7; LEN]).await);
    let held = Held::before(&cell, |call| matches!(call, Call::Read { .. })).await;
    let old = held.client(&cell).await;
    let f = open(&old, "f").await;
    let reading = tokio::spawn({
        let old = Arc::clone(&old);
        async move { read(&old, &f).await }
    });
    held.until_one_has_come().await;
    timeout(LIMIT, old.let_go()).await.expect("data are waited for").unwrap();
    held.let_go();
    old.go_on();
    assert_eq!(timeout(LIMIT, reading).await.expect("they are asked for again").unwrap(), vec![7; LEN]);
}

/// It leaves the file's locks to this client, when all others have been given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_granted_meanwhile_is_given_back_with_the_others() {
    let cell = Cell::start();
    let held = Held::before(&cell, |call| matches!(call, Call::LockSet { .. })).await;
    let old = held.client(&cell).await;
    let f = file(&old, "f", "one").await;
    let locking = tokio::spawn({
        let old = Arc::clone(&old);
        async move { old.lock_set(&f, flock(7), LockWait::No).await }
    });
    held.until_one_has_come().await;
    // Nobody waits for the answer any more.
    locking.abort();
    let _ = locking.await;
    let letting_go = tokio::spawn({
        let old = Arc::clone(&old);
        async move { old.let_go().await.map(|_| ()) }
    });
    tokio::time::sleep(STILL).await;
    held.let_go();
    timeout(LIMIT, letting_go).await.expect("it comes to no end").unwrap().unwrap();
    assert_eq!(old.session().delegated_locks, 0);
    // Those that nobody uses are given back after a while in any case.
    let rounds = old.stats().count("msg_renew");
    assert!(rounds < 50, "it went round {rounds} times until then");
}
