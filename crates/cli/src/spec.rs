//! `HOST:PORT/VOLUME`: what to mount; `HOST:PORT`: which server to ask.

use clap::Args;
use soda_protocol::DEFAULT_PORT;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Spec {
    /// `host:port`, an IPv6 address in brackets.
    pub server: String,
    pub volume: String,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Spec, String> {
        let bad = || format!("`{text}` is not HOST:PORT/VOLUME, such as 127.0.0.1:{DEFAULT_PORT}/main");
        let (server, volume) = text.split_once('/').ok_or_else(bad)?;
        if volume.is_empty() || volume.contains('/') {
            return Err(bad());
        }
        Ok(Spec { server: parse_server(server).ok_or_else(bad)?, volume: volume.to_string() })
    }
}

/// A server on a command line.
#[derive(Args, Debug)]
pub(crate) struct ServerArg {
    /// Which server to ask [default: that of the mounts here; without any, 127.0.0.1:7632]
    #[arg(long, value_name = "HOST:PORT")]
    pub server: Option<String>,
}

/// `HOST:PORT`, or `HOST` with the usual port.
pub(crate) fn parse_server(text: &str) -> Option<String> {
    let after_host = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1,
        None => &text[text.find(':').unwrap_or(text.len())..],
    };
    if text.is_empty() || text.starts_with(':') {
        return None;
    }
    match after_host.strip_prefix(':') {
        Some(port) => port.parse::<u16>().ok().map(|_| text.to_string()),
        None if after_host.is_empty() => Some(format!("{text}:{DEFAULT_PORT}")),
        None => None,
    }
}

/// Where a server listens: as [`parse_server`], a bare IPv6 address too. Names are looked up; an IPv4 address goes first.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, DEFAULT_PORT));
    }
    let server = parse_server(text).ok_or("not ADDR:PORT, such as 127.0.0.1:7632")?;
    // A system's resolver takes 18890 for 0.0.73.202 (inet_aton(3)).
    let host = server.rsplit_once(':').map_or(&*server, |(host, _)| host);
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number && host.parse::<IpAddr>().is_err() {
        return Err("not ADDR:PORT, such as 127.0.0.1:7632".into());
    }
    let found: Vec<SocketAddr> = server.to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| "the name has no address".to_owned())
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_listen() {
        let listen = |text| parse_listen(text).map(|address| address.to_string());
        for (given, meant) in [
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("127.0.0.2", "127.0.0.2:7632"),
            ("[::1]:7", "[::1]:7"),
            ("[::1]", "[::1]:7632"),
            ("::1", "[::1]:7632"),
            ("0.0.0.0:0", "0.0.0.0:0"),
        ] {
            assert_eq!(listen(given).as_deref(), Ok(meant));
        }
        for bad in ["", ":7", "127.0.0.1:port", "not an address", "127.0.0.1:70000", "18890", "127.1:7"] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn specs_are_read() {
        let spec: Spec = "127.0.0.1:7000/main".parse().unwrap();
        assert_eq!((spec.server.as_str(), spec.volume.as_str()), ("127.0.0.1:7000", "main"));
        assert_eq!("host/main".parse::<Spec>().unwrap().server, format!("host:{DEFAULT_PORT}"));
        assert_eq!("[::1]:7/v".parse::<Spec>().unwrap().server, "[::1]:7");
        for bad in ["host:7", "host:7/", "host:port/v", ":7/v", "host:7/a/b", "/v", "::1:7/v"] {
            assert!(bad.parse::<Spec>().is_err(), "{bad}");
        }
    }
}
