//! A server that says just what a test wants it to say, over pipes.

use crate::common::{name, new_node};
use bytes::{Bytes, BytesMut};
use soda_client::{
    BootClock, Client, ClientConfig, Clock, Fsync, KernelHooks, NoKernel, OpenFile, OpenMode, Stream,
    Transport, WriteBehind, WritePolicy,
};
use soda_protocol::*;
use soda_types::{
    Attr, Cause, Epoch, Fid, FileKind, Grant, Ino, Mode, Monotonic, Recall, RecallAck, Scope, Sequence,
    SessionId, Slot, Term, Timestamp, Version, VolumeId,
};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::mpsc;

#[derive(Debug)]
struct Pipes(mpsc::UnboundedSender<DuplexStream>);

impl Transport for Pipes {
    fn connect<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'a>> {
        let (near, far) = duplex(4 << 20);
        let sent = self.0.send(far);
        Box::pin(async move {
            sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
            let (read, write) = split(near);
            Ok(Stream { read: Box::new(read), write: Box::new(write) })
        })
    }
}

/// A clock that a test can set forward, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Ahead(pub(crate) AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> Monotonic {
        BootClock.now() + Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn suspended(&self) -> u64 {
        BootClock.suspended()
    }
}

/// The server's end of one connection.
pub(crate) struct Peer(pub(crate) DuplexStream);

#[derive(Debug)]
pub(crate) enum Message {
    Request(u64, Request),
    Note(Note),
}

impl Peer {
    pub(crate) async fn next(&mut self) -> Message {
        let read = async {
            let mut raw = [0; HEADER_LEN];
            self.0.read_exact(&mut raw).await.unwrap();
            let header = FrameHeader::parse(&raw).unwrap();
            let mut rest = vec![0; header.rest_len()];
            self.0.read_exact(&mut rest).await.unwrap();
            header.finish(rest.into()).unwrap()
        };
        let frame =
            tokio::time::timeout(Duration::from_secs(10), read).await.expect("the client says nothing");
        match frame.kind {
            FrameKind::Request => Message::Request(frame.tag, frame.message().unwrap()),
            FrameKind::Note => Message::Note(frame.message().unwrap()),
            other => panic!("{other:?} from a client"),
        }
    }

    /// The next request; renewals are answered on the way.
    pub(crate) async fn request(&mut self) -> (u64, Request) {
        loop {
            match self.next().await {
                Message::Request(tag, Request { call: Call::Renew, .. }) => {
                    self.answer(tag, Answer::Done, &[]).await
                }
                Message::Request(tag, request) => return (tag, request),
                Message::Note(note) => panic!("expected a request, got {note:?}"),
            }
        }
    }

    pub(crate) async fn acks(&mut self) -> Vec<RecallAck> {
        match self.next().await {
            Message::Note(Note::RecallAcks(acks)) => acks,
            other => panic!("expected acks, got {other:?}"),
        }
    }

    pub(crate) async fn send<M: serde::Serialize>(
        &mut self,
        kind: FrameKind,
        tag: u64,
        message: &M,
        payload: Bytes,
    ) {
        let frame = Frame::new(kind, tag, message, payload).unwrap();
        let mut head = BytesMut::new();
        frame.encode_head(&mut head);
        self.0.write_all(&head).await.unwrap();
        self.0.write_all(&frame.payload.to_bytes()).await.unwrap();
    }

    pub(crate) async fn answer(&mut self, tag: u64, answer: Answer, grants: &[Grant]) {
        let reply = Reply { result: Ok(answer), grants: grants.to_vec(), covered: Vec::new() };
        self.send(FrameKind::Reply, tag, &reply, Bytes::new()).await;
    }

