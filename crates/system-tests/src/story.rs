//! Runs of the workload on a cell, with things that go wrong meanwhile, and what must be true in the end: one copy, no error
//! where nothing went wrong, no recall answered before the kernel had done its part.
//!
//! `SODA_SEED` repeats a run (`random`: one that nobody has seen); `SODA_ROUNDS` makes so many of each, with the seeds that
//! follow.

use crate::cell::{Cell, LONG_TERM, Network, PATIENCE, Setting, TERM, prerequisites};
use crate::linear::{Loss, assert_linearizable};
use crate::wait;
use crate::workload::{Descriptors, Pieces, Progress, Run, Syncs, Workload, now, seed};
use soda_model::Rng;
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, sleep};
use std::time::Duration;

/// Longer than any lease of a client that was frozen or cut off lives.
const PAST_TERM: Duration = Duration::from_secs(TERM.as_secs() * 2);
/// For how long a server that was killed is away.
const RESTART: Duration = Duration::from_millis(200);
/// Operations between two faults.
const MEANWHILE: u64 = 400;
/// A machine that lost its session hears of it once in each thread that holds a lock or was in the middle of a change, and
/// once more where a thread works on with a descriptor of before.
const ERRORS_PER_FAULT: usize = 12;

/// One of so many changes is delayed at least, where mounts delay them. As a rule it is one of three with two mounts and one of
/// five with four, who fight over few objects.
const LEAST_DELAYED: u64 = 16;

/// How many mounts there are, what they do, and with which numbers.
#[derive(Clone, Debug)]
pub struct Story {
    mounts: usize,
    readers: usize,
    network: Network,
    kernel: Option<OldKernel>,
    options: Vec<String>,
    delays: Delays,
    server: &'static [&'static str],
    seed: u64,
}

/// Whether mounts tell the server later what they did, and what they have meanwhile.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Delays {
    Never,
    InMemory,
    /// Logs in this directory.
    Logged(PathBuf),
}

/// A kernel whose rules the mounts go by, whatever the real one is (`SODA_FUSE_PRETEND`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldKernel {
    /// Without epochs of names.
    Linux6_15,
    /// Moreover without mappings of direct files.
    Linux6_5,
    /// Debian 12's; moreover without names that are only to be asked for again.
    Linux6_1,
}

impl OldKernel {
    fn version(self) -> &'static str {
        match self {
            OldKernel::Linux6_15 => "6.15",
            OldKernel::Linux6_5 => "6.5",
            OldKernel::Linux6_1 => "6.1",
        }
    }

    /// What keeps to the promises there.
    fn descriptors(self) -> Descriptors {
        match self {
            OldKernel::Linux6_15 => Descriptors::Any,
            OldKernel::Linux6_5 | OldKernel::Linux6_1 => Descriptors::OneWay,
        }
    }
}

/// Something that goes wrong. It lasts longer than any lease, unless it is a crash.
///
/// Those that begin together begin in this order and end in the opposite: a process that is started closes what the threads
/// have open, which a frozen client does not answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// kill -9, and another client at the same place.
    ClientCrash(usize),
    /// kill -9, and another server on the same data.
    ServerCrash,
    /// The cable is pulled.
    CutOff(usize),
    /// SIGSTOP: as a machine that swaps.
    ServerFrozen,
    /// SIGSTOP: as a machine that is suspended.
    ClientFrozen(usize),
}

/// Where a story is when something goes wrong.
#[derive(Debug)]
pub struct Stage<'a> {
    cell: &'a mut Cell,
    progress: &'a Progress,
    rng: Rng,
    delays: &'a Delays,
    /// Of each client, what went wrong with it so far.
    blows: Vec<usize>,
    /// Of each client that delays its writes, how many changes it has said to have lost, and when that was asked.
    said: Vec<(u64, u64)>,
    losses: Vec<Loss>,
}

impl Story {
    pub fn of(mounts: usize) -> Story {
        Story {
            mounts,
            readers: 0,
            network: Network::Loopback,
            kernel: None,
            options: vec!["-o".to_owned(), "write=through".to_owned()],
            delays: Delays::Never,
            server: &[],
            seed: 1,
        }
    }

    /// On the first so many mounts the threads only look.
    pub fn with_readers(self, readers: usize) -> Story {
        Story { readers, ..self }
    }

