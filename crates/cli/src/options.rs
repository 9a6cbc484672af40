//! `-o`: options of a mount, those of fstab(5) that mean something here among them.

use crate::units::{exact_duration, parse_duration, parse_object_term, parse_size};
use soda_client::{Access, Consistency, Fsync, Locks, Retry, WriteBehind, WritePolicy};
use soda_fuse::{Cores, MountAccess, MountFlags, TransportChoice};
use soda_types::{ObjectTerm, Scope};
use std::path::PathBuf;
use std::time::Duration;

/// How long a `soft` mount waits for its server unless told otherwise.
const SOFT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MountOptions {
    /// `None`: `hard`, unsaid.
    pub retry: Option<Retry>,
    pub access: Access,
    pub consistency: Consistency,
    pub write: WriteMode,
    /// How old and how large a backlog of delayed writes may become.
    pub dirty_age: Option<Duration>,
    pub dirty_size: Option<u64>,
    /// What a digest begins at, and when the server's room is given back.
    pub digest_size: Option<u64>,
    pub reserve_idle: Option<Duration>,
    pub fsync: Fsync,
    /// Of the leases that it gets; otherwise what the server says.
    pub lease_term: Option<ObjectTerm>,
    /// [`Scope::Node`]: no deep leases.
    pub widest_lease: Scope,
    pub locks: Locks,
    /// Unused for so long, they are given back.
    pub lease_idle: Option<Duration>,
    pub lease_poll: Option<Duration>,
    pub cache_dir: Option<PathBuf>,
    /// Most bytes in the cache directory.
    pub cache_size: Option<u64>,
    /// Most bytes of file data in memory.
    pub memory: Option<u64>,
    /// Most bytes of names and attributes in memory.
    pub metadata_memory: Option<u64>,
    /// How the kernel's requests come.
    pub transport: TransportChoice,
    /// Where the threads run that answer them.
    pub cores: Cores,
    pub flags: MountFlags,
    pub action: MountAction,
}

/// When the server hears of changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum WriteMode {
    Through,
    #[default]
    Behind,
}

/// What mount(8) wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum MountAction {
    #[default]
    Mount,
    /// Change the flags of a mount that is there.
    Remount,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            retry: None,
            access: Access::ReadWrite,
            consistency: Consistency::Lease,
            write: WriteMode::default(),
            dirty_age: None,
            dirty_size: None,
            digest_size: None,
            reserve_idle: None,
            fsync: Fsync::default(),
            lease_term: None,
            widest_lease: Scope::Subtree,
            locks: Locks::Delegated,
            lease_idle: None,
            lease_poll: None,
            cache_dir: None,
            cache_size: None,
            memory: None,
            metadata_memory: None,
            transport: TransportChoice::default(),
            cores: Cores::default(),
            flags: MountFlags::default(),
            action: MountAction::default(),
        }
    }
}

/// All that mean something here, for people.
pub(crate) const MOUNT_OPTIONS: &str = "hard, soft[=TIME], ro, rw, cache-dir=DIR, cache-size=SIZE, memory=SIZE, \
    metadata-memory=SIZE, consistency=lease|verify|ttl=SECONDS, lease-term=TIME|infinite|0, lease-idle=TIME, \
    lease-poll=TIME, deep-leases=on|off, locks=delegated|server, write=behind|through, sync, dirty-age=TIME, dirty-size=SIZE, \
    digest-size=SIZE, reserve-idle=TIME, fsync=server|local, transport=auto|dev|uring, cores=free|follow, remount, nosuid, \
    nodev, noexec, nosymfollow, allow_other";

/// Options of fstab(5) and mount(8) that are somebody else's business, or have no meaning here.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "async",
    "noatime",
    "nodiratime",
    "norelatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "mand",
    "nomand",
    "diratime",
    "iversion",
    "noiversion",
    "default_permissions",
];
const HARD_AND_SOFT: &str = "mount options `hard` and `soft` contradict each other: leave one out";
/// The last ones are what the kernel shows of a FUSE mount: mount(8) hands them back when it remounts.
const IGNORED_PREFIXES: &[&str] = &[
    "x-",
    "X-",
    "comment=",
    "uhelper=",
    "helper=",
    "fsname=",
    "subtype=",
    "user_id=",
    "group_id=",
    "max_read=",
];
/// Why an option is not taken in.
enum Refused {
    /// In words that name it.
    Option(String),
    /// What is wrong with its value.
    Value(String),
}

impl From<String> for Refused {
    fn from(problem: String) -> Refused {
        Refused::Value(problem)
    }
}

