//! The thread of a queue: gives the kernel the answers, and takes its requests.

use super::cores::{is_online, run_on};
use super::ring::{Entry, Event, Ring};
use super::{Answered, Dispatcher, Handler, Queue, QueueFault, Start, decoy, nudge};
use crate::wire::audited::Lent;
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
/// So many answers, or any that are so old, do not wait until all requests of a round are taken: some of these may be long, as
/// writes are, whose data are copied.
const TOGETHER: usize = 8;
const TOGETHER_FOR: Duration = Duration::from_micros(50);
/// How long no entries are added once the kernel has refused one, as it does where a control group has no memory left. Doubled
/// with each refusal.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// So many are tried after that.
const A_FEW: usize = 8;
/// How long to wait for the kernel to give back its entries at the end.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Said with each refusal.
const LEAVE_IT_ON: &str =
    "from now on the mount ends if fuse.enable_uring is switched off, so it has to stay on while it is there";

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
    refusals: Refusals,
}

/// The kernel does not take more entries.
#[derive(Debug, Default)]
struct Refusals {
    /// The last pause, and until when it lasts.
    last: Option<(Duration, Instant)>,
}

impl Refusals {
    /// Says whether it is the first.
    fn note(&mut self, now: Instant) -> bool {
        let pause = match self.last {
            // Of the entries that were tried together.
            Some((_, until)) if now < until => return false,
            Some((pause, _)) => (pause * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        self.last.replace((pause, now + pause)).is_none()
    }

    fn are_there(&self) -> bool {
        self.last.is_some()
    }

    /// How long to wait still.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let left = self.last.map(|(_, until)| until.saturating_duration_since(now));
        left.filter(|left| !left.is_zero())
    }
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
        QueueThread {
            queue,
            ring,
            dispatcher,
            place,
            message: Vec::new(),
            due: None,
            total: 0,
            refusals: Refusals::default(),
        }
    }

    pub(super) fn run(mut self, entries: Vec<Entry>, start: Start, report: Sender<io::Result<()>>) {
        let began = self.begin(entries, start);
        let has_begun = began.is_ok();
        let _ = report.send(began);
        if has_begun {
            self.serve_to_the_end();
        }
    }

    pub(super) fn serve_to_the_end(mut self) {
        if let Err(error) = self.serve() {
            // The kernel goes on giving requests to this queue: better an end than callers that wait for ever.
            tracing::error!(%error, queue = self.queue.number, "a queue of the mount does not work any more");
            self.dispatcher.abandon();
        }
        self.queue.end();
        self.take_back();
    }

