//! Requests over io_uring (Linux 6.14 and later): a queue and a thread for each core.
//!
//! A request comes to the queue of the core that its caller runs on, and is answered there: nobody has to be woken on another
//! core, which on a virtual machine costs more than all the rest. Answers that are ready at once go to the kernel
//! together with the wait for the next request, in one system call. Others are written into their entry by whoever has them,
//! and the queue's thread hands them over: the kernel gives the next request to the thread that handed over the last answer.
//!
//! A request occupies its entry until it is answered, a wait for a lock or for a server that is away included. So a queue that
//! runs short takes more entries, as many as are needed, and [`nudge`] makes the kernel use them for those that wait already.
//!
//! FORGET and INTERRUPT still come over the device, and notifications go there ([`super::device`]).
//!
//! # When the daemon dies
//! Linux (6.18) gives a request to an entry at once, but has the ring's own thread bring it there (*task work*), and what was not
//! brought no abort of the connection ends. That is a trap where another thread of the daemon waits in the kernel for a lock
//! that is held for that very request: it does not end, so the process's descriptors stay open, so the rings are not closed.
//! [`crate::mount`]'s guard can abort the connection, but each request must have been brought, or given up, by then. So
//! - task work is not deferred to the calls of the ring ([`ring`]): a thread that ends would leave it for when the ring is
//!   closed. All other it does when it ends (`exit_task_work`); what comes later a worker of the kernel's does.
//! - the process leaves no core dump. Before one is written, every thread of it is stopped on the way to its end, ahead of
//!   its task work (`coredump_task_exit`), until all have come, and the one that waits for the lock does not come.

mod cores;
mod decoy;
mod heir;
mod leave;
mod nudge;
mod ring;
mod worker;

use crate::unpoisoned::Unpoisoned;
pub(crate) use heir::Inheritance;
pub(crate) use leave::Leave;
pub use leave::{HandedQueues, NotEmptied};

use super::abi::{self, NodeId};
use super::audited::PAYLOAD_LEN;
use super::device::Device;
use super::entry_memory::EntryMemory;
use super::escort::{Hurry, Yielding, YieldingPlace, check_idle};
use super::obstacle::Obstacle;
use super::pause::Bell;
use super::serve::Dispatcher;
use super::{Handler, Sink, Unique};
use cores::is_online;
use leave::Rest;
use nudge::Nudges;
use ring::{Entry, Ring, Waker};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use soda_client::Due;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use tokio::runtime::Handle;
use worker::QueueThread;

/// Entries of a queue to begin with.
const DEPTH: usize = 128;
/// Of one whose core is not there.
const DEPTH_OFFLINE: usize = 4;

/// The queues of one mount, not yet in use.
#[derive(Debug)]
pub(super) struct Uring {
    device: Arc<Device>,
    queues: Vec<Unused>,
    nudges: Arc<Nudges>,
    yielding: Arc<Yielding>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Unused {
    queue: Arc<Queue>,
    ring: Ring,
    entries: Vec<Entry>,
    start: Start,
}

/// How a queue is begun with.
#[derive(Clone, Copy, Default, Debug)]
struct Start {
    /// The kernel takes all queues into use with the first entry of this one: then there is no way back to the device.
    is_last: bool,
    /// For tests.
    fault: Option<QueueFault>,
}

/// What the kernel is made to refuse of a queue's entries, in tests.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueFault {
    One,
    All,
}

impl Uring {
    /// One queue for each core that the machine can have: the kernel uses all or none. Takes all that may run short.
    ///
    /// # Errors
    /// The kernel's; its text says what was tried.
    pub(super) fn prepare(device: &Arc<Device>) -> io::Result<Uring> {
        let cores = cores::possible()?;
        let (nudges, yielding) = (Arc::new(Nudges::new(cores.into())), Yielding::new(cores.into()));
        let queues = (0..cores)
            .map(|number| {
                let ring = Ring::new(device.clone(), number)?;
                let queue = Arc::new(Queue::new(number, ring.waker(), nudges.clone(), yielding.clone()));
                let depth = if is_online(number) { DEPTH } else { DEPTH_OFFLINE };
                let entries = (0..depth).map(|_| Entry::new(&queue.memory)).collect::<io::Result<_>>()?;
                let start = Start { is_last: number + 1 == cores, fault: None };
                Ok(Unused { queue, ring, entries, start })
            })
            .collect::<io::Result<_>>()?;
        let bell = Arc::new(Bell::new()?);
        Ok(Uring { device: device.clone(), queues, nudges, yielding, bell })
    }

