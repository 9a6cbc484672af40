//! A server whose disk gets full.

use super::bounds::Stalled;
use super::*;
use crate::common::delayed::{Victim, caching, writer_with};
use crate::common::proxy::{Proxy, Weather};
use crate::common::small_disk::on_a_small_disk;
use crate::replay::{kept, only_log};
use soda_client::{ConnectError, Untold, recover};
use soda_types::FsResult;
use std::collections::BTreeSet;
use std::path::Path;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

async fn fill(client: &Arc<Client>, text: &str, len: usize) -> FsResult<Fid> {
    let new = new_node(FileKind::File);
    let (_, file) = client.create_open(client.root(), &name(text), new, OpenMode::ReadWrite).await?;
    client.write_all(&file, WriteAt::Offset(0), vec![b'x'; len].into(), KillPriv::Keep).await?;
    Ok(file.fid())
}

/// Takes the space that others have left on the server's disk, but for what names need.
fn hog(cell: &Cell) -> std::path::PathBuf {
    let path = cell.dir.path().join("hog");
    let free = || {
        let stat = rustix::fs::statvfs(cell.dir.path()).unwrap();
        (stat.f_bavail * stat.f_frsize) as usize
    };
    let hog = vec![1; free() - 12 * MIB];
    std::fs::write(&path, hog).unwrap();
    path
}

