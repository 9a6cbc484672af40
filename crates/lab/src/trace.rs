//! What programs asked of a file system, recorded while a real mount answered; a workload of the simulator ([`crate::sim`]).
//!
//! A trace is CSV: seconds from the start, client, call (`read`, `write`, `stat`, `miss`, `list`, `make`, `remove`), and path.
//! `make` and `remove` change the directory that the path is in, `miss` reads it: a name that is not there. `read` and `write`
//! are all of a file, from open to close.

use crate::LabError;
use crate::sim::workload::{Event, OpenFor, SystemCall};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const HEAD: &str = "seconds,client,call,path";

/// One call of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// From the start.
    pub at: f64,
    pub client: usize,
    pub does: Does,
    /// From the root of the volume, `/` between names.
    pub path: String,
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
}

const WORDS: [(&str, Does); 7] = [
    ("read", Does::Read),
    ("write", Does::Write),
    ("stat", Does::Stat),
    ("miss", Does::Miss),
    ("list", Does::List),
    ("make", Does::Make),
    ("remove", Does::Remove),
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
        for Step { at, client, does, path } in &self.steps {
            let word = WORDS.iter().find(|(_, known)| known == does).map_or("", |(word, _)| *word);
            let _ = writeln!(out, "{at:.6},{client},{word},{path}");
        }
        out
    }

    /// # Errors
    /// The line that is no step, and why.
    pub fn parse(text: &str) -> Result<Trace, LabError> {
        let mut steps: Vec<Step> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if number == 0 && line == HEAD || line.trim().is_empty() {
                continue;
            }
            let wrong = |what: &str| LabError::Usage(format!("line {} of the trace: {what}", number + 1));
            let mut parts = line.splitn(4, ',');
            let mut part = || parts.next().ok_or_else(|| wrong(&format!("expected {HEAD}")));
            let (at, client, word, path) = (part()?, part()?, part()?, part()?);
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
            let path = path.trim_matches('/');
            if path.is_empty() && does != Does::List && does != Does::Stat {
                return Err(wrong("the root can only be listed or asked about"));
            }
            steps.push(Step { at, client, does, path: path.to_owned() });
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

    /// Seconds until the last step.
    pub fn length(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.at)
    }

    /// For the simulator. A file's directories are objects, too; to make or remove a name is to change its directory.
    pub fn replay(&self) -> Replay {
        let mut objects: BTreeMap<String, usize> = BTreeMap::from([(String::new(), 0)]);
        let mut parents = vec![None];
        let (mut events, mut used, mut born) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for step in &self.steps {
            let object = object_of(&mut objects, &mut parents, &step.path);
            // What was asked for in vain may be made later.
            if step.does != Does::Miss && used.insert(object) && step.does == Does::Make {
                born.insert(object);
            }
            let directory = parents[object].unwrap_or(0);
            let (file, mode, call) = match step.does {
                Does::Read | Does::Stat | Does::List => (object, OpenFor::Reading, SystemCall::Read),
                Does::Write => (object, OpenFor::Writing, SystemCall::Write),
                Does::Miss => (directory, OpenFor::Reading, SystemCall::Read),
                Does::Make | Does::Remove => (directory, OpenFor::Writing, SystemCall::Write),
            };
            let event = |call| Event { at: step.at, client: step.client, file, call };
            events.extend([SystemCall::Open(mode), call, SystemCall::Close].map(event));
        }
        let clients = self.steps.iter().map(|step| step.client + 1).max().unwrap_or(1);
        let duration = self.length() + 1.0;
        Replay { clients: u32::try_from(clients).unwrap_or(u32::MAX), parents, born, events, duration }
    }
}

fn object_of(objects: &mut BTreeMap<String, usize>, parents: &mut Vec<Option<usize>>, path: &str) -> usize {
    if let Some(object) = objects.get(path) {
        return *object;
    }
    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
    let parent = object_of(objects, parents, above);
    parents.push(Some(parent));
    objects.insert(path.to_owned(), parents.len() - 1);
    parents.len() - 1
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
}

impl Files {
    pub(crate) fn of(root: &Path) -> Files {
        Files { root: root.to_owned(), recording: None }
    }

    pub(crate) fn recorded(root: &Path, recording: &Recording, client: usize) -> Files {
        Files { root: root.to_owned(), recording: Some((recording.clone(), client)) }
    }

    fn note(&self, does: Does, path: &str) {
        if let Some((recording, client)) = &self.recording {
            let computed = *recording.computed.lock().unwrap_or_else(PoisonError::into_inner);
            let at = (recording.began.elapsed() + computed).as_secs_f64();
            let step = Step { at, client: *client, does, path: path.to_owned() };
            recording.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, LabError> {
        self.note(Does::Read, path);
        std::fs::read(self.at(path)).map_err(LabError::io(self.at(path)))
    }

    /// A new file.
    pub(crate) fn create(&self, path: &str, bytes: &[u8]) -> Result<(), LabError> {
        self.note(Does::Make, path);
        self.write(path, bytes)
    }

    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<(), LabError> {
        self.note(Does::Write, path);
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

    /// The program computes. A recording is told how long; nobody waits for it.
    pub(crate) fn compute(&self, time: Duration) {
        match &self.recording {
            Some((recording, _)) => {
                *recording.computed.lock().unwrap_or_else(PoisonError::into_inner) += time;
            }
            None => std::thread::sleep(time),
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
        let trace = recording.end();
        let done: Vec<Does> = trace.steps.iter().map(|step| step.does).collect();
        use Does::{List, Make, Miss, Read, Remove, Stat, Write};
        assert_eq!(done, [Make, Make, Write, Read, Stat, Miss, List, Remove]);
        let again = Trace::parse(&trace.csv()).expect("a trace");
        let same = |one: &Step, other: &Step| {
            (one.does, &one.path, one.client) == (other.does, &other.path, other.client)
        };
        assert_eq!(again.steps.len(), trace.steps.len());
        assert!(again.steps.iter().zip(&trace.steps).all(|(one, other)| same(one, other)));

        let replay = trace.replay();
        assert_eq!(replay.born, BTreeSet::from([1, 2]));
        assert_eq!((replay.clients, &replay.parents), (2, &vec![None, Some(0), Some(1), Some(1)]));
        let written: Vec<usize> = replay
            .events
            .iter()
            .filter(|event| event.call == SystemCall::Write)
            .map(|event| event.file)
            .collect();
        // The root for `a`, `a` for `b`, `b` itself, `a` for the removal.
        assert_eq!(written, [0, 1, 2, 1]);
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
        let missing = Trace::read(Path::new("/nowhere/trace.csv")).expect_err("none").to_string();
        assert!(missing.contains("/nowhere/trace.csv"), "{missing}");
    }
}
