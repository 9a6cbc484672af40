//! A whole client whose operation log is on a disk that hangs.

use crate::clock::{BootClock, Clock};
use crate::config::{CacheConfig, ClientConfig, Fsync, WriteBehind, WritePolicy};
use crate::connection::TcpTransport;
use crate::hooks::NoKernel;
use crate::log::disk::DiskLog;
use crate::{Client, Entry};
use soda_protocol::{IfExists, NewNode};
use soda_server::{RunningServer, Server, ServerConfig};
use soda_types::{Creds, FileKind, FsResult, InUse, Monotonic, Name, SetAttr};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// Nobody is waited out: who asks for something gets it by an answer, or not within [`LIMIT`].
const TERM: Duration = Duration::from_secs(3000);
const LIMIT: Duration = Duration::from_secs(60);

/// Goes on by leaps.
#[derive(Debug, Default)]
struct Leaping(AtomicU64);

impl Clock for Leaping {
    fn now(&self) -> Monotonic {
        BootClock.now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn suspended(&self) -> u64 {
        0
    }
}

/// A client on two cores that delays its writes.
struct Machine {
    runtime: Runtime,
    client: Arc<Client>,
    clock: Arc<Leaping>,
    /// What the names begin with that it makes.
    name: String,
    _cache: TempDir,
}

fn two_cores() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn server(dir: &TempDir) -> RunningServer {
    server_at(dir, "127.0.0.1:0".parse().unwrap())
}

fn server_at(dir: &TempDir, addr: SocketAddr) -> RunningServer {
    let mut config = ServerConfig::new(dir.path()).with_term(TERM);
    config.listen = addr;
    config.reserve = 0;
    let began = Instant::now();
    loop {
        match Server::start(config.clone()) {
            Ok(server) => return server,
            // The one before may not be gone.
            Err(error) => assert!(began.elapsed() < LIMIT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn config(server: &RunningServer) -> ClientConfig {
    ClientConfig::new(server.local_addr().to_string(), "main")
}

async fn make(client: &Client, name: &str, kind: FileKind) -> FsResult<Entry> {
    let new = NewNode {
        kind,
        perm: 0o755,
        umask: 0,
        rdev: 0,
        target: Vec::new(),
        creds: Creds::default(),
        existing: IfExists::Fail,
        open: InUse::No,
    };
    client.create(client.root(), &Name::try_from(name).unwrap(), new).await
}

/// Not by how long it takes, but by whether it comes at all.
async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("TIMED OUT: {what}"))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}

impl Machine {
    fn start(server: &RunningServer, fsync: Fsync) -> Machine {
        let name = format!("{fsync:?}");
        let (runtime, cache, clock) = (two_cores(), tempfile::tempdir().unwrap(), Arc::<Leaping>::default());
        let behind = WriteBehind { max_age: TERM, fsync, ..WriteBehind::default() };
        let dir = Some(cache.path().to_owned());
        let config = ClientConfig {
            write: WritePolicy::Behind(behind),
            cache: CacheConfig { dir, ..CacheConfig::default() },
            ..config(server)
        };
        let client = runtime.block_on(async {
            let (clock, transport) = (Arc::clone(&clock) as Arc<dyn Clock>, Box::new(TcpTransport));
            let client = Client::connect_with(config, Box::new(NoKernel), clock, transport).await.unwrap();
            let here = || client.stats().count("here");
            for number in 0.. {
                let before = here();
                make(&client, &format!("{name}-warm{number}"), FileKind::Directory).await.unwrap();
                if here() > before {
                    break;
                }
                assert!(number < 2000, "{:?}", client.stats());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            client
        });
        Machine { runtime, client, clock, name, _cache: cache }
    }

    fn log(&self) -> Arc<DiskLog> {
        crate::lock(&self.client.inner.state).behind.disk().cloned().unwrap()
    }

    /// More changes than there are cores, each of which waits for the disk.
    fn change_much(&self) {
        let before = self.client.stats().count("here");
        for number in 0..20 {
            let (client, name) = (Arc::clone(&self.client), format!("{}-stuck{number}", self.name));
            self.runtime.spawn(async move { make(&client, &name, FileKind::Directory).await });
        }
        // Here: the workers of the machine may all be stuck.
        two_cores().block_on(until("changes begun", || self.client.stats().count("here") >= before + 2));
    }
}

#[test]
fn a_disk_that_hangs_does_not_hold_up_the_answers_to_recalls() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir);
    for fsync in [Fsync::Server, Fsync::Local] {
        let machine = Machine::start(&server, fsync);
        let told = machine.runtime.block_on(async {
            let name = format!("{}-told", machine.name);
            let entry = make(&machine.client, &name, FileKind::File).await.unwrap();
            machine.client.sync_all().await.unwrap();
            entry.node.unwrap().fid
        });
        let log = machine.log();
        let hung = log.hang();
        machine.change_much();
        // Each of these waits for the disk, too.
        for _ in 0..20 {
            let client = Arc::clone(&machine.client);
            machine.runtime.spawn(async move { client.fsync(client.root()).await });
        }
        two_cores().block_on(async {
            let other = Client::connect(config(&server), Box::new(NoKernel)).await.unwrap();
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            soon("the change of what is asked back", other.setattr(told, set)).await.unwrap();
        });
        drop(hung);
        machine.runtime.block_on(async {
            soon("the end", machine.client.shutdown()).await;
        });
    }
}

#[test]
fn a_disk_that_hangs_does_not_hold_up_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir);
    let machine = Machine::start(&server, Fsync::Server);
    let log = machine.log();
    let hung = log.hang();
    machine.change_much();
    let renewals = || machine.client.stats().count("msg_renew");
    for _ in 0..3 {
        let before = renewals();
        machine.clock.0.fetch_add(TERM.as_secs() / 3, Ordering::SeqCst);
        two_cores().block_on(until("renewal", || renewals() > before));
        // It was sent, and may not be answered yet: the clock goes on when the server has been heard.
        machine.runtime.block_on(async { soon("an answer", machine.client.statfs()).await.unwrap() });
    }
    drop(hung);
    machine.runtime.block_on(async { soon("the end", machine.client.shutdown()).await });
    assert_eq!(machine.client.stats().count("sessions_lost"), 0);
}

/// The log of the session that is lost is put aside when the disk can; who waits for the server need not wait for that.
#[test]
fn a_disk_that_hangs_does_not_hold_up_the_end_of_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir);
    let machine = Machine::start(&server, Fsync::Server);
    let untold = format!("{}-untold", machine.name);
    machine.runtime.block_on(make(&machine.client, &untold, FileKind::Directory)).unwrap();
    let log = machine.log();
    let hung = log.hang();
    let addr = server.local_addr();
    drop(server);
    // Another one in its place, which knows nothing of the session.
    let other_dir = tempfile::tempdir().unwrap();
    let server = server_at(&other_dir, addr);
    let stats = || machine.client.stats();
    two_cores().block_on(async {
        until("the end of the session", || stats().count("sessions_lost") > 0).await;
        let asking = Arc::clone(&machine.client);
        let asked = machine.runtime.spawn(async move { asking.statfs().await.map(|_| ()) });
        let _ = soon("an answer", asked).await.unwrap();
        assert_eq!(stats().count("kept_logs"), 0);
    });
    drop(hung);
    two_cores().block_on(until("it is put aside", || stats().count("kept_logs") == 1));
    assert!(stats().count("lost_records") > 0);
    machine.runtime.block_on(async { soon("the end", machine.client.shutdown()).await });
    drop(server);
}
