//! Places at which a test can have the server die ([`soda_crash`]).

pub use soda_crash::is_next;

/// Every crash point of the storage, volume and server crates.
pub const ALL: &[&str] = &[
    "format.begun",
    "format.written",
    "meta.commit.before",
    "meta.commit.after",
    "meta.sync.before",
    "meta.sync.after",
    "segment.created",
    "segment.half-written",
    "segment.appended",
    "segment.synced",
    "segment.punched",
    "segment.deleted",
    "volume.created",
    "volume.run-begun",
    "volume.inodes-reserved",
    "volume.staged",
    "volume.commit.before",
    "volume.commit.after",
    "volume.sync.data-done",
    "volume.sync.done",
    "volume.release.punched",
    "volume.release.recorded",
    "volume.reclaim.step",
    "volume.reclaim.done",
    "volume.swept",
    "volume.redone",
    "server.started",
    "server.round-data-synced",
    "server.session-stored",
    "server.session-ended",
    "server.change-committed",
    "server.failure-stored",
    "server.orphan-dropped",
    "server.session-resumed",
    "server.reclaim-taken",
    "server.reclaim-last",
    "server.grace-ended",
    "server.lock-taken",
    "server.locks-freed",
    "server.goodbye",
    "server.reserved",
    "server.digest-staged",
    "server.digest-admitted",
    "server.digest-applied",
    "server.digest-committed",
];

/// Passes a crash point.
pub fn point(name: &'static str) {
    soda_crash::point(ALL, name);
}
