//! Clients that delay their writes, and what tests do with them.

use crate::common::*;
use soda_client::{Client, ClientConfig, Fsync, NoKernel, OpenMode, WriteBehind, WritePolicy};
use soda_types::{Fid, FileKind};
use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A write of so many bytes goes past the log.
pub(crate) const PAST_THE_LOG: usize = (1 << 20) + 1;

/// Nothing is told before somebody asks; the log is on the disk.
pub(crate) fn caching(cell: &Cell, server: SocketAddr, cache: &Path) -> ClientConfig {
    let behind = WriteBehind { max_age: Duration::from_secs(3600), ..WriteBehind::default() };
    let mut config = ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() };
    config.server = server.to_string();
    config.cache.dir = Some(cache.to_owned());
    config
}

/// Connects, and sees to it that the next changes of the root are made here.
pub(crate) async fn writer_with(cell: &Cell, config: ClientConfig) -> Arc<Client> {
    let client = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    warm_up(&client, cell.addr).await;
    client
}

/// A client that will be killed: in a runtime of its own, which goes with all that it is doing.
pub(crate) struct Victim {
    pub(crate) runtime: Runtime,
    pub(crate) client: Arc<Client>,
    pub(crate) cache: TempDir,
}

impl Victim {
    pub(crate) async fn start(cell: &Cell) -> Victim {
        Victim::start_at(cell, cell.addr).await
    }

    pub(crate) async fn start_at(cell: &Cell, server: SocketAddr) -> Victim {
        let cache = tempfile::tempdir().unwrap();
        let config = caching(cell, server, cache.path());
        Victim::connect(cell, cache, config).await
    }

    pub(crate) async fn with(cell: &Cell, fsync: Fsync) -> Victim {
        Victim::with_at(cell, cell.addr, fsync).await
    }

    pub(crate) async fn with_at(cell: &Cell, server: SocketAddr, fsync: Fsync) -> Victim {
        let cache = tempfile::tempdir().unwrap();
        let mut config = caching(cell, server, cache.path());
        if let WritePolicy::Behind(behind) = &mut config.write {
            behind.fsync = fsync;
        }
        Victim::connect(cell, cache, config).await
    }

    /// However much it does, nothing is told before somebody asks.
    pub(crate) async fn that_only_logs(cell: &Cell) -> Victim {
        let cache = tempfile::tempdir().unwrap();
        let mut config = caching(cell, cell.addr, cache.path());
        if let WritePolicy::Behind(behind) = &mut config.write {
            behind.digest_bytes = u64::MAX;
        }
        Victim::connect(cell, cache, config).await
    }

    /// It has done nothing yet.
    pub(crate) async fn cold(cell: &Cell) -> Victim {
        let cache = tempfile::tempdir().unwrap();
        let config = caching(cell, cell.addr, cache.path());
        Victim::connect_cold(cache, config).await
    }

    pub(crate) async fn connect(cell: &Cell, cache: TempDir, config: ClientConfig) -> Victim {
        let victim = Victim::connect_cold(cache, config).await;
        let addr = cell.addr;
        victim.run(|client| async move { warm_up(&client, addr).await }).await;
        victim
    }

    async fn connect_cold(cache: TempDir, config: ClientConfig) -> Victim {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let connect = async move { Client::connect(config, Box::new(NoKernel)).await.unwrap() };
        let client = runtime.spawn(connect).await.unwrap();
        Victim { runtime, client, cache }
    }

    /// Works with the client, where it lives.
    pub(crate) async fn run<T, F>(&self, work: impl FnOnce(Arc<Client>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.runtime.spawn(work(Arc::clone(&self.client))).await.unwrap()
    }

    /// As `kill -9`. Returns the cache directory as it leaves it (a copy: the locks of its files are those of this process).
    pub(crate) fn kill(self) -> TempDir {
        self.runtime.shutdown_background();
        std::mem::forget(self.client);
        let copy = tempfile::tempdir().unwrap();
        copy_dir(self.cache.path(), copy.path());
        copy
    }
}

pub(crate) async fn warm_up(client: &Arc<Client>, addr: SocketAddr) {
    for number in 0.. {
        let unheard_of = format!("warm {addr} {number}");
        let before = client.stats().count("here");
        mkdir(client, client.root(), &unheard_of).await;
        client.rmdir(client.root(), &name(&unheard_of)).await.unwrap();
        if client.stats().count("here") == before + 2 {
            break;
        }
        assert!(number < 2000, "{:?}", client.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    client.sync_all().await.unwrap();
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub(crate) async fn mkdir(client: &Arc<Client>, parent: Fid, text: &str) -> Fid {
    let entry = client.create(parent, &name(text), new_node(FileKind::Directory)).await.unwrap();
    entry.node.unwrap().fid
}

/// Creates a file, or opens it, and writes its beginning.
pub(crate) async fn make(client: &Arc<Client>, parent: Fid, text: &str, data: &str) -> Fid {
    let new = new_node(FileKind::File);
    let (_, file) = client.create_open(parent, &name(text), new, OpenMode::ReadWrite).await.unwrap();
    write(client, &file, 0, data.to_owned()).await;
    file.fid()
}

pub(crate) async fn find(client: &Arc<Client>, path: &[&str]) -> Option<Fid> {
    let mut at = client.root();
    for text in path {
        at = client.lookup(at, &name(text)).await.unwrap().node?.fid;
    }
    Some(at)
}

pub(crate) async fn contents(client: &Arc<Client>, path: &[&str]) -> String {
    let fid = find(client, path).await.expect("no such file");
    let file = client.open(fid, OpenMode::Read).await.unwrap();
    String::from_utf8(read(client, &file).await.to_vec()).unwrap()
}
