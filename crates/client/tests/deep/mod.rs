//! Deep leases, with the real server: what costs no message, and that nobody sees what is old whatever moves.

mod builders;
mod contention;
mod idle;
mod questions;
mod scan;

use crate::common::delayed::{make, mkdir};
use crate::common::proxy::{Proxy, Weather};
use crate::common::*;
use soda_client::{Client, ClientConfig, KillPriv, NoKernel, OpenMode, RenameHow, WriteBehind, WritePolicy};
use soda_protocol::WriteAt;
use soda_types::{Fid, FileKind, Mode, Scope, SetAttr};
use std::sync::Arc;
use std::time::Duration;

async fn find(client: &Arc<Client>, parent: Fid, text: &str) -> Option<Fid> {
    client.lookup(parent, &name(text)).await.unwrap().node.map(|node| node.fid)
}

async fn contents(client: &Arc<Client>, fid: Fid) -> String {
    let file = client.open(fid, OpenMode::Read).await.unwrap();
    String::from_utf8(read(client, &file).await.to_vec()).unwrap()
}

async fn overwrite(client: &Arc<Client>, fid: Fid, data: &str) {
    let file = client.open(fid, OpenMode::ReadWrite).await.unwrap();
    client.write_all(&file, WriteAt::Offset(0), data.to_owned().into(), KillPriv::Keep).await.unwrap();
}

/// All names of a directory, with attributes.
async fn list(client: &Arc<Client>, dir: Fid) -> usize {
    let open = client.open_dir(dir).await.unwrap();
    let mut count = 0;
    loop {
        let page = client.read_dir(&open, count as u64, 1024).await.unwrap();
        if page.is_empty() {
            return count;
        }
        count += page.len();
    }
}

fn deep_leases(client: &Client) -> Vec<(Fid, Mode)> {
    let held = client.leases().into_iter().map(|held| held.grant);
    held.filter(|grant| grant.scope == Scope::Subtree).map(|grant| (grant.fid, grant.mode)).collect()
}

/// Questions that the caches could not answer.
fn messages(client: &Client) -> u64 {
    let stats = client.stats();
    ["lookup", "getattr", "readdir", "read", "fetch"]
        .iter()
        .map(|kind| stats.count(&format!("msg_{kind}")))
        .sum()
}

fn patient(cell: &Cell) -> ClientConfig {
    let behind = WriteBehind { max_age: Duration::from_secs(3600), ..WriteBehind::default() };
    ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() }
}

