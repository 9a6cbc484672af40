//! Those who call fsync at once share digests and syncs (group commit): what each of them was told is so, also where the disk is
//! slow, the session ends or the power goes between the digest and the sync.

use super::*;
use crate::common::relay::{Relay, Way};
use crate::replay::logs;
use soda_client::Fsync;
use soda_protocol::Call;
use std::sync::Mutex;
use tokio::task::JoinHandle;

/// What a client tells and asks that matters here, in the order in which it gets to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Digest,
    Sync,
}

/// A server whose syncs do not end before the test wants it, as with a slow disk.
struct Slow {
    relay: Relay,
    heard: Arc<Mutex<Vec<Heard>>>,
    is_slow: Arc<Mutex<bool>>,
}

impl Slow {
    async fn before(server: SocketAddr) -> Slow {
        let (heard, is_slow) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(false)));
        let (log, slow) = (Arc::clone(&heard), Arc::clone(&is_slow));
        let relay = Relay::before(server, move |call| {
            let what = match call {
                Call::Digest { .. } => Heard::Digest,
                Call::Sync { .. } => Heard::Sync,
                _ => return Way::Passes,
            };
            log.lock().unwrap().push(what);
            if what == Heard::Sync && *slow.lock().unwrap() { Way::Waits } else { Way::Passes }
        });
        Slow { relay: relay.await, heard, is_slow }
    }

    /// From now on syncs do not end.
    fn begin(&self) {
        *self.is_slow.lock().unwrap() = true;
        self.heard.lock().unwrap().clear();
    }

    fn end(&self) {
        *self.is_slow.lock().unwrap() = false;
        self.relay.let_go();
    }

    fn syncs(&self) -> usize {
        self.heard.lock().unwrap().iter().filter(|heard| **heard == Heard::Sync).count()
    }

    fn last_heard(&self) -> Option<Heard> {
        self.heard.lock().unwrap().last().copied()
    }
}

fn fsync(client: &Arc<Client>, fid: Fid) -> JoinHandle<soda_types::FsResult<()>> {
    let client = Arc::clone(client);
    tokio::spawn(async move { client.fsync(fid).await })
}

// SEMANTICS 48
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_told_that_a_slow_disk_has_it_before_it_has() {
    let cell = Cell::syncing_when_asked();
    let slow = Slow::before(cell.addr).await;
    let a = writer_at(&cell, slow.relay.addr).await;
    slow.begin();
    let first = fsync(&a, make(&a, a.root(), "first", "x").await);
    wait_until("a sync", || async { slow.syncs() > 0 }).await;
    let mut others = Vec::new();
    for number in 0..20 {
        others.push(fsync(&a, make(&a, a.root(), &number.to_string(), "x").await));
    }
    told(&a).await;
    wait_until("the last sync", || async { slow.last_heard() == Some(Heard::Sync) }).await;
    assert!(!first.is_finished() && others.iter().all(|other| !other.is_finished()));
    slow.end();
    first.await.unwrap().unwrap();
    for other in others {
        other.await.unwrap().unwrap();
    }
    assert_eq!(slow.last_heard(), Some(Heard::Sync), "nothing was told that no sync came after");
}

/// A client whose session ends while the server's disk works for its fsync.
struct Ended {
    cell: Cell,
    slow: Slow,
    _proxy: Arc<Proxy>,
    a: Arc<Client>,
    file: Arc<soda_client::OpenFile>,
    fsync: JoinHandle<soda_types::FsResult<()>>,
    /// From before the last write.
    medium: tempfile::TempDir,
}

async fn ended_before_the_sync() -> Ended {
    let cell = Cell::syncing_when_asked();
    let proxy = Proxy::before(cell.addr).await;
    let slow = Slow::before(proxy.addr).await;
    let a = writer_at(&cell, slow.relay.addr).await;
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "before").await;
    a.sync_all().await.unwrap();
    let medium = cell.medium();
    slow.begin();
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 0, "after!").await;
    let fsync = fsync(&a, fid);
    wait_until("a sync", || async { slow.syncs() > 0 }).await;
    // It may have been sent along with the digest.
    told(&a).await;
    proxy.set(Weather::Cut);
    let b = cell.client().await;
    // In conflict with leases of the silent session: it is ended.
    assert_eq!(contents(&b, &["d", "f"]).await, "after!");
    b.shutdown().await;
    proxy.set(Weather::Fine);
    wait_until("another session", || async { a.stats().count("sessions_lost") == 1 }).await;
    Ended { cell, slow, _proxy: proxy, a, file, fsync, medium }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_has_is_synced_although_the_session_ends_in_between() {
    let Ended { cell: _cell, slow, _proxy, a, file, fsync, medium: _medium } = ended_before_the_sync().await;
    slow.end();
    fsync.await.unwrap().expect("the server has it, and has synced it");
    a.fsync_file(&file).await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}

