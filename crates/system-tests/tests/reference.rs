//! The reference file system beside a real one. A program of its own: it sets the umask, which is the whole process's.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod killed_writer;
mod model_against_local;
mod two_machines;
