//! What a volume means: names, attributes, data, extended attributes and access control lists of a POSIX file system,
//! in records of the storage traits. Synchronous; knows nothing of networks and leases.
//!
//! Readers call methods of [`Volume`]. Changes go through a [`Txn`]: several operations, and records of the server, in
//! one atomic batch.
//!
//! # Who may do what at the same time
//! The caller sees to it that no two transactions that touch the same inode are under way at once, and that nobody reads
//! what a transaction is changing (the lease table is the server's lock manager). Everything else may run in parallel;
//! what volumes share inside (counters, inode numbers, caches, the lock for moving directories) looks after itself.
//!
//! # Where data goes
//! Small files' data stays beside the metadata, so that one sync of the journal covers it; other data goes to chunks
//! ([`Volume::stage_write`]) before the transaction that refers to them. Nothing is changed in place. What must not be lost with
//! a power cut although nobody waits for the medium is in the journal, too, until a sync ([`Redo`]).

mod acl;
mod ancestry;
mod attributes;
mod buffers;
mod cache;
mod extents;
pub mod fsck;
mod gather;
mod group_sync;
mod key;
mod namespace;
mod orphan;
mod reading;
mod record;
mod redo;
mod release;
mod rename;
mod staging;
mod sweep;
mod sync;
mod totals;
mod turns;
mod txn;
mod versions;
mod view;
mod volume;
mod writing;
mod xattr;
mod xattr_sizes;

pub use ancestry::Ancestry;
pub use cache::CacheUse;
pub use namespace::{DirEntry, Listing, NewKind, NewNode, Number};
pub use orphan::Progress;
pub use reading::{Layout, SeekTarget};
pub use record::RecordError;
pub use redo::Redo;
pub use rename::Renamed;
/// What changes ask for.
pub use soda_types::{Allocate, KillPriv, Replace, SetXattr, WriteAt};
pub use staging::Staged;
pub use txn::{Fate, IfOpen, Removed, Txn};
pub use volume::{INODE_COST, MAIN_VOLUME, Node, Volume, VolumeConfig};
pub use writing::Written;
