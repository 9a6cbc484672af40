//! Dropping all that another process told the kernel, which has served the mount until now; or this one, before the machine
//! slept.
//!
//! Not one inode after the other as elsewhere. One that the kernel has forgotten, which it says with a request that is not read
//! yet, looks as one that it has not taken in, and each would be waited for. And a page stays locked for as long as somebody
//! likes: one of a listing until the memory is there that names are copied to, one of a file until its read is answered.
//!
//! Pages that a lease covers which passed stay ([`Client::kernel_may_keep_pages`]): the next recall of that drops them.
//!
//! So attributes go first, which takes no lock: without them read(2) and listings believe no page (`FUSE_AUTO_INVAL_DATA`). Then
//! pages, from as many threads as are held up at a time. Somebody may keep one locked for good, or many may have to be written
//! back first: where that takes long only recalls of these inodes go on to wait ([`Client::kernel_still_has`]).

use super::{Done, Finished, LISTING_PATIENCE, Notifier, TAKE_IN, inval_record, report};
use crate::unpoisoned::Unpoisoned;
use crate::wire::abi::notify;
use rustix::io::Errno as Raw;
use soda_client::{Client, NAMES_RUN_OUT};
use soda_types::Fid;
use std::collections::{BTreeSet, HashSet};
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
    /// Tells the client what is gone; until then recalls wait. Returns when all is; meanwhile requests are served.
    /// `kept`: inodes of which pages stay.
    pub(crate) fn everything_from_before(self: &Arc<Self>, client: &Arc<Client>, kept: &HashSet<Fid>) {
        let start = Instant::now();
        if !self.agreement.has_inc_epoch() {
            let client = client.clone();
            self.threads.run(Box::new(move || {
                thread::sleep(NAMES_RUN_OUT);
                client.kernel_has_no_names();
            }));
        } else {
            let dirs: BTreeSet<Fid> = self.listings.all().into_iter().map(|(dir, _)| dir).collect();
            let passed = self.elsewhere(move |notifier| dirs.iter().for_each(|dir| notifier.pass_lock(*dir)));
            passed.wait(LISTING_PATIENCE);
            self.all_names();
            client.kernel_has_no_names();
        }
        let left = self.inodes_from_before(TAKE_IN, kept);
        if !self.agreement.has_inc_epoch() {
            thread::sleep(NAMES_RUN_OUT.saturating_sub(start.elapsed()));
        }
        let gone = client.clone();
        left.tell(|fids| client.kernel_still_has(fids), move |fid| gone.kernel_has_dropped(fid));
        client.kernel_has_forgotten();
        tracing::info!(took = ?start.elapsed(), "the kernel has dropped what the daemon before this one told it");
        // Beside those that are held up: there may be no other thread.
        self.work_off(&left);
    }

    /// As [`Notifier::everything_from_before`], but no recall waits, and no pages are covered. Returns when all are gone.
    pub(super) fn all_inodes(self: &Arc<Self>) {
        let left = self.inodes_from_before(TAKE_IN, &HashSet::new());
        self.work_off(&left);
    }

    /// `patience`: for what the kernel has not taken in, and for pages. Returns those whose pages it may have still.
    fn inodes_from_before(self: &Arc<Self>, patience: Duration, kept: &HashSet<Fid>) -> Arc<Left> {
        let with_pages = self.nodes.all_with_pages();
        let left = Arc::new(Left::new(with_pages.into_iter().filter(|fid| !kept.contains(fid)).collect()));
        let (mut untold, deadline) = (self.nodes.all(), Instant::now() + patience);
        loop {
            untold.retain(|fid| self.drop_attributes(*fid) == Dropped::NotTakenIn);
            if untold.is_empty() || Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        if !untold.is_empty() {
            tracing::warn!(inodes = untold.len(), "the kernel does not know inodes that it was told of");
        }
        self.drop_pages(&left, patience);
        left
    }

    fn drop_attributes(&self, fid: Fid) -> Dropped {
        self.counters.count(&self.counters.attributes);
        self.nodes.take_attr_told(fid);
        let node = self.nodes.node_of(fid);
        let sent = self.sink.send(0, notify::INVAL_INODE, &[&inval_record(node, -1, 0)]);
        self.nodes.bar(fid);
        match sent {
            Err(error) if Raw::from_io_error(&error) == Some(Raw::NOENT) && self.nodes.is_known(node) => {
                Dropped::NotTakenIn
            }
            result => {
                let _ = report("an inode", result);
                Dropped::Yes
            }
        }
    }

    fn drop_pages(self: &Arc<Self>, left: &Arc<Left>, patience: Duration) {
        let mut threads: Vec<Arc<Finished>> = Vec::new();
        while left.waiting() > 0 && threads.len() < MOST_THREADS {
            let queue = left.clone();
            let newest = self.elsewhere(move |notifier| notifier.work_off(&queue));
            loop {
                let before = left.waiting();
                if newest.wait(HELD_UP) || left.waiting() == before {
                    break;
                }
            }
            threads.push(newest);
        }
        let deadline = Instant::now() + patience;
        threads.iter().all(|thread| thread.wait(deadline.saturating_duration_since(Instant::now())));
    }

    fn work_off(&self, left: &Left) {
        while let Some(fid) = left.begin() {
            self.counters.count(&self.counters.data);
            // What is known of the pages stays: until they are gone nobody may take the inode to have none.
            let record = inval_record(self.nodes.node_of(fid), 0, 0);
            let sent = report("an inode's pages", self.sink.send(0, notify::INVAL_INODE, &[&record]));
            self.nodes.bar(fid);
            if sent == Done::No {
                self.nodes.pages_stay(fid);
            }
            left.end(fid);
        }
    }
}

