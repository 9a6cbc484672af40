//! What `soda status` and `soda lease` show of a client.

use crate::inner::{Inner, Phase};
use serde::{Deserialize, Serialize};
use soda_lease::holder::HeldState;
use soda_types::{Fid, Grant, InUse, SessionId};
use std::time::Duration;

/// A lease that this client holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldLease {
    pub grant: Grant,
    /// What is left of it; zero: run out, may come back with the session.
    pub left: Duration,
    /// How often the caches were used under it since the last recall.
    pub uses: u32,
    /// Whether the server has asked for it.
    pub recalling: bool,
    pub in_use: InUse,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionView {
    pub server: String,
    pub volume: String,
    pub session: Option<SessionId>,
    pub standing: ClientStanding,
    /// What is left of the session's lease.
    pub left: Duration,
    pub connections: usize,
    /// Requests without a reply.
    pub waiting: usize,
    pub leases: usize,
    pub cached_inodes: usize,
    pub cached_bytes: u64,
    pub open_files: usize,
    pub locks: usize,
    /// Inodes with changes that are not known to be on the server's disk.
    pub unsynced: usize,
    pub backlog: BacklogView,
}

/// What the server has not heard of yet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct BacklogView {
    /// Changes, and what they weigh in bytes.
    pub records: u64,
    pub bytes: u64,
    /// How long the oldest has been waiting.
    pub age: Duration,
    /// Changes that the server has applied and may lose in a power cut; they are kept here until it cannot.
    pub not_durable: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClientStanding {
    Connected,
    Disconnected,
    Closed,
}

pub(crate) fn leases(inner: &Inner) -> Vec<HeldLease> {
    let now = inner.now();
    let mut state = crate::lock(&inner.state);
    let held = state.holder.snapshot(now);
    let mut opens = |fid: Fid| state.existing(fid).map_or(0, |inode| inode.opens);
    held.into_iter()
        .map(|info| HeldLease {
            grant: info.grant,
            left: info.left,
            uses: info.uses,
            recalling: info.state == HeldState::Recalling,
            in_use: if opens(info.grant.fid) > 0 { InUse::Yes } else { InUse::No },
        })
        .collect()
}

pub(crate) fn session(inner: &Inner) -> SessionView {
    let now = inner.now();
    let standing = match *inner.phase.borrow() {
        Phase::Connected => ClientStanding::Connected,
        Phase::Disconnected => ClientStanding::Disconnected,
        Phase::Closed => ClientStanding::Closed,
    };
    let (connections, waiting) = (inner.link.connections(), inner.link.waiting());
    let state = crate::lock(&inner.state);
    let backlog = state.behind.backlog(now);
    SessionView {
        server: inner.config.server.clone(),
        volume: inner.config.volume.clone(),
        session: state.holder.session(),
        standing,
        left: state.holder.session_valid_until().since(now),
        connections,
        waiting,
        leases: state.holder.len(),
        cached_inodes: state.len(),
        cached_bytes: state.memory.bytes(),
        open_files: state.open.len(),
        locks: state.locks.len(),
        unsynced: state.unsynced.len(),
        backlog: BacklogView {
            records: backlog.records,
            bytes: backlog.bytes,
            age: backlog.age,
            not_durable: backlog.not_durable,
        },
    }
}
