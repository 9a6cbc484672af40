//! The ring of one queue and the memory that it shares with the kernel. With `escort/sched.rs` the only unsafe
//! code of this crate.
//!
//! An [`Entry`] is room for one request. It is either here, as a value that somebody owns, or in [`Ring::with_kernel`]: it
//! is moved there when it is submitted and comes back out with its completion. The kernel touches its memory only in
//! between. So whoever has an `Entry` has its memory alone, and the rest of the crate needs no unsafe code.

#![allow(unsafe_code)]

use super::leave::{HandedEntry, Standing};
use crate::wire::abi::NodeId;
use crate::wire::abi::uring::{
    ARGUMENTS_AT, COMMIT_AND_FETCH, COMMIT_ID_AT, HEADER_LEN, PAYLOAD_LEN_AT, REGISTER,
};
use crate::wire::device::{Device, MAX_WRITE};
use bytes::Bytes;
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Of one entry, bytes. Nothing that the kernel asks or is answered is longer.
pub(super) const PAYLOAD_LEN: usize = MAX_WRITE as usize;
/// The header has a page of its own, the payload begins with the next.
pub(super) const HEADER_SPACE: usize = 4096;
const ENTRY_LEN: usize = HEADER_SPACE + PAYLOAD_LEN;
/// Where the header's page has the addresses that REGISTER reads.
const VECTORS_AT: usize = 1024;
/// Where `struct io_uring_sqe` has the field `len`, which the crate's builder of commands lacks.
const SQE_LEN_AT: usize = 24;

/// Room for all entries that a queue begins with.
const SUBMISSIONS: u32 = 256;
const COMPLETIONS: u32 = 1024;
/// Marks completions that are no entry's: somebody has written to the event descriptor.
const WAKE: u64 = u64::MAX;

/// Room for one request and its answer.
#[derive(Debug)]
pub(super) struct Entry {
    memory: NonNull<u8>,
}

// SAFETY: the memory belongs to this value alone, see above.
unsafe impl Send for Entry {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Entry {}

impl Entry {
    /// Takes memory only as it is used.
    pub(super) fn new() -> io::Result<Entry> {
        Entry::map(usual_place(), MapFlags::empty())
    }

