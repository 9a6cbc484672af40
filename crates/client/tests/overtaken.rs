//! What is given up or closed just while the server says, or hears, the opposite: scripted.

use crate::common::script::*;
use crate::common::{Hooks, Told, at_once, eventually};
use soda_client::{Client, Clock, NamesLock, NoKernel, OpenFile, OpenMode};
use soda_protocol::{Answer, Call, Delegable, Failure, Lock, LockFamily, LockMode, LockWait, Note};
use soda_types::{Errno, Fid, FsResult, InUse, Ino, LockOwner, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

fn lock(mode: LockMode, start: u64, end: u64) -> Lock {
    Lock { family: LockFamily::Record, owner: LockOwner(1), pid: 1, start, end, mode }
}

struct Locker {
    script: Script,
    client: Arc<Client>,
    file: Arc<OpenFile>,
}

impl Locker {
    async fn start() -> Locker {
        let mut script = Script::start(0, Box::new(NoKernel)).await;
        script.known_file(5).await;
        let client = Arc::clone(&script.client);
        let file = at_once(client.open(FILE, OpenMode::ReadWrite)).unwrap();
        Locker { script, client, file }
    }

    fn set(&self, lock: Lock) -> JoinHandle<FsResult<()>> {
        let (client, file) = (Arc::clone(&self.client), Arc::clone(&self.file));
        tokio::spawn(async move { client.lock_set(&file, lock, LockWait::Yes).await })
    }

    /// Waits for a lock; the sender is the signal.
    fn set_until(&self, lock: Lock) -> (JoinHandle<FsResult<()>>, oneshot::Sender<()>) {
        let (client, file) = (Arc::clone(&self.client), Arc::clone(&self.file));
        let (signal, interrupted) = oneshot::channel();
        let waiting = tokio::spawn(async move {
            let interrupted = async { interrupted.await.unwrap() };
            client.lock_until(&file, lock, interrupted).await
        });
        (waiting, signal)
    }

    async fn held(&mut self, lock: Lock) {
        let taken = self.set(lock);
        let (tag, _) = self.script.control.request().await;
        self.script.control.answer(tag, Answer::Done, &[]).await;
        taken.await.unwrap().unwrap();
    }

    async fn hears_cancelled(&mut self, asked: u64) {
        let message = self.script.control.next().await;
        assert!(matches!(message, Message::Note(Note::Cancel(tag)) if tag == asked), "{message:?}");
    }

    /// The next request is this one; it is done.
    async fn hears(&mut self, call: Call) {
        let (tag, request) = self.script.control.request().await;
        assert_eq!(request.call, call);
        self.script.control.answer(tag, Answer::Done, &[]).await;
    }
}

/// Granted just before it was given up: it would be nobody's, and what its owner did next would be lost with it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_had_before_a_lock_that_is_given_back_is_had_again_before_anything_else() {
    let mut locker = Locker::start().await;
    let shared = lock(LockMode::Shared, 0, 4);
    locker.held(shared).await;
    let exclusive = locker.set(lock(LockMode::Exclusive, 0, 9));
    let (upgrade, _) = locker.script.control.request().await;
    exclusive.abort();
    assert!(exclusive.await.unwrap_err().is_cancelled());
    locker.hears_cancelled(upgrade).await;
    let next = locker.set(lock(LockMode::Exclusive, 7, 7));
    let releasing = tokio::spawn({
        let client = Arc::clone(&locker.client);
        async move { client.lock_release(FILE, shared).await }
    });
    locker.script.control.answer(upgrade, Answer::Done, &[]).await;
    locker
        .hears(Call::LockSet { fid: FILE, lock: shared, wait: LockWait::No, delegable: Delegable::No })
        .await;
    locker.hears(Call::LockRelease { fid: FILE, lock: lock(LockMode::Exclusive, 5, 9) }).await;
    // Those two in any order.
    for _ in 0..2 {
        let (tag, _) = locker.script.control.request().await;
        locker.script.control.answer(tag, Answer::Done, &[]).await;
    }
    next.await.unwrap().unwrap();
    releasing.await.unwrap().unwrap();
    assert_eq!(locker.client.session().locks, 1);
}

