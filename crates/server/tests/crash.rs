//! The server's process dies at every crash point, in the middle of its work. Afterwards everything that was answered is
//! there, the operation in doubt is there once after it was sent again, and fsck finds nothing.
//!
//! A program of its own: a process that is being started has all descriptors of this one for a moment, and the tests that start
//! a server on the same directory again would find it in use.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
mod digest_crash;

use bytes::Bytes;
use common::dying::*;
use common::*;
use soda_protocol::{
    Answer, Call, Delegable, Failure, LockWait, Note, OpId, Reclaim, ReclaimStep, SessionKey, Standing,
    Unlink, WriteAt,
};
use soda_storage::crash;
use soda_types::{
    Errno, Fid, FileKind, Grant, InUse, Lock, LockFamily, LockMode, LockOwner, SetAttr, Version,
};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

const STEPS: u32 = 12;

/// Crash points that are not passed if nobody comes back, or not before the work below is done.
const NOT_FROM_NOTHING: &[&str] = &[
    "segment.punched",
    "segment.deleted",
    "volume.release.punched",
    "volume.release.recorded",
    "volume.reclaim.step",
    "volume.reclaim.done",
    "volume.swept",
    "volume.redone",
    "server.session-resumed",
    "server.reclaim-taken",
    "server.reclaim-last",
    "server.grace-ended",
    "server.lock-taken",
    "server.locks-freed",
    // `digest_crash.rs`
    "server.reserved",
    "server.digest-staged",
    "server.digest-admitted",
    "server.digest-applied",
    "server.digest-committed",
];
/// Crash points of what has been done when somebody comes back, and of what is done to larger files than these
/// (`crates/volume/tests/crash.rs`).
const NOT_WITH_SURVIVORS: &[&str] = &[
    "format.begun",
    "format.written",
    "volume.created",
    "volume.redone",
    "volume.reclaim.step",
    "segment.deleted",
    "server.reserved",
    "server.digest-staged",
    "server.digest-admitted",
    "server.digest-applied",
    "server.digest-committed",
];

/// What a client knows when its server dies.
#[derive(Default)]
struct Known {
    key: Option<SessionKey>,
    done: u32,
    doubt: Option<(OpId, Call, Bytes)>,
}

// SEMANTICS 17, 20
#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_every_crash_point_and_what_was_not_happens_once() {
    for point in crash::ALL.iter().copied().filter(|point| !NOT_FROM_NOTHING.contains(point)) {
        for nth in [1, 7] {
            let dir = tempfile::tempdir().unwrap();
            let what = format!("{point}:{nth}");
            let (mut child, mut output) = spawn(dir.path(), &what);
            let mut known = Known::default();
            if let Some(address) = address(&mut output) {
                work(address, &mut known).await;
            }
            drop(child.stdin.take());
            let status = child.wait().unwrap();
            assert!(
                status.success() || status.signal() == Some(6),
                "{what}: the server failed otherwise: {status}"
            );
            assert!(!status.success() || nth > 1, "{what}: never passed");
            check(dir.path(), known, &what).await;
        }
    }
}

#[test]
#[ignore = "started by the others, as a process that is going to die"]
fn child() {
    serve_until_let_go();
}

/// Works until the server is gone or all is done.
async fn work(address: std::net::SocketAddr, known: &mut Known) {
    let Ok(Ok(client)) = tokio::spawn(Client::connect_with(address, None, Recalls::Answer)).await else {
        return;
    };
    known.key = Some(client.key());
    for step in 0..STEPS {
        let name = format!("f{step}");
        let made = create(client.root, &name, FileKind::File);
        let Some(Ok(Answer::Changed { node: Some(file), .. })) =
            attempt(&client, known, made.clone(), b"").await
        else {
            return;
        };
        for piece in pieces(step) {
            let append = Call::Write { fid: file.fid, at: WriteAt::End, kill_suid_sgid: false };
            if attempt(&client, known, append, &piece).await.is_none() {
                return;
            }
        }
        known.done = step + 1;
        let sync = Call::Sync { fid: file.fid, after: None };
        if client.connection().call(None, sync, Bytes::new()).await.is_none() {
            return;
        }
        match attempt(&client, known, made, b"").await {
            Some(Err(Failure::Fs(error))) => assert_eq!(error.errno, Errno::Exists),
            _ => return,
        }
        // An orphan that is closed, and a session that ends.
        let gone = format!("gone{step}");
        let Some(Ok(Answer::Changed { node: Some(orphan), .. })) =
            attempt(&client, known, create(client.root, &gone, FileKind::File), b"").await
        else {
            return;
        };
        let what = soda_protocol::Unlink::File { in_use: InUse::Yes };
        let unlink = Call::Unlink { parent: client.root, name: n(&gone), what };
        if attempt(&client, known, unlink, b"").await.is_none() {
            return;
        }
        client.note(Note::Closed(vec![orphan.fid])).await;
        let other = tokio::spawn(Client::connect_with(address, None, Recalls::Answer)).await;
        let Ok(Ok(other)) = other else { return };
        if other.connection().call(None, Call::Goodbye, Bytes::new()).await.is_none() {
            return;
        }
    }
}

