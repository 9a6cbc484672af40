//! A client as small as it can be: raw frames, no caches.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each program uses its part")]

pub mod dying;
pub mod gates;
pub mod teller;
pub mod watched;

use bytes::{Bytes, BytesMut};
use soda_protocol::{
    Answer, Call, Credentials, Failure, Frame, FrameHeader, FrameKind, HEADER_LEN, Hello, IfExists,
    LeaseWait, NewNode, Node, Note, OpId, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, Push, Reply, Request, Role,
    SessionKey, SessionWelcome, Unlink, Welcome, WriteAt,
};
use soda_server::{RunningServer, Server, ServerConfig};
use soda_types::{
    ClientId, Creds, Epoch, Errno, Fid, FileKind, Grant, InUse, Mode, Name, Recall, RecallAck, Scope,
    Sequence, Slot,
};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

/// Longer than anything here takes, on any machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// What `scripts/test` takes for the mark of a test that failed only because it ran out of time.
pub const TIMED_OUT: &str = "TIMED OUT";

pub fn config(dir: &Path) -> ServerConfig {
    let mut config = ServerConfig::new(dir);
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.reserve = 1 << 20;
    config.threads = 4;
    config
}

pub fn start(dir: &Path) -> RunningServer {
    Server::start(config(dir)).unwrap()
}

/// How a client answers recalls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recalls {
    /// At once, by itself.
    Answer,
    /// The test takes them from [`Client::next_recall`].
    Keep,
}

/// `None` when the connection has ended.
type Pending = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<(Reply, Bytes)>>>>>;

pub struct Client {
    pub welcome: Welcome,
    pub session: SessionWelcome,
    pub root: Fid,
    connection: Connection,
    recalls: tokio::sync::Mutex<mpsc::UnboundedReceiver<Recall>>,
    lock_recalls: tokio::sync::Mutex<mpsc::UnboundedReceiver<(Fid, Epoch)>>,
    sequence: AtomicU64,
    slot: AtomicU64,
    pub open: Arc<Mutex<HashSet<Fid>>>,
}

/// One connection, split into who writes and a task that reads.
pub struct Connection {
    write: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    pending: Pending,
    tag: AtomicU64,
    reader: tokio::task::JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

pub fn hello(role: Role) -> Hello {
    Hello {
        protocol_min: PROTOCOL_VERSION_MIN,
        protocol_max: PROTOCOL_VERSION,
        software: "test".to_owned(),
        credentials: Credentials::None,
        role,
    }
}

pub fn control(resume: Option<SessionKey>) -> Role {
    Role::Control {
        client: ClientId([7; 16]),
        name: "test:/mnt".to_owned(),
        volume: "main".to_owned(),
        resume,
        lease_term: None,
        widest_lease: Scope::Node,
        lease_wait: LeaseWait::Notified,
    }
}

impl Connection {
    /// Connects and says hello.
    pub async fn open(
        address: SocketAddr,
        role: Role,
        on_push: impl FnMut(Push) + Send + 'static,
    ) -> Result<(Connection, Welcome), Failure> {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (read, write) = stream.into_split();
        let pending: Pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tokio::spawn(read_all(read, pending.clone(), on_push));
        let connection = Connection {
            write: Arc::new(tokio::sync::Mutex::new(write)),
            pending,
            tag: AtomicU64::new(1),
            reader,
        };
        let reply = connection.call(None, Call::Hello(hello(role)), Bytes::new()).await.unwrap();
        match reply.0.result? {
            Answer::Welcome(welcome) => Ok((connection, welcome)),
            other => panic!("{other:?}"),
        }
    }

    /// `None`: the connection ended first.
    pub async fn call(&self, op: Option<OpId>, call: Call, payload: Bytes) -> Option<(Reply, Bytes)> {
        let (_, answer) = self.send(op, call, payload).await;
        tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).ok()
    }

    /// Sends a request; the answer can be waited for later.
    pub async fn send(
        &self,
        op: Option<OpId>,
        call: Call,
        payload: Bytes,
    ) -> (u64, oneshot::Receiver<(Reply, Bytes)>) {
        let tag = self.tag.fetch_add(1, Ordering::SeqCst);
        let (sender, receiver) = oneshot::channel();
        if let Some(pending) = &mut *self.pending.lock().unwrap() {
            pending.insert(tag, sender);
        }
        let frame = Frame::new(FrameKind::Request, tag, &Request { op, call }, payload).unwrap();
        self.send_frame(&frame).await;
        (tag, receiver)
    }

    pub async fn note(&self, note: &Note) {
        self.send_frame(&Frame::new(FrameKind::Note, 0, note, Bytes::new()).unwrap()).await;
    }

    pub async fn send_frame(&self, frame: &Frame) {
        let mut bytes = BytesMut::new();
        frame.encode_head(&mut bytes);
        bytes.extend_from_slice(&frame.payload.to_bytes());
        // The server may have gone; whoever waits for an answer notices.
        let _ = self.write.lock().await.write_all(&bytes).await;
    }
}

