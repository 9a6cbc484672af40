//! Write leases that are given back before they are asked for.
//!
//! A machine that unpacked an archive holds a write lease on each file of it. When another machine reads the directory, it
//! reads the files next, and every one of them would be a recall of its own, a round trip each. So the first recall to
//! read takes the others along: those that are idle here are lowered to read, many in one message. That costs this
//! machine nothing: its next change brings the write lease with its answer, as long as nobody reads.
//!
//! *Why it is safe.* Lowering unasked is done as a recall to read is: the kernel is brought up to date with our own late
//! changes first. Nothing is lowered while a change of it is on the way; and a change that begins after the lowering goes
//! by the control connection, where the server answers it with a lease of a new epoch, for which an older message of ours
//! does not count.

use crate::inner::Inner;
use crate::kernel::Plan;
use soda_protocol::Note;
use soda_types::{Fid, Mode};
use std::sync::Arc;
use std::time::Duration;

/// How many are lowered in one message: they wait for one another's kernel notifications, some microseconds each.
const BATCH: usize = 256;
/// For how long who asks for a directory may be kept waiting, so that what it reads there comes with leases.
const FIRST: Duration = Duration::from_millis(5);

impl Inner {
    /// Before the recall of their directory is answered: as many as can be had quickly. Returns the rest.
    pub(super) fn lower_first(self: &Arc<Inner>, mut fids: Vec<Fid>) -> Vec<Fid> {
        let began = self.now();
        // In the order in which they were changed, which is often that of reading.
        while !fids.is_empty() && self.now().since(began) < FIRST {
            let rest = fids.split_off(fids.len().min(BATCH));
            self.lower(&fids);
            fids = rest;
        }
        fids
    }

    pub(super) fn lower_all(self: &Arc<Inner>, fids: &[Fid]) {
        fids.chunks(BATCH).for_each(|batch| self.lower(batch));
    }

    /// Those that were just told to the server, which may still lose it: only the lease covers telling it again.
    pub(super) fn lower_when_durable(self: &Arc<Inner>, fids: Vec<Fid>) {
        if fids.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            if let Some(durable) = inner.make_durable()
                && durable.result().await.is_ok()
            {
                let pool = inner.recall_pool.clone();
                pool.run(Box::new(move || inner.lower_all(&fids)));
            }
        });
    }

    /// Lowers the write leases among those of `fids` that are idle. Blocks until the kernel is up to date.
    fn lower(self: &Arc<Inner>, fids: &[Fid]) {
        let now = self.now();
        let mut plans: Vec<(Fid, Plan)> = Vec::new();
        {
            let mut state = crate::lock(&self.state);
            for fid in fids.iter().copied() {
                let written = state.holder.may_lower(fid) && state.may_give_back(fid);
                let Some(inode) = state.existing(fid).filter(|_| written) else { continue };
                let busy = inode.changes.unanswered > 0 || inode.kernel.recalling > 0 || inode.uses.opens > 0;
                if busy {
                    continue;
                }
                inode.kernel.recalling += 1;
                state.repin(fid);
                plans.push((fid, Plan::new(&mut state, now, fid, Some(Mode::Read))));
            }
            if plans.is_empty() {
                return;
            }
            self.answers.bump();
        }
        self.answers.wait(&*self.hooks);
        plans.iter().for_each(|(fid, plan)| plan.tell(&*self.hooks, *fid));
        let mut lowered = Vec::with_capacity(plans.len());
        {
            let now = self.now();
            let mut state = crate::lock(&self.state);
            for (fid, plan) in plans {
                let overtaken = plan.overtaken(&mut state, now, fid).is_some();
                let inode = state.inode(fid);
                inode.kernel.recalling -= 1;
                if !overtaken && inode.changes.unanswered == 0 {
                    lowered.extend(state.holder.lower(fid));
                }
                state.repin(fid);
            }
        }
        if !lowered.is_empty() {
            self.stats.leases_lowered.add(lowered.len() as u64);
            self.note(&Note::Release(lowered));
        }
    }
}
