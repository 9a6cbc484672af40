//! Locks that a client takes by itself: who lets it, and what the others see of it.

use crate::common::teller::{Teller, root_lease};
use crate::common::{Client, Connection, config, errno, start};
use bytes::Bytes;
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, Delegable, Failure, LockHolder, LockWait, LocksInfo, Note,
    ObjectRef, Reclaim, ReclaimStep, Role,
};
use soda_server::{Server, Stores};
use soda_storage::{MemoryData, MemoryMeta};
use soda_types::{Epoch, Errno, Fid, Lock, LockFamily, LockMode, LockOwner};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn lock(owner: u64, start: u64, end: u64) -> Lock {
    let mode = LockMode::Exclusive;
    Lock { family: LockFamily::Record, owner: LockOwner(owner), pid: 1, start, end, mode }
}

fn set(fid: Fid, lock: Lock, wait: LockWait) -> Call {
    Call::LockSet { fid, lock, wait, delegable: Delegable::Yes }
}

fn test(fid: Fid, lock: Lock) -> Call {
    Call::LockTest { fid, lock }
}

fn give_back(fid: Fid, epoch: Epoch, locks: Option<Vec<Lock>>) -> Call {
    Call::LockReturn { fid, epoch, locks }
}

impl Client {
    async fn delegated(&self, fid: Fid, lock: Lock) -> Epoch {
        match self.ask(set(fid, lock, LockWait::No)).await.result {
            Ok(Answer::Delegated(epoch)) => epoch,
            other => panic!("{other:?}"),
        }
    }

