//! Locks on what was made here and is not told: nobody else can know it, so they are taken without a word, and known to the
//! server as soon as the file is.

use super::*;
use crate::common::far::Far;
use crate::common::script::{Message, Peer, Script, made_here};
use crate::lock_delegation::{flock, in_the_way, lock, lock_messages, take};
use soda_client::OpenFile;
use soda_protocol::{Answer, Call, FrameKind, LockFamily, LockMode, LockWait, OpId, Push, Request, Standing};
use soda_types::{Epoch, LockOwner};
use std::collections::BTreeMap;

/// A file that the server does not know, with the first ten bytes locked.
async fn locked_file(a: &Arc<Client>, text: &str) -> Arc<OpenFile> {
    let f = file(a, text, "x").await;
    at_once(a.lock_set(&f, lock(1, 0, 9), LockWait::Yes)).unwrap();
    f
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_what_was_made_here_cost_no_message() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let digests = a.stats().count("msg_digest");
    for number in 0..100 {
        let f = locked_file(&a, &format!("f{number}")).await;
        at_once(a.lock_set(&f, flock(7, LockMode::Shared), LockWait::Yes)).unwrap();
        assert_eq!(at_once(a.lock_test(f.fid(), lock(2, 0, 99))).unwrap(), Some(lock(1, 0, 9)));
        let busy = at_once(a.lock_set(&f, lock(2, 9, 9), LockWait::No)).unwrap_err();
        assert_eq!(busy.errno, Errno::TryAgain);
        at_once(a.lock_release(f.fid(), lock(1, 0, 9))).unwrap();
        at_once(a.lock_release_owner(f.fid(), LockFamily::Flock, LockOwner(7))).unwrap();
    }
    assert_eq!((lock_messages(&a), a.stats().count("msg_digest") - digests), (0, 0));
    assert_eq!(a.session().delegated_locks, 100);
}

// SEMANTICS 26, 29
#[tokio::test(flavor = "multi_thread")]
async fn whoever_finds_a_file_finds_the_locks_of_who_made_it() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let f = locked_file(&a, "f").await;
    let theirs = open(&b, "f").await;
    // Told, and decided about here still.
    at_once(a.lock_set(&f, lock(2, 20, 29), LockWait::No)).unwrap();
    assert_eq!(lock_messages(&a), 0);
    assert_eq!(take(&b, &theirs, lock(1, 25, 25)).await, Err(Errno::TryAgain));
    assert_eq!(in_the_way(&b, f.fid(), lock(1, 0, 99)).await, Some((0, 9)));
    assert_eq!((a.stats().count("lock_recalls"), a.session().delegated_locks), (1, 0));
    a.lock_release(f.fid(), lock(1, 0, 9)).await.unwrap();
    take(&b, &theirs, lock(1, 0, 9)).await.unwrap();
}

/// Into a directory that others list, by a rename and by a second name.
#[tokio::test(flavor = "multi_thread")]
async fn locks_go_along_to_where_others_look() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let shared = mkdir(&b, b.root(), "shared").await;
    let top = mkdir(&a, a.root(), "own").await;
    for (number, text) in ["f", "g"].into_iter().enumerate() {
        let new = new_node(FileKind::File);
        let (_, f) = a.create_open(top, &name(text), new, OpenMode::ReadWrite).await.unwrap();
        at_once(a.lock_set(&f, lock(1, 0, 9), LockWait::No)).unwrap();
        assert!(b.lookup(shared, &name(text)).await.unwrap().node.is_none());
        if number == 0 {
            a.rename(top, &name(text), shared, &name(text), RenameHow::Plain).await.unwrap();
        } else {
            a.link(f.fid(), shared, &name(text)).await.unwrap();
        }
        let found = b.lookup(shared, &name(text)).await.unwrap().node.expect("it is there").fid;
        let theirs = b.open(found, OpenMode::ReadWrite).await.unwrap();
        assert_eq!(take(&b, &theirs, lock(1, 9, 9)).await, Err(Errno::TryAgain));
        take(&b, &theirs, lock(1, 10, 10)).await.unwrap();
    }
}

// SEMANTICS 27
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_lock_of_what_was_made_here_has_it_told_first() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let f = locked_file(&a, "f").await;
    let waits = {
        let (a, f) = (Arc::clone(&a), Arc::clone(&f));
        tokio::spawn(async move { a.lock_set(&f, lock(2, 5, 5), LockWait::Yes).await })
    };
    eventually("it is asked for", || a.stats().count("msg_lockset") == 1).await;
    assert_eq!((a.stats().count("msg_lockreturn"), a.session().delegated_locks), (1, 0));
    assert!(!waits.is_finished());
    a.lock_release(f.fid(), lock(1, 0, 9)).await.unwrap();
    waits.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_locks_on_what_is_removed_before_it_is_told() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let f = locked_file(&a, "f").await;
    a.unlink(a.root(), &name("f")).await.unwrap();
    at_once(a.lock_set(&f, lock(1, 20, 29), LockWait::No)).unwrap();
    at_once(a.lock_release_owner(f.fid(), LockFamily::Record, LockOwner(1))).unwrap();
    drop(f);
    a.sync_all().await.unwrap();
    assert_eq!((lock_messages(&a), a.session().delegated_locks), (0, 0));
}

