//! Deep leases that were given back.
//!
//! A deep lease keeps its epoch, so an answer to a request that has overtaken the word of that may speak of the same one again.
//! And the word may be lost with its connection: then the server takes the lease for held, and what is made below it for covered.

use super::Holder;
use soda_types::{Epoch, Fid, Grant, InUse, LeasePart, Mode, RecallAck};
use std::collections::BTreeMap;

/// What was given back.
#[derive(Debug, Default)]
pub(super) struct Over {
    each: BTreeMap<Fid, Epoch>,
    /// Of the oldest ones nobody remembers which they were: nothing so old is taken any more.
    all: Epoch,
}

impl Over {
    const MOST: usize = 1000;

    pub(super) fn add(&mut self, lease: Fid, epoch: Epoch) {
        let known = self.each.entry(lease).or_default();
        *known = epoch.max(*known);
        if self.each.len() > Over::MOST {
            self.all = self.each.values().copied().fold(self.all, Epoch::max);
            self.each.clear();
        }
    }

    pub(super) fn has(&self, grant: &Grant) -> bool {
        grant.epoch <= self.all || self.each.get(&grant.fid).is_some_and(|epoch| grant.epoch <= *epoch)
    }
}

impl Holder {
    /// The last thousand deep leases that were given back, and all that were lowered: what to say again on a new connection,
    /// before anything else. The server may have heard it, or not.
    pub fn given_back(&self) -> Vec<RecallAck> {
        let word = |fid: Fid, epoch: Epoch, kept: Option<Mode>| RecallAck {
            fid,
            epoch,
            kept,
            in_use: InUse::No,
            uses: 0,
            part: Some(LeasePart::tree(fid)),
        };
        let over = self.deep.over.each.iter().map(|(fid, epoch)| word(*fid, *epoch, None));
        let lowered = self.deep.roots.values().filter(|root| root.lowered).map(|root| root.grant);
        over.chain(lowered.map(|grant| word(grant.fid, grant.epoch, Some(Mode::Read)))).collect()
    }
}
