//! How a call ends: its answer, and what follows from it for the server's own tables.

use crate::respond;
use crate::session::Kept;
use bytes::Bytes;
use soda_lease::table::{Outcome, TreeChanges};
use soda_protocol::{Answer, Failure};
use soda_types::{Errno, Fid, FsError};

/// The end of a call.
#[derive(Debug)]
pub(super) struct Conclusion {
    pub(super) result: Result<Answer, Failure>,
    /// `result`, encoded.
    pub(super) encoded: Bytes,
    pub(super) payload: Bytes,
    pub(super) outcome: Outcome,
    pub(super) kept: Kept,
    pub(super) effects: Effects,
}

/// What a change means for the server's own tables.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// What it did to the tree.
    pub(super) tree: TreeChanges,
    /// The session has it open now.
    pub(super) opened: Option<Fid>,
    pub(super) orphaned: Option<Fid>,
    /// Has a name (again).
    pub(super) named: Option<Fid>,
    /// Does not exist any more.
    pub(super) gone: Option<Fid>,
}

/// Why an admitted call was not carried out.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(FsError),
    /// A name means another inode than it did when the call was planned.
    PlanAnew,
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Failed(error)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno.into())
    }
}

impl Conclusion {
    pub(super) fn of(result: Result<Answer, Failure>, outcome: Outcome) -> Conclusion {
        let encoded = respond::encode(&result);
        Conclusion {
            result,
            encoded,
            payload: Bytes::new(),
            outcome,
            kept: Kept::InMemory,
            effects: Effects::default(),
        }
    }

    pub(super) fn failed(failure: Failure) -> Conclusion {
        Conclusion::of(Err(failure), Outcome::Failed)
    }
}
