//! Questions about parts of deep leases, by a server that says what it is told to.

use crate::common::script::*;
use bytes::Bytes;
use soda_client::{Client, KillPriv};
use soda_protocol::*;
use soda_types::{
    Attr, Cause, Epoch, Fid, FileKind, Grant, Ino, LeasePart, Mode, Recall, RecallAck, Scope, Version,
    VolumeId,
};
use std::sync::Arc;
use std::time::Duration;

/// A deep lease, which is held only where a test says so.
const LEASE: Fid = Fid { volume: VolumeId(1), ino: Ino(99), generation: 0 };

/// What became of a question.
struct Asked {
    /// Whether the write had been told before it was answered.
    told: bool,
    acks: Vec<RecallAck>,
    client: Arc<Client>,
    file: Fid,
    /// Goes on to answer the client alone.
    _server: AbortOnDrop,
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A file that the server has been told of, by a digest in whose answer no lease on it came, and that was written to before that;
/// then something is asked for.
async fn asked_when_untold(script: Script, recall: impl FnOnce(Fid) -> Recall) -> Asked {
    let (client, mut control) = (script.client, script.control);
    let (said, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (answered, mut acks) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, written) = tokio::sync::oneshot::channel();
    let (recalled, asked) = tokio::sync::oneshot::channel();
    let (begin, mut begun) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let mut version = 1;
        let mut asked = Some((written, asked));
        let mut second = false;
        loop {
            version += 1;
            let (tag, request) = match control.next().await {
                Message::Request(tag, request) => (tag, request),
                Message::Note(Note::RecallAcks(acks)) => {
                    answered.send((second, acks)).unwrap();
                    continue;
                }
                Message::Note(_) => continue,
            };
            let Call::Digest { records, .. } = &request.call else {
                control.answer_alone(tag, &request.call, version).await;
                continue;
            };
            let (touched, made) = (touched(records), made(records));
            let attrs = touched.iter().map(|fid| (*fid, attr(*fid, (2 << 20) + version, 0))).collect();
            let is_it = asked.is_some() && begun.try_recv().is_ok();
            match asked.take_if(|_| is_it) {
                Some((written, asked)) => {
                    said.send(touched.iter().copied().find(|fid| *fid != ROOT).unwrap()).unwrap();
                    written.await.unwrap();
                    control.answer(tag, Answer::Digested { attrs }, &[]).await;
                    let recall: Recall = asked.await.unwrap();
                    control.send(FrameKind::Push, 0, &Push::Recalls(vec![recall]), Bytes::new()).await;
                }
                None => {
                    second |= asked.is_none()
                        && records.iter().any(|record| matches!(record.change, Change::Write { .. }));
                    let leases: Vec<Grant> =
                        made.iter().map(|fid| grant(*fid, Mode::Write, version)).collect();
                    control.answer(tag, Answer::Digested { attrs }, &leases).await;
                }
            }
        }
    });
    let server = AbortOnDrop(server);
    made_here(&client).await;
    client.sync_all().await.unwrap();
    let open = made_here(&client).await;
    begin.send(()).unwrap();
    let syncing = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.sync_all().await }
    });
    let file = told.recv().await.unwrap();
    recalled.send(recall(file)).unwrap();
    client.write_all(&open, WriteAt::Offset(0), "not told".into(), KillPriv::Keep).await.unwrap();
    go_on.send(()).unwrap();
    let (told, acks) = tokio::time::timeout(Duration::from_secs(60), acks.recv()).await.unwrap().unwrap();
    syncing.abort();
    Asked { told, acks, client, file, _server: server }
}

/// The word that a deep lease was given back has been lost, and the server takes it for what covers a new file: it asks for that
/// when somebody wants the file, and with the answer it would refuse what was written meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_covers_is_told_before_a_question_about_a_lease_that_is_not_held_is_answered() {
    let part = |file| Some(LeasePart::object(file));
    let recall =
        |file| Recall { fid: LEASE, epoch: Epoch(1 << 30), to: None, cause: Cause::Data, part: part(file) };
    let Asked { told, acks, .. } = asked_when_untold(Script::writing_behind().await, recall).await;
    assert!(told, "answered before the server has heard of the write");
    assert!(
        acks.len() == 1 && acks[0].kept.is_none() && acks[0].part == Some(LeasePart::tree(LEASE)),
        "{acks:?}"
    );
}

/// It is held and covers other things. The server takes it for what covers the file, too: what it said of that came with a move
/// of a directory above, so that it was not believed here.
#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_covers_is_told_before_all_of_a_lease_is_given_back_or_lowered() {
    for to in [None, Some(Mode::Read)] {
        let mut script = Script::writing_behind().await;
        hold_deep(&mut script).await;
        let part = Some(LeasePart::tree(LEASE));
        let recall = |_| Recall { fid: LEASE, epoch: Epoch(1 << 30), to, cause: Cause::Reclaim, part };
        let Asked { told, acks, .. } = asked_when_untold(script, recall).await;
        assert!(told, "{to:?}: answered before the server has heard of the write");
        assert!(acks.len() == 1 && acks[0].kept == to && acks[0].part == part, "{acks:?}");
    }
}

