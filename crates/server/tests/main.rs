//! One program for all of these: each that stands alone links the whole server once more. A file here is a module of it;
//! `cargo xtask check` finds one that is forgotten.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod deep;
mod digests;
mod exactly_once;
mod fetch;
mod gone;
mod hostile;
mod hostile_client;
mod inquiries;
mod intake;
mod lock_delegation;
mod many;
mod operations;
mod pipelined;
mod policy;
mod power_cut;
mod refusals;
mod sessions;
mod sharing;
mod stall;
mod tools;
mod trouble;
