//! The command line, once: help, completions and the man page come from here.

use crate::lab_args::LabCommand;
use crate::options::MOUNT_OPTIONS;
use crate::spec::{ServerArg, Spec, parse_listen};
use crate::units::{FirstBackOff, parse_back_off, parse_duration, parse_size, parse_wait};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  failed
  2  the command line cannot be understood
  3  the server cannot be reached
  4  the server refuses: wrong volume or version
  5  cannot mount on this machine
  6  there is no Soda mount
  7  the mount is in use
  8  fsck found damage that is still there";

const SYNC_HELP: &str = "It waits for what was done before it was called, not for what is done meanwhile. \
A server that is away is waited for until the session's lease has run out, and ten seconds at \
least; then the command fails with exit code 3. Without room at the server it fails with exit code 1. Either way, and \
after Ctrl-C, the mount keeps what it has, and goes on trying. Stores to mapped memory are not included: msync(2) has \
the kernel hand them over.";

const RECOVER_HELP: &str =
    "A mount with write=behind and a cache-dir keeps a log there of what it has not told its \
server. What a mount that was killed had not told, the next one with the same cache-dir tells by itself. \
That must not be done when somebody else has meanwhile needed what it touches, when the server refuses a \
change, or when the log is damaged: then it is kept for this command. A mount without a cache-dir, as long as it \
lives, writes out what it loses in one of these ways, or at its end, to the same purpose. `ls` also lists logs that \
wait for such a mount. They can be applied without it: what is left then is kept.

`apply` makes the changes as any program would make them now. A file that somebody has changed since, and \
a name that means something else, are left as they are and reported (exit code 1), with all changes that \
rest on them; these stay in the log. What has been done already is no conflict. If it is interrupted, apply \
again goes on. A log goes when all of it is applied, or with `drop`. A damaged one stays until then; what is \
behind the damage can be shown and saved only.";

/// A line for each of [`MOUNT_OPTIONS`].
pub(crate) const MOUNT_OPTIONS_HELP: &str = "Options (-o):
  hard (default), soft[=TIME]  with the server gone: wait, killably; or fail with EIO after TIME (30s)
  ro, rw (default)  with ro every change fails with EROFS
  cache-dir=DIR, cache-size=SIZE  keep file data on a local disk, also over a restart; at most SIZE
  memory=SIZE  file data kept in the daemon's memory (512M)
  metadata-memory=SIZE  names and attributes kept in the daemon's memory (1G)
  consistency=lease|verify|ttl=SECONDS  lease (default): nothing is ever stale; to compare with: verify asks the server at every \
read, ttl believes caches for SECONDS
  lease-term=TIME|infinite|0  how long this mount's leases on single objects last; 0 takes none and asks each time
  lease-idle=TIME  leases that were not used for TIME are given back (10m)
  lease-poll=TIME  asks again every TIME for a lease that others have, in place of waiting in the server's queue; to compare
  deep-leases=on|off  off: no leases on whole subtrees, whatever the server offers
  locks=delegated|server  server: every file lock is asked for, also where nobody else locks
  write=behind|through, sync  behind (default): the server hears of a change later where nobody else uses the file, see below; \
through (sync is the same): before the call returns
  dirty-age=TIME, dirty-size=SIZE  with write=behind: told after TIME (1s); who writes waits when SIZE (64M) is not told
  digest-size=SIZE  with write=behind: told when SIZE waits, or a change for each KiB of it (4M, less with a \
small dirty-size); more lets more of what does not last go untold
  reserve-idle=TIME  with write=behind: what the server keeps free for this mount (256 MiB, less on a small disk; others get \
ENOSPC without it) it gets back after TIME without a change (30s)
  fsync=server|local  with write=behind and cache-dir: what fsync waits for, see below
  transport=auto|dev|uring  how the kernel's requests come; auto is uring on Linux 6.18.x where that is \
switched on and the daemon has CAP_SYS_NICE or a limit of nice that allows 0 (`soda doctor` says what is missing), else dev
  cores=free|follow  follow, on trial: while one thread makes all requests, those that answer it run on its core; needs \
