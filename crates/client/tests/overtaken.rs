//! What is given up or closed just while the server says, or hears, the opposite: scripted.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/script.rs"]
mod script;

use common::{Hooks, Told, at_once};
use script::*;
use soda_client::{Clock, NamesLock, NoKernel, OpenMode};
use soda_protocol::{Answer, Call, Lock, LockFamily, LockMode, LockWait, Note};
use soda_types::{Fid, InUse, Ino, LockOwner, VolumeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Granted just before it was given up: asked for again after a restart of the server it would be nobody's.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_granted_after_its_owner_released_everything_is_released_too() {
    let mut script = Script::start(0, Box::new(NoKernel)).await;
    script.known_file(5).await;
    let client = Arc::clone(&script.client);
    let file = at_once(client.open(FILE, OpenMode::ReadWrite)).unwrap();
    let (family, owner) = (LockFamily::Flock, LockOwner(1));
    let set = |mode: LockMode| {
        let (client, file) = (Arc::clone(&client), Arc::clone(&file));
        let lock = Lock { family, owner, pid: 1, start: 0, end: u64::MAX, mode };
        tokio::spawn(async move { client.lock_set(&file, lock, LockWait::Yes).await })
    };
    let shared = set(LockMode::Shared);
    let (tag, _) = script.control.request().await;
    script.control.answer(tag, Answer::Done, &[]).await;
    shared.await.unwrap().unwrap();

    let exclusive = set(LockMode::Exclusive);
    let (upgrade, _) = script.control.request().await;
    exclusive.abort();
    assert!(exclusive.await.unwrap_err().is_cancelled());
    assert!(matches!(script.control.next().await, Message::Note(Note::Cancel(tag)) if tag == upgrade));
    let releasing = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.lock_release_owner(FILE, family, owner).await }
    });
    let (release, request) = script.control.request().await;
    assert!(matches!(request.call, Call::LockRelease { .. }), "{request:?}");
    script.control.answer(upgrade, Answer::Done, &[]).await;
    script.control.answer(release, Answer::Done, &[]).await;
    releasing.await.unwrap().unwrap();
    assert_eq!(client.session().locks, 0);
    let (_, request) = script.control.request().await;
    assert!(matches!(request.call, Call::LockRelease { .. }), "{request:?}");
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