const DIRSYNC: &str = "changes of names are not on the server's disk one by one. With `sync` the server hears of each before the \
    call returns, and its disk has it a second later; fsync of the directory waits for that";
/// What would make reads write.
const ACCESS_TIMES: &[&str] = &["relatime", "strictatime", "atime"];

impl MountOptions {
    /// Takes in one comma-separated list. A comma in a name is written `\,`.
    ///
    /// # Errors
    /// A text that names the option.
    pub(crate) fn add(&mut self, list: &str) -> Result<(), String> {
        split(list).iter().filter(|option| !option.is_empty()).try_for_each(|option| {
            self.add_one(option).map_err(|refused| match refused {
                Refused::Option(text) => text,
                Refused::Value(problem) => format!("mount option `{option}`: {problem}"),
            })
        })
    }

    /// As they are in effect, for people and scripts: also those that were not given, where it matters.
    pub(crate) fn in_effect(&self) -> MountOptions {
        let said = MountOptions { retry: Some(self.retry()), ..self.clone() };
        match self.write_policy() {
            WritePolicy::Behind(behind) => {
                MountOptions { dirty_age: Some(behind.max_age), dirty_size: Some(behind.max_bytes), ..said }
            }
            WritePolicy::Through => MountOptions {
                write: WriteMode::Through,
                dirty_age: None,
                dirty_size: None,
                digest_size: None,
                reserve_idle: None,
                fsync: Fsync::Server,
                ..said
            },
        }
    }

