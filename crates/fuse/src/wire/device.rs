//! Requests and answers over /dev/fuse: several threads read the same descriptor, each handles what it reads.

use super::abi::{self, Record, init};
use super::request::{SetXattrForm, parse_header, parse_write};
use super::{Handler, MalformedRequest, Op, Reply, Request, Sink, Unique};
use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, splice};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Most bytes in one write request.
pub const MAX_WRITE: u32 = 1 << 20;
/// Read-ahead and other requests that nobody waits for, in flight at a time.
const MAX_BACKGROUND: u16 = 64;
const CONGESTION_THRESHOLD: u16 = 48;
const BUFFER_LEN: usize = MAX_WRITE as usize + 4096;
/// Data up to this is copied out of the request's buffer; above, the buffer itself goes with it.
const COPY_LIMIT: usize = 32 << 10;
/// Spare buffers kept, each [`BUFFER_LEN`].
const SPARE_BUFFERS: usize = 16;

/// What was agreed on with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Minor version of the kernel's protocol.
    pub kernel_minor: u32,
    /// `FUSE_INIT` flags in force.
    flags: u64,
    /// Flags the kernel offered.
    offered: u64,
}

impl Agreement {
    pub fn has_inc_epoch(&self) -> bool {
        self.kernel_minor >= abi::notify::INC_EPOCH_SINCE
    }

    pub fn has_expire_only(&self) -> bool {
        self.offered & init::HAS_EXPIRE_ONLY != 0
    }

    pub fn has_direct_mmap(&self) -> bool {
        self.flags & init::DIRECT_IO_ALLOW_MMAP != 0
    }
}

/// The device of one mount.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    pub fn new(fd: OwnedFd) -> Arc<Device> {
        Arc::new(Device { fd })
    }

    /// Answers the kernel's INIT, the first request of every mount.
    ///
    /// # Errors
    /// The device's own; `Unsupported` for a kernel older than 5.4.
    pub fn negotiate(self: &Arc<Device>) -> io::Result<Agreement> {
        let mut buffer = vec![0; BUFFER_LEN];
        let len = self.receive(&mut buffer)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        let invalid = |error: MalformedRequest| io::Error::new(io::ErrorKind::InvalidData, error);
        let (operation, header, fields) = parse_header(&buffer[..len]).map_err(invalid)?;
        let op = Op::parse(operation, fields, SetXattrForm::Short).map_err(invalid)?;
        let Op::Init { major, minor, max_readahead, flags: offered } = op else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first request was not INIT"));
        };
        if major != abi::VERSION || minor < abi::MINOR_MIN {
            self.send(header.unique, -Errno::PROTO.raw_os_error(), &[])?;
            let text = format!("the kernel speaks FUSE {major}.{minor}; Linux 5.4 or later is needed");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let (minor, offered) = Pretence::from_environment().apply(minor, offered);
        let flags = wanted_flags() & offered;
        let reply = Record::<64>::new()
            .u32(abi::VERSION)
            .u32(abi::MINOR.min(minor))
            .u32(max_readahead)
            .u32(flags as u32)
            .u16(MAX_BACKGROUND)
            .u16(CONGESTION_THRESHOLD)
            .u32(MAX_WRITE)
            .u32(1) // nanoseconds
            .u16((MAX_WRITE / 4096) as u16)
            .u16(0)
            .u32((flags >> 32) as u32)
            .skip(28)
            .done();
        self.send(header.unique, 0, &[&reply])?;
        Ok(Agreement { kernel_minor: minor, flags, offered })
    }

    /// Starts `threads` that read requests until the mount is gone.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn serve<H: Handler>(
        self: &Arc<Device>,
        agreement: Agreement,
        threads: usize,
        handler: Arc<H>,
        runtime: tokio::runtime::Handle,
    ) -> io::Result<Serving> {
        let pool = Arc::new(BufferPool::default());
        let form = match agreement.flags & init::SETXATTR_EXT != 0 {
            true => SetXattrForm::Extended,
            false => SetXattrForm::Short,
        };
        let alive = Arc::new(AtomicUsize::new(threads));
        let (ended, when_ended) = tokio::sync::watch::channel(false);
        let ended = Arc::new(ended);
        let threads = (0..threads)
            .map(|number| {
                let worker =
                    Worker { device: self.clone(), handler: handler.clone(), pool: pool.clone(), form };
                let (runtime, alive, ended) = (runtime.clone(), alive.clone(), ended.clone());
                thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
                    let _context = runtime.enter();
                    worker.run();
                    if alive.fetch_sub(1, Ordering::AcqRel) == 1 {
                        ended.send_replace(true);
                    }
                })
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Serving { threads, ended: when_ended })
    }

    /// `None`: unmounted.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                // ENOENT: the request was taken back before it could be read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Set to `6.1`, the mount behaves as on Debian 12's own kernel, and so on: for tests of what is done without the later
