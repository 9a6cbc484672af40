//! Runs a request: polled once where it arrived, which is all that a warm one needs; the rest of its way on tokio.
//!
//! A request that waits is woken by the thread that has its answer and goes on there: no hop before that.
//! INTERRUPT ends a wait for a lock, which is told and answers by itself: it may have been granted just then. Any other
//! operation is like a local disk's: only a signal that kills the process ends it, so that a handler of SIGALRM does not see
//! EINTR from write(2). A process is let go only when what it has asked the server for is done, or never will be: whoever has
//! waited for its death sees no change of it later. Where nobody can see what the signal was (of a thread of another PID
//! namespace) the operation goes on for as long as one may take whose server answers, and is let go then.

mod watch;

use crate::caller::is_dying;
use crate::unpoisoned::Unpoisoned;
use crate::wire::{Sink, Unique};
use soda_client::caller::{self, Outstanding};
use soda_types::Errno;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// For how long a process that is being killed waits for what became of its operation. A server that answers does so at once.
const TAKE_BACK: Duration = Duration::from_secs(2);

/// For how long an operation goes on after a signal of which nobody can see whether it kills. Longer than a server that answers
/// takes, with a client that holds it up for four terms of 10 s (SEMANTICS 36).
const UNSEEN: Duration = Duration::from_secs(45);

/// So many INTERRUPTs that came before their request are remembered.
const EARLY: usize = 256;

/// Which signals end an operation.
#[derive(Clone, Debug)]
pub(crate) enum Interruptible {
    /// Every signal: the wait for a lock, which hears of it here.
    AnySignal(Arc<Notify>),
    /// Only one that kills the process.
    Death,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests that wait for something.
#[derive(Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    sink: Arc<dyn Sink>,
    waiting: Mutex<Waiting>,
    take_back: Duration,
    unseen: Duration,
}

#[derive(Debug, Default)]
struct Waiting {
    tasks: HashMap<Unique, Arc<Task>>,
    /// INTERRUPTs of requests that are not in `tasks`: not yet, or not any more. Numbers do not come again.
    early: VecDeque<Unique>,
    /// The last one that was looked at.
    looked_at: Unique,
}

impl Waiting {
    fn note_early(&mut self, unique: Unique) {
        if !self.early.contains(&unique) {
            if self.early.len() == EARLY {
                self.early.pop_front();
            }
            self.early.push_back(unique);
        }
    }
}

struct Task {
    unique: Unique,
    /// Thread that waits.
    tid: u32,
    interruptible: Interruptible,
    /// `None`: finished or given up.
    work: Mutex<Option<Work>>,
    scheduled: AtomicBool,
    interrupted: AtomicBool,
    /// Its process is being killed.
    dying: AtomicBool,
    /// It waited already when all were last looked at.
    seen: AtomicBool,
    tasks: Arc<Tasks>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("unique", &self.unique).field("tid", &self.tid).finish_non_exhaustive()
    }
}

/// What became of an INTERRUPT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interrupted {
    Noted,
    /// The request is not waiting (yet, or any more): the kernel should ask again if it still cares.
    NotFound,
}

impl Tasks {
    pub(crate) fn new(runtime: Handle, sink: Arc<dyn Sink>) -> Arc<Tasks> {
        Arc::new(Tasks { runtime, sink, waiting: Mutex::default(), take_back: TAKE_BACK, unseen: UNSEEN })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unpoisoned()
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Where a request is answered that is begun once more.
    pub(crate) fn sink(&self) -> Arc<dyn Sink> {
        self.sink.clone()
    }

    /// Number of requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting().tasks.len()
    }

    /// Gives up all that wait: there is nobody left to answer.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut self.waiting().tasks);
        // Outside of the lock: what a request holds may wake others.
        waiting.into_values().for_each(|task| drop(task.work().take()));
    }

    /// Runs `work`, which answers its request at its end.
    pub(crate) fn run(
        self: &Arc<Self>,
        unique: Unique,
        tid: u32,
        interruptible: Interruptible,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut work: Work = Box::pin(work);
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        let task = Arc::new(Task {
            unique,
            tid,
            interruptible,
            work: Mutex::new(Some(work)),
            scheduled: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            dying: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            tasks: self.clone(),
        });
        let was_interrupted = {
            let mut waiting = self.waiting();
            waiting.tasks.insert(unique, task.clone());
            waiting.early.contains(&unique)
        };
        // Polled with a waker that means something. Usually costs a fraction of a microsecond.
        task.poll();
        if was_interrupted {
            self.interrupt(unique);
        }
    }

    pub(crate) fn interrupt(self: &Arc<Self>, unique: Unique) -> Interrupted {
        let task = {
            let mut waiting = self.waiting();
            match waiting.tasks.get(&unique).cloned() {
                Some(task) => task,
                None => {
                    waiting.note_early(unique);
                    return Interrupted::NotFound;
                }
            }
        };
        match &task.interruptible {
            Interruptible::AnySignal(signal) => signal.notify_one(),
            Interruptible::Death if is_dying(task.tid) == Some(true) => task.die(),
            Interruptible::Death => {
                if !task.interrupted.swap(true, Ordering::Relaxed) {
                    self.runtime.spawn(watch::give_up_on_death(task));
                }
            }
        }
        Interrupted::Noted
    }
}

