//! Who applies a log is interrupted, and another one goes on; or there are two at once.

use super::*;
use crate::common::proxy::{Proxy, Weather};
use soda_client::Retry;
use soda_client::WriteAt;
use soda_client::recover::RecoverError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The caches know what is asked for first, so that the first question is the change itself.
async fn knows(client: &Arc<Client>) {
    for path in [&["new", "f"][..], &["new", "second"], &["first"], &["gone"]] {
        let mut at = client.root();
        for text in path {
            let Some(node) = client.lookup(at, &name(text)).await.unwrap().node else { break };
            at = node.fid;
        }
    }
    for text in ["old", "mode"] {
        contents(client, &[text]).await;
    }
}

async fn assert_applied(client: &Arc<Client>) {
    for (path, text) in [(&["new", "f"][..], "made"), (&["old"], "after!"), (&["new", "second"], "moved")] {
        assert_eq!(contents(client, path).await, text);
    }
    assert_eq!((find(client, &["gone"]).await, find(client, &["first"]).await), (None, None));
    assert_eq!(perm(client, "mode").await, 0o600);
    let mode = find(client, &["mode"]).await.unwrap();
    assert_eq!(client.getxattr(mode, b"user.a").await.unwrap(), "b");
}

/// As with Ctrl-C: at each record in turn, with the next one under way.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_interrupted_anywhere_can_go_on() {
    let Kept { cell, cache, other, log } = fenced().await;
    for stop in 0..log.records {
        let client = cell.client().await;
        knows(&client).await;
        let (sender, interrupted) = tokio::sync::oneshot::channel();
        let mut sender = Some(sender);
        if stop == 0 {
            sender.take().map(|sender| sender.send(()));
        }
        let progress = |done| {
            if done == stop {
                sender.take().map(|sender| sender.send(()));
            }
        };
        tokio::select! {
            // It is asked first when it is woken.
            biased;
            _ = interrupted => {}
            report = log.apply(&client, progress) => drop(report.unwrap()),
        }
        client.shutdown().await;
    }
    if let [log] = &recover::list(cache.path()).unwrap()[..] {
        let report = log.apply(&other, |_| ()).await.unwrap();
        assert!(report.iter().all(|applied| applied.outcome.is_done()), "{report:#?}");
    }
    assert_applied(&other).await;
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

/// What was under way has been done, and nobody has heard of it: creations, a write, an unlink, a rename.
#[tokio::test(flavor = "multi_thread")]
async fn who_hears_nothing_of_the_server_stops_and_can_go_on() {
    let Kept { cell, cache, other, log } = fenced().await;
    let proxy = Proxy::before(cell.addr).await;
    for stop in [1, 2, 4, 7, 9] {
        let mut config = cell.client_config();
        config.server = proxy.addr.to_string();
        config.retry = Retry::Soft { timeout: Duration::from_secs(4) };
        proxy.set(Weather::Fine);
        let client = Client::connect(config, Box::new(NoKernel)).await.unwrap();
        knows(&client).await;
        let lose = |done| {
            if done == stop {
                proxy.set(Weather::RepliesLost);
            }
        };
        match log.apply(&client, lose).await {
            Err(RecoverError::Silent { done, of, .. }) => {
                assert!(done >= stop && of == log.records, "{done} of {of}");
            }
            other => panic!("{stop}: {other:#?}"),
        }
        proxy.set(Weather::Fine);
        client.shutdown().await;
    }
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    let report = log.apply(&other, |_| ()).await.unwrap();
    assert!(report.iter().all(|applied| applied.outcome.is_done()), "{report:#?}");
    assert_applied(&other).await;
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

/// The server's power fails while it is applied, and it is there again at once: nobody has to wait, and nothing fails.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_loses_meanwhile_stays_in_the_log() {
    let Kept { mut cell, cache, other, log } = fenced().await;
    for stop in [3, 4, 8] {
        let _ = other.sync_all().await;
        let mut medium = Some(cell.medium());
        let cut = |done| {
            if done == stop {
                cell.power_cut_since(medium.take().unwrap());
                cell.restart();
            }
        };
        match log.apply(&other, cut).await {
            Err(RecoverError::Lost { done, of }) => {
                assert!(done >= stop && of == log.records, "{done} of {of}");
            }
            result => panic!("{stop}: {result:#?}"),
        }
        assert_eq!(find(&other, &["new"]).await, None, "what was applied is lost");
    }
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!("nobody has it any more") };
    let report = log.apply(&other, |_| ()).await.unwrap();
    assert!(report.iter().all(|applied| applied.outcome.is_done()), "{report:#?}");
    assert_applied(&other).await;
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

