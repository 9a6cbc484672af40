//! What needs no program of its own, in one: fewer to link, and none that waits for the last test of another. A file here is a
//! module of it; `cargo xtask check` finds one that is forgotten.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod backlog;
mod cache_dir;
mod callers;
mod checker;
mod coherence;
mod command_line;
mod damage;
mod durability;
mod failures;
mod fenced;
mod guard;
mod late_answers;
mod listings;
mod options;
mod quota;
mod recover;
mod semantics;
mod storm;
mod takeover;
mod users;
mod workload_on_local;
