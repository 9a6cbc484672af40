//! What comes and goes before the server is told of it.

use super::*;

/// Makes as many files and removes them again; how many changes the server was told.
async fn told_of_files_that_come_and_go(digest_bytes: u64, count: u64) -> u64 {
    let cell = Cell::start();
    let WritePolicy::Behind(behind) = patient(&cell).write else { unreachable!() };
    let write = WritePolicy::Behind(WriteBehind { digest_bytes, ..behind });
    let a = writer_with(ClientConfig { write, ..patient(&cell) }).await;
    let directory = mkdir(&a, a.root(), "build").await;
    a.sync_all().await.unwrap();
    let before = a.stats();
    for number in 0..count {
        make(&a, directory, &number.to_string(), "object").await;
    }
    for number in 0..count {
        a.unlink(directory, &name(&number.to_string())).await.unwrap();
    }
    a.sync_all().await.unwrap();
    let after = a.stats();
    assert_eq!(find(&a, &["build", "0"]).await, None);
    let [digested, coalesced] = ["digested", "coalesced"].map(|of| after.count(of) - before.count(of));
    assert!(digested >= 3 * count, "each file is made, written, removed: {after:?}");
    digested - coalesced
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_and_goes_before_a_digest_begins_is_not_told() {
    let told = told_of_files_that_come_and_go(64 << 20, 2000).await;
    assert!(told <= 5, "{told} of 6,000");
}

/// As `git stash`, a test suite or a compiler makes and removes them.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_a_thousand_files_that_is_removed_at_once_is_not_told() {
    let told = told_of_files_that_come_and_go(WriteBehind::default().digest_bytes, 1000).await;
    assert!(told <= 5, "{told} of 3,000");
}
