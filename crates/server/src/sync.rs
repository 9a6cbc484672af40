//! Group commit: one thread makes things durable; whoever asks while it is at work shares the next round.
//!
//! A server has two of these: one for the journal with all data before it, one for data only, which digests wait for.

use soda_types::FsResult;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A round that was asked for. An error: there is none any more, the thread was stopped.
pub(crate) type Asked = oneshot::Receiver<FsResult<()>>;

type Waiter = Box<dyn FnOnce(FsResult<()>) + Send>;

/// The thread that syncs. Dropping it stops the thread after the round in progress.
pub(crate) struct GroupSync {
    state: Arc<(Mutex<State>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    waiters: Vec<Waiter>,
    /// Since when something is changed that no round began after.
    dirty_since: Option<Instant>,
    /// The thread looks by itself within the interval: whoever changes something need not wake it.
    looks: bool,
    stop: bool,
}

impl GroupSync {
    /// Starts the thread. What was reported by [`GroupSync::dirty`] is synced after `interval` without being asked. `tell` hears
    /// of each round how many waited for it, and how long it took.
    pub(crate) fn start(
        name: &'static str,
        interval: Duration,
        tell: impl Fn(usize, Duration) + Send + 'static,
        sync: impl Fn() -> FsResult<()> + Send + 'static,
    ) -> std::io::Result<GroupSync> {
        let state = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let shared = state.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&shared, interval, tell, sync))?;
        Ok(GroupSync { state, thread: Mutex::new(Some(thread)) })
    }

    /// Calls `waiter` when everything that was changed before this call is durable, or could not be made so. Drops it if
    /// that is not to come any more: the thread was stopped.
    pub(crate) fn request(&self, waiter: impl FnOnce(FsResult<()>) + Send + 'static) {
        let mut state = lock(&self.state.0);
        if !state.stop {
            state.waiters.push(Box::new(waiter));
            self.state.1.notify_one();
        }
    }

    /// The same for who looks later what became of it.
    pub(crate) fn ask(&self) -> Asked {
        let (tell, asked) = oneshot::channel();
        self.request(move |result| drop(tell.send(result)));
        asked
    }

    /// Something was changed.
    pub(crate) fn dirty(&self) {
        let mut state = lock(&self.state.0);
        if state.dirty_since.is_none() {
            state.dirty_since = Some(Instant::now());
            if !state.looks {
                self.state.1.notify_one();
            }
        }
    }

    /// Waits for the round in progress and ends the thread. Waiters that are left are dropped here, not with `self`: they
    /// refer to what it is a part of, the open stores among that.
    pub(crate) fn stop(&self) {
        lock(&self.state.0).stop = true;
        self.state.1.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // An error: it panicked, which ends the process.
            let _ = thread.join();
        }
        let left = std::mem::take(&mut lock(&self.state.0).waiters);
        drop(left);
    }
}

impl Drop for GroupSync {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(
    shared: &(Mutex<State>, Condvar),
    interval: Duration,
    tell: impl Fn(usize, Duration),
    sync: impl Fn() -> FsResult<()>,
) {
    let mut last_round: Option<Instant> = None;
    loop {
        let mut state = lock(&shared.0);
        let waiters = loop {
            if state.stop {
                return;
            }
            if !state.waiters.is_empty() {
                break std::mem::take(&mut state.waiters);
            }
            // Where rounds follow each other, each is followed by changes: to be woken for the first costs more than to look.
            let Some(since) = state.dirty_since.or(last_round) else {
                state.looks = false;
                state = shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let age = since.elapsed();
            if age < interval {
                state.looks = true;
                let wait = shared.1.wait_timeout(state, interval - age);
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            } else if state.dirty_since.is_some() {
                break Vec::new();
            } else {
                last_round = None;
            }
        };
        state.dirty_since = None;
        drop(state);
        let started = Instant::now();
        last_round = Some(started);
        let result = sync();
        if let Err(error) = &result {
            tracing::error!(%error, waiters = waiters.len(), "changes could not be made durable");
        }
        tell(waiters.len(), started.elapsed());
        for waiter in waiters {
            waiter(result.clone());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for GroupSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state.0);
        f.debug_struct("GroupSync")
            .field("waiters", &state.waiters.len())
            .field("dirty", &state.dirty_since.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// One whose rounds say that they have begun, and end when they are let.
    fn step_by_step() -> (GroupSync, Receiver<()>, Sender<()>) {
        let (started, rounds) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let sync = GroupSync::start(
            "test",
            Duration::from_secs(3600),
            |_, _| {},
            move || {
                started.send(()).unwrap();
                lock(&gate).recv().unwrap();
                Ok(())
            },
        )
        .unwrap();
        (sync, rounds, go)
    }

    #[test]
    fn those_who_ask_during_a_round_share_the_next() {
        let (sync, rounds, go) = step_by_step();
        let (done, answers) = mpsc::channel();
        let ask = |n: u32| {
            let done = done.clone();
            sync.request(move |result| done.send((n, result)).unwrap());
        };
        ask(0);
        rounds.recv().unwrap();
        (1..=10).for_each(ask);
        go.send(()).unwrap();
        assert_eq!(answers.recv().unwrap(), (0, Ok(())));
        rounds.recv().unwrap();
        assert!(answers.try_recv().is_err(), "the second round has not ended");
        go.send(()).unwrap();
        let mut second: Vec<u32> = (0..10).map(|_| answers.recv().unwrap().0).collect();
        second.sort_unstable();
        assert_eq!(second, (1..=10).collect::<Vec<_>>());
        assert!(rounds.try_recv().is_err(), "ten waiters shared one round");
    }

    #[test]
    fn what_nobody_syncs_is_synced_after_the_interval() {
        let (started, rounds) = mpsc::channel();
        let sync = GroupSync::start(
            "test",
            Duration::from_millis(5),
            |_, _| {},
            move || {
                started.send(()).unwrap();
                Ok(())
            },
        )
        .unwrap();
        sync.dirty();
        rounds.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    /// The thread looks by itself for a while after each round, and then sleeps until it is woken.
    #[test]
    fn what_is_changed_after_a_round_is_synced_whether_the_thread_looks_or_sleeps() {
        let (started, rounds) = mpsc::channel();
        let sync = GroupSync::start(
            "test",
            Duration::from_millis(5),
            |_, _| {},
            move || {
                started.send(()).unwrap();
                Ok(())
            },
        )
        .unwrap();
        let round = || rounds.recv_timeout(Duration::from_secs(60)).unwrap();
        for _ in 0..3 {
            sync.request(|_| {});
            round();
            sync.dirty();
            round();
            let began = Instant::now();
            while lock(&sync.state.0).looks {
                assert!(began.elapsed() < Duration::from_secs(60), "nothing is changed any more");
                std::thread::yield_now();
            }
            sync.dirty();
            round();
        }
        assert!(rounds.try_recv().is_err(), "nothing is synced that is not changed");
    }

    #[test]
    fn who_waits_when_it_is_stopped_is_let_go_of_and_who_comes_later_is_not_kept() {
        let (sync, rounds, go) = step_by_step();
        let held = Arc::new(());
        let ask = || {
            let held = held.clone();
            sync.request(move |_| drop(held));
        };
        ask();
        rounds.recv().unwrap();
        ask();
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| sync.stop());
            while !lock(&sync.state.0).stop {
                std::thread::yield_now();
            }
            ask();
            go.send(()).unwrap();
            stopping.join().unwrap();
        });
        assert_eq!(Arc::strong_count(&held), 1);
        ask();
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
