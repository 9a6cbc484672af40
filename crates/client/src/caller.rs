//! Who asked is being killed. Its operations are taken back or carried out before it is gone, as on a local disk: what a process
//! asked for does not happen after its death.
//!
//! Whoever drives an operation's future says so while it polls ([`poll_for_dying`]); what waits for the server hears of it
//! there, without a token passed through every operation.

use std::cell::Cell;
use std::task::Poll;

/// Whether a change of an operation is at the server, or may be, without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outstanding {
    No,
    Yes,
}

thread_local! {
    /// While an operation of a dying caller is polled: what was seen of it so far.
    static DYING: Cell<Option<Outstanding>> = const { Cell::new(None) };
}

/// Polls an operation whose caller is being killed: changes that wait are taken back. With [`Outstanding::No`] nothing is lost by
/// dropping the operation; else its result, which comes soon from a server that answers, says what became of it.
pub fn poll_for_dying<T>(poll: impl FnOnce() -> Poll<T>) -> (Poll<T>, Outstanding) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            DYING.set(None);
        }
    }
    DYING.set(Some(Outstanding::No));
    let _reset = Reset;
    let polled = poll();
    (polled, DYING.get().unwrap_or(Outstanding::No))
}

pub(crate) fn is_dying() -> bool {
    DYING.get().is_some()
}

/// A change of the operation that is polled waits for its answer. Without effect if its caller is well.
pub fn note_outstanding() {
    if is_dying() {
        DYING.set(Some(Outstanding::Yes));
    }
}
