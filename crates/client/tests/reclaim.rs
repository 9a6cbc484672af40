//! What a client holds, told to a server that has restarted in more than one message.

use crate::common::*;
use soda_client::{Client, NoKernel, OpenMode};
use soda_protocol::{Call, FrameHeader, FrameKind, HEADER_LEN, ReclaimStep, Request};
use soda_types::{Fid, FileKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Leases in one message.
const BATCH: usize = 8192;
const FILES: usize = BATCH + 800;

/// Between a client and its server; looks at what the client asks.
#[derive(Default)]
struct Relay {
    /// How many leases each message claimed, and which one it was.
    claims: Mutex<Vec<(usize, ReclaimStep)>>,
    /// Where so many claims have been seen, the connection breaks before the server gets the last one.
    breaks_at: Mutex<Option<usize>>,
}

impl Relay {
    /// The address to connect to.
    async fn before(server: SocketAddr) -> (Arc<Relay>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let relay = Arc::new(Relay::default());
        let all = Arc::clone(&relay);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(server).await else { continue };
                let relay = Arc::clone(&relay);
                tokio::spawn(async move {
                    let ((near_read, mut near_write), (mut far_read, far_write)) =
                        (near.into_split(), far.into_split());
                    tokio::select! {
                        () = relay.pass_requests(near_read, far_write) => {}
                        _ = tokio::io::copy(&mut far_read, &mut near_write) => {}
                    }
                });
            }
        });
        (all, addr)
    }

    /// Returns when the connection is to break, or has.
    async fn pass_requests(&self, mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin) {
        loop {
            let mut head = [0; HEADER_LEN];
            if from.read_exact(&mut head).await.is_err() {
                return;
            }
            let header = FrameHeader::parse(&head).unwrap();
            let mut rest = vec![0; header.rest_len()];
            if from.read_exact(&mut rest).await.is_err() {
                return;
            }
            let frame = header.finish(rest.clone().into()).unwrap();
            if frame.kind == FrameKind::Request
                && let Request { call: Call::Reclaim(reclaim), .. } = frame.message().unwrap()
            {
                let mut claims = self.claims.lock().unwrap();
                claims.push((reclaim.leases.len(), reclaim.step));
                if *self.breaks_at.lock().unwrap() == Some(claims.len()) {
                    return;
                }
            }
            if to.write_all(&[&head[..], &rest].concat()).await.is_err() {
                return;
            }
        }
    }
}

/// A client that holds a lease on each of many files.
async fn holder(server: SocketAddr, cell: &Cell) -> (Arc<Client>, Vec<Fid>) {
    let mut config = cell.client_config();
    config.server = server.to_string();
    let client = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                let mut fids = Vec::new();
                for number in (task..FILES).step_by(8) {
                    let new = new_node(FileKind::File);
                    let entry =
                        client.create(client.root(), &name(&format!("f{number}")), new).await.unwrap();
                    fids.push(entry.node.unwrap().fid);
                }
                fids
            })
        })
        .collect();
    let mut fids = Vec::new();
    for task in tasks {
        fids.extend(task.await.unwrap());
    }
    fids.sort();
    (client, fids)
}

/// Everything is served from the cache, and not any more once somebody else has changed it.
async fn all_is_held(cell: &Cell, client: &Arc<Client>, fids: &[Fid]) {
    assert_eq!(client.stats().count("sessions_lost") + client.stats().count("reclaim_refused"), 0);
    for fid in fids {
        assert_eq!(at_once(client.getattr(*fid)).unwrap().value.size, 0);
    }
    let other = cell.client().await;
    for fid in fids.iter().step_by(100).chain(fids.last()) {
        let file = other.open(*fid, OpenMode::ReadWrite).await.unwrap();
        write(&other, &file, 0, "new").await;
        assert_eq!(
            client.getattr(*fid).await.unwrap().value.size,
            3,
            "{fid}: the server did not know of the lease"
        );
    }
}

/// What the client claims of a server that restarts.
async fn restart(cell: &mut Cell, relay: &Relay, client: &Arc<Client>) -> Vec<(usize, ReclaimStep)> {
    cell.restart();
    // Waits until all is claimed.
    drop(file(client, "after", "").await);
    std::mem::take(&mut *relay.claims.lock().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_leases_than_fit_a_message_are_reclaimed_in_several() {
    let mut cell = Cell::with_term(Duration::from_secs(60));
    let (relay, addr) = Relay::before(cell.addr).await;
    let (client, fids) = holder(addr, &cell).await;
    let held = client.leases().len();
    assert!(held >= FILES, "{held}");
    let claims = restart(&mut cell, &relay, &client).await;
    let more = ReclaimStep::More;
    assert_eq!(claims, [(BATCH, more), (held - BATCH, more), (0, ReclaimStep::Last)]);
    assert_eq!(client.stats().count("reclaimed"), held as u64);
    all_is_held(&cell, &client, &fids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reclaim_whose_connection_breaks_between_messages_begins_again() {
    let mut cell = Cell::with_term(Duration::from_secs(60));
    let (relay, addr) = Relay::before(cell.addr).await;
    let (client, fids) = holder(addr, &cell).await;
    let held = client.leases().len();
    *relay.breaks_at.lock().unwrap() = Some(2);
    let claims = restart(&mut cell, &relay, &client).await;
    let [first, second, last] =
        [(BATCH, ReclaimStep::More), (held - BATCH, ReclaimStep::More), (0, ReclaimStep::Last)];
    assert_eq!(claims, [first, second, first, second, last]);
    all_is_held(&cell, &client, &fids).await;
}
