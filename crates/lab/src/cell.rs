//! A real server and real mounts, as processes of this machine, on loopback. All of them end with the value that holds them.

use crate::LabError;
use crate::setup::Lab;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use soda_protocol::{CallKind, Purpose};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server that starts, a mount that becomes usable; generous, because the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
const SERVING: &str = "soda: serving ";

/// Counters of a mount or of the server, by name.
pub(crate) type Counters = BTreeMap<String, u64>;

/// A server with an empty volume, and what mounts it.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) mounts: Vec<Mount>,
    program: PathBuf,
    /// Options of `soda serve`.
    options: Vec<String>,
    server: Process,
    address: String,
    numbered: usize,
    dir: TempDir,
}

/// Where a process dies by itself (`SODA_CRASH_POINT`), as if killed: what the kernel has in its pages stays. `None`: nowhere.
pub(crate) type CrashPoint<'a> = Option<&'a str>;

impl Cell {
    /// `options` are those of `soda serve`.
    pub(crate) fn start(lab: &Lab<'_>, options: &[&str]) -> Result<Cell, LabError> {
        let dir = tempfile::Builder::new().prefix("cell.").tempdir_in(lab.scratch);
        let (program, dir) = (lab.program, dir.map_err(LabError::io(lab.scratch))?);
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let (server, address) = serve(program, dir.path(), "127.0.0.1:0", &options, None)?;
        Ok(Cell {
            mounts: Vec::new(),
            program: program.to_owned(),
            options,
            server,
            address,
            numbered: 0,
            dir,
        })
    }

    /// Ends the server, unless it is dead, and starts it again with the same data at the same address.
    pub(crate) fn restart(&mut self, dies_at: CrashPoint<'_>) -> Result<(), LabError> {
        self.server.end();
        (self.server, self.address) =
            serve(&self.program, self.dir.path(), &self.address, &self.options, dies_at)?;
        Ok(())
    }

    pub(crate) fn server_is_dead(&mut self) -> bool {
        !matches!(self.server.child.try_wait(), Ok(None))
    }

    /// Ends mounts and server; `soda fsck` of what they leave.
    pub(crate) fn check(&mut self) -> Result<String, LabError> {
        self.mounts.clear();
        self.server.end();
        let output = Command::new(&self.program).arg("fsck").arg(self.dir.path().join("data")).output();
        let output = output.map_err(LabError::io(&self.program))?;
        if output.status.success() {
            return Ok("clean".to_owned());
        }
        Err(LabError::Failed(format!("soda fsck: {}", String::from_utf8_lossy(&output.stdout).trim())))
    }

    /// A directory for the caches of one mount.
    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.dir.path().join(format!("cache{}", self.numbered))
    }

    /// So many mounts with these options of `-o`, in place of those before.
    pub(crate) fn mount(&mut self, count: usize, options: &str) -> Result<(), LabError> {
        self.mount_at(count, &self.address.clone(), options)
    }

    /// As [`Cell::mount`], where the server is reached by another address.
    pub(crate) fn mount_at(&mut self, count: usize, address: &str, options: &str) -> Result<(), LabError> {
        self.mounts.clear();
        for _ in 0..count {
            self.mount_another(address, options, None)?;
        }
        Ok(())
    }

    /// One more.
    pub(crate) fn mount_another(
        &mut self,
        address: &str,
        options: &str,
        dies_at: CrashPoint<'_>,
    ) -> Result<(), LabError> {
        self.numbered += 1;
        let root = self.dir.path().join(format!("mount{}", self.numbered));
        std::fs::create_dir(&root).map_err(LabError::io(&root))?;
        let mut command = Command::new(&self.program);
        arm(&mut command, dies_at);
        command.arg("mount").arg(format!("{address}/main")).arg(&root).arg("--foreground");
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let mut process = Process::start(&mut command, &root.with_extension("log"))?;
        process.wait_until("the mount can be used", || is_mounted(&root))?;
        self.mounts.push(Mount { root, program: self.program.clone(), process });
        Ok(())
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// What `soda stats` shows of the server.
    pub(crate) fn server_counters(&self) -> Result<Counters, LabError> {
        let server = self.address.as_str();
        patiently(|| counters_of(&self.program, &["--server", server], &format!("server {server}")))
    }

    /// Processor time that the server's threads have used so far (proc(5), schedstat). What threads used that have ended is not
    /// in it: for a stretch of time in which nobody connects or goes.
    pub(crate) fn server_cpu(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.server.child.id()));
        let of = |thread: std::io::Result<std::fs::DirEntry>| {
            let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        let nanos: u64 = threads.into_iter().flatten().filter_map(of).sum();
        // A kernel without it has clock ticks.
        if nanos > 0 { Duration::from_nanos(nanos) } else { self.server_ticks() }
    }

    fn server_ticks(&self) -> Duration {
        let text =
            std::fs::read_to_string(format!("/proc/{}/stat", self.server.child.id())).unwrap_or_default();
        // After the name in parentheses: state is field 3, utime and stime 14 and 15, in ticks.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_secs_f64(ticks as f64 / per_second as f64)
    }
}

