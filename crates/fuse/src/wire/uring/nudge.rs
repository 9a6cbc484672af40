//! Requests of no meaning that make the kernel hand over those that wait.
//!
//! Linux (6.18) takes a request for which there was no entry out of its queue only when an answer is handed over to that queue: a
//! new entry does not get it. So each entry that is registered while requests may come is owed a *nudge*. That is a question to
//! the kernel (`FUSE_NOTIFY_RETRIEVE`, none of a file's pages) whose reply comes as a request, to the queue of the core that
//! asked, and the answer to that request fetches one of those that wait. One nudge for each new entry is enough, whatever
//! else happens meanwhile: where entries are free and requests wait, it makes both fewer by one, and nothing but a new entry
//! brings about that there are both.
//!
//! The question must be about a regular file that the kernel knows (before 6.18 some kernels take any node). Best is one that a
//! request in hand is about whose caller keeps it open; else one of those that were named last, which may be forgotten
//! since. Where there is none, the nudges stay owed until a file is named.
//!
//! They are sent by a thread of their own: the kernel may wait for a file that it is just letting go, and so for an answer.

use super::Queue;
use super::cores::run_on;
use super::decoy::Decoy;
use crate::wire::Sink;
use crate::wire::abi::{NodeId, Record, notify, opcode};
use crate::wire::device::Device;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Numbers of the requests that come of nudges are above, so they are none of the kernel's own.
const NUMBERS: u64 = 1 << 62;
/// More questions than a process asks between two moments.
const BEYOND: u64 = 1 << 32;
/// Files that are remembered, of all queues together.
const RECENT: usize = 16;
/// Of a queue's requests in hand, how many files are tried.
const IN_HAND: usize = 4;
/// A file that was just named the kernel may not have taken in yet: when to try again, and how often.
const AGAIN: Duration = Duration::from_millis(20);
const TRIES: u32 = 5;

/// Operations on regular files only.
pub(super) fn names_file(operation: u32) -> bool {
    keeps_file(operation) || [opcode::READ, opcode::WRITE, opcode::RELEASE].contains(&operation)
}

/// Those whose caller has the file open, so that the kernel is not letting it go. Reads and writes also come of the page cache.
pub(super) fn keeps_file(operation: u32) -> bool {
    const KEEPING: [u32; 10] = [
        opcode::OPEN,
        opcode::FLUSH,
        opcode::FSYNC,
        opcode::GETLK,
        opcode::SETLK,
        opcode::SETLKW,
        opcode::FALLOCATE,
        opcode::LSEEK,
        opcode::COPY_FILE_RANGE,
        opcode::COPY_FILE_RANGE_64,
    ];
    KEEPING.contains(&operation)
}

/// What the queues of a mount owe, and the files to ask about.
#[derive(Debug)]
pub(super) struct Nudges {
    pub(super) decoy: Decoy,
    /// Of the last question.
    number: AtomicU64,
    recent: Recent,
    /// Whether anything is owed: so that naming a file costs nothing else.
    in_debt: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// By queue.
    owed: Vec<usize>,
    tries_left: u32,
    not_before: Option<Instant>,
    ended: bool,
}

