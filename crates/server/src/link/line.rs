//! A session's digests are carried out one after the other, in the order of arrival; and syncs wait for the end of theirs.

use super::{Counted, Incoming};
use crate::session::Progress;
use crate::sync::Asked;
use soda_protocol::OpId;
use soda_volume::Staged;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most digests that wait for the one in progress. A client that keeps the rules has no more without an answer; each is as
/// large as a frame.
const LONGEST: usize = 8;

/// Who has to wait for whom.
#[derive(Debug, Default)]
pub(crate) struct Line {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    waiting: VecDeque<Arrived>,
    /// Syncs, each with the digest that it waits for.
    syncs: Vec<(OpId, WaitingSync)>,
}

/// A digest that has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) incoming: Incoming,
    pub(crate) ahead: Option<Ahead>,
}

/// What was done of a digest before its turn.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// The data of its writes, in their order.
    pub(crate) staged: Vec<Staged>,
    /// The medium has it then.
    pub(crate) asked: Asked,
}

/// A sync that waits for a digest.
pub(crate) type WaitingSync = (Incoming, Counted);

/// What becomes of a digest that has arrived.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is its turn; [`Line::next`] ends it.
    Now(Arrived),
    /// It waits for the end of the one before.
    Waits,
    /// Too many wait.
    Full(Arrived),
}

impl Line {
    /// Whether a digest has its turn.
    pub(crate) fn is_busy(&self) -> bool {
        self.state().is_busy
    }

    pub(crate) fn enter(&self, digest: Arrived) -> Entered {
        let mut state = self.state();
        if !state.is_busy {
            state.is_busy = true;
            return Entered::Now(digest);
        }
        if state.waiting.len() >= LONGEST {
            return Entered::Full(digest);
        }
        state.waiting.push_back(digest);
        Entered::Waits
    }

    /// A turn has ended: the digest whose turn it is now, if any waits.
    pub(crate) fn next(&self) -> Option<Arrived> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        state.is_busy = next.is_some();
        next
    }

    /// Has a sync wait for a digest that is under way. One that is not comes back, with what the digest is. `progress` says that,
    /// asked with the line locked: a digest that ends looks for who waits when its slot says so.
    pub(crate) fn wait_behind(
        &self,
        digest: OpId,
        sync: WaitingSync,
        progress: impl FnOnce() -> Progress,
    ) -> Option<(WaitingSync, Progress)> {
        let mut state = self.state();
        let progress = progress();
        if progress != Progress::UnderWay {
            return Some((sync, progress));
        }
        state.syncs.push((digest, sync));
        None
    }

    pub(crate) fn take_those_behind(&self, digest: OpId) -> Vec<WaitingSync> {
        self.state().syncs.extract_if(.., |(op, _)| *op == digest).map(|(_, sync)| sync).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
