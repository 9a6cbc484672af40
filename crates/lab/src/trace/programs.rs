//! Recording what any program asks of a directory: it runs under strace(1), which prints its system calls.
//!
//! On a mount that tells more than the mount's daemon could: under a lease the kernel answers most calls by itself. The directory
//! need not be on a mount at all. What is read through a mapping counts as long as the mapping; what is asked by io_uring is not
//! seen.

#[cfg(test)]
mod tests;

use super::strace::{Call, Lines, is_start, of_descriptor, quoted};
use super::{Does, Step, Trace, is_at_or_below};
use crate::LabError;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitStatus};

/// All calls with a path, and those on what they have opened. `?`: where the machine has it.
const CALLS: &str = "trace=%file,?fchdir,?read,?pread64,?readv,?preadv,?preadv2,?write,?pwrite64,?writev,?pwritev,\
    ?pwritev2,?sendfile,?copy_file_range,?mmap,?getdents,?getdents64,?ftruncate,?fallocate,?fchmod,?fchown,?fsetxattr,\
    ?fremovexattr,?clone,?clone3,?fork,?vfork";

/// What a command has asked, and how it ended.
#[derive(Debug)]
pub struct Recorded {
    pub trace: Trace,
    pub status: ExitStatus,
}

/// Runs a command, and notes what it and its children ask of what is below a directory.
///
/// # Errors
/// If strace cannot be started or may not trace, or there is no such directory; if nothing there was asked for.
pub fn record(dir: &Path, command: &[OsString]) -> Result<Recorded, LabError> {
    let root = dir.canonicalize().map_err(LabError::io(dir))?;
    let here = std::env::current_dir().map_err(LabError::io("."))?;
    let mut names = BTreeSet::new();
    note_names(&root, "", &mut names).map_err(LabError::io(&root))?;
    // Without a name, so nothing is left of it however this ends.
    let log = tempfile::tempfile().map_err(LabError::io(std::env::temp_dir()))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), log.as_raw_fd());
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-ttt", "-qq", "-s", "0", "--seccomp-bpf", "-e", "signal=none", "-e", CALLS]);
    let status = strace.args(["-o", &path, "--"]).args(command).status();
    let status = status.map_err(|error| {
        let hint = "strace is needed to record programs (Debian's package strace)";
        LabError::Failed(format!("strace cannot be started: {error}; {hint}"))
    })?;
    let mut programs = Programs::new(root, here, names);
    for line in BufReader::new(log).split(b'\n') {
        let line = line.map_err(LabError::io("what strace has said"))?;
        programs.hear(&String::from_utf8_lossy(&line));
    }
    let trace = programs.end();
    if trace.steps.is_empty() {
        let dir = dir.display();
        return Err(LabError::Failed(format!("the command ({status}) has asked for nothing below {dir}")));
    }
    Ok(Recorded { trace, status })
}

/// All names below a directory, its own links not followed.
fn note_names(dir: &Path, above: &str, names: &mut BTreeSet<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = if above.is_empty() { name } else { format!("{above}/{name}") };
        if entry.file_type()?.is_dir() {
            note_names(&entry.path(), &name, names)?;
        }
        names.insert(name);
    }
    Ok(())
}

/// From open to close, which a trace has as one step, or as a read and a write.
#[derive(Debug)]
struct Session {
    at: f64,
    path: String,
    reads: bool,
    writes: bool,
    listed: bool,
    /// Its contents or attributes, by something else than a write.
    changed: bool,
    read: u64,
    written: u64,
}

#[derive(Debug)]
enum Entry {
    Step(Step),
    Session(Session),
}

/// What programs have done so far.
#[derive(Debug)]
struct Programs {
    root: PathBuf,
    here: PathBuf,
    lines: Lines,
    began: Option<f64>,
    /// Of each thread.
    directories: BTreeMap<u32, PathBuf>,
    /// What is there.
    names: BTreeSet<String>,
    entries: Vec<Entry>,
    /// The last session of each path: data is that of whatever descriptor it came by, duplicated or inherited.
    readers: BTreeMap<String, usize>,
    writers: BTreeMap<String, usize>,
}

impl Programs {
    fn new(root: PathBuf, here: PathBuf, names: BTreeSet<String>) -> Programs {
        Programs {
            root,
            here,
            lines: Lines::default(),
            began: None,
            directories: BTreeMap::new(),
            names,
            entries: Vec::new(),
            readers: BTreeMap::new(),
            writers: BTreeMap::new(),
        }
    }

