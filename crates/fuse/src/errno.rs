//! Errors of the client and of names, as the kernel is told. The only place that knows both sides.

use crate::unpoisoned::Unpoisoned;
use soda_types::{Errno, FsError, NameError};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// So many failures are worth a line in this time: a program that tries again and again must not fill the log.
const MOST_LINES: u32 = 20;
const PER: Duration = Duration::from_secs(10);

static FAILURES: Mutex<Lines> = Mutex::new(Lines { began: None, said: 0, left_out: 0 });

/// Lines of the log lately.
#[derive(Debug)]
struct Lines {
    began: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl Lines {
    /// Whether one more may be said, and then how many were left out before it.
    fn one_more(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.duration_since(began) >= PER) {
            (self.began, self.said) = (Some(now), 0);
        }
        if self.said == MOST_LINES {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

fn warn(operation: &'static str, error: &FsError) {
    let may = FAILURES.lock().unpoisoned().one_more(Instant::now());
    match may {
        Some(0) => tracing::warn!(operation, %error, "failed"),
        Some(left_out) => {
            tracing::warn!(operation, %error, left_out, "failed, as others did that are left out here")
        }
        None => tracing::debug!(operation, %error, "failed"),
    }
}

/// The number for the kernel; the words go to the log.
pub(crate) fn errno_of(operation: &'static str, error: &FsError) -> Errno {
    match error.errno {
        Errno::Io | Errno::TimedOut | Errno::Stale => warn(operation, error),
        _ => tracing::trace!(operation, %error, "failed"),
    }
    match error.errno {
        // A `soft` mount that gave up: programs know EIO, few know ETIMEDOUT from a file.
        Errno::TimedOut => Errno::Io,
        errno => errno,
    }
}

pub(crate) fn errno_of_name(error: NameError) -> Errno {
    match error {
        NameError::TooLong => Errno::NameTooLong,
        NameError::Reserved | NameError::BadByte => Errno::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::Name;

    #[test]
    fn failures_without_end_do_not_fill_the_log() {
        let mut lines = Lines { began: None, said: 0, left_out: 0 };
        let now = Instant::now();
        let said = (0..1_000).filter(|_| lines.one_more(now).is_some()).count();
        assert_eq!(said, 20);
        assert_eq!(lines.one_more(now + PER), Some(980));
        assert_eq!(lines.one_more(now + PER), Some(0));
    }

    #[test]
    fn errors_keep_their_number_but_for_time_outs() {
        for errno in Errno::ALL {
            let expected = if *errno == Errno::TimedOut { Errno::Io } else { *errno };
            assert_eq!(errno_of("test", &FsError::from(*errno)), expected);
        }
    }

    #[test]
    fn a_name_that_is_too_long_says_so() {
        let error = Name::new(&[b'x'; 256]).unwrap_err();
        assert_eq!(errno_of_name(error), Errno::NameTooLong);
    }
}
