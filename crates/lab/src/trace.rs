//! What programs asked of a file system, recorded while a real mount answered; a workload of the simulator ([`crate::sim`]).
//!
//! A trace is CSV: seconds from the start, client, call (`read`, `write`, `stat`, `miss`, `list`, `make`, `remove`, `rename`,
//! `link`), bytes that are read or written (nothing: a block of 4 KiB), and path. `make` and `remove` change the directory
//! that the path is in, `miss` reads it: a name that is not there. `read` and `write` are all of a file, from open to close.
//! `rename` and `link` (a second name of a file) have two paths, ` -> ` between them; a symbolic link is made as a file is,
//! and to read one is a `stat`.

mod programs;
mod strace;

pub use programs::{Recorded, record};

use crate::LabError;
use crate::workload::{BLOCK, Event, OpenFor, SystemCall};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const HEAD: &str = "seconds,client,call,bytes,path";
/// So a trace may begin, too.
const WITHOUT_BYTES: &str = "seconds,client,call,path";

/// One call of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// From the start.
    pub at: f64,
    pub client: usize,
    pub does: Does,
    /// All that is read or written, if that is known.
    pub bytes: Option<u64>,
    /// From the root of the volume, `/` between names.
    pub path: String,
    /// The new name, of what has two.
    pub to: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    Read,
    Write,
    Stat,
    Miss,
    List,
    Make,
    Remove,
    Rename,
    Link,
}

/// Between the two names of a rename or a link.
const ARROW: &str = " -> ";

const WORDS: [(&str, Does); 9] = [
    ("read", Does::Read),
    ("write", Does::Write),
    ("stat", Does::Stat),
    ("miss", Does::Miss),
    ("list", Does::List),
    ("make", Does::Make),
    ("remove", Does::Remove),
    ("rename", Does::Rename),
    ("link", Does::Link),
];

/// What was recorded, in order of time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    pub steps: Vec<Step>,
}

/// A trace as the simulator takes it: files and directories by number.
#[derive(Clone, PartialEq, Debug)]
pub struct Replay {
    pub clients: u32,
    /// The directory of each object; the root, the first, has none.
    pub parents: Vec<Option<usize>>,
    /// Objects that are not there before the trace begins.
    pub born: BTreeSet<usize>,
    pub events: Vec<Event>,
    /// Seconds.
    pub duration: f64,
}

impl Trace {
    pub fn csv(&self) -> String {
        let mut out = format!("{HEAD}\n");
        for Step { at, client, does, bytes, path, to } in &self.steps {
            let word = WORDS.iter().find(|(_, known)| known == does).map_or("", |(word, _)| *word);
            let to = to.as_ref().map(|to| format!("{ARROW}{to}")).unwrap_or_default();
            let bytes = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
            let _ = writeln!(out, "{at:.6},{client},{word},{bytes},{path}{to}");
        }
        out
    }

    /// # Errors
    /// The line that is no step, and why.
    pub fn parse(text: &str) -> Result<Trace, LabError> {
        let mut steps: Vec<Step> = Vec::new();
        let has_bytes = text.lines().next() == Some(HEAD);
        let columns = if has_bytes { HEAD } else { WITHOUT_BYTES };
        for (number, line) in text.lines().enumerate() {
            if number == 0 && line == columns || line.trim().is_empty() {
                continue;
            }
            let wrong = |what: &str| LabError::Usage(format!("line {} of the trace: {what}", number + 1));
            let mut parts = line.splitn(if has_bytes { 5 } else { 4 }, ',');
            let mut part = || parts.next().ok_or_else(|| wrong(&format!("expected {columns}")));
            let (at, client, word) = (part()?, part()?, part()?);
            let (bytes, path) = (if has_bytes { part()? } else { "" }, part()?);
            let bytes = match bytes {
                "" => None,
                number => {
                    Some(number.parse().map_err(|_| wrong(&format!("`{number}` is no number of bytes")))?)
                }
            };
            let at: f64 = at.parse().map_err(|_| wrong(&format!("`{at}` is no number of seconds")))?;
            if !at.is_finite() || at < 0.0 || steps.last().is_some_and(|last| last.at > at) {
                return Err(wrong("times are seconds from the start, in order"));
            }
            let client: usize =
                client.parse().map_err(|_| wrong(&format!("`{client}` is no client's number")))?;
            if client >= 1000 {
                return Err(wrong("clients are numbered from 0; at most 1000"));
            }
            let does = WORDS.iter().find(|(known, _)| *known == word).map(|(_, does)| *does);
            let known = WORDS.map(|(word, _)| word).join(", ");
            let does = does.ok_or_else(|| wrong(&format!("`{word}` is none of {known}")))?;
            let (path, to) = match does {
                Does::Rename | Does::Link => {
                    let parts = path.split_once(ARROW);
                    let (path, to) = parts.ok_or_else(|| wrong("expected two paths, `OLD -> NEW`"))?;
                    (path, Some(to.trim_matches('/')))
                }
                _ => (path, None),
            };
            let path = path.trim_matches('/');
            let may_be_root = does == Does::List || does == Does::Stat;
            if path.is_empty() && !may_be_root || to.is_some_and(str::is_empty) {
                return Err(wrong("the root can only be listed or asked about"));
            }
            if to.is_some_and(|to| is_at_or_below(to, path)) {
                return Err(wrong("nothing can be moved into itself"));
            }
            steps.push(Step { at, client, does, bytes, path: path.to_owned(), to: to.map(str::to_owned) });
        }
        if steps.is_empty() {
            return Err(LabError::Usage("the trace has no step".to_owned()));
        }
        Ok(Trace { steps })
    }