    fn hear(&mut self, line: &str) {
        let starting = self.lines.starting();
        let Some(call) = self.lines.next(line) else { return };
        self.began.get_or_insert(call.at);
        if !self.directories.contains_key(&call.thread) {
            let parent = starting.and_then(|parent| self.directories.get(&parent));
            let directory = parent.unwrap_or(&self.here).clone();
            self.directories.insert(call.thread, directory);
        }
        self.carry_out(&call);
    }

    fn end(self) -> Trace {
        let mut steps: Vec<Step> = Vec::new();
        for entry in self.entries {
            match entry {
                Entry::Step(step) => steps.push(step),
                Entry::Session(session) => steps.extend(session.steps()),
            }
        }
        let began = self.began.unwrap_or_default();
        for step in &mut steps {
            step.at = (step.at - began).max(0.0);
        }
        steps.sort_by(|one, other| one.at.total_cmp(&other.at));
        Trace { steps }
    }

    fn carry_out(&mut self, call: &Call) {
        match call.name.as_str() {
            name if is_start(name) => {
                let child = call.value().and_then(|child| u32::try_from(child).ok());
                if let (Some(child), Some(directory)) = (child, self.directories.get(&call.thread)) {
                    let directory = directory.clone();
                    self.directories.entry(child).or_insert(directory);
                }
            }
            "chdir" if call.value().is_some() => {
                let directory = self.absolute(call, None, 0);
                self.directories.extend(directory.map(|directory| (call.thread, directory)));
            }
            "fchdir" if call.value().is_some() => {
                let directory = of_descriptor(call.argument(0)).map(PathBuf::from);
                self.directories.extend(directory.map(|directory| (call.thread, directory)));
            }
            "open" => self.open(call, None, 0, call.argument(1)),
            "creat" => self.open(call, None, 0, "O_WRONLY|O_CREAT|O_TRUNC"),
            "openat" | "openat2" => self.open(call, Some(0), 1, call.argument(2)),
            "execve" => self.look(call, None, 0, Does::Read),
            "execveat" => self.look(call, Some(0), 1, Does::Read),
            "stat" | "lstat" | "stat64" | "lstat64" | "access" | "readlink" | "getxattr" | "lgetxattr"
            | "listxattr" | "llistxattr" => self.look(call, None, 0, Does::Stat),
            "newfstatat" | "fstatat64" | "statx" | "faccessat" | "faccessat2" | "readlinkat" => {
                self.look(call, Some(0), 1, Does::Stat);
            }
            "mkdir" | "mknod" => self.make(call, None, 0),
            "mkdirat" | "mknodat" => self.make(call, Some(0), 1),
            "symlink" => self.make(call, None, 1),
            "symlinkat" => self.make(call, Some(1), 2),
            "unlink" | "rmdir" => self.remove(call, None, 0),
            "unlinkat" => self.remove(call, Some(0), 1),
            "rename" => self.rename(call, (None, 0), (None, 1)),
            "renameat" | "renameat2" => self.rename(call, (Some(0), 1), (Some(2), 3)),
            "link" => self.link(call, (None, 0), (None, 1)),
            "linkat" => self.link(call, (Some(0), 1), (Some(2), 3)),
            "truncate" | "chmod" | "chown" | "lchown" | "utime" | "utimes" | "setxattr" | "lsetxattr"
            | "removexattr" | "lremovexattr" => self.change(call, None, 0),
            "fchmodat" | "fchmodat2" | "fchownat" | "futimesat" | "utimensat" => {
                self.change(call, Some(0), 1)
            }
            "ftruncate" | "fallocate" | "fchmod" | "fchown" | "fsetxattr" | "fremovexattr" => {
                self.change_open(call, 0);
            }
            "read" | "pread64" | "readv" | "preadv" | "preadv2" => self.data(call, Some(0), None),
            "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" => self.data(call, None, Some(0)),
            "sendfile" => self.data(call, Some(1), Some(0)),
            "copy_file_range" => self.data(call, Some(0), Some(2)),
            "mmap" => self.map(call),
            "getdents" | "getdents64" => self.list(call),
            _ => {}
        }
    }

    /// The path of an argument, relative to the directory of another.
    fn absolute(&self, call: &Call, directory: Option<usize>, path: usize) -> Option<PathBuf> {
        let path = PathBuf::from(quoted(call.argument(path))?);
        let at = directory.and_then(|directory| of_descriptor(call.argument(directory)));
        let at = at.map(PathBuf::from).or_else(|| self.directories.get(&call.thread).cloned());
        let mut whole = PathBuf::new();
        for part in at.unwrap_or_else(|| self.here.clone()).join(path).components() {
            match part {
                Component::ParentDir => drop(whole.pop()),
                Component::CurDir => {}
                other => whole.push(other),
            }
        }
        Some(whole)
    }

