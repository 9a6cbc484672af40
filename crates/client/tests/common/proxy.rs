//! A bad network between a client and its server.

use std::net::SocketAddr;
use std::sync::Arc;
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
}

impl Proxy {
    pub(crate) async fn before(server: SocketAddr) -> Arc<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let weather = watch::Sender::new(Weather::Fine);
        let receiver = weather.subscribe();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *receiver.borrow() == Weather::Cut {
                    continue;
                }
                let Ok(far) = TcpStream::connect(server).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(near_read, far_write, receiver.clone(), Weather::Silence));
                tokio::spawn(pass(far_read, near_write, receiver.clone(), Weather::RepliesLost));
            }
        });
        Arc::new(Proxy { addr, weather })
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    stopped_by: Weather,
) {
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let passes = |weather: Weather| weather != stopped_by && weather != Weather::Silence;
        let now = *weather.borrow_and_update();
        if now == Weather::Cut {
            return;
        }
        if !passes(now) {
            if weather.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            changed = weather.changed() => if changed.is_err() { return },
            read = from.read(&mut buffer) => {
                let Ok(len) = read else { return };
                // What was read just before the weather turned is lost, too, when it is cut.
                let mut turned = weather.clone();
                if len == 0 { return }
                while !passes(*turned.borrow_and_update()) {
                    if *turned.borrow() == Weather::Cut || turned.changed().await.is_err() {
                        return;
                    }
                }
                if *turned.borrow() == Weather::Cut || to.write_all(&buffer[..len]).await.is_err() {
                    return;
                }
            }
        }
    }
}
