//! Delayed writes: nobody else sees that the server hears of them later, and nothing is lost in silence.

mod absorbed;
mod along;
mod backup;
mod bounds;
mod dates;
mod endless;
mod far;
mod fillers;
mod full;
mod group;
mod inquiries;
mod kinds;
mod large;
mod lists;
mod lists_at_random;
mod locks;
mod lost;
mod nameless;
mod pace;
mod power_cut;
mod privileges;
mod sharing;
mod soft;
mod space;
mod storm;
mod unheld;
mod why;
mod xattrs;

use crate::common::delayed::{PAST_THE_LOG, make, mkdir};
use crate::common::proxy::{Proxy, Weather};
use crate::common::*;
use soda_client::{
    Client, ClientConfig, ClientStanding, KillPriv, NoKernel, OpenMode, RenameHow, WriteBehind, WritePolicy,
};
use soda_protocol::{NewNode, Replace, SetXattr, WriteAt};
use soda_types::{Attr, Creds, Errno, Fid, FileKind, SetAttr};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Nothing is told before somebody asks.
fn patient(cell: &Cell) -> ClientConfig {
    let behind = WriteBehind { max_age: Duration::from_secs(3600), ..WriteBehind::default() };
    ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() }
}

async fn writer(cell: &Cell) -> Arc<Client> {
    writer_at(cell, cell.addr).await
}

async fn writer_at(cell: &Cell, server: SocketAddr) -> Arc<Client> {
    writer_with(ClientConfig { server: server.to_string(), ..patient(cell) }).await
}

/// Tells the server soon. What it was told it may still lose.
async fn prompt_writer(cell: &Cell) -> Arc<Client> {
    writer_with(prompt(cell)).await
}

fn prompt(cell: &Cell) -> ClientConfig {
    let behind = WriteBehind { max_age: Duration::from_millis(10), ..WriteBehind::default() };
    ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() }
}

async fn told(client: &Arc<Client>) {
    wait_until("told", || async { client.session().backlog.records == 0 }).await;
}

