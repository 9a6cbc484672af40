//! A file system that answers from memory at once, over either transport: what is left is the kernel's side.
//!
//! The root has files of fixed size, one for each number: `0`, `1`, ... A read answers with the file's number, unless it
//! was told to wait ([`Null::hold`]). Writes are summed up. All files share one lock. What is created is nowhere.

#![allow(dead_code, reason = "each user takes a part")]

pub(crate) mod cores;
pub(crate) mod daemon;
mod held;
mod knobs;
mod notify;
mod stop;
mod switch;

pub(crate) use knobs::{control, waiting};
pub(crate) use switch::UringOn;

use held::{Held, Waits};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use soda_client::Due;
use soda_fuse::wire::connection::{ConnectError, Connection, Inherited, Transport, TransportChoice};
use soda_fuse::wire::device::Device;
use soda_fuse::wire::{
    Agreement, AttrOut, Cores, EntryOut, Handler, Op, OpenOut, QueueFault, Readers, Reply, Request, Serving,
    Sink, Statfs,
};
use soda_types::{Attr, Errno, FileKind, Ino, Timestamp, Version};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use stop::{Place, Stop};

pub(crate) const FILE_LEN: u64 = 64 << 20;
/// Files from here on have [`SMALL_LEN`] bytes, and the kernel may believe their attributes.
pub(crate) const SMALL: u64 = 1 << 19;
const SMALL_LEN: u64 = 4096;
/// Files from here on keep what the kernel has of their pages when they are opened again.
pub(crate) const KEPT: u64 = 1 << 20;
/// FOPEN_DIRECT_IO with FOPEN_PARALLEL_DIRECT_WRITES, as Soda's own, and FOPEN_KEEP_CACHE.
const DIRECT_IO: u32 = 1 << 0 | 1 << 6;
const KEEP_CACHE: u32 = 1 << 1;
const ROOT: u64 = 1;
/// Nodes that were created have numbers from here on.
const CREATED: u64 = 1 << 32;
/// F_UNLCK.
const UNLOCK: u32 = 2;

/// Longer than anything takes on the slowest machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Of what the kernel may believe.
const VALID: Duration = Duration::from_secs(3600);

/// What one read asks for.
const MOST: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Null {
    answers: Answers,
    pub(crate) requests: AtomicU64,
    pub(crate) forgets: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    /// So many more INTERRUPTs the kernel is to send again.
    pub(crate) put_off: AtomicU64,
    pub(crate) written: AtomicU64,
    /// Bytes that were asked for.
    pub(crate) read: AtomicU64,
    /// Sum of all bytes written, unless [`Null::sums_nothing`].
    pub(crate) sum: AtomicU64,
    /// What is written is looked at no more than by a file system that sends it on.
    pub(crate) sums_nothing: AtomicBool,
    /// The kernel may believe the attributes of the root, which it else asks for to open a file.
    pub(crate) keeps_root: AtomicBool,
    held: Mutex<Held>,
    lock: Mutex<Lock>,
    stop: Stop,
    /// By when the kernel has to have attributes of files.
    due: Mutex<Option<Due>>,
    /// Where it is mounted.
    dir: OnceLock<PathBuf>,
    /// What [`Handler::arrived`] said.
    arrived: Mutex<Vec<Due>>,
}

#[derive(Debug, Default)]
struct Lock {
    is_held: bool,
    waiting: VecDeque<Reply>,
}

/// What is read of files, by their byte. Kept: a fresh one would cost more than the request.
#[derive(Debug)]
struct Answers([OnceLock<Vec<u8>>; 256]);

impl Default for Answers {
    fn default() -> Answers {
        Answers([const { OnceLock::new() }; 256])
    }
}

impl Answers {
    fn of(&self, byte: u8, len: u32) -> &[u8] {
        &self.0[usize::from(byte)].get_or_init(|| vec![byte; MOST])[..len as usize]
    }
}

impl Null {
    /// From here on a thread that has answered who asked for a file's attributes does nothing more. The kernel has to have these
    /// by `due`.
    pub(crate) fn stop_behind(&self, due: Due) {
        *self.due.lock().unwrap() = Some(due);
        self.stop_at(Place::Behind);
    }

    pub(crate) fn arrived(&self) -> Vec<Due> {
        self.arrived.lock().unwrap().clone()
    }

    /// How many wait for the lock.
    pub(crate) fn waiting_for_lock(&self) -> usize {
        self.lock.lock().unwrap().waiting.len()
    }

