//! All of a deep write lease lowered to reading, unasked.
//!
//! Another machine that reads a tree which this one has written asks for one object after the other, each a round trip and a
//! hole. After a few such questions in a short time the holder keeps reading only, of everything: who reads goes on without it.
//!
//! That costs its holder as much as it has written and not told, and a step for each object that is covered: so many questions
//! have to come for it as what is untold is worth. Who opens one file deep in the tree asks for each directory on the way, and no
//! more is told for it than these need. It is tried once at a time, and after each failure only when twice as many questions
//! have come. With too many holes all of the lease goes, and the caches with it, so how much it covers does not matter.
//!
//! Objects that are being asked for meanwhile are answered for all the same. The server takes the lease for lowered when it
//! hears of it, which is before any request that is sent later on the same connection; if that was lost, it goes on asking, and
//! the answers are those of a lease that was not lowered.

use super::{Holder, Root};
use soda_types::{Fid, InUse, LeasePart, Mode, Monotonic, RecallAck};
use std::time::Duration;

/// So many questions for single objects, to read them, make a scan.
const SCAN: u32 = 4;
/// If they come within this time.
const SCAN_WITHIN: Duration = Duration::from_secs(1);
/// So many after failures.
const LATER_SCAN: u32 = 1024;
const MOST_DOUBLINGS: u32 = 8;
/// Changes that are told for one question as fast as it is answered, roughly.
const TOLD_FOR_EACH: usize = 250;
/// After so long without a question failures are forgotten.
const FORGET: Duration = Duration::from_secs(30);

/// A scan that is taken up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    First,
    /// It was tried before, in vain.
    Again,
}

/// Questions about single objects of a lease, from which its holder may keep reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Questions {
    count: u32,
    since: Monotonic,
    last: Monotonic,
    failures: u32,
    is_scan: bool,
    /// Somebody tries to lower the lease.
    taken: bool,
}

impl Questions {
    pub(super) fn note(&mut self, now: Monotonic) {
        if now.since(self.last) >= FORGET {
            (self.failures, self.count) = (0, 0);
        }
        // After a failure the number counts, not how fast they come.
        if self.failures == 0 && now.since(self.since) >= SCAN_WITHIN {
            (self.count, self.since) = (0, now);
        }
        self.last = now;
        self.count += 1;
        if self.count >= self.enough() && !self.taken {
            self.count = 0;
            self.is_scan = true;
        }
    }

    /// So many questions make a scan.
    fn enough(&self) -> u32 {
        (SCAN << self.failures.min(MOST_DOUBLINGS)).min(LATER_SCAN)
    }

    fn take(&mut self) -> Option<Scan> {
        if !std::mem::take(&mut self.is_scan) {
            return None;
        }
        self.taken = true;
        Some(if self.failures == 0 { Scan::First } else { Scan::Again })
    }

    fn end(&mut self, lowered: bool) {
        (self.taken, self.count) = (false, 0);
        self.failures = if lowered { 0 } else { self.failures + 1 };
    }
}

impl Holder {
    /// Somebody goes through what the deep write lease covers: [`Holder::lower_deep`] will spare them, and this client, the
    /// next questions. Said once for each time that it is found, and not again before [`Holder::end_scan`]. `untold`: changes
    /// that would have to be told first.
    pub fn take_scan(&mut self, lease: Fid, untold: usize) -> Option<Scan> {
        let questions = &mut self.deep.roots.get_mut(&lease)?.questions;
        let worth = TOLD_FOR_EACH * questions.enough() as usize;
        let scan = questions.take()?;
        if untold > worth {
            self.end_scan(lease, false);
            return None;
        }
        Some(scan)
    }

    /// Whoever has taken a scan up has lowered the lease, or could not.
    pub fn end_scan(&mut self, lease: Fid, lowered: bool) {
        if let Some(root) = self.deep.roots.get_mut(&lease) {
            root.questions.end(lowered);
        }
    }

    /// Whether [`Holder::lower_deep`] would do something, as far as leases go.
    pub fn may_lower_deep(&self, lease: Fid) -> bool {
        let root = self.deep.roots.get(&lease);
        let written = |root: &Root| !root.is_asked && (root.grant.mode == Mode::Write || root.lowered);
        root.is_some_and(written) && self.deep.moving.is_empty()
    }

    /// Lowers a deep write lease to reading, unasked. Own changes of what it covers must be settled as for a recall to read, and
    /// none may be on the way; nor a request that moves anything. The answer must be sent before any request that is made
    /// later. `None`: there is nothing to lower.
    pub fn lower_deep(&mut self, lease: Fid) -> Option<RecallAck> {
        if !self.may_lower_deep(lease) {
            return None;
        }
        let began = self.tick();
        let root = self.deep.roots.get_mut(&lease)?;
        (root.grant.mode, root.lowered, root.lowered_at) = (Mode::Read, true, began);
        self.deep.narrowed = began;
        let epoch = root.grant.epoch;
        for fid in self.deep.standing_on(lease) {
            if let Some(member) = self.deep.members.get_mut(&fid) {
                // As after a recall: what is on the way may be of before a change of our own that others can see from now on.
                (member.mode, member.began) = (Mode::Read, began);
            }
        }
        let kept = Some(Mode::Read);
        Some(RecallAck {
            fid: lease,
            epoch,
            kept,
            in_use: InUse::No,
            uses: 0,
            part: Some(LeasePart::tree(lease)),
        })
    }
}