fn empty(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_was_acknowledged_gets_to_a_server_that_is_full_since() {
    on_a_small_disk("behind::full::acknowledged_then_full", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by what_was_acknowledged_gets_to_a_server_that_is_full_since"]
async fn acknowledged_then_full() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    for number in 0..12 {
        fill(&a, &format!("before {number}"), 64 * KIB).await.unwrap();
    }
    assert!(a.session().backlog.records >= 24, "nobody was told");
    // Through, until there is no room.
    let mut large = 0;
    let full = loop {
        match fill(&a, &format!("large {large}"), MIB).await {
            Ok(_) => large += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.errno, Errno::NoSpace, "{full}");
    assert!(large > 100, "only {large} MiB of it could be used");
    // What still fits is acknowledged, the rest is not.
    let mut small = 0;
    while fill(&a, &format!("small {small}"), 32 * KIB).await.is_ok() {
        small += 1;
        assert!(small < 10_000, "it never gets full");
    }
    a.sync_all().await.unwrap();
    for number in 0..12 {
        assert_eq!(contents(&b, &[&format!("before {number}")]).await.len(), 64 * KIB);
    }
    for number in 0..small {
        assert_eq!(contents(&b, &[&format!("small {number}")]).await.len(), 32 * KIB);
    }
    for number in 0..large {
        a.unlink(a.root(), &name(&format!("large {number}"))).await.unwrap();
    }
    wait_until("space", || async { fill(&a, "afterwards", MIB).await.is_ok() }).await;
    a.sync_all().await.unwrap();
    assert_eq!(contents(&b, &["afterwards"]).await.len(), MIB);
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[test]
fn what_frees_space_is_done_by_a_server_that_has_no_room_for_the_rest() {
    on_a_small_disk("behind::full::full_behind_its_back", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by what_frees_space_is_done_by_a_server_that_has_no_room_for_the_rest"]
async fn full_behind_its_back() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    for number in 0..40 {
        fill(&a, &format!("old {number}"), MIB).await.unwrap();
    }
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    for number in 0..40 {
        fill(&a, &format!("new {number}"), 256 * KIB).await.unwrap();
    }
    let last = fill(&a, "last", 256 * KIB).await.unwrap();
    let hog = hog(&cell);
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace, "it is said");
    assert_eq!(a.fsync(last).await.unwrap_err().errno, Errno::NoSpace);
    let refused = fill(&a, "too much", 256 * KIB).await.unwrap_err();
    assert_eq!(refused.errno, Errno::NoSpace, "when it is written");
    // Who needs no room does not wait for those who do.
    mkdir(&a, dir, "e").await;
    a.fsync(dir).await.unwrap();
    assert!(find(&b, &["d", "e"]).await.is_some());
    // Here, and through: another machine looks at the directory.
    for number in 0..40 {
        a.unlink(a.root(), &name(&format!("old {number}"))).await.unwrap();
        if number % 10 == 0 {
            find(&b, &["old 39"]).await;
        }
    }
    wait_until("room", || async { a.sync_all().await.is_ok() }).await;
    for number in 0..40 {
        assert_eq!(contents(&b, &[&format!("new {number}")]).await.len(), 256 * KIB);
        assert_eq!(find(&b, &[&format!("old {number}")]).await, None);
    }
    assert_eq!(contents(&b, &["last"]).await.len(), 256 * KIB);
    assert_eq!(a.stats().count("lost_records"), 0);
    empty(&hog);
}

#[test]
fn a_full_server_does_not_refuse_a_removal_for_which_the_log_has_no_room() {
    on_a_small_disk("behind::full::removals_beyond_the_log", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by a_full_server_does_not_refuse_a_removal_for_which_the_log_has_no_room"]
async fn removals_beyond_the_log() {
    const MOST: usize = 8;
    let cell = Cell::start();
    let stalled = Stalled::before(cell.addr).await;
    let a = stalled.writer(&cell, WriteBehind { max_records: MOST, ..WriteBehind::default() }).await;
    for number in 0..40 {
        fill(&a, &format!("old {number}"), KIB).await.unwrap();
    }
    a.sync_all().await.unwrap();
    for number in 0..3 {
        fill(&a, &format!("new {number}"), 256 * KIB).await.unwrap();
    }
    let hog = hog(&cell);
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace, "it is said");
    stalled.begin();
    let removing = {
        let a = Arc::clone(&a);
        tokio::spawn(async move {
            for number in 0..40 {
                a.unlink(a.root(), &name(&format!("old {number}"))).await.unwrap();
            }
        })
    };
    wait_until("more than fits", || async { a.session().backlog.records >= 2 * MOST as u64 }).await;
    assert!(!removing.is_finished());
    stalled.end();
    removing.await.unwrap();
    // Nothing has made room for these.
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace);
    empty(&hog);
    wait_until("room", || async { a.sync_all().await.is_ok() }).await;
    let b = cell.client().await;
    for number in 0..3 {
        assert_eq!(contents(&b, &[&format!("new {number}")]).await.len(), 256 * KIB);
    }
    assert_eq!(find(&b, &["old 39"]).await, None);
    assert_eq!(a.stats().count("lost_records"), 0);
}

// SEMANTICS 56
#[test]
fn who_ends_waits_for_room_at_a_full_server() {
    on_a_small_disk("behind::full::room_at_the_end", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by who_ends_waits_for_room_at_a_full_server"]
async fn room_at_the_end() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    for number in 0..40 {
        fill(&a, &format!("new {number}"), 256 * KIB).await.unwrap();
    }
    let hog = hog(&cell);
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace);
    let refused = a.stats().count("digests_refused");
    let ending = {
        let a = Arc::clone(&a);
        tokio::spawn(async move { a.shutdown().await })
    };
    wait_until("two more refusals", || async { a.stats().count("digests_refused") >= refused + 2 }).await;
    assert!(!ending.is_finished());
    empty(&hog);
    assert_eq!(ending.await.unwrap(), Untold::default());
    for number in 0..40 {
        assert_eq!(contents(&b, &[&format!("new {number}")]).await.len(), 256 * KIB);
    }
}

// SEMANTICS 50
#[test]
fn a_log_that_a_full_server_has_no_room_for_waits_for_a_mount_that_finds_some() {
    on_a_small_disk("behind::full::replay_at_a_full_server", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by a_log_that_a_full_server_has_no_room_for_waits_for_a_mount_that_finds_some"]
async fn replay_at_a_full_server() {
    let cell = Cell::start();
    let victim = Victim::that_only_logs(&cell).await;
    victim
        .run(|client| async move {
            for number in 0..40 {
                fill(&client, &format!("new {number}"), 256 * KIB).await.unwrap();
            }
        })
        .await;
    let cache = victim.kill();
    let hog = hog(&cell);
    let next = || Client::connect(caching(&cell, cell.addr, cache.path()), Box::new(NoKernel));
    let log = only_log(cache.path());
    match next().await {
        Err(ConnectError::NoRoom { records, dir, .. }) => {
            assert_eq!((Path::new(&dir), records > 0), (&*log, true));
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("mounted without what it could not tell"),
    }
    assert!(log.exists() && kept(cache.path()).is_empty(), "for the next one");
    empty(&hog);
    let a = next().await.unwrap();
    assert!(a.stats().count("replayed") > 0 && kept(cache.path()).is_empty());
    let b = cell.client().await;
    for number in 0..40 {
        assert_eq!(contents(&b, &[&format!("new {number}")]).await.len(), 256 * KIB);
    }
}

#[test]
fn a_file_that_a_full_server_cannot_take_can_be_removed() {
    on_a_small_disk("behind::full::removed_with_own_writes", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by a_file_that_a_full_server_cannot_take_can_be_removed"]
async fn removed_with_own_writes() {
    const NEW: usize = 6;
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let old = [fill(&a, "old", 4 * KIB).await.unwrap(), fill(&a, "old too", 4 * KIB).await.unwrap()];
    a.sync_all().await.unwrap();
    // Less than what the server is told unasked.
    for (fid, pieces) in old.into_iter().zip([2, 1]) {
        let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
        for number in 0..pieces {
            write(&a, &file, number * 128 * KIB as u64, "y".repeat(128 * KIB)).await;
        }
    }
    for number in 0..NEW {
        fill(&a, &format!("new {number}"), 64 * KIB).await.unwrap();
    }
    let hog = hog(&cell);
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace, "it is said");
    // In the log its removal would stand behind what there is no room for.
    let through = a.stats().count("msg_unlink");
    a.unlink(a.root(), &name("old too")).await.unwrap();
    assert_eq!(a.stats().count("msg_unlink"), through + 1);
    for text in ["old".to_owned()].into_iter().chain((0..NEW).map(|number| format!("new {number}"))) {
        // Who has looked has a lease on the directory, so each of them goes through.
        assert_eq!(find(&b, &["looked for"]).await, None);
        let through = a.stats().count("msg_unlink");
        a.unlink(a.root(), &name(&text)).await.unwrap();
        assert_eq!(a.stats().count("msg_unlink"), through + 1, "{text}");
        assert_eq!(find(&b, &[&text]).await, None);
    }
    a.sync_all().await.unwrap();
    assert_eq!(a.session().backlog.records, 0);
    assert_eq!(a.stats().count("lost_records"), 0);
    empty(&hog);
}

// SEMANTICS 54
#[test]
fn what_another_machine_has_open_keeps_what_a_full_server_cannot_take() {
    on_a_small_disk("behind::full::removed_while_open_elsewhere", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by what_another_machine_has_open_keeps_what_a_full_server_cannot_take"]
async fn removed_while_open_elsewhere() {
    const PIECES: u64 = 6;
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let old = fill(&a, "old", 4 * KIB).await.unwrap();
    let theirs = open(&b, "old").await;
    let mine = a.open(old, OpenMode::ReadWrite).await.unwrap();
    // Goes through and brings the lease.
    a.setattr(old, SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    // Less than what the server is told unasked.
    for number in 0..PIECES {
        write(&a, &mine, number * 128 * KIB as u64, "y".repeat(128 * KIB)).await;
    }
    drop(mine);
    let all = "y".repeat(PIECES as usize * 128 * KIB);
    let hog = hog(&cell);
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace, "it is said");
    assert_eq!(find(&b, &["looked for"]).await, None);
    let through = a.stats().count("msg_unlink");
    assert_eq!(a.unlink(a.root(), &name("old")).await.unwrap_err().errno, Errno::NoSpace, "nor removed");
    assert_eq!(a.stats().count("msg_unlink"), through + 1);
    assert_eq!(contents(&a, &["old"]).await, all, "it is as it was");
    empty(&hog);
    wait_until("room", || async { a.sync_all().await.is_ok() }).await;
    a.unlink(a.root(), &name("old")).await.unwrap();
    assert_eq!(find(&b, &["old"]).await, None);
    assert_eq!(read(&b, &theirs).await, all, "removed, and open there");
    assert_eq!(a.stats().count("lost_records"), 0);
}

// SEMANTICS 46, 54
#[test]
fn who_reads_what_is_about_to_be_removed_sees_what_was_written_to_it() {
    on_a_small_disk("behind::full::read_while_it_is_removed", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by who_reads_what_is_about_to_be_removed_sees_what_was_written_to_it"]
async fn read_while_it_is_removed() {
    const LEN: usize = 768 * KIB;
    let cell = Cell::with_term(Duration::from_secs(30));
    let proxy = Proxy::before(cell.addr).await;
    let cache = tempfile::tempdir().unwrap();
    let (a, b) = (writer_with(&cell, caching(&cell, proxy.addr, cache.path())).await, cell.client().await);
    let old = fill(&a, "old", 4 * KIB).await.unwrap();
    a.sync_all().await.unwrap();
    let theirs = open(&b, "old").await;
    let mine = a.open(old, OpenMode::ReadWrite).await.unwrap();
    // Goes through and brings the lease.
    a.setattr(old, SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    for at in (0..LEN).step_by(128 * KIB) {
        write(&a, &mine, at as u64, "y".repeat(128 * KIB)).await;
    }
    drop(mine);
    let hog = hog(&cell);
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace, "it is said");
    // The removal is on its way when it turns out that somebody wants to see the file.
    proxy.set(Weather::RepliesLost);
    let held_back = proxy.held_back();
    let reading = tokio::spawn({
        let (b, theirs) = (Arc::clone(&b), Arc::clone(&theirs));
        async move { read(&b, &theirs).await }
    });
    eventually("the recall", || proxy.held_back() > held_back).await;
    let (held_back, through) = (proxy.held_back(), a.stats().count("msg_unlink"));
    let removing = tokio::spawn({
        let a = Arc::clone(&a);
        async move { a.unlink(a.root(), &name("old")).await }
    });
    eventually("the answer", || proxy.held_back() > held_back).await;
    assert_eq!(a.stats().count("msg_unlink"), through + 1);
    proxy.set(Weather::Fine);
    assert_eq!(removing.await.unwrap().unwrap_err().errno, Errno::NoSpace, "it is open there");
    empty(&hog);
    assert_eq!(reading.await.unwrap(), "y".repeat(LEN));
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}

// SEMANTICS 49, 54
#[test]
fn what_was_set_aside_for_a_removal_is_lost_with_the_session() {
    on_a_small_disk("behind::full::fenced_while_it_removes", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by what_was_set_aside_for_a_removal_is_lost_with_the_session"]
async fn fenced_while_it_removes() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let cache = tempfile::tempdir().unwrap();
    let (a, b) = (writer_with(&cell, caching(&cell, proxy.addr, cache.path())).await, cell.client().await);
    let old = fill(&a, "old", 4 * KIB).await.unwrap();
    let before = fill(&a, "old too", 4 * KIB).await.unwrap();
    let mut files = vec![(old, 4), (before, 2)];
    for number in 0..6 {
        files.push((fill(&a, &format!("new {number}"), KIB).await.unwrap(), 1));
    }
    // All names are durable there: what is kept in the end is what is untold.
    a.sync_all().await.unwrap();
    for (fid, pieces) in files {
        let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
        for number in 0..pieces {
            write(&a, &file, number * 64 * KIB as u64, "y".repeat(64 * KIB)).await;
        }
    }
    let hog = hog(&cell);
    assert_eq!(a.sync_all().await.unwrap_err().errno, Errno::NoSpace, "it is said");
    a.unlink(a.root(), &name("old too")).await.unwrap();
    let untold = a.session().backlog.records;
    let through = a.stats().count("msg_unlink");
    proxy.set(Weather::Silence);
    let removing = {
        let a = Arc::clone(&a);
        tokio::spawn(async move { a.unlink(a.root(), &name("old")).await })
    };
    wait_until("the question", || async { a.stats().count("msg_unlink") > through }).await;
    assert_eq!(a.session().backlog.records, untold, "also what is set aside");
    let mut syncing = {
        let a = Arc::clone(&a);
        tokio::spawn(async move { a.sync_all().await })
    };
    // Somebody else needs the file before there is an answer.
    assert_eq!(contents(&b, &["old"]).await, "x".repeat(4 * KIB));
    let waits = tokio::time::timeout(Duration::from_millis(100), &mut syncing).await;
    assert!(waits.is_err(), "nothing is told as long as it may be taken back: {waits:?}");
    proxy.set(Weather::Fine);
    assert_eq!(removing.await.unwrap().unwrap_err().errno, Errno::Io);
    assert!(syncing.await.unwrap().is_err());
    wait_until("loss", || async { a.stats().count("kept_logs") > 0 }).await;
    let stats = a.stats();
    assert!(stats.count("lost_records") >= untold, "{} of {untold}: {stats:?}", stats.count("lost_records"));
    assert_eq!(a.session().backlog.records, 0, "nothing of it is in the log of the next session");
    assert_eq!(a.fsync(old).await.unwrap_err().errno, Errno::Io, "it is said");
    empty(&hog);
    a.sync_all().await.unwrap();
    assert_eq!(contents(&b, &["old"]).await, "x".repeat(4 * KIB));
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    let shown = log.show().unwrap();
    let kept: BTreeSet<_> =
        shown.iter().map(|record| (&record.path, &record.operation, &record.detail)).collect();
    assert_eq!(kept.len(), shown.len(), "each once: {shown:#?}");
    assert_eq!(log.records as u64, untold, "once: {shown:#?}");
}
