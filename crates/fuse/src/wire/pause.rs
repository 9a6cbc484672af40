//! A pause of the threads that read the device, while somebody else may read it.
//!
//! A thread that waits in read(2) for a request stays there: no signal can be sent to one thread without unsafe code, and to poll
//! first would cost a system call for each request. So it notices with the next request, which it still hands on; who wants the
//! pause sees to it that some come. Beside io_uring the device brings little, and nothing that anybody could ask for: there a
//! thread polls, and is called by a [`Bell`].

use crate::unpoisoned::Unpoisoned;
use rustix::event::{EventfdFlags, PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Pause {
    wanted: AtomicBool,
    resting: Mutex<usize>,
    changed: Condvar,
    /// Threads that have not ended.
    alive: Arc<AtomicUsize>,
    bell: Option<Arc<Bell>>,
}

/// Rung as long as a pause is wanted.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn ring(&self) {
        // Fails only when it would overflow: then it rings.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn hush(&self) {
        // Fails if it does not ring.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Returns when there is something to read, or it rings.
    fn wait_for(&self, device: &impl AsFd) -> io::Result<()> {
        let both = [self.0.as_fd(), device.as_fd()];
        let mut both = both.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut both, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Pause {
    pub(super) fn new(alive: Arc<AtomicUsize>, bell: Option<Arc<Bell>>) -> Pause {
        let (wanted, resting, changed) = (AtomicBool::new(false), Mutex::new(0), Condvar::new());
        Pause { wanted, resting, changed, alive, bell }
    }

    /// To be called before [`Pause::keep`]: returns when there may be something to read, or a pause to be kept.
    pub(super) fn await_message(&self, device: &impl AsFd) -> io::Result<()> {
        self.bell.as_ref().map_or(Ok(()), |bell| bell.wait_for(device))
    }

    /// To be called before each read: returns when there is no pause.
    pub(super) fn keep(&self) {
        if !self.wanted.load(Ordering::Acquire) {
            return;
        }
        let mut resting = self.resting.lock().unpoisoned();
        *resting += 1;
        self.changed.notify_all();
        while self.wanted.load(Ordering::Acquire) {
            resting = self.changed.wait(resting).unpoisoned();
        }
        *resting -= 1;
    }

    pub(super) fn begin(&self) {
        self.wanted.store(true, Ordering::Release);
        self.bell.as_ref().inspect(|bell| bell.ring());
    }

    pub(super) fn end(&self) {
        let _resting = self.resting.lock().unpoisoned();
        self.bell.as_ref().inspect(|bell| bell.hush());
        self.wanted.store(false, Ordering::Release);
        self.changed.notify_all();
    }

    /// Threads that may still read. Waits for a change for so long, unless there are none.
    pub(super) fn reading(&self, at_most: Duration) -> usize {
        let resting = self.resting.lock().unpoisoned();
        let reading = |resting: usize| self.alive.load(Ordering::Acquire).saturating_sub(resting);
        let is_same = |now: &mut usize| reading(*now) > 0;
        let waited = self.changed.wait_timeout_while(resting, at_most, is_same);
        let (resting, _) = waited.unpoisoned();
        reading(*resting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn who_reads_rests_before_the_next_and_goes_on_after_the_pause() {
        let pause = Arc::new(Pause::new(Arc::new(AtomicUsize::new(2)), None));
        let (tell, told) = channel();
        let (ask, asked) = channel::<()>();
        let (reader, other) = (pause.clone(), pause.clone());
        thread::spawn(move || {
            for _ in 0..2 {
                reader.keep();
                tell.send(()).unwrap();
                asked.recv().unwrap();
            }
        });
        told.recv().unwrap();
        pause.begin();
        assert_eq!(pause.reading(Duration::ZERO), 2, "both are in the middle of something");
        thread::spawn(move || other.keep());
        ask.send(()).unwrap();
        assert_eq!(pause.reading(Duration::from_secs(60)), 0);
        assert!(told.try_recv().is_err());
        pause.end();
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        pause.keep();
    }

    #[test]
    fn who_waits_for_a_message_that_does_not_come_rests_when_called() {
        let (nothing, _writer) = io::pipe().unwrap();
        let pause = Arc::new(Pause::new(Arc::new(AtomicUsize::new(1)), Some(Arc::new(Bell::new().unwrap()))));
        let reader = pause.clone();
        let reads = thread::spawn(move || {
            reader.await_message(&nothing).unwrap();
            reader.keep();
        });
        pause.begin();
        assert_eq!(pause.reading(Duration::from_secs(60)), 0);
        pause.end();
        reads.join().unwrap();
    }
}