    /// An error means that the kernel does not use the queues.
    fn begin(&mut self, entries: Vec<Entry>, start: Start) -> io::Result<()> {
        self.ring.enable()?;
        let core = self.queue.number;
        if let Err(error) = run_on(core)
            && is_online(core)
        {
            // Nor can it be nudged.
            tracing::warn!(%error, core, "not allowed here: if many callers wait there, others may have to");
        }
        for (place, entry) in entries.into_iter().enumerate() {
            match start.fault {
                Some(QueueFault::All) => self.add_nothing(entry),
                Some(QueueFault::One) if place == 0 => self.add_nothing(entry),
                _ => self.add(entry),
            }
        }
        if let Err(error) = self.ring.flush() {
            tracing::info!(%error, core, "the kernel takes the entries of a queue later");
        }
        // A refusal is there at once.
        let mut refused = None;
        while let Some(event) = self.ring.next() {
            match event {
                Event::Refused(error, _) => {
                    self.total -= 1;
                    refused = Some(error);
                }
                event => self.take(event)?,
            }
        }
        match refused {
            // From a refusal on Linux (6.18, `fuse_uring_cmd`) looks at its switch for each answer. As long as there is a way
            // back nobody has to depend on that.
            Some(error) if self.total == 0 || !start.is_last => Err(error.into()),
            Some(error) => {
                let total = self.total;
                tracing::warn!(%error, core, total, "the kernel takes no more entries of a queue: {LEAVE_IT_ON}");
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn add(&mut self, entry: Entry) {
        self.ring.register(entry);
        self.total += 1;
    }

    /// The kernel refuses it.
    fn add_nothing(&mut self, entry: Entry) {
        self.ring.register_nothing(entry);
        self.total += 1;
    }

    /// So many new ones.
    pub(super) fn add_more(&mut self, count: usize) -> io::Result<()> {
        (0..count).try_for_each(|_| Entry::new(&self.queue.memory).map(|entry| self.add(entry)))
    }

    fn serve(&mut self) -> io::Result<()> {
        while let Some(answered) = self.queue.fall_asleep(self.ring.outstanding()) {
            self.commit(answered);
            if self.hand_over()? == HandedOver::No || self.ring.ready() == 0 {
                self.ring.wait(self.refusals.pause(Instant::now()))?;
            }
            self.queue.wake_up().into_iter().for_each(|entry| self.request(entry));
            self.take_all()?;
            self.grow(Instant::now());
        }
        Ok(())
    }

    /// No more than are there now: others may come all the while, and answers wait for the end of this, or until they are some.
    fn take_all(&mut self) -> io::Result<()> {
        let mut last = Instant::now();
        for left in (0..self.ring.ready()).rev() {
            let Some(event) = self.ring.next() else { break };
            self.take(event)?;
            let ready = self.queue.answered();
            if left > 0 && (ready >= TOGETHER || ready > 0 && last.elapsed() > TOGETHER_FOR) {
                self.commit(self.queue.hand_over_early());
                self.ring.hand_over()?;
                self.note_arrival();
                last = Instant::now();
            }
        }
        Ok(())
    }

    fn commit(&mut self, answered: Answered) {
        self.due = Due::earliest(self.due, answered.due);
        answered.entries.into_iter().for_each(|entry| self.ring.commit(entry));
    }

    /// Answers that the kernel has to have in time are given to it before the wait: after that nobody could say when it got them.
    /// This thread may have been stopped, or without its core, since they were written.
    fn hand_over(&mut self) -> io::Result<HandedOver> {
        if self.due.is_none() {
            return Ok(HandedOver::No);
        }
        self.ring.hand_over()?;
        Ok(self.note_arrival())
    }

    /// To be called after [`Ring::hand_over`].
    fn note_arrival(&mut self) -> HandedOver {
        if self.ring.has_unsubmitted() {
            return HandedOver::No;
        }
        self.due.take().into_iter().for_each(|due| self.dispatcher.arrived(due));
        HandedOver::Yes
    }

    /// # Errors
    /// The kernel does not take an answer, so who asked will wait for ever.
    fn take(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Request(entry) if self.queue.keeps() => self.queue.keep(entry),
            Event::Request(entry) => self.request(entry),
            Event::Woken => {}
            Event::Refused(error, lent) => {
                self.total -= 1;
                match (error, lent) {
                    // Unmounted.
                    (Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED, _) => {}
                    // It knows of no such request any more, or has ended it with an error (`fuse_uring_commit_fetch`).
                    (Errno::NOENT | Errno::IO, Lent::WithAnswer) => {
                        tracing::error!(%error, queue = self.queue.number, "the kernel refused an answer");
                    }
                    (_, Lent::WithAnswer) => return Err(error.into()),
                    (_, Lent::Empty) if self.refusals.note(Instant::now()) => {
                        let queue = self.queue.number;
                        tracing::error!(%error, queue, "the kernel refuses entries of a queue; tried again. {LEAVE_IT_ON}");
                    }
                    (_, Lent::Empty) => {}
                }
            }
        }
        Ok(())
    }

    pub(super) fn request(&mut self, mut entry: Entry) {
        self.place.request();
        let unique = entry.unique();
        if entry.operation() == abi::opcode::NOTIFY_REPLY {
            entry.answer(&abi::out_header(abi::OUT_HEADER_LEN, 0, unique), &[], 0);
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
        let is_decoy = self.queue.nudges.is_decoy_meant(&self.message);
        self.queue.state().in_hand.insert(unique, entry);
        match is_decoy {
            true => decoy::answer(reply()),
            false => self.dispatcher.dispatch(&self.message, request, reply()),
        }
    }

    /// Who waits keeps an entry. There must always be one for the next, who may be the one that the others wait for.
    pub(super) fn grow(&mut self, now: Instant) {
        let available = self.ring.outstanding() + self.queue.answered();
        if available >= LOW {
            self.refusals = Refusals::default();
        }
        let is_refused = self.refusals.pause(now).is_some();
        if available >= LOW || self.total >= MOST || self.queue.keeps() || is_refused {
            return;
        }
        let had = self.total;
        let more = if self.refusals.are_there() { A_FEW } else { self.total.max(A_FEW) };
        let more = more.min(MOST - self.total);
        let added = self.add_more(more).and_then(|()| self.ring.flush());
        if let Err(error) = added
            && self.refusals.note(now)
        {
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
            if self.ring.wait(Some(step)).is_err() {
                return;
            }
            while self.ring.next().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::leave::{HandedEntry, Standing};
    use super::super::nudge::Nudges;
    use super::*;
    use crate::wire::abi::uring::COMMIT_ID_AT;
    use crate::wire::audited::{Claims, VECTORS_AT};
    use crate::wire::device::Device;
    use crate::wire::escort::Yielding;
    use crate::wire::{Agreement, Request};
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use std::cell::RefCell;
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{OnceLock, Weak};

    #[derive(Debug, Default)]
    struct Told {
        is_abandoned: AtomicBool,
        requests: AtomicUsize,
        /// Most answers of this that waited when another request came.
        queue: OnceLock<Weak<Queue>>,
        waited: AtomicUsize,
    }

    impl Handler for Told {
        fn handle(&self, _: Request<'_>, reply: Reply) {
            let answered = self.queue.get().and_then(Weak::upgrade).map_or(0, |queue| queue.answered());
            self.waited.fetch_max(answered, Ordering::Relaxed);
            self.requests.fetch_add(1, Ordering::Relaxed);
            reply.done();
        }

        fn abandon(&self) {
            self.is_abandoned.store(true, Ordering::Relaxed);
        }
    }

    /// A queue's thread, which has no thread of its own, and the kernel as `device` is one.
    fn thread<H: Handler>(device: &str, handler: Arc<H>) -> QueueThread<H> {
        let ring = Ring::new(Device::new(File::open(device).unwrap().into()), 0).unwrap();
        let (nudges, yielding) = (Arc::new(Nudges::new(1)), Yielding::new(1));
        let queue = Arc::new(Queue::new(0, ring.waker(), nudges, yielding.clone()));
        let dispatcher = Dispatcher::new(handler, &Agreement::of_linux_6_18());
        let place = YieldingPlace::take(&yielding, 0);
        let mut thread = QueueThread::new(queue, ring, dispatcher, place);
        thread.ring.enable().unwrap();
        thread
    }

    /// Takes no command.
    const REFUSES: &str = "/proc/self/exe";

    #[test]
    fn a_kernel_that_refuses_entries_is_asked_again_later_and_for_less() {
        let mut thread = thread(REFUSES, Arc::new(Told::default()));
        thread.total = 100;
        let drain = |thread: &mut QueueThread<Told>| {
            while let Some(event) = thread.ring.next() {
                thread.take(event).unwrap();
            }
        };
        let begin = Instant::now();
        thread.grow(begin);
        assert_eq!(thread.ring.outstanding(), 100);
        drain(&mut thread);
        assert_eq!((thread.ring.outstanding(), thread.total), (0, 100));
        thread.grow(begin);
        assert_eq!(thread.ring.outstanding(), 0, "not at once");
        let later = Instant::now() + LONGEST_PAUSE;
        thread.grow(later);
        assert_eq!(thread.ring.outstanding(), A_FEW);
    }

    /// With the answer to a request of this name.
    fn answered(commit_id: u64) -> Entry {
        let handed = Entry::new(&Arc::default()).unwrap().hand_over(Standing::InHand);
        let mut header = handed.header.to_vec();
        header[COMMIT_ID_AT..COMMIT_ID_AT + 8].copy_from_slice(&commit_id.to_ne_bytes());
        let handed = HandedEntry { header: header.into(), ..handed };
        Entry::handed(&mut Claims::default(), &handed, &Arc::default()).unwrap()
    }

    #[test]
    fn a_mount_whose_answers_the_kernel_refuses_is_abandoned() {
        let told = Arc::new(Told::default());
        let mut thread = thread(REFUSES, told.clone());
        thread.total = 1;
        thread.queue.state().answered.push(answered(7), None);
        thread.serve_to_the_end();
        assert!(told.is_abandoned.load(Ordering::Relaxed));
    }

    #[test]
    fn a_mount_that_is_gone_is_not_abandoned() {
        let told = Arc::new(Told::default());
        let mut thread = thread(REFUSES, told.clone());
        thread.total = 3;
        for error in [Errno::NOTCONN, Errno::NOENT] {
            thread.take(Event::Refused(error, Lent::WithAnswer)).unwrap();
        }
        assert!(thread.take(Event::Refused(Errno::OPNOTSUPP, Lent::WithAnswer)).is_err());
        thread.queue.end();
        thread.serve_to_the_end();
        assert!(!told.is_abandoned.load(Ordering::Relaxed));
    }

    /// Gives back what it is lent, as it is.
    const ACCEPTS: &str = "/dev/null";

    /// What the kernel, or the process that served the mount before, leaves in an entry.
    fn contents() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        use abi::uring::PAYLOAD_LEN_AT;
        let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
        let operation = prop_oneof![4 => 0u32..60, 1 => any::<u32>()];
        let payload_len = prop_oneof![4 => 0u32..300, 1 => any::<u32>()];
        let header =
            (bytes(VECTORS_AT + 1), prop_oneof![4 => 0u32..500, 1 => any::<u32>()], operation, payload_len);
        let header = header.prop_map(|(mut header, len, operation, payload_len)| {
            for (at, number) in [(0, len), (4, operation), (PAYLOAD_LEN_AT, payload_len)] {
                if let Some(place) = header.get_mut(at..at + 4) {
                    place.copy_from_slice(&number.to_ne_bytes());
                }
            }
            header
        });
        (header, bytes(200))
    }

    #[test]
    fn random_entries_do_not_panic_and_each_is_answered_once() {
        let thread = RefCell::new(thread(ACCEPTS, Arc::new(Told::default())));
        let config = ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() };
        let run = TestRunner::new(config).run(&contents(), |(header, payload)| {
            let mut thread = thread.borrow_mut();
            let place = Entry::new(&Arc::default()).unwrap().hand_over(Standing::Kept);
            let handed = HandedEntry { header: header.into(), payload: payload.into(), ..place };
            let entry = Entry::handed(&mut Claims::default(), &handed, &Arc::default()).unwrap();
            let unique = entry.unique();
            thread.request(entry);
            let mut answers = thread.queue.hand_over_early().entries;
            prop_assert_eq!((answers.len(), thread.queue.state().in_hand.len()), (1, 0));
            let answer = answers.pop().unwrap();
            prop_assert_eq!(answer.unique(), unique);
            Ok(())
        });
        run.unwrap();
    }

    #[test]
    fn answers_wait_for_a_few_requests_only() {
        const REQUESTS: u64 = 100;
        let told = Arc::new(Told::default());
        let mut thread = thread(ACCEPTS, told.clone());
        told.queue.set(Arc::downgrade(&thread.queue)).unwrap();
        for unique in 1..=REQUESTS {
            let mut entry = answered(unique);
            let mut header = [0; abi::IN_HEADER_LEN];
            header[..4].copy_from_slice(&(abi::IN_HEADER_LEN as u32).to_ne_bytes());
            header[4..8].copy_from_slice(&abi::opcode::STATFS.to_ne_bytes());
            header[8..16].copy_from_slice(&unique.to_ne_bytes());
            entry.answer(&header, &[], 0);
            thread.ring.commit(entry);
        }
        thread.total = REQUESTS as usize;
        thread.ring.hand_over().unwrap();
        assert_eq!(thread.ring.ready(), REQUESTS as usize);
        thread.take_all().unwrap();
        assert_eq!(told.requests.load(Ordering::Relaxed), REQUESTS as usize);
        let waited = told.waited.load(Ordering::Relaxed);
        assert!(waited < TOGETHER, "{waited} answers waited for requests that came with theirs");
    }

    #[test]
    fn pauses_after_refusals_grow_and_only_the_first_is_said() {
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.pause(now), None);
        let pauses: Vec<_> = (0..9)
            .map(|round| {
                assert_eq!([refusals.note(now), refusals.note(now)], [round == 0, false]);
                let pause = refusals.pause(now).unwrap();
                now += pause;
                pause.as_millis()
            })
            .collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}
