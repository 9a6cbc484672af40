//! A discrete-event simulation of protocols that keep caches consistent, for messages, delays and stale reads.
//!
//! An operation is carried out at the moment it is called, messages and all, unless somebody does not answer; what it would
//! have waited on the wire is counted as its delay, a round trip for each exchange that has to follow another. So the counts
//! are those of a network whose round trips are short beside the times between operations, as in the models.
//!
//! Leases are those of production: [`leases`] drives [`soda_lease::LeaseTable`] and [`soda_lease::Holder`]. The others are models
//! of what the papers say of them ([`rivals`], [`sprite`]). What the network, restarts and clocks do to the lease core is not
//! asked here but in `soda-sim`.

pub mod beside;
pub mod compare;
pub mod leases;
pub mod rivals;
pub mod sprite;

use crate::LabError;
use crate::trace::Replay;
use crate::workload::{Event, Workload};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What [`Outcome::consistency_rate`] has beside its mean, in words.
pub(crate) const INTERVAL: &str = "99 % confidence";

/// Stretches of equal length of which counts are taken apart, for confidence intervals.
pub const BATCHES: usize = 20;
/// Student's t with 19 degrees of freedom: between this and its negative 99 % of the time.
const STUDENT: f64 = 2.861;
/// Bytes of a message beside the file data in it.
const SMALL: u64 = 128;

/// What a message is for. An exchange counts as two messages of one kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A read goes to the server and brings a lease.
    Grant,
    /// A read goes to the server and brings none.
    Read,
    /// The server asks for a lease or breaks a callback, and the answers.
    Recall,
    /// A write goes through.
    Write,
    /// Delayed writes are told; AFS stores a whole file.
    Flush,
    /// A file is opened or closed at the server.
    OpenClose,
    /// "Is what I have still right?", and attributes that are asked for (AFS's TestAuth and GetFileStat, NFS's GETATTR).
    Validate,
    /// A whole file is fetched.
    Transfer,
    /// A lease goes back unasked, because it was not used.
    Release,
    /// A session is renewed, because its client had nothing else to send.
    Heartbeat,
}

impl Kind {
    pub const ALL: [Kind; 10] = [
        Kind::Grant,
        Kind::Read,
        Kind::Recall,
        Kind::Write,
        Kind::Flush,
        Kind::OpenClose,
        Kind::Validate,
        Kind::Transfer,
        Kind::Release,
        Kind::Heartbeat,
    ];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Grant => "grant",
            Kind::Read => "read",
            Kind::Recall => "recall",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::OpenClose => "open, close",
            Kind::Validate => "validate",
            Kind::Transfer => "transfer",
            Kind::Release => "release",
            Kind::Heartbeat => "heartbeat",
        }
    }

    /// The models count what only consistency needs: not the writes, nor a whole file's way to the server.
    pub fn is_for_consistency(self) -> bool {
        !matches!(self, Kind::Write | Kind::Flush)
    }
}

/// What a run has counted.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Outcome {
    pub reads: u64,
    /// System calls, whenever the server hears of them.
    pub writes: u64,
    pub opens: u64,
    /// Reads of what the cache had, though the server may have been asked whether it was right. Who fetches a file when it is
    /// opened has not had it for the first read of it.
    pub hits: u64,
    /// Messages by kind, both ways.
    pub messages: BTreeMap<Kind, u64>,
    pub bytes: u64,
    /// Reads that returned something older than the last write (as a system call) that had returned.
    pub stale_reads: u64,
    /// Sums, in seconds; of opens with their closes.
    pub read_delay: f64,
    pub write_delay: f64,
    pub open_delay: f64,
    /// Seconds simulated.
    pub duration: f64,
    /// Messages for consistency in each of [`BATCHES`] stretches.
    pub batches: Vec<u64>,
    /// Messages of all kinds in each of them.
    pub all_batches: Vec<u64>,
}

impl Outcome {
    /// Messages for consistency per second, and half the width of a 99 % confidence interval (batch means).
    pub fn consistency_rate(&self) -> (f64, f64) {
        self.rate_of(&self.batches)
    }

    /// The same for all messages: what the server has to handle.
    pub fn server_load(&self) -> (f64, f64) {
        self.rate_of(&self.all_batches)
    }

