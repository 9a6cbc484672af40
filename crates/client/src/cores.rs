//! On which cores threads run. Those that serve the kernel's requests may for a while be bound to the core of whoever they
//! answer, and Linux has what a thread starts inherit that. So each thread that one of them may start, of a runtime, too, begins
//! with [`run_anywhere`].

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::OnceLock;

static FREE: OnceLock<CpuSet> = OnceLock::new();

/// The cores of this thread are those of the process: to be called before any thread is bound. Only the first call counts.
pub fn remember() {
    if let Ok(cores) = sched_getaffinity(None) {
        let _ = FREE.set(cores);
    }
}

/// What was remembered.
pub fn free() -> Option<CpuSet> {
    FREE.get().copied()
}

/// Takes back what this thread inherited from one that is bound. Does nothing where no thread ever is.
pub fn run_anywhere() {
    let Some(free) = FREE.get() else { return };
    if sched_getaffinity(None).is_ok_and(|cores| cores.count() == 1 && free.count() > 1) {
        // Fails if the process was moved to other cores since: Linux has seen to its threads then.
        let _ = sched_setaffinity(None, free);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bound_thread_starts_runs_anywhere() {
        remember();
        let free = free().unwrap();
        let Some(core) = (0..CpuSet::MAX_CPU).find(|core| free.is_set(*core)) else { return };
        let count = || sched_getaffinity(None).unwrap().count();
        let inherits = move || {
            let mut one = CpuSet::new();
            one.set(core);
            sched_setaffinity(None, &one).unwrap();
            let started = std::thread::spawn(move || {
                let before = count();
                run_anywhere();
                (before, count())
            });
            (count(), started.join().unwrap())
        };
        assert_eq!(std::thread::spawn(inherits).join().unwrap(), (1, (1, free.count())));
        assert_eq!(count(), free.count());
    }
}
