//! The ring of one queue and the entries that it shares with the kernel. An [`Entry`] is room for one request, of which the
//! kernel has the memory from its submission to its completion ([`crate::wire::audited`]).

use super::leave::{HandedEntry, Standing};
use crate::wire::abi::NodeId;
use crate::wire::abi::uring::{ARGUMENTS_AT, COMMIT_ID_AT, HEADER_LEN, PAYLOAD_LEN_AT};
use crate::wire::audited::{Claims, Completion, Lent, Loans, PAYLOAD_LEN, Room, VECTORS_AT, u32_at, u64_at};
use crate::wire::device::Device;
use crate::wire::entry_memory::{EntryMemory, HEADER_SPACE};
use bytes::Bytes;
use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Room for all entries that a queue begins with.
const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 1024;
/// Between tries to hand over what the kernel has no memory for (EAGAIN, io_uring_enter(2)): this thread is bound to its core.
const SHORT_OF_MEMORY: Duration = Duration::from_millis(1);

/// Room for one request and its answer.
#[derive(Debug)]
pub(super) struct Entry {
    room: Room,
}

impl Entry {
    /// Takes memory only as it is used.
    pub(super) fn new(of_queue: &Arc<EntryMemory>) -> io::Result<Entry> {
        Ok(Entry { room: Room::new(of_queue)? })
    }

    /// The room of another process's entry.
    ///
    /// # Errors
    /// As [`Claims::room`].
    pub(super) fn handed(
        claims: &mut Claims,
        handed: &HandedEntry,
        of_queue: &Arc<EntryMemory>,
    ) -> io::Result<Entry> {
        let HandedEntry { address, header, payload, .. } = handed;
        if header.len() > VECTORS_AT || payload.len() > PAYLOAD_LEN {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut room = claims.room(*address, u64_at(header, COMMIT_ID_AT), of_queue)?;
        room.note_payload(payload.len());
        let memory = room.bytes_mut();
        memory[..header.len()].copy_from_slice(header);
        memory[HEADER_SPACE..HEADER_SPACE + payload.len()].copy_from_slice(payload);
        Ok(Entry { room })
    }

    /// For [`Entry::handed`] in another process.
    pub(super) fn hand_over(&self, standing: Standing) -> HandedEntry {
        let header = Bytes::copy_from_slice(self.header(HEADER_LEN));
        HandedEntry {
            address: self.room.address(),
            standing,
            header,
            payload: Bytes::copy_from_slice(self.payload()),
        }
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64_at(self.room.bytes(), at)
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32_at(self.room.bytes(), at)
    }

    pub(super) fn operation(&self) -> u32 {
        self.u32_at(4)
    }

    /// Number of the request.
    pub(super) fn unique(&self) -> u64 {
        self.u64_at(8)
    }

    /// What the request is about.
    pub(super) fn node(&self) -> NodeId {
        NodeId(self.u64_at(16))
    }

    /// How long the request is with its header.
    pub(super) fn request_len(&self) -> usize {
        self.u32_at(0) as usize
    }

    pub(super) fn header(&self, len: usize) -> &[u8] {
        &self.room.bytes()[..len]
    }

    pub(super) fn arguments(&self, len: usize) -> &[u8] {
        &self.room.bytes()[ARGUMENTS_AT..ARGUMENTS_AT + len]
    }

    /// The rest of the request.
    pub(super) fn payload(&self) -> &[u8] {
        let len = (self.u32_at(PAYLOAD_LEN_AT) as usize).min(PAYLOAD_LEN);
        &self.room.bytes()[HEADER_SPACE..HEADER_SPACE + len]
    }

    /// Puts an answer in the place of the request, while so many requests of the queue are under way. The parts must fit
    /// ([`PAYLOAD_LEN`]).
    pub(super) fn answer(&mut self, header: &[u8], parts: &[&[u8]], under_way: usize) {
        self.room.put_payload(parts, under_way);
        let memory = self.room.bytes_mut();
        memory[..header.len()].copy_from_slice(header);
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let len = (len as u32).to_ne_bytes();
        memory[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + len.len()].copy_from_slice(&len);
    }
}

/// What a ring has to tell.
#[derive(Debug)]
pub(super) enum Event {
    /// A request is in the entry.
    Request(Entry),
    /// Somebody has called [`Waker::wake`].
    Woken,
    /// The kernel did not take an entry, or has given it up.
    Refused(Errno, Lent),
}

/// Wakes the thread that waits in [`Ring::wait`].
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

impl Waker {
    pub(super) fn wake(&self) {
        // Fails only when it would overflow: then nobody has looked for 2^64 calls.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The ring of one queue. All calls but [`Ring::new`] are for one thread, the one that called [`Ring::enable`].
#[derive(Debug)]
pub(super) struct Ring {
    loans: Loans,
    waker: Arc<Waker>,
}

impl Ring {
    pub(super) fn new(device: Arc<Device>, queue: u16) -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            // Not DEFER_TASKRUN: what is deferred is left undone by a thread that is killed, see the module's page.
            .setup_coop_taskrun()
            .setup_r_disabled()
            .build(SUBMISSIONS)?;
        let waker = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Ring { loans: Loans::new(ring, device, queue), waker: Arc::new(Waker(waker)) })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// From here on the ring is this thread's.
    pub(super) fn enable(&mut self) -> io::Result<()> {
        self.loans.ring().submitter().register_enable_rings()?;
        self.loans.watch(self.waker.0.as_fd());
        Ok(())
    }

    /// How many entries the kernel has, or will have with the next [`Ring::wait`].
    pub(super) fn outstanding(&self) -> usize {
        self.loans.outstanding()
    }

    /// Gives the kernel a new entry, with the next of the calls that hand over.
    pub(super) fn register(&mut self, entry: Entry) {
        self.loans.register(entry.room);
    }

    /// Gives the kernel an entry that it cannot take.
    pub(super) fn register_nothing(&mut self, entry: Entry) {
        self.loans.register_nothing(entry.room);
    }

    /// Gives the kernel an entry that it cannot take, so that it goes on with the device. Only before all queues have
    /// entries: once it uses them, there is no way back.
    pub(super) fn decline(&mut self) -> io::Result<()> {
        self.register_nothing(Entry::new(&Arc::default())?);
        self.flush()?;
        while self.next().is_some() {}
        Ok(())
    }

    /// Gives the kernel the answer that is in the entry, and the entry for another request, with the next of the calls that hand
    /// over.
    pub(super) fn commit(&mut self, entry: Entry) {
        self.loans.commit(entry.room);
    }

    /// Hands over what was submitted, without waiting.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.loans.submit_all_but_a_ring()?;
        self.loans.ring().submit()?;
        self.loans.let_pass();
        Ok(())
    }

