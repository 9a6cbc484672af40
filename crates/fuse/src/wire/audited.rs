//! All unsafe code of the program: memory that is lent to the kernel for requests over io_uring, and some calls that no crate
//! has as safe functions. Whatever is here is safe to call; `cargo xtask check` refuses unsafe code anywhere else.
//!
//! A [`Room`] is the memory of one request. It is either a value that somebody owns, or one of those in [`Loans`]: it is moved
//! there with a command and comes back with its completion. The kernel writes to its memory only in between. So whoever has a
//! `Room` has its memory alone.
//!
//! In a take-over that rests on another process, too: it says where the kernel has the memory of which request ([`Claims`]).

#![allow(unsafe_code)]

use super::abi::uring::{COMMIT_AND_FETCH, COMMIT_ID_AT, HEADER_LEN, PAYLOAD_LEN_AT, REGISTER};
use super::device::{Device, MAX_WRITE};
use super::entry_memory::{EntryMemory, HEADER_SPACE, SMALL};
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{FileType, fstat, makedev};
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::Pid;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Of a room, bytes. Nothing that the kernel asks or is answered is longer.
pub(super) const PAYLOAD_LEN: usize = MAX_WRITE as usize;
const ROOM_LEN: usize = HEADER_SPACE + PAYLOAD_LEN;
/// Where the header's page has the addresses that REGISTER reads.
pub(super) const VECTORS_AT: usize = 1024;
/// Where `struct io_uring_sqe` has the field `len`, which the crate's builder of commands lacks.
const SQE_LEN_AT: usize = 24;
/// Marks the completions of [`Loans::watch`].
const WATCHED: u64 = u64::MAX;

/// Memory for the header and payload of a request, and of its answer.
#[derive(Debug)]
pub(super) struct Room {
    memory: NonNull<u8>,
    /// What the kernel calls the request that is in it: whoever names that lends the kernel this memory. 0: there is none.
    commit_id: u64,
    /// Of the payload, bytes from its beginning: the rest of it has no pages.
    used: usize,
    /// The pages of the payload are, or were, those of a file.
    is_on_file: bool,
    of_queue: Arc<EntryMemory>,
}

// SAFETY: the memory belongs to this value alone, see above.
unsafe impl Send for Room {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Room {}

impl Room {
    /// Takes memory only as it is used.
    pub(super) fn new(of_queue: &Arc<EntryMemory>) -> io::Result<Room> {
        Room::map(usual_place(), MapFlags::empty(), 0, of_queue)
    }

    /// Errors as of [`Claims::room`].
    fn at(address: u64, commit_id: u64, of_queue: &Arc<EntryMemory>) -> io::Result<Room> {
        let place = usize::try_from(address).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        if place == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let room = Room::map(place, MapFlags::FIXED_NOREPLACE, commit_id, of_queue)?;
        match room.address() == address {
            true => Ok(room),
            // A kernel that does not know the flag (before 4.17).
            false => Err(io::ErrorKind::AddrInUse.into()),
        }
    }

