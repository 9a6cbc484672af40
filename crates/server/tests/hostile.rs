//! Peers that break the rules, or do not know them: the server goes on for everybody else.

use crate::common::*;
use bytes::{Bytes, BytesMut};
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, Data, Failure, Frame, FrameKind, HEADER_LEN, Note, Push, Reply,
    Request, Role, WriteAt,
};
use soda_server::{RunningServer, Server};
use soda_types::{Errno, FileKind, InUse};
use std::cell::Cell;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A generator that gives the same numbers in every run (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    frame.encode_head(&mut bytes);
    bytes.extend_from_slice(&frame.payload.to_bytes());
    bytes.to_vec()
}

/// Sends bytes and waits until the server has ended the connection.
async fn send_raw(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    let _ = ended.expect("the server ends the connection");
}

async fn still_serves(server: &RunningServer) {
    let client = Client::connect(server).await;
    assert_eq!(client.ask(Call::Renew).await.result, Ok(Answer::Done));
    client.ask(Call::Goodbye).await.result.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_its_connection_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut numbers = Numbers(42);
    for round in 0..200 {
        let len = (numbers.next() % 5000) as usize;
        let mut bytes = numbers.bytes(len);
        if round % 2 == 0 && bytes.len() > 2 {
            bytes[..2].copy_from_slice(&0x50da_u16.to_le_bytes());
        }
        send_raw(server.local_addr(), &bytes).await;
    }
    still_serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_frames_end_their_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let request = Request { op: None, call: Call::Hello(hello(control(None))) };
    let good = encode(&Frame::new(FrameKind::Request, 1, &request, Bytes::new()).unwrap());
    let mut numbers = Numbers(43);
    for _ in 0..200 {
        let mut bad = good.clone();
        let bit = (numbers.next() as usize) % (bad.len() * 8);
        bad[bit / 8] ^= 1 << (bit % 8);
        bad.truncate((numbers.next() as usize) % (bad.len() + 1) + 1);
        send_raw(server.local_addr(), &bad).await;
    }
    still_serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_frames_with_senseless_messages_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let mut numbers = Numbers(44);
    let (mut stream, _) = session_stream(&server, &client).await;
    for tag in 0..500 {
        let len = (numbers.next() % 60) as usize;
        let (body, payload) = (numbers.bytes(len).into(), numbers.bytes(len / 3).into());
        let frame = Frame { kind: FrameKind::Request, tag, body, payload };
        stream.write_all(&encode(&frame)).await.unwrap();
        let reply = read_frame(&mut stream).await.expect("answered");
        assert_eq!((reply.kind, reply.tag), (FrameKind::Reply, tag));
        let reply: Reply = reply.message().unwrap();
        assert!(reply.result.is_err() || matches!(reply.result, Ok(Answer::Done)), "{reply:?}");
    }
    for _ in 0..200 {
        let len = (numbers.next() % 60) as usize;
        client
            .connection()
            .send_frame(&Frame {
                kind: FrameKind::Note,
                tag: 0,
                body: numbers.bytes(len).into(),
                payload: Data::new(),
            })
            .await;
    }
    still_serves(&server).await;
}

/// A data connection of the client's session, as a plain stream.
async fn session_stream(server: &RunningServer, client: &Client) -> (TcpStream, Reply) {
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let request = Request { op: None, call: Call::Hello(hello(Role::Data(client.key()))) };
    let frame = Frame::new(FrameKind::Request, 1, &request, Bytes::new()).unwrap();
    stream.write_all(&encode(&frame)).await.unwrap();
    let reply = read_frame(&mut stream).await.unwrap().message().unwrap();
    (stream, reply)
}

