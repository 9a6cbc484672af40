//! What calls about file locks say besides the lock.

use serde::{Deserialize, Serialize};

pub use soda_types::{Lock, LockFamily, LockMode};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockWait {
    /// EAGAIN if another owner is in the way.
    No,
    /// Until it can be had, or [`crate::Note::Cancel`].
    Yes,
}

/// Whether the client would decide about further locks of the file by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Delegable {
    No,
    Yes,
}
