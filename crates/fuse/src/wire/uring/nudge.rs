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
//! since. Where there is none, somebody is asked to look up a decoy ([`super::decoy`]): that request does find a new entry. Until
//! then, or until a file is named, the nudges stay owed.
//!
//! They are sent by a thread of their own: the kernel may wait for a file that it is just letting go, and so for an answer.

use super::Queue;
use super::cores::run_on;
use super::decoy::{self, Decoy};
use crate::unpoisoned::Unpoisoned;
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
/// A decoy may not have been looked up, where that has to wait for the server: when to try again, twice as long each time.
const SHOW_AGAIN: Duration = Duration::from_secs(1);
const SHOW_LATEST: Duration = Duration::from_secs(60);

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
    /// Another one, for who waits.
    own_decoy: Decoy,
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
    /// Somebody may wait for long if they are not sent.
    are_urgent: bool,
    /// The pause after a decoy was looked up, and until when it lasts.
    shown: Option<(Duration, Instant)>,
    ended: bool,
}

impl State {
    /// What is to be done, which counts as done; or how long there is nothing.
    fn next(&mut self, now: Instant) -> Result<ToDo, Option<Duration>> {
        let has_tries = self.tries_left > 0;
        if !(has_tries || self.are_urgent) || self.owed.iter().all(|owed| *owed == 0) {
            return Err(None);
        }
        let not_before = if has_tries { self.not_before } else { self.shown.map(|(_, until)| until) };
        let wait = not_before.map(|at| at.saturating_duration_since(now));
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            return Err(Some(wait));
        }
        if has_tries {
            self.tries_left -= 1;
            let none = vec![0; self.owed.len()];
            return Ok(ToDo::Nudge(std::mem::replace(&mut self.owed, none)));
        }
        let pause = self.shown.map_or(SHOW_AGAIN, |(pause, _)| (pause * 2).min(SHOW_LATEST));
        self.shown = Some((pause, now + pause));
        Ok(ToDo::Show)
    }
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ToDo {
    /// So often, by queue.
    Nudge(Vec<usize>),
    /// The kernel knows no file that could be asked about.
    Show,
}

