//! A deep write lease whose holder is asked for one object after the other: another machine goes through the tree. After a few of
//! these questions this client keeps reading only, of everything: what was done here and not told goes to the server at once,
//! and the other machine reads on without asking.

use super::Job;
use crate::cache::State;
use crate::cache::inode::Inode;
use crate::inner::Inner;
use crate::kernel::Plan;
use soda_protocol::Note;
use soda_types::{Fid, Mode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// So often it is tried in a row, if something is done meanwhile in what the lease covers.
const TRIES: u32 = 3;
/// For how long who asks may be kept waiting, so that it need not ask again.
const PATIENCE: Duration = Duration::from_millis(100);

impl Inner {
    /// If the recall is one of many for single objects of a deep lease: lowers all of that before it is answered, if that can be
    /// had quickly.
    pub(super) async fn lower_whole(self: &Arc<Inner>, job: &Job) {
        let Some(lease) = job.scan else { return };
        let inner = Arc::clone(self);
        let lowering = self.runtime.spawn(async move {
            for _ in 0..TRIES {
                if inner.try_lower_whole(lease).await {
                    return;
                }
            }
        });
        let _ = tokio::time::timeout(PATIENCE, lowering).await;
    }

    async fn try_lower_whole(self: &Arc<Inner>, lease: Fid) -> bool {
        // What was just told the server may still lose, and only the lease covers telling it again.
        let told = self.flush_all().await.is_ok();
        let durable = match self.make_durable() {
            Some(durable) if told => durable.result().await.is_ok(),
            _ => false,
        };
        if !durable {
            return true;
        }
        let (sender, receiver) = oneshot::channel();
        let inner = Arc::clone(self);
        self.recall_pool.run(Box::new(move || {
            let _ = sender.send(inner.lower_whole_now(lease));
        }));
        receiver.await.unwrap_or(true)
    }

    /// False: something is under way there, now or in the meantime. Blocks until the kernel is up to date.
    fn lower_whole_now(self: &Arc<Inner>, lease: Fid) -> bool {
        let now = self.now();
        let plans = {
            let mut state = crate::lock(&self.state);
            if !state.holder.may_lower_deep(lease) {
                return false;
            }
            let covered = state.holder.covered_by(lease);
            if !state.may_be_lowered(&covered) {
                return false;
            }
            self.answers.bump();
            let mut plan = |fid: Fid| {
                state.inode(fid).kernel.recalling += 1;
                state.repin(fid);
                (fid, Plan::new(&mut state, now, fid, Some(Mode::Read)))
            };
            covered.into_iter().map(&mut plan).collect::<Vec<(Fid, Plan)>>()
        };
        self.answers.wait();
        plans.iter().for_each(|(fid, plan)| plan.tell(&*self.hooks, *fid));
        let now = self.now();
        let mut state = crate::lock(&self.state);
        let mut overtaken = false;
        for (fid, plan) in &plans {
            overtaken |= plan.overtaken(&mut state, now, *fid).is_some();
            state.inode(*fid).kernel.recalling -= 1;
            state.repin(*fid);
        }
        // What has come under the lease in between nobody has looked at.
        let covered = state.holder.covered_by(lease);
        let known = covered.iter().all(|fid| plans.binary_search_by_key(fid, |(fid, _)| *fid).is_ok());
        if overtaken || !known || !state.may_be_lowered(&covered) {
            return false;
        }
        if let Some(lowered) = state.holder.lower_deep(lease) {
            self.stats.leases_lowered.add(covered.len() as u64);
            // Under the lock: a change that is begun after it must not go ahead.
            self.note(&Note::Release(vec![lowered]));
        }
        true
    }
}

impl State {
    /// Nothing of these is to be told, nor on its way to the server.
    fn may_be_lowered(&self, fids: &[Fid]) -> bool {
        let busy = |inode: &Inode| inode.changes.unanswered > 0 || inode.log.going_through > 0;
        let quiet = |fid: &Fid| self.may_give_back(*fid) && !self.peek(*fid).is_some_and(busy);
        self.behind.digest_under_way().is_none() && fids.iter().all(quiet)
    }
}
