//! Group commit: of many callers that want everything so far to be durable, one works for all.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Rounds begun.
    begun: u64,
    /// Rounds that ended well, up to and including this one.
    done: u64,
    running: bool,
}

impl GroupSync {
    /// Returns when a round of `work` that began after the call has ended well, whoever ran it. A round that fails fails
    /// for its runner; the others try themselves.
    pub(crate) fn run<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.lock();
        let wanted = state.begun + 1;
        while state.running && state.done < wanted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.done >= wanted {
            return Ok(());
        }
        state.running = true;
        state.begun += 1;
        let round = state.begun;
        drop(state);
        let result = work();
        let mut state = self.lock();
        state.running = false;
        if result.is_ok() {
            state.done = round;
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    #[test]
    fn many_callers_share_rounds_and_each_round_began_after_its_callers() {
        let group = GroupSync::default();
        let (written, durable, rounds) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                        group
                            .run(|| {
                                let seen = written.load(Ordering::SeqCst);
                                std::thread::sleep(Duration::from_millis(1));
                                durable.fetch_max(seen, Ordering::SeqCst);
                                rounds.fetch_add(1, Ordering::SeqCst);
                                Ok::<(), ()>(())
                            })
                            .unwrap();
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        assert!(rounds.load(Ordering::SeqCst) < 160, "rounds were not shared");
    }

    #[test]
    fn a_failed_round_is_not_taken_for_done() {
        let group = GroupSync::default();
        assert_eq!(group.run(|| Err(5)), Err(5));
        assert_eq!(group.run(|| Ok::<(), i32>(())), Ok(()));
    }
}
