//! What new threads begin with. Those that serve the kernel's requests may be scheduled otherwise than all others for a while,
//! and Linux has what a thread starts inherit that. So each thread that one of them may start, of a runtime, too, begins with
//! [`started`]. And what blocks does so beside the workers of a runtime ([`blocking`]).

use std::sync::OnceLock;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

static BEGIN: OnceLock<fn()> = OnceLock::new();

/// From here on [`started`] calls this. Only the first call counts.
pub fn begin_with(begin: fn()) {
    let _ = BEGIN.set(begin);
}

/// To be called first on a new thread.
pub fn started() {
    if let Some(begin) = BEGIN.get() {
        begin();
    }
}

/// Does what takes as long as a local disk likes, which may be for good. On a worker of a runtime another thread takes over the
/// worker's other tasks first: two that hang would otherwise be all there are on two cores, and answers to recalls and the
/// session's renewal would wait with them.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => block_in_place(work),
        _ => work(),
    }
}
