//! A server in this process and clients of it.

#![allow(dead_code, reason = "each program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod delayed;
pub(crate) mod far;
pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod script;
pub(crate) mod small_disk;
pub(crate) mod tools;
pub(crate) mod work;

use bytes::Bytes;
use soda_client::{
    Client, ClientConfig, KernelHooks, KillPriv, Names, NamesLock, NoKernel, OpenFile, OpenMode,
};
use soda_protocol::{IfExists, NewNode, WriteAt};
use soda_server::{BootId, DeepLeases, RunningServer, Server, ServerConfig};
use soda_types::{Creds, Fid, FileKind, InUse, Name};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub(crate) struct Cell {
    pub(crate) server: Option<RunningServer>,
    pub(crate) dir: TempDir,
    pub(crate) addr: SocketAddr,
    pub(crate) term: Duration,
    /// Of what nobody asks to be synced.
    sync_interval: Duration,
    deep_leases: DeepLeases,
    quota: Option<u64>,
    /// So many connections at most.
    pub(crate) connections: usize,
    /// Boots of the server's machine.
    boots: u32,
}

impl Cell {
    pub(crate) fn start() -> Cell {
        Cell::with_term(Duration::from_secs(3))
    }

    pub(crate) fn with_term(term: Duration) -> Cell {
        Cell::with(term, Duration::from_secs(1))
    }

    /// The server makes nothing durable unless it is asked.
    pub(crate) fn syncing_when_asked() -> Cell {
        Cell::with(Duration::from_secs(3), Duration::from_secs(3600))
    }

    /// One lease may cover a whole subtree.
    pub(crate) fn deep() -> Cell {
        Cell::start().with_deep_leases()
    }

    pub(crate) fn with_deep_leases(mut self) -> Cell {
        self.deep_leases = DeepLeases::DEFAULT_ON;
        self.restart();
        self
    }

    /// Each lease covers one object.
    pub(crate) fn without_deep_leases(mut self) -> Cell {
        self.deep_leases = DeepLeases::Off;
        self.restart();
        self
    }

    /// The volume holds so many bytes.
    pub(crate) fn with_quota(bytes: u64) -> Cell {
        let mut cell = Cell::start();
        cell.quota = Some(bytes);
        cell.restart();
        cell
    }

    fn with(term: Duration, sync_interval: Duration) -> Cell {
        let addr = "127.0.0.1:0".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        // All tests can be run with deep leases, and without.
        let deep_leases = match std::env::var_os("SODA_TEST_DEEP_LEASES") {
            Some(wanted) if wanted == "0" => DeepLeases::Off,
            Some(_) => DeepLeases::DEFAULT_ON,
            None => ServerConfig::new("").deep_leases,
        };
        let mut cell = Cell {
            server: None,
            dir,
            addr,
            term,
            sync_interval,
            deep_leases,
            quota: None,
            connections: 1000,
            boots: 1,
        };
        cell.restart();
        cell
    }

    fn config(&self) -> ServerConfig {
        let mut config = ServerConfig::new(self.dir.path()).with_term(self.term);
        config.listen = self.addr;
        config.reserve = 0;
        config.sync_interval = self.sync_interval;
        config.deep_leases = self.deep_leases;
        config.quota = self.quota;
        config.limits.connections = self.connections;
        config.boot_id = Some(BootId::new(self.boots.to_string()));
        config
    }

    /// As after a crash: nobody was told.
    pub(crate) fn stop(&mut self) {
        self.server = None;
    }

    /// The power goes. The medium has all of the journal, by chance, but not the data that was written last.
    pub(crate) fn power_cut(&mut self) {
        self.stop();
        self.boots += 1;
        let segments = std::fs::read_dir(self.dir.path().join("data")).unwrap();
        let newest = segments.map(|entry| entry.unwrap().path()).max().unwrap();
        let segment = std::fs::File::options().write(true).open(newest).unwrap();
        segment.set_len(segment.metadata().unwrap().len() - 1).unwrap();
    }

    /// What the medium has now.
    pub(crate) fn medium(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        let files = format!("{}/.", self.dir.path().display());
        let copied = std::process::Command::new("cp").arg("-a").arg(files).arg(copy.path()).status();
        assert!(copied.unwrap().success());
        copy
    }