    /// Does not wait for the answer.
    async fn asks(&self, call: Call) -> tokio::sync::oneshot::Receiver<(soda_protocol::Reply, Bytes)> {
        self.connection().send(None, call, Bytes::new()).await.1
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_has_locked_alone_is_told_before_another_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    // It has released these bytes, and taken others.
    let (tested, refused) =
        (two.asks(test(file, lock(1, 0, 9))).await, two.asks(set(file, lock(1, 20, 29), LockWait::No)).await);
    let waits = two.asks(set(file, lock(1, 20, 29), LockWait::Yes)).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch));
    let own = one.ask(set(file, lock(1, 0, 9), LockWait::No)).await.result;
    assert_eq!(own, Ok(Answer::Done), "of the one who is asked nothing waits");
    let told = give_back(file, epoch, Some(vec![lock(3, 20, 29)]));
    assert_eq!(one.ask(told.clone()).await.result, Ok(Answer::Done));
    assert_eq!(tested.await.unwrap().0.result, Ok(Answer::Conflict(None)));
    assert_eq!(errno(refused.await.unwrap().0.result), Errno::TryAgain);
    one.ask(Call::LockRelease { fid: file, lock: lock(3, 20, 29) }).await.result.unwrap();
    assert_eq!(waits.await.unwrap().0.result, Ok(Answer::Done), "wanted by two: nobody decides alone now");
    // Sent a second time it says nothing any more.
    assert_eq!(one.ask(told).await.result, Ok(Answer::Done));
    let conflict = one.ask(test(file, lock(9, 0, 99))).await.result;
    assert_eq!(conflict, Ok(Answer::Conflict(Some(lock(1, 20, 29)))));
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_see_who_decides() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let delegate = async || {
        let call = Call::Admin(AdminCall::Why(ObjectRef::Fid(file)));
        match admin.call(None, call, Bytes::new()).await.unwrap().0.result {
            Ok(Answer::Admin(AdminAnswer::Why(why))) => why.lock_delegate,
            answer => panic!("{answer:?}"),
        }
    };
    assert_eq!(delegate().await, None);
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    let decides = delegate().await.unwrap();
    assert_eq!((decides.session, decides.name.as_str()), (one.key().session, "test:/mnt"));
    assert_eq!(decides.recalled_for, None);
    let tested = two.asks(test(file, lock(1, 0, 9))).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch));
    assert!(delegate().await.unwrap().recalled_for.is_some());
    one.ask(give_back(file, epoch, None)).await.result.unwrap();
    tested.await.unwrap().0.result.unwrap();
    assert_eq!(delegate().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_see_the_locks_and_who_waits_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
    let seen = async |limit| {
        let call = Call::Admin(AdminCall::Locks { of: ObjectRef::Fid(file), limit });
        match admin.call(None, call, Bytes::new()).await.unwrap().0.result {
            Ok(Answer::Admin(AdminAnswer::Locks(locks))) => locks,
            answer => panic!("{answer:?}"),
        }
    };
    assert_eq!(seen(10).await, LocksInfo::default());
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    assert_eq!(seen(10).await, LocksInfo::default(), "what was told then may be released by now");

    let waits = two.asks(set(file, lock(7, 5, 25), LockWait::Yes)).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch));
    let put_off = seen(10).await;
    assert!(put_off.held.is_empty(), "{put_off:?}");
    let [waiting] = &put_off.waiting[..] else { panic!("{put_off:?}") };
    assert_eq!((waiting.session, waiting.wants), (two.key().session, lock(7, 5, 25)));
    assert_eq!((waiting.operation.as_str(), &waiting.in_the_way), ("lockset", &None));

    let flock = Lock { family: LockFamily::Flock, mode: LockMode::Shared, ..lock(4, 0, u64::MAX) };
    let told = give_back(file, epoch, Some(vec![lock(3, 20, 29), lock(3, 40, 49), flock]));
    assert_eq!(one.ask(told).await.result, Ok(Answer::Done));
    let holder = |lock| LockHolder { session: one.key().session, name: "test:/mnt".to_owned(), lock };
    let all = seen(10).await;
    assert_eq!(all.held, [holder(flock), holder(lock(3, 20, 29)), holder(lock(3, 40, 49))]);
    assert_eq!((all.more_held, all.more_waiting), (0, 0));
    let [waiting] = &all.waiting[..] else { panic!("{all:?}") };
    assert_eq!(
        (waiting.session, waiting.in_the_way.clone()),
        (two.key().session, Some(holder(lock(3, 20, 29))))
    );
    let few = seen(1).await;
    assert_eq!((few.held, few.more_held, few.waiting.len()), (vec![holder(flock)], 2, 1));
    assert_eq!((seen(0).await.more_held, seen(0).await.more_waiting), (3, 1));

    one.ask(Call::LockRelease { fid: file, lock: lock(3, 20, 29) }).await.result.unwrap();
    waits.await.unwrap().0.result.unwrap();
    let after = seen(10).await;
    assert!(after.waiting.is_empty() && after.held.len() == 3, "{after:?}");
    assert_eq!(after.held[2].session, two.key().session);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_used_is_as_the_server_knows_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    let waits = two.asks(set(file, lock(1, 5, 5), LockWait::Yes)).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch));
    one.ask(give_back(file, epoch, None)).await.result.unwrap();
    assert_eq!(errno(two.ask(set(file, lock(2, 5, 5), LockWait::No)).await.result), Errno::TryAgain);
    one.ask(Call::LockRelease { fid: file, lock: lock(1, 0, 9) }).await.result.unwrap();
    assert_eq!(waits.await.unwrap().0.result, Ok(Answer::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_decides_alone_where_others_lock_or_wait() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let plain =
        Call::LockSet { fid: file, lock: lock(1, 0, 0), wait: LockWait::No, delegable: Delegable::No };
    assert_eq!(two.ask(plain).await.result, Ok(Answer::Done), "who does not want to does not");
    assert_eq!(one.ask(set(file, lock(1, 5, 5), LockWait::No)).await.result, Ok(Answer::Done));
    two.ask(Call::LockRelease { fid: file, lock: lock(1, 0, 0) }).await.result.unwrap();
    let (tag, waits) =
        one.connection().send(None, set(file, lock(2, 5, 5), LockWait::Yes), Bytes::new()).await;
    assert_eq!(one.ask(Call::Renew).await.result, Ok(Answer::Done));
    assert_eq!(
        one.ask(set(file, lock(1, 7, 7), LockWait::No)).await.result,
        Ok(Answer::Done),
        "another waits"
    );
    one.note(Note::Cancel(tag)).await;
    assert_eq!(errno(waits.await.unwrap().0.result), Errno::Interrupted);
    one.delegated(file, lock(1, 7, 7)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_until_locks_are_told_can_stop() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    let (tag, waits) =
        two.connection().send(None, set(file, lock(2, 5, 5), LockWait::Yes), Bytes::new()).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch));
    two.note(Note::Cancel(tag)).await;
    assert_eq!(errno(waits.await.unwrap().0.result), Errno::Interrupted);
    one.ask(give_back(file, epoch, Some(vec![]))).await.result.unwrap();
    assert_eq!(one.ask(test(file, lock(1, 0, 9))).await.result, Ok(Answer::Conflict(None)), "nobody has it");
}