/// What comes first needs room. Nobody is said to have changed anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_ends_it_until_there_is_room() {
    let mut cell = Cell::with_quota(16 << 20);
    cell.term = Duration::from_secs(1);
    cell.restart();
    let Kept { cell: _cell, cache, other, log } = fenced_at(cell).await;
    let filler = file(&other, "filler", "").await;
    for len in [1 << 20, 64 << 10, 4 << 10] {
        let piece = bytes::Bytes::from(vec![1; len]);
        while other.write_all(&filler, WriteAt::End, piece.clone(), KillPriv::Keep).await.is_ok() {}
    }
    // Inodes take room, too.
    let mut made = 0;
    let full = loop {
        let new = new_node(FileKind::Directory);
        match other.create(other.root(), &name(&format!("filler {made}")), new).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100, "it never gets full");
    };
    assert_eq!(full.errno, Errno::NoSpace);
    for _ in 0..2 {
        match log.apply(&other, |_| ()).await {
            Err(RecoverError::NoRoom { done, of, .. }) => assert_eq!((done, of), (0, log.records)),
            result => panic!("{result:#?}"),
        }
    }
    drop(filler);
    other.unlink(other.root(), &name("filler")).await.unwrap();
    let began = Instant::now();
    let report = loop {
        match log.apply(&other, |_| ()).await {
            Ok(report) => break report,
            Err(error) => assert!(matches!(error, RecoverError::NoRoom { .. }), "{error}"),
        }
        assert!(began.elapsed() < Duration::from_secs(60), "TIMED OUT: no room");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(report.iter().all(|applied| applied.outcome.is_done()), "{report:#?}");
    assert_applied(&other).await;
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_exclude_each_other() {
    let Kept { cell: _cell, cache, other, log } = fenced().await;
    let refused = AtomicUsize::new(0);
    let also = |_| {
        let (applied, removed) = (at_once(log.apply(&other, |_| ())), log.remove());
        if let (Err(RecoverError::InUse(_)), Err(RecoverError::InUse(_))) = (applied, removed) {
            refused.fetch_add(1, Ordering::Relaxed);
        }
    };
    let report = log.apply(&other, also).await.unwrap();
    assert_eq!(refused.into_inner(), report.len());
    assert!(report.iter().all(|applied| applied.outcome == Outcome::Done), "{report:#?}");
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_read_hides_no_other_and_can_be_dropped() {
    let Kept { cell: _cell, cache, other, log } = fenced().await;
    let later = log.dir.with_file_name("9");
    std::fs::create_dir(&later).unwrap();
    std::fs::write(later.join("0000000001.log"), "SODALOG9 of the future").unwrap();
    let logs = recover::list(cache.path()).unwrap();
    let unreadable = logs.iter().find(|log| log.name == "9").unwrap();
    assert!(unreadable.why.contains("cannot be read") && unreadable.why.contains("later version"));
    assert!(logs.contains(&log) && logs.len() == 2);
    unreadable.remove().unwrap();
    log.apply(&other, |_| ()).await.unwrap();
    assert_eq!(recover::list(cache.path()).unwrap(), []);
}
