//! Tells the kernel to drop what it caches: the kernel's half of a recall.
//!
//! Four rules, each learned from somebody's deadlock or stale name. A notification that may wait is never sent by a thread that
//! serves a request: the kernel may wait for that very request. Taking a name back waits for the directory's lock, and its holder
//! may wait at the server for our answer to the recall: so that wait is short, and then all names of the mount are made
//! void at once, which needs no lock ([`notify::INC_EPOCH`]); a kernel that cannot do that believes a name for half a
//! second only, and the client's answer does not wait for us for longer than that takes. And an inode that the kernel does
//! not know although it was told of it is one whose look-up has been answered a moment ago and not been taken in: ask again
//! until it is there. Last, names that a listing brings are taken in under the directory's lock, as if they had been told
//! that late: where one may be on its way, the lock is waited for ([`crate::listings`]).

mod before;

use crate::last_bytes::{MESSAGE_LEN, OnItsWay};
use crate::listings::Listings;
use crate::nodes::{NameKind, Nodes};
use crate::unpoisoned::Unpoisoned;
use crate::wire::abi::{Record, notify};
use crate::wire::{Agreement, Hurry, NodeId, Sink};
use rustix::io::Errno as Raw;
use soda_client::pool::Pool;
use soda_client::{KernelHooks, Names, NamesLock};
use soda_types::{Fid, Name};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long taking a name back may wait for the directory's lock.
const PATIENCE: Duration = Duration::from_millis(3);
/// How long to wait for that lock where a listing is being taken in ([`crate::listings`]). Nobody who does that waits for us,
/// but for look-ups of others, which may.
const LISTING_PATIENCE: Duration = Duration::from_millis(250);
/// More names than this are made void all at once.
const MANY_NAMES: usize = 1000;
/// How long to wait for the kernel to take in an answer that was written.
const TAKE_IN: Duration = Duration::from_secs(2);

/// Threads that may block in the kernel. As many as have something to do at a time, up to here: one that waits for a directory
/// must not hold up the next recall.
const MOST_THREADS: usize = 1024;

/// Whether the kernel has done what it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Done {
    Yes,
    /// It refused, or has not taken in what it was told before.
    No,
}

/// The threads of a notifier.
///
/// # Errors
/// None can be started.
pub(crate) fn threads() -> io::Result<Pool> {
    Pool::start("fuse-notify", MOST_THREADS)
}

/// Sends notifications. One for each mount.
#[derive(Debug)]
pub(crate) struct Notifier {
    sink: Arc<dyn Sink>,
    agreement: Agreement,
    nodes: Arc<Nodes>,
    listings: Listings,
    threads: Pool,
    counters: NotifyCounters,
    hurry: OnceLock<Arc<dyn Hurry>>,
}

/// Notifications sent since the start.
#[derive(Debug, Default)]
pub(crate) struct NotifyCounters {
    pub(crate) attributes: AtomicU64,
    pub(crate) data: AtomicU64,
    pub(crate) names: AtomicU64,
    /// All names of the mount made void.
    pub(crate) epochs: AtomicU64,
    /// A directory's lock did not come free in time.
    pub(crate) lock_waits: AtomicU64,
}