fn arm(command: &mut Command, dies_at: CrashPoint<'_>) {
    match dies_at {
        Some(point) => command.env("SODA_CRASH_POINT", point),
        None => command.env_remove("SODA_CRASH_POINT"),
    };
}

/// A server with its data in `dir`, and its address.
fn serve(
    program: &Path,
    dir: &Path,
    listen: &str,
    options: &[String],
    dies_at: CrashPoint<'_>,
) -> Result<(Process, String), LabError> {
    let log = dir.join("server.log");
    let mut command = Command::new(program);
    arm(&mut command, dies_at);
    command.args(["serve", "--listen", listen, "--data"]).arg(dir.join("data")).args(options);
    let mut server = Process::start(&mut command, &log)?;
    let mut address = None;
    server.wait_until("the server listens", || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        address = address_in(&said);
        address.is_some()
    })?;
    Ok((server, address.unwrap_or_default()))
}

/// Where the server says that it listens, once it has said all of it.
fn address_in(said: &str) -> Option<String> {
    let whole = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let (_, address) =
        whole.filter_map(|line| line.strip_prefix(SERVING)).find_map(|line| line.rsplit_once(" on "))?;
    Some(address.to_owned())
}

/// A mounted volume: to the server, a machine of its own.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) root: PathBuf,
    program: PathBuf,
    process: Process,
}

impl Mount {
    /// What `soda stats` shows of it.
    pub(crate) fn counters(&self) -> Result<Counters, LabError> {
        let root = self.root.display().to_string();
        patiently(|| counters_of(&self.program, &[&root], &root))
    }

    /// Until the server has all that was written there, and it is durable: `soda sync`.
    pub(crate) fn sync(&self) -> Result<(), LabError> {
        let output = Command::new(&self.program).arg("sync").arg(&self.root).output();
        let output = output.map_err(LabError::io(&self.program))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(LabError::Failed(format!("soda sync: {}", said.trim())))
    }

    /// As the machine would lose its power: `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }

    pub(crate) fn is_dead(&mut self) -> bool {
        !matches!(self.process.child.try_wait(), Ok(None))
    }

    /// As a machine that hangs or is cut off: it answers nothing until the value is dropped. Who uses its files waits as long.
    pub(crate) fn freeze(&self) -> Result<Frozen, LabError> {
        let pid = self.process.child.id();
        let frozen = Frozen(Pid::from_raw(pid.cast_signed()));
        frozen.signal(Signal::STOP);
        // One thread that still runs could answer a last message. What is in the kernel stops when it comes back from it.
        let stands = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat"));
            stat.map_or(true, |stat| {
                stat.rsplit(") ").next().unwrap_or_default().starts_with(['T', 'D', 'Z'])
            })
        };
        let deadline = Instant::now() + PATIENCE;
        while !std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().all(stands) {
            if Instant::now() > deadline {
                return Err(LabError::Failed(format!("{} cannot be stopped", self.root.display())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(frozen)
    }
}

/// A mount that does not answer; it goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct Frozen(Option<Pid>);

impl Frozen {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

/// Who is asked may take two seconds for the answer; on a busy machine that may not be enough, once.
fn patiently(ask: impl Fn() -> Result<Counters, LabError>) -> Result<Counters, LabError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Err(error) if Instant::now() < deadline => drop(error),
            answer => return answer,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `soda stats`, and what it says of `who`.
fn counters_of(program: &Path, arguments: &[&str], who: &str) -> Result<Counters, LabError> {
    let output = Command::new(program).arg("stats").args(arguments).args(["--once", "--json"]).output();
    let output = output.map_err(LabError::io(program))?;
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let Some(counters) = value.get(who).and_then(Value::as_object) else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(LabError::Failed(format!("{who} has no counters: {said}")));
    };
    Ok(counters.iter().filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect())
}

impl Drop for Mount {
    fn drop(&mut self) {
        let umount = Command::new(&self.program).arg("umount").arg(&self.root).output();
        let gone = umount.is_ok_and(|output| output.status.success());
        if !gone {
            // The daemon is killed next; what is left of it must not stand in the way.
            let _ = Command::new("umount").arg("-l").arg(&self.root).output();
        }
        self.process.end();
    }
}

/// A child whose words go to a file.
#[derive(Debug)]
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(command: &mut Command, log: &Path) -> Result<Process, LabError> {
        let out = File::create(log).map_err(LabError::io(log))?;
        let err = out.try_clone().map_err(LabError::io(log))?;
        // A Ctrl-C on the terminal is for the lab alone, which then ends them.
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn();
        let child = child.map_err(LabError::io(command.get_program()))?;
        Ok(Process { child, log: log.to_owned() })
    }

    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), LabError> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended || Instant::now() > deadline {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                return Err(LabError::Failed(format!("waited in vain until {what}: {}", said.trim())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// SIGTERM; after some seconds, SIGKILL.
    fn end(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed())) {
            let _ = kill_process(pid, Signal::TERM);
        }
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.mounts.clear();
        self.server.end();
    }
}

/// Reads the kernel's table; asks no file system.
fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// What a mount and its server have said to each other.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Messages {
    /// Two for each call and each recall, one for each lease that goes back unasked. Not the mount's own beginning and end.
    pub(crate) all: u64,
    /// Of these, what has changes, or makes them durable. The others are what consistency costs.
    pub(crate) changes: u64,
}

impl Messages {
    /// Since `before`, by the counters of one mount.
    pub(crate) fn between(before: &Counters, after: &Counters) -> Messages {
        let grown = |name: &str| grown(before, after, name);
        let of = |counts: fn(Purpose) -> bool| -> u64 {
            let kinds = CallKind::ALL.iter().filter(|kind| counts(kind.purpose()));
            kinds.map(|kind| grown(&format!("msg_{}", kind.name()))).sum()
        };
        // Notes have no answer; that to a recall is counted with the recall.
        let calls = of(|purpose| purpose != Purpose::Upkeep);
        let changes = of(|purpose| matches!(purpose, Purpose::Change | Purpose::Digest | Purpose::Sync));
        Messages { all: 2 * (calls + grown("recalls")) + grown("msg_release"), changes: 2 * changes }
    }

