//! Two clients and more: order, fairness, orphans, locks.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{
    Answer, Call, Delegable, Failure, LockWait, Note, Reclaim, ReclaimStep, Unlink, WriteAt,
};
use soda_types::{Errno, Fid, FileKind, InUse, Lock, LockFamily, LockMode, LockOwner};

fn write(fid: Fid, offset: u64) -> Call {
    Call::Write { fid, at: WriteAt::Offset(offset), kill_suid_sgid: false }
}

type Answered = tokio::sync::oneshot::Receiver<(soda_protocol::Reply, Bytes)>;

async fn send_write(client: &Client, file: Fid, data: &'static [u8]) -> Answered {
    let op = client.next_op();
    client.connection().send(Some(op), write(file, 0), Bytes::from_static(data)).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicting_operations_go_in_the_order_of_their_arrival() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let holder = Client::connect_keeping_recalls(&server).await;
    let file = holder.create(holder.root, "file").await.unwrap().fid;
    let (first, second, third) =
        (Client::connect(&server).await, Client::connect(&server).await, Client::connect(&server).await);
    let one = send_write(&first, file, b"1").await;
    let recall = holder.next_recall().await;
    let (_, read) =
        second.connection().send(None, Call::Read { fid: file, offset: 0, len: 1 }, Bytes::new()).await;
    assert_eq!(second.ask(Call::Renew).await.result, Ok(Answer::Done));
    let three = send_write(&third, file, b"3").await;
    assert_eq!(third.ask(Call::Renew).await.result, Ok(Answer::Done));
    holder.answer_recall(&recall, InUse::No).await;
    assert!(one.await.unwrap().0.result.is_ok());
    assert_eq!(read.await.unwrap().1, "1", "after the first write, before the second");
    assert!(three.await.unwrap().0.result.is_ok());
    assert_eq!(first.read(file, 0, 1).await.unwrap(), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_of_many_clients_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let maker = Client::connect(&server).await;
    let file = maker.create(maker.root, "log").await.unwrap().fid;
    let mut writers = Vec::new();
    for id in 0..4u8 {
        let client = Client::connect(&server).await;
        writers.push(tokio::spawn(async move {
            for count in 0..50u8 {
                client.write(file, WriteAt::End, &[id, count]).await.unwrap();
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let all = maker.read(file, 0, 1000).await.unwrap();
    assert_eq!(all.len(), 400);
    for id in 0..4 {
        let mine: Vec<u8> = all.chunks(2).filter(|record| record[0] == id).map(|record| record[1]).collect();
        assert_eq!(mine, (0..50).collect::<Vec<u8>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_change_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut makers = Vec::new();
    for id in 0..4 {
        let client = Client::connect(&server).await;
        makers.push(tokio::spawn(async move {
            let mut won = 0;
            for count in 0..25 {
                match client.create(client.root, &format!("contended-{count}")).await {
                    Ok(_) => won += 1,
                    Err(errno) => assert_eq!(errno, Errno::Exists),
                }
                client.create(client.root, &format!("own-{id}-{count}")).await.unwrap();
                client.unlink(client.root, &format!("own-{id}-{count}"), InUse::No).await.unwrap();
            }
            won
        }));
    }
    let mut won = 0;
    for maker in makers {
        won += maker.await.unwrap();
    }
    assert_eq!(won, 25, "each name was created by one");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_open_elsewhere_outlives_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let user = Client::connect(&server).await;
    let file = user.create(user.root, "file").await.unwrap().fid;
    user.write(file, WriteAt::Offset(0), b"data").await.unwrap();
    // Under its lease it may open without a word; it says so when the lease is recalled.
    user.open.lock().unwrap().insert(file);
    let other = Client::connect(&server).await;
    let removed = other.unlink(other.root, "file", InUse::No).await.unwrap();
    assert_eq!(removed.attr.nlink, 0);
    assert_eq!(user.read(file, 0, 10).await.unwrap(), "data");
    user.write(file, WriteAt::End, b" and more").await.unwrap();
    assert_eq!(other.lookup(other.root, "file").await, Ok(None));
    user.open.lock().unwrap().clear();
    user.note(Note::Closed(vec![file])).await;
    until("the inode is gone", || async { !user.exists(file).await }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_remover_has_open_and_what_never_had_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    client.unlink(client.root, "file", InUse::Yes).await.unwrap();
    let mut new = new_node(FileKind::File);
    new.open = InUse::Yes;
    let tmp = node(client.change(Call::TmpFile { parent: client.root, new }).await).unwrap();
    assert_eq!(tmp.attr.nlink, 0);
    let linked = Call::Link { fid: tmp.fid, parent: client.root, name: n("linked") };
    assert_eq!(node(client.change(linked).await).unwrap().attr.nlink, 1);
    client.note(Note::Closed(vec![file, tmp.fid])).await;
    until("the first is gone", || async { !client.exists(file).await }).await;
    assert!(client.exists(tmp.fid).await, "it has a name now");
}

// SEMANTICS 10
#[tokio::test(flavor = "multi_thread")]
async fn orphans_live_through_a_restart_as_long_as_somebody_has_them_open() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let kept = client.create(client.root, "kept").await.unwrap().fid;
    let left = client.create(client.root, "left").await.unwrap().fid;
    client.unlink(client.root, "kept", InUse::Yes).await.unwrap();
    client.unlink(client.root, "left", InUse::Yes).await.unwrap();
    drop(server);

    let server = start(dir.path());
    let back = Client::resume(&server, client.key()).await;
    let reclaim = Reclaim { leases: vec![], open: vec![kept], locks: vec![], step: ReclaimStep::Last };
    back.ask(Call::Reclaim(reclaim)).await.result.unwrap();
    until("the other is gone", || async { !back.exists(left).await }).await;
    assert!(back.exists(kept).await);
    back.ask(Call::Goodbye).await.result.unwrap();
    let other = Client::connect(&server).await;
    until("its user has gone", || async { !other.exists(kept).await }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inode_that_is_opened_without_a_lease_is_registered() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    let user = Client::connect(&server).await;
    assert_eq!(user.ask(Call::Opened { fid: file }).await.result, Ok(Answer::Done));
    client.unlink(client.root, "file", InUse::No).await.unwrap();
    assert!(user.exists(file).await);
    let rmdir = client.mkdir(client.root, "directory").await.unwrap();
    assert_eq!(user.ask(Call::Opened { fid: rmdir.fid }).await.result, Ok(Answer::Done));
    let gone = Call::Unlink { parent: client.root, name: n("directory"), what: Unlink::Directory };
    client.change(gone).await.result.unwrap();
    assert!(user.exists(rmdir.fid).await);
    user.note(Note::Closed(vec![file, rmdir.fid])).await;
    until("both are gone", || async { !user.exists(file).await && !user.exists(rmdir.fid).await }).await;
    assert_eq!(errno(user.ask(Call::Opened { fid: file }).await.result), Errno::Stale);
}

fn lock(owner: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Record, owner: LockOwner(owner), pid: 1, start: 0, end: u64::MAX, mode }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_seen_by_all_and_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let exclusive = lock(1, LockMode::Exclusive);
    let set = |wait| Call::LockSet { fid: file, lock: exclusive, wait, delegable: Delegable::No };
    assert_eq!(one.ask(set(LockWait::No)).await.result, Ok(Answer::Done));
    assert_eq!(errno(two.ask(set(LockWait::No)).await.result), Errno::TryAgain);
    let test = two.ask(Call::LockTest { fid: file, lock: exclusive }).await.result;
    assert_eq!(test, Ok(Answer::Conflict(Some(exclusive))));

    let (tag, cancelled) = two.connection().send(None, set(LockWait::Yes), Bytes::new()).await;
    two.note(Note::Cancel(tag)).await;
    assert_eq!(errno(cancelled.await.unwrap().0.result), Errno::Interrupted);

    let (_, waits) = two.connection().send(None, set(LockWait::Yes), Bytes::new()).await;
    assert_eq!(two.ask(Call::Renew).await.result, Ok(Answer::Done));
    let released = one.ask(Call::LockRelease { fid: file, lock: exclusive }).await.result;
    assert_eq!(released, Ok(Answer::Done));
    assert_eq!(waits.await.unwrap().0.result, Ok(Answer::Done));

    let (_, waits) = one.connection().send(None, set(LockWait::Yes), Bytes::new()).await;
    assert_eq!(one.ask(Call::Renew).await.result, Ok(Answer::Done));
    two.ask(Call::Goodbye).await.result.unwrap();
    assert_eq!(waits.await.unwrap().0.result, Ok(Answer::Done), "the end of a session frees its locks");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_reclaimed_and_nobody_gets_them_before() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    let exclusive = lock(1, LockMode::Exclusive);
    let set = |wait| Call::LockSet { fid: file, lock: exclusive, wait, delegable: Delegable::No };
    client.ask(set(LockWait::No)).await.result.unwrap();
    drop(server);

    let server = start(dir.path());
    let other = Client::connect(&server).await;
    let early = other.ask(set(LockWait::Yes)).await.result;
    assert!(matches!(early, Err(Failure::Grace(_))), "{early:?}");
    let back = Client::resume(&server, client.key()).await;
    let locks = vec![(file, exclusive)];
    let reclaim = Reclaim { leases: vec![], open: vec![], locks, step: ReclaimStep::Last };
    back.ask(Call::Reclaim(reclaim)).await.result.unwrap();
    assert_eq!(errno(other.ask(set(LockWait::No)).await.result), Errno::TryAgain);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_lock_on_a_lost_connection_does_not_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let exclusive = lock(1, LockMode::Exclusive);
    let set = |wait| Call::LockSet { fid: file, lock: exclusive, wait, delegable: Delegable::No };
    one.ask(set(LockWait::No)).await.result.unwrap();
    let (_, lost) = two.connection().send(None, set(LockWait::Yes), Bytes::new()).await;
    assert_eq!(two.ask(Call::Renew).await.result, Ok(Answer::Done));
    let again = Client::resume(&server, two.key()).await;
    assert!(lost.await.is_err());
    one.ask(Call::LockRelease { fid: file, lock: exclusive }).await.result.unwrap();
    let third = one.ask(Call::LockTest { fid: file, lock: exclusive }).await.result;
    assert_eq!(third, Ok(Answer::Conflict(None)));
    again.ask(set(LockWait::Yes)).await.result.unwrap();
}

// SEMANTICS 29
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_dead_client_are_waited_for_no_longer_than_its_term() {
    let dir = tempfile::tempdir().unwrap();
    let term = std::time::Duration::from_secs(1);
    let server = soda_server::Server::start(config(dir.path()).with_term(term)).unwrap();
    let (dead, alive) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = alive.create(alive.root, "file").await.unwrap().fid;
    let exclusive = lock(1, LockMode::Exclusive);
    let set = |wait| Call::LockSet { fid: file, lock: exclusive, wait, delegable: Delegable::No };
    let asked = std::time::Instant::now();
    dead.ask(set(LockWait::No)).await.result.unwrap();
    let key = dead.key();
    drop(dead);
    assert_eq!(errno(alive.ask(set(LockWait::No)).await.result), Errno::TryAgain);
    assert_eq!(alive.ask(set(LockWait::Yes)).await.result, Ok(Answer::Done));
    let waited = asked.elapsed();
    assert!(waited >= term, "the lock was taken away after {waited:?}");
    assert!(waited < term * 8, "TIMED OUT: {waited:?}");
    assert_eq!(alive.ask(Call::Renew).await.result, Ok(Answer::Done));
    let back = Client::resume(&server, key).await;
    assert_eq!(back.session.standing, soda_protocol::Standing::New);
    let locked = back.ask(Call::LockTest { fid: file, lock: exclusive }).await.result;
    assert_eq!(locked, Ok(Answer::Conflict(Some(exclusive))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_has_not_told_goes_only_with_what_nobody_else_can_see() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (client, other) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = client.create(client.root, "file").await.unwrap().fid;
    let link = Call::Link { fid: file, parent: client.root, name: n("link") };
    assert!(client.change(link).await.result.is_ok());
    let remove = async |name: &str| {
        client.change(Call::Unlink { parent: client.root, name: n(name), what: Unlink::Untold }).await.result
    };
    assert_eq!(errno(remove("link").await), Errno::NoSpace, "it has another name");
    client.unlink(client.root, "link", InUse::No).await.unwrap();
    assert_eq!(other.ask(Call::Opened { fid: file }).await.result, Ok(Answer::Done));
    assert_eq!(errno(remove("file").await), Errno::NoSpace, "another has it open");
    assert!(client.exists(file).await);
    other.note(Note::Closed(vec![file])).await;
    until("it can be removed", async || remove("file").await.is_ok()).await;
    assert!(!client.exists(file).await);
}
