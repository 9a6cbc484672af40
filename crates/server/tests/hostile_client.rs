//! A client that sends sound frames with anything in them: messages of every kind, damaged or not, about whatever there is. The
//! server may refuse them; it may not panic, hang, grow without bound or damage the volume, and it goes on for others.

#[path = "../../protocol/tests/samples/mod.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod samples;

use crate::common::dying::check_stores;
use crate::common::*;
use bytes::{Bytes, BytesMut};
use samples::numbers::Numbers;
use samples::{Message, samples};
use soda_protocol::{Answer, Call, Data, Frame, FrameKind, OpId, Reply, Request, SessionWelcome};
use soda_server::{RunningServer, Server, ServerConfig};
use soda_types::{FileKind, Sequence, Slot};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const ROUNDS: u64 = 40;
const MESSAGES: u64 = 250;
/// What the process may grow by: far more than honest work takes, far less than a length field can claim.
const GROWTH: u64 = 512 << 20;

/// What became of the messages of one connection.
#[derive(Default)]
struct Answered {
    done: u32,
    refused: u32,
}

fn damaged(numbers: &mut Numbers, mut body: Vec<u8>) -> Vec<u8> {
    for _ in 0..numbers.below(3) {
        let at = numbers.below(body.len());
        // Small numbers hit what is there, large ones what overflows.
        body[at] = match numbers.below(4) {
            0 => 0,
            1 => numbers.below(12) as u8,
            2 => 0xff,
            _ => numbers.next() as u8,
        };
    }
    body
}

/// A change gets a slot and a sequence that are in order, as a rule: else hardly any would be looked at.
fn in_order(numbers: &mut Numbers, body: Vec<u8>, sequence: u64, slots: u16) -> Vec<u8> {
    let slot = Slot((sequence % u64::from(slots)) as u16);
    let decoded = Frame { kind: FrameKind::Request, tag: 0, body: body.into(), payload: Data::new() };
    match decoded.message::<Request>() {
        Ok(Request { op: Some(_), call }) if numbers.below(10) > 0 => {
            let op = Some(OpId { slot, sequence: Sequence(sequence) });
            postcard::to_stdvec(&Request { op, call }).unwrap()
        }
        _ => decoded.body.to_vec(),
    }
}

async fn send(stream: &mut (impl AsyncWriteExt + Unpin), frame: &Frame) -> Option<()> {
    let mut bytes = BytesMut::new();
    frame.encode_head(&mut bytes);
    bytes.extend_from_slice(&frame.payload.to_bytes());
    stream.write_all(&bytes).await.ok()
}

/// Begins a session and torments the server in it. `None`: the server has ended the connection, as it may.
async fn torment(server: &RunningServer, numbers: &mut Numbers, samples: &[Message]) -> Option<Answered> {
    const LAST: u64 = u64::MAX - 1;
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let request = Request { op: None, call: Call::Hello(hello(control(None))) };
    send(&mut stream, &Frame::new(FrameKind::Request, 0, &request, Bytes::new()).unwrap()).await?;
    let welcome: Reply = read_frame(&mut stream).await?.message().unwrap();
    let Ok(Answer::Welcome(welcome)) = welcome.result else { panic!("{welcome:?}") };
    let slots = welcome.session.map(|SessionWelcome { slots, .. }| slots).unwrap();
    let (mut read, mut write) = stream.into_split();
    let reader = tokio::spawn(async move {
        let mut answered = Answered::default();
        while let Some(frame) = read_frame(&mut read).await {
            if frame.kind == FrameKind::Reply {
                let reply: Reply = frame.message().unwrap();
                if frame.tag == LAST {
                    return Some(answered);
                }
                match reply.result {
                    Ok(_) => answered.done += 1,
                    Err(_) => answered.refused += 1,
                }
            }
        }
        None
    });
    for number in 1..=MESSAGES {
        let message = &samples[numbers.below(samples.len())];
        let mut body = damaged(numbers, message.encode());
        if message.kind() == FrameKind::Request {
            body = in_order(numbers, body, number, slots);
        }
        let payload = vec![numbers.next() as u8; numbers.below(3) * numbers.below(5000)];
        let frame = Frame { kind: message.kind(), tag: number, body: body.into(), payload: payload.into() };
        if send(&mut write, &frame).await.is_none() {
            break;
        }
    }
    let renew = Request { op: None, call: Call::Renew };
    let _ = send(&mut write, &Frame::new(FrameKind::Request, LAST, &renew, Bytes::new()).unwrap()).await;
    tokio::time::timeout(PATIENCE, reader).await.expect("the server does not answer any more").unwrap()
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_client_cannot_make_the_server_panic_hang_grow_or_damage_the_volume() {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("{panic}");
        noted.lock().unwrap().push(panic.to_string());
    }));
    let dir = tempfile::tempdir().unwrap();
    // The samples are about the first few inodes, and names such as these below.
    let config = ServerConfig { branch: Some(0), ..config(dir.path()) };
    let server = Server::start(config.with_term(Duration::from_millis(300))).unwrap();
    // What only servers say ends a connection.
    let samples: Vec<Message> = samples()
        .into_iter()
        .filter(|message| matches!(message.kind(), FrameKind::Request | FrameKind::Note))
        .filter(|message| !matches!(message, Message::Request(Request { call: Call::Goodbye, .. })))
        .collect();
    let before = resident();
    let (mut done, mut refused, mut ended) = (0, 0, 0);
    for round in 0..ROUNDS {
        let honest = Client::connect(&server).await;
        let nodes = [("a", FileKind::File), ("b", FileKind::Directory), ("new", FileKind::Fifo)];
        for (name, kind) in nodes.into_iter().chain([("old", FileKind::File), ("c", FileKind::Directory)]) {
            let _ = honest.change(create(honest.root, name, kind)).await;
        }
        assert!(honest.ask(Call::Goodbye).await.result.is_ok(), "round {round}");
        match torment(&server, &mut Numbers(round), &samples).await {
            Some(answered) => {
                done += answered.done;
                refused += answered.refused;
            }
            None => ended += 1,
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes");
    assert!(
        done > 100 && refused > 500 && ended < ROUNDS / 2,
        "{done} done, {refused} refused, {ended} ended"
    );
    let client = Client::connect(&server).await;
    let file = client.create(client.root, "sane").await.unwrap().fid;
    assert_eq!(client.write(file, soda_protocol::WriteAt::Offset(0), b"sane").await, Ok(0));
    assert_eq!(client.read(file, 0, 10).await.unwrap(), "sane");
    client.ask(Call::Goodbye).await.result.unwrap();
    drop(client);
    server.shutdown().await;
    let _ = std::panic::take_hook();
    assert_eq!(*panics.lock().unwrap(), Vec::<String>::new());
    check_stores(dir.path(), "after all that");
}
