//! A client that is killed with delayed writes in its log, and the next one with its cache directory.

mod cuts;
mod damage;
pub(crate) mod files;
mod large;
mod refused;
mod together;

use crate::common::delayed::*;
use crate::common::proxy::{Proxy, Weather};
use crate::common::script::{Message, Peer, ROOT, pipes};
use crate::common::small_disk::on_a_small_disk;
use crate::common::*;
use soda_client::{BootClock, Client, Fsync, NoKernel, OpenMode, RenameHow};
use soda_oplog::segments;
use soda_protocol::{Call, FrameKind, Note, Push, Standing};
use soda_types::{Cause, Epoch, Fid, Grant, Ino, LeasePart, Recall, Scope, VolumeId};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A new client with the cache directory that another one left.
async fn next(cell: &Cell, cache: &Path) -> Arc<Client> {
    Client::connect(caching(cell, cell.addr, cache), Box::new(NoKernel)).await.unwrap()
}

pub(crate) fn logs(cache: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(cache.join("oplog")).unwrap();
    all.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("kept")).collect()
}

pub(crate) fn kept(cache: &Path) -> Vec<PathBuf> {
    let Ok(all) = fs::read_dir(cache.join("oplog/kept")) else { return Vec::new() };
    all.map(|entry| entry.unwrap().path()).collect()
}

pub(crate) fn only_log(cache: &Path) -> PathBuf {
    let [log] = &logs(cache)[..] else { panic!("{:?}", logs(cache)) };
    log.clone()
}

/// Three files in a new directory, one written over, one renamed, one removed.
pub(crate) async fn work(client: &Arc<Client>) {
    let dir = mkdir(client, client.root(), "d").await;
    make(client, dir, "a", "first").await;
    make(client, dir, "a", "again").await;
    make(client, dir, "b", "moved").await;
    client.rename(dir, &name("b"), client.root(), &name("c"), soda_client::RenameHow::Plain).await.unwrap();
    make(client, dir, "gone", "nobody sees it").await;
    client.unlink(dir, &name("gone")).await.unwrap();
}

async fn assert_worked(client: &Arc<Client>) {
    assert_eq!(contents(client, &["d", "a"]).await, "again");
    assert_eq!(contents(client, &["c"]).await, "moved");
    assert_eq!(find(client, &["d", "gone"]).await, None);
}

// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_client_had_not_told_is_told_by_the_next_one() {
    let cell = Cell::start();
    let victim = Victim::start(&cell).await;
    victim.run(|client| async move { work(&client).await }).await;
    let cache = victim.kill();
    let (a, b) = (next(&cell, cache.path()).await, cell.client().await);
    assert!(a.stats().count("replayed") > 0, "{:?}", a.stats());
    assert_worked(&b).await;
    assert_worked(&a).await;
    a.shutdown().await;
    assert!(logs(cache.path()).is_empty() && kept(cache.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_killed_client_that_had_nothing_to_tell() {
    // Longer than anybody waits here.
    let cell = Cell::with_term(Duration::from_secs(600));
    let victim = Victim::cold(&cell).await;
    victim
        .run(|client| async move {
            let dir = mkdir(&client, client.root(), "through").await;
            assert!(client.holds_write_lease(dir), "what others would wait for");
            assert_eq!((client.stats().count("here"), client.session().backlog.records), (0, 0));
        })
        .await;
    let cache = victim.kill();
    let a = next(&cell, cache.path()).await;
    assert_eq!(a.stats().count("replayed"), 0);
    let b = cell.client().await;
    let dir = find(&b, &["through"]).await.unwrap();
    let made = tokio::time::timeout(Duration::from_secs(60), mkdir(&b, dir, "at once")).await;
    assert!(made.is_ok(), "somebody waits for the leases of the dead");
    assert!(kept(cache.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_the_server_had_is_not_done_twice() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let victim = Victim::start_at(&cell, proxy.addr).await;
    victim.run(|client| async move { work(&client).await }).await;
    proxy.set(Weather::RepliesLost);
    let client = Arc::clone(&victim.client);
    let syncing = victim.runtime.spawn(async move { client.sync_all().await });
    wait_until("a digest", || async { victim.client.session().waiting > 0 }).await;
    // Behind what was sent.
    victim.run(|client| async move { make(&client, client.root(), "late", "later").await }).await;
    let cache = victim.kill();
    drop(syncing);
    let found = segments::read(&only_log(cache.path())).unwrap().unwrap();
    assert!(!found.sent.is_empty(), "{found:?}");
    let header = found.header.server;
    assert_eq!(header, proxy.addr.to_string());
    proxy.set(Weather::Fine);
    let a = Client::connect(caching(&cell, proxy.addr, cache.path()), Box::new(NoKernel)).await.unwrap();
    let b = cell.client().await;
    assert_worked(&a).await;
    assert_eq!(contents(&b, &["late"]).await, "later");
    assert!(kept(cache.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_in_between_takes_nothing() {
    let mut cell = Cell::start();
    let victim = Victim::start(&cell).await;
    victim.run(|client| async move { work(&client).await }).await;
    let cache = victim.kill();
    cell.restart();
    let a = next(&cell, cache.path()).await;
    assert_worked(&a).await;
    assert!(kept(cache.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_of_the_server_in_between_takes_nothing() {
    let mut cell = Cell::syncing_when_asked();
    let victim = Victim::start(&cell).await;
    let b = cell.client().await;
    victim.run(|client| async move { work(&client).await }).await;
    // Told, not durable.
    assert_worked(&b).await;
    b.shutdown().await;
    victim
        .run(|client| async move {
            // Past the log, and the last that the medium got: that is what the power cut takes.
            let dir = find(&client, &["d"]).await.unwrap();
            make(&client, dir, "through", &"x".repeat(PAST_THE_LOG)).await;
            make(&client, dir, "late", "not told").await;
        })
        .await;
    let cache = victim.kill();
    cell.power_cut();
    cell.restart();
    let a = next(&cell, cache.path()).await;
    assert_worked(&a).await;
    assert_eq!(contents(&a, &["d", "late"]).await, "not told");
    assert!(kept(cache.path()).is_empty());
}

// SEMANTICS 51
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_applied_when_somebody_else_needed_the_leases() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let victim = Victim::start(&cell).await;
    let file = victim
        .run(|client| async move {
            let fid = make(&client, client.root(), "f", "before").await;
            client.sync_all().await.unwrap();
            let file = client.open(fid, OpenMode::ReadWrite).await.unwrap();
            write(&client, &file, 0, "after!").await;
            make(&client, client.root(), "g", "never told").await;
            fid
        })
        .await;
    let cache = victim.kill();
    let b = cell.client().await;
    assert_eq!(contents(&b, &["f"]).await, "before");
    let a = next(&cell, cache.path()).await;
    assert_eq!(find(&a, &["g"]).await, None);
    assert_eq!(contents(&a, &["f"]).await, "before");
    let [log] = &kept(cache.path())[..] else { panic!("{:?}", kept(cache.path())) };
    let found = segments::read(log).unwrap().unwrap();
    assert_eq!(found.pending.len(), 3);
    assert!(found.version_before(file, found.pending[0].lsn).is_some());
    assert!(fs::read_to_string(log.join("why")).unwrap().contains("session has ended"));
    assert_eq!(a.stats().count("kept_logs"), 1);
    a.shutdown().await;
    assert!(logs(cache.path()).is_empty());
}

/// As after a power cut of the machine, or `kill -9` in the middle of a write: wherever the log is cut, the server gets a
/// prefix of what was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_cut_anywhere_gives_a_prefix() {
    const FILES: usize = 5;
    let cell = Cell::start();
    let mut last = None;
    for cut in 0.. {
        let victim = Victim::start(&cell).await;
        let begin = fs::metadata(only_log(victim.cache.path()).join("0000000001.log")).unwrap().len();
        let top = format!("round {cut}");
        victim
            .run({
                let top = top.clone();
                |client| async move {
                    let dir = mkdir(&client, client.root(), &top).await;
                    for number in 0..FILES {
                        make(&client, dir, &number.to_string(), &format!("file {number}")).await;
                    }
                }
            })
            .await;
        let cache = victim.kill();
        let file = only_log(cache.path()).join("0000000001.log");
        let bytes = fs::read(&file).unwrap();
        // Each boundary, and a place inside of each record, from behind.
        let mut bounds = boundaries(&bytes);
        bounds.retain(|bound| *bound as u64 >= begin);
        let Some(bound) = bounds.len().checked_sub(cut / 2 + 1) else { break };
        if bound == 0 && cut % 2 == 1 {
            break;
        }
        let length = bounds[bound] - if cut % 2 == 1 { 3 } else { 0 };
        fs::write(&file, &bytes[..length]).unwrap();
        let a = next(&cell, cache.path()).await;
        let mut there = Vec::new();
        if find(&a, &[&top]).await.is_some() {
            there.push(String::new());
            for number in 0..FILES {
                if find(&a, &[&top, &number.to_string()]).await.is_some() {
                    there.push(contents(&a, &[&top, &number.to_string()]).await);
                }
            }
        }
        let whole: Vec<String> = (0..FILES).map(|number| format!("file {number}")).collect();
        let all: Vec<String> = [String::new()].into_iter().chain(whole).collect();
        let (newest, before) = match there.split_last() {
            Some((newest, before)) => (newest.as_str(), before),
            None => ("", &[][..]),
        };
        assert_eq!(before, &all[..before.len()], "cut {cut}");
        assert!(newest.is_empty() || newest == all[before.len()], "cut {cut}: {newest:?}");
        let now = (before.len(), newest.len());
        assert!(last.is_none_or(|last| now <= last), "cut {cut}: {now:?} after {last:?}");
        last = Some(now);
        let why = kept(cache.path()).pop().map(|log| fs::read_to_string(log.join("why")));
        assert!(why.is_none(), "cut {cut}: {why:?}");
        a.shutdown().await;
    }
    assert_eq!(last, Some((0, 0)), "nothing is left of the log in the end");
}

/// Ends of the entries of a log's file.
fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![8];
    while let Some(head) = bytes.get(*ends.last().unwrap()..*ends.last().unwrap() + 4) {
        let length = u32::from_le_bytes(head.try_into().unwrap()) as usize;
        ends.push(ends.last().unwrap() + 8 + length);
    }
    ends
}

// SEMANTICS 52
#[tokio::test(flavor = "multi_thread")]
async fn a_local_fsync_survives_a_power_cut_of_the_machine() {
    let cell = Cell::start();
    let victim = Victim::with(&cell, Fsync::Local).await;
    let log = victim
        .run({
            let cache = victim.cache.path().to_owned();
            |client| async move {
                let dir = mkdir(&client, client.root(), "d").await;
                let fid = make(&client, dir, "f", "safe").await;
                let told = client.stats().count("msg_digest") + client.stats().count("msg_sync");
                client.fsync(fid).await.unwrap();
                let now = client.stats().count("msg_digest") + client.stats().count("msg_sync");
                assert_eq!((now, client.stats().count("fsyncs_local")), (told, 1));
                let synced = fs::metadata(only_log(&cache).join("0000000001.log")).unwrap().len();
                make(&client, dir, "g", "not asked for").await;
                synced
            }
        })
        .await;
    let cache = victim.kill();
    let file = only_log(cache.path()).join("0000000001.log");
    assert!(fs::metadata(&file).unwrap().len() > log);
    // The disk has what was synced, and no more.
    fs::File::options().write(true).open(&file).unwrap().set_len(log).unwrap();
    let a = next(&cell, cache.path()).await;
    assert_eq!(contents(&a, &["d", "f"]).await, "safe");
    assert_eq!(find(&a, &["d", "g"]).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_fsync_asks_the_server_for_what_is_not_in_the_log() {
    let cell = Cell::syncing_when_asked();
    let victim = Victim::with(&cell, Fsync::Local).await;
    victim
        .run(|client| async move {
            let fid = make(&client, client.root(), "f", &"x".repeat(PAST_THE_LOG)).await;
            let before = client.stats().count("msg_sync");
            client.fsync(fid).await.unwrap();
            assert_eq!(
                (client.stats().count("msg_sync"), client.stats().count("fsyncs_local")),
                (before + 1, 0)
            );
        })
        .await;
    victim.kill();
}

/// Under the lease of another machine it could not be told again, were the server to lose it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_local_fsync_answers_for_is_on_the_servers_disk_before_others_see_it() {
    let cell = Cell::syncing_when_asked();
    let victim = Victim::with(&cell, Fsync::Local).await;
    let b = cell.client().await;
    victim
        .run(|client| async move {
            let dir = mkdir(&client, client.root(), "d").await;
            let fid = make(&client, dir, "f", "safe").await;
            client.fsync(fid).await.unwrap();
            assert_eq!(client.stats().count("fsyncs_local"), 1);
        })
        .await;
    assert_eq!(contents(&b, &["d", "f"]).await, "safe");
    assert_eq!(victim.client.session().backlog.not_durable, 0);
    victim.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_fsync_asks_the_server_for_what_others_have_seen() {
    let cell = Cell::syncing_when_asked();
    let victim = Victim::with(&cell, Fsync::Local).await;
    let b = cell.client().await;
    let fid = victim.run(|client| async move { make(&client, client.root(), "f", "seen").await }).await;
    assert_eq!(contents(&b, &["f"]).await, "seen");
    victim.run(move |client| async move { client.fsync(fid).await.unwrap() }).await;
    assert_eq!(victim.client.session().backlog.not_durable, 0);
    victim.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_was_not_there_for_waits_for_the_next_mount() {
    let mut cell = Cell::start();
    let cache = tempfile::tempdir().unwrap();
    let a = writer_with(&cell, caching(&cell, cell.addr, cache.path())).await;
    work(&a).await;
    cell.stop();
    // Shorter than a whole shutdown: this is what its last step does.
    drop(a);
    assert_eq!(logs(cache.path()).len(), 1);
    cell.restart();
    let a = next(&cell, cache.path()).await;
    assert_worked(&a).await;
    a.shutdown().await;
    assert!(logs(cache.path()).is_empty());
}

// SEMANTICS 53
#[test]
fn without_room_on_the_local_disk_changes_go_through() {
    on_a_small_disk("replay::full_local_disk", "1m", "SODA_CACHE");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by without_room_on_the_local_disk_changes_go_through"]
async fn full_local_disk() {
    let cell = Cell::start();
    let disk = PathBuf::from(std::env::var_os("SODA_CACHE").unwrap());
    let cache = disk.join("cache");
    fs::create_dir(&cache).unwrap();
    let a = writer_with(&cell, caching(&cell, cell.addr, &cache)).await;
    let hog = disk.join("hog");
    let full = fs::write(&hog, vec![1; 2 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    // What is left of the last block of the log is used up.
    let mut number = 0;
    while a.stats().count("through_local_disk") == 0 {
        make(&a, a.root(), &number.to_string(), &"x".repeat(1000)).await;
        number += 1;
        assert!(number < 1000, "{:?}", a.stats());
    }
    // Only what did not fit was told.
    assert!(a.session().backlog.records > 0);
    a.sync_all().await.unwrap();
    let before = a.stats().count("here");
    for more in number..number + 100 {
        make(&a, a.root(), &more.to_string(), &"x".repeat(1000)).await;
    }
    let stats = a.stats();
    assert_eq!(stats.count("here"), before, "{stats:?}");
    // The server has all of it.
    let backlog = a.session().backlog;
    assert_eq!(backlog.records, 0, "{backlog:?}");
    let b = cell.client().await;
    for number in 0..number + 100 {
        assert_eq!(contents(&b, &[&number.to_string()]).await.len(), 1000);
    }
    b.shutdown().await;
    fs::remove_file(hog).unwrap();
    wait_until("room", || async {
        let before = a.stats().count("here");
        make(&a, a.root(), "again", "x").await;
        a.stats().count("here") > before
    })
    .await;
    assert_eq!(logs(&cache).len(), 1);
}

/// A tree that the server knows and a deep lease covers. Returns its top.
async fn known_tree(client: &Arc<Client>) -> Fid {
    let home = mkdir(client, client.root(), "home").await;
    let dir = mkdir(client, home, "dir").await;
    make(client, dir, "below", "old").await;
    for text in ["a", "b", "gone"] {
        make(client, home, text, "old").await;
    }
    client.sync_all().await.unwrap();
    let deep: Vec<Fid> =
        client.leases().iter().map(|held| held.grant).filter(is_deep).map(|deep| deep.fid).collect();
    assert!(deep.contains(&home), "{deep:?}");
    home
}

fn is_deep(grant: &Grant) -> bool {
    grant.scope == Scope::Subtree
}

/// Here: nothing of it is opened by name, which would go through.
async fn overwrite(client: &Arc<Client>, path: &[&str], data: &str) {
    let fid = find(client, path).await.unwrap();
    let file = client.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(client, &file, 0, data.to_owned()).await;
}

/// Everything that can be done to it, here.
async fn change_tree(client: &Arc<Client>, home: Fid) {
    let before = client.stats().count("here");
    let dir = find(client, &["home", "dir"]).await.unwrap();
    overwrite(client, &["home", "a"], "new").await;
    overwrite(client, &["home", "dir", "below"], "new").await;
    make(client, dir, "made", "new").await;
    client.rename(home, &name("b"), client.root(), &name("out"), RenameHow::Plain).await.unwrap();
    client.unlink(home, &name("gone")).await.unwrap();
    client.rename(home, &name("dir"), client.root(), &name("moved"), RenameHow::Plain).await.unwrap();
    make(client, dir, "later", "new").await;
    assert!(client.stats().count("here") >= before + 9, "{:?}", client.stats());
    assert!(client.session().backlog.records > 0);
}

async fn assert_changed(client: &Arc<Client>) {
    for (path, data) in [
        (&["home", "a"][..], "new"),
        (&["moved", "below"], "new"),
        (&["moved", "made"], "new"),
        (&["moved", "later"], "new"),
        (&["out"], "old"),
    ] {
        assert_eq!(contents(client, path).await, data, "{path:?}");
    }
    for path in [&["home", "gone"][..], &["home", "b"], &["home", "dir"]] {
        assert_eq!(find(client, path).await, None, "{path:?}");
    }
}

/// What is done to the server between the crash and the next mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    Nothing,
    Restart,
    PowerCut,
}

// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_under_a_deep_lease_is_told_by_the_next_one() {
    for meanwhile in [Meanwhile::Nothing, Meanwhile::Restart, Meanwhile::PowerCut] {
        let mut cell = Cell::syncing_when_asked().with_deep_leases();
        let victim = Victim::start(&cell).await;
        let b = cell.client().await;
        let home = victim.run(|client| async move { known_tree(&client).await }).await;
        let early = victim
            .run(move |client| async move {
                overwrite(&client, &["home", "a"], "mid").await;
                make(&client, home, "early", "early").await
            })
            .await;
        // Asked for by number: told with its directory, not durable, and a hole.
        let open = b.open(early, OpenMode::Read).await;
        assert!(open.is_err(), "{meanwhile:?}: the server has not heard of it");
        victim.run(|client| async move { client.sync_all().await.unwrap() }).await;
        let open = b.open(early, OpenMode::Read).await.unwrap();
        assert_eq!(read(&b, &open).await, "early", "{meanwhile:?}");
        victim
            .run(move |client| async move {
                // Past the log, and the last that the medium got: that is what the power cut takes.
                make(&client, home, "through", &"x".repeat(PAST_THE_LOG)).await;
                change_tree(&client, home).await;
            })
            .await;
        let cache = victim.kill();
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Restart => cell.restart(),
            Meanwhile::PowerCut => {
                cell.power_cut();
                cell.restart();
            }
        }
        // Another machine wants the tree at once, and waits for what is told.
        let wanted = tokio::spawn({
            let b = Arc::clone(&b);
            async move { contents(&b, &["home", "a"]).await }
        });
        let a = next(&cell, cache.path()).await;
        assert!(a.stats().count("replayed") > 0, "{meanwhile:?}: {:?}", a.stats());
        let kept = kept(cache.path()).pop().map(|log| fs::read_to_string(log.join("why")));
        assert!(kept.is_none(), "{meanwhile:?}: {kept:?}");
        assert_eq!(wanted.await.unwrap(), "new", "{meanwhile:?}");
        assert_changed(&a).await;
        assert_changed(&b).await;
        assert_eq!(contents(&a, &["home", "early"]).await, "early");
        // Nothing is in the way of anybody.
        make(&b, home, "by b", "b").await;
        assert_eq!(contents(&a, &["home", "by b"]).await, "b");
    }
}

// SEMANTICS 51
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_applied_when_somebody_else_needed_part_of_a_deep_lease() {
    let cell = Cell::with_term(Duration::from_secs(1)).with_deep_leases();
    let victim = Victim::start(&cell).await;
    victim
        .run(|client| async move {
            let home = known_tree(&client).await;
            change_tree(&client, home).await;
        })
        .await;
    let cache = victim.kill();
    let b = cell.client().await;
    assert_eq!(contents(&b, &["home", "dir", "below"]).await, "old");
    let a = next(&cell, cache.path()).await;
    assert_eq!((find(&a, &["moved"]).await, find(&a, &["out"]).await), (None, None));
    assert_eq!(contents(&a, &["home", "a"]).await, "old");
    let [log] = &kept(cache.path())[..] else { panic!("{:?}", kept(cache.path())) };
    assert!(fs::read_to_string(log.join("why")).unwrap().contains("session has ended"));
}

/// Else the session that is replayed would end for silence, however long its server takes.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_part_of_a_deep_lease_hears_of_a_replay() {
    const ASKED: Fid = Fid { volume: VolumeId(1), ino: Ino(99), generation: 0 };
    let cell = Cell::deep();
    let victim = Victim::start(&cell).await;
    victim.run(|client| async move { make(&client, client.root(), "f", "x").await }).await;
    let cache = victim.kill();
    let (transport, mut connections) = pipes();
    let config = caching(&cell, cell.addr, cache.path());
    let next = tokio::spawn(async move {
        Client::connect_with(config, Box::new(NoKernel), Arc::new(BootClock), transport).await
    });
    let mut control = Peer(connections.recv().await.unwrap());
    control.welcome(Standing::Resumed, &[]).await;
    let (_, request) = control.request().await;
    assert!(matches!(request.call, Call::Digest { .. }), "{request:?}");
    let (epoch, cause) = (Epoch(9), Cause::Data);
    let recall = Recall { fid: ROOT, epoch, to: None, cause, part: Some(LeasePart::object(ASKED)) };
    control.send(FrameKind::Push, 0, &Push::Recalls(vec![recall]), bytes::Bytes::new()).await;
    let note = control.next().await;
    assert!(matches!(&note, Message::Note(Note::RecallProgress(fids)) if fids[..] == [ASKED]), "{note:?}");
    next.abort();
}
