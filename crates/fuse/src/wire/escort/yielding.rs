//! The thread of an io_uring queue lets its callers go first: `SCHED_IDLE`, on the core that it is bound to.
//!
//! The problem: who is answered is woken while the thread that answers still runs, so Linux wakes him on another core that is
//! idle (`select_idle_sibling` in `kernel/sched/fair.c`). That costs as much as over the device, and his next request goes to
//! that core's queue, whose thread has to be woken there; then he comes back. A core that runs nothing but `SCHED_IDLE`
//! counts as idle, so he stays.
//!
//! The callers of a core are answered by its queue, so unlike [`super::Escort`] this does not ask whether it is one caller. It
//! asks for many requests in a row, of each queue by itself, and whether the thread gets its core: a program that computes
//! there leaves it 3 of 1,027 parts of it. So the supervisor looks every [`TICK`]. First the thread stays as it is ([`Trial`]):
//! where it waits for its core there is nothing to be had, since no other core is idle, either. In `SCHED_IDLE` it is taken
//! back if it wants to run and has read nothing since the last look. Either way it is not tried again before a pause, which
//! doubles. The rest of what can go wrong is said of [`super::Escort`]; who starts threads here has them begin with
//! `soda_client::threads::started`, too, or they are bound as the queue's.

use super::policy::{Judge, Look, Pauses, Reason, Run, Trial, Verdict};
use super::sched::{self, Observed, Policy, Seen};
use super::{Hurry, TICK, lock};
use crate::unpoisoned::Unpoisoned;
use rustix::thread::Pid;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// [`Run`] and [`Judge`] are told of callers and cores: of a queue it is all the same who asks, and the core is its own.
const ANYBODY: u32 = 1;
const OWN: usize = 0;

/// What the threads of a mount's queues and their supervisor share.
#[derive(Debug)]
pub(in crate::wire) struct Yielding {
    began: Instant,
    /// The supervisor is there.
    is_possible: AtomicBool,
    queues: Vec<Member>,
    orders: Mutex<Orders>,
    ordered: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    /// Queues with many requests.
    wanted: Vec<usize>,
    has_ended: bool,
}

/// The thread of a queue.
#[derive(Debug, Default)]
struct Member {
    requests: AtomicU64,
    is_idle: AtomicBool,
    /// Nanoseconds after `began` before which it is not to be in `SCHED_IDLE` again.
    not_before: AtomicU64,
    /// `None`: not begun, or ended. Its policy is changed under this lock only, so that it cannot end meanwhile.
    thread: Mutex<Option<Pid>>,
}

impl Member {
    fn set_policy(&self, policy: Policy) -> io::Result<()> {
        let thread = lock(&self.thread);
        let Some(pid) = *thread else { return Err(io::ErrorKind::NotFound.into()) };
        sched::set_policy(pid, policy)?;
        self.is_idle.store(policy == Policy::Idle, Ordering::Release);
        Ok(())
    }

    fn take_back(&self) {
        if self.is_idle.load(Ordering::Acquire)
            && let Err(error) = self.set_policy(Policy::Ordinary)
        {
            // It has ended, or this process has lost CAP_SYS_NICE.
            tracing::debug!(%error, "the thread of a queue stays in SCHED_IDLE");
        }
    }
}

impl Yielding {
    pub(in crate::wire) fn new(queues: usize) -> Arc<Yielding> {
        Arc::new(Yielding {
            began: Instant::now(),
            is_possible: AtomicBool::new(false),
            queues: std::iter::repeat_with(Member::default).take(queues).collect(),
            orders: Mutex::default(),
            ordered: Condvar::new(),
        })
    }

    /// The mount is gone.
    pub(in crate::wire) fn end(&self) {
        lock(&self.orders).has_ended = true;
        self.ordered.notify_one();
    }

