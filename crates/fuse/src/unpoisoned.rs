//! Nobody looks whether a lock is poisoned: a panic ends the process (ARCHITECTURE, "When something is wrong in here").

use std::sync::{LockResult, PoisonError};

pub(crate) trait Unpoisoned<T> {
    /// What there is, whoever panicked with it.
    fn unpoisoned(self) -> T;
}

impl<T> Unpoisoned<T> for LockResult<T> {
    fn unpoisoned(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}
