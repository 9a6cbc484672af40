//! New connections: the limit, the hello, and who serves them from then on.

use crate::admin;
use crate::clock;
use crate::hello::{self, Accepted, Room};
use crate::link::Lane;
use crate::net::{Connection, ReadError};
use crate::respond::{self, Leases};
use crate::served::Served;
use crate::shared::Shared;
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Bytes of a hello, generously.
const HELLO_MAX: usize = 16 << 10;
/// Bytes of any other frame.
const FRAME_MAX: usize = soda_protocol::MAX_BODY as usize + soda_protocol::MAX_PAYLOAD as usize;

/// Accepts connections until the task is dropped.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => accept(&shared, stream, peer),
            Err(error) => {
                // Out of descriptors, most likely: it gets better when connections end.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    if let Err(error) = set_options(&stream) {
        tracing::debug!(%peer, %error, "options of a connection could not be set");
    }
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    let shared = shared.clone();
    shared.metrics.connections.add(1);
    tokio::spawn(async move {
        let connection = Connection::new(shared.new_connection(), stream, HELLO_MAX, &shared.buffers);
        let outbox = connection.outbox().clone();
        let room = if number < shared.config.limits.connections { Room::Free } else { Room::Full };
        let error = serve_connection(&shared, connection, peer, room).await;
        match &error {
            ReadError::Closed => tracing::debug!(%peer, "connection ended"),
            ReadError::Io(error) => tracing::debug!(%peer, %error, "connection lost"),
            ReadError::Frame(_) | ReadError::TooLong(_) => {
                shared.metrics.bad_frames.add(1);
                if shared.troubles.bad_frames.may_say(clock::monotonic()) {
                    tracing::warn!(%peer, %error, "connection ended: these are no frames of ours");
                }
            }
        }
        outbox.close();
        shared.connections.fetch_sub(1, Ordering::Relaxed);
    });
}

/// No delay; and a machine that vanished without a word is noticed in two minutes (one that is frozen still answers).
fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(20))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

async fn serve_connection(
    shared: &Arc<Shared>,
    mut connection: Connection,
    peer: SocketAddr,
    room: Room,
) -> ReadError {
    let outbox = connection.outbox().clone();
    let frame = match tokio::time::timeout(shared.config.limits.hello, connection.next_frame()).await {
        Ok(Ok(frame)) => frame,
        Ok(Err(error)) => return error,
        Err(_) => {
            tracing::debug!(%peer, "no hello in time");
            return ReadError::Closed;
        }
    };
    let tag = frame.tag;
    let accepted = hello::answer(shared, &connection, &frame, peer, room).await;
    match accepted {
        Ok(Accepted::Session(link)) => {
            outbox.flush();
            connection.allow_frames_of(FRAME_MAX);
            let unsent_max = shared.config.limits.unsent_bytes;
            let (queue, work) = mpsc::unbounded_channel();
            let served = Served { shared: shared.clone(), link: link.clone() };
            let worker = tokio::spawn(served.clone().work(work));
            // Answers to recalls come on the control connection, whatever comes before them.
            let long = (link.lane == Lane::Data).then_some(&link.share);
            let handle = |frame, held| served.handle(frame, held, &queue);
            let error = connection.serve(unsent_max, &link.backlog, long, handle).await;
            drop(queue);
            // What it is at may leave something behind that is to be forgotten with the connection.
            let _ = worker.await;
            served.ended();
            error
        }
        Ok(Accepted::Admin) => {
            outbox.flush();
            admin::serve(shared.clone(), connection).await
        }
        Err(failure) => {
            if shared.troubles.refused.may_say(clock::monotonic()) {
                tracing::info!(%peer, %failure, "connection refused");
            }
            shared.metrics.connections_refused.add(1);
            outbox.push(respond::reply(tag, &respond::encode(&Err(failure)), Leases::NONE, Bytes::new()));
            outbox.flush();
            // Lets the refusal arrive: the peer closes when it has read it.
            let wait = tokio::time::timeout(shared.config.limits.hello, connection.next_frame());
            wait.await.map_or(ReadError::Closed, |frame| frame.err().unwrap_or(ReadError::Closed))
        }
    }
}
