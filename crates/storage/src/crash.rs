//! Named places at which a test can have the process die, as power cuts and `kill -9` do: between two steps, without
//! clean-up. `SODA_CRASH_POINT=name` aborts at the first passage, `name:3` at the third.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every crash point of the storage, volume and server crates.
pub const ALL: &[&str] = &[
    "format.begun",
    "format.written",
    "meta.commit.before",
    "meta.commit.after",
    "meta.sync.before",
    "meta.sync.after",
    "segment.created",
    "segment.half-written",
    "segment.appended",
    "segment.synced",
    "segment.punched",
    "segment.deleted",
    "volume.created",
    "volume.run-begun",
    "volume.inodes-reserved",
    "volume.staged",
    "volume.commit.before",
    "volume.commit.after",
    "volume.sync.data-done",
    "volume.sync.done",
    "volume.release.punched",
    "volume.release.recorded",
    "volume.reclaim.step",
    "volume.reclaim.done",
    "volume.swept",
    "server.started",
    "server.round-data-synced",
    "server.session-stored",
    "server.session-ended",
    "server.change-committed",
    "server.failure-stored",
    "server.orphan-dropped",
    "server.session-resumed",
    "server.reclaim-taken",
    "server.reclaim-last",
    "server.grace-ended",
    "server.lock-taken",
    "server.locks-freed",
    "server.goodbye",
    "server.reserved",
    "server.digest-staged",
    "server.digest-admitted",
    "server.digest-applied",
    "server.digest-committed",
];

struct Armed {
    name: String,
    passages_left: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Passes a crash point. Costs one load when none is armed.
pub fn point(name: &'static str) {
    debug_assert!(ALL.contains(&name), "crash point {name} is not listed");
    if let Some(armed) = ARMED.get_or_init(from_environment)
        && armed.name == name
        && armed.passages_left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        std::process::abort();
    }
}

/// Whether the next passage of `name` aborts: lets a step be done by halves first.
pub fn is_next(name: &'static str) -> bool {
    matches!(ARMED.get_or_init(from_environment),
        Some(armed) if armed.name == name && armed.passages_left.load(Ordering::SeqCst) == 1)
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
