//! What a run is made of. Everything follows from the seed and from these choices.

use crate::layout::{Layout, Tree};
use crate::sabotage::Sabotage;
use soda_lease::space::Full;
use soda_lease::table::{BackOff, DeepLeases, Equation8, ObjectTerm};
use soda_lease::{DriftMargin, TableConfig};
use soda_model::Rng;
use soda_oplog::reserve::Most;
use soda_protocol::DigestSlots;
use soda_types::Slot;
use std::time::Duration;

/// A run: the same seed and choices give the same run, event by event.
#[derive(Clone, PartialEq, Debug)]
pub struct SimConfig {
    pub seed: u64,
    pub shape: Shape,
    /// Simulated time with faults; healing and the last operations come on top.
    pub faulty: Duration,
    /// Simulated time after healing in which clients go on working.
    pub calm: Duration,
    pub clients: usize,
    /// Threads of each client that do one operation after the other.
    pub processes: usize,
    /// Inodes.
    pub objects: u8,
    /// Things in one inode that are read and changed by themselves: the names of a directory.
    pub cells: u8,
    /// Mean time between two operations of a process.
    pub think: Duration,
    /// Mean time between two faults.
    pub fault_every: Duration,
    /// Of 100 faults, how many are crashes of the server before the others are drawn.
    pub server_crashes_percent: u64,
    /// Of 100 recalls, how many take a client some terms to work on.
    pub slow_recalls_percent: u64,
    /// Of 100 operations, how many change something.
    pub changes_percent: u64,
    /// With delayed writes: one operation in so many is an fsync. Each makes durable whatever the server has.
    pub fsync_every: u64,
    pub table: TableConfig,
    pub margin: DriftMargin,
    /// Each node's clock runs up to this much fast or slow. Twice this may at most be the margin's.
    pub drift_ppm: u32,
    pub order: Order,
    pub copies: Copies,
    pub heirs: Heirs,
    pub writes: Writes,
    pub locks: FileLocks,
    pub room: Option<Room>,
    pub extent: Extent,
    pub sabotage: Sabotage,
}

/// What the server has room for, and sets aside for its clients; without it neither space is counted nor numbers of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes.
    pub capacity: u64,
    /// What a client has set aside for what it does and tells later.
    pub reserve: Most,
    /// It gives that back when it has not needed it for so long.
    pub idle: Duration,
    pub full: Full,
}

/// Whether programs lock files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileLocks {
    Unused,
    /// Also without asking, where the server lets a client, or the client has just made the file.
    Used,
}

/// How much of what clients can do they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    All,
    /// What a seed stood for at first: one digest after the other, fsync at the server and in two steps, no file locks.
    Plain,
}

/// How clients change things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// By asking the server each time.
    Through,
    /// Under write leases, and the server hears of it later.
    Behind(Behind),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    pub log: LogPlace,
    pub fsync: Fsync,
    pub syncs: Syncs,
    /// What has waited for so long is sent.
    pub age: Duration,
    /// As soon as so many records wait, they are sent.
    pub records: u64,
    /// Most records of a digest.
    pub largest: usize,
    /// Most digests that are under way at a time.
    pub digests: u16,
    /// How often the server syncs by itself.
    pub sync_every: Duration,
}

/// Where a client keeps its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogPlace {
    /// A crash takes it.
    Memory,
    /// After a crash it is sent, if the session still stands.
    Disk,
}

/// With what fsync is content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fsync {
    /// The server's disk has it.
    Server,
    /// The client's has, where that is enough; then the client's machine loses its power at times, too. For logs on a disk.
    Local,
}

/// When a client asks for the sync of an fsync that has something to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syncs {
    /// Along with the digest that tells the last of it.
    Along,
    /// When that has its answer.
    Afterwards,
}

/// What is made of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// [`SimConfig::from_seed`]
    Usual,
    /// [`SimConfig::crowded`]
    Crowded,
    /// [`SimConfig::behind`]
    Behind,
    /// [`SimConfig::harsh`]
    Harsh,
    /// [`SimConfig::cuts`]
    Cuts,
    /// [`SimConfig::deep`]
    Deep,
    /// [`SimConfig::logged`]
    Logged,
    /// [`SimConfig::full`]
    Full,
}

