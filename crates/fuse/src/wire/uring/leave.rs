//! The queues of a mount are let go, for another process to serve them ([`super::heir`]).
//!
//! Linux (6.18) has no call for that: `FUSE_NOTIFY_RESEND` looks at what was read from the device only, an entry cannot be taken
//! out of its queue, and what one is given just before its thread ends is answered by nobody (`fuse_uring_send_in_task`). But
//! whoever answers a request has its entry from then on (`fuse_uring_commit_fetch` asks for the request's number, not for the
//! ring that got it). So this process
//! - *rests*: what comes is kept in its entry, and nothing is handed on;
//! - *empties its queues*: on the core of each it asks the kernel a question ([`super::nudge`]) as often as the kernel has
//!   entries of that queue. The questions come back as requests, each of which takes one. When the kernel has no entry more,
//!   nothing can be on its way here, not even from a caller who was given an entry and lost his core before he could say so.
//!   What callers ask for from then on waits in the kernel;
//! - hands over its entries, with what is in them. The next process answers, and has them.
//!
//! Until then nothing has happened that is not undone by taking up what was kept.
//!
//! A queue whose core is not there cannot be asked on. Nobody calls there; what the kernel has of it ends with this process, and
//! the next one has entries of its own.

use super::decoy;
use super::nudge::Nudges;
use super::ring::Entry;
use super::{Queue, State, is_online};
use crate::unpoisoned::Unpoisoned;
use crate::wire::audited::PAYLOAD_LEN;
use crate::wire::device::Device;
use crate::wire::entry_memory::{HEADER_SPACE, QueueMemory};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for questions to come back before others are asked: what callers ask for may have come first.
const COME_BACK: Duration = Duration::from_millis(20);

/// Part of a queue's state.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub(super) is_wanted: bool,
    /// Its thread hands nothing on.
    has_begun: bool,
    /// How many entries the kernel had when the thread looked last. What came since is not taken off, what goes there is
    /// counted before.
    with_kernel: usize,
    pub(super) kept: Vec<Entry>,
    /// What there is has been written down for the next process.
    is_written_down: bool,
    /// Something was answered after that: its entry may have come back with another request.
    is_overtaken: bool,
}

impl Rest {
    /// So many entries go to the kernel before the thread looks again.
    pub(super) fn note_handed_over(&mut self, entries: usize) {
        self.with_kernel += entries;
    }

    pub(super) fn note_answer(&mut self) {
        self.is_overtaken |= self.is_written_down;
    }
}

/// What another process gets of the queues, in the order of their numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedQueues {
    /// Where an entry has its payload, and how much of it: bytes.
    pub(super) layout: (u32, u32),
    /// [`Nudges::beyond`].
    pub(super) next_question: u64,
    pub(super) queues: Vec<Vec<HandedEntry>>,
}

impl HandedQueues {
    /// Whether questions can be counted on.
    pub(crate) fn can_go_on(&self) -> bool {
        const FAR: u64 = u64::MAX - (1 << 48);
        self.next_question < FAR
    }
}

/// Of programs whose entries look alike.
pub(super) const LAYOUT: (u32, u32) = (HEADER_SPACE as u32, PAYLOAD_LEN as u32);

/// An entry, with the request in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HandedEntry {
    pub(super) address: u64,
    pub(super) standing: Standing,
    pub(super) header: Bytes,
    pub(super) payload: Bytes,
}

/// Whether a request is to be handed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Standing {
    Kept,
    /// It was, and will be answered by who has begun it once more.
    InHand,
}

/// The kernel still has entries of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel still has {0} entries of its queues; its log says why. Try again, or unmount and mount again"
)]
pub struct NotEmptied(usize);

impl Queue {
    pub(super) fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Acquire)
    }

    pub(super) fn keep(&self, entry: Entry) {
        self.state().rest.kept.push(entry);
    }

    /// The thread hands nothing on until it has looked again whether it may.
    pub(super) fn note_rest(&self, state: &mut State, with_kernel: usize) {
        state.rest.with_kernel = with_kernel;
        if state.rest.is_wanted {
            state.rest.has_begun = true;
            self.changed.notify_all();
        }
    }

    fn begin_rest(&self) {
        let mut state = self.state();
        state.rest.is_wanted = true;
        (state.rest.is_written_down, state.rest.is_overtaken) = (false, false);
        self.keeps.store(true, Ordering::Release);
        drop(state);
        self.waker.wake();
    }

    fn end_rest(&self) {
        let mut state = self.state();
        let kept = std::mem::take(&mut state.rest.kept);
        state.rest = Rest { with_kernel: state.rest.with_kernel, kept, ..Rest::default() };
        self.keeps.store(false, Ordering::Release);
        drop(state);
        self.waker.wake();
    }

    /// Waits until it is so, for a time.
    fn wait_until(&self, limit: Duration, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.state(), limit, |state| !is_so(state));
        waited.unpoisoned().0
    }

    /// Whether its thread hands nothing on; waits for that for a time.
    fn rests(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| state.rest.has_begun).rest.has_begun
    }

    /// Entries that the kernel has or will have; waits until there are none, for a time.
    fn with_kernel(&self, limit: Duration) -> usize {
        Queue::left(&self.wait_until(limit, |state| Queue::left(state) == 0))
    }

    fn left(state: &State) -> usize {
        state.rest.with_kernel
            + state.answered.entries.len()
            + state.answering
            + usize::from(state.rest.is_overtaken)
    }

    /// All that it has; and what the kernel has of it at that moment.
    fn to_pass_on(&self) -> (Vec<HandedEntry>, usize) {
        let mut state = self.state();
        state.rest.is_written_down = true;
        let kept = state.rest.kept.iter().map(|entry| entry.hand_over(Standing::Kept));
        let in_hand = state.in_hand.values().map(|entry| entry.hand_over(Standing::InHand));
        (kept.chain(in_hand).collect(), Queue::left(&state))
    }
}

