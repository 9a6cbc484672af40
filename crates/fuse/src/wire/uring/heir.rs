//! The queues of a mount that another process has let go ([`super::leave`]). What can fail comes before that process has ended.

use super::cores::{self, run_on};
use super::leave::{HandedEntry, HandedQueues, LAYOUT, Standing};
use super::nudge::Nudges;
use super::ring::{Entry, Ring};
use super::worker::QueueThread;
use super::{DEPTH_OFFLINE, Dispatcher, Handler, Queue, Start, Uring, Yielding, YieldingPlace};
use crate::wire::audited::Claims;
use crate::wire::device::Device;
use crate::wire::entry_memory::EntryMemory;
use crate::wire::pause::Bell;
use crate::wire::spare::Spare;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::runtime::Handle;

/// Everything that the queues need to be served: nothing is missing but the word. Dropped, it changes nothing.
#[derive(Debug)]
pub(crate) struct Inheritance {
    uring: Uring,
    kept: Vec<Vec<Entry>>,
    threads: Vec<Spare>,
    nudge: Spare,
    supervise: Spare,
}

impl Inheritance {
    /// The process leaves no core dump any more.
    ///
    /// # Errors
    /// Entries of another form; something of this process is where one of them is; no rings, or threads.
    pub(crate) fn prepare(device: &Arc<Device>, handed: &HandedQueues) -> io::Result<Inheritance> {
        let cores = cores::possible()?;
        if handed.layout != LAYOUT || handed.queues.len() != usize::from(cores) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "they have another form"));
        }
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        let (nudges, yielding) = (Arc::new(Nudges::new(cores.into())), Yielding::new(cores.into()));
        nudges.go_on_from(handed.next_question);
        let mut queues = Vec::new();
        let mut all_kept = Vec::new();
        let mut claims = Claims::default();
        for (number, entries) in (0..cores).zip(&handed.queues) {
            let ring = Ring::new(device.clone(), number)?;
            let queue = Arc::new(Queue::new(number, ring.waker(), nudges.clone(), yielding.clone()));
            let mut kept = Vec::new();
            for handed in entries {
                let entry = at_its_place(&mut claims, handed, &queue.memory)?;
                match handed.standing {
                    Standing::Kept => kept.push(entry),
                    Standing::InHand => {
                        queue.state().in_hand.insert(entry.unique(), entry);
                    }
                }
            }
            queues.push(super::Unused { queue, ring, entries: Vec::new(), start: Start::default() });
            all_kept.push(kept);
        }
        let threads = (0..cores).map(|core| Spare::start(&format!("fuse-core-{core}")));
        let threads = threads.collect::<io::Result<_>>()?;
        let [nudge, supervise] = [Spare::start("fuse-nudge")?, Spare::start("fuse-yielding")?];
        let bell = Arc::new(Bell::new()?);
        let uring = Uring { device: device.clone(), queues, nudges, yielding, bell };
        Ok(Inheritance { uring, kept: all_kept, threads, nudge, supervise })
    }

    pub(crate) fn uring(&self) -> &Uring {
        &self.uring
    }

    /// Begins to answer. To be called when the other process has said that it does nothing more.
    pub(crate) fn start<H: Handler>(
        self,
        dispatcher: &Dispatcher<H>,
        runtime: &Handle,
    ) -> Vec<JoinHandle<()>> {
        let Inheritance { uring, kept, threads, nudge, supervise } = self;
        let queues = uring.queues();
        let Uring { device, queues: unused, nudges, yielding, .. } = uring;
        let shows = dispatcher.clone();
        let mut started = vec![
            nudge.run(move || nudges.run(&queues, &device, |name| shows.look_up(name))),
            supervise.run(move || yielding.supervise()),
        ];
        for ((thread, unused), kept) in threads.into_iter().zip(unused).zip(kept) {
            let super::Unused { queue, ring, .. } = unused;
            let (dispatcher, runtime) = (dispatcher.clone(), runtime.clone());
            started.push(thread.run(move || {
                let _context = runtime.enter();
                let place = YieldingPlace::take(&queue.yielding, queue.number.into());
                QueueThread::new(queue, ring, dispatcher, place).inherit(kept);
            }));
        }
        started
    }
}

fn at_its_place(claims: &mut Claims, handed: &HandedEntry, of_queue: &Arc<EntryMemory>) -> io::Result<Entry> {
    Entry::handed(claims, handed, of_queue).map_err(|error| {
        let address = handed.address;
        io::Error::new(error.kind(), format!("no memory at {address:#x}, where the kernel looks: {error}"))
    })
}

impl<H: Handler> QueueThread<H> {
    /// Serves a queue of which these requests have come already.
    fn inherit(mut self, kept: Vec<Entry>) {
        self.total = kept.len() + self.queue.state().in_hand.len();
        let core = self.queue.number;
        if let Err(error) = self.ring.enable() {
            // It was just made, and is like all others.
            tracing::error!(%error, core, "a ring cannot be used");
        }
        if let Err(error) = run_on(core) {
            tracing::info!(%error, core, "the thread of a queue is on another core");
        }
        kept.into_iter().for_each(|entry| self.request(entry));
        match self.total {
            0 => self.add_for_nobody(),
            // All that have come may wait for what has not come: the kernel has to have an entry for that.
            _ => self.grow(Instant::now()),
        }
        self.serve_to_the_end();
    }

    /// Entries of a queue whose core is not there.
    fn add_for_nobody(&mut self) {
        let added = self.add_more(DEPTH_OFFLINE);
        if let Err(error) = added {
            tracing::warn!(%error, core = self.queue.number, "a queue without entries");
        }
        self.queue.nudges.owe_at_leisure(self.queue.number, self.total);
    }
}
