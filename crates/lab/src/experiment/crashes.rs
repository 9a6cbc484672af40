//! CS739's crash points: the server or a client dies in the middle of something; what do programs see, what is left?

use super::{Found, Lab, joined};
use crate::LabError;
use crate::cell::Cell;
use crate::check::Check;
use crate::figure::{Axis, Figure, Series, Style, Table, digits};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Files that are written over and over, with as many versions as it takes.
const FILES: usize = 5;
/// Large enough that its data goes to a chunk of its own on the server's disk.
const SIZE: usize = 200_000;
/// More than it takes to pass any point so often as below.
const WRITES: usize = 120;
/// Files that a client makes unless it dies before.
const MADE: usize = 600;
/// Of these, what it has made when it is killed.
const KILLED_AFTER: usize = 35;
/// Of so many files it syncs one.
const SYNC_EVERY: usize = 4;

/// Where the server dies (and at which passage: starting passes some, too), and what has been done by then.
const SERVER: [(&str, &str); 14] = [
    ("segment.half-written:8", "half of the data is on the disk"),
    ("meta.commit.after:30", "the change is committed, nobody has heard of it"),
    ("server.digest-applied:5", "delayed changes are applied, not committed"),
    ("volume.sync.data-done:8", "fsync: the data is durable, what refers to it is not"),
    ("volume.staged:8", "the data is handed to the store"),
    ("segment.appended:8", "all of the data is written, not synced"),
    ("segment.synced:8", "the data is synced"),
    ("meta.commit.before:30", "before the change is committed"),
    ("meta.sync.before:12", "before the journal is synced"),
    ("meta.sync.after:12", "the journal is synced, nobody has heard of it"),
    ("volume.commit.after:20", "the change is in the store"),
    ("volume.sync.done:8", "fsync: all is durable, nobody has heard of it"),
    ("server.digest-staged:5", "the data of delayed changes has come"),
    ("server.digest-committed:5", "delayed changes are committed, nobody has heard of it"),
];

const KILL: &str = "kill -9";

