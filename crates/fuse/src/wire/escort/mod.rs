//! Who answers runs beside who asks.
//!
//! The problem: a request costs two wake-ups, of a thread that reads the device and of the caller, and Linux wakes each on a core
//! that is idle (`select_idle_sibling` in `kernel/sched/fair.c`), that is, on another one. To get a halted virtual core to run
//! takes 20 to 50 us; all else in a warm request takes 5. Looking for requests instead of sleeping costs a core, and the caller
//! is woken elsewhere all the same.
//!
//! So while *one* thread makes all requests, the readers are bound to its core, and an answer is *handed over*: its write(2) is
//! done in `SCHED_IDLE`. A core that runs nothing else counts as idle (`sched_idle_cpu`): the caller is woken where it slept,
//! and takes the core from the writer.
//!
//! A supervisor, which is never bound and always in `SCHED_OTHER`, begins that ([`policy::Run`]), looks every [`TICK`] as long
//! as it lasts, and ends it at the first doubt ([`policy::Judge`]). It alone binds.
//!
//! # Where each thread is
//! - *Bound, in `SCHED_OTHER`*: a reader from [`Place::bind`] to the end of the escort. It gets the core as any other program on it
//!   does; other readers go on reading if it is held up. If the supervisor does not get to run, that is all that happens.
//! - *In `SCHED_IDLE`*: a reader from before to after the write of one small answer to the escorted caller, in the first poll of its
//!   request: [`HandingOver`]. It holds no lock there; what others may wait for is the section in which the client hands on what
//!   the kernel may keep (`soda_client::Answering`), and who waits for it calls [`Escort::hurry`]. The caller may take the core for
//!   as long as it computes, another program for all but 3 of 1,027 parts. Whoever is found there in two looks
//!   ([`Place::tend`]) is made `SCHED_OTHER` and moved to another core. If the supervisor does not get to run either, Linux
//!   gives the reader its part of the core within a second.
//! - *Neither*: all others. What a reader starts begins with `soda_client::cores::run_anywhere`.
//!
//! Nobody waits for the supervisor. It goes to sleep when no reader is bound and none is in `SCHED_IDLE`, not before: a reader
//! says that it hands over *before* it looks whether there is an escort, the supervisor ends the escort *before* it looks who
//! hands over.

mod policy;
mod sched;
mod supervisor;

use super::device::Device;
use super::{Sink, Unique, abi};
use policy::Run;
use rustix::thread::{CpuSet, Pid};
use sched::Policy;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often the supervisor looks. Less than the sections of `soda_client::Answering` may last by far.
const TICK: Duration = Duration::from_millis(2);
/// Longer answers take long to copy, and a wake-up is little beside that. Bytes.
const SMALL: usize = 16 << 10;

