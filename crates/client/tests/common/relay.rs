//! Between a client and its server; looks at what the client asks, and may keep some of it back.

use soda_protocol::{Call, FrameHeader, FrameKind, HEADER_LEN, Request};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Passes,
    /// The connection breaks before the server gets it.
    Breaks,
    /// The server gets it when the relay lets go, if the connection is there then. Others pass meanwhile.
    Waits,
}

type Look = dyn Fn(&Call) -> Way + Send + Sync;

pub(crate) struct Relay {
    /// To connect to.
    pub(crate) addr: SocketAddr,
    let_go: watch::Sender<()>,
}

impl Relay {
    pub(crate) async fn before(
        server: SocketAddr,
        look: impl Fn(&Call) -> Way + Send + Sync + 'static,
    ) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let look: Arc<Look> = Arc::new(look);
        let (let_go, held) = watch::channel(());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(server).await else { continue };
                let (look, held) = (Arc::clone(&look), held.clone());
                tokio::spawn(async move {
                    let ((near_read, mut near_write), (mut far_read, far_write)) =
                        (near.into_split(), far.into_split());
                    tokio::select! {
                        () = pass_requests(&*look, &held, near_read, far_write) => {}
                        _ = tokio::io::copy(&mut far_read, &mut near_write) => {}
                    }
                });
            }
        });
        Relay { addr, let_go }
    }

    /// What waits by now gets to the server.
    pub(crate) fn let_go(&self) {
        self.let_go.send_replace(());
    }
}

/// Returns when the connection is to break, or has.
async fn pass_requests(look: &Look, held: &watch::Receiver<()>, mut from: OwnedReadHalf, to: OwnedWriteHalf) {
    let to = Arc::new(Mutex::new(to));
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
        let whole = [&head[..], &rest].concat();
        let mut held = held.clone();
        held.mark_unchanged();
        let way = match frame.kind {
            FrameKind::Request => look(&frame.message::<Request>().unwrap().call),
            _ => Way::Passes,
        };
        match way {
            Way::Breaks => return,
            Way::Passes if to.lock().await.write_all(&whole).await.is_err() => return,
            Way::Passes => {}
            Way::Waits => {
                let to = Arc::clone(&to);
                tokio::spawn(async move {
                    if held.changed().await.is_ok() {
                        let _ = to.lock().await.write_all(&whole).await;
                    }
                });
            }
        }
    }
}
