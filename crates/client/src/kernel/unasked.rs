//! What the kernel must drop although no recall asks for it: nobody waits for an answer.

use super::plan::Plan;
use crate::cache::State;
use crate::hooks::{Names, NamesLock};
use crate::inner::Inner;
use soda_types::{Fid, Monotonic};
use std::sync::Arc;
use tokio::sync::oneshot;

impl Inner {
    /// Changes whose callers have gone: nobody will tell the kernel what they did, so it must not go on with what it has.
    pub(crate) fn drop_kernel_copies(self: &Arc<Inner>, state: &mut State, now: Monotonic, fids: &[Fid]) {
        self.answers.bump();
        let plans: Vec<(Fid, Plan)> =
            fids.iter().map(|fid| (*fid, Plan::new(state, now, *fid, None))).collect();
        let plans: Vec<_> = plans.into_iter().filter(|(_, plan)| plan.needs_kernel()).collect();
        if !plans.is_empty() {
            let inner = Arc::clone(self);
            self.recall_pool.run(Box::new(move || {
                inner.answers.wait(&*inner.hooks);
                plans.iter().for_each(|(fid, plan)| plan.tell(&*inner.hooks, *fid));
            }));
        }
    }

    /// Leases that are gone without a recall: nobody waits for an answer, but the kernel must not go on using them.
    ///
    /// What is returned tells when the kernel has dropped them.
    pub(crate) fn drop_kernel_caches(self: &Arc<Inner>, fids: Vec<Fid>) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        let now = self.now();
        let mut plans = Vec::new();
        {
            let mut state = crate::lock(&self.state);
            self.answers.bump();
            for fid in fids {
                let plan = Plan::new(&mut state, now, fid, None);
                state.kernel_dropped(fid);
                state.void(fid);
                if plan.needs_kernel() {
                    plans.push((fid, plan));
                }
            }
        }
        if !plans.is_empty() {
            let inner = Arc::clone(self);
            self.recall_pool.run(Box::new(move || {
                inner.answers.wait(&*inner.hooks);
                plans.iter().for_each(|(fid, plan)| plan.tell(&*inner.hooks, *fid));
                let _ = done.send(());
            }));
        }
        is_done
    }

    /// Everything the kernel holds, at once: the machine was suspended, and the kernel's time-outs stood still.
    pub(crate) fn drop_all_kernel_caches(self: &Arc<Inner>) {
        let fids: Vec<Fid> = crate::lock(&self.state).inodes().map(|(fid, _)| *fid).collect();
        let inner = Arc::clone(self);
        self.recall_pool.run(Box::new(move || {
            // Otherwise names run out by themselves, almost as soon.
            let names = inner.hooks.names_lock() == NamesLock::None;
            for fid in fids {
                inner.hooks.invalidate_attr(fid);
                if names && crate::lock(&inner.state).existing(fid).is_some_and(|inode| inode.dir.is_some()) {
                    inner.hooks.invalidate_names(fid, &Names::All);
                }
            }
        }));
    }
}