/// The reply is here, its caller has not looked yet, and never does.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_caller_goes_before_it_hears_of_it_is_given_back() {
    let mut locker = Locker::start().await;
    let wanted = lock(LockMode::Exclusive, 0, 9);
    {
        let (client, file) = (Arc::clone(&locker.client), Arc::clone(&locker.file));
        let mut waiting = Box::pin(client.lock_set(&file, wanted, LockWait::Yes));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let (tag, _) = locker.script.control.request().await;
        locker.script.control.answer(tag, Answer::Done, &[]).await;
        eventually("the reply", || locker.client.session().locks == 1).await;
    }
    locker.hears(Call::LockRelease { fid: FILE, lock: wanted }).await;
    assert_eq!(locker.client.session().locks, 0);
}

// SEMANTICS 27
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_crosses_the_grant_of_a_lock_leaves_it_granted_or_given_back() {
    let mut locker = Locker::start().await;
    let wanted = lock(LockMode::Exclusive, 0, 9);
    let interrupted = |result: FsResult<()>| result.unwrap_err().errno == Errno::Interrupted;

    let (waiting, signal) = locker.set_until(wanted);
    let (tag, _) = locker.script.control.request().await;
    signal.send(()).unwrap();
    locker.hears_cancelled(tag).await;
    locker.script.control.fail(tag, Failure::Fs(Errno::Interrupted.into())).await;
    assert!(interrupted(waiting.await.unwrap()), "it still waited");

    let (waiting, signal) = locker.set_until(wanted);
    let (tag, _) = locker.script.control.request().await;
    signal.send(()).unwrap();
    locker.hears_cancelled(tag).await;
    locker.script.control.answer(tag, Answer::Done, &[]).await;
    waiting.await.unwrap().expect("it was granted before the server heard of the signal");
    assert_eq!(locker.client.session().locks, 1);

    // The server says nothing, and the caller goes.
    let wider = lock(LockMode::Exclusive, 5, 19);
    let (waiting, signal) = locker.set_until(wider);
    let (tag, _) = locker.script.control.request().await;
    signal.send(()).unwrap();
    locker.hears_cancelled(tag).await;
    assert!(interrupted(waiting.await.unwrap()), "nobody knows");
    locker.script.control.answer(tag, Answer::Done, &[]).await;
    locker.hears(Call::LockRelease { fid: FILE, lock: lock(LockMode::Exclusive, 10, 19) }).await;
    assert_eq!(locker.client.session().locks, 1, "what it had before");
}

/// The server hears that the file is closed, then that it is open: nobody would ever close it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_closed_while_its_lease_is_given_back_is_closed_at_the_server_too() {
    const OTHER: Fid = Fid { volume: VolumeId(1), ino: Ino(3), generation: 0 };
    let told = Arc::<Told>::default();
    let clock = Arc::<Ahead>::default();
    let hooks = Box::new(Hooks(Arc::clone(&told), NamesLock::None));
    let mut script = Script::start_with(0, hooks, Arc::clone(&clock) as Arc<dyn Clock>).await;
    let client = Arc::clone(&script.client);
    // In this order they are given back.
    script.known(FILE, 5).await;
    script.known(OTHER, 5).await;
    at_once(client.getattr(OTHER)).unwrap();
    let mut file = Some(at_once(client.open(FILE, OpenMode::Read)).unwrap());
    let seen = Arc::clone(&told);
    *told.during.lock().unwrap() = Some(Box::new(move || {
        if seen.attrs.lock().unwrap().last() == Some(&OTHER) {
            drop(file.take());
        }
    }));
    // Unanswered renewals make the client look after its house all the time.
    clock.0.store(15_000_000_000, Ordering::Relaxed);
    let mut notes = Vec::new();
    while notes.len() < 3 {
        if let Message::Note(note) = script.control.next().await {
            notes.push(note);
        }
    }
    assert_eq!([&notes[0], &notes[2]], [&Note::Closed(vec![FILE]); 2]);
    let Note::Release(acks) = &notes[1] else { panic!("{notes:?}") };
    let order: Vec<_> = acks.iter().map(|ack| (ack.fid, ack.in_use)).collect();
    assert_eq!(order, [(FILE, InUse::Yes), (OTHER, InUse::No)]);
}
