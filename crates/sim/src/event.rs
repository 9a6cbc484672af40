//! What can happen in a run.

use crate::message::{Tag, ToClient, ToServer};
use soda_lease::OpKey;
use soda_types::{Epoch, Fid, Mode};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// Something that will happen.
#[derive(Debug)]
pub enum Event {
    ArrivesAtServer(ConnId, ToServer),
    /// A second time, its connection may be gone.
    CopyAtServer(ConnId, ToServer),
    ArrivesAtClient(ConnId, ToClient),
    /// A side of a connection finds out that it is broken.
    ResetAtServer(ConnId),
    ResetAtClient {
        client: usize,
        conn: ConnId,
    },
    ServerTimer {
        generation: u64,
    },
    /// A step of an admitted operation; of one life of the server.
    ServerStep {
        life: u64,
        op: OpKey,
        step: Step,
    },
    ServerStarts,
    /// The server syncs by itself.
    ServerSyncs {
        life: u64,
    },
    ClientTimer {
        client: usize,
        life: u64,
        generation: u64,
    },
    ClientStarts {
        client: usize,
    },
    Connect {
        client: usize,
        life: u64,
    },
    ConnectGivesUp {
        client: usize,
        life: u64,
        conn: ConnId,
    },
    ConnectData {
        client: usize,
        life: u64,
    },
    Think {
        client: usize,
        life: u64,
        process: usize,
    },
    /// A request for a lock that was turned away goes again.
    LockAgain {
        client: usize,
        life: u64,
        tag: Tag,
    },
    CachesDropped {
        client: usize,
        life: u64,
        dropping: Dropping,
    },
    Fault,
    Undo(Undo),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Apply,
    Finish,
    /// The end of one that was asked for along with a digest.
    Sync,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undo {
    Cut(usize),
    Freeze(usize),
    FreezeServer,
    Stuck(usize),
}

/// What is dropped from the caches for a recall.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropping {
    /// The client's, see [`Client`](crate::client::Client).
    pub(crate) process: u64,
    pub(crate) of: Recalled,
    pub(crate) epoch: Epoch,
    /// Each with what is kept of it.
    pub(crate) parts: Vec<(Fid, Option<Mode>)>,
}

/// What is recalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recalled {
    Node(Fid),
    /// Part of the deep lease on this directory.
    Deep(Fid),
}
