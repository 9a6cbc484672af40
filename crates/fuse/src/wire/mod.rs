//! The kernel's FUSE protocol (`include/uapi/linux/fuse.h`, version 7.31 and later) and the device it is spoken on.
//!
//! Why not a library: a process that waits for an answer can only be killed if the daemon understands `INTERRUPT`,
//! and flock(2) and fcntl(2) locks are only told apart by a flag of the request. The crates that were looked at
//! (fuser 0.18 among them) hide both.
//!
//! [`Sink`] and [`Handler`] are the seam: the file system sees only these two. Behind them are two transports, [`device`] and
//! `uring`; [`connection`] chooses.

pub(crate) mod abi;
mod agreement;
mod audited;
mod buffers;
pub mod connection;
mod descriptors;
pub mod device;
mod entry_memory;
mod escort;
mod obstacle;
mod pause;
mod reply;
mod request;
mod serve;
mod spare;
mod time_out;
mod uring;

pub use abi::NodeId;
pub use agreement::Agreement;
pub use audited::close_on_exec;
pub use descriptors::DESCRIPTORS_MAX;
#[cfg(test)]
pub(crate) use reply::some_attr;
pub(crate) use reply::{Asked, kind_of_mode};
pub use reply::{AttrOut, DirBuffer, EntryOut, Fit, OpenOut, Reply, Statfs, Taken};
pub use request::{
    Header, Interest, LockRequest, LockSpan, MalformedRequest, Op, OpenRequest, Request, SetAttrRequest,
};

pub(crate) use entry_memory::QueueMemory;
pub use escort::Cores;
pub(crate) use escort::Hurry;
pub use obstacle::{Obstacle, URING_SWITCH, auto_obstacles};
pub use serve::{Readers, Serving};
pub(crate) use spare::Spare;
pub use time_out::RequestTimeout;
pub use uring::{HandedQueues, NotEmptied, QueueFault};

use soda_client::Due;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of a request, chosen by the kernel.
pub type Unique = u64;

/// Where replies and notifications go. Called from any thread.
pub trait Sink: Send + Sync + fmt::Debug {
    /// Sends header and parts as one message. `error` is 0 or a negative errno for a reply, a notification's code with
    /// `unique` 0.
    ///
    /// # Errors
    /// `ENOENT`: the request is gone (its process was killed), or the object of a notification is not known to
    /// the kernel. `ENODEV`: unmounted.
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()>;

    /// As [`Sink::send`], of a reply that the kernel has to have by `due`: where it has it only later than this returns, that is
    /// reported ([`Handler::arrived`]).
    ///
    /// # Errors
    /// As [`Sink::send`].
    fn send_by(&self, unique: Unique, error: i32, parts: &[&[u8]], _due: Option<Due>) -> io::Result<()> {
        self.send(unique, error, parts)
    }

    /// An answer is about to name a regular file, which the kernel then knows.
    fn told_of_file(&self, _node: u64) {}

    /// Sends the notification `code` whose `len` bytes are in a memory file, behind room for the header. Where it can be, it
    /// is not copied before the kernel uses it.
    ///
    /// # Errors
    /// As [`Sink::send`].
    fn send_file(&self, code: i32, message: &File, len: usize) -> io::Result<()> {
        let mut parts = vec![0; len - abi::OUT_HEADER_LEN];
        message.read_exact_at(&mut parts, abi::OUT_HEADER_LEN as u64)?;
        self.send(0, code, &[&parts])
    }
}

/// What requests go to. `handle` must not block: all requests of a thread wait behind it.
pub trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request<'_>, reply: Reply);

    /// Replies are with the kernel now, some time after they were sent; the first of them had to be by `due`.
    fn arrived(&self, _due: Due) {}

    /// Another process is to look up this name in the root directory, which is answered without asking the handler. To be waited
    /// for, for a second at most.
    fn look_up(&self, _name: &str) {}

    /// Some who asked can be answered no more: the connection is to be ended, or they wait for ever.
    fn abandon(&self) {}
}