type Tell = Arc<dyn Fn(Fid) + Send + Sync>;

/// Inodes whose pages the kernel may have.
#[derive(Default)]
struct Left(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    waiting: Vec<Fid>,
    under_way: BTreeSet<Fid>,
    /// Who hears of each that is done.
    tell: Option<Tell>,
}

impl Left {
    fn new(waiting: Vec<Fid>) -> Left {
        Left(Mutex::new(Pages { waiting, ..Pages::default() }))
    }

    fn locked(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unpoisoned()
    }

    /// Those that nobody drops yet.
    fn waiting(&self) -> usize {
        self.locked().waiting.len()
    }

    fn begin(&self) -> Option<Fid> {
        let mut pages = self.locked();
        let fid = pages.waiting.pop()?;
        pages.under_way.insert(fid);
        Some(fid)
    }

    fn end(&self, fid: Fid) {
        let tell = {
            let mut pages = self.locked();
            pages.under_way.remove(&fid);
            pages.tell.clone()
        };
        tell.into_iter().for_each(|tell| tell(fid));
    }

    /// Says which there are now, and then of each when it is done.
    fn tell(&self, there_are: impl FnOnce(Vec<Fid>), is_done: impl Fn(Fid) + Send + Sync + 'static) {
        let mut pages = self.locked();
        let all: Vec<Fid> = pages.waiting.iter().chain(&pages.under_way).copied().collect();
        if !all.is_empty() {
            tracing::warn!(
                inodes = all.len(),
                "pages stay, locked or to be written: who asks for these inodes waits"
            );
        }
        there_are(all);
        pages.tell = Some(Arc::new(is_done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Inode, Nodes};
    use crate::wire::{Agreement, AttrOut, Sink, Unique, some_attr};
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
            if error == notify::INC_EPOCH {
                return Ok(());
            }
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

    const LIMIT: Duration = Duration::from_secs(60);

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    const NODES: u64 = 100;

    /// The kernel was told of inodes from 100 on; of every second one, and the last, it has pages.
    fn told(kernel: &Arc<Kernel>) -> Arc<Notifier> {
        let nodes = Arc::new(Nodes::new(fid(1)));
        for ino in 100..100 + NODES {
            nodes.remember(fid(ino));
            let out = AttrOut { node: ino, attr: &some_attr(), valid: LIMIT };
            assert_eq!(nodes.tell_attr(fid(ino), out, nodes.asked(1), Inode::Guarded), LIMIT);
        }
        (100..100 + NODES).step_by(2).chain([199]).for_each(|ino| {
            nodes.fill_pages(fid(ino), Version(7));
        });
        let threads = super::super::threads().unwrap();
        Arc::new(Notifier::new(kernel.clone(), Agreement::of_linux_6_18(), nodes, threads))
    }

    #[test]
    fn after_a_sleep_a_page_that_stays_locked_holds_up_no_other_inode() {
        let kernel = Arc::new(Kernel::default());
        // One would do, wherever it comes.
        kernel.locked.lock().unwrap().extend([102, 150, 199]);
        let notifier = told(&kernel);
        let nodes = notifier.nodes.clone();
        let everything = thread::spawn(move || notifier.everything());
        let with_pages = NODES as usize / 2 + 1;
        eventually(|| (kernel.told.lock().unwrap().len() == NODES as usize + with_pages - 3).then_some(()));
        assert!((100..100 + NODES).all(|ino| !nodes.is_attr_told(fid(ino))));
        kernel.locked.lock().unwrap().clear();
        kernel.unlocked.notify_all();
        everything.join().unwrap();
        eventually(|| (kernel.told.lock().unwrap().len() == NODES as usize + with_pages).then_some(()));
    }

    #[test]
    fn a_page_that_stays_locked_holds_up_no_other_inode_and_what_may_stay_does() {
        let kernel = Arc::new(Kernel::default());
        kernel.locked.lock().unwrap().extend([102, 150, 199]);
        let notifier = told(&kernel);
        let nodes = notifier.nodes.clone();
        let (done, is_done) = channel();
        let kept = HashSet::from([fid(110)]);
        thread::spawn(move || {
            done.send(notifier.inodes_from_before(Duration::from_millis(300), &kept)).unwrap();
        });
        let left = is_done.recv_timeout(LIMIT).expect("nobody waits for who keeps a page locked");
        let unlocked: BTreeSet<u64> =
            (100..100 + NODES).step_by(2).filter(|node| ![102, 110, 150].contains(node)).collect();
        let told = eventually(|| {
            let told = kernel.told.lock().unwrap().clone();
            (told.len() == NODES as usize + unlocked.len()).then_some(told)
        });
        let (attributes, pages) = told.split_at(NODES as usize);
        assert!(attributes.iter().all(|(_, offset)| *offset == -1), "attributes first: {attributes:?}");
        assert_eq!(attributes.iter().map(|(node, _)| *node).collect::<BTreeSet<_>>().len() as u64, NODES);
        assert_eq!(pages.iter().map(|(node, _)| *node).collect::<BTreeSet<_>>(), unlocked);
        assert!((100..100 + NODES).all(|ino| !nodes.is_attr_told(fid(ino))));
        assert!(nodes.may_have_pages(fid(102)), "they are not gone");
        let (gone, are_gone) = channel();
        eventually(|| (left.locked().under_way.len() == 3).then_some(()));
        let mut there_are = Vec::new();
        left.tell(|fids| there_are = fids, move |fid| gone.send(fid).unwrap());
        assert_eq!(there_are, [102, 150, 199].map(fid));
        kernel.locked.lock().unwrap().clear();
        kernel.unlocked.notify_all();
        let gone: BTreeSet<Fid> = (0..3).map(|_| are_gone.recv_timeout(LIMIT).unwrap()).collect();
        assert_eq!(gone, there_are.into_iter().collect());
    }

    fn eventually<T>(look: impl Fn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            assert!(began.elapsed() < LIMIT, "TIMED OUT");
            thread::sleep(Duration::from_millis(2));
        }
    }
}
