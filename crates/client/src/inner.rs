//! What all parts of a client share.

use crate::cache::State;
use crate::cache::disk::DiskCache;
use crate::clock::Clock;
use crate::config::{ClientConfig, Retry};
use crate::connection::{Slots, Transport, link};
use crate::hooks::KernelHooks;
use crate::pool::Pool;
use crate::stats::Stats;
use crate::validity::Answers;
use bytes::Bytes;
use soda_lease::holder::Ticket;
use soda_protocol::{Answer, Note, SessionKey};
use soda_types::{Epoch, Fid, FsResult, InUse, Monotonic, Recall, RecallAck, Timestamp};
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// How long a note that nobody waits for may be kept back.
const HOLD: Duration = Duration::from_millis(100);

pub(crate) struct Inner {
    pub(crate) config: ClientConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Arc<dyn KernelHooks>,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) state: Mutex<State>,
    pub(crate) link: Link,
    pub(crate) slots: Arc<Slots>,
    pub(crate) answers: Arc<Answers>,
    pub(crate) stats: Stats,
    pub(crate) runtime: Handle,
    pub(crate) recall_pool: Pool,
    pub(crate) disk: OnceLock<Arc<DiskCache>>,
    /// While it is made of what another process has left in the cache directory.
    pub(crate) opening_disk: watch::Sender<bool>,
    pub(crate) root: OnceLock<Fid>,
    pub(crate) max_io: AtomicU32,
    /// Grows with each session that was lost: open files remember it.
    pub(crate) losses: AtomicU64,
    /// Whether notes that are kept back are going to be sent, whatever follows.
    pub(crate) holding: AtomicBool,
    /// The server said that the session has ended: connect anew.
    pub(crate) session_ended: Notify,
    /// Held by who has the server given back what it keeps for what is done here.
    pub(crate) making_room: tokio::sync::Mutex<()>,
    /// What was lost and was in memory only is being written to where it is kept.
    pub(crate) keeping: Mutex<JoinSet<()>>,
    pub(crate) phase: watch::Sender<Phase>,
    /// What the server's calendar said when the session was begun or gone on with, and when that was heard.
    pub(crate) calendar: Mutex<Option<(Timestamp, Monotonic)>>,
    /// The session that is gone on with.
    pub(crate) key: Mutex<Option<SessionKey>>,
    /// While another process has the session: nothing is connected.
    pub(crate) away: watch::Sender<bool>,
    pub(crate) gate: Gate,
}

/// What the server asks back waits here until the kernel holds nothing that another process was promised. A client that took a
/// session over knows none of it: it would say at once that the kernel has nothing.
///
/// Not for all of it: a page that the kernel waits for may come from the server only after what waits there for another inode's
/// recall. So once names are gone, which are of many inodes, each recall waits for its own inode only.
///
/// What is given back for want of memory does not come here: that is never of an inode that the kernel knows
/// ([`Inode::pinned`](crate::cache::inode::Inode::pinned)), and all that it knew then this client was told before the first
/// request.
///
/// Pages may stay for longer than anything else, for somebody may keep them locked, or they have to be written back. Recalls of
/// these inodes go on to wait, each for its own.
#[derive(Debug)]
pub(crate) struct Gate {
    inside: Mutex<Inside>,
    /// Nothing is left at the kernel.
    is_open: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inside {
    /// `None`: open.
    shut: Option<Shut>,
    /// Inodes whose pages the kernel may have, when it has nothing else.
    left: HashSet<Fid>,
    /// What recalls that wait for the kernel ask for: the server repeats them.
    dropping: HashSet<(Fid, Epoch)>,
}

#[derive(Debug)]
struct Shut {
    names: NamesAtKernel,
    waiting: Vec<Recall>,
}

/// Whether the kernel may have names of before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NamesAtKernel {
    Perhaps,
    Gone,
}

/// Recalls that have come.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) free: Vec<Recall>,
    /// Those that are to be answered when the kernel has dropped these inodes; then [`Gate::dropped_for`].
    pub(crate) to_drop: Vec<(Recall, Vec<Fid>)>,
}

impl Gate {
    pub(crate) fn open() -> Gate {
        Gate { inside: Mutex::default(), is_open: watch::Sender::new(true) }
    }

