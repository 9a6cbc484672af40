//! A server that sends anything at all: damaged messages in sound frames, answers to other questions, rubbish. The client may
//! fail an operation; it may not panic, hang, or allocate without bound, and it goes on with a server that is sane again.

#[path = "../../protocol/tests/samples/mod.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod samples;

use bytes::{Bytes, BytesMut};
use samples::numbers::Numbers;
use samples::{Message, samples};
use soda_client::{Client, ClientConfig, NoKernel, OpenMode, Retry};
use soda_protocol::*;
use soda_types::{Attr, Fid, FileKind, Ino, Sequence, SessionId, Slot, Timestamp, Version, VolumeId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ROOT: Fid = Fid { volume: VolumeId(1), ino: Ino::ROOT, generation: 0 };
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections that are answered with nonsense.
const ROUNDS: usize = 50;
const ANSWERS: usize = 40;
/// What the process may grow by: far more than honest work takes, far less than a length field can claim.
const GROWTH: u64 = 512 << 20;

/// Reads one request; `None` when the client has gone.
async fn request(stream: &mut TcpStream) -> Option<(u64, Option<Request>)> {
    loop {
        let mut raw = [0; HEADER_LEN];
        stream.read_exact(&mut raw).await.ok()?;
        let header = FrameHeader::parse(&raw).unwrap();
        let mut rest = vec![0; header.rest_len()];
        stream.read_exact(&mut rest).await.ok()?;
        let frame = header.finish(rest.into()).unwrap();
        if frame.kind == FrameKind::Request {
            return Some((frame.tag, frame.message().ok()));
        }
    }
}

async fn send(stream: &mut TcpStream, frame: &Frame) -> Option<()> {
    let mut bytes = BytesMut::new();
    frame.encode_head(&mut bytes);
    bytes.extend_from_slice(&frame.payload.to_bytes());
    stream.write_all(&bytes).await.ok()
}

fn welcome(standing: Standing) -> Answer {
    let session = SessionWelcome {
        key: SessionKey { session: SessionId(7), secret: [1; 16] },
        standing,
        root: ROOT,
        term: Duration::from_secs(10),
        slots: 4,
        max_io: MAX_IO,
        stored: vec![(Slot(1), Sequence(3))],
        calendar: Timestamp::new(0, 0),
    };
    Answer::Welcome(Welcome {
        protocol: PROTOCOL_VERSION,
        software: "hostile".into(),
        boot: [0; 16],
        session: Some(session),
    })
}

async fn answer(stream: &mut TcpStream, tag: u64, answer: Answer) -> Option<()> {
    let reply = Reply { result: Ok(answer), grants: Vec::new(), covered: Vec::new() };
    send(stream, &Frame::new(FrameKind::Reply, tag, &reply, Bytes::new()).unwrap()).await
}

/// Anything in a sound frame.
fn nonsense(numbers: &mut Numbers, tag: u64, samples: &[Message]) -> Frame {
    let message = &samples[numbers.below(samples.len())];
    let mut body = message.encode();
    let mut kind = message.kind();
    match numbers.below(6) {
        0 => {}
        1 => body = (0..numbers.below(300)).map(|_| numbers.next() as u8).collect(),
        2 => body.truncate(numbers.below(body.len() + 1)),
        3 => {
            kind = [FrameKind::Request, FrameKind::Reply, FrameKind::Push, FrameKind::Note][numbers.below(4)];
        }
        _ => {
            for _ in 0..1 + numbers.below(4) {
                let at = numbers.below(body.len().max(1));
                if let Some(byte) = body.get_mut(at) {
                    *byte = numbers.next() as u8;
                }
            }
        }
    }
    let payload = vec![numbers.next() as u8; numbers.below(3) * numbers.below(5000)];
    let tag = if numbers.below(8) == 0 { numbers.next() } else { tag };
    Frame { kind, tag, body: body.into(), payload: payload.into() }
}

async fn torment(stream: &mut TcpStream, numbers: &mut Numbers, samples: &[Message]) -> Option<()> {
    let (tag, _) = request(stream).await?;
    if numbers.below(4) > 0 {
        let standing = [Standing::New, Standing::Resumed, Standing::Reclaim][numbers.below(3)];
        answer(stream, tag, welcome(standing)).await?;
    } else {
        send(stream, &nonsense(numbers, tag, samples)).await?;
    }
    for _ in 0..ANSWERS {
        let waiting = tokio::time::timeout(Duration::from_millis(20), request(stream)).await;
        let tag = match waiting {
            Ok(request) => request?.0,
            Err(_) => numbers.next() % 50,
        };
        if numbers.below(40) == 0 {
            let rubbish: Vec<u8> = (0..100).map(|_| numbers.next() as u8).collect();
            return stream.write_all(&rubbish).await.ok();
        }
        send(stream, &nonsense(numbers, tag, samples)).await?;
    }
    Some(())
}

async fn behave(stream: &mut TcpStream) -> Option<()> {
    loop {
        let (tag, request) = request(stream).await?;
        let said = match request?.call {
            Call::Hello(Hello { role: Role::Control { .. }, .. }) => welcome(Standing::New),
            Call::Hello(_) => welcome(Standing::Resumed),
            Call::GetAttr { fid } => Answer::Node(Node { fid, attr: attr(fid), xattrs: XattrSummary::None }),
            Call::Reclaim(reclaim) => {
                Answer::Reclaimed { leases: vec![None; reclaim.leases.len()], refused_locks: Vec::new() }
            }
            _ => Answer::Done,
        };
        answer(stream, tag, said).await?;
    }
}

fn attr(fid: Fid) -> Attr {
    let zero = Timestamp::new(0, 0);
    Attr {
        ino: fid.ino,
        kind: FileKind::Directory,
        perm: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 4711,
        allocated: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        version: Version(1),
        data_version: Version(1),
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_server_cannot_make_the_client_panic_hang_or_grow() {
    let panics = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |panic| noted.lock().unwrap().push(panic.to_string())));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rounds);
    tokio::spawn(async move {
        let samples = Arc::new(samples());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let round = counted.fetch_add(1, Ordering::SeqCst);
            let samples = Arc::clone(&samples);
            tokio::spawn(async move {
                if (1..ROUNDS).contains(&round) {
                    torment(&mut stream, &mut Numbers(round as u64), &samples).await
                } else {
                    // The first one must succeed for there to be a client.
                    let patience = if round == 0 { Duration::from_millis(50) } else { PATIENCE };
                    tokio::time::timeout(patience, behave(&mut stream)).await.ok().flatten()
                }
            });
        }
    });
    let mut config = ClientConfig::new(address, "main");
    config.data_connections = 1;
    config.retry = Retry::Soft { timeout: Duration::from_millis(100) };
    let client = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    let before = resident();
    let tormented = async {
        while rounds.load(Ordering::SeqCst) < ROUNDS {
            let file = Fid { ino: Ino(5), ..ROOT };
            let _ = client.lookup(ROOT, &samples::name("a")).await;
            let _ = client.getattr(file).await;
            let _ = client.unlink(ROOT, &samples::name("a")).await;
            if let Ok(file) = client.open(file, OpenMode::ReadWrite).await {
                let _ = client.read(&file, 0, 100_000).await;
            }
            let _ = client.fsync(file).await;
        }
    };
    tokio::time::timeout(PATIENCE, tormented).await.expect("the client hangs");
    let sane = async {
        loop {
            match client.getattr(ROOT).await {
                Ok(attr) if attr.value.size == 4711 => return,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, sane).await.expect("the client does not go on");
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH, "{grown} bytes");
    let _ = std::panic::take_hook();
    assert_eq!(*panics.lock().unwrap(), Vec::<String>::new());
}
