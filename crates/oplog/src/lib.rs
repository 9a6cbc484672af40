//! The operation log of a client: what it did under its write leases and has not told the server yet (the update log of
//! Strata, the delayed writes of Sprite and SODA).
//!
//! # The life of a record
//! ```text
//!   append            take                     handle_applied             handle_durable
//!  ---------> pending -----> in a digest -----------------> applied -------------------> forgotten
//!                  ^              |                            |
//!                  +--------------+ handle_lost: the server     +-- the server lost it in a power cut: pending again
//!                                   has not heard of it
//!                  |
//!                  +--> given up (give_up): the lease that covered it did not survive a power cut; loudly lost
//! ```
//! A record stays in the log until the server has it on its disk, not only in its memory: a power cut of the server
//! takes nothing from a client that is alive.
//!
//! # Order
//! Records have a number ([`Lsn`]) and are sent in its order, so the server holds a prefix of what the client did. There
//! is one exception: when another machine waits for an object, only the records that the object depends on go ahead
//! ([`Log::take_for`]): every earlier record that touches the same inode or the same name, and what those depend on in
//! their turn. What is left behind cannot be told apart, by anybody who looks at the objects handed over, from operations
//! that were not made yet. `docs/SEMANTICS.md` says what that means after a crash.
//!
//! # A digest
//! The server applies a digest whole or not at all. So inside one, and only there, work that cancels out can be left out
//! ([`coalesce()`]): bytes that are overwritten, files that are created and removed again.
//!
//! # The parts
//! * [`Change`], [`Record`]: what is logged, and which objects it touches.
//! * [`Log`]: what is pending, in memory; sans-IO.
//! * [`coalesce()`]: a list of records into a shorter one that leads to the same state; pure.
//! * [`reserve`]: what the server has set aside for it.
//! * [`segments`]: the log on the local disk, and what is found there after a crash.
//! * [`world`]: for tests, here and at the server: a reference and random histories.

mod coalesce;
mod log;
pub mod reserve;
pub mod segments;
pub mod world;

pub use coalesce::coalesce;
pub use log::{Applied, Backlog, Digest, DigestId, DigestLimits, Log, Needed, Wanted};
/// What is logged, and which objects it touches: as it travels.
pub use soda_protocol::digest::{Change, Fate, Lsn, Moved, Object, Place, Record, Touch};