/// Each of them is kept until the delegate tells of its locks.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_put_off_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.limits.waiting_per_connection = 5;
    let server = soda_server::Server::start(config).unwrap();
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let files = [one.create(one.root, "f").await.unwrap().fid, one.create(one.root, "g").await.unwrap().fid];
    let with_data = one.connection().call(None, test(files[0], lock(1, 0, 9)), Bytes::from_static(b"data"));
    assert_eq!(errno(with_data.await.unwrap().0.result), Errno::Invalid);
    let epochs = [one.delegated(files[0], lock(1, 0, 9)).await, one.delegated(files[1], lock(1, 0, 9)).await];
    for _ in 0..3 {
        // What was taken out of the queue does not count.
        let mut put_off = Vec::new();
        for at in 0..5 {
            let call = test(files[at % 2], lock(1, 0, 9));
            put_off.push(two.connection().send(None, call, Bytes::new()).await);
        }
        let refused = two.connection().call(None, test(files[0], lock(1, 0, 9)), Bytes::new());
        assert!(matches!(refused.await.unwrap().0.result, Err(Failure::Busy(_))));
        for (tag, answer) in put_off {
            two.note(Note::Cancel(tag)).await;
            assert_eq!(errno(answer.await.unwrap().0.result), Errno::Interrupted);
        }
    }
    let waits =
        [two.asks(test(files[1], lock(1, 0, 9))).await, two.asks(test(files[0], lock(1, 0, 9))).await];
    for (file, epoch) in files.into_iter().zip(epochs) {
        one.ask(give_back(file, epoch, None)).await.result.unwrap();
    }
    for answer in waits {
        assert_eq!(answer.await.unwrap().0.result, Ok(Answer::Conflict(Some(lock(1, 0, 9)))));
    }
    assert!(two.ask(Call::GetAttr { fid: files[0] }).await.result.is_ok());
}

/// All are entered in one go, while everybody else waits.
#[tokio::test(flavor = "multi_thread")]
async fn more_locks_at_once_than_a_client_has_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let epoch = one.delegated(file, lock(1, 0, 0)).await;
    let locks: Vec<_> = (0..8193).map(|at| lock(1, 2 * at, 2 * at)).collect();
    let too_many = one.ask(give_back(file, epoch, Some(locks.clone()))).await.result;
    assert_eq!(errno(too_many), Errno::Invalid);
    let waits = two.asks(test(file, lock(1, 2 * 8191, 2 * 8192))).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch), "it has them still");
    one.ask(give_back(file, epoch, Some(locks[..8192].to_vec()))).await.result.unwrap();
    assert_eq!(waits.await.unwrap().0.result, Ok(Answer::Conflict(Some(locks[8191]))));
}

/// The recall, and the answer, of before are lost with the connection.
#[tokio::test(flavor = "multi_thread")]
async fn locks_are_asked_for_again_on_the_next_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    let waits = two.asks(test(file, lock(1, 0, 99))).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch));
    let again = Client::resume(&server, one.key()).await;
    assert_eq!(again.next_lock_recall().await, (file, epoch));
    again.ask(give_back(file, epoch, Some(vec![lock(1, 50, 59)]))).await.result.unwrap();
    assert_eq!(waits.await.unwrap().0.result, Ok(Answer::Conflict(Some(lock(1, 50, 59)))));
}

