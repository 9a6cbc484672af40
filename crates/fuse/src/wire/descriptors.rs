//! The descriptors of /dev/fuse that one mount's requests are read from: one for each thread that reads, where Linux gives them
//! (`FUSE_DEV_IOC_CLONE`), else one for all.
//!
//! What was read from a descriptor and is not answered Linux keeps with that descriptor. So
//! - an answer goes to the descriptor that its request was read from. A [`Reply`](super::Reply) has that one; who knows a request
//!   by its number only asks all of them ([`Descriptors`] as a [`Sink`]);
//! - the end of a descriptor ends what was read from it (ECONNABORTED), that of the last one the mount. All of them are kept as
//!   long as anything may be answered, and pass to whoever takes the mount over;
//! - notifications go to any, and a request that nobody has read yet comes to any.

use super::device::Device;
use super::{Sink, Unique};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// Most of one mount's; further threads share the first. In a take-over all of them are in one message.
pub const DESCRIPTORS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Descriptors {
    /// The one that the mount was made with.
    first: Arc<Device>,
    clones: Vec<Arc<Device>>,
}

impl Descriptors {
    /// For so many threads. `clones`: those that there are already.
    pub(super) fn new(first: &Arc<Device>, mut clones: Vec<Arc<Device>>, threads: usize) -> Arc<Descriptors> {
        let wanted = threads.min(DESCRIPTORS_MAX);
        while 1 + clones.len() < wanted {
            match first.another() {
                Ok(clone) => clones.push(clone),
                Err(why) => {
                    tracing::info!(%why, threads, descriptors = 1 + clones.len(), "threads share a descriptor of /dev/fuse");
                    break;
                }
            }
        }
        Arc::new(Descriptors { first: first.clone(), clones })
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Device>> {
        std::iter::once(&self.first).chain(&self.clones)
    }

    /// The one that the thread with this number reads.
    pub(super) fn of_reader(&self, number: usize) -> &Arc<Device> {
        self.all().nth(number).unwrap_or(&self.first)
    }

    /// The one that the mount was made with comes first.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all().map(|device| device.as_fd())
    }
}

impl Sink for Descriptors {
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let unknown = |sent: &io::Result<()>| {
            sent.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::NOENT))
        };
        let mut sent = self.first.send(unique, error, parts);
        if unique != 0 {
            let mut clones = self.clones.iter();
            while unknown(&sent)
                && let Some(clone) = clones.next()
            {
                sent = clone.send(unique, error, parts);
            }
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Where Linux gives no other: here as it is no descriptor of /dev/fuse.
    #[test]
    fn threads_share_the_descriptor_of_the_mount_where_there_are_no_others() {
        let (mut reader, writer) = io::pipe().unwrap();
        let first = Device::new(writer.into());
        assert!(first.another().is_err());
        let descriptors = Descriptors::new(&first, Vec::new(), 3);
        assert!((0..3).all(|number| Arc::ptr_eq(descriptors.of_reader(number), &first)));
        assert_eq!(descriptors.descriptors().count(), 1);
        descriptors.send(7, 0, &[b"once"]).unwrap();
        drop((first, descriptors));
        let mut seen = Vec::new();
        reader.read_to_end(&mut seen).unwrap();
        assert!(seen.ends_with(b"once") && seen.len() == 16 + 4, "{seen:?}");
    }

    #[test]
    fn who_takes_over_fewer_or_more_than_it_has_threads_reads_what_there_is() {
        let device = || Device::new(std::fs::File::open("/dev/null").unwrap().into());
        let (first, clones) = (device(), [device(), device()]);
        let with = |threads| Descriptors::new(&first, clones.to_vec(), threads);
        let reads = |threads: usize, number: usize| with(threads).of_reader(number).clone();
        assert!(Arc::ptr_eq(&reads(2, 1), &clones[0]));
        assert_eq!(with(2).descriptors().count(), 3, "what waits for an answer may be of the last one");
        assert!(Arc::ptr_eq(&reads(5, 2), &clones[1]) && Arc::ptr_eq(&reads(5, 4), &first));
    }
}
