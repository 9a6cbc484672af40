//! All of a deep write lease lowered to reading, unasked.
//!
//! Another machine that reads a tree which this one has written asks for one object after the other, each a round trip and a
//! hole. After a few such questions in a short time the holder keeps reading only, of everything: who reads goes on without it.
//!
//! Objects that are being asked for meanwhile are answered for all the same. The server takes the lease for lowered when it
//! hears of it, which is before any request that is sent later on the same connection; if that was lost, it goes on asking, and
//! the answers are those of a lease that was not lowered ([`Root::is_lowered`]).

use super::{Holder, Root};
use soda_types::{Fid, InUse, Mode, Monotonic, RecallAck};
use std::time::Duration;

/// So many questions for single objects, to read them, make a scan.
const SCAN: u32 = 4;
/// If they come within this time.
const SCAN_WITHIN: Duration = Duration::from_secs(1);

/// Questions about single objects of a lease, from which its holder may keep reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Questions {
    count: u32,
    since: Monotonic,
    is_scan: bool,
}

impl Questions {
    pub(super) fn note(&mut self, now: Monotonic) {
        if now.since(self.since) >= SCAN_WITHIN {
            *self = Questions { count: 0, since: now, ..*self };
        }
        self.count += 1;
        // What could not be lowered may be later.
        self.is_scan |= self.count.is_multiple_of(SCAN);
    }
}

impl Root {
    /// The server may not have heard of it, and then what it asks has to be answered as it expects: with what own changes that
    /// are on the way leave in the caches.
    pub(super) fn is_lowered(&self) -> bool {
        self.lowered
    }
}

impl Holder {
    /// Somebody goes through what the deep write lease covers: [`Holder::lower_deep`] will spare them, and this client, the next
    /// questions. Said once for each time that it is found.
    pub fn take_scan(&mut self, lease: Fid) -> bool {
        self.deep.roots.get_mut(&lease).is_some_and(|root| std::mem::take(&mut root.questions.is_scan))
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
        (root.grant.mode, root.lowered) = (Mode::Read, true);
        let epoch = root.grant.epoch;
        for fid in self.deep.standing_on(lease) {
            if let Some(member) = self.deep.members.get_mut(&fid) {
                // As after a recall: what is on the way may be of before a change of our own that others can see from now on.
                (member.mode, member.began) = (Mode::Read, began);
            }
        }
        let kept = Some(Mode::Read);
        Some(RecallAck { fid: lease, epoch, kept, in_use: InUse::No, uses: 0, object: Some(lease) })
    }
}
