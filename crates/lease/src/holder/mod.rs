//! The client's side: which leases this client holds, and until when its caches may be used.
//!
//! *Time.* The client counts from the moment it sent a request, the server from the moment it received it, and the
//! client gives up a drift margin early: so it always stops first.
//!
//! *Late grants.* A grant travels in the reply of a request. A recall, a release or the end of the session may have
//! overtaken it; then it is refused when it comes. Epochs tell: each grant has its own, and what was asked back, or
//! given back, sets a *bar* for its object that stays until every request that was on the way at that moment is over.
//!
//! *Holding.* A lease that is granted again gets a new epoch while the client goes on holding it. What was cached
//! stays covered, so caches remember the *holding*, which changes only when the lease was away in between
//! ([`Holder::holding`]), not the epoch.

mod config;
mod deep;
mod handover;
mod leases;
mod recall;
mod session;
#[cfg(test)]
mod tests;

pub use config::{DriftMargin, HolderConfig};
pub use deep::Scan;
pub use handover::HandedLeases;
pub use leases::{HeldInfo, HeldState, Holding};
pub use recall::RecallStep;
pub use session::Ticket;

use deep::Deep;
use leases::{Bar, Held};
use session::Standing;
use soda_types::{Fid, Monotonic};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the [module](self). Calls come with this client's lease clock, which never goes back.
#[derive(Debug)]
pub struct Holder {
    config: HolderConfig,
    standing: Option<Standing>,
    /// Only ever looked up; what iterates sorts.
    leases: BTreeMap<Fid, Held>,
    /// Numbers the events whose order matters: requests sent and holdings begun.
    clock: u64,
    /// Requests that are not answered.
    on_the_way: BTreeSet<u64>,
    bars: BTreeMap<Fid, Bar>,
    /// Bars in the order in which they can be lifted.
    bar_order: VecDeque<(u64, Fid)>,
    deep: Deep,
}

impl Holder {
    pub fn new(config: HolderConfig) -> Holder {
        Holder {
            config,
            standing: None,
            leases: BTreeMap::new(),
            clock: 0,
            on_the_way: BTreeSet::new(),
            bars: BTreeMap::new(),
            bar_order: VecDeque::new(),
            deep: Deep::default(),
        }
    }

    /// Leases held, the expired ones included.
    pub fn len(&self) -> usize {
        self.leases.len() + self.deep.roots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn sorted_fids(&self, wanted: impl Fn(&Held) -> bool) -> Vec<Fid> {
        let mut fids: Vec<Fid> =
            self.leases.iter().filter(|(_, held)| wanted(held)).map(|(fid, _)| *fid).collect();
        fids.sort_unstable();
        fids
    }

    /// Nothing held, nothing remembered.
    fn forget_everything(&mut self) -> Vec<Fid> {
        let mut fids = self.sorted_fids(|_| true);
        fids.extend(self.deep.members.keys().copied());
        fids.sort_unstable();
        fids.dedup();
        self.deep = Deep::default();
        self.leases = BTreeMap::new();
        self.on_the_way.clear();
        self.bars.clear();
        self.bar_order.clear();
        fids
    }

    fn session_end(&self) -> Monotonic {
        self.standing.as_ref().map_or(Monotonic::ZERO, |standing| standing.valid_until)
    }
}
