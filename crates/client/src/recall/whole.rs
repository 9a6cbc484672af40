//! A deep write lease whose holder is asked for one object after the other: another machine goes through the tree. After a few of
//! these questions this client keeps reading only, of everything: what was done here and not told goes to the server at once,
//! and the other machine reads on without asking. One attempt at a time; after one that failed the holder waits for twice as
//! many questions, and no answer waits for the next.

use super::{Job, Part};
use crate::cache::State;
use crate::cache::inode::Inode;
use crate::inner::Inner;
use soda_lease::holder::Scan;
use soda_protocol::Note;
use soda_types::{Fid, LeasePart, Mode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// So often it is tried in a row, if something is done meanwhile in what the lease covers.
const TRIES: u32 = 3;
/// For how long who asks may be kept waiting, so that it need not ask again.
const PATIENCE: Duration = Duration::from_millis(100);

/// What became of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tried {
    Lowered,
    /// Something is under way there.
    Busy,
    /// Nothing is to be lowered, or the server does not take what was done.
    InVain,
}

impl Inner {
    /// If the recall is one of many for single objects of a deep lease: lowers all of that before it is answered, if that can be
    /// had quickly.
    pub(super) async fn lower_whole(self: &Arc<Inner>, job: &Job) {
        let Some((lease, scan)) = job.scan else { return };
        let inner = Arc::clone(self);
        let lowering = self.runtime.spawn(async move {
            let mut tried = Tried::Busy;
            for _ in 0..TRIES {
                tried = inner.try_lower_whole(lease).await;
                if tried != Tried::Busy {
                    break;
                }
            }
            crate::lock(&inner.state).holder.end_scan(lease, tried == Tried::Lowered);
        });
        if scan == Scan::First {
            // It goes on if it takes longer.
            let _ = tokio::time::timeout(PATIENCE, lowering).await;
        }
    }

    async fn try_lower_whole(self: &Arc<Inner>, lease: Fid) -> Tried {
        // What was just told the server may still lose, and only the lease covers telling it again.
        let told = self.flush_all().await.is_ok();
        let durable = match self.make_durable() {
            Some(durable) if told => durable.result().await.is_ok(),
            _ => false,
        };
        if !durable {
            return Tried::InVain;
        }
        let (sender, receiver) = oneshot::channel();
        let inner = Arc::clone(self);
        self.recall_pool.run(Box::new(move || {
            let _ = sender.send(inner.lower_whole_now(lease));
        }));
        receiver.await.unwrap_or(Tried::InVain)
    }

    /// Blocks until the kernel is up to date.
    fn lower_whole_now(self: &Arc<Inner>, lease: Fid) -> Tried {
        let quiet = |state: &State, covered: &[Fid]| {
            state.holder.may_lower_deep(lease) && state.may_be_lowered(covered)
        };
        let Some(parts) = self.quiet_parts(lease, quiet, |_, _| Some(Mode::Read)) else { return Tried::Busy };
        let now = self.now();
        let mut state = crate::lock(&self.state);
        let mut overtaken = false;
        for Part { fid, plan, .. } in &parts {
            overtaken |= plan.overtaken(&mut state, now, *fid).is_some();
            state.inode(*fid).kernel.recalling -= 1;
            state.repin(*fid);
        }
        let covered: Vec<Fid> = parts.iter().map(|part| part.fid).collect();
        let uncovered = !state.uncovered_ahead(LeasePart::tree(lease)).is_empty();
        if overtaken || uncovered || state.covers_more(lease, &parts) || !state.may_be_lowered(&covered) {
            return Tried::Busy;
        }
        let Some(lowered) = state.holder.lower_deep(lease) else { return Tried::InVain };
        self.stats.leases_lowered.add(covered.len() as u64);
        // Under the lock: a change that is begun after it must not go ahead.
        self.note(&Note::Release(vec![lowered]));
        Tried::Lowered
    }
}

impl State {
    /// Nothing of these is to be told, nor on its way to the server. (What is on its way of other trees does not matter.)
    fn may_be_lowered(&self, fids: &[Fid]) -> bool {
        let busy = |inode: &Inode| inode.changes.unanswered > 0 || inode.log.going_through > 0;
        let quiet = |fid: &Fid| self.may_give_back(*fid) && !self.peek(*fid).is_some_and(busy);
        fids.iter().all(quiet)
    }
}
