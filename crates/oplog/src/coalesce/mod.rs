//! Leaving out, inside one digest, what cancels out.
//!
//! A digest is applied whole or not at all, so only the state after it counts: names, attributes, data, and the times of
//! everything that is left. Two parts:
//!
//! * [`dead`]: inodes that were made in the digest and are gone in the end leave nothing;
//! * [`bytes`]: of what is written to a file, bytes that are replaced later in the digest are left out, and writes that
//!   continue each other become one.

mod bytes;
mod dead;

use crate::Record;

pub(crate) use bytes::{is_truncation, only_times};

/// A shorter list, in the same order, that leads to the same state. Numbers of records stay; where several became one, it
/// has the number of the last.
pub fn coalesce(records: Vec<Record>) -> Vec<Record> {
    bytes::join(bytes::without_replaced(dead::without_dead(records)))
}

#[cfg(test)]
mod tests;