    fn map(place: usize, how: MapFlags, commit_id: u64, of_queue: &Arc<EntryMemory>) -> io::Result<Room> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE | how);
        let place = std::ptr::without_provenance_mut(place);
        // SAFETY: new memory. The kernel takes the address if it is free, else another one or, with `FIXED_NOREPLACE`, none.
        let memory = unsafe { rustix::mm::mmap_anonymous(place, ROOM_LEN, protection, flags) }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        of_queue.entry_came();
        Ok(Room { memory, commit_id, used: 0, is_on_file: false, of_queue: of_queue.clone() })
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped with this length until the drop; nobody else writes to it, see above.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), ROOM_LEN) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), ROOM_LEN) }
    }

    /// So much of the payload, from its beginning, is used now: bytes.
    pub(super) fn note_payload(&mut self, len: usize) {
        if len > self.used {
            self.of_queue.changed(self.used, len);
            self.used = len;
        }
    }

    /// Puts an answer in the place of the payload, while so many requests of the queue are under way. The parts must fit
    /// ([`PAYLOAD_LEN`]).
    pub(super) fn put_payload(&mut self, parts: &[&[u8]], under_way: usize) {
        let len = parts.iter().map(|part| part.len()).sum();
        if self.of_queue.is_passing(len, under_way) && self.put_on_file(parts).is_ok() {
            return;
        }
        if self.is_on_file && self.map_payload(None).is_ok() {
            self.is_on_file = false;
        }
        self.need_only(len);
        self.note_payload(len);
        let mut rest = &mut self.bytes_mut()[HEADER_SPACE..];
        for part in parts {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
    }

    fn put_on_file(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let of_queue = self.of_queue.clone();
        let file = of_queue.write(self.payload_address(), parts)?;
        let mapped = self.map_payload(Some(file));
        match mapped {
            Ok(()) => self.is_on_file = true,
            Err(_) => of_queue.take_away(self.payload_address()),
        }
        mapped
    }

    /// From here on the payload is what the file has at its address, or zero. What is written to it is not written to the file.
    fn map_payload(&mut self, file: Option<&File>) -> io::Result<()> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED);
        let offset = self.payload_address();
        if !offset.is_multiple_of(page_size().into()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let place = self.memory.as_ptr().wrapping_add(HEADER_SPACE).cast();
        // SAFETY: takes the place of memory that is this value's, to which no reference lives meanwhile. Nobody makes the file
        // shorter or writes where it is mapped; a hole in it reads as zero.
        let mapped = unsafe {
            match file {
                Some(file) => rustix::mm::mmap(place, PAYLOAD_LEN, protection, flags, file, offset),
                None => rustix::mm::mmap_anonymous(place, PAYLOAD_LEN, protection, flags),
            }
        };
        mapped?;
        self.of_queue.changed(self.used, 0);
        self.used = 0;
        Ok(())
    }

    fn payload_address(&self) -> u64 {
        self.address() + HEADER_SPACE as u64
    }

    /// Of the payload only so much is needed any more: bytes. Gives back the rest, which is zero from then on, if that is much.
    fn need_only(&mut self, len: usize) {
        if self.used.saturating_sub(len) <= SMALL || !self.of_queue.is_too_much() {
            return;
        }
        let page = page_size() as usize;
        let [from, to] = [len, self.used].map(|len| (HEADER_SPACE + len).next_multiple_of(page));
        let unused = self.memory.as_ptr().wrapping_add(from).cast();
        // SAFETY: whole pages of the memory, which is this value's, and zero is as good there; no reference to it lives
        // meanwhile.
        if unsafe { rustix::mm::madvise(unused, to - from, Advice::LinuxDontNeed) }.is_ok() {
            self.of_queue.changed(self.used, len);
            self.used = len;
        }
    }

    /// Writes the addresses of header and payload where REGISTER reads them, and returns where that is.
    fn write_vectors(&mut self) -> u64 {
        let base = self.address();
        let vectors = [base, HEADER_LEN as u64, base + HEADER_SPACE as u64, PAYLOAD_LEN as u64];
        for (place, value) in self.bytes_mut()[VECTORS_AT..].chunks_exact_mut(8).zip(vectors) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
        base + VECTORS_AT as u64
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference to it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), ROOM_LEN) };
        if self.is_on_file {
            self.of_queue.take_away(self.payload_address());
        }
        self.of_queue.changed(self.used, 0);
        self.of_queue.entry_went();
    }
}

/// The rooms of another process. The kernel goes on to use the same addresses, whoever has the memory there.
///
/// Which room is the one of a request that process has to know: Linux does not tell. If it were wrong, the kernel would write
/// the next request to a room that is somebody's. It is the process that has served the mount until now, and so could do all to
/// it that this one can. What cannot be true of it is refused: two rooms in one place, and two of one request.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// What the kernel calls the requests whose rooms are taken.
    taken: HashSet<u64>,
}

impl Claims {
    /// # Errors
    /// Something else is there. `InvalidData`: nothing can be, or the request has a room already.
    pub(super) fn room(
        &mut self,
        address: u64,
        commit_id: u64,
        of_queue: &Arc<EntryMemory>,
    ) -> io::Result<Room> {
        if self.taken.contains(&commit_id) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "two entries have one request"));
        }
        let room = Room::at(address, commit_id, of_queue)?;
        self.taken.insert(commit_id);
        Ok(room)
    }
}

/// Where processes have their rooms. Far from where Linux puts what has no place of its own, so that the next process finds the
/// addresses free; and others for most processes, as one that takes over rooms has new ones besides.
fn usual_place() -> usize {
    const FIRST: usize = 1 << 44;
    const OF_A_PROCESS: usize = 1 << 36;
    const PROCESSES: usize = 512;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let place = TAKEN.fetch_add(ROOM_LEN, Ordering::Relaxed);
    FIRST + (std::process::id() as usize % PROCESSES) * OF_A_PROCESS + place % OF_A_PROCESS
}

/// The number at a place of a header; 0 beyond its end.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// As [`u64_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// What comes back of a ring.
#[derive(Debug)]
pub(super) enum Completion {
    /// With a request in it.
    Filled(Room),
    /// The kernel did not take it, or has given it up.
    Refused(Errno, Lent),
    /// What [`Loans::watch`] waits for. `is_last`: it does not wait any more.
    Watched { is_last: bool },
}

/// What a room was lent for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lent {
    /// For a request.
    Empty,
    /// With the answer to one.
    WithAnswer,
}

