//! Who answers runs beside who asks.
//!
//! The problem: a request costs two wake-ups, of a thread that reads the device and of the caller, and Linux wakes each on a core
//! that is idle (`select_idle_sibling` in `kernel/sched/fair.c`), that is, on another one. To get a halted virtual core to run
//! takes 10 to 50 us; all else in a warm request takes 5. Looking for requests instead of sleeping costs a core, and the caller
//! is woken elsewhere all the same.
//!
//! So while *one* thread makes all requests, the readers are *beside* it: bound to its core, in `SCHED_IDLE`. A core that runs
//! nothing else counts as idle (`sched_idle_cpu`), so an answer wakes the caller where it slept. Going to `SCHED_IDLE` for the
//! write of each answer only was measured, too: the two calls take as long as what they save, and while the reader is on its
//! way to its next read, the caller waits behind it and is taken by the other core.
//!
//! A supervisor, which is neither bound nor in `SCHED_IDLE`, begins that ([`policy::Run`]), looks every [`TICK`] as long as it
//! lasts, and ends it at the first doubt ([`policy::Judge`]). Readers do no more than count.
//!
//! # What can go wrong
//! - *A reader beside the caller gets no core*, since another program computes there, or the caller: then it has 3 of 1,027
//!   parts of it. It may hold a lock that others wait for, or a section in which an answer is handed on
//!   (`soda_client::Answering`). So a look that finds one that wants to run, while not one request was read since the last
//!   look, ends the escort: the reader is made `SCHED_OTHER` and moved to another core. Who waits, waits for two looks and
//!   for the supervisor to get a core, which as a thread that sleeps most of the time it gets before those that compute. If it
//!   does not get to run either, Linux gives the reader its part within a second.
//! - *Another machine waits.* Before a recall waits for such sections, and as long as it does, it ends the escort itself
//!   ([`Escort::hurry`]).
//! - *What a reader starts* inherits all that: so every thread begins with `soda_client::threads::started`, and whoever asks for
//!   [`Cores::Follow`] has the threads of his runtime do so.
//! - *The daemon is killed* beside a program that computes: it may take a second to die.
//!
//! Nobody waits for the supervisor, and it does not sleep for good while a reader is beside anybody.

mod policy;
mod sched;
mod supervisor;
#[cfg(test)]
mod tests;
mod yielding;

pub(in crate::wire) use sched::check as check_idle;
pub(in crate::wire) use yielding::{Place as YieldingPlace, Yielding};

use crate::unpoisoned::Unpoisoned;
use policy::Run;
use rustix::thread::{CpuSet, Pid};
use sched::Policy;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often the supervisor looks. Less by far than the sections of `soda_client::Answering` may last.
const TICK: Duration = Duration::from_millis(2);

