//! `HOST:PORT/VOLUME`: what to mount.

use soda_protocol::DEFAULT_PORT;
use std::fmt;
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

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
