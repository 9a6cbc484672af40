//! What a server is told at its start.

use crate::rounds::BootId;
use soda_lease::table::{BackOff, DeepLeases, ObjectTerm, WriteLeases};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Everything a server is told at its start. [`ServerConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Made when nothing is there.
    pub data_dir: PathBuf,
    /// Port 0 takes a free one; see [`crate::RunningServer::local_addr`].
    pub listen: SocketAddr,
    /// Where Prometheus may ask for `/metrics`; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    pub exposure: Exposure,
    /// The session lease: how long a silent client's leases stand in the way of others.
    pub term: Duration,
    /// How long after a start only reclaims are taken, counted from the start; ends early when every known session is
    /// back. At least the term of the run before.
    pub grace: Duration,
    /// Time-out of leases on single objects.
    pub object_term: ObjectTerm,
    /// The same for single volumes, by name.
    pub volume_terms: BTreeMap<String, ObjectTerm>,
    pub write_leases: WriteLeases,
    pub equation_8: Equation8,
    /// Whether, and for how long, a write lease that was recalled is not given anew; `None`: from a hundredth of the term up to
    /// all of it, and not at all without `equation_8`.
    pub back_off: Option<BackOff>,
    /// Whether one lease may cover a whole subtree, for clients that take such leases.
    pub deep_leases: DeepLeases,
    /// An expired session that nobody was in conflict with is forgotten after this time.
    pub courtesy: Duration,
    /// Memory for caches, bytes.
    pub cache: CacheSizes,
    /// What was changed without a `Sync` is made durable after this time at the latest.
    pub sync_interval: Duration,
    /// What a former run wrote under another one, and had not synced, may be gone.
    pub boot_id: Option<BootId>,
    /// Moves what versions and inode numbers of a run begin with (`VolumeConfig::branch`); `None`: by chance.
    pub branch: Option<u64>,
    /// Free bytes of the data directory's file system that clients cannot fill.
    pub reserve: u64,
    /// What the volume may hold, bytes; `None`: what the disk has room for ([`soda_volume::VolumeConfig::quota`]).
    pub quota: Option<u64>,
    pub limits: Limits,
    /// Threads that serve connections. Storage is read and written on all but two of them, so a few more than processors.
    pub threads: usize,
}

/// Who may connect, as long as connections are not authenticated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exposure {
    /// Only addresses of this machine are listened on.
    LoopbackOnly,
    /// Any address: whoever reaches the port can read and change everything (`--insecure`).
    Insecure,
}

/// Whether leases are withheld where they cost more than they save: where caches are asked back more often than they answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Equation8 {
    Off,
    On,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSizes {
    /// Blocks of the metadata engine, bytes.
    pub metadata: u64,
    /// File data that was read lately, bytes.
    pub data: u64,
}

/// Bounds on what clients can make the server hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    pub connections: usize,
    /// Sessions, also of clients that are away. At the limit that one makes room which has been away for the longest, if its
    /// lease has run out.
    pub sessions: usize,
    /// Changing operations in flight for one session.
    pub slots: u16,
    /// Requests of one connection that wait for something; more are answered `Busy`.
    pub waiting_per_connection: usize,
    /// Bytes of requests that were read and have no answer yet, of all sessions together; at least 16 MiB. Beyond, no more of
    /// what is long is taken. As much as the cache of file data has, and many times what a disk in good order leaves waiting:
    /// a hundred clients beside it have one digest of a MiB there each.
    pub request_bytes: u64,
    /// Bytes that were read and wait to be looked at, or wait for peers that do not read, of all connections together. Beyond,
    /// each may have 64 KiB of both.
    pub buffer_bytes: u64,
    /// Bytes queued for a peer that does not read; no more of its requests are read above it.
    pub unsent_bytes: usize,
    /// Time for a new connection to say hello.
    pub hello: Duration,
}

impl ServerConfig {
    pub fn new(data_dir: impl Into<PathBuf>) -> ServerConfig {
        let term = Duration::from_secs(10);
        ServerConfig {
            data_dir: data_dir.into(),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), soda_protocol::DEFAULT_PORT),
            metrics: None,
            exposure: Exposure::LoopbackOnly,
            term,
            grace: term + Duration::from_secs(2),
            object_term: ObjectTerm::Session,
            volume_terms: BTreeMap::new(),
            write_leases: WriteLeases::Grant,
            equation_8: Equation8::On,
            back_off: None,
            deep_leases: DeepLeases::DEFAULT_ON,
            courtesy: Duration::from_secs(24 * 3600),
            cache: CacheSizes { metadata: 128 << 20, data: 256 << 20 },
            sync_interval: Duration::from_secs(1),
            boot_id: BootId::of_this_machine(),
            branch: None,
            reserve: 64 << 20,
            quota: None,
            limits: Limits::default(),
            threads: std::thread::available_parallelism().map_or(6, |cores| cores.get() * 2 + 2).max(6),
        }
    }

    /// The term, with a grace period that fits it.
    pub fn with_term(mut self, term: Duration) -> ServerConfig {
        self.term = term;
        self.grace = term.saturating_add(term / 5);
        self
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 8192,
            sessions: 16_384,
            slots: 64,
            waiting_per_connection: 4096,
            request_bytes: 256 << 20,
            buffer_bytes: 512 << 20,
            unsent_bytes: 16 << 20,
            hello: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 36
    #[test]
    fn a_restarted_server_waits_twelve_seconds_unless_it_is_told_otherwise() {
        let config = ServerConfig::new("/data");
        assert_eq!((config.term, config.grace), (Duration::from_secs(10), Duration::from_secs(12)));
    }

    #[test]
    fn no_term_is_too_long_to_be_counted_with() {
        assert_eq!(ServerConfig::new("/data").with_term(Duration::MAX).grace, Duration::MAX);
    }
}