CAP_SYS_NICE and goes with transport=dev
  nosuid, nodev, noexec, nosymfollow  as everywhere
  allow_other  of a mount that is not root's: others may use it, where /etc/fuse.conf says user_allow_other
  remount  change ro, rw, nosuid, nodev, noexec and nosymfollow of a mount that is there, see below";

const MOUNT_HELP: &str = "-o remount changes ro, rw, nosuid, nodev, noexec and nosymfollow of a mount that is there; what is \
not named of these is off. Anything else that differs from what it was mounted with is refused: unmount and mount again. A \
mount made with ro stays so.

Delayed writes (write=behind): where no other machine has anything to do with a file or a directory, \
changes of it are made here at once and told to the server later, in order; other machines see them as \
if they had been told at once, because the server asks for them first. fsync and `soda sync` wait until \
they are on the server's disk, `soda umount` until they are told; umount(8) and sync(1) do not, as the kernel \
does not pass them on to FUSE: after umount(8) the daemon goes on until they are told, unless it is killed or the \
machine is switched off first. It gives up when the server has taken nothing for 30s, or when it gets SIGTERM \
twice; `soda umount` fails if anything is lost by that. They are told after dirty-age at the latest (default 1s), \
and make whoever writes wait when dirty-size bytes have not been told (default 64M). `soda status` shows how much it is, `soda \
lease why PATH` why a file is not written so.

--takeover DIR: this program goes on with a mount that is there, with its options, its session, its open files and \
locks, and the daemon that served it until then ends. Programs that use the mount wait meanwhile, as a rule for some \
hundredths of a second. If it cannot be done (the server is away, or speaks another version of the protocol than this \
program; the running daemon hands over in another form) the old daemon goes on. For the supervisor of a service that runs \
`soda mount --foreground` the service ends: with such, restart the service.

If this machine crashes (also `kill -9` of the mount), what was not told is lost, as with a local disk; \
with a cache-dir it is in a log there, and told when the volume is mounted again with the same cache-dir. If \
this machine cannot reach the server for longer than the session's lease, or is not back by then, and \
somebody else needs the files, it is not told any more: the next write, fsync or close of them fails with \
EIO, and it is kept for `soda recover` (without a cache-dir when the mount hears of it, in a directory of this machine's).

fsync=local: fsync waits for the log on the local disk instead of the server's. What was synced so survives a power cut \
of this machine and of the server, but only this machine has it until it is told: if its disk is lost, or somebody \
else needs the files before it is back, it is lost or left to `soda recover`. `soda sync` still waits for the server.";

