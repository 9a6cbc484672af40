//! Requests over io_uring (Linux 6.14 and later): a queue and a thread for each core.
//!
//! A request comes to the queue of the core that its caller runs on, and is answered there: nobody has to be woken on another
//! core, which on a virtual machine costs more than all the rest. Answers that are ready at once go to the kernel
//! together with the wait for the next request, in one system call. Others are written into their entry by whoever has them,
//! and the queue's thread hands them over: the kernel gives the next request to the thread that handed over the last answer.
//!
//! A request occupies its entry until it is answered, a wait for a lock or for a server that is away included. So a queue that
//! runs short takes more entries, as many as are needed. Linux (6.18) gives a request that it had no entry for to nobody but
//! who hands over an answer, new entries do not get it; if all callers wait, none of them for long is answered. So whenever
//! a queue had run out, its thread asks for something that comes as a request of no meaning ([`QueueThread::nudge`]): its
//! answer fetches one of those that wait. Linux 6.18 refuses that question (EINVAL) for the root directory: until it is asked of
//! a regular file, who comes when the entries have run out may hang, and the transport is on trial (docs/ROADMAP.md).
//!
//! FORGET and INTERRUPT still come over the device, and notifications go there ([`super::device`]).

mod ring;

use super::abi::{self, Record};
use super::device::Device;
use super::serve::Dispatcher;
use super::{Handler, Reply, Sink, Unique};
use ring::{Entry, Event, PAYLOAD_LEN, Ring, Waker};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Entries of a queue to begin with.
const DEPTH: usize = 128;
/// Of one whose core is not there, or not ours.
const DEPTH_ELSEWHERE: usize = 4;
/// A queue of which the kernel has fewer entries than this gets more.
const LOW: usize = 64;
/// Most entries of a queue: so many callers on one core can wait at a time. Each takes 1 MiB of address space, and memory as
/// it was once used.
const MOST: usize = 1 << 14;
/// Numbers of the requests that come of nudges are above, so they are none of the kernel's own.
const NUDGES: u64 = 1 << 62;
/// How long to wait for the kernel to give back its entries at the end.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The queues of one mount, not yet in use.
#[derive(Debug)]
pub(super) struct Uring {
    device: Arc<Device>,
    queues: Vec<(Arc<Queue>, Ring)>,
}

impl Uring {
    /// One queue for each core that the machine can have: the kernel uses all or none.
    ///
    /// # Errors
    /// The kernel's; its text says what was tried.
    pub(super) fn prepare(device: &Arc<Device>) -> io::Result<Uring> {
        let queues = (0..possible_cores()?)
            .map(|number| {
                let ring = Ring::new(device.clone(), number)?;
                Ok((Arc::new(Queue::new(number, ring.waker())), ring))
            })
            .collect::<io::Result<_>>()?;
        Ok(Uring { device: device.clone(), queues })
    }

    pub(super) fn queues(&self) -> Vec<Arc<Queue>> {
        self.queues.iter().map(|(queue, _)| queue.clone()).collect()
    }

    /// Starts the threads, and returns when the kernel uses the queues. To be called when INIT was answered.
    ///
    /// # Errors
    /// The kernel refuses: it goes on with the device then.
    pub(super) fn start<H: Handler>(
        self,
        dispatcher: &Dispatcher<H>,
        runtime: &Handle,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let queues = self.queues();
        let (report, reports) = channel();
        let threads = self.queues.into_iter().map(|(queue, ring)| {
            let (dispatcher, runtime, report) = (dispatcher.clone(), runtime.clone(), report.clone());
            let device = self.device.clone();
            thread::Builder::new().name(format!("fuse-core-{}", queue.number)).spawn(move || {
                let _context = runtime.enter();
                let (message, total, nudges) = (Vec::new(), 0, 0);
                let thread = QueueThread { queue, ring, dispatcher, device, message, total, nudges };
                thread.run(&report);
            })
        });
        let started = threads.collect::<io::Result<Vec<_>>>().and_then(|threads| {
            drop(report);
            queues.iter().try_for_each(|_| match reports.recv() {
                Ok(report) => report,
                Err(_) => Err(io::Error::other("a queue's thread has ended")),
            })?;
            Ok(threads)
        });
        if started.is_err() {
            queues.iter().for_each(|queue| queue.end());
        }
        started
    }
}