async fn read_all(mut read: OwnedReadHalf, pending: Pending, mut on_push: impl FnMut(Push)) {
    while let Some(frame) = read_frame(&mut read).await {
        match frame.kind {
            FrameKind::Reply => {
                let sender = pending.lock().unwrap().as_mut().and_then(|pending| pending.remove(&frame.tag));
                let _ = sender
                    .expect("one answer per request")
                    .send((frame.message().unwrap(), frame.payload.to_bytes()));
            }
            FrameKind::Push => on_push(frame.message().unwrap()),
            other => panic!("{other:?} from a server"),
        }
    }
    *pending.lock().unwrap() = None;
}

pub async fn read_frame(read: &mut (impl AsyncReadExt + Unpin)) -> Option<Frame> {
    let mut head = [0; HEADER_LEN];
    read.read_exact(&mut head).await.ok()?;
    let header = FrameHeader::parse(&head).unwrap();
    let mut rest = vec![0; header.rest_len()];
    read.read_exact(&mut rest).await.ok()?;
    Some(header.finish(rest.into()).unwrap())
}

impl Client {
    pub async fn connect(server: &RunningServer) -> Client {
        Client::connect_with(server.local_addr(), None, Recalls::Answer).await.unwrap()
    }

    pub async fn connect_keeping_recalls(server: &RunningServer) -> Client {
        Client::connect_with(server.local_addr(), None, Recalls::Keep).await.unwrap()
    }

    pub async fn resume(server: &RunningServer, key: SessionKey) -> Client {
        Client::connect_with(server.local_addr(), Some(key), Recalls::Answer).await.unwrap()
    }

    pub async fn connect_with(
        address: SocketAddr,
        resume: Option<SessionKey>,
        recalls: Recalls,
    ) -> Result<Client, Failure> {
        Client::connect_as(address, control(resume), recalls).await
    }

    pub async fn connect_as(address: SocketAddr, role: Role, recalls: Recalls) -> Result<Client, Failure> {
        let open = Arc::new(Mutex::new(HashSet::new()));
        let (seen, kept) = mpsc::unbounded_channel();
        let (locks_seen, locks_kept) = mpsc::unbounded_channel();
        let (acks, mut to_send) = mpsc::unbounded_channel::<Vec<RecallAck>>();
        let opened = open.clone();
        let on_push = move |push| {
            let list = match push {
                Push::Recalls(list) => list,
                Push::RecallLocks(list) => {
                    list.into_iter().for_each(|recall| _ = locks_seen.send(recall));
                    return;
                }
                Push::Inquiries(_) | Push::Stopping => return,
            };
            let ack_of = |recall: &Recall| RecallAck {
                fid: recall.fid,
                epoch: recall.epoch,
                kept: recall.to,
                in_use: if opened.lock().unwrap().contains(&recall.fid) { InUse::Yes } else { InUse::No },
                uses: 0,
                part: recall.part,
            };
            if recalls == Recalls::Answer {
                let _ = acks.send(list.iter().map(ack_of).collect());
            }
            list.into_iter().for_each(|recall| drop(seen.send(recall)));
        };
        let (connection, welcome) = Connection::open(address, role, on_push).await?;
        let write = connection.write.clone();
        tokio::spawn(async move {
            while let Some(acks) = to_send.recv().await {
                let frame = Frame::new(FrameKind::Note, 0, &Note::RecallAcks(acks), Bytes::new()).unwrap();
                let mut bytes = BytesMut::new();
                frame.encode_head(&mut bytes);
                let _ = write.lock().await.write_all(&bytes).await;
            }
        });
        let session = welcome.session.clone().unwrap();
        Ok(Client {
            root: session.root,
            sequence: AtomicU64::new(highest_stored(&session).0 + 1),
            slot: AtomicU64::new(0),
            welcome,
            session,
            connection,
            recalls: tokio::sync::Mutex::new(kept),
            lock_recalls: tokio::sync::Mutex::new(locks_kept),
            open,
        })
    }