/// One file system for many machines, as fast as a local disk and never stale.
#[derive(Parser, Debug)]
#[command(name = "soda", version, after_long_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub log: LogArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// What to log, such as `info` or `warn,soda_lease=debug`; also from RUST_LOG
    #[arg(long = "log", value_name = "FILTER", global = true)]
    pub filter: Option<String>,
    /// How log lines look
    #[arg(long = "log-format", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub format: LogFormat,
    /// Append the log to this file instead of standard error; at 8 MiB it becomes PATH.old and a new one begins
    #[arg(long = "log-file", value_name = "PATH", global = true)]
    pub file: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Serve a data directory
    Serve(ServeArgs),
    /// Mount a volume; returns when it can be used
    Mount(MountArgs),
    /// Unmount, also with the server gone; what a mount has not told the server yet is told first
    Umount(UmountArgs),
    /// Wait until everything that was done in a mount is on the server's disk
    Sync(SyncArgs),
    /// Delayed writes that the server was not told: list, show, apply or drop them
    Recover(RecoverArgs),
    /// Show the server and the mounts of this machine
    Status(StatusArgs),
    /// Say what keeps this machine from mounting, or from mounting at its best, and what to do about it
    ///
    /// Ends with 1 if something keeps it from mounting or working, or if a mount is there that nobody serves.
    Doctor(DoctorArgs),
    /// Show who holds which lease, and who waits for whom
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Show counters, live: operations, hit ratios, messages by kind, leases and recalls, memory
    ///
    /// First since the start of the server or the daemon, then (where a figure has a rate) as it is now: from one look to
    /// the next. Times, sizes and rates have their units; what is zero is left out. A hit ratio is the part of what was
    /// asked that needed no server. What the kernel answered from its own caches is not in it, nor in the operations: the
    /// daemon does not hear of it. `--json` has every counter by its own name, zeros included, with the unit last in the
    /// name (`_us`, `_ms`, `_nanos`, `bytes`) and without rates.
    Stats(StatsArgs),
    /// Check a data directory that no server uses, and repair it
    ///
    /// Without `--repair` nothing in the directory is changed. What the check itself writes goes into a temporary directory
    /// (below $TMPDIR, else /tmp), which takes as much as the journal, some 100 MB at the most as a rule, and is removed at
    /// the end; if the check is killed, by the next one.
    ///
    /// A directory whose data/ is lost as a whole is refused, except with `--repair --discard-lost`: names, attributes and
    /// small files, which are in meta/, are kept, the data of other files are holes then.
    ///
    /// Metadata that are damaged are read as far as they can be: what is lost is named, with the paths. With `--repair
    /// --discard-lost` all that can be read goes into new metadata, which take the place of the damaged ones; these are kept
    /// beside them. Without, nothing is changed.
    Fsck(FsckArgs),
    /// What leases cost and save: formulas, simulations and measurements, beside what the papers say
    #[command(subcommand)]
    Lab(LabCommand),
    /// See it work: a server, two mounts as of two machines, and the lease traffic between them
    Demo(DemoArgs),
    /// Print a shell's completions
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page (of a subcommand, such as `lease why`, if named), as troff
    Man {
        subcommand: Vec<String>,
        /// Write the pages of all commands into this directory, such as /usr/local/share/man/man1
        #[arg(long, value_name = "DIR", conflicts_with = "subcommand")]
        all: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Where everything is kept; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Where to listen for clients; ADDR may be a name, :PORT may be left out (7632)
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7632", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Where Prometheus may ask for /metrics
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen)]
    pub metrics: Option<SocketAddr>,
    /// Listen on addresses that others can reach although nothing is authenticated yet
    #[arg(long)]
    pub insecure: bool,
    /// Session lease: how long a silent client can stand in the way of others, a day at most
    #[arg(long, value_name = "TIME", value_parser = parse_wait, default_value = "10s")]
    pub term: Duration,
    /// How long after a restart only known clients are heard, a day at most [default: the term and a fifth]
    #[arg(long, value_name = "TIME", value_parser = parse_wait)]
    pub grace: Option<Duration>,
    /// Term of leases on single objects: `session`, `infinite`, or a time; 0 grants none. `VOLUME=` before it: of that volume
    #[arg(long, value_name = "[VOLUME=]session|infinite|TIME", default_value = "session")]
    pub object_term: Vec<String>,
    /// Whether who changes an object gets an exclusive lease on it
    #[arg(long, value_enum, default_value_t = WriteLeasesArg::Grant)]
    pub write_leases: WriteLeasesArg,
    /// Withhold leases where they cost more than they save (equation 8)
    #[arg(long, value_enum, default_value_t = SwitchArg::On)]
    pub equation_8: SwitchArg,
    /// A write lease that another machine has asked for is not given anew for this time, twice as long each time again, at most
    /// --term; `off`: at once [default: a hundredth of --term]
    #[arg(long, value_name = "TIME|off", value_parser = parse_back_off)]
    pub back_off: Option<FirstBackOff>,
    /// Whether one lease may cover a whole subtree
    #[arg(long, value_enum, default_value_t = SwitchArg::On)]
    pub deep_leases: SwitchArg,
    /// With deep leases: who holds N leases below one directory, with nobody else in the way, gets one for all of it; also
    /// who reads N inodes of one directory at once [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub deep_after: Option<u32>,
    /// With deep leases: a deep lease out of which others were given more than N inodes is given up [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub deep_holes: Option<u32>,
    /// Memory for metadata
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "128M")]
    pub metadata_cache: u64,
    /// Memory for file data that was read lately
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub data_cache: u64,
    /// After this time a change is on the disk even if nobody asked for it
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub sync_interval: Duration,
    /// Free space of the disk that clients cannot fill
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    pub reserve: u64,
    /// What the volume may hold: for clients it is a disk of that size [default: what the disk has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub quota: Option<u64>,
    /// Threads that serve connections [default: twice the processors and two more, at least 6]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteLeasesArg {
    Grant,
    /// Only to who caches it already
    OnlyToHolders,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SwitchArg {
    On,
    Off,
}

