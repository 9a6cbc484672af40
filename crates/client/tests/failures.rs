//! Broken connections, restarts of the server, lost sessions, impatient callers.

use crate::common::proxy::{Proxy, Weather};
use crate::common::*;
use soda_client::{Client, ClientConfig, ClientStanding, ConnectError, NoKernel, OpenMode, Retry};
use soda_protocol::{Lock, LockFamily, LockMode, LockWait, WriteAt};
use soda_types::{Errno, FileKind, LockOwner};
use std::fs;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Tells a time-out of seconds, on a busy machine, from none.
const NOT_FOR_EVER: Duration = Duration::from_secs(30);

async fn client_behind(proxy: &Proxy, retry: Retry, cell: &Cell) -> Arc<Client> {
    let mut config = cell.client_config();
    config.server = proxy.addr.to_string();
    config.retry = retry;
    Client::connect(config, Box::new(NoKernel)).await.unwrap()
}

fn lock(owner: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Record, owner: LockOwner(owner), pid: 1, start: 0, end: 9, mode }
}

/// An operation that the server has carried out, and has said so in vain.
async fn answered_in_vain<T: Send + 'static>(
    proxy: &Proxy,
    operation: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let before = proxy.held_back();
    let begun = begun(operation).await;
    eventually("its answer is lost", || proxy.held_back() > before).await;
    begun
}

