//! Named places at which a test can have the process die, as `kill -9` does: between two steps, without clean-up.
//! `SODA_CRASH_POINT=name` aborts at the first passage, `name:3` at the third. Those of the server are `soda_storage::crash`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every crash point of the client.
pub const ALL: &[&str] = &[
    "client.session-begun",
    "client.record-queued",
    "client.record-written",
    "client.digest-noted",
    "client.digest-answered",
    "client.digest-applied",
    "client.durable",
    "client.replay-resumed",
    "client.replay-noted",
    "client.replay-answered",
    "client.replay-told",
    "client.replay-over",
];

struct Armed {
    name: String,
    passages_left: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Passes a crash point. Costs one load when none is armed.
pub(crate) fn point(name: &'static str) {
    debug_assert!(ALL.contains(&name), "crash point {name} is not listed");
    if let Some(armed) = ARMED.get_or_init(from_environment)
        && armed.name == name
        && armed.passages_left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        std::process::abort();
    }
}

fn from_environment() -> Option<Armed> {
    let value = std::env::var("SODA_CRASH_POINT").ok().filter(|value| !value.is_empty())?;
    let (name, nth) = match value.rsplit_once(':') {
        Some((name, nth)) => (name.to_owned(), nth.parse().unwrap_or(1)),
        None => (value, 1),
    };
    tracing::warn!(name, nth, "a crash point is armed: this process is going to abort");
    Some(Armed { name, passages_left: AtomicU64::new(nth) })
}
