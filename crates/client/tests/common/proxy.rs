//! A bad network between a client and its server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weather {
    Fine,
    /// Requests arrive, replies do not.
    RepliesLost,
    /// Nothing passes; connections stay open.
    Silence,
    /// Connections break and none comes up.
    Cut,
}

pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    weather: watch::Sender<Weather>,
    held_back: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) async fn before(server: SocketAddr) -> Arc<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let weather = watch::Sender::new(Weather::Fine);
        let receiver = weather.subscribe();
        let held_back = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&held_back);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *receiver.borrow() == Weather::Cut {
                    continue;
                }
                let Ok(far) = TcpStream::connect(server).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                let (requests, replies) = (Arc::default(), Arc::clone(&counter));
                tokio::spawn(pass(near_read, far_write, receiver.clone(), Weather::Silence, requests));
                tokio::spawn(pass(far_read, near_write, receiver.clone(), Weather::RepliesLost, replies));
            }
        });
        Arc::new(Proxy { addr, weather, held_back })
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// So often something of the server's has come that does not pass.
    pub(crate) fn held_back(&self) -> u64 {
        self.held_back.load(Ordering::SeqCst)
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    stopped_by: Weather,
    held_back: Arc<AtomicU64>,
) {
    let mut buffer = vec![0u8; 64 << 10];
    // What came in bad weather: lost when the connection is cut.
    let mut held = Vec::new();
    loop {
        let now = *weather.borrow_and_update();
        if now == Weather::Cut {
            return;
        }
        if now != stopped_by && now != Weather::Silence && !held.is_empty() {
            if to.write_all(&held).await.is_err() {
                return;
            }
            held.clear();
        }
        tokio::select! {
            biased;
            changed = weather.changed() => if changed.is_err() { return },
            read = from.read(&mut buffer) => {
                let Ok(len @ 1..) = read else { return };
                held.extend_from_slice(&buffer[..len]);
                let now = *weather.borrow();
                if now == stopped_by || now == Weather::Silence {
                    held_back.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
}