    /// Messages for consistency by what they are: names of calls, `recall` and `release`; the most first. Of several mounts
    /// together.
    pub(crate) fn by_call(before: &[Counters], after: &[Counters]) -> Vec<(&'static str, u64)> {
        Messages::grown_by_call(before, after, Purpose::is_for_consistency)
    }

    /// The same of all that [`Messages::all`] counts.
    pub(crate) fn all_by_call(before: &[Counters], after: &[Counters]) -> Vec<(&'static str, u64)> {
        Messages::grown_by_call(before, after, |purpose| purpose != Purpose::Upkeep)
    }

    fn grown_by_call(
        before: &[Counters],
        after: &[Counters],
        counts: fn(Purpose) -> bool,
    ) -> Vec<(&'static str, u64)> {
        let grown = |name: &str| -> u64 {
            before.iter().zip(after).map(|(before, after)| grown(before, after, name)).sum()
        };
        let kinds = CallKind::ALL.iter().filter(|kind| counts(kind.purpose()));
        let mut all: Vec<(&str, u64)> =
            kinds.map(|kind| (kind.name(), 2 * grown(&format!("msg_{}", kind.name())))).collect();
        all.extend([("recall", 2 * grown("recalls")), ("release", grown("msg_release"))]);
        all.retain(|(_, count)| *count > 0);
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }

    pub(crate) fn for_consistency(self) -> u64 {
        self.all.saturating_sub(self.changes)
    }
}

impl std::iter::Sum for Messages {
    fn sum<I: Iterator<Item = Messages>>(parts: I) -> Messages {
        parts.fold(Messages::default(), |sum, part| Messages {
            all: sum.all + part.all,
            changes: sum.changes + part.changes,
        })
    }
}

pub(crate) fn count(counters: &Counters, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

/// By how much a counter has grown; who has started anew meanwhile has counted from zero.
pub(crate) fn grown(before: &Counters, after: &Counters, name: &str) -> u64 {
    count(after, name).saturating_sub(count(before, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recall_and_its_answer_are_two_messages_as_a_call_is() {
        let counters = |list: &[(&str, u64)]| -> Counters {
            list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let before = counters(&[("msg_lookup", 5), ("recalls", 1)]);
        let after = counters(&[
            ("msg_lookup", 8),
            ("msg_lookupstat", 1),
            ("msg_digest", 2),
            ("recalls", 2),
            ("msg_recallack", 1),
            ("msg_release", 3),
            ("msg_renew", 100),
            ("op_lookup", 100),
        ]);
        let found = Messages::between(&before, &after);
        // Three look-ups, one with attributes, two digests, a recall; three leases given back.
        assert_eq!(found, Messages { all: 2 * (3 + 1 + 2 + 1) + 3, changes: 4 });
        assert_eq!(found.for_consistency(), 13);
        let (before, after) = ([before], [after]);
        let by_call = Messages::by_call(&before, &after);
        assert_eq!(by_call, [("lookup", 6), ("release", 3), ("lookupstat", 2), ("recall", 2)]);
        let all = Messages::all_by_call(&before, &after);
        assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), found.all);
        assert!(all.contains(&("digest", 4)) && !all.iter().any(|(name, _)| *name == "renew"), "{all:?}");
    }

    #[test]
    fn half_an_address_is_none() {
        assert_eq!(address_in("soda: serving main on 127.0.0"), None);
        let said = "something else\nsoda: serving main on 127.0.0.1:81\nmore";
        assert_eq!(address_in(said).as_deref(), Some("127.0.0.1:81"));
    }
}
