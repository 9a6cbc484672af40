//! fsync asks for the sync along with the digest that it waits for: one round trip for both. Whatever becomes of one of them, it
//! returns for what the server's disk has.

use super::*;
use crate::common::far::Far;
use crate::common::relay::{Relay, Way};
use soda_protocol::Call;
use std::collections::VecDeque;
use std::sync::Mutex;
use tokio::task::JoinHandle;

/// What a client tells, and asks for the sake of a file, in the order in which it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Digest,
    /// Along with one, in the same round trip.
    SyncAlong,
    Sync,
}

/// What becomes of the next digests and syncs of files; all later ones pass.
#[derive(Default)]
struct Fates {
    heard: Vec<Heard>,
    ways: VecDeque<Way>,
}

struct Watched {
    relay: Relay,
    fates: Arc<Mutex<Fates>>,
}

impl Watched {
    async fn before(server: SocketAddr) -> Watched {
        let fates = Arc::<Mutex<Fates>>::default();
        let seen = Arc::clone(&fates);
        let root = soda_types::Ino::ROOT;
        let relay = Relay::before(server, move |call| {
            let heard = match call {
                Call::Digest { .. } => Heard::Digest,
                Call::Sync { after: Some(_), .. } => Heard::SyncAlong,
                // The log asks for those of the root by itself, now and then.
                Call::Sync { fid, .. } if fid.ino != root => Heard::Sync,
                _ => return Way::Passes,
            };
            let mut fates = seen.lock().unwrap();
            fates.heard.push(heard);
            fates.ways.pop_front().unwrap_or(Way::Passes)
        });
        Watched { relay: relay.await, fates }
    }

    /// From now on.
    fn begin(&self, ways: &[Way]) {
        *self.fates.lock().unwrap() = Fates { heard: Vec::new(), ways: ways.iter().copied().collect() };
    }

    fn heard(&self) -> Vec<Heard> {
        self.fates.lock().unwrap().heard.clone()
    }

    async fn hears(&self, what: &[Heard]) {
        wait_until("what is asked", || async { self.heard() == what }).await;
    }
}

fn fsync(client: &Arc<Client>, fid: Fid) -> JoinHandle<soda_types::FsResult<()>> {
    let client = Arc::clone(client);
    tokio::spawn(async move { client.fsync(fid).await })
}