    /// See [`super::connection::Connection::spoil`].
    pub(super) fn spoil(&mut self, number: usize, fault: QueueFault) {
        self.queues[number].start.fault = Some(fault);
    }

    /// Rung for who reads the device beside.
    pub(super) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// How the queues are let go.
    pub(super) fn leave(&self) -> Leave {
        Leave::new(self.device.clone(), self.queues(), self.nudges.clone())
    }

    pub(super) fn queues(&self) -> Vec<Arc<Queue>> {
        self.queues.iter().map(|unused| unused.queue.clone()).collect()
    }

    /// The threads of the queues may hold up a recall.
    pub(super) fn hurry(&self) -> Arc<dyn Hurry> {
        self.yielding.clone()
    }

    /// Starts the threads, and returns when the kernel uses the queues. To be called when INIT was answered. The
    /// process leaves no core dump any more.
    ///
    /// # Errors
    /// The kernel refuses, or a thread cannot be started. Requests are held back until [`decline`].
    pub(super) fn start<H: Handler>(
        self,
        dispatcher: &Dispatcher<H>,
        runtime: &Handle,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let queues = self.queues();
        let started = self.start_threads(dispatcher, runtime);
        if started.is_err() {
            queues.iter().for_each(|queue| queue.end());
        }
        started
    }

    fn start_threads<H: Handler>(
        self,
        dispatcher: &Dispatcher<H>,
        runtime: &Handle,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        let queues = self.queues();
        let last = queues.last().map(|queue| queue.number);
        let (nudges, device) = (self.nudges.clone(), self.device);
        let shows = dispatcher.clone();
        let nudge = move || nudges.run(&queues, &device, |name| shows.look_up(name));
        let supervise = move || self.yielding.supervise();
        let mut threads = vec![
            thread::Builder::new().name("fuse-nudge".into()).spawn(nudge)?,
            thread::Builder::new().name("fuse-yielding".into()).spawn(supervise)?,
        ];
        // One after the other: requests come as soon as each has an entry, so only while the last one gets its others.
        for unused in self.queues {
            threads.push(start_queue(unused, dispatcher.clone(), runtime.clone())?);
        }
        if let Some(last) = last {
            self.nudges.owe_at_leisure(last, DEPTH);
        }
        Ok(threads)
    }
}

/// Why a mount of this process had better not be over io_uring although it could.
pub(super) fn drawback() -> Option<Obstacle> {
    match cores::forbidden() {
        Ok(None) => check_idle().err().map(|Obstacle { what, mend }| {
            Obstacle::new(format!("the daemon's threads cannot let others go first: {what}"), mend)
        }),
        Ok(Some(core)) => Some(Obstacle::new(
            format!("core {core} is kept from this process, as by a cpuset"),
            "start the daemon where it may use all cores (`AllowedCPUs=` of systemd, the cpuset of a container, taskset(1))",
        )),
        Err(error) => Some(Obstacle::new(format!("the cores of the machine are not known: {error}"), "")),
    }
}

/// Has the kernel go on with the device, for which it was told of io_uring when [`Uring::start`] has failed.
///
/// # Errors
/// The kernel's: the mount cannot be used.
pub(super) fn decline(device: &Arc<Device>) -> io::Result<()> {
    let mut ring = Ring::new(device.clone(), 0)?;
    ring.enable()?;
    ring.decline()
}

/// Returns when the queue has its entries.
fn start_queue<H: Handler>(
    unused: Unused,
    dispatcher: Dispatcher<H>,
    runtime: Handle,
) -> io::Result<JoinHandle<()>> {
    let Unused { queue, ring, entries, start } = unused;
    let (report, began) = channel();
    let thread = thread::Builder::new().name(format!("fuse-core-{}", queue.number)).spawn(move || {
        let _context = runtime.enter();
        let place = YieldingPlace::take(&queue.yielding, queue.number.into());
        QueueThread::new(queue, ring, dispatcher, place).run(entries, start, report);
    })?;
    began.recv().unwrap_or_else(|_| Err(io::Error::other("a queue's thread has ended")))?;
    Ok(thread)
}

