//! A server that is far away: what goes to it and what comes from it takes its time, and round trips are counted.

use bytes::{Bytes, BytesMut};
use soda_protocol::{Call, Failure, Frame, FrameHeader, FrameKind, HEADER_LEN, Lsn, Reply, Request};
use soda_types::{Errno, FsError};
use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// A network that delays and takes any amount at once.
pub(crate) struct Far {
    /// To connect to.
    pub(crate) addr: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    /// Grows when all connections break.
    cuts: watch::Sender<u64>,
}

/// Of a question that is asked when answers after so many round trips are known, the answer is one later: so the count is how
/// many had to follow each other, whatever time each of them takes.
#[derive(Debug, Default)]
struct Seen {
    trips: u64,
    digests: u64,
    /// Digests without an answer, and the most there have been.
    open: u64,
    most_open: u64,
    /// The digest that does not get to the server, counted from here on, and what the client hears instead.
    refused: Option<(u64, Refusal)>,
}

#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// Its first record cannot be applied.
    Record(Errno),
    Busy,
}

impl Refusal {
    fn failure(self, lsn: Lsn) -> Failure {
        match self {
            Refusal::Record(errno) => Failure::Digest { lsn, error: FsError::from(errno) },
            Refusal::Busy => Failure::Busy("much to do".to_owned()),
        }
    }
}

struct Passing {
    frame: Vec<u8>,
    due: Instant,
    /// Of an answer.
    trips: Option<u64>,
}

/// By tag: round trips before it was asked, and whether it is a digest.
type Asked = Arc<Mutex<HashMap<u64, (u64, bool)>>>;

impl Far {
    pub(crate) async fn before(server: SocketAddr, round_trip: Duration) -> Far {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let cuts = watch::Sender::new(0);
        let far = Far { addr, seen: Arc::clone(&seen), cuts: cuts.clone() };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(server).await else { continue };
                near.set_nodelay(true).unwrap();
                far.set_nodelay(true).unwrap();
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                let asked = Asked::default();
                let one_way = round_trip / 2;
                let (to_far, passing_to_far) = mpsc::unbounded_channel();
                let (to_near, passing_to_near) = mpsc::unbounded_channel();
                for (from, queue, back) in
                    [(near_read, to_far, to_near.clone()), (far_read, to_near.clone(), to_near)]
                {
                    let taking = take(from, queue, back, one_way, Arc::clone(&seen), Arc::clone(&asked));
                    tokio::spawn(until_cut(taking, cuts.subscribe()));
                }
                for (to, passing) in [(far_write, passing_to_far), (near_write, passing_to_near)] {
                    tokio::spawn(until_cut(pass(to, passing, Arc::clone(&seen)), cuts.subscribe()));
                }
            }
        });
        far
    }

    /// Round trips that had to follow each other.
    pub(crate) fn trips(&self) -> u64 {
        self.seen.lock().unwrap().trips
    }

    pub(crate) fn digests(&self) -> u64 {
        self.seen.lock().unwrap().digests
    }

    /// All connections break; new ones come up.
    pub(crate) fn cut(&self) {
        self.seen.lock().unwrap().open = 0;
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The digest after so many others does not get to the server: the client is told that it was refused.
    pub(crate) fn refuse(&self, after: u64, errno: Errno) {
        self.seen.lock().unwrap().refused = Some((after, Refusal::Record(errno)));
    }

    /// As [`Far::refuse`], but it may come again.
    pub(crate) fn turn_away(&self, after: u64) {
        self.seen.lock().unwrap().refused = Some((after, Refusal::Busy));
    }

    /// Whether the digest that was to be refused or turned away has been.
    pub(crate) fn has_refused(&self) -> bool {
        self.seen.lock().unwrap().refused.is_none()
    }

    /// Digests without an answer.
    pub(crate) fn open(&self) -> u64 {
        self.seen.lock().unwrap().open
    }

    /// Most digests that were under way at once.
    pub(crate) fn most_open(&self) -> u64 {
        self.seen.lock().unwrap().most_open
    }
}

async fn until_cut(work: impl Future<Output = ()>, mut cuts: watch::Receiver<u64>) {
    cuts.mark_unchanged();
    tokio::select! {
        () = work => {}
        _ = cuts.changed() => {}
    }
}

/// `back`: to where the frames come from.
async fn take(
    mut from: OwnedReadHalf,
    queue: mpsc::UnboundedSender<Passing>,
    back: mpsc::UnboundedSender<Passing>,
    one_way: Duration,
    seen: Arc<Mutex<Seen>>,
    asked: Asked,
) {
    loop {
        let mut frame = vec![0; HEADER_LEN];
        if from.read_exact(&mut frame).await.is_err() {
            return;
        }
        let header = FrameHeader::parse(frame[..].try_into().unwrap()).unwrap();
        frame.resize(HEADER_LEN + header.rest_len(), 0);
        if from.read_exact(&mut frame[HEADER_LEN..]).await.is_err() {
            return;
        }
        let due = Instant::now() + one_way;
        let whole = header.finish(frame[HEADER_LEN..].to_vec().into()).unwrap();
        let mut trips = None;
        match whole.kind {
            FrameKind::Request => {
                let call = whole.message::<Request>().unwrap().call;
                let digest = matches!(call, Call::Digest { .. });
                let mut seen = seen.lock().unwrap();
                if let (Call::Digest { records, .. }, Some((after, refusal))) = (&call, &mut seen.refused) {
                    if *after == 0 {
                        let result = Err(refusal.failure(records[0].lsn));
                        seen.refused = None;
                        let reply = Reply { result, grants: Vec::new(), covered: Vec::new() };
                        let reply = Frame::new(FrameKind::Reply, whole.tag, &reply, Bytes::new()).unwrap();
                        let mut frame = BytesMut::new();
                        reply.encode_head(&mut frame);
                        let _ = back.send(Passing { frame: frame.to_vec(), due: due + one_way, trips: None });
                        continue;
                    }
                    *after -= 1;
                }
                seen.digests += u64::from(digest);
                seen.open += u64::from(digest);
                seen.most_open = seen.most_open.max(seen.open);
                asked.lock().unwrap().insert(whole.tag, (seen.trips, digest));
            }
            FrameKind::Reply => {
                if let Some((before, digest)) = asked.lock().unwrap().remove(&whole.tag) {
                    trips = Some(before + 1);
                    let mut seen = seen.lock().unwrap();
                    seen.open = seen.open.saturating_sub(u64::from(digest));
                }
            }
            _ => {}
        }
        if queue.send(Passing { frame, due, trips }).is_err() {
            return;
        }
    }
}

async fn pass(mut to: OwnedWriteHalf, mut passing: mpsc::UnboundedReceiver<Passing>, seen: Arc<Mutex<Seen>>) {
    while let Some(Passing { frame, due, trips }) = passing.recv().await {
        tokio::time::sleep_until(due).await;
        if let Some(trips) = trips {
            let mut seen = seen.lock().unwrap();
            seen.trips = seen.trips.max(trips);
        }
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}