/// The server had applied it, for a session that has ended: nobody can tell it again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_power_cut_takes_after_the_end_of_the_session_is_said() {
    let Ended { mut cell, slow, _proxy, a, file, fsync, medium } = ended_before_the_sync().await;
    cell.power_cut_since(medium);
    cell.restart();
    slow.end();
    wait_until("the third session", || async { a.stats().count("sessions_lost") == 2 }).await;
    assert_eq!(fsync.await.unwrap().unwrap_err().errno, Errno::Io);
    assert_eq!(a.fsync_file(&file).await.unwrap_err().errno, Errno::Io, "to each who had it open");
}

// SEMANTICS 52
#[tokio::test(flavor = "multi_thread")]
async fn what_fsync_was_content_with_this_machine_for_stays_here_until_the_servers_disk_has_it() {
    for loses in [false, true] {
        let mut cell = Cell::syncing_when_asked();
        let proxy = Proxy::before(cell.addr).await;
        let slow = Slow::before(proxy.addr).await;
        let cache = tempfile::tempdir().unwrap();
        let max_age = Duration::from_millis(10);
        let behind = WriteBehind { max_age, fsync: Fsync::Local, ..WriteBehind::default() };
        let write_policy = WritePolicy::Behind(behind);
        let server = slow.relay.addr.to_string();
        let mut config = ClientConfig { server, write: write_policy, ..cell.client_config() };
        config.cache.dir = Some(cache.path().to_owned());
        let a = writer_with(config).await;
        let fid = make(&a, a.root(), "f", "before").await;
        a.sync_all().await.unwrap();
        let medium = cell.medium();
        slow.begin();
        let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
        write(&a, &file, 0, "after!").await;
        a.fsync(fid).await.unwrap();
        assert_eq!(a.stats().count("fsyncs_local"), 1);
        told(&a).await;
        proxy.set(Weather::Cut);
        // In conflict with leases of the silent session: it is ended.
        let b = cell.client().await;
        assert_eq!(contents(&b, &["f"]).await, "after!");
        b.shutdown().await;
        proxy.set(Weather::Fine);
        wait_until("another session", || async { a.stats().count("sessions_lost") == 1 }).await;
        if loses {
            cell.power_cut_since(medium);
            cell.restart();
            wait_until("the third session", || async { a.stats().count("sessions_lost") == 2 }).await;
            slow.end();
            wait_until("what it has lost is kept", || async { a.stats().count("kept_logs") == 1 }).await;
        } else {
            assert_eq!(logs(cache.path()).len(), 2, "that of the session that has ended, and of this one");
            slow.end();
            wait_until("nobody needs it", || async { logs(cache.path()).len() == 1 }).await;
            assert_eq!(a.stats().count("kept_logs"), 0);
        }
    }
}

// SEMANTICS 48
#[tokio::test(flavor = "multi_thread")]
async fn what_a_power_cut_takes_before_the_sync_is_told_again_first() {
    let mut cell = Cell::syncing_when_asked();
    let slow = Slow::before(cell.addr).await;
    let a = writer_at(&cell, slow.relay.addr).await;
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    let medium = cell.medium();
    slow.begin();
    let fsync = fsync(&a, make(&a, dir, "f", "here").await);
    wait_until("a sync", || async { slow.syncs() > 0 }).await;
    cell.power_cut_since(medium);
    cell.restart();
    slow.begin();
    wait_until("a sync after a digest", || async {
        let heard = slow.heard.lock().unwrap();
        let digest = heard.iter().position(|heard| *heard == Heard::Digest);
        digest.is_some_and(|at| heard[at..].contains(&Heard::Sync))
    })
    .await;
    assert!(!fsync.is_finished());
    slow.end();
    fsync.await.unwrap().unwrap();
    assert_eq!(contents(&cell.client().await, &["d", "f"]).await, "here");
    assert_eq!(a.stats().count("lost_records"), 0);
}