/// How the queues of a mount are let go.
#[derive(Debug)]
pub(crate) struct Leave {
    device: Arc<Device>,
    queues: Vec<Arc<Queue>>,
    nudges: Arc<Nudges>,
}

impl Leave {
    pub(super) fn new(device: Arc<Device>, queues: Vec<Arc<Queue>>, nudges: Arc<Nudges>) -> Leave {
        Leave { device, queues, nudges }
    }

    /// Of the queues' entries.
    pub(crate) fn memory(&self) -> QueueMemory {
        QueueMemory::of(self.queues.iter().map(|queue| queue.memory.clone()))
    }

    /// Requests are kept from now on.
    pub(crate) fn begin_rest(&self) {
        self.queues.iter().for_each(|queue| queue.begin_rest());
    }

    /// Queues whose threads may still hand something on. Waits for each for so long.
    pub(crate) fn restless(&self, at_most: Duration) -> usize {
        self.queues.iter().filter(|queue| !queue.rests(at_most)).count()
    }

    /// What was kept is handed on.
    pub(crate) fn end_rest(&self) {
        self.queues.iter().for_each(|queue| queue.end_rest());
    }

    /// Has somebody look up a name in the root directory, which makes the kernel know a file, for [`Leave::empty`].
    pub(crate) fn show_decoy(&self, look_up: impl FnOnce(&str)) {
        self.nudges.decoy.show(look_up);
    }

    /// Uses up all entries that the kernel has, once all queues rest and answer nothing.
    ///
    /// # Errors
    /// It has not come to that in time.
    pub(crate) fn empty(&self, limit: Duration) -> Result<(), NotEmptied> {
        let until = Instant::now() + limit;
        let (tell, told) = channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let emptier = Emptier {
            device: self.device.clone(),
            queues: self.queues.clone(),
            nudges: self.nudges.clone(),
            given_up: given_up.clone(),
            until,
        };
        // A thread of its own, which goes from core to core; and the kernel may keep it, as one that sends nudges.
        let started = thread::Builder::new().name("fuse-empty".into()).spawn(move || {
            emptier.run();
            let _ = tell.send(());
        });
        if let Err(error) = started {
            tracing::warn!(%error, "nobody empties the queues");
        } else if told.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            given_up.store(true, Ordering::Release);
        }
        self.check()
    }

    /// Whether the kernel has no entry that it could use.
    ///
    /// # Errors
    /// It has some.
    pub(crate) fn check(&self) -> Result<(), NotEmptied> {
        match self.left() {
            0 => Ok(()),
            left => Err(NotEmptied(left)),
        }
    }

    /// Entries that the kernel could use.
    fn left(&self) -> usize {
        let on_a_core = self.queues.iter().filter(|queue| is_online(queue.number));
        on_a_core.map(|queue| queue.with_kernel(Duration::ZERO)).sum()
    }

    /// All that the queues have, once they are empty.
    ///
    /// # Errors
    /// They are not, as where a core has come meanwhile.
    pub(crate) fn to_pass_on(&self) -> Result<HandedQueues, NotEmptied> {
        let (queues, left): (Vec<_>, Vec<_>) = self.queues.iter().map(|queue| queue.to_pass_on()).unzip();
        let on_a_core = self.queues.iter().zip(left).filter(|(queue, _)| is_online(queue.number));
        let left = on_a_core.map(|(_, left)| left).sum();
        if left > 0 {
            return Err(NotEmptied(left));
        }
        Ok(HandedQueues { layout: LAYOUT, next_question: self.nudges.beyond(), queues })
    }
}

struct Emptier {
    device: Arc<Device>,
    queues: Vec<Arc<Queue>>,
    nudges: Arc<Nudges>,
    given_up: Arc<AtomicBool>,
    until: Instant,
}

impl Emptier {
    fn run(&self) {
        for queue in self.queues.iter().filter(|queue| is_online(queue.number)) {
            let mut left = queue.with_kernel(Duration::ZERO);
            let mut unnamed = 0;
            while left > 0 && Instant::now() < self.until && !self.given_up.load(Ordering::Acquire) {
                let unsent = match self.nudges.ask_for(queue, left, decoy::NODE, &self.device) {
                    Ok(unsent) => unsent,
                    Err(error) => {
                        return tracing::warn!(%error, core = queue.number, "a queue that cannot be emptied");
                    }
                };
                unnamed = unsent;
                left = queue.with_kernel(COME_BACK);
            }
            if left > 0 && unnamed > 0 {
                let core = queue.number;
                tracing::warn!(
                    left,
                    core,
                    "no file is known that the kernel could be asked about: nothing takes these entries"
                );
            }
        }
    }
}
