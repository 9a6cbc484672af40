//! Several clients that begin with one cache directory at the same moment, and several servers that have logs in it.

use super::*;
use crate::common::script::Ahead;
use rustix::fs::{FlockOperation, flock};
use soda_client::recover::{self, LogState};
use soda_client::{ClientConfig, ConnectError, Stream, TcpTransport, Transport};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::Ordering;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Long enough for what must not happen to happen, as a rule.
const A_WHILE: Duration = Duration::from_millis(400);

/// Goes another way to the server, whatever that is called.
#[derive(Debug)]
struct Detour(SocketAddr);

impl Transport for Detour {
    fn connect<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'a>> {
        Box::pin(async move { TcpTransport.connect(&self.0.to_string()).await })
    }
}

/// The logs of two clients that die together, each with an untold file in a directory of its own.
async fn two_logs(cell: &Cell) -> TempDir {
    let victims = [Victim::start(cell).await, Victim::start(cell).await];
    let mut dirs = Vec::new();
    for (victim, text) in victims.iter().zip(["first", "second"]) {
        let made = victim.run(move |client| async move {
            let dir = mkdir(&client, client.root(), text).await;
            client.sync_all().await.unwrap();
            dir
        });
        dirs.push(made.await);
    }
    for (victim, dir) in victims.iter().zip(dirs) {
        let left = victim.run(move |client| async move {
            // The first change may go through, and brings the lease.
            make(&client, dir, "warm", "up").await;
            client.sync_all().await.unwrap();
            make(&client, dir, "f", "only here").await;
            client.session().backlog.records
        });
        assert!(left.await >= 2);
    }
    let [first, second] = victims;
    let (cache, other) = (first.kill(), second.kill());
    let from = only_log(other.path());
    fs::create_dir(cache.path().join("oplog/1")).unwrap();
    copy_dir(&from, &cache.path().join("oplog/1"));
    cache
}

fn start(config: ClientConfig, way: SocketAddr) -> JoinHandle<Arc<Client>> {
    let connect = async move {
        let (hooks, clock) = (Box::new(NoKernel), Arc::new(BootClock));
        Client::connect_with(config, hooks, clock, Box::new(Detour(way))).await.unwrap()
    };
    tokio::spawn(connect)
}

async fn started(client: JoinHandle<Arc<Client>>) -> Arc<Client> {
    tokio::time::timeout(Duration::from_secs(60), client).await.expect("it waits").unwrap()
}

/// Whether somebody has locked a file, without being in the way.
fn is_locked(path: &Path) -> bool {
    let inode = format!(":{} ", fs::metadata(path).unwrap().ino());
    fs::read_to_string("/proc/locks").unwrap().lines().any(|line| line.contains(&inode))
}

async fn assert_all_told(cell: &Cell, cache: &Path) {
    let reader = cell.client().await;
    for text in ["first", "second"] {
        assert_eq!(contents(&reader, &[text, "f"]).await, "only here");
    }
    assert!(kept(cache).is_empty(), "{:?}", kept(cache));
    reader.shutdown().await;
}

