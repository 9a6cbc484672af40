//! File locks that are taken without the server, where nobody else locks the file; and how they come to be known there.

use crate::common::proxy::{Proxy, Weather};
use crate::common::*;
use soda_client::{
    BootClock, Client, ClientConfig, ClientStanding, Clock, Locks, NoKernel, OpenFile, TcpTransport,
    WriteBehind, WritePolicy,
};
use soda_protocol::{Lock, LockFamily, LockMode, LockWait};
use soda_types::{Errno, Fid, LockOwner, Monotonic};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn lock(owner: u64, start: u64, end: u64) -> Lock {
    let (family, mode) = (LockFamily::Record, LockMode::Exclusive);
    Lock { family, owner: LockOwner(owner), pid: 1, start, end, mode }
}

pub(crate) fn flock(owner: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Flock, mode, ..lock(owner, 0, u64::MAX) }
}

async fn client_behind(proxy: &Proxy, cell: &Cell) -> Arc<Client> {
    let mut config = cell.client_config();
    config.server = proxy.addr.to_string();
    Client::connect(config, Box::new(NoKernel)).await.unwrap()
}

pub(crate) async fn take(client: &Client, file: &OpenFile, lock: Lock) -> Result<(), Errno> {
    client.lock_set(file, lock, LockWait::No).await.map_err(|error| error.errno)
}

/// Has the server let the client decide.
async fn decides(client: &Client, file: &OpenFile) {
    let all = lock(99, 1000, 1000);
    eventually_decides(client, file, all).await;
    client.lock_release(file.fid(), all).await.unwrap();
}

async fn eventually_decides(client: &Client, file: &OpenFile, lock: Lock) {
    wait_until("the server lets the client decide", || async {
        take(client, file, lock).await.unwrap();
        client.session().delegated_locks == 1
    })
    .await;
}

pub(crate) fn lock_messages(client: &Client) -> u64 {
    let stats = client.stats();
    ["msg_lockset", "msg_lockrelease", "msg_locktest", "msg_lockreturn"]
        .map(|name| stats.count(name))
        .iter()
        .sum()
}

