//! What the kernel must drop for a recall.

use crate::cache::State;
use crate::cache::names::MOST_NAMES_AT_ONCE;
use crate::hooks::{KernelHooks, NAMES_RUN_OUT, Names, NamesLock};
use soda_types::{Cause, Fid, Mode, Monotonic};
use std::ops::Range;

/// So often pages are taken from the kernel again because it has read some back meanwhile.
const MOST_ROUNDS: u32 = 4;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) attr: bool,
    /// The owner, which the kernel may use without asking for attributes.
    owner: bool,
    pub(crate) data: Option<Range<u64>>,
    pub(crate) names: Option<Names>,
    /// Names are right as soon as whoever changes some just now is done.
    pub(crate) settle_names: bool,
    extent: Extent,
    /// As the inode stood when the plan was made.
    change_count: u64,
    fills: u32,
    rounds: u32,
}

/// How much a plan takes from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Extent {
    /// What own changes touched lately.
    Recent,
    #[default]
    All,
}

impl Plan {
    /// If a read lease is kept only our own late changes matter: they are answered, but the system calls that made them
    /// may not have returned, and the kernel may still show what was before. Nobody else may see them until it does not. (Names
    /// stay: what a kernel has of them when such a call has returned is what the call has made of them.)
    /// Those that are not answered may be applied at the server all the same, and nobody knows yet what they did.
    pub(crate) fn new(state: &mut State, now: Monotonic, fid: Fid, keep: Option<Mode>) -> Plan {
        let at_once = match state.names_lock() {
            NamesLock::None => MOST_NAMES_AT_ONCE,
            // It cannot make all names void at once.
            NamesLock::Directory => usize::MAX,
        };
        let Some(inode) = state.existing(fid) else { return Plan::default() };
        let recent = inode.recent(now);
        let holds_attr = inode.kernel_holds_attr(now);
        let stand = Plan { change_count: inode.changes.count, fills: inode.kernel.fills, ..Plan::default() };
        if keep.is_none() || inode.changes.unanswered > 0 {
            return Plan {
                attr: holds_attr,
                data: inode.kernel.data.then_some(0..u64::MAX),
                names: inode.dir.as_ref().and_then(|dir| dir.kernel_names(now, at_once)),
                ..stand
            };
        }
        let stand = Plan { extent: Extent::Recent, ..stand };
        let Some((names, data)) = recent else { return stand };
        let settle_names = names && inode.dir.as_ref().is_some_and(|dir| dir.kernel_holds_names(now));
        Plan { attr: holds_attr, data: data.filter(|_| inode.kernel.data), settle_names, ..stand }
    }

    /// As part of a recall with this cause.
    pub(crate) fn for_cause(self, cause: &Cause) -> Plan {
        Plan { owner: *cause == Cause::Access, ..self }
    }

    /// What else has to go now that this is done, because things have moved meanwhile: an own change began or ended, or the
    /// kernel read pages back.
    pub(crate) fn overtaken(&self, state: &mut State, now: Monotonic, fid: Fid) -> Option<Plan> {
        let inode = state.existing(fid)?;
        let rounds = self.rounds + 1;
        if self.extent == Extent::Recent && inode.changes.count != self.change_count {
            let all = Plan { rounds, ..Plan::new(state, now, fid, None) };
            return all.needs_kernel().then_some(all);
        }
        let refilled = self.extent == Extent::All && inode.kernel.fills != self.fills && rounds < MOST_ROUNDS;
        let (change_count, fills) = (inode.changes.count, inode.kernel.fills);
        refilled.then(|| Plan { data: Some(0..u64::MAX), change_count, fills, rounds, ..Plan::default() })
    }

    /// The same once the kernel has been told: nothing is left to be told, unless things move.
    pub(crate) fn told(self) -> Plan {
        Plan { attr: false, owner: false, data: None, names: None, settle_names: false, ..self }
    }

    pub(crate) fn without_names(self) -> Plan {
        Plan { names: None, settle_names: false, ..self }
    }

    pub(crate) fn needs_kernel(&self) -> bool {
        self.attr || self.owner || self.data.is_some() || self.concerns_names()
    }

    pub(crate) fn concerns_names(&self) -> bool {
        self.names.is_some() || self.settle_names
    }

    /// Blocks until the kernel has dropped it.
    pub(crate) fn tell(&self, hooks: &dyn KernelHooks, fid: Fid) {
        match &self.names {
            None if self.settle_names => hooks.settle_names(fid),
            None => {}
            Some(Names::All) if hooks.names_lock() == NamesLock::Directory => {
                std::thread::sleep(NAMES_RUN_OUT)
            }
            Some(names) => hooks.invalidate_names(fid, names),
        }
        if let Some(data) = &self.data {
            hooks.invalidate_data(fid, data.clone());
        }
        if self.attr {
            hooks.invalidate_attr(fid);
        }
        if self.owner {
            hooks.invalidate_owner(fid);
        }
    }
}