impl NotifyCounters {
    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Notifier {
    /// `threads`: see [`threads`].
    pub(crate) fn new(
        sink: Arc<dyn Sink>,
        agreement: Agreement,
        nodes: Arc<Nodes>,
        threads: Pool,
    ) -> Notifier {
        Notifier {
            sink,
            agreement,
            nodes,
            listings: Listings::default(),
            threads,
            counters: NotifyCounters::default(),
            hurry: OnceLock::new(),
        }
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    /// Who may hold up a recall, and is to be told.
    pub(crate) fn attach(&self, hurry: Arc<dyn Hurry>) {
        let _ = self.hurry.set(hurry);
    }

    pub(crate) fn counters(&self) -> &NotifyCounters {
        &self.counters
    }

    /// Attributes and access lists. Takes no lock in the kernel: may be called while a request is served.
    pub(crate) fn attributes(&self, fid: Fid) {
        self.counters.count(&self.counters.attributes);
        self.nodes.take_attr_told(fid);
        let _ = self.inval_inode(fid, -1, 0);
    }

    /// Pages, and with them the attributes. Waits for reads of them that are being answered. Where the kernel refuses, no
    /// attributes are believed from here on until it has dropped all pages ([`Nodes::pages_stay`]).
    pub(crate) fn data(&self, fid: Fid, range: Range<u64>) -> Done {
        self.counters.count(&self.counters.data);
        self.nodes.take_attr_told(fid);
        if range == (0..u64::MAX) {
            // Before the pages go: a read that fills new ones meanwhile must be remembered.
            self.nodes.pages_dropped(fid);
        }
        let start = i64::try_from(range.start).unwrap_or(i64::MAX);
        // A length of 0 or less means to the end.
        let len = match range.end.checked_sub(range.start) {
            _ if range.end == u64::MAX => 0,
            Some(len) => i64::try_from(len).unwrap_or(0),
            None => return Done::Yes,
        };
        let done = self.inval_inode(fid, start, len);
        if done == Done::No {
            self.nodes.pages_stay(fid);
        }
        done
    }

    /// Pages of a directory's listing. Whoever reads one holds its lock while it copies names out, to memory that may be
    /// anywhere: so that is not waited for for long. No page is believed without the attributes.
    fn listing(self: &Arc<Self>, dir: Fid) {
        if self.nodes.kept_listing(dir, |kept| kept.recalled()) == Some(true) {
            let dropped = self.elsewhere(move |notifier| {
                let _ = notifier.inval_inode(dir, 0, 0);
            });
            dropped.wait(PATIENCE);
        }
    }

    /// As [`Notifier::data`], from a thread that may serve requests.
    pub(crate) async fn data_elsewhere(self: &Arc<Self>, fid: Fid, range: Range<u64>) -> Done {
        let (done, is_done) = tokio::sync::oneshot::channel();
        let notifier = self.clone();
        self.threads.run(Box::new(move || {
            let _ = done.send(notifier.data(fid, range));
        }));
        // An error means that it has panicked.
        is_done.await.unwrap_or_else(|_| {
            self.nodes.pages_stay(fid);
            Done::No
        })
    }

    /// Sends a last byte, which makes the kernel's size of its file what it is. From another thread: waits for reads of that
    /// page that are being answered.
    pub(crate) async fn last_byte_elsewhere(self: &Arc<Self>, fid: Fid, byte: OnItsWay) -> Done {
        let (done, is_done) = tokio::sync::oneshot::channel();
        let notifier = self.clone();
        self.threads.run(Box::new(move || {
            let sent = notifier.sink.send_file(notify::STORE, byte.message(), MESSAGE_LEN);
            notifier.nodes.bar(fid);
            let sent = report("a size", sent);
            drop(byte);
            let _ = done.send(sent);
        }));
        is_done.await.unwrap_or(Done::No)
    }

    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> Done {
        let node = self.nodes.node_of(fid);
        let record = inval_record(node, offset, len);
        let deadline = Instant::now() + TAKE_IN;
        let mut pause = Duration::from_micros(20);
        loop {
            match self.sink.send(0, notify::INVAL_INODE, &[&record]) {
                Err(error) if Raw::from_io_error(&error) == Some(Raw::NOENT) && self.nodes.is_known(node) => {
                    if Instant::now() > deadline {
                        tracing::warn!(%fid, "the kernel does not know an inode that it was told of");
                        return Done::No;
                    }
                    thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(2));
                }
                result => {
                    self.nodes.bar(fid);
                    return report("an inode", result);
                }
            }
        }
    }

    /// Names of one directory, present and absent. When this returns the kernel asks before it uses one of them.
    pub(crate) fn names(self: &Arc<Self>, dir: Fid, names: &Names) {
        let names = match names {
            Names::These(names) if names.len() <= MANY_NAMES || !self.agreement.has_inc_epoch() => names,
            _ => {
                self.nodes.clear_subdirectories(dir);
                return self.all_names_for(dir);
            }
        };
        self.counters.names.fetch_add(names.len() as u64, Ordering::Relaxed);
        let taken: Vec<_> =
            names.iter().map(|name| self.nodes.take_subdirectory(dir, name.as_bytes())).collect();
        if taken.contains(&NameKind::FreshDirectory) && self.agreement.has_inc_epoch() {
            return self.all_names_for(dir);
        }
        if !self.agreement.has_inc_epoch() {
            return self.inval_entries(dir, names, &taken);
        }
        let names = names.clone();
        self.with_lock(dir, move |notifier| notifier.inval_entries(dir, &names, &taken));
    }

    /// Waits until whoever changes a name of the directory just now has returned. If that takes long, the kernel asks before it
    /// uses any name.
    pub(crate) fn settle_names(self: &Arc<Self>, dir: Fid) {
        if !self.agreement.has_inc_epoch() {
            return self.pass_lock(dir);
        }
        self.with_lock(dir, move |notifier| notifier.pass_lock(dir));
    }

    /// `work` needs the directory's lock. If it cannot be had in time, all names of the mount go, which needs none.
    fn with_lock(self: &Arc<Self>, dir: Fid, work: impl FnOnce(&Notifier) + Send + 'static) {
        let finished = self.elsewhere(work);
        if finished.wait(PATIENCE) {
            return;
        }
        self.counters.count(&self.counters.lock_waits);
        if self.listings.are_out(dir) && finished.wait(LISTING_PATIENCE) {
            return;
        }
        tracing::debug!(%dir, "directory locked: all names made void");
        self.all_names();
    }

    /// All names of the mount, for the sake of those of `dir`.
    fn all_names_for(self: &Arc<Self>, dir: Fid) {
        if self.listings.are_out(dir) {
            let finished = self.elsewhere(move |notifier| {
                notifier.pass_lock(dir);
                notifier.all_names();
            });
            if finished.wait(LISTING_PATIENCE) {
                return;
            }
        }
        self.all_names();
    }

    /// From a thread that may wait for a lock.
    fn elsewhere(self: &Arc<Self>, work: impl FnOnce(&Notifier) + Send + 'static) -> Arc<Finished> {
        let finished = Arc::new(Finished::default());
        let (notifier, is_finished) = (self.clone(), finished.clone());
        self.threads.run(Box::new(move || {
            work(&notifier);
            is_finished.set();
        }));
        finished
    }

    /// Waits until all who hold the directory's lock now have let go of it.
    fn pass_lock(&self, dir: Fid) {
        // No name in the kernel's cache is a dot.
        let head = Record::<16>::new().u64(self.nodes.node_of(dir).0).u32(1).u32(0).done();
        let _ = report("a directory's lock", self.sink.send(0, notify::INVAL_ENTRY, &[&head, b".", &[0]]));
    }

    /// Makes every name of the mount void without taking a lock, where the kernel can.
    fn all_names(&self) {
        self.counters.count(&self.counters.epochs);
        let _ = report("all names", self.sink.send(0, notify::INC_EPOCH, &[]));
    }

    fn inval_entries(&self, dir: Fid, names: &[Name], kinds: &[NameKind]) {
        let parent = self.nodes.node_of(dir);
        for (name, kind) in names.iter().zip(kinds) {
            // A directory stays where it is: otherwise processes that work in it would lose their path (getcwd fails).
            let flags = match kind {
                NameKind::Directory if self.agreement.has_expire_only() => notify::EXPIRE_ONLY,
                _ => 0,
            };
            let head = Record::<16>::new().u64(parent.0).u32(name.as_bytes().len() as u32).u32(flags).done();
            let sent = self.sink.send(0, notify::INVAL_ENTRY, &[&head, name.as_bytes(), &[0]]);
            let _ = report("a name", sent);
        }
    }

    /// Everything that the kernel holds of the mount: after the machine slept.
    pub(crate) fn everything(self: &Arc<Self>) {
        if self.agreement.has_inc_epoch() {
            self.all_names();
        }
        // First of all: pages may be waited for.
        self.nodes.all().into_iter().for_each(|fid| self.nodes.attributes_recalled(fid));
        self.all_inodes();
    }
}

fn inval_record(node: NodeId, offset: i64, len: i64) -> [u8; 24] {
    Record::<24>::new().u64(node.0).u64(offset as u64).u64(len as u64).done()
}

/// NOENT: not in the kernel's cache any more. NODEV, NOTCONN: unmounted, nothing is cached.
fn report(what: &str, result: io::Result<()>) -> Done {
    if let Err(error) = result
        && !matches!(
            Raw::from_io_error(&error),
            Some(Raw::NOENT | Raw::NODEV | Raw::NOTCONN | Raw::NOTDIR | Raw::CONNABORTED)
        )
    {
        tracing::error!(%error, "the kernel refused to drop {what}");
        return Done::No;
    }
    Done::Yes
}

#[derive(Debug, Default)]
struct Finished {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Finished {
    fn set(&self) {
        *self.done.lock().unpoisoned() = true;
        self.changed.notify_all();
    }

