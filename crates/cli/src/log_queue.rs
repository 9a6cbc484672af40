//! A log that keeps nobody waiting. What is logged may be said under a lock that all need, and what it is written to may stand
//! still: a pipe that nobody reads, a disk that stalls. So a thread of its own writes it; where that falls behind, lines are left
//! out, and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may wait to be written.
const ROOM: usize = 4 << 20;

/// Where lines are put. All clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct LogQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    room: usize,
    state: Mutex<State>,
    /// Something was put in, or all is written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines for which there was no room.
    left_out: u64,
    /// The thread is at what it has taken out.
    is_writing: bool,
}

impl LogQueue {
    /// Starts the thread that writes to `sink`, for as long as the process lives. `tell` is called by it with the number of lines
    /// that were left out, as soon as there is room to say so.
    ///
    /// # Errors
    /// No thread.
    pub(crate) fn start(
        sink: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<LogQueue> {
        LogQueue::start_with(sink, tell, ROOM)
    }

    fn start_with(
        sink: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
        room: usize,
    ) -> io::Result<LogQueue> {
        let queue = LogQueue(Arc::new(Shared { room, state: Mutex::default(), changed: Condvar::new() }));
        let of_thread = queue.clone();
        std::thread::Builder::new()
            .name("soda-log".to_owned())
            .spawn(move || of_thread.write_all_to(sink, tell))?;
        Ok(queue)
    }

    /// Returns when all is written that was put in before, or after `patience`.
    pub(crate) fn finish(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while state.is_writing || !state.lines.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn put(&self, line: &[u8]) {
        let mut state = self.state();
        if state.bytes + line.len() > self.0.room {
            state.left_out += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        self.0.changed.notify_all();
    }

    fn write_all_to(&self, mut sink: impl Write, tell: impl Fn(u64)) {
        let mut state = self.state();
        loop {
            state.is_writing = false;
            if state.lines.is_empty() && state.left_out == 0 {
                self.0.changed.notify_all();
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_writing = true;
            let (lines, left_out) = (std::mem::take(&mut state.lines), std::mem::take(&mut state.left_out));
            drop(state);
            for line in lines {
                // There is nobody to tell.
                let _ = sink.write_all(&line).and_then(|()| sink.flush());
                // Room is for what is not written.
                self.state().bytes -= line.len();
            }
            if left_out > 0 {
                tell(left_out);
            }
            state = self.state();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One log line at a time.
impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What it is given is shown, and written when that is allowed.
    struct Slow {
        shown: Sender<String>,
        allowed: Receiver<()>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.shown.send(String::from_utf8(line.to_vec()).unwrap()).unwrap();
            let _ = self.allowed.recv_timeout(PATIENCE);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_logs_does_not_wait_for_what_stands_still_and_hears_what_was_left_out() {
        let (shown, lines) = mpsc::channel();
        let (allow, allowed) = mpsc::channel();
        let (told, heard) = mpsc::channel();
        let tell = move |left_out| told.send(left_out).unwrap();
        let queue = LogQueue::start_with(Slow { shown, allowed }, tell, 50).unwrap();
        let mut log = queue.clone();
        log.write_all(b"the first line").unwrap();
        assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "the first line");
        // It stands still now: room for 36 bytes is left.
        for number in 0..10 {
            log.write_all(format!("number {number}").as_bytes()).unwrap();
        }
        queue.finish(Duration::from_millis(1));
        assert!(heard.try_recv().is_err() && lines.try_recv().is_err());
        for _ in 0..5 {
            allow.send(()).unwrap();
        }
        for number in 0..4 {
            assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), format!("number {number}"));
        }
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), 6);
        queue.finish(PATIENCE);
        assert!(lines.try_recv().is_err());
        log.write_all(b"there is room again").unwrap();
        assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "there is room again");
        assert!(heard.try_recv().is_err(), "said once");
        drop(allow);
    }
}