    pub(crate) fn shut() -> Gate {
        let shut = Some(Shut { names: NamesAtKernel::Perhaps, waiting: Vec::new() });
        Gate { inside: Mutex::new(Inside { shut, ..Inside::default() }), is_open: watch::Sender::new(false) }
    }

    /// What may go on now; the rest waits.
    pub(crate) fn pass(&self, recalls: Vec<Recall>) -> Passed {
        let mut inside = crate::lock(&self.inside);
        match &mut inside.shut {
            None => inside.sort(recalls),
            Some(shut) => {
                shut.waiting.extend(recalls);
                inside.take_nodes()
            }
        }
    }

    /// From now on only the inode that is asked for matters. Returns what waited for that.
    pub(crate) fn names_are_gone(&self) -> Passed {
        let mut inside = crate::lock(&self.inside);
        let Some(shut) = &mut inside.shut else { return Passed::default() };
        shut.names = NamesAtKernel::Gone;
        inside.take_nodes()
    }

    /// Before [`Gate::let_through`]: of these it does not hold.
    pub(crate) fn keep_for(&self, left: impl IntoIterator<Item = Fid>) {
        crate::lock(&self.inside).left.extend(left);
    }

    /// The pages of one that was kept are gone.
    pub(crate) fn pages_are_gone(&self, fid: Fid) {
        let mut inside = crate::lock(&self.inside);
        inside.left.remove(&fid);
        self.is_open.send_replace(inside.is_open());
    }

    /// From now on nothing waits but for what is left. Returns what did.
    pub(crate) fn let_through(&self) -> Passed {
        let mut inside = crate::lock(&self.inside);
        let waiting = inside.shut.take().map(|shut| shut.waiting).unwrap_or_default();
        self.is_open.send_replace(inside.is_open());
        inside.sort(waiting)
    }

    /// What the recall had to wait for the kernel has dropped.
    pub(crate) fn dropped_for(&self, recall: &Recall) {
        crate::lock(&self.inside).dropping.remove(&(recall.asked(), recall.epoch));
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.is_open.borrow()
    }

    pub(crate) async fn opened(&self) {
        // The sender is here.
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
    }
}

impl Inside {
    fn is_open(&self) -> bool {
        self.shut.is_none() && self.left.is_empty()
    }

    /// A deep lease's recall is about more than one inode.
    fn take_nodes(&mut self) -> Passed {
        let Some(Shut { names: NamesAtKernel::Gone, waiting }) = &mut self.shut else {
            return Passed::default();
        };
        let nodes: Vec<Recall> = waiting.extract_if(.., |recall| recall.part.is_none()).collect();
        let nodes = nodes.into_iter().map(with_its_own).collect();
        Passed { free: Vec::new(), to_drop: self.begin(nodes) }
    }

    fn sort(&mut self, recalls: Vec<Recall>) -> Passed {
        let waits = |recall: &Recall| match recall.part {
            Some(_) => !self.left.is_empty(),
            None => self.left.contains(&recall.fid),
        };
        let (to_drop, free): (Vec<_>, Vec<_>) = recalls.into_iter().partition(waits);
        let of = |recall: Recall| match recall.part {
            Some(_) => (recall, self.left.iter().copied().collect()),
            None => with_its_own(recall),
        };
        let to_drop = to_drop.into_iter().map(of).collect();
        Passed { free, to_drop: self.begin(to_drop) }
    }

    /// Without those that wait already.
    fn begin(&mut self, recalls: Vec<(Recall, Vec<Fid>)>) -> Vec<(Recall, Vec<Fid>)> {
        let key = |recall: &Recall| (recall.asked(), recall.epoch);
        recalls.into_iter().filter(|(recall, _)| self.dropping.insert(key(recall))).collect()
    }
}

fn with_its_own(recall: Recall) -> (Recall, Vec<Fid>) {
    let fid = recall.fid;
    (recall, vec![fid])
}

/// How the client stands with its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Connected,
    /// The control connection is gone; trying again.
    Disconnected,
    /// Goodbye was said.
    Closed,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("server", &self.config.server).finish_non_exhaustive()
    }
}

/// What a reply runs into.
pub(crate) struct Arrived<'a> {
    pub(crate) inner: &'a Arc<Inner>,
    pub(crate) state: &'a mut State,
    pub(crate) now: Monotonic,
    pub(crate) ticket: Ticket,
}

