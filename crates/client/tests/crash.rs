//! A client that logs and dies at a named place: the server holds a prefix of what it did, and the next client tells the rest.
//!
//! A program of its own: a process that is being started has all descriptors of this one for a moment, and a log that a client
//! has just left would be taken for one in use.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::delayed::*;
use common::*;
use soda_client::{Client, NoKernel, WriteBehind, WritePolicy, crash};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

const FILES: usize = 60;
/// Of the child: the server, the cache directory, and the file that says what was acknowledged.
const SERVER: &str = "SODA_CHILD_SERVER";
const CACHE: &str = "SODA_CHILD_CACHE";
const SAID: &str = "SODA_CHILD_SAID";
const AGE: &str = "SODA_CHILD_AGE";
/// What is told is told soon, so that all happens; or nothing is before the child asks.
const SOON: Duration = Duration::from_millis(5);
const LATER: Duration = Duration::from_secs(3600);

async fn connect(server: &str, cache: &Path, max_age: Duration) -> Arc<Client> {
    let behind = WriteBehind { max_age, ..WriteBehind::default() };
    let mut config = soda_client::ClientConfig::new(server.to_owned(), "main");
    config.write = WritePolicy::Behind(behind);
    config.cache.dir = Some(cache.to_owned());
    Client::connect(config, Box::new(NoKernel)).await.unwrap()
}

fn content(number: usize) -> String {
    format!("file {number}")
}

/// The victim.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the others"]
async fn child() {
    let var = |name: &str| std::env::var(name).unwrap();
    let age = Duration::from_millis(var(AGE).parse().unwrap());
    let a = connect(&var(SERVER), Path::new(&var(CACHE)), age).await;
    let mut said = File::options().append(true).open(var(SAID)).unwrap();
    warm_up(&a, var(SERVER).parse().unwrap()).await;
    for number in 0..FILES {
        make(&a, a.root(), &number.to_string(), &content(number)).await;
        said.write_all(b".").unwrap();
        if number % 10 == 9 {
            a.sync_all().await.unwrap();
        }
    }
    a.shutdown().await;
}

/// Connects, works, and dies at that point, if it comes to it.
fn run_child(cell: &Cell, cache: &Path, said: &Path, (point, age): (&str, Duration)) -> ExitStatus {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored"])
        .env(SERVER, cell.addr.to_string())
        .env(CACHE, cache)
        .env(SAID, said)
        .env(AGE, age.as_millis().to_string())
        .env("SODA_CRASH_POINT", point)
        .output();
    child.unwrap().status
}

fn has_aborted(status: ExitStatus) -> bool {
    // 6: SIGABRT.
    status.signal() == Some(6)
}

/// Whoever comes next has all that was acknowledged, and what is there is a beginning of what was done.
async fn check(cell: &Cell, cache: &Path, said: &Path, what: &str) {
    let acknowledged = fs::read(said).unwrap().len();
    let next = connect(&cell.addr.to_string(), cache, SOON).await;
    let reader = cell.client().await;
    let mut there = Vec::new();
    for number in 0..FILES {
        there.push(match find(&reader, &[&number.to_string()]).await {
            Some(_) => Some(contents(&reader, &[&number.to_string()]).await),
            None => None,
        });
    }
    let whole =
        there.iter().enumerate().take_while(|(number, found)| **found == Some(content(*number))).count();
    let begun = usize::from(there.get(whole) == Some(&Some(String::new())));
    let rest = there.iter().skip(whole + begun).filter(|found| found.is_some()).count();
    assert_eq!(rest, 0, "{what}: {there:?}");
    let done = whole + begun;
    assert!(whole >= acknowledged && done <= acknowledged + 1, "{what}: {acknowledged} of {there:?}");
    assert!(!cache.join("oplog/kept").exists(), "{what}: something is kept");
    next.shutdown().await;
    reader.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_dies_anywhere_leaves_a_prefix_and_the_rest_is_told() {
    for point in crash::ALL.iter().filter(|point| !point.contains("replay")) {
        for passage in [1, 4] {
            let once = *point == "client.session-begun";
            if once && passage > 1 {
                continue;
            }
            let cell = Cell::start();
            let (cache, said) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
            let what = format!("{point}:{passage}");
            let died = has_aborted(run_child(&cell, cache.path(), said.path(), (&what, SOON)));
            assert!(died, "{what} was not reached");
            check(&cell, cache.path(), said.path(), &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_dies_while_he_tells_what_another_left_leaves_it_to_the_next_one() {
    const PENDING: (&str, Duration) = ("client.record-written:12", LATER);
    const SENT: (&str, Duration) = ("client.digest-noted:4", SOON);
    for (point, first) in crash::ALL.iter().flat_map(|point| [(*point, PENDING), (*point, SENT)]) {
        // What was sent before is not noted again.
        if !point.contains("replay") || (point, first) == ("client.replay-noted", SENT) {
            continue;
        }
        let cell = Cell::start();
        let (cache, said) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        assert!(has_aborted(run_child(&cell, cache.path(), said.path(), first)), "{first:?}");
        let unsaid = tempfile::NamedTempFile::new().unwrap();
        let died = has_aborted(run_child(&cell, cache.path(), unsaid.path(), (point, SOON)));
        assert!(died, "{point} after {first:?} was not reached");
        assert_eq!(fs::read(unsaid.path()).unwrap().len(), 0);
        check(&cell, cache.path(), said.path(), point).await;
    }
}