    fn map(place: usize, how: MapFlags) -> io::Result<Entry> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE | how);
        let place = std::ptr::without_provenance_mut(place);
        // SAFETY: new memory. The kernel takes the address if it is free, else another one or, with `FIXED_NOREPLACE`, none.
        let memory = unsafe { rustix::mm::mmap_anonymous(place, ENTRY_LEN, protection, flags) }?;
        NonNull::new(memory.cast()).map(|memory| Entry { memory }).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    /// The room of another process's entry: the kernel goes on to use the same addresses, whoever has it.
    ///
    /// # Errors
    /// Something else is there.
    pub(super) fn handed(handed: &HandedEntry) -> io::Result<Entry> {
        let HandedEntry { address, header, payload, .. } = handed;
        let place = usize::try_from(*address).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        if place == 0 || header.len() > VECTORS_AT || payload.len() > PAYLOAD_LEN {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut entry = Entry::map(place, MapFlags::FIXED_NOREPLACE)?;
        if entry.address() != *address {
            // A kernel that does not know the flag (before 4.17).
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let memory = entry.memory_mut();
        memory[..header.len()].copy_from_slice(header);
        memory[HEADER_SPACE..HEADER_SPACE + payload.len()].copy_from_slice(payload);
        Ok(entry)
    }

    /// For [`Entry::handed`] in another process.
    pub(super) fn hand_over(&self, standing: Standing) -> HandedEntry {
        let header = Bytes::copy_from_slice(self.header(HEADER_LEN));
        HandedEntry {
            address: self.address(),
            standing,
            header,
            payload: Bytes::copy_from_slice(self.payload()),
        }
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn memory(&self) -> &[u8] {
        // SAFETY: mapped with this length until the drop; nobody else writes to it, see above.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), ENTRY_LEN) }
    }

    fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `memory`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), ENTRY_LEN) }
    }

    fn u64_at(&self, at: usize) -> u64 {
        self.memory()[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.memory()[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    pub(super) fn commit_id(&self) -> u64 {
        self.u64_at(COMMIT_ID_AT)
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
        &self.memory()[..len]
    }

    pub(super) fn arguments(&self, len: usize) -> &[u8] {
        &self.memory()[ARGUMENTS_AT..ARGUMENTS_AT + len]
    }

    /// The rest of the request.
    pub(super) fn payload(&self) -> &[u8] {
        let len = (self.u32_at(PAYLOAD_LEN_AT) as usize).min(PAYLOAD_LEN);
        &self.memory()[HEADER_SPACE..HEADER_SPACE + len]
    }

    /// Puts an answer in the place of the request. The parts must fit ([`PAYLOAD_LEN`]).
    pub(super) fn answer(&mut self, header: &[u8], parts: &[&[u8]]) {
        let memory = self.memory_mut();
        memory[..header.len()].copy_from_slice(header);
        let mut at = HEADER_SPACE;
        for part in parts {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let len = ((at - HEADER_SPACE) as u32).to_ne_bytes();
        memory[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + len.len()].copy_from_slice(&len);
    }

    /// Writes the addresses of header and payload where REGISTER reads them, and returns where that is.
    fn vectors(&mut self) -> u64 {
        let base = self.address();
        let vectors = [base, HEADER_LEN as u64, base + HEADER_SPACE as u64, PAYLOAD_LEN as u64];
        for (place, value) in self.memory_mut()[VECTORS_AT..].chunks_exact_mut(8).zip(vectors) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
        base + VECTORS_AT as u64
    }
}

/// Where processes have their entries. Far from where Linux puts what has no place of its own, so that the next process finds the
/// addresses free; and others for most processes, as one that takes over entries has new ones besides.
fn usual_place() -> usize {
    const FIRST: usize = 1 << 44;
    const OF_A_PROCESS: usize = 1 << 36;
    const PROCESSES: usize = 512;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let place = TAKEN.fetch_add(ENTRY_LEN, Ordering::Relaxed);
    FIRST + (std::process::id() as usize % PROCESSES) * OF_A_PROCESS + place % OF_A_PROCESS
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference to it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), ENTRY_LEN) };
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
    Refused(Errno),
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
pub(super) struct Ring {
    ring: IoUring<Entry128>,
    device: Arc<Device>,
    waker: Arc<Waker>,
    queue: u16,
    /// What the kernel has, by the number in its submission.
    with_kernel: Vec<Option<Entry>>,
    free: Vec<usize>,
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
        let (waker, with_kernel) = (Arc::new(Waker(waker)), Vec::new());
        Ok(Ring { ring, device, waker, queue, with_kernel, free: Vec::new() })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// From here on the ring is this thread's.
    pub(super) fn enable(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        self.watch_waker()
    }

    fn watch_waker(&mut self) -> io::Result<()> {
        const READABLE: u32 = 1;
        let watch = opcode::PollAdd::new(Fd(self.waker.0.as_raw_fd()), READABLE).multi(true).build();
        self.push(Entry128::from(watch.user_data(WAKE)))
    }

    /// How many entries the kernel has, or will have with the next [`Ring::wait`].
    pub(super) fn outstanding(&self) -> usize {
        self.with_kernel.len() - self.free.len()
    }

    /// Gives the kernel a new entry.
    pub(super) fn register(&mut self, mut entry: Entry) -> io::Result<()> {
        let vectors = entry.vectors();
        let mut submission = self.command(REGISTER, 0, Some(vectors));
        const VECTORS: u32 = 2;
        // SAFETY: the submission is the kernel's structure of 128 bytes, all of them initialized; `len` is in it.
        unsafe {
            let len = std::ptr::from_mut(&mut submission).cast::<u8>().add(SQE_LEN_AT).cast::<u32>();
            len.write_unaligned(VECTORS);
        }
        self.submit(submission, entry)
    }

    /// Gives the kernel an entry that it cannot take, so that it goes on with the device. Only before all queues have
    /// entries: once it uses them, there is no way back.
    pub(super) fn decline(&mut self) -> io::Result<()> {
        let submission = self.command(REGISTER, 0, None);
        self.submit(submission, Entry::new()?)?;
        self.flush()?;
        while self.next()?.is_some() {}
        Ok(())
    }

    /// Gives the kernel the answer that is in the entry, and the entry for another request.
    pub(super) fn commit(&mut self, entry: Entry, commit_id: u64) -> io::Result<()> {
        let submission = self.command(COMMIT_AND_FETCH, commit_id, None);
        self.submit(submission, entry)
    }

    /// `struct fuse_uring_cmd_req` in a submission.
    fn command(&self, command: u32, commit_id: u64, address: Option<u64>) -> Entry128 {
        let mut arguments = [0; 80];
        arguments[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        arguments[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let device = Fd(self.device.as_fd().as_raw_fd());
        opcode::UringCmd80::new(device, command).cmd(arguments).addr(address).build()
    }

    fn submit(&mut self, submission: Entry128, entry: Entry) -> io::Result<()> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.with_kernel.push(None);
            self.with_kernel.len() - 1
        });
        self.with_kernel[slot] = Some(entry);
        self.push(submission.user_data(slot as u64))
    }

    fn push(&mut self, submission: Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what the submission points to is an entry's memory, which stays in `with_kernel` until the completion, or
            // for ever; and descriptors that live as long as the ring.
            if unsafe { self.ring.submission().push(&submission) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Hands over what was submitted, without waiting.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.ring.submit().map(|_| ())
    }

    /// Hands over what was submitted, and waits until there is something to tell, at most for `limit`.
    pub(super) fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let waited = match limit {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        match waited {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // BUSY, AGAIN: completions are to be taken out first.
                Some(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// What there is to tell now.
    pub(super) fn ready(&mut self) -> usize {
        self.ring.completion().len()
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Event>> {
        loop {
            let Some(completion) = self.ring.completion().next() else { return Ok(None) };
            if completion.user_data() == WAKE {
                if !cqueue::more(completion.flags()) {
                    self.watch_waker()?;
                }
                return Ok(Some(Event::Woken));
            }
            let slot = completion.user_data() as usize;
            let Some(entry) = self.with_kernel.get_mut(slot).and_then(Option::take) else {
                tracing::error!(slot, "a completion of nothing");
                continue;
            };
            self.free.push(slot);
            return Ok(Some(match completion.result() {
                0.. => Event::Request(entry),
                error => Event::Refused(Errno::from_raw_os_error(-error)),
            }));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // What the kernel has not given back it may still write to.
        self.with_kernel.drain(..).flatten().for_each(std::mem::forget);
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outstanding = self.outstanding();
        f.debug_struct("Ring")
            .field("queue", &self.queue)
            .field("outstanding", &outstanding)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_the_place_of_the_request() {
        let mut entry = Entry::new().unwrap();
        assert_eq!((entry.unique(), entry.payload().len()), (0, 0));
        entry.answer(&[7; 16], &[b"one", b"two"]);
        assert_eq!(entry.header(17), [&[7u8; 16][..], &[0]].concat());
        assert_eq!(entry.payload(), b"onetwo");
        entry.answer(&[8; 16], &[&vec![1; PAYLOAD_LEN]]);
        assert_eq!(entry.payload().len(), PAYLOAD_LEN);
    }

    #[test]
    fn a_length_that_is_too_large_is_cut() {
        let mut entry = Entry::new().unwrap();
        entry.memory_mut()[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].fill(0xff);
        assert_eq!(entry.payload().len(), PAYLOAD_LEN);
    }

    #[test]
    fn the_addresses_are_where_the_kernel_reads_them() {
        let mut entry = Entry::new().unwrap();
        let (base, vectors) = (entry.memory.as_ptr() as u64, entry.vectors());
        assert_eq!(vectors, base + VECTORS_AT as u64);
        let words = [0, 8, 16, 24].map(|at| entry.u64_at(VECTORS_AT + at));
        assert_eq!(words, [base, HEADER_LEN as u64, base + HEADER_SPACE as u64, PAYLOAD_LEN as u64]);
    }

    #[test]
    fn an_entry_is_at_the_same_place_in_another_process() {
        let mut entry = Entry::new().unwrap();
        entry.answer(&[7; 16], &[b"a request"]);
        let handed = entry.hand_over(Standing::Kept);
        let taken = Entry::handed(&handed).unwrap_err();
        assert_eq!(Errno::from_io_error(&taken), Some(Errno::EXIST), "it is in use");
        drop(entry);
        let entry = Entry::handed(&handed).unwrap();
        assert_eq!(entry.address(), handed.address);
        assert_eq!((entry.header(16), entry.payload()), (&[7; 16][..], &b"a request"[..]));
        for bad in [
            HandedEntry { address: 0, ..handed.clone() },
            HandedEntry { payload: vec![0; PAYLOAD_LEN + 1].into(), ..handed.clone() },
            HandedEntry { header: vec![0; VECTORS_AT + 1].into(), ..handed },
        ] {
            assert_eq!(Entry::handed(&bad).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