impl Task {
    fn work(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unpoisoned()
    }

    fn is_finished(&self) -> bool {
        self.work().is_none()
    }

    fn poll(self: &Arc<Self>) {
        let mut slot = self.work();
        // Before the poll: a wake-up during it schedules another one.
        self.scheduled.store(false, Ordering::Release);
        let Some(work) = slot.as_mut() else { return };
        let waker = Waker::from(self.clone());
        let mut poll = || work.as_mut().poll(&mut Context::from_waker(&waker));
        let (polled, outstanding) = match self.dying.load(Ordering::Acquire) {
            true => caller::poll_for_dying(poll),
            false => (poll(), Outstanding::Yes),
        };
        if polled.is_ready() {
            let finished = slot.take();
            drop(slot);
            self.leave_list();
            drop(finished);
        } else if outstanding == Outstanding::No {
            drop(slot);
            self.give_up();
        }
    }

    /// Under its number another one may be there by now: a wait for a lock that was begun once more.
    fn leave_list(&self) {
        let mut waiting = self.tasks.waiting();
        if waiting.tasks.get(&self.unique).is_some_and(|task| std::ptr::eq(&**task, self)) {
            waiting.tasks.remove(&self.unique);
        }
    }

    fn die(self: &Arc<Self>) {
        if self.dying.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = self.clone();
        self.tasks.runtime.spawn(async move {
            task.poll();
            if !task.is_finished() {
                tokio::time::sleep(task.tasks.take_back).await;
                task.give_up();
            }
        });
    }

