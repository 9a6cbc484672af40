//! A session that delays its changes is asked what an inode is like, instead of for its lease, where another one wants to know no
//! more.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{
    Answer, Call, FromHolder, Inquiry, InquiryAnswer, Node, Note, Push, Reply, Unlink, WriteAt,
};
use soda_server::RunningServer;
use soda_types::{Fid, FileKind, Grant, InUse, Mode, Recall, RecallAck, Version};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc};

/// Has a write lease on the file, and on nothing else; answers what the test says.
struct Holder {
    connection: Connection,
    pushes: Mutex<mpsc::UnboundedReceiver<Push>>,
    node: Node,
    lease: Grant,
}

impl Holder {
    /// With `file` in the root.
    async fn connect(server: &RunningServer) -> Holder {
        let maker = Client::connect(server).await;
        let node = maker.create(maker.root, "file").await.unwrap();
        maker.mkdir(maker.root, "dir").await.unwrap();
        // A lease that has to be recalled is not given again at once.
        maker.ask(Call::Goodbye).await;
        let (seen, pushes) = mpsc::unbounded_channel();
        let (connection, _) =
            Connection::open(server.local_addr(), control(None), move |push| drop(seen.send(push)))
                .await
                .unwrap();
        let call = Call::Write { fid: node.fid, at: WriteAt::Offset(0), kill_suid_sgid: false };
        let reply = connection.call(Some(maker.next_op()), call, Bytes::from_static(b"1")).await.unwrap().0;
        let lease = *reply.grants.iter().find(|grant| grant.fid == node.fid).unwrap();
        assert_eq!(lease.mode, Mode::Write);
        Holder { connection, pushes: Mutex::new(pushes), node, lease }
    }

    async fn delays_changes(&self) {
        let reserved = self.connection.call(None, Call::Reserve { inodes: 1, bytes: 0 }, Bytes::new()).await;
        assert!(matches!(reserved.unwrap().0.result, Ok(Answer::Reserved { .. })));
    }

    async fn next(&self) -> Push {
        let next = async { self.pushes.lock().await.recv().await.expect("connected") };
        tokio::time::timeout(PATIENCE, next).await.expect(TIMED_OUT)
    }

    async fn inquiry(&self) -> Inquiry {
        match self.next().await {
            Push::Inquiries(list) if list.len() == 1 && list[0].fid == self.node.fid => list[0],
            other => panic!("{other:?}"),
        }
    }

