//! No long silence: what takes longer than a moment says what it waits for.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What takes no longer is not worth a word.
const SILENCE: Duration = Duration::from_secs(1);

/// Says on standard error what takes so long, from the first second on and while it lives: a spinner on a terminal, one
/// line elsewhere.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Dropped when it is over.
    over: Option<Sender<()>>,
    speaker: Option<JoinHandle<()>>,
}

impl Waiting {
    /// `what` is waited for, as in `the server h:1 to answer`.
    pub(crate) fn new(what: impl Into<String>) -> Waiting {
        let what = what.into();
        let (over, is_over) = mpsc::channel();
        // A program that cannot start a thread for words goes on without them.
        let speaker = std::thread::Builder::new().name("waiting".into()).spawn(move || {
            if is_over.recv_timeout(SILENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let spinner = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
            match &spinner {
                Some(spinner) => {
                    spinner.set_message(format!("waiting for {what}"));
                    spinner.enable_steady_tick(Duration::from_millis(120));
                }
                None => eprintln!("soda: waiting for {what}"),
            }
            let _ = is_over.recv();
            spinner.inspect(ProgressBar::finish_and_clear);
        });
        Waiting { over: Some(over), speaker: speaker.ok() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.over.take());
        // What is printed next must not meet a spinner.
        if let Some(speaker) = self.speaker.take() {
            let _ = speaker.join();
        }
    }
}

/// How far something is whose size is known, from the first second on: a bar on a terminal, a line at each new reason
/// elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    start: Instant,
    bar: ProgressBar,
    said: Option<String>,
}

impl Progress {
    /// `what` is waited for, as in `3 changes of /m to reach the disk`.
    pub(crate) fn new(what: impl Into<String>, total: u64) -> Progress {
        // Draws to standard error, and only if that is a terminal.
        let bar = ProgressBar::hidden();
        bar.set_length(total);
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta}  {msg}");
        let bar = style.map_or(bar.clone(), |style| bar.with_style(style));
        Progress { what: what.into(), start: Instant::now(), bar, said: None }
    }

    /// `instead`: something else that has to happen first.
    pub(crate) fn show(&mut self, done: u64, instead: Option<String>) {
        if self.start.elapsed() < SILENCE {
            return;
        }
        let waits_for = instead.unwrap_or_else(|| self.what.clone());
        let is_new = self.said.as_ref() != Some(&waits_for);
        if std::io::stderr().is_terminal() {
            if self.said.is_none() {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            self.bar.set_position(done);
            self.bar.set_message(format!("waiting for {waits_for}"));
        } else if is_new {
            eprintln!("soda: waiting for {waits_for}");
        }
        self.said = Some(waits_for);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
