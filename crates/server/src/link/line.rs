//! A session's digests are carried out one after the other, in the order of arrival.

use crate::link::Incoming;
use std::collections::VecDeque;

/// Most digests that wait for the one in progress. A client that keeps the rules has no more without an answer; each is as
/// large as a frame.
const LONGEST: usize = 8;

/// Who has to wait for whom.
#[derive(Debug, Default)]
pub(crate) struct Line {
    is_busy: bool,
    waiting: VecDeque<Incoming>,
}

/// What becomes of a digest that has arrived.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is its turn; [`Line::next`] ends it.
    Now(Incoming),
    /// It waits for the end of the one before.
    Waits,
    /// Too many wait.
    Full(Incoming),
}

impl Line {
    pub(crate) fn enter(&mut self, digest: Incoming) -> Entered {
        if !self.is_busy {
            self.is_busy = true;
            return Entered::Now(digest);
        }
        if self.waiting.len() >= LONGEST {
            return Entered::Full(digest);
        }
        self.waiting.push_back(digest);
        Entered::Waits
    }

    /// A turn has ended: the digest whose turn it is now, if any waits.
    pub(crate) fn next(&mut self) -> Option<Incoming> {
        let next = self.waiting.pop_front();
        self.is_busy = next.is_some();
        next
    }
}