async fn writer_with(config: ClientConfig) -> Arc<Client> {
    let server = config.server.clone();
    let client = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    // The first change goes through and brings the lease on the directory; the server sets numbers aside, and the
    // directory becomes known.
    for number in 0.. {
        let unheard_of = format!("warm {server} {number}");
        let before = client.stats().count("here");
        mkdir(&client, client.root(), &unheard_of).await;
        client.rmdir(client.root(), &name(&unheard_of)).await.unwrap();
        if client.stats().count("here") == before + 2 {
            break;
        }
        assert!(number < 2000, "{:?}", client.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    client.sync_all().await.unwrap();
    client
}

async fn find(client: &Arc<Client>, path: &[&str]) -> Option<Fid> {
    let mut at = client.root();
    for text in path {
        at = client.lookup(at, &name(text)).await.unwrap().node?.fid;
    }
    Some(at)
}

async fn contents(client: &Arc<Client>, path: &[&str]) -> String {
    let fid = find(client, path).await.expect("no such file");
    let file = client.open(fid, OpenMode::Read).await.unwrap();
    String::from_utf8(read(client, &file).await.to_vec()).unwrap()
}

/// Messages that an operation would have cost, had it gone through.
fn sent(client: &Client) -> u64 {
    let changes = [
        "create",
        "tmpfile",
        "write",
        "allocate",
        "link",
        "unlink",
        "rename",
        "setattr",
        "setxattr",
        "removexattr",
    ];
    let stats = client.stats();
    changes
        .iter()
        .chain(&["lookup", "read", "fetch", "getattr", "readlink"])
        .map(|kind| stats.count(&format!("msg_{kind}")))
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_tree_costs_no_message_until_somebody_looks() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let before = sent(&a);
    let top = mkdir(&a, a.root(), "tree").await;
    for directory in ["x", "y"] {
        let dir = mkdir(&a, top, directory).await;
        for file in ["1", "2", "3"] {
            make(&a, dir, file, &format!("{directory}{file}")).await;
        }
    }
    assert_eq!(contents(&a, &["tree", "x", "2"]).await, "x2");
    assert_eq!(sent(&a), before, "all of it is done here");
    assert_eq!(contents(&b, &["tree", "x", "2"]).await, "x2");
    assert_eq!(contents(&b, &["tree", "y", "3"]).await, "y3");
    let told = a.stats();
    assert!(told.count("msg_digest") > 0, "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_is_as_the_server_would_have_made_it() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let before = sent(&a);
    let dir = mkdir(&a, a.root(), "d").await;
    let other = mkdir(&a, a.root(), "e").await;
    let file = make(&a, dir, "f", "hello world").await;
    a.link(file, other, &name("second")).await.unwrap();
    a.setattr(file, SetAttr { perm: Some(0o600), size: Some(5), ..SetAttr::default() }).await.unwrap();
    a.setxattr(file, b"user.colour", b"red", SetXattr::Create, KillPriv::Keep).await.unwrap();
    make(&a, dir, "gone", "nobody will ever see this").await;
    a.unlink(dir, &name("gone")).await.unwrap();
    make(&a, dir, "old", "renamed").await;
    a.rename(dir, &name("old"), other, &name("new"), RenameHow::Plain).await.unwrap();
    mkdir(&a, dir, "empty").await;
    a.rmdir(dir, &name("empty")).await.unwrap();
    mkdir(&a, dir, "moved").await;
    a.rename(dir, &name("moved"), other, &name("moved"), RenameHow::NoReplace).await.unwrap();
    let missing = a.rename(dir, &name("none"), other, &name("x"), RenameHow::Plain).await.unwrap_err();
    assert_eq!(missing.errno, Errno::NoEntry);
    assert_eq!(sent(&a), before, "{:?}", a.stats());
    let mine: Vec<_> = [dir, other, file].to_vec();
    let mut shown = Vec::new();
    for fid in &mine {
        shown.push(a.getattr(*fid).await.unwrap().value);
    }
    let paths: [&[&str]; 3] = [&["d"], &["e"], &["d", "f"]];
    for ((fid, mine), path) in mine.iter().zip(&shown).zip(paths) {
        assert_eq!(find(&b, path).await, Some(*fid));
        let theirs = b.getattr(*fid).await.unwrap().value;
        // Versions only have to grow.
        let shown = Attr { version: theirs.version, data_version: theirs.data_version, ..*mine };
        assert_eq!(theirs, shown, "as it was shown here before the server knew");
        assert_eq!(a.getattr(*fid).await.unwrap().value, theirs);
    }
    assert_eq!(contents(&b, &["e", "second"]).await, "hello");
    assert_eq!(contents(&b, &["e", "new"]).await, "renamed");
    assert_eq!(find(&b, &["d", "gone"]).await, None);
    assert_eq!(find(&b, &["d", "empty"]).await, None);
    assert!(find(&b, &["e", "moved"]).await.is_some());
    assert_eq!(b.getxattr(file, b"user.colour").await.unwrap(), "red");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_flushes_only_what_it_needs() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let (busy, wanted) = (mkdir(&a, a.root(), "busy").await, mkdir(&a, a.root(), "wanted").await);
    make(&a, wanted, "f", "this").await;
    a.sync_all().await.unwrap();
    for number in 0..300 {
        make(&a, busy, &number.to_string(), "much").await;
    }
    make(&a, wanted, "g", "that").await;
    let pending = a.session().backlog.records;
    assert_eq!(contents(&b, &["wanted", "g"]).await, "that");
    let left = a.session().backlog.records;
    assert!(left > pending - 20, "{left} of {pending}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_that_write_by_turns_see_each_other() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = make(&a, a.root(), "log", "").await;
    let (mine, theirs) = (a.open(fid, OpenMode::ReadWrite).await.unwrap(), open(&b, "log").await);
    let mut all = String::new();
    for round in 0..50 {
        let (client, file) = if round % 2 == 0 { (&a, &mine) } else { (&b, &theirs) };
        let text = format!("{round} ");
        client.write_all(file, WriteAt::End, text.clone().into(), KillPriv::Keep).await.unwrap();
        all.push_str(&text);
        for (reader, file) in [(&a, &mine), (&b, &theirs)] {
            assert_eq!(read(reader, file).await, all);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlinked_file_stays_while_it_is_open() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let new = new_node(FileKind::File);
    let (_, file) = a.create_open(a.root(), &name("t"), new, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 0, "still here").await;
    a.unlink(a.root(), &name("t")).await.unwrap();
    assert_eq!(read(&a, &file).await, "still here");
    a.sync_all().await.unwrap();
    assert_eq!(read(&a, &file).await, "still here");
    let fid = file.fid();
    drop(file);
    a.sync_all().await.unwrap();
    let b = cell.client().await;
    wait_until("deletion", || async { b.getattr(fid).await.is_err() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_far_apart_reads_as_a_file_with_holes() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let new = new_node(FileKind::File);
    let (_, file) = a.create_open(a.root(), &name("sparse"), new, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 100_000, "end").await;
    write(&a, &file, 10, "start").await;
    let all = read(&a, &file).await;
    assert_eq!(all.len(), 100_003);
    assert_eq!((&all[10..15], &all[100_000..]), (&b"start"[..], &b"end"[..]));
    assert!(all[15..100_000].iter().all(|byte| *byte == 0));
}

// SEMANTICS 48
#[tokio::test(flavor = "multi_thread")]
async fn fsync_makes_a_file_durable_and_what_it_depends_on() {
    let mut cell = Cell::syncing_when_asked();
    let a = writer(&cell).await;
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "durable").await;
    // Data in a chunk, which a power cut can take.
    let big = make(&a, dir, "big", &"x".repeat(100_000)).await;
    a.fsync(big).await.unwrap();
    make(&a, a.root(), "other", "not asked for").await;
    a.fsync(fid).await.unwrap();
    let backlog = a.session().backlog;
    assert!(backlog.records > 0, "the other file is not told: {backlog:?}");
    drop(a);
    cell.power_cut();
    cell.restart();
    let b = cell.client().await;
    assert_eq!(contents(&b, &["d", "f"]).await, "durable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_of_the_server_takes_nothing_from_a_client_that_is_alive() {
    let mut cell = Cell::syncing_when_asked();
    let a = writer(&cell).await;
    let dir = mkdir(&a, a.root(), "d").await;
    let fid = make(&a, dir, "f", "told, not durable").await;
    assert_eq!(contents(&cell.client().await, &["d", "f"]).await, "told, not durable");
    // Past the log, and the last that the medium got: that is what the power cut takes.
    make(&a, dir, "through", &"x".repeat(PAST_THE_LOG)).await;
    make(&a, dir, "g", "not told").await;
    cell.power_cut();
    cell.restart();
    make(&a, dir, "h", "afterwards").await;
    a.fsync(fid).await.unwrap();
    let b = cell.client().await;
    for (path, text) in [("f", "told, not durable"), ("g", "not told"), ("h", "afterwards")] {
        assert_eq!(contents(&b, &["d", path]).await, text);
    }
}

// SEMANTICS 49
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_session_takes_is_said() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let (a, b) = (writer_at(&cell, proxy.addr).await, cell.client().await);
    let fid = make(&a, a.root(), "f", "before").await;
    a.sync_all().await.unwrap();
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    let other = a.open(fid, OpenMode::Write).await.unwrap();
    let reader = a.open(fid, OpenMode::Read).await.unwrap();
    write(&a, &file, 0, "after!").await;
    make(&a, a.root(), "g", "never told").await;
    proxy.set(Weather::Cut);
    // In conflict with leases of the silent session: it is ended.
    assert_eq!(contents(&b, &["f"]).await, "before");
    assert_eq!(find(&b, &["g"]).await, None);
    proxy.set(Weather::Fine);
    wait_until("loss", || async { a.stats().count("lost_records") > 0 }).await;
    a.check_loss(&reader).expect("it has written nothing");
    for file in [&file, &other] {
        // Of a child that closes what it does not use, and does not look.
        assert_eq!(a.check_loss_at_close(file).unwrap_err().errno, Errno::Io);
        let refused = a.write(file, WriteAt::Offset(0), "x".into(), KillPriv::Keep).await;
        assert_eq!(refused.unwrap_err().errno, Errno::Io, "to each who may have written it");
        a.check_loss(file).expect("said once");
        a.check_loss_at_close(file).expect("said to a write");
    }
    assert_eq!(a.fsync_file(&reader).await.unwrap_err().errno, Errno::Io);
    a.fsync(fid).await.expect("said");
    assert_eq!(read(&a, &file).await, "before", "the server's truth");
    assert_eq!(find(&a, &["g"]).await, None);
    write(&a, &file, 0, "again!").await;
    assert_eq!(contents(&b, &["f"]).await, "again!");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_whose_answer_was_lost_is_applied_once() {
    let cell = Cell::start();
    let proxy = Proxy::before(cell.addr).await;
    let (a, b) = (writer_at(&cell, proxy.addr).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    let file = make(&a, dir, "f", "one").await;
    let file = a.open(file, OpenMode::ReadWrite).await.unwrap();
    proxy.set(Weather::RepliesLost);
    let flushing = tokio::spawn({
        let a = Arc::clone(&a);
        async move { a.sync_all().await }
    });
    wait_until("a digest", || async { a.session().waiting > 0 }).await;
    write(&a, &file, 3, " two").await;
    proxy.set(Weather::Cut);
    let cut_off = || async { a.session().standing != ClientStanding::Connected };
    wait_until("the end of the connection", cut_off).await;
    proxy.set(Weather::Fine);
    assert_eq!(contents(&b, &["d", "f"]).await, "one two");
    flushing.await.unwrap().unwrap();
    write(&a, &file, 7, " three").await;
    assert_eq!(contents(&b, &["d", "f"]).await, "one two three");
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_client_tells_everything() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    for number in 0..2500 {
        make(&a, a.root(), &number.to_string(), "x").await;
    }
    a.shutdown().await;
    let b = cell.client().await;
    assert_eq!(contents(&b, &["2499"]).await, "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_would_refuse_is_refused_here() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let fid = make(&a, a.root(), "f", "x").await;
    for (bad, errno) in
        [("foo", Errno::NotSupported), ("user.", Errno::Invalid), ("system.other", Errno::NotSupported)]
    {
        let refused = a.setxattr(fid, bad.as_bytes(), b"1", SetXattr::Either, KillPriv::Keep).await;
        assert_eq!(refused.unwrap_err().errno, errno, "{bad}");
    }
    let dir = mkdir(&a, a.root(), "d").await;
    a.sync_all().await.unwrap();
    a.rmdir(a.root(), &name("d")).await.unwrap();
    let refused = a.setattr(dir, SetAttr { perm: Some(0o700), ..SetAttr::default() }).await;
    assert_eq!(refused.unwrap_err().errno, Errno::Stale, "a directory that is removed");
    a.sync_all().await.unwrap();
    let refused = a.setattr(dir, SetAttr { perm: Some(0o700), ..SetAttr::default() }).await;
    assert_eq!(refused.unwrap_err().errno, Errno::Stale);
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_brings_no_removed_name_back() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    for number in 0..400 {
        make(&a, a.root(), &number.to_string(), "x").await;
    }
    a.sync_all().await.unwrap();
    // Makes the directory incomplete: names are asked for while others are removed.
    let b = cell.client().await;
    let listing = tokio::spawn({
        let (a, b) = (Arc::clone(&a), Arc::clone(&b));
        async move {
            for _ in 0..20 {
                find(&b, &["399"]).await;
                let open = a.open_dir(a.root()).await.unwrap();
                a.read_dir(&open, 0, 1000).await.unwrap();
            }
        }
    });
    for number in 0..399 {
        a.unlink(a.root(), &name(&number.to_string())).await.unwrap();
        assert_eq!(find(&a, &[&number.to_string()]).await, None);
    }
    listing.await.unwrap();
    for number in 0..399 {
        assert_eq!(find(&a, &[&number.to_string()]).await, None);
    }
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}