#[derive(Args, Debug)]
#[command(after_long_help = format!("{MOUNT_OPTIONS_HELP}\n\n{MOUNT_HELP}"))]
pub(crate) struct MountArgs {
    /// What to mount
    #[arg(value_name = "HOST:PORT/VOLUME", required_unless_present = "takeover")]
    pub spec: Option<Spec>,
    /// Where
    #[arg(value_name = "DIR", required_unless_present = "takeover")]
    pub dir: Option<PathBuf>,
    /// Serve the mount on DIR in the place of the daemon that does: an upgrade of a mount that is in use, see below
    #[arg(long, value_name = "DIR", conflicts_with_all = ["spec", "dir", "options", "cache_dir"])]
    pub takeover: Option<PathBuf>,
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        help = format!("{MOUNT_OPTIONS}; options of fstab that mean nothing here are ignored")
    )]
    pub options: Vec<String>,
    /// Keep file data there, also over a restart
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Stay in the foreground and log to the terminal; Ctrl-C unmounts
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// The daemon's part of a mount: says on standard output when it is ready
    #[arg(long, hide = true, requires = "foreground")]
    pub daemon: bool,
}

#[derive(Args, Debug)]
pub(crate) struct UmountArgs {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Take it out of the tree of names now; who uses it may go on
    #[arg(long, short = 'l')]
    pub lazy: bool,
    /// Cut off whoever uses it: their operations fail, mapped memory that was not synced is lost. Of a bind mount as --lazy
    #[arg(long, short = 'f', conflicts_with = "lazy")]
    pub force: bool,
    /// How long the command waits for a server that is gone. Only tests have another
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s", hide = true)]
    pub patience: Duration,
}

