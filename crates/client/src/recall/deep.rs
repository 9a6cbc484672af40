//! What a deep lease covers, brought down together though nobody has asked for it: the kernel hears of each object, and then it
//! is seen whether anything was begun meanwhile.

use super::Part;
use crate::cache::State;
use crate::inner::Inner;
use crate::kernel::Plan;
use soda_types::{Fid, Mode};
use std::sync::Arc;

impl Inner {
    /// Tells the kernel what may be kept of each object that the lease covers, if `quiet` finds nothing going on there. Each
    /// counts as being recalled until its part has ended. Blocks until the kernel is up to date.
    pub(super) fn quiet_parts(
        self: &Arc<Inner>,
        lease: Fid,
        quiet: impl FnOnce(&State, &[Fid]) -> bool,
        keep: impl Fn(&State, Fid) -> Option<Mode>,
    ) -> Option<Vec<Part>> {
        let now = self.now();
        let parts = {
            let mut state = crate::lock(&self.state);
            let covered = state.holder.covered_by(lease);
            if !quiet(&state, &covered) {
                return None;
            }
            self.answers.bump();
            let mut part = |fid: Fid| {
                state.inode(fid).kernel.recalling += 1;
                state.repin(fid);
                let keep = keep(&state, fid);
                Part { fid, keep, plan: Plan::new(&mut state, now, fid, keep) }
            };
            covered.into_iter().map(&mut part).collect::<Vec<Part>>()
        };
        self.answers.wait(&*self.hooks);
        parts.iter().for_each(|part| part.plan.tell(&*self.hooks, part.fid));
        Some(parts)
    }
}

impl State {
    /// What has come under the lease since these parts were taken, nobody has looked at.
    pub(super) fn covers_more(&self, lease: Fid, parts: &[Part]) -> bool {
        let known = |fid: &Fid| parts.binary_search_by_key(fid, |part| part.fid).is_ok();
        !self.holder.covered_by(lease).iter().all(known)
    }
}
