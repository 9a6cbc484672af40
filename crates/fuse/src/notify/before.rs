//! Dropping all that another process told the kernel, which has served the mount until now.
//!
//! Not one inode after the other as elsewhere. One that the kernel has forgotten, which it says with a request that is not read
//! yet, looks as one that it has not taken in, and each would be waited for. And a page stays locked for as long as somebody
//! likes: one of a listing until the memory is there that names are copied to, one of a file until its read is answered.
//!
//! So attributes go first, which takes no lock: without them read(2) and listings believe no page (`FUSE_AUTO_INVAL_DATA`). Then
//! pages, from as many threads as are held up at a time. What is still held up in the end, mappings may show for a while yet:
//! nobody is to wait for that, and who has the page locked may be waiting for us.

use super::{ENOENT, Finished, LISTING_PATIENCE, Notifier, TAKE_IN, inval_record, report};
use crate::wire::abi::notify;
use soda_client::NAMES_RUN_OUT;
use soda_types::Fid;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// A thread that has not got on with pages for so long is taken to wait for one.
const HELD_UP: Duration = Duration::from_millis(50);
/// Threads that may be held up before nobody goes on.
const MOST_THREADS: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dropped {
    Yes,
    NotTakenIn,
}

impl Notifier {
    /// Waits, but no longer than some seconds beyond what the work takes; meanwhile requests are served.
    pub(crate) fn everything_from_before(self: &Arc<Self>, names_are_gone: impl FnOnce() + Send + 'static) {
        let start = Instant::now();
        if !self.agreement.has_inc_epoch() {
            self.threads.run(Box::new(|| {
                thread::sleep(NAMES_RUN_OUT);
                names_are_gone();
            }));
        } else {
            let dirs: BTreeSet<Fid> = self.listings.all().into_iter().map(|(dir, _)| dir).collect();
            let passed = self.elsewhere(move |notifier| dirs.iter().for_each(|dir| notifier.pass_lock(*dir)));
            passed.wait(LISTING_PATIENCE);
            self.all_names();
            names_are_gone();
        }
        self.inodes_from_before(TAKE_IN);
        if !self.agreement.has_inc_epoch() {
            thread::sleep(NAMES_RUN_OUT.saturating_sub(start.elapsed()));
        }
        tracing::info!(took = ?start.elapsed(), "the kernel has nothing of what the daemon before this one told it");
    }

    /// `patience`: for what the kernel has not taken in, and for pages that are locked.
    fn inodes_from_before(self: &Arc<Self>, patience: Duration) {
        let pages = self.nodes.all_with_pages();
        let (mut left, deadline) = (self.nodes.all(), Instant::now() + patience);
        loop {
            left.retain(|fid| self.drop_attributes(*fid) == Dropped::NotTakenIn);
            if left.is_empty() || Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.drop_pages(pages, patience);
    }

    fn drop_attributes(&self, fid: Fid) -> Dropped {
        self.counters.count(&self.counters.attributes);
        self.nodes.take_attr_told(fid);
        let node = self.nodes.node_of(fid);
        match self.sink.send(0, notify::INVAL_INODE, &[&inval_record(node, -1, 0)]) {
            Err(error) if error.raw_os_error() == Some(ENOENT) && self.nodes.is_known(node) => {
                Dropped::NotTakenIn
            }
            result => {
                report("an inode", result);
                Dropped::Yes
            }
        }
    }

    fn drop_pages(self: &Arc<Self>, of: Vec<Fid>, patience: Duration) {
        let left = Arc::new(Left(Mutex::new(of)));
        let mut threads: Vec<Arc<Finished>> = Vec::new();
        while left.len() > 0 && threads.len() < MOST_THREADS {
            let queue = left.clone();
            let newest = self.elsewhere(move |notifier| {
                while let Some(fid) = queue.next() {
                    notifier.drop_pages_of(fid);
                }
            });
            loop {
                let before = left.len();
                if newest.wait(HELD_UP) || left.len() == before {
                    break;
                }
            }
            threads.push(newest);
        }
        let deadline = Instant::now() + patience;
        let is_held_up =
            |thread: &&Arc<Finished>| !thread.wait(deadline.saturating_duration_since(Instant::now()));
        let held_up = threads.iter().filter(is_held_up).count();
        if held_up > 0 {
            tracing::warn!(
                held_up,
                untouched = left.len(),
                "somebody keeps pages locked that the daemon before this one filled: they go when that ends"
            );
        }
    }

    fn drop_pages_of(&self, fid: Fid) {
        self.counters.count(&self.counters.data);
        // As in `data`: before the pages go.
        self.nodes.pages_dropped(fid);
        let record = inval_record(self.nodes.node_of(fid), 0, 0);
        report("an inode's pages", self.sink.send(0, notify::INVAL_INODE, &[&record]));
    }
}

/// Inodes whose pages nobody drops yet.
#[derive(Debug)]
struct Left(Mutex<Vec<Fid>>);

impl Left {
    fn locked(&self) -> MutexGuard<'_, Vec<Fid>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn len(&self) -> usize {
        self.locked().len()
    }

