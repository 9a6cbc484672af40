//! The thread of a queue: gives the kernel the answers, and takes its requests.

use super::cores::{is_online, run_on};
use super::ring::{Entry, Event, Ring};
use super::{Dispatcher, Handler, Queue, decoy, nudge};
use crate::wire::escort::YieldingPlace;
use crate::wire::{Reply, abi};
use rustix::io::Errno;
use soda_client::Due;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A queue of which the kernel has fewer entries than this gets more.
const LOW: usize = 64;
/// Most entries of a queue: so many callers on one core can wait at a time. Each takes 1 MiB of address space, and memory as
/// it was once used.
const MOST: usize = 1 << 14;
/// How long to wait for the kernel to give back its entries at the end.
const LAST_WAIT: Duration = Duration::from_secs(2);

pub(super) struct QueueThread<H> {
    pub(super) queue: Arc<Queue>,
    pub(super) ring: Ring,
    dispatcher: Dispatcher<H>,
    place: YieldingPlace,
    /// Where a request is put together.
    message: Vec<u8>,
    /// Of answers that are on their way to the kernel.
    due: Option<Due>,
    /// Entries, wherever they are.
    pub(super) total: usize,
}

/// Whether the kernel has all that was submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HandedOver {
    Yes,
    No,
}

impl<H: Handler> QueueThread<H> {
    pub(super) fn new(
        queue: Arc<Queue>,
        ring: Ring,
        dispatcher: Dispatcher<H>,
        place: YieldingPlace,
    ) -> QueueThread<H> {
        QueueThread { queue, ring, dispatcher, place, message: Vec::new(), due: None, total: 0 }
    }

    pub(super) fn run(mut self, entries: Vec<Entry>, report: Sender<io::Result<()>>) {
        let began = self.begin(entries);
        let has_begun = began.is_ok();
        let _ = report.send(began);
        if has_begun {
            self.serve_to_the_end();
        }
    }

    pub(super) fn serve_to_the_end(mut self) {
        if let Err(error) = self.serve() {
            // The kernel goes on giving requests to this queue: better none than some that wait for ever.
            tracing::error!(%error, queue = self.queue.number, "a queue of the mount does not work any more");
        }
        self.queue.end();
        self.take_back();
    }

    /// An error means that the kernel has no entry of this queue.
    fn begin(&mut self, entries: Vec<Entry>) -> io::Result<()> {
        self.ring.enable()?;
        let core = self.queue.number;
        if let Err(error) = run_on(core)
            && is_online(core)
        {
            // Nor can it be nudged.
            tracing::warn!(%error, core, "not allowed here: if many callers wait there, others may have to");
        }
        for entry in entries {
            self.add(entry)?;
        }
        if let Err(error) = self.ring.flush() {
            tracing::info!(%error, core, "the kernel takes the entries of a queue later");
        }
        // A refusal is there at once.
        let mut refused = None;
        while let Some(event) = self.ring.next()? {
            match event {
                Event::Refused(error) => {
                    self.total -= 1;
                    refused = Some(error);
                }
                event => self.take(event),
            }
        }
        match refused {
            Some(error) if self.total == 0 => Err(error.into()),
            Some(error) => {
                tracing::warn!(%error, core, total = self.total, "the kernel takes no more entries of a queue");
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn add(&mut self, entry: Entry) -> io::Result<()> {
        self.ring.register(entry)?;
        self.total += 1;
        Ok(())
    }

    fn serve(&mut self) -> io::Result<()> {
        while let Some(answered) = self.queue.fall_asleep(self.ring.outstanding()) {
            for entry in answered.entries {
                self.ring.commit(entry)?;
            }
            self.due = Due::earliest(self.due, answered.due);
            if self.hand_over()? == HandedOver::No || self.ring.ready() == 0 {
                self.ring.wait(None)?;
            }
            self.queue.wake_up().into_iter().for_each(|entry| self.request(entry));
            // No more than are there now: others may come all the while, and answers wait for the end of this.
            for _ in 0..self.ring.ready() {
                let Some(event) = self.ring.next()? else { break };
                self.take(event);
            }
            self.grow();
        }
        Ok(())
    }

    /// Answers that the kernel has to have in time are given to it before the wait: after that nobody could say when it got them.
    /// This thread may have been stopped, or without its core, since they were written.
    fn hand_over(&mut self) -> io::Result<HandedOver> {
        let Some(due) = self.due else { return Ok(HandedOver::No) };
        self.ring.hand_over()?;
        if self.ring.has_unsubmitted() {
            return Ok(HandedOver::No);
        }
        self.due = None;
        self.dispatcher.arrived(due);
        Ok(HandedOver::Yes)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Request(entry) if self.queue.keeps() => self.queue.keep(entry),
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

    pub(super) fn request(&mut self, mut entry: Entry) {
        self.place.request();
        let unique = entry.unique();
        if entry.operation() == abi::opcode::NOTIFY_REPLY {
            entry.answer(&abi::out_header(abi::OUT_HEADER_LEN, 0, unique), &[]);
            self.queue.state().answered.push(entry, None);
            return;
        }
        if nudge::names_file(entry.operation()) {
            self.queue.nudges.file(entry.node().0);
        }
        let reply = || Reply::new(unique, self.queue.clone());
        let payload = entry.payload();
        let arguments = entry.request_len().checked_sub(abi::IN_HEADER_LEN + payload.len());
        let Some(arguments) = arguments.filter(|len| *len <= abi::uring::ARGUMENTS_LEN) else {
            tracing::error!(unique, "malformed request of the kernel");
            self.queue.state().in_hand.insert(unique, entry);
            return reply().raw_error(Errno::IO.raw_os_error());
        };
        self.message.clear();
        self.message.extend_from_slice(entry.header(abi::IN_HEADER_LEN));
        self.message.extend_from_slice(entry.arguments(arguments));
        let request = self.dispatcher.assemble(&mut self.message, payload);
        let is_decoy = self.queue.nudges.decoy.is_meant(&self.message);
        self.queue.state().in_hand.insert(unique, entry);
        match is_decoy {
            true => decoy::answer(reply()),
            false => self.dispatcher.dispatch(&self.message, request, reply()),
        }
    }

    /// Who waits keeps an entry. There must always be one for the next, who may be the one that the others wait for.
    pub(super) fn grow(&mut self) {
        let available = self.ring.outstanding() + self.queue.answered();
        if available >= LOW || self.total >= MOST || self.queue.keeps() {
            return;
        }
        let had = self.total;
        let more = self.total.min(MOST - self.total);
        let added = (0..more).try_for_each(|_| self.add(Entry::new()?)).and_then(|()| self.ring.flush());
        if let Err(error) = added {
            tracing::warn!(%error, queue = self.queue.number, total = self.total, "no more entries");
        }
        tracing::debug!(queue = self.queue.number, total = self.total, "more entries");
        self.queue.nudges.owe(self.queue.number, self.total - had);
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
