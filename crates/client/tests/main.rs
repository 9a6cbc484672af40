//! One program for all of these: each that stands alone links client and server once more. A file here is a module of it;
//! `cargo xtask check` finds one that is forgotten.

#![allow(clippy::unwrap_used, reason = "tests")]

mod behind;
mod cache_dir;
mod coherence;
mod common;
mod deep;
mod examples;
mod failures;
mod fetch;
mod handover;
mod holes;
mod hostile_server;
mod in_doubt;
mod kernel_locks;
mod lock_delegation;
mod metadata;
mod names_ahead;
mod neighbours;
mod next_dirs;
mod next_files;
mod overtaken;
mod pace;
mod reclaim;
mod recover;
mod replay;
mod scripted;
mod suspend;