    async fn recall(&self) -> Recall {
        match self.next().await {
            Push::Recalls(list) if list.len() == 1 => list[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    /// What nobody but the holder knows.
    fn news(&self) -> Node {
        let mut news = self.node;
        news.attr.size = 1234;
        news.attr.version = Version(self.node.attr.version.0 + 5);
        news
    }

    async fn answer(&self, number: u64, node: Option<Node>) {
        self.connection.note(&Note::InquiryAnswers(vec![InquiryAnswer { number, node }])).await;
    }

    async fn lower(&self) {
        let Recall { fid, epoch, to, .. } = self.recall().await;
        assert_eq!((fid, epoch, to), (self.node.fid, self.lease.epoch, Some(Mode::Read)));
        let ack = RecallAck { fid, epoch, kept: to, in_use: InUse::No, uses: 0, part: None };
        self.connection.note(&Note::RecallAcks(vec![ack])).await;
    }
}

async fn stat(client: &Client, fid: Fid) -> Reply {
    client.ask(Call::Stat { fid }).await
}

fn size_and_lease(reply: &Reply, fid: Fid) -> (u64, Option<Mode>) {
    match &reply.result {
        Ok(Answer::Node(node)) => (node.attr.size, mode_on(&reply.grants, fid)),
        Ok(Answer::Described(node)) => {
            assert_eq!(reply.grants, []);
            (node.attr.size, None)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_holder_says_is_the_answer_and_its_lease_stays() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (holder, other) = (Holder::connect(&server).await, Client::connect(&server).await);
    holder.delays_changes().await;
    let fid = holder.node.fid;
    for _ in 0..3 {
        let says = async { holder.answer(holder.inquiry().await.number, Some(holder.news())).await };
        let (reply, ()) = tokio::join!(stat(&other, holder.node.fid), says);
        assert_eq!(size_and_lease(&reply, holder.node.fid), (1234, None));
    }
    let fetch = |holder| Call::Fetch { fid, most: 1 << 20, known: None, holder };
    // Data are not worth the lease to who may want none.
    let says = async { holder.answer(holder.inquiry().await.number, Some(holder.news())).await };
    let (reply, ()) = tokio::join!(other.ask(fetch(FromHolder::Attributes)), says);
    assert_eq!(size_and_lease(&reply, holder.node.fid), (1234, None));
    // Who wants more waits for the lease.
    let call = fetch(FromHolder::Lease);
    let (reply, ()) = tokio::join!(other.ask(call), holder.lower());
    let read = Some(Mode::Read);
    assert!(matches!(reply.result, Ok(Answer::Fetched(node)) if node.attr.size == 1), "{reply:?}");
    assert_eq!(mode_on(&reply.grants, fid), read);
    assert_eq!(size_and_lease(&other.ask(Call::GetAttr { fid }).await, fid), (1, read));
}

/// What is said about a question of before a restart is never taken for the answer to one of after it.
#[tokio::test(flavor = "multi_thread")]
async fn no_run_of_the_server_gives_an_inquiry_a_number_of_another_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut starts = Vec::new();
    for _ in 0..2 {
        let server = start(dir.path());
        let (holder, other) = (Holder::connect(&server).await, Client::connect(&server).await);
        holder.delays_changes().await;
        let leaves = async {
            starts.push(holder.inquiry().await.number >> 44);
            holder.connection.call(None, Call::Goodbye, Bytes::new()).await.unwrap();
        };
        tokio::join!(stat(&other, holder.node.fid), leaves);
        for (name, what) in [("file", Unlink::File { in_use: InUse::No }), ("dir", Unlink::Directory)] {
            other.change(Call::Unlink { parent: other.root, name: n(name), what }).await.result.unwrap();
        }
        other.ask(Call::Goodbye).await;
    }
    assert_eq!(starts, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_tells_each_change_at_once_is_never_asked() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (holder, other) = (Holder::connect(&server).await, Client::connect(&server).await);
    let (reply, ()) = tokio::join!(stat(&other, holder.node.fid), holder.lower());
    assert_eq!(size_and_lease(&reply, holder.node.fid), (1, Some(Mode::Read)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_declines_or_says_what_it_was_not_asked_is_asked_for_the_lease() {
    let of_other_inode = |said: &mut Node| said.fid = Fid::default();
    let of_other_kind = |said: &mut Node| said.attr.kind = FileKind::Symlink;
    for wrong in [None, Some(of_other_inode as fn(&mut Node)), Some(of_other_kind)] {
        let dir = tempfile::tempdir().unwrap();
        let server = start(dir.path());
        let (holder, other) = (Holder::connect(&server).await, Client::connect(&server).await);
        holder.delays_changes().await;
        let says = async {
            let mut said = holder.news();
            let node = wrong.map(|wrong| {
                wrong(&mut said);
                said
            });
            holder.answer(holder.inquiry().await.number, node).await;
            holder.lower().await;
        };
        let (reply, ()) = tokio::join!(stat(&other, holder.node.fid), says);
        assert_eq!(size_and_lease(&reply, holder.node.fid), (1, Some(Mode::Read)));
    }
}

/// A quarter of a second, once; then the recall, which such a holder may take a term for.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_silent_is_asked_for_the_lease_soon() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (holder, other) = (Holder::connect(&server).await, Client::connect(&server).await);
    holder.delays_changes().await;
    let began = Instant::now();
    let says = async {
        let number = holder.inquiry().await.number;
        holder.lower().await;
        number
    };
    let (reply, number) = tokio::join!(stat(&other, holder.node.fid), says);
    assert_eq!(size_and_lease(&reply, holder.node.fid), (1, Some(Mode::Read)));
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    // Too late: nobody waits for it.
    holder.answer(number, Some(holder.news())).await;
    assert_eq!(size_and_lease(&stat(&other, holder.node.fid).await, holder.node.fid).0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_found_while_what_it_means_is_the_holders() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (holder, other) = (Holder::connect(&server).await, Client::connect(&server).await);
    let look_up = |name: &str| other.ask(Call::LookupStat { parent: other.root, name: n(name) });
    holder.delays_changes().await;
    let reply = look_up("file").await;
    let Ok(Answer::Named { fid, kind: FileKind::File, .. }) = reply.result else { panic!("{reply:?}") };
    assert_eq!((fid, mode_on(&reply.grants, other.root)), (holder.node.fid, Some(Mode::Read)));
    assert_eq!(mode_on(&reply.grants, fid), None);
    // Of all else the attributes come with the name.
    let reply = look_up("dir").await;
    assert!(matches!(reply.result, Ok(Answer::Found { node: Some(_), .. })), "{reply:?}");
    let reply = look_up("none").await;
    assert!(matches!(reply.result, Ok(Answer::Found { node: None, .. })), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_holders_goodbye_ends_the_wait() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let (holder, other) = (Holder::connect(&server).await, Client::connect(&server).await);
    holder.delays_changes().await;
    let leaves = async {
        holder.inquiry().await;
        holder.connection.call(None, Call::Goodbye, Bytes::new()).await.unwrap();
    };
    let (reply, ()) = tokio::join!(stat(&other, holder.node.fid), leaves);
    assert_eq!(size_and_lease(&reply, holder.node.fid), (1, Some(Mode::Read)));
}