#[tokio::test(flavor = "multi_thread")]
async fn fids_and_numbers_out_of_the_blue_are_refused() {
    use soda_types::{Fid, Ino, VolumeId};
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    for fid in [
        Fid::new(VolumeId(9), Ino(1)),
        Fid::new(VolumeId(1), Ino(u64::MAX)),
        Fid::new(VolumeId(1), Ino(0)),
        Fid { generation: 3, ..client.root },
    ] {
        assert_eq!(errno(client.ask(Call::GetAttr { fid }).await.result), Errno::Stale, "{fid}");
        assert_eq!(client.create(fid, "x").await, Err(Errno::Stale), "{fid}");
        assert_eq!(client.write(fid, WriteAt::Offset(0), b"x").await, Err(Errno::Stale), "{fid}");
        assert_eq!(errno(client.ask(Call::Opened { fid }).await.result), Errno::Stale);
        client.note(Note::Closed(vec![fid])).await;
    }
    assert_eq!(client.read(file, u64::MAX, u32::MAX).await.unwrap(), "");
    assert_eq!(client.write(file, WriteAt::Offset(u64::MAX), b"x").await, Err(Errno::FileTooBig));
    assert_eq!(client.create(file, "below a file").await, Err(Errno::NotDirectory));
    assert_eq!(
        errno(client.ask(Call::ReadDir { dir: file, after: None, limit: 0, next: Vec::new() }).await.result),
        Errno::NotDirectory
    );
    let empty = client.ask(Call::ReadDir { dir: client.root, after: None, limit: 0, next: Vec::new() }).await;
    assert!(matches!(empty.result, Ok(Answer::Entries(page, _)) if page.entries.len() == 1));
    assert!(matches!(
        client.ask(Call::Admin(soda_protocol::AdminCall::Status)).await.result,
        Err(Failure::Unsupported(_))
    ));
    assert!(matches!(client.ask(Call::Hello(hello(Role::Admin))).await.result, Err(Failure::Unsupported(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_only_a_server_sends_ends_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let push = Frame::new(FrameKind::Push, 0, &Push::Stopping, Bytes::new()).unwrap();
    client.connection().send_frame(&push).await;
    until("the connection ends", || async {
        client.connection().call(None, Call::Renew, Bytes::new()).await.is_none()
    })
    .await;
    still_serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_or_too_much_before_the_hello_is_sent_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.limits.hello = std::time::Duration::from_millis(100);
    let server = Server::start(config).unwrap();
    let mut silent = TcpStream::connect(server.local_addr()).await.unwrap();
    let mut byte = [0];
    let read = tokio::time::timeout(PATIENCE, silent.read(&mut byte)).await.expect(TIMED_OUT);
    assert_eq!(read.unwrap_or(0), 0);
    let frame =
        Frame { kind: FrameKind::Request, tag: 1, body: vec![0; 1 << 20].into(), payload: Data::new() };
    send_raw(server.local_addr(), &encode(&frame)[..HEADER_LEN]).await;
    let frame = Frame { kind: FrameKind::Request, tag: 1, body: vec![9; 100].into(), payload: Data::new() };
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    stream.write_all(&encode(&frame)).await.unwrap();
    let reply: Reply = read_frame(&mut stream).await.unwrap().message().unwrap();
    assert!(matches!(reply.result, Err(Failure::Refused(text)) if text.contains("another version")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_with_data_of_no_write_is_refused_and_the_connection_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    for (data, payload) in [(vec![], &b"data"[..]), (vec![4], b"data"), (vec![u32::MAX], b""), (vec![0], b"")]
    {
        let (records, versions, locks) = (Vec::new(), Vec::new(), Vec::new());
        let call = Call::Digest { records, data, versions, after: None, locks };
        let reply = client.connection().call(Some(client.next_op()), call, Bytes::from_static(payload)).await;
        let result = reply.expect("connected").0.result;
        assert!(matches!(result, Err(Failure::Unsupported(_))), "{result:?}");
    }
    still_serves(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.limits.connections = 3;
    let server = Server::start(config).unwrap();
    let address = server.local_addr();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::connect(&server).await);
    }
    let refused = Client::connect_with(address, None, Recalls::Answer).await.err();
    assert!(matches!(&refused, Some(Failure::Refused(text)) if text.contains("maximum of 3")), "{refused:?}");
    clients.pop();
    until("a place is free", || async { Client::connect_with(address, None, Recalls::Answer).await.is_ok() })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_waiting_requests_are_to_be_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.limits.waiting_per_connection = 5;
    let server = Server::start(config).unwrap();
    let holder = Client::connect_keeping_recalls(&server).await;
    let file = holder.create(holder.root, "file").await.unwrap().fid;
    let other = Client::connect(&server).await;
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(other.connection().send(None, Call::GetAttr { fid: file }, Bytes::new()).await.1);
    }
    let recall = holder.next_recall().await;
    until("five wait", || async {
        let refused = other.connection().send(None, Call::GetAttr { fid: file }, Bytes::new()).await.1;
        match tokio::time::timeout(std::time::Duration::from_millis(50), refused).await {
            Ok(answer) => matches!(answer.unwrap().0.result, Err(Failure::Busy(_))),
            Err(_) => false,
        }
    })
    .await;
    holder.answer_recall(&recall, InUse::No).await;
    for answer in answers {
        assert!(answer.await.unwrap().0.result.is_ok());
    }
    assert!(other.ask(Call::GetAttr { fid: file }).await.result.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_asks_and_does_not_read_is_not_served_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.limits.unsent_bytes = 4 << 20;
    let server = Server::start(config).unwrap();
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    client.write(file, WriteAt::Offset(0), &vec![1; 1 << 20]).await.unwrap();
    let (mut stream, _) = session_stream(&server, &client).await;
    let read = Request { op: None, call: Call::Read { fid: file, offset: 0, len: 1 << 20 } };
    let request = encode(&Frame::new(FrameKind::Request, 5, &read, Bytes::new()).unwrap());
    let asked = 64;
    for _ in 0..asked {
        stream.write_all(&request).await.unwrap();
    }
    // The server goes on for others, and with this one when it reads.
    assert_eq!(client.read(file, 0, 1).await.unwrap().len(), 1);
    assert_eq!(client.create(client.root, "other").await.unwrap().attr.kind, FileKind::File);
    for _ in 0..asked {
        let frame = tokio::time::timeout(PATIENCE, read_frame(&mut stream)).await.expect(TIMED_OUT).unwrap();
        assert_eq!(frame.payload.len(), 1 << 20);
    }
}

/// Each may have more than all together.
#[tokio::test(flavor = "multi_thread")]
async fn many_peers_that_do_not_read_have_bounded_memory_together() {
    const MIB: usize = 1 << 20;
    const LIMIT: usize = 8 * MIB;
    const PEERS: usize = 6;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.limits.buffer_bytes = LIMIT as u64;
    let server = Server::start(config).unwrap();
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "file").await.unwrap().fid;
    client.write(file, WriteAt::Offset(0), &vec![1; MIB]).await.unwrap();
    let tools = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap().0;
    let stat = async |what: &str| {
        let reply = tools.call(None, Call::Admin(AdminCall::Stats), Bytes::new()).await.unwrap().0;
        let Ok(Answer::Admin(AdminAnswer::Stats(stats))) = reply.result else { panic!("{reply:?}") };
        stats.iter().find(|(name, _)| name == what).map(|(_, count)| *count as usize).unwrap()
    };
    let held = async || stat("connection_bytes").await;
    let read = Request { op: None, call: Call::Read { fid: file, offset: 0, len: MIB as u32 } };
    let request = encode(&Frame::new(FrameKind::Request, 5, &read, Bytes::new()).unwrap());
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let (mut stream, _) = session_stream(&server, &client).await;
        // What is in the kernel does not count.
        for _ in 0..48 {
            // It may be given up by then.
            let _ = stream.write_all(&request).await;
        }
        peers.push(stream);
    }
    let most = Cell::new(0);
    until("the buffers are full, or somebody is given up", async || {
        let now = held().await;
        most.set(now.max(most.get()));
        most.get() >= LIMIT / 2 || stat("connections_open").await < PEERS + 2
    })
    .await;
    for _ in 0..200 {
        let now = held().await;
        most.set(now.max(most.get()));
        assert_eq!(client.read(file, 0, MIB as u32).await.unwrap().len(), MIB, "others are served");
    }
    assert!(most.get() <= LIMIT + PEERS * MIB, "{most:?} bytes");
    drop(peers);
    until("all is given back", async || held().await < MIB).await;
}