    /// What is wrong with the options together.
    ///
    /// # Errors
    /// A text that names them.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.cache_dir.is_none() && self.cache_size.is_some() {
            return Err("mount option `cache-size` bounds the cache directory, and there is none: add \
                        cache-dir=DIR. The cache in memory is bounded by memory=SIZE"
                .into());
        }
        let of_delay = [
            ("dirty-age", self.dirty_age.is_some()),
            ("dirty-size", self.dirty_size.is_some()),
            ("digest-size", self.digest_size.is_some()),
            ("reserve-idle", self.reserve_idle.is_some()),
        ];
        let delays = self.write_policy() != WritePolicy::Through;
        if let Some((option, _)) = of_delay.iter().find(|(_, given)| *given && !delays) {
            return Err(format!(
                "mount option `{option}` is about delayed writes, and there are none: leave out write=through, sync \
                 and consistency"
            ));
        }
        let has_log = delays && self.cache_dir.is_some();
        if self.fsync == Fsync::Local && !has_log {
            return Err(
                "mount option `fsync=local` waits for the log of delayed writes on the local disk, and \
                        there is none: add cache-dir=DIR, and leave out write=through, sync and consistency"
                    .into(),
            );
        }
        Ok(())
    }

    fn add_one(&mut self, option: &str) -> Result<(), Refused> {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        };
        let need =
            || value.ok_or_else(|| Refused::Option(format!("mount option `{key}` needs a value: {key}=…")));
        match key {
            "hard" if matches!(self.retry, Some(Retry::Soft { .. })) => {
                return Err(Refused::Option(HARD_AND_SOFT.into()));
            }
            "soft" if self.retry == Some(Retry::Hard) => return Err(Refused::Option(HARD_AND_SOFT.into())),
            "hard" => self.retry = Some(Retry::Hard),
            "soft" => {
                let timeout = value.map(parse_duration).transpose()?.unwrap_or(SOFT_TIMEOUT);
                self.retry = Some(Retry::Soft { timeout });
            }
            "ro" => {
                self.access = Access::ReadOnly;
                self.flags.access = MountAccess::ReadOnly;
            }
            "rw" => {
                self.access = Access::ReadWrite;
                self.flags.access = MountAccess::ReadWrite;
            }
            "nosuid" => self.flags.no_suid = true,
            "nodev" => self.flags.no_dev = true,
            "noexec" => self.flags.no_exec = true,
            "allow_other" => self.flags.allow_other = true,
            "suid" => self.flags.no_suid = false,
            "dev" => self.flags.no_dev = false,
            "exec" => self.flags.no_exec = false,
            "nosymfollow" => self.flags.no_symfollow = true,
            "symfollow" => self.flags.no_symfollow = false,
            "dirsync" => return Err(Refused::Value(DIRSYNC.into())),
            // Whoever reads it from fstab may be anywhere.
            "cache-dir" if !need()?.starts_with('/') => {
                return Err(Refused::Value("give an absolute path".into()));
            }
            "cache-dir" => self.cache_dir = Some(PathBuf::from(need()?)),
            "cache-size" => self.cache_size = Some(parse_size(need()?)?),
            "memory" => self.memory = Some(parse_memory(need()?)?),
            "metadata-memory" => self.metadata_memory = Some(parse_memory(need()?)?),
            "consistency" => self.consistency = parse_consistency(need()?)?,
            "write" => self.write = parse_write(need()?)?,
            // As people know it from NFS.
            "sync" => self.write = WriteMode::Through,
            "dirty-age" => self.dirty_age = Some(parse_duration(need()?)?),
            "dirty-size" => self.dirty_size = Some(parse_dirty_size(need()?)?),
            "digest-size" => self.digest_size = Some(parse_digest_size(need()?)?),
            "reserve-idle" => self.reserve_idle = Some(parse_duration(need()?)?),
            "fsync" => self.fsync = parse_fsync(need()?)?,
            "lease-term" => self.lease_term = Some(parse_object_term(need()?)?),
            "lease-idle" => self.lease_idle = Some(parse_duration(need()?)?),
            "lease-poll" => self.lease_poll = Some(parse_lease_poll(need()?)?),
            "deep-leases" => self.widest_lease = parse_deep_leases(need()?)?,
            "locks" => self.locks = parse_locks(need()?)?,
            "transport" => self.transport = need()?.parse()?,
            "cores" => self.cores = need()?.parse()?,
            "remount" => self.action = MountAction::Remount,
            _ if ACCESS_TIMES.contains(&option) => {
                return Err(Refused::Option(format!(
                    "mount option `{option}` is not supported: reading does not update access times (noatime); leave it out"
                )));
            }
            _ if IGNORED.contains(&option) => {}
            _ if IGNORED_PREFIXES.iter().any(|prefix| option.starts_with(prefix)) => {}
            _ => {
                let text = format!("mount option `{option}` is not known. There are: {MOUNT_OPTIONS}");
                return Err(Refused::Option(text));
            }
        }
        Ok(())
    }

    pub(crate) fn retry(&self) -> Retry {
        self.retry.unwrap_or(Retry::Hard)
    }

    /// When the server hears of changes. Without leases nothing can be delayed.
    pub(crate) fn write_policy(&self) -> WritePolicy {
        let defaults = WriteBehind::default();
        match self.write {
            WriteMode::Behind if self.consistency == Consistency::Lease => WritePolicy::Behind(WriteBehind {
                max_age: self.dirty_age.unwrap_or(defaults.max_age),
                max_bytes: self.dirty_bytes(),
                digest_bytes: self.digest_bytes(),
                reserve_idle: self.reserve_idle.unwrap_or(defaults.reserve_idle),
                fsync: self.fsync,
                ..defaults
            }),
            _ => WritePolicy::Through,
        }
    }

    fn dirty_bytes(&self) -> u64 {
        self.dirty_size.unwrap_or(WriteBehind::default().max_bytes)
    }

    /// What `digest-size` says, or goes with `dirty-size`.
    pub(crate) fn digest_bytes(&self) -> u64 {
        self.digest_size.unwrap_or_else(|| WriteBehind::digest_bytes_within(self.dirty_bytes()))
    }

    /// The list that reads back as this.
    pub(crate) fn to_list(&self) -> String {
        let mut list = Vec::new();
        match self.retry {
            None => {}
            Some(Retry::Hard) => list.push("hard".to_string()),
            Some(Retry::Soft { timeout }) => list.push(format!("soft={}", exact_duration(timeout))),
        }
        if self.access == Access::ReadOnly {
            list.push("ro".into());
        }
        match self.consistency {
            Consistency::Lease => {}
            Consistency::Verify => list.push("consistency=verify".into()),
            Consistency::Ttl(time) => list.push(format!("consistency=ttl={}", exact_duration(time))),
        }
        list.push(self.write.to_option().into());
        if let Some(age) = self.dirty_age {
            list.push(format!("dirty-age={}", exact_duration(age)));
        }
        if let Some(size) = self.dirty_size {
            list.push(format!("dirty-size={size}"));
        }
        if let Some(size) = self.digest_size {
            list.push(format!("digest-size={size}"));
        }
        if let Some(time) = self.reserve_idle {
            list.push(format!("reserve-idle={}", exact_duration(time)));
        }
        if self.fsync == Fsync::Local {
            list.push("fsync=local".into());
        }
        match self.lease_term {
            None => {}
            Some(ObjectTerm::None) => list.push("lease-term=0".into()),
            Some(ObjectTerm::For(time)) => list.push(format!("lease-term={}", exact_duration(time))),
            Some(ObjectTerm::Session) => list.push("lease-term=infinite".into()),
        }
        if let Some(time) = self.lease_idle {
            list.push(format!("lease-idle={}", exact_duration(time)));
        }
        if let Some(time) = self.lease_poll {
            list.push(format!("lease-poll={}", exact_duration(time)));
        }
        if self.widest_lease == Scope::Node {
            list.push("deep-leases=off".into());
        }
        if self.locks == Locks::AtServer {
            list.push("locks=server".into());
        }
        if let Some(dir) = &self.cache_dir {
            list.push(format!("cache-dir={}", dir.display().to_string().replace(',', "\\,")));
        }
        if let Some(size) = self.cache_size {
            list.push(format!("cache-size={size}"));
        }
        if let Some(size) = self.memory {
            list.push(format!("memory={size}"));
        }
        if let Some(size) = self.metadata_memory {
            list.push(format!("metadata-memory={size}"));
        }
        if self.transport != TransportChoice::Auto {
            list.push(format!("transport={}", self.transport));
        }
        if self.cores != Cores::default() {
            list.push(format!("cores={}", self.cores));
        }
        let flags = &self.flags;
        let set = [
            (flags.no_suid, "nosuid"),
            (flags.no_dev, "nodev"),
            (flags.no_exec, "noexec"),
            (flags.no_symfollow, "nosymfollow"),
            (flags.allow_other, "allow_other"),
        ];
        list.extend(set.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_string()));
        list.join(",")
    }
}

