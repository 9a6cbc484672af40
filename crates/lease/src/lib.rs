//! Leases: promises of a server, for a limited time, not to let anybody else change an object (or, for a write lease,
//! see it) without asking the holder first. If the holder cannot be asked, time ends the promise.
//!
//! # No clock, no socket, no thread
//! Everything here is *sans-IO*: events and `now` go in, things to do come out. Nothing reads a clock, draws a random
//! number or lets the order of a hash map leak, so a simulation runs the production code and repeats a run by its seed.
//! Four kinds of method: getters; `handle_*` (something happened); commands (all others that change something);
//! `poll_*` (what to do next, and when to come back).
//!
//! # The two sides
//! * [`table::LeaseTable`]: the server's. Sessions, leases, which operation may run, recalls, grace after a restart.
//! * [`holder::Holder`]: the client's. What is held, until when caches may be used, how to answer a recall.
//! * [`conflict`]: which leases exclude each other, as pure rules, subtrees included.
//! * [`locks::LockTable`]: flock(2) and fcntl(2) locks, which are no leases: programs ask for them. A session that is alone with
//!   a file decides about its locks by itself: [`locks::Delegations`], and the client's [`locks::Delegate`].
//! * [`space::Space`], [`numbers::Numbers`]: what the server sets aside for what sessions do under their leases and tell it
//!   later, so that it can refuse none of that: space, and numbers for new inodes.
//!
//! # The states of a lease
//! ```text
//!   server (LeaseTable)                                client (Holder)
//!                     finish: granted (epoch e)          reply accepted
//!   none ---------------------------------> quiet      none ------------> held ---- recall e --> recalling
//!    ^                                        |          ^                  |  ^                     |
//!    |  ack, release, own term over,          | conflict |   release,       |  | kept: read          | caches
//!    |  session closed or fenced              v          |   session lost   |  +---------------------+ dropped
//!    +------------------------------------ recalled      +------------------+------ ack e: gone ----- +
//!                   resent until answered, expired or past the deadline
//! ```
//! A session (client's standing with the server) is good, then perhaps *condemned* (nothing renews it any more), then
//! fenced. Its expiry alone ends nothing: uncontested leases are kept by courtesy until somebody needs the object.
//!
//! # A drive loop
//! ```
//! use soda_lease::table::{Access, LeaseTable, OpKey, Outcome, Output, TableConfig};
//! use soda_types::{Epoch, Fid, Ino, Monotonic, SessionId, VolumeId};
//!
//! let now = Monotonic::ZERO; // the server's CLOCK_BOOTTIME
//! let mut table = LeaseTable::new(TableConfig::default(), Epoch(1), now);
//! table.open_session(now, SessionId(1));
//! table.handle_traffic(now, SessionId(1)).expect("renewed by every message");
//! table.request(now, SessionId(1), OpKey(7), vec![Access::read(Fid::new(VolumeId(1), Ino(42)))]);
//! while let Some(output) = table.poll_output() {
//!     match output {
//!         Output::Admit(op) => {
//!             // ... carry it out on the storage, then answer with these leases:
//!             let grants = table.finish(now, op, Outcome::Applied);
//!             assert_eq!(grants.len(), 1);
//!         }
//!         Output::Recall { session: _, recall: _ } => { /* push it on the session's control connection */ }
//!         Output::Fence { session: _, reason: _ } => { /* make it durable, then go on */ }
//!         Output::Inquire { .. } | Output::NotDescribed(_) => {} // nobody called `LeaseTable::inquire`
//!         Output::Refuse(_, _) | Output::SessionInUse { .. } => {}
//!     }
//! }
//! assert_eq!(table.poll_timeout(), None); // nobody waits for anything
//! ```

pub mod conflict;
pub mod holder;
pub mod locks;
pub mod numbers;
pub mod space;
pub mod table;

pub use holder::{DriftMargin, Holder, HolderConfig, Holding, RecallStep, Ticket};
pub use locks::LockTable;
pub use table::{Access, Intent, LeaseTable, OpKey, Outcome, Output, TableConfig, Want};