/// A server that is started anew hears of all locks, and decides: it has not heard of the file.
// SEMANTICS 29, 39
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_ends_no_lock_on_what_was_made_here() {
    let mut cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let f = locked_file(&a, "f").await;
    cell.stop();
    at_once(a.lock_set(&f, lock(2, 20, 29), LockWait::No)).unwrap();
    at_once(a.lock_release(f.fid(), lock(1, 5, 9))).unwrap();
    cell.restart();
    eventually("it has reclaimed", || a.session().delegated_locks == 0).await;
    a.lock_release(f.fid(), lock(2, 25, 29)).await.unwrap();
    let theirs = open(&b, "f").await;
    assert_eq!(in_the_way(&b, f.fid(), lock(1, 0, 99)).await, Some((0, 4)));
    assert_eq!(in_the_way(&b, f.fid(), lock(1, 5, 99)).await, Some((20, 24)));
    take(&b, &theirs, lock(1, 25, 25)).await.unwrap();
    assert_eq!(take(&a, &f, lock(3, 25, 25)).await, Err(Errno::TryAgain));
    assert_eq!(a.stats().count("sessions_lost"), 0);
}

/// Who has seen the file may have a lock on it, although the server knows neither any more.
// SEMANTICS 26
#[tokio::test(flavor = "multi_thread")]
async fn what_a_power_cut_took_is_not_decided_about_here_again() {
    let mut cell = Cell::syncing_when_asked();
    let (a, b) = (prompt_writer(&cell).await, cell.client().await);
    let medium = cell.medium();
    let f = locked_file(&a, "f").await;
    let theirs = open(&b, "f").await;
    take(&b, &theirs, lock(1, 20, 29)).await.unwrap();
    cell.power_cut_since(medium);
    cell.restart();
    assert_eq!(take(&a, &f, lock(2, 20, 29)).await, Err(Errno::TryAgain));
    assert_eq!(take(&b, &theirs, lock(2, 0, 9)).await, Err(Errno::TryAgain));
    take(&a, &f, lock(2, 30, 39)).await.unwrap();
    assert_eq!(a.stats().count("sessions_lost"), 0);
}

/// A server to which the client makes a change says nothing of a digest; what else it is told is in its store.
struct Silent {
    control: Peer,
    version: u64,
    stored: BTreeMap<u16, u64>,
}

impl Silent {
    /// The next of those that it does not answer.
    async fn asked(&mut self, is_it: impl Fn(&Call) -> bool) -> (Option<OpId>, Call) {
        loop {
            let Message::Request(tag, Request { op, call }) = self.control.next().await else { continue };
            if is_it(&call) {
                return (op, call);
            }
            self.version += 1;
            self.stored.extend(op.map(|op| (op.slot.0, op.sequence.0)));
            match &call {
                Call::Reclaim(reclaim) => {
                    let leases = reclaim.leases.iter().map(|(grant, _)| Some(*grant)).collect();
                    let answer = Answer::Reclaimed { leases, refused_locks: Vec::new() };
                    self.control.answer(tag, answer, &[]).await;
                }
                _ => self.control.answer_alone(tag, &call, self.version).await,
            }
        }
    }
}

/// The server has let another wait for the lock, lost the file, and lets that one wait in its table now: a right to decide that
/// it is told of again would be given back with what was said to the run before.
// SEMANTICS 26, 29
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_was_asked_back_is_not_told_again_to_a_server_that_has_lost_the_file() {
    let Script { client, control, mut connections, .. } = Script::writing_behind().await;
    let server = tokio::spawn(async move {
        let mut server = Silent { control, version: 1, stored: BTreeMap::new() };
        let is_digest = |call: &Call| matches!(call, Call::Digest { .. });
        let is_return = |call: &Call| matches!(call, Call::LockReturn { .. });
        let (op, Call::Digest { locks, .. }) = server.asked(is_digest).await else { unreachable!() };
        let epoch = Epoch(op.unwrap().sequence.0);
        let recall = Push::RecallLocks(vec![(locks[0], epoch)]);
        server.control.send(FrameKind::Push, 0, &recall, Default::default()).await;
        let (_, told) = server.asked(is_return).await;
        assert_eq!(told, Call::LockReturn { fid: locks[0], epoch, locks: Some(vec![lock(1, 0, 9)]) });

        drop(server.control);
        server.control = Peer(connections.recv().await.unwrap());
        let stored: Vec<_> = server.stored.iter().map(|(slot, sequence)| (*slot, *sequence)).collect();
        server.control.welcome_in([1; 16], Standing::Reclaim, &stored).await;
        let is_either = |call: &Call| is_digest(call) || is_return(call);
        let mut asked = [server.asked(is_either).await, server.asked(is_either).await];
        asked.sort_by_key(|(op, _)| op.is_none());
        let [(op, digest), (_, again)] = asked;
        assert_eq!(again, told);
        (epoch, op.unwrap(), digest)
    });
    let f = made_here(&client).await;
    at_once(client.lock_set(&f, lock(1, 0, 9), LockWait::No)).unwrap();
    let telling = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.sync_all().await }
    });
    let (epoch, op, digest) = server.await.unwrap();
    let Call::Digest { records, locks, .. } = digest else { panic!("{digest:?}") };
    assert!(records.iter().any(|record| record.change.creates() == Some(f.fid())), "{records:?}");
    assert_eq!((locks, op.sequence.0 > epoch.0), (vec![], true));
    telling.abort();
}

