//! The server's process dies at every crash point, in the middle of its work. Afterwards everything that was answered is
//! there, the operation in doubt is there once after it was sent again, and fsck finds nothing.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use bytes::Bytes;
use common::*;
use soda_protocol::{Answer, Call, Failure, Note, OpId, Reclaim, ReclaimStep, SessionKey, Standing, WriteAt};
use soda_server::{Server, ServerConfig};
use soda_storage::{DataDirectory, StoreOptions, crash};
use soda_types::{Errno, FileKind, InUse, Timestamp};
use soda_volume::fsck::{DataCheck, FsckOptions, Repair, fsck};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const STEPS: u32 = 12;

/// Crash points that a server passes in the work below.
fn points() -> impl Iterator<Item = &'static str> {
    let passed = ["server.", "volume.commit.", "meta.commit.", "volume.staged", "segment.half-written"];
    crash::ALL.iter().copied().filter(move |point| passed.iter().any(|prefix| point.starts_with(prefix)))
}

fn short(dir: &Path) -> ServerConfig {
    config(dir).with_term(Duration::from_secs(2))
}

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
    for point in points() {
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

fn spawn(dir: &Path, point: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env("SODA_CRASH_POINT", point)
        .env("SODA_CRASH_DIRECTORY", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn address(output: &mut impl BufRead) -> Option<std::net::SocketAddr> {
    let lines = output.lines().map_while(Result::ok);
    let mut found = lines.filter_map(|line| line.split("listening on ").nth(1)?.parse().ok());
    found.next()
}

#[test]
#[ignore = "run by the test above, in a process that is going to die"]
fn child() {
    let Some(dir) = std::env::var_os("SODA_CRASH_DIRECTORY") else { return };
    let server = Server::start(short(Path::new(&dir))).unwrap();
    println!("\nlistening on {}", server.local_addr());
    // Until the test lets go of the other end.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
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
        if client.connection().call(None, Call::Sync { fid: file.fid }, Bytes::new()).await.is_none() {
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
    let server = Server::start(short(dir)).unwrap();
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

    let stores = DataDirectory::open(dir, StoreOptions::default()).unwrap();
    let options = FsckOptions { repair: Repair::No, data: DataCheck::CheckSums, now: Timestamp::new(1, 0) };
    let report = fsck(stores.meta.clone(), stores.data.clone(), options, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
}
