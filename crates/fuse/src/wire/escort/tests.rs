//! Readers that read nothing, on the scheduler of this machine.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use super::policy::Reason;
use super::supervisor::Duty;
use super::*;
use rustix::thread::gettid;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

/// Longer than anything takes on the slowest machine.
const LIMIT: Duration = Duration::from_secs(60);
const READERS: usize = 3;

type Job = Box<dyn FnOnce(&Seat) + Send>;

struct Readers {
    escort: Arc<Escort>,
    before: CpuSet,
    jobs: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

/// `None`: not on this machine.
fn readers() -> Option<(Readers, impl FnOnce() + Send + 'static)> {
    if let Err(why) = sched::check() {
        println!("SKIPPED: {why}");
        return None;
    }
    let (escort, supervise) = escort(READERS);
    let mut readers = Readers {
        before: sched::cores_of(gettid()).unwrap(),
        escort: escort.clone(),
        jobs: Vec::new(),
        threads: Vec::new(),
    };
    for number in 0..READERS {
        let (sender, jobs) = channel::<Job>();
        let escort = escort.clone();
        readers.jobs.push(sender);
        readers.threads.push(thread::spawn(move || {
            let seat = Seat::take(&escort, number);
            jobs.iter().for_each(|job| job(&seat));
        }));
    }
    (0..READERS).for_each(|number| readers.on(number, |_| ()));
    Some((readers, supervise))
}

impl Readers {
    /// Has a reader do something, and waits for it.
    fn on<T: Send + 'static>(&self, number: usize, job: impl FnOnce(&Seat) -> T + Send + 'static) -> T {
        let (sender, result) = channel();
        self.jobs[number].send(Box::new(move |seat| sender.send(job(seat)).unwrap())).unwrap();
        result.recv_timeout(LIMIT).unwrap()
    }

    /// Many requests of a thread.
    fn ask(&self, caller: u32) {
        (0..READERS)
            .for_each(|number| self.on(number, move |seat| (0..200).for_each(|_| seat.request(caller))));
    }

    fn all(&self, condition: impl Fn(Policy, CpuSet) -> bool) -> bool {
        self.escort.readers.iter().all(|reader| {
            let thread = lock(&reader.place).thread.unwrap();
            condition(sched::policy_of(thread).unwrap(), sched::cores_of(thread).unwrap())
        })
    }

    fn are_beside(&self) -> bool {
        self.all(|policy, cores| policy == Policy::Idle && cores.count() == 1)
    }

    fn are_free(&self) -> bool {
        self.all(|policy, cores| policy == Policy::Ordinary && cores == self.before)
    }

    fn bring(&self) {
        let core = (0..CpuSet::MAX_CPU).find(|core| self.before.is_set(*core)).unwrap();
        self.escort.readers.iter().for_each(|reader| lock(&reader.place).bring(core).unwrap());
        assert!(self.are_beside());
    }

    fn end(self) {
        drop(self.jobs);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.escort.end();
    }
}

fn own() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < until, "TIMED OUT: {what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn an_escort_is_ordered_for_who_asks() {
    let Some((readers, _)) = readers() else { return };
    let ordered = || {
        readers.ask(own());
        lock(&readers.escort.orders).wanted.take()
    };
    assert_eq!(ordered(), None, "there is no supervisor");
    readers.escort.is_possible.store(true, Ordering::Relaxed);
    wait_until("it is ordered", || ordered() == Some(own()));
    readers.end();
}

#[test]
fn readers_are_beside_who_asks_until_it_falls_silent() {
    let Some((readers, _)) = readers() else { return };
    assert!(readers.are_free());
    let duty = Duty::begin(&readers.escort, own()).unwrap();
    assert!(readers.are_beside());
    assert!(matches!(duty.run(), Reason::Silence | Reason::Crowd));
    assert!(readers.are_free());
    readers.end();
}

#[test]
fn nobody_has_an_escort_who_is_not_alone() {
    let Some((readers, _)) = readers() else { return };
    let duty = Duty::begin(&readers.escort, own()).unwrap();
    readers.ask(own());
    readers.ask(0);
    assert_eq!(readers.escort.caller.load(Ordering::Relaxed), own());
    readers.on(0, |seat| seat.request(u32::MAX));
    assert_eq!(readers.escort.caller.load(Ordering::Relaxed), 0);
    assert_eq!(duty.run(), Reason::Company);
    assert!(readers.are_free());
    readers.end();
}

#[test]
fn who_has_ended_has_no_escort() {
    let Some((readers, _)) = readers() else { return };
    let (tell, told) = channel();
    let (end, ends) = channel::<()>();
    let caller = thread::spawn(move || {
        tell.send(own()).unwrap();
        let _ = ends.recv();
    });
    let duty = Duty::begin(&readers.escort, told.recv().unwrap()).unwrap();
    drop(end);
    caller.join().unwrap();
    assert_eq!(duty.run(), Reason::Gone);
    assert!(readers.are_free());
    assert!(Duty::begin(&readers.escort, u32::MAX).is_err());
    readers.end();
}

#[test]
fn the_supervisor_ends_with_the_readers() {
    let Some((readers, supervise)) = readers() else { return };
    let supervisor = thread::spawn(supervise);
    readers.ask(own());
    readers.end();
    wait_until("it has ended", || supervisor.is_finished());
    supervisor.join().unwrap();
}

#[test]
fn who_is_in_a_hurry_ends_it_at_once() {
    let Some((readers, _)) = readers() else { return };
    readers.bring();
    readers.escort.caller.store(own(), Ordering::Relaxed);
    readers.escort.hurry();
    assert!(readers.are_free());
    readers.end();
}

#[test]
fn what_a_reader_starts_beside_a_caller_runs_as_usual() {
    let Some((readers, _)) = readers() else { return };
    readers.bring();
    let how = || (sched::policy_of(gettid()).unwrap(), sched::cores_of(gettid()).unwrap());
    let (inherited, started) = readers.on(0, move |_| {
        let start = move || {
            let inherited = how();
            soda_client::threads::started();
            (inherited, how())
        };
        thread::spawn(start).join().unwrap()
    });
    assert_eq!((inherited.0, inherited.1.count()), (Policy::Idle, 1));
    assert_eq!(started, (Policy::Ordinary, readers.before));
    readers.end();
}

#[test]
fn a_reader_that_wants_to_run_is_seen_and_one_that_sleeps_is_not() {
    let Some((readers, _)) = readers() else { return };
    let goes_on = Arc::new(AtomicBool::new(true));
    let keeps = goes_on.clone();
    let spin = move |_: &Seat| {
        while keeps.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let wants_to_run = |number: usize| supervisor::wants_to_run(&readers.escort.readers[number]);
    wait_until("all sleep", || (0..READERS).all(|number| !wants_to_run(number)));
    readers.jobs[1].send(Box::new(spin)).unwrap();
    wait_until("one works", || wants_to_run(1));
    assert!(wants_to_run(1) && !wants_to_run(0));
    goes_on.store(false, Ordering::Relaxed);
    readers.end();
}

#[test]
fn a_reader_is_not_bound_to_a_core_that_it_may_not_use() {
    let Some((readers, _)) = readers() else { return };
    let mut place = lock(&readers.escort.readers[0].place);
    let none = (0..CpuSet::MAX_CPU).find(|core| !readers.before.is_set(*core)).unwrap();
    assert_eq!(place.bring(none).unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert!(place.beside.is_none());
    drop(place);
    assert!(readers.are_free());
    readers.end();
}
