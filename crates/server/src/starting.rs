//! A start that takes long says what it is at: `soda serve` is never silent.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A start that takes longer is worth a line in the log, and another one each time this has passed again.
const LONG: Duration = Duration::from_secs(1);

/// The start of a server, step by step.
#[derive(Debug)]
pub(crate) struct Starting {
    shared: Arc<(Mutex<State>, Condvar)>,
    teller: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    step: Option<(&'static str, Instant)>,
    /// Steps that are done.
    took: Vec<(&'static str, Duration)>,
}

impl Starting {
    /// Begins with the first step; `tell` is called from another thread while the start takes long.
    pub(crate) fn begin(
        step: &'static str,
        long: Duration,
        tell: impl Fn(&'static str, Duration) + Send + 'static,
    ) -> std::io::Result<Starting> {
        let began = Instant::now();
        let state = State { began, step: Some((step, began)), took: Vec::new() };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let of_teller = shared.clone();
        let teller = std::thread::Builder::new()
            .name("soda-starting".to_owned())
            .spawn(move || tell_while_it_takes_long(&of_teller, long, tell))?;
        Ok(Starting { shared, teller: Some(teller) })
    }

    /// As [`Starting::begin`], into the log.
    pub(crate) fn logged(step: &'static str) -> std::io::Result<Starting> {
        Starting::begin(step, LONG, |step, elapsed| tracing::info!(step, ?elapsed, "recovering: {step}"))
    }

    /// The next step begins.
    pub(crate) fn step(&self, step: &'static str) {
        let mut state = lock(&self.shared.0);
        state.finish_step();
        state.step = Some((step, Instant::now()));
    }

    /// The start is over. Returns how long all steps took, the longest first.
    pub(crate) fn finish(mut self) -> (Duration, Vec<(&'static str, Duration)>) {
        self.stop();
        let mut state = lock(&self.shared.0);
        let mut took = std::mem::take(&mut state.took);
        took.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        (state.began.elapsed(), took)
    }

    fn stop(&mut self) {
        lock(&self.shared.0).finish_step();
        self.shared.1.notify_one();
        if let Some(teller) = self.teller.take() {
            // An error: it panicked, which ends the process.
            let _ = teller.join();
        }
    }
}

/// A start that failed.
impl Drop for Starting {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn finish_step(&mut self) {
        if let Some((step, began)) = self.step.take() {
            self.took.push((step, began.elapsed()));
        }
    }
}

fn tell_while_it_takes_long(
    shared: &(Mutex<State>, Condvar),
    long: Duration,
    tell: impl Fn(&'static str, Duration),
) {
    let mut state = lock(&shared.0);
    let mut next = state.began + long;
    while let Some((step, _)) = state.step {
        let now = Instant::now();
        if now >= next {
            next = now + long;
            tell(step, state.began.elapsed());
        }
        let wait = shared.1.wait_timeout(state, next.saturating_duration_since(now));
        state = wait.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_long_start_says_what_it_is_at_and_a_short_one_nothing() {
        let (say, heard) = mpsc::channel();
        let starting = Starting::begin("first", Duration::from_millis(1), move |step, _| {
            say.send(step).unwrap();
        })
        .unwrap();
        assert_eq!(heard.recv().unwrap(), "first");
        starting.step("second");
        while heard.recv().unwrap() != "second" {}
        let (elapsed, took) = starting.finish();
        assert!(took.iter().map(|(_, took)| *took).sum::<Duration>() <= elapsed);
        assert_eq!(took.len(), 2);
        assert!(heard.iter().count() < 100, "nothing is told after the end: the channel is closed");

        let quiet = Starting::begin("all", Duration::from_secs(3600), |step, _| panic!("{step}")).unwrap();
        quiet.finish();
    }
}