    fn lock(&self, wait: bool, reply: Reply) {
        let mut lock = self.lock.lock().unwrap();
        match (lock.is_held, wait) {
            (true, true) => lock.waiting.push_back(reply),
            (true, false) => reply.error(Errno::TryAgain),
            (false, _) => {
                lock.is_held = true;
                reply.done();
            }
        }
    }

    fn unlock(&self, reply: Reply) {
        let next = {
            let mut lock = self.lock.lock().unwrap();
            let next = lock.waiting.pop_front();
            lock.is_held = next.is_some();
            next
        };
        reply.done();
        if let Some(next) = next {
            next.done();
        }
    }
}

fn attr(node: u64) -> Attr {
    let (kind, perm) = match node {
        ROOT => (FileKind::Directory, 0o777),
        _ => (FileKind::File, 0o666),
    };
    let time = Timestamp::new(1, 0);
    Attr {
        ino: Ino(node),
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: match node {
            ROOT => 0,
            SMALL.. => SMALL_LEN,
            _ => FILE_LEN,
        },
        allocated: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: Version(1),
        data_version: Version(1),
    }
}

/// Of attributes. Those of most files are not believed: each stat is a request.
fn validity(node: u64) -> Duration {
    if node >= SMALL { VALID } else { Duration::ZERO }
}

/// The handler, shared with the test.
#[derive(Debug, Clone, Default)]
pub(crate) struct NullFs(pub(crate) Arc<Null>);

impl Handler for NullFs {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let (null, node) = (&self.0, request.header.node);
        null.wait_at(Place::Before);
        null.requests.fetch_add(1, Ordering::Relaxed);
        let is_root = node.0 == ROOT && null.keeps_root.load(Ordering::Relaxed);
        let valid = if is_root { VALID } else { validity(node.0) };
        let due = || null.due.lock().unwrap().filter(|_| node.0 != ROOT);
        // Who was answered before anybody said so stops nowhere.
        let stop_behind = |due: Option<Due>| {
            if due.is_some() {
                null.wait_at(Place::Behind);
            }
        };
        match request.op {
            Op::Interrupt { unique } => match null.puts_off_interrupt() {
                true => reply.error(Errno::TryAgain),
                false => {
                    null.interrupt(unique);
                    reply.none();
                }
            },
            Op::Forget { .. } => {
                null.forgets.fetch_add(1, Ordering::Relaxed);
                reply.none();
            }
            Op::BatchForget { pairs } => {
                null.forgets.fetch_add(Op::forgets(pairs).count() as u64, Ordering::Relaxed);
                reply.none();
            }
            Op::Lookup { name } => {
                match std::str::from_utf8(name).ok().and_then(|name| name.parse::<u64>().ok()) {
                    Some(number) => {
                        let node = number + 2;
                        let attr = AttrOut { node, attr: &attr(node), valid: validity(node) };
                        let _ = reply.entry(EntryOut { attr, generation: 0, valid: VALID });
                    }
                    None => {
                        if let Some(reply) = null.hold_back(Waits::Lookup, reply) {
                            reply.error(Errno::NoEntry);
                        }
                    }
                }
            }
            Op::SetLock { lock, wait } => match lock.span.kind {
                UNLOCK => null.unlock(reply),
                _ => null.lock(wait, reply),
            },
            Op::GetAttr(_) | Op::SetAttr(_) => {
                let due = due();
                let _ = reply.by(due).attr(AttrOut { node: node.0, attr: &attr(node.0), valid });
                stop_behind(due);
            }
            Op::Statx(_) => {
                let due = due();
                let _ = reply.by(due).statx(AttrOut { node: node.0, attr: &attr(node.0), valid });
                stop_behind(due);
            }
            Op::Open(_) => {
                // Odd numbers have pages in the kernel.
                let flags = match node.0 {
                    KEPT.. => KEEP_CACHE,
                    number if number % 2 == 0 => DIRECT_IO,
                    _ => 0,
                };
                let _ = reply.opened(OpenOut { handle: node.0, flags });
            }
            Op::Create { .. } => {
                let node = CREATED + null.requests.load(Ordering::Relaxed);
                let attr = AttrOut { node, attr: &attr(node), valid };
                let entry = EntryOut { attr, generation: 0, valid: Duration::ZERO };
                let _ = reply.created(entry, OpenOut { handle: node, flags: 0 });
            }
            Op::Read { len, .. } => {
                null.read.fetch_add(len.into(), Ordering::Relaxed);
                if let Some(reply) = null.hold_back(Waits::Read, reply) {
                    let _ = reply.data(&[null.answers.of(node.0 as u8, len)]);
                }
            }
            Op::Write { .. } => {
                null.written.fetch_add(request.payload.len() as u64, Ordering::Relaxed);
                if !null.sums_nothing.load(Ordering::Relaxed) {
                    let sum = request.payload.iter().map(|byte| u64::from(*byte)).sum();
                    null.sum.fetch_add(sum, Ordering::Relaxed);
                }
                let bytes = request.payload.len() as u32;
                if let Some(reply) = null.hold_back(Waits::Write(bytes), reply) {
                    reply.written(bytes);
                }
            }
            Op::GetXattr { .. } => reply.error(Errno::NoData),
            Op::StatFs => {
                reply.statfs(Statfs { block: 4096, blocks: 1, free: 1, inodes: 1, free_inodes: 1 });
            }
            Op::Flush { .. } | Op::Release { .. } | Op::FSync { .. } | Op::Destroy => reply.done(),
            _ => reply.error(Errno::NotImplemented),
        }
    }

    fn look_up(&self, name: &str) {
        let Some(dir) = self.0.dir.get() else { return };
        let mut looking = std::process::Command::new("stat").arg(dir.join(name)).spawn().unwrap();
        let until = Instant::now() + LIMIT;
        while looking.try_wait().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = looking.kill();
    }

    fn arrived(&self, due: Due) {
        self.0.arrived.lock().unwrap().push(due);
    }
}