    /// Does the supervisor's work until the mount is gone; returns at once where it is not possible. For a thread of its own,
    /// which has the cores and the policy that all threads have.
    pub(in crate::wire) fn supervise(&self) {
        if let Err(why) = sched::check() {
            tracing::info!(%why, "who is answered over io_uring may be woken on another core");
            return;
        }
        self.is_possible.store(true, Ordering::Relaxed);
        let mut watches: Vec<Option<Watch>> = self.queues.iter().map(|_| None).collect();
        let mut pauses: Vec<Pauses> = self.queues.iter().map(|_| Pauses::default()).collect();
        while let Some(wanted) = self.orders(watches.iter().any(Option::is_some)) {
            for queue in wanted {
                if watches[queue].is_some() {
                    continue;
                }
                match Watch::begin(&self.queues[queue]) {
                    Ok(watch) => watches[queue] = Some(watch),
                    Err(error) => tracing::debug!(queue, %error, "a queue's thread stays as it is"),
                }
            }
            for (queue, (slot, pauses)) in watches.iter_mut().zip(&mut pauses).enumerate() {
                let member = &self.queues[queue];
                let Some(reason) = slot.as_mut().and_then(|watch| watch.look(member)) else { continue };
                member.take_back();
                let lasted = slot.take().map_or(Duration::ZERO, |watch| watch.began.elapsed());
                let not_before = self.began.elapsed() + pauses.after(reason, lasted);
                member.not_before.store(not_before.as_nanos() as u64, Ordering::Relaxed);
                tracing::trace!(queue, ?reason, ?lasted, "a queue's thread is scheduled as usual again");
            }
        }
        self.hurry();
    }

    /// Queues with many requests; waits for some, but for [`TICK`] only if others are to be looked after. `None`: the end.
    fn orders(&self, is_watching: bool) -> Option<Vec<usize>> {
        let mut orders = lock(&self.orders);
        loop {
            if orders.has_ended {
                return None;
            }
            if !orders.wanted.is_empty() {
                return Some(std::mem::take(&mut orders.wanted));
            }
            if !is_watching {
                orders = self.ordered.wait(orders).unpoisoned();
                continue;
            }
            let waited = self.ordered.wait_timeout(orders, TICK);
            let (after, timed_out) = waited.unpoisoned();
            orders = after;
            if timed_out.timed_out() && orders.wanted.is_empty() && !orders.has_ended {
                return Some(Vec::new());
            }
        }
    }
}

impl Hurry for Yielding {
    fn hurry(&self) {
        self.queues.iter().for_each(Member::take_back);
    }
}

/// A thread that is in `SCHED_IDLE`, or will be if its trial ends well.
struct Watch {
    began: Instant,
    looked_at: Instant,
    seen: Observed,
    judge: Judge,
    requests_before: u64,
    /// `None`: it is over.
    trial: Option<Trial>,
}

impl Watch {
    fn begin(member: &Member) -> io::Result<Watch> {
        let thread = lock(&member.thread).ok_or(io::ErrorKind::NotFound)?;
        let seen = Observed::open(thread.as_raw_nonzero().get() as u32)?;
        let now = Instant::now();
        let waited = seen.look()?.waited;
        let (judge, trial) = (Judge::new(OWN, waited, now), Some(Trial::new(waited, now)));
        let requests_before = member.requests.load(Ordering::Relaxed);
        Ok(Watch { began: now, looked_at: now, seen, judge, requests_before, trial })
    }

    /// Why it should not be in `SCHED_IDLE`, or not any more.
    fn look(&mut self, member: &Member) -> Option<Reason> {
        if self.trial.is_none() && !member.is_idle.load(Ordering::Acquire) {
            return Some(Reason::Company);
        }
        let now = Instant::now();
        // Another queue's wish may have come sooner.
        if now.duration_since(self.looked_at) < TICK {
            return None;
        }
        self.looked_at = now;
        let requests = member.requests.load(Ordering::Relaxed).wrapping_sub(self.requests_before);
        let Ok(seen) = self.seen.look() else { return Some(Reason::Gone) };
        let has_asked = self.judge.has_asked(requests);
        if let Verdict::Leave(reason) = self.judge.look(&look_of(seen, requests, has_asked), now) {
            return Some(reason);
        }
        match self.trial.as_ref().filter(|_| has_asked)?.passes(seen.waited, now)? {
            true => {
                self.trial = None;
                member.set_policy(Policy::Idle).err().map(|_| Reason::Refused)
            }
            false => Some(Reason::Crowd),
        }
    }
}

fn look_of(seen: Seen, requests: u64, has_asked: bool) -> Look {
    Look { core: OWN, waited: seen.waited, requests, is_held_up: seen.is_runnable && !has_asked }
}

/// The part of a queue's thread in it, from its begin to its end.
#[derive(Debug)]
pub(in crate::wire) struct Place {
    yielding: Arc<Yielding>,
    queue: usize,
    run: Run,
}

impl Place {
    /// For the calling thread.
    pub(in crate::wire) fn take(yielding: &Arc<Yielding>, queue: usize) -> Place {
        *lock(&yielding.queues[queue].thread) = Some(rustix::thread::gettid());
        Place { yielding: yielding.clone(), queue, run: Run::new(Instant::now()) }
    }