    /// The power goes, and nothing has reached the medium since.
    pub(crate) fn power_cut_since(&mut self, medium: TempDir) {
        self.stop();
        self.boots += 1;
        self.dir = medium;
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        let began = Instant::now();
        let server = loop {
            match Server::start(self.config()) {
                Ok(server) => break server,
                Err(error) if began.elapsed() > Duration::from_secs(10) => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        self.addr = server.local_addr();
        self.server = Some(server);
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        ClientConfig::new(self.addr.to_string(), "main")
    }

    pub(crate) async fn client(&self) -> Arc<Client> {
        self.client_with(Box::new(NoKernel)).await
    }

    pub(crate) async fn client_with(&self, hooks: Box<dyn KernelHooks>) -> Arc<Client> {
        Client::connect(self.client_config(), hooks).await.unwrap()
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

pub(crate) fn new_node(kind: FileKind) -> NewNode {
    NewNode {
        kind,
        perm: 0o755,
        umask: 0,
        rdev: 0,
        target: Vec::new(),
        creds: Creds::default(),
        existing: if kind == FileKind::File { IfExists::Open } else { IfExists::Fail },
        open: InUse::No,
    }
}

/// Creates and fills a file in the root.
pub(crate) async fn file(client: &Arc<Client>, path: &str, data: impl Into<Bytes>) -> Arc<OpenFile> {
    let new = new_node(FileKind::File);
    let (_, file) = client.create_open(client.root(), &name(path), new, OpenMode::ReadWrite).await.unwrap();
    write(client, &file, 0, data).await;
    file
}

pub(crate) async fn write(client: &Arc<Client>, file: &OpenFile, at: u64, data: impl Into<Bytes>) {
    client.write_all(file, WriteAt::Offset(at), data.into(), KillPriv::Keep).await.unwrap();
}

pub(crate) async fn open(client: &Arc<Client>, path: &str) -> Arc<OpenFile> {
    let entry = client.lookup(client.root(), &name(path)).await.unwrap();
    client.open(entry.node.expect("no such file").fid, OpenMode::ReadWrite).await.unwrap()
}

pub(crate) async fn read(client: &Arc<Client>, file: &OpenFile) -> Bytes {
    client.read(file, 0, 1 << 20).await.unwrap().to_bytes()
}

/// The result of a future that must be ready at the first poll.
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("this must be answered from the cache"),
    }
}

/// Begins an operation that has to wait. When this returns it has looked into the caches, and its request is on the way, or waits
/// for a connection.
pub(crate) async fn begun<T: Send + 'static>(
    operation: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let mut operation = Box::pin(operation);
    let is_done = poll_fn(|context| Poll::Ready(operation.as_mut().poll(context).is_ready())).await;
    assert!(!is_done, "it did not have to wait");
    tokio::spawn(operation)
}

pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    wait_until(what, || std::future::ready(condition())).await;
}

/// `scripts/test` takes its complaint for that of a test that failed only because the machine was slow.
pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < Duration::from_secs(60), "TIMED OUT: not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What the kernel was told, and a moment for a test to step in.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) attrs: Mutex<Vec<Fid>>,
    pub(crate) data: Mutex<Vec<(Fid, Range<u64>)>>,
    pub(crate) names: Mutex<Vec<(Fid, Names)>>,
    pub(crate) settled: Mutex<Vec<Fid>>,
    /// How often all of it had to go.
    pub(crate) everything: Mutex<u32>,
    pub(crate) during: Mutex<Option<Box<dyn FnMut() + Send>>>,
}

pub(crate) struct Hooks(pub(crate) Arc<Told>, pub(crate) NamesLock);

impl Hooks {
    fn step_in(&self) {
        if let Some(during) = self.0.during.lock().unwrap().as_mut() {
            during();
        }
    }
}

impl KernelHooks for Hooks {
    fn invalidate_attr(&self, fid: Fid) {
        self.0.attrs.lock().unwrap().push(fid);
        self.step_in();
    }

    fn invalidate_data(&self, fid: Fid, range: Range<u64>) {
        self.0.data.lock().unwrap().push((fid, range));
        self.step_in();
    }

    fn invalidate_everything(&self) {
        *self.0.everything.lock().unwrap() += 1;
        self.step_in();
    }

    fn invalidate_names(&self, dir: Fid, names: &Names) {
        self.0.names.lock().unwrap().push((dir, names.clone()));
        self.step_in();
    }

    fn settle_names(&self, dir: Fid) {
        self.0.settled.lock().unwrap().push(dir);
        self.step_in();
    }

    fn names_lock(&self) -> NamesLock {
        self.1
    }
}