    fn give_up(&self) {
        let work = self.work().take();
        if work.is_some() {
            tracing::debug!(unique = self.unique, "interrupted");
            // First this answer, then the drop, whose own one the kernel no longer wants.
            let _ = self.tasks.sink.send(self.unique, -Errno::Interrupted.raw(), &[]);
        }
        // Where there are no tasks nothing is answered any more: a mount that is let go relies on that.
        self.leave_list();
        drop(work);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel) {
            let runtime = self.tasks.runtime.clone();
            // Not here: the waker may hold a lock that the operation needs.
            runtime.spawn(async move { self.poll() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const INTERRUPTED: i32 = -rustix::io::Errno::INTR.raw_os_error();

    #[derive(Debug, Default)]
    pub(super) struct Answered(pub(super) Mutex<Vec<(Unique, i32)>>);

    impl Sink for Answered {
        fn send(&self, unique: Unique, error: i32, _: &[&[u8]]) -> io::Result<()> {
            self.0.lock().unwrap().push((unique, error));
            Ok(())
        }
    }

    /// A wait for a lock that is never granted.
    pub(super) fn wait_for_lock(tasks: &Arc<Tasks>, seen: &Arc<Answered>, unique: Unique, tid: u32) {
        let (signal, seen) = (Arc::<Notify>::default(), seen.clone());
        tasks.run(unique, tid, Interruptible::AnySignal(signal.clone()), async move {
            signal.notified().await;
            seen.send(unique, INTERRUPTED, &[]).unwrap();
        });
    }

    async fn until_waiting(tasks: &Tasks, count: usize) {
        while tasks.len() > count {
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn tasks() -> (Arc<Tasks>, Arc<Answered>) {
        let seen = Arc::new(Answered::default());
        (Tasks::new(Handle::current(), seen.clone()), seen)
    }

    fn tasks_with(take_back: Duration, unseen: Duration) -> (Arc<Tasks>, Arc<Answered>) {
        let (sink, runtime) = (Arc::new(Answered::default()), Handle::current());
        let tasks = Tasks { runtime, sink: sink.clone(), waiting: Mutex::default(), take_back, unseen };
        (Arc::new(tasks), sink)
    }

    #[tokio::test]
    async fn what_is_ready_runs_at_once() {
        let (tasks, _) = tasks();
        let (done, mut is_done) = tokio::sync::oneshot::channel();
        tasks.run(1, 0, Interruptible::Death, async move { done.send(()).unwrap() });
        assert!(is_done.try_recv().is_ok());
        assert_eq!(tasks.len(), 0);
    }

    #[tokio::test]
    async fn what_waits_goes_on_when_woken() {
        let (tasks, _) = tasks();
        let (go, went) = tokio::sync::oneshot::channel::<()>();
        let (done, is_done) = tokio::sync::oneshot::channel();
        tasks.run(1, 0, Interruptible::Death, async move {
            went.await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            done.send(()).unwrap();
        });
        assert_eq!(tasks.len(), 1);
        go.send(()).unwrap();
        is_done.await.unwrap();
        until_waiting(&tasks, 0).await;
    }

    // SEMANTICS 27
    #[tokio::test]
    async fn a_wait_for_a_lock_ends_with_any_signal_and_a_write_only_with_death() {
        let (tasks, seen) = tasks();
        wait_for_lock(&tasks, &seen, 1, std::process::id());
        tasks.run(2, std::process::id(), Interruptible::Death, std::future::pending());
        tasks.run(3, u32::MAX, Interruptible::Death, std::future::pending());
        for unique in 1..=3 {
            assert_eq!(tasks.interrupt(unique), Interrupted::Noted);
        }
        assert_eq!(tasks.interrupt(4), Interrupted::NotFound);
        until_waiting(&tasks, 1).await;
        let mut ended = seen.0.lock().unwrap().clone();
        ended.sort_unstable();
        assert_eq!(ended, [(1, INTERRUPTED), (3, INTERRUPTED)]);
    }

    // SEMANTICS 27
    /// As of all threads of other PID namespaces: Linux says 0.
    #[tokio::test]
    async fn a_signal_that_nobody_can_see_ends_no_operation_at_once_and_every_one_in_the_end() {
        let ((tasks, seen), (brief, let_go)) =
            (tasks_with(TAKE_BACK, UNSEEN), tasks_with(TAKE_BACK, Duration::ZERO));
        for tasks in [&tasks, &brief] {
            tasks.run(1, 0, Interruptible::Death, std::future::pending());
            assert_eq!(tasks.interrupt(1), Interrupted::Noted);
        }
        wait_for_lock(&tasks, &seen, 2, 0);
        assert_eq!(tasks.interrupt(2), Interrupted::Noted);
        until_waiting(&brief, 0).await;
        until_waiting(&tasks, 1).await;
        assert_eq!(*let_go.0.lock().unwrap(), [(1, INTERRUPTED)]);
        assert_eq!(*seen.0.lock().unwrap(), [(2, INTERRUPTED)]);
        assert_eq!(tasks.len(), 1);
    }

    #[tokio::test]
    async fn who_is_killed_waits_for_a_change_that_is_under_way_but_not_for_ever() {
        let take_back = Duration::from_millis(200);
        let (tasks, seen) = tasks_with(take_back, UNSEEN);
        let under_way = |answered: tokio::sync::oneshot::Receiver<()>| {
            let mut answered = Box::pin(answered);
            std::future::poll_fn(move |context| {
                let polled = answered.as_mut().poll(context);
                if polled.is_pending() {
                    caller::note_outstanding();
                }
                polled.map(|_| ())
            })
        };
        let ((soon, first), (_never, second)) =
            (tokio::sync::oneshot::channel(), tokio::sync::oneshot::channel());
        for (unique, answered) in [(1, first), (2, second)] {
            let (change, answers) = (under_way(answered), seen.clone());
            tasks.run(unique, u32::MAX, Interruptible::Death, async move {
                change.await;
                answers.send(unique, 0, &[]).unwrap();
            });
        }
        let start = std::time::Instant::now();
        assert_eq!([1, 2].map(|unique| tasks.interrupt(unique)), [Interrupted::Noted; 2]);
        tokio::task::yield_now().await;
        assert_eq!((seen.0.lock().unwrap().len(), tasks.len()), (0, 2));
        soon.send(()).unwrap();
        until_waiting(&tasks, 0).await;
        assert_eq!(*seen.0.lock().unwrap(), [(1, 0), (2, INTERRUPTED)]);
        assert!(start.elapsed() >= take_back);
    }

    #[tokio::test]
    async fn a_request_that_is_begun_once_more_at_its_end_stays() {
        let (tasks, seen) = tasks();
        let (go, went) = tokio::sync::oneshot::channel::<()>();
        let (again, answers) = (tasks.clone(), seen.clone());
        tasks.run(1, 0, Interruptible::Death, async move {
            went.await.unwrap();
            wait_for_lock(&again, &answers, 1, 0);
            answers.send(2, 0, &[]).unwrap();
        });
        go.send(()).unwrap();
        while seen.0.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!((tasks.len(), tasks.interrupt(1)), (1, Interrupted::Noted));
        until_waiting(&tasks, 0).await;
        assert_eq!(*seen.0.lock().unwrap(), [(2, 0), (1, INTERRUPTED)]);
    }

    #[tokio::test]
    async fn an_interrupt_that_comes_before_its_request_is_not_lost() {
        let (tasks, seen) = tasks();
        assert_eq!(tasks.interrupt(7), Interrupted::NotFound);
        for unique in 100..100 + EARLY as u64 - 1 {
            assert_eq!(tasks.interrupt(unique), Interrupted::NotFound);
        }
        wait_for_lock(&tasks, &seen, 6, 0);
        wait_for_lock(&tasks, &seen, 7, 0);
        until_waiting(&tasks, 1).await;
        assert_eq!(*seen.0.lock().unwrap(), [(7, INTERRUPTED)]);
        assert_eq!(tasks.waiting().early.len(), EARLY);
    }
}
