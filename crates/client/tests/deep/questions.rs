//! Questions about parts of deep leases, by a server that says what it is told to.

use crate::common::script::*;
use bytes::Bytes;
use soda_client::KillPriv;
use soda_protocol::*;
use soda_types::{Cause, Epoch, Fid, Grant, Ino, LeasePart, Mode, Recall, Scope, VolumeId};
use std::sync::Arc;
use std::time::Duration;

/// A deep lease that is not held.
const LEASE: Fid = Fid { volume: VolumeId(1), ino: Ino(99), generation: 0 };

/// The word that a deep lease was given back has been lost, and the server takes it for what covers a new file: it asks for that
/// when somebody wants the file, and with the answer it would refuse what was written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_covers_is_told_before_a_question_about_a_lease_that_is_not_held_is_answered() {
    let script = Script::writing_behind().await;
    let (client, mut control) = (script.client, script.control);
    let (said, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, written) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let mut version = 1;
        let mut written = Some(written);
        let mut second = false;
        loop {
            version += 1;
            let (tag, request) = match control.next().await {
                Message::Request(tag, request) => (tag, request),
                Message::Note(Note::RecallAcks(acks)) => return (second, acks),
                Message::Note(_) => continue,
            };
            let Call::Digest { records, .. } = &request.call else {
                control.answer_alone(tag, &request.call, version).await;
                continue;
            };
            let touched: Vec<Fid> = records
                .iter()
                .flat_map(|record| record.change.touches())
                .filter_map(|(object, _)| match object {
                    Object::Inode(fid) => Some(fid),
                    _ => None,
                })
                .collect();
            let attrs = touched.iter().map(|fid| (*fid, attr(*fid, (2 << 20) + version, 0))).collect();
            let file = touched.iter().copied().find(|fid| *fid != ROOT).unwrap();
            match written.take() {
                Some(written) => {
                    said.send(()).unwrap();
                    written.await.unwrap();
                    control.answer(tag, Answer::Digested { attrs }, &[]).await;
                    let (epoch, cause) = (Epoch(1 << 30), Cause::Data);
                    let recall =
                        Recall { fid: LEASE, epoch, to: None, cause, part: Some(LeasePart::object(file)) };
                    control.send(FrameKind::Push, 0, &Push::Recalls(vec![recall]), Bytes::new()).await;
                }
                None => {
                    second |= records.iter().any(|record| matches!(record.change, Change::Write { .. }));
                    control.answer(tag, Answer::Digested { attrs }, &[]).await;
                }
            }
        }
    });
    let file = made_here(&client).await;
    let syncing = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.sync_all().await }
    });
    told.recv().await.unwrap();
    client.write_all(&file, WriteAt::Offset(0), "not told".into(), KillPriv::Keep).await.unwrap();
    go_on.send(()).unwrap();
    let (second, acks) = server.await.unwrap();
    assert!(second, "answered before the server has heard of the write");
    assert!(
        acks.len() == 1 && acks[0].kept.is_none() && acks[0].part == Some(LeasePart::tree(LEASE)),
        "{acks:?}"
    );
    drop(syncing);
}

/// Its answer may tell what the part covers; what was done since is nothing that the question is about.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_part_of_a_deep_lease_waits_for_the_digest_under_way_and_no_longer() {
    let script = Script::writing_behind().await;
    let (client, mut control) = (script.client, script.control);
    let (said, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, written) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let mut version = 1;
        let mut written = Some(written);
        let mut digests = 0;
        loop {
            version += 1;
            let (tag, request) = match control.next().await {
                Message::Request(tag, request) => (tag, request),
                Message::Note(Note::RecallAcks(acks)) => return (digests, acks),
                Message::Note(_) => continue,
            };
            let Call::Digest { records, .. } = &request.call else {
                control.answer_alone(tag, &request.call, version).await;
                continue;
            };
            digests += 1;
            let made = made(records);
            let touched = made.iter().copied().chain([ROOT]);
            let attrs = touched.map(|fid| (fid, attr(fid, (2 << 20) + version, 0))).collect();
            let leases: Vec<Grant> = made.iter().map(|fid| grant(*fid, Mode::Write, 1 << 29)).collect();
            if let Some(written) = written.take() {
                said.send(()).unwrap();
                written.await.unwrap();
                let (epoch, cause) = (Epoch(1 << 30), Cause::Data);
                let part = Some(LeasePart::object(FILE));
                let recall = Recall { fid: LEASE, epoch, to: None, cause, part };
                control.send(FrameKind::Push, 0, &Push::Recalls(vec![recall]), Bytes::new()).await;
                // Who waits for more asks for it in this time.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            control.answer(tag, Answer::Digested { attrs }, &leases).await;
        }
    });
    let file = made_here(&client).await;
    let syncing = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.sync_all().await }
    });
    told.recv().await.unwrap();
    client.write_all(&file, WriteAt::Offset(0), "not told".into(), KillPriv::Keep).await.unwrap();
    go_on.send(()).unwrap();
    let (digests, acks) = server.await.unwrap();
    assert_eq!((digests, acks.len()), (1, 1), "{acks:?}");
    drop(syncing);
}