pub(crate) async fn in_the_way(client: &Client, fid: Fid, lock: Lock) -> Option<(u64, u64)> {
    client.lock_test(fid, lock).await.unwrap().map(|held| (held.start, held.end))
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_file_that_nobody_else_locks_cost_one_question() {
    let cell = Cell::start();
    let a = cell.client().await;
    let f = file(&a, "f", "x").await;
    let fid = f.fid();
    take(&a, &f, lock(1, 0, 9)).await.unwrap();
    at_once(a.lock_release(fid, lock(1, 0, 9))).unwrap();
    let before = lock_messages(&a);
    for round in 0..100 {
        at_once(a.lock_set(&f, lock(1, round, round + 9), LockWait::Yes)).unwrap();
        at_once(a.lock_set(&f, flock(7, LockMode::Shared), LockWait::No)).unwrap();
        let busy = at_once(a.lock_set(&f, lock(2, round, round), LockWait::No)).unwrap_err();
        assert_eq!(busy.errno, Errno::TryAgain);
        assert_eq!(at_once(a.lock_test(fid, lock(2, 0, u64::MAX))).unwrap(), Some(lock(1, round, round + 9)));
        at_once(a.lock_release(fid, lock(1, round, round + 9))).unwrap();
        at_once(a.lock_release_owner(fid, LockFamily::Flock, LockOwner(7))).unwrap();
    }
    assert_eq!((before, lock_messages(&a)), (1, 1));
    assert_eq!(a.session().locks, 0);
    let invalid = at_once(a.lock_set(&f, Lock { start: 5, end: 4, ..lock(1, 0, 0) }, LockWait::No));
    assert_eq!(invalid.unwrap_err().errno, Errno::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_told_to_asks_the_server_each_time() {
    let cell = Cell::start();
    let mut config = cell.client_config();
    config.locks = Locks::AtServer;
    let a = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    let f = file(&a, "f", "x").await;
    for _ in 0..5 {
        take(&a, &f, lock(1, 0, 9)).await.unwrap();
        a.lock_release(f.fid(), lock(1, 0, 9)).await.unwrap();
    }
    assert_eq!((lock_messages(&a), a.session().delegated_locks), (10, 0));
}

// SEMANTICS 26
#[tokio::test(flavor = "multi_thread")]
async fn another_client_sees_every_lock_that_was_taken_alone() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    let fid = f.fid();
    decides(&a, &f).await;
    at_once(a.lock_set(&f, lock(1, 0, 9), LockWait::No)).unwrap();
    at_once(a.lock_set(&f, lock(1, 20, 29), LockWait::No)).unwrap();
    at_once(a.lock_release(fid, lock(1, 5, 9))).unwrap();
    at_once(a.lock_set(&f, flock(7, LockMode::Shared), LockWait::No)).unwrap();
    assert_eq!(take(&b, &theirs, lock(1, 0, 99)).await, Err(Errno::TryAgain));
    assert_eq!(in_the_way(&b, fid, lock(1, 0, 99)).await, Some((0, 4)));
    assert_eq!(in_the_way(&b, fid, lock(1, 5, 99)).await, Some((20, 29)));
    take(&b, &theirs, lock(1, 5, 9)).await.unwrap();
    take(&b, &theirs, flock(1, LockMode::Shared)).await.unwrap();
    assert_eq!(take(&b, &theirs, flock(1, LockMode::Exclusive)).await, Err(Errno::TryAgain));
    assert_eq!(take(&a, &f, lock(2, 9, 9)).await, Err(Errno::TryAgain), "the server decides again");
    assert_eq!((a.session().delegated_locks, a.stats().count("lock_recalls")), (0, 1));
    a.lock_release_owner(fid, LockFamily::Record, LockOwner(1)).await.unwrap();
    take(&b, &theirs, lock(1, 0, 99)).await.unwrap();
}

/// Each hole in a lock makes two of one.
#[tokio::test(flavor = "multi_thread")]
async fn more_locks_than_can_be_told_at_once_are_left_to_the_server() {
    const HOLES: u64 = 5000;
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    let fid = f.fid();
    take(&a, &f, lock(1, 0, 1 << 40)).await.unwrap();
    at_once(a.lock_set(&f, lock(2, 1 << 50, 1 << 50), LockWait::No)).unwrap();
    for hole in 0..HOLES {
        a.lock_release(fid, lock(1, 2 * hole + 1, 2 * hole + 1)).await.unwrap();
    }
    assert_eq!((a.stats().count("msg_lockreturn"), a.session().delegated_locks), (1, 0));
    assert_eq!(a.session().locks as u64, HOLES + 2);
    assert_eq!(take(&a, &f, lock(3, 1 << 50, 1 << 50)).await, Err(Errno::TryAgain));
    assert_eq!(in_the_way(&b, fid, lock(1, 1, 9)).await, Some((2, 2)));
    assert_eq!(in_the_way(&b, fid, lock(1, (1 << 40) + 1, u64::MAX)).await, Some((1 << 50, 1 << 50)));
    take(&b, &theirs, lock(1, 2 * HOLES - 1, 2 * HOLES - 1)).await.unwrap();
    assert_eq!(a.stats().count("sessions_lost"), 0);
}

/// They were asked for together, when none of them was there.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_more_locks_than_can_be_told_when_it_may_decide_leaves_them_to_the_server() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, &cell).await;
    let f = file(&a, "f", "x").await;
    proxy.set(Weather::RepliesLost);
    let tasks: Vec<_> = (0..4200)
        .map(|at| {
            let (a, f) = (Arc::clone(&a), Arc::clone(&f));
            tokio::spawn(async move { a.lock_set(&f, lock(1, 2 * at, 2 * at), LockWait::No).await })
        })
        .collect();
    eventually("all are asked for", || a.session().waiting >= 4200).await;
    proxy.set(Weather::Cut);
    eventually("cut off", || a.session().standing != ClientStanding::Connected).await;
    proxy.set(Weather::Fine);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    eventually("the server has the right back", || a.session().waiting == 0).await;
    assert_eq!((a.session().delegated_locks, a.stats().count("msg_lockreturn")), (0, 1));
    assert_eq!(a.session().locks, 4200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_client_decides_about_no_locks() {
    let cell = Cell::with_term(Duration::from_millis(300));
    let a = cell.client().await;
    let f = file(&a, "f", "x").await;
    take(&a, &f, lock(1, 0, 9)).await.unwrap();
    a.shutdown().await;
    let waits = a.lock_set(&f, lock(2, 0, 9), LockWait::Yes);
    let refused = tokio::time::timeout(Duration::from_secs(30), waits).await.expect("nobody waits for ever");
    assert_eq!(refused.unwrap_err().errno, Errno::Io);
}

// SEMANTICS 27
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_lock_waits_at_the_server_in_turn() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    decides(&a, &f).await;
    at_once(a.lock_set(&f, lock(1, 0, 9), LockWait::No)).unwrap();
    let waits = |client: &Arc<Client>, file: &Arc<OpenFile>, owner| {
        let (client, file) = (Arc::clone(client), Arc::clone(file));
        tokio::spawn(async move { client.lock_set(&file, lock(owner, 0, 9), LockWait::Yes).await })
    };
    // First of a process here, then of one there.
    let asked = a.stats().count("msg_lockset");
    let first = waits(&a, &f, 2);
    eventually("it is asked for", || a.stats().count("msg_lockset") == asked + 1).await;
    assert_eq!(a.session().delegated_locks, 0);
    // It has been heard of when this is answered.
    assert!(in_the_way(&a, f.fid(), lock(3, 0, 9)).await.is_some());
    let second = waits(&b, &theirs, 3);
    wait_until("both wait", || async { b.stats().count("msg_lockset") == 1 }).await;
    // The one there has been heard of when this is answered.
    assert!(in_the_way(&b, f.fid(), lock(3, 0, 9)).await.is_some());
    assert!(!first.is_finished() && !second.is_finished());
    a.lock_release(f.fid(), lock(1, 0, 9)).await.unwrap();
    first.await.unwrap().unwrap();
    assert!(!second.is_finished());
    a.lock_release(f.fid(), lock(2, 0, 9)).await.unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(in_the_way(&a, f.fid(), lock(1, 0, 9)).await, Some((0, 9)));
}

// SEMANTICS 28
#[tokio::test(flavor = "multi_thread")]
async fn a_circle_through_locks_taken_alone_is_found() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let (f, g) = (file(&a, "f", "x").await, file(&a, "g", "x").await);
    let (their_f, their_g) = (open(&b, "f").await, open(&b, "g").await);
    take(&a, &f, lock(1, 0, 9)).await.unwrap();
    take(&b, &their_g, lock(1, 0, 9)).await.unwrap();
    assert_eq!((a.session().delegated_locks, b.session().delegated_locks), (1, 1));
    let waiting = {
        let (b, their_f) = (Arc::clone(&b), Arc::clone(&their_f));
        tokio::spawn(async move { b.lock_set(&their_f, lock(1, 0, 9), LockWait::Yes).await })
    };
    eventually("the locks are told", || a.session().delegated_locks == 0).await;
    wait_until("the other waits", || async { in_the_way(&b, f.fid(), lock(1, 0, 9)).await.is_some() }).await;
    let circle = a.lock_set(&g, lock(1, 0, 9), LockWait::Yes).await;
    assert_eq!(circle.unwrap_err().errno, Errno::Deadlock);
    a.lock_release(f.fid(), lock(1, 0, 9)).await.unwrap();
    waiting.await.unwrap().unwrap();
}

/// flock(2): who stops waiting for another mode has none.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_change_of_a_flock_leaves_none_behind() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    take(&a, &f, flock(1, LockMode::Shared)).await.unwrap();
    take(&b, &theirs, flock(1, LockMode::Shared)).await.unwrap();
    let interrupted = tokio::time::sleep(Duration::from_millis(200));
    let upgrade = a.lock_until(&f, flock(1, LockMode::Exclusive), interrupted).await;
    assert_eq!(upgrade.unwrap_err().errno, Errno::Interrupted);
    assert_eq!(a.session().locks, 0);
    take(&b, &theirs, flock(1, LockMode::Exclusive)).await.unwrap();
    b.lock_release_owner(f.fid(), LockFamily::Flock, LockOwner(1)).await.unwrap();
    eventually_decides(&a, &f, flock(2, LockMode::Exclusive)).await;
    assert_eq!(
        at_once(a.lock_test(f.fid(), flock(3, LockMode::Exclusive))).unwrap().unwrap().owner,
        LockOwner(2)
    );
}