/// features.
const PRETENCE: &str = "SODA_FUSE_PRETEND";

/// Which kernel to take this one for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pretence {
    ItIsWhatItIs,
    Linux6_1,
    /// The last without mappings of direct files.
    Linux6_5,
    /// The last without epochs of names.
    Linux6_15,
}

impl Pretence {
    fn from_environment() -> Pretence {
        match std::env::var(PRETENCE).as_deref() {
            Ok("6.1") => Pretence::Linux6_1,
            Ok("6.5") => Pretence::Linux6_5,
            Ok("6.15") => Pretence::Linux6_15,
            _ => Pretence::ItIsWhatItIs,
        }
    }

    /// Minor version of the protocol and flags that such a kernel offers.
    fn apply(self, minor: u32, offered: u64) -> (u32, u64) {
        let (last_minor, later) = match self {
            Pretence::ItIsWhatItIs => return (minor, offered),
            Pretence::Linux6_1 => (37, init::HAS_EXPIRE_ONLY | init::DIRECT_IO_ALLOW_MMAP),
            Pretence::Linux6_5 => (38, init::DIRECT_IO_ALLOW_MMAP),
            Pretence::Linux6_15 => (43, 0),
        };
        (minor.min(last_minor), offered & !later)
    }
}

/// Not ATOMIC_O_TRUNC: with it the file would be cut by the open, before the kernel finds that it is being executed and
/// refuses with ETXTBSY. The truncation comes as a request of its own.
fn wanted_flags() -> u64 {
    init::ASYNC_READ
        | init::POSIX_LOCKS
        | init::FLOCK_LOCKS
        | init::BIG_WRITES
        | init::DONT_MASK
        | init::AUTO_INVAL_DATA
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::POSIX_ACL
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP
}

impl Sink for Device {
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = abi::OUT_HEADER_LEN + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = header(len, error, unique);
        const INLINE: usize = 8;
        if parts.len() < INLINE {
            let mut slices = [IoSlice::new(&[]); INLINE];
            slices[0] = IoSlice::new(&header);
            for (slice, part) in slices[1..].iter_mut().zip(parts) {
                *slice = IoSlice::new(part);
            }
            rustix::io::writev(&self.fd, &slices[..=parts.len()])?;
        } else {
            let slices: Vec<_> =
                std::iter::once(header.as_slice()).chain(parts.iter().copied()).map(IoSlice::new).collect();
            rustix::io::writev(&self.fd, &slices)?;
        }
        Ok(())
    }

    fn send_file(&self, code: i32, message: &File, len: usize) -> io::Result<()> {
        message.write_all_at(&header(len, code, 0), 0)?;
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let mut from = 0;
        let filled = splice(message, Some(&mut from), &writer, None, len, SpliceFlags::empty())?;
        if filled != len {
            return Err(io::ErrorKind::WriteZero.into());
        }
        splice(&reader, None, &self.fd, None, len, SpliceFlags::empty())?;
        Ok(())
    }
}

fn header(len: usize, error: i32, unique: Unique) -> [u8; abi::OUT_HEADER_LEN] {
    Record::new().u32(len as u32).raw(&error.to_ne_bytes()).u64(unique).done()
}

/// The threads of a mount.
#[derive(Debug)]
pub struct Serving {
    threads: Vec<JoinHandle<()>>,
    ended: tokio::sync::watch::Receiver<bool>,
}

impl Serving {
    /// Resolves when the mount is gone and all threads have ended.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            // An error means that the sender is gone, which is the end as well.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a FUSE thread panicked");
            }
        }
    }
}