/// What those who answer requests of a queue share with its thread.
#[derive(Debug)]
pub(super) struct Queue {
    number: u16,
    waker: Arc<Waker>,
    nudges: Arc<Nudges>,
    yielding: Arc<Yielding>,
    /// Of its entries.
    memory: Arc<EntryMemory>,
    state: Mutex<State>,
    /// Whether requests are kept instead of handed on. Changed under the lock of `state`.
    keeps: AtomicBool,
    /// Of `state.rest`.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Requests that are not answered.
    in_hand: HashMap<Unique, Entry>,
    /// Answers that are being written, which are neither in hand nor among `answered`.
    answering: usize,
    /// Answers for the thread to hand over.
    answered: Answered,
    thread: ThreadState,
    rest: Rest,
}

/// Answers that are ready.
#[derive(Debug, Default)]
struct Answered {
    entries: Vec<Entry>,
    /// By when the kernel has to have the first of them.
    due: Option<Due>,
}

impl Answered {
    fn push(&mut self, entry: Entry, due: Option<Due>) {
        self.entries.push(entry);
        self.due = Due::earliest(self.due, due);
    }
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
    fn new(number: u16, waker: Arc<Waker>, nudges: Arc<Nudges>, yielding: Arc<Yielding>) -> Queue {
        let state = State {
            in_hand: HashMap::new(),
            answering: 0,
            answered: Answered::default(),
            thread: ThreadState::Awake,
            rest: Rest::default(),
        };
        let (state, keeps, changed) = (Mutex::new(state), AtomicBool::new(false), Condvar::new());
        Queue { number, waker, nudges, yielding, memory: Arc::default(), state, keeps, changed }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// The mount is gone: nobody waits for answers.
    pub(super) fn end(&self) {
        let all = {
            let mut state = self.state();
            state.thread = ThreadState::Ended;
            let kept = std::mem::take(&mut state.rest.kept);
            (std::mem::take(&mut state.in_hand), std::mem::take(&mut state.answered), kept)
        };
        self.changed.notify_all();
        self.waker.wake();
        self.nudges.end();
        self.yielding.end();
        drop(all);
    }

    /// The answers to be handed over, while the kernel has so many entries besides. From here on who has another one wakes the
    /// thread. `None`: the mount is gone.
    fn fall_asleep(&self, outstanding: usize) -> Option<Answered> {
        let mut state = self.state();
        match state.thread {
            ThreadState::Ended => None,
            ThreadState::Awake | ThreadState::Asleep => {
                state.thread = ThreadState::Asleep;
                let answered = std::mem::take(&mut state.answered);
                self.note_rest(&mut state, outstanding + answered.entries.len());
                Some(answered)
            }
        }
    }

    /// The answers that there are, for its thread to hand over though it does not sleep yet.
    fn hand_over_early(&self) -> Answered {
        let mut state = self.state();
        let answered = std::mem::take(&mut state.answered);
        state.rest.note_handed_over(answered.entries.len());
        answered
    }

    /// Requests that were kept and are not to be any more.
    fn wake_up(&self) -> Vec<Entry> {
        let mut state = self.state();
        if state.thread == ThreadState::Asleep {
            state.thread = ThreadState::Awake;
        }
        match state.rest.is_wanted {
            true => Vec::new(),
            false => std::mem::take(&mut state.rest.kept),
        }
    }

    fn answered(&self) -> usize {
        self.state().answered.entries.len()
    }

    /// Regular files that the kernel cannot let go before a request of ours is answered, at most `limit`.
    fn files_in_hand(&self, limit: usize) -> Vec<NodeId> {
        let state = self.state();
        let keeping = state.in_hand.values().filter(|entry| nudge::keeps_file(entry.operation()));
        keeping.map(Entry::node).take(limit).collect()
    }
}

impl Sink for Queue {
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.send_by(unique, error, parts, None)
    }

