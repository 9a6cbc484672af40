//! A scan of a tree of many files: a few messages, as directories come along with others, and leases for none of the files.

use super::*;
use crate::common::tools::Tools;
use std::time::Instant;

const DIRS: usize = 400;
const FILES: usize = 50;

/// `find -ls`: each directory is listed, each file of it looked up by its name and asked what it is like.
async fn scan(client: &Arc<Client>, top: Fid) -> usize {
    let mut seen = 0;
    let all = client.open_dir(top).await.unwrap();
    let mut from = 0;
    loop {
        let dirs = client.read_dir(&all, from, 1024).await.unwrap();
        let Some(last) = dirs.last() else { return seen };
        from = last.next;
        for entry in dirs {
            let dir = client.lookup(top, &entry.name).await.unwrap().node.unwrap().fid;
            let files = client.open_dir(dir).await.unwrap();
            for entry in client.read_dir(&files, 0, 1024).await.unwrap() {
                let node = client.lookup(dir, &entry.name).await.unwrap().node.unwrap();
                assert_eq!(client.getattr(node.fid).await.unwrap().value.kind, FileKind::File);
                seen += 1;
            }
        }
    }
}

/// All that is said on either side, answers not counted.
fn said(client: &Client) -> u64 {
    client.stats().requests() + client.stats().count("recalls") - client.stats().count("msg_renew")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_of_twenty_thousand_files_costs_a_few_messages_and_the_next_one_none() {
    let cell = Cell::with_term(Duration::from_secs(30)).with_deep_leases();
    let mut tools = Tools::of(&cell).await;
    let began = Instant::now();
    let (maker, top) = writer(&cell, "top").await;
    let before = said(&maker);
    let mut some = None;
    for number in 0..DIRS {
        let dir = mkdir(&maker, top, &format!("d{number}")).await;
        for file in 0..FILES {
            let made = maker.create(dir, &name(&format!("f{file}")), new_node(FileKind::File)).await.unwrap();
            some = some.or(made.node.map(|node| node.fid));
        }
    }
    maker.sync_all().await.unwrap();
    // Who is faster than the server gives it inode numbers asks it for some files by themselves.
    let through = maker.stats().count("through_reservation");
    let made = (said(&maker) - before - through, maker.leases().len(), through, began.elapsed());
    maker.shutdown().await;
    assert_eq!(tools.leases().await, 0, "of who has gone");

    let reader = cell.client().await;
    let before = said(&reader);
    let began = Instant::now();
    assert_eq!(scan(&reader, top).await, DIRS * FILES);
    let first = (said(&reader) - before, reader.leases().len(), began.elapsed());
    let held = tools.leases().await;
    let before = said(&reader);
    assert_eq!(scan(&reader, top).await, DIRS * FILES);
    let second = said(&reader) - before;
    eprintln!("made {made:?}, first scan {first:?}, second {second} messages; {held} leases at the server");
    assert!(made.0 < (DIRS * FILES / 100) as u64 && made.1 < 10, "{made:?}: {:?}", maker.stats());
    assert!(first.0 <= 30, "{first:?}: {:?}", reader.stats());
    assert!(first.1 <= 60 && held <= 60, "{first:?}, {held} at the server: {:?}", deep_leases(&reader));
    assert_eq!(second, 0, "{:?}", reader.stats());

    // One that is changed is asked back by itself, and asked for by itself.
    let writer = cell.client().await;
    let changed = some.unwrap();
    let recalls = reader.stats().count("recalls");
    overwrite(&writer, changed, "changed").await;
    assert_eq!(reader.stats().count("recalls"), recalls + 1, "{:?}", reader.stats());
    assert_eq!(reader.getattr(changed).await.unwrap().value.size, 7);
    let before = said(&reader);
    assert_eq!(scan(&reader, top).await, DIRS * FILES);
    assert!(said(&reader) - before <= 1, "{:?}", reader.stats());
    let now = tools.leases().await;
    assert!(now <= held + 4, "{now} leases at the server, {held} before");
}
