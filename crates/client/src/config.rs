//! What a client is told when it starts.

use soda_types::{ClientId, ObjectTerm, Scope};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of the server.
    pub server: String,
    pub volume: String,
    /// For people: host and mount point, shown by the server's tools.
    pub name: String,
    /// How the server recognises this client when it comes back.
    pub client_id: ClientId,
    pub cache: CacheConfig,
    /// Without [`CacheConfig::dir`]: where delayed writes that are lost are kept, at the moment of the loss, for
    /// [`recover`](crate::recover::list). `None`: nowhere.
    pub keep_lost_in: Option<PathBuf>,
    pub consistency: Consistency,
    /// Terms of its leases; `None`: as the server's policy says.
    pub lease_term: Option<ObjectTerm>,
    /// The widest leases that it takes, if the server gives such: with [`Scope::Node`] no deep ones.
    pub widest_lease: Scope,
    /// How often it asks again for a lease that others have, in place of waiting until the server says so; `None`: it waits.
    pub lease_poll: Option<Duration>,
    pub retry: Retry,
    pub write: WritePolicy,
    pub locks: Locks,
    /// Connections for file data beside the one for everything else.
    pub data_connections: usize,
    pub access: Access,
}

impl ClientConfig {
    /// The defaults, with a new random identity.
    pub fn new(server: impl Into<String>, volume: impl Into<String>) -> ClientConfig {
        ClientConfig {
            server: server.into(),
            volume: volume.into(),
            name: "libfs".into(),
            client_id: random_client_id(),
            cache: CacheConfig::default(),
            keep_lost_in: None,
            consistency: Consistency::Lease,
            lease_term: None,
            widest_lease: Scope::Subtree,
            lease_poll: None,
            retry: Retry::Hard,
            write: WritePolicy::Through,
            locks: Locks::Delegated,
            data_connections: 2,
            access: Access::ReadWrite,
        }
    }
}

/// Data of the largest write that is one record of the log, bytes: with what records weigh besides it fits into a frame
/// ([`soda_protocol::MAX_BODY`]), and the server takes it.
const LARGEST_WRITE: usize = soda_protocol::MAX_IO as usize;
/// Without a pause two clients that ask for one lease would do nothing else.
const SHORTEST_POLL: Duration = Duration::from_micros(100);

/// What a client cannot work with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "largest_write is {0} bytes: at most {LARGEST_WRITE}, or a record of the log does not fit into a message"
    )]
    LargestWrite(usize),
    #[error(
        "max_bytes and max_records are at least 1, or nothing could be delayed: use WritePolicy::Through"
    )]
    NothingMayWait,
    #[error("lease_poll is {0:?}: at least {SHORTEST_POLL:?}")]
    LeasePoll(Duration),
}

impl ClientConfig {
    /// # Errors
    /// [`ConfigError`]: a client would ask for ever, or wait for ever.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let WritePolicy::Behind(behind) = &self.write {
            if behind.largest_write > LARGEST_WRITE {
                return Err(ConfigError::LargestWrite(behind.largest_write));
            }
            if behind.max_bytes == 0 || behind.max_records == 0 {
                return Err(ConfigError::NothingMayWait);
            }
        }
        match self.lease_poll {
            Some(poll) if poll < SHORTEST_POLL => Err(ConfigError::LeasePoll(poll)),
            _ => Ok(()),
        }
    }
}

impl ClientConfig {
    /// Who cannot write, or has no leases, has nothing to delay.
    pub(crate) fn write_policy(&self) -> WritePolicy {
        match (self.access, self.consistency) {
            (Access::ReadWrite, Consistency::Lease) => self.write,
            _ => WritePolicy::Through,
        }
    }
}

impl ClientConfig {
    /// Who asks the server each time does so for locks, too.
    pub(crate) fn locks(&self) -> Locks {
        match self.consistency {
            Consistency::Lease if self.lease_term != Some(ObjectTerm::None) => self.locks,
            _ => Locks::AtServer,
        }
    }
}

impl ClientConfig {
    /// Who has no leases has no deep ones.
    pub(crate) fn widest_lease(&self) -> Scope {
        match self.consistency {
            Consistency::Lease => self.widest_lease,
            _ => Scope::Node,
        }
    }
}

/// `RandomState` is seeded by the operating system: no need of another source for a name that only must be unique.
fn random_client_id() -> ClientId {
    let mut id = [0; 16];
    for (place, half) in id.chunks_mut(8).enumerate() {
        half.copy_from_slice(&RandomState::new().hash_one(place).to_le_bytes());
    }
    ClientId(id)
}

#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Most bytes of file data in memory.
    pub memory_bytes: u64,
    /// A directory of its own on a local disk, for file data that survives a restart.
    pub dir: Option<PathBuf>,
    /// Most bytes in `dir`.
    pub dir_bytes: u64,
    /// Most bytes of metadata: names, attributes, extended attributes and targets of links. What is in use stays, beyond that.
    pub metadata_bytes: u64,
    /// Most inodes that are cached without being in use; the least recently used give their leases back.
    pub max_inodes: usize,
    /// A lease that was not used for this long is given back, at most a quarter of it later (10 s, 50 ms at least).
    pub idle: Duration,
}