struct Worker<H> {
    device: Arc<Device>,
    handler: Arc<H>,
    pool: Arc<BufferPool>,
    form: SetXattrForm,
}

impl<H: Handler> Worker<H> {
    fn run(self) {
        let mut buffer = self.pool.take();
        loop {
            match self.device.receive(&mut buffer) {
                Ok(Some(len)) => buffer = self.dispatch(buffer, len),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot read from the FUSE device");
                    return;
                }
            }
        }
    }

    /// Gives back a buffer for the next request.
    fn dispatch(&self, buffer: Vec<u8>, len: usize) -> Vec<u8> {
        let (operation, header, fields) = match parse_header(&buffer[..len]) {
            Ok(parsed) => parsed,
            Err(error) => {
                // There is no number to answer to.
                tracing::error!(%error, len, "dropped a message of the kernel");
                return buffer;
            }
        };
        let reply = Reply::new(header.unique, self.device.clone());
        if operation == abi::opcode::WRITE {
            return match parse_write(fields) {
                Ok((op, start)) => {
                    let (payload, buffer) = self.pool.detach(buffer, start, len);
                    self.handler.handle(Request { header, op, payload }, reply);
                    buffer
                }
                Err(error) => {
                    refuse(operation, error, reply);
                    buffer
                }
            };
        }
        match Op::parse(operation, fields, self.form) {
            Ok(op) => self.handler.handle(Request { header, op, payload: Bytes::new() }, reply),
            Err(error) => refuse(operation, error, reply),
        }
        buffer
    }
}

fn refuse(operation: u32, error: MalformedRequest, reply: Reply) {
    match error {
        // The kernel asks for what older daemons do not know and remembers the answer.
        MalformedRequest::Unknown(_) => {
            tracing::debug!(operation, "operation not implemented");
            reply.raw_error(Errno::NOSYS.raw_os_error());
        }
        MalformedRequest::Short => {
            tracing::error!(operation, "malformed request of the kernel");
            reply.raw_error(Errno::IO.raw_os_error());
        }
    }
}

/// Buffers for requests. Zeroing a megabyte per write would cost as much as the write.
#[derive(Debug, Default)]
struct BufferPool {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl BufferPool {
    fn take(&self) -> Vec<u8> {
        let spare = self.spare.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        spare.unwrap_or_else(|| vec![0; BUFFER_LEN])
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if spare.len() < SPARE_BUFFERS {
            spare.push(buffer);
        }
    }

    /// Bytes `start..end` of the buffer as something that can be kept, and a buffer for the next request.
    fn detach(self: &Arc<Self>, buffer: Vec<u8>, start: usize, end: usize) -> (Bytes, Vec<u8>) {
        if end - start <= COPY_LIMIT {
            return (Bytes::copy_from_slice(&buffer[start..end]), buffer);
        }
        let lent = Lent { buffer, start, end, pool: self.clone() };
        (Bytes::from_owner(lent), self.take())
    }
}

/// A buffer that returns to its pool when the last reference to its data is gone.
struct Lent {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    pool: Arc<BufferPool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_has_none_of_the_later_features() {
        let (kernel_minor, offered) = Pretence::Linux6_1.apply(abi::MINOR, u64::MAX);
        let agreement = Agreement { kernel_minor, flags: wanted_flags() & offered, offered };
        assert!(!agreement.has_inc_epoch() && !agreement.has_expire_only() && !agreement.has_direct_mmap());
        assert_eq!(Pretence::Linux6_5.apply(abi::MINOR, init::HAS_EXPIRE_ONLY), (38, init::HAS_EXPIRE_ONLY));
        assert_eq!(Pretence::Linux6_15.apply(45, 7), (43, 7));
        assert_eq!(Pretence::ItIsWhatItIs.apply(45, 7), (45, 7));
    }

    #[test]
    fn a_lent_buffer_comes_back() {
        let pool = Arc::new(BufferPool::default());
        let mut buffer = pool.take();
        buffer[100] = 7;
        let (data, next) = pool.detach(buffer, 100, 100 + COPY_LIMIT + 1);
        assert_eq!(data[0], 7);
        assert!(pool.spare.lock().unwrap().is_empty());
        drop(data);
        pool.give(next);
        assert_eq!(pool.spare.lock().unwrap().len(), 2);
    }
}
