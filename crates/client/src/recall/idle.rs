//! Leases that nobody has asked for and that were not used for a while.

use super::{Part, said_in_use};
use crate::cache::State;
use crate::cache::inode::Inode;
use crate::inner::Inner;
use crate::kernel::Plan;
use soda_types::{Fid, InUse, LeasePart, Mode, RecallAck};
use std::sync::Arc;
use std::time::Duration;

impl Inner {
    /// Gives leases back that were not used for a while.
    pub(crate) fn release_idle(self: &Arc<Inner>, idle: Duration) {
        let now = self.now();
        let (fids, roots) = {
            let state = crate::lock(&self.state);
            (state.holder.idle(now, idle), state.holder.idle_deep(now, idle))
        };
        if fids.is_empty() && roots.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        self.recall_pool.run(Box::new(move || {
            inner.give_back(fids);
            roots.into_iter().for_each(|root| inner.give_back_deep(root));
        }));
    }

    /// Gives a deep lease back, unless something is going on in what it covers.
    fn give_back_deep(self: &Arc<Inner>, root: Fid) {
        let quiet = |state: &State, covered: &[Fid]| {
            let busy = |inode: &Inode| inode.kernel.recalling > 0 || inode.changes.unanswered > 0;
            let stays = |fid: &Fid| !state.may_give_back(*fid) || state.peek(*fid).is_some_and(busy);
            state.behind.digest_under_way().is_none() && !covered.iter().any(stays)
        };
        let keep = |state: &State, fid: Fid| state.holder.node_mode(fid).map(|_| Mode::Read);
        let Some(parts) = self.quiet_parts(root, quiet, keep) else { return };
        let used: Vec<InUse> = parts.iter().map(|part| self.hooks.in_use(part.fid)).collect();
        let mut state = crate::lock(&self.state);
        let mut acks = Vec::new();
        for (part, used) in parts.iter().zip(used) {
            let used = state.bring_down(part, used);
            if used == InUse::Yes && part.keep.is_none() {
                acks.push(said_in_use(root, part.fid));
            }
        }
        // Of what was asked for meanwhile, or changed, the answer to that speaks.
        let quiet = |part: &Part| {
            state.peek(part.fid).is_none_or(|inode| inode.changes.unanswered == 0 && inode.log.records == 0)
        };
        // What a digest makes may be covered by it, and what was met meanwhile the kernel has not dropped.
        let met = state.covers_more(root, &parts);
        let quiet = parts.iter().all(quiet) && state.uncovered_ahead(LeasePart::tree(root)).is_empty();
        if quiet && !met && state.behind.digest_under_way().is_none() {
            acks.extend(state.holder.release_deep(root));
        }
        parts.iter().for_each(|part| state.repin(part.fid));
        // Under the lock: what a digest that is begun after it makes must not count as covered.
        let said_open = self.send_release(acks);
        drop(state);
        self.close_overtaken(said_open);
    }

    fn give_back(self: &Arc<Inner>, fids: Vec<Fid>) {
        let mut acks = Vec::new();
        for fid in fids {
            let now = self.now();
            let plan = {
                let mut state = crate::lock(&self.state);
                let may_go = state.may_give_back(fid);
                let Some(inode) = state.existing(fid) else {
                    acks.extend(state.holder.release(now, fid));
                    continue;
                };
                if inode.kernel.recalling > 0 || inode.changes.unanswered > 0 || !may_go {
                    continue;
                }
                inode.kernel.recalling += 1;
                state.repin(fid);
                self.answers.bump();
                Plan::new(&mut state, now, fid, None)
            };
            self.answers.wait(&*self.hooks);
            plan.tell(&*self.hooks, fid);
            let asked_hooks = self.hooks.in_use(fid);
            let mut state = crate::lock(&self.state);
            state.kernel_dropped(fid);
            state.void(fid);
            if let Some(inode) = state.existing(fid) {
                inode.kernel.recalling -= 1;
            }
            let in_use = state.in_use(fid, asked_hooks);
            if let Some(ack) = state.holder.release(now, fid) {
                if in_use == InUse::Yes {
                    state.inode(fid).uses.open_at_server = InUse::Yes;
                }
                acks.push(RecallAck { in_use, ..ack });
            }
            state.repin(fid);
        }
        self.release(acks);
    }
}