    fn next(&self) -> Option<Fid> {
        self.locked().pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Nodes;
    use crate::wire::{Agreement, Sink, Unique};
    use soda_types::{Ino, Version, VolumeId};
    use std::io;
    use std::sync::Condvar;
    use std::sync::mpsc::channel;

    /// A kernel in which pages of some inodes are locked.
    #[derive(Debug, Default)]
    struct Kernel {
        locked: Mutex<BTreeSet<u64>>,
        unlocked: Condvar,
        /// Node and offset, as they came.
        told: Mutex<Vec<(u64, i64)>>,
    }

    impl Sink for Kernel {
        fn send(&self, _: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
            assert_eq!(error, notify::INVAL_INODE);
            let number = |at: usize| u64::from_ne_bytes(parts[0][at..at + 8].try_into().unwrap());
            let (node, offset) = (number(0), number(8) as i64);
            let locked = self.locked.lock().unwrap();
            if offset >= 0 {
                drop(self.unlocked.wait_while(locked, |locked| locked.contains(&node)).unwrap());
            }
            self.told.lock().unwrap().push((node, offset));
            Ok(())
        }
    }

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    #[test]
    fn a_page_that_stays_locked_holds_up_no_other_inode() {
        const NODES: u64 = 100;
        let kernel = Arc::new(Kernel::default());
        kernel.locked.lock().unwrap().extend([102, 150, 199]);
        let nodes = Arc::new(Nodes::new(fid(1)));
        for ino in 100..100 + NODES {
            nodes.remember(fid(ino));
            nodes.tell_attr(fid(ino));
        }
        // The others have no pages.
        (100..100 + NODES).step_by(2).chain([199]).for_each(|ino| {
            nodes.fill_pages(fid(ino), Version(7));
        });
        let notifier = Arc::new(Notifier::new(kernel.clone(), Agreement::of_linux_6_18(), nodes.clone()));
        let (done, is_done) = channel();
        thread::spawn(move || {
            notifier.inodes_from_before(Duration::from_millis(300));
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("nobody waits for who keeps a page locked");
        let told = kernel.told.lock().unwrap().clone();
        let (attributes, pages) = told.split_at(NODES as usize);
        assert!(attributes.iter().all(|(_, offset)| *offset == -1), "attributes first: {attributes:?}");
        assert_eq!(attributes.iter().map(|(node, _)| *node).collect::<BTreeSet<_>>().len() as u64, NODES);
        let dropped: BTreeSet<u64> = pages.iter().map(|(node, _)| *node).collect();
        let unlocked = (100..100 + NODES).step_by(2).filter(|node| ![102, 150].contains(node)).collect();
        assert_eq!(dropped, unlocked);
        assert!((100..100 + NODES).all(|ino| !nodes.is_attr_told(fid(ino))));
        kernel.locked.lock().unwrap().clear();
        kernel.unlocked.notify_all();
    }
}