/// A client that delays its writes, and a directory of its own.
async fn writer(cell: &Cell, text: &str) -> (Arc<Client>, Fid) {
    let client = Client::connect(patient(cell), Box::new(NoKernel)).await.unwrap();
    let home = mkdir(&client, client.root(), text).await;
    client.sync_all().await.unwrap();
    for number in 0.. {
        let before = client.stats().count("here");
        let probe = format!("probe{number}");
        mkdir(&client, home, &probe).await;
        client.rmdir(home, &name(&probe)).await.unwrap();
        if client.stats().count("here") == before + 2 {
            break;
        }
        assert!(number < 2000, "{:?}", client.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    client.sync_all().await.unwrap();
    (client, home)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_scan_costs_nothing_and_the_first_one_a_few_leases() {
    let cell = Cell::deep();
    let maker = cell.client().await;
    let top = mkdir(&maker, maker.root(), "top").await;
    let mut dirs = Vec::new();
    for dir in 0..10 {
        let fid = mkdir(&maker, top, &format!("d{dir}")).await;
        for file in 0..40 {
            make(&maker, fid, &format!("f{file}"), "x").await;
        }
        dirs.push(fid);
    }
    assert!(deep_leases(&maker).contains(&(top, Mode::Write)), "{:?}", deep_leases(&maker));
    assert!(maker.leases().len() < 30, "{} leases for 400 files", maker.leases().len());
    maker.shutdown().await;

    let reader = cell.client().await;
    let mut fids = Vec::new();
    let scan = async |reader: &Arc<Client>, fids: &mut Vec<Fid>| {
        for dir in &dirs {
            assert_eq!(list(reader, *dir).await, 40);
            for file in 0..40 {
                let fid = find(reader, *dir, &format!("f{file}")).await.unwrap();
                assert_eq!(reader.getattr(fid).await.unwrap().value.size, 1);
                fids.push(fid);
            }
        }
    };
    scan(&reader, &mut fids).await;
    let before = messages(&reader);
    scan(&reader, &mut fids).await;
    assert_eq!(messages(&reader), before, "the second time all is known");
    assert!(reader.leases().len() < 60, "{} leases for 410 inodes", reader.leases().len());
    assert!(deep_leases(&reader).iter().any(|(_, mode)| *mode == Mode::Read));

    // A change of one is seen at once, and the rest stays known.
    let writer = cell.client().await;
    overwrite(&writer, fids[123], "longer").await;
    assert_eq!(reader.getattr(fids[123]).await.unwrap().value.size, 6);
    let before = messages(&reader);
    assert_eq!(reader.getattr(fids[124]).await.unwrap().value.size, 1);
    assert_eq!(messages(&reader), before);
    assert_eq!(contents(&reader, fids[123]).await, "longer");
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_writes_below_a_deep_lease_reach_whoever_looks() {
    let cell = Cell::deep();
    let (a, home) = writer(&cell, "home").await;
    let b = cell.client().await;
    let sub = mkdir(&a, home, "sub").await;
    let one = make(&a, sub, "one", "1").await;
    let two = make(&a, sub, "two", "2").await;
    a.sync_all().await.unwrap();
    assert_eq!(deep_leases(&a), [(home, Mode::Write)]);
    let leases = a.leases().len();
    let here = a.stats().count("here");
    // All of this is done here, under the one lease.
    overwrite(&a, one, "eins").await;
    a.setattr(two, SetAttr { perm: Some(0o600), ..SetAttr::default() }).await.unwrap();
    a.rename(sub, &name("two"), home, &name("zwei"), RenameHow::Plain).await.unwrap();
    make(&a, sub, "three", "3").await;
    assert!(a.stats().count("here") >= here + 4, "{:?}", a.stats());
    assert_eq!(a.leases().len(), leases);
    // The other machine sees it, object by object.
    assert_eq!(contents(&b, one).await, "eins");
    assert_eq!(find(&b, home, "zwei").await, Some(two));
    assert_eq!(b.getattr(two).await.unwrap().value.perm, 0o600);
    assert_eq!(find(&b, sub, "two").await, None);
    let three = find(&b, sub, "three").await.unwrap();
    assert_eq!(contents(&b, three).await, "3");
    // And what it changes is seen here.
    overwrite(&b, three, "drei").await;
    b.unlink(home, &name("zwei")).await.unwrap();
    assert_eq!(contents(&a, three).await, "drei");
    assert_eq!(find(&a, home, "zwei").await, None);
}

/// It need not ask for each object: after a few questions the writer keeps reading, of everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_of_what_another_machine_has_just_written_costs_it_a_few_recalls() {
    let cell = Cell::deep();
    let (a, home) = writer(&cell, "home").await;
    let b = cell.client().await;
    let mut files = Vec::new();
    for dir in 0..5 {
        let sub = mkdir(&a, home, &format!("d{dir}")).await;
        for file in 0..20 {
            files.push(make(&a, sub, &format!("f{file}"), "new").await);
        }
    }
    for dir in 0..5 {
        let sub = find(&b, home, &format!("d{dir}")).await.unwrap();
        for file in 0..20 {
            let fid = find(&b, sub, &format!("f{file}")).await.unwrap();
            assert_eq!(contents(&b, fid).await, "new");
        }
    }
    assert!(a.stats().count("recalls") < 20, "{:?}", a.stats());
    assert_eq!(deep_leases(&a), [(home, Mode::Read)]);
    // What is read by both is changed by either, and seen by the other.
    overwrite(&a, files[7], "one").await;
    overwrite(&b, files[8], "two").await;
    assert_eq!(contents(&b, files[7]).await, "one");
    assert_eq!(contents(&a, files[8]).await, "two");
    assert_eq!(contents(&a, files[9]).await, "new");
}

/// Who has looked at it keeps none of it: each directory is asked of him a few times, or all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_another_machine_has_looked_at_is_removed_without_a_message_for_each_file() {
    for (dirs, files, reads) in [(50, 20, false), (50, 20, true), (4, 250, true)] {
        let cell = Cell::deep();
        let (a, home) = writer(&cell, "home").await;
        let b = cell.client().await;
        for dir in 0..dirs {
            let sub = mkdir(&a, home, &format!("d{dir}")).await;
            for file in 0..files {
                make(&a, sub, &format!("f{file}"), "new").await;
            }
        }
        a.sync_all().await.unwrap();
        assert_eq!(list(&b, home).await, dirs);
        for dir in 0..dirs {
            let sub = find(&b, home, &format!("d{dir}")).await.unwrap();
            assert_eq!(list(&b, sub).await, files);
            for file in 0..files {
                let fid = find(&b, sub, &format!("f{file}")).await.unwrap();
                if reads {
                    assert_eq!(contents(&b, fid).await, "new");
                } else {
                    assert_eq!(b.getattr(fid).await.unwrap().value.size, 3);
                }
            }
        }
        let sent = || a.stats().requests() + a.stats().count("recalls") + b.stats().count("recalls");
        let before = sent();
        for dir in 0..dirs {
            let sub = find(&a, home, &format!("d{dir}")).await.unwrap();
            assert_eq!(list(&a, sub).await, files);
            for file in 0..files {
                a.unlink(sub, &name(&format!("f{file}"))).await.unwrap();
            }
            a.rmdir(home, &name(&format!("d{dir}"))).await.unwrap();
        }
        a.sync_all().await.unwrap();
        let all = sent() - before;
        assert_eq!(list(&b, home).await, 0);
        // Some files are asked for one by one, until there are so many holes that the whole directory is.
        let few = (5 * dirs + files / 2) as u64;
        assert!(all < few, "{dirs} directories of {files}: {all} messages: {:?}", a.stats());
    }
}

/// Out of the reach of the deep lease and into another one, files and directories, through the server and by the log.
#[tokio::test(flavor = "multi_thread")]
async fn what_moves_across_the_edge_is_seen_and_changed_by_all() {
    for behind in [false, true] {
        let cell = Cell::deep();
        let (a, home, other) = if behind {
            let (a, home) = writer(&cell, "home").await;
            let other = mkdir(&a, a.root(), "other").await;
            (a, home, other)
        } else {
            let a = cell.client().await;
            let home = mkdir(&a, a.root(), "home").await;
            let other = mkdir(&a, a.root(), "other").await;
            (a, home, other)
        };
        let b = cell.client().await;
        let dir = mkdir(&a, home, "dir").await;
        let inner = mkdir(&a, dir, "inner").await;
        let deep = make(&a, inner, "deep", "deep").await;
        let flat = make(&a, home, "flat", "flat").await;
        a.sync_all().await.unwrap();
        assert_eq!(a.getattr(deep).await.unwrap().value.size, 4);
        a.rename(home, &name("dir"), other, &name("dir"), RenameHow::Plain).await.unwrap();
        a.rename(home, &name("flat"), a.root(), &name("flat"), RenameHow::Plain).await.unwrap();
        // What is below still is as it was, and writable.
        overwrite(&a, deep, "deeper").await;
        overwrite(&a, flat, "flatter").await;
        assert_eq!(contents(&b, deep).await, "deeper", "behind: {behind}");
        assert_eq!(contents(&b, flat).await, "flatter");
        for round in 0..3 {
            let text = format!("b{round}");
            overwrite(&b, deep, &text).await;
            overwrite(&b, flat, &text).await;
            assert!(contents(&a, deep).await.starts_with(&text), "behind: {behind}");
            assert!(contents(&a, flat).await.starts_with(&text));
            overwrite(&a, deep, &format!("a{round}")).await;
            assert!(contents(&b, deep).await.starts_with(&format!("a{round}")));
        }
        // Names below the moved directory belong to both, too.
        b.unlink(inner, &name("deep")).await.unwrap();
        assert_eq!(find(&a, inner, "deep").await, None);
        make(&b, inner, "new", "n").await;
        assert!(find(&a, inner, "new").await.is_some());
        a.rename(other, &name("dir"), home, &name("back"), RenameHow::Plain).await.unwrap();
        assert_eq!(find(&b, home, "back").await, Some(dir));
        assert_eq!(find(&b, other, "dir").await, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_links_and_open_files_without_a_name() {
    let cell = Cell::deep();
    let (a, home) = writer(&cell, "home").await;
    let b = cell.client().await;
    let file = make(&a, home, "file", "one").await;
    let open = make(&a, home, "open", "open").await;
    a.sync_all().await.unwrap();
    a.link(file, a.root(), &name("outside")).await.unwrap();
    let outside = find(&b, b.root(), "outside").await.unwrap();
    assert_eq!((outside, contents(&b, outside).await.as_str()), (file, "one"));
    overwrite(&b, outside, "two").await;
    assert_eq!(contents(&a, file).await, "two");
    overwrite(&a, file, "six").await;
    assert_eq!(contents(&b, outside).await, "six");
    // Open at the one, unlinked by the other: it stays.
    let held = a.open(open, OpenMode::ReadWrite).await.unwrap();
    b.unlink(home, &name("open")).await.unwrap();
    write(&a, &held, 0, "kept").await;
    assert_eq!(read(&a, &held).await, "kept");
    // Unlinked by the one that has it open, and open at the other.
    let both = make(&a, home, "both", "both").await;
    let (here, there) =
        (a.open(both, OpenMode::ReadWrite).await.unwrap(), b.open(both, OpenMode::ReadWrite).await.unwrap());
    a.unlink(home, &name("both")).await.unwrap();
    for round in 0..3 {
        write(&a, &here, 0, format!("a{round}")).await;
        assert!(read(&b, &there).await.starts_with(format!("a{round}").as_bytes()));
        write(&b, &there, 0, format!("b{round}")).await;
        assert!(read(&a, &here).await.starts_with(format!("b{round}").as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_taken_and_what_is_open_below_stays() {
    let cell = Cell::deep();
    let (a, home) = writer(&cell, "home").await;
    let b = cell.client().await;
    let dir = mkdir(&a, home, "dir").await;
    let file = make(&a, dir, "file", "kept").await;
    a.sync_all().await.unwrap();
    let held = a.open(file, OpenMode::Read).await.unwrap();
    // With the directory's names goes all below it: nobody asks for the file any more.
    make(&b, dir, "mine", "b").await;
    b.unlink(dir, &name("file")).await.unwrap();
    b.sync_all().await.unwrap();
    assert_eq!(read(&a, &held).await, "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_what_was_covered_is_still_known_and_still_guarded() {
    let mut cell = Cell::deep();
    let (a, home) = writer(&cell, "home").await;
    let b = cell.client().await;
    let file = make(&a, home, "file", "one").await;
    let other = make(&a, home, "other", "one").await;
    a.sync_all().await.unwrap();
    overwrite(&a, file, "two").await;
    a.rename(home, &name("other"), a.root(), &name("moved"), RenameHow::Plain).await.unwrap();
    cell.restart();
    assert_eq!(contents(&b, file).await, "two", "what was delayed is told");
    assert_eq!(find(&b, b.root(), "moved").await, Some(other));
    overwrite(&b, file, "six").await;
    assert_eq!(contents(&a, file).await, "six");
    let before = messages(&a);
    assert_eq!(a.getattr(home).await.unwrap().value.kind, FileKind::Directory);
    assert!(messages(&a) <= before + 1);
}

/// Else the server would take it for held, and what is made below for covered.
#[tokio::test(flavor = "multi_thread")]
async fn the_word_that_a_lease_is_given_back_is_said_again_if_it_was_lost_with_its_connection() {
    let cell = Cell::deep();
    let proxy = Proxy::before(cell.addr).await;
    let mut config = patient(&cell);
    config.server = proxy.addr.to_string();
    config.cache.idle = Duration::from_secs(2);
    let a = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    let home = mkdir(&a, a.root(), "home").await;
    make(&a, home, "file", "one").await;
    a.sync_all().await.unwrap();
    assert_eq!(deep_leases(&a), [(home, Mode::Write)]);
    proxy.set(Weather::Silence);
    assert_eq!(deep_leases(&a), [(home, Mode::Write)], "given back too early");
    eventually("given back", || deep_leases(&a).is_empty()).await;
    let reconnects = a.stats().count("reconnects");
    proxy.set(Weather::Cut);
    eventually("the connection is lost", || a.stats().count("reconnects") > reconnects).await;
    proxy.set(Weather::Fine);
    // Whatever the server says of the old lease is not believed: it has to give new ones.
    a.getattr(home).await.unwrap();
    let before = messages(&a);
    a.getattr(home).await.unwrap();
    assert_eq!(messages(&a), before, "{:?}", a.leases());
    let other = make(&a, home, "other", "two").await;
    a.sync_all().await.unwrap();
    overwrite(&a, other, "six").await;
    assert_eq!(contents(&cell.client().await, other).await, "six");
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_without_deep_leases_is_a_mount() {
    let cell = Cell::deep();
    let narrow = ClientConfig { widest_lease: Scope::Node, ..cell.client_config() };
    let a = Client::connect(narrow, Box::new(NoKernel)).await.unwrap();
    let b = cell.client().await;
    let home = mkdir(&a, a.root(), "home").await;
    let file = make(&a, home, "file", "one").await;
    assert_eq!(deep_leases(&a), []);
    assert_eq!(contents(&b, file).await, "one");
    overwrite(&b, file, "two").await;
    assert_eq!(contents(&a, file).await, "two");
}

/// Somebody asks while the move and the links are only here: what he asks for is told, with all that it depends on.
#[tokio::test(flavor = "multi_thread")]
async fn what_crosses_the_edge_and_is_asked_for_before_it_is_told() {
    #[derive(Clone, Copy, Debug)]
    enum Asked {
        NewName,
        OldName,
        Below,
        Linked,
    }
    for asked in [Asked::NewName, Asked::OldName, Asked::Below, Asked::Linked] {
        let cell = Cell::deep();
        let (a, home) = writer(&cell, "home").await;
        let b = cell.client().await;
        let other = mkdir(&a, a.root(), "other").await;
        make(&a, other, "first", "x").await;
        let (dir, outside) = (mkdir(&a, home, "dir").await, make(&a, a.root(), "outside", "1").await);
        let (deep, inside) = (make(&a, dir, "deep", "1").await, make(&a, home, "inside", "1").await);
        a.sync_all().await.unwrap();
        let here = a.stats().count("here");
        a.rename(home, &name("dir"), other, &name("dir"), RenameHow::Plain).await.unwrap();
        overwrite(&a, deep, "deeper").await;
        make(&a, dir, "new", "new").await;
        a.link(outside, home, &name("came in")).await.unwrap();
        overwrite(&a, outside, "linked").await;
        a.link(inside, other, &name("went out")).await.unwrap();
        assert_eq!(a.stats().count("here"), here + 7, "{asked:?}: {:?}", a.stats());
        assert!(a.session().backlog.records >= 7, "{asked:?}: told unasked");

        match asked {
            Asked::NewName => assert_eq!(find(&b, other, "dir").await, Some(dir)),
            Asked::OldName => assert_eq!(find(&b, home, "dir").await, None),
            Asked::Below => assert_eq!(contents(&b, deep).await, "deeper"),
            Asked::Linked => assert_eq!(contents(&b, outside).await, "linked"),
        }
        assert_eq!(
            (find(&b, home, "dir").await, find(&b, other, "dir").await),
            (None, Some(dir)),
            "{asked:?}"
        );
        assert_eq!(
            (find(&b, home, "came in").await, find(&b, other, "went out").await),
            (Some(outside), Some(inside))
        );
        let new = find(&b, dir, "new").await.unwrap();
        for (fid, data) in [(deep, "deeper"), (new, "new"), (outside, "linked"), (inside, "1")] {
            assert_eq!(contents(&b, fid).await, data, "{asked:?}");
        }
        for linked in [outside, inside] {
            assert_eq!(b.getattr(linked).await.unwrap().value.nlink, 2, "{asked:?}");
        }
        // The other way round: into the reach of the lease, and out of where it is now.
        overwrite(&b, outside, "by b, ").await;
        b.rename(other, &name("dir"), home, &name("back"), RenameHow::Plain).await.unwrap();
        b.unlink(home, &name("came in")).await.unwrap();
        assert_eq!(
            (find(&a, other, "dir").await, find(&a, home, "back").await),
            (None, Some(dir)),
            "{asked:?}"
        );
        assert_eq!(contents(&a, outside).await, "by b, ");
        assert_eq!(a.getattr(outside).await.unwrap().value.nlink, 1, "{asked:?}");
        assert_eq!(a.stats().count("lost_records"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_made_and_removed_costs_a_few_messages() {
    let cell = Cell::deep();
    let (a, home) = writer(&cell, "home").await;
    let sent = || a.stats().requests();
    let before = sent();
    let mut dirs = Vec::new();
    for dir in 0..50 {
        let sub = mkdir(&a, home, &format!("d{dir}")).await;
        for file in 0..20 {
            make(&a, sub, &format!("f{file}"), "new").await;
        }
        dirs.push(sub);
    }
    a.sync_all().await.unwrap();
    let made = sent() - before;
    for (number, dir) in dirs.into_iter().enumerate() {
        assert_eq!(list(&a, dir).await, 20);
        for file in 0..20 {
            a.unlink(dir, &name(&format!("f{file}"))).await.unwrap();
        }
        a.rmdir(home, &name(&format!("d{number}"))).await.unwrap();
    }
    a.sync_all().await.unwrap();
    let removed = sent() - before - made;
    assert!(made + removed < 30, "{made} to make it, {removed} to remove it: {:?}", a.stats());
    assert_eq!(list(&cell.client().await, home).await, 0);
}
