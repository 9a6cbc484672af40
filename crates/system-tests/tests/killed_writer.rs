//! kill -9 of a mount in the middle of random work: what is there afterwards is the state after the last operation that was
//! acknowledged (or the one under way), of all files and directories together. Without a log it is a state before that.

use soda_model::{Alphabet, Generator, Handle, Op, Placement, ReferenceFs, Rng};
use soda_system_tests::cell::{Cell, PATIENCE, Setting, prerequisites};
use soda_system_tests::tree::{Comparison, RealTree};
use soda_system_tests::wait;
use soda_system_tests::workload::seed;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

/// Small, so that many states can be kept.
const PLACEMENT: Placement = Placement::Within { bytes: 10_000 };
/// What a dead daemon's kernel answers. CANCELED: over io_uring (Linux 6.18), if it had not been brought to the daemon.
const DEATH: [rustix::io::Errno; 5] = [
    rustix::io::Errno::CANCELED,
    rustix::io::Errno::NOTCONN,
    rustix::io::Errno::CONNABORTED,
    rustix::io::Errno::INTR,
    rustix::io::Errno::IO,
];

/// States of the model: before the first operation, after it, and so on. The last may not have happened.
struct History(Vec<ReferenceFs>);

/// Works until the daemon is killed, which happens somewhere within `limit`, and compares each answer.
fn work_until_killed(
    cell: &mut Cell,
    model: ReferenceFs,
    mut next: impl FnMut() -> Op,
    limit: Duration,
) -> History {
    let mut history = vec![model];
    let mut real = RealTree::new(vec![cell.root(0).to_path_buf()]);
    let (pid, began) = (cell.mounts[0].process(), std::time::Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(limit);
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        });
        loop {
            let op = next();
            let mut model = history.last().unwrap().clone();
            let expected = model.apply(&op);
            let got = match real.try_apply(0, &op) {
                Ok(outcome) => outcome,
                Err(error) if DEATH.contains(&error) => {
                    assert!(began.elapsed() >= limit, "{error} of a mount that lives: {op:?}");
                    history.push(model);
                    break;
                }
                Err(error) => {
                    let errno = soda_types::Errno::from_raw(error.raw_os_error());
                    soda_model::Outcome::Failed(errno.unwrap_or_else(|| panic!("{op:?}: {error}")))
                }
            };
            // Inode numbers, and times that only a clock knows, are compared elsewhere.
            let same = match &op {
                Op::Seek { handle, offset, whence } => model.allows_seek(*handle, *offset, *whence, &got),
                _ => matches!(got, soda_model::Outcome::Stat(_)) || got == expected,
            };
            assert!(same, "{op:?}: {got:?}, not {expected:?}");
            history.push(model);
        }
    });
    History(history)
}

/// No mappings: who looks at one of a dead daemon is killed (SIGBUS), and what is stored in several pages is written back page by
/// page.
fn next(ops: &mut Generator, wanted: impl Fn(&Op) -> bool) -> Op {
    let is_there = |op: &Op| !matches!(op, Op::MapLoad { .. } | Op::MapStore { .. }) && wanted(op);
    ops.find(is_there).expect("an endless stream has ended")
}

/// Whether the tree at `root` is just so.
fn is_like(root: &Path, model: &ReferenceFs) -> Result<(), String> {
    let mut in_root: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    in_root.sort();
    let tops = model.paths().into_iter().filter(|path| path.parents.is_empty());
    let mut expected: Vec<_> = tops.map(|path| OsString::from_vec(path.to_bytes())).collect();
    expected.sort();
    if in_root != expected {
        return Err(format!("{in_root:?} and not {expected:?}"));
    }
    let mut comparison = Comparison::new(RealTree::new(vec![root.to_path_buf()]));
    comparison.model = model.clone();
    comparison.inspect()
}

/// After how many of its operations, the last first.
fn found_after(root: &Path, history: &History, least: usize) -> usize {
    let most = history.0.len() - 1;
    let mut differences = Vec::new();
    for number in (least..=most).rev() {
        match is_like(root, &history.0[number]) {
            Ok(()) => return number,
            Err(difference) if differences.len() < 2 => differences.push(difference),
            Err(_) => {}
        }
    }
    panic!("not as after {least} to {most} operations; after the last two: {}", differences.join("\n"));
}