    /// # Errors
    /// As [`Trace::parse`]; if there is no such file.
    pub fn read(path: &Path) -> Result<Trace, LabError> {
        let text = std::fs::read_to_string(path).map_err(LabError::io(path))?;
        Trace::parse(&text).map_err(|error| LabError::Usage(format!("{}: {error}", path.display())))
    }

    /// How many steps there are of each kind, in words; of those that there are.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let count = |does: Does| self.steps.iter().filter(|step| step.does == does).count();
        WORDS.iter().map(|(word, does)| (*word, count(*does))).filter(|(_, count)| *count > 0).collect()
    }

    /// Seconds until the last step.
    pub fn length(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.at)
    }

    /// For the simulator. A file's directories are objects, too; to make or remove a name is to change its directory, a rename
    /// from one directory to another changes both, and a link the file as well. What is renamed stays the same object; for deep
    /// leases it stays in the directory that it comes from. What is made under the name of what was removed is another one.
    pub fn replay(&self) -> Replay {
        let (mut names, mut parents) = (Names::new(), vec![None]);
        let (mut events, mut used, mut born) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut linked = BTreeSet::new();
        // As they come: who is the 1000th of a trace that has two is the second, and nobody keeps room for the others.
        let mut clients: BTreeMap<usize, usize> = BTreeMap::new();
        for step in &self.steps {
            let next = clients.len();
            let client = *clients.entry(step.client).or_insert(next);
            let object = object_of(&mut names, &mut parents, &step.path);
            // What was asked for in vain may be made later.
            if step.does != Does::Miss && used.insert(object) && step.does == Does::Make {
                born.insert(object);
            }
            let directory = object_of(&mut names, &mut parents, above(&step.path));
            let to = step.to.as_deref().unwrap_or_default();
            let target = object_of(&mut names, &mut parents, above(to));
            let changed = match step.does {
                Does::Rename if target == directory => vec![directory],
                Does::Rename => vec![directory, target],
                _ => vec![target, object],
            };
            match step.does {
                Does::Rename => rename(&mut names, &step.path, to),
                Does::Link => {
                    linked.insert(object);
                    names.insert(to.to_owned(), object);
                }
                Does::Remove => forget(&mut names, &step.path),
                _ => {}
            }
            let bytes = step.bytes.unwrap_or(BLOCK);
            let mut does = |file: usize, calls: &[SystemCall], bytes: u64| {
                let event = |call: &SystemCall| Event {
                    at: step.at,
                    client,
                    file,
                    call: *call,
                    size: bytes,
                    part: bytes,
                };
                events.extend(calls.iter().map(event));
            };
            match step.does {
                Does::Read | Does::Write => {
                    let (mode, call) = match step.does {
                        Does::Read => (OpenFor::Reading, SystemCall::Read),
                        _ => (OpenFor::Replacing, SystemCall::Write),
                    };
                    does(object, &[SystemCall::Open(mode), call, SystemCall::Close], bytes);
                }
                Does::List => does(object, &[SystemCall::Look], bytes),
                Does::Stat => does(object, &[SystemCall::Look], 0),
                Does::Miss => does(directory, &[SystemCall::Look], 0),
                Does::Make => does(directory, &[SystemCall::Change], 0),
                Does::Remove => {
                    does(directory, &[SystemCall::Change], 0);
                    if !linked.contains(&object) {
                        does(object, &[SystemCall::Gone], 0);
                    }
                }
                Does::Rename | Does::Link => {
                    changed.iter().for_each(|object| does(*object, &[SystemCall::Change], 0));
                }
            }
        }
        let duration = self.length() + 1.0;
        let clients = u32::try_from(clients.len()).unwrap_or(u32::MAX).max(1);
        Replay { clients, parents, born, events, duration }
    }
}