/// The answer to the digest is lost: nobody knows here that others may ask.
#[tokio::test(flavor = "multi_thread")]
async fn locks_are_known_though_it_is_not_known_that_they_were_told() {
    for asked_first in [false, true] {
        let cell = Cell::start();
        let proxy = Proxy::before(cell.addr).await;
        let (a, b) = (writer_at(&cell, proxy.addr).await, cell.client().await);
        let f = locked_file(&a, "f").await;
        let sent = a.stats().count("msg_digest");
        proxy.set(Weather::RepliesLost);
        let answers = proxy.held_back();
        let telling = {
            let a = Arc::clone(&a);
            tokio::spawn(async move { a.sync_all().await })
        };
        eventually("sent", || a.stats().count("msg_digest") > sent).await;
        at_once(a.lock_set(&f, lock(2, 20, 29), LockWait::No)).unwrap();
        eventually("told", || proxy.held_back() > answers).await;
        let answers = proxy.held_back();
        let (asker, fid) = (Arc::clone(&b), f.fid());
        let asks = tokio::spawn(async move {
            match asked_first {
                true => in_the_way(&asker, fid, lock(1, 0, 99)).await,
                false => None,
            }
        });
        if asked_first {
            eventually("asked", || proxy.held_back() > answers).await;
        }
        proxy.set(Weather::Cut);
        eventually("cut off", || a.session().standing != ClientStanding::Connected).await;
        at_once(a.lock_release(f.fid(), lock(1, 5, 9))).unwrap();
        proxy.set(Weather::Fine);
        telling.await.unwrap().unwrap();
        assert_eq!(asks.await.unwrap(), asked_first.then_some((0, 4)));
        let theirs = open(&b, "f").await;
        assert_eq!(take(&b, &theirs, lock(1, 20, 20)).await, Err(Errno::TryAgain));
        take(&b, &theirs, lock(1, 5, 5)).await.unwrap();
        assert_eq!(a.stats().count("sessions_lost"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_is_refused_gives_no_right_and_the_next_does() {
    let cell = Cell::start();
    let far = Far::before(cell.addr, Duration::from_millis(20)).await;
    let write = WritePolicy::Behind(WriteBehind::default());
    let a = writer_with(ClientConfig { server: far.addr.to_string(), write, ..cell.client_config() }).await;
    let b = cell.client().await;
    far.refuse(0, Errno::Io);
    let f = locked_file(&a, "f").await;
    let _ = a.sync_all().await;
    assert!(far.has_refused());
    at_once(a.lock_set(&f, lock(2, 20, 29), LockWait::No)).unwrap();
    wait_until("told", || async { a.sync_all().await.is_ok() }).await;
    at_once(a.lock_set(&f, lock(3, 30, 39), LockWait::No)).unwrap();
    let theirs = open(&b, "f").await;
    assert_eq!(take(&b, &theirs, lock(1, 30, 30)).await, Err(Errno::TryAgain));
    assert_eq!(a.stats().count("lost_records"), 0);
    assert_eq!(lock_messages(&a), 1, "they were asked for once");
}

/// Each hole in a lock makes two of one, and all have to be told at once.
#[tokio::test(flavor = "multi_thread")]
async fn more_locks_than_can_be_told_at_once_have_the_file_told() {
    const HOLES: u64 = 5000;
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let f = file(&a, "f", "x").await;
    at_once(a.lock_set(&f, lock(1, 0, 1 << 40), LockWait::No)).unwrap();
    for hole in 0..HOLES {
        a.lock_release(f.fid(), lock(1, 2 * hole + 1, 2 * hole + 1)).await.unwrap();
    }
    assert_eq!((a.stats().count("msg_lockreturn"), a.session().delegated_locks), (1, 0));
    assert_eq!(a.session().locks as u64, HOLES + 1);
    let theirs = open(&b, "f").await;
    assert_eq!(in_the_way(&b, f.fid(), lock(1, 1, 9)).await, Some((2, 2)));
    take(&b, &theirs, lock(1, 2 * HOLES - 1, 2 * HOLES - 1)).await.unwrap();
    assert_eq!(a.stats().count("sessions_lost"), 0);
}