/// A client with a file that the server's disk has, as it does all else, and its directory.
async fn with_a_file(server: SocketAddr, cell: &Cell) -> (Arc<Client>, Fid, Arc<soda_client::OpenFile>) {
    let a = writer_with(ClientConfig { server: server.to_string(), ..patient(cell) }).await;
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "before").await;
    a.sync_all().await.unwrap();
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    (a, dir, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_and_what_is_made_is_on_the_servers_disk_after_one_round_trip() {
    let cell = Cell::start();
    let watched = Watched::before(cell.addr).await;
    let (a, dir, file) = with_a_file(watched.relay.addr, &cell).await;
    for number in 0..5 {
        watched.begin(&[]);
        write(&a, &file, 0, format!("after{number}")).await;
        a.fsync_file(&file).await.unwrap();
        assert_eq!(watched.heard(), [Heard::Digest, Heard::SyncAlong]);
        watched.begin(&[]);
        let made = make(&a, dir, &number.to_string(), "x").await;
        a.fsync(made).await.unwrap();
        assert_eq!(watched.heard(), [Heard::Digest, Heard::SyncAlong]);
        // Of what the server has been told there is only the sync.
        watched.begin(&[]);
        a.fsync(made).await.unwrap();
        assert_eq!(watched.heard(), [Heard::Sync]);
    }
    assert_eq!(contents(&cell.client().await, &["d", "f"]).await, "after4");
}

/// The answers come when the test wants it.
#[tokio::test(flavor = "multi_thread")]
async fn both_are_on_the_way_before_either_has_an_answer() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let watched = Watched::before(proxy.addr).await;
    let (a, _, file) = with_a_file(watched.relay.addr, &cell).await;
    watched.begin(&[]);
    proxy.set(Weather::RepliesLost);
    write(&a, &file, 0, "after!").await;
    let fsync = fsync(&a, file.fid());
    watched.hears(&[Heard::Digest, Heard::SyncAlong]).await;
    assert!(!fsync.is_finished());
    proxy.set(Weather::Fine);
    fsync.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_calls_fsync_for_a_digest_that_is_refused_hears_it_whatever_comes_of_the_sync() {
    let cell = Cell::start();
    let far = Far::before(cell.addr, Duration::from_millis(1)).await;
    let watched = Watched::before(far.addr).await;
    let (a, _, file) = with_a_file(watched.relay.addr, &cell).await;
    watched.begin(&[]);
    far.refuse(0, Errno::Io);
    write(&a, &file, 0, "after!").await;
    assert_eq!(a.fsync_file(&file).await.unwrap_err().errno, Errno::Io);
    wait_until("both", || async { watched.heard().len() >= 2 }).await;
    assert_eq!(watched.heard()[..2], [Heard::Digest, Heard::SyncAlong]);
    a.fsync_file(&file).await.unwrap();
    assert_eq!(contents(&cell.client().await, &["d", "f"]).await, "after!");
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_is_turned_away_comes_again_and_then_the_sync_by_itself() {
    let cell = Cell::start();
    let far = Far::before(cell.addr, Duration::from_millis(1)).await;
    let watched = Watched::before(far.addr).await;
    let (a, _, file) = with_a_file(watched.relay.addr, &cell).await;
    watched.begin(&[]);
    far.turn_away(0);
    write(&a, &file, 0, "after!").await;
    a.fsync_file(&file).await.unwrap();
    assert_eq!(watched.heard(), [Heard::Digest, Heard::SyncAlong, Heard::Digest, Heard::Sync]);
    assert_eq!(a.stats().count("busy_waits"), 1);
}

/// Before the digest, and between the two.
#[tokio::test(flavor = "multi_thread")]
async fn over_another_connection_both_are_sent_again() {
    for ways in [&[Way::Breaks][..], &[Way::Passes, Way::Breaks]] {
        let cell = Cell::start();
        let watched = Watched::before(cell.addr).await;
        let (a, _, file) = with_a_file(watched.relay.addr, &cell).await;
        watched.begin(ways);
        write(&a, &file, 0, "after!").await;
        a.fsync_file(&file).await.unwrap();
        let heard = watched.heard();
        assert_eq!(heard.iter().filter(|heard| **heard == Heard::Sync).count(), 0, "{heard:?}");
        assert_eq!(heard.last(), Some(&Heard::SyncAlong), "{heard:?}");
        assert_eq!(a.stats().count("lost_records") + a.stats().count("sessions_lost"), 0);
        assert_eq!(contents(&cell.client().await, &["d", "f"]).await, "after!");
    }
}

/// It has applied the digest, and comes back with it; or the power is gone, and it comes back without.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_between_the_two_has_both_when_fsync_returns() {
    for loses in [false, true] {
        let mut cell = Cell::syncing_when_asked();
        let watched = Watched::before(cell.addr).await;
        let (a, _, file) = with_a_file(watched.relay.addr, &cell).await;
        let medium = cell.medium();
        watched.begin(&[Way::Passes, Way::Waits]);
        write(&a, &file, 0, "after!").await;
        let fsync = fsync(&a, file.fid());
        watched.hears(&[Heard::Digest, Heard::SyncAlong]).await;
        told(&a).await;
        assert!(!fsync.is_finished());
        if loses {
            cell.power_cut_since(medium);
        }
        cell.restart();
        fsync.await.unwrap().unwrap();
        let heard = watched.heard();
        let digests: Vec<usize> = (0..heard.len()).filter(|at| heard[*at] == Heard::Digest).collect();
        if loses {
            assert_eq!(digests.len(), 2, "{heard:?}");
            assert!(digests[1] < heard.len() - 1, "a sync comes after it: {heard:?}");
        } else {
            assert_eq!(heard, [Heard::Digest, Heard::SyncAlong, Heard::SyncAlong]);
        }
        let stats = a.stats();
        assert_eq!((stats.count("lost_records"), stats.count("sessions_lost")), (0, 0), "{heard:?}");
        assert_eq!(contents(&cell.client().await, &["d", "f"]).await, "after!");
    }
}

/// Each makes files and waits for the server's disk. After the last the medium has all of them.
#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_share_digests_and_the_syncs_along_with_them() {
    const THREADS: usize = 8;
    const FILES: usize = 20;
    let cell = Cell::syncing_when_asked();
    let watched = Watched::before(cell.addr).await;
    let (a, dir, _) = with_a_file(watched.relay.addr, &cell).await;
    watched.begin(&[]);
    let threads: Vec<JoinHandle<()>> = (0..THREADS)
        .map(|thread| {
            let a = Arc::clone(&a);
            tokio::spawn(async move {
                for number in 0..FILES {
                    let made = make(&a, dir, &format!("{thread} {number}"), "x").await;
                    a.fsync(made).await.unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.await.unwrap();
    }
    let heard = watched.heard();
    let count = |what| heard.iter().filter(|heard| **heard == what).count();
    let (digests, along, syncs) = (count(Heard::Digest), count(Heard::SyncAlong), count(Heard::Sync));
    assert!(digests < THREADS * FILES && along <= digests, "{digests} {along}");
    assert!(syncs <= digests, "{syncs} of who came while his digest was under way");
    let b = cell.client().await;
    assert_eq!(contents(&b, &["d", &format!("{} {}", THREADS - 1, FILES - 1)]).await, "x");
}
