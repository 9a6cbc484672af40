//! Deep leases that were given back.
//!
//! A deep lease keeps its epoch, so an answer to a request that has overtaken the word of that may speak of the same one again.
//! And the word may be lost with its connection: then the server takes the lease for held, and what is made below it for covered.
//!
//! So each is remembered: what an answer says of it is not taken, and on a new connection the word is said again. The oldest ones
//! go when there are too many, but only those of which the server has heard: an answer that brings leases says so of all words
//! that went ahead of its request. (There are not many others: what is given back was brought by an answer before.) What is
//! left of those that go is that answers to requests of before, which may be late, bring no deep lease as old as they were. Later
//! ones may: the server would not name what it has heard to be given back.

use super::{Deep, Holder};
use serde::{Deserialize, Serialize};
use soda_types::{Epoch, Fid, Grant, InUse, LeasePart, Mode, RecallAck};
use std::collections::{BTreeMap, VecDeque};

/// What was given back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Over {
    each: BTreeMap<Fid, Word>,
    /// As they were said; those that were said again since are there twice.
    order: VecDeque<(u64, Fid)>,
    /// Requests that were sent until then have been heard, with all that went ahead of them.
    heard: u64,
    /// Of those that nobody remembers.
    oldest: Word,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Word {
    epoch: Epoch,
    /// The last request that was sent before.
    until: u64,
}

impl Over {
    const MOST: usize = 1000;

    pub(super) fn add(&mut self, lease: Fid, epoch: Epoch, until: u64) {
        let known = self.each.entry(lease).or_default();
        *known = Word { epoch: epoch.max(known.epoch), until: until.max(known.until) };
        self.order.push_back((known.until, lease));
        self.tidy();
    }

    fn tidy(&mut self) {
        while self.order.len() > Over::MOST
            && let Some((until, lease)) = self.order.front().copied()
            && until < self.heard
        {
            self.order.pop_front();
            let Some(word) = self.each.get(&lease).copied().filter(|word| word.until == until) else {
                continue;
            };
            self.each.remove(&lease);
            self.oldest.until = until;
            self.oldest.epoch = self.oldest.epoch.max(word.epoch);
        }
    }

    /// Whether a lease that came with the answer to this request is over.
    pub(super) fn has(&self, grant: &Grant, number: u64) -> bool {
        let late = number <= self.oldest.until && grant.epoch <= self.oldest.epoch;
        late || self.each.get(&grant.fid).is_some_and(|word| grant.epoch <= word.epoch)
    }
}

impl Deep {
    /// The answer to this request brought leases.
    pub(in crate::holder) fn note_heard(&mut self, number: u64) {
        self.over.heard = self.over.heard.max(number);
        self.over.tidy();
    }
}

impl Holder {
    /// The last thousand deep leases that were given back, all of which the server may not have heard, and all that were lowered:
    /// what to say again on a new connection, before anything else.
    pub fn given_back(&self) -> Vec<RecallAck> {
        let word = |fid: Fid, epoch: Epoch, kept: Option<Mode>| RecallAck {
            fid,
            epoch,
            kept,
            in_use: InUse::No,
            uses: 0,
            part: Some(LeasePart::tree(fid)),
        };
        let over = self.deep.over.each.iter().map(|(fid, over)| word(*fid, over.epoch, None));
        let lowered = self.deep.roots.values().filter(|root| root.lowered).map(|root| root.grant);
        over.chain(lowered.map(|grant| word(grant.fid, grant.epoch, Some(Mode::Read)))).collect()
    }
}