/// What a connection promises about the order of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// TCP.
    Kept,
    /// Messages overtake each other, in both directions: the core does not rely on the order. Only the hello of a connection
    /// comes first.
    Scrambled,
}

/// Whether messages arrive more than once. Within a connection TCP does not do that; but a client sends again what was not
/// answered, and the server may read the old connection after the new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copies {
    Never,
    /// Some do, much later at times. A copy for the server arrives even when its connection is gone.
    Some,
}

/// Whether another process goes on with a client's session and leases, by a take-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heirs {
    Never,
    /// At each new connection on which nothing is left to be asked again, or told. Of its leases some pass, all as a rule; those
    /// that are being asked for do not.
    AtQuietConnections,
    /// The same, and with a mistake that is put in on purpose.
    Mistaken(TakeOver),
}

/// A mistake in a take-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOver {
    /// The kernel drops nothing of what it was told before.
    KernelKeeps,
    /// What passes was written down long before, while recalls were still answered.
    WrittenDownTooEarly,
}

impl SimConfig {
    /// A run whose shape is drawn from the seed too: number of clients, terms, policies, order of messages.
    pub fn from_seed(seed: u64) -> SimConfig {
        let mut rng = Rng::new(seed ^ 0x50da_50da);
        let term = Duration::from_secs(rng.pick(&[2, 5, 10]));
        let mut table = TableConfig::with_term(term);
        table.object_term = rng.pick(&[
            ObjectTerm::Session,
            ObjectTerm::Session,
            ObjectTerm::Session,
            ObjectTerm::For(term / 2),
            ObjectTerm::For(term * 2),
            ObjectTerm::None,
        ]);
        if rng.chance(1, 3) {
            table.equation_8 = Equation8::Off;
        }
        if rng.chance(1, 3) {
            table.back_off = BackOff::Off;
        }
        if rng.chance(1, 5) {
            table.max_leases_per_session = 3;
        }
        SimConfig {
            seed,
            shape: Shape::Usual,
            faulty: term * 20,
            calm: term * 4,
            clients: 2 + rng.below(4) as usize,
            processes: 1 + rng.below(3) as usize,
            objects: 2 + rng.below(5) as u8,
            cells: 1 + rng.below(3) as u8,
            think: rng.pick(&[Duration::from_millis(30), Duration::from_millis(300), term / 4]),
            fault_every: rng.pick(&[term / 5, term, term * 3]),
            server_crashes_percent: 0,
            slow_recalls_percent: 1,
            changes_percent: rng.pick(&[5, 20, 50]),
            fsync_every: 20,
            table,
            margin: DriftMargin::default(),
            drift_ppm: 500,
            order: rng.pick(&[Order::Kept, Order::Kept, Order::Scrambled]),
            copies: rng.pick(&[Copies::Never, Copies::Some]),
            heirs: Heirs::Never,
            writes: Writes::Through,
            locks: FileLocks::Unused,
            room: None,
            extent: Extent::All,
            sabotage: Sabotage::None,
        }
    }

    /// Many programs on two inodes with hardly a pause: queues, convoys and crossing recalls.
    pub fn crowded(seed: u64) -> SimConfig {
        let usual = SimConfig::from_seed(seed);
        let term = Duration::from_secs(1);
        let table = TableConfig {
            object_term: usual.table.object_term,
            equation_8: usual.table.equation_8,
            back_off: usual.table.back_off,
            ..TableConfig::with_term(term)
        };
        SimConfig {
            shape: Shape::Crowded,
            faulty: term * 10,
            calm: term,
            clients: 6,
            processes: 4,
            objects: 2,
            cells: 2,
            think: Duration::from_millis(3),
            fault_every: term / 2,
            changes_percent: 40,
            table,
            ..usual
        }
    }