/// The object of each path but the root's, which is the first.
type Names = BTreeMap<String, usize>;

fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

fn is_at_or_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn object_of(names: &mut Names, parents: &mut Vec<Option<usize>>, path: &str) -> usize {
    if path.is_empty() {
        return 0;
    }
    if let Some(object) = names.get(path) {
        return *object;
    }
    let parent = object_of(names, parents, above(path));
    parents.push(Some(parent));
    names.insert(path.to_owned(), parents.len() - 1);
    parents.len() - 1
}

/// With all that is below it. What had the new name has none any more.
fn rename(names: &mut Names, from: &str, to: &str) {
    forget(names, to);
    for path in at_or_below(names, from) {
        if let Some(object) = names.remove(&path) {
            names.insert(format!("{to}{}", &path[from.len()..]), object);
        }
    }
}

fn forget(names: &mut Names, path: &str) {
    for path in at_or_below(names, path) {
        names.remove(&path);
    }
}

/// Without a look at all the others: a trace may have millions.
fn at_or_below(names: &Names, dir: &str) -> Vec<String> {
    let below = names.range(format!("{dir}/")..).map(|(path, _)| path);
    let below = below.take_while(|path| is_at_or_below(path, dir)).cloned();
    names.contains_key(dir).then(|| dir.to_owned()).into_iter().chain(below).collect()
}

/// What several clients do at once is recorded in one place.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    began: Instant,
    steps: Arc<Mutex<Vec<Step>>>,
    /// What clients computed, which nobody waits for while it is recorded.
    computed: Arc<Mutex<Duration>>,
}

impl Recording {
    pub(crate) fn start() -> Recording {
        Recording { began: Instant::now(), steps: Arc::default(), computed: Arc::default() }
    }

    pub(crate) fn end(&self) -> Trace {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        steps.sort_by(|one, other| one.at.total_cmp(&other.at));
        Trace { steps }
    }
}

/// The calls of one client on a directory, its mount; recorded if that is wished.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
    recording: Option<(Recording, usize)>,
    computing: Computing,
}

/// What happens while a program computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Computing {
    /// It takes its time.
    Waited,
    /// A recording is told how long it would be.
    Noted,
}

impl Files {
    pub(crate) fn of(root: &Path) -> Files {
        Files { root: root.to_owned(), recording: None, computing: Computing::Waited }
    }

    pub(crate) fn recorded(root: &Path, recording: &Recording, client: usize) -> Files {
        let recording = Some((recording.clone(), client));
        Files { root: root.to_owned(), recording, computing: Computing::Noted }
    }

    /// As [`Files::recorded`], of programs that take their time.
    pub(crate) fn recorded_live(root: &Path, recording: &Recording, client: usize) -> Files {
        Files { computing: Computing::Waited, ..Files::recorded(root, recording, client) }
    }

    fn note(&self, does: Does, path: &str) {
        self.note_all(self.moment(), does, path, None, None);
    }

    /// Seconds from the start of the recording.
    fn moment(&self) -> f64 {
        let Some((recording, _)) = &self.recording else { return 0.0 };
        let computed = *recording.computed.lock().unwrap_or_else(PoisonError::into_inner);
        (recording.began.elapsed() + computed).as_secs_f64()
    }

