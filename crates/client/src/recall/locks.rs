//! Giving back the right to decide about a file's locks, with all that were taken by it. Nothing of the kernel's depends on
//! locks, so this waits for nobody.

use crate::cache::State;
use crate::cache::held_locks::{IDLE_BEHIND, MOST_HERE};
use crate::inner::Inner;
use soda_lease::locks::{Return, Truth};
use soda_protocol::Call;
use soda_types::{Epoch, Fid, FsResult};
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
                let _ = self.return_locks(&mut state, *fid, given_back);
            }
        }
    }

    /// From now on the server decides about the file's locks: whatever is sent to it from here on comes behind this.
    ///
    /// # Errors
    /// EIO: it cannot be told, so this client decides still.
    pub(crate) fn leave_locks_to_server(self: &Arc<Inner>, state: &mut State, fid: Fid) -> FsResult<()> {
        let given_back = state.delegate.give_up(fid);
        given_back.map_or(Ok(()), |given_back| self.return_locks(state, fid, given_back))
    }

    /// The server has answered a request that changes locks of the file, and what it changes here is changed. `given`: this
    /// client may decide from now on; it does not if there are too many locks to tell them all in the end.
    pub(crate) fn lock_answered(self: &Arc<Inner>, state: &mut State, fid: Fid, given: Option<Epoch>) {
        state.delegate.answered(self.now(), fid, given);
        if state.delegate.decides(fid)
            && state.locks.count_of(fid) > MOST_HERE
            && let Some(given_back) = state.delegate.decline(fid)
        {
            let _ = self.return_locks(state, fid, given_back);
        }
    }

    /// A digest that made this file is applied: under this epoch the server knows that the client decides, if it said so. `None`:
    /// the file was gone before.
    pub(crate) fn handle_made_told(self: &Arc<Inner>, state: &mut State, fid: Fid, epoch: Option<Epoch>) {
        let Some(epoch) = epoch else { return state.delegate.forget_made(fid) };
        if let Some(given_back) = state.delegate.told(fid, epoch) {
            let _ = self.return_locks(state, fid, given_back);
        }
        self.limit_locks_here(state, fid);
    }

    /// Leaves the locks to the server if there are too many to go on.
    pub(crate) fn limit_locks_here(self: &Arc<Inner>, state: &mut State, fid: Fid) {
        if state.locks.count_of(fid) > MOST_HERE {
            let _ = self.leave_locks_to_server(state, fid);
        }
    }

    /// Gives back what nobody here used for a while.
    pub(crate) fn return_idle_locks(self: &Arc<Inner>) {
        let now = self.now();
        let mut state = crate::lock(&self.state);
        let idle = if state.writes_behind() { IDLE_BEHIND } else { IDLE };
        for fid in state.delegate.idle(now, idle) {
            if state.locks.count_of(fid) == 0 {
                let _ = self.leave_locks_to_server(&mut state, fid);
            }
        }
    }

    fn return_locks(self: &Arc<Inner>, state: &mut State, fid: Fid, given_back: Return) -> FsResult<()> {
        let Return { epoch, truth } = given_back;
        let locks = (truth == Truth::Here).then(|| state.locks.of_file(fid));
        let call = Call::LockReturn { fid, epoch, locks };
        let sent = self.send_in(state, call, move |arrived, result| {
            match &result {
                Ok(_) => arrived.state.delegate.returned(fid, epoch),
                // Asked again this client has nothing else to say; the server ends the session then.
                Err(_) if arrived.inner.is_closed() => {}
                Err(error) => {
                    tracing::error!(%fid, %error, "the server did not take the locks that were decided here")
                }
            }
            result.map(|_| ())
        });
        match &sent {
            Ok(()) => self.stats.lock_returns.one(),
            Err(error) => {
                state.delegate.keep(fid, given_back);
                tracing::error!(%fid, %error, "the server could not be told of the locks that were decided here");
            }
        }
        sent
    }
}