    fn wait(&self, at_most: Duration) -> bool {
        let done = self.done.lock().unpoisoned();
        let waited = self.changed.wait_timeout_while(done, at_most, |done| !*done);
        let (done, _) = waited.unpoisoned();
        *done
    }
}

/// The client's hooks. It connects before there is a mount: until then the kernel holds nothing.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    notifier: Arc<OnceLock<Arc<Notifier>>>,
}

impl Hooks {
    pub fn new() -> Hooks {
        Hooks::default()
    }

    pub(crate) fn attach(&self, notifier: Arc<Notifier>) {
        // A second mount of the same client is a mistake that `Mount::start` cannot make.
        let _ = self.notifier.set(notifier);
    }
}

impl KernelHooks for Hooks {
    fn invalidate_attr(&self, fid: Fid) {
        if let Some(notifier) = self.notifier.get() {
            notifier.nodes.attributes_recalled(fid);
            notifier.listing(fid);
            notifier.attributes(fid);
        }
    }

    /// Linux looks at the owner before it lets anybody change it, the mode or an access list, or take a name out of a sticky
    /// directory, and does not ask for the attributes first. It is told new ones where it looks a name up. The names of
    /// one inode are not known here, and need their directories' locks: so it is all names. Kernels that cannot do that
    /// ask for each name after half a second.
    fn invalidate_owner(&self, _fid: Fid) {
        if let Some(notifier) = self.notifier.get()
            && notifier.agreement.has_inc_epoch()
        {
            notifier.all_names();
        }
    }

