//! The device of a mount, /dev/fuse: requests are read from it, answers and notifications written to it.

use super::abi::{self, Record, init};
use super::agreement::{Agreement, Pretence, wanted_flags};
use super::obstacle::KernelSide;
use super::request::{SetXattrForm, parse_header};
use super::{MalformedRequest, Op, Sink, Unique, audited, time_out};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, splice};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

const PATH: &str = "/dev/fuse";

/// Most bytes in one write request.
pub const MAX_WRITE: u32 = 1 << 20;
/// Read-ahead and other requests that nobody waits for, in flight at a time.
const MAX_BACKGROUND: u16 = 64;
const CONGESTION_THRESHOLD: u16 = 48;

/// What one writev(2) takes (`UIO_MAXIOV` in `linux/uio.h`). rustix has no public constant, and drops in silence what is more.
const IOV_MAX: usize = 1024;

/// Until the memory of a control group may be there again.
const OUT_OF_MEMORY: Duration = Duration::from_millis(10);

/// What the kernel is told instead of [`MAX_WRITE`]. It must not be more: over io_uring room for so many pages is demanded of
/// each entry (`fuse_uring_create_ring_ent`).
fn max_pages(page_size: u32) -> u16 {
    (MAX_WRITE / page_size) as u16
}

/// What comes after a read that brought nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unread {
    Again,
    Later,
    Unmounted,
    Failed,
}

impl Unread {
    fn of(error: Errno) -> Unread {
        match error {
            // NOENT: the request was taken back before it could be read.
            Errno::NOENT | Errno::INTR | Errno::AGAIN => Unread::Again,
            // Linux has answered that request with EIO. A thread that ended for it would be missing for good.
            Errno::NOMEM => Unread::Later,
            Errno::NODEV | Errno::CONNABORTED => Unread::Unmounted,
            _ => Unread::Failed,
        }
    }
}

/// What a read has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    Message(usize),
    Nothing,
    Unmounted,
}

/// A descriptor of the device, of one mount.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

/// The kernel's INIT, the first request of every mount, to be answered with [`Device::accept`] or [`Device::refuse`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Hello {
    unique: Unique,
    max_readahead: u32,
    kernel_minor: u32,
    offered: u64,
}

impl Hello {
    pub(super) fn kernel_side(&self) -> KernelSide {
        KernelSide::saying(self.offered & init::OVER_IO_URING != 0)
    }
}

impl Device {
    pub fn new(fd: OwnedFd) -> Arc<Device> {
        Arc::new(Device { fd })
    }

    /// One more descriptor of the same mount. What is read from it is answered there.
    ///
    /// # Errors
    /// /dev/fuse cannot be opened here, or Linux gives no other.
    pub(super) fn another(&self) -> io::Result<Arc<Device>> {
        let fresh = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        audited::clone_device(fresh.as_fd(), self.as_fd())?;
        Ok(Device::new(fresh))
    }

    /// Reads the kernel's INIT.
    ///
    /// # Errors
    /// The device's own; `Unsupported` for a kernel older than 5.4.
    pub(super) fn hello(&self) -> io::Result<Hello> {
        let mut buffer = vec![0; super::buffers::BUFFER_LEN];
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
        let (kernel_minor, offered) = Pretence::from_environment().apply(minor, offered);
        Ok(Hello { unique: header.unique, max_readahead, kernel_minor, offered })
    }

    /// Answers INIT. `optional`: flags that are wanted besides the usual ones. Of `REQUEST_TIMEOUT` it is the longest.
    ///
    /// # Errors
    /// The device's own.
    pub(super) fn accept(&self, hello: &Hello, optional: u64) -> io::Result<Agreement> {
        let flags = (wanted_flags() | optional) & hello.offered;
        let time_out = if flags & init::REQUEST_TIMEOUT != 0 { time_out::LONGEST } else { 0 };
        let reply = Record::<64>::new()
            .u32(abi::VERSION)
            .u32(abi::MINOR.min(hello.kernel_minor))
            .u32(hello.max_readahead)
            .u32(flags as u32)
            .u16(MAX_BACKGROUND)
            .u16(CONGESTION_THRESHOLD)
            .u32(MAX_WRITE)
            .u32(1) // nanoseconds
            .u16(max_pages(audited::page_size()))
            .u16(0)
            .u32((flags >> 32) as u32)
            .u32(0) // passed-through file systems
            .u16(time_out)
            .skip(22)
            .done();
        self.send(hello.unique, 0, &[&reply])?;
        Ok(Agreement { kernel_minor: hello.kernel_minor, flags, offered: hello.offered })
    }

    /// Ends the mount before it began.
    pub(super) fn refuse(&self, hello: &Hello) {
        let _ = self.send(hello.unique, -Errno::PROTO.raw_os_error(), &[]);
    }