/// How one is mounted.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) transport: TransportChoice,
    pub(crate) readers: Readers,
    /// `None`: a fresh one, which goes with the mount.
    pub(crate) dir: Option<&'a Path>,
    /// Of /dev/fuse. `None`: it is opened.
    pub(crate) device: Option<OwnedFd>,
    /// A queue of which the kernel is to refuse entries.
    pub(crate) fault: Option<(usize, QueueFault)>,
}

/// `SODA_TEST_CORES=follow` has those who read the device go beside who asks.
impl Default for Setting<'_> {
    fn default() -> Self {
        let cores = std::env::var("SODA_TEST_CORES").map_or(Cores::Free, |cores| cores.parse().unwrap());
        Setting {
            transport: TransportChoice::Auto,
            readers: Readers { threads: 3, cores },
            dir: None,
            device: None,
            fault: None,
        }
    }
}

/// A mount of it.
#[derive(Debug)]
pub(crate) struct NullMount {
    pub(crate) fs: Arc<Null>,
    pub(crate) device: Arc<Device>,
    pub(crate) transport: Transport,
    pub(crate) agreement: Agreement,
    pub(crate) answers: Arc<dyn Sink>,
    serving: Option<Serving>,
    dir: PathBuf,
    own_dir: Option<tempfile::TempDir>,
}

impl NullMount {
    /// # Errors
    /// As [`Connection::negotiate`] and [`Connection::serve`]; nothing stays mounted.
    pub(crate) fn try_start(
        setting: Setting<'_>,
        runtime: &tokio::runtime::Handle,
    ) -> Result<NullMount, ConnectError> {
        let Setting { transport, readers, dir, device, fault } = setting;
        let own_dir = dir.is_none().then(new_dir);
        let dir = dir.or(own_dir.as_ref().map(|own| own.path())).unwrap().to_owned();
        let fd = device.unwrap_or_else(open_device);
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", fd.as_raw_fd());
        let data = std::ffi::CString::new(data).unwrap();
        rustix::mount::mount("null", &dir, "fuse.null", MountFlags::NOATIME, data.as_c_str()).unwrap();
        let device = Device::new(fd);
        let fs = NullFs::default();
        fs.0.dir.set(dir.clone()).unwrap();
        let served = Connection::negotiate(&device, transport, readers).and_then(|mut connection| {
            if let Some((queue, fault)) = fault {
                connection.spoil(queue, fault);
            }
            let (agreement, answers) = (connection.agreement(), connection.answers());
            Ok((connection.serve(Arc::new(fs.clone()), runtime)?, agreement, answers))
        });
        match served {
            Ok(((serving, transport), agreement, answers)) => {
                let (serving, fs) = (Some(serving), fs.0);
                Ok(NullMount { fs, device, transport, agreement, answers, serving, dir, own_dir })
            }
            Err(error) => {
                let _ = rustix::mount::unmount(&dir, UnmountFlags::DETACH);
                Err(error)
            }
        }
    }

