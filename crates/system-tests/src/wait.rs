//! Waiting for what will happen: always for a condition, always with a deadline.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two looks at a condition.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// Begins what a test of any crate says that ended only because its patience did. `scripts/test` gives a second chance to
/// nothing else, so it must not stand where what was seen is wrong.
pub const TIMED_OUT: &str = "TIMED OUT";

/// Looks until `condition` holds. False when it did not within `limit`.
pub fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// Looks until `condition` holds, where a slow machine is an excuse.
///
/// # Panics
/// If it does not within `limit`, with `complaint`.
#[track_caller]
pub fn in_time(limit: Duration, complaint: &str, condition: impl FnMut() -> bool) {
    assert!(until(limit, condition), "{TIMED_OUT}: {complaint}");
}

/// Runs `operation`, which may wait for the end of a term, but not for a deadline of several. Meanwhile `control` is done
/// again and again, which waits for nobody: it tells what the machine takes by itself.
///
/// # Panics
/// If the operation takes longer than a term and a half and the slowest control, or if that is too slow to tell terms apart.
pub fn at_most_a_term<T>(term: Duration, control: impl Fn(u32) + Send, operation: impl FnOnce() -> T) -> T {
    let (end, ended) = mpsc::channel::<()>();
    let (answer, waited, slowest) = std::thread::scope(|scope| {
        let controls = scope.spawn(move || {
            let mut slowest = Duration::ZERO;
            for number in 0.. {
                let start = Instant::now();
                control(number);
                slowest = slowest.max(start.elapsed());
                if ended.recv_timeout(POLL * 10) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            slowest
        });
        let start = Instant::now();
        let answer = operation();
        let waited = start.elapsed();
        drop(end);
        match controls.join() {
            Ok(slowest) => (answer, waited, slowest),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    eprintln!("waited {waited:?}; what waits for nobody: {slowest:?}");
    assert!(slowest < term / 2, "{TIMED_OUT}: {slowest:?} for what waits for nobody");
    assert!(
        waited <= term * 3 / 2 + slowest,
        "waited {waited:?}, the term is {term:?}; what waits for nobody takes {slowest:?}"
    );
    answer
}

/// How a command that had a time limit ended.
#[derive(Debug)]
pub enum Finish {
    Exited(Output),
    /// It was killed when its time was over. `Killed` took effect if the process is gone within a second.
    TimedOut {
        killable: bool,
    },
}

impl Finish {
    /// # Panics
    /// If the command did not end in time, with `complaint`.
    #[track_caller]
    pub fn output(self, complaint: &str) -> Output {
        match self {
            Finish::Exited(output) => output,
            Finish::TimedOut { .. } => panic!("{TIMED_OUT}: {complaint}: {self:?}"),
        }
    }

    /// # Panics
    /// If the command did not end in time, or failed.
    #[track_caller]
    pub fn expect_success(self, what: &str) -> Output {
        let output = self.output(what);
        assert!(output.status.success(), "{what}: {output:?}");
        output
    }
}

/// Stops a process to the last thread that is not in the kernel: one that still runs could answer a last message.
///
/// # Panics
/// If it does not stop.
pub fn freeze(child: &Child) {
    signal(child, Signal::STOP);
    let stands = |thread: &Path| {
        let stat = fs::read_to_string(thread.join("stat"));
        // What is in the kernel and cannot be stopped there stops when it comes back from it.
        stat.map_or(true, |stat| stat.rsplit(") ").next().unwrap_or_default().starts_with(['T', 'D', 'Z']))
    };
    let threads = || fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
    let all = || threads().all(|thread| stands(&thread.path()));
    in_time(Duration::from_secs(20), &format!("a thread of process {} runs on", child.id()), all);
}

/// Runs a command; kills it when it takes longer than `limit`. Its output must fit a pipe (64 KiB).
///
/// # Panics
/// If it cannot be started.
pub fn run(command: &mut Command, limit: Duration) -> Finish {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    if until(limit, || matches!(child.try_wait(), Ok(Some(_)))) {
        return Finish::Exited(
            child.wait_with_output().unwrap_or_else(|error| panic!("{command:?}: {error}")),
        );
    }
    signal(&child, Signal::KILL);
    Finish::TimedOut { killable: until(Duration::from_secs(1), || matches!(child.try_wait(), Ok(Some(_)))) }
}

/// Sends a signal to a child that was not waited for yet; nothing if it is already gone.
pub fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        // The only error left is ESRCH, and gone is what was wanted.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let finish = run(Command::new("sleep").arg("60"), Duration::from_millis(50));
        assert!(matches!(finish, Finish::TimedOut { killable: true }), "{finish:?}");
        let output = run(Command::new("echo").arg("hello"), Duration::from_secs(10)).expect_success("echo");
        assert_eq!(output.stdout, b"hello\n");
    }

    #[test]
    #[should_panic = "waits for nobody takes"]
    fn two_terms_are_more_than_one() {
        let term = Duration::from_millis(200);
        at_most_a_term(term, |_| (), || std::thread::sleep(term * 2));
    }

    #[test]
    #[should_panic = "TIMED OUT"]
    fn on_a_machine_that_is_too_slow_nothing_is_said() {
        let term = Duration::from_millis(200);
        at_most_a_term(term, |_| std::thread::sleep(term), || std::thread::sleep(term * 2));
    }

    #[test]
    fn a_condition_that_never_holds_ends_at_the_deadline() {
        assert!(!until(Duration::from_millis(20), || false));
        assert!(until(Duration::ZERO, || true));
    }
}