    /// `None`: unmounted.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.try_to_receive(buffer)? {
                Received::Message(len) => return Ok(Some(len)),
                Received::Nothing => {}
                Received::Unmounted => return Ok(None),
            }
        }
    }

    /// Waits for a message only if that was not changed by [`Device::do_not_wait`].
    pub(super) fn try_to_receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let error = match rustix::io::read(&self.fd, &mut *buffer) {
            Ok(len) => return Ok(Received::Message(len)),
            Err(error) => error,
        };
        match Unread::of(error) {
            Unread::Again => Ok(Received::Nothing),
            Unread::Later => {
                tracing::warn!(%error, "cannot read from the FUSE device just now");
                std::thread::sleep(OUT_OF_MEMORY);
                Ok(Received::Nothing)
            }
            Unread::Unmounted => Ok(Received::Unmounted),
            Unread::Failed => Err(error.into()),
        }
    }

    /// From now on a read that finds no message returns. It is so for all who have this descriptor, other processes among them,
    /// and not for other descriptors of the mount.
    pub(super) fn do_not_wait(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, true)?)
    }

    /// The opposite of [`Device::do_not_wait`].
    pub(super) fn do_wait(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.fd, false)?)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Sink for Device {
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = abi::OUT_HEADER_LEN + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = abi::out_header(len, error, unique);
        const INLINE: usize = 8;
        if parts.len() < INLINE {
            let mut slices = [IoSlice::new(&[]); INLINE];
            slices[0] = IoSlice::new(&header);
            for (slice, part) in slices[1..].iter_mut().zip(parts) {
                *slice = IoSlice::new(part);
            }
            rustix::io::writev(&self.fd, &slices[..=parts.len()])?;
        } else if parts.len() < IOV_MAX {
            let slices: Vec<_> =
                std::iter::once(header.as_slice()).chain(parts.iter().copied()).map(IoSlice::new).collect();
            rustix::io::writev(&self.fd, &slices)?;
        } else {
            // An answer is one call.
            let mut whole = Vec::with_capacity(len);
            whole.extend_from_slice(&header);
            parts.iter().for_each(|part| whole.extend_from_slice(part));
            rustix::io::write(&self.fd, &whole)?;
        }
        Ok(())
    }

    fn send_file(&self, code: i32, message: &File, len: usize) -> io::Result<()> {
        message.write_all_at(&abi::out_header(len, code, 0), 0)?;
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

#[cfg(test)]
// Tests fail by panicking.
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_reader_outlives_a_lack_of_memory() {
        let after = [Errno::NOMEM, Errno::NOENT, Errno::NODEV, Errno::BADF].map(Unread::of);
        assert_eq!(after, [Unread::Later, Unread::Again, Unread::Unmounted, Unread::Failed]);
    }

    /// `flags` and `request_timeout` of what is answered to a kernel that offers all.
    fn agreed_on(optional: u64) -> (u64, u16) {
        let (mut reader, writer) = io::pipe().unwrap();
        let device = Device::new(writer.into());
        let hello = Hello { unique: 1, max_readahead: 0, kernel_minor: abi::MINOR, offered: u64::MAX };
        device.accept(&hello, optional).unwrap();
        let mut answer = [0; abi::OUT_HEADER_LEN + 64];
        reader.read_exact(&mut answer).unwrap();
        let at = |offset: usize| &answer[abi::OUT_HEADER_LEN + offset..];
        let word = |offset| u64::from(u32::from_ne_bytes(*at(offset).first_chunk().unwrap()));
        (word(12) | word(32) << 32, u16::from_ne_bytes(*at(40).first_chunk().unwrap()))
    }

    #[test]
    fn pages_of_any_size_make_one_write() {
        let pages = [4096, 16 << 10, 64 << 10].map(max_pages);
        assert_eq!(pages, [256, 64, 16]);
        assert_eq!(u32::from(max_pages(audited::page_size())) * audited::page_size(), MAX_WRITE);
    }

    /// The places of `struct fuse_init_out`.
    #[test]
    fn the_longest_time_limit_is_asked_for_where_there_is_one_and_else_none() {
        assert_eq!(agreed_on(0), (wanted_flags(), 0));
        assert_eq!(agreed_on(init::REQUEST_TIMEOUT), (wanted_flags() | 1 << 42, 65_535));
    }

    #[test]
    fn an_answer_of_any_number_of_parts_is_whole() {
        for count in [0, 1, 7, 8, 1022, 1023, 1024, 5000] {
            let (mut reader, writer) = io::pipe().unwrap();
            let device = Device::new(writer.into());
            let parts: Vec<Vec<u8>> = (0..count).map(|at| vec![at as u8]).collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            device.send(1, 0, &slices).unwrap();
            drop(device);
            let mut seen = Vec::new();
            reader.read_to_end(&mut seen).unwrap();
            assert_eq!(seen.len(), abi::OUT_HEADER_LEN + count);
            assert_eq!(seen[abi::OUT_HEADER_LEN..], parts.concat());
        }
    }
}