    fn invalidate_data(&self, fid: Fid, range: Range<u64>) {
        if let Some(notifier) = self.notifier.get() {
            notifier.nodes.attributes_recalled(fid);
            let _ = notifier.data(fid, range);
        }
    }

    fn invalidate_names(&self, dir: Fid, names: &Names) {
        if let Some(notifier) = self.notifier.get() {
            notifier.names(dir, names);
        }
    }

    fn settle_names(&self, dir: Fid) {
        if let Some(notifier) = self.notifier.get() {
            notifier.settle_names(dir);
        }
    }

    fn invalidate_everything(&self) {
        if let Some(notifier) = self.notifier.get() {
            notifier.everything();
        }
    }

    fn hurry(&self) {
        if let Some(hurry) = self.notifier.get().and_then(|notifier| notifier.hurry.get()) {
            hurry.hurry();
        }
    }

    fn names_lock(&self) -> NamesLock {
        match self.notifier.get() {
            Some(notifier) if !notifier.agreement.has_inc_epoch() => NamesLock::Directory,
            _ => NamesLock::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Inode, PageState};
    use crate::wire::{AttrOut, Unique, some_attr};
    use soda_types::{Ino, Version, VolumeId};
    use std::sync::atomic::AtomicBool;

    /// A kernel that may refuse what it is told.
    #[derive(Debug, Default)]
    struct Kernel {
        refuses: AtomicBool,
    }

    impl Sink for Kernel {
        fn send(&self, _: Unique, _: i32, _: &[&[u8]]) -> io::Result<()> {
            match self.refuses.load(Ordering::SeqCst) {
                true => Err(io::ErrorKind::OutOfMemory.into()),
                false => Ok(()),
            }
        }
    }

    /// Else stale pages would count as dropped.
    #[tokio::test]
    async fn where_the_kernel_does_not_drop_pages_no_attributes_are_believed() {
        const LIMIT: Duration = Duration::from_secs(60);
        let fid = Fid::new(VolumeId(1), Ino(5));
        let (kernel, nodes) = (Arc::<Kernel>::default(), Arc::new(Nodes::new(Fid::new(VolumeId(1), Ino(1)))));
        let notifier =
            Notifier::new(kernel.clone(), Agreement::of_linux_6_18(), nodes.clone(), threads().unwrap());
        let notifier = Arc::new(notifier);
        nodes.remember(fid);
        let (attr, version) = (some_attr(), Version(3));
        // The first answer after another machine's change is not believed anyway.
        let believed = || {
            let out = AttrOut { node: 5, attr: &attr, valid: LIMIT };
            let tell = || nodes.tell_attr(fid, out, nodes.asked(1), Inode::Guarded);
            tell();
            tell()
        };
        assert_eq!(believed(), LIMIT);
        nodes.pages_filled(fid, version);
        for range in [0..u64::MAX, 0..10] {
            kernel.refuses.store(true, Ordering::SeqCst);
            assert_eq!(notifier.data_elsewhere(fid, range).await, Done::No);
            assert_eq!((nodes.page_state(fid, version), believed()), (PageState::Outdated, Duration::ZERO));
            kernel.refuses.store(false, Ordering::SeqCst);
            assert_eq!(notifier.data_elsewhere(fid, 0..u64::MAX).await, Done::Yes);
            assert_eq!((nodes.page_state(fid, version), believed()), (PageState::Current, LIMIT));
        }
    }

    #[test]
    fn hooks_without_a_mount_do_nothing() {
        let hooks = Hooks::new();
        hooks.invalidate_names(Fid::new(VolumeId(1), Ino(1)), &Names::All);
        assert_eq!(hooks.names_lock(), NamesLock::None);
    }
}