    fn note_all(&self, at: f64, does: Does, path: &str, bytes: Option<usize>, to: Option<&str>) {
        if let Some((recording, client)) = &self.recording {
            let (bytes, to) = (bytes.map(|bytes| bytes as u64), to.map(str::to_owned));
            let step = Step { at, client: *client, does, bytes, path: path.to_owned(), to };
            recording.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, LabError> {
        // It has begun before its size is known.
        let began = self.moment();
        let bytes = std::fs::read(self.at(path)).map_err(LabError::io(self.at(path)))?;
        self.note_all(began, Does::Read, path, Some(bytes.len()), None);
        Ok(bytes)
    }

    /// A new file.
    pub(crate) fn create(&self, path: &str, bytes: &[u8]) -> Result<(), LabError> {
        self.note(Does::Make, path);
        self.write(path, bytes)
    }

    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<(), LabError> {
        self.note_all(self.moment(), Does::Write, path, Some(bytes.len()), None);
        std::fs::write(self.at(path), bytes).map_err(LabError::io(self.at(path)))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        let is_there = std::fs::symlink_metadata(self.at(path)).is_ok();
        self.note(if is_there { Does::Stat } else { Does::Miss }, path);
        is_there
    }

    pub(crate) fn make_dir(&self, path: &str) -> Result<(), LabError> {
        self.note(Does::Make, path);
        std::fs::create_dir(self.at(path)).map_err(LabError::io(self.at(path)))
    }

    pub(crate) fn list(&self, path: &str) -> Result<Vec<String>, LabError> {
        self.note(Does::List, path);
        let entries = std::fs::read_dir(self.at(path)).map_err(LabError::io(self.at(path)))?;
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.map_err(LabError::io(self.at(path)))?;
            Ok(entry.file_name().to_string_lossy().into_owned())
        };
        entries.map(name).collect()
    }

    pub(crate) fn remove(&self, path: &str) -> Result<(), LabError> {
        self.note(Does::Remove, path);
        std::fs::remove_file(self.at(path)).map_err(LabError::io(self.at(path)))
    }

    pub(crate) fn rename(&self, path: &str, to: &str) -> Result<(), LabError> {
        self.note_all(self.moment(), Does::Rename, path, None, Some(to));
        std::fs::rename(self.at(path), self.at(to)).map_err(LabError::io(self.at(path)))
    }

    /// A second name of a file.
    pub(crate) fn link(&self, path: &str, to: &str) -> Result<(), LabError> {
        self.note_all(self.moment(), Does::Link, path, None, Some(to));
        std::fs::hard_link(self.at(path), self.at(to)).map_err(LabError::io(self.at(path)))
    }

    /// The program computes: a recording may be told how long, and nobody waits for it.
    pub(crate) fn compute(&self, time: Duration) {
        match (&self.recording, self.computing) {
            (Some((recording, _)), Computing::Noted) => {
                *recording.computed.lock().unwrap_or_else(PoisonError::into_inner) += time;
            }
            _ => std::thread::sleep(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_comes_back_from_its_csv_and_is_what_was_done() {
        let dir = tempfile::tempdir().expect("a directory");
        let recording = Recording::start();
        let files = Files::recorded(dir.path(), &recording, 1);
        files.make_dir("a").expect("made");
        files.create("a/b", b"x").expect("made");
        assert_eq!(files.read("a/b").expect("read"), b"x");
        assert!(files.exists("a/b") && !files.exists("a/c"));
        assert_eq!(files.list("a").expect("listed"), ["b"]);
        files.remove("a/b").expect("removed");
        files.create("a/c, d", b"y").expect("made");
        files.rename("a/c, d", "e").expect("renamed");
        files.link("e", "a/f").expect("linked");
        assert_eq!(files.read("a/f").expect("read"), b"y");
        let trace = recording.end();
        let done: Vec<Does> = trace.steps.iter().map(|step| step.does).collect();
        use Does::{Link, List, Make, Miss, Read, Remove, Rename, Stat, Write};
        let all = [Make, Make, Write, Read, Stat, Miss, List, Remove, Make, Write, Rename, Link, Read];
        assert_eq!(done, all);
        let again = Trace::parse(&trace.csv()).expect("a trace");
        let same = |one: &Step, other: &Step| {
            let of = |step: &Step| (step.does, step.path.clone(), step.to.clone(), step.client, step.bytes);
            of(one) == of(other)
        };
        assert_eq!(again.steps.len(), trace.steps.len());
        assert!(again.steps.iter().zip(&trace.steps).all(|(one, other)| same(one, other)));

        let replay = trace.replay();
        // a, a/b, a/c (in vain), and what was made as `a/c, d`.
        assert_eq!(replay.born, BTreeSet::from([1, 2, 4]));
        assert_eq!((replay.clients, &replay.parents), (1, &vec![None, Some(0), Some(1), Some(1), Some(1)]));
        let written: Vec<usize> =
            replay.events.iter().filter(|event| event.call.is_change()).map(|event| event.file).collect();
        // The root for `a`, `a` for `b`, `b` itself, `a` for the removal and the next file, that file; both directories for
        // its new name, and the other one for the second, which changes the file as well.
        assert_eq!(written, [0, 1, 2, 1, 1, 4, 1, 0, 1, 4]);
        assert_eq!(replay.events.last().map(|event| event.file), Some(4), "whatever name it is read by");
        // Writes of one byte each, and reads of as much.
        let moved = |call| {
            let events = replay.events.iter().filter(move |event| event.call == call);
            events.map(|event| (event.size, event.part)).collect::<Vec<_>>()
        };
        assert_eq!([moved(SystemCall::Read), moved(SystemCall::Write)], [[(1, 1); 2], [(1, 1); 2]]);
    }

    #[test]
    fn a_trace_may_say_how_much_is_read_and_written_or_not() {
        let sizes = |text: &str| {
            let events = Trace::parse(text).expect("a trace").replay().events;
            let data =
                events.iter().filter(|event| matches!(event.call, SystemCall::Read | SystemCall::Write));
            data.map(|event| event.size).collect::<Vec<_>>()
        };
        let head = "seconds,client,call,bytes,path\n";
        assert_eq!(sizes(&format!("{head}0,0,read,70000,a\n1,0,write,,b, c\n")), [70_000, 4096]);
        assert_eq!(sizes("seconds,client,call,path\n0,0,read,7,a\n"), [4096], "the file's name is `7,a`");
        let refused = Trace::parse(&format!("{head}0,0,read,a\n")).expect_err("no path").to_string();
        assert!(
            refused.contains("line 2 of the trace: expected seconds,client,call,bytes,path"),
            "{refused}"
        );
        let refused = Trace::parse(&format!("{head}0,0,read,-1,a\n")).expect_err("negative").to_string();
        assert!(refused.contains("`-1` is no number of bytes"), "{refused}");
    }

    /// The objects that the steps use, but for directories that are changed.
    fn used(steps: &str) -> Vec<usize> {
        let lines: String = steps.lines().map(|step| format!("0,0,{step}\n")).collect();
        let replay = Trace::parse(&lines).expect("a trace").replay();
        let reads = replay.events.iter().filter(|event| event.call == SystemCall::Read);
        reads.map(|event| event.file).collect()
    }

    #[test]
    fn names_move_with_all_that_is_below_them_and_objects_stay() {
        // 1: dir, 2: dir/file, 3: directory, 4: directory/file; what has the old name next is another one.
        let steps = "read,dir/file\nread,directory/file\nrename,dir -> new\nread,new/file\nread,directory/file\n\
                     read,dir/file";
        assert_eq!(used(steps), [2, 4, 2, 4, 6]);
        // As editors save: what was there is gone.
        assert_eq!(used("read,file\nread,file.new\nrename,file.new -> file\nread,file"), [1, 2, 2]);
    }

    #[test]
    fn clients_are_as_many_as_do_something() {
        let replay = Trace::parse("0,999,read,a\n1,3,read,a\n2,999,write,a\n").expect("a trace").replay();
        let clients: Vec<usize> = replay.events.iter().map(|event| event.client).collect();
        assert_eq!((replay.clients, clients), (2, vec![0, 0, 0, 1, 1, 1, 0, 0, 0]));
    }

    #[test]
    fn names_beside_what_is_renamed_stay() {
        let mut names = Names::new();
        for (object, path) in (1..).zip(["a", "a-b", "a.c", "a/x", "a/y/z", "a0", "b", "b/old"]) {
            names.insert(path.to_owned(), object);
        }
        rename(&mut names, "a", "b");
        let now: Vec<(&str, usize)> = names.iter().map(|(path, object)| (path.as_str(), *object)).collect();
        assert_eq!(now, [("a-b", 2), ("a.c", 3), ("a0", 6), ("b", 1), ("b/x", 4), ("b/y/z", 5)]);
    }

    #[test]
    fn a_trace_that_is_none_is_refused_with_the_line() {
        let refused = |text: &str| Trace::parse(text).expect_err("no trace").to_string();
        assert!(refused("").contains("no step"));
        assert!(refused("0,0,read").contains("line 1"));
        assert!(refused("0,0,read,a\nNaN,0,read,a").contains("line 2"));
        assert!(refused("-1,0,read,a").contains("seconds from the start"));
        assert!(refused("1,0,read,a\n0.5,0,read,a").contains("in order"));
        assert!(refused("0,x,read,a").contains("`x` is no client"));
        assert!(refused("0,0,mount,a").contains("`mount` is none of read, write"));
        assert!(refused("0,0,write,/").contains("root"));
        assert!(refused("0,0,rename,a").contains("`OLD -> NEW`"));
        assert!(refused("0,0,link,a -> /").contains("root"));
        assert!(refused("0,0,rename,a -> a/b").contains("into itself"));
        let missing = Trace::read(Path::new("/nowhere/trace.csv")).expect_err("none").to_string();
        assert!(missing.contains("/nowhere/trace.csv"), "{missing}");
    }
}
