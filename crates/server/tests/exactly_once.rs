//! Each change happens once, however often it is sent.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{Answer, Call, Failure, Note, OpId, Reply, WriteAt};
use soda_server::RunningServer;
use soda_types::{Errno, Fid, FileKind, InUse, Recall, Sequence, Slot};
use tokio::sync::oneshot;

fn append(fid: Fid) -> Call {
    Call::Write { fid, at: WriteAt::End, kill_suid_sgid: false }
}

/// An append that waits until a reader gives its lease back.
struct HeldUp {
    reader: Client,
    writer: Client,
    file: Fid,
    op: OpId,
    tag: u64,
    answer: oneshot::Receiver<(Reply, Bytes)>,
    /// What the reader is to answer.
    recall: Recall,
}

async fn held_up(server: &RunningServer, data: &Bytes) -> HeldUp {
    let reader = Client::connect_keeping_recalls(server).await;
    let file = reader.create(reader.root, "file").await.unwrap().fid;
    let writer = Client::connect(server).await;
    let op = writer.next_op();
    let (tag, answer) = writer.connection().send(Some(op), append(file), data.clone()).await;
    let recall = reader.next_recall().await;
    HeldUp { reader, writer, file, op, tag, answer, recall }
}

// SEMANTICS 20
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gets_the_first_reply_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    let op = client.next_op();
    let data = Bytes::from_static(b"once");
    let (first, _) = client.connection().call(Some(op), append(file), data.clone()).await.unwrap();
    let (second, _) = client.connection().call(Some(op), append(file), data.clone()).await.unwrap();
    assert_eq!(first.result, second.result);
    assert!(second.grants.is_empty());

    let reconnected = Client::resume(&server, client.key()).await;
    let (third, _) = reconnected.connection().call(Some(op), append(file), data.clone()).await.unwrap();
    assert_eq!(first.result, third.result);
    drop(server);

    let server = start(dir.path());
    let back = Client::resume(&server, client.key()).await;
    assert_eq!(back.session.stored_in(op.slot), op.sequence);
    let (fourth, _) = back.connection().call(Some(op), append(file), data).await.unwrap();
    assert_eq!(first.result, fourth.result);
    let nothing = soda_protocol::Reclaim {
        leases: vec![],
        open: vec![],
        locks: vec![],
        step: soda_protocol::ReclaimStep::Last,
    };
    back.ask(Call::Reclaim(nothing)).await.result.unwrap();
    assert_eq!(back.read(file, 0, 100).await.unwrap(), "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_repeated_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    client.create(client.root, "file").await.unwrap();
    let op = client.next_op();
    let call = create(client.root, "file", FileKind::File);
    let first = client.connection().call(Some(op), call.clone(), Bytes::new()).await.unwrap().0;
    assert_eq!(errno(first.result), Errno::Exists);
    client.unlink(client.root, "file", InUse::No).await.unwrap();
    let again = client.connection().call(Some(op), call.clone(), Bytes::new()).await.unwrap().0;
    assert_eq!(errno(again.result), Errno::Exists, "although it would succeed now");
    drop(server);

    let server = start(dir.path());
    let back = Client::resume(&server, client.key()).await;
    let after = back.connection().call(Some(op), call, Bytes::new()).await.unwrap().0;
    assert_eq!(errno(after.result), Errno::Exists);
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_of_the_past_do_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let op = |slot, sequence| OpId { slot: Slot(slot), sequence: Sequence(sequence) };
    let call = |op, name: &str| {
        client.connection().call(Some(op), create(client.root, name, FileKind::File), Bytes::new())
    };
    assert!(call(op(3, 10), "ten").await.unwrap().0.result.is_ok());
    assert_eq!(call(op(3, 9), "nine").await.unwrap().0.result, Err(Failure::OldSequence));
    assert!(call(op(4, 9), "nine").await.unwrap().0.result.is_ok(), "slots do not know each other");
    let beyond = call(op(1000, 11), "slot").await.unwrap().0;
    assert_eq!(errno(beyond.result), Errno::Invalid);
    let without =
        client.connection().call(None, create(client.root, "x", FileKind::File), Bytes::new()).await;
    assert_eq!(errno(without.unwrap().0.result), Errno::Invalid);
    assert_eq!(client.lookup(client.root, "x").await, Ok(None));
}

// SEMANTICS 20
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_what_is_under_way_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let data = Bytes::from_static(b"once");
    let HeldUp { reader, writer, file, op, answer: first, recall, .. } = held_up(&server, &data).await;
    // The connection breaks while the write waits; the retry comes over the next.
    drop(first);
    let again = Client::resume(&server, writer.key()).await;
    let (_, mut second) = again.connection().send(Some(op), append(file), data).await;
    assert_eq!(again.ask(Call::Renew).await.result, Ok(Answer::Done));
    assert!(second.try_recv().is_err());
    reader.answer_recall(&recall, InUse::No).await;
    assert!(matches!(second.await.unwrap().0.result, Ok(Answer::Written { offset: 0, len: 4, .. })));
    assert_eq!(again.read(file, 0, 100).await.unwrap(), "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_was_never_there() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let data = Bytes::from_static(b"data");
    let HeldUp { reader, writer, file, op, tag, answer, recall } = held_up(&server, &data).await;
    writer.note(Note::Cancel(tag)).await;
    assert_eq!(errno(answer.await.unwrap().0.result), Errno::Interrupted);
    reader.answer_recall(&recall, InUse::No).await;
    assert_eq!(reader.read(file, 0, 100).await.unwrap(), "");
    let (_, again) = writer.connection().send(Some(op), append(file), data).await;
    let recall = reader.next_recall().await;
    reader.answer_recall(&recall, InUse::No).await;
    let again = again.await.unwrap().0;
    assert!(again.result.is_ok(), "the same operation can be sent again: {again:?}");
    assert_eq!(writer.read(file, 0, 100).await.unwrap(), "data");
    // What is not there any more cannot be cancelled.
    writer.note(Note::Cancel(tag)).await;
    writer.note(Note::Cancel(999_999)).await;
    assert_eq!(writer.ask(Call::Renew).await.result, Ok(Answer::Done));
}