impl Nudges {
    pub(super) fn new(queues: usize) -> Nudges {
        let state = State { owed: vec![0; queues], tries_left: 0, not_before: None, ended: false };
        Nudges {
            decoy: Decoy::default(),
            number: AtomicU64::new(NUMBERS),
            recent: Recent::default(),
            in_debt: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The kernel knows this regular file, or is about to.
    pub(super) fn file(&self, node: u64) {
        self.recent.add(node);
        if self.in_debt.load(Ordering::Acquire) {
            self.state().tries_left = TRIES;
            self.changed.notify_one();
        }
    }

    /// So many entries of a queue are new.
    pub(super) fn owe(&self, queue: u16, entries: usize) {
        let mut state = self.state();
        let Some(owed) = state.owed.get_mut(usize::from(queue)) else { return };
        *owed += entries;
        state.tries_left = TRIES;
        state.not_before = None;
        self.in_debt.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_one();
    }

    /// What is to be tried now, by queue; waits for it. `None`: the mount is gone.
    fn due(&self) -> Option<Vec<usize>> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            let wait = state.not_before.and_then(|at| at.checked_duration_since(now));
            let to_do = state.tries_left > 0 && state.owed.iter().any(|owed| *owed > 0);
            state = match (to_do, wait.filter(|wait| !wait.is_zero())) {
                (false, _) => self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
                (true, Some(wait)) => {
                    let waited = self.changed.wait_timeout(state, wait);
                    waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
                (true, None) => {
                    state.tries_left -= 1;
                    let none = vec![0; state.owed.len()];
                    return Some(std::mem::replace(&mut state.owed, none));
                }
            };
        }
    }

    /// What of it could not be sent.
    fn still_owe(&self, unsent: &[usize]) {
        let mut state = self.state();
        if unsent.iter().any(|count| *count > 0) {
            state.not_before = Some(Instant::now() + AGAIN);
        }
        state.owed.iter_mut().zip(unsent).for_each(|(owed, unsent)| *owed += unsent);
        let in_debt = state.owed.iter().any(|owed| *owed > 0);
        self.in_debt.store(in_debt, Ordering::Release);
    }

    /// Sends what is owed until the mount is gone.
    pub(super) fn run(&self, queues: &[Arc<Queue>], device: &Device) {
        let ask = |node| self.ask(node, device);
        while let Some(mut owed) = self.due() {
            for (owed, queue) in owed.iter_mut().zip(queues).filter(|(owed, _)| **owed > 0) {
                if let Err(error) = run_on(queue.number) {
                    tracing::debug!(%error, core = queue.number, "a queue that cannot be nudged");
                    *owed = 0;
                    continue;
                }
                *owed = send(*owed, self.files(queue), ask);
            }
            self.still_owe(&owed);
        }
    }

    fn files(&self, queue: &Queue) -> impl Iterator<Item = NodeId> {
        let files = queue.files_in_hand(IN_HAND).into_iter().chain(self.recent.latest_first());
        files.chain([NodeId::ROOT])
    }

    fn ask(&self, node: NodeId, device: &Device) -> io::Result<()> {
        // Even numbers: the others are of INTERRUPTs.
        let number = self.number.fetch_add(2, Ordering::Relaxed) + 2;
        let record = Record::<32>::new().u64(number).u64(node.0).u64(0).u32(0).u32(0).done();
        device.send(0, notify::RETRIEVE, &[&record])
    }

    /// Asks so often on the core of a queue, about one of the files that are known or, better, `first`. Returns how often it
    /// could not.
    ///
    /// # Errors
    /// It must not run on that core.
    pub(super) fn ask_for(
        &self,
        queue: &Queue,
        count: usize,
        first: NodeId,
        device: &Device,
    ) -> io::Result<usize> {
        run_on(queue.number)?;
        let files = std::iter::once(first).chain(self.files(queue));
        Ok(send(count, files, |node| self.ask(node, device)))
    }

    /// A number beyond all of this process, also of what it may still ask.
    pub(super) fn beyond(&self) -> u64 {
        self.number.load(Ordering::Relaxed) + BEYOND
    }

    /// Of another process, [`Nudges::beyond`].
    pub(super) fn go_on_from(&self, number: u64) {
        self.number.store(number.max(NUMBERS), Ordering::Relaxed);
    }
}

/// Asks about the first of the nodes that the kernel accepts. Returns how often it could not.
fn send(
    mut count: usize,
    nodes: impl Iterator<Item = NodeId>,
    mut ask: impl FnMut(NodeId) -> io::Result<()>,
) -> usize {
    for node in nodes {
        while count > 0 {
            if let Err(error) = ask(node) {
                tracing::debug!(%error, node = node.0, "the kernel was not nudged");
                break;
            }
            count -= 1;
        }
    }
    count
}

/// Nodes that were named lately, each once. 0: none.
#[derive(Debug, Default)]
struct Recent {
    nodes: [AtomicU64; RECENT],
    next: AtomicUsize,
}

impl Recent {
    fn add(&self, node: u64) {
        if self.nodes.iter().all(|known| known.load(Ordering::Relaxed) != node) {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            self.nodes[at % RECENT].store(node, Ordering::Relaxed);
        }
    }

    fn latest_first(&self) -> impl Iterator<Item = NodeId> + '_ {
        let next = self.next.load(Ordering::Relaxed);
        let nodes = (1..=RECENT).map(move |back| &self.nodes[next.wrapping_sub(back) % RECENT]);
        nodes.map(|node| node.load(Ordering::Relaxed)).filter(|node| *node != 0).map(NodeId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn refused() -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn nodes(recent: &Recent) -> Vec<u64> {
        recent.latest_first().map(|node| node.0).collect()
    }

    #[test]
    fn the_latest_files_are_remembered_each_once() {
        let recent = Recent::default();
        assert!(nodes(&recent).is_empty());
        [5, 6, 5, 7].into_iter().for_each(|node| recent.add(node));
        assert_eq!(nodes(&recent), [7, 6, 5]);
        (10..40).for_each(|node| recent.add(node));
        assert_eq!(nodes(&recent), (24..40).rev().collect::<Vec<_>>());
    }

    #[test]
    fn the_first_file_that_the_kernel_knows_is_asked_about() {
        let mut asked = Vec::new();
        let left = send(3, [5, 6, 7].map(NodeId).into_iter(), |node| {
            asked.push(node.0);
            if node.0 == 5 { refused() } else { Ok(()) }
        });
        assert_eq!((left, asked), (0, vec![5, 6, 6, 6]));
        assert_eq!(send(3, [5, 6].map(NodeId).into_iter(), |_| refused()), 3);
    }

    #[test]
    fn what_could_not_be_sent_stays_owed_until_a_file_is_named() {
        let nudges = Nudges::new(2);
        nudges.owe(1, 4);
        nudges.owe(1, 3);
        nudges.owe(9, 1);
        for _ in 0..TRIES {
            assert_eq!(nudges.due(), Some(vec![0, 7]));
            nudges.still_owe(&[0, 7]);
        }
        thread::scope(|scope| {
            let waits = scope.spawn(|| nudges.due());
            while nudges.state().tries_left > 0 {
                thread::yield_now();
            }
            assert!(!waits.is_finished());
            nudges.file(5);
            assert_eq!(waits.join().unwrap(), Some(vec![0, 7]));
        });
        nudges.still_owe(&[0, 0]);
        assert!(!nudges.in_debt.load(Ordering::Acquire));
        nudges.file(6);
        assert_eq!(nudges.state().tries_left, TRIES - 1);
        nudges.end();
        assert_eq!(nudges.due(), None);
    }

    #[test]
    fn operations_that_keep_a_file_also_name_it() {
        assert!((0..60).all(|operation| names_file(operation) || !keeps_file(operation)));
        assert!(names_file(opcode::READ) && !keeps_file(opcode::READ));
        for directory in [opcode::LOOKUP, opcode::GETATTR, opcode::OPENDIR, opcode::READDIR, opcode::FSYNCDIR]
        {
            assert!(!names_file(directory));
        }
    }
}
