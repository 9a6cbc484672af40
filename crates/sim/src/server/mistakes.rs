//! Mistakes that are made between the lease table and its driver.

use super::Server;
use crate::context::Context;
use crate::sabotage::Sabotage;
use soda_types::{Monotonic, SessionId};

impl Server {
    pub(super) fn sabotage_table(&mut self, context: &mut Context, now: Monotonic) {
        let Some(running) = &mut self.running else { return };
        if context.config.sabotage != Sabotage::FenceAtOnce {
            return;
        }
        // Whoever leaves a recall unanswered for a third of the deadline is thrown out, expired or not.
        let patience = context.config.table.recall_deadline / 3;
        let silent: Vec<SessionId> = running
            .table
            .leases(now, usize::MAX)
            .iter()
            .filter(|lease| lease.holder.recalled_for.is_some_and(|waited| waited > patience))
            .map(|lease| lease.holder.session)
            .collect();
        for session in silent {
            self.forget_session(context, session);
            if let Some(running) = &mut self.running {
                running.table.close_session(now, session);
            }
        }
    }
}