/// At the commas that have no backslash before them.
fn split(list: &str) -> Vec<String> {
    list.split(',').fold(Vec::new(), |mut options: Vec<String>, part| {
        match options.last_mut() {
            Some(last) if last.ends_with('\\') => {
                last.pop();
                last.push_str(&format!(",{part}"));
            }
            _ => options.push(part.to_owned()),
        }
        options
    })
}

impl WriteMode {
    fn to_option(self) -> &'static str {
        match self {
            WriteMode::Through => "write=through",
            WriteMode::Behind => "write=behind",
        }
    }
}

fn parse_write(value: &str) -> Result<WriteMode, String> {
    match value {
        "through" => Ok(WriteMode::Through),
        "behind" => Ok(WriteMode::Behind),
        _ => Err(format!("write={value}: choose behind or through")),
    }
}

fn parse_deep_leases(value: &str) -> Result<Scope, String> {
    match value {
        "on" => Ok(Scope::Subtree),
        "off" => Ok(Scope::Node),
        _ => Err(format!("deep-leases={value}: choose on or off")),
    }
}

fn parse_locks(value: &str) -> Result<Locks, String> {
    match value {
        "delegated" => Ok(Locks::Delegated),
        "server" => Ok(Locks::AtServer),
        _ => Err(format!("locks={value}: choose delegated or server")),
    }
}

/// Without a pause two processors would do nothing else.
fn parse_lease_poll(value: &str) -> Result<Duration, String> {
    match parse_duration(value)? {
        time if time >= Duration::from_micros(100) => Ok(time),
        _ => Err(format!("lease-poll={value}: at least 100us")),
    }
}

/// With less than what is read at once nothing would stay.
fn parse_memory(value: &str) -> Result<u64, String> {
    const LEAST: u64 = 1 << 20;
    match parse_size(value)? {
        size if size >= LEAST => Ok(size),
        _ => Err("at least 1M".into()),
    }
}

fn parse_dirty_size(value: &str) -> Result<u64, String> {
    match parse_size(value)? {
        0 => Err(format!("dirty-size={value}: nothing could be delayed; write=through says that")),
        size => Ok(size),
    }
}

/// Who writes waits when 100,000 changes do.
fn parse_digest_size(value: &str) -> Result<u64, String> {
    const MOST: u64 = 64 << 20;
    match parse_size(value)? {
        size @ 1..=MOST => Ok(size),
        _ => Err(format!("digest-size={value}: from 1 to 64M")),
    }
}

fn parse_fsync(value: &str) -> Result<Fsync, String> {
    match value {
        "server" => Ok(Fsync::Server),
        "local" => Ok(Fsync::Local),
        _ => Err(format!("fsync={value}: choose server or local")),
    }
}

fn parse_consistency(value: &str) -> Result<Consistency, String> {
    match value.split_once('=') {
        None if value == "lease" => Ok(Consistency::Lease),
        None if value == "verify" => Ok(Consistency::Verify),
        Some(("ttl", time)) => Ok(Consistency::Ttl(parse_duration(time)?)),
        _ => Err(format!("consistency={value}: choose lease, verify or ttl=SECONDS")),
    }
}

#[cfg(test)]
mod tests;