// SEMANTICS 29, 39
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_ends_no_lock_that_was_taken_alone() {
    let mut cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    let fid = f.fid();
    take(&a, &f, lock(1, 0, 9)).await.unwrap();
    at_once(a.lock_set(&f, lock(2, 20, 29), LockWait::No)).unwrap();
    cell.stop();
    // Nobody else can have it while the session lasts.
    at_once(a.lock_set(&f, lock(3, 40, 49), LockWait::No)).unwrap();
    at_once(a.lock_release(fid, lock(1, 0, 9))).unwrap();
    cell.restart();
    take(&b, &theirs, lock(1, 0, 9)).await.unwrap();
    assert_eq!(in_the_way(&b, fid, lock(1, 10, 39)).await, Some((20, 29)));
    assert_eq!(in_the_way(&b, fid, lock(1, 30, 99)).await, Some((40, 49)));
    assert_eq!(a.stats().count("sessions_lost"), 0);
    a.lock_release(fid, lock(2, 20, 29)).await.unwrap();
    take(&b, &theirs, lock(1, 20, 29)).await.unwrap();
}

/// flock(2): who waits for another mode has given up the one before. Others may have what that excludes.
// SEMANTICS 26, 29
#[tokio::test(flavor = "multi_thread")]
async fn a_flock_that_was_given_up_for_another_is_not_had_again_after_a_restart() {
    let mut cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let (a, b) = (cell.client().await, client_behind(&proxy, &cell).await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    take(&a, &f, flock(1, LockMode::Shared)).await.unwrap();
    take(&b, &theirs, flock(1, LockMode::Shared)).await.unwrap();
    let upgrades = {
        let (a, f) = (Arc::clone(&a), Arc::clone(&f));
        tokio::spawn(async move { a.lock_set(&f, flock(1, LockMode::Exclusive), LockWait::Yes).await })
    };
    eventually("it is asked for", || a.stats().count("msg_lockset") == 2).await;
    // It has been heard of when this is answered.
    assert!(in_the_way(&a, f.fid(), flock(9, LockMode::Exclusive)).await.is_some());
    take(&b, &theirs, flock(1, LockMode::Exclusive)).await.unwrap();
    assert!(!upgrades.is_finished());
    proxy.set(Weather::Cut);
    eventually("cut off", || b.session().standing != ClientStanding::Connected).await;
    cell.stop();
    cell.restart();
    eventually("the first one is back", || a.session().standing == ClientStanding::Connected).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.set(Weather::Fine);
    let held = in_the_way(&b, f.fid(), flock(9, LockMode::Shared)).await;
    assert!(held.is_some() && !upgrades.is_finished() && b.session().locks == 1);
    b.read(&theirs, 0, 10).await.expect("nothing was lost");
    b.lock_release_owner(f.fid(), LockFamily::Flock, LockOwner(1)).await.unwrap();
    upgrades.await.unwrap().unwrap();
}

/// The locks are told once: what is released behind that is not brought back by telling it again.
#[tokio::test(flavor = "multi_thread")]
async fn locks_whose_telling_is_lost_are_told_again() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, &cell).await;
    let b = cell.client().await;
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    let fid = f.fid();
    for (round, lost) in [(1, Weather::RepliesLost), (2, Weather::Silence)] {
        // What was contended lately is not given away for a while, longer each time.
        decides(&a, &f).await;
        at_once(a.lock_set(&f, lock(1, 0, 9), LockWait::No)).unwrap();
        at_once(a.lock_set(&f, lock(2, 20, 29), LockWait::No)).unwrap();
        proxy.set(lost);
        // A second process of its own has to wait, and the locks go to the server for it.
        let waiting = {
            let (a, f) = (Arc::clone(&a), Arc::clone(&f));
            tokio::spawn(async move { a.lock_set(&f, lock(3, 0, 9), LockWait::Yes).await })
        };
        eventually("the locks are told", || a.session().delegated_locks == 0).await;
        let releasing = {
            let a = Arc::clone(&a);
            begun(async move { a.lock_release(fid, lock(2, 20, 29)).await }).await
        };
        proxy.set(Weather::Cut);
        eventually("cut off", || a.session().standing != ClientStanding::Connected).await;
        proxy.set(Weather::Fine);
        releasing.await.unwrap().unwrap();
        assert_eq!(in_the_way(&b, fid, lock(1, 0, 99)).await, Some((0, 9)), "{round}");
        take(&b, &theirs, lock(1, 20, 29)).await.unwrap();
        b.lock_release(fid, lock(1, 20, 29)).await.unwrap();
        a.lock_release(fid, lock(1, 0, 9)).await.unwrap();
        waiting.await.unwrap().unwrap();
        a.lock_release(fid, lock(3, 0, 9)).await.unwrap();
    }
    assert_eq!(a.stats().count("sessions_lost"), 0);
}