    fn rate_of(&self, batches: &[u64]) -> (f64, f64) {
        let length = self.duration / BATCHES as f64;
        let rates: Vec<f64> = batches.iter().map(|count| *count as f64 / length).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / (rates.len() - 1) as f64;
        (mean, STUDENT * (variance / rates.len() as f64).sqrt())
    }

    pub fn hit_ratio(&self) -> f64 {
        if self.reads == 0 { 0.0 } else { self.hits as f64 / self.reads as f64 }
    }

    /// Seconds a read took on average.
    pub fn mean_read_delay(&self) -> f64 {
        if self.reads == 0 { 0.0 } else { self.read_delay / self.reads as f64 }
    }

    pub fn mean_write_delay(&self) -> f64 {
        if self.writes == 0 { 0.0 } else { self.write_delay / self.writes as f64 }
    }

    /// Seconds that an open and its close took on average.
    pub fn mean_open_delay(&self) -> f64 {
        if self.opens == 0 { 0.0 } else { self.open_delay / self.opens as f64 }
    }

    /// Messages of all kinds.
    pub fn all(&self) -> u64 {
        self.messages.values().sum()
    }

    /// Of these, those that carry changes and would be there without any cache.
    pub fn changes(&self) -> u64 {
        let kinds = self.messages.iter();
        kinds.filter(|(kind, _)| !kind.is_for_consistency()).map(|(_, count)| count).sum()
    }
}

/// Where a read has its data from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Cache,
    Server,
}

/// What every protocol writes down.
#[derive(Debug)]
pub(crate) struct Book {
    out: Outcome,
    now: f64,
    /// Writes of each file that have returned, wherever what they wrote is: its true version. What the server has of it each
    /// protocol knows itself, so that one which forgets to bring it there is found out.
    versions: Vec<u64>,
    /// Seconds of a round trip.
    round_trip: f64,
}

impl Book {
    pub(crate) fn new(workload: &Workload, round_trip: f64) -> Book {
        let out = Outcome {
            duration: workload.duration,
            batches: vec![0; BATCHES],
            all_batches: vec![0; BATCHES],
            ..Outcome::default()
        };
        Book { out, now: 0.0, versions: vec![0; workload.files as usize], round_trip }
    }

    pub(crate) fn at(&mut self, now: f64) {
        self.now = now;
    }

    /// So many messages of a kind, without file data.
    pub(crate) fn messages(&mut self, kind: Kind, count: u64) {
        if count == 0 {
            return;
        }
        *self.out.messages.entry(kind).or_default() += count;
        self.out.bytes += count * SMALL;
        let batch = ((self.now / self.out.duration * BATCHES as f64) as usize).min(BATCHES - 1);
        self.out.all_batches[batch] += count;
        if kind.is_for_consistency() {
            self.out.batches[batch] += count;
        }
    }

    /// A request and its answer, one of which has so many bytes of file data.
    pub(crate) fn exchange_with_data(&mut self, kind: Kind, bytes: u64) {
        self.messages(kind, 2);
        self.out.bytes += bytes;
    }

    /// A file was opened, or closed.
    pub(crate) fn opened(&mut self, exchanges: u32) {
        self.out.opens += 1;
        self.out.open_delay += f64::from(exchanges) * self.round_trip;
    }

    pub(crate) fn closed(&mut self, exchanges: u32) {
        self.out.open_delay += f64::from(exchanges) * self.round_trip;
    }

    /// A read that returned `version` after `exchanges` round trips and another wait.
    pub(crate) fn read(&mut self, file: usize, version: u64, source: Source, exchanges: u32, waited: f64) {
        self.out.reads += 1;
        self.out.hits += u64::from(source == Source::Cache);
        self.out.stale_reads += u64::from(version < self.versions[file]);
        self.out.read_delay += f64::from(exchanges) * self.round_trip + waited;
    }

    /// A write has returned. What it wrote is the version that is returned here.
    pub(crate) fn write(&mut self, file: usize, exchanges: u32, waited: f64) -> u64 {
        self.out.writes += 1;
        self.out.write_delay += f64::from(exchanges) * self.round_trip + waited;
        self.versions[file] += 1;
        self.versions[file]
    }

