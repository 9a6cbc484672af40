//! Tests of the whole: real processes, real mounts, real faults. `tests/` has the tests, this library what they share.
//!
//! * [`cell`]: a server and its mounts, and everything that can go wrong with them: kill, freeze, cut off, restart.
//! * [`linear`]: whether a history of concurrent operations could have happened on one copy (linearizability).
//! * [`workload`]: threads on several mounts that make such histories.
//! * [`story`]: both on a cell in which things go wrong.
//! * [`mapping`]: loads and stores through mapped memory.
//! * [`tree`]: the reference model's operations on a real directory, and their comparison.
//!
//! Nothing here knows how Soda works: only its command line and what a file system must do.

pub mod cell;
pub mod linear;
pub mod mapping;
pub mod story;
pub mod tree;
pub mod wait;
pub mod workload;