    /// Each mount in a network of its own, with a cable that can be pulled.
    pub fn with_cables(self) -> Story {
        Story { network: Network::Namespaces, ..self }
    }

    /// The mounts do what they would do there.
    pub fn on_kernel(self, kernel: OldKernel) -> Story {
        Story { kernel: Some(kernel), ..self }
    }

    /// The mounts tell the server later what nobody else looks at.
    pub fn writing_behind(self) -> Story {
        let options = vec!["-o".to_owned(), "write=behind".to_owned()];
        Story { options, delays: Delays::InMemory, ..self }
    }

    /// The same, with logs in this directory.
    pub fn writing_behind_with_logs_in(self, cache_dir: &Path) -> Story {
        let options = format!("write=behind,cache-dir={}", cache_dir.display());
        let delays = Delays::Logged(cache_dir.to_path_buf());
        Story { options: vec!["-o".to_owned(), options], delays, ..self }
    }

    /// No lease covers more than one object.
    pub fn with_node_leases_only(self) -> Story {
        Story { server: &["--deep-leases", "off"], ..self }
    }

    pub fn with_seed(self, seed: u64) -> Story {
        Story { seed, ..self }
    }

    /// Nothing goes wrong; each thread does so many operations, as fast as it can.
    ///
    /// # Panics
    /// If what was seen is wrong.
    pub fn undisturbed(self, operations: u64) {
        self.each_round(|round| {
            let cell = round.cell(LONG_TERM);
            let workload = round.workload(operations, Duration::from_micros(200), Syncs::Sometimes);
            let run = workload.run(&test_name(), &cell.roots(), |progress| {
                progress.complete(Duration::from_secs(120));
            });
            check(&cell, LONG_TERM, &run, &vec![0; round.mounts]);
            round.check_delays(&cell);
        });
    }