// SEMANTICS 29
#[tokio::test(flavor = "multi_thread")]
async fn who_is_dead_or_does_not_tell_is_waited_for_no_longer_than_for_a_lease() {
    let dir = tempfile::tempdir().unwrap();
    let term = Duration::from_secs(1);
    let server = soda_server::Server::start(config(dir.path()).with_term(term)).unwrap();
    let (dead, alive) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = alive.create(alive.root, "file").await.unwrap().fid;
    let asked = Instant::now();
    dead.delegated(file, lock(1, 0, 9)).await;
    drop(dead);
    assert_eq!(alive.ask(test(file, lock(1, 0, 9))).await.result, Ok(Answer::Conflict(None)));
    let waited = asked.elapsed();
    assert!(waited >= term, "{waited:?}");
    assert!(waited < term * 8, "TIMED OUT: {waited:?}");

    let silent = Client::connect(&server).await;
    let other = alive.create(alive.root, "other").await.unwrap().fid;
    silent.delegated(other, lock(1, 0, 9)).await;
    let waits = alive.asks(set(other, lock(1, 0, 9), LockWait::No)).await;
    let asked = Instant::now();
    let renewing = async {
        loop {
            let _ = silent.connection().call(None, Call::Renew, Bytes::new()).await;
            alive.ask(Call::Renew).await.result.unwrap();
            tokio::time::sleep(term / 10).await;
        }
    };
    let answer = tokio::select! {
        answer = waits => answer.unwrap().0.result,
        () = renewing => unreachable!(),
    };
    assert!(matches!(answer, Ok(Answer::Delegated(_) | Answer::Done)), "{answer:?}");
    assert!(asked.elapsed() >= term * 3, "{:?}", asked.elapsed());
    assert!(asked.elapsed() < term * 12, "TIMED OUT: {:?}", asked.elapsed());
}

/// Two say that they had a lock alone.
#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_have_a_lock_again_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    drop(server);
    let server = start(dir.path());
    for (client, refused) in [(one, vec![]), (two, vec![(file, lock(7, 5, 9))])] {
        let back = Client::resume(&server, client.key()).await;
        let locks = vec![(file, lock(7, 5, 9)), (file, Lock { mode: LockMode::Shared, ..lock(7, 20, 29) })];
        let reclaim = Reclaim { leases: vec![], open: vec![], locks, step: ReclaimStep::Last };
        let answer = back.ask(Call::Reclaim(reclaim)).await.result;
        assert_eq!(answer, Ok(Answer::Reclaimed { leases: vec![], refused_locks: refused }));
    }
}

// SEMANTICS 39
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_locks_are_reclaimed_and_rights_of_before_count_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let one = Client::connect(&server).await;
    let file = one.create(one.root, "file").await.unwrap().fid;
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    drop(server);
    let server = start(dir.path());
    let back = Client::resume(&server, one.key()).await;
    let locks = vec![(file, lock(1, 20, 29))];
    let reclaim = Reclaim { leases: vec![], open: vec![], locks, step: ReclaimStep::Last };
    back.ask(Call::Reclaim(reclaim)).await.result.unwrap();
    back.ask(give_back(file, epoch, Some(vec![]))).await.result.unwrap();
    let two = Client::connect(&server).await;
    let conflict = two.ask(test(file, lock(1, 0, 99))).await.result;
    assert_eq!(conflict, Ok(Answer::Conflict(Some(lock(1, 20, 29)))));
    two.ask(set(file, lock(1, 0, 9), LockWait::No)).await.result.unwrap();
    back.ask(Call::LockRelease { fid: file, lock: lock(1, 20, 29) }).await.result.unwrap();
    let next = two.delegated(file, lock(1, 10, 19)).await;
    assert_ne!(next, epoch);
}

/// The maker took it before anybody else could know the file.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_finds_a_file_finds_the_locks_of_who_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (mut maker, two) = (Teller::connect(&server).await, Client::connect(&server).await);
    let (file, records) = maker.file("file", b"data");
    let mut told = maker.next(records);
    told.locks = vec![file];
    maker.send(&told).await.result.unwrap();
    assert_eq!(two.lookup(two.root, "file").await.unwrap().unwrap().fid, file);
    let tested = two.asks(test(file, lock(1, 0, 99))).await;
    let epoch = Epoch(told.sequence);
    assert_eq!(maker.client.next_lock_recall().await, (file, epoch));
    let locks = Some(vec![lock(3, 20, 29)]);
    maker.client.ask(give_back(file, epoch, locks)).await.result.unwrap();
    assert_eq!(tested.await.unwrap().0.result, Ok(Answer::Conflict(Some(lock(3, 20, 29)))));
    // Sent again it gives nothing.
    maker.send(&told).await.result.unwrap();
    maker.client.ask(give_back(file, epoch, Some(vec![]))).await.result.unwrap();
    assert_eq!(two.ask(test(file, lock(1, 0, 99))).await.result, Ok(Answer::Conflict(Some(lock(3, 20, 29)))));
}