/// One of them is held up in the first log: the other one tells the second at once, and begins nothing before the first is told.
// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn two_that_begin_together_tell_all_that_was_left() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let cache = two_logs(&cell).await;
    let config = || caching(&cell, cell.addr, cache.path());
    let slow = Proxy::before(cell.addr).await;
    slow.set(Weather::Silence);
    let a = start(config(), slow.addr);
    let first = cache.path().join("oplog/0/lock");
    wait_until("the first log is looked after", || async { is_locked(&first) }).await;
    let b = start(config(), cell.addr);
    wait_until("the second log is told", || async { !cache.path().join("oplog/1").exists() }).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(!b.is_finished(), "it begins although the first is not told");
    slow.set(Weather::Fine);
    let clients = [started(a).await, started(b).await];
    let replayed: Vec<u64> = clients.iter().map(|client| client.stats().count("replayed")).collect();
    assert!(replayed.iter().all(|replayed| *replayed > 0), "{replayed:?}");
    assert_all_told(&cell, cache.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_behind_one_that_is_done_finds_nothing() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let cache = two_logs(&cell).await;
    let config = || caching(&cell, cell.addr, cache.path());
    let slow = Proxy::before(cell.addr).await;
    slow.set(Weather::Silence);
    let quick = started(start(config(), cell.addr)).await;
    let late = start(config(), slow.addr);
    slow.set(Weather::Fine);
    assert_eq!(started(late).await.stats().count("replayed"), 0);
    assert!(quick.stats().count("replayed") > 0);
    assert_all_told(&cell, cache.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_what_another_server_is_not_told() {
    let (here, there) = (Cell::start(), Cell::start());
    let away = Proxy::before(there.addr).await;
    let victim = Victim::start_at(&there, away.addr).await;
    victim.run(|client| async move { work(&client).await }).await;
    let cache = victim.kill();
    away.set(Weather::Silence);
    let a = start(caching(&there, away.addr, cache.path()), away.addr);
    let lock = cache.path().join("oplog/0/lock");
    wait_until("the log is looked after", || async { is_locked(&lock) }).await;
    let b = started(start(caching(&here, here.addr, cache.path()), here.addr)).await;
    assert!(!a.is_finished());
    away.set(Weather::Fine);
    assert!(started(a).await.stats().count("replayed") > 0);
    assert_eq!(b.stats().count("replayed"), 0);
    assert_worked(&there.client().await).await;
}

/// The daemon that wrote the log was killed and still has the lock.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_killed_client_is_waited_for() {
    let cell = Cell::start();
    let victim = Victim::start(&cell).await;
    victim.run(|client| async move { work(&client).await }).await;
    let cache = victim.kill();
    let mut dead = Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    let path = cache.path().join("oplog/0/lock");
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    fs::write(&path, format!("{} 1 {}\n", dead.id(), namespace.display())).unwrap();
    let lock = fs::File::open(&path).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let a = start(caching(&cell, cell.addr, cache.path()), cell.addr);
    tokio::time::sleep(A_WHILE).await;
    assert!(!a.is_finished(), "it begins although the log is not told");
    drop(lock);
    let a = started(a).await;
    assert!(a.stats().count("replayed") > 0);
    assert_worked(&a).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_in_vain_does_not_begin() {
    let cell = Cell::start();
    let victim = Victim::start(&cell).await;
    victim.run(|client| async move { work(&client).await }).await;
    let cache = victim.kill();
    let others = fs::File::open(cache.path().join("oplog/0")).unwrap();
    flock(&others, FlockOperation::NonBlockingLockExclusive).unwrap();
    let clock = Arc::new(Ahead::default());
    let (config, ahead) = (caching(&cell, cell.addr, cache.path()), Arc::clone(&clock));
    let connect = Client::connect_with(config, Box::new(NoKernel), clock, Box::new(Detour(cell.addr)));
    let connecting = tokio::spawn(connect);
    wait_until("it gives up", || async {
        ahead.0.fetch_add(150_000_000_000, Ordering::Relaxed);
        connecting.is_finished()
    })
    .await;
    let error = connecting.await.unwrap().unwrap_err();
    assert!(matches!(&error, ConnectError::LogInUse { dir, .. } if dir.ends_with("oplog/0")), "{error}");
    drop(others);
    assert_worked(&next(&cell, cache.path()).await).await;
}

// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_this_server_under_another_name_is_told() {
    let mut cell = Cell::start();
    let before = format!("localhost:{}", cell.addr.port());
    for restarted in [false, true] {
        let cache = tempfile::tempdir().unwrap();
        let config = ClientConfig { server: before.clone(), ..caching(&cell, cell.addr, cache.path()) };
        let victim = Victim::connect(&cell, cache, config).await;
        victim.run(|client| async move { work(&client).await }).await;
        let cache = victim.kill();
        if restarted {
            cell.restart();
        }
        let a = next(&cell, cache.path()).await;
        assert!(a.stats().count("replayed") > 0, "{:?}", a.stats());
        assert_worked(&a).await;
        assert!(kept(cache.path()).is_empty());
        a.unlink(find(&a, &["d"]).await.unwrap(), &name("a")).await.unwrap();
        a.rmdir(a.root(), &name("d")).await.unwrap();
        a.unlink(a.root(), &name("c")).await.unwrap();
        a.shutdown().await;
    }
}

/// It is another server, or one that has forgotten the session: nobody can tell which.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_this_server_does_not_know_waits_and_is_listed() {
    let (here, there) = (Cell::start(), Cell::start());
    let victim = Victim::start(&there).await;
    victim.run(|client| async move { work(&client).await }).await;
    assert_eq!(recover::list(victim.cache.path()).unwrap(), [], "its client runs");
    let cache = victim.kill();
    let waits = || {
        let logs = recover::list(cache.path()).unwrap();
        let [log] = &logs[..] else { panic!("{logs:?}") };
        assert_eq!((log.state, log.server.clone()), (LogState::Waiting, there.addr.to_string()));
        assert!(log.records >= 7, "{log:?}");
        log.clone()
    };
    waits();
    let a = next(&here, cache.path()).await;
    assert_eq!((a.stats().count("replayed"), a.stats().count("kept_logs")), (0, 0));
    let log = waits();
    // It can be looked at, and told after all.
    assert!(log.show().unwrap().iter().any(|record| record.path == "/d/a"));
    let b = next(&there, cache.path()).await;
    assert_worked(&b).await;
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_waits_can_be_applied_or_dropped() {
    let cell = Cell::with_term(Duration::from_secs(1));
    for applied in [true, false] {
        let victim = Victim::start(&cell).await;
        let top = format!("applied {applied}");
        let text = top.clone();
        victim
            .run(|client| async move {
                let dir = mkdir(&client, client.root(), &text).await;
                make(&client, dir, "f", "only here").await;
            })
            .await;
        let cache = victim.kill();
        let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
        let reader = cell.client().await;
        if applied {
            let report = log.apply(&reader, |_| ()).await.unwrap();
            assert!(report.iter().all(|applied| applied.outcome.is_done()), "{report:#?}");
            assert_eq!(contents(&reader, &[&top, "f"]).await, "only here");
        } else {
            log.remove().unwrap();
        }
        assert_eq!(recover::list(cache.path()).unwrap(), []);
        let a = next(&cell, cache.path()).await;
        assert_eq!(a.stats().count("replayed"), 0);
        assert_eq!(find(&a, &[&top]).await.is_some(), applied);
    }
}