/// Who writes all the time always has one under way. While it waits it is like a holder that flushes.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_waits_for_no_digest_that_is_begun_later_and_its_holder_says_that_it_gets_on() {
    const TRIP: Duration = Duration::from_millis(20);
    let script = Script::writing_behind_far_away(TRIP).await;
    let (client, mut control) = (script.client, script.control);
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let server = tokio::spawn(async move {
        let mut version = 1;
        let mut is_asked = false;
        let mut under_way = Vec::new();
        loop {
            version += 1;
            match control.next().await {
                Message::Request(tag, request) => match &request.call {
                    Call::Digest { records, .. } => {
                        under_way.push((tag, touched(records), made(records)));
                        if !std::mem::replace(&mut is_asked, true) {
                            ask(&mut control, 0).await;
                            // The answer to this says that the question has been taken up.
                            control.recall(FILE, 1 << 31, None).await;
                        }
                    }
                    call => {
                        tokio::time::sleep(TRIP).await;
                        control.answer_alone(tag, call, version).await;
                    }
                },
                Message::Note(Note::RecallAcks(acks)) if acks[0].epoch == Epoch(1 << 31) => {
                    said.send(()).unwrap();
                }
                Message::Note(Note::RecallAcks(acks)) => return acks,
                Message::Note(Note::RecallProgress(fids)) => {
                    assert_eq!((fids, under_way.len()), (vec![FILE], 2));
                    // The other one was begun after the question came, and is answered never.
                    let (tag, touched, made) = under_way.remove(0);
                    let attrs =
                        touched.into_iter().map(|fid| (fid, attr(fid, (2 << 20) + version, 0))).collect();
                    let leases: Vec<Grant> =
                        made.iter().map(|fid| grant(*fid, Mode::Write, 1 << 29)).collect();
                    control.answer(tag, Answer::Digested { attrs }, &leases).await;
                }
                Message::Note(_) => {}
            }
        }
    });
    let file = made_here(&client).await;
    let sync = || {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.sync_all().await })
    };
    let first = sync();
    heard.recv().await.unwrap();
    // As much as fills a digest goes behind the one under way.
    let second = tokio::spawn({
        let client = Arc::clone(&client);
        async move {
            for number in 0..2 {
                let data = Bytes::from(vec![1; 1 << 20]);
                client.write_all(&file, WriteAt::Offset(number << 20), data, KillPriv::Keep).await.unwrap();
            }
            client.sync_all().await
        }
    });
    let acks = soon(server).await;
    // Something that is under way may rest on the lease.
    assert_eq!(acks.iter().map(|ack| ack.part).collect::<Vec<_>>(), [Some(PART)]);
    [first, second].iter().for_each(|sync| sync.abort());
}

async fn soon<T>(server: tokio::task::JoinHandle<T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), server).await.expect("something waits for ever").unwrap()
}

const PART: LeasePart = LeasePart { fid: FILE, scope: Scope::Node };

async fn ask(control: &mut Peer, number: u64) {
    let (epoch, cause) = (Epoch((1 << 30) + number), Cause::Data);
    let recall = Recall { fid: LEASE, epoch, to: None, cause, part: Some(PART) };
    control.send(FrameKind::Push, 0, &Push::Recalls(vec![recall]), Bytes::new()).await;
}

fn touched(records: &[Record]) -> Vec<Fid> {
    let objects = records.iter().flat_map(|record| record.change.touches());
    let mut fids: Vec<Fid> = objects
        .filter_map(|(object, _)| match object {
            Object::Inode(fid) => Some(fid),
            _ => None,
        })
        .chain([ROOT])
        .collect();
    fids.sort_unstable();
    fids.dedup();
    fids
}

fn made(records: &[Record]) -> Vec<Fid> {
    records.iter().filter_map(|record| record.change.creates()).collect()
}
