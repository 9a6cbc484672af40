//! Distance: a proxy of TCP connections that hands on every byte a while later.

use crate::LabError;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Listens on a port of loopback that the system chooses, until it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Proxy {
    /// To `server`; each way takes half of `round_trip`.
    pub(crate) fn start(server: &str, round_trip: Duration) -> Result<Proxy, LabError> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(LabError::io("loopback"))?;
        let address = listener.local_addr().map_err(LabError::io("loopback"))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, server) = (is_over.clone(), server.to_owned());
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else { continue };
                for (from, to) in [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))] {
                    if let (Ok(from), Ok(to)) = (from, to) {
                        carry(from, to, round_trip / 2);
                    }
                }
            }
        });
        Ok(Proxy { address, is_over, listener: Some(thread) })
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }
}

/// One direction: a thread that reads and notes when, one that writes when it is time.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let _ = to.set_nodelay(true);
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the listener up.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_whole_in_order_and_late() {
        let echo = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = echo.local_addr().expect("known").to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = echo.accept().expect("a client");
            let mut copy = stream.try_clone().expect("cloned");
            std::io::copy(&mut stream, &mut copy).expect("echoed");
            copy.shutdown(Shutdown::Write).expect("closed");
        });
        let proxy = Proxy::start(&address, Duration::from_millis(100)).expect("listens");
        let mut stream = TcpStream::connect(proxy.address()).expect("connected");
        let bytes: Vec<u8> = (0..500_000_u32).map(|n| (n % 251) as u8).collect();
        let began = Instant::now();
        let mut back = stream.try_clone().expect("cloned");
        let reader = std::thread::spawn(move || {
            let mut found = Vec::new();
            back.read_to_end(&mut found).expect("read");
            found
        });
        stream.write_all(&bytes).expect("sent");
        stream.shutdown(Shutdown::Write).expect("closed");
        assert!(reader.join().expect("read") == bytes, "the bytes came back changed");
        assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
    }
}