/// Without open files: those of a dead daemon are of no use to anybody.
fn closed(model: &ReferenceFs) -> ReferenceFs {
    let mut model = model.clone();
    for handle in 0..=u8::MAX {
        model.apply(&Op::Close { handle: Handle(handle) });
    }
    model
}

/// Until changes are delayed. Leaves nothing behind, and has the server know of everything.
fn warm_up(cell: &Cell) {
    let path = cell.root(0).join("warm");
    wait::in_time(PATIENCE, "nothing is delayed", || {
        let before = cell.mounts[0].counter("here");
        fs::write(&path, "up").unwrap();
        fs::remove_file(&path).unwrap();
        cell.mounts[0].counter("here") >= before + 2
    });
    let mut sync = cell.soda_at(0);
    wait::run(sync.arg("sync").arg(cell.root(0)), PATIENCE).expect_success("soda sync");
}

// SEMANTICS 47, 50
#[test]
fn a_mount_with_a_log_that_is_killed_at_any_moment_has_done_all_that_it_said() {
    if !prerequisites() {
        return;
    }
    let rounds = std::env::var("SODA_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    let seed = seed(51);
    for deep in ["off", "on"] {
        let cache = tempfile::tempdir().unwrap();
        let options = format!("write=behind,cache-dir={}", cache.path().display());
        let (mount_options, server_options) = (["-o", &options], ["--deep-leases", deep]);
        let setting =
            Setting { mount_options: &mount_options, server_options: &server_options, ..Setting::default() };
        let mut cell = Cell::assemble(2, &setting);
        let mut model = ReferenceFs::new();
        let mut lot = Rng::new(seed);
        let mut ops = Generator::new(seed, Alphabet::Full, PLACEMENT);
        for round in 0..rounds {
            let limit = Duration::from_millis(50 + lot.below(1500));
            // What an fsync has sent ahead of the rest is there, the rest is in the log.
            let history = work_until_killed(&mut cell, model, || next(&mut ops, |_| true), limit);
            cell.crash_client(0);
            // In every second round somebody else looks first.
            let looks = cell.root(round % 2).to_path_buf();
            let all = history.0.len() - 1;
            let number = found_after(&looks, &history, all - 1);
            eprintln!("deep leases {deep}, killed after {limit:?}: {number} of {all} operations");
            // All that was open has gone.
            model = closed(&history.0[number]);
            if let Err(difference) = is_like(cell.root(1 - round % 2), &model) {
                panic!("the other machine sees it otherwise: {difference}");
            }
        }
        assert!(!cache.path().join("oplog/kept").exists(), "something is kept");
    }
}

// SEMANTICS 47
#[test]
fn of_a_mount_without_a_log_that_is_killed_at_any_moment_a_beginning_is_there() {
    if !prerequisites() {
        return;
    }
    let rounds = std::env::var("SODA_ROUNDS").map_or(2, |rounds| rounds.parse().unwrap());
    let seed = seed(52);
    let mut lot = Rng::new(seed);
    for round in 0..rounds {
        let server_options = ["--deep-leases", if round % 2 == 0 { "on" } else { "off" }];
        // Told soon, so that a digest is often under way.
        let mount_options = ["-o", "write=behind,dirty-age=100ms"];
        let setting =
            Setting { mount_options: &mount_options, server_options: &server_options, ..Setting::default() };
        let mut cell = Cell::assemble(2, &setting);
        warm_up(&cell);
        let mut ops = Generator::new(seed + round, Alphabet::Full, PLACEMENT);
        // An fsync sends what it is for before the rest, so that what the server has is not the beginning any more. So does
        // what the server has to be asked: extended attributes that are not known, and where there is data.
        let op = || {
            next(&mut ops, |op| {
                use Op::{Fsync, GetXattr, ListXattr, RemoveXattr, Seek, SetXattr};
                let asks =
                    matches!(op, GetXattr { .. } | ListXattr { .. } | RemoveXattr { .. } | SetXattr { .. });
                !asks && !matches!(op, Fsync { .. } | Seek { .. })
            })
        };
        let limit = Duration::from_millis(600 + lot.below(1500));
        let history = work_until_killed(&mut cell, ReferenceFs::new(), op, limit);
        cell.mounts[0].crash();
        let all = history.0.len() - 1;
        let number = found_after(cell.root(1), &history, 0);
        eprintln!("killed after {limit:?}: {number} of {all} operations are there");
        assert!(number > 0 || all < 50, "nothing is there of {all} operations");
    }
}