    /// Clients that are ahead of the server: a small tree, operations that are logged and sent later, power cuts.
    pub fn behind(seed: u64) -> SimConfig {
        let usual = SimConfig::from_seed(seed);
        let mut rng = Rng::new(seed ^ 0xbe41_be41);
        let term = usual.table.session_term;
        let log = rng.pick(&[LogPlace::Memory, LogPlace::Disk]);
        let behind = Behind {
            log,
            fsync: match log {
                LogPlace::Memory => Fsync::Server,
                LogPlace::Disk => Rng::new(seed ^ 0xf5f5_f5f5).pick(&[Fsync::Server, Fsync::Local]),
            },
            syncs: Syncs::Along,
            age: rng.pick(&[term / 20, term / 4, term]),
            records: rng.pick(&[4, 1000]),
            largest: rng.pick(&[2, 1000]),
            digests: Rng::new(seed ^ 0xd16e_d16e).pick(&[1, 2, 3, 8]),
            sync_every: rng.pick(&[Duration::from_millis(100), Duration::from_secs(1), term]),
        };
        // A lease with a term of its own can end without a recall: nothing is delayed under it.
        let object_term = match usual.table.object_term {
            ObjectTerm::None if rng.chance(1, 4) => ObjectTerm::None,
            _ => ObjectTerm::Session,
        };
        SimConfig {
            shape: Shape::Behind,
            clients: 2 + rng.below(3) as usize,
            objects: 3 + rng.below(4) as u8,
            cells: 2 + rng.below(2) as u8,
            think: rng.pick(&[Duration::from_millis(30), Duration::from_millis(300)]),
            changes_percent: rng.pick(&[20, 50, 80]),
            table: TableConfig { object_term, ..usual.table },
            writes: Writes::Behind(behind),
            // They rest on messages that come in their order.
            locks: match usual.order {
                Order::Kept => Rng::new(seed ^ 0x10c5_10c5).pick(&[FileLocks::Used, FileLocks::Unused]),
                Order::Scrambled => FileLocks::Unused,
            },
            ..usual
        }
    }

    /// As [`SimConfig::behind`], with a server that seldom syncs and often fails: more is lost in power cuts.
    pub fn harsh(seed: u64) -> SimConfig {
        let config = SimConfig::behind(seed);
        let term = config.table.session_term;
        let writes = match config.writes {
            Writes::Through => Writes::Through,
            Writes::Behind(behind) => {
                Writes::Behind(Behind { age: term / 20, records: 4, sync_every: term * 10, ..behind })
            }
        };
        let fsync_every = Rng::new(seed ^ 0x4a25_4a25).pick(&[20, 1000]);
        let (fault_every, think) = (term / 5, Duration::from_millis(30));
        SimConfig { shape: Shape::Harsh, fault_every, think, fsync_every, writes, ..config }
    }

    /// Two busy clients that change most of what they touch, with leases whenever they want them, and a server that crashes
    /// again and again: long enough in between for changes on top of each other, and too short for all of them to be synced.
    pub fn cuts(seed: u64) -> SimConfig {
        let config = SimConfig::harsh(seed);
        let term = config.table.session_term;
        let table = TableConfig {
            object_term: ObjectTerm::Session,
            equation_8: Equation8::Off,
            back_off: BackOff::Off,
            ..TableConfig::with_term(term)
        };
        SimConfig {
            shape: Shape::Cuts,
            clients: 2,
            processes: 2,
            objects: 3,
            changes_percent: 80,
            fsync_every: 60,
            fault_every: term / 2,
            server_crashes_percent: 95,
            table,
            ..config
        }
    }

    /// As [`SimConfig::behind`] with deep leases: a tree of several levels in which each client has a corner to be busy in, hard
    /// links, moves of directories. Logs are in memory: a crash takes them.
    pub fn deep(seed: u64) -> SimConfig {
        let config = match seed % 3 {
            0 => SimConfig::harsh(seed),
            _ => SimConfig::behind(seed),
        };
        let mut rng = Rng::new(seed ^ 0xdee9_dee9);
        let writes = match config.writes {
            Writes::Through => Writes::Through,
            Writes::Behind(behind) => {
                Writes::Behind(Behind { log: LogPlace::Memory, fsync: Fsync::Server, ..behind })
            }
        };
        let deep_leases =
            DeepLeases::On { after: 1 + rng.below(4) as u32, max_holes: 3 + rng.below(6) as usize };
        let equation_8 = if rng.chance(1, 3) { config.table.equation_8 } else { Equation8::Off };
        let max_leases_per_session = rng.pick(&[6, 1_000_000, 1_000_000, 1_000_000]);
        let object_term = ObjectTerm::Session;
        let table =
            TableConfig { object_term, deep_leases, equation_8, max_leases_per_session, ..config.table };
        SimConfig {
            shape: Shape::Deep,
            objects: 2 * (2 + rng.below(3) as u8),
            cells: 2 + rng.below(3) as u8,
            table,
            writes,
            ..config
        }
    }

