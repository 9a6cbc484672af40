//! What was there before a log has the names that the server has for it now.

use super::*;
use crate::common::tools::Tools;
use soda_client::recover::{KeptRecord, Named};

fn seen(records: &[KeptRecord], operation: &str) -> Vec<(String, Named)> {
    let of = records.iter().filter(|record| record.operation == operation);
    of.map(|record| (record.path.clone(), record.named)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_log_does_not_name_is_named_by_the_server() {
    let Kept { cell, cache: _cache, other, log } = fenced().await;
    let mut tools = Tools::of(&cell).await;
    let without = log.show().unwrap();
    let [(path, named), ..] = &seen(&without, "write")[1..] else { panic!("{without:#?}") };
    assert!(path.starts_with("<inode ") && *named == Named::NotAsked, "{path}");

    // It is where it is now, not where it was.
    let sub = mkdir(&other, other.root(), "sub").await;
    other.rename(other.root(), &name("mode"), sub, &name("there"), RenameHow::Plain).await.unwrap();
    make(&other, other.root(), "old", "theirs").await;
    other.sync_all().await.unwrap();
    let unnamed = log.unnamed().unwrap();
    assert_eq!(unnamed.len(), 2, "each once, and not the root: {unnamed:?}");
    let names = tools.names(unnamed).await;
    let shown = log.named(&names).show().unwrap();
    let by_server = |path: &str| (path.to_owned(), Named::Server);
    assert_eq!(seen(&shown, "write")[1], by_server("/old"));
    assert_eq!(seen(&shown, "setattr"), [by_server("/sub/there")]);
    assert_eq!(seen(&shown, "unlink"), [("/gone".to_owned(), Named::Log)]);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("saved");
    log.named(&names).save(&to).unwrap();
    assert_eq!(std::fs::read(to.join("old")).unwrap(), b"after!");
    assert_eq!(std::fs::read(to.join("new/f")).unwrap(), b"made");

    let report = log.named(&names).apply(&other, |_| ()).await.unwrap();
    let conflicts = report.iter().filter(|applied| matches!(applied.outcome, Outcome::Conflict(_)));
    let paths: Vec<&str> = conflicts.map(|applied| applied.record.path.as_str()).collect();
    assert_eq!(paths, ["/old", "/sub/there"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_is_said_to_be_gone() {
    let Kept { cell, cache: _cache, other, log } = fenced().await;
    other.unlink(other.root(), &name("old")).await.unwrap();
    other.sync_all().await.unwrap();
    let names = Tools::of(&cell).await.names(log.unnamed().unwrap()).await;
    let shown = log.named(&names).show().unwrap();
    let [(path, named), ..] = &seen(&shown, "write")[1..] else { panic!("{shown:#?}") };
    assert!(path.starts_with("<inode ") && *named == Named::Gone, "{path} {named:?}");
    assert_eq!(seen(&shown, "setattr"), [("/mode".to_owned(), Named::Server)]);
}

/// What the log has made is in the log no more, and the server has it under another number.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_attempt_has_made_is_named_too() {
    let Kept { cell, cache, other, log } = fenced().await;
    make(&other, other.root(), "first", "theirs").await;
    log.apply(&other, |_| ()).await.unwrap();
    let [left] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    let detail = |records: &[KeptRecord]| {
        let rename = records.iter().find(|record| record.operation == "rename").unwrap();
        (rename.detail.clone(), rename.named)
    };
    let (without, named) = detail(&left.show().unwrap());
    assert!(without.starts_with("to <inode ") && named == Named::NotAsked, "{without}");
    let names = Tools::of(&cell).await.names(left.unnamed().unwrap()).await;
    let shown = left.named(&names).show().unwrap();
    assert_eq!(detail(&shown), ("to /new/second".to_owned(), Named::Server));
}
