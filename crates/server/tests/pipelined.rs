//! Digests that are sent without waiting for the answer to the one before: applied in their order, none of them after one that
//! was not.

use crate::common::dying::check_stores;
use crate::common::teller::*;
use crate::common::*;
use bytes::Bytes;
use soda_protocol::{Change, Failure, ReclaimStep, Reply};
use soda_types::{Errno, Fid, FileKind, Mode};
use std::path::Path;

/// Digests behind one another: each makes a file and writes over that of the one before.
fn chain(teller: &mut Teller, count: usize) -> (Vec<Fid>, Vec<Told>) {
    let (mut fids, mut all) = (Vec::<Fid>::new(), Vec::<Told>::new());
    for number in 0..count {
        let (fid, mut records) = teller.file(&format!("file{number}"), b"new");
        if let Some(before) = fids.last() {
            let data = Bytes::from_static(b"old");
            let write = Change::Write { fid: *before, offset: 0, data: data.into(), kill_suid_sgid: false };
            records.push(teller.record(write));
        }
        fids.push(fid);
        let told = teller.next_behind(all.last(), records);
        all.push(told);
    }
    (fids, all)
}

async fn send_all(client: &Client, all: &[Told]) -> Vec<Reply> {
    let mut answers = Vec::new();
    for told in all {
        answers.push(told.begin(client).await);
    }
    let mut replies = Vec::new();
    for answer in answers {
        replies.push(answer.await.unwrap().0);
    }
    replies
}

async fn assert_applied(client: &Client, fids: &[Fid]) {
    for (fid, after) in fids.iter().zip((1..=fids.len()).rev()) {
        let expected: &[u8] = if after > 1 { b"old" } else { b"new" };
        assert_eq!(client.read(*fid, 0, 10).await.unwrap(), expected, "{fid}");
    }
}

async fn end(server: soda_server::RunningServer, dir: &Path) {
    server.shutdown().await;
    check_stores(dir, "at the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_sent_at_once_are_applied_in_their_order_and_answered_again_with_their_leases() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (fids, all) = chain(&mut teller, 8);
    for (reply, fid) in send_all(&teller.client, &all).await.iter().zip(&fids) {
        digested(reply);
        assert_eq!(mode_on(&reply.grants, *fid), Some(Mode::Write));
    }
    assert_applied(&teller.client, &fids).await;
    // All answers were lost with the connection; then the server starts anew.
    let key = teller.client.key();
    teller.client = Client::resume(&server, key).await;
    for (reply, fid) in send_all(&teller.client, &all).await.iter().zip(&fids) {
        digested(reply);
        assert_eq!(mode_on(&reply.grants, *fid), Some(Mode::Write));
    }
    server.shutdown().await;
    let server = start(dir.path());
    teller.client = Client::resume(&server, key).await;
    let stored = soda_protocol::DigestSlots::of(64).unwrap().stored(&teller.client.session);
    assert_eq!(stored, all[7].op().sequence);
    // What has just begun goes on where it was: after the last one that was applied.
    let (_, records) = teller.file("later", b"x");
    let later = teller.next_behind(Some(&all[7]), records);
    let replies = send_all(&teller.client, &all).await;
    replies.iter().for_each(|reply| drop(digested(reply)));
    let root = (root_grant(&teller).await, soda_types::Version(0));
    reclaim(&teller.client, vec![root], vec![], ReclaimStep::Last).await.unwrap();
    digested(&teller.send(&later).await);
    assert_applied(&teller.client, &fids).await;
    drop(teller);
    end(server, dir.path()).await;
}

async fn root_grant(teller: &Teller) -> soda_types::Grant {
    soda_types::Grant {
        fid: teller.client.root,
        scope: soda_types::Scope::Node,
        mode: Mode::Write,
        epoch: soda_types::Epoch(1),
        term: soda_types::Term::Session,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn none_is_applied_after_one_that_was_not_however_late_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (fids, mut all) = chain(&mut teller, 5);
    let (taken, place) = (teller.new_fid(), teller.place("file0"));
    let again = Change::Create { place, fid: taken, new: new_node(FileKind::File) };
    let record = teller.record(again);
    all[2].records.push(record);
    let replies = send_all(&teller.client, &all).await;
    digested(&replies[0]);
    digested(&replies[1]);
    assert_eq!(refused(&replies[2]).1, Errno::Exists);
    let key = teller.client.key();
    let out_of_turn = async |client: &Client| {
        for told in &all[3..] {
            assert_eq!(told.send(client).await.unwrap().result, Err(Failure::OutOfTurn));
        }
    };
    assert!(replies[3..].iter().all(|reply| reply.result == Err(Failure::OutOfTurn)));
    out_of_turn(&teller.client).await;
    teller.client = Client::resume(&server, key).await;
    out_of_turn(&teller.client).await;
    assert!(!teller.client.exists(fids[2]).await && !teller.client.exists(fids[3]).await);

    // What they held goes again under other numbers; packets of before stay without effect, also when their slots go on.
    all[2].records.pop();
    let mut anew: Vec<Told> = Vec::new();
    for told in &all[2..] {
        let told = teller.next_behind(anew.last(), told.records.clone());
        anew.push(told);
    }
    send_all(&teller.client, &anew).await.iter().for_each(|reply| drop(digested(reply)));
    for told in &all[3..] {
        let late = told.send(&teller.client).await.unwrap().result;
        assert!(matches!(late, Err(Failure::OutOfTurn | Failure::OldSequence)), "{late:?}");
    }
    assert_applied(&teller.client, &fids).await;
    server.shutdown().await;
    let server = start(dir.path());
    teller.client = Client::resume(&server, key).await;
    for told in &all[3..] {
        let late = told.send(&teller.client).await.unwrap().result;
        assert!(matches!(late, Err(Failure::OutOfTurn | Failure::OldSequence)), "{late:?}");
    }
    drop(teller);
    end(server, dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_after_what_the_server_has_not_heard_of_is_not_applied() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut teller = Teller::connect(&server).await;
    let (fids, all) = chain(&mut teller, 3);
    let replies = send_all(&teller.client, &[all[1].clone(), all[0].clone(), all[2].clone()]).await;
    assert_eq!(replies[0].result, Err(Failure::OutOfTurn));
    digested(&replies[1]);
    assert_eq!(replies[2].result, Err(Failure::OutOfTurn));
    send_all(&teller.client, &all).await.iter().for_each(|reply| drop(digested(reply)));
    assert_applied(&teller.client, &fids).await;
    drop(teller);
    end(server, dir.path()).await;
}
