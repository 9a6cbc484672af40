//! A machine reads a directory that another one has just filled: few recalls, and all caches right. Without deep leases: those
//! are lowered as a whole (`deep`).

use crate::common::{Cell, Hooks, Told, name, new_node, read, write};
use soda_client::{Client, NamesLock, OpenFile, OpenMode};
use soda_types::{Fid, FileKind};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const FILES: usize = 600;

fn content(number: usize) -> String {
    format!("the content of {number}")
}

/// `dir` with files in it, all closed again.
async fn fill(client: &Arc<Client>) -> (Fid, Vec<Fid>) {
    let made = client.create(client.root(), &name("dir"), new_node(FileKind::Directory)).await.unwrap();
    let dir = made.node.unwrap().fid;
    let mut files = Vec::new();
    for number in 0..FILES {
        let file = create(client, dir, number).await;
        write(client, &file, 0, content(number)).await;
        files.push(file.fid());
    }
    (dir, files)
}

async fn create(client: &Arc<Client>, dir: Fid, number: usize) -> Arc<OpenFile> {
    let (text, new) = (name(&format!("{number:04}")), new_node(FileKind::File));
    client.create_open(dir, &text, new, OpenMode::ReadWrite).await.unwrap().1
}

async fn list(client: &Client, dir: Fid) -> Vec<Fid> {
    let open = client.open_dir(dir).await.unwrap();
    let entries = client.read_dir(&open, 0, FILES + 1).await.unwrap();
    entries.into_iter().map(|entry| entry.fid).collect()
}

async fn read_all(client: &Arc<Client>, files: &[Fid]) -> Vec<String> {
    let mut contents = Vec::new();
    for fid in files {
        client.getattr(*fid).await.unwrap();
        let file = client.open(*fid, OpenMode::Read).await.unwrap();
        contents.push(String::from_utf8(read(client, &file).await.to_vec()).unwrap());
    }
    contents
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_directory_that_is_read_are_not_recalled_one_by_one() {
    let cell = Cell::with_term(Duration::from_secs(10)).without_deep_leases();
    let told = Arc::<Told>::default();
    let a = cell.client_with(Box::new(Hooks(Arc::clone(&told), NamesLock::None))).await;
    let b = cell.client().await;
    let (dir, files) = fill(&a).await;
    assert_eq!(list(&b, dir).await, files);
    let expected: Vec<String> = (0..FILES).map(content).collect();
    assert_eq!(read_all(&b, &files).await, expected);
    let (recalls, lowered) = (a.stats().count("recalls"), a.stats().count("leases_lowered"));
    assert!(recalls < 100, "{recalls} recalls for {FILES} files");
    assert!(lowered > FILES as u64 - 100, "only {lowered} lowered");
    // Its kernel was told attributes of each when it was made: they were taken back before anybody else read the file.
    let attrs: BTreeSet<Fid> = told.attrs.lock().unwrap().iter().copied().collect();
    assert!(files.iter().all(|fid| attrs.contains(fid)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_lowered_is_one_copy_still() {
    let cell = Cell::with_term(Duration::from_secs(10)).without_deep_leases();
    let (a, b) = (cell.client().await, cell.client().await);
    let (dir, files) = fill(&a).await;
    list(&b, dir).await;
    read_all(&b, &files).await;
    for (number, fid) in files.iter().enumerate().take(50) {
        let (writer, reader) = if number % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let there = reader.open(*fid, OpenMode::Read).await.unwrap();
        let here = writer.open(*fid, OpenMode::ReadWrite).await.unwrap();
        for round in 0..3 {
            let text = format!("round {round} of {number:>12}");
            write(writer, &here, 0, text.clone()).await;
            assert_eq!(read(reader, &there).await, text, "file {number}");
            assert_eq!(reader.getattr(*fid).await.unwrap().value.size, text.len() as u64);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_being_written_keeps_its_lease() {
    let cell = Cell::with_term(Duration::from_secs(10)).without_deep_leases();
    let (a, b) = (cell.client().await, cell.client().await);
    let (dir, _) = fill(&a).await;
    let open = create(&a, dir, FILES).await;
    let lowered = a.stats().count("leases_lowered");
    list(&b, dir).await;
    assert!(a.stats().count("leases_lowered") > lowered);
    let held = a.leases();
    let lease = held.iter().find(|held| held.grant.fid == open.fid()).unwrap();
    assert_eq!(lease.grant.mode, soda_types::Mode::Write, "{lease:?}");
}