/// What to do with a reply: first under the lock of the caches, then without it.
pub(crate) trait Completion: Send {
    fn apply(&mut self, arrived: Arrived<'_>, result: FsResult<(Answer, Bytes)>);
    fn finish(self: Box<Self>);
    /// Whether somebody still waits for the result.
    fn is_wanted(&self) -> bool;
}

/// Of a client's requests.
pub(crate) type Link = link::Link<Box<dyn Completion>>;
pub(crate) type Pending = link::Pending<Box<dyn Completion>>;

impl Inner {
    pub(crate) fn now(&self) -> Monotonic {
        self.clock.now()
    }

    pub(crate) fn note_calendar(&self, said: Timestamp) {
        *crate::lock(&self.calendar) = Some((said, self.now()));
    }

    /// What changes that are made here are dated by: the server's calendar, as far as it can be known. This machine's own may be
    /// wrong.
    pub(crate) fn calendar(&self) -> Timestamp {
        match *crate::lock(&self.calendar) {
            Some((said, heard)) => said.after(self.now().since(heard)),
            None => self.clock.calendar(),
        }
    }

    /// The caches and the time. The lock is never held across a wait.
    pub(crate) fn locked(&self) -> (MutexGuard<'_, State>, Monotonic) {
        let state = crate::lock(&self.state);
        // Looked at after the lock was taken, which may have needed a while.
        let now = self.clock.now();
        (state, now)
    }

    pub(crate) fn patience(&self) -> Option<Duration> {
        match self.config.retry {
            Retry::Hard => None,
            Retry::Soft { timeout } => Some(timeout),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.phase.borrow() == Phase::Closed
    }

    /// Waits while another process has the session, or until the client is closed.
    pub(crate) async fn until_at_home(&self) {
        let (mut phase, mut away) = (self.phase.subscribe(), self.away.subscribe());
        tokio::select! {
            _ = away.wait_for(|away| !away) => {}
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => {}
        }
    }

    pub(crate) fn closed(&self, fids: Vec<Fid>) {
        if !fids.is_empty() {
            self.note(&Note::Closed(fids));
        }
    }

    pub(crate) fn note(&self, note: &Note) {
        self.stats.noted(note);
        self.link.note(note);
    }

    /// Tells the server with what it is told next, or soon.
    pub(crate) fn note_soon(self: &Arc<Inner>, note: &Note) {
        self.stats.noted(note);
        self.link.hold(note);
        if self.holding.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            tokio::time::sleep(HOLD).await;
            // Before they are sent: what is kept back from now on has somebody to send it.
            inner.holding.store(false, Ordering::Release);
            inner.link.send_held();
        });
    }

    /// Tells the server of leases that were given up unasked.
    pub(crate) fn release(&self, acks: Vec<RecallAck>) {
        let said_open = self.send_release(acks);
        self.close_overtaken(said_open);
    }

    /// As [`Inner::release`], under the lock of the caches. Returns what it said to be open, for [`Inner::close_overtaken`]
    /// without that lock.
    pub(crate) fn send_release(&self, acks: Vec<RecallAck>) -> Vec<Fid> {
        if acks.is_empty() {
            return Vec::new();
        }
        self.stats.leases_released.add(acks.len() as u64);
        let said_open = said_open(&acks);
        self.note(&Note::Release(acks));
        said_open
    }

    /// After a note that said these are open. What was closed between the note's making and its sending, the server has heard
    /// in the wrong order.
    pub(crate) fn close_overtaken(&self, said_open: Vec<Fid>) {
        if said_open.is_empty() {
            return;
        }
        let mut state = crate::lock(&self.state);
        said_open.into_iter().for_each(|fid| state.told_open(fid));
        let closed = state.take_closed();
        drop(state);
        self.closed(closed);
    }

    pub(crate) fn max_io(&self) -> u32 {
        self.max_io.load(Ordering::Relaxed)
    }
}

/// What the acknowledgements say is in use.
pub(crate) fn said_open(acks: &[RecallAck]) -> Vec<Fid> {
    acks.iter().filter(|ack| ack.in_use == InUse::Yes).map(|ack| ack.asked()).collect()
}
