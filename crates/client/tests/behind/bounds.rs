//! What a server that takes nothing makes a client keep, send and wait for has a bound.

use super::*;
use crate::common::relay::{Relay, Way};
use crate::common::script::{Message, Script, grant, made_here, node};
use soda_protocol::{Answer, Call, Failure};
use soda_types::{FsError, Ino, Mode, VolumeId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Nothing was done to it here.
const OTHER: Fid = Fid { volume: VolumeId(1), ino: Ino(3), generation: 0 };

/// Each sync of the server takes longer than it takes to refuse what others have written.
#[tokio::test(flavor = "multi_thread")]
async fn an_fsync_of_what_was_told_does_not_begin_again_for_each_digest_that_is_refused() {
    let Script { client, mut control, .. } = Script::writing_behind().await;
    let syncs = Arc::new(AtomicUsize::new(0));
    let (said, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let counted = Arc::clone(&syncs);
    let server = tokio::spawn(async move {
        let (mut version, mut refused, mut held) = (1, 0, None);
        loop {
            version += 1;
            let Message::Request(tag, request) = control.next().await else { continue };
            match &request.call {
                Call::GetAttr { fid: OTHER } => {
                    let grants = [grant(OTHER, Mode::Read, version)];
                    control.answer(tag, Answer::Node(node(OTHER, version, 0)), &grants).await;
                }
                Call::Sync { fid: OTHER, .. } if counted.fetch_add(1, Ordering::SeqCst) == 0 => {
                    held = Some(tag);
                    said.send(()).unwrap();
                }
                Call::Digest { .. } => {
                    let full = FsError::new(Errno::NoSpace, "a test");
                    control.fail(tag, Failure::Fs(full)).await;
                    refused += 1;
                    // The first only tells that there is no room.
                    if let Some(sync) = held.take_if(|_| refused == 2) {
                        control.answer(sync, Answer::Done, &[]).await;
                    }
                }
                call => control.answer_alone(tag, call, version).await,
            }
        }
    });
    let written = made_here(&client).await;
    let fsync = |fid: Fid| {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.fsync(fid).await })
    };
    let of_other = fsync(OTHER);
    begun.recv().await.unwrap();
    assert_eq!(fsync(written.fid()).await.unwrap().unwrap_err().errno, Errno::NoSpace);
    of_other.await.unwrap().unwrap();
    assert_eq!(syncs.load(Ordering::SeqCst), 1, "nothing that it waits for was lost");
    server.abort();
}

/// A server that takes no digest while the test wants it so, and answers all else.
pub(super) struct Stalled {
    relay: Relay,
    stalls: Arc<AtomicBool>,
}

impl Stalled {
    pub(super) async fn before(server: SocketAddr) -> Stalled {
        let stalls = Arc::new(AtomicBool::new(false));
        let does = Arc::clone(&stalls);
        let relay = Relay::before(server, move |call| match call {
            Call::Digest { .. } if does.load(Ordering::SeqCst) => Way::Waits,
            _ => Way::Passes,
        });
        Stalled { relay: relay.await, stalls }
    }

    /// A client that tells nothing before it has to.
    pub(super) async fn writer(&self, cell: &Cell, behind: WriteBehind) -> Arc<Client> {
        let behind = WriteBehind { max_age: Duration::from_secs(3600), ..behind };
        let write = WritePolicy::Behind(behind);
        writer_with(ClientConfig { server: self.relay.addr.to_string(), write, ..cell.client_config() }).await
    }

    pub(super) fn begin(&self) {
        self.stalls.store(true, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        self.stalls.store(false, Ordering::SeqCst);
        self.relay.let_go();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_writes_more_than_may_wait_waits_for_the_answers_and_asks_for_nothing_else() {
    let cell = Cell::start();
    let stalled = Stalled::before(cell.addr).await;
    let a = stalled.writer(&cell, WriteBehind { max_bytes: 64 << 10, ..WriteBehind::default() }).await;
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    stalled.begin();
    let before = a.stats();
    let writing = ["1", "2", "3"].map(|who| {
        let a = Arc::clone(&a);
        tokio::spawn(async move {
            for number in 0..20 {
                make(&a, dir, &format!("{who} {number}"), &"x".repeat(8 << 10)).await;
            }
        })
    });
    let grew = |what| a.stats().count(what) - before.count(what);
    wait_until("a full log", || async { grew("log_full") >= 3 && grew("msg_digest") > 0 }).await;
    // As many round trips as a busy loop would have had.
    for number in 0..50 {
        a.statfs().await.unwrap();
        a.lookup(a.root(), &name(&format!("not there {number}"))).await.unwrap();
    }
    assert!(writing.iter().all(|writer| !writer.is_finished()));
    assert_eq!(
        (grew("msg_sync"), grew("log_full")),
        (0, 3),
        "each waits once, as long as nothing is answered"
    );
    stalled.end();
    for writer in writing {
        writer.await.unwrap();
    }
    let b = cell.client().await;
    assert_eq!(contents(&b, &["d", "3 19"]).await.len(), 8 << 10);
}

/// What gives space back is not refused for want of it, and so was not bounded by what may wait.
#[tokio::test(flavor = "multi_thread")]
async fn what_frees_space_waits_for_a_server_that_takes_nothing_when_twice_as_much_is_in_memory_as_may_wait()
{
    const MOST: usize = 20;
    const MUCH: usize = 5 * MOST;
    let cell = Cell::start();
    let stalled = Stalled::before(cell.addr).await;
    let a = stalled.writer(&cell, WriteBehind { max_records: MOST, ..WriteBehind::default() }).await;
    let top = mkdir(&a, a.root(), "d").await;
    for number in 0..MUCH {
        make(&a, top, &format!("file {number}"), "x").await;
        mkdir(&a, top, &format!("dir {number}")).await;
    }
    let file = make(&a, top, "cut", "x").await;
    for what in ["file", "dir", "cut"] {
        a.sync_all().await.unwrap();
        stalled.begin();
        let waits = a.stats().count("log_full");
        let freeing = {
            let a = Arc::clone(&a);
            tokio::spawn(async move {
                for number in 0..MUCH {
                    let at = name(&format!("{what} {number}"));
                    match what {
                        "file" => a.unlink(top, &at).await.unwrap(),
                        "dir" => a.rmdir(top, &at).await.unwrap(),
                        _ => {
                            let nothing = SetAttr { size: Some(0), ..SetAttr::default() };
                            a.setattr(file, nothing).await.unwrap();
                        }
                    }
                }
            })
        };
        wait_until("an end, or a wait", || async {
            freeing.is_finished() || a.stats().count("log_full") > waits
        })
        .await;
        let records = a.session().backlog.records as usize;
        assert!(!freeing.is_finished() && records == 2 * MOST, "{what}: {records} of {MUCH}");
        stalled.end();
        freeing.await.unwrap();
    }
    a.sync_all().await.unwrap();
    let b = cell.client().await;
    assert_eq!(b.getattr(top).await.unwrap().value.nlink, 2);
    assert_eq!(find(&b, &["d", "file 0"]).await, None);
    assert_eq!(contents(&b, &["d", "cut"]).await, "");
    assert_eq!(a.stats().count("lost_records"), 0);
}