/// The ring of one queue of a mount, with the rooms that the kernel has.
pub(super) struct Loans {
    ring: IoUring<Entry128>,
    device: Arc<Device>,
    queue: u16,
    /// By the number in their commands.
    lent: Vec<Option<Room>>,
    free: Vec<usize>,
    /// Commands that the ring has no place for yet. What the kernel does not take now it gets next time: a command that was
    /// given up would leave its request without an answer, or its room among those that the kernel has.
    backlog: VecDeque<Entry128>,
    /// Answers on files that are not needed once the commands were handed over: Linux (6.18) copies an answer before the call
    /// that submits it returns.
    passing: Vec<(Arc<EntryMemory>, u64)>,
}

impl Loans {
    pub(super) fn new(ring: IoUring<Entry128>, device: Arc<Device>, queue: u16) -> Loans {
        let (lent, free, backlog, passing) = (Vec::new(), Vec::new(), VecDeque::new(), Vec::new());
        Loans { ring, device, queue, lent, free, backlog, passing }
    }

    /// For all that takes no completion. What submits comes after [`Loans::submit_all_but_a_ring`].
    pub(super) fn ring(&self) -> &IoUring<Entry128> {
        &self.ring
    }

    /// How many rooms the kernel has, or will have when what there is was submitted.
    pub(super) fn outstanding(&self) -> usize {
        self.lent.len() - self.free.len()
    }

    /// Lends the kernel a new room, with the next submission.
    pub(super) fn register(&mut self, mut room: Room) {
        let vectors = room.write_vectors();
        let mut command = self.command(REGISTER, 0, Some(vectors));
        const VECTORS: u32 = 2;
        // SAFETY: the command is the kernel's structure of 128 bytes, all of them initialized; `len` is in it.
        unsafe {
            let len = std::ptr::from_mut(&mut command).cast::<u8>().add(SQE_LEN_AT).cast::<u32>();
            len.write_unaligned(VECTORS);
        }
        self.lend(command, room);
    }

    /// Lends the kernel a room of which it is not told where that is, so that it refuses it.
    pub(super) fn register_nothing(&mut self, room: Room) {
        let command = self.command(REGISTER, 0, None);
        self.lend(command, room);
    }

    /// Hands the kernel the answer that is in the room, and lends it the room for another request, with the next submission.
    pub(super) fn commit(&mut self, room: Room) {
        if room.is_on_file {
            self.passing.push((room.of_queue.clone(), room.payload_address()));
        }
        let command = self.command(COMMIT_AND_FETCH, room.commit_id, None);
        self.lend(command, room);
    }

    /// There is a completion each time that this becomes readable.
    pub(super) fn watch(&mut self, descriptor: BorrowedFd<'_>) {
        const READABLE: u32 = 1;
        let watch = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), READABLE).multi(true).build();
        self.backlog.push_back(Entry128::from(watch.user_data(WATCHED)));
    }

    /// `struct fuse_uring_cmd_req` in a command.
    fn command(&self, command: u32, commit_id: u64, address: Option<u64>) -> Entry128 {
        let mut arguments = [0; 80];
        arguments[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        arguments[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let device = Fd(self.device.as_fd().as_raw_fd());
        opcode::UringCmd80::new(device, command).cmd(arguments).addr(address).build()
    }

    fn lend(&mut self, command: Entry128, room: Room) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.lent.push(None);
            self.lent.len() - 1
        });
        self.lent[slot] = Some(room);
        self.backlog.push_back(command.user_data(slot as u64));
    }

    /// Hands over what there is but for the last commands, for which the ring has places: they are in these, so that the caller
    /// can hand them over and wait in one system call.
    ///
    /// # Errors
    /// The kernel's, "later" too: what it has not taken stays.
    pub(super) fn submit_all_but_a_ring(&mut self) -> io::Result<()> {
        loop {
            while let Some(command) = self.backlog.front() {
                // SAFETY: what the kernel is told to write to, by this command or by the one that registered the room, is the
                // memory of a room, which stays in `lent` until the completion, or for ever. A descriptor is looked up when it is
                // submitted.
                if unsafe { self.ring.submission().push(command) }.is_err() {
                    break;
                }
                self.backlog.pop_front();
            }
            if self.backlog.is_empty() {
                return Ok(());
            }
            if self.ring.submit()? == 0 {
                return Err(Errno::AGAIN.into());
            }
        }
    }

    /// Whether [`Loans::let_pass`] is to be called when all is submitted.
    pub(super) fn has_passing(&self) -> bool {
        !self.passing.is_empty()
    }

    /// Takes away the memory of answers that the kernel has.
    pub(super) fn let_pass(&mut self) {
        if self.has_passing() && !self.has_unsubmitted() {
            self.passing.drain(..).for_each(|(memory, place)| memory.take_away(place));
        }
    }

    /// Whether there are commands that the kernel has not taken.
    pub(super) fn has_unsubmitted(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    /// How many completions there are now.
    pub(super) fn ready(&mut self) -> usize {
        self.ring.completion().len()
    }

    pub(super) fn next(&mut self) -> Option<Completion> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() == WATCHED {
                return Some(Completion::Watched { is_last: !cqueue::more(completion.flags()) });
            }
            let slot = completion.user_data() as usize;
            let Some(mut room) = self.lent.get_mut(slot).and_then(Option::take) else {
                tracing::error!(slot, "a completion of nothing");
                continue;
            };
            self.free.push(slot);
            return Some(match completion.result() {
                0.. => {
                    room.commit_id = u64_at(room.bytes(), COMMIT_ID_AT);
                    let payload = u32_at(room.bytes(), PAYLOAD_LEN_AT) as usize;
                    room.note_payload(payload.min(PAYLOAD_LEN));
                    if room.is_on_file && payload > 0 {
                        // Linux had the file's pages made before it made copies of them.
                        room.of_queue.take_away(room.payload_address());
                    }
                    Completion::Filled(room)
                }
                error => {
                    let lent = if room.commit_id == 0 { Lent::Empty } else { Lent::WithAnswer };
                    Completion::Refused(Errno::from_raw_os_error(-error), lent)
                }
            });
        }
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        self.passing.drain(..).for_each(|(memory, place)| memory.take_away(place));
        // What the kernel has not given back it may still write to.
        self.lent.drain(..).flatten().for_each(std::mem::forget);
    }
}