    pub fn key(&self) -> SessionKey {
        self.session.key
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn next_op(&self) -> OpId {
        let slot = self.slot.fetch_add(1, Ordering::SeqCst) % u64::from(self.session.slots);
        OpId {
            slot: Slot(u16::try_from(slot).unwrap()),
            sequence: Sequence(self.sequence.fetch_add(1, Ordering::SeqCst)),
        }
    }

    /// A file whose locks are asked back.
    pub async fn next_lock_recall(&self) -> (Fid, Epoch) {
        let next = async { self.lock_recalls.lock().await.recv().await };
        tokio::time::timeout(PATIENCE, next).await.expect(TIMED_OUT).unwrap()
    }

    /// A call that changes nothing.
    pub async fn ask(&self, call: Call) -> Reply {
        self.connection.call(None, call, Bytes::new()).await.expect("connected").0
    }

    /// A call that changes something.
    pub async fn change(&self, call: Call) -> Reply {
        self.change_with(call, Bytes::new()).await
    }

    pub async fn change_with(&self, call: Call, payload: Bytes) -> Reply {
        self.connection.call(Some(self.next_op()), call, payload).await.expect("connected").0
    }

    pub async fn send_change(&self, call: Call) -> (u64, oneshot::Receiver<(Reply, Bytes)>) {
        self.connection.send(Some(self.next_op()), call, Bytes::new()).await
    }

    pub async fn create(&self, parent: Fid, name: &str) -> Result<Node, Errno> {
        self.create_kind(parent, name, FileKind::File).await
    }

    pub async fn mkdir(&self, parent: Fid, name: &str) -> Result<Node, Errno> {
        self.create_kind(parent, name, FileKind::Directory).await
    }

    async fn create_kind(&self, parent: Fid, name: &str, kind: FileKind) -> Result<Node, Errno> {
        node(self.change(create(parent, name, kind)).await)
    }

    pub async fn unlink(&self, parent: Fid, name: &str, in_use: InUse) -> Result<Node, Errno> {
        node(self.change(Call::Unlink { parent, name: n(name), what: Unlink::File { in_use } }).await)
    }

    pub async fn write(&self, fid: Fid, at: WriteAt, data: &[u8]) -> Result<u64, Errno> {
        let call = Call::Write { fid, at, kill_suid_sgid: false };
        let reply = self.change_with(call, Bytes::copy_from_slice(data)).await;
        match reply.result {
            Ok(Answer::Written { offset, len, .. }) => {
                assert_eq!(len, data.len() as u64);
                Ok(offset)
            }
            other => Err(errno(other)),
        }
    }

    pub async fn read(&self, fid: Fid, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let (reply, data) = self
            .connection
            .call(None, Call::Read { fid, offset, len }, Bytes::new())
            .await
            .expect("connected");
        match reply.result {
            Ok(Answer::Data { .. }) => Ok(data),
            other => Err(errno(other)),
        }
    }

    pub async fn lookup(&self, parent: Fid, name: &str) -> Result<Option<Node>, Errno> {
        match self.ask(Call::Lookup { parent, name: n(name) }).await.result {
            Ok(Answer::Found { node, .. }) => Ok(node),
            other => Err(errno(other)),
        }
    }

    pub async fn exists(&self, fid: Fid) -> bool {
        match self.ask(Call::GetAttr { fid }).await.result {
            Ok(Answer::Node(_)) => true,
            other => {
                assert_eq!(errno(other), Errno::Stale);
                false
            }
        }
    }

    pub async fn sync(&self) {
        assert_eq!(self.ask(Call::Sync { fid: self.root, after: None }).await.result, Ok(Answer::Done));
    }

    pub async fn note(&self, note: Note) {
        self.connection.note(&note).await;
    }

    pub async fn next_recall(&self) -> Recall {
        let next = async { self.recalls.lock().await.recv().await.expect("connected") };
        tokio::time::timeout(PATIENCE, next).await.expect(TIMED_OUT)
    }

    pub async fn answer_recall(&self, recall: &Recall, in_use: InUse) {
        let ack = RecallAck {
            fid: recall.fid,
            epoch: recall.epoch,
            kept: recall.to,
            in_use,
            uses: 0,
            part: recall.part,
        };
        self.note(Note::RecallAcks(vec![ack])).await;
    }
}

/// Over all slots.
pub fn highest_stored(session: &SessionWelcome) -> Sequence {
    session.stored.iter().map(|(_, sequence)| *sequence).max().unwrap_or(Sequence(0))
}

pub fn n(name: &str) -> Name {
    Name::try_from(name).unwrap()
}

pub fn create(parent: Fid, name: &str, kind: FileKind) -> Call {
    Call::Create { parent, name: n(name), new: new_node(kind) }
}

pub fn new_node(kind: FileKind) -> NewNode {
    NewNode {
        kind,
        perm: 0o755,
        umask: 0o022,
        rdev: 0,
        target: Vec::new(),
        creds: Creds { uid: 1000, gid: 1000, pid: 1 },
        existing: IfExists::Fail,
        open: InUse::No,
    }
}

pub fn node(reply: Reply) -> Result<Node, Errno> {
    match reply.result {
        Ok(Answer::Changed { node: Some(node), .. } | Answer::Node(node)) => Ok(node),
        other => Err(errno(other)),
    }
}

pub fn errno(result: Result<Answer, Failure>) -> Errno {
    match result {
        Err(Failure::Fs(error)) => error.errno,
        other => panic!("{other:?}"),
    }
}

pub fn mode_on(grants: &[Grant], fid: Fid) -> Option<Mode> {
    grants.iter().find(|grant| grant.fid == fid).map(|grant| grant.mode)
}

/// Asks until the answer is yes.
pub async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let end = Instant::now() + PATIENCE;
    while !ask().await {
        assert!(Instant::now() < end, "{TIMED_OUT}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
