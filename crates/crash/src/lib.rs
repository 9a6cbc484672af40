//! Named places at which a test can have the process die, as power cuts and `kill -9` do: between two steps, without
//! clean-up. `SODA_CRASH_POINT=name` aborts at the first passage, `name:3` at the third. Which places there are say the crates
//! that have them: `soda_client::crash`, `soda_storage::crash`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

struct Armed {
    name: String,
    passages_left: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Passes a crash point, which has to be among `all`. Costs one load when none is armed.
pub fn point(all: &[&str], name: &'static str) {
    debug_assert!(all.contains(&name), "crash point {name} is not listed");
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
    let (name, nth) = parse(&value);
    tracing::warn!(name, nth, "a crash point is armed: this process is going to abort");
    Some(Armed { name: name.to_owned(), passages_left: AtomicU64::new(nth) })
}

fn parse(value: &str) -> (&str, u64) {
    match value.rsplit_once(':') {
        Some((name, nth)) => (name, nth.parse().unwrap_or(1)),
        None => (value, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_armed_for_its_first_passage_or_for_the_one_that_is_named() {
        assert_eq!(parse("volume.staged"), ("volume.staged", 1));
        assert_eq!(parse("volume.staged:3"), ("volume.staged", 3));
        assert_eq!(parse("volume.staged:x"), ("volume.staged", 1));
    }
}
