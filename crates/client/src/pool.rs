//! Threads that talk to the kernel: of the client about recalls, of the kernel's side ([`KernelHooks`](crate::KernelHooks)) about
//! what it must drop. Each may block on a lock of the kernel's for as long as another recall's answer takes, so there is always
//! one more, up to a limit.
//!
//! No work is lost. What the kernel was not told counts as told otherwise, and somebody reads stale data; so one thread is there
//! from the beginning and stays, for the time in which no other can be started.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::Duration;

/// A thread that has had nothing to do for this long ends, but for the last.
const LINGER: Duration = Duration::from_secs(30);

pub type Work = Box<dyn FnOnce() + Send>;

/// When the last clone is dropped its threads finish the work that there is, and end.
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

struct Owner {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    most_threads: usize,
    linger: Duration,
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    idle: usize,
    threads: usize,
    closed: bool,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    /// # Errors
    /// Its first thread cannot be started.
    pub fn start(name: &'static str, most_threads: usize) -> io::Result<Pool> {
        Pool::start_with(name, most_threads, LINGER)
    }

    fn start_with(name: &'static str, most_threads: usize, linger: Duration) -> io::Result<Pool> {
        let queue = Mutex::new(Queue { threads: 1, ..Queue::default() });
        let shared = Arc::new(Shared { name, most_threads, linger, queue, more: Condvar::new() });
        shared.start_thread()?;
        Ok(Pool { owner: Arc::new(Owner { shared }) })
    }

    /// Returns at once. Where no thread can be started the work waits for one of those that there are.
    pub fn run(&self, work: Work) {
        let shared = &self.owner.shared;
        let mut queue = crate::lock(&shared.queue);
        queue.work.push_back(work);
        let start = queue.idle < queue.work.len() && queue.threads < shared.most_threads;
        if start {
            queue.threads += 1;
        }
        drop(queue);
        if !start {
            shared.more.notify_one();
            return;
        }
        if let Err(error) = shared.start_thread() {
            tracing::warn!(%error, pool = shared.name, "no thread can be started: the kernel is told by those that there are");
            crate::lock(&shared.queue).threads -= 1;
            shared.more.notify_one();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        crate::lock(&self.shared.queue).closed = true;
        self.shared.more.notify_all();
    }
}

impl Shared {
    /// One that is counted already.
    fn start_thread(self: &Arc<Shared>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let started = Builder::new().name(self.name.to_owned()).spawn(move || {
            crate::threads::started();
            shared.serve();
        });
        started.map(drop)
    }

    fn serve(&self) {
        let mut queue = crate::lock(&self.queue);
        loop {
            // Under the lock under which work is added: what comes later finds this thread gone.
            if let Some(work) = queue.work.pop_front() {
                drop(queue);
                work();
                queue = crate::lock(&self.queue);
                continue;
            }
            if queue.closed {
                queue.threads -= 1;
                return;
            }
            queue.idle += 1;
            let (woken, waited) = match self.more.wait_timeout(queue, self.linger) {
                Ok(result) => result,
                Err(poisoned) => poisoned.into_inner(),
            };
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.work.is_empty() && queue.threads > 1 {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(60);

    fn answer(pool: &Pool) -> Receiver<()> {
        let (done, is_done) = channel();
        pool.run(Box::new(move || done.send(()).unwrap()));
        is_done
    }

    /// Work that has begun, and ends when the sender is dropped.
    fn block(pool: &Pool) -> Sender<()> {
        let (release, blocked) = channel::<()>();
        let (began, has_begun) = channel();
        pool.run(Box::new(move || {
            began.send(()).unwrap();
            let _ = blocked.recv();
        }));
        has_begun.recv_timeout(LIMIT).expect("TIMED OUT");
        release
    }

    #[test]
    fn blocked_work_does_not_block_other_work() {
        let pool = Pool::start("test", 64).unwrap();
        let _blocked: Vec<Sender<()>> = (0..5).map(|_| block(&pool)).collect();
        answer(&pool).recv_timeout(LIMIT).expect("TIMED OUT");
    }

    #[test]
    fn work_beyond_the_most_threads_waits_for_one_of_them() {
        let pool = Pool::start("test", 2).unwrap();
        let blocked = [block(&pool), block(&pool)];
        let waits = answer(&pool);
        assert!(waits.try_recv().is_err());
        drop(blocked);
        waits.recv_timeout(LIMIT).expect("TIMED OUT");
    }

    /// Threads that end just then: each piece of work comes when one has had nothing to do for so long.
    #[test]
    fn work_that_comes_when_threads_end_is_done_and_the_last_thread_stays() {
        let linger = Duration::from_micros(200);
        let pool = Pool::start_with("test", 64, linger).unwrap();
        let threads = || crate::lock(&pool.owner.shared.queue).threads;
        for round in 0..2000 {
            let several: Vec<Receiver<()>> = (0..3).map(|_| answer(&pool)).collect();
            several.iter().for_each(|done| done.recv_timeout(LIMIT).expect("TIMED OUT"));
            let nearly = linger - Duration::from_micros(50) + Duration::from_micros(round % 100);
            let until = Instant::now() + nearly;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        let began = Instant::now();
        while threads() > 1 {
            assert!(began.elapsed() < LIMIT, "TIMED OUT");
            std::thread::yield_now();
        }
        std::thread::sleep(linger * 20);
        assert_eq!(threads(), 1);
    }

    #[test]
    fn threads_end_with_the_pool_after_what_is_left_to_do() {
        let pool = Pool::start("test", 1).unwrap();
        let shared = Arc::clone(&pool.owner.shared);
        let blocked = block(&pool);
        let last = answer(&pool);
        drop(pool.clone());
        drop(pool);
        drop(blocked);
        last.recv_timeout(LIMIT).expect("TIMED OUT");
        let began = Instant::now();
        while crate::lock(&shared.queue).threads > 0 {
            assert!(began.elapsed() < LIMIT, "TIMED OUT");
            std::thread::yield_now();
        }
    }
}
