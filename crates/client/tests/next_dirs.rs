//! Who goes through a tree has the directories that he is about to list come along with others. What came along is as good as
//! what is asked for.

use crate::common::delayed::{make, mkdir};
use crate::common::*;
use soda_client::{Client, Detail};
use soda_types::Fid;
use std::sync::Arc;
use std::time::Duration;

const DIRS: usize = 100;

/// Directories of two files each, by a client that is gone. Returns the one that they are in.
async fn filled(cell: &Cell, dirs: usize) -> Fid {
    let client = cell.client().await;
    let top = mkdir(&client, client.root(), "top").await;
    for number in 0..dirs {
        let dir = mkdir(&client, top, &format!("{number:04}")).await;
        for file in ["a", "b"] {
            make(&client, dir, file, "x").await;
        }
    }
    client.shutdown().await;
    top
}

async fn list(client: &Arc<Client>, dir: Fid) -> Vec<(String, Fid)> {
    let open = client.open_dir(dir).await.unwrap();
    let entries = client.read_dir_with(&open, 0, 1024, Detail::Names).await.unwrap();
    entries.into_iter().map(|entry| (entry.name.to_string(), entry.fid)).collect()
}

fn names(listed: Vec<(String, Fid)>) -> Vec<String> {
    listed.into_iter().map(|(name, _)| name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_through_a_tree_asks_for_few_of_its_directories() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let top = filled(&cell, DIRS).await;
    let client = cell.client().await;
    for (_, dir) in list(&client, top).await {
        assert_eq!(names(list(&client, dir).await), ["a", "b"]);
    }
    let stats = client.stats();
    let (asked, ahead) = (stats.count("msg_readdir"), stats.count("directories_ahead"));
    assert!(asked <= 10 && asked + ahead == DIRS as u64 + 1, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_in_a_directory_that_came_along_is_seen() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let top = filled(&cell, DIRS).await;
    let (client, other) = (cell.client().await, cell.client().await);
    let dirs = list(&client, top).await;
    for (number, (_, dir)) in dirs.iter().enumerate() {
        // By turns: one that was listed long ago or never, one that came along, one that does so just now.
        let changed = dirs[(number + number % 3 * 7) % DIRS].1;
        let name_of = format!("new {number}");
        let made = tokio::spawn({
            let (other, name_of) = (Arc::clone(&other), name_of.clone());
            async move { make(&other, changed, &name_of, "y").await }
        });
        if number % 2 == 0 {
            made.await.unwrap();
            assert!(names(list(&client, changed).await).contains(&name_of), "{number}");
            list(&client, *dir).await;
        } else {
            list(&client, *dir).await;
            made.await.unwrap();
            assert!(names(list(&client, changed).await).contains(&name_of), "{number}");
        }
    }
    assert!(client.stats().count("directories_ahead") > 10, "{:?}", client.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_is_writing_to_does_not_come_along_and_is_not_asked_for() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let top = filled(&cell, DIRS).await;
    let (client, writer) = (cell.client().await, cell.client().await);
    let dirs = list(&client, top).await;
    for (_, dir) in &dirs[60..] {
        make(&writer, *dir, "c", "y").await;
    }
    let recalls = writer.stats().count("recalls");
    for (_, dir) in &dirs[..60] {
        assert_eq!(names(list(&client, *dir).await), ["a", "b"]);
    }
    assert_eq!(writer.stats().count("recalls"), recalls, "{:?}", writer.stats());
    for (_, dir) in &dirs[60..] {
        assert_eq!(names(list(&client, *dir).await), ["a", "b", "c"]);
    }
}
