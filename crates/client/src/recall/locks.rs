//! Giving back the right to decide about a file's locks, with all that were taken by it. Nothing of the kernel's depends on
//! locks, so this waits for nobody.

use crate::cache::State;
use crate::inner::Inner;
use soda_lease::locks::{Return, Truth};
use soda_protocol::Call;
use soda_types::{Epoch, Fid};
use std::sync::Arc;
use std::time::Duration;

/// Who did not lock for so long asks again: others need not wait for this machine then.
const IDLE: Duration = Duration::from_secs(10);

impl Inner {
    /// Others ask for locks of these files.
    pub(crate) fn handle_lock_recalls(self: &Arc<Inner>, recalls: &[(Fid, Epoch)]) {
        self.stats.lock_recalls.add(recalls.len() as u64);
        let mut state = crate::lock(&self.state);
        for (fid, epoch) in recalls {
            if let Some(given_back) = state.delegate.recalled(*fid, *epoch) {
                self.return_locks(&mut state, *fid, given_back);
            }
        }
    }

    /// From now on the server decides about the file's locks: whatever is sent to it from here on comes behind this.
    pub(crate) fn leave_locks_to_server(self: &Arc<Inner>, state: &mut State, fid: Fid) {
        if let Some(given_back) = state.delegate.give_up(fid) {
            self.return_locks(state, fid, given_back);
        }
    }

    /// Gives back what nobody here used for a while.
    pub(crate) fn return_idle_locks(self: &Arc<Inner>) {
        let now = self.now();
        let mut state = crate::lock(&self.state);
        for fid in state.delegate.idle(now, IDLE) {
            if state.locks.count_of(fid) == 0 {
                self.leave_locks_to_server(&mut state, fid);
            }
        }
    }

    fn return_locks(self: &Arc<Inner>, state: &mut State, fid: Fid, given_back: Return) {
        self.stats.lock_returns.one();
        let Return { epoch, truth } = given_back;
        let locks = (truth == Truth::Here).then(|| state.locks.of_file(fid));
        self.send_in(state, Call::LockReturn { fid, epoch, locks }, move |arrived, result| {
            arrived.state.delegate.returned(fid, epoch);
            result.map(|_| ())
        });
    }
}