    /// What a client asks that is about to change names of the root by itself, and nobody else is there.
    pub(crate) async fn answer_alone(&mut self, tag: u64, call: &Call, version: u64) {
        let root = attr(ROOT, version, 0);
        let leases = |fid: Fid| [grant(ROOT, Mode::Write, version), grant(fid, Mode::Write, version)];
        match call {
            Call::GetAttr { .. } | Call::Stat { .. } | Call::Fetch { .. } => {
                self.answer(tag, Answer::Node(node(ROOT, version, 0)), &leases(ROOT)[..1]).await;
            }
            Call::Lookup { .. } | Call::LookupStat { .. } => {
                self.answer(tag, Answer::Found { parent: root, node: None }, &leases(ROOT)[..1]).await;
            }
            Call::ReadDir { .. } => {
                let page = DirPage { dir: root, parent: ROOT, entries: Vec::new(), rest: Rest::End };
                self.answer(tag, Answer::Entries(page, Vec::new()), &leases(ROOT)[..1]).await;
            }
            Call::Create { .. } => {
                let made = Fid { ino: Ino(100 + version), ..FILE };
                let changed =
                    Answer::Changed { node: Some(node(made, version, 0)), others: vec![(ROOT, root)] };
                self.answer(tag, changed, &leases(made)).await;
            }
            Call::Reserve { inodes, bytes } => {
                let (count, bytes, version) = (*inodes, *bytes, Version(1 << 20));
                self.answer(tag, Answer::Reserved { first: Ino(10_000), count, bytes, version }, &[]).await;
            }
            Call::GetXattrs { .. } => self.answer(tag, Answer::Xattrs(Vec::new()), &[]).await,
            Call::Sync { .. } | Call::Renew => self.answer(tag, Answer::Done, &[]).await,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn fail(&mut self, tag: u64, failure: Failure) {
        let reply = Reply { result: Err(failure), grants: Vec::new(), covered: Vec::new() };
        self.send(FrameKind::Reply, tag, &reply, Bytes::new()).await;
    }

    pub(crate) async fn data(&mut self, tag: u64, attr: Attr, bytes: &'static [u8], grants: &[Grant]) {
        let reply = Reply { result: Ok(Answer::Data { attr }), grants: grants.to_vec(), covered: Vec::new() };
        self.send(FrameKind::Reply, tag, &reply, Bytes::from_static(bytes)).await;
    }

    pub(crate) async fn recall(&mut self, fid: Fid, epoch: u64, to: Option<Mode>) {
        let recall = Recall { fid, epoch: Epoch(epoch), to, cause: Cause::Data, part: None };
        self.send(FrameKind::Push, 0, &Push::Recalls(vec![recall]), Bytes::new()).await;
    }

    pub(crate) async fn welcome(&mut self, standing: Standing, stored: &[(u16, u64)]) {
        self.welcome_in(FIRST_RUN, standing, stored).await;
    }

    /// From that run of the server.
    pub(crate) async fn welcome_in(&mut self, boot: [u8; 16], standing: Standing, stored: &[(u16, u64)]) {
        self.welcome_with(4, boot, standing, stored).await;
    }

    async fn welcome_with(&mut self, slots: u16, boot: [u8; 16], standing: Standing, stored: &[(u16, u64)]) {
        let (tag, request) = self.request().await;
        assert!(matches!(request.call, Call::Hello(_)));
        let session = SessionWelcome {
            key: SessionKey { session: SessionId(7), secret: [1; 16] },
            standing,
            root: ROOT,
            term: Duration::from_secs(30),
            slots,
            max_io: 1 << 20,
            stored: stored.iter().map(|(slot, sequence)| (Slot(*slot), Sequence(*sequence))).collect(),
            calendar: Timestamp::new(1_700_000_000, 0),
        };
        let welcome =
            Welcome { protocol: PROTOCOL_VERSION, software: "scripted".into(), boot, session: Some(session) };
        self.answer(tag, Answer::Welcome(welcome), &[]).await;
    }
}

pub(crate) const FIRST_RUN: [u8; 16] = [0; 16];
pub(crate) const ROOT: Fid = Fid { volume: VolumeId(1), ino: Ino::ROOT, generation: 0 };
pub(crate) const FILE: Fid = Fid { volume: VolumeId(1), ino: Ino(2), generation: 0 };

pub(crate) fn attr(fid: Fid, version: u64, size: u64) -> Attr {
    let zero = Timestamp::new(0, 0);
    let kind = if fid == ROOT { FileKind::Directory } else { FileKind::File };
    Attr {
        ino: fid.ino,
        kind,
        perm: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        allocated: size,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        version: Version(version),
        data_version: Version(version),
    }
}

pub(crate) fn node(fid: Fid, version: u64, size: u64) -> Node {
    Node { fid, attr: attr(fid, version, size), xattrs: XattrSummary::None }
}

pub(crate) fn grant(fid: Fid, mode: Mode, epoch: u64) -> Grant {
    Grant { fid, scope: Scope::Node, mode, epoch: Epoch(epoch), term: Term::Session }
}

/// What a digest's answer has attributes of, the root among it.
pub(crate) fn touched(records: &[Record]) -> Vec<Fid> {
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

pub(crate) fn made(records: &[Record]) -> Vec<Fid> {
    records.iter().filter_map(|record| record.change.creates()).collect()
}

/// A new file that the server has not been told of.
pub(crate) async fn made_here(client: &Client) -> Arc<OpenFile> {
    for number in 0..2000 {
        let before = client.stats().count("here");
        let (at, new) = (name(&number.to_string()), new_node(FileKind::File));
        let (_, file) = client.create_open(ROOT, &at, new, OpenMode::ReadWrite).await.unwrap();
        if client.stats().count("here") > before {
            return file;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{:?}", client.stats());
}

pub(crate) struct Script {
    pub(crate) client: Arc<Client>,
    pub(crate) control: Peer,
    pub(crate) data: Option<Peer>,
    pub(crate) connections: mpsc::UnboundedReceiver<DuplexStream>,
}

/// Connections that a test has the other ends of.
pub(crate) fn pipes() -> (Box<dyn Transport>, mpsc::UnboundedReceiver<DuplexStream>) {
    let (sender, connections) = mpsc::unbounded_channel();
    (Box::new(Pipes(sender)), connections)
}

impl Script {
    pub(crate) async fn start(data_connections: usize, hooks: Box<dyn KernelHooks>) -> Script {
        Script::start_with(data_connections, hooks, Arc::new(BootClock)).await
    }

    /// It tells nothing before somebody asks.
    pub(crate) async fn writing_behind() -> Script {
        Script::writing_behind_by(Arc::new(BootClock)).await
    }

    /// The same with another clock.
    pub(crate) async fn writing_behind_by(clock: Arc<dyn Clock>) -> Script {
        let behind = WriteBehind { max_age: Duration::from_secs(3600), ..WriteBehind::default() };
        let write = WritePolicy::Behind(behind);
        let config = ClientConfig { data_connections: 0, write, ..ClientConfig::new("scripted:1", "main") };
        Script::start_as(config, Box::new(NoKernel), clock).await
    }

    /// As [`Script::writing_behind`]: its own disk is enough for fsync, with what it has in this directory.
    pub(crate) async fn syncing_here(cache: &Path) -> Script {
        let max_age = Duration::from_secs(3600);
        let behind = WriteBehind { max_age, fsync: Fsync::Local, ..WriteBehind::default() };
        let write = WritePolicy::Behind(behind);
        let mut config =
            ClientConfig { data_connections: 0, write, ..ClientConfig::new("scripted:1", "main") };
        config.cache.dir = Some(cache.to_owned());
        Script::start_as(config, Box::new(NoKernel), Arc::new(BootClock)).await
    }

    /// As [`Script::writing_behind`], at the end of a line on which digests go behind one another: whoever answers takes this
    /// time.
    pub(crate) async fn writing_behind_far_away(trip: Duration) -> Script {
        let behind = WriteBehind { max_age: Duration::from_secs(3600), ..WriteBehind::default() };
        let write = WritePolicy::Behind(behind);
        let config = ClientConfig { data_connections: 0, write, ..ClientConfig::new("scripted:1", "main") };
        let (transport, mut connections) = pipes();
        let client =
            tokio::spawn(Client::connect_with(config, Box::new(NoKernel), Arc::new(BootClock), transport));
        let mut control = Peer(connections.recv().await.unwrap());
        tokio::time::sleep(trip).await;
        control.welcome_with(64, FIRST_RUN, Standing::New, &[]).await;
        Script { client: client.await.unwrap().unwrap(), control, data: None, connections }
    }

    pub(crate) async fn start_with(
        data_connections: usize,
        hooks: Box<dyn KernelHooks>,
        clock: Arc<dyn Clock>,
    ) -> Script {
        let mut config = ClientConfig { data_connections, ..ClientConfig::new("scripted:1", "main") };
        config.cache.idle = Duration::from_secs(10);
        Script::start_as(config, hooks, clock).await
    }

    async fn start_as(config: ClientConfig, hooks: Box<dyn KernelHooks>, clock: Arc<dyn Clock>) -> Script {
        let (transport, mut connections) = pipes();
        let (data_connections, has_cache) = (config.data_connections, config.cache.dir.is_some());
        let client = tokio::spawn(Client::connect_with(config, hooks, clock, transport));
        let mut control = Peer(connections.recv().await.unwrap());
        control.welcome(Standing::New, &[]).await;
        if has_cache {
            // What is set aside for it, and last whose data the directory may have.
            let mut is_root = false;
            while !is_root {
                let (tag, request) = control.request().await;
                is_root = matches!(request.call, Call::GetAttr { .. });
                control.answer_alone(tag, &request.call, 1).await;
            }
        }
        let mut data = None;
        if data_connections > 0 {
            let mut peer = Peer(connections.recv().await.unwrap());
            peer.welcome(Standing::Resumed, &[]).await;
            data = Some(peer);
        }
        Script { client: client.await.unwrap().unwrap(), control, data, connections }
    }

    /// The client creates the file and has it open, under a write lease.
    pub(crate) async fn created_open(&mut self, epoch: u64) -> Arc<OpenFile> {
        let client = Arc::clone(&self.client);
        let new = new_node(FileKind::File);
        let text = name(&format!("f{epoch}"));
        let creating =
            tokio::spawn(async move { client.create_open(ROOT, &text, new, OpenMode::ReadWrite).await });
        let (tag, _) = self.control.request().await;
        let others = vec![(ROOT, attr(ROOT, epoch, 0))];
        let created = Answer::Changed { node: Some(node(FILE, epoch, 0)), others };
        self.control.answer(tag, created, &[grant(FILE, Mode::Write, epoch)]).await;
        creating.await.unwrap().unwrap().1
    }

    /// The client knows the file and its attributes under a read lease.
    pub(crate) async fn known_file(&mut self, size: u64) {
        self.known(FILE, size).await;
    }

    pub(crate) async fn known(&mut self, fid: Fid, size: u64) {
        let client = Arc::clone(&self.client);
        let asking = tokio::spawn(async move { client.getattr(fid).await });
        let (tag, _) = self.control.request().await;
        self.control.answer(tag, Answer::Node(node(fid, 1, size)), &[grant(fid, Mode::Read, 1)]).await;
        asking.await.unwrap().unwrap();
    }
}