/// Where the threads run that answer the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cores {
    /// Where Linux has them run.
    #[default]
    Free,
    /// Beside who asks, while that is one thread. Needs CAP_SYS_NICE, two cores, and requests that come over the device;
    /// else it is as `Free`.
    Follow,
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cores::Free => "free",
            Cores::Follow => "follow",
        })
    }
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Cores, String> {
        match text {
            "free" => Ok(Cores::Free),
            "follow" => Ok(Cores::Follow),
            _ => Err(format!("`{text}` is none of free, follow")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unpoisoned()
}

/// Threads that answer the kernel and may wait for their core for long.
pub(crate) trait Hurry: Send + Sync + fmt::Debug {
    /// Somebody waits for what they are at: from here on they are scheduled as usual.
    fn hurry(&self);
}

/// What the readers of a mount and their supervisor share.
#[derive(Debug)]
pub(crate) struct Escort {
    /// Thread that is escorted, in the daemon's PID namespace; 0: none.
    caller: AtomicU32,
    /// The supervisor is there.
    is_possible: AtomicBool,
    run: Mutex<Run>,
    orders: Mutex<Orders>,
    ordered: Condvar,
    readers: Vec<Reader>,
}

#[derive(Debug, Default)]
struct Orders {
    /// Thread that should be escorted.
    wanted: Option<u32>,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct Reader {
    /// Requests of escorted callers.
    requests: AtomicU64,
    place: Mutex<Place>,
}

/// Where a reader runs. Changed under its lock only, by others: so the thread cannot end meanwhile.
#[derive(Debug, Default)]
struct Place {
    /// `None`: not begun, or ended.
    thread: Option<Pid>,
    /// While it is beside a caller.
    beside: Option<Beside>,
}

#[derive(Debug)]
struct Beside {
    core: usize,
    /// The cores it had before.
    before: CpuSet,
}

impl Place {
    fn bring(&mut self, core: usize) -> io::Result<()> {
        let Some(thread) = self.thread else { return Ok(()) };
        let before = match &self.beside {
            Some(beside) => beside.before,
            None => sched::cores_of(thread)?,
        };
        if !before.is_set(core) || before.count() < 2 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let is_new = self.beside.replace(Beside { core, before }).is_none();
        let mut only = CpuSet::new();
        only.set(core);
        sched::set_cores(thread, &only)?;
        if is_new {
            sched::set_policy(thread, Policy::Idle)?;
        }
        Ok(())
    }

    /// Lets it run as before, and at once elsewhere.
    fn free(&mut self) {
        let (Some(thread), Some(beside)) = (self.thread, self.beside.take()) else { return };
        if let Err(error) = sched::set_policy(thread, Policy::Ordinary) {
            tracing::error!(%error, "a thread stays in SCHED_IDLE");
        }
        let mut elsewhere = beside.before;
        elsewhere.unset(beside.core);
        let _ = sched::set_cores(thread, &elsewhere);
        if let Err(error) = sched::set_cores(thread, &beside.before) {
            // Its cpuset has others now, all of which it has then.
            tracing::debug!(%error, "a thread does not get its cores back");
        }
    }
}

impl Escort {
    fn new(readers: usize) -> Escort {
        Escort {
            caller: AtomicU32::new(0),
            is_possible: AtomicBool::new(false),
            run: Mutex::new(Run::new(Instant::now())),
            orders: Mutex::default(),
            ordered: Condvar::new(),
            readers: std::iter::repeat_with(Reader::default).take(readers).collect(),
        }
    }

    /// A request was read: whether its caller is the escorted one.
    fn request(&self, caller: u32) -> bool {
        let escorted = self.caller.load(Ordering::Relaxed);
        if escorted != 0 {
            if caller != escorted && caller != 0 {
                let _ = self.caller.compare_exchange(escorted, 0, Ordering::AcqRel, Ordering::Relaxed);
                self.ordered.notify_one();
            }
            return caller == escorted;
        }
        // Whoever is kept out of the lock is not alone.
        if self.is_possible.load(Ordering::Relaxed)
            && let Ok(mut run) = self.run.try_lock()
            && run.request(caller, Instant::now())
        {
            drop(run);
            lock(&self.orders).wanted = Some(caller);
            self.ordered.notify_one();
        }
        false
    }

    fn free_all(&self) {
        self.readers.iter().for_each(|reader| lock(&reader.place).free());
    }

    /// No reader is left.
    pub(super) fn end(&self) {
        lock(&self.orders).has_ended = true;
        self.ordered.notify_one();
    }
}

impl Hurry for Escort {
    /// Ends the escort, if there is one.
    fn hurry(&self) {
        if self.caller.load(Ordering::Acquire) != 0 && self.caller.swap(0, Ordering::AcqRel) != 0 {
            self.free_all();
        }
    }
}

/// Makes an escort for so many readers, and what its supervisor's thread does.
pub(super) fn escort(readers: usize) -> (Arc<Escort>, impl FnOnce() + Send + 'static) {
    let escort = Arc::new(Escort::new(readers));
    let supervised = escort.clone();
    (escort, move || supervisor::run(&supervised))
}

/// A reader's part in it, from its thread's begin to its end.
#[derive(Debug)]
pub(super) struct Seat {
    escort: Arc<Escort>,
    number: usize,
}

impl Seat {
    pub(super) fn take(escort: &Arc<Escort>, number: usize) -> Seat {
        lock(&escort.readers[number].place).thread = Some(rustix::thread::gettid());
        Seat { escort: escort.clone(), number }
    }

    /// To be called for each request that was read.
    pub(super) fn request(&self, caller: u32) {
        if self.escort.request(caller) {
            self.escort.readers[self.number].requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *lock(&self.escort.readers[self.number].place) = Place::default();
        sched::run_as_usual();
    }
}
