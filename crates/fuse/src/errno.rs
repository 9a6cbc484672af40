//! Errors of the client and of names, as the kernel is told. The only place that knows both sides.

use soda_types::{Errno, FsError, NameError};

/// The number for the kernel; the words go to the log.
pub(crate) fn errno_of(operation: &'static str, error: &FsError) -> Errno {
    match error.errno {
        Errno::Io | Errno::TimedOut | Errno::Stale => tracing::warn!(operation, %error, "failed"),
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