impl Default for CacheConfig {
    fn default() -> CacheConfig {
        CacheConfig {
            memory_bytes: 512 << 20,
            dir: None,
            dir_bytes: 4 << 30,
            metadata_bytes: 1 << 30,
            max_inodes: 500_000,
            idle: Duration::from_secs(600),
        }
    }
}

/// When a cache may answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consistency {
    /// While a lease covers the object: one copy.
    Lease,
    /// After asking the server each time (Sprite's rule, the sSPRITE of the SODA paper): one copy, more messages.
    Verify,
    /// For this long after it was fetched (NFS's rule): stale by up to that much. Only for comparison.
    Ttl(Duration),
}

/// When the server hears of changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritePolicy {
    /// Before the operation returns.
    Through,
    /// Later, where a write lease covers what is changed.
    Behind(WriteBehind),
}

/// Who decides about file locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locks {
    /// This client, of files that nobody else locks; the server has to let it.
    Delegated,
    /// The server, each time.
    AtServer,
}

/// How far the server may be behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBehind {
    /// The oldest change is told after this time at the latest.
    pub max_age: Duration,
    /// Most bytes that wait.
    pub max_bytes: u64,
    /// Most changes that wait.
    pub max_records: usize,
    /// When so many bytes wait, or one change for each KiB of them, the server is told without anybody asking. Later means that
    /// more of what is soon overwritten or removed is never told; earlier, that it is told while programs go on. See
    /// [`WriteBehind::digest_bytes_within`].
    pub digest_bytes: u64,
    /// Larger writes go to the server at once, beside the log, bytes; 1 MiB at most. One of up to 1 MiB is one record of the log,
    /// and so seen whole whatever becomes of the log.
    pub largest_write: usize,
    pub fsync: Fsync,
    /// What the server set aside for what waits is given back when nothing was done for so long.
    pub reserve_idle: Duration,
}

/// What fsync waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// The server's disk.
    #[default]
    Server,
    /// The disk with this machine's cache directory, where that has everything that the server's disk may lack: what was
    /// done survives a power cut of either, but only this machine can tell the server of it.
    Local,
}

impl WriteBehind {
    /// The [`digest_bytes`](WriteBehind::digest_bytes) that go with so many bytes that may wait: 4 MiB, or a quarter of those if
    /// that is less, as who writes is not to wait before the server hears of it; at least 1 MiB, the largest write. A small file
    /// is some four changes, so a tree of a thousand that is removed at once is never told (PERFORMANCE, "Policies").
    pub fn digest_bytes_within(max_bytes: u64) -> u64 {
        (max_bytes / 4).clamp(1 << 20, 4 << 20)
    }

    /// The space that the server is asked to set aside for what waits, bytes: many small files take more than they hold.
    pub(crate) fn space(&self) -> u64 {
        const LEAST: u64 = 1 << 20;
        self.max_bytes.saturating_mul(4).max(LEAST)
    }
}

impl Default for WriteBehind {
    fn default() -> WriteBehind {
        let max_bytes = 64 << 20;
        WriteBehind {
            max_age: Duration::from_secs(1),
            max_bytes,
            max_records: 100_000,
            digest_bytes: WriteBehind::digest_bytes_within(max_bytes),
            largest_write: 1 << 20,
            fsync: Fsync::default(),
            reserve_idle: Duration::from_secs(30),
        }
    }
}

/// What to do while the server does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Wait for ever. Every operation can be given up at any moment by dropping its future.
    Hard,
    /// Fail with EIO after this time. A changing operation may still be carried out later.
    Soft { timeout: Duration },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    ReadWrite,
    /// Every change fails with EROFS.
    ReadOnly,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_told_long_before_who_writes_has_to_wait() {
        let within = |mib: u64| WriteBehind::digest_bytes_within(mib << 20) >> 20;
        assert_eq!([0, 1, 4, 8, 16, 64, 1024].map(within), [1, 1, 1, 2, 4, 4, 4]);
        assert_eq!(WriteBehind::default().digest_bytes, 4 << 20);
    }

    #[test]
    fn what_a_client_cannot_work_with_is_refused() {
        let plain = || ClientConfig::new("a", "b");
        let behind = |behind| ClientConfig { write: WritePolicy::Behind(behind), ..plain() };
        let delay = WriteBehind::default();
        assert_eq!((plain().validate(), behind(delay).validate()), (Ok(()), Ok(())));
        let too_large = (1 << 20) + 1;
        let refused = [
            (behind(WriteBehind { largest_write: too_large, ..delay }), ConfigError::LargestWrite(too_large)),
            (behind(WriteBehind { max_records: 0, ..delay }), ConfigError::NothingMayWait),
            (behind(WriteBehind { max_bytes: 0, ..delay }), ConfigError::NothingMayWait),
            (
                ClientConfig { lease_poll: Some(Duration::ZERO), ..plain() },
                ConfigError::LeasePoll(Duration::ZERO),
            ),
        ];
        for (config, error) in refused {
            assert_eq!(config.validate(), Err(error));
        }
    }

    #[test]
    fn identities_differ() {
        assert_ne!(ClientConfig::new("a", "b").client_id, ClientConfig::new("a", "b").client_id);
    }
}