    /// The threads work for as long as the faults take: a few thousand operations, not as many as possible.
    ///
    /// # Panics
    /// If what was seen is wrong.
    pub fn disturbed(self, faults: impl Fn(&mut Stage<'_>)) {
        self.each_round(|round| {
            let mut cell = round.cell(TERM);
            let (roots, mut blows, mut losses) = (cell.roots(), Vec::new(), Vec::new());
            let workload = round.workload(20_000, Duration::from_millis(4), Syncs::AgainstLoss);
            let mut run = workload.run(&test_name(), &roots, |progress| {
                let rng = Rng::new(round.seed ^ 0xfa17);
                let (blows_so_far, said) = (vec![0; round.mounts], vec![(0, now()); round.mounts]);
                let mut stage = Stage {
                    cell: &mut cell,
                    progress,
                    rng,
                    delays: &round.delays,
                    blows: blows_so_far,
                    said,
                    losses: Vec::new(),
                };
                stage.meanwhile();
                faults(&mut stage);
                stage.meanwhile();
                (0..round.mounts).for_each(|client| stage.note_loss(client));
                (blows, losses) = (stage.blows, stage.losses);
            });
            eprintln!("  lost: {losses:?}");
            for loss in &losses {
                let mount = usize::from(loss.mount);
                let excused = blows[mount] > 0 || cell.mounts[mount].counter("sessions_lost") > 0;
                assert!(excused, "mount {mount} lost changes, and nothing had happened to it: {loss:?}");
            }
            run.history.losses = losses;
            check(&cell, TERM, &run, &blows);
            round.check_delays(&cell);
        });
    }

    /// Mounts that are to delay their writes did so with a good part of them: of what nobody delays the history says nothing. Of
    /// a daemon that was killed nothing is known.
    fn check_delays(&self, cell: &Cell) {
        if self.delays == Delays::Never {
            return;
        }
        let (mut here, mut through) = (0, 0);
        for (name, count) in cell.mounts.iter().flat_map(|mount| mount.counters()) {
            match name.as_str() {
                "here" => here += count,
                name if name.starts_with("through_") && !name.ends_with("_nanos") => through += count,
                _ => {}
            }
        }
        eprintln!("  {here} changes delayed, {through} not");
        assert!(
            here * LEAST_DELAYED >= here + through,
            "only {here} changes were delayed, {through} were not"
        );
    }

    fn each_round(self, round: impl Fn(&Story)) {
        if !prerequisites() {
            return;
        }
        let number = |name| env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
        let first = seed(self.seed);
        for seed in first..first + number("SODA_ROUNDS").unwrap_or(1) {
            round(&Story { seed, ..self.clone() });
        }
    }

    fn cell(&self, term: Duration) -> Cell {
        let mount_options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let (network, mount_options, server_options) = (self.network, mount_options.as_slice(), self.server);
        let kernel = self.kernel.map(OldKernel::version);
        let setting = Setting { network, mount_options, server_options, kernel, term, ..Setting::default() };
        Cell::assemble(self.mounts, &setting)
    }

    /// `syncs`: of mounts that delay their writes.
    fn workload(&self, operations: u64, pause: Duration, syncs: Syncs) -> Workload {
        let (seed, readers) = (self.seed, self.readers);
        let descriptors = self.kernel.map_or(Descriptors::Any, OldKernel::descriptors);
        // Who only reads reads page by page (SEMANTICS 6).
        let pieces = match descriptors {
            Descriptors::Any => Pieces::Calls,
            Descriptors::OneWay => Pieces::Words,
        };
        let syncs = if self.delays == Delays::Never { Syncs::Never } else { syncs };
        Workload { seed, threads_per_mount: 2, operations, pieces, descriptors, syncs, pause, readers }
    }
}

impl Stage<'_> {
    /// All of it goes wrong at once, and is mended at once.
    ///
    /// # Panics
    /// If the others do not go on meanwhile, or all of them afterwards.
    pub fn suffer(&mut self, faults: &[Fault]) {
        eprintln!("  {faults:?}");
        let hit: BTreeSet<usize> = faults.iter().filter_map(|fault| fault.client()).collect();
        hit.iter().for_each(|client| self.blows[*client] += 1);
        hit.iter().for_each(|client| self.note_loss(*client));
        let kept: Vec<usize> = hit.iter().map(|client| self.kept_logs(*client)).collect();
        let mut faults = faults.to_vec();
        faults.sort();
        faults.iter().for_each(|fault| self.begin(*fault));
        let lasts = faults.iter().any(|fault| !matches!(fault, Fault::ServerCrash | Fault::ClientCrash(_)));
        sleep(if lasts { PAST_TERM } else { RESTART });
        let server_is_there = faults.iter().all(|fault| fault.client().is_some());
        if server_is_there && hit.len() < self.blows.len() {
            self.progress.advance(MEANWHILE / 4, PATIENCE);
        }
        faults.iter().rev().for_each(|fault| self.end(*fault));
        for (client, kept) in hit.iter().zip(kept) {
            self.note_return(*client, faults.contains(&Fault::ClientCrash(*client)), kept);
        }
        self.meanwhile();
    }

    /// Another process serves the client's mount from now on: no fault, and nobody sees an error.
    ///
    /// # Panics
    /// If it does not, or the others do not go on.
    pub fn take_over(&mut self, client: usize) {
        eprintln!("  mount {client} is taken over");
        self.cell.mounts[client].take_over();
        self.meanwhile();
    }

    /// One to three things at once, by lot; never two with one client.
    pub fn suffer_something(&mut self) {
        let mut faults = Vec::new();
        match self.rng.below(4) {
            0 => faults.push(Fault::ServerCrash),
            1 => faults.push(Fault::ServerFrozen),
            _ => {}
        }
        let first = self.rng.below(self.blows.len() as u64) as usize;
        let clients = self.rng.below(3) as usize + usize::from(faults.is_empty());
        for number in 0..clients.min(2) {
            let client = (first + number) % self.blows.len();
            faults.push(match self.rng.below(3) {
                0 => Fault::ClientCrash(client),
                1 => Fault::ClientFrozen(client),
                _ => Fault::CutOff(client),
            });
        }
        self.suffer(&faults);
    }

    /// What the client says to have lost since it was asked last.
    fn note_loss(&mut self, client: usize) {
        if *self.delays == Delays::Never {
            return;
        }
        let (before, since) = self.said[client];
        let said = self.cell.mounts[client].counter("lost_records");
        let until = now();
        if said > before {
            self.losses.push(Loss { mount: client as u16, since, until });
        }
        self.said[client] = (said, until);
    }

