//! How a session begins, goes on after a lost connection, and what it has claimed after a restart of the server.

use crate::locks::Lock;
#[cfg(doc)]
use crate::{Call, Failure};
use serde::{Deserialize, Serialize};
use soda_types::{ClientId, Fid, Grant, ObjectTerm, Scope, Sequence, SessionId, Slot, Timestamp, Version};
use std::time::Duration;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub protocol_min: u16,
    pub protocol_max: u16,
    /// Version of the client's software, for the server's log.
    pub software: String,
    pub credentials: Credentials,
    pub role: Role,
}

/// Proof of identity. Authenticated TLS will add its own kinds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Credentials {
    /// Nothing: only for loopback or `--insecure` servers.
    None,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    Control {
        client: ClientId,
        /// For people: host and mount point.
        name: String,
        volume: String,
        /// The session to go on with after a lost connection or a server restart.
        resume: Option<SessionKey>,
        /// Terms of the leases that it gets from now on; `None`: as the server's policy says.
        lease_term: Option<ObjectTerm>,
        /// The widest leases that it takes: with [`Scope::Node`] no deep ones.
        widest_lease: Scope,
        lease_wait: LeaseWait,
    },
    Data(SessionKey),
    Admin,
}

/// How a client waits for a lease that others have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum LeaseWait {
    /// In the server's queue: first come, first served.
    #[default]
    Notified,
    /// By asking again, as Strata with leases does: the server keeps no queue for it and answers [`Failure::InTheWay`].
    Polling,
}

/// A session and the secret that proves it: 128 random bits from the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionKey {
    pub session: SessionId,
    pub secret: [u8; 16],
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub protocol: u16,
    pub software: String,
    /// Changes when the server restarts: the client then reclaims.
    pub boot: [u8; 16],
    /// `None` for an admin connection.
    pub session: Option<SessionWelcome>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SessionWelcome {
    pub key: SessionKey,
    pub standing: Standing,
    pub root: Fid,
    /// Session lease without renewal. The client counts from the moment it sent, less a drift margin.
    pub term: Duration,
    /// Slots 0..slots may be used.
    pub slots: u16,
    /// Most bytes in one read or write.
    pub max_io: u32,
    /// The sequence of the last reply that the server's store holds in each slot; slots without one are left out. After a
    /// power cut, changes whose data may be gone do not count. A client that was answered a higher one in a slot knows that
    /// a power cut took what was not fsynced. One number for all slots would not do: operations of different slots need
    /// not become durable in the order of their sequences.
    pub stored: Vec<(Slot, Sequence)>,
    /// By which changes are dated, at this moment. Who makes them later than that counts on from here: the client's calendar may
    /// be wrong, and what it dates others see.
    pub calendar: Timestamp,
}

impl SessionWelcome {
    /// What the store holds of a slot; `Sequence(0)`: nothing.
    pub fn stored_in(&self, slot: Slot) -> Sequence {
        let stored = self.stored.iter().find(|(of, _)| *of == slot);
        stored.map_or(Sequence(0), |(_, sequence)| *sequence)
    }
}

/// What became of the session that the client wanted to go on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// A new session: whatever was cached under an old one is not covered.
    New,
    /// The same session, its leases are still in the server's table.
    Resumed,
    /// The same session, but the server restarted: send [`Call::Reclaim`]s, the last one with [`ReclaimStep::Last`].
    Reclaim,
}

/// What a client held before the server restarted. Sent in batches of any size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reclaim {
    pub leases: Vec<(Grant, Version)>,
    /// Inodes that processes have open.
    pub open: Vec<Fid>,
    pub locks: Vec<(Fid, Lock)>,
    pub step: ReclaimStep,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ReclaimStep {
    More,
    Last,
}
