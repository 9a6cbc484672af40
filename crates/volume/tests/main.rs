//! One program for all of these: each that stands alone links the store once more. A file here is a module of it;
//! `cargo xtask check` finds one that is forgotten.

#![allow(clippy::unwrap_used, reason = "tests")]

mod acl;
mod common;
mod damaged;
mod faults;
mod limits;
mod model;
mod parallel;
mod power_cut;
mod random_writes;
mod redo;
mod scale;
mod semantics;
