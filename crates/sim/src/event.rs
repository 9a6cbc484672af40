//! What can happen in a run.

use crate::client::Dropping;
use crate::message::{Tag, ToClient, ToServer};
use soda_lease::OpKey;

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
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undo {
    Cut(usize),
    Freeze(usize),
    FreezeServer,
    Stuck(usize),
}
