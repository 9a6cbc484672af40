//! A process that holds byte-range locks: record locks belong to processes, so threads of a test cannot exclude each other by
//! them.

use crate::linear::object::{Answer, RangeMode};
use rustix::io::{Errno, Result};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Reads commands, one a line; answers each with `done`, `busy` or an errno.
const PROGRAM: &str = "
import fcntl, os, struct, sys
OFD_SETLK = 37
def answer(word):
    print(word, flush=True)
def set_lock(kind, start, len):
    what = struct.pack('hhxxxxqqixxxx', kind, os.SEEK_SET, start, len, 0)
    fcntl.fcntl(file, OFD_SETLK if sys.argv[2] == 'ofd' else fcntl.F_SETLK, what)
def lock(kind):
    return lambda start, len: set_lock(kind, start, len)
def unlock(start, len):
    os.pwrite(file, b'x', start)  # what the lock was for: fails if it is lost
    set_lock(fcntl.F_UNLCK, start, len)
commands = {'shared': lock(fcntl.F_RDLCK), 'exclusive': lock(fcntl.F_WRLCK), 'unlock': unlock}
try:
    file = os.open(sys.argv[1], os.O_RDWR)
    answer('done')
except OSError as error:
    sys.exit(answer(error.errno))
for line in sys.stdin:
    word, start, len = line.split()
    try:
        commands[word](int(start), int(len))
        answer('done')
    except BlockingIOError:
        answer('busy')
    except OSError as error:
        answer(error.errno)
";

/// Bytes from the beginning of one part of the file to that of the next.
const PART: u64 = 1000;

/// To whom its locks belong. Both kinds exclude each other (fcntl(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// Record locks.
    Process,
    /// OFD locks.
    OpenFile,
}

#[derive(Debug)]
pub(super) struct Locker {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Locker {
    /// # Errors
    /// As open(2) of the file.
    ///
    /// # Panics
    /// If there is no Python.
    pub(super) fn start(path: &str, owner: Owner) -> Result<Locker> {
        let owner = match owner {
            Owner::Process => "record",
            Owner::OpenFile => "ofd",
        };
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, path, owner]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("python3: {error}"));
        let (Some(commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            panic!("python3 without pipes");
        };
        let mut locker = Locker { child, commands, answers: BufReader::new(answers) };
        locker.answer().map(|_| locker)
    }

    pub(super) fn lock(&mut self, from: u8, to: u8, mode: RangeMode) -> Result<Answer> {
        let word = match mode {
            RangeMode::Shared => "shared",
            RangeMode::Exclusive => "exclusive",
        };
        self.ask(word, from, to)
    }

    pub(super) fn unlock(&mut self, from: u8, to: u8) -> Result<Answer> {
        self.ask("unlock", from, to)
    }

    fn ask(&mut self, word: &str, from: u8, to: u8) -> Result<Answer> {
        let (start, len) = (u64::from(from) * PART, u64::from(to - from) * PART);
        writeln!(self.commands, "{word} {start} {len}").map_err(|_| Errno::PIPE)?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|_| Errno::PIPE)?;
        match line.trim() {
            "done" => Ok(Answer::Done),
            "busy" => Ok(Answer::Busy),
            errno => Err(errno.parse().map_or(Errno::PIPE, Errno::from_raw_os_error)),
        }
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        // Errors: it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