impl Nudges {
    pub(super) fn new(queues: usize) -> Nudges {
        let state = State {
            owed: vec![0; queues],
            tries_left: 0,
            not_before: None,
            are_urgent: false,
            shown: None,
            ended: false,
        };
        Nudges {
            decoy: Decoy::default(),
            own_decoy: Decoy::default(),
            number: AtomicU64::new(NUMBERS),
            recent: Recent::default(),
            in_debt: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// The kernel knows this regular file, or is about to.
    pub(super) fn file(&self, node: u64) {
        self.recent.add(node);
        if self.in_debt.load(Ordering::Acquire) {
            self.state().tries_left = TRIES;
            self.changed.notify_one();
        }
    }

    /// So many entries of a queue are new, all the others having been used up.
    pub(super) fn owe(&self, queue: u16, entries: usize) {
        self.state().are_urgent = true;
        self.owe_at_leisure(queue, entries);
    }

    /// So many entries of a queue are new, and nobody has asked for anything yet.
    pub(super) fn owe_at_leisure(&self, queue: u16, entries: usize) {
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

    /// Whether a request looks for a decoy.
    pub(super) fn is_decoy_meant(&self, message: &[u8]) -> bool {
        self.decoy.is_meant(message) || self.own_decoy.is_meant(message)
    }

    /// What is to be done now; waits for it. `None`: the mount is gone.
    fn due(&self) -> Option<ToDo> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            state = match state.next(Instant::now()) {
                Ok(to_do) => return Some(to_do),
                Err(None) => self.changed.wait(state).unpoisoned(),
                Err(Some(wait)) => {
                    let waited = self.changed.wait_timeout(state, wait);
                    waited.unpoisoned().0
                }
            };
        }
    }

    /// Has somebody look up a decoy.
    fn show(&self, look_up: impl Fn(&str)) {
        self.own_decoy.show(look_up);
        let mut state = self.state();
        state.tries_left = TRIES;
        state.not_before = None;
    }

    /// What of it could not be sent.
    fn still_owe(&self, unsent: &[usize]) {
        let mut state = self.state();
        if unsent.iter().any(|count| *count > 0) {
            state.not_before = Some(Instant::now() + AGAIN);
        }
        state.owed.iter_mut().zip(unsent).for_each(|(owed, unsent)| *owed += unsent);
        let in_debt = state.owed.iter().any(|owed| *owed > 0);
        if !in_debt {
            (state.are_urgent, state.shown) = (false, None);
        }
        self.in_debt.store(in_debt, Ordering::Release);
    }

    /// Sends what is owed until the mount is gone. `look_up` has another process look up a name in the root directory, and waits
    /// for that for a while.
    pub(super) fn run(&self, queues: &[Arc<Queue>], device: &Device, look_up: impl Fn(&str)) {
        let ask = |node| self.ask(node, device);
        while let Some(to_do) = self.due() {
            let mut owed = match to_do {
                ToDo::Nudge(owed) => owed,
                ToDo::Show => {
                    self.show(&look_up);
                    continue;
                }
            };
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
        files.chain([decoy::NODE, NodeId::ROOT])
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
    use crate::wire::abi;
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
    fn for_what_nobody_waits_no_decoy_is_shown() {
        let nudges = Nudges::new(1);
        nudges.owe_at_leisure(0, 4);
        for _ in 0..TRIES {
            assert_eq!(nudges.due(), Some(ToDo::Nudge(vec![4])));
            nudges.still_owe(&[4]);
        }
        let later = Instant::now() + SHOW_LATEST;
        assert_eq!(nudges.state().next(later), Err(None));
        nudges.state().are_urgent = true;
        assert_eq!(nudges.state().next(later), Ok(ToDo::Show));
        assert_eq!(nudges.state().next(later), Err(Some(SHOW_AGAIN)));
        assert_eq!(nudges.state().next(later + SHOW_AGAIN), Ok(ToDo::Show));
        assert_eq!(nudges.state().next(later + SHOW_AGAIN), Err(Some(SHOW_AGAIN * 2)));
    }

    fn look_up_of(name: &str) -> Vec<u8> {
        let mut message = vec![0; abi::IN_HEADER_LEN];
        message[4..8].copy_from_slice(&opcode::LOOKUP.to_ne_bytes());
        message[16..24].copy_from_slice(&NodeId::ROOT.0.to_ne_bytes());
        [&message, name.as_bytes(), &[0]].concat()
    }

    #[test]
    fn what_could_not_be_sent_stays_owed_until_a_file_is_named() {
        let nudges = Nudges::new(2);
        let all = || Some(ToDo::Nudge(vec![0, 7]));
        nudges.owe(1, 4);
        nudges.owe(1, 3);
        nudges.owe(9, 1);
        for _ in 0..TRIES {
            assert_eq!(nudges.due(), all());
            nudges.still_owe(&[0, 7]);
        }
        assert_eq!(nudges.due(), Some(ToDo::Show));
        let looked_up = Mutex::default();
        nudges.show(|name| {
            let message = look_up_of(name);
            *looked_up.lock().unwrap() = message.clone();
            assert!(nudges.is_decoy_meant(&message));
        });
        assert!(!nudges.is_decoy_meant(&looked_up.into_inner().unwrap()));
        for _ in 0..TRIES {
            assert_eq!(nudges.due(), all());
            nudges.still_owe(&[0, 7]);
        }
        nudges.state().shown = Some((SHOW_AGAIN, Instant::now() + 60 * SHOW_LATEST));
        thread::scope(|scope| {
            let waits = scope.spawn(|| nudges.due());
            while nudges.state().tries_left > 0 {
                thread::yield_now();
            }
            assert!(!waits.is_finished());
            nudges.file(5);
            assert_eq!(waits.join().unwrap(), all());
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
