//! A client that logs and dies at a named place: the server holds a prefix of what it did, and the next client tells the rest.
//!
//! A program of its own: a process that is being started has all descriptors of this one for a moment, and a log that a client
//! has just left would be taken for one in use.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::delayed::*;
use common::far::Far;
use common::work::{self, Picture, Step, number_of, pictures, steps, take};
use common::*;
use soda_client::{Client, NoKernel, WriteBehind, WritePolicy, crash};
use soda_oplog::{Change, segments};
use soda_types::Errno;
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
fn run_child(cell: &Cell, cache: &Path, said: &Path, death: (&str, Duration)) -> ExitStatus {
    run_child_at("child", cell, (cache, said), death)
}

fn run_child_at(
    work: &str,
    cell: &Cell,
    (cache, said): (&Path, &Path),
    (point, age): (&str, Duration),
) -> ExitStatus {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", work, "--ignored"])
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

/// The victim, of which the server refuses what it does first.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the others"]
async fn child_that_is_refused() {
    let var = |name: &str| std::env::var(name).unwrap();
    let server = var(SERVER).parse().unwrap();
    let far = Far::before(server, Duration::from_millis(1)).await;
    let a = connect(&far.addr.to_string(), Path::new(&var(CACHE)), LATER).await;
    warm_up(&a, server).await;
    let dirs = [mkdir(&a, a.root(), "d").await, mkdir(&a, a.root(), "e").await];
    a.sync_all().await.unwrap();
    make(&a, dirs[0], "lost", "refused").await;
    make(&a, dirs[1], "beside", "told").await;
    far.refuse(0, Errno::Exists);
    let _ = a.sync_all().await;
    wait_until("the end", || async { false }).await;
}

/// Names of the files that are made in a log.
fn made_in(log: &Path) -> Vec<String> {
    let found = segments::read(log).unwrap().unwrap();
    let records = found.records().into_iter();
    let made = records.filter_map(|record| match &record.change {
        Change::Create { place, .. } => Some(String::from_utf8(place.name.as_bytes().to_vec()).unwrap()),
        _ => None,
    });
    made.collect()
}

/// Wherever it dies: what the server refused is kept, the rest is told.
// SEMANTICS 51
#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_is_kept_wherever_the_client_dies() {
    for point in crash::OF_LOSS {
        let cell = Cell::start();
        let (cache, said) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let paths = (cache.path(), said.path());
        let died = has_aborted(run_child_at("child_that_is_refused", &cell, paths, (point, LATER)));
        assert!(died, "{point} was not reached");
        let next = connect(&cell.addr.to_string(), cache.path(), SOON).await;
        assert_eq!(contents(&next, &["e", "beside"]).await, "told", "{point}");
        assert_eq!(find(&next, &["d", "lost"]).await, None, "{point}");
        let kept: Vec<_> = fs::read_dir(cache.path().join("oplog/kept")).into_iter().flatten().collect();
        let made: Vec<Vec<String>> = kept.into_iter().map(|log| made_in(&log.unwrap().path())).collect();
        assert!(!made.is_empty() && made.iter().all(|made| made == &["lost"]), "{point}: {made:?}");
        next.shutdown().await;
    }
}

/// Rounds of work of every kind ([`work`]).
const ROUNDS: usize = 3;

/// The victim, at work of every kind under a deep lease.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the others"]
async fn child_at_work() {
    let var = |name: &str| std::env::var(name).unwrap();
    let age = Duration::from_millis(var(AGE).parse().unwrap());
    let a = connect(&var(SERVER), Path::new(&var(CACHE)), age).await;
    warm_up(&a, var(SERVER).parse().unwrap()).await;
    work::begin(&a).await;
    let mut said = File::options().append(true).open(var(SAID)).unwrap();
    for (number, step) in steps(ROUNDS).iter().enumerate() {
        take(&a, step).await;
        said.write_all(b".").unwrap();
        if number % 15 == 14 {
            a.sync_all().await.unwrap();
        }
    }
    a.shutdown().await;
}

/// Where a client dies: the places that every record passes, and those that each digest does.
fn deaths() -> impl Iterator<Item = String> {
    let at = |point: &'static str, times: &'static [u32]| times.iter().map(move |at| format!("{point}:{at}"));
    // The first ones are those of the beginning.
    at("client.record-queued", &[9, 23, 44, 61])
        .chain(at("client.record-written", &[14, 31, 52, 70]))
        .chain(at("client.digest-noted", &[6, 8]))
        .chain(at("client.digest-answered", &[5, 7]))
        .chain(at("client.digest-applied", &[5, 7]))
        .chain(at("client.durable", &[4, 6]))
}

