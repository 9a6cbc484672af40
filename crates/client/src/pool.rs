//! Threads that talk to the kernel about recalls. Each may block on a lock of the kernel's for as long as another
//! recall's answer takes, so there is always one more, up to a limit.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const MOST_THREADS: usize = 64;
/// A thread that has had nothing to do for this long ends.
const LINGER: Duration = Duration::from_secs(30);

pub(crate) type Work = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    idle: usize,
    threads: usize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    pub(crate) fn run(&self, work: Work) {
        let mut queue = crate::lock(&self.shared.queue);
        queue.work.push_back(work);
        let start = queue.idle < queue.work.len() && queue.threads < MOST_THREADS;
        if start {
            queue.threads += 1;
        }
        drop(queue);
        if !start {
            self.shared.more.notify_one();
            return;
        }
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new().name("soda-recall".into()).spawn(move || {
            crate::threads::started();
            shared.serve();
        });
        if let Err(error) = started {
            tracing::warn!(%error, "no thread for a recall: it waits for another one");
            crate::lock(&self.shared.queue).threads -= 1;
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut queue = crate::lock(&self.queue);
        loop {
            if let Some(work) = queue.work.pop_front() {
                drop(queue);
                work();
                queue = crate::lock(&self.queue);
                continue;
            }
            queue.idle += 1;
            let (woken, waited) = match self.more.wait_timeout(queue, LINGER) {
                Ok(result) => result,
                Err(poisoned) => poisoned.into_inner(),
            };
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.work.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn blocked_work_does_not_block_other_work() {
        let pool = Pool::default();
        let (sender, receiver) = mpsc::channel();
        let (release, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(Mutex::new(blocked));
        for _ in 0..5 {
            let blocked = Arc::clone(&blocked);
            pool.run(Box::new(move || {
                let _ = blocked.lock().unwrap().recv();
            }));
        }
        pool.run(Box::new(move || sender.send(7).unwrap()));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)), Ok(7));
        drop(release);
    }
}