// SEMANTICS 29, 30
#[tokio::test(flavor = "multi_thread")]
async fn locks_taken_alone_are_lost_with_the_session_and_nobody_waits_longer_for_them() {
    let cell = Cell::with_term(Duration::from_millis(700));
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, &cell).await;
    let b = cell.client().await;
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    take(&a, &f, lock(1, 0, 9)).await.unwrap();
    at_once(a.lock_set(&f, lock(2, 20, 29), LockWait::No)).unwrap();
    proxy.set(Weather::Silence);
    take(&b, &theirs, lock(1, 20, 29)).await.unwrap();
    // The session is over: nothing is decided here.
    let late = {
        let (a, f) = (Arc::clone(&a), Arc::clone(&f));
        begun(async move { a.lock_set(&f, lock(3, 20, 29), LockWait::No).await }).await
    };
    proxy.set(Weather::Cut);
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Weather::Fine);
    late.await.unwrap().unwrap_err();
    eventually("a new session", || a.stats().count("sessions_lost") == 1).await;
    assert_eq!(a.read(&f, 0, 10).await.unwrap_err().errno, Errno::Io);
    assert_eq!((a.session().locks, a.session().delegated_locks), (0, 0));
}

/// Goes only where the test puts it on.
#[derive(Debug)]
struct Standing {
    since: Monotonic,
    ahead: AtomicU64,
}