impl fmt::Debug for Loans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outstanding = self.outstanding();
        f.debug_struct("Loans")
            .field("queue", &self.queue)
            .field("outstanding", &outstanding)
            .finish_non_exhaustive()
    }
}

/// How a thread is scheduled (sched(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// `SCHED_OTHER`.
    Ordinary,
    /// `SCHED_IDLE`.
    Idle,
}

/// Changes how a thread is scheduled. rustix lacks sched_setscheduler(2), and the C library's is a stub in musl.
///
/// # Errors
/// `EPERM`: back from `SCHED_IDLE` without CAP_SYS_NICE, and RLIMIT_NICE is below 20. `ESRCH`: the thread has ended.
pub(super) fn set_policy(thread: Pid, policy: Policy) -> io::Result<()> {
    let policy = match policy {
        Policy::Ordinary => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    // The kernel's `struct sched_param`: one number, 0 with these policies.
    let priority: libc::c_int = 0;
    // SAFETY: the call only reads `priority`, which outlives it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread.as_raw_nonzero().get(),
            policy,
            &raw const priority,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// # Errors
/// `ESRCH`: the thread has ended. `Unsupported`: it is neither of the two.
pub(super) fn policy_of(thread: Pid) -> io::Result<Policy> {
    // SAFETY: takes and gives numbers only.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) };
    match policy {
        ..0 => Err(io::Error::last_os_error()),
        policy if policy == i64::from(libc::SCHED_OTHER) => Ok(Policy::Ordinary),
        policy if policy == i64::from(libc::SCHED_IDLE) => Ok(Policy::Idle),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Has no program that this process starts from here on inherit a descriptor but 0, 1 and 2: not even those that this process
/// has inherited itself (close_range(2), `CLOSE_RANGE_CLOEXEC`; rustix has only calls for descriptors that have an owner).
///
/// # Errors
/// `EINVAL` or `ENOSYS` before Linux 5.11.
pub fn close_on_exec() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: takes numbers only. Nothing is closed in this process: who owns a descriptor has it as before.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `fresh`, which was just opened, one more descriptor of the mount that `of` is one of (`FUSE_DEV_IOC_CLONE`).
///
/// # Errors
/// `ENOTTY`: `fresh` is not of /dev/fuse, or Linux does not know the call. `EINVAL`: `of` is not of a mount, `fresh` is of one
/// already, or Linux is older and they were opened in different user namespaces.
pub(super) fn clone_device(fresh: BorrowedFd<'_>, of: BorrowedFd<'_>) -> io::Result<()> {
    /// `Documentation/admin-guide/devices.txt`.
    const FUSE: (u32, u32) = (10, 229);
    const CLONE: Opcode = ioctl::opcode::read::<u32>(229, 0);
    let stat = fstat(fresh)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !is_device || stat.st_rdev != makedev(FUSE.0, FUSE.1) {
        return Err(Errno::NOTTY.into());
    }
    let number = u32::try_from(of.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: `fresh` is of FUSE's device, which reads one `u32` for this call, and looks that descriptor up: it is open, as it
    // is borrowed, and who owns it has it as before.
    Ok(unsafe { ioctl::ioctl(fresh, Setter::<CLONE, u32>::new(number)) }?)
}

/// Of this machine, bytes. (rustix has it with a feature that nothing else needs.)
pub(super) fn page_size() -> u32 {
    // SAFETY: takes and gives numbers only.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests;