    /// Goes on with one of another process.
    pub(crate) fn inherit(
        dir: &Path,
        from: Inherited,
        fs: NullFs,
        runtime: &tokio::runtime::Handle,
    ) -> NullMount {
        let (device, agreement, answers) = (from.device().clone(), from.agreement(), from.answers());
        let (serving, transport) = from.serve(Arc::new(fs.clone()), runtime);
        let (serving, dir, fs) = (Some(serving), dir.to_owned(), fs.0);
        NullMount { fs, device, transport, agreement, answers, serving, dir, own_dir: None }
    }

    pub(crate) fn serving(&self) -> &Serving {
        self.serving.as_ref().unwrap()
    }

    pub(crate) fn file(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn control(&self) -> PathBuf {
        control(&self.dir)
    }

    /// Requests without an answer.
    pub(crate) fn waiting(&self) -> usize {
        waiting(&self.dir)
    }

    /// To be kept while threads call: ends their calls if the test fails, so that it ends, too.
    pub(crate) fn rescue(&self) -> impl Drop + use<'_> {
        Rescue(self)
    }

    pub(crate) fn detach(&self) {
        rustix::mount::unmount(&self.dir, UnmountFlags::DETACH).unwrap();
    }

    /// Unmounts what is in use, and ends its requests.
    pub(crate) fn cut_off(&self) {
        rustix::mount::unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    }

    /// Unmounts, and waits until all threads have ended.
    pub(crate) fn end(mut self) {
        self.detach();
        self.serving.take().unwrap().join();
    }

    pub(crate) fn join(mut self) {
        self.serving.take().unwrap().join();
    }
}

pub(crate) fn open_device() -> OwnedFd {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// How many of those that /proc shows there are of /dev/fuse.
pub(crate) fn descriptors_in(fds: &Path) -> usize {
    let links = std::fs::read_dir(fds).unwrap().map(|fd| std::fs::read_link(fd.unwrap().path()));
    links.filter(|link| link.as_ref().is_ok_and(|file| file == Path::new("/dev/fuse"))).count()
}

pub(crate) fn new_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("soda-null.").tempdir().unwrap()
}

struct Rescue<'a>(&'a NullMount);

impl Drop for Rescue<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fs.go_on();
            let _ = std::fs::write(self.0.control().join("abort"), "1");
        }
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// # Panics
/// If it does not become true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < until, "TIMED OUT: {what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// All tests want root and /dev/fuse; as the system tests they fail without if `SODA_TEST_REQUIRE` is set.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        skip("needs root and /dev/fuse");
    }
    can
}

/// Says that a test does not run here, and why.
///
/// # Panics
/// If `SODA_TEST_REQUIRE` is set.
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var_os("SODA_TEST_REQUIRE").is_none(), "every test must run here, but: {reason}");
    println!("SKIPPED: {reason}");
}

/// Whether this process runs no test but `name`. If not, has another one do it: for what looks at a whole process.
///
/// # Panics
/// If the test fails there.
pub(crate) fn is_alone(name: &str) -> bool {
    is_alone_under(&[], name)
}

/// As [`is_alone`], run by this program.
pub(crate) fn is_alone_under(program: &[&str], name: &str) -> bool {
    const ALONE: &str = "SODA_TEST_ALONE";
    if std::env::var(ALONE).as_deref() == Ok(name) {
        return true;
    }
    let test = std::env::current_exe().unwrap();
    let mut words = program.iter().map(std::ffi::OsStr::new).chain([test.as_os_str()]);
    let mut command = std::process::Command::new(words.next().unwrap());
    let output = command.args(words).args(["--exact", name]).env(ALONE, name).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    false
}

/// Runs `test` on a mount over each transport that this machine has.
pub(crate) fn on_each(test: impl Fn(NullMount)) {
    if !can_mount() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    test(start(Transport::Dev, runtime.handle()));
    match start_uring(runtime.handle()) {
        Some(mount) => {
            test(mount);
            println!("tested over io_uring, too");
        }
        None => println!("over /dev/fuse only"),
    }
}

pub(crate) fn start(transport: Transport, runtime: &tokio::runtime::Handle) -> NullMount {
    let transport = TransportChoice::Only(transport);
    NullMount::try_start(Setting { transport, ..Setting::default() }, runtime).unwrap()
}

/// Whether io_uring is to be tested: most kernels have it switched off.
pub(crate) fn is_wanted() -> bool {
    std::env::var("SODA_TEST_TRANSPORT").as_deref() == Ok("uring")
}

pub(crate) fn start_uring(runtime: &tokio::runtime::Handle) -> Option<NullMount> {
    if !is_wanted() {
        return None;
    }
    let Some(_on) = UringOn::turn() else {
        skip("the switch of FUSE over io_uring is not ours to turn");
        return None;
    };
    Some(start(Transport::Uring, runtime))
}