/// One change; what it was is remembered until it is answered. `None`: the server is gone.
async fn attempt(
    client: &Client,
    known: &mut Known,
    call: Call,
    data: &[u8],
) -> Option<Result<Answer, Failure>> {
    let (op, data) = (client.next_op(), Bytes::copy_from_slice(data));
    known.doubt = Some((op, call.clone(), data.clone()));
    let reply = client.connection().call(Some(op), call, data).await?;
    known.doubt = None;
    Some(reply.0.result)
}

/// What is appended to a file: small, and large enough for a chunk of its own.
fn pieces(step: u32) -> [Vec<u8>; 3] {
    [vec![step as u8; 10], vec![step as u8 + 100; 200_000], vec![step as u8; 20]]
}

async fn check(dir: &Path, known: Known, what: &str) {
    let server = start_again(&short(dir));
    let client = match known.key {
        Some(key) => {
            let client = Client::resume(&server, key).await;
            assert_eq!(client.session.standing, Standing::Reclaim, "{what}: the session was acknowledged");
            let nothing = Reclaim { leases: vec![], open: vec![], locks: vec![], step: ReclaimStep::Last };
            client.ask(Call::Reclaim(nothing)).await.result.unwrap();
            client
        }
        None => Client::connect(&server).await,
    };
    if let Some((op, call, data)) = known.doubt {
        let first = client.connection().call(Some(op), call.clone(), data.clone()).await.unwrap().0.result;
        let second = client.connection().call(Some(op), call, data).await.unwrap().0.result;
        assert_eq!(first, second, "{what}");
        assert!(first.is_ok() || errno(first.clone()) == Errno::Exists, "{what}: {first:?}");
    }
    for step in 0..known.done {
        let file = client.lookup(client.root, &format!("f{step}")).await.unwrap();
        let file = file.unwrap_or_else(|| panic!("{what}: file {step} of {} is lost", known.done));
        let expected = pieces(step).concat();
        let found = client.read(file.fid, 0, 1 << 20).await.unwrap();
        assert!(found == expected, "{what}: {} bytes for {} in file {step}", found.len(), expected.len());
    }
    client.create(client.root, "goes on").await.unwrap();
    client.ask(Call::Goodbye).await.result.unwrap();
    server.shutdown().await;

    check_stores(dir, what);
}

/// What the clients know that were there before the server died the first time.
struct Survivors {
    keeper: Keeper,
    leaver: Leaver,
    newcomer: Option<Newcomer>,
    /// Of the keeper.
    known: Known,
}

/// Has a file with a lock, leases, and another file open that has no name.
struct Keeper {
    leases: Vec<(Grant, Version)>,
    kept: Fid,
    contents: Vec<u8>,
    orphan: Fid,
    orphan_is_open: InUse,
}

/// Has a lock and says goodbye.
struct Leaver {
    key: SessionKey,
    file: Fid,
    goodbye: Said,
}

/// Takes the lock of the leaver.
struct Newcomer {
    key: SessionKey,
    lock: Option<Lock>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Said {
    No,
    Perhaps,
    Answered,
}

const ORPHANED: &[u8] = b"nobody finds it";

// SEMANTICS 17, 29
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_finds_what_it_held_whenever_the_server_died_again() {
    for point in crash::ALL.iter().copied().filter(|point| !NOT_WITH_SURVIVORS.contains(point)) {
        let dir = tempfile::tempdir().unwrap();
        let mut survivors = before(dir.path()).await;
        let (mut child, mut output) = spawn(dir.path(), point);
        if let Some(address) = address(&mut output) {
            let dead = go_on(address, &mut survivors).await;
            assert_eq!(dead, None, "{point} was never passed");
        }
        drop(child.stdin.take());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(6), "{point}: the server ended otherwise: {status}");
        after(dir.path(), survivors, point).await;
    }
}