/// Number of cores that the machine can have; the kernel has a queue for each.
fn possible_cores() -> io::Result<u16> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    cores_in(list.trim()).ok_or_else(|| io::Error::other(format!("cores as `{list}` cannot be understood")))
}

/// `0-3,8`: five.
fn cores_in(list: &str) -> Option<u16> {
    list.split(',').try_fold(0u16, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// What those who answer requests of a queue share with its thread.
#[derive(Debug)]
pub(super) struct Queue {
    number: u16,
    waker: Arc<Waker>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Requests that are not answered.
    in_hand: HashMap<Unique, Held>,
    /// Answers for the thread to hand over.
    answered: Vec<Held>,
    thread: ThreadState,
}

/// An entry that is ours, with what to name when it is handed over.
#[derive(Debug)]
struct Held {
    entry: Entry,
    commit_id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ThreadState {
    /// Looks for answers before it waits.
    Awake,
    Asleep,
    /// The mount is gone.
    Ended,
}

impl Queue {
    fn new(number: u16, waker: Arc<Waker>) -> Queue {
        let state = State { in_hand: HashMap::new(), answered: Vec::new(), thread: ThreadState::Awake };
        Queue { number, waker, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The mount is gone: nobody waits for answers.
    pub(super) fn end(&self) {
        let (in_hand, answered) = {
            let mut state = self.state();
            state.thread = ThreadState::Ended;
            (std::mem::take(&mut state.in_hand), std::mem::take(&mut state.answered))
        };
        self.waker.wake();
        drop((in_hand, answered));
    }

    /// The answers to be handed over. From here on who has another one wakes the thread. `None`: the mount is gone.
    fn fall_asleep(&self) -> Option<Vec<Held>> {
        let mut state = self.state();
        match state.thread {
            ThreadState::Ended => None,
            ThreadState::Awake | ThreadState::Asleep => {
                state.thread = ThreadState::Asleep;
                Some(std::mem::take(&mut state.answered))
            }
        }
    }

    fn wake_up(&self) {
        let mut state = self.state();
        if state.thread == ThreadState::Asleep {
            state.thread = ThreadState::Awake;
        }
    }

    fn answered(&self) -> usize {
        self.state().answered.len()
    }
}

impl Sink for Queue {
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > PAYLOAD_LEN {
            return Err(Errno::INVAL.into());
        }
        let mut held = {
            let mut state = self.state();
            match state.thread {
                ThreadState::Ended => return Err(Errno::NODEV.into()),
                _ => state.in_hand.remove(&unique).ok_or(Errno::NOENT)?,
            }
        };
        held.entry.answer(&abi::out_header(abi::OUT_HEADER_LEN + len, error, unique), parts);
        let mut state = self.state();
        match state.thread {
            ThreadState::Ended => return Err(Errno::NODEV.into()),
            ThreadState::Awake => state.answered.push(held),
            ThreadState::Asleep => {
                state.answered.push(held);
                state.thread = ThreadState::Awake;
                drop(state);
                self.waker.wake();
            }
        }
        Ok(())
    }
}

/// Where answers go whose request may have come over any queue, or over the device; and notifications.
#[derive(Debug)]
pub(super) struct AnyQueue {
    pub(super) device: Arc<Device>,
    pub(super) queues: Vec<Arc<Queue>>,
}

impl Sink for AnyQueue {
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        if unique != 0 {
            for queue in &self.queues {
                match queue.send(unique, error, parts) {
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => {}
                    sent => return sent,
                }
            }
        }
        self.device.send(unique, error, parts)
    }
}

struct QueueThread<H> {
    queue: Arc<Queue>,
    ring: Ring,
    dispatcher: Dispatcher<H>,
    device: Arc<Device>,
    /// Where a request is put together.
    message: Vec<u8>,
    /// Entries, wherever they are.
    total: usize,
    /// Sent since the start.
    nudges: u64,
}

impl<H: Handler> QueueThread<H> {
    fn run(mut self, report: &Sender<io::Result<()>>) {
        let began = self.begin();
        let has_begun = began.is_ok();
        let _ = report.send(began);
        if !has_begun {
            return;
        }
        if let Err(error) = self.serve() {
            // The kernel goes on giving requests to this queue: better none than some that wait for ever.
            tracing::error!(%error, queue = self.queue.number, "a queue of the mount does not work any more");
        }
        self.queue.end();
        self.take_back();
    }

    fn begin(&mut self) -> io::Result<()> {
        self.ring.enable()?;
        let depth = match run_on(self.queue.number) {
            Ok(()) => DEPTH,
            Err(error) => {
                tracing::debug!(%error, core = self.queue.number, "not on its core");
                DEPTH_ELSEWHERE
            }
        };
        for _ in 0..depth {
            self.add_entry()?;
        }
        self.ring.flush()?;
        // A refusal is there at once.
        while let Some(event) = self.ring.next()? {
            match event {
                Event::Refused(error) => return Err(error.into()),
                event => self.take(event),
            }
        }
        Ok(())
    }

    fn add_entry(&mut self) -> io::Result<()> {
        self.ring.register(Entry::new()?)?;
        self.total += 1;
        Ok(())
    }

    fn serve(&mut self) -> io::Result<()> {
        while let Some(answered) = self.queue.fall_asleep() {
            for Held { entry, commit_id } in answered {
                self.ring.commit(entry, commit_id)?;
            }
            self.ring.wait(None)?;
            self.queue.wake_up();
            while let Some(event) = self.ring.next()? {
                self.take(event);
            }
            self.grow();
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Request(entry) => self.request(entry),
            Event::Woken => {}
            Event::Refused(error) => {
                self.total -= 1;
                // The first three: unmounted.
                if !matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) {
                    tracing::error!(%error, queue = self.queue.number, "the kernel refused an entry of a queue");
                }
            }
        }
    }

    fn request(&mut self, mut entry: Entry) {
        let (unique, commit_id) = (entry.unique(), entry.commit_id());
        if entry.operation() == abi::opcode::NOTIFY_REPLY {
            entry.answer(&abi::out_header(abi::OUT_HEADER_LEN, 0, unique), &[]);
            self.queue.state().answered.push(Held { entry, commit_id });
            return;
        }
        let reply = || Reply::new(unique, self.queue.clone());
        let payload = entry.payload();
        let arguments = entry.request_len().checked_sub(abi::IN_HEADER_LEN + payload.len());
        let Some(arguments) = arguments.filter(|len| *len <= abi::uring::ARGUMENTS_LEN) else {
            tracing::error!(unique, "malformed request of the kernel");
            self.queue.state().in_hand.insert(unique, Held { entry, commit_id });
            return reply().raw_error(Errno::IO.raw_os_error());
        };
        self.message.clear();
        self.message.extend_from_slice(entry.header(abi::IN_HEADER_LEN));
        self.message.extend_from_slice(entry.arguments(arguments));
        let request = self.dispatcher.assemble(&mut self.message, payload);
        self.queue.state().in_hand.insert(unique, Held { entry, commit_id });
        self.dispatcher.dispatch(&self.message, request, reply());
    }

    /// Who waits keeps an entry. There must always be one for the next, who may be the one that the others wait for.
    fn grow(&mut self) {
        let available = self.ring.outstanding() + self.queue.answered();
        if available >= LOW || self.total >= MOST {
            return;
        }
        let with_kernel = self.ring.outstanding();
        let more = self.total.min(MOST - self.total);
        let added = (0..more).try_for_each(|_| self.add_entry()).and_then(|()| self.ring.flush());
        if let Err(error) = added {
            tracing::warn!(%error, queue = self.queue.number, total = self.total, "no more entries");
        }
        tracing::debug!(queue = self.queue.number, total = self.total, "more entries");
        if self.ring.pending() >= with_kernel {
            (0..more).for_each(|_| self.nudge());
        }
    }

    /// Makes the kernel send a request to this core's queue, which it does not wait for: none of the root directory's pages.
    fn nudge(&mut self) {
        self.nudges += 1;
        // An even number: the others are of INTERRUPTs.
        let number = NUDGES + self.nudges * 2;
        let record = Record::<32>::new().u64(number).u64(abi::NodeId::ROOT.0).u64(0).u32(0).u32(0).done();
        if let Err(error) = self.device.send(0, abi::notify::RETRIEVE, &[&record]) {
            tracing::debug!(%error, "the kernel was not nudged");
        }
    }

    /// Waits for what the kernel still has, so that its memory can be given back.
    fn take_back(&mut self) {
        let until = Instant::now() + LAST_WAIT;
        while self.ring.outstanding() > 0 && Instant::now() < until {
            let step = Duration::from_millis(20);
            let waited = self.ring.wait(Some(step)).and_then(|()| {
                while self.ring.next()?.is_some() {}
                Ok(())
            });
            if waited.is_err() {
                return;
            }
        }
    }
}

/// Keeps this thread on a core.
fn run_on(core: u16) -> io::Result<()> {
    let core = usize::from(core);
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(cores_in("0"), Some(1));
        assert_eq!(cores_in("0-1"), Some(2));
        assert_eq!(cores_in("0-3,8,10-11"), Some(7));
        for bad in ["", "a", "3-1", "0-", "0-65535,0-65535"] {
            assert_eq!(cores_in(bad), None, "{bad}");
        }
        assert!(possible_cores().unwrap() >= 1);
    }

    /// A queue with a request in hand, and the descriptor that its thread would wait on.
    fn queue_with(unique: Unique) -> Queue {
        let device = Device::new(std::fs::File::open("/dev/null").unwrap().into());
        let ring = Ring::new(device, 0).unwrap();
        let queue = Queue::new(0, ring.waker());
        let held = Held { entry: Entry::new().unwrap(), commit_id: 70 + unique };
        queue.state().in_hand.insert(unique, held);
        queue
    }

    #[test]
    fn a_request_is_answered_once() {
        let queue = queue_with(5);
        let errno = |sent: io::Result<()>| sent.unwrap_err().raw_os_error();
        assert_eq!(errno(queue.send(6, 0, &[])), Some(2));
        assert_eq!(errno(queue.send(5, 0, &[&vec![0; PAYLOAD_LEN + 1]])), Some(22));
        queue.send(5, 0, &[b"yes"]).unwrap();
        assert_eq!(errno(queue.send(5, 0, &[])), Some(2));
        let answers = queue.fall_asleep().unwrap();
        assert_eq!((answers[0].commit_id, answers[0].entry.payload()), (75, &b"yes"[..]));
        assert_eq!(answers[0].entry.header(16), abi::out_header(19, 0, 5));
    }

    #[test]
    fn nothing_is_answered_after_the_end() {
        let queue = queue_with(5);
        queue.end();
        assert_eq!(queue.send(5, 0, &[]).unwrap_err().raw_os_error(), Some(19));
        assert!(queue.fall_asleep().is_none());
    }

    #[test]
    fn who_has_an_answer_wakes_a_thread_that_sleeps_and_no_other() {
        let queue = queue_with(5);
        assert_eq!(queue.fall_asleep().unwrap().len(), 0);
        queue.send(5, 0, &[]).unwrap();
        assert_eq!(queue.state().thread, ThreadState::Awake);
        assert_eq!(queue.fall_asleep().unwrap().len(), 1);
        queue.wake_up();
        assert_eq!(queue.state().thread, ThreadState::Awake);
    }
}