impl Clock for Standing {
    fn now(&self) -> Monotonic {
        self.since + Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    fn suspended(&self) -> u64 {
        BootClock.suspended()
    }
}

// SEMANTICS 29
#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_locked_for_a_while_is_asked_no_more() {
    let behind = WritePolicy::Behind(WriteBehind::default());
    for (write, idle) in [(WritePolicy::Through, 10), (behind, 2)] {
        who_has_not_locked_for(Duration::from_secs(idle), write).await;
    }
}

async fn who_has_not_locked_for(idle: Duration, write: WritePolicy) {
    let cell = Cell::with_term(Duration::from_secs(60));
    let proxy = Proxy::before(cell.addr).await;
    let clock = Arc::new(Standing { since: BootClock.now(), ahead: AtomicU64::new(0) });
    let mut config = ClientConfig { write, ..cell.client_config() };
    config.server = proxy.addr.to_string();
    let a = Client::connect_with(config, Box::new(NoKernel), clock.clone(), Box::new(TcpTransport))
        .await
        .unwrap();
    let b = cell.client().await;
    let (f, g) = (file(&a, "f", "x").await, file(&a, "g", "x").await);
    for file in [&f, &g] {
        take(&a, file, lock(1, 0, 9)).await.unwrap();
    }
    at_once(a.lock_release(f.fid(), lock(1, 0, 9))).unwrap();
    assert_eq!(a.session().delegated_locks, 2);
    let theirs = open(&b, "f").await;
    clock.ahead.fetch_add(idle.as_nanos() as u64, Ordering::Relaxed);
    eventually("what is idle is given back", || a.session().delegated_locks == 1).await;
    eventually("the server has it back", || a.session().waiting == 0).await;
    proxy.set(Weather::Silence);
    take(&b, &theirs, lock(1, 0, 9)).await.unwrap();
    assert_eq!(a.stats().count("lock_recalls"), 0);
    at_once(a.lock_release(g.fid(), lock(1, 0, 9))).unwrap();
}

/// Two clients and four owners, with locks of all kinds: nobody ever has what excludes another's.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_two_clients_exclude_each_other_whoever_decides() {
    const ROUNDS: u64 = 150;
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    let inside = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for owner in 0..4 {
        let (client, file) = if owner % 2 == 0 { (&a, &f) } else { (&b, &theirs) };
        let (client, file, inside) = (Arc::clone(client), Arc::clone(file), Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                // Alone for a while, now and then.
                let pause = if (round / 30) % 4 == owner { 0 } else { 3 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
                let wanted = if owner < 2 { lock(owner, 0, 9) } else { lock(owner, 5, 14) };
                client.lock_set(&file, wanted, LockWait::Yes).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two of them");
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                client.lock_release(file.fid(), wanted).await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("nobody waits for ever").unwrap();
    }
    assert_eq!(a.session().locks + b.session().locks, 0);
}