    /// The same below the directory that is recorded.
    fn path(&self, call: &Call, directory: Option<usize>, path: usize) -> Option<String> {
        self.below(&self.absolute(call, directory, path)?)
    }

    fn below(&self, path: &Path) -> Option<String> {
        let path = path.strip_prefix(&self.root).ok()?.to_str()?;
        // A trace has a line for each step.
        Some(path.replace('\n', "?"))
    }

    fn below_of(&self, call: &Call, argument: usize) -> Option<String> {
        self.below(Path::new(&of_descriptor(call.argument(argument))?))
    }

    fn step(&mut self, at: f64, does: Does, bytes: Option<u64>, path: &str, to: Option<&str>) {
        // The root itself can only be looked at.
        if path.is_empty() && !matches!(does, Does::Stat | Does::List) || to == Some("") {
            return;
        }
        let (path, to) = (path.to_owned(), to.map(str::to_owned));
        self.entries.push(Entry::Step(Step { at, client: 0, does, bytes, path, to }));
    }

    /// A name that is looked for, found or not.
    fn look(&mut self, call: &Call, directory: Option<usize>, path: usize, does: Does) {
        // The file of a descriptor, by AT_EMPTY_PATH: part of its session.
        if quoted(call.argument(path)).is_none_or(|path| path.is_empty()) {
            return;
        }
        let Some(path) = self.path(call, directory, path) else { return };
        match call.error() {
            Some("ENOENT" | "ENOTDIR") => self.step(call.at, Does::Miss, None, &path, None),
            Some(_) if does == Does::Read => {}
            _ => {
                self.names.insert(path.clone());
                self.step(call.at, does, None, &path, None);
            }
        }
    }

    fn open(&mut self, call: &Call, directory: Option<usize>, path: usize, flags: &str) {
        let Some(path) = self.path(call, directory, path) else { return };
        let has = |flag: &str| flags.split(['|', '{', '}', '=', ',']).any(|word| word.trim() == flag);
        if call.error() == Some("ENOENT") {
            return self.step(call.at, Does::Miss, None, &path, None);
        }
        if call.value().is_none() || has("O_TMPFILE") {
            return;
        }
        // What it is by its own name, if a link leads there.
        let path = of_descriptor(&call.result).and_then(|real| self.below(Path::new(&real))).unwrap_or(path);
        if has("O_PATH") {
            return self.step(call.at, Does::Stat, None, &path, None);
        }
        if self.names.insert(path.clone()) && has("O_CREAT") {
            self.step(call.at, Does::Make, None, &path, None);
        }
        let writes = has("O_WRONLY") || has("O_RDWR");
        let session = Session {
            at: call.at,
            path: path.clone(),
            reads: !has("O_WRONLY"),
            writes,
            listed: false,
            changed: writes && has("O_TRUNC"),
            read: 0,
            written: 0,
        };
        let number = self.entries.len();
        if session.reads {
            self.readers.insert(path.clone(), number);
        }
        if session.writes {
            self.writers.insert(path, number);
        }
        self.entries.push(Entry::Session(session));
    }

    fn session(&mut self, number: Option<usize>) -> Option<&mut Session> {
        match self.entries.get_mut(number?)? {
            Entry::Session(session) => Some(session),
            Entry::Step(_) => None,
        }
    }

    fn reader(&mut self, call: &Call, argument: usize) -> Option<&mut Session> {
        let number = self.readers.get(&self.below_of(call, argument)?).copied();
        self.session(number)
    }

    fn writer(&mut self, call: &Call, argument: usize) -> Option<&mut Session> {
        let number = self.writers.get(&self.below_of(call, argument)?).copied();
        self.session(number)
    }

    fn data(&mut self, call: &Call, from: Option<usize>, to: Option<usize>) {
        let Some(bytes) = call.value() else { return };
        if let Some(session) = from.and_then(|from| self.reader(call, from)) {
            session.read += bytes;
        }
        if let Some(session) = to.and_then(|to| self.writer(call, to)) {
            session.written += bytes;
        }
    }

    fn map(&mut self, call: &Call) {
        let length = call.argument(1).parse().unwrap_or(0);
        let is_written = ["PROT_WRITE", "MAP_SHARED"]
            .iter()
            .zip([2, 3])
            .all(|(flag, at)| call.argument(at).split('|').any(|word| word == *flag));
        if call.value().is_none() {
            return;
        }
        if is_written && let Some(session) = self.writer(call, 4) {
            session.written += length;
        } else if let Some(session) = self.reader(call, 4) {
            session.read += length;
        }
    }