    /// As [`SimConfig::deep`], with logs that survive a crash of their clients: what was done under deep leases is told by the
    /// client's next life, which knows nothing of them.
    pub fn logged(seed: u64) -> SimConfig {
        let config = SimConfig::deep(seed);
        let writes = match config.writes {
            Writes::Through => Writes::Through,
            Writes::Behind(behind) => Writes::Behind(Behind { log: LogPlace::Disk, ..behind }),
        };
        SimConfig { shape: Shape::Logged, writes, ..config }
    }

    /// As [`SimConfig::behind`], with clients that have numbers of inodes and space set aside, and a disk at the server that is
    /// full now and then: of space that is set aside, and of what they have written.
    pub fn full(seed: u64) -> SimConfig {
        const CHANGE: u64 = 1100;
        const KEPT: u64 = 300;
        let config = match seed % 4 {
            0 => SimConfig::deep(seed),
            1 => SimConfig::harsh(seed),
            _ => SimConfig::behind(seed),
        };
        let mut rng = Rng::new(seed ^ 0xf011_f011);
        let term = config.table.session_term;
        let reserve = Most { inodes: rng.pick(&[2, 6, 40]), bytes: CHANGE * rng.pick(&[4, 12, 40]) };
        let written = KEPT * u64::from(config.objects) * u64::from(config.cells);
        let set_aside = reserve.bytes * config.clients as u64;
        let capacity = written + set_aside * rng.pick(&[1, 2, 4]) / 2;
        let idle = rng.pick(&[term / 10, term * 2]);
        let full = rng.pick(&[Full::SaysTheStore, Full::IsSaidHere]);
        let room = Some(Room { capacity, reserve, idle, full });
        let changes_percent = rng.pick(&[50, 80]);
        // Questions for space rest on messages that come in their order, once.
        SimConfig { shape: Shape::Full, changes_percent, room, order: Order::Kept, ..config }
    }

    pub fn layout(&self) -> Layout {
        let tree = match self.table.deep_leases {
            DeepLeases::Off => Tree::Flat,
            DeepLeases::On { .. } => Tree::Deep,
        };
        Layout { objects: self.objects.into(), cells: self.cells, tree }
    }

    pub fn delayed(&self) -> Option<Behind> {
        match self.writes {
            Writes::Through => None,
            Writes::Behind(behind) => Some(behind),
        }
    }

    /// Slots of a session for its digests.
    pub fn digest_slots(&self) -> DigestSlots {
        let count = match self.delayed() {
            Some(Behind { digests, .. }) if digests > 1 => digests + 1,
            _ => 1,
        };
        DigestSlots { first: Slot(0), count }
    }

    /// The same run as far as it can be without what has been added to runs since.
    pub fn plain(self) -> SimConfig {
        let writes = match self.writes {
            Writes::Through => Writes::Through,
            Writes::Behind(behind) => Writes::Behind(Behind {
                digests: 1,
                fsync: Fsync::Server,
                syncs: Syncs::Afterwards,
                ..behind
            }),
        };
        SimConfig { extent: Extent::Plain, writes, locks: FileLocks::Unused, ..self }
    }

    pub fn with_sabotage(self, sabotage: Sabotage) -> SimConfig {
        SimConfig { sabotage, ..self }
    }

    /// The command that repeats this run, shown when it fails.
    pub fn command(&self) -> String {
        let mut command = format!("cargo run --release -p soda-sim -- --seed {}", self.seed);
        command += match self.shape {
            Shape::Usual => "",
            Shape::Crowded => " --crowded",
            Shape::Behind => " --behind",
            Shape::Harsh => " --harsh",
            Shape::Cuts => " --cuts",
            Shape::Deep => " --deep",
            Shape::Logged => " --logged",
            Shape::Full => " --full",
        };
        if self.extent == Extent::Plain {
            command += " --plain";
        }
        if self.sabotage != Sabotage::None {
            command += &format!(" --sabotage {}", self.sabotage);
        }
        if self.drift_ppm != 500 {
            command += &format!(" --drift-ppm {}", self.drift_ppm);
        }
        command + " --trace"
    }
}