/// The tree as it is for others; empty, if it is not there.
async fn seen_by_another(cell: &Cell) -> Picture {
    let reader = cell.client().await;
    let picture = work::look(&reader).await;
    reader.shutdown().await;
    picture.unwrap_or_default()
}

/// What the script does without dying is what it says, and is done here, not at the server.
#[tokio::test(flavor = "multi_thread")]
async fn work_of_every_kind_is_logged() {
    let cell = Cell::deep();
    let cache = tempfile::tempdir().unwrap();
    let a = connect(&cell.addr.to_string(), cache.path(), LATER).await;
    warm_up(&a, cell.addr).await;
    work::begin(&a).await;
    let (steps, before) = (steps(ROUNDS), a.stats());
    let pictures = pictures(&steps);
    for (number, step) in steps.iter().enumerate() {
        take(&a, step).await;
        assert_eq!(
            number_of(&work::look(&a).await.unwrap(), &pictures, number + 1..=number + 1, "here"),
            number + 1
        );
    }
    let here = a.stats().count("here") - before.count("here");
    assert!(here as usize + 3 >= steps.len(), "{here} of {}: {:?}", steps.len(), a.stats());
    assert_eq!(a.stats().count("digests"), before.count("digests"), "told before somebody asked");
    a.sync_all().await.unwrap();
    assert_eq!(Some(&seen_by_another(&cell).await), pictures.last());
}

/// Renames, links, removals, attributes and moved directories: the next mount tells what was not told, and then the tree is as it
/// was after the last step that was acknowledged, or after the one that was being done.
// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_client_was_doing_under_a_deep_lease_the_next_one_tells() {
    let steps: Vec<Step> = steps(ROUNDS);
    let pictures = pictures(&steps);
    for (number, death) in deaths().enumerate() {
        let mut cell = Cell::deep();
        let (cache, said) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        // Now and then all is told at once, now and then nothing before it is asked for.
        let age = if number % 2 == 0 || death.contains("digest") { SOON } else { LATER };
        let died =
            has_aborted(run_child_at("child_at_work", &cell, (cache.path(), said.path()), (&death, age)));
        assert!(died, "{death} was not reached");
        if number % 3 == 2 {
            cell.restart();
        }
        let acknowledged = fs::read(said.path()).unwrap().len();
        let next = connect(&cell.addr.to_string(), cache.path(), SOON).await;
        let found = seen_by_another(&cell).await;
        number_of(&found, &pictures, acknowledged..=acknowledged + 1, &death);
        assert!(!cache.path().join("oplog/kept").exists(), "{death}: something is kept");
        next.shutdown().await;
    }
}

/// Who dies in the replay of such work leaves it to the next one, too.
#[tokio::test(flavor = "multi_thread")]
async fn who_dies_while_work_of_every_kind_is_told_again_leaves_it_to_the_next_one() {
    let steps = steps(ROUNDS);
    let pictures = pictures(&steps);
    for (number, point) in crash::ALL.iter().filter(|point| point.contains("replay")).enumerate() {
        let cell = Cell::deep();
        let (cache, said) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let first = format!("client.record-written:{}", 40 + number * 7);
        let paths = (cache.path(), said.path());
        assert!(has_aborted(run_child_at("child_at_work", &cell, paths, (&first, LATER))), "{first}");
        let unsaid = tempfile::NamedTempFile::new().unwrap();
        let died =
            has_aborted(run_child_at("child_at_work", &cell, (cache.path(), unsaid.path()), (point, SOON)));
        assert!(died, "{point} after {first} was not reached");
        let acknowledged = fs::read(said.path()).unwrap().len();
        let next = connect(&cell.addr.to_string(), cache.path(), SOON).await;
        let found = seen_by_another(&cell).await;
        number_of(&found, &pictures, acknowledged..=acknowledged + 1, point);
        assert!(!cache.path().join("oplog/kept").exists(), "{point}: something is kept");
        next.shutdown().await;
    }
}

/// Without its log: the server has a beginning of what was done, across all objects, and with all that was synced.
// SEMANTICS 47
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_has_of_a_client_that_is_lost_with_its_log_is_a_prefix() {
    let steps = steps(ROUNDS);
    let pictures = pictures(&steps);
    for death in ["client.digest-noted:6", "client.digest-answered:7", "client.record-written:58"] {
        let cell = Cell::with_term(Duration::from_secs(1)).with_deep_leases();
        let (cache, said) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        assert!(has_aborted(run_child_at(
            "child_at_work",
            &cell,
            (cache.path(), said.path()),
            (death, SOON)
        )));
        drop(cache);
        let acknowledged = fs::read(said.path()).unwrap().len();
        // The last of these may have been under way.
        let synced = acknowledged.saturating_sub(1) / 15 * 15;
        let found = seen_by_another(&cell).await;
        number_of(&found, &pictures, synced..=acknowledged + 1, death);
    }
}