    fn list(&mut self, call: &Call) {
        if let Some(session) = self.reader(call, 0) {
            session.listed = true;
        }
    }

    fn make(&mut self, call: &Call, directory: Option<usize>, path: usize) {
        let Some(path) = self.path(call, directory, path).filter(|_| call.value().is_some()) else { return };
        self.names.insert(path.clone());
        self.step(call.at, Does::Make, None, &path, None);
    }

    fn remove(&mut self, call: &Call, directory: Option<usize>, path: usize) {
        let Some(path) = self.path(call, directory, path) else { return };
        match (call.value(), call.error()) {
            (Some(_), _) => {
                self.names.remove(&path);
                self.step(call.at, Does::Remove, None, &path, None);
            }
            (None, Some("ENOENT")) => self.step(call.at, Does::Miss, None, &path, None),
            (None, _) => {}
        }
    }

    fn rename(&mut self, call: &Call, from: (Option<usize>, usize), to: (Option<usize>, usize)) {
        if call.value().is_none() {
            return;
        }
        match (self.path(call, from.0, from.1), self.path(call, to.0, to.1)) {
            (Some(from), Some(to)) => {
                self.step(call.at, Does::Rename, None, &from, Some(&to));
                // Descriptors are printed with the new name from now on.
                self.names = self.names.iter().map(|name| moved(name, &from, &to)).collect();
                for sessions in [&mut self.readers, &mut self.writers] {
                    let all = std::mem::take(sessions).into_iter();
                    let all = all.filter(|(name, _)| !is_at_or_below(name, &to));
                    sessions.extend(all.map(|(name, number)| (moved(&name, &from, &to), number)));
                }
            }
            // To or from where nothing is recorded.
            (Some(from), None) => {
                self.names.retain(|name| !is_at_or_below(name, &from));
                self.step(call.at, Does::Remove, None, &from, None);
            }
            (None, Some(to)) => {
                self.names.insert(to.clone());
                self.step(call.at, Does::Make, None, &to, None);
            }
            (None, None) => {}
        }
    }

    fn link(&mut self, call: &Call, from: (Option<usize>, usize), to: (Option<usize>, usize)) {
        let to = self.path(call, to.0, to.1).filter(|_| call.value().is_some());
        let Some(to) = to else { return };
        self.names.insert(to.clone());
        match self.path(call, from.0, from.1).filter(|from| !from.is_empty()) {
            Some(from) => self.step(call.at, Does::Link, None, &from, Some(&to)),
            // Of a file that has had no name, or one elsewhere.
            None => self.step(call.at, Does::Make, None, &to, None),
        }
    }

    /// Attributes, or a length, of a name.
    fn change(&mut self, call: &Call, directory: Option<usize>, path: usize) {
        if quoted(call.argument(path)).is_none_or(|path| path.is_empty()) {
            return directory.into_iter().for_each(|directory| self.change_open(call, directory));
        }
        let path = self.path(call, directory, path).filter(|_| call.value().is_some());
        if let Some(path) = path {
            self.step(call.at, Does::Write, Some(0), &path, None);
        }
    }

    /// The same of a descriptor.
    fn change_open(&mut self, call: &Call, argument: usize) {
        if call.value().is_none() {
            return;
        }
        if let Some(session) = self.writer(call, argument) {
            session.changed = true;
        } else if let Some(path) = self.below_of(call, argument) {
            self.step(call.at, Does::Write, Some(0), &path, None);
        }
    }
}

/// The name after a rename.
fn moved(name: &str, from: &str, to: &str) -> String {
    if is_at_or_below(name, from) { format!("{to}{}", &name[from.len()..]) } else { name.to_owned() }
}

impl Session {
    /// What it comes to: nothing, if it was opened for writing and nothing was written.
    fn steps(self) -> Vec<Step> {
        let Session { at, path, reads, writes, listed, changed, read, written } = self;
        let step = |does: Does, bytes: Option<u64>| Step {
            at,
            client: 0,
            does,
            bytes,
            path: path.clone(),
            to: None,
        };
        if listed {
            return vec![step(Does::List, None)];
        }
        // The root, and other directories that are opened and not listed.
        if path.is_empty() {
            return vec![step(Does::Stat, None)];
        }
        let has_written = writes && (changed || written > 0);
        let mut steps = Vec::new();
        if reads && (read > 0 || !has_written) {
            steps.push(step(Does::Read, Some(read)));
        }
        if has_written {
            steps.push(step(Does::Write, Some(written)));
        }
        steps
    }
}
