//! What new threads begin with. Those that serve the kernel's requests may be scheduled otherwise than all others for a while,
//! and Linux has what a thread starts inherit that. So each thread that one of them may start, of a runtime, too, begins with
//! [`started`].

use std::sync::OnceLock;

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
