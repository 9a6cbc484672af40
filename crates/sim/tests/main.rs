//! One program for all of these, so that no core waits for the longest of each file. A file here is a module of it; `cargo xtask
//! check` finds one that is forgotten.

mod behind;
mod deep;
mod determinism;
mod heirs;
mod room;
mod sabotage;
mod safety;