// SEMANTICS 20
#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_reply_was_lost_is_done_once() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, Retry::Hard, &cell).await;
    let b = cell.client().await;
    let f = file(&a, "log", "").await;
    for round in 1..=5usize {
        proxy.set(Weather::RepliesLost);
        let (client, handle) = (Arc::clone(&a), Arc::clone(&f));
        let append = answered_in_vain(&proxy, async move {
            client.write(&handle, WriteAt::End, "record;".into(), soda_client::KillPriv::Keep).await
        });
        let (client, dir) = (Arc::clone(&a), a.root());
        let create = answered_in_vain(&proxy, async move {
            client.create(dir, &name(&format!("dir{round}")), new_node(FileKind::Directory)).await
        });
        let (append, create) = (append.await, create.await);
        proxy.set(Weather::Cut);
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.set(Weather::Fine);
        assert_eq!(append.await.unwrap().unwrap().len, 7);
        // Twice would be EEXIST.
        create.await.unwrap().unwrap();
        assert_eq!(read(&a, &f).await.len(), 7 * round);
    }
    assert_eq!(read(&b, &*open(&b, "log").await).await, "record;".repeat(5));
    assert!(a.stats().count("reconnects") >= 5);
    assert_eq!(a.stats().count("sessions_lost"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_could_not_work_is_refused_before_it_connects() {
    let config =
        ClientConfig { lease_poll: Some(Duration::ZERO), ..ClientConfig::new("127.0.0.1:1", "main") };
    let refused = Client::connect(config, Box::new(NoKernel)).await;
    assert!(matches!(refused, Err(ConnectError::Config(_))), "{refused:?}");
}

/// As write(2): how far it came, and why not farther when that is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_write_that_cannot_go_on_is_short_and_one_of_all_fails() {
    let cell = Cell::with_quota(8 << 20);
    let a = cell.client().await;
    let f = file(&a, "f", "").await;
    let data = bytes::Bytes::from(vec![7; 12 << 20]);
    let keep = soda_client::KillPriv::Keep;
    let done = a.write(&f, WriteAt::Offset(0), data.clone(), keep).await.unwrap();
    assert!(done.len > 0 && done.len < data.len() as u64, "{done:?}");
    assert_eq!(a.getattr(f.fid()).await.unwrap().value.size, done.len);
    let error = a.write_all(&f, WriteAt::Offset(0), data.clone(), keep).await.unwrap_err();
    assert_eq!(error.errno, Errno::NoSpace);
    a.unlink(a.root(), &name("f")).await.unwrap();
    drop(f);
    let g = file(&a, "g", "").await;
    wait_until("room", || async {
        a.write_all(&g, WriteAt::Offset(1), data.slice(..3 << 20), keep).await.is_ok()
    })
    .await;
    assert_eq!(a.getattr(g.fid()).await.unwrap().value.size, 1 + (3 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_server_everything_goes_on() {
    let mut cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "before").await;
    a.lock_set(&f, lock(1, LockMode::Exclusive), LockWait::No).await.unwrap();
    let gone = file(&a, "gone", "no name").await;
    a.unlink(a.root(), &name("gone")).await.unwrap();
    let theirs = open(&b, "f").await;
    assert_eq!(read(&b, &theirs).await, "before");
    cell.stop();
    assert_eq!(at_once(b.read(&theirs, 0, 10)).unwrap().to_bytes(), "before", "under the lease");
    let (client, handle) = (Arc::clone(&a), Arc::clone(&f));
    let waiting = begun(async move {
        client.write_all(&handle, WriteAt::Offset(0), "behind".into(), soda_client::KillPriv::Keep).await
    })
    .await;
    assert!(!waiting.is_finished());
    cell.restart();
    waiting.await.unwrap().unwrap();
    assert_eq!(read(&b, &theirs).await, "behind");
    assert_eq!(read(&a, &gone).await, "no name", "open files stay");
    let busy = b.lock_set(&theirs, lock(2, LockMode::Shared), LockWait::No).await;
    assert_eq!(busy.unwrap_err().errno, Errno::TryAgain, "locks stay");
    assert_eq!(a.stats().count("sessions_lost") + b.stats().count("sessions_lost"), 0);
    assert!(a.stats().count("reclaimed") > 0);
    a.lock_release(f.fid(), lock(1, LockMode::Exclusive)).await.unwrap();
    b.lock_set(&theirs, lock(2, LockMode::Shared), LockWait::No).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_restarts_lose_no_acknowledged_change() {
    let mut cell = Cell::with_term(Duration::from_millis(1500));
    let a = cell.client().await;
    let client = Arc::clone(&a);
    let worker = tokio::spawn(async move {
        for at in 0..200 {
            drop(file(&client, &format!("f{at}"), format!("content {at}")).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cell.restart();
    }
    tokio::time::timeout(Duration::from_secs(60), worker).await.unwrap().unwrap();
    let b = cell.client().await;
    for at in 0..200 {
        assert_eq!(read(&b, &*open(&b, &format!("f{at}")).await).await, format!("content {at}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_off_client_stops_serving_when_its_lease_has_run_out() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, Retry::Hard, &cell).await;
    let b = cell.client().await;
    let f = file(&a, "f", "one").await;
    assert_eq!(read(&a, &f).await, "one");
    proxy.set(Weather::Silence);
    assert_eq!(at_once(a.read(&f, 0, 10)).unwrap().to_bytes(), "one", "the lease still holds");
    let theirs = open(&b, "f").await;
    let began = Instant::now();
    write(&b, &theirs, 0, "two").await;
    assert!(began.elapsed() < NOT_FOR_EVER, "TIMED OUT: {:?}", began.elapsed());
    let (client, handle) = (Arc::clone(&a), Arc::clone(&f));
    let mut waiting = begun(async move { read(&client, &handle).await }).await;
    assert!(!waiting.is_finished(), "nothing may be served now");
    proxy.set(Weather::Cut);
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Weather::Fine);
    assert_eq!(tokio::time::timeout(NOT_FOR_EVER, &mut waiting).await.unwrap().unwrap(), "two");
    assert_eq!(a.stats().count("sessions_lost"), 1);
    // Goes on as a new session.
    write(&a, &f, 0, "six").await;
    assert_eq!(read(&b, &theirs).await, "six");
}

// SEMANTICS 30
#[tokio::test(flavor = "multi_thread")]
async fn locks_lost_with_a_session_are_not_missed_in_silence() {
    let cell = Cell::with_term(Duration::from_millis(700));
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, Retry::Hard, &cell).await;
    let b = cell.client().await;
    let f = file(&a, "f", "one").await;
    let plain = file(&a, "plain", "two").await;
    a.lock_set(&f, lock(1, LockMode::Exclusive), LockWait::No).await.unwrap();
    let theirs = open(&b, "f").await;
    assert_eq!(b.lock_test(f.fid(), lock(2, LockMode::Shared)).await.unwrap().map(|lock| lock.end), Some(9));
    proxy.set(Weather::Cut);
    // In conflict with a lease of the silent session's: it is ended, and its locks with it.
    write(&b, &*open(&b, "plain").await, 0, "!").await;
    b.lock_set(&theirs, lock(2, LockMode::Exclusive), LockWait::Yes).await.unwrap();
    proxy.set(Weather::Fine);
    eventually("a new session", || a.stats().count("sessions_lost") == 1).await;
    let lost = a.write(&f, WriteAt::Offset(0), "x".into(), soda_client::KillPriv::Keep).await;
    assert_eq!(lost.unwrap_err().errno, Errno::Io);
    assert_eq!(a.read(&f, 0, 10).await.unwrap_err().errno, Errno::Io);
    write(&a, &plain, 0, "2").await;
    let fid = f.fid();
    drop(f);
    let again = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&a, &again, 0, "x").await;
}

// SEMANTICS 36
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_when_the_session_ends_fails_and_the_next_does_not() {
    let cell = Cell::with_term(Duration::from_millis(700));
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, Retry::Hard, &cell).await;
    let b = cell.client().await;
    let own = file(&a, "own", "mine").await;
    let wanted = file(&a, "wanted", "ours").await;
    assert_eq!(read(&a, &wanted).await, "ours");
    proxy.set(Weather::Silence);
    let under_way = {
        let (a, own) = (Arc::clone(&a), Arc::clone(&own));
        tokio::spawn(async move {
            a.write(&own, WriteAt::Offset(0), "new!".into(), soda_client::KillPriv::Keep).await
        })
    };
    // A lease of the silent session's is in the way, of another file.
    write(&b, &*open(&b, "wanted").await, 0, "!").await;
    proxy.set(Weather::Cut);
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Weather::Fine);
    assert_eq!(under_way.await.unwrap().unwrap_err().errno, Errno::Io);
    let left = read(&a, &own).await;
    assert!(left == "mine" || left == "new!", "done or not, but {left:?}");
    write(&a, &own, 0, "next").await;
    assert_eq!(read(&a, &own).await, "next");
    assert_eq!(read(&a, &wanted).await, "!urs");
}

// SEMANTICS 38
#[tokio::test(flavor = "multi_thread")]
async fn soft_fails_and_hard_waits_but_can_be_given_up() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let soft = client_behind(&proxy, Retry::Soft { timeout: Duration::from_millis(300) }, &cell).await;
    let hard = client_behind(&proxy, Retry::Hard, &cell).await;
    let f = file(&hard, "f", "x").await;
    proxy.set(Weather::Silence);
    let began = Instant::now();
    let failed = soft.create(soft.root(), &name("d"), new_node(FileKind::Directory)).await.unwrap_err();
    assert_eq!(failed.errno, Errno::Io);
    assert!(began.elapsed() < NOT_FOR_EVER, "TIMED OUT: {:?}", began.elapsed());
    // 70 changes are more than there are slots: waiting for one can be given up as well.
    let mut tasks = Vec::new();
    for _ in 0..70 {
        let (client, handle) = (Arc::clone(&hard), Arc::clone(&f));
        tasks.push(tokio::spawn(async move {
            client.write(&handle, WriteAt::End, "y".into(), soda_client::KillPriv::Keep).await
        }));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    for task in tasks {
        assert!(!task.is_finished());
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    proxy.set(Weather::Cut);
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Weather::Fine);
    // Slots are not lost, and what was sent was done at most once each.
    for _ in 0..100 {
        hard.write_all(&f, WriteAt::End, "z".into(), soda_client::KillPriv::Keep).await.unwrap();
    }
    let data = read(&hard, &f).await;
    assert_eq!(data.iter().filter(|byte| **byte == b'z').count(), 100);
    assert!(data.iter().filter(|byte| **byte == b'y').count() <= 64);
    eventually("all requests are answered", || hard.session().waiting == 0).await;
    soft.lookup(soft.root(), &name("d")).await.unwrap();
}

// SEMANTICS 27
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_waited_for_comes_in_turn_or_is_given_up() {
    let cell = Cell::start();
    let (a, b) = (cell.client().await, cell.client().await);
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    a.lock_set(&f, lock(1, LockMode::Exclusive), LockWait::No).await.unwrap();
    let gave_up = b.lock_set(&theirs, lock(2, LockMode::Exclusive), LockWait::Yes);
    assert!(tokio::time::timeout(Duration::from_millis(100), gave_up).await.is_err());
    let (client, handle) = (Arc::clone(&b), Arc::clone(&theirs));
    let waiting =
        begun(async move { client.lock_set(&handle, lock(3, LockMode::Exclusive), LockWait::Yes).await })
            .await;
    // It has been heard of when this is answered.
    assert!(b.lock_test(f.fid(), lock(9, LockMode::Exclusive)).await.unwrap().is_some());
    assert!(!waiting.is_finished());
    a.lock_release_owner(f.fid(), LockFamily::Record, LockOwner(1)).await.unwrap();
    waiting.await.unwrap().unwrap();
    let conflict = a.lock_test(f.fid(), lock(1, LockMode::Exclusive)).await.unwrap().unwrap();
    assert_eq!(conflict.owner, LockOwner(3));
    assert_eq!(b.session().locks, 1);
    at_once(a.lock_release_owner(f.fid(), LockFamily::Flock, LockOwner(1))).unwrap();
}

// SEMANTICS 18
#[tokio::test(flavor = "multi_thread")]
async fn data_that_a_power_cut_took_is_missed_by_the_next_fsync_and_the_death_of_a_process_takes_none() {
    let mut cell = Cell::syncing_when_asked();
    let a = cell.client().await;
    let safe = file(&a, "safe", vec![1; 100_000]).await;
    a.fsync(safe.fid()).await.unwrap();
    let lost = file(&a, "lost", vec![2; 100_000]).await;
    cell.restart();
    eventually("the client is back", || a.stats().count("reconnects") == 1).await;
    let kept = file(&a, "kept", vec![3; 100_000]).await;
    for file in [&safe, &lost, &kept] {
        a.fsync(file.fid()).await.unwrap();
    }

    write(&a, &lost, 0, vec![4; 100_000]).await;
    cell.power_cut();
    cell.restart();
    eventually("the client is back", || a.stats().count("reconnects") == 2).await;
    a.fsync(safe.fid()).await.unwrap();
    a.fsync(kept.fid()).await.unwrap();
    assert_eq!(a.fsync_file(&lost).await.unwrap_err().errno, Errno::Io);
    assert_eq!(a.read(&lost, 0, 10).await.unwrap_err().errno, Errno::Io, "nor is it there");
    a.fsync_file(&lost).await.unwrap();
    assert_eq!(a.stats().count("sessions_lost"), 0);
    assert_eq!(read(&a, &safe).await, vec![1; 100_000]);
    assert_eq!(read(&a, &kept).await, vec![3; 100_000]);
    write(&a, &lost, 0, vec![5; 100_000]).await;
    a.fsync(lost.fid()).await.unwrap();
    assert_eq!(read(&a, &lost).await, vec![5; 100_000]);
}

/// Its process is gone, and released what it had: nobody would ever release what is granted later.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_given_up_while_cut_off_is_not_waited_for_any_more() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let a = client_behind(&proxy, Retry::Hard, &cell).await;
    let b = cell.client().await;
    let f = file(&a, "f", "x").await;
    let theirs = open(&b, "f").await;
    a.lock_set(&f, lock(1, LockMode::Shared), LockWait::No).await.unwrap();
    b.lock_set(&theirs, lock(2, LockMode::Shared), LockWait::No).await.unwrap();
    let (client, handle) = (Arc::clone(&a), Arc::clone(&f));
    let upgrade =
        begun(async move { client.lock_set(&handle, lock(1, LockMode::Exclusive), LockWait::Yes).await })
            .await;
    assert!(a.lock_test(f.fid(), lock(9, LockMode::Exclusive)).await.unwrap().is_some());
    assert!(!upgrade.is_finished());
    proxy.set(Weather::Cut);
    eventually("cut off", || a.session().standing != ClientStanding::Connected).await;
    upgrade.abort();
    assert!(upgrade.await.unwrap_err().is_cancelled());
    let (client, fid) = (Arc::clone(&a), f.fid());
    let release =
        begun(async move { client.lock_release_owner(fid, LockFamily::Record, LockOwner(1)).await }).await;
    assert!(!release.is_finished());
    proxy.set(Weather::Fine);
    release.await.unwrap().unwrap();
    eventually("all requests are answered", || a.session().waiting == 0).await;
    assert_eq!(a.session().locks, 0);
    b.lock_release_owner(fid, LockFamily::Record, LockOwner(2)).await.unwrap();
    b.lock_set(&theirs, lock(3, LockMode::Exclusive), LockWait::No).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_fails_with_a_reason_and_shutting_down_ends() {
    let mut cell = Cell::start();
    let mut config = cell.client_config();
    config.volume = "other".into();
    let error = Client::connect(config, Box::new(NoKernel)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    let a = cell.client().await;
    let f = file(&a, "f", "x").await;
    a.shutdown().await;
    assert_eq!(a.getattr(f.fid()).await.unwrap_err().errno, Errno::Io);
    assert_eq!(a.session().standing, ClientStanding::Closed);
    let b = cell.client().await;
    let g = file(&b, "g", "x").await;
    cell.stop();
    let error = Client::connect(cell.client_config(), Box::new(NoKernel)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let (client, handle) = (Arc::clone(&b), Arc::clone(&g));
    let waiting = begun(async move { client.fsync(handle.fid()).await }).await;
    let began = Instant::now();
    b.shutdown().await;
    assert!(began.elapsed() < NOT_FOR_EVER, "TIMED OUT: {:?}", began.elapsed());
    assert_eq!(waiting.await.unwrap().unwrap_err().errno, Errno::Io);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_leases_and_surplus_inodes_are_given_back() {
    let cell = Cell::start();
    let mut config = cell.client_config();
    config.cache.max_inodes = 50;
    let a = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    for at in 0..300 {
        drop(file(&a, &format!("f{at}"), "x").await);
    }
    assert!(a.session().cached_inodes < 60, "{:?}", a.session());
    assert!(a.leases().len() < 60);
    assert!(a.stats().count("leases_released") > 200);
    for at in 0..300 {
        assert_eq!(read(&a, &*open(&a, &format!("f{at}")).await).await, "x");
    }
    let fid = open(&a, "f7").await.fid();
    a.remember(fid, 1);
    for at in 100..300 {
        drop(open(&a, &format!("f{at}")).await);
    }
    at_once(a.getattr(fid)).unwrap();
    a.forget(fid, 1);
}

/// Overwrites `content` wherever it lies below `dir`. How often it was found.
fn damage(dir: &Path, content: &[u8]) -> usize {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let found = paths.map(|path| {
        if path.is_dir() {
            return damage(&path, content);
        }
        let mut bytes = fs::read(&path).unwrap();
        let Some(at) = bytes.windows(content.len()).position(|part| part == content) else { return 0 };
        bytes[at..at + content.len()].fill(0xff);
        fs::write(&path, bytes).unwrap();
        1
    });
    found.sum()
}

// SEMANTICS 41
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_beside_damage_can_be_read() {
    const PAGE: usize = 4096;
    let mut cell = Cell::start();
    let a = cell.client().await;
    let content: Vec<u8> = (0..1 << 18_u32).flat_map(|number: u32| number.to_le_bytes()).collect();
    let f = file(&a, "file", content.clone()).await;
    a.fsync_file(&f).await.unwrap();
    drop((f, a));
    cell.stop();
    let hit = 100 * PAGE;
    assert!(damage(cell.dir.path(), &content[hit..hit + 16]) > 0, "the content is not on the disk");
    cell.restart();
    let b = cell.client().await;
    let f = open(&b, "file").await;
    let mut bad = Vec::new();
    for at in (0..content.len()).step_by(PAGE) {
        match b.read(&f, at as u64, PAGE as u32).await {
            Ok(data) => assert!(data.to_bytes() == content[at..at + PAGE], "other data at {at}"),
            Err(error) => {
                assert_eq!(error.errno, Errno::Io);
                bad.push(at);
            }
        }
    }
    // A chunk is read whole, or not at all.
    assert!(bad.contains(&hit) && bad.len() <= 64, "bad: {bad:?}");
}