    /// Hands over what was submitted, and waits until there is something to tell, at most for `limit`. Not where the kernel does
    /// not take all of it now: what it has to tell is to be taken out first.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let submitted = match self.loans.has_passing() {
            true => self.flush(),
            false => self.loans.submit_all_but_a_ring(),
        };
        if let Err(error) = submitted {
            unless_later(Err(error))?;
            if self.ready() == 0 {
                std::thread::sleep(SHORT_OF_MEMORY);
            }
            return Ok(());
        }
        let ring = self.loans.ring();
        let waited = match limit {
            None => ring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        unless_later(waited.map(|_| ()))
    }

    /// As [`Ring::flush`], but that what the kernel does not take now is no error ([`Ring::has_unsubmitted`]).
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        unless_later(self.flush())
    }

    /// Whether there is something that the kernel gets only next time.
    pub(super) fn has_unsubmitted(&mut self) -> bool {
        self.loans.has_unsubmitted()
    }

    /// What there is to tell now.
    pub(super) fn ready(&mut self) -> usize {
        self.loans.ready()
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        Some(match self.loans.next()? {
            Completion::Filled(room) => Event::Request(Entry { room }),
            Completion::Refused(error, lent) => Event::Refused(error, lent),
            Completion::Watched { is_last } => {
                if is_last {
                    self.loans.watch(self.waker.0.as_fd());
                }
                Event::Woken
            }
        })
    }
}

fn unless_later(submitted: io::Result<()>) -> io::Result<()> {
    match submitted {
        Ok(()) => Ok(()),
        Err(error) => match Errno::from_io_error(&error) {
            // BUSY, AGAIN: completions are to be taken out first.
            Some(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_the_place_of_the_request() {
        let mut entry = Entry::new(&Arc::default()).unwrap();
        assert_eq!((entry.unique(), entry.payload().len()), (0, 0));
        entry.answer(&[7; 16], &[b"one", b"two"], 1);
        assert_eq!(entry.header(17), [&[7u8; 16][..], &[0]].concat());
        assert_eq!(entry.payload(), b"onetwo");
        entry.answer(&[8; 16], &[&vec![1; PAYLOAD_LEN]], 1);
        assert_eq!(entry.payload().len(), PAYLOAD_LEN);
    }

    #[test]
    fn a_length_that_is_too_large_is_cut() {
        let mut entry = Entry::new(&Arc::default()).unwrap();
        entry.room.bytes_mut()[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].fill(0xff);
        assert_eq!(entry.payload().len(), PAYLOAD_LEN);
    }

    /// A kernel that takes nothing now, as one without memory for a moment: here as the ring is not enabled.
    #[test]
    fn what_the_kernel_does_not_take_now_is_kept_for_it() {
        const ENTRIES: usize = SUBMISSIONS as usize + 44;
        // Takes no command of FUSE's.
        let device = Device::new(std::fs::File::open("/proc/self/exe").unwrap().into());
        let mut ring = Ring::new(device, 0).unwrap();
        (0..ENTRIES).for_each(|_| ring.register(Entry::new(&Arc::default()).unwrap()));
        assert!(ring.flush().is_err() && ring.has_unsubmitted());
        assert_eq!(ring.outstanding(), ENTRIES);
        ring.enable().unwrap();
        ring.hand_over().unwrap();
        assert!(!ring.has_unsubmitted());
        let mut refused = 0;
        while let Some(event) = ring.next() {
            refused += usize::from(matches!(event, Event::Refused(..)));
        }
        assert_eq!((refused, ring.outstanding()), (ENTRIES, 0), "each is told of, and none is left");
    }

    #[test]
    fn an_entry_is_at_the_same_place_in_another_process() {
        let mut entry = Entry::new(&Arc::default()).unwrap();
        entry.answer(&[7; 16], &[b"a request"], 1);
        let handed = entry.hand_over(Standing::Kept);
        let take = |handed: &HandedEntry| Entry::handed(&mut Claims::default(), handed, &Arc::default());
        assert!(take(&handed).is_err(), "it is in use");
        drop(entry);
        let entry = take(&handed).unwrap();
        assert_eq!(entry.room.address(), handed.address);
        assert_eq!((entry.header(16), entry.payload()), (&[7; 16][..], &b"a request"[..]));
        for bad in [
            HandedEntry { address: 0, ..handed.clone() },
            HandedEntry { payload: vec![0; PAYLOAD_LEN + 1].into(), ..handed.clone() },
            HandedEntry { header: vec![0; VECTORS_AT + 1].into(), ..handed },
        ] {
            assert_eq!(take(&bad).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
