//! What the demo shows, and checks: nothing is stale, whatever dies.

use super::act::{headline, note, play};
use super::cell::{Cell, TERM};
use crate::commands::{print, this_program};
use crate::error::CliError;
use crate::units::show_duration;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROUNDS: usize = 300;
const LINES: usize = 200;
/// Long enough for the server to have asked for the lease, and for people to believe that somebody waits.
const A_WHILE: Duration = Duration::from_millis(700);

/// # Errors
/// What failed; or what was stale, which is a bug.
pub(super) fn tell(cell: &mut Cell) -> Result<(), CliError> {
    let [a, b] = cell.machines.each_ref().map(|machine| machine.dir.join("soda-demo"));
    // A data directory that was given may have seen a demo before.
    match fs::remove_dir_all(&a) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(CliError::io("the last demo")(error));
        }
        _ => fs::create_dir(&a).map_err(CliError::io("a directory for the demo"))?,
    }
    cached_and_recalled(cell, &a, &b)?;
    together(cell, &a, &b)?;
    the_server_dies(cell, &a, &b)?;
    a_client_freezes(cell, &a, &b)?;
    print("\nEverything was read back and compared: not one stale answer, nothing lost.\n")
}

fn cached_and_recalled(cell: &Cell, a: &Path, b: &Path) -> Result<(), CliError> {
    let machines = &cell.machines;
    headline("Cached under leases, recalled when somebody else writes")?;
    let [on_a, on_b] = [a.join("hello.txt"), b.join("hello.txt")];
    play(machines, "A writes hello.txt", || fs::write(&on_a, "hello"))?;
    let seen = play(machines, "B reads it", || fs::read_to_string(&on_b))?;
    expect("hello", &seen)?;
    let each = play(machines, "B opens, reads and closes it 1,000 times more", || read_often(&on_b))?;
    note(&format!("{} each; a read(2) alone is the kernel's page cache", show_duration(each)))?;
    let mut open = File::open(&on_b).map_err(CliError::io("hello.txt"))?;
    play(machines, "A overwrites it while B has it open", || overwrite(&on_a, "HELLO"))?;
    let seen = play(machines, "B reads it through the descriptor that it had", || {
        let mut text = String::new();
        open.seek(SeekFrom::Start(0))?;
        open.read_to_string(&mut text).map(|_| text)
    })?;
    expect("HELLO", &seen)?;
    let moved = [a.join("renamed.txt"), b.join("renamed.txt")];
    play(machines, "A renames it", || fs::rename(&on_a, &moved[0]))?;
    let names = play(machines, "B looks for the old name, and for the new one", || {
        Ok(format!("{} {}", on_b.try_exists()?, moved[1].try_exists()?))
    })?;
    expect("false true", &names)
}

fn together(cell: &Cell, a: &Path, b: &Path) -> Result<(), CliError> {
    let machines = &cell.machines;
    print("\n")?;
    headline("Both at work on one file")?;
    let title = format!("{ROUNDS} times: A writes a number, B must read that number");
    let times = play(machines, &title, || ping_pong(&a.join("number"), &b.join("number")))?;
    note(&format!("median write {}, median read {}, both with a recall; 0 stale", times[0], times[1]))?;
    let title = format!("A and B append {LINES} lines each, at the same time");
    play(machines, &title, || append_together(&a.join("log"), &b.join("log")))?;
    let lines = play(machines, "A counts them", || {
        fs::read_to_string(a.join("log")).map(|text| text.lines().filter(|line| line.ends_with('.')).count())
    })?;
    expect(&(2 * LINES).to_string(), &lines.to_string())
}

fn the_server_dies(cell: &mut Cell, a: &Path, b: &Path) -> Result<(), CliError> {
    print("\n")?;
    headline("The server is killed (kill -9) and started again")?;
    let mut open = File::open(b.join("log")).map_err(CliError::io("log"))?;
    cell.crash_server()?;
    let machines = &cell.machines;
    play(machines, "A writes at once: it waits until the server is back", || {
        fs::write(a.join("after.txt"), "after the crash")
    })?;
    let seen = play(machines, "B reads it", || fs::read_to_string(b.join("after.txt")))?;
    expect("after the crash", &seen)?;
    let lines = play(machines, "B reads what it had open before", || {
        let mut text = String::new();
        open.read_to_string(&mut text).map(|_| text.lines().count())
    })?;
    expect(&(2 * LINES).to_string(), &lines.to_string())
}

fn a_client_freezes(cell: &mut Cell, a: &Path, b: &Path) -> Result<(), CliError> {
    print("\n")?;
    headline(&format!("B freezes (SIGSTOP) with a lease; its term is {}", show_duration(TERM)))?;
    let [on_a, on_b] = [a.join("renamed.txt"), b.join("renamed.txt")];
    let spec = format!("{}/main/soda-demo/renamed.txt", cell.address());
    let machines = &mut cell.machines;
    let seen = play(machines, "B reads a file, and freezes", || fs::read_to_string(&on_b))?;
    expect("HELLO", &seen)?;
    machines[1].freeze()?;
    let told = play(machines, "A overwrites it: B does not answer, so its lease must end", || {
        std::thread::scope(|scope| {
            let explained = scope.spawn(|| explanation(&spec));
            overwrite(&on_a, "NEWER")?;
            explained.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    });
    machines[1].thaw()?;
    note(&format!("meanwhile, `soda lease why {spec}` says:\n\n{}\n\n", told?.trim_end()))?;
    let seen = play(machines, "B goes on, and reads", || fs::read_to_string(&on_b))?;
    expect("NEWER", &seen)
}

/// `soda lease why`, as anybody would ask while an operation hangs.
fn explanation(spec: &str) -> io::Result<String> {
    std::thread::sleep(A_WHILE);
    let mut why = this_program().map_err(io::Error::other)?;
    let output = why.args(["lease", "why", spec]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn expect(expected: &str, seen: &str) -> Result<(), CliError> {
    match expected == seen {
        true => Ok(()),
        false => Err(CliError::Failed(format!(
            "stale: expected {expected:?}, saw {seen:?}. This is a bug in Soda; please report it"
        ))),
    }
}

/// The time of one.
fn read_often(path: &Path) -> io::Result<Duration> {
    const TIMES: u32 = 1000;
    let start = Instant::now();
    (0..TIMES).try_for_each(|_| fs::read(path).map(drop))?;
    Ok(start.elapsed() / TIMES)
}

fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(text.as_bytes())
}

/// The median times of a write, and of the read after it.
fn ping_pong(a: &PathBuf, b: &PathBuf) -> io::Result<[String; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    let mut timed = |which: usize, work: &dyn Fn() -> io::Result<String>| {
        let start = Instant::now();
        let value = work();
        times[which].push(start.elapsed());
        value
    };
    for round in 0..ROUNDS {
        let number = format!("{round:06}");
        timed(0, &|| fs::write(a, &number).map(|()| String::new()))?;
        let seen = timed(1, &|| fs::read_to_string(b))?;
        if seen != number {
            return Err(io::Error::other(format!("stale: A wrote {number}, B read {seen:?}")));
        }
    }
    Ok(times.map(|mut times| {
        times.sort_unstable();
        show_duration(times[times.len() / 2])
    }))
}

fn append_together(a: &Path, b: &Path) -> io::Result<()> {
    let append = |path: &Path, who: &str| -> io::Result<()> {
        let mut file = File::options().append(true).create(true).open(path)?;
        (0..LINES).try_for_each(|line| file.write_all(format!("{who} {line}.\n").as_bytes()))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| append(b, "B"));
        append(a, "A")?;
        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