/// A server that ends as if it had died. Its term was a longer one.
async fn before(dir: &Path) -> Survivors {
    let server = start_again(&short(dir).with_term(Duration::from_millis(2500)));
    let keeper = Client::connect(&server).await;
    let made = keeper.change(create(keeper.root, "kept", FileKind::File)).await;
    let grants = made.grants.clone();
    let kept = node(made).unwrap().fid;
    let contents = vec![7; 200_000];
    keeper.write(kept, WriteAt::Offset(0), &contents).await.unwrap();
    keeper.ask(lock_of(kept)).await.result.unwrap();
    let version = node(keeper.ask(Call::GetAttr { fid: kept }).await).unwrap().attr.version;
    let leases: Vec<_> =
        grants.into_iter().filter(|grant| grant.fid == kept).map(|grant| (grant, version)).collect();
    assert_eq!(leases.len(), 1);
    let orphan = keeper.create(keeper.root, "orphan").await.unwrap().fid;
    keeper.write(orphan, WriteAt::Offset(0), ORPHANED).await.unwrap();
    keeper.unlink(keeper.root, "orphan", InUse::Yes).await.unwrap();
    // To be deleted later.
    let large = keeper.create(keeper.root, "large").await.unwrap().fid;
    for block in 0..8 {
        keeper.write(large, WriteAt::Offset(block << 20), &vec![1; 1 << 20]).await.unwrap();
    }
    let leaver = Client::connect(&server).await;
    let file = leaver.create(leaver.root, "left").await.unwrap().fid;
    leaver.ask(lock_of(file)).await.result.unwrap();
    let known = Known { key: Some(keeper.key()), ..Known::default() };
    Survivors {
        keeper: Keeper { leases, kept, contents, orphan, orphan_is_open: InUse::Yes },
        leaver: Leaver { key: leaver.key(), file, goodbye: Said::No },
        newcomer: None,
        known,
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

fn lock_of(fid: Fid) -> Call {
    Call::LockSet { fid, lock: EXCLUSIVE, wait: LockWait::Yes, delegable: Delegable::No }
}

/// Everybody comes back and goes on. `None`: the server is gone.
async fn go_on(address: SocketAddr, survivors: &mut Survivors) -> Option<()> {
    let Survivors { keeper, leaver, newcomer, known } = survivors;
    let (client, _) = come_back(address, known.key?, keeper.reclaim()).await?;
    let (leaving, _) = come_back(address, leaver.key, leaver.reclaim()).await?;

    leaver.goodbye = Said::Perhaps;
    call(&leaving, Call::Goodbye).await?.unwrap();
    leaver.goodbye = Said::Answered;
    let new = connect(address, None).await?;
    let newcomer = newcomer.insert(Newcomer { key: new.key(), lock: None });
    call(&new, lock_of(leaver.file)).await?.unwrap();
    newcomer.lock = Some(EXCLUSIVE);

    let append = Call::Write { fid: keeper.kept, at: WriteAt::End, kill_suid_sgid: false };
    for piece in [vec![8; 10], vec![9; 200_000]] {
        attempt(&client, known, append.clone(), &piece).await?.unwrap();
        keeper.contents.extend(piece);
    }
    let again = attempt(&client, known, create(client.root, "kept", FileKind::File), b"").await?;
    assert_eq!(errno(again), Errno::Exists);
    attempt(&client, known, create(client.root, "later", FileKind::File), b"").await?.unwrap();
    keeper.orphan_is_open = InUse::No;
    client.note(Note::Closed(vec![keeper.orphan])).await;
    let unlink =
        Call::Unlink { parent: client.root, name: n("large"), what: Unlink::File { in_use: InUse::No } };
    attempt(&client, known, unlink, b"").await?.unwrap();
    // What is left is done by threads of the server.
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        call(&client, Call::Sync { fid: keeper.kept, after: None }).await?.unwrap();
        attempt(
            &client,
            known,
            Call::SetAttr { fid: client.root, set: SetAttr::default(), owner: None },
            b"",
        )
        .await?
        .unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Some(())
}

async fn connect(address: SocketAddr, key: Option<SessionKey>) -> Option<Client> {
    // Ends with a panic if the server goes away before its welcome.
    tokio::spawn(Client::connect_with(address, key, Recalls::Answer)).await.ok()?.ok()
}

async fn call(client: &Client, call: Call) -> Option<Result<Answer, Failure>> {
    Some(client.connection().call(None, call, Bytes::new()).await?.0.result)
}

/// Resumes a session, with what it held. Returns what was granted of its leases.
async fn come_back(
    address: SocketAddr,
    key: SessionKey,
    reclaim: Reclaim,
) -> Option<(Client, Vec<Option<Grant>>)> {
    let client = connect(address, Some(key)).await?;
    assert_eq!(client.session.standing, Standing::Reclaim);
    match call(&client, Call::Reclaim(reclaim)).await?.unwrap() {
        Answer::Reclaimed { leases: granted, .. } => Some((client, granted)),
        other => panic!("{other:?}"),
    }
}

fn reclaim_lock(lock: Option<(Fid, Lock)>) -> Reclaim {
    Reclaim { leases: vec![], open: vec![], locks: lock.into_iter().collect(), step: ReclaimStep::Last }
}

impl Keeper {
    fn reclaim(&self) -> Reclaim {
        let open = if self.orphan_is_open == InUse::Yes { vec![self.orphan] } else { vec![] };
        Reclaim { leases: self.leases.clone(), open, ..reclaim_lock(Some((self.kept, EXCLUSIVE))) }
    }
}

impl Leaver {
    fn reclaim(&self) -> Reclaim {
        reclaim_lock(Some((self.file, EXCLUSIVE)))
    }
}

async fn after(dir: &Path, survivors: Survivors, what: &str) {
    let Survivors { mut keeper, leaver, newcomer, mut known } = survivors;
    let server = start_again(&short(dir));
    let address = server.local_addr();
    let back = connect(address, Some(leaver.key)).await.unwrap();
    let leaver_is_back = back.session.standing == Standing::Reclaim;
    let known_to_have_left = leaver.goodbye == Said::Answered;
    assert!(leaver_is_back || leaver.goodbye != Said::No, "{what}: a session is lost");
    assert!(!(leaver_is_back && known_to_have_left), "{what}: a session is back that had ended");
    if leaver_is_back {
        back.ask(Call::Reclaim(leaver.reclaim())).await.result.unwrap();
    }
    let mut holders = u32::from(leaver_is_back);
    let mut others = vec![back];
    if let Some(Newcomer { key, lock }) = newcomer {
        holders += u32::from(lock.is_some());
        others.push(
            come_back(address, key, reclaim_lock(lock.map(|lock| (leaver.file, lock)))).await.unwrap().0,
        );
    }
    assert!(holders <= 1, "{what}: two have the lock of one file");

    let (client, granted) = come_back(address, known.key.unwrap(), keeper.reclaim()).await.unwrap();
    assert!(granted.len() == 1, "{what}");
    if let Some((op, call, data)) = known.doubt.take() {
        let ask = || client.connection().call(Some(op), call.clone(), data.clone());
        let (first, second) = (ask().await.unwrap().0.result, ask().await.unwrap().0.result);
        assert_eq!(first, second, "{what}");
        if matches!(call, Call::Write { .. }) {
            first.unwrap();
            keeper.contents.extend(&data);
        }
    }
    let found = client.read(keeper.kept, 0, 1 << 20).await.unwrap();
    assert!(found == keeper.contents, "{what}: {} bytes for {}", found.len(), keeper.contents.len());

    let prober = Client::connect(&server).await;
    until("the grace period is over", async || {
        for client in others.iter().chain([&client]) {
            client.ask(Call::Renew).await.result.unwrap();
        }
        let test = prober.ask(Call::LockTest { fid: keeper.kept, lock: EXCLUSIVE }).await.result;
        !matches!(test, Err(Failure::Grace(_)))
    })
    .await;
    for (file, has_owner) in [(keeper.kept, true), (leaver.file, holders == 1)] {
        let test = prober.ask(Call::LockTest { fid: file, lock: EXCLUSIVE }).await.result;
        assert_eq!(test, Ok(Answer::Conflict(has_owner.then_some(EXCLUSIVE))), "{what}");
    }
    match keeper.orphan_is_open {
        InUse::Yes => assert_eq!(client.read(keeper.orphan, 0, 100).await.unwrap(), ORPHANED, "{what}"),
        InUse::No => until("the orphan is gone", async || !client.exists(keeper.orphan).await).await,
    }
    for client in others.iter().chain([&client]) {
        client.ask(Call::Goodbye).await.result.unwrap();
    }
    assert_eq!(prober.ask(lock_of(keeper.kept)).await.result, Ok(Answer::Done), "{what}");
    server.shutdown().await;
    check_stores(dir, what);
}
