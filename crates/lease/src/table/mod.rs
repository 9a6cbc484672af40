//! The server's side: who holds which lease, and which operation may run now.
//!
//! Every operation names the objects it reads or changes ([`Access`]). It is admitted when on each of them
//! * no earlier operation that conflicts still waits (first come, first served, but for the exceptions below),
//! * no admitted operation that conflicts is unfinished,
//! * no *other* session holds a lease that conflicts: a change conflicts with every lease, a read with write leases.
//!
//! Leases in the way are recalled; a holder that has expired is fenced. So the table is also the server's lock
//! manager: admitted operations never conflict, and the server runs them on its storage without further locks.
//!
//! While a session has not answered a recall, the kernel of that client may hold a lock for an operation that waits here,
//! and cannot drop its caches before that one is answered. So until the holder answers
//! * *covered* operations, whose every access is allowed by a lease that their session still holds, wait only for admitted
//!   ones;
//! * *needed* operations, which use an object that their session has been asked for, go before those who asked
//!   (`precedence.rs` says why nobody starves and nothing waits in a circle).
//!
//! What a session did already under its write leases (`covered.rs`) is only ever covered: it never has anything recalled, and is
//! refused if a lease is missing.
//!
//! Who only wants to know what an object is like may have its holder asked instead (`inquiries.rs`).
//!
//! And policy has one exception:
//! * *Who changes what it caches* ends with a write lease, whatever policy says. Another session may read the new state
//!   only after the changer's own caches show it too; the recall of the write lease is that handshake ("new, then old"
//!   could be seen on the changer's machine otherwise).
//!
//! Every grant has an epoch of its own, also when a session is given again what it holds: so acks and releases that
//! were overtaken by a newer grant are told apart, and a lease's epoch is its name.

mod admission;
mod ancestry;
mod config;
mod counters;
mod covered;
mod deep;
mod grace;
mod grants;
mod holes;
mod index;
mod inquiries;
mod moves;
mod obstacles;
mod offers;
mod output;
mod parts;
mod placing;
mod precedence;
mod rates;
mod recalls;
mod sessions;
mod slab;
mod store;
mod told;
mod view;

pub use config::{DeepLeases, TableConfig, WriteLeases};
pub use counters::Counters;
pub use grants::Granted;
pub use holes::Hole;
pub use output::{
    Access, Ancestors, Covered, Created, FenceReason, Moved, OpKey, Outcome, Output, Refusal, SessionEnded,
    TreeChanges, TreeVersion, Want,
};
pub use rates::{BackOff, Equation8, Intent, Seen, Usage};
pub use soda_types::ObjectTerm;
pub use view::{HolderInfo, LeaseView, Policy, SessionInfo, WaitInfo};

use admission::Operation;
use ancestry::Ancestry;
use grace::Grace;
use index::ObjectId;
use inquiries::Inquiries;
use moves::Moves;
use recalls::Recalls;
use sessions::Session;
use soda_types::{Epoch, Fid, Monotonic, SessionId};
use std::collections::{BTreeMap, VecDeque};
use store::{LeaseId, Store};

/// See the [module](self). Calls come with the server's lease clock, which never goes back.
///
/// After every call, drain [`LeaseTable::poll_output`], then ask [`LeaseTable::poll_timeout`] when to call
/// [`LeaseTable::handle_timeout`].
#[derive(Debug)]
pub struct LeaseTable {
    config: TableConfig,
    /// Everything below was given out before this start, everything else by this table.
    first_epoch: Epoch,
    next_epoch: Epoch,
    sessions: BTreeMap<SessionId, Session>,
    store: Store,
    ops: BTreeMap<OpKey, Operation>,
    recalls: Recalls,
    inquiries: Inquiries,
    grace: Option<Grace>,
    /// Of the tree, as far as the table has heard of them.
    moves: Moves,
    /// Objects whose queue may have to move.
    unsettled: VecDeque<ObjectId>,
    /// Objects kept for their rates only; looked through when there is work anyway.
    cold: VecDeque<ObjectId>,
    /// Deep leases, and the directories in which they have too many holes.
    crowded: Vec<(LeaseId, Fid)>,
    outputs: VecDeque<Output>,
    counters: Counters,
}

impl LeaseTable {
    /// `first_epoch` is larger than every epoch that an earlier table of the same data directory gave out.
    pub fn new(config: TableConfig, first_epoch: Epoch, _now: Monotonic) -> LeaseTable {
        let ancestry = match config.deep_leases {
            DeepLeases::Off => None,
            DeepLeases::On { .. } => Some(Ancestry::new()),
        };
        LeaseTable {
            config,
            first_epoch,
            next_epoch: first_epoch,
            sessions: BTreeMap::new(),
            store: Store::new(ancestry),
            ops: BTreeMap::new(),
            recalls: Recalls::default(),
            inquiries: Inquiries::default(),
            grace: None,
            moves: Moves::default(),
            unsettled: VecDeque::new(),
            cold: VecDeque::new(),
            crowded: Vec::new(),
            outputs: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// The next thing to do. Drain it after every call of another method.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`LeaseTable::handle_timeout`] wants to be called, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Monotonic> {
        let grace = self.grace.as_ref().map(|grace| grace.wake);
        [grace, self.recalls.next_wake(), self.inquiries.next_wake()].into_iter().flatten().min()
    }

    /// Time has passed: resends recalls, gives up on the dead, ends the grace period. Harmless when called early.
    pub fn handle_timeout(&mut self, now: Monotonic) {
        self.wake_grace(now);
        self.wake_recalls(now);
        self.wake_inquiries(now);
        self.settle(now);
    }

    /// The largest epoch given out so far; the next table starts above it.
    pub fn last_epoch(&self) -> Epoch {
        Epoch(self.next_epoch.0.saturating_sub(1))
    }

    fn take_epoch(&mut self) -> Epoch {
        let epoch = self.next_epoch;
        self.next_epoch = epoch.next();
        epoch
    }
}