/// Where the client dies. [`KILL`]: by a signal, after some writes.
const CLIENT: [(&str, Mode, &str); 9] = [
    (KILL, Mode::Through, "a file has just been written"),
    ("client.digest-answered:3", Mode::Log, "the server has the changes, the client knows it"),
    (KILL, Mode::Behind, "some changes are not told"),
    (KILL, Mode::Log, "some changes are in the log only"),
    ("client.record-queued:30", Mode::Log, "a change is made in the caches, not in the log"),
    ("client.record-written:30", Mode::Log, "it is in the log, the program has not heard of it"),
    ("client.digest-noted:3", Mode::Log, "changes are about to be told"),
    ("client.digest-applied:3", Mode::Log, "told changes are taken from the log"),
    ("client.durable:2", Mode::Log, "the server has made changes durable"),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Through,
    /// write=behind without a log on the local disk.
    Behind,
    /// write=behind with one.
    Log,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Through => "write=through",
            Mode::Behind => "write=behind",
            Mode::Log => "write=behind, log on disk",
        }
    }

    fn options(self, cell: &Cell, point: &str) -> String {
        // Digests are to be passed where one is died at, and else not to be as soon as the crash.
        let age = if point == KILL { "10s" } else { "100ms" };
        match self {
            Mode::Through => "sync".to_owned(),
            Mode::Behind => format!("write=behind,dirty-age={age}"),
            Mode::Log => {
                let cache = cell.cache_dir();
                format!("write=behind,dirty-age={age},fsync=local,cache-dir={}", cache.display())
            }
        }
    }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Found, LabError> {
    let head = [
        "the server dies at",
        "by then",
        "writes and fsyncs",
        "errors seen",
        "longest call (s)",
        "lost",
        "torn",
        "fsck",
    ];
    let title = "The server dies and is started again; a program writes and syncs all the time";
    let mut server = Table::new(title, head);
    let (mut names, mut waits, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    for (point, meaning) in &SERVER[..lab.by_extent(3, SERVER.len())] {
        (lab.progress)(&format!("the server dies at {point}"));
        let seen = server_dies(lab, point)?;
        names.push((*point).to_owned());
        waits.push((names.len() as f64, seen.longest.as_secs_f64()));
        checks.push(seen.check(point));
        server.row([
            (*point).into(),
            (*meaning).into(),
            seen.calls.into(),
            seen.errors.into(),
            seen.longest.as_secs_f64().into(),
            seen.lost.into(),
            seen.torn.into(),
            seen.fsck.into(),
        ]);
    }
    let head = [
        "a client dies at",
        "mode",
        "by then",
        "files written",
        "of these synced",
        "synced and lost",
        "not synced",
        "of these there",
        "torn",
        "others read after (s)",
        "fsck",
    ];
    let title = "A client dies; another machine reads what it wrote";
    let mut client = Table::new(title, head);
    let mut read_after = Vec::new();
    for (point, mode, meaning) in &CLIENT[..lab.by_extent(2, CLIENT.len())] {
        (lab.progress)(&format!("a client dies at {point}, {}", mode.name()));
        let seen = client_dies(lab, point, *mode)?;
        names.push(if *point == KILL { format!("{KILL}, {}", mode.name()) } else { (*point).to_owned() });
        read_after.push((names.len() as f64, seen.read_after.as_secs_f64()));
        checks.push(seen.check(&format!("{point}, {}", mode.name())));
        client.row([
            (*point).into(),
            mode.name().into(),
            (*meaning).into(),
            seen.written.into(),
            seen.synced.into(),
            seen.lost.into(),
            (seen.written - seen.synced).into(),
            seen.unsynced_there.into(),
            seen.torn.into(),
            seen.read_after.as_secs_f64().into(),
            seen.fsck.into(),
        ]);
    }
    let longest = |waits: &[(f64, f64)]| digits(waits.iter().map(|wait| wait.1).fold(0.0, f64::max));
    let why = format!(
        "{WHY} Here no program waited for the server longer than {} s, and none for a dead client longer than {} s (its \
         session's term: 3 s).",
        longest(&waits),
        longest(&read_after)
    );
    let (x, y) = (Axis::named("", names), Axis::logarithmic("wait (s)"));
    let series = vec![
        Series::new("the program, server back", Style::Points, waits),
        Series::new("others, client dead", Style::Points, read_after),
    ];
    Ok(Found {
        paper: "Three crashes were shown: a client near the end of open, whose cached file is good afterwards; one in close, \
                after which nobody sees incomplete data; the server while it writes to its disk, after which the waiting \
                client tries again and goes on. Closes that a client had not told are lost, and repeated requests may fail.",
        why,
        figures: vec![Figure::new("waits", "CS739: how long a crash keeps others waiting", x, y, series)],
        tables: vec![server, client],
        checks,
        files: Vec::new(),
    })
}

pub(super) const WHY: &str = "No program sees an error when the server dies, whatever it was doing: the \
    client sends again what was not answered, and the server does it once, where CS739's repeated requests may fail. \
    What fsync has vouched for is there after every crash; what a client wrote and had not told is lost only without \
    a log on its disk. Others wait for a dead client until its session's term has passed, or until its machine is \
    back and has told what its log has. A point ends the process, as a kill does: what the kernel had in its pages \
    stays (power cuts are in the tests).";

/// What was found after a crash of the server.
#[derive(Debug)]
struct AfterServer {
    calls: usize,
    errors: usize,
    longest: Duration,
    lost: usize,
    torn: usize,
    fsck: String,
}

impl AfterServer {
    fn check(&self, point: &str) -> Check {
        let AfterServer { errors, lost, torn, .. } = self;
        let claim = format!("The server dies at {point}: no call fails, and no synced file is lost or torn");
        let numbers = format!("{errors} errors, {lost} lost, {torn} torn");
        Check::counted(claim, *errors + *lost + *torn == 0, numbers)
    }
}

impl AfterClient {
    fn check(&self, point: &str) -> Check {
        let AfterClient { synced, lost, torn, .. } = self;
        let claim = format!("A client dies at {point}: no synced file is lost, and none is torn");
        Check::counted(claim, *lost + *torn == 0, format!("{lost} of {synced} lost, {torn} torn"))
    }
}

fn server_dies(lab: &Lab<'_>, point: &str) -> Result<AfterServer, LabError> {
    let mut cell = Cell::start(lab, &["--term", "10s"])?;
    cell.restart(Some(point))?;
    let options = if point.contains("digest") { "write=behind,dirty-age=50ms" } else { "sync" };
    cell.mount(1, options)?;
    let root = cell.mounts[0].root.clone();
    let writer = std::thread::spawn(move || overwrite(&root));
    let mut died = false;
    while !writer.is_finished() {
        if !died && cell.server_is_dead() {
            died = true;
            cell.restart(None)?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let (longest, errors, newest) = joined(writer)?;
    if !died {
        return Err(LabError::Failed(format!("the server did not pass {point} while files were written")));
    }
    // Another machine looks.
    cell.mount(1, "sync")?;
    let (mut lost, mut torn) = (0, 0);
    for (number, version) in newest.iter().enumerate() {
        match version_of(&cell.mounts[0].root.join(format!("file{number}")), SIZE)? {
            Some(found) => lost += usize::from(found != *version),
            None => torn += 1,
        }
    }
    Ok(AfterServer { calls: 2 * WRITES, errors, longest, lost, torn, fsck: cell.check()? })
}

/// Writes and syncs all the time. The longest of these calls, how many failed, and the last version of each file that a call
/// has said to be safe.
fn overwrite(root: &Path) -> Result<(Duration, usize, [u8; FILES]), LabError> {
    let (mut longest, mut errors, mut newest) = (Duration::ZERO, 0, [0; FILES]);
    for number in 0..WRITES {
        let version = (number + 1) as u8;
        let path = root.join(format!("file{}", number % FILES));
        let begin = Instant::now();
        let done = write_and_sync(&path, version);
        longest = longest.max(begin.elapsed());
        match done {
            Ok(()) => newest[number % FILES] = version,
            Err(_) => errors += 1,
        }
    }
    Ok((longest, errors, newest))
}

fn write_and_sync(path: &Path, version: u8) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    file.write_all(&vec![version; SIZE])?;
    file.sync_all()
}

/// `None`: parts of several versions, or too short.
fn version_of(path: &Path, size: usize) -> Result<Option<u8>, LabError> {
    let bytes = std::fs::read(path).map_err(LabError::io(path))?;
    let first = bytes.first().copied();
    Ok(first.filter(|first| bytes.len() == size && bytes.iter().all(|byte| byte == first)))
}

/// What was found after a crash of a client.
#[derive(Debug)]
struct AfterClient {
    written: usize,
    synced: usize,
    lost: usize,
    unsynced_there: usize,
    torn: usize,
    read_after: Duration,
    fsck: String,
}

/// Bytes of a file that a client makes.
const SMALL: usize = 4096;

fn client_dies(lab: &Lab<'_>, point: &str, mode: Mode) -> Result<AfterClient, LabError> {
    let mut cell = Cell::start(lab, &["--term", "3s"])?;
    let (address, options) = (cell.address().to_owned(), mode.options(&cell, point));
    let dies_at = (point != KILL).then_some(point);
    cell.mount_another(&address, &options, dies_at)?;
    let root = cell.mounts[0].root.clone();
    let mut written = 0;
    while written < MADE {
        if point == KILL && written == KILLED_AFTER {
            cell.mounts[0].kill();
        }
        if make(&root.join(format!("made{written}")), version(written), is_synced(written)).is_err() {
            break;
        }
        written += 1;
        // A digest goes out now and then.
        std::thread::sleep(Duration::from_millis(5));
    }
    let patience = Instant::now() + Duration::from_secs(5);
    while !cell.mounts[0].is_dead() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    if !cell.mounts[0].is_dead() {
        return Err(LabError::Failed(format!("the client did not pass {point} while files were made")));
    }
    let died = Instant::now();
    if mode == Mode::Log {
        // The same machine comes back: it tells what its log has.
        cell.mount_another(&address, &options, None)?;
    }
    cell.mount_another(&address, "sync", None)?;
    let other = cell.mounts.last().map(|mount| mount.root.clone()).unwrap_or_default();
    let (mut lost, mut unsynced_there, mut torn) = (0, 0, 0);
    for number in 0..written {
        let path = other.join(format!("made{number}"));
        let found = match version_of(&path, SMALL) {
            Err(_) => Version::Gone,
            Ok(Some(found)) if found == version(number) => Version::Whole,
            Ok(_) if std::fs::metadata(&path).is_ok_and(|found| found.len() == 0) => Version::Empty,
            Ok(_) => Version::Torn,
        };
        match found {
            Version::Whole if !is_synced(number) => unsynced_there += 1,
            Version::Torn => torn += 1,
            Version::Gone | Version::Empty if is_synced(number) => lost += 1,
            Version::Whole | Version::Gone | Version::Empty => {}
        }
    }
    let read_after = died.elapsed();
    let synced = (0..written).filter(|number| is_synced(*number)).count();
    Ok(AfterClient { written, synced, lost, unsynced_there, torn, read_after, fsck: cell.check()? })
}

/// Of what a file is full: none is as its neighbours.
fn version(number: usize) -> u8 {
    (number % 250) as u8 + 1
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Whole,
    /// Made, and not written yet.
    Empty,
    Gone,
    Torn,
}

/// An fsync vouches for its own file only.
fn is_synced(number: usize) -> bool {
    number % SYNC_EVERY == SYNC_EVERY - 1
}

fn make(path: &Path, version: u8, sync: bool) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&[version; SMALL])?;
    if sync { file.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_points_are_those_of_the_crates() {
        let server = include_str!("../../../storage/src/crash.rs");
        let client = include_str!("../../../client/src/crash.rs");
        let named = |list: &str, point: &str| {
            list.contains(&format!("\"{}\"", point.split(':').next().unwrap_or_default()))
        };
        assert!(SERVER.iter().all(|(point, _)| named(server, point)));
        assert!(CLIENT.iter().all(|(point, ..)| *point == KILL || named(client, point)));
    }

    #[test]
    fn one_lost_or_torn_file_is_a_failure() {
        let after = |errors, lost, torn| {
            let (longest, fsck) = (Duration::ZERO, String::new());
            AfterServer { calls: 240, errors, longest, lost, torn, fsck }.check("here").holds
        };
        assert!(after(0, 0, 0));
        assert!(!after(1, 0, 0) && !after(0, 1, 0) && !after(0, 0, 1));
        let after = |lost, torn| {
            let (read_after, fsck) = (Duration::ZERO, String::new());
            let found =
                AfterClient { written: 35, synced: 8, lost, unsynced_there: 0, torn, read_after, fsck };
            found.check("here").holds
        };
        assert!(after(0, 0) && !after(1, 0) && !after(0, 1));
    }

    #[test]
    fn parts_of_two_versions_are_told_from_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        write_and_sync(&path, 3).expect("written");
        assert_eq!(version_of(&path, SIZE).expect("read"), Some(3));
        std::fs::write(&path, [vec![3; SIZE / 2], vec![2; SIZE / 2]].concat()).expect("written");
        assert_eq!(version_of(&path, SIZE).expect("read"), None);
        std::fs::write(&path, vec![3; SIZE / 2]).expect("written");
        assert_eq!(version_of(&path, SIZE).expect("read"), None);
    }
}
