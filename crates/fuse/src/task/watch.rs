//! Looks for signals that end operations. The kernel tells of the first signal only, and over io_uring not always of that.

use super::{Interruptible, Task, Tasks};
use crate::caller::{Seen, Signals, is_dying, look_at};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often an interrupted operation's process is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How often the processes of operations that wait for long are looked at. Over io_uring, Linux (6.18) tells of no signal that
/// comes between the moment in which it takes a request on and the one in which it has handed it over.
const LOOK_AROUND: Duration = Duration::from_millis(250);

/// So many of them at a time: each takes some 10 microseconds, on a thread that answers. Where thousands wait it takes longer
/// until all were looked at.
const LOOKS: usize = 128;

impl Tasks {
    /// Looks for signals that nobody told of, as long as anybody else holds this.
    pub(crate) fn start_looking_around(self: &Arc<Self>) {
        let tasks = Arc::downgrade(self);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(LOOK_AROUND).await;
                let Some(tasks) = tasks.upgrade() else { return };
                tasks.look_around();
            }
        });
    }

    /// Those that have waited for long, in turn.
    fn to_look_at(&self) -> Vec<Arc<Task>> {
        let mut waiting = self.waiting();
        let tasks = waiting.tasks.values().filter(|task| task.seen.swap(true, Ordering::Relaxed));
        let mut tasks: Vec<_> = tasks.cloned().collect();
        // From the one after the last.
        let first = waiting.looked_at.wrapping_add(1);
        tasks.sort_unstable_by_key(|task| task.unique.wrapping_sub(first));
        tasks.truncate(LOOKS);
        if let Some(last) = tasks.last() {
            waiting.looked_at = last.unique;
        }
        tasks
    }

    fn look_around(&self) {
        for task in self.to_look_at() {
            if task.has_signal() {
                match &task.interruptible {
                    Interruptible::AnySignal(signal) => signal.notify_one(),
                    Interruptible::Death => task.die(),
                }
            }
        }
    }
}

impl Task {
    /// Whether a signal that ends it is pending. A thread that is not there waits for nothing: the kernel wants the rest.
    fn has_signal(&self) -> bool {
        let Seen::Status(status) = look_at(self.tid) else { return false };
        let signals = Signals::of(&status);
        match self.interruptible {
            Interruptible::AnySignal(_) => signals.is_fatal() || signals.is_heard(),
            Interruptible::Death => signals.is_fatal(),
        }
    }
}

/// The kernel tells of the first signal only; a killing one may follow.
pub(super) async fn give_up_on_death(task: Arc<Task>) {
    let interrupted = Instant::now();
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if task.is_finished() {
            return;
        }
        if is_dying(task.tid).unwrap_or_else(|| interrupted.elapsed() >= task.tasks.unseen) {
            return task.die();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::tests::{tasks, wait_for_lock};

    #[tokio::test]
    async fn of_many_that_wait_some_are_looked_at_at_a_time_and_all_in_turn() {
        let (tasks, _) = tasks();
        let all = 3 * LOOKS as u64;
        // Numbers as the kernel's, which are even.
        (1..=all).for_each(|number| {
            tasks.run(number * 2, u32::MAX, Interruptible::Death, std::future::pending());
        });
        assert!(tasks.to_look_at().is_empty(), "they have only come");
        let look = || tasks.to_look_at().iter().map(|task| task.unique / 2).collect::<Vec<_>>();
        let rounds = [look(), look(), look()];
        assert!(rounds.iter().all(|round| round.len() == LOOKS));
        assert_eq!(rounds.concat(), (1..=all).collect::<Vec<_>>());
        assert_eq!(look(), rounds[0]);
    }

    /// As if Linux had told of none of the signals.
    #[tokio::test]
    async fn a_signal_that_nobody_told_of_is_found() {
        let (tasks, seen) = tasks();
        // Blocked signals wait for a thread that sleeps: this one's are not heard.
        wait_for_lock(&tasks, &seen, 1, std::process::id());
        tasks.run(2, u32::MAX, Interruptible::Death, std::future::pending());
        tasks.look_around();
        tasks.look_around();
        assert_eq!((seen.0.lock().unwrap().len(), tasks.len()), (0, 2));
    }
}
