//! The store refuses what nobody waits for, then takes it: the server tries again by itself, and until then nobody is
//! told anything that a restart could take back.

use crate::common::watched::{WatchMeta, WatchedMeta};
use crate::common::*;
use bytes::Bytes;
use soda_protocol::{Answer, Call, Delegable, LockWait, Note, Reclaim, ReclaimStep};
use soda_server::{RunningServer, Server, Stores};
use soda_storage::{Batch, Change, MemoryData, MemoryMeta, MetaStore, StorageError, StorageResult, Table};
use soda_types::{Errno, InUse, Lock, LockFamily, LockMode, LockOwner};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Metadata that refuses to forget records of a table.
#[derive(Debug, Default)]
struct Refusing {
    refused: Mutex<Option<Table>>,
    refusals: AtomicU32,
    syncs: AtomicU32,
}

impl Refusing {
    fn refuse(&self, table: Option<Table>) {
        *self.refused.lock().unwrap() = table;
    }

    fn refusals(&self) -> u32 {
        self.refusals.load(Ordering::SeqCst)
    }

    fn syncs(&self) -> u32 {
        self.syncs.load(Ordering::SeqCst)
    }
}

impl WatchMeta for Refusing {
    fn commit(&self, meta: &MemoryMeta, batch: Batch) -> StorageResult<()> {
        let refused = *self.refused.lock().unwrap();
        let forgets =
            |change: &Change| matches!(change, Change::Delete { table, .. } if Some(*table) == refused);
        if batch.changes.iter().any(forgets) {
            self.refusals.fetch_add(1, Ordering::SeqCst);
            let source = std::io::Error::other("a test");
            return Err(StorageError::Io { doing: "refusing".to_owned(), source });
        }
        meta.commit(batch)
    }

    fn sync(&self, meta: &MemoryMeta) -> StorageResult<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        meta.sync()
    }
}

struct Cell {
    meta: Arc<WatchedMeta<Refusing>>,
    data: Arc<MemoryData>,
}

impl Cell {
    fn new() -> Cell {
        Cell { meta: Arc::default(), data: Arc::default() }
    }

    fn start(&self) -> RunningServer {
        let stores = Stores { meta: self.meta.clone(), data: self.data.clone(), path: "memory".into() };
        let mut config = config(Path::new("unused"));
        config.sync_interval = Duration::from_secs(3600);
        Server::start_on(stores, config).unwrap()
    }
}

const EXCLUSIVE: Lock = Lock {
    family: LockFamily::Record,
    owner: LockOwner(1),
    pid: 1,
    start: 0,
    end: u64::MAX,
    mode: LockMode::Exclusive,
};

// SEMANTICS 29
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_session_whose_end_is_not_stored_stay_until_it_is() {
    let cell = Cell::new();
    let server = cell.start();
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let set = |wait| Call::LockSet { fid: file, lock: EXCLUSIVE, wait, delegable: Delegable::No };
    one.ask(set(LockWait::No)).await.result.unwrap();
    cell.meta.refuse(Some(Table::Session));
    assert_eq!(
        errno(one.ask(Call::Goodbye).await.result),
        Errno::Io,
        "it would be waited for after a restart"
    );
    assert_eq!(errno(two.ask(set(LockWait::No)).await.result), Errno::TryAgain);
    let (_, mut waits) = two.connection().send(None, set(LockWait::Yes), Bytes::new()).await;
    let before = cell.meta.refusals();
    until("it is tried again", async || cell.meta.refusals() > before).await;
    assert!(waits.try_recv().is_err());
    cell.meta.refuse(None);
    let answer = tokio::time::timeout(PATIENCE, waits).await.expect(TIMED_OUT).unwrap();
    assert_eq!(answer.0.result, Ok(Answer::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_because_its_end_was_not_stored_is_alone_with_its_lock() {
    let cell = Cell::new();
    let server = cell.start();
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let set = Call::LockSet { fid: file, lock: EXCLUSIVE, wait: LockWait::No, delegable: Delegable::No };
    one.ask(set.clone()).await.result.unwrap();
    cell.meta.refuse(Some(Table::Session));
    one.ask(Call::Goodbye).await.result.unwrap_err();
    let theirs = two.ask(set.clone()).await.result;
    drop(server);

    let server = cell.start();
    let reclaim =
        |locks| Call::Reclaim(Reclaim { leases: vec![], open: vec![], locks, step: ReclaimStep::Last });
    let two = Client::resume(&server, two.key()).await;
    let kept = if theirs.is_ok() { vec![(file, EXCLUSIVE)] } else { vec![] };
    two.ask(reclaim(kept)).await.result.unwrap();
    let one = Client::resume(&server, one.key()).await;
    one.ask(reclaim(vec![(file, EXCLUSIVE)])).await.result.unwrap();
    let other = Lock { owner: LockOwner(2), ..EXCLUSIVE };
    let test = two.ask(Call::LockTest { fid: file, lock: other }).await.result;
    assert_eq!((theirs.is_ok(), test), (false, Ok(Answer::Conflict(Some(EXCLUSIVE)))), "one owner");
}

/// Otherwise the former owner could come back after a power cut and reclaim it beside the next one.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_is_durable_before_others_get_its_locks() {
    let cell = Cell::new();
    let server = cell.start();
    let (one, two, third) =
        (Client::connect(&server).await, Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let set = Call::LockSet { fid: file, lock: EXCLUSIVE, wait: LockWait::No, delegable: Delegable::No };
    one.ask(set.clone()).await.result.unwrap();
    two.sync().await;
    let before = cell.meta.syncs();
    third.ask(Call::Goodbye).await.result.unwrap();
    assert_eq!(cell.meta.syncs(), before, "it had none");
    one.ask(Call::Goodbye).await.result.unwrap();
    two.ask(set).await.result.unwrap();
    assert_eq!(cell.meta.syncs(), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inode_without_a_name_that_could_not_be_deleted_is_deleted_later() {
    let cell = Cell::new();
    let server = cell.start();
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    client.unlink(client.root, "file", InUse::Yes).await.unwrap();
    cell.meta.refuse(Some(Table::Orphan));
    client.note(Note::Closed(vec![file])).await;
    until("it is tried again", async || cell.meta.refusals() >= 2).await;
    assert!(client.exists(file).await);
    cell.meta.refuse(None);
    until("it is gone", async || !client.exists(file).await).await;
}