    fn send_by(&self, unique: Unique, error: i32, parts: &[&[u8]], due: Option<Due>) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > PAYLOAD_LEN {
            return Err(Errno::INVAL.into());
        }
        let (mut entry, under_way) = {
            let mut state = self.state();
            match state.thread {
                ThreadState::Ended => return Err(Errno::NODEV.into()),
                _ => {
                    let entry = state.in_hand.remove(&unique).ok_or(Errno::NOENT)?;
                    state.answering += 1;
                    state.rest.note_answer();
                    (entry, state.in_hand.len() + state.answering)
                }
            }
        };
        entry.answer(&abi::out_header(abi::OUT_HEADER_LEN + len, error, unique), parts, under_way);
        let mut state = self.state();
        state.answering -= 1;
        match state.thread {
            ThreadState::Ended => return Err(Errno::NODEV.into()),
            ThreadState::Awake => state.answered.push(entry, due),
            ThreadState::Asleep => {
                state.answered.push(entry, due);
                state.thread = ThreadState::Awake;
                drop(state);
                self.waker.wake();
            }
        }
        Ok(())
    }

    fn told_of_file(&self, node: u64) {
        self.nudges.file(node);
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
        self.send_by(unique, error, parts, None)
    }

    fn send_by(&self, unique: Unique, error: i32, parts: &[&[u8]], due: Option<Due>) -> io::Result<()> {
        if unique != 0 {
            for queue in &self.queues {
                match queue.send_by(unique, error, parts, due) {
                    // NODEV: the mount is gone, or went back to the device when it began.
                    Err(error)
                        if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV)) => {}
                    sent => return sent,
                }
            }
        }
        self.device.send(unique, error, parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::Monotonic;

    /// A queue with a request in hand, and the descriptor that its thread would wait on.
    fn queue_with(unique: Unique) -> Queue {
        let device = Device::new(std::fs::File::open("/dev/null").unwrap().into());
        let ring = Ring::new(device, 0).unwrap();
        let queue = Queue::new(0, ring.waker(), Arc::new(Nudges::new(1)), Yielding::new(1));
        queue.state().in_hand.insert(unique, Entry::new(&Arc::default()).unwrap());
        queue
    }

    #[test]
    fn a_request_is_answered_once() {
        let queue = queue_with(5);
        let errno = |sent: io::Result<()>| Errno::from_io_error(&sent.unwrap_err());
        assert_eq!(errno(queue.send(6, 0, &[])), Some(Errno::NOENT));
        assert_eq!(errno(queue.send(5, 0, &[&vec![0; PAYLOAD_LEN + 1]])), Some(Errno::INVAL));
        queue.send(5, 0, &[b"yes"]).unwrap();
        assert_eq!(errno(queue.send(5, 0, &[])), Some(Errno::NOENT));
        let answers = queue.fall_asleep(0).unwrap();
        assert_eq!(answers.entries[0].payload(), b"yes");
        assert_eq!(answers.entries[0].header(16), abi::out_header(19, 0, 5));
    }

    #[test]
    fn when_answers_have_to_be_with_the_kernel_is_the_earliest_of_them() {
        let due = |nanos| Some(Due::at(Monotonic::from_nanos(nanos)));
        let queue = queue_with(5);
        for (unique, due) in [(5, None), (6, due(9)), (7, due(4)), (8, None)] {
            queue.state().in_hand.insert(unique, Entry::new(&Arc::default()).unwrap());
            queue.send_by(unique, 0, &[], due).unwrap();
        }
        assert_eq!(queue.fall_asleep(0).unwrap().due, due(4));
        assert_eq!(queue.fall_asleep(0).unwrap().due, None);
    }

    #[test]
    fn nothing_is_answered_after_the_end() {
        let queue = queue_with(5);
        queue.end();
        assert_eq!(Errno::from_io_error(&queue.send(5, 0, &[]).unwrap_err()), Some(Errno::NODEV));
        assert!(queue.fall_asleep(0).is_none());
    }

    /// As where the kernel refuses the queues of a new mount.
    #[test]
    fn what_came_over_the_device_is_answered_though_the_queues_have_ended() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (queue, device) = (queue_with(5), Device::new(writer.into()));
        queue.end();
        AnyQueue { device, queues: vec![Arc::new(queue)] }.send(7, 0, &[]).unwrap();
        let mut answer = [0; abi::OUT_HEADER_LEN];
        io::Read::read_exact(&mut reader, &mut answer).unwrap();
        assert_eq!(answer, abi::out_header(abi::OUT_HEADER_LEN, 0, 7));
    }

    #[test]
    fn who_has_an_answer_wakes_a_thread_that_sleeps_and_no_other() {
        let queue = queue_with(5);
        assert_eq!(queue.fall_asleep(0).unwrap().entries.len(), 0);
        queue.send(5, 0, &[]).unwrap();
        assert_eq!(queue.state().thread, ThreadState::Awake);
        assert_eq!(queue.fall_asleep(0).unwrap().entries.len(), 1);
        queue.wake_up();
        assert_eq!(queue.state().thread, ThreadState::Awake);
    }
}