#[derive(Args, Debug)]
#[command(after_long_help = SYNC_HELP)]
pub(crate) struct SyncArgs {
    /// A path in a mount: of that mount [default: all mounts of this machine]
    pub path: Option<PathBuf>,
    /// Print JSON: what each mount began with, what is left, and how it ended
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(after_long_help = RECOVER_HELP)]
pub(crate) struct RecoverArgs {
    /// Where to look; may be given more than once [default: all cache directories that mounts have used,
    /// and where mounts without one keep what they lose]
    #[arg(long, value_name = "DIR", global = true)]
    pub cache_dir: Vec<PathBuf>,
    #[command(subcommand)]
    pub command: RecoverCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RecoverCommand {
    /// List the logs that are kept, and why, and those that wait for a mount
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the changes in a log, in order
    ///
    /// What was there before the log is named as the server has it now. Without the server its inode number is shown.
    Show {
        #[command(flatten)]
        one: RecoverOne,
        /// Ask this server for names instead of the one that the log names
        #[arg(long, value_name = "HOST:PORT")]
        server: Option<String>,
        /// Instead, write what it holds of files into this directory, which must be new or empty
        #[arg(long, value_name = "DIR")]
        save: Option<PathBuf>,
    },
    /// Make the changes in a log now, but for what somebody else has changed since
    Apply {
        #[command(flatten)]
        one: RecoverOne,
        /// At this server instead of the one that the log names
        #[arg(long, value_name = "HOST:PORT")]
        server: Option<String>,
    },
    /// Delete a log
    Drop(RecoverOne),
}

#[derive(Args, Debug)]
pub(crate) struct RecoverOne {
    /// The log's name, as `soda recover ls` shows it
    #[arg(value_name = "LOG")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// The same as --server
    #[arg(value_name = "HOST:PORT", conflicts_with = "server")]
    pub address: Option<String>,
    #[command(flatten)]
    pub server: ServerArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub server: ServerArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LeaseCommand {
    /// List leases, of one object or of all
    Ls(LeaseLsArgs),
    /// Why is this slow, or not cached, or not written later: holders, waiters, holes, file locks, rates, policy
    Why(LeaseWhyArgs),
}

#[derive(Args, Debug)]
pub(crate) struct LeaseLsArgs {
    /// A path in a mount of this machine, or HOST:PORT/VOLUME/PATH
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArg,
    /// Most leases to list
    #[arg(long, default_value_t = 1000)]
    pub limit: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LeaseWhyArgs {
    /// A path in a mount of this machine, or HOST:PORT/VOLUME/PATH
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    /// Only this mount [default: the server and all mounts of this machine]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArg,
    /// Print once instead of again and again
    #[arg(long)]
    pub once: bool,
    /// How often
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub interval: Duration,
    /// Print JSON, one object a time
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct FsckArgs {
    /// What `soda serve --data` uses
    #[arg(value_name = "DATA_DIR")]
    pub data: PathBuf,
    /// Repair what can be repaired. Data that is lost stays as it is: reading it is an error
    #[arg(long)]
    pub repair: bool,
    /// Make holes, which read as zeros, of data that is lost
    #[arg(long, requires = "repair")]
    pub discard_lost: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Keep the data there [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Clean up at the end instead of waiting for Ctrl-C
    #[arg(long)]
    pub once: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// What prints neither a table nor figures; the output of `lab record` is its command's.
    const WITHOUT_JSON: [&str; 8] = [
        "soda serve",
        "soda mount",
        "soda umount",
        "soda lab report",
        "soda lab record",
        "soda demo",
        "soda completions",
        "soda man",
    ];

    #[test]
    fn everything_else_prints_json_when_asked() {
        fn look(command: &clap::Command, path: &str, without: &mut Vec<String>) {
            let inner: Vec<_> = command.get_subcommands().filter(|of| of.get_name() != "help").collect();
            for of in &inner {
                look(of, &format!("{path} {}", of.get_name()), without);
            }
            if inner.is_empty()
                && !command.is_hide_set()
                && !command.get_arguments().any(|of| of.get_id() == "json")
            {
                without.push(path.to_owned());
            }
        }
        let mut without = Vec::new();
        look(&Cli::command(), "soda", &mut without);
        assert_eq!(without, WITHOUT_JSON);
    }

    #[test]
    fn the_syntax_that_scripts_rely_on() {
        for line in [
            "soda serve --data /d --listen 127.0.0.1:1 --metrics 127.0.0.1:2",
            "soda serve --data /d --listen [::1]",
            "soda mount 127.0.0.1:1/main /m -o soft,ro --cache-dir /c --foreground",
            "soda mount 127.0.0.1:1/main /m -o consistency=ttl=3 -o hard",
            "soda umount /m",
            "soda sync",
            "soda sync /m/dir --json",
            "soda recover ls",
            "soda recover ls --cache-dir /c --cache-dir /d --json",
            "soda recover show 1790000000 --json",
            "soda recover apply 1790000000-1 --server h:1 --cache-dir /c",
            "soda recover drop 1790000000",
            "soda status --json",
            "soda lease ls",
            "soda lease why /m/file --json",
            "soda stats --once --json",
            "soda fsck /d --repair",
            "soda lab replay trace.csv --nfs 3,30 --nfs 60 --csv",
            "soda demo --once",
            "soda completions bash",
            "soda man",
            "soda man lease why",
            "soda man --all /m",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
