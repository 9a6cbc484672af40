//! Ports for servers that a test starts.

use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below those that the kernel gives to connections (32768 and up): nobody has one by chance, and nobody who connects to one is
/// answered by himself.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static TAKEN: AtomicU16 = AtomicU16::new(0);

/// A port of the loopback where nobody listens, another one each time.
///
/// It is looked for by connecting, not by listening: a listener would be inherited by whatever another test starts in that
/// moment, and the port be taken for as long as that takes.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    // Processes begin at different places.
    let offset = (std::process::id() % u32::from(COUNT)) as u16;
    let candidates = (0..COUNT).map(|_| {
        let number = u32::from(offset) + u32::from(TAKEN.fetch_add(1, Ordering::Relaxed)) * 7;
        FIRST + (number % u32::from(COUNT)) as u16
    });
    let is_free = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err();
    match candidates.into_iter().find(is_free) {
        Some(port) => port,
        None => panic!("no free port from {FIRST} on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_port_is_given_once_and_nobody_listens_there() {
        let (first, second) = (free_port(), free_port());
        assert_ne!(first, second);
        for port in [first, second] {
            assert!((FIRST..FIRST + COUNT).contains(&port));
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
