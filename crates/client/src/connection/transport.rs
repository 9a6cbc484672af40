//! The seam between the client and the network.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};

/// A connected byte stream, in two halves.
pub struct Stream {
    pub read: Box<dyn AsyncRead + Send + Unpin>,
    pub write: Box<dyn AsyncWrite + Send + Unpin>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stream")
    }
}

/// How connections are made. Tests bring pipes.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Connects to `host:port`. Of a host that nobody knows the error is [`io::ErrorKind::NotFound`].
    fn connect<'a>(
        &'a self,
        server: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'a>>;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct TcpTransport;

impl Transport for TcpTransport {
    fn connect<'a>(
        &'a self,
        server: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'a>> {
        Box::pin(async move {
            let unknown = |error| io::Error::new(io::ErrorKind::NotFound, error);
            let addresses: Vec<SocketAddr> = lookup_host(server).await.map_err(unknown)?.collect();
            let stream = TcpStream::connect(&addresses[..]).await?;
            if is_with_itself(&stream) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            // Every frame is a whole message: nothing is gained by waiting for more.
            stream.set_nodelay(true)?;
            detect_dead_peer(&stream);
            let (read, write) = stream.into_split();
            Ok(Stream { read: Box::new(read), write: Box::new(write) })
        })
    }
}

/// Where nobody listens on a port that the kernel also gives to connections, TCP can connect a socket to itself ("simultaneous
/// open", RFC 9293, section 3.5).
fn is_with_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

/// A peer that vanished without a word is noticed by unacknowledged bytes and by keep-alives; both are only a help.
fn detect_dead_peer(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, std::time::Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepintvl(stream, std::time::Duration::from_secs(2));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
    let _ = sockopt::set_tcp_user_timeout(stream, 10_000);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn a_host_that_nobody_knows_is_not_found() {
        // Without a port it is not even asked for.
        let error = TcpTransport.connect("nowhere").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        let error = TcpTransport.connect("127.0.0.1:1").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    }

    #[tokio::test]
    async fn a_connection_with_itself_is_none() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let here = socket.local_addr().unwrap();
        assert!(is_with_itself(&socket.connect(here).await.unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(!is_with_itself(&other));
    }
}