/// Who has it open locks it as before, and waits for its release. Told of it anew, the server takes for nothing what its maker
/// says again to the run before.
// SEMANTICS 26
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_a_power_cut_took_has_its_locks_still() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut maker = Teller::connect(&server).await;
    let (root, attr) = root_lease(&maker.client).await.unwrap();
    let (file, records) = maker.file("file", b"data");
    let lost = maker.next(records.clone());
    drop(server);
    let server = start(dir.path());
    maker.client = Client::resume(&server, maker.client.key()).await;
    let (leases, locks) = (vec![(root, attr.version)], vec![(file, lock(1, 0, 9))]);
    let reclaim = Reclaim { leases, open: vec![], locks, step: ReclaimStep::Last };
    let claimed = maker.client.ask(Call::Reclaim(reclaim)).await.result;
    assert!(matches!(claimed, Ok(Answer::Reclaimed { refused_locks, .. }) if refused_locks.is_empty()));
    let two = Client::connect(&server).await;
    assert!(!two.exists(file).await);
    let mut waits = two.asks(set(file, lock(1, 5, 5), LockWait::Yes)).await;
    assert_eq!(errno(two.ask(set(file, lock(2, 9, 9), LockWait::No)).await.result), Errno::TryAgain);
    maker.tell(records).await.result.unwrap();
    let told = give_back(file, Epoch(lost.sequence), Some(vec![]));
    assert_eq!(maker.client.ask(told).await.result, Ok(Answer::Done));
    assert!(two.exists(file).await && waits.try_recv().is_err());
    maker.client.ask(Call::LockRelease { fid: file, lock: lock(1, 0, 9) }).await.result.unwrap();
    assert!(matches!(waits.await.unwrap().0.result, Ok(Answer::Delegated(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_gives_nothing_of_what_it_does_not_make_or_that_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (mut maker, two) = (Teller::connect(&server).await, Client::connect(&server).await);
    let (file, records) = maker.file("file", b"data");
    maker.tell(records.clone()).await.result.unwrap();
    let (other, more) = maker.file("other", b"data");
    let mut told = maker.next(more);
    told.locks = vec![file];
    maker.send(&told).await.result.unwrap();
    assert_eq!(two.ask(test(file, lock(1, 0, 99))).await.result, Ok(Answer::Conflict(None)));
    // The name is there.
    let (third, mut again) = maker.file("file", b"data");
    again.truncate(1);
    let mut told = maker.next(again);
    told.locks = vec![third];
    assert!(matches!(maker.send(&told).await.result, Err(Failure::Digest { .. })));
    for fid in [other, third] {
        assert_eq!(two.ask(test(fid, lock(1, 0, 99))).await.result, Ok(Answer::Conflict(None)));
    }
}

/// More than it would decide about are not taken, nor is what they come with.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_with_more_files_locks_than_a_session_may_have_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut maker = Teller::connect(&server).await;
    let (file, records) = maker.file("file", b"data");
    let mut told = maker.next(records);
    told.locks = vec![file; (1 << 16) + 1];
    let refused = maker.send(&told).await.result;
    assert!(matches!(refused, Err(Failure::Digest { error, .. }) if error.errno == Errno::TooBig));
}

/// Who waits for another client to tell of its locks refers to the server, which refers to who waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_lets_go_of_calls_that_are_put_off() {
    let (meta, data) = (Arc::new(MemoryMeta::default()), Arc::new(MemoryData::default()));
    let stores = Stores { meta: meta.clone(), data: data.clone(), path: "memory".into() };
    let server = Server::start_on(stores, config(Path::new("unused"))).unwrap();
    let (one, two) = (Client::connect(&server).await, Client::connect(&server).await);
    let file = one.create(one.root, "file").await.unwrap().fid;
    let epoch = one.delegated(file, lock(1, 0, 9)).await;
    let _waits = two.asks(set(file, lock(1, 0, 9), LockWait::Yes)).await;
    assert_eq!(one.next_lock_recall().await, (file, epoch));
    server.shutdown().await;
    assert_eq!((Arc::strong_count(&meta), Arc::strong_count(&data)), (1, 1));
}