    /// The client is back: what has it lost? A daemon that was killed took what was in its memory with it, which its programs
    /// were told by the mount's end; what it had logged is told by the next one, or kept and shown by `soda recover`.
    fn note_return(&mut self, client: usize, crashed: bool, kept_before: usize) {
        if *self.delays == Delays::Never {
            return;
        }
        // It has its session again, or another, when it answers: its leases of before have ended.
        let root = self.cell.root(client).to_path_buf();
        wait::run(Command::new("stat").arg(root), PATIENCE).expect_success("a client that is back");
        if !crashed {
            return self.note_loss(client);
        }
        let (_, since) = self.said[client];
        if *self.delays == Delays::InMemory || self.kept_logs(client) > kept_before {
            self.losses.push(Loss { mount: client as u16, since, until: now() });
        }
        self.said[client] = (0, now());
    }

    fn kept_logs(&self, client: usize) -> usize {
        let Delays::Logged(cache_dir) = self.delays else { return 0 };
        kept_logs(cache_dir, self.cell.root(client))
    }

    fn meanwhile(&self) {
        self.progress.advance(MEANWHILE, PATIENCE);
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::ServerCrash => self.cell.server.kill(),
            Fault::ServerFrozen => self.cell.server.freeze(),
            Fault::ClientCrash(client) => self.cell.mounts[client].crash(),
            Fault::ClientFrozen(client) => self.cell.mounts[client].freeze(),
            Fault::CutOff(client) => self.cell.cut(client),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::ServerCrash => self.cell.server.restart(),
            Fault::ServerFrozen => self.cell.server.thaw(),
            Fault::ClientCrash(client) => self.cell.mounts[client].start(),
            Fault::ClientFrozen(client) => self.cell.mounts[client].thaw(),
            Fault::CutOff(client) => self.cell.heal(client),
        }
    }
}

impl Fault {
    /// Whom it befalls; `None`: the server.
    fn client(self) -> Option<usize> {
        match self {
            Fault::ServerCrash | Fault::ServerFrozen => None,
            Fault::ClientCrash(client) | Fault::ClientFrozen(client) | Fault::CutOff(client) => Some(client),
        }
    }
}

fn check(cell: &Cell, term: Duration, run: &Run, blows: &[usize]) {
    assert_linearizable(&run.history);
    for (number, (errors, blows)) in run.errors.iter().zip(blows).enumerate() {
        let (count, some) = (errors.len(), &errors[..errors.len().min(5)]);
        // With the short term that faults need, an overloaded machine is one, too.
        let lost =
            if count > 0 && term == TERM { cell.mounts[number].counter("sessions_lost") as usize } else { 0 };
        assert!(
            count <= (blows + lost) * ERRORS_PER_FAULT,
            "mount {number}, which {blows} faults befell and {lost} losses of its session: {count} errors, as {some:?}\n\
             repeat with: {}",
            run.history.reproduce
        );
    }
    for mount in &cell.mounts {
        // Nobody maps a file here: nothing but a mistake can keep the kernel from doing what a recall asks for.
        assert_eq!(mount.counter("recalls_forced"), 0, "{}: answered too early", mount.root().display());
    }
}

/// Logs that are kept of one mount: beside each is the name of its client, `HOST:DIRECTORY`, in the second line.
fn kept_logs(cache_dir: &Path, root: &Path) -> usize {
    let kept = std::fs::read_dir(cache_dir.join("oplog/kept")).into_iter().flatten();
    let notes = kept.filter_map(|log| std::fs::read_to_string(log.ok()?.path().join("why")).ok());
    let end = format!(":{}", root.display());
    notes.filter(|note| note.lines().nth(1).is_some_and(|client| client.ends_with(&end))).count()
}

/// The test harness gives each test a thread with its name.
fn test_name() -> String {
    thread::current().name().unwrap_or("coherence").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_log_excuses_the_mount_whose_it_was() {
        let cache = tempfile::tempdir().unwrap();
        for (number, client) in ["vm:/cell/mount1", "vm:/cell/mount1", "vm:/cell/mount10"].iter().enumerate()
        {
            let dir = cache.path().join(format!("oplog/kept/{number}"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("why"), format!("1790000000\n{client}\nthe session ended\n")).unwrap();
        }
        let kept = |root: &str| kept_logs(cache.path(), Path::new(root));
        assert_eq!([kept("/cell/mount0"), kept("/cell/mount1"), kept("/cell/mount10")], [0, 2, 1]);
    }
}