/// Where the threads run that answer the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cores {
    /// Beside who asks, while that is one thread. Needs CAP_SYS_NICE, two cores, and requests that come over the device.
    #[default]
    Follow,
    /// Where Linux has them run.
    Free,
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cores::Follow => "follow",
            Cores::Free => "free",
        })
    }
}

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Cores, String> {
        match text {
            "follow" => Ok(Cores::Follow),
            "free" => Ok(Cores::Free),
            _ => Err(format!("`{text}` is none of follow, free")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
    /// Odd while an answer is handed over; else no more than how often.
    handovers: AtomicU32,
    /// Requests of escorted callers.
    requests: AtomicU64,
    place: Mutex<Place>,
}

impl Reader {
    fn is_handing_over(&self) -> bool {
        self.handovers.load(Ordering::SeqCst) % 2 == 1
    }

    /// Whoever is handing over does not go on doing so for want of a core.
    fn rescue_if_handing_over(&self) {
        if self.is_handing_over() {
            lock(&self.place).rescue();
        }
    }
}

/// Where a reader runs. Changed under its lock only, by whoever it is not: so the thread cannot end meanwhile.
#[derive(Debug, Default)]
struct Place {
    /// `None`: not begun, or ended.
    thread: Option<Pid>,
    /// The cores it had before it was bound, as long as it is not known to have them back.
    before: Option<CpuSet>,
    core: usize,
    /// Moved to another core for the sake of what it does.
    is_away: bool,
    /// At the last look.
    handovers: u32,
}

impl Place {
    fn bind(&mut self, core: usize) -> io::Result<()> {
        let Some(thread) = self.thread else { return Ok(()) };
        let before = match self.before {
            Some(before) => before,
            None => sched::cores_of(thread)?,
        };
        if !before.is_set(core) || before.count() < 2 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut only = CpuSet::new();
        only.set(core);
        sched::set_cores(thread, &only)?;
        (self.before, self.core, self.is_away) = (Some(before), core, false);
        Ok(())
    }

    /// Has it go on elsewhere, and not as the last of all.
    fn rescue(&mut self) {
        let Some(thread) = self.thread else { return };
        // It ends here only with what it was before, so an error is of no consequence.
        let _ = sched::set_policy(Some(thread), Policy::Ordinary);
        let Some(mut elsewhere) = self.before else { return };
        elsewhere.unset(self.core);
        let _ = sched::set_cores(thread, &elsewhere);
        self.is_away = true;
    }

    /// Looks after it during an escort.
    fn tend(&mut self, handovers: u32, core: usize) -> io::Result<()> {
        let is_stuck = handovers % 2 == 1 && handovers == self.handovers;
        self.handovers = handovers;
        if is_stuck {
            self.rescue();
        } else if handovers % 2 == 0 && (self.is_away || self.core != core) {
            return self.bind(core);
        }
        Ok(())
    }

    /// Gives it its cores back. A thread that had to be moved has gone where it had to go.
    fn free(&mut self) {
        if let (Some(thread), Some(before)) = (self.thread, self.before.take()) {
            if let Err(error) = sched::set_cores(thread, &before) {
                // Its cpuset has others now.
                tracing::debug!(%error, "a thread does not get its cores back");
                let _ = soda_client::cores::free().map(|free| sched::set_cores(thread, &free));
            }
        }
        self.is_away = false;
    }
}

thread_local! {
    /// The request in hand that may be handed over; 0: none.
    static IN_HAND: Cell<Unique> = const { Cell::new(0) };
}

/// What is still to be answered on this thread is not handed over: somebody may wait for what it holds.
pub(crate) fn hand_over_no_more() {
    IN_HAND.set(0);
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
            if caller == escorted {
                return true;
            }
            if caller != 0 {
                let _ = self.caller.compare_exchange(escorted, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
            return false;
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

    /// Somebody waits for the sections in which answers are handed on.
    pub(crate) fn hurry(&self) {
        self.readers.iter().for_each(Reader::rescue_if_handing_over);
    }

    /// No reader is left.
    pub(super) fn end(&self) {
        lock(&self.orders).has_ended = true;
        self.ordered.notify_one();
    }
}

/// Makes an escort for so many readers, and lets `start` start its supervisor.
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
    answers: Arc<dyn Sink>,
}

impl Seat {
    pub(super) fn take(escort: &Arc<Escort>, number: usize, device: &Arc<Device>) -> Seat {
        lock(&escort.readers[number].place).thread = Some(rustix::thread::gettid());
        let answers = HandingOver { device: device.clone(), escort: escort.clone(), number };
        Seat { escort: escort.clone(), number, answers: Arc::new(answers) }
    }

    /// Where the answer to a request goes that has just been read. To be called for each.
    pub(super) fn answers_to(&self, caller: u32, unique: Unique) -> Option<Arc<dyn Sink>> {
        if !self.escort.request(caller) {
            IN_HAND.set(0);
            return None;
        }
        self.escort.readers[self.number].requests.fetch_add(1, Ordering::Relaxed);
        IN_HAND.set(unique);
        Some(self.answers.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *lock(&self.escort.readers[self.number].place) = Place::default();
    }
}

/// The device, for answers to the escorted caller.
#[derive(Debug)]
struct HandingOver {
    device: Arc<Device>,
    escort: Arc<Escort>,
    number: usize,
}

impl HandingOver {
    /// `None`: to be answered as usual.
    fn begin(&self, unique: Unique, len: usize) -> Option<Handover<'_>> {
        if len > SMALL || IN_HAND.get() != unique {
            return None;
        }
        let handover = Handover::begin(&self.escort.readers[self.number].handovers);
        let is_escorted = self.escort.caller.load(Ordering::SeqCst) != 0;
        (is_escorted && sched::set_policy(None, Policy::Idle).is_ok()).then_some(handover)
    }
}

impl Sink for HandingOver {
    fn send(&self, unique: Unique, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = abi::OUT_HEADER_LEN + parts.iter().map(|part| part.len()).sum::<usize>();
        let _handover = self.begin(unique, len);
        self.device.send(unique, error, parts)
    }
}

/// From before a thread goes to `SCHED_IDLE` until after it has come back.
struct Handover<'a>(&'a AtomicU32);

impl Handover<'_> {
    fn begin(handovers: &AtomicU32) -> Handover<'_> {
        handovers.fetch_add(1, Ordering::SeqCst);
        Handover(handovers)
    }
}

impl Drop for Handover<'_> {
    fn drop(&mut self) {
        if let Err(error) = sched::set_policy(None, Policy::Ordinary) {
            tracing::error!(%error, "a thread cannot go back to SCHED_OTHER");
        }
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