    /// To be called for each request.
    pub(in crate::wire) fn request(&mut self) {
        let member = &self.yielding.queues[self.queue];
        member.requests.fetch_add(1, Ordering::Relaxed);
        if member.is_idle.load(Ordering::Relaxed) || !self.yielding.is_possible.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let since_begin = now.duration_since(self.yielding.began).as_nanos() as u64;
        if self.run.request(ANYBODY, now) && since_begin >= member.not_before.load(Ordering::Relaxed) {
            let mut orders = lock(&self.yielding.orders);
            if !orders.wanted.contains(&self.queue) {
                orders.wanted.push(self.queue);
            }
            drop(orders);
            self.yielding.ordered.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let member = &self.yielding.queues[self.queue];
        *lock(&member.thread) = None;
        member.is_idle.store(false, Ordering::Release);
        sched::run_as_usual();
    }
}

#[cfg(test)]
// Tests fail by panicking.
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, JoinHandle};

    /// Longer than anything takes on the slowest machine.
    const LIMIT: Duration = Duration::from_secs(60);

    type Job = Box<dyn FnOnce(&mut Place) + Send>;

    /// A queue's thread that reads nothing, on the scheduler of this machine.
    struct Queue {
        yielding: Arc<Yielding>,
        jobs: Sender<Job>,
        thread: JoinHandle<()>,
        pid: Pid,
    }

    /// `None`: not on this machine.
    fn queue() -> Option<Queue> {
        if let Err(why) = sched::check() {
            println!("SKIPPED: {why}");
            return None;
        }
        let yielding = Yielding::new(1);
        yielding.is_possible.store(true, Ordering::Relaxed);
        let (jobs, to_do) = channel::<Job>();
        let (tell, told) = channel();
        let of_thread = yielding.clone();
        let thread = thread::spawn(move || {
            let mut place = Place::take(&of_thread, 0);
            tell.send(rustix::thread::gettid()).unwrap();
            to_do.iter().for_each(|job| job(&mut place));
        });
        let pid = told.recv_timeout(LIMIT).unwrap();
        Some(Queue { yielding, jobs, thread, pid })
    }

    impl Queue {
        fn member(&self) -> &Member {
            &self.yielding.queues[0]
        }

        /// Begins something, and returns when it has begun.
        fn begin(&self, job: impl FnOnce(&mut Place) + Send + 'static) {
            let (tell, told) = channel();
            let job = move |place: &mut Place| {
                tell.send(()).unwrap();
                job(place);
            };
            self.jobs.send(Box::new(job)).unwrap();
            told.recv_timeout(LIMIT).unwrap();
        }

        /// Many requests, and what was ordered then.
        fn ask(&self) -> Vec<usize> {
            self.begin(|place| (0..200).for_each(|_| place.request()));
            self.begin(|_| ());
            std::mem::take(&mut lock(&self.yielding.orders).wanted)
        }

        fn policy(&self) -> Policy {
            sched::policy_of(self.pid).unwrap()
        }

        fn end(self) {
            // In `SCHED_IDLE` it might take seconds to end.
            self.member().take_back();
            drop(self.jobs);
            self.thread.join().unwrap();
        }
    }

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let until = Instant::now() + LIMIT;
        while !condition() {
            assert!(Instant::now() < until, "TIMED OUT: {what}: not within {LIMIT:?}");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Past its trial.
    fn begin_idle(queue: &Queue) -> Watch {
        let watch = Watch::begin(queue.member()).unwrap();
        queue.member().set_policy(Policy::Idle).unwrap();
        Watch { trial: None, ..watch }
    }

    /// What ends it.
    fn reason(queue: &Queue, mut watch: Watch) -> Reason {
        let mut reason = None;
        wait_until("a verdict", || {
            reason = watch.look(queue.member());
            reason.is_some()
        });
        reason.unwrap()
    }

    /// Keeps the thread at something until the flag is taken away.
    fn busy(queue: &Queue, mut at: impl FnMut(&mut Place) + Send + 'static) -> Arc<AtomicBool> {
        let goes_on = Arc::new(AtomicBool::new(true));
        let keeps = goes_on.clone();
        queue.begin(move |place| {
            while keeps.load(Ordering::Relaxed) {
                at(place);
            }
        });
        goes_on
    }

    #[test]
    fn many_requests_are_wanted_once_and_not_in_a_pause() {
        let Some(queue) = queue() else { return };
        wait_until("it is wanted", || queue.ask() == [0]);
        queue.member().not_before.store(u64::MAX, Ordering::Relaxed);
        assert!(queue.ask().is_empty());
        queue.member().not_before.store(0, Ordering::Relaxed);
        queue.yielding.is_possible.store(false, Ordering::Relaxed);
        assert!(queue.ask().is_empty(), "there is no supervisor");
        queue.end();
    }

    /// With a trial that ends well, however long the thread waits for its core: this machine may compute other things.
    #[test]
    fn while_requests_come_the_thread_lets_others_go_first() {
        let Some(queue) = queue() else { return };
        let begin = || Watch {
            trial: Some(Trial::new(Duration::MAX, Instant::now())),
            ..Watch::begin(queue.member()).unwrap()
        };
        let asks = busy(&queue, |place| {
            place.request();
            thread::sleep(Duration::from_micros(20));
        });
        let mut watch = begin();
        wait_until("requests come", || {
            if watch.look(queue.member()).is_some() {
                queue.member().take_back();
                watch = begin();
            }
            queue.policy() == Policy::Idle
        });
        asks.store(false, Ordering::Relaxed);
        reason(&queue, watch);
        queue.member().take_back();
        assert_eq!(queue.policy(), Policy::Ordinary);
        queue.end();
    }

    #[test]
    fn the_supervisor_ends_with_the_mount_and_leaves_no_thread_as_it_was() {
        let Some(queue) = queue() else { return };
        let yielding = queue.yielding.clone();
        let supervisor = thread::spawn(move || yielding.supervise());
        wait_until("it takes orders", || {
            queue.begin(|place| (0..200).for_each(|_| place.request()));
            lock(&queue.yielding.orders).wanted.is_empty()
        });
        queue.member().set_policy(Policy::Idle).unwrap();
        queue.yielding.end();
        wait_until("it has ended", || supervisor.is_finished());
        assert_eq!(queue.policy(), Policy::Ordinary);
        supervisor.join().unwrap();
        queue.end();
    }

    #[test]
    fn a_supervisor_with_nothing_to_do_ends_with_the_mount() {
        if let Err(why) = sched::check() {
            return println!("SKIPPED: {why}");
        }
        let yielding = Yielding::new(1);
        let (of_thread, (tell, told)) = (yielding.clone(), channel());
        let supervisor = thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            of_thread.supervise();
        });
        let pid = told.recv_timeout(LIMIT).unwrap();
        let seen = Observed::open(pid.as_raw_nonzero().get() as u32).unwrap();
        let has_begun = || yielding.is_possible.load(Ordering::Relaxed);
        wait_until("it waits for orders", || has_begun() && !seen.look().unwrap().is_runnable);
        yielding.end();
        wait_until("it has ended", || supervisor.is_finished());
        supervisor.join().unwrap();
    }

    /// However much it waits for its core, which depends on what else this machine does.
    #[test]
    fn who_wants_to_run_and_has_read_nothing_is_held_up() {
        let seen = |is_runnable| Seen { is_runnable, core: 3, waited: Duration::from_millis(5) };
        let (judged, asks) = (look_of(seen(true), 7, false), look_of(seen(true), 7, true));
        assert!(judged.is_held_up && !asks.is_held_up && !look_of(seen(false), 7, false).is_held_up);
        assert_eq!((judged.core, judged.requests, judged.waited), (OWN, 7, Duration::from_millis(5)));
    }

    #[test]
    fn a_thread_that_sleeps_falls_silent_and_one_that_gets_nowhere_is_held_up() {
        let Some(queue) = queue() else { return };
        queue.begin(|_| ());
        let thread = Observed::open(queue.pid.as_raw_nonzero().get() as u32).unwrap();
        wait_until("it sleeps", || !thread.look().unwrap().is_runnable);
        assert_eq!(reason(&queue, Watch::begin(queue.member()).unwrap()), Reason::Silence);
        assert_eq!(queue.policy(), Policy::Ordinary);
        assert_eq!(reason(&queue, begin_idle(&queue)), Reason::Silence);
        queue.member().take_back();
        let spins = busy(&queue, |_| std::hint::spin_loop());
        assert_eq!(reason(&queue, begin_idle(&queue)), Reason::Crowd);
        spins.store(false, Ordering::Relaxed);
        queue.end();
    }

    #[test]
    fn who_is_in_a_hurry_takes_it_back_at_once() {
        let Some(queue) = queue() else { return };
        let watch = begin_idle(&queue);
        assert_eq!(queue.policy(), Policy::Idle);
        queue.yielding.hurry();
        assert_eq!(queue.policy(), Policy::Ordinary);
        assert_eq!(reason(&queue, watch), Reason::Company);
        let member = queue.yielding.clone();
        queue.end();
        assert!(Watch::begin(&member.queues[0]).is_err(), "it has ended");
        assert_eq!(*lock(&member.queues[0].thread), None, "its number may be another thread's by now");
    }
}