/// Others may have been let in to it, and the server's disk may lack it.
#[tokio::test(flavor = "multi_thread")]
async fn the_clients_disk_is_not_enough_for_what_was_told_for_such_a_question() {
    let cache = tempfile::tempdir().unwrap();
    let script = Script::syncing_here(cache.path()).await;
    let part = Some(LeasePart::tree(LEASE));
    let recall = |_| Recall { fid: LEASE, epoch: Epoch(1 << 30), to: None, cause: Cause::Data, part };
    let asked = asked_when_untold(script, recall).await;
    assert!(asked.told);
    asked.client.fsync(asked.file).await.unwrap();
    assert_eq!(asked.client.stats().count("fsyncs_local"), 0);
}

/// The client has [`LEASE`] for writing.
async fn hold_deep(script: &mut Script) {
    let client = Arc::clone(&script.client);
    let asking = tokio::spawn(async move { client.getattr(LEASE).await });
    let tag = loop {
        let (tag, request) = script.control.request().await;
        match &request.call {
            Call::GetAttr { fid: LEASE } => break tag,
            call => script.control.answer_alone(tag, call, 1).await,
        }
    };
    let lease = Grant { scope: Scope::Subtree, ..grant(LEASE, Mode::Write, 1) };
    let covered = vec![Covered { lease, mode: Mode::Write, above: Vec::new(), fids: vec![LEASE] }];
    let directory = Attr { kind: FileKind::Directory, ..attr(LEASE, 1, 0) };
    let node = Node { fid: LEASE, attr: directory, xattrs: XattrSummary::None };
    let reply = Reply { result: Ok(Answer::Node(node)), grants: Vec::new(), covered };
    script.control.send(FrameKind::Reply, tag, &reply, Bytes::new()).await;
    asking.await.unwrap().unwrap();
}

/// A new run of the server, which has all that was told it: it has to know that nobody else may have had the file.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_and_covered_by_nothing_yet_is_claimed_of_a_new_run_of_the_server() {
    let mut script = Script::writing_behind().await;
    let (client, mut control) = (script.client, script.control);
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, written) = tokio::sync::oneshot::channel();
    let first_run = tokio::spawn(async move {
        let mut version = 1;
        loop {
            version += 1;
            let (tag, request) = match control.next().await {
                Message::Request(tag, request) => (tag, request),
                Message::Note(_) => continue,
            };
            let Call::Digest { records, .. } = &request.call else {
                control.answer_alone(tag, &request.call, version).await;
                continue;
            };
            let (op, made) = (request.op.unwrap(), made(records)[0]);
            let attrs = touched(records).into_iter().map(|fid| (fid, attr(fid, 2 << 20, 0))).collect();
            said.send(()).unwrap();
            written.await.unwrap();
            control.answer(tag, Answer::Digested { attrs }, &[]).await;
            // So that it is read before the connection is gone.
            control.recall(FILE, 1 << 31, None).await;
            while !matches!(control.next().await, Message::Note(Note::RecallAcks(_))) {}
            return (op, made);
        }
    });
    let file = made_here(&client).await;
    let syncing = tokio::spawn({
        let client = Arc::clone(&client);
        async move { client.sync_all().await }
    });
    heard.recv().await.unwrap();
    client.write_all(&file, WriteAt::Offset(0), "not told".into(), KillPriv::Keep).await.unwrap();
    go_on.send(()).unwrap();
    let (op, made) = soon(first_run).await;
    let mut control = Peer(script.connections.recv().await.unwrap());
    control.welcome_in([1; 16], Standing::Reclaim, &[(op.slot.0, op.sequence.0)]).await;
    let mut claimed = Vec::new();
    let told = loop {
        let (tag, request) = match control.next().await {
            Message::Request(tag, request) => (tag, request),
            Message::Note(_) => continue,
        };
        match request.call {
            Call::Reclaim(reclaim) => {
                let leases = reclaim.leases.iter().map(|(grant, _)| Some(*grant)).collect();
                claimed.extend(reclaim.leases);
                let answer = Answer::Reclaimed { leases, refused_locks: Vec::new() };
                control.answer(tag, answer, &[]).await;
            }
            Call::Digest { records, .. } => break records,
            call => control.answer_alone(tag, &call, 3 << 20).await,
        }
    };
    let is_it = |(grant, version): &&(Grant, Version)| {
        (grant.fid, grant.mode, *version) == (made, Mode::Write, Version(2 << 20))
    };
    assert_eq!(claimed.iter().filter(is_it).count(), 1, "{claimed:?}");
    assert!(told.iter().any(|record| matches!(record.change, Change::Write { .. })), "{told:?}");
    syncing.abort();
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
