//! No long silence: what takes longer than a moment says what it waits for.

use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

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