    pub(crate) fn version(&self, file: usize) -> u64 {
        self.versions[file]
    }

    pub(crate) fn close(self) -> Outcome {
        self.out
    }
}

/// A protocol under simulation.
pub(crate) trait Protocol {
    fn event(&mut self, book: &mut Book, event: &Event);
    /// The workload is over.
    fn end(&mut self, _book: &mut Book) {}
}

/// Everything that can be compared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum System {
    /// Production leases, used as the paper or as Soda uses them: see [`leases::Use`].
    Leases(leases::Setting),
    /// Sprite: version numbers at open, caching off under concurrent write sharing, delayed writes of 30 s.
    Sprite,
    /// The paper's sSPRITE: the version number is asked for at each read.
    CheckEachRead,
    /// AFS v1: TestAuth at each open, whole files, store at close.
    AfsV1,
    /// AFS v2: callbacks, whole files, store at close.
    AfsV2,
    /// NFS: attributes of files and of directories are believed for so many seconds, and a file's are checked at open.
    Nfs { files: f64, directories: f64 },
}

/// Runs a system under a workload. Repeats exactly for a seed.
///
/// # Errors
/// As [`Workload::events`].
pub fn run(system: System, workload: &Workload, round_trip: f64, seed: u64) -> Result<Outcome, LabError> {
    let protocol = protocol(system, workload, &Tree::flat(workload.files as usize));
    Ok(carry_out(protocol, workload, &workload.events(seed)?, round_trip))
}

/// Runs a system under what was recorded.
pub fn replay(system: System, replay: &Replay, round_trip: f64) -> Outcome {
    let workload = Workload {
        files: u32::try_from(replay.parents.len()).unwrap_or(u32::MAX),
        ..Workload::of_one_file(replay.clients, (0.0, 0.0), replay.duration)
    };
    let tree = Tree::new(replay.parents.clone(), replay.born.clone());
    carry_out(protocol(system, &workload, &tree), &workload, &replay.events, round_trip)
}

fn protocol(system: System, workload: &Workload, tree: &Tree) -> Box<dyn Protocol> {
    match system {
        System::Leases(setting) => Box::new(leases::Leases::new(workload, tree.clone(), setting)),
        System::Sprite => Box::new(sprite::Sprite::new(workload)),
        System::CheckEachRead => Box::new(rivals::CheckEachRead::new(workload)),
        System::AfsV1 => Box::new(rivals::WholeFiles::new(workload, rivals::Validity::TestAuth)),
        System::AfsV2 => Box::new(rivals::WholeFiles::new(workload, rivals::Validity::Callback)),
        System::Nfs { files, directories } => {
            let believed = |object| if tree.directories.contains(&object) { directories } else { files };
            let believed = (0..workload.files as usize).map(believed).collect();
            Box::new(rivals::Nfs::new(workload, believed))
        }
    }
}

fn carry_out(
    mut protocol: Box<dyn Protocol>,
    workload: &Workload,
    events: &[Event],
    round_trip: f64,
) -> Outcome {
    let mut book = Book::new(workload, round_trip);
    for event in events {
        book.at(event.at);
        protocol.event(&mut book, event);
    }
    book.at(workload.duration);
    protocol.end(&mut book);
    book.close()
}

/// Where files lie, for deep leases.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// The directory of each object.
    pub(crate) parents: Vec<Option<usize>>,
    /// What is not there from the start.
    pub(crate) born: BTreeSet<usize>,
    /// Those that something is in.
    pub(crate) directories: BTreeSet<usize>,
}

impl Tree {
    fn new(parents: Vec<Option<usize>>, born: BTreeSet<usize>) -> Tree {
        let directories = parents.iter().flatten().copied().collect();
        Tree { parents, born, directories }
    }

    /// Files beside each other in a directory that nobody uses; it comes after them.
    fn flat(files: usize) -> Tree {
        let parents = (0..files).map(|_| Some(files)).chain([None]).collect();
        Tree::new(parents, BTreeSet::new())
    }
}

#[cfg(test)]
mod stories;
#[cfg(test)]
mod tests;
